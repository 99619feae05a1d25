/*-------------------------------------------------------------------------
 *
 * agent.h
 *		The agent of a candidate: what `run` and `stand` stand and lead with.
 *
 *-------------------------------------------------------------------------
 */
#ifndef AGENT_H
#define AGENT_H

#include "connection.h"
#include "guardian.h"
#include "http.h"
#include "options.h"

/* How long the server may take to answer the agent */
#define AGENT_LIMIT		(10 * SEC)

/* What stand_until_elected() returns instead of an exit code */
#define ELECTED			(-1)

/* A leadership as granted */
typedef struct Grant
{
	int64		term;			/* 0: none */
	int64		sent;			/* when the request for it was sent */
	int64		deadline;
	bool		yielding;		/* the leader is asked to yield */
} Grant;

typedef struct Agent
{
	const Options *options;
	Connection	connection;
	Guardian	guardian;
	int			signal_fd;
	int			signo;			/* the last signal that asked us to end */
	bool		signalled;		/* a signal has come since this was cleared */
	int64		lease;			/* of the election, or as granted */
	int64		grace;			/* between SIGTERM and SIGKILL; of a sidecar,
								 * from "I do not lead" to giving back */
	char	   *channel;
	char	   *prefix;			/* of payloads about the election */
	char	   *warned;			/* the last warning, to say it once */
	Grant		grant;
	int64		elected;		/* how many times */
	int64		renewed;
} Agent;

/* The columns of a grant that agent_read_grant() reads */
#define SQL_GRANT		"SELECT term, remaining_ms, yielding FROM "
#define GRANT_FIELDS	3

/* agent.c */
extern int	agent_live(const Options *options, int (*live) (Agent *a));
extern void agent_publish(const Agent *a, const char *not_leading);
extern int	agent_prepare(Agent *a);
extern void agent_warn(Agent *a, const char *message);
extern void agent_warn_answer(Agent *a, const Answer *answer);
extern Answer agent_ask(Agent *a, const Statement *statement,
						const char *const *values, int64 limit, bool may_stop);
extern Answer agent_renew_session(Agent *a, int64 limit);
extern bool agent_read_grant(const Answer *answer, Grant *grant);
extern void agent_take_failure(Agent *a, const Answer *answer);

/* stand.c */
extern int	stand_until_elected(Agent *a);
extern void stand_stop(Agent *a);

/* lead.c */
extern int	lead_run(Agent *a, bool *again);
extern bool lead_hold(Agent *a);

#endif							/* AGENT_H */
