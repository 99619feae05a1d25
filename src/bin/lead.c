/*-------------------------------------------------------------------------
 *
 * lead.c
 *		Renews the lease of one leadership.
 *
 * Invariants:
 *
 * - The deadline is never later than the server's (see agent_read_grant()).
 *	 The guardian gets each new deadline, and keeps it alone (see command.c).
 *
 * - In a session, the connection is the leadership: when it is lost,
 *	 everything is killed at once.  The guardian, too, holds the connection's
 *	 socket, and sees its end by itself.  If this process is killed, the server
 *	 sees the end of the session, and elects another candidate, only when the
 *	 command is gone.  (Such a session stands with auto_renew => false.
 *	 Otherwise the server would prolong the lease of a process that is
 *	 stopped.)
 *
 *-------------------------------------------------------------------------
 */
#include "agent.h"

/* How long one answer may take: an eighth of the lease, within limits */
#define LONGEST_LIMIT		(10 * SEC)

/* --- deadlines */

/*
 * Return when this process kills the command because the guardian has not.
 * The guardian kills a whole margin before the deadline.
 */
int64
lead_overdue_at(const Agent *a)
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
	int64		left = lead_overdue_at(l->agent) - now_us();

	limit = Max(Min(limit, LONGEST_LIMIT), SHORTEST_LIMIT);
	if (l->agent->options->session)
		limit = left;
	return Max(Min(limit, left), 1);
}

/*
 * Tell clients of a sidecar what has become of the leadership.
 */
void
lead_publish(const Leadership *l)
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
	 * No renewal moves the deadline back.  But a server that was just
	 * promoted may not know of the last renewal, and grant less than we have
	 * already.  A session ends with its server, and is granted less only where
	 * that would end it sooner now.
	 */
	if (!new_term && !a->options->session)
		a->grant.deadline = Max(grant->deadline, old_deadline);
	/* A leader that is asked to yield gets what remains, not a whole lease. */
	if (!grant->yielding)
		a->lease = length;
	l->next = grant->sent + Max(length / 3, a->lease / 20);
	l->notified = false;
	message_send(a->guardian.socket, MESSAGE_DEADLINE,
				 (int) Min(a->lease / MSEC, PG_INT32_MAX), a->grant.deadline);
	/* If that fails, the next renewal tries again. */
	l->file_is_old |= new_term;
	if (a->guardian.pid != 0 && l->file_is_old)
	{
		l->file_is_old = !term_file_write(l->term_dir, grant->term);
		if (l->file_is_old)
			pg_log_warning("could not write the term file: %m");
	}
	if (new_term)
	{
		l->began = grant->sent;
		a->elected++;
		pg_log_info("leading in term %lld", (long long) grant->term);
	}
	else
		a->renewed++;
	if (grant->yielding && !l->yielding)
	{
		pg_log_info("asked to yield");
		l->yielding = true;
		message_send(a->guardian.socket, MESSAGE_STOP, 0, NEVER);
	}
	lead_publish(l);
}

void
lead_lose(Leadership *l, const char *why)
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
	Answer		answer = agent_renew(a, answer_limit(l));
	Grant		grant;

	l->unanswered = answer.outcome == ANSWER_LOST ? l->unanswered + 1 : 0;
	if (agent_read_grant(&answer, &grant))
	{
		set_deadline(l, &grant);
		agent_recovered(a);
		if (!a->connection.listening)
			notification_listen(&a->connection, a->channel, answer_limit(l));
	}
	else if (answer.outcome == ANSWER_ROWS)
		lead_lose(l, "the term is over");
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
		lead_lose(l, c->error != NULL ? c->error : "the connection is closed");
		return;
	}
	if (connect_round(c, answer_limit(l)))
	{
		l->pause = SHORTEST_PAUSE;
		l->next = 0;
		return;
	}
	agent_warn_connection(a);
	l->unanswered++;
	l->next = now_us();
	/* The limit may have ended the round: then the next address is due. */
	if (targets_over(&c->targets))
		l->next += duration_next_pause(&l->pause, LONGEST_PAUSE);
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
void
lead_step(Leadership *l, int64 until)
{
	Agent	   *a = l->agent;

	lead_publish(l);
	a->idle = true;
	(void) connection_wait(&a->connection,
						   l->over ? until : Min(l->next, until));
	a->idle = false;
	checker_tend(&a->checker);
	agent_judge_health(a);
	/* Do not wait for the next renewal if the connection was just lost. */
	if (a->connection.conn == NULL && l->next > now_us() &&
		l->pause == SHORTEST_PAUSE)
		l->next = 0;
	if (!a->guardian.done && !a->guardian.reaped)
		keep_lease(l);
}

/* --- the beginning of a leadership */

/*
 * Begin the leadership that a->grant grants.
 */
void
lead_begin(Leadership *l, Agent *a)
{
	Grant		grant = a->grant;

	*l = (Leadership)
	{
		.agent = a,.pause = SHORTEST_PAUSE,
			.hold = a->options->hold
	};
	a->guardian = NO_GUARDIAN;
	a->gone_by = NEVER;
	a->grant.term = 0;
	set_deadline(l, &grant);
}

/*
 * Before the command is started, renew a lease of which a third is over
 * already: the grant may have been long on its way.  Return false if the lease
 * is not ours any more, or the command must not be started: the check may have
 * failed since we asked to be elected.
 */
bool
lead_is_fresh(Leadership *l)
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
			lead_lose(l, "the lease ran out before it was granted");
		else if (now_us() < l->next)
			(void) connection_wait(&a->connection, l->next);
		else
			keep_lease(l);
	}
}
