/*-------------------------------------------------------------------------
 *
 * status.c
 *		pg_leader status: who leads, and who stands.
 *
 * Invariant: it shows what the server's views say.  It works out nothing itself,
 * but what comes first, and what can be left out.
 *
 *-------------------------------------------------------------------------
 */
#include "observer.h"
#include "subcommands.h"

static const Statement sql_status = {
	"SELECT " SQL_UNUSED ", " SQL_TROUBLED ","
	" election AS \"Election\", state AS \"State\","
	" leader AS \"Leader\", term AS \"Term\","
	" pg_catalog.to_char(since, 'YYYY-MM-DD HH24:MI:SSOF') AS \"Since\","
	" pg_catalog.round(pg_catalog.extract('epoch', remaining), 1)"
	"::pg_catalog.text OPERATOR(pg_catalog.||) ' s' AS \"Remaining\","
	" candidates AS \"Candidates\", waiting_for AS \"Waiting for\","
	" pg_catalog.concat_ws('; ',"
	" CASE WHEN paused_by IS NOT NULL THEN pg_catalog.concat('paused by ',"
	" paused_by, pg_catalog.to_char(resumes_at,"
	" '\" until \"YYYY-MM-DD HH24:MI:SSOF'), ': ' OPERATOR(pg_catalog.||)"
	" pause_reason) END,"
	" 'run ' OPERATOR(pg_catalog.||) run,"
	" 'run ' OPERATOR(pg_catalog.||) run_done OPERATOR(pg_catalog.||) ' done at '"
	" OPERATOR(pg_catalog.||) pg_catalog.to_char(done_at,"
	" 'YYYY-MM-DD HH24:MI:SSOF')) AS \"Note\""
	" FROM leader_election.status"
	" WHERE $1 IS NULL OR election OPERATOR(pg_catalog.=) $1"
	" ORDER BY 2 DESC, leader IS NULL, 1, election",
	11, false, 1, {TEXTOID}
};

/* Columns of sql_status; the first ones are not shown */
enum
{
	COL_UNUSED,
	COL_TROUBLED,
	COL_ELECTION,
	COL_STATE,
	COL_LEADER
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

/* Column of sql_candidates */
#define COL_NOTE	5

/* A result as a table */
typedef struct Table
{
	const PGresult *result;
	int			first;			/* of the columns that are shown */
	bool		leaves_unused;	/* rows of unused elections are left out */
	int			painted;		/* a column */
	Paint		(*paint) (const PGresult *result, int row);
} Table;

/* --- colours */

static bool
is_true(const PGresult *result, int row, int column)
{
	return PQgetvalue(result, row, column)[0] == 't';
}

static Paint
paint_election(const PGresult *result, int row)
{
	return paint_of_state(PQgetvalue(result, row, COL_STATE),
						  is_true(result, row, COL_UNUSED),
						  is_true(result, row, COL_TROUBLED));
}

static Paint
paint_candidate(const PGresult *result, int row)
{
	const char *note = PQgetvalue(result, row, COL_NOTE);

	return strcmp(note, "leads") == 0 ? PAINT_WELL :
		strcmp(note, "dead") == 0 ? PAINT_BAD : PAINT_CARE;
}

/* --- tables */

static bool
is_left_out(const Table *t, int row)
{
	return row >= 0 && t->leaves_unused && is_true(t->result, row, COL_UNUSED);
}

/*
 * Return the value in a cell, lent.  Row -1 is the heading.
 */
static char *
cell(const Table *t, int row, int column)
{
	char	   *text = text_printable(row < 0 ? PQfname(t->result, column) :
									  PQgetvalue(t->result, row, column));

	return text_lend(text_quote_blank(text));
}

static void
print_cell(const Table *t, int row, int column, int width, bool last)
{
	const char *text = cell(t, row, column);
	Oid			type = PQftype(t->result, column);
	int			fill = width - text_width(text);
	bool		right = type == INT8OID || type == INT4OID;
	Paint		paint = row < 0 ? PAINT_HEAD :
		column == t->painted ? t->paint(t->result, row) : PAINT_PLAIN;

	printf("%*s%s%s%s%*s", right ? fill : 0, "", paint_begin(paint), text,
		   paint_end(paint), right || last ? 0 : fill, "");
	fputs(last ? "\n" : "  ", stdout);
}

/*
 * Print a row, without columns that have no width.  Its end is not filled up:
 * on a narrow terminal that would be a line more.
 */
static void
print_row(const Table *t, int row, const int *widths)
{
	int			last = PQnfields(t->result) - 1;

	while (last > t->first && (widths[last] == 0 || cell(t, row, last)[0] == '\0'))
		last--;
	for (int col = t->first; col <= last; col++)
	{
		if (widths[col] > 0)
			print_cell(t, row, col, widths[col], col == last);
	}
}

/*
 * Print a table, without the columns that are empty in all rows.  Return how
 * many rows were left out.
 */
static int
print_table(const Table *t)
{
	int			widths[16] = {0};
	int			left_out = 0;
	int			shown;

	for (int row = 0; row < PQntuples(t->result); row++)
		left_out += is_left_out(t, row);
	shown = PQntuples(t->result) - left_out;
	for (int col = t->first; col < PQnfields(t->result); col++)
	{
		for (int row = PQntuples(t->result) - 1; row >= -1; row--)
		{
			if (!is_left_out(t, row) && (row >= 0 || widths[col] > 0))
				widths[col] = Max(widths[col], text_width(cell(t, row, col)));
		}
	}
	for (int row = -1; row < PQntuples(t->result) && shown > 0; row++)
	{
		if (!is_left_out(t, row))
			print_row(t, row, widths);
	}
	return left_out;
}

/*
 * Print the elections; the number of those that are left out at the end.
 */
static void
print_elections(const PGresult *result, const Options *options)
{
	Table		t = {
		.result = result,.first = COL_ELECTION,
		.leaves_unused = !options->all && options->election == NULL,
		.painted = COL_STATE,.paint = paint_election
	};
	int			left_out = print_table(&t);

	if (left_out > 0)
		printf("%s%s%d that nobody has led or stands for: see --all%s\n",
			   paint_begin(PAINT_QUIET),
			   left_out < PQntuples(result) ? "and " : "", left_out,
			   paint_end(PAINT_QUIET));
}

/*
 * Print the candidates of an election; nothing on a standby, which knows none.
 */
static void
print_candidates(Connection *c, const char *const *values)
{
	Answer		answer = observer_ask(c, &sql_candidates, values);
	Table		t = {
		.result = answer.result,.painted = COL_NOTE,.paint = paint_candidate
	};

	if (PQntuples(answer.result) > 0)
	{
		putchar('\n');
		(void) print_table(&t);
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
		led = is_led(options, answer.result, options->json ? 1 : COL_LEADER);
	}
	if (!options->json)
		print_elections(answer.result, options);
	for (int i = 0; options->json && i < PQntuples(answer.result); i++)
		text_print_json(PQgetvalue(answer.result, i, 0));
	answer_free(&answer);
	if (options->election != NULL && !options->json)
		print_candidates(&c, values);
	connection_free(&c);
	return led ? EXIT_SUCCESS : EXIT_NOBODY_LEADS;
}
