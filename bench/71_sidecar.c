/*-------------------------------------------------------------------------
 *
 * 71_sidecar.c
 *		How long a sidecar (pg_leader stand) takes to reply, beside a SELECT of
 *		the lease row.
 *
 * One client asks GET /leader over a connection that it keeps, and over a new
 * one each time; and reads the leader from the lease row, with a statement that
 * is prepared.  They take turns.
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

#define ROUNDS		1000
#define TARGET_US	1000.0
#define FLOOR_NAME	"sidecar: SELECT of the lease row"

static Sample kept;
static Sample fresh;
static Sample selected;
static struct sockaddr_in address = {.sin_family = AF_INET};

/*
 * A port that is free now.
 */
static void
choose_port(void)
{
	socklen_t	length = sizeof(address);
	int			fd = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(fd, (struct sockaddr *) &address, length) != 0 ||
		getsockname(fd, (struct sockaddr *) &address, &length) != 0)
		die("no port is free");
	close(fd);
}

static pid_t
start_sidecar(void)
{
	const char *http = text("--http=%d", ntohs(address.sin_port));
	pid_t		pid = fork();

	if (pid == 0)
	{
		execlp("pg_leader", "pg_leader", "stand", "-e", "bench",
			   "-n", "sidecar", http, NULL);
		_exit(127);
	}
	return pid;
}

/*
 * A new connection, or -1.
 */
static int
connect_http(void)
{
	int			on = 1;
	int			fd = socket(AF_INET, SOCK_STREAM, 0);

	(void) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (connect(fd, (struct sockaddr *) &address, sizeof(address)) == 0)
		return fd;
	close(fd);
	return -1;
}

/*
 * Ask once.  The reply comes in one piece.
 */
static bool
leads(int fd)
{
	static const char request[] = "GET /leader HTTP/1.1\r\nHost: bench\r\n\r\n";
	char		reply[4096];
	ssize_t		length;

	if (send(fd, request, strlen(request), MSG_NOSIGNAL) < 0 ||
		(length = recv(fd, reply, sizeof(reply) - 1, 0)) <= 0)
		die("the sidecar does not reply");
	reply[length] = '\0';
	return strncmp(reply, "HTTP/1.1 200 ", 13) == 0;
}

static void
wait_until_it_leads(pid_t pid)
{
	bool		leading = false;

	for (int i = 0; i < 1000 && !leading; i++)
	{
		int			fd = connect_http();

		if (waitpid(pid, NULL, WNOHANG) != 0)
			die("pg_leader stand has ended: was it built with libmicrohttpd?");
		leading = fd >= 0 && leads(fd);
		if (fd >= 0)
			close(fd);
		pause_ms(10);
	}
	if (!leading)
		die("the sidecar is not elected");
}

static void
time_select(PGconn *conn)
{
	double		start = now_us();
	PGresult   *result = PQexecPrepared(conn, "leader", 0, NULL, NULL, NULL, 0);

	if (PQntuples(result) != 1)
		die("%s", PQerrorMessage(conn));
	PQclear(result);
	add(&selected, now_us() - start);
}

static void
time_reply(Sample *sample, int fd)
{
	double		start = now_us();
	int			used = fd >= 0 ? fd : connect_http();

	if (used < 0 || !leads(used))
		die("the sidecar does not lead");
	add(sample, now_us() - start);
	if (fd < 0)
		close(used);
}

static void
report_reply(const char *name, const Sample *sample)
{
	double		m = median(sample);

	report(name, "us", sample, (Against) {
		.floor = FLOOR_NAME, .ratio = m / median(&selected),
		.target = text("median <= %.0f", TARGET_US), .met = m <= TARGET_US
	});
}

int
main(void)
{
	PGconn	   *conn = new_connection("reader");
	pid_t		pid;
	int			fd;

	choose_port();
	pid = start_sidecar();
	wait_until_it_leads(pid);
	run(conn, "PREPARE leader AS SELECT leader FROM leader_election.lease "
		"WHERE election = 'bench'");
	fd = connect_http();
	for (int i = 0; i < ROUNDS; i++)
	{
		time_select(conn);
		time_reply(&kept, fd);
		time_reply(&fresh, -1);
	}

	report(FLOOR_NAME, "us", &selected, FLOOR(FLOOR_NAME, 1));
	report_reply("sidecar: GET /leader, connection kept", &kept);
	report_reply("sidecar: GET /leader, new connection", &fresh);
	close(fd);
	(void) kill(pid, SIGTERM);
	(void) waitpid(pid, NULL, 0);
	PQfinish(conn);
	return 0;
}
