/*-------------------------------------------------------------------------
 *
 * incarnation.c
 *		The server's incarnation, on which values of the monotonic clock count.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fcntl.h"
#include "unistd.h"
#include "access/xlog.h"
#include "base/base.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/timestamp.h"

/*
 * Read the beginning of a file of the system; "" if there is no such file, or
 * we may not read it.  False, with errno, if it cannot be read just now, for
 * want of a descriptor, say: a process that took this failure for "" would
 * compute another incarnation than the other processes.
 */
static bool
read_file(const char *path, char *buf, size_t size)
{
	int			fd = BasicOpenFile(path, O_RDONLY | PG_BINARY);
	ssize_t		length;
	int			save_errno;

	buf[0] = '\0';
	if (fd < 0)
		return errno == ENOENT || errno == EACCES || errno == EPERM;
	length = read(fd, buf, size - 1);
	save_errno = errno;
	close(fd);
	errno = save_errno;
	if (length < 0)
		return false;
	buf[length] = '\0';
	return true;
}

/*
 * The name of this boot of the machine, with the offset of the server's time
 * namespace; NULL, with errno, if it cannot be read just now.  It does not
 * change while this process lives, and is kept.  If the system has no such
 * name, each start of the server counts as a boot: that is safe, but elections
 * have to wait for the grace after each restart.
 */
static const char *
boot_id(void)
{
	static char id[128] = "";
	char		name[64];
	char		offsets[256];
	char	   *boottime;
	long long	seconds = 0;

	if (id[0] != '\0')
		return id;
	if (!read_file("/proc/sys/kernel/random/boot_id", name, sizeof(name)) ||
		!read_file("/proc/self/timens_offsets", offsets, sizeof(offsets)))
		return NULL;
	name[strcspn(name, "\n")] = '\0';
	if (name[0] == '\0')
		snprintf(name, sizeof(name), "start-" INT64_FORMAT, (int64) PgStartTime);
	if ((boottime = strstr(offsets, "boottime")) != NULL &&
		sscanf(boottime, "boottime %lld", &seconds) == 1 && seconds != 0)
		snprintf(id, sizeof(id), "%s%+lld", name, seconds);
	else
		strlcpy(id, name, sizeof(id));
	return id;
}

/*
 * The name of the present incarnation, of the tables that were found last; NULL,
 * with errno, if it cannot be made just now.  It is kept in static memory until
 * the timeline or the lease table changes; callers do not write into it.  Not to
 * be called in recovery: the next timeline is not known then.
 */
char *
le_incarnation_name_try(void)
{
	static char name[256];
	static TimeLineID timeline = 0;
	static Oid	lease = InvalidOid;
	TimeLineID	present = GetWALInsertionTimeLine();

	if (timeline != present || lease != le_store.lease_oid)
	{
		const char *boot = boot_id();

		if (boot == NULL)
			return NULL;
		timeline = present;
		lease = le_store.lease_oid;
		snprintf(name, sizeof(name), UINT64_FORMAT "/%u/%s/%u/%u",
				 GetSystemIdentifier(), timeline, boot, MyDatabaseId, lease);
	}
	return name;
}

/*
 * The name of the present incarnation, or an error.
 */
char *
le_incarnation_name(void)
{
	char	   *name = le_incarnation_name_try();

	if (name == NULL)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not find out which boot of the machine this is: %m")));
	return name;
}
