/*-------------------------------------------------------------------------
 *
 * decide.h
 *		The floor of decisions: what the rules are asked of, whether their
 *		answer is proven, and the only place where the holder changes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_DECIDE_H
#define LE_DECIDE_H

#include "rules/rules.h"
#include "state/state.h"

/* tally.c */

/* Ways in which an election counts for a candidate */
typedef enum TallyCount
{
	TALLY_HAS,					/* it leads, also while it is asked to yield;
								 * or may lead on, after a failover */
	TALLY_DUE,					/* it is the successor: the election is
								 * reserved for it, or the leader is to yield
								 * to it */
	TALLY_LATE,					/* it led; its lease has expired, and its term
								 * is not ended yet */
	TALLY_LEADS,				/* it leads, and is not asked to yield; or it
								 * is due */
	TALLY_COUNTS
} TallyCount;

typedef struct Tally
{
	MemoryContext context;		/* of all that it points to */
	Oid			lease_oid;		/* the table that was read */
	ElectionGroup *group;		/* as it was then; NULL: elections of all
								 * strategies that count */
	HTAB	   *elections;
	HTAB	   *shares;
	int64		rows;			/* that were read; of no group */
	List	   *touched;		/* names of elections to be read again */
	List	   *unsure;			/* the same, if this transaction is undone */

	/* of a group (cap.c) */
	int			locks;			/* how often the group lock was taken, and not
								 * released; 0: it is only kept, or they were
								 * counted without it */
	int64		keep_until;		/* the lock, if it is only kept (monotonic) */
} Tally;

extern Tally *le_tally_make(MemoryContext context);
extern void le_tally_count(Tally *tally, const ElectionGroup *group);
extern void le_tally_touch(Tally *tally, const char *election);
extern void le_tally_end_of_xact(Tally *tally, bool committed);
extern void le_tally_catch_up(Tally *tally);
extern void le_tally_note(Tally *tally,
						  const Election *election, const Lease *lease);
extern int	le_tally_others(const Tally *tally, TallyCount which,
							const char *election, const char *candidate,
							const Role *role);
extern List *le_tally_late(const Tally *tally, const char *election,
						   const char *candidate, const Role *role);

/* cap.c */
extern bool le_cap_lock(const Election *election, bool wait);
extern void le_cap_unlock(const Election *election);
extern void le_cap_let_go(void);
extern void le_cap_forget(void);
extern void le_cap_keep(bool keep);
extern void le_cap_touch(const char *election);
extern bool le_cap_is_locked(const Election *election);
extern bool le_cap_bars(const Election *election,
						const Candidate *c, bool is_due);
extern bool le_cap_lock_late(const Election *election, const Candidate *c);

/* spread.c */
extern void le_spread_begin_round(void);
extern void le_spread_end_of_xact(bool committed);
extern bool le_spread_is_counted(void);
extern Tally *le_spread_now(void);
extern void le_spread_touch(const char *election);
extern void le_spread_tell(Tally *tally,
						   const Election *election, const Lease *lease,
						   View *view);

/* view.c */
extern View *le_view_read(const Election *election,
						  const Lease *lease, const Incarnation *inc,
						  int64 now, const Candidate *caller);
extern void le_view_show(const View *view, Candidate *c, Contender *contender);
extern void le_view_count_once(View *view, Tally **tally,
							   MemoryContext context);
extern bool le_view_count_ahead(const Election *election,
								const Lease *lease, bool passes_holder);
extern Contender *le_view_named(View *view, const char *name);

/* proof.c */
typedef struct Proof
{
	bool		required;		/* there are synchronous standbys */
	bool		confirmed;		/* they follow, or there are none */
	int64		t0;				/* what a lease may count from */
	int64		lease_duration; /* of the leases that may be granted on it */
	TransactionId vacant_xmin;	/* of the row, if the election was seen vacant */
	int64		epoch;			/* of new terms; -1: not known at t0 */
} Proof;

extern int64 le_proven_since;

extern TransactionId le_proof_vacant_xmin(const Lease *seen);
extern void le_proof_set_subject(Proof *proof, TransactionId vacant_xmin,
								 int64 lease_duration, const Incarnation *inc);
extern bool le_proof_covers(const Proof *proof, int64 duration);
extern bool le_proof_stands(const Proof *proof);
extern bool le_proof_grants(const Proof *proof, const Incarnation *inc);
extern bool le_proof_make(const Lease *seen, int64 lease_duration,
						  bool grants, int64 limit, Proof *proof);

/* decision.c */

/* How a holder ends its own leadership */
typedef struct GiveUp
{
	int64		session_id;		/* the holder's; 0: it is detached */
	int64		term;			/* that a detached holder has named */
	Reason		reason;
	bool		resigns;		/* it sits out; "yielded" if it was asked to */
	const char *detail;			/* NULL: nothing to add */
	const char *to_candidate;	/* NULL: whom the strategy ranks first */
	int64		hold;			/* 0: none */
	bool		done;			/* what the term was granted for is done */
} GiveUp;

/* An election that is to be settled, and what is to be done about it */
typedef struct Decision
{
	const Proof *proof;			/* was made before the election was locked */
	const Election *election;
	Incarnation *inc;
	Lease	   *lease;			/* locked, if it is to be written */
	LeaseState	state;
	View	   *view;			/* what the rules are asked of */
	const GiveUp *give_up;		/* NULL: the holder does not give up */
	bool		grants;			/* it may be granted, or reserved anew */
	int64		now;
	int64		not_before;		/* nobody follows before */
	Candidate  *winner;			/* NULL: nobody is elected now */
	Run			run;			/* that the winner has called for */
	const pg_uuid_t *request;	/* with which it has; NULL: none */
	Candidate  *successor;		/* that the election is kept for; NULL: nobody */
	Candidate  *set_back;		/* candidate to be set back; NULL: none */
	bool		sits_out;		/* if so, it is passed over */
	bool		loses;			/* if so, its time begins anew */
	bool		deserted;		/* nobody stands to follow the leader */
	int64		first_stood;	/* since when anybody does; 0: nobody does, or
								 * it is noted already */
} Decision;

extern bool le_decision_is_held_up(const Election *election, Lease *lease,
								   const Candidate *caller);
extern Reason le_decision_reason(const Decision *d);
extern void le_decision_look_who_stands(Decision *d);
extern void le_decision_make(Decision *d, const Candidate *caller);

/* renew.c */
typedef enum Renewed
{
	RENEWED,
	RENEW_ENDED,				/* it is over, or its holder is to yield */
	RENEW_BUSY,					/* another transaction has locked its row */
	RENEW_UNPROVEN				/* the proof does not cover what is new */
} Renewed;

extern bool le_renew_prove(const Lease *seen, Proof *proof);
extern Renewed le_renew_lease(Lease *lease,
							  int64 session_id, int64 term, int64 *duration,
							  const Proof *proof, const Profile *said);
extern bool le_renew_say(Lease **lease, const Profile *said);
extern Lease *le_renew_stale(const Election *election,
							 int64 term, const Proof *proof, bool *over);

/* yield.c */

/* Why a leader is asked to go, if it is no request_yield() */
#define LE_CAUSE_PAUSED		"paused"
#define LE_CAUSE_DRAINED	"drained"
#define LE_CAUSE_WITHDRAWN	"withdrawn"

extern void le_yield_ask(const Election *election, Lease *lease, bool ordered,
						 const Candidate *successor, const char *cause);
extern void le_yield_ask_for_pause(const Election *election, Lease *lease);
extern void le_yield_reserve(const Election *election,
							 Lease *lease, const Incarnation *inc,
							 const Candidate *successor);
extern bool le_yield_request(const Election *election,
							 bool *changed, int64 *next);

/* settle.c */
typedef enum Settled
{
	SETTLED_NOTHING,			/* nothing was due */
	SETTLED_CHANGED,
	SETTLED_GAVE_UP,			/* changed, and the GiveUp was carried out */

	/* nothing was done, although something may be due: */
	SETTLED_BUSY,				/* another transaction has a lock or a row */
	SETTLED_UNPROVEN,			/* the proof does not cover what is new */
	SETTLED_UNCONFIRMED,		/* standbys have not confirmed in time */
	SETTLED_GONE,				/* there is no such election any more */
	SETTLED_NOT_YET				/* settle.c goes on, and returns something
								 * else */
} Settled;

extern Settled le_settle(const Election *election, const Candidate *caller,
						 const GiveUp *give_up, const Proof *proof,
						 Lease **lease);
extern void le_settle_grant(Lease *lease,
							const Incarnation *inc, const Candidate *winner,
							int64 previous_term, int64 duration, int64 t0,
							TimestampTz at, Change *change);

/* drop.c */
extern bool le_drop_locked(const Election *election);

/* late_commit.c */
extern bool le_late_commits_end(const Election *election,
								Lease *lease, const Proof *proof,
								const Candidate *caller);

/* turn.c */

/* What a call does where an election is locked */
typedef enum TurnMode
{
	TURN_SKIPS,					/* a poll: it leaves what is busy to others */
	TURN_TRIES,					/* join(): the same, but it waits if it sits
								 * out, since no other process elects it then */
	TURN_QUEUES					/* it waits as long as the call may */
} TurnMode;

/* What to do under the election lock first; false: it is refused, try again */
typedef bool (*TurnWork) (void *arg);

typedef struct Turn
{
	TurnMode	mode;
	int64		ask_until;		/* TURN_SKIPS asks standbys until then */
	const Candidate *caller;	/* the candidate that calls; NULL: none */
	const GiveUp *give_up;		/* NULL: elect, if nobody leads */
	bool		optional;		/* the caller may lead nothing: do not ask
								 * standbys, nor wait for them */
	TurnWork	work;			/* NULL: nothing */
	void	   *arg;

	/* as the call has read them just now; NULL: the turn reads them */
	Election   *election;
	Lease	   *lease;			/* then, as the turn leaves it; NULL: it may
								 * have changed */
} Turn;

extern void le_turn_lock(const Election *election);
extern Settled le_turn(const char *name, Turn *turn);

/* begin.c */
extern bool le_begin_epoch(void);
extern bool le_begin_ensure_epoch(const Lease *lease, bool urgent,
								  int64 limit);

#endif							/* LE_DECIDE_H */
