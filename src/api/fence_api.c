/*-------------------------------------------------------------------------
 *
 * fence_api.c
 *		SQL functions that fence the running transaction: see fence.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/api.h"
#include "commands/trigger.h"

PG_FUNCTION_INFO_V1(le_assert_leader);
PG_FUNCTION_INFO_V1(le_assert_leader_term);
PG_FUNCTION_INFO_V1(le_only_leader);

Datum
le_assert_leader(PG_FUNCTION_ARGS)
{
	le_fence_by_session(le_arg_name(fcinfo, 0, "election name"));
	PG_RETURN_VOID();
}

Datum
le_assert_leader_term(PG_FUNCTION_ARGS)
{
	char	   *name = le_arg_name(fcinfo, 0, "election name");
	int64		term = PG_ARGISNULL(1) ? 0 : PG_GETARG_INT64(1);

	le_fence_by_term(name, PG_ARGISNULL(1) ? NULL : &term);
	PG_RETURN_VOID();
}

/*
 * A trigger: a session may write to the table only if it leads the election,
 * or if its transaction was fenced by a term of that election before.  Either
 * way the transaction is fenced, and the commit looks again.
 */
Datum
le_only_leader(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	char	   *election;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("leader_election.only_leader() was not called by a trigger")));
	if (!TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_STATEMENT(trigger->tg_event) ||
		trigger->tg_trigger->tgnargs != 1 ||
		strlen(trigger->tg_trigger->tgargs[0]) > LE_NAME_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("trigger \"%s\" does not call leader_election.only_leader() as it must",
						trigger->tg_trigger->tgname),
				 errhint("Declare it BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE, FOR EACH STATEMENT, with the name of the election as its one argument.")));
	election = trigger->tg_trigger->tgargs[0];
	if (!le_fence_is_set(election))
		le_fence_by_session(election);
	return PointerGetDatum(NULL);
}
