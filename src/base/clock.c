/*-------------------------------------------------------------------------
 *
 * clock.c
 *		The monotonic clock.
 *
 * Durations are measured with the clock that nobody can set and that goes on
 * while the machine sleeps (CLOCK_BOOTTIME).
 *
 * Invariant: a value of this clock, and the fact that a session lock is free,
 * mean something only on the incarnation of the server on which they were
 * written or seen.  An incarnation is a cluster, its timeline, the boot of the
 * machine, a database in it and the lease table in that: a promotion, a
 * restore, a reboot and a copy change it, a restart of the server does not.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "base/base.h"
#include "utils/timestamp.h"

#ifdef CLOCK_BOOTTIME
#define LE_CLOCK_ID CLOCK_BOOTTIME
#else
#define LE_CLOCK_ID CLOCK_MONOTONIC
#endif

PG_FUNCTION_INFO_V1(le_monotonic_clock);

/*
 * Microseconds since the machine was started.
 */
int64
le_clock(void)
{
	struct timespec ts;

	(void) clock_gettime(LE_CLOCK_ID, &ts);
	return (int64) ts.tv_sec * USECS_PER_SEC + ts.tv_nsec / 1000;
}

Datum
le_monotonic_clock(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(le_clock());
}

Datum
le_clock_interval(int64 us)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = us;
	return IntervalPGetDatum(interval);
}
