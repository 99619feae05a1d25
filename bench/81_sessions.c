/*-------------------------------------------------------------------------
 *
 * 81_sessions.c
 *		Growth with the number of elections in which one session stands: how
 *		long its joins take, and how long after its death another session leads
 *		them all; and the view that shows their candidates.
 *
 * For "race" the takeover is compared with as many commits of one row each, by
 * one client, in the same run.  Meanwhile a session leads an unrelated election
 * with a lease of 300 ms: it must not lose it.
 *
 * In an election of strategy "spread" that another candidate joins, the leader
 * is asked for a yield: the leases are so long that none ends for that.
 *
 * What takes more than a minute is given up, and counts as that; a takeover by
 * "race", when it has taken four times as long as the commits.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crowd.h"

#define LIMIT_MS		60000
#define TRIALS			3		/* but one where that takes too long */
#define LARGEST			10000
#define JOINS_TARGET_S	3.0
#define SPREAD_TARGET_S 5.0
#define RACE_TARGET		1.5

static PGconn *monitor;
static const int sizes[] = {100, 1000, LARGEST};

#define NSIZES (int) (sizeof(sizes) / sizeof(sizes[0]))

static Growth joins = {
	.name = "spread-joins", .title = "spread: joins by one session",
	.unit = "ms", .of = "elections"
};
static Growth takeovers = {
	.name = "spread-takeovers", .title = "spread: taken over from one session",
	.unit = "ms", .of = "elections"
};
static Growth view = {
	.name = "spread-view", .title = "spread: the view candidates",
	.unit = "ms", .of = "elections with two candidates"
};
static Growth race_takeovers = {
	.name = "race-takeovers", .title = "race: taken over from one session",
	.unit = "ms", .of = "elections"
};
static Growth commits = {
	.name = "bare-commits", .title = "bare commits of one row",
	.unit = "ms", .of = "rows"
};
static Sample lost;				/* terms of the unrelated lease */
static bool race_given_up = false;

/*
 * Returns whether it was done in time.
 */
static bool
add_value(Growth *growth, int n, double ms, int limit_ms)
{
	if (ms < 0)
		report_note("  %s, %d: given up after %d s", growth->title, n,
					limit_ms / 1000);
	add_point(growth, n, ms < 0 ? limit_ms : ms);
	return ms >= 0;
}

static double
time_view(void)
{
	double		start = now_us();
	PGresult   *result;
	double		ms;

	run(monitor, "SET statement_timeout = %d", LIMIT_MS);
	result = PQexec(monitor, "SELECT count(position) "
					"FROM leader_election.candidates");
	ms = PQresultStatus(result) == PGRES_TUPLES_OK ?
		(now_us() - start) / 1000 : -1;
	PQclear(result);
	run(monitor, "RESET statement_timeout");
	return ms;
}

/*
 * One session leads n elections, another one stands in all of them; the first
 * one dies.  False: that was given up.
 */
static bool
spread_once(int n)
{
	PGconn	   *first;
	PGconn	   *second;
	bool		in_time;

	forget_everything(monitor);
	make_crowd(monitor, 1, n, "spread", "1 hour");
	first = new_connection("first");
	second = new_connection("second");
	in_time = add_value(&joins, n, join_crowd(first, "first", 1, n, LIMIT_MS),
						LIMIT_MS);
	if (in_time)
		in_time = join_crowd(second, "second", 1, n, LIMIT_MS) >= 0;
	if (in_time)
		in_time = add_value(&view, n, time_view(), LIMIT_MS);
	die_suddenly(first);
	if (in_time)
		in_time = add_value(&takeovers, n,
							await_crowd(monitor, "second", n, LIMIT_MS),
							LIMIT_MS);
	die_suddenly(second);
	return in_time;
}

static double
time_commits(int n)
{
	const char *values[1];
	char		id[20];
	double		start;

	values[0] = id;
	start = now_us();
	for (int i = 1; i <= n; i++)
	{
		PGresult   *result;

		snprintf(id, sizeof(id), "%d", i);
		result = PQexecPrepared(monitor, "commit", 1, values, NULL, NULL, 0);
		if (PQresultStatus(result) != PGRES_COMMAND_OK)
			die("%s", PQerrorMessage(monitor));
		PQclear(result);
	}
	return (now_us() - start) / 1000;
}

/*
 * The leader of n elections dies, and the second session takes over.
 */
static void
race(int n)
{
	PGconn	   *leader = new_connection("leader 0");
	PGconn	   *unrelated = new_connection("unrelated");

	forget_everything(monitor);
	make_crowd(monitor, 1, n, "race", "15 s");
	run(monitor, "SELECT leader_election.create_election('unrelated', "
		"lease_duration => '300 ms')");
	wait_for(unrelated, "SELECT leader_election.join('unrelated', 'unrelated') "
			 "IS NOT NULL");
	(void) join_crowd(leader, "leader 0", 1, n, 0);
	(void) await_crowd(monitor, "leader 0", n, LIMIT_MS);
	for (int i = 1; i <= TRIALS; i++)
	{
		char		name[20];
		PGconn	   *next;
		double		commit_ms;
		int			limit_ms;

		snprintf(name, sizeof(name), "leader %d", i);
		next = new_connection(name);
		(void) join_crowd(next, name, 1, n, 0);
		commit_ms = time_commits(n);
		add_point(&commits, n, commit_ms);
		limit_ms = (int) (4 * commit_ms);
		die_suddenly(leader);
		if (!add_value(&race_takeovers, n,
					   await_crowd(monitor, name, n, limit_ms), limit_ms))
			race_given_up = true;
		(void) await_crowd(monitor, name, n, LIMIT_MS);
		leader = next;
	}
	add(&lost, ask_number(monitor, "SELECT term - 1 FROM leader_election.lease "
						  "WHERE election = 'unrelated'"));
	PQfinish(leader);
	PQfinish(unrelated);
}

/*
 * Only what was measured at the largest size has a verdict.
 */
static Against
within(const Growth *growth, double seconds)
{
	int			last = growth->npoints - 1;

	return (Against) {
		.target = text("%d in <= %.0f s", LARGEST, seconds),
		.met = growth->sizes[last] == LARGEST &&
			median(&growth->samples[last]) <= seconds * 1000
	};
}

int
main(void)
{
	double		ratio;
	bool		in_time = true;

	monitor = new_connection("monitor");
	run(monitor, "CREATE TABLE bench_row AS SELECT id, 0 AS n "
		"FROM generate_series(1, %d) id", LARGEST);
	run(monitor, "ALTER TABLE bench_row ADD PRIMARY KEY (id), "
		"SET (fillfactor = 50)");
	run(monitor, "VACUUM FULL bench_row");
	PQclear(PQprepare(monitor, "commit",
					  "UPDATE bench_row SET n = n + 1 WHERE id = $1", 0, NULL));

	for (int i = 0; i < NSIZES; i++)
		race(sizes[i]);
	for (int i = 0; i < NSIZES && in_time; i++)
	{
		for (int trial = 0; trial < TRIALS && in_time; trial++)
			in_time = spread_once(sizes[i]);
	}
	run(monitor, "DROP TABLE bench_row");

	ratio = last_to_last(&race_takeovers, &commits);
	report_growth(&commits, NO_FLOOR);
	report_growth(&race_takeovers, (Against) {
		.floor = commits.title, .ratio = ratio,
		.target = text("ratio <= %.1f", RACE_TARGET),
		.met = ratio <= RACE_TARGET && !race_given_up
	});
	report("race: unrelated leases of 300 ms lost", "", &lost, (Against) {
		.target = "max = 0", .met = maximum(&lost) == 0
	});
	report_growth(&joins, within(&joins, JOINS_TARGET_S));
	if (takeovers.npoints > 0)
		report_growth(&takeovers, within(&takeovers, SPREAD_TARGET_S));
	if (view.npoints > 0)
		report_growth(&view, (Against) {
			.target = "exponent <= 1.2", .met = exponent(&view) <= 1.2
		});
	PQfinish(monitor);
	return 0;
}
