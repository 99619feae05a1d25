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
	Run		   *run = arg;
	int			n = 0;

	fds[n].fd = run->signal_fd;
	fds[n++].events = POLLIN;
	if (run->guardian.pid != 0 && run->guardian.socket >= 0)
	{
		fds[n].fd = run->guardian.socket;
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
	Run		   *run = arg;
	struct signalfd_siginfo info;

	while (read(run->signal_fd, &info, sizeof(info)) == sizeof(info))
	{
		if (info.ssi_signo == SIGCHLD)
			continue;
		run->signo = info.ssi_signo;
		run->signalled = true;
		if (run->guardian.pid != 0)
			guardian_signal(&run->guardian, info.ssi_signo);
	}
	guardian_reap(&run->guardian);
	if (run->guardian.pid == 0)
		return run->signalled;
	guardian_receive(&run->guardian);
	return run->guardian.done || run->guardian.reaped;
}

/*
 * Say what is wrong, but not the same thing again and again.
 */
void
run_warn(Run *run, const char *message)
{
	char	   *shown = printable_lines(message);

	if (run->warned == NULL || strcmp(run->warned, shown) != 0)
		pg_log_warning("%s", shown);
	pg_free(run->warned);
	run->warned = shown;
}

void
run_warn_answer(Run *run, const Answer *answer)
{
	if (answer->outcome == OUTCOME_ERROR)
		run_warn(run, answer->message);
	else if (run->connection.error != NULL)
		run_warn(run, run->connection.error);
}

/* --- asking */

/*
 * Ask the server.  LE006 says that a pool has reset the session: that may have
 * happened to the client that had the session before us.  So the first time on a
 * connection we ask again; the second time it is an error like others.
 */
Answer
run_ask(Run *run, const Statement *statement, const char *const *values,
		int64 limit, bool may_stop)
{
	Connection *c = &run->connection;
	int64		until = now_us() + limit;
	Answer		answer;

	answer = connection_query(c, statement, values, limit, may_stop);
	if (answer.outcome != OUTCOME_ERROR || c->was_reset ||
		strcmp(answer.sqlstate, "LE006") != 0)
		return answer;
	c->was_reset = true;
	run_warn_answer(run, &answer);
	answer_free(&answer);
	return connection_query(c, statement, values, Max(until - now_us(), 1),
							may_stop);
}

/*
 * Renew as the session that leads.
 */
Answer
run_renew_session(Run *run, int64 limit)
{
	const char *values[] = {run->options->election};

	return run_ask(run, &sql_renew_session, values, limit, false);
}

/* --- a connection that is ready */

/*
 * Take the answer to sql_election.
 */
static void
set_election(Run *run, const Answer *answer)
{
	const PGresult *result = answer->result;
	const char *setting = PQgetvalue(result, 0, 1);
	const char *channel = PQgetvalue(result, 0, 2);

	run->lease = seconds_us(PQgetvalue(result, 0, 0));
	/* Milliseconds; without the library it is any text. */
	if (PQgetisnull(result, 0, 0) &&
		setting[strspn(setting, "0123456789")] == '\0')
		run->lease = seconds_us(setting) / 1000;
	if (run->lease <= 0)
		run->lease = DEFAULT_LEASE;
	pg_free(run->channel);
	pg_free(run->payload);
	run->channel = pg_strdup(channel[0] == '\0' ? CHANNEL : channel);
	run->payload = payload_prefix(run->options->election);
}

/*
 * Make a new connection ready: what is the election like, and what happens
 * there?  An exit code, or 0; in that case the connection may be lost again.
 */
int
run_prepare(Run *run)
{
	const char *values[] = {run->options->election};
	const Statement *queries[] = {
		&sql_load, run->options->session ? &sql_session : NULL, &sql_election
	};
	Connection *c = &run->connection;
	int			code = 0;

	for (int i = 0; i < lengthof(queries) && code == 0 && c->conn != NULL; i++)
	{
		Answer		answer;

		if (queries[i] == NULL)
			continue;
		answer = connection_query(c, queries[i], values, RUN_ANSWER_LIMIT,
								  run->guardian.pid == 0);
		if (is_no_extension(&answer))
		{
			report_no_extension(c);
			code = EXIT_NO_EXTENSION;
		}
		else if (answer.outcome == OUTCOME_ERROR && !is_transient(&answer))
		{
			report_answer(&answer);
			code = EXIT_USAGE;
		}
		else if (answer.outcome != OUTCOME_ROWS)
		{
			run_warn_answer(run, &answer);
			if (answer.outcome == OUTCOME_ERROR)
				connection_fail(c, answer.message);
		}
		else if (i == lengthof(queries) - 1)
			set_election(run, &answer);
		answer_free(&answer);
	}
	if (code == 0)
		connection_listen(c, run->channel, RUN_ANSWER_LIMIT);
	return code;
}

/* --- the whole of it */

static void
start_watching(Run *run, Watcher *watcher)
{
	run->signal_fd = signalfd(-1, guardian_prepare(),
							  SFD_CLOEXEC | SFD_NONBLOCK);
	if (run->signal_fd < 0)
	{
		pg_log_error("could not watch for signals: %m");
		exit(EXIT_USAGE);
	}
	run->guardian.socket = -1;
	run->connection.options = &run->options->connect;
	run->connection.watcher = watcher;
}

/*
 * Wait before the command is started again, if it ended at once.  False: there
 * was a signal.
 */
static bool
back_off(Run *run, int64 ran, int64 *backoff)
{
	int64		until;

	if (ran >= SHORT_RUN)
	{
		*backoff = FIRST_BACKOFF;
		return true;
	}
	stop_standing(run);
	until = now_us() + *backoff;
	*backoff = Min(*backoff * 2, LONGEST_BACKOFF);
	while (!run->signalled && now_us() < until)
		(void) connection_wait(&run->connection, until);
	return !run->signalled;
}

int
run_command(const RunOptions *options)
{
	Run			run = {.options = options};
	Watcher		watcher = {watched_fds, on_event, &run};
	int64		backoff = FIRST_BACKOFF;
	int			code;

	start_watching(&run, &watcher);
	for (;;)
	{
		int64		began;
		bool		again;

		code = stand(&run);
		if (code != ELECTED)
			break;
		began = now_us();
		code = lead(&run, &again);
		if (!again)
			break;
		if (!back_off(&run, now_us() - began, &backoff))
		{
			code = EXIT_SIGNAL(run.signo);
			break;
		}
	}
	stop_standing(&run);
	connection_close(&run.connection);
	pg_free(run.connection.error);
	pg_free(run.channel);
	pg_free(run.payload);
	pg_free(run.warned);
	return code;
}
