/*-------------------------------------------------------------------------
 *
 * slow_start.c
 *		For the tests: a library that is loaded into pg_leader before all others,
 *		and has the process that names itself SLOW_PROCESS wait, right after
 *		that, for as long as there is the file SLOW_FILE, which it makes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

int
prctl(int option,...)
{
	int			(*real) (int, unsigned long, unsigned long, unsigned long,
						 unsigned long) = dlsym(RTLD_NEXT, "prctl");
	const char *process = getenv("SLOW_PROCESS");
	const char *file = getenv("SLOW_FILE");
	unsigned long first;
	va_list		args;
	int			result;

	va_start(args, option);
	first = va_arg(args, unsigned long);
	va_end(args);
	result = real(option, first, 0, 0, 0);
	if (option == PR_SET_NAME && process != NULL && file != NULL &&
		strcmp((const char *) first, process) == 0)
	{
		close(open(file, O_WRONLY | O_CREAT, 0600));
		for (int i = 0; i < 6000 && access(file, F_OK) == 0; i++)
			usleep(10000);
	}
	return result;
}
