/*-------------------------------------------------------------------------
 *
 * additions_columns.c
 *		What others have added to the columns of the extension's tables, and
 *		what they have set for a table itself.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "api/diagnose.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

/*
 * The default of a column of ours, which had none.  (That of a column that was
 * added is told of with that column.)
 */
void
le_addition_default(Search *s, const ObjectAddress *object, char *what)
{
	ObjectAddress of = GetAttrDefaultColumnAddress(object->objectId);
	AttrNumber	column = of.objectSubId;
	char	   *name = get_attname(s->rel, column, true);

	if (name != NULL && of.objectId == s->rel &&
		column <= le_shape_columns(s->id))
		le_addition_note(s, SEVERITY_NOTICE, what,
						 "The extension writes all columns itself, and does not use it.",
						 psprintf("ALTER TABLE %s ALTER COLUMN %s DROP DEFAULT;", s->table,
								  quote_identifier(name)));
}

/*
 * A column that others have added, or that admits no NULL any more.
 */
static void
look_at_column(Search *s, const FormData_pg_attribute *column)
{
	bool		added = column->attnum > le_shape_columns(s->id);
	const char *name = quote_identifier(NameStr(column->attname));
	char	   *what = psprintf("column %s of %s", name, s->table);
	char	   *drop = psprintf("ALTER TABLE %s DROP COLUMN %s;", s->table, name);

	if (column->attisdropped)
		return;
	if (column->attgenerated == '\0' && column->attnotnull &&
		!le_shape_fills(s->id, column->attnum))
		le_addition_note(s, SEVERITY_ERROR, psprintf("NOT NULL of %s", what),
						 "The extension writes NULL there: whatever has to be written to this table fails.",
						 column->attidentity != '\0' ? drop :
						 psprintf("ALTER TABLE %s ALTER COLUMN %s DROP NOT NULL;", s->table, name));
	else if (added && column->attgenerated == ATTRIBUTE_GENERATED_STORED)
		le_addition_note(s, SEVERITY_WARNING, what,
						 "Its expression runs when the extension writes, with the rights of the table's owner; a write for which it fails is not made.",
						 drop);
	else if (added)
		le_addition_note(s, SEVERITY_NOTICE, what,
						 column->attgenerated != '\0' ?
						 "It is computed when it is read, with the rights of the role that reads; a later version may need its place." :
						 "The extension leaves it NULL and uses no default; a later version may need its place.",
						 drop);
}

static void
read_columns(Search *s, int count)
{
	for (int i = 1; i <= count; i++)
	{
		HeapTuple	tuple = SearchSysCache2(ATTNUM, ObjectIdGetDatum(s->rel),
											Int16GetDatum(i));

		if (!HeapTupleIsValid(tuple))
			continue;
		look_at_column(s, (Form_pg_attribute) GETSTRUCT(tuple));
		ReleaseSysCache(tuple);
	}
}

/*
 * Tables that ours inherits from, or is a partition of.
 */
static void
read_parents(Search *s, bool is_partition)
{
	Relation	inherits = table_open(InheritsRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_inherits_inhrelid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(s->rel));
	scan = systable_beginscan(inherits, InheritsRelidSeqnoIndexId, true, NULL,
							  1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		ObjectAddress parent;
		char	   *name;

		ObjectAddressSet(parent, RelationRelationId,
						 ((Form_pg_inherits) GETSTRUCT(tuple))->inhparent);
		name = getObjectIdentity(&parent, true);
		if (name == NULL)
			continue;
		le_addition_note(s, SEVERITY_WARNING,
						 psprintf("table %s, which %s %s", name,
								  is_partition ? "has as a partition" : "is inherited by", s->table),
						 is_partition ? "Statements on it write the extension's rows, and the extension's writes do not keep the partition's bounds." :
						 "Statements on it read and write the extension's rows.",
						 is_partition ? psprintf("ALTER TABLE %s DETACH PARTITION %s;", name, s->table) :
						 psprintf("ALTER TABLE %s NO INHERIT %s;", s->table, name));
	}
	systable_endscan(scan);
	table_close(inherits, AccessShareLock);
}

/*
 * What is set for the table itself.
 */
void
le_additions_of_table(Search *s)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(s->rel));
	FormData_pg_class rel;
	bool		logged = s->id != TABLE_CANDIDATE && s->id != TABLE_ANNOUNCED;

	if (!HeapTupleIsValid(tuple))
		return;
	memcpy(&rel, GETSTRUCT(tuple), CLASS_TUPLE_SIZE);
	ReleaseSysCache(tuple);
	if (rel.relrowsecurity || rel.relforcerowsecurity)
		le_addition_note(s, SEVERITY_WARNING, psprintf("row security of %s", s->table),
						 "The extension reads and writes all rows; but roles that observe do not see them, and pg_dump as such a role fails.",
						 psprintf("ALTER TABLE %s DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;", s->table));
	if (logged != (rel.relpersistence == RELPERSISTENCE_PERMANENT))
		le_addition_note(s, logged ? SEVERITY_ERROR : SEVERITY_WARNING,
						 psprintf("%s of %s", logged ? "UNLOGGED" : "LOGGED", s->table),
						 logged ? "A crash or a failover forgets leases and terms: two may lead at a time." :
						 "Each heartbeat of a candidate is logged, and waits for standbys.",
						 psprintf("ALTER TABLE %s SET %s;", s->table, logged ? "LOGGED" : "UNLOGGED"));
	read_columns(s, rel.relnatts);
	read_parents(s, rel.relispartition);
}
