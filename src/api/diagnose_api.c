/*-------------------------------------------------------------------------
 *
 * diagnose_api.c
 *		diagnose(): what is so in an election, why, and what to do about it.
 *
 * What can be read is read first.  Then each check of a table looks at that,
 * and says what it has found.
 *
 * Invariant: nothing here writes, takes an election lock or waits.  A table
 * that another transaction keeps us from is left out, and that is a finding.
 * On a standby, only what its rows tell is said.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "api/diagnose.h"
#include "funcapi.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(le_diagnose);

#define ALL_TABLES		(((1 << TABLE_COUNT) - 1) & ~LE_TABLE_DROPPED)

/* A crash or a promotion empties them, and a standby cannot read them */
#define UNLOGGED_TABLES	(LE_TABLE_CANDIDATE | LE_TABLE_ANNOUNCED)

/* What tells why nobody leads, and who stands */
#define CHECK_STANDING	(LE_TABLES | LE_TABLE_GROUP)

#define ON_STANDBY		1		/* on a standby as well */
#define WITHOUT_LEASE	2		/* and where there is no lease to look at */

/* What to look at, where these tables can be read */
typedef struct Check
{
	void		(*check) (Diagnosis *d);
	int			tables;
	int			when;
} Check;

static const Check checks[] = {
	{le_diagnose_unread, 0, ON_STANDBY | WITHOUT_LEASE},
	{le_diagnose_no_lease, LE_TABLE_ELECTION | LE_TABLE_LEASE,
	ON_STANDBY | WITHOUT_LEASE},
	{le_diagnose_leader, LE_TABLE_ELECTION | LE_TABLE_LEASE, ON_STANDBY},
	{le_diagnose_vacancy, LE_TABLE_ELECTION | LE_TABLE_LEASE, ON_STANDBY},
	{le_diagnose_group, CHECK_STANDING, WITHOUT_LEASE},
	{le_diagnose_recovery, 0, ON_STANDBY | WITHOUT_LEASE},
	{le_diagnose_pause, LE_TABLE_ELECTION | LE_TABLE_LEASE, ON_STANDBY},
	{le_diagnose_yield, LE_TABLE_ELECTION | LE_TABLE_LEASE, ON_STANDBY},
	{le_diagnose_renewal, LE_TABLE_ELECTION | LE_TABLE_LEASE, 0},
	{le_diagnose_silent, LE_TABLE_LEASE, 0},
	{le_diagnose_rows, LE_TABLE_LEASE | LE_TABLE_HISTORY, ON_STANDBY},
	{le_diagnose_changes, LE_TABLE_ELECTION | LE_TABLE_HISTORY, ON_STANDBY},
	{le_diagnose_announced, LE_TABLE_LEASE | LE_TABLE_HISTORY |
	LE_TABLE_ANNOUNCED, 0},
	{le_diagnose_quorum, CHECK_STANDING, 0},
	{le_diagnose_roles, LE_TABLE_ELECTION | LE_TABLE_GROUP,
	ON_STANDBY | WITHOUT_LEASE},
	{le_diagnose_candidates, CHECK_STANDING, 0},
	{le_diagnose_seats, CHECK_STANDING, 0},
	{le_diagnose_alike, LE_TABLE_ELECTION | LE_TABLE_GROUP,
	ON_STANDBY | WITHOUT_LEASE},
	{le_diagnose_worker, 0, WITHOUT_LEASE},
	{le_diagnose_trouble, 0, WITHOUT_LEASE},
	{le_diagnose_standbys, 0, WITHOUT_LEASE},
	{le_diagnose_preload, 0, WITHOUT_LEASE},
	{le_diagnose_room, 0, WITHOUT_LEASE},
	{le_diagnose_locks, 0, ON_STANDBY | WITHOUT_LEASE},
	{le_diagnose_members, 0, ON_STANDBY | WITHOUT_LEASE},
	{le_diagnose_additions, 0, ON_STANDBY | WITHOUT_LEASE},
};

static const char *const severity_names[] = {
	[SEVERITY_OK] = "ok",
	[SEVERITY_NOTICE] = "notice",
	[SEVERITY_WARNING] = "warning",
	[SEVERITY_ERROR] = "error",
};

/*
 * Lock what can be locked at once.  No check reads table dropped.
 */
static void
lock_tables(Diagnosis *d)
{
	int			tables = d->on_standby ?
		ALL_TABLES & ~(UNLOGGED_TABLES | LE_TABLE_EPOCH) : ALL_TABLES;

	for (int i = 0; i < TABLE_COUNT; i++)
	{
		if ((tables & (1 << i)) == 0)
			continue;
		if (le_store_try_lock(1 << i, AccessShareLock))
			d->readable |= 1 << i;
		else
			d->unread = lappend(d->unread,
								unconstify(char *, le_shape_name(i)));
	}
}

static bool
can_read(const Diagnosis *d, int tables)
{
	return (d->readable & tables) == tables;
}

/*
 * Read the settings of the election, or else the group of that name.
 */
static void
read_settings(Diagnosis *d)
{
	if (can_read(d, LE_TABLE_GROUP))
		le_group_remember();
	if (!can_read(d, LE_TABLE_ELECTION))
		return;
	d->election = le_election_read(d->name);
	if (!can_read(d, LE_TABLE_GROUP))
		return;
	d->group = d->election != NULL ? le_group_of(d->election) :
		le_group_read(d->name);
	if (d->election == NULL && d->group == NULL)
		le_diagnose_report_unknown(d);
}

/*
 * Read who leads, or why nobody does, and who stands.
 */
static void
read_seat(Diagnosis *d)
{
	if (d->election == NULL || !can_read(d, LE_TABLE_LEASE))
		return;
	d->lease = le_lease_read(d->name, NULL);
	d->led = le_observed_led(d->lease);
	if (can_read(d, LE_TABLE_PAUSE_ALL | (d->on_standby ? 0 : LE_TABLE_EPOCH)))
		d->pause = le_observed_pause(d->election, &d->pause_ends);
	if (d->lease == NULL)
		return;
	if (can_read(d, LE_TABLE_HISTORY))
		le_observed_past(d->lease, &d->past);
	d->knows_vacancy = d->on_standby || can_read(d, CHECK_STANDING);
	if (d->knows_vacancy)
		d->view = le_observed_look(d->election, d->lease, d->led,
								   d->pause, &d->turnout, &d->vacancy);
}

static void
run_checks(Diagnosis *d)
{
	for (int i = 0; i < lengthof(checks); i++)
	{
		if (can_read(d, checks[i].tables) &&
			(!d->on_standby || (checks[i].when & ON_STANDBY) != 0) &&
			(d->lease != NULL || (checks[i].when & WITHOUT_LEASE) != 0))
			checks[i].check(d);
	}
}

/*
 * The worst comes first, but for the row that says who leads.
 */
static int
compare_findings(const ListCell *a, const ListCell *b)
{
	const Finding *f = lfirst(a);
	const Finding *g = lfirst(b);

	if (f->place != 0 && g->place != 0 && f->severity != g->severity)
		return (int) g->severity - (int) f->severity;
	return f->place - g->place;
}

/*
 * diagnose(election) -> rows of (severity, finding, remedy)
 */
Datum
le_diagnose(PG_FUNCTION_ARGS)
{
	Diagnosis	d = {.on_standby = RecoveryInProgress()};
	BoundedWaits waits;

	InitMaterializedSRF(fcinfo, 0);
	d.name = le_arg_name(fcinfo, 0, "election name");
	d.quoted = le_quote(d.name);
	d.literal = quote_literal_cstr(d.name);
	le_wait_start();
	le_store_begin();
	le_wait_bounded_begin(&waits, d.name);
	lock_tables(&d);
	read_settings(&d);
	read_seat(&d);

	/* A copy tells of the worker even where there is no room for a test. */
	d.locks = GetLockStatusData();
	d.has_worker = le_lock_worker_pid(d.locks) != 0;
	if (d.has_worker && !d.on_standby)
		le_diagnose_read_trouble(&d);
	run_checks(&d);
	le_wait_bounded_end(&waits);

	list_sort(d.findings, compare_findings);
	foreach_ptr(const Finding, f, d.findings)
	{
		bool		alone = list_length(d.findings) == 1;
		Severity	severity = f->severity != SEVERITY_OK || alone ?
			f->severity : SEVERITY_NOTICE;
		ResultRow	row = {0};

		LE_ADD(&row, LE_TEXT(severity_names[severity]));
		LE_ADD(&row, LE_TEXT(f->finding));
		LE_ADD(&row, LE_TEXT(f->severity != SEVERITY_OK ? f->remedy :
							 alone ? "All is well: nothing is to be done." :
							 "See the other rows."));
		le_call_put(fcinfo, &row);
	}
	return (Datum) 0;
}
