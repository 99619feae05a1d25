/*-------------------------------------------------------------------------
 *
 * quote.c
 *		Names in texts for people: the log, and what diagnose() says.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base.h"
#include "utils/json.h"

/*
 * A name as the log shows it: a string as in JSON.  A quote or a newline in
 * the name could otherwise make a line of the log that we have not written.
 */
char *
le_quote(const char *name)
{
	StringInfoData buf;

	initStringInfo(&buf);
	escape_json(&buf, name);
	return buf.data;
}
