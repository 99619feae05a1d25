/*-------------------------------------------------------------------------
 *
 * drain.c
 *		Drained candidates: the table drain.
 *
 * A candidate that is drained stands, and counts for the quorum, but the rules
 * pass it over.  A row names it, in one election or in all, or the beginning
 * of the names of several candidates.  Nobody has to stand under such a name.
 *
 * A call that decides reads the rows of its election and those of all
 * elections; if there are none, that is two look-ups in an index.  The worker,
 * which looks at all elections, reads all rows once for a look
 * (le_drain_remember()), or at least those of all elections.
 *
 * Invariants:
 *
 * - A row of one election is written under its election lock.  So no change of
 *	 holder that was decided without the row is committed after it.
 *
 * - A row of all elections is written without election locks: a change that
 *	 was decided before it was committed may still be committed after it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "state/state.h"
#include "utils/timestamp.h"

#define ALL			""			/* the election of rows of all elections */
#define MANY		5000		/* so many rows are not read at once */

/* Who is drained in an election */
struct Drains
{
	List	   *all;			/* of Drain; the first so many of these ... */
	int			n_all;			/* ... are of all elections */
	List	   *own;			/* of Drain; of these, the election's ... */
	int			from;			/* ... begin there */
	int			to;				/* ... and end before that */
};

#define KEY_FIELDS	2			/* all that deciding needs */

/* The columns of drain */
static const Field fields[] = {
	{FIELD_TEXT, 0, offsetof(Drain, election)},
	{FIELD_TEXT, 1, offsetof(Drain, candidate)},
	{FIELD_BIGINT, 2, offsetof(Drain, at)},
	{FIELD_NAME, 3, offsetof(Drain, by)},
	{FIELD_TEXT, 4, offsetof(Drain, reason)},
};

static void *
make_drain(const Row *row)
{
	Drain	   *drain = palloc0(sizeof(Drain));

	le_fields_read(fields, KEY_FIELDS, row, drain);
	drain->length = strlen(drain->candidate);
	if (drain->length > 0 && drain->candidate[drain->length - 1] == '*')
	{
		drain->is_prefix = true;
		drain->length--;
	}
	return drain;
}

/*
 * So many rows with that key at most, in the order of the primary key.
 */
static List *
read_rows(Key key, int most)
{
	return le_scan_read_some(TABLE_DRAIN, key, ForwardScanDirection, most,
							 make_drain);
}

/*
 * Read all rows now, instead of those of each election when they are needed.
 * The answers do not change any more in this call.  Where there are many rows,
 * that would take longer than leases may wait for their renewal: then those of
 * each election are read when they are needed.  Those of all elections are few,
 * and come first.
 */
void
le_drain_remember(void)
{
	le_remembered.drains = read_rows(le_key_any(), MANY);
	le_remembered.knows_drains = list_length(le_remembered.drains) < MANY;
	le_remembered.knows_drains_of_all = true;
}

/*
 * The first of these rows, which are in the order of their elections' names,
 * whose election does not come before that one or (after) comes after it.
 */
static int
find_bound(List *rows, const char *election, bool after)
{
	int			low = 0;
	int			high = list_length(rows);

	while (low < high)
	{
		int			middle = (low + high) / 2;
		int			order = strcmp(((Drain *) list_nth(rows, middle))->election,
								   election);

		if (order < 0 || (after && order == 0))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/*
 * Who is drained in this election; NULL: nobody is, and nobody is in all.
 */
const Drains *
le_drain_read(const char *election)
{
	List	   *all = le_remembered.drains;
	List	   *own = le_remembered.drains;
	Drains	   *drains;

	if (!le_remembered.knows_drains &&
		!le_table_is_blank(le_store.table[TABLE_DRAIN].rel))
	{
		RowScan    *scan = le_scan_find_begin(TABLE_DRAIN, 1, NULL);
		bool		has_all = !le_remembered.knows_drains_of_all &&
			le_scan_find(scan, le_key(ALL), NULL);
		bool		has_own = le_scan_find(scan, le_key(election), NULL);

		le_scan_end(scan);
		if (has_all)
			all = read_rows(le_key(ALL), INT_MAX);
		own = has_own ? read_rows(le_key(election), INT_MAX) : NIL;
	}
	if (all == NIL && own == NIL)
		return NULL;
	drains = palloc(sizeof(Drains));
	drains->all = all;
	drains->n_all = find_bound(all, ALL, true);
	drains->own = own;
	drains->from = find_bound(own, election, false);
	drains->to = find_bound(own, election, true);
	return drains;
}

static bool
covers(const Drain *drain, const char *candidate)
{
	if (drain->is_prefix)
		return drain->length > 0 &&
			strncmp(candidate, drain->candidate, drain->length) == 0;
	return strcmp(candidate, drain->candidate) == 0;
}

/*
 * Is the candidate of that name drained?
 */
bool
le_drain_covers(const Drains *drains, const char *candidate)
{
	if (drains == NULL)
		return false;
	for (int i = 0; i < drains->n_all; i++)
	{
		if (covers(list_nth(drains->all, i), candidate))
			return true;
	}
	for (int i = drains->from; i < drains->to; i++)
	{
		if (covers(list_nth(drains->own, i), candidate))
			return true;
	}
	return false;
}

/*
 * Which of the entries with that key drains the candidate of that name, for
 * observers?  NULL: none does.
 */
static Drain *
find_entry(Key key, const char *candidate)
{
	RowScan    *scan = le_scan_begin(TABLE_DRAIN, key,
									 ForwardScanDirection, NULL);
	Drain	   *found = NULL;
	Row			row;

	while (found == NULL && le_scan_next(scan, &row))
	{
		Drain	   *drain = make_drain(&row);

		if (!covers(drain, candidate))
			continue;
		le_fields_read(fields, lengthof(fields), &row, drain);
		found = drain;
	}
	le_scan_end(scan);
	return found;
}

/*
 * What drains the candidate of that name, for observers: an entry of the
 * election or, if it has none, of all (election NULL: one of any); NULL:
 * nothing does.
 */
Drain *
le_drain_find(const char *election, const char *candidate)
{
	Drain	   *found;

	if (election == NULL)
		return find_entry(le_key_any(), candidate);
	found = find_entry(le_key(election), candidate);
	return found != NULL ? found : find_entry(le_key(ALL), candidate);
}

/*
 * Take the lock under which rows of that election (NULL: of all) are written.
 * The election lock is the caller's already.  False: another transaction has
 * it.
 */
static bool
lock_rows(const char *election)
{
	/* No election has this name, so that no other call wants this lock. */
	return election != NULL || le_lock_name(ALL, "drain", ExclusiveLock);
}

/*
 * Drain a candidate in one election, whose election lock the caller holds, or
 * (NULL) in all.  DRAIN_BUSY: another transaction has the row.  DRAIN_FULL:
 * there are limit entries already.
 */
DrainResult
le_drain_write(const char *election, const char *candidate,
			   const char *by, const char *reason, int limit)
{
	const char *key = election != NULL ? election : ALL;
	Drain		drain = {.election = unconstify(char *, key),
		.candidate = unconstify(char *, candidate),
		.at = GetCurrentTimestamp(),.by = unconstify(char *, by),
	.reason = unconstify(char *, reason)};
	Row		   *row = lock_rows(election) ?
		le_row_lock_or_new(TABLE_DRAIN, le_key_text(key, candidate)) :
		NULL;

	Assert(election == NULL ||
		   le_lock_holds_mutex(LOCK_ELECTION, election, ExclusiveLock));
	if (row == NULL)
		return DRAIN_BUSY;
	if (row->tuple == NULL &&
		list_length(read_rows(le_key(key), limit)) == limit)
		return DRAIN_FULL;
	le_fields_write(fields, lengthof(fields), row, &drain);
	le_row_write(row);
	le_commit_durably();
	le_commit_wakes_worker();
	return DRAIN_OK;
}

/*
 * Delete an entry, under the same locks.  DRAIN_NONE: there is none.
 */
DrainResult
le_drain_delete(const char *election, const char *candidate)
{
	const char *key = election != NULL ? election : ALL;
	bool		busy;
	Row		   *row;

	if (!lock_rows(election))
		return DRAIN_BUSY;
	row = le_row_lock(TABLE_DRAIN, le_key_text(key, candidate),
					  LockTupleExclusive, &busy);
	if (row == NULL)
		return busy ? DRAIN_BUSY : DRAIN_NONE;
	le_row_delete(row);
	le_commit_durably();
	le_commit_wakes_worker();
	return DRAIN_OK;
}

/*
 * Delete all entries of an election that is dropped, and whose election lock
 * the caller holds.  False: another transaction has locked one of them.
 */
bool
le_drain_drop(const char *election)
{
	Assert(le_lock_holds_mutex(LOCK_ELECTION, election, ExclusiveLock));
	foreach_ptr(const Drain, drain, read_rows(le_key(election), INT_MAX))
	{
		if (le_drain_delete(election, drain->candidate) == DRAIN_BUSY)
			return false;
	}
	return true;
}
