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

static void
put_variable(const char *name, const char *value)
{
	if (value == NULL)
		unsetenv(name);
	else
		setenv(name, value, 1);
}

/*
 * Return libpq's defaults, from the environment and a service file.  Only
 * PQconndefaults() reads that file without connecting, and it takes the
 * service from the environment: put the connection string's there meanwhile.
 */
static PQconninfoOption *
defaults_of(PQconninfoOption *given)
{
	const char *old[] = {getenv("PGSERVICE"), getenv("PGSERVICEFILE")};
	char	   *service = old[0] == NULL ? NULL : pg_strdup(old[0]);
	char	   *file = old[1] == NULL ? NULL : pg_strdup(old[1]);
	PQconninfoOption *defaults;

	if (value_of(given, "service") != NULL)
		put_variable("PGSERVICE", value_of(given, "service"));
	if (value_of(given, "servicefile") != NULL)
		put_variable("PGSERVICEFILE", value_of(given, "servicefile"));
	defaults = PQconndefaults();
	put_variable("PGSERVICE", service);
	put_variable("PGSERVICEFILE", file);
	pg_free(service);
	pg_free(file);
	return defaults;
}

/*
 * Return the value that libpq will use for a parameter: from the connection
 * string, the command line, the environment, a service file, or the default.
 * NULL: it is not set.
 */
const char *
params_value(const Params *p, const char *keyword)
{
	const char *value = value_of(p->given, keyword);

	if (value == NULL && strcmp(keyword, "host") == 0)
		value = p->options->host;
	if (value == NULL && strcmp(keyword, "port") == 0)
		value = p->options->port;
	return value != NULL ? value : value_of(p->defaults, keyword);
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
 * Add a parameter, unless the user has set it to something else than "unless".
 */
static void
add_default(Params *p, const char *keyword, const char *unless,
			const char *value)
{
	const char *is = params_value(p, keyword);

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
 * Read what the user has set.  params_free() frees it.
 */
void
params_read(Params *p, const ConnectOptions *options)
{
	const char *timeout;

	memset(p, 0, sizeof(Params));
	p->options = options;
	if (is_connection_string(options->dbname))
		p->given = PQconninfoParse(options->dbname, NULL);
	p->defaults = defaults_of(p->given);

	/* libpq looks at it only in functions that wait, which we do not use. */
	timeout = params_value(p, "connect_timeout");
	p->timeout = timeout != NULL && atoi(timeout) > 0 ? atoi(timeout) * SEC : NEVER;
}

/*
 * Set all parameters for PQconnectStartParams() with expand_dbname, to connect
 * to this address.
 */
void
params_set(Params *p, const Target *t)
{
	const ConnectOptions *o = p->options;

	p->n = 0;
	memset(p->keywords, 0, sizeof(p->keywords));
	/* A connection string in dbname overrides the parameters before it. */
	if (o->read_write && getenv("PGTARGETSESSIONATTRS") == NULL)
		add_default(p, "target_session_attrs", "any", "read-write");
	if (getenv("PGCLIENTENCODING") == NULL)
		add_param(p, "client_encoding", client_encoding());
	/* Have the kernel notice a dead server while nothing is being sent. */
	add_default(p, "keepalives_idle", "", "5");
	add_default(p, "keepalives_interval", "", "2");
	add_default(p, "keepalives_count", "", "3");
	add_param(p, "host", o->host);
	add_param(p, "port", o->port);
	add_param(p, "user", o->user);
	add_param(p, "password", o->password);
	add_param(p, "fallback_application_name", "pg_leader");
	add_param(p, "dbname", o->dbname);
	/* ... and those after it override it. */
	add_param(p, "host", t->host);
	add_param(p, "hostaddr", t->address);
	add_param(p, "port", t->port);
	add_param(p, "target_session_attrs", t->attributes);
}

void
params_free(Params *p)
{
	PQconninfoFree(p->given);
	PQconninfoFree(p->defaults);
}
