/*-------------------------------------------------------------------------
 *
 * renew.c
 *		The only place where the deadline of a lease moves.
 *
 * A lease is renewed by its holder's call, by join() in the leader's session
 * and by the worker.  Each locks the row, busy or not in its own way, and has
 * it renewed here.
 *
 * Invariants:
 *
 * - A lease is renewed only if its row, which is locked, names the same holder
 *	 and the same term, its deadline has not passed, the holder's session is
 *	 found alive by the very transaction that renews it, and nobody has asked
 *	 the holder to yield.
 *
 * - Where standbys have to confirm, a lease is renewed for the duration that
 *	 they have confirmed, and for no other.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"
#include "utils/timestamp.h"

/*
 * Ask the standbys, for a renewal of the lease that was seen, within what is
 * left of the call's time.
 */
bool
le_renew_prove(const Store *store, const Lease *seen, Proof *proof)
{
	return le_proof_make(seen, le_election_lease_duration(store, seen), false,
						 le_wait_left(), proof);
}

/*
 * Renew the lease, which is locked (NULL: another transaction has locked it,
 * or it is gone), if this candidate holds it: that session, in that term (0: in
 * any), or (session_id 0) a detached candidate that knows the term.
 *
 * duration is what the settings said before the proof was made; 0: read them
 * now.  An ALTER may have committed another one since: where standbys have to
 * know it, the settings are read again.
 */
Renewed
le_renew_lease(const Store *store, Lease *lease, int64 session_id, int64 term,
			   int64 duration, const Proof *proof, const int64 *progress)
{
	if (lease == NULL)
		return RENEW_BUSY;
	Assert(lease->row != NULL);
	if (!le_lease_is_held_by(lease, session_id, term) || lease->yielding ||
		le_lease_state_now(store, lease) != LEASE_LED)
		return RENEW_ENDED;
	if (duration == 0 || proof->required)
		duration = le_election_lease_duration(store, lease);
	if (!le_proof_covers(proof, duration))
		return RENEW_UNPROVEN;
	lease->configured = duration;
	le_lease_renew(lease, term, duration, proof->t0, GetCurrentTimestamp(),
				   progress);
	return RENEWED;
}
