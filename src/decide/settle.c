/*-------------------------------------------------------------------------
 *
 * settle.c
 *		The only place where the holder of an election changes.
 *
 * How an election is settled, by the call or the worker that has its lock:
 *
 * 1. look: the settings and the lease are read, and the lease is locked if its
 *	 term may be over.  Nothing is due if it goes on.
 *
 * 2. decide: a View is read, and the rules say who is elected, or for whom the
 *	 seat is kept.
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
#include "utils/timestamp.h"

/* An election that is to be settled, and what is to be done about it */
typedef struct Decision
{
	const Store *store;
	const Proof *proof;			/* was made before the election was locked */
	const Election *election;
	Incarnation *inc;
	Lease	   *lease;			/* locked, if it is to be written */
	LeaseState	state;
	View	   *view;			/* what the rules are asked of */
	const GiveUp *give_up;		/* NULL: the holder does not give up */
	bool		grants;			/* the seat may be granted, or reserved anew */
	int64		now;
	int64		not_before;		/* nobody follows before */
	Candidate  *winner;			/* NULL: nobody is elected now */
	Run			run;			/* that the winner has called for */
	Candidate  *successor;		/* that the seat is kept for; NULL: nobody */
	Candidate  *passed_over;	/* who sits out from now on; NULL: nobody */
	Candidate  *loser;			/* whose time begins anew; NULL: nobody's */
	bool		deserted;		/* nobody stands to follow the leader */
	int64		first_stood;	/* since when anybody does; 0: nobody does, or
								 * it is noted already */
} Decision;

/*
 * Why does this leadership end?
 */
static Reason
reason_of(const Decision *d)
{
	const Lease *lease = d->lease;

	switch (d->state)
	{
		case LEASE_LED:
			return lease->yielding && d->give_up->resigns ?
				REASON_YIELDED : d->give_up->reason;
		case LEASE_EXPIRED:
			return lease->yielding ? REASON_YIELDED : REASON_EXPIRED;
		case LEASE_ORPHANED:
			return le_session_lock_was_lost(lease->backend_pid) ?
				REASON_SESSION_RESET : REASON_SESSION_ENDED;
		case LEASE_FOREIGN:
			return REASON_FAILOVER;
		case LEASE_VACANT:
			break;
	}
	Assert(false);				/* it has ended before */
	return REASON_OTHER;
}

/*
 * Is the holder to be passed over, once its leadership has ended?  A leader
 * that was to renew its lease itself and did not may be hung: if it were
 * elected again at once, nobody else ever would.  Where its strategy wanted it
 * to go, the strategy decides who follows: that may be the same candidate, if
 * it has no challenger any more.  Where it was to go because of a pause or a
 * drain, it keeps its place.
 */
static bool
steps_down(const Decision *d)
{
	if (d->lease->yield_cause != NULL)
		return false;
	if (d->give_up != NULL)
		return d->give_up->resigns;
	return d->state == LEASE_EXPIRED &&
		(d->lease->yield_ordered || !d->lease->auto_renew);
}

/*
 * Has the holder lost a leadership that it did not give up?  Then it has to
 * stand for preempt_delay again before it challenges the next leader.  (A
 * session that has ended stands no more.)
 */
static bool
loses(const Decision *d)
{
	return d->state == LEASE_FOREIGN ||
		(d->state == LEASE_EXPIRED && !d->lease->yielding);
}

/*
 * The seat falls vacant, or has fallen so before anybody noticed.  Who stood
 * then, or has stood first since?
 */
static void
look_who_stands(Decision *d)
{
	int64		vacant_since = d->now;

	if (d->state == LEASE_EXPIRED)
		vacant_since = d->lease->deadline_mono;
	else if (d->state == LEASE_FOREIGN)
		vacant_since = d->inc->first_seen;
	d->first_stood = le_ranking_first_stood(d->view, vacant_since,
											&d->deserted);
}

/*
 * From when on may another candidate follow the leader of this lease?
 */
static int64
earliest_election(const Decision *d)
{
	const Lease *lease = d->lease;
	int64		delay = d->election->takeover_delay;

	switch (d->state)
	{
		case LEASE_LED:
			return Max(le_lease_not_before(lease, d->inc), d->give_up->hold > 0 ?
					   lease->acquired_mono + d->give_up->hold : 0);
		case LEASE_EXPIRED:
			/* A leader that lets a requested yield run out has given up. */
			return lease->yielding ? 0 : lease->deadline_mono + delay;
		case LEASE_FOREIGN:

			/*
			 * Where the row is void, its holder may believe for that long
			 * that it leads.
			 */
			if (le_lease_is_void(lease, d->inc->name))
				delay = Max(delay, Max(d->election->lease_duration,
									   lease->duration));
			break;
		case LEASE_ORPHANED:
		case LEASE_VACANT:
			break;
	}
	return d->now + delay;
}

/*
 * Grant the lease, which is locked, to a candidate, from t0 on.  It may
 * continue its previous_term (0: none).
 */
static void
grant(const Store *store, Lease *lease, const Incarnation *inc,
	  const Candidate *winner, int64 previous_term, Change *change,
	  int64 duration, int64 t0, TimestampTz at)
{
	change->term = le_epoch_next_term(Max(lease->term, lease->after_term),
									  inc);
	change->leader = winner->candidate;
	change->winner_pid = winner->backend_pid;
	le_lease_grant(lease, winner, change->term, previous_term, duration, t0, at,
				   inc->name);
	le_history_begin(store, winner, change->term, at);
}

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
	if (d->state != LEASE_FOREIGN ||
		le_lease_grace(d->lease, d->election->lease_duration, d->inc) <= le_clock())
		return false;

	/* A detached holder may still renew during the grace. */
	if (give_up != NULL && is_holder(give_up, d->lease))
		le_wait_busy(d->election->name);
	return true;
}

/*
 * For which candidate is the seat kept that falls vacant now?
 */
static Contender *
find_successor(const Decision *d)
{
	const char *named = d->state == LEASE_LED ?
		d->give_up->to_candidate : NULL;
	Contender  *successor;

	if (named == NULL)
		return le_vacancy_successor(d->view);
	if (d->view->grace > d->now)
		le_wait_busy(d->election->name);
	successor = le_view_named(d->view, named);
	if (successor->holds)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("candidate \"%s\" cannot transfer election \"%s\" to itself",
						named, d->election->name)));
	return successor;
}

/*
 * Until when is nobody elected, for which candidate is the seat kept, who is
 * passed over from now on, and whose time begins anew?
 */
static int64
decide_vacancy(Decision *d, Contender **kept_for)
{
	Vacancy		v;
	bool		deserted;

	le_vacancy(d->view, NULL, &v);
	*kept_for = v.kept_for;
	if (v.absent != NULL)
		d->passed_over = v.absent->candidate;
	if (v.note_first_at > d->now)
		return v.barred_until;

	/*
	 * The first candidate's own call notes when it stood or, if that call
	 * found the election locked, the next one or the worker: its row tells.
	 */
	d->first_stood = le_ranking_first_stood(d->view, 0, &deserted);
	return Max(v.barred_until,
			   d->first_stood != 0 ?
			   d->first_stood + d->election->initial_delay : 0);
}

/*
 * The same for a seat that falls vacant now.
 */
static int64
decide_end(Decision *d, Contender **kept_for)
{
	int64		barred_until;

	Assert(d->state != LEASE_LED || d->give_up != NULL);
	d->not_before = earliest_election(d);
	barred_until = Max(d->not_before, d->view->grace);
	*kept_for = find_successor(d);
	d->view->passes_holder = steps_down(d);
	if (d->view->passes_holder)
		d->passed_over = le_candidate_of_lease(d->lease);
	if (loses(d))
		d->loser = d->passed_over != NULL ?
			d->passed_over : le_candidate_of_lease(d->lease);
	if (d->election->initial_delay == 0 || *kept_for != NULL)
		return barred_until;
	look_who_stands(d);
	return Max(barred_until,
			   d->first_stood != 0 ?
			   d->first_stood + d->election->initial_delay : 0);
}

/*
 * Is this lease over, and could another candidate follow now, if the election
 * lock were free?  Our caller does not hold it, and decides nothing by this.
 * (caller: see le_settle().)
 */
bool
le_settle_is_held_up(const Store *store, const Election *election,
					 Lease *lease, const Candidate *caller)
{
	Election	at_once = *election;
	Decision	d = {.store = store,.election = election,.lease = lease};
	Contender  *kept_for;

	d.inc = le_epoch_read();
	d.now = le_clock();
	d.state = le_lease_state(lease, d.inc->name, d.now);
	if (d.state != LEASE_EXPIRED && d.state != LEASE_ORPHANED)
		return false;
	d.view = le_view_read(store, election, lease, d.inc, d.now, caller);
	if (d.view->withdrawn)
		return false;

	/*
	 * After a session that has ended, the delay begins when its term is
	 * ended: whatever holds that up prolongs the delay.
	 */
	at_once.takeover_delay = 0;
	if (d.state == LEASE_ORPHANED)
		d.election = &at_once;
	if (decide_end(&d, &kept_for) > d.now)
		return false;
	if (kept_for != NULL)
		return le_ranking_has_quorum(d.view);
	return !d.view->paused && le_ranking_has_follower(d.view);
}

/*
 * Decide who is elected now, for which candidate the seat is kept, and who is
 * passed over from now on.
 */
static void
decide(Decision *d, const Candidate *caller)
{
	Contender  *kept_for;
	Contender  *winner;
	int64		barred_until;

	/*
	 * Another call may have finished the run, or have been granted a later
	 * one, before this call had the election lock: it is no candidate's then.
	 */
	if (caller != NULL && !le_runs_admit(&d->lease->runs, &caller->run))
		caller = NULL;
	d->view = le_view_read(d->store, d->election, d->lease, d->inc, d->now,
						   caller);
	barred_until = d->state == LEASE_VACANT ?
		decide_vacancy(d, &kept_for) : decide_end(d, &kept_for);
	winner = le_vacancy_fill(d->view,
							 d->grants ? barred_until : PG_INT64_MAX,
							 &kept_for);
	if (kept_for != NULL)
		d->successor = kept_for->candidate;
	if (winner == NULL)
		return;
	d->winner = winner->candidate;
	if (winner->detached)
		d->run = caller->run;
}

/*
 * Do the standbys know the epoch that a new term is of, so that whichever is
 * promoted goes on above it?  And is the proof fresh enough for a lease?
 */
static bool
is_proof_of_grant(const Proof *proof, const Incarnation *inc)
{
	return !proof->required ||
		(proof->epoch == inc->epoch &&
		 le_clock() - proof->t0 <= proof->lease_duration / 3);
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
	if (d->winner != NULL && !is_proof_of_grant(proof, d->inc))
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
		d->lease = le_lease_lock(d->store, d->lease->election);
	return d->lease != NULL &&
		(d->state == LEASE_VACANT ||
		 le_history_lock(d->store, d->lease->election, d->lease->term, history)) &&
		(d->passed_over == NULL || le_candidate_lock(d->store, d->passed_over)) &&
		(d->loser == NULL || le_candidate_lock(d->store, d->loser) ||
		 d->election->preempt_delay == 0) &&
		(d->winner == NULL ||
		 (le_candidate_lock(d->store, d->winner) && d->winner->row != NULL));
}

/*
 * Is the vacant seat already kept for the candidate that was decided?
 */
static bool
is_kept_for(const Decision *d)
{
	if (d->successor == NULL)
		return d->lease->successor == NULL;
	return le_candidate_succeeds(d->successor, d->lease) &&
		d->now < le_lease_reserved_mono(d->lease, d->inc->name);
}

/*
 * Keep the vacant seat for the successor or, if there is none, for nobody any
 * more.  Note who stood first for it, if that is not known yet: the next ones
 * do not wait anew.
 */
static void
keep_seat(Decision *d)
{
	if (d->first_stood != 0)
		le_lease_note_first(d->lease, d->first_stood,
							le_lease_not_before(d->lease, d->inc), d->now,
							GetCurrentTimestamp(), d->inc->name);
	if (d->successor != NULL)
		le_lease_reserve(d->lease, d->successor, d->election->lease_duration,
						 d->now, d->inc->name);
	else
		le_lease_unreserve(d->lease);
	le_commit_durably();
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
 * Write the end of a term, whose row of history is locked; NULL: it is gone.
 */
static void
end_term(Change *change, Row *history, Reason reason, const char *detail,
		 TimestampTz at)
{
	change->reason = le_reasons[reason].word;
	if (history != NULL)
		le_history_end(history, change->reason, detail, at);
}

/*
 * A leader was granted the lease, which is locked, while its election is
 * paused so that nobody leads it: by a transfer, say, or a continuation after
 * a failover.
 */
static void
ask_for_pause(const Store *store, const Election *election, Lease *lease,
			  bool pause_vacates)
{
	if (pause_vacates)
		le_yield_ask_to_vacate(store, election, lease, LE_CAUSE_PAUSED);
}

/*
 * Write the end of a term, if there is one, and the beginning of the next, if
 * a candidate was elected.  Both have the same time: one event for listeners.
 */
static void
write_change(Decision *d, Row *history)
{
	const Proof *proof = d->proof;
	TimestampTz at = GetCurrentTimestamp();
	int64		duration = d->election->lease_duration;
	Change		change = {.election = d->election->name,
	.term = d->lease->term,.previous = d->lease->leader};

	if (d->state != LEASE_VACANT)
	{
		Reason		reason = reason_of(d);

		end_term(&change, history, reason, detail_of(d, reason), at);
	}
	if (d->give_up != NULL && d->give_up->done)
		(void) le_runs_finish(d->lease, at);
	if (d->winner != NULL)
		le_runs_begin(d->lease, &d->run, &d->winner->role);
	if (d->winner == NULL)
	{
		d->view = le_view_read(d->store, d->election, d->lease, NULL, d->now,
							   NULL);
		look_who_stands(d);
		le_lease_vacate(d->lease, d->not_before, d->state == LEASE_LED,
						d->successor, duration, d->deserted, d->first_stood,
						d->now, at, d->inc->name);
	}
	else if (proof->required)
		grant(d->store, d->lease, d->inc, d->winner, 0, &change,
			  proof->lease_duration, proof->t0, at);
	else
		grant(d->store, d->lease, d->inc, d->winner, 0, &change,
			  duration, d->now, at);
	le_commit_change(d->store, &change);
	if (d->winner != NULL)
		ask_for_pause(d->store, d->election, d->lease, d->view->pause_vacates);
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
 * Record that the run of the last term is done, and nothing else.  In the
 * grace after a failover that is allowed, too: it changes no holder, and the
 * next leader must know.
 */
static Settled
finish_late(Decision *d)
{
	if (le_runs_finish(d->lease, GetCurrentTimestamp()))
	{
		le_row_update(d->lease->row);
		le_commit_durably();
	}
	return SETTLED_GAVE_UP;
}

/*
 * Read the election, and lock its lease if a term may be over.  SETTLED_CHANGED:
 * something may be due.
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
	d->lease = le_lease_read(d->store, name, NULL);
	d->election = le_election_get(d->store, name);
	if (d->lease == NULL)
		le_election_report_missing(name);
	d->state = le_lease_state(d->lease, d->inc->name, le_clock());
	late = is_late(d, give_up);
	if (!late && goes_on(d, give_up))
		return SETTLED_NOTHING;

	/*
	 * Lock the row against renewals.  A vacant lease has none: where nothing
	 * is due, it is not locked, which would be a write.
	 */
	if (d->state != LEASE_VACANT || late)
	{
		d->lease = le_lease_lock(d->store, name);
		if (d->lease == NULL)
			return SETTLED_BUSY;
	}
	d->now = le_clock();
	d->state = le_lease_state(d->lease, d->inc->name, d->now);
	if (is_late(d, give_up))
		return finish_late(d);
	if (goes_on(d, give_up))
		return SETTLED_NOTHING;
	if (give_up != NULL && is_holder(give_up, d->lease))
		d->give_up = give_up;
	d->grants = le_cap_is_locked(d->store, d->election);
	if (!d->grants && d->state == LEASE_VACANT)
		return give_up != NULL ? SETTLED_NOTHING : SETTLED_UNPROVEN;
	return SETTLED_CHANGED;
}

/*
 * Is what was decided to be written?  Lock the rows, and see what it rests on
 * beside the rules.  SETTLED_CHANGED: write it, maybe without the winner.
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
		 !le_cap_lock_late(d->store, d->election, d->winner)))
	{
		if (d->give_up == NULL || d->give_up->to_candidate != NULL)
			return SETTLED_UNPROVEN;
		d->winner = NULL;
	}

	/* Settings change only under the lock on the lease row. */
	if (d->winner != NULL && proof->required &&
		!le_proof_covers(proof, le_election_lease_duration(d->store, d->lease)))
		return SETTLED_UNPROVEN;
	return SETTLED_CHANGED;
}

/*
 * Look at an election and do what is due: end a leadership that is over, or
 * that its holder gives up (give_up), and elect the next leader.
 *
 * caller: the candidate in whose own call this happens, NULL for none.  proof
 * was made before the election lock was taken.  The caller holds that lock and
 * the tables' locks.  A seat of a group is granted or reserved only if the
 * caller holds the group lock, too (cap.c); without it, only a term ends.
 */
Settled
le_settle(const Store *store, const Election *election,
		  const Candidate *caller, const GiveUp *give_up, const Proof *proof)
{
	Decision	d = {.store = store,.proof = proof};
	Row		   *history;
	Settled		settled = look(&d, election->name, give_up);

	if (settled != SETTLED_CHANGED)
		return settled;
	decide(&d, caller);
	settled = check(&d, &history);
	if (settled != SETTLED_CHANGED)
		return settled;
	if (d.passed_over != NULL && d.passed_over->row != NULL)
		le_candidate_set_sits_out(d.passed_over, d.lease->term, d.now);
	if (d.winner == NULL && d.state == LEASE_VACANT)
		keep_seat(&d);
	else
		write_change(&d, history);

	/* write_change() may have looked since when it stood. */
	if (d.loser != NULL && d.loser->row != NULL)
		le_candidate_set_stood(d.loser, d.now);
	le_seats_touch(election->name);
	return d.state == LEASE_LED ? SETTLED_GAVE_UP : SETTLED_CHANGED;
}

/*
 * Lead on after a failover: the detached holder of a lease that another
 * incarnation of the server has granted, who knows its term, goes on in a term
 * of the new epoch.  After the grace the term is over (*over): another
 * candidate may have been elected.  The caller holds the election lock and the
 * tables' locks.  NULL: the term is over, or another transaction has locked a
 * row, or the proof does not cover the grant.
 */
Lease *
le_settle_continue(const Store *store, const Election *election, int64 term,
				   const Proof *proof, bool *over)
{
	Incarnation *inc = le_epoch_read();
	Lease	   *lease = le_lease_lock(store, election->name);
	int64		now = le_clock();
	int64		grace;
	int64		paused_until;
	const Pause *pause;
	TimestampTz at = GetCurrentTimestamp();
	Row		   *history;
	Change		change = {.election = election->name};

	*over = false;
	if (lease == NULL)
		return NULL;
	election = le_election_get(store, election->name);
	grace = le_lease_grace(lease, election->lease_duration, inc);
	*over = !le_lease_is_term(lease, term) ||
		le_lease_state(lease, inc->name, now) != LEASE_FOREIGN || grace <= now;
	if (*over)
		return NULL;
	if (grace == PG_INT64_MAX)
	{
		/* The worker has to start the epoch first. */
		le_wake_workers(MyDatabaseId);
		le_wait_busy(election->name);
	}
	if (!le_history_lock(store, election->name, lease->term, &history))
		return NULL;
	if (!is_proof_of_grant(proof, inc) ||
		(proof->required && election->own_write) ||
		!le_proof_covers(proof, le_election_lease_duration(store, lease)))
		return NULL;
	change.previous = lease->leader;
	end_term(&change, history, REASON_FAILOVER, NULL, at);

	/*
	 * On the former server the lease may last longer than leases are granted
	 * for now.  The hold keeps others from following before the grace is
	 * over, even if the holder gives up here.
	 */
	grant(store, lease, inc, le_candidate_of_lease(lease), term, &change,
		  Max(election->lease_duration, lease->duration),
		  proof->t0, at);
	le_lease_hold(lease, grace, now, at);
	le_seats_touch(election->name);
	le_commit_change(store, &change);
	pause = le_pause_now(store, election, inc, &paused_until);
	ask_for_pause(store, election, lease, pause != NULL && pause->vacates);
	return le_lease_read(store, election->name, NULL);
}

/*
 * Keep the vacant seat of a paused election for a candidate that an operator
 * has named, as a transfer to it would: a hold or a takeover delay binds.  The
 * caller holds the election lock, and that of its group, and the lease is
 * locked.
 */
void
le_settle_reserve(const Store *store, const Election *election, Lease *lease,
				  const Incarnation *inc, const Candidate *successor)
{
	int64		now = le_clock();

	le_lease_vacate(lease, le_lease_not_before(lease, inc), lease->held,
					successor, election->lease_duration, lease->deserted,
					le_lease_first_stood(lease, inc->name), now,
					GetCurrentTimestamp(), inc->name);
	le_seats_touch(election->name);
	le_commit_durably();
	le_commit_wakes_worker();
}

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
		le_lease_is_void(lease, inc->name);
}

/*
 * End an election that is to be dropped, with all that is standing in it.
 * Nobody leads it (55006), and its highest term is remembered.  The caller
 * holds the election lock and the tables' locks.  False: another
 * transaction has locked a row.
 */
bool
le_settle_drop(const Store *store, const Election *election,
			   const Incarnation *inc)
{
	Lease	   *lease = le_lease_read(store, election->name, NULL);
	LeaseState	state;
	TimestampTz at = GetCurrentTimestamp();
	Row		   *history;
	Change		change = {.election = election->name};

	if (lease == NULL)
		le_election_report_missing(election->name);

	/*
	 * A renewal takes no election lock.  One that was made in time may commit
	 * at this moment: judge by the row that nobody else can write any more.
	 */
	if (lease->leader != NULL)
		lease = le_lease_lock(store, election->name);
	if (lease == NULL)
		return false;
	change.term = lease->term;
	change.previous = lease->leader;
	state = le_lease_state(lease, inc->name, le_clock());

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
		if (!le_history_lock(store, election->name, lease->term, &history))
			return false;
		end_term(&change, history, REASON_DROPPED, NULL, at);
	}
	foreach_ptr(const Candidate, c, le_candidates_read(store, election->name))
	{
		if (!le_candidate_withdraw(store, c))
			return false;
	}

	/* The lease comes last: while it is there, the caller can try again. */
	if (!le_dropped_note(store, election->name,
						 Max(lease->term, lease->after_term)) ||
		!le_drain_drop(store, election->name) ||
		!le_election_delete(store, election->name) ||
		!le_lease_delete(store, election->name))
		return false;
	le_seats_touch(election->name);
	le_commit_change(store, &change);
	return true;
}
