/*-------------------------------------------------------------------------
 *
 * options.c
 *		Reads the command line.
 *
 * Invariant: an error of the command line is reported here, before pg_leader
 * connects to a server.
 *
 *-------------------------------------------------------------------------
 */
#include "options.h"

#include <unistd.h>

#include "common/string.h"
#include "getopt_long.h"

/* What the extension accepts */
#define LONGEST_NAME	200
#define LONGEST_HOLD	(366 * DAY)

const char *progname;

/*
 * Exit after an error that the caller has reported.
 */
void
options_usage_error(void)
{
	pg_log_error_hint("Try \"%s --help\" for more information.", progname);
	exit(EXIT_USAGE);
}

/*
 * Report a value that an option does not take, with a hint, and exit.
 */
static void invalid_value(const char *option, const char *value,
						  const char *hint,...) pg_attribute_printf(3, 4) pg_attribute_noreturn();

static void
invalid_value(const char *option, const char *value, const char *hint,...)
{
	va_list		args;

	pg_log_error("invalid value \"%s\" for option %s", value, option);
	va_start(args, hint);
	pg_log_generic_v(PG_LOG_ERROR, PG_LOG_HINT, hint, args);
	va_end(args);
	exit(EXIT_USAGE);
}

static int64
duration_option(const char *option, const char *value, int64 longest)
{
	int64		length;

	if (!duration_parse(value, &length) || length > longest)
		invalid_value(option, value,
					  "A length of time is a number and one of us, ms, s, min, h and d, at most %s.",
					  duration_format(longest));
	return length;
}

static const char *
name_option(const char *option, const char *value)
{
	if (value[0] == '\0' || strlen(value) > LONGEST_NAME)
		invalid_value(option, value, "A name has 1 to %d bytes.", LONGEST_NAME);
	return value;
}

static const char *
rank_option(const char *value)
{
	int			sign = value[0] == '-' ? 1 : 0;
	char	   *end;

	/* strtoint() would also take spaces and a plus before the digits. */
	errno = 0;
	(void) strtoint(value, &end, 10);
	if (errno != 0 || *end != '\0' || value[sign] < '0' || value[sign] > '9')
		invalid_value("--rank", value, "A rank is an integer.");
	return value;
}

/*
 * Set an option that every subcommand has.  Return false if it is another one.
 */
static bool
set_common_option(Options *o, int option, const char *value)
{
	ConnectOptions *c = &o->connect;

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
			o->election = name_option("-e/--election", value);
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
			o->candidate = name_option("-n/--candidate", value);
			break;
		case 'v':
			o->verbose = true;
			break;
		case OPT_RANK:
			o->rank = rank_option(value);
			break;
		case OPT_MODE:
			o->session = strcmp(value, "session") == 0;
			if (!o->session && strcmp(value, "detached") != 0)
				invalid_value("--mode", value,
							  "It is \"detached\" or \"session\".");
			break;
		case OPT_WAIT:
			o->wait = duration_option("--wait", value, LONGEST_TIME);
			break;
		case OPT_SKIP:
			o->skip = true;
			break;
		case OPT_HOLD:
			o->hold = duration_option("--hold", value, LONGEST_HOLD);
			break;
		case OPT_GRACE:
			o->grace = duration_option("--grace", value, DAY);
			break;
		case OPT_ONCE:
			o->once = true;
			break;
		case OPT_FOREVER:
			o->forever = true;
			break;
		case OPT_JSON:
			o->json = true;
			break;
		case OPT_SINCE:
			o->since = value;
			break;
		case OPT_TO:
			o->to_candidate = name_option("--to", value);
			break;
		case OPT_TERMINATE:
			o->terminate = true;
			break;
	}
}

static bool
has_option(const Subcommand *s, int option)
{
	for (const int *has = s->options; *has != 0; has++)
	{
		if (*has == option)
			return true;
	}
	return option < OPT_RANK && strchr("dhpUwW", option) != NULL;
}

static void
parse_options(const Subcommand *s, int argc, char **argv, Options *o)
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

	/* "+" ends the options at the first word that is none: the command's. */
	while ((option = getopt_long(argc, argv, "+d:h:p:U:wWe:n:v", long_options,
								 NULL)) != -1)
	{
		if (option == '?')
			options_usage_error();
		if (!has_option(s, option))
		{
			pg_log_error("%s %s does not have the option \"%s\"", progname,
						 s->name, argv[optind - 1]);
			options_usage_error();
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

/*
 * Report what is missing, too much or contradictory, and exit.
 */
static void
check_options(const Subcommand *s, const Options *o, int argc, char **argv)
{
	const char *wrong = NULL;

	if (!s->takes_command && optind < argc)
	{
		pg_log_error("too many command-line arguments (first is \"%s\")",
					 argv[optind]);
		options_usage_error();
	}
	if (s->needs_election && o->election == NULL)
		wrong = "no election is named (-e)";
	else if (s->takes_command && optind >= argc)
		wrong = "no command is given";
	else if (o->skip && o->wait != NEVER)
		wrong = "options --skip and --wait exclude each other";
	else if (o->skip && o->forever)
		wrong = "options --skip and --forever exclude each other";
	else if (o->once && o->forever)
		wrong = "options --once and --forever exclude each other";
	if (wrong != NULL)
	{
		pg_log_error("%s", wrong);
		options_usage_error();
	}
}

/*
 * Read the command line of a subcommand, whose name is argv[0].
 */
void
options_read(const Subcommand *s, int argc, char **argv, Options *o)
{
	*o = (Options) {.wait = NEVER,.hold = -1,.grace = -1};
	parse_options(s, argc, argv, o);
	o->connect.read_write = s->needs_primary;
	if (o->ask_password)
		o->connect.password = simple_prompt("Password: ", false);
	check_options(s, o, argc, argv);
	if (s->takes_command)
	{
		o->command = argv + optind;
		if (o->candidate == NULL)
			o->candidate = default_candidate();
	}
}
