/*-------------------------------------------------------------------------
 *
 * subcommands.h
 *		What main.c calls: one function for each subcommand.
 *		Each returns the exit code of the program.
 *
 *-------------------------------------------------------------------------
 */
#ifndef SUBCOMMANDS_H
#define SUBCOMMANDS_H

#include "options.h"

extern int	agent_run(const RunOptions *options);
extern int	status_show(const ObserveOptions *options);
extern int	watch_run(const ObserveOptions *options);
extern int	timeline_show(const ObserveOptions *options);
extern int	yield_run(const ObserveOptions *options);

#endif							/* SUBCOMMANDS_H */
