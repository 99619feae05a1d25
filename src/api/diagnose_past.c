/*-------------------------------------------------------------------------
 *
 * diagnose_past.c
 *		What diagnose() says of the past: why the leadership changed so often,
 *		and which changes listeners have not been told of.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/diagnose.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#define LATELY			USECS_PER_HOUR
#define MOST_TERMS		1000	/* that are read */
#define OFTEN			3		/* terms that ended lately */
#define LATE_NEWS		USECS_PER_SEC

#define WRITERS "SELECT rolname FROM pg_roles WHERE has_table_privilege(oid, 'leader_election.lease', 'INSERT, UPDATE, DELETE');"

/* Why terms end, what that means, and what to do if it happens often */
typedef struct Reason
{
	const char *name;
	Severity	severity;
	const char *meaning;
	const char *remedy;			/* %s: the election, as SQL */
} Reason;

static const Reason reasons[LE_REASONS] = {
	{"expired", SEVERITY_WARNING,
		"the lease ran out before it was renewed: the leader, the server or the standbys were slower than the lease",
	"Find out what stalled the leader or the server then (logs, load, paused machines), or make the lease longer: SELECT leader_election.alter_election(%s, lease_duration => '30 s');"},
	{"session ended", SEVERITY_WARNING,
		"the leader's program or its connection ended",
	"Look into the logs of the programs and of the server for what ended the connections: crashes, restarts, timeouts, proxies."},
	{"session reset", SEVERITY_WARNING,
		"a connection pool, or DISCARD ALL, released the locks of a session that lived on",
	"Have candidates use a connection that no pool manages, or acquire()."},
	{"failover", SEVERITY_WARNING,
		"the server was promoted, restored, moved or its machine started anew",
	"Find out why there was a failover: the logs of the servers, and of what manages them."},
	{"yielded", SEVERITY_NOTICE,
		"the leader was asked to yield, by the strategy, a drain, a pause or request_yield()",
	"If it was the strategy, have candidates stand for a while before the leader is asked: SELECT leader_election.alter_election(%s, preempt_delay => '1 min');"},
	{"transferred", SEVERITY_NOTICE,
		"the leader handed its lease to another candidate, by transfer()",
	"If nobody meant that, look into the programs: they call transfer()."},
	{"resigned", SEVERITY_NOTICE,
		"the leader gave up by itself, by resign() or release()",
	"If nobody meant that, look into the programs: they call resign() or release(). A hold makes changes rarer."},
	{"left", SEVERITY_NOTICE,
		"the leader withdrew, by leave() or leave_all()",
	"If nobody meant that, look into the programs: they end, or call leave()."},
	{"dropped", SEVERITY_NOTICE,
		"the election was dropped",
	"If nobody meant that, find out who calls drop_election() or drop_group()."},
	{"another reason", SEVERITY_NOTICE,
		"the table history names it",
	"Run: SELECT * FROM leader_election.history WHERE election = %s ORDER BY term DESC LIMIT 20;"},
};

/* The argument of read_term() */
typedef struct Reading
{
	Diagnosis  *d;
	TimestampTz since;
	int			terms;
} Reading;

static bool
read_term(const Term *term, void *arg)
{
	Reading    *reading = arg;
	Diagnosis  *d = reading->d;
	int			i = 0;

	if (!term->ended)
		return ++reading->terms < MOST_TERMS;
	if (d->last == NULL)
	{
		Term	   *last = palloc(sizeof(Term));

		*last = *term;
		d->last = last;
	}
	if (term->ended_at < reading->since)
		return false;
	while (i < LE_REASONS - 1 &&
		   (term->reason == NULL || strcmp(term->reason, reasons[i].name) != 0))
		i++;
	d->reasons[i]++;
	return ++reading->terms < MOST_TERMS;
}

/*
 * Read the last term that ended, and why terms ended within the last hour.
 */
void
le_diagnose_read_past(Diagnosis *d)
{
	Reading		reading = {d, GetCurrentTimestamp() - LATELY, 0};

	le_history_read(&d->store, d->name, 0, BackwardScanDirection, NULL,
					read_term, &reading);
}

/*
 * The leadership has changed often: a row for each reason.
 */
void
le_diagnose_changes(Diagnosis *d)
{
	int			all = 0;

	for (int i = 0; i < LE_REASONS; i++)
		all += d->reasons[i];
	if (all < OFTEN)
		return;
	for (int i = 0; i < LE_REASONS; i++)
	{
		const Reason *r = &reasons[i];

		if (d->reasons[i] == 0)
			continue;
		le_diagnose_say(d, r->severity,
						psprintf("Within the last hour, %d of %s%d terms ended by \"%s\": %s.",
								 d->reasons[i],
								 all >= MOST_TERMS ? "the last " : "", all,
								 r->name, r->meaning),
						strstr(r->remedy, "%s") != NULL ?
						psprintf(r->remedy, d->literal) : r->remedy);
	}
}

/*
 * A change that listeners have not been told of for more than a moment.
 */
void
le_diagnose_announced(Diagnosis *d)
{
	const Lease *lease = d->lease;
	const Mark *mark = le_mark_read(&d->store, d->name);
	bool		vacant = lease->leader == NULL;
	TimestampTz since;

	if (lease->term == 0 || (vacant && d->last == NULL))
		return;
	since = vacant ? d->last->ended_at : lease->acquired_at;
	if ((mark != NULL && mark->term >= lease->term &&
		 mark->vacated == vacant) ||
		GetCurrentTimestamp() - since < LATE_NEWS)
		return;
	le_diagnose_say(d, SEVERITY_WARNING,
					psprintf("Listeners have not been told of the last change, at %s, on channel \"%s\": %s.",
							 le_diagnose_time(since),
							 d->election->channel != NULL ?
							 d->election->channel : LE_CHANNEL,
							 mark == NULL ? "a crash or a failover has taken the mark of what they know" :
							 psprintf("they know of the terms to " INT64_FORMAT,
									  mark->term)),
					"Elections do not wait for this. The worker tells them, in turn with all commits that NOTIFY: see whether it runs, who holds locks, and SELECT pg_notification_queue_usage();");
}

/* The argument of compare_term() */
typedef struct Comparison
{
	const Lease *lease;
	bool		known;			/* the history has that leader in that term */
	int64		later;			/* a term above that of the lease row, or 0 */
} Comparison;

static bool
compare_term(const Term *term, void *arg)
{
	Comparison *c = arg;

	if (term->term == c->lease->term)
		c->known = c->lease->leader == NULL || (term->leader != NULL &&
												strcmp(term->leader, c->lease->leader) == 0);
	else
		c->later = term->term;
	return true;
}

/*
 * The transaction that grants a term writes it into both tables.  So rows of
 * one moment that do not go together were not written by the extension.
 */
void
le_diagnose_rows(Diagnosis *d)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	Comparison	c = {le_lease_read(&d->store, d->name, snapshot)};

	if (c.lease != NULL && c.lease->term != 0)
		le_history_read(&d->store, d->name, c.lease->term,
						ForwardScanDirection, snapshot, compare_term, &c);
	UnregisterSnapshot(snapshot);
	if (c.lease == NULL || c.lease->term == 0)
		return;
	if (c.later != 0)
		le_diagnose_say(d, SEVERITY_ERROR,
						psprintf("The lease row of election %s has term " INT64_FORMAT ", and the history a later one, " INT64_FORMAT ": they were not written by the extension. Nobody can be elected, since terms would repeat.",
								 d->quoted, c.lease->term, c.later),
						psprintf("See who can write the tables: " WRITERS " Then run as a superuser: UPDATE leader_election.lease SET term = " INT64_FORMAT " WHERE election = %s;",
								 c.later, d->literal));
	else if (c.lease->leader != NULL && !c.known)
		le_diagnose_say(d, SEVERITY_WARNING,
						psprintf("The lease row of election %s has %s in term " INT64_FORMAT ", and the history does not: they were not written by the extension.",
								 d->quoted, le_quote(c.lease->leader),
								 c.lease->term),
						"See who can write the tables: " WRITERS);
}
