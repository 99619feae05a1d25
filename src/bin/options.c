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

#include <ctype.h>
#include <unistd.h>

#include "common/string.h"
#include "getopt_long.h"

/* What the extension accepts */
#define LONGEST_NAME	200
#define LONGEST_HOLD	(366 * DAY)

/* A check may take 10 ms at least, and fail so often in a row at most */
#define SHORTEST_CHECK	(10 * MSEC)
#define MOST_FAILURES	1000

/* Unless given */
#define CHECK_EVERY		(5 * SEC)
#define CHECK_TIMEOUT	(2 * SEC)
#define CHECK_FAILURES	3
#define REFUSAL_TIMEOUT	(30 * SEC)
#define LONGEST_PERIOD	(366 * DAY)

#define SETS(member)	offsetof(Options, member)
#define ALL				"run stand status diagnose watch history yield"

/* The value of an option */
typedef enum ValueKind
{
	VALUE_TEXT,
	VALUE_NAME,
	VALUE_INTEGER,
	VALUE_DURATION,
	VALUE_MODE,
	VALUE_POOLER,
	VALUE_ADDRESS,
	VALUE_YES,					/* none; the option sets a bool */
	VALUE_NO					/* none; the option clears a bool */
} ValueKind;

typedef struct Option
{
	const char *name;
	char		letter;			/* 0: none */
	ValueKind	kind;
	size_t		member;			/* of Options, as an offset */
	const char *subcommands;	/* that have it */
	int64		most;			/* of a duration or an integer */
	int			least;			/* of an integer */
} Option;

static const Option options[] = {
	{"dbname", 'd', VALUE_TEXT, SETS(connect.dbname), ALL},
	{"host", 'h', VALUE_TEXT, SETS(connect.host), ALL},
	{"port", 'p', VALUE_TEXT, SETS(connect.port), ALL},
	{"username", 'U', VALUE_TEXT, SETS(connect.user), ALL},
	{"no-password", 'w', VALUE_NO, SETS(ask_password), ALL},
	{"password", 'W', VALUE_YES, SETS(ask_password), ALL},
	{"portable", 0, VALUE_YES, SETS(connect.portable), ALL},
	{"election", 'e', VALUE_NAME, SETS(election), ALL},
	{"candidate", 'n', VALUE_NAME, SETS(candidate), "run stand status"},
	{"verbose", 'v', VALUE_YES, SETS(verbose), "run stand"},
	{"rank", 0, VALUE_INTEGER, SETS(rank), "run stand", PG_INT32_MAX, PG_INT32_MIN},
	{"group", 0, VALUE_NAME, SETS(group), "run"},
	{"mode", 0, VALUE_MODE, SETS(session), "run"},
	{"pooler", 0, VALUE_POOLER, SETS(connect.session_pooler), "run"},
	{"wait", 0, VALUE_DURATION, SETS(wait), "run", LONGEST_TIME},
	{"skip", 0, VALUE_YES, SETS(skip), "run"},
	{"hold", 0, VALUE_DURATION, SETS(hold), "run", LONGEST_HOLD},
	{"grace", 0, VALUE_DURATION, SETS(grace), "run stand", DAY},
	{"refusal-timeout", 0, VALUE_DURATION, SETS(refusal_timeout), "run stand", LONGEST_TIME},
	{"every", 0, VALUE_DURATION, SETS(every), "run", LONGEST_PERIOD},
	{"offset", 0, VALUE_DURATION, SETS(offset), "run", LONGEST_PERIOD},
	{"attempts", 0, VALUE_INTEGER, SETS(attempts), "run", PG_INT32_MAX, 1},
	{"once", 0, VALUE_YES, SETS(once), "run"},
	{"forever", 0, VALUE_YES, SETS(forever), "run"},
	{"http", 0, VALUE_ADDRESS, SETS(http), "stand"},
	{"check", 0, VALUE_TEXT, SETS(check.command), "run"},
	{"check-every", 0, VALUE_DURATION, SETS(check.every), "run", DAY},
	{"check-timeout", 0, VALUE_DURATION, SETS(check.timeout), "run", DAY},
	{"check-failures", 0, VALUE_INTEGER, SETS(failures), "run", MOST_FAILURES, 1},
	{"all", 0, VALUE_YES, SETS(all), "status diagnose"},
	{"json", 0, VALUE_YES, SETS(json), "status diagnose watch history"},
	{"exec", 0, VALUE_TEXT, SETS(exec), "watch"},
	{"html", 0, VALUE_TEXT, SETS(html), "history"},
	{"since", 0, VALUE_TEXT, SETS(since), "history"},
	{"to", 0, VALUE_NAME, SETS(to_candidate), "yield"},
	{"terminate", 0, VALUE_YES, SETS(terminate), "yield"}
};

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

/* --- values */

/*
 * Report a value that an option does not take, with a hint, and exit.
 */
static void
invalid_value(const Option *option, const char *value, const char *hint)
{
	char		letter[] = {'-', option->letter, '/', '\0'};

	pg_log_error("invalid value \"%s\" for option %s--%s", text_show(value),
				 option->letter != 0 ? letter : "", option->name);
	pg_log_error_hint("%s", hint);
	exit(EXIT_USAGE);
}

static bool
is_integer(const char *value, int least, int most)
{
	int			sign = value[0] == '-' ? 1 : 0;
	int			number;
	char	   *end;

	/* strtoint() would also take spaces and a plus before the digits. */
	errno = 0;
	number = strtoint(value, &end, 10);
	return errno == 0 && *end == '\0' && isdigit((unsigned char) value[sign]) &&
		number >= least && number <= most;
}

/*
 * Set an option, or report its value as invalid and exit.
 */
static void
set_option(Options *o, const Option *option, const char *value)
{
	void	   *member = (char *) o + option->member;
	int64		length;

	switch (option->kind)
	{
		case VALUE_TEXT:
			*(const char **) member = value;
			break;
		case VALUE_NAME:
			if (value[0] == '\0' || strlen(value) > LONGEST_NAME)
				invalid_value(option, value, psprintf("A name has 1 to %d bytes.",
													  LONGEST_NAME));
			*(const char **) member = value;
			break;
		case VALUE_INTEGER:
			if (!is_integer(value, option->least, (int) option->most))
				invalid_value(option, value, psprintf("It is an integer from %d to %d.",
													  option->least, (int) option->most));
			*(const char **) member = value;
			break;
		case VALUE_DURATION:
			if (!duration_parse(value, &length) || length > option->most)
				invalid_value(option, value,
							  psprintf("A length of time is a number and one of us, ms, s, min, h and d, at most %s.",
									   duration_format(option->most)));
			*(int64 *) member = length;
			break;
		case VALUE_MODE:
			*(bool *) member = strcmp(value, "session") == 0;
			if (!*(bool *) member && strcmp(value, "detached") != 0)
				invalid_value(option, value,
							  "It is \"detached\" or \"session\".");
			break;
		case VALUE_POOLER:
			if (strcmp(value, "session") != 0)
				invalid_value(option, value, "It is \"session\".");
			*(bool *) member = true;
			break;
		case VALUE_ADDRESS:
			if (!address_parse(value, (Address *) member))
				invalid_value(option, value,
							  "It is PORT, IPV4:PORT or [IPV6]:PORT.");
			break;
		case VALUE_YES:
		case VALUE_NO:
			*(bool *) member = option->kind == VALUE_YES;
			break;
	}
}

/* --- the command line */

/*
 * Read the options.  optind is then the place of the first word after them.
 */
static void
parse_options(const Subcommand *s, int argc, char **argv, Options *o)
{
	/* "+" ends the options at the first word that is none: the command's. */
	char		letters[2 * lengthof(options) + 2] = "+";
	char	   *end = letters + 1;
	struct option long_options[lengthof(options) + 1] = {0};
	int			found;

	/* Its messages begin with that, as ours do. */
	argv[0] = unconstify(char *, progname);
	for (int i = 0; i < lengthof(options); i++)
	{
		bool		has_value = options[i].kind < VALUE_YES;

		long_options[i].name = options[i].name;
		long_options[i].has_arg = has_value ? required_argument : no_argument;
		long_options[i].val = 256 + i;	/* no letter */
		if (options[i].letter != 0)
			end += sprintf(end, has_value ? "%c:" : "%c", options[i].letter);
	}
	while ((found = getopt_long(argc, argv, letters, long_options, NULL)) != -1)
	{
		const Option *option = options;

		if (found == '?')
			options_usage_error();
		while (option->letter != found && 256 + (option - options) != found)
			option++;
		if (strstr(option->subcommands, s->name) == NULL)
		{
			pg_log_error("%s %s does not have the option \"%s\"", progname,
						 s->name, argv[optind - 1]);
			options_usage_error();
		}
		set_option(o, option, optarg);
	}
}

/*
 * Return the name of a candidate that is given none.  In Kubernetes it is the
 * pod's, which has one candidate if that is process 1.  Elsewhere a restart may
 * be given a process ID of before, while the candidate of that time is still
 * known: hence four digits at random.
 */
static const char *
default_candidate(void)
{
	char		host[256];
	const char *pod = getenv("POD_NAME");
	uint16		number;

	if (pod == NULL || pod[0] == '\0')
		pod = getenv("HOSTNAME");
	if (getenv("KUBERNETES_SERVICE_HOST") != NULL && pod != NULL && pod[0] != '\0')
		return getpid() == 1 ? psprintf("%.*s", LONGEST_NAME, pod) :
			psprintf("%.150s-%d", pod, (int) getpid());
	if (gethostname(host, sizeof(host)) != 0)
		strlcpy(host, "localhost", sizeof(host));
	host[sizeof(host) - 1] = '\0';
	if (getentropy(&number, sizeof(number)) != 0)
		number = (uint16) now_us();
	return psprintf("%.150s-%d-%04x", host, (int) getpid(), number);
}

/*
 * Exit with an error, if something is wrong.
 */
static void
refuse(bool wrong, const char *message)
{
	if (!wrong)
		return;
	pg_log_error("%s", message);
	options_usage_error();
}

static void
check_period(const Options *o)
{
	bool		repeats = o->every >= 0;

	refuse(!repeats && (o->offset >= 0 || o->attempts != NULL),
		   "options --offset and --attempts need --every");
	refuse(repeats && (o->every < SEC || o->every % SEC != 0 || o->offset % SEC > 0),
		   "a period, and its offset, are whole seconds");
	refuse(repeats && o->offset >= o->every,
		   "option --offset has to be less than --every");
	refuse(repeats && o->session,
		   "options --every and --mode=session exclude each other");
	refuse(repeats && (o->hold >= 0 || o->skip || o->once || o->wait != NEVER),
		   "option --every excludes --hold, --skip, --once and --wait");
}

static void
check_check(const Options *o)
{
	const CheckOptions *c = &o->check;

	refuse(c->command == NULL &&
		   (c->every >= 0 || c->timeout >= 0 || o->failures != NULL),
		   "options of a check are given, but no check (--check)");
	refuse(c->every >= 0 && c->every < SHORTEST_CHECK,
		   "--check-every is too short: it is 10 ms at least");
	refuse(c->timeout >= 0 && c->timeout < SHORTEST_CHECK,
		   "--check-timeout is too short: it is 10 ms at least");
	refuse(c->timeout > (c->every < 0 ? CHECK_EVERY : c->every),
		   "--check-timeout may not be longer than --check-every");
}

/*
 * Report what is missing, too much or contradictory, and exit.
 */
static void
check_options(const Subcommand *s, const Options *o, int argc, char **argv)
{
	if (!s->takes_command && optind < argc)
	{
		pg_log_error("too many command-line arguments (first is \"%s\")",
					 argv[optind]);
		options_usage_error();
	}
	refuse(s->needs_election && o->election == NULL && o->group == NULL &&
		   o->html == NULL, "no election is named (-e)");
	refuse(!s->stands && o->candidate != NULL && o->election == NULL,
		   "option --candidate needs --election");
	refuse(s->takes_command && optind >= argc, "no command is given");
	refuse(s->needs_http && o->http.any.sa_family == 0,
		   "no address is given (--http)");
	refuse(o->skip && o->wait != NEVER,
		   "options --skip and --wait exclude each other");
	refuse(o->skip && o->forever,
		   "options --skip and --forever exclude each other");
	refuse(o->once && o->forever,
		   "options --once and --forever exclude each other");
	refuse(o->html != NULL && o->json,
		   "options --html and --json exclude each other");
	refuse(o->html != NULL && o->html[0] == '\0',
		   "the file of --html has no name");
	refuse(o->connect.session_pooler && !o->session,
		   "option --pooler needs --mode=session");
	check_period(o);
	refuse(o->group != NULL && o->election != NULL,
		   "options --election and --group exclude each other");
	refuse(o->group != NULL && (o->session || o->skip || o->every > 0),
		   "option --group excludes --mode=session, --skip and --every");
	check_check(o);
}

/*
 * Set what is not given about the check.
 */
static void
set_check_defaults(Options *o)
{
	if (o->check.every < 0)
		o->check.every = CHECK_EVERY;
	if (o->check.timeout < 0)
		o->check.timeout = Min(CHECK_TIMEOUT, o->check.every);
	o->check_failures = o->failures == NULL ? CHECK_FAILURES : atoi(o->failures);
}

/*
 * Is the portable edition to be believed, by the environment? A value that we
 * do not know is an error: it may be meant either way.
 */
static bool
portable_by_environment(void)
{
	static const char *const on[] = {"1", "on", "true", "yes"};
	static const char *const off[] = {"", "0", "off", "false", "no"};
	const char *value = getenv("PG_LEADER_PORTABLE");

	if (value == NULL)
		return false;
	for (int i = 0; i < lengthof(on); i++)
	{
		if (pg_strcasecmp(value, on[i]) == 0)
			return true;
	}
	for (int i = 0; i < lengthof(off); i++)
	{
		if (pg_strcasecmp(value, off[i]) == 0)
			return false;
	}
	pg_log_error("invalid value \"%s\" for variable PG_LEADER_PORTABLE",
				 text_show(value));
	pg_log_error_hint("It is \"on\" or \"off\".");
	exit(EXIT_USAGE);
}

/*
 * Read the command line of a subcommand, whose name is argv[0].
 */
void
options_read(const Subcommand *s, int argc, char **argv, Options *o)
{
	*o = (Options)
	{
		.wait = NEVER,.hold = -1,.grace = -1,.check =
		{
			NULL, -1, -1
		},
			.refusal_timeout = REFUSAL_TIMEOUT,
			.every = -1,.offset = -1
	};
	parse_options(s, argc, argv, o);
	o->connect.read_write = s->needs_primary;
	if (portable_by_environment())
		o->connect.portable = true;
	if (o->ask_password)
		o->connect.password = simple_prompt("Password: ", false);
	check_options(s, o, argc, argv);
	set_check_defaults(o);
	if (o->every > 0)
		o->forever = true;
	if (o->group != NULL)
		o->election = o->group;
	if (s->takes_command)
		o->command = argv + optind;
	if (s->stands && o->candidate == NULL)
		o->candidate = default_candidate();
}
