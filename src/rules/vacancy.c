/*-------------------------------------------------------------------------
 *
 * vacancy.c
 *		Why an election is vacant, until when, and who fills it.
 *
 * No other file computes that: the code that elects (settle.c), the worker,
 * which sleeps until then, and observers all ask here.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "rules/rules.h"

/*
 * How many stand, and how many of them could be elected?
 */
void
le_vacancy_count(View *view, Turnout *turnout)
{
	memset(turnout, 0, sizeof(Turnout));
	le_contenders_read(view);
	for (int i = 0; i < view->ncontenders; i++)
	{
		Contender  *c = &view->contenders[i];
		WhyNot		why_not = le_eligible(view, c);

		turnout->live += why_not != NOT_ALIVE;
		turnout->drained += why_not == NOT_IF_DRAINED;
		turnout->capped += why_not == NOT_IF_FULL;
		turnout->ready += why_not == ELIGIBLE;
		turnout->told += why_not == ELIGIBLE && !c->detached;
	}
}

/*
 * The successor of the lease; NULL: there is none, or it may not be elected
 * any more.
 */
static Contender *
find_successor(View *view)
{
	Contender  *c = le_contender_successor(view);

	return c != NULL && le_eligible_if_due(view, c) ? c : NULL;
}

/*
 * The candidate that an operator wants the leader of this lease to yield to;
 * NULL: none, or it is gone.  (Where the strategy has asked the leader to
 * yield, the strategy decides anew who follows.  Where the election is paused,
 * it decides nothing: what it has asked for is finished.)
 */
Contender *
le_vacancy_successor(View *view)
{
	Contender  *c = view->yield_ordered || view->paused ?
		find_successor(view) : NULL;

	return c != NULL && le_contender_is(view, c, TRAIT_ALIVE) ? c : NULL;
}

/*
 * The lease is vacant and names a successor.  Is the election kept for it
 * still?
 */
static void
look_at_reservation(View *view, Vacancy *v)
{
	Contender  *c = find_successor(view);

	v->reserved = true;
	if (c == NULL || view->withdrawn || !le_eligible_is_named(view, c))
		return;
	if (view->now >= view->reserved_until)
		v->absent = c->detached ? c : NULL;
	else if (le_contender_is(view, c, TRAIT_ALIVE))
	{
		v->kept_for = c;
		v->kept_until = view->reserved_until;
	}
}

/*
 * Until when does the vacant election wait for others to stand, too, because at
 * first nobody did?  0: it does not.  PG_INT64_MAX: when the first candidate
 * stood is not noted in the row yet.
 */
static int64
others_until(const View *view)
{
	if (!view->deserted || view->initial_delay == 0)
		return 0;
	return view->first_stood != 0 ? view->first_stood + view->initial_delay :
		PG_INT64_MAX;
}

/*
 * What is missing among those who stand?  waits: the election is not filled
 * yet, so that others can stand, too.
 */
static Obstacle
missing(const View *view, const Turnout *turnout, bool waits)
{
	if (turnout->live == 0)
		return OBSTACLE_NO_CANDIDATES;
	if (turnout->live < view->quorum)
		return OBSTACLE_QUORUM;
	if (waits)
		return OBSTACLE_INITIAL_DELAY;
	if (turnout->ready == 0)
		return turnout->drained > 0 ? OBSTACLE_DRAINED :
			turnout->capped > 0 ? OBSTACLE_CAP : OBSTACLE_SITTING_OUT;
	if (turnout->told == 0 && !view->strategy->reserves)
		return OBSTACLE_CALL;
	return OBSTACLE_NONE;
}

/*
 * When does the obstacle end by itself?  Others may bar the election for longer.
 */
static int64
ends_at(const View *view, const Vacancy *v, int64 others_at)
{
	switch (v->obstacle)
	{
		case OBSTACLE_PAUSED:
			return view->paused_until;
		case OBSTACLE_GRACE:
			return view->grace;
		case OBSTACLE_HOLD:
		case OBSTACLE_TAKEOVER_DELAY:
			return view->not_before;
		case OBSTACLE_RESERVED:
			return v->kept_until;
		case OBSTACLE_INITIAL_DELAY:
			return others_at != PG_INT64_MAX ? others_at :
				view->now + view->initial_delay;
		default:
			return PG_INT64_MAX;
	}
}

/*
 * Why does nobody lead this election?  The first obstacle that applies, in the
 * order of their numbers.  turnout is NULL where it does not matter who
 * stands.
 *
 * The lease may still name a leader: it is led no more, or only on another
 * incarnation.
 */
void
le_vacancy(View *view, const Turnout *turnout, Vacancy *v)
{
	int64		others_at = 0;

	memset(v, 0, sizeof(Vacancy));
	v->barred_until = view->vacant ? Max(view->grace, view->not_before) :
		view->grace;
	if (view->vacant && view->names_successor)
		look_at_reservation(view, v);

	/* A candidate that was named, or elected, does not wait for others. */
	if (view->vacant && v->kept_for == NULL && !view->withdrawn)
		others_at = others_until(view);
	v->note_first_at = others_at == PG_INT64_MAX ? view->grace : PG_INT64_MAX;
	if (others_at != PG_INT64_MAX)
		v->barred_until = Max(v->barred_until, others_at);
	if (view->withdrawn)
		v->obstacle = OBSTACLE_WITHDRAWN;

	/* A hand-over that is under way is finished. */
	else if (view->paused && v->kept_for == NULL)
	{
		v->obstacle = OBSTACLE_PAUSED;
		if (view->vacant)
			v->barred_until = Max(v->barred_until, view->paused_until);
	}
	else if (view->grace == PG_INT64_MAX)
		v->obstacle = OBSTACLE_EPOCH;
	else if (view->grace > view->now)
		v->obstacle = OBSTACLE_GRACE;
	else if (view->not_before > view->now)
		v->obstacle = view->held ? OBSTACLE_HOLD : OBSTACLE_TAKEOVER_DELAY;
	else if (v->kept_for != NULL)
		v->obstacle = OBSTACLE_RESERVED;
	else if (turnout != NULL)
		v->obstacle = missing(view, turnout, others_at > view->now);
	v->obstacle_until = ends_at(view, v, others_at);
}

/*
 * When is the election to be settled: a leader to be elected, a lease of
 * another incarnation to be ended, a reservation to be lifted, or the first
 * candidate to be noted?  PG_INT64_MAX: not before another candidate stands,
 * or a detached one calls.
 */
int64
le_vacancy_due(const View *view, const Turnout *turnout, const Vacancy *v)
{
	int64		due = v->barred_until;

	if (v->obstacle == OBSTACLE_WITHDRAWN)
		return due;				/* to be dropped, if it is vacant */
	if (v->reserved && v->kept_for == NULL)
		return 0;
	if (v->note_first_at != PG_INT64_MAX && turnout->live > 0)
		return v->note_first_at;
	if (v->kept_for != NULL && turnout->live < view->quorum)
		return v->kept_until;
	if (view->vacant && v->kept_for == NULL &&
		missing(view, turnout, false) != OBSTACLE_NONE)
		return PG_INT64_MAX;

	/*
	 * A session is elected as soon as nothing bars it.  A detached candidate
	 * may call until the election is kept no more, or until the candidate
	 * counts as dead.
	 */
	if (v->kept_for != NULL && v->kept_for->detached)
		due = Max(due, Min(v->kept_until, v->kept_for->lives_until));
	return due;
}

/*
 * Who is elected now?  NULL: nobody.  *kept_for is for whom the election was
 * kept so far, and becomes for whom it is kept from now on: a detached
 * candidate is elected in its own call only.
 */
Contender *
le_vacancy_fill(View *view, int64 barred_until, Contender **kept_for)
{
	Contender  *winner = NULL;

	if (view->withdrawn)
		*kept_for = NULL;
	if (view->withdrawn || barred_until > view->now)
		return NULL;
	if (*kept_for == NULL && !view->paused)
		winner = le_ranking_first(view);
	else if (*kept_for != NULL && le_ranking_has_quorum(view))
		winner = *kept_for;
	if (winner == NULL || !winner->detached || winner->calls)
		return winner;
	*kept_for = winner;
	return NULL;
}
