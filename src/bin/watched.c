/*-------------------------------------------------------------------------
 *
 * watched.c
 *		Lists of what `watch` knows of each election.
 *
 * Invariant: an election is in a list once, in the order of names, and what is
 * known of it does not move.
 *
 *-------------------------------------------------------------------------
 */
#include "watch.h"

/*
 * Return what is known of an election.  If nothing is, begin to know it: all
 * zero, so many bytes, but for the first member, which is its name; or, if that
 * is none, return NULL.
 */
void *
watched_get(Watched *list, const char *election, size_t size)
{
	int			i = 0;
	char	  **known;

	while (i < list->n && strcmp(*(char **) list->all[i], election) < 0)
		i++;
	if (i < list->n && strcmp(*(char **) list->all[i], election) == 0)
		return list->all[i];
	if (size == 0)
		return NULL;
	known = pg_malloc0(size);
	*known = pg_strdup(election);
	list->all = pg_realloc(list->all, (list->n + 1) * sizeof(void *));
	memmove(&list->all[i + 1], &list->all[i], (list->n - i) * sizeof(void *));
	list->all[i] = known;
	list->n++;
	return known;
}
