/*-------------------------------------------------------------------------
 *
 * row.c
 *		Locking and writing single rows of our tables.
 *
 * The writes call the server's access methods.  No SQL runs: nothing has to be
 * planned, and no search_path, setting or privilege of the caller matters.
 *
 * Invariant: nobody's code but ours runs when a row is written.  The worker is
 * the bootstrap superuser, and what others have attached to our tables would
 * run with its rights.
 *
 * - No trigger fires, no rule rewrites, no row security filters, and no default
 *	 fills in: none of them is part of an access method.
 *
 * - Some of what others attach PostgreSQL cannot do without: expressions and
 *	 predicates of indexes, CHECK constraints, generated columns.  These are
 *	 evaluated as the table's owner, in a security-restricted operation with a
 *	 search_path of its own (as_owner.c).  So they have no more rights
 *	 than that owner, also in a superuser's call.  Even to look at such an
 *	 expression is to run it: PostgreSQL folds constants.
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
#include "base/base.h"
#include "executor/executor.h"
#include "executor/nodeModifyTable.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/snapmgr.h"

/* With this begin the names of the constraints that all our writes keep */
#define KEPT	"kept_"

/* A server with assertions checks these all the same */
#ifdef USE_ASSERT_CHECKING
#define TRUSTS_KEPT	false
#else
#define TRUSTS_KEPT	true
#endif

static void
note_write(Relation rel)
{
	if (RelationNeedsWAL(rel))
		le_xact_writes++;
}

/*
 * Are these values of a type of varying length the same?  0: none.  To fetch a
 * long one from a TOAST table takes a snapshot, and a procedure has none.
 */
bool
le_row_same_value(Datum a, Datum b)
{
	bool		same;

	if (a == 0 || b == 0)
		return a == b;
	PushActiveSnapshot(GetLatestSnapshot());
	same = datum_image_eq(a, b, false, -1);
	PopActiveSnapshot();
	return same;
}

/*
 * A row to be filled in and inserted; all its columns are NULL.
 */
Row *
le_row_new(TableId table)
{
	Row		   *row = palloc0(sizeof(Row));

	row->table = le_store.table[table].rel;
	memset(row->nulls, true, sizeof(row->nulls));
	return row;
}

/*
 * Lock the latest version of the row at that place.  See le_row_find_lock().
 */
static Row *
lock_row(TableId table, Relation rel, Snapshot snapshot, TupleTableSlot *slot,
		 ItemPointerData tid, LockTupleMode mode, bool *busy)
{
	TM_FailureData failure;
	Row		   *row = NULL;

	Assert(CheckRelationLockedByMe(rel, RowExclusiveLock, true));
	*busy = false;
	switch (table_tuple_lock(rel, &tid, snapshot, slot,
							 GetCurrentCommandId(false), mode, LockWaitSkip,
							 TUPLE_LOCK_FLAG_FIND_LAST_VERSION, &failure))
	{
		case TM_Ok:
			le_xact_holds = true;
			row = palloc(sizeof(Row));
			le_scan_set_row(row, table, rel, ExecCopySlotHeapTuple(slot));
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
 * Lock the row with that key until the transaction ends, to update it
 * (LockTupleNoKeyExclusive) or to delete it (LockTupleExclusive), and read its
 * latest version.  NULL: there is no such row (*busy is false), or another
 * transaction has locked it, or has changed it just now (*busy is true).
 */
Row *
le_row_find_lock(RowScan *scan, Key key, LockTupleMode mode, bool *busy)
{
	*busy = false;
	return le_scan_find(scan, key, NULL) ?
		lock_row(scan->table, scan->rel, scan->snapshot, scan->slot,
				 scan->slot->tts_tid, mode, busy) : NULL;
}

/*
 * The same for a row that was read at that place, without another search.  The
 * caller has kept a snapshot registered since before that, or the version that
 * was read may have been removed, and another row be there by now.  A row that
 * was deleted is gone, even if there is a new one with its key.
 */
Row *
le_row_lock_read(TableId table, ItemPointerData tid, LockTupleMode mode,
				 bool *busy)
{
	Relation	rel = le_table_open(le_store.table[table].rel);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	Row		   *row;

	Assert(HaveRegisteredOrActiveSnapshot());
	row = lock_row(table, rel, GetLatestSnapshot(), slot, tid, mode, busy);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, NoLock);
	return row;
}

/*
 * The same as le_row_find_lock() for a single row of a table.
 */
Row *
le_row_lock(TableId table, Key key, LockTupleMode mode, bool *busy)
{
	RowScan    *scan = le_scan_find_begin(table, key.columns, NULL);
	Row		   *row = le_row_find_lock(scan, key, mode, busy);

	le_scan_end(scan);
	return row;
}

/*
 * Lock the row with that key to update it or, if there is none, make one that
 * is to be filled in and inserted, for which the caller holds the lock of that
 * key.  NULL: another transaction has locked the row.
 */
Row *
le_row_lock_or_new(TableId table, Key key)
{
	bool		busy;
	Row		   *row = le_row_lock(table, key, LockTupleNoKeyExclusive, &busy);

	return row != NULL || busy ? row : le_row_new(table);
}

/*
 * Put the row that is to be written into a slot.  Columns that others have
 * added keep what they have; in a new row they are NULL.
 */
static void
store_values(TupleTableSlot *slot, const Row *row)
{
	TupleDesc	desc = slot->tts_tupleDescriptor;
	int			columns = Min(desc->natts, LE_MAX_COLUMNS);

	ExecClearTuple(slot);
	if (desc->natts > columns)
	{
		if (row->tuple != NULL)
			heap_deform_tuple(row->tuple, desc, slot->tts_values,
							  slot->tts_isnull);
		else
			memset(slot->tts_isnull, true, desc->natts * sizeof(bool));
	}
	memcpy(slot->tts_values, row->values, columns * sizeof(Datum));
	memcpy(slot->tts_isnull, row->nulls, columns * sizeof(bool));
	ExecStoreVirtualTuple(slot);
}

/*
 * Refuse a NULL where a column admits none.  Ours never is: somebody has
 * added the column, or that constraint.
 */
static void
check_not_null(Relation rel, TupleTableSlot *slot)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(desc, i);
		const char *name = NameStr(column->attname);

		if (!column->attnotnull || !slot->tts_isnull[i] ||
			column->attgenerated != '\0')
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_NOT_NULL_VIOLATION),
				 errmsg("column \"%s\" of table \"%s.%s\" admits no null value, which leader_election has to write",
						name, LE_SCHEMA, RelationGetRelationName(rel)),
				 errdetail("The column, or its NOT NULL constraint, was added to the extension's table."),
				 errhint(column->attidentity != '\0' ?
						 "Run ALTER TABLE %s.%s DROP COLUMN %s." :
						 "Run ALTER TABLE %s.%s ALTER COLUMN %s DROP NOT NULL.",
						 LE_SCHEMA, RelationGetRelationName(rel),
						 quote_identifier(name)),
				 errtablecol(rel, column->attnum)));
	}
}

/*
 * Does every row that we write keep every constraint of the table?  It does
 * with NOT NULL (check_not_null()) and with the extension's own, whose names
 * begin with KEPT; somebody may have added others.
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

/*
 * Compute generated columns, and check the constraints.
 */
static void
compute_and_check(Relation rel, TupleTableSlot *slot)
{
	TupleConstr *constraints = RelationGetDescr(rel)->constr;
	EState	   *estate;
	ResultRelInfo *target;
	AsOwner		former;

	if (constraints == NULL)
		return;
	estate = CreateExecutorState();
	target = makeNode(ResultRelInfo);
	le_as_owner_begin(&former, rel);
	InitResultRelInfo(target, rel, 0, NULL, 0);
	if (constraints->has_generated_stored)
		ExecComputeStoredGenerated(target, estate, slot, CMD_INSERT);	/* all */
	ExecConstraints(target, slot, estate);
	le_as_owner_end(&former);
	le_store_check_unaltered();

	/* What was computed is in the memory of estate. */
	ExecMaterializeSlot(slot);
	FreeExecutorState(estate);
}

/*
 * Has the table only the indexes that our script has made?  They are on plain
 * columns (shape.c): nothing has to be evaluated.
 */
static bool
has_only_our_indexes(Relation rel)
{
	foreach_oid(index, RelationGetIndexList(rel))
	{
		if (!le_store_has_index(index))
			return false;
	}
	return true;
}

/*
 * Enter a new version of a row into the indexes.  The server waits for their
 * locks: no longer than the call may wait, since it has the election lock.
 * (The worker hardly waits: it has other leases to renew.)
 */
static void
insert_index_entries(Relation rel, TupleTableSlot *slot, bool is_update,
					 bool only_summarizing)
{
	EState	   *estate = CreateExecutorState();
	ResultRelInfo *target = makeNode(ResultRelInfo);
	bool		evaluates;
	AsOwner		former;

	(void) le_table_lock_indexes(RelationGetRelid(rel), RowExclusiveLock, true);

	/* With the locks, we may have learned of another index. */
	evaluates = !has_only_our_indexes(rel);
	if (evaluates)
		le_as_owner_begin(&former, rel);
	InitResultRelInfo(target, rel, 0, NULL, 0);
	ExecOpenIndices(target, false);
	LeInsertIndexTuples(target, slot, estate, is_update, only_summarizing);
	ExecCloseIndices(target);
	if (evaluates)
	{
		le_as_owner_end(&former);
		le_store_check_unaltered();
	}
	FreeExecutorState(estate);
}

/*
 * Write a row that is locked, or that le_row_new() has made.  The transaction
 * sees it from now on, and may write it again.
 *
 * Nearly always an update finds room in the page of the old version and
 * changes no key, and the table has no constraints but those that we keep:
 * then the write is all there is to do, and needs no executor.
 */
void
le_row_write(Row *row)
{
	bool		is_new = !ItemPointerIsValid(&row->tid);
	Relation	rel = le_table_open(row->table);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel),
													&TTSOpsVirtual);
	bool		needs_entries = true;
	bool		only_summarizing = false;

	if (is_new)
		le_xact_holds = true;
	note_write(rel);
	PushActiveSnapshot(GetLatestSnapshot());
	store_values(slot, row);
	check_not_null(rel, slot);
	if (!TRUSTS_KEPT || !keeps_constraints(RelationGetDescr(rel)->constr))
		compute_and_check(rel, slot);
	if (is_new)
		simple_table_tuple_insert(rel, slot);
	else
		needs_entries = LeTableUpdate(rel, &row->tid, slot,
									  GetActiveSnapshot(), &only_summarizing);
	if (needs_entries)
	{
		le_xact_slow_writes++;
		insert_index_entries(rel, slot, !is_new, only_summarizing);
	}
	row->tid = slot->tts_tid;
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}

/* Delete a row that was locked for that. */
void
le_row_delete(Row *row)
{
	Relation	rel = le_table_open(row->table);

	note_write(rel);
	PushActiveSnapshot(GetLatestSnapshot());
	simple_table_tuple_delete(rel, &row->tid, GetActiveSnapshot());
	PopActiveSnapshot();
	table_close(rel, NoLock);
	CommandCounterIncrement();
}

/*
 * Delete the row with that key, if there is one.  False: another transaction
 * has locked it.
 */
bool
le_row_remove(TableId table, Key key)
{
	bool		busy;
	Row		   *row = le_row_lock(table, key, LockTupleExclusive, &busy);

	if (row != NULL)
		le_row_delete(row);
	return !busy;
}
