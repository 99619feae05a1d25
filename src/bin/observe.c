/*-------------------------------------------------------------------------
 *
 * observe.c
 *		pg_leader status and yield, and what all that observe have in common.
 *
 * Invariant: what is shown is what the server's views say; whoever cannot be
 * asked is an error with an exit code of its own, never an empty answer.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

/* How often to look whether the leader has gone */
#define YIELD_INTERVAL		(200 * MSEC)

#define SQL_STATUS \
	"SELECT s.election AS \"Election\", s.state AS \"State\"," \
	" s.leader AS \"Leader\", s.term AS \"Term\"," \
	" round(extract(epoch FROM s.remaining), 1) || ' s' AS \"Remaining\"," \
	" s.candidates AS \"Candidates\", s.waiting_for AS \"Waiting for\"" \
	" FROM leader_election.status s" \
	" WHERE $1::text IS NULL OR s.election = $1 ORDER BY s.election"
#define SQL_CANDIDATES \
	"SELECT c.position AS \"Position\", c.candidate AS \"Candidate\"," \
	" c.kind AS \"Kind\", c.rank AS \"Rank\", c.progress AS \"Progress\"," \
	" CASE WHEN c.leads THEN 'leads' WHEN NOT c.alive THEN 'dead' END AS \"Note\"" \
	" FROM leader_election.candidates c WHERE c.election = $1" \
	" ORDER BY c.position, c.candidate"
#define SQL_STATUS_JSON \
	"SELECT row_to_json(x), x.leader FROM (SELECT s.election, s.strategy," \
	" s.state, s.waiting_for, s.leader, s.metadata, s.term, s.kind," \
	" s.backend_pid, s.acquired_at, s.renewed_at, s.expires_at," \
	" (extract(epoch FROM s.remaining) * 1000)::bigint AS remaining_ms," \
	" s.quorum, CASE WHEN NOT pg_is_in_recovery() THEN (" \
	"SELECT ('[' || coalesce(string_agg(row_to_json(c)::text, ','" \
	" ORDER BY c.position, c.candidate), '') || ']')::json FROM (" \
	"SELECT a.candidate, a.kind, a.rank, a.progress, a.metadata, a.joined_at," \
	" a.alive, a.leads, a.position FROM leader_election.candidates a" \
	" WHERE a.election = s.election) c) END AS candidates" \
	" FROM leader_election.status s" \
	" WHERE $1::text IS NULL OR s.election = $1 ORDER BY s.election) x"

#define SQL_LEADER \
	"SELECT s.term, s.leader, s.waiting_for," \
	" (extract(epoch FROM e.lease_duration) * 1000000)::bigint" \
	" FROM leader_election.status s JOIN leader_election.election e" \
	" USING (election) WHERE s.election = $1"
#define SQL_YIELD \
	"SELECT (extract(epoch FROM leader_election.request_yield($1, $2, $3))" \
	" * 1000000)::bigint"

/* --- asking */

/*
 * Connect, or say why not and exit.
 */
void
connect_observer(Connection *c, const ObserveOptions *options)
{
	memset(c, 0, sizeof(Connection));
	c->options = &options->connect;
	if (connection_open(c, CONNECT_LIMIT))
		return;
	pg_log_error("%s", c->error);
	exit(EXIT_NO_CONNECTION);
}

/*
 * Ask something, or say why there is no answer and exit.
 */
Answer
ask_observer(Connection *c, const char *sql, int nparams,
			 const char *const *values)
{
	Answer		answer = connection_query(c, sql, nparams, values,
										  OBSERVER_ANSWER_LIMIT, false);

	if (answer.outcome == OUTCOME_ROWS)
		return answer;
	if (is_no_extension(&answer))
	{
		report_no_extension(c);
		exit(EXIT_NO_EXTENSION);
	}
	if (answer.outcome == OUTCOME_ERROR)
	{
		report_answer(&answer);
		exit(EXIT_USAGE);
	}
	pg_log_error("%s", c->error);
	exit(EXIT_NO_CONNECTION);
}

static void
no_such_election(const char *election)
{
	pg_log_error("election \"%s\" does not exist", election);
	exit(EXIT_USAGE);
}

/* --- status */

static bool
is_number(const PGresult *result, int column)
{
	Oid			type = PQftype(result, column);

	return type == 20 || type == 23;	/* bigint, integer */
}

/*
 * The value in a cell, or (row -1) the head of its column; to be freed.
 */
static char *
cell(const PGresult *result, int row, int column)
{
	return printable(row < 0 ? PQfname(result, column) :
					 PQgetvalue(result, row, column));
}

static void
print_cell(char *text, int width, bool right, bool last)
{
	int			fill = width - display_width(text);

	if (right)
		printf("%*s%s", fill, "", text);
	else
		printf("%s%*s", text, last ? 0 : fill, "");
	fputs(last ? "\n" : "  ", stdout);
	pg_free(text);
}

/*
 * Print a result as a table, columns with nothing in them left out.
 */
static void
print_table(const PGresult *result)
{
	int			width[16] = {0};
	int			last = 0;

	for (int col = 0; col < PQnfields(result); col++)
	{
		for (int row = PQntuples(result) - 1; row >= -1; row--)
		{
			char	   *text = cell(result, row, col);

			if (row >= 0 || width[col] > 0)
				width[col] = Max(width[col], display_width(text));
			pg_free(text);
		}
		if (width[col] > 0)
			last = col;
	}
	for (int row = -1; row < PQntuples(result); row++)
	{
		for (int col = 0; col < PQnfields(result); col++)
		{
			if (width[col] > 0)
				print_cell(cell(result, row, col), width[col],
						   is_number(result, col), col == last);
		}
	}
}

int
show_status(const ObserveOptions *options)
{
	const char *values[] = {options->election};
	Connection	c;
	Answer		answer;
	bool		led = true;

	connect_observer(&c, options);
	answer = ask_observer(&c, options->json ? SQL_STATUS_JSON : SQL_STATUS, 1,
						  values);
	if (options->election != NULL && PQntuples(answer.result) == 0)
		no_such_election(options->election);
	if (options->election != NULL)
		led = !PQgetisnull(answer.result, 0, options->json ? 1 : 2);
	if (!options->json)
		print_table(answer.result);
	for (int i = 0; options->json && i < PQntuples(answer.result); i++)
		print_json(PQgetvalue(answer.result, i, 0));
	answer_free(&answer);

	if (options->election != NULL && !options->json)
	{
		answer = ask_observer(&c, SQL_CANDIDATES, 1, values);
		if (PQntuples(answer.result) > 0)
		{
			putchar('\n');
			print_table(answer.result);
		}
		answer_free(&answer);
	}
	connection_close(&c);
	return led ? EXIT_SUCCESS : EXIT_NOBODY_LEADS;
}

/* --- yield */

static int64
bigint(const Answer *answer, int column)
{
	return strtoll(PQgetvalue(answer->result, 0, column), NULL, 10);
}

static int
tell_successor(const Answer *answer)
{
	char	   *leader = printable(PQgetvalue(answer->result, 0, 1));

	printf("\"%s\" leads in term %s\n", leader, PQgetvalue(answer->result, 0, 0));
	pg_free(leader);
	return EXIT_SUCCESS;
}

static int
tell_vacancy(const Answer *answer)
{
	char	   *waiting_for = printable(PQgetvalue(answer->result, 0, 2));

	printf("nobody leads%s%s\n", waiting_for[0] ? ", waiting for " : "",
		   waiting_for);
	pg_free(waiting_for);
	return EXIT_NOBODY_LEADS;
}

/*
 * Wait until another term than this one is led or, when this one is over, no
 * longer than a lease more.  Says who leads then.
 */
static int
wait_for_successor(Connection *c, const ObserveOptions *options, int64 term)
{
	const char *values[] = {options->election};
	int64		give_up = NEVER;
	int			code = -1;

	for (;;)
	{
		Answer		answer = ask_observer(c, SQL_LEADER, 1, values);
		bool		vacant;
		PGnotify   *n;

		if (PQntuples(answer.result) == 0)
			no_such_election(options->election);
		vacant = PQgetisnull(answer.result, 0, 1);
		if (!vacant && bigint(&answer, 0) > term)
			code = tell_successor(&answer);
		else if (vacant && give_up == NEVER)
			give_up = now_us() + bigint(&answer, 3);
		else if (vacant && now_us() >= give_up)
			code = tell_vacancy(&answer);
		answer_free(&answer);
		if (code >= 0)
			return code;
		(void) connection_wait(c, now_us() + YIELD_INTERVAL);
		while ((n = connection_notification(c)) != NULL)
			PQfreemem(n);
	}
}

int
yield_election(const ObserveOptions *options)
{
	const char *values[] = {
		options->election, options->to_candidate,
		options->terminate ? "true" : "false"
	};
	Connection	c;
	Answer		leader;
	Answer		answer;
	int			code = EXIT_SUCCESS;

	connect_observer(&c, options);
	connection_listen(&c, CHANNEL, OBSERVER_ANSWER_LIMIT);
	leader = ask_observer(&c, SQL_LEADER, 1, values);
	if (PQntuples(leader.result) == 0)
		no_such_election(options->election);
	answer = ask_observer(&c, SQL_YIELD, 3, values);
	if (PQgetisnull(answer.result, 0, 0) || PQgetisnull(leader.result, 0, 1))
		printf("nobody leads\n");
	else
	{
		char	   *name = printable(PQgetvalue(leader.result, 0, 1));
		char	   *length = format_duration(bigint(&answer, 0));

		printf("\"%s\" is asked to yield: that takes %s at most\n", name, length);
		fflush(stdout);
		pg_free(name);
		pg_free(length);
		code = wait_for_successor(&c, options, bigint(&leader, 0));
	}
	answer_free(&leader);
	answer_free(&answer);
	connection_close(&c);
	return code;
}
