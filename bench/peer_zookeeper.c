/*-------------------------------------------------------------------------
 *
 * peer_zookeeper.c
 *		The leader election recipe of ZooKeeper's documentation: each candidate
 *		creates an ephemeral, sequential node, the lowest one leads, and each
 *		other one watches the node before its own.
 *
 * A session lasts for two ticks at least, 4 s with the default tickTime of
 * 2000, and is kept by a ping every third of that.  Each write is flushed before
 * its answer (forceSync, the default).
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <endian.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "peer.h"

#define SESSION_MS	4000
#define KEEP_MS		1333
#define NO_NODE		(-101)
#define NODE_EXISTS	(-110)

enum
{
	CREATE = 1, DELETE = 2, EXISTS = 3, GET_CHILDREN = 8, PING = 11
};

/* What is sent, or has been received */
typedef struct Packet
{
	char		data[65536];
	size_t		size;
	size_t		at;				/* what is read next */
} Packet;

static int	sock;
static int	next_xid = 1;
static bool event;				/* a watch has fired */
static Packet packet;
static char folder_node[80];
static char own_node[120];

static void
command(char *args[MAX_ARGS], const char *folder, int port)
{
	write_file(folder, "zoo.cfg",
			   text("tickTime=2000\ndataDir=%s\nclientPort=%d\n"
					"clientPortAddress=127.0.0.1\nforceSync=yes\n"
					"admin.enableServer=false\n", folder, port));
	args[0] = strdup("/usr/bin/java");
	args[1] = strdup("-cp");
	args[2] = strdup("/usr/share/java/zookeeper.jar");
	args[3] = strdup("org.apache.zookeeper.server.ZooKeeperServerMain");
	args[4] = strdup(text("%s/zoo.cfg", folder));
}

static void
put(const void *data, size_t size)
{
	if (packet.size + size > sizeof(packet.data))
		die("zookeeper: a long request");
	memcpy(packet.data + packet.size, data, size);
	packet.size += size;
}

static void
put_int(int32_t value)
{
	uint32_t	net = htonl((uint32_t) value);

	put(&net, sizeof(net));
}

static void
put_long(int64_t value)
{
	uint64_t	net = htobe64((uint64_t) value);

	put(&net, sizeof(net));
}

static void
put_string(const char *value)
{
	put_int((int32_t) strlen(value));
	put(value, strlen(value));
}

static void
put_bool(bool value)
{
	char		byte = value;

	put(&byte, 1);
}

static int32_t
get_int(void)
{
	uint32_t	net;

	if (packet.at + sizeof(net) > packet.size)
		die("zookeeper: a short answer");
	memcpy(&net, packet.data + packet.at, sizeof(net));
	packet.at += sizeof(net);
	return (int32_t) ntohl(net);
}

static void
get_string(char *value, size_t size)
{
	int32_t		n = get_int();

	if (n < 0 || (size_t) n >= size || packet.at + n > packet.size)
		die("zookeeper: a string of %d bytes", n);
	memcpy(value, packet.data + packet.at, n);
	value[n] = '\0';
	packet.at += n;
}

static void
send_packet(void)
{
	uint32_t	net = htonl((uint32_t) packet.size);
	char		whole[sizeof(net) + sizeof(packet.data)];

	memcpy(whole, &net, sizeof(net));
	memcpy(whole + sizeof(net), packet.data, packet.size);
	send_all(sock, whole, sizeof(net) + packet.size);
}

static void
read_packet(void)
{
	uint32_t	net;

	read_all(sock, &net, sizeof(net));
	packet.size = ntohl(net);
	packet.at = 0;
	if (packet.size > sizeof(packet.data))
		die("zookeeper: a long answer");
	read_all(sock, packet.data, packet.size);
}

static void
begin(int xid, int type)
{
	packet.size = 0;
	put_int(xid);
	put_int(type);
}

/*
 * Send the request that was begun, and wait for its answer; returns its error.
 * Events may come in between.
 */
static int32_t
call(int xid)
{
	send_packet();
	for (;;)
	{
		int32_t		answered;
		int32_t		error;

		read_packet();
		answered = get_int();
		packet.at += 8;			/* the transaction's number */
		error = get_int();
		if (answered == xid)
			return error;
		if (answered == -1)
			event = true;
		else
			die("zookeeper: an answer to %d, not %d", answered, xid);
	}
}

static void
keep(void)
{
	begin(-2, PING);
	(void) call(-2);
}

static int32_t
create(const char *path, int flags)
{
	int			xid = next_xid++;

	begin(xid, CREATE);
	put_string(path);
	put_int(0);					/* no data */
	put_int(1);					/* one entry of access control: */
	put_int(31);				/* anything, */
	put_string("world");		/* by anybody */
	put_string("anyone");
	put_int(flags);
	return call(xid);
}

static void
open_client(int port, const char *seat, const char *name)
{
	int32_t		error;

	(void) name;
	sock = connect_to(port);
	packet.size = 0;
	put_int(0);					/* the protocol's version */
	put_long(0);
	put_int(SESSION_MS);
	put_long(0);				/* a new session */
	put_int(16);
	put("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16);
	put_bool(false);
	send_packet();
	read_packet();
	(void) get_int();
	if (get_int() != SESSION_MS)
		die("zookeeper: not the session that was asked for");

	snprintf(folder_node, sizeof(folder_node), "/%s", seat);
	error = create(folder_node, 0);
	if (error != 0 && error != NODE_EXISTS)
		die("zookeeper: error %d", error);
}

/*
 * The node before our own, as a path; false: ours is the lowest.
 */
static bool
find_predecessor(char *predecessor, size_t size)
{
	const char *own = strrchr(own_node, '/') + 1;
	char		found[80] = "";
	int			xid = next_xid++;
	int32_t		n;

	begin(xid, GET_CHILDREN);
	put_string(folder_node);
	put_bool(false);
	if (call(xid) != 0)
		die("zookeeper: no children");
	n = get_int();
	for (int i = 0; i < n; i++)
	{
		char		child[80];

		get_string(child, sizeof(child));
		if (strcmp(child, own) < 0 && strcmp(child, found) > 0)
			memcpy(found, child, sizeof(found));
	}
	snprintf(predecessor, size, "%s/%s", folder_node, found);
	return found[0] != '\0';
}

static void
await_event(void)
{
	while (!event)
	{
		if (!can_read(sock, KEEP_MS))
		{
			keep();
			continue;
		}
		read_packet();
		event = get_int() == -1;
	}
}

static void
acquire(void)
{
	char		predecessor[200];

	if (create(text("%s/n-", folder_node), 3) != 0)
		die("zookeeper: no node");
	get_string(own_node, sizeof(own_node));
	while (find_predecessor(predecessor, sizeof(predecessor)))
	{
		int			xid = next_xid++;
		int32_t		error;

		event = false;
		begin(xid, EXISTS);
		put_string(predecessor);
		put_bool(true);
		error = call(xid);
		if (error == 0)
			await_event();
		else if (error != NO_NODE)
			die("zookeeper: error %d", error);
	}
}

static void
release(void)
{
	int			xid = next_xid++;

	begin(xid, DELETE);
	put_string(own_node);
	put_int(-1);
	if (call(xid) != 0)
		die("zookeeper: the node was lost");
}

const Peer	zookeeper = {
	.name = "ZooKeeper",
	.needs = "/usr/share/java/zookeeper.jar",
	.lease = "session of 4 s, its shortest",
	.command = command,
	.open = open_client,
	.acquire = acquire,
	.release = release,
	.keep = keep,
	.keep_ms = KEEP_MS
};
