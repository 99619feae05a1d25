/*-------------------------------------------------------------------------
 *
 * ranking.c
 *		Who is next, and whether the leader has to make way: the strategies
 *		(strategy.c), applied to those who stand.
 *
 * Nothing is written here, and nothing is locked but to see who is alive.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "leader_election.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"

/*
 * Is this candidate passed over for now?
 */
bool
le_election_passes_over(const Candidate *c, const Lease *lease)
{
	return c->sits_out >= lease->term;
}

/* How many elections of a strategy a candidate leads, or is about to lead */
typedef struct Seats
{
	struct
	{
		char		candidate[LE_NAME_MAX + 1];
		NameData	role;
	}			of;				/* hash key */
	int			count;
} Seats;

/*
 * Whose seat is it?  A leader that was asked to yield counts no more, whom it
 * yields to does already.  NULL: nobody's.
 */
static Candidate *
seat_of(const Lease *lease, const char *incarnation, int64 now)
{
	LeaseState	state = le_lease_state(lease, incarnation, now);
	Candidate  *c;

	if (state == LEASE_LED && !lease->yielding)
		return le_candidate_of_lease(lease);
	if (lease->successor == NULL ||
		(state == LEASE_VACANT &&
		 le_lease_reserved_mono(lease, incarnation) <= now))
		return NULL;
	c = palloc0(sizeof(Candidate));
	c->candidate = lease->successor;
	c->role = lease->successor_role;
	return c;
}

static Seats *
find_seats(HTAB *seats, const Candidate *c, HASHACTION action, bool *found)
{
	Seats		key;

	memset(&key, 0, sizeof(key));
	strlcpy(key.of.candidate, c->candidate, sizeof(key.of.candidate));
	namestrcpy(&key.of.role, c->role);
	return hash_search(seats, &key.of, action, found);
}

static HTAB *
make_hash(const char *name, Size keysize, Size entrysize, int flags)
{
	HASHCTL		info;

	memset(&info, 0, sizeof(info));
	info.keysize = keysize;
	info.entrysize = entrysize;
	info.hcxt = CurrentMemoryContext;
	return hash_create(name, 64, &info, HASH_ELEM | HASH_CONTEXT | flags);
}

/*
 * The seats in all elections of a strategy, by candidate.
 */
HTAB *
le_seats_read(const Store *store, const char *strategy)
{
	char	   *incarnation = le_incarnation_name(store->lease);
	int64		now = le_clock();
	HTAB	   *elections = make_hash("leader_election elections", LE_NAME_MAX + 1,
									  LE_NAME_MAX + 1, HASH_STRINGS);
	HTAB	   *seats = make_hash("leader_election seats", sizeof(((Seats *) 0)->of),
								  sizeof(Seats), HASH_BLOBS);
	ListCell   *lc;

	foreach(lc, le_elections_read(store))
	{
		Election   *election = lfirst(lc);

		if (strcmp(election->strategy, strategy) == 0)
			(void) hash_search(elections, election->name, HASH_ENTER, NULL);
	}
	foreach(lc, le_lease_read_all(store))
	{
		Lease	   *lease = lfirst(lc);
		Candidate  *c;
		Seats	   *of;
		bool		found;

		if (hash_search(elections, lease->election, HASH_FIND, NULL) == NULL ||
			(c = seat_of(lease, incarnation, now)) == NULL)
			continue;
		of = find_seats(seats, c, HASH_ENTER, &found);
		of->count = found ? of->count + 1 : 1;
	}
	return seats;
}

/*
 * Have these candidates of an election know how many others they lead.
 */
static void
count_seats(const Store *store, const Lease *lease, List *candidates,
			HTAB *seats)
{
	Candidate  *own = seat_of(lease, le_incarnation_name(store->lease),
							  le_clock());
	ListCell   *lc;

	foreach(lc, candidates)
	{
		Candidate  *c = lfirst(lc);
		Seats	   *of = find_seats(seats, c, HASH_FIND, NULL);

		c->leads = of != NULL ? of->count : 0;
		if (own != NULL && c->leads > 0 &&
			strcmp(own->candidate, c->candidate) == 0 &&
			strcmp(own->role, c->role) == 0)
			c->leads--;
	}
}

/*
 * All candidates of an election, live or not, in the order in which they
 * would be elected.  seats, if the strategy counts: NULL to have them read.
 */
List *
le_election_order(const Store *store, const Election *election,
				  const Lease *lease, HTAB *seats)
{
	const Strategy *strategy = le_strategy(election);
	List	   *candidates = le_candidates_read(store, election->name);
	List	   *ready = NIL;
	List	   *sitting_out = NIL;
	ListCell   *lc;

	if (strategy->counts)
		count_seats(store, lease, candidates,
					seats != NULL ? seats : le_seats_read(store, election->strategy));
	list_sort(candidates, strategy->order);
	foreach(lc, candidates)
	{
		if (le_election_passes_over(lfirst(lc), lease))
			sitting_out = lappend(sitting_out, lfirst(lc));
		else
			ready = lappend(ready, lfirst(lc));
	}
	return list_concat(ready, sitting_out);
}

/*
 * Whom the strategy wants the leader to yield to; NULL: to nobody.  The lease
 * is led.  Once asked for, a yield is for the same candidate as long as that
 * is there and has a claim still.  seats: as for le_election_order().
 */
Candidate *
le_challenger(const Store *store, const Election *election,
			  const Lease *lease, HTAB *seats)
{
	const Strategy *strategy = le_strategy(election);
	List	   *candidates;
	Candidate  *leader = NULL;
	Candidate  *challenger = NULL;
	Candidate  *asked_for = NULL;
	int			live = 0;
	ListCell   *lc;

	if (strategy->preempts == NULL)
		return NULL;
	candidates = le_election_order(store, election, lease, seats);
	foreach(lc, candidates)
	{
		if (le_candidate_leads(lfirst(lc), lease))
			leader = lfirst(lc);
	}
	if (leader == NULL)
	{
		/* A crash has emptied the table. */
		leader = le_candidate_of_lease(lease);
		if (strategy->counts)
			count_seats(store, lease, list_make1(leader),
						seats != NULL ? seats : le_seats_read(store, election->strategy));
	}
	foreach(lc, candidates)
	{
		Candidate  *c = lfirst(lc);

		if (!le_candidate_alive(c))
			continue;
		live++;
		if (c == leader || le_election_passes_over(c, lease) ||
			!le_election_admits(election, c->role))
			continue;
		if (lease->yielding && le_candidate_succeeds(c, lease) &&
			strategy->still_preempts(c, leader))
			asked_for = c;
		if (challenger == NULL && strategy->preempts(c, leader))
			challenger = c;
	}
	if (live < election->quorum)
		return NULL;
	return asked_for != NULL ? asked_for : challenger;
}

/*
 * Must the leader be asked to yield to this challenger, instead of whom it was
 * asked for before, or (NULL) to nobody any more?
 */
bool
le_is_to_preempt(const Lease *lease, const Candidate *challenger)
{
	if (challenger == NULL)
		return lease->yielding;
	return !lease->yielding || !le_candidate_succeeds(challenger, lease);
}

/*
 * Are enough candidates alive to elect anybody?
 */
bool
le_has_quorum(const Store *store, const Election *election)
{
	int			missing = election->quorum;
	ListCell   *lc;

	foreach(lc, le_candidates_read(store, election->name))
	{
		if (missing > 0 && le_candidate_alive(lfirst(lc)))
			missing--;
	}
	return missing <= 0;
}

/*
 * Who is next, NULL if nobody.  Whoever sits out is passed over, and so is the
 * one that is about to (NULL for none); but if nobody else is eligible they may
 * elect themselves by their own call (caller, NULL for none).  A detached
 * candidate that does not call is next only where the strategy reserves the
 * seat for it.
 */
Candidate *
le_next_leader(const Store *store, const Election *election,
			   const Lease *lease, const Candidate *caller,
			   const Candidate *passed_over)
{
	bool		reserves = le_strategy(election)->reserves;
	Candidate  *winner = NULL;
	Candidate  *last_resort = NULL;
	bool		eligible = false;
	int			live = 0;
	ListCell   *lc;

	foreach(lc, le_election_order(store, election, lease, NULL))
	{
		Candidate  *c = lfirst(lc);
		bool		calls = caller != NULL && le_candidate_is_same(c, caller);

		if (winner != NULL && live >= election->quorum)
			break;
		if (!le_candidate_alive(c))
			continue;
		live++;
		if (!le_election_admits(election, c->role))
			continue;			/* the rule has changed since it stood */
		if (le_election_passes_over(c, lease) ||
			(passed_over != NULL && le_candidate_is_same(c, passed_over)))
		{
			if (calls)
				last_resort = c;
			continue;
		}
		eligible = true;
		if (winner == NULL && (calls || c->session_id != 0 || reserves))
			winner = c;
	}
	if (live < election->quorum)
		return NULL;
	return eligible ? winner : last_resort;
}
