/*-------------------------------------------------------------------------
 *
 * session_lock.c
 *		Which sessions live: the session lock.
 *
 * Invariant: a session is alive exactly while its session lock is held.  The
 * server releases it however the session ends, and nobody can take it again: its
 * number is random and is drawn anew for every candidacy after it was lost.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#define COPY_LIFE		INT64CONST(50000)

/* A session that this transaction has tested */
typedef struct Remembered
{
	int64		session_id;		/* hash key */
	bool		alive;
} Remembered;

/* NULL: sessions are tested each time */
static HTAB *remembered = NULL;

LOCKTAG
le_session_lock_tag(int64 session_id)
{
	return le_lock_tag(LOCK_SESSION, (uint64) session_id);
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
		tag = le_session_lock_tag((int64) id);
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
	LOCKTAG		tag = le_session_lock_tag(session_id);

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
	LOCKTAG		tag = le_session_lock_tag(session_id);
	Held		held = le_lock_is_held(tag);

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
 * This backend lives, but has lost a session lock that it had: others are to
 * see that from now on, until it unmarks itself, or ends.
 */
void
le_session_lock_mark_lost(void)
{
	LOCKTAG		tag = le_lock_tag(LOCK_RESET, MyProcPid);

	if (!LeLockHeldByMe(&tag, ExclusiveLock))
		(void) le_lock_try(tag, ExclusiveLock, true);
}

void
le_session_lock_unmark_lost(void)
{
	LOCKTAG		tag = le_lock_tag(LOCK_RESET, MyProcPid);

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
le_session_lock_was_lost(int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);

	if (proc != NULL && proc->databaseId == MyDatabaseId &&
		LeIsInTransaction(proc))
		return true;
	return le_lock_is_held(le_lock_tag(LOCK_RESET, pid)) == HELD;
}

/* The transaction ends. */
void
le_session_lock_forget(void)
{
	remembered = NULL;
}
