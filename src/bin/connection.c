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
#include "connection.h"

#include "common/string.h"

/* --- waiting */

void
connection_set_error(Connection *c, const char *message)
{
	pg_free(c->error);
	/* Much of it may be the server's. */
	c->error = text_printable_lines(message);
	(void) pg_strip_crlf(c->error);
}

/*
 * Wait until a descriptor is ready (-1: none is looked at), a moment has come,
 * or the watcher says to stop.  True: it is ready.
 */
bool
connection_wait_ready(Connection *c, int fd, short events, int64 until, bool *stopped)
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
bool
connection_wait_input(Connection *c, int64 until, bool *stopped)
{
	if (!connection_wait_ready(c, c->conn == NULL ? -1 : PQsocket(c->conn), POLLIN, until,
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

	return connection_wait_input(c, until, &stopped) || stopped;
}

/* --- connecting */

/*
 * Close it, and remember why.
 */
void
connection_fail(Connection *c, const char *message)
{
	connection_set_error(c, message);
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
		if (!connection_wait_ready(c, PQsocket(c->conn),
						state == PGRES_POLLING_READING ? POLLIN : POLLOUT,
						until, &stopped))
			break;
		state = PQconnectPoll(c->conn);
	}
	if (state == PGRES_POLLING_OK)
	{
		PQsetNoticeProcessor(c->conn, ignore_notice, NULL);
		text_set_encoding(PQclientEncoding(c->conn));
		return true;
	}
	if (state == PGRES_POLLING_FAILED)
		connection_set_error(c, PQerrorMessage(c->conn));
	else
	{
		c->rotation++;
		connection_set_error(c, stopped ? "interrupted" : "timeout expired");
	}
	connection_close(c);
	return false;
}
