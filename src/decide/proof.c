/*-------------------------------------------------------------------------
 *
 * proof.c
 *		The proof that synchronous standbys still follow this server.
 *
 * A commit waits for synchronous standbys, but that wait can be cut short (by
 * a cancel, a terminate, a crash), and then the lease is there although no
 * standby has it.  So what a lease counts from is proven beforehand.
 *
 * Invariant: where synchronous standbys are configured, a lease counts from a
 * moment t0 after which WAL was written that they have confirmed.  So a
 * standby that is promoted is promoted after t0, and elects nobody before as
 * much time has passed there as this lease can last here.
 *
 * The order: t0 is read, then the configuration of standbys, then the WAL is
 * written and its confirmation awaited, then the election lock is taken, and
 * what the proof rests on is read again.  With t0 read after the confirmation,
 * a standby promoted in between could end its grace while the lease still
 * lasts here.  With t0 read after the configuration, the same could happen to a
 * process that is stopped between the two, while standbys are configured and
 * one of them is promoted.
 *
 * The wait for the proof is bounded, and the lock of that election is not held
 * meanwhile.  (A statement that calls for several elections may hold the locks
 * of others.)
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decide/decide.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "replication/walsender_private.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "utils/wait_event.h"

#define LONGEST_WAIT	INT64CONST(5000000) /* for standbys to confirm */

/*
 * Since when standbys have confirmed in time whenever this process has asked
 * them; PG_INT64_MAX: the last time, they have not
 */
int64		le_proven_since = 0;

static bool
is_confirmed(XLogRecPtr lsn)
{
	bool		confirmed;

	LWLockAcquire(SyncRepLock, LW_SHARED);
	confirmed = WalSndCtl->lsn[SYNC_REP_WAIT_FLUSH] >= lsn;
	LWLockRelease(SyncRepLock);
	return confirmed;
}

/*
 * Note that standbys have confirmed, or are not needed any more, or have not
 * confirmed although they were asked.
 */
static void
note_outcome(const Proof *proof)
{
	if (!proof->confirmed)
		le_proven_since = PG_INT64_MAX;
	else if (le_proven_since == PG_INT64_MAX)
		le_proven_since = le_clock();
}

/*
 * Which version of the lease row, seen vacant, a proof may be about; none if it
 * is led.  A vacancy that the running transaction has made is known to no
 * standby.
 */
TransactionId
le_proof_vacant_xmin(const Lease *seen)
{
	return seen->leader == NULL && !seen->own_write ? seen->xmin :
		InvalidTransactionId;
}

/*
 * What the proof is about: that version of the lease row, leases of that
 * duration, and new terms of the present epoch (inc NULL: there will be none).
 */
void
le_proof_set_subject(Proof *proof, TransactionId vacant_xmin,
					 int64 lease_duration, const Incarnation *inc)
{
	proof->lease_duration = lease_duration;
	proof->epoch = inc != NULL && inc->known ? inc->epoch : -1;
	proof->vacant_xmin = vacant_xmin;
}

/*
 * Does the proof cover a lease of that duration?  If the settings were altered
 * since, a standby may lack the new ones.
 */
bool
le_proof_covers(const Proof *proof, int64 duration)
{
	return !proof->required || duration == proof->lease_duration;
}

/*
 * Is what was found by le_proof_make() still so: if no proof was needed, is
 * none needed now?  Standbys that were configured since have confirmed
 * nothing.
 */
bool
le_proof_stands(const Proof *proof)
{
	return proof->required || !LeSyncStandbysDefined();
}

/*
 * Do the standbys know the epoch that a new term is of, so that a standby that
 * is promoted goes on above it?  And is the proof fresh enough for a lease?
 */
bool
le_proof_grants(const Proof *proof, const Incarnation *inc)
{
	return !proof->required ||
		(proof->epoch == inc->epoch &&
		 le_clock() - proof->t0 <= proof->lease_duration / 3);
}

/*
 * From when on may a lease count?  False: the standbys have not confirmed
 * within a third of the lease, 5 s or limit, whichever is least.  With limit 0
 * they are not asked.
 *
 * seen is the lease row, and lease_duration comes from settings, that were
 * read before this call: the standbys are proven to know what was committed
 * before t0, and nothing later.  grants: a new term may be granted on the
 * proof, and the table of epochs is locked.
 */
bool
le_proof_make(const Lease *seen, int64 lease_duration, bool grants,
			  int64 limit, Proof *proof)
{
	XLogRecPtr	lsn;
	int64		give_up_at;
	bool		woken = false;

	proof->t0 = le_clock();
	proof->required = LeSyncStandbysDefined();
	le_proof_set_subject(proof, seen != NULL ? le_proof_vacant_xmin(seen) :
						 InvalidTransactionId, lease_duration,
						 proof->required && grants ? le_epoch_read() : NULL);
	proof->confirmed = !proof->required;
	if (proof->confirmed)
		note_outcome(proof);
	if (proof->confirmed || limit <= 0)
		return proof->confirmed;

	give_up_at = proof->t0 + Min(Min(lease_duration / 3, LONGEST_WAIT), limit);
	lsn = LeLogProbe();
	while (!(proof->confirmed = is_confirmed(lsn)) && le_clock() < give_up_at)
	{
		if (WaitLatch(MyLatch,
					  WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1,
					  PG_WAIT_EXTENSION) & WL_LATCH_SET)
		{
			woken = true;
			ResetLatch(MyLatch);
		}
		CHECK_FOR_INTERRUPTS();
	}
	if (woken)
		SetLatch(MyLatch);		/* the wake-up was for our caller */
	note_outcome(proof);
	return proof->confirmed;
}
