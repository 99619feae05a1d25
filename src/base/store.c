/*-------------------------------------------------------------------------
 *
 * store.c
 *		Our tables: where they are, and their locks.
 *
 * Invariants:
 *
 * - Every call locks our tables in the order of TableId, and waits for
 *	 them only as long as its call may (wait.c).
 *
 * - Only the extension's own tables are used, never those of a schema of the
 *	 same name that another role has made.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "base/base.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "commands/extension.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

static const char *const table_names[TABLE_COUNT] = {
	[TABLE_ELECTION] = "election",
	[TABLE_LEASE] = "lease",
	[TABLE_CANDIDATE] = "candidate",
	[TABLE_HISTORY] = "history",
	[TABLE_EPOCH] = "epoch",
	[TABLE_PAUSE_ALL] = "pause_all",
	[TABLE_DRAIN] = "drain",
	[TABLE_ANNOUNCED] = "announced",
	[TABLE_GROUP] = "election_group",
};

/*
 * What le_store_find() has found last.  It is kept, since a call would
 * otherwise look up eighteen names, until an invalidation says that one of
 * them may have changed.
 */
static Store found;
static bool found_is_valid = false;

/* Counts all invalidations of tables, indexes and composite types */
static uint64 invalidations = 0;

/*
 * Counts the invalidations of type change, that is the changes of leadership:
 * a session's view of its leases is good while this stays the same (session.c)
 */
uint64		le_leadership_generation = 1;

static void
on_invalidation(Datum arg, Oid relid)
{
	invalidations++;
	if (relid == found.change || !OidIsValid(relid))
		le_leadership_generation++;
	if (!OidIsValid(relid) || relid == found.history_acquired_at)
		found_is_valid = false;
	for (int i = 0; i < TABLE_COUNT; i++)
	{
		if (relid == found.table[i].rel || relid == found.table[i].pkey)
			found_is_valid = false;
	}
}

/*
 * Find a table, an index or a composite type.  False: it is not there.
 */
static bool
find_one(const char *name, Oid namespace, Oid *oid)
{
	*oid = get_relname_relid(name, namespace);
	return OidIsValid(*oid);
}

/*
 * Find the extension's tables.  False, without an error: it is not installed.
 */
bool
le_store_find(Store *store)
{
	static bool listening = false;
	uint64		before;
	Oid			namespace;
	Oid			extension;

	if (found_is_valid)
	{
		*store = found;
		return true;
	}
	if (!listening)
		CacheRegisterRelcacheCallback(on_invalidation, (Datum) 0);
	listening = true;
	before = invalidations;
	namespace = get_namespace_oid(LE_SCHEMA, true);
	if (!OidIsValid(namespace))
		return false;
	extension = getExtensionOfObject(NamespaceRelationId, namespace);
	if (!OidIsValid(extension) ||
		extension != get_extension_oid(LE_EXTENSION, true))
		return false;
	for (int i = 0; i < TABLE_COUNT; i++)
	{
		char		pkey[NAMEDATALEN];

		snprintf(pkey, sizeof(pkey), "%s_pkey", table_names[i]);
		if (!find_one(table_names[i], namespace, &store->table[i].rel) ||
			!find_one(pkey, namespace, &store->table[i].pkey))
			return false;
	}
	store->lease_oid = store->table[TABLE_LEASE].rel;
	store->drains = NIL;
	store->knows_drains = store->knows_drains_of_all = false;
	store->pause_all = NULL;
	store->knows_pause_all = false;
	store->groups = NIL;
	store->knows_groups = false;
	if (!find_one("history_acquired_at", namespace,
				  &store->history_acquired_at) ||
		!find_one("change", namespace, &store->change))
		return false;

	found = *store;
	found_is_valid = invalidations == before;
	return true;
}

/*
 * Find the extension's tables, or raise an error.
 */
void
le_store_get(Store *store)
{
	if (!le_store_find(store))
		ereport(ERROR,
				(errcode(ERRCODE_LE_NO_ELECTION),
				 errmsg("there are no elections in this database"),
				 errdetail("The extension \"%s\" is not installed in it.",
						   LE_EXTENSION),
				 errhint("Run CREATE EXTENSION %s.", LE_EXTENSION)));
}

/*
 * Raise an error: the tables were there when the call began, and are gone.
 */
void
le_report_dropped(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_LE_NO_ELECTION),
			 errmsg("the elections of this database have been dropped"),
			 errdetail("They ended with the extension \"%s\".",
					   LE_EXTENSION)));
}

static bool
lock_relation(Oid oid, LOCKMODE mode, bool wait)
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
 * Lock these tables in that mode, and their primary keys for reading.
 */
static bool
lock_tables(Store *store, int tables, LOCKMODE mode, bool wait)
{
	Store		now;

	for (int i = 0; i < TABLE_COUNT; i++)
	{
		if ((tables & (1 << i)) != 0 &&
			(!lock_relation(store->table[i].rel, mode, wait) ||
			 !lock_relation(store->table[i].pkey, AccessShareLock, wait)))
			return false;
	}

	/*
	 * Before we had the locks, the extension may have been dropped, or an
	 * index replaced.
	 */
	le_store_get(&now);
	if (now.lease_oid != store->lease_oid)
		le_report_dropped();
	now.drains = store->drains;
	now.knows_drains = store->knows_drains;
	now.knows_drains_of_all = store->knows_drains_of_all;
	now.pause_all = store->pause_all;
	now.knows_pause_all = store->knows_pause_all;
	now.groups = store->groups;
	now.knows_groups = store->knows_groups;
	*store = now;
	return true;
}

/*
 * Lock these tables until the transaction ends, and bring the store up to
 * date.  From the first wait on, the server's own waits in this call end when
 * the call has waited for as long as it may.
 */
void
le_store_lock(Store *store, int tables, LOCKMODE mode)
{
	if (mode > AccessShareLock)
	{
		le_wait_for_room();

		/*
		 * A transaction that begins an epoch does nothing else.  If it also
		 * granted a lease in that epoch, a standby that is promoted could
		 * have received neither, and issue the same term.
		 */
		if (le_lock_epoch_is_mine())
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("this transaction has begun an epoch")));
	}
	(void) lock_tables(store, tables, mode, true);
}

/*
 * The same without a wait.  False: the lock of one table or index was not to
 * be had at once.  Those before it stay locked.
 */
bool
le_store_try_lock(Store *store, int tables, LOCKMODE mode)
{
	return lock_tables(store, tables, mode, false);
}

/*
 * Lock all indexes of a table, as a write would, until the transaction ends,
 * but without a wait.  The caller has locked the table.  False: the lock of
 * one of them was not to be had at once.
 */
bool
le_lock_indexes(Oid table, LOCKMODE mode)
{
	Relation	rel = table_open(table, NoLock);
	bool		locked = true;
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
		locked = locked && LeTryLockRelation(lfirst_oid(lc), mode);
	table_close(rel, NoLock);
	return locked;
}
