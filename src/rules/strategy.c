/*-------------------------------------------------------------------------
 *
 * strategy.c
 *		The rules of election: who comes first, and who has to make way.
 *
 * Each strategy is one row of the table below.  The classical ones are named
 * after their sources: Garcia-Molina, "Elections in a Distributed Computing
 * System" (bully); Chang and Roberts, "An Improved Algorithm for Decentralized
 * Extrema-Finding in Circular Configurations of Processes" (ring); Junqueira,
 * Reed and Serafini, "Zab: High-performance broadcast for primary-backup
 * systems" (zab).  Here the database arbitrates, so that nothing is left of
 * them but their order.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "rules/rules.h"

#define COMPARE(a, b) \
	do { if ((a) != (b)) return (a) < (b) ? -1 : 1; } while (0)

/* Longest standing first; the name decides what the clock does not. */
static int
longest_standing(const void *a, const void *b)
{
	const Contender *x = a;
	const Contender *y = b;

	COMPARE(x->place, y->place);
	return strcmp(x->name, y->name);
}

/* Sessions, which can be told, come before detached candidates. */
static int
first_come(const void *a, const void *b)
{
	const Contender *x = a;
	const Contender *y = b;

	COMPARE(x->detached, y->detached);
	return longest_standing(a, b);
}

static int
lowest_rank(const void *a, const void *b)
{
	const Contender *x = a;
	const Contender *y = b;

	COMPARE(x->rank, y->rank);
	return longest_standing(a, b);
}

static int
highest_rank(const void *a, const void *b)
{
	const Contender *x = a;
	const Contender *y = b;

	COMPARE(y->rank, x->rank);
	return longest_standing(a, b);
}

static int
most_advanced(const void *a, const void *b)
{
	const Contender *x = a;
	const Contender *y = b;

	COMPARE(y->progress, x->progress);
	return highest_rank(a, b);
}

/*
 * Who would lead the fewest elections for its weight, then who is first in
 * line.  Weights are 1, but in groups.
 */
static int
least_loaded(const void *a, const void *b)
{
	const Contender *x = a;
	const Contender *y = b;

	COMPARE((x->leads + 1) * y->weight, (y->leads + 1) * x->weight);
	return longest_standing(a, b);
}

/*
 * A candidate that gave up is not to take over again at once, for no reason
 * but its rank.
 */
static bool
outranks(const Contender *challenger, const Contender *leader)
{
	return challenger->rank > leader->rank && !challenger->defers;
}

/*
 * The election in question is not among those that either leads.  A yield is
 * worth while if the challenger, with it, leads less for its weight than the
 * leader, with it.  (With weights of 1: no more than the leader without it.)
 */
static bool
leads_fewer(const Contender *challenger, const Contender *leader)
{
	return (challenger->leads + 1) * leader->weight <
		(leader->leads + 1) * challenger->weight;
}

/*
 * Once asked for, a yield stands while the challenger, without the election in
 * question, leads no more for its weight than the leader.
 */
static bool
leads_no_more(const Contender *challenger, const Contender *leader)
{
	return challenger->leads * leader->weight <=
		leader->leads * challenger->weight;
}

const Strategy le_strategies[] = {
	/* name, order, preempts, still preempts, counts, reserves */
	{"race", first_come, NULL, NULL, false, false},
	{"lowest", lowest_rank, NULL, NULL, false, true},
	{"bully", highest_rank, outranks, outranks, false, true},
	{"ring", highest_rank, NULL, NULL, false, true},
	{"zab", most_advanced, NULL, NULL, false, true},
	{"spread", least_loaded, leads_fewer, leads_no_more, true, true},
	{NULL}
};

/*
 * The strategy of that name; NULL if there is none.
 */
const Strategy *
le_strategy_find(const char *name)
{
	for (const Strategy *s = le_strategies; s->name != NULL; s++)
	{
		if (strcmp(s->name, name) == 0)
			return s;
	}
	return NULL;
}

/*
 * The strategy of an election.  A name that is unknown here, in a table of
 * another version, must not hold up all elections: that one is a race.
 */
const Strategy *
le_strategy(const char *name)
{
	const Strategy *strategy = le_strategy_find(name);

	return strategy != NULL ? strategy : le_strategies;
}
