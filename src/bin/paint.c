/*-------------------------------------------------------------------------
 *
 * paint.c
 *		A terminal: its colours, its width.
 *
 * Invariant: colours alone mean nothing: whatever is coloured is a word that
 * says the same.  Where standard output is no terminal, or the user does not
 * want colours (NO_COLOR, TERM=dumb), nothing is written but the words.
 *
 *-------------------------------------------------------------------------
 */
#include "observer.h"

#include <sys/ioctl.h>
#include <unistd.h>

#define DEFAULT_COLUMNS		80
#define MOST_COLUMNS		1000

/* Colours that are readable on light terminals and on dark ones */
static const char *const codes[] = {
	[PAINT_PLAIN] = "",
	[PAINT_HEAD] = "\033[1m",
	[PAINT_QUIET] = "\033[2m",
	[PAINT_WELL] = "\033[32m",
	[PAINT_CARE] = "\033[33m",
	[PAINT_BAD] = "\033[1;31m"
};

static bool
is_wanted(void)
{
	const char *refused = getenv("NO_COLOR");
	const char *term = getenv("TERM");

	return isatty(STDOUT_FILENO) && (refused == NULL || refused[0] == '\0') &&
		term != NULL && term[0] != '\0' && strcmp(term, "dumb") != 0;
}

/*
 * Return what to write before a text that is to look so.
 */
const char *
paint_begin(Paint paint)
{
	static int	wanted = -1;

	if (wanted < 0)
		wanted = is_wanted();
	return wanted ? codes[paint] : "";
}

/*
 * Return what to write after it.
 */
const char *
paint_end(Paint paint)
{
	return paint_begin(paint)[0] == '\0' ? "" : "\033[0m";
}

/*
 * Return how the state of an election is to look.
 */
Paint
paint_of_state(const char *state, bool unused, bool troubled)
{
	if (unused || strcmp(state, "dropped") == 0)
		return PAINT_QUIET;
	if (troubled)
		return PAINT_BAD;
	return strcmp(state, "led") == 0 ? PAINT_WELL : PAINT_CARE;
}

/*
 * Return how many columns a line on standard output may have.
 */
int
terminal_columns(void)
{
	struct winsize size;
	const char *columns = getenv("COLUMNS");

	if (columns != NULL && atoi(columns) > 0)
		return Min(atoi(columns), MOST_COLUMNS);
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
		return Min(size.ws_col, MOST_COLUMNS);
	return DEFAULT_COLUMNS;
}
