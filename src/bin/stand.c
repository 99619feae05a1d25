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
check_grace(Agent *a)
{
	int64		longest = guardian_longest_grace(a->lease);

	a->grace = a->options->grace;
	if (a->grace < 0)
		a->grace = Min(10 * SEC, Min(a->lease / 3, longest));
	if (longest >= 0 && a->grace <= longest)
		return true;
	if (longest < 0)
		pg_log_error("the lease of election \"%s\", which is %s, is too short to end a command in time",
					 a->options->election, duration_format(a->lease));
	else
	{
		pg_log_error("a grace of %s does not fit into the lease of election \"%s\", which is %s",
					 duration_format(a->grace), a->options->election,
					 duration_format(a->lease));
		pg_log_error_detail("It may be %s at most.", duration_format(longest));
	}
	pg_log_error_hint("Set a longer lease with leader_election.alter_election().");
	return false;
}

/*
 * Read a grant row; false if there is none.
 */
bool
agent_read_grant(const Answer *answer, Grant *grant)
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
ask(Agent *a, const Statement *statement, int64 limit, bool may_stop)
{
	const char *values[] = {
		a->options->election, a->options->candidate, a->options->rank
	};

	return agent_ask(a, statement, values, limit, may_stop);
}

/*
 * One attempt in a session.  campaign() would wait in the server: then neither
 * a signal nor the end of the connection could end the session at once, and it
 * might be elected meanwhile.
 */
static Answer
try_session(Agent *a)
{
	Answer		answer = ask(a, &sql_join, RUN_ANSWER_LIMIT, false);
	bool		leads;

	if (answer.outcome != OUTCOME_ROWS)
		return answer;
	leads = !PQgetisnull(answer.result, 0, 0);
	answer_free(&answer);
	/* An answer without a result is one without a grant. */
	return leads ? agent_renew_session(a, RUN_ANSWER_LIMIT) : answer;
}

/*
 * One attempt to be elected.  An answer to acquire() is waited for in any
 * case: it may be a grant, which has to be given back.
 */
static int
try_once(Agent *a, Stand *s)
{
	Answer		answer;
	int			code = GO_ON;

	answer = a->options->session ? try_session(a) :
		ask(a, &sql_acquire, RUN_ANSWER_LIMIT, false);
	if (agent_read_grant(&answer, &a->grant))
		code = ELECTED;
	else if (answer_is_no_extension(&answer))
	{
		answer_report_no_extension(&a->connection);
		code = EXIT_NO_EXTENSION;
	}
	else if (answer.outcome == OUTCOME_ERROR && !answer_is_transient(&answer))
	{
		answer_report(&answer);
		code = EXIT_USAGE;
	}
	else if (answer.outcome != OUTCOME_ROWS && answer.outcome != OUTCOME_STOPPED)
	{
		agent_warn_answer(a, &answer);
		if (answer.outcome == OUTCOME_LOST && !a->options->session)
			s->unheard = true;
		/* A server that cannot be written to is not the one we want. */
		if (strcmp(answer.sqlstate, "25006") == 0)
			connection_close(&a->connection);
	}
	answer_free(&answer);
	return code;
}

/*
 * Connect, or wait a little before the next try.  An exit code, or GO_ON.
 */
static int
connect_to_stand(Agent *a, Stand *s)
{
	const Options *o = a->options;
	Connection *c = &a->connection;
	int64		limit = Max(Min(CONNECT_LIMIT, s->until - now_us()), SHORTEST_PAUSE);

	if (connection_open(c, limit))
	{
		int			code = agent_prepare(a);

		if (code != 0)
			return code;
		if (c->conn != NULL)
		{
			if (!s->connected && !check_grace(a))
				return EXIT_USAGE;
			s->connected = true;
			s->pause = SHORTEST_PAUSE;
			return GO_ON;
		}
	}
	if (a->signalled)
		return GO_ON;
	if (o->skip || (!s->connected && !o->forever && o->wait == NEVER))
	{
		pg_log_error("%s", c->error);
		return EXIT_NO_CONNECTION;
	}
	agent_warn(a, c->error);
	(void) connection_wait(c, Min(now_us() + s->pause, s->until));
	s->pause = Min(s->pause * 2, LONGEST_PAUSE);
	return GO_ON;
}

static bool
is_of_election(const char *payload, void *arg)
{
	const Agent  *a = arg;

	return strncmp(payload, a->payload, strlen(a->payload)) == 0;
}

/*
 * Wait for the next moment to try: a notification, or the next poll.
 */
static void
wait_to_try(Agent *a, int64 until)
{
	if (!a->signalled)
		(void) notification_wait(&a->connection, until, is_of_election,
										a);
}

/*
 * --skip has not been elected: is that because another leads, or was here
 * lately?  An exit code, or GO_ON: it is not, so try again.
 */
static int
skip_verdict(Agent *a, Stand *s)
{
	Answer		answer = ask(a, &sql_state, RUN_ANSWER_LIMIT, true);
	int			code = GO_ON;

	if (answer.outcome == OUTCOME_ROWS && PQntuples(answer.result) == 1)
	{
		const char *state = PQgetvalue(answer.result, 0, 0);
		const char *waiting_for = PQgetvalue(answer.result, 0, 1);
		const char *name = PQgetvalue(answer.result, 0, 2);

		/* It may be ourselves: then nobody leads until that lease is over. */
		if (s->unheard && strcmp(name, a->options->candidate) == 0)
		{
			s->unheard_until = now_us() +
				duration_from_seconds(PQgetvalue(answer.result, 0, 3));
			s->until = Max(s->until, s->unheard_until + SKIP_LIMIT);
		}
		s->unheard = false;
		if (now_us() < s->unheard_until && strcmp(state, "vacant") != 0)
			;
		else if (strcmp(state, "vacant") != 0 || strcmp(waiting_for, "hold") == 0)
		{
			char	   *leader = text_printable(name);

			pg_log_info("skipped: %s%s", strcmp(state, "vacant") != 0 ?
						"the leader is " : "hold", leader);
			pg_free(leader);
			code = EXIT_SUCCESS;
		}
		else if (now_us() >= s->until)
		{
			char	   *what = text_printable(waiting_for);

			pg_log_error("nobody leads election \"%s\", and nobody can be elected now%s%s",
						 a->options->election, what[0] ? ": " : "", what);
			pg_free(what);
			code = EXIT_TIMED_OUT;
		}
	}
	else if (now_us() >= s->until && !a->signalled)
	{
		agent_warn_answer(a, &answer);
		pg_log_error("it is not known whether anybody leads election \"%s\"",
					 a->options->election);
		code = EXIT_TIMED_OUT;
	}
	answer_free(&answer);
	return code;
}

/*
 * Stop standing: others may count the candidates.
 */
void
stand_stop(Agent *a)
{
	Answer		answer;

	if (a->connection.conn == NULL || a->options->session)
	{
		connection_close(&a->connection);
		return;
	}
	answer = ask(a, &sql_leave, SEC, false);
	answer_free(&answer);
}

/*
 * Stand until elected.  ELECTED, or an exit code.
 */
int
stand_until_elected(Agent *a)
{
	const Options *o = a->options;
	Stand		s = {.until = NEVER,.pause = SHORTEST_PAUSE};
	int			code = GO_ON;

	if (o->skip)
		s.until = now_us() + SKIP_LIMIT;
	else if (o->wait != NEVER)
		s.until = now_us() + o->wait;
	while (code == GO_ON)
	{
		if (a->signalled)
			code = EXIT_SIGNAL(a->signo);
		else if (a->connection.conn == NULL)
		{
			code = connect_to_stand(a, &s);
			if (a->connection.conn != NULL)
				continue;
		}
		else
			code = try_once(a, &s);
		if (code != GO_ON || a->signalled)
			continue;
		if (o->skip && a->connection.conn != NULL)
		{
			code = skip_verdict(a, &s);
			if (code == GO_ON)
				wait_to_try(a, now_us() + SHORTEST_PAUSE);
		}
		else if (now_us() >= s.until)
		{
			code = s.connected ? EXIT_TIMED_OUT : EXIT_NO_CONNECTION;
			pg_log_error("%s", s.connected ? "timed out waiting to be elected" :
						 a->connection.error);
		}
		else
			wait_to_try(a, Min(s.until, now_us() +
							Min(LONGEST_POLL, a->lease / 3)));
	}
	return code;
}
