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

static struct pollfd fds[MAX_FDS];	/* the listener, then pairs */
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
	fds[nfds++] = (struct pollfd) {client, POLLIN, 0};
	fds[nfds++] = (struct pollfd) {server, POLLIN, 0};
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
		fds[k] = fds[nfds - 2 + (k - i)];
	}
	nfds -= 2;
}

static bool
pass_on(int from, int to, bool late)
{
	struct timespec delay = {0, 50000000};
	char		buffer[65536];
	ssize_t		length = recv(from, buffer, sizeof(buffer), MSG_DONTWAIT);

	if (length < 0 && errno == EAGAIN)
		return true;
	if (late)
		nanosleep(&delay, NULL);
	for (ssize_t done = 0; done < length;)
	{
		ssize_t		n = send(to, buffer + done, length - done, MSG_NOSIGNAL);

		if (n <= 0)
			return false;
		done += n;
	}
	return length > 0;
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
			/* A pair's other half is at the other of (odd, even). */
			if (i < nfds && fds[i].revents != 0 &&
				!pass_on(fds[i].fd, fds[i % 2 == 1 ? i + 1 : i - 1].fd,
						 slow && i % 2 == 0))
				close_pair(i);
		}
		if (ready > 0 && fds[0].revents != 0)
			accept_one(argv[2]);
	}
}
