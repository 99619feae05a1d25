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

static int
compare_silences(const void *a, const void *b)
{
	int64		x = *(const int64 *) a;
	int64		y = *(const int64 *) b;

	return x < y ? -1 : x > y;
}

/*
 * How long ago was the last answer of a synchronous standby, by its own clock?
 * So many are needed: where more can confirm (ANY), those that answered last
 * count; of these, the one that answered first.
 */
static int64
measure_silence(const SyncRepStandbyData *standbys, int n, int needed)
{
	TimestampTz now = GetCurrentTimestamp();
	int64	   *silences = palloc(n * sizeof(int64));

	for (int i = 0; i < n; i++)
	{
		WalSnd	   *sender = &WalSndCtl->walsnds[standbys[i].walsnd_index];
		TimestampTz at;

		SpinLockAcquire(&sender->mutex);
		at = sender->replyTime;
		SpinLockRelease(&sender->mutex);
		silences[i] = Max(now - at, 0);
	}
	qsort(silences, n, sizeof(int64), compare_silences);
	return silences[needed - 1];
}

/*
 * How many synchronous standbys are needed, and what they have confirmed.
 * False: none are needed.
 */
bool
le_standbys_observed(SyncStandbys *result)
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
		result->silence = measure_silence(standbys, result->connected,
										  result->needed);
	return true;
}
