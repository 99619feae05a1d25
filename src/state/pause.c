/*-------------------------------------------------------------------------
 *
 * pause.c
 *		Paused elections: columns of the table election, and the table
 *		pause_all.
 *
 * While an election is paused, the rules elect nobody, and ask nobody to
 * yield.  Its leader leads on.  What an operator or the leader orders for a
 * candidate that is named still happens.
 *
 * Invariants:
 *
 * - The pause of one election is written under its election lock, which who
 *	 changes the holder holds, too, or (in Share mode) who asks for a yield by
 *	 the rules.  So no change of holder, and no request, that was decided
 *	 without the pause is committed after it.
 *
 * - The pause of all elections is written without election locks: a change
 *	 that was decided before it was committed may still be committed after it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "state/state.h"
#include "utils/builtins.h"

#define SCOPE	"all"			/* the key of the only row of pause_all */

#define FIRST	11				/* the column paused_at of the table election */

/* The columns of a pause in the table election */
static const Field fields[] = {
	{FIELD_BIGINT, FIRST, offsetof(Pause, at)},
	{FIELD_NAME, FIRST + 1, offsetof(Pause, by)},
	{FIELD_TEXT, FIRST + 2, offsetof(Pause, reason)},
	{FIELD_BOOLEAN, FIRST + 3, offsetof(Pause, vacates)},
	{FIELD_BIGINT, FIRST + 4, offsetof(Pause, resumes_at), true},
	{FIELD_BIGINT, FIRST + 5, offsetof(Pause, resumes_mono), true},
	{FIELD_BIGINT, FIRST + 6, offsetof(Pause, resumes_for), true},
	{FIELD_TEXT, FIRST + 7, offsetof(Pause, incarnation)},
};

/* Those of pause_all, beside its key */
static const Field fields_of_all[] = {
	{FIELD_BIGINT, 1, offsetof(Pause, at)},
	{FIELD_NAME, 2, offsetof(Pause, by)},
	{FIELD_TEXT, 3, offsetof(Pause, reason)},
};

/*
 * The pause of the election whose row this is.  NULL: it is not paused.
 */
Pause *
le_pause_make(const Row *row)
{
	Pause	   *pause;

	if (row->nulls[FIRST])
		return NULL;
	pause = palloc0(sizeof(Pause));
	le_fields_read(fields, lengthof(fields), row, pause);
	pause->resumes_for = Min(pause->resumes_for, LE_LONGEST_PAUSE);
	if (pause->by == NULL)
		pause->by = "";
	if (pause->incarnation == NULL)
		pause->incarnation = "";
	return pause;
}

/*
 * Write a pause (NULL: none) into a row of election.
 */
void
le_pause_set(Row *row, const Pause *pause)
{
	if (pause != NULL)
		le_fields_write(fields, lengthof(fields), row, pause);
	for (int i = 0; i < lengthof(fields) && pause == NULL; i++)
		LE_SET_NULL(row, FIRST + i);
}

static void *
make_pause_all(const Row *row)
{
	Pause	   *pause = palloc0(sizeof(Pause));

	le_fields_read(fields_of_all, lengthof(fields_of_all), row, pause);
	return pause;
}

/*
 * The pause of all elections; NULL: there is none.
 */
Pause *
le_pause_all_read(void)
{
	if (le_remembered.knows_pause_all)
		return unconstify(struct Pause *, le_remembered.pause_all);
	if (le_table_is_blank(le_store.table[TABLE_PAUSE_ALL].rel))
		return NULL;
	return le_scan_read_one(TABLE_PAUSE_ALL, le_key(SCOPE), NULL,
							make_pause_all);
}

/*
 * Read the pause of all elections now, instead of for each election.  The
 * answer does not change any more in this call.
 */
void
le_pause_all_remember(void)
{
	le_remembered.pause_all = le_pause_all_read();
	le_remembered.knows_pause_all = true;
}

/*
 * Pause all elections (NULL: no more).  *was: were they paused?  False:
 * another transaction is about to do either.
 */
bool
le_pause_all_write(const Pause *pause, bool *was)
{
	Row		   *row;
	bool		busy;

	/* No election has this name, so that no other call wants this lock. */
	if (!le_lock_name("", NULL, ExclusiveLock))
		return false;
	row = le_row_lock(TABLE_PAUSE_ALL, le_key(SCOPE),
					  LockTupleExclusive, &busy);
	if (busy)
		return false;
	*was = row != NULL;
	if (row != NULL)
		le_row_delete(row);
	if (pause == NULL)
		return true;
	row = le_row_new(TABLE_PAUSE_ALL);
	LE_SET(row, 0, LE_TEXT(SCOPE));
	le_fields_write(fields_of_all, lengthof(fields_of_all), row, pause);
	le_row_write(row);
	return true;
}

/*
 * When does an election's own pause (not NULL) end by itself (monotonic)?
 * PG_INT64_MAX: not before it is resumed.
 */
static int64
ends(const Pause *own, const Incarnation *inc)
{
	if (own->resumes_for <= 0)
		return PG_INT64_MAX;
	return le_epoch_moment(inc, strcmp(own->incarnation, inc->name) == 0,
						   own->resumes_mono, own->resumes_at,
						   own->resumes_for);
}

/*
 * Is the election paused by this pause of its own (NULL: none)?
 */
bool
le_pause_in_force(const Pause *own, const Incarnation *inc)
{
	return own != NULL && ends(own, inc) > le_clock();
}

/*
 * What pauses this election now: its own pause or, if it has none, that of all
 * elections; NULL: nothing.  *until is when that ends by itself (monotonic);
 * PG_INT64_MAX: not before it is resumed.
 */
const Pause *
le_pause_now(const Election *election, const Incarnation *inc, int64 *until)
{
	const Pause *all = le_pause_all_read();
	const Pause *own = election->pause;

	*until = PG_INT64_MAX;
	if (!le_pause_in_force(own, inc))
		return all;
	if (all == NULL)
		*until = ends(own, inc);
	return own;
}
