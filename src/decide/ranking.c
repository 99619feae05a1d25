/*-------------------------------------------------------------------------
 *
 * ranking.c
 *		Who is next, and whether the leader has to make way: the strategies
 *		(strategy.c), applied to those who stand.
 *
 * Invariant: this file writes nothing, and locks nothing but to see who is
 * alive.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"

/*
 * Is this candidate passed over: has it given up the last term, or a later
 * one?
 */
bool
le_candidate_sits_out(const Candidate *c, const Lease *lease)
{
	return c->sits_out >= lease->term;
}

/*
 * Could this candidate be elected, if it is alive and may stand?
 */
static bool
is_ready(const Candidate *c, const Lease *lease, const Candidate *passed_over)
{
	return !le_candidate_sits_out(c, lease) &&
		(passed_over == NULL || !le_candidate_is_same(c, passed_over));
}

/*
 * May it be elected, if it is alive: may it stand, is it not drained, and has
 * it not too many other seats of the group?  All of that may have changed
 * since it stood.  drains is of this election.  is_due: the seat is reserved
 * for the candidate, or the leader is to yield to it.
 */
bool
le_ranking_admits(const Store *store, const Election *election,
				  const Drains *drains, const Candidate *c, bool is_due)
{
	return !le_drain_covers(drains, c->candidate) &&
		!le_cap_bars(store, election, c, is_due) &&
		le_election_admits(election, &c->role);
}

/*
 * Does it live, and may it be elected?
 */
static bool
is_eligible(const Store *store, const Candidate *c, const Election *election,
			const Drains *drains)
{
	return le_candidate_alive(c) &&
		le_ranking_admits(store, election, drains, c, false);
}

/*
 * Are there two who could be elected?  Otherwise there is nothing to choose,
 * and nothing to count.
 */
static bool
is_contested(const Store *store, const Election *election,
			 const Drains *drains, const Lease *lease,
			 List *candidates, const Candidate *passed_over)
{
	int			eligible = 0;
	ListCell   *lc;

	foreach(lc, candidates)
	{
		Candidate  *c = lfirst(lc);

		if (is_ready(c, lease, passed_over) &&
			is_eligible(store, c, election, drains) && ++eligible == 2)
			return true;
	}
	return false;
}

/*
 * Count what the candidates lead, if the next choice needs that, before the
 * election lock is taken: the more elections there are, the longer counting
 * takes, and other processes would wait for the lock.  passed_over, unless
 * NULL, is about to give up.  True if they were counted now.
 */
bool
le_ranking_prepare(const Store *store, const Election *election,
				   const Candidate *passed_over)
{
	Lease	   *lease;

	if (!le_strategy(election)->counts || le_seats_are_counted())
		return false;
	lease = le_lease_read(store, election->name, NULL);
	if (lease == NULL ||
		!is_contested(store, election, le_drain_read(store, election->name), lease,
					  le_candidates_read(store, election->name), passed_over))
		return false;
	(void) le_seats_now(store);
	return true;
}

/*
 * All candidates of an election, live or not, in the order in which they would
 * be elected, for observers.  *seats are read if the strategy counts and they
 * were not yet, in memory that is freed with context.  Those that are passed
 * over come last, and are not elected.
 */
List *
le_ranking(const Store *store, const Election *election, const Drains *drains,
		   const Lease *lease, Seats **seats, MemoryContext context)
{
	const Strategy *strategy = le_strategy(election);
	List	   *candidates = le_candidates_read(store, election->name);
	List	   *ready = NIL;
	List	   *sitting_out = NIL;
	List	   *passed_over = NIL;
	ListCell   *lc;

	if (strategy->counts && list_length(candidates) > 1)
	{
		if (*seats == NULL)
			*seats = le_seats_read(store, context);
		le_seats_tell(*seats, election, lease, candidates);
	}
	list_sort(candidates, strategy->order);
	foreach(lc, candidates)
	{
		Candidate  *c = lfirst(lc);

		if (le_drain_covers(drains, c->candidate) ||
			(!le_candidate_leads(c, lease) &&
			 !le_ranking_admits(store, election, drains, c, false)))
			passed_over = lappend(passed_over, c);
		else if (le_candidate_sits_out(c, lease))
			sitting_out = lappend(sitting_out, c);
		else
			ready = lappend(ready, c);
	}
	return list_concat(list_concat(ready, sitting_out), passed_over);
}

/*
 * Are so many of these alive?
 */
static bool
are_alive(List *candidates, int quorum)
{
	ListCell   *lc;

	foreach(lc, candidates)
	{
		if (quorum <= 0)
			break;
		if (le_candidate_alive(lfirst(lc)))
			quorum--;
	}
	return quorum <= 0;
}

/*
 * Who stood for a seat when it fell vacant?  If nobody did but the last
 * leader, whom the lease names still, *unsettled is true, and the result is
 * since when somebody stands for it (monotonic; 0: nobody does).  Else the
 * result is 0.
 */
int64
le_ranking_first_stood(const Store *store, const Lease *lease,
					   int64 vacant_since, bool *unsettled)
{
	int64		first_stood = 0;
	int64		now = le_clock();
	ListCell   *lc;

	*unsettled = true;
	foreach(lc, le_candidates_read(store, lease->election))
	{
		Candidate  *c = lfirst(lc);
		int64		stood = Min(Max(c->stood, vacant_since), now);

		if (!le_candidate_alive(c))
			continue;
		if (c->stood <= vacant_since && !le_candidate_leads(c, lease))
		{
			*unsettled = false;
			return 0;
		}
		first_stood = first_stood == 0 ? stood : Min(first_stood, stood);
	}
	return first_stood;
}

/*
 * Has this candidate, which has a claim, stood for long enough to challenge
 * the leader?  Each new candidacy has to: one that crashes and comes back does
 * not disturb the leader each time.  If it has not, *next is when it will
 * have.
 */
static bool
has_stood(const Election *election, const Candidate *c, int64 *next)
{
	int64		since = c->stood + election->preempt_delay;

	if (election->preempt_delay == 0 || since <= le_clock())
		return true;
	*next = Min(*next, since);
	return false;
}

/*
 * The candidate that the strategy wants the leader to yield to; NULL: none.
 * The lease is led.  Once the leader was asked to yield to a candidate, the
 * challenger stays the same for as long as it stands and still_preempts()
 * finds a claim.  *next is when to ask again (monotonic), because another
 * candidate will have stood for long enough by then; PG_INT64_MAX: none will.
 */
Candidate *
le_ranking_challenger(const Store *store, const Election *election,
					  const Lease *lease, int64 *next)
{
	const Strategy *strategy = le_strategy(election);
	const Drains *drains;
	List	   *candidates;
	Candidate  *leader = NULL;
	ListCell   *challenger = NULL;
	Candidate  *asked_for = NULL;
	ListCell   *lc;

	*next = PG_INT64_MAX;
	if (strategy->preempts == NULL)
		return NULL;
	candidates = le_candidates_read(store, election->name);
	foreach(lc, candidates)
	{
		if (le_candidate_leads(lfirst(lc), lease))
			leader = lfirst(lc);
	}
	if (leader == NULL)
		leader = le_candidate_of_lease(lease);	/* a crash took its row */
	else if (list_length(candidates) == 1)
		return NULL;
	if (strategy->counts)
		le_seats_tell(le_seats_now(store), election, lease,
					  lcons(leader, list_copy(candidates)));
	drains = le_drain_read(store, election->name);

	/* What takes locks, to see who is alive, comes last. */
	foreach(lc, candidates)
	{
		Candidate  *c = lfirst(lc);
		bool		asked;
		bool		claims;

		if (c == leader || !is_ready(c, lease, NULL))
			continue;
		asked = lease->yielding && le_candidate_succeeds(c, lease) &&
			strategy->still_preempts(c, leader);
		claims = strategy->preempts(c, leader);
		if (!(asked || claims) || !has_stood(election, c, next))
			continue;
		if (asked && le_candidate_alive(c) &&
			le_ranking_admits(store, election, drains, c, true))
			asked_for = c;
		if (claims &&
			(challenger == NULL || strategy->order(lc, challenger) < 0) &&
			is_eligible(store, c, election, drains))
			challenger = lc;
	}
	if ((asked_for == NULL && challenger == NULL) ||
		!are_alive(candidates, election->quorum))
		return NULL;
	return asked_for != NULL ? asked_for : lfirst(challenger);
}

/*
 * Is the request to the leader to be changed: is it to yield to this
 * challenger instead of another candidate, or (NULL) not to yield any more?
 */
bool
le_ranking_preempts(const Lease *lease, const Candidate *challenger)
{
	if (challenger == NULL)
		return lease->yielding;
	return !lease->yielding || !le_candidate_succeeds(challenger, lease);
}

/*
 * Are enough candidates alive to elect one?  The caller knows that one of them
 * is.
 */
bool
le_ranking_has_quorum(const Store *store, const Election *election)
{
	return election->quorum <= 1 ||
		are_alive(le_candidates_read(store, election->name), election->quorum);
}

/*
 * The leader of this lease leads no more.  Could another candidate follow it,
 * if need be in a call of its own?  Or the last leader itself, if it calls
 * (caller, NULL: no candidate calls)?
 */
bool
le_ranking_has_follower(const Store *store, const Election *election,
						const Lease *lease, const Candidate *caller)
{
	List	   *candidates = le_candidates_read(store, election->name);
	const Drains *drains = le_drain_read(store, election->name);
	ListCell   *lc;

	foreach(lc, candidates)
	{
		Candidate  *c = lfirst(lc);

		if (((caller != NULL && le_candidate_is_same(c, caller)) ||
			 (!le_candidate_leads(c, lease) && is_ready(c, lease, NULL))) &&
			is_eligible(store, c, election, drains))
			return are_alive(candidates, election->quorum);
	}
	return false;
}

/*
 * Who is next, NULL if nobody.  Candidates that are drained, or have too many
 * other seats of the group, are passed over.  So are those that sit out, and
 * passed_over, which is about to (NULL: none). If nobody else is eligible, one
 * that sits out may still elect itself in its own call (caller, NULL: no
 * candidate's).  A detached candidate that does not call is next only where
 * the strategy reserves the seat for it.
 */
Candidate *
le_ranking_first(const Store *store, const Election *election,
				 const Lease *lease, const Candidate *caller,
				 const Candidate *passed_over)
{
	const Strategy *strategy = le_strategy(election);
	List	   *candidates = le_candidates_read(store, election->name);
	const Drains *drains = candidates != NIL ?
		le_drain_read(store, election->name) : NULL;
	ListCell   *winner = NULL;
	Candidate  *last_resort = NULL;
	ListCell   *lc;

	if (strategy->counts &&
		is_contested(store, election, drains, lease, candidates, passed_over))
		le_seats_tell(le_seats_now(store), election, lease, candidates);

	/* What takes locks, to see who is alive, comes last. */
	foreach(lc, candidates)
	{
		Candidate  *c = lfirst(lc);
		bool		calls = caller != NULL && le_candidate_is_same(c, caller);

		if (!is_ready(c, lease, passed_over))
		{
			if (calls)
				last_resort = c;
		}
		else if ((calls || c->session_id != 0 || strategy->reserves) &&
				 (winner == NULL || strategy->order(lc, winner) < 0) &&
				 is_eligible(store, c, election, drains))
			winner = lc;
	}
	if ((winner == NULL && last_resort == NULL) ||
		!are_alive(candidates, election->quorum))
		return NULL;
	if (winner != NULL)
		return lfirst(winner);
	foreach(lc, candidates)
	{
		Candidate  *c = lfirst(lc);

		if (is_ready(c, lease, passed_over) &&
			is_eligible(store, c, election, drains))
			return NULL;		/* it is detached, and has to call */
	}
	return is_eligible(store, last_resort, election, drains) ?
		last_resort : NULL;
}

/*
 * The candidate that a leader or an operator has named as the next leader.
 * LE005: it does not stand, or may not be elected.
 */
Candidate *
le_ranking_named(const Store *store, const Election *election,
				 const char *name)
{
	Candidate  *c = le_candidate_find(store, election->name, name);

	if (le_group_withdraws(le_group_of(store, election), election->name))
		ereport(ERROR,
				(errcode(ERRCODE_LE_NOT_A_CANDIDATE),
				 errmsg("nobody is elected in \"%s\" any more", election->name),
				 errdetail("Group \"%s\" has fewer seats by now.",
						   election->group)));
	if (c == NULL || !le_candidate_alive(c) ||
		!le_election_admits(election, &c->role))
		ereport(ERROR,
				(errcode(ERRCODE_LE_NOT_A_CANDIDATE),
				 errmsg("\"%s\" is not a live candidate of election \"%s\"",
						name, election->name),
				 errhint("The view leader_election.candidates shows who stands.")));
	if (le_cap_bars(store, election, c, false))
		ereport(ERROR,
				(errcode(ERRCODE_LE_NOT_A_CANDIDATE),
				 errmsg("candidate \"%s\" has as many other seats of group \"%s\" as it may",
						name, election->group),
				 errhint("The table leader_election.election_group says how many that are (max_per_candidate).")));
	if (le_drain_covers(le_drain_read(store, election->name), c->candidate))
		ereport(ERROR,
				(errcode(ERRCODE_LE_NOT_A_CANDIDATE),
				 errmsg("candidate \"%s\" of election \"%s\" is drained",
						name, election->name),
				 errhint("The table leader_election.drain shows what drains it; leader_election.undrain_candidate() ends that.")));
	return c;
}
