/*-------------------------------------------------------------------------
 *
 * notification.c
 *		Notifications, and waiting for them.
 *
 * Invariant: a notification causes a look at the server, and nothing else.
 * Anybody can send one, with any payload, as often as they like.  So it
 * decides nothing, and causes no more than one look per NOTIFIED_PAUSE.
 *
 *-------------------------------------------------------------------------
 */
#include "connection.h"

/* Between two calls that notifications cause */
#define NOTIFIED_PAUSE	(50 * MSEC)

/*
 * LISTEN or UNLISTEN.
 */
static void
change_listening(Connection *c, const char *verb, const char *channel, int64 limit)
{
	Statement	statement = {0};
	char	   *name;
	char	   *sql;
	Answer		answer;

	if (c->conn == NULL || c->pooled ||
		(name = PQescapeIdentifier(c->conn, channel, strlen(channel))) == NULL)
		return;
	statement.sql = sql = psprintf("%s %s", verb, name);
	answer = query_exchange(c, &statement, NULL, now_us() + limit, false);
	answer_free(&answer);
	pg_free(sql);
	PQfreemem(name);
}

/*
 * Listen to a channel.  A failure (on a standby) is no error: all callers also
 * look from time to time.  Behind a pooler we do not: sessions of others would
 * be told.
 */
void
notification_listen(Connection *c, const char *channel, int64 limit)
{
	change_listening(c, "LISTEN", channel, limit);
	c->listening = true;
}

void
notification_unlisten(Connection *c, const char *channel, int64 limit)
{
	change_listening(c, "UNLISTEN", channel, limit);
}

/*
 * Return how the payloads about an election, or about the seats of a group,
 * begin, to be freed by the caller.
 */
char *
notification_prefix(const char *election, bool is_group)
{
	char	   *name = text_json(election);
	int			length = strlen(name) - (is_group ? 1 : 0); /* without the " */
	char	   *prefix = psprintf("{\"election\":%.*s%s", length, name,
								  is_group ? "/" : ",");

	pg_free(name);
	return prefix;
}

bool
notification_is_about(const char *payload, const char *prefix)
{
	return strncmp(payload, prefix, strlen(prefix)) == 0;
}

/*
 * Does the payload say that a leader is asked to yield?
 */
bool
notification_is_yield(const char *payload)
{
	return strstr(payload, "\"yield_requested\"") != NULL;
}

/*
 * Does it say that a leader has changed its metadata?
 */
bool
notification_is_change(const char *payload)
{
	return strstr(payload, "\"metadata_changed\"") != NULL;
}

/*
 * Take all notifications that have come in, also those that came with an
 * earlier answer.  Return true if one of them matters.  The filter sees all of
 * them; without one, all matter.
 */
bool
notification_take(Connection *c, PayloadFilter matters, void *arg)
{
	bool		any = false;
	PGnotify   *n;

	while (c->conn != NULL && (n = PQnotifies(c->conn)) != NULL)
	{
		if (matters == NULL || matters(n->extra, arg))
			any = true;
		PQfreemem(n);
	}
	return any;
}

/*
 * Return when a notification that has come may cause a call.
 */
int64
notification_next_call(const Connection *c)
{
	return Max(c->notified + NOTIFIED_PAUSE, now_us());
}

/*
 * Wait until a notification that matters may cause a call, and return true; or
 * until a moment, until the connection is lost, or until the watcher stops the
 * wait.
 */
bool
notification_wait(Connection *c, int64 until, PayloadFilter matters, void *arg)
{
	bool		notified = false;
	bool		stopped = false;

	for (;;)
	{
		if (notification_take(c, matters, arg) && !notified)
		{
			notified = true;
			until = Min(until, notification_next_call(c));
		}
		if (stopped || c->conn == NULL || now_us() >= until)
			break;
		(void) connection_wait_input(c, until, &stopped);
	}
	if (notified)
		c->notified = now_us();
	return notified;
}
