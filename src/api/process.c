/*-------------------------------------------------------------------------
 *
 * process.c
 *		Processes of the server, as messages and findings describe them.
 *
 * Invariant: nobody is told more of another role's process than
 * pg_stat_activity shows: of address and application_name nothing, without
 * that role or pg_read_all_stats.  Nor of what the worker's errors say.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "api/api.h"
#include "catalog/pg_authid.h"
#include "common/ip.h"
#include "miscadmin.h"
#include "utils/acl.h"

/*
 * The address of a client as text; NULL if it has none.
 */
static const char *
address_text(const SockAddr *address)
{
	char		host[NI_MAXHOST];

	if (address->addr.ss_family == AF_UNIX)
		return "[local]";
	if ((address->addr.ss_family != AF_INET &&
		 address->addr.ss_family != AF_INET6) ||
		pg_getnameinfo_all(&address->addr, address->salen, host, sizeof(host),
						   NULL, 0, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
		return NULL;
	return pstrdup(host);
}

/*
 * May the caller see all of this backend in pg_stat_activity?
 */
static bool
may_see(const PgBackendStatus *backend)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
		has_privs_of_role(GetUserId(), backend->st_userid);
}

/*
 * Does pg_stat_activity show the caller what this process does?
 */
bool
le_process_shows(int pid)
{
	const PgBackendStatus *backend = LeBackendStatus(pid);

	return backend != NULL && may_see(backend);
}

/*
 * A process of this server, as far as the caller sees it in pg_stat_activity.
 */
char *
le_process_text(int pid)
{
	const PgBackendStatus *backend = LeBackendStatus(pid);
	const char *address = NULL;
	char	   *role = NULL;

	if (backend != NULL && OidIsValid(backend->st_userid))
		role = GetUserNameFromId(backend->st_userid, true);
	if (role == NULL)
		return psprintf("process %d", pid);
	if (may_see(backend))
		address = address_text(&backend->st_clientaddr);
	if (address == NULL)
		return psprintf("process %d of role %s", pid, le_quote(role));
	return psprintf("process %d of role %s (client address %s, application_name %s)",
					pid, le_quote(role), address, le_quote(backend->st_appname));
}

/*
 * Describe the session of this candidate.  Its address and application_name
 * are told to those who see them in pg_stat_activity.  *own: the session has
 * the caller's role and address.
 */
char *
le_process_session_text(const Candidate *c, bool *own)
{
	const PgBackendStatus *backend;
	const char *address = NULL;
	const char *application = NULL;
	const char *here;

	/* The next look at any backend overwrites what this one has found. */
	backend = LeBackendStatus(MyProcPid);
	here = backend != NULL ? address_text(&backend->st_clientaddr) : NULL;

	/*
	 * If the session is alive now, its process was, too, when we found it: no
	 * other process had that ID.
	 */
	backend = LeBackendStatus(c->backend_pid);
	if (backend != NULL && le_session_alive(c->session_id) &&
		may_see(backend))
	{
		address = address_text(&backend->st_clientaddr);
		application = backend->st_appname;
	}
	if (address == NULL)
		return psprintf("A session of role \"%s\" stands under this name: process ID %d.",
						le_role_name(&c->role), c->backend_pid);
	*own = here != NULL && strcmp(address, here) == 0 &&
		le_role_is_caller(&c->role);
	return psprintf("A session of role \"%s\" stands under this name: process ID %d, client address %s, application_name \"%s\".",
					le_role_name(&c->role), c->backend_pid, address, application);
}

/*
 * Is this process one of a client that sends nothing, in or outside of a
 * transaction: since when, and what does pg_stat_activity call that?  NULL: no,
 * or the caller may not see it.
 */
const char *
le_process_idle(int pid, TimestampTz *since)
{
	const PgBackendStatus *backend = LeBackendStatus(pid);

	if (backend == NULL || !may_see(backend))
		return NULL;
	*since = backend->st_state_start_timestamp;
	switch (backend->st_state)
	{
		case STATE_IDLE:
			return "idle";
		case STATE_IDLEINTRANSACTION:
			return "idle in transaction";
		case STATE_IDLEINTRANSACTION_ABORTED:
			return "idle in transaction (aborted)";
		default:
			return NULL;
	}
}
