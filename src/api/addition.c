/*-------------------------------------------------------------------------
 *
 * addition.c
 *		An object that others have added: its name, and how to drop it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/diagnose.h"
#include "catalog/pg_statistic_ext.h"
#include "utils/formatting.h"

/*
 * Note what was found.  All that is given here lasts as long as the call.  No
 * remedy: it has just been dropped.
 */
void
le_addition_note(Search *s, Severity severity, char *what, const char *effect,
				 char *remedy)
{
	Addition   *a;

	if (remedy == NULL)
		return;
	a = palloc(sizeof(Addition));
	a->severity = severity;
	a->what = what;
	a->effect = effect;
	a->remedy = remedy;
	*s->found = lappend(*s->found, a);
}

/*
 * "trigger audit on leader_election.lease"; NULL: it has just been dropped.
 */
char *
le_addition_describe(const ObjectAddress *object)
{
	char	   *identity = getObjectIdentity(object, true);
	char	   *type = getObjectTypeDescription(object, true);

	return identity == NULL || type == NULL ? NULL :
		psprintf("%s %s", type, identity);
}

/*
 * The beginning of a command, as SQL, that alters or drops an object; NULL: it
 * has just been dropped.
 */
char *
le_addition_command(const char *verb, const ObjectAddress *object)
{
	char	   *type = getObjectTypeDescription(object, true);
	char	   *identity = getObjectIdentity(object, true);

	if (type == NULL || identity == NULL)
		return NULL;
	if (object->classId == StatisticExtRelationId)
		type = "statistics";
	return psprintf("%s %s %s", verb, asc_toupper(type, strlen(type)), identity);
}

char *
le_addition_drop(const ObjectAddress *object)
{
	char	   *command = le_addition_command("DROP", object);

	return command == NULL ? NULL : psprintf("%s;", command);
}
