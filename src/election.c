/*-------------------------------------------------------------------------
 *
 * election.c
 *		The only place where the holder of an election changes.
 *
 * Invariants:
 *
 * - The holder changes under the election lock in Exclusive mode, in one
 *	 transaction that ends the old term, grants the new one, writes history
 *	 and notifies.  If the process dies anywhere in between, nothing happened.
 *
 * - A new leader is chosen only if the old one itself gave up, or its deadline
 *	 passed, or its session is provably dead on this incarnation.
 *
 * Candidates, the worker and waiting campaigns all come here to decide; none
 * of them is trusted to know better.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_class.h"
#include "leader_election.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

/* Column numbers of election */
enum
{
	ELECTION_ELECTION,
	ELECTION_STRATEGY,
	ELECTION_LEASE_DURATION,
	ELECTION_QUORUM,
	ELECTION_TAKEOVER_DELAY,
	ELECTION_CANDIDATE_ROLE,
	ELECTION_CHANNEL,
	ELECTION_OWNER
};

static int64
interval_us(Datum value)
{
	const Interval *interval = DatumGetIntervalP(value);

	return interval->time +
		(interval->day + interval->month * INT64CONST(30)) * USECS_PER_DAY;
}

static Election *
make_election(Datum *values, bool *nulls)
{
	Election   *election = palloc0(sizeof(Election));

	election->name = TextDatumGetCString(values[ELECTION_ELECTION]);
	election->strategy = TextDatumGetCString(values[ELECTION_STRATEGY]);
	election->lease_duration = interval_us(values[ELECTION_LEASE_DURATION]);
	election->quorum = DatumGetInt32(values[ELECTION_QUORUM]);
	election->takeover_delay = interval_us(values[ELECTION_TAKEOVER_DELAY]);
	if (!nulls[ELECTION_CANDIDATE_ROLE])
		election->candidate_role =
			pstrdup(NameStr(*DatumGetName(values[ELECTION_CANDIDATE_ROLE])));
	if (!nulls[ELECTION_CHANNEL])
		election->channel = TextDatumGetCString(values[ELECTION_CHANNEL]);
	election->owner = pstrdup(NameStr(*DatumGetName(values[ELECTION_OWNER])));
	return election;
}

static bool
read_one(HeapTuple tuple, Datum *values, bool *nulls, void *arg)
{
	*(Election **) arg = make_election(values, nulls);
	return false;
}

/*
 * The configuration of an election; NULL if there is none of that name.
 */
Election *
le_election_read(const Store *store, const char *name)
{
	Election   *election = NULL;
	Key			key = le_key(name);

	le_scan(store->election, store->election_pkey, &key, NULL, read_one,
			&election);
	return election;
}

Election *
le_election_get(const Store *store, const char *name)
{
	Election   *election = le_election_read(store, name);

	if (election == NULL)
		le_report_no_election(name);
	return election;
}

void
le_report_no_election(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_LE_NO_ELECTION),
			 errmsg("election \"%s\" does not exist", name),
			 errhint("The first join(), campaign() or acquire() creates it.")));
}

static Datum
interval_datum(int64 us)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = us;
	return IntervalPGetDatum(interval);
}

static char *
owner_of_tables(const Store *store)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(store->lease));
	char	   *owner;

	if (!HeapTupleIsValid(tuple))
		le_report_dropped();
	owner = GetUserNameFromId(((Form_pg_class) GETSTRUCT(tuple))->relowner,
							  false);
	ReleaseSysCache(tuple);
	return owner;
}

/*
 * Make an election with default settings.  Under its name lock.
 */
static void
create_election(const Store *store, const char *name)
{
	Row		   *row = le_row_new(store->election);

	LE_SET_TEXT(row, ELECTION_ELECTION, name);
	LE_SET_TEXT(row, ELECTION_STRATEGY, "race");
	LE_SET(row, ELECTION_LEASE_DURATION,
		   interval_datum(le_lease_duration_ms * INT64CONST(1000)));
	LE_SET(row, ELECTION_QUORUM, Int32GetDatum(1));
	LE_SET(row, ELECTION_TAKEOVER_DELAY, interval_datum(0));
	LE_SET_NAME(row, ELECTION_OWNER, owner_of_tables(store));
	le_row_insert(row);
	if (le_lease_read(store, name, NULL) == NULL)
		le_lease_create(store, name);
	ereport(NOTICE,
			(errmsg("election \"%s\" does not exist, creating it with default settings",
					name)));
	ereport(LOG_SERVER_ONLY,
			(errmsg("leader_election: election \"%s\" is created on first use",
					name),
			 errhidestmt(true)));
}

/*
 * The same, but an election that does not exist is created, where the setting
 * allows that.  NULL if another transaction is about to create it: with wait,
 * only after the call has waited as long as it may.
 */
Election *
le_election_get_or_create(const Store *store, const char *name, bool wait)
{
	for (;;)
	{
		Election   *election = le_election_read(store, name);

		if (election != NULL)
			return election;
		if (!le_auto_create)
			ereport(ERROR,
					(errcode(ERRCODE_LE_NO_ELECTION),
					 errmsg("election \"%s\" does not exist", name),
					 errhint("Elections are not created on first use: leader_election.auto_create is off.")));
		if (le_name_lock(name, NULL))
		{
			/* Look again: it may have been made before we had the lock. */
			if (le_election_read(store, name) == NULL)
				create_election(store, name);
		}
		else if (!wait || !le_wait_more())
			return NULL;
	}
}

/*
 * Until when nobody is elected because the server was another incarnation
 * before: somebody may still lead elsewhere until a lease has passed.
 */
int64
le_election_grace_mono(const Election *election, const Lease *lease,
					   const Incarnation *inc)
{
	int64		longest = election->lease_duration;

	if (!inc->known)
		return PG_INT64_MAX;
	if (inc->epoch == 0)
		return 0;
	if (lease->incarnation != NULL &&
		strcmp(lease->incarnation, inc->name) != 0)
		longest = Max(longest, lease->duration);
	return inc->first_seen + longest;
}

/*
 * Is this candidate passed over for now?
 */
bool
le_election_passes_over(const Candidate *c, const Lease *lease)
{
	return c->sits_out >= lease->term;
}

/*
 * All candidates of an election, live or not, in the order in which they
 * would be elected.
 */
List *
le_election_order(const Store *store, const Election *election,
				  const Lease *lease)
{
	List	   *candidates = le_candidates_read(store, election->name);
	List	   *ready = NIL;
	List	   *sitting_out = NIL;
	ListCell   *lc;

	list_sort(candidates, le_strategy(election->strategy)->order);
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
 * Who is next, NULL if nobody.  Whoever sits out is passed over, and so is the
 * holder that steps down just now; but if nobody else is eligible they may
 * elect themselves by their own call (caller, NULL for none).  A detached
 * candidate that does not call is next only where the strategy reserves the
 * seat for it.
 */
static Candidate *
choose(const Store *store, const Election *election, const Lease *lease,
	   const Candidate *caller, bool holder_steps_down)
{
	bool		reserves = le_strategy(election->strategy)->reserves;
	Candidate  *winner = NULL;
	Candidate  *last_resort = NULL;
	bool		eligible = false;
	int			live = 0;
	ListCell   *lc;

	foreach(lc, le_election_order(store, election, lease))
	{
		Candidate  *c = lfirst(lc);
		bool		calls = caller != NULL && le_candidate_is_same(c, caller);

		if (winner != NULL && live >= election->quorum)
			break;
		if (!le_candidate_alive(c))
			continue;
		live++;
		if (le_election_passes_over(c, lease) ||
			(holder_steps_down && le_candidate_leads(c, lease)))
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

/*
 * The candidate that the leader hands its lease to, or is asked to yield to.
 */
Candidate *
le_election_candidate(const Store *store, const Election *election,
					  const char *name)
{
	Candidate  *c = le_candidate_find(store, election->name, name);

	if (c == NULL || !le_candidate_alive(c))
		ereport(ERROR,
				(errcode(ERRCODE_LE_NOT_A_CANDIDATE),
				 errmsg("\"%s\" is not a live candidate of election \"%s\"",
						name, election->name),
				 errhint("The view leader_election.candidates shows who stands.")));
	return c;
}

/*
 * Whom the seat is, or is to be, kept for; NULL: for nobody, or for one that
 * is not there any more.
 */
static Candidate *
find_successor(const Store *store, const Lease *lease, LeaseState state,
			   const Incarnation *inc, int64 now)
{
	Candidate  *c;

	if (lease->successor == NULL ||
		(state == LEASE_VACANT &&
		 now >= le_lease_reserved_mono(lease, inc->name)))
		return NULL;
	c = le_candidate_find(store, lease->election, lease->successor);
	return c != NULL && le_candidate_alive(c) ? c : NULL;
}

/*
 * Until when a vacant seat is kept for a detached candidate; 0: it is not.
 */
int64
le_election_reserved_mono(const Store *store, const Lease *lease,
						  const Incarnation *inc)
{
	Candidate  *c = find_successor(store, lease, LEASE_VACANT, inc, le_clock());

	if (c == NULL || c->session_id != 0)
		return 0;
	return Min(le_lease_reserved_mono(lease, inc->name), c->seen + c->seen_for);
}

/*
 * Why did, or does, this leadership end?  It is not simply led on.
 */
static const char *
reason_of(const Lease *lease, LeaseState state, const GiveUp *give_up)
{
	switch (state)
	{
		case LEASE_LED:
			return lease->yielding && give_up->yields ? "yielded" : give_up->reason;
		case LEASE_EXPIRED:
			return lease->yielding ? "yielded" : "expired";
		case LEASE_ORPHANED:
			return "session ended";
		case LEASE_FOREIGN:
			return "failover";
		case LEASE_VACANT:
			break;
	}
	return NULL;
}

/*
 * Is the holder to be passed over, once its leadership has ended?  A leader
 * that was to renew its lease itself and did not may be hung: electing it
 * again at once would elect nobody else, ever.
 */
static bool
steps_down(const Lease *lease, LeaseState state, const GiveUp *give_up)
{
	if (give_up != NULL)
		return give_up->sits_out;
	return state == LEASE_EXPIRED && (lease->yielding || !lease->auto_renew);
}

/*
 * From when on may somebody follow?
 */
static int64
free_from(const Election *election, const Lease *lease, LeaseState state,
		  const GiveUp *give_up, const Incarnation *inc, int64 now)
{
	switch (state)
	{
		case LEASE_VACANT:
			return le_lease_free_mono(lease, inc);
		case LEASE_LED:
			return give_up->hold > 0 ? lease->acquired_mono + give_up->hold : 0;
		case LEASE_EXPIRED:
			/* Who lets a requested yield run out has given up. */
			return lease->yielding ? 0 : now + election->takeover_delay;
		case LEASE_ORPHANED:
		case LEASE_FOREIGN:
			break;
	}
	return now + election->takeover_delay;
}

/*
 * Grant the lease, which is locked, to a candidate, from t0 on.  It may continue
 * its previous_term (0: none).
 */
static void
grant(const Store *store, const Election *election, Lease *lease,
	  const Incarnation *inc, const Candidate *winner, int64 previous_term,
	  Change *change, int64 t0, TimestampTz at)
{
	change->event = "elected";
	change->term = le_next_term(lease->term, inc);
	change->leader = winner->candidate;
	change->winner_pid = winner->backend_pid;
	le_lease_grant(lease, winner, change->term, previous_term,
				   election->lease_duration, t0, at, inc->name);
	le_history_begin(store, winner, change->term, at);
}

/*
 * Is it the holder of this lease that gives up?
 */
static bool
is_holder(const GiveUp *give_up, const Lease *lease)
{
	if (give_up->session_id != 0)
		return give_up->session_id == lease->session_id;
	return le_lease_is_term(lease, give_up->term);
}

/*
 * Is there nothing to be done: nobody gives up, and the leadership goes on, or
 * it is not yet known whether it does?
 */
static bool
goes_on(const Election *election, const Lease *lease, LeaseState state,
		const GiveUp *give_up, const Incarnation *inc)
{
	if (state == LEASE_LED)
		return give_up == NULL || !is_holder(give_up, lease);
	return state == LEASE_FOREIGN &&
		le_election_grace_mono(election, lease, inc) > le_clock();
}

/*
 * Look at an election and do what is due: end a leadership that is over, or
 * that its holder gives up (give_up), and elect the next leader.  Returns what
 * was done; busy, if somebody has a row of ours locked and nothing was done.
 *
 * caller: the candidate in whose own call this happens, NULL for none.  proof
 * was made before the election lock was taken.  The caller holds that lock and
 * the tables' locks.
 */
Settled
le_election_settle(const Store *store, const Election *election,
				   const Candidate *caller, const GiveUp *give_up,
				   const Proof *proof)
{
	Settled		result = {.busy = false};
	Incarnation *inc = le_incarnation_read();
	Lease	   *lease = le_lease_read(store, election->name, NULL);
	LeaseState	state = le_lease_state(lease, inc->name, le_clock());
	Candidate  *successor;
	Candidate  *winner = NULL;
	Candidate  *holder = NULL;
	Row		   *history = NULL;
	Change		change = {.election = election->name,
	.channel = election->channel};
	int64		now;
	int64		grace;
	int64		free_mono;
	TimestampTz at;

	/* Against renewals; a vacant lease has none, and costs no write. */
	if (goes_on(election, lease, state, give_up, inc))
		return result;
	if (state != LEASE_VACANT)
	{
		lease = le_lease_lock(store, election->name);
		result.busy = lease == NULL;
		if (result.busy)
			return result;
	}
	now = le_clock();
	state = le_lease_state(lease, inc->name, now);
	if (goes_on(election, lease, state, give_up, inc))
		return result;
	if (give_up != NULL && !is_holder(give_up, lease))
		give_up = NULL;
	grace = le_election_grace_mono(election, lease, inc);
	if (state == LEASE_LED && give_up->to_candidate != NULL && grace > now)
		le_busy(election->name);

	/* When may somebody follow, and who? */
	free_mono = free_from(election, lease, state, give_up, inc, now);
	if (state == LEASE_LED && give_up->to_candidate != NULL)
		successor = le_election_candidate(store, election, give_up->to_candidate);
	else
		successor = find_successor(store, lease, state, inc, now);
	if (Max(free_mono, grace) <= now)
		winner = successor != NULL ? successor :
			choose(store, election, lease, caller, steps_down(lease, state, give_up));
	if (winner != NULL && winner->session_id == 0 &&
		(caller == NULL || !le_candidate_is_same(winner, caller)))
	{
		/* A detached candidate is granted the lease in its own call only. */
		successor = winner;
		winner = NULL;
	}
	if (winner == NULL && state == LEASE_VACANT)
		return result;

	/*
	 * Where a standby may be promoted that does not know of the end of a term,
	 * its detached holder could renew there: nobody follows before the standbys
	 * have confirmed that end.
	 */
	if ((!proof->confirmed && give_up == NULL) ||
		(proof->required && state == LEASE_VACANT &&
		 proof->vacant_term != lease->term))
	{
		result.unproven = true;
		return result;
	}
	if (!proof->confirmed ||
		(proof->required && state != LEASE_VACANT && lease->session_id == 0))
		winner = NULL;

	/* Every row that will be written, or read in writing, is ours first. */
	if (steps_down(lease, state, give_up))
		holder = le_candidate_of_lease(lease);
	if ((lease->row == NULL &&
		 (lease = le_lease_lock(store, election->name)) == NULL) ||
		(state != LEASE_VACANT &&
		 !le_history_lock(store, election->name, lease->term, &history)) ||
		(holder != NULL && !le_candidate_lock(store, holder)) ||
		(winner != NULL &&
		 (!le_candidate_lock(store, winner) || winner->row == NULL)))
	{
		result.busy = true;
		return result;
	}

	at = GetCurrentTimestamp();
	change.term = lease->term;
	change.previous = lease->leader;
	change.reason = reason_of(lease, state, give_up);
	if (history != NULL)
		le_history_end(history, change.reason,
					   state == LEASE_LED ? give_up->detail : NULL, at);
	if (holder != NULL && holder->row != NULL)
		le_candidate_sit_out(holder, lease->term, now);
	if (winner != NULL)
		grant(store, election, lease, inc, winner, 0, &change,
			  proof->required ? proof->t0 : now, at);
	else
	{
		change.event = "vacated";
		le_lease_vacate(lease, free_mono,
						successor != NULL ? successor->candidate : NULL,
						Max(free_mono, now) + lease->duration,
						now, at, inc->name);
	}
	le_notify(store, &change, at);
	result.changed = true;
	result.gave_up = state == LEASE_LED;
	return result;
}

/*
 * Lead on after a failover: the detached holder of a lease that another
 * incarnation of the server has granted, who knows its term, goes on in a term
 * of the new epoch.  Later, somebody else may have been elected: the term is
 * over.  The caller holds the election lock and the tables' locks.  NULL: it is
 * over, or somebody has a row of ours locked.
 */
Lease *
le_election_continue(const Store *store, const Election *election, int64 term,
					 const Proof *proof, bool *over)
{
	Incarnation *inc = le_incarnation_read();
	Lease	   *lease = le_lease_lock(store, election->name);
	int64		now = le_clock();
	TimestampTz at = GetCurrentTimestamp();
	Row		   *history;
	Change		change = {.election = election->name,
	.channel = election->channel, .reason = "failover"};

	*over = false;
	if (lease == NULL)
		return NULL;
	*over = !le_lease_is_term(lease, term) ||
		le_lease_state(lease, inc->name, now) != LEASE_FOREIGN ||
		le_election_grace_mono(election, lease, inc) <= now;
	if (*over)
		return NULL;
	if (!inc->known)
		le_busy(election->name);	/* until the worker has started the epoch */
	if (!le_history_lock(store, election->name, lease->term, &history))
		return NULL;
	change.previous = lease->leader;
	if (history != NULL)
		le_history_end(history, change.reason, NULL, at);
	grant(store, election, lease, inc, le_candidate_of_lease(lease),
		  lease->term, &change, proof->t0, at);
	le_notify(store, &change, at);
	return le_lease_read(store, election->name, NULL);
}
