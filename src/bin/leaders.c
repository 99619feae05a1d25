/*-------------------------------------------------------------------------
 *
 * leaders.c
 *		Who is on the page that shows who led: a chip for each, with a number and
 *		a colour, by which it is found in all lanes.
 *
 * Invariant: a leader has one number on a page, and no other leader has it.
 * Colours repeat when there are many; numbers do not.
 *
 *-------------------------------------------------------------------------
 */
#include "page.h"

/* Chips in the list; more do not help anybody to find one */
#define MOST_CHIPS		60

/* From one colour to the next, so that neighbours differ: the golden angle */
#define HUE_STEP		137.508
#define FIRST_HUE		205

/*
 * Number the leaders, from 1 on, in the order in which the page shows them.
 */
void
leaders_number(Page *p)
{
	p->leader = pg_malloc0(Max(p->n, 1) * sizeof(int));
	for (int row = 0; row < p->n; row++)
	{
		const char *name = PQgetvalue(p->terms, row, PAGE_LEADER);

		/* The last terms are likely to have it. */
		for (int i = row - 1; i >= 0 && p->leader[row] == 0; i--)
		{
			if (strcmp(PQgetvalue(p->terms, i, PAGE_LEADER), name) == 0)
				p->leader[row] = p->leader[i];
		}
		if (p->leader[row] == 0)
			p->leader[row] = ++p->nleaders;
	}
}

/*
 * Return the colour of the leader of a term, lent.  How light it is depends on
 * the paper (style.c).
 */
const char *
leaders_colour(const Page *p, int row)
{
	int			hue = (int) (FIRST_HUE + HUE_STEP * (p->leader[row] - 1)) % 360;

	return text_lend(psprintf("hsl(%d,55%%,var(--chip))", hue));
}

/*
 * Draw the chip of the leader of a term: into a picture, or beside its name.
 */
void
leaders_draw_chip(Page *p, int row, int x, int y)
{
	appendPQExpBuffer(&p->html, "<svg class=\"chip\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"16\" aria-hidden=\"true\">"
					  "<rect width=\"%d\" height=\"16\" rx=\"8\" fill=\"%s\"/>"
					  "<text x=\"50%%\" y=\"12\" text-anchor=\"middle\">%d</text></svg>",
					  x, y, CHIP_WIDTH, CHIP_WIDTH, leaders_colour(p, row),
					  p->leader[row]);
}

/*
 * Write how many terms a leader has on the page, and how many of them go on.
 */
static void
write_terms(Page *p, int number)
{
	int			terms = 0;
	int			goes_on = 0;

	for (int row = 0; row < p->n; row++)
	{
		if (p->leader[row] != number)
			continue;
		terms++;
		goes_on += PQgetisnull(p->terms, row, PAGE_ENDED);
	}
	appendPQExpBuffer(&p->html, "%d term%s", terms, terms == 1 ? "" : "s");
	if (goes_on > 0)
		appendPQExpBuffer(&p->html, ", leads %d now", goes_on);
}

/*
 * Write the list of all chips.
 */
void
leaders_list(Page *p)
{
	int			listed = 0;

	appendPQExpBufferStr(&p->html, "<ul class=\"leaders\">\n");
	for (int row = 0; row < p->n && listed < Min(p->nleaders, MOST_CHIPS); row++)
	{
		if (p->leader[row] != listed + 1)
			continue;
		listed++;
		appendPQExpBufferStr(&p->html, "<li>");
		leaders_draw_chip(p, row, 0, 0);
		appendPQExpBuffer(&p->html, "<span><b><bdi>%s</bdi></b> <span class=\"quiet\">",
						  page_shorten(PQgetvalue(p->terms, row, PAGE_LEADER), CAPTION_COLUMNS));
		write_terms(p, listed);
		appendPQExpBufferStr(&p->html, "</span></span></li>\n");
	}
	if (listed < p->nleaders)
		appendPQExpBuffer(&p->html, "<li class=\"quiet\">and %d more</li>\n",
						  p->nleaders - listed);
	appendPQExpBufferStr(&p->html, "</ul>\n");
}
