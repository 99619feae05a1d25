/*-------------------------------------------------------------------------
 *
 * 83_history.c
 *		Growth with what has been: a takeover in an election with a long
 *		history; the removal of old history; renewals under an old snapshot.
 *
 * Beside what is slow, a session leads an unrelated election with a lease of
 * 300 ms: it must not lose it.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "contest.h"
#include "crowd.h"

#define TRIALS			20
#define OLD_TERMS		1000000
#define STANDING		20000	/* detached candidates in one election */
#define STANDING_TERMS	6000
#define LIMIT_MS		120000
#define LEASES			100		/* renewed under the snapshot */
#define RENEWALS		330		/* of each */
#define RENEWAL_MS		100		/* a third of a lease */
#define LOAD_MS			5000
#define READ_ROUNDS		50

static PGconn *monitor;
static const int sizes[] = {1000, 100000, 1000000};

#define NSIZES (int) (sizeof(sizes) / sizeof(sizes[0]))

static Growth race = {
	.name = "history-race", .title = "race: takeover", .unit = "ms",
	.of = "earlier terms"
};
static Growth race_cpu = {
	.name = "history-race-cpu", .title = "race: takeover in the worker",
	.unit = "ms", .of = "earlier terms"
};
static Growth spread = {
	.name = "history-spread", .title = "spread: takeover", .unit = "ms",
	.of = "earlier terms"
};
static Growth spread_cpu = {
	.name = "history-spread-cpu", .title = "spread: takeover in the worker",
	.unit = "ms", .of = "earlier terms"
};

/*
 * Give an election n terms that ended so long ago, as if it had come to them by
 * itself: it goes on above them, and they are no news to anybody.
 */
static void
make_history(const char *election, int from, int to, const char *age)
{
	run(monitor, "UPDATE leader_election.lease SET term = %d "
		"WHERE election = '%s'", to, election);
	run(monitor, "INSERT INTO leader_election.history (election, term, leader, "
		"kind, role, acquired_at, ended_at, reason) "
		"SELECT '%s', i, 'candidate ' || i %% 10, 'session', current_user, "
		"now() - interval '%s' - interval '1 s', now() - interval '%s', "
		"'resigned' FROM generate_series(%d, %d) i",
		election, age, age, from, to);
	run(monitor, "DO $$ BEGIN "
		"IF to_regclass('leader_election.announced') IS NOT NULL THEN "
		"DELETE FROM leader_election.announced; END IF; END $$");
	run(monitor, "VACUUM ANALYZE leader_election.history");
}

static void
beside_history(void)
{
	static Contest contest;
	static const char *const strategies[] = {"race", "spread"};
	Growth	   *takeovers[] = {&race, &spread};
	Growth	   *cpu[] = {&race_cpu, &spread_cpu};
	int			from = 1;

	for (int i = 0; i < NSIZES; i++)
	{
		forget_everything(monitor);
		for (int s = 0; s < 2; s++)
		{
			run(monitor, "SELECT leader_election.create_election('%s', '%s')",
				strategies[s], strategies[s]);
			make_history(strategies[s], from, sizes[i], "1 day");
			start_contest(&contest, &campaign, strategies[s], 2, monitor);
			add_takeovers(&contest, TRIALS, sizes[i], takeovers[s], cpu[s]);
			end_contest(&contest);
		}
	}
}

static PGconn *
lead_unrelated(void)
{
	PGconn	   *conn = new_connection("unrelated");

	run(monitor, "SELECT leader_election.create_election('unrelated', "
		"lease_duration => '300 ms')");
	wait_for(conn, "SELECT leader_election.join('unrelated', 'unrelated') "
			 "IS NOT NULL");
	return conn;
}

static void
report_unrelated(const char *beside)
{
	Sample		lost = {.n = 0};

	/* One that is lost just now is elected again. */
	wait_for(monitor, "SELECT leader_election.leader('unrelated') IS NOT NULL");
	add(&lost, ask_number(monitor, "SELECT term - 1 FROM leader_election.lease "
						  "WHERE election = 'unrelated'"));
	report(text("leases of 300 ms lost, %s", beside), "", &lost, (Against) {
		.target = "max = 0", .met = maximum(&lost) == 0
	});
}

/*
 * A worker removes old history when it starts.
 */
static void
remove_history(void)
{
	PGconn	   *unrelated;
	Sample		seconds = {.n = 0};
	double		start;
	double		left;
	char	   *pid;

	forget_everything(monitor);
	run(monitor, "SELECT leader_election.create_election('old')");
	make_history("old", 1, OLD_TERMS, "60 days");
	unrelated = lead_unrelated();
	pid = worker_pid(monitor);
	start = now_us();
	run(monitor, "SELECT pg_terminate_backend(%s)", pid);
	/* Somebody has to call, or no other one starts; but a call renews. */
	while (ask_number(monitor, "SELECT count(*) FROM pg_stat_activity "
					  "WHERE backend_type = 'leader_election worker' "
					  "AND pid <> %s", pid) == 0)
	{
		run(unrelated, "SELECT leader_election.join('unrelated', 'unrelated')");
		pause_ms(10);
	}
	do
	{
		pause_ms(50);
		left = ask_number(monitor, "SELECT count(*) FROM (SELECT "
						  "FROM leader_election.history "
						  "WHERE election = 'old' LIMIT 1) t");
	} while (left > 0 && now_us() - start < LIMIT_MS * 1e3);
	free(pid);
	add(&seconds, (now_us() - start) / 1e6);
	report(text("%d old terms removed", OLD_TERMS), "s", &seconds, NO_FLOOR);
	report_unrelated("history removed");
	PQfinish(unrelated);
}

/*
 * An election of strategy spread with many detached candidates of one role
 * falls vacant.
 */
static void
crowded_seat(void)
{
	PGconn	   *unrelated;
	PGconn	   *leader = new_connection("leader");
	Sample		seconds = {.n = 0};
	double		start;
	int			i;

	forget_everything(monitor);
	run(monitor, "SELECT leader_election.create_election('seat', 'spread', "
		"lease_duration => '1 hour')");
	make_history("seat", 1, STANDING_TERMS, "1 day");
	run(monitor, "UPDATE leader_election.history "
		"SET leader = 'stands ' || term WHERE election = 'seat'");
	unrelated = lead_unrelated();
	wait_for(leader, "SELECT leader_election.join('seat', 'leader') "
			 "IS NOT NULL");
	for (i = 1; i <= STANDING; i += 1000)
		run(monitor, "SELECT count(a.term) FROM generate_series(%d, %d) i, "
			"leader_election.acquire('seat', 'stands ' || i) a", i, i + 999);
	report_unrelated(text("%d stand elsewhere", STANDING));

	run(monitor, "UPDATE leader_election.lease SET term = 1 "
		"WHERE election = 'unrelated'");
	start = now_us();
	PQfinish(leader);
	/* A seat is reserved for who comes first, or nobody leads it. */
	while (now_us() - start < LIMIT_MS * 1e3)
	{
		if (ask_number(monitor, "SELECT count(*) FROM leader_election.status "
					   "WHERE election = 'seat' AND leader IS NULL "
					   "AND waiting_for LIKE 'reserved%%'") > 0)
			break;
		pause_ms(20);
	}
	add(&seconds, (now_us() - start) / 1e6);
	report(text("spread: reserved for one of %d", STANDING), "s", &seconds,
		   NO_FLOOR);
	report_unrelated(text("%d stand for a free seat", STANDING));
	PQfinish(unrelated);
}

/*
 * Microseconds for each call of leader().
 */
static void
add_reads(Sample *us)
{
	for (int i = 0; i < READ_ROUNDS; i++)
	{
		double		start = now_us();

		run(monitor, "SELECT count(leader_election.leader('crowd ' || i)) "
			"FROM generate_series(1, %d) i", LEASES);
		add(us, (now_us() - start) / LEASES);
	}
}

static void
beside_snapshot(void)
{
	PGconn	   *leader = new_connection("leader");
	PGconn	   *reader = new_connection("reader");
	Sample		read_us[3] = {{.n = 0}};
	Sample		load[3] = {{.n = 0}};

	forget_everything(monitor);
	make_crowd(monitor, 1, LEASES, "race", text("%d ms", 3 * RENEWAL_MS));
	(void) join_crowd(leader, "leader", 1, LEASES, 0);
	pause_ms(1000);
	add(&load[0], worker_load(monitor, LOAD_MS));
	add_reads(&read_us[0]);
	run(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ");
	run(reader, "SELECT count(*) FROM leader_election.lease");
	pause_ms(RENEWALS * RENEWAL_MS);
	add(&load[1], worker_load(monitor, LOAD_MS));
	add_reads(&read_us[1]);
	run(reader, "COMMIT");
	run(monitor, "VACUUM leader_election.lease");
	add(&load[2], worker_load(monitor, LOAD_MS));
	add_reads(&read_us[2]);

	report("leader()", "us", &read_us[0], FLOOR("leader()", 1));
	report(text("leader(), after %d renewals under a snapshot", RENEWALS), "us",
		   &read_us[1],
		   FLOOR("leader()", median(&read_us[1]) / median(&read_us[0])));
	report("leader(), when it is gone", "us", &read_us[2],
		   FLOOR("leader()", median(&read_us[2]) / median(&read_us[0])));
	report(text("worker load, %d leases of %d ms", LEASES, 3 * RENEWAL_MS), "%",
		   &load[0], FLOOR("worker load", 1));
	report(text("worker load, after %d renewals so", RENEWALS), "%",
		   &load[1],
		   FLOOR("worker load", median(&load[1]) / median(&load[0])));
	report("worker load, when it is gone", "%", &load[2],
		   FLOOR("worker load", median(&load[2]) / median(&load[0])));
	PQfinish(reader);
	PQfinish(leader);
}

int
main(int argc, char **argv)
{
	if (argc == 4 && strcmp(argv[1], "hold") == 0)
		return hold(argv[2], argv[3]);
	monitor = new_connection("monitor");
	beside_history();
	report_growth(&race, NO_FLOOR);
	report_growth(&race_cpu, NO_FLOOR);
	report_growth(&spread, NO_FLOOR);
	report_growth(&spread_cpu, NO_FLOOR);
	remove_history();
	crowded_seat();
	beside_snapshot();
	PQfinish(monitor);
	return 0;
}
