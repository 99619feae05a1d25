/*-------------------------------------------------------------------------
 *
 * script_api.c
 *		What the extension's scripts call at their end: is what they have made
 *		as they made it?
 *
 * Event triggers run after each command of a script, as superusers make them:
 * some enable row security on each new table, change its owner, or add columns
 * to it.  The script undoes what can be undone (its last part); then it calls
 * this, which refuses the rest, and what an event trigger has done once more.
 * What comes after the script, by a trigger for CREATE EXTENSION itself, is for
 * diagnose() to tell.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "api/diagnose.h"
#include "catalog/pg_event_trigger.h"
#include "commands/trigger.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

PG_FUNCTION_INFO_V1(le_check_script);

#define MOST_NAMED		10

/*
 * The event triggers of this database that fire for roles as usual, as commands
 * that disable them; "": there is none.
 */
static char *
disable_event_triggers(void)
{
	StringInfoData buf;
	Relation	catalog = table_open(EventTriggerRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(catalog, EventTriggerNameIndexId,
										  true, NULL, 0, NULL);
	HeapTuple	tuple;

	initStringInfo(&buf);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_event_trigger t = (Form_pg_event_trigger) GETSTRUCT(tuple);

		if (t->evtenabled != TRIGGER_DISABLED)
			appendStringInfo(&buf, " ALTER EVENT TRIGGER %s DISABLE;",
							 quote_identifier(NameStr(t->evtname)));
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return buf.data;
}

/*
 * 55000 if the columns of a table are not at their places: somebody has added
 * one before an update has added another.  The library reads them by number.
 */
static void
check_places(void)
{
	for (TableId id = 0; id < TABLE_COUNT; id++)
	{
		const char *column;

		if (le_shape_is_in_place(id, le_store.table[id].rel, &column))
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("column \"%s\" of table \"%s.%s\" is not at its place",
						column, LE_SCHEMA, get_rel_name(le_store.table[id].rel)),
				 errdetail("Other columns were added to that table before, and perhaps dropped."),
				 errhint("Create the extension anew, from a dump of this database.")));
	}
}

/*
 * What event triggers have done to objects that this transaction has made; "":
 * nothing.  The function that asks is dropped right after.
 */
static char *
describe_changes(Oid asks)
{
	StringInfoData buf;
	List	   *found;
	List	   *members;
	bool		replaced;

	if (!le_additions_find(true, &found) || !le_members_read(&members))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("catalog \"%s\" could not be read", "pg_depend")));
	initStringInfo(&buf);
	foreach_ptr(const Addition, a, found)
	{
		if (foreach_current_index(a) < MOST_NAMED)
			appendStringInfo(&buf, "%s%s", buf.len > 0 ? "; " : "", a->what);
	}
	foreach_ptr(const Member, member, members)
	{
		if (member->is_new && member->object.objectId != asks &&
			(le_member_is_astray(member) ||
			 le_member_is_altered(member, &replaced)))
		{
			appendStringInfo(&buf, "%sowner or settings of %s",
							 buf.len > 0 ? "; " : "",
							 getObjectIdentity(&member->object, false));
			break;
		}
	}
	return buf.data;
}

/*
 * 55000 if objects that this transaction has made are not as the script made
 * them.
 */
Datum
le_check_script(PG_FUNCTION_ARGS)
{
	char	   *changes;
	char	   *commands;

	le_store_get();
	check_places();
	changes = describe_changes(fcinfo->flinfo->fn_oid);
	if (changes[0] == '\0')
		PG_RETURN_VOID();
	commands = disable_event_triggers();
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("what the script of extension \"%s\" makes was changed meanwhile",
					LE_EXTENSION),
			 errdetail("Not the extension's: %s.", changes),
			 commands[0] == '\0' ? 0 :
			 errhint("An event trigger has done it. Disable it, try again, and enable it again:%s",
					 commands)));
}
