/*-------------------------------------------------------------------------
 *
 * listener.c
 *		Who stands for nothing in the chaos run, but listens to what is announced.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "candidate.h"

/*
 * Note which life of which server this is.  A crash begins the statistics anew,
 * a promotion begins a timeline; both end all connections that listen.
 */
void
start_listening(void)
{
	PGresult   *result = NULL;

	RUN("LISTEN leadership_changed");
	if (succeeded() && getenv("CHAOS_PRESSURE") != NULL)
		RUN("LISTEN flood");
	if (succeeded())
		result = query("SELECT concat_ws('.', current_setting('cluster_name'), "
					   "left(pg_walfile_name(pg_current_wal_lsn()), 8), "
					   "extract(epoch FROM stats_reset)) FROM pg_stat_archiver");
	if (result != NULL)
		note("s %d %lld %s", serial, (long long) received,
			 PQgetvalue(result, 0, 0));
	else if (conn != NULL)
		give_up_connection("not listening");
	PQclear(result);
}

void
tick_listener(bool restless)
{
	static int64_t noted;
	PGnotify   *notify;

	if (restless && chance(10))
		give_up_connection("restless");
	RUN("SELECT 1");
	while (conn != NULL && (notify = PQnotifies(conn)) != NULL)
	{
		if (strcmp(notify->relname, "leadership_changed") == 0)
			note("l %d %lld %s", serial, (long long) received, notify->extra);
		PQfreemem(notify);
	}

	/* Whatever this session was sent before that answer has been noted. */
	if (conn != NULL && received > noted + 1000000)
	{
		noted = received;
		note("i %d %lld", serial, (long long) received);
	}
}
