/*-------------------------------------------------------------------------
 *
 * stand.c
 *		pg_leader run: standing for election until elected.
 *
 * Invariant: a grant is never overlooked.  What might be one is waited for, also
 * when a signal says to end: it has to be given back.
 *
 *-------------------------------------------------------------------------
 */
#include "agent.h"

#define LONGEST_POLL		SEC

/* How long --skip tries, where nobody leads */
#define SKIP_LIMIT			SEC

/* A step of standing that has no exit code yet */
#define GO_ON				(-2)

static const Statement sql_acquire = {
	SQL_GRANT "leader_election.acquire($1, $2, $3)",
	GRANT_FIELDS, false, 3, {TEXTOID, TEXTOID, INT4OID}
};
static const Statement sql_join = {
	"SELECT leader_election.join($1, $2, $3, auto_renew => false)",
	1, true, 3, {TEXTOID, TEXTOID, INT4OID}
};
static const Statement sql_leave = {
	"SELECT leader_election.leave($1, $2)",
	1, true, 2, {TEXTOID, TEXTOID}
};
static const Statement sql_state = {
	"SELECT state, waiting_for, leader, pg_catalog.extract('epoch', remaining)"
	" FROM leader_election.status WHERE election OPERATOR(pg_catalog.=) $1",
	4, false, 1, {TEXTOID}
};

/* One wait to be elected */
typedef struct Stand
{
	int64		until;			/* NEVER: no limit */
	bool		connected;		/* there was a connection */
	int64		pause;			/* before the next try to connect */
	bool		unheard;		/* no answer came: it may have been a grant */
	int64		unheard_until;	/* if it was, until then */
} Stand;

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
 * Read a grant row; false if there is none.
 */
bool
grant_of(const Answer *answer, Grant *grant)
{
	int64		remaining_ms;

	if (answer->outcome != OUTCOME_ROWS || PQntuples(answer->result) != 1)
		return false;
	grant->term = strtoll(PQgetvalue(answer->result, 0, 0), NULL, 10);
	grant->sent = answer->sent;
	remaining_ms = strtoll(PQgetvalue(answer->result, 0, 1), NULL, 10);
	grant->deadline = answer->sent +
		Max(Min(remaining_ms, LONGEST_TIME / MSEC), 0) * MSEC;
	grant->yielding = PQgetvalue(answer->result, 0, 2)[0] == 't';
	return grant->term > 0;
}

static Answer
ask(Run *run, const Statement *statement, int64 limit, bool may_stop)
{
	const char *values[] = {
		run->options->election, run->options->candidate, run->options->rank
	};

	return run_ask(run, statement, values, limit, may_stop);
}

/*
 * One attempt in a session.  campaign() would wait in the server: then neither
 * a signal nor the end of the connection could end the session at once, and it
 * might be elected meanwhile.
 */
static Answer
try_session(Run *run)
{
	Answer		answer = ask(run, &sql_join, RUN_ANSWER_LIMIT, false);
	bool		leads;

	if (answer.outcome != OUTCOME_ROWS)
		return answer;
	leads = !PQgetisnull(answer.result, 0, 0);
	answer_free(&answer);
	/* An answer without a result is one without a grant. */
	return leads ? run_renew_session(run, RUN_ANSWER_LIMIT) : answer;
}

/*
 * One attempt to be elected.  An answer to acquire() is waited for in any
 * case: it may be a grant, which has to be given back.
 */
static int
try_once(Run *run, Stand *s)
{
	Answer		answer;
	int			code = GO_ON;

	answer = run->options->session ? try_session(run) :
		ask(run, &sql_acquire, RUN_ANSWER_LIMIT, false);
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
		if (answer.outcome == OUTCOME_LOST && !run->options->session)
			s->unheard = true;
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

static bool
is_of_election(const char *payload, void *arg)
{
	const Run  *run = arg;

	return strncmp(payload, run->payload, strlen(run->payload)) == 0;
}

/*
 * Wait for the next moment to try: a notification, or the next poll.
 */
static void
wait_to_try(Run *run, int64 until)
{
	if (!run->signalled)
		(void) connection_wait_notified(&run->connection, until, is_of_election,
										run);
}

/*
 * --skip has not been elected: is that because another leads, or was here
 * lately?  An exit code, or GO_ON: it is not, so try again.
 */
static int
skip_verdict(Run *run, Stand *s)
{
	Answer		answer = ask(run, &sql_state, RUN_ANSWER_LIMIT, true);
	int			code = GO_ON;

	if (answer.outcome == OUTCOME_ROWS && PQntuples(answer.result) == 1)
	{
		const char *state = PQgetvalue(answer.result, 0, 0);
		const char *waiting_for = PQgetvalue(answer.result, 0, 1);
		const char *name = PQgetvalue(answer.result, 0, 2);

		/* It may be ourselves: then nobody leads until that lease is over. */
		if (s->unheard && strcmp(name, run->options->candidate) == 0)
		{
			s->unheard_until = now_us() +
				seconds_us(PQgetvalue(answer.result, 0, 3));
			s->until = Max(s->until, s->unheard_until + SKIP_LIMIT);
		}
		s->unheard = false;
		if (now_us() < s->unheard_until && strcmp(state, "vacant") != 0)
			;
		else if (strcmp(state, "vacant") != 0 || strcmp(waiting_for, "hold") == 0)
		{
			char	   *leader = printable(name);

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
void
stop_standing(Run *run)
{
	Answer		answer;

	if (run->connection.conn == NULL || run->options->session)
	{
		connection_close(&run->connection);
		return;
	}
	answer = ask(run, &sql_leave, SEC, false);
	answer_free(&answer);
}

/*
 * Stand until elected.  ELECTED, or an exit code.
 */
int
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
			code = try_once(run, &s);
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
