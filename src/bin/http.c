/*-------------------------------------------------------------------------
 *
 * http.c
 *		The sidecar's HTTP server, in a thread of its own (libmicrohttpd).
 *
 * Invariants:
 *
 * - A reply is made when the whole request has come, and after it was sent.
 *	 No reply is kept for another request.
 *
 * - Clients are not in the way of others, whatever they do.  A connection that
 *	 comes is accepted at once.  Where that makes one too many, another one is
 *	 closed: the oldest of the address that has the most.  So each address has
 *	 its share, one that comes now and then is not pushed out by one that
 *	 floods us, and where all come from one address (a proxy's, 127.0.0.1),
 *	 who comes last is served all the same.
 *
 * - A connection that has had no reply for some time is closed, whatever
 *	 dribbles in.  (A time-out of libmicrohttpd begins anew with every byte.)
 *
 * - The thread takes no signal, and touches nothing of the main thread's but
 *	 what reply.c guards.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#ifdef USE_LIBMICROHTTPD

#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define MAX_CONNECTIONS		200
#define REQUEST_MEMORY		8192	/* for the head of a request */

/*
 * Slots for connections that are shut down, until the library closes them.  It
 * accepts no more than 10 in a run, and closes them in the next.
 */
#define SPARE_CONNECTIONS	50
#define SLOTS				(MAX_CONNECTIONS + SPARE_CONNECTIONS)

/* How long a connection may be without a reply */
#define LONGEST_IDLE		(10 * SEC)
#define LOOK_AT_IDLE_MS		200

#if MHD_VERSION < 0x00097002
typedef int MhdResult;
#else
typedef enum MHD_Result MhdResult;
#endif

typedef struct HttpConnection
{
	int			fd;				/* -1: this slot is free */
	bool		shut;			/* the library is about to close it */
	uint64		address;		/* see address_key() */
	int64		began;
	int64		since;			/* its last reply, or its beginning */
} HttpConnection;

/* All of it is the thread's while that runs, but for the descriptor to stop */
static struct
{
	struct MHD_Daemon *daemon;
	pthread_t	thread;
	int			stop_fd;
	int			nconnections;
	int			nshut;			/* of them are shut down */
	HttpConnection connections[SLOTS];
}			server;

/* --- connections */

/*
 * What stands for an address: that of IPv4, or the network of one of IPv6,
 * since a host there has as many addresses in its network as it likes.
 */
static uint64
address_key(const struct sockaddr *address)
{
	uint64		key = 0;

	if (address->sa_family == AF_INET6)
		memcpy(&key, &((const struct sockaddr_in6 *) address)->sin6_addr,
			   sizeof(key));
	else
		key = ((const struct sockaddr_in *) address)->sin_addr.s_addr;
	return key;
}

/*
 * Shut down a connection.  The library notices, and closes it.
 */
static void
shut_down(HttpConnection *c)
{
	if (c->shut)
		return;
	c->shut = true;
	server.nshut++;
	(void) shutdown(c->fd, SHUT_RDWR);
}

/*
 * How many connections does an address have?
 */
static int
count_of(uint64 address)
{
	int			n = 0;

	for (int i = 0; i < SLOTS; i++)
	{
		const HttpConnection *c = &server.connections[i];

		n += c->fd >= 0 && !c->shut && c->address == address;
	}
	return n;
}

/*
 * There is one too many: shut down the oldest of the address that has the
 * most.  That is never the one that has just come, unless it is alone.
 */
static void
make_room(void)
{
	HttpConnection *victim = NULL;
	int			most = 0;

	for (int i = 0; i < SLOTS; i++)
	{
		HttpConnection *c = &server.connections[i];
		int			n;

		if (c->fd < 0 || c->shut)
			continue;
		n = victim != NULL && c->address == victim->address ? most :
			count_of(c->address);
		if (n < most || (n == most && c->began >= victim->began))
			continue;
		most = n;
		victim = c;
	}
	if (victim != NULL)
		shut_down(victim);
}

static void
on_connection(void *arg, struct MHD_Connection *connection, void **context,
			  enum MHD_ConnectionNotificationCode code)
{
	const union MHD_ConnectionInfo *info;
	HttpConnection *c = *context;

	if (code == MHD_CONNECTION_NOTIFY_CLOSED)
	{
		server.nconnections--;
		if (c == NULL)
			return;
		/* The descriptor is closed after this: others get its number then. */
		c->fd = -1;
		server.nshut -= c->shut;
		return;
	}
	server.nconnections++;
	for (int i = 0; i < SLOTS; i++)
	{
		c = &server.connections[i];
		if (c->fd >= 0)
			continue;
		info = MHD_get_connection_info(connection,
									   MHD_CONNECTION_INFO_CONNECTION_FD);
		c->fd = info->connect_fd;
		info = MHD_get_connection_info(connection,
									   MHD_CONNECTION_INFO_CLIENT_ADDRESS);
		c->address = address_key(info->client_addr);
		c->shut = false;
		c->began = c->since = now_us();
		*context = c;
		break;
	}
	if (server.nconnections - server.nshut > MAX_CONNECTIONS)
		make_room();
}

static void
on_completed(void *arg, struct MHD_Connection *connection, void **request,
			 enum MHD_RequestTerminationCode code)
{
	const union MHD_ConnectionInfo *info;

	info = MHD_get_connection_info(connection,
								   MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	if (info->socket_context != NULL)
		((HttpConnection *) info->socket_context)->since = now_us();
}

/*
 * Shut down connections that have had no reply for too long.
 */
static void
shut_down_idle(void)
{
	int64		before = now_us() - LONGEST_IDLE;

	for (int i = 0; i < SLOTS; i++)
	{
		HttpConnection *c = &server.connections[i];

		if (c->fd >= 0 && c->since < before)
			shut_down(c);
	}
}

/* --- requests */

static void
add_number(struct MHD_Response *response, const char *header, int64 number)
{
	char		value[32];

	snprintf(value, sizeof(value), "%lld", (long long) number);
	(void) MHD_add_response_header(response, header, value);
}

static MhdResult
send_reply(struct MHD_Connection *connection, const Reply *reply)
{
	struct MHD_Response *response;
	MhdResult	result;

	response = MHD_create_response_from_buffer(strlen(reply->body),
											   reply->body,
											   MHD_RESPMEM_MUST_FREE);
	if (response == NULL)
	{
		free(reply->body);
		return MHD_NO;
	}
	(void) MHD_add_response_header(response, "Content-Type", reply->type);
	(void) MHD_add_response_header(response, "Cache-Control", "no-store");
	if (reply->status == 405)
		(void) MHD_add_response_header(response, "Allow", "GET, HEAD");
	if (reply->term != 0)
	{
		add_number(response, "X-Leader-Term", reply->term);
		add_number(response, "X-Leader-Remaining-Ms", reply->remaining_ms);
	}
	result = MHD_queue_response(connection, reply->status, response);
	MHD_destroy_response(response);
	return result;
}

/*
 * The library calls this when the head of a request has come, for each part of
 * its body, and when all of it has come.  A request with a body is not for us:
 * close its connection.
 */
static MhdResult
on_request(void *arg, struct MHD_Connection *connection, const char *url,
		   const char *method, const char *version, const char *body,
		   size_t *body_size, void **request)
{
	static char seen;
	Reply		reply;

	if (*request == NULL)
	{
		*request = &seen;
		return MHD_YES;
	}
	if (*body_size != 0)
		return MHD_NO;
	reply = reply_make(method, url);
	return send_reply(connection, &reply);
}

/* --- the thread */

static void *
serve(void *arg)
{
	const union MHD_DaemonInfo *info;
	struct pollfd fds[2] = {{.events = POLLIN}, {.events = POLLIN}};
	int			before = 0;

	info = MHD_get_daemon_info(server.daemon, MHD_DAEMON_INFO_EPOLL_FD);
	fds[0].fd = info->epoll_fd;
	fds[1].fd = server.stop_fd;
	while (fds[1].revents == 0)
	{
		MHD_UNSIGNED_LONG_LONG due;
		int			timeout = server.nconnections > 0 ? LOOK_AT_IDLE_MS : -1;

		/*
		 * Where all connections were taken, the library does not listen.  It
		 * begins to listen again only in the run after the one that has closed
		 * some: had that closed all, nothing would ever wake us.
		 */
		if (server.nconnections < before)
			timeout = 0;
		else if (MHD_get_timeout(server.daemon, &due) == MHD_YES)
			timeout = Min(due, LOOK_AT_IDLE_MS);
		(void) poll(fds, lengthof(fds), timeout);
		before = server.nconnections;
		(void) MHD_run(server.daemon);
		shut_down_idle();
	}
	return NULL;
}

/*
 * Return a socket that listens, or -1, with errno set.
 */
static int
listen_at(const Address *address)
{
	int			on = 1;
	int			error;
	bool		is_v6 = address->any.sa_family == AF_INET6;
	int			fd = socket(address->any.sa_family,
							SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	/* Connections of an earlier process may still be in TIME_WAIT. */
	(void) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	/* [::] does not mean all addresses of IPv4, too: nobody has said that. */
	if (is_v6)
		(void) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
	if (bind(fd, &address->any, is_v6 ? sizeof(address->v6) :
			 sizeof(address->v4)) == 0 && listen(fd, SOMAXCONN) == 0)
		return fd;
	error = errno;
	close(fd);
	errno = error;
	return -1;
}

/*
 * Start the thread, with all signals blocked: they are the main thread's.
 */
static bool
start_thread(void)
{
	sigset_t	all;
	sigset_t	old;
	int			error;

	/*
	 * The library writes the date, and the first to do that reads TZ from the
	 * environment, which the main thread may be changing then (params.c).
	 */
	tzset();
	sigfillset(&all);
	(void) pthread_sigmask(SIG_SETMASK, &all, &old);
	error = pthread_create(&server.thread, NULL, serve, NULL);
	(void) pthread_sigmask(SIG_SETMASK, &old, NULL);
	return error == 0;
}

/*
 * Start the server.  Return false, with an error reported, if that is not
 * possible.
 */
bool
http_start(const Address *address)
{
	const char *where = text_lend(address_format(address));
	int			fd = listen_at(address);

	if (fd < 0)
	{
		pg_log_error("could not listen on %s: %m", where);
		return false;
	}
	for (int i = 0; i < SLOTS; i++)
		server.connections[i].fd = -1;
	server.stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	server.daemon =
		MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, on_request, NULL,
						 MHD_OPTION_LISTEN_SOCKET, fd,
						 MHD_OPTION_CONNECTION_LIMIT,
						 (unsigned int) SLOTS,
						 MHD_OPTION_CONNECTION_MEMORY_LIMIT,
						 (size_t) REQUEST_MEMORY,
						 MHD_OPTION_NOTIFY_CONNECTION, on_connection, NULL,
						 MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
						 MHD_OPTION_END);
	if (server.stop_fd >= 0 && server.daemon != NULL && start_thread())
		return true;
	pg_log_error("could not start the HTTP server");
	return false;
}

/*
 * End the thread, and close all connections.
 */
void
http_stop(void)
{
	uint64		one = 1;

	(void) !write(server.stop_fd, &one, sizeof(one));
	(void) pthread_join(server.thread, NULL);
	MHD_stop_daemon(server.daemon);
	close(server.stop_fd);
}

#else							/* !USE_LIBMICROHTTPD */

bool
http_start(const Address *address)
{
	pg_log_error("this pg_leader was built without HTTP");
	pg_log_error_hint("Build it where libmicrohttpd can be found (package libmicrohttpd-dev).");
	return false;
}

void
http_stop(void)
{
}

#endif							/* USE_LIBMICROHTTPD */
