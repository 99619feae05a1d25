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

extern int	run_command(const RunOptions *options);
extern int	show_status(const ObserveOptions *options);
extern int	watch_elections(const ObserveOptions *options);
extern int	show_history(const ObserveOptions *options);
extern int	yield_election(const ObserveOptions *options);

#endif							/* SUBCOMMANDS_H */
