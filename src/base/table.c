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

#include "access/table.h"
#include "base/base.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/relcache.h"

/*
 * Open a table of ours, which this transaction has locked.
 */
Relation
le_table_open(Oid table)
{
	Relation	rel = RelationIdGetRelation(table);

	/* relation_open() looks first whether it is there: the lock says so. */
	if (rel == NULL)
		le_table_report_dropped();
	Assert(CheckRelationLockedByMe(rel, AccessShareLock, true));
	pgstat_init_relation(rel);
	return rel;
}

/*
 * Has this table, which the caller has locked, no page, and so no row?  Rows of
 * transactions that have committed by now are in pages that it has by now.
 */
bool
le_table_is_blank(Oid table)
{
	Relation	rel = le_table_open(table);
	bool		blank = RelationGetNumberOfBlocks(rel) == 0;

	table_close(rel, NoLock);
	return blank;
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
 * Lock a table, an index or the view of ours until the transaction ends.  With
 * wait, wait for the lock as long as the call may wait (55P03).  False: without
 * wait, it was not to be had at once.
 */
bool
le_table_lock_relation(Oid oid, LOCKMODE mode, bool wait)
{
	if (LeTryLockRelation(oid, mode))
		return true;
	if (!wait)
		return false;
	le_wait_as_lock_timeout();
	LockRelationOid(oid, mode);
	return true;
}

/*
 * The same for all indexes of a table that the caller has locked, as a write
 * would lock them.
 */
bool
le_table_lock_indexes(Oid table, LOCKMODE mode, bool wait)
{
	Relation	rel = table_open(table, NoLock);
	bool		locked = true;

	foreach_oid(index, RelationGetIndexList(rel))
		locked = locked && le_table_lock_relation(index, mode, wait);
	table_close(rel, NoLock);
	return locked;
}
