/*-------------------------------------------------------------------------
 *
 * run.c
 *		Runs: what is to be done once, as the lease row remembers it.
 *
 * A run has a name, which callers choose so that a later one is greater, byte
 * by byte: the time at which a period begins, say.  The lease of a term may be
 * granted for a run, and its holder says when that is done.
 *
 * Invariants:
 *
 * - What is remembered of runs changes only under the election lock, as the
 *	 holder does: a run that was found not to be done there is not done when the
 *	 lease is granted.
 *
 * - Neither the highest run that was granted nor the highest that is done
 *	 becomes lower, but by set_run_done().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "state/state.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

/* The columns of lease that are about runs, counted from the first of them */
enum
{
	RUN,
	RUN_ROLE,
	RUN_GRANTED,
	RUN_ATTEMPTS,
	RUN_DONE,
	RUN_DONE_AT
};

/*
 * What the row of a lease says of runs.  first: the first column about them;
 * role_id: that of the role's identity
 */
Runs
le_runs_make(const Row *row, int first, int role_id)
{
	Runs		runs = {.column = first,.role_id = role_id};

	runs.present = LE_GET(row, first + RUN, TextDatumGetCString, NULL);
	runs.role = le_role_get(row, first + RUN_ROLE, role_id);
	runs.granted = LE_GET(row, first + RUN_GRANTED, TextDatumGetCString, NULL);
	runs.attempts = LE_GET(row, first + RUN_ATTEMPTS, DatumGetInt32, 0);
	runs.done = LE_GET(row, first + RUN_DONE, TextDatumGetCString, NULL);
	runs.done_at = LE_GET(row, first + RUN_DONE_AT, DatumGetTimestampTz, 0);
	return runs;
}

/*
 * May the lease be granted for this run?  Not if the run is done, or a later
 * one was granted, or this one as often as the call allows.
 */
bool
le_runs_admit(const Runs *runs, const Run *run)
{
	int			later;

	if (run->name == NULL)
		return true;
	if (runs->done != NULL && strcmp(run->name, runs->done) <= 0)
		return false;
	later = runs->granted != NULL ? strcmp(run->name, runs->granted) : 1;
	return later > 0 ||
		(later == 0 && (run->attempts == 0 || runs->attempts < run->attempts));
}

/*
 * A new term of this lease, which is locked, begins, for a run (whose name is
 * NULL: for none) of that role.  A term that continues another one after a
 * failover is no new one.  The caller writes the row.
 */
void
le_runs_begin(Lease *lease, const Run *run, const Role *role)
{
	const Runs *runs = &lease->runs;
	bool		again = run->name != NULL && runs->granted != NULL &&
		strcmp(run->name, runs->granted) == 0;
	int			first = runs->column;

	LE_SET_IF(lease->row, first + RUN, run->name != NULL, LE_TEXT(run->name));
	le_role_set(lease->row, first + RUN_ROLE, runs->role_id,
				run->name != NULL ? role : NULL);
	if (run->name == NULL)
		return;
	LE_SET(lease->row, first + RUN_GRANTED, LE_TEXT(run->name));
	LE_SET(lease->row, first + RUN_ATTEMPTS,
		   Int32GetDatum(again ? runs->attempts + 1 : 1));
}

/*
 * The run of the present term of this lease, which is locked, or of the last
 * one, is done.  The caller writes the row.  False: there is nothing to write:
 * it is for no run, or that is known, or a later run is done, by an operator's
 * word.
 */
bool
le_runs_finish(Lease *lease, TimestampTz at)
{
	const Runs *runs = &lease->runs;

	if (runs->present == NULL ||
		(runs->done != NULL && strcmp(runs->present, runs->done) <= 0))
		return false;
	LE_SET(lease->row, runs->column + RUN_DONE, LE_TEXT(runs->present));
	LE_SET(lease->row, runs->column + RUN_DONE_AT, TimestampTzGetDatum(at));
	return true;
}

/*
 * Let this be the last run that is done (NULL: none is), and no later one be
 * granted yet.  The lease is locked.  A leader goes on with its run, and may
 * say that it is done; the last one of a vacant election may not any more.
 */
void
le_runs_set_done(Lease *lease, const char *done, TimestampTz at)
{
	Row		   *row = lease->row;
	int			first = lease->runs.column;

	if (lease->leader == NULL)
	{
		LE_SET_NULL(row, first + RUN);
		le_role_set(row, first + RUN_ROLE, lease->runs.role_id, NULL);
	}
	LE_SET_NULL(row, first + RUN_GRANTED);
	LE_SET_NULL(row, first + RUN_ATTEMPTS);
	LE_SET_IF(row, first + RUN_DONE, done != NULL, LE_TEXT(done));
	LE_SET_IF(row, first + RUN_DONE_AT, done != NULL, TimestampTzGetDatum(at));
	le_row_update(row);
	le_commit_durably();
}
