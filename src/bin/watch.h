/*-------------------------------------------------------------------------
 *
 * watch.h
 *		What `watch` is made of: what is known of elections; the hook, a command
 *		line that is run for the newest event; and the screen, with a line for
 *		each election.
 *
 *-------------------------------------------------------------------------
 */
#ifndef WATCH_H
#define WATCH_H

#include "guardian.h"
#include "observer.h"

/* Columns of what is so just now */
enum
{
	NOW_ELECTION,
	NOW_REMAINING,				/* seconds */
	NOW_WAITING_FOR,
	NOW_UNUSED,
	NOW_TROUBLED,
	NOW_FIELDS
};

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

/* How many hints to keep about elections that are not known yet */
#define MOST_HINTS			100

/*
 * What was printed of an election.
 *
 * A hint is a notification that says that the leader is asked to yield, or has
 * changed its metadata.  It makes watch look whether that is true.
 */
typedef struct KnownElection
{
	char	   *election;
	char	   *prefix;			/* of payloads about it */
	char	   *term;			/* the last one */
	bool		ended;			/* the end of that term was printed */
	bool		hinted;			/* a hint has come since the last look */
	bool		yielding;		/* the leader was asked to, at the last look */
	int64		asked;			/* the last look at which it was */
	char	   *yielding_term;	/* the last request printed was in this term */
	bool		changes;		/* look whether its metadata has changed */
	bool		compared;		/* with what was so before, in this term */
	char	   *changed_at;		/* that was, in JSON; empty: never, in this
								 * term */
} KnownElection;

typedef struct Watch
{
	const Options *options;
	Connection	connection;
	Watched		known;
	char	   *hints[MOST_HINTS];	/* payloads; elections not known yet */
	int			nhints;
	int64		looks;			/* for requests to yield */
	bool		looks_at_all;	/* for changed metadata, in each election; of a
								 * screen, for new elections */
	bool		started;		/* the present state was printed */
	bool		standby;
	bool		draws;			/* on a terminal */
	int64		pause;			/* before the next try to connect */
	bool		troubled;		/* a warning was said since the last answer */
	int64		warn_at;		/* when to say one again */
	Hooks		hooks;
} Watch;

/* watched.c */
extern void *watched_get(Watched *list, const char *election, size_t size);

/* known.c */
extern void known_remember(Watch *w, const PGresult *events, int row);
extern char *known_json(const Watch *w,
						bool (*is_asked) (const KnownElection *k));
extern bool known_take_notification(const char *payload, void *arg);
extern void known_take_hints(Watch *w);

/* hook.c */
extern void hooks_prepare(Hooks *h, const char *command, Connection *c);
extern void hooks_note(Hooks *h, const PGresult *events, int row);
extern void hooks_set_metadata(Hooks *h, Hook *hook, const char *metadata);

/* screen.c */
extern bool screen_is_possible(void);
extern void screen_begin(Connection *c);
extern void screen_note(const PGresult *events, int row);
extern void screen_end_request(const char *election);
extern bool screen_asks(const char *election);
extern void screen_note_now(const PGresult *now);
extern void screen_forget_now(void);
extern void screen_draw(void);

#endif							/* WATCH_H */
