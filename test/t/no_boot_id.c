/*-------------------------------------------------------------------------
 *
 * no_boot_id.c
 *		For the tests: a library that is loaded into the server before all others,
 *		and has it find no file descriptor for the name of the boot, as long as
 *		the file NO_BOOT_ID (in the environment) exists.
 *
 *-------------------------------------------------------------------------
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int
open_as(const char *function, const char *path, int flags, mode_t mode)
{
	int			(*real) (const char *, int, ...) = dlsym(RTLD_NEXT, function);
	const char *switched_on = getenv("NO_BOOT_ID");

	if (strcmp(path, "/proc/sys/kernel/random/boot_id") == 0 &&
		switched_on != NULL && access(switched_on, F_OK) == 0)
	{
		errno = EMFILE;
		return -1;
	}
	return real(path, flags, mode);
}

#define DEFINE_OPEN(name) \
int \
name(const char *path, int flags,...) \
{ \
	va_list		args; \
	mode_t		mode = 0; \
\
	va_start(args, flags); \
	if ((flags & (O_CREAT | O_TMPFILE)) != 0) \
		mode = va_arg(args, mode_t); \
	va_end(args); \
	return open_as(#name, path, flags, mode); \
}

DEFINE_OPEN(open)
DEFINE_OPEN(open64)
