/*-------------------------------------------------------------------------
 *
 * client.c
 *		What the benchmarks share: connections, clients that are processes of
 *		their own, the time that the worker takes.
 *
 * A benchmark waits for conditions on the server, and whatever fails ends it:
 * a figure that was measured on something else than intended is worth less
 * than none.
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client.h"

#define TIMEOUT_US	180e6
#define POLL_MS		5

double
now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1e6 + ts.tv_nsec / 1e3;
}

void
pause_ms(int ms)
{
	struct timespec ts = {ms / 1000, ms % 1000 * 1000000L};

	nanosleep(&ts, NULL);
}

void
die(const char *format,...)
{
	va_list		args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

/*
 * Connect to where PGHOST, PGDATABASE ... point, under this application_name.
 */
PGconn *
new_connection(const char *name)
{
	return new_connection_to(NULL, name);
}

/*
 * To another database there.
 */
PGconn *
new_connection_to(const char *database, const char *name)
{
	const char *keys[] = {"dbname", "application_name", "options", NULL};
	const char *values[] = {
		database, name, "-c client_min_messages=warning", NULL
	};
	PGconn	   *conn = PQconnectdbParams(keys, values, 0);

	if (PQstatus(conn) != CONNECTION_OK)
		die("%s: %s", name, PQerrorMessage(conn));
	return conn;
}

static char *
query(PGconn *conn, const char *sql)
{
	PGresult   *result = PQexec(conn, sql);
	ExecStatusType status = PQresultStatus(result);
	char	   *value = NULL;

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		die("%s\n%s", sql, PQerrorMessage(conn));
	if (PQntuples(result) > 0 && PQnfields(result) > 0)
		value = strdup(PQgetvalue(result, 0, 0));
	PQclear(result);
	return value;
}

#define FORMAT_SQL(sql, format) \
	do { \
		va_list		args; \
		va_start(args, format); \
		vsnprintf(sql, sizeof(sql), format, args); \
		va_end(args); \
	} while (0)

void
run(PGconn *conn, const char *format,...)
{
	char		sql[2000];

	FORMAT_SQL(sql, format);
	free(query(conn, sql));
}

/*
 * The first value of the first row, to be freed; NULL if there is no row.
 */
char *
ask(PGconn *conn, const char *format,...)
{
	char		sql[2000];

	FORMAT_SQL(sql, format);
	return query(conn, sql);
}

double
ask_number(PGconn *conn, const char *format,...)
{
	char		sql[2000];
	char	   *value;
	double		number;

	FORMAT_SQL(sql, format);
	value = query(conn, sql);
	if (value == NULL)
		die("no row from: %s", sql);
	number = atof(value);
	free(value);
	return number;
}

/*
 * Wait until a query returns true.
 */
void
wait_for(PGconn *conn, const char *format,...)
{
	char		sql[2000];
	double		give_up_at = now_us() + TIMEOUT_US;

	FORMAT_SQL(sql, format);
	for (;;)
	{
		char	   *value = query(conn, sql);
		bool		reached = value != NULL && strcmp(value, "t") == 0;

		free(value);
		if (reached)
			return;
		if (now_us() > give_up_at)
			die("timed out waiting for: %s", sql);
		pause_ms(POLL_MS);
	}
}

/*
 * Start a client as a process of its own, which can be killed without closing
 * other sockets: this program, with these arguments.  It says with a byte that
 * it has got so far as it is to get, and ends at the end of its input.
 */
Child
start_child(const char *role, const char *arg, const char *other)
{
	Child		child;
	int			to[2];
	int			from[2];

	if (pipe(to) != 0 || pipe(from) != 0)
		die("pipe: %s", strerror(errno));
	/* A child must not keep another one's pipe open. */
	fcntl(to[1], F_SETFD, FD_CLOEXEC);
	fcntl(from[0], F_SETFD, FD_CLOEXEC);
	child.pid = fork();
	if (child.pid == -1)
		die("fork: %s", strerror(errno));
	if (child.pid == 0)
	{
		dup2(to[0], STDIN_FILENO);
		dup2(from[1], STDOUT_FILENO);
		close(to[0]);
		close(from[1]);
		execl("/proc/self/exe", "bench", role, arg, other, (char *) NULL);
		_exit(127);
	}
	close(to[0]);
	close(from[1]);
	child.lives = to[1];
	child.answers = from[0];
	return child;
}

void
await_child(const Child *child)
{
	char		byte;

	if (read(child->answers, &byte, 1) != 1)
		die("a client ended");
}

void
kill_child(const Child *child)
{
	kill(child->pid, SIGKILL);
}

/*
 * What was not killed ends at the end of its input.
 */
void
reap_child(Child *child)
{
	close(child->lives);
	close(child->answers);
	waitpid(child->pid, NULL, 0);
	child->pid = 0;
}

/*
 * In a child.
 */
void
tell_parent(void)
{
	char		byte = '!';

	if (write(STDOUT_FILENO, &byte, 1) != 1)
		exit(1);
}

/*
 * A child that runs a statement, says so, and idles until it is killed or the
 * benchmark ends.
 */
int
hold(const char *name, const char *sql)
{
	PGconn	   *conn = new_connection(name);
	char		byte;

	run(conn, "%s", sql);
	tell_parent();
	return read(STDIN_FILENO, &byte, 1) != 0;
}

/*
 * How long a process has been on a processor; 0 where that cannot be told.
 */
double
cpu_ms(const char *pid)
{
	char		name[64];
	double		ns = 0;
	FILE	   *file;

	snprintf(name, sizeof(name), "/proc/%s/schedstat", pid);
	file = fopen(name, "r");
	if (file == NULL)
		return 0;
	if (fscanf(file, "%lf", &ns) != 1)
		ns = 0;
	fclose(file);
	return ns / 1e6;
}

char *
worker_pid(PGconn *conn)
{
	char	   *pid = ask(conn, "SELECT pid FROM pg_stat_activity "
						  "WHERE backend_type = 'leader_election worker'");

	if (pid == NULL)
		die("there is no worker");
	return pid;
}

/*
 * What share of a core, in percent, the worker takes in that time.
 */
double
worker_load(PGconn *conn, int ms)
{
	char	   *pid = worker_pid(conn);
	double		before = cpu_ms(pid);
	double		start = now_us();
	double		load;

	pause_ms(ms);
	load = (cpu_ms(pid) - before) * 100 / ((now_us() - start) / 1000);
	free(pid);
	return load;
}

/*
 * Change a setting of the whole server; NULL: as it was.
 */
void
set_server(PGconn *conn, const char *name, const char *value)
{
	if (value != NULL)
		run(conn, "ALTER SYSTEM SET %s = %s", name, value);
	else
		run(conn, "ALTER SYSTEM RESET %s", name);
	run(conn, "SELECT pg_reload_conf()");
	if (value != NULL)
		wait_for(conn, "SELECT setting = '%s' FROM pg_settings "
				 "WHERE name = '%s'", value, name);
	else
		wait_for(conn, "SELECT source = 'default' FROM pg_settings "
				 "WHERE name = '%s'", name);
}
