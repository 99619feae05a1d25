/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The command that pg_leader runs in the conformance suite: it speaks the
 *		line protocol of the drivers, see README.md.
 *
 *		worker WORK_CONNINFO
 *		worker WORK_CONNINFO ELECTION
 *
 * The second form is the bare one: it holds a plain advisory lock, and has no
 * pg_leader.  A command that it starts says that it is elected, as pg_leader's
 * does.
 *
 * Its term is that of the term file, read in each turn.  It does not know when
 * the lease is over: pg_leader kills it in time, and the checker sees whether it
 * did.  SIGTERM ends it between two turns, so that no write is under way when
 * the lease is given back.
 *
 *-------------------------------------------------------------------------
 */
#include <libpq-fe.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TURN_MS 20
#define TURNS_PER_WRITE 5
#define BARE_TURN_MS 50

static const char *election;
static const char *candidate;
static volatile sig_atomic_t ended = 0;
static PGconn *conn = NULL;

static void
on_signal(int signal)
{
	ended = 1;
}

static long long
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* 0: it cannot be read */
static long long
read_term(void)
{
	FILE	   *file = fopen(getenv("PG_LEADER_TERM_FILE"), "r");
	long long	term = 0;

	if (file == NULL)
		return 0;
	if (fscanf(file, "%lld", &term) != 1)
		term = 0;
	fclose(file);
	return term;
}

/* True if the statement succeeded, else its SQLSTATE is in state. */
static bool
succeeds(const char *sql, const char *term, char *state)
{
	const char *values[] = {election, term, candidate};
	int			count = term == NULL ? 0 : strchr(sql, '3') != NULL ? 3 : 2;
	PGresult   *result = PQexecParams(conn, sql, count, NULL, values, NULL,
									  NULL, 0);
	ExecStatusType status = PQresultStatus(result);
	const char *told = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	snprintf(state, 6, "%s", told != NULL ? told : "08006");
	PQclear(result);
	return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
}

static void
write_fenced(const char *conninfo, long long term)
{
	char		text[24];
	char		state[6];

	if (PQstatus(conn) != CONNECTION_OK)
	{
		PQfinish(conn);
		conn = PQconnectdb(conninfo);
	}
	snprintf(text, sizeof(text), "%lld", term);
	if (succeeds("BEGIN", NULL, state) &&
		succeeds("SELECT leader_election.assert_leader($1, $2::bigint)", text, state) &&
		succeeds("SELECT conformance.write($1, $3, $2::bigint)", text, state) &&
		succeeds("COMMIT", NULL, state))
		printf("wrote %lld %lld\n", term, now());
	else
	{
		char		ignored[6];

		printf("refused %lld %s %lld\n", term, state, now());
		succeeds("ROLLBACK", NULL, ignored);
	}
}

static void
rest(long ms)
{
	struct timespec time = {0, ms * 1000000L};

	nanosleep(&time, NULL);
}

/*
 * Starts this program without arguments, and waits until it has ended.
 */
static void
run_command(void)
{
	pid_t		child = fork();

	if (child == 0)
	{
		execl("/proc/self/exe", "worker", NULL);
		_exit(127);
	}
	while (child > 0 && waitpid(child, NULL, 0) < 0 && !ended)
		;
}

/*
 * Holds the lock of this name, on one connection after the other.  SIGTERM ends
 * a process that waits for it, at once, and closes the connection of one that
 * has it.
 */
static int
hold_lock(const char *conninfo)
{
	struct sigaction action = {.sa_handler = on_signal};
	char		state[6];

	while (!ended)
	{
		conn = PQconnectdb(conninfo);
		if (PQstatus(conn) == CONNECTION_OK &&
			succeeds("SELECT pg_advisory_lock(hashtext($1 || $2))", "", state))
		{
			sigaction(SIGTERM, &action, NULL);
			run_command();
			for (long long asked = now(); !ended &&
				 succeeds("SELECT", NULL, state); asked = now())
			{
				printf("working 1 %lld %lld\n", asked, now());
				rest(BARE_TURN_MS);
			}
			printf("lost %s %lld\n", ended ? "closed" : "connection lost", now());
		}
		PQfinish(conn);
		if (!ended)
			rest(BARE_TURN_MS);
	}
	printf("closed %lld\n", now());
	return 0;
}

int
main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal};
	long long	known = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 1)
	{
		printf("elected 1 %lld\n", now());
		return 0;
	}
	if (argc == 3)
	{
		election = argv[2];
		return hold_lock(argv[1]);
	}
	if (argc != 2)
		return 2;
	election = getenv("PG_LEADER_ELECTION");
	candidate = getenv("PG_LEADER_CANDIDATE");
	sigaction(SIGTERM, &action, NULL);
	for (int i = 1; !ended; i++)
	{
		long long	asked = now();
		long long	term = read_term();

		if (term != known && term != 0)
		{
			if (known != 0)
				printf("lost failover %lld\n", now());
			printf("elected %lld %lld\n", term, now());
			known = term;
		}
		if (term != 0)
		{
			printf("working %lld %lld %lld\n", term, asked, now());
			if (i % TURNS_PER_WRITE == 0)
				write_fenced(argv[1], term);
		}
		rest(TURN_MS);
	}
	return 0;
}
