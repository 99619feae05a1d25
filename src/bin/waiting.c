/*-------------------------------------------------------------------------
 *
 * waiting.c
 *		pg_leader stand: why a candidate waits to be elected.
 *
 * Invariant: what is asked here decides nothing: without an answer, the
 * candidate stands as before.
 *
 *-------------------------------------------------------------------------
 */
#include "agent.h"

/* Only where somebody is drained, look at all who stand. */
static const Statement sql_why = {
	"SELECT CASE WHEN paused_at IS NOT NULL THEN 'paused'"
	" WHEN EXISTS (SELECT FROM leader_election.drain"
	" WHERE election OPERATOR(pg_catalog.=) $1"
	" OR election OPERATOR(pg_catalog.=) '')"
	" AND EXISTS (SELECT FROM leader_election.candidates"
	" WHERE election OPERATOR(pg_catalog.=) $1"
	" AND candidate OPERATOR(pg_catalog.=) $2 AND drained)"
	" THEN 'drained' END"
	" FROM leader_election.status WHERE election OPERATOR(pg_catalog.=) $1",
	1, false, 2, {TEXTOID, TEXTOID}
};

/*
 * A sidecar has not been elected: find out whether it can be, and have it say
 * so.  Without an answer, the last one stands.
 */
void
waiting_publish(Agent *a)
{
	const char *values[] = {a->election, a->options->candidate};
	Stand	   *s = &a->stand;
	Answer		answer = agent_ask(a, &sql_why, values, AGENT_LIMIT, true);

	if (answer.outcome == ANSWER_ROWS && PQntuples(answer.result) == 1)
	{
		const char *why = PQgetvalue(answer.result, 0, 0);

		s->why = strcmp(why, "paused") == 0 ? "paused" :
			strcmp(why, "drained") == 0 ? "drained" : "standing";
		agent_publish(a, s->why);
	}
	answer_free(&answer);
}
