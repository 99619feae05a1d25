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

#include <unistd.h>

#include "common/string.h"

/* libpq's parameters that we set, at most */
#define MAX_PARAMS 16

typedef struct Params
{
	const char *keywords[MAX_PARAMS + 1];
	const char *values[MAX_PARAMS + 1];
	int			n;
} Params;

/* --- parameters */

static bool
is_connection_string(const char *dbname)
{
	return dbname != NULL && (strchr(dbname, '=') != NULL ||
							  strncmp(dbname, "postgresql://", 13) == 0 ||
							  strncmp(dbname, "postgres://", 11) == 0);
}

static char *
value_of(PQconninfoOption *list, const char *keyword)
{
	for (PQconninfoOption *o = list; o != NULL && o->keyword != NULL; o++)
	{
		if (strcmp(o->keyword, keyword) == 0)
			return o->val != NULL && o->val[0] != '\0' ? o->val : NULL;
	}
	return NULL;
}

/*
 * What a parameter will be, from wherever it comes: the command line, the
 * connection string, the environment, a service file, the default.  NULL: it
 * is not set.
 */
static char *
effective(const ConnectOptions *options, const char *keyword)
{
	PQconninfoOption *given = NULL;
	PQconninfoOption *defaults;
	const char *value = NULL;
	const char *service;
	char	   *old_service = getenv("PGSERVICE");
	char	   *result;

	if (strcmp(keyword, "host") == 0)
		value = options->host;
	else if (strcmp(keyword, "port") == 0)
		value = options->port;
	if (is_connection_string(options->dbname))
		given = PQconninfoParse(options->dbname, NULL);

	/* Only PQconndefaults() reads a service file without connecting. */
	service = value_of(given, "service");
	if (old_service != NULL)
		old_service = pg_strdup(old_service);
	if (service != NULL)
		setenv("PGSERVICE", service, 1);
	defaults = PQconndefaults();
	if (service != NULL && old_service == NULL)
		unsetenv("PGSERVICE");
	else if (service != NULL)
		setenv("PGSERVICE", old_service, 1);

	if (value_of(given, keyword) != NULL)
		value = value_of(given, keyword);
	else if (value == NULL)
		value = value_of(defaults, keyword);
	result = value == NULL ? NULL : pg_strdup(value);
	PQconninfoFree(given);
	PQconninfoFree(defaults);
	pg_free(old_service);
	return result;
}

static int
count_items(const char *list)
{
	int			n = 1;

	for (; list != NULL && *list != '\0'; list++)
		n += *list == ',';
	return n;
}

/*
 * A comma-separated list that begins with its nth item.
 */
static char *
rotate(const char *list, int n)
{
	const char *second = list;

	while (n-- > 0 && second != NULL)
	{
		second = strchr(second, ',');
		if (second != NULL)
			second++;
	}
	if (second == NULL || second == list)
		return pg_strdup(list);
	return psprintf("%s,%.*s", second, (int) (second - list - 1), list);
}

static void
add_param(Params *p, const char *keyword, const char *value)
{
	if (value == NULL)
		return;
	Assert(p->n < MAX_PARAMS);
	p->keywords[p->n] = keyword;
	p->values[p->n] = value;
	p->n++;
}

/*
 * libpq gives up a host that refuses, but only connect_timeout, which is not
 * for us, gives up one that does not answer.  So after a time-out the list of
 * hosts begins with the next one.
 */
static void
add_rotated_hosts(Params *p, const Connection *c)
{
	static const char *const lists[] = {"host", "hostaddr", "port"};
	int			hosts = 1;
	char	   *value[lengthof(lists)];

	for (int i = 0; i < lengthof(lists); i++)
	{
		value[i] = effective(c->options, lists[i]);
		hosts = Max(hosts, count_items(value[i]));
	}
	for (int i = 0; i < lengthof(lists) && c->rotation % hosts != 0; i++)
	{
		if (value[i] != NULL && count_items(value[i]) == hosts)
			add_param(p, lists[i], rotate(value[i], c->rotation % hosts));
	}
}

static void
add_default(Params *p, const ConnectOptions *options, const char *keyword,
			const char *unless, const char *value)
{
	char	   *is = effective(options, keyword);

	if (is == NULL || strcmp(is, unless) == 0)
		add_param(p, keyword, value);
	pg_free(is);
}

static void
set_params(Params *p, const Connection *c)
{
	const ConnectOptions *o = c->options;

	memset(p, 0, sizeof(Params));
	/* What comes before dbname is overridden by a connection string in it. */
	if (o->read_write && getenv("PGTARGETSESSIONATTRS") == NULL)
		add_default(p, o, "target_session_attrs", "any", "read-write");
	if (getenv("PGCLIENTENCODING") == NULL)
		add_param(p, "client_encoding", "auto");
	/* A dead peer must be noticed while nothing is being sent. */
	add_default(p, o, "keepalives_idle", "", "5");
	add_default(p, o, "keepalives_interval", "", "2");
	add_default(p, o, "keepalives_count", "", "3");
	add_param(p, "host", o->host);
	add_param(p, "port", o->port);
	add_param(p, "user", o->user);
	add_param(p, "password", o->password);
	add_param(p, "fallback_application_name", "pg_leader");
	add_param(p, "dbname", o->dbname);
	add_rotated_hosts(p, c);
}

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
	{
		set_error(c, PQerrorMessage(c->conn));
		connection_close(c);
	}
	return true;
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
	int64		until = now_us() + limit;
	bool		stopped = false;

	connection_close(c);
	set_params(&params, c);
	c->conn = PQconnectStartParams(params.keywords, params.values, 1);
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
		"3F000", "42883", "42P01", "42704"
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

	/* "ERROR:  ..." would be said twice. */
	if (message != NULL && strstr(message, ":  ") != NULL &&
		strstr(message, ":  ") < message + 20)
		message = strstr(message, ":  ") + 3;
	pg_log_error("%s", message == NULL ? "the server did not answer" : message);
}

void
report_no_extension(Connection *c)
{
	pg_log_error("database \"%s\" does not have the extension leader_election",
				 PQdb(c->conn));
	pg_log_error_hint("In this database, as superuser: CREATE EXTENSION leader_election.");
}
