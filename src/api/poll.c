/*-------------------------------------------------------------------------
 *
 * poll.c
 *		How a procedure waits as long as it takes: campaign() and
 *		wait_for_change().
 *
 * It polls in transactions of its own, and sleeps on its latch between them.
 *
 * Invariant: it sleeps without a snapshot and without a lock, and never longer
 * than until its timeout.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "api/api.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/timeout.h"

/* How often a waiting procedure looks for its client */
#define CHECK_CLIENT_US INT64CONST(900000)

/*
 * To be called before all else.  What is allocated from here on lasts until
 * SPI_finish(), which the caller calls in the end.  timeout_arg is the number
 * of the argument timeout.
 */
void
le_poll_connect(Poll *poll, FunctionCallInfo fcinfo, int timeout_arg)
{
	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	poll->give_up_at = PG_INT64_MAX;
	if (!PG_ARGISNULL(timeout_arg))
		poll->give_up_at = le_clock() +
			le_arg_interval(fcinfo, timeout_arg, "timeout",
							0, LE_LONGEST_TIMEOUT);
}

/*
 * To be called before the first poll, when all arguments have been read.
 */
void
le_poll_begin(Poll *poll)
{
	poll->context = AllocSetContextCreate(CurrentMemoryContext,
										  "leader_election poll",
										  ALLOCSET_DEFAULT_SIZES);
	poll->caller = MemoryContextSwitchTo(poll->context);
	le_poll_commit(poll);
}

/*
 * End the transaction of one poll and begin that of the next.  It is READ
 * COMMITTED, also where the session's default is another isolation level: so
 * it sees what is committed, holds no snapshot while it waits, and cannot fail
 * to serialize.
 */
void
le_poll_commit(Poll *poll)
{
	SPI_commit();
	XactIsoLevel = XACT_READ_COMMITTED;
	MemoryContextReset(poll->context);
}

/*
 * Sleep until then (monotonic), a wake-up, or the timeout.  Where
 * transaction_timeout is set, come back before it strikes: each poll commits,
 * which starts it anew.  False: the timeout has passed.
 */
bool
le_poll_sleep(const Poll *poll, int64 until, uint32 wait_event)
{
	static int64 checked_at = 0;
	int64		now = le_clock();
	int64		ms = (Min(until, poll->give_up_at) - now) / 1000 + 1;

	if (now >= poll->give_up_at)
		return false;
	if (TransactionTimeout > 0)
		ms = Min(ms, TransactionTimeout / 2);

	/*
	 * The server's timer would wake us for a poll each time: look for a dead
	 * client here instead.  A background worker has none.
	 */
	if (get_timeout_active(CLIENT_CONNECTION_CHECK_TIMEOUT))
		disable_timeout(CLIENT_CONNECTION_CHECK_TIMEOUT, false);
	if (ms > 0)
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 ms, wait_event);
	if (MyProcPort != NULL && client_connection_check_interval > 0 &&
		le_clock() - checked_at >= CHECK_CLIENT_US)
	{
		checked_at = le_clock();
		CheckClientConnectionPending = true;
		InterruptPending = true;
	}
	CHECK_FOR_INTERRUPTS();
	return true;
}

/*
 * To be called after the last poll: from now on the server looks for a dead
 * client again, and the next transaction has the session's isolation level.
 */
void
le_poll_end(Poll *poll)
{
	if (MyProcPort != NULL && client_connection_check_interval > 0 &&
		!get_timeout_active(CLIENT_CONNECTION_CHECK_TIMEOUT))
		enable_timeout_after(CLIENT_CONNECTION_CHECK_TIMEOUT,
							 client_connection_check_interval);
	MemoryContextSwitchTo(poll->caller);
	SPI_commit();
}
