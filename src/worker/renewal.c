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
 * What is to be renewed is remembered from the last look, so that a short lease
 * is renewed in time however long a look at all leases takes, and costs no look.
 *
 * Renewing many leases takes a while, but no lease is urgent before half of it is
 * over.  Until then a wake-up interrupts the renewals after a batch.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "worker/worker.h"

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
} Batch;

/* A lease that the worker renews */
typedef struct Renewal
{
	Lease		seen;			/* first: a list of these is one of leases,
								 * too */
	bool		over;			/* the next look decides */

	/* what the running transaction does to it */
	bool		ends;
	int64		deadline;		/* 0: not renewed */
	int64		duration;
} Renewal;

/* Those leases, as a look has found them */
typedef struct Remembered
{
	MemoryContext context;
	List	   *leases;
} Remembered;

static Remembered last;			/* by the last look that was completed */
static Remembered next;			/* by the look that is under way */

/*
 * A look begins.  What the last one has found counts until this one ends.
 */
void
le_renewal_begin(void)
{
	if (next.context == NULL)
		next.context = AllocSetContextCreate(TopMemoryContext,
											 "leader_election renewals",
											 ALLOCSET_DEFAULT_SIZES);
	next.leases = NIL;
	MemoryContextReset(next.context);
}

/*
 * The look has found this lease led.  False: the worker does not renew it.
 */
bool
le_renewal_note(const Lease *lease)
{
	MemoryContext old;
	Renewal    *renewal;

	if (!lease->auto_renew || lease->session_id == 0 || lease->yielding)
		return false;
	old = MemoryContextSwitchTo(next.context);
	renewal = palloc0(sizeof(Renewal));
	renewal->seen.election = pstrdup(lease->election);
	renewal->seen.term = lease->term;
	renewal->seen.deadline_mono = lease->deadline_mono;
	renewal->seen.duration = lease->duration;
	next.leases = lappend(next.leases, renewal);
	MemoryContextSwitchTo(old);
	return true;
}

/*
 * The look has seen all leases.
 */
void
le_renewal_end(void)
{
	Remembered	former = last;

	last = next;
	next = former;
}

/*
 * When is the next lease to be renewed?
 */
int64
le_renewal_due(void)
{
	int64		due = PG_INT64_MAX;
	ListCell   *lc;

	foreach(lc, last.leases)
	{
		const Renewal *renewal = lfirst(lc);

		if (!renewal->over)
			due = Min(due, RENEW_DUE(&renewal->seen));
	}
	return due;
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
 * Renew a batch of leases in one transaction.  Rows that another transaction has
 * locked are left for the next batch.
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

	MemoryContextSwitchTo(CurTransactionContext);
	batch->look_again = !le_store_find(&store);
	if (batch->look_again)
		return;					/* dropped since the look */
	if (!le_store_try_lock(&store, LE_TABLE_LEASE, RowExclusiveLock))
		return;
	le_election_lease_durations(&store, batch->leases);
	foreach(lc, batch->leases)
		shortest = Min(shortest, ((Renewal *) lfirst(lc))->seen.duration);
	if (!le_prove(NULL, shortest, false, PG_INT64_MAX, &proof))
		return;
	le_sessions_remember();
	batch->complete = true;
	finder = le_find_begin(&store, TABLE_LEASE, 1, NULL);
	foreach(lc, batch->leases)
	{
		Renewal    *renewal = lfirst(lc);
		const Lease *seen = &renewal->seen;
		Lease	   *lease = le_lease_find_lock(finder, seen->election);

		renewal->deadline = 0;
		renewal->ends = lease != NULL && !goes_on(lease, seen);
		if (lease == NULL)
		{
			batch->complete = false;
			continue;
		}
		if (renewal->ends)
		{
			batch->look_again = true;
			continue;
		}
		/* What was altered after the proof counts from the next one on. */
		if (proof.required &&
			le_election_lease_duration(&store, lease) != seen->configured)
		{
			batch->complete = false;
			continue;
		}
		le_lease_renew(lease, lease->term, seen->configured, proof.t0,
					   GetCurrentTimestamp(), NULL);
		renewal->deadline = lease->deadline_mono;
		renewal->duration = lease->duration;
	}
	le_find_end(finder);

	/* A wait for standbys or for a page resets our latch: see upkeep.c. */
	if (proof.required || le_slow_writes != moved)
		batch->look_again = true;
}

/*
 * Renew these leases, in a transaction, and remember what has come of it.
 * False: that was undone, or is not to be tried now.
 */
static bool
renew_batch(Pass *pass, const char *key, Batch *batch, const char *activity)
{
	ListCell   *lc;

	if (!le_attempt(key, renew, batch, activity, &pass->next))
		return false;
	foreach(lc, batch->leases)
	{
		Renewal    *renewal = lfirst(lc);

		if (!batch->complete && renewal->deadline == 0 && !renewal->ends)
			continue;
		renewal->over = renewal->ends;
		if (renewal->deadline == 0)
			continue;
		renewal->seen.deadline_mono = renewal->deadline;
		renewal->seen.duration = renewal->duration;
	}
	return true;
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
	if (!batch->complete)
		return;
	foreach(lc, batch->leases)
	{
		const Renewal *renewal = lfirst(lc);
		char	   *key = psprintf("R%s", renewal->seen.election);
		Batch		one = {list_make1(lfirst(lc))};

		if (!le_may_attempt(key))
		{
			batch->complete = false;
			continue;
		}
		if (renew_batch(pass, key, &one, "renewing a lease") && one.complete)
			continue;
		batch->complete = false;
		if (++failed == MANY_FAILURES)
			break;
	}
}

/*
 * Which are to be renewed now?  Not one that is not due and lasts longer than all
 * that are.
 */
static List *
choose(void)
{
	int64		now = le_clock();
	int64		longest = 0;
	List	   *chosen = NIL;
	ListCell   *lc;

	foreach(lc, last.leases)
	{
		const Renewal *renewal = lfirst(lc);

		if (!renewal->over && RENEW_DUE(&renewal->seen) <= now)
			longest = Max(longest, renewal->seen.duration);
	}
	foreach(lc, last.leases)
	{
		Renewal    *renewal = lfirst(lc);

		if (!renewal->over && RENEW_EARLY(&renewal->seen) <= now &&
			renewal->seen.duration <= longest)
			chosen = lappend(chosen, renewal);
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
		first = Min(first, RENEW_URGENT(&((Renewal *) lfirst(lc))->seen));
	return first;
}

/*
 * Renew all that is due.  Rows that another transaction has locked are tried
 * again soon: they are not to keep us from everything else.
 */
void
le_renew_all(Pass *pass)
{
	List	   *leases = choose();
	int64		again_at = 0;

	for (int from = 0; from < list_length(leases); from += BATCH)
	{
		Batch		batch = {.complete = false};

		if (from > 0 && MyLatch->is_set && le_clock() < urgent_at(leases, from))
		{
			/* A candidate may be waiting: go on in the next round. */
			again_at = urgent_at(leases, from);
			pass->next = le_clock();
			break;
		}
		for (int i = from; i < Min(from + BATCH, list_length(leases)); i++)
			batch.leases = lappend(batch.leases, list_nth(leases, i));
		if (!renew_batch(pass, RENEWAL, &batch, "renewing leases"))
			renew_each(pass, &batch);
		if (batch.look_again)
		{
			pass->next = le_clock();
			le_standing_look_again();
		}
		if (!batch.complete)
			again_at = le_clock() + RETRY;
	}
	pass->renew_at = Max(le_renewal_due(), again_at);
}
