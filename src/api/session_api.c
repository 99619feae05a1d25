/*-------------------------------------------------------------------------
 *
 * session_api.c
 *		SQL functions for session candidates.
 *
 * Calls that change something are refused inside a transaction block: a
 * transaction that sits idle must not freeze an election, and a grant must not
 * roll back after it was told.
 *
 * Functions wait LE_WAIT_LIMIT_MS at the most, for locks and for synchronous
 * standbys.  campaign() waits as long as it takes, between transactions: without
 * a snapshot and without a lock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "api/api.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(le_join);
PG_FUNCTION_INFO_V1(le_campaign);
PG_FUNCTION_INFO_V1(le_is_leader);
PG_FUNCTION_INFO_V1(le_term);
PG_FUNCTION_INFO_V1(le_remaining_ms);
PG_FUNCTION_INFO_V1(le_renew);
PG_FUNCTION_INFO_V1(le_resign);
PG_FUNCTION_INFO_V1(le_leave);
PG_FUNCTION_INFO_V1(le_leave_all);
PG_FUNCTION_INFO_V1(le_transfer);

/* Latest poll of a waiting campaign, whatever it waits for */
#define POLL_US			INT64CONST(1000000)
#define RETRY_US		INT64CONST(50000)

/* What a call stands for, and how far it got */
typedef struct StandCall
{
	Candidate	who;			/* session_id 0: there is no candidacy yet */
	Profile		profile;
	Oid			lease_oid;		/* which extension the candidacy belongs to */
	bool		made;			/* the candidacy is this call's own */
	bool		stands;			/* its row has been written */
	int64		term;			/* as of a committed row; 0: not known to lead */
	int64		ask_until;		/* a campaign asks standbys no longer (monotonic) */
	int64		deadline;		/* of the lease, if this session leads */
} StandCall;

/*
 * Is the candidacy's row there?  A live session's row goes only with the
 * election.  (Another one may have been created under its name.)
 */
static bool
still_stands(const Store *store, const char *election, const char *candidate,
			 int64 session_id)
{
	Candidate  *row = le_candidate_find(store, election, candidate);

	return row != NULL && row->session_id == session_id;
}

/*
 * The candidacy was lost, which the client may not know: a pool has lent it this
 * session, and reset it in between.
 */
LE_NORETURN static void report_reset(const char *election,
									 const char *candidate);

static void
report_reset(const char *election, const char *candidate)
{
	ereport(ERROR,
			(errcode(ERRCODE_LE_SESSION_RESET),
			 candidate != NULL ?
			 errmsg("this session was reset while it stood in election \"%s\", as candidate \"%s\"",
					election, candidate) :
			 errmsg("this session was reset while it stood in election \"%s\"",
					election),
			 errdetail("Its locks were released, as by DISCARD ALL or pg_advisory_unlock_all(), and its candidacy and leadership ended then."),
			 errhint("Connection pools do that when a connection is given back: use a connection that no pool manages, or acquire(). If this is a new client, repeat the call.")));
}

/*
 * This session's candidacy, if it belongs to the extension that is there now
 * and its session lock is held still.  look: to the election that is there now,
 * too; the tables are locked.
 */
static Candidacy *
find_candidacy(const Store *store, const char *election, bool look)
{
	Candidacy  *c = le_session_find(election, strlen(election));

	if (c != NULL && (c->lease_oid != store->lease_oid ||
					  !le_session_holds_lock(c)))
	{
		if (c->lease_oid == store->lease_oid && !c->withdrawn)
			le_session_lose(c);
		else
			le_session_drop(c);
		c = NULL;
	}
	if (c != NULL && look && !c->made && !c->withdrawn &&
		!still_stands(store, c->election, c->candidate, c->session_id))
	{
		/* What this very transaction may have dropped may come back. */
		if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
			le_session_withdraw(c);
		else
		{
			le_session_drop(c);
			c = NULL;
		}
	}
	return c;
}

static void
check_owner(const Candidacy *c)
{
	if (!le_session_owns(c))
		le_report_not_owner(c->election, c->candidate, NameStr(c->role));
}

/*
 * The arguments that join and campaign share.  They may be needed after a
 * commit: the current memory context must last.
 */
static void
get_standing(FunctionCallInfo fcinfo, int first_of_profile, StandCall *s)
{
	memset(s, 0, sizeof(StandCall));
	s->who.election = le_name_arg(fcinfo, 0, "election name");
	s->who.candidate = le_name_arg(fcinfo, 1, "candidate name");
	s->who.role = GetUserNameFromId(GetUserId(), false);
	s->who.auto_renew = true;
	le_profile_args(fcinfo, first_of_profile, true, &s->profile);
}

/*
 * Find this session's candidacy or begin one.
 */
static void
begin_candidacy(const Store *store, StandCall *s, bool campaigning, bool look)
{
	Candidacy  *c = find_candidacy(store, s->who.election, look);

	if (le_session_take_loss(store->lease_oid, s->who.election, s->who.candidate))
		report_reset(s->who.election, s->who.candidate);
	s->lease_oid = store->lease_oid;
	if (c == NULL)
	{
		s->who.session_id = campaigning ? le_session_lock_new() :
			le_session_id();
		(void) le_session_add(store, s->who.election, s->who.candidate,
							  s->who.role, s->who.session_id, campaigning);
		s->made = true;
		return;
	}
	check_owner(c);
	s->who.session_id = c->session_id;
	if (c->withdrawn)
		le_session_return(c, s->who.candidate);
	if (strcmp(c->candidate, s->who.candidate) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_LE_NAME_IN_USE),
				 errmsg("this session stands in election \"%s\" already, as candidate \"%s\"",
						s->who.election, c->candidate),
				 errhint("If two clients share this session through a transaction pooler, they cannot be session candidates: use acquire(), or connect them directly.")));
}

/*
 * This call's candidacy; NULL if it was lost meanwhile.  It is looked up after
 * each commit, and after what may have run a trigger: that may have released
 * the session's locks, and have called functions of ours.
 */
static Candidacy *
candidacy_of(const StandCall *s)
{
	Candidacy  *c = le_session_find(s->who.election, strlen(s->who.election));

	return c != NULL && c->session_id == s->who.session_id ? c : NULL;
}

static bool
leads(const Store *store, const Lease *lease, int64 session_id)
{
	return lease != NULL && lease->leader != NULL &&
		lease->session_id == session_id &&
		le_lease_state_now(store, lease) == LEASE_LED;
}

/*
 * Write the row of the candidacy, unless an earlier poll has done so, in an
 * election that may have to be created.  NULL: not now.
 */
static Election *
write_candidacy(const Store *store, StandCall *s, bool wait)
{
	for (;;)
	{
		Election   *election = le_election_get_or_create(store, s->who.election,
														 wait);
		Candidacy  *c = candidacy_of(s);
		StandResult result;

		if (election == NULL || s->stands)
			return election;
		le_check_candidate_role(election, s->who.role);
		le_keepalive_tighten(election->lease_duration);
		if (c != NULL)
			c->lease_duration = election->lease_duration;
		result = le_candidate_stand(store, &s->who, &s->profile,
									election->lease_duration);
		s->stands = result == STAND_OK;
		if (s->stands)
			return election;
		if (!wait)
			return NULL;
		if (result == STAND_IN_USE)
			le_report_name_in_use(store, &s->who);
		le_wait_retry_or_busy(s->who.election);
	}
}

/*
 * Renew the lease of this session, if it leads still and is not asked to yield.
 * *lease, as it was read before the proof, becomes the row as it is now.  False:
 * another session has locked that row, or the settings are not those of the
 * proof.
 */
static bool
renew_lease(const Store *store, const Candidacy *c, const Proof *proof,
			Lease **lease)
{
	Lease	   *locked = le_lease_lock(store, c->election);
	int64		duration;

	if (locked == NULL)
		return false;
	*lease = locked;
	if (!leads(store, locked, c->session_id) || locked->yielding)
		return true;
	duration = le_election_lease_duration(store, locked);
	if (!le_proof_covers(proof, duration))
		return false;
	le_lease_renew(locked, locked->term, duration, proof->t0,
				   GetCurrentTimestamp(), NULL);
	return true;
}

/*
 * The leader calls join() again.  If half of its lease is over, no worker renews
 * it: this call does.  What is busy, unproven or without room in the lock table
 * is left out, since this session leads on; a later call tries again.  The proof
 * may take longer than the lease lasts: the caller looks again at who leads.
 */
static void
renew_late(const Store *store, Lease **lease, Candidacy *c)
{
	const Lease *seen = *lease;
	int64		now = le_clock();
	Proof		proof;

	if (!seen->auto_renew || seen->own_write || seen->yielding ||
		seen->deadline_mono - now > seen->duration / 2 ||
		now < c->renew_not_before)
		return;
	c->renew_not_before = now + seen->duration / 10;
	if (le_room_for_locks(LE_LOCKS_OF_CHANGE) &&
		le_prove(seen, le_election_lease_duration(store, seen), false, le_wait_left(),
				 &proof))
		(void) renew_lease(store, c, &proof, lease);
}

/*
 * Stand, and elect somebody if nobody leads.  Returns the term, if it is this
 * session that will lead when the transaction has committed, else 0.  Without
 * wait, what cannot be had at once is left for the next try (not stands).
 */
static int64
stand(StandCall *s, bool wait)
{
	Store		store;
	Election   *election;
	Lease	   *lease;
	Candidacy  *c;
	bool		locked;
	Turn		turn = {.caller = &s->who};

	le_store_get(&store);
	if (!wait && !le_room_for_locks(LE_LOCKS_OF_CHANGE))
	{
		le_wake_workers(MyDatabaseId);	/* it makes room */
		return 0;
	}
	locked = wait || le_store_try_lock(&store, LE_TABLES, RowExclusiveLock);
	if (wait)
		le_store_lock(&store, LE_TABLES, RowExclusiveLock);
	if (locked &&
		!le_begin_ensure(&store, s->who.election, wait,
						 wait ? le_wait_left() : Max(s->ask_until - le_clock(), 0)))
		return 0;
	if (s->who.session_id == 0)
	{
		begin_candidacy(&store, s, !wait, locked);
		/* A campaign may have to wait before it knows the election's lease. */
		if (!wait)
			le_keepalive_tighten(le_lease_duration_ms * INT64CONST(1000));
	}
	if (!locked)
		return 0;
	election = write_candidacy(&store, s, wait);
	if (election == NULL)
	{
		if (wait)
			le_busy(s->who.election);
		return 0;
	}
	turn.mode = wait ? TURN_TRIES : TURN_SKIPS;
	turn.ask_until = wait ? le_wait_deadline() : s->ask_until;
	(void) le_turn(&store, election, &turn);	/* else the worker goes on */
	lease = le_lease_read(&store, s->who.election, NULL);
	if (!leads(&store, lease, s->who.session_id))
		return 0;
	c = candidacy_of(s);
	if (wait && c != NULL)
		renew_late(&store, &lease, c);
	s->deadline = lease->deadline_mono;
	return leads(&store, lease, s->who.session_id) ? lease->term : 0;
}

Datum
le_join(PG_FUNCTION_ARGS)
{
	StandCall	s;
	BoundedWaits waits;
	int64		term;

	le_check_function("leader_election.join()");
	get_standing(fcinfo, 2, &s);
	if (le_lock_epoch_is_mine())
		PG_RETURN_NULL();		/* this transaction has begun an epoch */
	le_wait_start();
	le_wait_bounded_begin(&waits, s.who.election);
	term = stand(&s, true);
	le_wait_bounded_end(&waits);
	le_start_ensure(true);

	/* That may have waited until the lease was over. */
	if (term == 0 || le_clock() >= s.deadline)
		PG_RETURN_NULL();
	PG_RETURN_INT64(term);
}

/*
 * One poll of a waiting campaign, in a transaction of its own.  Returns when
 * to look again (monotonic; 0: this session leads, once it has committed).
 *
 * The process that elects this session wakes it after it has committed.  So the
 * lease row as read here is committed, and the answer (s->term), unless a worker is
 * to be started first.
 */
static int64
poll_campaign(StandCall *s)
{
	Store		store;
	uint64		changes;
	Lease	   *lease;
	Candidacy  *c;
	int64		now;
	bool		led;

	if (!s->stands)
		return stand(s, false) != 0 ? 0 :
			le_clock() + (s->stands ? 0 : RETRY_US);

	le_store_get(&store);
	if (!le_store_try_lock(&store, LE_TABLE_LEASE, RowExclusiveLock))
		return le_clock() + RETRY_US;
	changes = le_leadership_generation;
	lease = store.lease_oid == s->lease_oid ?
		le_lease_read(&store, s->who.election, NULL) : NULL;
	if (leads(&store, lease, s->who.session_id))
	{
		c = candidacy_of(s);
		if (c != NULL && !le_lock_worker_is_free())
			s->term = le_session_term_of(c, lease, changes);
		return 0;
	}
	if (lease == NULL ||
		(le_store_try_lock(&store, LE_TABLE_CANDIDATE, AccessShareLock) &&
		 !still_stands(&store, s->who.election, s->who.candidate,
					   s->who.session_id)))
		ereport(ERROR,
				(errcode(ERRCODE_LE_NO_ELECTION),
				 errmsg("election \"%s\" does not exist", s->who.election),
				 errdetail("It was dropped while this session campaigned.")));

	now = le_clock();
	led = le_lease_state_now(&store, lease) == LEASE_LED;
	if (!led && stand(s, false) != 0)
		return 0;
	if (led && lease->deadline_mono - now < POLL_US)
		return lease->deadline_mono + RETRY_US;
	return now + POLL_US;
}

Datum
le_campaign(PG_FUNCTION_ARGS)
{
	static uint32 wait_event = 0;
	StandCall	s;
	MemoryContext context;
	MemoryContext old;
	int64		give_up_at = PG_INT64_MAX;
	int64		term = 0;
	bool		first = true;
	Candidacy  *c;

	le_check_callable("leader_election.campaign()", le_call_is_atomic(fcinfo));
	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (wait_event == 0)
		wait_event = LeWaitEvent("LeaderElectionCampaign", 0x4C43);
	if (!PG_ARGISNULL(2))
		give_up_at = le_clock() + le_interval_arg(fcinfo, 2, "timeout",
												  0, LE_LONGEST_TIMEOUT);
	get_standing(fcinfo, 3, &s);
	/* It asks the standbys for as long as a join() would, at least. */
	s.ask_until = Max(give_up_at, le_clock() + LE_WAIT_LIMIT_MS * INT64CONST(1000));
	context = AllocSetContextCreate(CurrentMemoryContext,
									"leader_election poll",
									ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	le_poll_commit(context);

	for (;;)
	{
		WalMark		wal;
		int64		next;

		ResetLatch(MyLatch);
		le_wal_begin(&wal);
		next = poll_campaign(&s);
		le_wal_end(&wal);
		if (next == 0 && (term = s.term) != 0)
			break;
		le_poll_commit(context);
		c = candidacy_of(&s);
		if (c == NULL && s.who.session_id != 0)
		{
			(void) le_session_take_loss(s.lease_oid, s.who.election,
										s.who.candidate);
			report_reset(s.who.election, s.who.candidate);
		}
		le_start_ensure(first);	/* which may take a while, with no lock */
		first = false;

		/*
		 * What counts is what has been committed, and that the lease is not
		 * over by now.
		 */
		le_leadership_generation++;			/* the news may travel slower than we */
		if (next == 0 && (term = le_session_term(c)) != 0)
			break;
		if (le_clock() >= give_up_at)
			break;
		if (next == 0)
			next = le_clock() + RETRY_US;	/* it could not be read at once */
		le_poll_sleep(Min(next, give_up_at), wait_event);
		CHECK_FOR_INTERRUPTS();
	}
	le_poll_end();

	MemoryContextSwitchTo(old);
	SPI_commit();				/* back to the caller's isolation level */
	c = candidacy_of(&s);
	if (term != 0 && c != NULL)
		c->campaigning = false;
	else if (s.made && c != NULL)
	{
		le_session_drop(c);
		le_wake_workers(MyDatabaseId);
	}
	SPI_finish();
	return le_call_result(fcinfo, (Datum[]) {Int64GetDatum(term)},
						  (bool[]) {term == 0});
}

Datum
le_is_leader(PG_FUNCTION_ARGS)
{
	text	   *election;
	Candidacy  *c;

	if (PG_ARGISNULL(0))
		PG_RETURN_BOOL(false);
	election = PG_GETARG_TEXT_PP(0);
	c = le_session_find(VARDATA_ANY(election), VARSIZE_ANY_EXHDR(election));
	PG_RETURN_BOOL(c != NULL && le_session_term(c) != 0);
}

Datum
le_term(PG_FUNCTION_ARGS)
{
	text	   *election;
	Candidacy  *c;
	int64		term = 0;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	election = PG_GETARG_TEXT_PP(0);
	c = le_session_find(VARDATA_ANY(election), VARSIZE_ANY_EXHDR(election));
	if (c != NULL)
		term = le_session_term(c);
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
	text	   *election;
	Candidacy  *c;
	int64		remaining = -1;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	election = PG_GETARG_TEXT_PP(0);
	c = le_session_find(VARDATA_ANY(election), VARSIZE_ANY_EXHDR(election));
	if (c != NULL)
		remaining = le_session_remaining(c);
	if (remaining < 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(remaining / 1000);
}

/*
 * Renew the lease of this session's leadership.  What this transaction has
 * renewed or granted already is told again: SELECT (renew('x')).* calls once
 * per column.
 */
Datum
le_renew(PG_FUNCTION_ARGS)
{
	char	   *name;
	Store		store;
	Call		call;
	Candidacy  *c;
	Lease	   *lease;

	le_check_function("leader_election.renew()");
	name = le_name_arg(fcinfo, 0, "election name");
	InitMaterializedSRF(fcinfo, 0);
	le_store_get(&store);
	c = find_candidacy(&store, name, false);
	if (c != NULL)
		check_owner(c);
	else if (le_session_take_loss(store.lease_oid, name, NULL))
		report_reset(name, NULL);
	le_call_begin(&call, name, LE_TABLE_LEASE, RowExclusiveLock);
	for (;;)
	{
		Proof		proof;

		lease = le_lease_read(&call.store, name, NULL);
		if (lease == NULL)
			le_report_no_election(name);
		if (c == NULL || !leads(&call.store, lease, c->session_id) ||
			lease->own_write || lease->yielding)
			break;
		if (!le_prove(lease, le_election_lease_duration(&call.store, lease),
					  false, le_wait_left(), &proof))
			le_unconfirmed(name);
		if (renew_lease(&call.store, c, &proof, &lease))
			break;
		le_wait_retry_or_busy(name);
	}
	if (c != NULL && leads(&call.store, lease, c->session_id))
		le_return_grant(fcinfo, lease);
	le_call_end(&call);
	le_start_ensure(true);
	return (Datum) 0;
}

/*
 * Withdraw a candidacy, under the election lock.
 */
static bool
withdraw(const Store *store, void *arg)
{
	return le_candidate_withdraw(store, arg);
}

/*
 * Have this session's candidacy c give up what it leads, if it leads.  leaves: its
 * candidacy ends as well.  True if it led.
 */
static bool
give_up_candidacy(const Store *store, const Election *election, Candidacy *c,
				  GiveUp *how, bool leaves)
{
	const char *name = election->name;
	Lease	   *lease = le_lease_read(store, name, NULL);
	bool		holds = lease != NULL && lease->session_id == c->session_id;
	Candidate	who = {.election = c->election,.candidate = c->candidate,
	.session_id = c->session_id,.role = NameStr(c->role)};
	Turn		turn = {.mode = TURN_QUEUES,.give_up = how,
		.passed_over = holds ? &who : NULL,
		.optional = !holds,.ask_until = holds ? le_wait_deadline() : 0,
	.work = leaves ? withdraw : NULL,.arg = &who};
	Settled		settled;

	/* The leader's view ends before anybody can follow. */
	c->stepped_down = true;
	how->session_id = c->session_id;
	settled = le_turn(store, election, &turn);
	if (settled == SETTLED_UNCONFIRMED)
		le_unconfirmed(name);

	/* A trigger of somebody's may have ended the candidacy meanwhile. */
	c = le_session_find(name, strlen(name));
	if (leaves && c != NULL && c->session_id == how->session_id)
		le_session_withdraw(c);
	le_commit_wakes_worker();
	return settled == SETTLED_GAVE_UP;
}

/*
 * The same for an election by its name.  True if this session led.  *stood, unless
 * NULL: did it stand?
 */
static bool
give_up(const char *name, GiveUp *how, bool leaves, bool *stood)
{
	Call		call;
	Election   *election;
	Candidacy  *c;
	bool		stands;
	bool		led;

	le_call_enter(&call, name, LE_TABLES, RowExclusiveLock);
	c = find_candidacy(&call.store, name, true);
	election = le_election_get(&call.store, name);
	stands = c != NULL && !c->withdrawn;
	if (stands)
		check_owner(c);
	led = stands &&
		give_up_candidacy(&call.store, election, c, how, leaves);
	le_call_end(&call);
	if (stood != NULL)
		*stood = stands;
	return led;
}

Datum
le_resign(PG_FUNCTION_ARGS)
{
	GiveUp		how = {.reason = "resigned",.resigns = true};
	char	   *name;
	bool		led;

	le_check_function("leader_election.resign()");
	name = le_name_arg(fcinfo, 0, "election name");
	how.hold = le_hold_arg(fcinfo, 1, &how.detail);
	le_wait_start();
	led = give_up(name, &how, false, NULL);
	le_start_ensure(true);
	PG_RETURN_BOOL(led);
}

Datum
le_leave(PG_FUNCTION_ARGS)
{
	GiveUp		how = {.reason = "left"};
	char	   *name;
	bool		stood;

	le_check_function("leader_election.leave()");
	name = le_name_arg(fcinfo, 0, "election name");
	le_wait_start();
	(void) give_up(name, &how, true, &stood);
	PG_RETURN_BOOL(stood);
}

Datum
le_leave_all(PG_FUNCTION_ARGS)
{
	Store		store;
	ListCell   *lc;
	Candidacy  *c;
	bool		look;
	int			left = 0;

	le_check_function("leader_election.leave_all()");
	le_store_get(&store);
	le_wait_start();
	look = le_store_try_lock(&store, LE_TABLES, RowExclusiveLock);
	foreach(lc, le_session_elections())
	{
		char	   *name = lfirst(lc);
		GiveUp		how = {.reason = "left"};
		bool		stood;

		c = find_candidacy(&store, name, look);
		if (c == NULL || c->withdrawn)
			continue;
		(void) give_up(name, &how, true, &stood);
		left += stood;
	}
	PG_RETURN_INT32(left);
}

Datum
le_transfer(PG_FUNCTION_ARGS)
{
	GiveUp		how = {.reason = "transferred"};
	char	   *name;
	char	   *to;
	Candidacy  *c;
	bool		led;

	le_check_function("leader_election.transfer()");
	name = le_name_arg(fcinfo, 0, "election name");
	to = le_name_arg(fcinfo, 1, "candidate name");
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
