/*-------------------------------------------------------------------------
 *
 * detached_api.c
 *		SQL functions for detached candidates, which have no session: any
 *		connection will do for each call.
 *
 * Invariant: the term is the proof of ownership.  A caller that knows it, and
 * acts as the role that stood, may renew the lease or give it back; no other
 * caller is told it, not even one that stands under the same name.
 *
 * As for session candidates (session_api.c), calls are refused inside a
 * transaction block, and wait for LE_WAIT_LIMIT_MS at most.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/api.h"
#include "funcapi.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(le_acquire);
PG_FUNCTION_INFO_V1(le_release);
PG_FUNCTION_INFO_V1(le_transfer_term);
PG_FUNCTION_INFO_V1(le_leave_name);
PG_FUNCTION_INFO_V1(le_is_leader_term);

static int64
term_arg(FunctionCallInfo fcinfo, int n)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("term must not be null")));
	return PG_GETARG_INT64(n);
}

/*
 * The caller must act as the role that the lease was granted to.
 */
static void
check_role(const Lease *lease, const Role *role)
{
	if (!le_role_is_caller(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for the lease of election \"%s\"",
						lease->election),
				 le_call_err_only_role("granted to", role)));
}

/*
 * May the caller, who knows the term, act for its holder?  That must be a
 * detached candidate, and of the caller's role.
 */
void
le_detached_check_holder(const Lease *lease, int64 term, const char *instead)
{
	if (lease->leader != NULL && lease->session_id != 0 &&
		lease->term == term && le_session_alive(lease->session_id))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("election \"%s\" is led by a session in term " INT64_FORMAT,
						lease->election, term),
				 errhint("Call %s in that session.", instead)));
	if (le_lease_is_term(lease, term))
		check_role(lease, &lease->role);
}

/*
 * May the caller, who knows the term, say that its run is done?  The term must
 * have been granted for a run.  If no later one has begun, the row knows for
 * which, also when the lease is over.
 */
static void
check_run(const Lease *lease, int64 term)
{
	if (le_lease_was_term(lease, term))
		check_role(lease, &lease->runs.role);
	else if (le_lease_is_term(lease, term))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("term " INT64_FORMAT " of election \"%s\" was granted for no run",
						term, lease->election),
				 errhint("Name the run in the call that asks for the lease: acquire(election, candidate, run => ...).")));
}

/*
 * The run that is asked for, and how often it may be granted.
 */
static Run
run_args(FunctionCallInfo fcinfo, int first)
{
	Run			run = {.name = NULL};

	if (!PG_ARGISNULL(first))
		run.name = le_arg_name(fcinfo, first, "run");
	if (PG_ARGISNULL(first + 1))
		return run;
	run.attempts = PG_GETARG_INT32(first + 1);
	if (run.name == NULL || run.attempts < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 run.name == NULL ? errmsg("attempts are given, but no run") :
				 errmsg("attempts is out of range: %d", run.attempts),
				 errdetail("It is how often a run may be granted, 1 or more.")));
	return run;
}

/*
 * Ask for the lease, standing as a candidate.
 */
Datum
le_acquire(PG_FUNCTION_ARGS)
{
	Acquisition a = {.is_seat = false};
	BoundedWaits waits;
	Lease	   *lease;

	le_call_check_function("leader_election.acquire()");
	a.who.election = le_arg_name(fcinfo, 0, "election name");
	a.who.candidate = le_arg_name(fcinfo, 1, "candidate name");
	a.who.role = le_role_current();
	le_arg_profile(fcinfo, 2, false, &a.profile);
	a.who.run = run_args(fcinfo, 5);
	a.who.request = PG_ARGISNULL(7) ? NULL : PG_GETARG_UUID_P(7);
	InitMaterializedSRF(fcinfo, 0);
	if (le_lock_is_mine(LOCK_EPOCH))
		return (Datum) 0;		/* this transaction has begun an epoch */

	/*
	 * Most calls find a leader: they need no more than the first of the
	 * tables, and the next of them none.
	 */
	le_store_get();
	if (le_acquire_is_in_vain(&a))
	{
		le_wait_start();
		le_start_ensure_worker(true);
		return (Datum) 0;
	}
	le_call_begin(&waits, a.who.election, LE_TABLES_TO_STAND, RowExclusiveLock);
	a.lease = le_lease_read(a.who.election, NULL);
	a.led = a.lease != NULL &&
		le_lease_state_now(a.lease) == LEASE_LED;
	if (!a.led)
		le_store_lock(LE_TABLES & ~LE_TABLES_TO_STAND, RowExclusiveLock);
	if (!a.led &&
		!le_begin_ensure_epoch(a.lease, true, le_wait_left()))
	{
		le_wait_bounded_end(&waits);
		return (Datum) 0;
	}
	lease = le_acquire_lease(&a);
	if (lease != NULL)
		le_call_return_grant(fcinfo, lease, false);
	else
		le_acquire_note_in_vain(&a);
	le_wait_bounded_end(&waits);
	if (!a.refused)
		le_start_ensure_worker(true);
	return (Datum) 0;
}

/*
 * Is that term over?  A term greater than this server knows may have been
 * granted by a server that was promoted in its place: then only a proof shows
 * that this server is still the one that grants.
 */
bool
le_detached_is_over(const Lease *lease, int64 term)
{
	Proof		proof;

	if (le_lease_is_term(lease, term))
		return false;
	if (term > lease->term &&
		!le_renew_prove(lease, &proof))
		le_wait_unconfirmed(lease->election);
	return true;
}

/*
 * Have the holder of a term give up, under the election lock.  True if it was
 * the present one, or its run was recorded as done.
 */
static bool
give_up(const char *name, GiveUp *how, const char *instead)
{
	BoundedWaits waits;
	Lease	   *lease;
	Settled		settled = SETTLED_NOTHING;
	bool		may_finish = false;
	Turn		turn = {.mode = TURN_QUEUES,.give_up = how};

	le_call_begin(&waits, name, LE_TABLES, RowExclusiveLock);
	turn.election = le_election_get(name);
	turn.lease = lease = le_lease_read(name, NULL);
	if (lease != NULL)
		le_detached_check_holder(lease, how->term, instead);
	if (lease != NULL && how->done)
	{
		check_run(lease, how->term);
		may_finish = le_lease_was_term(lease, how->term);
	}
	if (lease != NULL &&
		(may_finish || !le_detached_is_over(lease, how->term)))
	{
		if (le_lease_state_now(lease) == LEASE_STALE)
			le_start_ensure_worker(true);
		settled = le_turn(name, &turn);
		if (settled == SETTLED_GONE)
			le_election_report_missing(name);
		le_commit_wakes_worker();
	}
	le_wait_bounded_end(&waits);
	le_start_ensure_worker(true);
	return settled == SETTLED_GAVE_UP;
}

Datum
le_release(PG_FUNCTION_ARGS)
{
	GiveUp		how = {.reason = REASON_RESIGNED,.resigns = true};
	char	   *name = le_call_election(fcinfo, "leader_election.release()");

	how.term = term_arg(fcinfo, 1);
	how.hold = le_arg_hold(fcinfo, 2, &how.detail);
	how.done = !PG_ARGISNULL(3) && PG_GETARG_BOOL(3);
	if (how.done)
		how.detail = how.detail == NULL ? "done" : psprintf("done, %s", how.detail);
	PG_RETURN_BOOL(give_up(name, &how, "resign(election)"));
}

Datum
le_transfer_term(PG_FUNCTION_ARGS)
{
	GiveUp		how = {.reason = REASON_TRANSFERRED};
	char	   *name = le_call_election(fcinfo, "leader_election.transfer()");

	how.term = term_arg(fcinfo, 1);
	how.to_candidate = le_arg_name(fcinfo, 2, "candidate name");
	how.detail = psprintf("to %s", how.to_candidate);
	PG_RETURN_BOOL(give_up(name, &how, "transfer(election, to_candidate)"));
}

/*
 * May the caller withdraw this candidate?  It must be detached, and of the
 * caller's role.
 */
static void
check_candidate(const Candidate *c)
{
	if (c->session_id != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("candidate \"%s\" of election \"%s\" is a session",
						c->candidate, c->election),
				 errhint("Call leave(election) in that session.")));
	if (!le_role_is_caller(&c->role))
		le_call_report_not_owner(c->election, c->candidate, &c->role);
}

static void
wait_if(bool may_wait, const char *election)
{
	if (!may_wait)
		le_wait_busy(election);
	le_wait_retry_or_busy(election);
}

/*
 * What is the state of a candidate's lease?  It counts as vacant if another
 * candidate has it.
 * One that is neither vacant nor led is judged by its row, and locked by this
 * transaction from then on: a renewal that was made in time may not have
 * committed yet.  55P03 if it has not, unless this may wait.
 */
static LeaseState
judge_own(const Candidate *c, bool may_wait, bool *has_lease)
{
	for (;;)
	{
		Lease	   *lease = le_lease_read(c->election, NULL);
		LeaseState	state = LEASE_VACANT;

		if (lease != NULL && le_candidate_leads(c, lease))
			state = le_lease_state_now(lease);
		if (*has_lease || state == LEASE_VACANT || state == LEASE_LED)
			return state;
		*has_lease = le_lease_lock(c->election) != NULL;
		if (!*has_lease)
			wait_if(may_wait, c->election);
	}
}

/*
 * Withdraw a detached candidate that does not lead.  (A lease is given back
 * with release(), by a caller that knows its term.)
 */
Datum
le_leave_name(PG_FUNCTION_ARGS)
{
	char	   *name = le_call_election(fcinfo, "leader_election.leave()");
	char	   *candidate;
	BoundedWaits waits;
	Candidate  *c;
	bool		has_lease = false;

	candidate = le_arg_name(fcinfo, 1, "candidate name");
	le_call_begin(&waits, name, LE_TABLE_ELECTION | LE_TABLE_LEASE | LE_TABLE_CANDIDATE, RowExclusiveLock);
	(void) le_election_get(name);
	c = le_candidate_find(name, candidate);
	if (c != NULL && !le_candidate_alive(c))
		c = NULL;
	if (c != NULL)
	{
		check_candidate(c);

		/*
		 * Once we have locked its row, nobody elects the candidate any more.
		 * Wait for a renewal before that, and for nothing with the lease
		 * locked: a call of this candidate may have locked its row, and wait
		 * for the lease.
		 */
		(void) judge_own(c, true, &has_lease);
		while (!le_candidate_lock(c))
			wait_if(!has_lease, name);
		if (judge_own(c, false, &has_lease) == LEASE_LED)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("candidate \"%s\" leads election \"%s\"",
							candidate, name),
					 errhint("Give the lease back with release(election, term) first.")));
		while (!le_candidate_withdraw(c))
			wait_if(!has_lease, name);
		le_commit_wakes_worker();
	}
	le_wait_bounded_end(&waits);
	PG_RETURN_BOOL(c != NULL);
}

/*
 * Is this the present term, held by any candidate?  As is_leader(election), it
 * answers from a committed row, without a wait, and false in doubt, also where
 * this process cannot find out for the first time which incarnation the server
 * is.
 */
Datum
le_is_leader_term(PG_FUNCTION_ARGS)
{
	char	   *name;
	Lease	   *lease;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1) ||
		VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(0)) > LE_NAME_MAX ||
		!le_store_find())
		PG_RETURN_BOOL(false);
	name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	PG_RETURN_BOOL(le_lease_read_committed(le_store.lease_oid, name, &lease) &&
				   lease != NULL && lease->term == PG_GETARG_INT64(1) &&
				   le_incarnation_name_try() != NULL &&
				   le_lease_state_now(lease) == LEASE_LED);
}
