/*-------------------------------------------------------------------------
 *
 * start.c
 *		Starting the background worker of a database.
 *
 * Invariant: a call that has written a candidacy finds the worker's lock held
 * by a worker that will see the candidacy (worker.c), or has a worker started,
 * or knows that none can be had.
 *
 * The waits here can be interrupted: the candidacy is undone then, and the
 * starter's lock is released with the transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#define START_PAUSE		INT64CONST(1000000) /* between starts of a worker */
#define START_WAIT		INT64CONST(500000)	/* for a worker to take its lock */
#define SHORTEST_START_WAIT INT64CONST(20000)

/* When a commit of this process has last started a worker; 0: never */
int64		le_start_committed_at = 0;

/* The worker that this process has started last, and when */
static BackgroundWorkerHandle *started = NULL;
static int64 started_at = 0;

/*
 * Start a worker for a database; false if there is no free slot.  Without a
 * handle it raises no error, and may be called at a commit.
 */
bool
le_start_worker(Oid database, bool launched, BackgroundWorkerHandle **handle)
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
	snprintf(worker.bgw_type, sizeof(worker.bgw_type), LE_WORKER_TYPE);
	return RegisterDynamicBackgroundWorker(&worker, handle);
}

/*
 * Sleep for 1 ms.  Has this database a worker then?
 */
static bool
pause_and_look(void)
{
	(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1,
					 PG_WAIT_EXTENSION);
	CHECK_FOR_INTERRUPTS();
	return !le_lock_worker_is_free();
}

/*
 * Start a worker, and wait until it has its lock, but not past give_up_at,
 * unless that is so soon that no worker could have its lock by then: the next
 * call would start another one.  The caller holds the starter's lock, so that
 * no other session starts one, too.  Returns the worker's state.
 */
static BgwHandleStatus
start(bool urgent, int64 give_up_at)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	BgwHandleStatus status;
	pid_t		pid;

	if (started != NULL)
		pfree(started);
	started = NULL;
	started_at = le_clock();
	give_up_at = Max(give_up_at, started_at + SHORTEST_START_WAIT);
	if (!le_start_worker(MyDatabaseId, false, &started))
		ereport(urgent ? WARNING : DEBUG1,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("could not start the leader_election worker: no free background worker slot"),
				 errdetail("Until there is one, candidates renew leases and elect by their own calls only."),
				 errhint("Call join() or renew() several times per lease. Consider increasing \"max_worker_processes\", from which parallel queries take their workers, too.")));
	MemoryContextSwitchTo(old);
	if (started == NULL)
		return BGWH_STOPPED;
	do
		status = GetBackgroundWorkerPid(started, &pid);
	while (status != BGWH_STOPPED && le_clock() < give_up_at &&
		   !pause_and_look());
	return status;
}

/*
 * See to it that this database has a worker.  Called in a transaction, after
 * the call has written its candidacy.  If many calls find no worker at once,
 * one of them starts it and waits until it is there, so that none of the
 * others does.  The polls of a waiting campaign are not urgent: they do not
 * start one worker after the other if these die at once.  The wait is one of
 * the call's (le_wait_start()), and may last 40 ms longer: a worker needs some
 * time to take its lock.  False: there is none, and none can be had.
 */
bool
le_start_ensure_worker(bool urgent)
{
	int64		now = le_clock();
	int64		give_up_at = now + Min(START_WAIT, Max(SHORTEST_START_WAIT, le_wait_left()));
	BgwHandleStatus status;
	pid_t		pid;

	if (!le_lock_worker_is_free())
		return true;

	/*
	 * Our last commit has started a worker, which may not have its lock yet.
	 */
	while (le_start_committed_at != 0 && le_clock() < give_up_at &&
		   now - le_start_committed_at < START_WAIT)
	{
		if (!urgent || pause_and_look())
			return true;
	}
	status = started != NULL ? GetBackgroundWorkerPid(started, &pid) :
		BGWH_STOPPED;
	if (status == BGWH_NOT_YET_STARTED)
		return true;
	if (!urgent && now - started_at < START_PAUSE)
		return status != BGWH_STOPPED;

	/*
	 * The worker that we have started last may be about to take its lock, or
	 * to end.  If it ends, it may not have seen our candidacy: then start
	 * another.
	 */
	while (status == BGWH_STARTED && le_clock() < give_up_at)
	{
		if (pause_and_look())
			return true;
		status = GetBackgroundWorkerPid(started, &pid);
	}
	if (!le_lock_take(LOCK_STARTER))
		return true;			/* another session is starting one */
	status = start(urgent, give_up_at);
	le_lock_release(LOCK_STARTER);
	return status != BGWH_STOPPED;
}
