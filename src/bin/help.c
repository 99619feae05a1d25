/*-------------------------------------------------------------------------
 *
 * help.c
 *		What pg_leader --help says.
 *
 * Invariant: it has every option of the table in options.c, and no other.
 * docs/manual makes the manual page of it, and the completion asks for it.
 *
 *-------------------------------------------------------------------------
 */
#include "options.h"

static const char general_help[] =
"pg_leader runs a command while this machine leads an election, and shows\n"
"elections of the extension leader_election.\n"
"\n"
"Usage:\n"
"  pg_leader run [OPTION]... -e ELECTION [--] COMMAND [ARGUMENT]...\n"
"  pg_leader stand [OPTION]... -e ELECTION --http=ADDRESS\n"
"  pg_leader status [OPTION]... [-e ELECTION]\n"
"  pg_leader watch [OPTION]... [-e ELECTION]\n"
"  pg_leader history [OPTION]... -e ELECTION\n"
"  pg_leader history [OPTION]... --html=FILE [-e ELECTION]\n"
"  pg_leader yield [OPTION]... -e ELECTION\n"
"\n"
"Subcommands:\n"
"  run        run a command while leading\n"
"  stand      lead without a command, and tell over HTTP whether it leads\n"
"  status     show who leads, and who stands\n"
"  watch      show the present state, then every change as it happens\n"
"  history    show the terms of an election as a timeline, or those of all as a\n"
"             page of HTML\n"
"  yield      ask the leader to go, and wait until it has gone\n"
"\n"
"General options:\n"
"  -V, --version            output version information, then exit\n"
"  -?, --help               show this help, then exit; that of a subcommand with\n"
"                           \"pg_leader SUBCOMMAND --help\"\n";

static const char connection_help[] =
"\n"
"Connection options:\n"
"  -d, --dbname=DBNAME      database name, or connection string or URI; all users\n"
"                           of this machine can see a password in it (ps)\n"
"  -h, --host=HOSTNAME      database server host or socket directory; several\n"
"                           with commas between\n"
"  -p, --port=PORT          database server port\n"
"  -U, --username=USERNAME  database user name\n"
"  -w, --no-password        never prompt for password (the default)\n"
"  -W, --password           prompt for password\n"
"What is not given comes from the environment (PGHOST and so on), or from the\n"
"service file.  Put a password there, or into the password file (~/.pgpass).\n"
"One attempt takes connect_timeout, if that is set, 10 s at most.\n";

static const char run_help[] =
"pg_leader run runs a command while this machine leads an election.\n"
"\n"
"Usage:\n"
"  pg_leader run [OPTION]... -e ELECTION [--] COMMAND [ARGUMENT]...\n"
"\n"
"It waits to be elected, runs the command (without a shell, in a process group\n"
"of its own), renews the lease while it runs, and gives it back when nothing of\n"
"the command is left.  The command and all processes that it has started are\n"
"dead before the lease is over, even if the network or the server fails, or\n"
"pg_leader is killed.\n"
"\n"
"Options:\n"
"  -e, --election=ELECTION  the election to stand in\n"
"  -n, --candidate=NAME     the candidate's name; has to be unique (default: host\n"
"                           name and process ID)\n"
"      --rank=INTEGER       the candidate's rank, for elections that look at it\n"
"      --mode=MODE          detached (default): rides out lost connections,\n"
"                           server restarts and failovers that are shorter than\n"
"                           the lease; works through a connection pooler\n"
"                           session: another leads within milliseconds if this\n"
"                           machine's processes die, but a lost connection ends\n"
"                           the leadership and kills the command at once\n"
"      --wait=DURATION      wait so long to be elected (default: without end)\n"
"      --skip               do not wait: exit with 0 if another leads, or a hold\n"
"                           is in force\n"
"      --hold=DURATION      when done, nobody is elected until that long after\n"
"                           this leadership began\n"
"      --grace=DURATION     the time between SIGTERM and SIGKILL, where the\n"
"                           command has to end; half of the lease at most, less\n"
"                           if that is below 1 s (default: a third of the lease,\n"
"                           10 s at most)\n"
"      --once               exit when the command has ended (default)\n"
"      --forever            stand for election again when the command has ended\n"
"                           or leadership is lost; after a pause of 1 s to 30 s\n"
"                           if it ran for less than 1 s\n"
"      --group=GROUP        instead of -e: stand for all seats of a group, lead\n"
"                           the first one that is granted\n"
"      --check=COMMAND      stand only while this shell command exits with 0, and\n"
"                           end the command when it does not any more\n"
"      --check-every=DURATION\n"
"                           from one check to the next (default: 5 s)\n"
"      --check-timeout=DURATION\n"
"                           a check that takes longer has failed, and is killed;\n"
"                           not longer than --check-every (default: 2 s)\n"
"      --check-failures=N   as leader, go after so many failures in a row\n"
"                           (default: 3)\n"
"      --every=DURATION     once in each period: if the command exits with 0, no\n"
"                           host runs it again before the next period; else it is\n"
"                           tried again, preferably on another host, after a\n"
"                           pause of 1 s to 30 s.  Periods begin in multiples of\n"
"                           that since 1970 (UTC), by the server's clock\n"
"      --offset=DURATION    ... and so much later\n"
"      --attempts=INTEGER   how often it is tried in a period (default: until it\n"
"                           exits with 0)\n"
"  -v, --verbose            say what is going on; messages begin with the time,\n"
"                           and name the election\n"
"A DURATION is a number and a unit: us, ms, s, min, h or d.\n";

static const char run_notes[] =
"\n"
"Environment of the command:\n"
"  PG_LEADER_ELECTION       the election\n"
"  PG_LEADER_CANDIDATE      the candidate's name\n"
"  PG_LEADER_TERM           the term when the command was started: the fencing\n"
"                           token to send along with every request\n"
"  PG_LEADER_SEAT           with --group, the number of its seat\n"
"  PG_LEADER_TERM_FILE      a file that holds the present term; a failover of the\n"
"                           server may raise it while the command runs\n"
"  PG_LEADER_RUN            with --every: when the period began, as in\n"
"                           2026-11-21T03:00:00Z\n"
"The file is in a folder in TMPDIR that only this user can read.\n"
"\n"
"Signals:\n"
"  SIGTERM, SIGINT, SIGHUP and SIGQUIT are passed on to the command's process\n"
"  group.  The lease is renewed until the command has ended, and then given back.\n"
"  While waiting to be elected, pg_leader leaves the election and exits.  With\n"
"  --forever it does not stand again after SIGTERM, SIGINT or SIGQUIT, or when\n"
"  the command has died of the signal.\n"
"  What was ignored when pg_leader was started (nohup) stays ignored.\n"
"  If stdin is a terminal, it is the command's while that runs: Ctrl-C reaches\n"
"  the command alone.\n"
"\n"
"The command gets SIGTERM, too, when the leader is asked to yield (until the\n"
"lease is over), and when the lease could not be renewed in time or the check\n"
"has failed too often (then SIGKILL, after the grace).  It gets SIGKILL at once\n"
"when the term is over already.\n"
"\n"
"The check has PG_LEADER_ELECTION and PG_LEADER_CANDIDATE, and no input; its\n"
"output goes to /dev/null.  Nothing that it has started outlives it.  A sick\n"
"leader is gone within check-every * check-failures + check-timeout + grace.\n"
"\n"
"Exit status:\n"
"  that of the command; 128 + N if signal N has ended it, or pg_leader while it\n"
"  was waiting; else\n"
"    0    with --skip: another leads, or a hold is in force\n"
"  121    leadership was lost, asked back or given up for the check, and the\n"
"         command was ended\n"
"  122    timed out waiting to be elected; with --skip: nobody leads, nor can be\n"
"         elected now\n"
"  123    could not connect (at first; without --wait and --forever there is one\n"
"         attempt)\n"
"  124    the database does not have the extension; a schema leader_election\n"
"         that is not the extension's is not used\n"
"  125    wrong usage, or another error of pg_leader\n"
"  126    the command could not be executed\n"
"  127    the command was not found\n"
"\n"
"Examples:\n"
"  pg_leader run -e scheduler --forever -- ./scheduler\n"
"  pg_leader run -e nightly --every=1d --offset=3h -- ./nightly-report\n";

static const char stand_help[] =
"pg_leader stand stands for election and leads without a command, until it is\n"
"ended.  Over HTTP it tells programs, proxies and monitors whether it leads.\n"
"\n"
"Usage:\n"
"  pg_leader stand [OPTION]... -e ELECTION --http=ADDRESS\n"
"\n"
"Options:\n"
"  -e, --election=ELECTION  the election to stand in\n"
"  -n, --candidate=NAME     the candidate's name; has to be unique (default: host\n"
"                           name and process ID)\n"
"      --rank=INTEGER       the candidate's rank, for elections that look at it\n"
"      --http=ADDRESS       where to listen: PORT, IPV4:PORT or [IPV6]:PORT; a\n"
"                           port alone means 127.0.0.1\n"
"      --grace=DURATION     the time from the first 503 until the lease is given\n"
"                           back, and the longest that clients are told to\n"
"                           remain; half of the lease at most, less if that is\n"
"                           below 1 s (default: 1 s, a third of the lease at\n"
"                           most)\n"
"  -v, --verbose            say what is going on; messages begin with the time,\n"
"                           and name the election\n"
"A DURATION is a number and a unit: us, ms, s, min, h or d.\n";

static const char stand_notes[] =
"\n"
"Requests (GET or HEAD; no request asks the server):\n"
"  /leader    200 while it leads, with X-Leader-Term and X-Leader-Remaining-Ms:\n"
"             how long the client may act as leader, counted from the moment at\n"
"             which it sent the request.  Else 503, and why: standing, paused\n"
"             (the election), drained, yielding, ending, late (the lease was not\n"
"             renewed in time), no connection.\n"
"  /status    the same as JSON, always with 200\n"
"  /metrics   the same for Prometheus\n"
"\n"
"SIGTERM, SIGINT, SIGHUP or SIGQUIT: 503, then the grace, then the lease is\n"
"given back, and it exits.  A second one: it exits at once, and the lease runs\n"
"out.  What was ignored when pg_leader was started (nohup) stays ignored.\n"
"\n"
"Exit status:\n"
"  128 + N: signal N has ended it; else\n"
"  124    the database does not have the extension\n"
"  125    wrong usage, it cannot listen there, it was built without HTTP, or\n"
"         another error\n";

static const char status_help[] =
"pg_leader status shows who leads, and who stands.\n"
"\n"
"Usage:\n"
"  pg_leader status [OPTION]... [-e ELECTION]\n"
"\n"
"Options:\n"
"  -e, --election=ELECTION  only this one, with its candidates in the order in\n"
"                           which they would be elected (default: all elections)\n"
"  -n, --candidate=NAME     with -e: does this candidate lead?  See exit status\n"
"      --json               one JSON object per line, with the candidates\n"
"\n"
"It works on a standby, too, where the candidates are not known.\n"
"\n"
"Exit status:\n"
"    0    all well; with -e: somebody leads; with -n: that candidate\n"
"    1    with -e: nobody leads; with -n: nobody, or another candidate\n"
"  123    could not connect\n"
"  124    the database does not have the extension\n"
"  125    any other error\n";

static const char watch_help[] =
"pg_leader watch shows the present state of elections, then every change as it\n"
"happens, until it is ended (Ctrl-C).  On a terminal it shows a line for each\n"
"election, and keeps that up to date; for programs and with hooks it prints a\n"
"line for each change.\n"
"\n"
"Usage:\n"
"  pg_leader watch [OPTION]... [-e ELECTION]\n"
"\n"
"Options:\n"
"  -e, --election=ELECTION  only this one (default: all elections)\n"
"      --json               one JSON object per line: election, event, term,\n"
"                           leader, previous, reason and at; event is state (at\n"
"                           first), elected, vacated, yield_requested or\n"
"                           metadata_changed\n"
"      --exec=COMMAND       run this shell command for each of these events\n"
"\n"
"The command has PG_LEADER_ELECTION, _EVENT, _LEADER (empty: nobody), _TERM and\n"
"_METADATA (the leader's).  Others have written these: do not evaluate them.  One\n"
"command runs at a time.  When it has ended, that of the newest event is next;\n"
"older ones are left out.  If it fails, it is tried again, after 1 s to 30 s,\n"
"until a newer event replaces it.  Its output goes to standard error.\n"
"After SIGTERM or SIGINT, the command that runs ends first; a second signal is\n"
"passed on to it.\n"
"\n"
"It connects again when the connection is lost, and shows what happened\n"
"meanwhile (but not requests to yield).  On a standby it looks once a second.\n"
"What it shows is what the server's tables say: a notification, which anybody can\n"
"send, only makes it look.\n";

static const char history_help[] =
"pg_leader history shows the terms of an election.\n"
"\n"
"Usage:\n"
"  pg_leader history [OPTION]... -e ELECTION\n"
"\n"
"With --html the election may be left out: the page shows all of them.\n"
"\n"
"Options:\n"
"  -e, --election=ELECTION  the election\n"
"      --html=FILE          write a page of HTML, with a picture and a table of\n"
"                           the terms, into this file; - is standard output\n"
"      --since=TIME         only terms that had not ended by then: a timestamp,\n"
"                           or how long ago (\"2h\"; default: all that is kept)\n"
"      --json               one JSON object per line and term\n"
"\n"
"On a terminal it draws a timeline, with a lane for each candidate; otherwise\n"
"there is a line per term, with fields separated by tabs: term, leader, kind,\n"
"acquired at, ended at, reason, detail.  Control characters in names, and others\n"
"that cannot be seen, are shown as \\n, \\t, \\xNN.\n";

static const char yield_help[] =
"pg_leader yield asks the leader of an election to go, says how long that may\n"
"take, waits until it has gone, and says who leads then.\n"
"\n"
"Usage:\n"
"  pg_leader yield [OPTION]... -e ELECTION\n"
"\n"
"Options:\n"
"  -e, --election=ELECTION  the election\n"
"      --to=CANDIDATE       in favour of this candidate (default: of the next)\n"
"      --terminate          also end the leader's database session, if it leads\n"
"                           with one\n"
"\n"
"The leader is renewed no more: it ends at its deadline, or earlier if it wants\n"
"to. This is for the owner of the election, and for superusers.\n"
"\n"
"Exit status:\n"
"    0    the term is over, or nobody led\n"
"    1    nobody leads yet, a lease later\n"
"  123    could not connect\n"
"  124    the database does not have the extension\n"
"  125    any other error\n";

static const struct
{
	const char *subcommand;
	const char *help;
	const char *notes;
}			helps[] = {
	{"run", run_help, run_notes},
	{"stand", stand_help, stand_notes},
	{"status", status_help, ""},
	{"watch", watch_help, ""},
	{"history", history_help, ""},
	{"yield", yield_help, ""}
};

/*
 * Print the help of a subcommand; if that is NULL, of the program.
 */
void
help_show(const char *subcommand)
{
	if (subcommand == NULL)
		printf("%s", general_help);
	for (int i = 0; i < lengthof(helps) && subcommand != NULL; i++)
	{
		if (strcmp(helps[i].subcommand, subcommand) == 0)
			printf("%s%s%s", helps[i].help, connection_help, helps[i].notes);
	}
}
