/*-------------------------------------------------------------------------
 *
 * hook.c
 *		pg_leader watch --exec: runs a command line for the newest event of
 *		each election.
 *
 * Invariants:
 *
 * - One hook runs at a time.  While it runs, only the newest event of each
 *	 election is kept: a slow hook skips what is old by then.
 *
 * - No event is run after a newer one of its election, and the newest one is
 *	 run until it succeeds.  So whatever fails, the last hook that was run is
 *	 that of the present state.
 *
 * - What others have written is in the environment of the hook, as it is, and
 *	 nowhere in its command line.
 *
 * Hooks are started, and their ends are seen, also while the server is asked
 * or cannot be reached: all waits for the connection watch for both.
 *
 *-------------------------------------------------------------------------
 */
#include "watch.h"

#include <sys/wait.h>
#include <unistd.h>

/* For atexit() */
static Hooks *hooks_of_exit;

/* --- what is to be run */

#define ENDED	3				/* the highest rank in a term */

/*
 * Rank the events of one term in the order in which they happen.  watch may
 * read them in another: requests to yield come from a later look than
 * elections.  The first state of a term that has ended is as a vacancy.
 * The leader may change its metadata at any time, and several times.
 */
static int
rank_of(const char *event, bool ended)
{
	if (strcmp(event, "yield_requested") == 0)
		return 2;
	return ended || strcmp(event, "vacated") == 0 ? ENDED : 1;
}

/*
 * Note the event in a row, to be run unless one as new was noted before.
 */
void
hooks_note(Hooks *h, const PGresult *events, int row)
{
	const char *event = PQgetvalue(events, row, EVENT_KIND);
	Hook	   *hook;
	int64		order = strtoll(PQgetvalue(events, row, EVENT_LAST_TERM), NULL, 10);
	int			rank = rank_of(event, PQgetvalue(events, row, EVENT_ENDED)[0] == 't');

	if (h->command == NULL)
		return;
	hook = watched_get(&h->list, PQgetvalue(events, row, EVENT_ELECTION),
					   sizeof(Hook));
	if (hook->event != NULL)
	{
		if (strcmp(event, "metadata_changed") == 0 && order == hook->order &&
			hook->rank < ENDED)
			rank = hook->rank;
		else if (order < hook->order ||
				 (order == hook->order && rank <= hook->rank))
			return;
	}
	hook->order = order;
	hook->rank = rank;
	text_set(&hook->event, event);
	text_set(&hook->leader, PQgetvalue(events, row, EVENT_LEADER));
	text_set(&hook->term, PQgetvalue(events, row, EVENT_TERM));
	pg_free(hook->metadata);
	hook->metadata = NULL;
	hook->due = NEVER;
	hook->pause = FIRST_BACKOFF;
	if (h->running == hook)
		h->running = NULL;
}

/* --- running */

/*
 * The hook that ran has ended.
 */
static void
take_end(Hooks *h, int status)
{
	Hook	   *hook = h->running;
	int64		pause;

	h->pid = 0;
	h->running = NULL;
	if (hook == NULL || status == 0)
		return;
	pause = duration_next_pause(&hook->pause, LONGEST_BACKOFF);
	hook->due = now_us() + pause;
	pg_log_warning("the hook of election \"%s\" has failed, and is tried again in %s: %s",
				   text_show(hook->election), duration_format(pause),
				   status == -1 ? "it could not be started" :
				   text_lend(wait_result_to_str(status)));
}

static void
start(Hooks *h, Hook *hook)
{
	const char *told[TOLD_FIELDS] = {
		[TOLD_ELECTION] = hook->election,[TOLD_EVENT] = hook->event,
		[TOLD_LEADER] = hook->leader,[TOLD_TERM] = hook->term,
		[TOLD_METADATA] = hook->metadata
	};
	char	  **environment;

	hook->due = NEVER;
	h->running = hook;
	environment = environment_make(told);
	h->pid = shell_start(h->command, environment);
	environment_free(environment);
	if (h->pid < 0)
		take_end(h, -1);
}

/*
 * Return the hook that is due first; NULL: none is, ever.
 */
static Hook *
first_due(const Hooks *h)
{
	Hook	   *first = NULL;

	for (int i = 0; i < h->list.n; i++)
	{
		Hook	   *hook = h->list.all[i];

		if (hook->due != NEVER && (first == NULL || hook->due < first->due))
			first = hook;
	}
	return first;
}

/*
 * Reap a child that has ended: the hook, or what has become ours (we may be
 * process 1 of a container).  If the hook has failed, kill what is left of it,
 * for that may not run beside the next one.  Its process group is its own until
 * it is reaped.  A hook that succeeds may leave what it likes (a daemon).
 * Return the child; 0: none has ended.
 */
static pid_t
reap(const Hooks *h, int *status)
{
	siginfo_t	end = {0};

	if (waitid(P_ALL, 0, &end, WEXITED | WNOHANG | WNOWAIT) != 0 || end.si_pid == 0)
		return 0;
	if (end.si_pid == h->pid &&
		(end.si_code != CLD_EXITED || end.si_status != 0))
		(void) kill(-h->pid, SIGKILL);
	return waitpid(end.si_pid, status, 0);
}

/*
 * Take the end of the hook, if it has ended, and start the next one, or set the
 * timer for it.
 */
static void
run_due(Hooks *h)
{
	Hook	   *next = NULL;
	pid_t		pid;
	int			status;

	while ((pid = reap(h, &status)) > 0)
	{
		if (pid == h->pid)
			take_end(h, status);
	}
	while (h->pid == 0 && (next = first_due(h)) != NULL && next->due <= now_us())
		start(h, next);
	signals_set_timer(h->timer_fd, h->pid == 0 && next != NULL ? next->due : NEVER);
}

/*
 * Set the leader's metadata: now the hook can be run.
 */
void
hooks_set_metadata(Hooks *h, Hook *hook, const char *metadata)
{
	text_set(&hook->metadata, metadata);
	hook->due = now_us();
	run_due(h);
}

/* --- what every wait watches beside the connection */

/*
 * Obey the first signal that asks us to end.  A second one is left to be read
 * by finish(), which passes it to the hook: read here, it would be lost.
 */
static bool
on_event(void *arg)
{
	Hooks	   *h = arg;
	int			signo = signals_next(h->signal_fd);

	if (signo != 0)
		exit(EXIT_SIGNAL(signo));	/* finish() is called */
	signals_clear_timer(h->timer_fd);
	run_due(h);
	return false;
}

/*
 * At the end of this program, however it comes, let the hook that runs end.
 * Another watch may be started next: the hooks of both must not run at a time.
 * A signal that comes now is for the hook.
 */
static void
finish(void)
{
	Hooks	   *h = hooks_of_exit;
	struct pollfd fd = {.fd = h->signal_fd,.events = POLLIN};
	int			status;

	while (h->pid > 0)
	{
		pid_t		pid = reap(h, &status);
		int			signo;

		if (pid == h->pid)
			return;
		if (pid > 0)
			continue;
		(void) poll(&fd, 1, -1);
		signo = signals_next(h->signal_fd);
		if (signo != 0)
			(void) kill(-h->pid, signo);
	}
}

/*
 * Prepare for hooks, if there is a command, once there is a connection.
 */
void
hooks_prepare(Hooks *h, const char *command, Connection *c)
{
	sigset_t	signals;

	memset(h, 0, sizeof(Hooks));
	h->command = command;
	if (command == NULL)
		return;
	signals_block(&signals, NULL, 0);
	/* If nobody reads what we print, event_flush() ends this program. */
	(void) signal(SIGPIPE, SIG_IGN);
	h->signal_fd = signals_check(signals_open(&signals));
	h->timer_fd = signals_check(signals_open_timer());
	h->watcher = (Watcher) {{&h->signal_fd, &h->timer_fd}, on_event, h};
	c->watcher = &h->watcher;
	hooks_of_exit = h;
	(void) atexit(finish);
}
