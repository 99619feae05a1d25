/*-------------------------------------------------------------------------
 *
 * give_back.c
 *		Gives a lease back, and records that its run is done.
 *
 * Invariant: a run that is done is recorded, however long the server cannot
 * be reached, unless a signal ends the attempts.  Otherwise it would be done
 * again.
 *
 *-------------------------------------------------------------------------
 */
#include "agent.h"

#define GIVE_BACK_LIMIT		(10 * SEC)

static const Statement sql_release = {
	"SELECT leader_election.release($1, $3, $2, done => $4)",
	1, true, 4, {TEXTOID, INTERVALOID, INT8OID, BOOLOID}
};
static const Statement sql_resign = {
	"SELECT leader_election.resign($1, $2)",
	1, true, 2, {TEXTOID, INTERVALOID}
};

/*
 * What is done may take long to be recorded, if the server cannot be reached.
 */
static int64
pause_to_retry(Leadership *l)
{
	return l->done ? duration_next_pause(&l->pause, LONGEST_PAUSE) :
		SHORTEST_PAUSE;
}

/*
 * Is the answer one that each further try would get? A lease ends by itself.
 * But what is done is to be recorded, also after a restore or a GRANT that takes
 * less than --refusal-timeout.
 */
static bool
gives_up_refused(Leadership *l, const Answer *answer)
{
	if (answer_is_transient(answer))
	{
		l->refused_since = 0;
		return false;
	}
	if (l->refused_since == 0)
		l->refused_since = now_us();
	return !l->done ||
		now_us() >= l->refused_since + l->agent->options->refusal_timeout;
}

/*
 * Try once to give the lease back.  A call that failed is followed by a pause.
 */
static void
try_give_back(Leadership *l, const char *hold, int64 until)
{
	Agent	   *a = l->agent;
	const char *values[] = {a->election, hold, a->grant.term_text, l->done ? "t" : "f"};
	Answer		answer;

	answer = agent_ask(a, a->options->session ? &sql_resign : &sql_release, values,
					   Max(Min(until - now_us(), GIVE_BACK_LIMIT), 1), true);
	l->recorded = answer.outcome == ANSWER_ROWS &&
		PQgetvalue(answer.result, 0, 0)[0] == 't';
	l->over = answer.outcome == ANSWER_ROWS || gives_up_refused(l, &answer);
	if (answer.outcome != ANSWER_ROWS)
	{
		agent_take_failure(a, &answer);
		(void) connection_wait(&a->connection, now_us() + pause_to_retry(l));
	}
	answer_free(&answer);
}

/*
 * Stop trying to give the lease back?  A second signal ends the attempts.  If
 * the run is done, the first one that comes meanwhile limits them.
 */
static bool
gives_up(Leadership *l, int64 *until)
{
	Agent	   *a = l->agent;

	if (a->signalled && l->done && *until > now_us() + GIVE_BACK_LIMIT)
	{
		*until = now_us() + GIVE_BACK_LIMIT;
		l->told_to_end = true;
		a->signalled = false;
	}
	return l->over || a->signalled || now_us() >= *until;
}

static void
tell_if_not_recorded(const Leadership *l)
{
	if (!l->done)
		return;
	if (l->recorded)
		pg_log_info("run %s is done", l->agent->period.run);
	else
		pg_log_warning("run %s is done, but could not be recorded: it may be done again",
					   l->agent->period.run);
}

/*
 * Give the lease back, unless the term is over or the server cannot be
 * reached.  If its run is done, that is recorded, also when the lease is over,
 * however long the server cannot be reached: otherwise it would be done again.
 */
void
give_back(Leadership *l)
{
	Agent	   *a = l->agent;
	const Options *o = a->options;
	Connection *c = &a->connection;
	int64		until = Min(a->grant.deadline, now_us() + GIVE_BACK_LIMIT);
	char	   *hold = l->hold < 0 ? NULL : psprintf("%lld us", (long long) l->hold);

	a->signalled = false;
	if (l->done)
	{
		l->over = false;
		until = now_us() + LONGEST_TIME;
	}
	while (!gives_up(l, &until))
	{
		int64		limit = Min(until - now_us(), Max(a->lease / 8, SHORTEST_LIMIT));

		if (c->conn == NULL && o->session)
			break;
		if (c->conn != NULL || connect_round(c, limit))
			try_give_back(l, hold, until);
		else
		{
			if (l->done)
				agent_warn_connection(a);
			(void) connection_wait(c, Min(now_us() + pause_to_retry(l), until));
		}
	}
	tell_if_not_recorded(l);
	if (!l->over && now_us() < a->grant.deadline)
		pg_log_warning("could not give back the lease of election \"%s\": it ends by itself",
					   a->shown);
	pg_free(hold);
}
