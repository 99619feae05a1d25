/*-------------------------------------------------------------------------
 *
 * observe.c
 *		pg_leader status and yield, and what all that observe have in common.
 *
 * Invariant: what is shown is what the server's views say; whoever cannot be
 * asked is an error with an exit code of its own, never an empty answer.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

/* How often to look whether the leader has gone */
#define YIELD_INTERVAL		(200 * MSEC)

static const Statement sql_status = {
	"SELECT election AS \"Election\", state AS \"State\","
	" leader AS \"Leader\", term AS \"Term\","
	" pg_catalog.round(pg_catalog.extract('epoch', remaining), 1)"
	"::pg_catalog.text OPERATOR(pg_catalog.||) ' s' AS \"Remaining\","
	" candidates AS \"Candidates\", waiting_for AS \"Waiting for\""
	" FROM leader_election.status"
	" WHERE $1 IS NULL OR election OPERATOR(pg_catalog.=) $1 ORDER BY election",
	7, false, 1, {TEXTOID}
};
static const Statement sql_candidates = {
	"SELECT \"position\" AS \"Position\", candidate AS \"Candidate\","
	" kind AS \"Kind\", rank AS \"Rank\", progress AS \"Progress\","
	" CASE WHEN leads THEN 'leads' WHEN NOT alive THEN 'dead' END AS \"Note\""
	" FROM leader_election.candidates WHERE election OPERATOR(pg_catalog.=) $1"
	" ORDER BY \"position\", candidate",
	6, false, 1, {TEXTOID}
};
static const Statement sql_status_json = {
	"SELECT pg_catalog.row_to_json(s), leader FROM (SELECT election, strategy,"
	" state, waiting_for, leader, metadata, term, kind, backend_pid,"
	" acquired_at, renewed_at, expires_at,"
	" (pg_catalog.extract('epoch', remaining) OPERATOR(pg_catalog.*) 1000)"
	"::pg_catalog.int8 AS remaining_ms, quorum,"
	" CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN (SELECT"
	" pg_catalog.concat('[', pg_catalog.string_agg("
	"pg_catalog.row_to_json(c)::pg_catalog.text, ','"
	" ORDER BY \"position\", candidate), ']')::pg_catalog.json FROM"
	" (SELECT candidate, kind, rank, progress, metadata, joined_at, alive,"
	" leads, \"position\" FROM (SELECT election AS stands_in, candidate, kind,"
	" rank, progress, metadata, joined_at, alive, leads, \"position\""
	" FROM leader_election.candidates) a"
	" WHERE stands_in OPERATOR(pg_catalog.=) election) c) END AS candidates"
	" FROM leader_election.status"
	" WHERE $1 IS NULL OR election OPERATOR(pg_catalog.=) $1) s"
	" ORDER BY election",
	2, false, 1, {TEXTOID}
};

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

/* --- asking */

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

static void
no_such_election(const char *election)
{
	pg_log_error("election \"%s\" does not exist", election);
	exit(EXIT_USAGE);
}

/* --- status */

static bool
is_number(const PGresult *result, int column)
{
	Oid			type = PQftype(result, column);

	return type == INT8OID || type == INT4OID;
}

/*
 * The value in a cell, or (row -1) the head of its column; to be freed.
 */
static char *
cell(const PGresult *result, int row, int column)
{
	return printable(row < 0 ? PQfname(result, column) :
					 PQgetvalue(result, row, column));
}

static void
print_cell(char *text, int width, bool right, bool last)
{
	int			fill = width - display_width(text);

	if (right)
		printf("%*s%s", fill, "", text);
	else
		printf("%s%*s", text, last ? 0 : fill, "");
	fputs(last ? "\n" : "  ", stdout);
	pg_free(text);
}

/*
 * Print a result as a table, columns with nothing in them left out.
 */
static void
print_table(const PGresult *result)
{
	int			width[16] = {0};
	int			last = 0;

	for (int col = 0; col < PQnfields(result); col++)
	{
		for (int row = PQntuples(result) - 1; row >= -1; row--)
		{
			char	   *text = cell(result, row, col);

			if (row >= 0 || width[col] > 0)
				width[col] = Max(width[col], display_width(text));
			pg_free(text);
		}
		if (width[col] > 0)
			last = col;
	}
	for (int row = -1; row < PQntuples(result); row++)
	{
		for (int col = 0; col < PQnfields(result); col++)
		{
			if (width[col] > 0)
				print_cell(cell(result, row, col), width[col],
						   is_number(result, col), col == last);
		}
	}
}

int
show_status(const ObserveOptions *options)
{
	const char *values[] = {options->election};
	Connection	c;
	Answer		answer;
	bool		led = true;

	connect_observer(&c, options);
	answer = ask_observer(&c, options->json ? &sql_status_json : &sql_status,
						  values);
	if (options->election != NULL && PQntuples(answer.result) == 0)
		no_such_election(options->election);
	if (options->election != NULL)
		led = !PQgetisnull(answer.result, 0, options->json ? 1 : 2);
	if (!options->json)
		print_table(answer.result);
	for (int i = 0; options->json && i < PQntuples(answer.result); i++)
		print_json(PQgetvalue(answer.result, i, 0));
	answer_free(&answer);

	if (options->election != NULL && !options->json)
	{
		answer = ask_observer(&c, &sql_candidates, values);
		if (PQntuples(answer.result) > 0)
		{
			putchar('\n');
			print_table(answer.result);
		}
		answer_free(&answer);
	}
	connection_close(&c);
	return led ? EXIT_SUCCESS : EXIT_NOBODY_LEADS;
}

/* --- yield */

static int64
term_of(const Answer *answer)
{
	return strtoll(PQgetvalue(answer->result, 0, 0), NULL, 10);
}

static int
tell_successor(const Answer *answer)
{
	char	   *leader = printable(PQgetvalue(answer->result, 0, 1));

	printf("\"%s\" leads in term %lld\n", leader,
		   (long long) term_of(answer));
	pg_free(leader);
	return EXIT_SUCCESS;
}

static int
tell_vacancy(const Answer *answer)
{
	char	   *waiting_for = printable(PQgetvalue(answer->result, 0, 2));

	printf("nobody leads%s%s\n", waiting_for[0] ? ", waiting for " : "",
		   waiting_for);
	pg_free(waiting_for);
	return EXIT_NOBODY_LEADS;
}

static bool
any(const char *payload, void *arg)
{
	return true;
}

/*
 * Wait until another term than this one is led or, when this one is over, no
 * longer than a lease more.  Says who leads then.
 */
static int
wait_for_successor(Connection *c, const ObserveOptions *options, int64 term)
{
	const char *values[] = {options->election};
	int64		give_up = NEVER;
	int			code = -1;

	for (;;)
	{
		Answer		answer = ask_observer(c, &sql_leader, values);
		bool		vacant;

		if (PQntuples(answer.result) == 0)
			no_such_election(options->election);
		vacant = PQgetisnull(answer.result, 0, 1);
		if (!vacant && term_of(&answer) > term)
			code = tell_successor(&answer);
		else if (vacant && give_up == NEVER)
			give_up = now_us() +
				seconds_us(PQgetvalue(answer.result, 0, 3));
		else if (vacant && now_us() >= give_up)
			code = tell_vacancy(&answer);
		answer_free(&answer);
		if (code >= 0)
			return code;
		(void) connection_wait_notified(c, now_us() + YIELD_INTERVAL, any, NULL);
	}
}

int
yield_election(const ObserveOptions *options)
{
	const char *values[] = {
		options->election, options->to_candidate,
		options->terminate ? "true" : "false"
	};
	Connection	c;
	Answer		leader;
	Answer		answer;
	int			code = EXIT_SUCCESS;

	connect_observer(&c, options);
	connection_listen(&c, CHANNEL, OBSERVER_ANSWER_LIMIT);
	leader = ask_observer(&c, &sql_leader, values);
	if (PQntuples(leader.result) == 0)
		no_such_election(options->election);
	answer = ask_observer(&c, &sql_yield, values);
	if (PQgetisnull(answer.result, 0, 0) || PQgetisnull(leader.result, 0, 1))
		printf("nobody leads\n");
	else
	{
		char	   *name = printable(PQgetvalue(leader.result, 0, 1));
		char	   *length = format_duration(seconds_us(PQgetvalue(answer.result, 0, 0)));

		printf("\"%s\" is asked to yield: that takes %s at most\n", name, length);
		fflush(stdout);
		pg_free(name);
		pg_free(length);
		code = wait_for_successor(&c, options, term_of(&leader));
	}
	answer_free(&leader);
	answer_free(&answer);
	connection_close(&c);
	return code;
}
