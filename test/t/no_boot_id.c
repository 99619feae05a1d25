/*-------------------------------------------------------------------------
 *
 * no_boot_id.c
 *		For the tests: a library that is loaded into the server before all others.
 *		As long as there is a file NO_BOOT_ID (in the environment), the server
 *		cannot open the file of /proc that is named there, for the errno that
 *		follows the name.
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int
open_as(const char *function, const char *path, int flags, mode_t mode)
{
	int			(*real) (const char *, int, ...) = dlsym(RTLD_NEXT, function);
	const char *told = getenv("NO_BOOT_ID");
	FILE	   *file;
	char		failing[256];
	int			error;
	int			found;

	if (strncmp(path, "/proc/", 6) == 0 && told != NULL &&
		(file = fopen(told, "r")) != NULL)
	{
		found = fscanf(file, "%255s %d", failing, &error);
		fclose(file);
		if (found == 2 && strcmp(path, failing) == 0)
		{
			errno = error;
			return -1;
		}
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
