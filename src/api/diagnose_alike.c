/*-------------------------------------------------------------------------
 *
 * diagnose_alike.c
 *		What diagnose() says of names that are taken for one another.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/diagnose.h"
#include "catalog/pg_collation_d.h"
#include "mb/pg_wchar.h"
#include "utils/formatting.h"
#include "utils/varlena.h"

/*
 * A name as those read it who see neither case nor white space: small letters,
 * with one space for each piece of white space, and none around them.
 */
typedef struct Reading
{
	int			length;
	pg_wchar   *letters;
} Reading;

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

/*
 * Those beyond ASCII are known in UTF-8, where letters are code points.
 */
static bool
is_white(pg_wchar c)
{
	if (c == ' ' || (c >= '\t' && c <= '\r'))
		return true;
	return GetDatabaseEncoding() == PG_UTF8 &&
		(c == 0x85 || c == 0xA0 || c == 0x1680 ||
		 (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
		 c == 0x202F || c == 0x205F || c == 0x3000);
}

/*
 * Zero-width space, word joiner and byte-order mark.
 */
static bool
takes_no_room(pg_wchar c)
{
	return GetDatabaseEncoding() == PG_UTF8 &&
		(c == 0x200B || c == 0x2060 || c == 0xFEFF);
}

/*
 * Do these names differ for certain, by letters of ASCII?  Nearly all do, and
 * to read a name takes long.
 */
static bool
differs(const char *a, const char *b)
{
	while (!IS_HIGHBIT_SET(*a) && !IS_HIGHBIT_SET(*b))
	{
		if (is_white(*a))
			a++;
		else if (is_white(*b))
			b++;
		else if (pg_ascii_tolower(*a) != pg_ascii_tolower(*b))
			return true;
		else if (*a == '\0')
			return false;
		else
		{
			a++;
			b++;
		}
	}
	return false;
}

static Reading
read_as_people(const char *name)
{
	char	   *lower = str_tolower(name, strlen(name), DEFAULT_COLLATION_OID);
	pg_wchar   *letters = palloc((strlen(lower) + 1) * sizeof(pg_wchar));
	int			all = pg_mb2wchar(lower, letters);
	int			n = 0;
	bool		gap = false;

	for (int i = 0; i < all; i++)
	{
		if (is_white(letters[i]))
			gap = n > 0;
		else if (!takes_no_room(letters[i]))
		{
			pg_wchar	letter = letters[i];

			if (gap)
				letters[n++] = ' ';
			gap = false;
			letters[n++] = letter;
		}
	}
	pfree(lower);
	return (Reading)
	{
		.length = n,.letters = letters
	};
}

/*
 * Is that another name, which people take for this one?
 */
static bool
is_alike(const char *name, const Reading *reading, const char *other)
{
	Reading		r;
	bool		alike;

	if (differs(name, other))
		return false;
	r = read_as_people(other);
	alike = r.length == reading->length &&
		memcmp(r.letters, reading->letters, r.length * sizeof(pg_wchar)) == 0;
	pfree(r.letters);
	return alike && strcmp(name, other) != 0;
}

/*
 * Elections and groups for which this one may be taken: where some programs
 * use the one name and some the other, each has a leader.
 */
void
le_diagnose_alike(Diagnosis *d)
{
	Reading		reading = read_as_people(d->name);
	List	   *names = NIL;

	foreach_ptr(const Election, election, le_elections_read())
	{
		if (is_alike(d->name, &reading, election->name))
			names = lappend(names, election->name);
	}
	foreach_ptr(const ElectionGroup, group, le_remembered.groups)
	{
		if (is_alike(d->name, &reading, group->name))
			names = lappend(names, group->name);
	}
	if (names != NIL)
		le_diagnose_say(d, SEVERITY_WARNING,
						psprintf("The name differs only by case or white space from these: %s. Each has a leader of its own.",
								 le_diagnose_names(names)),
						"If one election is meant, have all programs use one of the names, and drop what has another: drop_election(), drop_group().");
}
