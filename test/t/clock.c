/*-------------------------------------------------------------------------
 *
 * clock.c
 *		The wall clocks of servers, and of pg_leader, in tests and in the chaos
 *		run: a library that they preload.
 *
 * The file that CLOCK_FILE names holds for how many seconds the wall clock is
 * ahead of the true time ("+2") or behind it ("-3").  It is read at every look
 * at the clock.  The monotonic clocks are left alone.
 *
 * Handlers of signals look at the clock, too: that of PostgreSQL's timers does.
 * So nothing here allocates memory or takes a lock.  libfaketime reads its file
 * with fopen(): a timer in the midst of a malloc() then damages the heap of the
 * server.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static char path[PATH_MAX];

__attribute__((constructor)) static void
init(void)
{
	const char *file = getenv("CLOCK_FILE");

	/* A copy: PostgreSQL writes the titles of its processes over the environment. */
	if (file != NULL)
		snprintf(path, sizeof(path), "%s", file);
}

/*
 * How many seconds to add; 0 if the file cannot be read now.
 */
static time_t
offset(void)
{
	int			save_errno = errno;
	int			fd = open(path, O_RDONLY | O_CLOEXEC);
	char		text[16];
	ssize_t		length = 0;
	time_t		seconds = 0;

	if (fd >= 0)
	{
		length = read(fd, text, sizeof(text));
		close(fd);
	}
	for (ssize_t i = 1; i < length && text[i] >= '0' && text[i] <= '9'; i++)
		seconds = seconds * 10 + text[i] - '0';
	errno = save_errno;
	return length > 0 && text[0] == '-' ? -seconds : seconds;
}

/*
 * Directly by the kernel: to look up the C library's own could allocate memory.
 */
int
clock_gettime(clockid_t id, struct timespec *now)
{
	int			status = (int) syscall(SYS_clock_gettime, id, now);

	if (status == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		now->tv_sec += offset();
	return status;
}

int
gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec exact;

	(void) zone;
	(void) clock_gettime(CLOCK_REALTIME, &exact);
	now->tv_sec = exact.tv_sec;
	now->tv_usec = exact.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *now)
{
	struct timespec exact;

	(void) clock_gettime(CLOCK_REALTIME, &exact);
	if (now != NULL)
		*now = exact.tv_sec;
	return exact.tv_sec;
}
