/*-------------------------------------------------------------------------
 *
 * acquire.c
 *		A detached candidate stands, and asks for the lease: what acquire() and
 *		acquire_any() share.
 *
 * Invariant: a call returns a lease only if this very transaction has granted
 * it to this candidate, or if an earlier call with the same request was granted
 * it.  So two processes that stand under one name, each with requests of its
 * own, never lead in one term: only the process that asked is told of it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "api/api.h"
#include "utils/inval.h"

static bool
is_same_run(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/*
 * Was the lease granted to this candidate, and for the same run, by the
 * running transaction?  Then every call of that statement returns it: SELECT
 * (acquire(...)).* calls the function once per column.
 *
 * That it has written the lease row is not enough: set_run_done() writes that of
 * a leader of the same name, whose term nobody else is to be told.
 */
static bool
is_granted_here(const Lease *lease, const Candidate *who)
{
	return lease->own_write && le_candidate_leads(who, lease) &&
		is_same_run(who->run.name, lease->runs.present) &&
		lease->deadline_mono - lease->duration == lease->acquired_mono &&
		le_history_is_begun_here(lease->election, lease->term);
}

/*
 * Was the lease granted to an earlier call with this request?  Its answer may
 * have been lost: then no process knows the term, and none could lead until the
 * deadline.  To renew the lease, a process has to know the term: once it was
 * renewed, the answer has come, and the request is worth nothing.
 */
bool
le_acquire_is_repeated(const Lease *lease, const Candidate *who)
{
	return lease != NULL && who->request != NULL && lease->request != NULL &&
		memcmp(who->request->data, lease->request->data, UUID_LEN) == 0 &&
		le_candidate_leads(who, lease) &&
		is_same_run(who->run.name, lease->runs.present) &&
		le_lease_state_now(lease) == LEASE_LED;
}

/*
 * The same, once synchronous standbys have confirmed what was written so far.
 * The call that was granted the lease may have lost its connection while it
 * waited for them: who is told of a grant may rely on that it is not lost.
 */
static bool
is_repeated_durably(const Lease *lease, const Candidate *who)
{
	Proof		proof;

	if (!le_acquire_is_repeated(lease, who))
		return false;
	if (!le_renew_prove(lease, &proof))
		le_wait_unconfirmed(lease->election);
	return le_acquire_is_repeated(lease, who);
}

/*
 * May this call be granted no lease because of the run that it asks for, even
 * if nobody leads?
 */
static bool
is_refused(const Lease *lease, const Candidate *who)
{
	return who->run.name != NULL && lease != NULL &&
		!le_runs_admit(&lease->runs, &who->run) &&
		!is_granted_here(lease, who) &&
		!le_acquire_is_repeated(lease, who);
}

/*
 * The call is refused: the candidate stands no more, if it did for an earlier
 * call, so that no election is kept for it and no quorum counts it.  If its row is
 * busy, it is left to age.
 */
static void
stop_standing(const Candidate *who)
{
	Candidate  *c = le_candidate_find(who->election, who->candidate);
	Lease	   *lease;

	if (c == NULL || !le_candidate_is_same(c, who) || !le_candidate_alive(c) ||
		!le_candidate_lock(c))
		return;

	/* Now that its row is locked, nobody elects it. */
	lease = le_lease_read(who->election, NULL);
	if (lease == NULL || le_candidate_leads(c, lease))
		return;
	(void) le_candidate_withdraw(c);
	le_commit_wakes_worker();
}

/*
 * Write the candidacy, or the heartbeat that it needs now and then; or
 * withdraw it, if the call is refused.  True: that is done.  False: it is not
 * yet, or there is no such election any more.
 */
static bool
stand(void *arg)
{
	Acquisition *a = arg;

	a->refused = a->who.run.name != NULL &&
		is_refused(le_lease_read(a->who.election, NULL), &a->who);
	if (a->refused)
	{
		stop_standing(&a->who);
		a->stood = STAND_OK;
		return true;
	}
	a->stood = le_candidacy_stand(&a->who, &a->profile, a->lease_duration);
	if (a->stood == STAND_IN_USE)
		le_call_report_name_in_use(&a->who);
	return a->stood == STAND_OK;
}

/*
 * The election in which the caller may stand, which is made if it is not there.
 * NULL: it was to be a seat, and is none any more.
 */
static Election *
find_election(const Acquisition *a)
{
	const char *name = a->who.election;
	Election   *election = a->is_seat ? le_group_seat_read(name) :
		le_create_on_first_use(name, true);

	if (election != NULL)
		le_call_check_candidate_role(election, &a->who.role);
	else if (!a->is_seat)
		le_wait_busy(name);
	return election;
}

/*
 * Stand, and ask for the lease.  A call that finds a leader writes no more
 * than a heartbeat.  Else the election lock comes first, so that another
 * process that settles the election finds no row of it locked for long.
 * a->lease becomes the lease as it is then; NULL: there is no such seat any
 * more.  False: try again.
 */
static bool
try_to_acquire(Acquisition *a)
{
	Election   *election = find_election(a);
	Turn		turn = {.mode = TURN_QUEUES,.caller = &a->who,.work = stand,
	.arg = a,.election = election};

	if (election == NULL)
	{
		a->lease = NULL;
		return true;
	}
	a->lease_duration = election->lease_duration;
	a->stood = STAND_BUSY;
	if (a->lease == NULL)
		a->lease = le_lease_read(a->who.election, NULL);
	if (a->led || a->lease == NULL ||
		le_lease_state_now(a->lease) == LEASE_LED ||
		is_refused(a->lease, &a->who))
		return stand(a);
	turn.lease = a->lease;
	if (le_turn(a->who.election, &turn) == SETTLED_GONE ||
		a->stood != STAND_OK)
		return false;
	a->lease = turn.lease;
	return true;
}

/*
 * What the last call in vain of this process has found: who leads, and a row of
 * the candidate that called, in which nothing was to be changed.  That is so
 * until the lease is over or the next heartbeat is due, while none of these
 * changes: leaders (le_leadership_generation), settings and which detached
 * candidates stand (le_candidacy_generation), and roles.
 *
 * A process that has changed one of these has its answer, and wakes others,
 * after the invalidation was sent.  Who polls may see the change in a table some
 * microseconds before: a call in between is in vain once more.
 *
 * A transaction that has written neither remembers nor relies on this: its rows
 * may be undone, and it has not yet processed the invalidations of what it has
 * changed itself.
 */
static struct
{
	char		election[LE_NAME_MAX + 1];
	char		candidate[LE_NAME_MAX + 1];
	Oid			role;
	Oid			lease_oid;
	uint64		changes;		/* as they were before the rows were read */
	int64		seen;			/* the last heartbeat */
	int64		lease_duration; /* 0: nothing was found yet */
	int64		deadline;
	int64		session_id;		/* of the leader; 0: it is detached */
	bool		leads;			/* that candidate does: its request may be
								 * repeated */
}			found;

static bool
says_nothing(const Acquisition *a)
{
	const Profile *p = &a->profile;

	return a->who.run.name == NULL &&
		!p->sets_rank && !p->sets_progress && p->metadata == 0;
}

static bool
has_written(void)
{
	return TransactionIdIsValid(GetTopTransactionIdIfAny());
}

/*
 * Does anybody lead still, and is there nothing to write or to refuse?  Then
 * the call is over, and has read no table.
 */
bool
le_acquire_is_in_vain(Acquisition *a)
{
	AcceptInvalidationMessages();
	a->changes = le_leadership_generation + le_candidacy_generation +
		le_role_changes();
	return a->changes == found.changes && le_clock() < found.deadline &&
		!has_written() && le_store.lease_oid == found.lease_oid &&
		a->who.role.oid == found.role && says_nothing(a) &&
		strcmp(a->who.candidate, found.candidate) == 0 &&
		strcmp(a->who.election, found.election) == 0 &&
		(a->who.request == NULL || !found.leads) &&
		!le_candidate_needs_heartbeat(found.seen, found.lease_duration) &&
		(found.session_id == 0 || le_session_alive(found.session_id));
}

/*
 * The call was in vain.
 */
void
le_acquire_note_in_vain(const Acquisition *a)
{
	if (!a->led || has_written() || !says_nothing(a))
		return;
	Assert(a->stood == STAND_OK);
	strlcpy(found.election, a->who.election, sizeof(found.election));
	strlcpy(found.candidate, a->who.candidate, sizeof(found.candidate));
	found.role = a->who.role.oid;
	found.lease_oid = le_store.lease_oid;
	found.changes = a->changes;
	found.seen = a->who.seen;
	found.lease_duration = a->lease_duration;
	found.deadline = a->lease->deadline_mono;
	found.session_id = a->lease->session_id;
	found.leads = le_candidate_leads(&a->who, a->lease);
}

/*
 * Stand, without asking for the lease.  False: there is no such seat any more.
 */
bool
le_acquire_later(Acquisition *a)
{
	for (;;)
	{
		Election   *election = find_election(a);

		if (election == NULL)
			return false;
		a->lease_duration = election->lease_duration;
		if (stand(a))
			return true;
		le_wait_retry_or_busy(a->who.election);
	}
}

/*
 * Stand, and ask for the lease.  NULL: it is not granted, or the call was
 * refused because of its run, or there is no such seat any more.
 */
Lease *
le_acquire_lease(Acquisition *a)
{
	while (!try_to_acquire(a))
	{
		le_cap_let_go();
		le_wait_retry_or_busy(a->who.election); /* it may be created anew */
		if (a->led)
			le_store_lock(LE_TABLES, RowExclusiveLock);
		a->led = false;
		a->lease = NULL;
	}
	return a->lease != NULL && (is_granted_here(a->lease, &a->who) ||
								is_repeated_durably(a->lease, &a->who)) ?
		a->lease : NULL;
}
