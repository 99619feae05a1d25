/*-------------------------------------------------------------------------
 *
 * hook.h
 *		The hook of `watch`: a command line, run for the newest event.
 *
 *-------------------------------------------------------------------------
 */
#ifndef HOOK_H
#define HOOK_H

#include "guardian.h"
#include "observer.h"

/* What was run, or is to be run, for one election */
typedef struct Hook
{
	/* The newest event, as the hook gets it */
	char	   *election;
	char	   *event;
	char	   *leader;			/* empty: nobody leads */
	char	   *term;
	char	   *metadata;		/* of the leader; NULL: not asked for yet */

	/* How new it is */
	int64		order;			/* its term */
	int			rank;			/* among the events of a term */

	int64		due;			/* when to run it; NEVER: not, or not yet */
	int64		pause;			/* before it is tried again */
} Hook;

typedef struct Hooks
{
	const char *command;		/* for the shell; NULL: no hooks */
	Hook	  **all;
	int			n;
	pid_t		pid;			/* of the hook that runs; 0: none does */
	Hook	   *running;		/* its election; NULL: a newer event has come */
	int			signal_fd;
	int			timer_fd;
	Watcher		watcher;
} Hooks;

extern void hooks_prepare(Hooks *h, const char *command, Connection *c);
extern void hooks_note(Hooks *h, const PGresult *events, int row,
					   const char *term, bool ended);
extern Hook *hooks_without_metadata(Hooks *h);
extern void hooks_set_metadata(Hooks *h, Hook *hook, const char *metadata);

#endif							/* HOOK_H */
