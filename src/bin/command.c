/*-------------------------------------------------------------------------
 *
 * command.c
 *		The command of one leadership: runs it, and renews the lease meanwhile.
 *
 * Invariant: when command_run() returns, nothing of the command is left.  The
 * guardian keeps the deadline, and that of a check which fails too often.  If
 * the guardian does not, this file does its work.
 *
 *-------------------------------------------------------------------------
 */
#include "agent.h"

#include <sys/wait.h>

/*
 * Tell the command about its leadership, in its environment and the term file.
 */
bool
command_prepare(Leadership *l)
{
	const Agent *a = l->agent;
	const char *told[TOLD_FIELDS] = {
		[TOLD_ELECTION] = a->election,
		[TOLD_CANDIDATE] = a->options->candidate,
		[TOLD_TERM] = a->grant.term_text,
		[TOLD_RUN] = a->options->every > 0 ? a->period.run : NULL,
		[TOLD_SEAT] = a->seat != NULL ? strrchr(a->seat, '/') + 1 : NULL
	};

	if (!term_file_make(l->term_dir, sizeof(l->term_dir), a->grant.term))
		return false;
	l->file_is_old = false;
	told[TOLD_TERM_FILE] = term_file_path(l->term_dir, "term");
	l->environment = environment_make(told);
	return true;
}

/*
 * Renew while the command runs.  Return when nothing of it is left.
 */
static void
watch_over(Leadership *l)
{
	Agent	   *a = l->agent;
	Guardian   *g = &a->guardian;

	while (!g->done && !g->reaped && now_us() < lead_overdue_at(a))
		lead_step(l, Min(lead_overdue_at(a),
					checker_next(&a->checker, a->options->check_failures)));
	guardian_end(g);
	/* If that had to kill everything, the checker is gone as well. */
	checker_tend(&a->checker);
}

/*
 * Return what to exit with after a guardian.
 */
static int
exit_code(Leadership *l)
{
	const Guardian *g = &l->agent->guardian;
	const Options *o = l->agent->options;

	if (g->exec_errno != 0)
	{
		errno = g->exec_errno;
		pg_log_error("could not execute \"%s\": %m", o->command[0]);
		return g->exec_errno == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_EXECUTE;
	}
	if (g->cause == CAUSE_DISCONNECTED)
		lead_lose(l, "the server closed the connection");
	if (g->cause == CAUSE_DEADLINE)
		pg_log_warning("leadership of election \"%s\" is lost: the lease could not be renewed in time",
					   l->agent->shown);
	if (g->cause != CAUSE_NONE)
		return EXIT_LOST;
	if (WIFSIGNALED(g->status))
		return EXIT_SIGNAL(WTERMSIG(g->status));
	return WEXITSTATUS(g->status);
}

/*
 * Run the command, and return what to exit with.
 */
int
command_run(Leadership *l)
{
	Agent	   *a = l->agent;
	GuardianArgs args = {
		.command = a->options->command,.environment = l->environment,
		.deadline = a->grant.deadline,.lease = a->lease,.grace = a->grace,
		.term_dir = l->term_dir,
		.connection_fd = PQsocket(a->connection.conn),
		.session = a->options->session
	};
	int			code;

	guardian_start(&a->guardian, &args);
	environment_free(l->environment);
	if (a->guardian.pid != 0)
		watch_over(l);
	code = exit_code(l);
	term_file_remove(l->term_dir);
	return code;
}
