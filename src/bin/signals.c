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

#include <sys/timerfd.h>
#include <unistd.h>

/*
 * Block SIGCHLD, the signals that ask this process to end, and n more.  Return
 * them: they are for a signalfd.
 */
void
signals_block(sigset_t *blocked, const int *more, int n)
{
	static const int ends[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};

	(void) signal(SIGCHLD, SIG_DFL);
	sigemptyset(blocked);
	sigaddset(blocked, SIGCHLD);
	for (int i = 0; i < lengthof(ends) + n; i++)
	{
		int			signo = i < n ? more[i] : ends[i - n];
		struct sigaction now;

		if (signo == SIGTERM ||
			sigaction(signo, NULL, &now) != 0 || now.sa_handler != SIG_IGN)
			sigaddset(blocked, signo);
	}
	(void) sigprocmask(SIG_BLOCK, blocked, NULL);
}

/*
 * Return a descriptor that was just made, to wait for signals or for a moment;
 * or, if that has failed, report it and exit.
 */
int
signals_checked_fd(int fd)
{
	if (fd >= 0)
		return fd;
	pg_log_error("could not watch for signals: %m");
	_exit(EXIT_USAGE);
}

/*
 * Set a timer to a moment; NEVER: to none.  A timer of this clock counts while
 * the machine sleeps; the time-out of poll() does not.
 */
void
signals_set_timer(int fd, int64 at)
{
	struct itimerspec spec = {{0, 0}, {0, 0}};

	if (at != NEVER)
	{
		spec.it_value.tv_sec = at / SEC;
		spec.it_value.tv_nsec = at % SEC * 1000;
	}
	(void) timerfd_settime(fd, TFD_TIMER_ABSTIME, &spec, NULL);
}
