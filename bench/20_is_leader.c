/*-------------------------------------------------------------------------
 *
 * 20_is_leader.c
 *		What is_leader() costs per call, beside reading the lease row.
 *
 * Each figure is the time of
 *
 *		SELECT count(EXPRESSION) FROM generate_series(1, N)
 *
 * less that of count(1) of the same length, run just before it in the same
 * session, divided by N.  The expressions take turns.  Reading the lease row
 * is measured in the cheapest way that a statement has (a sub-SELECT by
 * primary key, the row's snapshot taken once) and in the one in which an
 * application's function would do it (a SELECT in PL/pgSQL).
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include "client.h"

#define CALLS	200000
#define READS	50000
#define ROUNDS	50
#define TARGET	60.0			/* ns per call */

typedef struct Expression
{
	const char *name;
	const char *sql;
	int			calls;
	bool		as_leader;
	bool		targeted;
} Expression;

static const Expression expressions[] = {
	{"is_leader(), leader", "leader_election.is_leader('bench')",
	CALLS, true, true},
	{"is_leader(), follower", "leader_election.is_leader('bench')",
	CALLS, false, true},
	{"is_leader(), other election", "leader_election.is_leader('other')",
	CALLS, false, false},
	{"read the lease row: sub-SELECT",
		"(SELECT l.leader FROM leader_election.lease l "
		"WHERE l.election = 'bench' AND g.i > 0)",
	READS, true, false},
	{"read the lease row: PL/pgSQL", "bench_reads_lease('bench')",
	READS, true, false},
};

#define NEXPRESSIONS (int) (sizeof(expressions) / sizeof(expressions[0]))

static Sample ns[NEXPRESSIONS];

static PGconn *
new_candidate(const char *name)
{
	PGconn	   *conn = new_connection(name);

	run(conn, "SET jit = off");
	run(conn, "SET max_parallel_workers_per_gather = 0");
	run(conn, "SET work_mem = '256MB'");	/* the series stays in memory */
	run(conn, "SET enable_seqscan = off");	/* by primary key, however small
											 * the table */
	run(conn, "SET enable_bitmapscan = off");
	free(ask(conn, "SELECT leader_election.join('bench', '%s')", name));
	return conn;
}

static double
time_count(PGconn *conn, const char *sql, int n)
{
	double		start = now_us();

	run(conn, "SELECT count(%s) FROM generate_series(1, %d) g (i)", sql, n);
	return now_us() - start;
}

static void
check(PGconn *conn, const char *expected)
{
	wait_for(conn, "SELECT leader_election.is_leader('bench') = %s", expected);
}

int
main(void)
{
	PGconn	   *leader = new_candidate("leader");
	PGconn	   *follower = new_candidate("follower");
	double		base;

	run(leader, "CREATE FUNCTION bench_reads_lease(name text) RETURNS boolean "
		"LANGUAGE plpgsql AS 'DECLARE holder text; BEGIN "
		"SELECT l.leader INTO holder FROM leader_election.lease l "
		"WHERE l.election = name; RETURN holder IS NOT NULL; END'");
	check(leader, "true");
	check(follower, "false");

	for (int round = 0; round <= ROUNDS; round++)
	{
		for (int i = 0; i < NEXPRESSIONS; i++)
		{
			const Expression *e = &expressions[i];
			PGconn	   *conn = e->as_leader ? leader : follower;
			double		empty = time_count(conn, "1", e->calls);
			double		full = time_count(conn, e->sql, e->calls);

			if (round > 0)		/* the first one is to warm up */
				add(&ns[i], (full - empty) * 1000 / e->calls);
		}
	}

	check(leader, "true");
	check(follower, "false");
	run(leader, "DROP FUNCTION bench_reads_lease");

	base = median(&ns[0]);
	for (int i = 0; i < NEXPRESSIONS; i++)
	{
		const Expression *e = &expressions[i];
		double		m = median(&ns[i]);

		report(e->name, "ns", &ns[i], (Against) {
			.floor = expressions[0].name, .ratio = m / base,
			.target = e->targeted ? text("median <= %.0f", TARGET) : NULL,
			.met = m <= TARGET
		});
	}
	PQfinish(leader);
	PQfinish(follower);
	return 0;
}
