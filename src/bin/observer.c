/*-------------------------------------------------------------------------
 *
 * observer.c
 *		What all subcommands that observe have in common.
 *
 *-------------------------------------------------------------------------
 */
#include "observer.h"

/*
 * Connect, or say why not and exit.
 */
void
observer_connect(Connection *c, const Options *options)
{
	memset(c, 0, sizeof(Connection));
	c->options = &options->connect;
	if (connection_open(c, CONNECT_LIMIT))
		return;
	pg_log_error("%s", c->error);
	exit(EXIT_NO_CONNECTION);
}

/*
 * Ask something, or say why there is no answer and exit.
 */
Answer
observer_ask(Connection *c, const Statement *statement,
			 const char *const *values)
{
	Answer		answer = query_ask(c, statement, values,
										  OBSERVER_ANSWER_LIMIT, false);

	if (answer.outcome == OUTCOME_ROWS)
		return answer;
	if (answer_is_no_extension(&answer))
	{
		answer_report_no_extension(c);
		exit(EXIT_NO_EXTENSION);
	}
	if (answer.outcome == OUTCOME_ERROR)
	{
		answer_report(&answer);
		exit(EXIT_USAGE);
	}
	pg_log_error("%s", c->error);
	exit(EXIT_NO_CONNECTION);
}

void
observer_no_such_election(const char *election)
{
	pg_log_error("election \"%s\" does not exist", election);
	exit(EXIT_USAGE);
}
