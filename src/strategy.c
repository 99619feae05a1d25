/*-------------------------------------------------------------------------
 *
 * strategy.c
 *		The rules of election: in which order candidates are elected.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "leader_election.h"

/*
 * Longest standing first, but those who can be told come before those who must
 * call; the name decides what the clock does not.
 */
static int
race(const ListCell *a, const ListCell *b)
{
	const Candidate *x = lfirst(a);
	const Candidate *y = lfirst(b);

	if ((x->session_id == 0) != (y->session_id == 0))
		return x->session_id != 0 ? -1 : 1;
	if (x->place != y->place)
		return x->place < y->place ? -1 : 1;
	return strcmp(x->candidate, y->candidate);
}

static const Strategy strategies[] = {
	/* name, order, reserves */
	{"race", race, false},
};

const Strategy *
le_strategy(const char *name)
{
	for (int i = 0; i < lengthof(strategies); i++)
	{
		if (strcmp(strategies[i].name, name) == 0)
			return &strategies[i];
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unrecognized election strategy: \"%s\"", name)));
}
