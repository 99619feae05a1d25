/*-------------------------------------------------------------------------
 *
 * checker.c
 *		The checker: a process that runs the user's check again and again, and
 *		tells pg_leader how each ended.
 *
 *		pg_leader ---- checker ---- check ---- ...
 *			\--------- guardian --- command
 *
 * Invariant: nothing waits for a check.  pg_leader hears how checks end, and
 * takes silence for a failure; the guardian does not know of checks at all.
 * So a check that hangs, or a checker that is stopped, delays neither.
 *
 * One check runs at a time, and nothing of it outlives its timeout, nor its
 * end, nor pg_leader, nor the checker: the checker is the parent of all that a
 * check leaves (PR_SET_CHILD_SUBREAPER).  It has to kill the check, so it is not
 * killed itself: pg_leader shuts the socket down, and if pg_leader was killed,
 * there is a signal of the kernel.  Signals of others do not end it.  If it is
 * killed all the same, the kernel kills the check, and pg_leader what is left of
 * the checker's session (process_kill_session()).
 *
 * The checker has none of pg_leader's descriptors: a session would last as
 * long as a checker that has its socket.
 *
 *-------------------------------------------------------------------------
 */
#include "checker.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECKER_NAME	"leader_checker"

/* Between two rounds of killing, until nothing of a check is left */
#define KILL_INTERVAL	(5 * MSEC)

/* The checker as it sees itself */
typedef struct CheckerState
{
	const CheckOptions *options;
	char	  **environment;	/* of checks */
	int			socket;
	int			signal_fd;
	pid_t		parent;			/* pg_leader */
	pid_t		check;
	bool		reaped;			/* the check itself has ended */
	int			status;			/* of the check, as from waitpid() */
} CheckerState;

/*
 * Wait until a child ends, or until a moment.  Do not return when this process
 * is to end.
 */
static void
wait_for_event(CheckerState *c, int64 until)
{
	struct pollfd fds[2] = {
		{.fd = c->signal_fd,.events = POLLIN}, {.fd = c->socket}
	};
	int64		left = Max(until - now_us(), 0);

	(void) poll(fds, lengthof(fds), (left + MSEC - 1) / MSEC);
	while (signals_next(c->signal_fd) != 0)
		;
	if (fds[1].revents == 0 && getppid() == c->parent)
		return;
	process_kill_descendants();
	_exit(EXIT_SUCCESS);
}

/*
 * Reap what has ended.  Return false when there are no children left.
 */
static bool
reap_all(CheckerState *c)
{
	int			status;
	pid_t		pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
	{
		if (pid != c->check)
			continue;
		c->reaped = true;
		c->status = status;
	}
	return pid == 0;
}

/*
 * Run one check, and say how it has ended: -1 if it has not, in time.
 */
static void
check_once(CheckerState *c, int64 began)
{
	int64		until = began + c->options->timeout;
	bool		passed;

	c->check = shell_start(c->options->command, c->environment);
	c->reaped = false;
	c->status = -1;
	while (c->check > 0 && reap_all(c) && !c->reaped && now_us() < until)
		wait_for_event(c, until);
	if (c->check < 0)
		c->status = EXIT_CANNOT_EXECUTE << 8;
	passed = c->reaped && c->status == 0;
	message_send(c->socket, passed ? MESSAGE_PASSED : MESSAGE_FAILED,
				 c->status, began);
}

/*
 * Kill all that is left of a check, and return when it is gone.  pg_leader is
 * told before: what the kernel cannot kill (a process that waits for a dead
 * file server) keeps us here.
 */
static void
kill_rest(CheckerState *c)
{
	while (reap_all(c))
	{
		process_signal_descendants(c->reaped ? 0 : c->check, SIGKILL);
		wait_for_event(c, now_us() + KILL_INTERVAL);
	}
}

/*
 * Make this process, just forked, a checker.
 */
static void
set_up(CheckerState *c)
{
	sigset_t	signals;
	int			null = open("/dev/null", O_RDWR);

	(void) prctl(PR_SET_CHILD_SUBREAPER, 1);
	(void) prctl(PR_SET_NAME, CHECKER_NAME);
	(void) prctl(PR_SET_PDEATHSIG, SIGTERM);
	/* If pg_leader has ended before that, there is no signal. */
	if (getppid() != c->parent)
		_exit(EXIT_SUCCESS);
	(void) setsid();

	/* A check that fills its output must not wait for somebody to read it. */
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		(void) dup2(null, fd);
	process_close_descriptors(c->socket);

	/* They are blocked already. */
	signals_block(&signals, NULL, 0);
	c->signal_fd = signals_check(signals_open(&signals));
}

/*
 * All of the checker's life.
 */
void
checker_main(const CheckOptions *options, char **environment, int socket,
			 pid_t parent)
{
	CheckerState c = {
		.options = options,.environment = environment,.socket = socket,
		.parent = parent
	};

	set_up(&c);
	for (;;)
	{
		int64		began = now_us();

		check_once(&c, began);
		kill_rest(&c);
		while (now_us() < began + options->every)
			wait_for_event(&c, began + options->every);
	}
}
