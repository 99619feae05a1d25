/*-------------------------------------------------------------------------
 *
 * run.c
 *		pg_leader run: stand for election, lead (lead.c), and so on.
 *
 * Invariant: whatever ends the program while it stands, it leaves the election
 * first, as far as the server can be reached; and a lease that was granted
 * is given back.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include <sys/signalfd.h>
#include <unistd.h>

#define CONNECT_LIMIT		(10 * SEC)
#define ANSWER_LIMIT		(10 * SEC)
#define LONGEST_POLL		SEC
#define SHORTEST_PAUSE		(100 * MSEC)
#define LONGEST_PAUSE		SEC

/* A command that ran less long than this is not started again at once. */
#define SHORT_RUN			SEC
#define FIRST_BACKOFF		SEC
#define LONGEST_BACKOFF		(30 * SEC)

/* How long --skip tries, where nobody leads */
#define SKIP_LIMIT			SEC

/* Where a step of standing has no exit code yet */
#define ELECTED				(-1)
#define GO_ON				(-2)

#define SQL_LOAD "SELECT leader_election.leader($1)"

/*
 * The lease of the election or, before there is one, what it will get; its
 * channel; and how payloads that are about it begin.
 */
#define SQL_ELECTION \
	"SELECT coalesce(" \
	"(SELECT ceil(extract(epoch FROM e.lease_duration) * 1000000)::bigint" \
	" FROM leader_election.election e WHERE e.election = $1)," \
	" (SELECT s.setting::bigint * 1000 FROM pg_catalog.pg_settings s" \
	" WHERE s.name = 'leader_election.lease_duration'" \
	" AND s.setting ~ '^[0-9]+$'), 15000000)," \
	" coalesce((SELECT e.channel FROM leader_election.election e" \
	" WHERE e.election = $1), 'leadership_changed')," \
	" '{\"election\":' || to_json($1::text)::text || ','"

#define SQL_SESSION "SELECT set_config('idle_session_timeout', '0', false)"
#define SQL_ACQUIRE \
	"SELECT * FROM leader_election.acquire($1, $2, $3::integer)"
#define SQL_JOIN \
	"SELECT leader_election.join($1, $2, $3::integer, auto_renew => false)"
#define SQL_RENEW_SESSION "SELECT * FROM leader_election.renew($1)"
#define SQL_LEAVE "SELECT leader_election.leave($1, $2)"
#define SQL_STATE \
	"SELECT state, coalesce(waiting_for, ''), coalesce(leader, '')" \
	" FROM leader_election.status WHERE election = $1"

/* One wait to be elected */
typedef struct Stand
{
	int64		until;			/* NEVER: no limit */
	bool		connected;		/* there was a connection */
	int64		pause;			/* before the next try to connect */
} Stand;

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
bool
run_on_event(void *arg)
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

/* --- a connection that is ready */

static bool
check_grace(Run *run)
{
	int64		longest = longest_grace(run->lease);

	run->grace = run->options->grace;
	if (run->grace < 0)
		run->grace = Min(10 * SEC, Min(run->lease / 3, longest));
	if (longest >= 0 && run->grace <= longest)
		return true;
	if (longest < 0)
		pg_log_error("the lease of election \"%s\", which is %s, is too short to end a command in time",
					 run->options->election, format_duration(run->lease));
	else
	{
		pg_log_error("a grace of %s does not fit into the lease of election \"%s\", which is %s",
					 format_duration(run->grace), run->options->election,
					 format_duration(run->lease));
		pg_log_error_detail("It may be %s at most.", format_duration(longest));
	}
	pg_log_error_hint("Set a longer lease with leader_election.alter_election().");
	return false;
}

/*
 * Take the answer to SQL_ELECTION.
 */
static void
set_election(Run *run, const Answer *answer)
{
	run->lease = strtoll(PQgetvalue(answer->result, 0, 0), NULL, 10);
	pg_free(run->channel);
	pg_free(run->payload);
	run->channel = pg_strdup(PQgetvalue(answer->result, 0, 1));
	run->payload = pg_strdup(PQgetvalue(answer->result, 0, 2));
}

/*
 * Make a new connection ready: what is the election like, and what happens
 * there?  An exit code, or 0; in that case the connection may be lost again.
 */
int
run_prepare(Run *run)
{
	const char *values[] = {run->options->election};
	const char *queries[] = {
		SQL_LOAD, run->options->session ? SQL_SESSION : NULL, SQL_ELECTION
	};
	Connection *c = &run->connection;
	int			code = 0;

	for (int i = 0; i < lengthof(queries) && code == 0 && c->conn != NULL; i++)
	{
		Answer		answer;

		if (queries[i] == NULL)
			continue;
		answer = connection_query(c, queries[i],
								  strstr(queries[i], "$1") ? 1 : 0, values,
								  ANSWER_LIMIT, run->guardian.pid == 0);
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
		connection_listen(c, run->channel, ANSWER_LIMIT);
	return code;
}

/* --- standing */

/*
 * Read a grant row; false if there is none.
 */
bool
grant_of(const Answer *answer, Grant *grant)
{
	if (answer->outcome != OUTCOME_ROWS || PQntuples(answer->result) != 1)
		return false;
	grant->term = strtoll(PQgetvalue(answer->result, 0, 0), NULL, 10);
	grant->sent = answer->sent;
	grant->deadline = answer->sent +
		strtoll(PQgetvalue(answer->result, 0, 1), NULL, 10) * MSEC;
	grant->yielding = PQgetvalue(answer->result, 0, 3)[0] == 't';
	return true;
}

static Answer
ask(Run *run, const char *sql, int nparams, int64 limit, bool may_stop)
{
	const char *values[] = {
		run->options->election, run->options->candidate, run->options->rank
	};

	return connection_query(&run->connection, sql, nparams, values, limit,
							may_stop);
}

/*
 * One attempt in a session.  campaign() would wait in the server: then neither
 * a signal nor the end of the connection could end the session at once, and it
 * might be elected meanwhile.
 */
static Answer
try_session(Run *run)
{
	Answer		answer = ask(run, SQL_JOIN, 3, ANSWER_LIMIT, false);
	bool		leads;

	if (answer.outcome != OUTCOME_ROWS)
		return answer;
	leads = !PQgetisnull(answer.result, 0, 0);
	answer_free(&answer);
	/* An answer without a result is one without a grant. */
	return leads ? ask(run, SQL_RENEW_SESSION, 1, ANSWER_LIMIT, false) : answer;
}

/*
 * One attempt to be elected.  An answer to acquire() is waited for in any
 * case: it may be a grant, which has to be given back.
 */
static int
try_once(Run *run)
{
	Answer		answer;
	int			code = GO_ON;

	answer = run->options->session ? try_session(run) :
		ask(run, SQL_ACQUIRE, 3, ANSWER_LIMIT, false);
	if (grant_of(&answer, &run->grant))
		code = ELECTED;
	else if (is_no_extension(&answer))
	{
		report_no_extension(&run->connection);
		code = EXIT_NO_EXTENSION;
	}
	else if (answer.outcome == OUTCOME_ERROR && !is_transient(&answer))
	{
		report_answer(&answer);
		code = EXIT_USAGE;
	}
	else if (answer.outcome != OUTCOME_ROWS && answer.outcome != OUTCOME_STOPPED)
	{
		run_warn_answer(run, &answer);
		/* A server that cannot be written to is not the one we want. */
		if (strcmp(answer.sqlstate, "25006") == 0)
			connection_close(&run->connection);
	}
	answer_free(&answer);
	return code;
}

/*
 * Connect, or wait a little before the next try.  An exit code, or GO_ON.
 */
static int
connect_to_stand(Run *run, Stand *s)
{
	const RunOptions *o = run->options;
	Connection *c = &run->connection;
	int64		limit = Max(Min(CONNECT_LIMIT, s->until - now_us()), SHORTEST_PAUSE);

	if (connection_open(c, limit))
	{
		int			code = run_prepare(run);

		if (code != 0)
			return code;
		if (c->conn != NULL)
		{
			if (!s->connected && !check_grace(run))
				return EXIT_USAGE;
			s->connected = true;
			s->pause = SHORTEST_PAUSE;
			return GO_ON;
		}
	}
	if (run->signalled)
		return GO_ON;
	if (o->skip || (!s->connected && !o->forever && o->wait == NEVER))
	{
		pg_log_error("%s", c->error);
		return EXIT_NO_CONNECTION;
	}
	run_warn(run, c->error);
	(void) connection_wait(c, Min(now_us() + s->pause, s->until));
	s->pause = Min(s->pause * 2, LONGEST_PAUSE);
	return GO_ON;
}

/*
 * Wait for the next moment to try: a notification, or the next poll.
 */
static void
wait_to_try(Run *run, int64 until)
{
	Connection *c = &run->connection;
	bool		notified = false;

	while (!notified && !run->signalled && c->conn != NULL && now_us() < until)
	{
		PGnotify   *n;

		(void) connection_wait(c, until);
		while ((n = connection_notification(c)) != NULL)
		{
			if (strncmp(n->extra, run->payload, strlen(run->payload)) == 0)
				notified = true;
			PQfreemem(n);
		}
	}
}

/*
 * --skip has not been elected: is that because another leads, or was here
 * lately?  An exit code, or GO_ON: it is not, so try again.
 */
static int
skip_verdict(Run *run, Stand *s)
{
	Answer		answer = ask(run, SQL_STATE, 1, ANSWER_LIMIT, true);
	int			code = GO_ON;

	if (answer.outcome == OUTCOME_ROWS && PQntuples(answer.result) == 1)
	{
		const char *state = PQgetvalue(answer.result, 0, 0);
		const char *waiting_for = PQgetvalue(answer.result, 0, 1);

		if (strcmp(state, "vacant") != 0 || strcmp(waiting_for, "hold") == 0)
		{
			char	   *leader = printable(PQgetvalue(answer.result, 0, 2));

			pg_log_info("skipped: %s%s", strcmp(state, "vacant") != 0 ?
						"the leader is " : "hold", leader);
			pg_free(leader);
			code = EXIT_SUCCESS;
		}
		else if (now_us() >= s->until)
		{
			char	   *what = printable(waiting_for);

			pg_log_error("nobody leads election \"%s\", and nobody can be elected now%s%s",
						 run->options->election, what[0] ? ": " : "", what);
			pg_free(what);
			code = EXIT_TIMED_OUT;
		}
	}
	else if (now_us() >= s->until && !run->signalled)
	{
		run_warn_answer(run, &answer);
		pg_log_error("it is not known whether anybody leads election \"%s\"",
					 run->options->election);
		code = EXIT_TIMED_OUT;
	}
	answer_free(&answer);
	return code;
}

/*
 * Stop standing: others may count the candidates.
 */
static void
leave(Run *run)
{
	Answer		answer;

	if (run->connection.conn == NULL || run->options->session)
	{
		connection_close(&run->connection);
		return;
	}
	answer = ask(run, SQL_LEAVE, 2, SEC, false);
	answer_free(&answer);
}

/*
 * Stand until elected.  ELECTED, or an exit code.
 */
static int
stand(Run *run)
{
	const RunOptions *o = run->options;
	Stand		s = {.until = NEVER,.pause = SHORTEST_PAUSE};
	int			code = GO_ON;

	if (o->skip)
		s.until = now_us() + SKIP_LIMIT;
	else if (o->wait != NEVER)
		s.until = now_us() + o->wait;
	while (code == GO_ON)
	{
		if (run->signalled)
			code = EXIT_SIGNAL(run->signo);
		else if (run->connection.conn == NULL)
		{
			code = connect_to_stand(run, &s);
			if (run->connection.conn != NULL)
				continue;
		}
		else
			code = try_once(run);
		if (code != GO_ON || run->signalled)
			continue;
		if (o->skip && run->connection.conn != NULL)
		{
			code = skip_verdict(run, &s);
			if (code == GO_ON)
				wait_to_try(run, now_us() + SHORTEST_PAUSE);
		}
		else if (now_us() >= s.until)
		{
			code = s.connected ? EXIT_TIMED_OUT : EXIT_NO_CONNECTION;
			pg_log_error("%s", s.connected ? "timed out waiting to be elected" :
						 run->connection.error);
		}
		else
			wait_to_try(run, Min(s.until, now_us() +
							Min(LONGEST_POLL, run->lease / 3)));
	}
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
	leave(run);
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
	Watcher		watcher = {watched_fds, run_on_event, &run};
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
	leave(&run);
	connection_close(&run.connection);
	return code;
}
