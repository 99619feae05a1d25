/*-------------------------------------------------------------------------
 *
 * page.c
 *		What the parts of the page share that shows who led.
 *
 * Invariant: nothing that others have chosen (names, details, the database's
 * name), and nothing else that the server says, is markup: page_text() is the
 * only way for it into the page.  If that failed, the page's policy would still
 * forbid scripts, and whatever has to be fetched.
 *
 *-------------------------------------------------------------------------
 */
#include "page.h"

#include <math.h>

#define TERM_COUNTER_BITS	22	/* of a term; the others are the epoch */

/*
 * Write a text that others have chosen.
 */
void
page_text(Page *p, const char *text)
{
	char	   *html = text_html(text_show(text));

	appendPQExpBufferStr(&p->html, html);
	pg_free(html);
}

/*
 * Return a moment, in seconds.  All that are in the picture are numbers, and
 * such that one more second is another number.
 */
double
page_seconds(const Page *p, int row, int column)
{
	double		at = strtod(PQgetvalue(p->terms, row, column), NULL);

	return isnan(at) ? 0 : Max(Min(at, LATEST), -LATEST);
}

int64
page_epoch(const Page *p, int row)
{
	return strtoll(PQgetvalue(p->terms, row, PAGE_TERM), NULL, 10) >> TERM_COUNTER_BITS;
}

/*
 * Is a term the first one of an epoch in its election?
 */
bool
page_begins_epoch(const Page *p, int row)
{
	return row > 0 && page_epoch(p, row) != page_epoch(p, row - 1) &&
		strcmp(PQgetvalue(p->terms, row, PAGE_ELECTION),
			   PQgetvalue(p->terms, row - 1, PAGE_ELECTION)) == 0;
}

/*
 * Return the row after the last one of the same election.
 */
int
page_lane_end(const Page *p, int row)
{
	const char *election = PQgetvalue(p->terms, row, PAGE_ELECTION);

	while (row < p->n && strcmp(PQgetvalue(p->terms, row, PAGE_ELECTION), election) == 0)
		row++;
	return row;
}

/*
 * Write a length of time in its two largest units.
 */
void
page_duration(Page *p, double seconds)
{
	static const struct
	{
		int			length;
		const char *unit;
	}			units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
	int64		whole = (int64) Max(Min(seconds, 1e12), 0);
	int			i = 0;

	if (seconds < 10)
	{
		appendPQExpBuffer(&p->html, "%.3g s", Max(seconds, 0));
		return;
	}
	while (units[i].length > whole)
		i++;
	appendPQExpBuffer(&p->html, "%lld %s", (long long) (whole / units[i].length), units[i].unit);
	whole %= units[i].length;
	if (i + 1 < lengthof(units) && whole >= units[i + 1].length)
		appendPQExpBuffer(&p->html, " %lld %s", (long long) (whole / units[i + 1].length), units[i + 1].unit);
}
