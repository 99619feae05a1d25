/*-------------------------------------------------------------------------
 *
 * timeline.c
 *		pg_leader history: the terms of an election, drawn on a terminal.
 *
 * Invariant: a lane shows every term, however short: a term takes one column
 * at least.  It shows a gap only where nobody led for the whole time of a
 * column.  If standard output is no terminal, a line per term is printed, for
 * programs.  With --html, html.c draws instead.
 *
 *-------------------------------------------------------------------------
 */
#include "page.h"
#include "subcommands.h"

#include <langinfo.h>
#include <unistd.h>

#define SHORTEST_LANE		10
#define LONGEST_NAME		24

/* $2: since when; $3: or since how long ago */
static const Statement sql_history = {
	"SELECT term, leader, kind, acquired_at, ended_at, reason, detail,"
	" pg_catalog.extract('epoch', acquired_at), pg_catalog.extract('epoch',"
	" COALESCE(ended_at, pg_catalog.clock_timestamp())),"
	" pg_catalog.row_to_json(h) FROM (SELECT election, term, leader, kind,"
	" role, client_addr, backend_pid, acquired_at, ended_at, reason, detail"
	" FROM leader_election.history WHERE election OPERATOR(pg_catalog.=) $1"
	" AND (ended_at OPERATOR(pg_catalog.>=) COALESCE($2,"
	" pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) $3)) IS NOT FALSE) h"
	" ORDER BY term",
	10, false, 3, {TEXTOID, TIMESTAMPTZOID, INTERVALOID}
};

/* Columns of sql_history */
enum
{
	COL_TERM,
	COL_LEADER,
	COL_KIND,
	COL_ACQUIRED_AT,
	COL_ENDED_AT,
	COL_REASON,
	COL_DETAIL,
	COL_FROM,
	COL_TO,
	COL_JSON
};

/* A column of a lane; anything else is the letter of a reason */
#define CELL_EMPTY	' '
#define CELL_LEADS	'='
#define CELL_GAP	'.'

typedef struct Timeline
{
	PGresult   *terms;
	double		from;			/* seconds */
	double		to;
	int			name_width;
	int			columns;		/* of a lane */
	bool		blocks;			/* the terminal knows Unicode */
} Timeline;

static double
seconds(const Timeline *t, int row, int column)
{
	return strtod(PQgetvalue(t->terms, row, column), NULL);
}

/*
 * Return the column of a lane that a moment is in.
 */
static int
cell_of(const Timeline *t, double at)
{
	double		span = Max(t->to - t->from, 0.001);
	double		cell = (at - t->from) / span * t->columns;

	/* It need be no number at all. */
	return cell >= 0 ? (int) Min(cell, t->columns - 1) : 0;
}

/*
 * Fill a lane with the terms of a candidate; if that is NULL, with the gaps
 * between all terms.
 */
static void
fill_lane(const Timeline *t, const char *leader, char *lane)
{
	memset(lane, leader == NULL ? CELL_GAP : CELL_EMPTY, t->columns);
	lane[t->columns] = '\0';
	for (int row = 0; row < PQntuples(t->terms); row++)
	{
		int			first = cell_of(t, seconds(t, row, COL_FROM));
		int			last = cell_of(t, seconds(t, row, COL_TO));

		/* The server's clock may have been set back during the term. */
		last = Max(first, last);
		if (leader == NULL)
			memset(lane + first, CELL_EMPTY, last - first + 1);
		else if (strcmp(PQgetvalue(t->terms, row, COL_LEADER), leader) == 0)
		{
			memset(lane + first, CELL_LEADS, last - first + 1);
			if (!PQgetisnull(t->terms, row, COL_ENDED_AT))
				lane[last] = reason_find(PQgetvalue(t->terms, row, COL_REASON))->letter;
		}
	}
}

static void
print_lane(const Timeline *t, const char *name, const char *lane)
{
	printf("%s ", text_fit(text_show(name), t->name_width));
	for (; *lane != '\0'; lane++)
	{
		if (t->blocks && *lane == CELL_LEADS)
			fputs("\xE2\x96\x88", stdout);	/* full block */
		else if (t->blocks && *lane == CELL_GAP)
			fputs("\xC2\xB7", stdout);	/* middle dot */
		else
			putchar(*lane);
	}
	putchar('\n');
}

/*
 * Is this the first term of its leader?
 */
static bool
is_first_of(const Timeline *t, int row)
{
	for (int i = 0; i < row; i++)
	{
		if (strcmp(PQgetvalue(t->terms, i, COL_LEADER),
				   PQgetvalue(t->terms, row, COL_LEADER)) == 0)
			return false;
	}
	return true;
}

/*
 * Print the first and the last moment under the lanes.  The owner of a
 * database can choose its time zone, whose name is part of these texts.
 */
static void
print_period(const Timeline *t)
{
	int			last = PQntuples(t->terms) - 1;
	char	   *from = text_show(PQgetvalue(t->terms, 0, COL_ACQUIRED_AT));
	char	   *to = text_show(PQgetisnull(t->terms, last, COL_ENDED_AT) ? "now" :
							   PQgetvalue(t->terms, last, COL_ENDED_AT));

	if (strlen(from) + strlen(to) < t->columns)
		printf("%*s %s%*s%s\n", t->name_width, "", from,
			   t->columns - (int) (strlen(from) + strlen(to)), "", to);
	else
		printf("from %s\nto %s\n", from, to);
}

/*
 * Print what the letters mean that are in the lanes.
 */
static void
print_reasons(const Timeline *t)
{
	bool		any = false;

	for (const Reason *r = reasons; r->name != NULL; r++)
	{
		int			row = 0;

		while (row < PQntuples(t->terms) &&
			   strcmp(PQgetvalue(t->terms, row, COL_REASON), r->name) != 0)
			row++;
		if (row == PQntuples(t->terms))
			continue;
		printf("%s%c %s", any ? ", " : "", r->letter, r->name);
		any = true;
	}
	if (any)
		putchar('\n');
}

static void
draw(PGresult *terms)
{
	Timeline	t = {.terms = terms,.name_width = strlen("nobody")};
	int			last = PQntuples(terms) - 1;
	int			columns = terminal_columns();
	char	   *lane;

	t.from = seconds(&t, 0, COL_FROM);
	t.to = seconds(&t, last, COL_TO);
	t.blocks = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
	for (int row = 0; row <= last; row++)
		t.name_width = Max(t.name_width,
						   text_width(text_show(PQgetvalue(terms, row, COL_LEADER))));
	/* On a narrow terminal, leave two thirds of a line for the lane. */
	t.name_width = Min(t.name_width, Min(LONGEST_NAME, columns / 3));
	t.columns = Max(columns - t.name_width - 1, SHORTEST_LANE);

	lane = pg_malloc(t.columns + 1);
	for (int row = 0; row <= last; row++)
	{
		if (!is_first_of(&t, row))
			continue;
		fill_lane(&t, PQgetvalue(terms, row, COL_LEADER), lane);
		print_lane(&t, PQgetvalue(terms, row, COL_LEADER), lane);
	}
	fill_lane(&t, NULL, lane);
	if (strchr(lane, CELL_GAP) != NULL)
		print_lane(&t, "nobody", lane);
	print_period(&t);
	print_reasons(&t);
	pg_free(lane);
}

static void
print_lines(const PGresult *terms, bool json)
{
	for (int row = 0; row < PQntuples(terms); row++)
	{
		if (json)
		{
			text_print_json(PQgetvalue(terms, row, COL_JSON));
			continue;
		}
		for (int col = COL_TERM; col <= COL_DETAIL; col++)
			printf("%s%c", text_show(PQgetvalue(terms, row, col)),
				   col == COL_DETAIL ? '\n' : '\t');
	}
}

static void
show_terms(Connection *c, const Options *options, const char *const *values)
{
	Answer		answer = observer_ask(c, &sql_history, values);

	if (!isatty(STDOUT_FILENO) || options->json)
		print_lines(answer.result, options->json);
	else if (PQntuples(answer.result) > 0)
		draw(answer.result);
	else
		printf("no terms\n");
	answer_free(&answer);
}

int
timeline_show(const Options *options)
{
	const char *values[] = {options->election, options->since, NULL};
	char	   *length = NULL;
	int64		ago;
	Connection	c;

	/* A number without a unit is a date (20261121). */
	if (options->since != NULL && duration_parse(options->since, &ago))
	{
		values[1] = NULL;
		values[2] = length = psprintf("%lld us", (long long) ago);
	}
	observer_connect(&c, options);
	if (options->html != NULL)
		html_write(&c, options, values);
	else
		show_terms(&c, options, values);
	pg_free(length);
	connection_free(&c);
	return EXIT_SUCCESS;
}
