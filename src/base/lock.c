/*-------------------------------------------------------------------------
 *
 * lock.c
 *		The private class of advisory locks.
 *
 * These are advisory locks whose tags have 20 or more in the fourth field.
 * The functions of PostgreSQL use 1 and 2 there, so that no application can
 * take a lock of ours.
 *
 * Invariants:
 *
 * - A transaction queues for an election lock or a group lock only while it
 *	 holds no other one of either kind in Exclusive mode: two that queued for
 *	 each other's lock would deadlock.
 *
 * - Nobody can find a name whose lock is the lock of another name: the tag is
 *	 the beginning of a SHA-256.  If the hash could be inverted, a role that
 *	 may create elections could hold the lock of any other election.
 *
 * - A full lock table proves nothing.  A conditional request fails for want of
 *	 room as it fails for a lock that is held.  So where it matters who holds a
 *	 lock, le_lock_is_held() tests it.
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
#include "utils/memutils.h"

/*
 * The election locks, and group locks, that this transaction has taken in
 * Exclusive mode
 */
static List *exclusive_locks = NIL;

/*
 * The tag of a lock.  No other function makes one.
 */
LOCKTAG
le_lock_tag(LockClass class, uint64 key)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (key >> 32),
						 (uint32) key, class);
	return tag;
}

/*
 * The tag of a name, or of two (second may be NULL): the first 8 bytes of the
 * SHA-256 of the class and of each name with the zero byte that ends it.  To
 * be called in a transaction only: the server's SHA-256 needs a resource
 * owner.
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
	return le_lock_tag(class, pg_ntoh64(key));
}

/*
 * Take a lock if it is free.  False: it is not, or there is no room.
 */
bool
le_lock_try(LOCKTAG tag, LOCKMODE mode, bool session_level)
{
	return LeLockTry(&tag, mode, session_level, NULL);
}

static void
release(LOCKTAG tag, LOCKMODE mode, bool session_level)
{
	LockRelease(&tag, mode, session_level);
}

/*
 * Does anybody hold the lock in Exclusive mode?
 *
 * The test takes two locks.  No lock of ours conflicts with AccessShare mode,
 * so that the first request fails only for want of room.  Once it is granted,
 * this process has an entry in the lock table, and the second request fails
 * only if somebody holds the lock.  It asks for Share mode: two testers in
 * Exclusive mode would take each other for the holder.
 *
 * Outside of a transaction, the session owns the locks of the test.  Not to be
 * called in parallel mode, where a process gets each lock that its leader
 * holds.
 */
Held
le_lock_is_held(LOCKTAG tag)
{
	bool		outside = !IsTransactionState();
	bool		free;

	Assert(!IsInParallelMode());
	if (LeLockHeldByMe(&tag, ExclusiveLock))
		return HELD;
	if (!le_lock_try(tag, AccessShareLock, outside))
		return UNTESTABLE;
	free = le_lock_try(tag, ShareLock, outside);
	if (free)
		release(tag, ShareLock, outside);
	release(tag, AccessShareLock, outside);
	return free ? NOT_HELD : HELD;
}

/*
 * Who holds the lock in Exclusive mode, as this copy of the lock table tells;
 * NULL: nobody.  To make a copy takes no room in the lock table.
 */
const LockInstanceData *
le_lock_holder(const LockData *copy, const LOCKTAG *tag)
{
	for (int i = 0; i < copy->nelements; i++)
	{
		const LockInstanceData *lock = &copy->locks[i];

		if ((lock->holdMask & LOCKBIT_ON(ExclusiveLock)) != 0 &&
			memcmp(&lock->locktag, tag, sizeof(LOCKTAG)) == 0)
			return lock;
	}
	return NULL;
}

/*
 * Does this transaction hold an election lock, or a group lock, in Exclusive
 * mode?  A rollback to a savepoint has released the locks that were taken
 * last: this drops them from the end of the list.
 */
bool
le_lock_holds_exclusive(void)
{
	while (exclusive_locks != NIL)
	{
		if (LeLockHeldByMe(llast(exclusive_locks), ExclusiveLock))
			return true;
		exclusive_locks = list_delete_last(exclusive_locks);
	}
	return false;
}

/*
 * The tag of a mutex: LOCK_ELECTION protects who holds the lease of the
 * election of this name, LOCK_GROUP who has which seats of the group of this
 * name.
 */
LOCKTAG
le_lock_mutex_tag(LockClass class, const char *name)
{
	static char last_name[LE_NAME_MAX + 1];
	static LOCKTAG last = {.locktag_field4 = 0};	/* of no class yet */
	LOCKTAG		tag;

	/* A process asks for the same lock again and again: keep its tag. */
	if (last.locktag_field4 == class && strcmp(name, last_name) == 0)
		return last;
	tag = make_name_tag(class, name, NULL);
	if (strlen(name) <= LE_NAME_MAX)
	{
		strcpy(last_name, name);
		last = tag;
	}
	return tag;
}

/*
 * Take such a lock in Exclusive mode until the transaction ends.  That of a
 * group comes before those of elections.  With wait, this queues as long as
 * lock_timeout allows, unless this transaction holds another such lock: then
 * it only tries.
 */
bool
le_lock_mutex(LockClass class, const char *name, bool wait)
{
	LOCKTAG		tag = le_lock_mutex_tag(class, name);
	MemoryContext old;
	LOCKTAG    *held;

	if (wait && !le_lock_holds_exclusive())
		(void) LockAcquire(&tag, ExclusiveLock, false, false);
	else if (!le_lock_try(tag, ExclusiveLock, false))
		return false;
	old = MemoryContextSwitchTo(TopTransactionContext);
	held = palloc(sizeof(LOCKTAG));
	*held = tag;
	exclusive_locks = lappend(exclusive_locks, held);
	MemoryContextSwitchTo(old);
	return true;
}

/*
 * Release such a lock before the transaction ends, or undo the last of several
 * requests for it.  The caller has written no lease under it (has granted and
 * reserved nothing since that request): the next process to get the lock would
 * read the old row.
 */
void
le_lock_release_mutex(LockClass class, const char *name)
{
	release(le_lock_mutex_tag(class, name), ExclusiveLock, false);
}

/*
 * Take the election lock in Share mode until the transaction ends: nobody
 * changes the lease's holder meanwhile.  With wait, this queues as
 * le_lock_mutex() does.  A transaction that queues for several election
 * locks takes them in the order of their tags.  Otherwise, two that take A and
 * B in opposite orders would deadlock if changes of both holders queued in
 * between: a request for Share mode waits behind a queued request for
 * Exclusive mode.
 */
bool
le_lock_election_shared(const LOCKTAG *tag, bool wait)
{
	/*
	 * Another process may queue behind our Exclusive lock.  Its request would
	 * make ours for Share mode fail, although no other process has the lock.
	 */
	if (LeLockHeldByMe(tag, ExclusiveLock))
		return true;
	if (!wait || le_lock_holds_exclusive())
		return le_lock_try(*tag, ShareLock, false);
	(void) LockAcquire(tag, ShareLock, false, false);
	return true;
}

/*
 * Release the election lock in Share mode, if this transaction has it, before
 * the transaction ends.  The caller knows that it will not commit.
 */
void
le_lock_release_election_shared(const LOCKTAG *tag)
{
	if (LeLockHeldByMe(tag, ShareLock))
		release(*tag, ShareLock, false);
}

/*
 * The virtual transactions of other processes that hold the election lock in
 * Share mode, and how many there are (*count).  Those that have ended, and
 * have not released their locks yet, are not among them.
 */
VirtualTransactionId *
le_lock_election_sharers(const LOCKTAG *tag, int *count)
{
	VirtualTransactionId *holders = GetLockConflicts(tag, RowShareLock, count);

	/* RowShare mode conflicts with Exclusive, which excludes Share. */
	if (*count == 0)
		return GetLockConflicts(tag, RowExclusiveLock, count);
	*count = 0;
	return holders;
}

/*
 * Take the name lock of a candidate (NULL: of the election) until the
 * transaction ends.  In Exclusive mode that is the right to insert the row of
 * that name: without it, the insert would wait for a transaction that has
 * inserted the same name and has not ended.  The election's in Share mode:
 * nobody makes or drops the election before the transaction ends.
 */
bool
le_lock_name(const char *election, const char *candidate, LOCKMODE mode)
{
	if (!le_lock_try(make_name_tag(LOCK_NAME, election, candidate), mode, false))
		return false;
	if (mode == ExclusiveLock)
		le_xact_holds = true;
	return true;
}

/*
 * Release a name lock before the transaction ends.  The caller has written
 * nothing under it, and goes on waiting: two calls that wait for each other's
 * name locks would never get them.
 */
void
le_lock_release_name(const char *election, const char *candidate, LOCKMODE mode)
{
	release(make_name_tag(LOCK_NAME, election, candidate), mode, false);
}

/*
 * A lock of which a database has one: does a process keep it from one
 * transaction to the next?
 */
static bool
is_of_session(LockClass class)
{
	return class == LOCK_WORKER || class == LOCK_NEXT_WORKER;
}

/*
 * Take such a lock in Exclusive mode, if it is free.
 *
 * LOCK_STARTER: a session holds it from before it starts a worker until the
 * worker has its own lock, so that other sessions start none.
 *
 * LOCK_NEXT_WORKER: the process that waits for the worker to end, to follow it,
 * holds it.  A further process does not get the lock, and ends.
 *
 * LOCK_EPOCH: a transaction that begins an epoch holds it until it ends, and
 * does nothing else (see le_store_lock()).
 */
bool
le_lock_take(LockClass class)
{
	return le_lock_try(le_lock_tag(class, 0), ExclusiveLock,
					   is_of_session(class));
}

void
le_lock_release(LockClass class)
{
	release(le_lock_tag(class, 0), ExclusiveLock, is_of_session(class));
}

bool
le_lock_is_mine(LockClass class)
{
	LOCKTAG		tag = le_lock_tag(class, 0);

	return LeLockHeldByMe(&tag, ExclusiveLock);
}

/*
 * Take the lock that the worker of a database holds while it works.  The
 * process also takes it in AccessShare mode, and keeps that after it has
 * released it: if it has to go on after all, it needs no new room in the lock
 * table.
 */
bool
le_lock_worker(void)
{
	LOCKTAG		tag = le_lock_tag(LOCK_WORKER, 0);

	if (!LeLockHeldByMe(&tag, AccessShareLock))
		(void) le_lock_try(tag, AccessShareLock, true);
	return le_lock_take(LOCK_WORKER);
}

/*
 * Has this database certainly no worker?  Without room for the test the answer
 * is no: a new worker would find no room for its lock either.  So one request
 * is enough: it fails if the lock is held, and if there is no room.
 */
bool
le_lock_worker_is_free(void)
{
	LOCKTAG		tag = le_lock_tag(LOCK_WORKER, 0);
	bool		outside = !IsTransactionState();

	if (LeLockHeldByMe(&tag, ExclusiveLock) ||
		!le_lock_try(tag, ShareLock, outside))
		return false;
	release(tag, ShareLock, outside);
	return true;
}

/*
 * The process ID of this database's worker, as a copy of the lock table tells;
 * 0: there is none.
 */
int
le_lock_worker_pid(const LockData *copy)
{
	LOCKTAG		tag = le_lock_tag(LOCK_WORKER, 0);
	const LockInstanceData *lock = le_lock_holder(copy, &tag);

	return lock != NULL ? lock->pid : 0;
}

#ifdef USE_ASSERT_CHECKING

/*
 * Does this transaction hold the lock of an election or a group in that mode,
 * or in Exclusive mode?
 */
bool
le_lock_holds_mutex(LockClass class, const char *name, LOCKMODE mode)
{
	LOCKTAG		tag = le_lock_mutex_tag(class, name);

	return LeLockHeldByMe(&tag, mode) || LeLockHeldByMe(&tag, ExclusiveLock);
}

/*
 * Does this transaction hold the name lock of a candidate (NULL: of the
 * election), in either mode?
 */
bool
le_lock_holds_name(const char *election, const char *candidate)
{
	LOCKTAG		tag = make_name_tag(LOCK_NAME, election, candidate);

	return LeLockHeldByMe(&tag, ExclusiveLock) ||
		LeLockHeldByMe(&tag, ShareLock);
}
#endif

/*
 * The transaction has ended and released its locks: forget what we know of
 * them.
 */
void
le_lock_forget(void)
{
	exclusive_locks = NIL;
}
