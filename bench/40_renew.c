/*-------------------------------------------------------------------------
 *
 * 40_renew.c
 *		renew() beside the write that it cannot do without: an UPDATE of one
 *		row, each committed, by one client.  For information.
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>

#include "client.h"

#define ROUNDS		10
#define ROUND_US	300e3

static void
prepare(PGconn *conn, const char *name, const char *sql)
{
	PGresult   *result = PQprepare(conn, name, sql, 0, NULL);

	if (PQresultStatus(result) != PGRES_COMMAND_OK)
		die("%s", PQerrorMessage(conn));
	PQclear(result);
}

/*
 * How often per second a prepared statement runs, each time with this result.
 */
static double
rate(PGconn *conn, const char *name, ExecStatusType expected, int rows)
{
	double		start = now_us();
	double		now;
	int			n = 0;

	do
	{
		PGresult   *result = PQexecPrepared(conn, name, 0, NULL, NULL, NULL, 0);

		if (PQresultStatus(result) != expected || PQntuples(result) != rows)
			die("%s: %s", name, PQerrorMessage(conn));
		PQclear(result);
		n++;
		now = now_us();
	} while (now - start < ROUND_US);
	return n * 1e6 / (now - start);
}

int
main(void)
{
	PGconn	   *conn = new_connection("renew");
	Sample		renew = {.n = 0};
	Sample		update = {.n = 0};

	run(conn, "CREATE TABLE bench_row (id int PRIMARY KEY, n bigint) "
		"WITH (fillfactor = 30)");
	run(conn, "INSERT INTO bench_row VALUES (1, 0)");
	run(conn, "SELECT leader_election.join('renew', 'one', "
		"auto_renew => false)");
	prepare(conn, "renew", "SELECT * FROM leader_election.renew('renew')");
	prepare(conn, "update", "UPDATE bench_row SET n = n + 1 WHERE id = 1");

	for (int round = 0; round <= ROUNDS; round++)
	{
		double		r = rate(conn, "renew", PGRES_TUPLES_OK, 1);
		double		u = rate(conn, "update", PGRES_COMMAND_OK, 0);

		if (round > 0)			/* the first one is to warm up */
		{
			add(&renew, r);
			add(&update, u);
		}
	}
	run(conn, "DROP TABLE bench_row");

	report("bare UPDATE of one row, 1 client", "1/s", &update, "1.00", "",
		   false);
	report("renew(), 1 client", "1/s", &renew,
		   text("%.2f", median(&renew) / median(&update)), "", false);
	PQfinish(conn);
	return 0;
}
