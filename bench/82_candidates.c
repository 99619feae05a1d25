/*-------------------------------------------------------------------------
 *
 * 82_candidates.c
 *		Growth with the number of candidates of one election: a takeover, and
 *		what it costs the worker; the view that shows them.
 *
 * All of them wait in campaign(), each in a session of its own.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "contest.h"

#define TRIALS	20
#define VIEWS	20

static PGconn *monitor;
static const int sizes[] = {2, 200, 1000};

#define NSIZES (int) (sizeof(sizes) / sizeof(sizes[0]))

static Growth race = {
	.name = "candidates-race", .title = "race: takeover", .unit = "ms",
	.of = "candidates"
};
static Growth race_cpu = {
	.name = "candidates-race-cpu", .title = "race: takeover in the worker",
	.unit = "ms", .of = "candidates"
};
static Growth spread = {
	.name = "candidates-spread", .title = "spread: takeover", .unit = "ms",
	.of = "candidates"
};
static Growth spread_cpu = {
	.name = "candidates-spread-cpu", .title = "spread: takeover in the worker",
	.unit = "ms", .of = "candidates"
};
static Growth view = {
	.name = "candidates-view", .title = "spread: the view of one election",
	.unit = "ms", .of = "candidates"
};

static void
add_views(int size)
{
	for (int i = 0; i < VIEWS; i++)
	{
		double		start = now_us();

		run(monitor, "SELECT count(position) FROM leader_election.candidates "
			"WHERE election = 'spread'");
		add_point(&view, size, (now_us() - start) / 1000);
	}
}

static void
add_size(const char *strategy, int size, Growth *takeovers, Growth *cpu)
{
	static Contest contest;

	start_contest(&contest, &campaign, strategy, size, monitor);
	add_takeovers(&contest, TRIALS, size, takeovers, cpu);
	if (takeovers == &spread)
		add_views(size);
	end_contest(&contest);
}

int
main(int argc, char **argv)
{
	if (argc == 4 && strcmp(argv[1], "hold") == 0)
		return hold(argv[2], argv[3]);
	monitor = new_connection("monitor");
	run(monitor, "SELECT leader_election.create_election(s, s) "
		"FROM unnest('{race, spread}'::text[]) s");
	for (int i = 0; i < NSIZES; i++)
	{
		add_size("race", sizes[i], &race, &race_cpu);
		add_size("spread", sizes[i], &spread, &spread_cpu);
	}
	report_growth(&race, NO_FLOOR);
	report_growth(&race_cpu, NO_FLOOR);
	report_growth(&spread, NO_FLOOR);
	report_growth(&spread_cpu, NO_FLOOR);
	report_growth(&view, NO_FLOOR);
	PQfinish(monitor);
	return 0;
}
