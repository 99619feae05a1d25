/*-------------------------------------------------------------------------
 *
 * create.c
 *		Making an election: its settings, its lease and its mark.
 *
 * Invariant: an election has a row of settings and a lease row, or neither.
 * One transaction makes both, and the mark (mark.c), under the election's name
 * lock.  One transaction deletes both, under the name lock and the election
 * lock (le_drop_locked()).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "state/state.h"
#include "utils/catcache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

/*
 * Take the name lock of an election that is to be made, if there is none of
 * that name.  A seat of a group is made under the group's name lock, which the
 * caller holds.  An election that is none must not have the name of one: no
 * group is made while we hold that lock in Share mode.
 */
static bool
lock_new_name(const Election *election, bool on_first_use)
{
	const char *name = election->name;
	char	   *group = election->group == NULL ? le_seat_group(name) : NULL;

	if (group != NULL && !le_lock_name(group, NULL, ShareLock))
		return false;
	if (group != NULL && le_group_read(group) != NULL)
		ereport(ERROR,
				(errcode(on_first_use ? ERRCODE_LE_NO_ELECTION :
						 ERRCODE_DUPLICATE_OBJECT),
				 errmsg("election \"%s\" is no seat of group \"%s\"",
						name, group),
				 errdetail("The name is kept for a seat: the group exists, and has none of that number."),
				 errhint("Only leader_election.alter_group() adds seats to a group.")));
	if (election->group == NULL && !le_lock_name(name, NULL, ExclusiveLock))
		return false;
	if (le_election_read(name) == NULL)
		return true;
	if (election->group == NULL)
		le_lock_release_name(name, NULL, ExclusiveLock);
	return false;
}

/*
 * Make the lease and the mark of a new election.  Listeners are told of a new
 * seat of a group, for which nobody may stand yet.
 */
static void
insert_lease(const Election *election, int64 after_term)
{
	TimestampTz at = GetCurrentTimestamp();
	bool		tells = election->group != NULL;

	if (le_lease_read(election->name, NULL) == NULL)
		le_lease_create(election->name, at, after_term);
	le_mark_create(election->name, election->channel,
				   tells ? 0 : at, after_term);
	if (tells)
		le_commit_tells();
}

/*
 * Make an election: its settings, its lease and its mark.  False: there is one
 * of that name, or another transaction is about to make it, or the table of
 * dropped elections is locked.  on_first_use: nobody has asked for just this
 * election.
 */
bool
le_create(const Election *election, bool on_first_use)
{
	int64		after_term;

	/*
	 * Take the lock before looking.  The other way round, another transaction
	 * could make the election in between, and our insert would fail.
	 */
	if (!lock_new_name(election, on_first_use))
		return false;
	if (!le_dropped_read(election->name, &after_term) ||
		!le_election_write(election))
	{
		if (election->group == NULL)
			le_lock_release_name(election->name, NULL, ExclusiveLock);
		return false;
	}
	insert_lease(election, after_term);
	le_commit_wakes_worker();
	return true;
}

static Role
owner_of_tables(void)
{
	Relation	lease = le_table_open(le_store.lease_oid);
	Oid			owner = lease->rd_rel->relowner;

	table_close(lease, NoLock);
	return le_role_of(owner);
}

/*
 * May the current user call the extension's create_election()?  A function of
 * that name that is no member of the extension does not count: anybody who may
 * create functions in the schema could have made it.
 */
bool
le_create_is_allowed(void)
{
	Oid			namespace = get_namespace_oid(LE_SCHEMA, false);
	Oid			extension = get_extension_oid(LE_EXTENSION, false);
	CatCList   *list = SearchSysCacheList1(PROCNAMEARGSNSP,
										   CStringGetDatum("create_election"));
	bool		may = false;

	for (int i = 0; i < list->n_members && !may; i++)
	{
		Form_pg_proc proc =
			(Form_pg_proc) GETSTRUCT(&list->members[i]->tuple);

		may = proc->pronamespace == namespace &&
			getExtensionOfObject(ProcedureRelationId, proc->oid) == extension &&
			object_aclcheck(ProcedureRelationId, proc->oid, GetUserId(),
							ACL_EXECUTE) == ACLCHECK_OK;
	}
	ReleaseSysCacheList(list);
	return may;
}

/*
 * Raise an error if this call may not create an election.  The setting alone
 * does not decide: before the library is loaded, a client can give it a value
 * of its own.  The server refuses that value when it loads the library, but
 * then takes the default, "on", and not what the administrator has set.  So
 * the user's privilege is needed as well.
 */
static void
check_auto_create(const char *name)
{
	if (!le_auto_create)
		ereport(ERROR,
				(errcode(ERRCODE_LE_NO_ELECTION),
				 errmsg("election \"%s\" does not exist", name),
				 errhint("Elections are not created on first use: leader_election.auto_create is off.")));
	if (!le_create_is_allowed())
		ereport(ERROR,
				(errcode(ERRCODE_LE_NO_ELECTION),
				 errmsg("election \"%s\" does not exist", name),
				 errdetail("Role \"%s\" may not create it: it lacks EXECUTE on leader_election.create_election().",
						   GetUserNameFromId(GetUserId(), false)),
				 errhint("Check its name, or have a role with that privilege create it.")));
}

/*
 * The settings of an election, which is created if it does not exist and the
 * current user may do that.  NULL: another transaction is about to create it,
 * or (without wait) has locked the marks.  With wait, this waits for that
 * transaction as long as the call may wait.
 */
Election *
le_create_on_first_use(const char *name, bool wait)
{
	Election	new;

	for (;;)
	{
		Election   *election = le_election_read(name);

		if (election != NULL)
			return election;
		check_auto_create(name);
		new = le_election_new(unconstify(char *, name), owner_of_tables());

		/*
		 * The caller may have found a leader, and so have locked few tables,
		 * before another transaction dropped the election.
		 */
		if (wait)
			le_store_lock(LE_TABLES | LE_TABLE_ANNOUNCED, RowExclusiveLock);
		else if (!le_store_try_lock(LE_TABLES | LE_TABLE_ANNOUNCED,
									RowExclusiveLock))
			return NULL;
		if (le_create(&new, true))
		{
			ereport(NOTICE,
					(errmsg("election \"%s\" does not exist, creating it with default settings",
							name)));
			ereport(LOG_SERVER_ONLY,
					(errmsg("leader_election: election %s is created on first use",
							le_quote(name)),
					 errhidestmt(true)));
		}
		else if (le_election_read(name) == NULL &&
				 (!wait || !le_wait_retry()))
			return NULL;
	}
}
