/*-------------------------------------------------------------------------
 *
 * lock.c
 *		The private class of advisory locks.
 *
 * Advisory lock tags whose fourth field is 20 or more: PostgreSQL's own
 * functions use 1 and 2, so that no application key can be one of ours.
 *
 * Invariants:
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
 *	 locks whose holders decide are tested by le_lock_is_held().
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

/* The election locks that this transaction has taken in Exclusive mode */
static List *election_locks = NIL;

/*
 * The one place where tags are made.
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
	return le_lock_tag(class, pg_ntoh64(key));
}

/*
 * Take a lock if it is free; without error, but in vain, if there is no room.
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
 * The tag of a lock of which a database has one.
 */
static LOCKTAG
database_tag(LockClass class)
{
	return le_lock_tag(class, 0);
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
 * Does this transaction hold an election lock in Exclusive mode?  A savepoint that
 * is rolled back releases the locks that were taken last: they are dropped from
 * the end of the list.
 */
bool
le_lock_election_is_mine(void)
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
le_lock_election_tag(const char *election)
{
	return make_name_tag(LOCK_ELECTION, election, NULL);
}

/*
 * The mutex around a lease row, until the transaction ends.  With wait, it
 * queues as long as lock_timeout allows, unless this transaction holds such a
 * lock already.
 */
bool
le_lock_election(const char *election, bool wait)
{
	LOCKTAG		tag = le_lock_election_tag(election);
	MemoryContext old;
	LOCKTAG    *held;

	if (wait && !le_lock_election_is_mine())
		(void) LockAcquire(&tag, ExclusiveLock, false, false);
	else if (!le_lock_try(tag, ExclusiveLock, false))
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
le_unlock_election(const char *election)
{
	release(le_lock_election_tag(election), ExclusiveLock, false);
}

/*
 * Nobody else changes the lease row's holder until the transaction ends.  With
 * wait, it queues as above; a transaction that takes several takes them in the
 * order below.
 */
bool
le_lock_election_shared(const LOCKTAG *tag, bool wait)
{
	/* A request that queues behind our own lock must not keep us from it. */
	if (LeLockHeldByMe(tag, ExclusiveLock))
		return true;
	if (!wait || le_lock_election_is_mine())
		return le_lock_try(*tag, ShareLock, false);
	(void) LockAcquire(tag, ShareLock, false, false);
	return true;
}

int
le_lock_election_order(const LOCKTAG *a, const LOCKTAG *b)
{
	return memcmp(a, b, sizeof(LOCKTAG));
}

/*
 * The right to insert a row of that name, until the transaction ends: without
 * it an insert would wait for an uncommitted twin.  candidate NULL: the
 * election's own rows.
 */
bool
le_lock_name(const char *election, const char *candidate)
{
	return le_lock_try(make_name_tag(LOCK_NAME, election, candidate),
					   ExclusiveLock, false);
}

/*
 * The election of that name is not dropped before the transaction ends.
 */
bool
le_lock_name_shared(const char *election)
{
	return le_lock_try(make_name_tag(LOCK_NAME, election, NULL), ShareLock, false);
}

/*
 * Release these before the transaction ends: nothing was written under them.
 * A call that waits for one of them must hold none that others wait for.
 */
void
le_unlock_name(const char *election, const char *candidate)
{
	release(make_name_tag(LOCK_NAME, election, candidate), ExclusiveLock,
			false);
}

void
le_unlock_name_shared(const char *election)
{
	release(make_name_tag(LOCK_NAME, election, NULL), ShareLock, false);
}

/* A transaction that begins an epoch holds this, and does nothing else. */
bool
le_lock_epoch(void)
{
	return le_lock_try(database_tag(LOCK_EPOCH), ExclusiveLock, false);
}

bool
le_lock_epoch_is_mine(void)
{
	LOCKTAG		tag = database_tag(LOCK_EPOCH);

	return LeLockHeldByMe(&tag, ExclusiveLock);
}

/*
 * One worker per database holds this for as long as it works.  Its entry in the
 * lock table, in AccessShare mode, stays its own after le_unlock_worker(): a
 * worker that has to go on after all needs no room for that.
 */
bool
le_lock_worker(void)
{
	LOCKTAG		tag = database_tag(LOCK_WORKER);

	if (!LeLockHeldByMe(&tag, AccessShareLock))
		(void) le_lock_try(tag, AccessShareLock, true);
	return le_lock_try(tag, ExclusiveLock, true);
}

void
le_unlock_worker(void)
{
	release(database_tag(LOCK_WORKER), ExclusiveLock, true);
}

/*
 * Has this database certainly no worker?  Without room for a test, a new one
 * would find no room for its lock either.
 */
bool
le_lock_worker_is_free(void)
{
	return le_lock_is_held(database_tag(LOCK_WORKER)) == NOT_HELD;
}

/* The place of a worker that waits until another one has ended. */
bool
le_lock_next_worker(void)
{
	return le_lock_try(database_tag(LOCK_NEXT_WORKER), ExclusiveLock, true);
}

void
le_unlock_next_worker(void)
{
	release(database_tag(LOCK_NEXT_WORKER), ExclusiveLock, true);
}

/* A session that starts a worker holds this until that one is there. */
bool
le_lock_starter(void)
{
	return le_lock_try(database_tag(LOCK_STARTER), ExclusiveLock, false);
}

void
le_unlock_starter(void)
{
	release(database_tag(LOCK_STARTER), ExclusiveLock, false);
}

void
le_lock_end_of_xact(void)
{
	election_locks = NIL;
	le_session_lock_forget();
}
