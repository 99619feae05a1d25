/*-------------------------------------------------------------------------
 *
 * 90_peers.c
 *		Other elections and this one, side by side: takeover after SIGKILL of
 *		the leader's client, and cycles of acquire and release per second.
 *
 * Each has one server, on a loopback port of its own and with its data in a
 * temporary folder, and flushes each write before it answers.  What is not
 * installed is left out.  All clients are processes of their own; those of this
 * extension connect by TCP, too.
 *
 * A takeover: one client leads, another one waits for the lead; the first is
 * killed at a random moment between two of its renewals; until the other one
 * knows that it leads.  Cycles: by one client, and by 8 on a seat each.  The
 * peers take turns.
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"
#include "peer.h"

#define ROUNDS		5
#define TRIALS		3			/* takeovers of each, in a round */
#define CYCLES_MS	2000
#define MANY		8
#define START_MS	30000		/* for a server */

/* --- this extension, as one of them */

#define LEASE_MS	2000		/* of detached candidates */
#define TRY_MS		100

static PGconn *conn;
static char election[60];
static char candidate[60];
static char term[30];

static void
open_ours(int port, const char *seat, const char *name)
{
	(void) port;
	conn = new_connection(name);
	snprintf(election, sizeof(election), "%s", seat);
	snprintf(candidate, sizeof(candidate), "%s", name);
	PQclear(PQprepare(conn, "acquire", "SELECT term FROM "
					  "leader_election.acquire($1, $2)", 0, NULL));
	PQclear(PQprepare(conn, "renew", "SELECT term FROM "
					  "leader_election.renew($1, $2)", 0, NULL));
	PQclear(PQprepare(conn, "release", "SELECT leader_election.release($1, $2)",
					  0, NULL));
}

static void
campaign(void)
{
	run(conn, "CALL leader_election.campaign('%s', '%s')", election, candidate);
}

static void
resign(void)
{
	run(conn, "SELECT leader_election.leave('%s')", election);
}

static void
keep_session(void)
{
}

/*
 * Executes one of these statements; returns its value, or NULL.
 */
static char *
execute(const char *statement, const char *arg)
{
	const char *args[2] = {election, arg};
	PGresult   *result = PQexecPrepared(conn, statement, 2, args, NULL, NULL, 0);
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	char	   *value = NULL;

	if (PQresultStatus(result) == PGRES_TUPLES_OK)
		value = PQntuples(result) == 1 ? strdup(PQgetvalue(result, 0, 0)) : NULL;
	else if (state == NULL || strcmp(state, "55P03") != 0)
		die("%s: %s", statement, PQerrorMessage(conn));
	PQclear(result);
	return value;
}

static void
acquire_detached(void)
{
	for (;;)
	{
		char	   *value = execute("acquire", candidate);

		if (value != NULL)
		{
			snprintf(term, sizeof(term), "%s", value);
			free(value);
			return;
		}
		pause_ms(TRY_MS);
	}
}

static void
release_detached(void)
{
	char	   *value = execute("release", term);

	if (value == NULL || strcmp(value, "t") != 0)
		die("the term was lost");
	free(value);
}

static void
keep_detached(void)
{
	char	   *value = execute("renew", term);

	if (value == NULL)
		die("the term was lost");
	free(value);
}

static const Peer session = {
	.name = "campaign()",
	.lease = "session",
	.open = open_ours,
	.acquire = campaign,
	.release = resign,
	.keep = keep_session,
	.keep_ms = 1000
};

static const Peer detached = {
	.name = "acquire()",
	.lease = "lease of 2 s",
	.open = open_ours,
	.acquire = acquire_detached,
	.release = release_detached,
	.keep = keep_detached,
	.keep_ms = LEASE_MS / 3
};

/* --- the clients */

static const Peer *const peers[] = {
	&session, &detached, &etcd, &zookeeper, &redis
};

enum
{
	SESSION, DETACHED, NPEERS = sizeof(peers) / sizeof(peers[0])
};

static int	ports[NPEERS];

/*
 * A client's arguments: "PEER:PORT" and its seat.
 */
static const Peer *
open_peer(const char *arg, const char *seat)
{
	const Peer *peer = peers[atoi(arg)];

	peer->open(atoi(strchr(arg, ':') + 1), seat, text("client %d", getpid()));
	return peer;
}

/*
 * Says a first byte when it is about to acquire, and another when it leads.
 */
static int
lead(const char *arg, const char *seat)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	const Peer *peer = open_peer(arg, seat);

	tell_parent();
	peer->acquire();
	tell_parent();
	while (poll(&input, 1, peer->keep_ms) == 0)
		peer->keep();
	return 0;
}

/*
 * Says a byte when it is ready; with the end of its input it begins; in the end
 * it says how many cycles per second there were.
 */
static int
cycle(const char *arg, const char *seat)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	const Peer *peer = open_peer(arg, seat);
	double		start;
	double		kept_at;
	double		now;
	int			n = 0;

	peer->acquire();			/* the first one may have more to do */
	tell_parent();
	while (poll(&input, 1, peer->keep_ms) == 0)
		peer->keep();
	peer->release();
	start = kept_at = now_us();
	do
	{
		peer->acquire();
		now = now_us();
		if (now - kept_at > peer->keep_ms * 1e3)
		{
			peer->keep();
			kept_at = now;
		}
		peer->release();
		n++;
		now = now_us();
	} while (now - start < CYCLES_MS * 1e3);
	printf("%.1f\n", n * 1e6 / (now - start));
	return 0;
}

/* --- the servers */

static bool
accepts(int port)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)
	};
	int			sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool		connected = connect(sock, (struct sockaddr *) &address,
									sizeof(address)) == 0;

	close(sock);
	return connected;
}

/*
 * A port that is free, and the next one, too.
 */
static int
find_port(void)
{
	static int	port = 0;

	if (port == 0)
		port = 20000 + getpid() % 10000;
	do
		port += 2;
	while (accepts(port) || accepts(port + 1));
	return port;
}

/*
 * Returns whether it runs; it ends with this process.
 */
static bool
start_server(const Peer *peer, int port)
{
	char		folder[300];
	char	   *args[MAX_ARGS] = {NULL};
	double		give_up_at = now_us() + START_MS * 1e3;
	const char *temporary = getenv("TMPDIR");
	pid_t		pid;

	snprintf(folder, sizeof(folder), "%s/%s.%d",
			 temporary != NULL ? temporary : "/tmp", peer->name, getpid());
	if (mkdir(folder, 0700) != 0)
		die("%s: %s", folder, strerror(errno));
	peer->command(args, folder, port);
	pid = fork();
	if (pid == -1)
		die("fork: %s", strerror(errno));
	if (pid == 0)
	{
		int			log = open(text("%s/log", folder),
							   O_WRONLY | O_CREAT | O_APPEND, 0600);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(log, STDOUT_FILENO);
		dup2(log, STDERR_FILENO);
		if (chdir(folder) == 0)
			execv(args[0], args);
		_exit(127);
	}
	while (!accepts(port))
	{
		if (waitpid(pid, NULL, WNOHANG) == pid || now_us() > give_up_at)
			return false;
		pause_ms(50);
	}
	pause_ms(1000);				/* it may have more to do at first */
	return true;
}

/* --- the measures */

static bool runs[NPEERS];
static Sample takeover_ms[NPEERS];
static Sample alone[NPEERS];
static Sample many[NPEERS];

static Child
start_client(int p, const char *role, const char *seat)
{
	return start_child(role, text("%d:%d", p, ports[p]), seat);
}

static void
time_takeovers(int p)
{
	const char *seat = text("takeover%d", p);
	Child		leader = start_client(p, "lead", seat);

	await_child(&leader);
	await_child(&leader);
	for (int i = 0; i < TRIALS; i++)
	{
		Child		next = start_client(p, "lead", seat);
		double		start;

		await_child(&next);
		pause_ms(300 + (int) (random() % (2 * peers[p]->keep_ms)));
		start = now_us();
		kill_child(&leader);
		await_child(&next);
		add(&takeover_ms[p], (now_us() - start) / 1000);
		reap_child(&leader);
		leader = next;
	}
	reap_child(&leader);
}

static double
time_cycles(int p, int nclients)
{
	Child		clients[MANY];
	double		sum = 0;

	for (int i = 0; i < nclients; i++)
	{
		char		seat[20];

		snprintf(seat, sizeof(seat), "seat%d", i);
		clients[i] = start_client(p, "cycle", seat);
	}
	for (int i = 0; i < nclients; i++)
		await_child(&clients[i]);
	for (int i = 0; i < nclients; i++)
	{
		close(clients[i].lives);
		clients[i].lives = -1;
	}
	for (int i = 0; i < nclients; i++)
	{
		char		answer[40] = "";
		FILE	   *file = fdopen(dup(clients[i].answers), "r");

		if (file == NULL || fgets(answer, sizeof(answer), file) == NULL)
			die("%s: a client ended", peers[p]->name);
		fclose(file);
		sum += atof(answer);
		reap_child(&clients[i]);
	}
	return sum;
}

/*
 * Beside the first of ours that has such a sample.
 */
static void
report_all(const char *what, const char *unit, const Sample samples[])
{
	int			first = samples[SESSION].n > 0 ? SESSION : DETACHED;
	const char *floor = text("%s: %s", what, peers[first]->name);

	for (int p = 0; p < NPEERS; p++)
	{
		if (samples[p].n == 0)
			continue;
		report(text("%s: %s, %s", what, peers[p]->name, peers[p]->lease), unit,
			   &samples[p],
			   FLOOR(floor, median(&samples[p]) / median(&samples[first])));
	}
}

int
main(int argc, char **argv)
{
	PGconn	   *monitor;

	if (argc == 4 && strcmp(argv[1], "lead") == 0)
		return lead(argv[2], argv[3]);
	if (argc == 4 && strcmp(argv[1], "cycle") == 0)
		return cycle(argv[2], argv[3]);

	monitor = new_connection("monitor");
	run(monitor, "SELECT leader_election.create_election('takeover%d', "
		"lease_duration => '%d ms')", DETACHED, LEASE_MS);
	for (int p = 0; p < NPEERS; p++)
	{
		runs[p] = true;
		if (peers[p]->command == NULL)
			continue;
		ports[p] = find_port();
		runs[p] = access(peers[p]->needs, R_OK) == 0 &&
			start_server(peers[p], ports[p]);
		if (!runs[p])
			report_note("  %s: not installed, or it does not start",
						peers[p]->name);
	}

	for (int round = 0; round < ROUNDS; round++)
	{
		for (int p = 0; p < NPEERS; p++)
		{
			if (!runs[p])
				continue;
			time_takeovers(p);
			if (p == SESSION)
				continue;
			add(&alone[p], time_cycles(p, 1));
			add(&many[p], time_cycles(p, MANY));
		}
	}

	report_all("takeover", "ms", takeover_ms);
	report_all("cycles, 1 client", "1/s", alone);
	report_all(text("cycles, %d clients", MANY), "1/s", many);
	PQfinish(monitor);
	return 0;
}
