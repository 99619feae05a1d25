/*-------------------------------------------------------------------------
 *
 * launcher.c
 *		The optional launcher, a background worker of no database.  With
 *		leader_election in shared_preload_libraries it starts workers when
 *		the server starts or is promoted, and after a worker was terminated.
 *
 * The launcher starts a worker in each database, one after the other.  A
 * worker that finds nothing to do, or another worker, ends by itself, so that
 * the launcher needs to know nothing of the extension.  A worker that is
 * terminated while it has work sets the launcher's latch, and the launcher goes
 * through all databases again.  It does so, too, when anything else has set its
 * latch (a reload, say), which it cannot tell from that.
 *
 * Invariant: a wake-up is never lost.  One that comes while the launcher goes
 * through the databases, or makes a pause, is kept for the next sleep.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "worker/worker.h"

#define SETTLE_TRIES		10	/* looks whether a worker has ended ... */
#define SETTLE_MS			20	/* ... and the time between two of them */
#define NO_SLOT_RETRY_MS	10000
#define SHORTEST_PAUSE_MS	100 /* between two rounds, at first */
#define LONGEST_PAUSE_MS	10000	/* and while workers are terminated */
#define QUIET_MS			1000	/* a longer sleep makes the pause short */

/*
 * Sleep for ms (0: forever).  A wake-up ends the sleep if wakeable; otherwise
 * it is kept for the next wakeable sleep.
 */
static void
nap(long ms, bool wakeable)
{
	int64		until = le_clock() + ms * INT64CONST(1000);
	bool		woken = false;

	while (!(woken && wakeable) && (ms == 0 || le_clock() < until))
	{
		long		left = ms == 0 ? -1 : (until - le_clock()) / 1000 + 1;

		if (WaitLatch(MyLatch, WL_EXIT_ON_PM_DEATH | WL_LATCH_SET |
					  (ms > 0 ? WL_TIMEOUT : 0), left,
					  LeWaitEvent("LeaderElectionLauncher", 0x4C4C)) & WL_LATCH_SET)
		{
			woken = true;
			ResetLatch(MyLatch);
		}
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
	}
	if (woken && !wakeable)
		SetLatch(MyLatch);
}

/*
 * The databases that a worker can connect to, in that memory.
 */
static List *
list_databases(MemoryContext context)
{
	List	   *databases = NIL;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(tuple);
		MemoryContext old;

		/* -2: a DROP DATABASE did not finish */
		if (!database->datallowconn || database->datconnlimit == -2)
			continue;
		old = MemoryContextSwitchTo(context);
		databases = lappend_oid(databases, database->oid);
		MemoryContextSwitchTo(old);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return databases;
}

/*
 * The same databases in another order: from `first` on, if it is one of them,
 * and then those before it.
 */
static List *
list_databases_from(Oid first, MemoryContext context)
{
	List	   *databases = list_databases(context);
	List	   *before = NIL;

	if (!list_member_oid(databases, first))
		return databases;
	while (linitial_oid(databases) != first)
	{
		before = lappend_oid(before, linitial_oid(databases));
		databases = list_delete_first(databases);
	}
	return list_concat(databases, before);
}

/*
 * Start a worker in each database.  Before the next one, give a worker time to
 * end: so all that end need only one slot, beyond those of workers that stay.
 * False if there was no slot: the next call begins with that database, or those
 * before it could take the only slot each time.
 */
static bool
start_workers(MemoryContext context)
{
	static Oid	first = InvalidOid;

	foreach_oid(database, list_databases_from(first, context))
	{
		BackgroundWorkerHandle *handle;
		pid_t		pid;

		first = database;
		if (!le_start_worker(database, true, &handle))
			return false;
		for (int i = 0; i < SETTLE_TRIES; i++)
		{
			if (GetBackgroundWorkerPid(handle, &pid) == BGWH_STOPPED)
				break;
			nap(SETTLE_MS, false);
		}
	}
	first = InvalidOid;
	return true;
}

void
leader_election_launcher_main(Datum arg)
{
	MemoryContext context;
	long		pause = SHORTEST_PAUSE_MS / 2;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	context = AllocSetContextCreate(TopMemoryContext,
									"leader_election launcher",
									ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		bool		started;
		int64		slept_at;

		ResetLatch(MyLatch);
		MemoryContextReset(context);
		started = start_workers(context);
		if (!started)
			ereport(LOG,
					(errmsg("leader_election: no free background worker slot"),
					 errhint("Consider increasing \"max_worker_processes\".")));
		slept_at = le_clock();
		nap(started ? 0 : NO_SLOT_RETRY_MS, true);

		/*
		 * Workers that are terminated again and again come back later each
		 * time.  To go through many databases takes long, and is no sleep.
		 */
		pause = le_clock() - slept_at > QUIET_MS * INT64CONST(1000) ?
			SHORTEST_PAUSE_MS : Min(pause * 2, LONGEST_PAUSE_MS);
		nap(pause, false);
	}
}

/*
 * Register the launcher.  To be called from _PG_init(), while
 * shared_preload_libraries are loaded.
 */
void
le_launcher_register(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 5;
	snprintf(worker.bgw_library_name, sizeof(worker.bgw_library_name), LE_EXTENSION);
	snprintf(worker.bgw_function_name, sizeof(worker.bgw_function_name),
			 "leader_election_launcher_main");
	snprintf(worker.bgw_name, sizeof(worker.bgw_name), "leader_election launcher");
	snprintf(worker.bgw_type, sizeof(worker.bgw_type), "leader_election launcher");
	RegisterBackgroundWorker(&worker);
}
