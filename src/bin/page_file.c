/*-------------------------------------------------------------------------
 *
 * page_file.c
 *		Writes the page into a file.
 *
 * Invariant: a program that opens the file finds the whole page, or what was
 * there before.  The page is written into a temporary file beside it, which takes its
 * place when it is complete and on disk.  After an error nothing is left of it.
 *
 *-------------------------------------------------------------------------
 */
#include "page.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

static bool
write_all(int fd, const char *text, size_t length)
{
	while (length > 0)
	{
		ssize_t		written = write(fd, text, length);

		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0)
			return false;
		text += written;
		length -= written;
	}
	return true;
}

/*
 * Report what could not be written, and why (errno), and exit.
 */
static void
fail(const char *file)
{
	pg_log_error("could not write \"%s\": %m", file);
	exit(EXIT_USAGE);
}

/*
 * Write into what is no regular file: a device, a pipe.  That cannot be
 * replaced.  Return false if it fails.
 */
static bool
write_into(const char *file, const char *text, size_t length)
{
	int			fd = open(file, O_WRONLY | O_NOCTTY | O_CLOEXEC);

	return fd >= 0 && write_all(fd, text, length) && close(fd) == 0;
}

/*
 * Replace a file.  Return false if that fails.
 */
static bool
replace(const char *file, mode_t mode, const char *text, size_t length)
{
	const char *base = strrchr(file, '/');
	char	   *temporary = psprintf("%.*s.pg_leader.XXXXXX",
									 base == NULL ? 0 : (int) (base + 1 - file),
									 file);
	int			fd = mkstemp(temporary);
	bool		written = fd >= 0 && fchmod(fd, mode) == 0 &&
		write_all(fd, text, length) && fsync(fd) == 0;
	bool		replaced = written && close(fd) == 0 &&
		rename(temporary, file) == 0;
	int			why = errno;

	if (fd >= 0 && !written)
		close(fd);
	if (fd >= 0 && !replaced)
		(void) unlink(temporary);
	pg_free(temporary);
	errno = why;
	return replaced;
}

/*
 * Write the page into a file, or to standard output ("-"); or report an error,
 * and exit.
 */
void
page_file_write(const char *file, const char *text, size_t length)
{
	char		path[PATH_MAX];
	struct stat st;
	mode_t		mask = umask(0);
	mode_t		mode = 0666 & ~mask;
	sigset_t	all;
	sigset_t	before;
	bool		written;

	(void) umask(mask);
	/* A file that has become too large is an error like a full disk. */
	(void) signal(SIGXFSZ, SIG_IGN);
	if (strcmp(file, "-") == 0)
	{
		if (!write_all(STDOUT_FILENO, text, length))
			fail("standard output");
		return;
	}
	/* Where a symbolic link leads to is replaced, not the link. */
	if (realpath(file, path) == NULL)
		strlcpy(path, file, sizeof(path));
	else if (stat(path, &st) != 0 || access(path, W_OK) != 0)
		fail(file);
	else if (!S_ISREG(st.st_mode))
	{
		if (!write_into(path, text, length))
			fail(file);
		return;
	}
	else
		mode = st.st_mode & 0777;

	/* A signal that ends us would leave the temporary file. */
	sigfillset(&all);
	(void) sigprocmask(SIG_SETMASK, &all, &before);
	written = replace(path, mode, text, length);
	(void) sigprocmask(SIG_SETMASK, &before, NULL);
	if (!written)
		fail(file);
}
