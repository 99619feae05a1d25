/*-------------------------------------------------------------------------
 *
 * 70_announce.c
 *		How long after a change of leadership its notification arrives.
 *
 * The server is idle but for this.  A client sends acquire() and release() in
 * turns; another connection listens; this process waits for both.  The change
 * is committed at some moment between the sending of the statement and its
 * answer: the time is given from both.  The answer is compared with that to a
 * bare UPDATE of one row, after as long a rest: where the disk sleeps between
 * two flushes, both pay for it.
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define CHANGES		300
#define REST_MS		20
#define TARGET_MS	3.0

static Sample from_sent;
static Sample from_answer;
static Sample answers;
static Sample bare_answers;

/*
 * Wait for the answer and for the notification, in either order.
 */
static void
time_change(PGconn *client, PGconn *listener, const char *sql,
			const char *expected)
{
	struct pollfd fds[2] = {
		{.fd = PQsocket(client), .events = POLLIN},
		{.fd = PQsocket(listener), .events = POLLIN}
	};
	double		sent = now_us();
	double		answered = 0;
	double		notified = 0;

	if (!PQsendQuery(client, sql))
		die("%s", PQerrorMessage(client));
	while (answered == 0 || notified == 0)
	{
		double		now;

		if (poll(fds, 2, 60000) <= 0)
			die("%s: not %s", sql, answered == 0 ? "answered" : "notified");
		now = now_us();
		if (fds[0].revents != 0 && !PQconsumeInput(client))
			die("%s", PQerrorMessage(client));
		if (fds[1].revents != 0 && !PQconsumeInput(listener))
			die("%s", PQerrorMessage(listener));
		if (answered == 0 && !PQisBusy(client))
			answered = now;
		if (notified == 0)
		{
			PGnotify   *notify = PQnotifies(listener);

			if (notify == NULL)
				continue;
			if (strstr(notify->extra, expected) == NULL)
				die("notified of %s, not of %s", notify->extra, expected);
			PQfreemem(notify);
			notified = now;
		}
	}
	add(&answers, (answered - sent) / 1000);
	add(&from_sent, (notified - sent) / 1000);
	add(&from_answer, (notified - answered) / 1000);
}

static void
check_answer(PGconn *client)
{
	PGresult   *result;

	while ((result = PQgetResult(client)) != NULL)
	{
		if (PQresultStatus(result) != PGRES_TUPLES_OK ||
			PQntuples(result) != 1 ||
			strcmp(PQgetvalue(result, 0, 0), "f") == 0)
			die("not a change: %s", PQerrorMessage(client));
		PQclear(result);
	}
}

static void
time_update(PGconn *client)
{
	double		sent = now_us();

	run(client, "UPDATE bench_row SET n = n + 1");
	add(&bare_answers, (now_us() - sent) / 1000);
}

int
main(void)
{
	PGconn	   *client = new_connection("client");
	PGconn	   *listener = new_connection("listener");
	const char *floor = "announce: answer to a bare UPDATE";
	double		m;

	run(client, "CREATE TABLE bench_row AS SELECT 0 AS n");
	run(listener, "LISTEN leadership_changed");
	for (int term = 1; term <= CHANGES / 2; term++)
	{
		char		sql[200];

		pause_ms(REST_MS);
		time_change(client, listener, "SELECT term FROM "
					"leader_election.acquire('announce', 'client')",
					"\"elected\"");
		check_answer(client);
		pause_ms(REST_MS);
		snprintf(sql, sizeof(sql),
				 "SELECT leader_election.release('announce', %d)", term);
		time_change(client, listener, sql, "\"vacated\"");
		check_answer(client);
		pause_ms(REST_MS);
		time_update(client);
	}
	run(client, "DROP TABLE bench_row");

	m = median(&from_answer);
	report(floor, "ms", &bare_answers, FLOOR(floor, 1));
	report("announce: answer to acquire(), release()", "ms", &answers,
		   FLOOR(floor, median(&answers) / median(&bare_answers)));
	report("announce: notification after the answer", "ms", &from_answer,
		   (Against) {
		.target = text("median <= %.0f", TARGET_MS), .met = m <= TARGET_MS
	});
	report("announce: notification after the sending", "ms", &from_sent,
		   FLOOR(floor, median(&from_sent) / median(&bare_answers)));
	PQfinish(client);
	PQfinish(listener);
	return 0;
}
