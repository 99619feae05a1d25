/*-------------------------------------------------------------------------
 *
 * connect.c
 *		To connect: to each address once, and to ask who is there.
 *
 * Invariant: every wait has a limit, as in connection.c.  There are not more
 * attempts than MOST_ATTEMPTS a second, and a server is used only after it has
 * said what it is: see ask_server().
 *
 * One wait of libpq has no limit here: the one for the name server.  The
 * guardian keeps the deadline during that wait, too.
 *
 *-------------------------------------------------------------------------
 */
#include "connection.h"

static const Statement sql_server = {
	"SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery()",
	2, true
};

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
		/* Else it waits, without a limit, where the server reads nothing. */
		(void) PQsetnonblocking(c->conn, 1);
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
connect_round(Connection *c, int64 limit)
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
