/*-------------------------------------------------------------------------
 *
 * proxy.c
 *		The network of the chaos run: passes TCP connections on.
 *
 *		proxy PORT TARGET_FILE
 *
 * The file holds the port to pass them on to, on the same host; it is read for
 * every new connection.  SIGSTOP cuts the network without a word, SIGCONT heals
 * it (what was on its way arrives then), SIGHUP resets all connections, SIGUSR1
 * about a third of them.  SIGUSR2 makes it slow until the next reset: what comes
 * from the target arrives 50 ms late.
 *
 * A client that does not read what it is sent holds up its own server process,
 * and no other connection: what cannot be sent waits, and nothing more is read
 * for that client meanwhile.
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_FDS 512

typedef struct Waiting
{
	char		bytes[65536];
	ssize_t		length;
	ssize_t		sent;
} Waiting;

static struct pollfd fds[MAX_FDS];	/* the listener, then pairs */
static Waiting *waiting[MAX_FDS];	/* what each of them is to be sent */
static int	nfds = 1;
static volatile sig_atomic_t resets = 0;	/* the signal that asks for it */
static volatile sig_atomic_t slow = 0;

static void
on_signal(int signal)
{
	slow = signal == SIGUSR2;
	if (!slow)
		resets = signal;
}

static struct sockaddr_in
address(int port)
{
	struct sockaddr_in a = {.sin_family = AF_INET,.sin_port = htons(port)};

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return a;
}

static int
connect_target(const char *path)
{
	FILE	   *file = fopen(path, "r");
	int			port = 0;
	int			fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a;

	if (file != NULL && fscanf(file, "%d", &port) != 1)
		port = 0;
	if (file != NULL)
		fclose(file);
	a = address(port);
	if (connect(fd, (struct sockaddr *) &a, sizeof(a)) == 0)
		return fd;
	close(fd);
	return -1;
}

static void
accept_one(const char *path)
{
	int			client = accept(fds[0].fd, NULL, NULL);
	int			server = client >= 0 ? connect_target(path) : -1;

	if (server < 0 || nfds + 2 > MAX_FDS)
	{
		close(client);
		close(server);
		return;
	}
	for (int i = 0; i < 2; i++)
	{
		waiting[nfds] = calloc(1, sizeof(Waiting));
		if (waiting[nfds] == NULL)
			abort();
		fds[nfds++] = (struct pollfd) {i == 0 ? client : server, POLLIN, 0};
	}
}

/* A pair is at (odd, even). */
static int
other_half(int i)
{
	return i % 2 == 1 ? i + 1 : i - 1;
}

/* With a reset, not with a polite end */
static void
close_pair(int i)
{
	struct linger linger = {1, 0};

	i -= (i + 1) % 2;
	for (int k = i; k < i + 2; k++)
	{
		setsockopt(fds[k].fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
		close(fds[k].fd);
		free(waiting[k]);
		fds[k] = fds[nfds - 2 + (k - i)];
		waiting[k] = waiting[nfds - 2 + (k - i)];
	}
	nfds -= 2;
}

/* Send what waits for it; and read for it only when nothing waits any more. */
static bool
send_to(int i)
{
	Waiting    *w = waiting[i];
	int			other = other_half(i);

	while (w->sent < w->length)
	{
		ssize_t		n = send(fds[i].fd, w->bytes + w->sent, w->length - w->sent,
							 MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EAGAIN)
			break;
		if (n <= 0)
			return false;
		w->sent += n;
	}
	fds[i].events = (fds[i].events & ~POLLOUT) | (w->sent < w->length ? POLLOUT : 0);
	fds[other].events = (fds[other].events & ~POLLIN) | (w->sent < w->length ? 0 : POLLIN);
	return true;
}

/* Pass on what comes from i.  False: that was its end. */
static bool
pass_on(int i)
{
	struct timespec delay = {0, 50000000};
	int			to = other_half(i);
	Waiting    *w = waiting[to];
	ssize_t		length = recv(fds[i].fd, w->bytes, sizeof(w->bytes), MSG_DONTWAIT);

	if (length < 0 && errno == EAGAIN)
		return true;
	if (length <= 0)
		return false;
	if (slow && i % 2 == 0)
		nanosleep(&delay, NULL);
	w->length = length;
	w->sent = 0;
	return send_to(to);
}

/* What poll() has told of it.  False: close it. */
static bool
serve(int i)
{
	short		told = fds[i].revents;

	/* close_pair() may move this one to where it is come to again. */
	fds[i].revents = 0;
	if ((told & POLLOUT) != 0 && !send_to(i))
		return false;
	if ((told & POLLIN) != 0)
		return pass_on(i);
	return (told & (POLLERR | POLLHUP | POLLNVAL)) == 0;
}

int
main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal};
	struct sockaddr_in a = address(atoi(argv[1]));
	int			on = 1;

	srandom(getpid());
	sigaction(SIGHUP, &action, NULL);
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGUSR2, &action, NULL);
	fds[0] = (struct pollfd) {socket(AF_INET, SOCK_STREAM, 0), POLLIN, 0};
	setsockopt(fds[0].fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (argc != 3 || bind(fds[0].fd, (struct sockaddr *) &a, sizeof(a)) != 0 ||
		listen(fds[0].fd, 100) != 0)
	{
		perror("proxy");
		return 1;
	}
	for (;;)
	{
		int			ready = poll(fds, nfds, -1);

		if (resets != 0)
		{
			for (int i = nfds - 1; i > 0; i -= 2)
			{
				if (resets == SIGHUP || random() % 3 == 0)
					close_pair(i);
			}
			resets = 0;
			continue;
		}
		for (int i = nfds - 1; ready > 0 && i > 0; i--)
		{
			if (i < nfds && fds[i].revents != 0 && !serve(i))
				close_pair(i);
		}
		if (ready > 0 && fds[0].revents != 0)
			accept_one(argv[2]);
	}
}
