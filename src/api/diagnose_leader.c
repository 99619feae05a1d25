/*-------------------------------------------------------------------------
 *
 * diagnose_leader.c
 *		What diagnose() says of the leader and its lease.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/diagnose.h"
#include "utils/timestamp.h"

/* A leader that asks is_leader() as it should is never silent for so long */
#define SILENT_LEASES	10

/*
 * Who keeps the lease?
 */
static const char *
describe_keeper(const Lease *lease)
{
	if (lease->session_id == 0)
		return "It is detached, and renews its lease itself";
	return psprintf("Its session (process %d) lives, and %s",
					lease->backend_pid, lease->auto_renew ?
					"the server renews the lease" : "renews the lease itself");
}

/*
 * Somebody leads.
 */
void
le_diagnose_leader(Diagnosis *d)
{
	const Lease *lease = d->lease;
	StringInfoData buf;

	if (!d->led)
		return;
	initStringInfo(&buf);
	appendStringInfo(&buf, "%s leads election %s since %s (for %s), in term " INT64_FORMAT ".",
					 le_quote(lease->leader), d->quoted,
					 le_diagnose_time(lease->acquired_at),
					 le_diagnose_since(lease->acquired_at), lease->term);
	if (d->on_standby)
		appendStringInfo(&buf, " By the clock of this standby, its lease ends in %s.",
						 le_diagnose_duration(le_observed_remaining(lease)));
	else
		appendStringInfo(&buf, " %s: %s of %s are left.", describe_keeper(lease),
						 le_diagnose_duration(le_observed_remaining(lease)),
						 le_diagnose_duration(lease->duration));
	if (d->turnout.live > 0)
		appendStringInfo(&buf, " Live candidates: %d.", d->turnout.live);
	le_diagnose_say(d, SEVERITY_OK, buf.data, "");
}

/*
 * The election is paused, and le_diagnose_vacancy() does not say so.
 */
void
le_diagnose_pause(Diagnosis *d)
{
	const ObstacleText *text = &le_obstacles[OBSTACLE_PAUSED];

	if (d->pause == NULL ||
		(!d->led && d->vacancy.obstacle == OBSTACLE_PAUSED))
		return;
	le_diagnose_say(d, SEVERITY_NOTICE,
					psprintf("Of election %s: %s. %s", d->quoted,
							 le_diagnose_fill(d, text->why),
							 d->pause->vacates ? "Each leader is asked to yield." :
							 "Who leads goes on, and nobody is elected after it."),
					le_diagnose_fill(d, text->remedy));
}

/*
 * Who has asked the leader to yield?
 */
static const char *
describe_asker(const Lease *lease)
{
	if (!lease->yield_ordered)
		return "the strategy";
	if (lease->yield_cause == NULL)
		return "request_yield()";
	if (strcmp(lease->yield_cause, LE_CAUSE_PAUSED) == 0)
		return "a pause that vacates the election";
	if (strcmp(lease->yield_cause, LE_CAUSE_DRAINED) == 0)
		return "a drain";
	return "its group, which has fewer seats by now";
}

/*
 * The leader is asked to yield.  It may finish its work first: it has not
 * obeyed if half of the lease has passed since the last renewal.
 */
void
le_diagnose_yield(Diagnosis *d)
{
	const Lease *lease = d->lease;
	int64		left;
	bool		late;

	if (!d->led || !lease->yielding)
		return;
	left = le_observed_remaining(lease);
	late = left < lease->duration / 2;
	le_diagnose_say(d, late ? SEVERITY_WARNING : SEVERITY_NOTICE,
					psprintf("%s is asked by %s to yield%s%s, and %s. Its lease is not renewed any more and ends in %s. (Requests in this term: " INT64_FORMAT ".)",
							 le_quote(lease->leader), describe_asker(lease),
							 lease->successor != NULL ? " to " : "",
							 lease->successor != NULL ?
							 le_quote(lease->successor) : "",
							 late ? "has not obeyed" : "may finish its work",
							 le_diagnose_duration(left), lease->yields),
					lease->session_id == 0 ?
					"Wait: it is replaced when its lease is over, at the latest." :
					le_diagnose_fill(d, "Wait: it is replaced when its lease is over, at the latest. To end its session at once, {owner request_yield({election}, terminate => true)}"));
}

/*
 * The lease was renewed late, or is about to run out.  The rows tell of the
 * last renewal only: how long ago it was, how much was left of the lease, and
 * how much of the new one had passed when it was written, because standbys had
 * to confirm first.
 */
void
le_diagnose_renewal(Diagnosis *d)
{
	const Lease *lease = d->lease;
	bool		renews_itself = lease->session_id == 0 || !lease->auto_renew;
	const char *remedy = renews_itself ?
		"Look at the leader: its log, whether its machine can be reached, what it waits for. If it is gone, the next one leads when the lease is over." :
		"Look at the rows on the worker, on locks and on standbys, and at the load of the server.";
	char	   *ago = le_diagnose_since(lease->renewed_at);
	char	   *whole = le_diagnose_duration(lease->duration);
	int64		left = le_observed_remaining(lease);
	int64		spent = lease->renewed_at + lease->duration - lease->expires_at;

	if (!d->led || lease->yielding)
		return;
	if (left < lease->duration / (renews_itself ? 3 : 2))
		le_diagnose_say(d, SEVERITY_WARNING,
						psprintf("The lease of %s was last renewed %s ago: %s of %s are left. %s",
								 le_quote(lease->leader), ago,
								 le_diagnose_duration(left), whole,
								 renews_itself ?
								 "The leader renews it itself, and is late: it hangs, or is cut off." :
								 "The server renews it after a third, and is late."),
						remedy);
	if (lease->left_at_renewal >= 0 &&
		lease->left_at_renewal < lease->duration / 4)
		le_diagnose_say(d, SEVERITY_WARNING,
						psprintf("The last renewal, %s ago, came late: %s of the lease were left, which now lasts %s.",
								 ago,
								 le_diagnose_duration(lease->left_at_renewal),
								 whole),
						remedy);
	if (spent > lease->duration / 4)
		le_diagnose_say(d, SEVERITY_WARNING,
						psprintf("At the last renewal %s of %s had passed before it could be written: so long synchronous standbys, or locks, have kept it waiting.",
								 le_diagnose_duration(spent), whole),
						le_diagnose_fill(d, "Look at the standbys: SELECT application_name, sync_state, flush_lag, reply_time FROM pg_stat_replication; or, for a longer lease, {alter lease_duration => '{twice the lease}'}"));
}

/*
 * The server renews the lease of a session that has asked nothing for many
 * leases.  That may be as it should, or its client is gone: a pooler that
 * resets nothing (an empty server_reset_query) keeps the session and its locks,
 * and so the leadership.  Nobody but the program's owner can tell.
 */
void
le_diagnose_silent(Diagnosis *d)
{
	const Lease *lease = d->lease;
	TimestampTz since;
	const char *state;
	int64		silent;

	if (!d->led || lease->session_id == 0 || !lease->auto_renew)
		return;
	state = le_process_idle(lease->backend_pid, &since);
	silent = GetCurrentTimestamp() - since;
	if (state == NULL || silent / SILENT_LEASES < lease->duration)
		return;
	le_diagnose_say(d, SEVERITY_NOTICE,
					psprintf("The session in which %s leads has sent nothing since %s (for %s), and the server renews its lease all the same: %s is \"%s\".",
							 le_quote(lease->leader), le_diagnose_time(since),
							 le_diagnose_duration(silent),
							 le_process_text(lease->backend_pid), state),
					psprintf("If its program works, nothing is to be done. If that is gone, and a pooler has kept its session (an empty server_reset_query), it leads until that ends: SELECT pg_terminate_backend(%d); behind poolers, stand with acquire().",
							 lease->backend_pid));
}
