/*-------------------------------------------------------------------------
 *
 * environment.c
 *		The environment of a command line or a command: what pg_leader tells it.
 *
 * Invariant: what pg_leader starts is told what is so for it, and nothing of an
 * earlier term, of another election, or of an outer pg_leader.  So our own
 * environment is not changed, and the new one is made before the fork: in the
 * child, memory cannot be had safely.
 *
 *-------------------------------------------------------------------------
 */
#include "guardian.h"

#include <unistd.h>

static const char *const names[TOLD_FIELDS] = {
	[TOLD_ELECTION] = "PG_LEADER_ELECTION",
	[TOLD_CANDIDATE] = "PG_LEADER_CANDIDATE",
	[TOLD_TERM] = "PG_LEADER_TERM",
	[TOLD_TERM_FILE] = "PG_LEADER_TERM_FILE",
	[TOLD_RUN] = "PG_LEADER_RUN",
	[TOLD_SEAT] = "PG_LEADER_SEAT",
	[TOLD_EVENT] = "PG_LEADER_EVENT",
	[TOLD_LEADER] = "PG_LEADER_LEADER",
	[TOLD_METADATA] = "PG_LEADER_METADATA"
};

static bool
is_told(const char *variable)
{
	for (int i = 0; i < TOLD_FIELDS; i++)
	{
		size_t		length = strlen(names[i]);

		if (strncmp(variable, names[i], length) == 0 && variable[length] == '=')
			return true;
	}
	return false;
}

/*
 * Return our environment, with what is told (NULL: nothing) in place of all that
 * pg_leader ever tells.  environment_free() frees it.
 */
char **
environment_make(const char *const *told)
{
	char	  **environment;
	int			n = 0;

	while (environ[n] != NULL)
		n++;
	environment = pg_malloc((n + TOLD_FIELDS + 1) * sizeof(char *));
	n = 0;
	for (int i = 0; i < TOLD_FIELDS; i++)
	{
		if (told[i] != NULL)
			environment[n++] = psprintf("%s=%s", names[i], told[i]);
	}
	for (char **variable = environ; *variable != NULL; variable++)
	{
		if (!is_told(*variable))
			environment[n++] = pg_strdup(*variable);
	}
	environment[n] = NULL;
	return environment;
}

void
environment_free(char **environment)
{
	for (char **variable = environment; *variable != NULL; variable++)
		pg_free(*variable);
	pg_free(environment);
}
