/*-------------------------------------------------------------------------
 *
 * vacancy.c
 *		Why a seat is vacant, and until when.
 *
 * No other file computes that: the code that elects (settle.c), the worker,
 * which sleeps until then, and observers all ask here.
 *
 * Invariant: this file writes nothing, and locks nothing but to see who is
 * alive.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"

/*
 * The candidate of the row that names the successor of this lease; NULL: it
 * has gone, or may not be elected any more.
 */
static Candidate *
find_successor(const Store *store, const Election *election, const Lease *lease)
{
	Candidate  *c = le_candidate_find(store, lease->election, lease->successor);

	return c != NULL && le_candidate_succeeds(c, lease) &&
		le_ranking_admits(store, election, le_drain_read(store, election->name),
						  c, true) ?
		c : NULL;
}

/*
 * The candidate that an operator wants the leader of this lease to yield to;
 * NULL: none, or it is gone.  (Where the strategy has asked the leader to
 * yield, the strategy decides anew who follows.  Where the election is paused,
 * it decides nothing: what it has asked for is finished.)
 */
Candidate *
le_vacancy_successor(const Store *store, const Election *election,
					 const Lease *lease, bool paused)
{
	Candidate  *c;

	if (lease->successor == NULL || !(lease->yield_ordered || paused))
		return NULL;
	c = find_successor(store, election, lease);
	return c != NULL && le_candidate_alive(c) ? c : NULL;
}

/*
 * The lease is vacant and names a successor.  Is the seat kept for it still?
 * Not if that candidate left, and stood anew after the seat was reserved.
 */
static void
look_at_reservation(const Store *store, const Election *election,
					const Lease *lease, const Incarnation *inc, int64 now,
					Vacancy *v)
{
	int64		until = le_lease_reserved_mono(lease, inc->name);
	Candidate  *c = find_successor(store, election, lease);

	v->reserved = true;
	if (c == NULL || until == 0 || c->place > le_lease_reserved_since(lease))
		return;
	if (now >= until)
	{
		if (c->session_id == 0)
			v->absent = c;
		return;
	}
	if (!le_candidate_alive(c))
		return;
	v->kept_for = c;
	v->kept_until = until;
}

/*
 * Until when does the vacant seat wait for others to stand, too, because at
 * first nobody did?  0: it does not.  PG_INT64_MAX: when the first candidate
 * stood is not noted in the row yet.
 */
static int64
settles_until(const Election *election, const Lease *lease,
			  const Incarnation *inc)
{
	int64		first_stood = le_lease_first_stood(lease, inc->name);

	if (!lease->unsettled || election->settle == 0)
		return 0;
	return first_stood != 0 ? first_stood + election->settle : PG_INT64_MAX;
}

/*
 * What is missing among those who stand?  settles: the seat is not filled
 * yet, so that others can stand, too.
 */
static Obstacle
missing(const Election *election, const Turnout *turnout, bool settles)
{
	if (turnout->live == 0)
		return OBSTACLE_NO_CANDIDATES;
	if (turnout->live < election->quorum)
		return OBSTACLE_QUORUM;
	if (settles)
		return OBSTACLE_SETTLE;
	if (turnout->ready == 0)
		return turnout->drained > 0 ? OBSTACLE_DRAINED :
			turnout->capped > 0 ? OBSTACLE_CAP : OBSTACLE_SITTING_OUT;
	if (turnout->told == 0 && !le_strategy(election)->reserves)
		return OBSTACLE_CALL;
	return OBSTACLE_NONE;
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
le_vacancy(const Store *store, const Election *election, const Lease *lease,
		   const Incarnation *inc, int64 now, const Turnout *turnout,
		   Vacancy *v)
{
	int64		grace = le_lease_grace(lease, election->lease_duration, inc);
	int64		not_before = le_lease_not_before(lease, inc);
	bool		vacant = lease->leader == NULL;
	bool		withdrawn = le_group_withdraws(le_group_of(store, election),
											   election->name);
	int64		settled_at = 0;
	int64		paused_until;

	memset(v, 0, sizeof(Vacancy));
	v->pause = le_pause_now(store, election, inc, &paused_until);
	v->barred_until = vacant ? Max(grace, not_before) : grace;
	if (vacant && lease->successor != NULL)
		look_at_reservation(store, election, lease, inc, now, v);

	/* A candidate that was named, or elected, does not wait for others. */
	if (vacant && v->kept_for == NULL && !withdrawn)
		settled_at = settles_until(election, lease, inc);
	v->note_first_at = settled_at == PG_INT64_MAX ? grace : PG_INT64_MAX;
	if (settled_at != PG_INT64_MAX)
		v->barred_until = Max(v->barred_until, settled_at);
	if (withdrawn)
	{
		v->obstacle = OBSTACLE_WITHDRAWN;
		v->kept_for = v->absent = NULL;
	}

	/* A hand-over that is under way is finished. */
	else if (v->pause != NULL && v->kept_for == NULL)
	{
		v->obstacle = OBSTACLE_PAUSED;
		if (vacant)
			v->barred_until = Max(v->barred_until, paused_until);
	}
	else if (grace == PG_INT64_MAX)
		v->obstacle = OBSTACLE_EPOCH;
	else if (grace > now)
		v->obstacle = OBSTACLE_GRACE;
	else if (not_before > now)
		v->obstacle = lease->held ? OBSTACLE_HOLD : OBSTACLE_TAKEOVER_DELAY;
	else if (v->kept_for != NULL)
		v->obstacle = OBSTACLE_RESERVED;
	else if (turnout != NULL)
		v->obstacle = missing(election, turnout, settled_at > now);
}

/*
 * When is the seat to be settled: a leader to be elected, a lease of another
 * incarnation to be ended, a reservation to be lifted, or the first candidate
 * to be noted?  PG_INT64_MAX: not
 * before another candidate stands, or a detached one calls.
 */
int64
le_vacancy_due(const Election *election, const Lease *lease,
			   const Turnout *turnout, const Vacancy *v)
{
	int64		due = v->barred_until;

	if (v->obstacle == OBSTACLE_WITHDRAWN)
		return due;				/* to be dropped, if it is vacant */
	if (v->reserved && v->kept_for == NULL)
		return 0;
	if (v->note_first_at != PG_INT64_MAX && turnout->live > 0)
		return v->note_first_at;
	if (v->kept_for != NULL && turnout->live < election->quorum)
		return v->kept_until;
	if (lease->leader == NULL && v->kept_for == NULL &&
		missing(election, turnout, false) != OBSTACLE_NONE)
		return PG_INT64_MAX;

	/*
	 * A session is elected as soon as nothing bars it.  A detached candidate
	 * may call until the seat is kept no more, or until the candidate counts
	 * as dead.
	 */
	if (v->kept_for != NULL && v->kept_for->session_id == 0)
		due = Max(due, Min(v->kept_until,
						   v->kept_for->seen + v->kept_for->seen_for));
	return due;
}
