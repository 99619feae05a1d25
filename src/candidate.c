/*-------------------------------------------------------------------------
 *
 * candidate.c
 *		Who stands.
 *
 * Invariant: the name of a live candidate belongs to one session.  A row is
 * inserted under its name lock, and is taken from another session only when
 * that one is provably dead.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "leader_election.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* Column numbers of candidate */
enum
{
	CANDIDATE_ELECTION,
	CANDIDATE_CANDIDATE,
	CANDIDATE_KIND,
	CANDIDATE_ROLE,
	CANDIDATE_RANK,
	CANDIDATE_PROGRESS,
	CANDIDATE_METADATA,
	CANDIDATE_AUTO_RENEW,
	CANDIDATE_SESSION_ID,
	CANDIDATE_BACKEND_PID,
	CANDIDATE_CLIENT_ADDR,
	CANDIDATE_JOINED_AT,
	CANDIDATE_PLACE,
	CANDIDATE_SITS_OUT
};

static void
read_candidate(HeapTuple tuple, Datum *values, bool *nulls, void *arg)
{
	List	  **list = arg;
	Candidate  *c = palloc0(sizeof(Candidate));

	c->election = TextDatumGetCString(values[CANDIDATE_ELECTION]);
	c->candidate = TextDatumGetCString(values[CANDIDATE_CANDIDATE]);
	c->kind = TextDatumGetCString(values[CANDIDATE_KIND]);
	c->rank = DatumGetInt32(values[CANDIDATE_RANK]);
	c->progress = DatumGetInt64(values[CANDIDATE_PROGRESS]);
	if (!nulls[CANDIDATE_METADATA])
		c->metadata = datumCopy(values[CANDIDATE_METADATA], false, -1);
	c->auto_renew = DatumGetBool(values[CANDIDATE_AUTO_RENEW]);
	if (!nulls[CANDIDATE_SESSION_ID])
		c->session_id = DatumGetInt64(values[CANDIDATE_SESSION_ID]);
	if (!nulls[CANDIDATE_BACKEND_PID])
		c->backend_pid = DatumGetInt32(values[CANDIDATE_BACKEND_PID]);
	c->joined_at = DatumGetTimestampTz(values[CANDIDATE_JOINED_AT]);
	c->place = DatumGetInt64(values[CANDIDATE_PLACE]);
	c->sits_out = nulls[CANDIDATE_SITS_OUT] ? -1 :
		DatumGetInt64(values[CANDIDATE_SITS_OUT]);
	*list = lappend(*list, c);
}

/*
 * All candidates of an election (NULL: of all elections), live or not.
 */
List *
le_candidates_read(const Store *store, const char *election)
{
	List	   *candidates = NIL;

	le_scan(store->candidate,
			election != NULL ? store->candidate_pkey : InvalidOid, election,
			NULL, read_candidate, &candidates);
	return candidates;
}

static Candidate *
find_candidate(const Store *store, const char *election, const char *name)
{
	ListCell   *lc;

	foreach(lc, le_candidates_read(store, election))
	{
		Candidate  *c = lfirst(lc);

		if (strcmp(c->candidate, name) == 0)
			return c;
	}
	return NULL;
}

bool
le_candidate_alive(const Candidate *candidate)
{
	return le_session_alive(candidate->session_id);
}

/*
 * Does the profile say anything that the row does not say already?
 */
static bool
profile_differs(const Profile *profile, const Candidate *c)
{
	bool		differs;

	/* A procedure has no snapshot of its own to fetch long metadata with. */
	PushActiveSnapshot(GetLatestSnapshot());
	differs = (profile->rank != NULL && *profile->rank != c->rank) ||
		(profile->progress != NULL && *profile->progress != c->progress) ||
		(profile->auto_renew != NULL && *profile->auto_renew != c->auto_renew) ||
		(profile->metadata != NULL &&
		 (c->metadata == 0 ||
		  !datum_image_eq(*profile->metadata, c->metadata, false, -1)));
	PopActiveSnapshot();
	return differs;
}

/*
 * Make or update the row of a candidacy of this session.  Nothing is written
 * where the row says it all already.
 */
StandResult
le_candidate_stand(const Store *store, const char *election, const char *name,
				   int64 session_id, const char *role, const Profile *profile)
{
	Candidate  *c = find_candidate(store, election, name);
	Datum		values[10];
	char		nulls[10];

	if (c != NULL && c->session_id == session_id)
	{
		if (!profile_differs(profile, c))
			return STAND_OK;
	}
	else
	{
		if (c != NULL && le_candidate_alive(c))
			return STAND_IN_USE;
		if (!le_name_lock(election, name))
			return STAND_BUSY;

		/* Look again: it may have been taken before we had the lock. */
		c = find_candidate(store, election, name);
		if (c != NULL && le_candidate_alive(c))
			return STAND_IN_USE;
		if (c != NULL && !le_candidate_withdraw(election, name, c->session_id))
			return STAND_BUSY;
		c = NULL;
	}

	memset(values, 0, sizeof(values));
	memset(nulls, ' ', sizeof(nulls));
	values[0] = CStringGetTextDatum(election);
	values[1] = CStringGetTextDatum(name);
	values[2] = Int64GetDatum(session_id);
	if (profile->rank != NULL)
		values[3] = Int32GetDatum(*profile->rank);
	else
		nulls[3] = 'n';
	if (profile->progress != NULL)
		values[4] = Int64GetDatum(*profile->progress);
	else
		nulls[4] = 'n';
	if (profile->metadata != NULL)
		values[5] = *profile->metadata;
	else
		nulls[5] = 'n';
	if (profile->auto_renew != NULL)
		values[6] = BoolGetDatum(*profile->auto_renew);
	else
		nulls[6] = 'n';
	/* an update takes no more than these */
	values[7] = DirectFunctionCall1(namein, CStringGetDatum(role));
	values[8] = Int32GetDatum(MyProcPid);
	values[9] = Int64GetDatum(le_clock());

	if (le_execute(c == NULL ? LE_INSERT_CANDIDATE : LE_UPDATE_CANDIDATE,
				   values, nulls) != 1)
		return STAND_BUSY;
	return STAND_OK;
}

/*
 * Pass this candidate over until somebody was elected after that term.
 * False: its row is locked or gone.
 */
bool
le_candidate_sit_out(const char *election, const char *name,
					 int64 session_id, int64 term, int64 place)
{
	Datum		values[5];

	values[0] = CStringGetTextDatum(election);
	values[1] = CStringGetTextDatum(name);
	values[2] = Int64GetDatum(session_id);
	values[3] = Int64GetDatum(term);
	values[4] = Int64GetDatum(place);
	return le_execute(LE_SIT_OUT, values, NULL) == 1;
}

/*
 * Keep the row of a candidacy as it is until the transaction ends.  False: it
 * is locked or gone.
 */
bool
le_candidate_lock(const Candidate *candidate)
{
	Datum		values[3];

	values[0] = CStringGetTextDatum(candidate->election);
	values[1] = CStringGetTextDatum(candidate->candidate);
	values[2] = Int64GetDatum(candidate->session_id);
	return le_execute(LE_LOCK_CANDIDATE, values, NULL) == 1;
}

/*
 * Delete the row of a candidacy.  False: it is locked or gone.
 */
bool
le_candidate_withdraw(const char *election, const char *name, int64 session_id)
{
	Datum		values[3];

	values[0] = CStringGetTextDatum(election);
	values[1] = CStringGetTextDatum(name);
	values[2] = Int64GetDatum(session_id);
	return le_execute(LE_DELETE_CANDIDATE, values, NULL) == 1;
}

/*
 * Delete the rows of dead sessions, but those that somebody has locked.
 */
void
le_candidates_prune(List *candidates)
{
	int			n = list_length(candidates);
	Datum	   *ids = palloc(n * sizeof(Datum));
	Datum		values[1];

	for (int i = 0; i < n; i++)
		ids[i] = Int64GetDatum(((Candidate *) list_nth(candidates, i))->session_id);
	values[0] = PointerGetDatum(construct_array(ids, n, INT8OID, 8,
												FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	(void) le_execute(LE_PRUNE_CANDIDATES, values, NULL);
}
