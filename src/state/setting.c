/*-------------------------------------------------------------------------
 *
 * setting.c
 *		Settings of elections and groups: from rows into structs, and back.
 *
 * Which there are, a table for each of the two says (election.c, group.c):
 * rows are read and written by it here, and calls are read by it in arg.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "state/state.h"
#include "utils/builtins.h"

/* What a field of each type takes */
static const Size sizes[] = {
	[SETTING_STRATEGY] = sizeof(char *),
	[SETTING_TEXT] = sizeof(char *),
	[SETTING_ROLE] = sizeof(Role),
	[SETTING_INTEGER] = sizeof(int),
	[SETTING_INTERVAL] = sizeof(int64)
};

int64
le_setting_interval(Datum value)
{
	const Interval *interval = DatumGetIntervalP(value);

	return interval->time +
		(interval->day + interval->month * INT64CONST(30)) * USECS_PER_DAY;
}

/*
 * Set the fields of a struct from a row.
 */
void
le_setting_read(const Setting *settings, const Row *row, void *to)
{
	for (const Setting *s = settings; s->name != NULL; s++)
	{
		void	   *field = (char *) to + s->offset;

		switch (s->type)
		{
			case SETTING_STRATEGY:
			case SETTING_TEXT:
				*(char **) field = LE_GET(row, s->column, TextDatumGetCString,
										  NULL);
				break;
			case SETTING_ROLE:
				*(Role *) field = le_role_get(row, s->column, s->id_column);
				break;
			case SETTING_INTEGER:
				*(int *) field = LE_GET(row, s->column, DatumGetInt32, 0);
				break;
			case SETTING_INTERVAL:
				*(int64 *) field = LE_GET(row, s->column, le_setting_interval,
										  0);
				break;
		}
	}
}

/*
 * Set the columns of a row from a struct.  A role is written by the name that
 * it has now, and with its OID, also where a restore has brought the row.
 */
void
le_setting_write(const Setting *settings, Row *row, const void *from)
{
	for (const Setting *s = settings; s->name != NULL; s++)
	{
		const void *field = (const char *) from + s->offset;

		switch (s->type)
		{
			case SETTING_STRATEGY:
			case SETTING_TEXT:
				LE_SET_IF(row, s->column, *(char *const *) field != NULL,
						  LE_TEXT(*(char *const *) field));
				break;
			case SETTING_ROLE:
				le_role_set(row, s->column, s->id_column, field);
				break;
			case SETTING_INTEGER:
				LE_SET(row, s->column, Int32GetDatum(*(const int *) field));
				break;
			case SETTING_INTERVAL:
				LE_SET(row, s->column,
					   le_clock_interval(*(const int64 *) field));
				break;
		}
	}
}

/*
 * Copy those settings from one struct to another whose bits are set in given,
 * counted as they are in the table.
 */
void
le_setting_copy(const Setting *settings, void *to, const void *from,
				uint32 given)
{
	for (int i = 0; settings[i].name != NULL; i++)
	{
		if ((given & (1 << i)) != 0)
			memcpy((char *) to + settings[i].offset,
				   (const char *) from + settings[i].offset,
				   sizes[settings[i].type]);
	}
}
