/*-------------------------------------------------------------------------
 *
 * known.c
 *		What `watch` has printed of each election, and what it was told since.
 *
 * Invariant: what is known of an election was printed, or need not be.  A hint
 * is kept until a look has followed it.
 *
 *-------------------------------------------------------------------------
 */
#include "watch.h"

#include "pqexpbuffer.h"

/*
 * Remember the last term of an election that was printed.
 */
void
known_remember(Watch *w, const PGresult *events, int row)
{
	const char *election = PQgetvalue(events, row, EVENT_ELECTION);
	const char *term = PQgetvalue(events, row, EVENT_LAST_TERM);
	KnownElection *k = watched_get(&w->known, election, sizeof(KnownElection));

	if (term[0] == '\0')
		term = "0";
	if (k->prefix == NULL)
	{
		k->prefix = notification_prefix(election, false);
		/* A screen shows requests that were made before, too. */
		k->hinted = w->draws;
	}

	/* What the leader has changed before the first look, is its state. */
	if (k->term == NULL || strcmp(k->term, term) != 0)
	{
		text_set(&k->changed_at, "");
		k->compared = w->started;
	}
	text_set(&k->term, term);
	k->ended = PQgetvalue(events, row, EVENT_ENDED)[0] == 't';
}

/*
 * Return those of the known elections that are asked about, with what is known
 * of them, as JSON, to be freed by the caller.
 */
char *
known_json(const Watch *w, bool (*is_asked) (const KnownElection *k))
{
	PQExpBufferData json;

	initPQExpBuffer(&json);
	appendPQExpBufferChar(&json, '[');
	for (int i = 0; i < w->known.n; i++)
	{
		const KnownElection *k = w->known.all[i];

		if (is_asked(k))
			appendPQExpBuffer(&json, "%s{\"name\":%s,\"known\":%s,\"known_end\":%s,"
							  "\"changed\":%s}",
							  json.len > 1 ? "," : "",
							  text_lend(text_json(k->election)), k->term,
							  k->ended ? "true" : "false",
							  k->changed_at[0] == '\0' ? "null" : k->changed_at);
	}
	appendPQExpBufferChar(&json, ']');
	if (PQExpBufferDataBroken(json))
		pg_fatal("out of memory");
	return json.data;
}

/* --- hints */

/*
 * Mark the election that a hint is about: to yield or to metadata.  Return
 * false if it is not known.
 */
static bool
mark_hinted(Watch *w, const char *payload)
{
	for (int i = 0; i < w->known.n; i++)
	{
		KnownElection *k = w->known.all[i];

		if (!notification_is_about(payload, k->prefix))
			continue;
		if (notification_is_yield(payload))
			k->hinted = true;
		else
			k->changes = true;
		return true;
	}
	return false;
}

/*
 * Every notification is a reason to look.  Keep a hint about an election that
 * is not known yet: the look at the history, which comes first, may find it.
 */
bool
known_take_notification(const char *payload, void *arg)
{
	Watch	   *w = arg;

	if ((notification_is_yield(payload) || notification_is_change(payload)) &&
		!mark_hinted(w, payload) && w->nhints < MOST_HINTS)
		w->hints[w->nhints++] = pg_strdup(payload);
	return true;
}

/*
 * Mark the elections of hints that were kept.
 */
void
known_take_hints(Watch *w)
{
	while (w->nhints > 0)
	{
		char	   *payload = w->hints[--w->nhints];

		(void) mark_hinted(w, payload);
		pg_free(payload);
	}
}
