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
 *	 transaction changes itself is counted again.  Whoever releases the lock
 *	 forgets the count.  So that a call on all seats does not count all of them
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
#include "utils/builtins.h"
#include "utils/memutils.h"

/* A candidate, and how many seats it has */
typedef struct Share
{
	struct
	{
		RoleKey		role;
		char		candidate[LE_NAME_MAX + 1];
	}			key;			/* hash key */
	int			has;
	int			due;
	int			late;			/* seats whose leases are over, and not ended */
} Share;

/* A seat of the group */
typedef struct CountedSeat
{
	char		election[LE_NAME_MAX + 1];	/* hash key */
	Share	   *holder;			/* NULL: nobody has it */
	Share	   *heir;			/* to whom it is due; NULL: to nobody */
	Share	   *late;			/* whose lease is over, and not ended yet */
} CountedSeat;

struct Cap
{
	MemoryContext context;		/* of shares and seats */
	HTAB	   *shares;			/* of Share */
	HTAB	   *seats;			/* of CountedSeat */
	char	   *group;
	int			group_seats;	/* how many it had when they were counted */
	int			locks;			/* how often the group lock was taken, and not
								 * released; 0: it is only kept, or they were
								 * counted without it */
	int64		keep_until;		/* the lock, if it is only kept (monotonic) */
	List	   *touched;		/* names of seats to be counted again */
};

/* The counts under group locks, in memory that ends with the transaction */
static List *locked_caps = NIL;

/* Does a call keep group locks from one seat to the next? */
static bool keeps = false;

/*
 * A lock is kept for 10 ms at most, since the worker queues for it for 20 ms;
 * but where counting is slow, for long enough not to spend the time on that.
 */
#define LONGEST_KEPT	10000
#define COUNTS_KEPT		20		/* times as long as it took to count */

/* A count that is under way */
typedef struct Count
{
	const Store *store;
	const ElectionGroup *group;
	const Incarnation *inc;
	int64		now;
	struct Cap *cap;
} Count;

static Share *
find_share(const struct Cap *cap, const char *candidate, const Role *role,
		   HASHACTION action)
{
	Share		key;
	Share	   *share;
	bool		found;

	memset(&key, 0, sizeof(key));
	strlcpy(key.key.candidate, candidate, sizeof(key.key.candidate));
	key.key.role = le_role_key(role);
	share = hash_search(cap->shares, &key.key, action, &found);
	if (share != NULL && !found)
		share->has = share->due = share->late = 0;
	return share;
}

/*
 * Is that election, whose name says so, a seat of the group?  One whose number
 * is greater than there are seats may also have been made before the group.
 */
static bool
is_seat(const Count *count, const Lease *lease)
{
	Election   *election;

	if (!le_group_withdraws(count->group, lease->election))
		return true;
	election = le_election_read(count->store, lease->election);
	return election != NULL && election->group != NULL;
}

/*
 * May the leader that another incarnation has granted this lease to lead on?
 */
static bool
is_in_grace(const Count *count, const Lease *lease)
{
	Election   *election = le_election_read(count->store, lease->election);

	return election != NULL &&
		le_lease_grace(lease, election->lease_duration, count->inc) > count->now;
}

static void
count_seat(Count *count, Lease *lease)
{
	struct Cap *cap = count->cap;
	LeaseState	state = le_lease_state(lease, count->inc->name, count->now);
	bool		is_due = lease->leader != NULL ? lease->yielding :
		count->now < le_lease_reserved_mono(lease, count->inc->name);
	CountedSeat *seat;
	Share	   *leader;

	if (!is_seat(count, lease))
		return;
	seat = hash_search(cap->seats, lease->election, HASH_ENTER, NULL);
	seat->holder = seat->heir = seat->late = NULL;
	if (lease->leader != NULL)
	{
		leader = find_share(cap, lease->leader, &lease->role, HASH_ENTER);
		if (state == LEASE_LED ||
			(state == LEASE_FOREIGN && is_in_grace(count, lease)))
			seat->holder = leader;
		else if (state == LEASE_EXPIRED)
			seat->late = leader;
	}
	if (seat->holder != NULL)
		seat->holder->has++;
	if (seat->late != NULL)
		seat->late->late++;
	if (is_due && lease->successor != NULL &&
		!le_group_withdraws(count->group, lease->election))
	{
		seat->heir = find_share(cap, lease->successor, &lease->successor_role,
								HASH_ENTER);
		seat->heir->due++;
	}
}

/*
 * Count the seats of a group, or count them again.
 */
static void
count_seats(const Store *store, const ElectionGroup *group, struct Cap *cap)
{
	MemoryContext old = MemoryContextSwitchTo(cap->context);
	Count		count = {.store = store,.group = group,.cap = cap};
	RowScan    *scan;
	Lease	   *lease;

	MemoryContextReset(cap->context);
	count.inc = le_epoch_read();
	count.now = le_clock();
	cap->shares = le_hash_make("leader_election shares",
							   sizeof(((Share *) 0)->key), sizeof(Share),
							   HASH_BLOBS, cap->context);
	cap->seats = le_hash_make("leader_election counted seats",
							  LE_NAME_MAX + 1, sizeof(CountedSeat),
							  HASH_STRINGS, cap->context);
	cap->group_seats = group->seats;
	cap->touched = NIL;
	scan = le_lease_scan_group(store, group->name);
	while ((lease = le_lease_next_of_group(scan, group->name)) != NULL)
		count_seat(&count, lease);
	le_scan_end(scan);
	MemoryContextSwitchTo(old);
}

static struct Cap *
make_cap(const Store *store, const ElectionGroup *group, MemoryContext context)
{
	struct Cap *cap = MemoryContextAllocZero(context, sizeof(struct Cap));

	cap->context = AllocSetContextCreate(context, "leader_election cap",
										 ALLOCSET_SMALL_SIZES);
	cap->group = MemoryContextStrdup(context, group->name);
	count_seats(store, group, cap);
	return cap;
}

/*
 * Count the seats again that this transaction has changed since.
 */
static void
count_touched(const Store *store, const ElectionGroup *group)
{
	struct Cap *cap = group->cap;
	Count		count = {.store = store,.group = group,.inc = le_epoch_read(),
	.now = le_clock(),.cap = cap};

	foreach_ptr(const char, name, cap->touched)
	{
		Lease	   *lease = le_lease_read(store, name, NULL);
		CountedSeat *seat = hash_search(cap->seats, name, HASH_REMOVE, NULL);

		if (seat != NULL && seat->holder != NULL)
			seat->holder->has--;
		if (seat != NULL && seat->heir != NULL)
			seat->heir->due--;
		if (seat != NULL && seat->late != NULL)
			seat->late->late--;
		if (lease != NULL)
			count_seat(&count, lease);
	}
	cap->touched = NIL;
}

/*
 * How many seats of its group each candidate has, as the store knows it, or as
 * they are counted now.
 */
static struct Cap *
cap_of(const Store *store, ElectionGroup *group)
{
	if (group->cap == NULL)
		group->cap = make_cap(store, group, GetMemoryChunkContext(group));
	else if (group->cap->touched != NIL)
		count_touched(store, group);
	return group->cap;
}

static struct Cap *
find_locked(const char *group)
{
	foreach_ptr(struct Cap, cap, locked_caps)
	{
		if (strcmp(cap->group, group) == 0)
		{
			/* Its lock was taken in no subtransaction: those are refused. */
			Assert(le_lock_group_is_mine(group));
			return cap;
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
	locked_caps = NIL;
	keeps = false;
}

/*
 * The count of a group, whose lock this transaction has just taken.
 */
static struct Cap *
count_locked(const Store *store, const ElectionGroup *group)
{
	int64		start = le_clock();
	struct Cap *cap = make_cap(store, group, TopTransactionContext);
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	cap->keep_until = le_clock() +
		Max(LONGEST_KEPT, COUNTS_KEPT * (le_clock() - start));
	locked_caps = lappend(locked_caps, cap);
	MemoryContextSwitchTo(old);
	return cap;
}

/*
 * Take the group lock of an election, if it is a seat of a group, and count.
 * From here on the store knows how many seats each candidate has.  wait: queue
 * for the lock for a while (le_wait_for_group()).  False: another process has
 * it.  Whoever takes it several times has to release it as often.
 */
bool
le_cap_lock(Store *store, const Election *election, bool wait)
{
	ElectionGroup *group;
	struct Cap *cap;

	if (election->group == NULL)
		return true;
	cap = find_locked(election->group);
	if (cap == NULL && (wait ? !le_wait_for_group(election->group) :
						!le_lock_group(election->group, false)))
		return false;

	/* Read it under the lock: only there, its row does not change. */
	store->groups = NIL;
	store->knows_groups = false;
	group = le_group_of(store, election);
	store->knows_groups = group == NULL;	/* its row is missing */
	if (group == NULL)
		return true;
	if (cap == NULL)
		cap = count_locked(store, group);
	else if (cap->group_seats != group->seats)
		count_seats(store, group, cap); /* this transaction has altered it */
	cap->locks++;
	group->cap = cap;
	store->groups = list_make1(group);
	return true;
}

static void
release(struct Cap *cap)
{
	le_lock_release_group(cap->group);
	locked_caps = list_delete_ptr(locked_caps, cap);
	MemoryContextDelete(cap->context);
}

/*
 * Release the group lock before the transaction ends: the seat was neither
 * granted nor reserved.
 */
void
le_cap_unlock(Store *store, const Election *election)
{
	struct Cap *cap;

	if (election->group == NULL)
		return;
	cap = find_locked(election->group);
	store->groups = NIL;
	store->knows_groups = false;
	if (cap == NULL)
		le_lock_release_group(election->group);
	else if (--cap->locks == 0 &&
			 (!keeps || le_clock() >= cap->keep_until))
		release(cap);
}

/*
 * Release the group locks that are only kept: this call is about to wait.
 */
void
le_cap_let_go(void)
{
	foreach_ptr(struct Cap, cap, list_copy(locked_caps))
	{
		if (cap->locks == 0)
			release(cap);
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
	foreach_ptr(struct Cap, cap, locked_caps)
	{
		MemoryContext old = MemoryContextSwitchTo(cap->context);

		if (le_seat_is_of(election, cap->group))
			cap->touched = lappend(cap->touched, pstrdup(election));
		MemoryContextSwitchTo(old);
	}
}

/*
 * May a seat be granted or reserved here?  The settings are those of now: the
 * election may have been dropped and made anew since it was locked.
 */
bool
le_cap_is_locked(const Store *store, const Election *election)
{
	ElectionGroup *group;

	if (election->group == NULL)
		return true;
	if (store->groups == NIL)
		return store->knows_groups;
	group = le_group_of(store, election);
	return group != NULL && group->cap != NULL && group->cap->locks > 0;
}

/*
 * Has the candidate as many other seats of this election's group as it may?
 * is_due: this one is due to it; otherwise, what is due to it counts, too.
 *
 * Under an election lock no seats are counted: there, where the group is not
 * locked, the answer is no, and nothing is granted.
 */
bool
le_cap_bars(const Store *store, const Election *election, const Candidate *c,
			bool is_due)
{
	ElectionGroup *group;
	struct Cap *cap;
	Share	   *share;
	CountedSeat *seat;
	int			seats;

	if (election->group == NULL ||
		(!store->knows_groups && store->groups == NIL))
		return false;
	group = le_group_of(store, election);
	if (group == NULL)
		return false;
	cap = cap_of(store, group);
	share = find_share(cap, c->candidate, &c->role, HASH_FIND);
	if (share == NULL)
		return false;
	seat = hash_search(cap->seats, election->name, HASH_FIND, NULL);
	seats = share->has - (seat != NULL && seat->holder == share ? 1 : 0);
	if (!is_due)
		seats += share->due - (seat != NULL && seat->heir == share ? 1 : 0);
	return seats >= group->max_per_candidate;
}

/*
 * The candidate is about to be granted a seat of this election's group.  Lock
 * its leases there that are over: none of them is renewed before this is
 * committed, and then it is too late.  False: another transaction has one of
 * them, and may renew it, or has renewed it since they were counted.
 */
bool
le_cap_lock_late(const Store *store, const Election *election,
				 const Candidate *c)
{
	ElectionGroup *group = le_group_of(store, election);
	HASH_SEQ_STATUS scan;
	struct Cap *cap;
	CountedSeat *seat;
	Share	   *share;
	Lease	   *lease;

	if (group == NULL || group->cap == NULL)
		return true;
	cap = cap_of(store, group);
	share = find_share(cap, c->candidate, &c->role, HASH_FIND);
	if (share == NULL || share->late == 0)
		return true;
	hash_seq_init(&scan, cap->seats);
	while ((seat = hash_seq_search(&scan)) != NULL)
	{
		if (seat->late != share || strcmp(seat->election, election->name) == 0)
			continue;
		lease = le_lease_lock(store, seat->election);
		if (lease == NULL || le_lease_state_now(store, lease) == LEASE_LED)
		{
			hash_seq_term(&scan);
			return false;
		}
	}
	return true;
}
