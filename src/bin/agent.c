/*-------------------------------------------------------------------------
 *
 * agent.c
 *		pg_leader run: stand for election (stand.c), lead (lead.c), and so on.
 *
 * Invariant: whatever ends the program while it stands, it leaves the election
 * first, as far as the server can be reached; and a lease that was granted
 * is given back.
 *
 *-------------------------------------------------------------------------
 */
#include "agent.h"
#include "subcommands.h"

#include <sys/signalfd.h>
#include <unistd.h>

/* A command that ran less long than this is not started again at once. */
#define SHORT_RUN			SEC
#define FIRST_BACKOFF		SEC
#define LONGEST_BACKOFF		(30 * SEC)

/* Where the setting is not known, either */
#define DEFAULT_LEASE		(15 * SEC)

/* This loads the library, with its settings. */
static const Statement sql_load = {
	"SELECT leader_election.leader($1)",
	1, true, 1, {TEXTOID}
};
static const Statement sql_session = {
	"SELECT pg_catalog.set_config('idle_session_timeout', '0', false)",
	1, true
};

/*
 * The lease of the election or, before there is one, what it will get, and its
 * channel.
 */
static const Statement sql_election = {
	"SELECT (SELECT pg_catalog.extract('epoch', lease_duration)"
	" FROM leader_election.election WHERE election OPERATOR(pg_catalog.=) $1),"
	" (SELECT setting FROM pg_catalog.pg_settings"
	" WHERE name OPERATOR(pg_catalog.=) 'leader_election.lease_duration'),"
	" (SELECT channel FROM leader_election.election"
	" WHERE election OPERATOR(pg_catalog.=) $1)",
	3, true, 1, {TEXTOID}
};

/* By the session that leads; a detached leader has to say its term, too */
static const Statement sql_renew_session = {
	SQL_GRANT "leader_election.renew($1)",
	GRANT_FIELDS, false, 1, {TEXTOID}
};

/* --- what happens meanwhile */

static int
watched_fds(struct pollfd *fds, void *arg)
{
	Agent	   *a = arg;
	int			n = 0;

	fds[n].fd = a->signal_fd;
	fds[n++].events = POLLIN;
	if (a->guardian.pid != 0 && a->guardian.socket >= 0)
	{
		fds[n].fd = a->guardian.socket;
		fds[n++].events = POLLIN;
	}
	return n;
}

/*
 * Take signals, and what the guardian says.  True: whoever waits should look.
 */
static bool
on_event(void *arg)
{
	Agent	   *a = arg;
	struct signalfd_siginfo info;

	while (read(a->signal_fd, &info, sizeof(info)) == sizeof(info))
	{
		if (info.ssi_signo == SIGCHLD)
			continue;
		a->signo = info.ssi_signo;
		a->signalled = true;
		if (a->guardian.pid != 0)
			guardian_signal(&a->guardian, info.ssi_signo);
	}
	guardian_reap(&a->guardian);
	if (a->guardian.pid == 0)
		return a->signalled;
	guardian_receive(&a->guardian);
	return a->guardian.done || a->guardian.reaped;
}

/*
 * Say what is wrong, but not the same thing again and again.
 */
void
agent_warn(Agent *a, const char *message)
{
	char	   *shown = text_printable_lines(message);

	if (a->warned == NULL || strcmp(a->warned, shown) != 0)
		pg_log_warning("%s", shown);
	pg_free(a->warned);
	a->warned = shown;
}

void
agent_warn_answer(Agent *a, const Answer *answer)
{
	if (answer->outcome == OUTCOME_ERROR)
		agent_warn(a, answer->message);
	else if (a->connection.error != NULL)
		agent_warn(a, a->connection.error);
}

/* --- asking */

/*
 * Ask the server.  LE006 says that a pool has reset the session: that may have
 * happened to the client that had the session before us.  So the first time on a
 * connection we ask again; the second time it is an error like others.
 */
Answer
agent_ask(Agent *a, const Statement *statement, const char *const *values,
		int64 limit, bool may_stop)
{
	Connection *c = &a->connection;
	int64		until = now_us() + limit;
	Answer		answer;

	answer = query_ask(c, statement, values, limit, may_stop);
	if (answer.outcome != OUTCOME_ERROR || c->was_reset ||
		strcmp(answer.sqlstate, "LE006") != 0)
		return answer;
	c->was_reset = true;
	agent_warn_answer(a, &answer);
	answer_free(&answer);
	return query_ask(c, statement, values, Max(until - now_us(), 1),
							may_stop);
}

/*
 * Renew as the session that leads.
 */
Answer
agent_renew_session(Agent *a, int64 limit)
{
	const char *values[] = {a->options->election};

	return agent_ask(a, &sql_renew_session, values, limit, false);
}

/* --- a connection that is ready */

/*
 * Take the answer to sql_election.
 */
static void
set_election(Agent *a, const Answer *answer)
{
	const PGresult *result = answer->result;
	const char *setting = PQgetvalue(result, 0, 1);
	const char *channel = PQgetvalue(result, 0, 2);

	a->lease = duration_from_seconds(PQgetvalue(result, 0, 0));
	/* Milliseconds; without the library it is any text. */
	if (PQgetisnull(result, 0, 0) &&
		setting[strspn(setting, "0123456789")] == '\0')
		a->lease = duration_from_seconds(setting) / 1000;
	if (a->lease <= 0)
		a->lease = DEFAULT_LEASE;
	pg_free(a->channel);
	pg_free(a->payload);
	a->channel = pg_strdup(channel[0] == '\0' ? CHANNEL : channel);
	a->payload = notification_prefix(a->options->election);
}

/*
 * Make a new connection ready: what is the election like, and what happens
 * there?  An exit code, or 0; in that case the connection may be lost again.
 */
int
agent_prepare(Agent *a)
{
	const char *values[] = {a->options->election};
	const Statement *queries[] = {
		&sql_load, a->options->session ? &sql_session : NULL, &sql_election
	};
	Connection *c = &a->connection;
	int			code = 0;

	for (int i = 0; i < lengthof(queries) && code == 0 && c->conn != NULL; i++)
	{
		Answer		answer;

		if (queries[i] == NULL)
			continue;
		answer = query_ask(c, queries[i], values, RUN_ANSWER_LIMIT,
								  a->guardian.pid == 0);
		if (answer_is_no_extension(&answer))
		{
			answer_report_no_extension(c);
			code = EXIT_NO_EXTENSION;
		}
		else if (answer.outcome == OUTCOME_ERROR && !answer_is_transient(&answer))
		{
			answer_report(&answer);
			code = EXIT_USAGE;
		}
		else if (answer.outcome != OUTCOME_ROWS)
		{
			agent_warn_answer(a, &answer);
			if (answer.outcome == OUTCOME_ERROR)
				connection_fail(c, answer.message);
		}
		else if (i == lengthof(queries) - 1)
			set_election(a, &answer);
		answer_free(&answer);
	}
	if (code == 0)
		notification_listen(c, a->channel, RUN_ANSWER_LIMIT);
	return code;
}

/* --- the whole of it */

static void
start_watching(Agent *a, Watcher *watcher)
{
	a->signal_fd = signalfd(-1, guardian_prepare(),
							  SFD_CLOEXEC | SFD_NONBLOCK);
	if (a->signal_fd < 0)
	{
		pg_log_error("could not watch for signals: %m");
		exit(EXIT_USAGE);
	}
	a->guardian.socket = -1;
	a->connection.options = &a->options->connect;
	a->connection.watcher = watcher;
}

/*
 * Wait before the command is started again, if it ended at once.  False: there
 * was a signal.
 */
static bool
back_off(Agent *a, int64 ran, int64 *backoff)
{
	int64		until;

	if (ran >= SHORT_RUN)
	{
		*backoff = FIRST_BACKOFF;
		return true;
	}
	stand_stop(a);
	until = now_us() + *backoff;
	*backoff = Min(*backoff * 2, LONGEST_BACKOFF);
	while (!a->signalled && now_us() < until)
		(void) connection_wait(&a->connection, until);
	return !a->signalled;
}

int
agent_run(const Options *options)
{
	Agent		a = {.options = options};
	Watcher		watcher = {watched_fds, on_event, &a};
	int64		backoff = FIRST_BACKOFF;
	int			code;

	start_watching(&a, &watcher);
	for (;;)
	{
		int64		began;
		bool		again;

		code = stand_until_elected(&a);
		if (code != ELECTED)
			break;
		began = now_us();
		code = lead_run(&a, &again);
		if (!again)
			break;
		if (!back_off(&a, now_us() - began, &backoff))
		{
			code = EXIT_SIGNAL(a.signo);
			break;
		}
	}
	stand_stop(&a);
	connection_close(&a.connection);
	pg_free(a.connection.error);
	pg_free(a.channel);
	pg_free(a.payload);
	pg_free(a.warned);
	return code;
}
