/*-------------------------------------------------------------------------
 *
 * signals.c
 *		The signals that a process reads from a descriptor, among other events.
 *
 * Invariant: what was ignored when this program was started (nohup) stays
 * ignored.
 *
 *-------------------------------------------------------------------------
 */
#include "guardian.h"

/*
 * Block SIGCHLD and the signals that ask this process to end, and return them:
 * they are for a signalfd.
 */
void
signals_block(sigset_t *blocked)
{
	static const int ends[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};

	(void) signal(SIGCHLD, SIG_DFL);
	sigemptyset(blocked);
	sigaddset(blocked, SIGCHLD);
	for (int i = 0; i < lengthof(ends); i++)
	{
		struct sigaction now;

		if (ends[i] == SIGTERM ||
			sigaction(ends[i], NULL, &now) != 0 || now.sa_handler != SIG_IGN)
			sigaddset(blocked, ends[i]);
	}
	(void) sigprocmask(SIG_BLOCK, blocked, NULL);
}
