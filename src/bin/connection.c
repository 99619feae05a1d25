/*-------------------------------------------------------------------------
 *
 * connection.c
 *		libpq without a wait that nothing can interrupt.
 *
 * Invariant: whatever is waited for has a limit, and while it is, a watcher
 * is called for what happens elsewhere (signals, the guardian).  A query that
 * was not answered costs the connection: what it did is not known, and no
 * later query can be taken for it.  And no statement reaches a schema
 * leader_election that is not the extension's.
 *
 * (One wait of libpq has no limit here: that for the name server.  The guardian
 * keeps the deadline all the same.)
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include "common/string.h"

/*
 * Is there a schema leader_election, and is it the extension's?  Who owns a
 * database can make a schema of that name, but not a member of an extension.
 */
static const Statement sql_schema = {
	"SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace"
	" WHERE nspname OPERATOR(pg_catalog.=) 'leader_election'),"
	" EXISTS (SELECT 1 FROM pg_catalog.pg_depend"
	" WHERE classid OPERATOR(pg_catalog.=)"
	" 'pg_catalog.pg_namespace'::pg_catalog.regclass"
	" AND objid OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_namespace"
	" WHERE nspname OPERATOR(pg_catalog.=) 'leader_election')"
	" AND objsubid OPERATOR(pg_catalog.=) 0"
	" AND refclassid OPERATOR(pg_catalog.=)"
	" 'pg_catalog.pg_extension'::pg_catalog.regclass"
	" AND refobjid OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_extension"
	" WHERE extname OPERATOR(pg_catalog.=) 'leader_election')"
	" AND deptype OPERATOR(pg_catalog.=) 'e')",
	2, true
};

/* --- waiting */

static void
set_error(Connection *c, const char *message)
{
	pg_free(c->error);
	/* Much of it may be the server's. */
	c->error = printable_lines(message);
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
 * Wait until a moment, for input, or until the watcher says to stop.  True:
 * there was input.  A connection that is lost is closed here.
 */
static bool
wait_input(Connection *c, int64 until, bool *stopped)
{
	if (!wait_ready(c, c->conn == NULL ? -1 : PQsocket(c->conn), POLLIN, until,
					stopped))
		return false;
	if (!PQconsumeInput(c->conn) || PQstatus(c->conn) != CONNECTION_OK)
		connection_fail(c, PQerrorMessage(c->conn));
	return true;
}

/*
 * Wait until a moment, or for something to happen: true then, and it is for the
 * caller to find out what.
 */
bool
connection_wait(Connection *c, int64 until)
{
	bool		stopped;

	return wait_input(c, until, &stopped) || stopped;
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
	c->was_reset = false;
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
 * Make an answer of ours an error.
 */
static void
set_answer_error(Answer *answer, const char *sqlstate, char *message)
{
	PQclear(answer->result);
	answer->result = NULL;
	answer->outcome = OUTCOME_ERROR;
	strlcpy(answer->sqlstate, sqlstate, sizeof(answer->sqlstate));
	pg_free(answer->message);
	answer->message = message;
}

/*
 * An answer of another shape than the statement's is an error (42804: wrong
 * type) that the same call would only meet again.
 */
static void
check_shape(const Statement *s, Answer *answer)
{
	if (answer->outcome != OUTCOME_ROWS)
		return;
	if (PQnfields(answer->result) != s->nfields)
		set_answer_error(answer, "42804",
						 psprintf("the server answered with %d columns instead of %d",
								  PQnfields(answer->result), s->nfields));
	else if (s->one_row && PQntuples(answer->result) != 1)
		set_answer_error(answer, "42804",
						 psprintf("the server answered with %d rows instead of 1",
								  PQntuples(answer->result)));
}

/*
 * Send a statement, and wait for the answer until that moment.
 */
static Answer
exchange(Connection *c, const Statement *s, const char *const *values,
		 int64 until, bool may_stop)
{
	Answer		answer = {.outcome = OUTCOME_LOST,.sent = now_us()};
	bool		stopped = false;

	if (c->conn == NULL)
		return answer;
	if (PQsendQueryParams(c->conn, s->sql, s->nparams, s->types, values, NULL,
						  NULL, 0) &&
		read_answer(c, &answer, until, may_stop, &stopped) &&
		PQstatus(c->conn) == CONNECTION_OK)
	{
		check_shape(s, &answer);
		return answer;
	}

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
 * Ask the server, and wait for the answer, but not longer than the limit.
 *
 * The schema is looked at before every statement.  If a superuser drops the
 * extension while we are connected, the owner of the database can make a schema
 * of its name before our next call.  What remains is that both happen between
 * these two statements: no single one can do both, since names
 * are looked up before anything of it is executed, and calls that change who
 * leads run in no transaction with another statement.
 */
Answer
connection_query(Connection *c, const Statement *statement,
				 const char *const *values, int64 limit, bool may_stop)
{
	int64		until = now_us() + limit;
	Answer		answer = exchange(c, &sql_schema, NULL, until, may_stop);
	bool		is_ours;

	if (answer.outcome != OUTCOME_ROWS)
		return answer;
	is_ours = PQgetvalue(answer.result, 0, 1)[0] == 't';
	c->foreign_schema = !is_ours && PQgetvalue(answer.result, 0, 0)[0] == 't';
	if (!is_ours)
	{
		set_answer_error(&answer, "3F000", pg_strdup(c->foreign_schema ?
													 "schema \"leader_election\" does not belong to the extension leader_election" :
													 "there is no extension leader_election"));
		return answer;
	}
	answer_free(&answer);
	return exchange(c, statement, values, until, may_stop);
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
 * How the payloads that are about an election begin, in memory that is the
 * caller's.
 */
char *
payload_prefix(const char *election)
{
	char	   *name = json_string(election);
	char	   *prefix = psprintf("{\"election\":%s,", name);

	pg_free(name);
	return prefix;
}

/*
 * When a notification that has come may cause a call: at once, but no sooner
 * than some time after the last one did.  Anybody can notify, as often as they
 * like.
 */
int64
connection_next_notified(const Connection *c)
{
	return Max(c->notified + NOTIFIED_PAUSE, now_us());
}

/*
 * Wait until a moment, until the connection is lost or the watcher says to stop,
 * or until a notification that matters may cause a call: true then.  It may have
 * come with an earlier answer.
 */
bool
connection_wait_notified(Connection *c, int64 until,
						 bool (*matters) (const char *payload, void *arg),
						 void *arg)
{
	bool		notified = false;
	bool		stopped = false;

	for (;;)
	{
		PGnotify   *n;

		while ((n = connection_notification(c)) != NULL)
		{
			if (matters(n->extra, arg) && !notified)
			{
				notified = true;
				until = Min(until, connection_next_notified(c));
			}
			PQfreemem(n);
		}
		if (stopped || c->conn == NULL || now_us() >= until)
			break;
		(void) wait_input(c, until, &stopped);
	}
	if (notified)
		c->notified = now_us();
	return notified;
}

/*
 * Listen to a channel.  Where that is not possible, one has to look now and
 * then.
 */
void
connection_listen(Connection *c, const char *channel, int64 limit)
{
	Statement	statement = {0};
	char	   *name;
	char	   *sql;
	Answer		answer;

	if (c->conn == NULL ||
		(name = PQescapeIdentifier(c->conn, channel, strlen(channel))) == NULL)
		return;
	statement.sql = sql = psprintf("LISTEN %s", name);
	answer = exchange(c, &statement, NULL, now_us() + limit, false);
	c->listening = true;
	answer_free(&answer);
	pg_free(sql);
	PQfreemem(name);
}

/* --- what answers mean */

/*
 * A number of seconds, as the server writes it, in microseconds; an empty text,
 * which stands for NULL, is 0.
 */
int64
seconds_us(const char *seconds)
{
	double		us = strtod(seconds, NULL) * SEC + 0.5;

	/* Nothing is longer; what is would be no int64. */
	return us > 0 ? (int64) Min(us, LONGEST_TIME) : 0;
}

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
	if (c->foreign_schema)
	{
		pg_log_error_detail("It has a schema \"leader_election\" that does not belong to the extension: nothing in it is used.");
		pg_log_error_hint("Find out who has made it, and why.  Without it, as superuser: CREATE EXTENSION leader_election.");
		return;
	}
	pg_log_error_hint("In this database, as superuser: CREATE EXTENSION leader_election.");
}
