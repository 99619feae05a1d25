/*-------------------------------------------------------------------------
 *
 * diagnose_fill.c
 *		Sentences with fields, as those of rules/reasons.c, filled in.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/diagnose.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

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
describe_until(const Diagnosis *d)
{
	if (!d->on_standby)
		return describe_moment(d->vacancy.obstacle_until);
	return le_diagnose_time(d->vacancy.obstacle == OBSTACLE_INITIAL_DELAY ?
							d->lease->first_stood_at +
							d->election->initial_delay :
							d->lease->not_before_at);
}

/*
 * Who has paused the election, since when, until when, and why?
 */
static char *
describe_pause(const Diagnosis *d)
{
	const Pause *pause = d->pause;

	return psprintf("%s paused by role %s since %s (%s), %s%s",
					pause == d->election->pause ? "it is" : "all elections are",
					le_quote(pause->by), le_diagnose_time(pause->at),
					pause->reason != NULL ? le_quote(pause->reason) :
					"no reason was given",
					d->pause_ends ? "until " : "until that is resumed",
					d->pause_ends ? le_diagnose_time(pause->resumes_at) : "");
}

/*
 * A change of settings, which a seat has from its group.
 */
static char *
describe_change(const Diagnosis *d, const char *settings)
{
	const char *group = d->election != NULL ? d->election->group :
		d->group->name;

	return le_diagnose_owner_runs(d, group != NULL ?
								  psprintf("alter_group(%s, %s)",
										   quote_literal_cstr(group), settings) :
								  psprintf("alter_election(%s, %s)", d->literal,
										   settings));
}

/*
 * What stands for a field of a sentence.
 */
static const char *
plain_value(const Diagnosis *d, const char *field)
{
#define IS(name)	(strcmp(field, name) == 0)

	if (IS("election"))
		return d->literal;
	if (IS("group"))
		return le_quote(d->group->name);
	if (IS("seats"))
		return psprintf("%d", d->group->seats);
	if (IS("cap"))
		return psprintf("%d", d->group->max_per_candidate);
	if (IS("cap + 1"))
		return psprintf("%d", d->group->max_per_candidate + 1);
	if (IS("live"))
		return psprintf("%d", d->turnout.live);
	if (IS("live, or 1"))
		return psprintf("%d", Max(d->turnout.live, 1));
	if (IS("quorum"))
		return psprintf("%d", d->election->quorum);
	if (IS("twice the lease"))
		return psprintf(INT64_FORMAT " ms",
						Min(d->election->lease_duration / 1000 * 2,
							LE_LONGEST_LEASE_MS));
	if (IS("until"))
		return describe_until(d);
	if (IS("pause"))
		return describe_pause(d);
	if (IS("resume"))
		return d->pause == d->election->pause ?
			le_diagnose_owner_runs(d, psprintf("resume_election(%s)", d->literal)) :
			"run as a superuser: SELECT leader_election.resume_all();";
	if (IS("successor"))
		return le_quote(d->vacancy.kept_for->name);
	if (IS("run"))
		return le_quote(d->lease->runs.done);
	if (IS("done_at"))
		return le_diagnose_time(d->lease->runs.done_at);
	elog(ERROR, "unrecognized field: \"%s\"", field);
}

/*
 * The brace that ends what this one begins.
 */
static const char *
find_end(const char *open)
{
	int			depth = 0;

	do
	{
		depth += *open == '{';
		depth -= *open == '}';
	} while (depth > 0 && *open++ != '\0');
	return open;
}

typedef const char *(*Value) (const Diagnosis *d, const char *field);

static char *
fill_in(const Diagnosis *d, const char *sentence, Value value)
{
	StringInfoData buf;
	const char *field;

	initStringInfo(&buf);
	while ((field = strchr(sentence, '{')) != NULL)
	{
		const char *end = find_end(field);
		char	   *name = pnstrdup(field + 1, end - field - 1);

		appendBinaryStringInfo(&buf, sentence, field - sentence);
		appendStringInfoString(&buf, value(d, name));
		sentence = end + 1;
	}
	appendStringInfoString(&buf, sentence);
	return buf.data;
}

/*
 * What stands for a field, which may have plain ones in it.
 */
static const char *
value_of(const Diagnosis *d, const char *field)
{
#define BEGINS(name)	(strncmp(field, name, strlen(name)) == 0)

	const char *rest = strchr(field, ' ');

	if (BEGINS("alter "))
		return describe_change(d, fill_in(d, rest + 1, plain_value));
	if (BEGINS("owner "))
		return le_diagnose_owner_runs(d, fill_in(d, rest + 1, plain_value));
	if (BEGINS("of a seat "))
		return d->group != NULL ? field + strlen("of a seat ") : "";
	return plain_value(d, field);
}

/*
 * A sentence of ours (not one with names of others: they may have braces) with
 * its fields filled in.
 */
char *
le_diagnose_fill(const Diagnosis *d, const char *sentence)
{
	return fill_in(d, sentence, value_of);
}
