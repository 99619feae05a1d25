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
extern void connect_observer(Connection *c, const ObserveOptions *options);
extern Answer ask_observer(Connection *c, const Statement *statement,
						   const char *const *values);
extern void no_such_election(const char *election) pg_attribute_noreturn();

/* event.c */
extern void tell(bool json, const PGresult *events, int row);
extern void flush(void);

#endif							/* OBSERVER_H */
