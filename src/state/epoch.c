/*-------------------------------------------------------------------------
 *
 * epoch.c
 *		The incarnations that this server has been, and the numbers of terms:
 *		the table epoch.
 *
 * Invariants:
 *
 * - After a change of incarnation (promotion, restore, reboot, copy) nobody is
 *	 elected before the new incarnation has a row here, and a lease has passed
 *	 since.  Without that, a leader on the former primary could still lead, in
 *	 a term that this server has never seen, beside one that is elected here.
 *
 * - Each such row starts a new epoch, and a term is epoch * 2^22 + counter.
 *	 So all terms of an epoch are greater than those of the epochs before.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "common/pg_prng.h"
#include "state/state.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#define TERM_COUNTER_BITS 22

/* Seconds from PostgreSQL's epoch (2000-01-01) to 2020-01-01 */
#define SECONDS_TO_2020 INT64CONST(631152000)

/* An epoch in seconds since 2020; a wall clock beyond it (2054) is wrong */
#define LATEST_EPOCH	(INT64CONST(1) << 30)

PG_FUNCTION_INFO_V1(le_incarnation);

/* Column numbers of epoch */
enum
{
	EPOCH_INCARNATION,
	EPOCH_FIRST_SEEN_AT,
	EPOCH_FIRST_SEEN_MONO,
	EPOCH_EPOCH,
	EPOCH_DROPPED_TERM
};

/*
 * The present incarnation, and what its row says.
 */
Incarnation *
le_epoch_read(void)
{
	Incarnation *inc = palloc0(sizeof(Incarnation));
	int64		own = -1;		/* the highest epochs; -1: no such row */
	int64		other = -1;
	RowScan    *scan;
	Row			row;

	inc->name = le_incarnation_name();
	scan = le_scan_begin(TABLE_EPOCH, le_key_any(),
						 NoMovementScanDirection, NULL);
	while (le_scan_next(scan, &row))
	{
		int64		epoch = DatumGetInt64(row.values[EPOCH_EPOCH]);

		inc->dropped_term = Max(inc->dropped_term,
								DatumGetInt64(row.values[EPOCH_DROPPED_TERM]));
		if (strcmp(TextDatumGetCString(row.values[EPOCH_INCARNATION]),
				   inc->name) == 0)
		{
			own = epoch;
			inc->first_seen = DatumGetInt64(row.values[EPOCH_FIRST_SEEN_MONO]);
		}
		else
			other = Max(other, epoch);
	}
	le_scan_end(scan);
	inc->epoch = Max(Max(own, other), 0);

	/*
	 * The row does not count if another incarnation has an epoch that is not
	 * lower: a restore has brought both, and leases may have been granted
	 * elsewhere since.  Nor does it if first_seen is still to come: another
	 * clock has written it.
	 */
	inc->known = own > other && inc->first_seen <= le_clock();
	return inc;
}

/*
 * Is an epoch to begin?  stale: there are leases of another incarnation.  Then
 * this one is not the first, even if there is no other row here: a restore
 * loads the tables in any order.
 */
bool
le_epoch_is_missing(const Incarnation *inc, bool stale)
{
	return !inc->known || (stale && inc->epoch == 0);
}

/*
 * Write the row of the present incarnation, where an epoch is missing: that
 * begins one, later than those of all terms.  The caller holds the epoch lock,
 * in a transaction of its own.  False: another transaction has locked the row.
 */
bool
le_epoch_write(int64 highest_term)
{
	Incarnation *inc = le_epoch_read();
	int64		epoch;
	TimestampTz now = GetCurrentTimestamp();
	Row		   *row;

	Assert(le_lock_is_mine(LOCK_EPOCH));

	/*
	 * Where the counter of terms has run out, the highest term is of a later
	 * epoch than any row says.
	 */
	highest_term = Max(highest_term, inc->dropped_term);
	epoch = Max(inc->epoch, highest_term >> TERM_COUNTER_BITS) + 1;
	if (now / USECS_PER_SEC - SECONDS_TO_2020 <= LATEST_EPOCH)
		epoch = Max(epoch, now / USECS_PER_SEC - SECONDS_TO_2020);
	row = le_row_lock_or_new(TABLE_EPOCH, le_key(inc->name));
	if (row == NULL)
		return false;
	LE_SET(row, EPOCH_INCARNATION, LE_TEXT(inc->name));
	if (row->tuple == NULL)
		LE_SET(row, EPOCH_DROPPED_TERM, Int64GetDatum(0));
	LE_SET(row, EPOCH_FIRST_SEEN_AT, TimestampTzGetDatum(now));
	LE_SET(row, EPOCH_FIRST_SEEN_MONO, Int64GetDatum(le_clock()));
	LE_SET(row, EPOCH_EPOCH, Int64GetDatum(epoch));
	le_row_write(row);
	le_commit_durably();
	ereport(LOG,
			(errmsg("leader_election: this server is a new incarnation, epoch " INT64_FORMAT " begins",
					epoch),
			 errdetail("Nobody is elected before every lease that was granted elsewhere is over.")));
	return true;
}

/*
 * Remember this term of an election that was dropped: one that is made later,
 * maybe by the same name, has to begin above it.  False: another transaction
 * has locked the row, or this incarnation has none yet.
 */
bool
le_epoch_note_dropped(int64 term)
{
	Incarnation *inc = le_epoch_read();
	bool		busy;
	Row		   *row;

	if (term <= inc->dropped_term)
		return true;
	row = le_row_lock(TABLE_EPOCH, le_key(inc->name),
					  LockTupleNoKeyExclusive, &busy);
	if (row == NULL)
		return false;
	if (DatumGetInt64(row->values[EPOCH_DROPPED_TERM]) < term)
	{
		LE_SET(row, EPOCH_DROPPED_TERM, Int64GetDatum(term));
		le_row_write(row);
	}
	return true;
}

/*
 * The term that follows last.  An election's first term of an epoch has a
 * random counter, in the lower half: two servers that are promoted from the
 * same data in the same second then do not issue the same terms.
 */
int64
le_epoch_next_term(int64 last, const Incarnation *inc)
{
	int64		floor = inc->epoch << TERM_COUNTER_BITS;

	if (last < floor)
		last = floor + (int64) pg_prng_uint64_range(&pg_global_prng_state, 0,
													(UINT64CONST(1) << (TERM_COUNTER_BITS - 1)) - 1);
	return last + 1;
}

/*
 * A moment that was set to be so long after its setting, by this incarnation
 * (own) or another one.  Here it is at mono if it is own, and not further
 * ahead than it can be; else at that time of day, but no later than that long
 * after this incarnation was first seen (if it has no row yet: now), since a
 * wall clock may be wrong.
 */
int64
le_epoch_moment(const Incarnation *inc, bool own, int64 mono, TimestampTz at,
				int64 lasts)
{
	if (own && mono - le_clock() <= lasts)
		return mono;
	return Min(le_clock() + (at - GetCurrentTimestamp()),
			   (inc->known ? inc->first_seen : le_clock()) + lasts);
}

Datum
le_incarnation(PG_FUNCTION_ARGS)
{
	if (RecoveryInProgress())
		PG_RETURN_NULL();
	le_store_get();
	PG_RETURN_TEXT_P(cstring_to_text(le_incarnation_name()));
}
