/*-------------------------------------------------------------------------
 *
 * led.c
 *		What the background worker remembers of the leases that its last scan
 *		has found led.
 *
 * - Which session leads which elections.  An exiting session can only wake the
 *	 worker.  From this memory the worker finds in microseconds which session
 *	 that was, and which elections need another leader, however many elections
 *	 there are.
 *
 * - Which leases the worker renews.  Thanks to this memory a short lease is
 *	 renewed in time however long a scan of all leases takes, and a renewal
 *	 needs no scan.
 *
 * Invariant: this memory only says where to look.  It lacks what was granted
 * since that scan, and it names elections that were taken over or dropped
 * since.  So work that follows from it reads the rows again, under the locks
 * that a change needs, and a scan of all leases always follows.
 *
 * If a scan fails half-way, what the scan before it has found is kept.
 *
 * Whether a session is alive is not remembered here, since the worker asks
 * just that between two scans.  (le_sessions_remember() remembers it for one
 * transaction.)
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "worker/worker.h"

/* A session that leads */
typedef struct LedBySession
{
	int64		session_id;		/* hash key */
	List	   *elections;		/* their names */
} LedBySession;

/* What a scan has found */
typedef struct Led
{
	MemoryContext context;
	HTAB	   *sessions;		/* of LedBySession; NULL: no scan yet */
	List	   *renewals;		/* of Renewal */
} Led;

static Led	last;				/* by the last scan that was completed */
static Led	next;				/* by the scan that is under way */

/*
 * A scan begins.  What is remembered counts until the scan ends.
 */
void
le_led_begin_scan(void)
{
	if (next.context == NULL)
		next.context = AllocSetContextCreate(TopMemoryContext,
											 "leader_election led",
											 ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(next.context);
	next.renewals = NIL;
	next.sessions = le_hash_make("leader_election sessions", sizeof(int64),
								 sizeof(LedBySession), HASH_BLOBS,
								 next.context);
}

/*
 * The scan has found this lease led, by a live session or by a detached
 * candidate.  True if the worker is to renew it.
 */
bool
le_led_note(const Lease *lease)
{
	MemoryContext old = MemoryContextSwitchTo(next.context);
	bool		renews = lease->session_id != 0 && lease->auto_renew &&
		!lease->yielding;
	char	   *election = pstrdup(lease->election);
	bool		found;

	if (lease->session_id != 0)
	{
		LedBySession *session = hash_search(next.sessions, &lease->session_id,
											HASH_ENTER, &found);

		if (!found)
			session->elections = NIL;
		session->elections = lappend(session->elections, election);
	}
	if (renews)
	{
		Renewal    *renewal = palloc0(sizeof(Renewal));

		renewal->election = election;
		renewal->session_id = lease->session_id;
		renewal->term = lease->term;
		renewal->deadline = lease->deadline_mono;
		renewal->duration = lease->duration;
		next.renewals = lappend(next.renewals, renewal);
	}
	MemoryContextSwitchTo(old);
	return renews;
}

/*
 * The scan has seen all leases: from now on, what it has found counts.
 */
void
le_led_end_scan(void)
{
	Led			former = last;

	last = next;
	next = former;
}

/*
 * The elections of the sessions that have ended since the last scan.  They are
 * named only once, and the names last until the next scan has ended.  It needs
 * no transaction.
 */
List *
le_led_orphaned(void)
{
	List	   *elections = NIL;

	foreach_entry(LedBySession, session, last.sessions)
	{
		if (session->elections == NIL || le_session_alive(session->session_id))
			continue;
		elections = list_concat(elections, session->elections);
		session->elections = NIL;
	}
	return elections;
}

/*
 * The leases to be renewed.  They last until the next scan has ended; what the
 * caller writes into them is remembered until then.
 */
List *
le_led_renewals(void)
{
	return last.renewals;
}
