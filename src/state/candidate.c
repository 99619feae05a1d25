/*-------------------------------------------------------------------------
 *
 * candidate.c
 *		Who stands.
 *
 * A session candidate is alive while its session lock is held.  A detached one
 * has no session: it is alive for a while after its last call.
 *
 * Invariants: the name of a live candidate belongs to one session or, if it is
 * detached, to one role.  A row is inserted under its name lock, and is taken
 * from another candidate only when that one is provably dead.  Nobody stands
 * in an election that does not exist.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "state/state.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
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
	CANDIDATE_SEEN_FOR
};

/* A detached candidate's life, and how often a sign of it is written */
#define SEEN_FOR(lease_duration)	((lease_duration) / 3 * 4)
#define SEEN_EVERY(lease_duration)	((lease_duration) / 3)

static Candidate *
make_candidate(Datum *values, bool *nulls)
{
	Candidate  *c = palloc0(sizeof(Candidate));

#define GET(column, get, other) (nulls[column] ? (other) : get(values[column]))
	c->election = TextDatumGetCString(values[CANDIDATE_ELECTION]);
	c->candidate = TextDatumGetCString(values[CANDIDATE_CANDIDATE]);
	c->session_id = GET(CANDIDATE_SESSION_ID, DatumGetInt64, 0);
	c->role = pstrdup(NameStr(*DatumGetName(values[CANDIDATE_ROLE])));
	c->rank = DatumGetInt32(values[CANDIDATE_RANK]);
	c->progress = DatumGetInt64(values[CANDIDATE_PROGRESS]);
	if (!nulls[CANDIDATE_METADATA])
		c->metadata = datumCopy(values[CANDIDATE_METADATA], false, -1);
	c->auto_renew = DatumGetBool(values[CANDIDATE_AUTO_RENEW]);
	c->backend_pid = GET(CANDIDATE_BACKEND_PID, DatumGetInt32, 0);
	if (!nulls[CANDIDATE_CLIENT_ADDR])
		c->client_addr = datumCopy(values[CANDIDATE_CLIENT_ADDR], false, -1);
	c->joined_at = DatumGetTimestampTz(values[CANDIDATE_JOINED_AT]);
	c->place = DatumGetInt64(values[CANDIDATE_PLACE_MONO]);
	c->sits_out = GET(CANDIDATE_SITS_OUT, DatumGetInt64, -1);
	c->defers = DatumGetBool(values[CANDIDATE_DEFERS]);
	c->seen = GET(CANDIDATE_SEEN_MONO, DatumGetInt64, 0);
	c->seen_for = GET(CANDIDATE_SEEN_FOR, DatumGetInt64, 0);
#undef GET
	return c;
}

static bool
read_one(HeapTuple tuple, Datum *values, bool *nulls, void *arg)
{
	*(Candidate **) arg = make_candidate(values, nulls);
	return false;
}

/* When reading all candidates of an election is to be given up */
static int64 read_until = PG_INT64_MAX;

/*
 * The worker reads no crowd of candidates for longer than other leases can
 * wait.  Those who stand may elect by their own calls.
 */
void
le_candidates_read_until(int64 until)
{
	read_until = until;
}

static bool
read_into_list(HeapTuple tuple, Datum *values, bool *nulls, void *arg)
{
	List	  **list = arg;
	Candidate  *c = make_candidate(values, nulls);

	*list = lappend(*list, c);
	if (list_length(*list) % 1000 == 0 && le_clock() >= read_until)
		le_busy(c->election);
	return true;
}

/*
 * All candidates of an election (NULL: of all elections), live or not.
 */
List *
le_candidates_read(const Store *store, const char *election)
{
	List	   *candidates = NIL;
	Key			key;

	if (election == NULL)
		le_scan(store, TABLE_CANDIDATE, NULL, NULL, read_into_list,
				&candidates);
	else
	{
		key = le_key(election);
		le_scan(store, TABLE_CANDIDATE, &key, NULL,
				read_into_list, &candidates);
	}
	return candidates;
}

/* A scan of all candidates, and memory for one row */
typedef struct CandidateScan
{
	CandidateReader reader;
	void	   *arg;
	MemoryContext context;
	bool		ended;			/* by the reader */
} CandidateScan;

static bool
read_briefly(HeapTuple tuple, Datum *values, bool *nulls, void *arg)
{
	CandidateScan *scan = arg;
	Candidate	c = {.session_id = 0};
	MemoryContext old = MemoryContextSwitchTo(scan->context);

#define GET(column, other) (nulls[column] ? (other) : DatumGetInt64(values[column]))
	c.election = TextDatumGetCString(values[CANDIDATE_ELECTION]);
	c.candidate = TextDatumGetCString(values[CANDIDATE_CANDIDATE]);
	c.role = NameStr(*DatumGetName(values[CANDIDATE_ROLE]));
	c.session_id = GET(CANDIDATE_SESSION_ID, 0);
	c.sits_out = GET(CANDIDATE_SITS_OUT, -1);
	c.seen = GET(CANDIDATE_SEEN_MONO, 0);
	c.seen_for = GET(CANDIDATE_SEEN_FOR, 0);
#undef GET
	scan->ended = !scan->reader(&c, scan->arg);
	MemoryContextSwitchTo(old);
	MemoryContextReset(scan->context);
	return !scan->ended;
}

/*
 * Have reader look at all candidates of all elections, in the order of the
 * primary key, until it returns false.  Begin after that candidate of that
 * election (NULL: with the first).  It sees their names, role, session and signs of life, and that
 * they sit out, until it returns.
 */
void
le_candidates_scan(const Store *store, const char *election,
				   const char *candidate, CandidateReader reader, void *arg)
{
	CandidateScan scan = {reader, arg};
	Key			key;

	scan.context = AllocSetContextCreate(CurrentMemoryContext,
										 "leader_election candidate",
										 ALLOCSET_SMALL_SIZES);
	PushActiveSnapshot(GetLatestSnapshot());
	if (election != NULL)
	{
		key = le_key_text_after(election, candidate);
		le_scan_ordered(store, TABLE_CANDIDATE, &key,
						ForwardScanDirection, GetActiveSnapshot(), read_briefly,
						&scan);
	}
	if (!scan.ended)
	{
		key = le_key_after(election != NULL ? election : "");
		le_scan_ordered(store, TABLE_CANDIDATE, &key,
						ForwardScanDirection, GetActiveSnapshot(), read_briefly,
						&scan);
	}
	PopActiveSnapshot();
	MemoryContextDelete(scan.context);
}

/*
 * The candidate of that name, live or not; NULL if there is none.
 */
Candidate *
le_candidate_find(const Store *store, const char *election, const char *name)
{
	Candidate  *c = NULL;
	Key			key = le_key_text(election, name);

	le_scan(store, TABLE_CANDIDATE, &key, NULL, read_one, &c);
	return c;
}

/*
 * A time of life that begins in the future comes from another boot.
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
		strcmp(a->role, b->role) == 0;
}

/*
 * Is it the holder of this lease?  (Whether that leads is another question.)
 */
bool
le_candidate_leads(const Candidate *c, const Lease *lease)
{
	return lease->leader != NULL && !lease->incomplete &&
		lease->session_id == c->session_id &&
		strcmp(lease->leader, c->candidate) == 0 &&
		strcmp(lease->role, c->role) == 0;
}

/*
 * Is it the one whom this lease is to be yielded to, or kept for?
 */
bool
le_candidate_succeeds(const Candidate *c, const Lease *lease)
{
	return lease->successor != NULL &&
		strcmp(lease->successor, c->candidate) == 0 &&
		strcmp(lease->successor_role, c->role) == 0;
}

/*
 * The candidate that holds this lease, as it was when it was elected.
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
	return c;
}

/*
 * Lock its row until the transaction ends.  NULL: it is not there any more
 * (*busy is false), or somebody else has it (true).
 */
static Row *
lock_row(const Store *store, const Candidate *c, LockTupleMode mode, bool *busy)
{
	Row		   *row = le_row_lock(store, TABLE_CANDIDATE,
								  le_key_text(c->election, c->candidate),
								  mode, busy);

	if (row != NULL && !le_candidate_is_same(make_candidate(row->values, row->nulls), c))
		row = NULL;
	return row;
}

/*
 * The same to pass it over, or to elect it, as it is now.  False: somebody else
 * has the row.  If it is gone, c->row is NULL.
 */
bool
le_candidate_lock(const Store *store, Candidate *c)
{
	bool		busy;
	Row		   *row = lock_row(store, c, LockTupleNoKeyExclusive, &busy);

	if (row != NULL)
		*c = *make_candidate(row->values, row->nulls);
	c->row = row;
	return !busy;
}

/*
 * Pass this candidate, which is locked, over until somebody was elected after
 * that term.  Until it stands anew or its rank changes, it preempts nobody.
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
 * Delete the row of a candidacy.  False: somebody else has it.
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
 * Delete the row of a dead candidate, unless another transaction has locked it, or
 * the candidate has given a sign of life since.  True if it was deleted.
 */
bool
le_candidate_prune(const Store *store, const Candidate *c)
{
	bool		busy;
	Row		   *row = lock_row(store, c, LockTupleExclusive, &busy);

	if (row == NULL ||
		le_candidate_alive(make_candidate(row->values, row->nulls)))
		return false;
	le_row_delete(row);
	return true;
}

/*
 * Is it time for another sign of life of a detached candidate?
 */
bool
le_candidate_needs_sign(int64 seen, int64 lease_duration)
{
	return le_clock() - seen >= SEEN_EVERY(lease_duration);
}

/*
 * Does the call say anything that the row does not say already?
 */
static bool
differs(const Profile *profile, const Candidate *c, int64 lease_duration)
{
	bool		result;

	/* A procedure has no snapshot of its own to fetch long metadata with. */
	PushActiveSnapshot(GetLatestSnapshot());
	result = (profile->sets_rank && profile->rank != c->rank) ||
		(profile->sets_progress && profile->progress != c->progress) ||
		(profile->sets_auto_renew && profile->auto_renew != c->auto_renew) ||
		(profile->metadata != 0 &&
		 (c->metadata == 0 ||
		  !datum_image_eq(profile->metadata, c->metadata, false, -1))) ||
		(c->session_id == 0 &&
		 (c->seen_for != SEEN_FOR(lease_duration) ||
		  le_candidate_needs_sign(c->seen, lease_duration)));
	PopActiveSnapshot();
	return result;
}

/*
 * A change of rank may be news to the strategy: the worker has a look.
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
 * The address of this session's client; 0 if it has none.
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

static void
insert(const Store *store, const Candidate *who, const Profile *profile,
	   int64 lease_duration)
{
	Row		   *row = le_row_new(store, TABLE_CANDIDATE);
	Datum		addr = client_addr();

	LE_SET_TEXT(row, CANDIDATE_ELECTION, who->election);
	LE_SET_TEXT(row, CANDIDATE_CANDIDATE, who->candidate);
	LE_SET_TEXT(row, CANDIDATE_KIND, le_kind(who->session_id));
	LE_SET_NAME(row, CANDIDATE_ROLE, who->role);
	LE_SET(row, CANDIDATE_RANK, Int32GetDatum(who->rank));
	LE_SET(row, CANDIDATE_PROGRESS, Int64GetDatum(who->progress));
	if (who->metadata != 0)
		LE_SET(row, CANDIDATE_METADATA, who->metadata);
	LE_SET(row, CANDIDATE_AUTO_RENEW, BoolGetDatum(who->auto_renew));
	if (who->session_id != 0)
	{
		LE_SET(row, CANDIDATE_SESSION_ID, Int64GetDatum(who->session_id));
		LE_SET(row, CANDIDATE_BACKEND_PID, Int32GetDatum(MyProcPid));
	}
	if (addr != 0)
		LE_SET(row, CANDIDATE_CLIENT_ADDR, addr);
	LE_SET(row, CANDIDATE_JOINED_AT, TimestampTzGetDatum(GetCurrentTimestamp()));
	LE_SET(row, CANDIDATE_PLACE_MONO, Int64GetDatum(le_clock()));
	LE_SET(row, CANDIDATE_DEFERS, BoolGetDatum(false));
	set_profile(row, who, profile, lease_duration);
	le_row_insert(row);
	le_commit_wakes_worker();
}

/*
 * Is the name free for that candidate?  It is another's not only while that
 * one stands, but also while it leads, or may yet lead on after a failover: its
 * row is gone then.
 */
static bool
name_is_free(const Store *store, const Candidate *who, const Candidate *present)
{
	Lease	   *lease;
	LeaseState	state;

	if (present != NULL && le_candidate_alive(present))
		return false;
	lease = le_lease_read(store, who->election, NULL);
	if (lease == NULL || lease->leader == NULL ||
		strcmp(lease->leader, who->candidate) != 0 ||
		le_candidate_leads(who, lease))
		return true;
	state = le_lease_state_now(store, lease);
	return state != LEASE_LED &&
		(state != LEASE_FOREIGN || lease->session_id != 0 || lease->incomplete);
}

/*
 * Make the row of a candidacy.  Both name locks are held; that of the candidate
 * is released again if nothing was written.
 */
static StandResult
stand_anew(const Store *store, Candidate *who, const Profile *profile,
		   int64 lease_duration)
{
	Candidate  *present;
	StandResult result = STAND_OK;

	/* Look again: it may have been taken before we had the locks. */
	present = le_candidate_find(store, who->election, who->candidate);
	if (le_lease_read(store, who->election, NULL) == NULL)
		result = STAND_DROPPED;
	else if (present != NULL && le_candidate_is_same(present, who) &&
			 le_candidate_alive(present))
		result = STAND_BUSY;
	else if (!name_is_free(store, who, present))
		result = STAND_IN_USE;
	else if (present != NULL && !le_candidate_withdraw(store, present))
		result = STAND_BUSY;
	if (result != STAND_OK)
	{
		le_unlock_name(who->election, who->candidate);
		return result;
	}
	who->seen = le_clock();
	insert(store, who, profile, lease_duration);
	return STAND_OK;
}

/*
 * Make or update the row of a candidacy; what the profile does not say is as
 * it was or, at first, as in who.  Nothing is written where the row says it all
 * already, save that a detached candidate gives a sign of life now and then:
 * who is told when that was.
 */
StandResult
le_candidate_stand(const Store *store, Candidate *who,
				   const Profile *profile, int64 lease_duration)
{
	Candidate  *present = le_candidate_find(store, who->election,
											who->candidate);
	StandResult result;
	bool		busy;

	if (present != NULL && le_candidate_is_same(present, who) &&
		le_candidate_alive(present))
	{
		Row		   *row;

		who->seen = present->seen;
		if (!differs(profile, present, lease_duration))
			return STAND_OK;
		row = lock_row(store, present, LockTupleNoKeyExclusive, &busy);
		if (row == NULL)
			return STAND_BUSY;
		who->seen = le_clock();
		set_profile(row, who, profile, lease_duration);
		le_row_update(row);
		return STAND_OK;
	}

	if (!name_is_free(store, who, present))
		return STAND_IN_USE;
	if (!le_lock_name_shared(who->election))
		return STAND_BUSY;
	result = le_lock_name(who->election, who->candidate) ?
		stand_anew(store, who, profile, lease_duration) : STAND_BUSY;
	if (result != STAND_OK)
		le_unlock_name_shared(who->election);
	return result;
}
