/*-------------------------------------------------------------------------
 *
 * agent.c
 *		The agent of a candidate: its signals, its helpers, its questions to the
 *		server.
 *
 * Invariant: in every wait, an agent takes signals, and hears its guardian and
 * its checker.  What the user is to know is said once.
 *
 *-------------------------------------------------------------------------
 */
#include "agent.h"

/* A detached leader names its term, too. */
static const Statement sql_renew = {
	SQL_GRANT "leader_election.renew($1, $2)",
	GRANT_FIELDS, false, 2, {TEXTOID, INT8OID}
};
static const Statement sql_renew_session = {
	SQL_GRANT "leader_election.renew($1)",
	GRANT_FIELDS, false, 1, {TEXTOID}
};

/* --- what every wait watches beside the connection */

/*
 * If the check has failed too often while the command runs, have the guardian
 * end the command.  Another candidate is to lead: there is no hold.
 */
void
agent_judge_health(Agent *a)
{
	int64		kill_at = now_us() + a->grace;
	bool		passes = checker_passes(&a->checker, a->options->check_failures);

	if (passes || a->gone_by != NEVER)
		return;
	pg_log_warning("leadership of election \"%s\" is given up: the check does not pass",
				   a->shown);
	a->gone_by = kill_at + guardian_kill_margin(a->lease) / 2;
	message_send(a->guardian.socket, MESSAGE_STOP, 0, kill_at);
}

/*
 * Take signals, and what the guardian and the checker say.  While the command
 * runs, a signal is passed on to it, a check that fails too often has it ended
 * at once, whatever the server is asked meanwhile, and only the command's end
 * stops a wait.  Otherwise a signal stops the wait.  News of the checker stop
 * waits for nothing else; they are read in any case, or each wait would end at
 * once.
 *
 * A SIGHUP after another signal does not change what that one means.
 */
static bool
on_event(void *arg)
{
	Agent	   *a = arg;
	int			signo;
	bool		lost;
	bool		passes;

	while ((signo = signals_next(a->signal_fd)) != 0)
	{
		if (signo != SIGHUP || a->signo == 0)
			a->signo = signo;
		a->signalled = true;
		message_send(a->guardian.socket, MESSAGE_SIGNAL, signo, 0);
	}
	guardian_reap(&a->guardian);
	lost = checker_tend(&a->checker) && a->idle;
	passes = checker_passes(&a->checker, 1);
	if (a->guardian.pid == 0)
		return a->signalled || lost || (passes != a->healthy && a->idle);
	agent_judge_health(a);
	guardian_receive(&a->guardian);
	return a->guardian.done || a->guardian.reaped || lost;
}

/* --- the life of an agent */

/*
 * Begin to be an agent: from now on signals are read from a descriptor.
 */
void
agent_begin(Agent *a, const Options *options)
{
	/* Checks have no term. */
	const char *told[TOLD_FIELDS] = {
		[TOLD_ELECTION] = options->election,
		[TOLD_CANDIDATE] = options->candidate
	};

	*a = (Agent)
	{
		.options = options,.guardian = NO_GUARDIAN,
			.checker =
		{
			.options = options->check,.socket = -1
		},.gone_by = NEVER,
			.watcher =
		{
			{
				&a->signal_fd, &a->guardian.socket, &a->checker.socket
			}, on_event, a
		}
	};
	a->signal_fd = signals_check(signals_open(guardian_prepare()));
	a->connection.options = &options->connect;
	a->connection.watcher = &a->watcher;
	a->checker.environment = environment_make(told);
}

/*
 * End the checker and the connection.  The caller has given back what it led,
 * and does not stand any more.
 */
void
agent_end(Agent *a)
{
	checker_end(&a->checker);
	environment_free(a->checker.environment);
	connection_free(&a->connection);
	pg_free(a->channel);
	pg_free(a->prefix);
	pg_free(a->seat);
	pg_free(a->shown);
	pg_free(a->warned);
	pg_free(a->told);
}

/* --- warnings */

/*
 * Warn the user, but of one kind of trouble once a minute at most: attempts go
 * on for hours, and several kinds may take turns.
 */
static void
warn(Agent *a, const char *kind, const char *message)
{
	int64		now = now_us();
	Warning    *w = NULL;

	pg_free(a->warned);
	a->warned = text_printable_lines(message);
	for (int i = 0; i < lengthof(a->warnings) && w == NULL; i++)
	{
		if (strcmp(a->warnings[i].kind, kind) == 0)
			w = &a->warnings[i];
	}
	if (w != NULL && now < w->at + WARN_AGAIN)
		return;
	if (w == NULL)
		w = &a->warnings[a->nwarnings++ % lengthof(a->warnings)];
	strlcpy(w->kind, kind, sizeof(w->kind));
	w->at = now;
	a->troubled = true;
	pg_log_warning("%s", a->warned);
}

/*
 * Warn that there is no connection, and why.
 */
void
agent_warn_connection(Agent *a)
{
	const Connection *c = &a->connection;

	if (c->error != NULL)
		warn(a, targets_verdict(&c->targets) ? "refused" : "unreachable", c->error);
}

void
agent_warn_answer(Agent *a, const Answer *answer)
{
	if (answer->outcome == ANSWER_ERROR)
		warn(a, answer->sqlstate, answer->message);
	else
		agent_warn_connection(a);
}

/*
 * The server has answered: if the user was warned, that is over.
 */
void
agent_recovered(Agent *a)
{
	if (a->troubled)
		pg_log_info("the server answers again");
	a->troubled = false;
}

/* --- refusals */

/*
 * While we stand, we are refused, by all addresses or by the primary, with this
 * exit code.  That may pass: a restore, a renamed database, a GRANT that is to
 * come.  So warn, and return 0; or the code, once it was so for long enough
 * without another answer.  A user who does not want to wait is told at once.
 */
int
agent_refuse(Agent *a, int code, const char *kind, const char *message)
{
	const Options *o = a->options;
	Stand	   *s = &a->stand;
	bool		at_once = o->skip ||
		(!s->answered && !o->forever && o->wait == NEVER);

	if (s->refused == 0)
		s->refused_since = now_us();
	s->refused = code;
	if (at_once || now_us() >= s->refused_since + o->refusal_timeout)
		return code;
	warn(a, kind, message);
	return 0;
}

/*
 * Take an answer while we stand.  Return an exit code if it is a refusal that
 * has lasted for long enough, and report that; else 0.
 */
int
agent_judge(Agent *a, const Answer *answer)
{
	int			code = answer_exit_code(answer);

	if (code == 0)
	{
		a->stand.refused = 0;
		return 0;
	}
	code = agent_refuse(a, code, answer->sqlstate, answer->message);
	if (code != 0)
		answer_report(&a->connection, answer);
	return code;
}

/*
 * A call failed, and will be tried again: warn.  25006: this server
 * cannot be written to, so connect again; with several hosts, that finds
 * another one.  55000: the extension was updated, and the session has loaded
 * the library of before.
 */
void
agent_take_failure(Agent *a, const Answer *answer)
{
	agent_warn_answer(a, answer);
	if (strcmp(answer->sqlstate, "25006") == 0 ||
		strcmp(answer->sqlstate, "55000") == 0)
		connection_close(&a->connection);
}

/* --- telling clients of a sidecar */

/*
 * Publish why we do not lead, or, with NULL, that we do, by a->grant.
 */
void
agent_publish(const Agent *a, const char *not_leading)
{
	Snapshot	s = {
		.not_leading = not_leading,.term = a->grant.term,
		.until = a->grant.deadline - guardian_kill_margin(a->lease),
		.longest = a->grace,.connected = a->connection.conn != NULL,
		.elected = a->elected,.renewed = a->renewed
	};

	reply_publish(&s);
}

/* --- asking */

/*
 * Ask the server.  LE006 says that a pooler has reset the session.  It may
 * have done so for the client that had the session before us.  So the first
 * time on a connection ask again; the second time, LE006 is an error like
 * others.
 */
Answer
agent_ask(Agent *a, const Statement *statement, const char *const *values,
		  int64 limit, bool may_stop)
{
	Connection *c = &a->connection;
	int64		until = now_us() + limit;
	Answer		answer;

	answer = query_ask(c, statement, values, limit, may_stop);
	if (answer.outcome != ANSWER_ERROR || c->was_reset ||
		strcmp(answer.sqlstate, "LE006") != 0)
		return answer;
	c->was_reset = true;
	agent_warn_answer(a, &answer);
	answer_free(&answer);
	return query_ask(c, statement, values, Max(until - now_us(), 1), may_stop);
}

/*
 * Renew the lease that a->grant grants; or that the session has, whatever that
 * grants.
 */
Answer
agent_renew(Agent *a, int64 limit)
{
	const char *values[] = {a->election, a->grant.term_text};

	return agent_ask(a, a->options->session ? &sql_renew_session : &sql_renew,
					 values, limit, false);
}

/*
 * Read a grant.  Return false if the answer has none.
 *
 * The deadline counts from when the request was sent.  Counted from when the
 * answer came, it would be later than the server's by the time that the answer
 * took, and another candidate could lead while the command still runs.
 */
bool
agent_read_grant(const Answer *answer, Grant *grant)
{
	int64		remaining_ms;

	if (answer->outcome != ANSWER_ROWS || PQntuples(answer->result) == 0)
		return false;
	grant->term = strtoll(PQgetvalue(answer->result, 0, 0), NULL, 10);
	snprintf(grant->term_text, sizeof(grant->term_text), "%lld",
			 (long long) grant->term);
	grant->sent = answer->sent;
	remaining_ms = strtoll(PQgetvalue(answer->result, 0, 1), NULL, 10);
	grant->deadline = answer->sent +
		Max(Min(remaining_ms, LONGEST_TIME / MSEC), 0) * MSEC;
	grant->yielding = PQgetvalue(answer->result, 0, 2)[0] == 't';
	return grant->term > 0;
}

/* --- its election */

/*
 * From now on the election is this seat of the group; NULL: any of them, or
 * there is no group.  Set its name in messages, too, whose encoding a new
 * connection may change.
 */
void
agent_set_seat(Agent *a, const char *seat)
{
	pg_free(a->seat);
	a->seat = seat != NULL ? pg_strdup(seat) : NULL;
	a->election = seat != NULL ? a->seat : a->options->election;
	pg_free(a->shown);
	a->shown = text_printable(a->election);
}
