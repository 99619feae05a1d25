/*-------------------------------------------------------------------------
 *
 * notify.c
 *		What a transaction changed, and who is told: listeners (NOTIFY), the
 *		sessions' cached views (invalidation), the log, and whoever sleeps.
 *
 * Invariant: everybody is told at commit, and only of what was committed.
 * NOTIFY and invalidations wait for the commit by themselves; the log line and
 * the latches are kept here until then.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "catalog/pg_database.h"
#include "commands/async.h"
#include "leader_election.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/datetime.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

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
static bool must_be_durable = false;

/* Usage of the queue that counts as full: the server rounds it up a little */
#define FULL_QUEUE		0.999

/* How long a commit may wait for its turn to notify, in milliseconds */
static int	wait_limit_ms = LE_WAIT_LIMIT_MS;

/*
 * The wait event of wait_for_change, by which its backends are found.
 */
uint32
le_observer_wait_event(void)
{
	static uint32 event = 0;

	if (event == 0)
		event = LeWaitEvent("LeaderElectionWaitForChange", 0x4C45);
	return event;
}

static void
append_string(StringInfo buf, const char *key, const char *value)
{
	appendStringInfo(buf, ",\"%s\":", key);
	if (value != NULL)
		escape_json(buf, value);
	else
		appendStringInfoString(buf, "null");
}

static void
append_payload(StringInfo buf, const Change *change, TimestampTz at)
{
	char		when[MAXDATELEN + 1];

	appendStringInfoString(buf, "{\"election\":");
	escape_json(buf, change->election);
	append_string(buf, "event", change->event);
	appendStringInfo(buf, ",\"term\":" INT64_FORMAT, change->term);
	append_string(buf, "leader", change->leader);
	append_string(buf, "previous", change->previous);
	append_string(buf, "reason", change->reason);
	if (change->successor != NULL)
		append_string(buf, "successor", change->successor);
	JsonEncodeDateTime(when, TimestampTzGetDatum(at), TIMESTAMPTZOID, NULL);
	append_string(buf, "at", when);
	appendStringInfoChar(buf, '}');
}

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
	if (strcmp(change->event, "yield_requested") == 0)
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
 * All databases share a queue of notifications, which any client can keep from
 * being emptied.  Elections must not end with that: commits that notify fail
 * then.
 */
static bool
queue_is_full(void)
{
	return DatumGetFloat8(DirectFunctionCall1(pg_notification_queue_usage,
											  (Datum) 0)) >= FULL_QUEUE;
}

/*
 * Tell everybody of a change of leadership, once this transaction commits.
 */
void
le_notify(const Store *store, const Change *change, TimestampTz at)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	StringInfoData payload;
	LogLine    *line;

	initStringInfo(&payload);
	append_payload(&payload, change, at);
	(void) le_observer_wait_event();	/* not for the first time at commit */
	if (queue_is_full())
		ereport(WARNING,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("nobody is notified of a change in election \"%s\": the queue of notifications is full",
						change->election),
				 errhint("Look in pg_stat_activity for a client that listens and has been in a transaction for long.")));
	else
		Async_Notify(change->channel != NULL ? change->channel : LE_CHANNEL,
					 payload.data);
	CacheInvalidateRelcacheByRelid(store->change);

	line = palloc(sizeof(LogLine));
	line->xid = GetCurrentTransactionId();
	line->text = make_log_line(change);
	log_lines = lappend(log_lines, line);
	if (change->winner_pid != 0)
		winner_pids = lappend_int(winner_pids, change->winner_pid);
	le_notify_durable();
	le_notify_worker();
	MemoryContextSwitchTo(old);
}

/*
 * This transaction grants, renews or ends a lease: nobody may make it less than
 * durable.
 */
void
le_notify_durable(void)
{
	must_be_durable = true;
}

/* There will be something for the worker to look at. */
void
le_notify_worker(void)
{
	wake_worker = true;
}

/*
 * How long commits of this process may wait for their turn to notify, in
 * microseconds, instead of what functions may.
 */
void
le_notify_wait_limit(int64 limit)
{
	wait_limit_ms = Max(limit / 1000, 1);
}

/*
 * Take our turn to notify now, if it is free, so that this commit does not wait
 * for it.
 */
bool
le_notify_try(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, InvalidOid, 0);
	return LeLockTry(&tag, AccessExclusiveLock, false, NULL);
}

static void
set_until_commit(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * The last moment at which settings can be made for the commit, and nobody can
 * undo them.  All commits that notify wait for each other, on a lock of the
 * server's, while we hold the election lock.
 */
void
le_notify_pre_commit(void)
{
	char		value[32];
	ListCell   *lc;

	/* What a subtransaction has undone did not happen. */
	foreach(lc, log_lines)
	{
		LogLine    *line = lfirst(lc);

		if (!TransactionIdIsCurrentTransactionId(line->xid))
			log_lines = foreach_delete_current(log_lines, lc);
	}
	if (must_be_durable && synchronous_commit < SYNCHRONOUS_COMMIT_REMOTE_FLUSH)
		set_until_commit("synchronous_commit", "on");
	if (log_lines != NIL &&
		(MyBackendType == B_BG_WORKER || LockTimeout == 0 || LockTimeout > wait_limit_ms))
	{
		snprintf(value, sizeof(value), "%d", wait_limit_ms);
		set_until_commit("lock_timeout", value);
	}
}

/*
 * A change of leadership is told when it happens, by whoever makes it.  The
 * server refuses it where it has a notification to keep, with a full queue we
 * do.
 */
void
le_notify_pre_prepare(void)
{
	if (log_lines != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot PREPARE a transaction that changes who leads")));
}

static void
forget(void)
{
	/* The lists themselves went with the transaction's memory. */
	log_lines = NIL;
	winner_pids = NIL;
	wake_worker = false;
	must_be_durable = false;
}

/*
 * The transaction's changes are visible now; its locks are not free yet.
 * Whoever is woken here reads first, and queues for what it has to write.
 */
void
le_notify_commit(void)
{
	ListCell   *lc;

	foreach(lc, winner_pids)
		le_wake_backend(lfirst_int(lc));
	foreach(lc, log_lines)
		ereport(LOG_SERVER_ONLY,
				(errmsg_internal("%s", ((LogLine *) lfirst(lc))->text),
				 errhidestmt(true)));
	if (log_lines != NIL)
		le_wake_waiters(le_observer_wait_event());
	if (wake_worker)
		le_wake_workers(MyDatabaseId);
	forget();
}

void
le_notify_abort(void)
{
	forget();
}
