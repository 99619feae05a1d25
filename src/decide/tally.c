/*-------------------------------------------------------------------------
 *
 * tally.c
 *		Who leads how much: lease rows, counted for each candidate.
 *
 * A candidate is a name and a role.  What counts has two readings:
 *
 * - How many seats of a group a candidate has, and how many more are due to it,
 *	 decides whether it may have another one (cap.c).  That tally is exact: it
 *	 is made and read under the group lock.
 *
 * - How many elections of a strategy a candidate leads decides who comes first
 *	 (spread.c).  That tally may be a moment old.
 *
 * Invariants:
 *
 * - An election is counted for at most one candidate in each way at any time.
 *
 * - An election that this process has changed since it was counted is counted
 *	 again before the tally is read.  So is one that was read after a
 *	 transaction had changed it, if that is undone.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"
#include "utils/memutils.h"

/*
 * A candidate, and how many elections count for it: of a group, or of one
 * strategy and (if they belong to any) one group
 */
typedef struct Share
{
	struct
	{
		const Strategy *strategy;	/* NULL: the tally is that of a group */
		RoleKey		role;
		char		candidate[LE_NAME_MAX + 1];
		char		group[LE_GROUP_NAME_MAX + 1];	/* "": none */
	}			key;			/* hash key */
	int			count[TALLY_COUNTS];
} Share;

/* An election that is counted, and for whom in each way; NULL: for nobody */
typedef struct Counted
{
	char		election[LE_NAME_MAX + 1];	/* hash key */
	const Strategy *strategy;
	char		group[LE_GROUP_NAME_MAX + 1];
	Share	   *of[TALLY_COUNTS];
} Counted;

/*
 * counted: whose strategy and group is meant; NULL: a tally of a group, which
 * has one of each.
 */
static Share *
find_share(const Tally *tally, const Counted *counted, const char *candidate,
		   const Role *role, HASHACTION action)
{
	Share		key;
	Share	   *share;
	bool		found;

	memset(&key, 0, sizeof(key));
	if (counted != NULL)
	{
		key.key.strategy = counted->strategy;
		strlcpy(key.key.group, counted->group, sizeof(key.key.group));
	}
	strlcpy(key.key.candidate, candidate, sizeof(key.key.candidate));
	key.key.role = le_role_key(role);
	share = hash_search(tally->shares, &key.key, action, &found);
	if (share != NULL && !found)
		memset(share->count, 0, sizeof(share->count));
	return share;
}

/*
 * settings: NULL in a tally of a group.
 */
static Counted *
find_counted(const Tally *tally, const char *election, const Election *settings)
{
	bool		found;
	Counted    *counted = hash_search(tally->elections, election, HASH_ENTER,
									  &found);

	if (!found)
		memset((char *) counted + sizeof(counted->election), 0,
			   sizeof(Counted) - sizeof(counted->election));
	if (settings != NULL)
	{
		counted->strategy = le_strategy(settings->strategy);
		strlcpy(counted->group, settings->group != NULL ? settings->group : "",
				sizeof(counted->group));
	}
	return counted;
}

/*
 * May the leader that another incarnation has granted this lease to lead on?
 */
static bool
is_in_grace(const Lease *lease, int64 now)
{
	Election   *election = le_election_read(lease->election);

	return election != NULL &&
		le_lease_grace(lease, election->lease_duration, le_epoch_read()) > now;
}

static void
remember(const Tally *tally, List **list, const char *election)
{
	MemoryContext old = MemoryContextSwitchTo(tally->context);

	*list = lappend(*list, pstrdup(election));
	MemoryContextSwitchTo(old);
}

/*
 * For whom the election counts, as its lease is now (NULL: it is gone).
 */
static void
note_lease(Tally *tally, Counted *counted, const Lease *lease)
{
	int64		now = le_clock();
	LeaseState	state = le_lease_state(lease, now);
	Share	   *leader = NULL;
	Share	   *heir = NULL;
	bool		is_due;

	if (lease->leader != NULL)
		leader = find_share(tally, counted, lease->leader, &lease->role,
							HASH_ENTER);
	is_due = leader != NULL ? lease->yielding :
		now < le_lease_reserved_mono(lease);
	if (is_due && lease->successor != NULL &&
		!le_group_withdraws(tally->group, lease->election))
		heir = find_share(tally, counted, lease->successor,
						  &lease->successor_role, HASH_ENTER);
	if (state == LEASE_LED ||
		(tally->group != NULL && state == LEASE_STALE &&
		 is_in_grace(lease, now)))
		counted->of[TALLY_HAS] = leader;
	else if (state == LEASE_EXPIRED)
		counted->of[TALLY_LATE] = leader;
	counted->of[TALLY_DUE] = heir;
	counted->of[TALLY_LEADS] = is_due ? heir :
		state == LEASE_LED ? leader : NULL;
}

static void
note(Tally *tally, Counted *counted, const Lease *lease)
{
	for (int i = 0; i < TALLY_COUNTS; i++)
	{
		if (counted->of[i] != NULL)
			counted->of[i]->count[i]--;
		counted->of[i] = NULL;
	}
	if (lease != NULL)
		note_lease(tally, counted, lease);
	if (lease == NULL || lease->own_write)
		remember(tally, &tally->unsure, counted->election);
	for (int i = 0; i < TALLY_COUNTS; i++)
	{
		if (counted->of[i] != NULL)
			counted->of[i]->count[i]++;
	}
}

/*
 * Is that election, whose name says so, a seat of the group?  One whose number
 * is greater than there are seats may also have been made before the group.
 */
static bool
is_seat(const Tally *tally, const char *name)
{
	return !le_group_withdraws(tally->group, name) ||
		le_group_seat_read(name) != NULL;
}

static void
count_group(Tally *tally)
{
	const char *group = tally->group->name;
	RowScan    *scan = le_lease_scan(le_seat_key(group));
	Lease	   *lease;

	while ((lease = le_lease_next(scan)) != NULL)
	{
		if (le_seat_is_of(lease->election, group) &&
			is_seat(tally, lease->election))
			note(tally,
				 find_counted(tally, lease->election, NULL), lease);
	}
	le_scan_end(scan);
}

static void
count_all(Tally *tally)
{
	RowScan    *scan;
	Lease	   *lease;

	foreach_ptr(Election, election, le_elections_read())
	{
		if (le_strategy(election->strategy)->counts)
			(void) find_counted(tally, election->name, election);
	}
	scan = le_lease_scan(le_key_any());
	while ((lease = le_lease_next(scan)) != NULL)
	{
		Counted    *counted = hash_search(tally->elections, lease->election,
										  HASH_FIND, NULL);

		tally->rows++;
		if (counted != NULL)
			note(tally, counted, lease);
	}
	le_scan_end(scan);
}

/*
 * Count the seats of a group, or (NULL) the elections of all strategies that
 * count; or count them anew.
 */
void
le_tally_count(Tally *tally, const ElectionGroup *group)
{
	bool		remembers;

	MemoryContextReset(tally->context);
	tally->lease_oid = le_store.lease_oid;
	tally->rows = 0;
	tally->touched = tally->unsure = NIL;
	if (group != NULL)
	{
		tally->group = MemoryContextAlloc(tally->context,
										  sizeof(ElectionGroup));
		*tally->group = *group;
		tally->group->name = MemoryContextStrdup(tally->context, group->name);
	}
	tally->elections = le_hash_make("leader_election counted elections",
									LE_NAME_MAX + 1, sizeof(Counted),
									HASH_STRINGS, tally->context);
	tally->shares = le_hash_make("leader_election shares",
								 sizeof(((Share *) 0)->key), sizeof(Share),
								 HASH_BLOBS, tally->context);

	/*
	 * One session may hold several leases: test it once.  But remember it no
	 * longer than that, also after an error, which a caller may catch: this
	 * transaction may change holders, and a session remembered as alive until
	 * it ends could keep the lease of a leader that dies meanwhile from being
	 * taken over, or is_leader(election, term) true.
	 */
	remembers = le_sessions_remember();
	PG_TRY();
	{
		if (group != NULL)
			count_group(tally);
		else
			count_all(tally);
	}
	PG_FINALLY();
	{
		if (!remembers)
			le_session_lock_forget();
	}
	PG_END_TRY();
}

/*
 * A tally for le_tally_count(), in that memory.
 */
Tally *
le_tally_make(MemoryContext context)
{
	Tally	   *tally = MemoryContextAllocZero(context, sizeof(Tally));

	tally->context = AllocSetContextCreate(context, "leader_election tally",
										   ALLOCSET_DEFAULT_SIZES);
	return tally;
}

/*
 * This transaction has changed who leads that election, or to whom it is due.
 */
void
le_tally_touch(Tally *tally, const char *election)
{
	if (tally->group == NULL || le_seat_is_of(election, tally->group->name))
		remember(tally, &tally->touched, election);
}

/*
 * The transaction has ended.
 */
void
le_tally_end_of_xact(Tally *tally, bool committed)
{
	MemoryContext old = MemoryContextSwitchTo(tally->context);

	if (!committed)
		tally->touched = list_concat(tally->touched, tally->unsure);
	list_free(tally->unsure);
	tally->unsure = NIL;
	MemoryContextSwitchTo(old);
}

/*
 * Count again what was touched.
 */
void
le_tally_catch_up(Tally *tally)
{
	foreach_ptr(const char, name, tally->touched)
	{
		Lease	   *lease = le_lease_read(name, NULL);
		Counted    *counted = tally->group != NULL ?
			find_counted(tally, name, NULL) :
			hash_search(tally->elections, name, HASH_FIND, NULL);

		if (tally->group != NULL && !is_seat(tally, name))
			lease = NULL;
		if (counted != NULL)
			note(tally, counted, lease);
	}
	list_free_deep(tally->touched);
	tally->touched = NIL;
}

/*
 * Count this election by its settings, and its lease, as the caller has just
 * read them.
 */
void
le_tally_note(Tally *tally, const Election *election, const Lease *lease)
{
	note(tally, find_counted(tally, election->name, election), lease);
}

/*
 * How many other elections than this one count for the candidate, in that way:
 * seats of the same group, or elections of the same strategy and, if this one
 * belongs to any, of the same group?
 */
int
le_tally_others(const Tally *tally, TallyCount which, const char *election,
				const char *candidate, const Role *role)
{
	const Counted *counted = hash_search(tally->elections, election, HASH_FIND,
										 NULL);
	const Share *share = find_share(tally, counted, candidate, role,
									HASH_FIND);

	return share == NULL ? 0 : share->count[which] -
		(counted != NULL && counted->of[which] == share ? 1 : 0);
}

/*
 * The names of the other elections in which the candidate's lease is over, and
 * its term is not ended yet.
 */
List *
le_tally_late(const Tally *tally, const char *election, const char *candidate,
			  const Role *role)
{
	const Share *share = find_share(tally, NULL, candidate, role, HASH_FIND);
	List	   *names = NIL;

	if (share == NULL || share->count[TALLY_LATE] == 0)
		return NIL;
	foreach_entry(Counted, counted, tally->elections)
	{
		if (counted->of[TALLY_LATE] == share &&
			strcmp(counted->election, election) != 0)
			names = lappend(names, counted->election);
	}
	return names;
}
