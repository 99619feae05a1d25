/*-------------------------------------------------------------------------
 *
 * diagnose_say.c
 *		What the finders of diagnose() share: to say something, and how moments,
 *		durations, names and remedies are said.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/diagnose.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

/*
 * Add a finding, which was made for this call.
 */
void
le_diagnose_say(Diagnosis *d, Severity severity, const char *finding,
				const char *remedy)
{
	Finding    *f = palloc(sizeof(Finding));

	f->severity = severity;
	f->place = list_length(d->findings);
	f->finding = finding;
	f->remedy = remedy;
	d->findings = lappend(d->findings, f);
}

/*
 * A moment, as the caller's settings show it, without fractions of a second.
 */
char *
le_diagnose_time(TimestampTz at)
{
	at -= at % USECS_PER_SEC;
	return DatumGetCString(DirectFunctionCall1(timestamptz_out,
											   TimestampTzGetDatum(at)));
}

/*
 * A duration, in the unit that people would use.
 */
char *
le_diagnose_duration(int64 us)
{
	int64		s = us / USECS_PER_SEC;

	if (us < 10 * USECS_PER_SEC)
		return psprintf("%.1f s", (double) us / USECS_PER_SEC);
	if (s < 2 * SECS_PER_MINUTE)
		return psprintf(INT64_FORMAT " s", s);
	if (s < 2 * SECS_PER_HOUR)
		return psprintf(INT64_FORMAT " min", s / SECS_PER_MINUTE);
	if (s < 2 * SECS_PER_DAY)
		return psprintf(INT64_FORMAT " h", s / SECS_PER_HOUR);
	return psprintf(INT64_FORMAT " days", s / SECS_PER_DAY);
}

/*
 * How long ago that was.
 */
char *
le_diagnose_since(TimestampTz at)
{
	return le_diagnose_duration(Max(GetCurrentTimestamp() - at, 0));
}

/*
 * Some names, in quotes; not all, if there are many.
 */
char *
le_diagnose_names(List *names)
{
	StringInfoData buf;

	initStringInfo(&buf);
	foreach_ptr(const char, name, names)
	{
		int			n = foreach_current_index(name);

		if (n == 10 && list_length(names) > 11)
		{
			appendStringInfo(&buf, " and %d more", list_length(names) - n);
			break;
		}
		appendStringInfo(&buf, "%s%s", n > 0 ? ", " : "", le_quote(name));
	}
	return buf.data;
}

/*
 * How the owner does something about the election or the group: a call of a
 * function of ours, as the end of a sentence.
 */
char *
le_diagnose_owner_runs(const Diagnosis *d, const char *call)
{
	const Role *owner = d->election != NULL ?
		&d->election->owner : &d->group->owner;

	if (!le_role_exists(owner))
		return psprintf("run as a superuser: SELECT leader_election.%s;", call);
	return psprintf("run as role %s or as a superuser: SELECT leader_election.%s;",
					le_quote(le_role_name(owner)), call);
}
