/*-------------------------------------------------------------------------
 *
 * latch_at_commit.c
 *		For the tests: was a process woken while a transaction committed, and
 *		when?  That process is stopped, so that its latch stays set.
 *
 * Callbacks are called in the order in which libraries were loaded, the last
 * one first: this one is to be loaded before that whose wake-ups are looked for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/resowner.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(latch_at_commit);
PG_FUNCTION_INFO_V1(latch_found);

extern PGDLLEXPORT void _PG_init(void);

static int	watched = 0;		/* process ID; 0: none */
static bool has_committed = false;
static char found[64] = "";

static bool
is_set(int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);

	return proc != NULL && proc->procLatch.is_set;
}

static void
note(const char *when)
{
	strlcat(found, when, sizeof(found));
	strlcat(found, is_set(watched) ? "woken " : "asleep ", sizeof(found));
}

static void
on_xact_event(XactEvent event, void *arg)
{
	if (watched == 0 || event == XACT_EVENT_PRE_COMMIT)
		return;
	note("visible: ");
	has_committed = event == XACT_EVENT_COMMIT;
}

static void
on_release(ResourceReleasePhase phase, bool is_commit, bool is_top, void *arg)
{
	if (!has_committed || phase != RESOURCE_RELEASE_AFTER_LOCKS)
		return;
	note("locks free: ");
	has_committed = false;
	watched = 0;
}

/* Watch that process (its latch is not set), in the running transaction. */
Datum
latch_at_commit(PG_FUNCTION_ARGS)
{
	watched = PG_GETARG_INT32(0);
	found[0] = '\0';
	PG_RETURN_BOOL(!is_set(watched));
}

Datum
latch_found(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(found));
}

void
_PG_init(void)
{
	RegisterXactCallback(on_xact_event, NULL);
	RegisterResourceReleaseCallback(on_release, NULL);
}
