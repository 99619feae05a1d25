/*-------------------------------------------------------------------------
 *
 * diagnose_vacancy.c
 *		What diagnose() says of a vacant election: since when, why, until when,
 *		and what to do.
 *
 * The reason comes from vacancy.c, as it does for the worker and for status,
 * and what is said of it from rules/reasons.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/diagnose.h"
#include "utils/timestamp.h"

/* A vacancy that nothing bars, and that has lasted longer, is not normal */
#define LONG_VACANT		(5 * USECS_PER_SEC)

/*
 * How the last leadership ended, as a sentence that has no end yet.
 */
static char *
describe_last_term(const Diagnosis *d)
{
	const Lease *lease = d->lease;
	const Term *last = d->past.last;

	if (lease->leader != NULL && d->on_standby)
		return psprintf("the lease of %s, in term " INT64_FORMAT ", ended at %s, by the clock of this standby",
						le_quote(lease->leader), lease->term,
						le_diagnose_time(lease->expires_at));
	if (lease->leader != NULL)
	{
		switch (le_lease_state_now(lease))
		{
			case LEASE_EXPIRED:
				return psprintf("the lease of %s, in term " INT64_FORMAT ", ran out at %s",
								le_quote(lease->leader), lease->term,
								le_diagnose_time(lease->expires_at));
			case LEASE_ORPHANED:
				return psprintf("the session of %s (process %d), which led in term " INT64_FORMAT ", has ended",
								le_quote(lease->leader), lease->backend_pid,
								lease->term);
			default:
				return psprintf("%s led in term " INT64_FORMAT " before this server was promoted, restored, moved or its machine started anew",
								le_quote(lease->leader), lease->term);
		}
	}
	if (last == NULL)
		return lease->term == 0 ? "nobody has led it yet" :
			"its history does not tell who led last";
	return psprintf("%s led last, in term " INT64_FORMAT ", which ended at %s (%s ago): %s",
					le_quote(last->leader), last->term,
					le_diagnose_time(last->ended_at),
					le_diagnose_since(last->ended_at), last->reason);
}

/*
 * Why the election is vacant, as this server can tell.
 */
static Obstacle
look_closer(const Diagnosis *d)
{
	Obstacle	obstacle = d->vacancy.obstacle;

	if (!d->knows_vacancy)
		return OBSTACLE_UNREAD;
	if (obstacle == OBSTACLE_NONE && d->on_standby)
		return OBSTACLE_UNSEEN;
	if (obstacle == OBSTACLE_NONE && le_diagnose_has_late_commit(d))
		return OBSTACLE_LATE_COMMIT;
	if (obstacle == OBSTACLE_NO_CANDIDATES && d->lease->runs.done != NULL)
		return OBSTACLE_RUN_DONE;
	return le_observed_obstacle(obstacle, d->name, d->has_worker, d->trouble);
}

/*
 * Most pauses and vacancies end by themselves.  Does this one need an operator:
 * a pause without an end, or a vacancy that nothing bars?
 */
static bool
stays(const Diagnosis *d)
{
	TimestampTz since;

	if (d->vacancy.obstacle != OBSTACLE_NONE)
		return d->vacancy.obstacle == OBSTACLE_PAUSED && !d->pause_ends;
	since = le_observed_vacant_since(d->lease, &d->past);
	return since != 0 && !d->on_standby &&
		GetCurrentTimestamp() - since > LONG_VACANT;
}

/*
 * Nobody leads.
 */
void
le_diagnose_vacancy(Diagnosis *d)
{
	const ObstacleText *text;
	Severity	severity;

	if (d->led)
		return;
	text = &le_obstacles[look_closer(d)];
	severity = text->severity;
	if (severity == SEVERITY_NOTICE && stays(d))
		severity = SEVERITY_ERROR;
	le_diagnose_say(d, severity,
					psprintf("Nobody leads election %s: %s. The reason: %s.",
							 d->quoted, describe_last_term(d),
							 le_diagnose_fill(d, text->why)),
					le_diagnose_fill(d, text->remedy));
}
