/*-------------------------------------------------------------------------
 *
 * event.c
 *		Prints one event of an election: a line of text, or a JSON object.
 *
 * Invariant: an event is one line, whatever names others have chosen; and if it
 * could not be written, pg_leader ends.
 *
 *-------------------------------------------------------------------------
 */
#include "observer.h"

#include "pqexpbuffer.h"

static void
print_text_event(const PGresult *events, int row)
{
	const char *leader = text_show(PQgetvalue(events, row, EVENT_LEADER));

	printf("%s  %s: ", text_show(PQgetvalue(events, row, EVENT_AT)),
		   text_show(PQgetvalue(events, row, EVENT_ELECTION)));
	if (strcmp(PQgetvalue(events, row, EVENT_KIND), "yield_requested") == 0)
		printf("\"%s\" is asked to yield", leader);
	else if (strcmp(PQgetvalue(events, row, EVENT_KIND), "metadata_changed") == 0)
		printf("\"%s\" has changed its metadata", leader);
	else if (PQgetisnull(events, row, EVENT_LEADER))
		printf("vacant");
	else
		printf("\"%s\" leads in term %s", leader,
			   text_show(PQgetvalue(events, row, EVENT_TERM)));
	if (!PQgetisnull(events, row, EVENT_PREVIOUS))
		printf(", \"%s\" led before: %s",
			   text_show(PQgetvalue(events, row, EVENT_PREVIOUS)),
			   text_show(PQgetvalue(events, row, EVENT_REASON)));
	putchar('\n');
}

static void
print_json_event(const PGresult *events, int row)
{
	static const struct
	{
		const char *key;
		int			column;
		bool		is_text;
	}			fields[] = {
		{"election", EVENT_ELECTION, true}, {"event", EVENT_KIND, true},
		{"term", EVENT_TERM, false}, {"leader", EVENT_LEADER, true},
		{"previous", EVENT_PREVIOUS, true}, {"reason", EVENT_REASON, true},
		{"at", EVENT_AT_JSON, false}
	};
	PQExpBufferData line;

	initPQExpBuffer(&line);
	for (int i = 0; i < lengthof(fields); i++)
	{
		const char *value = PQgetvalue(events, row, fields[i].column);

		if (PQgetisnull(events, row, fields[i].column))
			value = "null";
		else if (fields[i].is_text)
			value = text_lend(text_json(value));
		appendPQExpBuffer(&line, "%s\"%s\" : %s", i == 0 ? "{" : ", ",
						  fields[i].key, value);
	}
	appendPQExpBufferChar(&line, '}');
	text_print_json(line.data);
	termPQExpBuffer(&line);
}

/*
 * Print the event in a row.
 */
void
event_print(const PGresult *events, int row, bool json)
{
	if (json)
		print_json_event(events, row);
	else
		print_text_event(events, row);
}

/*
 * Write out what was printed.  If that fails, report it, and exit.
 */
void
event_flush(void)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return;
	pg_log_error("could not write to standard output: %m");
	exit(EXIT_USAGE);
}
