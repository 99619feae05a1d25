/*-------------------------------------------------------------------------
 *
 * start.c
 *		What elections need before anybody is elected: a background worker,
 *		where one can be had, and an epoch of the present incarnation.
 *
 * Invariants:
 *
 * - A call that has written a candidacy finds the lock of a worker held that
 *	 will see it (worker.c), or has one started.  These waits can be interrupted:
 *	 what the call has done is undone then, and the starter's lock goes with its
 *	 transaction.
 *
 * - A transaction that begins an epoch does nothing else.  If it also granted a
 *	 lease, the standbys could miss both: the server that is promoted then would
 *	 begin an epoch that may be lower, and issue a term twice.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "leader_election.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#define START_PAUSE		INT64CONST(1000000) /* between two starts of a worker */
#define START_WAIT		INT64CONST(500000)	/* for a worker to be there, or gone */

/*
 * See to it that this database has a worker.  To be called in a transaction,
 * after the call's candidacy was written.  If many find none at once, one of
 * them starts it, and waits until it is there, so that none of the others does.
 * A waiting campaign's polls are not urgent: they do not start one worker after
 * the other if these die at once.  False: there is none, and none can be had.
 */
bool
le_worker_ensure(bool urgent)
{
	static BackgroundWorkerHandle *last = NULL;
	static int64 started_at = 0;
	int64		began = le_clock();
	MemoryContext old;
	BgwHandleStatus status;
	pid_t		pid;

	if (!le_worker_lock_is_free())
		return true;

	/* Our last commit may have started one: it is on its way. */
	while (le_worker_started_at != 0 &&
		   began - le_worker_started_at < START_WAIT &&
		   le_clock() - began < START_WAIT)
	{
		if (!urgent)
			return true;
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1,
						 PG_WAIT_EXTENSION);
		CHECK_FOR_INTERRUPTS();
		if (!le_worker_lock_is_free())
			return true;
	}
	status = last != NULL ? GetBackgroundWorkerPid(last, &pid) : BGWH_STOPPED;
	if (status == BGWH_NOT_YET_STARTED)
		return true;			/* it is on its way */
	if (!urgent && began - started_at < START_PAUSE)
		return status != BGWH_STOPPED;

	/* Ours may be about to take the lock, or to end: it did not see us then. */
	while (status == BGWH_STARTED && le_clock() - began < START_WAIT)
	{
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1,
						 PG_WAIT_EXTENSION);
		CHECK_FOR_INTERRUPTS();
		if (!le_worker_lock_is_free())
			return true;
		status = GetBackgroundWorkerPid(last, &pid);
	}
	if (!le_starter_lock())
		return true;			/* another session is starting one */

	if (last != NULL)
		pfree(last);
	last = NULL;
	started_at = le_clock();
	old = MemoryContextSwitchTo(TopMemoryContext);
	if (!le_worker_start(MyDatabaseId, false, &last))
		ereport(urgent ? WARNING : DEBUG1,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("could not start the leader_election worker: no free background worker slot"),
				 errdetail("Until there is one, candidates renew leases and elect by their own calls only."),
				 errhint("Call join() or renew() several times per lease. Consider increasing \"max_worker_processes\", from which parallel queries take their workers, too.")));
	MemoryContextSwitchTo(old);
	status = last != NULL ? BGWH_NOT_YET_STARTED : BGWH_STOPPED;
	while (status != BGWH_STOPPED && le_worker_lock_is_free() &&
		   le_clock() - began < START_WAIT)
	{
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1,
						 PG_WAIT_EXTENSION);
		CHECK_FOR_INTERRUPTS();
		status = GetBackgroundWorkerPid(last, &pid);
	}
	le_starter_unlock();
	return status != BGWH_STOPPED;
}

/*
 * Begin the epoch of the present incarnation, if it has none yet.  To be called
 * in a transaction of its own.  False: not now, some table or row is locked.
 */
bool
le_epoch_begin(Store *store)
{
	char	   *incarnation = le_incarnation_name(store->lease);
	bool		foreign = false;
	int64		highest_term = 0;
	ListCell   *lc;

	if (!le_store_lock(store, LE_TABLE_LEASE | LE_TABLE_CANDIDATE | LE_TABLE_EPOCH,
					   RowExclusiveLock, false) ||
		!le_epoch_lock())
		return false;

	/* In a copy, the other incarnation's candidates look alive. */
	foreach(lc, le_candidates_read(store, NULL))
	{
		Candidate  *c = lfirst(lc);

		if (c->session_id == 0 && !le_candidate_withdraw(store, c))
			return false;		/* it is giving a sign of life */
	}
	foreach(lc, le_lease_read_all(store))
	{
		Lease	   *lease = lfirst(lc);

		highest_term = Max(highest_term, lease->term);
		foreign |= le_lease_is_foreign(lease, incarnation);
	}
	return le_incarnation_settle(store, foreign, highest_term);
}

/*
 * See to it that there is an epoch to elect a leader in, before a call that asks
 * for an election writes anything.  That is the worker's task;
 * where none can be had, this transaction begins the epoch, unless it has done
 * anything else before.  False: it holds the epoch lock, and has begun the
 * epoch if it could.  The call is to do nothing more, and its caller to call
 * again.
 *
 * limit is how long synchronous standbys may be waited for: a commit that waits
 * for standbys that are not there would not end.
 */
bool
le_epoch_ensure(Store *store, const char *election, bool urgent, int64 limit)
{
	Lease	   *lease = le_lease_read(store, election, NULL);
	Incarnation *inc;
	Proof		proof;

	if (lease != NULL && le_lease_state_now(store, lease) == LEASE_LED)
		return true;
	inc = le_incarnation_read();
	if (inc->known &&
		(inc->epoch > 0 || lease == NULL ||
		 !le_lease_is_foreign(lease, inc->name)))
		return true;
	if (le_worker_ensure(urgent) ||
		TransactionIdIsValid(GetTopTransactionIdIfAny()) ||
		!le_prove(NULL, PG_INT64_MAX, false, limit, &proof))
		return true;
	(void) le_epoch_begin(store);
	return !le_epoch_lock_is_mine();
}
