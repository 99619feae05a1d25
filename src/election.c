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

#include "access/xact.h"
#include "leader_election.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
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
	return election;
}

static void
read_one(HeapTuple tuple, Datum *values, bool *nulls, void *arg)
{
	*(Election **) arg = make_election(values, nulls);
}

/*
 * The configuration of an election; NULL if there is none of that name.
 */
Election *
le_election_read(const Store *store, const char *name)
{
	Election   *election = NULL;

	le_scan(store->election, store->election_pkey, name, NULL, read_one,
			&election);
	return election;
}

Election *
le_election_get(const Store *store, const char *name)
{
	Election   *election = le_election_read(store, name);

	if (election == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_LE_NO_ELECTION),
				 errmsg("election \"%s\" does not exist", name),
				 errhint("The first join() or campaign() creates it.")));
	return election;
}

/*
 * Make an election with default settings.  Under its name lock.
 */
static void
create_election(const Store *store, const char *name)
{
	Datum		values[3];
	NameData	owner;

	namestrcpy(&owner, GetUserNameFromId(store->owner, false));
	values[0] = CStringGetTextDatum(name);
	values[1] = Int64GetDatum(le_lease_duration_ms * INT64CONST(1000));
	values[2] = NameGetDatum(&owner);
	(void) le_execute(LE_INSERT_ELECTION, values, NULL);
	(void) le_execute(LE_INSERT_LEASE, values, NULL);
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
			CommandCounterIncrement();
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
 * Who is next, NULL if nobody.  Whoever sits out is passed over, but may
 * elect itself by its own call if there is nobody else.  The same goes for
 * the holder that steps down just now (0: none does).
 */
static Candidate *
choose(const Store *store, const Election *election, const Lease *lease,
	   int64 caller_session_id, int64 passed_over)
{
	Candidate  *winner = NULL;
	int			live = 0;
	ListCell   *lc;

	foreach(lc, le_election_order(store, election, lease))
	{
		Candidate  *c = lfirst(lc);
		bool		waits = c->session_id == passed_over ||
			le_election_passes_over(c, lease);

		if (winner != NULL && live >= election->quorum)
			break;
		if (!le_candidate_alive(c))
			continue;
		live++;
		if (winner == NULL &&
			(!waits || c->session_id == caller_session_id))
			winner = c;
	}
	return live >= election->quorum ? winner : NULL;
}

/*
 * The candidate that the leader hands its lease to.
 */
static Candidate *
choose_named(const Store *store, const Election *election,
			 const char *to_candidate)
{
	ListCell   *lc;

	foreach(lc, le_candidates_read(store, election->name))
	{
		Candidate  *c = lfirst(lc);

		if (strcmp(c->candidate, to_candidate) == 0 && le_candidate_alive(c))
			return c;
	}
	ereport(ERROR,
			(errcode(ERRCODE_LE_NOT_A_CANDIDATE),
			 errmsg("\"%s\" is not a live candidate of election \"%s\"",
					to_candidate, election->name),
			 errhint("The view leader_election.candidates shows who stands.")));
}

static const char *
reason_of(LeaseState state)
{
	switch (state)
	{
		case LEASE_EXPIRED:
			return "expired";
		case LEASE_ORPHANED:
			return "session ended";
		case LEASE_FOREIGN:
			return "failover";
		case LEASE_VACANT:
		case LEASE_LED:
			break;
	}
	return NULL;
}

static void
end_history(const Lease *lease, const char *reason, const char *detail,
			TimestampTz at)
{
	Datum		values[5];

	values[0] = CStringGetTextDatum(lease->election);
	values[1] = Int64GetDatum(lease->term);
	values[2] = TimestampTzGetDatum(at);
	values[3] = CStringGetTextDatum(reason);
	if (detail != NULL)
		values[4] = CStringGetTextDatum(detail);
	(void) le_execute(LE_END_HISTORY, values, detail != NULL ? NULL : "    n");
}

static bool
lock_history(const Lease *lease)
{
	Datum		values[2];

	values[0] = CStringGetTextDatum(lease->election);
	values[1] = Int64GetDatum(lease->term);
	return le_execute(LE_LOCK_HISTORY, values, NULL) == 1;
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
	return state == LEASE_EXPIRED && !lease->auto_renew;
}

/*
 * Write the end of a term and, unless winner is NULL, the beginning of the
 * next one, and tell everybody.
 */
static void
write_change(const Store *store, const Election *election, const Lease *lease,
			 const Incarnation *inc, const char *reason, const char *detail,
			 const Candidate *winner, int64 free_mono, int64 now)
{
	TimestampTz at = GetCurrentTimestamp();
	Change		change;

	memset(&change, 0, sizeof(change));
	change.election = election->name;
	change.channel = election->channel;
	change.term = lease->term;
	change.previous = lease->leader;
	change.reason = reason;
	if (lease->leader != NULL)
		end_history(lease, reason, detail, at);
	if (winner != NULL)
	{
		change.event = "elected";
		change.term = le_next_term(lease->term, inc);
		change.leader = winner->candidate;
		change.winner_pid = winner->backend_pid;
		le_lease_grant(lease, winner->candidate, winner->session_id,
					   change.term, election->lease_duration, now, at,
					   inc->name);
	}
	else
	{
		change.event = "vacated";
		le_lease_vacate(lease, free_mono, now, at, inc->name);
	}
	le_notify(store, &change, at);
}

/*
 * Look at an election and do what is due: end a leadership that is over, or
 * that its holder gives up (give_up), and elect the next leader.  Returns what
 * was done; busy, if somebody has a row of ours locked and nothing was done.
 *
 * caller_session_id: the session candidate in whose own call this happens, 0
 * for none.  The caller holds the election lock and the tables' locks, and is
 * the owner.
 */
Settled
le_election_settle(const Store *store, const Election *election,
				   int64 caller_session_id, const GiveUp *give_up)
{
	Settled		result = {true, false, false};
	Incarnation *inc = le_incarnation_read();
	Lease	   *lease = le_lease_read(store, election->name, NULL);
	LeaseState	state = le_lease_state(lease, inc->name, le_clock());
	Candidate  *winner = NULL;
	int64		now;
	int64		grace;
	int64		free_mono;
	int64		passed_over;

	/* Against renewals; a vacant lease has none, and costs no write. */
	if (state != LEASE_VACANT)
	{
		if (!le_lease_lock(election->name))
			return result;
		lease = le_lease_read(store, election->name, NULL);
	}
	now = le_clock();
	state = le_lease_state(lease, inc->name, now);
	grace = le_election_grace_mono(election, lease, inc);
	if (give_up != NULL && (lease->leader == NULL ||
							give_up->session_id != lease->session_id))
		give_up = NULL;			/* it is not the holder */

	result.busy = false;
	if (state == LEASE_LED && give_up == NULL)
		return result;
	if (state == LEASE_FOREIGN && grace > now)
		return result;
	if (state == LEASE_LED && give_up->to_candidate != NULL && grace > now)
		le_busy(election->name);

	/* When may somebody follow, and who? */
	if (state == LEASE_VACANT)
		free_mono = le_lease_free_mono(lease, inc);
	else if (state == LEASE_LED)
		free_mono = give_up->hold > 0 ? lease->acquired_mono + give_up->hold : 0;
	else
		free_mono = now + election->takeover_delay;
	passed_over = steps_down(lease, state, give_up) ? lease->session_id : 0;
	if (state == LEASE_LED && give_up->to_candidate != NULL)
		winner = choose_named(store, election, give_up->to_candidate);
	else if (Max(free_mono, grace) <= now)
		winner = choose(store, election, lease, caller_session_id, passed_over);
	if (winner == NULL && state == LEASE_VACANT)
		return result;

	/* Every row that will be written, or read in writing, is ours first. */
	result.busy = (state == LEASE_VACANT && !le_lease_lock(election->name)) ||
		(state != LEASE_VACANT && !lock_history(lease)) ||
		(winner != NULL && !le_candidate_lock(winner));
	if (result.busy)
		return result;
	if (passed_over != 0 &&
		!le_candidate_sit_out(lease->election, lease->leader,
							  lease->session_id, lease->term, now) &&
		give_up != NULL)
	{
		result.busy = true;
		return result;
	}

	write_change(store, election, lease, inc,
				 state == LEASE_LED ? give_up->reason : reason_of(state),
				 state == LEASE_LED ? give_up->detail : NULL,
				 winner, free_mono, now);
	result.changed = true;
	result.gave_up = state == LEASE_LED;
	return result;
}
