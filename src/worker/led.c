/*-------------------------------------------------------------------------
 *
 * led.c
 *		Which sessions lead which elections, as the background worker's last
 *		look has found them.
 *
 * An exiting session can only wake the worker.  With this the worker finds in
 * microseconds which session that was, and which elections need another
 * leader, however many elections there are.
 *
 * Invariant: this is a hint.  It says where to look, not what is so: what is done
 * about it reads everything anew, under the locks that a change needs.  It lacks
 * what has been granted since that look, and names elections that have been
 * taken over or dropped since.  So a look at all leases always follows.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "worker/worker.h"

/* A session, tested once in a look */
typedef struct Tested
{
	int64		session_id;		/* hash key */
	bool		alive;
	List	   *elections;		/* names of those that it leads, if it is
								 * alive */
} Tested;

/* What a look has found */
typedef struct Found
{
	MemoryContext context;
	HTAB	   *sessions;		/* of Tested; NULL: there was no look yet */
} Found;

static Found last;				/* by the last look that was completed */
static Found next;				/* by the look that is under way */

static void
make_empty(Found *found)
{
	HASHCTL		info;

	if (found->context == NULL)
		found->context = AllocSetContextCreate(TopMemoryContext,
											   "leader_election led",
											   ALLOCSET_DEFAULT_SIZES);
	found->sessions = NULL;
	MemoryContextReset(found->context);
	memset(&info, 0, sizeof(info));
	info.keysize = sizeof(int64);
	info.entrysize = sizeof(Tested);
	info.hcxt = found->context;
	found->sessions = hash_create("leader_election sessions", 64, &info,
								  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/*
 * A look begins.  The hint stays what it was until that is completed.
 */
void
le_led_begin(void)
{
	make_empty(&next);
}

static Tested *
test(int64 session_id)
{
	bool		found;
	Tested	   *session = hash_search(next.sessions, &session_id, HASH_ENTER,
									  &found);

	if (!found)
	{
		session->elections = NIL;
		session->alive = true;	/* if the test fails with an error */
		session->alive = le_session_alive(session_id);
	}
	return session;
}

/*
 * Is this session alive?  The lock of each is tested once in a look.
 */
bool
le_led_alive(int64 session_id)
{
	return test(session_id)->alive;
}

/*
 * It leads this election.
 */
void
le_led_note(int64 session_id, const char *election)
{
	Tested	   *session = test(session_id);
	MemoryContext old = MemoryContextSwitchTo(next.context);

	session->elections = lappend(session->elections, pstrdup(election));
	MemoryContextSwitchTo(old);
}

/*
 * The look has seen all leases.
 */
void
le_led_end(void)
{
	Found		former = last;

	last = next;
	next = former;
}

/*
 * The elections of the sessions that have ended since the last look, which are
 * not named again.  The names last until the next look has ended.  It needs no
 * transaction.
 */
List *
le_led_orphaned(void)
{
	List	   *elections = NIL;
	HASH_SEQ_STATUS scan;
	Tested	   *session;

	if (last.sessions == NULL)
		return NIL;
	hash_seq_init(&scan, last.sessions);
	while ((session = hash_seq_search(&scan)) != NULL)
	{
		if (session->elections == NIL || le_session_alive(session->session_id))
			continue;
		elections = list_concat(elections, session->elections);
		session->elections = NIL;
	}
	return elections;
}
