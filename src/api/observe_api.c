/*-------------------------------------------------------------------------
 *
 * observe_api.c
 *		SQL functions for observers.
 *
 * Invariant: they write nothing and take no election lock.  They work on a
 * standby as well: there the wall clock has to do, since the monotonic values
 * are those of the primary's clock.
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
#include "utils/timestamp.h"
#include "utils/wait_event.h"

PG_FUNCTION_INFO_V1(le_leader);
PG_FUNCTION_INFO_V1(le_observe);
PG_FUNCTION_INFO_V1(le_standing);
PG_FUNCTION_INFO_V1(le_wait_for_change);

/* How long a waiting observer sleeps at most, in case a wake-up is missed */
#define LOOK_US			INT64CONST(1000000)

/* ... on a standby, where no process sends wake-ups */
#define STANDBY_LOOK_US	INT64CONST(100000)

/* ... and after a wait in which wake-ups could not find it: see next_look() */
#define HIDDEN_LOOK_US	INT64CONST(10000)

/*
 * The name of an election to be looked at; NULL: none has that name.  The
 * functions are STRICT, but one that is no superuser may own them by now, and
 * have them called with NULL.
 */
static char *
election_arg(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(0) ||
		VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(0)) > LE_NAME_MAX)
		return NULL;
	return text_to_cstring(PG_GETARG_TEXT_PP(0));
}

Datum
le_leader(PG_FUNCTION_ARGS)
{
	const char *name = election_arg(fcinfo);
	BoundedWaits waits;
	Lease	   *lease;
	bool		led;

	if (name == NULL || !le_store_find())
		PG_RETURN_NULL();
	le_call_begin(&waits, name, LE_TABLE_LEASE, AccessShareLock);
	lease = le_lease_read(name, NULL);
	led = le_observed_led(lease);
	le_wait_bounded_end(&waits);
	if (!led)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(lease->leader));
}

/*
 * What a query of a view counts once, for all its elections, and keeps in
 * fn_extra until it ends
 */
typedef struct Counted
{
	Tally	   *tally;			/* NULL: not counted yet */
	List	   *groups;			/* those of cap.c */
	bool		knows_groups;
} Counted;

static Counted *
counted_by(FunctionCallInfo fcinfo)
{
	if (fcinfo->flinfo->fn_extra == NULL)
		fcinfo->flinfo->fn_extra = MemoryContextAllocZero(fcinfo->flinfo->fn_mcxt,
														  sizeof(Counted));
	return fcinfo->flinfo->fn_extra;
}

/*
 * A seat of a group waits for candidates that have not too many others: who
 * observes it has to know that group.
 */
static void
know_group(FunctionCallInfo fcinfo, const Election *election)
{
	Counted    *counted = counted_by(fcinfo);

	if (election == NULL || election->group == NULL)
		return;
	le_store_lock(LE_TABLE_GROUP, AccessShareLock);
	if (!counted->knows_groups)
	{
		MemoryContext old = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);

		le_group_remember();
		counted->groups = le_remembered.groups;
		counted->knows_groups = true;
		MemoryContextSwitchTo(old);
	}
	le_remembered.groups = counted->groups;
	le_remembered.knows_groups = true;
}

/*
 * One election's row of the view status.
 */
static void
show_election(FunctionCallInfo fcinfo, const Election *election,
			  const Lease *lease, ResultRow *row)
{
	const Runs *runs = &lease->runs;
	bool		led = le_observed_led(lease);
	TimestampTz since = lease->acquired_at;
	bool		pause_ends;
	const Pause *pause = le_observed_pause(election, &pause_ends);
	bool		paused = pause != NULL;
	const char *why = NULL;
	View	   *view;
	Turnout		turnout;
	Vacancy		vacancy;
	Past		past;

	if (!led && !RecoveryInProgress())
		know_group(fcinfo, election);
	view = le_observed_look(election, lease, led, pause, &turnout, &vacancy);
	if (!led)
	{
		why = le_observed_waiting_for(election, &turnout, &vacancy);
		le_observed_past(lease, &past);
		since = le_observed_vacant_since(lease, &past);
	}

	LE_ADD(row, LE_TEXT(!led ? "vacant" : lease->yielding ? "yielding" : "led"));
	LE_ADD_IF(row, led, LE_TEXT(lease->leader));
	LE_ADD_IF(row, led, Int64GetDatum(lease->term));
	LE_ADD_IF(row, since != 0, TimestampTzGetDatum(since));
	LE_ADD_IF(row, led, le_clock_interval(le_observed_remaining(lease)));
	LE_ADD_IF(row, why != NULL, LE_TEXT(why));
	LE_ADD_IF(row, view != NULL, Int32GetDatum(turnout.live));
	LE_ADD_IF(row, led, LE_TEXT(le_lease_kind(lease->session_id)));
	LE_ADD_IF(row, led && lease->backend_pid != 0,
			  Int32GetDatum(lease->backend_pid));
	LE_ADD_IF(row, led, TimestampTzGetDatum(lease->renewed_at));
	LE_ADD_IF(row, led, TimestampTzGetDatum(lease->expires_at));
	LE_ADD_IF(row, paused, TimestampTzGetDatum(pause->at));
	LE_ADD_IF(row, paused, LE_NAME(pause->by));
	LE_ADD_IF(row, paused && pause->reason != NULL, LE_TEXT(pause->reason));
	LE_ADD_IF(row, paused && pause_ends,
			  TimestampTzGetDatum(pause->resumes_at));
	LE_ADD_IF(row, led && runs->present != NULL, LE_TEXT(runs->present));
	LE_ADD_IF(row, runs->done != NULL, LE_TEXT(runs->done));
	LE_ADD_IF(row, runs->done != NULL, TimestampTzGetDatum(runs->done_at));
	LE_ADD_IF(row, le_role_exists(&election->owner),
			  LE_NAME(le_role_name(&election->owner)));
	LE_ADD_IF(row, led && lease->metadata != 0, lease->metadata);
	LE_ADD_IF(row, led && lease->metadata_at != 0,
			  TimestampTzGetDatum(lease->metadata_at));
}

/*
 * _observe(election) -> a row; all NULL if there is no such election.
 */
Datum
le_observe(PG_FUNCTION_ARGS)
{
	const char *name = election_arg(fcinfo);
	ResultRow	row = {0};
	BoundedWaits waits;
	Election   *election;
	Lease	   *lease;

	if (name == NULL)
		return le_call_result(fcinfo, &row);
	le_call_begin(&waits, name, RecoveryInProgress() ?
				  LE_TABLE_ELECTION | LE_TABLE_LEASE | LE_TABLE_HISTORY |
				  LE_TABLE_PAUSE_ALL : LE_TABLES, AccessShareLock);
	election = le_election_read(name);
	lease = le_lease_read(name, NULL);
	if (election != NULL && lease != NULL)
		show_election(fcinfo, election, lease, &row);
	le_wait_bounded_end(&waits);
	return le_call_result(fcinfo, &row);
}

/*
 * A candidate's row of the view candidates; position 0: it has none.
 */
static void
put_candidate(FunctionCallInfo fcinfo, View *view, Contender *contender,
			  bool led, int position)
{
	const Candidate *c = contender->candidate;
	ResultRow	row = {0};

	LE_ADD(&row, LE_TEXT(c->candidate));
	LE_ADD_IF(&row, position != 0, Int32GetDatum(position));
	LE_ADD(&row, BoolGetDatum(led && contender->holds));
	LE_ADD(&row, BoolGetDatum(le_contender_is(view, contender, TRAIT_ALIVE)));
	LE_ADD(&row, BoolGetDatum(le_contender_is(view, contender, TRAIT_DRAINED)));
	LE_ADD(&row, LE_TEXT(le_lease_kind(c->session_id)));
	LE_ADD(&row, Int32GetDatum(c->rank));
	LE_ADD(&row, Int64GetDatum(c->progress));
	LE_ADD(&row, TimestampTzGetDatum(c->joined_at));
	LE_ADD(&row, le_clock_interval(Max(le_clock() - c->stood, 0)));
	LE_ADD_IF(&row, c->metadata != 0, c->metadata);
	le_call_put(fcinfo, &row);
}

/*
 * One election's rows of the view candidates.
 */
Datum
le_standing(PG_FUNCTION_ARGS)
{
	const char *name = election_arg(fcinfo);
	BoundedWaits waits;
	Election   *election;
	Lease	   *lease;

	InitMaterializedSRF(fcinfo, 0);
	if (name == NULL || RecoveryInProgress())	/* the table is UNLOGGED */
		return (Datum) 0;
	le_call_begin(&waits, name, LE_TABLE_ELECTION | LE_TABLE_LEASE |
				  LE_TABLE_CANDIDATE | LE_TABLE_EPOCH | LE_TABLE_DRAIN,
				  AccessShareLock);
	election = le_election_read(name);
	lease = le_lease_read(name, NULL);
	know_group(fcinfo, election);
	if (election != NULL && lease != NULL)
	{
		View	   *view = le_view_read(election, lease, NULL,
										le_clock(), NULL);
		Contender **order;
		bool		led = le_observed_led(lease);
		int			positions;

		le_view_count_once(view, &counted_by(fcinfo)->tally,
						   fcinfo->flinfo->fn_mcxt);
		order = le_ranking_order(view, &positions);
		for (int i = 0; i < view->ncontenders; i++)
			put_candidate(fcinfo, view, order[i], led,
						  i < positions ? i + 1 : 0);
	}
	le_wait_bounded_end(&waits);
	return (Datum) 0;
}

/*
 * What an observer sees of an election: term and leader, 0 and "" if vacant;
 * as before, if the table is locked.  Returns when to look again even if no
 * process wakes us: when the lease ends, or soon if the table is locked.
 */
static int64
look(const char *name, int64 *term, char *leader)
{
	Lease	   *lease;

	le_store_get();
	if (!le_store_try_lock(LE_TABLE_LEASE, AccessShareLock))
		return le_clock() + HIDDEN_LOOK_US;
	lease = le_lease_read(name, NULL);
	if (lease == NULL)
		le_election_report_missing(name);
	*term = 0;
	leader[0] = '\0';
	if (!le_observed_led(lease))
		return PG_INT64_MAX;
	*term = lease->term;
	strlcpy(leader, lease->leader, LE_NAME_MAX + 1);
	return le_clock() + le_observed_remaining(lease);
}

/*
 * When to look again, if no process wakes us before.  Another wait (for a
 * table, or a page) replaces our wait event, by which commits find those to be
 * woken: after one, look again soon.
 */
static int64
next_look(int64 next, uint32 event)
{
	int64		now = le_clock();

	if (*my_wait_event_info != event)
		return Min(next, now + HIDDEN_LOOK_US);
	return Min(next, now + (RecoveryInProgress() ? STANDBY_LOOK_US : LOOK_US));
}

Datum
le_wait_for_change(PG_FUNCTION_ARGS)
{
	int64		known_term = PG_ARGISNULL(1) ? 0 : PG_GETARG_INT64(1);
	char		known_leader[LE_NAME_MAX + 1] = "";
	uint32		event = le_wake_observer_event();
	int64		term = known_term;
	char		leader[LE_NAME_MAX + 1];
	char	   *name;
	Poll		poll;
	int64		next;
	ResultRow	result = {0};

	le_call_check_block("leader_election.wait_for_change()",
						le_call_is_atomic(fcinfo));
	le_poll_connect(&poll, fcinfo, 3);
	name = le_arg_name(fcinfo, 0, "election name");
	if (!PG_ARGISNULL(2))
		strlcpy(known_leader, le_arg_name(fcinfo, 2, "leader name"),
				sizeof(known_leader));
	strlcpy(leader, known_leader, sizeof(leader));
	le_poll_begin(&poll);
	do
	{
		/* From here on a commit that changes the row finds us waiting. */
		ResetLatch(MyLatch);
		pgstat_report_wait_start(event);
		next = look(name, &term, leader);
		le_poll_commit(&poll);
	} while (term == known_term && strcmp(leader, known_leader) == 0 &&
			 le_poll_sleep(&poll, next_look(next, event), event));
	pgstat_report_wait_end();
	/* The invalidation may not have arrived: have leases read again. */
	le_leadership_generation++;
	le_poll_end(&poll);
	SPI_finish();

	LE_ADD_IF(&result, term != 0, Int64GetDatum(term));
	LE_ADD_IF(&result, term != 0, LE_TEXT(leader));
	return le_call_result(fcinfo, &result);
}
