/*-------------------------------------------------------------------------
 *
 * client.c
 *		A client of the linearizability test: calls what can be called about
 *		elections, at random, and writes down when it called and what it was told.
 *
 *	client NAME SEED HISTORY TERMS CONNECTION[|CONNECTION...] LEASE_MS OBJECT...
 *
 * An OBJECT is an election NAME, an election of runs NAME=run, or a group NAME*SEATS.
 * The file TERMS is shared by all clients: each publishes there which term it was
 * granted, so that others call with it, too. README.md has the format of HISTORY.
 *
 * With LINEAR_NO_REGISTER in the environment it runs no fenced transactions: in sessions
 * with synchronous_commit = off, their commits would not be durable.
 *
 * A call is written before it is sent, and its answer after it was received.  A call
 * without an answer (the client or its connection died, or a wait for a standby was
 * cut short) has an unknown outcome: it may take effect at any later time, or never.
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <libpq-fe.h>

#include "../chaos/log.h"

#define MAX_SEATS		16
#define MAX_CONNECTIONS	4
#define ANSWER_MS		3000	/* then the connection is given up */
#define ASKED_AGAIN		3		/* an acquire() whose answer was lost */
#define RUN_MS			700		/* so often a new run is due */

typedef enum Outcome
{
	ANSWERED, REFUSED, UNKNOWN
} Outcome;

typedef struct Seat
{
	int64_t		term;			/* in which this client leads, or 0 */
	int64_t		renew_at;
	char		name[60];
	char		object[60];		/* the election, or the group of the seat */
	int			renewals;		/* that are left until it gives up */
	bool		of_group;
	bool		has_runs;
	bool		has_run;		/* this term is for a run */
} Seat;

static Seat seats[MAX_SEATS];
static int	nseats;
static int64_t *terms;			/* of each seat the greatest that was granted */
static const char *name;
static int64_t lease_us;
static char *connections[MAX_CONNECTIONS];
static int	nconnections;
static PGconn *conn;
static char sqlstate[6];
static bool warned;				/* a wait for a standby was cut short */
static int64_t sent;
static int64_t received;
static int	last_id;

static bool
chance(int per_mille)
{
	return random() % 1000 < per_mille;
}

static void
receive_notice(void *arg, const PGresult *result)
{
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	if (message != NULL && strstr(message, "synchronous replication") != NULL)
		warned = true;
}

static bool
connected(void)
{
	if (conn != NULL)
		return true;
	conn = PQconnectdb(connections[random() % nconnections]);
	if (PQstatus(conn) == CONNECTION_OK)
	{
		PQsetNoticeReceiver(conn, receive_notice, NULL);
		return true;
	}
	PQfinish(conn);
	conn = NULL;
	pause_ms(50 + random() % 100);
	return false;
}

static void
give_up_connection(void)
{
	PQfinish(conn);
	conn = NULL;
}

/* The last result of what was sent; NULL: there was none in time */
static PGresult *
receive(void)
{
	PGresult   *result = NULL;

	for (;;)
	{
		struct pollfd fd = {PQsocket(conn), POLLIN, 0};
		PGresult   *next;

		while (PQisBusy(conn))
		{
			int64_t		left = ANSWER_MS - (now_us() - sent) / 1000;

			if (left <= 0 || poll(&fd, 1, left) <= 0)
			{
				PQclear(result);
				return NULL;
			}
			if (!PQconsumeInput(conn))
				break;
		}
		next = PQgetResult(conn);
		if (next == NULL)
			return result;
		PQclear(result);
		result = next;
	}
}

/*
 * Sends a statement.  ANSWERED: *result is the answer, for the caller to clear.
 * REFUSED: an error, in sqlstate; the server has undone what it did.  UNKNOWN: no
 * answer, or one that a failover may take back.
 */
static Outcome
ask(PGresult **result, const char *format,...)
{
	char		sql[600];
	va_list		args;
	bool		ok;

	va_start(args, format);
	vsnprintf(sql, sizeof(sql), format, args);
	va_end(args);
	*result = NULL;
	warned = false;
	if (conn == NULL)
		return UNKNOWN;
	sent = now_us();
	*result = PQsendQuery(conn, sql) ? receive() : NULL;
	received = now_us();
	if (*result == NULL || PQstatus(conn) != CONNECTION_OK)
	{
		PQclear(*result);
		*result = NULL;
		give_up_connection();
		return UNKNOWN;
	}
	ok = PQresultStatus(*result) == PGRES_TUPLES_OK ||
		PQresultStatus(*result) == PGRES_COMMAND_OK;
	snprintf(sqlstate, sizeof(sqlstate), "%s", ok ? "00000" :
			 PQresultErrorField(*result, PG_DIAG_SQLSTATE));
	if (ok && !warned)
		return ANSWERED;
	PQclear(*result);
	*result = NULL;
	return ok ? UNKNOWN : REFUSED;
}

/* --- the history: a line for a call, and one for its answer */

static void
note_call(const Seat *seat, const char *op, const char *format,...)
{
	char		rest[300];
	va_list		args;

	va_start(args, format);
	vsnprintf(rest, sizeof(rest), format, args);
	va_end(args);
	note("{\"id\": %d, \"client\": \"%s\", \"op\": \"%s\", \"object\": \"%s\", "
		 "\"seat\": \"%s\", %s, \"call\": %lld}", ++last_id, name, op,
		 seat->object, seat->name, rest, (long long) now_us());
}

/* With when that was sent which was answered (it may be sent again), and by whom */
static void
note_answer(const char *format,...)
{
	char		rest[700];
	va_list		args;

	va_start(args, format);
	vsnprintf(rest, sizeof(rest), format, args);
	va_end(args);
	note("{\"id\": %d, \"return\": %lld, \"sent\": %lld, \"server\": \"%s\", %s}",
		 last_id, (long long) received, (long long) sent, PQport(conn), rest);
}

/* An error: the call has had no effect. */
static void
note_refusal(void)
{
	note_answer("\"failed\": \"%s\"", sqlstate);
}

/* --- the calls */

static void
publish(Seat *seat, int64_t term)
{
	int64_t	   *known = &terms[seat - seats];
	int64_t		last = *known;

	while (last < term && !__sync_bool_compare_and_swap(known, last, term))
		last = *known;
}

static Seat *
find_seat(const char *seat_name)
{
	for (int i = 0; i < nseats; i++)
	{
		if (strcmp(seats[i].name, seat_name) == 0)
			return &seats[i];
	}
	abort();
}

/* The rows of a grant: seat, term, remaining ms */
static void
note_grants(const PGresult *result)
{
	char		rows[600] = "";
	int			length = 0;

	for (int i = 0; i < PQntuples(result); i++)
		length += snprintf(rows + length, sizeof(rows) - length,
						   "%s[\"%s\", %s, %s]", i > 0 ? ", " : "",
						   PQgetvalue(result, i, 0), PQgetvalue(result, i, 1),
						   PQgetvalue(result, i, 2));
	note_answer("\"rows\": [%s]", rows);
	for (int i = 0; i < PQntuples(result); i++)
	{
		Seat	   *seat = find_seat(PQgetvalue(result, i, 0));

		seat->term = strtoll(PQgetvalue(result, i, 1), NULL, 10);
		seat->renew_at = received + lease_us / 2;
		publish(seat, seat->term);
	}
}

static void
acquire(Seat *seat)
{
	char		request[40];
	char		run[60] = "";
	char		run_argument[100] = "";
	int			attempts = chance(500) ? 1 : 2;
	PGresult   *result = NULL;
	Outcome		outcome = UNKNOWN;

	if (seat->has_runs && chance(900))
	{
		snprintf(run, sizeof(run), "%012lld",
				 (long long) (now_us() / 1000 / RUN_MS - chance(100)));
		snprintf(run_argument, sizeof(run_argument),
				 ", run => '%s', attempts => %d", run, attempts);
	}
	snprintf(request, sizeof(request), "%08lx-0000-4000-8000-%04lx%08lx",
			 random(), random() % 65536, random());
	if (*run)
		note_call(seat, "acquire", "\"run\": \"%s\", \"attempts\": %d", run,
				  attempts);
	else
		note_call(seat, "acquire", "\"run\": null");
	for (int i = 0; i < ASKED_AGAIN && outcome == UNKNOWN; i++)
	{
		if (!connected())
			continue;
		outcome = seat->of_group ?
			ask(&result, "SELECT election, term, remaining_ms FROM "
				"leader_election.acquire_any('%s', '%s', request => '%s')",
				seat->object, name, request) :
			ask(&result, "SELECT '%s', term, remaining_ms FROM "
				"leader_election.acquire('%s', '%s', request => '%s'%s)",
				seat->name, seat->object, name, request, run_argument);
		if (warned)
			return;				/* it may be lost: nobody is to use it */
	}
	if (outcome == ANSWERED)
	{
		int			rows = PQntuples(result);

		note_grants(result);
		if (rows > 0)
		{
			Seat	   *got = find_seat(PQgetvalue(result, 0, 0));

			got->renewals = random() % 6;
			got->has_run = *run != '\0';
		}
	}
	else if (outcome == REFUSED)
		note_refusal();
	PQclear(result);
}

static void
renew(Seat *seat, int64_t term)
{
	PGresult   *result;
	Outcome		outcome;

	note_call(seat, "renew", "\"term\": %lld", (long long) term);
	outcome = ask(&result, "SELECT '%s', term, remaining_ms FROM "
				  "leader_election.renew('%s', %lld)", seat->name, seat->name,
				  (long long) term);
	if (outcome == ANSWERED)
	{
		if (PQntuples(result) == 0 && term == seat->term)
			seat->term = 0;
		if (term == seat->term)
			note_grants(result);
		else if (PQntuples(result) == 0)
			note_answer("\"rows\": []");
		else
			note_answer("\"rows\": [[\"%s\", %s, %s]]", seat->name,
						PQgetvalue(result, 0, 1), PQgetvalue(result, 0, 2));
	}
	else if (outcome == REFUSED)
		note_refusal();
	PQclear(result);
}

/* A call that is answered with true or false */
static Outcome
ask_boolean(Seat *seat, const char *op, int64_t term, const char *call)
{
	PGresult   *result;
	Outcome		outcome;

	note_call(seat, op, "\"term\": %lld", (long long) term);
	outcome = ask(&result, "SELECT leader_election.%s", call);
	if (outcome == ANSWERED)
		note_answer("\"value\": %s", strcmp(op, "assert") == 0 ||
					PQgetvalue(result, 0, 0)[0] == 't' ? "true" : "false");
	else if (outcome == REFUSED && strcmp(sqlstate, "LE001") == 0)
		note_answer("\"value\": false");
	else if (outcome == REFUSED)
		note_refusal();
	PQclear(result);
	return outcome;
}

static void
release(Seat *seat, int64_t term, bool done)
{
	char		call[200];

	snprintf(call, sizeof(call), "release('%s', %lld, done => %s)", seat->name,
			 (long long) term, done ? "true" : "false");
	ask_boolean(seat, done ? "release done" : "release", term, call);
	if (seat->term == term)
		seat->term = 0;
}

static void
is_leader(Seat *seat, int64_t term)
{
	char		call[200];

	snprintf(call, sizeof(call), "is_leader('%s', %lld)", seat->name,
			 (long long) term);
	ask_boolean(seat, "is_leader", term, call);
}

/*
 * A fenced transaction reads the seat's register, whose row it locks, so that what it
 * has read is so when it commits; and it may write it.  What is written down as the
 * operation is its COMMIT.
 */
static void
use_register(Seat *seat, int64_t term, bool writes)
{
	char		call[200];
	char		old[80];
	char		new[80];
	PGresult   *result;
	Outcome		outcome;

	outcome = ask(&result, "BEGIN");
	PQclear(result);
	if (outcome != ANSWERED)
		return;
	snprintf(call, sizeof(call), "assert_leader('%s', %lld)", seat->name,
			 (long long) term);
	if (ask_boolean(seat, "assert", term, call) == ANSWERED &&
		ask(&result, "SELECT value FROM linear.register WHERE name = '%s' FOR %s",
			seat->name, writes ? "UPDATE" : "SHARE") == ANSWERED)
	{
		snprintf(old, sizeof(old), "%s", PQgetvalue(result, 0, 0));
		PQclear(result);
		snprintf(new, sizeof(new), "%s-%d-%d", name, (int) getpid(), last_id);
		outcome = !writes ? ANSWERED :
			ask(&result, "UPDATE linear.register SET value = '%s' WHERE name = '%s'",
				new, seat->name);
		if (writes)
			PQclear(result);
		if (outcome == ANSWERED)
		{
			if (chance(50))
				pause_ms(random() % (lease_us / 800));
			if (writes)
				note_call(seat, "write", "\"term\": %lld, \"old\": \"%s\", \"new\": \"%s\"",
						  (long long) term, old, new);
			else
				note_call(seat, "read", "\"term\": %lld, \"old\": \"%s\"",
						  (long long) term, old);
			outcome = ask(&result, "COMMIT");
			PQclear(result);
			if (outcome == ANSWERED)
				note_answer("\"value\": true");
			else if (outcome == REFUSED && strcmp(sqlstate, "LE002") == 0)
				note_answer("\"value\": false");
			else if (outcome == REFUSED)
				note_refusal();
		}
	}
	if (conn != NULL && PQtransactionStatus(conn) != PQTRANS_IDLE)
	{
		ask(&result, "ROLLBACK");
		PQclear(result);
	}
}

/* --- what is called next */

static void
ask_about(Seat *seat, int64_t term)
{
	int			die = random() % 100;

	if (die < 40 || getenv("LINEAR_NO_REGISTER") != NULL)
		is_leader(seat, term);
	else
		use_register(seat, term, die < 75);
}

/* A leader renews some times, and then releases, or lets the lease run out. */
static void
lead(Seat *seat)
{
	if (seat->renewals == 0)
	{
		int64_t		term = seat->term;

		seat->term = 0;
		if (chance(600))
			release(seat, term, seat->has_run && chance(700));
	}
	else if (now_us() >= seat->renew_at)
	{
		seat->renewals--;
		renew(seat, seat->term);
	}
	else
		ask_about(seat, seat->term);
}

static void
follow(Seat *seat)
{
	int64_t		known = terms[seat - seats];
	int			die = random() % 100;

	if (known > 1 && chance(50))
		known--;				/* a term that is over, perhaps */
	if (known == 0 || die < 50)
		acquire(seat);
	else if (die < 54)
		renew(seat, known);
	else if (die < 57)
		release(seat, known, seat->has_runs && chance(300));
	else
		ask_about(seat, known);
}

static void
add_object(char *object)
{
	char	   *star = strchr(object, '*');
	char	   *runs = strchr(object, '=');
	int			n = star != NULL ? atoi(star + 1) : 1;

	if (star != NULL)
		*star = '\0';
	if (runs != NULL)
		*runs = '\0';
	for (int i = 1; i <= n && nseats < MAX_SEATS; i++)
	{
		Seat	   *seat = &seats[nseats++];

		snprintf(seat->object, sizeof(seat->object), "%s", object);
		snprintf(seat->name, sizeof(seat->name), star ? "%.50s/%d" : "%s", object, i);
		seat->of_group = star != NULL;
		seat->has_runs = runs != NULL;
	}
}

int
main(int argc, char **argv)
{
	int			fd;

	if (argc < 8)
		return 2;
	name = argv[1];
	srandom(atoi(argv[2]) * 7919 + getpid());
	if (!open_log(argv[3]) || (fd = open(argv[4], O_RDWR)) < 0)
		return 1;
	terms = mmap(NULL, MAX_SEATS * sizeof(*terms), PROT_READ | PROT_WRITE,
				 MAP_SHARED, fd, 0);
	if (terms == MAP_FAILED)
		return 1;
	for (char *one = strtok(argv[5], "|");
		 one != NULL && nconnections < MAX_CONNECTIONS; one = strtok(NULL, "|"))
		connections[nconnections++] = one;
	lease_us = atoll(argv[6]) * 1000;
	for (int i = 7; i < argc; i++)
		add_object(argv[i]);

	for (;;)
	{
		Seat	   *seat = &seats[random() % nseats];

		if (!connected())
			continue;
		if (seat->term != 0)
			lead(seat);
		else
			follow(seat);
		if (chance(5))
			pause_ms(random() % (lease_us / 500));
		pause_ms(random() % 8);
	}
}
