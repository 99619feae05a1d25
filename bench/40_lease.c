/*-------------------------------------------------------------------------
 *
 * 40_lease.c
 *		Leases beside a bare row: renewals, and cycles of acquire() and
 *		release(), per second, by one client, by many on a seat each, and by
 *		many on one seat; cycles also with commits of 5 ms.
 *
 * A lease cannot cost less than the write that makes it last: an UPDATE of one
 * row for a renewal; for a cycle one that takes the row and one that gives it
 * back.  Each is a transaction of its own, by a prepared statement.
 *
 * In each round everything is measured for a fraction of a second, one thing
 * beside the other, and what counts is the quotient within a round: what else
 * the machine does then hits both.  Every other round goes backwards, so that
 * what something leaves to be tidied up is in the way of another one.
 *
 * A disk that flushes in 0.1 ms shows what a call costs the processor; commits
 * of 5 ms show how many flushes it waits for, and which of them are shared.
 * commit_delay makes them so: it lets one commit wait and then flush for all
 * that came meanwhile, as a slow disk does.
 *
 * The clients are connections of this process, and each has one statement under
 * way, always.  Who is refused the seat tries again at once.  A cycle counts
 * when the seat has been given back; what was tried in vain counts for nothing.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define ROUNDS		10
#define ROUND_US	250e3
#define SLOW_ROUND_US	1000e3
#define SLOW_COMMIT	"5000"		/* microseconds */
#define MANY		8

typedef enum Crowd
{
	ALONE,						/* one client */
	APART,						/* many, each on a seat of its own */
	TOGETHER,					/* many on one seat */
	NCROWDS
} Crowd;

static const char *const crowd_names[] = {
	"1 client", "8 clients", "8 clients on one"
};

/* How its clients come to what they need before they are measured */
typedef enum Stage
{
	AS_CANDIDATE,				/* they need nothing but a name */
	AS_SESSION,					/* each session has joined, and leads */
	WITH_TERM,					/* somebody leads, and they know the term ... */
	IN_VAIN						/* ... or ask for the lease all the same */
} Stage;

/*
 * One thing to do again and again.  The first argument of both statements is
 * the seat.  The second one, if there is one, is the client's name, or the term
 * where that is known: WITH_TERM, or to give back what "take" has returned.
 */
typedef struct Kind
{
	const char *name;
	const char *take;
	const char *give;			/* NULL: take is all there is to do */
	int			nargs;
	Stage		stage;
} Kind;

static const Kind kinds[] = {
	{
		.name = "bare UPDATE",
		.take = "UPDATE bench_row SET n = n + 1 WHERE id = $1",
		.nargs = 1
	},
	{
		.name = "renew(election)",
		.take = "SELECT * FROM leader_election.renew($1)",
		.nargs = 1,
		.stage = AS_SESSION
	},
	{
		.name = "renew(election, term)",
		.take = "SELECT * FROM leader_election.renew($1, $2)",
		.nargs = 2,
		.stage = WITH_TERM
	},
	{
		.name = "bare UPDATE, and back",
		.take = "UPDATE bench_row SET owner = $2 WHERE id = $1 AND owner IS NULL",
		.give = "UPDATE bench_row SET owner = NULL WHERE id = $1 AND owner = $2",
		.nargs = 2
	},
	{
		.name = "acquire(), release()",
		.take = "SELECT * FROM leader_election.acquire($1, $2)",
		.give = "SELECT leader_election.release($1, $2)",
		.nargs = 2
	},
	{
		.name = "SELECT of the row",
		.take = "SELECT owner FROM bench_row WHERE id = $1",
		.nargs = 1
	},
	{
		.name = "acquire() in vain",
		.take = "SELECT * FROM leader_election.acquire($1, $2)",
		.nargs = 2,
		.stage = IN_VAIN
	},
	{
		.name = "is_leader(election, term)",
		.take = "SELECT leader_election.is_leader($1, $2)",
		.nargs = 2,
		.stage = WITH_TERM
	},
};

enum
{
	UPDATE, RENEW_SESSION, RENEW_TERM, TAKE_AND_GIVE, ACQUIRE_AND_RELEASE,
	SELECT, ACQUIRE_IN_VAIN, IS_LEADER_TERM, NKINDS
};

/* What is measured, in this order; beside what */
typedef struct Measure
{
	int			kind;
	Crowd		crowd;
	int			base;			/* a kind, in the same crowd, as slow */
	bool		slow;			/* with slow commits */
	double		target;			/* for the ratio to it; 0: none */
} Measure;

static const Measure measures[] = {
	{UPDATE, ALONE, UPDATE, false, 0},
	{RENEW_SESSION, ALONE, UPDATE, false, 0.85},
	{RENEW_TERM, ALONE, UPDATE, false, 0.85},
	{UPDATE, APART, UPDATE, false, 0},
	{RENEW_SESSION, APART, UPDATE, false, 0.85},
	{RENEW_TERM, APART, UPDATE, false, 0.85},
	{UPDATE, TOGETHER, UPDATE, false, 0},
	{RENEW_TERM, TOGETHER, UPDATE, false, 0.85},
	{TAKE_AND_GIVE, ALONE, TAKE_AND_GIVE, false, 0},
	{ACQUIRE_AND_RELEASE, ALONE, TAKE_AND_GIVE, false, 0.75},
	{TAKE_AND_GIVE, APART, TAKE_AND_GIVE, false, 0},
	{ACQUIRE_AND_RELEASE, APART, TAKE_AND_GIVE, false, 0.55},
	{TAKE_AND_GIVE, TOGETHER, TAKE_AND_GIVE, false, 0},
	{ACQUIRE_AND_RELEASE, TOGETHER, TAKE_AND_GIVE, false, 0},
	{SELECT, ALONE, SELECT, false, 0},
	{ACQUIRE_IN_VAIN, ALONE, SELECT, false, 0},
	{IS_LEADER_TERM, ALONE, SELECT, false, 0},
	{TAKE_AND_GIVE, ALONE, TAKE_AND_GIVE, true, 0},
	{ACQUIRE_AND_RELEASE, ALONE, TAKE_AND_GIVE, true, 0.75},
	{TAKE_AND_GIVE, APART, TAKE_AND_GIVE, true, 0},
	{ACQUIRE_AND_RELEASE, APART, TAKE_AND_GIVE, true, 0.55},
};

#define NMEASURES (int) (sizeof(measures) / sizeof(measures[0]))

typedef struct Client
{
	PGconn	   *conn;
	char		name[40];
	char		seat[40];
	char		term[40];		/* empty: not known */
	bool		busy;			/* a statement is under way */
	bool		holds;			/* the next one is to give the seat back */
} Client;

/* What the clients of one measure do, and have done */
typedef struct Run
{
	const Kind *kind;
	Client	   *clients;
	int			nclients;
	double		end;
	bool		contested;		/* they may be refused */
	int			done;			/* before the end */
	int			refused;
	int			busy;			/* so many of these with an error */
} Run;

static PGconn *monitor;
static Client all_clients[NMEASURES][MANY];
static Sample rates[NMEASURES];
static int	done[NMEASURES];
static int	refused[NMEASURES];
static int	busy[NMEASURES];

static void
prepare(PGconn *conn, const char *name, const char *sql)
{
	PGresult   *result = PQprepare(conn, name, sql, 0, NULL);

	if (PQresultStatus(result) != PGRES_COMMAND_OK)
		die("%s", PQerrorMessage(conn));
	PQclear(result);
}

/*
 * Connect the clients of a measure.  Each has a connection that does nothing
 * else, and seats that no other measure uses: whoever stands for one, and when
 * it led last, decides who may follow.
 */
static void
connect_clients(int m)
{
	const Measure *measure = &measures[m];
	const Kind *kind = &kinds[measure->kind];

	for (int i = 0; i < (measure->crowd == ALONE ? 1 : MANY); i++)
	{
		Client	   *c = &all_clients[m][i];

		snprintf(c->name, sizeof(c->name), "client %d", i);
		snprintf(c->seat, sizeof(c->seat), "seat %d.%d", m,
				 measure->crowd == TOGETHER ? 0 : i);
		c->conn = new_connection(c->name);
		run(c->conn, "INSERT INTO bench_row (id) VALUES ('%s') "
			"ON CONFLICT DO NOTHING", c->seat);
		if (kind->stage == AS_SESSION)
			run(c->conn, "SELECT leader_election.join('%s', '%s')", c->seat,
				c->name);
		prepare(c->conn, "take", kind->take);
		if (kind->give != NULL)
			prepare(c->conn, "give", kind->give);
	}
}

/*
 * Does nobody before this client have the same seat?
 */
static bool
is_first(const Run *r, int i)
{
	return i == 0 || !r->contested;
}

/*
 * Have the seats led, where the clients need that, by somebody who leaves
 * nothing behind in the end.
 */
static void
take_seats(Run *r)
{
	for (int i = 0; r->kind->stage >= WITH_TERM && i < r->nclients; i++)
	{
		Client	   *c = &r->clients[i];
		char	   *term;

		if (!is_first(r, i))
		{
			memcpy(c->term, r->clients[0].term, sizeof(c->term));
			continue;
		}
		term = ask(monitor, "SELECT term "
				   "FROM leader_election.acquire('%s', 'holder')", c->seat);
		if (term == NULL)
			die("nobody leads \"%s\"", c->seat);
		snprintf(c->term, sizeof(c->term), "%s", term);
		free(term);
	}
}

static void
leave_seats(Run *r)
{
	for (int i = 0; r->kind->stage >= WITH_TERM && i < r->nclients; i++)
	{
		Client	   *c = &r->clients[i];

		if (!is_first(r, i))
			continue;
		wait_for(monitor, "SELECT leader_election.release('%s', %s)", c->seat,
				 c->term);
		wait_for(monitor, "SELECT leader_election.leave('%s', 'holder')",
				 c->seat);
	}
}

static void
send_statement(Run *r, Client *c)
{
	bool		says_term = c->term[0] != '\0' && r->kind->stage != IN_VAIN;
	const char *args[2] = {c->seat, says_term ? c->term : c->name};

	if (!PQsendQueryPrepared(c->conn, c->holds ? "give" : "take",
							 r->kind->nargs, args, NULL, NULL, 0))
		die("%s", PQerrorMessage(c->conn));
	c->busy = true;
}

static bool
is_busy(PGresult *result)
{
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	return state != NULL && strcmp(state, "55P03") == 0;
}

/*
 * Did the statement do what it says?  A row was updated, or returned, and is
 * not "false".
 */
static bool
succeeded(Run *r, Client *c, PGresult *result)
{
	switch (PQresultStatus(result))
	{
		case PGRES_COMMAND_OK:
			return strcmp(PQcmdTuples(result), "1") == 0;
		case PGRES_TUPLES_OK:
			return PQntuples(result) == 1 &&
				strcmp(PQgetvalue(result, 0, 0), "f") != 0;
		default:
			if (!is_busy(result))
				die("%s: %s", r->kind->name, PQerrorMessage(c->conn));
			r->busy++;
			return false;
	}
}

/*
 * A client has its answer: on to the next statement.  When the time is over
 * it only gives back what it holds.
 */
static void
take_answer(Run *r, Client *c)
{
	PGresult   *result = PQgetResult(c->conn);
	bool		as_meant = succeeded(r, c, result) != (r->kind->stage == IN_VAIN);
	double		now = now_us();

	c->busy = false;
	if (!as_meant)
	{
		if (!r->contested || (c->holds && !is_busy(result)))
			die("%s: \"%s\" was refused \"%s\"", r->kind->name, c->name,
				c->seat);
		r->refused++;
	}
	else if (r->kind->give == NULL || c->holds)
	{
		c->holds = false;
		if (r->kind->give != NULL)
			c->term[0] = '\0';
		if (now < r->end)
			r->done++;
	}
	else
	{
		c->holds = true;
		if (PQntuples(result) == 1)
			snprintf(c->term, sizeof(c->term), "%s", PQgetvalue(result, 0, 0));
	}
	PQclear(result);
	while ((result = PQgetResult(c->conn)) != NULL)
		PQclear(result);
	if (c->holds || now < r->end)
		send_statement(r, c);
}

/*
 * Let all clients of a measure do their thing for a while; returns how often
 * per second it was done, by all of them together.
 */
static double
measure_once(int m)
{
	Run			r = {.kind = &kinds[measures[m].kind], .clients = all_clients[m]};
	struct pollfd fds[MANY];
	double		us = measures[m].slow ? SLOW_ROUND_US : ROUND_US;
	int			nbusy;

	r.nclients = measures[m].crowd == ALONE ? 1 : MANY;
	r.contested = measures[m].crowd == TOGETHER;
	take_seats(&r);
	r.end = now_us() + us;
	for (int i = 0; i < r.nclients; i++)
	{
		fds[i].events = POLLIN;
		send_statement(&r, &r.clients[i]);
	}
	do
	{
		nbusy = 0;
		for (int i = 0; i < r.nclients; i++)
		{
			fds[i].fd = r.clients[i].busy ? PQsocket(r.clients[i].conn) : -1;
			nbusy += r.clients[i].busy;
		}
		if (nbusy > 0 && poll(fds, r.nclients, 60000) <= 0)
			die("%s: no answer", r.kind->name);
		for (int i = 0; nbusy > 0 && i < r.nclients; i++)
		{
			Client	   *c = &r.clients[i];

			if (fds[i].fd == -1 || fds[i].revents == 0)
				continue;
			if (!PQconsumeInput(c->conn))
				die("%s", PQerrorMessage(c->conn));
			if (!PQisBusy(c->conn))
				take_answer(&r, c);
		}
	} while (nbusy > 0);
	leave_seats(&r);

	done[m] += r.done;
	refused[m] += r.refused;
	busy[m] += r.busy;
	return r.done * 1e6 / us;
}

static int
find_base(const Measure *measure)
{
	for (int m = 0;; m++)
	{
		if (measures[m].kind == measure->base &&
			measures[m].crowd == measure->crowd &&
			measures[m].slow == measure->slow)
			return m;
	}
}

/*
 * The median of the quotients of each round.
 */
static double
ratio_of(int m, int base)
{
	Sample		quotients = {.n = 0};

	for (int round = 0; round < rates[m].n; round++)
		add(&quotients, rates[m].values[round] / rates[base].values[round]);
	return median(&quotients);
}

static const char *
name_of(int m)
{
	return text("%s, %s%s", kinds[measures[m].kind].name,
				crowd_names[measures[m].crowd],
				measures[m].slow ? ", 5 ms" : "");
}

static void
measure_all(bool slow)
{
	if (slow)
	{
		set_server(monitor, "commit_siblings", "0");
		set_server(monitor, "commit_delay", SLOW_COMMIT);
	}
	for (int round = 0; round <= ROUNDS; round++)
	{
		for (int i = 0; i < NMEASURES; i++)
		{
			int			m = round % 2 == 0 ? i : NMEASURES - 1 - i;
			double		rate;

			if (measures[m].slow != slow)
				continue;
			rate = measure_once(m);
			if (round > 0)		/* the first one is to warm up */
				add(&rates[m], rate);
		}
	}
	if (slow)
	{
		set_server(monitor, "commit_delay", NULL);
		set_server(monitor, "commit_siblings", NULL);
	}
}

static void
report_measure(int m)
{
	const Measure *measure = &measures[m];
	int			floor = find_base(measure);
	double		ratio = ratio_of(m, floor);

	report(name_of(m), "1/s", &rates[m], (Against) {
		.floor = name_of(floor), .ratio = ratio,
		.target = measure->target > 0 ?
			text("ratio >= %.2f", measure->target) : NULL,
		.met = ratio >= measure->target
	});
}

int
main(void)
{
	monitor = new_connection("monitor");
	run(monitor, "CREATE TABLE bench_row (id text PRIMARY KEY, owner text, "
		"n bigint DEFAULT 0) WITH (fillfactor = 30)");
	for (int m = 0; m < NMEASURES; m++)
		connect_clients(m);
	measure_all(false);
	measure_all(true);
	run(monitor, "DROP TABLE bench_row");

	for (int m = 0; m < NMEASURES; m++)
		report_measure(m);
	for (int m = 0; m < NMEASURES; m++)
	{
		if (measures[m].crowd == TOGETHER)
			report_note("  %s: refused %.1f times for each success, "
						"busy %d times", name_of(m),
						(double) refused[m] / done[m], busy[m]);
		for (int i = 0; i < MANY && all_clients[m][i].conn != NULL; i++)
			PQfinish(all_clients[m][i].conn);
	}
	PQfinish(monitor);
	return 0;
}
