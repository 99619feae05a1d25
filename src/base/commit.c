/*-------------------------------------------------------------------------
 *
 * commit.c
 *		What a transaction changed, and what is told at its commit: the
 *		sessions' cached views (invalidation), the log, the winner, sessions
 *		that wait, and the worker, which tells listeners (announce.c).
 *
 * Invariants:
 *
 * - All are told at the commit, and only of what was committed.  Invalidations
 *	 wait for the commit by themselves; the log line and the latches are kept
 *	 here until then.
 *
 * - A transaction that holds an election lock or a lease row does not wait for
 *	 long when it commits.  None of ours calls NOTIFY, but its caller may: then
 *	 the commit queues for a lock that all databases share.
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
#include "utils/json.h"
#include "utils/memutils.h"

/* When a commit of this process has started a worker last; 0: never */
int64		le_start_committed_at = 0;

/* A line for the log, by the subtransaction that has made it true */
typedef struct LogLine
{
	TransactionId xid;
	char	   *text;
} LogLine;

/* What is to be done once the running transaction has committed */
static List *log_lines = NIL;
static List *winner_pids = NIL;
static bool wake_worker = false;
static bool start_worker = false;
static bool must_be_durable = false;

/*
 * A name as the log shows it: a string as in JSON, so that quotes and newlines
 * in it do not end it.
 */
char *
le_quote(const char *name)
{
	StringInfoData buf;

	initStringInfo(&buf);
	escape_json(&buf, name);
	return buf.data;
}

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
 * This transaction changes who leads, or asks the leader to yield.
 */
void
le_commit_change(const Store *store, const Change *change)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	LogLine    *line;

	(void) le_observer_wait_event();	/* not for the first time at commit */
	CacheInvalidateRelcacheByRelid(store->change);
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
 * This transaction grants, renews or ends a lease: nobody may make it less than
 * durable.
 */
void
le_commit_durably(void)
{
	must_be_durable = true;
}

/* There will be something for the worker to look at. */
void
le_commit_wakes_worker(void)
{
	wake_worker = true;
}

/*
 * Make a setting that lasts until the transaction ends.
 */
void
le_set_locally(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * From a pre-commit callback: let the commit wait for locks no longer than a
 * function may.  (Only that of its caller's own NOTIFY is left to be taken.)
 */
void
le_commit_bounded(void)
{
	if (LockTimeout == 0 || LockTimeout > LE_WAIT_LIMIT_MS)
		le_set_locally("lock_timeout", CppAsString2(LE_WAIT_LIMIT_MS));
}

/*
 * The last moment at which settings can be made for the commit, and nobody can
 * undo them, and at which an error is only that.
 */
void
le_commit_before(void)
{
	ListCell   *lc;

	/* What a subtransaction has undone did not happen. */
	foreach(lc, log_lines)
	{
		LogLine    *line = lfirst(lc);

		if (!TransactionIdIsCurrentTransactionId(line->xid))
			log_lines = foreach_delete_current(log_lines, lc);
	}
	if (must_be_durable && synchronous_commit < SYNCHRONOUS_COMMIT_REMOTE_FLUSH)
		le_set_locally("synchronous_commit", "on");
	if (log_lines != NIL || must_be_durable || le_lock_election_is_mine())
		le_commit_bounded();

	/*
	 * A worker that is there now stays until it has seen this change: the
	 * candidate or the lease that it concerns is not gone before the commit.
	 * Of many that find none, one starts it.
	 */
	start_worker = log_lines != NIL && le_lock_worker_is_free() &&
		le_lock_starter();
}

/*
 * Who leads in a transaction that is committed later, maybe, cannot be told now.
 */
void
le_commit_before_prepare(void)
{
	if (log_lines != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot PREPARE a transaction that changes who leads")));
}

/*
 * The transaction has ended, or was rolled back.
 */
void
le_commit_forget(void)
{
	/* The lists themselves went with the transaction's memory. */
	log_lines = NIL;
	winner_pids = NIL;
	wake_worker = false;
	start_worker = false;
	must_be_durable = false;
}

/*
 * The transaction's changes are visible now; its locks are not free yet: those
 * that are woken here read first, and queue for what they have to write.
 * Nothing here may fail.
 */
void
le_commit_after(void)
{
	ListCell   *lc;

	foreach(lc, winner_pids)
		le_wake_backend(lfirst_int(lc));
	foreach(lc, log_lines)
		ereport(LOG_SERVER_ONLY,
				(errmsg_internal("%s", ((LogLine *) lfirst(lc))->text),
				 errhidestmt(true)));
	if (log_lines != NIL)
		le_wake_observers();
	if (wake_worker)
		le_wake_workers(MyDatabaseId);
	if (start_worker && le_start_worker(MyDatabaseId, false, NULL))
		le_start_committed_at = le_clock();
	le_commit_forget();
}
