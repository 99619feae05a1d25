/*-------------------------------------------------------------------------
 *
 * guardian.c
 *		The guardian: a process that runs the command of one leadership, and
 *		the only one that ends it.
 *
 * Invariant: nothing of the command runs after the deadline, whatever becomes
 * of pg_leader.  The guardian knows the deadline, needs neither its parent nor
 * the server to keep it, and says that the command is gone only when no
 * descendant of it is left.  It never waits for its parent.
 *
 *		pg_leader ---- guardian ---- command ---- ...
 *
 * They talk over a socket pair; its end, on either side, is the news that the
 * other process is gone.  If that is pg_leader, the guardian ends the command
 * as for a deadline.  If it is the guardian, the kernel kills the command, and
 * pg_leader, which has become the parent of the rest, that.  (The two have
 * different names, so that killall does not take them for one.)
 *
 * Where the connection is the leadership (see lead.c), the guardian holds an
 * inherited descriptor of it: the server sees its end only when both processes
 * are gone, and the guardian sees it when the server has ended it, also while
 * pg_leader is stopped.  It only looks, and reads nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GUARDIAN_NAME	"leader_guardian"

/* How often killing is repeated until everything is gone, in milliseconds */
#define KILL_INTERVAL_MS 5

/* The guardian as it sees itself */
typedef struct GuardianState
{
	const GuardianArgs *charge;
	int			socket;			/* -1: the parent is gone */
	int			signal_fd;
	int			timer_fd;
	int			exec_fd;		/* -1: the command is executed, or was not */
	int			connection_fd;	/* -1: no matter, or it has ended */
	pid_t		command;
	bool		reaped;			/* the command itself has ended */
	int			status;
	int64		deadline;
	int64		margin;			/* so long before it, all is killed */
	int64		grace;			/* and so long before that, asked to end */
	int64		kill_at;		/* NEVER: it was not asked to end */
	bool		killing;
	Cause		cause;
	pid_t		terminal_group; /* that had the terminal; 0: not ours */
} GuardianState;

/* --- the command's own process, until it executes the command */

static void
become_command(const GuardianState *w, int exec_fd)
{
	sigset_t	none;
	int32		error;

	(void) setpgid(0, 0);
	if (w->terminal_group != 0)
		(void) tcsetpgrp(STDIN_FILENO, getpid());

	(void) signal(SIGPIPE, SIG_DFL);
	(void) signal(SIGTTOU, SIG_DFL);
	sigemptyset(&none);
	(void) sigprocmask(SIG_SETMASK, &none, NULL);

	/* Whatever has kept us so long, the lease is not ours any more. */
	if (now_us() >= w->deadline - w->margin)
		_exit(EXIT_LOST);
	execvp(w->charge->command[0], w->charge->command);
	error = errno;
	(void) !write(exec_fd, &error, sizeof(error));
	_exit(EXIT_CANNOT_EXECUTE);
}

/*
 * Start the command.  Its group is made on both sides, so that nobody can
 * signal it before it is there.
 */
static void
start_command(GuardianState *w)
{
	pid_t		guardian = getpid();
	int			fds[2];

	if (pipe2(fds, O_CLOEXEC) != 0)
	{
		pg_log_error("could not make a pipe: %m");
		_exit(EXIT_USAGE);
	}
	w->command = fork();
	if (w->command == 0)
	{
		(void) prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != guardian)
			_exit(EXIT_LOST);
		become_command(w, fds[1]);
	}
	if (w->command < 0)
	{
		pg_log_error("could not fork: %m");
		_exit(EXIT_USAGE);
	}
	(void) setpgid(w->command, w->command);
	close(fds[1]);
	w->exec_fd = fds[0];
}

/* --- the guardian */

/*
 * How long before the deadline of a lease the command is killed: whatever that
 * takes should be over by then, also where processes have to wait for a processor.
 */
int64
guardian_kill_margin(int64 lease)
{
	return Max(Min(lease / 10, 2 * SEC), 100 * MSEC);
}

/*
 * The longest grace that leaves time to renew a lease, which is due after a
 * third of it, before SIGTERM is.
 */
int64
guardian_longest_grace(int64 lease)
{
	return Min(lease / 2, lease / 5 * 3 - guardian_kill_margin(lease));
}

static void
set_deadline(GuardianState *w, int64 deadline, int64 lease)
{
	w->deadline = deadline;
	w->margin = guardian_kill_margin(lease);
	/* The lease may have become shorter since this was checked. */
	w->grace = Max(Min(w->charge->grace, guardian_longest_grace(lease)), 0);
}

static void
tell_parent(const GuardianState *w, MessageKind kind, int number, int64 at)
{
	Message		m = {.kind = kind,.number = number,.at = at};

	if (w->socket >= 0)
		(void) send(w->socket, &m, sizeof(m), MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void
signal_command(const GuardianState *w, int signo)
{
	/* A group without its leader might be somebody else's by now. */
	process_signal_descendants(w->reaped ? 0 : w->command, signo);
}

/*
 * A signal of the user's is for the command's group, and not for what has left
 * that.
 */
static void
pass_on(const GuardianState *w, int signo)
{
	if (w->reaped)
		return;
	(void) kill(-w->command, signo);
	/* A stopped process has to go on to see it. */
	(void) kill(-w->command, SIGCONT);
}

/*
 * Ask the command to end, unless that was done; what is left at that moment
 * is killed.
 */
static void
ask_to_end(GuardianState *w, Cause cause, int64 kill_at)
{
	if (w->kill_at == NEVER)
		signal_command(w, SIGTERM);
	w->kill_at = Min(w->kill_at, kill_at);
	if (w->cause == CAUSE_NONE && !w->reaped)
		w->cause = cause;
}

static void
kill_command(GuardianState *w, Cause cause)
{
	if (!w->reaped && (w->cause == CAUSE_NONE || cause == CAUSE_DEADLINE))
		w->cause = cause;
	w->killing = true;
	signal_command(w, SIGKILL);
}

/*
 * Collect whoever has ended: the command, and what it left to us.  False when
 * nobody is left.
 */
static bool
reap_all(GuardianState *w)
{
	for (;;)
	{
		int			status;
		pid_t		pid = waitpid(-1, &status, WNOHANG | WUNTRACED);

		if (pid == 0)
			return true;
		if (pid < 0)
			return errno != ECHILD;
		if (WIFSTOPPED(status))
		{
			/*
			 * The terminal's user has stopped the command.  The shell, which
			 * waits for pg_leader, would never get its terminal back.
			 */
			if (w->terminal_group != 0 && WSTOPSIG(status) == SIGTSTP)
				(void) kill(-w->command, SIGCONT);
		}
		else if (pid == w->command)
		{
			w->reaped = true;
			w->status = status;
		}
	}
}

static void
read_exec_error(GuardianState *w)
{
	int32		error;

	if (read(w->exec_fd, &error, sizeof(error)) == sizeof(error))
		tell_parent(w, MESSAGE_NOT_EXECUTED, error, 0);
	close(w->exec_fd);
	w->exec_fd = -1;
}

static void
read_messages(GuardianState *w)
{
	for (;;)
	{
		Message		m;
		ssize_t		length = recv(w->socket, &m, sizeof(m), MSG_DONTWAIT);

		if (length < 0 && errno == EINTR)
			continue;
		if (length < 0 && errno == EAGAIN)
			return;
		if (length != sizeof(m))
		{
			/* pg_leader is gone. */
			close(w->socket);
			w->socket = -1;
			ask_to_end(w, CAUSE_STOPPED, now_us() + w->grace);
			return;
		}
		switch ((MessageKind) m.kind)
		{
			case MESSAGE_DEADLINE:
				set_deadline(w, m.at, m.number * MSEC);
				break;
			case MESSAGE_SIGNAL:
				pass_on(w, m.number);
				break;
			case MESSAGE_STOP:
				ask_to_end(w, CAUSE_STOPPED, m.at);
				break;
			case MESSAGE_KILL:
				kill_command(w, CAUSE_KILLED);
				break;
			default:
				break;
		}
	}
}

/*
 * Do what is due by the clock.
 */
static void
keep_deadline(GuardianState *w)
{
	int64		now = now_us();
	int64		last = w->deadline - w->margin;

	if (w->killing)
		signal_command(w, SIGKILL);
	else if (now >= last)
		kill_command(w, CAUSE_DEADLINE);
	else if (now >= w->kill_at)
		kill_command(w, w->cause);
	else if (w->kill_at == NEVER && now >= last - w->grace)
		ask_to_end(w, CAUSE_DEADLINE, last);
}

/*
 * Have the timer go off when something is due next.  It counts while the
 * machine sleeps, which a poll() does not.  While all is being killed, nothing
 * else is due.
 */
static void
set_timer(const GuardianState *w)
{
	int64		due = w->deadline - w->margin;
	struct itimerspec at = {{0, 0}, {0, 0}};

	if (w->kill_at == NEVER)
		due -= w->grace;
	due = Max(Min(due, w->kill_at), 1);
	if (!w->killing)
	{
		at.it_value.tv_sec = due / SEC;
		at.it_value.tv_nsec = due % SEC * 1000;
	}
	(void) timerfd_settime(w->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

static void
wait_for_event(GuardianState *w)
{
	struct pollfd fds[5] = {
		{.fd = w->signal_fd,.events = POLLIN},
		{.fd = w->timer_fd,.events = POLLIN},
		{.fd = w->socket,.events = POLLIN},
		{.fd = w->exec_fd,.events = POLLIN},
		{.fd = w->connection_fd,.events = POLLRDHUP}
	};
	struct signalfd_siginfo info;
	uint64		expirations;

	set_timer(w);
	if (poll(fds, lengthof(fds), w->killing ? KILL_INTERVAL_MS : -1) <= 0)
		return;
	while (fds[0].revents && read(w->signal_fd, &info, sizeof(info)) > 0)
		;
	if (fds[1].revents)
		(void) !read(w->timer_fd, &expirations, sizeof(expirations));
	if (fds[3].revents)
		read_exec_error(w);
	if (fds[2].revents)
		read_messages(w);
	if (fds[4].revents)
	{
		w->connection_fd = -1;
		kill_command(w, CAUSE_DISCONNECTED);
	}
}

/*
 * All of the guardian's life.  The signals are blocked.
 */
void
guardian_main(const GuardianArgs *charge, int socket, pid_t parent,
			  const sigset_t *signals)
{
	GuardianState		w = {
		.charge = charge,.socket = socket,.exec_fd = -1,
		.connection_fd = charge->session ? charge->connection_fd : -1,
		.kill_at = NEVER
	};
	pid_t		group = getpgrp();

	set_deadline(&w, charge->deadline, charge->lease);
	(void) prctl(PR_SET_CHILD_SUBREAPER, 1);
	(void) prctl(PR_SET_NAME, GUARDIAN_NAME);
	if (!charge->session && charge->connection_fd >= 0)
		close(charge->connection_fd);
	if (tcgetpgrp(STDIN_FILENO) == group)
		w.terminal_group = group;

	/* What the terminal sends to pg_leader's group is not for us. */
	(void) setpgid(0, 0);
	w.signal_fd = signalfd(-1, signals, SFD_CLOEXEC | SFD_NONBLOCK);
	w.timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	if (w.signal_fd < 0 || w.timer_fd < 0)
	{
		pg_log_error("could not make a timer: %m");
		_exit(EXIT_USAGE);
	}
	if (getppid() != parent)
		_exit(EXIT_LOST);

	start_command(&w);
	for (;;)
	{
		bool		left = reap_all(&w);

		if (w.exec_fd >= 0 && w.reaped)
			read_exec_error(&w);
		if (!left)
			break;
		/* What outlives the command itself is not a way to lead on. */
		if (w.reaped && w.kill_at == NEVER)
			ask_to_end(&w, CAUSE_NONE, now_us() + w.grace);
		keep_deadline(&w);
		wait_for_event(&w);
	}

	if (w.terminal_group != 0)
		(void) tcsetpgrp(STDIN_FILENO, w.terminal_group);
	term_file_remove(charge->term_dir);
	tell_parent(&w, MESSAGE_DONE, w.status, w.cause);
	_exit(0);
}
