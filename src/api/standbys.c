/*-------------------------------------------------------------------------
 *
 * standbys.c
 *		What synchronous standbys confirm: for diagnose() and for monitors.
 *
 * Invariant: this reads what the server's processes share, and waits for
 * nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "api/api.h"
#include "replication/syncrep.h"
#include "replication/walsender_private.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

/*
 * How long ago was the last answer of a synchronous standby, by its own clock?
 * Where any of them will do, that of the one that answered last counts; else
 * that of the one that answered first.
 */
static int64
measure_silence(const SyncRepStandbyData *standbys, int n)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		any = SyncRepConfig->syncrep_method == SYNC_REP_QUORUM;
	int64		silence = any ? PG_INT64_MAX : 0;

	for (int i = 0; i < n; i++)
	{
		WalSnd	   *sender = &WalSndCtl->walsnds[standbys[i].walsnd_index];
		TimestampTz at;

		SpinLockAcquire(&sender->mutex);
		at = sender->replyTime;
		SpinLockRelease(&sender->mutex);
		silence = any ? Min(silence, now - at) : Max(silence, now - at);
	}
	return silence;
}

/*
 * How many synchronous standbys are needed, and what they have confirmed.
 * False: none are needed.
 */
bool
le_observed_standbys(SyncStandbys *result)
{
	SyncRepStandbyData *standbys;
	XLogRecPtr	confirmed;
	XLogRecPtr	flushed;

	memset(result, 0, sizeof(SyncStandbys));
	if (!LeSyncStandbysDefined() || SyncRepConfig == NULL)
		return false;
	flushed = GetFlushRecPtr(NULL);
	result->needed = SyncRepConfig->num_sync;
	result->connected = SyncRepGetCandidateStandbys(&standbys);
	LWLockAcquire(SyncRepLock, LW_SHARED);
	confirmed = WalSndCtl->lsn[SYNC_REP_WAIT_FLUSH];
	LWLockRelease(SyncRepLock);
	if (confirmed < flushed)
		result->unconfirmed = flushed - confirmed;
	if (result->connected >= result->needed)
		result->silence = measure_silence(standbys, result->connected);
	return true;
}
