/*-------------------------------------------------------------------------
 *
 * renewal.c
 *		The background worker renews the leases of live sessions.
 *
 * Invariant: a lease is renewed only if the look has found its session alive,
 * its row still says the same term, and its deadline has not passed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "leader_election.h"
#include "utils/timestamp.h"
#include "worker.h"

#define BATCH			1000
#define MANY_FAILURES	3
#define RENEWAL			"renewal"	/* of all: what can fail again and again */

/* Leases to be renewed together */
typedef struct Batch
{
	List	   *leases;
	bool		complete;		/* all of them were */
} Batch;

/*
 * Renew a batch of leases in one transaction.  Those that somebody has locked
 * are left for the next one.
 */
static void
renew(void *arg)
{
	Batch	   *batch = arg;
	int64		shortest = PG_INT64_MAX;
	int64	   *durations = palloc(list_length(batch->leases) * sizeof(int64));
	Proof		proof;
	Store		store;
	ListCell   *lc;

	le_store_get(&store);
	if (!le_store_lock(&store, LE_TABLE_LEASE, RowExclusiveLock, false))
		return;
	foreach(lc, batch->leases)
	{
		Lease	   *seen = lfirst(lc);

		shortest = Min(shortest, seen->duration);
		durations[foreach_current_index(lc)] = le_lease_duration(&store, seen);
	}
	if (!le_prove(NULL, shortest, false, PG_INT64_MAX, &proof))
		return;
	batch->complete = true;
	foreach(lc, batch->leases)
	{
		Lease	   *seen = lfirst(lc);
		int64		duration = durations[foreach_current_index(lc)];
		Lease	   *lease = le_lease_lock(&store, seen->election);

		if (lease == NULL)
		{
			batch->complete = false;
			continue;
		}
		/* The look has tested its session; a lease that is over stays over. */
		if (lease->leader == NULL || lease->term != seen->term ||
			lease->yielding || lease->deadline_mono <= le_clock())
			continue;
		/* What was altered after the proof counts from the next one on. */
		if (proof.required && le_lease_duration(&store, lease) != duration)
		{
			batch->complete = false;
			continue;
		}
		le_lease_renew(lease, lease->term, duration, proof.t0,
					   GetCurrentTimestamp(), NULL);
	}
}

/*
 * Renew these leases one by one, since they could not be renewed together: one
 * of them may be broken.  If nothing works, do not try all of them.  True if all
 * were renewed.
 */
static bool
renew_each(Pass *pass, List *leases)
{
	bool		complete = true;
	int			failed = 0;
	ListCell   *lc;

	foreach(lc, leases)
	{
		Lease	   *lease = lfirst(lc);
		char	   *key = psprintf("R%s", lease->election);
		Batch		one = {list_make1(lease), false};

		if (!le_may_attempt(key))
		{
			complete = false;
			continue;
		}
		(void) le_attempt(key, renew, &one, "renewing a lease", &pass->next);
		complete = complete && one.complete;
		if (!one.complete && ++failed == MANY_FAILURES)
			break;
	}
	return complete;
}

/*
 * Renew all that is due.  Rows that somebody has locked are tried again soon.
 */
void
le_renew_all(Pass *pass)
{
	bool		complete = true;
	int64		shortest = PG_INT64_MAX;
	ListCell   *lc;

	for (int from = 0; from < list_length(pass->renew); from += BATCH)
	{
		Batch		batch = {NIL, false};

		for (int i = from; i < Min(from + BATCH, list_length(pass->renew)); i++)
			batch.leases = lappend(batch.leases, list_nth(pass->renew, i));
		if (le_attempt(RENEWAL, renew, &batch, "renewing leases", &pass->next))
			pass->next = Min(pass->next,
							 le_clock() + (batch.complete ? 0 : RETRY));
		else if (list_length(batch.leases) > 1)
			batch.complete = renew_each(pass, batch.leases);
		complete = complete && batch.complete;
	}

	/* A lease that somebody has locked is not to keep us from everything else. */
	foreach(lc, pass->renew)
		shortest = Min(shortest, ((Lease *) lfirst(lc))->duration);
	pass->renew_at = le_clock() + RETRY;
	if (complete)
		pass->renew_at = Max(pass->renew_at,
							 Min(pass->renew_later_at, le_clock() + shortest / 3));
}
