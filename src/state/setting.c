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

/*
 * Set the fields of a struct from a row.
 */
void
le_setting_read(const Setting *settings, const Row *row, void *to)
{
	for (const Setting *s = settings; s->name != NULL; s++)
		le_field_read(&s->field, row, to);
}

/*
 * Set the columns of a row from a struct.
 */
void
le_setting_write(const Setting *settings, Row *row, const void *from)
{
	for (const Setting *s = settings; s->name != NULL; s++)
		le_field_write(&s->field, row, from);
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
			le_field_copy(&settings[i].field, to, from);
	}
}
