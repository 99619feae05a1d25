/*-------------------------------------------------------------------------
 *
 * session_lock.c
 *		The session lock, which shows that a session is alive.
 *
 * Invariant: a session is alive exactly while its session lock is held.  The
 * server releases the lock however the session ends.  Nobody takes it again:
 * its number is random, and a session that has lost its lock draws a new one
 * for its next candidacy.  (By the old one it would revive leaderships that
 * the worker may already have given to others.)
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

/* For how long a copy of the lock table may answer "alive": 50 ms */
#define COPY_LIFE		INT64CONST(50000)

/* A session that this transaction has tested */
typedef struct Remembered
{
	int64		session_id;		/* hash key */
	bool		alive;
} Remembered;

/* See le_sessions_remember(); NULL: sessions are tested each time */
static HTAB *remembered = NULL;

LOCKTAG
le_session_lock_tag(int64 session_id)
{
	return le_lock_tag(LOCK_SESSION, (uint64) session_id);
}

/*
 * Draw a new session_id (63 random bits, not 0), and take its lock.
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
 * Release a session lock of this session, if it still holds it.  This touches
 * nothing but the lock table, and may be called while a transaction ends.
 */
void
le_session_lock_release(int64 session_id)
{
	LOCKTAG		tag = le_session_lock_tag(session_id);

	if (LeLockHeldByMe(&tag, ExclusiveLock))
		LockRelease(&tag, ExclusiveLock, true);
}

/*
 * Does a copy of the lock table that is younger than max_age say that the lock
 * is held?  To make a copy takes milliseconds: the last one is kept.
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
	return le_lock_holder(copy, &tag) != NULL;
}

/*
 * Is that session alive?  If there is no room to test its lock, a copy of the
 * lock table answers.  If the session is in a copy that is not too old, it was
 * alive then.  If it is not, it may have begun after that copy was made: only
 * a new copy proves that it is dead.
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

/*
 * Is that session alive?  False proves that it is dead only if this
 * incarnation granted its lease: see le_lease_state().
 */
bool
le_session_alive(int64 session_id)
{
	Remembered *session;
	bool		alive;

	if (remembered == NULL)
		return test_session(session_id);
	session = hash_search(remembered, &session_id, HASH_FIND, NULL);
	if (session != NULL)
		return session->alive;
	alive = test_session(session_id);	/* may fail, and leaves no entry then */
	session = hash_search(remembered, &session_id, HASH_ENTER, NULL);
	session->alive = alive;
	return alive;
}

/*
 * Until the transaction ends, or le_session_lock_forget(), test each session
 * once, and remember the answer.  Only where many rows are read, and no lease is
 * taken from a session: a session that was alive may have ended since.  (A dead
 * one stays dead.)  True: they were remembered already.
 */
bool
le_sessions_remember(void)
{
	if (remembered != NULL)
		return true;
	remembered = le_hash_make("leader_election sessions", sizeof(int64),
							  sizeof(Remembered), HASH_BLOBS,
							  TopTransactionContext);
	return false;
}

/*
 * Mark this backend as one that lives but has lost its session lock (DISCARD
 * ALL, pg_advisory_unlock_all()), until it removes the mark or ends.
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
 * A session lock is free: does its backend live, so that it has lost the lock?
 *
 * An exiting backend is still in the server's list of processes when its locks
 * are free, but is in no transaction.  So a backend that is in a transaction
 * lives, and has lost the lock in that transaction.  Before it commits, it
 * marks itself.
 *
 * The answer only names the reason in the history, and is wrong in three
 * cases.  If the transaction rolls back, or if there is no room for the mark,
 * a backend that lives is taken for one that has ended.  If a backend gives up
 * its campaign at the moment at which it is elected, it is taken for one that
 * was reset.
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

/*
 * Forget which sessions were tested, at the end of the transaction at the latest.
 */
void
le_session_lock_forget(void)
{
	if (remembered != NULL)
		hash_destroy(remembered);
	remembered = NULL;
}
