/*-------------------------------------------------------------------------
 *
 * contest.c
 *		A leadership, the client that holds it and those that wait for it; what
 *		is timed is a takeover after SIGKILL of the holder's process.
 *
 * The time runs from just before kill() until a waiting client has received the
 * answer that it leads now.  The holder is the benchmark's program, started
 * anew, so that its death closes no other sockets; it must act as "hold" (see
 * client.c).  The waiters are connections of this process with a query under
 * way.  Every holder and every waiter is a fresh session.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contest.h"

#define GIVE_UP_MS	60000

const Kind	campaign = {
	"CALL leader_election.campaign('%s', '%s')",
	"SELECT leader_election.transfer('%s', '%s')",
	"SELECT count(*) FROM leader_election.candidate "
	"JOIN pg_stat_activity ON pid = backend_pid "
	"WHERE election = '%s' AND candidate LIKE '%s'",
	true
};
const Kind	raw_lock = {
	"SELECT pg_advisory_lock(%s) /* %s */",
	"SELECT pg_advisory_unlock(%s) /* %s */",
	"SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
	"WHERE locktype = 'advisory' AND objsubid = 1 AND objid = %s "
	"AND application_name LIKE '%s'",
	false
};

int			grants_durable = 0;
int			grants_not_durable = 0;

static PGconn *monitor;

/*
 * It may have to wait: await_child() returns when it holds.
 */
static void
start_holder(Contest *contest, char *name, size_t size)
{
	char		sql[200];

	snprintf(name, size, "holder %s %d", contest->seat, contest->serial++);
	snprintf(sql, sizeof(sql), contest->kind->acquire, contest->seat, name);
	contest->holder = start_child("hold", name, sql);
}

static void
start_waiter(Contest *contest, int i)
{
	char		name[60];
	char		sql[200];

	snprintf(name, sizeof(name), "waiter %s %d", contest->seat,
			 contest->serial++);
	snprintf(sql, sizeof(sql), contest->kind->acquire, contest->seat, name);
	contest->waiters[i] = new_connection(name);
	if (!PQsendQuery(contest->waiters[i], sql))
		die("%s", PQerrorMessage(contest->waiters[i]));
}

/*
 * Wait until that many clients of such names stand in line.
 */
static void
await_line(const Contest *contest, const char *names, int n)
{
	char		sql[400];

	snprintf(sql, sizeof(sql), contest->kind->in_line, contest->seat, names);
	wait_for(monitor, "SELECT (%s) = %d", sql, n);
}

void
start_contest(Contest *contest, const Kind *kind, const char *seat,
			  int nwaiters, PGconn *observer)
{
	char		name[60];

	monitor = observer;
	memset(contest, 0, sizeof(Contest));
	contest->kind = kind;
	contest->seat = seat;
	contest->nwaiters = nwaiters;
	start_holder(contest, name, sizeof(name));
	await_child(&contest->holder);
	for (int i = 0; i < nwaiters; i++)
		start_waiter(contest, i);
}

void
end_contest(Contest *contest)
{
	for (int i = 0; i < contest->nwaiters; i++)
		PQfinish(contest->waiters[i]);
	reap_child(&contest->holder);
	await_line(contest, "%", 0);
}

/*
 * The waiter that receives its answer; -1: nobody within the limit.
 */
static int
await_winner(Contest *contest, int limit_ms)
{
	static struct pollfd fds[MAX_WAITERS];

	for (int i = 0; i < contest->nwaiters; i++)
	{
		fds[i].fd = PQsocket(contest->waiters[i]);
		fds[i].events = POLLIN;
	}
	for (;;)
	{
		int			n = poll(fds, contest->nwaiters, limit_ms);

		if (n == 0)
			return -1;
		for (int i = 0; n > 0 && i < contest->nwaiters; i++)
		{
			if (fds[i].revents == 0)
				continue;
			if (!PQconsumeInput(contest->waiters[i]))
				die("%s", PQerrorMessage(contest->waiters[i]));
			if (!PQisBusy(contest->waiters[i]))
				return i;
		}
	}
}

static void
check_winner(PGconn *conn)
{
	PGresult   *result;

	while ((result = PQgetResult(conn)) != NULL)
	{
		if (PQresultStatus(result) != PGRES_TUPLES_OK ||
			PQgetisnull(result, 0, 0))
			die("not a grant: %s", PQerrorMessage(conn));
		PQclear(result);
	}
}

/*
 * Nothing else writes here: what is flushed by now, beyond the end of what had
 * been written before the kill, is the grant.
 */
static void
check_durable(const char *before)
{
	char	   *flushed = ask(monitor,
							  "SELECT pg_current_wal_flush_lsn() > '%s'",
							  before);

	if (strcmp(flushed, "t") == 0)
		grants_durable++;
	else
		grants_not_durable++;
	free(flushed);
}

/*
 * Everybody is in line, and nothing is under way.
 */
void
await_calm(const Contest *contest)
{
	await_line(contest, "waiter %", contest->nwaiters);
	wait_for(monitor, "SELECT count(*) = 0 FROM pg_stat_activity "
			 "WHERE state = 'active' AND pid <> pg_backend_pid() AND "
			 "(application_name LIKE 'holder %%' OR "
			 "backend_type LIKE 'leader_election%%')");
	pause_ms(REST_MS);
}

/*
 * Kill the holder; returns the milliseconds until there is a winner.  Nobody
 * has won within the limit: the limit and -1.
 */
double
time_takeover(Contest *contest, int limit_ms, int *winner)
{
	double		start = now_us();
	double		end;

	kill_child(&contest->holder);
	*winner = await_winner(contest, limit_ms);
	end = now_us();
	return (end - start) / 1000;
}

/*
 * After a takeover: there is a new holder, and as many waiters as before, all
 * of them new or waiting since.  Without a winner, wait for one.
 */
void
seat_new_holder(Contest *contest, int winner)
{
	char		name[60];
	char		sql[200];

	if (winner == -1)
		winner = await_winner(contest, GIVE_UP_MS);
	if (winner == -1)
		die("nobody took over");
	check_winner(contest->waiters[winner]);
	reap_child(&contest->holder);
	start_holder(contest, name, sizeof(name));
	await_line(contest, name, 1);
	snprintf(sql, sizeof(sql), contest->kind->hand_over, contest->seat, name);
	run(contest->waiters[winner], "%s", sql);
	await_child(&contest->holder);
	PQfinish(contest->waiters[winner]);
	start_waiter(contest, winner);
}

/*
 * One trial.
 */
double
take_over(Contest *contest)
{
	char	   *before;
	double		ms;
	int			winner;

	await_calm(contest);
	before = ask(monitor, "SELECT pg_current_wal_insert_lsn()");
	ms = time_takeover(contest, GIVE_UP_MS, &winner);
	if (winner == -1)
		die("nobody took over");
	if (contest->kind->durable)
		check_durable(before);
	free(before);
	seat_new_holder(contest, winner);
	return ms;
}

/*
 * Points of two curves: the milliseconds of a takeover, and how long the worker
 * was on a processor for it.  The first trial is not counted.
 */
void
add_takeovers(Contest *contest, int trials, double size, Growth *ms,
			  Growth *cpu)
{
	char	   *pid;

	(void) take_over(contest);
	pid = worker_pid(monitor);
	for (int i = 0; i < trials; i++)
	{
		double		before = cpu_ms(pid);

		add_point(ms, size, take_over(contest));
		if (cpu != NULL)
			add_point(cpu, size, cpu_ms(pid) - before);
	}
	free(pid);
}
