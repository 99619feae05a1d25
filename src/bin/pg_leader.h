/*-------------------------------------------------------------------------
 *
 * pg_leader.h
 *		Shared declarations of the command-line program pg_leader.
 *
 *	pg_leader.c		options, and which part is meant
 *	help.c			--help
 *	run.c			the life of `run`
 *	stand.c			standing for election until elected
 *	lead.c			one leadership: renewals while the command runs
 *	handle.c		the guardian, as seen by its parent
 *	guardian.c		the process that runs the command and ends it in time
 *	process.c		descendants: how they are found and killed
 *	connection.c	libpq without a wait that nothing can interrupt
 *	params.c		how to connect
 *	text.c			what the server says, made fit for a terminal
 *	observe.c		status, yield
 *	watch.c			watch
 *	timeline.c		history, drawn
 *
 * All moments are microseconds of now_us(); all lengths are microseconds, too,
 * unless their names end in _ms.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PG_LEADER_H
#define PG_LEADER_H

#include "postgres_fe.h"

#include <poll.h>
#include <signal.h>
#include <sys/types.h>

#include "catalog/pg_type_d.h"
#include "common/logging.h"
#include "libpq-fe.h"

#define MSEC			INT64CONST(1000)
#define SEC				INT64CONST(1000000)
#define DAY				(86400 * SEC)

#define CONNECT_LIMIT	(10 * SEC)
#define RUN_ANSWER_LIMIT (10 * SEC)	/* of what stands and leads */
#define OBSERVER_ANSWER_LIMIT (60 * SEC)
#define SHORTEST_PAUSE	(100 * MSEC)	/* between two tries, at first */
#define LONGEST_PAUSE	SEC
#define NOTIFIED_PAUSE	(50 * MSEC) /* between two calls that notifications cause */
#define NEVER			PG_INT64_MAX
#define LONGEST_TIME	(100 * 366 * DAY)	/* that anybody may ask for */

/* What pg_leader exits with, where it is not the status of the command */
#define EXIT_NOBODY_LEADS	1	/* status and yield only */
#define EXIT_LOST			121
#define EXIT_TIMED_OUT		122
#define EXIT_NO_CONNECTION	123
#define EXIT_NO_EXTENSION	124
#define EXIT_USAGE			125
#define EXIT_CANNOT_EXECUTE 126
#define EXIT_NOT_FOUND		127
#define EXIT_SIGNAL(signo)	(128 + (signo))

/* --- options: pg_leader.c */

/* How to reach the server, as given on the command line; NULL: not given */
typedef struct ConnectOptions
{
	const char *dbname;			/* or a connection string */
	const char *host;
	const char *port;
	const char *user;
	const char *password;
	bool		read_write;		/* to the primary, unless the user says else */
} ConnectOptions;

typedef struct RunOptions
{
	ConnectOptions connect;
	const char *election;
	const char *candidate;
	const char *rank;			/* NULL: not given */
	bool		session;
	bool		forever;
	bool		skip;
	int64		wait;			/* NEVER: no limit */
	int64		hold;			/* -1: none */
	int64		grace;			/* -1: not given */
	char	  **command;
} RunOptions;

typedef struct ObserveOptions
{
	ConnectOptions connect;
	const char *election;		/* NULL: all */
	const char *since;
	const char *to_candidate;
	bool		terminate;
	bool		json;
} ObserveOptions;

/* --- connection.c */

/*
 * Called whenever something is waited for and one of these descriptors is
 * ready.  True ends the wait, if whoever waits allows that.
 */
typedef struct Watcher
{
	int			(*fds) (struct pollfd *fds, void *arg); /* how many; at most 2 */
	bool		(*on_event) (void *arg);
	void	   *arg;
} Watcher;

typedef struct Connection
{
	const ConnectOptions *options;
	const Watcher *watcher;		/* NULL: nothing else is waited for */
	PGconn	   *conn;			/* NULL: not connected */
	bool		listening;		/* as far as that is possible */
	bool		foreign_schema; /* leader_election is not the extension's */
	bool		was_reset;		/* a pool has reset this session once */
	int			rotation;		/* which of several hosts comes first */
	int64		notified;		/* a notification caused a call then */
	char	   *error;			/* why there is no connection, printable */
} Connection;

/*
 * What is sent, with the shape of its answer: an answer of another shape is an
 * error, so that nobody reads a field that is not there.
 *
 * It runs with our user's rights, often a superuser's, in databases that others
 * own.  The owner of a database can make functions, operators, types and
 * relations in it, and set a search_path that finds them before those of
 * pg_catalog.  So the SQL has to find everything without a search_path, which
 * could not be set either where a pooler gives each statement another session:
 *
 * - Functions, operators, types and relations are qualified.  What looks one up
 *	 without naming it is not used: IN, BETWEEN, LIKE, USING, NULLIF, CASE x
 *	 WHEN, IS DISTINCT FROM and their like.
 *
 * - Columns are not qualified: where x has no column y, x.y calls function y.
 *
 * - Parameters have types, so that the server does not choose among functions.
 *
 * test/t/064_pg_leader_traps.pl holds each statement to that.
 */
typedef struct Statement
{
	const char *sql;
	int			nfields;		/* of the answer */
	bool		one_row;		/* is what it has; else any number */
	int			nparams;
	Oid			types[4];		/* of the parameters */
} Statement;

/* How a query ended */
typedef enum Outcome
{
	OUTCOME_ROWS,				/* there is a result */
	OUTCOME_ERROR,				/* the server said no: see sqlstate */
	OUTCOME_LOST,				/* no answer, and no connection any more */
	OUTCOME_STOPPED				/* the watcher ended it; the connection is
								 * closed */
} Outcome;

typedef struct Answer
{
	Outcome		outcome;
	PGresult   *result;			/* NULL unless there are rows */
	char		sqlstate[6];
	char	   *message;
	int64		sent;
} Answer;

extern bool connection_open(Connection *c, int64 limit);
extern void connection_close(Connection *c);
extern void connection_fail(Connection *c, const char *message);
extern Answer connection_query(Connection *c, const Statement *statement,
							   const char *const *values, int64 limit,
							   bool may_stop);
extern void answer_free(Answer *answer);
extern bool connection_wait(Connection *c, int64 until);
extern PGnotify *connection_notification(Connection *c);
extern char *payload_prefix(const char *election);
extern int64 connection_next_notified(const Connection *c);
extern bool connection_wait_notified(Connection *c, int64 until,
									 bool (*matters) (const char *payload,
													  void *arg),
									 void *arg);
extern void connection_listen(Connection *c, const char *channel, int64 limit);
extern int64 seconds_us(const char *seconds);
extern bool is_transient(const Answer *answer);
extern bool is_no_extension(const Answer *answer);
extern void report_answer(const Answer *answer);
extern void report_no_extension(Connection *c);

/* --- params.c */

/* libpq's parameters that we set, at most */
#define MAX_PARAMS 16

typedef struct Params
{
	const char *keywords[MAX_PARAMS + 1];
	const char *values[MAX_PARAMS + 1];
	int			n;
	char	   *rotated[3];		/* to be freed */
} Params;

extern void params_set(Params *p, const Connection *c);
extern void params_free(Params *p);
extern int64 params_connect_timeout(const ConnectOptions *options);

/* --- text.c */

extern void text_encoding(int encoding);
extern char *printable(const char *text);
extern char *printable_lines(const char *text);
extern char *json_string(const char *text);
extern int	display_width(const char *text);
extern int	prefix_length(const char *text, int columns);
extern void print_json(const char *json);

/* --- process.c */

extern void kill_others(pid_t group, int signo);
extern void kill_descendants(void);

/* --- guardian.c and handle.c */

/* Why the guardian ended the command */
typedef enum Cause
{
	CAUSE_NONE,					/* it did not: the command ended by itself */
	CAUSE_DEADLINE,				/* the lease was running out */
	CAUSE_STOPPED,				/* asked to, in time */
	CAUSE_KILLED,				/* asked to, at once */
	CAUSE_DISCONNECTED			/* the session that led has ended */
} Cause;

/* What the guardian needs to know about a leadership */
typedef struct Charge
{
	char	  **command;
	int64		deadline;
	int64		lease;
	int64		grace;			/* between SIGTERM and SIGKILL */
	const char *term_dir;		/* removed at the end */
	int			connection_fd;	/* -1: none */
	bool		session;		/* the connection is the leadership */
} Charge;

typedef enum MessageKind
{
	/* to the guardian */
	MESSAGE_DEADLINE,			/* at: the new one; number: the lease, in ms */
	MESSAGE_SIGNAL,				/* number: signal the command */
	MESSAGE_STOP,				/* at: SIGTERM now, SIGKILL then */
	MESSAGE_KILL,				/* SIGKILL now */
	/* to its parent */
	MESSAGE_NOT_EXECUTED,		/* number: errno */
	MESSAGE_DONE				/* number: status; at: cause */
} MessageKind;

typedef struct Message
{
	int32		kind;
	int32		number;
	int64		at;
} Message;

/* The guardian as its parent sees it */
typedef struct Guardian
{
	pid_t		pid;			/* 0: none */
	int			socket;
	bool		had_terminal;	/* stdin is ours, and was given away */
	bool		reaped;			/* the process is gone */
	bool		done;			/* nothing of the command is left */
	Cause		cause;
	int			status;			/* of the command, as from waitpid */
	int			exec_errno;		/* 0: the command was executed */
} Guardian;

extern void guardian_main(const Charge *charge, int socket, pid_t parent,
						  const sigset_t *signals);
extern const sigset_t *guardian_prepare(void);
extern void guardian_start(Guardian *g, const Charge *charge);
extern int64 kill_margin(int64 lease);
extern int64 longest_grace(int64 lease);
extern void guardian_set_deadline(Guardian *g, int64 deadline, int64 lease);
extern void guardian_signal(Guardian *g, int signo);
extern void guardian_stop(Guardian *g, int64 kill_at);
extern void guardian_kill(Guardian *g);
extern void guardian_receive(Guardian *g);
extern void guardian_reap(Guardian *g);
extern void guardian_replace(Guardian *g);
extern void remove_term_dir(const char *dir);

/* --- run.c, stand.c and lead.c */

#define ELECTED		(-1)		/* what stand() returns, if not an exit code */

/* A leadership as granted */
typedef struct Grant
{
	int64		term;			/* 0: none */
	int64		sent;			/* the request for it */
	int64		deadline;
	bool		yielding;
} Grant;

typedef struct Run
{
	const RunOptions *options;
	Connection	connection;
	Guardian	guardian;
	int			signal_fd;
	int			signo;			/* the last signal that asked us to end */
	bool		signalled;		/* there was one since this was cleared */
	int64		lease;			/* of the election, or what was granted */
	int64		grace;
	char	   *channel;
	char	   *payload;		/* how the election's notifications begin */
	char	   *warned;			/* the last warning, to say it once */
	Grant		grant;
} Run;

/* The columns of a grant row that we read */
#define SQL_GRANT	"SELECT term, remaining_ms, yielding FROM "
#define GRANT_FIELDS	3

extern int	run_command(const RunOptions *options);
extern int	run_prepare(Run *run);
extern void run_warn(Run *run, const char *message);
extern void run_warn_answer(Run *run, const Answer *answer);
extern Answer run_ask(Run *run, const Statement *statement,
					  const char *const *values, int64 limit, bool may_stop);
extern Answer run_renew_session(Run *run, int64 limit);
extern int	stand(Run *run);
extern void stop_standing(Run *run);
extern bool grant_of(const Answer *answer, Grant *grant);
extern int	lead(Run *run, bool *again);

/* --- observe.c, watch.c and timeline.c */

#define CHANNEL			"leadership_changed"

extern int	show_status(const ObserveOptions *options);
extern int	watch_elections(const ObserveOptions *options);
extern int	show_history(const ObserveOptions *options);
extern int	yield_election(const ObserveOptions *options);
extern void connect_observer(Connection *c, const ObserveOptions *options);
extern Answer ask_observer(Connection *c, const Statement *statement,
						   const char *const *values);

/* --- pg_leader.c */

extern int64 now_us(void);
extern bool parse_duration(const char *text, int64 *length);
extern char *format_duration(int64 length);

/* --- help.c */

extern void show_help(const char *progname, const char *subcommand);

#endif							/* PG_LEADER_H */
