/*-------------------------------------------------------------------------
 *
 * stand.c
 *		pg_leader run, stand: stands for election until elected.
 *
 * Invariants:
 *
 * - A grant is never overlooked.  An answer that may be a grant is waited for,
 *	 even when a signal says to end: the lease has to be given back.
 *
 * - No command is started in the term of an earlier one.  All tries of a
 *	 detached candidate make one request, and the next leadership is another
 *	 request; a session looks at the term.
 *
 * While the check does not pass, we do not stand, so that we are in nobody's
 * way: others do not count us for a quorum, nor is the seat kept for us.
 *
 *-------------------------------------------------------------------------
 */
#include "agent.h"

#include <sys/random.h>

/*
 * The longest pause between two tries to be elected; of a session where no
 * worker elects another one when the leader's has ended
 */
#define LONGEST_POLL		SEC
#define PORTABLE_POLL		(100 * MSEC)

/* How long --skip tries where nobody leads */
#define SKIP_LIMIT			SEC

/* What a step returns when neither an exit code nor ELECTED is known yet */
#define GO_ON				(-3)

static const Statement sql_acquire = {
	SQL_GRANT "leader_election.acquire($1, $2, $3, request => $4,"
	" run => $5, attempts => $6)",
	GRANT_FIELDS, false, 6, {TEXTOID, TEXTOID, INT4OID, UUIDOID, TEXTOID, INT4OID}
};

/* Maybe more than one seat; then all but the first are given back. */
static const Statement sql_acquire_any = {
	"SELECT term, remaining_ms, yielding, election"
	" FROM leader_election.acquire_any($1, $2, $3, request => $4)",
	GRANT_FIELDS + 1, false, 4, {TEXTOID, TEXTOID, INT4OID, UUIDOID}
};
static const Statement sql_release_seat = {
	"SELECT leader_election.release($1, $2)",
	1, true, 2, {TEXTOID, INT8OID}
};
static const Statement sql_join = {
	"SELECT leader_election.join($1, $2, $3, auto_renew => false)",
	1, true, 3, {TEXTOID, TEXTOID, INT4OID}
};
static const Statement sql_leave = {
	"SELECT leader_election.leave($1, $2)",
	1, true, 2, {TEXTOID, TEXTOID}
};
static const Statement sql_leave_session = {
	"SELECT leader_election.leave($1)",
	1, true, 1, {TEXTOID}
};

/* All seats but the one that it leads */
static const Statement sql_leave_group = {
	"SELECT pg_catalog.count(leader_election.leave(election, $2))"
	" FROM leader_election.election"
	" WHERE group_name OPERATOR(pg_catalog.=) $1"
	" AND (leader_election.leader(election) OPERATOR(pg_catalog.=) $2) IS NOT TRUE",
	1, true, 2, {TEXTOID, TEXTOID}
};
static const Statement sql_state = {
	"SELECT state, waiting_for, leader, pg_catalog.extract('epoch', remaining)"
	" FROM leader_election.status WHERE election OPERATOR(pg_catalog.=) $1",
	4, false, 1, {TEXTOID}
};

static Answer
ask(Agent *a, const Statement *statement, int64 limit, bool may_stop)
{
	const Options *o = a->options;
	const char *values[] = {
		a->election, o->candidate, o->rank, a->stand.request,
		o->every > 0 ? a->period.run : NULL, o->attempts
	};

	return agent_ask(a, statement, values, limit, may_stop);
}

/* --- connecting */

/*
 * Give up when the time to wait is over: an exit code; else GO_ON.
 */
static int
check_time(const Agent *a, const Stand *s)
{
	if (a->signalled || now_us() < s->until)
		return GO_ON;
	if (s->refused != 0)
	{
		pg_log_error("%s", a->warned);
		return s->refused;
	}
	pg_log_error("%s", s->connected ? "timed out waiting to be elected" :
				 a->connection.error);
	return s->connected ? EXIT_TIMED_OUT : EXIT_NO_CONNECTION;
}

/*
 * Pause before the next try to connect.  The pauses grow until a try to be
 * elected is answered: a server that ends each session at once is not asked more
 * often than one that is down.
 */
static int
pause_to_connect(Agent *a, Stand *s)
{
	int64		pause = duration_next_pause(&s->pause, LONGEST_PAUSE);

	(void) connection_wait(&a->connection, Min(now_us() + pause, s->until));
	return check_time(a, s);
}

/*
 * No address has let us in.  Return an exit code, or 0.
 */
static int
judge_no_connection(Agent *a, Stand *s)
{
	const char *error = a->connection.error;
	int			code;

	if (!targets_verdict(&a->connection.targets))
	{
		s->refused = 0;
		return 0;
	}
	code = agent_refuse(a, EXIT_REFUSED, "refused", error);
	if (code != 0)
		pg_log_error("%s", error);
	return code;
}

/*
 * Try to connect.  If that fails, pause a little.  Return an exit code, or
 * GO_ON.
 */
static int
connect_to_stand(Agent *a, Stand *s)
{
	const Options *o = a->options;
	Connection *c = &a->connection;
	int64		limit = Max(s->until - now_us(), SHORTEST_PAUSE);
	int			code = connect_round(c, limit) ? prepare_connection(a) :
		a->signalled ? 0 : judge_no_connection(a, s);

	if (code != 0)
		return code;
	if (c->conn != NULL || a->signalled)
		return GO_ON;
	if (o->skip || (!s->connected && !o->forever && o->wait == NEVER))
	{
		pg_log_error("%s", c->error);
		return EXIT_NO_CONNECTION;
	}
	if (s->refused == 0)
		agent_warn_connection(a);
	return pause_to_connect(a, s);
}

/* --- --skip */

/*
 * Skip if another candidate leads or a hold is in force, and give up if nobody
 * could be elected for long enough.  Return an exit code, or GO_ON.
 */
static int
judge_state(const Agent *a, const Stand *s, const PGresult *state)
{
	bool		vacant = strcmp(PQgetvalue(state, 0, 0), "vacant") == 0;
	const char *waiting_for = PQgetvalue(state, 0, 1);

	if (!vacant || strcmp(waiting_for, "hold") == 0)
	{
		pg_log_info("skipped: %s%s", vacant ? "hold" : "the leader is ",
					text_show(PQgetvalue(state, 0, 2)));
		return EXIT_SUCCESS;
	}
	if (now_us() < s->until)
		return GO_ON;
	pg_log_error("nobody leads election \"%s\", and nobody can be elected now%s%s",
				 a->shown, waiting_for[0] ? ": " : "", text_show(waiting_for));
	return EXIT_TIMED_OUT;
}

/*
 * --skip has not been elected: find out why.  Return an exit code, or GO_ON.
 */
static int
skip_verdict(Agent *a, Stand *s)
{
	Answer		answer = ask(a, &sql_state, AGENT_LIMIT, true);
	int			code = GO_ON;

	if (answer.outcome == ANSWER_ROWS && PQntuples(answer.result) == 1)
		code = judge_state(a, s, answer.result);
	else if (now_us() >= s->until && !a->signalled)
	{
		agent_warn_answer(a, &answer);
		pg_log_error("it is not known whether anybody leads election \"%s\"",
					 a->shown);
		code = EXIT_TIMED_OUT;
	}
	answer_free(&answer);
	return code;
}

/* --- trying to be elected */

/*
 * One try in a session.  We do not use campaign(), which waits in the server:
 * a signal or the loss of the connection could not end the session at once,
 * and the session might be elected meanwhile.
 */
static Answer
try_session(Agent *a)
{
	Answer		answer = ask(a, &sql_join, AGENT_LIMIT, false);
	bool		leads;
	int64		term;

	if (answer.outcome != ANSWER_ROWS)
		return answer;
	leads = !PQgetisnull(answer.result, 0, 0);
	term = leads ? strtoll(PQgetvalue(answer.result, 0, 0), NULL, 10) : 0;
	answer_free(&answer);

	/*
	 * Our last leadership is over, but its lease could not be given back.  The
	 * server may still be carrying out what the command has sent: in the same
	 * term, it would be taken for what the next command sends.
	 */
	if (leads && term == a->grant.term)
	{
		stand_stop(a);
		return answer;
	}

	/*
	 * join() does not say the deadline: renew to learn it.  If join() has not
	 * elected us, return an answer without a row.
	 */
	return leads ? agent_renew(a, AGENT_LIMIT) : answer;
}

/*
 * Is this the name of a seat of the group: its name, "/", and a number?
 */
static bool
is_seat(const Agent *a, const char *name)
{
	size_t		length = strlen(a->options->group);

	return strncmp(name, a->options->group, length) == 0 && name[length] == '/' &&
		name[length + 1] != '\0' &&
		name[length + 1 + strspn(name + length + 1, "0123456789")] == '\0';
}

/*
 * We lead a seat of the group: stand for no other one, so that none is kept
 * for us, and nobody is asked to yield to us.  What cannot be given back or
 * left now ends by itself, a lease later.  Return ELECTED, or an exit code.
 */
static int
take_seat(Agent *a, const PGresult *grants)
{
	const char *seat = PQgetvalue(grants, 0, GRANT_FIELDS);
	Answer		answer;

	if (!is_seat(a, seat))
	{
		pg_log_error("the server answered with a seat of another group: \"%s\"",
					 text_show(seat));
		return EXIT_USAGE;
	}
	for (int i = 1; i < PQntuples(grants); i++)
	{
		const char *values[] = {
			PQgetvalue(grants, i, GRANT_FIELDS), PQgetvalue(grants, i, 0)
		};

		answer = agent_ask(a, &sql_release_seat, values, SEC, false);
		answer_free(&answer);
	}
	answer = ask(a, &sql_leave_group, SEC, false);
	answer_free(&answer);
	agent_set_seat(a, seat);
	return ELECTED;
}

/*
 * Try once to be elected: ELECTED, an exit code, or GO_ON.
 */
static int
try_once(Agent *a, Stand *s)
{
	Answer		answer;
	int			code;

	answer = a->options->session ? try_session(a) :
		ask(a, a->options->group != NULL ? &sql_acquire_any : &sql_acquire,
			AGENT_LIMIT, false);
	code = agent_judge(a, &answer);
	if (answer.outcome == ANSWER_ROWS)
	{
		s->answered = true;
		s->pause = SHORTEST_PAUSE;
		agent_recovered(a);
	}
	if (agent_read_grant(&answer, &a->grant))
	{
		code = ELECTED;
		if (a->options->group != NULL)
			code = take_seat(a, answer.result);
	}
	else if (code == 0)
	{
		code = GO_ON;
		if (answer.outcome != ANSWER_ROWS && s->refused == 0)
			agent_take_failure(a, &answer);
	}
	answer_free(&answer);
	return code;
}

static bool
is_about_election(const char *payload, void *arg)
{
	const Agent *a = arg;

	return notification_is_about(payload, a->prefix) &&
		!notification_is_change(payload);
}

/*
 * We are not elected.  Have --skip find out why, or look at the time; and if
 * that does not end the wait, wait for the next step: for a notification about
 * the election, for another result of the check, or for a while.  Return an
 * exit code, or GO_ON.
 */
static int
wait_for_step(Agent *a, Stand *s)
{
	int64		poll = a->portable && a->options->session ? PORTABLE_POLL :
		LONGEST_POLL;
	int64		pause = Min(Min(poll, a->lease / 3), s->until - now_us());
	int			code;

	if (a->options->skip && a->connection.conn != NULL)
	{
		pause = SHORTEST_PAUSE;
		code = skip_verdict(a, s);
	}
	else
		code = check_time(a, s);
	if (code != GO_ON || a->signalled)
		return code;
	if (a->period.done && a->connection.conn != NULL)
		pause = Max(a->period.next - now_us(), 0);
	if (a->connection.conn == NULL)
		return pause_to_connect(a, s);
	a->idle = true;
	(void) notification_wait(&a->connection, now_us() + pause,
							 is_about_election, a);
	a->idle = false;
	return GO_ON;
}

/*
 * Stand, and try to be elected.  Return ELECTED, an exit code, or GO_ON.
 */
static int
try_to_lead(Agent *a, Stand *s)
{
	int			code = GO_ON;

	a->standing = true;

	/*
	 * Never ask for the lease without a run: what is done in it could not be
	 * recorded.  Ask for a run that is done, too: the answer makes sure that
	 * we do not stand.
	 */
	if (a->options->every < 0 || period_look(a, &code))
		code = try_once(a, s);
	if (code != GO_ON || a->signalled || s->refused != 0)
		return code;

	/* Where the server is in trouble, a question may cost us the connection. */
	if (a->troubled)
		return code;
	if (a->connection.conn != NULL && a->options->command == NULL)
		waiting_publish(a);
	if (a->connection.conn != NULL)
		waiting_tell(a);
	return code;
}

/*
 * The check does not pass: do not stand.
 */
static void
stay_out(Agent *a)
{
	if (a->standing)
		stand_stop(a);
	a->period.done = false;		/* we do not look whether it is, meanwhile */
}

/* --- the life of a candidate */

/*
 * Make the name of a request: a random UUID.
 */
static void
make_request(char *request)
{
	unsigned char bytes[16];

	if (getentropy(bytes, sizeof(bytes)) != 0)
		pg_fatal("could not make a random number: %m");
	for (int i = 0; i < (int) sizeof(bytes); i++)
		sprintf(request + 2 * i, "%02x", bytes[i]);
}

/*
 * Begin to wait to be elected.  All tries make one request, so that a grant
 * whose answer was lost is the answer to the next try.
 */
void
stand_begin(Agent *a)
{
	const Options *o = a->options;

	a->stand = (Stand)
	{
		.until = NEVER,.pause = SHORTEST_PAUSE,
			.why = "standing",.connected = a->connection.conn != NULL
	};
	make_request(a->stand.request);
	text_set(&a->told, "");
	/* --skip waits for the first check to end. */
	if (o->skip)
		a->stand.until = now_us() + SKIP_LIMIT +
			(o->check.command != NULL ? o->check.timeout : 0);
	else if (o->wait != NEVER)
		a->stand.until = now_us() + o->wait;
}

/*
 * Stand until elected.  Return ELECTED, or an exit code.
 */
int
stand_until_elected(Agent *a)
{
	Stand	   *s = &a->stand;
	int			code = GO_ON;

	agent_set_seat(a, NULL);
	while (code == GO_ON)
	{
		agent_publish(a, s->refused != 0 ? "refused" :
					  a->connection.conn == NULL ? "no connection" : s->why);
		checker_tend(&a->checker);
		a->healthy = checker_passes(&a->checker, 1);
		if (a->signalled)
			return EXIT_SIGNAL(a->signo);
		if (a->connection.conn == NULL)
		{
			code = connect_to_stand(a, s);
			continue;
		}
		if (a->healthy)
			code = try_to_lead(a, s);
		else
			stay_out(a);
		if (code == GO_ON && !a->signalled)
			code = wait_for_step(a, s);
	}
	return code;
}

/*
 * A session stops standing when its connection ends.  But a pooler keeps the
 * session: nothing of ours may be left in it.
 */
static void
end_session(Agent *a)
{
	Connection *c = &a->connection;
	Answer		answer;

	if (c->conn != NULL && c->options->session_pooler)
	{
		answer = ask(a, &sql_leave_session, SEC, false);
		answer_free(&answer);
		if (a->channel != NULL)
			notification_unlisten(c, a->channel, SEC);
	}
	connection_close(c);
	a->standing = false;
}

/*
 * Stop standing, so that others do not count us as a candidate any more.  A
 * connection of a detached candidate that is lost is replaced once.
 */
void
stand_stop(Agent *a)
{
	const Statement *leave = a->options->group != NULL ? &sql_leave_group : &sql_leave;
	Connection *c = &a->connection;

	agent_set_seat(a, NULL);
	if (a->options->session)
		end_session(a);
	for (int tries = 0; a->standing && tries < 2; tries++)
	{
		Answer		answer;

		if (c->conn == NULL && !connect_round(c, SEC))
			break;
		answer = ask(a, leave, SEC, false);
		a->standing = answer.outcome != ANSWER_ROWS;
		answer_free(&answer);
	}
}
