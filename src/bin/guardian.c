/*-------------------------------------------------------------------------
 *
 * guardian.c
 *		The guardian: a process that runs the command of one leadership, and
 *		the only process that ends it.
 *
 *		pg_leader ---- guardian ---- command ---- ...
 *
 * Invariant: nothing of the command runs after the deadline, even if pg_leader
 * is stopped, is killed or waits for the server.  The guardian knows the
 * deadline, and needs neither pg_leader nor the server to keep it.  It never
 * waits for pg_leader.  It says that the command is gone only when no
 * descendant of the guardian is left.
 *
 * The two processes talk over a socket pair.  When one of them is gone, the
 * other sees the end of the socket.
 *
 * - If pg_leader is gone, the guardian ends the command: SIGTERM, and SIGKILL
 *	 after the grace.
 *
 * - If the guardian is gone, the kernel kills the command (PR_SET_PDEATHSIG).
 *	 What the command has started becomes pg_leader's, which kills it.
 *
 * The processes have different names, so that one killall does not kill both.
 *
 * Where the connection is the leadership (see lead.c), the guardian holds an
 * inherited descriptor of the connection's socket.  So the server sees the end
 * of the session only when both processes are gone; and when the server has
 * ended the session, the guardian sees that even while pg_leader is stopped.
 * The guardian polls the descriptor, and never reads from it.
 *
 *-------------------------------------------------------------------------
 */
#include "guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define GUARDIAN_NAME	"leader_guardian"

/* The pause between two rounds of killing, until everything is gone */
#define KILL_INTERVAL_MS 5

/* The guardian as it sees itself */
typedef struct GuardianState
{
	const GuardianArgs *args;
	int			socket;			/* -1: pg_leader is gone */
	int			signal_fd;
	int			timer_fd;
	int			exec_fd;		/* -1: the command is executed, or was not */
	int			connection_fd;	/* -1: not watched, or it has ended */
	pid_t		command;
	bool		reaped;			/* the command itself has ended */
	int			status;			/* of the command, as from waitpid() */
	int64		deadline;
	int64		margin;			/* SIGKILL comes so long before the deadline */
	int64		grace;			/* SIGTERM comes so long before SIGKILL */
	int64		kill_at;		/* NEVER: SIGTERM was not sent yet */
	bool		killing;
	Cause		cause;
	pid_t		terminal_group; /* that had the terminal; 0: not ours */
} GuardianState;

/* --- the command's own process, until it executes the command */

static void
become_command(const GuardianState *g, int exec_fd)
{
	sigset_t	none;
	int32		error;

	(void) setpgid(0, 0);
	if (g->terminal_group != 0)
	{
		/*
		 * Ctrl-Z: the shell waits for pg_leader, which is not stopped, and
		 * would never get its terminal back.  To have what was stopped
		 * continue is not enough.  A script that is starting a process by
		 * vfork() waits for it and cannot be stopped, but the process can:
		 * then both hang, and nothing tells the guardian.
		 */
		(void) signal(SIGTSTP, SIG_IGN);
		(void) tcsetpgrp(STDIN_FILENO, getpid());
	}

	(void) signal(SIGPIPE, SIG_DFL);
	(void) signal(SIGTTOU, SIG_DFL);
	sigemptyset(&none);
	(void) sigprocmask(SIG_SETMASK, &none, NULL);

	/*
	 * This process may have been stopped since the fork for longer than the
	 * lease: then another candidate may lead by now.
	 */
	if (now_us() >= g->deadline - g->margin)
		_exit(EXIT_LOST);
	execvpe(g->args->command[0], g->args->command, g->args->environment);
	error = errno;
	(void) !write(exec_fd, &error, sizeof(error));
	_exit(EXIT_CANNOT_EXECUTE);
}

/*
 * Start the command.  Both processes make its process group: if only the child
 * did, the guardian could signal the group before it exists; if only the
 * guardian did, the child could execute the command before it is in the group.
 * If there are no processes or descriptors to be had, there is no command, and
 * pg_leader is told why.
 */
static void
start_command(GuardianState *g)
{
	pid_t		guardian = getpid();
	int			fds[2];

	if (g->signal_fd < 0 || g->timer_fd < 0 || pipe2(fds, O_CLOEXEC) != 0 ||
		(g->command = fork()) < 0)
	{
		message_send(g->socket, MESSAGE_NOT_EXECUTED, errno, 0);
		return;
	}
	if (g->command == 0)
	{
		(void) prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* A guardian that died before prctl() sends no signal. */
		if (getppid() != guardian)
			_exit(EXIT_LOST);
		become_command(g, fds[1]);
	}
	(void) setpgid(g->command, g->command);
	close(fds[1]);
	g->exec_fd = fds[0];
}

/* --- deadlines */

/*
 * Return how long before the deadline of a lease the guardian kills the
 * command.  Killing has to be over by the deadline, even if the processes that
 * die have to wait for a processor.
 */
int64
guardian_kill_margin(int64 lease)
{
	return Max(Min(lease / 10, 2 * SEC), 100 * MSEC);
}

/*
 * Return the longest grace that a lease allows.  pg_leader renews a lease when
 * a third of it is over; it must have time to do that before SIGTERM is due.
 * Negative: the lease is too short.
 */
int64
guardian_longest_grace(int64 lease)
{
	return Min(lease / 2, lease / 5 * 3 - guardian_kill_margin(lease));
}

static void
set_deadline(GuardianState *g, int64 deadline, int64 lease)
{
	g->deadline = deadline;
	g->margin = guardian_kill_margin(lease);
	/* The lease may have become shorter since the grace was checked. */
	g->grace = Max(Min(g->args->grace, guardian_longest_grace(lease)), 0);
}

/* --- signals to the command */

/*
 * Signal all that descends from the command, and its process group at once.
 */
static void
signal_command(const GuardianState *g, int signo)
{
	/*
	 * Once the command is reaped, the kernel may give its process ID to a
	 * group of another user of the machine.
	 */
	process_signal_descendants(g->reaped ? 0 : g->command, signo);
}

/*
 * Pass on a signal of the user.  It is for the command's group only, as it
 * would be from a terminal, and not for processes that have left the group.
 */
static void
pass_on(const GuardianState *g, int signo)
{
	if (g->reaped)
		return;
	(void) kill(-g->command, signo);
	/* A stopped process must continue to receive the signal. */
	(void) kill(-g->command, SIGCONT);
}

/*
 * Ask the command to end, unless that was done.  What is left at kill_at is
 * killed, or earlier if an earlier request said so.
 */
static void
ask_to_end(GuardianState *g, Cause cause, int64 kill_at)
{
	if (g->kill_at == NEVER)
		signal_command(g, SIGTERM);
	g->kill_at = Min(g->kill_at, kill_at);
	if (g->cause == CAUSE_NONE && !g->reaped)
		g->cause = cause;
}

static void
kill_command(GuardianState *g, Cause cause)
{
	if (!g->reaped && (g->cause == CAUSE_NONE || cause == CAUSE_DEADLINE))
		g->cause = cause;
	g->killing = true;
	signal_command(g, SIGKILL);
}

/* --- what happens */

/*
 * Reap the children that have ended: the command, and processes that became
 * our children when their parents ended.  Return false when there are no
 * children left.
 */
static bool
reap_all(GuardianState *g)
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
			 * become_command() has SIGTSTP (Ctrl-Z) ignored, but the command
			 * has set it to its default, and was stopped.  Have it continue.
			 */
			if (g->terminal_group != 0 && WSTOPSIG(status) == SIGTSTP)
				(void) kill(-g->command, SIGCONT);
		}
		else if (pid == g->command && !g->reaped)
		{
			g->reaped = true;
			g->status = status;
		}
	}
}

/*
 * Read why the command was not executed.  When it was, execvp() has closed the
 * pipe, and there is nothing to read.
 */
static void
read_exec_error(GuardianState *g)
{
	int32		error;

	if (read(g->exec_fd, &error, sizeof(error)) == sizeof(error))
		message_send(g->socket, MESSAGE_NOT_EXECUTED, error, 0);
	close(g->exec_fd);
	g->exec_fd = -1;
}

/*
 * Obey the messages of pg_leader.  If it is gone, end the command.
 */
static void
read_messages(GuardianState *g)
{
	Message		m;

	while (message_receive(&g->socket, &m))
	{
		if (m.kind == MESSAGE_DEADLINE)
			set_deadline(g, m.at, m.number * MSEC);
		else if (m.kind == MESSAGE_SIGNAL)
			pass_on(g, m.number);
		else if (m.kind == MESSAGE_STOP)
			ask_to_end(g, CAUSE_STOPPED, m.at);
		else if (m.kind == MESSAGE_KILL)
			kill_command(g, CAUSE_KILLED);
	}
	if (g->socket < 0)
		ask_to_end(g, CAUSE_STOPPED, now_us() + g->grace);
}

/*
 * Do what is due by the clock.
 */
static void
keep_deadline(GuardianState *g)
{
	int64		now = now_us();
	int64		last = g->deadline - g->margin;

	if (g->killing)
		signal_command(g, SIGKILL);
	else if (now >= last)
		kill_command(g, CAUSE_DEADLINE);
	else if (now >= g->kill_at)
		kill_command(g, g->cause);
	else if (g->kill_at == NEVER && now >= last - g->grace)
		ask_to_end(g, CAUSE_DEADLINE, last);
}

/*
 * Set the timer to the moment when keep_deadline() has to act next.  While
 * killing, the time-out of poll() is all that is needed.
 */
static void
set_timer(const GuardianState *g)
{
	int64		due = g->deadline - g->margin;

	if (g->kill_at == NEVER)
		due -= g->grace;
	signals_set_timer(g->timer_fd, g->killing ? NEVER : Max(Min(due, g->kill_at), 1));
}

/*
 * Wait until something happens, and take what has come.  Children and
 * deadlines are for the caller to look at.
 */
static void
wait_for_event(GuardianState *g)
{
	struct pollfd fds[5] = {
		{.fd = g->signal_fd,.events = POLLIN},
		{.fd = g->timer_fd,.events = POLLIN},
		{.fd = g->socket,.events = POLLIN},
		{.fd = g->exec_fd,.events = POLLIN},
		{.fd = g->connection_fd,.events = POLLRDHUP}
	};

	set_timer(g);
	if (poll(fds, lengthof(fds), g->killing ? KILL_INTERVAL_MS : -1) <= 0)
		return;
	while (fds[0].revents && signals_next(g->signal_fd) != 0)
		;
	if (fds[1].revents)
		signals_clear_timer(g->timer_fd);
	if (fds[3].revents)
		read_exec_error(g);
	if (fds[2].revents)
		read_messages(g);
	if (fds[4].revents)
	{
		g->connection_fd = -1;
		kill_command(g, CAUSE_DISCONNECTED);
	}
}

/* --- the guardian's life */

/*
 * Make this process, just forked, a guardian.
 */
static void
set_up(GuardianState *g, pid_t parent, const sigset_t *signals)
{
	const GuardianArgs *args = g->args;
	pid_t		group = getpgrp();

	set_deadline(g, args->deadline, args->lease);
	(void) prctl(PR_SET_CHILD_SUBREAPER, 1);
	(void) prctl(PR_SET_NAME, GUARDIAN_NAME);
	if (args->session)
		g->connection_fd = args->connection_fd;
	else if (args->connection_fd >= 0)
		close(args->connection_fd);
	if (tcgetpgrp(STDIN_FILENO) == group)
		g->terminal_group = group;

	/* Signals that the terminal sends to pg_leader's group are not for us. */
	(void) setpgid(0, 0);
	/* Run no command for a pg_leader that is gone already. */
	if (getppid() != parent)
	{
		term_file_remove(args->term_dir);
		_exit(EXIT_LOST);
	}
	g->signal_fd = signals_open(signals);
	g->timer_fd = signals_open_timer();
}

/*
 * All of the guardian's life, with the signals blocked.
 */
void
guardian_main(const GuardianArgs *args, int socket, pid_t parent,
			  const sigset_t *signals)
{
	GuardianState g = {
		.args = args,.socket = socket,.exec_fd = -1,.connection_fd = -1,
		.kill_at = NEVER
	};

	set_up(&g, parent, signals);
	start_command(&g);
	for (;;)
	{
		bool		left = reap_all(&g);

		if (g.exec_fd >= 0 && g.reaped)
			read_exec_error(&g);
		if (!left)
			break;

		/*
		 * Processes that outlive the command itself do not prolong the term.
		 */
		if (g.reaped && g.kill_at == NEVER)
			ask_to_end(&g, CAUSE_NONE, now_us() + g.grace);
		keep_deadline(&g);
		wait_for_event(&g);
	}

	if (g.terminal_group != 0)
		process_give_terminal(g.terminal_group);
	term_file_remove(args->term_dir);
	message_send(g.socket, MESSAGE_DONE, g.status, g.cause);
	_exit(0);
}
