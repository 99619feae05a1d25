/*-------------------------------------------------------------------------
 *
 * rules.c
 *		What src/rules answers to a case.
 *
 * Each question is asked of a View of its own, as by another process.  Two of
 * src/rules' promises are checked here: a trait is asked for once in a View,
 * and what a candidate leads is not looked at before it was counted.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "case.h"
#include "rules/rules.h"

#define NOW			1000000000	/* what the times of a case are relative to */
#define LATER		(NOW + 1000) /* when all that ends has ended */
#define RESERVED	1000		/* when it was: after all had stood */
#define UNKNOWN		(-1000000)	/* how many one leads, before it was counted */

static const Case *the_case;
static Contender who[MOST_CANDIDATES];	/* who stands in the View */
static Contender former;		/* the leader, as it was elected */
static unsigned asked[MOST_CANDIDATES]; /* sets of traits */

static int64
moment(int when)
{
	return when == NEVER ? PG_INT64_MAX : NOW + (int64) when;
}

/*
 * The number of a candidate; its name is made of it.
 */
static int
number_of(const Contender *c)
{
	return c == NULL ? NOBODY : c->name[0] - 'a';
}

static void
show(int i, Contender *c)
{
	static const char *const names[] = {"a", "b", "c"};
	const CaseCandidate *cc = &the_case->candidate[i];

	memset(c, 0, sizeof(Contender));
	c->name = names[i];
	c->detached = cc->detached;
	c->rank = cc->rank;
	c->progress = cc->progress;
	c->place = cc->place;
	c->stood = NOW + cc->stood;
	c->sits_out = cc->sits_out;
	c->defers = cc->gave_up;
	c->holds = i == the_case->leader;
	c->succeeds = i == the_case->successor;
	c->calls = i == the_case->caller;
	c->lives_until = PG_INT64_MAX;
	c->leads = UNKNOWN;
	c->weight = 1;
}

static void
read_contenders(View *view)
{
	view->ncontenders = the_case->candidates;
	view->contenders = who;
	for (int i = 0; i < view->ncontenders; i++)
		show(i, &who[i]);
}

static Contender *
read_successor(View *view)
{
	static Contender successor;

	show(the_case->successor, &successor);
	return &successor;
}

static void
count_one(Contender *c)
{
	c->leads = the_case->candidate[number_of(c)].leads;
	c->weight = the_case->candidate[number_of(c)].weight;
}

static void
count(View *view)
{
	for (int i = 0; i < view->ncontenders; i++)
		count_one(&view->contenders[i]);
	if (view->holder != NULL)
		count_one(view->holder);
}

static bool
test(View *view, const Contender *c, Trait trait)
{
	int			i = number_of(c);
	const CaseCandidate *cc = &the_case->candidate[i];

	/* The leader, as it was elected, is another row than the candidate. */
	if (c != &former)
	{
		if ((asked[i] & 1U << trait) != 0)
			case_complain("a trait was asked for twice");
		asked[i] |= 1U << trait;
	}
	switch (trait)
	{
		case TRAIT_ALIVE:
			return cc->alive;
		case TRAIT_DRAINED:
			return cc->drained;
		case TRAIT_FULL:
			return cc->full;
		case TRAIT_FULL_WITHOUT_DUE:
			return cc->full_without_due;
		case TRAIT_ADMITTED:
			return cc->may_stand;
	}
	return false;
}

static const ViewReader reader = {read_contenders, read_successor, count, test};

static View
make_view(const Case *c, int64 now)
{
	View		view = {.now = now};

	the_case = c;
	memset(asked, 0, sizeof(asked));
	view.reader = &reader;
	view.strategy = le_strategy(c->strategy);
	view.quorum = c->quorum;
	view.preempt_delay = c->preempt_delay;
	view.initial_delay = c->initial_delay;
	view.vacant = !c->led;
	view.yielding = c->yielding;
	view.yield_ordered = c->yielding && c->ordered;
	view.names_successor = c->successor != NOBODY;
	view.reserved_since = c->stood_anew ?
		c->candidate[c->successor].place - 1 : RESERVED;
	view.reserved_until = moment(c->reserved_until);
	view.not_before = c->not_before > 0 ? moment(c->not_before) : 0;
	view.held = c->held;
	view.deserted = c->waits;
	view.first_stood = moment(c->first_stood);
	view.grace = c->grace_until > 0 ? moment(c->grace_until) : 0;
	view.withdrawn = c->withdrawn;
	view.paused = c->paused && moment(c->paused_until) > now;
	view.paused_until = moment(c->paused_until);
	if (c->leader != NOBODY)
	{
		show(c->leader, &former);
		view.holder = &former;
	}
	return view;
}

static const CaseWhyNot why_nots[] = {
	[ELIGIBLE] = CASE_ELIGIBLE,
	[NOT_ALIVE] = CASE_DEAD,
	[NOT_IF_DRAINED] = CASE_DRAINED,
	[NOT_IF_FULL] = CASE_FULL,
	[NOT_ADMITTED] = CASE_NOT_ADMITTED,
	[NOT_IN_TURN] = CASE_SITS_OUT,
};

/*
 * What people are told that a vacant seat waits for.
 */
static CaseWaiting
waiting_for(Obstacle obstacle)
{
	CaseWaiting waiting = CASE_NOTHING;

	while (strcmp(le_obstacles[obstacle].word, reference_words[waiting]) != 0)
	{
		if (waiting++ == CASE_CALL)
		{
			case_complain("a word of waiting_for that the reference has not");
			return CASE_NOTHING;
		}
	}
	return waiting;
}

static void
answer_observers(const Case *c, Answer *answer)
{
	View		view = make_view(c, NOW);
	Contender **order;
	int			positions;

	le_contenders_read(&view);
	for (int i = 0; i < c->candidates; i++)
		answer->why_not[i] = why_nots[le_eligible(&view, &view.contenders[i])];

	view = make_view(c, NOW);
	order = le_ranking_order(&view, &positions);
	for (int i = 0; i < positions; i++)
		answer->position[number_of(order[i])] = i + 1;
	pfree(order);
}

/*
 * Could another candidate than the leader follow at once, or the leader itself if it
 * calls?  Who calls ends a time of sitting out by that.
 */
static void
check_follower(const Case *c, const Answer *answer)
{
	View		view = make_view(c, NOW);
	bool		follows = false;
	int			alive = 0;

	for (int i = 0; i < c->candidates; i++)
	{
		CaseWhyNot	why_not = answer->why_not[i];

		alive += c->candidate[i].alive;
		if (i == c->caller)
			follows |= why_not == CASE_ELIGIBLE || why_not == CASE_SITS_OUT;
		else
			follows |= why_not == CASE_ELIGIBLE && i != c->leader;
	}
	if (le_ranking_has_follower(&view) != (follows && alive >= c->quorum))
		case_complain("whether anybody could follow");
}

/*
 * Is anything to be done at that moment, if the worker looks: does a leader
 * follow, or is a reservation made or lifted, or the seat dropped?  *due is
 * when the worker wakes up for it.
 */
static bool
happens(const Case *c, int64 now, int64 *due)
{
	View		view = make_view(c, now);
	Turnout		turnout;
	Vacancy		v;
	Contender  *kept_for;

	le_vacancy_count(&view, &turnout);
	le_vacancy(&view, &turnout, &v);
	*due = le_vacancy_due(&view, &turnout, &v);

	view = make_view(c, now);
	le_vacancy(&view, NULL, &v);
	if (view.withdrawn)
		return v.barred_until <= now;
	kept_for = v.kept_for;
	return le_vacancy_fill(&view, v.barred_until, &kept_for) != NULL ||
		kept_for != v.kept_for || (v.reserved && v.kept_for == NULL);
}

/*
 * The worker sleeps until something is due, and no longer.  (The beginning of
 * an epoch wakes it.)
 */
static void
check_due(const Case *c)
{
	int64		due;
	int64		again;

	if (happens(c, NOW, &due))
	{
		if (due > NOW)
			case_complain("the worker sleeps, although something is due");
	}
	else if (due <= NOW)
		case_complain("the worker settles it in vain");
	else if (c->grace_until != NEVER &&
			 happens(c, due == PG_INT64_MAX ? LATER : due - 1, &again))
		case_complain("the worker sleeps for too long");
	else if (due != PG_INT64_MAX && !happens(c, due, &again))
		case_complain("the worker wakes up in vain");
}

static void
answer_vacant(const Case *c, Answer *answer)
{
	View		view = make_view(c, NOW);
	Turnout		turnout;
	Vacancy		v;
	Contender  *kept_for;

	le_vacancy_count(&view, &turnout);
	le_vacancy(&view, &turnout, &v);
	answer->waiting_for = waiting_for(v.obstacle);
	answer->until = v.obstacle_until == PG_INT64_MAX ? NEVER :
		(int) (v.obstacle_until - NOW);
	answer->dropped = view.withdrawn && c->caller == NOBODY &&
		v.barred_until <= NOW;

	view = make_view(c, NOW);
	le_vacancy(&view, NULL, &v);
	kept_for = v.kept_for;
	answer->elected = number_of(le_vacancy_fill(&view, v.barred_until,
												&kept_for));
	answer->kept_for = answer->elected == NOBODY ? number_of(kept_for) : NOBODY;
	if (c->caller == NOBODY)
		check_due(c);
}

/*
 * The worker sleeps until a request may have to be made, or taken back, and no
 * longer.
 */
static void
answer_led(const Case *c, Answer *answer)
{
	View		view = make_view(c, NOW);
	Contender  *challenger;
	int64		next;
	int64		after;
	Request		request = le_request(&view, &challenger, &next);

	answer->challenger = number_of(challenger);
	view = make_view(c, next == PG_INT64_MAX ? LATER : next - 1);
	if (le_request(&view, &challenger, &after) != request ||
		number_of(challenger) != answer->challenger)
		case_complain("the worker sleeps for too long beside a leader");
}

void
rules_answer(const Case *c, Answer *answer)
{
	memset(answer, 0, sizeof(Answer));
	answer->elected = answer->kept_for = answer->challenger = NOBODY;
	answer->until = NEVER;
	answer_observers(c, answer);
	check_follower(c, answer);
	if (c->led)
		answer_led(c, answer);
	else
		answer_vacant(c, answer);
}

/* What PostgreSQL's headers, and src/rules, call of the server */

void *
palloc(Size size)
{
	return malloc(size);
}

void
pfree(void *pointer)
{
	free(pointer);
}

void
pg_qsort(void *base, size_t n, size_t size,
		 int (*compare) (const void *, const void *))
{
#undef qsort
	qsort(base, n, size, compare);
}

void
ExceptionalCondition(const char *condition,
#if PG_VERSION_NUM < 160000
					 const char *type,
#endif
					 const char *file, int line)
{
#undef fprintf
	fprintf(stderr, "%s:%d: failed assertion: %s\n", file, line, condition);
	abort();
}
