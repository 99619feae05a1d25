/*-------------------------------------------------------------------------
 *
 * store.c
 *		The tables: where they are, and how long a call may wait for them.
 *
 * Invariant: tables and election locks are waited for at most LE_WAIT_LIMIT_MS
 * in all; rows are not waited for (row.c).
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
	[TABLE_ANNOUNCED] = "announced",
};

/* What was found last, as long as nothing of it has changed */
static Store found;
static bool found_is_valid = false;

/* Counts all invalidations of tables, indexes and composite types */
static uint64 invalidations = 0;

/* Counts the invalidations of the type that stands for "who leads" */
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
 * A table or index of the extension's schema; false if it is not there.
 */
static bool
find_one(const char *name, Oid namespace, Oid *oid)
{
	*oid = get_relname_relid(name, namespace);
	return OidIsValid(*oid);
}

/*
 * Find the extension's tables.  Returns false, without error, where it is not
 * installed: a schema of that name that is not the extension's own counts as
 * none.
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
	if (!find_one("history_acquired_at", namespace,
				  &store->history_acquired_at) ||
		!find_one("change", namespace, &store->change))
		return false;

	found = *store;
	found_is_valid = invalidations == before;
	return true;
}

/*
 * The same for whoever needs them.  Elections end with the extension.
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
 * They were there when the call began.
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
 * Lock these tables, and their indexes for reading.
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

	/* They may have been dropped, or have got other indexes, while we waited. */
	le_store_get(&now);
	if (now.lease_oid != store->lease_oid)
		le_report_dropped();
	*store = now;
	return true;
}

/*
 * Lock these tables until the transaction ends, always in the same order.  The
 * server's own waits, here and later in the call, end when the call must have
 * stopped waiting.  The store is brought up to date.
 */
void
le_store_lock(Store *store, int tables, LOCKMODE mode)
{
	if (mode > AccessShareLock)
	{
		le_wait_for_room();

		/* A grant of its epoch could commit before any standby knows of it. */
		if (le_lock_epoch_is_mine())
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("this transaction has begun an epoch")));
	}
	(void) lock_tables(store, tables, mode, true);
}

/*
 * The same without a wait.  False: one of them is locked against us (others may
 * be locked by then).
 */
bool
le_store_try_lock(Store *store, int tables, LOCKMODE mode)
{
	return lock_tables(store, tables, mode, false);
}

/*
 * Lock all indexes of a table, which is locked, as a write does, until the
 * transaction ends.  False: one of them is locked against us.
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
