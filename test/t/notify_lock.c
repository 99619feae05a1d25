/*-------------------------------------------------------------------------
 *
 * notify_lock.c
 *		For the tests: hold, until the transaction ends, the lock that every
 *		commit with NOTIFY takes, in all databases.  A commit that waits for
 *		a standby holds it as well, but not for as long as a test wants.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_database.h"
#include "fmgr.h"
#include "storage/lmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(hold_notify_lock);

Datum
hold_notify_lock(PG_FUNCTION_ARGS)
{
	LockSharedObject(DatabaseRelationId, InvalidOid, 0, AccessExclusiveLock);
	PG_RETURN_VOID();
}
