/*-------------------------------------------------------------------------
 *
 * mark.c
 *		What listeners have been told last of each election: the table
 *		announced.
 *
 * A mark says that listeners know of every term up to its term, whether they
 * know of that term's end, and of how many requests to yield and which change
 * of metadata in it they know.  Several elections may have had the name, one
 * after another: created_at says to which of them the term belongs.
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

/* The columns of announced */
static const Field fields[] = {
	{FIELD_TEXT, 0, offsetof(Mark, election)},
	{FIELD_BIGINT, 1, offsetof(Mark, term)},
	{FIELD_BOOLEAN, 2, offsetof(Mark, vacated)},
	{FIELD_BIGINT, 3, offsetof(Mark, yields)},
	{FIELD_TEXT, 4, offsetof(Mark, channel)},
	{FIELD_BIGINT, 5, offsetof(Mark, created_at), true},
	{FIELD_BIGINT, 6, offsetof(Mark, metadata_at), true}
};

static void *
make_mark(const Row *row)
{
	Mark	   *mark = palloc0(sizeof(Mark));

	le_fields_read(fields, lengthof(fields), row, mark);
	return mark;
}

/*
 * The mark of an election; NULL if it has none.
 */
Mark *
le_mark_read(const char *election)
{
	return le_scan_read_one(TABLE_ANNOUNCED, le_key(election), NULL,
							make_mark);
}

List *
le_marks_read(void)
{
	return le_scan_read_all(TABLE_ANNOUNCED, le_key_any(), make_mark);
}

/*
 * Has the leader changed its metadata, and listeners do not know?
 */
bool
le_mark_lacks_metadata(const Mark *mark, const Lease *lease)
{
	return lease->leader != NULL && lease->metadata_at != 0 &&
		lease->metadata_at != mark->metadata_at;
}

/*
 * Lock the mark of an election until the transaction ends, to write it or
 * (deletes) to delete it.  NULL: there is none (*busy is false), or another
 * transaction has locked it (true).
 */
Mark *
le_mark_lock(const char *election, bool deletes, bool *busy)
{
	Row		   *row = le_row_lock(TABLE_ANNOUNCED, le_key(election),
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
le_mark_write(Mark *mark)
{
	Assert(mark->row != NULL || le_seat_holds_name(mark->election, NULL));
	if (mark->row == NULL)
		mark->row = le_row_new(TABLE_ANNOUNCED);
	le_fields_write(fields, lengthof(fields), mark->row, mark);
	le_row_write(mark->row);
}

/*
 * Make the mark of a new election, whose name lock the caller holds: listeners
 * know of the terms up to after_term, and of that creation (created_at), or of
 * none (0).
 *
 * If there is a mark, an election of that name was dropped just now, and
 * listeners do not know of its end yet.  That mark stays, and is not even
 * locked: the worker goes on from it.  That its created_at is not that of the
 * new lease says that there is a new election.
 */
void
le_mark_create(const char *election, const char *channel,
			   TimestampTz created_at, int64 after_term)
{
	Mark		mark = {.election = unconstify(char *, election),
		.term = after_term,.vacated = true,
	.channel = unconstify(char *, channel),.created_at = created_at};

	if (le_mark_read(election) == NULL)
		le_mark_write(&mark);
}
