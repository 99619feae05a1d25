/*-------------------------------------------------------------------------
 *
 * background.c
 *		For the tests: run a statement in a background worker, as schedulers do,
 *		where a procedure may commit.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "tcop/pquery.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/portal.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(run_in_background);

extern PGDLLEXPORT void background_main(Datum database);

void
background_main(Datum database)
{
	SPIExecuteOptions options = {.allow_nonatomic = true};
	Portal		portal;

	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(database),
											  InvalidOid, 0);
	StartTransactionCommand();
	portal = CreatePortal("", true, true);
	portal->visible = false;
	portal->status = PORTAL_ACTIVE;
	portal->resowner = CurrentResourceOwner;
	ActivePortal = portal;
	PortalContext = portal->portalContext;
	EnsurePortalSnapshotExists();
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	SPI_execute_extended(MyBgworkerEntry->bgw_extra, &options);
	proc_exit(0);				/* the procedure has committed its work */
}

Datum
run_in_background(PG_FUNCTION_ARGS)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = ObjectIdGetDatum(MyDatabaseId);
	strcpy(worker.bgw_library_name, "background");
	strcpy(worker.bgw_function_name, "background_main");
	strcpy(worker.bgw_name, "background");
	strcpy(worker.bgw_type, "background");
	text_to_cstring_buffer(PG_GETARG_TEXT_PP(0), worker.bgw_extra,
						   sizeof(worker.bgw_extra));
	PG_RETURN_BOOL(RegisterDynamicBackgroundWorker(&worker, NULL));
}
