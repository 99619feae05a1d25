/*-------------------------------------------------------------------------
 *
 * round.c
 *		When a round of the worker has to end, when the next one begins, and
 *		with which elections.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "worker/worker.h"

/*
 * A wait may have reset our latch, so that a wake-up has gone unheard, or
 * other processes may have changed something meanwhile.  Run one more round:
 * the worker sleeps only after a round that has only scanned.
 */
void
le_round_again(Round *round)
{
	round->next = le_clock();
	le_standing_scan_again();
}

/*
 * Is other work to end now, because leases are to be renewed?  A wake-up may
 * tell of a lease that no scan has seen yet: to find out when that is to be
 * renewed, a scan is due soon.
 */
bool
le_round_is_to_renew(const Round *round)
{
	int64		now = le_clock();

	return round->renew_at <= now ||
		(MyLatch->is_set && now - round->scanned_at >= LONGEST_WORK);
}

/*
 * Note, for this round, that there is something to do in an election.
 */
Due *
le_round_note(List **list, const char *election)
{
	MemoryContext old = MemoryContextSwitchTo(le_worker_context);
	Due		   *due = palloc0(sizeof(Due));

	due->election = pstrdup(election);
	*list = lappend(*list, due);
	MemoryContextSwitchTo(old);
	return due;
}

static int
compare(const ListCell *a, const ListCell *b)
{
	return strcmp(((const Due *) lfirst(a))->election,
				  ((const Due *) lfirst(b))->election);
}

/*
 * The list in the order of the names of elections, but beginning with that
 * one, or the next: where the last round had to end.  So the first elections,
 * however much there is to do in them, do not keep the worker from the others.
 */
List *
le_round_in_turn(List *list, const char *from)
{
	List	   *rest;
	int			n = 0;

	list_sort(list, compare);
	while (n < list_length(list) &&
		   strcmp(((const Due *) list_nth(list, n))->election, from) < 0)
		n++;
	rest = list_copy_tail(list, n);
	return list_concat(rest, list_truncate(list, n));
}
