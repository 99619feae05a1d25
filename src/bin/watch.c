/*-------------------------------------------------------------------------
 *
 * watch.c
 *		pg_leader watch.
 *
 * Invariant: every change is told of once, in order.  Notifications only say
 * that it is time to look: what has happened is read from the history, from the
 * last term that was told of on, so that neither a lost connection nor a
 * standby, which has no notifications, makes a difference.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

/* How often to look where there are no notifications, and where there are */
#define STANDBY_INTERVAL	SEC
#define PRIMARY_INTERVAL	(5 * SEC)

/* A line of text and a line of JSON for each event */
#define SQL_LINES \
	" concat(e.at::timestamptz(3), '  ', e.election, ': ', CASE" \
	" WHEN e.event = 'yield_requested' THEN" \
	" format('\"%s\" is asked to yield', e.leader)" \
	" WHEN e.leader IS NULL THEN 'vacant'" \
	" ELSE format('\"%s\" leads in term %s', e.leader, e.term) END," \
	" CASE WHEN e.previous IS NOT NULL THEN" \
	" format(', \"%s\" led before: %s', e.previous, e.reason) END) AS line," \
	" json_build_object('election', e.election, 'event', e.event," \
	" 'term', e.term, 'leader', e.leader, 'previous', e.previous," \
	" 'reason', e.reason, 'at', e.at) AS json"

/*
 * The present state, the last term, and whether that has ended.  No lines where
 * there is no such election any more, but its history.
 */
#define SQL_STATE \
	"SELECT election, h.term, h.ended_at IS NOT NULL, x.line, x.json" \
	" FROM (SELECT e.election," SQL_LINES \
	" FROM (SELECT s.election, 'state' AS event, s.term, s.leader," \
	" NULL::text AS previous, NULL::text AS reason, clock_timestamp() AS at" \
	" FROM leader_election.status s" \
	" WHERE $1::text IS NULL OR s.election = $1) e) x" \
	" FULL JOIN (SELECT DISTINCT ON (l.election) l.election, l.term, l.ended_at" \
	" FROM leader_election.history l" \
	" WHERE $1::text IS NULL OR l.election = $1" \
	" ORDER BY l.election, l.term DESC) h USING (election) ORDER BY election"

/*
 * What has happened since: $2 to $4 are the elections that are known, their
 * terms, and whether those had ended.  An election's events are in the order of
 * its terms, even where somebody has set back the clock.
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
	" FROM e ORDER BY max(e.at) OVER (PARTITION BY e.election" \
	" ORDER BY e.term, e.event), e.election, e.term, e.event"

/*
 * A notification that history has nothing of.  Anybody can send one that looks
 * like it: that there is such a term is the least.
 */
#define SQL_YIELD_EVENT \
	"SELECT e.election, e.term, false," SQL_LINES \
	" FROM (SELECT * FROM json_to_record($2::json) AS j(election text," \
	" event text, term bigint, leader text, previous text, reason text," \
	" at timestamptz)) e JOIN leader_election.history h" \
	" ON (h.election, h.term, h.leader) = (e.election, e.term, e.leader)" \
	" WHERE e.event = 'yield_requested'" \
	" AND ($1::text IS NULL OR e.election = $1)"

#define SQL_CHANNELS \
	"SELECT DISTINCT coalesce(e.channel, '" CHANNEL "')" \
	" FROM leader_election.election e" \
	" WHERE NOT pg_is_in_recovery() AND ($1::text IS NULL OR e.election = $1)" \
	" UNION SELECT '" CHANNEL "' WHERE NOT pg_is_in_recovery()"

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

static void
print_line(const char *line, bool json)
{
	char	   *shown;

	if (json)
	{
		print_json(line);
		return;
	}
	shown = printable(line);
	puts(shown);
	pg_free(shown);
}

/*
 * Print events, and remember them unless they are about requests.
 */
static void
tell(Watch *w, const PGresult *result, bool is_change)
{
	for (int i = 0; i < PQntuples(result); i++)
	{
		if (!PQgetisnull(result, i, 3))
			print_line(PQgetvalue(result, i, w->options->json ? 4 : 3),
					   w->options->json);
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
 * Is this what the server says to a notification that is not one of its own?
 */
static bool
is_bad_data(const Answer *answer)
{
	return answer->outcome == OUTCOME_ERROR &&
		strncmp(answer->sqlstate, "22", 2) == 0;
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
							   OBSERVER_ANSWER_LIMIT, false);
	if (answer->outcome == OUTCOME_ROWS)
		return true;
	if (strcmp(sql, SQL_YIELD_EVENT) == 0 && is_bad_data(answer))
		return false;
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
						  OBSERVER_ANSWER_LIMIT);
	answer_free(&answer);
}

static void
tell_request(Watch *w, const char *payload)
{
	const char *values[] = {w->options->election, payload};
	Answer		answer;

	if (ask_watch(w, SQL_YIELD_EVENT, 2, values, &answer))
		tell(w, answer.result, false);
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
		happened = true;
		if (strstr(n->extra, "\"yield_requested\"") != NULL)
			tell_request(w, n->extra);
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
