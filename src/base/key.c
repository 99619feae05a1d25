/*-------------------------------------------------------------------------
 *
 * key.c
 *		What rows are read by: conditions on the first columns of a primary key.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

/*
 * A key with one more condition, on that column.
 */
static Key
with(Key key, AttrNumber column, StrategyNumber strategy, RegProcedure compare,
	 Datum value)
{
	ScanKeyInit(&key.column[key.columns++], column, strategy, compare, value);
	return key;
}

/*
 * The key of all rows.
 */
Key
le_key_any(void)
{
	return (Key) {.columns = 0};
}

/*
 * The key of the rows whose first column is this text.
 */
Key
le_key(const char *first)
{
	return with(le_key_any(), 1, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(first));
}

/*
 * The key of the row whose first two columns are these texts.
 */
Key
le_key_text(const char *first, const char *second)
{
	return with(le_key(first), 2, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(second));
}

/*
 * The key of the row whose first two columns are this text and this number.
 */
Key
le_key_int64(const char *first, int64 second)
{
	return with(le_key(first), 2, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(second));
}

/*
 * The key of the rows whose first column is this text, and whose second column
 * is this number or a greater one.
 */
Key
le_key_from(const char *first, int64 second)
{
	return with(le_key(first), 2, BTGreaterEqualStrategyNumber, F_INT8GE,
				Int64GetDatum(second));
}

/*
 * The key of the rows whose first column, of collation "C", comes before this
 * text.
 */
Key
le_key_before(const char *first)
{
	return with(le_key_any(), 1, BTLessStrategyNumber, F_TEXT_LT,
				CStringGetTextDatum(first));
}

/*
 * The key of the rows whose first column is this text, and whose second
 * column, of collation "C", comes before that text.
 */
Key
le_key_text_before(const char *first, const char *second)
{
	return with(le_key(first), 2, BTLessStrategyNumber, F_TEXT_LT,
				CStringGetTextDatum(second));
}

/*
 * The key of the rows whose first column, of collation "C", comes after the
 * one text and before the other.
 */
Key
le_key_between(const char *after, const char *before)
{
	return with(le_key_before(before), 1, BTGreaterStrategyNumber, F_TEXT_GT,
				CStringGetTextDatum(after));
}
