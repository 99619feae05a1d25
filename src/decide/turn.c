/*-------------------------------------------------------------------------
 *
 * turn.c
 *		A call's turn at an election: prove, lock, settle, and again.
 *
 * The order matters.  Counting seats and asking standbys may take long: they
 * come before the election lock, so that no process waits for the lock
 * meanwhile.  Under the lock, le_settle() reads again what its decision rests
 * on.  If the proof does not cover what is there by then, the turn begins
 * anew, and reads the settings again.  While a row is locked by another
 * transaction, the lock and the proof are kept: a proof that gets too old
 * meanwhile is refused by le_settle().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"

/*
 * Is this candidate passed over by every call but its own?
 */
static bool
sits_out(const Store *store, const Candidate *who)
{
	Lease	   *lease = le_lease_read(store, who->election, NULL);
	Candidate  *c = le_candidate_find(store, who->election, who->candidate);

	return lease != NULL && c != NULL && le_candidate_sits_out(c, lease);
}

/*
 * Wait a little, to try again.  False: leave what is busy to others.
 * TURN_TRIES leaves it to the process that has the lock, which is about to
 * elect as well, or to the worker; but no other process elects a candidate
 * that sits out.
 */
static bool
wait_to_retry(const Store *store, const Turn *turn, const char *election)
{
	switch (turn->mode)
	{
		case TURN_SKIPS:
			return false;
		case TURN_TRIES:
			return sits_out(store, turn->caller) && le_wait_retry();
		case TURN_QUEUES:
			le_wait_retry_or_busy(election);
			break;
	}
	return true;
}

static bool
take_lock(const Turn *turn, const char *election)
{
	if (turn->mode != TURN_QUEUES)
		return le_lock_election(election, false);
	while (!le_wait_for_election(election))
		le_wait_retry_or_busy(election);
	return true;
}

/*
 * Take the election lock, do the work, and settle.  The lock is kept if
 * anything was or may have been written under it.
 */
static Settled
settle_locked(const Store *store, const Election *election, const Turn *turn,
			  const Proof *proof)
{
	const char *name = election->name;
	Settled		settled = SETTLED_BUSY;

	if (!take_lock(turn, name))
		return SETTLED_BUSY;

	/*
	 * Release the lock if the work is refused: the transaction that has our
	 * candidate's name may be waiting for it.  Keep the lock when the work is
	 * done: its rows are ours then, and of many calls that took turns at the
	 * lock, each would find the rows of the others locked.
	 */
	if (turn->work == NULL || turn->work(store, turn->arg))
	{
		do
			settled = le_settle(store, election, turn->caller, turn->give_up,
								proof);
		while (settled == SETTLED_BUSY && wait_to_retry(store, turn, name));
		if (settled != SETTLED_UNPROVEN)
			return settled;
	}
	le_unlock_election(name);
	return settled;
}

/*
 * Elect a leader if nobody leads, or have the holder give up.  The tables are
 * locked.  TURN_QUEUES raises 55P03 when the call has waited enough; in the
 * other modes, what was not done is left to the worker, which is told.
 */
Settled
le_turn(const Store *store, const char *name, const Turn *turn)
{
	for (bool first = true;; first = false)
	{
		Election   *election = le_election_read(store, name);
		Lease	   *lease = le_lease_read(store, name, NULL);
		int64		ask_until = turn->mode == TURN_SKIPS ?
			turn->ask_until : le_wait_deadline();
		Settled		settled;
		Proof		proof;

		if (election == NULL || lease == NULL)
			return SETTLED_GONE;
		if (turn->give_up == NULL &&
			le_lease_state_now(store, lease) == LEASE_LED)
			return SETTLED_NOTHING;
		if (turn->optional)
			ask_until = 0;
		else if (turn->give_up == NULL)
			le_ranking_prepare(store, election, NULL);
		else if (turn->give_up->to_candidate == NULL && lease->leader != NULL)
			le_ranking_prepare(store, election, lease->yield_cause != NULL ?
							   NULL : le_candidate_of_lease(lease));
		if (!le_prove(lease, election->lease_duration, true,
					  Max(ask_until - le_clock(), 0), &proof) &&
			!turn->optional)
		{
			if (turn->mode == TURN_QUEUES && first)
				le_unconfirmed(name);
			if (turn->mode == TURN_QUEUES)
				le_busy(name);	/* the time went into the first try */
			return SETTLED_UNCONFIRMED;
		}
		settled = settle_locked(store, election, turn, &proof);
		if (settled < SETTLED_BUSY ||
			(settled == SETTLED_UNPROVEN && turn->optional))
			return settled;
		if (settled == SETTLED_UNPROVEN && turn->give_up != NULL)
			le_busy(name);		/* rows may be locked: do not queue again */
		le_commit_wakes_worker();
		if (!wait_to_retry(store, turn, name))
			return settled;
	}
}
