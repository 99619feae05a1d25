/*-------------------------------------------------------------------------
 *
 * params.c
 *		The parameters of a connection.
 *
 * Invariant: a parameter that the user sets is not changed, be it set in the
 * command line, a connection string, the environment or a service file.  Only
 * parameters that the user does not set get a default of ours.
 *
 *-------------------------------------------------------------------------
 */
#include "connection.h"

#include <langinfo.h>

/*
 * Is dbname a connection string?  Decide as libpq does with expand_dbname.
 */
static bool
is_connection_string(const char *dbname)
{
	return dbname != NULL && (strchr(dbname, '=') != NULL ||
							  strncmp(dbname, "postgresql://", 13) == 0 ||
							  strncmp(dbname, "postgres://", 11) == 0);
}

/*
 * Return the value of a parameter in a list of libpq, or NULL if it is not
 * set.
 */
static char *
value_of(PQconninfoOption *list, const char *keyword)
{
	for (PQconninfoOption *o = list; o != NULL && o->keyword != NULL; o++)
	{
		if (strcmp(o->keyword, keyword) == 0)
			return o->val != NULL && o->val[0] != '\0' ? o->val : NULL;
	}
	return NULL;
}

/*
 * Return libpq's defaults, from the environment and a service file.  Only
 * PQconndefaults() reads that file without connecting, and it takes the
 * service from the environment: put the connection string's there meanwhile.
 */
static PQconninfoOption *
defaults_of(const char *service)
{
	char	   *old = getenv("PGSERVICE");
	PQconninfoOption *defaults;

	if (service == NULL)
		return PQconndefaults();
	if (old != NULL)
		old = pg_strdup(old);
	setenv("PGSERVICE", service, 1);
	defaults = PQconndefaults();
	if (old == NULL)
		unsetenv("PGSERVICE");
	else
		setenv("PGSERVICE", old, 1);
	pg_free(old);
	return defaults;
}

/*
 * Return the value that libpq will use for a parameter: from the connection
 * string, the command line, the environment, a service file, or the default.
 * NULL: it is not set.
 */
static const char *
effective(const Params *p, const ConnectOptions *options, const char *keyword)
{
	const char *value = value_of(p->given, keyword);

	if (value == NULL && strcmp(keyword, "host") == 0)
		value = options->host;
	if (value == NULL && strcmp(keyword, "port") == 0)
		value = options->port;
	return value != NULL ? value : value_of(p->defaults, keyword);
}

static int
count_items(const char *list)
{
	int			n = 1;

	for (; list != NULL && *list != '\0'; list++)
		n += *list == ',';
	return n;
}

/*
 * Return a comma-separated list, turned so that it begins with its nth item.
 */
static char *
rotate(const char *list, int n)
{
	const char *second = list;

	while (n-- > 0 && second != NULL)
	{
		second = strchr(second, ',');
		if (second != NULL)
			second++;
	}
	if (second == NULL || second == list)
		return pg_strdup(list);
	return psprintf("%s,%.*s", second, (int) (second - list - 1), list);
}

static void
add_param(Params *p, const char *keyword, const char *value)
{
	if (value == NULL)
		return;
	Assert(p->n < MAX_PARAMS);
	p->keywords[p->n] = keyword;
	p->values[p->n] = value;
	p->n++;
}

/*
 * When a host refuses the connection, libpq goes on to the next host.  When a
 * host does not answer, libpq goes on only after connect_timeout, which it
 * does not look at in PQconnectPoll().  So after a time-out of ours, begin the
 * list of hosts with the next one.
 */
static void
add_rotated_hosts(Params *p, const Connection *c)
{
	static const char *const lists[] = {"host", "hostaddr", "port"};
	int			hosts = 1;
	const char *value[lengthof(lists)];

	StaticAssertStmt(lengthof(lists) == lengthof(p->rotated), "one each");
	for (int i = 0; i < lengthof(lists); i++)
	{
		value[i] = effective(p, c->options, lists[i]);
		hosts = Max(hosts, count_items(value[i]));
	}
	for (int i = 0; i < lengthof(lists) && c->rotation % hosts != 0; i++)
	{
		if (value[i] == NULL || count_items(value[i]) != hosts)
			continue;
		p->rotated[i] = rotate(value[i], c->rotation % hosts);
		add_param(p, lists[i], p->rotated[i]);
	}
}

/*
 * Add a parameter, unless the user has set it to something else than "unless".
 */
static void
add_default(Params *p, const ConnectOptions *options, const char *keyword,
			const char *unless, const char *value)
{
	const char *is = effective(p, options, keyword);

	if (is == NULL || strcmp(is, unless) == 0)
		add_param(p, keyword, value);
}

/*
 * Return the locale's encoding.  The locale C, which most containers and cron
 * have, says ASCII: use UTF8 then, as JSON has to be.
 */
static const char *
client_encoding(void)
{
	return strcmp(nl_langinfo(CODESET), "ANSI_X3.4-1968") == 0 ? "UTF8" : "auto";
}

/*
 * Set all parameters for PQconnectStartParams() with expand_dbname, and
 * p->timeout.  params_free() frees them.
 */
void
params_set(Params *p, const Connection *c)
{
	const ConnectOptions *o = c->options;
	const char *timeout;

	memset(p, 0, sizeof(Params));
	if (is_connection_string(o->dbname))
		p->given = PQconninfoParse(o->dbname, NULL);
	p->defaults = defaults_of(value_of(p->given, "service"));

	/* libpq looks at it only in functions that wait, which we do not use. */
	timeout = effective(p, o, "connect_timeout");
	p->timeout = timeout != NULL && atoi(timeout) > 0 ? atoi(timeout) * SEC : NEVER;

	/* A connection string in dbname overrides the parameters before it. */
	if (o->read_write && getenv("PGTARGETSESSIONATTRS") == NULL)
		add_default(p, o, "target_session_attrs", "any", "read-write");
	if (getenv("PGCLIENTENCODING") == NULL)
		add_param(p, "client_encoding", client_encoding());
	/* Have the kernel notice a dead server while nothing is being sent. */
	add_default(p, o, "keepalives_idle", "", "5");
	add_default(p, o, "keepalives_interval", "", "2");
	add_default(p, o, "keepalives_count", "", "3");
	add_param(p, "host", o->host);
	add_param(p, "port", o->port);
	add_param(p, "user", o->user);
	add_param(p, "password", o->password);
	add_param(p, "fallback_application_name", "pg_leader");
	add_param(p, "dbname", o->dbname);
	add_rotated_hosts(p, c);
}

void
params_free(Params *p)
{
	for (int i = 0; i < lengthof(p->rotated); i++)
		pg_free(p->rotated[i]);
	PQconninfoFree(p->given);
	PQconninfoFree(p->defaults);
}
