/*-------------------------------------------------------------------------
 *
 * compat.h
 *		Differences between the majors of PostgreSQL, 15 to 19.
 *
 * The only file with version checks: call sites stay clean.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LE_COMPAT_H
#define LE_COMPAT_H

#include "access/genam.h"
#include "access/tableam.h"
#include "access/xlog.h"
#include "catalog/pg_proc.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "replication/message.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM < 150000
#error "leader_election needs PostgreSQL 15 or later"
#endif

/* From 17 on */
#ifndef foreach_ptr
#define foreach_internal(type, pointer, var, lst, func) \
	for (type pointer var = 0, pointer var##__outerloop = (type pointer) 1; \
		 var##__outerloop; \
		 var##__outerloop = 0) \
		for (ForEachState var##__state = {(lst), 0}; \
			 var##__state.l != NIL && \
			 var##__state.i < var##__state.l->length && \
			 ((var) = (type pointer) func(&var##__state.l->elements[var##__state.i]), true); \
			 var##__state.i++)
#define foreach_ptr(type, var, lst) foreach_internal(type, *, var, lst, lfirst)
#define foreach_int(var, lst)		foreach_internal(int, , var, lst, lfirst_int)
#define foreach_oid(var, lst)		foreach_internal(Oid, , var, lst, lfirst_oid)
#endif

/* From 18 on */
#if PG_VERSION_NUM < 180000
#define pg_noreturn pg_attribute_noreturn()
#endif

/* From 17 on; 0: there is no such limit */
#if PG_VERSION_NUM < 170000
#define TransactionTimeout 0
#endif

/* From 16 on */
#if PG_VERSION_NUM < 160000
#define check_can_set_role(member, role) check_is_member_of_role(member, role)
#define object_aclcheck(classid, objid, role, mode) \
	pg_proc_aclcheck(objid, role, mode)
#endif

/* Does this session hold the lock, in exactly this mode? */
static inline bool
LeLockHeldByMe(const LOCKTAG *tag, LOCKMODE mode)
{
#if PG_VERSION_NUM >= 170000
	return LockHeldByMe(tag, mode, false);
#else
	return LockHeldByMe(tag, mode);
#endif
}

/*
 * Take a lock if it is free and there is room for it in the lock table.  False
 * does not tell which of the two was missing.  entry (or NULL) becomes this
 * process's own entry of the lock.
 */
static inline bool
LeLockTry(const LOCKTAG *tag, LOCKMODE mode, bool session_level,
		  LOCALLOCK **entry)
{
	LockAcquireResult result;
	LOCALLOCK  *ignored;

	if (entry == NULL)
		entry = &ignored;
#if PG_VERSION_NUM >= 180000
	result = LockAcquireExtended(tag, mode, session_level, true, false, entry,
								 false);
#else
	result = LockAcquireExtended(tag, mode, session_level, true, false, entry);
#endif
	return result != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Lock a table or an index of this database until the transaction ends, if
 * that is possible at once.
 */
static inline bool
LeTryLockRelation(Oid relid, LOCKMODE mode)
{
	LOCKTAG		tag;
	LOCALLOCK  *entry;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	if (!LeLockTry(&tag, mode, false, &entry))
		return false;
	if (!entry->lockCleared)
	{
		AcceptInvalidationMessages();
		MarkLockClear(entry);
	}
	return true;
}

/*
 * This process's own entry of a lock that it holds at session level.  While
 * that entry counts a holder, the process holds the lock: to see so takes no
 * look into the lock table.
 */
static inline const LOCALLOCK *
LeLockEntry(const LOCKTAG *tag, LOCKMODE mode)
{
	LOCALLOCK  *entry;

	(void) LeLockTry(tag, mode, true, &entry);
	LockRelease(tag, mode, true);
	return entry;
}

/*
 * Begin an index scan.  index_rescan() gives it its keys.
 */
static inline IndexScanDesc
LeIndexBeginScan(Relation rel, Relation index, Snapshot snapshot, int columns)
{
#if PG_VERSION_NUM >= 190000
	return index_beginscan(rel, index, snapshot, NULL, columns, 0, SO_NONE);
#elif PG_VERSION_NUM >= 180000
	return index_beginscan(rel, index, snapshot, NULL, columns, 0);
#else
	return index_beginscan(rel, index, snapshot, columns, 0);
#endif
}

/*
 * Update a row that is locked.  True: the new version needs index entries,
 * maybe (*only_summarizing) only in indexes that summarize, like BRIN.
 */
static inline bool
LeTableUpdate(Relation rel, ItemPointer tid, TupleTableSlot *slot,
			  Snapshot snapshot, bool *only_summarizing)
{
#if PG_VERSION_NUM >= 160000
	TU_UpdateIndexes update;

	simple_table_tuple_update(rel, tid, slot, snapshot, &update);
	*only_summarizing = update == TU_Summarizing;
	return update != TU_None;
#else
	bool		update;

	simple_table_tuple_update(rel, tid, slot, snapshot, &update);
	*only_summarizing = false;
	return update;
#endif
}

/*
 * Enter a new row, or the new version of one, into the indexes.
 */
static inline void
LeInsertIndexTuples(ResultRelInfo *target, TupleTableSlot *slot,
					EState *estate, bool is_update, bool only_summarizing)
{
#if PG_VERSION_NUM >= 190000
	ExecInsertIndexTuples(target, estate,
						  (is_update ? EIIT_IS_UPDATE : 0) |
						  (only_summarizing ? EIIT_ONLY_SUMMARIZING : 0),
						  slot, NIL, NULL);
#elif PG_VERSION_NUM >= 160000
	ExecInsertIndexTuples(target, slot, estate, is_update, false, NULL, NIL,
						  only_summarizing);
#else
	ExecInsertIndexTuples(target, slot, estate, is_update, false, NULL, NIL);
#endif
}

/*
 * Do commits of this server wait for synchronous standbys?  A backend reads
 * the setting again only between two commands of its client, so that its own
 * value may be old.  The checkpointer tells all backends by a byte in shared
 * memory: that counts as well.
 *
 * The byte was true or false before 17.5, 16.9 and 15.13, and has flags since.
 * The library may have been built for an older or newer minor release than the
 * server that has loaded it: what the server says of itself counts.
 */
static inline bool
LeSyncStandbysDefined(void)
{
	const volatile uint8 *status;
	int			server;

	if (max_wal_senders == 0)
		return false;
	if (SyncRepStandbyNames != NULL && SyncRepStandbyNames[0] != '\0')
		return true;
#ifdef SYNC_STANDBY_DEFINED
	status = &WalSndCtl->sync_standbys_status;
#else
#define SYNC_STANDBY_DEFINED	(1 << 1)
	status = (const volatile uint8 *) &WalSndCtl->sync_standbys_defined;
#endif
	server = atoi(GetConfigOption("server_version_num", false, false));
	if (server < 150013 || (server >= 160000 && server < 160009) ||
		(server >= 170000 && server < 170005))
		return *status != 0;
	return (*status & SYNC_STANDBY_DEFINED) != 0;
}

/*
 * Write a WAL record that changes nothing, and flush it.  Returns where it
 * ends.  It does not count as the transaction's own (XactLastRecEnd): the
 * commit of a transaction that writes nothing else would wait until the
 * standbys have it.
 */
static inline XLogRecPtr
LeLogProbe(void)
{
	XLogRecPtr	last = XactLastRecEnd;
	XLogRecPtr	lsn;

#if PG_VERSION_NUM >= 170000
	lsn = LogLogicalMessage("leader_election", "", 0, false, true);
#else
	lsn = LogLogicalMessage("leader_election", "", 0, false);
#endif
	XactLastRecEnd = last;
	XLogFlush(lsn);
	return lsn;
}

/*
 * A custom wait event.  Before 17 it shows as "Extension" in the views; id
 * tells ours apart in a PGPROC.
 */
static inline uint32
LeWaitEvent(const char *name, uint16 id)
{
#if PG_VERSION_NUM >= 170000
	return WaitEventExtensionNew(name);
#else
	return PG_WAIT_EXTENSION | id;
#endif
}

static inline bool
LeIsBackgroundWorker(const PGPROC *proc)
{
#if PG_VERSION_NUM >= 190000
	return proc->backendType == B_BG_WORKER;
#elif PG_VERSION_NUM >= 180000
	return !proc->isRegularBackend;
#else
	return proc->isBackgroundWorker;
#endif
}

/* Read what the server knows of all processes now; returns how many. */
static inline int
LeReadBackends(void)
{
	pgstat_clear_backend_activity_snapshot();
	return pgstat_fetch_stat_numbackends();
}

/* One of them, by its number from 1 on; NULL: it has gone. */
static inline const PgBackendStatus *
LeBackendByNumber(int i)
{
#if PG_VERSION_NUM >= 160000
	const LocalPgBackendStatus *entry = pgstat_get_local_beentry_by_index(i);
#else
	const LocalPgBackendStatus *entry = pgstat_fetch_stat_local_beentry(i);
#endif

	return entry != NULL ? &entry->backendStatus : NULL;
}

/* What the server knows of a backend now; NULL if there is none. */
static inline const PgBackendStatus *
LeBackendStatus(int pid)
{
	int			n = LeReadBackends();

	for (int i = 1; i <= n; i++)
	{
		const PgBackendStatus *backend = LeBackendByNumber(i);

		if (backend != NULL && backend->st_procpid == pid)
			return backend;
	}
	return NULL;
}

/* The virtual transaction that holds a lock of a copy of the lock table. */
static inline VirtualTransactionId
LeLockOwner(const LockInstanceData *lock)
{
#if PG_VERSION_NUM >= 170000
	return lock->vxid;
#else
	VirtualTransactionId vxid = {lock->backend, lock->lxid};

	return vxid;
#endif
}

static inline bool
LeIsInTransaction(const PGPROC *proc)
{
#if PG_VERSION_NUM >= 170000
	return LocalTransactionIdIsValid(proc->vxid.lxid);
#else
	return LocalTransactionIdIsValid(proc->lxid);
#endif
}

/*
 * The socket of this session's client; the session has one (MyProcPort is
 * set).  It is the first member of struct Port in all of them.  The header
 * that defines Port includes those of GSSAPI and OpenSSL, which are not
 * installed on a machine that only builds extensions.
 */
static inline pgsocket
LeClientSocket(void)
{
	return *(const pgsocket *) MyProcPort;
}

/*
 * The connection's settings (seconds, seconds, number, milliseconds) as they are,
 * also where the kernel's defaults apply; 0: it has none.  The same header
 * declares them.
 */
extern int	pq_getkeepalivesidle(struct Port *port);
extern int	pq_getkeepalivesinterval(struct Port *port);
extern int	pq_getkeepalivescount(struct Port *port);
extern int	pq_gettcpusertimeout(struct Port *port);

#endif							/* LE_COMPAT_H */
