/*-------------------------------------------------------------------------
 *
 * group.c
 *		Groups of elections: the table election_group.
 *
 * The seats of a group "g" are elections of their own, "g/1", "g/2" and so on,
 * each with the group in its row of settings.  The row of the group says how
 * many there are to be.  A seat whose number is greater is withdrawn: nobody
 * is elected there, and the worker drops it when it is vacant.
 *
 * Few elections belong to a group.  So the table is locked only for those that
 * do, and last of all our tables.
 *
 * Invariants:
 *
 * - The row of a group and its seats are made and dropped under the group's
 *	 name lock in Exclusive mode.  No other election is made by the name of a
 *	 seat while the group exists: who makes an election whose name could be a
 *	 seat's holds that lock in Share mode.
 *
 * - The row changes under the group lock, under which seats are granted and
 *	 reserved (cap.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "state/state.h"
#include "utils/builtins.h"

/* The columns of election_group: the settings, then what else a row has */
const Field le_group_settings[] = {
	{FIELD_INTEGER, 1, offsetof(ElectionGroup, seats), false, 0,
	"seats", 0, 1, 1, LE_MOST_SEATS},
	{FIELD_INTEGER, 2, offsetof(ElectionGroup, max_per_candidate), false, 0,
	"max_per_candidate", 0, 3, 1, LE_MOST_SEATS},
	{FIELD_ROLE, 3, offsetof(ElectionGroup, owner), true, 4,
	"owner", 0, 11, 1, NAMEDATALEN - 1},
	{FIELD_TEXT, 0, offsetof(ElectionGroup, name)},
};

static void *
make_group(const Row *row)
{
	ElectionGroup *group = palloc0(sizeof(ElectionGroup));

	le_fields_read(le_group_settings, lengthof(le_group_settings), row, group);
	return group;
}

/*
 * A group; NULL: there is none of that name.  55P03 if the table is locked:
 * the caller may hold an election lock, and must not wait.
 */
ElectionGroup *
le_group_read(const char *name)
{
	foreach_ptr(ElectionGroup, group, le_remembered.groups)
	{
		if (strcmp(group->name, name) == 0)
			return group;
	}
	if (le_remembered.knows_groups)
		return NULL;
	if (!le_store_try_lock(LE_TABLE_GROUP, AccessShareLock))
		le_wait_busy(name);
	return le_scan_read_one(TABLE_GROUP, le_key(name), NULL, make_group);
}

/*
 * The group that an election belongs to; NULL: to none.
 */
ElectionGroup *
le_group_of(const Election *election)
{
	return election->group == NULL ? NULL :
		le_group_read(election->group);
}

/*
 * The settings of a seat; NULL: there is none of that name, which may be that
 * of another election by now.
 */
Election *
le_group_seat_read(const char *name)
{
	Election   *election = le_election_read(name);

	return election != NULL && election->group != NULL ? election : NULL;
}

/*
 * The name by which an election's name locks are taken, and those of its
 * candidates: for the seats of a group, that of the group, so that who stands
 * for a thousand seats needs one lock.  NULL: not to be had at once.
 */
char *
le_group_lock_seat_name(const char *election)
{
	Election   *seat;

	if (le_seat_number(election) == 0)
		return pstrdup(election);
	if (!le_store_try_lock(LE_TABLE_ELECTION, AccessShareLock))
		return NULL;
	seat = le_group_seat_read(election);
	return seat != NULL ? seat->group : pstrdup(election);
}

/*
 * Read all groups now: the table is locked, and the answers do not change any
 * more in this call.
 */
void
le_group_remember(void)
{
	le_remembered.groups = le_scan_read_all(TABLE_GROUP, le_key_any(),
											make_group);
	le_remembered.knows_groups = true;
}

/*
 * From now on each group is read when it is needed.
 */
void
le_group_forget(void)
{
	le_remembered.groups = NIL;
	le_remembered.knows_groups = false;
}

/*
 * Is this election a seat that the group, to which it belongs, has no more?
 */
bool
le_group_withdraws(const ElectionGroup *group, const char *election)
{
	return group != NULL && le_seat_number(election) > group->seats;
}

/*
 * Is that a name of a seat that a remembered group has no more?  Whether the
 * election is of the group only its settings tell: of all others these need not
 * be read.
 */
bool
le_group_may_withdraw(const char *election)
{
	foreach_ptr(const ElectionGroup, group, le_remembered.groups)
	{
		if (le_seat_is_of(election, group->name))
			return le_group_withdraws(group, election);
	}
	return false;
}

/*
 * Write a group.  The caller holds its name lock and, if there is such a group
 * already, the group lock, and has locked the table.  False: another
 * transaction has locked the row.
 */
bool
le_group_write(const ElectionGroup *group)
{
	Row		   *row = le_row_lock_or_new(TABLE_GROUP, le_key(group->name));

	Assert(le_lock_holds_name(group->name, NULL));
	Assert(row == NULL || row->tuple == NULL ||
		   le_lock_holds_mutex(LOCK_GROUP, group->name, ExclusiveLock));
	if (row == NULL)
		return false;
	le_fields_write(le_group_settings, lengthof(le_group_settings), row, group);
	le_row_write(row);
	le_commit_durably();
	le_commit_wakes_worker();
	return true;
}

ElectionGroup *
le_group_get(const char *name)
{
	ElectionGroup *group = le_group_read(name);

	if (group == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_LE_NO_ELECTION),
				 errmsg("group \"%s\" does not exist", name),
				 errhint("Check its name. leader_election.create_group() makes a group.")));
	return group;
}
