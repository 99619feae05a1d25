/*-------------------------------------------------------------------------
 *
 * subcommands.h
 *		What main.c calls: one function for each subcommand.
 *
 * Each returns the exit code of pg_leader.  Those that look at elections exit
 * by themselves if the server does not answer (see observer.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef SUBCOMMANDS_H
#define SUBCOMMANDS_H

#include "options.h"

extern int	run_run(const Options *options);
extern int	sidecar_run(const Options *options);
extern int	status_show(const Options *options);
extern int	diagnose_show(const Options *options);
extern int	watch_run(const Options *options);
extern int	timeline_show(const Options *options);
extern int	yield_run(const Options *options);

#endif							/* SUBCOMMANDS_H */
