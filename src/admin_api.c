/*-------------------------------------------------------------------------
 *
 * admin_api.c
 *		SQL functions for operators: the owner of an election, and superusers.
 *
 * Invariant: an operator asks.  Nobody but the leader itself, its deadline or
 * the end of its session ends a leadership.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api.h"
#include "leader_election.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(le_request_yield);

static void
check_election_owner(const Election *election)
{
	Oid			owner = get_role_oid(election->owner, true);

	if (superuser() ||
		(OidIsValid(owner) && has_privs_of_role(GetUserId(), owner)))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("must be owner of election \"%s\"", election->name),
			 errdetail("It is owned by role \"%s\".", election->owner)));
}

/*
 * Ask the leader to yield.  Its lease is locked, and it leads.
 */
static void
ask(const Store *store, const Election *election, Lease *lease,
	const char *to_candidate)
{
	Change		change = {.election = election->name,
		.channel = election->channel,
		.event = "yield_requested",
		.term = lease->term,
		.leader = lease->leader,
	.successor = to_candidate};

	if (lease->yielding &&
		(to_candidate == NULL ? lease->successor == NULL :
		 lease->successor != NULL && strcmp(lease->successor, to_candidate) == 0))
		return;
	le_lease_yield(lease, to_candidate);
	le_notify(store, &change, GetCurrentTimestamp());
}

/*
 * Ask the leader of an election to yield: how long that may take, NULL if
 * nobody leads.
 */
Datum
le_request_yield(PG_FUNCTION_ARGS)
{
	char	   *name;
	char	   *to = NULL;
	bool		terminate = !PG_ARGISNULL(2) && PG_GETARG_BOOL(2);
	Store		store;
	BusyContext busy;
	Election   *election;
	Lease	   *lease;
	char	   *incarnation;
	Interval   *left = palloc0(sizeof(Interval));

	le_check_function("leader_election.request_yield()");
	name = le_name_arg(fcinfo, 0, "election name");
	if (!PG_ARGISNULL(1))
		to = le_name_arg(fcinfo, 1, "candidate name");
	le_store_get(&store);
	le_wait_begin();
	le_busy_begin(&busy, name);
	(void) le_store_lock(&store, LE_TABLES, RowExclusiveLock, true);
	election = le_election_get(&store, name);
	check_election_owner(election);
	incarnation = le_incarnation_name(store.lease);
	for (;;)
	{
		lease = le_lease_read(&store, name, NULL);
		if (lease == NULL ||
			le_lease_state(lease, incarnation, le_clock()) != LEASE_LED)
		{
			le_busy_end(&busy);
			PG_RETURN_NULL();
		}
		if (to != NULL)
		{
			Candidate  *c = le_election_candidate(&store, election, to);

			if (le_candidate_leads(c, lease))
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("candidate \"%s\" leads election \"%s\" already",
								to, name)));
		}
		lease = le_lease_lock(&store, name);
		if (lease != NULL &&
			le_lease_state(lease, incarnation, le_clock()) == LEASE_LED)
			break;
		le_wait_or_busy(name);
	}
	ask(&store, election, lease, to);
	left->time = Max(lease->deadline_mono - le_clock(), 0);
	le_busy_end(&busy);

	/* Its session is alive, so that the process is still the one it was. */
	if (terminate && lease->session_id != 0)
		(void) DirectFunctionCall2(pg_terminate_backend,
								   Int32GetDatum(lease->backend_pid),
								   Int64GetDatum(0));
	le_worker_ensure(true);
	PG_RETURN_INTERVAL_P(left);
}
