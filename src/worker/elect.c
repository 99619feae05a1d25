/*-------------------------------------------------------------------------
 *
 * elect.c
 *		The background worker settles elections: it ends leaderships that are
 *		over, elects leaders, and has strategies ask for yields.
 *
 * Invariant: each election is settled in a transaction of its own, which reads
 * everything anew under the election lock.  What a look or the memory of a
 * look said is only the reason to do so.  A busy or broken election thus holds
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
#define LOOK_AGAIN		(1000 * MS) /* where nobody may be elected after all */
#define PROOF_LIFE		(20 * MS)	/* several elections share a proof */
#define PROOF_WAIT		(300 * MS)	/* for standbys to confirm */
#define LONGEST_READ	(25 * MS)	/* of an election's candidates */

/* An election to settle */
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
drop_seat(const Store *store, const Election *election)
{
	Lease	   *lease = le_lease_read(store, election->name, NULL);

	if (!le_group_withdraws(le_group_of(store, election), election->name) ||
		lease == NULL || lease->leader != NULL)
		return false;
	if (!le_cap_is_locked(store, election) ||
		!le_lock_name(election->group, NULL) ||
		!le_drop_locked(store, election, le_epoch_read()))
		le_wait_busy(election->name);
	return true;
}

/*
 * Take the group lock, if the election is a seat of a group.  wait: queue for
 * it for a while; an error ends the transaction if that was in vain.  Where a
 * term is to end, the lock is only tried: without it, only the term ends.
 */
static bool
lock_group(SettleTask *task, Store *store, const Election *election, bool wait)
{
	if (le_cap_lock(store, election, false))
		return true;
	task->waited |= wait;
	return wait && le_cap_lock(store, election, true);
}

/*
 * Settle one election, in a transaction.
 */
static void
settle(void *arg)
{
	SettleTask *task = arg;
	const char *name = task->election;
	Store		store;
	Election   *election;
	Lease	   *lease;
	Settled		settled;

	MemoryContextSwitchTo(CurTransactionContext);	/* a round may have many */
	if (!le_store_find(&store))
		return;					/* dropped since the look */
	le_wait_start();
	if (!le_store_try_lock(&store, LE_TABLES, RowExclusiveLock))
		le_wait_busy(name);
	election = le_election_read(&store, name);
	if (election == NULL)
		return;					/* dropped since the look */

	lease = le_lease_read(&store, name, NULL);
	if (lease == NULL)
		return;					/* dropped since the look */

	/* Counting seats takes a while: the proof may have become too old. */
	if (le_view_prepare(&store, election, false) && task->proof.required &&
		!le_proof_make(lease, election->lease_duration, true, PROOF_WAIT,
					   &task->proof))
		le_wait_busy(name);

	if (!lock_group(task, &store, election, lease->leader == NULL) &&
		lease->leader == NULL)
		le_wait_busy(name);
	if (!le_lock_election(name, false))
	{
		task->waited = true;
		if (le_late_commits_end(&store, election, &task->proof, NULL))
			le_wait_busy(name);
		if (lease->leader != NULL && store.groups != NIL)
			le_cap_unlock(&store, election);	/* with it, we may not queue */
		if (!le_wait_for_election(name))
			le_wait_busy(name);
	}
	election = le_election_read(&store, name);
	if (election == NULL)
		return;					/* dropped while we queued for the lock */
	settled = le_settle(&store, election, NULL, NULL, &task->proof);
	if (settled >= SETTLED_BUSY)
		le_wait_busy(name);
	task->changed = settled != SETTLED_NOTHING || drop_seat(&store, election);
	task->duration = election->lease_duration;
}

/*
 * Ask a leader to yield because of a drain or a pause, or because its seat is
 * withdrawn, or have a strategy ask for a yield, or take that back, in a
 * transaction.  Where the strategy counts seats, each of these transactions
 * sees what the last has asked.  A strategy's request reserves a seat, which
 * needs the group lock.
 */
static void
preempt(void *arg)
{
	SettleTask *task = arg;
	const char *name = task->election;
	Store		store;
	Election   *election;
	LOCKTAG		tag;

	MemoryContextSwitchTo(CurTransactionContext);
	le_store_get(&store);
	le_wait_start();
	if (!le_store_try_lock(&store, LE_TABLES, RowExclusiveLock))
		le_wait_busy(name);
	election = le_election_read(&store, name);
	if (election == NULL)
		return;					/* dropped since the look */
	tag = le_lock_election_tag(name);
	if (!lock_group(task, &store, election, true) ||
		!le_lock_election_shared(&tag, false))
		le_wait_busy(name);
	election = le_election_read(&store, name);
	if (election == NULL)
		return;					/* dropped meanwhile */
	if (!le_yield_ask_unwanted(&store, election, &task->changed) ||
		(!task->changed &&
		 !le_yield_preempt(&store, election, &task->changed, &task->next)))
		le_wait_busy(name);
}

/*
 * Make one proof for all elections that are settled within PROOF_LIFE.
 */
static void
prove(void *arg)
{
	if (!le_proof_make(NULL, PG_INT64_MAX, false, PROOF_WAIT, arg))
		le_attempt_postpone("synchronous standbys do not follow");
}

/*
 * Settle an election, or see to its yields, in the time that the next renewal
 * leaves: a crowd of candidates is not read for longer.  True if it was done.
 */
static bool
attempt_task(Pass *pass, AttemptKind kind, Work work, SettleTask *task)
{
	bool		done;

	le_candidates_read_until(Max(pass->renew_at, le_clock() + LONGEST_READ));
	done = le_attempt(kind, task->election, work, task, &pass->next);
	le_candidates_read_until(PG_INT64_MAX);
	return done;
}

/*
 * Settle one election.  True if anything changed.  If nothing did although it
 * was due, none of a crowd may be elected, and the look has not found out why:
 * look again after a while.
 */
static bool
settle_one(Pass *pass, SettleTask *task)
{
	bool		done = attempt_task(pass, ATTEMPT_SETTLE, settle, task);

	if (done && task->changed)
	{
		/*
		 * No look has seen the new lease yet, which is due after a third of
		 * it.
		 */
		pass->renew_at = Min(pass->renew_at, le_clock() + task->duration / 3);

		/*
		 * A look that is under way may have found that candidates have too
		 * many seats of the group.
		 */
		le_standing_look_again();
		le_news_add(pass, task->election);
		if (list_length(pass->news) >= ANNOUNCE_AT)
			le_announce(pass);
	}
	else if (done)
		pass->next = Min(pass->next, le_clock() + LOOK_AGAIN);
	if (task->waited)
		le_round_again(pass);
	return done && task->changed;
}

/*
 * Settle the elections of sessions that have ended since the last look, before
 * anything else is looked at.  Where synchronous standbys are configured, a
 * proof needs a look first.  What is left for want of time, or because it is
 * busy, is found by the look that follows.  True if anything changed.
 */
bool
le_elect_orphaned(Pass *pass)
{
	List	   *elections = le_led_orphaned();
	bool		changed = false;

	pass->looked_at = le_clock();
	if (elections != NIL)
		le_round_again(pass);	/* they are named only once */
	foreach_ptr(const char, election, elections)
	{
		SettleTask	task = {.election = election};

		if ((le_round_is_to_renew(pass) && foreach_current_index(election) > 0) ||
			!le_proof_make(NULL, 0, false, 0, &task.proof))
			break;
		changed |= settle_one(pass, &task);
	}
	return changed;
}

/*
 * These leases, beginning with that election's, if it is there.
 */
static List *
begin_with(List *leases, const char *election)
{
	foreach_ptr(const Lease, lease, leases)
	{
		int			n = foreach_current_index(lease);

		if (strcmp(lease->election, election) == 0)
			return list_concat(list_copy_tail(leases, n),
							   list_truncate(list_copy(leases), n));
	}
	return leases;
}

/*
 * Settle what the look has found due, until leases are to be renewed.  The
 * next round goes on with the election at which this one ends, so that
 * elections that are busy do not keep the worker from those behind them.  True
 * if anything changed.
 */
bool
le_elect_all(Pass *pass)
{
	static char go_on_at[LE_NAME_MAX + 1] = "";
	List	   *leases = begin_with(pass->settle, go_on_at);
	bool		changed = false;
	Proof		proof = {.confirmed = false};

	go_on_at[0] = '\0';
	foreach_ptr(const Lease, seen, leases)
	{
		SettleTask	task = {.election = seen->election};

		if (le_round_is_to_renew(pass) && foreach_current_index(seen) > 0)
		{
			strlcpy(go_on_at, task.election, sizeof(go_on_at));
			pass->next = le_clock();
			break;
		}
		if ((!proof.confirmed || le_clock() - proof.t0 > PROOF_LIFE) &&
			!le_proof_make(NULL, 0, false, 0, &proof) &&
			!le_attempt(ATTEMPT_PROVE, NULL, prove, &proof, &pass->next))
		{
			strlcpy(go_on_at, task.election, sizeof(go_on_at));
			break;
		}
		task.proof = proof;
		le_proof_set_subject(&task.proof, seen, seen->configured, pass->inc);
		changed |= settle_one(pass, &task);
	}
	return changed;
}

/*
 * Ask leaders to yield, or take that back, where the look has found it due,
 * until leases are to be renewed.  The next round goes on there, as
 * le_elect_all() does.
 */
void
le_elect_preempt_all(Pass *pass)
{
	static char go_on_at[LE_NAME_MAX + 1] = "";
	List	   *leases = begin_with(pass->preempt, go_on_at);

	go_on_at[0] = '\0';
	foreach_ptr(const Lease, seen, leases)
	{
		SettleTask	task = {.election = seen->election,.next = PG_INT64_MAX};

		if (le_round_is_to_renew(pass) && foreach_current_index(seen) > 0)
		{
			strlcpy(go_on_at, task.election, sizeof(go_on_at));
			pass->next = le_clock();
			break;
		}
		if (attempt_task(pass, ATTEMPT_PREEMPT, preempt, &task) && task.changed)
		{
			le_news_add(pass, task.election);
			pass->next = le_clock();
			le_standing_look_again();
		}
		pass->next = Min(pass->next, task.next);
		if (task.waited)
			le_round_again(pass);
	}
}
