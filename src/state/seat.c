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
 * follows the last slash.  0: a seat's name does not look like that.  *length:
 * of the group's name.
 */
int
le_seat_number(const char *election, int *length)
{
	const char *slash = strrchr(election, '/');
	int			number = 0;

	if (slash == NULL || slash == election || slash[1] == '0')
		return 0;
	for (const char *c = slash + 1; *c != '\0'; c++)
	{
		if (*c < '0' || *c > '9')
			return 0;
		number = number * 10 + (*c - '0');
		if (number > LE_MOST_SEATS)
			return 0;
	}
	*length = slash - election;
	return number;
}

/*
 * The name of the group that an election of that name would be a seat of;
 * NULL: of none.
 */
char *
le_seat_group(const char *election)
{
	int			length;

	return le_seat_number(election, &length) == 0 ? NULL :
		pnstrdup(election, length);
}
