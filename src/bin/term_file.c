/*-------------------------------------------------------------------------
 *
 * term_file.c
 *		The file that tells the command its term.
 *
 * It is the file "term" in a folder of its own, which only this user can read.
 *
 * Invariant: who reads the file sees the old term or the new one, and nothing
 * in between, since a new file is renamed over the old one.
 *
 *-------------------------------------------------------------------------
 */
#include "guardian.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Make the folder and the file.  The folder's name is returned in dir.  False:
 * that has failed, as errno says, and the user has been told.
 */
bool
term_file_make(char *dir, size_t size, int64 term)
{
	const char *tmpdir = getenv("TMPDIR");
	const char *shown;
	int			error;

	snprintf(dir, size, "%s/pg_leader.XXXXXX",
			 tmpdir != NULL && tmpdir[0] != '\0' ? tmpdir : "/tmp");
	if (mkdtemp(dir) != NULL && term_file_write(dir, term))
		return true;
	error = errno;
	shown = text_show(dir);
	errno = error;
	pg_log_error("could not write a file in \"%s\": %m", shown);
	term_file_remove(dir);
	errno = error;
	return false;
}

/*
 * Return the name of a file in the folder, lent: "term".
 */
char *
term_file_path(const char *dir, const char *name)
{
	return text_lend(psprintf("%s/%s", dir, name));
}

/*
 * Write a term into the file.
 */
bool
term_file_write(const char *dir, int64 term)
{
	const char *new_path = term_file_path(dir, "term.new");
	int			fd = open(new_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
						  S_IRUSR | S_IWUSR);
	bool		written = fd >= 0 && dprintf(fd, "%lld\n", (long long) term) > 0;

	return fd >= 0 && close(fd) == 0 && written &&
		rename(new_path, term_file_path(dir, "term")) == 0;
}

/*
 * Remove the folder.  Both pg_leader and the guardian do that, because the
 * other process may have been killed.
 */
void
term_file_remove(const char *dir)
{
	(void) unlink(term_file_path(dir, "term"));
	(void) unlink(term_file_path(dir, "term.new"));
	(void) rmdir(dir);
}
