/*-------------------------------------------------------------------------
 *
 * main.c
 *		The command-line program of the extension leader_election: chooses
 *		the subcommand, and sets up what all of them need.
 *
 * Invariant: what is for the user goes to the user: standard input, output and
 * error are open before anything else is opened.
 *
 *-------------------------------------------------------------------------
 */
#include "guardian.h"
#include "observer.h"
#include "subcommands.h"

#include <fcntl.h>
#include <locale.h>
#include <time.h>
#include <unistd.h>

static const Subcommand subcommands[] = {
	{
		.name = "run",.execute = run_run,.needs_primary = true,
		.needs_election = true,.takes_command = true,.stands = true
	},
	{
		.name = "stand",.execute = sidecar_run,.needs_primary = true,
		.needs_election = true,.stands = true,.needs_http = true
	},
	{.name = "status",.execute = status_show},
	{.name = "diagnose",.execute = diagnose_show},
	{.name = "watch",.execute = watch_run},
	{.name = "history",.execute = timeline_show,.needs_election = true},
	{
		.name = "yield",.execute = yield_run,.needs_primary = true,
		.needs_election = true
	}
};

/* --- what run -v prints before each message */

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
	locus = psprintf(" election \"%s\"", text_show(election));
	pg_logging_set_level(PG_LOG_INFO);
	pg_logging_set_pre_callback(print_time);
	pg_logging_set_locus_callback(name_locus);
}

/* --- the start of the program */

/*
 * Answer --help and --version, and exit.  They are the first word, or the
 * first after the subcommand.  Further on, they may belong to the command of
 * run.
 */
static void
answer_questions(const char *word, const char *subcommand)
{
	if (word == NULL)
		return;
	if (strcmp(word, "--help") == 0 || strcmp(word, "-?") == 0)
	{
		help_show(subcommand);
		exit(EXIT_SUCCESS);
	}
	if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0)
	{
		printf("pg_leader (leader_election) " PG_LEADER_VERSION "\n");
		exit(EXIT_SUCCESS);
	}
}

/*
 * Open each of standard input, output and error that is closed.  Otherwise the
 * connection's socket could get the number of standard output, and what is
 * printed for the user would go to the server.
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

static int
run_subcommand(const Subcommand *s, int argc, char **argv)
{
	Options		o;
	int			code;

	if (!s->stands)
		signals_end_process();
	options_read(s, argc, argv, &o);
	if (o.verbose)
		be_verbose(o.election);
	code = s->execute(&o);
	event_flush();
	return code;
}

int
main(int argc, char **argv)
{
	pg_logging_init(argv[0]);
	pg_logging_set_level(PG_LOG_WARNING);
	progname = get_progname(argv[0]);
	(void) setlocale(LC_ALL, "");
	/* Numbers are read and written as PostgreSQL does, with a period. */
	(void) setlocale(LC_NUMERIC, "C");
	open_standard_files();

	if (argc < 2)
	{
		pg_log_error("no subcommand is given");
		options_usage_error();
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
	options_usage_error();
}
