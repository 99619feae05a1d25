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
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

/* A reader that runs in memory of its own */
typedef struct BriefReader
{
	RowReader	reader;
	void	   *arg;
	MemoryContext context;		/* emptied after each row */
} BriefReader;

/* Rows of which a list is made */
typedef struct ListReader
{
	RowMaker	make;
	List	   *made;
} ListReader;

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

static Snapshot
latest_snapshot(void)
{
	le_scan_check_parallel();
	return GetLatestSnapshot();
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
				 errhint("Delete that row, or drop and create the extension \"%s\" again.",
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
 * Call reader for the rows with that key, in the order of the primary key or
 * in the reverse order, until it returns false.
 *
 * Since the last vacuum, a row has got an entry for each page that it was
 * written to.  Once one of them has led to the version that the snapshot sees,
 * the row's others are passed without a look at the table.
 */
static void
scan_index(TableId table, Relation rel, Relation index, Key key,
		   ScanDirection direction, Snapshot snapshot, RowReader reader,
		   void *arg)
{
	IndexScanDesc scan = LeIndexBeginScan(rel, index, snapshot, key.columns);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	IndexTuple	seen = NULL;	/* of the row that was read last */
	bool		more = true;

	scan->xs_want_itup = true;
	index_rescan(scan, key.column, key.columns, NULL, 0);
	while (more && index_getnext_tid(scan, direction) != NULL)
	{
		bool		should_free;
		Row			row;

		CHECK_FOR_INTERRUPTS();
		if ((seen != NULL && is_same_key(seen, scan->xs_itup)) ||
			!index_fetch_heap(scan, slot))
			continue;
		if (seen != NULL)
			pfree(seen);
		seen = CopyIndexTuple(scan->xs_itup);
		le_scan_set_row(&row, table, rel,
						ExecFetchSlotHeapTuple(slot, false, &should_free));
		more = reader(&row, arg);
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
}

/*
 * Call reader for each row with that key that the snapshot (NULL: the latest
 * one) sees, until it returns false: in the order of the primary key, in the
 * reverse order or (NoMovementScanDirection) in any order.
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
void
le_scan(const Store *store, TableId table, Key key, ScanDirection direction,
		Snapshot snapshot, RowReader reader, void *arg)
{
	bool		latest = snapshot == NULL;
	Relation	rel = le_table_open(store->table[table].rel, AccessShareLock);
	Relation	index;

	if (latest)
	{
		PushActiveSnapshot(latest_snapshot());
		snapshot = GetActiveSnapshot();
	}
	index = index_open(store->table[table].pkey, AccessShareLock);
	scan_index(table, rel, index, key, ScanDirectionIsForward(direction) ?
			   ForwardScanDirection : BackwardScanDirection, snapshot, reader,
			   arg);
	index_close(index, AccessShareLock);
	if (latest)
		PopActiveSnapshot();
	relation_close(rel, AccessShareLock);
}

static bool
read_briefly(const Row *row, void *arg)
{
	BriefReader *brief = arg;
	MemoryContext old = MemoryContextSwitchTo(brief->context);
	bool		more = brief->reader(row, brief->arg);

	MemoryContextSwitchTo(old);
	MemoryContextReset(brief->context);
	return more;
}

/*
 * le_scan() of the latest rows, with a reader whose memory is emptied after
 * each row: for tables that may have many.
 */
void
le_scan_briefly(const Store *store, TableId table, Key key,
				ScanDirection direction, RowReader reader, void *arg)
{
	BriefReader brief = {reader, arg};

	brief.context = AllocSetContextCreate(CurrentMemoryContext,
										  "leader_election row",
										  ALLOCSET_DEFAULT_SIZES);
	le_scan(store, table, key, direction, NULL, read_briefly, &brief);
	MemoryContextDelete(brief.context);
}

static bool
read_into_list(const Row *row, void *arg)
{
	ListReader *list = arg;

	list->made = lappend(list->made, list->make(row));
	return true;
}

/*
 * What make() makes of each row of a table.
 */
List *
le_scan_read_all(const Store *store, TableId table, RowMaker make)
{
	ListReader	list = {make, NIL};

	le_scan(store, table, le_key_any(), NoMovementScanDirection, NULL,
			read_into_list, &list);
	return list.made;
}

/*
 * Begin to find single rows of one table by keys of so many columns, one row
 * after the other, as the (active or registered) snapshot (NULL: the latest
 * one by now) sees them.  le_scan_find_end() has to follow in the same transaction.
 */
Finder *
le_scan_find_begin(const Store *store, TableId table, int columns,
				   Snapshot snapshot)
{
	Finder	   *finder = palloc(sizeof(Finder));

	finder->table = table;
	finder->rel = le_table_open(store->table[table].rel, AccessShareLock);
	finder->index = index_open(store->table[table].pkey, AccessShareLock);
	finder->latest = snapshot == NULL;
	finder->snapshot = finder->latest ? RegisterSnapshot(latest_snapshot()) :
		snapshot;
	finder->scan = LeIndexBeginScan(finder->rel, finder->index,
									finder->snapshot, columns);
	finder->slot = table_slot_create(finder->rel, NULL);
	return finder;
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
le_scan_find(Finder *finder, Key key, Row *row)
{
	bool		should_free;

	CHECK_FOR_INTERRUPTS();
	index_rescan(finder->scan, key.column, key.columns, NULL, 0);
	if (!index_getnext_slot(finder->scan, BackwardScanDirection, finder->slot))
		return false;
	if (row != NULL)
		le_scan_set_row(row, finder->table, finder->rel,
						ExecFetchSlotHeapTuple(finder->slot, false, &should_free));
	return true;
}

void
le_scan_find_end(Finder *finder)
{
	ExecDropSingleTupleTableSlot(finder->slot);
	index_endscan(finder->scan);
	if (finder->latest)
		UnregisterSnapshot(finder->snapshot);
	index_close(finder->index, AccessShareLock);
	relation_close(finder->rel, AccessShareLock);
	pfree(finder);
}

/*
 * What make() makes of the row with that key, as the snapshot sees it (see
 * le_scan_find_begin()); NULL if there is no such row.
 */
void *
le_scan_read_one(const Store *store, TableId table, Key key, Snapshot snapshot,
				 RowMaker make)
{
	Finder	   *finder = le_scan_find_begin(store, table, key.columns, snapshot);
	Row			row;
	void	   *made = le_scan_find(finder, key, &row) ? make(&row) : NULL;

	le_scan_find_end(finder);
	return made;
}

/*
 * Go on along an index on one column of type timestamptz: pass at most limit
 * entries whose value is before end.  Entries of deleted rows count as well,
 * since there may be any number of them until the next vacuum.  For each row
 * that is visible, set *walk to its entry and call reader.  False: no entry is
 * left.
 */
bool
le_scan_walk(const Store *store, TableId table, Oid index, TimestampTz end,
			 int limit, Walk *walk, RowReader reader, void *arg)
{
	Relation	rel = le_table_open(store->table[table].rel, AccessShareLock);
	Relation	irel = index_open(index, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	ScanKeyData key[2];
	int			nkeys = 0;
	IndexScanDesc scan;
	ItemPointer tid;
	bool		more = false;

	ScanKeyInit(&key[nkeys++], 1, BTLessStrategyNumber, F_TIMESTAMPTZ_LT,
				TimestampTzGetDatum(end));
	if (walk->begun)
		ScanKeyInit(&key[nkeys++], 1, BTGreaterEqualStrategyNumber,
					F_TIMESTAMPTZ_GE, TimestampTzGetDatum(walk->value));
	PushActiveSnapshot(latest_snapshot());
	scan = LeIndexBeginScan(rel, irel, GetActiveSnapshot(), nkeys);
	scan->xs_want_itup = true;
	index_rescan(scan, key, nkeys, NULL, 0);
	while (!more &&
		   (tid = index_getnext_tid(scan, ForwardScanDirection)) != NULL)
	{
		bool		isnull;
		TimestampTz value;
		Row			row;

		CHECK_FOR_INTERRUPTS();
		value = DatumGetTimestampTz(index_getattr(scan->xs_itup, 1,
												  scan->xs_itupdesc, &isnull));

		/* Entries of one value are in the order of their rows' places. */
		if (walk->begun && value == walk->value &&
			ItemPointerCompare(tid, &walk->tid) <= 0)
			continue;
		more = limit-- <= 0;
		if (more)
			break;
		walk->begun = true;
		walk->value = value;
		walk->tid = *tid;
		if (!index_fetch_heap(scan, slot))
			continue;
		le_scan_set_row(&row, table, rel,
						ExecFetchSlotHeapTuple(slot, false, &isnull));
		more = !reader(&row, arg);
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	PopActiveSnapshot();
	index_close(irel, AccessShareLock);
	relation_close(rel, AccessShareLock);
	return more;
}
