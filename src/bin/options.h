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

/* Options that have no letter: numbers beyond every char */
enum
{
	OPT_RANK = 256,
	OPT_MODE,
	OPT_WAIT,
	OPT_SKIP,
	OPT_HOLD,
	OPT_GRACE,
	OPT_ONCE,
	OPT_FOREVER,
	OPT_JSON,
	OPT_SINCE,
	OPT_TO,
	OPT_TERMINATE
};

/* What the command line says.  An option that a subcommand lacks is not given. */
typedef struct Options
{
	ConnectOptions connect;
	bool		ask_password;
	const char *election;		/* NULL: all */

	/* of run */
	const char *candidate;
	const char *rank;			/* NULL: not given */
	int64		wait;			/* NEVER: no limit */
	int64		hold;			/* -1: none */
	int64		grace;			/* -1: not given */
	bool		session;		/* else detached */
	bool		skip;
	bool		once;
	bool		forever;
	bool		verbose;
	char	  **command;

	/* of status, watch, history and yield */
	const char *since;			/* NULL: not given */
	const char *to_candidate;	/* NULL: not given */
	bool		terminate;
	bool		json;
} Options;

/* A subcommand, and what its command line may and must have */
typedef struct Subcommand
{
	const char *name;
	int			(*execute) (const Options *options);	/* returns the exit code */
	bool		needs_primary;
	bool		needs_election;
	bool		takes_command;	/* after the options */
	int			options[12];	/* besides the connection's; ends with 0 */
} Subcommand;

/* options.c */
extern const char *progname;

extern void options_usage_error(void) pg_attribute_noreturn();
extern void options_read(const Subcommand *s, int argc, char **argv,
						 Options *o);

/* help.c */
extern void help_show(const char *subcommand);

#endif							/* OPTIONS_H */
