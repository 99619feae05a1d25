/*-------------------------------------------------------------------------
 *
 * yield.c
 *		Asking the leader to yield, taking that back, and keeping a vacant
 *		election for a candidate that an operator has named.
 *
 * Invariants:
 *
 * - A request changes no holder, and moves no deadline but in that the lease
 *	 is not renewed any more.  So the lock of the lease row is enough for it:
 *	 under that lock the row still says the term that was seen, and that term
 *	 is led.
 *
 * - What the rules ask (a strategy, a drain, a pause) is asked under the
 *	 election lock in Share mode.  A pause, and a drain of one election, are
 *	 written under that lock in Exclusive mode: so no request that was decided
 *	 without them is told after they are committed, nor one because of them
 *	 after they have ended.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"

static const char *const causes[] = {
	[REQUEST_PAUSED] = LE_CAUSE_PAUSED,
	[REQUEST_WITHDRAWN] = LE_CAUSE_WITHDRAWN,
	[REQUEST_DRAINED] = LE_CAUSE_DRAINED,
};

/*
 * Ask the leader to yield to a candidate (NULL: to any).  ordered: an operator
 * has called or, by cause, something else than the strategy asks.  The lease is
 * locked, and led.
 */
void
le_yield_ask(const Election *election, Lease *lease,
			 bool ordered, const Candidate *successor, const char *cause)
{
	Change		change = {.election = election->name,.term = lease->term,
	.leader = lease->leader,.yield = true};

	Assert(lease->row != NULL && lease->leader != NULL);
	le_lease_yield(lease, true, ordered, successor, cause);
	le_spread_touch(election->name);
	le_commit_change(&change);
}

/*
 * Ask the leader to go because of a pause that vacates the election, which the
 * history will tell.  The leader keeps its queue position.  A request of an
 * operator stays as it is, and so does a request of the strategy, which names a
 * candidate.  The lease is locked, and led.
 */
void
le_yield_ask_for_pause(const Election *election, Lease *lease)
{
	if (!lease->yield_ordered && lease->successor == NULL)
		le_yield_ask(election, lease, true, NULL, causes[REQUEST_PAUSED]);
}

/*
 * May a strategy, a drain or a pause ask the leader of this lease to yield?
 * Not if an operator has ordered a yield.
 */
static bool
is_open(const Lease *lease)
{
	return lease != NULL && !lease->yield_ordered &&
		le_lease_state_now(lease) == LEASE_LED;
}

/*
 * Have the rules ask the leader to yield: if it is drained or the seat is
 * withdrawn, also if the strategy has asked it to yield to a candidate, or if
 * the election is paused so that nobody leads it; else if the strategy wants
 * another leader.  Or have the strategy take its request back, if the candidate
 * that the leader was to yield to stands no more or has no claim any more.
 *
 * The worker does that or, if there is none, the leader's own call, in which
 * the strategy is not asked (next is NULL).  *next is when it may be due again,
 * with nothing having changed (monotonic).  False: what was seen has changed,
 * or a row is locked.
 */
bool
le_yield_request(const Election *election, bool *changed, int64 *next)
{
	Lease	   *seen = le_lease_read(election->name, NULL);
	Lease	   *lease;
	Contender  *challenger = NULL;
	View	   *view;
	Request		request;

	Assert(le_lock_holds_mutex(LOCK_ELECTION, election->name, ShareLock));
	*changed = false;
	if (!is_open(seen))
		return true;
	view = le_view_read(election, seen, le_epoch_read(), le_clock(), NULL);
	request = next == NULL ? le_request_unwanted(view) :
		le_request(view, &challenger, next);
	if (request == REQUEST_STAYS)
		return true;
	lease = le_lease_lock(election->name);
	if (lease == NULL || lease->term != seen->term || !is_open(lease))
		return false;
	if (request == REQUEST_TAKEN_BACK)
	{
		le_lease_yield(lease, false, false, NULL, NULL);
		le_spread_touch(election->name);
		le_commit_wakes_worker();
	}
	else if (request == REQUEST_PREEMPTED)
		le_yield_ask(election, lease, false, challenger->candidate, NULL);
	else
		le_yield_ask(election, lease, true, NULL, causes[request]);
	*changed = true;
	return true;
}

/*
 * Keep the vacant election of a paused election for a candidate that an
 * operator has named, as a transfer to it would: a hold or a takeover delay
 * binds.  The caller holds the election lock, and that of its group, and the
 * lease is locked.
 */
void
le_yield_reserve(const Election *election, Lease *lease,
				 const Incarnation *inc, const Candidate *successor)
{
	Assert(lease->row != NULL && lease->leader == NULL);
	Assert(le_lock_holds_mutex(LOCK_ELECTION, election->name, ExclusiveLock));
	Assert(le_cap_is_locked(election));
	le_lease_vacate(lease, le_lease_not_before(lease, inc), lease->held,
					successor, election->lease_duration, lease->deserted,
					le_lease_first_stood(lease));
	le_lease_write(lease);
	le_spread_touch(election->name);
	le_commit_wakes_worker();
}
