/*-------------------------------------------------------------------------
 *
 * ranking.c
 *		Who is next, and who challenges the leader: the strategies
 *		(strategy.c), applied to those who stand.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "rules/rules.h"

/*
 * Are there two who could be elected?  Otherwise there is nothing to choose,
 * and nothing to count.
 */
bool
le_ranking_is_contested(View *view)
{
	int			eligible = 0;

	le_contenders_read(view);
	for (int i = 0; i < view->ncontenders; i++)
	{
		Contender  *c = &view->contenders[i];

		if (!le_eligible_sits_out(view, c) &&
			le_eligible(view, c) == ELIGIBLE && ++eligible == 2)
			return true;
	}
	return false;
}

/*
 * Are enough candidates alive to elect one?  The caller knows that one of them
 * is, or finds out.
 */
bool
le_ranking_has_quorum(View *view)
{
	int			missing = view->quorum;

	if (missing <= 1)
		return true;
	le_contenders_read(view);
	for (int i = 0; i < view->ncontenders && missing > 0; i++)
	{
		if (le_contender_is(view, &view->contenders[i], TRAIT_ALIVE))
			missing--;
	}
	return missing <= 0;
}

/*
 * The leader of this lease leads no more.  Could another candidate follow it,
 * if need be in a call of its own?  Or the last leader itself, if it calls?
 */
bool
le_ranking_has_follower(View *view)
{
	le_contenders_read(view);
	for (int i = 0; i < view->ncontenders; i++)
	{
		Contender  *c = &view->contenders[i];
		WhyNot		why_not;

		if (!c->calls && (c->holds || le_eligible_sits_out(view, c)))
			continue;
		why_not = le_eligible(view, c);
		if (why_not == ELIGIBLE || (c->calls && why_not == NOT_IN_TURN))
			return le_ranking_has_quorum(view);
	}
	return false;
}

/*
 * Who stood for an election when it fell vacant?  If nobody did but the last
 * leader, whom the lease names still, *deserted is true, and the result is
 * since when somebody stands for it (0: nobody does).  Else the result is 0.
 */
int64
le_ranking_first_stood(View *view, int64 vacant_since, bool *deserted)
{
	int64		first_stood = 0;

	*deserted = true;
	le_contenders_read(view);
	for (int i = 0; i < view->ncontenders; i++)
	{
		Contender  *c = &view->contenders[i];
		int64		stood = Min(Max(c->stood, vacant_since), view->now);

		if (!le_contender_is(view, c, TRAIT_ALIVE))
			continue;
		if (c->stood <= vacant_since && !c->holds)
		{
			*deserted = false;
			return 0;
		}
		first_stood = first_stood == 0 ? stood : Min(first_stood, stood);
	}
	return first_stood;
}

/*
 * Who is next, NULL if nobody.  Candidates that may not be elected are passed
 * over, and so are those that sit out.  If nobody else is eligible, one that
 * sits out may still elect itself in its own call.  A detached candidate that
 * does not call is next only where the strategy reserves the election for it.
 */
Contender *
le_ranking_first(View *view)
{
	const Strategy *strategy = view->strategy;
	Contender  *winner = NULL;
	Contender  *last_resort = NULL;

	if (strategy->counts && le_ranking_is_contested(view))
		view->reader->count(view);
	le_contenders_read(view);

	/* What takes locks, to see who is alive, comes last. */
	for (int i = 0; i < view->ncontenders; i++)
	{
		Contender  *c = &view->contenders[i];

		if (le_eligible_sits_out(view, c))
		{
			if (c->calls)
				last_resort = c;
		}
		else if ((c->calls || !c->detached || strategy->reserves) &&
				 (winner == NULL || strategy->order(c, winner) < 0) &&
				 le_eligible(view, c) == ELIGIBLE)
			winner = c;
	}
	if ((winner == NULL && last_resort == NULL) ||
		!le_ranking_has_quorum(view))
		return NULL;
	if (winner != NULL)
		return winner;
	for (int i = 0; i < view->ncontenders; i++)
	{
		Contender  *c = &view->contenders[i];

		if (!le_eligible_sits_out(view, c) && le_eligible(view, c) == ELIGIBLE)
			return NULL;		/* it is detached, and has to call */
	}
	return le_eligible(view, last_resort) == NOT_IN_TURN ? last_resort : NULL;
}

/*
 * All who stand, live or not, in the order in which they would be elected, for
 * observers.  Those that sit out come last of those with a position, which are
 * the first ones (*positions); the others may not be elected.
 */
Contender **
le_ranking_order(View *view, int *positions)
{
	Contender **order;
	int			n = 0;

	/* those in each part of the order; all others are in the last one */
	static const WhyNot parts[] = {ELIGIBLE, NOT_IN_TURN};

	le_contenders_read(view);
	if (view->strategy->counts && view->ncontenders > 1)
		view->reader->count(view);
	order = palloc(Max(view->ncontenders, 1) * sizeof(Contender *));
	if (view->ncontenders > 1)
		qsort(view->contenders, view->ncontenders, sizeof(Contender),
			  view->strategy->order);
	le_contenders_find(view);	/* they have moved */
	for (int part = 0; part <= lengthof(parts); part++)
	{
		*positions = n;
		for (int i = 0; i < view->ncontenders; i++)
		{
			WhyNot		why_not = le_eligible(view, &view->contenders[i]);

			if (part < lengthof(parts) ? why_not == parts[part] :
				why_not != ELIGIBLE && why_not != NOT_IN_TURN)
				order[n++] = &view->contenders[i];
		}
	}
	return order;
}

/*
 * Has this candidate, which has a claim, stood for long enough to challenge
 * the leader?  Each new candidacy has to: one that crashes and comes back does
 * not disturb the leader each time.  If it has not, *next is when it will
 * have.
 */
static bool
has_stood(const View *view, const Contender *c, int64 *next)
{
	int64		since = c->stood + view->preempt_delay;

	if (view->preempt_delay == 0 || since <= view->now)
		return true;
	*next = Min(*next, since);
	return false;
}

/*
 * The candidate that the strategy wants the leader to yield to; NULL: none.
 * The lease is led.  Once the leader was asked to yield to a candidate, the
 * challenger stays the same for as long as it stands and still_preempts()
 * finds a claim.  *next is when to ask again, because another candidate will
 * have stood for long enough by then; PG_INT64_MAX: none will.
 */
Contender *
le_ranking_challenger(View *view, int64 *next)
{
	const Strategy *strategy = view->strategy;
	Contender  *challenger = NULL;
	Contender  *asked_for = NULL;

	*next = PG_INT64_MAX;
	if (strategy->preempts == NULL)
		return NULL;
	le_contenders_read(view);
	if (view->ncontenders == 0 ||
		(view->ncontenders == 1 && view->contenders[0].holds))
		return NULL;
	if (strategy->counts)
		view->reader->count(view);

	/* What takes locks, to see who is alive, comes last. */
	for (int i = 0; i < view->ncontenders; i++)
	{
		Contender  *c = &view->contenders[i];
		bool		asked;
		bool		claims;

		if (c->holds || le_eligible_sits_out(view, c))
			continue;
		asked = view->yielding && c->succeeds &&
			strategy->still_preempts(c, view->holder);
		claims = strategy->preempts(c, view->holder);
		if (!(asked || claims) || !has_stood(view, c, next))
			continue;
		if (asked && le_eligible_if_due(view, c) &&
			le_contender_is(view, c, TRAIT_ALIVE))
			asked_for = c;
		if (claims &&
			(challenger == NULL || strategy->order(c, challenger) < 0) &&
			le_eligible(view, c) == ELIGIBLE)
			challenger = c;
	}
	if ((asked_for == NULL && challenger == NULL) ||
		!le_ranking_has_quorum(view))
		return NULL;
	return asked_for != NULL ? asked_for : challenger;
}
