/*-------------------------------------------------------------------------
 *
 * candidate.c
 *		The rows of the candidates: how they are read, compared and written.
 *
 * A session candidate is alive while its session lock is held.  A detached one
 * has no session: it is alive for a while after its last call.
 *
 * Invariant: a row is inserted only under the candidate's name lock.  Before a
 * row is changed or deleted, it is locked, and found to be the same
 * candidate's still.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "state/state.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgrprotos.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* Column numbers of candidate */
enum
{
	CANDIDATE_ELECTION,
	CANDIDATE_CANDIDATE,
	CANDIDATE_KIND,
	CANDIDATE_ROLE,
	CANDIDATE_RANK,
	CANDIDATE_PROGRESS,
	CANDIDATE_METADATA,
	CANDIDATE_AUTO_RENEW,
	CANDIDATE_SESSION_ID,
	CANDIDATE_BACKEND_PID,
	CANDIDATE_CLIENT_ADDR,
	CANDIDATE_JOINED_AT,
	CANDIDATE_PLACE_MONO,
	CANDIDATE_SITS_OUT,
	CANDIDATE_DEFERS,
	CANDIDATE_SEEN_MONO,
	CANDIDATE_SEEN_FOR,
	CANDIDATE_STOOD_MONO,
	CANDIDATE_ROLE_ID
};

/*
 * For how long a heartbeat of a detached candidate counts, and how old it
 * is before a call writes the next one.  So a candidate lives for at least a
 * lease after its last call, and its calls write at most three signs in a
 * lease.
 */
#define SEEN_FOR(lease_duration)	((lease_duration) / 3 * 4)
#define SEEN_EVERY(lease_duration)	((lease_duration) / 3)

/*
 * What the row says.  metadata and client_addr point into the row, and are
 * gone with it.
 */
static Candidate
view_candidate(const Row *row)
{
	Candidate	c = {.row = NULL};

	c.election = TextDatumGetCString(row->values[CANDIDATE_ELECTION]);
	c.candidate = TextDatumGetCString(row->values[CANDIDATE_CANDIDATE]);
	c.session_id = LE_GET(row, CANDIDATE_SESSION_ID, DatumGetInt64, 0);
	c.role = le_role_get(row, CANDIDATE_ROLE, CANDIDATE_ROLE_ID);
	c.rank = DatumGetInt32(row->values[CANDIDATE_RANK]);
	c.progress = DatumGetInt64(row->values[CANDIDATE_PROGRESS]);
	c.metadata = LE_GET(row, CANDIDATE_METADATA, (Datum), 0);
	c.auto_renew = DatumGetBool(row->values[CANDIDATE_AUTO_RENEW]);
	c.backend_pid = LE_GET(row, CANDIDATE_BACKEND_PID, DatumGetInt32, 0);
	c.client_addr = LE_GET(row, CANDIDATE_CLIENT_ADDR, (Datum), 0);
	c.joined_at = DatumGetTimestampTz(row->values[CANDIDATE_JOINED_AT]);
	c.place = DatumGetInt64(row->values[CANDIDATE_PLACE_MONO]);
	c.sits_out = LE_GET(row, CANDIDATE_SITS_OUT, DatumGetInt64, -1);
	c.defers = DatumGetBool(row->values[CANDIDATE_DEFERS]);
	c.seen = LE_GET(row, CANDIDATE_SEEN_MONO, DatumGetInt64, 0);
	c.seen_for = LE_GET(row, CANDIDATE_SEEN_FOR, DatumGetInt64, 0);
	c.stood = LE_GET(row, CANDIDATE_STOOD_MONO, DatumGetInt64, c.place);
	return c;
}

static void *
make_candidate(const Row *row)
{
	Candidate  *c = palloc(sizeof(Candidate));

	*c = view_candidate(row);
	c->metadata = LE_GET(row, CANDIDATE_METADATA, LE_GET_COPY, 0);
	c->client_addr = LE_GET(row, CANDIDATE_CLIENT_ADDR, LE_GET_COPY, 0);
	return c;
}

/* When le_candidates_read() gives up (monotonic); only the worker sets it */
static int64 read_until = PG_INT64_MAX;

/*
 * Let reading the candidates of one election end with 55P03 at that moment.
 * The worker does so, since the leases of other elections have to be renewed
 * in time, however many candidates stand in this one: they elect by their own
 * calls.
 */
void
le_candidates_read_until(int64 until)
{
	read_until = until;
}

/*
 * All candidates of an election (NULL: of all elections), live or not.
 */
List *
le_candidates_read(const Store *store, const char *election)
{
	RowScan    *scan = le_scan_begin(store, TABLE_CANDIDATE, election != NULL ?
									 le_key(election) : le_key_any(),
									 NoMovementScanDirection, NULL);
	List	   *candidates = NIL;
	Row			row;

	while (le_scan_next(scan, &row))
	{
		Candidate  *c = make_candidate(&row);

		candidates = lappend(candidates, c);
		if (list_length(candidates) % 1000 == 0 && le_clock() >= read_until)
			le_wait_busy(c->election);
	}
	le_scan_end(scan);
	return candidates;
}

/*
 * Is there any candidate's row, even one of a transaction that has not
 * committed yet?
 */
bool
le_candidates_exist(const Store *store)
{
	SnapshotData dirty;
	RowScan    *scan;
	bool		exist;
	Row			row;

	InitDirtySnapshot(dirty);
	scan = le_scan_begin(store, TABLE_CANDIDATE, le_key_any(),
						 NoMovementScanDirection, &dirty);
	exist = le_scan_next(scan, &row);
	le_scan_end(scan);
	return exist;
}

/*
 * Begin to read candidates of all elections, in the reverse order of the
 * primary key: the rest of that election's, before that candidate, or
 * (candidate NULL) all those of the elections before it (election NULL: of
 * all).
 */
RowScan *
le_candidates_scan(const Store *store, const char *election,
				   const char *candidate)
{
	Key			key = candidate != NULL ? le_key_text_before(election, candidate) :
		election != NULL ? le_key_before(election) : le_key_any();

	return le_scan_begin_brief(store, TABLE_CANDIDATE, key,
							   BackwardScanDirection);
}

/*
 * The next candidate, which is valid until the one after it is read.  False:
 * there is none.
 */
bool
le_candidate_next(RowScan *scan, Candidate *c)
{
	Row			row;

	if (!le_scan_next(scan, &row))
		return false;
	*c = view_candidate(&row);
	return true;
}

/*
 * The candidate of that name, live or not; NULL if there is none.
 */
Candidate *
le_candidate_find(const Store *store, const char *election, const char *name)
{
	return le_scan_read_one(store, TABLE_CANDIDATE, le_key_text(election, name),
							NULL, make_candidate);
}

/*
 * Is the candidate alive?  A heartbeat that lies in the future was sent
 * before the machine was started last.
 */
bool
le_candidate_alive(const Candidate *c)
{
	int64		now;

	if (c->session_id != 0)
		return le_session_alive(c->session_id);
	now = le_clock();
	return c->seen <= now && now - c->seen < c->seen_for;
}

/*
 * Are these the same candidate?
 */
bool
le_candidate_is_same(const Candidate *a, const Candidate *b)
{
	return a->session_id == b->session_id &&
		strcmp(a->candidate, b->candidate) == 0 &&
		le_role_is_same(&a->role, &b->role);
}

/*
 * Does the row of this lease name the candidate as its holder?  (Whether the
 * holder leads, le_lease_state() says.)
 */
bool
le_candidate_leads(const Candidate *c, const Lease *lease)
{
	return lease->leader != NULL && !lease->incomplete &&
		lease->session_id == c->session_id &&
		strcmp(lease->leader, c->candidate) == 0 &&
		le_role_is_same(&lease->role, &c->role);
}

/*
 * Is the candidate the successor in this lease: to whom the leader is asked to
 * yield, or for whom the vacant election is reserved?
 */
bool
le_candidate_succeeds(const Candidate *c, const Lease *lease)
{
	return lease->successor != NULL &&
		strcmp(lease->successor, c->candidate) == 0 &&
		le_role_is_same(&lease->successor_role, &c->role);
}

/*
 * Has the candidate given up the last term, or a later one, so that it sits
 * out?
 */
bool
le_candidate_sits_out(const Candidate *c, const Lease *lease)
{
	return c->sits_out >= lease->term;
}

/*
 * The candidate that holds this lease, as it was when it was elected.  It has
 * stood since then at least.
 */
Candidate *
le_candidate_of_lease(const Lease *lease)
{
	Candidate  *c = palloc0(sizeof(Candidate));

	c->election = lease->election;
	c->candidate = lease->leader;
	c->session_id = lease->session_id;
	c->role = lease->role;
	c->rank = lease->rank;
	c->progress = lease->progress;
	c->metadata = lease->metadata;
	c->auto_renew = lease->auto_renew;
	c->backend_pid = lease->backend_pid;
	c->stood = lease->acquired_mono;
	return c;
}

/*
 * Lock the candidate's row until the transaction ends.  NULL: it is gone, or
 * another candidate's by now (*busy is false), or another transaction has
 * locked it (true).
 */
static Row *
lock_row(const Store *store, const Candidate *c, LockTupleMode mode, bool *busy)
{
	Row		   *row = le_row_lock(store, TABLE_CANDIDATE,
								  le_key_text(c->election, c->candidate),
								  mode, busy);

	if (row != NULL && !le_candidate_is_same(make_candidate(row), c))
		row = NULL;
	return row;
}

/*
 * Lock the candidate's row, to elect it or to pass it over, and read it again:
 * it may have changed since the choice.  If it is gone, c->row is NULL.
 * False: another transaction has locked it.
 */
bool
le_candidate_lock(const Store *store, Candidate *c)
{
	bool		busy;
	Row		   *row = lock_row(store, c, LockTupleNoKeyExclusive, &busy);

	if (row != NULL)
		*c = *(Candidate *) make_candidate(row);
	c->row = row;
	return !busy;
}

/*
 * Pass over this candidate, which is locked, while no term later than that one
 * was granted, and give it that queue position.  It preempts nobody until
 * it stands anew or its rank changes.
 */
void
le_candidate_set_sits_out(Candidate *c, int64 term, int64 place)
{
	LE_SET(c->row, CANDIDATE_SITS_OUT, Int64GetDatum(term));
	LE_SET(c->row, CANDIDATE_DEFERS, BoolGetDatum(true));
	LE_SET(c->row, CANDIDATE_PLACE_MONO, Int64GetDatum(place));
	le_row_update(c->row);
}

/*
 * Let the time that this candidate, which is locked, has stood for begin at
 * that moment.
 */
void
le_candidate_set_stood(Candidate *c, int64 stood)
{
	LE_SET(c->row, CANDIDATE_STOOD_MONO, Int64GetDatum(stood));
	le_row_update(c->row);
}

/*
 * Delete the row of a candidacy, if it is there.  False: another transaction
 * has locked it.
 */
bool
le_candidate_withdraw(const Store *store, const Candidate *who)
{
	bool		busy;
	Row		   *row = lock_row(store, who, LockTupleExclusive, &busy);

	if (row != NULL)
		le_row_delete(row);
	return !busy;
}

/*
 * Delete the row of a dead candidate, unless another transaction has locked
 * it, or the candidate has sent a heartbeat since.  True if it was
 * deleted.
 */
bool
le_candidate_prune(const Store *store, const Candidate *c)
{
	bool		busy;
	Row		   *row = lock_row(store, c, LockTupleExclusive, &busy);

	if (row == NULL ||
		le_candidate_alive(make_candidate(row)))
		return false;
	le_row_delete(row);
	return true;
}

/*
 * Is it time for another heartbeat of a detached candidate, whose last one
 * was given at that moment?
 */
bool
le_candidate_needs_heartbeat(int64 seen, int64 lease_duration)
{
	return le_clock() - seen >= SEEN_EVERY(lease_duration);
}

/*
 * Has the call anything to write: a value that the row does not have yet, or
 * the next heartbeat?
 */
bool
le_candidate_differs(const Candidate *c, const Profile *profile,
					 int64 lease_duration)
{
	return (profile->sets_rank && profile->rank != c->rank) ||
		(profile->sets_progress && profile->progress != c->progress) ||
		(profile->sets_auto_renew && profile->auto_renew != c->auto_renew) ||
		(profile->metadata != 0 &&
		 !le_row_same_value(profile->metadata, c->metadata)) ||
		(c->session_id == 0 &&
		 (c->seen_for != SEEN_FOR(lease_duration) ||
		  le_candidate_needs_heartbeat(c->seen, lease_duration)));
}

/*
 * Set in the row what the call sets.  After a change of rank the strategy may
 * want another leader: the worker looks.
 */
static void
set_profile(Row *row, const Candidate *who, const Profile *profile,
			int64 lease_duration)
{
	if (profile->sets_rank &&
		DatumGetInt32(row->values[CANDIDATE_RANK]) != profile->rank)
	{
		LE_SET(row, CANDIDATE_RANK, Int32GetDatum(profile->rank));
		LE_SET(row, CANDIDATE_DEFERS, BoolGetDatum(false));
		le_commit_wakes_worker();
	}
	if (profile->sets_progress)
		LE_SET(row, CANDIDATE_PROGRESS, Int64GetDatum(profile->progress));
	if (profile->sets_auto_renew)
		LE_SET(row, CANDIDATE_AUTO_RENEW, BoolGetDatum(profile->auto_renew));
	if (profile->metadata != 0)
		LE_SET(row, CANDIDATE_METADATA, profile->metadata);
	if (who->session_id == 0)
	{
		LE_SET(row, CANDIDATE_SEEN_MONO, Int64GetDatum(who->seen));
		LE_SET(row, CANDIDATE_SEEN_FOR, Int64GetDatum(SEEN_FOR(lease_duration)));
	}
}

/*
 * Change the row of a candidacy, which is as present says.  who->seen becomes
 * the moment of this heartbeat.  False: another transaction has locked the
 * row.
 */
bool
le_candidate_update(const Store *store, const Candidate *present,
					Candidate *who, const Profile *profile,
					int64 lease_duration)
{
	bool		busy;
	Row		   *row = lock_row(store, present, LockTupleNoKeyExclusive, &busy);

	if (row == NULL)
		return false;
	who->seen = le_clock();
	set_profile(row, who, profile, lease_duration);
	le_row_update(row);
	return true;
}

/*
 * The address of this session's client; 0: it has none (a Unix socket).
 */
static Datum
client_addr(void)
{
	LOCAL_FCINFO(fcinfo, 0);
	Datum		addr;

	InitFunctionCallInfoData(*fcinfo, NULL, 0, InvalidOid, NULL, NULL);
	addr = inet_client_addr(fcinfo);
	return fcinfo->isnull ? (Datum) 0 : addr;
}

/*
 * Make the row of a candidacy.  The caller holds the candidate's name lock.  A
 * new candidacy stands from now on.  A detached leader's, whose row was lost,
 * has stood since its term began, as who says.
 */
void
le_candidate_insert(const Store *store, const Candidate *who,
					const Profile *profile, int64 lease_duration)
{
	Row		   *row = le_row_new(store, TABLE_CANDIDATE);
	Datum		addr = client_addr();
	int64		now = le_clock();

	Assert(le_seat_holds_name(who->election, who->candidate));
	LE_SET(row, CANDIDATE_ELECTION, LE_TEXT(who->election));
	LE_SET(row, CANDIDATE_CANDIDATE, LE_TEXT(who->candidate));
	LE_SET(row, CANDIDATE_KIND, LE_TEXT(le_lease_kind(who->session_id)));
	le_role_set(row, CANDIDATE_ROLE, CANDIDATE_ROLE_ID, &who->role);
	LE_SET(row, CANDIDATE_RANK, Int32GetDatum(who->rank));
	LE_SET(row, CANDIDATE_PROGRESS, Int64GetDatum(who->progress));
	LE_SET_IF(row, CANDIDATE_METADATA, who->metadata != 0, who->metadata);
	LE_SET(row, CANDIDATE_AUTO_RENEW, BoolGetDatum(who->auto_renew));
	LE_SET_IF(row, CANDIDATE_SESSION_ID, who->session_id != 0,
			  Int64GetDatum(who->session_id));
	LE_SET_IF(row, CANDIDATE_BACKEND_PID, who->session_id != 0,
			  Int32GetDatum(MyProcPid));
	LE_SET_IF(row, CANDIDATE_CLIENT_ADDR, addr != 0, addr);
	LE_SET(row, CANDIDATE_JOINED_AT, TimestampTzGetDatum(GetCurrentTimestamp()));
	LE_SET(row, CANDIDATE_PLACE_MONO, Int64GetDatum(now));
	LE_SET(row, CANDIDATE_STOOD_MONO,
		   Int64GetDatum(who->stood > 0 ? Min(who->stood, now) : now));
	LE_SET(row, CANDIDATE_DEFERS, BoolGetDatum(false));
	set_profile(row, who, profile, lease_duration);
	le_row_insert(row);
	le_commit_wakes_worker();
}
