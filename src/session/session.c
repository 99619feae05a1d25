/*-------------------------------------------------------------------------
 *
 * session.c
 *		This session's candidacies, and its cached view of their lease rows.
 *
 * Invariants:
 *
 * - The leader's view ends first.  This session believes that it leads only
 *	 while it holds the candidacy's session lock and the monotonic clock is
 *	 before a deadline that it read from a committed row.  Safety rests on the
 *	 clock and on that lock alone; invalidations only make the view fresher.
 *
 * - A candidacy here is as committed as its row: what a transaction made, it
 *	 takes away again if it aborts, and what it withdrew, it puts back.
 *
 * - A session whose locks are released behind its back, by a connection pool
 *	 that resets it, tells its client so (LE006): else the clients of the pool
 *	 would stand in vain, or each believe in turn that it leads, without an
 *	 error.
 *
 * - When the session ends, nothing is done but to wake the worker, after the
 *	 server has released the locks: waits in an exiting backend cannot be
 *	 interrupted.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/ilist.h"
#include "miscadmin.h"
#include "session/session.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"

/* The view is read again when a third of the lease is left, ... */
#define LAST_PART(duration) ((duration) / 3)

/* ... and then after a thirtieth of it, until there is a new deadline. */
#define READ_PAUSE(duration) ((duration) / 30)

/*
 * A candidacy that ended because its session lock was released behind our
 * back.  The client that made it may not know that yet.
 */
typedef struct Loss
{
	dlist_node	node;
	char		election[LE_NAME_MAX + 1];
	char		candidate[LE_NAME_MAX + 1];
	Oid			lease_oid;		/* which extension it belonged to */
	int64		forget_at;		/* monotonic */
} Loss;

/* A loss is told for as long as a lease lasts, and for 10 s at least. */
#define SHORTEST_MEMORY		(10 * USECS_PER_SEC)

/*
 * No more losses are kept: a pool may lend a session to many clients in that
 * time.
 */
#define MAX_LOSSES			10000

static HTAB *candidacies = NULL;

/* The losses that have not been told yet, the latest first */
static dlist_head losses = DLIST_STATIC_INIT(losses);
static int	nlosses = 0;

/*
 * Until when other processes are to see that this session was reset; 0: never
 */
static int64 marked_until = 0;

/* The candidacy that was looked up last; NULL: none */
static Candidacy *recent = NULL;

/* The session lock that join() shares between its candidacies; 0: none */
static int64 shared_session_id = 0;

static void
on_session_exit(int code, Datum arg)
{
	le_wake_workers(MyDatabaseId);
}

/*
 * Once per backend, with its first candidacy.
 */
static void
init_candidacies(void)
{
	if (candidacies != NULL)
		return;
	le_keepalive_init();
	candidacies = le_hash_make("leader_election candidacies", LE_NAME_MAX + 1,
							   sizeof(Candidacy), HASH_STRINGS,
							   TopMemoryContext);
	on_shmem_exit(on_session_exit, (Datum) 0);
}

/*
 * This session's candidacy in an election; NULL if there is none.
 */
Candidacy *
le_session_find(const char *election, Size length)
{
	char		key[LE_NAME_MAX + 1];

	if (candidacies == NULL || length > LE_NAME_MAX)
		return NULL;
	if (recent != NULL && strncmp(recent->election, election, length) == 0 &&
		recent->election[length] == '\0')
		return recent;
	memcpy(key, election, length);
	key[length] = '\0';
	recent = hash_search(candidacies, key, HASH_FIND, NULL);
	return recent;
}

/*
 * The names of the elections in which this session stands.
 */
List *
le_session_elections(void)
{
	List	   *all = NIL;

	foreach_entry(const Candidacy, c, candidacies)
		all = lappend(all, pstrdup(c->election));
	return all;
}

/*
 * Is the candidacy's session lock held?  This process's entry of the lock
 * tells that in a third of the time of a look-up.  The server never frees such
 * an entry: once the lock is released it has no owners, until it is that of
 * another lock.
 */
bool
le_session_holds_lock(const Candidacy *c)
{
	const LOCALLOCK *entry = c->lock_entry;

	return entry->numLockOwners > 0 && entry->nLocks > 0 &&
		entry->tag.mode == ExclusiveLock &&
		memcmp(&entry->tag.lock, &c->lock, sizeof(LOCKTAG)) == 0;
}

/*
 * The session lock of candidacies made by join(), held from now on.
 */
int64
le_session_id(void)
{
	LOCKTAG		tag = le_session_lock_tag(shared_session_id);

	if (shared_session_id == 0 || !LeLockHeldByMe(&tag, ExclusiveLock))
		shared_session_id = le_session_lock_new();
	return shared_session_id;
}

/*
 * Add a candidacy, which ends with the running transaction if that aborts, and
 * with the campaign if campaigning.  Its session lock is held already.
 */
Candidacy *
le_session_add(const char *election,
			   const char *candidate, const Role *role, int64 session_id,
			   bool campaigning)
{
	LOCKTAG		lock = le_session_lock_tag(session_id);
	const LOCALLOCK *lock_entry = LeLockEntry(&lock, ExclusiveLock);
	LOCKTAG		election_lock = le_lock_mutex_tag(LOCK_ELECTION, election);
	Candidacy  *c;
	bool		found;

	init_candidacies();

	/* What may fail was done before: a candidacy is never there in part. */
	c = hash_search(candidacies, election, HASH_ENTER, &found);
	Assert(!found);
	memset((char *) c + sizeof(c->election), 0,
		   sizeof(Candidacy) - sizeof(c->election));
	strlcpy(c->candidate, candidate, sizeof(c->candidate));
	c->role = role->oid;
	namestrcpy(&c->role_name, role->name);
	c->session_id = session_id;
	c->lock = lock;
	c->lock_entry = lock_entry;
	c->election_lock = election_lock;
	c->lease_oid = le_store.lease_oid;
	c->made = true;
	c->campaigning = campaigning;
	return c;
}

/*
 * Forget a candidacy at once, and release its session lock if no other
 * candidacy needs that.  Touches no table and cannot fail.
 */
void
le_session_drop(Candidacy *candidacy)
{
	int64		session_id = candidacy->session_id;
	bool		needed = false;

	recent = NULL;
	hash_search(candidacies, candidacy->election, HASH_REMOVE, NULL);
	foreach_entry(const Candidacy, c, candidacies)
		needed |= c->session_id == session_id;
	if (!needed)
		le_session_lock_release(session_id);
}

static void
forget_loss(Loss *loss)
{
	dlist_delete(&loss->node);
	nlosses--;
	pfree(loss);
}

/*
 * Remember that this candidacy was lost, so that the client can be told.  It
 * cannot fail: a loss for which there is no memory is not told.
 */
static void
note_loss(const Candidacy *c)
{
	int64		forget_at = le_clock() + Max(c->lease_duration, SHORTEST_MEMORY);
	Loss	   *loss;

	marked_until = Max(marked_until, forget_at);
	if (nlosses >= MAX_LOSSES)
		forget_loss(dlist_tail_element(Loss, node, &losses));
	loss = MemoryContextAllocExtended(TopMemoryContext, sizeof(Loss),
									  MCXT_ALLOC_NO_OOM);
	if (loss == NULL)
		return;
	strlcpy(loss->election, c->election, sizeof(loss->election));
	strlcpy(loss->candidate, c->candidate, sizeof(loss->candidate));
	loss->lease_oid = c->lease_oid;
	loss->forget_at = forget_at;
	dlist_push_head(&losses, &loss->node);
	nlosses++;
}

/*
 * Forget what need not be told any more.
 */
static void
forget_old_losses(void)
{
	int64		now = le_clock();
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &losses)
	{
		Loss	   *loss = dlist_container(Loss, node, iter.cur);

		if (now >= loss->forget_at)
			forget_loss(loss);
	}
}

/*
 * Has this session lost its candidacy in that election under that name (NULL:
 * under any)?  The caller tells its client, which is not told again.
 */
bool
le_session_take_loss(Oid lease_oid, const char *election,
					 const char *candidate)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &losses)
	{
		Loss	   *loss = dlist_container(Loss, node, iter.cur);

		if (loss->lease_oid == lease_oid &&
			strcmp(loss->election, election) == 0 &&
			(candidate == NULL || strcmp(loss->candidate, candidate) == 0))
		{
			bool		told = le_clock() < loss->forget_at;

			forget_loss(loss);
			return told;
		}
	}
	return false;
}

/*
 * A call finds that the candidacy's session lock was released behind our back,
 * maybe by this very transaction.
 */
void
le_session_lose(Candidacy *candidacy)
{
	le_session_lock_mark_lost();
	note_loss(candidacy);
	le_session_drop(candidacy);
	le_wake_workers(MyDatabaseId);
}

/*
 * The candidacy ends when this transaction commits, and does not lead from
 * now on.
 */
void
le_session_withdraw(Candidacy *candidacy)
{
	candidacy->withdrawn = true;
	candidacy->stepped_down = true;
}

/*
 * The candidacy stands again, maybe under another name, in the transaction in
 * which it was withdrawn.
 */
void
le_session_return(Candidacy *candidacy, const char *candidate)
{
	if (candidacy->former[0] == '\0')
		strlcpy(candidacy->former, candidacy->candidate,
				sizeof(candidacy->former));
	strlcpy(candidacy->candidate, candidate, sizeof(candidacy->candidate));
	candidacy->withdrawn = false;
}

/*
 * Have the server notice a dead client in time for the shortest lease for which
 * this session stands.  A campaign may have to wait before it can read the
 * election's lease_duration: if it is the only one, assume the default.
 */
static void
fit_keepalives(void)
{
	int64		shortest = 0;
	bool		stands = false;

	foreach_entry(const Candidacy, c, candidacies)
	{
		stands = true;
		if (c->lease_duration > 0 &&
			(shortest == 0 || c->lease_duration < shortest))
			shortest = c->lease_duration;
	}
	if (stands && shortest == 0)
		shortest = le_lease_duration_ms * INT64CONST(1000);
	le_keepalive_fit(shortest);
}

/*
 * The lease of this candidacy lasts for so long.  The client counts on it as soon
 * as it is told: the session must not end before.
 */
void
le_session_set_lease(Candidacy *c, int64 duration)
{
	if (c->lease_duration == duration)
		return;
	c->lease_duration = duration;
	fit_keepalives();
}

/*
 * Make the view that of this lease row, which is committed.  changes is
 * le_leadership_generation from before it was read.
 */
static void
set_view(Candidacy *c, const Lease *lease, uint64 changes)
{
	int64		now = le_clock();	/* not before any renewal in the row */

	c->term = 0;
	c->changes = changes;
	if (lease != NULL && lease->leader != NULL && !lease->incomplete &&
		lease->session_id == c->session_id &&
		le_lease_is_own(lease) &&
		lease->deadline_mono - now <= lease->duration)
	{
		c->term = lease->term;
		le_session_set_lease(c, lease->duration);
		c->deadline = lease->deadline_mono;
		c->next_read = Max(now + READ_PAUSE(lease->duration),
						   c->deadline - LAST_PART(lease->duration));
		c->next_read = Min(c->next_read, c->deadline);
	}
}

/*
 * Read the lease row anew.  False, with the view as it was, if it cannot be
 * read without a wait.
 */
static bool
read_view(Candidacy *c)
{
	uint64		changes = le_leadership_generation;
	Lease	   *lease;
	MemoryContext context;
	MemoryContext old;
	bool		readable;

	context = AllocSetContextCreate(CurrentMemoryContext,
									"leader_election view",
									ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(context);
	readable = le_lease_read_committed(c->lease_oid, c->election, &lease);
	if (readable)
		set_view(c, lease, changes);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return readable;
}

/*
 * The term in which this session leads now; 0 if it does not, or if that
 * cannot be told at once.  Never writes, never waits.  fresh: with the
 * deadline as it is now, if that can be read at once.
 */
static int64
get_term(Candidacy *c, bool fresh)
{
	int64		now;

	if (c->stepped_down)
		return 0;
	AcceptInvalidationMessages();
	if ((c->changes == le_leadership_generation && c->term == 0) ||
		!le_session_holds_lock(c))
		return 0;
	now = le_clock();
	if (fresh || c->changes != le_leadership_generation || now >= c->next_read)
	{
		bool		stale = c->changes != le_leadership_generation;

		if (!read_view(c) && stale)
			return 0;
		now = le_clock();
	}
	return now < c->deadline ? c->term : 0;
}

int64
le_session_term(Candidacy *candidacy)
{
	return get_term(candidacy, false);
}

/*
 * The same, as this lease row says, which the caller has just read in a
 * transaction that has written nothing, so that the row is committed.  changes
 * is le_leadership_generation from before it was read.
 */
int64
le_session_term_of(Candidacy *candidacy, const Lease *lease, uint64 changes)
{
	if (candidacy->stepped_down || lease->own_write ||
		!le_session_holds_lock(candidacy))
		return 0;
	set_view(candidacy, lease, changes);
	return le_clock() < candidacy->deadline ? candidacy->term : 0;
}

/*
 * For how many microseconds this session goes on leading if its lease is
 * renewed no more; -1 if it does not lead, or if that cannot be told at once.
 */
int64
le_session_remaining(Candidacy *candidacy)
{
	int64		remaining = get_term(candidacy, true) != 0 ?
		candidacy->deadline - le_clock() : -1;

	return remaining > 0 ? remaining : -1;
}

/*
 * If this session has lost a session lock, mark it as one that lives: once it
 * is in no transaction, other processes could not tell otherwise
 * (le_session_lock_was_lost()).  That takes a lock, for which this is the last
 * moment before the commit.  One mark serves all candidacies, for as long as
 * losses are told.
 */
void
le_session_mark_losses(void)
{
	bool		lost = false;

	foreach_entry(const Candidacy, c, candidacies)
		lost |= !c->withdrawn && !le_session_holds_lock(c);
	if (lost)
		forget_old_losses();
	if (lost || (marked_until != 0 && le_clock() < marked_until))
		le_session_lock_mark_lost();
	else if (marked_until != 0)
	{
		le_session_lock_unmark_lost();
		marked_until = 0;
		forget_old_losses();
	}
}

/*
 * The end of a transaction.  The candidacies become what it has left of them;
 * those whose session lock was released behind our back (DISCARD ALL) are
 * lost.  All are over once this session has seen that the extension speaks
 * another protocol than we do: while their session locks were held, a worker
 * that speaks it would take them for alive, elect them and renew their leases,
 * and they could not lead.  Nothing here may fail.
 */
void
le_session_end_of_xact(bool committed)
{
	bool		other_version = le_store_stays_other_version(committed);
	bool		shared_needed = false;
	bool		wake = false;

	foreach_entry(Candidacy, c, candidacies)
	{
		bool		over = other_version ||
			(committed ? c->withdrawn : (c->made || c->campaigning));

		if (!committed && c->former[0] != '\0')
			strlcpy(c->candidate, c->former, sizeof(c->candidate));
		if (!over && !le_session_holds_lock(c))
		{
			note_loss(c);
			over = true;
		}
		if (over)
		{
			wake = true;
			recent = NULL;
			if (c->session_id != shared_session_id)
				le_session_lock_release(c->session_id);
			hash_search(candidacies, c->election, HASH_REMOVE, NULL);
			continue;
		}
		shared_needed |= c->session_id == shared_session_id;
		c->former[0] = '\0';
		c->made = false;
		c->withdrawn = false;
		if (c->stepped_down)
			c->changes = 0;
		c->stepped_down = false;
	}
	fit_keepalives();
	if (shared_session_id != 0 && !shared_needed)
	{
		le_session_lock_release(shared_session_id);
		shared_session_id = 0;
	}
	if (wake && committed)
		le_commit_wakes_worker();
	else if (wake)
		le_wake_workers(MyDatabaseId);
}
