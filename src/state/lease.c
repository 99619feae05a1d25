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
 * - A Lease that is locked is the truth: what changes it, sets its members, and
 *	 le_lease_write() makes the row say so.  No other function writes the row.
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

/* The columns of lease that are no members, or not only that */
enum
{
	LEASE_LEADER = 3,
	LEASE_KIND,
	LEASE_SESSION_ID,
	LEASE_BACKEND_PID,
	LEASE_ROLE,
	LEASE_AUTO_RENEW,
	LEASE_RANK,
	LEASE_PROGRESS,
	LEASE_ACQUIRED_AT = 12,
	LEASE_RENEWED_AT,
	LEASE_EXPIRES_AT,
	LEASE_ACQUIRED_MONO,
	LEASE_DEADLINE_MONO,
	LEASE_DURATION,
	LEASE_INCARNATION,
	LEASE_HELD = 27,
	LEASE_LEFT_AT_RENEWAL = 40,
	LEASE_REQUEST = 47
};

StaticAssertDecl(LEASE_REQUEST < LE_MAX_COLUMNS, "a lease has room in a Row");

/* No lease is granted, and no election is reserved, for longer */
#define LONGEST_LEASE	(LE_LONGEST_LEASE_MS * INT64CONST(1000))

#define FIELD(type, column, member) \
	{FIELD_##type, column, offsetof(Lease, member)}
#define FIELD_OR_NULL(type, column, member) \
	{FIELD_##type, column, offsetof(Lease, member), true}
#define ROLE_FIELD(column, id_column, member) \
	{FIELD_ROLE, column, offsetof(Lease, member), true, id_column}

/*
 * The columns that are members of a Lease: those that code below names have a
 * name, others their number.  make_lease() reads some more.
 */
static const Field fields[] = {
	FIELD(TEXT, 0, election),
	FIELD(BIGINT, 1, term),
	FIELD_OR_NULL(BIGINT, 2, previous_term),
	FIELD(TEXT, LEASE_LEADER, leader),
	FIELD_OR_NULL(BIGINT, LEASE_SESSION_ID, session_id),
	FIELD_OR_NULL(INTEGER, LEASE_BACKEND_PID, backend_pid),
	ROLE_FIELD(LEASE_ROLE, 41, role),
	FIELD(DATUM, 11, metadata),
	FIELD_OR_NULL(BIGINT, LEASE_ACQUIRED_AT, acquired_at),
	FIELD_OR_NULL(BIGINT, LEASE_RENEWED_AT, renewed_at),
	FIELD_OR_NULL(BIGINT, LEASE_EXPIRES_AT, expires_at),
	FIELD_OR_NULL(BIGINT, LEASE_ACQUIRED_MONO, acquired_mono),
	FIELD_OR_NULL(BIGINT, LEASE_DEADLINE_MONO, deadline_mono),
	FIELD_OR_NULL(BIGINT, LEASE_DURATION, duration),
	FIELD(TEXT, LEASE_INCARNATION, incarnation),
	FIELD(BOOLEAN, 19, yielding),
	FIELD(BOOLEAN, 20, yield_ordered),
	FIELD(BIGINT, 21, yields),
	FIELD(TEXT, 30, yield_cause),
	FIELD(TEXT, 22, successor),
	ROLE_FIELD(23, 42, successor_role),
	FIELD_OR_NULL(BIGINT, 24, not_before_at),
	FIELD_OR_NULL(BIGINT, 25, not_before_mono),
	FIELD_OR_NULL(BIGINT, 26, not_before_for),
	FIELD_OR_NULL(BIGINT, 28, reserved_mono),
	FIELD_OR_NULL(BIGINT, 29, reserved_for),
	FIELD_OR_NULL(BOOLEAN, 31, deserted),
	FIELD_OR_NULL(BIGINT, 32, first_stood_at),
	FIELD_OR_NULL(BIGINT, 33, first_stood_mono),
	FIELD(TEXT, 34, runs.present),
	ROLE_FIELD(35, 43, runs.role),
	FIELD(TEXT, 36, runs.granted),
	FIELD_OR_NULL(INTEGER, 37, runs.attempts),
	FIELD(TEXT, 38, runs.done),
	FIELD_OR_NULL(BIGINT, 39, runs.done_at),
	FIELD_OR_NULL(BIGINT, 44, created_at),
	FIELD(BIGINT, 45, after_term),
	FIELD_OR_NULL(BIGINT, 46, metadata_at),
};

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

static void *
make_lease(const Row *row)
{
	Lease	   *lease = palloc0(sizeof(Lease));

	le_fields_read(fields, lengthof(fields), row, lease);
	lease->incomplete = is_incomplete(row);
	lease->auto_renew = LE_GET(row, LEASE_AUTO_RENEW, DatumGetBool, false);
	lease->rank = LE_GET(row, LEASE_RANK, DatumGetInt32, 0);
	lease->progress = LE_GET(row, LEASE_PROGRESS, DatumGetInt64, 0);
	if (lease->metadata != 0)
		lease->metadata = LE_GET_COPY(lease->metadata);
	lease->duration = Min(lease->duration, LONGEST_LEASE);
	lease->held = LE_GET(row, LEASE_HELD, DatumGetBool, false);
	lease->reserved_for = Min(lease->reserved_for, LONGEST_LEASE);
	lease->left_at_renewal = LE_GET(row, LEASE_LEFT_AT_RENEWAL, DatumGetInt64,
									-1);
	if (!row->nulls[LEASE_REQUEST])
		lease->request = DatumGetUUIDP(datumCopy(row->values[LEASE_REQUEST],
												 false, UUID_LEN));
	lease->tid = row->tid;
	lease->xmin = HeapTupleHeaderGetRawXmin(row->tuple->t_data);
	lease->own_write = le_scan_is_own_write(row);
	return lease;
}

/*
 * Write a lease that is locked, or a new one, as the struct has it.  The commit
 * is durable (R6), also where it grants nothing.  A column that an incomplete
 * row lacks stays NULL, so that nobody leads by that row.
 */
void
le_lease_write(Lease *lease)
{
	Row		   *row = lease->row;
	bool		led = lease->leader != NULL;

	le_fields_write(fields, lengthof(fields), row, lease);
	if (!lease->incomplete)
	{
		LE_SET_IF(row, LEASE_KIND, led,
				  LE_TEXT(le_lease_kind(lease->session_id)));
		LE_SET_IF(row, LEASE_AUTO_RENEW, led, BoolGetDatum(lease->auto_renew));
		LE_SET_IF(row, LEASE_RANK, led, Int32GetDatum(lease->rank));
		LE_SET_IF(row, LEASE_PROGRESS, led, Int64GetDatum(lease->progress));
	}
	LE_SET_IF(row, LEASE_HELD, lease->not_before_mono != 0,
			  BoolGetDatum(lease->held));
	LE_SET_IF(row, LEASE_LEFT_AT_RENEWAL, lease->left_at_renewal >= 0,
			  Int64GetDatum(lease->left_at_renewal));
	LE_SET_IF(row, LEASE_REQUEST, lease->request != NULL,
			  UUIDPGetDatum(lease->request));
	le_row_write(row);
	le_commit_durably();
	lease->xmin = GetCurrentTransactionId();
	lease->own_write = true;
}

/*
 * The lease row as the (active or registered) snapshot (NULL: the latest one)
 * sees it; NULL if there is no such election.
 */
Lease *
le_lease_read(const char *election, Snapshot snapshot)
{
	return le_scan_read_one(TABLE_LEASE, le_key(election), snapshot,
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
le_lease_read_self(const char *election)
{
	Lease	   *lease = NULL;

	for (int i = 0; i < 10 && lease == NULL; i++)
		lease = le_lease_read(election, SnapshotSelf);
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
	Oid			share;
	Oid			pkey;
	bool		readable = true;

	if (IsInParallelMode() || RecoveryInProgress() ||
		!le_store_try_share(&share))
		return false;
	if (!LeTryLockRelation(lease_oid, AccessShareLock))
	{
		UnlockRelationOid(share, AccessShareLock);
		return false;
	}

	/*
	 * Which index the table has is certain only now, under the table's lock.
	 */
	if (!le_store_find() || le_store.lease_oid != lease_oid ||
		!LeTryLockRelation(le_store.table[TABLE_LEASE].pkey, AccessShareLock))
	{
		UnlockRelationOid(lease_oid, AccessShareLock);
		UnlockRelationOid(share, AccessShareLock);
		return false;
	}

	pkey = le_store.table[TABLE_LEASE].pkey;
	if (IsolationIsSerializable())
	{
		/*
		 * SnapshotSelf also sees what this transaction has written: a row
		 * that is not committed counts as unreadable.
		 */
		*lease = le_lease_read_self(election);
		readable = *lease == NULL || !(*lease)->own_write;
	}
	else
	{
		/* In this snapshot, no command of this transaction has begun. */
		PushCopiedSnapshot(GetLatestSnapshot());
		GetActiveSnapshot()->curcid = FirstCommandId;
		*lease = le_lease_read(election, GetActiveSnapshot());
		PopActiveSnapshot();
		if (*lease != NULL && (*lease)->leader != NULL &&
			TransactionIdIsValid(GetTopTransactionIdIfAny()))
		{
			Lease	   *own = le_lease_read(election, NULL);

			if (own == NULL || own->leader == NULL ||
				own->term != (*lease)->term)
				(*lease)->leader = NULL;
		}
	}
	UnlockRelationOid(pkey, AccessShareLock);
	UnlockRelationOid(lease_oid, AccessShareLock);
	UnlockRelationOid(share, AccessShareLock);
	return readable;
}

/*
 * Begin to read each lease with that key, in memory that is emptied after each.
 */
RowScan *
le_lease_scan(Key key)
{
	return le_scan_begin_brief(TABLE_LEASE, key, NoMovementScanDirection);
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

static Lease *
make_locked(Row *row)
{
	Lease	   *lease = row != NULL ? make_lease(row) : NULL;

	if (lease != NULL)
		lease->row = row;
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

	return make_locked(le_row_find_lock(scan, le_key(election),
										LockTupleNoKeyExclusive, &busy));
}

/*
 * The same for a lease that was read, by a caller that has kept a snapshot
 * registered since before that.  With old_snapshot_threshold (15 and 16), that
 * may be in vain for a process that was stopped for long: another election's
 * lease, which may be there by now, is not taken for this one.
 */
Lease *
le_lease_lock_read(const Lease *seen)
{
	bool		busy;
	Lease	   *lease = make_locked(le_row_lock_read(TABLE_LEASE, seen->tid,
													 LockTupleNoKeyExclusive,
													 &busy));

	if (lease == NULL || strcmp(lease->election, seen->election) != 0)
		return NULL;
	return lease;
}

/*
 * The same for a single lease.
 */
Lease *
le_lease_lock(const char *election)
{
	RowScan    *scan = le_scan_find_begin(TABLE_LEASE, 1, NULL);
	Lease	   *lease = le_lease_find_lock(scan, election);

	le_scan_end(scan);
	return lease;
}

/*
 * Make the lease row of a new election, vacant, for which nobody stands yet.
 * The caller holds the election's name lock.
 */
void
le_lease_create(const char *election, TimestampTz created_at, int64 after_term)
{
	Lease		lease = {.election = unconstify(char *, election),
		.deserted = true,.left_at_renewal = -1,.created_at = created_at,
		.after_term = after_term,.row = le_row_new(TABLE_LEASE),
	.role = {""},.successor_role = {""},.runs = {.role = {""}}};

	Assert(le_seat_holds_name(election, NULL));
	le_lease_write(&lease);
}

/*
 * The lease lasts for duration from t0 on, which may be a while ago.  at is
 * the wall clock now.  expires_at, which is for people, counts whole
 * milliseconds since t0.
 */
static void
set_deadline(Lease *lease, int64 duration, int64 t0, TimestampTz at)
{
	lease->duration = duration;
	lease->deadline_mono = t0 + duration;
	lease->renewed_at = at;
	lease->expires_at = at + duration - (le_clock() - t0) / 1000 * 1000;
}

static void
set_successor(Lease *lease, const Candidate *successor)
{
	lease->successor = successor != NULL ? successor->candidate : NULL;
	lease->successor_role = successor != NULL ? successor->role : le_role_none;
}

/*
 * When the first candidate stood for the vacant election (0: none has yet).
 */
static void
set_first_stood(Lease *lease, int64 first_stood)
{
	lease->first_stood_at = first_stood != 0 ?
		GetCurrentTimestamp() - (le_clock() - first_stood) : 0;
	lease->first_stood_mono = first_stood;
}

/*
 * From now on the monotonic values are this incarnation's.  Then acquired_mono
 * has to be this incarnation's, too: le_lease_grace() compares it with
 * first_seen.  When a candidate first stood on another incarnation, is void
 * here.
 */
static void
set_incarnation(Lease *lease)
{
	if (!le_lease_is_own(lease))
	{
		lease->acquired_mono = le_clock();
		set_first_stood(lease, 0);
	}
	lease->incarnation = le_incarnation_name();
}

/*
 * Nobody is elected before not_before, even if the holder gives up, because of
 * a hold or (held is false) a takeover delay, unless that moment has passed.  The
 * caller writes the row.
 */
void
le_lease_set_not_before(Lease *lease, int64 not_before, bool held)
{
	int64		left = not_before - le_clock();
	bool		bars = left > 0;

	lease->not_before_at = bars ? GetCurrentTimestamp() + left : 0;
	lease->not_before_mono = bars ? not_before : 0;
	lease->not_before_for = bars ? left : 0;
	lease->held = bars && held;
}

/*
 * The vacant election is only the successor's, for so long from now on or, if a
 * hold or a delay was set, from its end; NULL: nobody's.
 */
static void
set_reserved(Lease *lease, const Candidate *successor, int64 reserved_for)
{
	int64		from = Max(lease->not_before_mono, le_clock());

	set_successor(lease, successor);
	lease->reserved_mono = successor != NULL ? from + reserved_for : 0;
	lease->reserved_for = successor != NULL ? reserved_for : 0;
}

static void
set_yield(Lease *lease, bool yields, bool ordered, const char *cause)
{
	lease->yielding = yields;
	lease->yield_ordered = ordered;
	lease->yield_cause = unconstify(char *, cause);
}

/*
 * Who holds the lease.
 */
static void
set_holder(Lease *lease, const Candidate *to)
{
	lease->leader = to->candidate;
	lease->session_id = to->session_id;
	lease->backend_pid = to->session_id != 0 ? to->backend_pid : 0;
	lease->role = to->role;
	lease->auto_renew = to->auto_renew;
	lease->rank = to->rank;
	lease->progress = to->progress;
	lease->metadata = to->metadata;
	lease->metadata_at = 0;
	lease->request = to->request;
	lease->incomplete = false;
}

/*
 * Give the lease, which is locked, to a candidate, in a new term, which may
 * continue a previous one (0: none).  It lasts for duration from t0 on; at is
 * the wall clock now.  The caller writes the row.
 */
void
le_lease_grant(Lease *lease, const Candidate *to, int64 term,
			   int64 previous_term, int64 duration, int64 t0, TimestampTz at)
{
	lease->term = term;
	lease->previous_term = previous_term;
	set_holder(lease, to);
	lease->acquired_at = at;
	lease->acquired_mono = t0;
	lease->left_at_renewal = -1;
	set_deadline(lease, duration, t0, at);
	lease->incarnation = le_incarnation_name();
	set_yield(lease, false, false, NULL);
	lease->yields = 0;
	lease->deserted = false;
	set_first_stood(lease, 0);
	set_reserved(lease, NULL, 0);
	le_lease_set_not_before(lease, 0, false);
}

/*
 * Vacate the election of this lease, which is locked.  If not_before is still
 * to come, nobody is elected before, because of a hold or (held is false) a
 * takeover delay.  Then, for reserved_for, the election is only the successor's
 * (NULL: anybody may be elected).  deserted: nobody stood to follow; the
 * first candidate did at first_stood (0: none has yet).  The caller writes the
 * row.
 *
 * The previous term stays: the last holder may know its term by no other
 * number, and say that its run is done.
 */
void
le_lease_vacate(Lease *lease, int64 not_before, bool held,
				const Candidate *successor, int64 reserved_for,
				bool deserted, int64 first_stood)
{
	static const Candidate nobody = {.role = {""}};

	set_holder(lease, &nobody);
	set_yield(lease, false, false, NULL);
	set_incarnation(lease);
	lease->deserted = deserted;
	set_first_stood(lease, deserted ? first_stood : 0);
	le_lease_set_not_before(lease, not_before, held);
	set_reserved(lease, successor, reserved_for);
}

/*
 * Does what the holder says of itself differ from what the lease says?
 */
bool
le_lease_differs(const Lease *lease, const Profile *said)
{
	return (said->sets_progress && said->progress != lease->progress) ||
		(said->metadata != 0 &&
		 !le_row_same_value(said->metadata, lease->metadata));
}

/*
 * Set what the holder of a lease, which is locked and led, says of itself.
 * Metadata that is as it was is no change, and nobody is told.  Each change has
 * a time of its own, also when the clock was set back: by it the worker knows
 * what listeners have been told.
 */
static void
set_said(Lease *lease, const Profile *said)
{
	if (said->sets_progress)
		lease->progress = said->progress;
	if (said->metadata == 0 ||
		le_row_same_value(said->metadata, lease->metadata))
		return;
	lease->metadata = said->metadata;
	lease->metadata_at = Max(GetCurrentTimestamp(), lease->metadata_at + 1);
	le_commit_tells();
}

/*
 * Let the holder of a lease, which is locked and led, change what it says of
 * itself, and nothing else: the lease is not renewed, since it was just granted
 * or its holder is asked to yield.
 */
void
le_lease_say(Lease *lease, const Profile *said)
{
	if (!le_lease_differs(lease, said))
		return;
	set_said(lease, said);
	le_lease_write(lease);
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
			   const Profile *said)
{
	lease->left_at_renewal = Max(lease->deadline_mono - le_clock(), 0);
	set_deadline(lease, Max(duration, lease->deadline_mono - t0), t0,
				 GetCurrentTimestamp());
	if (term == lease->term)
		lease->previous_term = 0;
	lease->request = NULL;
	if (said != NULL)
		set_said(lease, said);
	le_lease_write(lease);
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
	set_yield(lease, yields, ordered, cause);
	lease->yields += yields;
	set_successor(lease, successor);
	le_lease_write(lease);
}

/*
 * Reserve a vacant election, whose lease is locked, for a candidate, from now
 * on: the caller knows that no hold or delay is in force any more.  NULL: for
 * nobody any more.  The caller writes the row.
 */
void
le_lease_reserve(Lease *lease, const Candidate *successor, int64 reserved_for)
{
	if (successor != NULL)
	{
		le_lease_set_not_before(lease, 0, false);
		set_incarnation(lease);
	}
	set_reserved(lease, successor, reserved_for);
}

/*
 * Note when the first candidate stood for the vacant election, whose lease is
 * locked.  The caller writes the row.  not_before is a moment of this
 * incarnation: where another one has written the row, a hold or delay in it is
 * written anew.
 */
void
le_lease_note_first(Lease *lease, int64 first_stood, int64 not_before)
{
	if (!le_lease_is_own(lease))
		le_lease_set_not_before(lease, not_before, lease->held);
	set_incarnation(lease);
	set_first_stood(lease, first_stood);
}
