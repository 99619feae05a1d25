/*-------------------------------------------------------------------------
 *
 * watcher.c
 *		An observer of the chaos run: it stands for nothing, and writes down what
 *		it was told, and when.
 *
 *		watcher KIND NAME SEED LOG CONNECTIONS ELECTION...
 *
 *	CONNECTIONS	connection strings with | between them, of which each connection
 *				takes one at random
 *	KIND		changes   waits for changes of one of the elections
 *				status    reads status, and what diagnose() says
 *
 * A line of the log is one write().  Times are microseconds of CLOCK_BOOTTIME:
 *
 *	p ELECTION time MS TERM LEADER	about to call wait_for_change() with these
 *	h ELECTION sent received MS TERM LEADER TERM LEADER	wait_for_change() with
 *							this timeout and the first pair answered the second
 *							("-": nobody)
 *	o ELECTION sent received STATE TERM LEADER WAITING_FOR	a row of status
 *	f ELECTION sent received SEVERITY FINDING	the first row of diagnose()
 *	F ELECTION sent received SEVERITY FINDING	each further row
 *	e time SQLSTATE WHAT	an error
 *	x time WHAT				the connection was lost
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

#include "log.h"
#include "timeouts.h"

#define MAX_CONNECTIONS 4
#define STATUS_MS		150

static char *connections[MAX_CONNECTIONS];
static int	nconnections;
static char **elections;
static int	nelections;
static PGconn *conn;
static int64_t sent;			/* of the last statement */
static int64_t received;

/*
 * The rows of the answer; NULL if there are none, or after an error.
 */
static PGresult *
query(const char *sql, int nparams, const char *const *params)
{
	PGresult   *result;

	sent = now_us();
	result = PQexecParams(conn, sql, nparams, NULL, params, NULL, NULL, 0);
	received = now_us();
	if (PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) > 0)
		return result;
	if (PQstatus(conn) != CONNECTION_OK ||
		(PQresultStatus(result) != PGRES_TUPLES_OK &&
		 PQresultErrorField(result, PG_DIAG_SQLSTATE) == NULL))
	{
		note("x %lld lost", (long long) received);
		PQfinish(conn);
		conn = NULL;
	}
	else if (PQresultStatus(result) != PGRES_TUPLES_OK)
		note("e %lld %s %.60s: %s", (long long) received,
			 PQresultErrorField(result, PG_DIAG_SQLSTATE), sql,
			 PQresultErrorMessage(result));
	PQclear(result);
	return NULL;
}

/* A value without spaces, or "-" */
static const char *
value(const PGresult *result, int row, int column)
{
	char	   *text = PQgetvalue(result, row, column);

	for (char *c = text; *c != '\0'; c++)
	{
		if (*c == ' ')
			*c = '_';
	}
	return *text != '\0' ? text : "-";
}

/*
 * Once in a while, other timeouts; none of them when that is over, however often
 * they end the statement that says so.
 */
static void
press_session(void)
{
	static bool drawn = false;
	bool		any = pressed();
	PGresult   *result;

	if (any ? random() % 10 != 0 : !drawn)
		return;
	result = query(set_timeouts(any, PQserverVersion(conn)), 0, NULL);
	drawn = any || result == NULL;
	PQclear(result);
}

/*
 * Wait for changes of an election, from nothing known on, for as long as the
 * connection lasts, and some calls at most.
 */
static void
watch_changes(const char *election)
{
	char		term[30] = "-";
	char		leader[300] = "-";

	for (int i = 0; i < 50 && conn != NULL; i++)
	{
		char		ms[20];
		char		timeout[30];
		const char *params[] = {election,
			strcmp(term, "-") != 0 ? term : NULL,
			strcmp(leader, "-") != 0 ? leader : NULL, timeout};
		int			longest = random() % 4 == 0 ? 10000 : 3000;
		PGresult   *result;

		press_session();
		if (conn == NULL)
			return;
		snprintf(ms, sizeof(ms), "%ld", 200 + random() % longest);
		snprintf(timeout, sizeof(timeout), "%s ms", ms);
		note("p %s %lld %s %s %s", election, (long long) now_us(), ms, term, leader);
		result = query("CALL leader_election.wait_for_change($1, $2::bigint, $3, $4::interval)",
					   4, params);
		if (result == NULL)
		{
			pause_ms(100);
			continue;
		}
		note("h %s %lld %lld %s %s %s %s %s", election, (long long) sent,
			 (long long) received, ms, term, leader, value(result, 0, 0),
			 value(result, 0, 1));
		snprintf(term, sizeof(term), "%s", value(result, 0, 0));
		snprintf(leader, sizeof(leader), "%s", value(result, 0, 1));
		PQclear(result);
	}
}

static void
read_status(const char *election)
{
	PGresult   *result;

	press_session();
	if (conn == NULL)
		return;

	/* The thousands that a huge statement has made are vacant, nearly always. */
	result = query("SELECT election, state, term, leader, waiting_for "
				   "FROM leader_election.status "
				   "WHERE election NOT LIKE 'huge-%' OR random() < 0.02", 0, NULL);
	for (int i = 0; result != NULL && i < PQntuples(result); i++)
		note("o %s %lld %lld %s %s %s %s", value(result, i, 0), (long long) sent,
			 (long long) received, value(result, i, 1), value(result, i, 2),
			 value(result, i, 3), value(result, i, 4));
	PQclear(result);
	if (conn == NULL)
		return;
	result = query("SELECT severity, finding FROM leader_election.diagnose($1)",
				   1, &election);
	for (int i = 0; result != NULL && i < PQntuples(result); i++)
		note("%c %s %lld %lld %s %s", i == 0 ? 'f' : 'F', election,
			 (long long) sent, (long long) received, value(result, i, 0),
			 value(result, i, 1));
	PQclear(result);
	pause_ms(STATUS_MS);
}

int
main(int argc, char **argv)
{
	if (argc < 7)
	{
		fprintf(stderr, "usage: see watcher.c\n");
		return 2;
	}
	srandom(atoi(argv[3]));
	if (!open_log(argv[4]))
		return 1;
	for (char *one = strtok(argv[5], "|");
		 one != NULL && nconnections < MAX_CONNECTIONS; one = strtok(NULL, "|"))
		connections[nconnections++] = one;
	elections = argv + 6;
	nelections = argc - 6;
	for (;;)
	{
		const char *election = elections[random() % nelections];

		if (conn == NULL)
		{
			conn = PQconnectdb(connections[random() % nconnections]);
			if (PQstatus(conn) != CONNECTION_OK)
			{
				PQfinish(conn);
				conn = NULL;
				pause_ms(100);
				continue;
			}
		}
		if (strcmp(argv[1], "changes") == 0)
			watch_changes(election);
		else
			read_status(election);
	}
}
