/*-------------------------------------------------------------------------
 *
 * renew_api.c
 *		The SQL function renew(): a session, or a detached candidate that knows
 *		its term, has its lease renewed.
 *
 * Invariant: no row means that the caller does not lead any more, and only
 * that.  What could not be found out in time is an error.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/api.h"
#include "funcapi.h"

PG_FUNCTION_INFO_V1(le_renew);

/*
 * The leader may say something of itself, and a detached one sends a heartbeat.
 * Where its row is gone (in a crash, or a failover) it is made again.  If the
 * row or the table is locked, it is left as it is: the leader must not lose its
 * lease for want of it.
 *
 * This process remembers for which term it has found the row last, and looks
 * for it no more while the heartbeat in it is fresh.  Until then the row is
 * removed only by a crash of the server, which this process does not survive,
 * and when an epoch begins, in which the lease gets another term.  A row that
 * this process has just written is not remembered: that may be undone.
 */
static void
refresh_candidate(const Lease *lease, const Profile *said,
				  int64 lease_duration)
{
	static Oid	lease_oid = InvalidOid;
	static char election[LE_NAME_MAX + 1];
	static int64 term;
	static int64 duration;
	static int64 seen;
	int64		now = le_clock();
	bool		says = said->sets_progress || said->metadata != 0;
	Candidate  *holder;

	if (!says && (lease->session_id != 0 ||
				  (term == lease->term && lease_oid == le_store.lease_oid &&
				   strcmp(election, lease->election) == 0 &&
				   duration == lease_duration &&
				   !le_candidate_needs_heartbeat(seen, lease_duration))))
		return;
	holder = le_candidate_of_lease(lease);
	if (le_store_try_lock(LE_TABLE_CANDIDATE, RowExclusiveLock) &&
		le_candidacy_stand(holder, said, lease_duration) == STAND_OK &&
		holder->seen < now && !holder->own_write)
	{
		lease_oid = le_store.lease_oid;
		strlcpy(election, lease->election, sizeof(election));
		term = lease->term;
		duration = lease_duration;
		seen = holder->seen;
	}
}

/*
 * The lease is another incarnation's: lock all tables.  After a promotion, the
 * worker has to begin the epoch first.
 */
static void
prepare_to_continue(const Lease *lease)
{
	bool		worker = le_start_ensure_worker(true);

	le_store_lock(LE_TABLES, RowExclusiveLock);
	if (!worker &&
		le_epoch_is_missing(le_epoch_read(), le_lease_is_stale(lease)))
		le_wait_no_epoch(lease->election);
}

/*
 * Renew a lease that another incarnation of the server has granted.  All
 * tables are locked.
 */
static Lease *
continue_lease(const char *name, int64 term,
			   const Profile *said, const Proof *proof, bool *over)
{
	Election   *election = le_election_get(name);
	Lease	   *lease;

	if (!le_wait_for_election(name))
		return NULL;
	lease = le_renew_stale(election, term, proof, over);
	if (lease != NULL)
	{
		(void) le_renew_say(&lease, said);	/* the row is ours */
		refresh_candidate(lease, said, election->lease_duration);
	}
	else if (proof->required)	/* the next proof may take a while */
		le_lock_release_mutex(LOCK_ELECTION, name);
	return lease;
}

/*
 * Does that session, or (session_id 0) a detached candidate that knows the
 * term, hold this lease?
 */
static bool
is_holder(const Lease *lease, int64 session_id, int64 term)
{
	if (session_id != 0)
		return le_lease_is_held_by(lease, session_id, 0);
	le_detached_check_holder(lease, term, "renew(election)");
	return !le_detached_is_over(lease, term);
}

/*
 * The deadline of this lease stays, but its holder lives, may say something of
 * itself and, if it is to yield, will stand again.  False: see le_renew_say().
 */
static bool
say_only(Lease **lease, const Profile *said)
{
	if (!le_renew_say(lease, said))
		return false;
	refresh_candidate(*lease, said, le_election_lease_duration(*lease));
	return true;
}

/*
 * Is the lease over whose deadline, as the caller has read it, has passed?  A
 * renewal that was made in time may not have committed yet, and then its row
 * is locked.  True: this transaction has locked the row, and it is over.
 * False: the caller has to read it again.
 */
static bool
is_expired(const char *name)
{
	const Lease *lease = le_lease_lock(name);

	if (lease == NULL)
		le_wait_retry_or_busy(name);
	return lease != NULL &&
		le_lease_state_now(lease) == LEASE_EXPIRED;
}

/*
 * Renew the lease of that session or (session_id 0) that of a detached
 * candidate's term, or what it has become in a failover.  A lease that this
 * transaction has renewed or granted already is returned as it is: SELECT
 * (renew('x')).* calls the function once per column.  NULL: it is over.
 */
static Lease *
renew(const char *name, int64 session_id, int64 term, const Profile *said)
{
	for (;;)
	{
		Lease	   *lease = le_lease_read(name, NULL);
		LeaseState	state;
		Renewed		renewed = RENEW_BUSY;
		int64		duration = 0;
		Proof		proof;
		bool		over = false;

		if (lease == NULL)
			le_election_report_missing(name);
		state = le_lease_state_now(lease);
		if (!is_holder(lease, session_id, term))
			return NULL;
		if (state == LEASE_EXPIRED)
		{
			if (is_expired(name))
				return NULL;
			continue;
		}
		if (state != LEASE_LED && session_id != 0)
			return NULL;
		if (state == LEASE_LED && (lease->own_write || lease->yielding))
		{
			if (say_only(&lease, said))
				return lease;
			le_wait_retry_or_busy(name);
			continue;
		}
		if (state == LEASE_LED && le_call_ask_unwanted(name))
			continue;

		if (state == LEASE_STALE)
			prepare_to_continue(lease);
		if (!le_proof_make(lease, le_election_lease_duration(lease),
						   state == LEASE_STALE, le_wait_left(), &proof))
			le_wait_unconfirmed(name);
		if (state == LEASE_STALE)
		{
			lease = continue_lease(name, term, said, &proof, &over);
			if (lease != NULL || over)
				return lease;
		}
		else
		{
			lease = le_lease_lock(name);
			renewed = le_renew_lease(lease, session_id, term, &duration,
									 &proof, said);
		}
		if (renewed == RENEWED)
		{
			refresh_candidate(lease, said, duration);
			return lease;
		}
		if (renewed != RENEW_ENDED) /* else the row, which is ours, says why */
			le_wait_retry_or_busy(name);
	}
}

/*
 * The session lock of this session's candidacy; -1: it has none.
 */
static int64
session_id_of(const char *name)
{
	Candidacy  *c;

	le_store_get();
	c = le_stand_find(name, false);
	if (c != NULL)
		le_stand_check_owner(c);
	else if (le_session_take_loss(le_store.lease_oid, name, NULL))
		le_stand_report_reset(name, NULL);
	return c != NULL ? c->session_id : -1;
}

Datum
le_renew(PG_FUNCTION_ARGS)
{
	char	   *name = le_call_election(fcinfo, "leader_election.renew()");
	bool		by_term = !PG_ARGISNULL(1);
	int64		term = by_term ? PG_GETARG_INT64(1) : 0;
	int64		session_id;
	Profile		said = {.metadata = 0};
	BoundedWaits waits;
	Lease	   *lease;
	Candidacy  *c = NULL;

	le_arg_said(fcinfo, 2, &said);
	InitMaterializedSRF(fcinfo, 0);
	session_id = by_term ? 0 : session_id_of(name);
	le_call_begin(&waits, name, LE_TABLE_LEASE, RowExclusiveLock);
	lease = renew(name, session_id, term, &said);
	if (lease != NULL && !by_term &&
		!le_stand_leads(lease, session_id))
		lease = NULL;			/* it has just ended */
	if (lease != NULL && !by_term)
		c = le_session_find(name, strlen(name));
	if (c != NULL)
		le_session_set_lease(c, lease->duration);
	if (lease != NULL)
		le_call_return_grant(fcinfo, lease, false);
	le_wait_bounded_end(&waits);
	le_start_ensure_worker(true);
	return (Datum) 0;
}
