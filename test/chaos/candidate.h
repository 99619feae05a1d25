/*-------------------------------------------------------------------------
 *
 * candidate.h
 *		What the parts of a candidate of the chaos run use of each other.
 *
 *-------------------------------------------------------------------------
 */
#ifndef CANDIDATE_H
#define CANDIDATE_H

#include <stdbool.h>

#include <libpq-fe.h>

/* candidate.c */
extern bool chance(int per_mille);
extern PGresult *query(const char *format,...)
			__attribute__((format(printf, 1, 2)));
extern bool succeeded(void);
extern int	server_version(void);

#define RUN(...) PQclear(query(__VA_ARGS__))

/* pressure.c */
extern bool pressed(void);
extern void press_session(void);
extern void reset_session(void);
extern void join_nested(const char *election, const char *candidate);
extern const char *own_notification(void);
extern void begin_nested(void);
extern void end_nested(const char *election);

#endif							/* CANDIDATE_H */
