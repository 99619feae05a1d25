/*-------------------------------------------------------------------------
 *
 * yield.c
 *		Asking the leader to yield, and taking that back.
 *
 * Invariant: a request changes no holder, and moves no deadline but in that
 * the lease is not renewed any more.  So the lock of the lease row is enough
 * for it: under that lock the row still says the term that was seen, and that
 * term is led.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"

static void
ask(const Store *store, const Election *election, Lease *lease,
	bool ordered, const Candidate *successor, const char *cause)
{
	Change		change = {.election = election->name,.term = lease->term,
	.leader = lease->leader,.yield = true};

	le_lease_yield(lease, true, ordered, successor, cause);
	le_seats_touch(election->name);
	le_commit_change(store, &change);
}

/*
 * Ask the leader to yield to a candidate (NULL: to any).  The lease is locked,
 * and led.
 */
void
le_yield_ask(const Store *store, const Election *election, Lease *lease,
			 bool ordered, const Candidate *successor)
{
	ask(store, election, lease, ordered, successor, NULL);
}

/*
 * Ask the leader to go because of what holds in the election (cause: a pause
 * that vacates the seat), which the history will tell.  The leader keeps its
 * place in line.  A request of an operator stays as it is, and so does a
 * request of the strategy, which names a candidate.  The lease is locked, and
 * led.
 */
void
le_yield_ask_to_vacate(const Store *store, const Election *election,
					   Lease *lease, const char *cause)
{
	if (!lease->yield_ordered && lease->successor == NULL)
		ask(store, election, lease, true, NULL, cause);
}

/*
 * May a strategy or a drain ask the leader of this lease to yield, or a
 * strategy take its request back?  Not if an operator has ordered a yield, and
 * not while the election is paused.
 */
static bool
is_open_to_rules(const Store *store, const Election *election,
				 const Lease *lease)
{
	int64		paused_until;

	return lease != NULL && !lease->yield_ordered &&
		le_lease_state_now(store, lease) == LEASE_LED &&
		le_pause_now(store, election, le_epoch_read(), &paused_until) == NULL;
}

/*
 * Lock the lease row that was seen, to ask its leader to yield, or no more.
 * The holder does not change, so that the row's lock is enough.  NULL: another
 * transaction has locked that row, or has changed it meanwhile, or has paused
 * the election: that is done under the row's lock.
 */
static Lease *
lock_seen(const Store *store, const Lease *seen)
{
	Lease	   *lease = le_lease_lock(store, seen->election);
	Election   *election;

	if (lease == NULL || lease->term != seen->term)
		return NULL;
	election = le_election_get(store, seen->election);
	return is_open_to_rules(store, election, lease) ? lease : NULL;
}

/*
 * Ask the leader to yield if it is drained, also if the strategy has asked it
 * to yield to a candidate.  The worker does that or, if there is none, the
 * leader's own call.  False: what was seen has changed, or a row is locked.
 */
bool
le_yield_ask_drained(const Store *store, const Election *election,
					 bool *changed)
{
	Lease	   *seen = le_lease_read(store, election->name, NULL);
	Lease	   *lease;

	*changed = false;
	if (!is_open_to_rules(store, election, seen) ||
		!le_drain_covers(le_drain_read(store, election->name), seen->leader))
		return true;
	lease = lock_seen(store, seen);
	if (lease == NULL)
		return false;
	ask(store, election, lease, true, NULL, LE_CAUSE_DRAINED);
	*changed = true;
	return true;
}

/*
 * Have the strategy ask the leader to yield, or take that back if the
 * candidate that it was to yield to stands no more or has no claim any more.
 * Only the worker does that.  False: what was seen has changed, or a row is
 * locked.
 */
bool
le_yield_preempt(const Store *store, const Election *election,
				 bool *changed)
{
	Lease	   *seen = le_lease_read(store, election->name, NULL);
	Lease	   *lease;
	Candidate  *challenger;

	*changed = false;
	if (!is_open_to_rules(store, election, seen))
		return true;
	challenger = le_ranking_challenger(store, election, seen);
	if (!le_ranking_preempts(seen, challenger))
		return true;
	lease = lock_seen(store, seen);
	if (lease == NULL)
		return false;
	if (challenger != NULL)
		le_yield_ask(store, election, lease, false, challenger);
	else
	{
		le_lease_yield(lease, false, false, NULL, NULL);
		le_seats_touch(election->name);
		le_commit_wakes_worker();
	}
	*changed = true;
	return true;
}
