/*-------------------------------------------------------------------------
 *
 * measure_api.c
 *		SQL functions for monitors: elections, and the server, in numbers.
 *
 * Invariant: nothing here writes, or takes a lock of an election.  _measure()
 * waits for the locks of tables as other calls do, and fails if it does not
 * get them in time: no rows would mean that all is well.  _measure_server()
 * reads none of our tables, and so can tell that they are locked.  On a
 * standby, what its rows do not tell is NULL.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "api/api.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(le_measure);
PG_FUNCTION_INFO_V1(le_measure_server);

#define EVERYWHERE		"(all)" /* no election, in messages */
#define LATELY			USECS_PER_HOUR
#define MOST_TERMS		1000	/* that are read of an election */

#define SECONDS(us)		Float8GetDatum((double) (us) / USECS_PER_SEC)

/* The columns of a row of the view metrics */
typedef enum MetricColumn
{
	METRIC_ELECTION,
	METRIC_GROUP_NAME,
	METRIC_LED,
	METRIC_WAITING_FOR,
	METRIC_VACANT_SECONDS,
	METRIC_OVERDUE_SECONDS,
	METRIC_TERM,
	METRIC_CANDIDATES,
	METRIC_QUORUM,
	METRIC_PAUSED,
	METRIC_CHANGES_LAST_HOUR,
	METRIC_LOST_LAST_HOUR,
	METRIC_LEASE_LEFT_RATIO,
	METRIC_RENEWAL_LEFT_RATIO,
	METRIC_UNANNOUNCED_SECONDS,
	METRIC_COLUMNS
} MetricColumn;

/* One election, while it is measured */
typedef struct Measure
{
	const Store *store;
	const Election *election;
	const Lease *lease;
	bool		led;
	TimestampTz now;

	TimestampTz last_end;		/* of its history; 0: no term has ended */

	Datum		values[METRIC_COLUMNS];
	bool		nulls[METRIC_COLUMNS];
} Measure;

static void
set(Measure *m, MetricColumn column, Datum value)
{
	m->values[column] = value;
	m->nulls[column] = false;
}

/*
 * What the history of the last hour tells, and when the last term ended.
 */
static void
measure_past(Measure *m)
{
	TimestampTz since = m->now - LATELY;
	RowScan    *scan = le_history_scan(m->store, m->election->name, 0,
									   BackwardScanDirection, NULL);
	int			changes = 0;
	int			lost = 0;
	Term		term;

	for (int n = 0; n < MOST_TERMS && le_history_next(scan, &term); n++)
	{
		if (term.acquired_at >= since)
			changes++;
		if (!term.ended)
			continue;
		if (m->last_end == 0)
			m->last_end = term.ended_at;
		if (term.ended_at < since)
			break;
		if (term.reason != NULL && le_reasons[le_reason_find(term.reason)].lost)
			lost++;
	}
	le_scan_end(scan);
	set(m, METRIC_CHANGES_LAST_HOUR, Int32GetDatum(changes));
	set(m, METRIC_LOST_LAST_HOUR, Int32GetDatum(lost));
}

/*
 * How much of the lease is left, and was left when it was renewed last?  A
 * leader that is asked to yield is not renewed, which is no fault.
 */
static void
measure_lease(Measure *m)
{
	const Lease *lease = m->lease;

	set(m, METRIC_VACANT_SECONDS, Float8GetDatum(0));
	set(m, METRIC_OVERDUE_SECONDS, Float8GetDatum(0));
	if (lease->yielding || lease->duration <= 0)
		return;
	set(m, METRIC_LEASE_LEFT_RATIO,
		Float8GetDatum((double) le_observed_remaining(lease) / lease->duration));
	if (lease->left_at_renewal >= 0)
		set(m, METRIC_RENEWAL_LEFT_RATIO,
			Float8GetDatum((double) lease->left_at_renewal / lease->duration));
}

/*
 * For how long, in microseconds, has nobody led?  -1: nobody has led yet.
 */
static int64
vacant_for(const Measure *m)
{
	TimestampTz since = m->lease->leader != NULL ? m->lease->expires_at :
		m->last_end;

	return since == 0 ? -1 : Max(m->now - since, 0);
}

/*
 * For how long, in microseconds, should somebody have led?  That is since the
 * seat is vacant, somebody stands for it, and no hold or delay bars it.
 */
static int64
overdue_for(const Measure *m, const Vacancy *v, int64 vacant)
{
	int64		now = le_clock();
	int64		standing = 0;
	int64		overdue;

	foreach_ptr(Candidate, c, le_candidates_read(m->store, m->election->name))
	{
		if (le_candidate_alive(c))
			standing = Max(standing, now - c->stood);
	}
	overdue = vacant < 0 ? standing : Min(vacant, standing);
	if (v->barred_until > 0 && v->barred_until <= now)
		overdue = Min(overdue, now - v->barred_until);
	return overdue;
}

static void
measure_vacancy(Measure *m, const Turnout *turnout, const Vacancy *v)
{
	int64		vacant = vacant_for(m);
	Obstacle	seen;

	if (vacant >= 0)
		set(m, METRIC_VACANT_SECONDS, SECONDS(vacant));
	if (RecoveryInProgress())
		return;
	seen = le_observed_obstacle_now(v->obstacle, m->election->name);
	set(m, METRIC_WAITING_FOR, CStringGetTextDatum(le_obstacles[seen].word));
	set(m, METRIC_OVERDUE_SECONDS,
		SECONDS(turnout->live > 0 && le_obstacles[seen].calls ?
				overdue_for(m, v, vacant) : 0));
}

/*
 * When was the first change that listeners do not know of, who know what the
 * mark says?  0: they know everything.
 */
static TimestampTz
first_news(const Measure *m, const Mark *mark)
{
	RowScan    *scan = le_history_scan(m->store, m->election->name, mark->term,
									   ForwardScanDirection, NULL);
	TimestampTz since = 0;
	Term		term;

	while (since == 0 && le_history_next(scan, &term))
	{
		if (term.term > mark->term)
			since = term.acquired_at;
		else if (term.ended && !mark->vacated)
			since = term.ended_at;
	}
	le_scan_end(scan);
	return since;
}

/*
 * How old is the oldest change that listeners have not been told of?  After a
 * crash they are to be told of the last one.
 */
static void
measure_news(Measure *m)
{
	const Mark *mark = le_mark_read(m->store, m->election->name);
	TimestampTz since = 0;

	if (mark != NULL)
		since = first_news(m, mark);
	else if (m->lease->term != 0)
		since = m->lease->leader != NULL ? m->lease->acquired_at : m->last_end;
	set(m, METRIC_UNANNOUNCED_SECONDS,
		SECONDS(since == 0 ? 0 : Max(m->now - since, 0)));
}

static void
measure_election(Measure *m)
{
	const Election *election = m->election;
	const Pause *pause;
	bool		ends;
	View	   *view;
	Turnout		turnout;
	Vacancy		vacancy;

	memset(m->nulls, true, sizeof(m->nulls));
	set(m, METRIC_ELECTION, CStringGetTextDatum(election->name));
	if (election->group != NULL)
		set(m, METRIC_GROUP_NAME, CStringGetTextDatum(election->group));
	set(m, METRIC_QUORUM, Int32GetDatum(election->quorum));
	m->led = le_observed_led(m->store, m->lease);
	set(m, METRIC_LED, Int32GetDatum(m->led));
	if (m->lease == NULL)
		return;
	set(m, METRIC_TERM, Int64GetDatum(m->lease->term));
	pause = le_observed_pause(m->store, election, &ends);
	set(m, METRIC_PAUSED, Int32GetDatum(pause != NULL));
	measure_past(m);
	view = le_observed_look(m->store, election, m->lease, m->led, pause,
							&turnout, &vacancy);
	if (m->led)
		measure_lease(m);
	else
		measure_vacancy(m, &turnout, &vacancy);
	if (view == NULL)
		return;
	set(m, METRIC_CANDIDATES, Int32GetDatum(turnout.live));
	measure_news(m);
}

/*
 * _measure() -> a row for each election.  What is read of an election is freed
 * with it; but seats of a group have counts in common, which have to stay.
 */
Datum
le_measure(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			tables = RecoveryInProgress() ?
		LE_TABLE_ELECTION | LE_TABLE_LEASE | LE_TABLE_HISTORY |
		LE_TABLE_PAUSE_ALL :
		LE_TABLES | LE_TABLE_ANNOUNCED | LE_TABLE_GROUP;
	MemoryContext brief;
	Call		call;

	InitMaterializedSRF(fcinfo, 0);
	le_call_begin(&call, EVERYWHERE, tables, AccessShareLock);
	if (!RecoveryInProgress())
	{
		le_pause_all_remember(&call.store);
		le_drain_remember(&call.store);
		le_group_remember(&call.store);
	}
	brief = AllocSetContextCreate(CurrentMemoryContext, "election",
								  ALLOCSET_DEFAULT_SIZES);
	foreach_ptr(const Election, election, le_elections_read(&call.store))
	{
		Measure		m = {.store = &call.store,.election = election};
		MemoryContext old = CurrentMemoryContext;

		CHECK_FOR_INTERRUPTS();
		if (election->group == NULL)
			MemoryContextSwitchTo(brief);
		m.lease = le_lease_read(&call.store, election->name, NULL);
		m.now = GetCurrentTimestamp();
		measure_election(&m);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, m.values,
							 m.nulls);
		MemoryContextSwitchTo(old);
		MemoryContextReset(brief);
	}
	le_call_end(&call);
	return (Datum) 0;
}

/*
 * Is this relation locked so that elections or renewals wait?
 */
static bool
is_locked(const LockData *locks, Oid relation)
{
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *lock = &locks->locks[i];

		if ((lock->holdMask & LE_STRONG_MODES) != 0 &&
			lock->locktag.locktag_type == LOCKTAG_RELATION &&
			lock->locktag.locktag_field1 == MyDatabaseId &&
			lock->locktag.locktag_field2 == relation)
			return true;
	}
	return false;
}

/*
 * How many of our tables, and of the view protocol, are locked so?
 */
static int
count_locked(const Store *store, const LockData *locks)
{
	int			locked = is_locked(locks, store->protocol);

	for (int t = 0; t < TABLE_COUNT; t++)
		locked += is_locked(locks, store->table[t].rel) ||
			is_locked(locks, store->table[t].pkey);
	return locked;
}

/* The columns of the view server_metrics that le_measure_server() fills */
typedef enum ServerColumn
{
	SERVER_IN_RECOVERY,
	SERVER_WORKER,
	SERVER_LOCKED_TABLES,
	SERVER_STANDBYS_NEEDED,
	SERVER_STANDBYS_CONNECTED,
	SERVER_STANDBYS_UNCONFIRMED,
	SERVER_STANDBYS_SILENT,
	SERVER_WORKER_FAILING,
	SERVER_WORKER_FAILURES,
	SERVER_WORKER_RETRY,
	SERVER_WORKER_SQLSTATE,
	SERVER_WORKER_FAILURE,
	SERVER_COLUMNS
} ServerColumn;

/*
 * What does the worker try in vain, since when and how often?
 */
static void
measure_trouble(Datum *values, bool *nulls)
{
	TimestampTz now = GetCurrentTimestamp();
	WorkerTrouble trouble;
	bool		fails = le_trouble_read(&trouble) &&
		le_trouble_kind(trouble.code) == TROUBLE_FAILS;

	values[SERVER_WORKER_FAILING] =
		SECONDS(fails ? Max(now - trouble.since, 1) : 0);
	values[SERVER_WORKER_FAILURES] = Int32GetDatum(fails ? trouble.times : 0);
	nulls[SERVER_WORKER_RETRY] = nulls[SERVER_WORKER_SQLSTATE] = !fails;
	nulls[SERVER_WORKER_FAILURE] = !fails || !le_process_shows(trouble.pid);
	if (!fails)
		return;
	values[SERVER_WORKER_RETRY] = SECONDS(Max(trouble.retry_at - now, 0));
	values[SERVER_WORKER_SQLSTATE] =
		CStringGetTextDatum(unpack_sql_state(trouble.code));
	values[SERVER_WORKER_FAILURE] = CStringGetTextDatum(trouble.text);
}

/*
 * measure_server() -> what elections need of this server and its standbys
 */
Datum
le_measure_server(PG_FUNCTION_ARGS)
{
	bool		on_standby = RecoveryInProgress();
	Datum		values[SERVER_COLUMNS];
	bool		nulls[SERVER_COLUMNS];
	SyncStandbys standbys;
	LockData   *locks;
	Store		store;

	le_scan_check_parallel();
	memset(nulls, on_standby, sizeof(nulls));
	le_store_get(&store);

	/* Not le_call_begin(): that waits for locks, which are to be counted. */
	if (le_store_try_share(&store))
		le_store_end_share(&store);
	else
		le_store_check_protocol();
	locks = GetLockStatusData();
	nulls[SERVER_IN_RECOVERY] = nulls[SERVER_LOCKED_TABLES] = false;
	values[SERVER_IN_RECOVERY] = Int32GetDatum(on_standby);
	values[SERVER_LOCKED_TABLES] = Int32GetDatum(count_locked(&store, locks));
	if (on_standby)
		return le_call_result(fcinfo, lengthof(values), values, nulls);
	(void) le_standbys_observed(&standbys);
	values[SERVER_WORKER] = Int32GetDatum(le_lock_worker_is_in(locks));
	values[SERVER_STANDBYS_NEEDED] = Int32GetDatum(standbys.needed);
	values[SERVER_STANDBYS_CONNECTED] = Int32GetDatum(standbys.connected);
	values[SERVER_STANDBYS_UNCONFIRMED] =
		Int64GetDatum((int64) standbys.unconfirmed);
	values[SERVER_STANDBYS_SILENT] = SECONDS(standbys.silence);
	measure_trouble(values, nulls);
	return le_call_result(fcinfo, lengthof(values), values, nulls);
}
