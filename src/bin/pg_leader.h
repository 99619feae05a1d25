/*-------------------------------------------------------------------------
 *
 * pg_leader.h
 *		The ground of the command-line program pg_leader.
 *
 * The floors, each with its header, lowest first.  A file includes its own
 * floor's header and, through it, those of floors below; never a higher one.
 *
 *	pg_leader.h		now.c			the clock
 *					duration.c		lengths of time as text
 *					text.c			names and messages made fit for a terminal
 *					address.c		addresses to listen on, as text
 *	options.h		options.c		reads the command line
 *					help.c			--help
 *	connection.h	params.c		how to connect
 *					targets.c		where to, address after address
 *					login.c			why a server has not let us in
 *					connection.c	waiting, closing
 *					answer.c		what answers mean
 *					query.c			sends statements, takes their answers
 *					connect.c		connects, to each address once
 *					notification.c	notifications, and waiting for them
 *	guardian.h		process.c		finds and kills descendants
 *					environment.c	what is told to what is started
 *					shell.c			runs a command line of the user
 *					signals.c		signals that are read from a descriptor
 *					message.c		messages between pg_leader and its helpers
 *					term_file.c		the file that tells the command its term
 *					guardian.c		the process that runs and ends the command
 *					guardian_handle.c	the guardian as its parent sees it
 *	http.h			reply.c			what the sidecar replies to a request
 *					http.c			the sidecar's HTTP server
 *	checker.h		checker.c		the process that runs the check
 *					checker_handle.c	the checker as its parent sees it
 *	agent.h			agent.c			a candidate's signals, helpers and questions
 *					prepare.c		makes a new connection ready
 *					period.c		which run is due (--every)
 *					waiting.c		why it waits to be elected
 *					stand.c			stands for election until elected
 *					lead.c			renews the lease of one leadership
 *					command.c		runs the command meanwhile
 *					give_back.c		gives a lease back, records its run
 *					run.c			`run`: stands, leads, stands again
 *					sidecar.c		`stand`: the same, with HTTP for a command
 *	observer.h		paint.c			colours and width of a terminal
 *					observer.c		asks the server, or exits with an error
 *					status.c		`status`
 *					diagnose.c		`diagnose`
 *					yield.c			`yield`
 *					event.c			prints one event
 *					reason.c		why terms end
 *	page.h			style.c			the look of the page that shows who led
 *					page.c			what its parts share
 *					leaders.c		who is on it: a chip for each
 *					picture.c		its picture
 *					page_file.c		writes it into a file
 *					html.c			`history --html`
 *					timeline.c		`history`
 *	watch.h			watched.c		lists of what is known of each election
 *					known.c			what was printed of each, and hints
 *					hook.c			runs a command line for the newest event
 *					screen.c		what `watch` shows on a terminal
 *					watch.c			`watch`
 *	subcommands.h	main.c			chooses the subcommand
 *
 * guardian.h, connection.h and http.h do not include each other: neither the
 * guardian nor a reply needs the server.
 *
 * All moments are microseconds of now_us().  All lengths of time are
 * microseconds, unless their names end in _ms.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PG_LEADER_H
#define PG_LEADER_H

#include "postgres_fe.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include "common/logging.h"

#define MSEC			INT64CONST(1000)
#define SEC				INT64CONST(1000000)
#define DAY				(86400 * SEC)
#define NEVER			PG_INT64_MAX
#define LONGEST_TIME	(100 * 366 * DAY)	/* that a user may ask for */

/* What pg_leader exits with, unless it is the exit code of the command */
#define EXIT_NOBODY_LEADS	1	/* status and yield only */
#define EXIT_WARNINGS		1	/* diagnose only, and so is the next one */
#define EXIT_ERRORS			2
#define EXIT_REFUSED		120
#define EXIT_LOST			121
#define EXIT_TIMED_OUT		122
#define EXIT_NO_CONNECTION	123
#define EXIT_NO_EXTENSION	124
#define EXIT_USAGE			125
#define EXIT_CANNOT_EXECUTE 126
#define EXIT_NOT_FOUND		127
#define EXIT_SIGNAL(signo)	(128 + (signo))

/* How to reach the server, as the command line says; NULL: not given */
typedef struct ConnectOptions
{
	const char *dbname;			/* or a connection string */
	const char *host;
	const char *port;
	const char *user;
	const char *password;
	bool		read_write;		/* a server that can be written to */
	bool		session_pooler; /* a pooler, if any, is in session mode */
	bool		portable;		/* the portable edition may be believed */
} ConnectOptions;

/* Where to listen; family 0: not given */
typedef union Address
{
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
} Address;

/* What is checked, and how often, as the command line says */
typedef struct CheckOptions
{
	const char *command;		/* for the shell; NULL: there is no check */
	int64		every;			/* from the beginning of one to the next */
	int64		timeout;		/* of one check; not longer than every */
} CheckOptions;

/* now.c */
extern int64 now_us(void);

/* duration.c */
extern bool duration_parse(const char *text, int64 *length);
extern char *duration_format(int64 length);
extern int64 duration_from_seconds(const char *seconds);
extern int64 duration_next_pause(int64 *pause, int64 longest);

/* text.c */
extern void text_set_encoding(int encoding);
extern char *text_printable(const char *text);
extern void text_set(char **text, const char *value);
extern char *text_lend(char *text);
extern char *text_show(const char *text);
extern char *text_quote_blank(char *shown);
extern char *text_printable_lines(const char *text);
extern char *text_json(const char *text);
extern int	text_width(const char *text);
extern char *text_fit(const char *text, int columns);
extern char *text_html(const char *printable);
extern void text_print_json(const char *json);

/* address.c */
extern bool address_parse(const char *text, Address *address);
extern char *address_format(const Address *address);

#endif							/* PG_LEADER_H */
