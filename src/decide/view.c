/*-------------------------------------------------------------------------
 *
 * view.c
 *		Reading what a decision about an election rests on: a View, for the
 *		rules.
 *
 * No other file reads one.  A process that decides reads a View before it has
 * the locks, to see whether anything is due, and another one under the locks.
 * What a View has read late is as old as the View says: it is not to be kept
 * for another decision.
 *
 * Invariant: this file writes nothing, and locks nothing but to see who is
 * alive.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"

/* A View, and what it is read from */
typedef struct Reading
{
	View		view;			/* the first member */
	const Election *election;
	const Lease *lease;			/* NULL: who leads does not matter */
	const Candidate *caller;	/* NULL: no candidate's call */
	const Drains *drains;		/* of the election, once they are known */
	bool		knows_drains;
	Tally	  **tally;			/* NULL: that of this process */
	MemoryContext context;		/* of *tally */
} Reading;

/*
 * A candidate, as the rules see it.
 */
void
le_view_show(const View *view, Candidate *c, Contender *contender)
{
	const Reading *r = (const Reading *) view;

	memset(contender, 0, sizeof(Contender));
	contender->candidate = c;
	contender->name = c->candidate;
	contender->detached = c->session_id == 0;
	contender->rank = c->rank;
	contender->progress = c->progress;
	contender->place = c->place;
	contender->stood = c->stood;
	contender->lives_until = c->seen + c->seen_for;
	contender->defers = c->defers;
	contender->weight = 1;
	contender->calls = r->caller != NULL && le_candidate_is_same(c, r->caller);
	if (r->lease == NULL)
		return;
	contender->sits_out = le_candidate_sits_out(c, r->lease);
	contender->holds = le_candidate_leads(c, r->lease);
	contender->succeeds = le_candidate_succeeds(c, r->lease);
}

static Contender *
make_contender(const View *view, Candidate *c)
{
	Contender  *contender = palloc(sizeof(Contender));

	le_view_show(view, c, contender);
	return contender;
}

static void
read_contenders(View *view)
{
	Reading    *r = (Reading *) view;
	List	   *candidates = le_candidates_read(r->election->name);

	view->contenders = palloc(Max(list_length(candidates), 1) *
							  sizeof(Contender));
	foreach_ptr(Candidate, c, candidates)
		le_view_show(view, c, &view->contenders[view->ncontenders++]);
	list_free(candidates);
}

static Contender *
read_successor(View *view)
{
	Reading    *r = (Reading *) view;
	Candidate  *c = le_candidate_find(r->election->name, r->lease->successor);

	return c != NULL && le_candidate_succeeds(c, r->lease) ?
		make_contender(view, c) : NULL;
}

static void
count(View *view)
{
	Reading    *r = (Reading *) view;
	Tally	   *tally;

	if (r->tally == NULL)
		tally = le_spread_now();
	else
	{
		if (*r->tally == NULL)
		{
			*r->tally = le_tally_make(r->context);
			le_tally_count(*r->tally, NULL);
		}
		tally = *r->tally;
	}
	le_spread_tell(tally, r->election, r->lease, view);
}

static bool
test(View *view, const Contender *c, Trait trait)
{
	Reading    *r = (Reading *) view;

	switch (trait)
	{
		case TRAIT_ALIVE:
			return le_candidate_alive(c->candidate);
		case TRAIT_DRAINED:
			if (!r->knows_drains)
				r->drains = le_drain_read(r->election->name);
			r->knows_drains = true;
			return le_drain_covers(r->drains, c->name);
		case TRAIT_FULL:
			return le_cap_bars(r->election, c->candidate, false);
		case TRAIT_FULL_WITHOUT_DUE:
			return le_cap_bars(r->election, c->candidate, true);
		case TRAIT_ADMITTED:
			return le_election_admits(r->election, &c->candidate->role);
	}
	return false;
}

static const ViewReader reader = {read_contenders, read_successor, count, test};

static void
read_lease(View *view, const Lease *lease, bool all)
{
	view->vacant = lease->leader == NULL;
	view->yielding = lease->yielding;
	view->yield_ordered = lease->yield_ordered;
	view->names_successor = lease->successor != NULL;
	view->held = lease->held;
	if (!view->vacant)
		view->holder = make_contender(view, le_candidate_of_lease(lease));
	if (!view->vacant || !all)
		return;
	view->reserved_since = le_lease_reserved_since(lease);
	view->reserved_until = le_lease_reserved_mono(lease);
	view->deserted = lease->deserted;
	view->first_stood = le_lease_first_stood(lease);
}

/*
 * What is known of an election at that moment.  caller: the candidate in whose
 * own call this is decided; NULL: none.  lease and inc are NULL if only those
 * who stand matter.  If inc is not, the tables epoch, pause_all and (for the
 * seat of a group) election_group are read, too.
 */
View *
le_view_read(const Election *election, const Lease *lease,
			 const Incarnation *inc, int64 now, const Candidate *caller)
{
	Reading    *r = palloc0(sizeof(Reading));
	View	   *view = &r->view;
	const Pause *pause;

	r->election = election;
	r->lease = lease;
	r->caller = caller;
	view->now = now;
	view->reader = &reader;
	view->strategy = le_strategy(election->strategy);
	view->quorum = election->quorum;
	view->preempt_delay = election->preempt_delay;
	view->initial_delay = election->initial_delay;
	if (lease != NULL)
		read_lease(view, lease, inc != NULL);
	if (lease == NULL || inc == NULL)
		return view;
	view->grace = le_lease_grace(lease, election->lease_duration, inc);
	view->not_before = le_lease_not_before(lease, inc);
	view->withdrawn = le_group_withdraws(le_group_of(election),
										 election->name);
	pause = le_pause_now(election, inc, &view->paused_until);
	view->paused = pause != NULL;
	view->pause_vacates = pause != NULL && pause->vacates;
	return view;
}

/*
 * Let the View, which is an observer's, count what candidates lead once for a
 * query: *tally is made if it was not yet, in memory that is freed with
 * context.
 */
void
le_view_count_once(View *view, Tally **tally, MemoryContext context)
{
	Reading    *r = (Reading *) view;

	r->tally = tally;
	r->context = context;
}

/*
 * Count what the candidates lead, if the next choice needs that, before the
 * election lock is taken: the more elections there are, the longer counting
 * takes, and other processes would wait for the lock.  passes_holder: the
 * holder is about to give up.  True if they were counted now.
 */
bool
le_view_count_ahead(const Election *election,
					const Lease *lease, bool passes_holder)
{
	View	   *view;

	if (!le_strategy(election->strategy)->counts || le_spread_is_counted())
		return false;
	view = le_view_read(election, lease, NULL, le_clock(), NULL);
	view->passes_holder = passes_holder;
	if (!le_ranking_is_contested(view))
		return false;
	(void) le_spread_now();
	return true;
}

/*
 * The candidate that a leader or an operator has named as the next leader, who
 * may sit out.  LE005: it does not stand, or may not be elected.
 */
Contender *
le_view_named(View *view, const char *name)
{
	Reading    *r = (Reading *) view;
	const Election *election = r->election;
	Candidate  *c = le_candidate_find(election->name, name);
	Contender  *named = c != NULL ? make_contender(view, c) : NULL;

	if (le_group_withdraws(le_group_of(election), election->name))
		ereport(ERROR,
				(errcode(ERRCODE_LE_NOT_A_CANDIDATE),
				 errmsg("nobody is elected in \"%s\" any more", election->name),
				 errdetail("Group \"%s\" has fewer seats by now.",
						   election->group)));
	switch (named != NULL ? le_eligible(view, named) : NOT_ALIVE)
	{
		case NOT_ALIVE:
		case NOT_ADMITTED:
			ereport(ERROR,
					(errcode(ERRCODE_LE_NOT_A_CANDIDATE),
					 errmsg("\"%s\" is not a live candidate of election \"%s\"",
							name, election->name),
					 errhint("The view leader_election.candidates shows who stands.")));
			break;
		case NOT_IF_FULL:
			ereport(ERROR,
					(errcode(ERRCODE_LE_NOT_A_CANDIDATE),
					 errmsg("candidate \"%s\" has as many other seats of group \"%s\" as it may",
							name, election->group),
					 errhint("The table leader_election.election_group says how many that are (max_per_candidate).")));
			break;
		case NOT_IF_DRAINED:
			ereport(ERROR,
					(errcode(ERRCODE_LE_NOT_A_CANDIDATE),
					 errmsg("candidate \"%s\" of election \"%s\" is drained",
							name, election->name),
					 errhint("The table leader_election.drain shows what drains it; leader_election.undrain_candidate() ends that.")));
			break;
		case NOT_IN_TURN:
		case ELIGIBLE:
			break;
	}
	return named;
}
