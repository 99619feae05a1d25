/*-------------------------------------------------------------------------
 *
 * options.c
 *		The command-line program of the extension leader_election: options,
 *		and which part of the program is meant.  The help is in help.c.
 *
 * Invariant: what is wrong with the command line is found here, before anything
 * is done.
 *
 *-------------------------------------------------------------------------
 */
#include "options.h"
#include "subcommands.h"

#include <fcntl.h>
#include <locale.h>
#include <time.h>
#include <unistd.h>

#include "common/string.h"
#include "getopt_long.h"

/* What the extension accepts */
#define LONGEST_NAME	200
#define LONGEST_HOLD	(366 * DAY)

/* Options without a letter, beyond all that are a char */
enum
{
	OPT_RANK = 256,
	OPT_MODE,
	OPT_WAIT,
	OPT_SKIP,
	OPT_HOLD,
	OPT_GRACE,
	OPT_ONCE,
	OPT_FOREVER,
	OPT_JSON,
	OPT_SINCE,
	OPT_TO,
	OPT_TERMINATE
};

/* Which options a subcommand has, apart from those of the connection */
typedef struct Subcommand
{
	const char *name;
	const char *letters;
	const int  *others;
} Subcommand;

typedef struct Options
{
	RunOptions	run;
	ObserveOptions observe;
	bool		ask_password;
	bool		verbose;
	bool		once;
	bool		waits;
} Options;

static const int run_others[] = {
	OPT_RANK, OPT_MODE, OPT_WAIT, OPT_SKIP, OPT_HOLD, OPT_GRACE, OPT_ONCE,
	OPT_FOREVER, 0
};
static const int status_others[] = {OPT_JSON, 0};
static const int history_others[] = {OPT_JSON, OPT_SINCE, 0};
static const int yield_others[] = {OPT_TO, OPT_TERMINATE, 0};

static const Subcommand subcommands[] = {
	{"run", "env", run_others},
	{"status", "e", status_others},
	{"watch", "e", status_others},
	{"history", "e", history_others},
	{"yield", "e", yield_others}
};

static const char *progname;

/* --- what -v prints before each message */

static char *locus;

static void
print_time(void)
{
	struct timespec now;
	struct tm	tm;
	char		date[64] = "";
	char		zone[16] = "";

	(void) clock_gettime(CLOCK_REALTIME, &now);
	if (localtime_r(&now.tv_sec, &tm) != NULL)
	{
		(void) strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", &tm);
		(void) strftime(zone, sizeof(zone), "%z", &tm);
	}
	fprintf(stderr, "%s.%03d%s ", date, (int) (now.tv_nsec / 1000000), zone);
}

static void
name_locus(const char **filename, uint64 *lineno)
{
	*filename = locus;
}

static void
be_verbose(const char *election)
{
	char	   *shown = text_printable(election);

	locus = psprintf(" election \"%s\"", shown);
	pg_free(shown);
	pg_logging_set_level(PG_LOG_INFO);
	pg_logging_set_pre_callback(print_time);
	pg_logging_set_locus_callback(name_locus);
}

/* --- options */

static void
usage_error(void)
{
	pg_log_error_hint("Try \"%s --help\" for more information.", progname);
	exit(EXIT_USAGE);
}

static int64
duration_option(const char *option, const char *value, int64 longest)
{
	int64		length;

	if (!duration_parse(value, &length) || length > longest)
	{
		pg_log_error("invalid value \"%s\" for option %s", value, option);
		pg_log_error_hint("A length of time is a number and one of us, ms, s, min, h and d, at most %s.",
						  duration_format(longest));
		exit(EXIT_USAGE);
	}
	return length;
}

static const char *
name_option(const char *option, const char *value)
{
	if (value[0] == '\0' || strlen(value) > LONGEST_NAME)
	{
		pg_log_error("invalid value \"%s\" for option %s", value, option);
		pg_log_error_hint("A name has 1 to %d bytes.", LONGEST_NAME);
		exit(EXIT_USAGE);
	}
	return value;
}

static const char *
rank_option(const char *value)
{
	int			base = value[0] == '-' ? 1 : 0;
	char	   *end;

	errno = 0;
	(void) strtoint(value, &end, 10);
	if (errno != 0 || *end != '\0' || value[base] < '0' || value[base] > '9')
	{
		pg_log_error("invalid value \"%s\" for option %s", value, "--rank");
		pg_log_error_hint("A rank is an integer.");
		exit(EXIT_USAGE);
	}
	return value;
}

/* The options of connections, and those that every subcommand has */
static bool
set_common_option(Options *o, int option, const char *value)
{
	ConnectOptions *c = &o->run.connect;

	switch (option)
	{
		case 'd':
			c->dbname = value;
			return true;
		case 'h':
			c->host = value;
			return true;
		case 'p':
			c->port = value;
			return true;
		case 'U':
			c->user = value;
			return true;
		case 'w':
			o->ask_password = false;
			return true;
		case 'W':
			o->ask_password = true;
			return true;
		case 'e':
			o->run.election = name_option("-e/--election", value);
			return true;
	}
	return false;
}

static void
set_option(Options *o, int option, const char *value)
{
	switch (option)
	{
		case 'n':
			o->run.candidate = name_option("-n/--candidate", value);
			break;
		case 'v':
			o->verbose = true;
			break;
		case OPT_RANK:
			o->run.rank = rank_option(value);
			break;
		case OPT_MODE:
			o->run.session = strcmp(value, "session") == 0;
			if (!o->run.session && strcmp(value, "detached") != 0)
			{
				pg_log_error("invalid value \"%s\" for option %s", value, "--mode");
				pg_log_error_hint("It is \"detached\" or \"session\".");
				exit(EXIT_USAGE);
			}
			break;
		case OPT_WAIT:
			o->run.wait = duration_option("--wait", value, LONGEST_TIME);
			o->waits = true;
			break;
		case OPT_SKIP:
			o->run.skip = true;
			break;
		case OPT_HOLD:
			o->run.hold = duration_option("--hold", value, LONGEST_HOLD);
			break;
		case OPT_GRACE:
			o->run.grace = duration_option("--grace", value, DAY);
			break;
		case OPT_ONCE:
			o->once = true;
			break;
		case OPT_FOREVER:
			o->run.forever = true;
			break;
		case OPT_JSON:
			o->observe.json = true;
			break;
		case OPT_SINCE:
			o->observe.since = value;
			break;
		case OPT_TO:
			o->observe.to_candidate = name_option("--to", value);
			break;
		case OPT_TERMINATE:
			o->observe.terminate = true;
			break;
	}
}

static bool
has_option(const Subcommand *s, int option)
{
	if (option < OPT_RANK)
		return strchr("dhpUwW", option) != NULL ||
			strchr(s->letters, option) != NULL;
	for (const int *other = s->others; *other != 0; other++)
	{
		if (*other == option)
			return true;
	}
	return false;
}

static void
read_options(const Subcommand *s, int argc, char **argv, Options *o)
{
	static const struct option long_options[] = {
		{"dbname", required_argument, NULL, 'd'},
		{"host", required_argument, NULL, 'h'},
		{"port", required_argument, NULL, 'p'},
		{"username", required_argument, NULL, 'U'},
		{"no-password", no_argument, NULL, 'w'},
		{"password", no_argument, NULL, 'W'},
		{"election", required_argument, NULL, 'e'},
		{"candidate", required_argument, NULL, 'n'},
		{"verbose", no_argument, NULL, 'v'},
		{"rank", required_argument, NULL, OPT_RANK},
		{"mode", required_argument, NULL, OPT_MODE},
		{"wait", required_argument, NULL, OPT_WAIT},
		{"skip", no_argument, NULL, OPT_SKIP},
		{"hold", required_argument, NULL, OPT_HOLD},
		{"grace", required_argument, NULL, OPT_GRACE},
		{"once", no_argument, NULL, OPT_ONCE},
		{"forever", no_argument, NULL, OPT_FOREVER},
		{"json", no_argument, NULL, OPT_JSON},
		{"since", required_argument, NULL, OPT_SINCE},
		{"to", required_argument, NULL, OPT_TO},
		{"terminate", no_argument, NULL, OPT_TERMINATE},
		{NULL, 0, NULL, 0}
	};
	int			option;

	/* What comes after the first word that is no option is the command's. */
	while ((option = getopt_long(argc, argv, "+d:h:p:U:wWe:n:v", long_options,
								 NULL)) != -1)
	{
		if (option == '?')
			usage_error();
		if (!has_option(s, option))
		{
			pg_log_error("%s %s does not have the option \"%s\"", progname,
						 s->name, argv[optind - 1]);
			usage_error();
		}
		if (!set_common_option(o, option, optarg))
			set_option(o, option, optarg);
	}
}

static const char *
default_candidate(void)
{
	char		host[256];

	if (gethostname(host, sizeof(host)) != 0)
		strlcpy(host, "localhost", sizeof(host));
	host[sizeof(host) - 1] = '\0';
	return psprintf("%.150s-%d", host, (int) getpid());
}

static void
check_run(Options *o, int argc, char **argv)
{
	const char *wrong = NULL;

	if (o->run.election == NULL)
		wrong = "no election is named (-e)";
	else if (optind >= argc)
		wrong = "no command is given";
	else if (o->run.skip && o->waits)
		wrong = "options --skip and --wait exclude each other";
	else if (o->run.skip && o->run.forever)
		wrong = "options --skip and --forever exclude each other";
	else if (o->once && o->run.forever)
		wrong = "options --once and --forever exclude each other";
	if (wrong != NULL)
	{
		pg_log_error("%s", wrong);
		usage_error();
	}
	if (o->verbose)
		be_verbose(o->run.election);
	o->run.command = argv + optind;
	if (o->run.candidate == NULL)
		o->run.candidate = default_candidate();
}

static void
check_observe(const Subcommand *s, Options *o, int argc, char **argv)
{
	if (optind < argc)
	{
		pg_log_error("too many command-line arguments (first is \"%s\")",
					 argv[optind]);
		usage_error();
	}
	if (o->run.election == NULL &&
		(strcmp(s->name, "history") == 0 || strcmp(s->name, "yield") == 0))
	{
		pg_log_error("no election is named (-e)");
		usage_error();
	}
	o->observe.election = o->run.election;
	o->observe.connect = o->run.connect;
}

static int
run_subcommand(const Subcommand *s, int argc, char **argv)
{
	Options		o = {.run = {.wait = NEVER,.hold = -1,.grace = -1}};
	bool		is_run = strcmp(s->name, "run") == 0;

	read_options(s, argc, argv, &o);
	o.run.connect.read_write = is_run || strcmp(s->name, "yield") == 0;
	if (o.ask_password)
		o.run.connect.password = simple_prompt("Password: ", false);
	if (is_run)
		check_run(&o, argc, argv);
	else
		check_observe(s, &o, argc, argv);

	if (is_run)
		return agent_run(&o.run);
	if (strcmp(s->name, "status") == 0)
		return status_show(&o.observe);
	if (strcmp(s->name, "watch") == 0)
		return watch_run(&o.observe);
	if (strcmp(s->name, "history") == 0)
		return timeline_show(&o.observe);
	return yield_run(&o.observe);
}

/*
 * --help and --version are first, or after the subcommand; anywhere else they
 * might be the command's.
 */
static void
answer_questions(const char *word, const char *subcommand)
{
	if (word == NULL)
		return;
	if (strcmp(word, "--help") == 0 || strcmp(word, "-?") == 0)
	{
		help_show(progname, subcommand);
		exit(EXIT_SUCCESS);
	}
	if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0)
	{
		printf("pg_leader (leader_election) " PG_LEADER_VERSION "\n");
		exit(EXIT_SUCCESS);
	}
}

/*
 * Where standard input or output is closed, a connection must not take its
 * place: what is meant for the user would go to the server.
 */
static void
open_standard_files(void)
{
	int			fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

int
main(int argc, char **argv)
{
	pg_logging_init(argv[0]);
	pg_logging_set_level(PG_LOG_WARNING);
	progname = get_progname(argv[0]);
	(void) setlocale(LC_ALL, "");
	/* Numbers are PostgreSQL's. */
	(void) setlocale(LC_NUMERIC, "C");
	open_standard_files();

	if (argc < 2)
	{
		pg_log_error("no subcommand is given");
		usage_error();
	}
	answer_questions(argv[1], NULL);
	for (int i = 0; i < lengthof(subcommands); i++)
	{
		if (strcmp(argv[1], subcommands[i].name) == 0)
		{
			answer_questions(argv[2], subcommands[i].name);
			return run_subcommand(&subcommands[i], argc - 1, argv + 1);
		}
	}
	pg_log_error("unknown subcommand \"%s\"", argv[1]);
	usage_error();
}
