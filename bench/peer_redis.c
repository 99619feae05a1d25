/*-------------------------------------------------------------------------
 *
 * peer_redis.c
 *		A lock in Redis, with the recipe of its documentation: SET NX PX with a
 *		value that nobody else has, and a script that deletes the key only if it
 *		still has that value.
 *
 * Who waits is told of the key's end by a keyspace notification, and tries every
 * 100 ms all the same.  The lock lasts for 2 s, as etcd's shortest lease does,
 * and is prolonged every third of that.  Each write is flushed before its answer
 * (appendfsync always).
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "peer.h"

#define LEASE_MS	"2000"
#define TRY_MS		100

static const char release_script[] =
"if redis.call('get', KEYS[1]) == ARGV[1] then "
"return redis.call('del', KEYS[1]) else return 0 end";
static const char prolong_script[] =
"if redis.call('get', KEYS[1]) == ARGV[1] then "
"return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

static int	sock;				/* for commands */
static int	told = -1;			/* for notifications */
static int	server_port;
static char key[60];
static char value[60];

static void
command(char *args[MAX_ARGS], const char *folder, int port)
{
	const char *all[] = {
		"/usr/bin/redis-server", "--bind", "127.0.0.1", "--port",
		text("%d", port), "--dir", folder, "--appendonly", "yes",
		"--appendfsync", "always", "--save", "", "--notify-keyspace-events",
		"Kgx", "--daemonize", "no"
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		args[i] = strdup(all[i]);
}

static void
send_command(int to, int nargs, const char *const args[])
{
	char		buffer[1000];
	int			n = snprintf(buffer, sizeof(buffer), "*%d\r\n", nargs);

	for (int i = 0; i < nargs; i++)
		n += snprintf(buffer + n, sizeof(buffer) - n, "$%zu\r\n%s\r\n",
					  strlen(args[i]), args[i]);
	send_all(to, buffer, n);
}

static void
read_line(int from, char line[200])
{
	int			n = 0;

	do
	{
		if (n == 199)
			die("redis: a long line");
		read_all(from, &line[n++], 1);
	} while (line[n - 1] != '\n');
	line[n - 2] = '\0';
}

/*
 * An answer's first line, which is all of it if it is an integer or null; what
 * else belongs to it is skipped.
 */
static void
read_reply(int from, char line[200])
{
	char		rest[200];

	read_line(from, line);
	if (line[0] == '-')
		die("redis: %s", line);
	/* A string has one line more, and a list has its members. */
	for (int left = line[0] == '*' ? atoi(line + 1) : line[0] == '$' &&
		 line[1] != '-'; left > 0; left--)
	{
		read_line(from, rest);
		if (rest[0] == '$' && line[0] == '*')
			read_line(from, rest);
	}
}

static void
open_client(int port, const char *seat, const char *name)
{
	server_port = port;
	snprintf(key, sizeof(key), "%s", seat);
	snprintf(value, sizeof(value), "%s", name);
	sock = connect_to(port);
}

static bool
try_lock(void)
{
	const char *const set[] = {"SET", key, value, "NX", "PX", LEASE_MS};
	char		line[200];

	send_command(sock, 6, set);
	read_reply(sock, line);
	return strcmp(line, "+OK") == 0;
}

static void
acquire(void)
{
	char		line[200];

	while (!try_lock())
	{
		if (told == -1)
		{
			const char *const subscribe[] = {
				"SUBSCRIBE", text("__keyspace@0__:%s", key)
			};

			told = connect_to(server_port);
			send_command(told, 2, subscribe);
			read_reply(told, line);
			continue;
		}
		if (can_read(told, TRY_MS))
			read_reply(told, line);
	}
}

static void
release(void)
{
	const char *const eval[] = {"EVAL", release_script, "1", key, value};
	char		line[200];

	send_command(sock, 5, eval);
	read_reply(sock, line);
	if (strcmp(line, ":1") != 0)
		die("redis: the lock was lost");
}

static void
keep(void)
{
	const char *const eval[] = {
		"EVAL", prolong_script, "1", key, value, LEASE_MS
	};
	char		line[200];

	send_command(sock, 6, eval);
	read_reply(sock, line);
	if (strcmp(line, ":1") != 0)
		die("redis: the lock was lost");
}

const Peer	redis = {
	.name = "Redis",
	.needs = "/usr/bin/redis-server",
	.lease = "SET NX PX of 2 s",
	.command = command,
	.open = open_client,
	.acquire = acquire,
	.release = release,
	.keep = keep,
	.keep_ms = 667
};
