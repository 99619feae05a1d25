/*-------------------------------------------------------------------------
 *
 * connection.h
 *		Connections, statements and their answers, notifications.
 *
 *-------------------------------------------------------------------------
 */
#ifndef CONNECTION_H
#define CONNECTION_H

#include "pg_leader.h"

#include <poll.h>

#include "catalog/pg_type_d.h"
#include "libpq-fe.h"

#define CONNECT_LIMIT	(10 * SEC)

/* Between tries to connect: at first, and at last */
#define SHORTEST_PAUSE	(100 * MSEC)
#define LONGEST_PAUSE	SEC

/* When to say the same warning again */
#define WARN_AGAIN		(60 * SEC)

/* Before what has failed, or ended at once, is run again: at first, and at last */
#define FIRST_BACKOFF	SEC
#define LONGEST_BACKOFF	(30 * SEC)

/* The channel of elections that have none of their own */
#define CHANNEL			"leadership_changed"

/*
 * What every wait watches beside the connection: descriptors, which may be -1.
 * When one of them is ready, the wait calls on_event().  If on_event() returns
 * true, the wait ends, unless the caller of the wait has said that nothing may
 * stop it.
 */
typedef struct Watcher
{
	const int  *fds[3];			/* NULL: no more */
	bool		(*on_event) (void *arg);
	void	   *arg;
} Watcher;

/* An address to connect to.  NULL: as libpq finds it */
typedef struct Target
{
	int			nth;			/* which host of the list it is of */
	char	   *host;
	char	   *address;
	char	   *port;
	const char *attributes;		/* target_session_attrs; NULL: as given */
	char	   *error;			/* why the name has no address */
} Target;

/* A round over all of them */
typedef struct Targets
{
	Target	   *all;			/* names are looked up when it is their turn */
	int			n;
	int			next;
	int			refused;		/* how many of those before it have */
	int			first;			/* the host that a round begins with */
} Targets;

/* What the schema leader_election of a database is */
typedef enum Schema
{
	SCHEMA_NONE,				/* there is none */
	SCHEMA_FOREIGN,				/* nobody knows */
	SCHEMA_PORTABLE,			/* by its looks, the portable edition's */
	SCHEMA_EXTENSION			/* the extension's */
} Schema;

/* At most so many attempts to connect in a second, also of those that succeed */
#define MOST_ATTEMPTS	10

typedef struct Connection
{
	const ConnectOptions *options;
	const Watcher *watcher;		/* NULL: waits watch the connection only */
	PGconn	   *conn;			/* NULL: not connected */
	bool		listening;		/* LISTEN was sent, whether it worked or not */
	Schema		schema;			/* leader_election, at the last look */
	char	   *schema_owner;	/* empty: there is none */
	char	   *portable_owner; /* of the first portable edition that was seen */
	bool		was_reset;		/* a pool has reset this session once */
	bool		pooled;			/* each transaction may have another session */
	bool		stopped;		/* the watcher has stopped a wait to connect */
	Targets		targets;
	int64		attempts[MOST_ATTEMPTS];	/* when the last ones were */
	int			nattempts;
	int64		notified;		/* when a notification last caused a call */
	char	   *error;			/* why there is no connection, printable */
} Connection;

/*
 * A statement, with the shape of its answer.  An answer of another shape is an
 * error, so that no code reads a field that is not there.
 *
 * A statement runs with our user's rights, often a superuser's, in databases
 * that others own.  The owner of a database can make functions, operators,
 * types and relations in it, and set a search_path that finds them before
 * those of pg_catalog.  So the SQL has to find everything without a
 * search_path.  (We cannot set one: a pooler may give each statement another
 * session.)
 *
 * - Functions, operators, types and relations are qualified.  Syntax that
 *	 looks up a function or an operator without naming it is not used: IN,
 *	 BETWEEN, LIKE, USING, NULLIF, CASE x WHEN, IS DISTINCT FROM and their
 *	 like.
 *
 * - Columns are not qualified: where x has no column y, x.y calls function y.
 *
 * - Parameters have types, so that the server does not choose among functions.
 *
 * test/t/064_pg_leader_traps.pl holds each statement to these rules.
 */
typedef struct Statement
{
	const char *sql;
	int			nfields;		/* of the answer */
	bool		one_row;		/* the answer has exactly one */
	int			nparams;
	Oid			types[6];		/* of the parameters */
} Statement;

/* How a query ended */
typedef enum AnswerOutcome
{
	ANSWER_ROWS,				/* there is a result */
	ANSWER_ERROR,				/* the server sent an error: see sqlstate */
	ANSWER_LOST					/* no answer; the connection is closed */
} AnswerOutcome;

typedef struct Answer
{
	AnswerOutcome outcome;
	PGresult   *result;			/* NULL unless there are rows */
	char		sqlstate[6];
	char	   *message;		/* of an error, as the server wrote it */
	int64		sent;			/* when the statement was sent */
	bool		no_privilege;	/* the role lacks a privilege on an object */
	bool		is_copy;		/* the server wants to copy data instead */
} Answer;

/* libpq's parameters that we set, at most */
#define MAX_PARAMS 16

typedef struct Params
{
	const ConnectOptions *options;
	PQconninfoOption *given;	/* in a connection string */
	PQconninfoOption *defaults; /* from the environment and a service file */
	int64		timeout;		/* connect_timeout; NEVER: not set */
	const char *keywords[MAX_PARAMS + 1];
	const char *values[MAX_PARAMS + 1];
	int			n;
} Params;

/* Does the payload of a notification matter to a wait? */
typedef bool (*PayloadFilter) (const char *payload, void *arg);

/* params.c */
extern void params_read(Params *p, const ConnectOptions *options);
extern const char *params_value(const Params *p, const char *keyword);
extern void params_set(Params *p, const Target *t);
extern void params_free(Params *p);

/* targets.c */
extern void targets_free(Targets *ts);
extern void targets_begin(Targets *ts, const Params *p);
extern const Target *targets_next(Targets *ts);
extern bool targets_over(const Targets *ts);
extern void targets_answered(Targets *ts, const Target *t);
extern void targets_refused(Targets *ts);
extern bool targets_verdict(const Targets *ts);

/* login.c */
extern bool login_is_refused(const char *message);
extern char *login_message(const char *message);

/* connection.c */
extern void connection_close(Connection *c);
extern void connection_free(Connection *c);
extern void connection_fail(Connection *c, const char *message);
extern bool connection_wait(Connection *c, int64 until);
extern bool connection_wait_ready(Connection *c, short events, int64 until,
								  bool *stopped);
extern bool connection_wait_input(Connection *c, int64 until, bool *stopped);

/* What an error says that has no text */
#define NO_MESSAGE	"the server sent an error without a message"

/* answer.c */
extern void answer_free(Answer *answer);
extern bool answer_is_transient(const Answer *answer);
extern int	answer_exit_code(const Answer *answer);
extern void answer_report(const Connection *c, const Answer *answer);

/* query.c */
extern Answer query_ask(Connection *c, const Statement *statement,
						const char *const *values, int64 limit, bool may_stop);
extern Answer query_exchange(Connection *c, const Statement *s,
							 const char *const *values, int64 until,
							 bool may_stop);

/* connect.c */
extern bool connect_round(Connection *c, int64 limit);

/* notification.c */
extern void notification_listen(Connection *c, const char *channel,
								int64 limit);
extern void notification_unlisten(Connection *c, const char *channel,
								  int64 limit);
extern char *notification_prefix(const char *election, bool is_group);
extern bool notification_is_about(const char *payload, const char *prefix);
extern bool notification_is_yield(const char *payload);
extern bool notification_is_change(const char *payload);
extern bool notification_take(Connection *c, PayloadFilter matters, void *arg);
extern int64 notification_next_call(const Connection *c);
extern bool notification_wait(Connection *c, int64 until,
							  PayloadFilter matters, void *arg);

#endif							/* CONNECTION_H */
