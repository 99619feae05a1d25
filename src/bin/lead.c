/*-------------------------------------------------------------------------
 *
 * lead.c
 *		One leadership of pg_leader run: the command runs, the lease is renewed.
 *
 * Invariants:
 *
 * - The deadline counts from when the request that was granted was sent, so
 *	 that it is never later than the server's.  The guardian is told of each new
 *	 one and keeps it alone; if it does not, its work is done here.
 *
 * - The lease is given back only when nothing of the command is left.
 *
 * - In a session, the connection is the leadership: when it is lost, all is
 *	 killed at once.  The guardian holds the connection's socket too: it sees
 *	 that by itself; and should this process be killed, the server sees the end
 *	 of the session, and elects another, when the command is gone and no
 *	 earlier.  (Such a session stands with auto_renew => false, since the server
 *	 would prolong the lease of a process that is stopped.)
 *
 *-------------------------------------------------------------------------
 */
#include "agent.h"

#include <sys/wait.h>
#include <unistd.h>

#define SHORTEST_LIMIT		(250 * MSEC)
#define LONGEST_LIMIT		(10 * SEC)
#define GIVE_BACK_LIMIT		(10 * SEC)

static const Statement sql_renew = {
	SQL_GRANT "leader_election.renew($1, $2)",
	GRANT_FIELDS, false, 2, {TEXTOID, INT8OID}
};
static const Statement sql_release = {
	"SELECT leader_election.release($1, $2, $3)",
	1, true, 3, {TEXTOID, INT8OID, INTERVALOID}
};
static const Statement sql_resign = {
	"SELECT leader_election.resign($1, $2)",
	1, true, 2, {TEXTOID, INTERVALOID}
};

typedef struct Leadership
{
	Agent	   *agent;
	char		term_dir[MAXPGPATH];
	int64		next;			/* when to renew, or to connect, again */
	bool		notified;		/* because of a notification */
	int64		pause;			/* before the next try to connect */
	int			unanswered;		/* requests in a row */
	bool		over;			/* the term is over: do not give it back */
	bool		yielding;
} Leadership;

/*
 * Make the term file, and tell the command about its leadership.
 */
static bool
prepare_environment(Leadership *l)
{
	const Options *o = l->agent->options;
	char	   *term = psprintf("%lld", (long long) l->agent->grant.term);
	char	   *path;

	if (!term_file_make(l->term_dir, sizeof(l->term_dir), l->agent->grant.term))
		return false;
	path = psprintf("%s/term", l->term_dir);
	setenv("PG_LEADER_ELECTION", o->election, 1);
	setenv("PG_LEADER_CANDIDATE", o->candidate, 1);
	setenv("PG_LEADER_TERM", term, 1);
	setenv("PG_LEADER_TERM_FILE", path, 1);
	pg_free(path);
	pg_free(term);
	return true;
}

/* --- renewing */

/*
 * When the guardian should have killed everything by now: if not, we do.
 */
static int64
overdue_at(const Agent *a)
{
	return a->grant.deadline - guardian_kill_margin(a->lease) / 2;
}

/*
 * How long an answer may take.  One that does not come at all must leave time
 * for another try; the next one gets more, since the server may be slow.
 */
static int64
answer_limit(const Leadership *l)
{
	int64		limit = l->agent->lease / 8 << Min(l->unanswered, 4);
	int64		left = overdue_at(l->agent) - now_us();

	limit = Max(Min(limit, LONGEST_LIMIT), SHORTEST_LIMIT);
	if (l->agent->options->session)
		limit = left;			/* there is no other try */
	return Max(Min(limit, left), 1);
}

static void
set_deadline(Leadership *l, const Grant *grant)
{
	Agent	   *a = l->agent;
	int64		length = grant->deadline - grant->sent;
	bool		new_term = grant->term != a->grant.term;
	int64		old_deadline = a->grant.deadline;

	a->grant = *grant;
	/* No renewal moves a deadline back, but another server may know no better. */
	if (!new_term)
		a->grant.deadline = Max(grant->deadline, old_deadline);
	if (!grant->yielding)
		a->lease = length;
	l->next = grant->sent + Max(length / 3, a->lease / 20);
	l->notified = false;
	if (a->guardian.pid != 0)
	{
		guardian_set_deadline(&a->guardian, a->grant.deadline, a->lease);
		if (new_term && !term_file_write(l->term_dir, a->grant.term))
			pg_log_warning("could not write the term file: %m");
	}
	if (new_term)
		pg_log_info("leading in term %lld", (long long) grant->term);
	if (grant->yielding && !l->yielding)
	{
		pg_log_info("asked to yield");
		l->yielding = true;
		if (a->guardian.pid != 0)
			guardian_stop(&a->guardian, NEVER);
	}
}

static void
lose(Leadership *l, const char *why)
{
	if (!l->over)
		pg_log_warning("leadership of election \"%s\" is lost: %s",
					   l->agent->options->election, why);
	l->over = true;
	if (l->agent->guardian.pid != 0)
		guardian_kill(&l->agent->guardian);
}

/*
 * Renew the lease.
 */
static void
renew(Leadership *l)
{
	Agent	   *a = l->agent;
	char	   *term = psprintf("%lld", (long long) a->grant.term);
	const char *values[] = {a->options->election, term};
	Answer		answer;
	Grant		grant;

	answer = a->options->session ? agent_renew_session(a, answer_limit(l)) :
		agent_ask(a, &sql_renew, values, answer_limit(l), false);
	pg_free(term);
	l->unanswered = answer.outcome == OUTCOME_LOST ? l->unanswered + 1 : 0;
	if (agent_read_grant(&answer, &grant))
	{
		set_deadline(l, &grant);
		if (!a->connection.listening)
			notification_listen(&a->connection, a->channel, answer_limit(l));
	}
	else if (answer.outcome == OUTCOME_ROWS)
		lose(l, "the term is over");
	else
	{
		agent_warn_answer(a, &answer);
		l->next = now_us() + Min(LONGEST_PAUSE, a->lease / 10);
		if (strcmp(answer.sqlstate, "25006") == 0)
			connection_close(&a->connection);
	}
	answer_free(&answer);
}

/*
 * The connection is lost: make a new one, or give up.  The lease is renewed
 * over it at once.
 */
static void
reconnect(Leadership *l)
{
	Agent	   *a = l->agent;

	if (a->options->session)
	{
		lose(l, a->connection.error != NULL ? a->connection.error :
			 "the connection is closed");
		return;
	}
	if (connection_open(&a->connection, answer_limit(l)))
	{
		l->pause = SHORTEST_PAUSE;
		l->next = 0;
		return;
	}
	agent_warn(a, a->connection.error);
	l->unanswered++;
	l->next = now_us() + l->pause;
	l->pause = Min(l->pause * 2, LONGEST_PAUSE);
}

static void
read_notifications(Leadership *l)
{
	Agent	   *a = l->agent;
	Connection *c = &a->connection;
	PGnotify   *n;

	while ((n = notification_next(c)) != NULL)
	{
		/* Whether we are to yield is for the answer to say. */
		if (!l->notified &&
			strncmp(n->extra, a->payload, strlen(a->payload)) == 0 &&
			strstr(n->extra, "\"yield_requested\"") != NULL)
		{
			l->notified = true;
			l->next = Min(l->next, notification_next_call(c));
		}
		PQfreemem(n);
	}
}

/*
 * Do what is due over the connection, once.
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
		/* One that came with the answer is not waited for. */
		read_notifications(l);
	}
	if (c->conn == NULL && l->agent->options->session)
		reconnect(l);
}

/*
 * Renew a lease that was long on its way, before anything relies on it.  False:
 * it is not ours any more, or is not to be.
 */
static bool
is_fresh(Leadership *l)
{
	Agent	   *a = l->agent;

	for (;;)
	{
		if (l->over || a->signalled || l->yielding)
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

/* --- the end of it */

/*
 * Give the lease back, unless the term is over or cannot be reached.  A second
 * signal ends the attempts.
 */
static void
give_back(Leadership *l)
{
	Agent	   *a = l->agent;
	const Options *o = a->options;
	int64		until = Min(a->grant.deadline, now_us() + GIVE_BACK_LIMIT);
	char	   *term = psprintf("%lld", (long long) a->grant.term);
	char	   *hold = o->hold < 0 ? NULL : psprintf("%lld us", (long long) o->hold);
	const char *by_term[] = {o->election, term, hold};
	const char *by_session[] = {o->election, hold};

	a->signalled = false;
	while (!l->over && !a->signalled && now_us() < until)
	{
		Answer		answer;

		if (a->connection.conn == NULL && o->session)
			break;
		if (a->connection.conn == NULL &&
			!connection_open(&a->connection,
							 Min(until - now_us(),
								 Max(a->lease / 8, SHORTEST_LIMIT))))
		{
			(void) connection_wait(&a->connection,
								   Min(now_us() + SHORTEST_PAUSE, until));
			continue;
		}
		answer = agent_ask(a, o->session ? &sql_resign : &sql_release,
						 o->session ? by_session : by_term,
						 Max(until - now_us(), 1), true);
		l->over = answer.outcome == OUTCOME_ROWS ||
			(answer.outcome == OUTCOME_ERROR && !answer_is_transient(&answer));
		if (answer.outcome == OUTCOME_ERROR)
		{
			agent_warn_answer(a, &answer);
			(void) connection_wait(&a->connection, now_us() + SHORTEST_PAUSE);
		}
		answer_free(&answer);
	}
	if (!l->over && now_us() < a->grant.deadline)
		pg_log_warning("could not give back the lease of election \"%s\": it ends by itself",
					   o->election);
	pg_free(term);
	pg_free(hold);
}

/*
 * Collect the guardian, when nothing of the command is left.
 */
static void
end_guardian(Agent *a)
{
	Guardian   *g = &a->guardian;

	guardian_receive(g);
	if (!g->done)
	{
		pg_log_warning("the guardian of the command does not do its work: everything is killed");
		guardian_replace(g);
	}
	if (!g->reaped)
	{
		/* It has nothing left to do, even if somebody has stopped it. */
		(void) kill(g->pid, SIGKILL);
		(void) waitpid(g->pid, NULL, 0);
	}
	g->reaped = true;
	if (g->socket >= 0)
		close(g->socket);
	g->socket = -1;
	g->pid = 0;
}

/*
 * Renew while the command runs.
 */
static void
watch_over(Leadership *l)
{
	Agent	   *a = l->agent;
	Guardian   *g = &a->guardian;

	while (!g->done && !g->reaped)
	{
		int64		overdue = overdue_at(a);

		if (now_us() >= overdue)
			break;
		(void) connection_wait(&a->connection,
							   l->over ? overdue : Min(l->next, overdue));
		/* A connection that has just been lost is not waited for. */
		if (a->connection.conn == NULL && l->next > now_us() &&
			l->pause == SHORTEST_PAUSE)
			l->next = 0;
		if (!g->done && !g->reaped)
			keep_lease(l);
	}
	end_guardian(a);
}

/*
 * What to exit with, after a guardian.
 */
static int
exit_code(Leadership *l)
{
	const Guardian *g = &l->agent->guardian;
	const char *command = l->agent->options->command[0];

	if (g->exec_errno != 0)
	{
		errno = g->exec_errno;
		pg_log_error("could not execute \"%s\": %m", command);
		return g->exec_errno == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_EXECUTE;
	}
	if (g->cause == CAUSE_DISCONNECTED)
		lose(l, "the server closed the connection");
	if (g->cause == CAUSE_DEADLINE)
		pg_log_warning("leadership of election \"%s\" is lost: the lease could not be renewed in time",
					   l->agent->options->election);
	if (g->cause != CAUSE_NONE)
		return EXIT_LOST;
	if (WIFSIGNALED(g->status))
		return EXIT_SIGNAL(WTERMSIG(g->status));
	return WEXITSTATUS(g->status);
}

/*
 * Does the user want no more of it?  Not if the signal was one that the command
 * takes for something else (SIGHUP).
 */
static bool
was_told_to_end(const Agent *a)
{
	const Guardian *g = &a->guardian;
	int			signo = WIFSIGNALED(g->status) ? WTERMSIG(g->status) : 0;

	return a->signo == SIGTERM || a->signo == SIGINT ||
		a->signo == SIGQUIT ||
		(signo != 0 && signo == a->signo) ||
		(g->had_terminal && (signo == SIGINT || signo == SIGQUIT));
}

/*
 * Run the command in a leadership that was granted.  Its exit code; *again: may
 * there be another?
 */
int
lead_run(Agent *a, bool *again)
{
	const Options *o = a->options;
	Leadership	l = {.agent = a,.pause = SHORTEST_PAUSE};
	Grant		grant = a->grant;
	bool		hopeless = false;
	int			code;

	memset(&a->guardian, 0, sizeof(Guardian));
	a->guardian.socket = -1;
	a->grant.term = 0;
	set_deadline(&l, &grant);
	if (!is_fresh(&l))
		code = a->signalled ? EXIT_SIGNAL(a->signo) : EXIT_LOST;
	else if (!prepare_environment(&l))
	{
		hopeless = true;
		code = EXIT_USAGE;
	}
	else
	{
		GuardianArgs		charge = {
			.command = o->command,.deadline = a->grant.deadline,
			.lease = a->lease,.grace = a->grace,.term_dir = l.term_dir,
			.connection_fd = PQsocket(a->connection.conn),
			.session = o->session
		};

		guardian_start(&a->guardian, &charge);
		if (a->guardian.pid != 0)
			watch_over(&l);
		code = exit_code(&l);
		hopeless = a->guardian.exec_errno != 0;
		term_file_remove(l.term_dir);
	}
	*again = o->forever && !hopeless && !was_told_to_end(a);
	give_back(&l);
	*again = *again && !a->signalled;
	if (*again)
		a->signo = 0;
	return code;
}
