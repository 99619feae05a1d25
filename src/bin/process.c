/*-------------------------------------------------------------------------
 *
 * process.c
 *		Finds and kills the descendants of this process.
 *
 * Invariant: a descendant of this process stays its descendant, because this
 * process is a subreaper (PR_SET_CHILD_SUBREAPER): when a descendant's parent
 * ends, the descendant becomes our child, even in another session or process
 * group.  So nothing is left when waitpid() knows no child.  A process may
 * fork while we look for its children; so killing is repeated until nothing is
 * left.
 *
 *-------------------------------------------------------------------------
 */
#include "guardian.h"

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * Deeper in the tree of processes, a process is killed before its children are
 * looked for.  They become our children then, and the next round kills them.
 */
#define MAX_DEPTH 64

typedef void (*Visit) (pid_t pid, void *arg);

typedef struct Kill
{
	pid_t		except_group;	/* has had the signal already; 0: none */
	int			signo;
	int			depth;
} Kill;

/*
 * Visit the children of one thread, from the list that the kernel keeps.
 * Return false if the kernel keeps no such lists.
 */
static bool
visit_children_of_thread(pid_t pid, const char *tid, Visit visit, void *arg)
{
	char		path[MAXPGPATH];
	FILE	   *file;
	int			child;

	snprintf(path, sizeof(path), "/proc/%d/task/%s/children", (int) pid, tid);
	file = fopen(path, "re");
	if (file == NULL)
		return errno != ENOENT;
	while (fscanf(file, "%d", &child) == 1)
		visit(child, arg);
	fclose(file);
	return true;
}

/*
 * Visit the children of a process by the lists of its threads.  Return false
 * if the kernel keeps no such lists.
 */
static bool
visit_children_by_list(pid_t pid, Visit visit, void *arg)
{
	char		path[MAXPGPATH];
	DIR		   *dir;
	struct dirent *entry;
	bool		found = false;

	snprintf(path, sizeof(path), "/proc/%d/task", (int) pid);
	dir = opendir(path);
	if (dir == NULL)
		return true;			/* the process is gone */
	while ((entry = readdir(dir)) != NULL)
	{
		if (entry->d_name[0] != '.' &&
			visit_children_of_thread(pid, entry->d_name, visit, arg))
			found = true;
	}
	closedir(dir);
	return found;
}

static pid_t
parent_of(const char *pid)
{
	char		path[MAXPGPATH];
	char		stat[1024];
	char	   *end;
	int			parent = 0;
	FILE	   *file;

	snprintf(path, sizeof(path), "/proc/%s/stat", pid);
	file = fopen(path, "re");
	if (file == NULL)
		return 0;

	/*
	 * The process has chosen its name; it may have parentheses and ends of
	 * lines in it.
	 */
	stat[fread(stat, 1, sizeof(stat) - 1, file)] = '\0';
	end = strrchr(stat, ')');
	if (end != NULL)
		(void) sscanf(end, ") %*c %d", &parent);
	fclose(file);
	return parent;
}

/*
 * Visit the children of a process where the kernel keeps no lists of them:
 * look at all processes.
 */
static void
visit_children_by_scan(pid_t pid, Visit visit, void *arg)
{
	DIR		   *dir = opendir("/proc");
	struct dirent *entry;

	if (dir == NULL)
		return;
	while ((entry = readdir(dir)) != NULL)
	{
		if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
			parent_of(entry->d_name) == pid)
			visit(atoi(entry->d_name), arg);
	}
	closedir(dir);
}

static void
visit_children(pid_t pid, Visit visit, void *arg)
{
	if (!visit_children_by_list(pid, visit, arg))
		visit_children_by_scan(pid, visit, arg);
}

/*
 * Signal a process and what descends from it.  The children come first: once
 * their parent is dead, this walk would not find them.
 */
static void
kill_tree(pid_t pid, void *arg)
{
	Kill	   *k = arg;

	if (k->depth < MAX_DEPTH)
	{
		k->depth++;
		visit_children(pid, kill_tree, k);
		k->depth--;
	}
	if (k->except_group != 0 && getpgid(pid) == k->except_group)
		return;
	(void) kill(pid, k->signo);
	/* A stopped process must continue to receive any other signal. */
	if (k->signo != SIGKILL)
		(void) kill(pid, SIGCONT);
}

/*
 * Signal all descendants.  If group is not 0, signal that process group first:
 * the kernel does so at once, and no member can fork in between.
 */
void
process_signal_descendants(pid_t group, int signo)
{
	Kill		k = {.except_group = group, .signo = signo};

	if (group != 0)
	{
		(void) kill(-group, signo);
		if (signo != SIGKILL)
			(void) kill(-group, SIGCONT);
	}
	visit_children(getpid(), kill_tree, &k);
}

/*
 * Kill all descendants, and return when they are gone.  This also reaps them.
 */
void
process_kill_descendants(void)
{
	for (;;)
	{
		pid_t		pid;

		process_signal_descendants(0, SIGKILL);
		do
			pid = waitpid(-1, NULL, WNOHANG);
		while (pid > 0);
		if (pid < 0 && errno == ECHILD)
			return;
		pg_usleep(MSEC);
	}
}

/* --- a checker that was killed */

static void
kill_member(pid_t pid, void *arg)
{
	Kill		k = {.signo = SIGKILL};

	if (getsid(pid) == *(pid_t *) arg)
		kill_tree(pid, &k);
}

/*
 * Kill our children of one session, with their descendants: what a process
 * that led the session has left to us.  Others may have left us processes that
 * are not ours to kill, since we may be process 1 of a container.
 */
void
process_kill_session(pid_t session)
{
	visit_children(getpid(), kill_member, &session);
}

/* --- the terminal */

/*
 * Give the terminal, which the command had, to a process group.  Nothing of the
 * command is left.  If a process group has the terminal, leave it: a shell takes
 * it when pg_leader is stopped.  A shell that loses it reads the end of its input,
 * and ends.
 */
void
process_give_terminal(pid_t group)
{
	pid_t		now = tcgetpgrp(STDIN_FILENO);

	if (now > 0 && kill(-now, 0) != 0 && errno == ESRCH)
		(void) tcsetpgrp(STDIN_FILENO, group);
}

/* --- descriptors */

/*
 * Close all descriptors but standard input, output, error, and one more.
 */
void
process_close_descriptors(int except)
{
	DIR		   *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	while (dir != NULL && (entry = readdir(dir)) != NULL)
	{
		int			fd = atoi(entry->d_name);

		if (fd > STDERR_FILENO && fd != except && fd != dirfd(dir))
			close(fd);
	}
	if (dir != NULL)
		closedir(dir);
}
