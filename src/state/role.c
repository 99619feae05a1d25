/*-------------------------------------------------------------------------
 *
 * role.c
 *		Roles: when they change.
 *
 * Who is a member of which role, which roles there are, and who is a
 * superuser, is in PostgreSQL's own catalogs.  A change there wakes nobody, and
 * a process that sleeps is not told: it finds the message that tells of it
 * when it begins its next transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "state/state.h"
#include "utils/inval.h"
#include "utils/syscache.h"

/* Counts the changes that this process has been told of */
static uint64 changes = 0;

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
	}
	listening = true;
	return changes;
}
