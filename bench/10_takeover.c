/*-------------------------------------------------------------------------
 *
 * 10_takeover.c
 *		Takeover after SIGKILL of the client process of an idle leader.
 *
 * What is timed: see contest.c.  Side by side, in turns:
 *
 *	- one waiter in campaign() / one waiter in SELECT pg_advisory_lock()
 *	- 2 candidates waiting in campaign() / 200 of them
 *	- no other election / many that another session leads / many in which
 *	  nobody stands
 *
 * and, for information, the first takeover of a worker that was started anew
 * (one that has been running for weeks may never have elected anybody), and an
 * UPDATE of one row after as long a rest: a grant is flushed, the raw lock is
 * not.
 *
 * The times of the raw lock fall into two groups, so that the quotient of
 * medians moves from run to run.  The target is for the difference: its mean
 * over trials that take turns, in three runs with new clients and a new worker.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "contest.h"
#include "crowd.h"

#define RUNS			3
#define TRIALS			140		/* of each, beside the raw lock, in a run */
#define FRESH_TRIALS	10		/* with a worker that has just been started */
#define UPDATE_EACH		4		/* trials, a bare UPDATE */
#define TARGET_MS		1.0		/* over the raw lock */
#define FEW				2
#define MANY			200
#define BLOCKS			4		/* of each, few beside many */
#define BLOCK_TRIALS	12
#define CROWD			10000	/* elections */
#define CROWD_BLOCKS	3
#define CROWD_TARGET	1.5

static PGconn *monitor;

/*
 * A waiting campaign finds the worker gone, and starts another one.
 */
static void
renew_worker(void)
{
	char	   *pid = worker_pid(monitor);

	run(monitor, "SELECT pg_terminate_backend(%s)", pid);
	wait_for(monitor, "SELECT count(*) = 1 FROM pg_stat_activity "
			 "WHERE backend_type = 'leader_election worker' "
			 "AND pid <> %s AND state = 'idle'", pid);
	free(pid);
}

static double
time_update(void)
{
	double		start;

	pause_ms(REST_MS);
	start = now_us();
	run(monitor, "UPDATE bench_row SET n = n + 1");
	return (now_us() - start) / 1000;
}

static void
beside_raw_lock(void)
{
	static Contest ours;
	static Contest raw;
	static Sample ours_ms;
	static Sample raw_ms;
	static Sample difference_ms;
	Sample		run_ms[RUNS] = {{.n = 0}};
	Sample		fresh_ms = {.n = 0};
	Sample		update_ms = {.n = 0};
	const char *floor = "takeover: raw pg_advisory_lock";
	double		m;

	run(monitor, "CREATE TABLE bench_row AS SELECT 0 AS n");
	for (int r = 0; r < RUNS; r++)
	{
		start_contest(&ours, &campaign, "few", 1, monitor);
		start_contest(&raw, &raw_lock, "1", 1, monitor);
		if (r > 0)
			renew_worker();
		(void) take_over(&ours);	/* not counted */
		(void) take_over(&raw);
		for (int i = 0; i < TRIALS; i++)
		{
			double		raw_first = i % 2 == 0 ? 0 : take_over(&raw);
			double		a = take_over(&ours);
			double		b = i % 2 == 0 ? take_over(&raw) : raw_first;

			add(&ours_ms, a);
			add(&raw_ms, b);
			add(&run_ms[r], a - b);
			add(&difference_ms, a - b);
			if (i % UPDATE_EACH == 0)
				add(&update_ms, time_update());
		}
		if (r == RUNS - 1)
		{
			for (int i = 0; i < FRESH_TRIALS; i++)
			{
				renew_worker();
				add(&fresh_ms, take_over(&ours));
			}
		}
		end_contest(&ours);
		end_contest(&raw);
	}

	run(monitor, "DROP TABLE bench_row");

	report(floor, "ms", &raw_ms, FLOOR(floor, 1));
	report("takeover: bare UPDATE, after a rest", "ms", &update_ms, NO_FLOOR);
	report("takeover: campaign", "ms", &ours_ms,
		   FLOOR(floor, median(&ours_ms) / median(&raw_ms)));
	m = mean(&difference_ms);
	report_mean("takeover: over the raw lock, mean of all", "ms",
				&difference_ms, (Against) {
		.floor = floor, .ratio = mean(&ours_ms) / mean(&raw_ms),
		.target = text("mean <= %.1f", TARGET_MS), .met = m <= TARGET_MS
	});
	for (int r = 0; r < RUNS; r++)
		report_mean(text("takeover: over the raw lock, mean of run %d", r + 1),
					"ms", &run_ms[r], NO_FLOOR);
	m = median(&ours_ms) - median(&raw_ms);
	report("takeover: over the raw lock, trial by trial", "ms", &difference_ms,
		   NO_FLOOR);
	report("takeover: over the raw lock, of medians", "ms", &(Sample) {
		{m}, 1
	}, (Against) {
		.target = text("difference <= %.1f", TARGET_MS), .met = m <= TARGET_MS
	});
	report("takeover: campaign, worker just started", "ms", &fresh_ms,
		   FLOOR(floor, median(&fresh_ms) / median(&raw_ms)));
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
	const char *floor = text("takeover: campaign, %d waiting", FEW);

	for (int block = 0; block < BLOCKS; block++)
	{
		await_empty_server();
		start_contest(&contest, &campaign, "few", FEW, monitor);
		for (int i = 0; i < BLOCK_TRIALS; i++)
			add(&few_ms, take_over(&contest));
		end_contest(&contest);
		await_empty_server();
		start_contest(&contest, &campaign, "many", MANY, monitor);
		for (int i = 0; i < BLOCK_TRIALS; i++)
			add(&many_ms, take_over(&contest));
		end_contest(&contest);
	}

	ratio = median(&many_ms) / median(&few_ms);
	report(floor, "ms", &few_ms, FLOOR(floor, 1));
	report(text("takeover: campaign, %d waiting", MANY), "ms", &many_ms,
		   (Against) {
		.floor = floor, .ratio = ratio, .target = "ratio <= 2",
		.met = ratio <= 2
	});
}

/*
 * The takeovers of a contest, with what there is besides.
 */
static void
block_of(Sample *ms)
{
	static Contest contest;

	start_contest(&contest, &campaign, "few", 1, monitor);
	(void) take_over(&contest); /* not counted */
	for (int i = 0; i < BLOCK_TRIALS; i++)
		add(ms, take_over(&contest));
	end_contest(&contest);
}

static void
beside_crowds(void)
{
	static const char *const besides[] = {
		"beside no other election",
		"beside %d led elections",
		"beside %d vacant elections"
	};
	Sample		ms[3] = {{.n = 0}};
	const char *floor = text("takeover: %s", besides[0]);

	for (int block = 0; block < CROWD_BLOCKS; block++)
	{
		PGconn	   *leader;

		block_of(&ms[0]);
		make_crowd(monitor, 1, CROWD, "race", "15 s");
		block_of(&ms[2]);
		leader = new_connection("crowd");
		(void) join_crowd(leader, "crowd", 1, CROWD, 0);
		block_of(&ms[1]);
		PQfinish(leader);
		drop_crowd(monitor, CROWD);
	}

	report(floor, "ms", &ms[0], FLOOR(floor, 1));
	for (int i = 1; i < 3; i++)
	{
		char		what[60];
		double		ratio = median(&ms[i]) / median(&ms[0]);

		snprintf(what, sizeof(what), besides[i], CROWD);
		report(text("takeover: %s", what), "ms", &ms[i], (Against) {
			.floor = floor, .ratio = ratio,
			.target = text("ratio <= %.1f", CROWD_TARGET),
			.met = ratio <= CROWD_TARGET
		});
	}
}

int
main(int argc, char **argv)
{
	char	   *fsync_on;
	char	   *synchronous_commit;

	if (argc == 4 && strcmp(argv[1], "hold") == 0)
		return hold(argv[2], argv[3]);
	monitor = new_connection("monitor");

	beside_raw_lock();
	beside_many();
	beside_crowds();

	fsync_on = ask(monitor, "SHOW fsync");
	synchronous_commit = ask(monitor, "SHOW synchronous_commit");
	report_note("  grants flushed to disk before the answer: %d of %d "
				"(fsync = %s, synchronous_commit = %s)", grants_durable,
				grants_durable + grants_not_durable, fsync_on,
				synchronous_commit);
	free(fsync_on);
	free(synchronous_commit);
	PQfinish(monitor);
	return 0;
}
