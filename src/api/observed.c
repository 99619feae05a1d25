/*-------------------------------------------------------------------------
 *
 * observed.c
 *		What observers see of an election: who leads, who stands, what a
 *		vacant seat waits for.
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
#include "utils/timestamp.h"

/* What a vacancy waits for, where only candidates' own calls elect anybody */
#define NO_WORKER		"a worker or a call"

/*
 * Is the election led, as far as this server can tell?
 */
bool
le_observed_led(const Store *store, const Lease *lease)
{
	if (lease == NULL || lease->leader == NULL || lease->incomplete)
		return false;
	if (RecoveryInProgress())
		return GetCurrentTimestamp() < lease->expires_at;
	return le_lease_state_now(store, lease) == LEASE_LED;
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
 * How many stand, and how many of them could be elected?
 */
Turnout
le_observed_turnout(const Store *store, const Election *election,
					const Lease *lease)
{
	Turnout		turnout = {.live = 0};
	const Drains *drains = le_drain_read(store, election->name);
	ListCell   *lc;

	foreach(lc, le_candidates_read(store, election->name))
	{
		Candidate  *c = lfirst(lc);

		if (!le_candidate_alive(c))
			continue;
		turnout.live++;
		if (le_drain_covers(drains, c->candidate))
			turnout.drained++;
		else if (le_cap_bars(store, election, c, false))
			turnout.capped++;
		if (le_candidate_sits_out(c, lease) ||
			!le_ranking_admits(store, election, drains, c, false))
			continue;
		turnout.ready++;
		if (c->session_id != 0)
			turnout.told++;
	}
	return turnout;
}

/*
 * Nothing bars an election, but perhaps the worker's own trouble.  NULL: the
 * worker is about to elect.
 */
static const char *
worker_text(Obstacle obstacle, const char *election)
{
	static const char *const texts[] = {
		[TROUBLE_FAILS] = "worker fails",
		[TROUBLE_WAITS] = "worker waits for a lock",
		[TROUBLE_CANCELLED] = "worker was cancelled",
	};
	WorkerTrouble trouble;

	if (le_lock_worker_is_free())
		return NO_WORKER;
	if (le_trouble_read(&trouble) && le_trouble_concerns(&trouble, election))
		return texts[le_trouble_kind(trouble.code)];
	return obstacle == OBSTACLE_NONE && LeSyncStandbysDefined() ?
		"synchronous standbys" : NULL;
}

/*
 * An obstacle in words that name nobody.  NULL: the seat waits for nothing but
 * the worker, which is about to elect.
 */
const char *
le_observed_obstacle_text(Obstacle obstacle, const char *election)
{
	static const char *const texts[] = {
		[OBSTACLE_WITHDRAWN] = "withdrawn",
		[OBSTACLE_PAUSED] = "paused",
		[OBSTACLE_EPOCH] = "grace after failover",
		[OBSTACLE_GRACE] = "grace after failover",
		[OBSTACLE_HOLD] = "hold",
		[OBSTACLE_TAKEOVER_DELAY] = "takeover delay",
		[OBSTACLE_RESERVED] = "reserved",
		[OBSTACLE_NO_CANDIDATES] = "no candidates",
		[OBSTACLE_QUORUM] = "quorum",
		[OBSTACLE_SETTLE] = "settle",
		[OBSTACLE_DRAINED] = "drained",
		[OBSTACLE_CAP] = "cap",
		[OBSTACLE_SITTING_OUT] = "candidates that do not sit out",
		[OBSTACLE_CALL] = "acquire()",
	};

	const char *text = NULL;

	if (obstacle == OBSTACLE_NONE || obstacle == OBSTACLE_EPOCH)
		text = worker_text(obstacle, election);
	return text != NULL ? text : texts[obstacle];
}

/*
 * What a vacant election waits for, in words.  NULL: for nothing but the
 * worker, which is about to elect.
 */
const char *
le_observed_waiting_for(const Store *store, const Election *election,
						const Lease *lease, const Turnout *turnout)
{
	Vacancy		v;

	le_vacancy(store, election, lease, le_epoch_read(), le_clock(), turnout, &v);
	if (v.obstacle == OBSTACLE_RESERVED)
		return psprintf("reserved for %s", v.kept_for->candidate);
	if (v.obstacle == OBSTACLE_QUORUM)
		return psprintf("quorum %d of %d", turnout->live, election->quorum);
	return le_observed_obstacle_text(v.obstacle, election->name);
}

/*
 * Why nobody leads, on a standby, as far as the rows tell there: nobody can
 * see who stands, and the time of day has to do.  OBSTACLE_NONE: somebody
 * leads, or the reason cannot be seen there.
 */
Obstacle
le_observed_obstacle_on_standby(const Election *election, const Lease *lease,
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
		lease->first_stood_at + election->settle > now)
		return OBSTACLE_SETTLE;
	return OBSTACLE_NONE;
}

/*
 * The pause of an election; NULL: none.  On a standby, which has no monotonic
 * clock of the primary's, the time of day has to do.  *ends: it ends by
 * itself, and no other one goes on.
 */
const Pause *
le_observed_pause(const Store *store, const Election *election, bool *ends)
{
	const Pause *own = election->pause;
	const Pause *all;
	int64		until;

	if (!RecoveryInProgress())
	{
		own = le_pause_now(store, election, le_epoch_read(), &until);
		*ends = until != PG_INT64_MAX;
		return own;
	}
	all = le_pause_all_read(store);
	if (own != NULL && own->resumes_for > 0 &&
		own->resumes_at <= GetCurrentTimestamp())
		own = NULL;
	*ends = own != NULL && own->resumes_for > 0 && all == NULL;
	return own != NULL ? own : all;
}
