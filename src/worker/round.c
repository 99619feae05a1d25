/*-------------------------------------------------------------------------
 *
 * round.c
 *		When a round of the worker has to end, and when the next one begins.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "worker/worker.h"

/*
 * A wait may have reset our latch, so that a wake-up has gone unheard, or
 * other processes may have changed something meanwhile.  Run one more round:
 * the worker sleeps only after a round that has only looked.
 */
void
le_round_again(Pass *pass)
{
	pass->next = le_clock();
	le_standing_look_again();
}

/*
 * Is other work to end now, because leases are to be renewed?  A wake-up may
 * tell of a lease that no look has seen yet: to find out when that is to be
 * renewed, a look is due soon.
 */
bool
le_round_is_to_renew(const Pass *pass)
{
	int64		now = le_clock();

	return pass->renew_at <= now ||
		(MyLatch->is_set && now - pass->looked_at >= LONGEST_WORK);
}
