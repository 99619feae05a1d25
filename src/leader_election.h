/*-------------------------------------------------------------------------
 *
 * leader_election.h
 *		What the parts of leader_election share.
 *
 * The parts, from the bottom up; nothing lower calls anything higher:
 *
 *	clock.c			monotonic time, the server's incarnation
 *	lock.c			the private class of advisory locks
 *	store.c			the tables: names, owner's rights, statements
 *	lease.c			the lease row: read, judge, grant, renew, end
 *	candidate.c		who stands
 *	strategy.c		in which order
 *	notify.c		what a transaction changed: NOTIFY, log, wake-ups
 *	election.c		the only place where the holder changes
 *	session.c		this session's candidacies and its view of its leases
 *	keepalive.c		noticing that this session's client is gone
 *	api.c			what the SQL functions share
 *	session_api.c	SQL functions for session candidates
 *	observe_api.c	SQL functions for observers
 *	worker.c		the background worker
 *	launcher.c		the optional launcher
 *	leader_election.c	settings, _PG_init
 *
 * All durations are microseconds unless the name says otherwise.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEADER_ELECTION_H
#define LEADER_ELECTION_H

#include "access/htup.h"
#include "compat.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "nodes/pg_list.h"
#include "storage/lock.h"
#include "utils/snapshot.h"

struct BackgroundWorkerHandle;

#define LE_EXTENSION		"leader_election"
#define LE_SCHEMA			"leader_election"
#define LE_CHANNEL			"leadership_changed"
#define LE_NAME_MAX			200	/* bytes in the name of an election or candidate */
#define LE_WAIT_LIMIT_MS	1000	/* a function's waits, all together */

#define ERRCODE_LE_NO_ELECTION		MAKE_SQLSTATE('L', 'E', '0', '0', '3')
#define ERRCODE_LE_NAME_IN_USE		MAKE_SQLSTATE('L', 'E', '0', '0', '4')
#define ERRCODE_LE_NOT_A_CANDIDATE	MAKE_SQLSTATE('L', 'E', '0', '0', '5')

/* Settings (leader_election.c) */
extern int	le_lease_duration_ms;
extern int	le_history_retention_s;
extern int	le_worker_idle_timeout_ms;
extern bool le_auto_create;
extern bool le_dead_peer_detection;

/* clock.c */
typedef struct Incarnation
{
	char	   *name;
	bool		known;			/* has a row of its own in epoch */
	int64		epoch;			/* the effective one; 0: never changed */
	int64		dropped_term;	/* new elections start above it */
	int64		first_seen;		/* monotonic; only if known */
} Incarnation;

extern int64 le_clock(void);
extern char *le_incarnation_name(Oid lease_oid);
extern Incarnation *le_incarnation_read(void);
extern void le_incarnation_settle(void);
extern int64 le_next_term(int64 last, const Incarnation *inc);

/* lock.c */
extern LOCKTAG le_session_tag(int64 session_id);
extern int64 le_session_lock_new(void);
extern void le_session_lock_release(int64 session_id);
extern bool le_session_alive(int64 session_id);
extern bool le_election_lock(const char *election, bool wait);
extern bool le_name_lock(const char *election, const char *candidate);
extern bool le_epoch_lock(void);
extern bool le_worker_lock(void);
extern void le_worker_unlock(void);
extern bool le_worker_lock_is_free(void);
extern bool le_starter_lock(void);
extern void le_starter_unlock(void);
extern void le_wake_workers(Oid database);
extern void le_wake_backend(int pid);
extern void le_wake_waiters(uint32 wait_event);
extern void le_lock_end_of_xact(void);

/* store.c */
typedef struct Store
{
	Oid			owner;
	Oid			election;
	Oid			election_pkey;
	Oid			lease;
	Oid			lease_pkey;
	Oid			candidate;
	Oid			candidate_pkey;
	Oid			history;
	Oid			epoch;
	Oid			change;
} Store;

/* The tables that a piece of work needs, to be locked before it starts */
#define LE_TABLE_ELECTION	0x01
#define LE_TABLE_LEASE		0x02
#define LE_TABLE_CANDIDATE	0x04
#define LE_TABLE_HISTORY	0x08
#define LE_TABLE_EPOCH		0x10
#define LE_TABLES			0x1F

typedef struct OwnerContext
{
	Oid			userid;
	int			sec_context;
	int			nest_level;
} OwnerContext;

typedef enum Statement
{
	LE_INSERT_ELECTION,
	LE_INSERT_LEASE,
	LE_LOCK_LEASE,
	LE_GRANT_LEASE,
	LE_VACATE_LEASE,
	LE_RENEW_LEASES,
	LE_INSERT_CANDIDATE,
	LE_UPDATE_CANDIDATE,
	LE_SIT_OUT,
	LE_LOCK_CANDIDATE,
	LE_DELETE_CANDIDATE,
	LE_PRUNE_CANDIDATES,
	LE_BEGIN_HISTORY,
	LE_LOCK_HISTORY,
	LE_END_HISTORY,
	LE_PRUNE_HISTORY,
	LE_INSERT_EPOCH,
	LE_STATEMENTS				/* their number */
} Statement;

typedef void (*RowReader) (HeapTuple tuple, Datum *values, bool *nulls,
						   void *arg);

extern bool le_store_find(Store *store);
extern void le_store_get(Store *store);
extern bool le_store_lock(Store *store, int tables, LOCKMODE mode, bool wait);
extern void le_owner_enter(OwnerContext *context, Oid owner);
extern void le_owner_leave(OwnerContext *context);
extern uint64 le_execute(Statement statement, Datum *values,
						 const char *nulls);
extern void le_scan(Oid table, Oid index, const char *election,
					Snapshot snapshot, RowReader reader, void *arg);
extern void le_wait_begin(void);
extern bool le_wait_more(void);
extern void le_wait_as_lock_timeout(void);
LE_NORETURN extern void le_busy(const char *election);

/* lease.c */
typedef enum LeaseState
{
	LEASE_VACANT,
	LEASE_LED,
	LEASE_EXPIRED,				/* the deadline has passed */
	LEASE_ORPHANED,				/* its session is provably dead */
	LEASE_FOREIGN				/* granted by another incarnation */
} LeaseState;

typedef struct Lease
{
	char	   *election;
	int64		term;			/* the present or, when vacant, the last one */
	char	   *leader;			/* NULL: vacant */
	char	   *kind;
	int64		session_id;		/* 0: none */
	int			backend_pid;
	bool		auto_renew;
	Datum		metadata;		/* 0: none */
	TimestampTz acquired_at;
	TimestampTz renewed_at;
	TimestampTz expires_at;
	int64		acquired_mono;
	int64		deadline_mono;
	int64		duration;
	char	   *incarnation;	/* NULL: never granted */
	bool		yielding;
	TimestampTz free_at;
	int64		free_mono;		/* 0: free */
	int64		free_for;
	bool		own_write;		/* written by the running transaction */
} Lease;

extern Lease *le_lease_read(const Store *store, const char *election,
							Snapshot snapshot);
extern List *le_lease_read_all(const Store *store);
extern LeaseState le_lease_state(const Lease *lease, const char *incarnation,
								 int64 now);
extern bool le_lease_lock(const char *election);
extern void le_lease_grant(const Lease *lease, const char *candidate,
						   int64 session_id, int64 term, int64 duration,
						   int64 t0, TimestampTz at, const char *incarnation);
extern void le_lease_vacate(const Lease *lease, int64 free_mono, int64 now,
							TimestampTz at, const char *incarnation);
extern uint64 le_lease_renew(List *leases, const int64 *durations, int64 t0,
							 TimestampTz at);
extern int64 le_lease_free_mono(const Lease *lease, const Incarnation *inc);

/* candidate.c */
typedef struct Candidate
{
	char	   *election;
	char	   *candidate;
	char	   *kind;
	int			rank;
	int64		progress;
	Datum		metadata;		/* 0: none */
	bool		auto_renew;
	int64		session_id;
	int			backend_pid;
	TimestampTz joined_at;
	int64		place;
	int64		sits_out;		/* the term that it gave up, -1: none */
} Candidate;

/* What a call says of its candidacy; NULL pointers: nothing */
typedef struct Profile
{
	const int32 *rank;
	const int64 *progress;
	const Datum *metadata;
	const bool *auto_renew;
} Profile;

typedef enum StandResult
{
	STAND_OK,
	STAND_BUSY,					/* somebody is writing that row right now */
	STAND_IN_USE				/* the name of another live session */
} StandResult;

extern List *le_candidates_read(const Store *store, const char *election);
extern bool le_candidate_alive(const Candidate *candidate);
extern StandResult le_candidate_stand(const Store *store,
									  const char *election,
									  const char *name, int64 session_id,
									  const char *role,
									  const Profile *profile);
extern bool le_candidate_sit_out(const char *election, const char *name,
								 int64 session_id, int64 term, int64 place);
extern bool le_candidate_lock(const Candidate *candidate);
extern bool le_candidate_withdraw(const char *election, const char *name,
								  int64 session_id);
extern void le_candidates_prune(List *candidates);

/* strategy.c */
typedef struct Strategy
{
	const char *name;
	list_sort_comparator order;	/* of Candidate pointers: who comes first */
} Strategy;

extern const Strategy *le_strategy(const char *name);

/* notify.c */
typedef struct Change
{
	const char *election;
	const char *channel;		/* NULL: the default one */
	const char *event;
	int64		term;
	const char *leader;			/* NULL: vacant */
	const char *previous;		/* NULL: was vacant */
	const char *reason;			/* why previous ended */
	int			winner_pid;		/* whom to wake; 0: nobody */
} Change;

extern void le_notify(const Store *store, const Change *change, TimestampTz at);
extern void le_notify_durable(void);
extern void le_notify_worker(void);
extern void le_notify_wait_limit(int64 limit);
extern void le_notify_pre_commit(void);
extern void le_notify_commit(void);
extern void le_notify_abort(void);
extern uint32 le_observer_wait_event(void);

/* election.c */
typedef struct Election
{
	char	   *name;
	char	   *strategy;
	int64		lease_duration;
	int			quorum;
	int64		takeover_delay;
	char	   *candidate_role;
	char	   *channel;
} Election;

/* How a holder ends its own leadership */
typedef struct GiveUp
{
	int64		session_id;		/* the holder's */
	const char *reason;
	const char *detail;			/* NULL: nothing to add */
	const char *to_candidate;	/* NULL: whoever is next */
	int64		hold;			/* 0: none */
	bool		sits_out;
} GiveUp;

typedef struct Settled
{
	bool		busy;			/* some row was locked, nothing was done */
	bool		changed;
	bool		gave_up;		/* the GiveUp was carried out */
} Settled;

extern Election *le_election_read(const Store *store, const char *name);
extern Election *le_election_get(const Store *store, const char *name);
extern Election *le_election_get_or_create(const Store *store,
										   const char *name, bool wait);
extern List *le_election_order(const Store *store, const Election *election,
							   const Lease *lease);
extern bool le_election_passes_over(const Candidate *c, const Lease *lease);
extern Settled le_election_settle(const Store *store,
								  const Election *election,
								  int64 caller_session_id,
								  const GiveUp *give_up);
extern int64 le_election_grace_mono(const Election *election,
									const Lease *lease,
									const Incarnation *inc);

/* session.c */
typedef struct Candidacy
{
	char		election[LE_NAME_MAX + 1];	/* hash key */
	char		candidate[LE_NAME_MAX + 1];
	NameData	role;			/* who made it */
	int64		session_id;
	LOCKTAG		lock;
	const LOCALLOCK *lock_entry;
	Oid			lease_oid;		/* which extension it belongs to */

	/* what the running transaction did to it */
	bool		made;
	char		former[LE_NAME_MAX + 1];	/* name, if it has left and joined */
	bool		withdrawn;
	bool		stepped_down;
	bool		campaigning;	/* ends with the campaign that made it */

	/* the cached view of the lease row */
	uint64		generation;		/* of the row that was read; 0: none */
	int64		term;			/* 0: does not lead */
	int64		deadline;
	int64		next_read;
} Candidacy;

extern Candidacy *le_session_find(const char *election, Size length);
extern Candidacy *le_session_add(const Store *store, const char *election,
								 const char *candidate, const char *role,
								 int64 session_id, bool campaigning);
extern int64 le_session_id(void);
extern void le_session_withdraw(Candidacy *candidacy);
extern void le_session_return(Candidacy *candidacy, const char *candidate);
extern void le_session_drop(Candidacy *candidacy);
extern List *le_session_candidacies(void);
extern int64 le_session_term(Candidacy *candidacy);
extern bool le_session_holds_lock(const Candidacy *c);
extern bool le_session_owns(const Candidacy *candidacy);
extern void le_session_init(void);

/* keepalive.c */
extern void le_keepalive_tighten(int64 lease_duration);
extern void le_keepalive_restore(void);

/* worker.c */
extern void le_worker_ensure(bool urgent);
extern bool le_worker_start(Oid database, bool launched,
							struct BackgroundWorkerHandle **handle);
extern PGDLLEXPORT void leader_election_worker_main(Datum arg);

/* launcher.c */
extern void le_launcher_register(void);
extern PGDLLEXPORT void leader_election_launcher_main(Datum arg);

#endif							/* LEADER_ELECTION_H */
