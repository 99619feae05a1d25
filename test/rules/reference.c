/*-------------------------------------------------------------------------
 *
 * reference.c
 *		What docs/reference.md says of an election, and nothing else.
 *
 * This is a second implementation of the rules.  It was written from the
 * reference (and docs/groups.md, for groups) alone, so that a difference to
 * src/rules is a defect of one of the two or of the papers.  Each step quotes
 * the sentence that it rests on.  "We read" marks a step for which the papers
 * have no sentence, or one that can be read in two ways.
 *
 * Change it only when the reference changes.
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "case.h"

/* Where it is NULL in the view status, metrics say "the worker" */
const char *const reference_words[] = {
	[CASE_NOTHING] = "the worker",
	[CASE_WITHDRAWN] = "withdrawn",
	[CASE_PAUSED] = "paused",
	[CASE_GRACE] = "grace after failover",
	[CASE_HOLD] = "hold",
	[CASE_TAKEOVER_DELAY] = "takeover delay",
	[CASE_RESERVED] = "reserved",
	[CASE_NO_CANDIDATES] = "no candidates",
	[CASE_QUORUM] = "quorum",
	[CASE_INITIAL_DELAY] = "initial delay",
	[CASE_DRAINED_ONLY] = "drained",
	[CASE_CAP] = "cap",
	[CASE_SITTING_OUT] = "candidates that do not sit out",
	[CASE_CALL] = "acquire()",
};

static bool
strategy_is(const Case *c, const char *name)
{
	return strcmp(c->strategy, name) == 0;
}

/*
 * Does this seat remain due to the candidate that was named as its successor?
 *
 * "If it dies or does not come, the strategy decides"; "if it is drained
 * later, a reservation for it, or a request to yield to it, is void, and the
 * strategy decides".  "A reservation for a candidate that left meanwhile, is
 * not in candidate_role any more, or has enough other seats of the group (not
 * counting those that are due to it), is void."
 *
 * A seat counts "while it is reserved for the candidate, or its leader is to
 * yield to it" (groups).  We read that two seats that are due to the same
 * candidate do not make each other void: the one that it gets first counts.
 *
 * We read that sitting out is no obstacle for a candidate that was named.
 */
static bool
remains_due(const Case *c, int i)
{
	const CaseCandidate *cand = &c->candidate[i];

	return cand->alive && !cand->drained && cand->may_stand &&
		!cand->full_without_due && !c->stood_anew;
}

/*
 * Is the candidate passed over since it gave up, or since it did not come while
 * the seat was reserved for it: "one that did not come sits out"?  Only a
 * detached one has to come.
 */
static bool
sits_out(const Case *c, int i)
{
	const CaseCandidate *cand = &c->candidate[i];

	return cand->sits_out ||
		(!c->led && i == c->successor && c->reserved_until <= 0 &&
		 cand->detached && remains_due(c, i));
}

/*
 * Why a candidate is not elected.
 *
 * Drained candidates "are passed over, also alone and in their own calls".  "A
 * candidate that has enough is passed over, alone and in its own call, too"
 * (groups).  candidate_role: "only members of this role may stand, and be
 * elected".  A leader that gave up "is passed over until somebody else has
 * been elected".
 *
 * We read that a candidate sits out in its own call, too, even if it is
 * elected in that.
 */
static CaseWhyNot
why_not(const Case *c, int i)
{
	const CaseCandidate *cand = &c->candidate[i];

	if (!cand->alive)
		return CASE_DEAD;
	if (cand->drained)
		return CASE_DRAINED;
	if (cand->full)
		return CASE_FULL;
	if (!cand->may_stand)
		return CASE_NOT_ADMITTED;
	if (sits_out(c, i))
		return CASE_SITS_OUT;
	return CASE_ELIGIBLE;
}

static bool
is_eligible(const Case *c, int i)
{
	return why_not(c, i) == CASE_ELIGIBLE;
}

/* "For one lease nobody but that candidate is granted it." */
static bool
is_reserved(const Case *c)
{
	return !c->led && c->successor != NOBODY && c->reserved_until > 0 &&
		remains_due(c, c->successor);
}

/*
 * Compare how much two candidates bear with this seat: negative if a bears
 * less for its weight.
 *
 * spread: "the candidate that leads the fewest other elections of this
 * strategy".  "Elected is the candidate that would lead the fewest seats for
 * its weight, this one included: (other seats + 1) / weight" (groups).
 */
static int
compare_load(const CaseCandidate *a, const CaseCandidate *b)
{
	long long	load_a = (a->leads + 1LL) * b->weight;
	long long	load_b = (b->leads + 1LL) * a->weight;

	return (load_a > load_b) - (load_a < load_b);
}

/* Is a before b by the table of strategies? */
static bool
is_before_by_strategy(const Case *c, const CaseCandidate *a,
					  const CaseCandidate *b)
{
	/* race: "sessions first, then the detached candidate that calls" */
	if (strategy_is(c, "race") && a->detached != b->detached)
		return b->detached;

	/* lowest: "lowest rank" */
	if (strategy_is(c, "lowest") && a->rank != b->rank)
		return a->rank < b->rank;

	/* zab: "most advanced progress, then highest rank" */
	if (strategy_is(c, "zab") && a->progress != b->progress)
		return a->progress > b->progress;

	/* bully: "highest rank"; ring: "highest rank among the live" */
	if ((strategy_is(c, "bully") || strategy_is(c, "ring") ||
		 strategy_is(c, "zab")) && a->rank != b->rank)
		return a->rank > b->rank;

	if (strategy_is(c, "spread") && compare_load(a, b) != 0)
		return compare_load(a, b) < 0;

	/*
	 * "Among equals, the one with the lowest queue position is elected": so,
	 * too, by race, which asks for nothing else.
	 */
	return a->place < b->place;
}

/*
 * Is a before b in the order?  It is "the order by the strategy, those who sit
 * out last".
 */
static bool
is_before(const Case *c, int a, int b)
{
	const CaseCandidate *cand_a = &c->candidate[a];
	const CaseCandidate *cand_b = &c->candidate[b];

	if (sits_out(c, a) != sits_out(c, b))
		return sits_out(c, b);
	return is_before_by_strategy(c, cand_a, cand_b);
}

/*
 * View candidates has no position for those who are "dead, drained, not in
 * candidate_role, or with enough other seats of the group".  We read that the
 * leader has one, like the others, and that neither it nor a named successor
 * is an exception.
 */
static bool
has_position(const Case *c, int i)
{
	CaseWhyNot	why = why_not(c, i);

	return why == CASE_ELIGIBLE || why == CASE_SITS_OUT;
}

static int
position(const Case *c, int i)
{
	int			pos = 1;

	if (!has_position(c, i))
		return 0;
	for (int k = 0; k < c->candidates; k++)
	{
		if (k != i && has_position(c, k) && is_before(c, k, i))
			pos++;
	}
	return pos;
}

/* Who of the eligible comes first by the strategy? */
static int
first_eligible(const Case *c)
{
	int			first = NOBODY;

	for (int i = 0; i < c->candidates; i++)
	{
		if (is_eligible(c, i) && (first == NOBODY || is_before(c, i, first)))
			first = i;
	}
	return first;
}

static bool
eligible_session_stands(const Case *c)
{
	for (int i = 0; i < c->candidates; i++)
	{
		if (is_eligible(c, i) && !c->candidate[i].detached)
			return true;
	}
	return false;
}

/*
 * Drained candidates "count for the quorum".  We read that all who are alive
 * do, also those with enough seats or not in candidate_role, those who sit
 * out, and the leader.
 */
static int
count_alive(const Case *c)
{
	int			alive = 0;

	for (int i = 0; i < c->candidates; i++)
	{
		if (c->candidate[i].alive)
			alive++;
	}
	return alive;
}

/* Is there a living candidate that is not elected for this reason? */
static bool
somebody_is(const Case *c, CaseWhyNot why)
{
	for (int i = 0; i < c->candidates; i++)
	{
		if (why_not(c, i) == why)
			return true;
	}
	return false;
}

/*
 * What lets nobody be elected, whoever stands for the seat: the first in the
 * table of waiting_for.
 */
static CaseWaiting
what_bars_the_seat(const Case *c)
{
	/* "Its group has fewer seats by now"; "nobody else is elected" (groups) */
	if (c->withdrawn)
		return CASE_WITHDRAWN;

	/*
	 * "While an election is paused, the strategy elects nobody.  A hand-over
	 * to a named candidate that has begun is finished."  A seat may be
	 * reserved during the pause as well.
	 */
	if (c->paused && c->paused_until > 0 && !is_reserved(c))
		return CASE_PAUSED;

	/* "A leader of the former server may still lead there, for one lease" */
	if (c->grace_until > 0)
		return CASE_GRACE;

	/* "As asked by resign() or release(); as set for the election" */
	if (c->not_before > 0)
		return c->held ? CASE_HOLD : CASE_TAKEOVER_DELAY;

	return CASE_NOTHING;
}

/* What lets nobody be elected, because of how many stand, and since when */
static CaseWaiting
what_is_missing(const Case *c)
{
	/* "Nobody stands": the dead do not */
	if (count_alive(c) == 0)
		return CASE_NO_CANDIDATES;

	/*
	 * "Nobody is elected while fewer candidates are alive."  A reservation
	 * changes nothing: "hold, grace, delay and quorum bind".
	 */
	if (count_alive(c) < c->quorum)
		return CASE_QUORUM;

	/*
	 * initial_delay: "is filled no sooner than so long after the first candidate
	 * stood for it"; "a candidate that was named does not wait".
	 */
	if (c->waits && !is_reserved(c) && c->first_stood + c->initial_delay > 0)
		return CASE_INITIAL_DELAY;

	return CASE_NOTHING;
}

/* What a vacant seat waits for: "the first of these that is so" */
static CaseWaiting
waiting_for(const Case *c)
{
	CaseWaiting waiting = what_bars_the_seat(c);
	int			first = first_eligible(c);

	if (waiting != CASE_NOTHING)
		return waiting;

	/*
	 * "For a candidate that was named, or a detached one that came first, for
	 * one lease at most."  It stands before the quorum in the table.
	 */
	if (is_reserved(c))
		return CASE_RESERVED;

	waiting = what_is_missing(c);
	if (waiting != CASE_NOTHING)
		return waiting;

	if (first == NOBODY)
	{
		/* "Some who stand are drained, and nobody else could be elected." */
		if (somebody_is(c, CASE_DRAINED))
			return CASE_DRAINED_ONLY;

		/*
		 * "All others have as many seats of the group as a candidate may."
		 * We read: all but those who sit out or are not in candidate_role,
		 * since the next line is for the case that all are that.
		 */
		if (somebody_is(c, CASE_FULL))
			return CASE_CAP;

		/* "Each candidate sits out [...], or is not in candidate_role." */
		return CASE_SITTING_OUT;
	}

	/*
	 * "In a race, only detached candidates could be elected: the next one
	 * that calls is."  Other strategies: "The worker is about to elect
	 * somebody or to reserve the seat."
	 */
	if (strategy_is(c, "race") && !eligible_session_stands(c))
		return CASE_CALL;

	return CASE_NOTHING;
}

/*
 * Elect this candidate, or keep the seat for it: "A detached candidate is
 * elected only in its own call."
 */
static void
elect_or_keep(const Case *c, int i, Answer *answer)
{
	if (c->candidate[i].detached && c->caller != i)
		answer->kept_for = i;
	else
		answer->elected = i;
}

/* Who is elected to a vacant seat, or for whom is it kept? */
static void
decide_vacant(const Case *c, Answer *answer)
{
	int			first = first_eligible(c);

	/* "Hold, grace, delay and quorum bind": it stays reserved meanwhile. */
	if (what_bars_the_seat(c) != CASE_NOTHING ||
		what_is_missing(c) != CASE_NOTHING)
	{
		if (is_reserved(c) && !c->withdrawn)
			answer->kept_for = c->successor;
		return;
	}

	/* "For one lease nobody but that candidate is granted it." */
	if (is_reserved(c))
	{
		elect_or_keep(c, c->successor, answer);
		return;
	}

	/*
	 * Sitting out: "until it calls join(), campaign() or acquire() itself and
	 * nobody else can be elected".  We read that another one that sits out
	 * cannot be elected, and that a detached candidate can, though it does
	 * not call now.
	 */
	if (first == NOBODY)
	{
		if (c->caller != NOBODY &&
			why_not(c, c->caller) == CASE_SITS_OUT)
			answer->elected = c->caller;
		return;
	}

	/*
	 * race: "sessions first, then the detached candidate that calls".  It is
	 * the only strategy that keeps the seat for nobody.
	 */
	if (strategy_is(c, "race") && c->candidate[first].detached)
	{
		if (c->caller != NOBODY && is_eligible(c, c->caller))
			answer->elected = c->caller;
		return;
	}

	elect_or_keep(c, first, answer);
}

/* Does a better one take over, by the table of strategies? */
static bool
is_better(const Case *c, const CaseCandidate *cand,
		  const CaseCandidate *leader)
{
	/*
	 * bully: "when a higher one joins, the leader is asked to yield"; it
	 * "goes by the leader's present rank".
	 */
	if (strategy_is(c, "bully"))
		return cand->rank > leader->rank;

	/*
	 * spread: "once the leader leads at least two more", so that it bears
	 * more now than the other one would bear with this seat.  We read the
	 * same of weights.
	 */
	if (strategy_is(c, "spread"))
		return compare_load(cand, leader) < 0;

	return false;
}

/* Does a lead more other elections, for its weight, than b? */
static bool
leads_more(const CaseCandidate *a, const CaseCandidate *b)
{
	return (long long) a->leads * b->weight > (long long) b->leads * a->weight;
}

/*
 * Has this candidate a claim to the seat of the leader?  asked: the strategy
 * has asked the leader to yield to it.
 */
static bool
has_claim(const Case *c, int i, bool asked)
{
	const CaseCandidate *cand = &c->candidate[i];
	bool		stands_ready;

	if (i == c->leader)
		return false;

	/*
	 * "If the better candidate leaves before, the request is taken back."  We
	 * read that other seats that are due to it do not take it back.
	 */
	if (asked)
		stands_ready = remains_due(c, i) && !cand->sits_out;
	else
		stands_ready = is_eligible(c, i);
	if (!stands_ready)
		return false;

	/*
	 * "In bully, a candidate that gave up leadership itself preempts nobody
	 * until it stands anew or its rank changes."
	 */
	if (strategy_is(c, "bully") && cand->gave_up)
		return false;

	/*
	 * preempt_delay: "a better candidate has to stand for so long before the
	 * leader is asked to yield to it".
	 */
	if (cand->stood + c->preempt_delay > 0)
		return false;

	/*
	 * Once asked in favour of it, "in spread, until it leads more other
	 * elections, for its weight, than the leader does".
	 */
	if (asked && strategy_is(c, "spread"))
		return !leads_more(cand, &c->candidate[c->leader]);
	return is_better(c, cand, &c->candidate[c->leader]);
}

/* To whom does the strategy want the leader to yield? */
static int
challenger(const Case *c)
{
	int			first = NOBODY;

	/* "Nobody else is elected" to a seat that is withdrawn (groups). */
	if (c->withdrawn)
		return NOBODY;

	/* While an election is paused, the strategy "asks no leader to yield". */
	if (c->paused && c->paused_until > 0)
		return NOBODY;

	/*
	 * We read that the strategy asks no leader whom an operator, a pause or a
	 * drain has asked already.
	 */
	if (c->yielding && c->ordered)
		return NOBODY;

	/*
	 * "No request is made while fewer candidates than the quorum are alive."
	 */
	if (count_alive(c) < c->quorum)
		return NOBODY;

	/*
	 * "A drained leader is asked to yield, in favour of no particular
	 * candidate"
	 */
	if (c->candidate[c->leader].drained)
		return NOBODY;

	/*
	 * "Once asked, it is asked in favour of no other candidate while the
	 * better one could be elected and has its claim."
	 */
	if (c->yielding && c->successor != NOBODY &&
		has_claim(c, c->successor, true))
		return c->successor;

	/*
	 * "The request is taken back, unless another candidate has a claim of its
	 * own: then the first of these in order."
	 */
	for (int i = 0; i < c->candidates; i++)
	{
		if (has_claim(c, i, false) && (first == NOBODY || is_before(c, i, first)))
			first = i;
	}
	return first;
}

/*
 * When is what the seat waits for over by itself?  NEVER: somebody has to do
 * something.
 *
 * paused: "until an operator resumes it, or until resumes_at".  The grace, a
 * hold, a delay end.  reserved: "for one lease at most".  initial_delay: "so long
 * after the first candidate".
 */
static int
ends_at(const Case *c, CaseWaiting waiting)
{
	switch (waiting)
	{
		case CASE_PAUSED:
			return c->paused_until;
		case CASE_GRACE:
			return c->grace_until;
		case CASE_HOLD:
		case CASE_TAKEOVER_DELAY:
			return c->not_before;
		case CASE_RESERVED:
			return c->reserved_until;
		case CASE_INITIAL_DELAY:
			return c->first_stood + c->initial_delay;
		default:
			return NEVER;
	}
}

/*
 * "The worker drops a seat when it is vacant, and no grace, hold or takeover
 * delay is under way" (groups).  A call of a candidate drops nothing.
 */
static bool
is_dropped(const Case *c)
{
	return c->withdrawn && c->caller == NOBODY && c->grace_until <= 0 &&
		c->not_before <= 0;
}

void
reference_answer(const Case *c, Answer *answer)
{
	answer->waiting_for = CASE_NOTHING;
	answer->until = NEVER;
	answer->dropped = false;
	answer->elected = NOBODY;
	answer->kept_for = NOBODY;
	answer->challenger = NOBODY;

	for (int i = 0; i < MOST_CANDIDATES; i++)
	{
		bool		stands = i < c->candidates;

		answer->why_not[i] = stands ? why_not(c, i) : CASE_DEAD;
		answer->position[i] = stands ? position(c, i) : 0;
	}

	if (!c->led)
	{
		answer->waiting_for = waiting_for(c);
		answer->until = ends_at(c, answer->waiting_for);
		answer->dropped = is_dropped(c);
		decide_vacant(c, answer);
	}
	else if (c->leader != NOBODY)
		answer->challenger = challenger(c);
}
