/*-------------------------------------------------------------------------
 *
 * crowd.c
 *		Many elections: "crowd 1", "crowd 2" ...
 *
 * A statement locks each election that it changes until it ends, and the
 * server's lock table has an end: so there are statements of a thousand calls.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <sys/socket.h>

#include "crowd.h"

#define AT_ONCE 1000

/*
 * Call an expression on some elections (their number is "i"); returns the
 * milliseconds that it took, or -1 if that was more than the limit (0: none).
 */
static double
for_each(PGconn *conn, const char *expression, int from, int to, int limit_ms)
{
	double		start = now_us();
	double		ms = 0;

	for (; from <= to; from += AT_ONCE)
	{
		if (limit_ms > 0 && ms > limit_ms)
			return -1;
		run(conn, "SELECT count(%s) FROM generate_series(%d, %d) i",
			expression, from, from + AT_ONCE <= to ? from + AT_ONCE - 1 : to);
		ms = (now_us() - start) / 1000;
	}
	return ms;
}

void
make_crowd(PGconn *conn, int from, int to, const char *strategy,
		   const char *lease)
{
	(void) for_each(conn, text("leader_election.create_election('crowd ' || i,"
							   " strategy => '%s', lease_duration => '%s')::text",
							   strategy, lease), from, to, 0);
}

/*
 * Stand in these elections; returns the milliseconds that it took, or -1 if
 * that was more than the limit.
 */
double
join_crowd(PGconn *conn, const char *candidate, int from, int to, int limit_ms)
{
	return for_each(conn, text("leader_election.join('crowd ' || i, '%s')",
							   candidate), from, to, limit_ms);
}

/*
 * Wait until a candidate leads n elections; returns the milliseconds that it
 * took, or -1 if that was more than the limit.  Counting takes its time from
 * what is being measured: it is done seldom where there are many.
 */
double
await_crowd(PGconn *conn, const char *leader, int n, int limit_ms)
{
	double		start = now_us();

	for (;;)
	{
		double		ms;
		double		led = ask_number(conn, "SELECT count(*) "
									 "FROM leader_election.lease "
									 "WHERE election LIKE 'crowd %%' AND leader = '%s'",
									 leader);

		ms = (now_us() - start) / 1000;
		if (led >= n)
			return ms;
		if (ms > limit_ms)
			return -1;
		pause_ms(1 + n / 200);
	}
}

/*
 * When nobody leads any of them any more.
 */
void
drop_crowd(PGconn *conn, int n)
{
	wait_for(conn, "SELECT count(*) = 0 FROM leader_election.lease "
			 "WHERE election LIKE 'crowd %%' AND leader IS NOT NULL");
	(void) for_each(conn, "leader_election.drop_election('crowd ' || i)::text",
					1, n, 0);
	run(conn, "VACUUM leader_election.election, leader_election.lease, "
		"leader_election.candidate, leader_election.history");
}

/*
 * What the server sees of a client that was killed: its socket is closed.
 */
void
die_suddenly(PGconn *conn)
{
	(void) shutdown(PQsocket(conn), SHUT_RDWR);
	PQfinish(conn);
}

/*
 * Begin anew, with no election at all.
 */
void
forget_everything(PGconn *conn)
{
	run(conn, "DROP EXTENSION leader_election");
	run(conn, "CREATE EXTENSION leader_election");
}
