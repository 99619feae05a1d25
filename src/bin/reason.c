/*-------------------------------------------------------------------------
 *
 * reason.c
 *		Why terms end: the letter, the look and the meaning of each reason.
 *
 * Invariant: a term is shown whatever it ended of, be it a reason of a newer
 * version of the extension.
 *
 *-------------------------------------------------------------------------
 */
#include "observer.h"

/* In the order of the legends; the last one has no name */
const Reason reasons[] = {
	{"resigned", 'r', "given", "the leader gave it up"},
	{"left", 'l', "given", "the leader left the election"},
	{"transferred", 't', "given", "the leader handed it to another"},
	{"yielded", 'y', "given", "the leader was asked to go"},
	{"expired", 'x', "lost", "the lease was not renewed in time"},
	{"session ended", 's', "lost", "the leader's connection was lost or closed"},
	{"session reset", 'S', "lost", "the session was reset, perhaps by a pool"},
	{"failover", 'f', "failover", "the server started anew, or a standby was promoted"},
	{"dropped", 'd', "dropped", "the election was dropped"},
	{NULL, '?', "dropped", "of a newer version"}
};

/*
 * Return what is known of a reason.
 */
const Reason *
reason_find(const char *name)
{
	const Reason *r = reasons;

	while (r->name != NULL && strcmp(r->name, name) != 0)
		r++;
	return r;
}
