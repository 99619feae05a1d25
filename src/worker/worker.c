/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The background worker's process: how it begins, sleeps and ends.
 *
 * Elections are correct without a worker; it only makes them prompt.  Any
 * candidate that calls can renew, elect and begin an epoch as the worker does.
 * Only telling listeners is the worker's alone.
 *
 * A worker is started on demand, one per database, and ends after a while
 * without candidates and leaders.
 *
 * Invariant: as long as there is a candidacy, even one that is not committed
 * yet, there is a worker, or its session has one started.  The session first
 * writes the candidacy and then tests the worker's lock.  A worker that is to
 * end first releases that lock and then looks for candidacies once more, with
 * a snapshot that sees uncommitted ones.  If either did it the other way
 * round, the session could find the lock held by a worker that has looked
 * already.
 *
 * After an update of the extension the worker may find that the objects speak
 * another protocol than its library (store.c).  It can do nothing then, and
 * ends.  A session that has the new library may rely on it already: so a
 * worker that has worked before first starts another one, which loads the
 * library that is installed now.  If that does not speak the new protocol
 * either, no further one is started.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"
#include "worker/worker.h"

#define LOCK_WAIT_MS	50		/* for a busy election, while others wait */
#define SHORTEST_IDLE	(100 * MS)
#define TELL_LIMIT		(60 * 1000 * MS)	/* DROP DATABASE fails meanwhile */
#define TAKE_OVER_TRIES	100
#define LAUNCHED_TRIES	3		/* less than the launcher gives us to end */
#define TAKE_OVER_MS	10		/* between two of them */

static bool ended_by_itself = false;

/*
 * On exit: if this worker was terminated while it had work, the launcher, if
 * there is one, starts another worker at once.
 */
static void
wake_launcher(int code, Datum arg)
{
	if (!ended_by_itself)
		le_wake_workers(InvalidOid);
}

/*
 * The last look: does anybody stand, committed or not?  If the table is
 * locked, a transaction may be about to write a candidacy.
 */
static void
look_once_more(void *arg)
{
	bool	   *work = arg;

	if (!le_store_find())
		return;
	*work = !le_store_try_lock(LE_TABLE_CANDIDATE, AccessShareLock) ||
		le_candidates_exist();
}

/*
 * The launcher starts a worker in each database, just to have a look.
 */
static bool
is_launched(void)
{
	return MyBgworkerEntry->bgw_extra[0] != 0;
}

/*
 * Take the worker's lock.  If another worker has it, that one may be about to
 * end, and may not have seen the candidacy that we were started for: wait for
 * it.  But the launcher starts us for no candidacy: then leave the slot to the
 * next database, once we know that nobody has only tested the lock
 * (le_lock_worker_is_free()).  False: the other worker goes on, or a third one
 * waits for its lock already.
 */
static bool
take_over(void)
{
	bool		taken = le_lock_worker();
	int			tries = is_launched() ? LAUNCHED_TRIES : TAKE_OVER_TRIES;

	if (taken || !le_lock_take(LOCK_NEXT_WORKER))
		return taken;
	for (int i = 0; i < tries && !taken; i++)
	{
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 TAKE_OVER_MS, PG_WAIT_EXTENSION);

		/*
		 * Here an error would end the process, and only SIGTERM is to do
		 * that: do not process a cancel.
		 */
		if (ProcDiePending)
			CHECK_FOR_INTERRUPTS();
		taken = le_lock_worker();
	}
	le_lock_release(LOCK_NEXT_WORKER);
	return taken;
}

/*
 * May this worker end?  If so, its lock is released; if not, it has it again.
 * The lock is released before the last look: see the invariant above.
 */
static bool
try_to_end(void)
{
	bool		work = false;

	le_lock_release(LOCK_WORKER);
	if (le_attempt_guard(look_once_more, &work, "looking once more") != DONE ||
		MyLatch->is_set)
		work = true;
	return !work || !take_over();
}

/*
 * Settings that were made for this database or for all of the server must not
 * end the worker or its transactions, nor make these read-only, nor change what
 * a name in them means, nor let them wait for the replay of standbys.  The
 * owner of a database, who need not be a superuser, may make them.
 * (114_settings_of_all.pl tries all that there are.)
 */
static void
pin_settings(void)
{
	static const char *const pinned[][2] = {
		{"exit_on_error", "off"},	/* else a lock timeout ends the process */
		{"search_path", "pg_catalog, pg_temp"},
		{"statement_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"synchronous_commit", "on"},
		{"lock_timeout", CppAsString2(LOCK_WAIT_MS) "ms"},
		{"transaction_timeout", "0"},
		{"track_activities", "on"}, /* for what trouble.c says */
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

	/* Before, since connecting is a transaction: transaction_timeout ends it. */
	pin_settings();
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid,
											  BGWORKER_BYPASS_ALLOWCONN);

	le_worker_context = AllocSetContextCreate(TopMemoryContext,
											  "leader_election worker",
											  ALLOCSET_DEFAULT_SIZES);
}

/*
 * Sleep until then, or until another process sets our latch.
 */
static void
sleep_until(Round *round, int64 until)
{
	int64		ms = (until - le_clock()) / MS + 1;

	round->woken = (WaitLatch(MyLatch,
							  WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							  Max(Min(ms, INT_MAX), 0),
							  LeWaitEvent("LeaderElectionWorker", 0x4C57)) &
					WL_LATCH_SET) != 0;

	/* If it is set only now, that is for the next round to find. */
	if (round->woken)
		ResetLatch(MyLatch);
	QueryCancelPending = false; /* there is nothing to cancel */
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/*
 * Sleep until the next round is due, or another process sets our latch, or
 * roles have changed.  Of these we are told only in a transaction.
 */
static void
sleep_after(void *arg)
{
	Round	   *round = arg;

	for (;;)
	{
		sleep_until(round, Min(round->next, le_upkeep_watch_at()));
		if (round->woken || le_clock() >= round->next)
			break;
		StartTransactionCommand();
		CommitTransactionCommand();
		if (le_upkeep_sees_roles())
			break;
	}
}

/*
 * After a round that has found no work: may this worker end, since it has been
 * idle for long enough?  Otherwise the next round comes no later than when its
 * idle time is over.
 */
static bool
has_idled_enough(Round *round)
{
	static bool may_end_at_once = true;
	static int64 idle_since = 0;	/* 0: there was work in the last round */
	int64		timeout = le_worker_idle_timeout_ms * MS;

	if (round->work)
	{
		idle_since = 0;
		return false;
	}

	if (is_launched() && may_end_at_once && !round->untold)
		timeout = 0;

	/* Without us nobody tells them, until a call starts another worker. */
	if (round->untold)
		timeout = Max(timeout, TELL_LIMIT);
	if (idle_since == 0)
		idle_since = le_clock();

	/* Another round is due if one has been asked for meanwhile. */
	if (round->next <= le_clock() || MyLatch->is_set)
		return false;
	if (le_clock() - idle_since >= timeout)
	{
		if (try_to_end())
			return true;

		/*
		 * A transaction has written a candidacy, and may not commit for a
		 * while.
		 */
		may_end_at_once = false;
		idle_since = le_clock();
		timeout = Max(le_worker_idle_timeout_ms * MS, SHORTEST_IDLE);
	}
	round->next = Min(round->next, idle_since + timeout);
	return false;
}

/*
 * This worker's library is of no use any more.
 */
static void
give_way(bool has_worked)
{
	HOLD_INTERRUPTS();
	ereport(LOG,
			(errmsg("leader_election worker ends: the extension and its library are of different versions"),
			 has_worked ? errdetail("Another worker is started, which loads the library that is installed now.") : 0));
	if (has_worked)
		(void) le_start_worker(MyDatabaseId, false, NULL);
	RESUME_INTERRUPTS();
}

void
leader_election_worker_main(Datum arg)
{
	Round		round = {.woken = false};
	bool		has_worked = false;

	init_worker(DatumGetObjectId(arg));
	if (!take_over())
		proc_exit(0);
	on_shmem_exit(wake_launcher, (Datum) 0);

	for (;;)
	{
		le_upkeep(&round);
		if (le_store_is_other_version())
		{
			give_way(has_worked);
			break;
		}
		has_worked |= round.inc != NULL;
		if ((!round.installed && try_to_end()) || has_idled_enough(&round))
			break;
		(void) le_attempt_guard(sleep_after, &round, NULL);
	}
	ended_by_itself = true;
	proc_exit(0);
}
