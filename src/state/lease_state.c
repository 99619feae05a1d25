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
 * - A monotonic value that another incarnation has written is void here, and so
 *	 is a value that lies further ahead than the duration it was made from.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "state/state.h"
#include "utils/timestamp.h"

/*
 * Was it this incarnation that wrote the row's monotonic values?
 */
bool
le_lease_is_own(const Lease *lease, const char *incarnation)
{
	return lease->incarnation != NULL &&
		strcmp(lease->incarnation, incarnation) == 0;
}

/*
 * Was its row written by another incarnation?
 */
bool
le_lease_is_foreign(const Lease *lease, const char *incarnation)
{
	return lease->incarnation != NULL && !le_lease_is_own(lease, incarnation);
}

/*
 * Does its deadline lie further ahead than it can?  Then it was written by
 * another clock, although by this incarnation.  A row that is incomplete was not
 * written by us at all.
 */
bool
le_lease_is_void(const Lease *lease, const char *incarnation)
{
	return lease->leader != NULL &&
		(lease->incomplete ||
		 (le_lease_is_own(lease, incarnation) &&
		  lease->deadline_mono - le_clock() > lease->duration));
}

/*
 * What a lease row means on this incarnation of the server, now, if the session
 * that holds it, if any, is alive.
 */
LeaseState
le_lease_state_if_alive(const Lease *lease, const char *incarnation, int64 now)
{
	if (lease->leader == NULL)
		return LEASE_VACANT;
	if (!le_lease_is_own(lease, incarnation) || le_lease_is_void(lease, incarnation))
		return LEASE_FOREIGN;
	if (now >= lease->deadline_mono)
		return LEASE_EXPIRED;
	return LEASE_LED;
}

/*
 * Does the lease last, unless the session that holds it is dead?
 */
bool
le_lease_unexpired(const Lease *lease, const char *incarnation, int64 now)
{
	return le_lease_state_if_alive(lease, incarnation, now) == LEASE_LED;
}

/*
 * What it means.  This is the one place that says whether a holder's death is
 * proven.
 */
LeaseState
le_lease_state(const Lease *lease, const char *incarnation, int64 now)
{
	LeaseState	state = le_lease_state_if_alive(lease, incarnation, now);

	if (state == LEASE_LED && lease->session_id != 0 &&
		!le_session_alive(lease->session_id))
		return LEASE_ORPHANED;
	return state;
}

LeaseState
le_lease_state_now(const Store *store, const Lease *lease)
{
	return le_lease_state(lease, le_incarnation_name(store->lease_oid), le_clock());
}

/*
 * Is the lease held by a detached candidate that knows this term?  A term that
 * was continued after a failover is known by its former number, too.
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
 * When a hold or a delay on the vacant lease ends, on this incarnation's
 * clock.  What another incarnation has set counts by its wall clock, but for
 * no longer than it was set for.
 */
int64
le_lease_not_before(const Lease *lease, const Incarnation *inc)
{
	int64		left;

	if (lease->not_before_mono == 0)
		return 0;
	if (le_lease_is_own(lease, inc->name) &&
		lease->not_before_mono - le_clock() <= lease->not_before_for)
		return lease->not_before_mono;
	left = lease->not_before_at - GetCurrentTimestamp();
	return Min(le_clock() + left, inc->first_seen + lease->not_before_for);
}

/*
 * Until when the vacant seat is kept for the successor; 0: not at all, on this
 * incarnation.
 */
int64
le_lease_reserved_mono(const Lease *lease, const char *incarnation)
{
	if (!le_lease_is_own(lease, incarnation) ||
		lease->reserved_mono - le_clock() >
		lease->reserved_for + lease->not_before_for)
		return 0;
	return lease->reserved_mono;
}

/*
 * Since when it is.
 */
int64
le_lease_reserved_since(const Lease *lease)
{
	return lease->reserved_mono - lease->reserved_for - lease->not_before_for;
}
