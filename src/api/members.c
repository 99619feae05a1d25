/*-------------------------------------------------------------------------
 *
 * members.c
 *		The extension's objects, and who owns them.
 *
 * CREATE EXTENSION is for superusers, who own what it makes.  REASSIGN OWNED
 * or ALTER ROLE ... NOSUPERUSER leaves it to a role that is none.  That role
 * may then replace the bodies of functions and views that superusers and
 * monitors call, and so act with their rights.  Nothing here keeps it from
 * that: a function that is replaced does not come here.  What is left says so.
 *
 * Invariant: nothing here waits for a lock that only an operator takes, or fails
 * because the server's lock table is full.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/xact.h"
#include "api/diagnose.h"
#include "catalog/dependency.h"
#include "catalog/pg_class.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

/* What the control file says of module_pathname */
#define LIBRARY		"$libdir/" LE_EXTENSION

/* Locks on catalogs that are needed at a time, and some to spare */
#define LOCKS			16

/* Changes that may be of owners, and how many there were at the last look */
static uint64 changes = 1;
static uint64 looked_at = 0;

/*
 * Begin to read what depends on an object.  NULL: an operator has locked the
 * catalog.
 */
SysScanDesc
le_member_dependents_begin(Oid classid, Oid objid)
{
	ScanKeyData key[2];

	if (!LeTryLockRelation(DependRelationId, AccessShareLock))
		return NULL;
	ScanKeyInit(&key[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(classid));
	ScanKeyInit(&key[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(objid));
	return systable_beginscan(table_open(DependRelationId, NoLock),
							  DependReferenceIndexId, true, NULL, 2, key);
}

void
le_member_dependents_end(SysScanDesc scan)
{
	Relation	depend = scan->heap_rel;

	systable_endscan(scan);
	table_close(depend, NoLock);
}

/*
 * What a catalog tells of an object in a column that many catalogs have.
 * InvalidOid: this one has not, or there is no such object.
 */
static Oid
read_property(const ObjectAddress *object, AttrNumber column)
{
	int			cache = get_object_catcache_oid(object->classId);
	Oid			result;
	HeapTuple	tuple;
	bool		is_null;

	if (column == InvalidAttrNumber || cache < 0)
		return InvalidOid;
	tuple = SearchSysCache1(cache, ObjectIdGetDatum(object->objectId));
	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	result = DatumGetObjectId(SysCacheGetAttr(cache, tuple, column, &is_null));
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Types of rows and of arrays come and go with their tables and types.  From
 * 17 on they are members, too.
 */
static bool
is_part(const ObjectAddress *object)
{
	Oid			rel;

	if (object->classId != TypeRelationId)
		return false;
	rel = get_typ_typrelid(object->objectId);
	return OidIsValid(get_element_type(object->objectId)) ||
		(OidIsValid(rel) && get_rel_relkind(rel) != RELKIND_COMPOSITE_TYPE);
}

static Member *
make_member(Oid classid, Oid objid, bool is_new)
{
	Member	   *member = palloc(sizeof(Member));

	ObjectAddressSet(member->object, classid, objid);
	member->owner = member->namespace = InvalidOid;
	member->is_new = is_new;
	if (is_objectclass_supported(classid))
	{
		member->owner = read_property(&member->object,
									  get_object_attnum_owner(classid));
		member->namespace = read_property(&member->object,
										  get_object_attnum_namespace(classid));
	}
	return member;
}

/*
 * The extension's objects.  (Its own owner cannot change; that role may drop
 * it.)  False: an operator has locked the catalog that tells which they are, or
 * the lock table is full.
 */
bool
le_members_read(List **members)
{
	Oid			extension;
	SysScanDesc scan;
	HeapTuple	tuple;

	*members = NIL;
	if (!le_room_for_locks(LOCKS))
		return false;
	extension = get_extension_oid(LE_EXTENSION, true);
	if (!OidIsValid(extension))
		return true;
	scan = le_member_dependents_begin(ExtensionRelationId, extension);
	if (scan == NULL)
		return false;
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend dep = (Form_pg_depend) GETSTRUCT(tuple);
		TransactionId made_by = HeapTupleHeaderGetXmin(tuple->t_data);
		Member	   *member;

		if (dep->deptype != DEPENDENCY_EXTENSION)
			continue;
		member = make_member(dep->classid, dep->objid,
							 TransactionIdIsCurrentTransactionId(made_by));
		if (!is_part(&member->object))
			*members = lappend(*members, member);
	}
	le_member_dependents_end(scan);
	return true;
}

/*
 * Is the owner of this object, which has one, no superuser?
 */
bool
le_member_is_astray(const Member *member)
{
	return OidIsValid(member->owner) && !superuser_arg(member->owner);
}

/*
 * Is this function the library's, as the extension has made it?
 */
static bool
is_of_library(HeapTuple tuple)
{
	bool		is_null;
	Datum		library = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_probin,
										  &is_null);

	return ((Form_pg_proc) GETSTRUCT(tuple))->prolang == ClanguageId &&
		!is_null && strcmp(TextDatumGetCString(library), LIBRARY) == 0;
}

/*
 * Has a role replaced the body of this routine (*replaced), or given it the
 * rights of another role, or settings?
 */
bool
le_member_is_altered(const Member *member, bool *replaced)
{
	HeapTuple	tuple;
	bool		has_no_settings;
	bool		altered;

	*replaced = false;
	if (member->object.classId != ProcedureRelationId)
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(member->object.objectId));
	if (!HeapTupleIsValid(tuple))
		return false;
	(void) SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_proconfig,
						   &has_no_settings);
	*replaced = !is_of_library(tuple);
	altered = *replaced || !has_no_settings ||
		((Form_pg_proc) GETSTRUCT(tuple))->prosecdef;
	ReleaseSysCache(tuple);
	return altered;
}

static void
on_change(Datum arg, int cache, uint32 hash)
{
	changes++;
}

/*
 * Look again when a role, a function or a schema has changed: REASSIGN OWNED
 * changes all three.  (Of relations and types, each temporary table is one.)
 */
static void
start_listening(void)
{
	static bool is_listening = false;

	if (is_listening)
		return;
	CacheRegisterSyscacheCallback(AUTHOID, on_change, (Datum) 0);
	CacheRegisterSyscacheCallback(PROCOID, on_change, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, on_change, (Datum) 0);
	is_listening = true;
}

/*
 * Warn a superuser, once in a session, that others may replace what it calls.
 * To call this again costs nothing until a role, function or schema changes.
 */
void
le_members_warn(void)
{
	static bool has_warned = false;
	uint64		now = changes;
	Oid			owner = InvalidOid;
	List	   *members;

	if (looked_at == changes || has_warned || !superuser())
		return;
	start_listening();
	if (!le_members_read(&members))
		return;
	foreach_ptr(const Member, member, members)
	{
		if (le_member_is_astray(member))
			owner = member->owner;
	}
	list_free_deep(members);
	looked_at = now;
	if (!OidIsValid(owner))
		return;
	has_warned = true;
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("role \"%s\", which is no superuser, owns objects of extension \"%s\"",
					GetUserNameFromId(owner, true), LE_EXTENSION),
			 errdetail("It may replace functions and views that you call, and act with your rights."),
			 errhint("leader_election.diagnose() names the objects. See \"Other owners\" in SECURITY.md.")));
}
