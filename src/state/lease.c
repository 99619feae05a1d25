/*-------------------------------------------------------------------------
 *
 * lease.c
 *		The lease row: how it is read, locked and written.
 *
 * Invariants:
 *
 * - A lease whose deadline has passed is over for ever: nothing renews it.
 *
 * - No renewal moves a deadline back.  A session that has read a deadline may
 *	 trust it without asking again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "state/state.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* Column numbers of lease */
enum
{
	LEASE_ELECTION,
	LEASE_TERM,
	LEASE_PREVIOUS_TERM,
	LEASE_LEADER,
	LEASE_KIND,
	LEASE_SESSION_ID,
	LEASE_BACKEND_PID,
	LEASE_ROLE,
	LEASE_AUTO_RENEW,
	LEASE_RANK,
	LEASE_PROGRESS,
	LEASE_METADATA,
	LEASE_ACQUIRED_AT,
	LEASE_RENEWED_AT,
	LEASE_EXPIRES_AT,
	LEASE_ACQUIRED_MONO,
	LEASE_DEADLINE_MONO,
	LEASE_DURATION,
	LEASE_INCARNATION,
	LEASE_YIELDING,
	LEASE_YIELD_ORDERED,
	LEASE_YIELDS,
	LEASE_SUCCESSOR,
	LEASE_SUCCESSOR_ROLE,
	LEASE_NOT_BEFORE_AT,
	LEASE_NOT_BEFORE_MONO,
	LEASE_NOT_BEFORE_FOR,
	LEASE_HELD,
	LEASE_RESERVED_MONO,
	LEASE_RESERVED_FOR,
	LEASE_YIELD_CAUSE,
	LEASE_DESERTED,
	LEASE_FIRST_STOOD_AT,
	LEASE_FIRST_STOOD_MONO,
	LEASE_RUN,					/* and more: see run.c */
	LEASE_LEFT_AT_RENEWAL = LEASE_RUN + LE_RUN_COLUMNS,
	LEASE_ROLE_ID,
	LEASE_SUCCESSOR_ROLE_ID,
	LEASE_RUN_ROLE_ID,
	LEASE_CREATED_AT,
	LEASE_AFTER_TERM,
	LEASE_METADATA_AT,
	LEASE_REQUEST
};

/* No lease is granted, and no election is reserved, for longer */
#define LONGEST_LEASE	(LE_LONGEST_LEASE_MS * INT64CONST(1000))

/*
 * The kind of a candidate, as the tables name it.
 */
const char *
le_lease_kind(int64 session_id)
{
	return session_id != 0 ? "session" : "detached";
}

/*
 * Does the row name a leader, but lack a value that every grant writes?  The
 * table's constraints forbid that, but a superuser may have dropped them: such
 * a row must not crash the server, and nobody leads by it.
 */
static bool
is_incomplete(const Row *row)
{
	static const int required[] = {
		LEASE_KIND, LEASE_ROLE, LEASE_AUTO_RENEW, LEASE_RANK, LEASE_PROGRESS,
		LEASE_ACQUIRED_AT, LEASE_RENEWED_AT, LEASE_EXPIRES_AT,
		LEASE_ACQUIRED_MONO, LEASE_DEADLINE_MONO, LEASE_DURATION,
		LEASE_INCARNATION
	};
	const		text *kind;
	const char *expected;

	if (row->nulls[LEASE_LEADER])
		return false;
	for (int i = 0; i < lengthof(required); i++)
	{
		if (row->nulls[required[i]])
			return true;
	}
	kind = DatumGetTextPP(row->values[LEASE_KIND]);
	expected = le_lease_kind(!row->nulls[LEASE_SESSION_ID]);
	return row->nulls[LEASE_SESSION_ID] != row->nulls[LEASE_BACKEND_PID] ||
		VARSIZE_ANY_EXHDR(kind) != strlen(expected) ||
		memcmp(VARDATA_ANY(kind), expected, strlen(expected)) != 0;
}

static pg_uuid_t *
copy_uuid(Datum datum)
{
	pg_uuid_t  *copy = palloc(sizeof(pg_uuid_t));

	*copy = *DatumGetUUIDP(datum);
	return copy;
}

static void *
make_lease(const Row *row)
{
	Lease	   *lease = palloc0(sizeof(Lease));

	lease->election = TextDatumGetCString(row->values[LEASE_ELECTION]);
	lease->term = DatumGetInt64(row->values[LEASE_TERM]);
	lease->previous_term = LE_GET(row, LEASE_PREVIOUS_TERM, DatumGetInt64, 0);
	lease->leader = LE_GET(row, LEASE_LEADER, TextDatumGetCString, NULL);
	lease->incomplete = is_incomplete(row);
	lease->session_id = LE_GET(row, LEASE_SESSION_ID, DatumGetInt64, 0);
	lease->backend_pid = LE_GET(row, LEASE_BACKEND_PID, DatumGetInt32, 0);
	lease->role = le_role_get(row, LEASE_ROLE, LEASE_ROLE_ID);
	lease->auto_renew = LE_GET(row, LEASE_AUTO_RENEW, DatumGetBool, false);
	lease->rank = LE_GET(row, LEASE_RANK, DatumGetInt32, 0);
	lease->progress = LE_GET(row, LEASE_PROGRESS, DatumGetInt64, 0);
	lease->metadata = LE_GET(row, LEASE_METADATA, LE_GET_COPY, 0);
	lease->acquired_at = LE_GET(row, LEASE_ACQUIRED_AT, DatumGetTimestampTz, 0);
	lease->renewed_at = LE_GET(row, LEASE_RENEWED_AT, DatumGetTimestampTz, 0);
	lease->expires_at = LE_GET(row, LEASE_EXPIRES_AT, DatumGetTimestampTz, 0);
	lease->acquired_mono = LE_GET(row, LEASE_ACQUIRED_MONO, DatumGetInt64, 0);
	lease->deadline_mono = LE_GET(row, LEASE_DEADLINE_MONO, DatumGetInt64, 0);
	lease->duration = Min(LE_GET(row, LEASE_DURATION, DatumGetInt64, 0),
						  LONGEST_LEASE);
	lease->incarnation = LE_GET(row, LEASE_INCARNATION, TextDatumGetCString, NULL);
	lease->yielding = DatumGetBool(row->values[LEASE_YIELDING]);
	lease->yield_ordered = DatumGetBool(row->values[LEASE_YIELD_ORDERED]);
	lease->yields = DatumGetInt64(row->values[LEASE_YIELDS]);
	lease->successor = LE_GET(row, LEASE_SUCCESSOR, TextDatumGetCString, NULL);
	lease->successor_role = le_role_get(row, LEASE_SUCCESSOR_ROLE,
										LEASE_SUCCESSOR_ROLE_ID);
	lease->not_before_at = LE_GET(row, LEASE_NOT_BEFORE_AT, DatumGetTimestampTz, 0);
	lease->not_before_mono = LE_GET(row, LEASE_NOT_BEFORE_MONO, DatumGetInt64, 0);
	lease->not_before_for = LE_GET(row, LEASE_NOT_BEFORE_FOR, DatumGetInt64, 0);
	lease->held = LE_GET(row, LEASE_HELD, DatumGetBool, false);
	lease->reserved_mono = LE_GET(row, LEASE_RESERVED_MONO, DatumGetInt64, 0);
	lease->reserved_for = Min(LE_GET(row, LEASE_RESERVED_FOR, DatumGetInt64, 0),
							  LONGEST_LEASE);
	lease->yield_cause = LE_GET(row, LEASE_YIELD_CAUSE, TextDatumGetCString, NULL);
	lease->deserted = LE_GET(row, LEASE_DESERTED, DatumGetBool, false);
	lease->first_stood_at = LE_GET(row, LEASE_FIRST_STOOD_AT,
								   DatumGetTimestampTz, 0);
	lease->first_stood_mono = LE_GET(row, LEASE_FIRST_STOOD_MONO,
									 DatumGetInt64, 0);
	lease->runs = le_runs_make(row, LEASE_RUN, LEASE_RUN_ROLE_ID);
	lease->left_at_renewal = LE_GET(row, LEASE_LEFT_AT_RENEWAL, DatumGetInt64,
									-1);
	lease->created_at = LE_GET(row, LEASE_CREATED_AT, DatumGetTimestampTz, 0);
	lease->after_term = LE_GET(row, LEASE_AFTER_TERM, DatumGetInt64, 0);
	lease->metadata_at = LE_GET(row, LEASE_METADATA_AT, DatumGetTimestampTz, 0);
	lease->request = LE_GET(row, LEASE_REQUEST, copy_uuid, NULL);
	lease->xmin = HeapTupleHeaderGetRawXmin(row->tuple->t_data);
	lease->own_write = le_scan_is_own_write(row);
	return lease;
}

/*
 * The lease row as the (active or registered) snapshot (NULL: the latest one)
 * sees it; NULL if there is no such election.
 */
Lease *
le_lease_read(const Store *store, const char *election, Snapshot snapshot)
{
	return le_scan_read_one(store, TABLE_LEASE, le_key(election), snapshot,
							make_lease);
}

/*
 * The lease row for a call in a serializable transaction of the application.
 * A read by an ordinary snapshot would take a predicate lock, and the
 * transaction could fail because of a change in the election.  SnapshotSelf
 * takes none, and sees what the running command has written.  It misses the
 * row if another transaction updates it just then: so this tries up to 10
 * times.
 */
Lease *
le_lease_read_self(const Store *store, const char *election)
{
	Lease	   *lease = NULL;

	for (int i = 0; i < 10 && lease == NULL; i++)
		lease = le_lease_read(store, election, SnapshotSelf);
	return lease;
}

/*
 * The committed lease row, for is_leader() and fences: without a wait, and
 * without a lock that stays.  What the running transaction has written itself
 * does not count, since it may roll back; but a leadership that it has ended
 * is over.  False: the row cannot be read here (in parallel mode, on a
 * standby, after a write of a serializable transaction), the table is locked,
 * the extension has been dropped, or speaks another protocol.
 */
bool
le_lease_read_committed(Oid lease_oid, const char *election, Lease **lease)
{
	Store		share;
	Store		store;
	bool		readable = true;

	if (IsInParallelMode() || RecoveryInProgress() ||
		!le_store_try_share(&share))
		return false;
	if (!LeTryLockRelation(lease_oid, AccessShareLock))
	{
		le_store_end_share(&share);
		return false;
	}

	/*
	 * Which index the table has is certain only now, under the table's lock.
	 */
	if (!le_store_find(&store) || store.lease_oid != lease_oid ||
		!LeTryLockRelation(store.table[TABLE_LEASE].pkey, AccessShareLock))
	{
		UnlockRelationOid(lease_oid, AccessShareLock);
		le_store_end_share(&share);
		return false;
	}

	if (IsolationIsSerializable())
	{
		/*
		 * SnapshotSelf also sees what this transaction has written: a row
		 * that is not committed counts as unreadable.
		 */
		*lease = le_lease_read_self(&store, election);
		readable = *lease == NULL || !(*lease)->own_write;
	}
	else
	{
		/* In this snapshot, no command of this transaction has begun. */
		PushCopiedSnapshot(GetLatestSnapshot());
		GetActiveSnapshot()->curcid = FirstCommandId;
		*lease = le_lease_read(&store, election, GetActiveSnapshot());
		PopActiveSnapshot();
		if (*lease != NULL && (*lease)->leader != NULL &&
			TransactionIdIsValid(GetTopTransactionIdIfAny()))
		{
			Lease	   *own = le_lease_read(&store, election, NULL);

			if (own == NULL || own->leader == NULL ||
				own->term != (*lease)->term)
				(*lease)->leader = NULL;
		}
	}
	UnlockRelationOid(store.table[TABLE_LEASE].pkey, AccessShareLock);
	UnlockRelationOid(store.lease_oid, AccessShareLock);
	le_store_end_share(&share);
	return readable;
}

List *
le_lease_read_all(const Store *store)
{
	return le_scan_read_all(store, TABLE_LEASE, le_key_any(), make_lease);
}

/*
 * Begin to read each lease, in memory that is emptied after each.
 */
RowScan *
le_lease_scan(const Store *store)
{
	return le_scan_begin_brief(store, TABLE_LEASE, le_key_any(),
							   NoMovementScanDirection);
}

/*
 * The next lease; NULL: there is none.
 */
Lease *
le_lease_next(RowScan *scan)
{
	Row			row;

	return le_scan_next(scan, &row) ? make_lease(&row) : NULL;
}

/*
 * The same for the leases of elections that have names of seats of a group.
 */
RowScan *
le_lease_scan_group(const Store *store, const char *group)
{
	return le_scan_begin_brief(store, TABLE_LEASE,
							   le_seat_key(group), NoMovementScanDirection);
}

Lease *
le_lease_next_of_group(RowScan *scan, const char *group)
{
	Lease	   *lease;

	do
		lease = le_lease_next(scan);
	while (lease != NULL && !le_seat_is_of(lease->election, group));
	return lease;
}

/*
 * Lock a lease row until the transaction ends, and read it.  scan finds
 * leases.  NULL: another transaction has locked the row, or it is gone.
 */
Lease *
le_lease_find_lock(RowScan *scan, const char *election)
{
	bool		busy;
	Row		   *row = le_row_find_lock(scan, le_key(election),
									   LockTupleNoKeyExclusive, &busy);
	Lease	   *lease;

	if (row == NULL)
		return NULL;
	lease = make_lease(row);
	lease->row = row;
	return lease;
}

/*
 * The same for a single lease.
 */
Lease *
le_lease_lock(const Store *store, const char *election)
{
	RowScan    *scan = le_scan_find_begin(store, TABLE_LEASE, 1, NULL);
	Lease	   *lease = le_lease_find_lock(scan, election);

	le_scan_end(scan);
	return lease;
}

/*
 * Make the lease row of a new election, vacant, for which nobody stands yet.
 * The caller holds the election's name lock.
 */
void
le_lease_create(const Store *store, const char *election,
				TimestampTz created_at, int64 after_term)
{
	Row		   *row = le_row_new(store, TABLE_LEASE);

	Assert(le_seat_holds_name(election, NULL));
	LE_SET(row, LEASE_ELECTION, LE_TEXT(election));
	LE_SET(row, LEASE_TERM, Int64GetDatum(0));
	LE_SET(row, LEASE_YIELDING, BoolGetDatum(false));
	LE_SET(row, LEASE_YIELD_ORDERED, BoolGetDatum(false));
	LE_SET(row, LEASE_YIELDS, Int64GetDatum(0));
	LE_SET(row, LEASE_DESERTED, BoolGetDatum(true));
	LE_SET(row, LEASE_CREATED_AT, TimestampTzGetDatum(created_at));
	LE_SET(row, LEASE_AFTER_TERM, Int64GetDatum(after_term));
	le_row_insert(row);
}

/*
 * The lease lasts for duration from t0 on, which may be a while ago.  at is
 * the wall clock now.  expires_at, which is for people, counts whole
 * milliseconds since t0.
 */
static void
set_deadline(Lease *lease, int64 duration, int64 t0, TimestampTz at)
{
	Row		   *row = lease->row;

	lease->duration = duration;
	lease->deadline_mono = t0 + duration;

	lease->renewed_at = at;
	lease->expires_at = at + duration - (le_clock() - t0) / 1000 * 1000;

	LE_SET(row, LEASE_RENEWED_AT, TimestampTzGetDatum(at));
	LE_SET(row, LEASE_EXPIRES_AT, TimestampTzGetDatum(lease->expires_at));
	LE_SET(row, LEASE_DEADLINE_MONO, Int64GetDatum(lease->deadline_mono));
	LE_SET(row, LEASE_DURATION, Int64GetDatum(duration));
}

static void
set_successor(Row *row, const Candidate *successor)
{
	LE_SET_IF(row, LEASE_SUCCESSOR, successor != NULL,
			  LE_TEXT(successor->candidate));
	le_role_set(row, LEASE_SUCCESSOR_ROLE, LEASE_SUCCESSOR_ROLE_ID,
				successor != NULL ? &successor->role : NULL);
}

/*
 * When the first candidate stood for the vacant election (0: none has yet).
 * now and at are the same moment on the two clocks.
 */
static void
set_first_stood(Row *row, int64 first_stood, int64 now, TimestampTz at)
{
	LE_SET_IF(row, LEASE_FIRST_STOOD_AT, first_stood != 0,
			  TimestampTzGetDatum(at - (now - first_stood)));
	LE_SET_IF(row, LEASE_FIRST_STOOD_MONO, first_stood != 0,
			  Int64GetDatum(first_stood));
}

/*
 * From now on the row's monotonic values are this incarnation's.  Then
 * acquired_mono has to be this incarnation's, too: le_lease_grace() compares
 * it with first_seen.  When a candidate first stood on another incarnation, is
 * void here.
 */
static void
set_incarnation(Lease *lease, const char *incarnation, int64 now)
{
	if (!le_lease_is_own(lease, incarnation))
	{
		LE_SET(lease->row, LEASE_ACQUIRED_MONO, Int64GetDatum(now));
		set_first_stood(lease->row, 0, 0, 0);
	}
	LE_SET(lease->row, LEASE_INCARNATION, LE_TEXT(incarnation));
	lease->incarnation = pstrdup(incarnation);
}

/*
 * Nobody is elected before not_before, because of a hold or (held is false) a
 * takeover delay.  now and at are the same moment on the two clocks.
 */
static void
set_not_before(Row *row, int64 not_before, bool held, int64 now,
			   TimestampTz at)
{
	LE_SET(row, LEASE_NOT_BEFORE_AT,
		   TimestampTzGetDatum(at + (not_before - now)));
	LE_SET(row, LEASE_NOT_BEFORE_MONO, Int64GetDatum(not_before));
	LE_SET(row, LEASE_NOT_BEFORE_FOR, Int64GetDatum(not_before - now));
	LE_SET(row, LEASE_HELD, BoolGetDatum(held));
}

static void
clear_not_before(Row *row)
{
	LE_SET_NULL(row, LEASE_NOT_BEFORE_AT);
	LE_SET_NULL(row, LEASE_NOT_BEFORE_MONO);
	LE_SET_NULL(row, LEASE_NOT_BEFORE_FOR);
	LE_SET_NULL(row, LEASE_HELD);
}

/*
 * The vacant election is only the successor's, for so long from that moment on.
 */
static void
set_reserved(Row *row, int64 from, int64 reserved_for)
{
	LE_SET(row, LEASE_RESERVED_MONO, Int64GetDatum(from + reserved_for));
	LE_SET(row, LEASE_RESERVED_FOR, Int64GetDatum(reserved_for));
}

static void
clear_reserved(Row *row)
{
	LE_SET_NULL(row, LEASE_RESERVED_MONO);
	LE_SET_NULL(row, LEASE_RESERVED_FOR);
}

/*
 * Give the lease, which is locked, to a candidate, in a new term, which may
 * continue a previous one (0: none).  It lasts for duration from t0 on; at is
 * the wall clock now.
 */
void
le_lease_grant(Lease *lease, const Candidate *to, int64 term,
			   int64 previous_term, int64 duration, int64 t0, TimestampTz at,
			   const char *incarnation)
{
	Row		   *row = lease->row;

	LE_SET(row, LEASE_TERM, Int64GetDatum(term));
	LE_SET_IF(row, LEASE_PREVIOUS_TERM, previous_term != 0,
			  Int64GetDatum(previous_term));
	LE_SET(row, LEASE_LEADER, LE_TEXT(to->candidate));
	LE_SET(row, LEASE_KIND, LE_TEXT(le_lease_kind(to->session_id)));
	LE_SET_IF(row, LEASE_SESSION_ID, to->session_id != 0,
			  Int64GetDatum(to->session_id));
	LE_SET_IF(row, LEASE_BACKEND_PID, to->session_id != 0,
			  Int32GetDatum(to->backend_pid));
	le_role_set(row, LEASE_ROLE, LEASE_ROLE_ID, &to->role);
	LE_SET(row, LEASE_AUTO_RENEW, BoolGetDatum(to->auto_renew));
	LE_SET(row, LEASE_RANK, Int32GetDatum(to->rank));
	LE_SET(row, LEASE_PROGRESS, Int64GetDatum(to->progress));
	LE_SET_IF(row, LEASE_METADATA, to->metadata != 0, to->metadata);
	LE_SET_NULL(row, LEASE_METADATA_AT);
	LE_SET_IF(row, LEASE_REQUEST, to->request != NULL, UUIDPGetDatum(to->request));
	LE_SET(row, LEASE_ACQUIRED_AT, TimestampTzGetDatum(at));
	LE_SET(row, LEASE_ACQUIRED_MONO, Int64GetDatum(t0));
	LE_SET_NULL(row, LEASE_LEFT_AT_RENEWAL);
	set_deadline(lease, duration, t0, at);
	LE_SET(row, LEASE_INCARNATION, LE_TEXT(incarnation));
	LE_SET(row, LEASE_YIELDING, BoolGetDatum(false));
	LE_SET(row, LEASE_YIELD_ORDERED, BoolGetDatum(false));
	LE_SET(row, LEASE_YIELDS, Int64GetDatum(0));
	LE_SET_NULL(row, LEASE_YIELD_CAUSE);
	LE_SET_NULL(row, LEASE_DESERTED);
	set_first_stood(row, 0, 0, 0);
	set_successor(row, NULL);
	clear_not_before(row);
	clear_reserved(row);
	le_row_update(row);
	lease->term = term;
	lease->leader = to->candidate;
	lease->yielding = lease->yield_ordered = false;
	lease->yields = 0;
	lease->successor = lease->yield_cause = NULL;
}

/*
 * Let nobody follow the holder of this lease, which is locked, before
 * not_before, even if it gives up.
 */
void
le_lease_hold(Lease *lease, int64 not_before, int64 now, TimestampTz at)
{
	set_not_before(lease->row, not_before, true, now, at);
	le_row_update(lease->row);
}

/*
 * Vacate the election of this lease, which is locked.  If not_before is still
 * to come, nobody is elected before, because of a hold or (held is false) a
 * takeover delay.  Then, for reserved_for, the election is only the
 * successor's (NULL: anybody may be elected).  deserted: nobody stood to
 * follow; the first candidate did at first_stood (0: none has yet).
 *
 * The previous term stays: the last holder may know its term by no other
 * number, and say that its run is done.
 */
void
le_lease_vacate(Lease *lease, int64 not_before, bool held,
				const Candidate *successor, int64 reserved_for,
				bool deserted, int64 first_stood,
				int64 now, TimestampTz at, const char *incarnation)
{
	static const int cleared[] = {
		LEASE_LEADER, LEASE_KIND, LEASE_SESSION_ID, LEASE_BACKEND_PID,
		LEASE_ROLE, LEASE_AUTO_RENEW, LEASE_RANK, LEASE_PROGRESS,
		LEASE_METADATA, LEASE_METADATA_AT, LEASE_YIELD_CAUSE, LEASE_ROLE_ID,
		LEASE_REQUEST
	};
	Row		   *row = lease->row;

	for (int i = 0; i < lengthof(cleared); i++)
		LE_SET_NULL(row, cleared[i]);
	LE_SET(row, LEASE_YIELDING, BoolGetDatum(false));
	LE_SET(row, LEASE_YIELD_ORDERED, BoolGetDatum(false));
	set_incarnation(lease, incarnation, now);
	LE_SET_IF(row, LEASE_DESERTED, deserted, BoolGetDatum(true));
	set_first_stood(row, deserted ? first_stood : 0, now, at);
	clear_not_before(row);
	if (not_before > now)
		set_not_before(row, not_before, held, now, at);
	set_successor(row, successor);
	clear_reserved(row);
	if (successor != NULL)
		set_reserved(row, Max(not_before, now), reserved_for);
	le_row_update(row);
}

/*
 * Set what the holder of a lease, which is locked and led, says of itself.
 * Metadata that is as it was is no change, and nobody is told.  Each change has
 * a time of its own, also when the clock was set back: by it the worker knows
 * what listeners have been told.
 */
static bool
set_said(Lease *lease, const Profile *said)
{
	if (said->sets_progress)
		LE_SET(lease->row, LEASE_PROGRESS, Int64GetDatum(said->progress));
	if (said->metadata == 0 ||
		le_row_same_value(said->metadata, lease->metadata))
		return false;
	lease->metadata = said->metadata;
	lease->metadata_at = Max(GetCurrentTimestamp(), lease->metadata_at + 1);
	LE_SET(lease->row, LEASE_METADATA, lease->metadata);
	LE_SET(lease->row, LEASE_METADATA_AT,
		   TimestampTzGetDatum(lease->metadata_at));
	le_commit_tells();
	return true;
}

/*
 * Let the holder of a lease, which is locked and led, change its metadata, and
 * nothing else: the lease is not renewed, since it was just granted or its
 * holder is asked to yield.
 */
void
le_lease_say(Lease *lease, const Profile *said)
{
	if (!set_said(lease, said))
		return;
	le_row_update(lease->row);
	le_commit_durably();
}

/*
 * Renew a lease that is locked and led, for duration from t0 on, but never to
 * an earlier deadline: a session that has read the old one trusts it without
 * asking again.  The caller knows that the holder is not asked to yield.  Once
 * the holder has named its present term, it is not believed with an earlier
 * one any more.  It has heard of its grant, which is repeated no more.  said is
 * what it says of itself; NULL: nothing.
 */
void
le_lease_renew(Lease *lease, int64 term, int64 duration, int64 t0,
			   TimestampTz at, const Profile *said)
{
	LE_SET(lease->row, LEASE_LEFT_AT_RENEWAL,
		   Int64GetDatum(Max(lease->deadline_mono - le_clock(), 0)));
	set_deadline(lease, Max(duration, lease->deadline_mono - t0), t0, at);
	if (term == lease->term)
		LE_SET_NULL(lease->row, LEASE_PREVIOUS_TERM);
	LE_SET_NULL(lease->row, LEASE_REQUEST);
	if (said != NULL)
		(void) set_said(lease, said);
	le_row_update(lease->row);
	le_commit_durably();
}

/*
 * Ask the holder of a lease, which is locked, to yield to a candidate (NULL:
 * the rules decide who follows); or (yields is false) take that request back.
 * cause, unless NULL, is what else than an operator's call has ordered it.
 */
void
le_lease_yield(Lease *lease, bool yields, bool ordered,
			   const Candidate *successor, const char *cause)
{
	LE_SET_IF(lease->row, LEASE_YIELD_CAUSE, cause != NULL, LE_TEXT(cause));
	LE_SET(lease->row, LEASE_YIELDING, BoolGetDatum(yields));
	LE_SET(lease->row, LEASE_YIELD_ORDERED, BoolGetDatum(ordered));
	LE_SET(lease->row, LEASE_YIELDS, Int64GetDatum(lease->yields + yields));
	set_successor(lease->row, successor);
	le_row_update(lease->row);
}

/*
 * Reserve a vacant election, whose lease is locked, for a candidate, from now
 * on.  The caller knows that no hold or delay is in force any more.
 */
void
le_lease_reserve(Lease *lease, const Candidate *successor, int64 reserved_for,
				 int64 now, const char *incarnation)
{
	set_successor(lease->row, successor);
	set_reserved(lease->row, now, reserved_for);
	clear_not_before(lease->row);
	set_incarnation(lease, incarnation, now);
	le_row_update(lease->row);
}

/*
 * Reserve the vacant election for nobody any more.
 */
void
le_lease_unreserve(Lease *lease)
{
	set_successor(lease->row, NULL);
	clear_reserved(lease->row);
	le_row_update(lease->row);
}

/*
 * Note when the first candidate stood for the vacant election, whose lease is
 * locked, and for which le_lease_reserve() or le_lease_unreserve() writes the
 * row next.  not_before is a moment of this incarnation: where another one has
 * written the row, a hold or delay in it is written anew.
 */
void
le_lease_note_first(Lease *lease, int64 first_stood, int64 not_before,
					int64 now, TimestampTz at, const char *incarnation)
{
	Row		   *row = lease->row;

	if (!le_lease_is_own(lease, incarnation))
	{
		clear_not_before(row);
		if (not_before > now)
			set_not_before(row, not_before, lease->held, now, at);
	}
	set_incarnation(lease, incarnation, now);
	set_first_stood(row, first_stood, now, at);
}

/*
 * Delete the lease row of an election that is dropped.  False: another
 * transaction has locked it.
 */
bool
le_lease_delete(const Store *store, const char *election)
{
	return le_row_remove(store, TABLE_LEASE, le_key(election));
}
