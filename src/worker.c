/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The background worker: it renews the leases of live sessions, ends the
 *		others, elects, and sleeps until the next of these is due.
 *
 * Correctness never depends on it, only promptness does: whatever it does,
 * any candidate that calls in may do as well.
 *
 * It is started on demand, one per database, and ends after a while without
 * candidates and leaders.  Invariant: as long as there is a candidacy, even
 * one that is not committed yet, there is a worker.  A candidacy is written
 * before its session looks for the worker's lock; the worker releases that
 * lock before it looks for candidacies, with a snapshot that sees uncommitted
 * ones, for the last time.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "leader_election.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#define MS				INT64CONST(1000)
#define LOCK_WAIT		(50 * MS)		/* one busy election holds up the others so long */
#define LONGEST_NOTIFY	(1000 * MS)		/* or so long, if no renewal is due before */
#define TELL_AFTER		(10000 * MS)	/* an election that stays busy is logged */
#define RETRY			(10 * MS)		/* after a table was locked */
#define BUSY_PAUSE		(1 * MS)		/* after an election was busy, at first */
#define ERROR_PAUSE		(100 * MS)		/* after an error, at first */
#define LONGEST_BUSY	(100 * MS)
#define LONGEST_ERROR	(60000 * MS)	/* with one election */
#define LONGEST_ERROR_ALL (1000 * MS)	/* with what all of them need */
#define PRUNE_EVERY		(3600000 * MS)	/* old history */
#define LONGEST_POSTPONE (1000 * MS)	/* of tidying up */
#define TIDY_PAUSE		(1000 * MS)		/* before a dead candidate's row is removed */
#define PROOF_LIFE		(20 * MS)		/* several elections share one */
#define PROOF_WAIT		(300 * MS)
#define START_PAUSE		(1000 * MS)		/* between two starts of a worker */
#define START_WAIT		(100 * MS)		/* for a worker to be there */
#define BATCH			1000

/* What can fail again and again, besides settling an election: "e" and its name */
#define LOOK			"look"
#define RENEWAL			"renewal"
#define NEW_EPOCH		"new epoch"
#define PROOF			"proof"

/* Leases are renewed after a third of them, along with those past a quarter. */
#define RENEW_DUE(lease)	((lease)->deadline_mono - (lease)->duration * 2 / 3)
#define RENEW_EARLY(lease)	((lease)->deadline_mono - (lease)->duration * 3 / 4)

/* What could not be done, and when to try again */
typedef struct Trouble
{
	char		key[LE_NAME_MAX + 2];	/* hash key */
	int64		since;
	bool		told;
	int64		pause;
	int64		retry_at;
} Trouble;

/* Who stands in an election, as far as the worker cares */
typedef struct Standing
{
	char		election[LE_NAME_MAX + 1];	/* hash key */
	int			candidates;
	int64		sits_out;		/* the lowest of all candidates, -1: none */
	int64		session_sits_out;	/* the same of session candidates */
} Standing;

/* What one look at the tables has found */
typedef struct Pass
{
	bool		installed;
	bool		new_incarnation;
	bool		work;			/* there are candidates or leaders */
	int64		next;			/* when to look again */
	List	   *renew;			/* leases */
	int64		renew_at;		/* when the next lease is to be renewed */
	List	   *settle;			/* leases, as they were seen */
	List	   *preempt;		/* leases whose leader is to yield, or no more */
	List	   *candidates;
} Pass;

/* An election to settle */
typedef struct Case
{
	const Lease *seen;			/* before the proof */
	Proof		proof;
	bool		changed;
	bool		waited;			/* for its lock */
} Case;

/* Leases to be renewed together */
typedef struct Batch
{
	List	   *leases;
	bool		complete;		/* all of them were */
} Batch;

typedef enum Outcome
{
	DONE,
	BUSY,						/* a lock was not free in time, or cancelled */
	FAILED
} Outcome;

typedef void (*Work) (void *arg);

static MemoryContext pass_context;
static HTAB *troubles;
static bool ended_by_itself = false;

static void
wake_launcher(int code, Datum arg)
{
	if (!ended_by_itself)
		le_wake_workers(InvalidOid);
}

/*
 * Do something that may fail or be cancelled.  An error is logged and undone,
 * and ends nothing else: outside of this, nothing here may meet an interrupt.
 */
static Outcome
guard(Work work, void *arg)
{
	volatile Outcome result = DONE;

	PG_TRY();
	{
		work(arg);
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		result = geterrcode() == ERRCODE_LOCK_NOT_AVAILABLE ||
			geterrcode() == ERRCODE_QUERY_CANCELED ? BUSY : FAILED;
		if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE)
			EmitErrorReport();
		AbortCurrentTransaction();
		FlushErrorState();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(pass_context);
	return result;
}

/*
 * Give up for now: whoever attempt()s this tries again.
 */
LE_NORETURN static void
postpone(const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg_internal("%s", why)));
}

/* Work that needs a transaction of its own */
typedef struct Transaction
{
	Work		work;
	void	   *arg;
} Transaction;

static void
run_transaction(void *arg)
{
	Transaction *transaction = arg;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	MemoryContextSwitchTo(pass_context);
	transaction->work(transaction->arg);
	CommitTransactionCommand();
}

static Outcome
in_transaction(Work work, void *arg, const char *activity)
{
	Transaction transaction = {work, arg};
	Outcome		result;

	pgstat_report_activity(STATE_RUNNING, activity);
	result = guard(run_transaction, &transaction);
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
	return result;
}

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
	if (le_election_kept_in_vain(store, lease, inc))
		return 0;
	if (lease->leader == NULL &&
		(s == NULL || s->candidates < election->quorum ||
		 (le_strategy(election)->reserves ? s->sits_out :
		  s->session_sits_out) >= lease->term))
		return lease->successor == NULL ? PG_INT64_MAX :
			le_lease_reserved_mono(lease, inc->name);
	return Max(Max(le_lease_free_mono(lease, inc),
				   le_election_grace_mono(election, lease, inc)),
			   le_election_reserved_mono(store, lease, inc));
}

/*
 * A lease that is led: does the strategy want its leader to yield, to somebody
 * else than now, or no more?  seats are read once for all of them.
 */
static bool
is_to_preempt(const Store *store, const Lease *lease, HTAB *standing,
			  HTAB **seats)
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
	if (strategy->counts && *seats == NULL)
		*seats = le_seats_read(store, election->strategy);
	return le_is_to_preempt(lease, le_challenger(store, election, lease, *seats));
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
	HTAB	   *seats = NULL;
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
		pass->next = le_clock() + PRUNE_EVERY;
		pass->work = false;
		inc = le_incarnation_read();
		pass->new_incarnation = !inc->known;
		pass->candidates = le_candidates_read(&store, NULL);
		pass->work = pass->candidates != NIL;
		standing = gather_standing(pass);
	}

	incarnation = le_incarnation_name(store.lease);
	leases = le_lease_read_all(&store);
	now = le_clock();			/* not before: they may have been renewed since */
	foreach(lc, leases)
	{
		Lease	   *lease = lfirst(lc);
		int64		due = PG_INT64_MAX;

		switch (le_lease_state(lease, incarnation, now))
		{
			case LEASE_LED:
				pass->work = true;
				if (inc != NULL && is_to_preempt(&store, lease, standing, &seats))
					pass->preempt = lappend(pass->preempt, lease);
				due = lease->deadline_mono;
				if (lease->auto_renew && lease->session_id != 0 &&
					!lease->yielding)
				{
					if (RENEW_EARLY(lease) <= now)
						pass->renew = lappend(pass->renew, lease);
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
}

/*
 * Renew a batch of leases in one transaction.  Those that somebody has locked
 * are left for the next one.
 */
static void
renew(void *arg)
{
	Batch	   *batch = arg;
	int64		shortest = PG_INT64_MAX;
	int64	   *durations = palloc(list_length(batch->leases) * sizeof(int64));
	Proof		proof;
	TimestampTz at = GetCurrentTimestamp();
	Store		store;
	ListCell   *lc;

	le_store_get(&store);
	if (!le_store_lock(&store, LE_TABLE_LEASE, RowExclusiveLock, false))
		return;
	foreach(lc, batch->leases)
	{
		Lease	   *seen = lfirst(lc);

		shortest = Min(shortest, seen->duration);
		durations[foreach_current_index(lc)] = le_lease_duration(&store, seen);
	}
	if (!le_prove(NULL, shortest, PG_INT64_MAX, &proof))
		return;
	batch->complete = true;
	foreach(lc, batch->leases)
	{
		Lease	   *seen = lfirst(lc);
		int64		duration = durations[foreach_current_index(lc)];
		Lease	   *lease = le_lease_lock(&store, seen->election);

		if (lease == NULL)
		{
			batch->complete = false;
			continue;
		}
		/* The look has tested its session; a lease that is over stays over. */
		if (lease->leader == NULL || lease->term != seen->term ||
			lease->yielding || lease->deadline_mono <= le_clock())
			continue;
		/* What was altered after the proof counts from the next one on. */
		if (proof.required && le_lease_duration(&store, lease) != duration)
		{
			batch->complete = false;
			continue;
		}
		le_lease_renew(lease, lease->term, duration, proof.t0, at, NULL);
	}
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
	item->waited = !le_election_lock(name, false);
	if (item->waited && !le_election_queue(name))
		le_busy(name);
	election = le_election_read(&store, name);	/* it may have been dropped */
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
 * Try something that may fail again and again, with a growing pause in
 * between; true if it was done.  key tells it from everything else that can
 * fail.
 */
static bool
attempt(Pass *pass, const char *key, Work work, void *arg, const char *activity)
{
	Trouble    *trouble = hash_search(troubles, key, HASH_FIND, NULL);
	Outcome		outcome;

	if (trouble != NULL && trouble->retry_at > le_clock())
	{
		pass->next = Min(pass->next, trouble->retry_at);
		return false;
	}
	outcome = in_transaction(work, arg, activity);
	if (outcome == DONE)
	{
		(void) hash_search(troubles, key, HASH_REMOVE, NULL);
		return true;
	}
	if (trouble == NULL)
	{
		trouble = hash_search(troubles, key, HASH_ENTER, NULL);
		trouble->pause = 0;
		trouble->since = le_clock();
		trouble->told = false;
	}
	if (outcome == BUSY)
		trouble->pause = Min(Max(trouble->pause * 2, BUSY_PAUSE), LONGEST_BUSY);
	else
		trouble->pause = Min(Max(trouble->pause * 2, ERROR_PAUSE),
							 key[0] == 'e' ? LONGEST_ERROR : LONGEST_ERROR_ALL);
	trouble->retry_at = le_clock() + trouble->pause;
	pass->next = Min(pass->next, trouble->retry_at);
	if (outcome == BUSY && !trouble->told &&
		le_clock() - trouble->since > TELL_AFTER)
	{
		trouble->told = true;
		HOLD_INTERRUPTS();
		ereport(LOG,
				(errmsg("leader_election: %s has had to wait for " INT64_FORMAT " s",
						activity, TELL_AFTER / USECS_PER_SEC),
				 errhint("Look in pg_locks for who holds locks on the tables of schema \"%s\", and in pg_stat_replication for synchronous standbys that do not follow.",
						 LE_SCHEMA)));
		RESUME_INTERRUPTS();
	}
	return false;
}

/*
 * Renew all that is due.  Rows that somebody has locked are tried again soon.
 */
static void
renew_all(Pass *pass)
{
	for (int from = 0; from < list_length(pass->renew); from += BATCH)
	{
		Batch		batch = {NIL, false};

		for (int i = from; i < Min(from + BATCH, list_length(pass->renew)); i++)
			batch.leases = lappend(batch.leases, list_nth(pass->renew, i));
		if (attempt(pass, RENEWAL, renew, &batch, "renewing leases"))
			pass->next = Min(pass->next,
							 le_clock() + (batch.complete ? 0 : RETRY));
	}
}

/*
 * One proof for all that is settled in the next moment.
 */
static void
prove(void *arg)
{
	if (!le_prove(NULL, PROOF_WAIT, PROOF_WAIT, arg))
		postpone("synchronous standbys do not follow");
}

/*
 * Settle what is due, until leases are to be renewed: those of live leaders
 * must not run out while there is much to settle.  True if anything changed.
 */
static bool
settle_all(Pass *pass)
{
	bool		changed = false;
	Proof		proof = {.confirmed = false};
	ListCell   *lc;

	foreach(lc, pass->settle)
	{
		Case		item = {.seen = lfirst(lc)};
		const char *name = item.seen->election;
		int64		left = pass->renew_at - le_clock();

		if (left <= 0 && lc != list_head(pass->settle))
		{
			pass->next = le_clock();
			break;
		}
		if ((!proof.confirmed || le_clock() - proof.t0 > PROOF_LIFE) &&
			!le_prove(NULL, 0, 0, &proof) &&
			!attempt(pass, PROOF, prove, &proof, "asking synchronous standbys"))
			break;
		item.proof = proof;
		item.proof.lease_duration = item.seen->configured;
		item.proof.vacant_term = item.seen->leader == NULL ? item.seen->term : -1;
		le_notify_wait_limit(Min(Max(left, LOCK_WAIT), LONGEST_NOTIFY));
		if (attempt(pass, psprintf("e%s", name), settle, &item,
					psprintf("electing in \"%s\"", name)) &&
			item.changed)
			changed = true;

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
		if (attempt(pass, psprintf("e%s", name), preempt, &item,
					psprintf("asking for a yield in \"%s\"", name)) &&
			item.changed)
			pass->next = le_clock();
	}
}

static void
prune_candidates(void *arg)
{
	Pass	   *pass = arg;
	List	   *dead = NIL;
	Store		store;
	ListCell   *lc;

	foreach(lc, pass->candidates)
	{
		if (!le_candidate_alive(lfirst(lc)))
			dead = lappend(dead, lfirst(lc));
	}
	if (dead == NIL)
		return;
	le_store_get(&store);
	if (le_store_lock(&store, LE_TABLE_CANDIDATE, RowExclusiveLock, false) &&
		le_candidates_prune(&store, dead))
		pass->next = le_clock();	/* they may have been all there was to do */
	else
		pass->next = Min(pass->next, le_clock() + TIDY_PAUSE);
}

static void
prune_history(void *arg)
{
	bool	   *more = arg;
	Store		store;
	TimestampTz before = GetCurrentTimestamp() -
		le_history_retention_s * USECS_PER_SEC;

	le_store_get(&store);
	if (le_store_lock(&store, LE_TABLE_HISTORY, RowExclusiveLock, false))
		*more = le_history_prune(&store, before, BATCH);
}

/*
 * See to it that this incarnation of the server has its row.
 */
static void
settle_incarnation(void *arg)
{
	Store		store;
	int64		highest_term = 0;
	ListCell   *lc;

	le_store_get(&store);
	if (!le_store_lock(&store, LE_TABLE_LEASE | LE_TABLE_CANDIDATE | LE_TABLE_EPOCH,
					   RowExclusiveLock, false))
		postpone("the table of epochs is locked");

	/* In a copy, the other incarnation's candidates look alive. */
	foreach(lc, le_candidates_read(&store, NULL))
	{
		Candidate  *c = lfirst(lc);

		if (c->session_id == 0 && !le_candidate_withdraw(&store, c))
			postpone("a candidate gives a sign of life");
	}
	foreach(lc, le_lease_read_all(&store))
		highest_term = Max(highest_term, ((Lease *) lfirst(lc))->term);
	if (!le_incarnation_settle(&store, highest_term))
		postpone("somebody else is at it");
}

static bool
note_row(HeapTuple tuple, Datum *values, bool *nulls, void *arg)
{
	*(bool *) arg = true;
	return false;
}

/*
 * The last look: does anybody stand, committed or not?
 */
static void
look_once_more(void *arg)
{
	bool	   *work = arg;
	Store		store;
	SnapshotData snapshot;

	if (!le_store_find(&store))
		return;
	if (!le_store_lock(&store, LE_TABLE_CANDIDATE, AccessShareLock, false))
	{
		*work = true;
		return;
	}
	InitDirtySnapshot(snapshot);
	le_scan(store.candidate, InvalidOid, NULL, &snapshot, note_row, work);
}

/*
 * Take the worker's lock, waiting for one that is about to end.  A worker
 * that goes on makes this one superfluous.
 */
static bool
take_over(void)
{
	for (int i = 0; i < 100; i++)
	{
		if (le_worker_lock())
			return true;
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10,
						 PG_WAIT_EXTENSION);
		if (ProcDiePending)
			CHECK_FOR_INTERRUPTS();
	}
	return false;
}

/*
 * May this worker end?  Its lock is released if so.
 */
static bool
try_to_end(void)
{
	bool		work = false;

	le_worker_unlock();
	if (in_transaction(look_once_more, &work, "looking once more") != DONE)
		work = true;
	return !work || !take_over();
}

/*
 * One round: look, and do what is due.
 */
static void
do_round(Pass *pass)
{
	static int64 pruned_history_at = 0;
	static int64 postponed_at = 0;	/* tidying up; 0: it was not */

	memset(pass, 0, sizeof(Pass));
	pass->renew_at = PG_INT64_MAX;
	pass->next = PG_INT64_MAX;
	if (!attempt(pass, LOOK, look, pass, "looking"))
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
		if (attempt(pass, NEW_EPOCH, settle_incarnation, NULL, "starting an epoch"))
			pass->next = le_clock();
	}
	if (pass->renew_at > le_clock())
		pass->next = Min(pass->next, pass->renew_at);
	else if (pass->renew != NIL)
		renew_all(pass);
	else
		pass->next = le_clock();	/* it has become due since the look */

	/*
	 * Whoever was elected goes first: what is left to tidy up, and to renew,
	 * can wait for some milliseconds, but not for ever.
	 */
	if (settle_all(pass) &&
		(postponed_at == 0 || le_clock() - postponed_at < LONGEST_POSTPONE))
	{
		if (postponed_at == 0)
			postponed_at = le_clock();
		pass->next = Min(pass->next, le_clock() + RETRY);
		return;
	}
	postponed_at = 0;
	preempt_all(pass);
	if (pass->candidates != NIL)
		(void) in_transaction(prune_candidates, pass, "removing dead candidates");
	if (le_clock() - pruned_history_at >= PRUNE_EVERY)
	{
		bool		more = false;

		(void) in_transaction(prune_history, &more, "removing old history");
		if (!more)
			pruned_history_at = le_clock();

		/*
		 * Whatever waits resets our latch: who woke us meanwhile would go
		 * unheard.  Sleep only after a pass that did nothing but look.
		 */
		pass->next = le_clock();
	}
}

static void
pin_settings(void)
{
	static const char *const pinned[][2] = {
		{"search_path", "pg_catalog, pg_temp"},
		{"statement_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"lock_timeout", "50ms"},
		{"transaction_timeout", "0"},
	};

	for (int i = 0; i < lengthof(pinned); i++)
	{
		if (GetConfigOption(pinned[i][0], true, false) != NULL)
			SetConfigOption(pinned[i][0], pinned[i][1], PGC_SUSET, PGC_S_OVERRIDE);
	}
}

static void
init_worker(Oid database)
{
	HASHCTL		info;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
	pin_settings();

	pass_context = AllocSetContextCreate(TopMemoryContext,
										 "leader_election pass",
										 ALLOCSET_DEFAULT_SIZES);
	memset(&info, 0, sizeof(info));
	info.keysize = LE_NAME_MAX + 2;
	info.entrysize = sizeof(Trouble);
	info.hcxt = TopMemoryContext;
	troubles = hash_create("leader_election troubles", 8, &info,
						   HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

/*
 * Sleep until then (a pointer to the moment).
 */
static void
sleep_until(void *arg)
{
	int64		ms = (*(int64 *) arg - le_clock()) / MS + 1;

	if (ms > 0)
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(ms, INT_MAX),
						 LeWaitEvent("LeaderElectionWorker", 0x4C57));
	ResetLatch(MyLatch);
	QueryCancelPending = false; /* there is nothing to cancel */
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

void
leader_election_worker_main(Datum arg)
{
	bool		launched = MyBgworkerEntry->bgw_extra[0] != 0;
	int64		idle_since = 0;

	init_worker(DatumGetObjectId(arg));
	if (!take_over())
		proc_exit(0);
	on_shmem_exit(wake_launcher, (Datum) 0);

	for (;;)
	{
		Pass		pass;

		MemoryContextReset(pass_context);
		MemoryContextSwitchTo(pass_context);
		do_round(&pass);
		if (!pass.installed && try_to_end())
			break;
		if (pass.work)
			idle_since = 0;
		else
		{
			int64		idle_timeout = launched ? 0 :
				le_worker_idle_timeout_ms * MS;

			if (idle_since == 0)
				idle_since = le_clock();
			if (le_clock() - idle_since >= idle_timeout)
			{
				if (try_to_end())
					break;
				/* Somebody is about to stand: there is time. */
				launched = false;
				idle_since = le_clock();
				idle_timeout = Max(le_worker_idle_timeout_ms * MS, ERROR_PAUSE);
			}
			pass.next = Min(pass.next, idle_since + idle_timeout);
		}
		(void) guard(sleep_until, &pass.next);
	}
	ended_by_itself = true;
	proc_exit(0);
}

/*
 * Start a worker for a database; false if there is no free slot.
 */
bool
le_worker_start(Oid database, bool launched, BackgroundWorkerHandle **handle)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = ObjectIdGetDatum(database);
	worker.bgw_extra[0] = launched;
	snprintf(worker.bgw_library_name, sizeof(worker.bgw_library_name), LE_EXTENSION);
	snprintf(worker.bgw_function_name, sizeof(worker.bgw_function_name),
			 "leader_election_worker_main");
	snprintf(worker.bgw_name, sizeof(worker.bgw_name),
			 "leader_election worker for database %u", database);
	snprintf(worker.bgw_type, sizeof(worker.bgw_type), "leader_election worker");
	return RegisterDynamicBackgroundWorker(&worker, handle);
}

/*
 * See to it that this database has a worker.  To be called in a transaction,
 * after the call's candidacy was written.  If many find none at once, one of
 * them starts it, and waits until it is there, so that none of the others does.
 * A waiting campaign's polls are not urgent: they do not start one worker after
 * the other if these die at once.
 */
void
le_worker_ensure(bool urgent)
{
	static BackgroundWorkerHandle *last = NULL;
	static int64 started_at = 0;
	MemoryContext old;
	pid_t		pid;

	if (!le_worker_lock_is_free())
		return;
	if (last != NULL && GetBackgroundWorkerPid(last, &pid) != BGWH_STOPPED)
		return;					/* it is on its way, or looks once more */
	if (!urgent && le_clock() - started_at < START_PAUSE)
		return;
	if (!le_starter_lock())
		return;

	if (last != NULL)
		pfree(last);
	last = NULL;
	started_at = le_clock();
	old = MemoryContextSwitchTo(TopMemoryContext);
	if (!le_worker_start(MyDatabaseId, false, &last))
		ereport(urgent ? WARNING : DEBUG1,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("could not start the leader_election worker: no free background worker slot"),
				 errdetail("Until there is one, no lease is renewed, and elections wait for the next call."),
				 errhint("Consider increasing \"max_worker_processes\".")));
	MemoryContextSwitchTo(old);
	while (last != NULL && le_worker_lock_is_free() &&
		   le_clock() - started_at < START_WAIT &&
		   GetBackgroundWorkerPid(last, &pid) != BGWH_STOPPED)
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1,
						 PG_WAIT_EXTENSION);
	le_starter_unlock();
}
