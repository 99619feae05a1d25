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
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* The columns of candidate that are no members, or not only that */
enum
{
	CANDIDATE_KIND = 2,
	CANDIDATE_SITS_OUT = 13,
	CANDIDATE_STOOD_MONO = 17
};

/*
 * For how long a heartbeat of a detached candidate counts, and how old it
 * is before a call writes the next one.  So a candidate lives for at least a
 * lease after its last call, and its calls write at most three signs in a
 * lease.
 */
#define SEEN_FOR(lease_duration)	((lease_duration) / 3 * 4)
#define SEEN_EVERY(lease_duration)	((lease_duration) / 3)

#define FIELD(type, column, member) \
	{FIELD_##type, column, offsetof(Candidate, member)}
#define FIELD_OR_NULL(type, column, member) \
	{FIELD_##type, column, offsetof(Candidate, member), true}

static const Field fields[] = {
	FIELD(TEXT, 0, election),
	FIELD(TEXT, 1, candidate),
	{FIELD_ROLE, 3, offsetof(Candidate, role), true, 18},
	FIELD(INTEGER, 4, rank),
	FIELD(BIGINT, 5, progress),
	FIELD(DATUM, 6, metadata),
	FIELD(BOOLEAN, 7, auto_renew),
	FIELD_OR_NULL(BIGINT, 8, session_id),
	FIELD_OR_NULL(INTEGER, 9, backend_pid),
	FIELD(DATUM, 10, client_addr),
	FIELD(BIGINT, 11, joined_at),
	FIELD(BIGINT, 12, place),
	FIELD(BIGINT, CANDIDATE_STOOD_MONO, stood),
	FIELD(BOOLEAN, 14, defers),
	FIELD_OR_NULL(BIGINT, 15, seen),
	FIELD_OR_NULL(BIGINT, 16, seen_for),
};

/*
 * What the row says.  metadata and client_addr point into the row, and are
 * gone with it.
 */
static Candidate
view_candidate(const Row *row)
{
	Candidate	c = {.row = NULL};

	le_fields_read(fields, lengthof(fields), row, &c);
	c.sits_out = LE_GET(row, CANDIDATE_SITS_OUT, DatumGetInt64, -1);
	c.own_write = le_scan_is_own_write(row);
	c.tid = row->tid;
	if (row->nulls[CANDIDATE_STOOD_MONO])
		c.stood = c.place;
	return c;
}

static void *
make_candidate(const Row *row)
{
	Candidate  *c = palloc(sizeof(Candidate));

	*c = view_candidate(row);
	if (c->metadata != 0)
		c->metadata = LE_GET_COPY(c->metadata);
	if (c->client_addr != 0)
		c->client_addr = LE_GET_COPY(c->client_addr);
	return c;
}

/*
 * Write a candidate that is locked, or a new one, as the struct has it.
 */
static void
write_candidate(Candidate *c)
{
	Row		   *row = c->row;

	le_fields_write(fields, lengthof(fields), row, c);
	LE_SET(row, CANDIDATE_KIND, LE_TEXT(le_lease_kind(c->session_id)));
	LE_SET_IF(row, CANDIDATE_SITS_OUT, c->sits_out >= 0,
			  Int64GetDatum(c->sits_out));
	le_row_write(row);
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
le_candidates_read(const char *election)
{
	RowScan    *scan = le_scan_begin(TABLE_CANDIDATE, election != NULL ?
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
le_candidates_exist(void)
{
	SnapshotData dirty;
	RowScan    *scan;
	bool		exist;
	Row			row;

	InitDirtySnapshot(dirty);
	scan = le_scan_begin(TABLE_CANDIDATE, le_key_any(),
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
le_candidates_scan(const char *election, const char *candidate)
{
	Key			key = candidate != NULL ? le_key_text_before(election, candidate) :
		election != NULL ? le_key_before(election) : le_key_any();

	return le_scan_begin_brief(TABLE_CANDIDATE, key, BackwardScanDirection);
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
le_candidate_find(const char *election, const char *name)
{
	return le_scan_read_one(TABLE_CANDIDATE, le_key_text(election, name),
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
 * The candidate's row was locked: it may have changed since it was read.  If it
 * is gone (NULL), or another candidate's by now, c->row is NULL.
 */
static void
set_locked(Candidate *c, Row *row)
{
	Candidate  *present = row != NULL ? make_candidate(row) : NULL;

	if (present != NULL && strcmp(present->election, c->election) == 0 &&
		le_candidate_is_same(present, c))
		*c = *present;
	else
		row = NULL;
	c->row = row;
}

/*
 * Lock the candidate's row until the transaction ends, and read it again.
 * False: another transaction has locked it.
 */
static bool
lock_candidate(Candidate *c, LockTupleMode mode)
{
	bool		busy;

	set_locked(c, le_row_lock(TABLE_CANDIDATE,
							  le_key_text(c->election, c->candidate), mode,
							  &busy));
	return !busy;
}

/*
 * The same, to elect the candidate, or to pass it over.
 */
bool
le_candidate_lock(Candidate *c)
{
	return lock_candidate(c, LockTupleNoKeyExclusive);
}

/*
 * The same, by a caller that has kept a snapshot registered since before it
 * read the candidate, if that was in its row.
 */
bool
le_candidate_lock_read(Candidate *c)
{
	bool		busy;

	if (!ItemPointerIsValid(&c->tid))
		return le_candidate_lock(c);
	set_locked(c, le_row_lock_read(TABLE_CANDIDATE, c->tid,
								   LockTupleNoKeyExclusive, &busy));
	return !busy;
}

/*
 * Set back this candidate, which is locked.  sits_out: it is passed over while
 * no term later than last_term was granted, its queue position is that moment,
 * and it preempts nobody until it stands anew or its rank changes.  loses: the
 * time that it has stood for begins at that moment.
 */
void
le_candidate_set_back(Candidate *c, bool sits_out, bool loses, int64 last_term,
					  int64 now)
{
	if (sits_out)
	{
		c->sits_out = last_term;
		c->defers = true;
		c->place = now;
	}
	if (loses)
		c->stood = now;
	write_candidate(c);
}

/*
 * Delete the row of a candidacy, if it is there.  False: another transaction
 * has locked it.
 */
bool
le_candidate_withdraw(const Candidate *who)
{
	Candidate	c = *who;
	bool		locked = lock_candidate(&c, LockTupleExclusive);

	if (c.row != NULL && c.session_id == 0)
		CacheInvalidateRelcacheByRelid(le_store.grant);
	if (c.row != NULL)
		le_row_delete(c.row);
	return locked;
}

/*
 * Delete the row of a dead candidate, unless another transaction has locked
 * it, or the candidate has sent a heartbeat since.  True if it was
 * deleted.
 */
bool
le_candidate_prune(const Candidate *dead)
{
	Candidate	c = *dead;

	if (!lock_candidate(&c, LockTupleExclusive) || c.row == NULL ||
		le_candidate_alive(&c))
		return false;
	le_row_delete(c.row);
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
 * Set what the call sets, and send a heartbeat.  After a change of rank the
 * strategy may want another leader: the worker is woken to see to that.
 */
static void
set_profile(Candidate *c, const Profile *profile, int64 lease_duration)
{
	if (profile->sets_rank && c->rank != profile->rank)
	{
		c->rank = profile->rank;
		c->defers = false;
		le_commit_wakes_worker();
	}
	if (profile->sets_progress)
		c->progress = profile->progress;
	if (profile->sets_auto_renew)
		c->auto_renew = profile->auto_renew;
	if (profile->metadata != 0)
		c->metadata = profile->metadata;
	if (c->session_id == 0)
	{
		c->seen = le_clock();
		c->seen_for = SEEN_FOR(lease_duration);
	}
}

/*
 * Change the row of a candidacy, which was there before.  who->seen becomes
 * the moment of this heartbeat.  False: another transaction has locked the
 * row, or it is gone.
 */
bool
le_candidate_update(Candidate *who, const Profile *profile,
					int64 lease_duration)
{
	Candidate	c = *who;

	if (!le_candidate_lock(&c) || c.row == NULL)
		return false;
	set_profile(&c, profile, lease_duration);
	write_candidate(&c);
	who->seen = c.seen;
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
le_candidate_insert(Candidate *who,
					const Profile *profile, int64 lease_duration)
{
	Candidate	c = *who;
	int64		now = le_clock();

	Assert(le_seat_holds_name(who->election, who->candidate));
	c.row = le_row_new(TABLE_CANDIDATE);
	c.backend_pid = c.session_id != 0 ? MyProcPid : 0;
	c.client_addr = client_addr();
	c.joined_at = GetCurrentTimestamp();
	c.place = now;
	c.stood = who->stood > 0 ? Min(who->stood, now) : now;
	c.sits_out = -1;
	c.defers = false;
	c.seen = c.seen_for = 0;
	set_profile(&c, profile, lease_duration);
	write_candidate(&c);
	who->seen = c.seen;
	le_commit_wakes_worker();
}
