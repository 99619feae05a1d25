/*-------------------------------------------------------------------------
 *
 * standing.c
 *		Who stands, as far as the background worker cares: it looks at all
 *		candidates, live or not, in steps.
 *
 * A role that may stand can fill the table of candidates.  A look at all of them
 * may take longer than other applications' leases last, so that it is made in
 * steps of some milliseconds.  In between, the worker looks at the leases and
 * renews them.  Nearly always the first step is the last one.
 *
 * Invariants:
 *
 * - A step begins after the row, in the order of the primary key, with which
 *	 the step before it has ended.  A row keeps its key, wherever its new versions
 *	 are: no candidate that stands all the time is missed or counted twice.
 *
 * - A row that is written while a look is under way is seen by that look or by the
 *	 next one: a wake-up meanwhile calls for another look.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "worker/worker.h"

#define STEP			(5 * MS)
#define CHECK_EVERY		64		/* rows, before another look at the clock */
#define MANY_DEAD		1000	/* in a step: they are removed first */

/* The look that is under way or, if it is over, was the last one */
static MemoryContext context = NULL;
static HTAB *standing;
static Oid	table = InvalidOid; /* that it looks at */
static bool under_way = false;
static bool in_step = false;	/* if that is left by an error: begin anew */
static bool again = false;		/* it may have missed something */
static int	steps;
static char *last_election;		/* the last row of the step before */
static char *last_candidate;
static int64 began_at;
static int64 prune_at;			/* when the first of them is dead, if known */

/* After a look of many steps: when to begin another one */
static int64 rest_until = 0;

/* A step */
typedef struct Step
{
	Pass	   *pass;
	int64		until;
	int			rows;
	bool		cut;			/* there are more rows */
	Standing   *recent;			/* whose row was the last one */
} Step;

static void
begin(const Store *store)
{
	HASHCTL		info;

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext,
										"leader_election standing",
										ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(context);
	memset(&info, 0, sizeof(info));
	info.keysize = LE_NAME_MAX + 1;
	info.entrysize = sizeof(Standing);
	info.hcxt = context;
	standing = hash_create("leader_election standing", 64, &info,
						   HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	table = store->table[TABLE_CANDIDATE].rel;
	under_way = true;
	again = false;
	steps = 0;
	last_election = last_candidate = NULL;
	began_at = le_clock();
	prune_at = PG_INT64_MAX;
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
		s->candidates = 0;
		s->sits_out = s->session_sits_out = PG_INT64_MAX;
	}
	step->recent = s;
	return s;
}

static void
note_dead(Pass *pass, const Candidate *c)
{
	MemoryContext old = MemoryContextSwitchTo(le_worker_context);
	Candidate  *dead = palloc0(sizeof(Candidate));

	dead->election = pstrdup(c->election);
	dead->candidate = pstrdup(c->candidate);
	dead->role = pstrdup(c->role);
	dead->session_id = c->session_id;
	pass->dead = lappend(pass->dead, dead);
	MemoryContextSwitchTo(old);
}

/*
 * One row.  False: enough for this step.
 */
static bool
note(const Candidate *c, void *arg)
{
	Step	   *step = arg;
	Standing   *s = find_or_make(step, c->election);
	bool		alive;

	s->candidates++;
	s->sits_out = Min(s->sits_out, c->sits_out);
	if (c->session_id != 0)
	{
		s->session_sits_out = Min(s->session_sits_out, c->sits_out);
		alive = le_led_alive(c->session_id);
	}
	else
	{
		alive = le_candidate_alive(c);
		prune_at = Min(prune_at, c->seen + c->seen_for);
	}
	if (!alive)
	{
		prune_at = Min(prune_at, le_clock());
		note_dead(step->pass, c);
	}

	if (++step->rows % CHECK_EVERY != 0 ||
		(le_clock() < step->until && list_length(step->pass->dead) < MANY_DEAD))
		return true;
	step->cut = true;
	last_election = MemoryContextStrdup(context, c->election);
	last_candidate = MemoryContextStrdup(context, c->candidate);
	return false;
}

/*
 * Look at the candidates, or at some more of them.  True: all have been looked
 * at, and le_standing_find() answers.  False: pass->next says when to go on.
 * pass->dead becomes those that this step has found dead.  The table is locked.
 */
bool
le_standing_look(const Store *store, Pass *pass)
{
	Step		step = {.pass = pass};

	if (in_step || table != store->table[TABLE_CANDIDATE].rel)
		under_way = false;
	if (!under_way && le_clock() < rest_until)
	{
		pass->next = Min(pass->next, rest_until);
		return false;
	}
	if (!under_way)
		begin(store);

	in_step = true;
	steps++;
	step.until = le_clock() + STEP;
	le_candidates_scan(store, last_election, last_candidate, note, &step);
	in_step = false;
	pass->work |= hash_get_num_entries(standing) > 0;
	if (step.cut)
	{
		pass->next = le_clock();
		return false;
	}
	under_way = false;
	if (prune_at != PG_INT64_MAX)
		pass->next = Min(pass->next, Max(prune_at, le_clock() + TIDY_PAUSE));
	if (steps > 1)
	{
		/* Others need the processor, too. */
		rest_until = le_clock() + (le_clock() - began_at);
		if (again)
			pass->next = Min(pass->next, rest_until);
	}
	return true;
}

/*
 * A wake-up may have gone unheard: if a look is under way, there is to be
 * another one.
 */
void
le_standing_look_again(void)
{
	again = true;
}

/*
 * Who stands in that election; NULL: nobody.  Only after a look at all of them.
 */
const Standing *
le_standing_find(const char *election)
{
	return hash_search(standing, election, HASH_FIND, NULL);
}
