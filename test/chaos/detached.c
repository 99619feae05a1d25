/*-------------------------------------------------------------------------
 *
 * detached.c
 *		Candidates of the chaos run that need no session: acquire(),
 *		acquire_any(), and renew() with the term.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "candidate.h"

#define PERIOD_US		500000	/* of the runs in RUNS_IN */
#define RUNS_IN			"runs"

/*
 * A row of the answer says that the lease is ours; its columns begin with the
 * term, there.
 */
static void
believe_row(Seat *seat, const PGresult *result, int row, int column,
			int64_t asked)
{
	int64_t		ms = number(result, row, column + 1);

	seat->term = number(result, row, column);
	seat->deadline = sent + ms * 1000;
	seat->yielding = strcmp(PQgetvalue(result, row, column + 3), "t") == 0;
	note("g %s %lld %lld %lld %lld %lld", seat->election, (long long) sent,
		 (long long) received, (long long) seat->term, (long long) ms,
		 (long long) asked);
}

static void
believe(Seat *seat, const PGresult *result, int64_t asked)
{
	if (PQntuples(result) > 0)
	{
		believe_row(seat, result, 0, 0, asked);
		return;
	}
	if (asked != 0)
		note("n %s %lld %lld %lld", seat->election, (long long) sent,
			 (long long) received, (long long) asked);
	else
		note("a %s %lld %lld", seat->election, (long long) sent,
			 (long long) received);
	seat->term = 0;
}

/*
 * Stand for all seats of a group, and ask for them.
 */
static void
acquire_any(Seat *first)
{
	PGresult   *result;

	first->next_stand = now_us() + lease_us / 4 + random() % (lease_us / 8);
	result = query("SELECT * FROM leader_election.acquire_any('%s', '%s', %d, %lld)",
				   first->group, name, rank, (long long) progress);
	for (int i = 0; result != NULL && i < PQntuples(result); i++)
	{
		Seat	   *seat = find_seat(PQgetvalue(result, i, 0));

		if (seat != NULL)
			believe_row(seat, result, i, 1, 0);
	}
	if (result != NULL)
		note("a %s/* %lld %lld", first->group, (long long) sent,
			 (long long) received);
	PQclear(result);
}

/*
 * From now on this term is not ours any more, even if the call fails.
 */
static int64_t
step_down(Seat *seat, const char *why)
{
	int64_t		term = seat->term;

	note("r %s %lld %lld %s", seat->election, (long long) now_us(),
		 (long long) term, why);
	seat->term = 0;
	return term;
}

/*
 * Say that the run of this term is done, maybe when the lease is over.
 */
static void
finish_run(Seat *seat, int64_t term)
{
	PGresult   *result = query("SELECT leader_election.release('%s', %lld, done => true)",
							   seat->election, (long long) term);

	if (result != NULL)
		note("d %s %lld %lld %lld %s %s", seat->election, (long long) sent,
			 (long long) received, (long long) term, seat->run,
			 warned ? "unconfirmed" :
			 strcmp(PQgetvalue(result, 0, 0), "t") == 0 ? "recorded" : "refused");
	if (result != NULL && strcmp(PQgetvalue(result, 0, 0), "t") != 0)
		seat->run_term = 0;		/* it will be refused for ever */
	PQclear(result);
}

/*
 * Ask for the lease, where runs are granted for the one of this moment.
 */
static PGresult *
acquire(Seat *seat)
{
	PGresult   *result;
	char		run[20];
	const char *beside = own_notification(100);

	if (strcmp(seat->election, RUNS_IN) != 0)
		return query("SELECT * FROM leader_election.acquire('%s', '%s', %d, %lld)%s",
					 seat->election, name, rank, (long long) progress, beside);

	/* Some come late, as if their clocks were wrong. */
	snprintf(run, sizeof(run), "%012lld",
			 (long long) (now_us() / PERIOD_US - random() % 6));
	result = query("SELECT * FROM leader_election.acquire('%s', '%s', %d, %lld, "
				   "run => '%s', attempts => 3)%s",
				   seat->election, name, rank, (long long) progress, run,
				   beside);
	if (result == NULL || PQntuples(result) == 0)
		return result;
	snprintf(seat->run, sizeof(seat->run), "%s", run);
	seat->run_term = number(result, 0, 0);
	note("b %s %lld %lld %lld %s", seat->election, (long long) sent,
		 (long long) received, (long long) seat->run_term, run);
	return result;
}

static void
lead_detached(Seat *seat)
{
	const char *other;

	use_resource(seat);
	if (chance(120))
		write_fenced(seat, true);
	if (conn == NULL || calm)
		return;
	if (seat->run_term != 0 && chance(100))
		finish_run(seat, step_down(seat, "done"));
	else if (chance(seat->yielding ? 100 : 6))
	{
		const char *beside = own_notification(500);

		RUN("SELECT leader_election.release('%s', %lld)%s", seat->election,
			(long long) step_down(seat, "release"), beside);
	}
	else if (chance(3) && *(other = choose_other(seat)))
		RUN("SELECT leader_election.transfer('%s', %lld, '%s')", seat->election,
			(long long) step_down(seat, "transfer"), other);
}

void
tick_detached(void)
{
	for (int i = 0; i < nseats; i++)
	{
		Seat	   *seat = &seats[i];
		int64_t		asked;
		PGresult   *result;

		if (conn != NULL && seat->number == 1 && now_us() >= seat->next_stand)
			acquire_any(seat);
		if (conn == NULL)
			return;
		asked = seat->term;
		if (now_us() >= seat->next_call && now_us() >= seat->hangs_until &&
			(seat->group == NULL || seat->term != 0 ||
			 (seat->number <= LASTING_SEATS && chance(10))))
		{
			seat->next_call = now_us() + lease_us / 4 + random() % (lease_us / 8);
			if (asked != 0)
				result = query("SELECT * FROM leader_election.renew('%s', %lld, %lld%s)",
							   seat->election, (long long) asked,
							   (long long) ++progress, new_metadata(50));
			else
				result = acquire(seat);
			if (result != NULL)
				believe(seat, result, asked);
			PQclear(result);
			if (seat->term != 0 && !calm && chance(20))
				seat->hangs_until = now_us() + lease_us * 2;
		}
		if (seat->term != 0 && now_us() < seat->deadline)
			lead_detached(seat);
		else if (seat->term == 0 && seat->run_term != 0 && chance(20))
			finish_run(seat, seat->run_term);
		else if (seat->term == 0 && !calm && chance(1))
		{
			note("v %s %lld", seat->election, (long long) now_us());
			RUN("SELECT leader_election.leave('%s', '%s')", seat->election, name);
		}
	}
}
