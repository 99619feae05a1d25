/*-------------------------------------------------------------------------
 *
 * log.c
 *		The log of a candidate, or an observer, of the chaos run.
 *
 * A line is one write(), so that a killed process leaves whole lines.
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "log.h"

static int	log_fd;

int64_t
now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_BOOTTIME, &ts);
	return ts.tv_sec * INT64_C(1000000) + ts.tv_nsec / 1000;
}

void
pause_ms(int ms)
{
	struct timespec ts = {ms / 1000, ms % 1000 * 1000000L};

	nanosleep(&ts, NULL);
}

bool
open_log(const char *path)
{
	log_fd = open(path, O_WRONLY | O_APPEND | O_CREAT, 0644);
	return log_fd >= 0;
}

void
note(const char *format,...)
{
	char		line[1000];
	va_list		args;
	int			length;

	va_start(args, format);
	length = vsnprintf(line, sizeof(line) - 1, format, args);
	va_end(args);
	if (length > (int) sizeof(line) - 2)
		length = sizeof(line) - 2;
	for (int i = 0; i < length; i++)
	{
		if (line[i] == '\n')
			line[i] = ' ';
	}
	line[length] = '\n';
	if (write(log_fd, line, length + 1) != length + 1)
		exit(1);
}
