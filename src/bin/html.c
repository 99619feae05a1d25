/*-------------------------------------------------------------------------
 *
 * html.c
 *		pg_leader history --html: a page that shows who led, as a picture and
 *		as a table.
 *
 * Invariants:
 *
 * - The page is ASCII, and needs nothing but itself.
 *
 * - If there are too many terms, those that ended last are shown, and the
 *	 picture begins when the first of them ended: from then on it is complete.
 *
 *-------------------------------------------------------------------------
 */
#include "page.h"

/* Terms on a page; more make neither a picture nor a table that people read */
#define MOST_TERMS		"2000"

/* Elections that nobody has led are named, so many at most */
#define MOST_NAMES			100
#define MOST_NAMES_AND_1	"101"

/* $2: since when; $3: or since how long ago */
static const Statement sql_terms = {
	"SELECT election, term, leader, kind,"
	" pg_catalog.to_char(pg_catalog.timezone('UTC'::pg_catalog.text, acquired_at),"
	" 'YYYY-MM-DD HH24:MI:SS.MS'),"
	" pg_catalog.to_char(pg_catalog.timezone('UTC'::pg_catalog.text, ended_at),"
	" 'YYYY-MM-DD HH24:MI:SS.MS'),"
	" reason, detail, pg_catalog.extract('epoch', acquired_at),"
	" pg_catalog.extract('epoch', COALESCE(ended_at, moment)),"
	" pg_catalog.extract('epoch', since), pg_catalog.extract('epoch', moment),"
	" pg_catalog.to_char(pg_catalog.timezone('UTC'::pg_catalog.text, moment),"
	" 'YYYY-MM-DD HH24:MI:SS'), total"
	" FROM (SELECT election, term, leader, kind, acquired_at, ended_at, reason,"
	" detail, moment, since, pg_catalog.count(term) OVER () AS total"
	" FROM leader_election.history, (SELECT pg_catalog.clock_timestamp() AS moment,"
	" COALESCE($2, pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) $3) AS since"
	") n WHERE ($1 IS NULL OR election OPERATOR(pg_catalog.=) $1)"
	" AND (ended_at OPERATOR(pg_catalog.>=) since) IS NOT FALSE"
	" ORDER BY ended_at DESC NULLS FIRST, acquired_at DESC LIMIT " MOST_TERMS ") h"
	" ORDER BY pg_catalog.bool_or(ended_at IS NULL) OVER (PARTITION BY election)"
	" DESC, election, term",
	PAGE_FIELDS, false, 3, {TEXTOID, TIMESTAMPTZOID, INTERVALOID}
};

/* Elections that have no such terms: one more than are named */
static const Statement sql_never_led = {
	"SELECT name FROM (SELECT election AS name FROM leader_election.election) e"
	" WHERE ($1 IS NULL OR name OPERATOR(pg_catalog.=) $1) AND NOT EXISTS"
	" (SELECT FROM leader_election.history WHERE election OPERATOR(pg_catalog.=) name"
	" AND (ended_at OPERATOR(pg_catalog.>=) COALESCE($2, pg_catalog.clock_timestamp()"
	" OPERATOR(pg_catalog.-) $3)) IS NOT FALSE) ORDER BY name LIMIT " MOST_NAMES_AND_1,
	1, false, 3, {TEXTOID, TIMESTAMPTZOID, INTERVALOID}
};

/* --- the time that is shown */

static bool
is_cut(const Page *p)
{
	return p->n > 0 && p->n < atoi(PQgetvalue(p->terms, 0, PAGE_TOTAL));
}

/*
 * Set the time that the picture shows: from the first term, or from when the
 * user wants, or from where it is complete; to now.
 */
static void
set_period(Page *p)
{
	double		first_end;

	p->to = first_end = page_seconds(p, 0, PAGE_NOW);
	p->from = page_seconds(p, 0, PAGE_FROM);
	for (int row = 0; row < p->n; row++)
	{
		p->from = Min(p->from, page_seconds(p, row, PAGE_FROM));
		first_end = Min(first_end, page_seconds(p, row, PAGE_TO));
	}
	if (is_cut(p))
		p->from = Max(p->from, first_end);
	if (!PQgetisnull(p->terms, 0, PAGE_SINCE))
		p->from = Max(p->from, page_seconds(p, 0, PAGE_SINCE));
	/* Clocks can be set back, and rows written by hand. */
	if (p->from <= -LATEST || p->from > p->to - 1)
		p->from = p->to - 1;
}

/* --- the table */

static void
write_cell(Page *p, int row, int column)
{
	appendPQExpBuffer(&p->html, "<td><bdi>%s</bdi></td>", page_value(p, row, column));
}

static void
write_row(Page *p, int row)
{
	const PGresult *terms = p->terms;
	bool		leads = PQgetisnull(terms, row, PAGE_ENDED);
	const Reason *reason = reason_find(PQgetvalue(terms, row, PAGE_REASON));

	appendPQExpBufferStr(&p->html, "<tr>");
	if (p->election == NULL)
		write_cell(p, row, PAGE_ELECTION);
	appendPQExpBuffer(&p->html, "<td class=\"n\">%s%s</td><th scope=\"row\"><bdi>%s</bdi></th>",
					  page_value(p, row, PAGE_TERM), page_begins_epoch(p, row) ?
					  " <span class=\"new\">new epoch</span>" : "",
					  page_value(p, row, PAGE_LEADER));
	write_cell(p, row, PAGE_KIND);
	appendPQExpBuffer(&p->html, "<td class=\"time\">%s</td><td class=\"time\">%s</td>"
					  "<td class=\"time\">%s</td><td class=\"reason %s\">%s</td>",
					  page_value(p, row, PAGE_BEGAN), page_value(p, row, PAGE_ENDED),
					  page_duration(page_seconds(p, row, PAGE_TO) -
									page_seconds(p, row, PAGE_FROM)),
					  leads ? "leads" : reason->look,
					  leads ? "leads" : page_value(p, row, PAGE_REASON));
	write_cell(p, row, PAGE_DETAIL);
	appendPQExpBufferStr(&p->html, "</tr>\n");
}

static void
write_table(Page *p)
{
	appendPQExpBuffer(&p->html,
					  "<h2>Terms</h2>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"terms\"><table>\n<thead><tr>%s"
					  "<th scope=\"col\" class=\"n\">Term</th><th scope=\"col\">Leader</th><th scope=\"col\">Kind</th>"
					  "<th scope=\"col\">From (UTC)</th><th scope=\"col\">To (UTC)</th><th scope=\"col\">Lasted</th>"
					  "<th scope=\"col\">Ended</th><th scope=\"col\">Detail</th></tr></thead>\n<tbody>\n",
					  p->election == NULL ? "<th scope=\"col\">Election</th>" : "");
	for (int row = 0; row < p->n; row++)
		write_row(p, row);
	appendPQExpBufferStr(&p->html, "</tbody></table></div>\n");
}

/* --- the page */

static void
write_heading(Page *p, const char *before, const char *after)
{
	appendPQExpBufferStr(&p->html, "Who led");
	if (p->election != NULL)
		appendPQExpBuffer(&p->html, "%s%s%s", before, page_text(p->election), after);
}

/*
 * Write what the page is about, and what is not on it.
 */
static void
write_head(Page *p)
{
	appendPQExpBufferStr(&p->html,
						 "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
						 "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';"
						 " style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n"
						 "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
						 "<meta name=\"referrer\" content=\"no-referrer\">\n<title>");
	write_heading(p, ": ", "");
	appendPQExpBuffer(&p->html, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<h1>", page_style);
	write_heading(p, " <bdi>", "</bdi>");
	appendPQExpBuffer(&p->html, "</h1>\n<p class=\"quiet\">Database <bdi>%s</bdi>",
					  page_text(p->database));
	if (p->n > 0)
		appendPQExpBuffer(&p->html, ", as of %s. Times are UTC, by the server&#x2019;s clock.",
						  page_value(p, 0, PAGE_NOW_TEXT));
	appendPQExpBufferStr(&p->html, "</p>\n");
	if (is_cut(p))
		appendPQExpBuffer(&p->html, "<p class=\"note\">There are %d terms. Shown are the %d that ended last, or have not ended;"
						  " the picture begins when the first of them ended.</p>\n",
						  atoi(PQgetvalue(p->terms, 0, PAGE_TOTAL)), p->n);
}

/*
 * Name the elections that nobody led.
 */
static void
write_never_led(Page *p, const PGresult *names)
{
	int			n = PQntuples(names);

	if (n == 0)
		return;
	appendPQExpBuffer(&p->html, "<p class=\"never\">Nobody led, as far as the page goes back: ");
	for (int i = 0; i < Min(n, MOST_NAMES); i++)
		appendPQExpBuffer(&p->html, "%s<bdi>%s</bdi>", i > 0 ? ", " : "",
						  page_text(PQgetvalue(names, i, 0)));
	appendPQExpBuffer(&p->html, "%s.</p>\n", n > MOST_NAMES ? ", and more" : "");
}

static void
write_page(Page *p, const PGresult *never_led)
{
	write_head(p);
	picture_begin(p);
	if (p->n == 0)
		appendPQExpBufferStr(&p->html, "<p>The history has no such terms.</p>\n");
	else
	{
		set_period(p);
		leaders_number(p);
		picture_key(p);
		leaders_list(p);
		picture_draw(p);
	}
	write_never_led(p, never_led);
	if (p->n > 0)
	{
		picture_legend(p);
		appendPQExpBufferStr(&p->html, "<p class=\"quiet\">Where a lane is blank, the history has nothing.</p>\n");
		write_table(p);
	}
	appendPQExpBufferStr(&p->html, "</body>\n</html>\n");
}

/*
 * Write the page about the terms that the values choose (see sql_terms).
 */
void
html_write(Connection *c, const Options *options, const char *const *values)
{
	Answer		answer = observer_ask(c, &sql_terms, values);
	Answer		never_led = observer_ask(c, &sql_never_led, values);
	Page		p = {.terms = answer.result,.n = PQntuples(answer.result)};

	p.database = PQdb(c->conn);
	p.election = options->election;
	initPQExpBuffer(&p.html);
	write_page(&p, never_led.result);
	if (PQExpBufferDataBroken(p.html))
		pg_fatal("out of memory");
	page_file_write(options->html, p.html.data, p.html.len);
	termPQExpBuffer(&p.html);
	pg_free(p.leader);
	answer_free(&never_led);
	answer_free(&answer);
}
