/*-------------------------------------------------------------------------
 *
 * turn.c
 *		One call's turn at an election: prove, lock, settle, and again.
 *
 * The order matters.  What is needed to choose and may take long (counting
 * seats, asking standbys) comes before the election lock, so that nobody waits for
 * it; le_settle() reads again, under the lock, what it rests on.  If more has
 * happened meanwhile than is proven, the turn begins anew.
 *
 * The background worker goes this way, too (upkeep.c), with one proof for many
 * elections.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"

/*
 * Is this candidate passed over by everybody but itself?
 */
static bool
sits_out(const Store *store, const Lease *lease, const Candidate *who)
{
	Candidate  *c = le_candidate_find(store, who->election, who->candidate);

	return c != NULL && le_candidate_sits_out(c, lease);
}

/*
 * Try again after this?  TURN_TRIES leaves what is busy to the process that holds
 * the lock, which is about to elect as well, or to the worker; but no other
 * process elects a candidate that sits out.
 */
static bool
is_to_retry(const Store *store, const Turn *turn, const Lease *lease)
{
	switch (turn->mode)
	{
		case TURN_SKIPS:
			return false;
		case TURN_TRIES:
			return lease != NULL && sits_out(store, lease, turn->caller) &&
				le_wait_retry();
		case TURN_QUEUES:
			break;
	}
	return true;
}

/*
 * Take the election lock.
 */
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
 * Elect a leader if nobody leads, or have the holder give up.  The tables are
 * locked.  TURN_QUEUES raises 55P03 when the call has waited enough; else what
 * was not done is left to the worker, which is told.
 */
Settled
le_turn(const Store *store, const Election *election, const Turn *turn)
{
	const char *name = election->name;

	for (;;)
	{
		Lease	   *lease = le_lease_read(store, name, NULL);
		Settled		settled = SETTLED_BUSY;
		Proof		proof;
		bool		locked;
		bool		worked;

		if (turn->give_up == NULL && lease != NULL &&
			le_lease_state_now(store, lease) == LEASE_LED)
			return SETTLED_NOTHING;
		if (!turn->optional &&
			(turn->give_up == NULL || turn->give_up->to_candidate == NULL))
			le_ranking_prepare(store, election, turn->passed_over);
		if (!le_prove(lease, election->lease_duration, true,
					  Max(turn->ask_until - le_clock(), 0), &proof) &&
			!turn->optional)
			return SETTLED_UNCONFIRMED;
		locked = take_lock(turn, name);
		worked = locked && (turn->work == NULL || turn->work(store, turn->arg));
		if (worked)
			settled = le_settle(store, election, turn->caller, turn->give_up,
								&proof);
		if (settled < SETTLED_BUSY ||
			(settled == SETTLED_UNPROVEN && turn->optional))
			return settled;

		/*
		 * If the work was refused, the transaction that has our candidate's name
		 * may be waiting for this lock.  If the work was done, keep the lock: its
		 * rows are ours, and each of many calls that took turns at the lock would
		 * find the rows of the others locked.  (But the next proof may take long.)
		 */
		if (locked && (proof.required || !worked))
			le_unlock_election(name);
		le_commit_wakes_worker();
		if (!is_to_retry(store, turn, lease))
			return settled;
		if (turn->mode == TURN_QUEUES)
			le_wait_retry_or_busy(name);
	}
}
