/*-------------------------------------------------------------------------
 *
 * rules.h
 *		The floor of the rules: who may be elected, who is next, what a vacant
 *		election waits for, and whether the leader has to make way.
 *
 * A rule answers from a View, which has all that a decision rests on.  It
 * reads no table, takes no lock, and knows no clock but View.now: so each rule
 * can be tested without a server (test/rules).  The floor of decisions reads
 * Views (decide/view.c), under the locks again with the same function.
 *
 * What is expensive to know is read when a rule asks for it first, by the
 * functions of a ViewReader, and remembered in the View for as long as it
 * lasts, which is one decision.
 *
 * All times are those of one monotonic clock, in microseconds.
 *
 *	strategy	who comes first, and who has to make way
 *	contender	asking for what is read late
 *	eligible	may this candidate be elected?
 *	ranking		who is next
 *	vacancy		why nobody leads, and until when
 *	request		what the leader is to be asked
 *	reasons		in words (reasons.h)
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_RULES_H
#define LE_RULES_H

#include "rules/reasons.h"

struct Candidate;
typedef struct View View;

/* What is asked of a candidate late, and once in a View */
typedef enum Trait
{
	TRAIT_ALIVE,				/* takes locks: asked for last */
	TRAIT_DRAINED,
	TRAIT_FULL,					/* has, or is due, as many other seats of the
								 * group as it may */
	TRAIT_FULL_WITHOUT_DUE,		/* has as many */
	TRAIT_ADMITTED				/* its role may be elected */
} Trait;

/* A candidate, as the rules see it */
typedef struct Contender
{
	struct Candidate *candidate;	/* its row, for those who decide */
	const char *name;
	bool		detached;
	int			rank;
	int64		progress;
	int64		place;			/* queue position: lower ones stand longer */
	int64		stood;			/* since when preempt_delay counts */
	int64		lives_until;	/* if it is detached, and does not call */
	bool		sits_out;		/* has given up the last term, or a later one */
	bool		defers;			/* has given up, and is not to preempt */
	bool		holds;			/* the lease row names it as the leader ... */
	bool		succeeds;		/* ... as the successor */
	bool		calls;			/* this is decided in its own call */
	int			leads;			/* other elections; only if these count */
	int64		weight;			/* that it bears; the same */

	/* sets of traits, see le_contender_is() */
	unsigned	asked;
	unsigned	has;
} Contender;

/* How a View is read late */
typedef struct ViewReader
{
	/* make the View's contenders: all who stand, live or not */
	void		(*read) (View *view);

	/* the successor, if it stands; NULL: it does not */
	Contender  *(*read_successor) (View *view);

	/* set what each contender and the holder lead */
	void		(*count) (View *view);

	bool		(*test) (View *view, const Contender *c, Trait trait);
} ViewReader;

/* strategy.c */
typedef struct Strategy
{
	const char *name;

	/* as qsort() calls it: which of two contenders comes first */
	int			(*order) (const void *a, const void *b);

	/* ask the leader to yield?  NULL: never */
	bool		(*preempts) (const Contender *challenger,
							 const Contender *leader);

	/* keep a request that was made? */
	bool		(*still_preempts) (const Contender *challenger,
								   const Contender *leader);
	bool		counts;			/* ranks by what the candidates lead */
	bool		reserves;		/* keeps the election until a detached one calls */
} Strategy;

extern const Strategy le_strategies[];	/* the last one has no name */
extern const Strategy *le_strategy_find(const char *name);
extern const Strategy *le_strategy(const char *name);

/* What a decision rests on */
struct View
{
	int64		now;

	/* the settings */
	const Strategy *strategy;
	int			quorum;
	int64		preempt_delay;
	int64		initial_delay;

	/* the lease row, as it means now */
	bool		vacant;			/* it names no leader */
	bool		yielding;		/* the leader was asked to yield ... */
	bool		yield_ordered;	/* ... but not by the strategy */
	bool		names_successor;	/* which may stand no more */
	bool		held;			/* not_before is a hold; else a delay */
	bool		deserted;		/* nobody stood at first; others are to come */
	int64		not_before;		/* 0: nothing bars */
	int64		first_stood;	/* 0: not known yet */
	int64		reserved_since; /* vacant: for the successor */
	int64		reserved_until; /* 0: it is not */

	/* what else bars an election */
	bool		withdrawn;		/* the group has no such seat any more */
	bool		paused;
	bool		pause_vacates;	/* and the leader is to go */
	bool		passes_holder;	/* it gives up, and sits out from now on */
	int64		paused_until;	/* PG_INT64_MAX: until it is resumed */
	int64		grace;			/* its end; PG_INT64_MAX: no epoch has begun */

	/* who stands; see contender.c */
	const ViewReader *reader;
	bool		is_read;
	bool		knows_successor;
	int			ncontenders;
	Contender  *contenders;		/* an array of these */
	Contender  *successor;
	Contender  *holder;			/* of the lease; NULL: nobody.  Before who
								 * stands is read, and if the holder does not
								 * stand: as it was when it was elected */
};

/* contender.c */
extern void le_contenders_read(View *view);
extern void le_contenders_find(View *view);
extern Contender *le_contender_successor(View *view);
extern bool le_contender_is(View *view, Contender *c, Trait trait);

/* eligible.c */

/* Why a candidate is not elected: the first of these that is so */
typedef enum WhyNot
{
	ELIGIBLE,
	NOT_ALIVE,
	NOT_IF_DRAINED,
	NOT_IF_FULL,				/* it has enough seats of the group */
	NOT_ADMITTED,				/* its role */
	NOT_IN_TURN					/* it sits out */
} WhyNot;

extern bool le_eligible_if_due(View *view, Contender *c);
extern bool le_eligible_is_named(const View *view, const Contender *c);
extern bool le_eligible_sits_out(const View *view, const Contender *c);
extern WhyNot le_eligible(View *view, Contender *c);

/* ranking.c */
extern bool le_ranking_is_contested(View *view);
extern bool le_ranking_has_quorum(View *view);
extern bool le_ranking_has_follower(View *view);
extern int64 le_ranking_first_stood(View *view, int64 vacant_since,
									bool *deserted);
extern Contender *le_ranking_first(View *view);
extern Contender **le_ranking_order(View *view, int *positions);
extern Contender *le_ranking_challenger(View *view, int64 *next);

/* vacancy.c */

/*
 * How many stand in an election.  Of all but live it only matters whether they
 * are 0.
 */
typedef struct Turnout
{
	int			live;
	int			ready;			/* live, and could be elected */
	int			told;			/* ready, and electable without a call */
	int			drained;		/* live, but not ready for that */
	int			capped;			/* live, but not ready for their other seats */
} Turnout;

typedef struct Vacancy
{
	Obstacle	obstacle;
	int64		obstacle_until; /* when that ends by itself; PG_INT64_MAX: it
								 * does not */
	int64		barred_until;	/* nobody is elected before, and a withdrawn
								 * seat is not dropped before */
	bool		reserved;		/* the election is vacant, with a successor */
	Contender  *kept_for;		/* that successor; NULL: not kept any more */
	Contender  *absent;			/* that successor, if it let its reservation
								 * lapse */
	int64		kept_until;		/* if it is not elected before */
	int64		note_first_at;	/* from then on, who stands first is to be
								 * noted; PG_INT64_MAX: it is known, or does
								 * not matter */
} Vacancy;

extern void le_vacancy_count(View *view, Turnout *turnout);
extern Contender *le_vacancy_successor(View *view);
extern void le_vacancy(View *view, const Turnout *turnout, Vacancy *v);
extern int64 le_vacancy_due(const View *view, const Turnout *turnout,
							const Vacancy *v);
extern Contender *le_vacancy_fill(View *view, int64 barred_until,
								  Contender **kept_for);

/* request.c */

/* What is to become of the request to the leader to yield */
typedef enum Request
{
	REQUEST_STAYS,				/* as it is, or is not made */
	REQUEST_PAUSED,				/* it is to go because of a pause ... */
	REQUEST_WITHDRAWN,			/* ... because the seat is withdrawn ... */
	REQUEST_DRAINED,			/* ... because it is drained */
	REQUEST_PREEMPTED,			/* it is to yield to a challenger */
	REQUEST_TAKEN_BACK
} Request;

extern Request le_request_unwanted(View *view);
extern Request le_request(View *view, Contender **challenger, int64 *next);

#endif							/* LE_RULES_H */
