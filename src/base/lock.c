/*-------------------------------------------------------------------------
 *
 * lock.c
 *		The private class of advisory locks, and the latches of those who
 *		wait for them.
 *
 * Advisory lock tags whose fourth field is 20 or more: PostgreSQL's own
 * functions use 1 and 2, so that no application key can be one of ours.
 *
 * Invariants:
 *
 * - A session is alive exactly while its session lock is held.  The server
 *	 releases it however the session ends, and nobody can take it again: its
 *	 number is random and is drawn anew for every candidacy after it was lost.
 *
 * - A transaction queues for an election lock only while it holds no other in
 *	 Exclusive mode, so that these locks cannot deadlock.
 *
 * - Nobody can find a name whose lock is that of another name: the tag is the
 *	 beginning of a SHA-256.  (With a hash that can be inverted, a role that may
 *	 create elections could sit on the lock of any other election.)
 *
 * - A lock table without room is no proof of anything.  A conditional request
 *	 answers the same for want of room as for a lock that is held, so that the
 *	 locks whose holders decide are tested by is_held().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "base/base.h"
#include "common/cryptohash.h"
#include "common/sha2.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

typedef enum LockClass
{
	LOCK_SESSION = 20,
	LOCK_ELECTION,
	LOCK_NAME,
	LOCK_WORKER,
	LOCK_STARTER,
	LOCK_EPOCH,
	LOCK_NEXT_WORKER,
	LOCK_SPARE,
	LOCK_RESET
} LockClass;

/* Is a lock held in Exclusive mode? */
typedef enum Held
{
	NOT_HELD,
	HELD,
	UNTESTABLE					/* there is no room in the lock table */
} Held;

#define SPARES			16		/* entries that a worker keeps for others */
#define SPARES_PAUSE	INT64CONST(1000000) /* before it takes them back ... */
#define LONGEST_SPARES_PAUSE INT64CONST(10000000)	/* ... if there is no room */
#define COPY_LIFE		INT64CONST(50000)

/* The election locks that this transaction has taken in Exclusive mode */
static List *election_locks = NIL;

/* A session that this transaction has tested */
typedef struct Remembered
{
	int64		session_id;		/* hash key */
	bool		alive;
} Remembered;

/* NULL: sessions are tested each time */
static HTAB *remembered = NULL;

/*
 * The one place where tags are made.
 */
static LOCKTAG
make_tag(LockClass class, uint64 key)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (key >> 32),
						 (uint32) key, class);
	return tag;
}

/*
 * The tag of a name, or of two: the first 8 bytes of the SHA-256 of the class and
 * of each name with the zero byte that ends it.  Only in a transaction: the
 * server's SHA-256 needs a resource owner.
 */
static LOCKTAG
make_name_tag(LockClass class, const char *first, const char *second)
{
	pg_cryptohash_ctx *context = pg_cryptohash_create(PG_SHA256);
	uint8		class_byte = class;
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	uint64		key;

	Assert(IsTransactionState());
	if (context == NULL ||
		pg_cryptohash_init(context) < 0 ||
		pg_cryptohash_update(context, &class_byte, 1) < 0 ||
		pg_cryptohash_update(context, (const uint8 *) first,
							 strlen(first) + 1) < 0 ||
		(second != NULL &&
		 pg_cryptohash_update(context, (const uint8 *) second,
							  strlen(second) + 1) < 0) ||
		pg_cryptohash_final(context, digest, sizeof(digest)) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not compute %s hash: %s", "SHA-256",
						pg_cryptohash_error(context))));
	pg_cryptohash_free(context);
	memcpy(&key, digest, sizeof(key));
	return make_tag(class, pg_ntoh64(key));
}

/*
 * Take a lock if it is free; without error, but in vain, if there is no room.
 */
static bool
try_lock(LOCKTAG tag, LOCKMODE mode, bool session_level)
{
	return LeLockTry(&tag, mode, session_level, NULL);
}

/*
 * Take a lock in Exclusive or Share mode until the transaction ends, and queue
 * for it if need be.  An error if there is no room.
 */
static void
wait_for_lock(LOCKTAG tag, LOCKMODE mode)
{
	(void) LockAcquire(&tag, mode, false, false);
}

/*
 * Does anybody hold the lock in Exclusive mode?
 *
 * No lock of ours conflicts with AccessShare mode: that request fails only for
 * want of room.  Once it was granted, this process has its entry in the lock
 * table, so that the answer to the second request is that of the lock itself.
 * That one is in Share mode, so that two testers do not take each other for the
 * holder.  A lock group always gets its own locks: not in parallel mode.  Outside
 * of a transaction only a session can own the locks of the test.
 */
static Held
is_held(LOCKTAG tag)
{
	bool		outside = !IsTransactionState();
	bool		free;

	Assert(!IsInParallelMode());
	if (LeLockHeldByMe(&tag, ExclusiveLock))
		return HELD;
	if (!try_lock(tag, AccessShareLock, outside))
		return UNTESTABLE;
	free = try_lock(tag, ShareLock, outside);
	if (free)
		LockRelease(&tag, ShareLock, outside);
	LockRelease(&tag, AccessShareLock, outside);
	return free ? NOT_HELD : HELD;
}

LOCKTAG
le_session_tag(int64 session_id)
{
	return make_tag(LOCK_SESSION, (uint64) session_id);
}

/*
 * Draw a new session_id (63 random bits, not 0) and hold its lock from now on.
 */
int64
le_session_lock_new(void)
{
	uint64		id;
	LOCKTAG		tag;

	do
	{
		if (!pg_strong_random(&id, sizeof(id)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random session number")));
		id &= PG_INT64_MAX;
		tag = le_session_tag((int64) id);
	} while (id == 0 ||
			 LockAcquire(&tag, ExclusiveLock, true, true) == LOCKACQUIRE_NOT_AVAIL);
	return (int64) id;
}

/*
 * Release it, if it is held still.  Touches nothing but the lock table: it
 * may be called while a transaction ends.
 */
void
le_session_lock_release(int64 session_id)
{
	LOCKTAG		tag = le_session_tag(session_id);

	if (LeLockHeldByMe(&tag, ExclusiveLock))
		LockRelease(&tag, ExclusiveLock, true);
}

/*
 * Is that session's lock in a copy of the lock table that is no older than
 * max_age?  A copy needs no room in the lock table, but takes milliseconds: one
 * is kept for a while.
 */
static bool
is_in_copy(LOCKTAG tag, int64 max_age)
{
	static MemoryContext context = NULL;
	static LockData *copy = NULL;
	static int64 copied_at;
	int64		now = le_clock();

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext,
										"leader_election lock table",
										ALLOCSET_DEFAULT_SIZES);
	if (copy == NULL || now - copied_at >= max_age)
	{
		MemoryContext old;

		copy = NULL;
		MemoryContextReset(context);
		old = MemoryContextSwitchTo(context);
		copy = GetLockStatusData();
		MemoryContextSwitchTo(old);
		copied_at = now;
	}
	for (int i = 0; i < copy->nelements; i++)
	{
		const LockInstanceData *lock = &copy->locks[i];

		if ((lock->holdMask & LOCKBIT_ON(ExclusiveLock)) != 0 &&
			memcmp(&lock->locktag, &tag, sizeof(LOCKTAG)) == 0)
			return true;
	}
	return false;
}

/*
 * Is that session alive?  Where there is no room to test its lock, a copy of the
 * lock table tells.  A copy that is older than what has named this session may
 * lack it, although it is alive: only a new copy proves that it is dead.
 */
static bool
test_session(int64 session_id)
{
	LOCKTAG		tag = le_session_tag(session_id);
	Held		held = is_held(tag);

	if (held == UNTESTABLE)
		return is_in_copy(tag, COPY_LIFE) || is_in_copy(tag, 0);
	return held == HELD;
}

bool
le_session_alive(int64 session_id)
{
	Remembered *session;
	bool		found;

	if (remembered == NULL)
		return test_session(session_id);
	session = hash_search(remembered, &session_id, HASH_ENTER, &found);
	if (!found)
		session->alive = test_session(session_id);
	return session->alive;
}

/*
 * Until the transaction ends, test each session once.  This is for transactions
 * that look at many rows and take no lease from a session: a session that is
 * found alive may have ended since.  (One that is dead stays dead.)
 */
void
le_sessions_remember(void)
{
	HASHCTL		info;

	memset(&info, 0, sizeof(info));
	info.keysize = sizeof(int64);
	info.entrysize = sizeof(Remembered);
	info.hcxt = TopTransactionContext;
	remembered = hash_create("leader_election sessions", 64, &info,
							 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/*
 * Does this transaction hold an election lock in Exclusive mode?  A savepoint that
 * is rolled back releases the locks that were taken last: they are dropped from
 * the end of the list.
 */
bool
le_election_lock_is_mine(void)
{
	while (election_locks != NIL)
	{
		if (LeLockHeldByMe(llast(election_locks), ExclusiveLock))
			return true;
		election_locks = list_delete_last(election_locks);
	}
	return false;
}

LOCKTAG
le_election_tag(const char *election)
{
	return make_name_tag(LOCK_ELECTION, election, NULL);
}

/*
 * This backend lives, but has lost a session lock that it had: others are to
 * see that from now on, until it unmarks itself, or ends.
 */
void
le_reset_mark(void)
{
	LOCKTAG		tag = make_tag(LOCK_RESET, MyProcPid);

	if (!LeLockHeldByMe(&tag, ExclusiveLock))
		(void) try_lock(tag, ExclusiveLock, true);
}

void
le_reset_unmark(void)
{
	LOCKTAG		tag = make_tag(LOCK_RESET, MyProcPid);

	if (LeLockHeldByMe(&tag, ExclusiveLock))
		LockRelease(&tag, ExclusiveLock, true);
}

/*
 * Is the backend alive whose session lock is gone?  An exiting backend is still
 * in the server's list of processes when its locks are free, but not in a
 * transaction any more.  So one that is in a transaction lives, and has lost the
 * lock in it.  When that commits the backend marks itself first.
 *
 * The answer, which only names the reason in the history, is wrong in three cases.
 * If the transaction rolls back instead, or if there is no room for the mark, the
 * backend is taken for one that has ended.  A backend that gives up its campaign
 * in the moment in which it is elected is taken for one that was reset.
 */
bool
le_was_reset(int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);

	if (proc != NULL && proc->databaseId == MyDatabaseId &&
		LeIsInTransaction(proc))
		return true;
	return is_held(make_tag(LOCK_RESET, pid)) == HELD;
}

/*
 * The mutex around a lease row, until the transaction ends.  With wait, it
 * queues as long as lock_timeout allows, unless this transaction holds such a
 * lock already.
 */
bool
le_election_lock(const char *election, bool wait)
{
	LOCKTAG		tag = le_election_tag(election);
	MemoryContext old;
	LOCKTAG    *held;

	if (wait && !le_election_lock_is_mine())
		wait_for_lock(tag, ExclusiveLock);
	else if (!try_lock(tag, ExclusiveLock, false))
		return false;
	old = MemoryContextSwitchTo(TopTransactionContext);
	held = palloc(sizeof(LOCKTAG));
	*held = tag;
	election_locks = lappend(election_locks, held);
	MemoryContextSwitchTo(old);
	return true;
}

/*
 * Release it before the transaction ends: no lease was written under it.
 */
void
le_election_unlock(const char *election)
{
	LOCKTAG		tag = le_election_tag(election);

	LockRelease(&tag, ExclusiveLock, false);
}

/*
 * Nobody else changes the lease row's holder until the transaction ends.  With
 * wait, it queues as above; a transaction that takes several takes them in the
 * order below.
 */
bool
le_election_lock_shared(const LOCKTAG *tag, bool wait)
{
	/* A request that queues behind our own lock must not keep us from it. */
	if (LeLockHeldByMe(tag, ExclusiveLock))
		return true;
	if (!wait || le_election_lock_is_mine())
		return try_lock(*tag, ShareLock, false);
	wait_for_lock(*tag, ShareLock);
	return true;
}

int
le_election_lock_order(const LOCKTAG *a, const LOCKTAG *b)
{
	return memcmp(a, b, sizeof(LOCKTAG));
}

/*
 * The right to insert a row of that name, until the transaction ends: without
 * it an insert would wait for an uncommitted twin.  candidate NULL: the
 * election's own rows.
 */
bool
le_name_lock(const char *election, const char *candidate)
{
	return try_lock(make_name_tag(LOCK_NAME, election, candidate),
					ExclusiveLock, false);
}

/*
 * The election of that name is not dropped before the transaction ends.
 */
bool
le_name_lock_shared(const char *election)
{
	return try_lock(make_name_tag(LOCK_NAME, election, NULL), ShareLock, false);
}

/*
 * Release these before the transaction ends: nothing was written under them.
 * A call that waits for one of them must hold none that others wait for.
 */
void
le_name_unlock(const char *election, const char *candidate)
{
	LOCKTAG		tag = make_name_tag(LOCK_NAME, election, candidate);

	LockRelease(&tag, ExclusiveLock, false);
}

void
le_name_unlock_shared(const char *election)
{
	LOCKTAG		tag = make_name_tag(LOCK_NAME, election, NULL);

	LockRelease(&tag, ShareLock, false);
}

/* A transaction that begins an epoch holds this, and does nothing else. */
bool
le_epoch_lock(void)
{
	return try_lock(make_tag(LOCK_EPOCH, 0), ExclusiveLock, false);
}

bool
le_epoch_lock_is_mine(void)
{
	LOCKTAG		tag = make_tag(LOCK_EPOCH, 0);

	return LeLockHeldByMe(&tag, ExclusiveLock);
}

/*
 * One worker per database holds this for as long as it works.  Its entry in the
 * lock table, in AccessShare mode, stays its own after le_worker_unlock(): a
 * worker that has to go on after all needs no room for that.
 */
bool
le_worker_lock(void)
{
	LOCKTAG		tag = make_tag(LOCK_WORKER, 0);

	if (!LeLockHeldByMe(&tag, AccessShareLock))
		(void) try_lock(tag, AccessShareLock, true);
	return try_lock(tag, ExclusiveLock, true);
}

void
le_worker_unlock(void)
{
	LOCKTAG		tag = make_tag(LOCK_WORKER, 0);

	LockRelease(&tag, ExclusiveLock, true);
}

/*
 * Has this database certainly no worker?  Without room for a test, a new one
 * would find no room for its lock either.
 */
bool
le_worker_lock_is_free(void)
{
	return is_held(make_tag(LOCK_WORKER, 0)) == NOT_HELD;
}

/* The place of a worker that waits until another one has ended. */
bool
le_next_worker_lock(void)
{
	return try_lock(make_tag(LOCK_NEXT_WORKER, 0), ExclusiveLock, true);
}

void
le_next_worker_unlock(void)
{
	LOCKTAG		tag = make_tag(LOCK_NEXT_WORKER, 0);

	LockRelease(&tag, ExclusiveLock, true);
}

/* A session that starts a worker holds this until that one is there. */
bool
le_starter_lock(void)
{
	return try_lock(make_tag(LOCK_STARTER, 0), ExclusiveLock, false);
}

void
le_starter_unlock(void)
{
	LOCKTAG		tag = make_tag(LOCK_STARTER, 0);

	LockRelease(&tag, ExclusiveLock, false);
}

/*
 * Is there room for so many locks in the lock table?  Without room no transaction
 * gets a number, and so none can renew a lease.
 */
bool
le_lock_room(int locks)
{
	uint64		key = (uint64) MyProcPid << 32;
	int			taken = 0;
	bool		room;

	while (taken < locks &&
		   try_lock(make_tag(LOCK_SPARE, key + taken), AccessShareLock, true))
		taken++;
	room = taken == locks;
	while (taken > 0)
	{
		LOCKTAG		tag = make_tag(LOCK_SPARE, key + --taken);

		LockRelease(&tag, AccessShareLock, true);
	}
	return room;
}

/* How many spare entries this process, a worker, has */
static int	spares = 0;

/* When to take them back, and after which pause if there is no room then */
static int64 spares_retry_at = 0;
static int64 spares_pause = SPARES_PAUSE;

/*
 * Free the spare entries, for transactions that renew leases: ours, and those of
 * detached leaders.  False: they were free already.
 */
bool
le_spares_release(void)
{
	bool		had_any = spares > 0;

	while (spares > 0)
	{
		LOCKTAG		tag = make_tag(LOCK_SPARE, --spares);

		LockRelease(&tag, AccessShareLock, true);
	}
	if (had_any)
		spares_retry_at = le_clock() + spares_pause;
	return had_any;
}

/*
 * Keep spare entries in the lock table, or free them if there is no room but
 * theirs.  They are taken back when there is room for twice as many.  To find that
 * out takes all room for a moment, which others may miss: so it is done ever less
 * often.  The worker calls this in each round; returns when to call it again, at
 * the latest.
 */
int64
le_spares_keep(void)
{
	if (spares > 0 && !le_lock_room(1))
		(void) le_spares_release();
	if (spares > 0)
		return PG_INT64_MAX;
	if (le_clock() < spares_retry_at)
		return spares_retry_at;
	while (spares < 2 * SPARES &&
		   try_lock(make_tag(LOCK_SPARE, spares), AccessShareLock, true))
		spares++;
	if (spares < 2 * SPARES)
	{
		(void) le_spares_release();
		spares_pause = Min(spares_pause * 2, LONGEST_SPARES_PAUSE);
		spares_retry_at = le_clock() + spares_pause;
		return spares_retry_at;
	}
	spares_pause = SPARES_PAUSE;
	while (spares > SPARES)
	{
		LOCKTAG		tag = make_tag(LOCK_SPARE, --spares);

		LockRelease(&tag, AccessShareLock, true);
	}
	return PG_INT64_MAX;
}

/*
 * Wake the other background workers of a database (InvalidOid: those of none),
 * ours among them: a handful, and a spurious wake-up is harmless.  That needs no
 * shared memory of our own.  It waits for nothing and cannot fail: backends
 * call it while they exit.
 */
void
le_wake_workers(Oid database)
{
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];

		if (proc->pid != 0 && proc != MyProc &&
			proc->databaseId == database && LeIsBackgroundWorker(proc))
			SetLatch(&proc->procLatch);
	}
}

void
le_wake_backend(int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);

	if (proc != NULL)
		SetLatch(&proc->procLatch);
}

/*
 * Wake the backends of this database that wait for this event.
 */
void
le_wake_waiters(uint32 wait_event)
{
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];

		if (proc->pid != 0 && proc->databaseId == MyDatabaseId &&
			proc->wait_event_info == wait_event)
			SetLatch(&proc->procLatch);
	}
}

void
le_lock_end_of_xact(void)
{
	election_locks = NIL;
	remembered = NULL;
}
