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
	ELECTION_OWNER,
	ELECTION_PAUSED_AT,			/* and more: see pause.c */
	ELECTION_PREEMPT_DELAY = ELECTION_PAUSED_AT + LE_PAUSE_COLUMNS,
	ELECTION_INITIAL_DELAY,
	ELECTION_GROUP,
	ELECTION_OWNER_ID,
	ELECTION_CANDIDATE_ROLE_ID
};

static int64
interval_us(Datum value)
{
	const Interval *interval = DatumGetIntervalP(value);

	return interval->time +
		(interval->day + interval->month * INT64CONST(30)) * USECS_PER_DAY;
}

static void *
make_election(const Row *row)
{
	Election   *election = palloc0(sizeof(Election));

	election->name = TextDatumGetCString(row->values[ELECTION_ELECTION]);
	election->strategy = TextDatumGetCString(row->values[ELECTION_STRATEGY]);
	election->lease_duration =
		interval_us(row->values[ELECTION_LEASE_DURATION]);
	election->quorum = DatumGetInt32(row->values[ELECTION_QUORUM]);
	election->takeover_delay =
		interval_us(row->values[ELECTION_TAKEOVER_DELAY]);
	election->candidate_role = le_role_get(row, ELECTION_CANDIDATE_ROLE,
										   ELECTION_CANDIDATE_ROLE_ID);
	election->channel = LE_GET(row, ELECTION_CHANNEL, TextDatumGetCString,
							   NULL);
	election->owner = le_role_get(row, ELECTION_OWNER, ELECTION_OWNER_ID);
	election->pause = le_pause_make(row, ELECTION_PAUSED_AT);
	election->preempt_delay = LE_GET(row, ELECTION_PREEMPT_DELAY,
									 interval_us, 0);
	election->initial_delay = LE_GET(row, ELECTION_INITIAL_DELAY,
									 interval_us, 0);
	election->group = LE_GET(row, ELECTION_GROUP, TextDatumGetCString, NULL);
	election->own_write = le_scan_is_own_write(row);
	return election;
}

/*
 * The settings of an election; NULL if there is none of that name.
 */
Election *
le_election_read(const Store *store, const char *name)
{
	return le_scan_read_one(store, TABLE_ELECTION, le_key(name), NULL,
							make_election);
}

/*
 * The channel of an election, as the snapshot sees it; NULL: the default one.
 * *is_seat: does it belong to a group?
 */
char *
le_election_channel(const Store *store, const char *name, Snapshot snapshot,
					bool *is_seat)
{
	Election   *election = le_scan_read_one(store, TABLE_ELECTION, le_key(name),
											snapshot, make_election);

	*is_seat = election != NULL && election->group != NULL;
	return election != NULL ? election->channel : NULL;
}

Election *
le_election_get(const Store *store, const char *name)
{
	Election   *election = le_election_read(store, name);

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
 * The election's lease_duration, if it is committed and can be read at once;
 * else the duration that the lease was granted for.  scan finds settings;
 * NULL: the table could not be locked at once.
 */
static int64
find_duration(RowScan *scan, const Lease *lease)
{
	Row			row;

	if (scan == NULL || !le_scan_find(scan, le_key(lease->election), &row) ||
		le_scan_is_own_write(&row))
		return lease->duration;
	return interval_us(row.values[ELECTION_LEASE_DURATION]);
}

/*
 * Fill in for how long to renew these leases (lease->configured).  A renewal
 * does not wait for a transaction that alters the election: the lease would
 * run out.
 */
void
le_election_lease_durations(const Store *store, List *leases)
{
	Store		locked = *store;
	RowScan    *scan = NULL;

	if (le_store_try_lock(&locked, LE_TABLE_ELECTION, AccessShareLock))
		scan = le_scan_find_begin(&locked, TABLE_ELECTION, 1, NULL);
	foreach_ptr(Lease, lease, leases)
		lease->configured = find_duration(scan, lease);
	if (scan != NULL)
		le_scan_end(scan);
}

/*
 * For how long to renew this lease.
 */
int64
le_election_lease_duration(const Store *store, const Lease *lease)
{
	Lease		copy = *lease;

	le_election_lease_durations(store, list_make1(&copy));
	return copy.configured;
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
 * What config does not set is as this election has it.
 */
void
le_election_complete_from(Configuration *config, const Election *election)
{
	if (config->strategy == NULL)
		config->strategy = election->strategy;
	if (config->lease_duration == 0)
		config->lease_duration = election->lease_duration;
	if (config->quorum == 0)
		config->quorum = election->quorum;
	if (config->takeover_delay < 0)
		config->takeover_delay = election->takeover_delay;
	if (config->candidate_role == NULL)
		config->candidate_role = &election->candidate_role;
	if (config->channel == NULL)
		config->channel = election->channel;
	if (config->preempt_delay < 0)
		config->preempt_delay = election->preempt_delay;
	if (config->initial_delay < 0)
		config->initial_delay = election->initial_delay;
	if (config->group == NULL)
		config->group = election->group;
	if (config->owner == NULL)
		config->owner = &election->owner;
}

/*
 * Fill in the defaults of a new election.  Whose it is the caller has to say.
 */
void
le_election_complete(Configuration *config)
{
	static Election defaults = {.strategy = "race",.quorum = 1,
	.candidate_role = {""},.owner = {""}};

	defaults.lease_duration = le_lease_duration_ms * INT64CONST(1000);
	le_election_complete_from(config, &defaults);
}

/*
 * Write these settings, all of which are given, into a row.
 */
static void
set_configuration(Row *row, const Configuration *config)
{
	LE_SET(row, ELECTION_STRATEGY, LE_TEXT(config->strategy));
	LE_SET(row, ELECTION_LEASE_DURATION, le_clock_interval(config->lease_duration));
	LE_SET(row, ELECTION_QUORUM, Int32GetDatum(config->quorum));
	LE_SET(row, ELECTION_TAKEOVER_DELAY, le_clock_interval(config->takeover_delay));
	le_role_set(row, ELECTION_OWNER, ELECTION_OWNER_ID, config->owner);
	le_role_set(row, ELECTION_CANDIDATE_ROLE, ELECTION_CANDIDATE_ROLE_ID,
				config->candidate_role->name[0] != '\0' ?
				config->candidate_role : NULL);
	LE_SET_IF(row, ELECTION_CHANNEL, config->channel != NULL &&
			  config->channel[0] != '\0', LE_TEXT(config->channel));
	LE_SET(row, ELECTION_PREEMPT_DELAY, le_clock_interval(config->preempt_delay));
	LE_SET(row, ELECTION_INITIAL_DELAY, le_clock_interval(config->initial_delay));
	LE_SET_IF(row, ELECTION_GROUP, config->group != NULL, LE_TEXT(config->group));
}

/*
 * Write the settings of an election that is being made, all of which are given.
 * The caller holds its name lock.
 */
void
le_election_insert(const Store *store, const char *name,
				   const Configuration *config)
{
	Row		   *row = le_row_new(store, TABLE_ELECTION);

	LE_SET(row, ELECTION_ELECTION, LE_TEXT(name));
	set_configuration(row, config);
	le_row_insert(row);
}

/*
 * Change the settings of an election.  They take effect with the next renewal
 * or change of leadership.  The roles that stay are known by what they are
 * called now, and from now on by their OIDs, if a restore has brought the row.
 * False: another transaction has locked the row.
 */
bool
le_election_alter(const Store *store, const char *name,
				  const Configuration *config)
{
	bool		busy;
	Row		   *row = le_row_lock(store, TABLE_ELECTION,
								  le_key(name), LockTupleNoKeyExclusive, &busy);
	Configuration all = *config;

	if (row == NULL && !busy)
		le_election_report_missing(name);
	if (row == NULL)
		return false;
	le_election_complete_from(&all, make_election(row));
	set_configuration(row, &all);
	le_row_update(row);
	le_commit_durably();
	return true;
}

/*
 * Pause an election (NULL: no more), whose election lock the caller holds.
 * False: another transaction has locked its row.
 */
bool
le_election_pause(const Store *store, const char *name, const Pause *pause)
{
	bool		busy;
	Row		   *row = le_row_lock(store, TABLE_ELECTION, le_key(name),
								  LockTupleNoKeyExclusive, &busy);

	if (row == NULL && !busy)
		le_election_report_missing(name);
	if (row == NULL)
		return false;
	le_pause_set(row, ELECTION_PAUSED_AT, pause);
	le_row_update(row);
	le_commit_durably();
	return true;
}

/*
 * Delete the settings of an election that is dropped.  False: another
 * transaction has locked the row.
 */
bool
le_election_delete(const Store *store, const char *name)
{
	return le_row_remove(store, TABLE_ELECTION, le_key(name));
}

List *
le_elections_read(const Store *store)
{
	return le_scan_read_all(store, TABLE_ELECTION, make_election);
}
