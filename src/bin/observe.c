/*-------------------------------------------------------------------------
 *
 * observe.c
 *		pg_leader status, watch and yield.
 *
 * Invariant: watch tells of every change once, in order.  Notifications only
 * say that it is time to look: what has happened is read from the history,
 * from the last term that was told of on, so that neither a lost connection
 * nor a standby, which has no notifications, makes a difference.
 *
 *-------------------------------------------------------------------------
 */
#define _XOPEN_SOURCE 700		/* wcswidth() */
#include "pg_leader.h"

#include <wchar.h>

#define CONNECT_LIMIT		(10 * SEC)
#define ANSWER_LIMIT		(60 * SEC)
#define CHANNEL				"leadership_changed"

/* How often to look where there are no notifications, and where there are */
#define STANDBY_INTERVAL	SEC
#define PRIMARY_INTERVAL	(5 * SEC)
#define YIELD_INTERVAL		(200 * MSEC)
#define SHORTEST_PAUSE		(100 * MSEC)
#define LONGEST_PAUSE		SEC

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

/* A line of text and a line of JSON for each event */
#define SQL_LINES \
	" concat(e.at::timestamptz(3), '  ', e.election, ': ', CASE" \
	" WHEN e.event = 'yield_requested' THEN" \
	" format('\"%s\" is asked to yield', e.leader)" \
	" WHEN e.leader IS NULL THEN 'vacant'" \
	" ELSE format('\"%s\" leads in term %s', e.leader, e.term) END," \
	" CASE WHEN e.previous IS NOT NULL THEN" \
	" format(', \"%s\" led before: %s', e.previous, e.reason) END)," \
	" json_build_object('election', e.election, 'event', e.event," \
	" 'term', e.term, 'leader', e.leader, 'previous', e.previous," \
	" 'reason', e.reason, 'at', e.at)"

/* The present state, the last term, and whether that has ended */
#define SQL_STATE \
	"SELECT e.election, h.term, h.ended_at IS NOT NULL," SQL_LINES \
	" FROM (SELECT s.election, 'state' AS event, s.term, s.leader," \
	" NULL::text AS previous, NULL::text AS reason, clock_timestamp() AS at" \
	" FROM leader_election.status s" \
	" WHERE $1::text IS NULL OR s.election = $1) e" \
	" LEFT JOIN LATERAL (SELECT l.term, l.ended_at" \
	" FROM leader_election.history l WHERE l.election = e.election" \
	" ORDER BY l.term DESC LIMIT 1) h ON true ORDER BY e.election"

/*
 * What has happened since: $2 to $4 are the elections that are known, their
 * terms, and whether those had ended.
 */
#define SQL_EVENTS \
	"WITH k AS (SELECT * FROM unnest($2::text[], $3::bigint[], $4::boolean[])" \
	" k(election, known, known_end))," \
	" h AS (SELECT h.*, k.known, k.known_end," \
	" lag(h.ended_at) OVER w AS last_end, lag(h.leader) OVER w AS last," \
	" lag(h.reason) OVER w AS last_reason," \
	" lead(h.acquired_at) OVER w AS next_at" \
	" FROM leader_election.history h LEFT JOIN k USING (election)" \
	" WHERE ($1::text IS NULL OR h.election = $1)" \
	" AND h.term >= coalesce(k.known, 0)" \
	" WINDOW w AS (PARTITION BY h.election ORDER BY h.term))," \
	" e AS (SELECT election, 'elected' AS event, term, leader," \
	" CASE WHEN last_end = acquired_at THEN last END AS previous," \
	" CASE WHEN last_end = acquired_at THEN last_reason END AS reason," \
	" acquired_at AS at FROM h WHERE known IS NULL OR term > known" \
	" UNION ALL SELECT election, 'vacated', term, NULL, leader, reason, ended_at" \
	" FROM h WHERE ended_at IS NOT NULL AND next_at IS DISTINCT FROM ended_at" \
	" AND (known IS NULL OR term > known OR NOT known_end))" \
	" SELECT e.election, e.term, e.event = 'vacated'," SQL_LINES \
	" FROM e ORDER BY e.at, e.election, e.term, e.event"

/* A notification that history has nothing of */
#define SQL_YIELD_EVENT \
	"SELECT e.election, e.term, false," SQL_LINES \
	" FROM (SELECT * FROM json_to_record($2::json) AS j(election text," \
	" event text, term bigint, leader text, previous text, reason text," \
	" at timestamptz)) e WHERE e.event = 'yield_requested'" \
	" AND ($1::text IS NULL OR e.election = $1)"

#define SQL_CHANNELS \
	"SELECT DISTINCT coalesce(e.channel, '" CHANNEL "')" \
	" FROM leader_election.election e" \
	" WHERE NOT pg_is_in_recovery() AND ($1::text IS NULL OR e.election = $1)" \
	" UNION SELECT '" CHANNEL "' WHERE NOT pg_is_in_recovery()"

#define SQL_LEADER \
	"SELECT s.term, s.leader, s.waiting_for," \
	" (extract(epoch FROM e.lease_duration) * 1000000)::bigint" \
	" FROM leader_election.status s JOIN leader_election.election e" \
	" USING (election) WHERE s.election = $1"
#define SQL_YIELD \
	"SELECT (extract(epoch FROM leader_election.request_yield($1, $2, $3))" \
	" * 1000000)::bigint"

/* What watch has told of an election */
typedef struct Known
{
	char	   *election;
	char	   *term;
	bool		ended;
} Known;

typedef struct Watch
{
	const ObserveOptions *options;
	Connection	connection;
	Known	   *known;
	int			n;
	bool		standby;
} Watch;

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
										  ANSWER_LIMIT, false);

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

/*
 * How many columns of a terminal a text takes.
 */
int
display_width(const char *text)
{
	wchar_t		wide[1024];
	size_t		n = mbstowcs(wide, text, lengthof(wide));
	int			width = -1;

	if (n != (size_t) -1 && n < lengthof(wide))
		width = wcswidth(wide, n);
	return width >= 0 ? width : (int) strlen(text);
}

static bool
is_number(const PGresult *result, int column)
{
	Oid			type = PQftype(result, column);

	return type == 20 || type == 23;	/* bigint, integer */
}

static void
print_cell(const char *text, int width, bool right, bool last)
{
	int			fill = width - display_width(text);

	if (right)
		printf("%*s%s", fill, "", text);
	else
		printf("%s%*s", text, last ? 0 : fill, "");
	fputs(last ? "\n" : "  ", stdout);
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
		for (int row = 0; row < PQntuples(result); row++)
			width[col] = Max(width[col],
							 display_width(PQgetvalue(result, row, col)));
		if (width[col] == 0)
			continue;
		width[col] = Max(width[col], display_width(PQfname(result, col)));
		last = col;
	}
	for (int row = -1; row < PQntuples(result); row++)
	{
		for (int col = 0; col < PQnfields(result); col++)
		{
			if (width[col] > 0)
				print_cell(row < 0 ? PQfname(result, col) :
						   PQgetvalue(result, row, col), width[col],
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
		puts(PQgetvalue(answer.result, i, 0));
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

/* --- watch */

/*
 * Remember what was told of an election.
 */
static void
remember(Watch *w, const char *election, const char *term, bool ended)
{
	Known	   *k = NULL;

	for (int i = 0; i < w->n; i++)
	{
		if (strcmp(w->known[i].election, election) == 0)
			k = &w->known[i];
	}
	if (k == NULL)
	{
		w->known = w->known == NULL ? pg_malloc(sizeof(Known)) :
			pg_realloc(w->known, (w->n + 1) * sizeof(Known));
		k = &w->known[w->n++];
		k->election = pg_strdup(election);
		k->term = NULL;
	}
	pg_free(k->term);
	k->term = pg_strdup(term[0] == '\0' ? "0" : term);
	k->ended = ended;
}

/*
 * Print events, and remember them unless they are about requests.
 */
static void
tell(Watch *w, const PGresult *result, bool is_change)
{
	for (int i = 0; i < PQntuples(result); i++)
	{
		puts(PQgetvalue(result, i, w->options->json ? 4 : 3));
		if (is_change)
			remember(w, PQgetvalue(result, i, 0), PQgetvalue(result, i, 1),
					 PQgetvalue(result, i, 2)[0] == 't');
	}
	fflush(stdout);
	if (ferror(stdout))
		exit(EXIT_USAGE);
}

static void
append_quoted(char **end, const char *text)
{
	*(*end)++ = '"';
	for (; *text != '\0'; text++)
	{
		if (*text == '"' || *text == '\\')
			*(*end)++ = '\\';
		*(*end)++ = *text;
	}
	*(*end)++ = '"';
}

/*
 * One field of all that is known, as an array of PostgreSQL.
 */
static char *
known_array(const Watch *w, int field)
{
	size_t		size = 3;
	char	   *array;
	char	   *end;

	for (int i = 0; i < w->n; i++)
		size += 2 * strlen(w->known[i].election) + strlen(w->known[i].term) + 8;
	end = array = pg_malloc(size);
	*end++ = '{';
	for (int i = 0; i < w->n; i++)
	{
		const Known *k = &w->known[i];

		if (i > 0)
			*end++ = ',';
		append_quoted(&end, field == 0 ? k->election :
					  field == 1 ? k->term : k->ended ? "t" : "f");
	}
	*end++ = '}';
	*end = '\0';
	return array;
}

/*
 * Ask something.  False: the connection is lost, or the server cannot answer
 * now.
 */
static bool
ask_watch(Watch *w, const char *sql, int nparams, const char *const *values,
		  Answer *answer)
{
	*answer = connection_query(&w->connection, sql, nparams, values,
							   ANSWER_LIMIT, false);
	if (answer->outcome == OUTCOME_ROWS)
		return true;
	if (is_no_extension(answer))
	{
		report_no_extension(&w->connection);
		exit(EXIT_NO_EXTENSION);
	}
	if (answer->outcome == OUTCOME_ERROR && !is_transient(answer))
	{
		report_answer(answer);
		exit(EXIT_USAGE);
	}
	answer_free(answer);
	connection_close(&w->connection);
	return false;
}

/*
 * Tell what has happened since the last time, or (first) what is.
 */
static void
look(Watch *w, bool first)
{
	char	   *known[] = {
		known_array(w, 0), known_array(w, 1), known_array(w, 2)
	};
	const char *values[] = {
		w->options->election, known[0], known[1], known[2]
	};
	Answer		answer;

	if (ask_watch(w, first ? SQL_STATE : SQL_EVENTS, first ? 1 : 4, values,
				  &answer))
	{
		tell(w, answer.result, true);
		answer_free(&answer);
	}
	for (int i = 0; i < lengthof(known); i++)
		pg_free(known[i]);
}

/*
 * Listen to the channels of all elections that are watched.
 */
static void
listen_to_all(Watch *w)
{
	const char *values[] = {w->options->election};
	Answer		answer;

	if (!ask_watch(w, SQL_CHANNELS, 1, values, &answer))
		return;
	w->standby = PQntuples(answer.result) == 0;
	for (int i = 0; i < PQntuples(answer.result); i++)
		connection_listen(&w->connection, PQgetvalue(answer.result, i, 0),
						  ANSWER_LIMIT);
	answer_free(&answer);
}

/*
 * Wait until it is time to look again, and tell of requests to yield.  True:
 * because something has happened.
 */
static bool
wait_to_look(Watch *w)
{
	PGnotify   *n;
	bool		happened = false;

	(void) connection_wait(&w->connection, now_us() +
						   (w->standby ? STANDBY_INTERVAL : PRIMARY_INTERVAL));
	while ((n = connection_notification(&w->connection)) != NULL)
	{
		const char *values[] = {w->options->election, n->extra};
		Answer		answer;

		happened = true;
		if (strstr(n->extra, "\"yield_requested\"") != NULL &&
			ask_watch(w, SQL_YIELD_EVENT, 2, values, &answer))
		{
			tell(w, answer.result, false);
			answer_free(&answer);
		}
		PQfreemem(n);
	}
	return happened;
}

int
watch_elections(const ObserveOptions *options)
{
	Watch		w = {.options = options};
	int64		pause = SHORTEST_PAUSE;
	bool		first = true;

	connect_observer(&w.connection, options);
	for (;;)
	{
		/* Whoever listens before looking misses nothing. */
		listen_to_all(&w);
		if (w.connection.conn != NULL)
		{
			look(&w, first);
			first = first && w.connection.conn == NULL;
		}
		while (w.connection.conn != NULL && wait_to_look(&w))
		{
			if (w.connection.conn != NULL)
				look(&w, false);
		}
		while (w.connection.conn == NULL &&
			   !connection_open(&w.connection, CONNECT_LIMIT))
		{
			pg_usleep(pause);
			pause = Min(pause * 2, LONGEST_PAUSE);
		}
		pause = SHORTEST_PAUSE;
	}
}

/* --- yield */

static int64
bigint(const Answer *answer, int column)
{
	return strtoll(PQgetvalue(answer->result, 0, column), NULL, 10);
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

	for (;;)
	{
		Answer		answer = ask_observer(c, SQL_LEADER, 1, values);
		bool		vacant;
		PGnotify   *n;

		if (PQntuples(answer.result) == 0)
			no_such_election(options->election);
		vacant = PQgetisnull(answer.result, 0, 1);
		if (!vacant && bigint(&answer, 0) > term)
		{
			printf("\"%s\" leads in term %s\n", PQgetvalue(answer.result, 0, 1),
				   PQgetvalue(answer.result, 0, 0));
			return EXIT_SUCCESS;
		}
		if (vacant && give_up == NEVER)
			give_up = now_us() + bigint(&answer, 3);
		if (vacant && now_us() >= give_up)
		{
			printf("nobody leads%s%s\n", PQgetisnull(answer.result, 0, 2) ? "" :
				   ", waiting for ", PQgetvalue(answer.result, 0, 2));
			return EXIT_NOBODY_LEADS;
		}
		answer_free(&answer);
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
	int			code;

	connect_observer(&c, options);
	connection_listen(&c, CHANNEL, ANSWER_LIMIT);
	leader = ask_observer(&c, SQL_LEADER, 1, values);
	if (PQntuples(leader.result) == 0)
		no_such_election(options->election);
	answer = ask_observer(&c, SQL_YIELD, 3, values);
	if (PQgetisnull(answer.result, 0, 0) || PQgetisnull(leader.result, 0, 1))
	{
		printf("nobody leads\n");
		return EXIT_SUCCESS;
	}
	printf("\"%s\" is asked to yield: that takes %s at most\n",
		   PQgetvalue(leader.result, 0, 1), format_duration(bigint(&answer, 0)));
	fflush(stdout);
	code = wait_for_successor(&c, options, bigint(&leader, 0));
	answer_free(&leader);
	answer_free(&answer);
	connection_close(&c);
	return code;
}
