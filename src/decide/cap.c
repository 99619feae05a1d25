/*-------------------------------------------------------------------------
 *
 * cap.c
 *		How many seats of a group each candidate has, and whether it may have
 *		one more.
 *
 * A candidate (its name and role) has a seat if it leads there, also while it
 * is asked to yield, or if it led there before a failover and may lead on, in
 * the grace.  A seat is due to a candidate if it is reserved for it, or its
 * leader is to yield to it.  A candidate is passed over where it has, or is
 * due, as many other seats as the group allows.  A seat that is due to a
 * candidate is void once it has that many.
 *
 * Invariants:
 *
 * - Seats of a group are granted and reserved under the group lock, by a
 *	 process that has counted them under that lock.  So no two processes grant
 *	 the last seat that a candidate may have.  The end of a term needs no group
 *	 lock: it makes room, and a count that does not know of it is too high.
 *
 * - A count under the group lock lasts as long as this transaction holds that
 *	 lock: nobody else grants or reserves a seat meanwhile, and a seat that the
 *	 transaction changes itself is counted again.  The process that releases
 *	 the lock forgets the count.  So that a call on all seats does not count all of them
 *	 for each, it keeps the lock from one seat to the next (le_cap_keep()), but
 *	 never while it waits.
 *
 * - A lease whose deadline has passed does not count.  Another transaction may
 *	 be about to commit a renewal that it made before the deadline.  So the
 *	 winner's leases of that kind are locked before it is granted a seat.
 *
 * - The group lock comes before election locks, and is held while more locks
 *	 are tried.  Four calls want several locks, and wait under it for an
 *	 election lock or a lease row, a second at most: alter_group(),
 *	 drop_group(), acquire_any(), and request_yield() for a paused seat.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"
#include "utils/memutils.h"

/* The counts under group locks, in memory that ends with the transaction */
static List *locked = NIL;

/* Does a call keep group locks from one seat to the next? */
static bool keeps = false;

/*
 * A lock is kept for 10 ms at most, since the worker queues for it for 20 ms;
 * but where counting is slow, for long enough not to spend the time on that.
 */
#define LONGEST_KEPT	10000
#define COUNTS_KEPT		20		/* times as long as it took to count */

/*
 * How many seats of its group each candidate has, as is remembered, or as they
 * are counted now.
 */
static const Tally *
catch_up(ElectionGroup *group)
{
	if (group->tally == NULL)
	{
		group->tally = le_tally_make(GetMemoryChunkContext(group));
		le_tally_count(group->tally, group);
	}
	else
		le_tally_catch_up(group->tally);
	return group->tally;
}

static Tally *
find_locked(const char *group)
{
	foreach_ptr(Tally, tally, locked)
	{
		if (strcmp(tally->group->name, group) == 0)
		{
			/* Its lock was taken in no subtransaction: those are refused. */
			Assert(le_lock_holds_mutex(LOCK_GROUP, group, ExclusiveLock));
			return tally;
		}
	}
	return NULL;
}

/*
 * The transaction has ended.
 */
void
le_cap_forget(void)
{
	locked = NIL;
	keeps = false;
}

/*
 * The count of a group, whose lock this transaction has just taken.
 */
static Tally *
count_locked(const ElectionGroup *group)
{
	int64		start = le_clock();
	Tally	   *tally = le_tally_make(TopTransactionContext);
	MemoryContext old;

	le_tally_count(tally, group);
	old = MemoryContextSwitchTo(TopTransactionContext);
	tally->keep_until = le_clock() +
		Max(LONGEST_KEPT, COUNTS_KEPT * (le_clock() - start));
	locked = lappend(locked, tally);
	MemoryContextSwitchTo(old);
	return tally;
}

/*
 * Take the group lock of an election, if it is a seat of a group, and count.
 * From here on it is remembered how many seats each candidate has.  wait: queue
 * for the lock for a while (le_wait_for_group()).  False: another process has
 * it.  A caller that takes it several times releases it as often.
 */
bool
le_cap_lock(const Election *election, bool wait)
{
	ElectionGroup *group;
	Tally	   *tally;

	if (election->group == NULL)
		return true;
	tally = find_locked(election->group);
	if (tally == NULL && (wait ? !le_wait_for_group(election->group) :
						  !le_lock_mutex(LOCK_GROUP, election->group, false)))
		return false;

	/* Read it under the lock: only there, its row does not change. */
	le_group_forget();
	group = le_group_of(election);
	le_remembered.knows_groups = group == NULL; /* its row is missing */
	if (group == NULL)
		return true;
	if (tally == NULL)
		tally = count_locked(group);
	else if (tally->group->seats != group->seats)
		le_tally_count(tally, group);	/* we have altered it */
	tally->locks++;
	group->tally = tally;
	le_remembered.groups = list_make1(group);
	return true;
}

static void
release(Tally *tally)
{
	le_lock_release_mutex(LOCK_GROUP, tally->group->name);
	locked = list_delete_ptr(locked, tally);
	MemoryContextDelete(tally->context);
	pfree(tally);
}

/*
 * Release the group lock before the transaction ends: the seat was neither
 * granted nor reserved.
 */
void
le_cap_unlock(const Election *election)
{
	Tally	   *tally;

	if (election->group == NULL)
		return;
	tally = find_locked(election->group);
	le_group_forget();
	if (tally == NULL)
		le_lock_release_mutex(LOCK_GROUP, election->group);
	else if (--tally->locks == 0 &&
			 (!keeps || le_clock() >= tally->keep_until))
		release(tally);
}

/*
 * Release the group locks that are only kept: this call is about to wait.
 */
void
le_cap_let_go(void)
{
	foreach_ptr(Tally, tally, list_copy(locked))
	{
		if (tally->locks == 0)
			release(tally);
	}
}

/*
 * A call that works on many seats begins here, and ends (false): in between, a
 * group lock that is released is kept for the next seat.
 */
void
le_cap_keep(bool keep)
{
	keeps = keep;
	if (!keep)
		le_cap_let_go();
}

/*
 * This transaction has changed who has that seat, or to whom it is due.
 */
void
le_cap_touch(const char *election)
{
	foreach_ptr(Tally, tally, locked)
		le_tally_touch(tally, election);
}

/*
 * May a seat be granted or reserved here?  The settings are those of now: the
 * election may have been dropped and made anew since it was locked.
 */
bool
le_cap_is_locked(const Election *election)
{
	ElectionGroup *group;

	if (election->group == NULL)
		return true;
	if (le_remembered.groups == NIL)
		return le_remembered.knows_groups;
	group = le_group_of(election);
	return group != NULL && group->tally != NULL && group->tally->locks > 0;
}

/*
 * Has the candidate as many other seats of this election's group as it may?
 * is_due: this one is due to it; otherwise, what is due to it counts, too.
 *
 * Under an election lock no seats are counted: there, where the group is not
 * locked, the answer is no, and nothing is granted.
 */
bool
le_cap_bars(const Election *election, const Candidate *c, bool is_due)
{
	ElectionGroup *group;
	const Tally *tally;
	int			seats;

	if (election->group == NULL ||
		(!le_remembered.knows_groups && le_remembered.groups == NIL))
		return false;
	group = le_group_of(election);
	if (group == NULL)
		return false;
	tally = catch_up(group);
	seats = le_tally_others(tally, TALLY_HAS, election->name, c->candidate,
							&c->role);
	if (!is_due)
		seats += le_tally_others(tally, TALLY_DUE, election->name,
								 c->candidate, &c->role);
	return seats >= group->max_per_candidate;
}

/*
 * The candidate is about to be granted a seat of this election's group.  Lock
 * its leases there that are over: none of them is renewed before this is
 * committed, and then it is too late.  False: another transaction has one of
 * them, and may renew it, or has renewed it since they were counted.
 */
bool
le_cap_lock_late(const Election *election, const Candidate *c)
{
	ElectionGroup *group = le_group_of(election);

	if (group == NULL || group->tally == NULL)
		return true;
	foreach_ptr(const char, name,
				le_tally_late(catch_up(group), election->name,
							  c->candidate, &c->role))
	{
		const Lease *lease = le_lease_lock(name);

		if (lease == NULL || le_lease_state_now(lease) == LEASE_LED)
			return false;
	}
	return true;
}
