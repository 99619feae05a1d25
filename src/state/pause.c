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
#include "utils/timestamp.h"

#define SCOPE	"all"			/* the key of the only row of pause_all */

/* The columns of a pause in the table election, counted from paused_at */
enum
{
	PAUSE_AT,
	PAUSE_BY,
	PAUSE_REASON,
	PAUSE_VACATES,
	PAUSE_RESUMES_AT,
	PAUSE_RESUMES_MONO,
	PAUSE_RESUMES_FOR,
	PAUSE_INCARNATION
};

StaticAssertDecl(PAUSE_INCARNATION + 1 == LE_PAUSE_COLUMNS,
				 "the columns of a pause");

/* Column numbers of pause_all */
enum
{
	ALL_SCOPE,
	ALL_PAUSED_AT,
	ALL_PAUSED_BY,
	ALL_REASON
};

/*
 * The pause of the election whose row this is; first is the number of its
 * column paused_at.  NULL: it is not paused.
 */
Pause *
le_pause_make(const Row *row, int first)
{
	Pause	   *pause;

	if (row->nulls[first + PAUSE_AT])
		return NULL;
	pause = palloc0(sizeof(Pause));
	pause->at = DatumGetTimestampTz(row->values[first + PAUSE_AT]);
	pause->by = LE_GET(row, first + PAUSE_BY, LE_GET_NAME, "");
	pause->reason = LE_GET(row, first + PAUSE_REASON, TextDatumGetCString, NULL);
	pause->vacates = LE_GET(row, first + PAUSE_VACATES, DatumGetBool, false);
	pause->resumes_at = LE_GET(row, first + PAUSE_RESUMES_AT,
							   DatumGetTimestampTz, 0);
	pause->resumes_mono = LE_GET(row, first + PAUSE_RESUMES_MONO,
								 DatumGetInt64, 0);
	pause->resumes_for = Min(LE_GET(row, first + PAUSE_RESUMES_FOR,
									DatumGetInt64, 0), LE_LONGEST_PAUSE);
	pause->incarnation = LE_GET(row, first + PAUSE_INCARNATION,
								TextDatumGetCString, "");
	return pause;
}

/*
 * Write a pause (NULL: none) into a row of election.
 */
void
le_pause_set(Row *row, int first, const Pause *pause)
{
	for (int i = 0; i < LE_PAUSE_COLUMNS; i++)
		LE_SET_NULL(row, first + i);
	if (pause == NULL)
		return;
	LE_SET(row, first + PAUSE_AT, TimestampTzGetDatum(pause->at));
	LE_SET(row, first + PAUSE_BY, LE_NAME(pause->by));
	LE_SET_IF(row, first + PAUSE_REASON, pause->reason != NULL,
			  LE_TEXT(pause->reason));
	LE_SET(row, first + PAUSE_VACATES, BoolGetDatum(pause->vacates));
	LE_SET(row, first + PAUSE_INCARNATION, LE_TEXT(pause->incarnation));
	if (pause->resumes_for == 0)
		return;
	LE_SET(row, first + PAUSE_RESUMES_AT,
		   TimestampTzGetDatum(pause->resumes_at));
	LE_SET(row, first + PAUSE_RESUMES_MONO, Int64GetDatum(pause->resumes_mono));
	LE_SET(row, first + PAUSE_RESUMES_FOR, Int64GetDatum(pause->resumes_for));
}

static void *
make_pause_all(const Row *row)
{
	Pause	   *pause = palloc0(sizeof(Pause));

	pause->at = DatumGetTimestampTz(row->values[ALL_PAUSED_AT]);
	pause->by = LE_GET_NAME(row->values[ALL_PAUSED_BY]);
	pause->reason = LE_GET(row, ALL_REASON, TextDatumGetCString, NULL);
	return pause;
}

/*
 * The pause of all elections; NULL: there is none.
 */
Pause *
le_pause_all_read(const Store *store)
{
	if (store->knows_pause_all)
		return unconstify(struct Pause *, store->pause_all);
	return le_scan_read_one(store, TABLE_PAUSE_ALL, le_key(SCOPE), NULL,
							make_pause_all);
}

/*
 * Read the pause of all elections now, instead of for each election.  The
 * answer does not change any more for as long as this store is used.
 */
void
le_pause_all_remember(Store *store)
{
	store->pause_all = le_pause_all_read(store);
	store->knows_pause_all = true;
}

/*
 * Pause all elections (NULL: no more).  *was: were they paused?  False:
 * another transaction is about to do either.
 */
bool
le_pause_all_write(const Store *store, const Pause *pause, bool *was)
{
	Row		   *row;
	bool		busy;

	/* No election has this name, so that no other call wants this lock. */
	if (!le_lock_name("", NULL))
		return false;
	row = le_row_lock(store, TABLE_PAUSE_ALL, le_key(SCOPE),
					  LockTupleExclusive, &busy);
	if (busy)
		return false;
	*was = row != NULL;
	if (row != NULL)
		le_row_delete(row);
	if (pause == NULL)
		return true;
	row = le_row_new(store, TABLE_PAUSE_ALL);
	LE_SET(row, ALL_SCOPE, LE_TEXT(SCOPE));
	LE_SET(row, ALL_PAUSED_AT, TimestampTzGetDatum(pause->at));
	LE_SET(row, ALL_PAUSED_BY, LE_NAME(pause->by));
	LE_SET_IF(row, ALL_REASON, pause->reason != NULL, LE_TEXT(pause->reason));
	le_row_insert(row);
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
le_pause_now(const Store *store, const Election *election,
			 const Incarnation *inc, int64 *until)
{
	const Pause *all = le_pause_all_read(store);
	const Pause *own = election->pause;

	*until = PG_INT64_MAX;
	if (!le_pause_in_force(own, inc))
		return all;
	if (all == NULL)
		*until = ends(own, inc);
	return own;
}
