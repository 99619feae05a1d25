/*-------------------------------------------------------------------------
 *
 * trouble.c
 *		What the background worker could not do, told to other processes.
 *
 * Where the worker's own transactions fail, it can write no row that says so,
 * and the library has no shared memory unless it is preloaded.  So it says so
 * in its row of pg_stat_activity, where others look for it: a line of text,
 * made and read in this file only.  It begins with what programs read; what
 * was tried, and the message, come last, where the line may be cut
 * (track_activity_query_size).
 *
 * Invariant: a message may tell of data that not everybody may see.  It goes
 * to those only who see the worker's row in pg_stat_activity
 * (le_process_shows()); SQLSTATE, times and elections are for everybody.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base.h"
#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"

#define BEGINS			"leader_election: SQLSTATE "
#define ALL_ELECTIONS	"all"
#define ROOM_FOR_REST	256		/* of the line: all but the elections */
#define KEY_LENGTH		17		/* 16 hexadecimal digits and a comma */

/* Milliseconds since 1970, which people can read, too */
#define UNIX_MS(at) \
	((at) / 1000 + (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * \
	 SECS_PER_DAY * INT64CONST(1000))
#define FROM_UNIX_MS(ms) \
	(((ms) - (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * \
	  SECS_PER_DAY * INT64CONST(1000)) * 1000)

/*
 * An election, in the line.  Its name could be too long for it, and must not
 * be taken for the rest.  That two have the same key does no harm: one would
 * be said to wait for what the other does.
 */
static uint64
key_of(const char *election)
{
	return hash_bytes_extended((const unsigned char *) election,
							   strlen(election), 0);
}

/*
 * Note that the trouble keeps this election from being settled.  Where the
 * line has no room for its key, it is taken to keep all.
 */
void
le_trouble_add(WorkerTrouble *trouble, const char *election)
{
	int			most = (pgstat_track_activity_query_size - ROOM_FOR_REST) /
		KEY_LENGTH;

	if (trouble->named >= Min(most, LE_TROUBLES_NAMED))
		trouble->all = true;
	else
		trouble->elections[trouble->named++] = key_of(election);
}

/*
 * The line, of at most size bytes, which are enough for all but the text.
 */
void
le_trouble_format(const WorkerTrouble *trouble, char *line, Size size)
{
	int			n = snprintf(line, size,
							 BEGINS "%s, %d times since " INT64_FORMAT ", again at " INT64_FORMAT ", in ",
							 unpack_sql_state(trouble->code), trouble->times,
							 UNIX_MS(trouble->since),
							 UNIX_MS(trouble->retry_at));

	if (trouble->all)
		n += snprintf(line + n, size - n, ALL_ELECTIONS ",");
	else
	{
		for (int i = 0; i < trouble->named; i++)
			n += snprintf(line + n, size - n, "%08x%08x,",
						  (uint32) (trouble->elections[i] >> 32),
						  (uint32) trouble->elections[i]);
	}
	snprintf(line + n, size - n, " %s", trouble->text);
}

/*
 * Read the line, which begins as the caller has seen.  False: it is none.
 */
static bool
parse(const char *line, WorkerTrouble *trouble)
{
	char		state[6];
	int64		since;
	int64		retry_at;
	int			n = 0;

	if (sscanf(line + strlen(BEGINS),
			   "%5[0-9A-Z], %d times since " INT64_FORMAT ", again at " INT64_FORMAT ", in %n",
			   state, &trouble->times, &since, &retry_at, &n) != 4 ||
		n == 0 || strlen(state) != 5)
		return false;
	line += strlen(BEGINS) + n;
	trouble->code = MAKE_SQLSTATE(state[0], state[1], state[2], state[3],
								  state[4]);
	trouble->since = FROM_UNIX_MS(since);
	trouble->retry_at = FROM_UNIX_MS(retry_at);
	trouble->all = strncmp(line, ALL_ELECTIONS ",",
						   strlen(ALL_ELECTIONS ",")) == 0;
	if (trouble->all)
		line += strlen(ALL_ELECTIONS ",");
	for (trouble->named = 0; !trouble->all &&
		 trouble->named < LE_TROUBLES_NAMED; trouble->named++)
	{
		if (strspn(line, "0123456789abcdef") != KEY_LENGTH - 1 ||
			line[KEY_LENGTH - 1] != ',')
			break;
		trouble->elections[trouble->named] = strtou64(line, NULL, 16);
		line += KEY_LENGTH;
	}
	trouble->text = pstrdup(*line == ' ' ? line + 1 : line);
	return true;
}

/*
 * What can the worker of this database not do?  False: it has no trouble, as
 * far as it says, or there is none.
 */
bool
le_trouble_read(WorkerTrouble *trouble)
{
	int			n = LeReadBackends();

	memset(trouble, 0, sizeof(WorkerTrouble));
	for (int i = 1; i <= n; i++)
	{
		const PgBackendStatus *backend = LeBackendByNumber(i);
		const char *type;
		char	   *line;
		bool		found;

		if (backend == NULL || backend->st_backendType != B_BG_WORKER ||
			backend->st_databaseid != MyDatabaseId ||
			strncmp(backend->st_activity_raw, BEGINS, strlen(BEGINS)) != 0)
			continue;
		type = GetBackgroundWorkerTypeByPid(backend->st_procpid);
		if (type == NULL || strcmp(type, LE_WORKER_TYPE) != 0)
			continue;
		line = pgstat_clip_activity(backend->st_activity_raw);
		found = parse(line, trouble);
		pfree(line);
		if (found)
		{
			trouble->pid = backend->st_procpid;
			return true;
		}
	}
	return false;
}

/*
 * Does the trouble keep this election from being settled?
 */
bool
le_trouble_concerns(const WorkerTrouble *trouble, const char *election)
{
	for (int i = 0; i < trouble->named; i++)
	{
		if (trouble->elections[i] == key_of(election))
			return true;
	}
	return trouble->all;
}

/*
 * What kind of trouble is an error with that SQLSTATE?
 */
TroubleKind
le_trouble_kind(int code)
{
	return code == ERRCODE_LOCK_NOT_AVAILABLE ? TROUBLE_WAITS :
		code == ERRCODE_QUERY_CANCELED ? TROUBLE_CANCELLED : TROUBLE_FAILS;
}
