/*-------------------------------------------------------------------------
 *
 * duration.c
 *		Lengths of time as text.
 *
 * Invariant: a length is not negative, nor longer than LONGEST_TIME, whatever
 * the user or the server writes: sums of such lengths and moments fit.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

static const struct
{
	const char *name;
	int64		length;
}			units[] = {
	{"us", 1}, {"ms", MSEC}, {"s", SEC}, {"min", 60 * SEC},
	{"h", 3600 * SEC}, {"d", DAY}
};

/*
 * Read a number and a unit, as the user writes them.  Return false if the text
 * is something else.
 */
bool
duration_parse(const char *text, int64 *length)
{
	size_t		digits = strspn(text, "0123456789.");
	char	   *end;
	double		number;
	int64		unit = 0;

	/* strtod() would also take "inf", "nan", signs and hexadecimal numbers. */
	if (digits == 0)
		return false;
	errno = 0;
	number = strtod(text, &end);
	if (errno != 0 || end != text + digits)
		return false;
	while (*end == ' ')
		end++;
	for (int i = 0; i < lengthof(units); i++)
	{
		if (strcmp(end, units[i].name) == 0)
			unit = units[i].length;
	}
	if (unit == 0 || number * unit > LONGEST_TIME)
		return false;
	*length = (int64) (number * unit + 0.5);
	return true;
}

/*
 * Write a length in the greatest unit of which it is a whole number.  A length
 * of at least two units is written in that unit with one decimal.  The text is
 * lent (see text_lend()).
 */
char *
duration_format(int64 length)
{
	int			i = lengthof(units) - 1;

	while (i > 1 && (length == 0 || length % units[i].length != 0) &&
		   length < 2 * units[i].length)
		i--;
	if (length % units[i].length == 0 && length != 0)
		return text_lend(psprintf("%lld %s",
								  (long long) (length / units[i].length),
								  units[i].name));
	return text_lend(psprintf("%.1f %s", (double) length / units[i].length,
							  units[i].name));
}

/*
 * Read a number of seconds, as the server writes it.  An empty text, which is
 * how libpq returns NULL, is 0.
 */
int64
duration_from_seconds(const char *seconds)
{
	double		us = strtod(seconds, NULL) * SEC + 0.5;

	/* A greater number need not fit into an int64. */
	return us > 0 ? (int64) Min(us, LONGEST_TIME) : 0;
}

/*
 * Return how long to pause before the next try, and double that for the try
 * after it.
 */
int64
duration_next_pause(int64 *pause, int64 longest)
{
	int64		now = *pause;

	*pause = Min(now * 2, longest);
	return now;
}
