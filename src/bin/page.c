/*-------------------------------------------------------------------------
 *
 * page.c
 *		What the parts of the page share that shows who led.
 *
 * Invariant: nothing that others have chosen (names, details, the database's
 * name), and nothing else that the server says, is markup: all of it goes
 * through page_text().  If that failed, the page's policy would still forbid
 * scripts, and whatever has to be fetched.
 *
 *-------------------------------------------------------------------------
 */
#include "page.h"

#include <math.h>

#define TERM_COUNTER_BITS	22	/* of a term; the others are the epoch */

/*
 * Return a text that others have chosen as HTML, lent.
 */
const char *
page_text(const char *text)
{
	char	   *shown = text_quote_blank(text_printable(text));
	char	   *html = text_html(shown);

	pg_free(shown);
	return text_lend(html);
}

/*
 * Return what the terms say, as HTML, lent.
 */
const char *
page_value(const Page *p, int row, int column)
{
	return page_text(PQgetvalue(p->terms, row, column));
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
 * Return a length of time in its two largest units, lent.
 */
const char *
page_duration(double seconds)
{
	static const struct
	{
		int			length;
		const char *unit;
	}			units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
	int64		whole = (int64) Max(Min(seconds, 1e12), 0);
	int64		rest;
	char	   *text;
	int			i = 0;

	if (seconds < 10)
		return text_lend(psprintf("%.3g s", Max(seconds, 0)));
	while (units[i].length > whole)
		i++;
	rest = whole % units[i].length;
	text = text_lend(psprintf("%lld %s", (long long) (whole / units[i].length),
							  units[i].unit));
	i++;
	if (i == lengthof(units) || rest < units[i].length)
		return text;
	return text_lend(psprintf("%s %lld %s", text,
							  (long long) (rest / units[i].length),
							  units[i].unit));
}

/*
 * Return as much of a text as fits into so many columns, as HTML, lent.
 */
const char *
page_shorten(const char *text, int columns)
{
	char	   *shown = text_lend(text_quote_blank(text_printable(text)));
	int			length;

	if (text_width(shown) <= columns)
		return page_text(text);
	shown = text_fit(shown, columns - 1);
	/* Where half of a wide character would be left, it is filled up. */
	length = strlen(shown);
	while (length > 0 && shown[length - 1] == ' ')
		shown[--length] = '\0';
	return text_lend(psprintf("%s&#x2026;", text_lend(text_html(shown))));
}
