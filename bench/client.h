/*-------------------------------------------------------------------------
 *
 * client.h
 *		What the benchmarks share: connections, clients that are processes of
 *		their own, samples, the tables.
 *
 *-------------------------------------------------------------------------
 */
#ifndef BENCH_CLIENT_H
#define BENCH_CLIENT_H

#include <stdbool.h>
#include <sys/types.h>

#include <libpq-fe.h>

#define MAX_VALUES 1000
#define MAX_POINTS 8

/* Some measurements of one thing */
typedef struct Sample
{
	double		values[MAX_VALUES];
	int			n;
} Sample;

/* What a measure is compared with, and what it is to reach */
typedef struct Against
{
	const char *floor;			/* NULL: nothing */
	double		ratio;			/* to the floor */
	const char *target;			/* NULL: none */
	bool		met;
} Against;

#define NO_FLOOR ((Against) {.floor = NULL})
#define FLOOR(f, r) ((Against) {.floor = (f), .ratio = (r)})

/* How a measure grows with the number of something */
typedef struct Growth
{
	const char *name;			/* of its file */
	const char *title;
	const char *unit;
	const char *of;				/* what there is more and more of */
	int			npoints;
	double		sizes[MAX_POINTS];
	Sample		samples[MAX_POINTS];
} Growth;

/* A client that is a process of its own, and two pipes to and from it */
typedef struct Child
{
	pid_t		pid;
	int			answers;
	int			lives;
} Child;

extern double now_us(void);
extern void pause_ms(int ms);
extern void die(const char *format,...)
			__attribute__((noreturn, format(printf, 1, 2)));

extern PGconn *new_connection(const char *name);
extern PGconn *new_connection_to(const char *database, const char *name);
extern void run(PGconn *conn, const char *format,...)
			__attribute__((format(printf, 2, 3)));
extern char *ask(PGconn *conn, const char *format,...)
			__attribute__((format(printf, 2, 3)));
extern double ask_number(PGconn *conn, const char *format,...)
			__attribute__((format(printf, 2, 3)));
extern void wait_for(PGconn *conn, const char *format,...)
			__attribute__((format(printf, 2, 3)));
extern void set_server(PGconn *conn, const char *name, const char *value);

extern Child start_child(const char *role, const char *arg, const char *other);
extern void await_child(const Child *child);
extern void kill_child(const Child *child);
extern void reap_child(Child *child);
extern void tell_parent(void);
extern int	hold(const char *name, const char *sql);

extern double cpu_ms(const char *pid);
extern char *worker_pid(PGconn *conn);
extern double worker_load(PGconn *conn, int ms);

extern void add(Sample *sample, double value);
extern double mean(const Sample *sample);
extern double median(const Sample *sample);
extern double maximum(const Sample *sample);
extern void add_point(Growth *growth, double size, double value);
extern double exponent(const Growth *growth);
extern double last_to_last(const Growth *growth, const Growth *floor);

/*
 * Lines of the table, and of the CSV.
 */
extern void report(const char *measure, const char *unit, const Sample *sample,
				   Against against);
extern void report_mean(const char *measure, const char *unit,
						const Sample *sample, Against against);
extern void report_growth(const Growth *growth, Against against);
extern void report_note(const char *format,...)
			__attribute__((format(printf, 1, 2)));

/* A short-lived text, for the arguments of these */
extern const char *text(const char *format,...)
			__attribute__((format(printf, 1, 2)));

#endif							/* BENCH_CLIENT_H */
