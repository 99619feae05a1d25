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
#include <stdint.h>

#include <libpq-fe.h>

#include "log.h"
#include "timeouts.h"

#define LASTING_SEATS	2		/* of a group: it never has fewer */

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

/* candidate.c */
extern Seat seats[];
extern int	nseats;
extern char all_elections[];	/* with commas between */
extern const char *name;
extern bool calm;				/* gives up nothing: it is in a calm election */
extern int64_t lease_us;
extern int	rank;
extern int64_t progress;

extern Seat *find_seat(const char *election);

/* connection.c */
extern PGconn *conn;
extern int	serial;				/* of the connection */
extern bool warned;				/* a wait for the standby was cut short */
extern int64_t sent;			/* of the last statement */
extern int64_t received;
extern char sqlstate[6];

extern bool chance(int per_mille);
extern void note_connections(char *list);
extern bool connect_again(void);
extern void give_up_connection(const char *why);
extern PGresult *query(const char *format,...)
			__attribute__((format(printf, 1, 2)));
extern bool succeeded(void);
extern int	server_version(void);
extern int64_t number(const PGresult *result, int row, int column);

#define RUN(...) PQclear(query(__VA_ARGS__))

/* leader.c */
extern bool open_resource(const char *path, int64_t first_id);
extern void use_resource(const Seat *seat);
extern void write_fenced(const Seat *seat, bool by_term);
extern const char *choose_other(const Seat *seat);
extern const char *new_metadata(int per_mille);

/* session.c, detached.c, command.c, listener.c: what is done every 40 ms */
extern void tick_session(bool manual);
extern void tick_detached(void);
extern void tick_command(int64_t end);
extern void start_listening(void);
extern void tick_listener(bool restless);

/* pressure.c */
extern void press_session(void);
extern void reset_session(void);
extern void join_nested(const char *election, const char *candidate);
extern const char *own_notification(int per_mille);
extern void begin_nested(void);
extern void end_nested(const char *election);

#endif							/* CANDIDATE_H */
