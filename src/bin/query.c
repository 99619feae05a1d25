/*-------------------------------------------------------------------------
 *
 * query.c
 *		Statements and their answers.
 *
 * Invariants:
 *
 * - A query that was not answered costs the connection.  We do not know
 *	 whether the server has executed it, and a later query on the same
 *	 connection would get its answer.
 *
 * - No statement reaches a schema leader_election that is not the extension's,
 *	 unless the user has said that the portable edition may be believed.
 *
 *-------------------------------------------------------------------------
 */
#include "connection.h"

#include "common/string.h"

/*
 * Is there a schema leader_election, is it the extension's, and if not, does it
 * look like the portable edition's?  The owner of a database can make a schema
 * of that name, but cannot make it a member of an extension.  Anybody who may
 * create schemas can make one that looks like the portable edition.
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
	" AND deptype OPERATOR(pg_catalog.=) 'e'),"
	" EXISTS (SELECT 1 FROM pg_catalog.pg_class"
	" WHERE relname OPERATOR(pg_catalog.=) 'edition' AND relkind"
	" OPERATOR(pg_catalog.=) 'r' AND (relnamespace, relowner)"
	" OPERATOR(pg_catalog.=) (SELECT oid, nspowner"
	" FROM pg_catalog.pg_namespace"
	" WHERE nspname OPERATOR(pg_catalog.=) 'leader_election_internal')"
	" AND relowner OPERATOR(pg_catalog.=) (SELECT nspowner"
	" FROM pg_catalog.pg_namespace"
	" WHERE nspname OPERATOR(pg_catalog.=) 'leader_election')),"
	" (SELECT pg_catalog.pg_get_userbyid(nspowner) FROM pg_catalog.pg_namespace"
	" WHERE nspname OPERATOR(pg_catalog.=) 'leader_election')",
	4, true
};

/* --- one statement */

/*
 * Make an answer an error.  It takes over the message.
 */
static void
set_error(Answer *answer, const char *sqlstate, char *message)
{
	PQclear(answer->result);
	answer->result = NULL;
	answer->outcome = ANSWER_ERROR;
	strlcpy(answer->sqlstate, sqlstate == NULL ? "" : sqlstate,
			sizeof(answer->sqlstate));
	pg_free(answer->message);
	answer->message = message;
}

/*
 * Does the server want to copy data? Until we do that, libpq returns the same
 * result again and again.
 */
static bool
is_copying(const PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	return status == PGRES_COPY_IN || status == PGRES_COPY_OUT ||
		status == PGRES_COPY_BOTH;
}

/*
 * Does an error say that a GRANT is missing? The extension's own refusals have
 * that SQLSTATE (42501), too, and words are of the server's language.
 */
static bool
says_no_privilege(const PGresult *result)
{
	const char *function = PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION);

	return function != NULL && strncmp(function, "aclcheck_error", 14) == 0;
}

/*
 * Take the next result of the statement that was sent.  Return true if there
 * are no more.
 */
static bool
take_result(Connection *c, Answer *answer)
{
	PGresult   *result = PQgetResult(c->conn);
	const char *message;

	if (result == NULL)
		return true;
	if (PQresultStatus(result) == PGRES_TUPLES_OK ||
		PQresultStatus(result) == PGRES_COMMAND_OK)
	{
		PQclear(answer->result);
		answer->result = result;
		answer->outcome = ANSWER_ROWS;
		return false;
	}
	message = PQresultErrorMessage(result);
	message += strspn(message, "\n");
	if (message[0] == '\0')
		message = NO_MESSAGE;
	set_error(answer, PQresultErrorField(result, PG_DIAG_SQLSTATE),
			  pg_strdup(message));
	(void) pg_strip_crlf(answer->message);
	answer->no_privilege = says_no_privilege(result);
	answer->is_copy = is_copying(result);
	PQclear(result);
	return false;
}

/*
 * Send what is not sent yet, and read the whole answer.  Return false if it has
 * not come: the moment has come, the watcher has stopped the wait, the connection
 * is lost, or the server wants to copy data.
 */
static bool
read_answer(Connection *c, Answer *answer, int64 until, bool may_stop)
{
	bool		late = false;

	for (;;)
	{
		bool		stopped;
		int			unsent;

		while (!PQisBusy(c->conn))
		{
			if (take_result(c, answer))
				return true;
			if (answer->is_copy)
				return false;
		}
		/* There may always be something to read, but never the end. */
		if (late || (unsent = PQflush(c->conn)) < 0)
			return false;
		late = now_us() >= until;
		if (!connection_wait_ready(c, unsent > 0 ? POLLIN | POLLOUT : POLLIN,
								   until, &stopped))
		{
			if (stopped && !may_stop)
				continue;
			return false;
		}
		if (!PQconsumeInput(c->conn))
			return false;
	}
}

/*
 * Make an answer of another shape than the statement's an error.  42804, wrong
 * type, is not transient: the same call would be answered like that again.
 */
static void
check_shape(const Statement *s, Answer *answer)
{
	if (answer->outcome != ANSWER_ROWS)
		return;
	if (PQnfields(answer->result) != s->nfields)
		set_error(answer, "42804",
				  psprintf("the server answered with %d columns instead of %d",
						   PQnfields(answer->result), s->nfields));
	else if (s->one_row && PQntuples(answer->result) != 1)
		set_error(answer, "42804",
				  psprintf("the server answered with %d rows instead of 1",
						   PQntuples(answer->result)));
}

/*
 * Send a statement, and wait for its answer until that moment, without a look
 * at the schema.
 */
Answer
query_exchange(Connection *c, const Statement *s, const char *const *values,
			   int64 until, bool may_stop)
{
	Answer		answer = {.outcome = ANSWER_LOST,.sent = now_us()};
	bool		complete;

	if (c->conn == NULL)
		return answer;
	complete = PQsendQueryParams(c->conn, s->sql, s->nparams, s->types, values,
								 NULL, NULL, 0) &&
		read_answer(c, &answer, until, may_stop);
	if (complete && answer.outcome != ANSWER_LOST &&
		PQstatus(c->conn) == CONNECTION_OK)
	{
		check_shape(s, &answer);
		return answer;
	}

	connection_fail(c, PQstatus(c->conn) != CONNECTION_OK ?
					PQerrorMessage(c->conn) : answer.is_copy ?
					"the server wants to copy data" : complete ?
					"the server's answer is empty" :
					"the server did not answer in time");
	answer_free(&answer);
	answer.outcome = ANSWER_LOST;
	return answer;
}

/* --- the schema */

/*
 * Take the answer to sql_schema.  The user trusts the role that owned the
 * portable edition when we first saw it.  If that role drops its schemas while
 * we run, another role can make both anew: we use nothing in those.
 */
static void
set_schema(Connection *c, const PGresult *result)
{
	bool		exists = PQgetvalue(result, 0, 0)[0] == 't';
	bool		extension = PQgetvalue(result, 0, 1)[0] == 't';
	bool		portable = PQgetvalue(result, 0, 2)[0] == 't';

	c->schema = extension ? SCHEMA_EXTENSION : !exists ? SCHEMA_NONE :
		portable ? SCHEMA_PORTABLE : SCHEMA_FOREIGN;
	text_set(&c->schema_owner, PQgetvalue(result, 0, 3));
	if (c->schema != SCHEMA_PORTABLE)
		return;
	if (c->portable_owner == NULL)
		text_set(&c->portable_owner, c->schema_owner);
	else if (strcmp(c->portable_owner, c->schema_owner) != 0)
		c->schema = SCHEMA_FOREIGN;
}

/*
 * Return why the schema is not to be used; NULL: it may be.
 */
static const char *
refuse_schema(const Connection *c)
{
	if (c->schema == SCHEMA_EXTENSION ||
		(c->schema == SCHEMA_PORTABLE && c->options->portable))
		return NULL;
	if (c->schema == SCHEMA_NONE)
		return "there is no extension leader_election";
	return c->schema == SCHEMA_PORTABLE ?
		"schema \"leader_election\" does not belong to the extension leader_election, but to its portable edition (--portable)" :
		"schema \"leader_election\" does not belong to the extension leader_election";
}

/*
 * Send a statement, and wait for its answer, but not longer than the limit.
 * If may_stop, the watcher can end the wait, which costs the connection.
 *
 * We look at the schema before every statement.  If a superuser drops the
 * extension while we are connected, the owner of the database can make a
 * schema of its name before our next call.  A gap remains: both may happen
 * between these two statements.  A single statement cannot close it, because
 * the server looks up all names in a statement before it executes any part of
 * it, and the calls that change who leads must be alone in their transaction.
 */
Answer
query_ask(Connection *c, const Statement *statement,
		  const char *const *values, int64 limit, bool may_stop)
{
	int64		until = now_us() + limit;
	Answer		answer = query_exchange(c, &sql_schema, NULL, until, may_stop);
	const char *refusal;

	if (answer.outcome != ANSWER_ROWS)
		return answer;
	set_schema(c, answer.result);
	refusal = refuse_schema(c);
	if (refusal != NULL)
	{
		set_error(&answer, "3F000", pg_strdup(refusal));
		return answer;
	}
	answer_free(&answer);
	return query_exchange(c, statement, values, until, may_stop);
}
