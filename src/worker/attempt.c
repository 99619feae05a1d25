/*-------------------------------------------------------------------------
 *
 * attempt.c
 *		The background worker's way to do what may fail.
 *
 * Invariant: no error, cancelled statement or lock that is not free ends the
 * worker, nor keeps it from its other work: what fails is undone, and is tried
 * again after a pause that grows.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "worker/worker.h"

#define TELL_AFTER		(10000 * MS)	/* what stays busy is logged */
#define BUSY_PAUSE		(1 * MS)	/* after a lock was not free, at first */
#define ERROR_PAUSE		(100 * MS)	/* after an error, at first */
#define LONGEST_BUSY	(100 * MS)
#define LONGEST_ERROR	(60000 * MS)	/* with one election */
#define LONGEST_ERROR_ALL (1000 * MS)	/* with what all of them need */
#define FORGET_AFTER	(10000 * MS)	/* what nobody tries again is over */

/* What could not be done, and when to try again */
typedef struct Trouble
{
	char		key[LE_NAME_MAX + 2];	/* hash key */
	int64		since;
	bool		told;
	int64		pause;
	int64		retry_at;
} Trouble;

MemoryContext le_worker_context;
static HTAB *troubles;

void
le_attempt_init(void)
{
	HASHCTL		info;

	le_worker_context = AllocSetContextCreate(TopMemoryContext,
											  "leader_election worker",
											  ALLOCSET_DEFAULT_SIZES);
	memset(&info, 0, sizeof(info));
	info.keysize = sizeof(((Trouble *) 0)->key);
	info.entrysize = sizeof(Trouble);
	info.hcxt = TopMemoryContext;
	troubles = hash_create("leader_election troubles", 8, &info,
						   HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

/*
 * Do something that may fail or be cancelled.  An error is logged and undone,
 * and ends nothing else: outside of this, nothing here may meet an interrupt.
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
		if (!no_room && code != ERRCODE_LOCK_NOT_AVAILABLE)
			EmitErrorReport();
		AbortCurrentTransaction();

		/*
		 * A full lock table is told once: with our spare locks it may succeed
		 * at once.  If there is room in it, memory was short, which has the
		 * same code.
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
 * Give up for now: le_attempt() tries again.
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
find_trouble(const char *key)
{
	return hash_search(troubles, key, HASH_FIND, NULL);
}

/*
 * Forget what has not been tried again although the pause is long over: it is
 * not due any more, its election was dropped, say.
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
			(void) hash_search(troubles, trouble->key, HASH_REMOVE, NULL);
	}
}

/*
 * When to try it: now (0), or after a pause.
 */
int64
le_attempt_at(const char *key)
{
	Trouble    *trouble = find_trouble(key);

	return trouble != NULL && trouble->retry_at > le_clock() ?
		trouble->retry_at : 0;
}

/*
 * Would le_attempt() do it, or is there a pause?
 */
bool
le_may_attempt(const char *key)
{
	return le_attempt_at(key) == 0;
}

static void
tell_trouble(Trouble *trouble, const char *activity)
{
	trouble->told = true;
	HOLD_INTERRUPTS();
	ereport(LOG,
			(errmsg("leader_election: %s has had to wait for " INT64_FORMAT " s",
					activity, TELL_AFTER / USECS_PER_SEC),
			 errhint("Look in pg_locks for who holds locks on the tables of schema \"%s\", and in pg_stat_replication for synchronous standbys that do not follow.",
					 LE_SCHEMA)));
	RESUME_INTERRUPTS();
}

/*
 * After it was tried: what has failed is to be tried again after a pause that
 * grows, at *next, if not before.
 */
void
le_attempt_ended(const char *key, Outcome outcome, const char *activity,
				 int64 *next)
{
	Trouble    *trouble;
	bool		found;

	if (outcome == DONE)
	{
		(void) hash_search(troubles, key, HASH_REMOVE, NULL);
		return;
	}
	if (find_trouble(key) == NULL)
		forget_troubles();
	trouble = hash_search(troubles, key, HASH_ENTER, &found);
	if (!found)
	{
		trouble->pause = 0;
		trouble->since = le_clock();
		trouble->told = false;
	}
	if (outcome == BUSY)
		trouble->pause = Min(Max(trouble->pause * 2, BUSY_PAUSE), LONGEST_BUSY);
	else
		trouble->pause = Min(Max(trouble->pause * 2, ERROR_PAUSE),
							 key[0] == 'E' || key[0] == 'A' ? LONGEST_ERROR :
							 LONGEST_ERROR_ALL);
	trouble->retry_at = le_clock() + trouble->pause;
	*next = Min(*next, trouble->retry_at);
	if (outcome == BUSY && !trouble->told &&
		le_clock() - trouble->since > TELL_AFTER)
		tell_trouble(trouble, activity);
}

/*
 * Try something that may fail again and again, with a growing pause in
 * between; true if it was done, else it is to be tried again at *next, if not
 * before.  key tells it from everything else that can fail; what begins with
 * "E" or "A" may be left alone for longest.
 */
bool
le_attempt(const char *key, Work work, void *arg, const char *activity,
		   int64 *next)
{
	int64		at = le_attempt_at(key);
	Outcome		outcome;

	if (at != 0)
	{
		*next = Min(*next, at);
		return false;
	}
	outcome = le_in_transaction(work, arg, activity);
	le_attempt_ended(key, outcome, activity, next);
	return outcome == DONE;
}
