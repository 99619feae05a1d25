/*-------------------------------------------------------------------------
 *
 * call.c
 *		What the SQL-callable functions share: arguments, results, waits.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "api/api.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

/*
 * What every call does that reads or writes an election: find the tables, and
 * lock them.  From here to le_wait_bounded_end() its waits for locks are
 * bounded, and the error for a lock that is not free in time names this
 * election.
 */
void
le_call_begin(BoundedWaits *waits, const char *election, int tables,
			  LOCKMODE mode)
{
	le_wait_start();
	le_call_enter(waits, election, tables, mode);
}

/*
 * The same for a call that works on several elections: all its waits together
 * are bounded.  le_wait_start() was called before the first election.
 */
void
le_call_enter(BoundedWaits *waits, const char *election, int tables,
			  LOCKMODE mode)
{
	le_store_begin();
	le_wait_bounded_begin(waits, election);
	le_store_lock(tables, mode);
}

/*
 * The leader calls.  If it is drained, or its seat is withdrawn, and there is
 * no worker to ask it to yield, ask it now.  What is locked is left for a
 * later call.  True if it was asked.
 */
bool
le_call_ask_unwanted(const char *name)
{
	Election   *election;
	LOCKTAG		tag;
	bool		asked;

	if (!le_lock_worker_is_free() ||
		!le_store_try_lock(LE_TABLE_DRAIN, AccessShareLock) ||
		(le_drain_read(name) == NULL && le_seat_number(name) == 0) ||
		!le_room_for_locks(LE_LOCKS_OF_CHANGE) ||
		!le_store_try_lock(LE_TABLES, RowExclusiveLock) ||
		(le_seat_number(name) != 0 &&
		 !le_store_try_lock(LE_TABLE_GROUP, AccessShareLock)))
		return false;
	tag = le_lock_mutex_tag(LOCK_ELECTION, name);
	if (!le_lock_election_shared(&tag, false))
		return false;
	le_xact_holds = true;
	election = le_election_read(name);
	return election != NULL &&
		le_yield_request(election, &asked, NULL) && asked;
}

/*
 * Refuse to work inside a transaction block, or, for procedures, where the
 * server lets nobody end the transaction although there is no block: in a
 * function, and in a procedure that has to be left as another user, or with
 * other settings, than its body has.
 */
void
le_call_check_block(const char *call, bool in_transaction_block)
{
	if (!in_transaction_block)
		return;
	if (!IsInTransactionBlock(true))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a routine that cannot commit",
						call),
				 errhint("CALL it by itself, in a DO block or in a procedure that is declared neither with SECURITY DEFINER nor with SET, and not in a function. Instead of SECURITY DEFINER, grant EXECUTE to the role that calls, or call join() there; instead of SET, set it before the call.")));
	ereport(ERROR,
			(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
			 errmsg("%s cannot run inside a transaction block", call),
			 errhint("Call it in autocommit mode, and neither among several statements in one string, in a block with EXCEPTION nor in a pipeline: autocommit = True in Python (psycopg), isolation_level \"AUTOCOMMIT\" in SQLAlchemy, outside of atomic() and without ATOMIC_REQUESTS in Django, setAutoCommit(true) in Java (JDBC), outside of @Transactional in Spring.")));
}

/*
 * Refuse a call that changes something on a standby, in a transaction block,
 * in a read-only transaction, or in parallel mode.  Warn a superuser of other
 * owners (members.c).
 */
void
le_call_check(const char *call, bool in_transaction_block)
{
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("%s cannot be executed during recovery", call),
				 errhint("Connect to the primary server.")));
	le_call_check_block(call, in_transaction_block);
	PreventCommandIfReadOnly(call);
	PreventCommandIfParallelMode(call);
	le_members_warn();
}

/*
 * The same for functions.  le_call_check() refuses a transaction block
 * with a hint.  PreventInTransactionBlock() then refuses nothing more, but has
 * the server commit right after this statement, also in a pipeline.
 */
void
le_call_check_function(const char *call)
{
	le_call_check(call, IsInTransactionBlock(true));
	PreventInTransactionBlock(true, call);
}

/*
 * The same for a function whose first argument names an election: that name.
 */
char *
le_call_election(FunctionCallInfo fcinfo, const char *call)
{
	le_call_check_function(call);
	return le_arg_name(fcinfo, 0, "election name");
}

/*
 * Was this procedure called where it cannot end the transaction?
 */
bool
le_call_is_atomic(FunctionCallInfo fcinfo)
{
	return fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic;
}

/*
 * Refuse a result that is not as many columns as the routine has.
 */
static void
check_columns(ResultRow *result, TupleDesc desc)
{
	if (result->columns == 0)
		memset(result->nulls, true, sizeof(result->nulls));
	else if (result->columns != desc->natts)
		elog(ERROR, "return type must be a row type of %d columns",
			 result->columns);
}

/*
 * The OUT parameters of a routine, as what it returns.  In an update of the
 * extension, they may get more.
 */
Datum
le_call_result(FunctionCallInfo fcinfo, ResultRow *result)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	check_columns(result, desc);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
											 result->values, result->nulls));
}

/*
 * One row of those that a function returns, after InitMaterializedSRF().
 */
void
le_call_put(FunctionCallInfo fcinfo, ResultRow *result)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	check_columns(result, rsinfo->setDesc);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, result->values,
						 result->nulls);
}

/*
 * Refuse to make a grant row of what is none.  The row type lease_grant may
 * have another owner than a superuser by now, who has altered it: a number
 * that is read as the address of a text ends the server.
 */
static void
check_grant_type(TupleDesc desc, bool election)
{
	static const Oid types[] = {
		TEXTOID, INT8OID, INT8OID, TIMESTAMPTZOID, BOOLOID
	};
	int			first = election ? 0 : 1;
	bool		fits = desc->natts == lengthof(types) - first;

	for (int i = 0; i < desc->natts && fits; i++)
		fits = TupleDescAttr(desc, i)->atttypid == types[first + i];
	if (!fits)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("type \"%s.lease_grant\" is not as the extension has made it",
						LE_SCHEMA),
				 errhint("Undo that change, or drop and create the extension \"%s\" again when no lease can last any more: its terms begin anew.",
						 LE_EXTENSION)));
}

/*
 * Return a grant row, after InitMaterializedSRF().  election: its first column
 * is the name of the election.
 */
void
le_call_return_grant(FunctionCallInfo fcinfo, const Lease *lease, bool election)
{
	ResultRow	row = {0};
	int64		remaining = Max(lease->deadline_mono - le_clock(), 0);

	/*
	 * The lease is this session's.  Its client must not count on it for longer
	 * than the server keeps the session while the network is cut.
	 */
	if (lease->session_id != 0)
		remaining = Min(remaining, le_keepalive_lasts());
	check_grant_type(((ReturnSetInfo *) fcinfo->resultinfo)->setDesc, election);
	if (election)
		LE_ADD(&row, LE_TEXT(lease->election));
	LE_ADD(&row, Int64GetDatum(lease->term));
	LE_ADD(&row, Int64GetDatum(remaining / 1000));
	LE_ADD(&row, TimestampTzGetDatum(lease->expires_at));
	LE_ADD(&row, BoolGetDatum(lease->yielding));
	le_call_put(fcinfo, &row);
}

/*
 * Detail and hint of an error: only that role, which might be gone, may touch
 * what was done for it.
 */
int
le_call_err_only_role(const char *done, const Role *role)
{
	if (le_role_exists(role))
	{
		errdetail("It was %s role \"%s\".", done, le_role_name(role));
		return errhint("Only that role may touch it: use SET ROLE.");
	}
	errdetail("It was %s role \"%s\", which %s.", done, role->name,
			  le_role_missing(role));
	return errhint("Nobody may touch it: it ends by itself.");
}

/*
 * 42501, since the caller is not the owner of this; alter is the function with
 * which a superuser gives it another one.
 */
void
le_call_report_not_its_owner(const char *what, const char *name,
							 const Role *owner, const char *alter)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("must be owner of %s \"%s\"", what, name),
			 le_role_exists(owner) ?
			 errdetail("It is owned by role \"%s\".", le_role_name(owner)) :
			 errdetail("It is owned by role \"%s\", which %s.", owner->name,
					   le_role_missing(owner)),
			 le_role_exists(owner) ? 0 :
			 errhint("Have a superuser give it another owner: leader_election.%s(..., owner => ...).",
					 alter)));
}

/*
 * The function that alters an election, which may be a seat.
 */
static const char *
alter_function(const Election *election)
{
	return election->group != NULL ? "alter_group" : "alter_election";
}

/*
 * The election of the call.  42501 unless the caller owns it, or is a
 * superuser.
 */
Election *
le_call_get_owned(const char *name)
{
	Election   *election = le_election_get(name);

	if (!le_role_owns(&election->owner))
		le_call_report_not_its_owner("election", election->name, &election->owner,
									 alter_function(election));
	return election;
}

/*
 * A caller that owns something gives it this owner, unless it has no name.
 * 42501 unless the caller may SET ROLE to it, or is a superuser, as for the
 * owners of tables: a role is given only what it could have made itself.
 */
void
le_call_check_new_owner(const Role *owner)
{
	if (OidIsValid(owner->oid))
		check_can_set_role(GetUserId(), owner->oid);
}

/*
 * Take the election lock, so that nothing is decided meanwhile, and (unless
 * lease is NULL) lock the lease row, so that it is not renewed, nor its leader
 * asked to yield. The caller must own the election, also once it is locked: it
 * may have been made anew.
 */
Election *
le_call_lock_owned(const char *name, Lease **lease)
{
	(void) le_call_get_owned(name);
	while (!le_wait_for_election(name))
		le_wait_retry_or_busy(name);
	while (lease != NULL &&
		   (*lease = le_lease_lock(name)) == NULL)
	{
		/* The election may have been dropped. */
		(void) le_election_get(name);
		le_wait_retry_or_busy(name);
	}
	return le_call_get_owned(name);
}

void
le_call_check_candidate_role(const Election *election, const Role *role)
{
	const char *alter = alter_function(election);

	if (le_election_admits(election, role))
		return;
	if (!le_role_exists(&election->candidate_role))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("candidate_role \"%s\" of election \"%s\" %s",
						election->candidate_role.name, election->name,
						le_role_missing(&election->candidate_role)),
				 OidIsValid(election->candidate_role.oid) ?
				 errhint("Have the election's owner name another one with leader_election.%s().",
						 alter) :
				 errhint("Create that role, or have the election's owner name another one with leader_election.%s().",
						 alter)));
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied to stand in election \"%s\"",
					election->name),
			 errdetail("Candidates must be members of role \"%s\".",
					   le_role_name(&election->candidate_role)),
			 errhint("Ask for membership in it.")));
}

/*
 * Whose is the name that the caller cannot have?  NULL: nobody's any more.
 */
static Candidate *
find_namesake(const Candidate *who)
{
	Candidate  *c = le_candidate_find(who->election, who->candidate);
	Lease	   *lease;

	if (c != NULL && le_candidate_alive(c))
		return c;
	lease = le_lease_read(who->election, NULL);
	if (lease == NULL || lease->leader == NULL ||
		strcmp(lease->leader, who->candidate) != 0)
		return NULL;
	return le_candidate_of_lease(lease);
}

void
le_call_report_name_in_use(const Candidate *who)
{
	Candidate  *c = find_namesake(who);
	char	   *detail = "Another candidate stood under this name just now.";
	bool		own = false;

	if (c != NULL && c->session_id == 0)
		detail = psprintf("A detached candidate of role \"%s\" stands under this name.",
						  le_role_name(&c->role));
	else if (c != NULL)
		detail = le_process_session_text(c, &own);
	ereport(ERROR,
			(errcode(ERRCODE_LE_NAME_IN_USE),
			 errmsg("candidate name \"%s\" is in use in election \"%s\"",
					who->candidate, who->election),
			 errdetail_internal("%s", detail),
			 own ?
			 errhint("Give each instance a name of its own. If that session is this program's, a connection pool lends it one connection now and another one then. Behind a transaction pooler use detached candidates: acquire().") :
			 errhint("Give each instance a name of its own.")));
}

void
le_call_report_not_owner(const char *election, const char *candidate,
						 const Role *role)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for candidate \"%s\" of election \"%s\"",
					candidate, election),
			 le_call_err_only_role("made by", role)));
}
