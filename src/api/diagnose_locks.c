/*-------------------------------------------------------------------------
 *
 * diagnose_locks.c
 *		What diagnose() says of locks: who keeps the election waiting.
 *
 * pg_locks shows the same to everybody.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/diagnose.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

/* A lock that a transaction holds for longer is no passing one */
#define LONG_HELD		USECS_PER_SEC

/* Nor is one that is waited for so long: calls give up after LE_WAIT_LIMIT_MS */
#define LONG_WAITED		(LE_WAIT_LIMIT_MS * INT64CONST(1000) / 2)

/* What comes with locks on rows, ours among them */
#define ROW_MODES \
	(LOCKBIT_ON(RowShareLock) | LOCKBIT_ON(RowExclusiveLock))

/*
 * A table could not be read, since another transaction has locked it.
 */
void
le_diagnose_unread(Diagnosis *d)
{
	if (d->unread == NIL)
		return;
	le_diagnose_say(d, SEVERITY_ERROR,
					psprintf("Tables of schema \"leader_election\" are locked and could not be read, so that these rows do not tell all of election %s: %s.",
							 d->quoted, le_diagnose_names(d->unread)),
					"See the rows on who holds locks, and ask again.");
}

/*
 * The process, as the subject of a sentence.
 */
static char *
describe_process(int pid)
{
	char	   *process = le_process_text(pid);

	process[0] = pg_toupper((unsigned char) process[0]);
	return process;
}

/*
 * For how long has the transaction of this process run?  0: it has ended since
 * the locks were read.  A prepared one has no process, and may stay for ever.
 */
static int64
transaction_age(int pid)
{
	const PgBackendStatus *backend;

	if (pid == 0)
		return PG_INT64_MAX;
	backend = LeBackendStatus(pid);
	if (backend == NULL || backend->st_xact_start_timestamp == 0)
		return 0;
	return GetCurrentTimestamp() - backend->st_xact_start_timestamp;
}

/*
 * For how long has another process waited for this lock?  0: none does.
 */
static int64
waiting_time(const LockData *locks, const LOCKTAG *tag)
{
	int64		longest = 0;

	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *lock = &locks->locks[i];

		if (lock->waitLockMode != NoLock && lock->waitStart != 0 &&
			memcmp(&lock->locktag, tag, sizeof(LOCKTAG)) == 0)
			longest = Max(longest, GetCurrentTimestamp() - lock->waitStart);
	}
	return longest;
}

static void
say_held(Diagnosis *d, Severity severity, int pid, const char *what)
{
	if (pid == 0)
		le_diagnose_say(d, severity,
						psprintf("A prepared transaction holds %s.", what),
						"End it: SELECT gid, prepared, owner FROM pg_prepared_xacts; then COMMIT PREPARED or ROLLBACK PREPARED.");
	else
		le_diagnose_say(d, severity,
						psprintf("%s holds %s.", describe_process(pid), what),
						d->on_standby ?
						"What the process that replays WAL holds, a transaction on the primary holds: end that." :
						psprintf("If its transaction does not end by itself: SELECT pg_terminate_backend(%d);",
								 pid));
}

/*
 * The table of ours (or the view that all use), or (modes are not those of
 * rows) its primary key, that the lock is on; NULL: on none.
 */
static const char *
locked_table(const LOCKTAG *tag, LOCKMASK modes)
{
	bool		is_key;

	if (le_observed_table(tag, &is_key) < 0 ||
		(is_key && modes == ROW_MODES))
		return NULL;
	return get_rel_name(tag->locktag_field2);
}

/*
 * The tables on which the process of lock number i holds such a lock; NIL: it
 * holds none by that lock, or an earlier lock has told of it.
 */
static List *
tables_held(const Diagnosis *d, int i, LOCKMASK modes)
{
	int			pid = d->locks->locks[i].pid;
	List	   *tables = NIL;

	if ((d->locks->locks[i].holdMask & modes) == 0 ||
		locked_table(&d->locks->locks[i].locktag, modes) == NULL)
		return NIL;
	for (int k = 0; k < d->locks->nelements; k++)
	{
		const LockInstanceData *lock = &d->locks->locks[k];
		const char *table;

		if (lock->pid != pid || (lock->holdMask & modes) == 0 ||
			(table = locked_table(&lock->locktag, modes)) == NULL)
			continue;
		if (k < i)
			return NIL;
		tables = lappend(tables, unconstify(char *, table));
	}
	return tables;
}

static void
check_table_lock(Diagnosis *d, int i)
{
	int			pid = d->locks->locks[i].pid;
	List	   *strong = tables_held(d, i, LE_STRONG_MODES);
	List	   *rows = tables_held(d, i, ROW_MODES);

	if (strong != NIL)
		say_held(d, SEVERITY_ERROR, pid,
				 psprintf("a lock that keeps elections and renewals waiting, in schema \"leader_election\" on %s",
						  le_diagnose_names(strong)));
	if (rows != NIL && transaction_age(pid) > LONG_HELD)
		say_held(d, SEVERITY_WARNING, pid,
				 psprintf("locks on rows, perhaps of this election, in a long transaction, in schema \"leader_election\" on %s",
						  le_diagnose_names(rows)));
}

/*
 * Does that lock keep the next leader waiting: does a transaction that is
 * fenced by the term that is over hold the election lock while it commits?
 * Usually that is a matter of milliseconds.
 */
static bool
is_late_commit(const Diagnosis *d, const LockInstanceData *lock,
			   const LOCKTAG *election)
{
	return (lock->holdMask & LOCKBIT_ON(ShareLock)) != 0 &&
		memcmp(&lock->locktag, election, sizeof(LOCKTAG)) == 0 &&
		lock->pid != MyProcPid && lock->pid != le_lock_worker_pid(d->locks) &&
		transaction_age(lock->pid) > LONG_HELD;
}

/*
 * Is there such a transaction?
 */
bool
le_diagnose_has_late_commit(const Diagnosis *d)
{
	LOCKTAG		election = le_lock_mutex_tag(LOCK_ELECTION, d->name);

	for (int i = 0; i < d->locks->nelements; i++)
	{
		if (is_late_commit(d, &d->locks->locks[i], &election))
			return true;
	}
	return false;
}

static void
say_late_commit(Diagnosis *d, int pid)
{
	le_diagnose_say(d, SEVERITY_ERROR,
					psprintf("%s commits a transaction that is fenced by election %s, and holds its lock for as long as that takes (it began %s ago): the leader cannot change.",
							 describe_process(pid), d->quoted,
							 le_diagnose_duration(transaction_age(pid))),
					psprintf("The server ends its session a second after the lease is over, if another candidate could be elected. If it stays all the same, its process is stopped, or runs code that cannot be interrupted, or waits for storage: SELECT state, wait_event_type, wait_event FROM pg_stat_activity WHERE pid = %d;",
							 pid));
}

/*
 * A lock that serializes changes: of the election, or of its group.
 */
static void
check_mutex(Diagnosis *d, const LockInstanceData *lock, const char *what)
{
	bool		exclusive = (lock->holdMask & LOCKBIT_ON(ExclusiveLock)) != 0;

	if ((exclusive && transaction_age(lock->pid) > LONG_HELD) ||
		waiting_time(d->locks, &lock->locktag) > LONG_WAITED)
		say_held(d, d->led ? SEVERITY_WARNING : SEVERITY_ERROR, lock->pid,
				 psprintf("the lock of %s: the leader cannot change", what));
}

/*
 * Other processes that hold locks which the election needs.
 */
void
le_diagnose_locks(Diagnosis *d)
{
	LOCKTAG		election = le_lock_mutex_tag(LOCK_ELECTION, d->name);
	LOCKTAG		group = election;

	if (d->group != NULL)
		group = le_lock_mutex_tag(LOCK_GROUP, d->group->name);
	for (int i = 0; i < d->locks->nelements; i++)
	{
		const LockInstanceData *lock = &d->locks->locks[i];

		if (lock->holdMask == 0 || lock->pid == MyProcPid)
			continue;
		if (locked_table(&lock->locktag, LE_STRONG_MODES) != NULL)
			check_table_lock(d, i);
		else if (!d->led && is_late_commit(d, lock, &election))
			say_late_commit(d, lock->pid);
		else if (memcmp(&lock->locktag, &election, sizeof(LOCKTAG)) == 0)
			check_mutex(d, lock, psprintf("election %s", d->quoted));
		else if (d->group != NULL &&
				 memcmp(&lock->locktag, &group, sizeof(LOCKTAG)) == 0)
			check_mutex(d, lock, psprintf("group %s", le_quote(d->group->name)));
	}
}

/*
 * The server's lock table is full.
 */
void
le_diagnose_room(Diagnosis *d)
{
	if (le_room_for_locks(1))
		return;
	le_diagnose_say(d, SEVERITY_ERROR,
					"The server's lock table is full: no transaction can write, and leases can hardly be renewed.",
					"Find out who holds so many locks: SELECT pid, count(*) FROM pg_locks GROUP BY pid ORDER BY 2 DESC LIMIT 5; and end it: SELECT pg_terminate_backend(PID). Then raise max_locks_per_transaction.");
}
