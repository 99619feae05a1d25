/*-------------------------------------------------------------------------
 *
 * yield.c
 *		pg_leader yield: asks a leader to go, and waits until it has gone.
 *
 * Invariants:
 *
 * - The answer to the request does not say that the leader has gone.  What status
 *	 shows does: a later term, or that nobody leads.
 *
 * - Nor does it say who was asked.  Another candidate may have been elected just
 *	 before, and the leader that was asked may have gone just after.  So only
 *	 who was asked for certain is named.
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
	" FROM leader_election.election WHERE election OPERATOR(pg_catalog.=) $1),"
	" state OPERATOR(pg_catalog.=) 'yielding',"
	" (SELECT pg_catalog.max(term)"
	" FROM leader_election.history WHERE election OPERATOR(pg_catalog.=) $1)"
	" FROM leader_election.status WHERE election OPERATOR(pg_catalog.=) $1",
	6, false, 1, {TEXTOID}
};

/* The terms after $2, up to $3 */
static const Statement sql_terms = {
	"SELECT term, leader FROM leader_election.history"
	" WHERE election OPERATOR(pg_catalog.=) $1 AND term OPERATOR(pg_catalog.>) $2"
	" AND term OPERATOR(pg_catalog.<=) $3 ORDER BY term",
	2, false, 3, {TEXTOID, INT8OID, INT8OID}
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
 * The term before that of the leader; if nobody leads, the last term
 */
static int64
term_before(const Answer *answer)
{
	return is_led(answer) ? term_of(answer) - 1 :
		strtoll(PQgetvalue(answer->result, 0, 5), NULL, 10);
}

/*
 * The request was made after this first look.  Return the term of the leader that
 * was asked, or, if it is not certain which one that is, the first one that it may
 * be; 0: nobody led.  *leader is its name, lent; NULL: it is not certain.
 *
 * A leader that was asked is yielding until its term ends.  So it is who yields
 * now, or who has led since the first look, until now.
 */
static int64
find_asked(Connection *c, const Options *options, const Answer *first,
		   const char **leader)
{
	Answer		now = ask_leader(c, options);
	bool		yields = PQgetvalue(now.result, 0, 4)[0] == 't';
	char	   *since = psprintf("%lld", (long long) term_before(first));
	char	   *until = psprintf("%lld", (long long) term_before(&now));
	const char *values[] = {options->election, since, until};
	Answer		terms = observer_ask(c, &sql_terms, values);
	const Answer *asked = &terms;
	int64		term = 0;

	*leader = NULL;
	if (yields || (PQntuples(terms.result) == 0 && is_led(&now)))
		asked = &now;
	if (PQntuples(asked->result) > 0)
		term = term_of(asked);
	if (PQntuples(asked->result) == 1)
		*leader = text_show(PQgetvalue(asked->result, 0, 1));
	pg_free(since);
	pg_free(until);
	answer_free(&terms);
	answer_free(&now);
	return term;
}

/*
 * Tell the user who was asked to yield, and how long that takes.
 */
static void
tell(const char *leader, const char *seconds)
{
	const char *length = duration_format(duration_from_seconds(seconds));

	if (leader != NULL)
		printf("\"%s\" is asked to yield: that takes %s at most\n", leader, length);
	else
		printf("the leader is asked to yield: that takes %s at most\n", length);
	fflush(stdout);
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
	Answer		first;
	Answer		answer;
	const char *leader;
	int64		term = 0;
	int			code = EXIT_SUCCESS;

	observer_connect(&c, options);
	notification_listen(&c, CHANNEL, OBSERVER_LIMIT);
	first = ask_leader(&c, options);
	answer = observer_ask(&c, &sql_yield, values);
	if (!PQgetisnull(answer.result, 0, 0))
		term = find_asked(&c, options, &first, &leader);
	if (term == 0)
		printf("nobody leads\n");
	else
	{
		tell(leader, PQgetvalue(answer.result, 0, 0));
		code = wait_for_successor(&c, options, term);
	}
	answer_free(&first);
	answer_free(&answer);
	connection_free(&c);
	return code;
}
