/*-------------------------------------------------------------------------
 *
 * pending.c
 *		Of which elections is there something to tell listeners?  The
 *		background worker's memory of the marks, with which a scan compares the
 *		leases.
 *
 * No other process changes a mark, so that marks need not be read in each
 * round.  An election without a mark in this memory may have been created
 * since, or have lost its mark in a crash.
 *
 * Invariant: this memory only says where to look.  What is told of an election
 * follows from rows that are read anew under the NOTIFY lock (notify.c).  So
 * the memory may name an election in vain, but must not overlook one:
 *
 * - a lease that differs from its mark, or was created since, is found by the
 *	 scan of all leases;
 *
 * - a mark that no lease belongs to is found at the end of that scan: its
 *	 election was dropped;
 *
 * - the mark of an election that was both created and dropped since the last
 *	 scan is read when its row of table dropped is moved (tidy.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "worker/worker.h"

#define MANY_UNKNOWN	100		/* marks: read all, not each by its key */

/* What listeners know of an election: its mark, in this process's memory */
typedef struct KnownMark
{
	char		election[LE_NAME_MAX + 1];	/* hash key */
	Mark		mark;			/* without what it points to */
	uint64		scan;			/* number of the last that found it; or 0 */
} KnownMark;

static HTAB *known = NULL;
static Oid	known_table = InvalidOid;	/* the one they were read from */

/* The scan that is under way, or was the last one */
static uint64 scan_number = 0;
static long leases_known = 0;	/* leases whose marks are known */
static int	marks_missed = 0;	/* leases whose marks were not */

/*
 * Forget all marks.
 */
static void
make_empty(void)
{
	if (known != NULL)
		hash_destroy(known);
	known = le_hash_make("leader_election marks", LE_NAME_MAX + 1,
						 sizeof(KnownMark), HASH_STRINGS, TopMemoryContext);
	known_table = InvalidOid;
}

static KnownMark *
find_known(const char *election, HASHACTION action, bool *found)
{
	if (known == NULL)
		make_empty();
	return hash_search(known, election, action, found);
}

/*
 * This is the mark of its election now, as the worker has read or written it.
 */
void
le_pending_remember(const Mark *mark)
{
	bool		found;
	KnownMark  *k = find_known(mark->election, HASH_ENTER, &found);

	k->mark = *mark;
	k->mark.election = k->mark.channel = NULL;
	k->mark.row = NULL;
	if (!found)
		k->scan = 0;
}

/*
 * The mark of that election was deleted.
 */
void
le_pending_forget(const char *election)
{
	(void) find_known(election, HASH_REMOVE, NULL);
}

/*
 * An election was dropped.  If its mark is not known, it was created after the
 * last scan: remember its mark, and the next scan finds that it is gone.
 */
void
le_pending_note_dropped(const char *election)
{
	Mark	   *mark;

	if (find_known(election, HASH_FIND, NULL) == NULL &&
		(mark = le_mark_read(election)) != NULL)
		le_pending_remember(mark);
}

/*
 * Remember all marks that are not known yet.
 */
static void
read_marks(void)
{
	foreach_ptr(const Mark, mark, le_marks_read())
	{
		if (find_known(mark->election, HASH_FIND, NULL) == NULL)
			le_pending_remember(mark);
	}
}

/*
 * The mark of an election, which is read if it is not known; NULL: it has
 * none.  Where many elections were created since the last scan, one scan of
 * all marks is faster than a search for each.
 */
static KnownMark *
find_or_read(const char *election)
{
	KnownMark  *k = find_known(election, HASH_FIND, NULL);
	Mark	   *mark;

	if (k != NULL || marks_missed > MANY_UNKNOWN)
		return k;
	if (++marks_missed > MANY_UNKNOWN)
		read_marks();
	else if ((mark = le_mark_read(election)) != NULL)
		le_pending_remember(mark);
	return find_known(election, HASH_FIND, NULL);
}

/*
 * A scan begins.  False: the marks cannot be read at once.
 */
bool
le_pending_begin_scan(void)
{
	Oid			table = le_store.table[TABLE_ANNOUNCED].rel;

	if (!le_store_try_lock(LE_TABLE_HISTORY | LE_TABLE_ANNOUNCED,
						   AccessShareLock))
		return false;
	scan_number++;
	leases_known = 0;
	marks_missed = 0;
	if (known_table != table)
	{
		make_empty();
		read_marks();
		known_table = table;
	}
	return true;
}

/*
 * Until when nothing is told of a lease of another incarnation that has no
 * mark: its holder may lead on elsewhere, or continue here.
 */
static int64
silent_until(const Lease *lease, const Incarnation *inc)
{
	Election   *election;

	if (!le_lease_is_stale(lease))
		return 0;
	if (!inc->known)
		return PG_INT64_MAX;
	if (inc->first_seen + lease->duration > le_clock())
		return inc->first_seen + lease->duration;	/* no sooner than that */
	election = le_election_read(lease->election);
	return election != NULL ? le_lease_grace(lease, election->lease_duration, inc) :
		PG_INT64_MAX;
}

/*
 * The scan has found this lease: is there anything to tell of its election?
 * round->next becomes the time from which on there may be, if that is sooner.
 */
void
le_pending_scan_lease(Round *round, const Lease *lease)
{
	KnownMark  *k = find_or_read(lease->election);
	const Mark *mark;
	int64		until;

	if (k == NULL)
	{
		until = silent_until(lease, round->inc);
		if (until <= le_clock())
			(void) le_round_note(&round->pending, lease->election);
		else
		{
			round->next = Min(round->next, until);
			round->untold |= lease->term > 0;
		}
		return;
	}
	k->scan = scan_number;
	leases_known++;
	mark = &k->mark;
	if (mark->term < lease->term || mark->vacated != (lease->leader == NULL) ||
		(lease->created_at != 0 && mark->created_at != lease->created_at) ||
		(lease->leader != NULL && lease->yielding && lease->yields > mark->yields) ||
		le_mark_lacks_metadata(mark, lease))
		(void) le_round_note(&round->pending, lease->election);
}

/*
 * The scan has found all leases: the elections of other marks were dropped.
 */
void
le_pending_end_scan(Round *round)
{
	if (leases_known == hash_get_num_entries(known))
		return;
	foreach_entry(KnownMark, k, known)
	{
		if (k->scan != scan_number)
			(void) le_round_note(&round->pending, k->election);
	}
}
