/*-------------------------------------------------------------------------
 *
 * callback.c
 *		The events of a transaction, for all of the extension, in their order.
 *		(Only keepalive.c has a callback beside it, which starts its timer
 *		again after any event.)
 *
 * Before a commit:
 *
 * 1. The fences look whether their terms still lead.  From here on they hold
 *	  election locks, an error still rolls back, and other libraries can add
 *	  no fence and write nothing of ours.  (If another library's callback
 *	  loads this one in the midst of a commit, PostgreSQL does not call us
 *	  before that commit.)
 *
 * 2. A session that has lost its session lock marks itself as one that lives,
 *	  while it still is in a transaction.
 *
 * 3. The commit is made durable, and bounded, as what is held by now asks for.
 *
 * At the end:
 *
 * 1. A transaction that fails gives the fences' locks back, before it does
 *	  anything else, and before other libraries clean up.
 *
 * 2. What was counted, and what this session knows of its candidacies, becomes
 *	  what the transaction has left of it; and its keepalives fit that.  (What
 *	  the transaction has SET LOCAL still counts here: the keepalives are fitted
 *	  again at the end of the next transaction.)
 *
 * 3. What belonged to the transaction is forgotten.
 *
 * 4. After a commit, a worker is started, if there is none.
 *
 * And when PostgreSQL has sent the invalidations, and then released the locks:
 *
 * 5. Others are woken.  What they read is committed, what a process remembers
 *	  of the election from before is void, and the locks that they need are
 *	  free.  A client that is told earlier may ask by another connection, which
 *	  would answer from memory once more.
 *
 * The fifth is a callback of resource owners.  There are others of these than
 * the transaction's, and PREPARE TRANSACTION releases them, too: so it has to
 * come after a COMMIT event, whose transaction has no more than one.
 *
 * Nothing here fails at the end: after a commit, that would be a PANIC.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "session/session.h"
#include "utils/resowner.h"

/* A commit is visible, and has not released its locks yet */
static bool is_committing = false;

static void
end_of_xact(XactEvent event)
{
	bool		committed = event != XACT_EVENT_ABORT;

	le_fence_end_of_xact(committed);
	le_spread_end_of_xact(committed);
	if (event != XACT_EVENT_PREPARE)
		le_session_end_of_xact(committed);
	le_cap_forget();
	le_session_lock_forget();
	le_lock_forget();
	le_store_forget();
	le_xact_holds = false;
	le_xact_is_ending = false;
	is_committing = event == XACT_EVENT_COMMIT;
	if (is_committing)
		le_commit_start_worker();
	else
		le_commit_forget();
}

static void
on_xact_event(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			le_xact_is_ending = true;
			le_fence_check();
			le_session_mark_losses();
			le_commit_before();
			break;
		case XACT_EVENT_PRE_PREPARE:
			le_xact_is_ending = true;
			le_fence_refuse_prepare();
			le_commit_before_prepare();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
			end_of_xact(event);
			break;
		default:
			break;
	}
}

static void
on_release(ResourceReleasePhase phase, bool is_commit, bool is_top, void *arg)
{
	if (!is_committing || phase != RESOURCE_RELEASE_AFTER_LOCKS)
		return;
	is_committing = false;
	le_commit_wake_others();
	le_commit_forget();
}

void
le_callback_init(void)
{
	RegisterXactCallback(on_xact_event, NULL);
	RegisterResourceReleaseCallback(on_release, NULL);
}
