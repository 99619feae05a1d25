/*-------------------------------------------------------------------------
 *
 * session.c
 *		Candidates of the chaos run that stand by their session: join(),
 *		join_group() and campaign(); the worker renews, or the session itself.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "candidate.h"

static void
note_true(const Seat *seat, int64_t term)
{
	note("q %d %s %lld %lld %lld", serial, seat->election, (long long) sent,
		 (long long) received, (long long) term);
}

/*
 * Stand for all seats of a group.  The answer says which of them it leads.
 */
static void
join_group(const char *group, const char *profile)
{
	PGresult   *result = query("SELECT * FROM leader_election.join_group('%s', '%s', %s)",
							   group, name, profile);

	for (int i = 0; result != NULL && i < PQntuples(result); i++)
	{
		const Seat *seat = find_seat(PQgetvalue(result, i, 0));

		if (seat != NULL)
			note_true(seat, number(result, i, 1));
	}
	note("j %d %s/* %lld %lld %s", serial, group, (long long) sent,
		 (long long) now_us(), sqlstate);
	PQclear(result);
}

static void
note_joined(const Seat *seat)
{
	note("j %d %s %lld %lld %s", serial, seat->election, (long long) sent,
		 (long long) now_us(), sqlstate);
}

/*
 * Another call has been answered that has to tell of a reset.
 */
static void
note_answered(const Seat *seat, const char *outcome)
{
	if (conn != NULL)
		note("k %d %s %lld %s %s", serial, seat->election, (long long) received,
			 sqlstate, outcome);
}

/*
 * Stand, and now and then wait for a while until elected.
 */
static void
join(const Seat *seat, bool manual)
{
	char		profile[200];
	PGresult   *result;
	int64_t		term;

	snprintf(profile, sizeof(profile),
			 "rank => %d, progress => %lld, auto_renew => %s",
			 rank, (long long) progress, manual ? "false" : "true");
	if (seat->group != NULL)
	{
		if (!chance(50))
		{
			join_group(seat->group, profile);
			return;
		}
		seat += random() % LASTING_SEATS;
	}
	if (pressed() && chance(50))
	{
		join_nested(seat->election, name);
		if (strcmp(sqlstate, "LE006") == 0)
			note_joined(seat);
	}
	if (calm || !chance(30) || getenv("CHAOS_NO_CAMPAIGN") != NULL)
	{
		const char *beside = own_notification(100);

		RUN("SELECT leader_election.join('%s', '%s', %s)%s",
			seat->election, name, profile, beside);
		note_joined(seat);
		return;
	}
	note("u %s %lld", seat->election, (long long) now_us());
	result = query("CALL leader_election.campaign('%s', '%s', timeout => '%ld ms', %s)",
				   seat->election, name, random() % 1500, profile);
	term = number(result, 0, 0);
	note_answered(seat, term != 0 ? "elected" : "waited");
	if (term != 0)
		note_true(seat, term);
	PQclear(result);
}

/*
 * The next one to stand for: each election, and each group once in a turn.
 */
static Seat *
next_to_stand(void)
{
	static int	turn = 0;
	Seat	   *seat;

	do
		seat = &seats[turn++ % nseats];
	while (seat->number > 1);
	return seat;
}

/*
 * Note how long the lease lasts.  remaining_ms may be less: where the network is
 * cut, the server may keep the session for less than that.
 */
static void
renew_session(const Seat *seat)
{
	PGresult   *result =
		query("SELECT * FROM leader_election.renew('%s'%s) g, LATERAL (SELECT greatest("
			  "remaining_ms, (extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint)) l",
			  seat->election, new_metadata(50));

	if (result == NULL || PQntuples(result) == 1)
		note("m %d %s %lld %lld %lld", serial, seat->election,
			 (long long) received,
			 (long long) (result == NULL ? seat->term : number(result, 0, 0)),
			 (long long) (result == NULL ? -1 : number(result, 0, 4)));
	note_answered(seat, "renewed");
	PQclear(result);
}

static void
lead_session(Seat *seat, bool manual)
{
	const char *other;

	use_resource(seat);
	if (manual && now_us() >= seat->next_call && now_us() >= seat->hangs_until)
	{
		renew_session(seat);
		seat->next_call = now_us() + lease_us / 4;
		if (!calm && chance(50))
			seat->hangs_until = now_us() + lease_us * 2;
	}
	else if (!manual && chance(10))
	{
		RUN("SELECT * FROM leader_election.renew('%s'%s)", seat->election,
			new_metadata(1000));
		note_answered(seat, "renewed");
	}
	if (chance(150))
		write_fenced(seat, false);
	if (calm)
		return;
	if (chance(6))
	{
		const char *beside = own_notification(500);

		RUN("SELECT leader_election.resign('%s')%s", seat->election, beside);
	}
	else if (chance(3) && *(other = choose_other(seat)))
		RUN("SELECT leader_election.transfer('%s', '%s')", seat->election, other);
	else if (chance(2))
	{
		note("v %s %lld", seat->election, (long long) now_us());
		RUN("SELECT leader_election.leave('%s')", seat->election);
	}
	else if (chance(1))
	{
		note("v all %lld", (long long) now_us());
		RUN("SELECT leader_election.leave_all()");
	}
	else if (chance(1))
		RUN("DISCARD ALL");
	else if (chance(1))
		RUN("SELECT pg_advisory_unlock_all()");
}

void
tick_session(bool manual)
{
	static int64_t next_join = 0;
	PGresult   *result;

	reset_session();

	/*
	 * One at a time: where nothing is confirmed, each may take a second.  A
	 * calm session keeps its lease by that without a worker, too: it joins
	 * three times per lease.
	 */
	if (now_us() >= next_join)
	{
		next_join = now_us() + (calm ? lease_us / 5 + random() % (lease_us / 10) :
								(300000 + random() % 300000) / nseats);
		join(next_to_stand(), manual);
	}
	result = query("SELECT leader_election.is_leader(e), leader_election.term(e) "
				   "FROM unnest('{%s}'::text[]) e", all_elections);
	for (int i = 0; i < nseats; i++)
	{
		seats[i].term = 0;
		if (result == NULL || strcmp(PQgetvalue(result, i, 0), "t") != 0 ||
			PQgetisnull(result, i, 1))
			continue;
		seats[i].term = number(result, i, 1);
		note_true(&seats[i], seats[i].term);
	}
	PQclear(result);
	for (int i = 0; i < nseats; i++)
	{
		if (conn != NULL && seats[i].term != 0)
			lead_session(&seats[i], manual);
	}
}
