/*-------------------------------------------------------------------------
 *
 * renewal.c
 *		The background worker renews the leases of live sessions.
 *
 * Invariant: a lease is renewed only if its row, which is locked, still says the
 * same term, its deadline has not passed, nobody has asked its leader to yield,
 * and its session was found alive in that very transaction.
 *
 * A lease is due after a third of it.  Those that would be due soon are renewed
 * along with it: leases that begin at different times thus come to be renewed at
 * the same time, and the worker has to look that much less often.  Such an early
 * renewal is only for leases that last no longer than one that is due; else a
 * short lease would have all long ones renewed more often than they need.
 *
 * Renewing many leases takes a while, but is not urgent before the half of one
 * is over.  Until then, whoever wakes the worker interrupts it after a batch.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "leader_election.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "worker.h"

#define BATCH			1000
#define MANY_FAILURES	3
#define RENEWAL			"renewal"	/* of all: what can fail again and again */

#define RENEW_EARLY(lease)	((lease)->deadline_mono - (lease)->duration * 5 / 6)
#define RENEW_DUE(lease)	((lease)->deadline_mono - (lease)->duration * 2 / 3)
#define RENEW_URGENT(lease)	((lease)->deadline_mono - (lease)->duration / 2)

/* Leases to be renewed together */
typedef struct Batch
{
	List	   *leases;
	bool		complete;		/* none of them was busy ... */
	bool		look_again;		/* ... but there may be something else to do */
	int64		next_due;		/* when the first of them is due again */
} Batch;

/*
 * The look has found this lease led.  False: the worker does not renew it.
 */
bool
le_renewal_note(Pass *pass, const Lease *lease, int64 now)
{
	MemoryContext old;

	if (!lease->auto_renew || lease->session_id == 0 || lease->yielding)
		return false;
	if (RENEW_EARLY(lease) <= now)
	{
		old = MemoryContextSwitchTo(le_worker_context);
		pass->renew = lappend(pass->renew, le_lease_copy(lease));
		MemoryContextSwitchTo(old);
	}
	else
		pass->renew_later_at = Min(pass->renew_later_at, RENEW_DUE(lease));
	pass->renew_at = Min(pass->renew_at, RENEW_DUE(lease));
	return true;
}

/*
 * May this lease, which is locked, be renewed?  It was seen a moment ago.
 */
static bool
goes_on(const Lease *lease, const Lease *seen)
{
	return lease->leader != NULL && lease->term == seen->term &&
		!lease->yielding && lease->deadline_mono > le_clock() &&
		le_session_alive(lease->session_id);
}

/*
 * Renew a batch of leases in one transaction.  Those that somebody has locked
 * are left for the next one.
 */
static void
renew(void *arg)
{
	Batch	   *batch = arg;
	int64		shortest = PG_INT64_MAX;
	uint64		moved = le_slow_writes;
	Proof		proof;
	Store		store;
	Finder	   *finder;
	ListCell   *lc;

	le_store_get(&store);
	if (!le_store_lock(&store, LE_TABLE_LEASE, RowExclusiveLock, false))
		return;
	le_lease_durations(&store, batch->leases);
	foreach(lc, batch->leases)
		shortest = Min(shortest, ((Lease *) lfirst(lc))->duration);
	if (!le_prove(NULL, shortest, false, PG_INT64_MAX, &proof))
		return;
	le_sessions_remember();
	batch->complete = true;
	finder = le_find_begin(store.lease, store.lease_pkey, 1, NULL);
	foreach(lc, batch->leases)
	{
		Lease	   *seen = lfirst(lc);
		Lease	   *lease = le_lease_find_lock(finder, seen->election);

		if (lease == NULL)
		{
			batch->complete = false;
			continue;
		}
		if (!goes_on(lease, seen))
		{
			batch->look_again = true;
			continue;
		}
		/* What was altered after the proof counts from the next one on. */
		if (proof.required &&
			le_lease_duration(&store, lease) != seen->configured)
		{
			batch->complete = false;
			continue;
		}
		le_lease_renew(lease, lease->term, seen->configured, proof.t0,
					   GetCurrentTimestamp(), NULL);
		batch->next_due = Min(batch->next_due, RENEW_DUE(lease));
	}
	le_find_end(finder);

	/* A wait for standbys or for a page resets our latch: see upkeep.c. */
	if (proof.required || le_slow_writes != moved)
		batch->look_again = true;
}

/*
 * These leases could not be renewed together: one of them may be broken.  Renew
 * them one by one, if there are several.  If nothing works, do not try all.
 */
static void
renew_each(Pass *pass, Batch *batch)
{
	int			failed = 0;
	ListCell   *lc;

	batch->complete = list_length(batch->leases) > 1;
	batch->look_again = batch->complete;
	batch->next_due = PG_INT64_MAX;
	if (!batch->complete)
		return;
	foreach(lc, batch->leases)
	{
		Lease	   *lease = lfirst(lc);
		char	   *key = psprintf("R%s", lease->election);
		Batch		one = {list_make1(lease), .next_due = PG_INT64_MAX};

		if (!le_may_attempt(key))
		{
			batch->complete = false;
			continue;
		}
		if (le_attempt(key, renew, &one, "renewing a lease", &pass->next) &&
			one.complete)
		{
			batch->next_due = Min(batch->next_due, one.next_due);
			continue;
		}
		batch->complete = false;
		if (++failed == MANY_FAILURES)
			break;
	}
}

/*
 * Which of those that may be renewed now?  Not one that is not due and lasts
 * longer than all that are.
 */
static List *
choose(Pass *pass)
{
	int64		now = le_clock();
	int64		longest = 0;
	List	   *chosen = NIL;
	ListCell   *lc;

	foreach(lc, pass->renew)
	{
		Lease	   *lease = lfirst(lc);

		if (RENEW_DUE(lease) <= now)
			longest = Max(longest, lease->duration);
	}
	foreach(lc, pass->renew)
	{
		Lease	   *lease = lfirst(lc);

		if (lease->duration <= longest)
			chosen = lappend(chosen, lease);
		else
			pass->renew_later_at = Min(pass->renew_later_at, RENEW_DUE(lease));
	}
	return chosen;
}

/*
 * When does the renewal of these leases, from the one of that number on, become
 * urgent?
 */
static int64
urgent_at(List *leases, int from)
{
	int64		first = PG_INT64_MAX;
	ListCell   *lc;

	for_each_from(lc, leases, from)
		first = Min(first, RENEW_URGENT((Lease *) lfirst(lc)));
	return first;
}

/*
 * Renew all that is due.  Rows that somebody has locked are tried again soon.
 */
void
le_renew_all(Pass *pass)
{
	List	   *leases = choose(pass);
	bool		complete = true;
	int64		next_due = PG_INT64_MAX;

	for (int from = 0; from < list_length(leases); from += BATCH)
	{
		Batch		batch = {.next_due = PG_INT64_MAX};

		if (from > 0 && MyLatch->is_set && le_clock() < urgent_at(leases, from))
		{
			/* Somebody may be waiting for a leader: go on in the next round. */
			next_due = Min(next_due, urgent_at(leases, from));
			pass->next = le_clock();
			break;
		}
		for (int i = from; i < Min(from + BATCH, list_length(leases)); i++)
			batch.leases = lappend(batch.leases, list_nth(leases, i));
		if (!le_attempt(RENEWAL, renew, &batch, "renewing leases", &pass->next))
			renew_each(pass, &batch);
		if (batch.look_again)
		{
			pass->next = le_clock();
			le_standing_look_again();
		}
		complete = complete && batch.complete;
		next_due = Min(next_due, batch.next_due);
	}

	/* A lease that somebody has locked is not to keep us from everything else. */
	pass->renew_at = le_clock() + RETRY;
	if (complete)
		pass->renew_at = Max(pass->renew_at,
							 Min(pass->renew_later_at, next_due));
	pass->next = Min(pass->next, pass->renew_at);
}
