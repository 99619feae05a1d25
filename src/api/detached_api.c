/*-------------------------------------------------------------------------
 *
 * detached_api.c
 *		SQL functions for detached candidates, which have no session: any
 *		connection will do for each call.
 *
 * Invariant: the term is the proof of ownership.  Whoever knows it, and acts as
 * the role that stood, may renew the lease or give it back; nobody else is told
 * it, not even under the same name.
 *
 * What holds for the calls of session candidates holds here (session_api.c):
 * no transaction block, and no wait longer than LE_WAIT_LIMIT_MS.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/api.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(le_acquire);
PG_FUNCTION_INFO_V1(le_renew_term);
PG_FUNCTION_INFO_V1(le_release);
PG_FUNCTION_INFO_V1(le_transfer_term);
PG_FUNCTION_INFO_V1(le_leave_name);
PG_FUNCTION_INFO_V1(le_is_leader_term);

static int64
term_arg(FunctionCallInfo fcinfo, int n)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("term must not be null")));
	return PG_GETARG_INT64(n);
}

/*
 * May the caller, who knows the term, act for its holder?  That must be a
 * detached candidate, and of the caller's role.
 */
static void
check_holder(const Lease *lease, int64 term, const char *instead)
{
	if (lease->leader == NULL)
		return;
	if (lease->session_id != 0 && lease->term == term &&
		le_session_alive(lease->session_id))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("election \"%s\" is led by a session in term " INT64_FORMAT,
						lease->election, term),
				 errhint("Call %s in that session.", instead)));
	if (le_lease_is_term(lease, term) &&
		strcmp(lease->role, GetUserNameFromId(GetUserId(), false)) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for the lease of election \"%s\"",
						lease->election),
				 errdetail("It was granted to role \"%s\".", lease->role),
				 errhint("Only that role may touch it: use SET ROLE.")));
}

/*
 * Write the candidacy, or the sign of life that it needs now and then.  False:
 * the election has been dropped.
 */
static bool
stand(const Store *store, Candidate *who, const Profile *profile,
	  int64 lease_duration)
{
	for (;;)
	{
		switch (le_candidate_stand(store, who, profile, lease_duration))
		{
			case STAND_OK:
				return true;
			case STAND_IN_USE:
				le_report_name_in_use(store, who);
			case STAND_DROPPED:
				return false;
			case STAND_BUSY:
				le_wait_retry_or_busy(who->election);
		}
	}
}

/*
 * Was the lease granted to this candidate by the running transaction?  Then it
 * is granted in every call of that statement: SELECT (acquire(...)).* calls
 * once per column.
 */
static bool
is_granted_here(const Lease *lease, const Candidate *who)
{
	return lease->own_write && !lease->yielding &&
		le_candidate_leads(who, lease) &&
		lease->deadline_mono - lease->duration == lease->acquired_mono;
}

/*
 * Nobody leads: stand, and elect somebody.  The election lock comes first, so
 * that whoever settles the election finds no row of it locked for long.
 */
static Lease *
elect(const Store *store, const Election *election, Candidate *who,
	  const Profile *profile, bool *dropped)
{
	for (;;)
	{
		Lease	   *lease = le_lease_read(store, who->election, NULL);
		StandResult stood;
		Settled		settled;
		Proof		proof;

		le_ranking_prepare(store, election, NULL);
		if (!le_prove(lease, election->lease_duration, true, le_wait_left(),
					  &proof))
			le_unconfirmed(who->election);
		while (!le_wait_for_election(who->election))
			le_wait_retry_or_busy(who->election);
		stood = le_candidate_stand(store, who, profile,
								   election->lease_duration);
		*dropped = stood == STAND_DROPPED;
		if (stood == STAND_IN_USE)
			le_report_name_in_use(store, who);
		if (stood != STAND_OK)
		{
			/* Whoever has its name may be waiting for this lock. */
			le_unlock_election(who->election);
			if (*dropped)
				return NULL;
			le_wait_retry_or_busy(who->election);
			continue;
		}
		settled = le_settle(store, election, who, NULL, &proof);
		if (!settled.busy && !settled.unproven)
			return le_lease_read(store, who->election, NULL);
		if (proof.required)		/* the next proof may take a while */
			le_unlock_election(who->election);
		le_wait_retry_or_busy(who->election);
	}
}

/*
 * Ask for the lease, standing as a candidate.
 */
Datum
le_acquire(PG_FUNCTION_ARGS)
{
	Candidate	who = {.session_id = 0};
	Profile		profile;
	Store		store;
	BoundedWaits busy;
	Election   *election;
	Lease	   *lease;

	le_check_function("leader_election.acquire()");
	who.election = le_name_arg(fcinfo, 0, "election name");
	who.candidate = le_name_arg(fcinfo, 1, "candidate name");
	who.role = GetUserNameFromId(GetUserId(), false);
	le_profile_args(fcinfo, 2, false, &profile);
	InitMaterializedSRF(fcinfo, 0);
	le_store_get(&store);
	if (le_lock_epoch_is_mine())
		return (Datum) 0;		/* this transaction has begun an epoch */
	le_wait_start();
	le_wait_bounded_begin(&busy, who.election);
	le_store_lock(&store, LE_TABLES, RowExclusiveLock);
	if (!le_begin_ensure(&store, who.election, true, le_wait_left()))
	{
		le_wait_bounded_end(&busy);
		return (Datum) 0;
	}
	for (;;)
	{
		bool		dropped;

		election = le_election_get_or_create(&store, who.election, true);
		if (election == NULL)
			le_busy(who.election);
		le_check_candidate_role(election, who.role);

		/* Whoever finds a leader writes no more than a sign of life. */
		lease = le_lease_read(&store, who.election, NULL);
		if (lease == NULL || le_lease_state_now(&store, lease) == LEASE_LED)
			dropped = !stand(&store, &who, &profile, election->lease_duration);
		else
			lease = elect(&store, election, &who, &profile, &dropped);
		if (!dropped)
			break;
		le_wait_retry_or_busy(who.election);	/* it may be created anew */
	}
	if (lease != NULL && is_granted_here(lease, &who))
		le_return_grant(fcinfo, lease);
	le_wait_bounded_end(&busy);
	le_start_ensure(true);
	return (Datum) 0;
}

/*
 * The detached leader gives a sign of life, and says how far it has got.  Where
 * its row is gone (in a crash, or a failover) it is made again.  A table that
 * somebody has locked must not cost it the lease.
 *
 * This process remembers for which term it has found the row last.  While the
 * sign of life in it is fresh nobody removes it, but a crash of the server,
 * which this process does not survive, and a new incarnation, whose terms are
 * others.  What it writes itself does not count: that may be undone.
 */
static void
refresh_candidate(Store *store, const Lease *lease, const int64 *progress,
				  int64 lease_duration)
{
	static Oid	lease_oid = InvalidOid;
	static char election[LE_NAME_MAX + 1];
	static int64 term;
	static int64 duration;
	static int64 seen;
	int64		now = le_clock();
	Candidate  *holder;
	Profile		profile = {.sets_progress = progress != NULL,
	.progress = progress != NULL ? *progress : 0};

	if (progress == NULL && term == lease->term && lease_oid == store->lease_oid &&
		strcmp(election, lease->election) == 0 && duration == lease_duration &&
		!le_candidate_needs_sign(seen, lease_duration))
		return;
	holder = le_candidate_of_lease(lease);
	if (le_store_try_lock(store, LE_TABLE_CANDIDATE, RowExclusiveLock) &&
		le_candidate_stand(store, holder, &profile, lease_duration) == STAND_OK &&
		holder->seen < now)
	{
		lease_oid = store->lease_oid;
		strlcpy(election, lease->election, sizeof(election));
		term = lease->term;
		duration = lease_duration;

		seen = holder->seen;
	}
}

/*
 * Renew the lease of a term.  NULL: somebody has its row, or it is over by now.
 */
static Lease *
renew_lease(Store *store, const char *name, int64 term, const int64 *progress,
			const Proof *proof)
{
	Lease	   *lease = le_lease_lock(store, name);
	int64 duration;

	if (lease == NULL || !le_lease_is_term(lease, term) || lease->yielding ||
		le_lease_state_now(store, lease) != LEASE_LED)
		return NULL;
	duration = le_election_lease_duration(store, lease);

	if (proof->required && duration !=proof->lease_duration)
		return NULL;
	le_lease_renew(lease, term, duration, proof->t0, GetCurrentTimestamp(),
				   progress);
	refresh_candidate(store, lease, progress, duration);
	return lease;
}

/*
 * Renew a lease that another incarnation of the server has granted.  All tables
 * are locked.
 */
static Lease *
continue_lease(Store *store, const char *name, int64 term,
			   const int64 *progress, const Proof *proof, bool *over)
{
	Election   *election;
	Lease	   *lease;

	election = le_election_get(store, name);
	if (!le_wait_for_election(name))
		return NULL;
	lease = le_settle_continue(store, election, term, proof, over);
	if (lease != NULL)
		refresh_candidate(store, lease, progress, election->lease_duration);
	else if (proof->required)	/* the next proof may take a while */
		le_unlock_election(name);
	return lease;
}

/*
 * Is that term over?  One that this server has not heard of may be that of a
 * server that was promoted in its place: then only a proof tells.
 */
static bool
is_over(const Store *store, const Lease *lease, int64 term)
{
	Proof		proof;

	if (le_lease_is_term(lease, term))
		return false;
	if (term > lease->term &&
		!le_prove(lease, le_election_lease_duration(store, lease), false, le_wait_left(),
				  &proof))
		le_unconfirmed(lease->election);
	return true;
}

/*
 * Renew the lease of a term, or what it has become in a failover.  NULL: the
 * term is over.
 */
static Lease *
renew(Store *store, const char *name, int64 term, const int64 *progress)
{
	for (;;)
	{
		Lease	   *lease = le_lease_read(store, name, NULL);
		LeaseState	state;
		Proof		proof;
		bool		over = false;

		if (lease == NULL)
			le_report_no_election(name);
		check_holder(lease, term, "renew(election)");
		state = le_lease_state_now(store, lease);
		if (is_over(store, lease, term) ||
			(state != LEASE_LED && state != LEASE_FOREIGN))
			return NULL;
		if (state == LEASE_LED && (lease->own_write || lease->yielding))
			return lease;

		/* After a promotion, the worker has to begin the epoch first. */
		if (state == LEASE_FOREIGN)
		{
			bool		worker = le_start_ensure(true);

			le_store_lock(store, LE_TABLES, RowExclusiveLock);
			if (!worker &&
				le_grace_mono(le_election_get(store, name), lease,
							  le_epoch_read()) == PG_INT64_MAX)
				le_report_no_epoch(name);
		}
		if (!le_prove(lease, le_election_lease_duration(store, lease),
					  state == LEASE_FOREIGN, le_wait_left(), &proof))
			le_unconfirmed(name);
		lease = state == LEASE_LED ?
			renew_lease(store, name, term, progress, &proof) :
			continue_lease(store, name, term, progress, &proof, &over);
		if (lease != NULL || over)
			return lease;
		le_wait_retry_or_busy(name);
	}
}

Datum
le_renew_term(PG_FUNCTION_ARGS)
{
	char	   *name;
	int64		term;
	int64		progress;
	Store		store;
	BoundedWaits busy;
	Lease	   *lease;

	le_check_function("leader_election.renew()");
	name = le_name_arg(fcinfo, 0, "election name");
	term = term_arg(fcinfo, 1);
	progress = PG_ARGISNULL(2) ? 0 : PG_GETARG_INT64(2);
	InitMaterializedSRF(fcinfo, 0);
	le_store_get(&store);
	le_wait_start();
	le_wait_bounded_begin(&busy, name);
	le_store_lock(&store, LE_TABLE_LEASE, RowExclusiveLock);
	lease = renew(&store, name, term, PG_ARGISNULL(2) ? NULL : &progress);
	if (lease != NULL)
		le_return_grant(fcinfo, lease);
	le_wait_bounded_end(&busy);
	le_start_ensure(true);
	return (Datum) 0;
}

/*
 * Have the holder of a term give up, under the election lock.  True if it was
 * the present one.
 */
static bool
give_up(const char *name, GiveUp *how, const char *instead)
{
	Store		store;
	BoundedWaits busy;
	Election   *election;
	Lease	   *lease;
	Settled		settled = {.busy = false};
	Proof		proof;

	le_store_get(&store);
	le_wait_start();
	le_wait_bounded_begin(&busy, name);
	le_store_lock(&store, LE_TABLES, RowExclusiveLock);
	election = le_election_get(&store, name);
	lease = le_lease_read(&store, name, NULL);
	if (lease != NULL)
		check_holder(lease, how->term, instead);
	if (lease != NULL && !is_over(&store, lease, how->term))
	{
		if (le_lease_state_now(&store, lease) == LEASE_FOREIGN)
			le_start_ensure(true);
		if (how->to_candidate == NULL)
			le_ranking_prepare(&store, election, le_candidate_of_lease(lease));
		if (!le_prove(lease, election->lease_duration, true, le_wait_left(),
					  &proof))
			le_unconfirmed(name);
		while (!le_wait_for_election(name) ||
			   (settled = le_settle(&store, election, NULL, how, &proof)).busy)
			le_wait_retry_or_busy(name);
		if (settled.unproven)
			le_busy(name);
		le_commit_wakes_worker();
	}
	le_wait_bounded_end(&busy);
	le_start_ensure(true);
	return settled.gave_up;
}

Datum
le_release(PG_FUNCTION_ARGS)
{
	GiveUp		how = {.reason = "resigned",.yields = true,.sits_out = true};
	char	   *name;

	le_check_function("leader_election.release()");
	name = le_name_arg(fcinfo, 0, "election name");
	how.term = term_arg(fcinfo, 1);
	how.hold = le_hold_arg(fcinfo, 2, &how.detail);
	PG_RETURN_BOOL(give_up(name, &how, "resign(election)"));
}

Datum
le_transfer_term(PG_FUNCTION_ARGS)
{
	GiveUp		how = {.reason = "transferred"};
	char	   *name;

	le_check_function("leader_election.transfer()");
	name = le_name_arg(fcinfo, 0, "election name");
	how.term = term_arg(fcinfo, 1);
	how.to_candidate = le_name_arg(fcinfo, 2, "candidate name");
	how.detail = psprintf("to %s", how.to_candidate);
	PG_RETURN_BOOL(give_up(name, &how, "transfer(election, to_candidate)"));
}

/*
 * May the caller withdraw this candidate?  It must be detached, and of the
 * caller's role.
 */
static void
check_candidate(const Candidate *c)
{
	if (c->session_id != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("candidate \"%s\" of election \"%s\" is a session",
						c->candidate, c->election),
				 errhint("Call leave(election) in that session.")));
	if (strcmp(c->role, GetUserNameFromId(GetUserId(), false)) != 0)
		le_report_not_owner(c->election, c->candidate, c->role);
}

/*
 * Withdraw a detached candidate, which is not to lead: its lease is given back
 * only by whoever knows its term.
 */
Datum
le_leave_name(PG_FUNCTION_ARGS)
{
	char	   *name;
	char	   *candidate;
	Store		store;
	BoundedWaits busy;
	Candidate  *c;
	Lease	   *lease;

	le_check_function("leader_election.leave()");
	name = le_name_arg(fcinfo, 0, "election name");
	candidate = le_name_arg(fcinfo, 1, "candidate name");
	le_store_get(&store);
	le_wait_start();
	le_wait_bounded_begin(&busy, name);
	le_store_lock(&store, LE_TABLE_ELECTION | LE_TABLE_LEASE |
				  LE_TABLE_CANDIDATE, RowExclusiveLock);
	(void) le_election_get(&store, name);
	c = le_candidate_find(&store, name, candidate);
	if (c != NULL && !le_candidate_alive(c))
		c = NULL;
	if (c != NULL)
	{
		check_candidate(c);

		/* Once its row is ours, it is not elected any more. */
		while (!le_candidate_lock(&store, c))
			le_wait_retry_or_busy(name);
		lease = le_lease_read(&store, name, NULL);
		if (lease != NULL && le_candidate_leads(c, lease) &&
			le_lease_state_now(&store, lease) == LEASE_LED)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("candidate \"%s\" leads election \"%s\"",
							candidate, name),
					 errhint("Give the lease back with release(election, term) first.")));
		while (!le_candidate_withdraw(&store, c))
			le_wait_retry_or_busy(name);
		le_commit_wakes_worker();
	}
	le_wait_bounded_end(&busy);
	PG_RETURN_BOOL(c != NULL);
}

/*
 * Is this the present term, whoever holds it?  As is_leader(election): from a
 * committed row, without a wait, and false in doubt, also where this process
 * cannot find out for the first time which incarnation the server is.
 */
Datum
le_is_leader_term(PG_FUNCTION_ARGS)
{
	char	   *name;
	char	   *incarnation;
	Store		store;
	Lease	   *lease;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1) ||
		VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(0)) > LE_NAME_MAX ||
		!le_store_find(&store))
		PG_RETURN_BOOL(false);
	name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	PG_RETURN_BOOL(le_lease_read_committed(store.lease_oid, name, &lease) &&
				   lease != NULL && lease->term == PG_GETARG_INT64(1) &&
				   (incarnation = le_incarnation_name_try(store.lease_oid)) != NULL &&
				   le_lease_state(lease, incarnation, le_clock()) == LEASE_LED);
}
