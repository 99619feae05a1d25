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
connect_observer(Connection *c, const ObserveOptions *options)
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
ask_observer(Connection *c, const Statement *statement,
			 const char *const *values)
{
	Answer		answer = connection_query(c, statement, values,
										  OBSERVER_ANSWER_LIMIT, false);

	if (answer.outcome == OUTCOME_ROWS)
		return answer;
	if (is_no_extension(&answer))
	{
		report_no_extension(c);
		exit(EXIT_NO_EXTENSION);
	}
	if (answer.outcome == OUTCOME_ERROR)
	{
		report_answer(&answer);
		exit(EXIT_USAGE);
	}
	pg_log_error("%s", c->error);
	exit(EXIT_NO_CONNECTION);
}

void
no_such_election(const char *election)
{
	pg_log_error("election \"%s\" does not exist", election);
	exit(EXIT_USAGE);
}
