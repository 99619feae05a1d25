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

typedef struct RunOptions
{
	ConnectOptions connect;
	const char *election;
	const char *candidate;
	const char *rank;			/* NULL: not given */
	bool		session;
	bool		forever;
	bool		skip;
	int64		wait;			/* NEVER: no limit */
	int64		hold;			/* -1: none */
	int64		grace;			/* -1: not given */
	char	  **command;
} RunOptions;

typedef struct ObserveOptions
{
	ConnectOptions connect;
	const char *election;		/* NULL: all */
	const char *since;
	const char *to_candidate;
	bool		terminate;
	bool		json;
} ObserveOptions;

/* help.c */
extern void help_show(const char *progname, const char *subcommand);

#endif							/* OPTIONS_H */
