/*-------------------------------------------------------------------------
 *
 * candidacy.c
 *		How a candidate begins to stand, and who may use which name.
 *
 * Invariants:
 *
 * - The name of a live candidate belongs to one session or, if the candidate
 *	 is detached, to one role.  Its row is taken over by another candidate only
 *	 when the first one is provably dead.
 *
 * - Nobody stands in an election that does not exist.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "state/state.h"

/*
 * May that candidate use its name?  present (or NULL) is the row that has the
 * name.  A live candidate keeps its name.  So does a leader whose row is gone:
 * a crash or a promotion empties the table, and a detached leader's next
 * renew() makes its row again, maybe after a failover, in which it leads on.
 */
static bool
name_is_free(const Candidate *who,
			 const Candidate *present, const Lease *lease)
{
	LeaseState	state;

	if (present != NULL && le_candidate_alive(present))
		return false;
	if (lease->leader == NULL || strcmp(lease->leader, who->candidate) != 0 ||
		le_candidate_leads(who, lease))
		return true;
	state = le_lease_state_now(lease);
	return state != LEASE_LED &&
		(state != LEASE_STALE || lease->session_id != 0 || lease->incomplete);
}

/*
 * Make the row of a candidacy.  The caller holds the election's name lock
 * (Share) and the candidate's.
 */
static StandResult
stand_anew(Candidate *who, const Profile *profile, int64 lease_duration)
{
	Candidate  *present;
	Lease	   *lease;
	StandResult result = STAND_OK;

	/*
	 * Look again: before we had the locks, another session may have taken the
	 * name, or have dropped the election.
	 */
	present = le_candidate_find(who->election, who->candidate);
	lease = le_lease_read(who->election, NULL);
	if (lease == NULL)
		result = STAND_DROPPED;
	else if (present != NULL && le_candidate_is_same(present, who) &&
			 le_candidate_alive(present))
		result = STAND_BUSY;
	else if (!name_is_free(who, present, lease))
		result = STAND_IN_USE;
	else if (present != NULL && !le_candidate_withdraw(present))
		result = STAND_BUSY;
	if (result != STAND_OK)
		return result;
	le_candidate_insert(who, profile, lease_duration);
	return STAND_OK;
}

/*
 * Make or update the row of a candidacy.  What the profile does not set stays
 * as it is or, at first, is as in who.  If the row says all of that already,
 * nothing is written, except that a detached candidate sends a heartbeat
 * now and then.  who->seen becomes the moment of the last one.
 */
StandResult
le_candidacy_stand(Candidate *who,
				   const Profile *profile, int64 lease_duration)
{
	Candidate  *present = le_candidate_find(who->election, who->candidate);
	char	   *name;
	StandResult result;

	if (present != NULL && le_candidate_is_same(present, who) &&
		le_candidate_alive(present))
	{
		who->seen = present->seen;
		who->own_write = present->own_write;
		return !le_candidate_differs(present, profile, lease_duration) ||
			le_candidate_update(who, profile, lease_duration) ?
			STAND_OK : STAND_BUSY;
	}

	if (present != NULL && le_candidate_alive(present))
		return STAND_IN_USE;
	name = le_group_lock_seat_name(who->election);
	if (name == NULL || !le_lock_name(name, NULL, ShareLock))
		return STAND_BUSY;
	if (!le_lock_name(name, who->candidate, ExclusiveLock))
		result = STAND_BUSY;
	else if ((result = stand_anew(who, profile, lease_duration)) != STAND_OK)
		le_lock_release_name(name, who->candidate, ExclusiveLock);

	/*
	 * Two calls that wait with a name lock in hand, each for the other's,
	 * would never get it.
	 */
	if (result != STAND_OK)
		le_lock_release_name(name, NULL, ShareLock);
	return result;
}
