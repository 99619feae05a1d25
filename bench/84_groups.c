/*-------------------------------------------------------------------------
 *
 * 84_groups.c
 *		How long it takes to fill a group: from the call that makes it, with
 *		clients that are connected and a worker that runs, until each seat is
 *		led; beside as many commits of one row each, by one client.
 *
 * There are twice as many candidates as seats, and each may have one: sessions
 * that all call join_group() at once, or detached candidates that call
 * acquire_any() over a few connections.  A call that is refused as busy is made
 * again.
 *
 * And what a call, and a view of all seats, cost the backend in groups of more
 * and more seats: two sessions stand for all of them and lead one each, so that
 * nearly all are vacant, and every call looks whether it can fill them.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crowd.h"

#define SEATS		100
#define CANDIDATES	200
#define CONNECTIONS 8			/* of detached candidates */
#define TRIALS		7
#define LOOK_MS		2
#define TARGET_MS	1000.0
#define FLOOR_NAME	"group: commits of one row, 100"

/* Candidates of one kind, and how long they took */
typedef struct Kind
{
	const char *call;			/* %d: the candidate's number */
	int			nclients;
	Sample		filled;
	Sample		answered;
	int			refused;
} Kind;

/* A connection, and whose call it makes */
typedef struct Client
{
	PGconn	   *conn;
	int			candidate;		/* 0: nobody's */
} Client;

static Kind sessions = {
	.call = "SELECT count(*) FROM leader_election.join_group('g', 'c%d')",
	.nclients = CANDIDATES
};
static Kind detached = {
	.call = "SELECT count(*) FROM leader_election.acquire_any('g', 'c%d')",
	.nclients = CONNECTIONS
};
/* What a statement costs the backend in a group of many seats */
typedef struct Cost
{
	const char *sql;
	Growth		growth;
} Cost;

static Cost costs[] = {
	{"SELECT count(*) FROM leader_election.join_group('g', 'one')",
	{.name = "groups-join", .title = "group: join_group() in the backend"}},
	{"SELECT count(*) FROM leader_election.acquire_any('g', 'detached')",
	{.name = "groups-acquire", .title = "group: acquire_any() in the backend"}},
	{"SELECT count(waiting_for) FROM leader_election.status",
	{.name = "groups-status", .title = "group: the view status in the backend"}},
	{"SELECT count(position) FROM leader_election.candidates",
	{.name = "groups-candidates", .title = "group: the view candidates in the backend"}},
};
static const int sizes[] = {100, 300, 1000};

#define NCOSTS (int) (sizeof(costs) / sizeof(costs[0]))
#define NSIZES (int) (sizeof(sizes) / sizeof(sizes[0]))
#define REPEATS 5

static Sample commits;
static PGconn *monitor;
static Client clients[CANDIDATES];

static void
time_commits(void)
{
	double		start = now_us();

	for (int i = 1; i <= SEATS; i++)
		run(monitor, "UPDATE bench_row SET n = n + 1 WHERE id = %d", i);
	add(&commits, (now_us() - start) / 1000);
}

static void
send_call(const Kind *kind, Client *client, int candidate)
{
	char		sql[200];

	client->candidate = candidate;
	snprintf(sql, sizeof(sql), kind->call, candidate);
	if (PQsendQuery(client->conn, sql) == 0)
		die("%s", PQerrorMessage(client->conn));
}

/*
 * Read what has arrived.  True if the call was answered.
 */
static bool
is_answered(Kind *kind, Client *client)
{
	PGresult   *result;
	bool		busy = false;

	if (PQconsumeInput(client->conn) == 0)
		die("%s", PQerrorMessage(client->conn));
	if (PQisBusy(client->conn))
		return false;
	while ((result = PQgetResult(client->conn)) != NULL)
	{
		const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

		busy = busy || (state != NULL && strcmp(state, "55P03") == 0);
		if (PQresultStatus(result) != PGRES_TUPLES_OK && !busy)
			die("%s", PQerrorMessage(client->conn));
		PQclear(result);
	}
	if (!busy)
		return true;
	kind->refused++;
	send_call(kind, client, client->candidate);
	return false;
}

/*
 * Wait for any answer, but not long.
 */
static void
wait_for_answers(int nclients)
{
	struct pollfd fds[CANDIDATES];

	for (int i = 0; i < nclients; i++)
	{
		fds[i].fd = clients[i].candidate != 0 ? PQsocket(clients[i].conn) : -1;
		fds[i].events = POLLIN;
	}
	(void) poll(fds, nclients, LOOK_MS);
}

static bool
is_filled(void)
{
	return ask_number(monitor, "SELECT count(*) FROM leader_election.lease "
					  "WHERE election LIKE 'g/%%' AND leader IS NOT NULL") == SEATS;
}

/*
 * Have all candidates call, and look at the seats meanwhile.
 */
static void
fill(Kind *kind)
{
	double		start = now_us();
	double		looked = start;
	int			answers = 0;
	int			next = 1;
	bool		filled = false;

	run(monitor, "SELECT leader_election.create_group('g', %d)", SEATS);
	while (answers < CANDIDATES || !filled)
	{
		for (int i = 0; i < kind->nclients; i++)
		{
			Client	   *client = &clients[i];

			if (client->candidate != 0 && is_answered(kind, client))
			{
				client->candidate = 0;
				if (++answers == CANDIDATES)
					add(&kind->answered, (now_us() - start) / 1000);
			}
			if (client->candidate == 0 && next <= CANDIDATES)
				send_call(kind, client, next++);
		}
		if (!filled && now_us() - looked >= LOOK_MS * 1000)
		{
			filled = is_filled();
			looked = now_us();
			if (filled)
				add(&kind->filled, (looked - start) / 1000);
		}
		wait_for_answers(kind->nclients);
	}
}

/*
 * Fill a group that nobody has known.  An election beside it keeps a worker
 * running.
 */
static void
add_trial(Kind *kind)
{
	forget_everything(monitor);
	wait_for(monitor, "SELECT leader_election.join('beside', 'monitor') "
			 "IS NOT NULL");
	wait_for(monitor, "SELECT EXISTS (SELECT FROM pg_stat_activity "
			 "WHERE datname = current_database() "
			 "AND backend_type LIKE 'leader_election%%')");
	for (int i = 0; i < kind->nclients; i++)
	{
		clients[i].conn = new_connection(text("client %d", i));
		run(clients[i].conn, "SELECT leader_election.is_leader('beside')");
	}
	time_commits();
	fill(kind);
	if (ask_number(monitor, "SELECT count(DISTINCT leader) "
				   "FROM leader_election.lease WHERE election LIKE 'g/%%'") != SEATS)
		die("a candidate has two seats");
	for (int i = 0; i < kind->nclients; i++)
		PQfinish(clients[i].conn);
}

/*
 * What the statements cost in a group of so many seats.  The first calls make
 * the rows of the candidates, and do not count.
 */
static void
add_costs(int size)
{
	PGconn	   *one;
	PGconn	   *two;
	char	   *pid;

	forget_everything(monitor);
	one = new_connection("one");
	two = new_connection("two");
	pid = ask(one, "SELECT pg_backend_pid()");
	run(monitor, "SELECT leader_election.create_group('g', %d, "
		"lease_duration => '10 min')", size);
	run(one, "SELECT count(*) FROM leader_election.join_group('g', 'one')");
	run(two, "SELECT count(*) FROM leader_election.join_group('g', 'two')");
	run(one, "SELECT count(*) FROM leader_election.acquire_any('g', 'detached')");
	pause_ms(1000);
	for (int i = 0; i < REPEATS * NCOSTS; i++)
	{
		Cost	   *cost = &costs[i % NCOSTS];
		double		before = cpu_ms(pid);

		run(one, "%s", cost->sql);
		add_point(&cost->growth, size, cpu_ms(pid) - before);
	}
	free(pid);
	PQfinish(one);
	PQfinish(two);
}

static void
report_kind(const char *name, const Kind *kind)
{
	double		m = median(&kind->filled);
	const char *led = text("group: %s, %d seats led", name, SEATS);

	report(led, "ms", &kind->filled, (Against) {
		.floor = FLOOR_NAME, .ratio = m / median(&commits),
		.target = text("median <= %.0f", TARGET_MS), .met = m <= TARGET_MS
	});
	report(text("group: %s, %d calls answered", name, CANDIDATES), "ms",
		   &kind->answered,
		   FLOOR(FLOOR_NAME, median(&kind->answered) / median(&commits)));
	report_note("  %s: refused as busy, and called again: %d times in %d fills",
				name, kind->refused, kind->filled.n);
}

int
main(void)
{
	monitor = new_connection("monitor");
	run(monitor, "CREATE TABLE bench_row AS SELECT id, 0 AS n "
		"FROM generate_series(1, %d) id", SEATS);
	run(monitor, "ALTER TABLE bench_row ADD PRIMARY KEY (id), "
		"SET (fillfactor = 50)");
	run(monitor, "VACUUM FULL bench_row");
	for (int i = 0; i < TRIALS; i++)
	{
		add_trial(&sessions);
		add_trial(&detached);
	}
	run(monitor, "DROP TABLE bench_row");
	report(FLOOR_NAME, "ms", &commits, FLOOR(FLOOR_NAME, 1));
	report_kind("sessions", &sessions);
	report_kind("detached", &detached);
	for (int i = 0; i < NSIZES; i++)
		add_costs(sizes[i]);
	for (int i = 0; i < NCOSTS; i++)
	{
		costs[i].growth.unit = "ms";
		costs[i].growth.of = "seats";
		report_growth(&costs[i].growth, (Against) {
			.target = "linear", .met = exponent(&costs[i].growth) <= 1.2
		});
	}
	PQfinish(monitor);
	return 0;
}
