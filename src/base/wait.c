/*-------------------------------------------------------------------------
 *
 * wait.c
 *		How long a call may wait, and the errors that it raises after that.
 *
 * Invariant: a call waits for tables, indexes, election locks and synchronous
 * standbys for LE_WAIT_LIMIT_MS in all, or for the caller's lock_timeout if
 * that is less.  It never waits for a row (row.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/wait_event.h"

#define ROOM_WAIT	INT64CONST(100000)	/* for room in the lock table */
#define GROUP_WAIT	INT64CONST(20000)	/* for a group lock */

static const char busy_hint[] = "Try again. If this goes on, look in pg_locks for who holds locks on the tables of schema \"leader_election\".";

/* When the present call must have stopped waiting */
static int64 wait_until;

/* Has the error that is being raised a hint of its own? */
static bool explained;

static void
set_lock_timeout(int64 us)
{
	char		value[32];

	snprintf(value, sizeof(value), INT64_FORMAT, Max(us / 1000, 1));
	(void) set_config_option("lock_timeout", value, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/*
 * From here to le_wait_bounded_end(), let the server's own waits for locks end
 * when the call must have stopped waiting: set lock_timeout to the time left,
 * 1 ms at least.
 */
void
le_wait_as_lock_timeout(void)
{
	set_lock_timeout(wait_until - le_clock());
}

/*
 * Wait for room in the lock table, which a write needs, for 100 ms at most.
 * If there is none, the worker frees its reserved entries when it is woken.  (If
 * there is still no room, the server raises 53200 as soon as something is
 * written.)
 */
void
le_wait_for_room(void)
{
	int64		give_up_at = le_clock() + ROOM_WAIT;

	while (!le_room_for_locks(1) && le_clock() < give_up_at)
	{
		le_wake_workers(MyDatabaseId);
		if (!le_wait_retry())
			return;
	}
}

/*
 * A call begins: from now on it may wait for LE_WAIT_LIMIT_MS in all, or for
 * the caller's lock_timeout if that is less.
 */
void
le_wait_start(void)
{
	int			limit = LE_WAIT_LIMIT_MS;

	if (LockTimeout > 0)
		limit = Min(limit, LockTimeout);
	wait_until = le_clock() + limit * INT64CONST(1000);
}

/*
 * For how long the call may still wait.
 */
int64
le_wait_left(void)
{
	return Max(wait_until - le_clock(), 0);
}

/*
 * Wait for 5 ms at most before another try.  False, at once: the call has
 * waited for as long as it may.
 */
bool
le_wait_retry(void)
{
	int64		left = wait_until - le_clock();

	if (left <= 0)
		return false;
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 Min(left / 1000 + 1, 5), PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	return true;
}

/*
 * Take a group lock, and queue for it for 20 ms: 55P03 after that.  Only the
 * worker queues.  False: it is held, and this transaction may not queue.
 */
bool
le_wait_for_group(const char *group)
{
	if (le_lock_mutex(LOCK_GROUP, group, false))
		return true;
	set_lock_timeout(Min(GROUP_WAIT, le_wait_left()));
	return le_lock_mutex(LOCK_GROUP, group, true);
}

/*
 * Take an election lock, and queue for it as long as the call may wait.
 * False: it is held, and this transaction may not queue (lock.c).
 */
bool
le_wait_for_election(const char *election)
{
	if (le_lock_mutex(LOCK_ELECTION, election, false))
		return true;
	le_wait_for_room();
	le_wait_as_lock_timeout();
	return le_lock_mutex(LOCK_ELECTION, election, true);
}

/*
 * The same for an election lock in Share mode.
 */
bool
le_wait_for_election_shared(const LOCKTAG *tag)
{
	if (le_lock_election_shared(tag, false))
		return true;
	le_wait_for_room();
	le_wait_as_lock_timeout();
	return le_lock_election_shared(tag, true);
}

/*
 * 55P03: we could not find out, or do, in time what the call asks for.  So it
 * must not answer "no".  53200 if the lock table is full, which then is the
 * reason.
 */
void
le_wait_busy(const char *election)
{
	if (!le_room_for_locks(1))
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("no room in the lock table for election \"%s\"",
						election),
				 errhint("Use fewer elections in one statement. You might need to increase max_locks_per_transaction.")));
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("election \"%s\" is busy", election),
			 errhint("%s", busy_hint)));
}

/*
 * Wait for 5 ms at most before another try; raise 55P03 if the call has waited
 * for as long as it may.
 */
void
le_wait_retry_or_busy(const char *election)
{
	if (!le_wait_retry())
		le_wait_busy(election);
}

/*
 * 55P03: synchronous standbys have not confirmed in time (le_proof_make()).
 */
void
le_wait_unconfirmed(const char *election)
{
	explained = true;
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("election \"%s\" is busy", election),
			 errdetail("Synchronous standbys have not confirmed in time that they follow."),
			 errhint("Try again. If this goes on, look in pg_stat_replication.")));
}

/*
 * 55P03: the call has to wait until a new epoch begins, and there is no worker
 * that begins it (le_begin_ensure_epoch()).
 */
void
le_wait_no_epoch(const char *election)
{
	explained = true;
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("election \"%s\" is busy", election),
			 errdetail("The server has been promoted, restored or moved, and has no worker that begins a new epoch."),
			 errhint("join(), campaign() and acquire() begin it. A detached leader calls acquire() by the same candidate name, and then renew() again.")));
}

/*
 * An error is being raised.  If the server has not got a lock in time, name
 * the election and say what the caller can do: the server's message does
 * neither.
 */
static void
explain_busy(void *arg)
{
	if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE || explained)
		return;
	errmsg("election \"%s\" is busy", (const char *) arg);
	if (le_lock_is_mine(LOCK_EPOCH))
		errhint("An earlier call of this statement began a new epoch, which is undone with the statement. Call join() or acquire() once in a statement of its own.");
	else
		errhint("%s", busy_hint);
}

/*
 * From here to le_wait_bounded_end(), the call may change lock_timeout, an
 * error for a lock that is not free in time names this election, and WAL that
 * the server writes while we only read does not count as the transaction's own
 * (le_xact_wal_begin()).
 */
void
le_wait_bounded_begin(BoundedWaits *busy, const char *election)
{
	explained = false;
	le_xact_wal_begin(&busy->wal);
	busy->nest_level = NewGUCNestLevel();
	busy->callback.callback = explain_busy;
	busy->callback.arg = unconstify(char *, election);
	busy->callback.previous = error_context_stack;
	error_context_stack = &busy->callback;
}

void
le_wait_bounded_end(BoundedWaits *busy)
{
	error_context_stack = busy->callback.previous;
	AtEOXact_GUC(false, busy->nest_level);
	le_xact_wal_end(&busy->wal);
}
