/*-------------------------------------------------------------------------
 *
 * lease.c
 *		The lease row: reading it, judging it, and the statements that grant,
 *		vacate and renew it.
 *
 * Invariants:
 *
 * - A lease whose deadline has passed is over for ever: nothing renews it.
 *
 * - No renewal moves a deadline back.  A session that has read a deadline may
 *	 trust it without asking again.
 *
 * - A monotonic value of another incarnation, or one that lies further ahead
 *	 than the duration it was made from, is void.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "leader_election.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/timestamp.h"

/* Column numbers of lease */
enum
{
	LEASE_ELECTION,
	LEASE_TERM,
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
	LEASE_SUCCESSOR,
	LEASE_FREE_AT,
	LEASE_FREE_MONO,
	LEASE_FREE_FOR
};

static Lease *
make_lease(HeapTuple tuple, Datum *values, bool *nulls)
{
	Lease	   *lease = palloc0(sizeof(Lease));

#define GET(column, get, other) (nulls[column] ? (other) : get(values[column]))
	lease->election = TextDatumGetCString(values[LEASE_ELECTION]);
	lease->term = DatumGetInt64(values[LEASE_TERM]);
	lease->leader = GET(LEASE_LEADER, TextDatumGetCString, NULL);
	lease->kind = GET(LEASE_KIND, TextDatumGetCString, NULL);
	lease->session_id = GET(LEASE_SESSION_ID, DatumGetInt64, 0);
	lease->backend_pid = GET(LEASE_BACKEND_PID, DatumGetInt32, 0);
	lease->auto_renew = GET(LEASE_AUTO_RENEW, DatumGetBool, false);
	if (!nulls[LEASE_METADATA])
		lease->metadata = datumCopy(values[LEASE_METADATA], false, -1);
	lease->acquired_at = GET(LEASE_ACQUIRED_AT, DatumGetTimestampTz, 0);
	lease->renewed_at = GET(LEASE_RENEWED_AT, DatumGetTimestampTz, 0);
	lease->expires_at = GET(LEASE_EXPIRES_AT, DatumGetTimestampTz, 0);
	lease->acquired_mono = GET(LEASE_ACQUIRED_MONO, DatumGetInt64, 0);
	lease->deadline_mono = GET(LEASE_DEADLINE_MONO, DatumGetInt64, 0);
	lease->duration = GET(LEASE_DURATION, DatumGetInt64, 0);
	lease->incarnation = GET(LEASE_INCARNATION, TextDatumGetCString, NULL);
	lease->yielding = DatumGetBool(values[LEASE_YIELDING]);
	lease->free_at = GET(LEASE_FREE_AT, DatumGetTimestampTz, 0);
	lease->free_mono = GET(LEASE_FREE_MONO, DatumGetInt64, 0);
	lease->free_for = GET(LEASE_FREE_FOR, DatumGetInt64, 0);
#undef GET
	lease->own_write = TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
	return lease;
}

static void
read_one(HeapTuple tuple, Datum *values, bool *nulls, void *arg)
{
	*(Lease **) arg = make_lease(tuple, values, nulls);
}

static void
read_into_list(HeapTuple tuple, Datum *values, bool *nulls, void *arg)
{
	List	  **list = arg;

	*list = lappend(*list, make_lease(tuple, values, nulls));
}

/*
 * The lease row as the (active or registered) snapshot sees it; NULL if there
 * is no such election.
 */
Lease *
le_lease_read(const Store *store, const char *election, Snapshot snapshot)
{
	Lease	   *lease = NULL;

	le_scan(store->lease, store->lease_pkey, election, snapshot, read_one,
			&lease);
	return lease;
}

List *
le_lease_read_all(const Store *store)
{
	List	   *leases = NIL;

	le_scan(store->lease, InvalidOid, NULL, NULL, read_into_list, &leases);
	return leases;
}

/*
 * What a lease row means on this incarnation of the server, now.  This is the
 * one place that says whether a holder's death is proven.
 */
LeaseState
le_lease_state(const Lease *lease, const char *incarnation, int64 now)
{
	if (lease->leader == NULL)
		return LEASE_VACANT;
	if (strcmp(lease->incarnation, incarnation) != 0 ||
		lease->deadline_mono - now > lease->duration)
		return LEASE_FOREIGN;
	if (now >= lease->deadline_mono)
		return LEASE_EXPIRED;
	if (lease->session_id != 0 && !le_session_alive(lease->session_id))
		return LEASE_ORPHANED;
	return LEASE_LED;
}

/*
 * Lock the row against renewals until the transaction ends.  False: somebody
 * else has it, or it is gone.
 */
bool
le_lease_lock(const char *election)
{
	Datum		values[1] = {CStringGetTextDatum(election)};

	return le_execute(LE_LOCK_LEASE, values, NULL) == 1;
}

/*
 * Give the lease to a candidate, from t0 on, and write the term's row in the
 * history.  Under the election lock, with the rows of both locked.
 */
void
le_lease_grant(const Lease *lease, const char *candidate, int64 session_id,
			   int64 term, int64 duration, int64 t0, TimestampTz at,
			   const char *incarnation)
{
	Datum		grant[8];
	Datum		begin[4];

	grant[0] = begin[0] = CStringGetTextDatum(lease->election);
	grant[1] = begin[1] = CStringGetTextDatum(candidate);
	grant[2] = Int64GetDatum(session_id);
	grant[3] = begin[2] = Int64GetDatum(term);
	grant[4] = Int64GetDatum(duration);
	grant[5] = Int64GetDatum(t0);
	grant[6] = begin[3] = TimestampTzGetDatum(at);
	grant[7] = CStringGetTextDatum(incarnation);
	if (le_execute(LE_GRANT_LEASE, grant, NULL) != 1 ||
		le_execute(LE_BEGIN_HISTORY, begin, NULL) != 1)
		elog(ERROR, "could not grant election \"%s\"", lease->election);
}

/*
 * Leave the seat empty, until free_mono at least (0: free at once).
 */
void
le_lease_vacate(const Lease *lease, int64 free_mono, int64 now, TimestampTz at,
				const char *incarnation)
{
	bool		free = free_mono <= now;
	Datum		values[5];
	const char *nulls = free ? " nnn " : NULL;

	values[0] = CStringGetTextDatum(lease->election);
	values[1] = Int64GetDatum(free_mono);
	values[2] = TimestampTzGetDatum(at);
	values[3] = Int64GetDatum(free_mono - now);
	values[4] = CStringGetTextDatum(incarnation);
	if (le_execute(LE_VACATE_LEASE, values, nulls) != 1)
		elog(ERROR, "could not vacate election \"%s\"", lease->election);
}

/*
 * Renew these leases, if they are still in the terms that were read, for
 * durations[] counted from t0; how many were.  Rows that somebody else has
 * locked are left out.
 */
uint64
le_lease_renew(List *leases, const int64 *durations, int64 t0, TimestampTz at)
{
	int			n = list_length(leases);
	Datum	   *columns[3];
	Datum		values[5];

	for (int i = 0; i < 3; i++)
		columns[i] = palloc(n * sizeof(Datum));
	for (int i = 0; i < n; i++)
	{
		Lease	   *lease = list_nth(leases, i);

		columns[0][i] = CStringGetTextDatum(lease->election);
		columns[1][i] = Int64GetDatum(lease->term);
		columns[2][i] = Int64GetDatum(durations[i]);
	}
	values[0] = PointerGetDatum(construct_array(columns[0], n, TEXTOID, -1,
												false, TYPALIGN_INT));
	values[1] = PointerGetDatum(construct_array(columns[1], n, INT8OID, 8,
												FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	values[2] = PointerGetDatum(construct_array(columns[2], n, INT8OID, 8,
												FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	values[3] = Int64GetDatum(t0);
	values[4] = TimestampTzGetDatum(at);
	le_notify_durable();
	return le_execute(LE_RENEW_LEASES, values, NULL);
}

/*
 * When a hold or a delay on the vacant lease ends, on this incarnation's
 * clock.  What another incarnation has set counts by its wall clock, but for
 * no longer than it was set for.
 */
int64
le_lease_free_mono(const Lease *lease, const Incarnation *inc)
{
	int64		left;

	if (lease->free_mono == 0)
		return 0;
	if (lease->incarnation != NULL &&
		strcmp(lease->incarnation, inc->name) == 0)
		return lease->free_mono;
	left = lease->free_at - GetCurrentTimestamp();
	return Min(le_clock() + left, inc->first_seen + lease->free_for);
}
