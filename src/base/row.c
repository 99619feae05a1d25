/*-------------------------------------------------------------------------
 *
 * row.c
 *		Single rows of our tables: found by key, locked, written.
 *
 * All of it is done by hand, the way in which the server applies the changes
 * of a subscription.  No SQL runs here: no name can be captured, no setting
 * and no privilege of the caller matters, nothing is planned, and the cost is
 * that of the write itself.
 *
 * Invariant: nothing here waits for a row.  A row is locked before it is
 * changed, and what somebody else has locked counts as busy; a row is inserted
 * only by whoever holds the right to its key (a name lock, the election lock or
 * the epoch lock).
 *
 * The caller has locked the tables (le_store_lock()).
 *
 * A call that writes no more than UNLOGGED rows does not wait at its commit for
 * the WAL of anything, and thus not for synchronous standbys, either.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "base/base.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

/* Names of constraints begin so if all rows that we write keep them */
#define KEPT	"kept_"

/* Counts the writes by this process that have to last */
uint64		le_lasting_writes = 0;

/* ... and those that did more than write into a row's own page: they may wait */
uint64		le_slow_writes = 0;

typedef enum WriteKind
{
	WRITE_INSERT,
	WRITE_UPDATE,
	WRITE_DELETE
} WriteKind;

static void
note_write(Relation rel)
{
	if (RelationNeedsWAL(rel) || rel->trigdesc != NULL)
		le_lasting_writes++;
}

/*
 * From here to le_wal_end(): what is logged on the side, in tidying up pages
 * that are read, does not count as this transaction's own, unless a call of ours
 * writes what has to last.  (Where it has no number yet, it has written nothing.)
 */
void
le_wal_begin(WalMark *mark)
{
	mark->end = TransactionIdIsValid(GetTopTransactionIdIfAny()) ?
		XactLastRecEnd : InvalidXLogRecPtr;
	mark->writes = le_lasting_writes;
}

void
le_wal_end(const WalMark *mark)
{
	if (mark->writes == le_lasting_writes)
		XactLastRecEnd = mark->end;
}

/*
 * The key of rows whose first column is this text.
 */
Key
le_key(const char *first)
{
	Key			key;

	key.columns = 1;
	ScanKeyInit(&key.column[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(first));
	return key;
}

/*
 * The same, with this text in the second column ...
 */
Key
le_key_text(const char *first, const char *second)
{
	Key			key = le_key(first);

	key.columns = 2;
	ScanKeyInit(&key.column[1], 2, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(second));
	return key;
}

/*
 * ... or this number.
 */
Key
le_key_int64(const char *first, int64 second)
{
	Key			key = le_key(first);

	key.columns = 2;
	ScanKeyInit(&key.column[1], 2, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(second));
	return key;
}

/*
 * The same, or any greater number.
 */
Key
le_key_from(const char *first, int64 second)
{
	Key			key = le_key(first);

	key.columns = 2;
	ScanKeyInit(&key.column[1], 2, BTGreaterEqualStrategyNumber, F_INT8GE,
				Int64GetDatum(second));
	return key;
}

/*
 * The key of rows whose first column is a text (of collation "C") that comes
 * after this one.
 */
Key
le_key_after(const char *first)
{
	Key			key;

	key.columns = 1;
	ScanKeyInit(&key.column[0], 1, BTGreaterStrategyNumber, F_TEXT_GT,
				CStringGetTextDatum(first));
	return key;
}

/*
 * The same for the second column, where the first one is that text.
 */
Key
le_key_text_after(const char *first, const char *second)
{
	Key			key = le_key(first);

	key.columns = 2;
	ScanKeyInit(&key.column[1], 2, BTGreaterStrategyNumber, F_TEXT_GT,
				CStringGetTextDatum(second));
	return key;
}

static void
check_columns(Relation rel)
{
	if (RelationGetNumberOfAttributes(rel) > LE_MAX_COLUMNS)
		elog(ERROR, "table \"%s\" has too many columns",
			 RelationGetRelationName(rel));
}

static Snapshot
latest_snapshot(void)
{
	/* There is none; whoever called us claims to be PARALLEL SAFE. */
	if (IsInParallelMode())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_STATE),
				 errmsg("elections cannot be read during a parallel operation"),
				 errhint("Declare functions that call those of leader_election PARALLEL UNSAFE.")));
	return GetLatestSnapshot();
}

/*
 * Call reader for each row with that key (NULL: each row of the table) that
 * the snapshot (NULL: the latest one) sees.  Reads by hand work on a standby,
 * in any transaction and without any privilege.
 */
void
le_scan(const Store *store, TableId table, Key *key, Snapshot snapshot,
		RowReader reader, void *arg)
{
	Relation	rel = try_relation_open(store->table[table].rel, AccessShareLock);
	TupleDesc	desc;
	Datum		values[LE_MAX_COLUMNS];
	bool		nulls[LE_MAX_COLUMNS];
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		latest = snapshot == NULL;

	if (rel == NULL)
		le_report_dropped();
	if (latest)
	{
		PushActiveSnapshot(latest_snapshot());
		snapshot = GetActiveSnapshot();
	}
	desc = RelationGetDescr(rel);
	check_columns(rel);
	scan = systable_beginscan(rel, store->table[table].pkey, key != NULL, snapshot,
							  key != NULL ? key->columns : 0,
							  key != NULL ? key->column : NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		CHECK_FOR_INTERRUPTS();
		heap_deform_tuple(tuple, desc, values, nulls);
		if (!reader(tuple, values, nulls, arg))
			break;
	}
	systable_endscan(scan);
	if (latest)
		PopActiveSnapshot();
	relation_close(rel, AccessShareLock);
}

/*
 * The same in the order of the primary key, or in the reverse order.
 */
void
le_scan_ordered(const Store *store, TableId table, Key *key,
				ScanDirection direction, Snapshot snapshot, RowReader reader,
				void *arg)
{
	Relation	rel = table_open(store->table[table].rel, AccessShareLock);
	Relation	irel = index_open(store->table[table].pkey, AccessShareLock);
	TupleDesc	desc = RelationGetDescr(rel);
	Datum		values[LE_MAX_COLUMNS];
	bool		nulls[LE_MAX_COLUMNS];
	SysScanDesc scan;
	HeapTuple	tuple;

	check_columns(rel);
	scan = systable_beginscan_ordered(rel, irel, snapshot, key->columns,
									  key->column);
	while (HeapTupleIsValid(tuple = systable_getnext_ordered(scan, direction)))
	{
		CHECK_FOR_INTERRUPTS();
		heap_deform_tuple(tuple, desc, values, nulls);
		if (!reader(tuple, values, nulls, arg))
			break;
	}
	systable_endscan_ordered(scan);
	index_close(irel, AccessShareLock);
	table_close(rel, AccessShareLock);
}

/*
 * Go on along an index on one column of type timestamptz, up to end, and by so
 * many entries at most.  Those of rows that are gone count as well: there may be
 * any number of them until the next vacuum.  Call reader, which finds *walk at
 * its row, for each row that is there.  False: the walk is over.
 */
bool
le_walk(const Store *store, TableId table, Oid index, TimestampTz end, int limit, Walk *walk,
		RowReader reader, void *arg)
{
	Relation	rel = table_open(store->table[table].rel, AccessShareLock);
	Relation	irel = index_open(index, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	Datum		values[LE_MAX_COLUMNS];
	bool		nulls[LE_MAX_COLUMNS];
	ScanKeyData key[2];
	int			nkeys = 0;
	IndexScanDesc scan;
	ItemPointer tid;
	bool		more = false;

	check_columns(rel);
	ScanKeyInit(&key[nkeys++], 1, BTLessStrategyNumber, F_TIMESTAMPTZ_LT,
				TimestampTzGetDatum(end));
	if (walk->begun)
		ScanKeyInit(&key[nkeys++], 1, BTGreaterEqualStrategyNumber,
					F_TIMESTAMPTZ_GE, TimestampTzGetDatum(walk->value));
	PushActiveSnapshot(GetLatestSnapshot());
	scan = LeIndexBeginScan(rel, irel, GetActiveSnapshot(), nkeys);
	scan->xs_want_itup = true;
	index_rescan(scan, key, nkeys, NULL, 0);
	while ((tid = index_getnext_tid(scan, ForwardScanDirection)) != NULL)
	{
		bool		isnull;
		TimestampTz value;
		HeapTuple	tuple;

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
		tuple = ExecFetchSlotHeapTuple(slot, false, NULL);
		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		if (!reader(tuple, values, nulls, arg))
		{
			more = true;
			break;
		}
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	PopActiveSnapshot();
	index_close(irel, AccessShareLock);
	table_close(rel, AccessShareLock);
	return more;
}

static Row *
row_new(Oid table)
{
	Row		   *row = palloc0(sizeof(Row));

	row->table = table;
	memset(row->nulls, true, sizeof(row->nulls));
	return row;
}

/*
 * A row to be filled in and inserted; all its columns are NULL.
 */
Row *
le_row_new(const Store *store, TableId table)
{
	return row_new(store->table[table].rel);
}

/*
 * Find single rows of one table by their key, one after the other, as the (active
 * or registered) snapshot (NULL: the latest one by now) sees them.  To be ended
 * in the same transaction.
 */
Finder *
le_find_begin(const Store *store, TableId table, int columns,
			  Snapshot snapshot)
{
	Finder	   *finder = palloc(sizeof(Finder));

	finder->rel = try_relation_open(store->table[table].rel, AccessShareLock);
	if (finder->rel == NULL)
		le_report_dropped();
	check_columns(finder->rel);
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
 * The row with that key is in finder->slot then.  False: there is none.
 *
 * While some transaction keeps a snapshot, all versions of a row that have come
 * since are kept, and a row that is renewed all the time has many.  Equal keys
 * are in the order of their places, and a new version that does not find room in
 * the page of the former one is nearly always put further back: so a search that
 * begins at the end need not look at all of them.
 */
bool
le_find(Finder *finder, Key *key)
{
	CHECK_FOR_INTERRUPTS();
	index_rescan(finder->scan, key->column, key->columns, NULL, 0);
	return index_getnext_slot(finder->scan, BackwardScanDirection,
							  finder->slot);
}

void
le_find_end(Finder *finder)
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
 * Call reader for the row with that key, if there is one, as for le_scan().
 */
void
le_read_one(const Store *store, TableId table, Key *key, Snapshot snapshot,
			RowReader reader, void *arg)
{
	Finder	   *finder = le_find_begin(store, table, key->columns, snapshot);
	Datum		values[LE_MAX_COLUMNS];
	bool		nulls[LE_MAX_COLUMNS];

	if (le_find(finder, key))
	{
		bool		should_free;
		HeapTuple	tuple = ExecFetchSlotHeapTuple(finder->slot, false,
												   &should_free);

		heap_deform_tuple(tuple, RelationGetDescr(finder->rel), values, nulls);
		(void) reader(tuple, values, nulls, arg);
	}
	le_find_end(finder);
}

/*
 * Lock the row with that key until the transaction ends, against whoever would
 * change it (LockTupleNoKeyExclusive) or so that it can be deleted
 * (LockTupleExclusive), and read its latest version.  NULL: there is no such
 * row (*busy is false), or somebody else has it, or has just changed it (true).
 */
Row *
le_find_lock(Finder *finder, Key key, LockTupleMode mode, bool *busy)
{
	TupleTableSlot *slot = finder->slot;
	ItemPointerData tid;
	TM_FailureData failure;
	Row		   *row = NULL;

	Assert(CheckRelationLockedByMe(finder->rel, RowExclusiveLock, true));
	*busy = false;
	if (!le_find(finder, &key))
		return NULL;
	tid = slot->tts_tid;
	switch (table_tuple_lock(finder->rel, &tid, finder->snapshot, slot,
							 GetCurrentCommandId(false), mode, LockWaitSkip,
							 TUPLE_LOCK_FLAG_FIND_LAST_VERSION, &failure))
	{
		case TM_Ok:
			row = row_new(RelationGetRelid(finder->rel));
			row->tid = slot->tts_tid;
			row->tuple = ExecCopySlotHeapTuple(slot);
			heap_deform_tuple(row->tuple, RelationGetDescr(finder->rel),
							  row->values, row->nulls);
			break;
		case TM_Deleted:
			break;
		default:
			*busy = true;
			break;
	}
	return row;
}

/*
 * The same for a single row.
 */
Row *
le_row_lock(const Store *store, TableId table, Key key, LockTupleMode mode,
			bool *busy)
{
	Finder	   *finder = le_find_begin(store, table, key.columns, NULL);
	Row		   *row = le_find_lock(finder, key, mode, busy);

	le_find_end(finder);
	return row;
}

static void
store_values(TupleTableSlot *slot, const Row *row)
{
	int			columns = slot->tts_tupleDescriptor->natts;

	ExecClearTuple(slot);
	memcpy(slot->tts_values, row->values, columns * sizeof(Datum));
	memcpy(slot->tts_isnull, row->nulls, columns * sizeof(bool));
	ExecStoreVirtualTuple(slot);
}

/*
 * Write a row, and see it from now on.
 */
static void
write_row(Row *row, WriteKind kind)
{
	Relation	rel = table_open(row->table, RowExclusiveLock);
	EState	   *estate = CreateExecutorState();
	MemoryContext old = MemoryContextSwitchTo(estate->es_query_cxt);
	ResultRelInfo *target = makeNode(ResultRelInfo);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel),
													&TTSOpsVirtual);
	TupleTableSlot *former = table_slot_create(rel, NULL);
	EPQState	epq;

	check_columns(rel);
	note_write(rel);
	le_slow_writes++;
	PushActiveSnapshot(GetLatestSnapshot());
	estate->es_snapshot = GetActiveSnapshot();
	estate->es_output_cid = GetCurrentCommandId(true);
	InitResultRelInfo(target, rel, 0, NULL, 0);
	ExecOpenIndices(target, false);
	LeEvalPlanQualInit(&epq, estate);
	AfterTriggerBeginQuery();

	store_values(slot, row);
	former->tts_tid = row->tid;
	switch (kind)
	{
		case WRITE_INSERT:
			ExecSimpleRelationInsert(target, estate, slot);
			break;
		case WRITE_UPDATE:
			ExecSimpleRelationUpdate(target, estate, &epq, former, slot);
			break;
		case WRITE_DELETE:
			ExecSimpleRelationDelete(target, estate, &epq, former);
			break;
	}
	if (kind != WRITE_DELETE && !ItemPointerIsValid(&slot->tts_tid))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("a trigger on table \"%s\" has suppressed a write",
						RelationGetRelationName(rel))));
	row->tid = slot->tts_tid;

	AfterTriggerEndQuery(estate);
	ExecCloseResultRelations(estate);	/* those that triggers have opened */
	EvalPlanQualEnd(&epq);
	ExecCloseIndices(target);
	ExecResetTupleTable(estate->es_tupleTable, false);
	ExecDropSingleTupleTableSlot(former);
	ExecDropSingleTupleTableSlot(slot);
	PopActiveSnapshot();
	MemoryContextSwitchTo(old);
	FreeExecutorState(estate);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}

/* Insert a row made by le_row_new(). */
void
le_row_insert(Row *row)
{
	write_row(row, WRITE_INSERT);
}

/*
 * Do all rows that we write keep every constraint of the table?  They keep NOT
 * NULL, and those constraints whose names the extension's script begins so.
 */
static bool
keeps_constraints(const TupleConstr *constraints)
{
	if (constraints == NULL)
		return true;
	for (int i = 0; i < constraints->num_check; i++)
	{
		if (strncmp(constraints->check[i].ccname, KEPT, strlen(KEPT)) != 0)
			return false;
	}
	return !constraints->has_generated_stored;
}

#ifdef USE_ASSERT_CHECKING
static void
check_kept(Relation rel, TupleTableSlot *slot)
{
	EState	   *estate = CreateExecutorState();
	ResultRelInfo *target = makeNode(ResultRelInfo);

	InitResultRelInfo(target, rel, 0, NULL, 0);
	if (RelationGetDescr(rel)->constr != NULL)
		ExecConstraints(target, slot, estate);
	FreeExecutorState(estate);
}
#endif

/*
 * write_row() for an update of a table that has no triggers and no constraints
 * but those that we keep.  Nearly always the new version finds room in the page
 * and changes no key: then there is nothing to do but the write, and no need of
 * an executor.
 */
static void
update_plainly(Row *row, Relation rel)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel),
													&TTSOpsVirtual);
	bool		only_summarizing;

	note_write(rel);
	store_values(slot, row);
	PushActiveSnapshot(GetLatestSnapshot());
#ifdef USE_ASSERT_CHECKING
	check_kept(rel, slot);
#endif
	if (LeTableUpdate(rel, &row->tid, slot, GetActiveSnapshot(),
					  &only_summarizing))
	{
		EState	   *estate = CreateExecutorState();
		ResultRelInfo *target = makeNode(ResultRelInfo);

		le_slow_writes++;
		InitResultRelInfo(target, rel, 0, NULL, 0);
		ExecOpenIndices(target, false);
		LeInsertIndexTuples(target, slot, estate, only_summarizing);
		ExecCloseIndices(target);
		FreeExecutorState(estate);
	}
	row->tid = slot->tts_tid;
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(slot);
	CommandCounterIncrement();
}

/* Update a row that is locked; it may be updated again. */
void
le_row_update(Row *row)
{
	Relation	rel = table_open(row->table, RowExclusiveLock);

	if (rel->trigdesc == NULL &&
		keeps_constraints(RelationGetDescr(rel)->constr))
		update_plainly(row, rel);
	else
		write_row(row, WRITE_UPDATE);
	table_close(rel, NoLock);
}

/* Delete a row that was locked for that. */
void
le_row_delete(Row *row)
{
	write_row(row, WRITE_DELETE);
}
