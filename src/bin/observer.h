/*-------------------------------------------------------------------------
 *
 * observer.h
 *		What the subcommands share that look at elections.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OBSERVER_H
#define OBSERVER_H

#include "connection.h"
#include "options.h"

#define OBSERVER_ANSWER_LIMIT (60 * SEC)

/* Columns of all that has events, and two more of sql_state */
enum
{
	EVENT_ELECTION,
	EVENT_EVENT,
	EVENT_TERM,
	EVENT_LEADER,
	EVENT_PREVIOUS,
	EVENT_REASON,
	EVENT_AT,
	EVENT_AT_JSON,
	STATE_LAST_TERM,
	STATE_ENDED
};

/* observer.c */
extern void observer_connect(Connection *c, const Options *options);
extern Answer observer_ask(Connection *c, const Statement *statement,
						   const char *const *values);
extern void observer_no_such_election(const char *election) pg_attribute_noreturn();

/* event.c */
extern void event_print(bool json, const PGresult *events, int row);
extern void event_flush(void);

#endif							/* OBSERVER_H */
