/*-------------------------------------------------------------------------
 *
 * notify.c
 *		What listeners are told (NOTIFY) of an election: the rows of history
 *		beyond its mark (mark.c), and then the lease row.
 *
 * The caller, announce.c, has the NOTIFY lock, has locked the tables, and has
 * taken one snapshot after that.
 *
 * Invariants:
 *
 * - A mark is written in the transaction that tells what it stands for.  So
 *	 every term is told once, whenever a worker is terminated.
 *
 * - Terms are told in order, as that one snapshot sees them.  What is told is
 *	 complete up to the moment of the snapshot.  With a snapshot for each row,
 *	 the lease could be newer than history, and its mark would pass over a
 *	 term.
 *
 * - Nothing here waits: locked rows are skipped, and the name lock is only
 *	 tried.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/async.h"
#include "utils/datetime.h"
#include "utils/json.h"
#include "utils/timestamp.h"
#include "worker/worker.h"

/* An election that listeners are being told of */
typedef struct Notifying
{
	Snapshot	snapshot;
	const char *election;
	const Lease *lease;			/* NULL: the election was dropped */
	bool		is_seat;		/* of a group */
	const char *own_channel;	/* of the election; NULL: the default one */
	const char *channel;		/* where listeners are told now */
	int			left;			/* events that the transaction may tell yet */
	bool		complete;		/* they were enough so far */
	Mark	   *mark;			/* what listeners know by now; NULL: no mark */

	/* the row of the mark's term, if its end is not told; NULL: no such row */
	Term	   *last;
} Notifying;

static void
append_string(StringInfo buf, const char *key, const char *value)
{
	appendStringInfo(buf, ",\"%s\":", key);
	if (value != NULL)
		escape_json(buf, value);
	else
		appendStringInfoString(buf, "null");
}

/*
 * Tell an event of that term.  leader NULL: vacant.  previous is the term that
 * has ended with it; NULL: none.  successor: to whom the leader is to yield, or
 * NULL.
 */
static void
write_event(Notifying *t, const char *event, int64 term, const char *leader,
			const Term *previous, const char *successor, TimestampTz at)
{
	StringInfoData buf;
	char		when[MAXDATELEN + 1];

	initStringInfo(&buf);
	appendStringInfoString(&buf, "{\"election\":");
	escape_json(&buf, t->election);
	append_string(&buf, "event", event);
	appendStringInfo(&buf, ",\"term\":" INT64_FORMAT, term);
	append_string(&buf, "leader", leader);
	append_string(&buf, "previous", previous != NULL ? previous->leader : NULL);
	append_string(&buf, "reason", previous != NULL ? previous->reason : NULL);
	if (successor != NULL)
		append_string(&buf, "successor", successor);
	JsonEncodeDateTime(when, TimestampTzGetDatum(at), TIMESTAMPTZOID, NULL);
	append_string(&buf, "at", when);
	appendStringInfoChar(&buf, '}');
	Async_Notify(t->channel != NULL ? t->channel : LE_CHANNEL, buf.data);
	t->left--;
}

static void
notify_vacated(Notifying *t, const Term *ended)
{
	write_event(t, "vacated", ended->term, NULL, ended, NULL, ended->ended_at);
}

/*
 * previous: the term that ended in the same transaction; NULL: none did.
 */
static void
notify_elected(Notifying *t, const Term *term, const Term *previous)
{
	write_event(t, "elected", term->term, term->leader, previous, NULL,
				term->acquired_at);
}

static void
notify_yield(Notifying *t, const Lease *lease)
{
	write_event(t, "yield_requested", lease->term, lease->leader, NULL,
				lease->successor, GetCurrentTimestamp());
}

/*
 * Is there room for so many more events?
 */
static bool
has_room(Notifying *t, int events)
{
	t->complete = t->left >= events;
	return t->complete;
}

/*
 * Was the election that there is now created since listeners were told last?
 * Then what they are told first is of one that had its name before.
 */
static bool
is_of_former(const Notifying *t)
{
	return t->lease != NULL && t->lease->created_at != 0 &&
		t->lease->created_at != t->mark->created_at;
}

/*
 * All has been told of elections that had this name before.  From here on
 * listeners are told of the present one, on its own channel.
 */
static void
begin_present(Notifying *t)
{
	t->mark->created_at = t->lease->created_at;
	t->channel = t->own_channel;
	if (t->is_seat)
		write_event(t, "created", 0, NULL, NULL, NULL, t->lease->created_at);
}

/*
 * Did the former term (NULL: there is none) end in the transaction in which
 * this one began?  Then both are one event.
 */
static bool
is_continuous(const Term *former, const Term *term)
{
	return former != NULL && former->ended &&
		former->ended_at == term->acquired_at;
}

/*
 * The next row of history, in the order of terms; the first one may be that of
 * the mark.  False: enough for this transaction.
 */
static bool
notify_term(Notifying *t, Term *term)
{
	Mark	   *mark = t->mark;

	if (term->term > mark->term)
	{
		bool		continuous = is_continuous(t->last, term);

		/* The end of the term before, a creation, the beginning of this one */
		if (!has_room(t, 3))
			return false;
		if (t->last != NULL && t->last->ended && !continuous)
			notify_vacated(t, t->last);
		if (is_of_former(t) && term->term > t->lease->after_term)
			begin_present(t);
		notify_elected(t, term, continuous ? t->last : NULL);
		mark->term = term->term;
		mark->vacated = false;
		mark->yields = 0;		/* they are counted in each term */
		mark->metadata_at = 0;
	}
	if (!mark->vacated)
		t->last = term;
	return true;
}

/*
 * Tell what history knows beyond the mark.
 */
static void
notify_history(Notifying *t)
{
	RowScan    *scan = le_history_scan(t->election, t->mark->term,
									   ForwardScanDirection, t->snapshot);
	Term	   *term;

	while ((term = le_history_next(scan)) != NULL && notify_term(t, term))
		;
	le_scan_end(scan);
	if (!t->complete || t->last == NULL || !t->last->ended || !has_room(t, 1))
		return;
	notify_vacated(t, t->last);
	t->mark->vacated = true;
}

/*
 * Bring the mark up to the lease, all of whose history has been told, and tell
 * what is new of its leader.  (The lease is ahead of history only if history was
 * deleted by hand: then there was less to tell.)
 */
static void
notify_lease(Notifying *t)
{
	const Lease *lease = t->lease;
	Mark	   *mark = t->mark;

	if (lease->term > mark->term)
	{
		mark->yields = 0;
		mark->metadata_at = 0;
	}
	mark->term = Max(mark->term, lease->term);
	mark->vacated = lease->leader == NULL;
	if (lease->leader != NULL && lease->yielding &&
		lease->yields > mark->yields && has_room(t, 1))
	{
		notify_yield(t, lease);
		mark->yields = lease->yields;
	}
	if (le_mark_lacks_metadata(mark, lease) && has_room(t, 1))
	{
		/* The metadata itself may be longer than a notification. */
		write_event(t, "metadata_changed", lease->term, lease->leader, NULL,
					NULL, lease->metadata_at);
		mark->metadata_at = lease->metadata_at;
	}
}

/*
 * Tell what is new beyond the mark, which is locked.
 */
static void
notify_all(Notifying *t)
{
	Mark	   *mark = t->mark;
	const Mark	before = *mark;

	t->channel = t->lease == NULL || is_of_former(t) ? mark->channel :
		t->own_channel;
	notify_history(t);
	if (t->complete && is_of_former(t) && has_room(t, 1))
		begin_present(t);
	if (t->complete && t->lease != NULL)
		notify_lease(t);
	if (mark->term != before.term || mark->vacated != before.vacated ||
		mark->yields != before.yields ||
		mark->metadata_at != before.metadata_at ||
		mark->created_at != before.created_at)
	{
		mark->channel = unconstify(char *, t->channel);
		le_mark_write(mark);
	}
}

/*
 * There is no mark: a crash or a promotion has removed it, or a restore did
 * not bring it.  Listeners connect anew after that.  They are told the last
 * change, although they may have been told it before.
 */
static void
notify_last(Notifying *t, const Lease *lease)
{
	RowScan    *scan;
	Term	   *last;
	Term	   *former;

	if (lease->leader != NULL && lease->yielding)
	{
		notify_yield(t, lease);
		return;
	}
	scan = le_history_scan(t->election, 0, BackwardScanDirection, t->snapshot);
	last = le_history_next(scan);
	former = last != NULL ? le_history_next(scan) : NULL;
	le_scan_end(scan);
	if (last == NULL)
		return;
	if (last->ended)
		notify_vacated(t, last);
	else
		notify_elected(t, last, is_continuous(former, last) ? former : NULL);
}

/*
 * Nobody makes or drops an election of that name before the transaction ends.
 * If it is, or was, the seat of a group, that needs the group's name lock.
 */
static bool
lock_name(const char *election)
{
	char	   *group = le_seat_group(election);

	return le_lock_name(election, NULL, ShareLock) &&
		(group == NULL || le_lock_name(group, NULL, ShareLock));
}

/*
 * An election that has no mark is to get one, and listeners are told its last
 * change, if it was ever led.  False: not now.
 *
 * The name lock keeps the election from being dropped, and one of that name
 * from being created, until we commit.  Both may have happened since the
 * snapshot and before we had the lock: so the mark and the lease are read
 * again.
 *
 * An election that was never led gets a mark at the term above which its own
 * will be.
 */
static bool
begin_mark(Notifying *t)
{
	const Lease *lease = t->lease;
	Mark	   *mark;

	if (!lock_name(t->election) ||
		le_mark_read(t->election) != NULL ||
		le_lease_read(t->election, NULL) == NULL)
		return false;
	t->channel = t->own_channel;
	if (lease->term > 0)
		notify_last(t, lease);
	mark = palloc0(sizeof(Mark));
	mark->election = pstrdup(t->election);
	mark->channel = unconstify(char *, t->channel);
	mark->term = Max(lease->term, lease->after_term);
	mark->vacated = lease->leader == NULL;
	mark->yields = lease->yields;
	mark->created_at = lease->created_at;
	mark->metadata_at = lease->metadata_at;
	le_mark_write(mark);
	t->mark = mark;
	return true;
}

/*
 * Delete the mark of an election that was dropped, all of which has been told.
 * False: not now.
 *
 * The name lock keeps an election of that name from being created until we
 * commit; it would rely on the mark that it finds.  One may have been created
 * since the snapshot, or created, led and dropped: so lease and history are
 * read again.
 */
static bool
end_mark(const char *election)
{
	Mark	   *mark;
	bool		busy;

	if (!lock_name(election) ||
		le_lease_read(election, NULL) != NULL)
		return false;
	mark = le_mark_lock(election, true, &busy);
	if (busy || (mark != NULL && le_history_untold_since(mark) != 0))
		return false;
	if (mark != NULL)
		le_row_delete(mark->row);
	return true;
}

/*
 * Tell what is new of one election, in so many events at most (*left).  *mark
 * becomes what listeners know once this is committed (NULL: it was not read).
 * Another worker may have told it before: then there is nothing to tell.
 */
Notified
le_notify(const char *election, Snapshot snapshot, int *left, Mark **mark)
{
	Lease	   *lease = le_lease_read(election, snapshot);
	Notifying	t = {.snapshot = snapshot,.election = election,
	.lease = lease,.left = *left,.complete = true};
	bool		busy;

	t.mark = le_mark_lock(election, false, &busy);
	if (busy)
		return NOTIFIED_LATER;
	if (lease != NULL)
		t.own_channel = le_election_channel(election, snapshot, &t.is_seat);
	if (t.mark != NULL)
		notify_all(&t);
	else if (lease != NULL && !begin_mark(&t))
		return NOTIFIED_LATER;
	*left = t.left;
	*mark = t.mark;
	if (!t.complete)
		return NOTIFIED_PART;
	if (lease != NULL)
		return NOTIFIED_ALL;
	return end_mark(election) ? NOTIFIED_DROPPED : NOTIFIED_LATER;
}
