/*-------------------------------------------------------------------------
 *
 * candidate.c
 *		A candidate of the chaos run: it stands for elections, works as leader,
 *		and writes down what it believed, and when.
 *
 *		candidate KIND NAME INSTANCE SEED LOG RESOURCE CONNECTION LEASE_MS
 *			ELECTION...
 *
 *	CONNECTION	a connection string; or several, with | between them, of which
 *				each connection takes one at random
 *	ELECTION	an election; or GROUP*N, a group, of which it stands for all
 *				seats, and knows those with the numbers 1 to N
 *	KIND		session   join(), join_group(), and the worker renews
 *				manual    join(auto_renew => false), and renew()
 *				detached  acquire(), acquire_any() and renew(election, term)
 *				command   what pg_leader runs: it leads as long as it lives
 *				listener  does not stand, but listens to what is announced
 *				restless listener	the same, and connects anew now and then
 *
 * A line of the log is one write(), so that a killed process leaves whole
 * lines.  Times are microseconds of CLOCK_BOOTTIME, taken before a statement
 * was sent (sent) and after its answer was received (received):
 *
 *	q SERIAL ELECTION sent received TERM	is_leader() was true, on connection
 *											SERIAL, in this term; or campaign() or
 *											join_group() ended with it
 *	m SERIAL ELECTION received TERM MS		renewed, for MS (-1: not known)
 *	g ELECTION sent received TERM MS ASKED	granted, for MS, when asked with term
 *											ASKED (0: acquire)
 *	n ELECTION sent received TERM			renew(election, TERM): no row
 *	b ELECTION sent received TERM RUN		... for this run
 *	d ELECTION sent received TERM RUN OUTCOME	said that its run is done
 *	r ELECTION time TERM WHY				about to give up this term
 *	c ELECTION time TERM					the command runs
 *	w ELECTION sent received TERM ID OUTCOME	COMMIT of a fenced row
 *	e time SQLSTATE WHAT					an error
 *	x time WHAT								the connection was given up
 *	z SERIAL received						the session was reset
 *	y SERIAL received						... or not: an error came after or before
 *	j SERIAL ELECTION received SQLSTATE		join() was answered
 *	v ELECTION time							about to leave ("all": all of them), or
 *											to campaign
 *	s SERIAL received SERVER				listens, on this connection, to SERVER,
 *											which is another one after a crash
 *	l SERIAL received PAYLOAD				a notification
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "candidate.h"

#define MAX_ELECTIONS	16
#define MAX_CONNECTIONS	4
#define LASTING_SEATS	2		/* of a group: it never has fewer */
#define TICK_MS			40
#define ANSWER_MS		3000	/* then the connection is given up */
#define PERIOD_US		500000	/* of the runs in RUNS_IN */
#define RUNS_IN			"runs"

typedef struct Seat
{
	const char *election;
	const char *group;			/* that it belongs to, or NULL */
	int			number;			/* in the group, or 0 */
	int64_t		term;			/* 0: does not lead, as far as it knows */
	int64_t		last_term;		/* in which it led last */
	int64_t		deadline;		/* its own; detached only */
	int64_t		next_call;
	int64_t		hangs_until;	/* renews nothing before */
	int64_t		next_stand;		/* for all seats of the group; detached only */
	bool		yielding;
	char		run[20];		/* that it has led for last; "": none */
	int64_t		run_term;		/* in this term */
} Seat;

static Seat seats[MAX_ELECTIONS];
static int	nseats;
static char all_elections[500];	/* with commas between */
static const char *name;
static bool calm;				/* gives up nothing: it is in a calm election */
static char *connections[MAX_CONNECTIONS];
static int	nconnections;
static int64_t lease_us;
static int	log_fd;
static int	resource_fd;
static struct sockaddr_un resource;
static int	rank;
static int64_t progress;
static int64_t next_id;

static PGconn *conn;
static int	serial;				/* of the connection */
static bool warned;				/* a wait for the standby was cut short */
static int64_t sent;			/* of the last statement */
static int64_t received;
static char sqlstate[6];

static int64_t
now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_BOOTTIME, &ts);
	return ts.tv_sec * INT64_C(1000000) + ts.tv_nsec / 1000;
}

static void
pause_ms(int ms)
{
	struct timespec ts = {ms / 1000, ms % 1000 * 1000000L};

	nanosleep(&ts, NULL);
}

/* True once in a while: per mille of the calls */
bool
chance(int per_mille)
{
	return random() % 1000 < per_mille;
}

static void __attribute__((format(printf, 1, 2)))
note(const char *format,...)
{
	char		line[500];
	va_list		args;
	int			length;

	va_start(args, format);
	length = vsnprintf(line, sizeof(line) - 1, format, args);
	va_end(args);
	if (length > (int) sizeof(line) - 2)
		length = sizeof(line) - 2;
	for (int i = 0; i < length; i++)
	{
		if (line[i] == '\n')
			line[i] = ' ';
	}
	line[length] = '\n';
	if (write(log_fd, line, length + 1) != length + 1)
		exit(1);
}

static void
give_up_connection(const char *why)
{
	note("x %lld %s", (long long) now_us(), why);
	PQfinish(conn);
	conn = NULL;
}

static void
receive_notice(void *arg, const PGresult *result)
{
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	if (message != NULL && strstr(message, "synchronous replication") != NULL)
		warned = true;
}

/*
 * The answer to a statement; NULL if there was none, or an error, which is in
 * sqlstate then ("08006": the connection is lost, and the outcome unknown).
 */
PGresult *
query(const char *format,...)
{
	char		sql[1000];
	va_list		args;
	PGresult   *result = NULL;
	PGresult   *next;
	bool		resets;

	va_start(args, format);
	vsnprintf(sql, sizeof(sql), format, args);
	va_end(args);
	resets = strstr(sql, "DISCARD ALL") != NULL || strstr(sql, "unlock_all()") != NULL;
	strcpy(sqlstate, "08006");
	warned = false;
	if (conn == NULL)
		return NULL;
	sent = now_us();
	if (!PQsendQuery(conn, sql))
	{
		give_up_connection("not sent");
		return NULL;
	}
	for (;;)
	{
		struct pollfd fd = {PQsocket(conn), POLLIN, 0};

		while (PQisBusy(conn))
		{
			int64_t		left = sent / 1000 + ANSWER_MS - now_us() / 1000;

			if (left <= 0 || poll(&fd, 1, left) <= 0)
			{
				PQclear(result);
				give_up_connection("no answer");
				return NULL;
			}
			if (!PQconsumeInput(conn))
				break;
		}
		next = PQgetResult(conn);
		if (next == NULL)
			break;
		PQclear(result);
		result = next;
	}
	received = now_us();
	if (PQstatus(conn) != CONNECTION_OK)
	{
		PQclear(result);
		give_up_connection("lost");
		return NULL;
	}
	if (PQresultStatus(result) == PGRES_TUPLES_OK ||
		PQresultStatus(result) == PGRES_COMMAND_OK)
	{
		strcpy(sqlstate, "00000");
		if (resets)
			note("z %d %lld", serial, (long long) received);
		return result;
	}
	snprintf(sqlstate, sizeof(sqlstate), "%s",
			 PQresultErrorField(result, PG_DIAG_SQLSTATE) ?
			 PQresultErrorField(result, PG_DIAG_SQLSTATE) : "?????");
	note("e %lld %s %.60s: %s", (long long) received, sqlstate, sql,
		 PQresultErrorMessage(result));
	if (resets)
		note("y %d %lld", serial, (long long) received);
	PQclear(result);
	return NULL;
}

bool
succeeded(void)
{
	return strcmp(sqlstate, "00000") == 0;
}

int
server_version(void)
{
	return conn != NULL ? PQserverVersion(conn) : 0;
}

/* The first value as a number; 0 if there is none */
static int64_t
number(const PGresult *result, int row, int column)
{
	if (result == NULL || PQntuples(result) <= row)
		return 0;
	return strtoll(PQgetvalue(result, row, column), NULL, 10);
}

/*
 * Tell the outside resource, which keeps the highest term.
 */
static void
use_resource(const Seat *seat)
{
	char		message[300];
	int			length = snprintf(message, sizeof(message), "%s %lld %s %lld",
								  seat->election, (long long) seat->term, name,
								  (long long) now_us());

	(void) sendto(resource_fd, message, length, MSG_DONTWAIT,
				  (struct sockaddr *) &resource, sizeof(resource));
}

/*
 * A fenced row.  Between its INSERT, which looks at the leadership, and its
 * COMMIT, which looks again, anything may happen: now and then for long.
 */
static void
write_fenced(const Seat *seat, bool by_term)
{
	PGresult   *result;
	int64_t		id = ++next_id;
	int64_t		term = seat->term;
	const char *outcome = sqlstate;

	RUN("BEGIN");
	begin_nested();
	if (by_term)
	{
		RUN("SELECT leader_election.assert_leader('%s', %lld)",
			seat->election, (long long) term);
		if (strcmp(sqlstate, "00000") == 0)
			RUN("INSERT INTO chaos.\"w_%s\" (term, candidate, id) VALUES (%lld, '%s', %lld)",
				seat->election, (long long) term, name, (long long) id);
	}
	else
	{
		result = query("INSERT INTO chaos.\"w_%s\" (term, candidate, id) "
					   "SELECT leader_election.term('%s'), '%s', %lld RETURNING term",
					   seat->election, seat->election, name, (long long) id);
		term = number(result, 0, 0);
		PQclear(result);
	}
	if (strcmp(sqlstate, "00000") != 0)
	{
		if (conn != NULL)
			RUN("ROLLBACK");
		return;
	}
	end_nested(seat->election);
	if (!calm && chance(100))
		pause_ms(random() % (lease_us * 3 / 2000));
	result = query("COMMIT");
	if (result == NULL)
		received = now_us();
	else if (strcmp(PQcmdStatus(result), "COMMIT") != 0)
		outcome = "rollback";
	else
		outcome = warned ? "unconfirmed" : "committed";
	note("w %s %lld %lld %lld %lld %s", seat->election, (long long) sent,
		 (long long) received, (long long) term, (long long) id, outcome);
	PQclear(result);
}

/* --- session candidates */

static void
note_true(const Seat *seat, int64_t term)
{
	note("q %d %s %lld %lld %lld", serial, seat->election, (long long) sent,
		 (long long) received, (long long) term);
}

static Seat *
find_seat(const char *election)
{
	for (int i = 0; i < nseats; i++)
	{
		if (strcmp(seats[i].election, election) == 0)
			return &seats[i];
	}
	return NULL;
}

/*
 * Stand for all seats of a group.  The answer says which of them it leads.
 */
static void
join_group(const char *group, const char *profile)
{
	PGresult   *result = query("SELECT * FROM leader_election.join_group('%s', '%s', %s)",
							   group, name, profile);

	for (int i = 0; result != NULL && i < PQntuples(result); i++)
	{
		const Seat *seat = find_seat(PQgetvalue(result, i, 0));

		if (seat != NULL)
			note_true(seat, number(result, i, 1));
	}
	PQclear(result);
}

static void
note_joined(const Seat *seat)
{
	note("j %d %s %lld %s", serial, seat->election, (long long) now_us(),
		 sqlstate);
}

/*
 * Stand, and now and then wait for a while until elected.
 */
static void
join(const Seat *seat, bool manual)
{
	char		profile[200];
	PGresult   *result;
	int64_t		term;

	snprintf(profile, sizeof(profile),
			 "rank => %d, progress => %lld, auto_renew => %s",
			 rank, (long long) progress, manual ? "false" : "true");
	if (seat->group != NULL)
	{
		if (!chance(50))
		{
			join_group(seat->group, profile);
			return;
		}
		seat += random() % LASTING_SEATS;
	}
	if (pressed() && chance(50))
	{
		join_nested(seat->election, name);
		if (strcmp(sqlstate, "LE006") == 0)
			note_joined(seat);
	}
	if (!chance(30))
	{
		const char *beside = own_notification();

		RUN("SELECT leader_election.join('%s', '%s', %s)%s",
			seat->election, name, profile, beside);
		note_joined(seat);
		return;
	}
	note("v %s %lld", seat->election, (long long) now_us());
	result = query("CALL leader_election.campaign('%s', '%s', timeout => '%ld ms', %s)",
				   seat->election, name, random() % 1500, profile);
	term = number(result, 0, 0);
	if (term != 0)
		note_true(seat, term);
	PQclear(result);
}

/*
 * The next one to stand for: each election, and each group once in a turn.
 */
static Seat *
next_to_stand(void)
{
	static int	turn = 0;
	Seat	   *seat;

	do
		seat = &seats[turn++ % nseats];
	while (seat->number > 1);
	return seat;
}

/*
 * Somebody to hand over to; an empty string if there is nobody.
 */
static const char *
choose_other(const Seat *seat)
{
	static char other[100];
	PGresult   *result =
		query("SELECT candidate FROM leader_election.candidates "
			  "WHERE election = '%s' AND alive AND NOT leads "
			  "ORDER BY random() LIMIT 1", seat->election);

	other[0] = '\0';
	if (result != NULL && PQntuples(result) == 1)
		snprintf(other, sizeof(other), "%s", PQgetvalue(result, 0, 0));
	PQclear(result);
	return other;
}

static void
renew_session(const Seat *seat)
{
	PGresult   *result = query("SELECT * FROM leader_election.renew('%s')",
							   seat->election);

	if (result == NULL || PQntuples(result) == 1)
		note("m %d %s %lld %lld %lld", serial, seat->election,
			 (long long) received,
			 (long long) (result == NULL ? seat->term : number(result, 0, 0)),
			 (long long) (result == NULL ? -1 : number(result, 0, 1)));
	PQclear(result);
}

static void
lead_session(Seat *seat, bool manual)
{
	const char *other;

	use_resource(seat);
	if (manual && now_us() >= seat->next_call && now_us() >= seat->hangs_until)
	{
		renew_session(seat);
		seat->next_call = now_us() + lease_us / 4;
		if (chance(50))
			seat->hangs_until = now_us() + lease_us * 2;
	}
	if (chance(150))
		write_fenced(seat, false);
	if (calm)
		return;
	if (chance(6))
		RUN("SELECT leader_election.resign('%s')", seat->election);
	else if (chance(3) && *(other = choose_other(seat)))
		RUN("SELECT leader_election.transfer('%s', '%s')", seat->election, other);
	else if (chance(2))
	{
		note("v %s %lld", seat->election, (long long) now_us());
		RUN("SELECT leader_election.leave('%s')", seat->election);
	}
	else if (chance(1))
	{
		note("v all %lld", (long long) now_us());
		RUN("SELECT leader_election.leave_all()");
	}
	else if (chance(1))
		RUN("DISCARD ALL");
	else if (chance(1))
		RUN("SELECT pg_advisory_unlock_all()");
}

static void
tick_session(bool manual)
{
	static int64_t next_join = 0;
	PGresult   *result;

	reset_session();

	/* One at a time: where nothing is confirmed, each may take a second. */
	if (now_us() >= next_join)
	{
		next_join = now_us() + (300000 + random() % 300000) / nseats;
		join(next_to_stand(), manual);
	}
	result = query("SELECT leader_election.is_leader(e), leader_election.term(e) "
				   "FROM unnest('{%s}'::text[]) e", all_elections);
	for (int i = 0; i < nseats; i++)
	{
		seats[i].term = 0;
		if (result == NULL || strcmp(PQgetvalue(result, i, 0), "t") != 0 ||
			PQgetisnull(result, i, 1))
			continue;
		seats[i].term = number(result, i, 1);
		note_true(&seats[i], seats[i].term);
	}
	PQclear(result);
	for (int i = 0; i < nseats; i++)
	{
		if (conn != NULL && seats[i].term != 0)
			lead_session(&seats[i], manual);
	}
}

/* --- detached candidates */

/*
 * A row of the answer says that the lease is ours; its columns begin with the
 * term, there.
 */
static void
believe_row(Seat *seat, const PGresult *result, int row, int column,
			int64_t asked)
{
	int64_t		ms = number(result, row, column + 1);

	seat->term = number(result, row, column);
	seat->deadline = sent + ms * 1000;
	seat->yielding = strcmp(PQgetvalue(result, row, column + 3), "t") == 0;
	note("g %s %lld %lld %lld %lld %lld", seat->election, (long long) sent,
		 (long long) received, (long long) seat->term, (long long) ms,
		 (long long) asked);
}

static void
believe(Seat *seat, const PGresult *result, int64_t asked)
{
	if (PQntuples(result) > 0)
	{
		believe_row(seat, result, 0, 0, asked);
		return;
	}
	if (asked != 0)
		note("n %s %lld %lld %lld", seat->election, (long long) sent,
			 (long long) received, (long long) asked);
	seat->term = 0;
}

/*
 * Stand for all seats of a group, and ask for them.
 */
static void
acquire_any(Seat *first)
{
	PGresult   *result;

	first->next_stand = now_us() + lease_us / 4 + random() % (lease_us / 8);
	result = query("SELECT * FROM leader_election.acquire_any('%s', '%s', %d, %lld)",
				   first->group, name, rank, (long long) progress);
	for (int i = 0; result != NULL && i < PQntuples(result); i++)
	{
		Seat	   *seat = find_seat(PQgetvalue(result, i, 0));

		if (seat != NULL)
			believe_row(seat, result, i, 1, 0);
	}
	PQclear(result);
}

/*
 * From now on this term is not ours any more, even if the call fails.
 */
static int64_t
step_down(Seat *seat, const char *why)
{
	int64_t		term = seat->term;

	note("r %s %lld %lld %s", seat->election, (long long) now_us(),
		 (long long) term, why);
	seat->term = 0;
	return term;
}

/*
 * Say that the run of this term is done, maybe when the lease is over.
 */
static void
finish_run(Seat *seat, int64_t term)
{
	PGresult   *result = query("SELECT leader_election.release('%s', %lld, done => true)",
							   seat->election, (long long) term);

	if (result != NULL)
		note("d %s %lld %lld %lld %s %s", seat->election, (long long) sent,
			 (long long) received, (long long) term, seat->run,
			 warned ? "unconfirmed" :
			 strcmp(PQgetvalue(result, 0, 0), "t") == 0 ? "recorded" : "refused");
	if (result != NULL && strcmp(PQgetvalue(result, 0, 0), "t") != 0)
		seat->run_term = 0;		/* it will be refused for ever */
	PQclear(result);
}

/*
 * Ask for the lease, where runs are granted for the one of this moment.
 */
static PGresult *
acquire(Seat *seat)
{
	PGresult   *result;
	char		run[20];

	if (strcmp(seat->election, RUNS_IN) != 0)
		return query("SELECT * FROM leader_election.acquire('%s', '%s', %d, %lld)",
					 seat->election, name, rank, (long long) progress);

	/* Some come late, as if their clocks were wrong. */
	snprintf(run, sizeof(run), "%012lld",
			 (long long) (now_us() / PERIOD_US - random() % 6));
	result = query("SELECT * FROM leader_election.acquire('%s', '%s', %d, %lld, "
				   "run => '%s', attempts => 3)",
				   seat->election, name, rank, (long long) progress, run);
	if (result == NULL || PQntuples(result) == 0)
		return result;
	strcpy(seat->run, run);
	seat->run_term = number(result, 0, 0);
	note("b %s %lld %lld %lld %s", seat->election, (long long) sent,
		 (long long) received, (long long) seat->run_term, run);
	return result;
}

static void
lead_detached(Seat *seat)
{
	const char *other;

	use_resource(seat);
	if (chance(120))
		write_fenced(seat, true);
	if (conn == NULL || calm)
		return;
	if (seat->run_term != 0 && chance(100))
		finish_run(seat, step_down(seat, "done"));
	else if (chance(seat->yielding ? 100 : 6))
		RUN("SELECT leader_election.release('%s', %lld)", seat->election,
			(long long) step_down(seat, "release"));
	else if (chance(3) && *(other = choose_other(seat)))
		RUN("SELECT leader_election.transfer('%s', %lld, '%s')", seat->election,
			(long long) step_down(seat, "transfer"), other);
}

static void
tick_detached(void)
{
	for (int i = 0; i < nseats; i++)
	{
		Seat	   *seat = &seats[i];
		int64_t		asked;
		PGresult   *result;

		if (conn != NULL && seat->number == 1 && now_us() >= seat->next_stand)
			acquire_any(seat);
		if (conn == NULL)
			return;
		asked = seat->term;
		if (now_us() >= seat->next_call && now_us() >= seat->hangs_until &&
			(seat->group == NULL || seat->term != 0 ||
			 (seat->number <= LASTING_SEATS && chance(10))))
		{
			seat->next_call = now_us() + lease_us / 4 + random() % (lease_us / 8);
			if (asked != 0)
				result = query("SELECT * FROM leader_election.renew('%s', %lld, %lld)",
							   seat->election, (long long) asked,
							   (long long) ++progress);
			else
				result = acquire(seat);
			if (result != NULL)
				believe(seat, result, asked);
			PQclear(result);
			if (seat->term != 0 && !calm && chance(20))
				seat->hangs_until = now_us() + lease_us * 2;
		}
		if (seat->term != 0 && now_us() < seat->deadline)
			lead_detached(seat);
		else if (seat->term == 0 && seat->run_term != 0 && chance(20))
			finish_run(seat, seat->run_term);
		else if (seat->term == 0 && !calm && chance(1))
			RUN("SELECT leader_election.leave('%s', '%s')", seat->election, name);
	}
}

/* --- the command of pg_leader */

static void
read_term(Seat *seat)
{
	const char *path = getenv("PG_LEADER_TERM_FILE");
	FILE	   *file = path != NULL ? fopen(path, "r") : NULL;
	long long	term;

	if (file != NULL && fscanf(file, "%lld", &term) == 1)
		seat->term = term;
	if (file != NULL)
		fclose(file);
}

static void
tick_command(int64_t end)
{
	Seat	   *seat = &seats[0];

	if (now_us() >= end)
		exit(chance(500));
	read_term(seat);
	note("c %s %lld %lld", seat->election, (long long) now_us(),
		 (long long) seat->term);
	use_resource(seat);
	if (conn != NULL && chance(100))
		write_fenced(seat, true);
}

/* --- who listens */

/*
 * Note which life of which server this is.  A crash begins the statistics anew,
 * a promotion begins a timeline; both end all connections that listen.
 */
static void
start_listening(void)
{
	PGresult   *result = NULL;

	RUN("LISTEN leadership_changed");
	if (succeeded() && getenv("CHAOS_PRESSURE") != NULL)
		RUN("LISTEN flood");
	if (succeeded())
		result = query("SELECT concat_ws('.', current_setting('cluster_name'), "
					   "left(pg_walfile_name(pg_current_wal_lsn()), 8), "
					   "extract(epoch FROM stats_reset)) FROM pg_stat_archiver");
	if (result != NULL)
		note("s %d %lld %s", serial, (long long) received,
			 PQgetvalue(result, 0, 0));
	else if (conn != NULL)
		give_up_connection("not listening");
	PQclear(result);
}

static void
tick_listener(bool restless)
{
	PGnotify   *notify;

	if (restless && chance(10))
		give_up_connection("restless");
	RUN("SELECT 1");
	while (conn != NULL && (notify = PQnotifies(conn)) != NULL)
	{
		if (strcmp(notify->relname, "leadership_changed") == 0)
			note("l %d %lld %s", serial, (long long) received, notify->extra);
		PQfreemem(notify);
	}
}

/* --- all of them */

static void
connect_again(bool listens)
{
	conn = PQconnectdb(connections[random() % nconnections]);
	if (PQstatus(conn) != CONNECTION_OK)
	{
		PQfinish(conn);
		conn = NULL;
		pause_ms(50 + random() % 100);
		return;
	}
	serial++;
	PQsetNoticeReceiver(conn, receive_notice, NULL);
	if (listens)
		start_listening();
}

static void
add_seat(const char *election, const char *group, int number)
{
	if (nseats == MAX_ELECTIONS)
		exit(2);
	seats[nseats].election = election;
	seats[nseats].group = group;
	seats[nseats++].number = number;
	snprintf(all_elections + strlen(all_elections),
			 sizeof(all_elections) - strlen(all_elections), "%s%s",
			 nseats > 1 ? "," : "", election);
}

/*
 * An election, or a group and the number of its seats, as in "crew*4"
 */
static void
stand_for(char *argument)
{
	char	   *star = strchr(argument, '*');

	if (star == NULL)
	{
		add_seat(argument, NULL, 0);
		return;
	}
	*star = '\0';
	for (int i = 1; i <= atoi(star + 1); i++)
	{
		char	   *election = malloc(strlen(argument) + 20);

		if (election == NULL)
			exit(2);
		sprintf(election, "%s/%d", argument, i);
		add_seat(election, argument, i);
	}
}

int
main(int argc, char **argv)
{
	const char *kind;
	int64_t		end;

	if (argc < 10)
	{
		fprintf(stderr, "usage: see candidate.c\n");
		return 2;
	}
	kind = argv[1];
	name = argv[2];
	calm = strncmp(name, "calm", 4) == 0;
	if (calm)
		unsetenv("CHAOS_PRESSURE");
	srandom(atoi(argv[4]) * 1000 + atoi(argv[3]));
	next_id = atoll(argv[3]) * 1000000;
	for (char *one = strtok(argv[7], "|");
		 one != NULL && nconnections < MAX_CONNECTIONS; one = strtok(NULL, "|"))
		connections[nconnections++] = one;
	lease_us = atoll(argv[8]) * 1000;
	if (strcmp(kind, "command") == 0)
	{
		/* One instance for each time that pg_leader runs it */
		char		path[1000];

		snprintf(path, sizeof(path), "%s.%d", argv[5], (int) getpid());
		log_fd = open(path, O_WRONLY | O_APPEND | O_CREAT, 0644);
		next_id += getpid() * INT64_C(1000000000);
		srandom(getpid());
		if (random() % 3 == 0)
			signal(SIGTERM, SIG_IGN);
	}
	else
		log_fd = open(argv[5], O_WRONLY | O_APPEND | O_CREAT, 0644);
	resource_fd = socket(AF_UNIX, SOCK_DGRAM, 0);
	resource.sun_family = AF_UNIX;
	snprintf(resource.sun_path, sizeof(resource.sun_path), "%s", argv[6]);
	if (log_fd < 0 || resource_fd < 0)
		return 1;
	for (int i = 9; i < argc; i++)
		stand_for(argv[i]);
	rank = random() % 5;
	progress = random() % 100;

	end = now_us() + 500000 + random() % 6000000;
	for (;;)
	{
		if (conn == NULL)
			connect_again(strstr(kind, "listener") != NULL);
		if (conn != NULL && strcmp(kind, "command") != 0)
			press_session();
		if (strcmp(kind, "command") == 0)
			tick_command(end);
		else if (conn != NULL && strstr(kind, "listener") != NULL)
			tick_listener(kind[0] == 'r');
		else if (conn != NULL && strcmp(kind, "detached") == 0)
			tick_detached();
		else if (conn != NULL)
			tick_session(strcmp(kind, "manual") == 0);
		for (int i = 0; i < nseats; i++)
		{
			Seat		late = seats[i];

			/* A candidate without a connection may still lead. */
			if (conn == NULL && strcmp(kind, "detached") == 0 &&
				late.term != 0 && now_us() < late.deadline)
				use_resource(&late);

			/* And what a leader of yesterday does may come late. */
			if (late.term != 0)
				seats[i].last_term = late.term;
			else if (late.last_term != 0 && chance(4))
			{
				late.term = late.last_term;
				use_resource(&late);
			}
		}
		pause_ms(TICK_MS);
	}
}
