/*-------------------------------------------------------------------------
 *
 * watch.c
 *		pg_leader watch: prints every change of elections as it happens, and
 *		has hooks run for them (hook.c).
 *
 * Invariant: every change is printed once, in order.  A notification only says
 * that it is time to look.  What has happened is read from the history, from
 * the last term that was printed on.  So nothing is missed when the connection
 * was lost, or on a standby, which has no notifications.
 *
 * On a terminal the newest change of each election is shown instead (screen.c).
 * With hooks, which write there as well, and for programs (--json), a line is
 * printed for each change there, too.
 *
 *-------------------------------------------------------------------------
 */
#include "subcommands.h"
#include "watch.h"

/* How often to look: on a standby, which has no notifications; elsewhere */
#define STANDBY_INTERVAL	SEC
#define PRIMARY_INTERVAL	(5 * SEC)

/* How often a screen is drawn where nothing happens */
#define REDRAW_INTERVAL		SEC

/*
 * Events that say the present state, each with the last term that was begun,
 * whether that has ended, and since when the state is so.  Of an election that
 * was dropped there is only the history, and no state.
 *
 * The view shows what is so now, while the history is that of the moment in
 * which the query began.  A term that began between them is told by the state
 * ("newer"), and must not be told again as an event.
 */
static const Statement sql_state = {
	"SELECT COALESCE(name, election), state, led_term, leader, NULL, NULL,"
	" pg_catalog.clock_timestamp()::pg_catalog.timestamptz(3),"
	" pg_catalog.to_json(pg_catalog.clock_timestamp()),"
	" CASE WHEN newer THEN led_term ELSE last_term END,"
	" CASE WHEN newer THEN leader IS NULL ELSE ended END,"
	" CASE WHEN NOT newer AND (leader IS NULL) OPERATOR(pg_catalog.=) ended"
	" THEN since END"
	" FROM (SELECT name, election, state, led_term, leader, last_term, ended,"
	" since, COALESCE(led_term, 0) OPERATOR(pg_catalog.>)"
	" COALESCE(last_term, 0) AS newer"
	" FROM (SELECT election AS name, 'state' AS state, term AS led_term, leader"
	" FROM leader_election.status"
	" WHERE $1 IS NULL OR election OPERATOR(pg_catalog.=) $1) s"
	" FULL JOIN (SELECT DISTINCT ON (election) election, term AS last_term,"
	" ended_at IS NOT NULL AS ended, COALESCE(ended_at, acquired_at)"
	"::pg_catalog.timestamptz(3) AS since FROM leader_election.history"
	" WHERE $1 IS NULL OR election OPERATOR(pg_catalog.=) $1"
	" ORDER BY election, term DESC) h ON (name OPERATOR(pg_catalog.=) election))"
	" b ORDER BY 1",
	EVENT_FIELDS, false, 1, {TEXTOID}
};

/*
 * The events since the last look.  $2 are the elections that are known (see
 * known_json()).  An election's events come in the order of its terms, even if
 * the server's clock was set back meanwhile.
 */
static const Statement sql_events = {
	"WITH h AS (SELECT election, term, leader, reason, acquired_at, ended_at,"
	" known, known_end, pg_catalog.lag(ended_at) OVER w AS last_end,"
	" pg_catalog.lag(leader) OVER w AS last_leader,"
	" pg_catalog.lag(reason) OVER w AS last_reason,"
	" pg_catalog.lead(acquired_at) OVER w AS next_at"
	" FROM leader_election.history LEFT JOIN pg_catalog.json_to_recordset($2)"
	" AS k (name pg_catalog.text, known pg_catalog.int8, known_end pg_catalog.bool)"
	" ON (name OPERATOR(pg_catalog.=) election)"
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
	" happened::pg_catalog.timestamptz(3), pg_catalog.to_json(happened),"
	" term, event OPERATOR(pg_catalog.=) 'vacated',"
	" happened::pg_catalog.timestamptz(3) FROM e ORDER BY pg_catalog.max(happened) OVER (PARTITION BY election"
	" ORDER BY term, event), election, term, event",
	EVENT_FIELDS, false, 2, {TEXTOID, JSONOID}
};

/*
 * Which of these elections have a leader that is asked to yield.  The history
 * does not say that.
 */
static const Statement sql_yields = {
	"SELECT election, 'yield_requested', term, leader, NULL, NULL,"
	" pg_catalog.clock_timestamp()::pg_catalog.timestamptz(3),"
	" pg_catalog.to_json(pg_catalog.clock_timestamp()), term, false, NULL"
	" FROM leader_election.status, pg_catalog.json_to_recordset($1)"
	" AS k (name pg_catalog.text) WHERE election OPERATOR(pg_catalog.=) name"
	" AND state OPERATOR(pg_catalog.=) 'yielding' ORDER BY election",
	EVENT_FIELDS, false, 1, {JSONOID}
};

/*
 * Which of these elections have a leader that has changed its metadata since it
 * was elected, and since the time that is known.  The history does not say that
 * either.
 */
static const Statement sql_changes = {
	"SELECT election, 'metadata_changed', term, leader, NULL, NULL,"
	" metadata_at::pg_catalog.timestamptz(3), pg_catalog.to_json(metadata_at),"
	" term, false, NULL"
	" FROM leader_election.status, pg_catalog.json_to_recordset($1)"
	" AS k (name pg_catalog.text, known pg_catalog.int8,"
	" changed pg_catalog.timestamptz)"
	" WHERE election OPERATOR(pg_catalog.=) name"
	" AND term OPERATOR(pg_catalog.=) known AND metadata_at IS NOT NULL"
	" AND (changed OPERATOR(pg_catalog.=) metadata_at) IS NOT TRUE"
	" ORDER BY election",
	EVENT_FIELDS, false, 1, {JSONOID}
};

/*
 * What is so of these elections just now, without being an event: how long the
 * lease lasts yet, or why nobody leads.
 */
static const Statement sql_now = {
	"SELECT election, pg_catalog.extract('epoch', remaining), waiting_for, "
	SQL_UNUSED ", " SQL_TROUBLED
	" FROM leader_election.status, pg_catalog.json_to_recordset($1)"
	" AS k (name pg_catalog.text) WHERE election OPERATOR(pg_catalog.=) name",
	NOW_FIELDS, false, 1, {JSONOID}
};

/* Elections that are not known: that is no event while nobody has led them. */
static const Statement sql_new = {
	"SELECT election, 'state', NULL, NULL, NULL, NULL,"
	" pg_catalog.clock_timestamp()::pg_catalog.timestamptz(3),"
	" pg_catalog.to_json(pg_catalog.clock_timestamp()), 0, false, NULL"
	" FROM leader_election.election"
	" WHERE ($1 IS NULL OR election OPERATOR(pg_catalog.=) $1)"
	" AND NOT EXISTS (SELECT FROM pg_catalog.json_to_recordset($2)"
	" AS k (name pg_catalog.text) WHERE name OPERATOR(pg_catalog.=) election)"
	" ORDER BY 1",
	EVENT_FIELDS, false, 2, {TEXTOID, JSONOID}
};

/* The metadata of the leader of a term, while it leads */
static const Statement sql_metadata = {
	"SELECT metadata FROM leader_election.status"
	" WHERE election OPERATOR(pg_catalog.=) $1 AND term OPERATOR(pg_catalog.=) $2",
	1, false, 2, {TEXTOID, INT8OID}
};

/* The channels to listen to; none on a standby */
static const Statement sql_channels = {
	"SELECT DISTINCT COALESCE(channel, '" CHANNEL "')"
	" FROM leader_election.election WHERE NOT pg_catalog.pg_is_in_recovery()"
	" AND ($1 IS NULL OR election OPERATOR(pg_catalog.=) $1)"
	" UNION SELECT '" CHANNEL "' WHERE NOT pg_catalog.pg_is_in_recovery()",
	1, false, 1, {TEXTOID}
};

/* --- which elections are asked about */

static bool
is_any(const KnownElection *k)
{
	return true;
}

static bool
may_be_yielding(const KnownElection *k)
{
	return k->hinted || k->yielding;
}

static bool
is_on_screen(const KnownElection *k)
{
	return screen_asks(k->election);
}

static bool
may_have_changed(const KnownElection *k)
{
	return k->changes;
}

/* --- trouble */

/*
 * Warn the user that the server does not answer, and why, but once a minute at
 * most.  A screen says it all the time.
 */
static void
warn(Watch *w, const char *why)
{
	if (w->draws || now_us() < w->warn_at)
		return;
	w->warn_at = now_us() + WARN_AGAIN;
	w->troubled = true;
	pg_log_warning("%s", text_lend(text_printable_lines(why)));
}

/*
 * Pause before the next try.  The pauses grow until there is an answer.
 */
static void
pause_to_retry(Watch *w)
{
	(void) connection_wait(&w->connection, now_us() +
						   duration_next_pause(&w->pause, LONGEST_PAUSE));
}

/*
 * The server has answered all that we have asked: what we have warned of is over.
 */
static void
recovered(Watch *w)
{
	w->pause = SHORTEST_PAUSE;
	if (w->troubled)
		pg_log_warning("the server answers again");
	w->troubled = false;
}

/* --- looking */

/*
 * Ask the server.  Return false if it does not answer now: the connection is
 * closed then, for the next round to make a new one, after a pause.
 */
static bool
ask(Watch *w, const Statement *statement, const char *const *values,
	Answer *answer)
{
	Connection *c = &w->connection;

	if (c->conn == NULL)
		return false;
	if (observer_try(c, statement, values, answer))
		return true;
	if (answer->outcome == ANSWER_ERROR)
		connection_fail(c, answer->message);
	answer_free(answer);
	warn(w, c->error);
	pause_to_retry(w);
	return false;
}

/*
 * Tell of the event in a row.
 */
static void
tell(Watch *w, const PGresult *events, int row)
{
	if (w->draws)
		screen_note(events, row);
	else
		event_print(events, row, w->options->json);
	hooks_note(&w->hooks, events, row);
}

/*
 * Tell of events, or of the present state.
 */
static void
print_answer(Watch *w, const Statement *statement)
{
	char	   *known = known_json(w, is_any);
	const char *values[] = {w->options->election, known};
	Answer		answer;

	if (ask(w, statement, values, &answer))
	{
		for (int i = 0; i < PQntuples(answer.result); i++)
		{
			if (!PQgetisnull(answer.result, i, EVENT_KIND))
				tell(w, answer.result, i);
			known_remember(w, answer.result, i);
		}
		w->started = true;
		answer_free(&answer);
	}
	pg_free(known);
}

/*
 * Print the present state; or, once that was done, what has happened since the
 * last look.
 */
static void
print_events(Watch *w)
{
	print_answer(w, w->started ? &sql_events : &sql_state);
}

/*
 * Show elections that were made since the last look, before anybody leads them.
 */
static void
show_new(Watch *w)
{
	if (w->looks_at_all)
		print_answer(w, &sql_new);
	w->looks_at_all = false;
}

/*
 * Print which of these leaders are asked to yield, each request once.  Forget
 * the hints.  The next round looks at these leaders again without a hint, to
 * see when they are not asked any more.
 */
static void
take_requests(Watch *w, const PGresult *yields)
{
	w->looks++;
	for (int i = 0; i < PQntuples(yields); i++)
	{
		const char *term = PQgetvalue(yields, i, EVENT_TERM);
		KnownElection *k = watched_get(&w->known, PQgetvalue(yields, i, EVENT_ELECTION), 0);

		if (k == NULL)
			continue;
		if (!k->yielding || strcmp(k->yielding_term, term) != 0)
			tell(w, yields, i);
		text_set(&k->yielding_term, term);
		k->yielding = true;
		k->asked = w->looks;
	}
	for (int i = 0; i < w->known.n; i++)
	{
		KnownElection *k = w->known.all[i];

		k->hinted = false;
		if (!k->yielding || k->asked == w->looks)
			continue;
		k->yielding = false;
		if (w->draws)
			screen_end_request(k->election);
	}
}

/*
 * Look which leaders are asked to yield, where that may be so.
 */
static void
print_requests(Watch *w)
{
	char	   *elections;
	const char *values[1];
	Answer		answer;

	known_take_hints(w);
	values[0] = elections = known_json(w, may_be_yielding);
	if (strcmp(elections, "[]") != 0 && ask(w, &sql_yields, values, &answer))
	{
		take_requests(w, answer.result);
		answer_free(&answer);
	}
	pg_free(elections);
}

/*
 * Look which leaders have changed their metadata, and print that; of several
 * changes since the last look the last one.  Look where a hint has come, and
 * from time to time everywhere: on a standby, and behind a pooler, no hint
 * comes.
 */
static void
print_changes(Watch *w)
{
	char	   *elections;
	const char *values[1];
	Answer		answer;

	for (int i = 0; i < w->known.n && w->looks_at_all; i++)
		((KnownElection *) w->known.all[i])->changes = true;
	w->looks_at_all = false;
	values[0] = elections = known_json(w, may_have_changed);
	if (strcmp(elections, "[]") != 0 && ask(w, &sql_changes, values, &answer))
	{
		for (int i = 0; i < PQntuples(answer.result); i++)
		{
			KnownElection *k = watched_get(&w->known, PQgetvalue(answer.result, i, EVENT_ELECTION), 0);

			if (k == NULL)
				continue;
			if (k->compared)
				tell(w, answer.result, i);
			text_set(&k->changed_at, PQgetvalue(answer.result, i, EVENT_AT_JSON));
		}
		for (int i = 0; i < w->known.n; i++)
		{
			KnownElection *k = w->known.all[i];

			k->compared |= k->changes;
			k->changes = false;
		}
		answer_free(&answer);
	}
	pg_free(elections);
}

/*
 * Draw the screen, with what is so just now.
 */
static void
draw(Watch *w)
{
	char	   *elections = known_json(w, is_on_screen);
	const char *values[] = {elections};
	Answer		answer;

	if (strcmp(elections, "[]") != 0 && ask(w, &sql_now, values, &answer))
	{
		screen_note_now(answer.result);
		answer_free(&answer);
	}
	pg_free(elections);
	screen_draw();
}

/*
 * Give new hooks the metadata of the leaders.  If the server does not answer,
 * they wait for the next round.
 */
static void
complete_hooks(Watch *w)
{
	for (int i = 0; i < w->hooks.list.n; i++)
	{
		Hook	   *hook = w->hooks.list.all[i];
		const char *values[] = {hook->election, hook->term};
		const char *metadata = "";
		Answer		answer = {0};

		if (hook->metadata != NULL)
			continue;
		if (hook->leader[0] != '\0' && !ask(w, &sql_metadata, values, &answer))
			return;
		if (answer.result != NULL && PQntuples(answer.result) > 0)
			metadata = PQgetvalue(answer.result, 0, 0);
		hooks_set_metadata(&w->hooks, hook, metadata);
		answer_free(&answer);
	}
}

/* --- rounds */

/*
 * Listen to the channels of all elections that are watched.
 */
static void
listen_to_all(Watch *w)
{
	const char *values[] = {w->options->election};
	Answer		answer;

	if (!ask(w, &sql_channels, values, &answer))
		return;
	w->standby = PQntuples(answer.result) == 0;
	for (int i = 0; i < PQntuples(answer.result); i++)
		notification_listen(&w->connection, PQgetvalue(answer.result, i, 0),
							OBSERVER_LIMIT);
	answer_free(&answer);
}

static void
connect_again(Watch *w)
{
	if (w->draws)
		screen_forget_now();
	while (!connect_round(&w->connection, NEVER))
	{
		warn(w, w->connection.error);
		if (w->draws)
			screen_draw();
		pause_to_retry(w);
	}
}

/*
 * Wait until it is time to look for events.  Where a screen is drawn, draw it
 * meanwhile: time goes on.
 */
static void
wait_for_events(Watch *w, int64 until)
{
	Connection *c = &w->connection;
	int64		redraw = w->draws ? REDRAW_INTERVAL : NEVER;

	while (!notification_wait(c, until - now_us() < redraw ? until :
							  now_us() + redraw, known_take_notification, w) &&
		   c->conn != NULL && now_us() < until)
		draw(w);
}

/*
 * Watch until a signal ends the program.
 */
int
watch_run(const Options *options)
{
	Watch		w = {.options = options,.pause = SHORTEST_PAUSE};
	int64		listen_at = 0;

	observer_connect(&w.connection, options);
	hooks_prepare(&w.hooks, options->exec, &w.connection);
	w.draws = !options->json && options->exec == NULL && screen_is_possible();
	if (w.draws)
		screen_begin(&w.connection);
	for (;;)
	{
		if (w.connection.conn == NULL)
		{
			connect_again(&w);
			listen_at = 0;
		}

		/*
		 * Listen before looking: otherwise nothing would tell us of a change
		 * that is committed after the look and before LISTEN.
		 */
		if (now_us() >= listen_at)
		{
			listen_to_all(&w);
			listen_at = now_us() + (w.standby ? STANDBY_INTERVAL : PRIMARY_INTERVAL);
			w.looks_at_all = true;
		}
		print_events(&w);
		if (w.started)
		{
			print_requests(&w);
			if (w.draws)
				show_new(&w);
			else
				print_changes(&w);
		}
		complete_hooks(&w);
		if (w.draws)
			draw(&w);
		if (w.connection.conn != NULL)
			recovered(&w);
		event_flush();
		wait_for_events(&w, listen_at);
	}
}
