/*-------------------------------------------------------------------------
 *
 * options.h
 *		What the command line asks for.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "pg_leader.h"

/* What the command line says */
typedef struct Options
{
	ConnectOptions connect;
	bool		ask_password;
	const char *election;		/* or group; NULL: all */
	const char *group;			/* run only; NULL: an election */

	/* of run and stand */
	const char *candidate;
	const char *rank;			/* NULL: not given */
	int64		grace;			/* -1: not given */
	int64		refusal_timeout;	/* how long refusals may last */
	Address		http;			/* stand only */

	/* of run */
	int64		wait;			/* NEVER: no limit */
	int64		hold;			/* -1: none */
	int64		every;			/* -1: not given */
	int64		offset;			/* -1: not given */
	const char *attempts;		/* NULL: not given */
	bool		session;		/* else detached */
	bool		skip;
	bool		once;
	bool		forever;
	bool		verbose;
	CheckOptions check;
	const char *failures;		/* of checks, as given; NULL: not given */
	int			check_failures; /* in a row, that end a leadership */
	char	  **command;

	/* of status, diagnose, watch, history and yield */
	const char *since;			/* NULL: not given */
	const char *to_candidate;	/* NULL: not given */
	bool		terminate;
	bool		all;			/* unused elections, too */
	bool		json;
	const char *exec;			/* NULL: no hook */
	const char *html;			/* where the page goes; NULL: no page */
} Options;

/* A subcommand, and what it needs */
typedef struct Subcommand
{
	const char *name;
	int			(*execute) (const Options *options);	/* the exit code */
	bool		needs_primary;
	bool		needs_election;
	bool		takes_command;	/* after the options */
	bool		stands;			/* is a candidate */
	bool		needs_http;
} Subcommand;

/* options.c */
extern const char *progname;

extern void options_usage_error(void);
extern void options_read(const Subcommand *s, int argc, char **argv,
						 Options *o);

/* help.c */
extern void help_show(const char *subcommand);

#endif							/* OPTIONS_H */
