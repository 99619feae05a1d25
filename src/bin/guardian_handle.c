/*-------------------------------------------------------------------------
 *
 * guardian_handle.c
 *		The guardian as pg_leader sees it: started, told, heard and collected.
 *
 * Invariant: nothing here waits for the guardian, which may be stopped or gone.
 * Only guardian_replace() waits, for what has been killed.
 *
 *-------------------------------------------------------------------------
 */
#include "guardian.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* SIGCHLD, and what is passed on */
static sigset_t own_signals;
static pid_t own_pid;

/*
 * To be called once, before the first guardian: what is left of a guardian
 * that was killed becomes our child.  Returns the signals to take, blocked.
 */
const sigset_t *
guardian_prepare(void)
{
	static const int passed_on[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};

	own_pid = getpid();
	(void) prctl(PR_SET_CHILD_SUBREAPER, 1);
	(void) signal(SIGCHLD, SIG_DFL);
	(void) signal(SIGPIPE, SIG_IGN);
	/* Who gives the terminal back is not in its foreground. */
	(void) signal(SIGTTOU, SIG_IGN);
	sigemptyset(&own_signals);
	sigaddset(&own_signals, SIGCHLD);
	for (int i = 0; i < lengthof(passed_on); i++)
	{
		struct sigaction now;

		/* What was ignored when we were started (nohup) stays so. */
		if (passed_on[i] == SIGTERM ||
			sigaction(passed_on[i], NULL, &now) != 0 || now.sa_handler != SIG_IGN)
			sigaddset(&own_signals, passed_on[i]);
	}
	(void) sigprocmask(SIG_BLOCK, &own_signals, NULL);
	return &own_signals;
}

static void
not_started(Guardian *g)
{
	g->exec_errno = errno;
	g->done = g->reaped = true;
	g->pid = 0;
}

/*
 * Start a guardian, which starts the command.  If that cannot be done, g->done
 * is set, with an exec_errno.
 */
void
guardian_start(Guardian *g, const GuardianArgs *charge)
{
	int			sockets[2];

	memset(g, 0, sizeof(Guardian));
	g->socket = -1;
	g->had_terminal = tcgetpgrp(STDIN_FILENO) == getpgrp();
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
	{
		not_started(g);
		return;
	}
	g->pid = fork();
	if (g->pid < 0)
	{
		not_started(g);
		close(sockets[0]);
		close(sockets[1]);
		return;
	}
	if (g->pid == 0)
	{
		close(sockets[0]);
		guardian_main(charge, sockets[1], own_pid, &own_signals);
	}
	close(sockets[1]);
	g->socket = sockets[0];
}

static void
tell_guardian(const Guardian *g, MessageKind kind, int number, int64 at)
{
	Message		m = {.kind = kind,.number = number,.at = at};

	/* One that does not read any more is replaced before the deadline. */
	if (g->socket >= 0)
		(void) send(g->socket, &m, sizeof(m), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void
guardian_set_deadline(Guardian *g, int64 deadline, int64 lease)
{
	tell_guardian(g, MESSAGE_DEADLINE, (int) (lease / MSEC), deadline);
}

void
guardian_signal(Guardian *g, int signo)
{
	tell_guardian(g, MESSAGE_SIGNAL, signo, 0);
}

/*
 * Have the command end: SIGTERM now; SIGKILL then, or at the deadline.
 */
void
guardian_stop(Guardian *g, int64 kill_at)
{
	tell_guardian(g, MESSAGE_STOP, 0, kill_at);
}

void
guardian_kill(Guardian *g)
{
	tell_guardian(g, MESSAGE_KILL, 0, 0);
}

/*
 * Read what the guardian says.  One that has ended without reading all that we
 * said is a connection reset first; what it said comes after that.
 */
void
guardian_receive(Guardian *g)
{
	while (g->socket >= 0)
	{
		Message		m;
		ssize_t		length = recv(g->socket, &m, sizeof(m), MSG_DONTWAIT);

		if (length < 0 && (errno == EINTR || errno == ECONNRESET))
			continue;
		if (length < 0 && errno == EAGAIN)
			return;
		if (length != sizeof(m))
		{
			close(g->socket);
			g->socket = -1;
		}
		else if (m.kind == MESSAGE_NOT_EXECUTED)
			g->exec_errno = m.number;
		else if (m.kind == MESSAGE_DONE)
		{
			g->done = true;
			g->status = m.number;
			g->cause = (Cause) m.at;
		}
	}
}

/*
 * Collect ended children: the guardian, and (as process 1 of a container, or
 * after a guardian's death) whatever else was left to us.
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
 * Do the work of a guardian that was killed, or that does not do it: kill all
 * that is left, and return when it is gone.
 */
void
guardian_replace(Guardian *g)
{
	process_kill_descendants();
	if (g->had_terminal)
		(void) tcsetpgrp(STDIN_FILENO, getpgrp());
	if (g->socket >= 0)
		close(g->socket);
	g->socket = -1;
	g->reaped = true;
	if (!g->done)
	{
		g->done = true;
		g->cause = CAUSE_KILLED;
		g->status = SIGKILL;
	}
}
