/*-------------------------------------------------------------------------
 *
 * query.c
 *		Statements and their answers.
 *
 *-------------------------------------------------------------------------
 */
#include "connection.h"

#include "common/string.h"

/*
 * Is there a schema leader_election, and is it the extension's?  Who owns a
 * database can make a schema of that name, but not a member of an extension.
 */
static const Statement sql_schema = {
	"SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace"
	" WHERE nspname OPERATOR(pg_catalog.=) 'leader_election'),"
	" EXISTS (SELECT 1 FROM pg_catalog.pg_depend"
	" WHERE classid OPERATOR(pg_catalog.=)"
	" 'pg_catalog.pg_namespace'::pg_catalog.regclass"
	" AND objid OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_namespace"
	" WHERE nspname OPERATOR(pg_catalog.=) 'leader_election')"
	" AND objsubid OPERATOR(pg_catalog.=) 0"
	" AND refclassid OPERATOR(pg_catalog.=)"
	" 'pg_catalog.pg_extension'::pg_catalog.regclass"
	" AND refobjid OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_extension"
	" WHERE extname OPERATOR(pg_catalog.=) 'leader_election')"
	" AND deptype OPERATOR(pg_catalog.=) 'e')",
	2, true
};

/* --- queries */

void
answer_free(Answer *answer)
{
	PQclear(answer->result);
	pg_free(answer->message);
	memset(answer, 0, sizeof(Answer));
}

/*
 * Take the result of the query that was sent.  True: this was the last one.
 */
static bool
take_result(Connection *c, Answer *answer)
{
	PGresult   *result = PQgetResult(c->conn);
	const char *sqlstate;

	if (result == NULL)
		return true;
	if (PQresultStatus(result) == PGRES_TUPLES_OK ||
		PQresultStatus(result) == PGRES_COMMAND_OK)
	{
		PQclear(answer->result);
		answer->result = result;
		answer->outcome = OUTCOME_ROWS;
		return false;
	}
	sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	strlcpy(answer->sqlstate, sqlstate == NULL ? "" : sqlstate,
			sizeof(answer->sqlstate));
	pg_free(answer->message);
	answer->message = pg_strdup(PQresultErrorMessage(result));
	(void) pg_strip_crlf(answer->message);
	answer->outcome = OUTCOME_ERROR;
	PQclear(result);
	return false;
}

static bool
read_answer(Connection *c, Answer *answer, int64 until, bool may_stop,
			bool *stopped)
{
	for (;;)
	{
		bool		said_stop;

		while (!PQisBusy(c->conn))
		{
			if (take_result(c, answer))
				return true;
		}
		if (PQflush(c->conn) < 0)
			return false;
		if (!connection_wait_ready(c, PQsocket(c->conn), POLLIN, until, &said_stop))
		{
			*stopped = said_stop && may_stop;
			if (said_stop && !may_stop)
				continue;
			return false;
		}
		if (!PQconsumeInput(c->conn))
			return false;
	}
}

/*
 * Make an answer of ours an error.
 */
static void
set_answer_error(Answer *answer, const char *sqlstate, char *message)
{
	PQclear(answer->result);
	answer->result = NULL;
	answer->outcome = OUTCOME_ERROR;
	strlcpy(answer->sqlstate, sqlstate, sizeof(answer->sqlstate));
	pg_free(answer->message);
	answer->message = message;
}

/*
 * An answer of another shape than the statement's is an error (42804: wrong
 * type) that the same call would only meet again.
 */
static void
check_shape(const Statement *s, Answer *answer)
{
	if (answer->outcome != OUTCOME_ROWS)
		return;
	if (PQnfields(answer->result) != s->nfields)
		set_answer_error(answer, "42804",
						 psprintf("the server answered with %d columns instead of %d",
								  PQnfields(answer->result), s->nfields));
	else if (s->one_row && PQntuples(answer->result) != 1)
		set_answer_error(answer, "42804",
						 psprintf("the server answered with %d rows instead of 1",
								  PQntuples(answer->result)));
}

/*
 * Send a statement, and wait for the answer until that moment.
 */
Answer
query_exchange(Connection *c, const Statement *s, const char *const *values,
		 int64 until, bool may_stop)
{
	Answer		answer = {.outcome = OUTCOME_LOST,.sent = now_us()};
	bool		stopped = false;

	if (c->conn == NULL)
		return answer;
	if (PQsendQueryParams(c->conn, s->sql, s->nparams, s->types, values, NULL,
						  NULL, 0) &&
		read_answer(c, &answer, until, may_stop, &stopped) &&
		PQstatus(c->conn) == CONNECTION_OK)
	{
		check_shape(s, &answer);
		return answer;
	}

	if (PQstatus(c->conn) == CONNECTION_OK)
		connection_set_error(c, "the server did not answer in time");
	else
		connection_set_error(c, PQerrorMessage(c->conn));
	PQclear(answer.result);
	answer.result = NULL;
	answer.outcome = stopped ? OUTCOME_STOPPED : OUTCOME_LOST;
	connection_close(c);
	return answer;
}

/*
 * Ask the server, and wait for the answer, but not longer than the limit.
 *
 * The schema is looked at before every statement.  If a superuser drops the
 * extension while we are connected, the owner of the database can make a schema
 * of its name before our next call.  What remains is that both happen between
 * these two statements: no single one can do both, since names
 * are looked up before anything of it is executed, and calls that change who
 * leads run in no transaction with another statement.
 */
Answer
query_ask(Connection *c, const Statement *statement,
				 const char *const *values, int64 limit, bool may_stop)
{
	int64		until = now_us() + limit;
	Answer		answer = query_exchange(c, &sql_schema, NULL, until, may_stop);
	bool		is_ours;

	if (answer.outcome != OUTCOME_ROWS)
		return answer;
	is_ours = PQgetvalue(answer.result, 0, 1)[0] == 't';
	c->foreign_schema = !is_ours && PQgetvalue(answer.result, 0, 0)[0] == 't';
	if (!is_ours)
	{
		set_answer_error(&answer, "3F000", pg_strdup(c->foreign_schema ?
													 "schema \"leader_election\" does not belong to the extension leader_election" :
													 "there is no extension leader_election"));
		return answer;
	}
	answer_free(&answer);
	return query_exchange(c, statement, values, until, may_stop);
}

/* --- what answers mean */

/*
 * Might the same call succeed a little later?
 */
bool
answer_is_transient(const Answer *answer)
{
	static const char *const classes[] = {
		"08", "25", "40", "53", "55", "57", "58", "XX"
	};

	if (answer->outcome != OUTCOME_ERROR)
		return true;
	for (int i = 0; i < lengthof(classes); i++)
	{
		if (strncmp(answer->sqlstate, classes[i], 2) == 0)
			return true;
	}
	return strcmp(answer->sqlstate, "LE004") == 0;
}

/*
 * Does the database lack the extension?
 */
bool
answer_is_no_extension(const Answer *answer)
{
	static const char *const states[] = {
		"3F000", "42883", "42P01"
	};

	for (int i = 0; answer->outcome == OUTCOME_ERROR && i < lengthof(states); i++)
	{
		if (strcmp(answer->sqlstate, states[i]) == 0)
			return true;
	}
	return false;
}

/*
 * Tell the user what the server said.
 */
void
answer_report(const Answer *answer)
{
	const char *message = answer->message;
	char	   *shown;

	/* "ERROR:  ..." would be said twice. */
	if (message != NULL && strstr(message, ":  ") != NULL &&
		strstr(message, ":  ") < message + 20)
		message = strstr(message, ":  ") + 3;
	shown = text_printable_lines(message == NULL ? "the server did not answer" : message);
	pg_log_error("%s", shown);
	pg_free(shown);
}

void
answer_report_no_extension(Connection *c)
{
	pg_log_error("database \"%s\" does not have the extension leader_election",
				 PQdb(c->conn));
	if (c->foreign_schema)
	{
		pg_log_error_detail("It has a schema \"leader_election\" that does not belong to the extension: nothing in it is used.");
		pg_log_error_hint("Find out who has made it, and why.  Without it, as superuser: CREATE EXTENSION leader_election.");
		return;
	}
	pg_log_error_hint("In this database, as superuser: CREATE EXTENSION leader_election.");
}
