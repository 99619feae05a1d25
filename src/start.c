/*-------------------------------------------------------------------------
 *
 * start.c
 *		Starting a background worker, where a database has none.
 *
 * Invariant: whoever has written a candidacy finds the lock of a worker held
 * that will see it (worker.c), or has one started.  These waits can be
 * interrupted: what the call has done is undone then, and the lock of whoever
 * starts a worker goes with its transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "leader_election.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#define START_PAUSE		INT64CONST(1000000) /* between two starts of a worker */
#define START_WAIT		INT64CONST(500000)	/* for a worker to be there, or gone */

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
	int64		began = le_clock();
	MemoryContext old;
	BgwHandleStatus status;
	pid_t		pid;

	if (!le_worker_lock_is_free())
		return;
	status = last != NULL ? GetBackgroundWorkerPid(last, &pid) : BGWH_STOPPED;
	if (status == BGWH_NOT_YET_STARTED)
		return;					/* it is on its way */
	if (!urgent && began - started_at < START_PAUSE)
		return;

	/* Ours may be about to take the lock, or to end: it did not see us then. */
	while (status == BGWH_STARTED && le_clock() - began < START_WAIT)
	{
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1,
						 PG_WAIT_EXTENSION);
		CHECK_FOR_INTERRUPTS();
		if (!le_worker_lock_is_free())
			return;
		status = GetBackgroundWorkerPid(last, &pid);
	}
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
		   le_clock() - began < START_WAIT &&
		   GetBackgroundWorkerPid(last, &pid) != BGWH_STOPPED)
	{
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1,
						 PG_WAIT_EXTENSION);
		CHECK_FOR_INTERRUPTS();
	}
	le_starter_unlock();
}
