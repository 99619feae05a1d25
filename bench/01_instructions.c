/*-------------------------------------------------------------------------
 *
 * 01_instructions.c
 *		Instructions that a process of the server executes for a call, beside
 *		those for a bare statement: counts, which no other load changes.
 *
 * bench/run starts the server under callgrind.  A process writes what it has
 * counted to a file, and begins at nought, when it enters and when it leaves
 * ProcessLogMemoryContextInterrupt().  pg_log_backend_memory_contexts() makes
 * any process do that, the worker too: so this is the mark that begins and ends
 * each measurement.  What lies between two marks without anything else is
 * measured as well, and subtracted.
 *
 * A kind of statement has a connection of its own, and was executed often
 * enough before that caches are warm.  Each has a row, or an election with a
 * lease of an hour, of its own; there is one election at a time, for others on
 * the same page would decide how often that is pruned.  Statements are
 * prepared, with a generic plan, and read tables by key, however small these
 * are.
 *
 * The worker is measured over a whole takeover: a detached leader lets its
 * lease end, and a session is elected.  That is all that the worker does from
 * one sleep to the next one that lasts: the look at the tables, the end of one
 * term and the grant of the next, the notification, and the look after that.
 *
 *-------------------------------------------------------------------------
 */
#include <ctype.h>
#include <errno.h>
#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

#define ROUNDS		7
#define WARM_UP		2			/* rounds that are not counted */
#define CALLS		50			/* in a round */
#define TAKEOVERS	11
#define LOOP		1000		/* calls in one statement */
#define MAX_STEPS	4
#define GIVE_UP_US	180e6
#define POLL_MS		5

/* What the second argument of a statement is; the first one is the seat */
typedef enum Second
{
	NOT_THERE,
	NAME,						/* the client's */
	TERM						/* of the leader */
} Second;

typedef struct Step
{
	const char *sql;
	int			nargs;
	Second		second;
	const char *rows;			/* that it returns or changes */
} Step;

typedef struct Kind
{
	const char *name;
	const char *before;			/* once: returns the term.  %s: the seat */
	Step		steps[MAX_STEPS];
	const char *undo;			/* of each call, not counted.  %s: the seat */
	int			times;			/* what is measured, in each call */
	int			floor;			/* a kind */
	double		target;			/* for the ratio; 0: none */
} Kind;

enum
{
	UPDATE, RENEW, TAKE_AND_GIVE, ACQUIRE_AND_RELEASE, SELECT, IN_VAIN,
	FUNCTION, IS_LEADER, FUNCTION_LOOP, IS_LEADER_LOOP, FENCED, BLOCK,
	FENCED_BLOCK, LOCK_AND_INSERT, JOIN, REPLACE, NKINDS
};

#define BY_HOLDER	"SELECT term FROM leader_election.acquire('%s', 'holder')"
#define UPDATE_ROW	"UPDATE bench_row SET n = n + 1 WHERE id = $1"

static const Kind kinds[NKINDS] = {
	[UPDATE] = {
		"bare UPDATE", NULL, {{UPDATE_ROW, 1, NOT_THERE, "1"}}, NULL, 1, UPDATE
	},
	[RENEW] = {
		"renew(election, term)", BY_HOLDER,
		{{"SELECT * FROM leader_election.renew($1, $2)", 2, TERM, "1"}},
		NULL, 1, UPDATE
	},
	[TAKE_AND_GIVE] = {
		"bare UPDATE, and back", NULL, {
			{"UPDATE bench_row SET owner = $2 WHERE id = $1 AND owner IS NULL",
			2, NAME, "1"},
			{"UPDATE bench_row SET owner = NULL WHERE id = $1 AND owner = $2",
			2, NAME, "1"}
		}, NULL, 1, TAKE_AND_GIVE
	},
	[ACQUIRE_AND_RELEASE] = {
		"acquire(), release()", NULL, {
			{"SELECT * FROM leader_election.acquire($1, $2)", 2, NAME, "1"},
			{"SELECT leader_election.release($1, $2)", 2, TERM, "1"}
		}, NULL, 1, TAKE_AND_GIVE, 2.2
	},
	[SELECT] = {
		"SELECT of the row", NULL,
		{{"SELECT owner FROM bench_row WHERE id = $1", 1, NOT_THERE, "1"}},
		NULL, 1, SELECT
	},
	[IN_VAIN] = {
		"acquire() in vain", BY_HOLDER,
		{{"SELECT * FROM leader_election.acquire($1, $2)", 2, NAME, "0"}},
		NULL, 1, SELECT, 1.5
	},
	[FUNCTION] = {
		"bare function", NULL, {{"SELECT octet_length($1)", 1, NOT_THERE, "1"}},
		NULL, 1, FUNCTION
	},
	[IS_LEADER] = {
		"is_leader()", "SELECT leader_election.join('%s', 'client')",
		{{"SELECT leader_election.is_leader($1)", 1, NOT_THERE, "1"}},
		NULL, 1, FUNCTION
	},
	[FUNCTION_LOOP] = {
		"bare function, each of 1000", NULL,
		{{"SELECT count(octet_length($1)) FROM generate_series(1, 1000)", 1,
		NOT_THERE, "1"}},
		NULL, LOOP, FUNCTION_LOOP
	},
	[IS_LEADER_LOOP] = {
		"is_leader(), each of 1000",
		"SELECT leader_election.join('%s', 'client')",
		{{"SELECT count(leader_election.is_leader($1)) "
		"FROM generate_series(1, 1000)", 1, NOT_THERE, "1"}},
		NULL, LOOP, FUNCTION_LOOP
	},
	[FENCED] = {
		"UPDATE, assert_leader(e, term)", BY_HOLDER, {
			{UPDATE_ROW
				" AND leader_election.assert_leader($1, $2) IS NOT NULL",
			2, TERM, "1"}
		}, NULL, 1, UPDATE
	},
	[BLOCK] = {
		"BEGIN, UPDATE, COMMIT", NULL, {
			{"BEGIN", 0, NOT_THERE, ""},
			{UPDATE_ROW, 1, NOT_THERE, "1"},
			{"COMMIT", 0, NOT_THERE, ""}
		}, NULL, 1, BLOCK
	},
	[FENCED_BLOCK] = {
		"BEGIN, assert_leader(e, term) ...", BY_HOLDER, {
			{"BEGIN", 0, NOT_THERE, ""},
			{"SELECT leader_election.assert_leader($1, $2)", 2, TERM, "1"},
			{UPDATE_ROW, 1, NOT_THERE, "1"},
			{"COMMIT", 0, NOT_THERE, ""}
		}, NULL, 1, BLOCK
	},
	[LOCK_AND_INSERT] = {
		"pg_advisory_lock(), INSERT", NULL, {
			{"SELECT pg_advisory_lock(1)", 0, NOT_THERE, "1"},
			{"INSERT INTO bench_candidate VALUES ($1, $2)", 2, NAME, "1"}
		}, "WITH gone AS (DELETE FROM bench_candidate WHERE seat = '%s') "
		"SELECT pg_advisory_unlock(1)", 1, LOCK_AND_INSERT
	},
	[JOIN] = {
		"join(), the first one of a session", BY_HOLDER,
		{{"SELECT leader_election.join($1, $2)", 2, NAME, "1"}},
		"SELECT leader_election.leave('%s')", 1, LOCK_AND_INSERT
	},
	[REPLACE] = {
		"UPDATE and INSERT, then NOTIFY", NULL, {
			{"WITH changed AS (UPDATE bench_row SET owner = $2, n = n + 1 "
				"WHERE id = $1 RETURNING *) "
			"INSERT INTO bench_history SELECT id, n, owner FROM changed",
			2, NAME, "1"},
			{"SELECT pg_notify('bench', $1 || $2)", 2, NAME, "1"}
		}, NULL, 1, REPLACE
	},
};

/* A process of the server, and how many parts of its counts were read */
typedef struct Process
{
	char	   *pid;
	int			parts;
} Process;

typedef struct Client
{
	PGconn	   *conn;
	Process		process;
	char		seat[40];
	char		term[40];
	Sample		empty;
	Sample		counts;
} Client;

static PGconn *monitor;
static Client clients[NKINDS];

/* --- counts */

static const char *
part_file(const Process *p, int part)
{
	const char *folder = getenv("BENCH_COUNTS");

	if (folder == NULL)
		die("start this by bench/run, which starts the server under callgrind");
	return text("%s/%s.%d", folder, p->pid, part);
}

/*
 * The sum in a file of callgrind's, which is its last line; -1: it is not
 * written yet.
 */
static double
total_in(const char *name)
{
	FILE	   *file = fopen(name, "r");
	char		line[2000];
	double		total = -1;

	if (file == NULL)
		return -1;
	while (fgets(line, sizeof(line), file) != NULL)
	{
		if (strncmp(line, "totals: ", 8) == 0 && strchr(line, '\n') != NULL)
			total = atof(line + 8);
	}
	fclose(file);
	return total;
}

static double
await_part(const Process *p, int part)
{
	double		give_up_at = now_us() + GIVE_UP_US;
	double		total;

	while ((total = total_in(part_file(p, part))) < 0)
	{
		if (now_us() > give_up_at)
			die("process %s has written no counts: is it under callgrind?",
				p->pid);
		pause_ms(POLL_MS);
	}
	return total;
}

/*
 * Keep the counts that a mark has ended under the name of what was measured.
 * What was under way all the time has a call "0 times" of the function it was
 * in, with all that was counted: callgrind_annotate would take that for a cost
 * of its own.
 */
static void
keep_part(const Process *p, int part, const char *name)
{
	char		path[200];
	char		line[2000];
	char	   *to = path;
	FILE	   *from = fopen(part_file(p, part), "r");
	FILE	   *kept;

	to += snprintf(path, sizeof(path), "%s/", getenv("BENCH_COUNTS"));
	for (; *name != '\0'; name++)
	{
		if (isalnum((unsigned char) *name))
			*to++ = *name;
		else if (to[-1] != '/' && to[-1] != '_')
			*to++ = '_';
	}
	*(to[-1] == '_' ? to - 1 : to) = '\0';
	kept = fopen(path, "w");
	if (from == NULL || kept == NULL)
		die("%s: %s", path, strerror(errno));
	while (fgets(line, sizeof(line), from) != NULL)
	{
		if (strncmp(line, "calls=0 ", 8) != 0)
			fputs(line, kept);
		else if (fgets(line, sizeof(line), from) == NULL)
			break;
	}
	fclose(from);
	fclose(kept);
}

/*
 * How many instructions a process has executed since the last mark; kept under
 * a name, if there is one.
 */
static double
mark(PGconn *conn, Process *p, const char *name)
{
	double		total;

	wait_for(conn, "SELECT pg_log_backend_memory_contexts(%s)", p->pid);
	total = await_part(p, p->parts + 1);
	(void) await_part(p, p->parts + 2); /* what the mark itself has cost */
	if (name != NULL)
		keep_part(p, p->parts + 1, name);
	unlink(part_file(p, p->parts + 1));
	unlink(part_file(p, p->parts + 2));
	p->parts += 2;
	return total;
}

/*
 * Wait until the worker, if there is one, sleeps.
 */
static void
await_worker(void)
{
	wait_for(monitor, "SELECT count(*) = 0 FROM pg_stat_activity "
			 "WHERE backend_type = 'leader_election worker' "
			 "AND (state IS DISTINCT FROM 'idle' "
			 "OR clock_timestamp() - state_change < '50 ms')");
}

/*
 * Drop an election whose leader has gone, or is going.
 */
static void
drop_election(const char *seat)
{
	wait_for(monitor, "SELECT leader_election.leader('%s') IS NULL", seat);
	await_worker();
	run(monitor, "SELECT leader_election.drop_election('%s')", seat);
}

/* --- statements */

static void
prepare(int k)
{
	const Kind *kind = &kinds[k];
	Client	   *c = &clients[k];

	snprintf(c->seat, sizeof(c->seat), "seat %d", k);
	c->conn = new_connection(kind->name);
	c->process.pid = ask(c->conn, "SELECT pg_backend_pid()");
	run(c->conn, "SET plan_cache_mode = force_generic_plan");
	run(c->conn, "SET enable_seqscan = off");
	run(c->conn, "SET enable_bitmapscan = off");
	run(c->conn, "INSERT INTO bench_row (id) VALUES ('%s')", c->seat);
	run(c->conn, "SELECT leader_election.create_election('%s', "
		"lease_duration => '1 hour')", c->seat);
	if (kind->before != NULL)
	{
		char		sql[200];
		char	   *term;

		snprintf(sql, sizeof(sql), kind->before, c->seat);
		term = ask(c->conn, "%s", sql);
		if (term == NULL)
			die("%s: nobody leads", kind->name);
		snprintf(c->term, sizeof(c->term), "%s", term);
		free(term);
	}
	for (int i = 0; i < MAX_STEPS && kind->steps[i].sql != NULL; i++)
	{
		PGresult   *result = PQprepare(c->conn, text("step %d", i),
									   kind->steps[i].sql, 0, NULL);

		if (PQresultStatus(result) != PGRES_COMMAND_OK)
			die("%s: %s", kind->name, PQerrorMessage(c->conn));
		PQclear(result);
	}
}

static void
execute(Client *c, const Kind *kind, int i)
{
	const Step *step = &kind->steps[i];
	bool		acquires = kind == &kinds[ACQUIRE_AND_RELEASE] && i == 0;
	const char *args[2] = {c->seat, step->second == TERM ? c->term : "client"};
	PGresult   *result = PQexecPrepared(c->conn, text("step %d", i),
										step->nargs, args, NULL, NULL, 0);
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		die("%s: %s", kind->name, PQerrorMessage(c->conn));
	if (strcmp(PQcmdTuples(result), step->rows) != 0 ||
		(PQntuples(result) == 1 && strcmp(PQgetvalue(result, 0, 0), "f") == 0))
		die("%s: \"%s\" has not done what it is to do", kind->name, step->sql);
	if (acquires)
		snprintf(c->term, sizeof(c->term), "%s", PQgetvalue(result, 0, 0));
	PQclear(result);
}

/*
 * One round of a kind: some calls between two marks, and two marks.
 */
static void
count_statements(int k, int round)
{
	const Kind *kind = &kinds[k];
	Client	   *c = &clients[k];
	int			calls = kind->undo != NULL || kind->times > 1 ? 1 : CALLS;
	double		empty;
	double		total;

	(void) mark(c->conn, &c->process, NULL);
	empty = mark(c->conn, &c->process, NULL);
	for (int call = 0; call < calls; call++)
	{
		for (int i = 0; i < MAX_STEPS && kind->steps[i].sql != NULL; i++)
			execute(c, kind, i);
	}
	total = mark(c->conn, &c->process,
				 round == WARM_UP + ROUNDS - 1 ? kind->name : NULL);
	if (kind->undo != NULL)
	{
		char		sql[200];

		snprintf(sql, sizeof(sql), kind->undo, c->seat);
		run(c->conn, "%s", sql);
	}
	if (round >= WARM_UP)
		add(&c->counts, (total - empty) / (calls * kind->times));
}

static void
finish(int k)
{
	Client	   *c = &clients[k];

	PQfinish(c->conn);
	free(c->process.pid);
	if (kinds[k].before != NULL && strcmp(kinds[k].before, BY_HOLDER) == 0)
		run(monitor, "SELECT leader_election.release('%s', %s)", c->seat,
			c->term);
	drop_election(c->seat);
}

static void
count_all_statements(void)
{
	run(monitor, "CREATE TABLE bench_row (id text PRIMARY KEY, owner text, "
		"n bigint DEFAULT 0) WITH (fillfactor = 30)");
	run(monitor, "CREATE UNLOGGED TABLE bench_candidate (seat text, name text, "
		"PRIMARY KEY (seat, name))");
	run(monitor, "CREATE TABLE bench_history (id text, n bigint, owner text, "
		"PRIMARY KEY (id, n))");
	for (int k = 0; k < NKINDS; k++)
	{
		prepare(k);
		for (int round = 0; round < WARM_UP + ROUNDS; round++)
			count_statements(k, round);
		finish(k);
	}
}

/* --- the worker */

/*
 * Wait until somebody leads, and the worker has told listeners of that, and
 * sleeps.
 */
static void
await_calm(void)
{
	wait_for(monitor, "SELECT l.leader IS NOT NULL AND a.term = l.term "
			 "FROM leader_election.lease l "
			 "JOIN leader_election.announced a USING (election) "
			 "WHERE l.election = 'worker'");
	await_worker();
}

/*
 * A takeover by the session from the detached leader, whose lease ends; false:
 * it has ended before the marks were made that are to come first.
 */
static bool
count_takeover(PGconn *session, Process *worker, Sample *counts,
			   const char *name)
{
	double		empty;
	double		total;
	char	   *leads;
	bool		in_time;

	run(session, "SELECT leader_election.resign('worker')");
	wait_for(session, "SELECT count(*) = 1 "
			 "FROM leader_election.acquire('worker', 'detached')");
	await_calm();
	(void) mark(monitor, worker, NULL);
	empty = mark(monitor, worker, NULL);
	leads = ask(monitor, "SELECT leader_election.leader('worker')");
	in_time = leads != NULL && strcmp(leads, "detached") == 0;
	free(leads);
	wait_for(monitor, "SELECT leader_election.leader('worker') = 'session'");
	await_calm();
	total = mark(monitor, worker, name);
	if (in_time && counts != NULL)
		add(counts, total - empty);
	return in_time;
}

static void
count_takeovers(Sample *counts)
{
	PGconn	   *session = new_connection("session");
	Process		worker;
	int			lease_s = 1;
	int			last = WARM_UP + TAKEOVERS - 1;

	run(monitor, "SELECT leader_election.create_election('worker', "
		"lease_duration => '1 s')");
	run(session, "SELECT leader_election.join('worker', 'session')");
	worker = (Process) {
		.pid = worker_pid(monitor)
	};
	for (int round = 0; round <= last; round++)
	{
		while (!count_takeover(session, &worker,
							   round < WARM_UP ? NULL : counts,
							   round == last ? "takeover in the worker" : NULL))
		{
			lease_s *= 2;
			run(monitor, "SELECT leader_election.alter_election('worker', "
				"lease_duration => '%d s')", lease_s);
		}
	}
	free(worker.pid);
	PQfinish(session);
	drop_election("worker");
}

/* --- the table */

static void
describe(void)
{
	char	   *server = ask(monitor, "SELECT version()");
	char	   *flags = ask(monitor, "SELECT string_agg(flag, ' ') "
							"FROM pg_config, "
							"string_to_table(setting, ' ') flag "
							"WHERE name = 'CFLAGS' AND flag ~ '^-[Ofm]'");
	char	   *assertions = ask(monitor, "SHOW debug_assertions");

	report_note("%s", server);
	report_note("  its CFLAGS: %s; assertions: %s", flags, assertions);
	report_note("  the extension: cc %s, -O2; libc %s; %s", __VERSION__,
				gnu_get_libc_version(), getenv("BENCH_TOOL"));
	free(server);
	free(flags);
	free(assertions);
}

static void
report_counts(const char *name, const Sample *counts, int floor, double target)
{
	double		ratio = median(counts) / median(&clients[floor].counts);

	report(name, "instr", counts, (Against) {
		.floor = kinds[floor].name, .ratio = ratio,
		.target = target > 0 ? text("ratio <= %.1f", target) : NULL,
		.met = ratio <= target
	});
}

int
main(void)
{
	Sample		takeovers = {.n = 0};

	monitor = new_connection("monitor");
	describe();
	count_takeovers(&takeovers);
	count_all_statements();
	for (int k = 0; k < NKINDS; k++)
		report_counts(kinds[k].name, &clients[k].counts, kinds[k].floor,
					  kinds[k].target);
	report_counts("takeover in the worker", &takeovers, REPLACE, 0);
	run(monitor, "DROP TABLE bench_row, bench_candidate, bench_history");
	PQfinish(monitor);
	return 0;
}
