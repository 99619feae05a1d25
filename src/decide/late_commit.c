/*-------------------------------------------------------------------------
 *
 * late_commit.c
 *		Ending sessions whose fenced commits hold up a takeover.
 *
 * A fenced transaction holds the election lock in Share mode from before its
 * commit record until it is committed (fence.c), and a takeover waits for
 * that.  Usually this takes no longer than a commit.  But the callbacks of
 * other libraries may be called in between: postgres_fdw waits for its remote
 * COMMIT there, for as long as the foreign server takes.
 *
 * So the process that is to end the term ends the session of such a commit, as
 * pg_terminate_backend() does.  Before the commit record, that rolls the
 * transaction back.  After it, it only ends a wait for synchronous standbys:
 * the transaction is committed, but its client is never told so.  (A cancel
 * would make the server take the wait for done, and tell the client that a
 * commit succeeded which no standby may have.)  Either way the lock is free
 * afterwards, and only then the term is ended.
 *
 * Invariants:
 *
 * - No session is ended unless its virtual transaction has held the lock for
 *	 more than LATE since the lease was over, another candidate could be elected
 *	 but for that, and the proof that this needs is there.  While a lease is
 *	 renewed, a commit may take as long as it likes.
 *
 * - That the lease is over is decided under the lock of its row: a renewal that
 *	 was made in time may not have been committed yet.
 *
 * - Nothing is decided here about the lease.  If the session does not end, the
 *	 takeover waits, and nobody leads meanwhile.
 *
 * What cannot be interrupted does not end: a stopped process, code that does
 * not check for interrupts, a write that the storage does not finish, and
 * callbacks after the commit.  diagnose() names them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "decide/decide.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#define LATE			INT64CONST(1000000) /* after the end of the lease */
#define FORGET_AFTER	INT64CONST(60000000)	/* what was not seen again */

/* A transaction that holds an election lock in Share mode, the lease over */
typedef struct LateCommit
{
	struct
	{
		LOCKTAG		lock;
		VirtualTransactionId vxid;
	}			key;			/* hash key */
	int64		deadline;		/* of the lease that is over */
	int64		since;			/* when it was first seen (monotonic) */
	int64		seen;			/* ... and last */
	bool		ended;			/* its session was told to end */
} LateCommit;

/* Those that this process has seen; NULL: none yet */
static HTAB *commits = NULL;

static LateCommit *
find_commit(const LOCKTAG *lock, VirtualTransactionId vxid, HASHACTION action)
{
	LateCommit	key = {.key = {*lock, vxid}};
	LateCommit *commit;
	bool		found;

	if (commits == NULL)
		commits = le_hash_make("leader_election late commits",
							   sizeof(key.key), sizeof(LateCommit),
							   HASH_BLOBS, TopMemoryContext);
	commit = hash_search(commits, &key.key, action, &found);
	if (commit != NULL && !found)
	{
		commit->deadline = 0;
		commit->ended = false;
	}
	return commit;
}

static void
forget_commits(int64 now)
{
	foreach_entry(LateCommit, c, commits)
	{
		if (now - c->seen > FORGET_AFTER)
			(void) hash_search(commits, &c->key, HASH_REMOVE, NULL);
	}
}

/*
 * Is the session of this commit to be told to end?  Only if the lease is still
 * that which was over when the commit was first seen.  A commit that has waited
 * for standbys, as we have, gets its time after that.
 */
static bool
is_late(const LateCommit *c, const Lease *lease, int64 now)
{
	return !c->ended && c->deadline == lease->deadline_mono &&
		now - Max(c->since, le_proven_since) > LATE;
}

/*
 * Note who holds the lock of this election, whose lease is over.  True if any
 * of them is late.
 */
static bool
note_commits(const LOCKTAG *lock, const Lease *lease)
{
	int			count;
	VirtualTransactionId *vxids = le_lock_election_sharers(lock, &count);
	int64		now = le_clock();
	bool		late = false;

	forget_commits(now);
	for (int i = 0; i < count; i++)
	{
		LateCommit *c = find_commit(lock, vxids[i], HASH_ENTER);

		if (c->deadline != lease->deadline_mono)
		{
			/* New, or its lease was not over after all. */
			c->deadline = lease->deadline_mono;
			c->since = now;
		}
		c->seen = now;
		late |= is_late(c, lease, now);
	}
	pfree(vxids);
	return late;
}

static void
end_session(const LockInstanceData *holder, const Lease *lease, LateCommit *c)
{
	c->ended = true;
	if (kill(-holder->pid, SIGTERM) != 0)
		return;					/* it has just exited */
	ereport(LOG_SERVER_ONLY,
			(errmsg("leader_election: election %s: terminating process %d, whose commit holds up the next leader",
					le_quote(lease->election), (int) holder->pid),
			 errdetail("Term " INT64_FORMAT ", by which the transaction is fenced, is over, and the transaction has gone on committing for more than a second since.",
					   lease->term),
			 errhint("If it commits on a foreign server, preload the library, so that it does so before it is fenced."),
			 errhidestmt(true)));
}

/*
 * Look at the lock table once more, and end the sessions of those that are
 * late and hold the lock still.  A transaction that has ended since, or whose
 * session is in its next one, is not found by its virtual transaction ID.
 */
static void
end_sessions(const LOCKTAG *lock, const Lease *lease)
{
	LockData   *copy = GetLockStatusData();
	int			worker = le_lock_worker_pid(copy);
	int64		now = le_clock();

	for (int i = 0; i < copy->nelements; i++)
	{
		const LockInstanceData *held = &copy->locks[i];
		LateCommit *c;

		if ((held->holdMask & LOCKBIT_ON(ShareLock)) == 0 ||
			memcmp(&held->locktag, lock, sizeof(LOCKTAG)) != 0 ||
			held->pid == MyProcPid || held->pid == worker)
			continue;
		c = find_commit(lock, LeLockOwner(held), HASH_FIND);
		if (c != NULL && is_late(c, lease, now))
			end_session(held, lease, c);
	}
}

/*
 * The caller is about to take the election lock, to end a term that is over by
 * the lease as it was read last.  End the sessions of fenced commits that hold
 * that lock.  The worker does so and, where there is none, candidates' own
 * calls.
 *
 * The caller holds the tables' locks.  It does not hold the election lock,
 * unless an earlier call of its transaction took it: then no fenced commit has
 * it.  True: its transaction has locked the lease row, and must neither queue
 * for a lock nor go on for long.  False: nothing was done.
 */
bool
le_late_commits_end(const Election *election,
					Lease *lease, const Proof *proof, const Candidate *caller)
{
	LeaseState	state;
	LOCKTAG		lock;

	if (!proof->confirmed || !le_proof_stands(proof))
		return false;
	state = le_lease_state_now(lease);
	if (state != LEASE_EXPIRED && state != LEASE_ORPHANED)
		return false;
	lock = le_lock_mutex_tag(LOCK_ELECTION, election->name);
	if (!note_commits(&lock, lease) ||
		!(le_lock_is_mine(LOCK_WORKER) || le_lock_worker_is_free()) ||
		!le_decision_is_held_up(election, lease, caller))
		return false;
	lease = le_lease_lock(election->name);
	if (lease == NULL)
		return false;
	if (le_decision_is_held_up(election, lease, caller))
		end_sessions(&lock, lease);
	return true;
}
