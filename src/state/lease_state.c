/*-------------------------------------------------------------------------
 *
 * lease_state.c
 *		What a lease row means now, on this incarnation of the server.
 *
 * Invariants:
 *
 * - Only le_lease_state() says that a holder is dead, and only for a session
 *	 whose lease this incarnation has granted.
 *
 * - A monotonic value that another incarnation has written is void here, and
 *	 so is a value that lies further ahead than the duration it was made from.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "state/state.h"

/*
 * Has this incarnation written the row's monotonic values?
 */
bool
le_lease_is_own(const Lease *lease)
{
	return lease->incarnation != NULL &&
		strcmp(lease->incarnation, le_incarnation_name()) == 0;
}

/*
 * Has another incarnation written the row's monotonic values?  (A new
 * election's row has none.)
 */
bool
le_lease_is_stale(const Lease *lease)
{
	return lease->incarnation != NULL && !le_lease_is_own(lease);
}

/*
 * Is the row of a lease that is led not to be believed?  Its deadline lies
 * further ahead than a grant or renewal sets it: another clock has written it,
 * in a time namespace or in a row that was restored, although the row names
 * this incarnation.  Or it lacks a value that every grant writes.
 */
bool
le_lease_is_void(const Lease *lease)
{
	return lease->leader != NULL &&
		(lease->incomplete ||
		 (le_lease_is_own(lease) &&
		  lease->deadline_mono - le_clock() > lease->duration));
}

/*
 * What the lease row means, without a test whether the leader's session is
 * alive: it is taken for alive.
 */
static LeaseState
state_if_alive(const Lease *lease, int64 now)
{
	if (lease->leader == NULL)
		return LEASE_VACANT;
	if (!le_lease_is_own(lease) ||
		le_lease_is_void(lease))
		return LEASE_STALE;
	if (now >= lease->deadline_mono)
		return LEASE_EXPIRED;
	return LEASE_LED;
}

/*
 * Is the lease led, if the leader's session is taken for alive?
 */
bool
le_lease_unexpired(const Lease *lease)
{
	return state_if_alive(lease, le_clock()) == LEASE_LED;
}

/*
 * What the lease row means.  A free session lock proves that the session is
 * dead only here, where this incarnation has granted the lease: another
 * incarnation's sessions hold their locks on another server, or held them
 * before a restore.
 */
LeaseState
le_lease_state(const Lease *lease, int64 now)
{
	LeaseState	state = state_if_alive(lease, now);

	if (state == LEASE_LED && lease->session_id != 0 &&
		!le_session_alive(lease->session_id))
		return LEASE_ORPHANED;
	return state;
}

LeaseState
le_lease_state_now(const Lease *lease)
{
	return le_lease_state(lease, le_clock());
}

/*
 * Does a detached candidate that knows this term hold the lease?  If the lease
 * was continued after a failover, the holder may know the term by the number
 * that it had before.
 */
bool
le_lease_is_term(const Lease *lease, int64 term)
{
	return lease->leader != NULL && !lease->incomplete &&
		lease->session_id == 0 &&
		(term == lease->term ||
		 (term == lease->previous_term && lease->previous_term != 0));
}

/*
 * Is this the holder of the lease: that session, in that term (0: in any), or
 * (session_id 0) a detached candidate that knows the term?
 */
bool
le_lease_is_held_by(const Lease *lease, int64 session_id, int64 term)
{
	if (session_id == 0)
		return le_lease_is_term(lease, term);
	return lease->leader != NULL && !lease->incomplete &&
		lease->session_id == session_id && (term == 0 || lease->term == term);
}

/*
 * Is this the term of which the row knows the run, under either number,
 * although the lease may be over?  No later term has begun then.
 */
bool
le_lease_was_term(const Lease *lease, int64 term)
{
	return lease->runs.present != NULL &&
		(term == lease->term ||
		 (term == lease->previous_term && lease->previous_term != 0));
}

/*
 * The moment of this incarnation's clock before which nobody is elected
 * because of a hold or a takeover delay; 0: none is set.  If another
 * incarnation or clock has set it, its timestamp counts.  Since a wall clock
 * may be wrong, the wait then ends at the latest when not_before_for has
 * passed since this incarnation was first seen.
 */
int64
le_lease_not_before(const Lease *lease, const Incarnation *inc)
{
	if (lease->not_before_mono == 0)
		return 0;
	return le_epoch_moment(inc, le_lease_is_own(lease),
						   lease->not_before_mono, lease->not_before_at,
						   lease->not_before_for);
}

/*
 * Until when the vacant election is reserved for the successor; 0: it is not
 * reserved, or another incarnation or clock has written reserved_mono.
 */
int64
le_lease_reserved_mono(const Lease *lease)
{
	if (!le_lease_is_own(lease) ||
		lease->reserved_mono - le_clock() >
		lease->reserved_for + lease->not_before_for)
		return 0;
	return lease->reserved_mono;
}

/*
 * When the reservation of this election was written: since then a hold or delay
 * lasts for not_before_for (0: there is none), and then the reservation for
 * reserved_for, until reserved_mono.
 */
int64
le_lease_reserved_since(const Lease *lease)
{
	return lease->reserved_mono - lease->reserved_for - lease->not_before_for;
}

/*
 * When the first candidate stood for the vacant election; 0: none has yet, or
 * another incarnation or clock has written that.
 */
int64
le_lease_first_stood(const Lease *lease)
{
	return le_lease_is_own(lease) &&
		lease->first_stood_mono <= le_clock() ? lease->first_stood_mono : 0;
}

/*
 * Until when (monotonic) nobody new is elected because the server was another
 * incarnation before: a leader that was elected there may lead on over there,
 * until its lease has passed.  PG_INT64_MAX: this incarnation has no epoch
 * yet, and the grace does not end before it has.  lease_duration comes from
 * the settings.
 */
int64
le_lease_grace(const Lease *lease, int64 lease_duration,
			   const Incarnation *inc)
{
	bool		stale = le_lease_is_stale(lease);
	bool		led = lease->leader != NULL;
	int64		not_before;

	if (le_epoch_is_missing(inc, stale))
		return PG_INT64_MAX;
	if (inc->epoch == 0)
		return 0;

	/*
	 * Granted by this incarnation: after the grace, or continued in it.  A
	 * continued lease carries a hold to the end of the grace, so that its
	 * holder may give up here while others wait.  (Other holds last longer.)
	 */
	if (!stale && lease->incarnation != NULL &&
		lease->acquired_mono > inc->first_seen)
	{
		not_before = le_lease_not_before(lease, inc);
		return led || not_before <= inc->first_seen +
			Max(lease_duration, lease->duration) ? not_before : 0;
	}
	return inc->first_seen + Max(lease_duration,
								 stale && led ? lease->duration : 0);
}
