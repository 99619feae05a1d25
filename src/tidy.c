/*-------------------------------------------------------------------------
 *
 * tidy.c
 *		The background worker removes what is no longer needed: dead
 *		candidates, and old history.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "leader_election.h"
#include "utils/timestamp.h"
#include "worker.h"

#define BATCH			1000
#define PRUNE_EVERY		(3600000 * MS)	/* old history */
#define TIDYING			"tidying"	/* what can fail again and again */

static void
prune_candidates(void *arg)
{
	Pass	   *pass = arg;
	List	   *dead = NIL;
	Store		store;
	ListCell   *lc;

	foreach(lc, pass->candidates)
	{
		if (!le_candidate_alive(lfirst(lc)))
			dead = lappend(dead, lfirst(lc));
	}
	if (dead == NIL)
		return;
	le_store_get(&store);
	if (le_store_lock(&store, LE_TABLE_CANDIDATE, RowExclusiveLock, false) &&
		le_candidates_prune(&store, dead))
		pass->next = le_clock();	/* they may have been all there was to do */
	else
		pass->next = Min(pass->next, le_clock() + TIDY_PAUSE);
}

static void
prune_history(void *arg)
{
	bool	   *more = arg;
	Store		store;
	TimestampTz before = GetCurrentTimestamp() -
		le_history_retention_s * USECS_PER_SEC;

	le_store_get(&store);
	if (le_store_lock(&store, LE_TABLE_HISTORY, RowExclusiveLock, false))
		*more = le_history_prune(&store, before, BATCH);
}

/*
 * Remove what is no longer needed.
 */
void
le_tidy(Pass *pass)
{
	static int64 pruned_history_at = 0; /* 0: not yet */

	if (pass->candidates != NIL)
		(void) le_attempt(TIDYING, prune_candidates, pass,
						  "removing dead candidates", &pass->next);
	if (pruned_history_at == 0 || le_clock() - pruned_history_at >= PRUNE_EVERY)
	{
		bool		more = false;

		(void) le_in_transaction(prune_history, &more, "removing old history");
		if (!more)
			pruned_history_at = le_clock();

		/*
		 * Whatever waits resets our latch: who woke us meanwhile would go
		 * unheard.  Sleep only after a pass that did nothing but look.
		 */
		pass->next = le_clock();
	}
}
