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
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

#define LONGEST_REASON	1000	/* bytes */
#define LONGEST_DELAY	USECS_PER_DAY

/*
 * The name of an election or a candidate: 1 to LE_NAME_MAX bytes.  What is too
 * long is refused before it is copied.
 */
char *
le_arg_name(FunctionCallInfo fcinfo, int n, const char *what)
{
	Size		size;

	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be null", what)));
	size = toast_raw_datum_size(PG_GETARG_DATUM(n)) - VARHDRSZ;
	if (size == 0 || size > LE_NAME_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 size == 0 ? errmsg("%s must not be empty", what) :
				 errmsg("%s is too long", what),
				 errdetail("It must have 1 to %d bytes, and has %zu.",
						   LE_NAME_MAX, size)));
	return text_to_cstring(PG_GETARG_TEXT_PP(n));
}

static char *
interval_text(int64 us)
{
	Interval	interval = {.day = us / USECS_PER_DAY,.time = us % USECS_PER_DAY};

	return DatumGetCString(DirectFunctionCall1(interval_out,
											   IntervalPGetDatum(&interval)));
}

/*
 * A duration in microseconds, from shortest to longest.
 */
int64
le_arg_interval(FunctionCallInfo fcinfo, int n, const char *what,
				int64 shortest, int64 longest)
{
	const Interval *interval = PG_GETARG_INTERVAL_P(n);
	double		us = (double) interval->time +
		(interval->day + interval->month * 30.0) * USECS_PER_DAY;

	if (us < (double) shortest || us > (double) longest)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is out of range: %s", what,
						DatumGetCString(DirectFunctionCall1(interval_out,
															PG_GETARG_DATUM(n)))),
				 errdetail("It must be from %s to %s.",
						   interval_text(shortest), interval_text(longest))));
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
	*detail = psprintf("hold %s",
					   DatumGetCString(DirectFunctionCall1(interval_out,
														   PG_GETARG_DATUM(n))));
	return hold;
}

/*
 * A text that may be empty, of so many bytes at most; NULL: not given.
 */
static char *
text_arg(FunctionCallInfo fcinfo, int n, const char *what, int longest)
{
	Size		size;

	if (PG_ARGISNULL(n))
		return NULL;
	size = toast_raw_datum_size(PG_GETARG_DATUM(n)) - VARHDRSZ;
	if (size > longest)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is too long", what),
				 errdetail("It must have %d bytes at most, and has %zu.",
						   longest, size)));
	return text_to_cstring(PG_GETARG_TEXT_PP(n));
}

/*
 * Why something is paused or drained; NULL: that was not said.
 */
const char *
le_arg_reason(FunctionCallInfo fcinfo, int n)
{
	return text_arg(fcinfo, n, "reason", LONGEST_REASON);
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
	profile->sets_progress = !PG_ARGISNULL(first + 1);
	if (profile->sets_progress)
		profile->progress = PG_GETARG_INT64(first + 1);
	if (!PG_ARGISNULL(first + 2))
		profile->metadata = metadata_arg(fcinfo, first + 2);
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
	const Strategy *s;

	initStringInfo(&buf);
	for (int n = 0; (s = le_strategy_nth(n)) != NULL; n++)
		appendStringInfo(&buf, "%s\"%s\"",
						 n == 0 ? "" :
						 le_strategy_nth(n + 1) != NULL ? ", " : " and ",
						 s->name);
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

/*
 * A role, which must exist; none ("") may be allowed.
 */
static const Role *
role_arg(const char *name, bool or_none)
{
	Role	   *role = palloc0(sizeof(Role));

	role->name = "";
	if (name[0] != '\0' || !or_none)
		*role = le_role_named(pstrdup(name));
	return role;
}

/*
 * The role that is to be the owner of what the caller owns; NULL: it stays.
 * 42501 unless the caller is a member of it, or a superuser, as for the owners
 * of tables: nobody gives a role away what it does not want.
 */
const Role *
le_arg_owner(FunctionCallInfo fcinfo, int n)
{
	const Role *owner;

	if (PG_ARGISNULL(n))
		return NULL;
	owner = role_arg(NameStr(*PG_GETARG_NAME(n)), false);
	LeCheckCanSetRole(GetUserId(), owner->oid);
	return owner;
}

static int64
delay_arg(FunctionCallInfo fcinfo, int n, const char *what)
{
	return PG_ARGISNULL(n) ? -1 :
		le_arg_interval(fcinfo, n, what, 0, LONGEST_DELAY);
}

/*
 * The strategy, and from the argument first on lease_duration, quorum,
 * takeover_delay, candidate_role, channel, preempt_delay and initial_delay; an
 * argument that is NULL sets nothing.
 */
void
le_arg_configuration(FunctionCallInfo fcinfo, int strategy, int first,
					 Configuration *config)
{
	memset(config, 0, sizeof(Configuration));
	if (!PG_ARGISNULL(strategy))
		config->strategy = strategy_arg(fcinfo, strategy);
	if (!PG_ARGISNULL(first))
		config->lease_duration = le_arg_interval(fcinfo, first, "lease_duration",
												 LE_SHORTEST_LEASE_MS * INT64CONST(1000),
												 LE_LONGEST_LEASE_MS * INT64CONST(1000));
	if (!PG_ARGISNULL(first + 1))
	{
		config->quorum = PG_GETARG_INT32(first + 1);
		if (config->quorum < 1)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("quorum is out of range: %d", config->quorum),
					 errdetail("It must be 1 or more.")));
	}
	config->takeover_delay = delay_arg(fcinfo, first + 2, "takeover_delay");
	if (!PG_ARGISNULL(first + 3))
		config->candidate_role =
			role_arg(NameStr(*PG_GETARG_NAME(first + 3)), true);
	config->channel = text_arg(fcinfo, first + 4, "channel", NAMEDATALEN - 1);
	config->preempt_delay = delay_arg(fcinfo, first + 5, "preempt_delay");
	config->initial_delay = delay_arg(fcinfo, first + 6, "initial_delay");
}
