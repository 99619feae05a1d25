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
 * - In one database, never two libraries that speak different protocols act on
 *	 elections.  After an update of the extension, sessions and the worker go on
 *	 with the library that they have loaded before.  So each use of the tables
 *	 holds the lock of the view protocol (AccessShare) while it compares the
 *	 view's number with LE_PROTOCOL, and until its transaction ends.  An update
 *	 script begins by replacing that view, for which it needs the lock in
 *	 AccessExclusive mode.  So it waits for transactions of the old protocol,
 *	 fenced commits among them; those that come later wait for it, and read
 *	 the new number.
 *
 *	 Cached views of leases (session.c) need no lock: that replacement sends an
 *	 invalidation before it releases its lock, and is_leader() accepts
 *	 invalidations first.  Then it reads its lease again, and cannot.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "base/base.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "commands/extension.h"
#include "rewrite/rewriteHandler.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

/*
 * The tables, as le_store_find() has found them last.  A call finds them when
 * it begins, and again with each lock that it takes: what it has locked stays
 * where it is.  To look up two names for each takes long: that is done again
 * only when an invalidation says that one of them may have changed.
 */
Store		le_store;
static bool is_valid = false;

/*
 * Where the tables were when the running call has locked some last; and which
 * primary key was locked with each table
 */
static Table locked[TABLE_COUNT];

/* What the running call has read for all its elections */
CallMemory	le_remembered;

/* The number in the view protocol; 0: it is to be read */
static int	number = 0;

/* Counts all invalidations of tables, indexes and composite types */
static uint64 invalidations = 0;

/*
 * Counts the invalidations of type change, that is the changes of leadership:
 * a session's view of its leases is good while this stays the same (session.c)
 */
uint64		le_leadership_generation = 1;

/*
 * Counts the invalidations of type lease_grant, that is the changes of what
 * else an acquire() in vain has found (acquire.c).  Views of leases stay good.
 */
uint64		le_candidacy_generation = 1;

static void
on_invalidation(Datum arg, Oid relid)
{
	invalidations++;
	if (relid == le_store.protocol || !OidIsValid(relid))
		number = 0;
	if (relid == le_store.change || relid == le_store.protocol ||
		!OidIsValid(relid))
		le_leadership_generation++;
	if (relid == le_store.grant)
		le_candidacy_generation++;
	if (!OidIsValid(relid) || relid == le_store.protocol ||
		relid == le_store.history_acquired_at)
		is_valid = false;
	for (int i = 0; i < TABLE_COUNT; i++)
	{
		if (relid == le_store.table[i].rel || relid == le_store.table[i].pkey)
			is_valid = false;
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
 * Find the tables in our schema, and what else is found by name.  *misshapen
 * becomes the name of one that is missing, or is not as our script has made it
 * (shape.c).
 */
static bool
find_members(Store *store, Oid namespace, const char **misshapen)
{
	for (int i = 0; i < TABLE_COUNT; i++)
	{
		const char *name = le_shape_name(i);
		Table	   *table = &store->table[i];
		char		pkey[NAMEDATALEN];

		snprintf(pkey, sizeof(pkey), "%s_pkey", name);
		if (!find_one(name, namespace, &table->rel) ||
			!find_one(pkey, namespace, &table->pkey) ||
			!le_shape_fits(i, table->rel, table->pkey))
			*misshapen = name;
	}
	if (!find_one("history_acquired_at", namespace,
				  &store->history_acquired_at) ||
		!le_shape_fits_history_acquired_at(store->history_acquired_at,
										   store->table[TABLE_HISTORY].rel))
		*misshapen = le_shape_name(TABLE_HISTORY);
	if (!find_one("change", namespace, &store->change))
		*misshapen = "change";
	if (!find_one("lease_grant", namespace, &store->grant))
		*misshapen = "lease_grant";
	if (!find_one("protocol", namespace, &store->protocol))
		*misshapen = "protocol";
	return *misshapen == NULL;
}

/*
 * Is this schema our extension's?
 */
static bool
is_installed_in(Oid namespace)
{
	Oid			extension = getExtensionOfObject(NamespaceRelationId, namespace);

	return OidIsValid(extension) &&
		extension == get_extension_oid(LE_EXTENSION, true);
}

/*
 * le_store_find().  *misshapen becomes NULL, unless a member of the extension
 * is not as our script has made it: then this returns false as well.
 */
static bool
find_store(const char **misshapen)
{
	static bool listening = false;
	uint64		before;
	Oid			namespace;
	Store		found;

	*misshapen = NULL;
	if (is_valid)
		return true;
	if (!listening)
		CacheRegisterRelcacheCallback(on_invalidation, (Datum) 0);
	listening = true;
	before = invalidations;
	namespace = get_namespace_oid(LE_SCHEMA, true);
	if (!OidIsValid(namespace) || !is_installed_in(namespace))
		return false;
	if (!find_members(&found, namespace, misshapen))
	{
		/* It may have been dropped while we looked. */
		if (!is_installed_in(namespace))
			*misshapen = NULL;
		return false;
	}
	found.lease_oid = found.table[TABLE_LEASE].rel;

	if (le_store.protocol != found.protocol)
		number = 0;
	le_store = found;
	is_valid = invalidations == before;
	return true;
}

/*
 * Find the extension's tables.  False, without an error: it is not installed,
 * or not as our script has made it.
 */
bool
le_store_find(void)
{
	const char *misshapen;

	return find_store(&misshapen);
}

/*
 * Find the extension's tables, or raise an error.
 */
void
le_store_get(void)
{
	const char *misshapen;

	if (find_store(&misshapen))
		return;
	if (misshapen != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("\"%s.%s\" is not as the extension has made it",
						LE_SCHEMA, misshapen),
				 errdetail("It, a column, a type, a NOT NULL constraint or an index of it has been changed, renamed or removed."),
				 errhint("Undo that change, or drop and create the extension \"%s\" again when no lease can last any more: its terms begin anew.",
						 LE_EXTENSION)));
	ereport(ERROR,
			(errcode(ERRCODE_LE_NO_ELECTION),
			 errmsg("there are no elections in this database"),
			 errdetail("The extension \"%s\" is not installed in it.",
					   LE_EXTENSION),
			 errhint("Run CREATE EXTENSION %s.", LE_EXTENSION)));
}

/*
 * The same, for a call that begins: what an earlier one has remembered counts
 * for nothing.  One that is refused, since another call is writing, leaves that
 * one what it remembers: which group it has locked, say.
 */
void
le_store_begin(void)
{
	le_as_owner_check_none();
	le_store_get();
	le_store_forget();
}

void
le_store_forget(void)
{
	memset(&le_remembered, 0, sizeof(le_remembered));
}

/*
 * Is this one of the indexes that our script makes?
 */
bool
le_store_has_index(Oid index)
{
	for (int i = 0; i < TABLE_COUNT; i++)
	{
		if (index == le_store.table[i].pkey)
			return true;
	}
	return index == le_store.history_acquired_at;
}

/*
 * The caller has locked this table.  Has it locked the primary key, too, that
 * the table has now?  It may have been replaced since (REINDEX CONCURRENTLY).
 */
bool
le_store_locked_pkey(TableId table)
{
	return locked[table].pkey == le_store.table[table].pkey;
}

/*
 * Raise an error unless the tables are those that the call has locked, and are
 * still as our script has made them.  Code that others have attached to one of
 * them has run in this transaction: its own locks do not keep it from altering
 * the others.
 */
void
le_store_check_unaltered(void)
{
	le_store_get();
	for (int i = 0; i < TABLE_COUNT; i++)
	{
		if (le_store.table[i].rel != locked[i].rel)
			le_table_report_dropped();
	}
}

/*
 * The number in the view, which is locked: SELECT 1 AS number.  -1: somebody
 * has made another view of it.
 */
static int
read_number(Oid view)
{
	Relation	rel = table_open(view, NoLock);
	int			result = -1;

	if (rel->rd_rel->relkind == RELKIND_VIEW)
	{
		List	   *columns = get_view_query(rel)->targetList;
		Const	   *value = columns != NIL ?
			(Const *) linitial_node(TargetEntry, columns)->expr : NULL;

		if (value != NULL && IsA(value, Const) && value->consttype == INT4OID &&
			!value->constisnull && DatumGetInt32(value->constvalue) > 0)
			result = DatumGetInt32(value->constvalue);
	}
	table_close(rel, NoLock);
	return result;
}

/*
 * Do the objects in this database speak this library's protocol?  The view's
 * lock is held.
 */
static bool
speaks_ours(void)
{
	if (number == 0)
		number = read_number(le_store.protocol);
	return number == LE_PROTOCOL;
}

/*
 * Has this process found last that the objects speak another protocol?
 */
bool
le_store_is_other_version(void)
{
	return number != 0 && number != LE_PROTOCOL;
}

/*
 * The same at the end of a transaction, before PostgreSQL undoes what it has
 * read of its own changes: an update that this transaction has made, and that
 * is rolled back, counts for nothing.  Only that holds the lock of the view in
 * this mode.
 */
bool
le_store_stays_other_version(bool committed)
{
	LOCKTAG		tag;

	if (!le_store_is_other_version())
		return false;
	if (committed)
		return true;
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, le_store.protocol);
	return !LeLockHeldByMe(&tag, AccessExclusiveLock);
}

/*
 * Raise an error, if they do.
 */
void
le_store_check_protocol(void)
{
	if (!le_store_is_other_version())
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("extension \"%s\" and its library are of different versions",
					LE_EXTENSION),
			 errdetail("The extension in this database speaks protocol %d, the library that this session has loaded protocol %d.",
					   number, LE_PROTOCOL),
			 number < LE_PROTOCOL ?
			 errhint("Run ALTER EXTENSION %s UPDATE in this database, on the primary server.",
					 LE_EXTENSION) :
			 le_is_preloaded ?
			 errhint("Restart the server: it has preloaded the library, with shared_preload_libraries, before the new version was installed.") :
			 errhint("Reconnect: this session has loaded the library of an older version. If that does not help, install the new version on this server.")));
}

/*
 * Lock the view protocol, these tables in that mode, and their primary keys
 * for reading.
 */
static bool
lock_tables(int tables, LOCKMODE mode, bool wait)
{
	Oid			lease_oid = le_store.lease_oid;
	Oid			protocol = le_store.protocol;
	Oid			rel[TABLE_COUNT];

	Assert(OidIsValid(protocol));
	le_as_owner_check_none();
	if (!le_table_lock_relation(protocol, AccessShareLock, wait))
		return false;
	for (int i = 0; i < TABLE_COUNT; i++)
	{
		Oid			pkey = le_store.table[i].pkey;

		rel[i] = le_store.table[i].rel;
		if ((tables & (1 << i)) == 0)
			continue;
		if (!le_table_lock_relation(rel[i], mode, wait) ||
			!le_table_lock_relation(pkey, AccessShareLock, wait))
			return false;
		locked[i].pkey = pkey;
	}

	/*
	 * Before we had the locks, the extension may have been dropped, an index
	 * replaced, or another table been given the name of one.
	 */
	le_store_get();
	if (le_store.lease_oid != lease_oid || le_store.protocol != protocol)
		le_table_report_dropped();
	if (!speaks_ours())
		le_store_check_protocol();
	for (int i = 0; i < TABLE_COUNT; i++)
	{
		locked[i].rel = le_store.table[i].rel;
		if ((tables & (1 << i)) != 0 && locked[i].rel != rel[i])
			le_table_report_dropped();
	}
	return true;
}

/*
 * Lock these tables (0: only the view protocol), which the call has found,
 * until the transaction ends.  From the first wait on, and in a call that
 * writes, the server's own waits end when the call has waited for as long as it
 * may.  55000: the objects speak another protocol.
 */
void
le_store_lock(int tables, LOCKMODE mode)
{
	if (mode > AccessShareLock)
	{
		le_xact_check_not_ending();
		le_wait_for_room();

		/*
		 * A transaction that begins an epoch does nothing else.  If it also
		 * granted a lease in that epoch, a standby that is promoted could
		 * have received neither, and issue the same term.
		 */
		if (le_lock_is_mine(LOCK_EPOCH))
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("this transaction has begun an epoch")));

		/* The first write of a session opens all indexes of the table. */
		le_wait_as_lock_timeout();
	}
	(void) lock_tables(tables, mode, true);
}

/*
 * The same without a wait.  False: the lock of one table or index was not to
 * be had at once.  Those before it stay locked.
 */
bool
le_store_try_lock(int tables, LOCKMODE mode)
{
	return lock_tables(tables, mode, false);
}

/*
 * Find the extension's tables for a short look, without an error.  They speak
 * this library's protocol until the caller unlocks the view that *share
 * becomes, in ACCESS SHARE mode.  False: the lock was not to be had at once,
 * they speak another one, or they are not there.
 */
bool
le_store_try_share(Oid *share)
{
	if (!le_store_find())
		return false;
	*share = le_store.protocol;
	if (!LeTryLockRelation(*share, AccessShareLock))
		return false;
	if (le_store_find() && le_store.protocol == *share && speaks_ours())
		return true;
	UnlockRelationOid(*share, AccessShareLock);
	return false;
}
