/*-------------------------------------------------------------------------
 *
 * wait_at_commit.c
 *		For the tests: a library that does at the end of a transaction what
 *		others do there, and takes as long as a file exists.  It shows as a
 *		wait for an extension.
 *
 * Callbacks are called in the order in which libraries were loaded, the last
 * one first.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(wait_at_commit);

extern PGDLLEXPORT void _PG_init(void);

static char how[16] = "";
static char file[MAXPGPATH];	/* or a statement */

static void
wait_for_file(bool can_be_interrupted)
{
	while (access(file, F_OK) == 0)
	{
		/* Again and again: a check of the client's connection ends it. */
		pgstat_report_wait_start(PG_WAIT_EXTENSION);
		pg_usleep(5000);
		if (can_be_interrupted)
			CHECK_FOR_INTERRUPTS();
	}
	pgstat_report_wait_end();
}

static void
run_statement(void)
{
	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_execute(file, false, 0);
	PopActiveSnapshot();
	SPI_finish();
}

static void
on_xact_event(XactEvent event, void *arg)
{
	bool		fails = strcmp(how, "fail") == 0;

	if ((event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE) &&
		strcmp(how, "run") == 0)
		run_statement();
	if (event == XACT_EVENT_PRE_COMMIT)
	{
		if (fails)
			ereport(ERROR, (errmsg("as the test wants it")));
		if (strcmp(how, "wait") == 0)
			wait_for_file(true);
		if (strcmp(how, "deaf") == 0)
			wait_for_file(false);
	}
	else if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT ||
			 event == XACT_EVENT_PREPARE)
	{
		if (event == XACT_EVENT_ABORT && (fails || strcmp(how, "abort") == 0))
			wait_for_file(false);
		how[0] = '\0';
	}
}

/*
 * The running transaction waits before its commit, and can be interrupted
 * ("wait") or not ("deaf"); or fails before its commit, if it gets there, and
 * waits when it is aborted ("fail"); or only the latter ("abort").  Or it runs a
 * statement before its commit, or before it is prepared ("run").
 */
Datum
wait_at_commit(PG_FUNCTION_ARGS)
{
	strlcpy(how, text_to_cstring(PG_GETARG_TEXT_PP(0)), sizeof(how));
	strlcpy(file, text_to_cstring(PG_GETARG_TEXT_PP(1)), sizeof(file));
	PG_RETURN_VOID();
}

void
_PG_init(void)
{
	RegisterXactCallback(on_xact_event, NULL);
}
