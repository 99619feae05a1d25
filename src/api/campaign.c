/*-------------------------------------------------------------------------
 *
 * campaign.c
 *		The procedure campaign(): stand, and wait until elected.
 *
 * Invariant: it waits as long as it takes, but only between transactions
 * (poll.c).  With a snapshot, it would keep vacuum from removing what renewals
 * leave; with a lock, it would keep others from electing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/api.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/latch.h"

PG_FUNCTION_INFO_V1(le_campaign);

/* A waiting campaign polls no later than 1 s after its last poll ... */
#define POLL_US			INT64CONST(1000000)
/* ... and after 50 ms where something was locked */
#define RETRY_US		INT64CONST(50000)

/*
 * One poll of a waiting campaign, in a transaction of its own.  Returns when
 * to look again (monotonic; 0: this session leads, once it has committed).
 *
 * The process that elects this session wakes it after it has committed.  So
 * where the lease row names this session, it is committed, and its term is the
 * answer at once (s->term), unless a worker is to be started first.
 */
static int64
poll_campaign(StandCall *s)
{
	uint64		changes;
	Lease	   *lease;
	Candidacy  *c;
	int64		now;
	bool		led;

	if (!s->stands)
		return le_stand(s) != 0 ? 0 :
			le_clock() + (s->stands ? 0 : RETRY_US);

	le_store_get();
	if (!le_store_try_lock(LE_TABLE_LEASE, RowExclusiveLock))
		return le_clock() + RETRY_US;
	changes = le_leadership_generation;
	lease = le_store.lease_oid == s->lease_oid ?
		le_lease_read(s->who.election, NULL) : NULL;
	if (le_stand_leads(lease, s->who.session_id))
	{
		c = le_stand_candidacy(s);
		if (c != NULL && !le_lock_worker_is_free())
			s->term = le_session_term_of(c, lease, changes);
		return 0;
	}
	if (lease == NULL ||
		(le_store_try_lock(LE_TABLE_CANDIDATE, AccessShareLock) &&
		 !le_stand_has_row(s->who.election, s->who.candidate,
						   s->who.session_id)))
		ereport(ERROR,
				(errcode(ERRCODE_LE_NO_ELECTION),
				 errmsg("election \"%s\" does not exist", s->who.election),
				 errdetail("It was dropped while this session campaigned.")));

	now = le_clock();
	led = le_lease_state_now(lease) == LEASE_LED;
	if (!led && le_stand(s) != 0)
		return 0;
	if (led && lease->deadline_mono - now < POLL_US)
		return lease->deadline_mono + RETRY_US;
	return now + POLL_US;
}

/*
 * A poll has committed.  Returns the term, if this session leads: as of a
 * committed row, and of a lease that is not over by now.  first: it was the
 * first poll.
 *
 * The worker may have elected this session since the poll has read the lease.
 * If the timeout has passed as well, that was the last poll, and the caller
 * would give the leadership away.  So the lease is read again in any case.
 */
static int64
after_commit(StandCall *s, bool first)
{
	Candidacy  *c = le_stand_candidacy(s);

	if (c == NULL && s->who.session_id != 0)
	{
		(void) le_session_take_loss(s->lease_oid, s->who.election,
									s->who.candidate);
		le_stand_report_reset(s->who.election, s->who.candidate);
	}
	le_start_ensure_worker(first);	/* which may take a while, with no lock */

	/* The invalidation may not have arrived: have the lease read again. */
	le_leadership_generation++;
	return c != NULL ? le_session_term(c) : 0;
}

/*
 * If the call returns no term, the candidacy that it has made ends with the
 * call.
 */
static void
end_campaign(const StandCall *s, int64 term)
{
	Candidacy  *c = le_stand_candidacy(s);

	if (term != 0 && c != NULL)
		c->campaigning = false;
	else if (s->made && c != NULL)
	{
		le_session_drop(c);
		le_wake_workers(MyDatabaseId);
	}
}

Datum
le_campaign(PG_FUNCTION_ARGS)
{
	static uint32 wait_event = 0;
	StandCall	s;
	Poll		poll;
	int64		term = 0;
	int64		next;
	bool		first = true;
	ResultRow	result = {0};

	le_call_check("leader_election.campaign()", le_call_is_atomic(fcinfo));
	if (wait_event == 0)
		wait_event = LeWaitEvent("LeaderElectionCampaign", 0x4C43);
	le_poll_connect(&poll, fcinfo, 2);
	le_stand_args(fcinfo, 3, &s);
	s.polls = true;
	/* Ask the standbys for as long as a join() would, at least. */
	s.ask_until = Max(poll.give_up_at,
					  le_clock() + LE_WAIT_LIMIT_MS * INT64CONST(1000));
	le_poll_begin(&poll);
	do
	{
		BoundedWaits waits;

		ResetLatch(MyLatch);
		le_wait_start();
		le_wait_bounded_begin(&waits, s.who.election);
		le_wait_as_lock_timeout();
		next = poll_campaign(&s);
		le_wait_bounded_end(&waits);
		term = next == 0 ? s.term : 0;
		if (term != 0)
			break;
		le_poll_commit(&poll);
		term = after_commit(&s, first);
		first = false;
		if (next == 0)
			next = le_clock() + RETRY_US;	/* the term was not readable */
	} while (term == 0 && le_poll_sleep(&poll, next, wait_event));
	le_poll_end(&poll);
	end_campaign(&s, term);
	SPI_finish();
	LE_ADD_IF(&result, term != 0, Int64GetDatum(term));
	return le_call_result(fcinfo, &result);
}
