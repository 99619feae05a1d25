/*-------------------------------------------------------------------------
 *
 * 30_idle.c
 *		What the extension does while nothing happens: without candidates, no
 *		worker; with idle ones, how often it and a waiting campaign wake up.
 *
 * Wake-ups are voluntary context switches, as counted by Linux in /proc.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>

#include "client.h"

#define OBSERVE_MS	15000		/* one default lease: three renewals */
#define QUIET_MS	3000		/* no worker may come back in that time */
#define LOOK_MS		20

static int
workers(PGconn *monitor)
{
	char	   *count = ask(monitor, "SELECT count(*) FROM pg_stat_activity "
							"WHERE backend_type LIKE 'leader_election%%'");
	int			n = atoi(count);

	free(count);
	return n;
}

/*
 * -1 where there is no such count.
 */
static long
wake_ups(const char *pid)
{
	char		name[64];
	char		line[200];
	long		count = -1;
	FILE	   *file;

	snprintf(name, sizeof(name), "/proc/%s/status", pid);
	file = fopen(name, "r");
	if (file == NULL)
		return -1;
	while (fgets(line, sizeof(line), file) != NULL)
	{
		if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1)
			break;
	}
	fclose(file);
	return count;
}

/*
 * Like ask(), but what there must be.
 */
static char *
ask_for(PGconn *conn, const char *sql)
{
	char	   *value = ask(conn, "%s", sql);

	if (value == NULL)
		die("no row from: %s", sql);
	return value;
}

static void
report_wake_ups(const char *who, long before, long after, int ms)
{
	Sample		per_minute = {.n = 0};

	if (before < 0 || after < 0)
		return;
	add(&per_minute, (after - before) * 60000.0 / ms);
	report(who, "1/min", &per_minute, NO_FLOOR);
}

static void
with_candidates(PGconn *monitor)
{
	PGconn	   *leader = new_connection("leader");
	PGconn	   *waiter = new_connection("waiter");
	char	   *worker_pid;
	char	   *waiter_pid;
	long		worker;
	long		waiting;

	run(leader, "SELECT leader_election.join('idle', 'leader')");
	waiter_pid = ask_for(waiter, "SELECT pg_backend_pid()");
	if (!PQsendQuery(waiter, "CALL leader_election.campaign('idle', 'waiter')"))
		die("%s", PQerrorMessage(waiter));
	wait_for(monitor, "SELECT count(*) = 2 FROM leader_election.candidates "
			 "WHERE election = 'idle' AND alive");
	worker_pid = ask_for(monitor, "SELECT pid FROM pg_stat_activity "
						 "WHERE backend_type = 'leader_election worker'");

	worker = wake_ups(worker_pid);
	waiting = wake_ups(waiter_pid);
	pause_ms(OBSERVE_MS);
	report_wake_ups("idle: wake-ups, worker with a leader", worker,
					wake_ups(worker_pid), OBSERVE_MS);
	report_wake_ups("idle: wake-ups, waiting campaign", waiting,
					wake_ups(waiter_pid), OBSERVE_MS);
	free(worker_pid);
	free(waiter_pid);
	PQfinish(waiter);
	PQfinish(leader);
}

static void
without_candidates(PGconn *monitor)
{
	char	   *idle_timeout = ask(monitor,
								   "SHOW leader_election.worker_idle_timeout");
	double		start = now_us();
	double		quiet_until;
	Sample		seconds = {.n = 0};
	Sample		count = {.n = 0};

	while (workers(monitor) > 0 && now_us() - start < 60e6)
		pause_ms(LOOK_MS);
	add(&seconds, (now_us() - start) / 1e6);
	for (quiet_until = now_us() + QUIET_MS * 1000; now_us() < quiet_until;)
	{
		add(&count, workers(monitor));
		pause_ms(LOOK_MS);
	}
	report(text("no candidates: worker ends after (set: %s)", idle_timeout),
		   "s", &seconds, NO_FLOOR);
	report("no candidates: processes, so wake-ups, then", "", &count,
		   (Against) {
		.target = "max = 0", .met = maximum(&count) == 0
	});
	free(idle_timeout);
}

int
main(void)
{
	PGconn	   *monitor = new_connection("monitor");

	with_candidates(monitor);
	without_candidates(monitor);
	PQfinish(monitor);
	return 0;
}
