/*-------------------------------------------------------------------------
 *
 * announce.c
 *		The background worker tells listeners (NOTIFY) what has changed.
 *
 * PostgreSQL lets transactions that NOTIFY commit one at a time, in all
 * databases: each holds a lock of the server's, the NOTIFY lock, through its
 * flush and its wait for standbys.  So a transaction that changes who leads
 * does not NOTIFY.  The worker does, right after it, in a transaction of its
 * own.
 *
 * What to tell is not queued anywhere.  It is derived from history, from the
 * lease row and from the mark of what was told last (notify.c).
 *
 * Invariants:
 *
 * - The rows of an election are read with one snapshot that is taken under the
 *	 NOTIFY lock.  An earlier snapshot could miss what another worker has told
 *	 before we had the lock.
 *
 * - The worker waits for nothing while it has the NOTIFY lock, since the
 *	 notifications of all databases would wait with it.  It locks tables and
 *	 indexes before that.  Its commit waits for no flush and no standby:
 *	 synchronous_commit is off, since reading alone can write WAL.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_database.h"
#include "utils/fmgrprotos.h"
#include "utils/snapmgr.h"
#include "worker/worker.h"

#define EVENTS			100		/* told in one transaction, at most */
#define EVENTS_OF_ONE	3		/* at least: see notify_term() */
#define SHORTEST_QUEUE	(20 * MS)	/* wait for the NOTIFY lock, at first */
#define LONGEST_QUEUE	(40 * MS)	/* and at most: a lease may last 100 ms */
#define QUEUE_PAUSE		10		/* times a wait that was in vain */
#define FULL_PAUSE		(100 * MS)	/* while notifications find no room */
#define FULL_QUEUE		0.9		/* this part of it counts as full */

/* When to queue for the NOTIFY lock again, and for how long */
static int64 queue_at = 0;
static int64 queue_for = SHORTEST_QUEUE;

/* The next round goes on with this election, if something is pending there */
static char go_on_at[LE_NAME_MAX + 1] = "";

/* How far the transaction has come */
typedef enum Stage
{
	LOCKING_TABLES,
	QUEUEING,					/* for the NOTIFY lock */
	FINDING_ROOM,				/* in the queue of notifications */
	TELLING
} Stage;

/* An election that is to be announced */
typedef struct PendingItem
{
	const char *election;
	int			number;			/* of those pending */
	Notified	told;			/* what has come of it */
	Mark	   *mark;			/* as it is then; NULL: not known */
} PendingItem;

/* Elections to be announced in one transaction */
typedef struct Announcement
{
	List	   *items;
	int64		queue_for;		/* the NOTIFY lock */
	Stage		stage;
	bool		waited;			/* for that lock */
	bool		more;			/* of one of them than may be told in it */
	int			go_on_from;		/* number of a pending one */
} Announcement;

/*
 * Take the NOTIFY lock: the commit, which needs it, finds it ours already.
 * Queue for it, since a mere try fails while any other transaction waits for
 * it.
 */
static void
lock_notify(Announcement *a)
{
	LOCKTAG		tag;
	char		value[32];

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, InvalidOid, 0);
	snprintf(value, sizeof(value), INT64_FORMAT, Max(a->queue_for / MS, 1));
	le_commit_set("lock_timeout", value);
	a->waited = !LeLockTry(&tag, AccessExclusiveLock, false, NULL);
	if (a->waited)
		(void) LockAcquire(&tag, AccessExclusiveLock, false, false);
	/* From here on, wait for any lock for 1 ms, the least that can be set. */
	le_commit_set("lock_timeout", "1");
}

static bool
queue_is_full(void)
{
	return DatumGetFloat8(DirectFunctionCall1(pg_notification_queue_usage,
											  (Datum) 0)) >= FULL_QUEUE;
}

/*
 * Tell what is new of these elections, in a transaction of its own.
 */
static void
announce(void *arg)
{
	Announcement *a = arg;
	int			left = EVENTS;
	int			share = Max(EVENTS / list_length(a->items), EVENTS_OF_ONE);

	le_store_get();
	le_commit_set("synchronous_commit", "off");
	if (!le_store_try_lock(LE_TABLE_ELECTION | LE_TABLE_LEASE |
						   LE_TABLE_HISTORY | LE_TABLE_EPOCH,
						   AccessShareLock) ||
		!le_store_try_lock(LE_TABLE_ANNOUNCED, RowExclusiveLock) ||
		!le_table_lock_indexes(le_store.table[TABLE_ANNOUNCED].rel,
							   RowExclusiveLock, false))
		le_attempt_report_busy("a table or index that announcing needs is locked");
	a->stage = QUEUEING;
	lock_notify(a);
	a->stage = FINDING_ROOM;
	if (queue_is_full())
		return;
	a->stage = TELLING;
	PushActiveSnapshot(GetLatestSnapshot());
	foreach_ptr(PendingItem, item, a->items)
	{
		int			rest = Min(left, share);

		if (left < EVENTS_OF_ONE)
		{
			a->go_on_from = item->number;
			break;
		}
		left -= rest;
		item->mark = NULL;
		item->told = le_notify(item->election, GetActiveSnapshot(),
							   &rest, &item->mark);
		left += rest;
		a->more |= item->told == NOTIFIED_PART;
	}
	PopActiveSnapshot();
}

/*
 * Note what has come of each election, after the transaction has ended.
 */
static void
note_outcome(const Announcement *a, Outcome outcome, Round *round)
{
	foreach_ptr(const PendingItem, item, a->items)
	{
		le_attempt_ended(ATTEMPT_ANNOUNCE, item->election,
						 outcome == DONE && item->told == NOTIFIED_LATER ? BUSY :
						 outcome, &round->next);
		round->untold |= outcome != DONE || item->told == NOTIFIED_PART ||
			item->told == NOTIFIED_LATER;
		if (outcome != DONE)
			continue;
		if (item->told == NOTIFIED_DROPPED)
			le_pending_forget(item->election);
		else if (item->mark != NULL)
			le_pending_remember(item->mark);
	}
}

/*
 * Announce these elections in one transaction.  BUSY: not now, since the
 * NOTIFY lock, or a table, or room in the queue of notifications cannot be
 * had.  FAILED: it was undone, because of one of several elections.  *from,
 * the number of the next pending one, becomes that of the first one for
 * which the transaction had no room.
 */
static Outcome
announce_together(Round *round, List *items, int *from)
{
	int64		began = le_clock();
	Announcement a = {.items = items,
		.queue_for = Min(queue_for, round->renew_at - began),
	.go_on_from = *from};
	Outcome		outcome = le_attempt_guard(announce, &a, "announcing");

	if (a.waited)
		le_round_again(round);
	switch (a.stage)
	{
		case LOCKING_TABLES:
			queue_at = le_clock() + RETRY;
			return BUSY;
		case QUEUEING:
			queue_at = le_clock() + (le_clock() - began) * QUEUE_PAUSE;
			queue_for = Min(queue_for * 2, LONGEST_QUEUE);
			return BUSY;
		case FINDING_ROOM:
			queue_at = le_clock() + FULL_PAUSE;
			return BUSY;
		case TELLING:
			break;
	}
	queue_for = SHORTEST_QUEUE;
	if (a.more)
		round->next = le_clock();
	if (outcome != DONE && list_length(items) > 1)
		return FAILED;
	note_outcome(&a, outcome, round);
	*from = a.go_on_from;
	return DONE;
}

/*
 * Announce these elections together or, since one of them may have a name or
 * channel that cannot be sent, one by one.  False: not now.  *from becomes the
 * number of the first pending one that was not reached.
 */
static bool
announce_items(Round *round, List *items, int *from)
{
	Outcome		outcome = announce_together(round, items, from);

	if (outcome == BUSY)
		*from = ((PendingItem *) linitial(items))->number;
	if (outcome != FAILED)
		return outcome == DONE;
	foreach_ptr(PendingItem, item, items)
	{
		/* The first one is tried in any case: so each round gets further. */
		if ((foreach_current_index(item) > 0 && round->renew_at < le_clock() + MS) ||
			announce_together(round, list_make1(item), from) == BUSY)
		{
			*from = item->number;
			return false;
		}
	}
	return true;
}

/*
 * Take pending elections, for one transaction, from number *from on, which is
 * moved.  Those that pause are left out.
 */
static List *
take_items(Round *round, int *from)
{
	List	   *items = NIL;

	while (*from < list_length(round->pending) &&
		   list_length(items) < EVENTS)
	{
		int			number = (*from)++;
		const char *election = ((Due *) list_nth(round->pending, number))->election;
		int64		paused_until = le_attempt_paused_until(ATTEMPT_ANNOUNCE,
														   election);
		PendingItem *item;

		if (paused_until != 0)
		{
			round->next = Min(round->next, paused_until);
			round->untold = true;
			continue;
		}
		item = palloc0(sizeof(PendingItem));
		item->election = election;
		item->number = number;
		items = lappend(items, item);
	}
	return items;
}

/*
 * Tell what there is to tell, as far as that is possible before the next
 * renewal.  After the first transaction a wake-up ends it, too: a leader's
 * session may have ended.
 */
void
le_announce(Round *round)
{
	int			done = 0;
	bool		may_go_on = true;

	if (le_clock() < queue_at)
	{
		/* Settling calls this often: sort them when they can be told. */
		if (round->pending != NIL)
		{
			round->next = Min(round->next, queue_at);
			round->untold = true;
		}
		return;
	}
	round->pending = le_round_in_turn(round->pending, go_on_at);
	while (may_go_on && done < list_length(round->pending) &&
		   le_clock() + MS <= round->renew_at &&
		   (done == 0 || !le_round_is_to_renew(round)))
	{
		List	   *items = take_items(round, &done);

		may_go_on = items == NIL || announce_items(round, items, &done);
	}
	round->pending = list_copy_tail(round->pending, done);
	if (round->pending != NIL)
	{
		round->untold = true;
		round->next = Min(round->next, Max(queue_at, le_clock()));
		strlcpy(go_on_at, ((Due *) linitial(round->pending))->election,
				sizeof(go_on_at));
	}
}
