/*-------------------------------------------------------------------------
 *
 * turn.c
 *		A call's turn at an election: prove, lock, settle, and again.
 *
 * The order matters.  Counting who leads how much, and asking standbys may
 * take long: they come before the election lock (and the seats of a group are
 * counted under the group lock, which comes before it, too), so that no
 * process waits for the lock meanwhile.  Under the lock, le_settle() reads
 * again what its decision rests on.  If the proof does not cover what is there
 * by then, the turn begins anew, and reads the settings again.  While a row is
 * locked by another transaction, the lock and the proof are kept: a proof that
 * gets too old meanwhile is refused by le_settle().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"

/*
 * Is this candidate passed over by every call but its own?
 */
static bool
sits_out(const Candidate *who)
{
	Lease	   *lease = le_lease_read(who->election, NULL);
	Candidate  *c = le_candidate_find(who->election, who->candidate);

	return lease != NULL && c != NULL && le_candidate_sits_out(c, lease);
}

/*
 * Wait a little, to try again.  False: leave what is busy to others.
 * TURN_TRIES leaves it to the process that has the lock, which is about to
 * elect as well, or to the worker; but no other process elects a candidate
 * that sits out.
 */
static bool
wait_to_retry(const Turn *turn, const char *election)
{
	switch (turn->mode)
	{
		case TURN_SKIPS:
			return false;
		case TURN_TRIES:
			if (!sits_out(turn->caller))
				return false;
			le_cap_let_go();
			return le_wait_retry();
		case TURN_QUEUES:
			le_cap_let_go();
			le_wait_retry_or_busy(election);
			break;
	}
	return true;
}

/*
 * Try to take the locks under which a lease may be granted: the group lock, if
 * the election belongs to a group, and the election lock.  One of them
 * without the other is of no use, and would be in the way of other processes.
 */
static bool
try_locks(const Election *election)
{
	if (!le_cap_lock(election, false))
		return false;
	if (le_lock_mutex(LOCK_ELECTION, election->name, false))
		return true;
	le_cap_unlock(election);
	return false;
}

/*
 * Take these locks, as long as the call may wait, and queue where there is no
 * group.  55P03 after that.
 */
void
le_turn_lock(const Election *election)
{
	while (election->group == NULL ? !le_wait_for_election(election->name) :
		   !try_locks(election))
	{
		le_cap_let_go();
		le_wait_retry_or_busy(election->name);
	}
}

static bool
is_transfer(const Turn *turn)
{
	return turn->give_up != NULL && turn->give_up->to_candidate != NULL;
}

/*
 * Take the locks of a turn.  A holder that gives up waits for no group lock.
 * If that is not free, only its term ends.
 */
static bool
take_locks(const Election *election, const Turn *turn)
{
	if (turn->mode != TURN_QUEUES)
		return try_locks(election);
	if (election->group == NULL || turn->give_up == NULL || is_transfer(turn))
		le_turn_lock(election);
	else if (!try_locks(election))
	{
		le_cap_let_go();
		while (!le_wait_for_election(election->name))
			le_wait_retry_or_busy(election->name);
	}
	return true;
}

/*
 * Take the locks, do the work, and settle.  The election lock is kept if
 * anything was or may have been written under it; the group lock, if a seat
 * was granted or reserved, and never while a row is busy.
 */
static Settled
settle_locked(const Election *election, Turn *turn, const Proof *proof)
{
	const char *name = election->name;
	Settled		settled = SETTLED_BUSY;

	if (turn->give_up == NULL &&
		le_late_commits_end(election, turn->lease, proof, turn->caller))
	{
		/* We have locked the lease, and may not queue. */
		if (turn->mode == TURN_QUEUES)
			le_wait_busy(name);
		return SETTLED_BUSY;
	}
	if (!take_locks(election, turn))
		return SETTLED_BUSY;

	/*
	 * Release the lock if the work is refused: the transaction that has our
	 * candidate's name may be waiting for it.  Keep the lock when the work is
	 * done: its rows are ours then, and of many calls that took turns at the
	 * lock, each would find the rows of the others locked.
	 */
	if (turn->work == NULL || turn->work(turn->arg))
	{
		settled = le_settle(election, turn->caller, turn->give_up,
							proof, &turn->lease);
		while (settled == SETTLED_BUSY)
		{
			if (le_remembered.groups != NIL)
				le_cap_unlock(election);
			if (!wait_to_retry(turn, name))
				return settled;

			/*
			 * Without the group lock, no more than a term is ended, and a
			 * seat cannot be transferred.
			 */
			if (le_cap_lock(election, false) || !is_transfer(turn))
				settled = le_settle(election, turn->caller,
									turn->give_up, proof, &turn->lease);
		}
		if (settled == SETTLED_NOTHING && le_remembered.groups != NIL)
			le_cap_unlock(election);
		if (settled != SETTLED_UNPROVEN)
			return settled;
	}
	le_lock_release_mutex(LOCK_ELECTION, name);
	if (le_remembered.groups != NIL)
		le_cap_unlock(election);
	return settled;
}

/*
 * For how long may the turn ask standbys?
 */
static int64
ask_for(const Turn *turn)
{
	if (turn->optional)
		return 0;
	return turn->mode == TURN_SKIPS ? Max(turn->ask_until - le_clock(), 0) :
		le_wait_left();
}

/*
 * Elect a leader if nobody leads, or have the holder give up.  The tables are
 * locked.  TURN_QUEUES raises 55P03 when the call has waited enough; in the
 * other modes, what was not done is left to the worker, which is told.
 */
Settled
le_turn(const char *name, Turn *turn)
{
	for (bool first = true;; first = false)
	{
		Election   *election = turn->election != NULL ? turn->election :
			le_election_read(name);
		Lease	   *lease = turn->lease != NULL ? turn->lease :
			le_lease_read(name, NULL);
		Settled		settled;
		Proof		proof;

		turn->lease = lease;
		le_group_forget();		/* it is counted under its lock */
		if (election == NULL || lease == NULL)
			return SETTLED_GONE;
		if (turn->give_up == NULL &&
			le_lease_state_now(lease) == LEASE_LED)
			return SETTLED_NOTHING;
		if (turn->give_up == NULL)
			(void) le_view_count_ahead(election, lease, false);
		else if (!turn->optional && !is_transfer(turn) && lease->leader != NULL)
			(void) le_view_count_ahead(election, lease,
									   lease->yield_cause == NULL);
		if (LeSyncStandbysDefined())
			le_cap_let_go();
		if (!le_proof_make(lease, election->lease_duration, true,
						   ask_for(turn), &proof) &&
			!turn->optional)
		{
			if (turn->mode == TURN_QUEUES && first)
				le_wait_unconfirmed(name);
			if (turn->mode == TURN_QUEUES)
				le_wait_busy(name); /* the time went into the first try */
			return SETTLED_UNCONFIRMED;
		}
		settled = settle_locked(election, turn, &proof);
		if (settled < SETTLED_BUSY)
			return settled;
		turn->election = NULL;
		turn->lease = NULL;
		if (settled == SETTLED_UNPROVEN && turn->optional)
			return settled;
		le_commit_wakes_worker();
		if (!wait_to_retry(turn, name))
			return settled;
	}
}
