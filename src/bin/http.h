/*-------------------------------------------------------------------------
 *
 * http.h
 *		The sidecar's HTTP side: what it replies, and the server.
 *
 *-------------------------------------------------------------------------
 */
#ifndef HTTP_H
#define HTTP_H

#include "pg_leader.h"

/* What the main thread knows of its candidate, for the thread that replies */
typedef struct Snapshot
{
	const char *not_leading;	/* why, a literal; NULL: it leads */
	int64		term;			/* the last one, 0: none yet */
	int64		until;			/* it leads until then, a margin included */
	int64		longest;		/* what a client may be told to remain */
	bool		connected;		/* to the server */
	int64		elected;		/* how many times */
	int64		renewed;
} Snapshot;

/* A reply to a request */
typedef struct Reply
{
	int			status;
	const char *type;			/* of the body */
	char	   *body;			/* to be freed */
	int64		term;			/* 0: say neither this nor what remains */
	int64		remaining_ms;
} Reply;

/* reply.c */
extern void reply_set_names(const char *election, const char *candidate);
extern void reply_publish(const Snapshot *snapshot);
extern Reply reply_make(const char *method, const char *path);

/* http.c */
extern bool http_start(const Address *address);
extern void http_stop(void);

#endif							/* HTTP_H */
