/*-------------------------------------------------------------------------
 *
 * command.c
 *		What pg_leader runs in the chaos run: it leads as long as it lives.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>

#include "candidate.h"

static void
read_term(Seat *seat)
{
	const char *path = getenv("PG_LEADER_TERM_FILE");
	FILE	   *file = path != NULL ? fopen(path, "r") : NULL;
	long long	term;

	if (file != NULL && fscanf(file, "%lld", &term) == 1)
		seat->term = term;
	if (file != NULL)
		fclose(file);
}

void
tick_command(int64_t end)
{
	Seat	   *seat = &seats[0];

	if (now_us() >= end)
		exit(chance(500));
	read_term(seat);
	note("c %s %lld %lld", seat->election, (long long) now_us(),
		 (long long) seat->term);
	use_resource(seat);
	if (conn != NULL && chance(100))
		write_fenced(seat, true);
}
