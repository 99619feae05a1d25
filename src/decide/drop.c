/*-------------------------------------------------------------------------
 *
 * drop.c
 *		The end of an election.
 *
 * Invariant: nobody leads an election that is dropped, here or elsewhere, and
 * one that is made anew under its name begins above its last term.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"
#include "utils/timestamp.h"

/*
 * May the lease be in force elsewhere?  An election that is made anew under
 * this name must not be led before the grace is over, which a lease that was
 * continued in the grace carries as a hold.
 */
static bool
outlasts_drop(const Lease *lease, const Election *election,
			  const Incarnation *inc)
{
	int64		not_before = le_lease_not_before(lease, inc);

	return le_lease_grace(lease, election->lease_duration, inc) > le_clock() ||
		(inc->epoch > 0 && not_before > le_clock() &&
		 not_before <= inc->first_seen + LE_LONGEST_LEASE_MS * INT64CONST(1000)) ||
		le_lease_is_void(lease);
}

/*
 * End an election that is to be dropped, with all that is standing in it.
 * Nobody leads it (55006), and its highest term is remembered.  The caller
 * holds the election lock and the tables' locks.  False: another
 * transaction has locked a row.
 */
bool
le_drop_locked(const Election *election)
{
	Incarnation *inc = le_epoch_read();
	Lease	   *lease = le_lease_read(election->name, NULL);
	LeaseState	state;
	TimestampTz at = GetCurrentTimestamp();
	Row		   *history;
	Change		change = {.election = election->name};

	Assert(le_lock_holds_mutex(LOCK_ELECTION, election->name, ExclusiveLock));
	if (lease == NULL)
		le_election_report_missing(election->name);

	/*
	 * A renewal takes no election lock.  One that was made in time may commit
	 * at this moment: judge by the row that nobody else can write any more.
	 */
	if (lease->leader != NULL)
		lease = le_lease_lock(election->name);
	if (lease == NULL)
		return false;
	change.term = lease->term;
	change.previous = lease->leader;
	state = le_lease_state_now(lease);

	if (outlasts_drop(lease, election, inc))
		le_wait_busy(election->name);
	if (state == LEASE_LED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("election \"%s\" is led by \"%s\"",
						election->name, lease->leader),
				 errhint("Have it resign: leader_election.request_yield().")));
	if (state != LEASE_VACANT)
	{
		if (!le_history_lock(election->name, lease->term, &history))
			return false;
		change.reason = le_reasons[REASON_DROPPED].word;
		le_history_end(history, change.reason, NULL, at);
	}
	foreach_ptr(const Candidate, c, le_candidates_read(election->name))
	{
		if (!le_candidate_withdraw(c))
			return false;
	}

	/* The lease comes last: while it is there, the caller can try again. */
	if (!le_dropped_note(election->name,
						 Max(lease->term, lease->after_term)) ||
		!le_drain_drop(election->name) ||
		!le_row_remove(TABLE_ELECTION, le_key(election->name)) ||
		!le_row_remove(TABLE_LEASE, le_key(election->name)))
		return false;
	le_spread_touch(election->name);
	le_commit_change(&change);
	return true;
}
