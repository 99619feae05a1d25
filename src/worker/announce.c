/*-------------------------------------------------------------------------
 *
 * announce.c
 *		The background worker tells listeners (NOTIFY) what has changed.
 *
 * PostgreSQL lets transactions that NOTIFY commit one at a time, in all
 * databases: each holds a lock of the server's, the NOTIFY lock, through its
 * flush and its wait for standbys.  So a transaction that changes who leads
 * does not NOTIFY.  The worker does, right after it, in a transaction of its own.
 *
 * What to tell is derived, not queued: the rows of history beyond the mark
 * (mark.c), and the lease row, say what has come since.
 *
 * Invariants:
 *
 * - A mark and the notifications that it stands for commit together: every term
 *	 is told once and in order, whenever a worker is terminated.
 *
 * - The rows of an election are read under the NOTIFY lock, with one snapshot
 *	 that was taken after that.  What is told is thus complete up to some moment.
 *
 * - The worker waits for nothing while it has the NOTIFY lock, since the
 *	 notifications of other databases would wait with it.  It has locked tables
 *	 and indexes before, and skips locked rows.  Its commit waits for no flush and
 *	 no standby: synchronous_commit is off, for reading alone can log something.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_database.h"
#include "catalog/pg_type.h"
#include "commands/async.h"
#include "miscadmin.h"
#include "utils/datetime.h"
#include "utils/fmgrprotos.h"
#include "utils/hsearch.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "worker/worker.h"

#define EVENTS			100		/* told in one transaction, at most */
#define SHORTEST_QUEUE	(20 * MS)	/* wait for the NOTIFY lock, at first ... */
#define LONGEST_QUEUE	(40 * MS)	/* ... and at most: a lease lasts 100 ms */
#define QUEUE_PAUSE		10		/* so many times the wait, after it was in vain */
#define FULL_PAUSE		(100 * MS)	/* while the queue of notifications is full */
#define FULL_QUEUE		0.9		/* this part of it counts as full */

/* What listeners know of an election: its mark, in this process's memory */
typedef struct Known
{
	char		election[LE_NAME_MAX + 1];	/* hash key */
	int64		term;
	bool		vacated;
	int64		yields;
	uint64		look;			/* the last one that has found its lease */
} Known;

/*
 * The marks.  No other process changes one, so that they need not be read in
 * each round.  An election without an entry here may have been created since.
 */
static HTAB *known = NULL;
static Oid	known_table = InvalidOid;	/* that they were read from */

/* The highest term ever dropped, when all marks were read last */
static int64 dropped_term = -1;

static uint64 looks = 0;		/* counts them */
static long found = 0;			/* marks whose lease the look has found */

/* Elections of which there is something to tell, in le_worker_context */
static List *news = NIL;

/* When to queue for the NOTIFY lock again, and for how long */
static int64 queue_at = 0;
static int64 queue_for = SHORTEST_QUEUE;

/* Elections to be announced in one transaction */
typedef struct Batch
{
	List	   *elections;		/* names */
	int64		queue_for;		/* the NOTIFY lock */
	bool		queued;			/* ... has begun to */
	bool		waited;			/* ... and was not at once the first */
	bool		locked;			/* ... has got it */
	bool		full;			/* the queue of notifications is */
	List	   *told;			/* marks as they were written; -1: deleted */
	List	   *busy;			/* elections of which a row or name is locked */
	bool		more;			/* than may be told in one transaction */
} Batch;

/* What is being told of one election */
typedef struct Telling
{
	const char *election;
	const char *channel;		/* NULL: the default one */
	int			left;			/* events that the transaction may tell yet */
	int64		term;			/* told up to this one ... */
	bool		vacated;		/* ... including its end */
	Term	   *last;			/* the row of that term, if its end is not told */
	bool		complete;
} Telling;

/* What is told */
typedef struct Event
{
	const char *event;
	int64		term;
	const char *leader;			/* NULL: vacant */
	const Term *previous;		/* which has ended; NULL: was vacant */
	const char *successor;		/* whom it is asked to yield to; NULL: none */
	TimestampTz at;
} Event;

static void
append_string(StringInfo buf, const char *key, const char *value)
{
	appendStringInfo(buf, ",\"%s\":", key);
	if (value != NULL)
		escape_json(buf, value);
	else
		appendStringInfoString(buf, "null");
}

static void
tell(Telling *t, const Event *event)
{
	StringInfoData buf;
	char		when[MAXDATELEN + 1];

	initStringInfo(&buf);
	appendStringInfoString(&buf, "{\"election\":");
	escape_json(&buf, t->election);
	append_string(&buf, "event", event->event);
	appendStringInfo(&buf, ",\"term\":" INT64_FORMAT, event->term);
	append_string(&buf, "leader", event->leader);
	append_string(&buf, "previous",
				  event->previous != NULL ? event->previous->leader : NULL);
	append_string(&buf, "reason",
				  event->previous != NULL ? event->previous->reason : NULL);
	if (event->successor != NULL)
		append_string(&buf, "successor", event->successor);
	JsonEncodeDateTime(when, TimestampTzGetDatum(event->at), TIMESTAMPTZOID,
					   NULL);
	append_string(&buf, "at", when);
	appendStringInfoChar(&buf, '}');
	Async_Notify(t->channel != NULL ? t->channel : LE_CHANNEL, buf.data);
	t->left--;
}

static void
tell_vacated(Telling *t, const Term *ended)
{
	tell(t, &(Event) {.event = "vacated",.term = ended->term,
			.previous = ended,.at = ended->ended_at});
}

/*
 * previous: the term that ended in the same transaction; NULL: none did.
 */
static void
tell_elected(Telling *t, const Term *term, const Term *previous)
{
	tell(t, &(Event) {.event = "elected",.term = term->term,
			.leader = term->leader,.previous = previous,
			.at = term->acquired_at});
}

/*
 * Did that term end in the transaction in which this one began?
 */
static bool
is_continuous(const Term *ended, const Term *term)
{
	return ended != NULL && ended->ended &&
		ended->ended_at == term->acquired_at;
}

/*
 * The next row of history, in the order of terms.  False: enough for this
 * transaction.
 */
static bool
tell_term(const Term *term, void *arg)
{
	Telling    *t = arg;

	if (term->term > t->term)
	{
		bool		continuous = is_continuous(t->last, term);

		if (t->left < 2)
		{
			t->complete = false;
			return false;
		}
		if (t->last != NULL && t->last->ended && !continuous)
			tell_vacated(t, t->last);
		tell_elected(t, term, continuous ? t->last : NULL);
		t->term = term->term;
		t->vacated = false;
	}
	if (!t->vacated)
	{
		t->last = palloc(sizeof(Term));
		*t->last = *term;
	}
	return true;
}

/*
 * Tell what history knows beyond the mark.
 */
static void
tell_history(const Store *store, Telling *t, Snapshot snapshot)
{
	le_history_read(store, t->election, t->term, ForwardScanDirection,
					snapshot, tell_term, t);
	if (!t->complete || t->last == NULL || !t->last->ended)
		return;
	t->complete = t->left > 0;
	if (!t->complete)
		return;
	tell_vacated(t, t->last);
	t->vacated = true;
}

/* The last terms, the latest first */
typedef struct Last
{
	Term	   *term[2];
	int			n;
} Last;

static bool
note_term(const Term *term, void *arg)
{
	Last	   *last = arg;

	last->term[last->n] = palloc(sizeof(Term));
	*last->term[last->n] = *term;
	return ++last->n < lengthof(last->term);
}

static void
tell_yield(Telling *t, const Lease *lease)
{
	tell(t, &(Event) {.event = "yield_requested",.term = lease->term,
			.leader = lease->leader,.successor = lease->successor,
			.at = GetCurrentTimestamp()});
}

/*
 * There was no mark: a crash or a promotion has removed it, or a restore did not
 * bring it.  Listeners connect anew after that, and are told the last change, be
 * it once more.
 */
static void
tell_last(const Store *store, Telling *t, const Lease *lease,
		  Snapshot snapshot)
{
	Last		last = {.n = 0};

	if (lease->leader != NULL && lease->yielding)
	{
		tell_yield(t, lease);
		return;
	}
	le_history_read(store, t->election, 0, BackwardScanDirection, snapshot,
					note_term, &last);
	if (last.n == 0)
		return;
	if (last.term[0]->ended)
		tell_vacated(t, last.term[0]);
	else
		tell_elected(t, last.term[0],
					 last.n > 1 && is_continuous(last.term[1], last.term[0]) ?
					 last.term[1] : NULL);
}

/*
 * Is there a request to yield that listeners have not been told?
 */
static bool
has_yield(const Lease *lease, int64 told)
{
	return lease->leader != NULL && lease->yielding && lease->yields > told;
}

/*
 * An election that has no mark is to get one, and listeners are told its last
 * change.  False: not now.
 */
static bool
begin_mark(const Store *store, Batch *batch, Telling *t, Lease *lease,
		   Snapshot snapshot)
{
	Incarnation *inc = le_epoch_read();
	Mark	   *mark = palloc0(sizeof(Mark));
	bool		told = lease->term == 0;

	if (!le_lock_name_shared(t->election))
		return false;

	/* It may have been dropped, and made again, before we had the lock. */
	if (le_mark_read(store, t->election) != NULL ||
		le_lease_read(store, t->election, NULL) == NULL)
		return false;
	if (!told)
		tell_last(store, t, lease, snapshot);
	mark->election = pstrdup(t->election);
	mark->channel = unconstify(char *, t->channel);
	mark->term = told ? inc->dropped_term : lease->term;
	mark->vacated = lease->leader == NULL;
	mark->yields = lease->yields;
	le_mark_write(store, mark);
	batch->told = lappend(batch->told, mark);
	return true;
}

/* Is there anything in history that a mark does not cover? */
typedef struct Coverage
{
	const Mark *mark;
	bool		is_behind;
} Coverage;

static bool
check_coverage(const Term *term, void *arg)
{
	Coverage   *coverage = arg;
	const Mark *mark = coverage->mark;

	coverage->is_behind = term->term > mark->term ||
		(term->ended && !mark->vacated);
	return !coverage->is_behind;
}

/*
 * Does history know more than the mark by now?  An election of that name may
 * have been made, led and dropped since the snapshot.
 */
static bool
is_behind(const Store *store, const Mark *mark)
{
	Coverage	coverage = {.mark = mark};

	PushActiveSnapshot(GetLatestSnapshot());
	le_history_read(store, mark->election, mark->term, ForwardScanDirection,
					GetActiveSnapshot(), check_coverage, &coverage);
	PopActiveSnapshot();
	return coverage.is_behind;
}

/*
 * The election of this mark was dropped, and all that there was to tell of it
 * has been told.  False: not now, maybe one of that name is being made.
 */
static bool
end_mark(const Store *store, Batch *batch, const char *election)
{
	Mark	   *mark;
	bool		busy;

	if (!le_lock_name_shared(election))
		return false;
	if (le_lease_read(store, election, NULL) != NULL)
		return false;
	mark = le_mark_lock(store, election, true, &busy);
	if (busy || (mark != NULL && is_behind(store, mark)))
		return false;
	if (mark != NULL)
		le_mark_delete(mark);
	mark = palloc0(sizeof(Mark));
	mark->election = pstrdup(election);
	mark->term = -1;
	batch->told = lappend(batch->told, mark);
	return true;
}

/*
 * Bring the mark up to the lease, all of whose history has been told.  (History
 * may have been deleted by hand: then there was less to tell.)
 */
static void
tell_lease(Telling *t, const Lease *lease, Mark *mark)
{
	if (lease->term > mark->term)
		mark->yields = 0;
	mark->term = Max(mark->term, lease->term);
	mark->vacated = lease->leader == NULL;
	if (!has_yield(lease, mark->yields))
		return;
	t->complete = t->left > 0;
	if (t->complete)
	{
		tell_yield(t, lease);
		mark->yields = lease->yields;
	}
}

/*
 * Tell what is new beyond the mark, which is locked, of an election, or of one
 * that was dropped (lease is NULL).
 */
static void
tell_news(const Store *store, Batch *batch, Telling *t, Mark *mark,
		  const Lease *lease, Snapshot snapshot)
{
	const Mark	before = *mark;

	t->term = mark->term;
	t->vacated = mark->vacated;
	tell_history(store, t, snapshot);
	if (t->term > mark->term)
		mark->yields = 0;
	mark->term = t->term;
	mark->vacated = t->vacated;
	if (t->complete && lease != NULL)
		tell_lease(t, lease, mark);
	if (mark->term != before.term || mark->vacated != before.vacated ||
		mark->yields != before.yields)
	{
		mark->channel = unconstify(char *, t->channel);
		le_mark_write(store, mark);
	}

	/* Another worker may have told it: then that is news to us. */
	batch->told = lappend(batch->told, mark);
}

/*
 * Tell what is new of one election, under the NOTIFY lock.  False: a row or the
 * name is locked.
 */
static bool
announce_one(const Store *store, Batch *batch, const char *election,
			 int *left, Snapshot snapshot)
{
	Lease	   *lease = le_lease_read(store, election, snapshot);
	bool		busy;
	Mark	   *mark = le_mark_lock(store, election, false, &busy);
	Telling		t = {.election = election,.left = *left,.complete = true};
	bool		done = !busy;

	if (busy)
		return false;
	t.channel = lease != NULL ?
		le_election_channel(store, election, snapshot) :
		mark != NULL ? mark->channel : NULL;
	if (mark != NULL)
		tell_news(store, batch, &t, mark, lease, snapshot);
	else if (lease != NULL)
		done = begin_mark(store, batch, &t, lease, snapshot);
	if (lease == NULL && t.complete)
		done = end_mark(store, batch, election);
	batch->more |= !t.complete;
	*left = t.left;
	return done;
}

/*
 * Queue for the NOTIFY lock, since a mere try fails while any other transaction
 * waits for it.  The commit finds it ours already.
 */
static void
lock_notify(Batch *batch)
{
	LOCKTAG		tag;
	char		value[32];

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, InvalidOid, 0);
	snprintf(value, sizeof(value), INT64_FORMAT,
			 Max(batch->queue_for / MS, 1));
	le_set_locally("lock_timeout", value);
	batch->queued = true;
	batch->waited = !LeLockTry(&tag, AccessExclusiveLock, false, NULL);
	if (batch->waited)
		(void) LockAcquire(&tag, AccessExclusiveLock, false, false);
	batch->locked = true;
	le_set_locally("lock_timeout", "1");
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
	Batch	   *batch = arg;
	int			left = EVENTS;
	Store		store;
	ListCell   *lc;

	le_store_get(&store);
	le_set_locally("synchronous_commit", "off");
	if (!le_store_try_lock(&store, LE_TABLE_ELECTION | LE_TABLE_LEASE |
					   LE_TABLE_HISTORY | LE_TABLE_EPOCH,
					   AccessShareLock) ||
		!le_store_try_lock(&store, LE_TABLE_ANNOUNCED, RowExclusiveLock) ||
		!le_lock_indexes(store.table[TABLE_ANNOUNCED].rel, RowExclusiveLock))
		le_postpone("a table or index that announcing needs is locked");
	lock_notify(batch);
	batch->full = queue_is_full();
	if (batch->full)
		return;
	PushActiveSnapshot(GetLatestSnapshot());
	foreach(lc, batch->elections)
	{
		if (left < 2)
		{
			batch->more = true;
			break;
		}
		if (!announce_one(&store, batch, lfirst(lc), &left,
						  GetActiveSnapshot()))
			batch->busy = lappend(batch->busy, lfirst(lc));
	}
	PopActiveSnapshot();
}

static Known *
find_known(const char *election, HASHACTION action)
{
	return hash_search(known, election, action, NULL);
}

static Known *
remember(const Mark *mark)
{
	Known	   *k = find_known(mark->election, HASH_ENTER);

	k->term = mark->term;
	k->vacated = mark->vacated;
	k->yields = mark->yields;
	k->look = looks;
	return k;
}

/*
 * Forget all marks: from now on they are those of this table.
 */
static void
forget_known(void)
{
	HASHCTL		info;

	if (known != NULL)
		hash_destroy(known);
	memset(&info, 0, sizeof(info));
	info.keysize = LE_NAME_MAX + 1;
	info.entrysize = sizeof(Known);
	info.hcxt = TopMemoryContext;
	known = hash_create("leader_election announced", 64, &info,
						HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	known_table = InvalidOid;
}

/*
 * A round begins.
 */
void
le_announce_begin(void)
{
	news = NIL;
	if (known == NULL)
		forget_known();
}

/*
 * A look begins.  False: what listeners know cannot be read at once.
 */
bool
le_announce_look(Store *store)
{
	ListCell   *lc;

	found = 0;
	looks++;
	if (!le_store_try_lock(store, LE_TABLE_HISTORY | LE_TABLE_ANNOUNCED,
					   AccessShareLock))
		return false;
	if (known_table == store->table[TABLE_ANNOUNCED].rel)
		return true;
	forget_known();
	foreach(lc, le_marks_read(store))
		(void) remember(lfirst(lc));
	known_table = store->table[TABLE_ANNOUNCED].rel;
	return true;
}

/*
 * Until when nothing is told of a lease of another incarnation that has no mark:
 * its holder may lead on elsewhere, or continue here.
 */
static int64
untold_until(const Store *store, const Lease *lease, const Incarnation *inc)
{
	Election   *election;

	if (!le_lease_is_foreign(lease, inc->name))
		return 0;
	if (!inc->known)
		return PG_INT64_MAX;
	if (inc->first_seen + lease->duration > le_clock())
		return inc->first_seen + lease->duration;	/* no sooner than that */
	election = le_election_read(store, lease->election);
	return election != NULL ? le_vacancy_grace(election, lease, inc) :
		PG_INT64_MAX;
}

/*
 * The look has found this lease: is there anything to tell of it?  Perhaps not
 * before *next, which then becomes sooner.
 */
void
le_announce_lease(const Store *store, const Lease *lease,
				  const Incarnation *inc, int64 *next)
{
	Known	   *k = find_known(lease->election, HASH_FIND);
	Mark	   *mark;

	if (k == NULL && (mark = le_mark_read(store, lease->election)) != NULL)
		k = remember(mark);
	if (k != NULL)
	{
		k->look = looks;
		found++;

		/*
		 * An election of that name may have been led, dropped and created anew
		 * since the last look.  The new lease says nothing of the old terms.
		 */
		if (lease->term == 0 && k->vacated &&
			inc->dropped_term != dropped_term &&
			is_behind(store, &(Mark) {.election = k->election,
					  .term = k->term,.vacated = true}))
			k->vacated = false; /* until all is told */
		if (k->term < lease->term || k->vacated != (lease->leader == NULL) ||
			has_yield(lease, k->yields))
			le_announce_add(lease->election);
	}
	else
	{
		int64		until = untold_until(store, lease, inc);

		if (until <= le_clock())
			le_announce_add(lease->election);
		else
			*next = Min(*next, until);
	}
}

/*
 * The look has found all leases: the elections of other marks were dropped.  An
 * election may have been created, led and dropped since the last look.  Its
 * terms were above all that had been dropped by then: read all marks.
 */
void
le_announce_looked(const Store *store, const Incarnation *inc)
{
	HASH_SEQ_STATUS scan;
	Known	   *k;
	ListCell   *lc;

	if (inc->dropped_term != dropped_term)
	{
		foreach(lc, le_marks_read(store))
		{
			const Mark *mark = lfirst(lc);

			if (find_known(mark->election, HASH_FIND) == NULL)
				remember(mark)->look = 0;
		}
		dropped_term = inc->dropped_term;
	}
	if (found == hash_get_num_entries(known))
		return;
	hash_seq_init(&scan, known);
	while ((k = hash_seq_search(&scan)) != NULL)
	{
		if (k->look != looks)
			le_announce_add(k->election);
	}
}

/*
 * There is something to tell of this election.
 */
void
le_announce_add(const char *election)
{
	MemoryContext old = MemoryContextSwitchTo(le_worker_context);

	news = lappend(news, pstrdup(election));
	MemoryContextSwitchTo(old);
}

/*
 * Of how many elections is there something to tell?
 */
int
le_announce_pending(void)
{
	return list_length(news);
}

static char *
attempt_key(const char *election)
{
	return psprintf("A%s", election);
}

/*
 * After a transaction that was to announce these elections: what came of each
 * is remembered, once it is committed.
 */
static void
note_outcome(const Batch *batch, Outcome outcome, int64 *next)
{
	ListCell   *lc;

	foreach(lc, batch->elections)
		le_attempt_ended(attempt_key(lfirst(lc)),
						 outcome == DONE &&
						 list_member_ptr(batch->busy, lfirst(lc)) ? BUSY :
						 outcome, "announcing", next);
	if (outcome != DONE)
		return;
	foreach(lc, batch->told)
	{
		const Mark *mark = lfirst(lc);

		if (mark->term >= 0)
			(void) remember(mark);
		else
			(void) find_known(mark->election, HASH_REMOVE);
	}
}

/*
 * Announce these elections in one transaction.  BUSY: not now, since the NOTIFY
 * lock, or a table, or room in the queue of notifications cannot be had.  FAILED:
 * it was undone, because of one of several elections.
 */
static Outcome
announce_batch(Pass *pass, List *elections)
{
	int64		began = le_clock();
	Batch		batch = {.elections = elections,
	.queue_for = Min(queue_for, pass->renew_at - began)};
	Outcome		outcome;

	outcome = le_in_transaction(announce, &batch, "announcing");

	/* Our latch was reset meanwhile: look again, and sleep only after that. */
	if (batch.waited)
	{
		pass->next = le_clock();
		le_standing_look_again();
	}
	if (batch.full)
	{
		queue_at = le_clock() + FULL_PAUSE;
		return BUSY;
	}
	if (!batch.locked)
	{
		if (batch.queued)
		{
			queue_at = le_clock() + (le_clock() - began) * QUEUE_PAUSE;
			queue_for = Min(queue_for * 2, LONGEST_QUEUE);
		}
		else
			queue_at = le_clock() + RETRY;
		return BUSY;
	}
	queue_for = SHORTEST_QUEUE;
	if (batch.more)
		pass->next = le_clock();
	if (outcome != DONE && list_length(elections) > 1)
		return FAILED;
	note_outcome(&batch, outcome, &pass->next);
	return DONE;
}

/*
 * Announce these elections together or, since one of them may have a name or
 * channel that cannot be sent, one by one.  False: not now.
 */
static bool
announce_list(Pass *pass, List *elections)
{
	Outcome		outcome = announce_batch(pass, elections);
	ListCell   *lc;

	if (outcome != FAILED)
		return outcome == DONE;
	foreach(lc, elections)
	{
		if (pass->renew_at < le_clock() + MS ||
			announce_batch(pass, list_make1(lfirst(lc))) == BUSY)
			return false;
	}
	return true;
}

/*
 * Tell what there is to tell, as far as that is possible before the next
 * renewal.
 */
void
le_announce(Pass *pass)
{
	int			done = 0;
	int64		now;

	/* A wake-up may tell of a leader's session that has ended: stop for it. */
	while (done < list_length(news) && (now = le_clock()) >= queue_at &&
		   now + MS <= pass->renew_at && (done == 0 || !le_is_to_renew(pass)))
	{
		List	   *elections = NIL;
		int			from = done;

		while (done < list_length(news) && list_length(elections) < EVENTS)
		{
			char	   *election = list_nth(news, done++);
			int64		retry_at = le_attempt_at(attempt_key(election));

			if (retry_at > now)
				pass->next = Min(pass->next, retry_at);
			else
				elections = lappend(elections, election);
		}
		if (elections != NIL && !announce_list(pass, elections))
		{
			done = from;
			break;
		}
	}
	news = list_copy_tail(news, done);
	if (news != NIL)
		pass->next = Min(pass->next, Max(queue_at, le_clock()));
}
