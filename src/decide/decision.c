/*-------------------------------------------------------------------------
 *
 * decision.c
 *		What is to be done about an election whose term is over, or is given up,
 *		or which is vacant: a View is read, and the rules are asked.
 *
 * Invariant: this file writes nothing.  settle.c, which has the locks, checks
 * and writes what was decided.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"

/*
 * Why does this leadership end?
 */
Reason
le_decision_reason(const Decision *d)
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
		case LEASE_STALE:
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
 * drain, it keeps its queue position.
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
	return d->state == LEASE_STALE ||
		(d->state == LEASE_EXPIRED && !d->lease->yielding);
}

/*
 * The election falls vacant, or has fallen so before anybody noticed.  Who
 * stood then, or has stood first since?
 */
void
le_decision_look_who_stands(Decision *d)
{
	int64		vacant_since = d->now;

	if (d->state == LEASE_EXPIRED)
		vacant_since = d->lease->deadline_mono;
	else if (d->state == LEASE_STALE)
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
		case LEASE_STALE:

			/*
			 * Where the row is void, its holder may believe for that long
			 * that it leads.
			 */
			if (le_lease_is_void(lease))
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
 * For which candidate is the election kept that falls vacant now?
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
 * Until when is nobody elected, for which candidate is the election kept, and
 * which candidate is passed over from now on?
 */
static int64
decide_vacancy(Decision *d, Contender **kept_for)
{
	Vacancy		v;
	bool		deserted;

	le_vacancy(d->view, NULL, &v);
	*kept_for = v.kept_for;
	d->sits_out = v.absent != NULL;
	if (d->sits_out)
		d->set_back = v.absent->candidate;
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
 * The same for an election that falls vacant now.
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
	if (d->election->initial_delay == 0 || *kept_for != NULL)
		return barred_until;
	le_decision_look_who_stands(d);
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
le_decision_is_held_up(const Election *election,
					   Lease *lease, const Candidate *caller)
{
	Election	at_once = *election;
	Decision	d = {.election = election,.lease = lease};
	Contender  *kept_for;

	d.inc = le_epoch_read();
	d.now = le_clock();
	d.state = le_lease_state(lease, d.now);
	if (d.state != LEASE_EXPIRED && d.state != LEASE_ORPHANED)
		return false;
	d.view = le_view_read(election, lease, d.inc, d.now, caller);
	if (d.view->withdrawn)
		return false;

	/*
	 * After a session that has ended, the delay begins when its term is
	 * ended.  If something holds that up, the next leader waits longer.
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
 * Decide who is elected now, for which candidate the election is kept, and who
 * is passed over from now on.
 */
void
le_decision_make(Decision *d, const Candidate *caller)
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
	d->view = le_view_read(d->election, d->lease, d->inc, d->now, caller);
	barred_until = d->state == LEASE_VACANT ?
		decide_vacancy(d, &kept_for) : decide_end(d, &kept_for);
	winner = le_vacancy_fill(d->view,
							 d->grants ? barred_until : PG_INT64_MAX,
							 &kept_for);
	if (d->state != LEASE_VACANT)
	{
		d->sits_out = d->view->passes_holder;
		d->loses = loses(d);
		if (d->sits_out || d->loses)
			d->set_back = d->view->holder->candidate;
	}
	if (kept_for != NULL)
		d->successor = kept_for->candidate;
	if (winner == NULL)
		return;
	d->winner = winner->candidate;
	if (winner->detached)
	{
		d->run = caller->run;
		d->request = caller->request;
	}
}
