/*-------------------------------------------------------------------------
 *
 * diagnose.c
 *		pg_leader diagnose: what is wrong with elections, and what to do.
 *
 * Invariant: it shows what the function diagnose() says, all of it; the exit
 * status is that of the gravest finding.
 *
 *-------------------------------------------------------------------------
 */
#include "observer.h"
#include "subcommands.h"

#include <unistd.h>

#define FINDINGS_FIELDS	5
#define INDENT			11		/* columns: "  warning  " */
#define NARROWEST		20
#define MAX_TRIES		3		/* of a question about all elections */

static const Statement sql_one = {
	"SELECT $1, severity, finding, remedy, pg_catalog.json_build_object("
	"'election', $1, 'severity', severity, 'finding', finding, 'remedy', remedy)"
	" FROM leader_election.diagnose($1)",
	FINDINGS_FIELDS, false, 1, {TEXTOID}
};

/*
 * Of all elections; of a group as a whole.  The worst come first.  $1: unused
 * ones, too.  Findings about one election are numbered, since their order says
 * which is the first one to read.
 */
static const Statement sql_all = {
	"SELECT name, severity, finding, remedy, pg_catalog.json_build_object("
	"'election', name, 'severity', severity, 'finding', finding, 'remedy', remedy)"
	" FROM (SELECT name, severity, finding, remedy, nth, pg_catalog.max(grade)"
	" OVER (PARTITION BY name) AS worst"
	" FROM (SELECT name, severity, finding, remedy,"
	" pg_catalog.row_number() OVER () AS nth,"
	" CASE WHEN severity OPERATOR(pg_catalog.=) 'error' THEN 2"
	" WHEN severity OPERATOR(pg_catalog.=) 'warning' THEN 1 ELSE 0 END AS grade"
	" FROM (SELECT DISTINCT COALESCE(group_name, member) AS name"
	" FROM (SELECT election AS member, group_name FROM leader_election.election) e,"
	" leader_election.status WHERE member OPERATOR(pg_catalog.=) election"
	" AND ($1 OR " SQL_UNUSED " IS NOT TRUE)) n, leader_election.diagnose(name)) f) g"
	" ORDER BY worst DESC, name, nth",
	FINDINGS_FIELDS, false, 1, {BOOLOID}
};

/* Columns of both */
enum
{
	COL_ELECTION,
	COL_SEVERITY,
	COL_FINDING,
	COL_REMEDY,
	COL_JSON
};

/* How grave findings are; one of a newer version is not taken for well */
static const struct
{
	const char *severity;		/* NULL: any other */
	Paint		paint;
	int			exit_code;
}			grades[] = {
	{"ok", PAINT_WELL, EXIT_SUCCESS},
	{"notice", PAINT_CARE, EXIT_SUCCESS},
	{"warning", PAINT_CARE, EXIT_WARNINGS},
	{"error", PAINT_BAD, EXIT_ERRORS},
	{NULL, PAINT_CARE, EXIT_WARNINGS}
};

static int
grade_of(const PGresult *findings, int row)
{
	const char *severity = PQgetvalue(findings, row, COL_SEVERITY);
	int			i = 0;

	while (grades[i].severity != NULL && strcmp(grades[i].severity, severity) != 0)
		i++;
	return i;
}

/*
 * Print a text in lines that fit beside the indent, the first of which has begun
 * already.  Lines end between words; a word that is longer than a line has one
 * of its own.  Blanks within a line stay as they are: names may have several.
 */
static void
print_wrapped(const char *text, int columns)
{
	int			room = Max(columns - 1 - INDENT, NARROWEST);
	int			taken = 0;
	int			blanks = 0;

	while (*text != '\0')
	{
		int			length = strcspn(text, " ");
		char	   *word = pnstrdup(text, length);
		int			width = text_width(word);

		if (taken > 0 && blanks + width > room - taken)
		{
			printf("\n%*s", INDENT, "");
			taken = blanks = 0;
		}
		printf("%*s%s", blanks, "", word);
		taken += blanks + width;
		pg_free(word);
		text += length;
		blanks = strspn(text, " ");
		text += blanks;
	}
	putchar('\n');
}

/*
 * Print a finding, under the name of its election; and what to do, unless that
 * is nothing.
 */
static void
print_finding(const PGresult *findings, int row, int columns)
{
	Paint		paint = grades[grade_of(findings, row)].paint;
	const char *severity = text_show(PQgetvalue(findings, row, COL_SEVERITY));

	if (row == 0 || strcmp(PQgetvalue(findings, row, COL_ELECTION),
						   PQgetvalue(findings, row - 1, COL_ELECTION)) != 0)
		printf("%s%s%s%s\n", row > 0 ? "\n" : "", paint_begin(PAINT_HEAD),
			   text_lend(text_quote_blank(text_printable(PQgetvalue(findings, row, COL_ELECTION)))),
			   paint_end(PAINT_HEAD));
	printf("  %s%s%s", paint_begin(paint), text_fit(severity, INDENT - 4),
		   paint_end(paint));
	fputs("  ", stdout);
	print_wrapped(text_show(PQgetvalue(findings, row, COL_FINDING)), columns);
	if (strcmp(severity, "ok") == 0 || PQgetisnull(findings, row, COL_REMEDY))
		return;
	printf("%*s", INDENT, "-> ");
	print_wrapped(text_show(PQgetvalue(findings, row, COL_REMEDY)), columns);
}

static void
print_findings(const PGresult *findings, bool json)
{
	/* A line for each in a file, where grep looks */
	int			columns = isatty(STDOUT_FILENO) ? terminal_columns() : PG_INT32_MAX;

	for (int row = 0; row < PQntuples(findings); row++)
	{
		if (json)
			text_print_json(PQgetvalue(findings, row, COL_JSON));
		else
			print_finding(findings, row, columns);
	}
	if (PQntuples(findings) == 0 && !json)
		puts("no elections that anybody has led or stands for");
}

/*
 * Ask about all elections.  One that is dropped after its name was read is an
 * error of diagnose(): the next answer is without it.
 */
static Answer
ask_about_all(Connection *c, const char *const *values)
{
	Answer		answer;

	for (int tries = 1;; tries++)
	{
		answer = query_ask(c, &sql_all, values, OBSERVER_LIMIT, false);
		if (tries == MAX_TRIES || answer.outcome != ANSWER_ERROR ||
			strcmp(answer.sqlstate, "LE003") != 0)
			return observer_judge(c, answer);
		answer_free(&answer);
	}
}

int
diagnose_show(const Options *options)
{
	const char *values[] = {options->all ? "t" : "f"};
	Connection	c;
	Answer		answer;
	int			code = EXIT_SUCCESS;

	if (options->election != NULL)
		values[0] = options->election;
	observer_connect(&c, options);
	answer = options->election != NULL ? observer_ask(&c, &sql_one, values) :
		ask_about_all(&c, values);
	print_findings(answer.result, options->json);
	for (int row = 0; row < PQntuples(answer.result); row++)
		code = Max(code, grades[grade_of(answer.result, row)].exit_code);
	answer_free(&answer);
	connection_free(&c);
	return code;
}
