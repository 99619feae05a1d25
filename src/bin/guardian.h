/*-------------------------------------------------------------------------
 *
 * guardian.h
 *		The guardian: the process that runs the command and ends it in time.
 *
 *-------------------------------------------------------------------------
 */
#ifndef GUARDIAN_H
#define GUARDIAN_H

#include "pg_leader.h"

#include <signal.h>
#include <sys/types.h>

/* What is told in the environment of what pg_leader starts */
typedef enum Told
{
	TOLD_ELECTION,
	TOLD_CANDIDATE,
	TOLD_TERM,
	TOLD_TERM_FILE,
	TOLD_RUN,
	TOLD_SEAT,
	TOLD_EVENT,
	TOLD_LEADER,
	TOLD_METADATA,
	TOLD_FIELDS
} Told;

/* Why the guardian ended the command */
typedef enum Cause
{
	CAUSE_NONE,					/* it did not: the command ended by itself */
	CAUSE_DEADLINE,				/* the lease was running out */
	CAUSE_STOPPED,				/* MESSAGE_STOP came, or pg_leader is gone */
	CAUSE_KILLED,				/* MESSAGE_KILL came */
	CAUSE_DISCONNECTED			/* the session that led has ended */
} Cause;

/* What the guardian gets to know about a leadership when it is started */
typedef struct GuardianArgs
{
	char	  **command;
	char	  **environment;	/* of the command */
	int64		deadline;
	int64		lease;
	int64		grace;			/* between SIGTERM and SIGKILL */
	const char *term_dir;		/* removed at the end */
	int			connection_fd;	/* -1: none */
	bool		session;		/* the connection is the leadership */
} GuardianArgs;

/* What pg_leader and the guardian tell each other */
typedef enum MessageKind
{
	/* to the guardian */
	MESSAGE_DEADLINE,			/* at: the new one; number: the lease, in ms */
	MESSAGE_SIGNAL,				/* number: pass this signal on */
	MESSAGE_STOP,				/* at: SIGKILL then, and SIGTERM now */
	MESSAGE_KILL,				/* SIGKILL now */
	/* to pg_leader */
	MESSAGE_NOT_EXECUTED,		/* number: errno */
	MESSAGE_DONE,				/* number: status; at: cause */
	/* to pg_leader, of the checker (checker.c) */
	MESSAGE_PASSED,				/* at: when the check began */
	MESSAGE_FAILED				/* the same; number: status, -1 if it hung */
} MessageKind;

typedef struct Message
{
	int32		kind;
	int32		number;
	int64		at;
} Message;

/* The guardian as pg_leader sees it */
typedef struct Guardian
{
	pid_t		pid;			/* 0: none */
	int			socket;			/* -1: none, or the guardian closed its end */
	bool		had_terminal;	/* stdin is ours, and went to the command */
	bool		reaped;			/* waitpid() has returned the guardian */
	bool		done;			/* nothing of the command is left */
	Cause		cause;
	int			status;			/* of the command, as from waitpid() */
	int			exec_errno;		/* 0: the command was executed */
} Guardian;

#define NO_GUARDIAN		((Guardian) {.socket = -1})

/* process.c */
extern void process_signal_descendants(pid_t group, int signo);
extern void process_kill_descendants(void);
extern void process_kill_session(pid_t session);
extern void process_close_descriptors(int except);
extern void process_give_terminal(pid_t group);

/* signals.c */
extern void signals_end_process(void);
extern void signals_block(sigset_t *blocked, const int *more, int n);
extern int	signals_check(int fd);
extern int	signals_open(const sigset_t *blocked);
extern int	signals_next(int fd);
extern int	signals_open_timer(void);
extern void signals_clear_timer(int fd);
extern void signals_set_timer(int fd, int64 at);

/* environment.c */
extern char **environment_make(const char *const *told);
extern void environment_free(char **environment);

/* shell.c */
extern pid_t shell_start(const char *command, char **environment);

/* message.c */
extern pid_t message_fork(int *socket);
extern void message_send(int socket, MessageKind kind, int number, int64 at);
extern bool message_receive(int *socket, Message *m);

/* term_file.c */
extern bool term_file_make(char *dir, size_t size, int64 term);
extern char *term_file_path(const char *dir, const char *name);
extern bool term_file_write(const char *dir, int64 term);
extern void term_file_remove(const char *dir);

/* guardian.c */
extern void guardian_main(const GuardianArgs *args, int socket, pid_t parent,
						  const sigset_t *signals);
extern int64 guardian_kill_margin(int64 lease);
extern int64 guardian_longest_grace(int64 lease);

/* guardian_handle.c */
extern const sigset_t *guardian_prepare(void);
extern void guardian_start(Guardian *g, const GuardianArgs *args);
extern void guardian_receive(Guardian *g);
extern void guardian_reap(Guardian *g);
extern void guardian_end(Guardian *g);

#endif							/* GUARDIAN_H */
