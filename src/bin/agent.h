/*-------------------------------------------------------------------------
 *
 * agent.h
 *		The agent of a candidate: what `run` stands and leads with.
 *
 *-------------------------------------------------------------------------
 */
#ifndef AGENT_H
#define AGENT_H

#include "connection.h"
#include "guardian.h"
#include "options.h"

#define RUN_ANSWER_LIMIT (10 * SEC)

#define ELECTED		(-1)		/* what stand() returns, if not an exit code */

/* A leadership as granted */
typedef struct Grant
{
	int64		term;			/* 0: none */
	int64		sent;			/* when the request for it was sent */
	int64		deadline;
	bool		yielding;
} Grant;

typedef struct Agent
{
	const Options *options;
	Connection	connection;
	Guardian	guardian;
	int			signal_fd;
	int			signo;			/* the last signal that asked us to end */
	bool		signalled;		/* one has come since this was cleared */
	int64		lease;			/* of the election, or what was granted */
	int64		grace;
	char	   *channel;
	char	   *payload;		/* how the election's notifications begin */
	char	   *warned;			/* the last warning, to say it once */
	Grant		grant;
} Agent;

/* The columns of a grant row that we read */
#define SQL_GRANT	"SELECT term, remaining_ms, yielding FROM "
#define GRANT_FIELDS	3

/* agent.c */
extern int	agent_prepare(Agent *a);
extern void agent_warn(Agent *a, const char *message);
extern void agent_warn_answer(Agent *a, const Answer *answer);
extern Answer agent_ask(Agent *a, const Statement *statement,
					  const char *const *values, int64 limit, bool may_stop);
extern Answer agent_renew_session(Agent *a, int64 limit);

/* stand.c */
extern int	stand_until_elected(Agent *a);
extern void stand_stop(Agent *a);
extern bool agent_read_grant(const Answer *answer, Grant *grant);

/* lead.c */
extern int	lead_run(Agent *a, bool *again);

#endif							/* AGENT_H */
