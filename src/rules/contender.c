/*-------------------------------------------------------------------------
 *
 * contender.c
 *		Asking for what a View has not read yet.
 *
 * Invariant: what was asked once does not change any more in this View.  So a
 * session is tested once for a decision, however many rules ask for it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "rules/rules.h"

#define SET_OF(trait)	(1U << (trait))

/*
 * Find the holder and the successor among those who stand.
 */
void
le_contenders_find(View *view)
{
	view->knows_successor = true;
	view->successor = NULL;
	for (int i = 0; i < view->ncontenders; i++)
	{
		Contender  *c = &view->contenders[i];

		if (c->holds)
			view->holder = c;
		if (c->succeeds)
			view->successor = c;
	}
}

/*
 * See to it that the View has those who stand.
 */
void
le_contenders_read(View *view)
{
	const Contender *alone = view->successor;

	if (view->is_read)
		return;
	view->is_read = true;
	view->reader->read(view);
	le_contenders_find(view);

	/* The successor may have been read alone, and have been asked. */
	if (alone != NULL && view->successor != NULL)
	{
		view->successor->asked = alone->asked;
		view->successor->has = alone->has;
	}
}

/*
 * The successor that the lease row names, to whom the leader is to yield or
 * for whom the vacant election is reserved; NULL: there is none, or it stands
 * no more.
 */
Contender *
le_contender_successor(View *view)
{
	if (!view->knows_successor)
		view->successor = view->names_successor ?
			view->reader->read_successor(view) : NULL;
	view->knows_successor = true;
	return view->successor;
}

/*
 * Has the candidate that trait?
 */
bool
le_contender_is(View *view, Contender *c, Trait trait)
{
	if ((c->asked & SET_OF(trait)) == 0)
	{
		c->asked |= SET_OF(trait);
		if (view->reader->test(view, c, trait))
			c->has |= SET_OF(trait);
	}
	return (c->has & SET_OF(trait)) != 0;
}
