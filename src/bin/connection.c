/*-------------------------------------------------------------------------
 *
 * connection.c
 *		libpq without a wait that nothing can interrupt.
 *
 * Invariant: whatever is waited for has a limit, and while it is, a watcher
 * is called for what happens elsewhere (signals, the guardian).  A query that
 * was not answered costs the connection: what it did is not known, and no
 * later query can be taken for it.
 *
 * (One wait of libpq has no limit here: that for the name server.  The guardian
 * keeps the deadline all the same.)
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include "common/string.h"

/* --- waiting */

static void
set_error(Connection *c, const char *message)
{
	pg_free(c->error);
	c->error = pg_strdup(message);
	(void) pg_strip_crlf(c->error);
}

/*
 * Wait until a descriptor is ready (-1: none is looked at), a moment has come,
 * or the watcher says to stop.  True: it is ready.
 */
static bool
wait_ready(Connection *c, int fd, short events, int64 until, bool *stopped)
{
	*stopped = false;
	for (;;)
	{
		struct pollfd fds[3] = {{.fd = fd,.events = events}};
		int64		left = until - now_us();
		int			nfds = 1;
		int			ready;
		bool		happened = false;

		if (c->watcher != NULL)
			nfds += c->watcher->fds(fds + 1, c->watcher->arg);
		left = Max(Min(left, 3600 * SEC), 0);
		ready = poll(fds, nfds, (left + MSEC - 1) / MSEC);
		for (int i = 1; ready > 0 && i < nfds; i++)
			happened = happened || fds[i].revents != 0;
		if (happened && c->watcher->on_event(c->watcher->arg))
		{
			*stopped = true;
			return false;
		}
		if (ready > 0 && fds[0].revents != 0)
			return true;
		if (now_us() >= until)
			return false;
	}
}

/*
 * Wait until a moment, or for something to happen: true then, and it is for the
 * caller to find out what.  A connection that is lost is closed here.
 */
bool
connection_wait(Connection *c, int64 until)
{
	bool		stopped;

	if (!wait_ready(c, c->conn == NULL ? -1 : PQsocket(c->conn), POLLIN, until,
					&stopped))
		return stopped;
	if (!PQconsumeInput(c->conn) || PQstatus(c->conn) != CONNECTION_OK)
		connection_fail(c, PQerrorMessage(c->conn));
	return true;
}

/* --- connecting */

/*
 * Close it, and remember why.
 */
void
connection_fail(Connection *c, const char *message)
{
	set_error(c, message);
	connection_close(c);
}

void
connection_close(Connection *c)
{
	if (c->conn != NULL)
		PQfinish(c->conn);
	c->conn = NULL;
	c->listening = false;
}

/* Errors are told by whoever knows what to make of them. */
static void
ignore_notice(void *arg, const char *message)
{
}

/*
 * Try to connect once.  False: c->error says why not, or the watcher has
 * stopped it.
 */
bool
connection_open(Connection *c, int64 limit)
{
	Params		params;
	PostgresPollingStatusType state = PGRES_POLLING_WRITING;
	int64		until = now_us() + Min(limit, params_connect_timeout(c->options));
	bool		stopped = false;

	connection_close(c);
	params_set(&params, c);
	c->conn = PQconnectStartParams(params.keywords, params.values, 1);
	params_free(&params);
	if (c->conn == NULL)
		pg_fatal("out of memory");
	if (PQstatus(c->conn) == CONNECTION_BAD)
		state = PGRES_POLLING_FAILED;
	while (state == PGRES_POLLING_READING || state == PGRES_POLLING_WRITING)
	{
		if (!wait_ready(c, PQsocket(c->conn),
						state == PGRES_POLLING_READING ? POLLIN : POLLOUT,
						until, &stopped))
			break;
		state = PQconnectPoll(c->conn);
	}
	if (state == PGRES_POLLING_OK)
	{
		PQsetNoticeProcessor(c->conn, ignore_notice, NULL);
		text_encoding(PQclientEncoding(c->conn));
		return true;
	}
	if (state == PGRES_POLLING_FAILED)
		set_error(c, PQerrorMessage(c->conn));
	else
	{
		c->rotation++;
		set_error(c, stopped ? "interrupted" : "timeout expired");
	}
	connection_close(c);
	return false;
}

/* --- queries */

void
answer_free(Answer *answer)
{
	PQclear(answer->result);
	pg_free(answer->message);
	memset(answer, 0, sizeof(Answer));
}

/*
 * Take the result of the query that was sent.  True: this was the last one.
 */
static bool
take_result(Connection *c, Answer *answer)
{
	PGresult   *result = PQgetResult(c->conn);
	const char *sqlstate;

	if (result == NULL)
		return true;
	if (PQresultStatus(result) == PGRES_TUPLES_OK ||
		PQresultStatus(result) == PGRES_COMMAND_OK)
	{
		PQclear(answer->result);
		answer->result = result;
		answer->outcome = OUTCOME_ROWS;
		return false;
	}
	sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	strlcpy(answer->sqlstate, sqlstate == NULL ? "" : sqlstate,
			sizeof(answer->sqlstate));
	pg_free(answer->message);
	answer->message = pg_strdup(PQresultErrorMessage(result));
	(void) pg_strip_crlf(answer->message);
	answer->outcome = OUTCOME_ERROR;
	PQclear(result);
	return false;
}

static bool
read_answer(Connection *c, Answer *answer, int64 until, bool may_stop,
			bool *stopped)
{
	for (;;)
	{
		bool		said_stop;

		while (!PQisBusy(c->conn))
		{
			if (take_result(c, answer))
				return true;
		}
		if (PQflush(c->conn) < 0)
			return false;
		if (!wait_ready(c, PQsocket(c->conn), POLLIN, until, &said_stop))
		{
			*stopped = said_stop && may_stop;
			if (said_stop && !may_stop)
				continue;
			return false;
		}
		if (!PQconsumeInput(c->conn))
			return false;
	}
}

/*
 * Ask the server, and wait for the answer, but not longer than the limit.
 */
Answer
connection_query(Connection *c, const char *sql, int nparams,
				 const char *const *values, int64 limit, bool may_stop)
{
	Answer		answer = {.outcome = OUTCOME_LOST,.sent = now_us()};
	bool		stopped = false;

	if (c->conn == NULL)
		return answer;
	if (PQsendQueryParams(c->conn, sql, nparams, NULL, values, NULL, NULL, 0) &&
		read_answer(c, &answer, answer.sent + limit, may_stop, &stopped) &&
		PQstatus(c->conn) == CONNECTION_OK)
		return answer;

	if (PQstatus(c->conn) == CONNECTION_OK)
		set_error(c, "the server did not answer in time");
	else
		set_error(c, PQerrorMessage(c->conn));
	PQclear(answer.result);
	answer.result = NULL;
	answer.outcome = stopped ? OUTCOME_STOPPED : OUTCOME_LOST;
	connection_close(c);
	return answer;
}

/*
 * The next notification that has come in, to be freed with PQfreemem(); NULL
 * if there is none.
 */
PGnotify *
connection_notification(Connection *c)
{
	return c->conn == NULL ? NULL : PQnotifies(c->conn);
}

/*
 * Listen to a channel.  Where that is not possible, one has to look now and
 * then.
 */
void
connection_listen(Connection *c, const char *channel, int64 limit)
{
	char	   *name;
	char	   *sql;
	Answer		answer;

	if (c->conn == NULL ||
		(name = PQescapeIdentifier(c->conn, channel, strlen(channel))) == NULL)
		return;
	sql = psprintf("LISTEN %s", name);
	answer = connection_query(c, sql, 0, NULL, limit, false);
	c->listening = true;
	answer_free(&answer);
	pg_free(sql);
	PQfreemem(name);
}

/* --- what errors mean */

/*
 * Might the same call succeed a little later?
 */
bool
is_transient(const Answer *answer)
{
	static const char *const classes[] = {
		"08", "25", "40", "53", "55", "57", "58", "XX"
	};

	if (answer->outcome != OUTCOME_ERROR)
		return true;
	for (int i = 0; i < lengthof(classes); i++)
	{
		if (strncmp(answer->sqlstate, classes[i], 2) == 0)
			return true;
	}
	return strcmp(answer->sqlstate, "LE004") == 0;
}

/*
 * Does the database lack the extension?
 */
bool
is_no_extension(const Answer *answer)
{
	static const char *const states[] = {
		"3F000", "42883", "42P01"
	};

	for (int i = 0; answer->outcome == OUTCOME_ERROR && i < lengthof(states); i++)
	{
		if (strcmp(answer->sqlstate, states[i]) == 0)
			return true;
	}
	return false;
}

/*
 * Tell the user what the server said.
 */
void
report_answer(const Answer *answer)
{
	const char *message = answer->message;
	char	   *shown;

	/* "ERROR:  ..." would be said twice. */
	if (message != NULL && strstr(message, ":  ") != NULL &&
		strstr(message, ":  ") < message + 20)
		message = strstr(message, ":  ") + 3;
	shown = printable_lines(message == NULL ? "the server did not answer" : message);
	pg_log_error("%s", shown);
	pg_free(shown);
}

void
report_no_extension(Connection *c)
{
	pg_log_error("database \"%s\" does not have the extension leader_election",
				 PQdb(c->conn));
	pg_log_error_hint("In this database, as superuser: CREATE EXTENSION leader_election.");
}
