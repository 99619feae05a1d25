/*-------------------------------------------------------------------------
 *
 * contest.h
 *		A leadership, the client that holds it and those that wait for it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef BENCH_CONTEST_H
#define BENCH_CONTEST_H

#include "client.h"

#define MAX_WAITERS	1000
#define REST_MS		20			/* before a kill: nothing is under way then */

/* What is waited for; in each, the first %s is the seat */
typedef struct Kind
{
	const char *acquire;		/* %s: the candidate */
	const char *hand_over;		/* %s: to whom */
	const char *in_line;		/* %s: whose names are like that; a number */
	bool		durable;		/* whether a grant must have been flushed */
} Kind;

extern const Kind campaign;		/* the seat is an election */
extern const Kind raw_lock;		/* the seat is the number of an advisory lock */

typedef struct Contest
{
	const Kind *kind;
	const char *seat;
	int			serial;			/* names the next client */
	int			nwaiters;
	PGconn	   *waiters[MAX_WAITERS];
	Child		holder;
} Contest;

/* Takeovers whose grant was seen flushed, and not flushed, when it was told */
extern int	grants_durable;
extern int	grants_not_durable;

extern void start_contest(Contest *contest, const Kind *kind, const char *seat,
						  int nwaiters, PGconn *monitor);
extern void end_contest(Contest *contest);
extern double take_over(Contest *contest);
extern void add_takeovers(Contest *contest, int trials, double size,
						  Growth *ms, Growth *cpu);

/* take_over() in its parts */
extern void await_calm(const Contest *contest);
extern double time_takeover(Contest *contest, int limit_ms, int *winner);
extern void seat_new_holder(Contest *contest, int winner);

#endif							/* BENCH_CONTEST_H */
