/*-------------------------------------------------------------------------
 *
 * worker.h
 *		The floor of the background processes: what the worker's parts share.
 *
 * The worker works in rounds (upkeep.c).  A round renews leases, scans the
 * tables, and does what the scan has found due.  What may fail is an attempt
 * (attempt.c): it is undone and tried again later.
 *
 *	worker		the process: how it begins, sleeps and ends
 *	upkeep		a round, and its scan of the tables
 *	elect		settling elections, and asking leaders to yield
 *	renewal		renewing the leases of live sessions
 *	led			what is remembered of the leases that the last scan found led
 *	standing	who stands, found in steps
 *	pending		of which elections listeners have not been told everything
 *	announce	the transaction that tells listeners
 *	notify		what it tells of one election
 *	tidy		removing dead candidates, dropped elections and old history
 *	round		when a round has to end, and when the next one begins
 *	attempt		doing what may fail
 *	launcher	starting workers with the server
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_WORKER_H
#define LE_WORKER_H

#include "decide/decide.h"
#include "utils/hsearch.h"

#define MS				INT64CONST(1000)
#define RETRY			(10 * MS)	/* after a table was locked, say */
#define TIDY_PAUSE		(1000 * MS) /* before a dead candidate is removed */
#define LONGEST_WORK	(25 * MS)	/* after a wake-up, before a scan */

/* An election in which a round has something to do */
typedef struct Due
{
	const char *election;

	/* as the scan has seen it, if it is to be settled */
	int64		duration;		/* of its leases */
	TransactionId vacant_xmin;	/* le_proof_vacant_xmin() */
} Due;

/*
 * A round of the worker
 */
typedef struct Round
{
	bool		woken;			/* our latch was set since the last round */
	bool		installed;		/* the extension is there */
	bool		work;			/* there are candidates or leaders */
	int64		next;			/* when to begin the next round */
	int64		renew_at;		/* when to renew the next lease */
	List	   *pending;		/* Due: to notify listeners of */
	bool		untold;			/* listeners may not have been told of all */

	/* when the scan began with the leases; till then: when the round began */
	int64		scanned_at;

	/* what the scan of the tables has found */
	Incarnation *inc;			/* NULL: some table was locked */
	bool		new_incarnation;	/* an epoch is to begin */
	List	   *settle;			/* Due: to be settled */
	List	   *preempt;		/* Due: a yield is to be asked or undone */
	List	   *dead;			/* candidates whose rows are to be removed */
	List	   *dropped;		/* names of elections that have been dropped */
} Round;

/* worker.c */
extern PGDLLEXPORT void leader_election_worker_main(Datum arg);

/* attempt.c */
extern MemoryContext le_worker_context; /* reset before each round */

typedef enum Outcome
{
	DONE,
	BUSY,						/* a lock was not free in time, or cancelled */
	FAILED
} Outcome;

/* What can fail again and again, each with pauses of its own */
typedef enum AttemptKind
{
	/* with what all elections need */
	ATTEMPT_SCAN,
	ATTEMPT_BEGIN_EPOCH,
	ATTEMPT_PROVE,
	ATTEMPT_RENEW_ALL,
	ATTEMPT_TIDY,
	ATTEMPT_PRUNE,
	ATTEMPT_MOVE_DROPPED,

	/* with one election */
	ATTEMPT_RENEW,
	ATTEMPT_PREEMPT,
	ATTEMPT_SETTLE,
	ATTEMPT_ANNOUNCE
} AttemptKind;

typedef void (*Work) (void *arg);

extern Outcome le_attempt_guard(Work work, void *arg, const char *activity);
pg_noreturn extern void le_attempt_report_busy(const char *why);
extern bool le_attempt(AttemptKind kind, const char *election, Work work,
					   void *arg, int64 *next);
extern int64 le_attempt_paused_until(AttemptKind kind, const char *election);
extern void le_attempt_ended(AttemptKind kind, const char *election,
							 Outcome outcome, int64 *next);
extern void le_attempt_again(void);
extern void le_attempt_forget(int64 *next);

/* led.c */
/* A lease that the worker renews */
typedef struct Renewal
{
	/* as the scan has seen it, or as it was renewed since */
	const char *election;
	int64		session_id;
	int64		term;
	int64		deadline;
	int64		duration;
	bool		over;			/* not to be renewed: the next scan decides */

	/* what the running transaction does to it */
	int64		configured;		/* the election's lease_duration */
	bool		ends;			/* it is over: renew it no more */
	int64		new_deadline;	/* 0: it is not renewed */
	int64		new_duration;
} Renewal;

extern void le_led_begin_scan(void);
extern bool le_led_note(const Lease *lease);
extern void le_led_end_scan(void);
extern List *le_led_orphaned(void);
extern List *le_led_renewals(void);

/* standing.c */
/* Who stands in an election */
typedef struct Standing
{
	char		election[LE_NAME_MAX + 1];	/* hash key */
	int			candidates;		/* live or not */
	int			live;
	bool		is_seat;		/* of a group */
	int			drained;		/* so many of the live ones ... */
	int			capped;			/* ... and these have enough other seats */
	int64		sits_out;		/* the lowest of the others; -1: one has none */
	int64		session_sits_out;	/* the same of session candidates */
} Standing;

extern bool le_standing_scan(Round *round);
extern void le_standing_scan_again(void);
extern const Standing *le_standing_find(const char *election);

/* renewal.c */
extern int64 le_renewal_due(void);
extern void le_renewal_all(Round *round);

/* elect.c */
extern bool le_elect_orphaned(Round *round);
extern bool le_elect_all(Round *round);
extern void le_elect_preempt_all(Round *round);

/* pending.c */
extern bool le_pending_begin_scan(void);
extern void le_pending_scan_lease(Round *round, const Lease *lease);
extern void le_pending_end_scan(Round *round);
extern void le_pending_remember(const Mark *mark);
extern void le_pending_forget(const char *election);
extern void le_pending_note_dropped(const char *election);

/* notify.c */
/* What came of telling listeners of an election */
typedef enum Notified
{
	NOTIFIED_ALL,
	NOTIFIED_PART,				/* there is more than may be told at once */
	NOTIFIED_DROPPED,			/* all; the election is gone, and its mark */
	NOTIFIED_LATER				/* the mark's row or the name is locked */
} Notified;

extern Notified le_notify(const char *election,
						  Snapshot snapshot, int *left, Mark **mark);

/* announce.c */
extern void le_announce(Round *round);

/* tidy.c */
extern void le_tidy_scan(Round *round);
extern void le_tidy(Round *round);

/* round.c */
extern bool le_round_is_to_renew(const Round *round);
extern void le_round_again(Round *round);
extern Due *le_round_note(List **list, const char *election);
extern List *le_round_in_turn(List *list, const char *from);

/* upkeep.c */
extern int64 le_upkeep_watch_at(void);
extern bool le_upkeep_sees_roles(void);
extern void le_upkeep(Round *round);

/* launcher.c */
extern void le_launcher_register(void);
extern PGDLLEXPORT void leader_election_launcher_main(Datum arg);

#endif							/* LE_WORKER_H */
