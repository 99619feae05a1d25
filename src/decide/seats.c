/*-------------------------------------------------------------------------
 *
 * seats.c
 *		How many elections a candidate leads, for the strategies that count
 *		that (strategy.c).
 *
 * To count, all lease rows are read, which takes milliseconds where there are
 * thousands.  So this process counts once for many choices: a call once in its
 * transaction, the worker once in its round.  In between it notes what it
 * changes itself: the seat of such an election is read again before the next
 * choice.  When other processes have changed something since
 * (le_leadership_generation), all is counted anew, but not so often that this
 * would take most of the time.
 *
 * Counts decide about balance, and never about safety: two processes that
 * elect at the same moment do not see each other's choices, however often they
 * count.  The worker asks for yields until the balance is right.
 *
 * Invariants:
 *
 * - A seat is counted for at most one candidate at any time.
 *
 * - A seat that was read after a transaction of this process had changed it is
 *	 read again if that transaction is undone.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "decide/decide.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"

/*
 * A candidate, and how many seats of one strategy count for it: those of one
 * group, or of no group
 */
typedef struct Holder
{
	struct
	{
		const Strategy *strategy;
		RoleKey		role;
		char		candidate[LE_NAME_MAX + 1];
		char		group[LE_GROUP_NAME_MAX + 1];	/* "": none */
	}			key;			/* hash key */
	int			seats;
} Holder;

/* An election of a strategy that counts, and for whom its seat counts */
typedef struct Seat
{
	char		election[LE_NAME_MAX + 1];	/* hash key */
	const Strategy *strategy;
	char		group[LE_GROUP_NAME_MAX + 1];	/* "": none */
	Holder	   *holder;			/* NULL: nobody */
} Seat;

/*
 * After a count, the next one is made no sooner than after 5 us for each row
 * beyond the first 1,000 that it has read.
 */
#define PAUSE_PER_ROW	5
#define FEW_ROWS		1000

struct Seats
{
	MemoryContext context;		/* of all below */
	Oid			lease_oid;		/* the table that was read */
	HTAB	   *elections;		/* of Seat */
	HTAB	   *holders;		/* of Holder */
	int64		anew_at;		/* count again no sooner (monotonic) */
	uint64		changes;		/* le_leadership_generation at the last look */
	uint64		own_changes;	/* that this process has made since */
	bool		others_changed; /* other processes have, since the count */
	List	   *touched;		/* names of elections to be read again */
	List	   *unsure;			/* the same, if this transaction is undone */
};

/* A session, and whether it was alive when it was looked up */
typedef struct Session
{
	int64		session_id;		/* hash key */
	bool		alive;
} Session;

/* What the running transaction, or the worker's round, has counted */
static Seats *counted = NULL;

/* Is this the worker, where a count lasts for a round? */
static bool in_round = false;

static Holder *
find_holder(const Seats *seats, const Seat *seat,
			const char *candidate, const Role *role, HASHACTION action)
{
	Holder		key;
	Holder	   *holder;
	bool		found;

	memset(&key, 0, sizeof(key));
	key.key.strategy = seat->strategy;
	strlcpy(key.key.group, seat->group, sizeof(key.key.group));
	strlcpy(key.key.candidate, candidate, sizeof(key.key.candidate));
	key.key.role = le_role_key(role);
	holder = hash_search(seats->holders, &key.key, action, &found);
	if (holder != NULL && !found)
		holder->seats = 0;
	return holder;
}

/*
 * Is that session alive?  One session may hold several leases: a count tests
 * it once, and keeps the answer in memo (NULL: test it now).
 * le_sessions_remember() is not for this: seats are counted in transactions
 * that change holders, and a session remembered as alive until such a
 * transaction ends could keep the lease of a leader that dies meanwhile from
 * being taken over.
 */
static bool
is_alive(int64 session_id, HTAB *memo)
{
	Session    *session;
	bool		found;

	if (memo == NULL)
		return le_session_alive(session_id);
	session = hash_search(memo, &session_id, HASH_ENTER, &found);
	if (!found)
		session->alive = le_session_alive(session_id);
	return session->alive;
}

static void
remember(const Seats *seats, List **list, const char *election)
{
	MemoryContext old = MemoryContextSwitchTo(seats->context);

	*list = lappend(*list, pstrdup(election));
	MemoryContextSwitchTo(old);
}

/*
 * Note whose seat it is.  Where the leader was asked to yield, the seat counts
 * for the candidate that it yields to.  lease NULL: the election is gone.
 */
static void
note(Seats *seats, Seat *seat, const Lease *lease, HTAB *memo)
{
	const char *candidate = NULL;
	const Role *role = NULL;

	if (lease != NULL)
	{
		char	   *incarnation = le_incarnation_name(seats->lease_oid);
		int64		now = le_clock();

		if (!lease->yielding && le_lease_unexpired(lease, incarnation, now) &&
			(lease->session_id == 0 || is_alive(lease->session_id, memo)))
		{
			candidate = lease->leader;
			role = &lease->role;
		}
		else if (lease->leader != NULL ||
				 now < le_lease_reserved_mono(lease, incarnation))
		{
			candidate = lease->successor;
			role = &lease->successor_role;
		}
	}
	if (lease == NULL || lease->own_write)
		remember(seats, &seats->unsure, seat->election);
	if (seat->holder != NULL)
		seat->holder->seats--;
	seat->holder = NULL;
	if (candidate != NULL)
	{
		seat->holder = find_holder(seats, seat, candidate, role, HASH_ENTER);
		seat->holder->seats++;
	}
}

static Seat *
find_seat(const Seats *seats, const Election *election)
{
	bool		found;
	Seat	   *seat = hash_search(seats->elections, election->name, HASH_ENTER,
								   &found);

	if (!found)
		seat->holder = NULL;
	seat->strategy = le_strategy(election->strategy);
	strlcpy(seat->group, election->group != NULL ? election->group : "",
			sizeof(seat->group));
	return seat;
}

/*
 * Count all seats, in memory that is freed with context.
 */
Seats *
le_seats_read(const Store *store, MemoryContext context)
{
	MemoryContext own = AllocSetContextCreate(context,
											  "leader_election seats",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(own);
	Seats	   *seats = palloc0(sizeof(Seats));
	MemoryContext temporary = AllocSetContextCreate(own,
													"leader_election rows",
													ALLOCSET_DEFAULT_SIZES);
	HTAB	   *memo;
	int64		rows = 0;

	/* Before the rows are read: a change in between is to count as new. */
	seats->changes = le_leadership_generation;
	seats->context = own;
	seats->lease_oid = store->lease_oid;
	seats->elections = le_hash_make("leader_election seats", LE_NAME_MAX + 1,
									sizeof(Seat), HASH_STRINGS, own);
	seats->holders = le_hash_make("leader_election holders",
								  sizeof(((Holder *) 0)->key), sizeof(Holder),
								  HASH_BLOBS, own);
	MemoryContextSwitchTo(temporary);
	memo = le_hash_make("leader_election sessions", sizeof(int64),
						sizeof(Session), HASH_BLOBS, temporary);
	foreach_ptr(Election, election, le_elections_read(store))
	{
		if (le_strategy(election->strategy)->counts)
			(void) find_seat(seats, election);
	}
	foreach_ptr(Lease, lease, le_lease_read_all(store))
	{
		Seat	   *seat = hash_search(seats->elections, lease->election,
									   HASH_FIND, NULL);

		rows++;
		if (seat != NULL)
			note(seats, seat, lease, memo);
	}
	seats->anew_at = le_clock() + Max(rows - FEW_ROWS, 0) * PAUSE_PER_ROW;
	MemoryContextSwitchTo(old);
	MemoryContextDelete(temporary);
	return seats;
}

static void
forget(void)
{
	Seats	   *former = counted;

	counted = NULL;
	if (former != NULL)
		MemoryContextDelete(former->context);
}

void
le_seats_end_of_xact(bool committed)
{
	if (!in_round)
		forget();
	else if (counted != NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(counted->context);

		if (!committed)
			counted->touched = list_concat(counted->touched, counted->unsure);
		list_free(counted->unsure);
		counted->unsure = NIL;
		MemoryContextSwitchTo(old);
	}
}

/*
 * Forget what was counted, as the worker does at the beginning of each round:
 * what it counts next lasts for that round.
 */
void
le_seats_begin_round(void)
{
	in_round = true;
	forget();
}

bool
le_seats_are_counted(void)
{
	return counted != NULL;
}

/*
 * Have other processes changed who leads, and may the count be made anew?
 * Each change of ours counts once in le_leadership_generation as well (or not
 * at all: then a change of another process is overlooked, until the next one).
 */
static bool
is_out_of_date(void)
{
	AcceptInvalidationMessages();
	if (le_leadership_generation - counted->changes > counted->own_changes)
		counted->others_changed = true;
	counted->changes = le_leadership_generation;
	counted->own_changes = 0;
	return counted->others_changed && le_clock() >= counted->anew_at;
}

/*
 * The seats as they were counted last, and changed by this process since.
 */
Seats *
le_seats_now(const Store *store)
{

	if (counted != NULL &&
		(counted->lease_oid != store->lease_oid || is_out_of_date()))
		forget();
	if (counted == NULL)
	{
		Seats	   *seats = le_seats_read(store, CurrentMemoryContext);

		/* Until here, an error would have freed the count with its context. */
		MemoryContextSetParent(seats->context, TopMemoryContext);
		counted = seats;
		return counted;
	}
	foreach_ptr(const char, election, counted->touched)
	{
		Seat	   *seat = hash_search(counted->elections, election, HASH_FIND,
									   NULL);

		if (seat != NULL)
			note(counted, seat, le_lease_read(store, election, NULL), NULL);
	}
	list_free_deep(counted->touched);
	counted->touched = NIL;
	return counted;
}

/*
 * This process changes for whom the seat of that election counts.
 */
void
le_seats_touch(const char *election)
{
	le_cap_touch(election);
	if (counted == NULL)
		return;
	remember(counted, &counted->touched, election);
	counted->own_changes++;
}

static void
tell(const Seats *seats, const Seat *seat, Contender *c)
{
	const Holder *holder = find_holder(seats, seat, c->name,
									   &c->candidate->role, HASH_FIND);

	c->weight = seat->group[0] != '\0' && c->rank > 0 ? c->rank : 1;
	c->leads = holder == NULL ? 0 :
		holder->seats - (holder == seat->holder ? 1 : 0);
}

/*
 * Set how many other elections of the strategy, and of the same group if it
 * belongs to one, each who stands in an election, and its holder, leads; and
 * in a group, how much each can bear.  lease is the election's row, as it was
 * read just now.
 */
void
le_seats_tell(Seats *seats, const Election *election, const Lease *lease,
			  View *view)
{
	Seat	   *seat = find_seat(seats, election);

	note(seats, seat, lease, NULL);
	for (int i = 0; i < view->contenders; i++)
		tell(seats, seat, &view->contender[i]);
	if (view->holder != NULL)
		tell(seats, seat, view->holder);
}
