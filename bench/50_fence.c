/*-------------------------------------------------------------------------
 *
 * 50_fence.c
 *		A fenced commit beside an unfenced one: updates of one row, per second,
 *		by one client and by many.
 *
 * Each client updates a row of its own, in a table that is the same for all
 * kinds of a fence (the trigger's is another one of the same definition).  The
 * fence is part of the statement, so that both are one prepared statement and
 * one transaction, and the quotient is that of the fence alone.  What it costs
 * to send assert_leader() as a statement of its own, as applications may do, is
 * measured as well, for information.
 *
 * In each round everything is measured for a fraction of a second, one thing
 * beside the other, and what counts is the quotient within a round; every other
 * round goes backwards.  The clients are connections of this process, and each
 * has one statement under way, always.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define ROUNDS		30
#define ROUND_US	100e3
#define MANY		8
#define TARGET		1.15
#define MAX_STEPS	4

/* A transaction: one statement, or several */
typedef struct Kind
{
	const char *name;
	const char *steps[MAX_STEPS];
	bool		by_leader;		/* in the session that leads */
} Kind;

#define UPDATE_SQL	"UPDATE bench_row SET n = n + 1 WHERE id = $1"

static const Kind kinds[] = {
	{
		.name = "UPDATE",
		.steps = {UPDATE_SQL}
	},
	{
		.name = "UPDATE, assert_leader(e)",
		.steps = {UPDATE_SQL " AND leader_election.assert_leader('bench') IS NOT NULL"},
		.by_leader = true
	},
	{
		.name = "UPDATE, only_leader(e)",
		.steps = {"UPDATE bench_guarded SET n = n + 1 WHERE id = $1"},
		.by_leader = true
	},
	{
		.name = "UPDATE, assert_leader(e, term)",
		.steps = {UPDATE_SQL " AND leader_election.assert_leader('bench', 1) IS NOT NULL"}
	},
	{
		.name = "BEGIN, UPDATE, COMMIT",
		.steps = {"BEGIN", UPDATE_SQL, "COMMIT"}
	},
	{
		.name = "BEGIN, assert_leader(e, term) ...",
		.steps = {"BEGIN", "SELECT leader_election.assert_leader('bench', 1)",
		UPDATE_SQL, "COMMIT"}
	},
};

enum
{
	UNFENCED, BY_LEADER, BY_TRIGGER, BY_TERM, BLOCK_UNFENCED, BLOCK_BY_TERM
};

/* What is measured, in this order; beside what */
typedef struct Measure
{
	int			kind;
	int			nclients;
	int			base;			/* a kind, with as many clients */
	bool		targeted;
} Measure;

static const Measure measures[] = {
	{UNFENCED, 1, UNFENCED, false},
	{BY_LEADER, 1, UNFENCED, true},
	{BY_TRIGGER, 1, UNFENCED, true},
	{BY_TERM, 1, UNFENCED, true},
	{UNFENCED, MANY, UNFENCED, false},
	{BY_TERM, MANY, UNFENCED, true},
	{BLOCK_UNFENCED, 1, BLOCK_UNFENCED, false},
	{BLOCK_BY_TERM, 1, BLOCK_UNFENCED, false},
};

#define NMEASURES (int) (sizeof(measures) / sizeof(measures[0]))

typedef struct Client
{
	PGconn	   *conn;
	char		row[20];
	int			step;			/* the statement that is under way; -1: none */
} Client;

static PGconn *leader;
static Client all_clients[NMEASURES][MANY];
static Sample rates[NMEASURES];

static void
connect_clients(int m)
{
	const Kind *kind = &kinds[measures[m].kind];

	for (int i = 0; i < measures[m].nclients; i++)
	{
		Client	   *c = &all_clients[m][i];

		snprintf(c->row, sizeof(c->row), "%d", m * MANY + i);
		c->conn = kind->by_leader ? leader : new_connection(kind->name);
		c->step = -1;
		run(c->conn, "INSERT INTO bench_row VALUES (%s)", c->row);
		if (measures[m].kind == BY_TRIGGER)
			run(c->conn, "INSERT INTO bench_guarded VALUES (%s)", c->row);
		for (int step = 0; step < MAX_STEPS && kind->steps[step] != NULL; step++)
		{
			PGresult   *result = PQprepare(c->conn, text("%d.%d", m, step),
										   kind->steps[step], 0, NULL);

			if (PQresultStatus(result) != PGRES_COMMAND_OK)
				die("%s", PQerrorMessage(c->conn));
			PQclear(result);
		}
	}
}

static void
send_step(int m, Client *c, int step)
{
	const char *sql = kinds[measures[m].kind].steps[step];
	const char *args[1] = {c->row};

	c->step = step;
	if (!PQsendQueryPrepared(c->conn, text("%d.%d", m, step),
							 strchr(sql, '$') != NULL, args, NULL, NULL, 0))
		die("%s", PQerrorMessage(c->conn));
}

/*
 * A client has its answer: on to the next statement.  True: that was the end
 * of a transaction.
 */
static bool
take_answer(int m, Client *c, double end)
{
	const Kind *kind = &kinds[measures[m].kind];
	int			next = c->step + 1;
	bool		complete = next == MAX_STEPS || kind->steps[next] == NULL;
	PGresult   *result = PQgetResult(c->conn);

	if ((PQresultStatus(result) != PGRES_COMMAND_OK &&
		 PQresultStatus(result) != PGRES_TUPLES_OK) ||
		(strncmp(kind->steps[c->step], "UPDATE", 6) == 0 &&
		 strcmp(PQcmdTuples(result), "1") != 0))
		die("%s: %s", kind->name, PQerrorMessage(c->conn));
	PQclear(result);
	while ((result = PQgetResult(c->conn)) != NULL)
		PQclear(result);
	c->step = -1;
	if (!complete)
		send_step(m, c, next);
	else if (now_us() < end)
		send_step(m, c, 0);
	return complete;
}

/*
 * Let all clients of a measure do their thing for a while; returns how many
 * transactions per second they did, all of them together.
 */
static double
measure_once(int m)
{
	Client	   *clients = all_clients[m];
	int			nclients = measures[m].nclients;
	struct pollfd fds[MANY];
	double		start = now_us();
	double		end = start + ROUND_US;
	int			done = 0;
	int			nbusy;

	for (int i = 0; i < nclients; i++)
	{
		fds[i].events = POLLIN;
		send_step(m, &clients[i], 0);
	}
	do
	{
		nbusy = 0;
		for (int i = 0; i < nclients; i++)
		{
			bool		is_busy = clients[i].step >= 0;

			fds[i].fd = is_busy ? PQsocket(clients[i].conn) : -1;
			nbusy += is_busy;
		}
		if (nbusy > 0 && poll(fds, nclients, 60000) <= 0)
			die("%s: no answer", kinds[measures[m].kind].name);
		for (int i = 0; nbusy > 0 && i < nclients; i++)
		{
			if (fds[i].fd == -1 || fds[i].revents == 0)
				continue;
			if (!PQconsumeInput(clients[i].conn))
				die("%s", PQerrorMessage(clients[i].conn));
			if (!PQisBusy(clients[i].conn))
				done += take_answer(m, &clients[i], end);
		}
	} while (nbusy > 0);
	return done * 1e6 / (now_us() - start);
}

static int
find_base(const Measure *measure)
{
	for (int m = 0;; m++)
	{
		if (measures[m].kind == measure->base &&
			measures[m].nclients == measure->nclients)
			return m;
	}
}

static const char *
name_of(int m)
{
	return text("%s, %d client%s", kinds[measures[m].kind].name,
				measures[m].nclients, measures[m].nclients > 1 ? "s" : "");
}

/*
 * The table has a line for each measure, with the quotient of times.
 */
static void
report_measure(int m)
{
	const Measure *measure = &measures[m];
	int			floor = find_base(measure);
	const Sample *base = &rates[floor];
	Sample		ratios = {.n = 0};
	double		ratio;

	for (int round = 0; round < ROUNDS; round++)
		add(&ratios, base->values[round] / rates[m].values[round]);
	ratio = median(&ratios);
	report(name_of(m), "1/s", &rates[m], (Against) {
		.floor = name_of(floor), .ratio = ratio,
		.target = measure->targeted ? text("ratio <= %.2f", TARGET) : NULL,
		.met = ratio <= TARGET
	});
}

int
main(void)
{
	leader = new_connection("leader");
	run(leader, "CREATE TABLE bench_row (id int PRIMARY KEY, n bigint DEFAULT 0) "
		"WITH (fillfactor = 30)");
	run(leader, "CREATE TABLE bench_guarded (LIKE bench_row INCLUDING ALL) "
		"WITH (fillfactor = 30)");
	wait_for(leader, "SELECT leader_election.join('bench', 'leader') = 1");
	run(leader, "CREATE TRIGGER only_leader "
		"BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON bench_guarded "
		"FOR EACH STATEMENT "
		"EXECUTE FUNCTION leader_election.only_leader('bench')");
	for (int m = 0; m < NMEASURES; m++)
		connect_clients(m);

	for (int round = 0; round <= ROUNDS; round++)
	{
		for (int i = 0; i < NMEASURES; i++)
		{
			int			m = round % 2 == 0 ? i : NMEASURES - 1 - i;
			double		rate = measure_once(m);

			if (round > 0)		/* the first one is to warm up */
				add(&rates[m], rate);
		}
	}

	for (int m = 0; m < NMEASURES; m++)
		report_measure(m);
	run(leader, "DROP TABLE bench_row, bench_guarded");
	for (int m = 0; m < NMEASURES; m++)
	{
		for (int i = 0; i < measures[m].nclients; i++)
		{
			if (all_clients[m][i].conn != leader)
				PQfinish(all_clients[m][i].conn);
		}
	}
	PQfinish(leader);
	return 0;
}
