/*-------------------------------------------------------------------------
 *
 * seat.c
 *		Names of seats: those of group "g" are "g/1", "g/2" and so on.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "state/state.h"

char *
le_seat_name(const char *group, int number)
{
	return psprintf("%s/%d", group, number);
}

/*
 * The number of the seat that has this name, if there is a group for it: what
 * follows the last slash.  0: a seat's name does not look like that.
 */
int
le_seat_number(const char *election)
{
	const char *slash = strrchr(election, '/');
	char	   *end;
	long		number;

	if (slash == NULL || slash == election || slash[1] < '1' || slash[1] > '9')
		return 0;
	number = strtol(slash + 1, &end, 10);
	return *end == '\0' && number <= LE_MOST_SEATS ? number : 0;
}

/*
 * Is that the name of a seat of this group?
 */
bool
le_seat_is_of(const char *election, const char *group)
{
	int			length = strlen(group);

	return strncmp(election, group, length) == 0 &&
		strrchr(election, '/') == election + length &&
		le_seat_number(election) != 0;
}

/*
 * The name of the group that an election of that name would be a seat of;
 * NULL: of none.
 */
char *
le_seat_group(const char *election)
{
	return le_seat_number(election) == 0 ? NULL :
		pnstrdup(election, strrchr(election, '/') - election);
}

/*
 * The key of rows of elections that have names of seats of a group: a digit
 * follows the slash.
 */
Key
le_seat_key(const char *group)
{
	return le_key_between(psprintf("%s/", group),
						  psprintf("%s/%c", group, '9' + 1));
}

#ifdef USE_ASSERT_CHECKING

/*
 * Does this transaction hold the name lock of a candidate (NULL: of the
 * election)?  For the seat of a group that may be the group's.
 */
bool
le_seat_holds_name(const char *election, const char *candidate)
{
	char	   *group = le_seat_group(election);

	return le_lock_holds_name(election, candidate) ||
		(group != NULL && le_lock_holds_name(group, candidate));
}
#endif
