/*-------------------------------------------------------------------------
 *
 * reply.c
 *		What the sidecar replies to a request, from what it knows.
 *
 * The main thread publishes what it knows; the thread of http.c replies from
 * that, and reads the clock for each reply.  So a main thread that waits for
 * the server does not keep a lease longer than it lasts.
 *
 * Invariant: nobody who counts X-Leader-Remaining-Ms from the moment at which
 * it sent its request counts into another leader's term.
 *
 * - What remains is counted to the end of the lease, from a clock that is read
 *	 after the request was sent.  However late the reply is read, or was sent
 *	 by a sidecar that had been stopped meanwhile, the sum of both is no later
 *	 than the end of the lease.
 *
 * - A lease that is given back ends earlier than that.  So no client is told
 *	 more than "longest", and sidecar.c gives the lease back no sooner than that
 *	 long after it has published that it does not lead.  A reply from an older
 *	 snapshot is to a request that was sent before that.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <pthread.h>

#include "mb/pg_wchar.h"
#include "pqexpbuffer.h"

/* Both threads use it.  No thread waits for anything while it has the lock. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Snapshot published = {.not_leading = "no connection"};

/* Set before there is a second thread */
static char *json_election;
static char *json_candidate;
static char *labels;

/* How many requests got a reply, by status.  One thread uses it. */
static struct
{
	int			status;
	int64		n;
}			counts[] = {{200}, {404}, {405}, {503}};

/* --- names */

/*
 * Return a name in UTF-8, to be freed by the caller, with "?" for bytes that
 * are none.  (The command line may have another encoding.)
 */
static char *
utf8_name(const char *name)
{
	char	   *copy = pg_strdup(name);
	int			length = strlen(copy);
	int			good = 0;

	while ((good += pg_encoding_verifymbstr(PG_UTF8, copy + good,
											length - good)) < length)
		copy[good] = '?';
	return copy;
}

/*
 * Append the value of a label as Prometheus wants it.
 */
static void
append_label_value(PQExpBuffer buffer, const char *value)
{
	for (; *value != '\0'; value++)
	{
		if (strchr("\n\"\\", *value) != NULL)
			appendPQExpBufferChar(buffer, '\\');
		appendPQExpBufferChar(buffer, *value == '\n' ? 'n' : *value);
	}
}

/*
 * Set the names in replies, once, before http_start().
 */
void
reply_set_names(const char *election, const char *candidate)
{
	char	   *e = utf8_name(election);
	char	   *c = utf8_name(candidate);
	PQExpBufferData buffer;

	json_election = text_json(e);
	json_candidate = text_json(c);
	initPQExpBuffer(&buffer);
	appendPQExpBufferStr(&buffer, "election=\"");
	append_label_value(&buffer, e);
	appendPQExpBufferStr(&buffer, "\",candidate=\"");
	append_label_value(&buffer, c);
	appendPQExpBufferChar(&buffer, '"');
	labels = buffer.data;
	pg_free(e);
	pg_free(c);
}

/* --- what is known */

/*
 * Have replies from now on say this.  When this returns, no reply is made from
 * an older snapshot any more.
 */
void
reply_publish(const Snapshot *snapshot)
{
	(void) pthread_mutex_lock(&mutex);
	published = *snapshot;
	(void) pthread_mutex_unlock(&mutex);
}

/*
 * Return what is known now, and in *remaining_ms what a client may be told to
 * remain: at least 1, or not_leading says why not.
 */
static Snapshot
look(int64 *remaining_ms)
{
	Snapshot	s;

	(void) pthread_mutex_lock(&mutex);
	s = published;
	(void) pthread_mutex_unlock(&mutex);
	*remaining_ms = Min(s.until - now_us(), s.longest) / MSEC;
	if (s.not_leading == NULL && *remaining_ms < 1)
		s.not_leading = "late";
	if (s.not_leading != NULL)
		*remaining_ms = 0;
	return s;
}

/* --- replies */

/*
 * Does the candidate lead?
 */
static Reply
leader_reply(void)
{
	Reply		reply = {.type = "text/plain"};
	Snapshot	s = look(&reply.remaining_ms);
	bool		leads = s.not_leading == NULL;

	reply.status = leads ? 200 : 503;
	reply.term = leads ? s.term : 0;
	reply.body = psprintf("%s\n", leads ? "leading" : s.not_leading);
	return reply;
}

static Reply
status_reply(void)
{
	Reply		reply = {.status = 200,.type = "application/json"};
	int64		remaining_ms;
	Snapshot	s = look(&remaining_ms);
	bool		leads = s.not_leading == NULL;
	char	   *why = leads ? pg_strdup("null") :
		psprintf("\"%s\"", s.not_leading);
	char	   *term = leads ? psprintf("%lld", (long long) s.term) :
		pg_strdup("null");

	reply.body = psprintf("{\"election\" : %s, \"candidate\" : %s, \"leading\" : %s, \"not_leading\" : %s, \"term\" : %s, \"remaining_ms\" : %lld, \"connected\" : %s}\n",
						  json_election, json_candidate, leads ? "true" : "false", why,
						  term, (long long) remaining_ms,
						  s.connected ? "true" : "false");
	pg_free(why);
	pg_free(term);
	return reply;
}

static void
append_metric(PQExpBuffer buffer, const char *name, const char *type,
			  const char *help, double value)
{
	appendPQExpBuffer(buffer,
					  "# HELP pg_leader_%s %s\n# TYPE pg_leader_%s %s\npg_leader_%s{%s} %.16g\n",
					  name, help, name, type, name, labels, value);
}

static Reply
metrics_reply(void)
{
	Reply		reply = {.status = 200,.type = "text/plain; version=0.0.4"};
	int64		remaining_ms;
	Snapshot	s = look(&remaining_ms);
	PQExpBufferData buffer;

	initPQExpBuffer(&buffer);
	append_metric(&buffer, "leading", "gauge",
				  "Whether this candidate leads.", s.not_leading == NULL);
	append_metric(&buffer, "term", "gauge",
				  "The last term of this candidate.", s.term);
	append_metric(&buffer, "connected", "gauge",
				  "Whether there is a connection to the server.", s.connected);
	append_metric(&buffer, "elected_total", "counter",
				  "How many times this candidate was elected.", s.elected);
	append_metric(&buffer, "renewed_total", "counter",
				  "How many times it has renewed its lease.", s.renewed);
	append_metric(&buffer, "lease_seconds", "gauge",
				  "What is left of the lease, less the margin.",
				  s.not_leading == NULL ? (double) (s.until - now_us()) / SEC : 0);
	appendPQExpBufferStr(&buffer, "# HELP pg_leader_http_requests_total Replies, by status.\n# TYPE pg_leader_http_requests_total counter\n");
	for (int i = 0; i < lengthof(counts); i++)
		appendPQExpBuffer(&buffer,
						  "pg_leader_http_requests_total{%s,code=\"%d\"} %lld\n",
						  labels, counts[i].status, (long long) counts[i].n);
	reply.body = buffer.data;
	return reply;
}

/*
 * Make the reply to a request that has come.
 */
Reply
reply_make(const char *method, const char *path)
{
	static const struct
	{
		const char *path;
		Reply		(*make) (void);
	}			paths[] = {
		{"/leader", leader_reply}, {"/status", status_reply},
		{"/metrics", metrics_reply}
	};
	Reply		reply = {.status = 404,.type = "text/plain"};

	for (int i = 0; i < lengthof(paths); i++)
	{
		if (strcmp(path, paths[i].path) != 0)
			continue;
		if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0)
			reply = paths[i].make();
		else
			reply.status = 405;
	}
	if (reply.body == NULL)
		reply.body = pg_strdup(reply.status == 405 ? "GET and HEAD only\n" :
							   "there are /leader, /status and /metrics\n");
	for (int i = 0; i < lengthof(counts); i++)
	{
		if (counts[i].status == reply.status)
			counts[i].n++;
	}
	return reply;
}
