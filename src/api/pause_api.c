/*-------------------------------------------------------------------------
 *
 * pause_api.c
 *		SQL functions that pause elections: see pause.c.
 *
 * An election's own pause is its owner's, or a superuser's; that of all
 * elections is a superuser's.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/api.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(le_pause_election);
PG_FUNCTION_INFO_V1(le_resume_election);
PG_FUNCTION_INFO_V1(le_pause_all);
PG_FUNCTION_INFO_V1(le_resume_all);

#define SHORTEST_PAUSE	1000	/* 1 ms */

Datum
le_pause_election(PG_FUNCTION_ARGS)
{
	Pause		pause = {.resumes_for = 0};
	char	   *name = le_call_election(fcinfo, "leader_election.pause_election()");
	BoundedWaits waits;
	Election   *election;
	Lease	   *lease;

	pause.reason = le_arg_text(fcinfo, 1, "reason", 0, LE_LONGEST_REASON);
	if (!PG_ARGISNULL(2))
		pause.resumes_for = le_arg_interval(fcinfo, 2, "duration",
											SHORTEST_PAUSE, LE_LONGEST_PAUSE);
	pause.vacates = !PG_ARGISNULL(3) && PG_GETARG_BOOL(3);
	pause.by = GetUserNameFromId(GetUserId(), false);
	le_call_begin(&waits, name, LE_TABLES, RowExclusiveLock);
	le_start_ensure_worker(true);	/* which may wait: before there are locks */
	election = le_call_lock_owned(name, pause.vacates ? &lease : NULL);
	pause.at = GetCurrentTimestamp();
	if (pause.resumes_for > 0)
	{
		pause.resumes_at = pause.at + pause.resumes_for;
		pause.resumes_mono = le_clock() + pause.resumes_for;
	}
	pause.incarnation = le_incarnation_name();
	election->pause = &pause;
	while (!le_election_write(election))
		le_wait_retry_or_busy(name);
	if (pause.vacates && le_lease_state_now(lease) == LEASE_LED)
		le_yield_ask_for_pause(election, lease);
	le_commit_wakes_worker();
	le_wait_bounded_end(&waits);
	PG_RETURN_VOID();
}

Datum
le_resume_election(PG_FUNCTION_ARGS)
{
	char	   *name = le_call_election(fcinfo, "leader_election.resume_election()");
	BoundedWaits waits;
	Election   *election;
	const Pause *pause;
	bool		paused;

	le_call_begin(&waits, name, LE_TABLES, RowExclusiveLock);
	le_start_ensure_worker(true);
	election = le_call_lock_owned(name, NULL);
	pause = election->pause;
	paused = le_pause_in_force(pause, le_epoch_read());
	election->pause = NULL;
	while (pause != NULL && !le_election_write(election))
		le_wait_retry_or_busy(name);
	le_commit_wakes_worker();
	le_wait_bounded_end(&waits);
	PG_RETURN_BOOL(paused);
}

static void
check_superuser(const char *call)
{
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to call %s", call),
				 errhint("The owner of an election pauses it with leader_election.pause_election().")));
}

/*
 * Write the pause of all elections (NULL: none).  True if there was one.
 */
static bool
write_pause_all(const Pause *pause)
{
	BoundedWaits waits;
	bool		was;

	le_call_begin(&waits, LE_EVERYWHERE, LE_TABLE_PAUSE_ALL, RowExclusiveLock);
	while (!le_pause_all_write(pause, &was))
		le_wait_retry_or_busy(LE_EVERYWHERE);
	le_commit_durably();
	le_commit_wakes_worker();
	le_wait_bounded_end(&waits);
	return was;
}

Datum
le_pause_all(PG_FUNCTION_ARGS)
{
	Pause		pause = {.resumes_for = 0};

	le_call_check_function("leader_election.pause_all()");
	check_superuser("leader_election.pause_all()");
	pause.reason = le_arg_text(fcinfo, 0, "reason", 0, LE_LONGEST_REASON);
	pause.by = GetUserNameFromId(GetUserId(), false);
	pause.at = GetCurrentTimestamp();
	(void) write_pause_all(&pause);
	PG_RETURN_VOID();
}

Datum
le_resume_all(PG_FUNCTION_ARGS)
{
	bool		was;

	le_call_check_function("leader_election.resume_all()");
	check_superuser("leader_election.resume_all()");
	was = write_pause_all(NULL);
	le_start_ensure_worker(true);
	PG_RETURN_BOOL(was);
}
