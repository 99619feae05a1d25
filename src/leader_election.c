/*-------------------------------------------------------------------------
 *
 * leader_election.c
 *		Settings and start-up.  See leader_election.h for the parts.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "session/session.h"
#include "utils/guc.h"
#include "worker/worker.h"

PG_MODULE_MAGIC;

int			le_lease_duration_ms = 15000;
int			le_history_retention_s = 30 * 86400;
int			le_worker_idle_timeout_ms = 2000;
bool		le_auto_create = true;
bool		le_dead_peer_detection = true;
bool		le_is_preloaded = false;

extern PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	DefineCustomIntVariable("leader_election.lease_duration",
							"Lease duration of elections that are created without one.",
							NULL, &le_lease_duration_ms,
							15000, LE_SHORTEST_LEASE_MS, LE_LONGEST_LEASE_MS,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("leader_election.history_retention",
							"How long the history of ended terms is kept.",
							NULL, &le_history_retention_s,
							30 * 86400, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("leader_election.worker_idle_timeout",
							"How long a worker stays without candidates or leaders.",
							NULL, &le_worker_idle_timeout_ms,
							2000, 0, 86400000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomBoolVariable("leader_election.auto_create",
							 "Creates an election on first use, with default settings.",
							 NULL, &le_auto_create, true,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("leader_election.dead_peer_detection",
							 "Tightens keepalive settings of sessions that stand for election.",
							 NULL, &le_dead_peer_detection, true,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	MarkGUCPrefixReserved("leader_election");

	le_callback_init();

	/*
	 * While pg_upgrade works, no worker may connect to a database or change
	 * it.
	 */
	le_is_preloaded = process_shared_preload_libraries_in_progress;
	if (le_is_preloaded && !IsBinaryUpgrade)
		le_launcher_register();
}
