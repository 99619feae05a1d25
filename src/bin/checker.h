/*-------------------------------------------------------------------------
 *
 * checker.h
 *		The checker: the process that runs the user's check again and again.
 *
 *-------------------------------------------------------------------------
 */
#ifndef CHECKER_H
#define CHECKER_H

#include "guardian.h"

/* The checker as pg_leader sees it */
typedef struct Checker
{
	CheckOptions options;
	char	  **environment;	/* of checks */
	pid_t		pid;			/* 0: none */
	int			socket;			/* -1: none */
	int64		started;		/* when it was; 0: never */
	int64		passed;			/* when the last check that passed began; 0:
								 * none has */
	int			failures;		/* checks in a row that have failed */
} Checker;

/* checker.c */
extern void checker_main(const CheckOptions *options, char **environment,
						 int socket, pid_t parent);

/* checker_handle.c */
extern bool checker_tend(Checker *c);
extern bool checker_passes(Checker *c, int failures);
extern int64 checker_next(const Checker *c, int failures);
extern void checker_end(Checker *c);

#endif							/* CHECKER_H */
