/*-------------------------------------------------------------------------
 *
 * room.c
 *		Room in the server's lock table.
 *
 * Without room no transaction gets a number, and so none can renew a lease.  The
 * worker keeps some entries to spare, and frees them when there is no other room.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base.h"
#include "miscadmin.h"

#define SPARES			16		/* entries that a worker keeps for others */
#define SPARES_PAUSE	INT64CONST(1000000) /* before it takes them back ... */
#define LONGEST_SPARES_PAUSE INT64CONST(10000000)	/* ... if there is no room */
/*
 * Is there room for so many locks in the lock table?  Without room no transaction
 * gets a number, and so none can renew a lease.
 */
bool
le_room_for_locks(int locks)
{
	uint64		key = (uint64) MyProcPid << 32;
	int			taken = 0;
	bool		room;

	while (taken < locks &&
		   le_lock_try(le_lock_tag(LOCK_SPARE, key + taken), AccessShareLock, true))
		taken++;
	room = taken == locks;
	while (taken > 0)
	{
		LOCKTAG		tag = le_lock_tag(LOCK_SPARE, key + --taken);

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
le_room_free_spares(void)
{
	bool		had_any = spares > 0;

	while (spares > 0)
	{
		LOCKTAG		tag = le_lock_tag(LOCK_SPARE, --spares);

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
le_room_keep_spares(void)
{
	if (spares > 0 && !le_room_for_locks(1))
		(void) le_room_free_spares();
	if (spares > 0)
		return PG_INT64_MAX;
	if (le_clock() < spares_retry_at)
		return spares_retry_at;
	while (spares < 2 * SPARES &&
		   le_lock_try(le_lock_tag(LOCK_SPARE, spares), AccessShareLock, true))
		spares++;
	if (spares < 2 * SPARES)
	{
		(void) le_room_free_spares();
		spares_pause = Min(spares_pause * 2, LONGEST_SPARES_PAUSE);
		spares_retry_at = le_clock() + spares_pause;
		return spares_retry_at;
	}
	spares_pause = SPARES_PAUSE;
	while (spares > SPARES)
	{
		LOCKTAG		tag = le_lock_tag(LOCK_SPARE, --spares);

		LockRelease(&tag, AccessShareLock, true);
	}
	return PG_INT64_MAX;
}
