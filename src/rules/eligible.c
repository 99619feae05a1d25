/*-------------------------------------------------------------------------
 *
 * eligible.c
 *		May this candidate be elected?
 *
 * Nothing else answers that: the code that elects, the worker's scan,
 * candidates.position, waiting_for and diagnose() all ask here.  Whether the
 * election may be filled at all is another question (vacancy.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "rules/rules.h"

/*
 * May the candidate be elected, if it is alive, where the election is due to
 * it: the election is reserved for it, or the leader is to yield to it?  Then
 * it does not matter whether it sits out.
 */
bool
le_eligible_if_due(View *view, Contender *c)
{
	return !le_contender_is(view, c, TRAIT_DRAINED) &&
		!le_contender_is(view, c, TRAIT_FULL_WITHOUT_DUE) &&
		le_contender_is(view, c, TRAIT_ADMITTED);
}

/*
 * Was the vacant election reserved for this candidate?  Not if it left, and
 * stood anew after that.
 */
bool
le_eligible_is_named(const View *view, const Contender *c)
{
	return view->vacant && c->succeeds && view->reserved_until != 0 &&
		c->place <= view->reserved_since;
}

/*
 * Is the candidate passed over: has it given up the last term, or a later one,
 * or does it with what is being decided?  So is a detached candidate that did
 * not call while the election was reserved for it.
 */
bool
le_eligible_sits_out(const View *view, const Contender *c)
{
	return c->sits_out || (view->passes_holder && c->holds) ||
		(c->detached && le_eligible_is_named(view, c) &&
		 view->now >= view->reserved_until);
}

/*
 * Why may the candidate not be elected?  All of this may have changed since it
 * stood.
 */
WhyNot
le_eligible(View *view, Contender *c)
{
	if (!le_contender_is(view, c, TRAIT_ALIVE))
		return NOT_ALIVE;
	if (le_contender_is(view, c, TRAIT_DRAINED))
		return NOT_IF_DRAINED;
	if (le_contender_is(view, c, TRAIT_FULL))
		return NOT_IF_FULL;
	if (!le_contender_is(view, c, TRAIT_ADMITTED))
		return NOT_ADMITTED;
	if (le_eligible_sits_out(view, c))
		return NOT_IN_TURN;
	return ELIGIBLE;
}
