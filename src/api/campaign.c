/*-------------------------------------------------------------------------
 *
 * campaign.c
 *		The procedure campaign(): stand, and wait until elected.
 *
 * It waits as long as it takes, between transactions: without a snapshot and
 * without a lock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/api.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"

PG_FUNCTION_INFO_V1(le_campaign);

/* A waiting campaign polls no later than this after its last poll ... */
#define POLL_US			INT64CONST(1000000)
/* ... and so soon where something was locked */
#define RETRY_US		INT64CONST(50000)

/*
 * One poll of a waiting campaign, in a transaction of its own.  Returns when
 * to look again (monotonic; 0: this session leads, once it has committed).
 *
 * The process that elects this session wakes it after it has committed.  So the
 * lease row as read here is committed, and the answer (s->term), unless a worker is
 * to be started first.
 */
static int64
poll_campaign(StandCall *s)
{
	Store		store;
	uint64		changes;
	Lease	   *lease;
	Candidacy  *c;
	int64		now;
	bool		led;

	if (!s->stands)
		return le_stand(s, false) != 0 ? 0 :
			le_clock() + (s->stands ? 0 : RETRY_US);

	le_store_get(&store);
	if (!le_store_try_lock(&store, LE_TABLE_LEASE, RowExclusiveLock))
		return le_clock() + RETRY_US;
	changes = le_leadership_generation;
	lease = store.lease_oid == s->lease_oid ?
		le_lease_read(&store, s->who.election, NULL) : NULL;
	if (le_stand_leads(&store, lease, s->who.session_id))
	{
		c = le_stand_candidacy(s);
		if (c != NULL && !le_lock_worker_is_free())
			s->term = le_session_term_of(c, lease, changes);
		return 0;
	}
	if (lease == NULL ||
		(le_store_try_lock(&store, LE_TABLE_CANDIDATE, AccessShareLock) &&
		 !le_stand_has_row(&store, s->who.election, s->who.candidate,
					   s->who.session_id)))
		ereport(ERROR,
				(errcode(ERRCODE_LE_NO_ELECTION),
				 errmsg("election \"%s\" does not exist", s->who.election),
				 errdetail("It was dropped while this session campaigned.")));

	now = le_clock();
	led = le_lease_state_now(&store, lease) == LEASE_LED;
	if (!led && le_stand(s, false) != 0)
		return 0;
	if (led && lease->deadline_mono - now < POLL_US)
		return lease->deadline_mono + RETRY_US;
	return now + POLL_US;
}

Datum
le_campaign(PG_FUNCTION_ARGS)
{
	static uint32 wait_event = 0;
	StandCall	s;
	MemoryContext context;
	MemoryContext old;
	int64		give_up_at = PG_INT64_MAX;
	int64		term = 0;
	bool		first = true;
	Candidacy  *c;

	le_check_callable("leader_election.campaign()", le_call_is_atomic(fcinfo));
	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (wait_event == 0)
		wait_event = LeWaitEvent("LeaderElectionCampaign", 0x4C43);
	if (!PG_ARGISNULL(2))
		give_up_at = le_clock() + le_interval_arg(fcinfo, 2, "timeout",
												  0, LE_LONGEST_TIMEOUT);
	le_stand_args(fcinfo, 3, &s);
	/* It asks the standbys for as long as a join() would, at least. */
	s.ask_until = Max(give_up_at, le_clock() + LE_WAIT_LIMIT_MS * INT64CONST(1000));
	context = AllocSetContextCreate(CurrentMemoryContext,
									"leader_election poll",
									ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	le_poll_commit(context);

	for (;;)
	{
		WalMark		wal;
		int64		next;

		ResetLatch(MyLatch);
		le_wal_begin(&wal);
		next = poll_campaign(&s);
		le_wal_end(&wal);
		if (next == 0 && (term = s.term) != 0)
			break;
		le_poll_commit(context);
		c = le_stand_candidacy(&s);
		if (c == NULL && s.who.session_id != 0)
		{
			(void) le_session_take_loss(s.lease_oid, s.who.election,
										s.who.candidate);
			le_report_reset(s.who.election, s.who.candidate);
		}
		le_start_ensure(first);	/* which may take a while, with no lock */
		first = false;

		/*
		 * The answer comes from a committed row, and from a lease that is not
		 * over by now.
		 */
		/* The invalidation may not have arrived: have leases read again. */
		le_leadership_generation++;
		if (next == 0 && (term = le_session_term(c)) != 0)
			break;
		if (le_clock() >= give_up_at)
			break;
		if (next == 0)
			next = le_clock() + RETRY_US;	/* it could not be read at once */
		le_poll_sleep(Min(next, give_up_at), wait_event);
		CHECK_FOR_INTERRUPTS();
	}
	le_poll_end();

	MemoryContextSwitchTo(old);
	SPI_commit();				/* back to the caller's isolation level */
	c = le_stand_candidacy(&s);
	if (term != 0 && c != NULL)
		c->campaigning = false;
	else if (s.made && c != NULL)
	{
		le_session_drop(c);
		le_wake_workers(MyDatabaseId);
	}
	SPI_finish();
	return le_call_result(fcinfo, (Datum[]) {Int64GetDatum(term)},
						  (bool[]) {term == 0});
}
