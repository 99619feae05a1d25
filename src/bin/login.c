/*-------------------------------------------------------------------------
 *
 * login.c
 *		What it means that a server has not let us in.
 *
 * libpq keeps the SQLSTATE of a login that failed to itself, but writes it into
 * its message if that is verbose: "SEVERITY:  SQLSTATE: ", whatever the language
 * of the rest, and a line that says where in the server's source it was.
 *
 * Invariant: the user sees neither of these.
 *
 *-------------------------------------------------------------------------
 */
#include "connection.h"

#include "pqexpbuffer.h"

/*
 * Return where the next SQLSTATE in a message is, or NULL.
 */
static const char *
find_sqlstate(const char *message)
{
	static const char *const signs = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

	while ((message = strstr(message, ":  ")) != NULL)
	{
		message += 3;
		if (strspn(message, signs) == 5 && message[5] == ':' && message[6] == ' ')
			return message;
	}
	return NULL;
}

/*
 * Is this the line that says where in the source an error was? It ends with
 * "FUNCTION, FILE.c:LINE".
 */
static bool
is_location(const char *line, int length)
{
	int			end = length;

	while (end > 0 && line[end - 1] >= '0' && line[end - 1] <= '9')
		end--;
	return end < length && end > 3 && strncmp(line + end - 3, ".c:", 3) == 0;
}

/*
 * Does a verbose message say that this server refuses to let us in, and would
 * again? 28: it does not know us, or not by this password; 3D000: it does not
 * have the database; 42501: we may not connect to that.  libpq may have tried
 * twice, with encryption and without: the last word counts.
 */
bool
login_is_refused(const char *message)
{
	const char *sqlstate = NULL;

	for (const char *next = message; (next = find_sqlstate(next)) != NULL;)
		sqlstate = next;
	return sqlstate != NULL && (strncmp(sqlstate, "28", 2) == 0 ||
								strncmp(sqlstate, "3D000", 5) == 0 ||
								strncmp(sqlstate, "42501", 5) == 0);
}

/*
 * Return a verbose message in words, to be freed by the caller.
 */
char *
login_message(const char *message)
{
	PQExpBufferData words;

	initPQExpBuffer(&words);
	while (*message != '\0')
	{
		int			length = strcspn(message, "\n");
		const char *sqlstate = find_sqlstate(message);

		if (sqlstate != NULL && sqlstate < message + length)
		{
			const char *after = sqlstate + strlen("28000: ");

			appendBinaryPQExpBuffer(&words, message, sqlstate - message);
			appendBinaryPQExpBuffer(&words, after, message + length - after);
			appendPQExpBufferChar(&words, '\n');
		}
		else if (!is_location(message, length))
			appendPQExpBuffer(&words, "%.*s\n", length, message);
		message += length + (message[length] == '\n' ? 1 : 0);
	}
	if (PQExpBufferDataBroken(words))
		pg_fatal("out of memory");
	return words.data;
}
