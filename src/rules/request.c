/*-------------------------------------------------------------------------
 *
 * request.c
 *		What the rules ask of the leader: to make way for a better candidate,
 *		or to go because it is drained, the seat withdrawn, or the election
 *		paused.
 *
 * What an operator has ordered stands: the rules neither change it nor take it
 * back.  While the election is paused, nothing but the pause asks, and it does
 * not overwrite a request that names a candidate.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "rules/rules.h"

/*
 * Is the leader to go, whatever the strategy says?
 */
Request
le_request_unwanted(View *view)
{
	if (view->yield_ordered)
		return REQUEST_STAYS;
	if (view->paused)
		return view->pause_vacates && !view->names_successor ?
			REQUEST_PAUSED : REQUEST_STAYS;
	if (view->withdrawn)
		return REQUEST_WITHDRAWN;
	return le_contender_is(view, view->holder, TRAIT_DRAINED) ?
		REQUEST_DRAINED : REQUEST_STAYS;
}

/*
 * What is to become of the request to the leader?  *challenger is to whom it
 * is to yield, if it is to be REQUEST_PREEMPTED.  *next is when to ask again,
 * although nothing has changed; PG_INT64_MAX: never.
 */
Request
le_request(View *view, Contender **challenger, int64 *next)
{
	Request		unwanted = le_request_unwanted(view);

	*challenger = NULL;
	*next = PG_INT64_MAX;
	if (view->yield_ordered)
		return REQUEST_STAYS;
	if (view->paused)
		*next = view->paused_until;
	if (view->paused || unwanted != REQUEST_STAYS)
		return unwanted;
	*challenger = le_ranking_challenger(view, next);
	if (*challenger == NULL)
		return view->yielding ? REQUEST_TAKEN_BACK : REQUEST_STAYS;
	return !view->yielding || !(*challenger)->succeeds ?
		REQUEST_PREEMPTED : REQUEST_STAYS;
}
