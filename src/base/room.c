/*-------------------------------------------------------------------------
 *
 * room.c
 *		Room in the server's lock table.
 *
 * While the lock table is full, no transaction gets an ID, and so none can
 * renew a lease.  So the worker keeps some entries reserved, and frees them
 * when nothing else is free.
 *
 * An entry is taken by a lock in AccessShare mode that conflicts with no lock:
 * the request fails only if there is no room.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base.h"
#include "miscadmin.h"

/*
 * Entries that a worker keeps for others: what one change takes, and as many
 * for what is locked beside it.
 */
#define RESERVED		(2 * LE_LOCKS_OF_CHANGE)

/*
 * The worker reserves entries again after 1 s; after each failure, twice as
 * late.
 */
#define SHORTEST_PAUSE	INT64CONST(1000000)
#define LONGEST_PAUSE	INT64CONST(10000000)

/* How many reserved entries this process, a worker, has */
static int	reserved = 0;

/* When to take them back, and after which pause if there is no room then */
static int64 retry_at = 0;
static int64 retry_pause = SHORTEST_PAUSE;

static bool
take_entry(uint64 key)
{
	return le_lock_try(le_lock_tag(LOCK_RESERVED, key), AccessShareLock, true);
}

static void
free_entry(uint64 key)
{
	LOCKTAG		tag = le_lock_tag(LOCK_RESERVED, key);

	LockRelease(&tag, AccessShareLock, true);
}

/*
 * Has the lock table room for so many more locks?  To find out, this takes and
 * releases that many.
 */
bool
le_room_for_locks(int locks)
{
	uint64		key = (uint64) MyProcPid << 32;
	int			taken = 0;
	bool		room;

	while (taken < locks && take_entry(key + taken))
		taken++;
	room = taken == locks;
	while (taken > 0)
		free_entry(key + --taken);
	return room;
}

/*
 * Free the reserved entries, for transactions that renew leases: ours, and those
 * of detached leaders.  False: they were free already.
 */
bool
le_room_free_reserved(void)
{
	if (reserved == 0)
		return false;
	while (reserved > 0)
		free_entry(--reserved);
	retry_at = le_clock() + retry_pause;
	return true;
}

/*
 * Keep reserved entries, or free them if no other entry is free.  They are taken
 * back when there is room for twice as many.  To find that out takes all room
 * for a moment, in which other sessions may miss it: so after each failure the
 * next try comes later.  The worker calls this in each round.  Returns when to
 * call it again, at the latest.
 */
int64
le_room_keep_reserved(void)
{
	if (reserved > 0 && !le_room_for_locks(1))
		(void) le_room_free_reserved();
	if (reserved > 0)
		return PG_INT64_MAX;
	if (le_clock() < retry_at)
		return retry_at;
	while (reserved < 2 * RESERVED && take_entry(reserved))
		reserved++;
	if (reserved < 2 * RESERVED)
	{
		retry_pause = Min(retry_pause * 2, LONGEST_PAUSE);
		retry_at = le_clock() + retry_pause;
		(void) le_room_free_reserved();
		return retry_at;
	}
	retry_pause = SHORTEST_PAUSE;
	while (reserved > RESERVED)
		free_entry(--reserved);
	return PG_INT64_MAX;
}
