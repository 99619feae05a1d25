/*-------------------------------------------------------------------------
 *
 * begin.c
 *		The beginning of an epoch, without which nobody is elected on a server
 *		that has become another incarnation.
 *
 * Invariant: a transaction that begins an epoch does nothing else.  If it also
 * granted a lease, the standbys could miss both: the server that is promoted
 * then would begin an epoch that may be lower, and issue a term twice.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "decide/decide.h"

/*
 * Begin the epoch of the present incarnation, if it has none yet.  To be
 * called in a transaction of its own.  False: not now, some table or row is
 * locked.
 */
bool
le_begin_epoch(void)
{
	bool		stale = false;
	int64		highest_term = 0;
	RowScan    *scan;
	Lease	   *lease;

	if (!le_store_try_lock(LE_TABLE_LEASE | LE_TABLE_CANDIDATE |
						   LE_TABLE_EPOCH, RowExclusiveLock) ||
		!le_store_try_lock(LE_TABLE_DROPPED, AccessShareLock) ||
		!le_lock_take(LOCK_EPOCH))
		return false;
	le_xact_holds = true;
	scan = le_lease_scan(le_key_any());
	while ((lease = le_lease_next(scan)) != NULL)
	{
		highest_term = Max(highest_term,
						   Max(lease->term, lease->after_term));
		stale |= le_lease_is_stale(lease);
	}
	le_scan_end(scan);

	/*
	 * A term moves from its lease to table dropped, and on to table epoch. It
	 * is looked for in that order, so that it is found on its way.
	 */
	highest_term = Max(highest_term, le_dropped_highest());

	/* Another transaction may have begun the epoch since the caller looked. */
	if (!le_epoch_is_missing(le_epoch_read(), stale))
		return true;

	/*
	 * Where this database is a copy, the detached candidates of the original
	 * look alive here: they are not.
	 */
	foreach_ptr(Candidate, c, le_candidates_read(NULL))
	{
		if (c->session_id == 0 && !le_candidate_withdraw(c))
			return false;		/* it is sending a heartbeat */
	}
	return le_epoch_write(highest_term);
}

/*
 * See to it that there is an epoch to elect a leader in, before a call that
 * asks for an election, whose lease it has read (NULL: there is none yet),
 * writes anything.  That is the worker's task; where none can be had, this
 * transaction begins the epoch, unless it has done anything else before.
 * False: this transaction holds the epoch lock, and has begun the epoch if it
 * could.  It must do nothing more, and the client has to call again.
 *
 * limit is how long synchronous standbys may be waited for: a commit that
 * waits for standbys that are not there would not end.
 */
bool
le_begin_ensure_epoch(const Lease *lease, bool urgent, int64 limit)
{
	Incarnation *inc;
	Proof		proof;

	if (lease != NULL && le_lease_state_now(lease) == LEASE_LED)
		return true;
	inc = le_epoch_read();
	if (!le_epoch_is_missing(inc, lease != NULL && le_lease_is_stale(lease)))
		return true;
	if (le_start_ensure_worker(urgent) ||
		TransactionIdIsValid(GetTopTransactionIdIfAny()) ||
		!le_proof_make(NULL, PG_INT64_MAX, false, limit, &proof))
		return true;
	(void) le_begin_epoch();
	return !le_lock_is_mine(LOCK_EPOCH);
}
