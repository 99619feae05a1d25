/*-------------------------------------------------------------------------
 *
 * api.h
 *		What the SQL-callable functions share: arguments, results, waits.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_API_H
#define LE_API_H

#include "session/session.h"
#include "utils/tuplestore.h"

#define LE_LONGEST_HOLD		(366 * USECS_PER_DAY)
#define LE_LONGEST_TIMEOUT	(100000 * USECS_PER_DAY)
#define LE_LONGEST_REASON	1000	/* bytes; why it is paused or drained */
#define LE_EVERYWHERE		"(all)" /* no one election, in messages */

/*
 * A row of a result, whose columns are added in their order.  One to which none
 * was added is all NULL.
 */
typedef struct ResultRow
{
	int			columns;
	Datum		values[LE_MAX_COLUMNS];
	bool		nulls[LE_MAX_COLUMNS];
} ResultRow;

#define LE_ADD(result, datum) \
	((result)->values[(result)->columns++] = (datum))
#define LE_ADD_IF(result, condition, datum) \
	((condition) ? (void) LE_ADD(result, datum) : \
	 (void) ((result)->nulls[(result)->columns++] = true))

/* call.c */
extern void le_call_begin(BoundedWaits *waits, const char *election, int tables,
						  LOCKMODE mode);
extern void le_call_enter(BoundedWaits *waits, const char *election, int tables,
						  LOCKMODE mode);
extern void le_call_check_block(const char *call, bool in_transaction_block);
extern void le_call_check(const char *call, bool in_transaction_block);
extern void le_call_check_function(const char *call);
extern char *le_call_election(FunctionCallInfo fcinfo, const char *call);
extern bool le_call_is_atomic(FunctionCallInfo fcinfo);
extern Datum le_call_result(FunctionCallInfo fcinfo, ResultRow *result);
extern void le_call_put(FunctionCallInfo fcinfo, ResultRow *result);
extern void le_call_return_grant(FunctionCallInfo fcinfo, const Lease *lease,
								 bool election);
extern bool le_call_ask_unwanted(const char *name);
extern Election *le_call_get_owned(const char *name);
extern void le_call_check_new_owner(const Role *owner);
extern Election *le_call_lock_owned(const char *name, Lease **lease);
extern void le_call_check_candidate_role(const Election *election,
										 const Role *role);
pg_noreturn extern void le_call_report_name_in_use(const Candidate *who);
pg_noreturn extern void le_call_report_not_owner(const char *election,
												 const char *candidate,
												 const Role *role);
pg_noreturn extern void le_call_report_not_its_owner(const char *what,
													 const char *name,
													 const Role *owner,
													 const char *alter);
extern int	le_call_err_only_role(const char *done, const Role *role);

/* arg.c */
extern char *le_arg_text(FunctionCallInfo fcinfo, int n, const char *what,
						 int least, int most);
extern char *le_arg_name(FunctionCallInfo fcinfo, int n, const char *what);
extern int64 le_arg_interval(FunctionCallInfo fcinfo, int n, const char *what,
							 int64 shortest, int64 longest);
extern int64 le_arg_hold(FunctionCallInfo fcinfo, int n, const char **detail);
extern void le_arg_said(FunctionCallInfo fcinfo, int first, Profile *profile);
extern void le_arg_profile(FunctionCallInfo fcinfo, int first,
						   bool with_auto_renew, Profile *profile);

extern bool le_arg_settings(FunctionCallInfo fcinfo, const Field *settings,
							bool of_group, const void *checked, void *to);

/* observed.c */
#define LE_MOST_TERMS		1000	/* that are read of an election's history */

/* What the history of the last hour tells */
typedef struct Past
{
	const Term *last;			/* that ended; NULL: none has */
	int			begun;			/* terms, lately */
	int			ended[REASON_COUNT];	/* terms, lately, by their reasons */
} Past;

extern void le_observed_past(const Lease *lease, Past *past);
extern TimestampTz le_observed_vacant_since(const Lease *lease,
											const Past *past);
extern int	le_observed_table(const LOCKTAG *tag, bool *is_key);
extern bool le_observed_led(const Lease *lease);
extern int64 le_observed_remaining(const Lease *lease);
extern Obstacle le_observed_obstacle(Obstacle obstacle, const char *election,
									 bool has_worker,
									 const WorkerTrouble *trouble);
extern Obstacle le_observed_obstacle_now(Obstacle obstacle,
										 const char *election);
extern View *le_observed_look(const Election *election,
							  const Lease *lease, bool led, const Pause *pause,
							  Turnout *turnout, Vacancy *vacancy);
extern const char *le_observed_waiting_for(const Election *election,
										   const Turnout *turnout,
										   const Vacancy *vacancy);
extern const Pause *le_observed_pause(const Election *election, bool *ends);

/* standbys.c */
typedef struct SyncStandbys
{
	int			needed;
	int			connected;
	uint64		unconfirmed;	/* bytes of WAL */
	int64		silence;		/* since they last answered; 0: too few are
								 * connected */
} SyncStandbys;

extern bool le_standbys_observed(SyncStandbys *result);

/* Locks on tables that nobody but an operator takes: they keep our writes, or
 * reads, waiting */
#define LE_STRONG_MODES \
	(LOCKBIT_ON(ShareLock) | LOCKBIT_ON(ShareRowExclusiveLock) | \
	 LOCKBIT_ON(ExclusiveLock) | LOCKBIT_ON(AccessExclusiveLock))

/* process.c */
extern bool le_process_shows(int pid);
extern char *le_process_text(int pid);
extern const char *le_process_idle(int pid, TimestampTz *since);
extern char *le_process_session_text(const Candidate *c, bool *own);

/* poll.c */
typedef struct Poll
{
	MemoryContext context;		/* of one poll */
	MemoryContext caller;
	int64		give_up_at;		/* monotonic */
} Poll;

extern void le_poll_connect(Poll *poll, FunctionCallInfo fcinfo,
							int timeout_arg);
extern void le_poll_begin(Poll *poll);
extern void le_poll_commit(Poll *poll);
extern bool le_poll_sleep(const Poll *poll, int64 until, uint32 wait_event);
extern void le_poll_end(Poll *poll);

/* members.c */
extern void le_members_warn(void);

/* admin_api.c */
extern void le_admin_see_to_epoch(const char *name);
extern void le_admin_alter_owned(const char *name, FunctionCallInfo fcinfo,
								 bool of_group, const Election *checked);

/* detached_api.c */
extern void le_detached_check_holder(const Lease *lease, int64 term,
									 const char *instead);
extern bool le_detached_is_over(const Lease *lease, int64 term);

/* acquire.c */
/* An acquire(), or what acquire_any() asks of one seat */
typedef struct Acquisition
{
	Candidate	who;
	Profile		profile;
	bool		is_seat;		/* only of a group: an election is not made */
	Lease	   *lease;			/* as it was read last; NULL: read it again */
	bool		led;			/* the call has found it led; then not all
								 * tables are locked yet */
	int64		lease_duration; /* of the election */
	StandResult stood;
	bool		refused;		/* because of its run */
	uint64		changes;		/* as le_acquire_is_in_vain() has counted them */
} Acquisition;

extern bool le_acquire_is_repeated(const Lease *lease, const Candidate *who);
extern bool le_acquire_is_in_vain(Acquisition *a);
extern void le_acquire_note_in_vain(const Acquisition *a);
extern bool le_acquire_later(Acquisition *a);
extern Lease *le_acquire_lease(Acquisition *a);

/* stand.c */
/* What a call stands for, and how far it got */
typedef struct StandCall
{
	Candidate	who;			/* session_id 0: there is no candidacy yet */
	Profile		profile;
	Oid			lease_oid;		/* which extension the candidacy belongs to */
	bool		made;			/* the candidacy is this call's own */
	bool		stands;			/* its row has been written */
	bool		is_seat;		/* only of a group: an election is not made */
	bool		polls;			/* of a campaign: what cannot be had at once
								 * is left for the next poll */
	int64		term;			/* of a committed row; 0: not known to lead */
	int64		ask_until;		/* when a campaign stops asking standbys */
	int64		deadline;		/* of the lease, if this session leads */

	/* as le_stand_begin() has read them just now; NULL: read them again */
	Election   *election;
	Lease	   *lease;
} StandCall;

extern void le_stand_args(FunctionCallInfo fcinfo, int first_of_profile,
						  StandCall *s);
extern bool le_stand_begin(StandCall *s);
extern int64 le_stand_elect(StandCall *s);
extern int64 le_stand(StandCall *s);
extern Candidacy *le_stand_candidacy(const StandCall *s);
extern Candidacy *le_stand_find(const char *election, bool look);
extern void le_stand_check_owner(const Candidacy *c);
extern bool le_stand_has_row(const char *election,
							 const char *candidate, int64 session_id);
extern bool le_stand_leads(const Lease *lease, int64 session_id);
pg_noreturn extern void le_stand_report_reset(const char *election,
											  const char *candidate);

#endif							/* LE_API_H */
