/*-------------------------------------------------------------------------
 *
 * drain_api.c
 *		SQL functions that drain candidates: see drain.c.
 *
 * A candidate of one election is drained by the election's owner or by a
 * superuser; one of all elections by a superuser.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/api.h"
#include "miscadmin.h"

PG_FUNCTION_INFO_V1(le_drain_candidate);
PG_FUNCTION_INFO_V1(le_undrain_candidate);

#define MOST_OF_ONE		100		/* entries of an election */
#define MOST_OF_ALL		1000	/* entries of all elections */

/* A call, and its arguments */
typedef struct DrainCall
{
	char	   *candidate;
	char	   *election;		/* NULL: all */
	const char *name;			/* the same, in messages */
	BoundedWaits waits;
} DrainCall;

/*
 * The arguments that both functions share; lock the tables and, of one
 * election, the election.
 */
static void
begin(FunctionCallInfo fcinfo, DrainCall *d)
{
	d->candidate = le_arg_name(fcinfo, 0, "candidate name");
	if (strcmp(d->candidate, "*") == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"*\" names no candidate"),
				 errdetail("Before a final * there must be the beginning of a name."),
				 errhint("To have nobody elected, use leader_election.pause_election() or leader_election.pause_all().")));
	d->election = PG_ARGISNULL(1) ? NULL :
		le_arg_name(fcinfo, 1, "election name");
	if (d->election == NULL && !superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to drain candidates in all elections"),
				 errhint("The owner of an election drains them in that one: name it.")));
	d->name = d->election != NULL ? d->election : LE_EVERYWHERE;
	le_call_begin(&d->waits, d->name, d->election != NULL ? LE_TABLES :
				  LE_TABLE_DRAIN, RowExclusiveLock);

	/* This may wait: it comes before there are locks. */
	le_start_ensure_worker(true);
	if (d->election != NULL)
		(void) le_call_lock_owned(d->election, NULL);
}

Datum
le_drain_candidate(PG_FUNCTION_ARGS)
{
	DrainCall	d;
	const char *reason;
	DrainResult result;
	int			limit;

	le_call_check_function("leader_election.drain_candidate()");
	reason = le_arg_text(fcinfo, 2, "reason", 0, LE_LONGEST_REASON);
	begin(fcinfo, &d);
	limit = d.election != NULL ? MOST_OF_ONE : MOST_OF_ALL;
	while ((result = le_drain_write(d.election, d.candidate,
									GetUserNameFromId(GetUserId(), false),
									reason, limit)) == DRAIN_BUSY)
		le_wait_retry_or_busy(d.name);
	if (result == DRAIN_FULL)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 d.election != NULL ?
				 errmsg("too many drained candidates in election \"%s\"",
						d.election) :
				 errmsg("too many drained candidates in all elections"),
				 errdetail("There are %d entries already.", limit),
				 errhint("Drain several candidates at once by the beginning of their names: 'host1*'.")));
	le_wait_bounded_end(&d.waits);
	PG_RETURN_VOID();
}

Datum
le_undrain_candidate(PG_FUNCTION_ARGS)
{
	DrainCall	d;
	DrainResult result;
	const Drain *left;

	le_call_check_function("leader_election.undrain_candidate()");
	begin(fcinfo, &d);
	while ((result = le_drain_delete(d.election, d.candidate)) == DRAIN_BUSY)
		le_wait_retry_or_busy(d.name);
	left = le_drain_find(d.election, d.candidate);
	if (left != NULL)
		ereport(NOTICE,
				(errmsg("candidate \"%s\" is still drained", d.candidate),
				 left->election[0] == '\0' ?
				 errdetail("\"%s\" is drained in all elections.",
						   left->candidate) :
				 errdetail("\"%s\" is drained in election \"%s\".",
						   left->candidate, left->election)));
	le_wait_bounded_end(&d.waits);
	PG_RETURN_BOOL(result == DRAIN_OK);
}
