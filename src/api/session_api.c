/*-------------------------------------------------------------------------
 *
 * session_api.c
 *		SQL functions for session candidates.
 *
 * Invariant: calls that change something are refused inside a transaction
 * block.  Otherwise a transaction that sits idle would freeze the election
 * whose lock it holds, and a grant could be rolled back after the client has
 * acted on it.
 *
 * Functions wait LE_WAIT_LIMIT_MS at the most, for locks and for synchronous
 * standbys.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/api.h"
#include "funcapi.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(le_join);
PG_FUNCTION_INFO_V1(le_is_leader);
PG_FUNCTION_INFO_V1(le_term);
PG_FUNCTION_INFO_V1(le_remaining_ms);
PG_FUNCTION_INFO_V1(le_renew);
PG_FUNCTION_INFO_V1(le_resign);
PG_FUNCTION_INFO_V1(le_leave);
PG_FUNCTION_INFO_V1(le_leave_all);
PG_FUNCTION_INFO_V1(le_transfer);

Datum
le_join(PG_FUNCTION_ARGS)
{
	StandCall	s;
	BoundedWaits waits;
	int64		term;

	le_call_check_function("leader_election.join()");
	le_stand_args(fcinfo, 2, &s);
	if (le_lock_epoch_is_mine())
		PG_RETURN_NULL();		/* this transaction has begun an epoch */
	le_wait_start();
	le_wait_bounded_begin(&waits, s.who.election);
	term = le_stand(&s);
	le_wait_bounded_end(&waits);
	le_start_ensure(true);

	/* le_start_ensure() may have waited until the lease was over. */
	if (term == 0 || le_clock() >= s.deadline)
		PG_RETURN_NULL();
	PG_RETURN_INT64(term);
}

/*
 * This session's candidacy in the election that is named; NULL: it has none.
 */
static Candidacy *
candidacy_arg(FunctionCallInfo fcinfo)
{
	text	   *election;

	if (PG_ARGISNULL(0))
		return NULL;
	election = PG_GETARG_TEXT_PP(0);
	return le_session_find(VARDATA_ANY(election), VARSIZE_ANY_EXHDR(election));
}

Datum
le_is_leader(PG_FUNCTION_ARGS)
{
	Candidacy  *c = candidacy_arg(fcinfo);

	PG_RETURN_BOOL(c != NULL && le_session_term(c) != 0);
}

Datum
le_term(PG_FUNCTION_ARGS)
{
	Candidacy  *c = candidacy_arg(fcinfo);
	int64		term = c != NULL ? le_session_term(c) : 0;

	if (term == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(term);
}

/*
 * Milliseconds, rounded down: never more than there are.
 */
Datum
le_remaining_ms(PG_FUNCTION_ARGS)
{
	Candidacy  *c = candidacy_arg(fcinfo);
	int64		remaining = c != NULL ? le_session_remaining(c) : -1;

	if (remaining < 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(remaining / 1000);
}

/*
 * This session's candidacy, for renew(); NULL: it has none.
 */
static Candidacy *
candidacy_to_renew(const char *name)
{
	Store		store;
	Candidacy  *c;

	le_store_get(&store);
	c = le_stand_find(&store, name, false);
	if (c != NULL)
		le_stand_check_owner(c);
	else if (le_session_take_loss(store.lease_oid, name, NULL))
		le_stand_report_reset(name, NULL);
	return c;
}

/*
 * The session that leads says something of itself: let its candidacy say so,
 * too.  A row or a table that is locked is left as it is: the leader must not
 * lose its lease for want of it.
 */
static void
refresh_candidate(Store *store, const Lease *lease, const Profile *said)
{
	if ((said->sets_progress || said->metadata != 0) &&
		le_store_try_lock(store, LE_TABLE_CANDIDATE, RowExclusiveLock))
		(void) le_candidacy_stand(store, le_candidate_of_lease(lease), said,
								  lease->duration);
}

/*
 * Renew the lease of this session's leadership (c NULL: it has none).  A lease
 * that this transaction has renewed or granted already is returned as it is:
 * SELECT (renew('x')).* calls the function once per column.  NULL: this session
 * does not lead.
 */
static Lease *
renew(Store *store, const char *name, const Candidacy *c, const Profile *said)
{
	for (;;)
	{
		Lease	   *lease = le_lease_read(store, name, NULL);
		Proof		proof;

		if (lease == NULL)
			le_election_report_missing(name);
		if (c != NULL && lease->session_id == c->session_id &&
			le_lease_state_now(store, lease) == LEASE_EXPIRED &&
			!le_call_is_expired(store, name))
			continue;
		if (c == NULL || !le_stand_leads(store, lease, c->session_id))
			return NULL;
		if (lease->own_write || lease->yielding)
		{
			if (le_renew_say(store, &lease, said))
				return lease;
			le_wait_retry_or_busy(name);
			continue;
		}
		if (le_call_ask_unwanted(store, name))
			continue;
		if (!le_renew_prove(store, lease, &proof))
			le_wait_unconfirmed(name);
		if (le_stand_renew(store, c, &proof, said, &lease) && !lease->yielding)
			return lease;
		le_wait_retry_or_busy(name);
	}
}

/*
 * Renew the lease of a detached candidate's term or, without a term, of this
 * session.
 */
Datum
le_renew(PG_FUNCTION_ARGS)
{
	bool		by_term = !PG_ARGISNULL(1);
	char	   *name;
	Profile		said = {.metadata = 0};
	Candidacy  *c;
	Call		call;
	Lease	   *lease;

	le_call_check_function("leader_election.renew()");
	name = le_arg_name(fcinfo, 0, "election name");
	le_arg_said(fcinfo, 2, &said);
	InitMaterializedSRF(fcinfo, 0);
	c = by_term ? NULL : candidacy_to_renew(name);
	le_call_begin(&call, name, LE_TABLE_LEASE, RowExclusiveLock);
	if (by_term)
		lease = le_detached_renew(&call.store, name, PG_GETARG_INT64(1), &said);
	else
	{
		lease = renew(&call.store, name, c, &said);
		if (lease != NULL && !le_stand_leads(&call.store, lease, c->session_id))
			lease = NULL;		/* its lease has just ended */
		if (lease != NULL)
			refresh_candidate(&call.store, lease, &said);
	}
	if (lease != NULL)
		le_call_return_grant(fcinfo, lease, false);
	le_call_end(&call);
	le_start_ensure(true);
	return (Datum) 0;
}

/*
 * The work of a turn: withdraw a candidacy, under the election lock.
 */
static bool
withdraw(const Store *store, void *arg)
{
	return le_candidate_withdraw(store, arg);
}

/*
 * Have this session's candidacy c give up what it leads, if it leads.  leaves:
 * its candidacy ends as well.  True if it led.
 */
static bool
give_up_candidacy(const Store *store, Candidacy *c, GiveUp *how, bool leaves)
{
	/*
	 * Copies: a constraint that was added to our tables may end the candidacy
	 * meanwhile.
	 */
	Candidate	who = {.election = pstrdup(c->election),
		.candidate = pstrdup(c->candidate),
	.session_id = c->session_id,.role = {"", c->role}};
	Lease	   *lease = le_lease_read(store, who.election, NULL);
	Turn		turn = {.mode = TURN_QUEUES,.give_up = how,
		.optional = lease == NULL || lease->session_id != c->session_id,
	.work = leaves ? withdraw : NULL,.arg = &who,.lease = lease};
	Settled		settled;

	/* The leader's view ends before another candidate can follow. */
	c->stepped_down = true;
	how->session_id = c->session_id;
	settled = le_turn(store, who.election, &turn);
	if (settled == SETTLED_GONE)
		le_election_report_missing(who.election);
	c = le_session_find(who.election, strlen(who.election));
	if (leaves && c != NULL && c->session_id == how->session_id)
		le_session_withdraw(c);
	le_commit_wakes_worker();
	return settled == SETTLED_GAVE_UP;
}

/*
 * Have this session give up an election.  True if it led.  *stood, unless
 * NULL: did it stand?
 */
static bool
give_up(const char *name, GiveUp *how, bool leaves, bool *stood)
{
	Call		call;
	Candidacy  *c;
	bool		stands;
	bool		led;

	le_call_enter(&call, name, LE_TABLES, RowExclusiveLock);
	c = le_stand_find(&call.store, name, true);
	(void) le_election_get(&call.store, name);
	stands = c != NULL && !c->withdrawn;
	if (stands)
		le_stand_check_owner(c);
	led = stands && give_up_candidacy(&call.store, c, how, leaves);
	le_call_end(&call);
	if (stood != NULL)
		*stood = stands;
	return led;
}

Datum
le_resign(PG_FUNCTION_ARGS)
{
	GiveUp		how = {.reason = REASON_RESIGNED,.resigns = true};
	char	   *name = le_call_election(fcinfo, "leader_election.resign()");
	bool		led;

	how.hold = le_arg_hold(fcinfo, 1, &how.detail);
	le_wait_start();
	led = give_up(name, &how, false, NULL);
	le_start_ensure(true);
	PG_RETURN_BOOL(led);
}

Datum
le_leave(PG_FUNCTION_ARGS)
{
	GiveUp		how = {.reason = REASON_LEFT};
	char	   *name = le_call_election(fcinfo, "leader_election.leave()");
	bool		stood;

	le_wait_start();
	(void) give_up(name, &how, true, &stood);
	PG_RETURN_BOOL(stood);
}

Datum
le_leave_all(PG_FUNCTION_ARGS)
{
	Store		store;
	Candidacy  *c;
	bool		look;
	int			left = 0;

	le_call_check_function("leader_election.leave_all()");
	le_store_get(&store);
	le_wait_start();
	look = le_store_try_lock(&store, LE_TABLES, RowExclusiveLock);
	le_cap_keep(true);
	foreach_ptr(char, name, le_session_elections())
	{
		GiveUp		how = {.reason = REASON_LEFT};
		bool		stood;

		c = le_stand_find(&store, name, look);
		if (c == NULL || c->withdrawn)
			continue;
		(void) give_up(name, &how, true, &stood);
		left += stood;
	}
	le_cap_keep(false);
	PG_RETURN_INT32(left);
}

Datum
le_transfer(PG_FUNCTION_ARGS)
{
	GiveUp		how = {.reason = REASON_TRANSFERRED};
	char	   *name = le_call_election(fcinfo, "leader_election.transfer()");
	char	   *to;
	Candidacy  *c;
	bool		led;

	to = le_arg_name(fcinfo, 1, "candidate name");
	c = le_session_find(name, strlen(name));
	if (c != NULL && strcmp(c->candidate, to) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("candidate \"%s\" cannot transfer election \"%s\" to itself",
						to, name)));
	how.to_candidate = to;
	how.detail = psprintf("to %s", to);
	le_wait_start();
	led = give_up(name, &how, false, NULL);
	le_start_ensure(true);
	PG_RETURN_BOOL(led);
}
