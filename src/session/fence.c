/*-------------------------------------------------------------------------
 *
 * fence.c
 *		Fenced transactions: they commit only if their author still leads, in
 *		the same term.
 *
 * assert_leader() and the trigger function only_leader() look at the call, and
 * mark the transaction with (election, term).  After that the leader may be
 * paused for any time, and another candidate be elected: so the commit looks
 * again whether that term is led.
 *
 * Invariant: a fenced transaction holds the election lock in Share mode from
 * before that second look until it is committed.  A transaction that changes
 * the holder has that lock in Exclusive mode.  So it waits for the fenced
 * commit, or it comes first and the second look sees its change.
 *
 * An update of the extension could change that lock.  So the commit first takes
 * that of the view protocol (store.c), and holds it until it is committed, too:
 * the update waits for it, or comes first, and then the commit is refused
 * (55000).
 *
 * Other libraries may work between the second look and the commit record: the
 * callbacks of those that were loaded before this one come after ours, and
 * postgres_fdw waits for its remote COMMIT there.  late_commit.c bounds that.
 * A fence that is set only there would not be looked at, and is refused (but
 * see callback.c).
 *
 * Between the two looks, a fenced transaction holds no lock of ours: while it
 * sits idle, elections go on.  Nothing is written here.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "session/session.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

/*
 * What is known of a term that leads.  The transaction that ends the term
 * sends an invalidation before it releases the election lock.  So a
 * transaction that has got this lock, and has received no invalidation, need
 * not read the row again.
 */
typedef struct Fence
{
	char		election[LE_NAME_MAX + 1];
	LOCKTAG		lock;			/* the election lock */
	Oid			lease_oid;		/* the table that has the lease */
	int64		term;
	int64		deadline;
	int64		session_id;		/* the leader's; 0: it is detached */
	bool		own_session;	/* the leader is this very session */
	uint64		changes;		/* le_leadership_generation when it was read */
	uint64		writes;			/* le_xact_writes when it was read */
	bool		locked;			/* the commit has taken the election lock */
} Fence;

/*
 * The fences of the running transaction, in its memory; savepoints undo none.
 */
static List *fences = NIL;

/* The last term that was asserted */
static Fence recent;

/*
 * Is what is known of the term still so?  If this process has written anything
 * since, the row has to be read again.
 */
static bool
is_fresh(const Fence *fence)
{
	AcceptInvalidationMessages();
	return fence->changes == le_leadership_generation &&
		fence->writes == le_xact_writes && le_clock() < fence->deadline;
}

static void
add_fence(const Fence *fence)
{
	MemoryContext old;
	Fence	   *copy;

	foreach_ptr(const Fence, present, fences)
	{
		if (present->term == fence->term &&
			strcmp(present->election, fence->election) == 0)
			return;
	}
	le_xact_check_not_ending();
	old = MemoryContextSwitchTo(TopTransactionContext);
	copy = palloc(sizeof(Fence));
	*copy = *fence;
	fences = lappend(fences, copy);
	MemoryContextSwitchTo(old);
}

/*
 * Is the running transaction fenced by this election, in any term?
 */
bool
le_fence_is_set(const char *election)
{
	foreach_ptr(const Fence, fence, fences)
	{
		if (strcmp(fence->election, election) == 0)
			return true;
	}
	return false;
}

/*
 * Read the committed lease row.
 */
static Lease *
get_lease(const char *election)
{
	Lease	   *lease;

	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_LE_NOT_LEADER),
				 errmsg("a standby cannot tell who leads election \"%s\"",
						election),
				 errhint("Connect to the primary server.")));
	if (!le_lease_read_committed(le_store.lease_oid, election, &lease))
	{
		le_store_check_protocol();
		le_wait_busy(election);
	}
	if (lease == NULL)
		le_election_report_missing(election);
	return lease;
}

/*
 * Fence the running transaction by this session's leadership.  LE001: it does
 * not lead; LE003: there is no such election.
 */
void
le_fence_by_session(const char *election)
{
	Candidacy  *c = le_session_find(election, strlen(election));
	Fence		fence = {.own_session = true};

	if (c != NULL)
		fence.term = le_session_term(c);
	if (fence.term == 0)
	{
		le_store_get();
		(void) get_lease(election);
		ereport(ERROR,
				(errcode(ERRCODE_LE_NOT_LEADER),
				 errmsg("this session does not lead election \"%s\"", election),
				 errhint("Do the leader's work only while leader_election.is_leader() is true.")));
	}
	strlcpy(fence.election, election, sizeof(fence.election));
	fence.lock = c->election_lock;
	fence.lease_oid = c->lease_oid;
	fence.deadline = c->deadline;
	fence.session_id = c->session_id;
	fence.changes = c->changes;
	fence.writes = le_xact_writes;
	add_fence(&fence);
}

/*
 * Is that the term that was asserted last, and is it still led?
 */
static bool
is_recent(const char *election, int64 term)
{
	return recent.term == term && recent.lease_oid == le_store.lease_oid &&
		strcmp(recent.election, election) == 0 && is_fresh(&recent) &&
		(recent.session_id == 0 || le_session_alive(recent.session_id));
}

/*
 * Fence the running transaction by a term (NULL: there is none), of any
 * leader.  LE001: nobody leads in it; LE003: there is no such election.
 */
void
le_fence_by_term(const char *election, const int64 *term)
{
	uint64		changes = le_leadership_generation;
	LOCKTAG		lock;
	Lease	   *lease;

	le_store_get();
	if (term != NULL && !IsInParallelMode() &&
		is_recent(election, *term))
	{
		add_fence(&recent);
		return;
	}
	lease = get_lease(election);
	if (term == NULL || lease->term != *term ||
		le_lease_state_now(lease) != LEASE_LED)
		ereport(ERROR,
				(errcode(ERRCODE_LE_NOT_LEADER),
				 term == NULL ?
				 errmsg("there is no term to lead election \"%s\" in", election) :
				 errmsg("nobody leads election \"%s\" in term " INT64_FORMAT,
						election, *term),
				 errhint("Do the leader's work only in the term in which it leads.")));

	/* First what may fail: what is there then has to be of one term. */
	lock = le_lock_mutex_tag(LOCK_ELECTION, election);
	strlcpy(recent.election, election, sizeof(recent.election));
	recent.lock = lock;
	recent.lease_oid = le_store.lease_oid;
	recent.term = lease->term;
	recent.deadline = lease->deadline_mono;
	recent.session_id = lease->session_id;
	recent.own_session = lease->backend_pid == MyProcPid;
	recent.changes = changes;
	recent.writes = le_xact_writes;
	add_fence(&recent);
}

/*
 * Is the fence's term still the present one?  The election lock, which is
 * taken here, keeps other transactions from ending it before this one is over,
 * even if the leader's session is dead by now.  So only a fence by this very
 * session tests the session lock, which could be lost.  A fence by another
 * session's term does not: the many transactions that it fences would queue
 * for that lock when they commit at once.
 */
static bool
still_leads(Fence *fence)
{
	BoundedWaits busy;
	Lease	   *lease = NULL;

	le_wait_bounded_begin(&busy, fence->election);
	while (!le_wait_for_election_shared(&fence->lock))
		le_wait_retry_or_busy(fence->election);
	fence->locked = true;
	if (is_fresh(fence))
	{
		le_wait_bounded_end(&busy);
		return !fence->own_session || le_session_alive(fence->session_id);
	}
	if (le_store_find() && le_store.lease_oid == fence->lease_oid)
	{
		le_store_lock(LE_TABLE_LEASE, AccessShareLock);
		lease = IsolationIsSerializable() ?
			le_lease_read_self(fence->election) :
			le_lease_read(fence->election, NULL);
	}
	le_wait_bounded_end(&busy);
	return lease != NULL && lease->term == fence->term &&
		le_lease_unexpired(lease) &&
		(!fence->own_session || le_session_alive(lease->session_id));
}

static int
by_lock_key(const ListCell *a, const ListCell *b)
{
	return memcmp(&((Fence *) lfirst(a))->lock, &((Fence *) lfirst(b))->lock,
				  sizeof(LOCKTAG));
}

/*
 * Hold the lock of the view protocol until this transaction is committed.  If
 * the extension has been dropped, the caller finds no term to be led.
 */
static void
hold_protocol(void)
{
	BoundedWaits busy;

	if (!le_store_find())
		return;
	le_wait_bounded_begin(&busy, ((Fence *) linitial(fences))->election);
	le_store_lock(0, AccessShareLock);
	le_wait_bounded_end(&busy);
}

/*
 * The transaction does not commit: release the election locks that its commit
 * has taken at once.  Other libraries clean up before the server releases the
 * transaction's locks, and that may take long: postgres_fdw gives a foreign
 * server 30 s to answer.  (A call may have taken one, too, which belongs to its
 * statement.)
 */
static void
release_locks(void)
{
	foreach_ptr(Fence, fence, fences)
	{
		if (fence->locked)
			le_lock_release_election_shared(&fence->lock);
		fence->locked = false;
	}
}

/*
 * The fences look at the commit whether their terms still lead: LE002 if one of
 * them does not.  The locks belong to the transaction's resource owner, under
 * which release_locks() looks for them when the transaction is aborted.
 */
void
le_fence_check(void)
{
	ResourceOwner owner = CurrentResourceOwner;

	if (fences == NIL)
		return;
	CurrentResourceOwner = TopTransactionResourceOwner;
	le_wait_start();
	le_commit_bounded();
	hold_protocol();
	list_sort(fences, by_lock_key);
	foreach_ptr(Fence, fence, fences)
	{
		if (!still_leads(fence))
		{
			/* Libraries that were loaded before us come first at the abort. */
			release_locks();
			ereport(ERROR,
					(errcode(ERRCODE_LE_LOST),
					 errmsg("leadership of election \"%s\" was lost before commit",
							fence->election),
					 errdetail("Term " INT64_FORMAT " is over.", fence->term),
					 errhint("Nothing of this transaction was written in this database. Repeat it only if you are elected again.")));
		}
	}
	CurrentResourceOwner = owner;
}

/*
 * PREPARE TRANSACTION of a fenced transaction.
 */
void
le_fence_refuse_prepare(void)
{
	if (fences != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot PREPARE a transaction that is fenced by an election"),
				 errdetail("Who leads when it is committed cannot be known now.")));
}

/*
 * The transaction has ended.  The memory goes with it.
 */
void
le_fence_end_of_xact(bool committed)
{
	if (!committed)
		release_locks();
	fences = NIL;
}
