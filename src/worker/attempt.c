/*-------------------------------------------------------------------------
 *
 * attempt.c
 *		The background worker's way to do what may fail.
 *
 * Invariant: no error, cancelled statement or lock that is not free ends the
 * worker, nor keeps it from its other work.  What fails is undone, and is
 * tried again after a pause that doubles each time.  Each kind of work with
 * each election has a pause of its own, so that an election that is broken
 * holds up no other.
 *
 * A pause after an error ends when any process wakes the worker: it may be the
 * one that has removed the cause.  What fails, or waits for long, is told to
 * other processes (trouble.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "worker/worker.h"

#define LOG_AFTER		(10000 * MS)	/* what stays busy is logged */
#define BUSY_PAUSE		(1 * MS)	/* after a lock was not free, at first */
#define ERROR_PAUSE		(100 * MS)	/* after an error, at first */
#define LONGEST_BUSY	(100 * MS)
#define LONGEST_ERROR	(5000 * MS) /* where candidates need no worker */
#define LONGEST_ERROR_ALL (1000 * MS)	/* where leaders lose their leases */
#define WOKEN_PAUSE		(200 * MS)	/* after an error, if the worker is woken */
#define FORGET_AFTER	(10000 * MS)	/* work that is not due any more */
#define FORGET_FAILED	(2000 * MS) /* the same, after an error */
#define TELL_AFTER		(1000 * MS) /* others are told of what stays busy */
#define LOG_AGAIN		(60000 * MS)	/* the same error */
#define MESSAGE_MAX		200		/* bytes of it that are kept */
#define LINE_SIZE		1024

MemoryContext le_worker_context;

static const struct
{
	const char *activity;		/* for pg_stat_activity and the log */
	bool		is_named;		/* ... which also name the election */
	int64		longest_pause;	/* after an error */
	bool		elects;			/* without it nobody is elected */
}			kinds[] = {
	[ATTEMPT_SCAN] = {"scanning", false, LONGEST_ERROR_ALL, true},
	[ATTEMPT_BEGIN_EPOCH] = {"starting an epoch", false, LONGEST_ERROR_ALL, true},
	[ATTEMPT_PROVE] = {"asking synchronous standbys", false, LONGEST_ERROR_ALL, true},
	[ATTEMPT_RENEW_ALL] = {"renewing leases", false, LONGEST_ERROR_ALL, false},
	[ATTEMPT_TIDY] = {"removing dead candidates", false, LONGEST_ERROR_ALL, false},
	[ATTEMPT_MOVE_DROPPED] = {"removing dropped elections", false, LONGEST_ERROR, false},
	[ATTEMPT_PRUNE] = {"removing old history", false, LONGEST_ERROR, false},
	[ATTEMPT_RENEW] = {"renewing a lease", false, LONGEST_ERROR_ALL, false},
	[ATTEMPT_PREEMPT] = {"asking for a yield in", true, LONGEST_ERROR_ALL, false},
	[ATTEMPT_SETTLE] = {"electing in", true, LONGEST_ERROR, true},
	[ATTEMPT_ANNOUNCE] = {"announcing", false, LONGEST_ERROR, false},
};

/* Work that could not be done, and when to try it again */
typedef struct Trouble
{
	struct
	{
		AttemptKind kind;
		char		election[LE_NAME_MAX + 1];	/* "": all */
	}			key;			/* hash key */
	int64		since;
	bool		logged;
	int64		pause;
	int64		retry_at;

	/* of the last error */
	int64		tried_at;
	int			code;
	int			times;			/* errors so far */
	char		message[MESSAGE_MAX + 1];
} Trouble;

static HTAB *troubles = NULL;

/*
 * The error that has ended the last attempt.  One that has left something
 * undone without an error has found it locked.
 */
static int	last_code;
static char last_message[MESSAGE_MAX + 1];

/* What other processes are told; "": nothing, all is well */
static char line[LINE_SIZE] = "";

/* When others were told last */
static int64 told_at = 0;

/* When to look for troubles that can be forgotten */
static int64 forget_at = PG_INT64_MAX;

/*
 * Note the error that is being handled: its first line, in which a name that
 * somebody has given shows no control characters.  Where there is no memory,
 * its SQLSTATE has to be enough.
 */
static void
note_error(int code)
{
	ErrorData  *error;
	int			length;

	last_code = code;
	if (code == ERRCODE_OUT_OF_MEMORY)
	{
		strlcpy(last_message, "no memory, or no room in the lock table",
				sizeof(last_message));
		return;
	}
	MemoryContextSwitchTo(le_worker_context);
	error = CopyErrorData();
	if (error->message != NULL)
	{
		length = strcspn(error->message, "\n");
		length = pg_mbcliplen(error->message, length, MESSAGE_MAX);
		memcpy(last_message, error->message, length);
		last_message[length] = '\0';
		for (char *c = last_message; *c != '\0'; c++)
		{
			if ((unsigned char) *c < ' ' || *c == 0x7f)
				*c = ' ';
		}
	}
	FreeErrorData(error);
}

/*
 * Is the error to be logged?  One that comes again and again is, once in a
 * while.
 */
static bool
is_new(void)
{
	static int	logged_code = 0;
	static char logged_message[MESSAGE_MAX + 1] = "";
	static int64 logged_at = 0;

	if (last_code == logged_code && le_clock() - logged_at < LOG_AGAIN &&
		strcmp(last_message, logged_message) == 0)
		return false;
	logged_code = last_code;
	strlcpy(logged_message, last_message, sizeof(logged_message));
	logged_at = le_clock();
	return true;
}

/*
 * Do something that may fail or be cancelled: in a transaction and in the
 * round's memory, unless it chooses another, or (activity NULL) in none.  An
 * error is logged, and undone by aborting the transaction.  Outside of this
 * function, nothing in the worker may raise an error or process an interrupt:
 * that would end the process.
 */
Outcome
le_attempt_guard(Work work, void *arg, const char *activity)
{
	volatile Outcome result = DONE;

	last_code = ERRCODE_LOCK_NOT_AVAILABLE;
	last_message[0] = '\0';
	if (activity != NULL)
		pgstat_report_activity(STATE_RUNNING,
							   line[0] != '\0' ? line : activity);
	PG_TRY();
	{
		if (activity != NULL)
		{
			SetCurrentStatementStartTimestamp();
			StartTransactionCommand();
			MemoryContextSwitchTo(le_worker_context);
		}
		work(arg);
		if (activity != NULL)
			CommitTransactionCommand();
	}
	PG_CATCH();
	{
		int			code = geterrcode();
		bool		no_room = code == ERRCODE_OUT_OF_MEMORY;

		HOLD_INTERRUPTS();
		note_error(code);
		result = no_room || code == ERRCODE_LOCK_NOT_AVAILABLE ||
			code == ERRCODE_QUERY_CANCELED ? BUSY : FAILED;
		if (!no_room && code != ERRCODE_LOCK_NOT_AVAILABLE &&
			!le_store_is_other_version() && /* else worker.c says so, and ends */
			is_new())
			EmitErrorReport();
		AbortCurrentTransaction();

		/*
		 * A full lock table and a shortage of memory have the same code.  If
		 * the lock table is full, free our reserved entries: the next try may
		 * succeed with their room.  Only the try that freed them is logged,
		 * not all those that follow while the table stays full.
		 */
		if (no_room && (le_room_for_locks(1) || le_room_free_reserved()) &&
			is_new())
			EmitErrorReport();
		FlushErrorState();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(le_worker_context);
	if (activity != NULL)
	{
		pgstat_report_stat(false);
		pgstat_report_activity(STATE_IDLE, NULL);
	}
	return result;
}

/*
 * To be called within le_attempt(): undo the attempt, without a line in the
 * log, and have it tried again soon.
 */
void
le_attempt_report_busy(const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg_internal("%s", why)));
}

static Trouble *
find_trouble(AttemptKind kind, const char *election, HASHACTION action)
{
	Trouble		new;
	bool		found;
	Trouble    *trouble;

	if (troubles == NULL)
		troubles = le_hash_make("leader_election troubles",
								sizeof(new.key), sizeof(Trouble), HASH_BLOBS,
								TopMemoryContext);
	memset(&new, 0, sizeof(new));	/* the padding, too, is hashed */
	new.key.kind = kind;
	if (election != NULL)
		strlcpy(new.key.election, election, sizeof(new.key.election));
	new.since = le_clock();
	trouble = hash_search(troubles, &new.key, action, &found);
	if (action == HASH_ENTER && !found)
		*trouble = new;
	return trouble;
}

static const char *
activity_of(AttemptKind kind, const char *election)
{
	return kinds[kind].is_named ?
		psprintf("%s %s", kinds[kind].activity, le_quote(election)) :
		kinds[kind].activity;
}

/*
 * Are other processes to be told of it?  That standbys do not follow, they see
 * for themselves.
 */
static bool
is_told(const Trouble *trouble)
{
	if (le_trouble_kind(trouble->code) != TROUBLE_WAITS)
		return true;
	return trouble->key.kind != ATTEMPT_PROVE &&
		trouble->tried_at - trouble->since > TELL_AFTER;
}

/*
 * Which of the two is worse?  a may be NULL: nothing is.
 */
static const Trouble *
worse(const Trouble *a, const Trouble *b)
{
	if (a == NULL)
		return b;
	if (kinds[a->key.kind].elects != kinds[b->key.kind].elects)
		return kinds[a->key.kind].elects ? a : b;
	if (le_trouble_kind(a->code) != le_trouble_kind(b->code))
		return le_trouble_kind(a->code) < le_trouble_kind(b->code) ? a : b;
	return a->tried_at > b->tried_at ? a : b;
}

/*
 * Note which elections this trouble, and others of its kind, keep from being
 * settled.
 */
static void
note_elections(WorkerTrouble *told, const Trouble *worst)
{
	foreach_entry(const Trouble, trouble, troubles)
	{
		if (!kinds[trouble->key.kind].elects || told->all || !is_told(trouble) ||
			le_trouble_kind(trouble->code) != le_trouble_kind(worst->code))
			continue;
		if (trouble->key.election[0] == '\0')
			told->all = true;
		else
			le_trouble_add(told, trouble->key.election);
	}
}

/*
 * Tell other processes what there is to tell: the last error, of the worst
 * kind that there is.
 */
static void
tell_troubles(void)
{
	const Trouble *worst = NULL;
	WorkerTrouble told = {.all = false};

	foreach_entry(const Trouble, trouble, troubles)
	{
		if (is_told(trouble))
			worst = worse(worst, trouble);
	}
	told_at = le_clock();
	line[0] = '\0';
	if (worst != NULL)
	{
		TimestampTz now = GetCurrentTimestamp();

		note_elections(&told, worst);
		told.code = worst->code;
		told.times = worst->times;
		told.since = now - (le_clock() - worst->since);
		told.retry_at = now - (le_clock() - worst->retry_at);
		told.text = psprintf("%s%s%s",
							 activity_of(worst->key.kind, worst->key.election),
							 worst->message[0] != '\0' ? ": " : "",
							 worst->message);
		le_trouble_format(&told, line, sizeof(line));
	}
	pgstat_report_activity(STATE_IDLE, line);
}

static int64
keep_until(const Trouble *trouble)
{
	return trouble->retry_at +
		(le_trouble_kind(trouble->code) == TROUBLE_WAITS ?
		 FORGET_AFTER : FORGET_FAILED);
}

/*
 * Forget work that was not tried again although its pause is long over: it is
 * not due any more.  Its election was dropped, or a candidate's own call has
 * elected, say.  *next becomes the time to see to that again, if that is
 * sooner.
 */
void
le_attempt_forget(int64 *next)
{
	int64		now = le_clock();
	bool		forgotten = false;

	if (now >= forget_at)
	{
		forget_at = PG_INT64_MAX;
		foreach_entry(Trouble, trouble, troubles)
		{
			int64		until = keep_until(trouble);

			if (until > now)
			{
				forget_at = Min(forget_at, until);
				continue;
			}
			forgotten |= is_told(trouble);
			(void) hash_search(troubles, &trouble->key, HASH_REMOVE, NULL);
		}
		if (forgotten)
			tell_troubles();
	}
	*next = Min(*next, forget_at);
}

/*
 * The worker was woken: what has failed may succeed now.
 */
void
le_attempt_again(void)
{
	if (line[0] == '\0')
		return;					/* what is merely busy pauses briefly */
	foreach_entry(Trouble, trouble, troubles)
	{
		trouble->retry_at = Min(trouble->retry_at,
								trouble->tried_at + WOKEN_PAUSE);
		trouble->pause = Min(trouble->pause, WOKEN_PAUSE);
	}
}

static void
log_trouble(Trouble *trouble)
{
	trouble->logged = true;
	HOLD_INTERRUPTS();
	ereport(LOG,
			(errmsg("leader_election: %s has had to wait for " INT64_FORMAT " s",
					activity_of(trouble->key.kind, trouble->key.election),
					LOG_AFTER / USECS_PER_SEC),
			 errhint("Look in pg_locks for who holds locks on the tables of schema \"%s\", and in pg_stat_replication for synchronous standbys that do not follow.",
					 LE_SCHEMA)));
	RESUME_INTERRUPTS();
}

/*
 * Until when that work pauses, because it has failed; 0: it does not.
 */
int64
le_attempt_paused_until(AttemptKind kind, const char *election)
{
	Trouble    *trouble = find_trouble(kind, election, HASH_FIND);

	return trouble != NULL && trouble->retry_at > le_clock() ?
		trouble->retry_at : 0;
}

/*
 * An attempt has failed: when is it to be made again?
 */
static void
note_failure(Trouble *trouble, Outcome outcome)
{
	trouble->tried_at = le_clock();
	trouble->code = last_code;
	trouble->times++;
	strlcpy(trouble->message, last_message, sizeof(trouble->message));
	if (outcome == BUSY)
		trouble->pause = Min(Max(trouble->pause * 2, BUSY_PAUSE), LONGEST_BUSY);
	else
		trouble->pause = Min(Max(trouble->pause * 2, ERROR_PAUSE),
							 kinds[trouble->key.kind].longest_pause);
	trouble->retry_at = trouble->tried_at + trouble->pause;
	forget_at = Min(forget_at, keep_until(trouble));
	if (outcome == BUSY && !trouble->logged &&
		trouble->tried_at - trouble->since > LOG_AFTER)
		log_trouble(trouble);
}

/*
 * Note what has come of an attempt, right after it.  What has failed pauses,
 * for longer each time; *next becomes the end of the pause, if that is sooner.
 */
void
le_attempt_ended(AttemptKind kind, const char *election, Outcome outcome,
				 int64 *next)
{
	Trouble    *trouble = find_trouble(kind, election, HASH_FIND);
	bool		told = trouble != NULL && is_told(trouble);

	if (outcome == DONE)
		(void) find_trouble(kind, election, HASH_REMOVE);
	else
	{
		trouble = find_trouble(kind, election, HASH_ENTER);
		note_failure(trouble, outcome);
		told |= is_told(trouble);
		*next = Min(*next, trouble->retry_at);
	}

	/* Many elections that are locked are tried, and told of, many times. */
	if (told && (outcome != BUSY || le_clock() - told_at >= LONGEST_BUSY))
		tell_troubles();
}

/*
 * Try that work with an election (NULL: with all) in a transaction, unless it
 * pauses.  True if it was done; else *next becomes the time to try it again,
 * if that is sooner.
 */
bool
le_attempt(AttemptKind kind, const char *election, Work work, void *arg,
		   int64 *next)
{
	int64		paused_until = le_attempt_paused_until(kind, election);
	Outcome		outcome;

	if (paused_until != 0)
	{
		*next = Min(*next, paused_until);
		return false;
	}
	outcome = le_attempt_guard(work, arg, activity_of(kind, election));
	le_attempt_ended(kind, election, outcome, next);
	return outcome == DONE;
}
