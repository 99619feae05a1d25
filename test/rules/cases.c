/*-------------------------------------------------------------------------
 *
 * cases.c
 *		Enumerates cases, and compares what src/rules and reference.c answer.
 *
 * The cases come in sets.  Each set enumerates all values of what matters to
 * some rules, beside a few of the rest: all values of everything would be too
 * many.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "case.h"

#define MOST_TOLD	5			/* differences that are printed of a set */
#define LENGTH(array)	((int) (sizeof(array) / sizeof((array)[0])))

/* a loop over the values of an array */
#define EACH(i, array)	for (int i = 0; i < LENGTH(array); i++)
#define UP_TO(i, n)		for (int i = 0; i < (n); i++)

static bool only_first = false; /* difference: that is all to be known */
static const char *set;			/* that is enumerated */
static Case the_case;
static long cases = 0;
static long differences;		/* in this set */
static long answers_seen[3][16];	/* to see that each answer occurs */

static const char *const why_not_names[] = {
	"eligible", "dead", "drained", "full", "not admitted", "sits out"
};

static const char *const strategies[] = {
	"race", "lowest", "bully", "ring", "zab", "spread"
};

static void
print_candidate(int i, const CaseCandidate *c)
{
	printf("    %d: %s%s%s%s%s%s%s, rank %d, progress %d, place %d, stood %d, leads %d, weight %d\n",
		   i, c->detached ? "detached" : "session",
		   c->alive ? "" : ", dead", c->drained ? ", drained" : "",
		   c->may_stand ? "" : ", not admitted",
		   c->full_without_due ? ", full" : c->full ? ", full with due" : "",
		   c->sits_out ? ", sits out" : "", c->gave_up ? ", gave up" : "",
		   c->rank, c->progress, c->place, c->stood, c->leads, c->weight);
}

static void
print_case(const Case *c)
{
	printf("  %s, quorum %d, preempt_delay %d, initial_delay %d%s",
		   c->strategy, c->quorum, c->preempt_delay, c->initial_delay,
		   c->withdrawn ? ", withdrawn" : "");
	if (c->paused)
		printf(", paused until %d", c->paused_until);
	if (c->led)
		printf(", led by %d%s", c->leader, !c->yielding ? "" :
			   c->ordered ? ", ordered to yield" : ", asked to yield");
	else
		printf(", grace until %d, %s until %d, waits %d since %d",
			   c->grace_until, c->held ? "held" : "delayed", c->not_before,
			   c->waits, c->first_stood);
	printf(", successor %d until %d%s, caller %d\n", c->successor,
		   c->reserved_until, c->stood_anew ? ", stood anew" : "", c->caller);
	UP_TO(i, c->candidates)
		print_candidate(i, &c->candidate[i]);
}

static void
print_answer(const char *whose, const Answer *a, int candidates)
{
	printf("  %s:", whose);
	UP_TO(i, candidates)
		printf(" %s (%d),", why_not_names[a->why_not[i]], a->position[i]);
	printf(" waiting for %s until %d%s, elected %d, kept for %d, challenger %d\n",
		   reference_words[a->waiting_for], a->until,
		   a->dropped ? ", dropped" : "", a->elected, a->kept_for,
		   a->challenger);
}

/*
 * Something is wrong with the case at hand.
 */
void
case_complain(const char *what)
{
	if (differences++ >= MOST_TOLD)
		return;
	printf("not ok - %s: %s\n", set, what);
	print_case(&the_case);
	if (only_first)
		exit(1);
}

static bool
is_same(const Answer *a, const Answer *b, int candidates)
{
	UP_TO(i, candidates)
	{
		if (a->why_not[i] != b->why_not[i] || a->position[i] != b->position[i])
			return false;
	}
	return a->waiting_for == b->waiting_for && a->until == b->until &&
		a->dropped == b->dropped && a->elected == b->elected &&
		a->kept_for == b->kept_for && a->challenger == b->challenger;
}

static void
compare(void)
{
	const Case *c = &the_case;
	Answer		is;
	Answer		expected;

	cases++;
	reference_answer(c, &expected);
	rules_answer(c, &is);
	UP_TO(i, c->candidates)
		answers_seen[0][is.why_not[i]]++;
	answers_seen[1][is.waiting_for]++;
	answers_seen[2][(is.elected != NOBODY) + 2 * (is.kept_for != NOBODY) +
					4 * (is.challenger != NOBODY)]++;
	if (is_same(&is, &expected, c->candidates))
		return;
	case_complain("src/rules and the reference differ");
	if (differences <= MOST_TOLD)
	{
		print_answer("src/rules", &is, c->candidates);
		print_answer("reference", &expected, c->candidates);
	}
}

/*
 * A case of nothing special: a vacant seat, and so many sessions that stand.
 */
static Case *
begin_case(int candidates)
{
	Case	   *c = &the_case;

	memset(c, 0, sizeof(Case));
	c->strategy = "race";
	c->quorum = 1;
	c->candidates = candidates;
	c->leader = c->successor = c->caller = NOBODY;
	UP_TO(i, candidates)
	{
		c->candidate[i].alive = c->candidate[i].may_stand = true;
		c->candidate[i].place = i + 1;
		c->candidate[i].stood = -20;
		c->candidate[i].weight = 1;
	}
	return c;
}

/* Kinds of candidates: in which of these ways it is special */
#define DETACHED		1
#define DEAD			2
#define DRAINED			4
#define UNWANTED		8		/* its role may not stand */
#define FULL			16		/* with, or without what is due */
#define FULL_WITH_DUE	32
#define SITS_OUT		64
#define GAVE_UP			128

static void
set_kind(CaseCandidate *c, int kind)
{
	c->detached = kind & DETACHED;
	c->alive = !(kind & DEAD);
	c->drained = kind & DRAINED;
	c->may_stand = !(kind & UNWANTED);
	c->full_without_due = kind & FULL;
	c->full = kind & (FULL | FULL_WITH_DUE);
	c->sits_out = kind & SITS_OUT;
	c->gave_up = kind & (SITS_OUT | GAVE_UP);
}

static const int orders[][MOST_CANDIDATES] = {
	{1, 2, 3}, {1, 3, 2}, {2, 1, 3}, {2, 3, 1}, {3, 1, 2}, {3, 2, 1}
};

/*
 * Two candidates, with every set of reasons for which one is not elected: who
 * of them is, and what does the seat wait for?
 */
static void
compare_reasons(void)
{
	Case	   *c = begin_case(2);

	UP_TO(first, 128)
		UP_TO(second, 128)
		EACH(s, strategies)
		UP_TO(caller, 3)
	{
		set_kind(&c->candidate[0], first);
		set_kind(&c->candidate[1], second);
		c->strategy = strategies[s];
		c->caller = caller - 1;
		UP_TO(leader, 3)
		{
			c->leader = leader - 1;
			c->led = c->leader != NOBODY;
			if (!c->led || caller == 0)
				compare();
		}
	}
	begin_case(0);
	compare();
}

/*
 * Who is first of three: what the strategies compare, who calls, the quorum.
 */
static void
compare_order_of(const int *kinds, int n, int ranks, int progress, int leads,
				 int weights)
{
	Case	   *c = &the_case;

	UP_TO(kind, n * n * n)
		UP_TO(rank, ranks * ranks * ranks)
		UP_TO(p, progress * progress * progress)
		UP_TO(l, leads * leads * leads)
		UP_TO(w, weights * weights * weights)
		EACH(o, orders)
	{
		int			k = kind;
		int			r = rank;
		int			pp = p;
		int			ll = l;
		int			ww = w;

		UP_TO(i, MOST_CANDIDATES)
		{
			CaseCandidate *cc = &c->candidate[i];

			set_kind(cc, kinds[k % n]);
			cc->rank = r % ranks;
			cc->progress = pp % progress;
			cc->leads = ll % leads;
			cc->weight = 1 + ww % weights;
			cc->place = orders[o][i];
			k /= n;
			r /= ranks;
			pp /= progress;
			ll /= leads;
			ww /= weights;
		}
		UP_TO(caller, MOST_CANDIDATES + 1)
			UP_TO(quorum, 3)
		{
			c->caller = caller - 1;
			c->quorum = quorum + 1;
			compare();
		}
	}
}

static void
compare_orders(void)
{
	static const int all[] = {
		0, DETACHED, DEAD, DRAINED, SITS_OUT, DETACHED | SITS_OUT
	};
	static const int live[] = {0, DETACHED};

	EACH(s, strategies)
	{
		begin_case(MOST_CANDIDATES)->strategy = strategies[s];
		if (strcmp(strategies[s], "spread") == 0)
		{
			compare_order_of(all, LENGTH(all), 1, 1, 2, 1);
			compare_order_of(live, LENGTH(live), 1, 1, 3, 2);
		}
		else if (strcmp(strategies[s], "zab") == 0)
			compare_order_of(live, LENGTH(live), 2, 2, 1, 1);
		else
			compare_order_of(all, LENGTH(all), 2, 1, 1, 1);
	}
}

/*
 * What bars a vacant seat, and for how long.
 */
static void
compare_reservations(Case *c)
{
	static const int until[] = {-1, 0, 5};

	UP_TO(caller, 3)
	{
		c->caller = caller - 1;
		c->successor = NOBODY;
		c->reserved_until = 0;
		c->stood_anew = false;
		compare();
		UP_TO(successor, 2)
			EACH(u, until)
			UP_TO(anew, 2)
		{
			c->successor = successor;
			c->reserved_until = until[u];
			c->stood_anew = anew;
			compare();
		}
	}
}

static void
compare_bars(Case *c)
{
	static const int times[] = {0, 5, NEVER};
	static const int first_stood[] = {-20, -10, -9, -1};

	UP_TO(withdrawn, 2)
		EACH(pause, times)
		EACH(grace, times)
		UP_TO(not_before, 3)
		UP_TO(initial, LENGTH(first_stood) + 2)
	{
		c->withdrawn = withdrawn;
		c->paused = times[pause] > 0;
		c->paused_until = times[pause];
		c->grace_until = times[grace];
		c->not_before = not_before > 0 ? 4 : 0;
		c->held = not_before == 2;
		c->initial_delay = initial > 0 ? 10 : 0;
		c->waits = initial > 1;
		c->first_stood = initial > 1 ? first_stood[initial - 2] : -9;
		compare_reservations(c);
	}
}

static void
compare_vacancies(void)
{
	static const int kinds[] = {
		0, DETACHED, DEAD, DRAINED, UNWANTED, FULL, FULL_WITH_DUE, SITS_OUT
	};
	static const char *const some[] = {"race", "bully"};

	EACH(s, some)
		EACH(first, kinds)
		EACH(second, kinds)
		UP_TO(quorum, 2)
	{
		Case	   *c = begin_case(2);

		c->strategy = some[s];
		c->quorum = quorum + 1;
		set_kind(&c->candidate[0], kinds[first]);
		set_kind(&c->candidate[1], kinds[second]);
		compare_bars(c);
	}
}

/*
 * Whether a leader has to make way, and to whom.
 */
static void
compare_requests(Case *c)
{
	static const int paused_until[] = {0, 5, NEVER};

	UP_TO(request, 2 * MOST_CANDIDATES)
		EACH(pause, paused_until)
		UP_TO(quorum, 3)
	{
		c->yielding = request > 0;
		c->ordered = request >= MOST_CANDIDATES;
		c->successor = request % MOST_CANDIDATES > 0 ?
			request % MOST_CANDIDATES : NOBODY;
		c->paused = paused_until[pause] > 0;
		c->paused_until = paused_until[pause];
		c->quorum = quorum + 1;
		compare();
	}
}

static void
compare_challenges(void)
{
	static const int kinds[] = {
		0, DETACHED, DEAD, DRAINED, UNWANTED, FULL, FULL_WITH_DUE, SITS_OUT,
		GAVE_UP
	};
	static const int stood[] = {-20, -10, -9};

	EACH(s, strategies)
		EACH(first, kinds)
		EACH(second, kinds)
		UP_TO(merit, 27)
		EACH(t, stood)
		UP_TO(delay, 2)
	{
		Case	   *c = begin_case(MOST_CANDIDATES);
		int			m = merit;

		if (merit % 9 != 4 && strcmp(strategies[s], "bully") != 0 &&
			strcmp(strategies[s], "spread") != 0)
			continue;
		c->strategy = strategies[s];
		c->led = true;
		c->leader = 0;
		c->preempt_delay = delay * 10;
		set_kind(&c->candidate[1], kinds[first]);
		set_kind(&c->candidate[2], kinds[second]);
		c->candidate[1].stood = stood[t];
		UP_TO(i, MOST_CANDIDATES)
		{
			c->candidate[i].rank = c->candidate[i].leads = m % 3;
			m /= 3;
		}
		compare_requests(c);
	}
}

/*
 * Challenges by weight, and of leaders that are special themselves.
 */
static void
compare_leaders(void)
{
	static const int kinds[] = {
		0, DETACHED, DRAINED, UNWANTED, FULL, DEAD
	};
	static const char *const some[] = {"bully", "spread"};

	EACH(s, some)
		EACH(kind, kinds)
		UP_TO(merit, 27)
		UP_TO(weight, 8)
		EACH(o, orders)
		UP_TO(withdrawn, 2)
	{
		Case	   *c = begin_case(MOST_CANDIDATES);
		int			m = merit;

		c->strategy = some[s];
		c->led = true;
		c->leader = 1;
		c->withdrawn = withdrawn;
		set_kind(&c->candidate[1], kinds[kind]);
		UP_TO(i, MOST_CANDIDATES)
		{
			c->candidate[i].rank = c->candidate[i].leads = m % 3;
			c->candidate[i].weight = 1 + (weight >> i & 1);
			c->candidate[i].place = orders[o][i];
			m /= 3;
		}
		compare();
		c->yielding = true;
		c->successor = 0;
		compare();
		c->ordered = true;
		compare();
	}
}

static const struct
{
	const char *name;
	void		(*compare) (void);
}			sets[] = {
	{"reasons", compare_reasons},
	{"orders", compare_orders},
	{"vacancies", compare_vacancies},
	{"challenges", compare_challenges},
	{"leaders", compare_leaders},
};

/*
 * What no case has for an answer is not tested.
 */
static void
check_answers(void)
{
	static const int occur[] = {
		LENGTH(why_not_names), LENGTH(reference_words), 0
	};

	set = "answers";
	differences = 0;
	UP_TO(a, 2)
		UP_TO(i, occur[a])
	{
		if (answers_seen[a][i] == 0)
			case_complain(a == 0 ? why_not_names[i] : reference_words[i]);
	}
	if (answers_seen[2][1] == 0 || answers_seen[2][2] == 0 ||
		answers_seen[2][4] == 0)
		case_complain("nobody is elected, kept the seat for, or a challenger");
}

/*
 * Prints what prove would, which test/run understands.  With an argument it
 * ends at the first difference.
 */
int
main(int argc, char **argv)
{
	int			failed = 0;

	only_first = argc > 1;

	UP_TO(i, LENGTH(sets))
	{
		set = sets[i].name;
		differences = 0;
		sets[i].compare();
		if (differences > 0)
			printf("not ok - %s: %ld differences\n", set, differences);
		failed += differences > 0;
	}
	check_answers();
	failed += differences > 0;
	printf("Files=%d, Tests=%ld, %ld CPU secs\n", LENGTH(sets), cases,
		   (long) (clock() / CLOCKS_PER_SEC));
	printf("Result: %s\n", failed > 0 ? "FAIL" : "PASS");
	return failed > 0 ? 1 : 0;
}
