/*-------------------------------------------------------------------------
 *
 * status.c
 *		pg_leader status: who leads, and who stands.
 *
 * Invariant: it shows what the server's views say, and works out nothing
 * itself.
 *
 *-------------------------------------------------------------------------
 */
#include "observer.h"
#include "subcommands.h"

static const Statement sql_status = {
	"SELECT election AS \"Election\", state AS \"State\","
	" leader AS \"Leader\", term AS \"Term\","
	" pg_catalog.round(pg_catalog.extract('epoch', remaining), 1)"
	"::pg_catalog.text OPERATOR(pg_catalog.||) ' s' AS \"Remaining\","
	" candidates AS \"Candidates\", waiting_for AS \"Waiting for\","
	" paused_by AS \"Paused by\", pause_reason AS \"Reason\","
	" pg_catalog.to_char(resumes_at, 'YYYY-MM-DD HH24:MI:SSOF') AS \"Until\","
	" run AS \"Run\", run_done AS \"Done\","
	" pg_catalog.to_char(done_at, 'YYYY-MM-DD HH24:MI:SSOF') AS \"Done at\""
	" FROM leader_election.status"
	" WHERE $1 IS NULL OR election OPERATOR(pg_catalog.=) $1 ORDER BY election",
	13, false, 1, {TEXTOID}
};
static const Statement sql_candidates = {
	"SELECT \"position\" AS \"Position\", candidate AS \"Candidate\","
	" kind AS \"Kind\", rank AS \"Rank\", progress AS \"Progress\","
	" CASE WHEN leads AND drained THEN 'leads, drained' WHEN leads THEN 'leads'"
	" WHEN NOT alive THEN 'dead' WHEN drained THEN 'drained' END AS \"Note\""
	" FROM leader_election.candidates WHERE election OPERATOR(pg_catalog.=) $1"
	" ORDER BY \"position\", candidate",
	6, false, 1, {TEXTOID}
};
static const Statement sql_status_json = {
	"SELECT pg_catalog.row_to_json(s), leader FROM (SELECT election,"
	" state, leader, term, since,"
	" (pg_catalog.extract('epoch', remaining) OPERATOR(pg_catalog.*) 1000)"
	"::pg_catalog.int8 AS remaining_ms, waiting_for, quorum, strategy, kind,"
	" backend_pid, renewed_at, expires_at,"
	" paused_at, paused_by, pause_reason, resumes_at,"
	" run, run_done, done_at, metadata, metadata_at,"
	" CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN (SELECT"
	" pg_catalog.concat('[', pg_catalog.string_agg("
	"pg_catalog.row_to_json(c)::pg_catalog.text, ','"
	" ORDER BY \"position\", candidate), ']')::pg_catalog.json FROM"
	" (SELECT candidate, \"position\", leads, alive, drained, kind, rank,"
	" progress, joined_at, metadata FROM (SELECT election AS stands_in, candidate,"
	" \"position\", leads, alive, drained, kind, rank, progress, joined_at, metadata"
	" FROM leader_election.candidates) a"
	" WHERE stands_in OPERATOR(pg_catalog.=) election) c) END AS candidates"
	" FROM leader_election.status"
	" WHERE $1 IS NULL OR election OPERATOR(pg_catalog.=) $1) s"
	" ORDER BY election",
	2, false, 1, {TEXTOID}
};

/*
 * Return the value in a cell, lent.  Row -1 is the heading.
 */
static char *
cell(const PGresult *result, int row, int column)
{
	return text_show(row < 0 ? PQfname(result, column) :
					 PQgetvalue(result, row, column));
}

/*
 * Print a cell.  The last cell of a line is not filled up.
 */
static void
print_cell(const char *text, int width, bool right, bool last)
{
	if (right)
		printf("%*s%s", width - text_width(text), "", text);
	else
		fputs(last ? text : text_fit(text, width), stdout);
	fputs(last ? "\n" : "  ", stdout);
}

/*
 * Print a result as a table, without the columns that are empty in all rows.
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
			if (row >= 0 || width[col] > 0)
				width[col] = Max(width[col], text_width(cell(result, row, col)));
		}
		if (width[col] > 0)
			last = col;
	}
	for (int row = -1; row < PQntuples(result); row++)
	{
		for (int col = 0; col < PQnfields(result); col++)
		{
			Oid			type = PQftype(result, col);

			if (width[col] > 0)
				print_cell(cell(result, row, col), width[col],
						   type == INT8OID || type == INT4OID, col == last);
		}
	}
}

/*
 * Print the candidates of an election; nothing on a standby, which knows none.
 */
static void
print_candidates(Connection *c, const char *const *values)
{
	Answer		answer = observer_ask(c, &sql_candidates, values);

	if (PQntuples(answer.result) > 0)
	{
		putchar('\n');
		print_table(answer.result);
	}
	answer_free(&answer);
}

/*
 * Does somebody lead: if a candidate is named, this one?  The row is that of
 * the election that is asked about.
 */
static bool
is_led(const Options *options, const PGresult *result, int leader_column)
{
	if (PQgetisnull(result, 0, leader_column))
		return false;
	return options->candidate == NULL ||
		strcmp(options->candidate, PQgetvalue(result, 0, leader_column)) == 0;
}

int
status_show(const Options *options)
{
	const char *values[] = {options->election};
	Connection	c;
	Answer		answer;
	bool		led = true;

	observer_connect(&c, options);
	answer = observer_ask(&c, options->json ? &sql_status_json : &sql_status,
						  values);
	if (options->election != NULL)
	{
		if (PQntuples(answer.result) == 0)
			observer_no_such_election(options->election);
		led = is_led(options, answer.result, options->json ? 1 : 2);
	}
	if (!options->json)
		print_table(answer.result);
	for (int i = 0; options->json && i < PQntuples(answer.result); i++)
		text_print_json(PQgetvalue(answer.result, i, 0));
	answer_free(&answer);
	if (options->election != NULL && !options->json)
		print_candidates(&c, values);
	connection_close(&c);
	return led ? EXIT_SUCCESS : EXIT_NOBODY_LEADS;
}
