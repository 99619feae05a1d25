/*-------------------------------------------------------------------------
 *
 * duration.c
 *		The clock, and lengths of time as text.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include <time.h>

/*
 * The clock that counts while the machine sleeps, and that nobody can set.
 */
int64
now_us(void)
{
	struct timespec ts;

	(void) clock_gettime(CLOCK_BOOTTIME, &ts);
	return (int64) ts.tv_sec * SEC + ts.tv_nsec / 1000;
}

static const struct
{
	const char *name;
	int64		length;
}			units[] = {
	{"us", 1}, {"ms", MSEC}, {"s", SEC}, {"min", 60 * SEC},
	{"h", 3600 * SEC}, {"d", DAY}
};

/*
 * A number and a unit.  False: it is none.
 */
bool
duration_parse(const char *text, int64 *length)
{
	char	   *end;
	double		number;
	int64		unit = 0;

	/* strtod() knows infinities, and numbers that nobody means. */
	if (text[0] == '\0' || strspn(text, "0123456789.") == 0)
		return false;
	errno = 0;
	number = strtod(text, &end);
	if (errno != 0 || end != text + strspn(text, "0123456789."))
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
 * A length in the greatest unit in which it is a whole number or, if it is
 * long, nearly one.
 */
char *
duration_format(int64 length)
{
	for (int i = lengthof(units) - 1; i > 0; i--)
	{
		double		number = (double) length / units[i].length;

		if (length % units[i].length == 0 && length != 0)
			return psprintf("%lld %s", (long long) (length / units[i].length),
							units[i].name);
		if (number >= (i == 1 ? 0 : 2))
			return psprintf("%.1f %s", number, units[i].name);
	}
	return psprintf("%lld us", (long long) length);
}

/*
 * A number of seconds, as the server writes it, in microseconds; an empty text,
 * which stands for NULL, is 0.
 */
int64
duration_from_seconds(const char *seconds)
{
	double		us = strtod(seconds, NULL) * SEC + 0.5;

	/* Nothing is longer; what is would be no int64. */
	return us > 0 ? (int64) Min(us, LONGEST_TIME) : 0;
}
