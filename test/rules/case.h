/*-------------------------------------------------------------------------
 *
 * case.h
 *		An election as the rules see it, in plain values, and what they answer.
 *
 * test/rules enumerates cases and compares two answers to each: that of
 * src/rules, and that of reference.c, which was written from docs/reference.md
 * alone.  So this header explains itself by the words of the reference, and by
 * nothing in src/.
 *
 * Everything is of one moment, "now".  Times are microseconds relative to now:
 * negative is past, positive is to come.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_TEST_CASE_H
#define LE_TEST_CASE_H

#include <stdbool.h>

#define MOST_CANDIDATES	3
#define NOBODY			(-1)	/* instead of the number of a candidate */
#define NEVER			1000000000	/* a time that does not come */

typedef struct CaseCandidate
{
	bool		alive;			/* its session is there; a detached one has
								 * called recently enough */
	bool		detached;		/* else it is a session */
	bool		drained;		/* here, everywhere, or by a prefix */
	bool		may_stand;		/* its role is in candidate_role, or there is
								 * none */
	bool		full;			/* has, or is due, as many other seats of the
								 * group as it may */
	bool		full_without_due;	/* has as many, not counting seats that are
									 * only due to it; implies full */
	bool		sits_out;		/* since it gave up */
	bool		gave_up;		/* and has neither stood anew nor changed its
								 * rank since: it preempts nobody */
	int			rank;
	int			progress;
	int			place;			/* in line; lower is longer; all differ */
	int			stood;			/* since when preempt_delay counts: <= 0 */
	int			leads;			/* other elections of this strategy */
	int			weight;			/* how much it can bear, for spread; 1 or more */
} CaseCandidate;

typedef struct Case
{
	/* the election */
	const char *strategy;
	int			quorum;
	int			preempt_delay;
	int			initial_delay;	/* 0: none */
	bool		withdrawn;		/* its group has fewer seats by now */
	bool		paused;			/* itself, or all */
	int			paused_until;	/* NEVER: until it is resumed */

	/* who stands, in no order */
	int			candidates;
	CaseCandidate candidate[MOST_CANDIDATES];

	/* the seat */
	bool		led;			/* else it is vacant */
	int			leader;			/* who leads; NOBODY: vacant */
	bool		yielding;		/* the leader was asked to yield ... */
	bool		ordered;		/* ... by an operator, a pause or a drain; else
								 * by the strategy */
	int			successor;		/* to whom it is to yield, or, if the seat is
								 * vacant, for whom it was reserved; NOBODY */
	int			reserved_until; /* vacant: for so long, unless it dies */
	bool		stood_anew;		/* the successor left since, and stands again */

	/* what bars the vacant seat */
	int			grace_until;	/* after a failover; NEVER: the new server has
								 * not begun yet; <= 0: no grace */
	int			not_before;		/* of a hold or a takeover delay; <= 0: none */
	bool		held;			/* it is that of a hold */
	bool		waits;			/* nobody stood when it fell vacant, but the
								 * former leader: initial_delay counts */
	int			first_stood;	/* from then on; <= 0 */

	/* in whose call this is decided; NOBODY: the worker decides */
	int			caller;
} Case;

/* Why a candidate is not elected, the first of these that is so */
typedef enum CaseWhyNot
{
	CASE_ELIGIBLE,
	CASE_DEAD,
	CASE_DRAINED,
	CASE_FULL,
	CASE_NOT_ADMITTED,			/* its role */
	CASE_SITS_OUT
} CaseWhyNot;

/* What a vacant seat waits for: the words of waiting_for */
typedef enum CaseWaiting
{
	CASE_NOTHING,				/* the worker is about to elect, or it is led */
	CASE_WITHDRAWN,
	CASE_PAUSED,
	CASE_GRACE,
	CASE_HOLD,
	CASE_TAKEOVER_DELAY,
	CASE_RESERVED,
	CASE_NO_CANDIDATES,
	CASE_QUORUM,
	CASE_INITIAL_DELAY,
	CASE_DRAINED_ONLY,
	CASE_CAP,
	CASE_SITTING_OUT,
	CASE_CALL					/* acquire() */
} CaseWaiting;

typedef struct Answer
{
	CaseWhyNot	why_not[MOST_CANDIDATES];

	/* view candidates: position, from 1 on; 0: NULL */
	int			position[MOST_CANDIDATES];

	/* vacant: view status */
	CaseWaiting waiting_for;
	int			until;			/* when that ends by itself; NEVER: it does not */
	bool		dropped;		/* by the worker: it is vacant and withdrawn */

	/*
	 * Vacant: who is elected now; or for whom the seat is kept: it is
	 * reserved still, or from now on, since that candidate is first and has
	 * to call.  At most one of them is somebody.
	 */
	int			elected;
	int			kept_for;

	/* led: to whom the strategy wants the leader to yield now */
	int			challenger;
} Answer;

/* reference.c */
extern const char *const reference_words[CASE_CALL + 1];	/* of waiting_for */
extern void reference_answer(const Case *c, Answer *answer);

/* rules.c */
extern void rules_answer(const Case *c, Answer *answer);

/* cases.c */
extern void case_complain(const char *what);

#endif							/* LE_TEST_CASE_H */
