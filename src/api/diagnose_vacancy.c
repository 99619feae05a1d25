/*-------------------------------------------------------------------------
 *
 * diagnose_vacancy.c
 *		What diagnose() says of a seat that nobody has: since when, why, until
 *		when, and what to do.
 *
 * The reason comes from vacancy.c, as it does for the worker and for status.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/diagnose.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

/* A vacancy that nothing bars, and that has lasted longer, is not normal */
#define LONG_VACANT		(5 * USECS_PER_SEC)

/* What is said of one obstacle */
typedef struct Explanation
{
	Severity	severity;
	const char *why;
	const char *remedy;
} Explanation;

typedef Explanation (*Explain) (const Diagnosis *d);

static Explanation
explain(Severity severity, const char *why, const char *remedy)
{
	Explanation e = {severity, why, remedy};

	return e;
}

/*
 * How the last leadership ended, as a sentence that has no end yet.
 */
static char *
describe_end(const Diagnosis *d)
{
	const Lease *lease = d->lease;

	if (lease->leader != NULL && d->on_standby)
		return psprintf("the lease of %s, in term " INT64_FORMAT ", ended at %s, by the clock of this standby",
						le_quote(lease->leader), lease->term,
						le_diagnose_time(lease->expires_at));
	if (lease->leader != NULL)
	{
		switch (le_lease_state_now(&d->store, lease))
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
	if (d->last == NULL)
		return lease->term == 0 ? "nobody has led it yet" :
			"its history does not tell who led last";
	return psprintf("%s led last, in term " INT64_FORMAT ", which ended at %s (%s ago): %s",
					le_quote(d->last->leader), d->last->term,
					le_diagnose_time(d->last->ended_at),
					le_diagnose_duration(Max(GetCurrentTimestamp() - d->last->ended_at, 0)),
					d->last->reason);
}

/*
 * A moment of the monotonic clock, and how far away it is.
 */
static char *
describe_moment(int64 mono)
{
	int64		left = Max(mono - le_clock(), 0);

	return psprintf("%s (in %s)", le_diagnose_time(GetCurrentTimestamp() + left),
					le_diagnose_duration(left));
}

/*
 * When the obstacle is gone: on a standby, the rows' time of day counts.
 */
static char *
describe_until(const Diagnosis *d, TimestampTz on_standby)
{
	return d->on_standby ? le_diagnose_time(on_standby) :
		describe_moment(d->vacancy.barred_until);
}

static Explanation
explain_withdrawn(const Diagnosis *d)
{
	return explain(SEVERITY_NOTICE,
				   psprintf("the seat is withdrawn: group %s has %d seats by now",
							le_quote(d->group->name), d->group->seats),
				   "Nothing is to be done: the worker drops it. alter_group() with more seats would keep it.");
}

static Explanation
explain_paused(const Diagnosis *d)
{
	return explain(d->pause_ends ? SEVERITY_NOTICE : SEVERITY_ERROR,
				   le_diagnose_pause_text(d), le_diagnose_pause_remedy(d));
}

/*
 * The worker's own trouble keeps the seat vacant.
 */
static Explanation
explain_trouble(const Diagnosis *d, bool lasts)
{
	bool		fails = le_trouble_kind(d->trouble->code) == TROUBLE_FAILS;

	return explain(fails || lasts ? SEVERITY_ERROR : SEVERITY_NOTICE,
				   le_diagnose_trouble_text(d),
				   "See the row on the worker.");
}

static bool
is_in_trouble(const Diagnosis *d)
{
	return d->trouble != NULL && le_trouble_concerns(d->trouble, d->name);
}

static Explanation
explain_epoch(const Diagnosis *d)
{
	if (is_in_trouble(d))
		return explain_trouble(d, false);
	return explain(d->has_worker ? SEVERITY_NOTICE : SEVERITY_WARNING,
				   "this server was promoted, restored, moved or its machine started anew, and its new epoch has not begun",
				   d->has_worker ? "Wait: the worker begins it, and after one lease somebody is elected." :
				   "Have a candidate call join(), campaign() or acquire(): that begins it.");
}

static Explanation
explain_grace(const Diagnosis *d)
{
	return explain(SEVERITY_NOTICE,
				   psprintf("this is the grace after a failover: a leader of the former server may lead on there, and nobody new is elected before %s",
							describe_until(d, 0)),
				   "Wait until then. A detached leader of the former server may call renew(), and leads on.");
}

static Explanation
explain_hold(const Diagnosis *d)
{
	return explain(SEVERITY_NOTICE,
				   psprintf("a hold, which the last leader asked for, ends at %s",
							describe_until(d, d->lease->not_before_at)),
				   "Wait until then: the job is done for this time.");
}

static Explanation
explain_takeover_delay(const Diagnosis *d)
{
	return explain(SEVERITY_NOTICE,
				   psprintf("the takeover delay ends at %s",
							describe_until(d, d->lease->not_before_at)),
				   psprintf("Wait until then. For the next time, %s",
							le_diagnose_alter(d, "takeover_delay => '0'")));
}

static Explanation
explain_reserved(const Diagnosis *d)
{
	return explain(SEVERITY_NOTICE,
				   psprintf("the seat is reserved for %s until %s",
							le_quote(d->vacancy.kept_for->candidate),
							describe_moment(d->vacancy.kept_until)),
				   "Wait: it leads when it calls acquire(). After that time, the next candidate does.");
}

static Explanation
explain_no_candidates(const Diagnosis *d)
{
	const Runs *runs = &d->lease->runs;

	if (runs->done != NULL)
		return explain(SEVERITY_NOTICE,
					   psprintf("nobody stands, and run %s was recorded as done at %s",
								le_quote(runs->done), le_diagnose_time(runs->done_at)),
					   "Nothing is to be done, if the next run is not due: who knows that its run is done does not stand.");
	return explain(SEVERITY_ERROR, "nobody stands",
				   d->group != NULL ?
				   "Start the programs that stand, or look into their logs: why do they not connect? Those that were there before this seat have to call join_group() or acquire_any() again." :
				   "Start the programs that stand, or look into their logs: why do they not connect?");
}

static Explanation
explain_quorum(const Diagnosis *d)
{
	return explain(SEVERITY_ERROR,
				   psprintf("%d of the %d candidates that are needed (quorum) are alive",
							d->turnout.live, d->election->quorum),
				   psprintf("Start more candidates, or %s",
							le_diagnose_alter(d, psprintf("quorum => %d",
														  Max(d->turnout.live, 1)))));
}

static Explanation
explain_settle(const Diagnosis *d)
{
	return explain(SEVERITY_NOTICE,
				   psprintf("for others to stand, too (settle), the seat waits until %s",
							describe_until(d, d->lease->first_stood_at + d->election->settle)),
				   psprintf("Wait until then. For the next time, %s",
							le_diagnose_alter(d, "settle => '0'")));
}

static Explanation
explain_drained(const Diagnosis *d)
{
	return explain(SEVERITY_ERROR, "who could be elected is drained",
				   "End a drain, as the row on drained candidates says, or start another candidate.");
}

static Explanation
explain_cap(const Diagnosis *d)
{
	return explain(SEVERITY_ERROR,
				   psprintf("each candidate has as many other seats of group %s as it may (%d)",
							le_quote(d->group->name), d->group->max_per_candidate),
				   psprintf("Start another candidate, or %s",
							le_diagnose_alter(d, psprintf("max_per_candidate => %d",
														  d->group->max_per_candidate + 1))));
}

static Explanation
explain_sitting_out(const Diagnosis *d)
{
	return explain(SEVERITY_ERROR, "each candidate sits out, or may not be elected",
				   "Start another candidate, or have one that sits out call join(), campaign() or acquire().");
}

static Explanation
explain_call(const Diagnosis *d)
{
	return explain(SEVERITY_NOTICE, "only detached candidates stand, and the next one that calls acquire() is elected",
				   "Wait for a call. If none comes, look into the candidates' logs: they have to call acquire() several times per lease.");
}

static Explanation
explain_none(const Diagnosis *d)
{
	TimestampTz since = d->lease->leader != NULL ? d->lease->expires_at :
		d->last != NULL ? d->last->ended_at : GetCurrentTimestamp();
	bool		lasts = GetCurrentTimestamp() - since > LONG_VACANT;

	if (d->on_standby)
		return explain(SEVERITY_NOTICE, "why cannot be seen on a standby",
					   psprintf("Run on the primary: SELECT * FROM leader_election.diagnose(%s);", d->literal));
	if (le_diagnose_has_late_commit(d))
		return explain(SEVERITY_ERROR, "a commit that is fenced by its last term holds its lock",
					   "See the row on the process that commits.");
	if (!d->has_worker)
		return explain(SEVERITY_WARNING, "there is no worker that elects the next one",
					   "Have a candidate call join() or acquire(): that elects. See the row on the worker.");
	if (is_in_trouble(d))
		return explain_trouble(d, lasts);
	return explain(lasts ? SEVERITY_ERROR : SEVERITY_NOTICE,
				   LeSyncStandbysDefined() ?
				   "the worker elects the next one when synchronous standbys have confirmed that they follow" :
				   "the worker is about to elect the next one",
				   "Ask again in a second. If this stays so, look at the rows on locks, on standbys and on the worker.");
}

static const Explain explanations[] = {
	[OBSTACLE_NONE] = explain_none,
	[OBSTACLE_WITHDRAWN] = explain_withdrawn,
	[OBSTACLE_PAUSED] = explain_paused,
	[OBSTACLE_EPOCH] = explain_epoch,
	[OBSTACLE_GRACE] = explain_grace,
	[OBSTACLE_HOLD] = explain_hold,
	[OBSTACLE_TAKEOVER_DELAY] = explain_takeover_delay,
	[OBSTACLE_RESERVED] = explain_reserved,
	[OBSTACLE_NO_CANDIDATES] = explain_no_candidates,
	[OBSTACLE_QUORUM] = explain_quorum,
	[OBSTACLE_SETTLE] = explain_settle,
	[OBSTACLE_DRAINED] = explain_drained,
	[OBSTACLE_CAP] = explain_cap,
	[OBSTACLE_SITTING_OUT] = explain_sitting_out,
	[OBSTACLE_CALL] = explain_call,
};

/*
 * Nobody leads.
 */
void
le_diagnose_vacancy(Diagnosis *d)
{
	Explanation e;

	if (d->led)
		return;
	if (!d->knows_vacancy)
		e = explain(SEVERITY_ERROR, "why cannot be told while tables are locked",
					"See the rows on locks.");
	else
		e = explanations[d->vacancy.obstacle] (d);
	le_diagnose_say(d, e.severity,
					psprintf("Nobody leads election %s: %s. The reason: %s.",
							 d->quoted, describe_end(d), e.why),
					e.remedy);
}
