/*-------------------------------------------------------------------------
 *
 * 45_portable.c
 *		The portable edition beside the extension and a bare row: processor time
 *		of a call, calls by many clients, and both under an old snapshot.
 *
 * Processor time is that of the client's backend, for what is over when its
 * answer is there; it does not count the worker of the extension, which announces
 * and renews for it.  A disk, and what else the machine does, hardly change it.
 *
 * In each round each call is made for a while in each edition, one after the
 * other, and what counts is the quotient within a round.  Every other round goes
 * backwards.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define ROUNDS		10
#define CALLS		50			/* of one kind, in a round */
#define ROUND_US	250e3		/* of many clients */
#define MANY		8
#define OLD_RENEWALS 300		/* under one snapshot */

/* Where calls are made */
typedef enum Edition
{
	BARE,						/* a row, in the extension's database */
	EXTENSION,
	PORTABLE,
	SILENT,						/* portable, without announcements */
	NEDITIONS
} Edition;

static const char *const edition_names[] = {
	"bare row", "extension", "portable", "portable, silent"
};

/* Statements that end with the last one; $1 is the seat, $2 the term */
typedef struct Kind
{
	const char *name;
	const char *bare[2];
	const char *call[2];
	bool		led;			/* by another candidate, whose term is $2 */
	bool		in_block;
} Kind;

static const Kind kinds[] = {
	{
		.name = "acquire(), release()",
		.bare = {
			"UPDATE bench_row SET owner = 'a' WHERE id = $1 AND owner IS NULL RETURNING 1",
			"UPDATE bench_row SET owner = NULL WHERE id = $1 AND $2 > 0"
		},
		.call = {
			"SELECT term FROM leader_election.acquire($1, 'a')",
			"SELECT leader_election.release($1, $2)"
		}
	},
	{
		.name = "renew(election, term)",
		.bare = {"UPDATE bench_row SET n = n + 1 WHERE id = $1 AND $2 > 0"},
		.call = {"SELECT term FROM leader_election.renew($1, $2)"},
		.led = true
	},
	{
		.name = "acquire() in vain",
		.bare = {"SELECT owner FROM bench_row WHERE id = $1 AND $2 > 0"},
		.call = {"SELECT term FROM leader_election.acquire($1, 'b') WHERE $2 > 0"},
		.led = true
	},
	{
		.name = "assert_leader(election, term)",
		.bare = {"SELECT owner FROM bench_row WHERE id = $1 AND $2 > 0"},
		.call = {"SELECT leader_election.assert_leader($1, $2)"},
		.led = true,
		.in_block = true
	},
};

#define NKINDS (int) (sizeof(kinds) / sizeof(kinds[0]))

typedef struct Client
{
	PGconn	   *conn;
	char		pid[16];
	char		seat[40];
	char		term[32];
	int			step;			/* of a cycle that is under way */
} Client;

static Client alone[NKINDS][NEDITIONS];
static Client crowd[NEDITIONS][MANY];

/*
 * A connection to an edition, with its seat.
 */
static Client
new_client(Edition edition, const Kind *kind, const char *seat)
{
	bool		portable = edition == PORTABLE || edition == SILENT;
	Client		c = {.conn = new_connection_to(edition == SILENT ? "bench_silent" :
											   portable ? "bench_portable" : getenv("PGDATABASE"), "bench")};
	char	   *answer;

	snprintf(c.seat, sizeof(c.seat), "%s", seat);
	snprintf(c.pid, sizeof(c.pid), "%d", PQbackendPID(c.conn));
	if (edition == BARE)
		run(c.conn, "INSERT INTO bench_row VALUES ('%s', 0, NULL)", seat);
	else
		run(c.conn, "SELECT leader_election.create_election('%s', lease_duration => '1 hour', "
			"takeover_delay => '0')", seat);
	strcpy(c.term, "1");
	if (kind->led && edition != BARE)
	{
		answer = ask(c.conn, "SELECT term FROM leader_election.acquire('%s', 'a')", seat);
		snprintf(c.term, sizeof(c.term), "%s", answer);
		free(answer);
	}
	for (int i = 0; i < 2; i++)
	{
		const char *sql = edition == BARE ? kind->bare[i] : kind->call[i];
		PGresult   *result;

		if (sql == NULL)
			continue;
		result = PQprepare(c.conn, i == 0 ? "one" : "two", sql, 2, (const Oid[]) {25, 20});
		if (PQresultStatus(result) != PGRES_COMMAND_OK)
			die("%s: %s", sql, PQerrorMessage(c.conn));
		PQclear(result);
	}
	return c;
}

/*
 * The answer to a statement of a cycle; the first one's has the term.
 */
static void
take(Client *c, PGresult *result, bool cycle, int step)
{
	if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
		die("%s: %s", c->seat, PQerrorMessage(c->conn));
	if (cycle && step == 0)
	{
		if (PQntuples(result) != 1)
			die("%s: refused", c->seat);
		snprintf(c->term, sizeof(c->term), "%s", PQgetvalue(result, 0, 0));
	}
	PQclear(result);
}

static void
call(Client *c, const Kind *kind)
{
	const char *values[] = {c->seat, c->term};

	for (int i = 0; i < 2 && kind->call[i] != NULL; i++)
	{
		if (i == 0 && kind->call[1] != NULL)
			values[1] = "1";
		else
			values[1] = c->term;
		take(c, PQexecPrepared(c->conn, i == 0 ? "one" : "two", 2, values, NULL, NULL, 0),
			 kind->call[1] != NULL, i);
	}
}

/*
 * Microseconds of processor time that a call takes.
 */
static double
cpu_of(Client *c, const Kind *kind, int calls)
{
	double		before;

	if (kind->in_block)
		run(c->conn, "BEGIN");
	call(c, kind);
	before = cpu_ms(c->pid);
	for (int i = 0; i < calls; i++)
		call(c, kind);
	before = cpu_ms(c->pid) - before;
	if (kind->in_block)
		run(c->conn, "COMMIT");
	return before * 1000 / calls;
}

static void
send_step(Client *c)
{
	const char *values[] = {c->seat, c->step == 0 ? "1" : c->term};

	if (!PQsendQueryPrepared(c->conn, c->step == 0 ? "one" : "two", 2, values, NULL, NULL, 0))
		die("%s", PQerrorMessage(c->conn));
}

/*
 * Cycles of acquire() and release() per second, by clients on a seat each.
 */
static double
cycles_of(Client *clients)
{
	struct pollfd fds[MANY];
	double		start = now_us();
	bool		over = false;
	int			done = 0;
	int			under_way = MANY;

	for (int i = 0; i < MANY; i++)
	{
		clients[i].step = 0;
		send_step(&clients[i]);
	}
	while (under_way > 0)
	{
		for (int i = 0; i < MANY; i++)
			fds[i] = (struct pollfd) {
				.fd = clients[i].step >= 0 ? PQsocket(clients[i].conn) : -1, .events = POLLIN
			};
		if (poll(fds, MANY, 10000) <= 0)
			die("no answer");
		over = over || now_us() > start + ROUND_US;
		for (int i = 0; i < MANY; i++)
		{
			Client	   *c = &clients[i];

			if (c->step < 0 || !PQconsumeInput(c->conn) || PQisBusy(c->conn))
				continue;
			take(c, PQgetResult(c->conn), true, c->step);
			PQclear(PQgetResult(c->conn));
			done += !over && c->step == 1;
			c->step = 1 - c->step;
			if (over && c->step == 0)
			{
				c->step = -1;
				under_way--;
			}
			else
				send_step(c);
		}
	}
	return done / (ROUND_US / 1e6);
}

/*
 * The database of an edition, made by its file, in which nothing is announced or
 * as it is.
 */
static void
make_portable(PGconn *conn, const char *database, bool announce)
{
	char		command[400];
	PGconn	   *there;

	run(conn, "DROP DATABASE IF EXISTS %s WITH (FORCE)", database);
	run(conn, "CREATE DATABASE %s TEMPLATE template0", database);
	snprintf(command, sizeof(command), "psql -Xq -v anyway=1 -d %s -f sql/portable.sql", database);
	if (system(command) != 0)
		die("%s", command);
	there = new_connection_to(database, "bench");
	run(there, "SELECT leader_election.configure(announce => %s)", announce ? "true" : "false");
	PQfinish(there);
}

/*
 * A call's processor time in each edition, and what it has to be.
 */
static void
measure_cpu(const Kind *kind, Client *clients)
{
	static Sample times[NEDITIONS];
	static Sample ratios[NEDITIONS];

	memset(times, 0, sizeof(times));
	memset(ratios, 0, sizeof(ratios));
	for (int round = 0; round < ROUNDS; round++)
	{
		double		us[NEDITIONS];

		for (int i = 0; i < NEDITIONS; i++)
		{
			int			e = round % 2 == 0 ? i : NEDITIONS - 1 - i;

			us[e] = cpu_of(&clients[e], kind, CALLS);
			add(&times[e], us[e]);
		}
		for (int e = 0; e < NEDITIONS; e++)
			add(&ratios[e], us[e] / us[EXTENSION]);
	}
	for (int e = 0; e < NEDITIONS; e++)
	{
		double		ratio = median(&ratios[e]);
		Against		against = e == EXTENSION ? NO_FLOOR : FLOOR("extension", ratio);

		if (e == PORTABLE || e == SILENT)
		{
			against.target = "2.0";
			against.met = ratio <= 2.0;
		}
		report(text("%s, %s", kind->name, edition_names[e]), "us", &times[e], against);
	}
}

static void
measure_crowd(void)
{
	static Sample rates[NEDITIONS];
	static Sample ratios[NEDITIONS];

	for (int round = 0; round < ROUNDS; round++)
	{
		double		rate[NEDITIONS];

		for (int i = 0; i < NEDITIONS; i++)
		{
			int			e = round % 2 == 0 ? i : NEDITIONS - 1 - i;

			rate[e] = cycles_of(crowd[e]);
			add(&rates[e], rate[e]);
		}
		for (int e = 0; e < NEDITIONS; e++)
			add(&ratios[e], rate[e] / rate[EXTENSION]);
	}
	for (int e = 0; e < NEDITIONS; e++)
		report(text("8 clients, cycles, %s", edition_names[e]), "1/s", &rates[e],
			   e == EXTENSION ? NO_FLOOR : FLOOR("extension", median(&ratios[e])));
}

/*
 * Renewals before and after many, of one lease, under one snapshot.
 */
static void
measure_old_snapshot(void)
{
	const Kind *renew = &kinds[1];

	for (int e = EXTENSION; e <= PORTABLE; e++)
	{
		Client	   *c = &alone[1][e];
		PGconn	   *old = new_connection_to(PQdb(c->conn), "snapshot");
		static Sample before;
		static Sample after;

		before.n = after.n = 0;
		for (int i = 0; i < ROUNDS; i++)
			add(&before, cpu_of(c, renew, CALLS));
		run(old, "BEGIN ISOLATION LEVEL REPEATABLE READ");
		run(old, "SELECT count(*) FROM pg_class");
		for (int i = 0; i < OLD_RENEWALS; i++)
			call(c, renew);
		for (int i = 0; i < ROUNDS; i++)
			add(&after, cpu_of(c, renew, CALLS / 5));
		report(text("renew(), old snapshot, %s", edition_names[e]), "us", &after,
			   FLOOR("without", median(&after) / median(&before)));
		PQfinish(old);
	}
}

int
main(void)
{
	PGconn	   *conn = new_connection("monitor");

	run(conn, "DROP TABLE IF EXISTS bench_row");
	run(conn, "CREATE TABLE bench_row (id text PRIMARY KEY, n bigint, owner text) WITH (fillfactor = 30)");
	make_portable(conn, "bench_portable", true);
	make_portable(conn, "bench_silent", false);
	for (int k = 0; k < NKINDS; k++)
	{
		for (int e = 0; e < NEDITIONS; e++)
			alone[k][e] = new_client(e, &kinds[k], text("alone %d %d", k, e));
	}
	for (int e = 0; e < NEDITIONS; e++)
	{
		for (int i = 0; i < MANY; i++)
			crowd[e][i] = new_client(e, &kinds[0], text("crowd %d %d", e, i));
	}
	for (int k = 0; k < NKINDS; k++)
		measure_cpu(&kinds[k], alone[k]);
	measure_crowd();
	measure_old_snapshot();
	PQfinish(conn);
	return 0;
}
