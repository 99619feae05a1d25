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

PG_FUNCTION_INFO_V1(le_join);
PG_FUNCTION_INFO_V1(le_is_leader);
PG_FUNCTION_INFO_V1(le_term);
PG_FUNCTION_INFO_V1(le_remaining_ms);
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
	if (le_lock_is_mine(LOCK_EPOCH))
		PG_RETURN_NULL();		/* this transaction has begun an epoch */
	le_wait_start();
	le_wait_bounded_begin(&waits, s.who.election);
	term = le_stand(&s);
	le_wait_bounded_end(&waits);
	le_start_ensure_worker(true);

	/* le_start_ensure_worker() may have waited until the lease was over. */
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
 * The work of a turn: withdraw a candidacy, under the election lock.
 */
static bool
withdraw(void *arg)
{
	return le_candidate_withdraw(arg);
}

/*
 * Have this session's candidacy c give up what it leads, if it leads.  leaves:
 * its candidacy ends as well.  True if it led.
 */
static bool
give_up_candidacy(Candidacy *c, GiveUp *how, bool leaves)
{
	/*
	 * Copies: a constraint that was added to our tables may end the candidacy
	 * meanwhile.
	 */
	Candidate	who = {.election = pstrdup(c->election),
		.candidate = pstrdup(c->candidate),
	.session_id = c->session_id,.role = {"", c->role}};
	Lease	   *lease = le_lease_read(who.election, NULL);
	Turn		turn = {.mode = TURN_QUEUES,.give_up = how,
		.optional = lease == NULL || lease->session_id != c->session_id,
	.work = leaves ? withdraw : NULL,.arg = &who,.lease = lease};
	Settled		settled;

	/* The leader's view ends before another candidate can follow. */
	c->stepped_down = true;
	how->session_id = c->session_id;
	settled = le_turn(who.election, &turn);
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
	BoundedWaits waits;
	Candidacy  *c;
	bool		stands;
	bool		led;

	le_call_enter(&waits, name, LE_TABLES, RowExclusiveLock);
	c = le_stand_find(name, true);
	(void) le_election_get(name);
	stands = c != NULL && !c->withdrawn;
	if (stands)
		le_stand_check_owner(c);
	led = stands && give_up_candidacy(c, how, leaves);
	le_wait_bounded_end(&waits);
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
	le_start_ensure_worker(true);
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
	Candidacy  *c;
	bool		look;
	int			left = 0;

	le_call_check_function("leader_election.leave_all()");
	le_store_get();
	le_wait_start();
	look = le_store_try_lock(LE_TABLES, RowExclusiveLock);
	le_cap_keep(true);
	foreach_ptr(char, name, le_session_elections())
	{
		GiveUp		how = {.reason = REASON_LEFT};
		bool		stood;

		c = le_stand_find(name, look);
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
	le_start_ensure_worker(true);
	PG_RETURN_BOOL(led);
}
