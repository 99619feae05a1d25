/*-------------------------------------------------------------------------
 *
 * observe_api.c
 *		SQL functions for observers.
 *
 * They write nothing, take no election lock, and work on a standby as well:
 * there the wall clock has to do, since the monotonic one is the primary's.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "api/api.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

PG_FUNCTION_INFO_V1(le_leader);
PG_FUNCTION_INFO_V1(le_observe);
PG_FUNCTION_INFO_V1(le_standing);
PG_FUNCTION_INFO_V1(le_wait_for_change);

/* Latest look of a waiting observer: wake-ups are prompt, this is the net. */
#define LOOK_US			INT64CONST(1000000)

/* On a standby nobody sends wake-ups. */
#define STANDBY_LOOK_US	INT64CONST(100000)
#define HIDDEN_LOOK_US	INT64CONST(10000)

/* What a vacancy waits for, where only candidates' own calls elect anybody */
#define NO_WORKER		"a worker or a call"

/*
 * Does somebody lead, as far as this server can tell?
 */
static bool
is_led(const Store *store, const Lease *lease)
{
	if (lease == NULL || lease->leader == NULL || lease->incomplete)
		return false;
	if (RecoveryInProgress())
		return GetCurrentTimestamp() < lease->expires_at;
	return le_lease_state_now(store, lease) == LEASE_LED;
}

/*
 * Microseconds until the lease is over.
 */
static int64
remaining(const Lease *lease)
{
	int64		left = RecoveryInProgress() ?
		lease->expires_at - GetCurrentTimestamp() :
		lease->deadline_mono - le_clock();

	return Max(left, 0);
}

/*
 * Get at the tables that are to be read, or give up as busy.
 */
static void
begin_reading(BoundedWaits *busy, Store *store, const char *name,
			  int tables)
{
	le_wait_start();
	le_wait_bounded_begin(busy, name);
	le_store_lock(store, tables, AccessShareLock);
}

Datum
le_leader(PG_FUNCTION_ARGS)
{
	text	   *arg = PG_GETARG_TEXT_PP(0);
	char	   *name;
	Store		store;
	BoundedWaits busy;
	Lease	   *lease;
	bool		led;

	if (VARSIZE_ANY_EXHDR(arg) > LE_NAME_MAX || !le_store_find(&store))
		PG_RETURN_NULL();
	name = text_to_cstring(arg);
	begin_reading(&busy, &store, name, LE_TABLE_LEASE);
	lease = le_lease_read(&store, name, NULL);
	led = is_led(&store, lease);
	le_wait_bounded_end(&busy);
	if (!led)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(lease->leader));
}

/*
 * Why nobody leads: what binds for some time, and then whom the election lacks.
 * NULL where that cannot be told, or is just being mended.
 */
static char *
waiting_for(const Store *store, const Election *election, const Lease *lease,
			int live, int ready, int told)
{
	Incarnation *inc = le_epoch_read();
	int64		now = le_clock();
	int64		grace;

	grace = le_grace_mono(election, lease, inc);
	if (grace == PG_INT64_MAX && le_lock_worker_is_free())
		return NO_WORKER;		/* to begin the epoch */
	if (grace > now)
		return "grace after failover";
	if (le_lease_not_before(lease, inc) > now)
		return lease->held ? "hold" : "takeover delay";
	if (lease->leader == NULL && lease->successor != NULL &&
		!le_reservation_lapsed(store, election, lease, inc))
		return psprintf("reserved for %s", lease->successor);
	if (live == 0)
		return "no candidates";
	if (live < election->quorum)
		return psprintf("quorum %d of %d", live, election->quorum);
	if (ready == 0)
		return "candidates that do not sit out";
	if (told == 0 && !le_strategy(election)->reserves)
		return "acquire()";		/* of a detached candidate */
	if (le_lock_worker_is_free())
		return NO_WORKER;
	if (LeSyncStandbysDefined())
		return "synchronous standbys";
	return NULL;
}

/*
 * One election's row of the view status.
 */
Datum
le_observe(PG_FUNCTION_ARGS)
{
	enum
	{
		STATE, WAITING_FOR, LEADER, METADATA, TERM, KIND, BACKEND_PID,
		ACQUIRED_AT, RENEWED_AT, EXPIRES_AT, REMAINING, CANDIDATES, COLUMNS
	};
	text	   *arg = PG_GETARG_TEXT_PP(0);
	char	   *name;
	Store		store;
	BoundedWaits busy;
	Election   *election;
	Lease	   *lease;
	Datum		values[COLUMNS];
	bool		nulls[COLUMNS];

	memset(nulls, true, sizeof(nulls));
	if (VARSIZE_ANY_EXHDR(arg) > LE_NAME_MAX)
		return le_call_result(fcinfo, values, nulls);
	name = text_to_cstring(arg);
	le_store_get(&store);
	begin_reading(&busy, &store, name, RecoveryInProgress() ?
				  LE_TABLE_ELECTION | LE_TABLE_LEASE :
				  LE_TABLES);
	election = le_election_read(&store, name);
	lease = le_lease_read(&store, name, NULL);
	if (election == NULL || lease == NULL)
	{
		le_wait_bounded_end(&busy);
		return le_call_result(fcinfo, values, nulls);
	}

#define SET(column, value) \
	do { values[column] = (value); nulls[column] = false; } while (0)
	if (is_led(&store, lease))
	{
		SET(STATE, CStringGetTextDatum(lease->yielding ? "yielding" : "led"));
		SET(LEADER, CStringGetTextDatum(lease->leader));
		if (lease->metadata != 0)
			SET(METADATA, lease->metadata);
		SET(TERM, Int64GetDatum(lease->term));
		SET(KIND, CStringGetTextDatum(le_kind(lease->session_id)));
		if (lease->backend_pid != 0)
			SET(BACKEND_PID, Int32GetDatum(lease->backend_pid));
		SET(ACQUIRED_AT, TimestampTzGetDatum(lease->acquired_at));
		SET(RENEWED_AT, TimestampTzGetDatum(lease->renewed_at));
		SET(EXPIRES_AT, TimestampTzGetDatum(lease->expires_at));
		SET(REMAINING, le_interval(remaining(lease)));
	}
	else
		SET(STATE, CStringGetTextDatum("vacant"));

	if (!RecoveryInProgress())
	{
		int			live = 0;
		int			ready = 0;
		int			told = 0;	/* can be elected without a call */
		ListCell   *lc;

		foreach(lc, le_candidates_read(&store, name))
		{
			Candidate  *c = lfirst(lc);

			if (!le_candidate_alive(c))
				continue;
			live++;
			if (le_candidate_sits_out(c, lease) ||
				!le_election_admits(election, c->role))
				continue;
			ready++;
			if (c->session_id != 0)
				told++;
		}
		SET(CANDIDATES, Int32GetDatum(live));
		if (nulls[LEADER])
		{
			char	   *why = waiting_for(&store, election, lease, live, ready, told);

			if (why != NULL)
				SET(WAITING_FOR, CStringGetTextDatum(why));
		}
	}
#undef SET
	le_wait_bounded_end(&busy);
	return le_call_result(fcinfo, values, nulls);
}

/*
 * One election's rows of the view candidates.  Where seats have to be counted, one
 * query counts them once, for all elections: what fn_extra points to is the
 * query's, and of no other.
 */
Datum
le_standing(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	text	   *arg = PG_GETARG_TEXT_PP(0);
	char	   *name;
	Store		store;
	BoundedWaits busy;
	Election   *election;
	Lease	   *lease;
	bool		led;
	int			position = 0;
	ListCell   *lc;

	InitMaterializedSRF(fcinfo, 0);
	if (RecoveryInProgress() || /* the table is UNLOGGED */
		VARSIZE_ANY_EXHDR(arg) > LE_NAME_MAX)
		return (Datum) 0;
	name = text_to_cstring(arg);
	le_store_get(&store);
	begin_reading(&busy, &store, name, LE_TABLE_ELECTION | LE_TABLE_LEASE |
				  LE_TABLE_CANDIDATE);
	election = le_election_read(&store, name);
	lease = le_lease_read(&store, name, NULL);
	if (election == NULL || lease == NULL)
	{
		le_wait_bounded_end(&busy);
		return (Datum) 0;
	}
	led = is_led(&store, lease);

	foreach(lc, le_ranking(&store, election, lease,
								  (Seats **) &fcinfo->flinfo->fn_extra,
								  fcinfo->flinfo->fn_mcxt))
	{
		Candidate  *c = lfirst(lc);
		bool		alive = le_candidate_alive(c);
		Datum		values[9];
		bool		nulls[9];

		memset(nulls, false, sizeof(nulls));
		values[0] = CStringGetTextDatum(c->candidate);
		values[1] = CStringGetTextDatum(le_kind(c->session_id));
		values[2] = Int32GetDatum(c->rank);
		values[3] = Int64GetDatum(c->progress);
		values[4] = c->metadata;
		nulls[4] = c->metadata == 0;
		values[5] = TimestampTzGetDatum(c->joined_at);
		values[6] = BoolGetDatum(alive);
		values[7] = BoolGetDatum(led && le_candidate_leads(c, lease));
		if (alive)
			values[8] = Int32GetDatum(++position);
		else
			nulls[8] = true;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	le_wait_bounded_end(&busy);
	return (Datum) 0;
}

/*
 * What an observer sees of an election: term and leader, 0 and "" if vacant;
 * as before, if the table is locked.  Returns when that may change without
 * anybody saying so.
 */
static int64
look(const char *name, int64 *term, char *leader)
{
	Store		store;
	Lease	   *lease;

	le_store_get(&store);
	if (!le_store_try_lock(&store, LE_TABLE_LEASE, AccessShareLock))
		return le_clock() + HIDDEN_LOOK_US;
	lease = le_lease_read(&store, name, NULL);
	if (lease == NULL)
		le_report_no_election(name);
	*term = 0;
	leader[0] = '\0';
	if (!is_led(&store, lease))
		return PG_INT64_MAX;
	*term = lease->term;
	strlcpy(leader, lease->leader, LE_NAME_MAX + 1);
	return le_clock() + remaining(lease);
}

Datum
le_wait_for_change(PG_FUNCTION_ARGS)
{
	char	   *name = le_name_arg(fcinfo, 0, "election name");
	int64		known_term = PG_ARGISNULL(1) ? 0 : PG_GETARG_INT64(1);
	char		known_leader[LE_NAME_MAX + 1] = "";
	int64		give_up_at = PG_INT64_MAX;
	int64		term = known_term;
	char		leader[LE_NAME_MAX + 1];
	MemoryContext context;
	MemoryContext old;
	Datum		values[2];

	le_check_block("leader_election.wait_for_change()",
				   le_call_is_atomic(fcinfo));
	if (!PG_ARGISNULL(2))
		strlcpy(known_leader, le_name_arg(fcinfo, 2, "leader name"),
				sizeof(known_leader));
	if (!PG_ARGISNULL(3))
		give_up_at = le_clock() + le_interval_arg(fcinfo, 3, "timeout",
												  0, LE_LONGEST_TIMEOUT);
	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	name = pstrdup(name);
	strlcpy(leader, known_leader, sizeof(leader));
	context = AllocSetContextCreate(CurrentMemoryContext,
									"leader_election look",
									ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	le_poll_commit(context);

	for (;;)
	{
		uint32		event = le_observer_wait_event();
		int64		next;

		/* Whoever changes the row from here on finds us waiting. */
		ResetLatch(MyLatch);
		pgstat_report_wait_start(event);
		next = look(name, &term, leader);
		le_poll_commit(context);
		if (term != known_term || strcmp(leader, known_leader) != 0 ||
			le_clock() >= give_up_at)
			break;
		next = Min(next, le_clock() + (RecoveryInProgress() ? STANDBY_LOOK_US
									   : LOOK_US));
		/* Another wait in between has hidden us from whoever changes it. */
		if (*my_wait_event_info != event)
			next = Min(next, le_clock() + HIDDEN_LOOK_US);
		le_poll_sleep(Min(next, give_up_at), event);
		CHECK_FOR_INTERRUPTS();
	}
	le_poll_end();
	le_leadership_generation++;				/* the news may travel slower than we */
	pgstat_report_wait_end();
	MemoryContextSwitchTo(old);
	SPI_commit();				/* back to the caller's isolation level */
	SPI_finish();

	values[0] = Int64GetDatum(term);
	values[1] = CStringGetTextDatum(leader);
	return le_call_result(fcinfo, values,
						  (bool[]) {term == 0, term == 0});
}
