/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The background worker's process: how it begins, sleeps and ends.
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

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"
#include "worker/worker.h"

#define SHORTEST_IDLE	(100 * MS)

static bool ended_by_itself = false;

static void
wake_launcher(int code, Datum arg)
{
	if (!ended_by_itself)
		le_wake_workers(InvalidOid);
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
	if (!le_store_try_lock(&store, LE_TABLE_CANDIDATE, AccessShareLock))
	{
		*work = true;
		return;
	}
	InitDirtySnapshot(snapshot);
	le_scan(&store, TABLE_CANDIDATE, NULL, &snapshot, note_row, work);
}

/*
 * Take the worker's lock, waiting for one that is about to end.  A worker
 * that goes on makes this one superfluous, and so does one that waits already.
 */
static bool
take_over(void)
{
	bool		taken = le_lock_worker();

	if (taken || !le_lock_next_worker())
		return taken;
	for (int i = 0; i < 100 && !taken; i++)
	{
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10,
						 PG_WAIT_EXTENSION);
		if (ProcDiePending)
			CHECK_FOR_INTERRUPTS();
		taken = le_lock_worker();
	}
	le_unlock_next_worker();
	return taken;
}

/*
 * May this worker end?  Its lock is released if so.
 */
static bool
try_to_end(void)
{
	bool		work = false;

	le_unlock_worker();
	if (le_in_transaction(look_once_more, &work, "looking once more") != DONE)
		work = true;
	return !work || !take_over();
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
		{"lock_timeout", CppAsString2(LOCK_WAIT_MS) "ms"},
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
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid,
											  BGWORKER_BYPASS_ALLOWCONN);
	pin_settings();

	le_attempt_init();
}

/*
 * Sleep until the next round is due.
 */
static void
sleep_after(void *arg)
{
	Upkeep	   *found = arg;
	int64		ms = (found->next - le_clock()) / MS + 1;

	if (ms > 0)
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(ms, INT_MAX),
						 LeWaitEvent("LeaderElectionWorker", 0x4C57));
	found->woken = MyLatch->is_set;
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
	Upkeep		found = {.woken = false};

	init_worker(DatumGetObjectId(arg));
	if (!take_over())
		proc_exit(0);
	on_shmem_exit(wake_launcher, (Datum) 0);

	for (;;)
	{
		le_upkeep(&found);
		if (!found.installed && try_to_end())
			break;
		if (found.work)
			idle_since = 0;
		else
		{
			int64		idle_timeout = launched && !found.untold ? 0 :
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
				idle_timeout = Max(le_worker_idle_timeout_ms * MS, SHORTEST_IDLE);
			}
			found.next = Min(found.next, idle_since + idle_timeout);
		}
		(void) le_guard(sleep_after, &found);
	}
	ended_by_itself = true;
	proc_exit(0);
}
