/*-------------------------------------------------------------------------
 *
 * settle.c
 *		The only place where the holder of an election changes.
 *
 * How an election is settled, by the call or the worker that has its lock:
 *
 * 1. look: the settings and the lease are read, and the lease is locked if its
 *	 term may be over.  Nothing is due if it goes on.  If only its run is to be
 *	 recorded as done, that is written, and nothing is decided.
 *
 * 2. decide (decision.c): a View is read, and the rules say who is elected, or
 *	 for whom the election is kept.
 *
 * 3. check: the proof must cover that, and every row that is to be written must
 *	 be free.  If the proof does not cover a new leader, the change may be
 *	 confined to the end of a term.
 *
 * 4. The change is written, and counts from the moment after the rows are
 *	 locked.
 *
 * Invariants:
 *
 * - The holder changes under the election lock in Exclusive mode, in one
 *	 transaction that ends the old term, grants the new one and writes
 *	 history; or in two, of which the first only ends the old term (see
 *	 is_proven()).  If the process dies anywhere in between, nothing happened.
 *
 * - A new leader is chosen only if the old one itself gave up, or its deadline
 *	 passed, or its session is provably dead on this incarnation.
 *
 * Candidates' own calls, the worker and waiting campaigns all have their
 * elections decided here.  What they have read before they had the election
 * lock is read again under it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/*
 * Is it the holder of this lease that gives up?
 */
static bool
is_holder(const GiveUp *give_up, const Lease *lease)
{
	return le_lease_is_held_by(lease, give_up->session_id, give_up->term);
}

/*
 * Is there nothing to be done: nobody gives up, and the leadership goes on, or
 * it is not yet known whether it does?
 */
static bool
goes_on(const Decision *d, const GiveUp *give_up)
{
	if (d->state == LEASE_LED)
		return give_up == NULL || !is_holder(give_up, d->lease);
	if (d->state != LEASE_STALE ||
		le_lease_grace(d->lease, d->election->lease_duration, d->inc) <= le_clock())
		return false;

	/* A detached holder may still renew during the grace. */
	if (give_up != NULL && is_holder(give_up, d->lease))
		le_wait_busy(d->election->name);
	return true;
}

/*
 * May a leader be elected on this proof?  If not, the change may be confined
 * to the end of a term, or nothing may be done at all (false).
 *
 * Where a standby may be promoted that does not know of the end of a term, its
 * detached holder could renew there: nobody follows before the standbys have
 * confirmed that end, with the very row that is there now.
 */
static bool
is_proven(Decision *d)
{
	const Proof *proof = d->proof;

	if ((!proof->confirmed && d->give_up == NULL) ||
		(proof->required && d->state == LEASE_VACANT &&
		 proof->vacant_xmin != d->lease->xmin))
		return false;
	if (!proof->confirmed ||
		(proof->required && d->state != LEASE_VACANT &&
		 d->lease->session_id == 0))
		d->winner = NULL;
	if (d->winner != NULL && !le_proof_grants(proof, d->inc))
	{
		if (d->give_up == NULL)
			return false;
		d->winner = NULL;
	}
	return true;
}

/*
 * Lock every row that will be written, and that of the winner, which must be
 * there still.  False: another transaction has one of them.
 */
static bool
lock_rows(Decision *d, Row **history)
{
	*history = NULL;
	if (d->lease->row == NULL)
		d->lease = le_lease_lock_read(d->lease);
	return d->lease != NULL &&
		(d->state == LEASE_VACANT ||
		 le_history_lock(d->lease->election, d->lease->term, history)) &&
		(d->set_back == NULL || le_candidate_lock_read(d->set_back) ||
		 (!d->sits_out && d->election->preempt_delay == 0)) &&
		(d->winner == NULL ||
		 (le_candidate_lock_read(d->winner) && d->winner->row != NULL));
}

/*
 * Is the vacant election already kept for the candidate that was decided?
 */
static bool
is_kept_for(const Decision *d)
{
	if (d->successor == NULL)
		return d->lease->successor == NULL;
	return le_candidate_succeeds(d->successor, d->lease) &&
		d->now < le_lease_reserved_mono(d->lease);
}

/*
 * Keep the vacant election for the successor or, if there is none, for nobody
 * any more.  Note who stood first for it, if that is not known yet: the next
 * ones do not wait anew.
 */
static void
keep_seat(Decision *d)
{
	if (d->first_stood != 0)
		le_lease_note_first(d->lease, d->first_stood,
							le_lease_not_before(d->lease, d->inc));
	le_lease_reserve(d->lease, d->successor, d->election->lease_duration);
	le_lease_write(d->lease);
	le_commit_wakes_worker();
}

/*
 * What history adds to the reason: what the leader said when it gave up or, if
 * it yields, why it was asked to.
 */
static const char *
detail_of(const Decision *d, Reason reason)
{
	if (d->state == LEASE_LED && d->give_up->detail != NULL)
		return d->give_up->detail;
	return reason == REASON_YIELDED ? d->lease->yield_cause : NULL;
}

/*
 * Grant the lease, which is locked, to a candidate, from t0 on.  It may
 * continue its previous_term (0: none).  The caller writes the lease, and calls
 * le_commit_change() then.
 */
void
le_settle_grant(Lease *lease, const Incarnation *inc,
				const Candidate *winner, int64 previous_term, int64 duration,
				int64 t0, TimestampTz at, Change *change)
{
	Assert(lease->row != NULL);
	Assert(le_lock_holds_mutex(LOCK_ELECTION, lease->election, ExclusiveLock));
	change->term = le_epoch_next_term(Max(lease->term, lease->after_term),
									  inc);
	change->leader = winner->candidate;
	change->winner_pid = winner->backend_pid;
	le_lease_grant(lease, winner, change->term, previous_term, duration, t0, at);
	le_history_begin(winner, change->term, at);
}

/*
 * Write the end of a term, if there is one, and the beginning of the next, if
 * a candidate was elected.  Both have the same time: one event for listeners.
 */
static void
write_change(Decision *d, Row *history)
{
	TimestampTz at = GetCurrentTimestamp();
	bool		required = d->proof->required;
	int64		duration = required ? d->proof->lease_duration :
		d->election->lease_duration;
	Change		change = {.election = d->election->name,
	.term = d->lease->term,.previous = d->lease->leader};

	if (d->state != LEASE_VACANT)
	{
		Reason		reason = le_decision_reason(d);

		change.reason = le_reasons[reason].word;
		le_history_end(history, change.reason, detail_of(d, reason), at);
	}
	if (d->give_up != NULL && d->give_up->done)
		(void) le_runs_finish(d->lease);
	if (d->winner != NULL)
	{
		le_runs_begin(d->lease, &d->run, &d->winner->role);
		d->winner->request = d->request;
		le_settle_grant(d->lease, d->inc, d->winner, 0, duration,
						required ? d->proof->t0 : d->now, at, &change);
	}
	else
	{
		d->view->now = d->now;
		le_decision_look_who_stands(d);
		le_lease_vacate(d->lease, d->not_before, d->state == LEASE_LED,
						d->successor, d->election->lease_duration, d->deserted,
						d->first_stood);
	}
	le_lease_write(d->lease);
	le_commit_change(&change);
	if (d->winner != NULL && d->view->pause_vacates)
		le_yield_ask_for_pause(d->election, d->lease);
}

/*
 * Does the caller say that the run of the last term is done, whose lease is
 * over?
 */
static bool
is_late(const Decision *d, const GiveUp *give_up)
{
	return give_up != NULL && give_up->done && d->state != LEASE_LED &&
		le_lease_was_term(d->lease, give_up->term);
}

/*
 * Read the election, and lock its lease if a term may be over.
 * SETTLED_NOT_YET: something may be due.  SETTLED_GAVE_UP: no more than that
 * the run of the last term is done is to be recorded.
 */
static Settled
look(Decision *d, const char *name, const GiveUp *give_up)
{
	bool		late;

	/*
	 * The settings and the lease may have changed, or be gone, while the
	 * caller queued for the lock.
	 */
	d->inc = le_epoch_read();
	d->lease = le_lease_read(name, NULL);
	d->election = le_election_get(name);
	if (d->lease == NULL)
		le_election_report_missing(name);
	d->state = le_lease_state_now(d->lease);
	late = is_late(d, give_up);
	if (!late && goes_on(d, give_up))
		return SETTLED_NOTHING;

	/*
	 * Lock the row against renewals.  A vacant lease has none: where nothing
	 * is due, it is not locked, which would be a write.
	 */
	if (d->state != LEASE_VACANT || late)
	{
		d->lease = le_lease_lock_read(d->lease);
		if (d->lease == NULL)
			return SETTLED_BUSY;
	}
	d->now = le_clock();
	d->state = le_lease_state(d->lease, d->now);
	if (is_late(d, give_up))
		return SETTLED_GAVE_UP;
	if (goes_on(d, give_up))
		return SETTLED_NOTHING;
	if (give_up != NULL && is_holder(give_up, d->lease))
		d->give_up = give_up;
	d->grants = le_cap_is_locked(d->election);
	if (!d->grants && d->state == LEASE_VACANT)
		return give_up != NULL ? SETTLED_NOTHING : SETTLED_UNPROVEN;
	return SETTLED_NOT_YET;
}

/*
 * Is what was decided to be written?  Lock the rows, and see what it rests on
 * beside the rules.  SETTLED_NOT_YET: write it, maybe without the winner.
 */
static Settled
check(Decision *d, Row **history)
{
	const Proof *proof = d->proof;

	/*
	 * No standby knows of settings, or a vacancy, that are not committed yet.
	 */
	if (proof->required && d->election->own_write)
		d->winner = NULL;
	if (d->state == LEASE_VACANT &&
		((d->winner == NULL && d->first_stood == 0 && is_kept_for(d)) ||
		 (proof->required && d->lease->own_write)))
		return SETTLED_NOTHING;
	if (!is_proven(d))
		return SETTLED_UNPROVEN;
	if (!lock_rows(d, history))
		return SETTLED_BUSY;

	/*
	 * A lease or a reservation counts from here, after the choice.  With many
	 * candidates the choice takes long, and would use up the lease.  (Where a
	 * proof is required, the lease counts from the proof, and is_proven() has
	 * refused a proof that is too old by now.)
	 */
	d->now = le_clock();
	if (d->winner != NULL &&
		(!le_proof_stands(proof) ||
		 !le_cap_lock_late(d->election, d->winner)))
	{
		if (d->give_up == NULL || d->give_up->to_candidate != NULL)
			return SETTLED_UNPROVEN;
		d->winner = NULL;
	}

	/* Settings change only under the lock on the lease row. */
	if (d->winner != NULL && proof->required &&
		!le_proof_covers(proof, le_election_lease_duration(d->lease)))
		return SETTLED_UNPROVEN;
	return SETTLED_NOT_YET;
}

static Settled
settle(const Election *election, const Candidate *caller,
	   const GiveUp *give_up, const Proof *proof, Lease **lease)
{
	Decision	d = {.proof = proof};
	Row		   *history;
	int64		last_term;
	Settled		settled = look(&d, election->name, give_up);

	Assert(le_lock_holds_mutex(LOCK_ELECTION, election->name, ExclusiveLock));
	if (settled == SETTLED_NOT_YET)
	{
		le_decision_make(&d, caller);
		settled = check(&d, &history);
	}
	else if (settled == SETTLED_GAVE_UP && le_runs_finish(d.lease))
	{
		/*
		 * The run of the last term is done: that is recorded, and nothing
		 * else, in the grace after a failover, too.  It changes no holder,
		 * and the next leader must know.
		 */
		le_lease_write(d.lease);
	}
	*lease = d.lease;
	if (settled != SETTLED_NOT_YET)
		return settled;
	last_term = d.lease->term;
	if (d.winner == NULL && d.state == LEASE_VACANT)
		keep_seat(&d);
	else
		write_change(&d, history);

	/* write_change() may have looked since when it stood. */
	if (d.set_back != NULL && d.set_back->row != NULL)
		le_candidate_set_back(d.set_back, d.sits_out, d.loses, last_term,
							  d.now);
	le_spread_touch(election->name);
	return d.state == LEASE_LED ? SETTLED_GAVE_UP : SETTLED_CHANGED;
}

/*
 * Look at an election and do what is due: end a leadership that is over, or
 * that its holder gives up (give_up), and elect the next leader.
 *
 * caller: the candidate in whose own call this happens, NULL for none.  proof
 * was made before the election lock was taken.  The caller holds that lock and
 * the tables' locks.  A seat of a group is granted or reserved only if the
 * caller holds the group lock, too (cap.c); without it, only a term ends.
 * *lease becomes the lease as it is then, unless a row is busy.
 *
 * Nothing is read by the snapshot.  While it is registered, no version of a row
 * that is read here is removed, and the row can be locked where it was read
 * (le_row_lock_read()).
 */
Settled
le_settle(const Election *election, const Candidate *caller,
		  const GiveUp *give_up, const Proof *proof, Lease **lease)
{
	Snapshot	kept = RegisterSnapshot(GetLatestSnapshot());
	Settled		settled = settle(election, caller, give_up, proof, lease);

	UnregisterSnapshot(kept);
	return settled;
}
