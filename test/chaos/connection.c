/*-------------------------------------------------------------------------
 *
 * connection.c
 *		What a candidate of the chaos run says to a server: its connection, and
 *		its statements.
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "candidate.h"

#define MAX_CONNECTIONS	4
#define ANSWER_MS		3000	/* then the connection is given up */

PGconn	   *conn;
int			serial;
bool		warned;
int64_t		sent;
int64_t		received;
char		sqlstate[6];

static char *connections[MAX_CONNECTIONS];
static int	nconnections;

/* True once in a while: per mille of the calls */
bool
chance(int per_mille)
{
	return random() % 1000 < per_mille;
}

void
give_up_connection(const char *why)
{
	note("x %lld %s", (long long) now_us(), why);
	PQfinish(conn);
	conn = NULL;
}

static void
receive_notice(void *arg, const PGresult *result)
{
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	if (message != NULL && strstr(message, "synchronous replication") != NULL)
		warned = true;
}

/*
 * The answer to a statement; NULL if there was none, or an error, which is in
 * sqlstate then ("08006": the connection is lost, and the outcome unknown).
 */
PGresult *
query(const char *format,...)
{
	char		sql[1000];
	va_list		args;
	PGresult   *result = NULL;
	PGresult   *next;
	bool		resets;

	va_start(args, format);
	vsnprintf(sql, sizeof(sql), format, args);
	va_end(args);
	resets = strstr(sql, "DISCARD ALL") != NULL || strstr(sql, "unlock_all()") != NULL;
	strcpy(sqlstate, "08006");
	warned = false;
	if (conn == NULL)
		return NULL;
	sent = now_us();
	if (!PQsendQuery(conn, sql))
	{
		give_up_connection("not sent");
		return NULL;
	}
	for (;;)
	{
		struct pollfd fd = {PQsocket(conn), POLLIN, 0};

		while (PQisBusy(conn))
		{
			int64_t		left = sent / 1000 + ANSWER_MS - now_us() / 1000;

			if (left <= 0 || poll(&fd, 1, left) <= 0)
			{
				PQclear(result);
				give_up_connection("no answer");
				return NULL;
			}
			if (!PQconsumeInput(conn))
				break;
		}
		next = PQgetResult(conn);
		if (next == NULL)
			break;
		PQclear(result);
		result = next;
	}
	received = now_us();
	if (PQstatus(conn) != CONNECTION_OK)
	{
		PQclear(result);
		give_up_connection("lost");
		return NULL;
	}
	if (PQresultStatus(result) == PGRES_TUPLES_OK ||
		PQresultStatus(result) == PGRES_COMMAND_OK)
	{
		strcpy(sqlstate, "00000");
		if (resets)
			note("z %d %lld %lld", serial, (long long) sent,
				 (long long) received);
		return result;
	}
	snprintf(sqlstate, sizeof(sqlstate), "%s",
			 PQresultErrorField(result, PG_DIAG_SQLSTATE) ?
			 PQresultErrorField(result, PG_DIAG_SQLSTATE) : "?????");
	note("e %lld %s %lld %.60s: %s", (long long) received, sqlstate,
		 (long long) sent, sql, PQresultErrorMessage(result));
	if (resets)
		note("y %d %lld %lld", serial, (long long) sent, (long long) received);
	PQclear(result);
	return NULL;
}

bool
succeeded(void)
{
	return strcmp(sqlstate, "00000") == 0;
}

int
server_version(void)
{
	return conn != NULL ? PQserverVersion(conn) : 0;
}

/* The first value as a number; 0 if there is none */
int64_t
number(const PGresult *result, int row, int column)
{
	if (result == NULL || PQntuples(result) <= row)
		return 0;
	return strtoll(PQgetvalue(result, row, column), NULL, 10);
}

/*
 * Connection strings with | between them
 */
void
note_connections(char *list)
{
	for (char *one = strtok(list, "|");
		 one != NULL && nconnections < MAX_CONNECTIONS; one = strtok(NULL, "|"))
		connections[nconnections++] = one;
}

/*
 * False: there is no connection, after a while.
 */
bool
connect_again(void)
{
	conn = PQconnectdb(connections[random() % nconnections]);
	if (PQstatus(conn) != CONNECTION_OK)
	{
		PQfinish(conn);
		conn = NULL;
		pause_ms(50 + random() % 100);
		return false;
	}
	serial++;
	PQsetNoticeReceiver(conn, receive_notice, NULL);
	return true;
}
