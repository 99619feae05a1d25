/*-------------------------------------------------------------------------
 *
 * observer.h
 *		What the subcommands share that look at elections: status,
 *		diagnose, watch, history and yield.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OBSERVER_H
#define OBSERVER_H

#include "connection.h"
#include "options.h"

/* How long the server may take to answer an observer */
#define OBSERVER_LIMIT	(60 * SEC)

/* Columns of events */
enum
{
	EVENT_ELECTION,
	EVENT_KIND,
	EVENT_TERM,
	EVENT_LEADER,
	EVENT_PREVIOUS,
	EVENT_REASON,
	EVENT_AT,
	EVENT_AT_JSON,
	EVENT_LAST_TERM,			/* of the election */
	EVENT_ENDED,				/* that term has */
	EVENT_SINCE,				/* when the state began of which this tells; NULL:
								 * unknown */
	EVENT_FIELDS
};

/* How a word looks on a terminal (paint.c) */
typedef enum Paint
{
	PAINT_PLAIN,
	PAINT_HEAD,
	PAINT_QUIET,				/* nobody has to read it */
	PAINT_WELL,
	PAINT_CARE,					/* it was ordered, or will be over by itself */
	PAINT_BAD					/* an operator has to act */
} Paint;

/*
 * Of a row of view status: what waiting_for begins with where nobody leads until
 * an operator acts, which is where diagnose() tells of a warning or an error
 * (src/rules/reasons.c).
 */
#define NEEDS_OPERATOR \
	"no candidates|quorum|drained|cap|candidates that do not sit out|" \
	"a worker or a call|worker fails"

/*
 * An election is unused if nobody has led it, as far as the history goes, and
 * nobody stands.  One that was led is not: its candidates may all have died.
 */
#define SQL_UNUSED \
	"(leader IS NULL AND since IS NULL AND paused_by IS NULL" \
	" AND candidates OPERATOR(pg_catalog.=) 0)"

/* If the last run of a job is done, nobody has to stand before the next one. */
#define SQL_TROUBLED \
	"(waiting_for OPERATOR(pg_catalog.~) '^(" NEEDS_OPERATOR ")'" \
	" AND NOT " SQL_UNUSED " AND (run_done IS NULL OR NOT" \
	" waiting_for OPERATOR(pg_catalog.=) 'no candidates')) IS TRUE"

/* Why a term ended */
typedef struct Reason
{
	const char *name;			/* as in the history; NULL: any other */
	char		letter;			/* in a timeline on a terminal */
	const char *look;			/* a class of the page's style (style.c) */
	const char *meaning;
} Reason;

/* reason.c */
extern const Reason reasons[];

extern const Reason *reason_find(const char *name);

/* paint.c */
extern Paint paint_of_state(const char *state, bool unused, bool troubled);
extern const char *paint_begin(Paint paint);
extern const char *paint_end(Paint paint);
extern int	terminal_columns(void);

/* observer.c */
extern void observer_connect(Connection *c, const Options *options);
extern bool observer_try(Connection *c, const Statement *statement,
						 const char *const *values, Answer *answer);
extern Answer observer_judge(Connection *c, Answer answer);
extern Answer observer_ask(Connection *c, const Statement *statement,
						   const char *const *values);
extern void observer_no_such_election(const char *election);

/* event.c */
extern void event_print(const PGresult *events, int row, bool json);
extern void event_flush(void);

#endif							/* OBSERVER_H */
