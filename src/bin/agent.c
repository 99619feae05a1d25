/*-------------------------------------------------------------------------
 *
 * agent.c
 *		pg_leader run: stands for election (stand.c), leads (lead.c), and with
 *		--forever stands again.
 *
 * Invariant: before pg_leader exits, it leaves the election if it stands, and
 * gives back a lease that it was granted, unless the server cannot be reached.
 *
 *-------------------------------------------------------------------------
 */
#include "agent.h"
#include "subcommands.h"

#include <sys/signalfd.h>
#include <unistd.h>

/* A command that ran for less than this is not started again at once. */
#define SHORT_RUN			SEC

/* The lease to assume where the server does not say the setting, either */
#define DEFAULT_LEASE		(15 * SEC)

/* This loads the library.  Without it, the server has none of its settings. */
static const Statement sql_load = {
	"SELECT leader_election.leader($1)",
	1, true, 1, {TEXTOID}
};

/*
 * A session that leads is idle between renewals, and must not be ended then.
 */
static const Statement sql_session = {
	"SELECT pg_catalog.set_config('idle_session_timeout', '0', false)",
	1, true
};

/*
 * The election's lease, the lease that it will get if it does not exist yet,
 * and its channel
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

/* By the session that leads; a detached leader names its term, too (lead.c) */
static const Statement sql_renew_session = {
	SQL_GRANT "leader_election.renew($1)",
	GRANT_FIELDS, false, 1, {TEXTOID}
};

/* --- what every wait watches beside the connection */

static int
watched_fds(struct pollfd *fds, void *arg)
{
	Agent	   *a = arg;
	int			n = 0;

	fds[n].fd = a->signal_fd;
	fds[n++].events = POLLIN;
	if (a->guardian.socket >= 0)
	{
		fds[n].fd = a->guardian.socket;
		fds[n++].events = POLLIN;
	}
	if (a->checker.socket >= 0)
	{
		fds[n].fd = a->checker.socket;
		fds[n++].events = POLLIN;
	}
	return n;
}

/*
 * Take signals, and what the guardian and the checker say.  While the command
 * runs, a signal is passed on to it, a check that fails too often has it ended
 * at once, whatever the server is asked meanwhile, and only the command's end
 * stops a wait.  Otherwise a signal stops the wait.  News of the checker stop
 * waits for nothing else.
 */
static bool
on_event(void *arg)
{
	Agent	   *a = arg;
	struct signalfd_siginfo info;
	bool		lost;

	while (read(a->signal_fd, &info, sizeof(info)) == sizeof(info))
	{
		if (info.ssi_signo == SIGCHLD)
			continue;
		a->signo = info.ssi_signo;
		a->signalled = true;
		message_send(a->guardian.socket, MESSAGE_SIGNAL, info.ssi_signo, 0);
	}
	guardian_reap(&a->guardian);
	lost = checker_tend(&a->checker) && a->idle;
	if (a->guardian.pid == 0)
		return a->signalled || lost ||
			(checker_passes(&a->checker, 1) != a->healthy && a->idle);
	lead_judge_health(a);
	guardian_receive(&a->guardian);
	return a->guardian.done || a->guardian.reaped || lost;
}

/* --- warnings */

/*
 * Warn the user, but not of the same thing twice in a row.
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
	if (answer->outcome == ANSWER_ERROR)
		agent_warn(a, answer->message);
	else if (a->connection.error != NULL)
		agent_warn(a, a->connection.error);
}

/*
 * Warn of a call that failed and will be tried again.  25006: this server
 * cannot be written to, so connect again; with several hosts, that finds
 * another one.  55000: the extension was updated, and the session has loaded
 * the library of before.
 */
void
agent_take_failure(Agent *a, const Answer *answer)
{
	agent_warn_answer(a, answer);
	if (strcmp(answer->sqlstate, "25006") == 0 ||
		strcmp(answer->sqlstate, "55000") == 0)
		connection_close(&a->connection);
}

/* --- telling clients of a sidecar */

/*
 * Publish why we do not lead, or, with NULL, that we do, by a->grant.
 */
void
agent_publish(const Agent *a, const char *not_leading)
{
	Snapshot	s = {
		.not_leading = not_leading,.term = a->grant.term,
		.until = a->grant.deadline - guardian_kill_margin(a->lease),
		.longest = a->grace,.connected = a->connection.conn != NULL,
		.elected = a->elected,.renewed = a->renewed
	};

	reply_publish(&s);
}

/* --- asking */

/*
 * Ask the server.  LE006 says that a pooler has reset the session.  It may
 * have done so for the client that had the session before us.  So the first
 * time on a connection ask again; the second time, LE006 is an error like
 * others.
 */
Answer
agent_ask(Agent *a, const Statement *statement, const char *const *values,
		  int64 limit, bool may_stop)
{
	Connection *c = &a->connection;
	int64		until = now_us() + limit;
	Answer		answer;

	answer = query_ask(c, statement, values, limit, may_stop);
	if (answer.outcome != ANSWER_ERROR || c->was_reset ||
		strcmp(answer.sqlstate, "LE006") != 0)
		return answer;
	c->was_reset = true;
	agent_warn_answer(a, &answer);
	answer_free(&answer);
	return query_ask(c, statement, values, Max(until - now_us(), 1), may_stop);
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

/*
 * Read a grant.  Return false if the answer has none.
 *
 * The deadline counts from when the request was sent.  Counted from when the
 * answer came, it would be later than the server's by the time that the answer
 * took, and another candidate could lead while the command still runs.
 */
bool
agent_read_grant(const Answer *answer, Grant *grant)
{
	int64		remaining_ms;

	if (answer->outcome != ANSWER_ROWS || PQntuples(answer->result) == 0)
		return false;
	grant->term = strtoll(PQgetvalue(answer->result, 0, 0), NULL, 10);
	grant->sent = answer->sent;
	remaining_ms = strtoll(PQgetvalue(answer->result, 0, 1), NULL, 10);
	grant->deadline = answer->sent +
		Max(Min(remaining_ms, LONGEST_TIME / MSEC), 0) * MSEC;
	grant->yielding = PQgetvalue(answer->result, 0, 2)[0] == 't';
	return grant->term > 0;
}

/* --- a new connection */

/*
 * Take the answer to sql_election.
 */
static int
set_election(Agent *a, const PGresult *result)
{
	const char *setting = PQgetvalue(result, 0, 1);
	const char *channel = PQgetvalue(result, 0, 2);

	if (a->options->group != NULL && PQgetisnull(result, 0, 0))
	{
		pg_log_error("group \"%s\" does not exist", a->shown);
		pg_log_error_hint("Make it with leader_election.create_group().");
		return EXIT_USAGE;
	}
	a->lease = duration_from_seconds(PQgetvalue(result, 0, 0));
	/* In milliseconds.  Without the library, it can be any text. */
	if (PQgetisnull(result, 0, 0) &&
		setting[strspn(setting, "0123456789")] == '\0')
		a->lease = duration_from_seconds(setting) / 1000;
	if (a->lease <= 0)
		a->lease = DEFAULT_LEASE;
	pg_free(a->channel);
	pg_free(a->prefix);
	a->channel = pg_strdup(channel[0] == '\0' ? CHANNEL : channel);
	a->prefix = notification_prefix(a->options->election,
									a->options->group != NULL);
	return 0;
}

/*
 * From now on the election is this seat of the group; NULL: any of them, or
 * there is no group.  Set its name in messages, too, whose encoding a new
 * connection may change.
 */
void
agent_set_seat(Agent *a, const char *seat)
{
	pg_free(a->seat);
	a->seat = seat != NULL ? pg_strdup(seat) : NULL;
	a->election = seat != NULL ? a->seat : a->options->election;
	pg_free(a->shown);
	a->shown = text_printable(a->election);
}

/*
 * Make a new connection ready: learn what the election is like, and listen to
 * its channel.  We stand, and have no seat yet.  Return an exit code, or 0.
 * The connection may be lost again in the latter case.
 */
int
agent_prepare(Agent *a)
{
	char	   *first_seat = psprintf("%s/1", a->options->election);
	const char *values[] = {
		a->options->group != NULL ? first_seat : a->options->election
	};
	const Statement *statements[] = {
		&sql_load, a->options->session ? &sql_session : NULL, &sql_election
	};
	Connection *c = &a->connection;
	int			code = 0;

	agent_set_seat(a, NULL);
	for (int i = 0; i < lengthof(statements) && code == 0 && c->conn != NULL; i++)
	{
		Answer		answer;

		if (statements[i] == NULL)
			continue;
		answer = query_ask(c, statements[i], values, AGENT_LIMIT, true);
		code = answer_final_error(c, &answer);
		if (code == 0 && answer.outcome != ANSWER_ROWS)
		{
			agent_warn_answer(a, &answer);
			if (answer.outcome == ANSWER_ERROR)
				connection_fail(c, answer.message);
		}
		else if (code == 0 && statements[i] == &sql_election)
			code = set_election(a, answer.result);
		answer_free(&answer);
	}
	pg_free(first_seat);
	if (code == 0)
		notification_listen(c, a->channel, AGENT_LIMIT);
	return code;
}

/* --- the life of `run` */

/*
 * Begin to be an agent: from now on signals are read from a descriptor.
 */
void
agent_begin(Agent *a, const Options *options)
{
	*a = (Agent) {
		.options = options,.guardian = NO_GUARDIAN,
		.checker = {.options = options->check,.socket = -1},.gone_by = NEVER,
		.watcher = {watched_fds, on_event, a}
	};
	a->signal_fd = signalfd(-1, guardian_prepare(),
							SFD_CLOEXEC | SFD_NONBLOCK);
	if (a->signal_fd < 0)
	{
		pg_log_error("could not watch for signals: %m");
		exit(EXIT_USAGE);
	}
	a->connection.options = &options->connect;
	a->connection.watcher = &a->watcher;
	/* For the check and the command */
	setenv("PG_LEADER_ELECTION", options->election, 1);
	setenv("PG_LEADER_CANDIDATE", options->candidate, 1);
}

/*
 * End the checker and the connection.  The caller has given back what it led,
 * and does not stand any more.
 */
void
agent_end(Agent *a)
{
	checker_end(&a->checker);
	connection_close(&a->connection);
	pg_free(a->connection.error);
	pg_free(a->channel);
	pg_free(a->prefix);
	pg_free(a->seat);
	pg_free(a->shown);
	pg_free(a->warned);
}

/*
 * If the command ended at once, do not stand for some time.  Return false if
 * there was a signal.
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
	until = now_us() + duration_next_pause(backoff, LONGEST_BACKOFF);
	while (!a->signalled && now_us() < until)
		(void) connection_wait(&a->connection, until);
	return !a->signalled;
}

/*
 * Stand and lead, with --forever again and again.  Return the exit code.
 */
static int
stand_and_lead(Agent *a)
{
	int64		backoff = FIRST_BACKOFF;

	for (;;)
	{
		int64		began;
		bool		again;
		int			code;

		stand_begin(a);
		do
		{
			code = stand_until_elected(a);
			if (code != ELECTED)
				return code;
			began = now_us();
			code = lead_run(a, &again);
		} while (code == DECLINED);
		if (!again)
			return code;

		/*
		 * With --every it is done, or a hold keeps all hosts from starting it
		 * at once: we go on standing, so that we are passed over.
		 */
		if (!a->period.judged && !back_off(a, now_us() - began, &backoff))
			return EXIT_SIGNAL(a->signo);
	}
}

int
agent_run(const Options *options)
{
	Agent		a;
	int			code;

	agent_begin(&a, options);
	code = stand_and_lead(&a);
	stand_stop(&a);
	agent_end(&a);
	return code;
}
