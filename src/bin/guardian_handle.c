/*-------------------------------------------------------------------------
 *
 * guardian_handle.c
 *		The guardian as pg_leader sees it: started, told, heard and reaped.
 *
 * Invariant: nothing here waits for the guardian, which may be stopped or
 * gone.  Only guardian_end() waits, for processes that were killed.
 *
 *-------------------------------------------------------------------------
 */
#include "guardian.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* SIGCHLD, and the signals that are passed on to the command */
static sigset_t own_signals;
static pid_t own_pid;

/*
 * Prepare this process for guardians, once, before the first one.  Return the
 * signals that it has to read from a signalfd; they are blocked.
 *
 * As a subreaper, this process becomes the parent of what a killed guardian
 * leaves.
 */
const sigset_t *
guardian_prepare(void)
{
	own_pid = getpid();
	(void) prctl(PR_SET_CHILD_SUBREAPER, 1);
	(void) signal(SIGPIPE, SIG_IGN);
	/* We take the terminal back from its background: that must not stop us. */
	(void) signal(SIGTTOU, SIG_IGN);
	signals_block(&own_signals, NULL, 0);
	return &own_signals;
}

/*
 * Start a guardian, which starts the command.  If that is not possible,
 * g->done is set, with an exec_errno.
 */
void
guardian_start(Guardian *g, const GuardianArgs *args)
{
	*g = NO_GUARDIAN;
	g->had_terminal = tcgetpgrp(STDIN_FILENO) == getpgrp();
	g->pid = message_fork(&g->socket);
	if (g->pid == 0)
		guardian_main(args, g->socket, own_pid, &own_signals);
	if (g->pid > 0)
		return;
	g->exec_errno = errno;
	g->done = g->reaped = true;
	g->pid = 0;
}

/*
 * Take what the guardian says.
 */
void
guardian_receive(Guardian *g)
{
	Message		m;

	while (message_receive(&g->socket, &m))
	{
		if (m.kind == MESSAGE_NOT_EXECUTED)
			g->exec_errno = m.number;
		else if (m.kind == MESSAGE_DONE)
		{
			g->done = true;
			g->status = m.number;
			g->cause = (Cause) m.at;
		}
	}
}

/* --- the end of a guardian */

/*
 * Reap the children that have ended: the guardian, and other processes that
 * became our children (we may be process 1 of a container, or the guardian may
 * have been killed).
 */
void
guardian_reap(Guardian *g)
{
	pid_t		pid;

	while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
	{
		if (pid == g->pid)
			g->reaped = true;
	}
}

/*
 * Do the work of a guardian that was killed, or that is stopped: kill it and
 * all that is left of the command, and return when all of that is gone.
 */
static void
replace(Guardian *g)
{
	pg_log_warning("the guardian of the command does not do its work: everything is killed");
	process_kill_descendants();
	if (g->had_terminal)
		process_give_terminal(getpgrp());
	g->reaped = true;
	g->done = true;
	g->cause = CAUSE_KILLED;
	g->status = SIGKILL;
}

/*
 * Return when nothing of the command is left, nor the guardian.  Unless the
 * guardian has said that the command is gone, everything is killed.
 */
void
guardian_end(Guardian *g)
{
	guardian_receive(g);
	if (!g->done)
		replace(g);
	if (!g->reaped)
	{
		/* It has nothing left to do, even if somebody has stopped it. */
		(void) kill(g->pid, SIGKILL);
		(void) waitpid(g->pid, NULL, 0);
	}
	g->reaped = true;
	if (g->socket >= 0)
		close(g->socket);
	g->socket = -1;
	g->pid = 0;
}
