/*-------------------------------------------------------------------------
 *
 * tidy.c
 *		The background worker removes what is no longer needed: dead
 *		candidates, the rows of dropped elections, and old history.
 *
 * Invariant: it does so in steps, each a short transaction, and ends after a
 * step when a renewal, or anything else, is due.  There may be any number of
 * each; the next round goes on where this one ends.
 *
 * These transactions wait for no flush and for no standby.  If a crash undoes
 * a removal, it is done again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "worker/worker.h"

#define STEP_ROWS		250		/* looked at in a step, at most ... */
#define STEP_TIME		(5 * MS)	/* ... and how long it may take */
#define PRUNE_EVERY		(3600000 * MS)	/* old history */
#define PRUNE_AGAIN		(60000 * MS)	/* what could not be removed */

/* A step in removing dead candidates, or in moving rows of table dropped */
typedef struct Step
{
	List	   *left;			/* candidates, or names of elections */
	bool		changed;		/* some row */
	bool		kept;			/* some row, which was locked, or is needed */
} Step;

/* A step in removing old history */
typedef struct HistoryStep
{
	Oid			table;			/* that the walk is about */
	Walk		walk;			/* how far the steps have come */
	bool		more;			/* the walk is not over */
	bool		left;			/* some old rows could not be removed */
} HistoryStep;

/*
 * Is there time for another step?
 */
static bool
has_time(const Round *round)
{
	return le_clock() < Min(round->next, round->renew_at) && !MyLatch->is_set;
}

/*
 * A round may have any number of steps: each is to leave nothing behind in the
 * round's memory.
 */
static void
begin_step(void)
{
	MemoryContextSwitchTo(CurTransactionContext);
	le_commit_set("synchronous_commit", "off");
}

static void
prune_candidates(void *arg)
{
	Step	   *step = arg;
	int64		until;

	begin_step();
	le_store_get();
	if (!le_store_try_lock(LE_TABLE_CANDIDATE, RowExclusiveLock))
		le_attempt_report_busy("the table of candidates is locked");

	/* However slow the machine is, one is removed. */
	until = le_clock() + STEP_TIME;
	do
	{
		if (le_candidate_prune(linitial(step->left)))
			step->changed = true;
		else
			step->kept = true;
		step->left = list_delete_first(step->left);
	} while (step->left != NIL && le_clock() < until);
}

/*
 * Which elections have been dropped?  If there are more of them, the next scan
 * finds the others.
 */
void
le_tidy_scan(Round *round)
{
	MemoryContext old;

	if (!le_store_try_lock(LE_TABLE_DROPPED, AccessShareLock))
	{
		round->next = Min(round->next, le_clock() + RETRY);
		return;
	}
	old = MemoryContextSwitchTo(le_worker_context);
	round->dropped = le_dropped_names(STEP_ROWS);
	MemoryContextSwitchTo(old);
}

/*
 * The mark of such an election is read while its row is locked: nobody drops
 * an election of that name meanwhile.  What is dropped later leaves a new row.
 */
static void
move_dropped(void *arg)
{
	Step	   *step = arg;
	int64		highest = 0;
	int64		until;

	begin_step();
	le_store_get();
	if (!le_store_try_lock(LE_TABLE_EPOCH, RowExclusiveLock) ||
		!le_store_try_lock(LE_TABLE_ANNOUNCED, AccessShareLock) ||
		!le_store_try_lock(LE_TABLE_DROPPED, RowExclusiveLock))
		le_attempt_report_busy("a table that dropped elections are in is locked");
	until = le_clock() + STEP_TIME;
	do
	{
		const char *election = linitial(step->left);

		if (le_dropped_take(election, &highest))
		{
			le_pending_note_dropped(election);
			step->changed = true;
		}
		step->left = list_delete_first(step->left);
	} while (step->left != NIL && le_clock() < until);
	if (!le_epoch_note_dropped(highest))
		le_attempt_report_busy("the row of this incarnation is locked");
}

/*
 * Do steps until nothing is left, or there is no time for another one.
 */
static void
do_steps(Round *round, AttemptKind kind, Work work, List *all)
{
	Step		step = {.left = all};
	int64		next = round->next;

	while (step.left != NIL)
	{
		if (!le_attempt(kind, NULL, work, &step, &next))
			break;
		if (step.left != NIL && !has_time(round))
		{
			next = le_clock();
			break;
		}
	}

	/*
	 * Maybe there is no more work, or there are more of them than the scan
	 * has found, or listeners have to be told.
	 */
	if (step.changed)
		next = le_clock();
	else if (step.kept)
		next = Min(next, le_clock() + TIDY_PAUSE);
	round->next = next;
}

static void
prune_history(void *arg)
{
	HistoryStep *step = arg;
	Oid			table;
	TimestampTz before = GetCurrentTimestamp() -
		le_history_retention_s * USECS_PER_SEC;

	begin_step();
	le_store_get();
	table = le_store.table[TABLE_HISTORY].rel;
	if (!le_store_try_lock(LE_TABLE_LEASE, AccessShareLock) ||
		!le_store_try_lock(LE_TABLE_HISTORY, RowExclusiveLock) ||
		!le_table_lock_indexes(table, RowExclusiveLock, false) ||
		!le_store_try_lock(LE_TABLE_ANNOUNCED, AccessShareLock))
		le_attempt_report_busy("a table that old history is removed from is locked");
	if (step->table != table)
	{
		memset(step, 0, sizeof(HistoryStep));
		step->table = table;
	}
	step->more = le_history_prune(before, STEP_ROWS,
								  STEP_TIME, &step->walk,
								  &step->left);
}

static void
prune_all_history(Round *round)
{
	static HistoryStep at = {.table = InvalidOid};
	static int64 prune_at = 0;	/* when to make the next step */

	while (le_clock() >= prune_at)
	{
		HistoryStep step = at;	/* a step that is undone is made again */

		int64		again_at = PG_INT64_MAX;

		if (!le_attempt(ATTEMPT_PRUNE, NULL, prune_history, &step, &again_at))
			prune_at = again_at;
		else if (step.more)
			at = step;
		else
		{
			prune_at = le_clock() + (step.left ? PRUNE_AGAIN : PRUNE_EVERY);
			at.table = InvalidOid;
		}

		/*
		 * Waits above may have swallowed a wake-up.  Run one more round, and
		 * sleep only after one that only scanned.
		 */
		if (!has_time(round) || le_clock() < prune_at)
		{
			round->next = le_clock();
			return;
		}
	}
	round->next = Min(round->next, prune_at);
}

/*
 * Remove what is no longer needed, unless a renewal is due.
 */
void
le_tidy(Round *round)
{
	if (round->renew_at <= le_clock())
	{
		round->next = le_clock();
		return;
	}
	do_steps(round, ATTEMPT_TIDY, prune_candidates, round->dead);
	do_steps(round, ATTEMPT_MOVE_DROPPED, move_dropped, round->dropped);
	prune_all_history(round);
}
