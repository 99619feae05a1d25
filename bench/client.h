/*-------------------------------------------------------------------------
 *
 * client.h
 *		What the benchmarks share: connections, samples, the table.
 *
 *-------------------------------------------------------------------------
 */
#ifndef BENCH_CLIENT_H
#define BENCH_CLIENT_H

#include <stdbool.h>

#include <libpq-fe.h>

#define MAX_VALUES 1000

/* Some measurements of one thing */
typedef struct Sample
{
	double		values[MAX_VALUES];
	int			n;
} Sample;

extern double now_us(void);
extern void pause_ms(int ms);
extern void die(const char *format,...)
			__attribute__((noreturn, format(printf, 1, 2)));

extern PGconn *new_connection(const char *name);
extern void run(PGconn *conn, const char *format,...)
			__attribute__((format(printf, 2, 3)));
extern char *ask(PGconn *conn, const char *format,...)
			__attribute__((format(printf, 2, 3)));
extern void wait_for(PGconn *conn, const char *format,...)
			__attribute__((format(printf, 2, 3)));

extern void add(Sample *sample, double value);
extern double median(const Sample *sample);
extern double maximum(const Sample *sample);

/*
 * Lines of the table.  ratio and target are texts of their own; met says
 * whether the target was reached, and is not looked at where there is none.
 */
extern void report(const char *measure, const char *unit, const Sample *sample,
				   const char *ratio, const char *target, bool met);
extern void report_note(const char *format,...)
			__attribute__((format(printf, 1, 2)));

/* A short-lived text, for the arguments of report() */
extern const char *text(const char *format,...)
			__attribute__((format(printf, 1, 2)));

#endif							/* BENCH_CLIENT_H */
