/*-------------------------------------------------------------------------
 *
 * election.c
 *		The settings of the elections: the table election.
 *
 * A row is made and deleted together with the election's lease row (create.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "state/state.h"
#include "utils/builtins.h"
#include "utils/inval.h"

#define LEASE_DURATION	2		/* the number of the column */
#define LONGEST_DELAY	USECS_PER_DAY

#define FIELD(type, column, member) \
	FIELD_##type, column, offsetof(Election, member), false, 0
#define ROLE_FIELD(column, id_column, member) \
	FIELD_ROLE, column, offsetof(Election, member), true, id_column

/*
 * The columns of election: the settings, then what else a row has, but for the
 * pause (pause.c).
 */
const Field le_election_settings[] = {
	{FIELD(STRATEGY, 1, strategy), "strategy", 1, 2},
	{FIELD(INTERVAL, LEASE_DURATION, lease_duration), "lease_duration", 2, 4,
		LE_SHORTEST_LEASE_MS * INT64CONST(1000),
	LE_LONGEST_LEASE_MS * INT64CONST(1000)},
	{FIELD(INTEGER, 3, quorum), "quorum", 3, 5, 1, PG_INT32_MAX},
	{FIELD(INTERVAL, 4, takeover_delay), "takeover_delay", 4, 6,
	0, LONGEST_DELAY},
	{FIELD(INTERVAL, 5, preempt_delay), "preempt_delay", 7, 9,
	0, LONGEST_DELAY},
	{FIELD(INTERVAL, 6, initial_delay), "initial_delay", 8, 10,
	0, LONGEST_DELAY},
	{ROLE_FIELD(7, 20, candidate_role), "candidate_role", 5, 7, 0,
	NAMEDATALEN - 1},
	{FIELD(TEXT, 8, channel), "channel", 6, 8, 0, NAMEDATALEN - 1},
	{ROLE_FIELD(9, 19, owner), "owner", 9, 11, 1, NAMEDATALEN - 1},
	{FIELD(TEXT, 0, name)},
	{FIELD(TEXT, 10, group)},
};

/*
 * An election with the settings that it has unless others are given.
 */
Election
le_election_new(char *name, Role owner)
{
	Election	election = {.name = name,.strategy = "race",.quorum = 1,
	.candidate_role = {""},.owner = owner};

	election.lease_duration = le_lease_duration_ms * INT64CONST(1000);
	return election;
}

static void *
make_election(const Row *row)
{
	Election   *election = palloc0(sizeof(Election));

	le_fields_read(le_election_settings, lengthof(le_election_settings), row,
				   election);
	election->pause = le_pause_make(row);
	election->own_write = le_scan_is_own_write(row);
	return election;
}

/*
 * The settings of an election; NULL if there is none of that name.
 */
Election *
le_election_read(const char *name)
{
	return le_scan_read_one(TABLE_ELECTION, le_key(name), NULL, make_election);
}

/*
 * The channel of an election, as the snapshot sees it; NULL: the default one.
 * *is_seat: does it belong to a group?
 */
char *
le_election_channel(const char *name, Snapshot snapshot, bool *is_seat)
{
	Election   *election = le_scan_read_one(TABLE_ELECTION, le_key(name),
											snapshot, make_election);

	*is_seat = election != NULL && election->group != NULL;
	return election != NULL ? election->channel : NULL;
}

Election *
le_election_get(const char *name)
{
	Election   *election = le_election_read(name);

	if (election == NULL)
		le_election_report_missing(name);
	return election;
}

/*
 * May only some roles stand in this election?
 */
bool
le_election_is_restricted(const Election *election)
{
	return election->candidate_role.name[0] != '\0';
}

/*
 * May candidates of this role stand in the election?  A role that was dropped,
 * or that is missing after a restore, admits nobody.
 */
bool
le_election_admits(const Election *election, const Role *role)
{
	return !le_election_is_restricted(election) ||
		le_role_is_member(role, &election->candidate_role);
}

/*
 * Begin to find for how long to renew leases.  A renewal does not wait for a
 * transaction that alters the election, or the lease would run out.  NULL: the
 * table could not be locked at once.
 */
RowScan *
le_election_durations_begin(void)
{
	return le_store_try_lock(LE_TABLE_ELECTION, AccessShareLock) ?
		le_scan_find_begin(TABLE_ELECTION, 1, NULL) : NULL;
}

/*
 * The election's lease_duration if it is committed and can be read at once, else
 * if_unknown.
 */
int64
le_election_duration_find(RowScan *scan, const char *election,
						  int64 if_unknown)
{
	Row			row;

	return scan == NULL || !le_scan_find(scan, le_key(election), &row) ||
		le_scan_is_own_write(&row) ? if_unknown :
		le_field_interval(row.values[LEASE_DURATION]);
}

/*
 * For how long to renew this lease: as before, if it is not known at once.
 */
int64
le_election_lease_duration(const Lease *lease)
{
	RowScan    *scan = le_election_durations_begin();
	int64		duration = le_election_duration_find(scan, lease->election,
													 lease->duration);

	if (scan != NULL)
		le_scan_end(scan);
	return duration;
}

void
le_election_report_missing(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_LE_NO_ELECTION),
			 errmsg("election \"%s\" does not exist", name),
			 errhint("Check its name. The first join(), campaign() or acquire() creates an election, unless leader_election.auto_create is off.")));
}

/*
 * Write an election: a new one, whose name lock the caller holds, or one that
 * there is, and whose election lock the caller holds since before it was read.
 * Settings take effect with the next renewal or change of leadership.  False:
 * another transaction has locked the row.
 */
bool
le_election_write(const Election *election)
{
	Row		   *row = le_row_lock_or_new(TABLE_ELECTION,
										 le_key(election->name));

	Assert(le_seat_holds_name(election->name, NULL) ||
		   le_lock_holds_mutex(LOCK_ELECTION, election->name, ExclusiveLock));
	if (row == NULL)
		return false;
	le_fields_write(le_election_settings, lengthof(le_election_settings), row,
					election);
	le_pause_set(row, election->pause);
	if (row->tuple != NULL)
		CacheInvalidateRelcacheByRelid(le_store.grant);
	le_row_write(row);
	le_commit_durably();
	return true;
}

List *
le_elections_read(void)
{
	return le_scan_read_all(TABLE_ELECTION, le_key_any(), make_election);
}

static int
compare_seats(const ListCell *a, const ListCell *b)
{
	return le_seat_number(((Election *) lfirst(a))->name) -
		le_seat_number(((Election *) lfirst(b))->name);
}

/*
 * The seats of a group, by their numbers, and those that are withdrawn.
 */
List *
le_elections_read_seats(const char *group)
{
	List	   *named = le_scan_read_all(TABLE_ELECTION,
										 le_seat_key(group), make_election);
	List	   *seats = NIL;

	foreach_ptr(Election, election, named)
	{
		if (election->group != NULL && strcmp(election->group, group) == 0)
			seats = lappend(seats, election);
	}
	list_sort(seats, compare_seats);
	return seats;
}
