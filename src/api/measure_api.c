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
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(le_measure);
PG_FUNCTION_INFO_V1(le_measure_server);

#define SECONDS(us)		Float8GetDatum((double) (us) / USECS_PER_SEC)
#define RATIO(us, of)	Float8GetDatum((double) (us) / (of))

/*
 * How many of the terms that ended lately did their leaders not give up?
 */
static int
count_lost(const Past *past)
{
	int			lost = 0;

	for (Reason r = 0; r < REASON_COUNT; r++)
		lost += le_reasons[r].lost ? past->ended[r] : 0;
	return lost;
}

/*
 * For how long, in microseconds, should a candidate have led?  That is since
 * the election is vacant (-1: nobody has led yet), a candidate stands for it,
 * and no hold or delay bars it.
 */
static int64
overdue_for(View *view, const Vacancy *v, int64 vacant)
{
	int64		now = le_clock();
	int64		standing = 0;
	int64		overdue;

	for (int i = 0; i < view->ncontenders; i++)
	{
		Contender  *c = &view->contenders[i];

		if (le_contender_is(view, c, TRAIT_ALIVE))
			standing = Max(standing, now - c->stood);
	}
	overdue = vacant < 0 ? standing : Min(vacant, standing);

	/* Nobody has noted yet who stood first: an initial delay is to begin. */
	if (v->note_first_at != PG_INT64_MAX)
		overdue = Max(overdue - view->initial_delay, 0);

	/* Until an epoch begins, the end of the grace is not known. */
	if (v->barred_until > 0 && v->obstacle != OBSTACLE_EPOCH)
		overdue = Max(Min(overdue, now - v->barred_until), 0);
	return overdue;
}

/*
 * When was the oldest change that listeners have not been told of?  0: they
 * know everything.  Without a mark (after a crash) they are to be told of the
 * last change.
 */
static TimestampTz
untold_since(const Lease *lease, const Past *past)
{
	const Mark *mark = le_mark_read(lease->election);
	TimestampTz since;

	if (mark == NULL)
		return lease->term == 0 ? 0 :
			lease->leader != NULL ? lease->acquired_at :
			le_observed_vacant_since(lease, past);
	since = le_history_untold_since(mark);
	return since == 0 && le_mark_lacks_metadata(mark, lease) ?
		lease->metadata_at : since;
}

/*
 * A row of the view metrics.  A leader that is asked to yield is not renewed,
 * which is no fault.
 */
static void
measure_election(const Election *election, ResultRow *row)
{
	const Lease *lease = le_lease_read(election->name, NULL);
	bool		known = lease != NULL;
	bool		led = le_observed_led(lease);
	bool		renewed = led && !lease->yielding && lease->duration > 0;
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz since = 0;
	int64		vacant = -1;
	Obstacle	why = OBSTACLE_NONE;
	const Pause *pause = NULL;
	View	   *view = NULL;
	bool		pause_ends;
	Turnout		turnout;
	Vacancy		vacancy;
	Past		past;

	if (known)
	{
		pause = le_observed_pause(election, &pause_ends);
		le_observed_past(lease, &past);
		since = le_observed_vacant_since(lease, &past);
		view = le_observed_look(election, lease, led, pause, &turnout,
								&vacancy);
	}
	if (led)
		vacant = 0;
	else if (since != 0)
		vacant = Max(now - since, 0);
	if (!led && view != NULL)
		why = le_observed_obstacle_now(vacancy.obstacle, election->name);

	LE_ADD(row, LE_TEXT(election->name));
	LE_ADD_IF(row, election->group != NULL, LE_TEXT(election->group));
	LE_ADD(row, Int32GetDatum(led));
	LE_ADD_IF(row, !led && view != NULL, LE_TEXT(le_obstacles[why].word));
	LE_ADD_IF(row, vacant >= 0, SECONDS(vacant));
	LE_ADD_IF(row, led || view != NULL,
			  SECONDS(!led && turnout.live > 0 && le_obstacles[why].calls ?
					  overdue_for(view, &vacancy, vacant) : 0));
	LE_ADD_IF(row, known, Int64GetDatum(lease->term));
	LE_ADD_IF(row, view != NULL, Int32GetDatum(turnout.live));
	LE_ADD(row, Int32GetDatum(election->quorum));
	LE_ADD_IF(row, known, Int32GetDatum(pause != NULL));
	LE_ADD_IF(row, known, Int32GetDatum(past.begun));
	LE_ADD_IF(row, known, Int32GetDatum(count_lost(&past)));
	LE_ADD_IF(row, renewed,
			  RATIO(le_observed_remaining(lease), lease->duration));
	LE_ADD_IF(row, renewed && lease->left_at_renewal >= 0,
			  RATIO(lease->left_at_renewal, lease->duration));
	since = view != NULL ? untold_since(lease, &past) : 0;
	LE_ADD_IF(row, view != NULL,
			  SECONDS(since == 0 ? 0 : Max(now - since, 0)));
}

/*
 * _measure() -> a row for each election.  What is read of an election is freed
 * with it; but seats of a group have counts in common, which have to stay.
 */
Datum
le_measure(PG_FUNCTION_ARGS)
{
	int			tables = RecoveryInProgress() ?
		LE_TABLE_ELECTION | LE_TABLE_LEASE | LE_TABLE_HISTORY |
		LE_TABLE_PAUSE_ALL :
		LE_TABLES | LE_TABLE_ANNOUNCED | LE_TABLE_GROUP;
	MemoryContext brief;
	BoundedWaits waits;

	InitMaterializedSRF(fcinfo, 0);
	le_call_begin(&waits, LE_EVERYWHERE, tables, AccessShareLock);
	if (!RecoveryInProgress())
	{
		le_pause_all_remember();
		le_drain_remember();
		le_group_remember();
	}
	brief = AllocSetContextCreate(CurrentMemoryContext, "election",
								  ALLOCSET_DEFAULT_SIZES);
	foreach_ptr(const Election, election, le_elections_read())
	{
		MemoryContext old = CurrentMemoryContext;
		ResultRow	row = {0};

		CHECK_FOR_INTERRUPTS();
		if (election->group == NULL)
			MemoryContextSwitchTo(brief);
		measure_election(election, &row);
		le_call_put(fcinfo, &row);
		MemoryContextSwitchTo(old);
		MemoryContextReset(brief);
	}
	le_wait_bounded_end(&waits);
	return (Datum) 0;
}

/*
 * How many of our tables, and the view that all use, does another transaction
 * keep elections or renewals from?
 */
static int
count_locked(const LockData *locks)
{
	bool		locked[TABLE_COUNT + 1] = {false};
	int			count = 0;

	for (int i = 0; i < locks->nelements; i++)
	{
		bool		is_key;
		int			table = le_observed_table(&locks->locks[i].locktag,
											  &is_key);

		if ((locks->locks[i].holdMask & LE_STRONG_MODES) == 0 || table < 0)
			continue;
		count += !locked[table];
		locked[table] = true;
	}
	return count;
}

/*
 * _measure_server() -> what elections need of this server and its standbys, and
 * what the worker tries in vain, since when and how often
 */
Datum
le_measure_server(PG_FUNCTION_ARGS)
{
	bool		on_primary = !RecoveryInProgress();
	TimestampTz now = GetCurrentTimestamp();
	ResultRow	row = {0};
	WorkerTrouble trouble;
	bool		fails;
	SyncStandbys standbys = {0};
	LockData   *locks;
	Oid			share;

	le_scan_check_parallel();
	le_store_get();

	/* Not le_call_begin(): that waits for locks, which are to be counted. */
	if (le_store_try_share(&share))
		UnlockRelationOid(share, AccessShareLock);
	else
		le_store_check_protocol();
	locks = GetLockStatusData();
	if (on_primary)
		(void) le_standbys_observed(&standbys);
	fails = on_primary && le_trouble_read(&trouble) &&
		le_trouble_kind(trouble.code) == TROUBLE_FAILS;

	LE_ADD(&row, Int32GetDatum(!on_primary));
	LE_ADD_IF(&row, on_primary, Int32GetDatum(le_lock_worker_pid(locks) != 0));
	LE_ADD(&row, Int32GetDatum(count_locked(locks)));
	LE_ADD_IF(&row, on_primary, Int32GetDatum(standbys.needed));
	LE_ADD_IF(&row, on_primary, Int32GetDatum(standbys.connected));
	LE_ADD_IF(&row, on_primary, Int64GetDatum((int64) standbys.unconfirmed));
	LE_ADD_IF(&row, on_primary, SECONDS(standbys.silence));
	LE_ADD_IF(&row, on_primary,
			  SECONDS(fails ? Max(now - trouble.since, 1) : 0));
	LE_ADD_IF(&row, on_primary, Int32GetDatum(fails ? trouble.times : 0));
	LE_ADD_IF(&row, fails, SECONDS(Max(trouble.retry_at - now, 0)));
	LE_ADD_IF(&row, fails, LE_TEXT(unpack_sql_state(trouble.code)));
	LE_ADD_IF(&row, fails && le_process_shows(trouble.pid),
			  LE_TEXT(trouble.text));
	return le_call_result(fcinfo, &row);
}
