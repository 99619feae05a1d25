/*-------------------------------------------------------------------------
 *
 * client.c
 *		What the benchmarks share: connections, samples, the table.
 *
 * A benchmark waits for conditions on the server, and whatever fails ends it:
 * a figure that was measured on something else than intended is worth less
 * than none.
 *
 *-------------------------------------------------------------------------
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client.h"

#define TIMEOUT_US	60e6
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
	const char *keys[] = {"application_name", "options", NULL};
	const char *values[] = {name, "-c client_min_messages=warning", NULL};
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

void
add(Sample *sample, double value)
{
	if (sample->n == MAX_VALUES)
		die("more than %d values in a sample", MAX_VALUES);
	sample->values[sample->n++] = value;
}

static int
compare(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

/*
 * The values in ascending order.
 */
static Sample
sorted(const Sample *sample)
{
	Sample		copy = *sample;

	if (copy.n == 0)
		die("an empty sample");
	qsort(copy.values, copy.n, sizeof(double), compare);
	return copy;
}

double
median(const Sample *sample)
{
	Sample		s = sorted(sample);

	return (s.values[(s.n - 1) / 2] + s.values[s.n / 2]) / 2;
}

double
maximum(const Sample *sample)
{
	return sorted(sample).values[sample->n - 1];
}

/*
 * bench/run shows all tables in one, at the end.
 */
static FILE *
table(void)
{
	static FILE *file = NULL;
	const char *name = getenv("BENCH_TABLE");

	if (file == NULL)
	{
		file = name != NULL ? fopen(name, "a") : stdout;
		if (file == NULL)
			die("cannot write %s", name);
		setvbuf(file, NULL, _IOLBF, 0);
	}
	return file;
}

void
report(const char *measure, const char *unit, const Sample *sample,
	   const char *ratio, const char *target, bool met)
{
	Sample		s = sorted(sample);

	fprintf(table(), "%-44s %-6s %5d %9.2f %9.2f %9.2f %6s  %s%s\n",
			measure, unit, s.n, median(&s), s.values[0], s.values[s.n - 1],
			ratio, target,
			target[0] == '\0' ? "" : met ? ": met" : ": MISSED");
}

/*
 * A line of text in the table.
 */
void
report_note(const char *format,...)
{
	va_list		args;

	va_start(args, format);
	vfprintf(table(), format, args);
	va_end(args);
	fputc('\n', table());
}

const char *
text(const char *format,...)
{
	static char buffers[8][200];
	static int	next = 0;
	char	   *buffer = buffers[next++ % 8];
	va_list		args;

	va_start(args, format);
	vsnprintf(buffer, sizeof(buffers[0]), format, args);
	va_end(args);
	return buffer;
}
