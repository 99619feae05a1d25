/*-------------------------------------------------------------------------
 *
 * diagnose_past.c
 *		What diagnose() says of the past: why the leadership changed so often,
 *		which changes listeners have not been told of, and which rows other
 *		code than ours has written or deleted.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/diagnose.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#define OFTEN			3		/* terms that ended lately */
#define LATE_NEWS		USECS_PER_SEC

#define WRITERS "SELECT rolname FROM pg_roles WHERE has_table_privilege(oid, 'leader_election.lease', 'INSERT, UPDATE, DELETE');"

/*
 * The leadership has changed often: a row for each reason.
 */
void
le_diagnose_changes(Diagnosis *d)
{
	int			all = 0;

	for (Reason r = 0; r < REASON_COUNT; r++)
		all += d->past.ended[r];
	if (all < OFTEN)
		return;
	for (Reason r = 0; r < REASON_COUNT; r++)
	{
		if (d->past.ended[r] > 0)
			le_diagnose_say(d, le_reasons[r].severity,
							psprintf("Within the last hour, %d of %s%d terms ended by \"%s\": %s.",
									 d->past.ended[r],
									 all >= LE_MOST_TERMS ? "the last " : "", all,
									 le_reasons[r].word, le_reasons[r].meaning),
							le_diagnose_fill(d, le_reasons[r].remedy));
	}
}

/*
 * A change that listeners have not been told of for more than a moment.
 */
void
le_diagnose_announced(Diagnosis *d)
{
	const Lease *lease = d->lease;
	const Mark *mark = le_mark_read(d->name);
	bool		vacant = lease->leader == NULL;
	bool		knows_term;
	TimestampTz since;

	if (lease->term == 0 || (vacant && d->past.last == NULL))
		return;
	since = vacant ? d->past.last->ended_at : lease->acquired_at;
	knows_term = mark != NULL && mark->term >= lease->term &&
		mark->vacated == vacant;
	if (knows_term)
		since = lease->metadata_at;
	if ((knows_term && !le_mark_lacks_metadata(mark, lease)) ||
		GetCurrentTimestamp() - since < LATE_NEWS)
		return;
	le_diagnose_say(d, SEVERITY_WARNING,
					psprintf("Listeners have not been told of the last change, at %s, on channel \"%s\": %s.",
							 le_diagnose_time(since),
							 d->election->channel != NULL ?
							 d->election->channel : LE_CHANNEL,
							 mark == NULL ? "a crash or a failover has taken the mark of what they know" :
							 knows_term ? "they do not know of its metadata" :
							 psprintf("they know of the terms to " INT64_FORMAT,
									  mark->term)),
					"Elections do not wait for this. The worker tells them, in turn with all commits that NOTIFY: see whether it runs, who holds locks, and SELECT pg_notification_queue_usage();");
}

/*
 * The election has no lease row, which is made and dropped with it.  Only that
 * row told until when the former leader may act.
 */
void
le_diagnose_no_lease(Diagnosis *d)
{
	if (d->election == NULL || d->lease != NULL)
		return;
	le_diagnose_say(d, SEVERITY_ERROR,
					psprintf("Election %s has no lease row, without which nobody can be elected. Only a DELETE by hand removes it.",
							 d->quoted),
					psprintf("See who can write the tables: " WRITERS " Wait until its former lease, hold and takeover delay are over, as they were set when the row was deleted. Then run as a superuser: UPDATE leader_election.history SET ended_at = now(), reason = 'expired' WHERE election = %s AND ended_at IS NULL; INSERT INTO leader_election.lease (election, term, yielding, yield_ordered, yields) SELECT %s, max(term), false, false, 0 FROM (SELECT term FROM leader_election.history WHERE election = %s UNION ALL SELECT term FROM leader_election.announced WHERE election = %s UNION ALL SELECT term FROM leader_election.dropped UNION ALL SELECT dropped_term FROM leader_election.epoch) known; If a resource has seen a higher term, write that. Which runs were done is forgotten: see leader_election.set_run_done().",
							 d->literal, d->literal, d->literal,
							 d->literal));
}

/*
 * The transaction that grants a term writes it into both tables.  So rows of
 * one moment that do not go together were not written by the extension.
 */
void
le_diagnose_rows(Diagnosis *d)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	Lease	   *lease = le_lease_read(d->name, snapshot);
	bool		known = false;	/* history has that leader in that term */
	int64		later = 0;		/* a term above that of the lease row */

	if (lease != NULL && lease->term != 0)
	{
		RowScan    *scan = le_history_scan(d->name, lease->term,
										   ForwardScanDirection, snapshot);
		Term	   *term;

		while ((term = le_history_next(scan)) != NULL)
		{
			if (term->term != lease->term)
				later = term->term;
			else
				known = lease->leader == NULL ||
					strcmp(term->leader, lease->leader) == 0;
		}
		le_scan_end(scan);
	}
	UnregisterSnapshot(snapshot);
	if (lease == NULL || lease->term == 0)
		return;
	if (later != 0)
		le_diagnose_say(d, SEVERITY_ERROR,
						psprintf("The lease row of election %s has term " INT64_FORMAT ", and the history a later one, " INT64_FORMAT ": they were not written by the extension. Nobody can be elected, since terms would repeat.",
								 d->quoted, lease->term, later),
						psprintf("See who can write the tables: " WRITERS " Then run as a superuser (with a term that nobody has been told): UPDATE leader_election.lease SET term = " INT64_FORMAT " + 1 WHERE election = %s;",
								 later, d->literal));
	else if (lease->leader != NULL && !known)
		le_diagnose_say(d, SEVERITY_WARNING,
						psprintf("The lease row of election %s has %s in term " INT64_FORMAT ", and the history does not: they were not written by the extension.",
								 d->quoted, le_quote(lease->leader),
								 lease->term),
						"See who can write the tables: " WRITERS);
}
