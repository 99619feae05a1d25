/*-------------------------------------------------------------------------
 *
 * diagnose_fill.c
 *		The sentences of rules/reasons.c, with their fields filled in.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/diagnose.h"

/*
 * What is put where a sentence has this field, in braces.
 */
static const char *
value_of(const Diagnosis *d, const char *field)
{
	if (strcmp(field, "election") == 0)
		return d->literal;
	elog(ERROR, "unrecognized field: \"%s\"", field);
}

char *
le_diagnose_fill(const Diagnosis *d, const char *sentence)
{
	StringInfoData buf;
	const char *field;

	initStringInfo(&buf);
	while ((field = strchr(sentence, '{')) != NULL)
	{
		const char *end = strchr(field, '}');

		appendBinaryStringInfo(&buf, sentence, field - sentence);
		appendStringInfoString(&buf,
							   value_of(d, pnstrdup(field + 1, end - field - 1)));
		sentence = end + 1;
	}
	appendStringInfoString(&buf, sentence);
	return buf.data;
}
