/*-------------------------------------------------------------------------
 *
 * message.c
 *		Messages between pg_leader and its helpers: the guardian, the checker.
 *
 * Invariant: neither process waits for the other one, which may be stopped or
 * gone.
 *
 *-------------------------------------------------------------------------
 */
#include "guardian.h"

#include <sys/socket.h>
#include <unistd.h>

/*
 * Fork a helper, with a socket between it and us.  Return as fork() does; if
 * there is no helper, there is no socket, and errno says why.
 */
pid_t
message_fork(int *socket)
{
	int			sockets[2] = {-1, -1};
	pid_t		pid = -1;
	int			error;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0)
		pid = fork();
	error = errno;
	*socket = pid > 0 ? sockets[0] : pid == 0 ? sockets[1] : -1;
	for (int i = 0; i < lengthof(sockets); i++)
	{
		if (sockets[i] != *socket)
			close(sockets[i]);
	}
	errno = error;
	return pid;
}

/*
 * Send a message, unless there is no socket, hence no other process.  A
 * process that is stopped reads nothing, and the socket may be full: drop the
 * message then.  If the guardian does not get a message, command.c kills
 * the command before the deadline.
 */
void
message_send(int socket, MessageKind kind, int number, int64 at)
{
	Message		m = {.kind = kind,.number = number,.at = at};

	if (socket >= 0)
		(void) send(socket, &m, sizeof(m), MSG_DONTWAIT | MSG_NOSIGNAL);
}

/*
 * Receive the next message.  Return false if there is none.  If the other
 * process is gone, close the socket, and set it to -1.
 */
bool
message_receive(int *socket, Message *m)
{
	while (*socket >= 0)
	{
		ssize_t		length = recv(*socket, m, sizeof(Message), MSG_DONTWAIT);

		if (length == sizeof(Message))
			return true;

		/*
		 * A process that ended with messages of ours unread is reported as a
		 * connection reset first.  Its own messages come after that.
		 */
		if (length < 0 && (errno == EINTR || errno == ECONNRESET))
			continue;
		if (length < 0 && errno == EAGAIN)
			return false;
		close(*socket);
		*socket = -1;
	}
	return false;
}
