/*-------------------------------------------------------------------------
 *
 * notification.c
 *		Notifications, and waiting for them.
 *
 *-------------------------------------------------------------------------
 */
#include "connection.h"

#define NOTIFIED_PAUSE	(50 * MSEC) /* between two calls that notifications cause */

/*
 * The next notification that has come in, to be freed with PQfreemem(); NULL
 * if there is none.
 */
PGnotify *
notification_next(Connection *c)
{
	return c->conn == NULL ? NULL : PQnotifies(c->conn);
}

/*
 * How the payloads that are about an election begin, in memory that is the
 * caller's.
 */
char *
notification_prefix(const char *election)
{
	char	   *name = text_json(election);
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
notification_next_call(const Connection *c)
{
	return Max(c->notified + NOTIFIED_PAUSE, now_us());
}

/*
 * Wait until a moment, until the connection is lost or the watcher says to stop,
 * or until a notification that matters may cause a call: true then.  It may have
 * come with an earlier answer.
 */
bool
notification_wait(Connection *c, int64 until,
						 bool (*matters) (const char *payload, void *arg),
						 void *arg)
{
	bool		notified = false;
	bool		stopped = false;

	for (;;)
	{
		PGnotify   *n;

		while ((n = notification_next(c)) != NULL)
		{
			if (matters(n->extra, arg) && !notified)
			{
				notified = true;
				until = Min(until, notification_next_call(c));
			}
			PQfreemem(n);
		}
		if (stopped || c->conn == NULL || now_us() >= until)
			break;
		(void) connection_wait_input(c, until, &stopped);
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
notification_listen(Connection *c, const char *channel, int64 limit)
{
	Statement	statement = {0};
	char	   *name;
	char	   *sql;
	Answer		answer;

	if (c->conn == NULL ||
		(name = PQescapeIdentifier(c->conn, channel, strlen(channel))) == NULL)
		return;
	statement.sql = sql = psprintf("LISTEN %s", name);
	answer = query_exchange(c, &statement, NULL, now_us() + limit, false);
	c->listening = true;
	answer_free(&answer);
	pg_free(sql);
	PQfreemem(name);
}
