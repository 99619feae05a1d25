/*-------------------------------------------------------------------------
 *
 * group_api.c
 *		SQL functions for groups of elections: N leaders, each with a seat of
 *		its own.
 *
 * A seat is an election like any other.  What is done here to a group is done
 * to each of its seats, by the code that does it to a single election.
 *
 * Invariant: a call works on all seats that it names or on none, but for
 * grants: each seat that is granted is granted by itself.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/api.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(le_create_group);
PG_FUNCTION_INFO_V1(le_alter_group);
PG_FUNCTION_INFO_V1(le_drop_group);
PG_FUNCTION_INFO_V1(le_join_group);
PG_FUNCTION_INFO_V1(le_acquire_any);

/* A group of more seats is not cheap any more */
#define MANY_SEATS		100

/*
 * The name of a group.  It must leave room for the number of a seat.
 */
static char *
group_arg(FunctionCallInfo fcinfo)
{
	return le_arg_text(fcinfo, 0, "group name", 1, LE_GROUP_NAME_MAX);
}

static ElectionGroup *
get_owned(const char *name)
{
	ElectionGroup *group = le_group_get(name);

	if (!le_role_owns(&group->owner))
		le_call_report_not_its_owner("group", group->name, &group->owner,
									 "alter_group");
	return group;
}

/*
 * Take the locks under which a group changes, and read it: its name lock and
 * the group lock.  The caller must own it, also once it is locked: it may have
 * been made anew.
 */
static ElectionGroup *
lock_owned(const char *name)
{
	(void) get_owned(name);
	for (;;)
	{
		if (le_lock_mutex(LOCK_GROUP, name, false))
		{
			if (le_lock_name(name, NULL, ExclusiveLock))
				break;
			le_lock_release_mutex(LOCK_GROUP, name);
		}
		le_wait_retry_or_busy(name);
	}
	return get_owned(name);
}

/*
 * Tell a caller that makes a group that large what it costs.
 */
static void
tell_costs(const ElectionGroup *group, int former_seats)
{
	if (group->seats <= MANY_SEATS || group->seats <= former_seats)
		return;
	ereport(NOTICE,
			(errmsg("group \"%s\" has %d seats", group->name, group->seats),
			 errdetail("Each candidate has a row for each of them, and each call of join_group() or acquire_any() looks at them all: some 50 us of a processor for a seat."),
			 errhint("If a leader can do several pieces of the work, fewer seats are cheaper.")));
}

/*
 * Make the seats of a group that it has not yet, with these settings.  They
 * become the owner's.  42501 unless the caller may create elections.
 */
static void
make_seats(const ElectionGroup *group, const Election *like)
{
	Election	seat = *like;

	seat.group = group->name;
	seat.owner = group->owner;
	seat.pause = NULL;
	for (int i = 1; i <= group->seats; i++)
	{
		char	   *name = le_seat_name(group->name, i);
		Election   *present = le_election_read(name);

		CHECK_FOR_INTERRUPTS();
		if (present != NULL && present->group != NULL &&
			strcmp(present->group, group->name) == 0)
			continue;
		if (present != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("election \"%s\" already exists", name),
					 errdetail("A seat of group \"%s\" is to have this name.",
							   group->name)));
		if (!le_create_is_allowed())
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied to make seats of group \"%s\"",
							group->name),
					 errdetail("Each seat is an election, and role \"%s\" lacks EXECUTE on leader_election.create_election().",
							   GetUserNameFromId(GetUserId(), false)),
					 errhint("Have a role with that privilege make them.")));
		seat.name = name;
		while (!le_create(&seat, false))
			le_wait_retry_or_busy(name);
	}
}

/*
 * Make a group, owned by the caller.
 */
Datum
le_create_group(PG_FUNCTION_ARGS)
{
	ElectionGroup group = {.max_per_candidate = 1,.owner = le_role_current()};
	Election	seat = le_election_new(NULL, group.owner);
	BoundedWaits waits;

	le_call_check("leader_election.create_group()", false);
	group.name = group_arg(fcinfo);
	(void) le_arg_settings(fcinfo, le_group_settings, true, NULL, &group);
	if (group.seats == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("seats must not be null"),
				 errdetail("It must be 1 to %d.", LE_MOST_SEATS)));
	(void) le_arg_settings(fcinfo, le_election_settings, true, NULL, &seat);
	le_call_begin(&waits, group.name, LE_TABLE_ELECTION | LE_TABLE_LEASE |
				  LE_TABLE_EPOCH | LE_TABLE_ANNOUNCED | LE_TABLE_GROUP,
				  RowExclusiveLock);

	/*
	 * Nobody else makes it, or its seats, and nobody stands who did not stand
	 * before.
	 */
	while (!le_lock_name(group.name, NULL, ExclusiveLock))
		le_wait_retry_or_busy(group.name);
	if (le_group_read(group.name) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("group \"%s\" already exists", group.name)));
	while (!le_group_write(&group))
		le_wait_retry_or_busy(group.name);
	make_seats(&group, &seat);
	tell_costs(&group, 0);
	le_wait_bounded_end(&waits);
	PG_RETURN_VOID();
}

/*
 * Change a group, and the settings of its seats.
 */
Datum
le_alter_group(PG_FUNCTION_ARGS)
{
	ElectionGroup checked = {0};
	Election	checked_seat = {0};
	Election	like;
	bool		alters_seats;
	BoundedWaits waits;
	char	   *name;
	ElectionGroup *group;
	int			former_seats;
	List	   *seats;

	le_call_check_function("leader_election.alter_group()");
	(void) le_arg_settings(fcinfo, le_group_settings, true, NULL, &checked);
	alters_seats = le_arg_settings(fcinfo, le_election_settings, true, NULL,
								   &checked_seat);
	name = group_arg(fcinfo);
	le_call_begin(&waits, name, LE_TABLES | LE_TABLE_ANNOUNCED | LE_TABLE_GROUP,
				  RowExclusiveLock);
	group = lock_owned(name);
	le_call_check_new_owner(&checked.owner);
	former_seats = group->seats;
	(void) le_arg_settings(fcinfo, le_group_settings, true, &checked, group);
	while (!le_group_write(group))
		le_wait_retry_or_busy(group->name);
	seats = le_elections_read_seats(name);
	foreach_ptr(Election, seat, alters_seats ? seats : NIL)
	{
		CHECK_FOR_INTERRUPTS();
		le_admin_alter_owned(seat->name, fcinfo, true, &checked_seat);
	}
	like = seats != NIL ? *(Election *) linitial(seats) :
		le_election_new(NULL, group->owner);
	(void) le_arg_settings(fcinfo, le_election_settings, true, &checked_seat,
						   &like);
	make_seats(group, &like);
	tell_costs(group, former_seats);
	le_wait_bounded_end(&waits);
	le_start_ensure_worker(true);
	PG_RETURN_VOID();
}

/*
 * Drop a group, none of whose seats is led, with its seats.
 */
Datum
le_drop_group(PG_FUNCTION_ARGS)
{
	BoundedWaits waits;
	char	   *name;

	le_call_check("leader_election.drop_group()", false);
	name = group_arg(fcinfo);
	le_call_begin(&waits, name, LE_TABLES | LE_TABLE_GROUP, RowExclusiveLock);
	(void) lock_owned(name);
	foreach_ptr(Election, seat, le_elections_read_seats(name))
	{
		const Election *election;

		CHECK_FOR_INTERRUPTS();
		le_admin_see_to_epoch(seat->name);
		while (!le_wait_for_election(seat->name))
			le_wait_retry_or_busy(seat->name);

		/* Read once: an attempt that fails may have removed it. */
		election = le_election_get(seat->name);
		while (!le_drop_locked(election))
			le_wait_retry_or_busy(seat->name);
	}
	while (!le_row_remove(TABLE_GROUP, le_key(name)))
		le_wait_retry_or_busy(name);
	le_wait_bounded_end(&waits);
	PG_RETURN_VOID();
}

/* A seat that this session stands for or, if it is withdrawn, may lead still */
typedef struct StoodFor
{
	StandCall	s;
	bool		vacant;			/* nobody has led it, when it stood */
	int64		term;			/* 0: this session does not lead it */
} StoodFor;

static bool
is_vacant(const Lease *lease)
{
	return lease != NULL && (lease->own_write ||
							 le_lease_state_now(lease) != LEASE_LED);
}

/*
 * This session stands for a seat, unless it is withdrawn.  NULL: it does not.
 */
static StoodFor *
stand_for_seat(const StandCall *args,
			   const ElectionGroup *group, char *election)
{
	StoodFor   *seat = palloc0(sizeof(StoodFor));
	Candidacy  *c;

	seat->s = *args;
	seat->s.is_seat = true;
	seat->s.who.election = election;
	if (!le_group_withdraws(group, election))
	{
		if (!le_stand_begin(&seat->s))
			return NULL;
		seat->vacant = is_vacant(le_lease_read(election, NULL));
		seat->s.lease = NULL;	/* other seats come first */
		return seat;
	}
	c = le_session_find(election, strlen(election));
	seat->term = c != NULL ? le_session_term(c) : 0;
	seat->s.deadline = PG_INT64_MAX;
	return seat->term != 0 ? seat : NULL;
}

static void
elect_for(List *seats, bool vacant)
{
	foreach_ptr(StoodFor, seat, seats)
	{
		CHECK_FOR_INTERRUPTS();
		if (seat->vacant == vacant && seat->term == 0)
			seat->term = le_stand_elect(&seat->s);
	}
}

/*
 * Stand for all seats of a group with this session.
 *
 * It stands for all before any is settled: from the first grant on it holds the
 * group lock, and others wait to be granted theirs.
 */
Datum
le_join_group(PG_FUNCTION_ARGS)
{
	StandCall	args;
	BoundedWaits waits;
	char	   *name;
	ElectionGroup *group;
	List	   *seats = NIL;

	le_call_check_function("leader_election.join_group()");
	InitMaterializedSRF(fcinfo, 0);
	le_stand_args(fcinfo, 2, &args);
	if (le_lock_is_mine(LOCK_EPOCH))
		return (Datum) 0;		/* this transaction has begun an epoch */
	name = group_arg(fcinfo);
	le_call_begin(&waits, name, LE_TABLE_ELECTION | LE_TABLE_LEASE |
				  LE_TABLE_GROUP, AccessShareLock);
	group = le_group_get(name);
	foreach_ptr(Election, election, le_elections_read_seats(name))
	{
		StoodFor   *seat = stand_for_seat(&args, group, election->name);

		CHECK_FOR_INTERRUPTS();
		if (seat != NULL)
			seats = lappend(seats, seat);
		if (le_lock_is_mine(LOCK_EPOCH))
			break;				/* it is for a later call to go on */
	}
	if (!le_lock_is_mine(LOCK_EPOCH))
	{
		le_cap_keep(true);
		elect_for(seats, true);
		le_cap_keep(false);
		elect_for(seats, false);
	}
	le_wait_bounded_end(&waits);
	le_start_ensure_worker(true);
	foreach_ptr(const StoodFor, seat, seats)
	{
		ResultRow	row = {0};

		/* le_start_ensure_worker() may have waited until the lease was over. */
		if (seat->term == 0 || le_clock() >= seat->s.deadline)
			continue;
		LE_ADD(&row, LE_TEXT(seat->s.who.election));
		LE_ADD(&row, Int64GetDatum(seat->term));
		le_call_put(fcinfo, &row);
	}
	return (Datum) 0;
}

/*
 * Stand for these seats of a group as a detached candidate, without asking for
 * them.  Returns the names of those that nobody leads, or that were granted to
 * an earlier call with the same request.
 */
static List *
stand_for_seats(const ElectionGroup *group, List *seats, Acquisition *a)
{
	List	   *askable = NIL;

	foreach_ptr(Election, seat, seats)
	{
		const Lease *lease;

		CHECK_FOR_INTERRUPTS();
		a->who.election = seat->name;
		if (le_group_withdraws(group, a->who.election) ||
			!le_acquire_later(a))
			continue;
		lease = le_lease_read(a->who.election, NULL);
		if (is_vacant(lease) ||
			le_acquire_is_repeated(lease, &a->who))
			askable = lappend(askable, a->who.election);
	}
	return askable;
}

/*
 * Stand for all seats of a group as a detached candidate, and ask for them.
 * Returns those that this very call was granted, or one that it repeats.
 *
 * It stands for all before it asks for any: from the first grant on it holds
 * the group lock, and others wait to be granted theirs.
 */
Datum
le_acquire_any(PG_FUNCTION_ARGS)
{
	Acquisition a = {.is_seat = true};
	BoundedWaits waits;
	char	   *name;
	ElectionGroup *group;
	List	   *seats;
	int			granted = 0;

	le_call_check_function("leader_election.acquire_any()");
	a.who.candidate = le_arg_name(fcinfo, 1, "candidate name");
	a.who.role = le_role_current();
	le_arg_profile(fcinfo, 2, false, &a.profile);
	a.who.request = PG_ARGISNULL(5) ? NULL : PG_GETARG_UUID_P(5);
	InitMaterializedSRF(fcinfo, 0);
	if (le_lock_is_mine(LOCK_EPOCH))
		return (Datum) 0;		/* this transaction has begun an epoch */
	name = group_arg(fcinfo);
	le_call_begin(&waits, name, LE_TABLES | LE_TABLE_GROUP, RowExclusiveLock);
	group = le_group_get(name);
	seats = le_elections_read_seats(name);
	if (seats != NIL &&
		!le_begin_ensure_epoch(le_lease_read(((Election *) linitial(seats))->name,
											 NULL), true, le_wait_left()))
		seats = NIL;			/* a later call goes on */
	seats = stand_for_seats(group, seats, &a);
	le_cap_keep(true);
	foreach_ptr(char, seat, seats)
	{
		Lease	   *lease;

		CHECK_FOR_INTERRUPTS();
		a.who.election = seat;
		a.lease = NULL;
		lease = le_acquire_lease(&a);
		if (lease == NULL)
			continue;
		le_call_return_grant(fcinfo, lease, true);
		if (++granted >= group->max_per_candidate)
			break;				/* the other seats are for others */
	}
	le_cap_keep(false);
	le_wait_bounded_end(&waits);
	le_start_ensure_worker(true);
	return (Datum) 0;
}
