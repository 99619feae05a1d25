/*-------------------------------------------------------------------------
 *
 * worker.h
 *		What the parts of the background worker share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_WORKER_H
#define LE_WORKER_H

#include "decide/decide.h"

#define MS				INT64CONST(1000)
#define LOCK_WAIT_MS	50		/* one busy election holds up the others so
								 * long */
#define RETRY			(10 * MS)	/* after a table was locked, and the like */
#define TIDY_PAUSE		(1000 * MS) /* before a dead candidate's row is
									 * removed */

/* attempt.c */
typedef enum Outcome
{
	DONE,
	BUSY,						/* a lock was not free in time, or cancelled */
	FAILED
} Outcome;

typedef void (*Work) (void *arg);

extern MemoryContext le_worker_context; /* reset before each round */

extern void le_attempt_init(void);
extern Outcome le_guard(Work work, void *arg);
extern Outcome le_in_transaction(Work work, void *arg, const char *activity);
extern int64 le_attempt_at(const char *key);
extern void le_attempt_ended(const char *key, Outcome outcome,
							 const char *activity, int64 *next);
extern bool le_may_attempt(const char *key);
extern bool le_attempt(const char *key, Work work, void *arg,
					   const char *activity, int64 *next);
LE_NORETURN extern void le_postpone(const char *why);

/* What one look at the tables has found */
typedef struct Pass
{
	bool		installed;
	Incarnation *inc;			/* NULL: some table was locked */
	bool		new_incarnation;
	bool		work;			/* there are candidates or leaders */
	int64		next;			/* when to look again */
	int64		renew_at;		/* when the next lease is to be renewed */
	List	   *settle;			/* leases, as they were seen */
	List	   *preempt;		/* leases whose leader is to yield, or no more */
	List	   *dead;			/* candidates, by the names of their rows */
	int64		looked_at;		/* the leases */
	bool		woken;			/* since the last round */
} Pass;

extern bool le_is_to_renew(const Pass *pass);

/* led.c */
extern void le_led_begin(void);
extern bool le_led_alive(int64 session_id);
extern void le_led_note(int64 session_id, const char *election);
extern void le_led_end(void);
extern List *le_led_orphaned(void);

/* standing.c: who stands in an election */
typedef struct Standing
{
	char		election[LE_NAME_MAX + 1];	/* hash key */
	int			candidates;
	int64		sits_out;		/* the lowest of all candidates, -1: none */
	int64		session_sits_out;	/* the same of session candidates */
} Standing;

extern bool le_standing_look(const Store *store, Pass *pass);
extern void le_standing_look_again(void);
extern const Standing *le_standing_find(const char *election);

/* renewal.c */
extern void le_renewal_begin(void);
extern bool le_renewal_note(const Lease *lease);
extern void le_renewal_end(void);
extern int64 le_renewal_due(void);
extern void le_renew_all(Pass *pass);

/* tidy.c */
extern void le_tidy(Pass *pass);

/* announce.c */
extern void le_announce_begin(void);
extern bool le_announce_look(Store *store);
extern void le_announce_lease(const Store *store, const Lease *lease,
							  const Incarnation *inc, int64 *next);
extern void le_announce_looked(const Store *store,
							   const Incarnation *inc);
extern void le_announce_add(const char *election);
extern int	le_announce_pending(void);
extern void le_announce(Pass *pass);

/* launcher.c */
extern void le_launcher_register(void);
extern PGDLLEXPORT void leader_election_launcher_main(Datum arg);

/* upkeep.c */
typedef struct Upkeep
{
	bool		installed;		/* the extension is there */
	bool		work;			/* there are candidates or leaders */
	bool		untold;			/* listeners have not been told everything */
	int64		next;			/* when to look again */
	bool		woken;			/* since the last round */
} Upkeep;

extern void le_upkeep(Upkeep *found);

/* worker.c */
extern PGDLLEXPORT void leader_election_worker_main(Datum arg);

#endif							/* LE_WORKER_H */
