/*-------------------------------------------------------------------------
 *
 * 80_elections.c
 *		Growth with the number of elections: a takeover in one of them, and the
 *		share of a core that the worker takes to keep the leases of the others.
 *
 * One session leads all of the others, or nobody stands in them.  Their leases
 * are of 15 s, and so renewed every 5 s.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "contest.h"
#include "crowd.h"

#define TRIALS		20
#define LOAD_MS		20000		/* four renewals of each lease */

static PGconn *monitor;
static const int sizes[] = {1, 100, 10000, 50000, 100000};

#define NSIZES (int) (sizeof(sizes) / sizeof(sizes[0]))

static Growth beside_led = {
	.name = "takeover-led", .title = "takeover beside led elections",
	.unit = "ms", .of = "led elections"
};
static Growth beside_vacant = {
	.name = "takeover-vacant", .title = "takeover beside vacant elections",
	.unit = "ms", .of = "vacant elections"
};
static Growth load = {
	.name = "worker-load", .title = "worker keeping leases of 15 s",
	.unit = "%", .of = "led elections"
};

static void
add_size(int i, Growth *takeovers)
{
	static Contest contest;

	start_contest(&contest, &campaign, "few", 1, monitor);
	add_takeovers(&contest, TRIALS, sizes[i], takeovers, NULL);
	end_contest(&contest);
}

static double
median_at(const Growth *growth, int size)
{
	for (int i = 0; i < growth->npoints; i++)
	{
		if (growth->sizes[i] == size)
			return median(&growth->samples[i]);
	}
	die("%s was not measured at %d", growth->title, size);
}

static void
report_load(int size, double target)
{
	double		percent = median_at(&load, size);

	report(text("worker load, %d leases of 15 s", size), "%", &(Sample) {
		{percent}, 1
	}, (Against) {
		.target = text("load <= %.0f", target), .met = percent <= target
	});
}

int
main(int argc, char **argv)
{
	PGconn	   *leader;

	if (argc == 4 && strcmp(argv[1], "hold") == 0)
		return hold(argv[2], argv[3]);
	monitor = new_connection("monitor");

	for (int i = 0; i < NSIZES; i++)
	{
		make_crowd(monitor, i == 0 ? 1 : sizes[i - 1] + 1, sizes[i], "race",
				   "15 s");
		add_size(i, &beside_vacant);
	}
	forget_everything(monitor);
	leader = new_connection("crowd");
	for (int i = 0; i < NSIZES; i++)
	{
		int			from = i == 0 ? 1 : sizes[i - 1] + 1;

		make_crowd(monitor, from, sizes[i], "race", "15 s");
		(void) join_crowd(leader, "crowd", from, sizes[i], 0);
		run(monitor, "VACUUM ANALYZE leader_election.lease");
		add_point(&load, sizes[i], worker_load(monitor, LOAD_MS));
		add_size(i, &beside_led);
	}

	report_growth(&beside_led, NO_FLOOR);
	report_growth(&beside_vacant, NO_FLOOR);
	report_growth(&load, NO_FLOOR);
	report_load(10000, 2);
	report_load(50000, 10);
	PQfinish(leader);
	PQfinish(monitor);
	return 0;
}
