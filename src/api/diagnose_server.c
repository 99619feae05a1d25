/*-------------------------------------------------------------------------
 *
 * diagnose_server.c
 *		What diagnose() says of the worker, and of standbys.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "api/diagnose.h"
#include "catalog/pg_foreign_server.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#define LONG_SILENCE	USECS_PER_SEC

/*
 * This server is a standby.
 */
void
le_diagnose_recovery(Diagnosis *d)
{
	if (!d->on_standby)
		return;
	le_diagnose_say(d, SEVERITY_NOTICE,
					"This server is a standby: it does not know who stands, which sessions are alive, nor whether there is a worker.",
					le_diagnose_fill(d, le_obstacles[OBSTACLE_UNSEEN].remedy));
}

/*
 * How many background workers run, of all databases?  Parallel queries and
 * logical replication have theirs among them.
 */
static int
count_workers(void)
{
	int			workers = 0;
	int			n = LeReadBackends();

	for (int i = 1; i <= n; i++)
	{
		const PgBackendStatus *backend = LeBackendByNumber(i);

		if (backend != NULL && backend->st_backendType == B_BG_WORKER)
			workers++;
	}
	return workers;
}

/*
 * Does nobody lead or stand, so that no worker is needed?
 */
static bool
is_idle(const Diagnosis *d)
{
	if (d->election == NULL)
		return d->group != NULL && d->turnout.live == 0;
	return d->lease != NULL && d->lease->leader == NULL && d->knows_vacancy &&
		d->turnout.live == 0;
}

/*
 * Somebody leads or stands, and there is no worker.
 */
void
le_diagnose_worker(Diagnosis *d)
{
	int			used;

	if (d->has_worker || is_idle(d))
		return;
	used = count_workers();
	if (used >= max_worker_processes)
		le_diagnose_say(d, SEVERITY_WARNING,
						psprintf("No worker runs in this database, and none can be started: background workers use all %d of max_worker_processes.",
								 max_worker_processes),
						"Have candidates call join() or renew() at least three times per lease: that keeps leases and elects. End what uses the slots (SELECT pid, datname, usename, backend_type FROM pg_stat_activity), or raise max_worker_processes and start the server anew.");
	else
		le_diagnose_say(d, SEVERITY_WARNING,
						psprintf("No worker runs in this database: nobody renews the leases of sessions, or tells listeners. Background workers use %d of %d max_worker_processes.",
								 used, max_worker_processes),
						le_is_preloaded ?
						"Wait a second: the launcher starts one. If it does not, look into the server's log." :
						"Have a candidate call join() or acquire(): that starts one. If it does not stay, look into the server's log. With the library in shared_preload_libraries, a launcher starts it at once.");
}

/*
 * Read what the worker tries in vain, and wake it, to try that again now: this
 * call may be made because the cause has just been removed.
 */
void
le_diagnose_read_trouble(Diagnosis *d)
{
	WorkerTrouble *trouble = palloc(sizeof(WorkerTrouble));

	if (!le_trouble_read(trouble))
		return;
	d->trouble = trouble;
	le_wake_workers(MyDatabaseId);
}

/*
 * What to do about an error of the worker's.
 */
static const char *
failure_remedy(int code)
{
	switch (ERRCODE_TO_CATEGORY(code))
	{
		case ERRCODE_INSUFFICIENT_RESOURCES:
			return "Make room on the server's disks, or in its memory, as the SQLSTATE says (53100: disk full).";
		case ERRCODE_INTERNAL_ERROR:
			return "If an index is damaged (XX002): REINDEX the tables of schema \"leader_election\". If a table is (XX001): restore the whole database from a backup. (A single table would bring back terms of before.)";
		default:
			return "See the server's log. If an index, a constraint or a column was added to a table of schema \"leader_election\", remove it.";
	}
}

/*
 * What the worker tries in vain, as everybody may know it.  What the error
 * says, those are told who see the worker in pg_stat_activity.
 */
void
le_diagnose_trouble(Diagnosis *d)
{
	static const char *const verbs[] = {
		[TROUBLE_FAILS] = "fails",
		[TROUBLE_WAITS] = "waits for a lock",
		[TROUBLE_CANCELLED] = "was cancelled",
	};
	const WorkerTrouble *t = d->trouble;
	TroubleKind kind;
	const char *remedy = "See the rows on who holds locks.";

	if (t == NULL)
		return;
	kind = le_trouble_kind(t->code);
	if (kind == TROUBLE_FAILS)
		remedy = psprintf("%s When the cause is gone, the worker goes on within 5 s, or with the next call. Its message is told to superusers and members of pg_read_all_stats.",
						  failure_remedy(t->code));
	else if (kind == TROUBLE_CANCELLED)
		remedy = "Find out who calls pg_cancel_backend() for it: it only starts its work again.";
	le_diagnose_say(d, kind == TROUBLE_FAILS &&
					le_trouble_concerns(t, d->name) ?
					SEVERITY_ERROR : SEVERITY_WARNING,
					psprintf("The worker (process %d) %s, since %s, %d times, with SQLSTATE %s%s. It tries again at %s.",
							 t->pid, verbs[kind], le_diagnose_time(t->since),
							 t->times, unpack_sql_state(t->code),
							 le_process_shows(t->pid) ?
							 psprintf(" (%s)", t->text) : "",
							 le_diagnose_time(t->retry_at)),
					remedy);
}

/*
 * Synchronous standbys that are configured, and do not confirm.
 */
void
le_diagnose_standbys(Diagnosis *d)
{
	const char *remedy = "Look at the standbys: SELECT application_name, client_addr, state, sync_state, flush_lsn, reply_time FROM pg_stat_replication; bring them back, or (what they lack is lost in a failover) take them out of synchronous_standby_names.";
	SyncStandbys standbys;

	if (!le_standbys_observed(&standbys))
		return;
	if (standbys.connected < standbys.needed)
		le_diagnose_say(d, SEVERITY_ERROR,
						psprintf("%d of the %d synchronous standbys that are needed are connected: nobody can be elected, and no lease renewed.",
								 standbys.connected, standbys.needed),
						remedy);
	else if (standbys.unconfirmed > 0 && standbys.silence > LONG_SILENCE)
		le_diagnose_say(d, SEVERITY_ERROR,
						psprintf("Synchronous standbys have not confirmed the last " UINT64_FORMAT " bytes, and last answered %s ago: nobody can be elected, and no lease renewed.",
								 standbys.unconfirmed, le_diagnose_duration(standbys.silence)),
						remedy);
}

/*
 * Has this database a foreign server?  False, too, if the catalog is locked.
 */
static bool
has_foreign_server(void)
{
	Relation	rel;
	SysScanDesc scan;
	bool		found;

	if (!LeTryLockRelation(ForeignServerRelationId, AccessShareLock))
		return false;
	rel = table_open(ForeignServerRelationId, NoLock);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	found = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

/*
 * Fenced transactions may use foreign servers, and the library is loaded by
 * the first call of a session, which may come after that.
 */
void
le_diagnose_preload(Diagnosis *d)
{
	const char *database;

	if (le_is_preloaded || !has_foreign_server() ||
		strstr(session_preload_libraries_string, "leader_election") != NULL)
		return;
	database = get_database_name(MyDatabaseId);
	le_diagnose_say(d, SEVERITY_NOTICE,
					"This database has foreign servers, and the library is not preloaded: a session that uses one before its first call holds the lock of an election while it commits there, when it is fenced.",
					psprintf("If transactions that use foreign servers are fenced, run as a superuser, for new sessions: ALTER DATABASE %s SET session_preload_libraries = 'leader_election'; or put it into shared_preload_libraries. If that setting names other libraries now, name them after it, as 'leader_election', 'others'.",
							 database != NULL ? quote_identifier(database) : "this"));
}
