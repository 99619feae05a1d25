/*-------------------------------------------------------------------------
 *
 * dropped.c
 *		The last terms of elections that were dropped: the table dropped.
 *
 * An election begins above all terms of those that had its name before.  So
 * who drops an election leaves its last term here, in a row of that name: an
 * administrator may do so in a transaction block that stays open, and locks no
 * row that other elections need.  The worker moves the rows into table epoch,
 * where one number stands for all of them (dropped_term), or there would be a
 * row for every name that was ever used.  Where no worker runs they stay.
 * They are read by key: however many there are, a creation reads one.
 *
 * Invariants:
 *
 * - Only who holds the name lock in Exclusive mode (of a seat: its group's)
 *	 inserts or updates the row of that name.
 *
 * - One transaction deletes a row and raises epoch.dropped_term to its term:
 *	 a crash, a standby and a dump have the one or the other.
 *
 * - The last term of a name is looked for here first, and then in epoch, with
 *	 a newer snapshot.  In the other order, the worker could move it in
 *	 between: it would be found in neither, and given out twice.
 *
 * Few transactions create or drop an election.  So the table is locked only
 * for those, last of all our tables, and never waited for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "state/state.h"
#include "utils/builtins.h"

/* Column numbers of dropped */
enum
{
	DROPPED_ELECTION,
	DROPPED_TERM
};

/*
 * The last term that the row says; 0: it is a new row, which says none yet.
 */
static int64
term_of(const Row *row)
{
	return LE_GET(row, DROPPED_TERM, DatumGetInt64, 0);
}

/*
 * An election is dropped, and the next one of its name has to begin above this
 * term.  The caller holds its name lock.  False: the table, or the row of an
 * earlier election of that name, is locked.
 */
bool
le_dropped_note(const char *election, int64 term)
{
	Row		   *row;

	Assert(le_seat_holds_name(election, NULL));
	if (!le_store_try_lock(LE_TABLE_DROPPED, RowExclusiveLock))
		return false;
	row = le_row_lock_or_new(TABLE_DROPPED, le_key(election));
	if (row == NULL)
		return false;
	LE_SET(row, DROPPED_ELECTION, LE_TEXT(election));
	LE_SET(row, DROPPED_TERM, Int64GetDatum(Max(term, term_of(row))));
	le_row_write(row);
	return true;
}

/*
 * Above which term has an election of this name to begin?  The caller holds
 * its name lock.  False: the table is locked.
 */
bool
le_dropped_read(const char *election, int64 *term)
{
	RowScan    *scan;
	Row			row;

	Assert(le_seat_holds_name(election, NULL));
	if (!le_store_try_lock(LE_TABLE_DROPPED, AccessShareLock))
		return false;
	scan = le_scan_find_begin(TABLE_DROPPED, 1, NULL);
	*term = le_scan_find(scan, le_key(election), &row) ? term_of(&row) : 0;
	le_scan_end(scan);
	*term = Max(*term, le_epoch_read()->dropped_term);
	return true;
}

/*
 * The highest term in the table, which the caller has locked; 0: it has none.
 * This reads all rows.
 */
int64
le_dropped_highest(void)
{
	RowScan    *scan = le_scan_begin_brief(TABLE_DROPPED, le_key_any(),
										   NoMovementScanDirection);
	int64		highest = 0;
	Row			row;

	while (le_scan_next(scan, &row))
		highest = Max(highest, term_of(&row));
	le_scan_end(scan);
	return highest;
}

static void *
make_name(const Row *row)
{
	return TextDatumGetCString(row->values[DROPPED_ELECTION]);
}

/*
 * Names of elections that have a row, so many at most.
 */
List *
le_dropped_names(int limit)
{
	return le_scan_read_some(TABLE_DROPPED, le_key_any(), ForwardScanDirection,
							 limit, make_name);
}

/*
 * Delete the row of an election, and raise *highest to its term, which the
 * caller moves into table epoch in the same transaction.  False: there is no
 * row, or another transaction has locked it.
 */
bool
le_dropped_take(const char *election, int64 *highest)
{
	bool		busy;
	Row		   *row = le_row_lock(TABLE_DROPPED, le_key(election),
								  LockTupleExclusive, &busy);

	if (row == NULL)
		return false;
	*highest = Max(*highest, term_of(row));
	le_row_delete(row);
	return true;
}
