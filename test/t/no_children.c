/*-------------------------------------------------------------------------
 *
 * no_children.c
 *		For the tests: a library that is loaded into a program before all others,
 *		and lets it find no lists of children in /proc, as a kernel that keeps
 *		none (without CONFIG_PROC_CHILDREN).
 *
 *-------------------------------------------------------------------------
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static FILE *
open_as(const char *function, const char *path, const char *mode)
{
	static const char end[] = "/children";
	FILE	   *(*real) (const char *, const char *) = dlsym(RTLD_NEXT, function);
	size_t		length = strlen(path);

	if (length >= sizeof(end) && strncmp(path, "/proc/", 6) == 0 &&
		strcmp(path + length - strlen(end), end) == 0)
	{
		errno = ENOENT;
		return NULL;
	}
	return real(path, mode);
}

FILE *
fopen(const char *path, const char *mode)
{
	return open_as("fopen", path, mode);
}

FILE *
fopen64(const char *path, const char *mode)
{
	return open_as("fopen64", path, mode);
}
