/*-------------------------------------------------------------------------
 *
 * connection.c
 *		libpq without a wait that cannot be interrupted: waiting, closing.
 *
 * Invariant: every wait has a limit, and meanwhile a watcher is called for
 * what happens elsewhere (signals, messages of the guardian).
 *
 *-------------------------------------------------------------------------
 */
#include "connection.h"

#include "common/string.h"

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

/* --- the end */

void
connection_close(Connection *c)
{
	if (c->conn != NULL)
		PQfinish(c->conn);
	c->conn = NULL;
	c->listening = false;
}

/*
 * Close the connection, and forget all that it knows: it will not connect again.
 */
void
connection_free(Connection *c)
{
	connection_close(c);
	targets_free(&c->targets);
	pg_free(c->schema_owner);
	pg_free(c->portable_owner);
	pg_free(c->error);
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
