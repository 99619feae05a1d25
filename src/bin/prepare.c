/*-------------------------------------------------------------------------
 *
 * prepare.c
 *		Makes a new connection of an agent ready: learns what the election is
 *		like, and listens to its channel.
 *
 * Invariant: an agent does not begin to stand where the lease is too short to
 * end a command in time.
 *
 *-------------------------------------------------------------------------
 */
#include "agent.h"

/* The lease to assume where the server does not say the setting, either */
#define DEFAULT_LEASE		(15 * SEC)

/* This loads the library.  Without it, the server has none of its settings. */
static const Statement sql_load = {
	"SELECT leader_election.leader($1)",
	1, true, 1, {TEXTOID}
};

/*
 * A session that leads is idle between renewals, and must not be ended then.
 */
static const Statement sql_session = {
	"SELECT pg_catalog.set_config('idle_session_timeout', '0', false)",
	1, true
};

/*
 * The election's lease, the lease that it will get if it does not exist yet,
 * its channel, and whether this is the portable edition
 */
static const Statement sql_election = {
	"SELECT (SELECT pg_catalog.extract('epoch', lease_duration)"
	" FROM leader_election.election WHERE election OPERATOR(pg_catalog.=) $1),"
	" (SELECT setting FROM pg_catalog.pg_settings"
	" WHERE name OPERATOR(pg_catalog.=) 'leader_election.lease_duration'),"
	" (SELECT channel FROM leader_election.election"
	" WHERE election OPERATOR(pg_catalog.=) $1),"
	" (SELECT edition OPERATOR(pg_catalog.=) 'portable'"
	" FROM leader_election.protocol)",
	4, true, 1, {TEXTOID}
};

/*
 * There is no such group (yet), or there are no groups.  Return an exit code, or
 * 0, with the connection closed.
 */
static int
refuse_group(Agent *a)
{
	char	   *message = a->portable ?
		pg_strdup("groups are not in the portable edition") :
		psprintf("group \"%s\" does not exist", a->shown);
	int			code = agent_refuse(a, EXIT_USAGE, a->portable ? "0A000" : "LE003",
									message);

	if (code != 0)
	{
		pg_log_error("%s", message);
		pg_log_error_hint("%s", a->portable ?
						  "The extension leader_election has them." :
						  "Make it with leader_election.create_group().");
	}
	else
		connection_fail(&a->connection, message);
	pg_free(message);
	return code;
}

/*
 * Take the answer to sql_election.
 */
static int
set_election(Agent *a, const PGresult *result)
{
	const char *setting = PQgetvalue(result, 0, 1);
	const char *channel = PQgetvalue(result, 0, 2);

	a->portable = PQgetvalue(result, 0, 3)[0] == 't';
	if (a->options->group != NULL && PQgetisnull(result, 0, 0))
		return refuse_group(a);
	a->lease = duration_from_seconds(PQgetvalue(result, 0, 0));
	/* In milliseconds.  Without the library, it can be any text. */
	if (PQgetisnull(result, 0, 0) &&
		setting[strspn(setting, "0123456789")] == '\0')
		a->lease = duration_from_seconds(setting) / 1000;
	if (a->lease <= 0)
		a->lease = DEFAULT_LEASE;
	text_set(&a->channel, channel[0] == '\0' ? CHANNEL : channel);
	pg_free(a->prefix);
	a->prefix = notification_prefix(a->options->election,
									a->options->group != NULL);
	return 0;
}

/*
 * A session behind a pooler that pools transactions would share its candidacy
 * with other programs.  Return an exit code, or 0.
 */
static int
refuse_pooler(const Agent *a)
{
	if (!a->options->session || !a->connection.pooled)
		return 0;
	pg_log_error("this is a pooler: use --mode=detached, or --pooler=session if it is in session mode");
	return EXIT_USAGE;
}

/*
 * Set the grace.  Return false, with an error reported, if it does not fit
 * into the lease.
 */
static bool
set_grace(Agent *a)
{
	int64		longest = guardian_longest_grace(a->lease);

	a->grace = a->options->grace;
	if (a->grace < 0)
		a->grace = Min(a->options->command == NULL ? SEC : 10 * SEC,
					   Min(a->lease / 3, longest));
	if (longest >= 0 && a->grace <= longest)
		return true;
	if (longest < 0)
		pg_log_error("the lease of election \"%s\", which is %s, is too short to end a command in time",
					 a->shown, duration_format(a->lease));
	else
	{
		pg_log_error("a grace of %s does not fit into the lease of election \"%s\", which is %s",
					 duration_format(a->grace), a->shown,
					 duration_format(a->lease));
		pg_log_error_detail("It may be %s at most.", duration_format(longest));
	}
	pg_log_error_hint("Set a longer lease with leader_election.alter_election().");
	return false;
}

/*
 * Make a new connection ready: learn what the election is like, and listen to
 * its channel; the first one while we stand also sets the grace.  We have no
 * seat yet.  Return an exit code, or 0.  The connection may be lost again in
 * the latter case.
 */
int
prepare_connection(Agent *a)
{
	char	   *first_seat = psprintf("%s/1", a->options->election);
	const char *values[] = {
		a->options->group != NULL ? first_seat : a->options->election
	};

	/* In a session of a pool, nothing is set that would outlast us. */
	const Statement *statements[] = {
		&sql_load,
		a->options->session && !a->options->connect.session_pooler ?
		&sql_session : NULL,
		&sql_election
	};
	Connection *c = &a->connection;
	int			code = refuse_pooler(a);

	agent_set_seat(a, NULL);
	for (int i = 0; i < lengthof(statements) && code == 0 && c->conn != NULL; i++)
	{
		Answer		answer;

		if (statements[i] == NULL)
			continue;
		answer = query_ask(c, statements[i], values, AGENT_LIMIT, true);
		if (answer.outcome == ANSWER_ROWS)
		{
			if (statements[i] == &sql_election)
				code = set_election(a, answer.result);
		}
		else if ((code = agent_judge(a, &answer)) == 0)
		{
			if (a->stand.refused == 0)
				agent_warn_answer(a, &answer);
			if (answer.outcome == ANSWER_ERROR)
				connection_fail(c, answer.message);
		}
		answer_free(&answer);
	}
	pg_free(first_seat);
	if (code != 0 || c->conn == NULL)
		return code;
	if (!a->stand.connected && !set_grace(a))
		return EXIT_USAGE;
	a->stand.connected = true;
	notification_listen(c, a->channel, AGENT_LIMIT);
	return 0;
}
