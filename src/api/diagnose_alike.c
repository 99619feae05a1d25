/*-------------------------------------------------------------------------
 *
 * diagnose_alike.c
 *		What diagnose() says of names that are taken for one another.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/diagnose.h"
#include "utils/varlena.h"

/*
 * Does that name differ from this one in fewer characters than all before?
 */
static bool
is_nearer(const char *name, const char *other, int *most)
{
	int			distance = varstr_levenshtein_less_equal(name, strlen(name),
														 other, strlen(other),
														 1, 1, 1, *most, true);

	if (distance > *most)
		return false;
	*most = distance - 1;
	return true;
}

/*
 * The name of an election or a group that differs from that one in few
 * characters; NULL: there is none.
 */
static const char *
find_similar(const char *name)
{
	int			most = Max(strlen(name) / 3, 1);
	const char *similar = NULL;

	foreach_ptr(const Election, election, le_elections_read())
	{
		if (is_nearer(name, election->name, &most))
			similar = election->name;
	}
	foreach_ptr(const ElectionGroup, group, le_remembered.groups)
	{
		if (is_nearer(name, group->name, &most))
			similar = group->name;
	}
	return similar;
}

/*
 * There is neither an election nor a group of that name: an error, which names
 * one that is nearly so.
 */
void
le_diagnose_report_unknown(const Diagnosis *d)
{
	const char *similar = find_similar(d->name);

	if (similar == NULL)
		le_election_report_missing(d->name);
	ereport(ERROR,
			(errcode(ERRCODE_LE_NO_ELECTION),
			 errmsg("election \"%s\" does not exist", d->name),
			 errhint("Perhaps you mean \"%s\".", similar)));
}
