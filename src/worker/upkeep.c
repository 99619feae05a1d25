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
 * So a look need not have seen everything, either.  A round begins with what
 * the last look has left in memory: which sessions lead what (led.c).  Those that
 * have ended since are replaced at once.  What else has changed since, also in
 * elections that are not remembered, is found by the look at all leases that
 * always follows.
 *
 * Renewals come first, from the memory of the last look (renewal.c), and again in
 * between: live leaders must not lose their leases while there is much else to do.
 * However large the tables are, no more than one of these is done before it is asked
 * again whether a renewal is due:
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
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "worker/worker.h"

#define ANNOUNCE_AT		100		/* so many elections, amid much to settle */
#define LOOK_AGAIN		(1000 * MS) /* where nobody who stands may be elected */
#define LONGEST_SLEEP	(3600000 * MS)
#define LONGEST_POSTPONE (1000 * MS)	/* of tidying up */
#define PROOF_LIFE		(20 * MS)	/* several elections share one */
#define PROOF_WAIT		(300 * MS)
#define CROWD			1000	/* so many candidates are not read in a look */
#define LONGEST_WORK	(25 * MS)	/* between two looks at leases, if waked */
#define WINNER_FIRST	(MS / 2)	/* before we do anything else */

/*
 * What can fail again and again, besides what concerns one election: settling
 * it ("E" and its name), a yield ("Y"), a renewal ("R")
 */
#define LOOK			"look"
#define NEW_EPOCH		"new epoch"
#define PROOF			"proof"

/* A look at the tables */
typedef struct Look
{
	Pass	   *pass;
	Store		store;
	const char *incarnation;
	bool		all;			/* the candidates are known, too */
	bool		announces;		/* the marks are known, too */
} Look;

/* An election to settle */
typedef struct SettleTask
{
	const char *election;
	Proof		proof;
	bool		changed;
	int64		duration;		/* of its leases */
	bool		waited;			/* for its lock */
} SettleTask;

/* When the next look is due, if nobody wakes us before */
static int64 look_at = 0;

/*
 * A lease that is led no more, or on another incarnation: when is it to be
 * settled?  A seat for which nobody stands costs nothing but its row.
 */
static int64
vacancy_ends(const Store *store, const Lease *lease, const Incarnation *inc)
{
	const Standing *s = le_standing_find(lease->election);
	Turnout		turnout = {0, 0, 0};
	Election   *election;
	Vacancy		v;

	if (lease->leader == NULL && lease->successor == NULL && s == NULL)
		return PG_INT64_MAX;
	election = le_election_read(store, lease->election);
	if (election == NULL)
		return PG_INT64_MAX;
	if (s != NULL)
	{
		turnout.live = s->candidates;
		turnout.ready = s->sits_out < lease->term ? 1 : 0;
		turnout.told = s->session_sits_out < lease->term ? 1 : 0;
	}
	le_vacancy(store, election, lease, inc, le_clock(), NULL, &v);
	return le_vacancy_due(election, lease, &turnout, &v);
}

/*
 * A lease that is led: does the strategy want its leader to yield, to somebody
 * else than now, or no more?
 */
static bool
is_to_preempt(const Store *store, const Lease *lease)
{
	const Standing *s = le_standing_find(lease->election);
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
	if (s != NULL && s->candidates >= CROWD)
		return true;
	return le_ranking_preempts(lease, le_ranking_challenger(store, election, lease));
}

static List *
keep(List *leases, const Lease *lease)
{
	MemoryContext old = MemoryContextSwitchTo(le_worker_context);

	leases = lappend(leases, le_lease_copy(lease));
	MemoryContextSwitchTo(old);
	return leases;
}

static void
look_at_led(Look *look, Lease *lease)
{
	Pass	   *pass = look->pass;

	pass->work = true;
	if (look->all && is_to_preempt(&look->store, lease))
		pass->preempt = keep(pass->preempt, lease);
	if (!le_renewal_note(lease))
		pass->next = Min(pass->next, lease->deadline_mono);
}

static void
look_at_lease(Lease *lease, void *arg)
{
	Look	   *look = arg;
	Pass	   *pass = look->pass;
	const Incarnation *inc = pass->inc;
	int64		now = le_clock();	/* not before the row was read */
	LeaseState	state = le_lease_state_if_alive(lease, look->incarnation, now);
	int64		due = now;

	if (inc != NULL && inc->epoch == 0 &&
		le_lease_is_foreign(lease, look->incarnation))
		pass->new_incarnation = true;
	if (look->announces)
		le_announce_lease(&look->store, lease, inc, &pass->next);
	if (state == LEASE_LED && lease->session_id != 0)
	{
		if (le_led_alive(lease->session_id))
			le_led_note(lease->session_id, lease->election);
		else
			state = LEASE_ORPHANED;
	}
	if (state == LEASE_LED)
	{
		look_at_led(look, lease);
		return;
	}
	pass->work |= state != LEASE_VACANT;
	if (state == LEASE_VACANT || state == LEASE_FOREIGN)
	{
		if (inc == NULL || !look->all)
			return;
		due = vacancy_ends(&look->store, lease, inc);
	}
	if (due <= now)
	{
		lease->configured = le_election_lease_duration(&look->store, lease);
		pass->settle = keep(pass->settle, lease);
	}
	else
		pass->next = Min(pass->next, due);
}

/*
 * Look at all leases and candidates, and find out what is due.  Tables that
 * another transaction has locked are left for the next look, and so are candidates
 * that take too long: the table of leases is enough to renew and to end leases.
 */
static void
look(void *arg)
{
	Pass	   *pass = arg;
	Look		look = {.pass = pass};

	pass->installed = le_store_find(&look.store);
	if (!pass->installed)
		return;
	pass->work = true;			/* until proven otherwise */
	pass->next = le_clock() + RETRY;
	if (!le_store_try_lock(&look.store, LE_TABLE_LEASE, AccessShareLock))
		return;
	le_led_begin();
	le_renewal_begin();
	if (le_store_try_lock(&look.store,
						  LE_TABLE_ELECTION | LE_TABLE_CANDIDATE | LE_TABLE_EPOCH,
						  AccessShareLock))
	{
		pass->next = le_clock() + LONGEST_SLEEP;
		pass->work = false;
		pass->inc = le_epoch_read();
		pass->new_incarnation = !pass->inc->known;
		look.all = le_standing_look(&look.store, pass);
		look.announces = le_announce_look(&look.store);
		if (!look.announces)
			pass->next = Min(pass->next, le_clock() + RETRY);
	}
	look.incarnation = le_incarnation_name(look.store.lease_oid);
	pass->looked_at = le_clock();
	le_lease_scan(&look.store, look_at_lease, &look);
	le_led_end();
	le_renewal_end();
	if (look.announces)
		le_announce_looked(&look.store, pass->inc);
}

/*
 * Settle one election, in a transaction of its own.
 */
static void
settle(void *arg)
{
	SettleTask *item = arg;
	const char *name = item->election;
	Store		store;
	Election   *election;

	MemoryContextSwitchTo(CurTransactionContext);	/* a round may have many */
	if (!le_store_find(&store))
		return;					/* dropped since the look */
	le_wait_start();
	if (!le_store_try_lock(&store, LE_TABLES, RowExclusiveLock))
		le_busy(name);
	election = le_election_read(&store, name);
	if (election == NULL)
		return;					/* it has been dropped */
	if (le_ranking_prepare(&store, election, NULL) && item->proof.required &&
		!le_prove(le_lease_read(&store, name, NULL), election->lease_duration,
				  true, PROOF_WAIT, &item->proof))
		le_busy(name);			/* the proof got old meanwhile */
	item->waited = !le_lock_election(name, false);
	if (item->waited && !le_wait_for_election(name))
		le_busy(name);
	election = le_election_read(&store, name);	/* it may be gone by now */
	if (election != NULL)
	{
		Settled		settled = le_settle(&store, election, NULL, NULL,
										&item->proof);

		if (settled >= SETTLED_BUSY)
			le_busy(name);
		item->changed = settled != SETTLED_NOTHING;
		item->duration = election->lease_duration;
	}
}

/*
 * Have a strategy ask for a yield, or take that back, in a transaction of its
 * own: each sees the last.
 */
static void
preempt(void *arg)
{
	SettleTask *item = arg;
	const char *name = item->election;
	Store		store;
	Election   *election;

	MemoryContextSwitchTo(CurTransactionContext);
	le_store_get(&store);
	if (!le_store_try_lock(&store, LE_TABLES, RowExclusiveLock))
		le_busy(name);
	election = le_election_read(&store, name);
	if (election != NULL &&
		!le_settle_preempt(&store, election, &item->changed))
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
 * Is other work to end now, because leases are to be renewed?  A wake-up may
 * tell of a lease that is not known yet.
 */
bool
le_is_to_renew(const Pass *pass)
{
	int64		now = le_clock();

	return pass->renew_at <= now ||
		(MyLatch->is_set && now - pass->looked_at >= LONGEST_WORK);
}

/*
 * Settle an election, or see to its yields, in the time that the next renewal
 * leaves.
 */
static bool
attempt_one(Pass *pass, const char *key, Work work, SettleTask *item,
			const char *activity)
{
	bool		done;

	le_candidates_read_until(Max(pass->renew_at, le_clock() + LONGEST_WORK));
	done = le_attempt(key, work, item, activity, &pass->next);
	le_candidates_read_until(PG_INT64_MAX);
	return done;
}

/*
 * Settle one election.  True if anything changed.  Where nothing did, although it
 * was due, candidates lack a role: nobody tells us when they are given it.
 */
static bool
settle_one(Pass *pass, SettleTask *item)
{
	const char *name = item->election;
	bool		done = attempt_one(pass, psprintf("E%s", name), settle, item,
								   psprintf("electing in %s", le_quote(name)));

	if (done && item->changed)
	{
		pass->renew_at = Min(pass->renew_at, le_clock() + item->duration / 3);
		le_announce_add(name);
		if (le_announce_pending() >= ANNOUNCE_AT)
			le_announce(pass);
	}
	else if (done)
		pass->next = Min(pass->next, le_clock() + LOOK_AGAIN);

	/* Our latch was reset meanwhile, and others may have decided. */
	if (item->waited)
	{
		pass->next = le_clock();
		le_standing_look_again();
	}
	return done && item->changed;
}

/*
 * Settle the elections of sessions that have ended since the last look, before
 * anything else is looked at.  Where synchronous standbys are configured, a proof
 * needs a look first.  What is left for want of time, or because it is busy, is
 * found by the look that follows.  True if anything changed.
 */
static bool
settle_orphaned(Pass *pass)
{
	List	   *elections = le_led_orphaned();
	bool		changed = false;
	ListCell   *lc;

	pass->looked_at = le_clock();
	foreach(lc, elections)
	{
		SettleTask	item = {.election = lfirst(lc)};

		if ((le_is_to_renew(pass) && lc != list_head(elections)) ||
			!le_prove(NULL, 0, false, 0, &item.proof))
			break;
		changed |= settle_one(pass, &item);
	}
	return changed;
}

/*
 * Settle what is due, until leases are to be renewed: those of live leaders
 * must not run out while there is much to settle.  The next round goes on there,
 * so that those that are busy do not keep us from the others.  True if anything
 * changed.
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
		const Lease *seen = lfirst(lc);
		SettleTask	item = {.election = seen->election};

		if (le_is_to_renew(pass) && lc != list_head(leases))
		{
			strlcpy(go_on_at, item.election, sizeof(go_on_at));
			pass->next = le_clock();
			break;
		}
		if ((!proof.confirmed || le_clock() - proof.t0 > PROOF_LIFE) &&
			!le_prove(NULL, 0, false, 0, &proof) &&
			!le_attempt(PROOF, prove, &proof, "asking synchronous standbys",
						&pass->next))
			break;
		item.proof = proof;
		le_proof_set_subject(&item.proof, seen, seen->configured, pass->inc);
		changed |= settle_one(pass, &item);
	}
	return changed;
}

static void
preempt_all(Pass *pass)
{
	ListCell   *lc;

	foreach(lc, pass->preempt)
	{
		const char *name = ((Lease *) lfirst(lc))->election;
		SettleTask	item = {.election = name};

		if (le_is_to_renew(pass) && lc != list_head(pass->preempt))
		{
			pass->next = le_clock();
			break;
		}
		if (attempt_one(pass, psprintf("Y%s", name), preempt, &item,
						psprintf("asking for a yield in %s", le_quote(name))) &&
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
	if (!le_begin_epoch(&store))
		le_postpone("a table or row that an epoch needs is locked");
}

/*
 * What comes before the look: see to the elections of sessions that have just
 * ended.  Whom we have elected goes first, and for a moment we leave it the
 * processor.  False: look now, since nothing has changed, or a look is overdue.
 */
static bool
see_to_orphaned(Pass *pass)
{
	static int64 look_by = 0;	/* 0: the look was not put off */
	bool		changed;

	changed = settle_orphaned(pass);
	if (look_by == 0)
		look_by = le_clock() + LONGEST_WORK;
	if (!changed || pass->renew_at <= le_clock() || look_by <= le_clock())
	{
		look_by = 0;
		return false;
	}
	pass->installed = true;
	pass->work = true;
	pass->next = le_clock() + WINNER_FIRST;
	return true;
}

/*
 * Renew what is due, as the last look has found it.  False: that was all there is
 * to do in this round.  True: look now.
 */
static bool
renew_before_look(Pass *pass)
{
	if (pass->renew_at > le_clock())
		return true;
	pass->next = look_at;
	le_renew_all(pass);
	pass->installed = true;
	pass->work = true;
	return pass->woken || pass->next <= le_clock();
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
	pass->renew_at = le_renewal_due();
	if (see_to_orphaned(pass) || !renew_before_look(pass))
		return;
	pass->next = PG_INT64_MAX;
	if (!le_attempt(LOOK, look, pass, "looking", &pass->next))
	{
		/* What the look had found before it failed is no answer. */
		pass->installed = true;
		pass->work = true;
		return;
	}
	pass->renew_at = le_renewal_due();
	if (!pass->installed)
		return;
	if (pass->new_incarnation)
	{
		if (le_attempt(NEW_EPOCH, begin_epoch, NULL, "starting an epoch",
					   &pass->next))
			pass->next = le_clock();
	}
	if (pass->renew_at <= le_clock())
		le_renew_all(pass);

	/*
	 * A leader that was elected just now goes first: tidying up can wait for
	 * some milliseconds, but not for ever.
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
	Pass		pass = {.woken = found->woken};
	int64		reads = pgBufferUsage.shared_blks_read;
	int64		spares_at;

	MemoryContextReset(le_worker_context);
	MemoryContextSwitchTo(le_worker_context);
	le_seats_begin_round();
	spares_at = le_room_keep_spares();
	if (found->woken)
		le_standing_look_again();	/* even if this round does not look */
	do_round(&pass);
	pass.next = Min(pass.next, spares_at);
	/* A wait for the disk may reset our latch: see above. */
	if (pgBufferUsage.shared_blks_read != reads)
	{
		pass.next = Min(pass.next, le_clock() + RETRY);
		le_standing_look_again();
	}
	look_at = pass.next;
	found->installed = pass.installed;
	found->work = pass.work;
	found->untold = le_announce_pending() > 0;
	found->next = Min(pass.next, pass.renew_at);
}
