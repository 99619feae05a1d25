/*-------------------------------------------------------------------------
 *
 * observer.c
 *		Asks a server about elections, or exits with an error.
 *
 * Invariant: if the server cannot be asked, the user sees an error, and an
 * exit code of its own.  An empty answer means that there is nothing to show.
 *
 *-------------------------------------------------------------------------
 */
#include "observer.h"

/*
 * Connect, or exit.
 */
void
observer_connect(Connection *c, const Options *options)
{
	memset(c, 0, sizeof(Connection));
	c->options = &options->connect;
	if (connect_round(c, NEVER))
		return;
	pg_log_error("%s", c->error);
	exit(EXIT_NO_CONNECTION);
}

/*
 * Are these rows?  If no later attempt can have any, exit.
 */
static bool
is_rows(Connection *c, Answer *answer)
{
	int			code = answer_exit_code(answer);

	if (code != 0)
	{
		answer_report(c, answer);
		exit(code == EXIT_REFUSED ? EXIT_USAGE : code);
	}
	return answer->outcome == ANSWER_ROWS;
}

/*
 * Ask the server.  Return false if it does not answer now, but may later; exit
 * after any other error.
 */
bool
observer_try(Connection *c, const Statement *statement,
			 const char *const *values, Answer *answer)
{
	*answer = query_ask(c, statement, values, OBSERVER_LIMIT, false);
	return is_rows(c, answer);
}

/*
 * Ask the server, or exit.
 */
Answer
observer_ask(Connection *c, const Statement *statement,
			 const char *const *values)
{
	return observer_judge(c, query_ask(c, statement, values, OBSERVER_LIMIT,
									   false));
}

/*
 * This is the server's answer: rows, or we exit.
 */
Answer
observer_judge(Connection *c, Answer answer)
{
	if (is_rows(c, &answer))
		return answer;
	if (answer.outcome == ANSWER_ERROR)
	{
		answer_report(c, &answer);
		exit(EXIT_USAGE);
	}
	pg_log_error("%s", c->error);
	exit(EXIT_NO_CONNECTION);
}

void
observer_no_such_election(const char *election)
{
	pg_log_error("election \"%s\" does not exist", text_show(election));
	exit(EXIT_USAGE);
}
