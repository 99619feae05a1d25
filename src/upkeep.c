/*-------------------------------------------------------------------------
 *
 * upkeep.c
 *		What the background worker does in a round: it renews the leases of
 *		live sessions, ends the others, elects, asks for yields, and removes
 *		what is no longer needed.
 *
 * Invariant: a look decides nothing.  Whatever it found due is looked at again
 * under the locks that the change needs, by the code that candidates' own calls
 * go through as well.
 *
 * Renewals come first, and again in between: live leaders must not lose their
 * leases while there is much else to do.  However large the tables are, no more
 * than one of these is done before it is asked again whether a renewal is due:
 *
 * - a look, which reads each row of a table once;
 * - a change of holder or of a request to yield, which reads the candidates of
 *	 that election.  The first one in a round where the strategy counts seats
 *	 reads the leases, too (seats.c);
 * - a transaction that tells listeners 100 events (announce.c);
 * - a step of tidying up: 5 ms, or 250 rows of history (tidy.c).
 *
 * Rows of history are read by key, or along an index from where the last step
 * has ended, and never all of them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/instrument.h"
#include "leader_election.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "worker.h"

#define ANNOUNCE_AT		100		/* so many elections, amid much to settle */
#define LOOK_AGAIN		(1000 * MS)		/* where nobody who stands may be elected */
#define LONGEST_SLEEP	(3600000 * MS)
#define LONGEST_POSTPONE (1000 * MS)	/* of tidying up */
#define PROOF_LIFE		(20 * MS)		/* several elections share one */
#define PROOF_WAIT		(300 * MS)

/*
 * What can fail again and again, besides what concerns one election: settling
 * it ("E" and its name), a yield ("Y"), a renewal ("R")
 */
#define LOOK			"look"
#define NEW_EPOCH		"new epoch"
#define PROOF			"proof"

/* Leases are renewed after a third of them, along with those past a quarter. */
#define RENEW_DUE(lease)	((lease)->deadline_mono - (lease)->duration * 2 / 3)
#define RENEW_EARLY(lease)	((lease)->deadline_mono - (lease)->duration * 3 / 4)

/* Who stands in an election, as far as the worker cares */
typedef struct Standing
{
	char		election[LE_NAME_MAX + 1];	/* hash key */
	int			candidates;
	int64		sits_out;		/* the lowest of all candidates, -1: none */
	int64		session_sits_out;	/* the same of session candidates */
} Standing;

/* An election to settle */
typedef struct Case
{
	const Lease *seen;			/* before the proof */
	Proof		proof;
	bool		changed;
	bool		waited;			/* for its lock */
} Case;

/*
 * Find out in which elections somebody stands, and whether all sit out.
 */
static HTAB *
gather_standing(Pass *pass)
{
	HASHCTL		info;
	HTAB	   *standing;
	ListCell   *lc;

	memset(&info, 0, sizeof(info));
	info.keysize = LE_NAME_MAX + 1;
	info.entrysize = sizeof(Standing);
	info.hcxt = CurrentMemoryContext;
	standing = hash_create("leader_election standing", 64, &info,
						   HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	foreach(lc, pass->candidates)
	{
		Candidate  *c = lfirst(lc);
		bool		found;
		Standing   *s = hash_search(standing, c->election, HASH_ENTER, &found);

		if (!found)
		{
			s->candidates = 0;
			s->sits_out = s->session_sits_out = PG_INT64_MAX;
		}
		s->candidates++;
		s->sits_out = Min(s->sits_out, c->sits_out);
		if (c->session_id != 0)
			s->session_sits_out = Min(s->session_sits_out, c->sits_out);
		else					/* its row is to be removed one day */
			pass->next = Min(pass->next,
							 Max(c->seen + c->seen_for, le_clock() + TIDY_PAUSE));
	}
	return standing;
}

/*
 * A vacant lease: when may the worker elect somebody, or keep the seat for
 * somebody?
 */
static int64
vacancy_ends(const Store *store, const Lease *lease, const Incarnation *inc,
			 HTAB *standing)
{
	Election   *election = le_election_read(store, lease->election);
	Standing   *s = hash_search(standing, lease->election, HASH_FIND, NULL);

	if (election == NULL)
		return PG_INT64_MAX;
	if (le_election_kept_in_vain(store, election, lease, inc))
		return 0;
	if (lease->leader == NULL &&
		(s == NULL || s->candidates < election->quorum ||
		 (le_strategy(election)->reserves ? s->sits_out :
		  s->session_sits_out) >= lease->term))
		return lease->successor == NULL ? PG_INT64_MAX :
			le_lease_reserved_mono(lease, inc->name);
	return Max(Max(lease->leader == NULL ? le_lease_free_mono(lease, inc) : 0,
				   le_election_grace_mono(election, lease, inc)),
			   le_election_reserved_mono(store, election, lease, inc));
}

/*
 * A lease that is led: does the strategy want its leader to yield, to somebody
 * else than now, or no more?
 */
static bool
is_to_preempt(const Store *store, const Lease *lease, HTAB *standing)
{
	Standing   *s = hash_search(standing, lease->election, HASH_FIND, NULL);
	Election   *election;
	const Strategy *strategy;

	if (lease->yield_ordered ||
		((s == NULL || s->candidates < 2) && !lease->yielding))
		return false;
	election = le_election_read(store, lease->election);
	if (election == NULL)
		return false;
	strategy = le_strategy(election);
	if (strategy->preempts == NULL && !lease->yielding)
		return false;
	return le_is_to_preempt(lease, le_challenger(store, election, lease));
}

/*
 * Look at all leases and candidates, and find out what is due.  Tables that
 * somebody has locked are left for the next look, except that renewals need
 * no more than the table of leases.
 */
static void
look(void *arg)
{
	Pass	   *pass = arg;
	int64		now;
	Store		store;
	List	   *leases;
	char	   *incarnation;
	Incarnation *inc = NULL;
	HTAB	   *standing = NULL;
	bool		announces = false;
	ListCell   *lc;

	pass->installed = le_store_find(&store);
	if (!pass->installed)
		return;
	pass->work = true;			/* until proven otherwise */
	pass->next = le_clock() + RETRY;
	if (!le_store_lock(&store, LE_TABLE_LEASE, AccessShareLock, false))
		return;
	if (le_store_lock(&store, LE_TABLE_ELECTION | LE_TABLE_CANDIDATE | LE_TABLE_EPOCH,
					  AccessShareLock, false))
	{
		pass->next = le_clock() + LONGEST_SLEEP;
		pass->work = false;
		inc = pass->inc = le_incarnation_read();
		pass->new_incarnation = !inc->known;
		pass->candidates = le_candidates_read(&store, NULL);
		pass->work = pass->candidates != NIL;
		standing = gather_standing(pass);
		announces = le_announce_look(&store);
		if (!announces)
			pass->next = le_clock() + RETRY;
	}

	incarnation = le_incarnation_name(store.lease);
	leases = le_lease_read_all(&store);
	now = le_clock();			/* not before: they may have been renewed since */
	foreach(lc, leases)
	{
		Lease	   *lease = lfirst(lc);
		int64		due = PG_INT64_MAX;

		if (inc != NULL && inc->epoch == 0 &&
			le_lease_is_foreign(lease, incarnation))
			pass->new_incarnation = true;
		if (announces)
			le_announce_lease(&store, lease, inc, &pass->next);
		switch (le_lease_state(lease, incarnation, now))
		{
			case LEASE_LED:
				pass->work = true;
				if (inc != NULL && is_to_preempt(&store, lease, standing))
					pass->preempt = lappend(pass->preempt, lease);
				due = lease->deadline_mono;
				if (lease->auto_renew && lease->session_id != 0 &&
					!lease->yielding)
				{
					if (RENEW_EARLY(lease) <= now)
						pass->renew = lappend(pass->renew, lease);
					else
						pass->renew_later_at = Min(pass->renew_later_at,
												   RENEW_DUE(lease));
					pass->renew_at = Min(pass->renew_at, RENEW_DUE(lease));
					continue;
				}
				pass->next = Min(pass->next, due);
				continue;
			case LEASE_VACANT:
				if (inc == NULL)
					continue;
				due = vacancy_ends(&store, lease, inc, standing);
				break;
			case LEASE_EXPIRED:
			case LEASE_ORPHANED:
				pass->work = true;
				due = now;
				break;
			case LEASE_FOREIGN:
				pass->work = true;
				if (inc == NULL)
					continue;
				due = vacancy_ends(&store, lease, inc, standing);
				break;
		}
		if (due <= now)
		{
			lease->configured = le_lease_duration(&store, lease);
			pass->settle = lappend(pass->settle, lease);
		}
		else
			pass->next = Min(pass->next, due);
	}
	if (announces)
		le_announce_looked();
}

/*
 * Settle one election, in a transaction of its own.
 */
static void
settle(void *arg)
{
	Case	   *item = arg;
	const char *name = item->seen->election;
	Store		store;
	Election   *election;

	le_store_get(&store);
	le_wait_begin();
	if (!le_store_lock(&store, LE_TABLES, RowExclusiveLock, false))
		le_busy(name);
	election = le_election_read(&store, name);
	if (election == NULL)
		return;					/* it has been dropped */
	if (le_seats_prepare(&store, election, NULL) && item->proof.required &&
		!le_prove(le_lease_read(&store, name, NULL), election->lease_duration,
				  true, PROOF_WAIT, &item->proof))
		le_busy(name);			/* the proof got old meanwhile */
	item->waited = !le_election_lock(name, false);
	if (item->waited && !le_election_queue(name))
		le_busy(name);
	election = le_election_read(&store, name);	/* it may be gone by now */
	if (election != NULL)
	{
		Settled		settled = le_election_settle(&store, election, NULL, NULL,
												 &item->proof);

		if (settled.busy || settled.unproven)
			le_busy(name);
		item->changed = settled.changed;
	}
}

/*
 * Have a strategy ask for a yield, or take that back, in a transaction of its
 * own: each sees the last.
 */
static void
preempt(void *arg)
{
	Case	   *item = arg;
	const char *name = item->seen->election;
	Store		store;
	Election   *election;

	le_store_get(&store);
	if (!le_store_lock(&store, LE_TABLES, RowExclusiveLock, false))
		le_busy(name);
	election = le_election_read(&store, name);
	if (election != NULL &&
		!le_election_preempt(&store, election, &item->changed))
		le_busy(name);
}

/*
 * One proof for all that is settled in the next moment.
 */
static void
prove(void *arg)
{
	if (!le_prove(NULL, PG_INT64_MAX, false, PROOF_WAIT, arg))
		le_postpone("synchronous standbys do not follow");
}

/*
 * These leases, beginning with the one of that election, if it is there.
 */
static List *
begin_with(List *leases, const char *election)
{
	ListCell   *lc;

	foreach(lc, leases)
	{
		int			n = foreach_current_index(lc);

		if (strcmp(((Lease *) lfirst(lc))->election, election) == 0)
			return list_concat(list_copy_tail(leases, n),
							   list_truncate(list_copy(leases), n));
	}
	return leases;
}

/*
 * Settle what is due, until leases are to be renewed: those of live leaders
 * must not run out while there is much to settle.  The next round goes on there,
 * so that those that are busy do not keep us from the others.  True if anything
 * changed.  Where nothing did, although it was due, candidates lack a role:
 * nobody tells us when they are given it.
 */
static bool
settle_all(Pass *pass)
{
	static char go_on_at[LE_NAME_MAX + 1] = "";
	List	   *leases = begin_with(pass->settle, go_on_at);
	bool		changed = false;
	Proof		proof = {.confirmed = false};
	ListCell   *lc;

	go_on_at[0] = '\0';
	foreach(lc, leases)
	{
		Case		item = {.seen = lfirst(lc)};
		const char *name = item.seen->election;

		if (pass->renew_at <= le_clock() && lc != list_head(leases))
		{
			strlcpy(go_on_at, name, sizeof(go_on_at));
			pass->next = le_clock();
			break;
		}
		if ((!proof.confirmed || le_clock() - proof.t0 > PROOF_LIFE) &&
			!le_prove(NULL, 0, false, 0, &proof) &&
			!le_attempt(PROOF, prove, &proof, "asking synchronous standbys",
						&pass->next))
			break;
		item.proof = proof;
		le_proof_about(&item.proof, item.seen, item.seen->configured, pass->inc);
		if (le_attempt(psprintf("E%s", name), settle, &item,
					   psprintf("electing in %s", le_quote(name)), &pass->next))
		{
			changed |= item.changed;
			if (item.changed)
				le_announce_add(name);
			else
				pass->next = Min(pass->next, le_clock() + LOOK_AGAIN);
			if (le_announce_pending() >= ANNOUNCE_AT)
				le_announce(pass);
		}

		/* Our latch was reset meanwhile, and others may have decided. */
		if (item.waited)
			pass->next = le_clock();
	}
	return changed;
}

static void
preempt_all(Pass *pass)
{
	ListCell   *lc;

	foreach(lc, pass->preempt)
	{
		Case		item = {.seen = lfirst(lc)};
		const char *name = item.seen->election;

		if (pass->renew_at <= le_clock() && lc != list_head(pass->preempt))
		{
			pass->next = le_clock();
			break;
		}
		if (le_attempt(psprintf("Y%s", name), preempt, &item,
					   psprintf("asking for a yield in %s", le_quote(name)), &pass->next) &&
			item.changed)
		{
			le_announce_add(name);
			pass->next = le_clock();
		}
	}
}

/*
 * See to it that this incarnation of the server has its row.
 */
static void
begin_epoch(void *arg)
{
	Store		store;

	le_store_get(&store);
	if (!le_epoch_begin(&store))
		le_postpone("a table or row that an epoch needs is locked");
}

/*
 * One round: look, and do what is due.
 */
static void
do_round(Pass *pass)
{
	static int64 postponed_at = 0;	/* tidying up; 0: it was not */

	bool		changed;

	le_announce_begin();
	memset(pass, 0, sizeof(Pass));
	pass->renew_at = PG_INT64_MAX;
	pass->renew_later_at = PG_INT64_MAX;
	pass->next = PG_INT64_MAX;
	if (!le_attempt(LOOK, look, pass, "looking", &pass->next))
	{
		/* Whatever it had found by then is no answer. */
		pass->installed = true;
		pass->work = true;
		return;
	}
	if (!pass->installed)
		return;
	if (pass->new_incarnation)
	{
		if (le_attempt(NEW_EPOCH, begin_epoch, NULL, "starting an epoch",
					   &pass->next))
			pass->next = le_clock();
	}
	if (pass->renew_at > le_clock())
		pass->next = Min(pass->next, pass->renew_at);
	else if (pass->renew != NIL)
		le_renew_all(pass);
	else
		pass->next = le_clock();	/* it has become due since the look */

	/*
	 * Whoever was elected goes first: what is left to tidy up, and to renew,
	 * can wait for some milliseconds, but not for ever.
	 */
	changed = settle_all(pass);
	le_announce(pass);
	if (changed)
	{
		pass->next = Min(pass->next, le_clock() + RETRY);
		if (postponed_at == 0)
			postponed_at = le_clock();
		if (le_clock() - postponed_at < LONGEST_POSTPONE)
			return;
	}
	postponed_at = 0;
	preempt_all(pass);
	le_announce(pass);
	le_tidy(pass);
}

/*
 * One round, in memory of its own.
 */
void
le_upkeep(Upkeep *found)
{
	Pass		pass;
	int64		reads = pgBufferUsage.shared_blks_read;
	int64		spares_at;

	MemoryContextReset(le_worker_context);
	MemoryContextSwitchTo(le_worker_context);
	le_seats_begin_round();
	spares_at = le_spares_keep();
	do_round(&pass);
	pass.next = Min(pass.next, spares_at);
	/* A wait for the disk may reset our latch: see above. */
	if (pgBufferUsage.shared_blks_read != reads)
		pass.next = Min(pass.next, le_clock() + RETRY);
	found->installed = pass.installed;
	found->work = pass.work;
	found->untold = le_announce_pending() > 0;
	found->next = pass.next;
}
