/*-------------------------------------------------------------------------
 *
 * sidecar.c
 *		pg_leader stand: stands for election and leads without a command, and
 *		tells over HTTP whether it leads.
 *
 * The main thread does what `run` does (stand.c, lead.c), and publishes what
 * it knows.  The thread of http.c replies from that alone.
 *
 *-------------------------------------------------------------------------
 */
#include "agent.h"
#include "subcommands.h"

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
	} while (code == ELECTED && lead_hold(a));
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
