/*-------------------------------------------------------------------------
 *
 * scan.c
 *		Reading rows of our tables: one by its key, all, in order, or along an
 *		index.
 *
 * The reads call the server's access methods.  No SQL runs, so that nothing
 * has to be planned, no search_path, setting or privilege of the caller
 * matters, and a read works on a standby and in any transaction.
 *
 * Invariant: a read takes no lock on a row and waits for none.
 *
 * The caller has locked the tables (le_store_lock()).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "base/base.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

/*
 * Refuse to work in parallel mode: there the server takes no new snapshot, and
 * a lock that another process of the group holds would look free.  Our functions
 * are PARALLEL UNSAFE: only a function around them can have said otherwise.
 */
void
le_scan_check_parallel(void)
{
	if (IsInParallelMode())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_STATE),
				 errmsg("elections cannot be read during a parallel operation"),
				 errhint("Declare functions that call those of leader_election PARALLEL UNSAFE.")));
}

/*
 * Read a row, which points into the tuple from now on: our columns, which are
 * the first ones.  Somebody may have added any number of others.  Those that
 * came with a later version than that of the table are NULL.
 */
void
le_scan_set_row(Row *row, TableId table, Relation rel, HeapTuple tuple)
{
	TupleDesc	desc = RelationGetDescr(rel);
	int			columns = Min(desc->natts, LE_MAX_COLUMNS);

	row->table = RelationGetRelid(rel);
	row->tid = tuple->t_self;
	row->tuple = tuple;
	if (desc->natts > columns)
	{
		Datum	   *values = palloc(desc->natts * sizeof(Datum));
		bool	   *nulls = palloc(desc->natts * sizeof(bool));

		heap_deform_tuple(tuple, desc, values, nulls);
		memcpy(row->values, values, columns * sizeof(Datum));
		memcpy(row->nulls, nulls, columns * sizeof(bool));
		pfree(values);
		pfree(nulls);
	}
	else
		heap_deform_tuple(tuple, desc, row->values, row->nulls);
	memset(&row->nulls[columns], true, LE_MAX_COLUMNS - columns);
	if (!le_shape_fits_row(table, row->nulls))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s.%s\" has a row with a null value where the extension writes none",
						LE_SCHEMA, RelationGetRelationName(rel)),
				 errhint("Delete that row, or drop and create the extension \"%s\" again when no lease can last any more: its terms begin anew.",
						 LE_EXTENSION)));
}

/*
 * Has the running transaction written this row?
 */
bool
le_scan_is_own_write(const Row *row)
{
	TransactionId writer = HeapTupleHeaderGetXmin(row->tuple->t_data);

	return TransactionIdIsCurrentTransactionId(writer);
}

/*
 * Are these entries of the same key?  An index writes equal keys alike.
 */
static bool
is_same_key(IndexTuple a, IndexTuple b)
{
	return IndexTupleSize(a) == IndexTupleSize(b) &&
		memcmp((char *) a + sizeof(IndexTupleData),
			   (char *) b + sizeof(IndexTupleData),
			   IndexTupleSize(a) - sizeof(IndexTupleData)) == 0;
}

/*
 * Open the table, its primary key (or that index) and a scan of it, by so many
 * conditions.  The caller has locked the table, but maybe not this index: since
 * then it may have been replaced (REINDEX CONCURRENTLY).
 */
static RowScan *
open_scan(TableId table, Oid index, int columns, Snapshot snapshot)
{
	RowScan    *scan = palloc0(sizeof(RowScan));

	scan->table = table;
	scan->rel = le_table_open(le_store.table[table].rel);
	scan->index_lock = index == le_store.table[table].pkey &&
		le_store_locked_pkey(table) ? NoLock : AccessShareLock;
	scan->index = index_open(index, scan->index_lock);
	scan->latest = snapshot == NULL;
	if (scan->latest)
	{
		le_scan_check_parallel();
		snapshot = RegisterSnapshot(GetLatestSnapshot());
	}
	scan->snapshot = snapshot;
	scan->desc = LeIndexBeginScan(scan->rel, scan->index, scan->snapshot,
								  columns);
	scan->slot = table_slot_create(scan->rel, NULL);
	return scan;
}

static void
read_slot(RowScan *scan, Row *row)
{
	bool		should_free;

	le_scan_set_row(row, scan->table, scan->rel,
					ExecFetchSlotHeapTuple(scan->slot, false, &should_free));
}

/*
 * Begin to read the rows with that key that the (active or registered)
 * snapshot (NULL: the latest one by now) sees: in the order of the primary key,
 * in the reverse order or (NoMovementScanDirection) in any order.
 * le_scan_end() has to follow in the same transaction.
 *
 * All rows are read along the primary key, too, and never page by page.  While
 * some transaction keeps a snapshot, a table gets a page for every few dozens
 * of renewals, and it keeps these pages for ever: a row stays in its page, the
 * last one, as long as its updates find room there.  The worker, which reads
 * all leases all the time, would read a hundred thousand empty pages to find
 * one.  The index has one entry for each of these pages, until the next
 * vacuum.  Any order is the reverse order, in which it is the row's latest
 * version that is met first, nearly always (le_scan_find()).
 */
RowScan *
le_scan_begin(TableId table, Key key,
			  ScanDirection direction, Snapshot snapshot)
{
	RowScan    *scan = open_scan(table, le_store.table[table].pkey,
								 key.columns, snapshot);

	scan->direction = ScanDirectionIsForward(direction) ?
		ForwardScanDirection : BackwardScanDirection;
	scan->desc->xs_want_itup = true;
	index_rescan(scan->desc, key.column, key.columns, NULL, 0);
	return scan;
}

/*
 * The same, of the latest rows, for tables that may have many: until
 * le_scan_end(), the current memory is the scan's own, and is emptied before
 * each row.
 */
RowScan *
le_scan_begin_brief(TableId table, Key key, ScanDirection direction)
{
	RowScan    *scan = le_scan_begin(table, key, direction, NULL);

	scan->brief = AllocSetContextCreate(CurrentMemoryContext,
										"leader_election row",
										ALLOCSET_DEFAULT_SIZES);
	scan->outer = MemoryContextSwitchTo(scan->brief);
	return scan;
}

/*
 * Read the next row, which is valid until the one after it is read.  False:
 * there is none.
 *
 * Since the last vacuum, a row has got an entry for each page that it was
 * written to.  Once one of them has led to the version that the snapshot sees,
 * the row's others are passed without a look at the table.
 */
bool
le_scan_next(RowScan *scan, Row *row)
{
	IndexScanDesc desc = scan->desc;
	MemoryContext reader = CurrentMemoryContext;
	bool		found = false;

	if (scan->brief != NULL)
		MemoryContextReset(scan->brief);

	/* What the scan itself allocates lasts as long as the scan. */
	MemoryContextSwitchTo(GetMemoryChunkContext(scan));
	while (!found && index_getnext_tid(desc, scan->direction) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		found = (scan->seen == NULL ||
				 !is_same_key(scan->seen, desc->xs_itup)) &&
			index_fetch_heap(desc, scan->slot);
	}
	if (found)
	{
		if (scan->seen != NULL)
			pfree(scan->seen);
		scan->seen = CopyIndexTuple(desc->xs_itup);
	}
	MemoryContextSwitchTo(reader);
	if (found)
		read_slot(scan, row);
	return found;
}

void
le_scan_end(RowScan *scan)
{
	if (scan->brief != NULL)
	{
		MemoryContextSwitchTo(scan->outer);
		MemoryContextDelete(scan->brief);
	}
	ExecDropSingleTupleTableSlot(scan->slot);
	index_endscan(scan->desc);
	if (scan->latest)
		UnregisterSnapshot(scan->snapshot);
	index_close(scan->index, scan->index_lock);
	relation_close(scan->rel, NoLock);
	pfree(scan);
}

/*
 * What make() makes of each row of a table with that key, in that order, but of
 * so many at most.
 */
List *
le_scan_read_some(TableId table, Key key, ScanDirection direction, int most,
				  RowMaker make)
{
	RowScan    *scan;
	List	   *made = NIL;
	Row			row;

	if (le_table_is_blank(le_store.table[table].rel))
		return NIL;
	scan = le_scan_begin(table, key, direction, NULL);
	while (list_length(made) < most && le_scan_next(scan, &row))
		made = lappend(made, make(&row));
	le_scan_end(scan);
	return made;
}

/*
 * The same of all rows, in any order.
 */
List *
le_scan_read_all(TableId table, Key key, RowMaker make)
{
	return le_scan_read_some(table, key, NoMovementScanDirection, INT_MAX,
							 make);
}

/*
 * Begin to find single rows of one table by keys of so many columns, one row
 * after the other, as the snapshot sees them (see le_scan_begin()).
 */
RowScan *
le_scan_find_begin(TableId table, int columns, Snapshot snapshot)
{
	return open_scan(table, le_store.table[table].pkey, columns, snapshot);
}

/*
 * Find the row with that key, and read it (row may be NULL).  It is valid
 * until the next row is looked for.  False: there is none.
 *
 * While some transaction keeps a snapshot, the server keeps every version of a
 * row that has been written since, and a row that is renewed all the time has
 * many.  Entries of equal keys are in the order of their places in the table,
 * and a new version that does not find room in the page of the former one
 * nearly always goes to a later page.  So this searches from the end, where it
 * soon meets the latest version, and not from the oldest one.
 */
bool
le_scan_find(RowScan *scan, Key key, Row *row)
{
	CHECK_FOR_INTERRUPTS();
	index_rescan(scan->desc, key.column, key.columns, NULL, 0);
	if (!index_getnext_slot(scan->desc, BackwardScanDirection, scan->slot))
		return false;
	if (row != NULL)
		read_slot(scan, row);
	return true;
}

/*
 * What make() makes of the row with that key, as the snapshot sees it (see
 * le_scan_begin()); NULL if there is no such row.
 */
void *
le_scan_read_one(TableId table, Key key, Snapshot snapshot, RowMaker make)
{
	RowScan    *scan = le_scan_find_begin(table, key.columns, snapshot);
	Row			row;
	void	   *made = le_scan_find(scan, key, &row) ? make(&row) : NULL;

	le_scan_end(scan);
	return made;
}

/*
 * Begin to go on along an index on one column of type timestamptz, over the
 * entries whose value is before end.
 */
RowScan *
le_scan_walk_begin(TableId table, Oid index, TimestampTz end, const Walk *walk)
{
	ScanKeyData key[2];
	int			nkeys = 0;
	RowScan    *scan;

	ScanKeyInit(&key[nkeys++], 1, BTLessStrategyNumber, F_TIMESTAMPTZ_LT,
				TimestampTzGetDatum(end));
	if (walk->begun)
		ScanKeyInit(&key[nkeys++], 1, BTGreaterEqualStrategyNumber,
					F_TIMESTAMPTZ_GE, TimestampTzGetDatum(walk->value));
	scan = open_scan(table, index, nkeys, NULL);
	scan->desc->xs_want_itup = true;
	index_rescan(scan->desc, key, nkeys, NULL, 0);
	return scan;
}

/*
 * Go on to the next row that is visible, and set *walk to its entry.  This
 * passes at most *limit entries, from which it takes those that it passes:
 * entries of deleted rows count as well, since there may be any number of them
 * until the next vacuum.  False: no entry is left or, if *limit is negative,
 * none that may be passed.
 */
bool
le_scan_walk_next(RowScan *scan, Walk *walk, int *limit, Row *row)
{
	IndexScanDesc desc = scan->desc;
	ItemPointer tid;

	while ((tid = index_getnext_tid(desc, ForwardScanDirection)) != NULL)
	{
		bool		isnull;
		TimestampTz value;

		CHECK_FOR_INTERRUPTS();
		value = DatumGetTimestampTz(index_getattr(desc->xs_itup, 1,
												  desc->xs_itupdesc, &isnull));

		/* Entries of one value are in the order of their rows' places. */
		if (walk->begun && value == walk->value &&
			ItemPointerCompare(tid, &walk->tid) <= 0)
			continue;
		if (--*limit < 0)
			return false;
		walk->begun = true;
		walk->value = value;
		walk->tid = *tid;
		if (!index_fetch_heap(desc, scan->slot))
			continue;
		read_slot(scan, row);
		return true;
	}
	return false;
}
