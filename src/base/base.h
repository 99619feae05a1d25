/*-------------------------------------------------------------------------
 *
 * base.h
 *		The floor of PostgreSQL's mechanics: time, locks, bounded waits,
 *		tables, rows, commits.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_BASE_H
#define LE_BASE_H

#include "access/htup.h"
#include "access/sdir.h"
#include "access/skey.h"
#include "datatype/timestamp.h"
#include "leader_election.h"
#include "nodes/lockoptions.h"
#include "nodes/pg_list.h"
#include "storage/lock.h"
#include "utils/hsearch.h"
#include "utils/snapshot.h"
#include "utils/uuid.h"

struct BackgroundWorkerHandle;

/* clock.c */
extern int64 le_clock(void);
extern Datum le_clock_interval(int64 us);

/* incarnation.c */
extern char *le_incarnation_name(void);
extern char *le_incarnation_name_try(void);

/* quote.c */
extern char *le_quote(const char *name);

/* xact.c */
typedef struct WalMark
{
	uint64		end;			/* XactLastRecEnd at le_xact_wal_begin() */
	uint64		writes;			/* le_xact_writes at le_xact_wal_begin() */
} WalMark;

extern uint64 le_xact_writes;
extern uint64 le_xact_slow_writes;
extern bool le_xact_holds;
extern bool le_xact_is_ending;

extern void le_xact_check_not_ending(void);
extern void le_xact_wal_begin(WalMark *mark);
extern void le_xact_wal_end(const WalMark *mark);

/*
 * For each entry of a hash table, if there is such a table.  The body may
 * remove its entry, but not leave the loop, whose scan would stay open.
 */
#define foreach_entry(type, var, table) \
	foreach_entry_internal(type, *, var, table)
#define foreach_entry_internal(type, pointer, var, table) \
	for (HASH_SEQ_STATUS var##__scan, *var##__outer = \
		 (table) == NULL || hash_get_num_entries(table) == 0 ? NULL : \
		 (hash_seq_init(&var##__scan, table), &var##__scan); \
		 var##__outer != NULL; var##__outer = NULL) \
		for (type pointer var; \
			 ((var) = hash_seq_search(var##__outer)) != NULL;)

/* hash.c */
extern HTAB *le_hash_make(const char *name, Size keysize, Size entrysize,
						  int flags, MemoryContext context);

/* lock.c */
typedef enum LockClass
{
	LOCK_SESSION = 20,
	LOCK_ELECTION,
	LOCK_NAME,
	LOCK_WORKER,
	LOCK_STARTER,
	LOCK_EPOCH,
	LOCK_NEXT_WORKER,
	LOCK_RESERVED,
	LOCK_RESET,
	LOCK_GROUP
} LockClass;

/* Does anybody hold a lock in Exclusive mode? */
typedef enum Held
{
	NOT_HELD,
	HELD,
	UNTESTABLE					/* the lock table has no room for the test */
} Held;

extern LOCKTAG le_lock_tag(LockClass class, uint64 key);
extern bool le_lock_try(LOCKTAG tag, LOCKMODE mode, bool session_level);
extern Held le_lock_is_held(LOCKTAG tag);
extern const LockInstanceData *le_lock_holder(const LockData *copy,
											  const LOCKTAG *tag);
extern LOCKTAG le_lock_mutex_tag(LockClass class, const char *name);
extern bool le_lock_mutex(LockClass class, const char *name, bool wait);
extern void le_lock_release_mutex(LockClass class, const char *name);
extern bool le_lock_election_shared(const LOCKTAG *tag, bool wait);
extern void le_lock_release_election_shared(const LOCKTAG *tag);
extern VirtualTransactionId *le_lock_election_sharers(const LOCKTAG *tag,
													  int *count);
extern bool le_lock_holds_exclusive(void);
extern bool le_lock_name(const char *election, const char *candidate,
						 LOCKMODE mode);
extern void le_lock_release_name(const char *election, const char *candidate,
								 LOCKMODE mode);
extern bool le_lock_take(LockClass class);
extern void le_lock_release(LockClass class);
extern bool le_lock_is_mine(LockClass class);
extern bool le_lock_worker(void);
extern bool le_lock_worker_is_free(void);
extern int	le_lock_worker_pid(const LockData *copy);
extern void le_lock_forget(void);
#ifdef USE_ASSERT_CHECKING
extern bool le_lock_holds_mutex(LockClass class, const char *name,
								LOCKMODE mode);
extern bool le_lock_holds_name(const char *election, const char *candidate);
#endif

/* session_lock.c */
extern LOCKTAG le_session_lock_tag(int64 session_id);
extern int64 le_session_lock_new(void);
extern void le_session_lock_release(int64 session_id);
extern bool le_session_alive(int64 session_id);
extern bool le_sessions_remember(void);
extern void le_session_lock_mark_lost(void);
extern void le_session_lock_unmark_lost(void);
extern bool le_session_lock_was_lost(int pid);
extern void le_session_lock_forget(void);

/* room.c */
extern bool le_room_for_locks(int locks);
extern int64 le_room_keep_reserved(void);
extern bool le_room_free_reserved(void);

/* wake.c */
extern void le_wake_workers(Oid database);
extern void le_wake_backend(int pid);
extern uint32 le_wake_observer_event(void);
extern void le_wake_workers_and_observers(void);

/* store.c */
/* Our tables, in the order in which every transaction locks them */
typedef enum TableId
{
	TABLE_ELECTION,
	TABLE_LEASE,
	TABLE_CANDIDATE,
	TABLE_HISTORY,
	TABLE_EPOCH,
	TABLE_PAUSE_ALL,
	TABLE_DRAIN,
	TABLE_ANNOUNCED,
	TABLE_GROUP,
	TABLE_DROPPED,
	TABLE_COUNT
} TableId;

typedef struct Table
{
	Oid			rel;
	Oid			pkey;
} Table;

typedef struct Store
{
	Table		table[TABLE_COUNT];
	Oid			lease_oid;		/* of lease; each CREATE EXTENSION makes one */
	Oid			history_acquired_at;	/* an index of history */
	Oid			change;			/* the type that stands for who leads */
	Oid			grant;			/* lease_grant, which stands for settings, and
								 * for which detached candidates stand */
	Oid			protocol;		/* the view that has its number */
} Store;

/* What was read once, for many elections (drain.c, pause.c, group.c) */
typedef struct CallMemory
{
	List	   *drains;			/* rows of drain, those of all elections first */
	bool		knows_drains;	/* these are all */
	bool		knows_drains_of_all;	/* these are those of all elections */
	const struct Pause *pause_all;	/* NULL: there is none */
	bool		knows_pause_all;
	List	   *groups;			/* which may be counted (cap.c) */
	bool		knows_groups;	/* these are all */
} CallMemory;

extern Store le_store;
extern CallMemory le_remembered;

/* Sets of tables, for le_store_lock() */
#define LE_TABLE_ELECTION	(1 << TABLE_ELECTION)
#define LE_TABLE_LEASE		(1 << TABLE_LEASE)
#define LE_TABLE_CANDIDATE	(1 << TABLE_CANDIDATE)
#define LE_TABLE_HISTORY	(1 << TABLE_HISTORY)
#define LE_TABLE_EPOCH		(1 << TABLE_EPOCH)
#define LE_TABLE_PAUSE_ALL	(1 << TABLE_PAUSE_ALL)
#define LE_TABLE_DRAIN		(1 << TABLE_DRAIN)
#define LE_TABLE_ANNOUNCED	(1 << TABLE_ANNOUNCED)
#define LE_TABLE_GROUP		(1 << TABLE_GROUP)
#define LE_TABLE_DROPPED	(1 << TABLE_DROPPED)

/* What a candidate writes; the first ones in their order */
#define LE_TABLES_TO_STAND \
	(LE_TABLE_ELECTION | LE_TABLE_LEASE | LE_TABLE_CANDIDATE)

/* What a change of leadership reads and writes */
#define LE_TABLES \
	(LE_TABLE_ELECTION | LE_TABLE_LEASE | LE_TABLE_CANDIDATE | \
	 LE_TABLE_HISTORY | LE_TABLE_EPOCH | LE_TABLE_PAUSE_ALL | \
	 LE_TABLE_DRAIN)

extern uint64 le_leadership_generation;
extern uint64 le_candidacy_generation;

extern bool le_store_find(void);
extern void le_store_get(void);
extern void le_store_begin(void);
extern void le_store_lock(int tables, LOCKMODE mode);
extern bool le_store_try_lock(int tables, LOCKMODE mode);
extern void le_store_check_unaltered(void);
extern bool le_store_has_index(Oid index);
extern bool le_store_locked_pkey(TableId table);
extern bool le_store_is_other_version(void);
extern bool le_store_stays_other_version(bool committed);
extern void le_store_check_protocol(void);
extern bool le_store_try_share(Oid *share);
extern void le_store_forget(void);

/* table.c */
extern Relation le_table_open(Oid table);
extern bool le_table_is_blank(Oid table);
extern bool le_table_lock_relation(Oid oid, LOCKMODE mode, bool wait);
extern bool le_table_lock_indexes(Oid table, LOCKMODE mode, bool wait);
pg_noreturn extern void le_table_report_dropped(void);

/* shape.c */
extern const char *le_shape_name(TableId table);
extern bool le_shape_fits(TableId table, Oid rel, Oid pkey);
extern bool le_shape_fits_history_acquired_at(Oid index, Oid history);
extern bool le_shape_fits_row(TableId table, const bool *nulls);
extern int	le_shape_columns(TableId table);
extern bool le_shape_fills(TableId table, AttrNumber number);
extern bool le_shape_is_in_place(TableId table, Oid rel, const char **last);

/* key.c */
/* What the first columns of a table's primary key have to be */
typedef struct Key
{
	int			columns;		/* conditions on them; 0: any row */
	ScanKeyData column[2];
} Key;

extern Key	le_key_any(void);
extern Key	le_key(const char *first);
extern Key	le_key_text(const char *first, const char *second);
extern Key	le_key_int64(const char *first, int64 second);
extern Key	le_key_from(const char *first, int64 second);
extern Key	le_key_before(const char *first);
extern Key	le_key_text_before(const char *first, const char *second);
extern Key	le_key_between(const char *after, const char *before);

/* scan.c */
#define LE_MAX_COLUMNS		48	/* of ours, in a table */

/* A row as it was read, or as it is to be written */
typedef struct Row
{
	Oid			table;
	ItemPointerData tid;
	HeapTuple	tuple;			/* what values point into; NULL: a new row */
	Datum		values[LE_MAX_COLUMNS];
	bool		nulls[LE_MAX_COLUMNS];
} Row;

/* Makes a struct of a row, with copies of all that the struct points to */
typedef void *(*RowMaker) (const Row *row);

/* A read of rows: of all with a key, of single ones, or along an index */
typedef struct RowScan
{
	TableId		table;
	Relation	rel;
	Relation	index;
	LOCKMODE	index_lock;		/* that le_scan_end() releases */
	Snapshot	snapshot;
	bool		latest;			/* le_scan_end() unregisters the snapshot */
	struct IndexScanDescData *desc;
	struct TupleTableSlot *slot;	/* the row that was found last */
	ScanDirection direction;
	struct IndexTupleData *seen;	/* the entry of that row, of
									 * le_scan_next() */
	MemoryContext brief;		/* emptied before each row; NULL: not */
	MemoryContext outer;		/* the current one before the scan */
} RowScan;

/* How far a walk along an index has come: the entry that it has passed last */
typedef struct Walk
{
	bool		begun;
	TimestampTz value;
	ItemPointerData tid;
} Walk;

#define LE_GET(row, column, get, if_null) \
	((row)->nulls[column] ? (if_null) : get((row)->values[column]))
#define LE_GET_NAME(datum)	pstrdup(NameStr(*DatumGetName(datum)))
#define LE_GET_COPY(datum)	datumCopy(datum, false, -1)

extern void le_scan_check_parallel(void);
extern void le_scan_set_row(Row *row, TableId table, Relation rel, HeapTuple tuple);
extern bool le_scan_is_own_write(const Row *row);
extern RowScan *le_scan_begin(TableId table, Key key,
							  ScanDirection direction, Snapshot snapshot);
extern RowScan *le_scan_begin_brief(TableId table, Key key,
									ScanDirection direction);
extern bool le_scan_next(RowScan *scan, Row *row);
extern void le_scan_end(RowScan *scan);
extern List *le_scan_read_some(TableId table, Key key,
							   ScanDirection direction, int most,
							   RowMaker make);
extern List *le_scan_read_all(TableId table, Key key, RowMaker make);
extern RowScan *le_scan_find_begin(TableId table, int columns,
								   Snapshot snapshot);
extern bool le_scan_find(RowScan *scan, Key key, Row *row);
extern void *le_scan_read_one(TableId table, Key key,
							  Snapshot snapshot, RowMaker make);
extern RowScan *le_scan_walk_begin(TableId table, Oid index,
								   TimestampTz end, const Walk *walk);
extern bool le_scan_walk_next(RowScan *scan, Walk *walk, int *limit, Row *row);

/* as_owner.c */

/* What le_as_owner_begin() changes, and le_as_owner_end() restores */
typedef struct AsOwner
{
	ErrorContextCallback callback;
	Oid			user;
	int			context;
	int			nest_level;
} AsOwner;

extern void le_as_owner_begin(AsOwner *former, Relation rel);
extern void le_as_owner_end(const AsOwner *former);
extern void le_as_owner_check_none(void);

/* row.c */
#define LE_SET(row, column, datum) \
	((row)->values[column] = (datum), (row)->nulls[column] = false)
#define LE_SET_NULL(row, column) \
	((row)->values[column] = (Datum) 0, (row)->nulls[column] = true)
#define LE_SET_IF(row, column, condition, datum) \
	((condition) ? LE_SET(row, column, datum) : LE_SET_NULL(row, column))
#define LE_TEXT(string)		CStringGetTextDatum(string)
#define LE_NAME(string)		DirectFunctionCall1(namein, CStringGetDatum(string))

extern bool le_row_same_value(Datum a, Datum b);
extern Row *le_row_new(TableId table);
extern Row *le_row_find_lock(RowScan *scan, Key key, LockTupleMode mode,
							 bool *busy);
extern Row *le_row_lock(TableId table, Key key,
						LockTupleMode mode, bool *busy);
extern Row *le_row_lock_read(TableId table, ItemPointerData tid,
							 LockTupleMode mode, bool *busy);
extern Row *le_row_lock_or_new(TableId table, Key key);
extern void le_row_write(Row *row);
extern void le_row_delete(Row *row);
extern bool le_row_remove(TableId table, Key key);

/* wait.c */
/*
 * What le_wait_bounded_begin() changes, and le_wait_bounded_end() restores
 */
typedef struct BoundedWaits
{
	ErrorContextCallback callback;
	int			nest_level;
	WalMark		wal;
} BoundedWaits;

extern void le_wait_start(void);
extern bool le_wait_retry(void);
extern int64 le_wait_left(void);
extern void le_wait_retry_or_busy(const char *election);
extern void le_wait_as_lock_timeout(void);
extern void le_wait_for_room(void);
extern bool le_wait_for_group(const char *group);
extern bool le_wait_for_election(const char *election);
extern bool le_wait_for_election_shared(const LOCKTAG *tag);
extern void le_wait_bounded_begin(BoundedWaits *busy, const char *election);
extern void le_wait_bounded_end(BoundedWaits *busy);
pg_noreturn extern void le_wait_busy(const char *election);
pg_noreturn extern void le_wait_unconfirmed(const char *election);
pg_noreturn extern void le_wait_no_epoch(const char *election);

/* commit.c */
typedef struct Change
{
	const char *election;
	int64		term;
	const char *leader;			/* NULL: vacant */
	const char *previous;		/* NULL: was vacant */
	const char *reason;			/* why previous ended */
	bool		yield;			/* the leader is asked to yield */
	int			winner_pid;		/* of the backend to wake; 0: of none */
} Change;

extern void le_commit_change(const Change *change);
extern void le_commit_durably(void);
extern void le_commit_wakes_worker(void);
extern void le_commit_tells(void);
extern void le_commit_set(const char *name, const char *value);
extern void le_commit_bounded(void);
extern void le_commit_before(void);
extern void le_commit_before_prepare(void);
extern void le_commit_start_worker(void);
extern void le_commit_wake_others(void);
extern void le_commit_forget(void);

/* trouble.c */
#define LE_TROUBLES_NAMED	8	/* elections, at most; more are all */

typedef enum TroubleKind
{
	TROUBLE_FAILS,
	TROUBLE_WAITS,				/* for a lock */
	TROUBLE_CANCELLED
} TroubleKind;

/* Work that the worker tries again and again */
typedef struct WorkerTrouble
{
	int			pid;			/* of the worker */
	int			code;			/* SQLSTATE of the last error */
	int			times;
	TimestampTz since;
	TimestampTz retry_at;
	bool		all;			/* it concerns all elections */
	int			named;			/* ... or these, by their keys */
	uint64		elections[LE_TROUBLES_NAMED];
	const char *text;			/* what was tried, and the error message */
} WorkerTrouble;

extern void le_trouble_add(WorkerTrouble *trouble, const char *election);
extern void le_trouble_format(const WorkerTrouble *trouble, char *line,
							  Size size);
extern bool le_trouble_read(WorkerTrouble *trouble);
extern bool le_trouble_concerns(const WorkerTrouble *trouble,
								const char *election);
extern TroubleKind le_trouble_kind(int code);

/* start.c */
#define LE_WORKER_TYPE		"leader_election worker"

extern int64 le_start_committed_at;

extern bool le_start_worker(Oid database, bool launched,
							struct BackgroundWorkerHandle **handle);
extern bool le_start_ensure_worker(bool urgent);

#endif							/* LE_BASE_H */
