/*-------------------------------------------------------------------------
 *
 * ranking.c
 *		Who is next, and whether the leader has to make way: the strategies
 *		(strategy.c), applied to those who stand.
 *
 * Nothing is written here, and nothing is locked but to see who is alive.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "leader_election.h"

/*
 * Is this candidate passed over for now?
 */
bool
le_election_passes_over(const Candidate *c, const Lease *lease)
{
	return c->sits_out >= lease->term;
}

/* Who leads, or is about to lead, an election of a strategy that counts */
typedef struct Seat
{
	const char *election;
	const char *candidate;
	const char *role;
} Seat;

/*
 * The seats in all elections of a strategy.  A leader that was asked to yield
 * counts no more, whom it yields to does already.
 */
List *
le_seats_read(const Store *store, const char *strategy)
{
	char	   *incarnation = le_incarnation_name(store->lease);
	int64		now = le_clock();
	List	   *seats = NIL;
	ListCell   *lc;

	foreach(lc, le_elections_read(store))
	{
		Election   *election = lfirst(lc);
		Lease	   *lease;
		LeaseState	state;
		Seat	   *seat;

		if (strcmp(election->strategy, strategy) != 0 ||
			(lease = le_lease_read(store, election->name, NULL)) == NULL)
			continue;
		state = le_lease_state(lease, incarnation, now);
		seat = palloc0(sizeof(Seat));
		seat->election = lease->election;
		if (state == LEASE_LED && !lease->yielding)
		{
			seat->candidate = lease->leader;
			seat->role = lease->role;
		}
		else if (lease->successor != NULL &&
				 (state != LEASE_VACANT ||
				  le_lease_reserved_mono(lease, incarnation) > now))
		{
			seat->candidate = lease->successor;
			seat->role = lease->successor_role;
		}
		else
			continue;
		seats = lappend(seats, seat);
	}
	return seats;
}

/*
 * How many other elections does a candidate lead?
 */
static int
count_seats(const Candidate *c, List *seats)
{
	int			n = 0;
	ListCell   *lc;

	foreach(lc, seats)
	{
		Seat	   *seat = lfirst(lc);

		n += strcmp(seat->candidate, c->candidate) == 0 &&
			strcmp(seat->election, c->election) != 0 &&
			strcmp(seat->role, c->role) == 0;
	}
	return n;
}

/*
 * All candidates of an election, live or not, in the order in which they
 * would be elected.
 */
List *
le_election_order(const Store *store, const Election *election,
				  const Lease *lease)
{
	const Strategy *strategy = le_strategy(election->strategy);
	List	   *candidates = le_candidates_read(store, election->name);
	List	   *ready = NIL;
	List	   *sitting_out = NIL;
	ListCell   *lc;

	if (strategy->counts)
	{
		List	   *seats = le_seats_read(store, election->strategy);

		foreach(lc, candidates)
		{
			Candidate  *c = lfirst(lc);

			c->leads = count_seats(c, seats);
			c->led_at = le_history_led_at(store, c);
		}
	}
	list_sort(candidates, strategy->order);
	foreach(lc, candidates)
	{
		if (le_election_passes_over(lfirst(lc), lease))
			sitting_out = lappend(sitting_out, lfirst(lc));
		else
			ready = lappend(ready, lfirst(lc));
	}
	return list_concat(ready, sitting_out);
}

/*
 * Whom the strategy wants the leader to yield to; NULL: to nobody.  The lease
 * is led.  With seats (if the strategy counts), it is only told whether there
 * is anybody: any of them, at less cost.
 */
Candidate *
le_challenger(const Store *store, const Election *election,
			  const Lease *lease, List *seats)
{
	const Strategy *strategy = le_strategy(election->strategy);
	Preempts	preempts = lease->yielding ? strategy->still_preempts :
		strategy->preempts;
	List	   *candidates;
	Candidate  *leader = NULL;
	Candidate  *challenger = NULL;
	int			live = 0;
	ListCell   *lc;

	if (preempts == NULL)
		return NULL;
	if (seats == NIL)
		candidates = le_election_order(store, election, lease);
	else
		candidates = le_candidates_read(store, election->name);
	foreach(lc, candidates)
	{
		Candidate  *c = lfirst(lc);

		if (seats != NIL)
			c->leads = count_seats(c, seats);
		if (le_candidate_leads(c, lease))
			leader = c;
	}
	if (leader == NULL)
		leader = le_candidate_of_lease(lease);	/* a crash has emptied the table */
	foreach(lc, candidates)
	{
		Candidate  *c = lfirst(lc);

		if (!le_candidate_alive(c))
			continue;
		live++;
		if (challenger == NULL && c != leader &&
			!le_election_passes_over(c, lease) && preempts(c, leader))
			challenger = c;
	}
	return live >= election->quorum ? challenger : NULL;
}

/*
 * Must the leader be asked to yield to this challenger, or (NULL) to nobody any
 * more?  Once asked, it is not asked again for another one's sake as long as
 * the first is there.
 */
bool
le_is_to_preempt(const Lease *lease, const Candidate *challenger)
{
	return lease->yielding ? challenger == NULL : challenger != NULL;
}

/*
 * Are enough candidates alive to elect anybody?
 */
bool
le_has_quorum(const Store *store, const Election *election)
{
	int			missing = election->quorum;
	ListCell   *lc;

	foreach(lc, le_candidates_read(store, election->name))
	{
		if (missing > 0 && le_candidate_alive(lfirst(lc)))
			missing--;
	}
	return missing <= 0;
}

/*
 * Who is next, NULL if nobody.  Whoever sits out is passed over, and so is the
 * one that is about to (NULL for none); but if nobody else is eligible they may
 * elect themselves by their own call (caller, NULL for none).  A detached
 * candidate that does not call is next only where the strategy reserves the
 * seat for it.
 */
Candidate *
le_next_leader(const Store *store, const Election *election,
			   const Lease *lease, const Candidate *caller,
			   const Candidate *passed_over)
{
	bool		reserves = le_strategy(election->strategy)->reserves;
	Candidate  *winner = NULL;
	Candidate  *last_resort = NULL;
	bool		eligible = false;
	int			live = 0;
	ListCell   *lc;

	foreach(lc, le_election_order(store, election, lease))
	{
		Candidate  *c = lfirst(lc);
		bool		calls = caller != NULL && le_candidate_is_same(c, caller);

		if (winner != NULL && live >= election->quorum)
			break;
		if (!le_candidate_alive(c))
			continue;
		live++;
		if (le_election_passes_over(c, lease) ||
			(passed_over != NULL && le_candidate_is_same(c, passed_over)))
		{
			if (calls)
				last_resort = c;
			continue;
		}
		eligible = true;
		if (winner == NULL && (calls || c->session_id != 0 || reserves))
			winner = c;
	}
	if (live < election->quorum)
		return NULL;
	return eligible ? winner : last_resort;
}
