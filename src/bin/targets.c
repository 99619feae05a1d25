/*-------------------------------------------------------------------------
 *
 * targets.c
 *		Where to connect: each address of each host, one after the other.
 *
 * libpq takes a list of hosts, but ends at the first one that refuses a login:
 * one host whose pg_hba.conf lacks a line, or which has not replayed a new
 * password yet, would keep us from all others.  And of a host that is a standby
 * it tries no other address, though one name may have those of standby and
 * primary.  So it gets one address at a time.
 *
 * Invariant: a round comes to each address once, in the order of the list, and
 * begins with the host that has answered last.
 *
 *-------------------------------------------------------------------------
 */
#include "connection.h"

#include <netdb.h>

/* --- lists with commas */

static int
count_items(const char *list)
{
	int			n = 1;

	for (; list != NULL && *list != '\0'; list++)
		n += *list == ',';
	return n;
}

/*
 * Return a copy of the nth item of a list; of an empty one, what libpq takes
 * instead.  NULL: there is no list.
 */
static char *
item_of(const char *list, int nth, const char *instead)
{
	int			length;

	if (list == NULL)
		return NULL;
	while (nth-- > 0)
		list = strchr(list, ',') + 1;
	length = strcspn(list, ",");
	return length == 0 ? pg_strdup(instead) : psprintf("%.*s", length, list);
}

/*
 * Can we take these lists apart?  If not, libpq gets them as they are, and says
 * what is wrong with them.
 */
static bool
fit_together(const char *hosts, const char *addresses, const char *ports)
{
	int			n = Max(count_items(hosts), count_items(addresses));

	if (addresses != NULL &&
		(count_items(addresses) != n || addresses[0] == ',' ||
		 addresses[strlen(addresses) - 1] == ',' || strstr(addresses, ",,") != NULL))
		return false;
	return (hosts == NULL || count_items(hosts) == n) &&
		(count_items(ports) == 1 || count_items(ports) == n);
}

/* --- the round */

static void
add_target(Targets *ts, int place, const Target *target)
{
	ts->all = pg_realloc(ts->all, (ts->n + 1) * sizeof(Target));
	memmove(&ts->all[place + 1], &ts->all[place],
			(ts->n - place) * sizeof(Target));
	ts->all[place] = *target;
	ts->n++;
}

static void
free_target(Target *t)
{
	pg_free(t->host);
	pg_free(t->address);
	pg_free(t->port);
	pg_free(t->error);
}

/*
 * There is no round any more.
 */
void
targets_free(Targets *ts)
{
	while (ts->n > 0)
		free_target(&ts->all[--ts->n]);
	pg_free(ts->all);
	ts->all = NULL;
}

/*
 * Begin a round.  Names are looked up when it is their turn: a name server that
 * does not answer is in nobody's way before.
 */
void
targets_begin(Targets *ts, const Params *p)
{
	const char *hosts = params_value(p, "host");
	const char *addresses = params_value(p, "hostaddr");
	const char *ports = params_value(p, "port");
	const char *attributes = params_value(p, "target_session_attrs");
	const char *balance = params_value(p, "load_balance_hosts");
	bool		prefers = attributes != NULL && strcmp(attributes, "prefer-standby") == 0;
	int			n = Max(count_items(hosts), count_items(addresses));
	bool		fit = fit_together(hosts, addresses, ports);

	targets_free(ts);
	ts->next = ts->refused = 0;
	if (balance != NULL && strcmp(balance, "random") == 0)
		ts->first = (int) (now_us() % n);
	for (int i = 0; i < (fit ? n : 1) * (fit && prefers ? 2 : 1); i++)
	{
		int			nth = (ts->first + i) % n;
		Target		t = {.nth = nth};

		if (fit)
		{
			t.host = item_of(hosts, nth, DEFAULT_PGSOCKET_DIR);
			t.address = item_of(addresses, nth, "");
			if (count_items(ports) > 1)
				t.port = item_of(ports, nth, DEF_PGPORT_STR);
			/* All of them as standbys, then all as they are, as libpq does */
			if (prefers)
				t.attributes = i < n ? "standby" : "any";
		}
		add_target(ts, ts->n, &t);
	}
}

/*
 * Look up the next target's name.  If it has several addresses, they take its
 * place.
 */
static void
look_up(Targets *ts)
{
	Target		t = ts->all[ts->next];
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *list;
	int			place = ts->next;
	int			error;

	if (t.host == NULL || t.address != NULL || t.host[0] == '/' || t.host[0] == '@')
		return;
	error = getaddrinfo(t.host, NULL, &hints, &list);
	if (error != 0)
	{
		ts->all[place].error = psprintf("could not translate host name \"%s\" to address: %s",
										t.host, gai_strerror(error));
		return;
	}
	for (struct addrinfo *a = list; list->ai_next != NULL && a != NULL; a = a->ai_next)
	{
		char		address[NI_MAXHOST];
		Target		one = {.nth = t.nth,.attributes = t.attributes};

		if (getnameinfo(a->ai_addr, a->ai_addrlen, address, sizeof(address),
						NULL, 0, NI_NUMERICHOST) != 0)
			continue;
		one.host = pg_strdup(t.host);
		one.address = pg_strdup(address);
		one.port = t.port == NULL ? NULL : pg_strdup(t.port);
		add_target(ts, place++, &one);
	}
	freeaddrinfo(list);
	if (place == ts->next)
		return;
	/* What was looked up is behind its addresses. */
	free_target(&ts->all[place]);
	memmove(&ts->all[place], &ts->all[place + 1],
			(--ts->n - place) * sizeof(Target));
}

/*
 * Return the next address of the round; NULL: there is none.
 */
const Target *
targets_next(Targets *ts)
{
	if (targets_over(ts))
		return NULL;
	look_up(ts);
	return &ts->all[ts->next++];
}

/*
 * Have all addresses had their turn?
 */
bool
targets_over(const Targets *ts)
{
	return ts->next >= ts->n;
}

/*
 * The last word of this address is that it lets us in: the round is over.
 */
void
targets_answered(Targets *ts, const Target *t)
{
	ts->first = t->nth;
	ts->next = ts->n;
	ts->refused = 0;
}

/*
 * The last word of the present address is that it does not let us in.
 */
void
targets_refused(Targets *ts)
{
	ts->refused++;
}

/*
 * Is that the last word of all of them?
 */
bool
targets_verdict(const Targets *ts)
{
	return targets_over(ts) && ts->n > 0 && ts->refused == ts->n;
}
