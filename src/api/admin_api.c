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

#include "api/api.h"
#include "miscadmin.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(le_create_election);
PG_FUNCTION_INFO_V1(le_alter_election);
PG_FUNCTION_INFO_V1(le_set_run_done);
PG_FUNCTION_INFO_V1(le_drop_election);
PG_FUNCTION_INFO_V1(le_request_yield);

/*
 * Make an election, owned by the caller.
 */
Datum
le_create_election(PG_FUNCTION_ARGS)
{
	char	   *name;
	Election	election;
	BoundedWaits waits;

	le_call_check("leader_election.create_election()", false);
	name = le_arg_name(fcinfo, 0, "election name");
	election = le_election_new(name, le_role_current());
	(void) le_arg_settings(fcinfo, le_election_settings, false, NULL, &election);
	le_call_begin(&waits, name, LE_TABLE_ELECTION | LE_TABLE_LEASE |
				  LE_TABLE_EPOCH | LE_TABLE_ANNOUNCED, RowExclusiveLock);
	while (!le_create(&election, false))
	{
		if (le_election_read(name) != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("election \"%s\" already exists", name)));
		le_wait_retry_or_busy(name);
	}
	le_wait_bounded_end(&waits);
	PG_RETURN_VOID();
}

/*
 * 42809 if the election, whose lock is held, is a seat of a group: the group's
 * settings are those of all its seats.
 */
static void
check_no_seat(const Election *election, const char *instead)
{
	if (election->group != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("election \"%s\" is a seat of group \"%s\"",
						election->name, election->group),
				 errhint("Use %s.", instead)));
}

/*
 * If an epoch has to begin, that is the worker's task.  See to it that there
 * is a worker: otherwise a call that is refused until the epoch has begun
 * would be refused for ever.
 */
void
le_admin_see_to_epoch(const char *name)
{
	Lease	   *lease;

	(void) le_election_get(name);
	lease = le_lease_read(name, NULL);
	if (lease == NULL ||
		!le_epoch_is_missing(le_epoch_read(), le_lease_is_stale(lease)))
		return;
	if (!le_start_ensure_worker(true))
		le_wait_no_epoch(name);
	le_wake_workers(MyDatabaseId);
}

/*
 * Change those settings of the election, which the caller owns, that the call
 * gives (see le_arg_settings()).  No lease is granted or renewed meanwhile:
 * where a standby has the new settings, it has every lease that was granted by
 * the old ones.
 */
void
le_admin_alter_owned(const char *name, FunctionCallInfo fcinfo, bool of_group,
					 const Election *checked)
{
	Lease	   *lease;
	Election   *election;
	Election	altered;

	le_admin_see_to_epoch(name);
	election = le_call_lock_owned(name, &lease);
	if (!of_group)
		check_no_seat(election, "leader_election.alter_group()");
	altered = *election;
	(void) le_arg_settings(fcinfo, le_election_settings, of_group, checked,
						   &altered);

	/*
	 * During the grace an old leader may still lead elsewhere by the longer
	 * lease: do not shorten the wait for its end.
	 */
	if (altered.lease_duration < election->lease_duration &&
		le_lease_grace(lease, election->lease_duration,
					   le_epoch_read()) > le_clock())
		le_wait_busy(name);
	while (!le_election_write(&altered))
		le_wait_retry_or_busy(name);
}

/*
 * Change the settings of an election.  That locks the lease row: while a
 * transaction sat idle with that lock, nobody could renew the lease.
 */
Datum
le_alter_election(PG_FUNCTION_ARGS)
{
	char	   *name = le_call_election(fcinfo, "leader_election.alter_election()");
	Election	checked = {0};
	BoundedWaits waits;

	(void) le_arg_settings(fcinfo, le_election_settings, false, NULL,
						   &checked);
	le_call_begin(&waits, name, LE_TABLES, RowExclusiveLock);
	(void) le_call_get_owned(name);
	le_call_check_new_owner(&checked.owner);
	le_admin_alter_owned(name, fcinfo, false, &checked);
	le_commit_wakes_worker();
	le_wait_bounded_end(&waits);
	PG_RETURN_VOID();
}

/*
 * Say which run of an election was the last one that is done; NULL: none was.
 */
Datum
le_set_run_done(PG_FUNCTION_ARGS)
{
	char	   *name = le_call_election(fcinfo, "leader_election.set_run_done()");
	const char *run;
	BoundedWaits waits;
	Lease	   *lease;

	run = PG_ARGISNULL(1) ? NULL : le_arg_name(fcinfo, 1, "run");
	le_call_begin(&waits, name, LE_TABLES, RowExclusiveLock);
	(void) le_call_lock_owned(name, &lease);
	le_runs_set_done(lease, run);
	le_wait_bounded_end(&waits);
	PG_RETURN_VOID();
}

/*
 * Drop an election that nobody leads.
 */
Datum
le_drop_election(PG_FUNCTION_ARGS)
{
	char	   *name;
	BoundedWaits waits;
	Election   *election;

	le_call_check("leader_election.drop_election()", false);
	name = le_arg_name(fcinfo, 0, "election name");
	le_call_begin(&waits, name, LE_TABLES, RowExclusiveLock);
	(void) le_call_get_owned(name);
	le_admin_see_to_epoch(name);

	/*
	 * Another call may hold the name lock and want the election lock. Release
	 * the election lock before waiting for the name, or neither gets on.
	 */
	for (;;)
	{
		while (!le_wait_for_election(name))
			le_wait_retry_or_busy(name);
		if (le_lock_name(name, NULL, ExclusiveLock))
			break;
		le_lock_release_mutex(LOCK_ELECTION, name);
		le_wait_retry_or_busy(name);
	}

	/*
	 * It may have been dropped, and made again, as a seat of a group, before
	 * we had the locks.
	 */
	election = le_call_get_owned(name);
	check_no_seat(election, "leader_election.drop_group(), or leader_election.alter_group() with fewer seats");
	while (!le_drop_locked(election))
		le_wait_retry_or_busy(name);
	le_wait_bounded_end(&waits);
	PG_RETURN_VOID();
}

/*
 * The candidate that an operator has named as the next leader.
 */
static const Candidate *
named(const Election *election, const char *to)
{
	View	   *view = le_view_read(election, NULL, NULL, le_clock(), NULL);

	return le_view_named(view, to)->candidate;
}

static bool
is_paused(const Election *election)
{
	int64		until;

	return le_pause_now(election, le_epoch_read(), &until) != NULL;
}

/*
 * Nobody leads the election, which was found to be paused: keep it for this
 * candidate.  That is how an operator fills it by hand.  *left: how long
 * it takes at least until the candidate may lead.  False: the election has a
 * leader by now, or is paused no more.
 */
static bool
reserve_paused(const char *name, const char *to, int64 *left)
{
	Turn		turn = {.mode = TURN_QUEUES};
	Incarnation *inc;
	Election   *election;
	Lease	   *lease;

	/* Its last leader may have gone, and nobody have noticed yet. */
	le_admin_see_to_epoch(name);
	lease = le_lease_read(name, NULL);
	if (lease != NULL && lease->leader != NULL)
		(void) le_turn(name, &turn);
	le_turn_lock(le_election_get(name));
	election = le_call_lock_owned(name, &lease);
	inc = le_epoch_read();
	if (!is_paused(election))
		return false;
	if (le_lease_grace(lease, election->lease_duration, inc) > le_clock())
		le_wait_busy(name);
	if (lease->leader != NULL)
		return false;
	le_yield_reserve(election, lease, inc, named(election, to));
	*left = Max(le_lease_not_before(lease, inc) - le_clock(), 0);
	return true;
}

/*
 * Lock the lease, if the election is led; NULL: it is not.  A lease whose
 * deadline has passed may have been renewed in time, by a transaction that has
 * not committed yet: then its row is locked.
 *
 * A caller that names a candidate may reserve the election for it: if that is
 * a seat of a group, this takes the group lock, too, and keeps it only with the
 * lease.  A caller that is going to wait for the election lock must not have
 * locked the row: to it, a lease that ends in this very moment is busy.
 */
static Lease *
lock_led(const char *name, const Election *election, bool names, bool will_wait)
{
	for (;;)
	{
		Lease	   *lease;
		LeaseState	state;

		while (names && !le_cap_lock(election, false))
			le_wait_retry_or_busy(name);
		lease = le_lease_read(name, NULL);
		state = lease == NULL ? LEASE_VACANT :
			le_lease_state_now(lease);
		if (state != LEASE_LED && (state != LEASE_EXPIRED || will_wait))
			break;
		lease = le_lease_lock(name);
		if (lease != NULL && le_lease_state_now(lease) == LEASE_LED)
			return lease;
		if (lease != NULL && will_wait)
			le_wait_busy(name);
		if (lease != NULL)
			break;
		if (names)
			le_cap_unlock(election);
		le_wait_retry_or_busy(name);
	}
	if (names)
		le_cap_unlock(election);
	return NULL;
}

/*
 * Ask the leader, whose lease is locked, to yield to this candidate (NULL: to
 * any), unless an operator has asked it just that before.  (A candidate of that
 * name whom it was asked to yield to may have been another role's.)
 */
static void
ask_leader(const char *name, Lease *lease, const char *to)
{
	Election   *election = le_call_get_owned(name);
	const Candidate *successor = NULL;

	if (to != NULL)
		successor = named(election, to);
	if (successor != NULL && le_candidate_leads(successor, lease))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("candidate \"%s\" leads election \"%s\" already",
						to, name)));
	if (!lease->yielding || !lease->yield_ordered ||
		lease->yield_cause != NULL ||
		(successor == NULL ? lease->successor != NULL :
		 !le_candidate_succeeds(successor, lease)))
		le_yield_ask(election, lease, true, successor, NULL);
}

/*
 * Ask the leader of an election to yield.  Returns how long that may take;
 * NULL if nobody leads, and no paused election is filled.
 */
Datum
le_request_yield(PG_FUNCTION_ARGS)
{
	char	   *name = le_call_election(fcinfo, "leader_election.request_yield()");
	char	   *to = NULL;
	bool		terminate = !PG_ARGISNULL(2) && PG_GETARG_BOOL(2);
	bool		may_reserve;
	BoundedWaits waits;
	Election   *election;
	Lease	   *lease;
	int64		left;

	if (!PG_ARGISNULL(1))
		to = le_arg_name(fcinfo, 1, "candidate name");
	le_call_begin(&waits, name, LE_TABLES, RowExclusiveLock);
	election = le_call_get_owned(name);

	may_reserve = to != NULL && is_paused(election);
	lease = lock_led(name, election, to != NULL, may_reserve);
	if (lease == NULL && !may_reserve)
	{
		le_wait_bounded_end(&waits);
		PG_RETURN_NULL();
	}
	if (lease != NULL)
	{
		ask_leader(name, lease, to);
		left = Max(lease->deadline_mono - le_clock(), 0);
	}
	else if (!reserve_paused(name, to, &left))
		le_wait_busy(name);
	le_wait_bounded_end(&waits);

	/* While its session lives, the process ID is that of no other process. */
	if (terminate && lease != NULL && lease->session_id != 0 &&
		le_session_alive(lease->session_id))
		(void) DirectFunctionCall2(pg_terminate_backend,
								   Int32GetDatum(lease->backend_pid),
								   Int64GetDatum(0));
	le_start_ensure_worker(true);
	PG_RETURN_DATUM(le_clock_interval(left));
}
