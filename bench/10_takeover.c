/*-------------------------------------------------------------------------
 *
 * 10_takeover.c
 *		Takeover after SIGKILL of the client process of an idle leader.
 *
 * What is timed: from just before kill() until a waiting client has received
 * the answer that it leads now.  Side by side, in turns:
 *
 *	- one waiter in campaign() / one waiter in SELECT pg_advisory_lock()
 *	- 2 candidates waiting in campaign() / 200 of them
 *
 * and, for information, the first takeover of a worker that was started anew:
 * one that has been running for weeks may never have elected anybody.
 *
 * Both sides have the same clients.  The holder is this program, started anew
 * ("10_takeover hold NAME SQL") so that its death closes no other sockets;
 * the waiters are connections of this process with a query under way.  Every
 * holder and every waiter is a fresh session.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

#define TRIALS			100		/* of each, beside the raw lock */
#define FRESH_TRIALS	10		/* with a worker that has just been started */
#define FEW				2
#define MANY			200
#define BLOCKS			4		/* of each, few beside many */
#define BLOCK_TRIALS	12
#define REST_MS			20		/* before a kill: nothing is under way then */

typedef struct Kind
{
	const char *acquire;		/* %s: the candidate */
	const char *hand_over;		/* %s: to whom */
	const char *in_line;		/* %s: whose names are like that; a number */
} Kind;

static const Kind campaign_few = {
	"CALL leader_election.campaign('few', '%s')",
	"SELECT leader_election.transfer('few', '%s')",
	"SELECT count(*) FROM leader_election.candidates "
	"WHERE election = 'few' AND alive AND candidate LIKE '%s'"
};
static const Kind campaign_many = {
	"CALL leader_election.campaign('many', '%s')",
	"SELECT leader_election.transfer('many', '%s')",
	"SELECT count(*) FROM leader_election.candidates "
	"WHERE election = 'many' AND alive AND candidate LIKE '%s'"
};
static const Kind raw_lock = {
	"SELECT pg_advisory_lock(1) /* %s */",
	"SELECT pg_advisory_unlock(1) /* %s */",
	"SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
	"WHERE locktype = 'advisory' AND objsubid = 1 AND objid = 1 "
	"AND application_name LIKE '%s'"
};

/* A leadership, its holder and who waits for it */
typedef struct Contest
{
	const Kind *kind;
	int			serial;			/* names the next client */
	int			nwaiters;
	PGconn	   *waiters[MANY];
	pid_t		holder;
	int			holder_answers; /* pipes to and from it */
	int			holder_lives;
} Contest;

static const char *program;
static PGconn *monitor;
static int	durable = 0;		/* takeovers whose grant was seen flushed */
static int	not_durable = 0;

/*
 * The holder: acquire, say so, and idle until killed (or the benchmark ends).
 */
static int
hold(const char *name, const char *sql)
{
	PGconn	   *conn = new_connection(name);
	char		byte = '!';

	run(conn, "%s", sql);
	if (write(STDOUT_FILENO, &byte, 1) != 1)
		return 1;
	return read(STDIN_FILENO, &byte, 1) != 0;
}

/*
 * Start a holder.  It may have to wait: await_holder() returns when it holds.
 */
static void
start_holder(Contest *contest, char *name, size_t size)
{
	int			to[2];
	int			from[2];
	char		sql[200];

	snprintf(name, size, "holder %d", contest->serial++);
	snprintf(sql, sizeof(sql), contest->kind->acquire, name);
	if (pipe(to) != 0 || pipe(from) != 0)
		die("pipe: %s", strerror(errno));
	/* A holder must not keep another one's pipe open. */
	fcntl(to[1], F_SETFD, FD_CLOEXEC);
	fcntl(from[0], F_SETFD, FD_CLOEXEC);
	contest->holder = fork();
	if (contest->holder == -1)
		die("fork: %s", strerror(errno));
	if (contest->holder == 0)
	{
		dup2(to[0], STDIN_FILENO);
		dup2(from[1], STDOUT_FILENO);
		close(to[0]);
		close(from[1]);
		execl(program, program, "hold", name, sql, (char *) NULL);
		_exit(127);
	}
	close(to[0]);
	close(from[1]);
	contest->holder_lives = to[1];
	contest->holder_answers = from[0];
}

static void
await_holder(Contest *contest)
{
	char		byte;

	if (read(contest->holder_answers, &byte, 1) != 1)
		die("the holder ended");
}

static void
reap_holder(Contest *contest)
{
	close(contest->holder_lives);
	close(contest->holder_answers);
	waitpid(contest->holder, NULL, 0);
}

static void
start_waiter(Contest *contest, int i)
{
	char		name[40];
	char		sql[200];

	snprintf(name, sizeof(name), "waiter %d", contest->serial++);
	snprintf(sql, sizeof(sql), contest->kind->acquire, name);
	contest->waiters[i] = new_connection(name);
	if (fcntl(PQsocket(contest->waiters[i]), F_SETFD, FD_CLOEXEC) != 0 ||
		!PQsendQuery(contest->waiters[i], sql))
		die("%s", PQerrorMessage(contest->waiters[i]));
}

/*
 * Wait until that many clients of such names stand in line.
 */
static void
await_line(const Contest *contest, const char *names, int n)
{
	char		sql[400];

	snprintf(sql, sizeof(sql), contest->kind->in_line, names);
	wait_for(monitor, "SELECT (%s) = %d", sql, n);
}

static void
start_contest(Contest *contest, const Kind *kind, int nwaiters)
{
	char		name[40];

	memset(contest, 0, sizeof(Contest));
	contest->kind = kind;
	contest->nwaiters = nwaiters;
	start_holder(contest, name, sizeof(name));
	await_holder(contest);
	for (int i = 0; i < nwaiters; i++)
		start_waiter(contest, i);
}

static void
end_contest(Contest *contest)
{
	for (int i = 0; i < contest->nwaiters; i++)
		PQfinish(contest->waiters[i]);
	reap_holder(contest);
	await_line(contest, "%", 0);
}

/*
 * The waiter that receives its answer.
 */
static int
await_winner(Contest *contest)
{
	struct pollfd fds[MANY];

	for (int i = 0; i < contest->nwaiters; i++)
	{
		fds[i].fd = PQsocket(contest->waiters[i]);
		fds[i].events = POLLIN;
	}
	for (;;)
	{
		int			n = poll(fds, contest->nwaiters, 60000);

		if (n == 0)
			die("nobody took over");
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
		durable++;
	else
		not_durable++;
	free(flushed);
}

/*
 * One trial; afterwards there is a new holder, and as many waiters as before,
 * all of them new or waiting since.
 */
static double
take_over(Contest *contest)
{
	bool		ours = contest->kind != &raw_lock;
	char		name[40];
	char		sql[200];
	char	   *before;
	double		start;
	double		end;
	int			winner;

	await_line(contest, "waiter %", contest->nwaiters);
	wait_for(monitor, "SELECT count(*) = 0 FROM pg_stat_activity "
			 "WHERE state = 'active' AND pid <> pg_backend_pid() AND "
			 "(application_name LIKE 'holder %%' OR "
			 "backend_type LIKE 'leader_election%%')");
	before = ask(monitor, "SELECT pg_current_wal_insert_lsn()");
	pause_ms(REST_MS);

	start = now_us();
	kill(contest->holder, SIGKILL);
	winner = await_winner(contest);
	end = now_us();

	reap_holder(contest);
	check_winner(contest->waiters[winner]);
	if (ours)
		check_durable(before);
	free(before);

	start_holder(contest, name, sizeof(name));
	await_line(contest, name, 1);
	snprintf(sql, sizeof(sql), contest->kind->hand_over, name);
	run(contest->waiters[winner], "%s", sql);
	await_holder(contest);
	PQfinish(contest->waiters[winner]);
	start_waiter(contest, winner);
	return (end - start) / 1000;
}

/*
 * A waiting campaign finds the worker gone, and starts another one.
 */
static void
renew_worker(void)
{
	char	   *pid = ask(monitor, "SELECT pid FROM pg_stat_activity "
						  "WHERE backend_type = 'leader_election worker'");

	if (pid == NULL)
		die("there is no worker");
	run(monitor, "SELECT pg_terminate_backend(%s)", pid);
	wait_for(monitor, "SELECT count(*) = 1 FROM pg_stat_activity "
			 "WHERE backend_type = 'leader_election worker' "
			 "AND pid <> %s AND state = 'idle'", pid);
	free(pid);
}

static void
beside_raw_lock(void)
{
	static Contest ours;
	static Contest raw;
	Sample		ours_ms = {.n = 0};
	Sample		raw_ms = {.n = 0};
	Sample		fresh_ms = {.n = 0};
	double		ratio;

	start_contest(&ours, &campaign_few, 1);
	start_contest(&raw, &raw_lock, 1);
	(void) take_over(&ours);	/* not counted */
	(void) take_over(&raw);
	for (int i = 0; i < TRIALS; i++)
	{
		add(&ours_ms, take_over(&ours));
		add(&raw_ms, take_over(&raw));
	}
	for (int i = 0; i < FRESH_TRIALS; i++)
	{
		renew_worker();
		add(&fresh_ms, take_over(&ours));
	}
	end_contest(&ours);
	end_contest(&raw);

	ratio = median(&ours_ms) / median(&raw_ms);
	report("takeover: raw pg_advisory_lock", "ms", &raw_ms, "1.00", "", false);
	report("takeover: campaign", "ms", &ours_ms, text("%.2f", ratio),
		   "ratio <= 1.5", ratio <= 1.5);
	report("takeover: campaign, worker just started", "ms", &fresh_ms,
		   text("%.2f", median(&fresh_ms) / median(&raw_ms)), "", false);
}

static void
await_empty_server(void)
{
	wait_for(monitor, "SELECT count(*) = 0 FROM pg_stat_activity "
			 "WHERE backend_type = 'client backend' "
			 "AND pid <> pg_backend_pid()");
}

static void
beside_many(void)
{
	static Contest contest;
	Sample		few_ms = {.n = 0};
	Sample		many_ms = {.n = 0};
	double		ratio;

	for (int block = 0; block < BLOCKS; block++)
	{
		await_empty_server();
		start_contest(&contest, &campaign_few, FEW);
		for (int i = 0; i < BLOCK_TRIALS; i++)
			add(&few_ms, take_over(&contest));
		end_contest(&contest);
		await_empty_server();
		start_contest(&contest, &campaign_many, MANY);
		for (int i = 0; i < BLOCK_TRIALS; i++)
			add(&many_ms, take_over(&contest));
		end_contest(&contest);
	}

	ratio = median(&many_ms) / median(&few_ms);
	report(text("takeover: campaign, %d waiting", FEW), "ms", &few_ms,
		   "1.00", "", false);
	report(text("takeover: campaign, %d waiting", MANY), "ms", &many_ms,
		   text("%.2f", ratio), "ratio <= 2", ratio <= 2);
}

int
main(int argc, char **argv)
{
	char	   *fsync_on;
	char	   *synchronous_commit;

	if (argc == 4 && strcmp(argv[1], "hold") == 0)
		return hold(argv[2], argv[3]);
	program = argv[0];
	monitor = new_connection("monitor");
	fcntl(PQsocket(monitor), F_SETFD, FD_CLOEXEC);

	beside_raw_lock();
	beside_many();

	fsync_on = ask(monitor, "SHOW fsync");
	synchronous_commit = ask(monitor, "SHOW synchronous_commit");
	report_note("  grants flushed to disk before the answer: %d of %d "
				"(fsync = %s, synchronous_commit = %s)", durable,
				durable + not_durable, fsync_on, synchronous_commit);
	free(fsync_on);
	free(synchronous_commit);
	PQfinish(monitor);
	return 0;
}
