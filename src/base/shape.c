/*-------------------------------------------------------------------------
 *
 * shape.c
 *		What our code takes for granted of the tables: columns, types, keys.
 *
 * Rows are read by access methods, and each column as the type that our script
 * has given it.  Our tables are an extension's, so that only a superuser can
 * alter them; but REASSIGN OWNED gives them to any role, which can change a
 * column's type, drop a NOT NULL, or put a view in the place of a table.  A
 * number that is read as the address of a text ends the server, or shows the
 * memory of a superuser's process.
 *
 * Invariant: no row is read of a table that is not as our script has made it.
 * store.c looks here after each invalidation, under the locks with which the
 * rows are read: these keep off ALTER TABLE.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "base/base.h"
#include "catalog/pg_am.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_type.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

/*
 * A table's first columns: a letter for the type of each, in upper case if the
 * column is NOT NULL.  The first ones are its primary key.
 */
typedef struct Shape
{
	const char *name;
	int			keys;
	const char *columns;
	const char *last;			/* the name of the last column */
} Shape;

static const Shape shapes[TABLE_COUNT] = {
	[TABLE_ELECTION] = {"election", 1, "TTVIVvvntNtzntbzllttt", "candidate_role_id"},
	[TABLE_LEASE] = {"lease", 1,
		"TLlttlinbiljzzzllltBBLtnzllblltbzltntitzltttzlzu",
	"request"},
	[TABLE_CANDIDATE] = {"candidate", 2, "TTTNILjBliaZLlBlllt", "role_id"},
	[TABLE_HISTORY] = {"history", 2, "TLTZzttTNai", "backend_pid"},
	[TABLE_EPOCH] = {"epoch", 1, "TZLLL", "dropped_term"},
	[TABLE_PAUSE_ALL] = {"pause_all", 1, "TZNt", "reason"},
	[TABLE_DRAIN] = {"drain", 2, "TTZNt", "reason"},
	[TABLE_ANNOUNCED] = {"announced", 1, "TLBLtzz", "metadata_at"},
	[TABLE_GROUP] = {"election_group", 1, "TIINt", "owner_id"},
	[TABLE_DROPPED] = {"dropped", 1, "TL", "term"},
};

/* The column of history on which the index history_acquired_at is */
#define HISTORY_ACQUIRED_AT_COLUMN	4

/* The types of the columns, by their letters in lower case */
static const Oid types[] = {
	['a'] = INETOID,
	['b'] = BOOLOID,
	['i'] = INT4OID,
	['j'] = JSONBOID,
	['l'] = INT8OID,
	['n'] = NAMEOID,
	['t'] = TEXTOID,
	['u'] = UUIDOID,
	['v'] = INTERVALOID,
	['z'] = TIMESTAMPTZOID
};

/*
 * access_method: or InvalidOid, for any.  That of a table may be another one
 * than heap, by default_table_access_method.
 */
static bool
is_of_kind(Oid relid, char relkind, Oid access_method)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class form;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_class) GETSTRUCT(tuple);
	result = form->relkind == relkind &&
		(form->relam == access_method || !OidIsValid(access_method));
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Is there a column of that number, with that type?  A later version may have
 * appended one that an older script has not made: it is read as NULL.
 */
static bool
has_column(Oid table, AttrNumber number, char letter)
{
	bool		nullable = letter > 'Z';
	HeapTuple	tuple = SearchSysCache2(ATTNUM, ObjectIdGetDatum(table),
										Int16GetDatum(number));
	Form_pg_attribute form;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return nullable;
	form = (Form_pg_attribute) GETSTRUCT(tuple);
	result = form->atttypid == types[pg_tolower((unsigned char) letter)] &&
		(form->attnotnull || nullable);
	ReleaseSysCache(tuple);
	return result;
}

static bool
has_columns(Oid table, const char *letters)
{
	for (int i = 0; letters[i] != '\0'; i++)
	{
		if (!has_column(table, i + 1, letters[i]))
			return false;
	}
	return true;
}

/*
 * Is the index a btree on so many columns of the table, from that one on?
 */
static bool
is_index_on(Oid index, Oid table, int first, int columns)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	Form_pg_index form;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_index) GETSTRUCT(tuple);
	result = form->indrelid == table && form->indnkeyatts == columns &&
		heap_attisnull(tuple, Anum_pg_index_indexprs, NULL) &&
		heap_attisnull(tuple, Anum_pg_index_indpred, NULL);
	for (int i = 0; i < columns && result; i++)
		result = form->indkey.values[i] == first + i;
	ReleaseSysCache(tuple);
	return result && is_of_kind(index, RELKIND_INDEX, BTREE_AM_OID);
}

const char *
le_shape_name(TableId table)
{
	return shapes[table].name;
}

/*
 * Is this table, with this primary key, as our script has made it?  Others may
 * have appended columns.
 */
bool
le_shape_fits(TableId table, Oid rel, Oid pkey)
{
	const Shape *shape = &shapes[table];

	return is_of_kind(rel, RELKIND_RELATION, InvalidOid) &&
		has_columns(rel, shape->columns) &&
		is_index_on(pkey, rel, 1, shape->keys);
}

/*
 * The same of the index history_acquired_at.
 */
bool
le_shape_fits_history_acquired_at(Oid index, Oid history)
{
	return is_index_on(index, history, HISTORY_ACQUIRED_AT_COLUMN, 1);
}

/*
 * Has a row a value in each column that is NOT NULL?  That constraint does not
 * tell: it may be NOT VALID (18), and an old snapshot may see versions of rows
 * that are older than it.
 */
bool
le_shape_fits_row(TableId table, const bool *nulls)
{
	const char *letters = shapes[table].columns;

	for (int i = 0; letters[i] != '\0'; i++)
	{
		if (nulls[i] && letters[i] <= 'Z')
			return false;
	}
	return true;
}

/*
 * How many columns our script makes.
 */
int
le_shape_columns(TableId table)
{
	return strlen(shapes[table].columns);
}

/*
 * Do we never write NULL there?  Of columns that others have added we do.
 */
bool
le_shape_fills(TableId table, AttrNumber number)
{
	return number <= le_shape_columns(table) &&
		shapes[table].columns[number - 1] <= 'Z';
}

/*
 * Is our last column at its number?  It is not, if others had added one before
 * an update of the extension added it; their types may be the same.  The name
 * of the last column is for errors.
 */
bool
le_shape_is_in_place(TableId table, Oid rel, const char **last)
{
	const char *name = get_attname(rel, le_shape_columns(table), true);

	*last = shapes[table].last;
	return name != NULL && strcmp(name, *last) == 0;
}
