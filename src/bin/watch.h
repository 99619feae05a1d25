/*-------------------------------------------------------------------------
 *
 * watch.h
 *		What `watch` is made of: the hook, a command line that is run for the
 *		newest event; and the screen, with a line for each election.
 *
 *-------------------------------------------------------------------------
 */
#ifndef WATCH_H
#define WATCH_H

#include "guardian.h"
#include "observer.h"

/* What is known of each election, with its name first */
typedef struct Watched
{
	void	  **all;
	int			n;
} Watched;

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
	int			rank;			/* among the events of a term, from 1 on */

	int64		due;			/* when to run it; NEVER: not, or not yet */
	int64		pause;			/* before it is tried again */
} Hook;

typedef struct Hooks
{
	const char *command;		/* for the shell; NULL: no hooks */
	Watched		list;
	pid_t		pid;			/* of the hook that runs; 0: none does */
	Hook	   *running;		/* its election; NULL: a newer event has come */
	int			signal_fd;
	int			timer_fd;
	Watcher		watcher;
} Hooks;

/* watched.c */
extern void *watched_get(Watched *list, const char *election, size_t size);

/* hook.c */
extern void hooks_prepare(Hooks *h, const char *command, Connection *c);
extern void hooks_note(Hooks *h, const PGresult *events, int row);
extern void hooks_set_metadata(Hooks *h, Hook *hook, const char *metadata);

/* screen.c */
extern bool screen_is_possible(void);
extern void screen_begin(Connection *c);
extern void screen_note(const PGresult *events, int row);
extern void screen_end_request(const char *election);
extern void screen_draw(void);

#endif							/* WATCH_H */
