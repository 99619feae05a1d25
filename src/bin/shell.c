/*-------------------------------------------------------------------------
 *
 * shell.c
 *		Runs a user's command line: a check (checker.c), a hook (hook.c).
 *
 * Invariant: a command line does not outlive the process that started it,
 * except for what it has started in its turn.
 *
 *-------------------------------------------------------------------------
 */
#include "guardian.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

static void
become_shell(const char *command, char **environment)
{
	sigset_t	none;
	int			null = open("/dev/null", O_RDONLY | O_CLOEXEC);

	(void) setpgid(0, 0);
	(void) dup2(null, STDIN_FILENO);
	(void) dup2(STDERR_FILENO, STDOUT_FILENO);
	(void) signal(SIGPIPE, SIG_DFL);
	(void) signal(SIGTTOU, SIG_DFL);
	sigemptyset(&none);
	(void) sigprocmask(SIG_SETMASK, &none, NULL);
	(void) execle("/bin/sh", "sh", "-c", command, (char *) NULL, environment);
	_exit(EXIT_NOT_FOUND);
}

/*
 * Have the shell run a command line, in a process group of its own, with
 * nothing to read; its output goes to our standard error.  Return its process
 * ID, or -1 with errno set.
 *
 * Both processes make the process group: the caller can signal it from now on,
 * and the command cannot start anything outside of it.
 */
pid_t
shell_start(const char *command, char **environment)
{
	pid_t		parent = getpid();
	pid_t		pid = fork();

	if (pid == 0)
	{
		(void) prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* A parent that died before prctl() sends no signal. */
		if (getppid() != parent)
			_exit(EXIT_NOT_FOUND);
		become_shell(command, environment);
	}
	if (pid > 0)
		(void) setpgid(pid, pid);
	return pid;
}
