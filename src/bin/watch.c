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
#include "observer.h"
#include "subcommands.h"

/* How often to look where there are no notifications, and where there are */
#define STANDBY_INTERVAL	SEC
#define PRIMARY_INTERVAL	(5 * SEC)

/* Payloads to keep that are about elections that are not known yet */
#define MOST_PAYLOADS		100

/*
 * The present state, the last term, and whether that has ended.  No state where
 * there is no such election any more, but its history.
 */
static const Statement sql_state = {
	"SELECT COALESCE(name, election), state, led_term, leader, NULL, NULL,"
	" pg_catalog.clock_timestamp()::pg_catalog.timestamptz(3),"
	" pg_catalog.to_json(pg_catalog.clock_timestamp()), last_term, ended"
	" FROM (SELECT election AS name, 'state' AS state, term AS led_term, leader"
	" FROM leader_election.status"
	" WHERE $1 IS NULL OR election OPERATOR(pg_catalog.=) $1) s"
	" FULL JOIN (SELECT DISTINCT ON (election) election, term AS last_term,"
	" ended_at IS NOT NULL AS ended FROM leader_election.history"
	" WHERE $1 IS NULL OR election OPERATOR(pg_catalog.=) $1"
	" ORDER BY election, term DESC) h ON (name OPERATOR(pg_catalog.=) election)"
	" ORDER BY 1",
	10, false, 1, {TEXTOID}
};

/*
 * What has happened since: $2 to $4 are the elections that are known, their
 * terms, and whether those had ended.  An election's events are in the order of
 * its terms, even where somebody has set back the clock.
 */
static const Statement sql_events = {
	"WITH h AS (SELECT election, term, leader, reason, acquired_at, ended_at,"
	" known, known_end, pg_catalog.lag(ended_at) OVER w AS last_end,"
	" pg_catalog.lag(leader) OVER w AS last_leader,"
	" pg_catalog.lag(reason) OVER w AS last_reason,"
	" pg_catalog.lead(acquired_at) OVER w AS next_at"
	" FROM leader_election.history LEFT JOIN ROWS FROM"
	" (pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4))"
	" AS k (name, known, known_end) ON (name OPERATOR(pg_catalog.=) election)"
	" WHERE ($1 IS NULL OR election OPERATOR(pg_catalog.=) $1)"
	" AND term OPERATOR(pg_catalog.>=) COALESCE(known, 0)"
	" WINDOW w AS (PARTITION BY election ORDER BY term)),"
	" e AS (SELECT election, 'elected' AS event, term, leader,"
	" CASE WHEN last_end OPERATOR(pg_catalog.=) acquired_at THEN last_leader END"
	" AS previous, CASE WHEN last_end OPERATOR(pg_catalog.=) acquired_at"
	" THEN last_reason END AS reason, acquired_at AS happened"
	" FROM h WHERE known IS NULL OR term OPERATOR(pg_catalog.>) known"
	" UNION ALL SELECT election, 'vacated', term, NULL, leader, reason, ended_at"
	" FROM h WHERE ended_at IS NOT NULL"
	" AND (next_at OPERATOR(pg_catalog.=) ended_at) IS NOT TRUE"
	" AND (known IS NULL OR term OPERATOR(pg_catalog.>) known OR NOT known_end))"
	" SELECT election, event, term, leader, previous, reason,"
	" happened::pg_catalog.timestamptz(3), pg_catalog.to_json(happened)"
	" FROM e ORDER BY pg_catalog.max(happened) OVER (PARTITION BY election"
	" ORDER BY term, event), election, term, event",
	8, false, 4, {TEXTOID, TEXTARRAYOID, INT8ARRAYOID, BOOLARRAYOID}
};

/*
 * Which of these are asked to yield: history has nothing of that.
 */
static const Statement sql_yields = {
	"SELECT election, 'yield_requested', term, leader, NULL, NULL,"
	" pg_catalog.clock_timestamp()::pg_catalog.timestamptz(3),"
	" pg_catalog.to_json(pg_catalog.clock_timestamp())"
	" FROM leader_election.status WHERE election OPERATOR(pg_catalog.=) ANY ($1)"
	" AND state OPERATOR(pg_catalog.=) 'yielding' ORDER BY election",
	8, false, 1, {TEXTARRAYOID}
};

static const Statement sql_channels = {
	"SELECT DISTINCT COALESCE(channel, '" CHANNEL "')"
	" FROM leader_election.election WHERE NOT pg_catalog.pg_is_in_recovery()"
	" AND ($1 IS NULL OR election OPERATOR(pg_catalog.=) $1)"
	" UNION SELECT '" CHANNEL "' WHERE NOT pg_catalog.pg_is_in_recovery()",
	1, false, 1, {TEXTOID}
};

/* What watch has told of an election */
typedef struct Known
{
	char	   *election;
	char	   *payload;		/* how notifications about it begin */
	char	   *term;
	bool		ended;
	bool		hinted;			/* there was one about a request to yield */
	bool		yielding;		/* a request to yield was told of */
	char	   *yielding_term;	/* in this term */
} Known;

typedef struct Watch
{
	const Options *options;
	Connection	connection;
	Known	   *known;
	int			n;
	char	   *payloads[MOST_PAYLOADS];	/* of hints, to be looked at again */
	int			npayloads;
	bool		started;		/* the present state was told */
	bool		standby;
} Watch;

/* --- what is known */

static Known *
find_known(const Watch *w, const char *election)
{
	for (int i = 0; i < w->n; i++)
	{
		if (strcmp(w->known[i].election, election) == 0)
			return &w->known[i];
	}
	return NULL;
}

/*
 * Remember what was told of an election.
 */
static void
remember(Watch *w, const char *election, const char *term, bool ended)
{
	Known	   *k = find_known(w, election);

	if (k == NULL)
	{
		w->known = w->known == NULL ? pg_malloc(sizeof(Known)) :
			pg_realloc(w->known, (w->n + 1) * sizeof(Known));
		k = &w->known[w->n++];
		memset(k, 0, sizeof(Known));
		k->election = pg_strdup(election);
		k->payload = notification_prefix(election);
	}
	pg_free(k->term);
	k->term = pg_strdup(term[0] == '\0' ? "0" : term);
	k->ended = ended;
}

/*
 * Mark the election that a notification about a request to yield names.  False:
 * it is not known.
 */
static bool
take_hint(Watch *w, const char *payload)
{
	for (int i = 0; i < w->n; i++)
	{
		Known	   *k = &w->known[i];

		if (strncmp(payload, k->payload, strlen(k->payload)) == 0)
		{
			k->hinted = true;
			return true;
		}
	}
	return false;
}

/*
 * Take a notification.  It says that it is time to look, and no more: anybody
 * can send it.
 */
static bool
take_notification(const char *payload, void *arg)
{
	Watch	   *w = arg;

	if (strstr(payload, "\"yield_requested\"") != NULL && !take_hint(w, payload) &&
		w->npayloads < MOST_PAYLOADS)
		w->payloads[w->npayloads++] = pg_strdup(payload);
	return true;
}

/*
 * Look at notifications again that were about elections not known then.
 */
static void
take_hints(Watch *w)
{
	while (w->npayloads > 0)
	{
		char	   *payload = w->payloads[--w->npayloads];

		(void) take_hint(w, payload);
		pg_free(payload);
	}
}

/* --- asking */

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

/* What to make an array of */
typedef enum Field
{
	FIELD_ELECTION,
	FIELD_TERM,
	FIELD_ENDED
} Field;

/*
 * One field of all that is known, or of what may be yielding, as an array of
 * PostgreSQL.
 */
static char *
known_array(const Watch *w, Field field, bool only_yielding)
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

		if (only_yielding && !k->hinted && !k->yielding)
			continue;
		if (end > array + 1)
			*end++ = ',';
		append_quoted(&end, field == FIELD_ELECTION ? k->election :
					  field == FIELD_TERM ? k->term : k->ended ? "t" : "f");
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
ask_watch(Watch *w, const Statement *statement, const char *const *values,
		  Answer *answer)
{
	*answer = query_ask(&w->connection, statement, values,
							   OBSERVER_ANSWER_LIMIT, false);
	if (answer->outcome == OUTCOME_ROWS)
		return true;
	if (answer_is_no_extension(answer))
	{
		answer_report_no_extension(&w->connection);
		exit(EXIT_NO_EXTENSION);
	}
	if (answer->outcome == OUTCOME_ERROR && !answer_is_transient(answer))
	{
		answer_report(answer);
		exit(EXIT_USAGE);
	}
	answer_free(answer);
	connection_close(&w->connection);
	return false;
}

/*
 * Tell the present state.
 */
static void
tell_state(Watch *w)
{
	const char *values[] = {w->options->election};
	Answer		answer;

	if (!ask_watch(w, &sql_state, values, &answer))
		return;
	for (int i = 0; i < PQntuples(answer.result); i++)
	{
		if (!PQgetisnull(answer.result, i, EVENT_EVENT))
			event_print(w->options->json, answer.result, i);
		remember(w, PQgetvalue(answer.result, i, EVENT_ELECTION),
				 PQgetvalue(answer.result, i, STATE_LAST_TERM),
				 PQgetvalue(answer.result, i, STATE_ENDED)[0] == 't');
	}
	w->started = true;
	answer_free(&answer);
}

/*
 * Tell what has happened since the last time.
 */
static void
tell_changes(Watch *w)
{
	char	   *known[] = {
		known_array(w, FIELD_ELECTION, false), known_array(w, FIELD_TERM, false),
		known_array(w, FIELD_ENDED, false)
	};
	const char *values[] = {
		w->options->election, known[0], known[1], known[2]
	};
	Answer		answer;

	if (ask_watch(w, &sql_events, values, &answer))
	{
		for (int i = 0; i < PQntuples(answer.result); i++)
		{
			event_print(w->options->json, answer.result, i);
			remember(w, PQgetvalue(answer.result, i, EVENT_ELECTION),
					 PQgetvalue(answer.result, i, EVENT_TERM),
					 strcmp(PQgetvalue(answer.result, i, EVENT_EVENT), "vacated") == 0);
		}
		answer_free(&answer);
	}
	for (int i = 0; i < lengthof(known); i++)
		pg_free(known[i]);
}

/*
 * Forget requests to yield, but not whose was told.
 */
static void
end_hints(Watch *w, const PGresult *yields)
{
	for (int i = 0; i < w->n; i++)
		w->known[i].hinted = w->known[i].yielding = false;
	for (int row = 0; row < PQntuples(yields); row++)
	{
		Known	   *k = find_known(w, PQgetvalue(yields, row, EVENT_ELECTION));

		if (k != NULL)
			k->yielding = true;
	}
}

/*
 * Tell who is asked to yield, once for each request.
 */
static void
tell_requests(Watch *w)
{
	char	   *elections;
	const char *values[1];
	Answer		answer;

	take_hints(w);
	values[0] = elections = known_array(w, FIELD_ELECTION, true);
	if (strcmp(elections, "{}") != 0 && ask_watch(w, &sql_yields, values, &answer))
	{
		for (int i = 0; i < PQntuples(answer.result); i++)
		{
			const char *term = PQgetvalue(answer.result, i, EVENT_TERM);
			Known	   *k = find_known(w, PQgetvalue(answer.result, i, EVENT_ELECTION));

			if (k == NULL ||
				(k->yielding && strcmp(k->yielding_term, term) == 0))
				continue;
			event_print(w->options->json, answer.result, i);
			pg_free(k->yielding_term);
			k->yielding_term = pg_strdup(term);
		}
		end_hints(w, answer.result);
		answer_free(&answer);
	}
	pg_free(elections);
}

/*
 * Listen to the channels of all elections that are watched.
 */
static void
listen_to_all(Watch *w)
{
	const char *values[] = {w->options->election};
	Answer		answer;

	if (!ask_watch(w, &sql_channels, values, &answer))
		return;
	w->standby = PQntuples(answer.result) == 0;
	for (int i = 0; i < PQntuples(answer.result); i++)
		notification_listen(&w->connection, PQgetvalue(answer.result, i, 0),
						  OBSERVER_ANSWER_LIMIT);
	answer_free(&answer);
}

static void
connect_again(Watch *w)
{
	int64		pause = SHORTEST_PAUSE;

	while (!connection_open(&w->connection, CONNECT_LIMIT))
	{
		pg_usleep(pause);
		pause = Min(pause * 2, LONGEST_PAUSE);
	}
}

int
watch_run(const Options *options)
{
	Watch		w = {.options = options};
	int64		listen_at = 0;

	observer_connect(&w.connection, options);
	for (;;)
	{
		if (w.connection.conn == NULL)
		{
			connect_again(&w);
			listen_at = 0;
		}
		/* Listen before looking: no change between the two is missed. */
		if (now_us() >= listen_at)
		{
			listen_to_all(&w);
			listen_at = now_us() + (w.standby ? STANDBY_INTERVAL : PRIMARY_INTERVAL);
		}
		if (w.started)
			tell_changes(&w);
		else
			tell_state(&w);
		if (w.started)
			tell_requests(&w);
		event_flush();
		(void) notification_wait(&w.connection, listen_at,
										take_notification, &w);
	}
}
