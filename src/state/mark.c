/*-------------------------------------------------------------------------
 *
 * mark.c
 *		What listeners have been told last of each election: the table
 *		announced.
 *
 * A mark says: they know of every term up to this one, whether they know of its
 * end, and how many requests to yield in it they know of.
 *
 * Invariants:
 *
 * - A mark is made in the transaction that makes its election, and is written
 *	 from then on only by the worker, in the transaction that tells listeners.
 *	 So no term is told twice, and none is left out.
 *
 * - A mark is inserted or deleted only under the election's name lock, so that
 *	 the insert never waits for an uncommitted one.
 *
 * The table is UNLOGGED: a crash or a promotion, which ends all listeners'
 * sessions, empties it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "state/state.h"
#include "utils/builtins.h"

/* Column numbers of announced */
enum
{
	ANNOUNCED_ELECTION,
	ANNOUNCED_TERM,
	ANNOUNCED_VACATED,
	ANNOUNCED_YIELDS,
	ANNOUNCED_CHANNEL
};

static void *
make_mark(const Row *row)
{
	Mark	   *mark = palloc0(sizeof(Mark));

	mark->election = TextDatumGetCString(row->values[ANNOUNCED_ELECTION]);
	mark->term = DatumGetInt64(row->values[ANNOUNCED_TERM]);
	mark->vacated = DatumGetBool(row->values[ANNOUNCED_VACATED]);
	mark->yields = DatumGetInt64(row->values[ANNOUNCED_YIELDS]);
	mark->channel = LE_GET(row, ANNOUNCED_CHANNEL, TextDatumGetCString, NULL);
	return mark;
}

/*
 * The mark of an election; NULL if it has none.
 */
Mark *
le_mark_read(const Store *store, const char *election)
{
	return le_read_one(store, TABLE_ANNOUNCED, le_key(election), NULL,
					   make_mark);
}

List *
le_marks_read(const Store *store)
{
	return le_read_all(store, TABLE_ANNOUNCED, make_mark);
}

/*
 * Lock the mark of an election until the transaction ends, to write it or
 * (deletes) to delete it.  NULL: it has none (*busy is false), or another
 * transaction has locked it (true).
 */
Mark *
le_mark_lock(const Store *store, const char *election, bool deletes,
			 bool *busy)
{
	Row		   *row = le_row_lock(store, TABLE_ANNOUNCED,
								  le_key(election),
								  deletes ? LockTupleExclusive :
								  LockTupleNoKeyExclusive, busy);
	Mark	   *mark;

	if (row == NULL)
		return NULL;
	mark = make_mark(row);
	mark->row = row;
	return mark;
}

/*
 * Write a mark: a new one, of which the caller has the name lock, or one that
 * is locked.
 */
void
le_mark_write(const Store *store, Mark *mark)
{
	bool		is_new = mark->row == NULL;
	Row		   *row = is_new ? le_row_new(store, TABLE_ANNOUNCED) : mark->row;

	LE_SET(row, ANNOUNCED_ELECTION, LE_TEXT(mark->election));
	LE_SET(row, ANNOUNCED_TERM, Int64GetDatum(mark->term));
	LE_SET(row, ANNOUNCED_VACATED, BoolGetDatum(mark->vacated));
	LE_SET(row, ANNOUNCED_YIELDS, Int64GetDatum(mark->yields));
	LE_SET_IF(row, ANNOUNCED_CHANNEL, mark->channel != NULL,
			  LE_TEXT(mark->channel));
	if (is_new)
		le_row_insert(row);
	else
		le_row_update(row);
	mark->row = row;
}

/*
 * The mark of a new election, which the caller has the name lock of.  If an
 * election of that name was dropped just now, its last terms may not have been
 * told yet: its mark stays.  If not, listeners know all terms of elections that
 * were dropped, and those of this one will be greater.
 */
void
le_mark_create(const Store *store, const char *election, const char *channel)
{
	Mark		mark = {.election = unconstify(char *, election),
	.vacated = true,.channel = unconstify(char *, channel)};

	if (le_mark_read(store, election) != NULL)
		return;
	mark.term = le_epoch_read()->dropped_term;
	le_mark_write(store, &mark);
}

/*
 * Delete a mark that was locked for that, and whose name lock the caller has.
 */
void
le_mark_delete(Mark *mark)
{
	le_row_delete(mark->row);
}
