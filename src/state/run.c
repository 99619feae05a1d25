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
#include "utils/timestamp.h"

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
	Runs	   *runs = &lease->runs;
	bool		again = run->name != NULL && runs->granted != NULL &&
		strcmp(run->name, runs->granted) == 0;

	runs->present = unconstify(char *, run->name);
	runs->role = run->name != NULL ? *role : le_role_none;
	if (run->name == NULL)
		return;
	runs->granted = runs->present;
	runs->attempts = again ? runs->attempts + 1 : 1;
}

/*
 * The run of the present term of this lease, which is locked, or of the last
 * one, is done.  The caller writes the row.  False: there is nothing to write:
 * it is for no run, or that is known, or a later run is done, by an operator's
 * word.
 */
bool
le_runs_finish(Lease *lease)
{
	Runs	   *runs = &lease->runs;

	if (runs->present == NULL ||
		(runs->done != NULL && strcmp(runs->present, runs->done) <= 0))
		return false;
	runs->done = runs->present;
	runs->done_at = GetCurrentTimestamp();
	return true;
}

/*
 * Let this be the last run that is done (NULL: none is), and no later one be
 * granted yet.  The lease is locked.  A leader goes on with its run, and may
 * say that it is done; the last one of a vacant election may not any more.
 */
void
le_runs_set_done(Lease *lease, const char *done)
{
	Runs	   *runs = &lease->runs;

	if (lease->leader == NULL)
	{
		runs->present = NULL;
		runs->role = le_role_none;
	}
	runs->granted = NULL;
	runs->attempts = 0;
	runs->done = unconstify(char *, done);
	runs->done_at = done != NULL ? GetCurrentTimestamp() : 0;
	le_lease_write(lease);
}
