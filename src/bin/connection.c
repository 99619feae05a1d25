/*-------------------------------------------------------------------------
 *
 * connection.c
 *		libpq without a wait that cannot be interrupted: waiting, connecting.
 *
 * Invariant: every wait has a limit, and meanwhile a watcher is called for
 * what happens elsewhere (signals, messages of the guardian).
 *
 * One wait of libpq has no limit here: the one for the name server.  The
 * guardian keeps the deadline during that wait, too.
 *
 *-------------------------------------------------------------------------
 */
#include "connection.h"

#include "common/string.h"

static const Statement sql_server = {
	"SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery()",
	2, true
};

/* --- waiting */

/*
 * Wait until the connection's socket is ready, until a moment, or until the
 * watcher stops the wait.  Return true if the socket is ready.  Without a
 * connection, only the moment or the watcher ends the wait.
 */
bool
connection_wait_ready(Connection *c, short events, int64 until, bool *stopped)
{
	*stopped = false;
	for (;;)
	{
		struct pollfd fds[4] = {
			{.fd = c->conn == NULL ? -1 : PQsocket(c->conn),.events = events}
		};
		const Watcher *w = c->watcher;
		int64		left = Max(Min(until - now_us(), 3600 * SEC), 0);
		int			nfds = 1;
		int			ready;
		bool		happened = false;

		for (; w != NULL && nfds < lengthof(fds) && w->fds[nfds - 1] != NULL; nfds++)
			fds[nfds] = (struct pollfd)
		{
			.fd = *w->fds[nfds - 1],.events = POLLIN
		};
		ready = poll(fds, nfds, (left + MSEC - 1) / MSEC);
		for (int i = 1; ready > 0 && i < nfds; i++)
			happened = happened || fds[i].revents != 0;
		if (happened && w->on_event(w->arg))
		{
			*stopped = c->stopped = true;
			return false;
		}
		if (ready > 0 && fds[0].revents != 0)
			return true;
		if (now_us() >= until)
			return false;
	}
}

/*
 * The same for input, which is read into libpq's buffer.  If the connection
 * turns out to be lost, close it.
 */
bool
connection_wait_input(Connection *c, int64 until, bool *stopped)
{
	if (!connection_wait_ready(c, POLLIN, until, stopped))
		return false;
	if (!PQconsumeInput(c->conn) || PQstatus(c->conn) != CONNECTION_OK)
		connection_fail(c, PQerrorMessage(c->conn));
	return true;
}

/*
 * Wait until a moment, or until something has happened.  Return true in the
 * latter case; the caller has to find out what it was.
 */
bool
connection_wait(Connection *c, int64 until)
{
	bool		stopped;

	return connection_wait_input(c, until, &stopped) || stopped;
}

/* --- connecting */

void
connection_close(Connection *c)
{
	if (c->conn != NULL)
		PQfinish(c->conn);
	c->conn = NULL;
	c->listening = false;
}

/*
 * Close the connection, and remember why.  The server may have written part of
 * the message, so it is made printable; and that part may be empty.  It may be
 * libpq's, which PQfinish() frees: copy it first.
 */
void
connection_fail(Connection *c, const char *message)
{
	message += strspn(message, "\n");
	pg_free(c->error);
	c->error = text_printable_lines(message[0] != '\0' ? message :
									"the connection failed");
	(void) pg_strip_crlf(c->error);
	connection_close(c);
}

/* libpq would print notices.  Errors are reported by the callers. */
static void
ignore_notice(void *arg, const char *message)
{
}

/*
 * Wait until the next attempt may begin.  Return false if the watcher stops the
 * wait, or the moment has come.
 */
static bool
await_turn(Connection *c, int64 until)
{
	int64	   *last = &c->attempts[c->nattempts++ % MOST_ATTEMPTS];
	int64		turn = *last + SEC;
	bool		stopped;

	while (!c->stopped && now_us() < Min(turn, until))
		(void) connection_wait_ready(c, 0, Min(turn, until), &stopped);
	*last = now_us();
	return !c->stopped && now_us() < until;
}

/*
 * Ask what the server alone can say, before anything is set.  A pooler made up
 * the process ID that libpq was told.  Return false, with the connection closed,
 * if the server is none for us.
 */
static bool
ask_server(Connection *c, int64 until)
{
	Answer		answer = query_exchange(c, &sql_server, NULL, until, true);

	if (answer.outcome == ANSWER_ERROR)
		connection_fail(c, answer.message);
	else if (answer.outcome == ANSWER_ROWS)
	{
		c->pooled = !c->options->session_pooler &&
			atoi(PQgetvalue(answer.result, 0, 0)) != PQbackendPID(c->conn);
		if (c->options->read_write && PQgetvalue(answer.result, 0, 1)[0] == 't')
			connection_fail(c, text_lend(psprintf("the server at \"%s\" is a standby",
												  PQhost(c->conn))));
	}
	answer_free(&answer);
	return c->conn != NULL;
}

/*
 * Have libpq connect, until a moment.  Return false if it does not: then
 * c->error says why not, and the connection is closed.
 */
static bool
connect_to(Connection *c, const Params *params, int64 until)
{
	PostgresPollingStatusType state = PGRES_POLLING_WRITING;
	bool		stopped;
	char	   *message;

	c->conn = PQconnectStartParams(params->keywords, params->values, 1);
	if (c->conn == NULL)
		pg_fatal("out of memory");
	PQsetNoticeProcessor(c->conn, ignore_notice, NULL);
	(void) PQsetErrorVerbosity(c->conn, PQERRORS_VERBOSE);	/* see login.c */
	if (PQstatus(c->conn) == CONNECTION_BAD)
		state = PGRES_POLLING_FAILED;
	while ((state == PGRES_POLLING_READING ||
			state == PGRES_POLLING_WRITING) && now_us() < until)
	{
		if (!connection_wait_ready(c, state == PGRES_POLLING_READING ? POLLIN :
								   POLLOUT, until, &stopped))
			break;
		state = PQconnectPoll(c->conn);
	}
	if (state == PGRES_POLLING_OK)
	{
		(void) PQsetErrorVerbosity(c->conn, PQERRORS_DEFAULT);
		text_set_encoding(PQclientEncoding(c->conn));
		return true;
	}
	if (state != PGRES_POLLING_FAILED)
	{
		connection_fail(c, c->stopped ? "interrupted" : "timeout expired");
		return false;
	}
	/* Without a password, we have not asked to be let in. */
	if (PQconnectionNeedsPassword(c->conn) ||
		login_is_refused(PQerrorMessage(c->conn)))
		targets_refused(&c->targets);
	message = login_message(PQerrorMessage(c->conn));
	connection_fail(c, message);
	pg_free(message);
	return false;
}

/*
 * Try to connect, to each address once, until one of them answers as it should,
 * or for as long as the limit; the next call goes on from there.  Return false
 * if there is no connection.  Then c->error says why not, targets_over() whether
 * each address has had its turn, and targets_verdict() whether all refuse.
 */
bool
connection_open(Connection *c, int64 limit)
{
	int64		until = now_us() + Min(limit, LONGEST_TIME);
	char	   *errors = pg_strdup("");
	const Target *t;
	Params		params;

	connection_close(c);
	c->was_reset = c->pooled = c->stopped = false;
	params_read(&params, c->options);
	if (targets_over(&c->targets))
		targets_begin(&c->targets, &params);
	while (await_turn(c, until) && (t = targets_next(&c->targets)) != NULL)
	{
		int64		end = Min(until, now_us() + Min(CONNECT_LIMIT, params.timeout));
		char	   *before = errors;

		params_set(&params, t);
		if (t->error != NULL)
			connection_fail(c, t->error);
		else if (connect_to(c, &params, end) && ask_server(c, end))
		{
			targets_answered(&c->targets, t);
			break;
		}
		errors = psprintf("%s%s%s", before, before[0] ? "\n" : "", c->error);
		pg_free(before);
		if (c->stopped || targets_over(&c->targets))
			break;
	}
	params_free(&params);
	if (c->conn == NULL)
		connection_fail(c, errors[0] ? errors : "timeout expired");
	pg_free(errors);
	return c->conn != NULL;
}
