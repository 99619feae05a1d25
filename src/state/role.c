/*-------------------------------------------------------------------------
 *
 * role.c
 *		Roles: which one a row means, and when roles change.
 *
 * A row that is about a role has its name, for people, and its identity: the
 * OID, where that OID means that role (the server's system identifier and the
 * table lease), and the name that was written beside it.
 *
 * Invariants:
 *
 * - Where a row was written, its OID alone counts.  The role keeps what it has
 *	 when it is renamed; another role that gets its name gets nothing else, not
 *	 even once the first one was dropped.
 *
 * - Elsewhere, that OID may be another role's, and does not count: a dump that
 *	 is restored makes a new table lease, also on the same server.  There the
 *	 name counts.  So it does where a superuser has written another name into
 *	 the row.
 *
 * Who is a member of which role, which roles there are, and who is a
 * superuser, is in PostgreSQL's own catalogs.  A change there wakes nobody, and
 * a process that sleeps is not told: it finds the message that tells of it
 * when it begins its next transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "state/state.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/syscache.h"

/* Which row means none */
const Role	le_role_none = {"", InvalidOid};

/* Counts the changes that this process has been told of */
static uint64 changes = 0;

Role
le_role_of(Oid oid)
{
	return (Role) {GetUserNameFromId(oid, false), oid};
}

/*
 * The role that the caller acts as.
 */
Role
le_role_current(void)
{
	return le_role_of(GetUserId());
}

/*
 * Where an OID means what it does here: "/system identifier/table lease/".
 * Our tables have been found, and are locked.
 */
static const char *
here(void)
{
	static char place[48];
	static Oid	lease_oid = InvalidOid;

	if (lease_oid != le_store.lease_oid)
	{
		lease_oid = le_store.lease_oid;
		snprintf(place, sizeof(place), "/" UINT64_FORMAT "/%u/",
				 GetSystemIdentifier(), lease_oid);
	}
	return place;
}

/*
 * The OID in the identity that is beside this name; InvalidOid: it means
 * nothing here, or not for that name.
 */
static Oid
oid_of(const char *id, const char *name)
{
	const char *place = here();
	char	   *end;
	Oid			oid = strtoul(id, &end, 10);

	return strncmp(end, place, strlen(place)) == 0 &&
		strcmp(end + strlen(place), name) == 0 ? oid : InvalidOid;
}

/*
 * The role that a row means: the columns of its name and of its identity.  The
 * name is "", which is no role's name, if the row means none.
 */
Role
le_role_get(const Row *row, int name, int id)
{
	Role		role = {"", InvalidOid};

	if (row->nulls[name])
		return role;
	role.name = LE_GET_NAME(row->values[name]);
	if (!row->nulls[id])
		role.oid = oid_of(TextDatumGetCString(row->values[id]), role.name);
	if (!OidIsValid(role.oid))
		role.oid = get_role_oid(role.name, true);
	return role;
}

/*
 * Have a row mean this role ("": none), by the name that it has now.
 */
void
le_role_set(Row *row, int name, int id, const Role *role)
{
	bool		is_one = role->name[0] != '\0';
	const char *present = is_one ? le_role_name(role) : NULL;

	LE_SET_IF(row, name, is_one, LE_NAME(present));
	LE_SET_IF(row, id, is_one && OidIsValid(role->oid),
			  LE_TEXT(psprintf("%u%s%s", role->oid, here(), present)));
}

/*
 * Is there such a role?  It may have been dropped or, after a restore, never
 * have been there.
 */
bool
le_role_exists(const Role *role)
{
	return OidIsValid(role->oid) &&
		SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role->oid));
}

/*
 * What it is called now or, if there is no such role, was called when the row
 * was written.
 */
const char *
le_role_name(const Role *role)
{
	const char *name = OidIsValid(role->oid) ?
		GetUserNameFromId(role->oid, true) : NULL;

	return name != NULL ? name : role->name;
}

/*
 * A role that is not there, as a message goes on after its name.
 */
const char *
le_role_missing(const Role *role)
{
	return OidIsValid(role->oid) ? "was dropped" : "does not exist here";
}

bool
le_role_is_same(const Role *a, const Role *b)
{
	if (OidIsValid(a->oid) || OidIsValid(b->oid))
		return a->oid == b->oid;
	return strcmp(a->name, b->name) == 0;
}

/*
 * Does the caller act as this role?
 */
bool
le_role_is_caller(const Role *role)
{
	return role->oid == GetUserId();
}

/*
 * May the caller do what an owner may?
 */
bool
le_role_owns(const Role *owner)
{
	return superuser() ||
		(le_role_exists(owner) && has_privs_of_role(GetUserId(), owner->oid));
}

/*
 * Is that role a member of this group?
 */
bool
le_role_is_member(const Role *role, const Role *group)
{
	return le_role_exists(role) && le_role_exists(group) &&
		is_member_of_role(role->oid, group->oid);
}

/*
 * The role as (part of) the key of a hash table.
 */
RoleKey
le_role_key(const Role *role)
{
	RoleKey		key;

	memset(&key, 0, sizeof(key));
	key.oid = role->oid;
	if (!OidIsValid(role->oid))
		namestrcpy(&key.name, role->name);
	return key;
}

static void
on_change(Datum arg, int cacheid, uint32 hashvalue)
{
	changes++;
}

/*
 * How often have roles, or memberships in them, changed?  What is read after
 * this call is not older than the answer: a later change counts.  It counts
 * from the first call on.
 */
uint64
le_role_changes(void)
{
	static bool listening = false;

	if (!listening)
	{
		CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, on_change, (Datum) 0);
		CacheRegisterSyscacheCallback(AUTHOID, on_change, (Datum) 0);

		/* The owner of the database is a member of pg_database_owner. */
		CacheRegisterSyscacheCallback(DATABASEOID, on_change, (Datum) 0);
	}
	listening = true;
	return changes;
}
