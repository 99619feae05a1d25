/*-------------------------------------------------------------------------
 *
 * standing.c
 *		Who stands, as far as the background worker needs to know: it scans
 *		all candidates, live or not, in steps.
 *
 * A role that may stand can fill the table of candidates.  A scan of all of
 * them may then take longer than the leases of other applications last.  So
 * the worker makes it in steps of some milliseconds, and in between scans
 * the leases and renews them.  Nearly always the first step is the last one.
 *
 * Invariants:
 *
 * - A step begins after the row, in the reverse order of the primary key, with
 *	 which the step before it ended.  An update moves a row within the table, but
 *	 never changes its key.  So a candidate that stands all the time is neither
 *	 missed nor counted twice.
 *
 * - A row that is written while a scan is under way is seen by that scan or by
 *	 the next one.  Who writes the row wakes the worker, and a wake-up during a
 *	 scan of several steps calls for another scan.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "worker/worker.h"

#define STEP			(5 * MS)
#define CHECK_EVERY		64		/* rows, before the step checks the clock */
#define MANY_DEAD		1000	/* found in a step: remove them first */

/* The scan that is under way or, if none is, the last one */
static MemoryContext context = NULL;	/* of all below */
static HTAB *standing;			/* of Standing */
static Oid	table = InvalidOid; /* OID of table candidate */
static bool under_way = false;
static bool in_step = false;	/* still true if an error has ended a step */
static bool has_missed = false; /* a passed row may have been written */
static int	steps;				/* of this scan, so far */
static char *last_election;		/* the last row of the step before */
static char *last_candidate;
static int64 began_at;
static int64 prune_at;			/* when the first one is or will be dead */

/* After a scan of many steps: when to begin another one */
static int64 rest_until = 0;

/* A step */
typedef struct Step
{
	Round	   *round;
	int64		until;
	int			rows;
	bool		cut;			/* there are more rows */
	Standing   *recent;			/* of the last row's election */
	Election	election;		/* what the rules need to know of that */
	View	   *view;			/* of that */
	MemoryContext context;		/* of the step */
} Step;

static void
begin_scan(void)
{
	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext,
										"leader_election standing",
										ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(context);
	standing = le_hash_make("leader_election standing", LE_NAME_MAX + 1,
							sizeof(Standing), HASH_STRINGS, context);
	table = le_store.table[TABLE_CANDIDATE].rel;
	under_way = true;
	has_missed = false;
	steps = 0;
	last_election = last_candidate = NULL;
	began_at = le_clock();
	prune_at = PG_INT64_MAX;
}

/*
 * Is that election a seat of a group?  All groups are remembered.
 */
static bool
is_seat(const char *election)
{
	return le_remembered.groups != NIL && le_seat_number(election) != 0 &&
		le_group_seat_read(election) != NULL;
}

/*
 * Begin with the candidates of another election.  The settings of all
 * elections would take too long to read: candidate_role is looked at where
 * somebody could be elected (upkeep.c).
 */
static void
begin_election(Step *step, Standing *s)
{
	MemoryContext row = MemoryContextSwitchTo(step->context);

	if (step->view != NULL)
		pfree(step->view);
	step->recent = s;
	step->election.name = s->election;
	step->election.group = s->is_seat ? le_seat_group(s->election) : NULL;
	step->election.strategy = "";
	step->election.candidate_role.name = "";
	step->view = le_view_read(&step->election, NULL, NULL, le_clock(), NULL);
	MemoryContextSwitchTo(row);
}

static Standing *
find_or_make(Step *step, const char *election)
{
	bool		found;
	Standing   *s = step->recent;

	if (s != NULL && strcmp(s->election, election) == 0)
		return s;
	s = hash_search(standing, election, HASH_ENTER, &found);
	if (!found)
	{
		s->candidates = s->live = s->drained = s->capped = 0;
		s->is_seat = is_seat(election);
		s->sits_out = s->session_sits_out = PG_INT64_MAX;
	}
	begin_election(step, s);
	return s;
}

/*
 * Whether the candidate sits out is not known before the lease has been read.
 */
static WhyNot
why_not_elected(Step *step, Candidate *c)
{
	MemoryContext row = MemoryContextSwitchTo(step->context);
	Contender	contender;
	WhyNot		why_not;

	le_view_show(step->view, c, &contender);
	why_not = le_eligible(step->view, &contender);
	MemoryContextSwitchTo(row);
	return why_not;
}

static void
note_dead(Round *round, const Candidate *c)
{
	MemoryContext old = MemoryContextSwitchTo(le_worker_context);
	Candidate  *dead = palloc0(sizeof(Candidate));

	dead->election = pstrdup(c->election);
	dead->candidate = pstrdup(c->candidate);
	dead->role.name = pstrdup(c->role.name);
	dead->role.oid = c->role.oid;
	dead->session_id = c->session_id;
	round->dead = lappend(round->dead, dead);
	MemoryContextSwitchTo(old);
}

/*
 * Note one candidate.  False: the step has to end.
 */
static bool
note_candidate(Step *step, const Candidate *c)
{
	Standing   *s = find_or_make(step, c->election);
	WhyNot		why_not = why_not_elected(step, unconstify(Candidate *, c));

	s->candidates++;
	s->live += why_not != NOT_ALIVE;
	s->drained += why_not == NOT_IF_DRAINED;
	s->capped += why_not == NOT_IF_FULL;
	if (why_not == ELIGIBLE)
	{
		s->sits_out = Min(s->sits_out, c->sits_out);
		if (c->session_id != 0)
			s->session_sits_out = Min(s->session_sits_out, c->sits_out);
	}
	if (c->session_id == 0)
		prune_at = Min(prune_at, c->seen + c->seen_for);
	if (why_not == NOT_ALIVE)
	{
		prune_at = Min(prune_at, le_clock());
		note_dead(step->round, c);
	}

	if (++step->rows % CHECK_EVERY != 0 ||
		(le_clock() < step->until && list_length(step->round->dead) < MANY_DEAD))
		return true;
	step->cut = true;
	last_election = MemoryContextStrdup(context, c->election);
	last_candidate = MemoryContextStrdup(context, c->candidate);
	return false;
}

/*
 * Note candidates, from where the last step has ended: the rest of that
 * election's, or (candidate NULL) of all elections before it.  False: the step
 * has to end.
 */
static bool
scan_candidates(Step *step, const char *candidate)
{
	RowScan    *scan = le_candidates_scan(last_election, candidate);
	bool		more = true;
	Candidate	c;

	while (more && le_candidate_next(scan, &c))
		more = note_candidate(step, &c);
	le_scan_end(scan);
	return more;
}

/*
 * Scan the candidates, or some more of them.  True: all have been scanned,
 * and le_standing_find() answers.  False: round->next says when to go on.
 * round->dead becomes the candidates that this step has found dead.  The table
 * is locked, and le_drain_remember() was called.
 */
bool
le_standing_scan(Round *round)
{
	Step		step = {.round = round,
	.context = CurrentMemoryContext};

	if (in_step || table != le_store.table[TABLE_CANDIDATE].rel)
		under_way = false;
	if (!under_way && le_clock() < rest_until)
	{
		round->next = Min(round->next, rest_until);
		return false;
	}
	if (!under_way)
		begin_scan();

	in_step = true;
	steps++;
	step.until = le_clock() + STEP;
	if (last_election == NULL || scan_candidates(&step, last_candidate))
		(void) scan_candidates(&step, NULL);
	in_step = false;
	round->work |= hash_get_num_entries(standing) > 0;
	if (step.cut)
	{
		round->next = le_clock();
		return false;
	}
	under_way = false;
	if (prune_at != PG_INT64_MAX)
		round->next = Min(round->next, Max(prune_at, le_clock() + TIDY_PAUSE));
	if (steps > 1)
	{
		/*
		 * Rest for as long as the scan took: others need the processor, too.
		 */
		rest_until = le_clock() + (le_clock() - began_at);
		if (has_missed)
			round->next = Min(round->next, rest_until);
	}
	return true;
}

/*
 * The worker was woken, or a wait of its own may have swallowed a wake-up.  If
 * a scan is under way, a row may have been written that its earlier steps have
 * passed: there is to be another scan.
 */
void
le_standing_scan_again(void)
{
	has_missed = true;
}

/*
 * Who stands in that election; NULL: nobody.  Only after a scan of all
 * candidates, that is, after le_standing_scan() was true.
 */
const Standing *
le_standing_find(const char *election)
{
	return hash_search(standing, election, HASH_FIND, NULL);
}
