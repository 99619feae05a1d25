/*-------------------------------------------------------------------------
 *
 * page.h
 *		The page of HTML that shows who led: history --html.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PAGE_H
#define PAGE_H

#include "observer.h"

#include "pqexpbuffer.h"

/* Columns of the terms that a page shows, in the order of election and term */
enum
{
	PAGE_ELECTION,
	PAGE_TERM,
	PAGE_LEADER,
	PAGE_KIND,
	PAGE_BEGAN,					/* times as text, in UTC */
	PAGE_ENDED,					/* null: leads now */
	PAGE_REASON,
	PAGE_DETAIL,
	PAGE_FROM,					/* the same times as seconds */
	PAGE_TO,
	PAGE_SINCE,					/* when the user wants the picture to begin */
	PAGE_NOW,
	PAGE_NOW_TEXT,
	PAGE_TOTAL,					/* how many terms there are; not all are shown */
	PAGE_FIELDS
};

typedef struct Page
{
	const PGresult *terms;
	int			n;				/* how many */
	const char *database;
	const char *election;		/* NULL: all */
	int		   *leader;			/* of each term: its number (leaders.c) */
	int			nleaders;
	double		from;			/* the time that the picture shows, seconds */
	double		to;
	PQExpBufferData html;
} Page;

/* No moment is further from 1970: more than PostgreSQL's years, in seconds */
#define LATEST				1e13

#define CAPTION_COLUMNS		40	/* of a name above a lane, or beside a chip */
#define CHIP_WIDTH			26	/* pixels */

/* page.c */
extern const char *page_text(const char *text);
extern const char *page_value(const Page *p, int row, int column);
extern double page_seconds(const Page *p, int row, int column);
extern int64 page_epoch(const Page *p, int row);
extern bool page_begins_epoch(const Page *p, int row);
extern int	page_lane_end(const Page *p, int row);
extern const char *page_duration(double seconds);
extern const char *page_shorten(const char *text, int columns);

/* leaders.c */
extern void leaders_number(Page *p);
extern const char *leaders_colour(const Page *p, int row);
extern void leaders_draw_chip(Page *p, int row, int x, int y);
extern void leaders_list(Page *p);

/* picture.c */
extern void picture_begin(Page *p);
extern void picture_draw(Page *p);
extern void picture_key(Page *p);
extern void picture_legend(Page *p);

/* style.c */
extern const char page_style[];

/* page_file.c */
extern void page_file_write(const char *file, const char *text, size_t length);

/* html.c */
extern void html_write(Connection *c, const Options *options,
					   const char *const *values);

#endif							/* PAGE_H */
