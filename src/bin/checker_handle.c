/*-------------------------------------------------------------------------
 *
 * checker_handle.c
 *		The checker as pg_leader sees it: started, heard and judged.
 *
 * Invariant: what the checker does not say counts, too.  A check that passed
 * says that all was well when it began.  That is worth as long as it takes
 * later checks to fail, and no longer, whether they are heard of or not.
 *
 *-------------------------------------------------------------------------
 */
#include "checker.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- what it says */

/*
 * Tell the user of a failure; of those that follow only on request.
 */
static void
tell_failure(const Checker *c, int status)
{
	enum pg_log_level level = c->failures == 1 ? PG_LOG_WARNING : PG_LOG_INFO;

	pg_log_generic(level, PG_LOG_PRIMARY, status == -1 ?
				   "the check has failed: it took longer than %s" :
				   "the check has failed: %s",
				   status == -1 ? duration_format(c->options.timeout) :
				   text_lend(wait_result_to_str(status)));
}

/*
 * Take what the checker says.
 */
static void
receive(Checker *c)
{
	Message		m;

	while (message_receive(&c->socket, &m))
	{
		if (m.kind == MESSAGE_FAILED)
		{
			c->failures++;
			tell_failure(c, m.number);
		}
		else if (m.kind == MESSAGE_PASSED)
		{
			if (c->failures > 0)
				pg_log_warning("the check passes again");
			c->failures = 0;
			c->passed = m.at;
		}
	}
}

/* --- the life of a checker */

/*
 * Start a checker.  A failure is tried again, as a checker that has ended is
 * replaced, no sooner than the next check is due.
 */
static void
start(Checker *c)
{
	pid_t		parent = getpid();

	c->started = now_us();
	c->pid = message_fork(&c->socket);
	if (c->pid == 0)
		checker_main(&c->options, c->environment, c->socket, parent);
	c->pid = Max(c->pid, 0);
}

/*
 * The checker is gone, and reaped: kill what is left of its check, and take
 * what it has said before.
 */
static void
forget(Checker *c)
{
	process_kill_session(c->pid);
	receive(c);
	if (c->socket >= 0)
		close(c->socket);
	c->socket = -1;
	c->pid = 0;
}

/*
 * See to it that there is a checker, if there is a check.  To be called when
 * checker_next() says, and when a child has ended.  Return true if the checker
 * was lost: checker_next() may be earlier now.
 */
bool
checker_tend(Checker *c)
{
	/* -1: others, which reap all children of pg_leader, have reaped it. */
	bool		lost = c->pid != 0 && waitpid(c->pid, NULL, WNOHANG) != 0;

	if (lost)
	{
		pg_log_warning("the checker was ended: another one is started");
		forget(c);
	}
	if (c->options.command != NULL && c->pid == 0 &&
		(c->started == 0 || now_us() >= c->started + c->options.every))
		start(c);
	return lost;
}

/*
 * End the checker, which ends its check.  If it does not do that soon (it may be
 * stopped), kill it; forget() does what it can then.
 */
void
checker_end(Checker *c)
{
	int64		until = now_us() + SEC;

	if (c->pid == 0)
		return;
	(void) shutdown(c->socket, SHUT_RDWR);
	while (waitpid(c->pid, NULL, WNOHANG) == 0)
	{
		if (now_us() >= until)
			(void) kill(c->pid, SIGKILL);
		pg_usleep(MSEC);
	}
	forget(c);
}

/* --- what that means */

/*
 * Return until when the last check that passed counts, if so many failures in
 * a row are too many: until the last of them would have timed out.
 */
static int64
passes_until(const Checker *c, int failures)
{
	if (c->passed == 0)
		return 0;
	return c->passed + failures * c->options.every + c->options.timeout;
}

/*
 * Is all well, as far as the checks say, if so many failures in a row are too
 * many? Nothing is well before the first check has passed.
 */
bool
checker_passes(Checker *c, int failures)
{
	if (c->options.command == NULL)
		return true;
	receive(c);
	return c->failures < failures && now_us() < passes_until(c, failures);
}

/*
 * Return when to call checker_tend() and checker_passes() next, if the checker
 * says nothing before.
 */
int64
checker_next(const Checker *c, int failures)
{
	int64		silent = passes_until(c, failures);

	if (c->options.command == NULL)
		return NEVER;
	if (silent <= now_us())
		silent = NEVER;
	return c->pid == 0 ? Min(silent, c->started + c->options.every) : silent;
}
