/*-------------------------------------------------------------------------
 *
 * picture.c
 *		The picture of who led: a lane of SVG for each election, under one
 *		axis of time.
 *
 * Invariant: a lane shows every term of the page, however short, and a vacancy
 * only where the history has two terms, or a term and the present moment, with
 * nobody between.  Nothing in it needs colour, a pointer or a script to be
 * understood: what does not fit into the picture is in the table.
 *
 * Horizontal places are percentages, so that the picture is as wide as its
 * window or its paper.  Whether a text fits into a bar is estimated for a width
 * of WIDTH pixels; bars clip what does not.
 *
 *-------------------------------------------------------------------------
 */
#include "page.h"

#include <time.h>

#define WIDTH			1100
#define LETTER			7.2		/* pixels, about */
#define NARROWEST		0.2		/* percent, of a bar */
#define MOST_TICKS		8
#define MARGIN			4		/* percent; half of a label would not fit */

#define MINUTE			60
#define HOUR			3600
#define A_DAY			86400

/* From one tick of the axis to the next: seconds */
static const int64 steps[] = {
	1, 2, 5, 10, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE,
	15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR,
	A_DAY, 2 * A_DAY, 3 * A_DAY, 5 * A_DAY, 7 * A_DAY, 14 * A_DAY, 28 * A_DAY,
	91 * A_DAY, 182 * A_DAY, 365 * A_DAY
};

/* --- places */

static double
place(const Page *p, double at)
{
	return Max(Min((at - p->from) / (p->to - p->from) * 100, 100), 0);
}

static int64
tick_step(const Page *p)
{
	int64		step;

	for (int i = 0; i < lengthof(steps); i++)
	{
		if ((p->to - p->from) / steps[i] <= MOST_TICKS)
			return steps[i];
	}
	step = steps[lengthof(steps) - 1];
	return step * (1 + (int64) ((p->to - p->from) / step / MOST_TICKS));
}

static int64
first_tick(const Page *p, int64 step)
{
	int64		at = (int64) (p->from / step) * step;

	return at < p->from ? at + step : at;
}

/* --- the axis */

static void
draw_label(Page *p, int64 at, int y, const char *class, const char *format)
{
	time_t		moment = at;
	struct tm	tm;
	char		text[64];

	if (gmtime_r(&moment, &tm) == NULL ||
		strftime(text, sizeof(text), format, &tm) == 0)
		return;
	appendPQExpBuffer(&p->html,
					  "<text class=\"%s\" x=\"%.3f%%\" y=\"%d\" text-anchor=\"%s\">%s</text>\n",
					  class, place(p, at), y, place(p, at) < MARGIN ? "start" :
					  place(p, at) > 100 - MARGIN ? "end" : "middle", text);
}

/*
 * Draw the axis: times of day and, where it changes, the date.
 */
static void
draw_axis(Page *p)
{
	int64		step = tick_step(p);
	int64		last_day = -1;

	appendPQExpBufferStr(&p->html, "<svg class=\"axis\" width=\"100%\" height=\"34\" aria-hidden=\"true\">\n");
	for (int64 at = first_tick(p, step); at <= p->to; at += step)
	{
		if (at / A_DAY != last_day)
			draw_label(p, at, 12, "day", "%Y-%m-%d");
		last_day = at / A_DAY;
		if (step < A_DAY)
			draw_label(p, at, 28, "hour", step < MINUTE ? "%H:%M:%S" : "%H:%M");
	}
	appendPQExpBufferStr(&p->html, "</svg>\n");
}

static void
draw_grid(Page *p)
{
	int64		step = tick_step(p);

	for (int64 at = first_tick(p, step); at <= p->to; at += step)
		appendPQExpBuffer(&p->html,
						  "<line class=\"grid\" x1=\"%.3f%%\" x2=\"%.3f%%\" y1=\"-4\" y2=\"56\"/>\n",
						  place(p, at), place(p, at));
}

/* --- terms and vacancies */

/*
 * Write a text into a bar, if a part of it fits that is worth reading.
 */
static void
draw_text(Page *p, const char *text, int x, int y, const char *class,
		  double width)
{
	int			columns = (int) ((width / 100 * WIDTH - x - 7) / LETTER);

	if (columns < Min(4, text_width(text_show(text))))
		return;
	appendPQExpBuffer(&p->html, "<text class=\"%s\" x=\"%d\" y=\"%d\">%s</text>", class, x, y,
					  page_shorten(text, columns));
}

/*
 * What is shown when the pointer is over a term.  A name has a line of its
 * own: it cannot turn the direction of another text.
 */
static void
describe_term(Page *p, int row)
{
	bool		leads = PQgetisnull(p->terms, row, PAGE_ENDED);

	appendPQExpBuffer(&p->html, "<title>%s\nterm %s, %s\n%s to %s UTC\n%s, %s%s%s</title>\n",
					  page_value(p, row, PAGE_LEADER), page_value(p, row, PAGE_TERM),
					  page_value(p, row, PAGE_KIND), page_value(p, row, PAGE_BEGAN),
					  leads ? "now" : page_value(p, row, PAGE_ENDED),
					  page_duration(page_seconds(p, row, PAGE_TO) -
									page_seconds(p, row, PAGE_FROM)),
					  leads ? "leads" : page_value(p, row, PAGE_REASON),
					  PQgetisnull(p->terms, row, PAGE_DETAIL) ? "" : "\n",
					  page_value(p, row, PAGE_DETAIL));
}

static void
draw_term(Page *p, int row)
{
	bool		leads = PQgetisnull(p->terms, row, PAGE_ENDED);
	const Reason *reason = reason_find(PQgetvalue(p->terms, row, PAGE_REASON));
	const char *look = leads ? "leads" : reason->look;
	double		left = place(p, page_seconds(p, row, PAGE_FROM));
	double		right = place(p, page_seconds(p, row, PAGE_TO));
	double		width;

	left = Min(left, 100 - NARROWEST);
	width = Max(right - left, NARROWEST);
	appendPQExpBuffer(&p->html, "<g class=\"term %s\" data-term=\"%s\">", look,
					  page_value(p, row, PAGE_TERM));
	describe_term(p, row);
	appendPQExpBuffer(&p->html,
					  "<svg x=\"%.3f%%\" y=\"4\" width=\"%.3f%%\" height=\"44\">"
					  "<rect class=\"bar\" width=\"100%%\" height=\"100%%\"/>"
					  "<rect width=\"100%%\" height=\"100%%\" fill=\"url(#%s)\"/>"
					  "<rect class=\"frame\" width=\"100%%\" height=\"100%%\"/>",
					  left, width, look);
	if (!leads)
		appendPQExpBufferStr(&p->html, "<rect class=\"end\" x=\"100%\" width=\"5\" height=\"100%\" transform=\"translate(-5)\"/>");
	appendPQExpBuffer(&p->html, "<rect width=\"100%%\" height=\"4\" fill=\"%s\"/>",
					  leaders_colour(p, row));
	if (width / 100 * WIDTH > CHIP_WIDTH + 8)
		leaders_draw_chip(p, row, 5, 8);
	draw_text(p, PQgetvalue(p->terms, row, PAGE_LEADER), CHIP_WIDTH + 10, 20,
			  "name", width);
	draw_text(p, leads ? "leads" : PQgetvalue(p->terms, row, PAGE_REASON), 7, 37,
			  "small", width);
	appendPQExpBufferStr(&p->html, "</svg></g>\n");
}

static void
draw_vacancy(Page *p, double from, double to)
{
	double		left = place(p, from);
	double		width = place(p, to) - left;

	if (to <= p->from || width <= 0)
		return;
	appendPQExpBuffer(&p->html, "<g class=\"vacant\"><title>nobody led for %s</title>"
					  "<svg x=\"%.3f%%\" y=\"14\" width=\"%.3f%%\" height=\"24\">"
					  "<rect width=\"100%%\" height=\"100%%\"/>",
					  page_duration(to - from), left, width);
	draw_text(p, "vacant", 7, 16, "small", width);
	appendPQExpBufferStr(&p->html, "</svg></g>\n");
}

/*
 * Draw the beginning of an epoch: the server was started anew, or a standby
 * was promoted.
 */
static void
draw_epoch(Page *p, int row)
{
	double		at = place(p, page_seconds(p, row, PAGE_FROM));

	appendPQExpBuffer(&p->html, "<g class=\"epoch\"><title>failover: epoch %lld begins</title>"
					  "<line x1=\"%.3f%%\" x2=\"%.3f%%\" y1=\"-2\" y2=\"54\"/>"
					  "<svg x=\"%.3f%%\" y=\"-2\" overflow=\"visible\" width=\"12\" height=\"8\">"
					  "<path d=\"M-6 0h12l-6 8z\"/></svg></g>\n",
					  (long long) page_epoch(p, row), at, at, at);
}

/* --- lanes */

static bool
is_dropped(const Page *p, int row)
{
	return strcmp(PQgetvalue(p->terms, row, PAGE_REASON), "dropped") == 0;
}

/*
 * Until when was the election without a leader after this term? The end of the
 * term, if it was not.  Of what follows the end of an election nothing is known.
 */
static double
vacant_until(const Page *p, int row, int end)
{
	double		ended = page_seconds(p, row, PAGE_TO);

	if (PQgetisnull(p->terms, row, PAGE_ENDED) || is_dropped(p, row))
		return ended;
	return Max(ended, row + 1 < end ? page_seconds(p, row + 1, PAGE_FROM) : p->to);
}

/*
 * Write the name of a lane's election, and how things stand.
 */
static void
write_caption(Page *p, int first, int end)
{
	int			last = end - 1;
	double		vacant = 0;

	appendPQExpBuffer(&p->html, "<figcaption><b><bdi>%s</bdi></b> <span>",
					  page_value(p, first, PAGE_ELECTION));
	if (PQgetisnull(p->terms, last, PAGE_ENDED))
		appendPQExpBuffer(&p->html, "led by <bdi>%s</bdi> for %s",
						  page_shorten(PQgetvalue(p->terms, last, PAGE_LEADER), CAPTION_COLUMNS),
						  page_duration(p->to - page_seconds(p, last, PAGE_FROM)));
	else
		appendPQExpBuffer(&p->html, is_dropped(p, last) ? "dropped %s ago" : "vacant for %s",
						  page_duration(p->to - page_seconds(p, last, PAGE_TO)));
	appendPQExpBuffer(&p->html, " &#xB7; %d term%s", end - first, end - first == 1 ? "" : "s");
	for (int row = first; row < end; row++)
		vacant += Max(vacant_until(p, row, end) - Max(page_seconds(p, row, PAGE_TO), p->from), 0);
	if (vacant > 0)
		appendPQExpBuffer(&p->html, " &#xB7; vacant %s in all", page_duration(vacant));
	appendPQExpBufferStr(&p->html, "</span></figcaption>\n");
}

static void
draw_lane(Page *p, int first, int end)
{
	appendPQExpBufferStr(&p->html, "<figure class=\"lane\">");
	write_caption(p, first, end);
	appendPQExpBuffer(&p->html, "<svg width=\"100%%\" height=\"52\" role=\"img\" aria-label=\"timeline of %d term%s, which are in the table below\">\n",
					  end - first, end - first == 1 ? "" : "s");
	draw_grid(p);
	for (int row = first; row < end; row++)
		draw_vacancy(p, page_seconds(p, row, PAGE_TO), vacant_until(p, row, end));
	for (int row = first; row < end; row++)
		draw_term(p, row);
	for (int row = first + 1; row < end; row++)
	{
		if (page_begins_epoch(p, row))
			draw_epoch(p, row);
	}
	appendPQExpBufferStr(&p->html, "</svg></figure>\n");
}

/*
 * Define the patterns: one for each look of a term.
 */
void
picture_begin(Page *p)
{
	static const struct
	{
		const char *look;
		const char *path;
	}			patterns[] = {
		{"leads", ""}, {"given", ""}, {"lost", "M-2 10L10 -2M6 10L10 6M-2 2L2 -2"},
		{"failover", "M4 0v8"}, {"dropped", "M0 0l8 8M8 0l-8 8"}
	};

	appendPQExpBufferStr(&p->html, "<svg width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>");
	for (int i = 0; i < lengthof(patterns); i++)
		appendPQExpBuffer(&p->html, "<pattern id=\"%s\" class=\"%s\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\"><path d=\"%s\"/></pattern>\n",
						  patterns[i].look, patterns[i].look, patterns[i].path);
	appendPQExpBufferStr(&p->html, "</defs></svg>\n");
}

/*
 * Draw all lanes, with an axis above them.
 */
void
picture_draw(Page *p)
{
	draw_axis(p);
	for (int row = 0; row < p->n; row = page_lane_end(p, row))
		draw_lane(p, row, page_lane_end(p, row));
}

/* --- what the looks mean */

static void
draw_key(Page *p, const char *look, const char *word, const char *meaning)
{
	appendPQExpBuffer(&p->html, "<li class=\"%s\"><svg width=\"30\" height=\"18\" aria-hidden=\"true\">"
					  "<rect class=\"ground\" width=\"30\" height=\"18\"/><rect width=\"30\" height=\"18\" fill=\"url(#%s)\"/>"
					  "<rect class=\"frame\" width=\"30\" height=\"18\"/>%s</svg><span><b>%s</b> "
					  "<span class=\"quiet\">%s</span></span></li>\n",
					  look, look,
					  strcmp(look, "leads") == 0 ? "" : "<rect class=\"end\" x=\"25\" width=\"5\" height=\"18\"/>",
					  word, meaning);
}

/*
 * Say in a line what the colours mean, before anybody has to guess.
 */
void
picture_key(Page *p)
{
	static const struct
	{
		const char *look;
		const char *meaning;
	}			keys[] = {
		{"leads", "leads now"}, {"given", "given up"}, {"lost", "lost"},
		{"failover", "failover"}, {"dropped", "election dropped"}
	};

	appendPQExpBufferStr(&p->html, "<p class=\"key\">Each bar is a term; its colour says how it ended:");
	for (int i = 0; i < lengthof(keys); i++)
		appendPQExpBuffer(&p->html, " <span class=\"%s\"><svg width=\"16\" height=\"12\" aria-hidden=\"true\"><rect class=\"ground\" width=\"16\" height=\"12\"/>"
						  "<rect width=\"16\" height=\"12\" fill=\"url(#%s)\"/><rect class=\"frame\" width=\"16\" height=\"12\"/></svg> %s</span>",
						  keys[i].look, keys[i].look, keys[i].meaning);
	appendPQExpBufferStr(&p->html, " <span class=\"vacant\"><svg width=\"16\" height=\"12\" aria-hidden=\"true\"><rect width=\"16\" height=\"12\"/></svg> nobody led</span></p>\n");
}

/*
 * Say what the looks mean.  All reasons are there, so that two pages can be
 * compared.
 */
void
picture_legend(Page *p)
{
	appendPQExpBufferStr(&p->html, "<ul class=\"legend\">\n");
	draw_key(p, "leads", "leads", "the term goes on");
	for (const Reason *r = reasons; r->name != NULL; r++)
		draw_key(p, r->look, r->name, r->meaning);
	appendPQExpBufferStr(&p->html, "<li class=\"vacant\"><svg width=\"30\" height=\"18\" aria-hidden=\"true\"><rect width=\"30\" height=\"18\"/></svg>"
						 "<span><b>vacant</b> <span class=\"quiet\">nobody led</span></span></li>\n"
						 "<li class=\"epoch\"><svg width=\"30\" height=\"18\" aria-hidden=\"true\"><line x1=\"15\" x2=\"15\" y1=\"0\" y2=\"18\"/><path d=\"M9 0h12l-6 8z\"/></svg>"
						 "<span><b>failover</b> <span class=\"quiet\">a new epoch of terms begins</span></span></li>\n</ul>\n");
}
