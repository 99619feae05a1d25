/*-------------------------------------------------------------------------
 *
 * timeouts.c
 *		Timeouts that end any statement of a candidate or an observer anywhere,
 *		while the file that CHAOS_PRESSURE names is there.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "timeouts.h"

bool
pressed(void)
{
	const char *path = getenv("CHAOS_PRESSURE");

	return path != NULL && access(path, F_OK) == 0;
}

/*
 * 1 ms to 1 s, of each order of magnitude as often; or none.
 */
static int
draw_timeout(void)
{
	return random() % 1000 < 400 ? 0 : (int) (1 + random() % (1 << (1 + random() % 10)));
}

/*
 * The statement that sets other timeouts, or none at all
 */
const char *
set_timeouts(bool any, int server_version)
{
	static const char *const names[] = {"statement_timeout", "lock_timeout",
	"transaction_timeout"};
	static char sql[300];
	int			nnames = server_version >= 170000 ? 3 : 2;
	int			length = 0;

	for (int i = 0; i < nnames; i++)
		length += snprintf(sql + length, sizeof(sql) - length,
						   "%s pg_catalog.set_config('%s', '%d', false)",
						   i == 0 ? "SELECT" : ",", names[i],
						   any ? draw_timeout() : 0);
	return sql;
}
