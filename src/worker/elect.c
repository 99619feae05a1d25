/*-------------------------------------------------------------------------
 *
 * elect.c
 *		The background worker settles elections: it ends leaderships that are
 *		over, elects leaders, and has strategies ask for yields.
 *
 * Invariant: each election is settled in a transaction of its own, which reads
 * everything anew under the election lock.  What a scan or the memory of a
 * scan said is only the reason to do so.  A busy or broken election thus holds
 * up no other, and no lock is held for longer than one election needs.
 *
 * All of this ends as soon as leases are to be renewed, but not before one
 * election was settled: otherwise frequent renewals could keep the worker from
 * electing at all.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "worker/worker.h"

#define ANNOUNCE_AT		100		/* settled elections: tell of these first */
#define SCAN_AGAIN		(1000 * MS) /* where nobody may be elected after all */
#define PROOF_LIFE		(20 * MS)	/* several elections share a proof */
#define PROOF_WAIT		(300 * MS)	/* for standbys to confirm */
#define LONGEST_READ	(25 * MS)	/* of an election's candidates */

/* An election to settle, or whose yields are to be seen to */
typedef struct SettleTask
{
	const char *election;
	Proof		proof;
	bool		changed;
	int64		duration;		/* of its leases */
	bool		waited;			/* for a lock: a wake-up may have gone unheard */
	int64		next;			/* when to see to its yields again */
} SettleTask;

/*
 * Drop a seat that its group has no more, and that is vacant.  The election
 * lock is held.  Under the group lock, nobody changes the group.  True if it
 * was dropped.
 */
static bool
drop_seat(const Election *election, const Lease *lease)
{
	if (!le_group_withdraws(le_group_of(election), election->name) ||
		lease->leader != NULL)
		return false;
	if (!le_cap_is_locked(election) ||
		!le_lock_name(election->group, NULL, ExclusiveLock) ||
		!le_drop_locked(election))
		le_wait_busy(election->name);
	return true;
}

/*
 * Take the group lock, if the election is a seat of a group.  wait: queue for
 * it for a while, since this transaction has no other such lock; an error ends
 * it if that was in vain.  Where a term is to end, the lock is only tried:
 * without it, only the term ends.
 */
static void
lock_group(SettleTask *task, const Election *election, bool wait)
{
	if (le_cap_lock(election, false) || !wait)
		return;
	task->waited = true;
	(void) le_cap_lock(election, true);
	Assert(le_cap_is_locked(election));
}

/*
 * Begin a transaction's work: lock the tables.  NULL: the election was dropped
 * since the scan.
 */
static Election *
begin(const SettleTask *task)
{
	MemoryContextSwitchTo(CurTransactionContext);	/* a round may have many */
	if (!le_store_find())
		return NULL;
	le_wait_start();
	if (!le_store_try_lock(LE_TABLES, RowExclusiveLock))
		le_wait_busy(task->election);
	return le_election_read(task->election);
}

/*
 * Settle one election, in a transaction.
 */
static void
settle_or_drop(void *arg)
{
	SettleTask *task = arg;
	const char *name = task->election;
	Election   *election = begin(task);
	Lease	   *lease;
	Settled		settled;

	if (election == NULL || (lease = le_lease_read(name, NULL)) == NULL)
		return;

	/* Counting takes a while: the proof may have become too old. */
	if (le_view_count_ahead(election, lease, false) &&
		task->proof.required &&
		!le_proof_make(lease, election->lease_duration, true, PROOF_WAIT,
					   &task->proof))
		le_wait_busy(name);

	lock_group(task, election, lease->leader == NULL);
	if (!le_lock_mutex(LOCK_ELECTION, name, false))
	{
		task->waited = true;
		if (le_late_commits_end(election, lease, &task->proof, NULL))
			le_wait_busy(name);
		if (lease->leader != NULL && le_remembered.groups != NIL)
			le_cap_unlock(election);	/* with it, we may not queue */
		if (!le_wait_for_election(name))
			le_wait_busy(name);
	}
	election = le_election_read(name);
	if (election == NULL)
		return;					/* dropped while we queued for the lock */
	settled = le_settle(election, NULL, NULL, &task->proof, &lease);
	if (settled >= SETTLED_BUSY)
		le_wait_busy(name);
	task->changed = settled != SETTLED_NOTHING ||
		drop_seat(election, lease);
	task->duration = election->lease_duration;
}

/*
 * Ask a leader to yield because of a drain or a pause, or because its seat is
 * withdrawn, or have a strategy ask for a yield, or take that back, in a
 * transaction.  Where the strategy counts, each of these transactions sees
 * what the last has asked.  A strategy's request reserves the election, which
 * needs the group lock.
 */
static void
preempt(void *arg)
{
	SettleTask *task = arg;
	const char *name = task->election;
	Election   *election = begin(task);
	LOCKTAG		tag;

	if (election == NULL)
		return;
	tag = le_lock_mutex_tag(LOCK_ELECTION, name);
	lock_group(task, election, true);
	if (!le_lock_election_shared(&tag, false))
		le_wait_busy(name);
	election = le_election_read(name);
	if (election == NULL)
		return;					/* dropped meanwhile */
	if (!le_yield_request(election, &task->changed, &task->next))
		le_wait_busy(name);
}

/*
 * Make one proof for all elections that are settled within PROOF_LIFE.
 */
static void
prove(void *arg)
{
	if (!le_proof_make(NULL, PG_INT64_MAX, false, PROOF_WAIT, arg))
		le_attempt_report_busy("synchronous standbys do not follow");
}

/*
 * Settle an election, or see to its yields, in the time that the next renewal
 * leaves: a crowd of candidates is not read for longer.  True if it was done;
 * task->changed says whether anything changed.
 */
static bool
attempt_task(Round *round, AttemptKind kind, Work work, SettleTask *task)
{
	bool		done;

	le_candidates_read_until(Max(round->renew_at, le_clock() + LONGEST_READ));
	done = le_attempt(kind, task->election, work, task, &round->next);
	le_candidates_read_until(PG_INT64_MAX);
	task->changed &= done;
	if (task->waited)
		le_round_again(round);
	if (task->changed)
	{
		/*
		 * A scan that is under way may have found that candidates have too
		 * many seats of the group.
		 */
		le_standing_scan_again();
		(void) le_round_note(&round->pending, task->election);
	}
	return done;
}

/*
 * Settle one election.  True if anything changed.  If nothing did although it
 * was due, none of a crowd may be elected, and the scan has not found out why:
 * scan again after a while.
 */
static bool
settle_one(Round *round, SettleTask *task)
{
	bool		done = attempt_task(round, ATTEMPT_SETTLE, settle_or_drop, task);

	if (task->changed)
	{
		/*
		 * No scan has seen the new lease yet, which is due after a third of
		 * it.
		 */
		round->renew_at = Min(round->renew_at, le_clock() + task->duration / 3);
		if (list_length(round->pending) >= ANNOUNCE_AT)
			le_announce(round);
	}
	else if (done)
		round->next = Min(round->next, le_clock() + SCAN_AGAIN);
	return task->changed;
}

/*
 * Settle the elections of sessions that have ended since the last scan, before
 * anything else is read.  Where synchronous standbys are configured, a
 * proof needs a scan first.  What is left for want of time, or because it is
 * busy, is found by the scan that follows.  True if anything changed.
 */
bool
le_elect_orphaned(Round *round)
{
	List	   *elections = le_led_orphaned();
	bool		changed = false;

	round->scanned_at = le_clock();
	if (elections != NIL)
		le_round_again(round);	/* they are named only once */
	foreach_ptr(const char, election, elections)
	{
		SettleTask	task = {.election = election};

		if ((le_round_is_to_renew(round) && foreach_current_index(election) > 0) ||
			!le_proof_make(NULL, 0, false, 0, &task.proof))
			break;
		changed |= settle_one(round, &task);
	}
	return changed;
}

/*
 * Is this election, and what follows it, left for the next round, which goes on
 * there?  Not before this round has seen to another one.
 */
static bool
is_to_stop(Round *round, const char *election, int done, char *go_on_at)
{
	if (done == 0 || !le_round_is_to_renew(round))
		return false;
	strlcpy(go_on_at, election, LE_NAME_MAX + 1);
	round->next = le_clock();
	return true;
}

/*
 * Settle what the scan has found due, until leases are to be renewed.  True if
 * anything changed.
 */
bool
le_elect_all(Round *round)
{
	static char go_on_at[LE_NAME_MAX + 1] = "";
	List	   *all = le_round_in_turn(round->settle, go_on_at);
	bool		changed = false;
	Proof		proof = {.confirmed = false};

	go_on_at[0] = '\0';
	foreach_ptr(const Due, due, all)
	{
		SettleTask	task = {.election = due->election};

		if (is_to_stop(round, due->election, foreach_current_index(due),
					   go_on_at))
			break;
		if ((!proof.confirmed || le_clock() - proof.t0 > PROOF_LIFE) &&
			!le_proof_make(NULL, 0, false, 0, &proof) &&
			!le_attempt(ATTEMPT_PROVE, NULL, prove, &proof, &round->next))
		{
			strlcpy(go_on_at, due->election, sizeof(go_on_at));
			break;
		}
		task.proof = proof;
		le_proof_set_subject(&task.proof, due->vacant_xmin, due->duration,
							 round->inc);
		changed |= settle_one(round, &task);
	}
	return changed;
}

/*
 * Ask leaders to yield, or take that back, where the scan has found it due,
 * until leases are to be renewed.
 */
void
le_elect_preempt_all(Round *round)
{
	static char go_on_at[LE_NAME_MAX + 1] = "";
	List	   *all = le_round_in_turn(round->preempt, go_on_at);

	go_on_at[0] = '\0';
	foreach_ptr(const Due, due, all)
	{
		SettleTask	task = {.election = due->election,.next = PG_INT64_MAX};

		if (is_to_stop(round, due->election, foreach_current_index(due),
					   go_on_at))
			break;
		(void) attempt_task(round, ATTEMPT_PREEMPT, preempt, &task);
		round->next = task.changed ? le_clock() : Min(round->next, task.next);
	}
}
