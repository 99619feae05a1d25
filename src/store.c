/*-------------------------------------------------------------------------
 *
 * store.c
 *		The tables: where they are, whose rights they are written with, the
 *		statements that write them, and how long a call may wait for them.
 *
 * Reading is done by hand (systable scans): it works on a standby and in any
 * transaction, needs no privilege, and costs a microsecond.  Writing is done
 * by SPI, as the owner of the tables, with a search_path in which nobody but
 * the system can put anything; every statement is in the table below.
 *
 * Invariant: no statement here waits for a row.  Rows are locked with SKIP
 * LOCKED before they are written, and new ones are inserted under a name lock
 * (lock.c) or the election lock.  Tables and election locks are waited for at
 * most LE_WAIT_LIMIT_MS in all.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "leader_election.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/wait_event.h"

#define MAX_COLUMNS		32
#define MAX_ARGUMENTS	10

static const struct
{
	const char *sql;
	Oid			args[MAX_ARGUMENTS];	/* InvalidOid ends them */
}			statements[LE_STATEMENTS] =
{
	[LE_INSERT_ELECTION] = {
		"INSERT INTO leader_election.election (election, lease_duration, owner) "
		"VALUES ($1, $2 * interval '1 microsecond', $3)",
		{TEXTOID, INT8OID, NAMEOID}
	},
	[LE_INSERT_LEASE] = {
		"INSERT INTO leader_election.lease (election) VALUES ($1) "
		"ON CONFLICT (election) DO NOTHING",
		{TEXTOID}
	},
	[LE_LOCK_LEASE] = {
		"SELECT FROM leader_election.lease WHERE election = $1 "
		"FOR NO KEY UPDATE SKIP LOCKED",
		{TEXTOID}
	},
	[LE_GRANT_LEASE] = {
		"UPDATE leader_election.lease l SET term = $4, leader = c.candidate, "
		"kind = c.kind, session_id = c.session_id, "
		"backend_pid = c.backend_pid, role = c.role, "
		"auto_renew = c.auto_renew, rank = c.rank, progress = c.progress, "
		"metadata = c.metadata, acquired_at = $7, renewed_at = $7, "
		"expires_at = $7 + $5 * interval '1 microsecond', "
		"acquired_mono = $6, deadline_mono = $6 + $5, duration = $5, "
		"incarnation = $8, yielding = false, successor = NULL, "
		"free_at = NULL, free_mono = NULL, free_for = NULL "
		"FROM leader_election.candidate c "
		"WHERE l.election = $1 AND c.election = $1 AND c.candidate = $2 "
		"AND c.session_id = $3",
		{TEXTOID, TEXTOID, INT8OID, INT8OID, INT8OID, INT8OID, TIMESTAMPTZOID,
		TEXTOID}
	},
	[LE_VACATE_LEASE] = {
		"UPDATE leader_election.lease SET leader = NULL, kind = NULL, "
		"session_id = NULL, backend_pid = NULL, role = NULL, "
		"auto_renew = NULL, rank = NULL, progress = NULL, metadata = NULL, "
		"yielding = false, successor = NULL, incarnation = $5, "
		"free_at = $3 + $4 * interval '1 microsecond', free_mono = $2, "
		"free_for = $4 "
		"WHERE election = $1",
		{TEXTOID, INT8OID, TIMESTAMPTZOID, INT8OID, TEXTOID}
	},
	/* A deadline never moves back, and a lease that is over stays over. */
	[LE_RENEW_LEASES] = {
		"WITH due AS (SELECT l.election, "
		"greatest(l.deadline_mono - $4, d.duration) AS duration "
		"FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), "
		"pg_catalog.unnest($3)) d (election, term, duration) "
		"JOIN leader_election.lease l ON l.election = d.election "
		"WHERE l.term = d.term AND l.leader IS NOT NULL AND NOT l.yielding "
		"AND l.deadline_mono > leader_election.monotonic_clock() "
		"FOR NO KEY UPDATE OF l SKIP LOCKED) "
		"UPDATE leader_election.lease l SET renewed_at = $5, "
		"expires_at = $5 + due.duration * interval '1 microsecond', "
		"deadline_mono = $4 + due.duration, duration = due.duration "
		"FROM due WHERE l.election = due.election",
		{TEXTARRAYOID, INT8ARRAYOID, INT8ARRAYOID, INT8OID, TIMESTAMPTZOID}
	},
	[LE_INSERT_CANDIDATE] = {
		"INSERT INTO leader_election.candidate (election, candidate, kind, "
		"role, rank, progress, metadata, auto_renew, session_id, "
		"backend_pid, client_addr, joined_at, place_mono) "
		"VALUES ($1, $2, 'session', $8, coalesce($4, 0), coalesce($5, 0), "
		"$6, coalesce($7, true), $3, $9, pg_catalog.inet_client_addr(), "
		"pg_catalog.clock_timestamp(), $10)",
		{TEXTOID, TEXTOID, INT8OID, INT4OID, INT8OID, JSONBOID, BOOLOID,
		NAMEOID, INT4OID, INT8OID}
	},
	[LE_UPDATE_CANDIDATE] = {
		"WITH mine AS (SELECT FROM leader_election.candidate "
		"WHERE election = $1 AND candidate = $2 AND session_id = $3 "
		"FOR NO KEY UPDATE SKIP LOCKED) "
		"UPDATE leader_election.candidate SET rank = coalesce($4, rank), "
		"progress = coalesce($5, progress), "
		"metadata = coalesce($6, metadata), "
		"auto_renew = coalesce($7, auto_renew) "
		"FROM mine WHERE election = $1 AND candidate = $2",
		{TEXTOID, TEXTOID, INT8OID, INT4OID, INT8OID, JSONBOID, BOOLOID}
	},
	[LE_SIT_OUT] = {
		"WITH mine AS (SELECT FROM leader_election.candidate "
		"WHERE election = $1 AND candidate = $2 AND session_id = $3 "
		"FOR NO KEY UPDATE SKIP LOCKED) "
		"UPDATE leader_election.candidate SET sits_out = $4, place_mono = $5 "
		"FROM mine WHERE election = $1 AND candidate = $2",
		{TEXTOID, TEXTOID, INT8OID, INT8OID, INT8OID}
	},
	[LE_LOCK_CANDIDATE] = {
		"SELECT FROM leader_election.candidate "
		"WHERE election = $1 AND candidate = $2 AND session_id = $3 "
		"FOR NO KEY UPDATE SKIP LOCKED",
		{TEXTOID, TEXTOID, INT8OID}
	},
	[LE_DELETE_CANDIDATE] = {
		"WITH mine AS (SELECT FROM leader_election.candidate "
		"WHERE election = $1 AND candidate = $2 AND session_id = $3 "
		"FOR UPDATE SKIP LOCKED) "
		"DELETE FROM leader_election.candidate USING mine "
		"WHERE election = $1 AND candidate = $2",
		{TEXTOID, TEXTOID, INT8OID}
	},
	[LE_PRUNE_CANDIDATES] = {
		"WITH dead AS (SELECT c.election, c.candidate "
		"FROM leader_election.candidate c WHERE c.session_id = ANY ($1) "
		"FOR UPDATE SKIP LOCKED) "
		"DELETE FROM leader_election.candidate c USING dead "
		"WHERE c.election = dead.election AND c.candidate = dead.candidate",
		{INT8ARRAYOID}
	},
	[LE_BEGIN_HISTORY] = {
		"INSERT INTO leader_election.history (election, term, leader, kind, "
		"role, client_addr, backend_pid, acquired_at) "
		"SELECT c.election, $3, c.candidate, c.kind, c.role, c.client_addr, "
		"c.backend_pid, $4 FROM leader_election.candidate c "
		"WHERE c.election = $1 AND c.candidate = $2",
		{TEXTOID, TEXTOID, INT8OID, TIMESTAMPTZOID}
	},
	[LE_LOCK_HISTORY] = {
		"SELECT FROM (SELECT FROM leader_election.history "
		"WHERE election = $1 AND term = $2 "
		"FOR NO KEY UPDATE SKIP LOCKED) mine "
		"UNION ALL SELECT WHERE NOT EXISTS (SELECT "
		"FROM leader_election.history WHERE election = $1 AND term = $2)",
		{TEXTOID, INT8OID}
	},
	[LE_END_HISTORY] = {
		"UPDATE leader_election.history SET ended_at = $3, reason = $4, "
		"detail = $5 WHERE election = $1 AND term = $2",
		{TEXTOID, INT8OID, TIMESTAMPTZOID, TEXTOID, TEXTOID}
	},
	[LE_PRUNE_HISTORY] = {
		"WITH old AS (SELECT h.election, h.term FROM leader_election.history h "
		"WHERE h.ended_at < pg_catalog.clock_timestamp() - $1 * interval '1 second' "
		"LIMIT $2 FOR UPDATE SKIP LOCKED) "
		"DELETE FROM leader_election.history h USING old "
		"WHERE h.election = old.election AND h.term = old.term",
		{INT8OID, INT8OID}
	},
	[LE_INSERT_EPOCH] = {
		"INSERT INTO leader_election.epoch (incarnation, first_seen_at, "
		"first_seen_mono, epoch) VALUES ($1, $2, $3, $4) "
		"ON CONFLICT (incarnation) DO UPDATE SET "
		"first_seen_at = excluded.first_seen_at, "
		"first_seen_mono = excluded.first_seen_mono, epoch = excluded.epoch",
		{TEXTOID, TIMESTAMPTZOID, INT8OID, INT8OID}
	},
};

static SPIPlanPtr plans[LE_STATEMENTS];

/* When the present call must have stopped waiting */
static int64 wait_until;

/*
 * Find the extension's tables.  Returns false, without error, where it is not
 * installed: a schema of that name that is not the extension's own counts as
 * none.
 */
bool
le_store_find(Store *store)
{
	static Oid	trusted_namespace = InvalidOid;
	Oid			namespace = get_namespace_oid(LE_SCHEMA, true);
	HeapTuple	tuple;

	if (!OidIsValid(namespace))
		return false;
	if (namespace != trusted_namespace)
	{
		Oid			extension = getExtensionOfObject(NamespaceRelationId,
													 namespace);

		if (!OidIsValid(extension) ||
			extension != get_extension_oid(LE_EXTENSION, true))
			return false;
		trusted_namespace = namespace;
	}

	store->election = get_relname_relid("election", namespace);
	store->election_pkey = get_relname_relid("election_pkey", namespace);
	store->lease = get_relname_relid("lease", namespace);
	store->lease_pkey = get_relname_relid("lease_pkey", namespace);
	store->candidate = get_relname_relid("candidate", namespace);
	store->candidate_pkey = get_relname_relid("candidate_pkey", namespace);
	store->history = get_relname_relid("history", namespace);
	store->epoch = get_relname_relid("epoch", namespace);
	store->change = get_relname_relid("change", namespace);
	if (!OidIsValid(store->election) || !OidIsValid(store->election_pkey) ||
		!OidIsValid(store->lease) || !OidIsValid(store->lease_pkey) ||
		!OidIsValid(store->candidate) || !OidIsValid(store->candidate_pkey) ||
		!OidIsValid(store->history) || !OidIsValid(store->epoch) ||
		!OidIsValid(store->change))
		return false;

	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(store->lease));
	if (!HeapTupleIsValid(tuple))
		return false;
	store->owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return true;
}

/*
 * The same for whoever needs them.  Elections end with the extension.
 */
void
le_store_get(Store *store)
{
	if (!le_store_find(store))
		ereport(ERROR,
				(errcode(ERRCODE_LE_NO_ELECTION),
				 errmsg("there are no elections in this database"),
				 errdetail("The extension \"%s\" is not installed in it.",
						   LE_EXTENSION),
				 errhint("Run CREATE EXTENSION %s.", LE_EXTENSION)));
}

LE_NORETURN static void
report_dropped(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_LE_NO_ELECTION),
			 errmsg("the elections of this database have been dropped"),
			 errdetail("They ended with the extension \"%s\".",
					   LE_EXTENSION)));
}

/*
 * Lock these tables until the transaction ends, always in the same order.
 * Without wait, false if one of them is locked against us (others may be
 * locked by then).  With wait, the server's own waits, here and later in the
 * call, end when the call must have stopped waiting.  The store is brought up
 * to date.
 */
bool
le_store_lock(Store *store, int tables, LOCKMODE mode, bool wait)
{
	const struct
	{
		int			table;
		Oid			oid;
	}			order[] = {
		{LE_TABLE_ELECTION, store->election},
		{LE_TABLE_LEASE, store->lease},
		{LE_TABLE_CANDIDATE, store->candidate},
		{LE_TABLE_HISTORY, store->history},
		{LE_TABLE_EPOCH, store->epoch},
	};
	Store		now;

	if (wait)
		le_wait_as_lock_timeout();
	for (int i = 0; i < lengthof(order); i++)
	{
		if ((tables & order[i].table) == 0)
			continue;
		if (ConditionalLockRelationOid(order[i].oid, mode))
			continue;
		if (!wait)
			return false;
		le_wait_as_lock_timeout();
		LockRelationOid(order[i].oid, mode);
	}

	/*
	 * They may have been dropped while we waited, or have got other indexes.
	 * From here on neither can happen to those that are locked.
	 */
	le_store_get(&now);
	if (now.lease != store->lease)
		report_dropped();
	*store = now;
	return true;
}

/*
 * Act as the owner of the tables, with settings that the caller cannot bend,
 * until le_owner_leave().  An error in between is undone by the transaction's
 * abort.  Opens an SPI level; no transaction may end before it is closed.
 */
void
le_owner_enter(OwnerContext *context, Oid owner)
{
	GetUserIdAndSecContext(&context->userid, &context->sec_context);
	SetUserIdAndSecContext(owner,
						   context->sec_context | SECURITY_LOCAL_USERID_CHANGE);
	context->nest_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp",
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
							 true, 0, false);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
}

void
le_owner_leave(OwnerContext *context)
{
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "SPI_finish failed");
	AtEOXact_GUC(false, context->nest_level);
	SetUserIdAndSecContext(context->userid, context->sec_context);
}

/*
 * Run a statement with a snapshot of its own, whatever the isolation level;
 * the number of rows.  Between le_owner_enter() and le_owner_leave().
 */
uint64
le_execute(Statement statement, Datum *values, const char *nulls)
{
	int			rc;

	if (plans[statement] == NULL)
	{
		int			nargs = 0;
		SPIPlanPtr	plan;

		while (nargs < MAX_ARGUMENTS &&
			   OidIsValid(statements[statement].args[nargs]))
			nargs++;
		/* Every one of them goes by key: there is nothing to gain by replanning */
		plan = SPI_prepare_cursor(statements[statement].sql, nargs,
								  (Oid *) statements[statement].args,
								  CURSOR_OPT_GENERIC_PLAN);
		if (plan == NULL || SPI_keepplan(plan) != 0)
			elog(ERROR, "could not prepare statement %d: %s", statement,
				 SPI_result_code_string(SPI_result));
		plans[statement] = plan;
	}

	rc = SPI_execute_snapshot(plans[statement], values, nulls,
							  GetLatestSnapshot(), InvalidSnapshot,
							  false, true, 0);
	if (rc < 0)
		elog(ERROR, "statement %d failed: %s", statement,
			 SPI_result_code_string(rc));
	return SPI_processed;
}

/*
 * Call reader for each row of an election (NULL: each row) that the snapshot
 * sees.  The first column of every table that is looked up is election.
 */
void
le_scan(Oid table, Oid index, const char *election, Snapshot snapshot,
		RowReader reader, void *arg)
{
	Relation	rel = try_relation_open(table, AccessShareLock);
	TupleDesc	desc;
	Datum		values[MAX_COLUMNS];
	bool		nulls[MAX_COLUMNS];
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	bool		latest = snapshot == NULL;

	if (rel == NULL)
		report_dropped();
	if (latest)
	{
		PushActiveSnapshot(GetLatestSnapshot());
		snapshot = GetActiveSnapshot();
	}
	desc = RelationGetDescr(rel);
	Assert(desc->natts <= MAX_COLUMNS);
	if (election != NULL)
		ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_TEXTEQ,
					CStringGetTextDatum(election));
	scan = systable_beginscan(rel, index, election != NULL, snapshot,
							  election != NULL ? 1 : 0, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		CHECK_FOR_INTERRUPTS();
		heap_deform_tuple(tuple, desc, values, nulls);
		reader(tuple, values, nulls, arg);
	}
	systable_endscan(scan);
	if (latest)
		PopActiveSnapshot();
	relation_close(rel, AccessShareLock);
}

/*
 * From here on this call may wait for LE_WAIT_LIMIT_MS in all, or for the
 * caller's lock_timeout if that is less.
 */
void
le_wait_begin(void)
{
	int			limit = LE_WAIT_LIMIT_MS;

	if (LockTimeout > 0)
		limit = Min(limit, LockTimeout);
	wait_until = le_clock() + limit * INT64CONST(1000);
}

/*
 * Wait a little before another try; false if there was enough of that.
 */
bool
le_wait_more(void)
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
 * Let the server's own waits for locks end when ours must.
 */
void
le_wait_as_lock_timeout(void)
{
	int64		left = (wait_until - le_clock()) / 1000;
	char		value[32];

	snprintf(value, sizeof(value), INT64_FORMAT, Max(left, 1));
	(void) set_config_option("lock_timeout", value, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/*
 * Never "no" where the truth is "not now".
 */
void
le_busy(const char *election)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("election \"%s\" is busy", election),
			 errhint("Another transaction holds its lock or its rows. Try again.")));
}
