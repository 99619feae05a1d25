/*-------------------------------------------------------------------------
 *
 * mark.c
 *		What listeners have been told last of each election: the table
 *		announced.
 *
 * A mark says that listeners know of every term up to its term, whether they
 * know of that term's end, and of how many requests to yield in it.
 *
 * Invariants:
 *
 * - The transaction that makes an election makes its mark.  From then on only
 *	 the worker writes it, in the transaction that tells listeners.  So no term
 *	 is told twice, and none is left out.
 *
 * - A mark is inserted or deleted only under the election's name lock.  The
 *	 worker takes that in Share mode, but holds the NOTIFY lock as well
 *	 (announce.c).  So an insert never waits for a transaction that has
 *	 inserted the same mark and has not ended.
 *
 * The table is UNLOGGED: a crash or a promotion empties it, but it also ends
 * all listeners' sessions.
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
 * (deletes) to delete it.  NULL: there is none (*busy is false), or another
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
 * Write a mark: one that is locked, or a new one, whose election's name lock
 * the caller holds.
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
 * Make the mark of a new election, whose name lock the caller holds.  If there
 * is a mark, an election of that name was dropped just now, and listeners do
 * not know all of its terms yet: that mark stays.  A new one says that
 * listeners know of all terms of dropped elections: those of this election
 * will be greater.  tells: listeners are to be told that there is this
 * election, which yields of -1 stand for.
 */
void
le_mark_create(const Store *store, const char *election, const char *channel,
			   bool tells)
{
	Mark		mark = {.election = unconstify(char *, election),
	.vacated = true,.yields = tells ? -1 : 0,.channel = unconstify(char *, channel)};

	if (le_mark_read(store, election) != NULL)
		return;
	mark.term = le_epoch_read()->dropped_term;
	le_mark_write(store, &mark);
}

/*
 * Delete a mark that was locked for that.  The caller holds the election's
 * name lock.
 */
void
le_mark_delete(Mark *mark)
{
	le_row_delete(mark->row);
}
