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
 * - After a failover, a detached holder goes on in a new term of the new epoch,
 *	 under the election lock: settle.c grants it.
 *
 * - Where standbys have to confirm, a lease is renewed for the duration that
 *	 they have confirmed, and for no other.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

/*
 * Ask the standbys, for a renewal of the lease that was seen, within what is
 * left of the call's time.
 */
bool
le_renew_prove(const Lease *seen, Proof *proof)
{
	return le_proof_make(seen, le_election_lease_duration(seen), false,
						 le_wait_left(), proof);
}

/*
 * Renew the lease, which is locked (NULL: another transaction has locked it,
 * or it is gone), if this candidate holds it: that session, in that term (0: in
 * any), or (session_id 0) a detached candidate that knows the term.
 *
 * *duration is what the settings said before the proof was made; 0: read them
 * now.  An ALTER may have committed another one since: where standbys have to
 * know it, the settings are read again.  It becomes what they say then.  said
 * is what the holder says of itself; NULL: nothing.
 */
Renewed
le_renew_lease(Lease *lease, int64 session_id, int64 term,
			   int64 *duration, const Proof *proof, const Profile *said)
{
	if (lease == NULL)
		return RENEW_BUSY;
	Assert(lease->row != NULL);
	if (!le_lease_is_held_by(lease, session_id, term) || lease->yielding ||
		le_lease_state_now(lease) != LEASE_LED)
		return RENEW_ENDED;
	if (*duration == 0 || proof->required)
		*duration = le_election_lease_duration(lease);
	if (!le_proof_covers(proof, *duration))
		return RENEW_UNPROVEN;
	le_lease_renew(lease, term, *duration, proof->t0, said);
	return RENEWED;
}

/*
 * The holder of this lease, which led when it was read, may say something of
 * itself although the lease is not renewed: it was just granted, or its holder
 * is asked to yield.  *lease becomes the row as it is now, if that differs from
 * what is said.  False: another
 * transaction has locked it, or that term is over: the caller has to read it
 * again.
 */
bool
le_renew_say(Lease **lease, const Profile *said)
{
	Lease	   *locked;

	if (!le_lease_differs(*lease, said))
		return true;
	locked = le_lease_lock((*lease)->election);
	if (locked == NULL || locked->term != (*lease)->term ||
		le_lease_state_now(locked) != LEASE_LED)
		return false;
	le_lease_say(locked, said);
	*lease = locked;
	return true;
}

/*
 * Lead on after a failover: the detached holder of a lease that another
 * incarnation of the server has granted, who knows its term, goes on in a term
 * of the new epoch.  After the grace the term is over (*over): another
 * candidate may have been elected.  The caller holds the election lock and the
 * tables' locks.  NULL: the term is over, or another transaction has locked a
 * row, or the proof does not cover the grant; or the lease is not stale any
 * more, since an earlier call of this holder, whose answer it may have missed,
 * has committed while this one waited for the election lock.
 */
Lease *
le_renew_stale(const Election *election, int64 term,
			   const Proof *proof, bool *over)
{
	Incarnation *inc = le_epoch_read();
	Lease	   *lease = le_lease_lock(election->name);
	LeaseState	state;
	int64		now = le_clock();
	int64		grace;
	int64		paused_until;
	const Pause *pause;
	TimestampTz at = GetCurrentTimestamp();
	Row		   *history;
	Change		change = {.election = election->name};

	Assert(le_lock_holds_mutex(LOCK_ELECTION, election->name, ExclusiveLock));
	*over = false;
	if (lease == NULL)
		return NULL;
	election = le_election_get(election->name);
	grace = le_lease_grace(lease, election->lease_duration, inc);
	state = le_lease_state(lease, now);
	*over = !le_lease_is_term(lease, term) ||
		(state == LEASE_STALE && grace <= now);
	if (*over || state != LEASE_STALE)
		return NULL;
	if (grace == PG_INT64_MAX)
	{
		/* The worker has to start the epoch first. */
		le_wake_workers(MyDatabaseId);
		le_wait_busy(election->name);
	}
	if (!le_history_lock(election->name, lease->term, &history))
		return NULL;
	if (!le_proof_grants(proof, inc) ||
		(proof->required && election->own_write) ||
		!le_proof_covers(proof, le_election_lease_duration(lease)))
		return NULL;
	change.previous = lease->leader;
	change.reason = le_reasons[REASON_FAILOVER].word;
	le_history_end(history, change.reason, NULL, at);

	/*
	 * On the former server the lease may last longer than leases are granted
	 * for now.  The hold keeps others from following before the grace is
	 * over, even if the holder gives up here.
	 */
	le_settle_grant(lease, inc, le_candidate_of_lease(lease), term,
					Max(election->lease_duration, lease->duration), proof->t0,
					at, &change);
	le_lease_set_not_before(lease, grace, true);
	le_lease_write(lease);
	le_spread_touch(election->name);
	le_commit_change(&change);
	pause = le_pause_now(election, inc, &paused_until);
	if (pause != NULL && pause->vacates)
		le_yield_ask_for_pause(election, lease);
	return lease;
}
