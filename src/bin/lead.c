/*-------------------------------------------------------------------------
 *
 * lead.c
 *		pg_leader run: renews one leadership while its command runs.
 *		pg_leader stand: renews one leadership while nothing ends it.
 *
 * Invariants:
 *
 * - The deadline is never later than the server's (see agent_read_grant()).
 *	 The guardian gets each new deadline, and keeps it alone.  If the guardian
 *	 does not, this file does its work.
 *
 * - The lease is given back only when nothing of the command is left.
 *	 Otherwise the next leader's command would run beside ours.  A sidecar
 *	 gives it back only when all that it has told its clients is over (see
 *	 reply.c).
 *
 * - In a session, the connection is the leadership: when it is lost,
 *	 everything is killed at once.  The guardian, too, holds the connection's
 *	 socket, and sees its end by itself.  If this process is killed, the server
 *	 sees the end of the session, and elects another candidate, only when the
 *	 command is gone.  (Such a session stands with auto_renew => false.
 *	 Otherwise the server would prolong the lease of a process that is
 *	 stopped.)
 *
 * - A command whose check fails too often is gone a grace later: the guardian
 *	 sees to that, or this file if the guardian does not.
 *
 *-------------------------------------------------------------------------
 */
#include "agent.h"

#include <sys/wait.h>

/* How long one answer may take: an eighth of the lease, within limits */
#define LONGEST_LIMIT		(10 * SEC)

static const Statement sql_renew = {
	SQL_GRANT "leader_election.renew($1, $2)",
	GRANT_FIELDS, false, 2, {TEXTOID, INT8OID}
};

/* --- deadlines */

/*
 * Return when this process kills the command because the guardian has not.
 * The guardian kills a whole margin before the deadline.
 */
static int64
overdue_at(const Agent *a)
{
	return Min(a->grant.deadline - guardian_kill_margin(a->lease) / 2,
			   a->gone_by);
}

/*
 * Return how long an answer may take.  If it never comes, there must be time
 * for another try.  Each try gets more time, because the server may be slow.
 * In a session there is no other try.
 */
static int64
answer_limit(const Leadership *l)
{
	int64		limit = l->agent->lease / 8 << Min(l->unanswered, 4);
	int64		left = overdue_at(l->agent) - now_us();

	limit = Max(Min(limit, LONGEST_LIMIT), SHORTEST_LIMIT);
	if (l->agent->options->session)
		limit = left;
	return Max(Min(limit, left), 1);
}

/*
 * Tell clients of a sidecar what has become of the leadership.
 */
static void
publish(const Leadership *l)
{
	agent_publish(l->agent, l->over ? "standing" : l->yielding ? "yielding" :
				  l->leaving ? "ending" : NULL);
}

/*
 * Take a grant, the first one or a renewal: set the deadline, tell the
 * guardian and clients, and plan the next renewal.
 */
static void
set_deadline(Leadership *l, const Grant *grant)
{
	Agent	   *a = l->agent;
	int64		length = grant->deadline - grant->sent;
	bool		new_term = grant->term != a->grant.term;
	int64		old_deadline = a->grant.deadline;

	a->grant = *grant;

	/*
	 * No renewal moves the deadline back.  But a server that was just promoted
	 * may not know of the last renewal, and grant less than we have already.
	 */
	if (!new_term)
		a->grant.deadline = Max(grant->deadline, old_deadline);
	/* A leader that is asked to yield gets what remains, not a whole lease. */
	if (!grant->yielding)
		a->lease = length;
	l->next = grant->sent + Max(length / 3, a->lease / 20);
	l->notified = false;
	message_send(a->guardian.socket, MESSAGE_DEADLINE,
				 (int) Min(a->lease / MSEC, PG_INT32_MAX), a->grant.deadline);
	if (new_term && a->guardian.pid != 0 &&
		!term_file_write(l->term_dir, grant->term))
		pg_log_warning("could not write the term file: %m");
	if (new_term)
	{
		l->began = grant->sent;
		pg_log_info("leading in term %lld", (long long) grant->term);
	}
	if (grant->yielding && !l->yielding)
	{
		pg_log_info("asked to yield");
		l->yielding = true;
		message_send(a->guardian.socket, MESSAGE_STOP, 0, NEVER);
	}
	if (new_term)
		a->elected++;
	else
		a->renewed++;
	publish(l);
}

static void
lose(Leadership *l, const char *why)
{
	if (!l->over)
		pg_log_warning("leadership of election \"%s\" is lost: %s",
					   l->agent->shown, why);
	l->over = true;
	message_send(l->agent->guardian.socket, MESSAGE_KILL, 0, 0);
}

/* --- renewing */

static void
renew(Leadership *l)
{
	Agent	   *a = l->agent;
	char	   *term = psprintf("%lld", (long long) a->grant.term);
	const char *values[] = {a->election, term};
	Answer		answer;
	Grant		grant;

	answer = a->options->session ? agent_renew_session(a, answer_limit(l)) :
		agent_ask(a, &sql_renew, values, answer_limit(l), false);
	pg_free(term);
	l->unanswered = answer.outcome == ANSWER_LOST ? l->unanswered + 1 : 0;
	if (agent_read_grant(&answer, &grant))
	{
		set_deadline(l, &grant);
		if (!a->connection.listening)
			notification_listen(&a->connection, a->channel, answer_limit(l));
	}
	else if (answer.outcome == ANSWER_ROWS)
		lose(l, "the term is over");
	else
	{
		agent_take_failure(a, &answer);
		l->next = now_us() + Min(LONGEST_PAUSE, a->lease / 10);
	}
	answer_free(&answer);
}

/*
 * The connection is lost.  In a session, the leadership is lost, too.
 * Otherwise try once to connect, and renew at once if that succeeds.
 */
static void
reconnect(Leadership *l)
{
	Agent	   *a = l->agent;
	Connection *c = &a->connection;

	if (a->options->session)
	{
		lose(l, c->error != NULL ? c->error : "the connection is closed");
		return;
	}
	if (connection_open(c, answer_limit(l)))
	{
		l->pause = SHORTEST_PAUSE;
		l->next = 0;
		return;
	}
	agent_warn(a, c->error);
	l->unanswered++;
	l->next = now_us() + duration_next_pause(&l->pause, LONGEST_PAUSE);
}

static bool
is_our_yield(const char *payload, void *arg)
{
	const Agent *a = arg;

	return notification_is_yield(payload) &&
		notification_is_about(payload, a->prefix);
}

/*
 * Renew early if a notification says that we are asked to yield.  The answer
 * says whether that is true.
 */
static void
read_notifications(Leadership *l)
{
	Connection *c = &l->agent->connection;

	if (notification_take(c, is_our_yield, l->agent) && !l->notified)
	{
		l->notified = true;
		l->next = Min(l->next, notification_next_call(c));
	}
}

/*
 * Do once what is due over the connection.
 */
static void
keep_lease(Leadership *l)
{
	Connection *c = &l->agent->connection;

	read_notifications(l);
	if (l->over || now_us() < l->next)
		return;
	if (c->conn == NULL)
		reconnect(l);
	else
	{
		if (l->notified)
			c->notified = now_us();
		l->notified = false;
		renew(l);

		/*
		 * libpq has already read a notification that came with the answer: no
		 * wait for input would see it.
		 */
		read_notifications(l);
	}
	if (c->conn == NULL && l->agent->options->session)
		reconnect(l);
}

/*
 * Wait until something happens, or until a moment, and do what is due then.
 */
static void
step(Leadership *l, int64 until)
{
	Agent	   *a = l->agent;

	publish(l);
	a->idle = true;
	(void) connection_wait(&a->connection,
						   l->over ? until : Min(l->next, until));
	a->idle = false;
	checker_tend(&a->checker);
	lead_judge_health(a);
	/* Do not wait for the next renewal if the connection was just lost. */
	if (a->connection.conn == NULL && l->next > now_us() &&
		l->pause == SHORTEST_PAUSE)
		l->next = 0;
	if (!a->guardian.done && !a->guardian.reaped)
		keep_lease(l);
}

/*
 * Before the command is started, renew a lease of which a third is over
 * already: the grant may have been long on its way.  Return false if the lease
 * is not ours any more, or the command must not be started: the check may have
 * failed since we asked to be elected.
 */
static bool
is_fresh(Leadership *l)
{
	Agent	   *a = l->agent;

	for (;;)
	{
		checker_tend(&a->checker);
		if (l->over || a->signalled || l->yielding ||
			!checker_passes(&a->checker, 1))
			return false;
		if (now_us() < a->grant.sent + a->lease / 3)
			return true;
		if (now_us() >= a->grant.deadline)
			lose(l, "the lease ran out before it was granted");
		else if (now_us() < l->next)
			(void) connection_wait(&a->connection, l->next);
		else
			keep_lease(l);
	}
}

/* --- the command */

/*
 * Tell the command about its leadership, in its environment and the term file.
 */
static bool
prepare_environment(Leadership *l)
{
	const Agent *a = l->agent;
	char	   *term;
	char	   *path;

	if (!term_file_make(l->term_dir, sizeof(l->term_dir), a->grant.term))
		return false;
	term = psprintf("%lld", (long long) a->grant.term);
	path = term_file_path(l->term_dir);
	setenv("PG_LEADER_TERM", term, 1);
	setenv("PG_LEADER_TERM_FILE", path, 1);
	if (a->options->every > 0)
		setenv("PG_LEADER_RUN", a->period.run, 1);
	if (a->seat != NULL)
	{
		setenv("PG_LEADER_ELECTION", a->seat, 1);
		setenv("PG_LEADER_SEAT", strrchr(a->seat, '/') + 1, 1);
	}
	pg_free(path);
	pg_free(term);
	return true;
}

/*
 * The command has its environment: what is about this leadership is not for a
 * check that is started later.
 */
static void
reset_environment(const Agent *a)
{
	setenv("PG_LEADER_ELECTION", a->options->election, 1);
	unsetenv("PG_LEADER_TERM");
	unsetenv("PG_LEADER_TERM_FILE");
	unsetenv("PG_LEADER_RUN");
	unsetenv("PG_LEADER_SEAT");
}

/*
 * If the check has failed too often while the command runs, have the guardian
 * end the command.  Another candidate is to lead: there is no hold.
 */
void
lead_judge_health(Agent *a)
{
	int64		kill_at = now_us() + a->grace;

	if (a->gone_by != NEVER ||
		checker_passes(&a->checker, a->options->check_failures))
		return;
	pg_log_warning("leadership of election \"%s\" is given up: the check does not pass",
				   a->shown);
	a->gone_by = kill_at + guardian_kill_margin(a->lease) / 2;
	message_send(a->guardian.socket, MESSAGE_STOP, 0, kill_at);
}

/*
 * Renew while the command runs.  Return when nothing of it is left.
 */
static void
watch_over(Leadership *l)
{
	Agent	   *a = l->agent;
	Guardian   *g = &a->guardian;

	while (!g->done && !g->reaped && now_us() < overdue_at(a))
		step(l, Min(overdue_at(a),
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
		lose(l, "the server closed the connection");
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
static int
run_command(Leadership *l)
{
	Agent	   *a = l->agent;
	GuardianArgs args = {
		.command = a->options->command,.deadline = a->grant.deadline,
		.lease = a->lease,.grace = a->grace,.term_dir = l->term_dir,
		.connection_fd = PQsocket(a->connection.conn),
		.session = a->options->session
	};
	int			code;

	guardian_start(&a->guardian, &args);
	reset_environment(a);
	if (a->guardian.pid != 0)
		watch_over(l);
	code = exit_code(l);
	term_file_remove(l->term_dir);
	return code;
}

/* --- the end of a leadership */

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
 * Begin the leadership that a->grant grants.
 */
static void
begin(Leadership *l, Agent *a)
{
	Grant		grant = a->grant;

	*l = (Leadership) {.agent = a,.pause = SHORTEST_PAUSE,
	.hold = a->options->hold};
	a->guardian = NO_GUARDIAN;
	a->gone_by = NEVER;
	a->grant.term = 0;
	set_deadline(l, &grant);
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
int
lead_run(Agent *a, bool *again)
{
	Leadership	l;
	bool		hopeless = false;
	int			code;

	begin(&l, a);
	a->period.judged = false;
	if (!is_fresh(&l))
		code = refusal(&l);
	else if (!prepare_environment(&l))
	{
		hopeless = true;
		code = EXIT_USAGE;
	}
	else
	{
		code = run_command(&l);
		hopeless = a->guardian.exec_errno != 0;
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

/* --- a leadership without a command */

/*
 * Say that we do not lead, wait until all that clients were told is over, and
 * give the lease back.  A second signal ends the wait: then the lease is not
 * given back, for a client may still count on it.
 */
static void
leave(Leadership *l)
{
	Agent	   *a = l->agent;
	bool		told_to_end = a->signalled;
	int64		until;

	l->leaving = true;
	publish(l);

	/*
	 * Clients count what they were told by clocks of their own: hence the
	 * margin.  It is renewed meanwhile, as it is while a command ends.
	 */
	until = now_us() + a->grace + guardian_kill_margin(a->grace);
	a->signalled = false;
	while (!l->over && !(told_to_end && a->signalled) &&
		   now_us() < Min(until, a->grant.deadline))
		step(l, Min(until, a->grant.deadline));
	if (told_to_end && a->signalled)
	{
		pg_log_warning("the lease of election \"%s\" is not given back: it ends by itself",
					   a->shown);
		l->over = true;
	}
	give_back(l);
}

/*
 * Hold the leadership that a->grant grants, until it is lost, we are asked to
 * yield, or a signal comes.  Return false if a signal has come.
 */
bool
lead_hold(Agent *a)
{
	Leadership	l;

	begin(&l, a);
	while (!l.over && !l.yielding && !a->signalled &&
		   now_us() < overdue_at(a))
		step(&l, overdue_at(a));
	if (!l.yielding && !a->signalled && now_us() >= overdue_at(a))
		lose(&l, "the lease could not be renewed in time");
	leave(&l);
	return a->signo == 0;
}
