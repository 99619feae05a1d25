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
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "leader_election.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procarray.h"

typedef enum LockClass
{
	LOCK_SESSION = 20,
	LOCK_ELECTION,
	LOCK_NAME,
	LOCK_WORKER,
	LOCK_STARTER,
	LOCK_EPOCH
} LockClass;

/* How many election locks this transaction holds in Exclusive mode */
static int	election_locks = 0;

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

static uint64
hash_name(const char *name, uint64 seed)
{
	return DatumGetUInt64(hash_any_extended((const unsigned char *) name,
											strlen(name), seed));
}

static bool
acquire(LOCKTAG tag, LOCKMODE mode, bool session_level, bool wait)
{
	return LockAcquire(&tag, mode, session_level, !wait) !=
		LOCKACQUIRE_NOT_AVAIL;
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

	do
	{
		if (!pg_strong_random(&id, sizeof(id)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random session number")));
		id &= PG_INT64_MAX;
	} while (id == 0 ||
			 !acquire(le_session_tag((int64) id), ExclusiveLock, true, false));
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
 * Is that session alive?  The test takes the lock in Share mode, so that two
 * testers do not take each other for the session.  A lock group always gets
 * its own locks: not to be called in parallel mode.
 */
bool
le_session_alive(int64 session_id)
{
	LOCKTAG		tag = le_session_tag(session_id);

	Assert(!IsInParallelMode());
	if (LeLockHeldByMe(&tag, ExclusiveLock))
		return true;
	if (!acquire(tag, ShareLock, false, false))
		return true;
	LockRelease(&tag, ShareLock, false);
	return false;
}

/*
 * The mutex around a lease row, until the transaction ends.  With wait, it
 * queues as long as lock_timeout allows, unless this transaction holds such a
 * lock already.
 */
bool
le_election_lock(const char *election, bool wait)
{
	LOCKTAG		tag = make_tag(LOCK_ELECTION, hash_name(election, 0));

	if (!acquire(tag, ExclusiveLock, false, wait && election_locks == 0))
		return false;
	election_locks++;
	return true;
}

/*
 * Release it before the transaction ends: no lease was written under it.
 */
void
le_election_unlock(const char *election)
{
	LOCKTAG		tag = make_tag(LOCK_ELECTION, hash_name(election, 0));

	LockRelease(&tag, ExclusiveLock, false);
	election_locks--;
}

/*
 * Nobody else changes the lease row's holder until the transaction ends.  With
 * wait, it queues as above; whoever takes several takes them in the order
 * below.
 */
bool
le_election_lock_shared(const char *election, bool wait)
{
	LOCKTAG		tag = make_tag(LOCK_ELECTION, hash_name(election, 0));

	/* Whoever queues behind our own lock must not keep us from it. */
	if (election_locks > 0 && LeLockHeldByMe(&tag, ExclusiveLock))
		return true;
	return acquire(tag, ShareLock, false, wait && election_locks == 0);
}

int
le_election_lock_order(const char *a, const char *b)
{
	uint64		x = hash_name(a, 0);
	uint64		y = hash_name(b, 0);

	return x < y ? -1 : x > y;
}

static LOCKTAG
name_tag(const char *election, const char *candidate)
{
	uint64		key = hash_name(election, 1);

	if (candidate != NULL)
		key = hash_name(candidate, key);
	return make_tag(LOCK_NAME, key);
}

/*
 * The right to insert a row of that name, until the transaction ends: without
 * it an insert would wait for an uncommitted twin.  candidate NULL: the
 * election's own rows.
 */
bool
le_name_lock(const char *election, const char *candidate)
{
	return acquire(name_tag(election, candidate), ExclusiveLock, false, false);
}

/*
 * The election of that name is not dropped before the transaction ends.
 */
bool
le_name_lock_shared(const char *election)
{
	return acquire(name_tag(election, NULL), ShareLock, false, false);
}

/*
 * Release these before the transaction ends: nothing was written under them.
 * Whoever waits for one of them must hold none that others wait for.
 */
void
le_name_unlock(const char *election, const char *candidate)
{
	LOCKTAG		tag = name_tag(election, candidate);

	LockRelease(&tag, ExclusiveLock, false);
}

void
le_name_unlock_shared(const char *election)
{
	LOCKTAG		tag = name_tag(election, NULL);

	LockRelease(&tag, ShareLock, false);
}

bool
le_epoch_lock(void)
{
	return acquire(make_tag(LOCK_EPOCH, 0), ExclusiveLock, false, false);
}

/* One worker per database holds this for as long as it works. */
bool
le_worker_lock(void)
{
	return acquire(make_tag(LOCK_WORKER, 0), ExclusiveLock, true, false);
}

void
le_worker_unlock(void)
{
	LOCKTAG		tag = make_tag(LOCK_WORKER, 0);

	LockRelease(&tag, ExclusiveLock, true);
}

bool
le_worker_lock_is_free(void)
{
	LOCKTAG		tag = make_tag(LOCK_WORKER, 0);

	if (!acquire(tag, ShareLock, false, false))
		return false;
	LockRelease(&tag, ShareLock, false);
	return true;
}

/* Whoever starts a worker holds this until it is there. */
bool
le_starter_lock(void)
{
	return acquire(make_tag(LOCK_STARTER, 0), ExclusiveLock, false, false);
}

void
le_starter_unlock(void)
{
	LOCKTAG		tag = make_tag(LOCK_STARTER, 0);

	LockRelease(&tag, ExclusiveLock, false);
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
	election_locks = 0;
}
