/*-------------------------------------------------------------------------
 *
 * text.c
 *		What the server says, made fit to be shown.
 *
 * Invariant: a name is whatever somebody has chosen.  No character that a
 * terminal obeys is shown as it is, nor one that ends a line or a field: whoever
 * stands for election does not write on the screens of others.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include "mb/pg_wchar.h"

static int	encoding = PG_UTF8;

/*
 * Set what texts are encoded in from now on.
 */
void
text_encoding(int client_encoding)
{
	/* Without any, UTF-8 is what a terminal takes bytes for. */
	encoding = client_encoding == PG_SQL_ASCII ? PG_UTF8 : client_encoding;
}

/*
 * The length of a character, and how many columns of a terminal it takes: -1
 * if it is not one that can be shown.
 */
static int
measure(const char *text, int *width)
{
	int			length = PQmblenBounded(text, encoding);

	*width = PQdsplen(text, encoding);
	for (int i = 1; i < length; i++)
	{
		/* What is no character must not hide one. */
		if ((unsigned char) text[i] < ' ' || text[i] == '\x7F')
			*width = -1;
	}
	return *width < 0 ? 1 : Max(length, 1);
}

static char *
escape(const char *text, bool lines)
{
	/* A byte becomes four at most. */
	char	   *shown = pg_malloc(4 * strlen(text) + 1);
	char	   *end = shown;

	while (*text != '\0')
	{
		int			width;
		int			length = measure(text, &width);

		if (width < 0 && (*text == '\n' || *text == '\t') && lines)
			*end++ = *text;
		else if (width < 0 && strchr("\n\r\t", *text) != NULL)
			end += sprintf(end, "\\%c", *text == '\n' ? 'n' : *text == '\r' ? 'r' : 't');
		else if (width < 0)
		{
			/* All of a control character of more than one byte */
			length = Max(PQmblenBounded(text, encoding), 1);
			for (int i = 0; i < length; i++)
				end += sprintf(end, "\\x%02X", (unsigned char) text[i]);
		}
		else
		{
			memcpy(end, text, length);
			end += length;
		}
		text += length;
	}
	*end = '\0';
	return shown;
}

/*
 * A text with control characters as \n, \t, \xNN, in memory that is the
 * caller's.
 */
char *
printable(const char *text)
{
	return escape(text, false);
}

/*
 * The same for messages, which may have several lines.
 */
char *
printable_lines(const char *text)
{
	return escape(text, true);
}

/*
 * How many columns of a terminal a printable text takes.
 */
int
display_width(const char *text)
{
	int			sum = 0;

	while (*text != '\0')
	{
		int			width;

		text += measure(text, &width);
		sum += Max(width, 0);
	}
	return sum;
}

/*
 * How much of a printable text fits into so many columns, in bytes.
 */
int
prefix_length(const char *text, int columns)
{
	const char *end = text;
	int			sum = 0;

	while (*end != '\0')
	{
		int			width;
		int			length = measure(end, &width);

		sum += Max(width, 0);
		if (sum > columns)
			break;
		end += length;
	}
	return end - text;
}

/*
 * Print JSON of the server, a line.  It escapes the control characters of
 * ASCII, but not U+007F to U+009F, some of which terminals obey, too.
 */
void
print_json(const char *json)
{
	for (const unsigned char *c = (const unsigned char *) json; *c != '\0'; c++)
	{
		if (*c == 0x7F)
			fputs("\\u007f", stdout);
		else if (encoding == PG_UTF8 && c[0] == 0xC2 && c[1] >= 0x80 && c[1] < 0xA0)
			printf("\\u%04x", *++c);
		else
			putchar(*c);
	}
	putchar('\n');
}
