/*-------------------------------------------------------------------------
 *
 * diagnose_members.c
 *		What diagnose() says of the extension's own objects: who owns them,
 *		functions that are not as the extension has made them, and what others
 *		have added.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/diagnose.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/builtins.h"

static void
check_routine(Diagnosis *d, const Member *member)
{
	char	   *what = le_addition_describe(&member->object);
	char	   *alter = le_addition_command("ALTER", &member->object);
	bool		replaced;

	if (what == NULL || alter == NULL ||
		!le_member_is_altered(member, &replaced))
		return;
	if (replaced)
		le_diagnose_say(d, SEVERITY_ERROR,
						psprintf("The %s is not the extension's any more: its body was replaced.",
								 what),
						"See \"Other owners\" in SECURITY.md.");
	else
		le_diagnose_say(d, SEVERITY_WARNING,
						psprintf("The %s was given SET or SECURITY DEFINER: a function acts for another role, or with other settings, and a procedure fails.",
								 what),
						psprintf("%s SECURITY INVOKER RESET ALL;", alter));
}

/*
 * What one role owns that is no superuser.
 */
static void
say_owner(Diagnosis *d, List *members, Oid owner)
{
	char	   *name = GetUserNameFromId(owner, true);
	const char *bootstrap = GetUserNameFromId(BOOTSTRAP_SUPERUSERID, true);
	StringInfoData commands;
	int			count = 0;

	if (name == NULL || bootstrap == NULL)
		return;
	initStringInfo(&commands);
	foreach_ptr(const Member, member, members)
	{
		char	   *alter = le_addition_command("ALTER", &member->object);

		if (member->owner != owner)
			continue;
		count++;
		if (alter != NULL)
			appendStringInfo(&commands, " %s OWNER TO %s;", alter,
							 quote_identifier(bootstrap));
	}
	le_diagnose_say(d, SEVERITY_WARNING,
					psprintf("Role %s, which is no superuser, owns objects of the extension (%d): it may replace functions and views that superusers and monitors call, and act with their rights.",
							 le_quote(name), count),
					psprintf("See \"Other owners\" in SECURITY.md. Then, as a superuser:%s",
							 commands.data));
}

/*
 * The extension's objects are not as it has made them.
 */
void
le_diagnose_members(Diagnosis *d)
{
	List	   *members;
	List	   *owners = NIL;

	if (!le_members_read(&members))
		return;					/* le_diagnose_additions() says so */
	foreach_ptr(const Member, member, members)
	{
		check_routine(d, member);
		if (le_member_is_astray(member))
			owners = list_append_unique_oid(owners, member->owner);
	}
	foreach_oid(owner, owners)
		say_owner(d, members, owner);
}

/*
 * A row for each.
 */
void
le_diagnose_additions(Diagnosis *d)
{
	List	   *found;

	if (!le_additions_find(false, &found))
		le_diagnose_say(d, SEVERITY_NOTICE,
						"These rows do not tell what others have added to the extension's tables, nor who owns its objects: the catalog pg_depend is locked, or the server's lock table is full.",
						"Ask again when that is over.");
	foreach_ptr(const Addition, a, found)
		le_diagnose_say(d, a->severity,
						psprintf("Not the extension's: %s. %s", a->what, a->effect),
						a->remedy);
}
