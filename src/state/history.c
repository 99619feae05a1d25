/*-------------------------------------------------------------------------
 *
 * history.c
 *		The history: a row for each term.
 *
 * Invariant: the transaction that grants a term writes its row, and the one
 * that ends the term writes the end.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "state/state.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

/* Column numbers of history */
enum
{
	HISTORY_ELECTION,
	HISTORY_TERM,
	HISTORY_LEADER,
	HISTORY_ACQUIRED_AT,
	HISTORY_ENDED_AT,
	HISTORY_REASON,
	HISTORY_DETAIL,
	HISTORY_KIND,
	HISTORY_ROLE,
	HISTORY_CLIENT_ADDR,
	HISTORY_BACKEND_PID
};

/* An old row that is to be deleted */
typedef struct Old
{
	Walk		at;				/* how far the walk had come then */
	char	   *election;
	int64		term;
} Old;

/*
 * Write the beginning of a term.
 */
void
le_history_begin(const Candidate *leader, int64 term, TimestampTz at)
{
	Row		   *row = le_row_new(TABLE_HISTORY);

	LE_SET(row, HISTORY_ELECTION, LE_TEXT(leader->election));
	LE_SET(row, HISTORY_TERM, Int64GetDatum(term));
	LE_SET(row, HISTORY_LEADER, LE_TEXT(leader->candidate));
	LE_SET(row, HISTORY_KIND, LE_TEXT(le_lease_kind(leader->session_id)));
	LE_SET(row, HISTORY_ROLE, LE_NAME(le_role_name(&leader->role)));
	LE_SET_IF(row, HISTORY_CLIENT_ADDR, leader->client_addr != 0,
			  leader->client_addr);
	LE_SET_IF(row, HISTORY_BACKEND_PID, leader->backend_pid != 0,
			  Int32GetDatum(leader->backend_pid));
	LE_SET(row, HISTORY_ACQUIRED_AT, TimestampTzGetDatum(at));
	le_row_write(row);
}

/*
 * Lock the row of a term that is to be ended.  *row becomes NULL if it is gone
 * (a superuser may have deleted it): it needs no end.  False: another
 * transaction has locked it.
 */
bool
le_history_lock(const char *election, int64 term, Row **row)
{
	bool		busy;

	*row = le_row_lock(TABLE_HISTORY,
					   le_key_int64(election, term), LockTupleNoKeyExclusive,
					   &busy);
	return !busy;
}

/*
 * Has this transaction granted that term, which has not ended?
 */
bool
le_history_is_begun_here(const char *election, int64 term)
{
	RowScan    *scan = le_scan_find_begin(TABLE_HISTORY, 2, NULL);
	Row			row;
	bool		own = le_scan_find(scan, le_key_int64(election, term), &row) &&
		le_scan_is_own_write(&row);

	le_scan_end(scan);
	return own;
}

/*
 * Write the end of a term, whose row is locked; NULL: it is gone.  detail may
 * be NULL.
 */
void
le_history_end(Row *row, const char *reason, const char *detail,
			   TimestampTz at)
{
	if (row == NULL)
		return;
	LE_SET(row, HISTORY_ENDED_AT, TimestampTzGetDatum(at));
	LE_SET(row, HISTORY_REASON, LE_TEXT(reason));
	LE_SET_IF(row, HISTORY_DETAIL, detail != NULL, LE_TEXT(detail));
	le_row_write(row);
}

/*
 * Begin to read the terms of an election, from that one on, as the snapshot
 * sees them, in their order or in the reverse order.
 */
RowScan *
le_history_scan(const char *election, int64 from,
				ScanDirection direction, Snapshot snapshot)
{
	return le_scan_begin(TABLE_HISTORY, le_key_from(election, from),
						 direction, snapshot);
}

/*
 * The next term; NULL: there is none.
 */
Term *
le_history_next(RowScan *scan)
{
	Row			row;
	Term	   *term;

	if (!le_scan_next(scan, &row))
		return NULL;
	term = palloc(sizeof(Term));
	term->term = DatumGetInt64(row.values[HISTORY_TERM]);
	term->leader = TextDatumGetCString(row.values[HISTORY_LEADER]);
	term->acquired_at = DatumGetTimestampTz(row.values[HISTORY_ACQUIRED_AT]);
	term->ended = !row.nulls[HISTORY_ENDED_AT];
	term->ended_at = LE_GET(&row, HISTORY_ENDED_AT, DatumGetTimestampTz, 0);
	term->reason = LE_GET(&row, HISTORY_REASON, TextDatumGetCString, NULL);
	return term;
}

/*
 * When was the first change that the table knows of, and the mark does not?
 * 0: there is none.
 */
TimestampTz
le_history_untold_since(const Mark *mark)
{
	RowScan    *scan = le_history_scan(mark->election, mark->term,
									   ForwardScanDirection, NULL);
	TimestampTz since = 0;
	Term	   *term;

	while (since == 0 && (term = le_history_next(scan)) != NULL)
	{
		if (term->term > mark->term)
			since = term->acquired_at;
		else if (term->ended && !mark->vacated)
			since = term->ended_at;
	}
	le_scan_end(scan);
	return since;
}

/*
 * The rows of terms that ended before that moment, along the walk (see
 * le_history_prune()): a list of Old.  *more: the walk is not over.
 */
static List *
find_old(TimestampTz before, int limit, Walk *walk, bool *more)
{
	RowScan    *scan = le_scan_walk_begin(TABLE_HISTORY,
										  le_store.history_acquired_at, before,
										  walk);
	List	   *found = NIL;
	Row			row;

	while (le_scan_walk_next(scan, walk, &limit, &row))
	{
		Old		   *old;

		if (row.nulls[HISTORY_ENDED_AT] ||
			DatumGetTimestampTz(row.values[HISTORY_ENDED_AT]) >= before)
			continue;
		old = palloc(sizeof(Old));
		old->at = *walk;
		old->election = TextDatumGetCString(row.values[HISTORY_ELECTION]);
		old->term = DatumGetInt64(row.values[HISTORY_TERM]);
		found = lappend(found, old);
	}
	*more = limit < 0;
	le_scan_end(scan);
	return found;
}

/*
 * Do listeners know of the end of that term?  Without a mark, as after a
 * crash, they will be told of the last term: so none is deleted, unless the
 * election is gone, too.
 */
static bool
is_announced(const Old *old)
{
	Mark	   *mark = le_mark_read(old->election);

	if (mark == NULL)
		return le_lease_read(old->election, NULL) == NULL;
	return old->term < mark->term || (old->term == mark->term && mark->vacated);
}

/*
 * Delete terms that ended before that moment (of the wall clock), in the order
 * in which they began.  Go on with the walk, by at most so many entries, and
 * for no longer than max_time.  A row that another transaction has locked
 * stays, and so does a term whose end listeners do not know of: *left is set.
 * False: the walk is over.
 */
bool
le_history_prune(TimestampTz before, int limit,
				 int64 max_time, Walk *walk, bool *left)
{
	Walk		done = *walk;
	bool		more;
	List	   *found = find_old(before, limit, walk, &more);
	int64		until = le_clock() + max_time;

	foreach_ptr(const Old, old, found)
	{
		bool		busy = true;
		Row		   *row;

		if (le_clock() >= until && foreach_current_index(old) > 0)
		{
			*walk = done;
			return true;
		}
		if (is_announced(old))
		{
			row = le_row_lock(TABLE_HISTORY,
							  le_key_int64(old->election, old->term),
							  LockTupleExclusive, &busy);
			if (row != NULL)
				le_row_delete(row);
		}
		*left |= busy;
		done = old->at;
	}
	return more;
}
