/*-------------------------------------------------------------------------
 *
 * yield.c
 *		pg_leader yield: asks a leader to go, and waits until it has gone.
 *
 * Invariant: the answer to the request does not say that the leader has gone.
 * What status shows does: a later term, or that nobody leads.
 *
 *-------------------------------------------------------------------------
 */
#include "observer.h"
#include "subcommands.h"

/* How often to look whether the leader has gone */
#define YIELD_INTERVAL		(200 * MSEC)

static const Statement sql_leader = {
	"SELECT term, leader, waiting_for,"
	" (SELECT pg_catalog.extract('epoch', lease_duration)"
	" FROM leader_election.election WHERE election OPERATOR(pg_catalog.=) $1)"
	" FROM leader_election.status WHERE election OPERATOR(pg_catalog.=) $1",
	4, false, 1, {TEXTOID}
};
static const Statement sql_yield = {
	"SELECT pg_catalog.extract('epoch', leader_election.request_yield($1, $2, $3))",
	1, true, 3, {TEXTOID, TEXTOID, BOOLOID}
};

/*
 * Ask who leads, or exit if there is no such election.
 */
static Answer
ask_leader(Connection *c, const Options *options)
{
	const char *values[] = {options->election};
	Answer		answer = observer_ask(c, &sql_leader, values);

	if (PQntuples(answer.result) == 0)
		observer_no_such_election(options->election);
	return answer;
}

static bool
is_led(const Answer *answer)
{
	return !PQgetisnull(answer->result, 0, 1);
}

static int64
term_of(const Answer *answer)
{
	return strtoll(PQgetvalue(answer->result, 0, 0), NULL, 10);
}

/*
 * Wait until a later term than this one is led.  Once nobody leads, wait for
 * lease_duration at most.  Print who leads then, and return the exit code.
 */
static int
wait_for_successor(Connection *c, const Options *options, int64 term)
{
	int64		give_up = NEVER;
	int			code = -1;

	for (;;)
	{
		Answer		answer = ask_leader(c, options);

		if (is_led(&answer) && term_of(&answer) > term)
		{
			printf("\"%s\" leads in term %lld\n",
				   text_show(PQgetvalue(answer.result, 0, 1)),
				   (long long) term_of(&answer));
			code = EXIT_SUCCESS;
		}
		else if (!is_led(&answer) && give_up == NEVER)
			give_up = now_us() +
				duration_from_seconds(PQgetvalue(answer.result, 0, 3));
		else if (!is_led(&answer) && now_us() >= give_up)
		{
			const char *waiting_for = text_show(PQgetvalue(answer.result, 0, 2));

			printf("nobody leads%s%s\n", waiting_for[0] ? ", waiting for " : "",
				   waiting_for);
			code = EXIT_NOBODY_LEADS;
		}
		answer_free(&answer);
		if (code >= 0)
			return code;
		(void) notification_wait(c, now_us() + YIELD_INTERVAL, NULL, NULL);
	}
}

int
yield_run(const Options *options)
{
	const char *values[] = {
		options->election, options->to_candidate,
		options->terminate ? "true" : "false"
	};
	Connection	c;
	Answer		leader;
	Answer		answer;
	int			code = EXIT_SUCCESS;

	observer_connect(&c, options);
	notification_listen(&c, CHANNEL, OBSERVER_LIMIT);
	leader = ask_leader(&c, options);
	answer = observer_ask(&c, &sql_yield, values);
	if (PQgetisnull(answer.result, 0, 0) || !is_led(&leader))
		printf("nobody leads\n");
	else
	{
		printf("\"%s\" is asked to yield: that takes %s at most\n",
			   text_show(PQgetvalue(leader.result, 0, 1)),
			   duration_format(duration_from_seconds(PQgetvalue(answer.result, 0, 0))));
		fflush(stdout);
		code = wait_for_successor(&c, options, term_of(&leader));
	}
	answer_free(&leader);
	answer_free(&answer);
	connection_close(&c);
	return code;
}
