/*-------------------------------------------------------------------------
 *
 * additions.c
 *		What others have added to the extension's tables and schema, what it
 *		does there, and how to be rid of it.
 *
 * Each object that is attached to a table depends on it, by pg_depend.  So one
 * scan of that finds all of them, also kinds that a later PostgreSQL brings;
 * only the words for each kind are a table here.  The rest are columns, and
 * settings of the table itself.
 *
 * Nothing of it can make the extension's writes run with more rights than the
 * tables' owner has (row.c).  But it may refuse them, or hide rows.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "api/diagnose.h"
#include "catalog/namespace.h"
#include "catalog/dependency.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_index.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_policy.h"
#include "catalog/pg_publication_namespace.h"
#include "catalog/pg_publication_rel.h"
#include "catalog/pg_rewrite.h"
#include "catalog/pg_statistic_ext.h"
#include "catalog/pg_trigger.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#define KEPT	"kept_"			/* begins the names of our CHECKs (row.c) */

/* Kinds of which there is not more to say */
typedef struct Kind
{
	Oid			classid;
	Severity	severity;
	const char *effect;
} Kind;

static const Kind kinds[] = {
	{TriggerRelationId, SEVERITY_WARNING,
	"It does not fire when the extension writes, only for statements of others."},
	{RewriteRelationId, SEVERITY_WARNING,
	"It does not apply when the extension writes, only to statements of others."},
	{PolicyRelationId, SEVERITY_WARNING,
	"The extension reads and writes all rows; roles that observe see what it lets through, while row security is enabled."},
	{StatisticExtRelationId, SEVERITY_NOTICE,
	"Nothing of the extension uses it; ANALYZE computes it, with the rights of the table's owner."},
	{InvalidOid, SEVERITY_WARNING, "The extension does not know this kind of addition."},
};

static const Member *
find_member(const Search *s, Oid classid, Oid objid)
{
	foreach_ptr(const Member, member, s->members)
	{
		if (member->object.classId == classid &&
			member->object.objectId == objid)
			return member;
	}
	return NULL;
}

/*
 * An index that is no part of a constraint.
 */
static void
look_at_index(Search *s, const ObjectAddress *object, char *what)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID,
										ObjectIdGetDatum(object->objectId));
	bool		evaluates;
	bool		is_unique;

	if (!HeapTupleIsValid(tuple))
		return;
	evaluates = !heap_attisnull(tuple, Anum_pg_index_indexprs, NULL) ||
		!heap_attisnull(tuple, Anum_pg_index_indpred, NULL);
	is_unique = ((Form_pg_index) GETSTRUCT(tuple))->indisunique;
	ReleaseSysCache(tuple);
	le_addition_note(s, evaluates || is_unique ? SEVERITY_WARNING :
					 SEVERITY_NOTICE, what,
					 evaluates ? "Its expressions run when the extension writes, with the rights of the table's owner; a write for which they fail is not made." :
					 is_unique ? "A write of the extension that it refuses is not made." :
					 "It makes the extension's writes slower.",
					 le_addition_drop(object));
}

/*
 * A relation that depends on the table: an index, a child, a sequence.
 */
static void
look_at_relation(Search *s, const ObjectAddress *object, char *what,
				 bool attached)
{
	char		kind = get_rel_relkind(object->objectId);

	if (object->objectId == le_store.history_acquired_at ||
		OidIsValid(get_index_constraint(object->objectId)))
		return;
	if (kind == RELKIND_INDEX)
		look_at_index(s, object, what);
	else if (!attached && (kind == RELKIND_RELATION ||
						   kind == RELKIND_FOREIGN_TABLE))
		le_addition_note(s, SEVERITY_WARNING,
						 psprintf("%s, which inherits %s", what, s->table),
						 "Views and other statements show its rows as well, and the extension does not know them.",
						 psprintf("ALTER TABLE %s NO INHERIT %s;",
								  getObjectIdentity(object, true), s->table));
	else if (attached)
		le_addition_note(s, SEVERITY_NOTICE, psprintf("%s, which depends on %s", what, s->table),
						 "Nothing of the extension uses it.", le_addition_drop(object));
}

/*
 * The names of schema and table of a constraint, rule, policy or trigger, and
 * its own.  NIL: it has just been dropped.
 */
static List *
names_of(const ObjectAddress *object)
{
	List	   *names = NIL;
	List	   *args = NIL;

	(void) getObjectIdentityParts(object, &names, &args, true);
	return list_length(names) == 3 ? names : NIL;
}

static void
say_constraint(Search *s, const ObjectAddress *object, char *what,
			   const FormData_pg_constraint *c)
{
	List	   *names = names_of(object);
	const char *effect = "The extension's writes do not keep it: it is not enforced.";

	if (names == NIL)
		return;
	if (c->contype == CONSTRAINT_CHECK)
		effect = "Its expression runs when the extension writes, with the rights of the table's owner; a write for which it fails is not made.";
	else if ((c->contype == CONSTRAINT_UNIQUE ||
			  c->contype == CONSTRAINT_EXCLUSION) && !c->condeferrable)
		effect = "A write of the extension that it refuses is not made.";
	le_addition_note(s, SEVERITY_WARNING, what, effect,
					 psprintf("ALTER TABLE %s DROP CONSTRAINT %s;",
							  quote_qualified_identifier(linitial(names),
														 lsecond(names)),
							  quote_identifier(lthird(names))));
}

/*
 * A constraint of the table, or a foreign key that refers to it.  Those of NOT
 * NULL (from 18 on) are told of with their columns, and those of constraint
 * triggers with these.
 */
static void
look_at_constraint(Search *s, const ObjectAddress *object, char *what)
{
	HeapTuple	tuple = SearchSysCache1(CONSTROID,
										ObjectIdGetDatum(object->objectId));
	Form_pg_constraint c;

	if (!HeapTupleIsValid(tuple))
		return;
	c = (Form_pg_constraint) GETSTRUCT(tuple);
	if ((c->conrelid == s->rel || c->confrelid == s->rel) &&
		c->contype != 'n' && c->contype != CONSTRAINT_TRIGGER &&
		!(c->contype == CONSTRAINT_PRIMARY &&
		  c->conindid == le_store.table[s->id].pkey) &&
		!(c->contype == CONSTRAINT_CHECK &&
		  strncmp(NameStr(c->conname), KEPT, strlen(KEPT)) == 0))
		say_constraint(s, object, what, c);
	ReleaseSysCache(tuple);
}

/*
 * The table, or the schema, is published.
 */
static void
look_at_publication(Search *s, const ObjectAddress *object, char *what)
{
	List	   *names = NIL;
	List	   *publication = NIL;

	(void) getObjectIdentityParts(object, &names, &publication, true);
	if (publication == NIL)
		return;
	le_addition_note(s, SEVERITY_NOTICE, what,
					 "Subscribers get rows that mean nothing to them.",
					 psprintf("ALTER PUBLICATION %s DROP %s;",
							  quote_identifier(linitial(publication)),
							  object->classId == PublicationRelRelationId ?
							  psprintf("TABLE %s", s->table) :
							  "TABLES IN SCHEMA " LE_SCHEMA));
}

/*
 * Does this rule, policy or trigger belong to another relation, which only
 * refers to ours?
 */
static bool
belongs_elsewhere(const Search *s, const ObjectAddress *object)
{
	List	   *names;

	if (object->classId != RewriteRelationId &&
		object->classId != PolicyRelationId &&
		object->classId != TriggerRelationId)
		return false;
	names = names_of(object);
	return names == NIL || strcmp(linitial(names), LE_SCHEMA) != 0 ||
		strcmp(lsecond(names), le_shape_name(s->id)) != 0;
}

/*
 * Something depends on the table, or on a column of it.  attached: it goes with
 * the table (or column).
 */
static void
look_at_dependent(Search *s, const ObjectAddress *object, bool attached)
{
	char	   *what;

	if (list_member_oid(s->seen, object->objectId) ||
		belongs_elsewhere(s, object) ||
		(what = le_addition_describe(object)) == NULL)
		return;
	s->seen = lappend_oid(s->seen, object->objectId);
	if (object->classId == ConstraintRelationId)
		look_at_constraint(s, object, what);
	else if (object->classId == RelationRelationId)
		look_at_relation(s, object, what, attached);
	else if (object->classId == AttrDefaultRelationId)
		le_addition_default(s, object, what);
	else if (object->classId == PublicationRelRelationId)
		look_at_publication(s, object, what);
	else if (attached)
	{
		const Kind *kind = kinds;

		while (OidIsValid(kind->classid) && kind->classid != object->classId)
			kind++;
		le_addition_note(s, kind->severity, what, kind->effect,
						 OidIsValid(kind->classid) ? le_addition_drop(object) :
						 "Drop it, unless you know what it does when the extension writes.");
	}
}

/*
 * Something depends on the schema: our objects, and what others have made in
 * it, unless it was found at a table.
 */
static void
look_at_schema(Search *s, const ObjectAddress *object)
{
	char	   *what;

	if (find_member(s, object->classId, object->objectId) != NULL ||
		list_member_oid(s->seen, object->objectId) ||
		(what = le_addition_describe(object)) == NULL)
		return;
	if (object->classId == PublicationNamespaceRelationId)
		look_at_publication(s, object, what);
	else if (is_objectclass_supported(object->classId) &&
			 get_object_attnum_namespace(object->classId) != InvalidAttrNumber)
		le_addition_note(s, SEVERITY_WARNING,
						 psprintf("%s, in the extension's schema", what),
						 "Calls may find it in place of the extension's own.",
						 le_addition_drop(object));
}

/*
 * False: an operator has locked the catalog.
 */
static bool
read_dependents(Search *s, Oid classid, Oid objid)
{
	SysScanDesc scan = le_member_dependents_begin(classid, objid);
	HeapTuple	tuple;

	if (scan == NULL)
		return false;
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend dep = (Form_pg_depend) GETSTRUCT(tuple);
		ObjectAddress object;

		ObjectAddressSet(object, dep->classid, dep->objid);
		if (dep->deptype == DEPENDENCY_INTERNAL)
		{
			s->seen = lappend_oid(s->seen, dep->objid);
			continue;
		}
		if (classid == NamespaceRelationId)
			look_at_schema(s, &object);
		else
			look_at_dependent(s, &object, dep->deptype == DEPENDENCY_AUTO);
	}
	le_member_dependents_end(scan);
	return true;
}

/*
 * Objects that the extension's script did not make, but that were made while it
 * ran: they would be dropped with the extension, and missing in dumps.
 */
static void
read_strange_members(Search *s)
{
	Oid			namespace = get_namespace_oid(LE_SCHEMA, true);

	foreach_ptr(const Member, member, s->members)
	{
		bool		is_ours = member->namespace == namespace ||
			(member->object.classId == NamespaceRelationId &&
			 member->object.objectId == namespace);
		char	   *what;

		if (is_ours || (s->only_new && !member->is_new) ||
			(what = le_addition_describe(&member->object)) == NULL)
			continue;
		le_addition_note(s, SEVERITY_WARNING, psprintf("%s, as a part of the extension", what),
						 "Dumps do not contain it, and DROP EXTENSION drops it.",
						 psprintf("ALTER EXTENSION %s DROP %s;", LE_EXTENSION, what));
	}
}

/*
 * What others have added to the tables and the schema, a list of Addition;
 * only_new: to what this transaction has made.  False: an operator has locked
 * the catalog that tells, and the list may lack some.
 */
bool
le_additions_find(bool only_new, List **found)
{
	Search		search = {.only_new = only_new,.found = found};
	Search	   *s = &search;

	*found = NIL;
	if (!le_members_read(&s->members))
		return false;
	for (s->id = 0; s->id < TABLE_COUNT; s->id++)
	{
		const Member *member;

		s->rel = le_store.table[s->id].rel;
		member = find_member(s, RelationRelationId, s->rel);
		if (only_new && (member == NULL || !member->is_new))
			continue;
		s->table = psprintf("%s.%s", LE_SCHEMA, le_shape_name(s->id));
		le_additions_of_table(s);
		if (!read_dependents(s, RelationRelationId, s->rel))
			return false;
	}
	s->rel = InvalidOid;
	read_strange_members(s);
	return only_new || read_dependents(s, NamespaceRelationId,
									   get_namespace_oid(LE_SCHEMA, false));
}
