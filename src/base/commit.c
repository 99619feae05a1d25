/*-------------------------------------------------------------------------
 *
 * commit.c
 *		What a transaction has changed, and what it does when it commits.
 *
 * After a change of leadership the commit makes other sessions read their
 * leases again (an invalidation), writes a line into the log, and wakes the
 * winner, the sessions in wait_for_change, and the worker, which tells
 * listeners (announce.c).
 *
 * Invariants:
 *
 * - All of that is done after the commit, and only for what was committed.
 *	 The server itself keeps invalidations until then; the line and whom to
 *	 wake are kept here.  Nobody is woken before the invalidations were sent.
 *
 * - A transaction that holds an election lock or a lease row does not wait for
 *	 long when it commits.  We call no NOTIFY, but our caller may: then the
 *	 commit queues for a lock that all databases share.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "base/base.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"

/* A line for the log, which is true if this subtransaction commits */
typedef struct LogLine
{
	TransactionId xid;
	char	   *text;
} LogLine;

/* What the running transaction does when it commits, or after that */
static List *log_lines = NIL;
static List *winner_pids = NIL;
static bool wake_worker = false;
static bool leaves_news = false;
static bool start_worker = false;
static bool must_be_durable = false;

static char *
make_log_line(const Change *change)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfo(&buf, "leader_election: election %s: ",
					 le_quote(change->election));
	if (change->yield)
		appendStringInfo(&buf, "%s is asked to yield, in term " INT64_FORMAT,
						 le_quote(change->leader), change->term);
	else if (change->leader != NULL)
		appendStringInfo(&buf, "%s leads in term " INT64_FORMAT,
						 le_quote(change->leader), change->term);
	else
		appendStringInfo(&buf, "vacant after term " INT64_FORMAT, change->term);
	if (change->previous != NULL)
		appendStringInfo(&buf, ", %s led before: %s",
						 le_quote(change->previous), change->reason);
	return buf.data;
}

/*
 * Note that this transaction changes who leads, or asks the leader to yield.
 */
void
le_commit_change(const Change *change)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	LogLine    *line;

	/*
	 * This process's first call may raise an error: make it now, since
	 * le_commit_wake_others() must not fail.
	 */
	(void) le_wake_observer_event();
	CacheInvalidateRelcacheByRelid(le_store.change);
	line = palloc(sizeof(LogLine));
	line->xid = GetCurrentTransactionId();
	line->text = make_log_line(change);
	log_lines = lappend(log_lines, line);
	if (change->winner_pid != 0)
		winner_pids = lappend_int(winner_pids, change->winner_pid);
	le_commit_durably();
	le_commit_wakes_worker();
	MemoryContextSwitchTo(old);
}

/*
 * Note that this transaction grants, renews or ends a lease: it commits
 * durably, whatever its caller has set synchronous_commit to (see
 * set_durability()).
 */
void
le_commit_durably(void)
{
	must_be_durable = true;
}

/*
 * Note that this transaction leaves the worker something to look at.
 */
void
le_commit_wakes_worker(void)
{
	wake_worker = true;
}

/*
 * Note that this transaction leaves something that listeners are to be told,
 * which is the worker's task.
 */
void
le_commit_tells(void)
{
	leaves_news = true;
	le_commit_wakes_worker();
}

/*
 * Change a setting until the transaction ends.
 */
void
le_commit_set(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * Called before the commit: let it wait for locks no longer than a function
 * may.  (The only lock that a commit still takes is that of the caller's own
 * NOTIFY.)
 */
void
le_commit_bounded(void)
{
	if (LockTimeout == 0 || LockTimeout > LE_WAIT_LIMIT_MS)
		le_commit_set("lock_timeout", CppAsString2(LE_WAIT_LIMIT_MS));
}

/*
 * Let the commit wait until this server and its synchronous standbys have
 * flushed it, if it must be durable, and no longer, if others wait for what it
 * holds.  With remote_apply it would wait, with the lease row and the election
 * lock, for a standby's replay, which a query there can hold up: the leases
 * that the worker has to renew would run out meanwhile.  That is so, too, if
 * nothing of ours was written, but the same statement has written elsewhere.
 * A transaction block may have written other rows, too: it waits for the
 * replay if its user wants that.  (So may a single statement, or several in one
 * string, but whether they have cannot be seen here.)
 */
static void
set_durability(bool holds)
{
	if ((must_be_durable &&
		 synchronous_commit < SYNCHRONOUS_COMMIT_REMOTE_FLUSH) ||
		((must_be_durable || holds) && !IsTransactionBlock() &&
		 synchronous_commit > SYNCHRONOUS_COMMIT_REMOTE_FLUSH))
		le_commit_set("synchronous_commit", "on");
}

/*
 * The transaction is about to commit.  The caller cannot undo a setting that
 * is made here, and an error here still rolls back; after the commit it would
 * be a PANIC.
 */
void
le_commit_before(void)
{
	bool		holds = le_xact_holds || le_lock_holds_exclusive();
	ListCell   *lc;

	/* Changes that were rolled back to a savepoint have not happened. */
	foreach(lc, log_lines)
	{
		LogLine    *line = lfirst(lc);

		if (!TransactionIdIsCurrentTransactionId(line->xid))
			log_lines = foreach_delete_current(log_lines, lc);
	}
	set_durability(holds);
	if (holds)
		le_commit_bounded();

	/*
	 * A worker has to tell listeners of what has changed.  One that is there
	 * now stays until it has seen the change: before the commit it sees the
	 * candidate or the lease as it was, and does not end.  If many
	 * transactions find no worker, one of them gets the starter's lock and
	 * starts it.
	 */
	start_worker = (log_lines != NIL || leaves_news) &&
		le_lock_worker_is_free() && le_lock_take(LOCK_STARTER);
}

/*
 * A transaction that changes who leads, or creates seats, cannot be prepared:
 * COMMIT PREPARED may run in another process, which has neither the line for
 * the log nor whom to wake, and until then the election would be locked.
 */
void
le_commit_before_prepare(void)
{
	if (log_lines != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot PREPARE a transaction that changes who leads")));
	if (leaves_news)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot PREPARE a transaction that creates seats of a group")));
}

/*
 * The transaction has ended: forget what it was to do at its commit.
 */
void
le_commit_forget(void)
{
	/* The lists themselves went with the transaction's memory. */
	log_lines = NIL;
	winner_pids = NIL;
	wake_worker = false;
	leaves_news = false;
	start_worker = false;
	must_be_durable = false;
}

/*
 * The transaction has committed, and holds the starter's lock still: no other
 * session starts a worker, too.  Nothing here may fail.
 */
void
le_commit_start_worker(void)
{
	if (start_worker && le_start_worker(MyDatabaseId, false, NULL))
		le_start_committed_at = le_clock();
}

/*
 * The transaction has committed, the invalidations were sent, and its locks are
 * free: who is woken finds all of that (callback.c).  Nothing here may fail.
 */
void
le_commit_wake_others(void)
{
	foreach_int(pid, winner_pids)
		le_wake_backend(pid);
	if (log_lines != NIL)
		le_wake_workers_and_observers();
	else if (wake_worker)
		le_wake_workers(MyDatabaseId);
	foreach_ptr(const LogLine, line, log_lines)
		ereport(LOG_SERVER_ONLY,
				(errmsg_internal("%s", line->text),
				 errhidestmt(true)));
}
