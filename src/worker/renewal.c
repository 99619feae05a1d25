/*-------------------------------------------------------------------------
 *
 * renewal.c
 *		The background worker renews the leases of live sessions.
 *
 * A lease is due after a third of it.  Leases that would be due soon are
 * renewed along with it.  So leases that began at different times come to be
 * renewed at the same time, and the worker wakes up that much less often.  A
 * lease is renewed early only if it lasts no longer than one that is due:
 * otherwise a short lease would have all long ones renewed more often than
 * they need.
 *
 * Renewing many leases takes a while, but no lease is urgent before half of it
 * is over.  Until then a wake-up interrupts the renewals after a batch: a
 * session that has led may have ended, and its elections need another leader.
 *
 * Which leases there are is remembered from the last scan (led.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "worker/worker.h"

#define BATCH			1000	/* leases renewed in one transaction */
#define MANY_FAILURES	3

/*
 * A lease may be renewed along with others after a sixth of it, is due after a
 * third, and urgent after a half.
 */
#define RENEW_EARLY(lease)	((lease)->deadline - (lease)->duration * 5 / 6)
#define RENEW_DUE(lease)	((lease)->deadline - (lease)->duration * 2 / 3)
#define RENEW_URGENT(lease)	((lease)->deadline - (lease)->duration / 2)

/* Leases to be renewed in one transaction */
typedef struct RenewalBatch
{
	List	   *renewals;
	bool		proven;			/* the standbys have confirmed */
	bool		complete;		/* none of them was busy */
	bool		renewed;		/* some of them are, which is to commit */
	bool		scan_again;		/* something else may be due */
} RenewalBatch;

/*
 * When is the next lease to be renewed?
 */
int64
le_renewal_due(void)
{
	int64		due = PG_INT64_MAX;

	foreach_ptr(const Renewal, renewal, le_led_renewals())
	{
		if (!renewal->over)
			due = Min(due, RENEW_DUE(renewal));
	}
	return due;
}

/*
 * Renew one lease, if its row is not locked by another transaction, and if it
 * goes on.  A greater term than was seen belongs to another leader.
 */
static void
renew_row(RowScan *scan, RenewalBatch *batch, Renewal *renewal, Proof *proof)
{
	Lease	   *lease = le_lease_find_lock(scan, renewal->election);

	proof->lease_duration = renewal->configured;
	renewal->new_deadline = 0;
	renewal->ends = false;
	switch (le_renew_lease(lease, renewal->session_id, renewal->term,
						   &renewal->configured, proof, NULL))
	{
		case RENEWED:
			batch->renewed = true;
			renewal->new_deadline = lease->deadline_mono;
			renewal->new_duration = lease->duration;
			break;
		case RENEW_ENDED:
			renewal->ends = batch->scan_again = true;
			break;
		case RENEW_BUSY:
		case RENEW_UNPROVEN:	/* renew it with the next proof */
			batch->complete = false;
			break;
	}
}

/*
 * Renew a batch of leases in one transaction.  Rows that another transaction
 * has locked are left for the next batch.
 */
static void
renew_rows(void *arg)
{
	RenewalBatch *batch = arg;
	int64		shortest = PG_INT64_MAX;
	uint64		slow_writes = le_xact_slow_writes;
	Proof		proof;
	RowScan    *scan;

	MemoryContextSwitchTo(CurTransactionContext);
	batch->scan_again = !le_store_find();
	if (batch->scan_again)
		return;					/* dropped since the scan */
	if (!le_store_try_lock(LE_TABLE_LEASE, RowExclusiveLock))
		return;
	scan = le_election_durations_begin();
	foreach_ptr(Renewal, renewal, batch->renewals)
	{
		renewal->configured = le_election_duration_find(scan, renewal->election,
														renewal->duration);
		shortest = Min(shortest, renewal->duration);
	}
	if (scan != NULL)
		le_scan_end(scan);
	if (!le_proof_make(NULL, shortest, false, PG_INT64_MAX, &proof))
		return;
	batch->proven = true;
	(void) le_sessions_remember();
	batch->complete = true;
	scan = le_scan_find_begin(TABLE_LEASE, 1, NULL);
	foreach_ptr(Renewal, renewal, batch->renewals)
		renew_row(scan, batch, renewal, &proof);
	le_scan_end(scan);

	/* A wait for standbys or for a page may swallow a wake-up. */
	batch->scan_again |= (proof.required && batch->renewed) ||
		le_xact_slow_writes != slow_writes;
}

/*
 * Renew a batch of leases (election NULL) or that election's, and remember
 * what has come of it once it is committed.  False: it was undone, or pauses.
 */
static bool
renew_batch(Round *round, AttemptKind kind, const char *election,
			RenewalBatch *batch)
{
	if (!le_attempt(kind, election, renew_rows, batch, &round->next))
		return false;
	foreach_ptr(Renewal, renewal, batch->renewals)
	{
		renewal->over |= renewal->ends;
		if (renewal->new_deadline == 0)
			continue;
		renewal->deadline = renewal->new_deadline;
		renewal->duration = renewal->new_duration;
	}
	return true;
}

/*
 * These leases could not be renewed together: one of their rows may be broken.
 * If there are several, renew them one by one.  After MANY_FAILURES, or where
 * nothing is proven in time, leave the rest: probably no renewal works at all.
 */
static void
renew_each(Round *round, RenewalBatch *batch)
{
	int			failed = 0;

	batch->complete = list_length(batch->renewals) > 1;
	batch->scan_again = false;
	if (!batch->complete)
		return;
	foreach_ptr(Renewal, renewal, batch->renewals)
	{
		const char *election = renewal->election;
		RenewalBatch one = {list_make1(renewal)};

		if (le_attempt_paused_until(ATTEMPT_RENEW, election) != 0)
		{
			batch->complete = false;
			continue;
		}

		if (renew_batch(round, ATTEMPT_RENEW, election, &one))
		{
			batch->scan_again |= one.scan_again;
			batch->complete &= one.complete;
			if (!one.proven)
				break;
			continue;
		}

		/* It pauses from now on.  Its wait may have swallowed a wake-up. */
		batch->scan_again = true;
		batch->complete = false;
		if (++failed == MANY_FAILURES)
			break;
	}
}

/*
 * Which leases are to be renewed now?  Those that are due, and those that soon
 * will be, unless they last longer than all that are due.
 */
static List *
choose(void)
{
	int64		now = le_clock();
	int64		longest = 0;
	List	   *chosen = NIL;

	foreach_ptr(const Renewal, renewal, le_led_renewals())
	{
		if (!renewal->over && RENEW_DUE(renewal) <= now)
			longest = Max(longest, renewal->duration);
	}
	foreach_ptr(Renewal, renewal, le_led_renewals())
	{
		if (!renewal->over && RENEW_EARLY(renewal) <= now &&
			renewal->duration <= longest)
			chosen = lappend(chosen, renewal);
	}
	return chosen;
}

/*
 * When does the renewal of these leases become urgent?  Those before number
 * from (the first one is 0) are renewed already.
 */
static int64
urgent_at(List *renewals, int from)
{
	int64		first = PG_INT64_MAX;
	ListCell   *lc;

	for_each_from(lc, renewals, from)
		first = Min(first, RENEW_URGENT((Renewal *) lfirst(lc)));
	return first;
}

/*
 * Renew all leases that are due.  Rows that another transaction has locked are
 * tried again after a pause, so that they do not keep the worker from all
 * else.
 */
void
le_renewal_all(Round *round)
{
	List	   *renewals = choose();
	int64		again_at = 0;

	for (int from = 0; from < list_length(renewals); from += BATCH)
	{
		RenewalBatch batch = {.complete = false};

		if (from > 0 && MyLatch->is_set && le_clock() < urgent_at(renewals, from))
		{
			/* A session may have ended: go on in the next round. */
			again_at = urgent_at(renewals, from);
			round->next = le_clock();
			break;
		}
		for (int i = from; i < Min(from + BATCH, list_length(renewals)); i++)
			batch.renewals = lappend(batch.renewals, list_nth(renewals, i));
		if (!renew_batch(round, ATTEMPT_RENEW_ALL, NULL, &batch))
			renew_each(round, &batch);
		if (batch.scan_again)
			le_round_again(round);
		if (!batch.complete)
			again_at = le_clock() + RETRY;
	}
	round->renew_at = Max(le_renewal_due(), again_at);
}
