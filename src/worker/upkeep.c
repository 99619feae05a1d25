/*-------------------------------------------------------------------------
 *
 * upkeep.c
 *		What the background worker does in a round, in which order, and the
 *		scan of the tables that says what is due.
 *
 * Invariant: a scan decides nothing.  What it found due is read again
 * under the locks that the change needs, by the code that candidates' own
 * calls go through as well.
 *
 * So a scan need not see everything, either.  A round begins with what the
 * last scan has left in memory (led.c): elections of sessions that have ended
 * since are settled at once, and leases that are due are renewed.  What else
 * has changed is found by the scan of all leases that always follows.
 *
 * Live leaders must not lose their leases while there is much else to do.  So,
 * however large the tables are, the worker does no more than one of these
 * before it asks again whether a renewal is due (le_round_is_to_renew()):
 *
 * - a scan, which reads each row of a table once; of the candidates, as many
 *	 as 5 ms allow (standing.c);
 * - a change of holder or of a request to yield, which reads the candidates of
 *	 that election.  The first one in a round where the strategy counts
 *	 reads the leases, too (spread.c);
 * - a transaction that tells listeners 100 events (announce.c);
 * - a step of tidying up: 5 ms, or 250 rows (tidy.c).
 *
 * Rows of history are read by key, or along an index from where the last step
 * has ended, and never all of them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/instrument.h"
#include "utils/memutils.h"
#include "worker/worker.h"

#define LONGEST_SLEEP	(3600000 * MS)
#define LONGEST_POSTPONE (1000 * MS)	/* of yields and tidying up */
#define WINNER_FIRST	(MS / 2)	/* before we do anything else */
#define CROWD			1000	/* of candidates, which a scan does not read */
#define WATCH_EVERY		(1000 * MS) /* whether roles have changed */

/* A scan of the tables */
typedef struct TableScan
{
	Round	   *round;
	bool		knows_standing; /* all candidates were scanned */
	bool		knows_marks;	/* what listeners know was read */
} TableScan;

/* When the next scan is due, if nothing wakes the worker before */
static int64 next_scan = 0;

/* Did the last scan find that roles decide who is elected or asked to yield? */
static bool watches_roles = false;

/* ... and le_role_changes() from before it */
static uint64 seen_role_changes = 0;

/*
 * When to call le_upkeep_sees_roles(), if nothing wakes the worker before;
 * PG_INT64_MAX: never.
 */
int64
le_upkeep_watch_at(void)
{
	return watches_roles ? le_clock() + WATCH_EVERY : PG_INT64_MAX;
}

/*
 * Have roles changed since the last scan, so that others may be elected now?
 * Then a scan is due.  This sees what the last transaction was told of.
 */
bool
le_upkeep_sees_roles(void)
{
	if (!watches_roles || le_role_changes() == seen_role_changes)
		return false;
	next_scan = 0;
	return true;
}

/*
 * Read the settings of an election, in which a candidate may be chosen.
 */
static Election *
read_contested(const char *name)
{
	Election   *election = le_election_read(name);

	watches_roles |= election != NULL && le_election_is_restricted(election);
	return election;
}

/*
 * How many stand, as the scan of all candidates has found.
 */
static void
count_standing(const Standing *s, const Lease *lease, Turnout *turnout)
{
	memset(turnout, 0, sizeof(Turnout));
	if (s == NULL)
		return;
	turnout->live = s->live;
	turnout->ready = s->sits_out < lease->term ? 1 : 0;
	turnout->told = s->session_sits_out < lease->term ? 1 : 0;
	turnout->drained = s->drained;
	turnout->capped = s->capped;
}

/*
 * A lease that is led no more, or on another incarnation: when is it to be
 * settled?  An election for which nobody stands costs nothing but its row.
 * That all who stand lack a role is looked at last, but not in a crowd:
 * settling the election finds out.
 */
static int64
vacancy_ends(const Lease *lease, const Incarnation *inc)
{
	const Standing *s = le_standing_find(lease->election);
	int64		now = le_clock();
	Turnout		turnout;
	Election   *election;
	View	   *view;
	Vacancy		v;
	int64		due;

	if (lease->leader == NULL && lease->successor == NULL && s == NULL &&
		!le_group_may_withdraw(lease->election))
		return PG_INT64_MAX;
	election = read_contested(lease->election);
	if (election == NULL)
		return PG_INT64_MAX;
	count_standing(s, lease, &turnout);
	view = le_view_read(election, lease, inc, now, NULL);
	le_vacancy(view, NULL, &v);
	due = le_vacancy_due(view, &turnout, &v);
	if (due > now || s == NULL || s->candidates >= CROWD ||
		!le_election_is_restricted(election))
		return due;
	le_vacancy_count(view, &turnout);
	return le_vacancy_due(view, &turnout, &v);
}

/*
 * A lease that is led: are the rules to ask its leader to yield, or to take a
 * request back?  If not, the next scan is due when another challenger will
 * have stood for long enough.  A crowd of candidates is not read here:
 * le_elect_preempt_all() finds out.
 */
static bool
is_to_preempt(const Lease *lease, Round *round)
{
	const Standing *s = le_standing_find(lease->election);
	Election   *election;
	View	   *view;
	Contender  *challenger;
	Request		request;
	int64		next;
	bool		unwanted;

	if (lease->yield_ordered)
		return false;
	unwanted = le_group_may_withdraw(lease->election) ||
		le_drain_covers(le_drain_read(lease->election), lease->leader);
	if ((s == NULL || s->candidates < 2) && !lease->yielding && !unwanted)
		return false;
	election = read_contested(lease->election);
	if (election == NULL ||
		(le_strategy(election->strategy)->preempts == NULL &&
		 !lease->yielding && !unwanted && election->pause == NULL))
		return false;
	view = le_view_read(election, lease, round->inc, le_clock(), NULL);
	if (!view->paused && s != NULL && s->candidates >= CROWD)
		return true;
	request = le_request(view, &challenger, &next);
	round->next = Min(round->next, next);
	return request != REQUEST_STAYS;
}

static void
note_led(TableScan *scan, Lease *lease)
{
	Round	   *round = scan->round;

	round->work = true;
	if (scan->knows_standing && is_to_preempt(lease, round))
		(void) le_round_note(&round->preempt, lease->election);
	if (!le_led_note(lease))
		round->next = Min(round->next, lease->deadline_mono);
}

/*
 * A lease that is over, or an election that is vacant.
 */
static void
note_ended(TableScan *scan, Lease *lease, LeaseState state)
{
	Round	   *round = scan->round;
	int64		due = 0;
	Due		   *found;

	round->work |= state != LEASE_VACANT;
	if (state == LEASE_VACANT || state == LEASE_STALE)
	{
		if (round->inc == NULL || !scan->knows_standing)
			return;
		due = vacancy_ends(lease, round->inc);
	}
	if (due > le_clock())
	{
		round->next = Min(round->next, due);
		return;
	}
	found = le_round_note(&round->settle, lease->election);
	found->duration = le_election_lease_duration(lease);
	found->vacant_xmin = le_proof_vacant_xmin(lease);
}

static void
scan_lease(TableScan *scan, Lease *lease)
{
	Round	   *round = scan->round;
	LeaseState	state = le_lease_state_now(lease);

	if (round->inc != NULL && round->inc->epoch == 0 &&
		le_lease_is_stale(lease))
		round->new_incarnation = true;
	if (scan->knows_marks)
		le_pending_scan_lease(round, lease);
	if (state == LEASE_LED)
		note_led(scan, lease);
	else
		note_ended(scan, lease, state);
}

/*
 * Scan all leases and candidates, and find out what is due.  Tables that
 * another transaction has locked are left for the next scan, and so are
 * candidates that take too long: the table of leases is enough to renew and to
 * end leases.
 *
 * Each session is tested once.  One that ends during the scan may thus be
 * taken for alive, but as it ends it wakes the worker for another round.
 */
static void
scan_tables(void *arg)
{
	Round	   *round = arg;
	TableScan	scan = {.round = round};
	RowScan    *rows;
	Lease	   *lease;

	round->installed = le_store_find();
	round->work = round->installed; /* until proven otherwise */
	if (!round->installed)
		return;
	round->next = le_clock() + RETRY;
	seen_role_changes = le_role_changes();
	watches_roles = false;
	if (!le_store_try_lock(LE_TABLE_LEASE, AccessShareLock))
		return;
	(void) le_sessions_remember();
	le_led_begin_scan();
	if (le_store_try_lock(LE_TABLE_ELECTION | LE_TABLE_CANDIDATE | LE_TABLE_EPOCH |
						  LE_TABLE_PAUSE_ALL | LE_TABLE_DRAIN | LE_TABLE_GROUP,
						  AccessShareLock))
	{
		le_pause_all_remember();
		le_drain_remember();
		le_group_remember();
		round->next = le_clock() + LONGEST_SLEEP;
		round->work = false;
		round->inc = le_epoch_read();
		round->new_incarnation = !round->inc->known;
		scan.knows_standing = le_standing_scan(round);
		scan.knows_marks = le_pending_begin_scan();
		round->untold = !scan.knows_marks;
		if (!scan.knows_marks)
			round->next = Min(round->next, le_clock() + RETRY);
	}
	round->scanned_at = le_clock();
	rows = le_lease_scan(le_key_any());
	while ((lease = le_lease_next(rows)) != NULL)
		scan_lease(&scan, lease);
	le_scan_end(rows);
	le_led_end_scan();
	le_tidy_scan(round);
	if (scan.knows_marks)
		le_pending_end_scan(round);
}

/*
 * Begin the epoch of this incarnation of the server, or try again soon.
 */
static void
begin_epoch(void *arg)
{
	le_store_get();
	if (!le_begin_epoch())
		le_attempt_report_busy("a table or row that an epoch needs is locked");
}

/*
 * What comes before the scan: settle the elections of sessions that have just
 * ended.  A winner was woken: leave it the processor for 0.5 ms, and scan in
 * the next round.  False: scan now, since nothing has changed, or a scan is
 * overdue.
 */
static bool
elect_before_scan(Round *round)
{
	static int64 scan_by = 0;	/* 0: the scan was not put off */
	bool		changed = le_elect_orphaned(round);

	if (scan_by == 0)
		scan_by = le_clock() + LONGEST_WORK;
	if (!changed || round->renew_at <= le_clock() || scan_by <= le_clock())
	{
		scan_by = 0;
		return false;
	}
	round->next = le_clock() + WINNER_FIRST;
	return true;
}

/*
 * Renew what is due, as the last scan has found it.  True: that was all there
 * is to do in this round.  False: scan now.
 */
static bool
renew_before_scan(Round *round)
{
	if (round->renew_at > le_clock())
		return false;
	round->next = Min(round->next, next_scan);
	le_renewal_all(round);
	return !round->woken && round->next > le_clock();
}

/*
 * Scan the tables.  False: that was not possible, or the extension is not
 * there.  What a scan had found before it failed is no answer.
 */
static bool
try_to_scan(Round *round)
{
	round->next = PG_INT64_MAX;
	if (!le_attempt(ATTEMPT_SCAN, NULL, scan_tables, round, &round->next))
	{
		round->installed = true;
		round->work = true;
		return false;
	}
	round->renew_at = le_renewal_due();
	return round->installed;
}

/*
 * Is the rest of a round to be done?  In a round in which a leader was elected
 * (changed) it is not: the processor is left to the leader.  But if leaders
 * are elected all the time, it is done after LONGEST_POSTPONE.
 */
static bool
is_to_go_on(Round *round, bool changed)
{
	static int64 postponed_at = 0;	/* 0: it was not */

	if (changed)
	{
		round->next = Min(round->next, le_clock() + RETRY);
		if (postponed_at == 0)
			postponed_at = le_clock();
		if (le_clock() - postponed_at < LONGEST_POSTPONE)
			return false;
	}
	postponed_at = 0;
	return true;
}

static void
do_round(Round *round)
{
	bool		changed;

	/* What a round without a scan has to assume */
	round->installed = true;
	round->work = true;
	round->next = PG_INT64_MAX;
	round->renew_at = le_renewal_due();
	(void) le_upkeep_sees_roles();
	if (elect_before_scan(round) || renew_before_scan(round) || !try_to_scan(round))
		return;
	if (round->new_incarnation)
	{
		if (le_attempt(ATTEMPT_BEGIN_EPOCH, NULL, begin_epoch, NULL, &round->next))
			round->next = le_clock();
		else
			round->work = true; /* the grace counts from then on */
	}
	if (round->renew_at <= le_clock())
		le_renewal_all(round);
	changed = le_elect_all(round);
	le_announce(round);
	if (!is_to_go_on(round, changed))
		return;
	le_elect_preempt_all(round);
	le_announce(round);
	le_tidy(round);
}

/*
 * Do a round, in memory of its own.
 */
void
le_upkeep(Round *round)
{
	bool		woken = round->woken;
	int64		reads = pgBufferUsage.shared_blks_read;
	int64		reserved_at;

	MemoryContextReset(le_worker_context);
	MemoryContextSwitchTo(le_worker_context);
	memset(round, 0, sizeof(Round));
	round->woken = woken;
	le_spread_begin_round();
	reserved_at = le_room_keep_reserved();
	if (woken)
	{
		le_standing_scan_again();	/* even if this round does not scan */
		le_attempt_again();
	}
	do_round(round);
	round->next = Min(round->next, reserved_at);
	le_attempt_forget(&round->next);

	/* A wait for the disk may have swallowed a wake-up. */
	if (pgBufferUsage.shared_blks_read != reads)
	{
		round->next = Min(round->next, le_clock() + RETRY);
		le_standing_scan_again();
	}
	next_scan = round->next;
	round->next = Min(round->next, round->renew_at);
}
