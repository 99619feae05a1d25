/*-------------------------------------------------------------------------
 *
 * now.c
 *		The clock.
 *
 * Invariant: all processes of pg_leader on a machine read the same clock, so
 * that a deadline means the same moment to pg_leader and to its guardian.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include <time.h>

/*
 * The time since the machine was started.  This clock also counts while the
 * machine sleeps, and nobody can set it: with any other clock, a machine that
 * wakes up, or whose clock is set back, would take an old lease for a valid
 * one.
 */
int64
now_us(void)
{
	struct timespec ts;

	(void) clock_gettime(CLOCK_BOOTTIME, &ts);
	return (int64) ts.tv_sec * SEC + ts.tv_nsec / 1000;
}
