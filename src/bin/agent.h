/*-------------------------------------------------------------------------
 *
 * agent.h
 *		The agent of a candidate: what `run` and `stand` stand and lead with.
 *
 *-------------------------------------------------------------------------
 */
#ifndef AGENT_H
#define AGENT_H

#include "checker.h"
#include "connection.h"
#include "http.h"
#include "options.h"

/* How long the server may take to answer the agent */
#define AGENT_LIMIT		(10 * SEC)

/* What stand_until_elected() returns instead of an exit code */
#define ELECTED			(-1)

/* A leadership as granted */
typedef struct Grant
{
	int64		term;			/* 0: none */
	char		term_text[24];
	int64		sent;			/* when the request for it was sent */
	int64		deadline;
	bool		yielding;		/* the leader is asked to yield */
} Grant;

/* One wait to be elected */
typedef struct Stand
{
	int64		until;			/* NEVER: no limit */
	const char *why;			/* a sidecar does not lead, a literal */
	bool		connected;		/* there was a connection */
	bool		answered;		/* there was an answer to a try */
	int			refused;		/* what to exit with if we are refused for too
								 * long; 0: the last word was no refusal */
	int64		refused_since;
	int64		pause;			/* before the next try to connect */
	char		request[33];	/* which its tries make, in hexadecimal */
} Stand;

/* A warning, by its kind: an SQLSTATE, or a word */
typedef struct Warning
{
	char		kind[12];
	int64		at;				/* when it was last said */
} Warning;

/* A period, by the server's clock */
typedef struct Period
{
	char		run[32];		/* its name; "": not known */
	bool		done;			/* its run is */
	int64		next;			/* when to look again, if it is */
	int64		backoff;		/* after the next failure of its run */
	bool		judged;			/* how the command has ended is recorded */
} Period;

typedef struct Agent
{
	const Options *options;
	const char *election;		/* or the group; while leading, the seat */
	char	   *seat;			/* owns that name of a seat; or NULL */
	char	   *shown;			/* the election's name in messages */
	Connection	connection;
	Watcher		watcher;		/* what all its waits watch */
	Guardian	guardian;
	Checker		checker;
	Stand		stand;
	bool		standing;		/* the server may know us as a candidate */
	bool		healthy;		/* the check passes; as standing goes by it */
	bool		idle;			/* news of the checker end the present wait */
	int64		gone_by;		/* NEVER, or the check has failed too often:
								 * no command is left then */
	int			signal_fd;
	int			signo;			/* the last signal that asked us to end */
	bool		signalled;		/* a signal has come since this was cleared */
	int64		lease;			/* of the election, or as granted */
	int64		grace;			/* between SIGTERM and SIGKILL; of a sidecar,
								 * from "I do not lead" to giving back */
	bool		portable;		/* the server has the portable edition */
	char	   *channel;
	char	   *prefix;			/* of payloads about the election */
	Warning		warnings[8];	/* the last ones, to say each rarely */
	int			nwarnings;
	char	   *warned;			/* the last one, said or not */
	bool		troubled;		/* one was said since the last answer */
	char	   *told;			/* who leads, while it waits: said last */
	Grant		grant;
	int64		elected;		/* how many times */
	int64		renewed;
	Period		period;			/* only with --every */
} Agent;

/* The shortest time that an answer about a leadership may take */
#define SHORTEST_LIMIT		(250 * MSEC)

typedef struct Leadership
{
	Agent	   *agent;
	char		term_dir[MAXPGPATH];
	char	  **environment;	/* of the command */
	bool		file_is_old;	/* the term file has not got the term yet */
	int64		next;			/* when to renew, or to connect, again */
	bool		notified;		/* a notification has made next earlier */
	int64		pause;			/* before the next try to connect */
	int			unanswered;		/* requests in a row */
	bool		over;			/* the term is over: do not give it back */
	bool		yielding;
	bool		leaving;		/* a sidecar says that it does not lead */
	int64		began;			/* when the request for the term was sent */
	int64		hold;			/* to give the lease back with; -1: none */
	bool		done;			/* its run is, which has to be recorded */
	bool		recorded;
	int64		refused_since;	/* to record that; 0: not refused */
	bool		told_to_end;	/* by a signal, while that was tried */
} Leadership;

/* The columns of a grant that agent_read_grant() reads */
#define SQL_GRANT		"SELECT term, remaining_ms, yielding FROM "
#define GRANT_FIELDS	3

/* agent.c */
extern void agent_begin(Agent *a, const Options *options);
extern void agent_end(Agent *a);
extern void agent_judge_health(Agent *a);
extern void agent_publish(const Agent *a, const char *not_leading);
extern void agent_warn_connection(Agent *a);
extern void agent_warn_answer(Agent *a, const Answer *answer);
extern void agent_recovered(Agent *a);
extern int	agent_refuse(Agent *a, int code, const char *kind,
						 const char *message);
extern int	agent_judge(Agent *a, const Answer *answer);
extern Answer agent_ask(Agent *a, const Statement *statement,
						const char *const *values, int64 limit, bool may_stop);
extern Answer agent_renew(Agent *a, int64 limit);
extern bool agent_read_grant(const Answer *answer, Grant *grant);
extern void agent_take_failure(Agent *a, const Answer *answer);
extern void agent_set_seat(Agent *a, const char *seat);

/* prepare.c */
extern int	prepare_connection(Agent *a);

/* period.c */
extern bool period_look(Agent *a, int *code);
extern int64 period_hold(Agent *a, int64 ran);

/* waiting.c */
extern void waiting_publish(Agent *a);
extern void waiting_tell(Agent *a);

/* stand.c */
extern void stand_begin(Agent *a);
extern int	stand_until_elected(Agent *a);
extern void stand_stop(Agent *a);

/* lead.c */
extern void lead_begin(Leadership *l, Agent *a);
extern bool lead_is_fresh(Leadership *l);
extern void lead_step(Leadership *l, int64 until);
extern void lead_lose(Leadership *l, const char *why);
extern void lead_publish(const Leadership *l);
extern int64 lead_overdue_at(const Agent *a);

/* command.c */
extern bool command_prepare(Leadership *l);
extern int	command_run(Leadership *l);

/* give_back.c */
extern void give_back(Leadership *l);

#endif							/* AGENT_H */
