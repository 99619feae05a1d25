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
 * - When the session ends, nothing is done but to wake the worker, after the
 *	 server has released the locks: waits in an exiting backend cannot be
 *	 interrupted.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "leader_election.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"

/* The view is read again when this part of the lease is left ... */
#define LAST_PART(duration) ((duration) / 3)

/* ... and then no sooner than after this part of it. */
#define READ_PAUSE(duration) ((duration) / 30)

static HTAB *candidacies = NULL;

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
	HASHCTL		info;

	if (candidacies != NULL)
		return;
	memset(&info, 0, sizeof(info));
	info.keysize = LE_NAME_MAX + 1;
	info.entrysize = sizeof(Candidacy);
	info.hcxt = TopMemoryContext;
	on_shmem_exit(on_session_exit, (Datum) 0);
	candidacies = hash_create("leader_election candidacies", 8, &info,
							  HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
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
 * All of them, as a list of pointers.
 */
List *
le_session_candidacies(void)
{
	List	   *all = NIL;
	HASH_SEQ_STATUS scan;
	Candidacy  *c;

	if (candidacies == NULL)
		return NIL;
	hash_seq_init(&scan, candidacies);
	while ((c = hash_seq_search(&scan)) != NULL)
		all = lappend(all, c);
	return all;
}

/*
 * Is its session lock held?  This process's entry of the lock tells that in a
 * third of the time of a look-up.  The server never frees such an entry: once
 * the lock is released it has no owners, until it is that of another lock.
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
	LOCKTAG		tag = le_session_tag(shared_session_id);

	if (shared_session_id == 0 || !LeLockHeldByMe(&tag, ExclusiveLock))
		shared_session_id = le_session_lock_new();
	return shared_session_id;
}

/*
 * Add a candidacy, which ends with the running transaction if that aborts,
 * and with the campaign if it is one's.  Its session lock is held already.
 */
Candidacy *
le_session_add(const Store *store, const char *election,
			   const char *candidate, const char *role, int64 session_id,
			   bool campaigning)
{
	Candidacy  *c;
	bool		found;

	init_candidacies();
	c = hash_search(candidacies, election, HASH_ENTER, &found);
	Assert(!found);
	memset((char *) c + sizeof(c->election), 0,
		   sizeof(Candidacy) - sizeof(c->election));
	strlcpy(c->candidate, candidate, sizeof(c->candidate));
	namestrcpy(&c->role, role);
	c->session_id = session_id;
	c->lock = le_session_tag(session_id);
	c->lock_entry = LeLockEntry(&c->lock, ExclusiveLock);
	c->lease_oid = store->lease;
	c->made = true;
	c->campaigning = campaigning;
	return c;
}

/*
 * Forget a candidacy at once, and release its session lock if that was the
 * last to need it.  Touches no table and cannot fail.
 */
void
le_session_drop(Candidacy *candidacy)
{
	int64		session_id = candidacy->session_id;
	HASH_SEQ_STATUS scan;
	Candidacy  *c;
	bool		needed = false;

	recent = NULL;
	hash_search(candidacies, candidacy->election, HASH_REMOVE, NULL);
	hash_seq_init(&scan, candidacies);
	while ((c = hash_seq_search(&scan)) != NULL)
		needed |= c->session_id == session_id;
	if (!needed)
		le_session_lock_release(session_id);
	if (hash_get_num_entries(candidacies) == 0)
		le_keepalive_restore();
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
 * It stands again after all, maybe under another name, in the transaction in
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
 * May the current role touch this candidacy?  Only the one that made it.
 */
bool
le_session_owns(const Candidacy *candidacy)
{
	return strcmp(NameStr(candidacy->role),
				  GetUserNameFromId(GetUserId(), false)) == 0;
}

/*
 * Read the lease row anew.  False, with the view as it was, if it cannot be
 * read without a wait.
 */
static bool
read_view(Candidacy *c)
{
	uint64		changes = le_changes;
	int64		now;
	Lease	   *lease;
	char	   *incarnation;
	MemoryContext context;
	MemoryContext old;
	bool		readable;

	context = AllocSetContextCreate(CurrentMemoryContext,
									"leader_election view",
									ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(context);
	incarnation = le_incarnation_name(c->lease_oid);
	readable = le_lease_read_committed(c->lease_oid, c->election, &lease);

	/* Not before: a renewal may have been granted since. */
	now = le_clock();
	if (readable)
	{
		c->term = 0;
		c->changes = changes;
	}
	if (readable && lease != NULL && lease->leader != NULL &&
		lease->session_id == c->session_id &&
		strcmp(lease->incarnation, incarnation) == 0 &&
		lease->deadline_mono - now <= lease->duration)
	{
		c->term = lease->term;
		c->deadline = lease->deadline_mono;
		c->next_read = Max(now + READ_PAUSE(lease->duration),
						   c->deadline - LAST_PART(lease->duration));
		c->next_read = Min(c->next_read, c->deadline);
	}

	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return readable;
}

/*
 * The term in which this session leads now; 0 if it does not, or if that
 * cannot be told at once.  Never writes, never waits.  fresh: with the deadline
 * as it is now, if that can be read at once.
 */
static int64
get_term(Candidacy *c, bool fresh)
{
	int64		now;

	if (c->stepped_down)
		return 0;
	AcceptInvalidationMessages();
	if ((c->changes == le_changes && c->term == 0) ||
		!le_session_holds_lock(c))
		return 0;
	now = le_clock();
	if (fresh || c->changes != le_changes || now >= c->next_read)
	{
		bool		stale = c->changes != le_changes;

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
 * For how long this session goes on leading if nothing is renewed any more; -1
 * if it does not lead, or if that cannot be told at once.
 */
int64
le_session_remaining(Candidacy *candidacy)
{
	int64		remaining = get_term(candidacy, true) != 0 ?
		candidacy->deadline - le_clock() : -1;

	return remaining > 0 ? remaining : -1;
}

/*
 * The end of a transaction.  The candidacies become what it has left of them;
 * those whose session lock was dropped behind our back (DISCARD ALL) are over.
 */
static void
end_of_xact(bool committed)
{
	HASH_SEQ_STATUS scan;
	Candidacy  *c;
	bool		shared_needed = false;
	bool		wake = false;

	if (candidacies != NULL && hash_get_num_entries(candidacies) > 0)
	{
		hash_seq_init(&scan, candidacies);
		while ((c = hash_seq_search(&scan)) != NULL)
		{
			bool		over = committed ? c->withdrawn :
				(c->made || c->campaigning);

			if (!over && !le_session_holds_lock(c))
				over = true;
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
			if (!committed && c->former[0] != '\0')
				strlcpy(c->candidate, c->former, sizeof(c->candidate));
			c->former[0] = '\0';
			c->made = false;
			c->withdrawn = false;
			if (c->stepped_down)
				c->changes = 0;
			c->stepped_down = false;
		}
		if (hash_get_num_entries(candidacies) == 0)
			le_keepalive_restore();
	}
	if (shared_session_id != 0 && !shared_needed)
	{
		le_session_lock_release(shared_session_id);
		shared_session_id = 0;
	}
	if (wake)
		le_wake_workers(MyDatabaseId);
}

static void
on_xact_event(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			le_notify_pre_commit();
			break;
		case XACT_EVENT_PRE_PREPARE:
			le_notify_pre_prepare();
			break;
		case XACT_EVENT_COMMIT:
			end_of_xact(true);
			le_notify_commit();
			le_lock_end_of_xact();
			break;
		case XACT_EVENT_ABORT:
			end_of_xact(false);
			le_notify_abort();
			le_lock_end_of_xact();
			break;
		case XACT_EVENT_PREPARE:
			le_notify_abort();
			le_lock_end_of_xact();
			break;
		default:
			break;
	}
}

void
le_session_init(void)
{
	RegisterXactCallback(on_xact_event, NULL);
}
