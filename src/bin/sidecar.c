/*-------------------------------------------------------------------------
 *
 * sidecar.c
 *		pg_leader stand: stands for election and leads without a command, and
 *		tells over HTTP whether it leads.
 *
 * The main thread does what `run` does (stand.c, lead.c), and publishes what
 * it knows.  The thread of http.c replies from that alone.
 *
 * Invariants:
 *
 * - The lease is given back only when all that it has told its clients is over
 *	 (see reply.c).
 *
 * - Before it exits, it leaves the election if it stands.
 *
 *-------------------------------------------------------------------------
 */
#include "agent.h"
#include "subcommands.h"

/* --- one leadership */

/*
 * Say that we do not lead, wait until all that clients were told is over, and
 * give the lease back.  A second signal ends the wait: then the lease is not
 * given back, for a client may still count on it.
 */
static void
leave(Leadership *l)
{
	Agent	   *a = l->agent;
	bool		told_to_end = a->signalled;
	int64		until;

	l->leaving = true;
	lead_publish(l);

	/*
	 * Clients count what they were told by clocks of their own: hence the
	 * margin.  It is renewed meanwhile, as it is while a command ends.
	 */
	until = now_us() + a->grace + guardian_kill_margin(a->grace);
	a->signalled = false;
	while (!l->over && !(told_to_end && a->signalled) &&
		   now_us() < Min(until, a->grant.deadline))
		lead_step(l, Min(until, a->grant.deadline));
	if (told_to_end && a->signalled)
	{
		pg_log_warning("the lease of election \"%s\" is not given back: it ends by itself",
					   a->shown);
		l->over = true;
	}
	give_back(l);
}

/*
 * Hold the leadership that a->grant grants, until it is lost, we are asked to
 * yield, or a signal comes.  Return false if a signal has come.
 */
static bool
hold(Agent *a)
{
	Leadership	l;

	lead_begin(&l, a);
	while (!l.over && !l.yielding && !a->signalled &&
		   now_us() < lead_overdue_at(a))
		lead_step(&l, lead_overdue_at(a));
	if (!l.yielding && !a->signalled && now_us() >= lead_overdue_at(a))
		lead_lose(&l, "the lease could not be renewed in time");
	leave(&l);
	return a->signo == 0;
}

/* --- the life of a sidecar */

/*
 * Stand and lead, again and again, until a signal comes.  Return the exit
 * code.
 */
static int
serve_and_stand(Agent *a)
{
	const Options *o = a->options;
	int			code;

	reply_set_names(o->election, o->candidate);
	if (!http_start(&o->http))
		return EXIT_USAGE;
	do
	{
		stand_begin(a);
		code = stand_until_elected(a);
	} while (code == ELECTED && hold(a));
	http_stop();
	return code == ELECTED ? EXIT_SIGNAL(a->signo) : code;
}

int
sidecar_run(const Options *options)
{
	Options		o = *options;
	Agent		a;
	int			code;

	/* Without end, whether the server can be reached now or not */
	o.forever = true;
	agent_begin(&a, &o);
	code = serve_and_stand(&a);
	stand_stop(&a);
	agent_end(&a);
	return code;
}
