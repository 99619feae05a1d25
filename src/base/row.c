/*-------------------------------------------------------------------------
 *
 * row.c
 *		Locking and writing single rows of our tables.
 *
 * The writes call the server's executor or access methods, as the server's
 * worker does that applies the changes of a subscription.  No SQL runs:
 * nothing has to be planned, and no search_path, setting or privilege of the
 * caller matters.
 *
 * Invariant: nothing here waits for a row.
 *
 * - A row is locked before it is changed.  If another transaction has locked
 *	 it, it is busy, and the caller tries again later.
 *
 * - A row is inserted only by a transaction that holds the lock for its key
 *	 (the name lock, the election lock or the epoch lock).  Without that lock
 *	 the insert would wait for a transaction that has inserted the same key and
 *	 has not ended.
 *
 * The caller has locked the tables (le_store_lock()).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "base/base.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "storage/lmgr.h"
#include "utils/snapmgr.h"

/* With this begin the names of the constraints that all our writes keep */
#define KEPT	"kept_"

/* Counts this process's writes that are logged, or that triggers see */
uint64		le_lasting_writes = 0;

/*
 * ... and those that may have waited: they used more than the row's own page
 */
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
 * From here to le_wal_end(), what the server logs on the side, when reads tidy
 * up pages, does not count as this transaction's own, unless we write a logged
 * row.  Without that, the commit of a call that has changed nothing would wait
 * for a flush, and for synchronous standbys: that may be for ever.  (A
 * transaction that has no ID yet has logged nothing of its own.)
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
 * A row to be filled in and inserted; all its columns are NULL.
 */
Row *
le_row_new(const Store *store, TableId table)
{
	Row		   *row = palloc0(sizeof(Row));

	row->table = store->table[table].rel;
	memset(row->nulls, true, sizeof(row->nulls));
	return row;
}

/*
 * Lock the row with that key until the transaction ends, to update it
 * (LockTupleNoKeyExclusive) or to delete it (LockTupleExclusive), and read its
 * latest version.  NULL: there is no such row (*busy is false), or another
 * transaction has locked it, or has changed it just now (*busy is true).
 */
Row *
le_row_find_lock(Finder *finder, Key key, LockTupleMode mode, bool *busy)
{
	TupleTableSlot *slot = finder->slot;
	ItemPointerData tid;
	TM_FailureData failure;
	Row		   *row = NULL;

	Assert(CheckRelationLockedByMe(finder->rel, RowExclusiveLock, true));
	*busy = false;
	if (!le_find(finder, key, NULL))
		return NULL;
	tid = slot->tts_tid;
	switch (table_tuple_lock(finder->rel, &tid, finder->snapshot, slot,
							 GetCurrentCommandId(false), mode, LockWaitSkip,
							 TUPLE_LOCK_FLAG_FIND_LAST_VERSION, &failure))
	{
		case TM_Ok:
			le_commit_holds();
			row = palloc(sizeof(Row));
			le_row_set(row, finder->rel, ExecCopySlotHeapTuple(slot));
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
 * The same for a single row of a table.
 */
Row *
le_row_lock(const Store *store, TableId table, Key key, LockTupleMode mode,
			bool *busy)
{
	Finder	   *finder = le_find_begin(store, table, key.columns, NULL);
	Row		   *row = le_row_find_lock(finder, key, mode, busy);

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
 * Write a row by means of the executor, with its triggers and constraints.
 * The transaction sees it from now on.
 */
static void
write_row(Row *row, WriteKind kind)
{
	Relation	rel = le_table_open(row->table, RowExclusiveLock);
	EState	   *estate = CreateExecutorState();
	MemoryContext old = MemoryContextSwitchTo(estate->es_query_cxt);
	ResultRelInfo *target = makeNode(ResultRelInfo);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel),
													&TTSOpsVirtual);
	TupleTableSlot *former = table_slot_create(rel, NULL);
	EPQState	epq;

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
	ExecCloseResultRelations(estate);	/* triggers may have opened some */
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
	le_commit_holds();
	write_row(row, WRITE_INSERT);
}

/*
 * Does every row that we write keep every constraint of the table?  It does
 * with NOT NULL and with the extension's own, whose names begin with KEPT; a
 * superuser may have added others.
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
 * Update a row of a table that has no triggers, and no constraints but those
 * that we keep.  Nearly always the new version finds room in the page of the
 * old one and changes no key: then the write is all there is to do, and needs
 * no executor.
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
