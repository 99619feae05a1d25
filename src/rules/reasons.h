/*-------------------------------------------------------------------------
 *
 * reasons.h
 *		Why a term ends, and why nobody leads: the word for it, and what
 *		people are told of it.
 *
 * history, status, metrics and diagnose() read the same tables.  Sentences
 * have fields in braces, which diagnose() fills in (diagnose_fill.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_REASONS_H
#define LE_REASONS_H

/* What a finding of diagnose() means for who reads it */
typedef enum Severity
{
	SEVERITY_OK,				/* all is well: the only row */
	SEVERITY_NOTICE,			/* as it was ordered, or over by itself */
	SEVERITY_WARNING,			/* is wrong, and will do harm if it stays */
	SEVERITY_ERROR				/* nobody leads, or can take over, until
								 * somebody acts */
} Severity;

typedef enum Reason
{
	REASON_EXPIRED,
	REASON_SESSION_ENDED,
	REASON_SESSION_RESET,
	REASON_FAILOVER,
	REASON_YIELDED,
	REASON_TRANSFERRED,
	REASON_RESIGNED,
	REASON_LEFT,
	REASON_DROPPED,
	REASON_OTHER,				/* another version's, or written by hand */
	REASON_COUNT
} Reason;

typedef struct ReasonText
{
	const char *word;			/* in history, and for listeners */
	bool		lost;			/* neither the leader's own call, nor an
								 * operator's, has ended the term */
	Severity	severity;		/* of many such ends */
	const char *meaning;		/* ends a sentence */
	const char *remedy;			/* for many such ends */
} ReasonText;

extern const ReasonText le_reasons[REASON_COUNT];

extern Reason le_reason_find(const char *word);

/* Why nobody leads.  Of several obstacles, the first one here is told. */
typedef enum Obstacle
{
	OBSTACLE_NONE,				/* the worker is about to elect */
	OBSTACLE_WITHDRAWN,			/* its group has no such seat any more */
	OBSTACLE_PAUSED,
	OBSTACLE_EPOCH,				/* this incarnation has no epoch yet */
	OBSTACLE_GRACE,				/* after a failover */
	OBSTACLE_HOLD,
	OBSTACLE_TAKEOVER_DELAY,
	OBSTACLE_RESERVED,			/* for one candidate */
	OBSTACLE_NO_CANDIDATES,
	OBSTACLE_QUORUM,
	OBSTACLE_INITIAL_DELAY,		/* who stands waits for others to come */
	OBSTACLE_DRAINED,			/* so are some, and nobody else is ready */
	OBSTACLE_CAP,				/* the others have enough seats of the group */
	OBSTACLE_SITTING_OUT,		/* all candidates do, or may not stand */
	OBSTACLE_CALL,				/* the others are detached, and must call */

	/* What observers see where these leave it to the worker (observed.c) ... */
	OBSTACLE_NO_WORKER,
	OBSTACLE_NO_EPOCH,			/* and no worker that begins it */
	OBSTACLE_WORKER_FAILS,
	OBSTACLE_WORKER_WAITS,		/* for a lock */
	OBSTACLE_WORKER_CANCELLED,
	OBSTACLE_STANDBYS,			/* have to confirm first */

	/* ... and diagnose() sees */
	OBSTACLE_LATE_COMMIT,		/* fenced, it holds the election lock */
	OBSTACLE_RUN_DONE,			/* nobody stands, and need not */
	OBSTACLE_UNSEEN,			/* on a standby */
	OBSTACLE_UNREAD,			/* tables are locked */
	OBSTACLE_COUNT
} Obstacle;

typedef struct ObstacleText
{
	const char *word;			/* what a vacant election waits for */
	bool		calls;			/* for help: it was not ordered, and does not
								 * end by itself */
	Severity	severity;
	const char *why;			/* ends a sentence */
	const char *remedy;
} ObstacleText;

extern const ObstacleText le_obstacles[OBSTACLE_COUNT];

#endif							/* LE_REASONS_H */
