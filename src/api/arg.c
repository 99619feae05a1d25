/*-------------------------------------------------------------------------
 *
 * arg.c
 *		What calls are given: names, durations, profiles, settings.
 *
 * What is too long is refused before it is copied.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "api/api.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

/*
 * A text of so many bytes, which is refused before it is copied if it is too
 * long.  NULL: it may be empty, and is not given.
 */
char *
le_arg_text(FunctionCallInfo fcinfo, int n, const char *what, int least,
			int most)
{
	Size		size;

	if (PG_ARGISNULL(n) && least == 0)
		return NULL;
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be null", what)));
	size = toast_raw_datum_size(PG_GETARG_DATUM(n)) - VARHDRSZ;
	if (size < least || size > most)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 size < least ? errmsg("%s must not be empty", what) :
				 errmsg("%s is too long", what),
				 least == 0 ?
				 errdetail("It must have %d bytes at most, and has %zu.",
						   most, size) :
				 errdetail("It must have %d to %d bytes, and has %zu.",
						   least, most, size)));
	return text_to_cstring(PG_GETARG_TEXT_PP(n));
}

/*
 * The name of an election or a candidate.
 */
char *
le_arg_name(FunctionCallInfo fcinfo, int n, const char *what)
{
	return le_arg_text(fcinfo, n, what, 1, LE_NAME_MAX);
}

static char *
interval_text(Interval *interval)
{
	return DatumGetCString(DirectFunctionCall1(interval_out,
											   IntervalPGetDatum(interval)));
}

static char *
duration_text(int64 us)
{
	Interval	interval = {.day = us / USECS_PER_DAY,
	.time = us % USECS_PER_DAY};

	return interval_text(&interval);
}

/*
 * A duration in microseconds, from shortest to longest.
 */
int64
le_arg_interval(FunctionCallInfo fcinfo, int n, const char *what,
				int64 shortest, int64 longest)
{
	Interval   *interval = PG_GETARG_INTERVAL_P(n);
	double		us = (double) interval->time +
		(interval->day + interval->month * 30.0) * USECS_PER_DAY;

	if (us < (double) shortest || us > (double) longest)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is out of range: %s", what, interval_text(interval)),
				 errdetail("It must be from %s to %s.",
						   duration_text(shortest), duration_text(longest))));
	return (int64) us;
}

/*
 * How long nobody is to be elected after a leadership began, and how the
 * history says so; NULL: 0.
 */
int64
le_arg_hold(FunctionCallInfo fcinfo, int n, const char **detail)
{
	int64		hold;

	if (PG_ARGISNULL(n))
		return 0;
	hold = le_arg_interval(fcinfo, n, "hold", 0, LE_LONGEST_HOLD);
	*detail = psprintf("hold %s", interval_text(PG_GETARG_INTERVAL_P(n)));
	return hold;
}

/*
 * A candidate's metadata is read with its row, and copied to the lease under
 * the election lock.  What is too long is refused before it is copied.
 */
static Datum
metadata_arg(FunctionCallInfo fcinfo, int n)
{
	Size		size = toast_raw_datum_size(PG_GETARG_DATUM(n));

	if (size > LE_METADATA_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("metadata is too long"),
				 errdetail("It must have %d bytes at most as jsonb, and has %zu.",
						   LE_METADATA_MAX, size),
				 errhint("Keep what is long elsewhere, and say in the metadata where. pg_column_size() tells the size.")));
	return PointerGetDatum(PG_DETOAST_DATUM_COPY(PG_GETARG_DATUM(n)));
}

/*
 * What a candidate says of itself at any time: progress and metadata, from that
 * argument on.
 */
void
le_arg_said(FunctionCallInfo fcinfo, int first, Profile *profile)
{
	profile->sets_progress = !PG_ARGISNULL(first);
	if (profile->sets_progress)
		profile->progress = PG_GETARG_INT64(first);
	if (!PG_ARGISNULL(first + 1))
		profile->metadata = metadata_arg(fcinfo, first + 1);
}

/*
 * rank, progress, metadata and perhaps auto_renew, from that argument on.
 * They may be needed after a commit: the current memory context must last.
 */
void
le_arg_profile(FunctionCallInfo fcinfo, int first, bool with_auto_renew,
			   Profile *profile)
{
	memset(profile, 0, sizeof(Profile));
	profile->sets_rank = !PG_ARGISNULL(first);
	if (profile->sets_rank)
		profile->rank = PG_GETARG_INT32(first);
	le_arg_said(fcinfo, first + 1, profile);
	profile->sets_auto_renew = with_auto_renew && !PG_ARGISNULL(first + 3);
	if (profile->sets_auto_renew)
		profile->auto_renew = PG_GETARG_BOOL(first + 3);
}

/*
 * The names of all strategies, as a hint tells them.
 */
static char *
strategy_names(void)
{
	StringInfoData buf;

	initStringInfo(&buf);
	for (const Strategy *s = le_strategies; s->name != NULL; s++)
		appendStringInfo(&buf, "%s\"%s\"",
						 s == le_strategies ? "" :
						 s[1].name != NULL ? ", " : " and ", s->name);
	return buf.data;
}

static const char *
strategy_arg(FunctionCallInfo fcinfo, int n)
{
	char	   *name = le_arg_name(fcinfo, n, "strategy");
	const Strategy *strategy = le_strategy_find(name);

	if (strategy == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unrecognized election strategy: \"%s\"", name),
				 errhint("Valid strategies are %s.", strategy_names())));
	return strategy->name;
}

static int
integer_arg(FunctionCallInfo fcinfo, int n, const Field *setting)
{
	int			number = PG_GETARG_INT32(n);

	if (number < setting->least || number > setting->most)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is out of range: %d", setting->name, number),
				 setting->most == PG_INT32_MAX ?
				 errdetail("It must be %d or more.", (int) setting->least) :
				 errdetail("It must be %d to %d.", (int) setting->least,
						   (int) setting->most)));
	return number;
}

/*
 * Set a member to what argument n says.  checked: see le_arg_settings().
 */
static void
read_setting(FunctionCallInfo fcinfo, int n, const Field *setting,
			 const void *checked, void *member)
{
	Role	   *role = member;
	char	   *text;

	switch (setting->type)
	{
		case FIELD_STRATEGY:
			*(const char **) member = strategy_arg(fcinfo, n);
			break;
		case FIELD_TEXT:
			text = le_arg_text(fcinfo, n, setting->name, setting->least,
							   setting->most);
			*(char **) member = text[0] != '\0' ? text : NULL;
			break;
		case FIELD_ROLE:
			text = pstrdup(NameStr(*PG_GETARG_NAME(n)));
			if (checked != NULL)
				*role = *(const Role *) checked;
			else if (text[0] == '\0' && setting->least == 0)
				*role = le_role_none;
			else
				*role = (Role) {text, get_role_oid(text, false)};
			break;
		case FIELD_INTEGER:
			*(int *) member = integer_arg(fcinfo, n, setting);
			break;
		case FIELD_INTERVAL:
			*(int64 *) member = le_arg_interval(fcinfo, n, setting->name,
												setting->least, setting->most);
			break;
		default:
			elog(ERROR, "setting \"%s\" has a type of no setting",
				 setting->name);
	}
}

/*
 * Set the fields of an Election, or of an ElectionGroup, whose settings a call
 * gives; an argument that is NULL sets nothing.  of_group: the call is about a
 * group.  Returns whether any is given.
 *
 * A call reads its arguments twice: before it locks anything, so that errors
 * come first, and then into the row that it has locked.  The second time,
 * checked is what the first time has read, and roles are copied from there.
 * Were a name looked up again, a rename in between could make it mean another
 * role, and the look-up could wait while we hold the election lock.
 */
bool
le_arg_settings(FunctionCallInfo fcinfo, const Field *settings, bool of_group,
				const void *checked, void *to)
{
	bool		given = false;

	for (int i = 0; settings[i].name != NULL; i++)
	{
		int			n = of_group ? settings[i].group_arg : settings[i].arg;

		if (n >= PG_NARGS() || PG_ARGISNULL(n))
			continue;
		read_setting(fcinfo, n, &settings[i],
					 checked == NULL ? NULL :
					 (const char *) checked + settings[i].offset,
					 (char *) to + settings[i].offset);
		given = true;
	}
	return given;
}
