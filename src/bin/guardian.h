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

/* Why the guardian ended the command */
typedef enum Cause
{
	CAUSE_NONE,					/* it did not: the command ended by itself */
	CAUSE_DEADLINE,				/* the lease was running out */
	CAUSE_STOPPED,				/* MESSAGE_STOP, or pg_leader is gone */
	CAUSE_KILLED,				/* MESSAGE_KILL */
	CAUSE_DISCONNECTED			/* the session that led has ended */
} Cause;

/* What the guardian needs to know about a leadership */
typedef struct GuardianArgs
{
	char	  **command;
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
	MESSAGE_SIGNAL,				/* number: signal the command */
	MESSAGE_STOP,				/* at: SIGTERM now, SIGKILL then */
	MESSAGE_KILL,				/* SIGKILL now */
	/* to pg_leader */
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
	int			socket;			/* -1: none */
	bool		had_terminal;	/* stdin is ours, and was given to the command */
	bool		reaped;			/* waitpid() has returned the guardian */
	bool		done;			/* nothing of the command is left */
	Cause		cause;
	int			status;			/* of the command, as from waitpid() */
	int			exec_errno;		/* 0: the command was executed */
} Guardian;

/* process.c */
extern void process_signal_descendants(pid_t group, int signo);
extern void process_kill_descendants(void);

/* term_file.c */
extern bool term_file_make(char *dir, size_t size, int64 term);
extern bool term_file_write(const char *dir, int64 term);
extern void term_file_remove(const char *dir);

/* guardian.c */
extern void guardian_main(const GuardianArgs *charge, int socket, pid_t parent,
						  const sigset_t *signals) pg_attribute_noreturn();
extern int64 guardian_kill_margin(int64 lease);
extern int64 guardian_longest_grace(int64 lease);

/* guardian_handle.c */
extern const sigset_t *guardian_prepare(void);
extern void guardian_start(Guardian *g, const GuardianArgs *charge);
extern void guardian_set_deadline(Guardian *g, int64 deadline, int64 lease);
extern void guardian_signal(Guardian *g, int signo);
extern void guardian_stop(Guardian *g, int64 kill_at);
extern void guardian_kill(Guardian *g);
extern void guardian_receive(Guardian *g);
extern void guardian_reap(Guardian *g);
extern void guardian_replace(Guardian *g);

#endif							/* GUARDIAN_H */
