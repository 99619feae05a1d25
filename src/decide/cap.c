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
	MemoryContext context;		/* of all below */
	HTAB	   *shares;			/* of Share */
	HTAB	   *seats;			/* of CountedSeat */
	bool		locked;			/* was counted under the group lock */
};

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
		share->has = share->due = 0;
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
		le_vacancy_grace(election, lease, count->inc) > count->now;
}

static void
count_seat(Lease *lease, void *arg)
{
	Count	   *count = arg;
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
	if (is_due && lease->successor != NULL &&
		!le_group_withdraws(count->group, lease->election))
	{
		seat->heir = find_share(cap, lease->successor, &lease->successor_role,
								HASH_ENTER);
		seat->heir->due++;
	}
}

/*
 * Count the seats of a group, in memory that lasts as long as the group's.
 */
static void
count_seats(const Store *store, ElectionGroup *group, bool locked)
{
	MemoryContext context = AllocSetContextCreate(GetMemoryChunkContext(group),
												  "leader_election cap",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	struct Cap *cap = palloc0(sizeof(struct Cap));
	Count		count = {.store = store,.group = group,.inc = le_epoch_read(),
	.now = le_clock(),.cap = cap};

	cap->context = context;
	cap->locked = locked;
	cap->shares = le_hash_make("leader_election shares",
							   sizeof(((Share *) 0)->key), sizeof(Share),
							   HASH_BLOBS, context);
	cap->seats = le_hash_make("leader_election counted seats",
							  LE_NAME_MAX + 1, sizeof(CountedSeat),
							  HASH_STRINGS, context);
	le_lease_scan_group(store, group->name, count_seat, &count);
	group->cap = cap;
	MemoryContextSwitchTo(old);
}

/*
 * Take the group lock of an election, if it is a seat of a group, and count.
 * From here on the store knows how many seats each candidate has.  wait: queue
 * for the lock for a while (le_wait_for_group()).  False: another process has
 * it.
 */
bool
le_cap_lock(Store *store, const Election *election, bool wait)
{
	ElectionGroup *group;

	if (election->group == NULL)
		return true;
	if (wait ? !le_wait_for_group(election->group) :
		!le_lock_group(election->group, false))
		return false;

	/* Read it under the lock: only there, its row does not change. */
	store->groups = NIL;
	store->knows_groups = false;
	group = le_group_of(store, election);
	store->knows_groups = group == NULL;	/* its row is missing */
	if (group != NULL)
	{
		count_seats(store, group, true);
		store->groups = list_make1(group);
	}
	return true;
}

/*
 * Release the group lock before the transaction ends: the seat was neither
 * granted nor reserved.
 */
void
le_cap_unlock(Store *store, const Election *election)
{
	ListCell   *lc;

	if (election->group == NULL)
		return;
	le_unlock_group(election->group);
	foreach(lc, store->groups)
		MemoryContextDelete(((ElectionGroup *) lfirst(lc))->cap->context);
	store->groups = NIL;
	store->knows_groups = false;
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
	return group != NULL && group->cap != NULL && group->cap->locked;
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
	Share	   *share;
	CountedSeat *seat;
	int			seats;

	if (election->group == NULL ||
		(!store->knows_groups && store->groups == NIL))
		return false;
	group = le_group_of(store, election);
	if (group == NULL)
		return false;
	if (group->cap == NULL)
		count_seats(store, group, false);
	share = find_share(group->cap, c->candidate, &c->role, HASH_FIND);
	if (share == NULL)
		return false;
	seat = hash_search(group->cap->seats, election->name, HASH_FIND, NULL);
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
	CountedSeat *seat;
	Share	   *share;
	Lease	   *lease;

	if (group == NULL || group->cap == NULL)
		return true;
	share = find_share(group->cap, c->candidate, &c->role, HASH_FIND);
	if (share == NULL)
		return true;
	hash_seq_init(&scan, group->cap->seats);
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
