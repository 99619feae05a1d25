/*-------------------------------------------------------------------------
 *
 * decide.h
 *		The floor of decisions: who is next, whether that is proven, and the only
 *		place where the holder changes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_DECIDE_H
#define LE_DECIDE_H

#include "state/state.h"

/* strategy.c */
typedef bool (*Preempts) (const Candidate *challenger,
						  const Candidate *leader);

typedef struct Strategy
{
	const char *name;
	list_sort_comparator order; /* of Candidate pointers: who comes first */
	Preempts	preempts;		/* is the leader asked to yield?  NULL: never */
	Preempts	still_preempts; /* ... and still, once it was asked? */
	bool		counts;			/* needs what else the candidates lead */
	bool		reserves;		/* keeps the seat for a detached one's call */
} Strategy;

extern const Strategy *le_strategy_find(const char *name);
extern const Strategy *le_strategy(const Election *election);

/* seats.c */
typedef struct Seats Seats;

extern Seats *le_seats_read(const Store *store, MemoryContext context);
extern void le_seats_begin_round(void);
extern bool le_seats_are_counted(void);
extern Seats *le_seats_now(const Store *store);
extern void le_seats_touch(const char *election);
extern void le_seats_tell(Seats *seats, const Election *election,
						  const Lease *lease, List *candidates);

/* ranking.c */
extern bool le_candidate_sits_out(const Candidate *c, const Lease *lease);
extern List *le_ranking(const Store *store, const Election *election,
						const Lease *lease, Seats **seats,
						MemoryContext context);
extern bool le_ranking_has_quorum(const Store *store, const Election *election);
extern Candidate *le_ranking_first(const Store *store, const Election *election,
								   const Lease *lease, const Candidate *caller,
								   const Candidate *passed_over);
extern bool le_ranking_prepare(const Store *store, const Election *election,
							   const Candidate *passed_over);
extern Candidate *le_ranking_challenger(const Store *store, const Election *election,
										const Lease *lease);
extern bool le_ranking_preempts(const Lease *lease, const Candidate *challenger);

/* proof.c */
typedef struct Proof
{
	bool		required;		/* there are synchronous standbys */
	bool		confirmed;		/* they follow, or there are none */
	int64		t0;				/* what a lease may count from */
	int64		lease_duration; /* the longest that may be granted on it */
	TransactionId vacant_xmin;	/* of the row, if the seat was seen vacant */
	int64		epoch;			/* the one of new terms; -1: not known then */
} Proof;

extern void le_proof_set_subject(Proof *proof, const Lease *seen,
								 int64 lease_duration, const Incarnation *inc);
extern bool le_prove(const Lease *seen, int64 lease_duration, bool grants,
					 int64 limit, Proof *proof);

/* settle.c */
/* How a holder ends its own leadership */
typedef struct GiveUp
{
	int64		session_id;		/* the holder's; 0: it is detached ... */
	int64		term;			/* ... and knows its term */
	const char *reason;
	bool		yields;			/* so it does what it may have been asked to */
	const char *detail;			/* NULL: nothing to add */
	const char *to_candidate;	/* NULL: whoever is next */
	int64		hold;			/* 0: none */
	bool		sits_out;
} GiveUp;

typedef struct Settled
{
	bool		busy;			/* some row was locked, nothing was done */
	bool		unproven;		/* more has happened since than is proven */
	bool		changed;
	bool		gave_up;		/* the GiveUp was carried out */
} Settled;

extern int64 le_grace_mono(const Election *election,
						   const Lease *lease,
						   const Incarnation *inc);
extern int64 le_reserved_mono(const Store *store,
							  const Election *election,
							  const Lease *lease,
							  const Incarnation *inc);
extern bool le_reservation_lapsed(const Store *store,
								  const Election *election,
								  const Lease *lease,
								  const Incarnation *inc);
extern Candidate *le_settle_named(const Store *store,
								  const Election *election,
								  const char *name);
extern Settled le_settle(const Store *store,
						 const Election *election,
						 const Candidate *caller,
						 const GiveUp *give_up, const Proof *proof);
extern Lease *le_settle_continue(const Store *store,
								 const Election *election, int64 term,
								 const Proof *proof, bool *over);
extern void le_settle_ask_yield(const Store *store, const Election *election,
								Lease *lease, bool ordered,
								const Candidate *successor);
extern bool le_settle_preempt(const Store *store, const Election *election,
							  bool *changed);
extern bool le_settle_drop(const Store *store, const Election *election,
						   const Incarnation *inc);

/* begin.c */
extern bool le_begin_epoch(Store *store);
extern bool le_begin_ensure(Store *store, const char *election, bool urgent,
							int64 limit);

#endif							/* LE_DECIDE_H */
