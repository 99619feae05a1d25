/*-------------------------------------------------------------------------
 *
 * leader_election.h
 *		What the parts of leader_election share.
 *
 * The parts, from the bottom up; nothing lower calls anything higher:
 *
 *	clock.c			monotonic time, the server's incarnation
 *	lock.c			the private class of advisory locks
 *	store.c			the tables: where they are, how long to wait for them
 *	row.c			their rows: found, locked and written by key
 *	notify.c		what a transaction changed: log, wake-ups
 *	epoch.c			the incarnations so far, and the terms that follow
 *	lease.c			the lease row: read, judge, grant, renew, end
 *	proof.c			that synchronous standbys follow
 *	candidate.c		who stands
 *	history.c		a row for each term
 *	mark.c			what listeners have been told
 *	config.c		what an election is: its row of settings
 *	strategy.c		the rules: in which order, and who makes way
 *	seats.c			how many elections a candidate leads
 *	ranking.c		the rules applied: who is next
 *	election.c		the only place where the holder changes
 *	keepalive.c		noticing that this session's client is gone
 *	session.c		this session's candidacies and its view of its leases
 *	start.c			what must be there first: a worker, an epoch
 *	api.c			what the SQL functions share
 *	session_api.c	SQL functions for session candidates
 *	lease_api.c		SQL functions for detached candidates
 *	admin_api.c		SQL functions for operators
 *	observe_api.c	SQL functions for observers
 *	fence.c			transactions that commit only if their author leads
 *	attempt.c		the background worker's way to do what may fail
 *	renewal.c		the leases that it renews
 *	tidy.c			what it removes
 *	announce.c		what it tells listeners
 *	led.c			which sessions lead what, as its last look has found
 *	standing.c		who stands, looked at in steps
 *	upkeep.c		what the background worker does in a round
 *	worker.c		its process: how it begins, sleeps and ends
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
#include "access/sdir.h"
#include "access/skey.h"
#include "compat.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "nodes/lockoptions.h"
#include "nodes/pg_list.h"
#include "storage/lock.h"
#include "utils/snapshot.h"

struct BackgroundWorkerHandle;

#define LE_EXTENSION		"leader_election"
#define LE_SCHEMA			"leader_election"
#define LE_CHANNEL			"leadership_changed"
#define LE_NAME_MAX			200	/* bytes in the name of an election or candidate */
#define LE_METADATA_MAX		8192	/* bytes of jsonb, not compressed */
#define LE_SHORTEST_LEASE_MS	100
#define LE_LONGEST_LEASE_MS		86400000
#define LE_WAIT_LIMIT_MS	1000	/* a function's waits, all together */
#define LE_LOCKS_OF_CHANGE	6	/* entries in the lock table, at most */

#define ERRCODE_LE_NOT_LEADER		MAKE_SQLSTATE('L', 'E', '0', '0', '1')
#define ERRCODE_LE_LOST				MAKE_SQLSTATE('L', 'E', '0', '0', '2')
#define ERRCODE_LE_NO_ELECTION		MAKE_SQLSTATE('L', 'E', '0', '0', '3')
#define ERRCODE_LE_NAME_IN_USE		MAKE_SQLSTATE('L', 'E', '0', '0', '4')
#define ERRCODE_LE_NOT_A_CANDIDATE	MAKE_SQLSTATE('L', 'E', '0', '0', '5')
#define ERRCODE_LE_SESSION_RESET	MAKE_SQLSTATE('L', 'E', '0', '0', '6')

/* Settings (leader_election.c) */
extern int	le_lease_duration_ms;
extern int	le_history_retention_s;
extern int	le_worker_idle_timeout_ms;
extern bool le_auto_create;
extern bool le_dead_peer_detection;

/* clock.c */
extern int64 le_clock(void);
extern char *le_incarnation_name(Oid lease_oid);
extern char *le_incarnation_name_try(Oid lease_oid);

/* lock.c */
extern LOCKTAG le_session_tag(int64 session_id);
extern int64 le_session_lock_new(void);
extern void le_session_lock_release(int64 session_id);
extern bool le_session_alive(int64 session_id);
extern void le_sessions_remember(void);
extern void le_reset_mark(void);
extern void le_reset_unmark(void);
extern bool le_was_reset(int pid);
extern bool le_election_lock(const char *election, bool wait);
extern void le_election_unlock(const char *election);
extern LOCKTAG le_election_tag(const char *election);
extern bool le_election_lock_shared(const LOCKTAG *tag, bool wait);
extern int	le_election_lock_order(const LOCKTAG *a, const LOCKTAG *b);
extern bool le_election_lock_is_mine(void);
extern bool le_name_lock(const char *election, const char *candidate);
extern bool le_name_lock_shared(const char *election);
extern void le_name_unlock(const char *election, const char *candidate);
extern void le_name_unlock_shared(const char *election);
extern bool le_epoch_lock(void);
extern bool le_epoch_lock_is_mine(void);
extern bool le_worker_lock(void);
extern void le_worker_unlock(void);
extern bool le_worker_lock_is_free(void);
extern bool le_next_worker_lock(void);
extern void le_next_worker_unlock(void);
extern bool le_starter_lock(void);
extern void le_starter_unlock(void);
extern bool le_lock_room(int locks);
extern int64 le_spares_keep(void);
extern bool le_spares_release(void);
extern void le_wake_workers(Oid database);
extern void le_wake_backend(int pid);
extern void le_wake_waiters(uint32 wait_event);
extern void le_lock_end_of_xact(void);

/* store.c */
typedef struct Store
{
	Oid			election;
	Oid			election_pkey;
	Oid			lease;
	Oid			lease_pkey;
	Oid			candidate;
	Oid			candidate_pkey;
	Oid			history;
	Oid			history_pkey;
	Oid			history_acquired_at;
	Oid			epoch;
	Oid			epoch_pkey;
	Oid			announced;
	Oid			announced_pkey;
	Oid			change;
} Store;

/* The tables that a piece of work needs, to be locked before it starts */
#define LE_TABLE_ELECTION	0x01
#define LE_TABLE_LEASE		0x02
#define LE_TABLE_CANDIDATE	0x04
#define LE_TABLE_HISTORY	0x08
#define LE_TABLE_EPOCH		0x10
#define LE_TABLES			0x1F	/* what a change of holder needs */
#define LE_TABLE_ANNOUNCED	0x20

extern uint64 le_changes;
extern const char *const le_busy_hint;

extern bool le_store_find(Store *store);
extern void le_store_get(Store *store);
extern bool le_store_lock(Store *store, int tables, LOCKMODE mode, bool wait);
extern bool le_lock_indexes(Oid table, LOCKMODE mode);
extern void le_wait_begin(void);
extern bool le_wait_more(void);
extern int64 le_wait_left(void);
extern bool le_election_queue(const char *election);
extern bool le_election_queue_shared(const LOCKTAG *tag);
LE_NORETURN extern void le_report_dropped(void);
LE_NORETURN extern void le_busy(const char *election);

/* row.c */
#define LE_MAX_COLUMNS		32

typedef struct Key
{
	int			columns;
	ScanKeyData column[2];
} Key;

typedef struct Row
{
	Oid			table;
	ItemPointerData tid;
	HeapTuple	tuple;			/* what values point into */
	Datum		values[LE_MAX_COLUMNS];
	bool		nulls[LE_MAX_COLUMNS];
} Row;

/* Rows of a table that are found by key, one after the other */
typedef struct Finder
{
	Relation	rel;
	Relation	index;
	Snapshot	snapshot;
	bool		latest;			/* it is registered by le_find_begin() */
	struct IndexScanDescData *scan;
	struct TupleTableSlot *slot;	/* what was found last */
} Finder;

extern uint64 le_lasting_writes;
extern uint64 le_slow_writes;

/* False: enough */
typedef bool (*RowReader) (HeapTuple tuple, Datum *values, bool *nulls,
						   void *arg);

typedef struct WalMark
{
	uint64		end;			/* of what the transaction has logged, by then */
	uint64		writes;
} WalMark;

#define LE_SET(row, column, datum) \
	((row)->values[column] = (datum), (row)->nulls[column] = false)
#define LE_SET_NULL(row, column) \
	((row)->values[column] = (Datum) 0, (row)->nulls[column] = true)
#define LE_SET_TEXT(row, column, string) \
	LE_SET(row, column, CStringGetTextDatum(string))
#define LE_SET_NAME(row, column, string) \
	LE_SET(row, column, DirectFunctionCall1(namein, CStringGetDatum(string)))

/* How far a walk along an index has come: the entry that it has passed last */
typedef struct Walk
{
	bool		begun;
	TimestampTz value;
	ItemPointerData tid;
} Walk;

extern void le_wal_begin(WalMark *mark);
extern void le_wal_end(const WalMark *mark);
extern Key	le_key(const char *first);
extern Key	le_key_text(const char *first, const char *second);
extern Key	le_key_int64(const char *first, int64 second);
extern Key	le_key_from(const char *first, int64 second);
extern Key	le_key_after(const char *first);
extern Key	le_key_text_after(const char *first, const char *second);
extern void le_scan(Oid table, Oid index, Key *key, Snapshot snapshot,
					RowReader reader, void *arg);
extern void le_scan_ordered(Oid table, Oid index, Key *key,
							ScanDirection direction, Snapshot snapshot,
							RowReader reader, void *arg);
extern bool le_walk(Oid table, Oid index, TimestampTz end, int limit,
					Walk *walk, RowReader reader, void *arg);
extern Finder *le_find_begin(Oid table, Oid index, int columns,
							 Snapshot snapshot);
extern bool le_find(Finder *finder, Key *key);
extern Row *le_find_lock(Finder *finder, Key key, LockTupleMode mode,
						 bool *busy);
extern void le_find_end(Finder *finder);
extern void le_read_one(Oid table, Oid index, Key *key, Snapshot snapshot,
						RowReader reader, void *arg);
extern Row *le_row_new(Oid table);
extern Row *le_row_lock(Oid table, Oid index, Key key, LockTupleMode mode,
						bool *busy);
extern void le_row_insert(Row *row);
extern void le_row_update(Row *row);
extern void le_row_delete(Row *row);

/* notify.c */
typedef struct Change
{
	const char *election;
	int64		term;
	const char *leader;			/* NULL: vacant */
	const char *previous;		/* NULL: was vacant */
	const char *reason;			/* why previous ended */
	bool		yield;			/* the leader is asked to yield */
	int			winner_pid;		/* whom to wake; 0: nobody */
} Change;

extern char *le_quote(const char *name);
extern void le_notify(const Store *store, const Change *change);
extern void le_notify_durable(void);
extern void le_notify_worker(void);
extern bool le_worker_start(Oid database, bool launched,
							struct BackgroundWorkerHandle **handle);
extern int64 le_worker_started_at;
extern void le_set_locally(const char *name, const char *value);
extern void le_bound_commit(void);
extern void le_notify_pre_commit(void);
extern void le_notify_pre_prepare(void);
extern void le_notify_commit(void);
extern void le_notify_abort(void);
extern uint32 le_observer_wait_event(void);

/* epoch.c */
typedef struct Incarnation
{
	char	   *name;
	bool		known;			/* has a row of its own in epoch */
	int64		epoch;			/* the effective one; 0: never changed */
	int64		dropped_term;	/* new elections start above it */
	int64		first_seen;		/* monotonic; only if known */
} Incarnation;

extern Incarnation *le_incarnation_read(void);
extern bool le_incarnation_settle(const Store *store, bool foreign,
								  int64 highest_term);
extern bool le_incarnation_note_dropped(const Store *store,
										const Incarnation *inc, int64 term);
extern int64 le_next_term(int64 last, const Incarnation *inc);

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
	int64		previous_term;	/* that it continues, after a failover; 0: none */
	char	   *leader;			/* NULL: vacant */
	bool		incomplete;		/* led, but it lacks what every grant writes */
	int64		session_id;		/* 0: none */
	int			backend_pid;
	char	   *role;			/* "" (nobody's): not there */
	bool		auto_renew;
	int			rank;
	int64		progress;
	Datum		metadata;		/* 0: none */
	TimestampTz acquired_at;
	TimestampTz renewed_at;
	TimestampTz expires_at;
	int64		acquired_mono;
	int64		deadline_mono;
	int64		duration;
	int64		configured;		/* what the election's settings said then */
	char	   *incarnation;	/* NULL: never granted */
	bool		yielding;
	bool		yield_ordered;	/* by an operator, not by the strategy */
	int64		yields;			/* requests to yield, in this term */
	char	   *successor;		/* whom it is yielded to or reserved for */
	char	   *successor_role; /* "": not there */
	TimestampTz free_at;
	int64		free_mono;		/* 0: free */
	int64		free_for;
	int64		reserved_mono;	/* until then, if vacant; 0: not reserved */
	TransactionId xmin;			/* who has written the row ... */
	bool		own_write;		/* ... is it the running transaction? */
	Row		   *row;			/* NULL: not locked */
} Lease;

struct Candidate;

typedef void (*LeaseReader) (Lease *lease, void *arg);

extern const char *le_kind(int64 session_id);
extern Lease *le_lease_read(const Store *store, const char *election,
							Snapshot snapshot);
extern Lease *le_lease_read_self(const Store *store, const char *election);
extern bool le_lease_read_committed(Oid lease_oid, const char *election,
									Lease **lease);
extern List *le_lease_read_all(const Store *store);
extern void le_lease_scan(const Store *store, LeaseReader reader, void *arg);
extern Lease *le_lease_copy(const Lease *lease);
extern LeaseState le_lease_state_if_alive(const Lease *lease,
										  const char *incarnation, int64 now);
extern LeaseState le_lease_state(const Lease *lease, const char *incarnation,
								 int64 now);
extern LeaseState le_lease_state_now(const Store *store, const Lease *lease);
extern bool le_lease_lasts(const Lease *lease, const char *incarnation,
						   int64 now);
extern bool le_lease_is_foreign(const Lease *lease, const char *incarnation);
extern bool le_lease_is_void(const Lease *lease, const char *incarnation);
extern bool le_lease_is_term(const Lease *lease, int64 term);
extern Lease *le_lease_lock(const Store *store, const char *election);
extern Lease *le_lease_find_lock(Finder *finder, const char *election);
extern void le_lease_create(const Store *store, const char *election);
extern void le_lease_grant(Lease *lease, const struct Candidate *to,
						   int64 term, int64 previous_term, int64 duration,
						   int64 t0, TimestampTz at,
						   const char *incarnation);
extern void le_lease_hold(Lease *lease, int64 free_mono, int64 now,
						  TimestampTz at);
extern void le_lease_vacate(Lease *lease, int64 free_mono,
							const struct Candidate *successor,
							int64 reserved_for,
							int64 now, TimestampTz at,
							const char *incarnation);
extern void le_lease_renew(Lease *lease, int64 term, int64 duration,
						   int64 t0, TimestampTz at, const int64 *progress);
extern void le_lease_yield(Lease *lease, bool yields, bool ordered,
						   const struct Candidate *successor);
extern void le_lease_reserve(Lease *lease, const struct Candidate *successor,
							 int64 duration, int64 now,
							 const char *incarnation);
extern void le_lease_unreserve(Lease *lease);
extern bool le_lease_delete(const Store *store, const char *election);
extern int64 le_lease_free_mono(const Lease *lease, const Incarnation *inc);
extern int64 le_lease_reserved_mono(const Lease *lease,
									const char *incarnation);
extern int64 le_lease_reserved_since(const Lease *lease);

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

extern void le_proof_about(Proof *proof, const Lease *seen,
						   int64 lease_duration, const Incarnation *inc);
extern bool le_prove(const Lease *seen, int64 lease_duration, bool grants,
					 int64 limit, Proof *proof);

/* candidate.c */
typedef struct Candidate
{
	char	   *election;
	char	   *candidate;
	int64		session_id;		/* 0: detached */
	char	   *role;
	int			rank;
	int64		progress;
	Datum		metadata;		/* 0: none */
	bool		auto_renew;
	int			backend_pid;	/* 0: detached */
	Datum		client_addr;	/* 0: none */
	TimestampTz joined_at;
	int64		place;
	int64		sits_out;		/* the term that it gave up, -1: none */
	bool		defers;			/* has given up, and is not to preempt */
	int			leads;			/* other elections, where the strategy counts */
	int64		seen;			/* monotonic; detached candidates only */
	int64		seen_for;		/* it counts as alive for so long */
	Row		   *row;			/* NULL: not locked */
} Candidate;

/* What a call says of its candidacy; the rest is as it was */
typedef struct Profile
{
	bool		sets_rank;
	bool		sets_progress;
	bool		sets_auto_renew;
	int32		rank;
	int64		progress;
	bool		auto_renew;
	Datum		metadata;		/* 0: not said */
} Profile;

typedef enum StandResult
{
	STAND_OK,
	STAND_BUSY,					/* somebody is writing that row right now */
	STAND_IN_USE,				/* the name of another live candidate */
	STAND_DROPPED				/* there is no such election any more */
} StandResult;

/* False: enough */
typedef bool (*CandidateReader) (const Candidate *c, void *arg);

extern List *le_candidates_read(const Store *store, const char *election);
extern void le_candidates_read_until(int64 until);
extern void le_candidates_scan(const Store *store, const char *election,
							   const char *candidate, CandidateReader reader,
							   void *arg);
extern Candidate *le_candidate_find(const Store *store, const char *election,
									const char *name);
extern bool le_candidate_alive(const Candidate *c);
extern bool le_candidate_is_same(const Candidate *a, const Candidate *b);
extern bool le_candidate_leads(const Candidate *c, const Lease *lease);
extern bool le_candidate_succeeds(const Candidate *c, const Lease *lease);
extern StandResult le_candidate_stand(const Store *store,
									  Candidate *who,
									  const Profile *profile,
									  int64 lease_duration);
extern bool le_candidate_needs_sign(int64 seen, int64 lease_duration);
extern Candidate *le_candidate_of_lease(const Lease *lease);
extern bool le_candidate_lock(const Store *store, Candidate *c);
extern void le_candidate_sit_out(Candidate *c, int64 term, int64 place);
extern bool le_candidate_withdraw(const Store *store, const Candidate *who);
extern bool le_candidate_prune(const Store *store, const Candidate *c);

/* history.c */
typedef struct Term
{
	int64		term;
	char	   *leader;
	TimestampTz acquired_at;
	bool		ended;
	TimestampTz ended_at;		/* if it has */
	char	   *reason;			/* NULL: not known */
} Term;

/* False: enough */
typedef bool (*TermReader) (const Term *term, void *arg);

extern void le_history_read(const Store *store, const char *election,
							int64 from, ScanDirection direction,
							Snapshot snapshot, TermReader reader, void *arg);
extern void le_history_begin(const Store *store, const Candidate *leader,
							 int64 term, TimestampTz at);
extern bool le_history_lock(const Store *store, const char *election,
							int64 term, Row **row);
extern void le_history_end(Row *row, const char *reason, const char *detail,
						   TimestampTz at);
extern char *le_history_reason(const Store *store, const char *election,
							   int64 term);
extern bool le_history_prune(const Store *store, TimestampTz before,
							 int limit, int64 until, Walk *walk, bool *left);

/* mark.c */
typedef struct Mark
{
	char	   *election;
	int64		term;			/* listeners know of terms up to this one */
	bool		vacated;		/* ... and of its end */
	int64		yields;			/* ... and of so many requests to yield */
	char	   *channel;		/* told on it last; NULL: the default one */
	Row		   *row;			/* NULL: not locked */
} Mark;

extern Mark *le_mark_read(const Store *store, const char *election);
extern List *le_marks_read(const Store *store);
extern Mark *le_mark_lock(const Store *store, const char *election,
						  bool deletes, bool *busy);
extern void le_mark_write(const Store *store, Mark *mark);
extern void le_mark_create(const Store *store, const char *election,
						   const char *channel);
extern void le_mark_delete(Mark *mark);

/* config.c */
typedef struct Election
{
	char	   *name;
	char	   *strategy;
	int64		lease_duration;
	int			quorum;
	int64		takeover_delay;
	char	   *candidate_role;
	char	   *channel;
	char	   *owner;
	bool		own_write;		/* written by the running transaction */
} Election;

/* What create_election and alter_election set; the rest is as it was */
typedef struct Configuration
{
	const char *strategy;		/* NULL: not said */
	int64		lease_duration; /* 0: not said */
	int			quorum;			/* 0: not said */
	int64		takeover_delay; /* -1: not said */
	const char *candidate_role; /* NULL: not said, "": none */
	const char *channel;		/* NULL: not said, "": the default one */
} Configuration;

extern Datum le_interval(int64 us);
extern void le_configuration_complete(Configuration *config);
extern Election *le_election_read(const Store *store, const char *name);
extern List *le_elections_read(const Store *store);
extern char *le_election_channel(const Store *store, const char *name,
								 Snapshot snapshot);
extern Election *le_election_get(const Store *store, const char *name);
extern Election *le_election_get_or_create(const Store *store,
										   const char *name, bool wait);
extern bool le_election_admits(const Election *election, const char *role);
extern void le_lease_durations(const Store *store, List *leases);
extern int64 le_lease_duration(const Store *store, const Lease *lease);
extern bool le_election_insert(const Store *store, const char *name,
							   const char *owner, const Configuration *config);
extern bool le_election_alter(const Store *store, const char *name,
							  const Configuration *config);
extern bool le_election_delete(const Store *store, const char *name);
LE_NORETURN extern void le_report_no_election(const char *name);

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
extern bool le_election_passes_over(const Candidate *c, const Lease *lease);
extern List *le_election_order(const Store *store, const Election *election,
							   const Lease *lease, Seats **seats,
							   MemoryContext context);
extern bool le_has_quorum(const Store *store, const Election *election);
extern Candidate *le_next_leader(const Store *store, const Election *election,
								 const Lease *lease, const Candidate *caller,
								 const Candidate *passed_over);
extern bool le_seats_prepare(const Store *store, const Election *election,
							 const Candidate *passed_over);
extern Candidate *le_challenger(const Store *store, const Election *election,
								const Lease *lease);
extern bool le_is_to_preempt(const Lease *lease, const Candidate *challenger);

/* election.c */

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

extern int64 le_election_grace_mono(const Election *election,
									const Lease *lease,
									const Incarnation *inc);
extern int64 le_election_reserved_mono(const Store *store,
									   const Election *election,
									   const Lease *lease,
									   const Incarnation *inc);
extern bool le_election_kept_in_vain(const Store *store,
									 const Election *election,
									 const Lease *lease,
									 const Incarnation *inc);
extern Candidate *le_election_candidate(const Store *store,
										const Election *election,
										const char *name);
extern Settled le_election_settle(const Store *store,
								  const Election *election,
								  const Candidate *caller,
								  const GiveUp *give_up, const Proof *proof);
extern Lease *le_election_continue(const Store *store,
								   const Election *election, int64 term,
								   const Proof *proof, bool *over);
extern void le_election_ask(const Store *store, const Election *election,
							Lease *lease, bool ordered,
							const Candidate *successor);
extern bool le_election_preempt(const Store *store, const Election *election,
								bool *changed);
extern bool le_election_end(const Store *store, const Election *election,
							const Incarnation *inc);

/* keepalive.c */
extern void le_keepalive_tighten(int64 lease_duration);
extern void le_keepalive_restore(void);

/* session.c */
typedef struct Candidacy
{
	char		election[LE_NAME_MAX + 1];	/* hash key */
	char		candidate[LE_NAME_MAX + 1];
	NameData	role;			/* who made it */
	int64		session_id;
	LOCKTAG		lock;
	const LOCALLOCK *lock_entry;
	LOCKTAG		election_lock;
	Oid			lease_oid;		/* which extension it belongs to */
	int64		lease_duration; /* of its election; 0: not known yet */

	/* what the running transaction did to it */
	bool		made;
	char		former[LE_NAME_MAX + 1];	/* name, if it has left and joined */
	bool		withdrawn;
	bool		stepped_down;
	bool		campaigning;	/* ends with the campaign that made it */

	/* the cached view of the lease row */
	uint64		changes;		/* le_changes when the row was read; 0: never */
	int64		term;			/* 0: does not lead */
	int64		deadline;
	int64		next_read;
	int64		renew_not_before;	/* by join(), which has tried just now */
} Candidacy;

extern Candidacy *le_session_find(const char *election, Size length);
extern Candidacy *le_session_add(const Store *store, const char *election,
								 const char *candidate, const char *role,
								 int64 session_id, bool campaigning);
extern int64 le_session_id(void);
extern void le_session_withdraw(Candidacy *candidacy);
extern void le_session_return(Candidacy *candidacy, const char *candidate);
extern void le_session_drop(Candidacy *candidacy);
extern void le_session_lose(Candidacy *candidacy);
extern bool le_session_take_loss(Oid lease_oid, const char *election,
								 const char *candidate);
extern List *le_session_elections(void);
extern int64 le_session_term(Candidacy *candidacy);
extern int64 le_session_term_of(Candidacy *candidacy, const Lease *lease,
								uint64 changes);
extern int64 le_session_remaining(Candidacy *candidacy);
extern bool le_session_holds_lock(const Candidacy *c);
extern bool le_session_owns(const Candidacy *candidacy);
extern void le_session_init(void);

/* start.c */
extern bool le_worker_ensure(bool urgent);
extern bool le_epoch_begin(Store *store);
extern bool le_epoch_ensure(Store *store, const char *election, bool urgent,
							int64 limit);

/* fence.c */
extern void le_fence_init(void);

/* worker.c */
extern PGDLLEXPORT void leader_election_worker_main(Datum arg);

/* launcher.c */
extern void le_launcher_register(void);
extern PGDLLEXPORT void leader_election_launcher_main(Datum arg);

#endif							/* LEADER_ELECTION_H */
