/*-------------------------------------------------------------------------
 *
 * spread.c
 *		How many elections a candidate leads, for the strategies that count
 *		that (strategy.c).
 *
 * To count, all lease rows are read, which takes milliseconds where there are
 * thousands.  So this process counts once for many choices: a call once in its
 * transaction, the worker once in its round.  In between it notes what it
 * changes itself: such an election is read again before the next choice.  When
 * other processes have changed something since (le_leadership_generation), all
 * is counted anew, but not so often that this would take most of the time.
 *
 * Counts decide about balance, and never about safety: two processes that
 * elect at the same moment do not see each other's choices, however often they
 * count.  The worker asks for yields until the balance is right.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"
#include "utils/inval.h"
#include "utils/memutils.h"

/*
 * After a count, the next one is made no sooner than after 5 us for each row
 * beyond the first 1,000 that it has read.
 */
#define PAUSE_PER_ROW	5
#define FEW_ROWS		1000

/* What the running transaction, or the worker's round, has counted */
static Tally *counted = NULL;
static bool is_counted = false;
static int64 count_again_at;	/* no sooner (monotonic) */
static uint64 changes;			/* le_leadership_generation at the last look */
static uint64 own_changes;		/* that this process has made since */
static bool others_changed;		/* other processes have, since the count */

/* Is this the worker, where a count lasts for a round? */
static bool in_round = false;

static void
forget(void)
{
	if (is_counted)
		MemoryContextReset(counted->context);
	is_counted = false;
}

void
le_spread_end_of_xact(bool committed)
{
	if (!in_round)
		forget();
	else if (is_counted)
		le_tally_end_of_xact(counted, committed);
}

/*
 * Forget what was counted, as the worker does at the beginning of each round:
 * what it counts next lasts for that round.
 */
void
le_spread_begin_round(void)
{
	in_round = true;
	forget();
}

bool
le_spread_is_counted(void)
{
	return is_counted;
}

/*
 * Have other processes changed who leads, and may the count be made anew?
 * Each change of ours counts once in le_leadership_generation as well (or not
 * at all: then a change of another process is overlooked, until the next one).
 */
static bool
is_out_of_date(void)
{
	AcceptInvalidationMessages();
	if (le_leadership_generation - changes > own_changes)
		others_changed = true;
	changes = le_leadership_generation;
	own_changes = 0;
	return others_changed && le_clock() >= count_again_at;
}

/*
 * The elections as they were counted last, and changed by this process since.
 */
Tally *
le_spread_now(void)
{
	if (is_counted && counted->lease_oid == le_store.lease_oid &&
		!is_out_of_date())
	{
		le_tally_catch_up(counted);
		return counted;
	}

	/* Before the rows are read: a change in between is to count as new. */
	changes = le_leadership_generation;
	own_changes = 0;
	others_changed = is_counted = false;
	if (counted == NULL)
		counted = le_tally_make(TopMemoryContext);
	le_tally_count(counted, NULL);
	is_counted = true;
	count_again_at = le_clock() +
		Max(counted->rows - FEW_ROWS, 0) * PAUSE_PER_ROW;
	return counted;
}

/*
 * This process changes who leads that election, or to whom it is due.
 */
void
le_spread_touch(const char *election)
{
	le_cap_touch(election);
	if (!is_counted)
		return;
	le_tally_touch(counted, election);
	own_changes++;
}

static void
tell(const Tally *tally, const Election *election, Contender *c)
{
	c->weight = election->group != NULL && c->rank > 0 ? c->rank : 1;
	c->leads = le_tally_others(tally, TALLY_LEADS, election->name, c->name,
							   &c->candidate->role);
}

/*
 * Set how many other elections of the strategy, and of the same group if it
 * belongs to one, each who stands in an election, and its holder, leads; and
 * in a group, how much each can bear.  lease is the election's row, as it was
 * read just now.
 */
void
le_spread_tell(Tally *tally, const Election *election,
			   const Lease *lease, View *view)
{
	le_tally_note(tally, election, lease);
	for (int i = 0; i < view->ncontenders; i++)
		tell(tally, election, &view->contenders[i]);
	if (view->holder != NULL)
		tell(tally, election, view->holder);
}
