/*-------------------------------------------------------------------------
 *
 * answer.c
 *		What the server's answers mean.
 *
 * Invariant: an error that the same call would meet again has an exit code.
 * Every other one may pass by itself.
 *
 *-------------------------------------------------------------------------
 */
#include "connection.h"

void
answer_free(Answer *answer)
{
	PQclear(answer->result);
	pg_free(answer->message);
	memset(answer, 0, sizeof(Answer));
}

/*
 * Is the answer an error with one of these SQLSTATEs, or of these classes?
 */
static bool
has_sqlstate(const Answer *answer, const char *const *states, int n)
{
	for (int i = 0; answer->outcome == ANSWER_ERROR && i < n; i++)
	{
		if (strncmp(answer->sqlstate, states[i], strlen(states[i])) == 0)
			return true;
	}
	return false;
}

/*
 * Might the same call succeed a little later? Of class 25, a standby may be
 * promoted (25006), and a time limit of transactions ends a session once (25P).
 * We open no transaction block: what does (25001) will do it again.
 */
bool
answer_is_transient(const Answer *answer)
{
	static const char *const states[] = {
		"08", "25006", "25P", "40", "53", "55", "57", "58", "XX", "LE004"
	};

	return answer->outcome != ANSWER_ERROR ||
		has_sqlstate(answer, states, lengthof(states));
}

/*
 * Return what to exit with after an error that the same call would meet again;
 * 0: there is none, or it may pass by itself.
 */
int
answer_exit_code(const Answer *answer)
{
	/* No schema, no function, no table */
	static const char *const no_extension[] = {"3F000", "42883", "42P01"};

	/* No privilege, no such election */
	static const char *const refused[] = {"42501", "LE003"};

	if (answer_is_transient(answer))
		return 0;
	if (has_sqlstate(answer, no_extension, lengthof(no_extension)))
		return EXIT_NO_EXTENSION;
	return has_sqlstate(answer, refused, lengthof(refused)) ?
		EXIT_REFUSED : EXIT_USAGE;
}

static void
report_no_extension(const Connection *c)
{
	bool		portable = c->options->portable;

	pg_log_error("database \"%s\" does not have the extension leader_election%s",
				 PQdb(c->conn), portable ? ", nor its portable edition" : "");
	switch (c->schema)
	{
		case SCHEMA_FOREIGN:
			pg_log_error_detail("It has a schema \"leader_election\" that does not belong to the extension: nothing in it is used.");
			pg_log_error_hint("Find out who has made it, and why.  Without it, as superuser: CREATE EXTENSION leader_election.");
			break;
		case SCHEMA_PORTABLE:
			pg_log_error_detail("It has a schema \"leader_election\" that does not belong to the extension, but, as its portable edition, to role \"%s\": nothing in it is used.",
								text_show(c->schema_owner));
			pg_log_error_hint("It would run with your rights.  If you trust that role: --portable, or PG_LEADER_PORTABLE=on.");
			break;
		default:
			pg_log_error_hint("In this database, as superuser: CREATE EXTENSION leader_election.  Where none can be installed: psql -f portable.sql%s.",
							  portable ? "" : ", and --portable");
	}
}

/*
 * Tell the user what the server said: an error.
 */
void
answer_report(const Connection *c, const Answer *answer)
{
	const char *message = answer->message;
	const char *colon = strstr(message, ":  ");

	/* Of the portable edition that may be used, something is missing. */
	if (answer_exit_code(answer) == EXIT_NO_EXTENSION &&
		(c->schema != SCHEMA_PORTABLE || !c->options->portable))
	{
		report_no_extension(c);
		return;
	}
	/* pg_log_error() prints "error: " itself: leave out "ERROR:  ". */
	if (colon != NULL && colon < message + 20)
		message = colon + 3;
	if (message[0] == '\0')
		message = NO_MESSAGE;
	pg_log_error("%s", text_lend(text_printable_lines(message)));
	if (answer->no_privilege)
		pg_log_error_hint("A role needs USAGE on schema leader_election, SELECT on what PUBLIC can read there by default, and to stand also EXECUTE on its routines.");
}
