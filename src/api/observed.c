/*-------------------------------------------------------------------------
 *
 * observed.c
 *		What observers see of an election: who leads, who stands, what it
 *		waits for if it is vacant.
 *
 * The view status shows that, and diagnose() explains it.
 *
 * Invariant: this file writes nothing, and takes no election lock.  It works
 * on a standby as well: there the wall clock has to do, since the monotonic
 * values are those of the primary's clock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "api/api.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#define LATELY			USECS_PER_HOUR

/*
 * Is the election led, as far as this server can tell?
 */
bool
le_observed_led(const Lease *lease)
{
	if (lease == NULL || lease->leader == NULL || lease->incomplete)
		return false;
	if (RecoveryInProgress())
		return GetCurrentTimestamp() < lease->expires_at;
	return le_lease_state_now(lease) == LEASE_LED;
}

/*
 * Microseconds until the lease is over.
 */
int64
le_observed_remaining(const Lease *lease)
{
	int64		left = RecoveryInProgress() ?
		lease->expires_at - GetCurrentTimestamp() :
		lease->deadline_mono - le_clock();

	return Max(left, 0);
}

/*
 * What an observer sees of this obstacle, where it is left to the worker to
 * elect, or to begin an epoch: what keeps the worker from it.  trouble is the
 * worker's; NULL: none.
 */
Obstacle
le_observed_obstacle(Obstacle obstacle, const char *election, bool has_worker,
					 const WorkerTrouble *trouble)
{
	static const Obstacle troubles[] = {
		[TROUBLE_FAILS] = OBSTACLE_WORKER_FAILS,
		[TROUBLE_WAITS] = OBSTACLE_WORKER_WAITS,
		[TROUBLE_CANCELLED] = OBSTACLE_WORKER_CANCELLED,
	};
	bool		begins = obstacle == OBSTACLE_EPOCH;

	if (obstacle != OBSTACLE_NONE && !begins)
		return obstacle;
	if (!has_worker)
		return begins ? OBSTACLE_NO_EPOCH : OBSTACLE_NO_WORKER;
	if (trouble != NULL && le_trouble_concerns(trouble, election))
		return troubles[le_trouble_kind(trouble->code)];
	return !begins && LeSyncStandbysDefined() ? OBSTACLE_STANDBYS : obstacle;
}

/*
 * The same, as the worker is now.
 */
Obstacle
le_observed_obstacle_now(Obstacle obstacle, const char *election)
{
	WorkerTrouble trouble;

	if (obstacle != OBSTACLE_NONE && obstacle != OBSTACLE_EPOCH)
		return obstacle;
	return le_observed_obstacle(obstacle, election, !le_lock_worker_is_free(),
								le_trouble_read(&trouble) ? &trouble : NULL);
}

/*
 * Why nobody leads, on a standby, as far as the rows tell there: nobody can
 * see who stands, and the time of day has to do.  OBSTACLE_NONE: somebody
 * leads, or the reason cannot be seen there.
 */
static Obstacle
obstacle_on_standby(const Election *election, const Lease *lease,
					const Pause *pause)
{
	TimestampTz now = GetCurrentTimestamp();

	if (lease->leader != NULL || lease->successor != NULL)
		return OBSTACLE_NONE;
	if (pause != NULL)
		return OBSTACLE_PAUSED;
	if (lease->not_before_at > now)
		return lease->held ? OBSTACLE_HOLD : OBSTACLE_TAKEOVER_DELAY;
	if (lease->first_stood_at != 0 &&
		lease->first_stood_at + election->initial_delay > now)
		return OBSTACLE_INITIAL_DELAY;
	return OBSTACLE_NONE;
}

/*
 * Who stands and, if nobody leads (led: who leads is known), why not?  The
 * View from which observers' other questions are answered; NULL: this is a
 * standby, where nobody can see who stands.
 */
View *
le_observed_look(const Election *election,
				 const Lease *lease, bool led, const Pause *pause,
				 Turnout *turnout, Vacancy *vacancy)
{
	View	   *view;

	memset(turnout, 0, sizeof(Turnout));
	memset(vacancy, 0, sizeof(Vacancy));
	if (RecoveryInProgress())
	{
		vacancy->obstacle = obstacle_on_standby(election, lease, pause);
		return NULL;
	}
	view = le_view_read(election, lease, led ? NULL : le_epoch_read(),
						le_clock(), NULL);
	le_vacancy_count(view, turnout);
	if (!led)
		le_vacancy(view, turnout, vacancy);
	return view;
}

/*
 * What a vacant election waits for, in words.  NULL: for nothing but the
 * worker, which is about to elect, or this standby cannot see it.
 */
const char *
le_observed_waiting_for(const Election *election, const Turnout *turnout,
						const Vacancy *vacancy)
{
	Obstacle	obstacle = vacancy->obstacle;

	if (obstacle == OBSTACLE_RESERVED)
		return psprintf("reserved for %s", vacancy->kept_for->name);
	if (obstacle == OBSTACLE_QUORUM)
		return psprintf("quorum %d of %d", turnout->live, election->quorum);
	if (!RecoveryInProgress())
		obstacle = le_observed_obstacle_now(obstacle, election->name);
	return obstacle != OBSTACLE_NONE ? le_obstacles[obstacle].word : NULL;
}

/*
 * The pause of an election; NULL: none.  On a standby, which has no monotonic
 * clock of the primary's, the time of day has to do.  *ends: it ends by
 * itself, and no other one goes on.
 */
const Pause *
le_observed_pause(const Election *election, bool *ends)
{
	const Pause *own = election->pause;
	const Pause *all;
	int64		until;

	if (!RecoveryInProgress())
	{
		own = le_pause_now(election, le_epoch_read(), &until);
		*ends = until != PG_INT64_MAX;
		return own;
	}
	all = le_pause_all_read();
	if (own != NULL && own->resumes_for > 0 &&
		own->resumes_at <= GetCurrentTimestamp())
		own = NULL;
	*ends = own != NULL && own->resumes_for > 0 && all == NULL;
	return own != NULL ? own : all;
}

/*
 * Which terms have ended within the last hour, and why, and the last one that
 * has ended at all.  Those of elections that had this name before do not count.
 */
void
le_observed_past(const Lease *lease, Past *past)
{
	TimestampTz since = GetCurrentTimestamp() - LATELY;
	RowScan    *scan = le_history_scan(lease->election, lease->after_term + 1,
									   BackwardScanDirection, NULL);
	Term	   *term;

	memset(past, 0, sizeof(Past));
	for (int n = 0; n < LE_MOST_TERMS && (term = le_history_next(scan)); n++)
	{
		past->begun += term->acquired_at >= since;
		if (!term->ended)
			continue;
		if (past->last == NULL)
			past->last = term;
		if (term->ended_at < since)
			break;
		past->ended[le_reason_find(term->reason)]++;
	}
	le_scan_end(scan);
}

/*
 * Since when has nobody led, if that is so now?  0: nobody has led yet.
 */
TimestampTz
le_observed_vacant_since(const Lease *lease, const Past *past)
{
	if (lease->leader != NULL)
		return Min(lease->expires_at, GetCurrentTimestamp());
	return past->last != NULL ? past->last->ended_at : 0;
}

/*
 * The table of ours that this lock is on, or (*is_key) on the primary key of
 * which; TABLE_COUNT: it is on the view that all use, -1: on none.
 */
int
le_observed_table(const LOCKTAG *tag, bool *is_key)
{
	*is_key = false;
	if (tag->locktag_type != LOCKTAG_RELATION ||
		tag->locktag_field1 != MyDatabaseId)
		return -1;
	if (tag->locktag_field2 == le_store.protocol)
		return TABLE_COUNT;
	for (int t = 0; t < TABLE_COUNT; t++)
	{
		*is_key = tag->locktag_field2 == le_store.table[t].pkey;
		if (*is_key || tag->locktag_field2 == le_store.table[t].rel)
			return t;
	}
	return -1;
}
