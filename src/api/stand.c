/*-------------------------------------------------------------------------
 *
 * stand.c
 *		A session stands: what join() and campaign() share.
 *
 * Invariant: the session lock is taken first, then the row of the candidacy is
 * written, then (if nobody leads) a leader is elected, and last, the caller
 * tests whether there is a worker.  Without the lock, the row would look like
 * a dead candidate's.  If the test came before the row, a worker that ends in
 * between would not have seen it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "api/api.h"
#include "miscadmin.h"

/*
 * Is the candidacy's row there?  A live session's row goes only with the
 * election.  (Another election may have been created by that name since, and
 * another session stand there by this candidate's.)
 */
bool
le_stand_has_row(const char *election, const char *candidate, int64 session_id)
{
	Candidate  *row = le_candidate_find(election, candidate);

	return row != NULL && row->session_id == session_id;
}

/*
 * LE006: the candidacy was lost, which the client may not know: a connection
 * pool has reset this session since the client joined.
 */
void
le_stand_report_reset(const char *election, const char *candidate)
{
	ereport(ERROR,
			(errcode(ERRCODE_LE_SESSION_RESET),
			 candidate != NULL ?
			 errmsg("this session was reset while it stood in election \"%s\", as candidate \"%s\"",
					election, candidate) :
			 errmsg("this session was reset while it stood in election \"%s\"",
					election),
			 errdetail("Its locks were released, as by DISCARD ALL or pg_advisory_unlock_all(), and its candidacy and leadership ended then."),
			 errhint("Connection pools do that when a connection is given back: use one that no pool manages. Behind a transaction pooler use detached candidates: acquire(). If this is a new client, repeat the call.")));
}

/*
 * This session's candidacy, if it belongs to the extension that is there now
 * and its session lock is held still.  look: also test, with the tables
 * locked, that its row is there, and so that it belongs to the election that
 * is there now.
 */
Candidacy *
le_stand_find(const char *election, bool look)
{
	Candidacy  *c = le_session_find(election, strlen(election));

	if (c != NULL && (c->lease_oid != le_store.lease_oid ||
					  !le_session_holds_lock(c)))
	{
		if (c->lease_oid == le_store.lease_oid && !c->withdrawn)
			le_session_lose(c);
		else
			le_session_drop(c);
		c = NULL;
	}
	if (c != NULL && look && !c->made && !c->withdrawn &&
		!le_stand_has_row(c->election, c->candidate, c->session_id))
	{
		/*
		 * This transaction may have dropped the election, and may roll back.
		 */
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

/*
 * Only the role that made a candidacy may touch it.  The role may have another
 * name by now.
 */
void
le_stand_check_owner(const Candidacy *c)
{
	Role		role = {NameStr(c->role_name), c->role};

	if (c->role != GetUserId())
		le_call_report_not_owner(c->election, c->candidate, &role);
}

/*
 * The arguments that join and campaign share.  They may be needed after a
 * commit: the current memory context must last.
 */
void
le_stand_args(FunctionCallInfo fcinfo, int first_of_profile, StandCall *s)
{
	memset(s, 0, sizeof(StandCall));
	s->who.election = le_arg_name(fcinfo, 0, "election name");
	s->who.candidate = le_arg_name(fcinfo, 1, "candidate name");
	s->who.role = le_role_current();
	s->who.auto_renew = true;
	le_arg_profile(fcinfo, first_of_profile, true, &s->profile);
}

/*
 * Find this session's candidacy or begin one.
 */
static void
begin_candidacy(StandCall *s, bool look)
{
	Candidacy  *c = le_stand_find(s->who.election, look);

	if (le_session_take_loss(le_store.lease_oid, s->who.election,
							 s->who.candidate))
		le_stand_report_reset(s->who.election, s->who.candidate);
	s->lease_oid = le_store.lease_oid;
	if (c == NULL)
	{
		s->who.session_id = s->polls ? le_session_lock_new() : le_session_id();
		(void) le_session_add(s->who.election, s->who.candidate,
							  &s->who.role, s->who.session_id, s->polls);
		s->made = true;
		return;
	}
	le_stand_check_owner(c);
	s->who.session_id = c->session_id;
	if (c->withdrawn)
		le_session_return(c, s->who.candidate);
	if (strcmp(c->candidate, s->who.candidate) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_LE_NAME_IN_USE),
				 errmsg("this session stands in election \"%s\" already, as candidate \"%s\"",
						s->who.election, c->candidate),
				 errhint("Two clients may share this session. Behind a transaction pooler use detached candidates: acquire().")));
}

/*
 * This call's candidacy; NULL if it was lost meanwhile.  The caller looks it
 * up again after each commit, and after each write: a constraint that
 * was added to our tables may have released the session's locks.
 */
Candidacy *
le_stand_candidacy(const StandCall *s)
{
	Candidacy  *c = le_session_find(s->who.election, strlen(s->who.election));

	return c != NULL && c->session_id == s->who.session_id ? c : NULL;
}

bool
le_stand_leads(const Lease *lease, int64 session_id)
{
	return lease != NULL && lease->leader != NULL &&
		lease->session_id == session_id &&
		le_lease_state_now(lease) == LEASE_LED;
}

/*
 * Write the row of the candidacy, unless an earlier poll has done so, in an
 * election that may have to be created.  False: not now.  What was read of the
 * lease does not count any more after a wait.
 */
static bool
write_candidacy(StandCall *s)
{
	for (;; s->lease = NULL)
	{
		Election   *election = s->is_seat ?
			le_group_seat_read(s->who.election) :
			le_create_on_first_use(s->who.election, !s->polls);
		Candidacy  *c = le_stand_candidacy(s);
		StandResult result;

		s->election = election;
		if (election != NULL && c != NULL)
		{
			/* After a wait it is not known whether this session leads. */
			if (s->lease == NULL)
				c->lease_duration = Max(c->lease_duration,
										election->lease_duration);
			else
				c->lease_duration = le_stand_leads(s->lease, c->session_id) ?
					s->lease->duration : election->lease_duration;
		}
		if (election == NULL || s->stands)
			return election != NULL;
		le_call_check_candidate_role(election, &s->who.role);
		result = le_candidacy_stand(&s->who, &s->profile,
									election->lease_duration);
		s->stands = result == STAND_OK;
		if (s->stands || s->polls)
			return s->stands;
		if (result == STAND_IN_USE)
			le_call_report_name_in_use(&s->who);
		le_wait_retry_or_busy(s->who.election);
	}
}

/*
 * The leader calls join() again.  If half of its lease is over, no worker
 * renews it: this call does.  What is busy, unproven or without room in the
 * lock table is left out, since this session leads on; a later call tries
 * again.  The proof may take longer than the lease lasts: the caller looks
 * again at who leads.
 */
static void
renew_late(Lease **lease, Candidacy *c)
{
	const Lease *seen = *lease;
	Lease	   *locked;
	int64		now = le_clock();
	int64		duration = 0;
	Proof		proof;

	if (!seen->auto_renew || seen->own_write || seen->yielding ||
		seen->deadline_mono - now > seen->duration / 2 ||
		now < c->renew_not_before)
		return;
	c->renew_not_before = now + seen->duration / 10;
	if (!le_room_for_locks(LE_LOCKS_OF_CHANGE) ||
		!le_renew_prove(seen, &proof))
		return;
	locked = le_lease_lock(c->election);
	if (locked != NULL)
		*lease = locked;
	(void) le_renew_lease(locked, c->session_id, 0, &duration, &proof, NULL);
}

/*
 * Lock the tables.  False: a poll has not got a lock at once.  It locks the
 * indexes, too: a write waits for them, and an error would end the campaign.
 */
static bool
lock_tables(const StandCall *s)
{
	static const TableId written[] = {TABLE_CANDIDATE, TABLE_LEASE, TABLE_HISTORY};
	bool		locked;

	if (s->polls)
	{
		locked = le_store_try_lock(LE_TABLES, RowExclusiveLock) &&
			(le_seat_number(s->who.election) == 0 ||
			 le_store_try_lock(LE_TABLE_GROUP, AccessShareLock));
		for (int i = 0; i < lengthof(written); i++)
			locked = locked &&
				le_table_lock_indexes(le_store.table[written[i]].rel,
									  RowExclusiveLock, false);
		return locked;
	}
	le_store_lock(LE_TABLES, RowExclusiveLock);
	return true;
}

/*
 * Stand, without asking for the lease.  False: not now, or there is no such
 * seat any more.  s->stands says whether the row has been written.
 */
bool
le_stand_begin(StandCall *s)
{
	bool		locked;
	int64		limit;

	le_store_begin();
	if (s->polls && !le_room_for_locks(LE_LOCKS_OF_CHANGE))
	{
		le_wake_workers(MyDatabaseId);	/* the worker makes room */
		return false;
	}
	locked = lock_tables(s);
	limit = s->polls ? Max(s->ask_until - le_clock(), 0) : le_wait_left();
	s->lease = locked ? le_lease_read(s->who.election, NULL) : NULL;
	if (locked && !le_begin_ensure_epoch(s->lease, !s->polls, limit))
		return false;
	if (s->who.session_id == 0)
		begin_candidacy(s, locked);
	if (!locked)
		return false;
	if (write_candidacy(s))
		return true;
	if (!s->polls && !s->is_seat)
		le_wait_busy(s->who.election);
	return false;
}

/*
 * Have a leader elected if there is none, by a call that stands.  Returns the
 * term, if it is this session that will lead when the transaction has
 * committed, else 0.
 */
int64
le_stand_elect(StandCall *s)
{
	Lease	   *lease;
	Candidacy  *c;
	Turn		turn = {.caller = &s->who,
		.mode = s->polls ? TURN_SKIPS : TURN_TRIES,
		.ask_until = s->ask_until,.election = s->election,
	.lease = s->lease};

	le_store_begin();
	if (le_turn(s->who.election, &turn) == SETTLED_GONE)
	{
		if (s->is_seat)
			return 0;
		le_election_report_missing(s->who.election);
	}
	lease = turn.lease != NULL ? turn.lease :
		le_lease_read(s->who.election, NULL);
	if (!le_stand_leads(lease, s->who.session_id))
		return 0;
	c = s->polls ? NULL : le_stand_candidacy(s);
	if (c != NULL && !lease->yielding &&
		le_call_ask_unwanted(s->who.election))
		lease = le_lease_read(s->who.election, NULL);
	else if (c != NULL)
		renew_late(&lease, c);
	s->deadline = lease->deadline_mono;
	return le_stand_leads(lease, s->who.session_id) ? lease->term : 0;
}

int64
le_stand(StandCall *s)
{
	return le_stand_begin(s) ? le_stand_elect(s) : 0;
}
