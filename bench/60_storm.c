/*-------------------------------------------------------------------------
 *
 * 60_storm.c
 *		Elections beside a storm of notifications in another database.
 *
 * PostgreSQL lets commits that NOTIFY go one at a time, in the whole server.
 * Here 30 clients of another database do INSERT and NOTIFY without a pause,
 * and each commit takes 50 ms (commit_delay = 50000, commit_siblings = 0).
 * Whoever needs their lock waits for about 30 such commits.
 *
 * Blocks with the storm and without it alternate, at the same commit_delay.  In
 * each, takeover, transfer(), resign(), and cycles of acquire() and release()
 * are timed.  What is refused as busy is tried again; what has not come about
 * after 3 s counts as 3 s, is told at the end, and is not tried again in that
 * block.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "contest.h"

#define COMMIT_DELAY	"50000" /* microseconds */
#define STORM_CLIENTS	30
#define STORM_DATABASE	"bench_storm"
#define BLOCKS			3		/* of each */
#define TRIALS			8		/* of each measure, in a block */
#define LIMIT_MS		3000
#define TARGET			2.0

enum
{
	TAKEOVER, TRANSFER, RESIGN, CYCLE, NMEASURES
};

static const char *const names[] = {
	"takeover", "transfer()", "resign(), and elected again",
	"acquire(), release()"
};

static PGconn *monitor;
static PGconn *one;
static PGconn *two;
static Contest contests[TRIALS];
static char seats[TRIALS][20];
static Sample ms[2][NMEASURES]; /* without the storm; with it */
static int	given_up[2][NMEASURES];
static Sample storm_rate;

/*
 * The storm, in a process of its own.
 */
static int
storm(void)
{
	PGconn	   *conns[STORM_CLIENTS];
	struct pollfd fds[STORM_CLIENTS + 1];

	for (int i = 0; i < STORM_CLIENTS; i++)
	{
		conns[i] = new_connection_to(STORM_DATABASE, "storm");
		fds[i].fd = PQsocket(conns[i]);
		fds[i].events = POLLIN;
	}
	fds[STORM_CLIENTS].fd = STDIN_FILENO;
	fds[STORM_CLIENTS].events = POLLIN;
	tell_parent();
	for (;;)
	{
		for (int i = 0; i < STORM_CLIENTS; i++)
		{
			PGresult   *result;

			if (!PQconsumeInput(conns[i]))
				die("storm: %s", PQerrorMessage(conns[i]));
			if (PQisBusy(conns[i]))
				continue;
			while ((result = PQgetResult(conns[i])) != NULL)
			{
				if (PQresultStatus(result) == PGRES_FATAL_ERROR)
					die("storm: %s", PQerrorMessage(conns[i]));
				PQclear(result);
			}
			/* Several statements in one string are one transaction. */
			if (!PQsendQuery(conns[i], "INSERT INTO t DEFAULT VALUES; "
							 "NOTIFY storm"))
				die("storm: %s", PQerrorMessage(conns[i]));
		}
		if (poll(fds, STORM_CLIENTS + 1, -1) > 0 &&
			fds[STORM_CLIENTS].revents != 0)
			_exit(0);
	}
}

static double
storm_commits(void)
{
	return ask_number(monitor, "SELECT count(*) FROM pg_stat_activity "
					  "WHERE datname = '" STORM_DATABASE "' "
					  "AND state = 'active'");
}

static double
storm_inserted(PGconn *conn)
{
	return ask_number(conn, "SELECT last_value FROM t_id_seq");
}

/*
 * Repeat a statement until it returns a value that is not "false", for as long
 * as that may take; returns the milliseconds, or -1.
 */
static double
time_statement(PGconn *conn, const char *sql)
{
	double		start = now_us();

	for (;;)
	{
		PGresult   *result = PQexec(conn, sql);
		const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
		bool		done = PQntuples(result) == 1 &&
			!PQgetisnull(result, 0, 0) &&
			strcmp(PQgetvalue(result, 0, 0), "f") != 0;
		double		now = now_us();

		if (PQresultStatus(result) != PGRES_TUPLES_OK &&
			(state == NULL || strcmp(state, "55P03") != 0))
			die("%s: %s", sql, PQerrorMessage(conn));
		PQclear(result);
		if (done)
			return (now - start) / 1000;
		if (now - start > LIMIT_MS * 1000)
			return -1;
		pause_ms(1);
	}
}

/*
 * Count a trial; false: enough of these.
 */
static bool
count(bool stormy, int measure, double value)
{
	add(&ms[stormy][measure], value < 0 ? LIMIT_MS : value);
	if (value < 0)
		given_up[stormy][measure]++;
	return value >= 0;
}

static void
time_takeovers(bool stormy, int winners[TRIALS])
{
	for (int i = 0; i < TRIALS; i++)
		winners[i] = -2;		/* still the same holder */
	for (int i = 0; i < TRIALS; i++)
	{
		double		value = time_takeover(&contests[i], LIMIT_MS, &winners[i]);

		if (!count(stormy, TAKEOVER, winners[i] == -1 ? -1 : value))
			break;
	}
}

/*
 * The leader hands over to the other session, and it back.
 */
static void
time_transfers(bool stormy)
{
	for (int i = 0; i < TRIALS; i++)
	{
		if (!count(stormy, TRANSFER,
				   time_statement(i % 2 == 0 ? one : two,
								  text("SELECT leader_election.transfer("
									   "'transfer', '%s')",
									   i % 2 == 0 ? "two" : "one"))))
			break;
	}
}

/*
 * The leader resigns: until the other session leads.
 */
static void
time_resignations(bool stormy)
{
	for (int i = 0; i < TRIALS; i++)
	{
		PGconn	   *leader = i % 2 == 0 ? one : two;
		PGconn	   *follower = i % 2 == 0 ? two : one;
		double		resigned;
		double		elected;

		resigned = time_statement(leader,
								  "SELECT leader_election.resign('resign')");
		elected = resigned < 0 ? -1 :
			time_statement(follower,
						   "SELECT leader_election.is_leader('resign')");
		if (!count(stormy, RESIGN, elected < 0 ? -1 : resigned + elected))
			break;
	}
}

static void
time_cycles(bool stormy)
{
	for (int i = 0; i < TRIALS; i++)
	{
		double		acquired;
		double		released;

		acquired = time_statement(one, "SELECT term FROM "
								  "leader_election.acquire('cycle', 'one')");
		released = acquired < 0 ? -1 :
			time_statement(one, "SELECT leader_election.release('cycle', "
						   "(SELECT term FROM leader_election.status "
						   "WHERE election = 'cycle'))");
		if (!count(stormy, CYCLE, released < 0 ? -1 : acquired + released))
			break;
	}
}

/*
 * Both sessions stand, and the first one leads.
 */
static void
join_both(const char *election)
{
	wait_for(one, "SELECT leader_election.join('%s', 'one') IS NOT NULL OR "
			 "leader_election.leader('%s') = 'two'", election, election);
	run(two, "SELECT leader_election.join('%s', 'two')", election);
	wait_for(two, "SELECT CASE WHEN leader_election.is_leader('%s') THEN "
			 "leader_election.transfer('%s', 'one') END IS NULL", election,
			 election);
	wait_for(one, "SELECT leader_election.is_leader('%s')", election);
}

static void
block(bool stormy, PGconn *counter)
{
	Child		child;
	int			winners[TRIALS];
	double		start = 0;
	double		inserted = 0;

	for (int i = 0; i < TRIALS; i++)
		await_calm(&contests[i]);
	join_both("transfer");
	join_both("resign");
	wait_for(monitor, "SELECT leader_election.leader('cycle') IS NULL");
	if (stormy)
	{
		child = start_child("storm", NULL, NULL);
		await_child(&child);
		inserted = storm_inserted(counter);
		while (storm_inserted(counter) < inserted + 2 * STORM_CLIENTS)
			pause_ms(20);
		inserted = storm_inserted(counter);
		start = now_us();
	}

	time_takeovers(stormy, winners);
	time_transfers(stormy);
	time_resignations(stormy);
	time_cycles(stormy);

	if (stormy)
	{
		add(&storm_rate, (storm_inserted(counter) - inserted) * 1e6 /
			(now_us() - start));
		reap_child(&child);
		while (storm_commits() > 0)
			pause_ms(20);
	}
	for (int i = 0; i < TRIALS; i++)
	{
		if (winners[i] != -2)
			seat_new_holder(&contests[i], winners[i]);
	}
	run(monitor, "SELECT leader_election.release('cycle', term) "
		"FROM leader_election.status WHERE election = 'cycle' "
		"AND leader IS NOT NULL");
}

static PGconn *
make_storm_database(void)
{
	PGconn	   *conn;

	run(monitor, "CREATE DATABASE " STORM_DATABASE " TEMPLATE template0");
	conn = new_connection_to(STORM_DATABASE, "counter");
	run(conn, "CREATE TABLE t (id bigserial PRIMARY KEY)");
	return conn;
}

int
main(int argc, char **argv)
{
	PGconn	   *counter;

	if (argc == 4 && strcmp(argv[1], "hold") == 0)
		return hold(argv[2], argv[3]);
	if (argc == 2 && strcmp(argv[1], "storm") == 0)
		return storm();
	monitor = new_connection("monitor");
	one = new_connection("one");
	two = new_connection("two");
	counter = make_storm_database();
	for (int i = 0; i < TRIALS; i++)
	{
		snprintf(seats[i], sizeof(seats[i]), "takeover %d", i);
		start_contest(&contests[i], &campaign, seats[i], 1, monitor);
	}
	set_server(monitor, "commit_siblings", "0");
	set_server(monitor, "commit_delay", COMMIT_DELAY);
	for (int i = 0; i < 2 * BLOCKS; i++)
		block(i % 2 == 1, counter);
	set_server(monitor, "commit_delay", NULL);
	set_server(monitor, "commit_siblings", NULL);

	report("storm: commits with NOTIFY in another database", "1/s", &storm_rate,
		   NO_FLOOR);
	for (int m = 0; m < NMEASURES; m++)
	{
		const char *floor = text("no storm: %s", names[m]);
		double		ratio = median(&ms[true][m]) / median(&ms[false][m]);

		report(floor, "ms", &ms[false][m], FLOOR(floor, 1));
		report(text("storm: %s", names[m]), "ms", &ms[true][m], (Against) {
			.floor = floor, .ratio = ratio,
			.target = text("ratio <= %.0f", TARGET), .met = ratio <= TARGET
		});
		for (int stormy = 0; stormy < 2; stormy++)
		{
			if (given_up[stormy][m] > 0)
				report_note("  %s, %s: given up %d times after %d ms",
							stormy ? "storm" : "no storm", names[m],
							given_up[stormy][m], LIMIT_MS);
		}
	}
	for (int i = 0; i < TRIALS; i++)
		end_contest(&contests[i]);
	PQfinish(one);
	PQfinish(two);
	PQfinish(counter);
	run(monitor, "DROP DATABASE " STORM_DATABASE);
	PQfinish(monitor);
	return 0;
}
