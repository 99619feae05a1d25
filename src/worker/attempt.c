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
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/memutils.h"
#include "worker/worker.h"

#define LOG_AFTER		(10000 * MS)	/* what stays busy is logged */
#define BUSY_PAUSE		(1 * MS)	/* after a lock was not free, at first */
#define ERROR_PAUSE		(100 * MS)	/* after an error, at first */
#define LONGEST_BUSY	(100 * MS)
#define LONGEST_ERROR	(60000 * MS)	/* where candidates need no worker */
#define LONGEST_ERROR_ALL (1000 * MS)	/* where leaders lose their leases */
#define FORGET_AFTER	(10000 * MS)	/* work that is not due any more */

static const struct
{
	const char *activity;		/* for pg_stat_activity and the log */
	bool		is_named;		/* ... which also name the election */
	int64		longest_pause;	/* after an error */
}			kinds[] = {
	[ATTEMPT_LOOK] = {"looking", false, LONGEST_ERROR_ALL},
	[ATTEMPT_BEGIN_EPOCH] = {"starting an epoch", false, LONGEST_ERROR_ALL},
	[ATTEMPT_PROVE] = {"asking synchronous standbys", false, LONGEST_ERROR_ALL},
	[ATTEMPT_RENEW_ALL] = {"renewing leases", false, LONGEST_ERROR_ALL},
	[ATTEMPT_TIDY] = {"removing dead candidates", false, LONGEST_ERROR_ALL},
	[ATTEMPT_RENEW] = {"renewing a lease", false, LONGEST_ERROR_ALL},
	[ATTEMPT_PREEMPT] = {"asking for a yield in", true, LONGEST_ERROR_ALL},
	[ATTEMPT_SETTLE] = {"electing in", true, LONGEST_ERROR},
	[ATTEMPT_ANNOUNCE] = {"announcing", false, LONGEST_ERROR},
};

typedef struct TroubleKey
{
	AttemptKind kind;
	char		election[LE_NAME_MAX + 1];	/* "": all */
} TroubleKey;

/* Work that could not be done, and when to try it again */
typedef struct Trouble
{
	TroubleKey	key;			/* hash key */
	int64		since;
	bool		logged;
	int64		pause;
	int64		retry_at;
} Trouble;

static HTAB *troubles = NULL;

/*
 * Do something that may fail or be cancelled.  An error is logged, and undone
 * by aborting the transaction.  Outside of this function, nothing in the
 * worker may raise an error or process an interrupt: that would end the
 * process.
 */
Outcome
le_guard(Work work, void *arg)
{
	volatile Outcome result = DONE;

	PG_TRY();
	{
		work(arg);
	}
	PG_CATCH();
	{
		int			code = geterrcode();
		bool		no_room = code == ERRCODE_OUT_OF_MEMORY;

		HOLD_INTERRUPTS();
		result = no_room || code == ERRCODE_LOCK_NOT_AVAILABLE ||
			code == ERRCODE_QUERY_CANCELED ? BUSY : FAILED;
		if (!no_room && code != ERRCODE_LOCK_NOT_AVAILABLE &&
			!le_store_is_foreign())	/* else worker.c says so, and ends */
			EmitErrorReport();
		AbortCurrentTransaction();

		/*
		 * A full lock table and a shortage of memory have the same code.  If
		 * the lock table is full, free our spare entries: the next try may
		 * succeed with their room.  Only the try that freed them is logged,
		 * not all those that follow while the table stays full.
		 */
		if (no_room && (le_room_for_locks(1) || le_room_free_spares()))
			EmitErrorReport();
		FlushErrorState();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(le_worker_context);
	return result;
}

/*
 * To be called within le_attempt(): undo the attempt, without a line in the
 * log, and have it tried again soon.
 */
void
le_postpone(const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg_internal("%s", why)));
}

/* Work that needs a transaction of its own */
typedef struct Transaction
{
	Work		work;
	void	   *arg;
} Transaction;

static void
run_transaction(void *arg)
{
	Transaction *transaction = arg;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	MemoryContextSwitchTo(le_worker_context);
	transaction->work(transaction->arg);
	CommitTransactionCommand();
}

/*
 * Do something in a transaction, in the round's memory unless it chooses
 * another.
 */
Outcome
le_in_transaction(Work work, void *arg, const char *activity)
{
	Transaction transaction = {work, arg};
	Outcome		result;

	pgstat_report_activity(STATE_RUNNING, activity);
	result = le_guard(run_transaction, &transaction);
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
	return result;
}

static Trouble *
find_trouble(AttemptKind kind, const char *election, HASHACTION action)
{
	TroubleKey	key;
	bool		found;
	Trouble    *trouble;

	if (troubles == NULL)
		troubles = le_hash_make("leader_election troubles",
								sizeof(TroubleKey), sizeof(Trouble),
								HASH_BLOBS, TopMemoryContext);
	memset(&key, 0, sizeof(key));	/* the padding, too, is hashed */
	key.kind = kind;
	if (election != NULL)
		strlcpy(key.election, election, sizeof(key.election));
	trouble = hash_search(troubles, &key, action, &found);
	if (action == HASH_ENTER && !found)
	{
		trouble->since = le_clock();
		trouble->logged = false;
		trouble->pause = 0;
		trouble->retry_at = 0;
	}
	return trouble;
}

/*
 * Forget what was not tried again although its pause is long over: it is not
 * due any more.  Its election was dropped, say.
 */
static void
forget_troubles(void)
{
	static int64 looked_at = 0;
	int64		now = le_clock();
	HASH_SEQ_STATUS scan;
	Trouble    *trouble;

	if (now - looked_at < FORGET_AFTER)
		return;
	looked_at = now;
	hash_seq_init(&scan, troubles);
	while ((trouble = hash_seq_search(&scan)) != NULL)
	{
		if (now - trouble->retry_at >= FORGET_AFTER)
			(void) hash_search(troubles, &trouble->key, HASH_REMOVE, NULL);
	}
}

static const char *
activity_of(AttemptKind kind, const char *election)
{
	return kinds[kind].is_named ?
		psprintf("%s %s", kinds[kind].activity, le_quote(election)) :
		kinds[kind].activity;
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
 * Note what has come of an attempt.  What has failed pauses, for longer each
 * time; *next becomes the end of the pause, if that is sooner.
 */
void
le_attempt_ended(AttemptKind kind, const char *election, Outcome outcome,
				 int64 *next)
{
	Trouble    *trouble = find_trouble(kind, election,
									   outcome == DONE ? HASH_REMOVE : HASH_FIND);

	if (outcome == DONE)
		return;
	if (trouble == NULL)
	{
		forget_troubles();
		trouble = find_trouble(kind, election, HASH_ENTER);
	}
	if (outcome == BUSY)
		trouble->pause = Min(Max(trouble->pause * 2, BUSY_PAUSE), LONGEST_BUSY);
	else
		trouble->pause = Min(Max(trouble->pause * 2, ERROR_PAUSE),
							 kinds[kind].longest_pause);
	trouble->retry_at = le_clock() + trouble->pause;
	*next = Min(*next, trouble->retry_at);
	if (outcome == BUSY && !trouble->logged &&
		le_clock() - trouble->since > LOG_AFTER)
		log_trouble(trouble);
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
	outcome = le_in_transaction(work, arg, activity_of(kind, election));
	le_attempt_ended(kind, election, outcome, next);
	return outcome == DONE;
}
