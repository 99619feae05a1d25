/*-------------------------------------------------------------------------
 *
 * waiting.c
 *		pg_leader run, stand: why a candidate waits to be elected.
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

/* Who leads instead, as a message says it */
static const Statement sql_who = {
	"SELECT CASE WHEN leader IS NOT NULL THEN pg_catalog.concat('\"', leader,"
	" '\" leads in term ', term)"
	" ELSE pg_catalog.concat_ws(': ', 'nobody leads', waiting_for) END"
	" FROM leader_election.status WHERE election OPERATOR(pg_catalog.=) $1",
	1, false, 1, {TEXTOID}
};
static const Statement sql_seats = {
	"SELECT pg_catalog.concat(pg_catalog.count(leader), ' of ',"
	" pg_catalog.count(election), ' seats are led')"
	" FROM leader_election.status WHERE election OPERATOR(pg_catalog.=) ANY"
	" (SELECT election FROM leader_election.election"
	" WHERE group_name OPERATOR(pg_catalog.=) $1)",
	1, false, 1, {TEXTOID}
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

/*
 * Tell a user who wants to know (-v) why we are not elected: who leads.  It is
 * said again when it has changed.
 */
void
waiting_tell(Agent *a)
{
	const char *values[] = {a->election};
	Answer		answer;

	if (!a->options->verbose || a->options->skip || a->period.done)
		return;
	answer = agent_ask(a, a->options->group != NULL ? &sql_seats : &sql_who,
					   values, AGENT_LIMIT, true);
	if (answer.outcome == ANSWER_ROWS && PQntuples(answer.result) == 1)
	{
		const char *who = text_show(PQgetvalue(answer.result, 0, 0));

		if (strcmp(a->told, who) != 0)
			pg_log_info("waiting: %s", who);
		text_set(&a->told, who);
	}
	answer_free(&answer);
}
