/*-------------------------------------------------------------------------
 *
 * run.c
 *		pg_leader run: stands for election, leads while its command runs, and
 *		with --forever stands again.
 *
 * Invariants:
 *
 * - The lease is given back only when nothing of the command is left.
 *	 Otherwise the next leader's command would run beside ours.
 *
 * - Before pg_leader exits, it leaves the election if it stands, and gives back
 *	 a lease that it was granted, unless the server cannot be reached.
 *
 *-------------------------------------------------------------------------
 */
#include "agent.h"
#include "subcommands.h"

#include <sys/wait.h>

/* A command that ran for less than this is not started again at once. */
#define SHORT_RUN			SEC

/* What lead() returns instead of an exit code: stand on, as if not elected */
#define DECLINED			(-2)

/* --- one leadership */

/*
 * The command was not executed for this error (0: it was): would it not be the
 * next time, either?  Processes, memory and descriptors may be short for a moment.
 */
static bool
is_hopeless(int error)
{
	return error != 0 && error != EAGAIN && error != ENOMEM &&
		error != EMFILE && error != ENFILE;
}

/*
 * Is the leadership over because the check does not pass? Then the work is not
 * done, and another candidate is to do it: the user's hold is not for that.
 */
static bool
is_sick(const Agent *a, int code)
{
	return code == DECLINED ||
		(a->gone_by != NEVER && a->guardian.cause != CAUSE_NONE);
}

/*
 * Does the user want pg_leader to end? A signal says so, sent to pg_leader or,
 * from the terminal, to the command alone.  SIGHUP does not, unless the
 * command died of it: many commands take it to mean "read the configuration".
 */
static bool
was_told_to_end(const Agent *a)
{
	const Guardian *g = &a->guardian;
	int			signo = WIFSIGNALED(g->status) ? WTERMSIG(g->status) : 0;

	return a->signo == SIGTERM || a->signo == SIGINT || a->signo == SIGQUIT ||
		(signo != 0 && signo == a->signo) ||
		(g->had_terminal && (signo == SIGINT || signo == SIGQUIT));
}

/*
 * The command has ended, with this exit code.  With --every: is its run done,
 * or is it to be tried again a little later?  Neither, if the command was
 * told to end: then it may have ended early, also with 0, and another host may
 * begin at once.
 */
static void
judge_run(Leadership *l, int code)
{
	Agent	   *a = l->agent;
	const Guardian *g = &a->guardian;

	if (a->options->every < 0 || g->exec_errno != 0 ||
		g->cause != CAUSE_NONE || was_told_to_end(a))
		return;
	if (code == EXIT_SUCCESS)
		l->done = true;
	else
		l->hold = period_hold(a, now_us() - l->began);
	a->period.judged = true;
}

/*
 * The command must not be started: return the exit code, or DECLINED if that
 * is for the check only.
 */
static int
refusal(const Leadership *l)
{
	if (l->agent->signalled)
		return EXIT_SIGNAL(l->agent->signo);
	return l->over || l->yielding ? EXIT_LOST : DECLINED;
}

/*
 * Run the command in the leadership that a->grant grants.  Return the exit
 * code, or DECLINED. *again: stand for election again.
 */
static int
lead(Agent *a, bool *again)
{
	Leadership	l;
	bool		hopeless = false;
	int			code;

	lead_begin(&l, a);
	a->period.judged = false;
	if (!lead_is_fresh(&l))
		code = refusal(&l);
	else if (!command_prepare(&l))
	{
		hopeless = is_hopeless(errno);
		code = EXIT_USAGE;
	}
	else
	{
		code = command_run(&l);
		hopeless = is_hopeless(a->guardian.exec_errno);
		judge_run(&l, code);
	}
	*again = a->options->forever && !hopeless && !was_told_to_end(a);
	if (is_sick(a, code))
		l.hold = -1;
	give_back(&l);
	*again = *again && !a->signalled && !l.told_to_end;
	if (*again)
		a->signo = 0;
	return code;
}

/* --- the life of a candidate */

/*
 * If the command ended at once, do not stand for some time.  Return false if
 * there was a signal.
 */
static bool
back_off(Agent *a, int64 ran, int64 *backoff)
{
	int64		until;

	if (ran >= SHORT_RUN)
	{
		*backoff = FIRST_BACKOFF;
		return true;
	}
	stand_stop(a);
	until = now_us() + duration_next_pause(backoff, LONGEST_BACKOFF);
	while (!a->signalled && now_us() < until)
		(void) connection_wait(&a->connection, until);
	return !a->signalled;
}

/*
 * Stand and lead, with --forever again and again.  Return the exit code.
 */
static int
stand_and_lead(Agent *a)
{
	int64		backoff = FIRST_BACKOFF;

	for (;;)
	{
		int64		began;
		bool		again;
		int			code;

		stand_begin(a);
		do
		{
			code = stand_until_elected(a);
			if (code != ELECTED)
				return code;
			began = now_us();
			code = lead(a, &again);
		} while (code == DECLINED);
		if (!again)
			return code;

		/*
		 * With --every it is done, or a hold keeps all hosts from starting it
		 * at once: we go on standing, so that we are passed over.
		 */
		if (!a->period.judged && !back_off(a, now_us() - began, &backoff))
			return EXIT_SIGNAL(a->signo);
	}
}

int
run_run(const Options *options)
{
	Agent		a;
	int			code;

	agent_begin(&a, options);
	code = stand_and_lead(&a);
	stand_stop(&a);
	agent_end(&a);
	return code;
}
