/*-------------------------------------------------------------------------
 *
 * text.c
 *		Makes what the server says fit for a terminal, and for HTML.
 *
 * Invariant: a candidate can choose any name, but with its name it can neither
 * write on the screens of others nor look like another candidate.  So this
 * file escapes characters that a terminal obeys, that end a line or a field,
 * that cannot be seen, or that turn the direction of writing.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include <wchar.h>

#include "libpq-fe.h"
#include "mb/pg_wchar.h"

/* What decode() returns instead of a character of Unicode */
#define UNKNOWN			((pg_wchar) 0xFFFFFFFE) /* a character, but which? */
#define NO_CHARACTER	((pg_wchar) 0xFFFFFFFF) /* not valid, or a control */

static int	encoding = PG_UTF8; /* of texts from the server */
static bool is_locales = false; /* the locale has the same one */

/*
 * Characters of Unicode that cannot be seen, or that change how others look:
 * controls, those to be ignored by default (zero-width characters, fillers,
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

/* Characters of Unicode that are blank */
static const struct
{
	pg_wchar	first;
	pg_wchar	last;
}			blank[] = {
	{' ', ' '}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x200A},
	{0x202F, 0x202F}, {0x205F, 0x205F}, {0x2800, 0x2800}, {0x3000, 0x3000}
};

/*
 * Set the encoding of all texts from now on.
 */
void
text_set_encoding(int client_encoding)
{
	/* If the server does not know, assume what a terminal assumes. */
	encoding = client_encoding == PG_SQL_ASCII ? PG_UTF8 : client_encoding;
	is_locales = pg_get_encoding_from_locale(NULL, false) == encoding;
}

/*
 * Return whether a text begins with a character of UTF-8 that has so many
 * bytes.  It has more if the end of the text cuts it off.
 */
static bool
is_utf8(const char *text, int length)
{
	return length == PQmblen(text, encoding) &&
		pg_utf8_islegal((const unsigned char *) text, length);
}

/*
 * Return the character that a text begins with, and its length in bytes.
 */
static pg_wchar
decode(const char *text, int *length)
{
	wchar_t		wide;
	mbstate_t	state = {0};

	*length = Max(PQmblenBounded(text, encoding), 1);
	if (encoding == PG_UTF8)
	{
		if (is_utf8(text, *length))
			return utf8_to_unicode((const unsigned char *) text);
		*length = 1;
		return NO_CHARACTER;
	}
	/* In glibc, wchar_t is Unicode in every locale. */
	if (is_locales && mbrtowc(&wide, text, *length, &state) == (size_t) *length)
		return wide;
	for (int i = 0; i < *length; i++)
	{
		/*
		 * A control within the bytes, or what is a part of one in UTF-8.  A
		 * terminal with another encoding would obey the control.
		 */
		if ((unsigned char) text[i] < ' ' || text[i] == '\x7F' ||
			(IS_HIGHBIT_SET(text[i]) && (unsigned char) text[i] < 0xA0))
		{
			*length = 1;
			return NO_CHARACTER;
		}
	}

	/* Each encoding has ASCII. */
	if (*length == 1 && !IS_HIGHBIT_SET(text[0]))
		return (unsigned char) text[0];
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
 * Return the length of a character in bytes, and how many columns of a
 * terminal it takes; -1: it must not be shown.
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

/*
 * Return a text with \n, \r, \t and \xNN for what must not be shown.  If
 * lines, keep ends of lines and tabs.
 */
static char *
escape(const char *text, bool lines)
{
	/* A byte becomes four at most: \xNN. */
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
 * Make a name or another text of one line printable.  The caller frees it.
 */
char *
text_printable(const char *text)
{
	return escape(text, false);
}

/*
 * Replace a text by a copy of another one.
 */
void
text_set(char **text, const char *value)
{
	pg_free(*text);
	*text = pg_strdup(value);
}

/*
 * Take over a text, and return it.  It is freed by the sixteenth call after
 * this one: it is for the arguments of a message, and not for what has to
 * outlive a wait; and for the main thread only.
 */
char *
text_lend(char *text)
{
	static char *lent[16];
	static int	next = 0;

	pg_free(lent[next]);
	lent[next] = text;
	next = (next + 1) % lengthof(lent);
	return text;
}

/*
 * The same as text_printable(), lent.
 */
char *
text_show(const char *text)
{
	return text_lend(text_printable(text));
}

static bool
is_blank(pg_wchar c)
{
	for (int i = 0; i < lengthof(blank); i++)
	{
		if (c >= blank[i].first && c <= blank[i].last)
			return true;
	}
	return false;
}

/*
 * A printable text that is to be read on its own: put it in quotes if it begins
 * or ends with a blank, which could not be seen.  Take over the text, and return
 * one to be freed by the caller.
 */
char *
text_quote_blank(char *shown)
{
	pg_wchar	first = NO_CHARACTER;
	pg_wchar	last = NO_CHARACTER;
	int			length;
	char	   *quoted;

	for (const char *c = shown; *c != '\0'; c += length)
	{
		last = decode(c, &length);
		if (c == shown)
			first = last;
	}
	if (!is_blank(first) && !is_blank(last))
		return shown;
	quoted = psprintf("\"%s\"", shown);
	pg_free(shown);
	return quoted;
}

/*
 * Make a message, which may have several lines, printable.  The caller frees
 * it.
 */
char *
text_printable_lines(const char *text)
{
	return escape(text, true);
}

/*
 * Return how many bytes of a printable text fit into so many columns, and how
 * many columns those take.
 */
static int
prefix(const char *text, int columns, int *taken)
{
	const char *end = text;

	*taken = 0;
	while (*end != '\0')
	{
		int			width;
		int			length = measure(end, &width);

		width = Max(width, 0);
		if (width > columns - *taken)
			break;
		*taken += width;
		end += length;
	}
	return end - text;
}

/*
 * Return how many columns of a terminal a printable text takes.
 */
int
text_width(const char *text)
{
	int			taken;

	(void) prefix(text, PG_INT32_MAX, &taken);
	return taken;
}

/*
 * Return a printable text, cut or filled up to so many columns, lent.
 */
char *
text_fit(const char *text, int columns)
{
	int			taken;
	int			length = prefix(text, columns, &taken);

	return text_lend(psprintf("%.*s%*s", length, text, columns - taken, ""));
}

/*
 * Return a text as a string of JSON, to be freed by the caller.  It has to be
 * what the server writes into notifications, byte by byte, since prefixes of
 * payloads are compared with it.
 */
char *
text_json(const char *text)
{
	/* A byte becomes six at most: \uNNNN. */
	char	   *json = pg_malloc(6 * strlen(text) + 3);
	char	   *end = json;

	*end++ = '"';
	while (*text != '\0')
	{
		static const char escaped[] = "\b\f\n\r\t\"\\";
		static const char letters[] = "bfnrt\"\\";
		const char *found = strchr(escaped, *text);
		int			length = Max(PQmblenBounded(text, encoding), 1);

		/* A quote after the first byte of a character is no part of it. */
		if (encoding == PG_UTF8 && !is_utf8(text, length))
			length = 1;
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
 * Return a printable text as HTML, to be freed by the caller.  It is ASCII, so
 * that it means the same in every encoding: other characters are written by
 * their numbers, or as \xNN if these are not known.
 */
char *
text_html(const char *printable)
{
	/* A byte becomes ten at most: &#x10FFFF; is one of four bytes. */
	char	   *html = pg_malloc(10 * strlen(printable) + 1);
	char	   *end = html;

	while (*printable != '\0')
	{
		int			length;
		pg_wchar	c = decode(printable, &length);

		if (c == UNKNOWN || c == NO_CHARACTER)
		{
			for (int i = 0; i < length; i++)
				end += sprintf(end, "\\x%02X", (unsigned char) printable[i]);
		}
		else if (c >= 0x7F || strchr("<>&\"'", (char) c) != NULL)
			end += sprintf(end, "&#x%X;", c);
		else
			*end++ = (char) c;
		printable += length;
	}
	*end = '\0';
	return html;
}

/*
 * Print JSON as one line.  The server has escaped the control characters of
 * ASCII in its strings.  Escape the other characters that must not be shown.
 */
void
text_print_json(const char *json)
{
	while (*json != '\0')
	{
		int			length;
		pg_wchar	c = decode(json, &length);

		if (c < ' ')
			putchar(' ');		/* between values, not in a string */
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
