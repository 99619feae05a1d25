/*-------------------------------------------------------------------------
 *
 * peer.c
 *		Sockets to the servers of other elections.
 *
 * Their protocols are spoken here directly: no client library's cost is taken
 * for the server's, and none has to be installed.
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"
#include "peer.h"

#define GIVE_UP_MS	60000

int
connect_to(int port)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)
	};
	int			on = 1;
	int			sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (sock == -1 ||
		connect(sock, (struct sockaddr *) &address, sizeof(address)) != 0)
		die("port %d: %s", port, strerror(errno));
	setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return sock;
}

void
send_all(int sock, const void *data, size_t size)
{
	if (send(sock, data, size, MSG_NOSIGNAL) != (ssize_t) size)
		die("could not send: %s", strerror(errno));
}

bool
can_read(int sock, int timeout_ms)
{
	struct pollfd fd = {.fd = sock, .events = POLLIN};

	return poll(&fd, 1, timeout_ms) > 0;
}

void
read_all(int sock, void *data, size_t size)
{
	char	   *to = data;

	while (size > 0)
	{
		ssize_t		n;

		if (!can_read(sock, GIVE_UP_MS))
			die("no answer");
		n = recv(sock, to, size, 0);
		if (n <= 0)
			die("the connection is lost");
		to += n;
		size -= n;
	}
}

void
write_file(const char *folder, const char *name, const char *lines)
{
	FILE	   *file = fopen(text("%s/%s", folder, name), "w");

	if (file == NULL || fputs(lines, file) == EOF || fclose(file) != 0)
		die("cannot write %s/%s", folder, name);
}
