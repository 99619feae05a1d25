/*-------------------------------------------------------------------------
 *
 * text.c
 *		What the server says, made fit to be shown.
 *
 * Invariant: a name is whatever somebody has chosen.  No character that a
 * terminal obeys is shown as it is, nor one that ends a line or a field, that
 * cannot be seen, or that turns the direction of writing: a candidate can neither
 * write on the screens of others by its name, nor look like another candidate.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include <wchar.h>

#include "libpq-fe.h"
#include "mb/pg_wchar.h"

/* What decode() says where there is no character of Unicode to name */
#define UNKNOWN			((pg_wchar) 0xFFFFFFFE)
#define NO_CHARACTER	((pg_wchar) 0xFFFFFFFF)

static int	encoding = PG_UTF8;
static bool is_locales = false; /* the locale has it, too */

/*
 * Characters of Unicode that are not seen, or that change how others are:
 * controls, what is to be ignored by default (zero-width characters, fillers,
 * variation selectors, tags), directions of writing, ends of lines.
 */
static const struct
{
	pg_wchar	first;
	pg_wchar	last;
}			hidden[] = {
	{0x00, 0x1F}, {0x7F, 0x9F}, {0xAD, 0xAD}, {0x034F, 0x034F},
	{0x061C, 0x061C}, {0x115F, 0x1160}, {0x17B4, 0x17B5}, {0x180B, 0x180F},
	{0x200B, 0x200F}, {0x2028, 0x202E}, {0x2060, 0x206F}, {0x3164, 0x3164},
	{0xFE00, 0xFE0F}, {0xFEFF, 0xFEFF}, {0xFFA0, 0xFFA0}, {0xFFF0, 0xFFFB},
	{0x13430, 0x1345F}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A},
	{0xE0000, 0xE0FFF}
};

/*
 * Set what texts are encoded in from now on.
 */
void
text_set_encoding(int client_encoding)
{
	/* Without any, UTF-8 is what a terminal takes bytes for. */
	encoding = client_encoding == PG_SQL_ASCII ? PG_UTF8 : client_encoding;
	is_locales = pg_get_encoding_from_locale(NULL, false) == encoding;
}

/*
 * The character of Unicode that a text begins with, and its length in bytes.
 */
static pg_wchar
decode(const char *text, int *length)
{
	wchar_t		wide;
	mbstate_t	state = {0};

	*length = Max(PQmblenBounded(text, encoding), 1);
	if (encoding == PG_UTF8)
	{
		if (pg_utf8_islegal((const unsigned char *) text, *length))
			return utf8_to_unicode((const unsigned char *) text);
		*length = 1;
		return NO_CHARACTER;
	}
	/* With glibc that is Unicode, in every locale. */
	if (is_locales && mbrtowc(&wide, text, *length, &state) == (size_t) *length)
		return wide;
	for (int i = 0; i < *length; i++)
	{
		/* What is no character must not hide one. */
		if ((unsigned char) text[i] < ' ' || text[i] == '\x7F' ||
			(*length == 1 && IS_HIGHBIT_SET(text[i]) &&
			 (unsigned char) text[i] < 0xA0))
		{
			*length = 1;
			return NO_CHARACTER;
		}
	}
	return UNKNOWN;
}

static bool
is_hidden(pg_wchar c)
{
	for (int i = 0; i < lengthof(hidden); i++)
	{
		if (c >= hidden[i].first && c <= hidden[i].last)
			return true;
	}
	return c == NO_CHARACTER;
}

/*
 * The length of a character, and how many columns of a terminal it takes: -1
 * if it is not one that can be shown.
 */
static int
measure(const char *text, int *width)
{
	int			length;

	if (is_hidden(decode(text, &length)))
		*width = -1;
	else
		*width = Max(PQdsplen(text, encoding), 0);
	return length;
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
text_printable(const char *text)
{
	return escape(text, false);
}

/*
 * The same for messages, which may have several lines.
 */
char *
text_printable_lines(const char *text)
{
	return escape(text, true);
}

/*
 * How many columns of a terminal a printable text takes.
 */
int
text_width(const char *text)
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
text_prefix_length(const char *text, int columns)
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
 * A text as a string of JSON, written as the server writes them in
 * notifications, in memory that is the caller's.
 */
char *
text_json(const char *text)
{
	/* A byte becomes six at most. */
	char	   *json = pg_malloc(6 * strlen(text) + 3);
	char	   *end = json;

	*end++ = '"';
	while (*text != '\0')
	{
		static const char escaped[] = "\b\f\n\r\t\"\\";
		static const char letters[] = "bfnrt\"\\";
		const char *found = strchr(escaped, *text);
		int			length = Max(PQmblenBounded(text, encoding), 1);

		if (found != NULL)
			end += sprintf(end, "\\%c", letters[found - escaped]);
		else if ((unsigned char) *text < ' ')
			end += sprintf(end, "\\u%04x", *text);
		else
		{
			memcpy(end, text, length);
			end += length;
		}
		text += length;
	}
	*end++ = '"';
	*end = '\0';
	return json;
}

/*
 * Print JSON, a line.  Its strings have no control characters of ASCII, but may
 * have others that must not be shown.
 */
void
text_print_json(const char *json)
{
	while (*json != '\0')
	{
		int			length;
		pg_wchar	c = decode(json, &length);

		if (c < ' ')
			putchar(' ');
		else if (c == NO_CHARACTER)
			fputs("\\ufffd", stdout);
		else if (!is_hidden(c))
			fwrite(json, 1, length, stdout);
		else if (c < 0x10000)
			printf("\\u%04x", c);
		else
			printf("\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10),
				   0xDC00 + ((c - 0x10000) & 0x3FF));
		json += length;
	}
	putchar('\n');
}
