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

#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

static const int ends[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};

static void
end_at_once(int signo)
{
	_exit(EXIT_SIGNAL(signo));
}

/*
 * For a program that reads no signals from a descriptor (yet), and has no
 * children of its own.  If it is process 1 of a container, the kernel keeps
 * signals from it that would end another process: end by them, too.  And let the
 * kernel collect processes that others have left to us.
 */
void
signals_end_process(void)
{
	(void) signal(SIGCHLD, SIG_IGN);
	for (int i = 0; getpid() == 1 && i < lengthof(ends); i++)
	{
		if (signal(ends[i], end_at_once) == SIG_IGN)
			(void) signal(ends[i], SIG_IGN);
	}
}

/*
 * Block SIGCHLD, the signals that ask this process to end, and n more.  Return
 * them: they are for a signalfd.
 */
void
signals_block(sigset_t *blocked, const int *more, int n)
{
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
 * Return a descriptor that was just made; or, if that has failed, report it
 * and exit.
 */
int
signals_check(int fd)
{
	if (fd >= 0)
		return fd;
	pg_log_error("could not watch for signals: %m");
	_exit(EXIT_USAGE);
}

/*
 * Return a descriptor from which these signals, which are blocked, are read; or
 * -1, with errno set.
 */
int
signals_open(const sigset_t *blocked)
{
	return signalfd(-1, blocked, SFD_CLOEXEC | SFD_NONBLOCK);
}

/*
 * Return the next signal that has come, but for that of a child that has
 * ended; 0: none has.
 */
int
signals_next(int fd)
{
	struct signalfd_siginfo info;

	while (read(fd, &info, sizeof(info)) == sizeof(info))
	{
		if (info.ssi_signo != SIGCHLD)
			return info.ssi_signo;
	}
	return 0;
}

/*
 * Return a descriptor that can be read once a moment has come; or -1, with errno
 * set.
 */
int
signals_open_timer(void)
{
	return timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
}

/*
 * The moment of a timer may have come: the next one makes it readable again.
 */
void
signals_clear_timer(int fd)
{
	uint64		expirations;

	(void) !read(fd, &expirations, sizeof(expirations));
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
