/*-------------------------------------------------------------------------
 *
 * diagnose_fill.c
 *		The sentences of rules/reasons.c, with their fields filled in.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/diagnose.h"

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
describe_end(const Diagnosis *d)
{
	if (!d->on_standby)
		return describe_moment(d->vacancy.barred_until);
	return le_diagnose_time(d->vacancy.obstacle == OBSTACLE_SETTLE ?
							d->lease->first_stood_at + d->election->settle :
							d->lease->not_before_at);
}

/*
 * What stands for a field of a sentence.
 */
static const char *
value_of(const Diagnosis *d, const char *field)
{
#define IS(name)	(strcmp(field, name) == 0)

	if (strncmp(field, "alter ", strlen("alter ")) == 0)
		return le_diagnose_alter(d, le_diagnose_fill(d, strchr(field, ' ') + 1));
	if (strncmp(field, "of a seat ", strlen("of a seat ")) == 0)
		return d->group != NULL ? field + strlen("of a seat ") : "";
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
	if (IS("until"))
		return describe_end(d);
	if (IS("pause"))
		return le_diagnose_pause_text(d);
	if (IS("resume"))
		return le_diagnose_pause_remedy(d);
	if (IS("successor"))
		return le_quote(d->vacancy.kept_for->name);
	if (IS("kept_until"))
		return describe_moment(d->vacancy.kept_until);
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

char *
le_diagnose_fill(const Diagnosis *d, const char *sentence)
{
	StringInfoData buf;
	const char *field;

	initStringInfo(&buf);
	while ((field = strchr(sentence, '{')) != NULL)
	{
		const char *end = find_end(field);

		appendBinaryStringInfo(&buf, sentence, field - sentence);
		appendStringInfoString(&buf,
							   value_of(d, pnstrdup(field + 1, end - field - 1)));
		sentence = end + 1;
	}
	appendStringInfoString(&buf, sentence);
	return buf.data;
}
