/*-------------------------------------------------------------------------
 *
 * field.c
 *		Rows as structs: which columns are which members.
 *
 * Each table has an array of Fields, by which its rows are read and written.
 * A NULL is read as 0, false, NULL or no role.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "state/state.h"
#include "utils/builtins.h"

int64
le_field_interval(Datum value)
{
	const Interval *interval = DatumGetIntervalP(value);

	return interval->time +
		(interval->day + interval->month * INT64CONST(30)) * USECS_PER_DAY;
}

/*
 * Set a member of a struct from a row.  A Datum points into the row then; all
 * else is a copy.
 */
static void
read_field(const Field *field, const Row *row, void *into)
{
	void	   *member = (char *) into + field->offset;

#define READ(type, get, if_null) \
	*(type *) member = LE_GET(row, field->column, get, if_null)

	switch (field->type)
	{
		case FIELD_TEXT:
		case FIELD_STRATEGY:
			READ(char *, TextDatumGetCString, NULL);
			break;
		case FIELD_NAME:
			READ(char *, LE_GET_NAME, NULL);
			break;
		case FIELD_DATUM:
			READ(Datum, (Datum), 0);
			break;
		case FIELD_ROLE:
			*(Role *) member = le_role_get(row, field->column, field->id_column);
			break;
		case FIELD_INTEGER:
			READ(int, DatumGetInt32, 0);
			break;
		case FIELD_BIGINT:
			READ(int64, DatumGetInt64, 0);
			break;
		case FIELD_BOOLEAN:
			READ(bool, DatumGetBool, false);
			break;
		case FIELD_INTERVAL:
			READ(int64, le_field_interval, 0);
			break;
	}
#undef READ
}

/*
 * Set a column of a row, which is to be written, from a struct.  A role is
 * written by the name that it has now, and with its OID, also where a restore
 * has brought the row.
 */
static void
write_field(const Field *field, Row *row, const void *from)
{
	const void *member = (const char *) from + field->offset;

#define WRITE(type, make, or_null) \
	LE_SET_IF(row, field->column, !(or_null) || *(const type *) member != 0, \
			  make(*(const type *) member))

	switch (field->type)
	{
		case FIELD_TEXT:
		case FIELD_STRATEGY:
			WRITE(char *, LE_TEXT, true);
			break;
		case FIELD_NAME:
			WRITE(char *, LE_NAME, true);
			break;
		case FIELD_DATUM:
			WRITE(Datum, (Datum), true);
			break;
		case FIELD_ROLE:
			le_role_set(row, field->column, field->id_column, member);
			break;
		case FIELD_INTEGER:
			WRITE(int, Int32GetDatum, field->or_null);
			break;
		case FIELD_BIGINT:
			WRITE(int64, Int64GetDatum, field->or_null);
			break;
		case FIELD_BOOLEAN:
			WRITE(bool, BoolGetDatum, field->or_null);
			break;
		case FIELD_INTERVAL:
			LE_SET(row, field->column,
				   le_clock_interval(*(const int64 *) member));
			break;
	}
#undef WRITE
}

void
le_fields_read(const Field *fields, int n, const Row *row, void *into)
{
	for (int i = 0; i < n; i++)
		read_field(&fields[i], row, into);
}

void
le_fields_write(const Field *fields, int n, Row *row, const void *from)
{
	for (int i = 0; i < n; i++)
		write_field(&fields[i], row, from);
}
