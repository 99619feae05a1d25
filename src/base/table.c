/*-------------------------------------------------------------------------
 *
 * table.c
 *		Opening tables of ours, and locking their indexes.
 *
 * The caller has found and locked the tables (store.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "base/base.h"

/*
 * Open a table of ours, which this transaction has locked.
 */
Relation
le_table_open(Oid table)
{
	Relation	rel = try_relation_open(table, NoLock);

	if (rel == NULL)
		le_table_report_dropped();
	return rel;
}

/*
 * Raise an error: the tables were there when the call began, and are gone.
 */
void
le_table_report_dropped(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_LE_NO_ELECTION),
			 errmsg("the elections of this database have been dropped"),
			 errdetail("They ended with the extension \"%s\".",
					   LE_EXTENSION)));
}

/*
 * Lock all indexes of a table, as a write would, until the transaction ends,
 * but without a wait.  The caller has locked the table.  False: the lock of
 * one of them was not to be had at once.
 */
bool
le_table_lock_indexes(Oid table, LOCKMODE mode)
{
	Relation	rel = table_open(table, NoLock);
	bool		locked = true;

	foreach_oid(index, RelationGetIndexList(rel))
		locked = locked && LeTryLockRelation(index, mode);
	table_close(rel, NoLock);
	return locked;
}
