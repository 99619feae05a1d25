/*-------------------------------------------------------------------------
 *
 * screen.c
 *		What `watch` shows on a terminal: a line for each election, with the
 *		newest that is known of it, drawn anew when something changes.
 *
 * Invariants:
 *
 * - However the program ends or is stopped, short of SIGKILL and SIGSTOP, the
 *	 terminal is as it was, and the last picture stays on it.  So signals are
 *	 read from a descriptor, never handled in the middle of a picture.
 *
 * - A picture is never higher than the terminal nor wider than it.  Otherwise
 *	 lines would wrap or scroll, and the cursor would not find back to its top.
 *
 * There is one screen, which atexit() has to find: hence the static variables.
 *
 *-------------------------------------------------------------------------
 */
#include "watch.h"

#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "pqexpbuffer.h"

#define MOST_LINES		1000
#define MOST_COLUMNS	1000
#define GAP				2		/* columns between two fields */

#define HIDE_CURSOR		"\033[?25l"
#define SHOW_CURSOR		"\033[?25h"
#define UP				"\033[%dA"
#define TOP				"\033[H"
#define CLEAR_LINE		"\033[K"
#define CLEAR_BELOW		"\033[J"

/* The state of an election that is no more, and why its last term has ended */
#define DROPPED			"dropped"

/* What is shown of an election */
enum
{
	FIELD_ELECTION,
	FIELD_STATE,
	FIELD_LEADER,
	FIELD_TERM,
	FIELD_SINCE,
	FIELD_REMAINING,
	FIELD_WAITING_FOR,
	FIELD_BEFORE,
	FIELDS
};

static char *const heads[FIELDS] = {
	"Election", "State", "Leader", "Term", "Since", "Remaining", "Waiting for",
	"Before"
};

typedef struct Line
{
	char	   *name;			/* of the election, as the server says it */
	char	   *fields[FIELDS];
	int64		changed;		/* how many events came before the newest one */
	bool		unused;
	bool		troubled;		/* an operator has to act */
	bool		shown;
	bool		asked;			/* about, what is so just now; no answer yet */
} Line;

static Connection *connection;
static Watched lines;
static int64 nevents;
static int	drawn;				/* height of the picture, above the cursor */
static bool at_top;				/* the next picture begins at the top */
static bool ours;				/* the terminal is set as we want it */
static struct termios saved;
static sigset_t signals;
static int	signal_fd;
static Watcher watcher;

/* --- the terminal */

/*
 * May we draw? A job in the background must not: it would be stopped.
 */
bool
screen_is_possible(void)
{
	const char *term = getenv("TERM");

	return isatty(STDOUT_FILENO) && term != NULL && term[0] != '\0' &&
		strcmp(term, "dumb") != 0 && tcgetpgrp(STDOUT_FILENO) == getpgrp();
}

/*
 * What is typed would move the cursor: do not show it.
 */
static void
take_terminal(void)
{
	struct termios quiet;

	if (ours || tcgetattr(STDOUT_FILENO, &saved) != 0)
		return;
	quiet = saved;
	quiet.c_lflag &= ~(ECHO | ECHONL);
	(void) tcsetattr(STDOUT_FILENO, TCSADRAIN, &quiet);
	fputs(HIDE_CURSOR, stdout);
	ours = true;
}

static void
give_terminal_back(void)
{
	if (!ours)
		return;
	fputs(SHOW_CURSOR, stdout);
	(void) fflush(stdout);
	(void) tcsetattr(STDOUT_FILENO, TCSADRAIN, &saved);
	ours = false;
}

static void
get_size(int *rows, int *columns)
{
	struct winsize size = {0};

	(void) ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
	*rows = size.ws_row == 0 ? 24 : Min(size.ws_row, MOST_LINES);
	*columns = size.ws_col == 0 ? 80 : Min(size.ws_col, MOST_COLUMNS);
}

/* --- signals */

/*
 * End as the signal would have ended us.
 */
static void
end(int signo)
{
	give_terminal_back();
	(void) signal(signo, SIG_DFL);
	(void) sigprocmask(SIG_UNBLOCK, &signals, NULL);
	(void) raise(signo);
	exit(EXIT_SIGNAL(signo));
}

static bool
on_event(void *arg)
{
	int			signo;

	while ((signo = signals_next(signal_fd)) != 0)
	{
		/* Stop as asked.  When we go on, SIGCONT says so. */
		if (signo == SIGTSTP)
		{
			give_terminal_back();
			(void) raise(SIGSTOP);
		}
		else if (signo == SIGWINCH)
			at_top = true;
		else if (signo == SIGCONT)
			drawn = 0;			/* others have written below the picture */
		else
			end(signo);
	}
	take_terminal();
	screen_draw();
	return false;
}

/*
 * Prepare to draw, once there is a connection.
 */
void
screen_begin(Connection *c)
{
	static const int more[] = {SIGTSTP, SIGCONT, SIGWINCH};

	connection = c;
	signals_block(&signals, more, lengthof(more));
	/* The kernel collects them: see signals_end_process(). */
	(void) signal(SIGCHLD, SIG_IGN);
	signal_fd = signals_check(signals_open(&signals));
	watcher = (Watcher) {{&signal_fd}, on_event, NULL};
	c->watcher = &watcher;
	(void) atexit(give_terminal_back);
	take_terminal();
}

/* --- what is shown */

static void
set_field(Line *line, int field, const char *text)
{
	pg_free(line->fields[field]);
	line->fields[field] = text_printable(text);
}

/*
 * Return the line of an election.
 */
static Line *
line_of(const char *name)
{
	Line	   *line = watched_get(&lines, name, sizeof(Line));

	for (int i = 0; i < FIELDS && line->fields[i] == NULL; i++)
		set_field(line, i, i == FIELD_ELECTION ? name : "");
	return line;
}

/*
 * In what state is the election after this event?
 */
static const char *
state_after(const PGresult *events, int row)
{
	if (strcmp(PQgetvalue(events, row, EVENT_KIND), "yield_requested") == 0)
		return "yielding";
	if (!PQgetisnull(events, row, EVENT_LEADER))
		return "led";
	return strcmp(PQgetvalue(events, row, EVENT_REASON), DROPPED) == 0 ?
		DROPPED : "vacant";
}

/*
 * Remember the newest event of an election.  (watch does not look for changed
 * metadata where it draws.)
 */
void
screen_note(const PGresult *events, int row)
{
	Line	   *line = line_of(PQgetvalue(events, row, EVENT_ELECTION));
	const char *previous = PQgetvalue(events, row, EVENT_PREVIOUS);
	char	   *before = NULL;

	line->changed = nevents++;
	line->shown = true;			/* as far as there is room: choose_lines() */
	set_field(line, FIELD_STATE, state_after(events, row));
	/* A request to yield changes nothing else. */
	if (strcmp(PQgetvalue(events, row, EVENT_KIND), "yield_requested") == 0)
		return;
	set_field(line, FIELD_LEADER, PQgetvalue(events, row, EVENT_LEADER));
	set_field(line, FIELD_TERM, PQgetisnull(events, row, EVENT_LEADER) ? "" :
			  PQgetvalue(events, row, EVENT_TERM));
	set_field(line, FIELD_SINCE, PQgetvalue(events, row, EVENT_SINCE));
	set_field(line, FIELD_REMAINING, "");
	set_field(line, FIELD_WAITING_FOR, "");
	line->unused = line->troubled = false;
	if (!PQgetisnull(events, row, EVENT_PREVIOUS))
		before = psprintf("%s, %s", PQgetvalue(events, row, EVENT_REASON), previous);
	set_field(line, FIELD_BEFORE, before == NULL ? "" : before);
	pg_free(before);
}

/*
 * The leader of an election is not asked to yield any more.
 */
void
screen_end_request(const char *election)
{
	Line	   *line = line_of(election);

	if (strcmp(line->fields[FIELD_STATE], "yielding") == 0)
	{
		line->changed = nevents++;
		set_field(line, FIELD_STATE, "led");
	}
}

/*
 * Is a line of this election in the picture, or likely to be in the next one?
 * Then what is so of it just now is asked.  (Until there is an answer, a change of
 * the terminal's size may bring other lines into the picture.)
 */
bool
screen_asks(const char *election)
{
	Line	   *line = watched_get(&lines, election, 0);

	if (line == NULL)
		return false;
	line->asked = line->shown;
	return line->asked;
}

/*
 * An election was dropped that nobody led, or was made anew after it was dropped:
 * no event tells of that.  (The drop of an election that was led ends a term,
 * which an event tells.)
 */
static void
note_state(Line *line, const char *state)
{
	line->changed = nevents++;
	set_field(line, FIELD_STATE, state);
	for (int i = FIELD_LEADER; i < FIELDS; i++)
		set_field(line, i, "");
	line->unused = line->troubled = false;
}

/*
 * Note what is so just now of the elections that were asked about.  Those of
 * which there is nothing were dropped.
 */
void
screen_note_now(const PGresult *now)
{
	for (int row = 0; row < PQntuples(now); row++)
	{
		Line	   *line = watched_get(&lines, PQgetvalue(now, row, NOW_ELECTION), 0);
		int64		remaining = duration_from_seconds(PQgetvalue(now, row, NOW_REMAINING));

		if (line == NULL)
			continue;
		line->asked = false;
		if (strcmp(line->fields[FIELD_STATE], DROPPED) == 0 &&
			PQgetisnull(now, row, NOW_REMAINING))
			note_state(line, "vacant");
		set_field(line, FIELD_REMAINING, PQgetisnull(now, row, NOW_REMAINING) ? "" :
				  duration_format(remaining));
		set_field(line, FIELD_WAITING_FOR, PQgetvalue(now, row, NOW_WAITING_FOR));
		line->unused = PQgetvalue(now, row, NOW_UNUSED)[0] == 't';
		line->troubled = PQgetvalue(now, row, NOW_TROUBLED)[0] == 't';
	}
	for (int i = 0; i < lines.n; i++)
	{
		Line	   *line = lines.all[i];

		if (line->asked && strcmp(line->fields[FIELD_STATE], DROPPED) != 0)
			note_state(line, DROPPED);
		line->asked = false;
	}
}

/*
 * There is no connection: how long leases last yet is not known.
 */
void
screen_forget_now(void)
{
	for (int i = 0; i < lines.n; i++)
		set_field(lines.all[i], FIELD_REMAINING, "");
}

/* --- a picture */

/*
 * Choose which lines are shown, if not all can be: those that changed last.
 */
static void
choose_lines(int room)
{
	for (int i = 0; i < lines.n; i++)
	{
		Line	   *line = lines.all[i];
		int			newer = 0;

		for (int j = 0; lines.n > room && j < lines.n; j++)
			newer += ((Line *) lines.all[j])->changed > line->changed;
		line->shown = newer < room;
	}
}

/*
 * Add one line of the picture, cut at the edge of the terminal.  The last
 * column stays empty: a terminal may put the cursor elsewhere after that.
 */
static void
add_line(PQExpBuffer picture, const char *text, int columns)
{
	char	   *line = text_fit(text, columns - 1);
	int			length = strlen(line);

	while (length > 0 && line[length - 1] == ' ')
		length--;
	appendPQExpBuffer(picture, "%.*s" CLEAR_LINE "\n", length, line);
	drawn++;
}

/*
 * Add the line of an election, or the head (NULL), cut like any other.  Fields
 * without a width are left out.
 */
static void
add_fields(PQExpBuffer picture, const Line *line, const int *widths, int columns)
{
	int			room = columns - 1;

	for (int i = 0; i < FIELDS; i++)
	{
		const char *field = line == NULL ? heads[i] : line->fields[i];
		Paint		paint = line == NULL ? PAINT_HEAD : i != FIELD_STATE ? PAINT_PLAIN :
			paint_of_state(field, line->unused, line->troubled);
		int			width = Min(widths[i], room);

		if (width == 0)
			continue;
		appendPQExpBuffer(picture, "%s%s%s", paint_begin(paint),
						  text_fit(field, width), paint_end(paint));
		room -= width;
		width = Min(GAP, room);
		appendPQExpBuffer(picture, "%*s", width, "");
		room -= width;
	}
	appendPQExpBufferStr(picture, CLEAR_LINE "\n");
	drawn++;
}

/*
 * Set the width of each column: 0 if no line has anything there.
 */
static void
set_widths(int *widths, int columns)
{
	for (int i = 0; i < FIELDS; i++)
	{
		int			head = strlen(heads[i]);

		widths[i] = 0;
		for (int j = 0; j < lines.n; j++)
		{
			const Line *line = lines.all[j];

			if (line->shown)
				widths[i] = Max(widths[i], text_width(line->fields[i]));
		}
		/* A long name must not push the others off the terminal. */
		if (widths[i] > 0 || i <= FIELD_SINCE)
			widths[i] = Min(Max(widths[i], head), Max(columns / 3, head));
	}
}

static void
add_lines(PQExpBuffer picture, int rows, int columns)
{
	int			widths[FIELDS];
	/* The head, a line below (or two: see screen_draw), that of the cursor */
	int			room = Max(rows - (connection->conn == NULL ? 4 : 3), 1);
	int			hidden_lines = 0;

	choose_lines(room);
	set_widths(widths, columns);
	add_fields(picture, NULL, widths, columns);
	for (int i = 0; i < lines.n; i++)
	{
		const Line *line = lines.all[i];

		if (line->shown)
			add_fields(picture, line, widths, columns);
		else
			hidden_lines++;
	}
	if (hidden_lines > 0 && drawn < rows - 1)
		add_line(picture, text_lend(psprintf("and %d more, which changed earlier",
											 hidden_lines)), columns);
}

/*
 * Draw the picture over the last one; after a change of the terminal's size,
 * which may have moved that, at the top.
 */
void
screen_draw(void)
{
	PQExpBufferData picture;
	int			rows;
	int			columns;

	if (connection == NULL || !ours)
		return;
	get_size(&rows, &columns);
	initPQExpBuffer(&picture);
	if (at_top)
		appendPQExpBufferStr(&picture, TOP);
	else if (drawn > 0)
		appendPQExpBuffer(&picture, UP "\r", drawn);
	at_top = false;
	drawn = 0;
	if (rows >= 3)
		add_lines(&picture, rows, columns);
	if (connection->conn == NULL && connection->error != NULL && drawn < rows - 1)
	{
		char	   *first = pnstrdup(connection->error,
									 strcspn(connection->error, "\n"));

		/* A tab has no width. */
		add_line(&picture, text_lend(psprintf("no connection: %s",
											  text_show(text_lend(first)))),
				 columns);
	}
	appendPQExpBufferStr(&picture, CLEAR_BELOW);
	if (PQExpBufferDataBroken(picture))
		pg_fatal("out of memory");
	fputs(picture.data, stdout);
	termPQExpBuffer(&picture);
	event_flush();
}
