/*-------------------------------------------------------------------------
 *
 * leader.c
 *		What a leader of the chaos run does, of whatever kind it is: it writes
 *		fenced rows, and sends its term to the outside resource.
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "candidate.h"

static int	resource_fd;
static struct sockaddr_un resource;
static int64_t next_id;			/* of the last fenced row */

bool
open_resource(const char *path, int64_t first_id)
{
	next_id = first_id;
	resource_fd = socket(AF_UNIX, SOCK_DGRAM, 0);
	resource.sun_family = AF_UNIX;
	snprintf(resource.sun_path, sizeof(resource.sun_path), "%s", path);
	return resource_fd >= 0;
}

/*
 * Tell the outside resource, which keeps the highest term.
 */
void
use_resource(const Seat *seat)
{
	char		message[300];
	int			length = snprintf(message, sizeof(message), "%s %lld %s %lld",
								  seat->election, (long long) seat->term, name,
								  (long long) now_us());

	(void) sendto(resource_fd, message, length, MSG_DONTWAIT,
				  (struct sockaddr *) &resource, sizeof(resource));
}

/*
 * A fenced row.  Between its INSERT, which looks at the leadership, and its
 * COMMIT, which looks again, anything may happen: now and then for long.
 */
void
write_fenced(const Seat *seat, bool by_term)
{
	PGresult   *result;
	int64_t		id = ++next_id;
	int64_t		term = seat->term;
	const char *outcome = sqlstate;

	RUN("BEGIN");
	if (strcmp(sqlstate, "00000") != 0)
		return;
	begin_nested();
	if (by_term)
	{
		RUN("SELECT leader_election.assert_leader('%s', %lld)",
			seat->election, (long long) term);
		if (strcmp(sqlstate, "00000") == 0)
			RUN("INSERT INTO chaos.\"w_%s\" (term, candidate, id) VALUES (%lld, '%s', %lld)",
				seat->election, (long long) term, name, (long long) id);
	}
	else
	{
		result = query("INSERT INTO chaos.\"w_%s\" (term, candidate, id) "
					   "SELECT leader_election.term('%s'), '%s', %lld RETURNING term",
					   seat->election, seat->election, name, (long long) id);
		term = number(result, 0, 0);
		PQclear(result);
	}
	if (strcmp(sqlstate, "00000") != 0)
	{
		if (conn != NULL)
			RUN("ROLLBACK");
		return;
	}
	end_nested(seat->election);
	if (calm)				/* it has a lease to renew: it waits for no replay */
		RUN("SET LOCAL synchronous_commit = on");
	else if (chance(100))
		pause_ms(random() % (lease_us * 3 / 2000));
	result = query("COMMIT");
	if (result == NULL)
		received = now_us();
	else if (strcmp(PQcmdStatus(result), "COMMIT") != 0)
		outcome = "rollback";
	else
		outcome = warned ? "unconfirmed" : "committed";
	note("w %s %lld %lld %lld %lld %s", seat->election, (long long) sent,
		 (long long) received, (long long) term, (long long) id, outcome);
	PQclear(result);
}

/*
 * What it says of itself anew with a renewal, now and then; else an empty string.
 */
const char *
new_metadata(int per_mille)
{
	static char metadata[100];

	metadata[0] = '\0';
	if (chance(per_mille))
		snprintf(metadata, sizeof(metadata), ", metadata => '{\"at\": %lld}'",
				 (long long) now_us());
	return metadata;
}

/*
 * Somebody to hand over to; an empty string if there is nobody.
 */
const char *
choose_other(const Seat *seat)
{
	static char other[100];
	PGresult   *result =
		query("SELECT candidate FROM leader_election.candidates "
			  "WHERE election = '%s' AND alive AND NOT leads "
			  "ORDER BY random() LIMIT 1", seat->election);

	other[0] = '\0';
	if (result != NULL && PQntuples(result) == 1)
		snprintf(other, sizeof(other), "%s", PQgetvalue(result, 0, 0));
	PQclear(result);
	return other;
}
