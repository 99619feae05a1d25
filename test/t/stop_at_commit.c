/*-------------------------------------------------------------------------
 *
 * stop_at_commit.c
 *		For the tests: the backend stops itself (SIGSTOP) when its transaction
 *		is about to commit, after the callbacks of libraries that were loaded
 *		later have been called.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(stop_at_commit);

extern PGDLLEXPORT void _PG_init(void);

static bool armed = false;

static void
on_xact_event(XactEvent event, void *arg)
{
	bool		stop = armed && event == XACT_EVENT_PRE_COMMIT;

	armed = false;
	if (stop)
		kill(MyProcPid, SIGSTOP);
}

/* The running transaction is the one. */
Datum
stop_at_commit(PG_FUNCTION_ARGS)
{
	armed = true;
	PG_RETURN_VOID();
}

void
_PG_init(void)
{
	RegisterXactCallback(on_xact_event, NULL);
}
