/*-------------------------------------------------------------------------
 *
 * period.c
 *		pg_leader run --every: which run is due.
 *
 * A period begins each time that a fixed length has passed since 1970 (UTC)
 * and the offset.  The moment at which it began is the name of its run, and of
 * two such names the later is the greater one, byte by byte.
 *
 * Invariant: the server's clock decides, and the server's tables say what is
 * done.  The clocks of the hosts may differ as they like.
 *
 *-------------------------------------------------------------------------
 */
#include "agent.h"

#include <time.h>

/*
 * How long to sleep at most before the next look: the clock of the server may
 * be set, and an operator may have the last run done anew.
 */
#define LONGEST_SLEEP	(60 * SEC)

/* No clock is further from 1970: seconds, of which there is a year */
#define LATEST			1e11

/* The server's clock, and what is done; NULL, too, if it does not exist yet */
static const Statement sql_period = {
	"SELECT pg_catalog.extract('epoch', pg_catalog.clock_timestamp()),"
	" (SELECT run_done FROM leader_election.status"
	" WHERE election OPERATOR(pg_catalog.=) $1)",
	2, true, 1, {TEXTOID}
};

/*
 * Take the answer to sql_period, of this very moment.
 */
static void
set_period(Agent *a, const PGresult *result)
{
	Period	   *p = &a->period;
	const Options *o = a->options;
	double		seconds = strtod(PQgetvalue(result, 0, 0), NULL);
	int64		now = (int64) (Min(Max(seconds, 0), LATEST) * SEC) - Max(o->offset, 0);
	int64		passed = now % o->every;
	time_t		began;
	struct tm	tm;
	char		run[sizeof(p->run)];

	if (passed < 0)				/* before the first one in 1970 */
		passed += o->every;
	began = (now - passed + Max(o->offset, 0)) / SEC;
	(void) strftime(run, sizeof(run), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&began, &tm));
	if (strcmp(run, p->run) != 0)
		p->backoff = FIRST_BACKOFF;
	strlcpy(p->run, run, sizeof(p->run));
	p->done = !PQgetisnull(result, 0, 1) &&
		strcmp(p->run, PQgetvalue(result, 0, 1)) <= 0;
	p->next = now_us() + Min(o->every - passed + MSEC, LONGEST_SLEEP);
}

/*
 * Ask the server which period it is, and whether its run is done.  Return
 * false if that is not known; *code is an exit code then, or left alone.
 */
bool
period_look(Agent *a, int *code)
{
	const char *values[] = {a->options->election};
	Answer		answer = agent_ask(a, &sql_period, values, AGENT_LIMIT, true);
	bool		known = answer.outcome == ANSWER_ROWS;
	int			error = known ? 0 : agent_judge(a, &answer);

	a->period.done = false;
	if (known)
		set_period(a, answer.result);
	else if (error != 0)
		*code = error;
	else if (!a->signalled && a->stand.refused == 0)
		agent_take_failure(a, &answer);
	answer_free(&answer);
	return known;
}

/*
 * The run has failed, after so long: return the hold that keeps all hosts from
 * starting it again at once.  A hold counts from when the leadership began.
 */
int64
period_hold(Agent *a, int64 ran)
{
	return Min(ran, 365 * DAY) +
		duration_next_pause(&a->period.backoff, LONGEST_BACKOFF);
}
