/*-------------------------------------------------------------------------
 *
 * peer_etcd.c
 *		Elections in etcd, by its own service for that (v3electionpb.Election:
 *		Campaign and Resign), over gRPC as its clients speak it.
 *
 * A lease lasts for 2 s at least, and is kept by LeaseKeepAlive every third of
 * that.  etcd flushes each write before its answer.
 *
 * What is spoken here is the little of HTTP/2 that it takes: each call is a
 * stream with one request, headers are sent without compression, and those that
 * come are not read: an answer without data is an error.
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "peer.h"

#define LEASE_S		2
#define KEEP_MS		667

enum
{
	DATA = 0, HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6, GOAWAY = 7,
	WINDOW_UPDATE = 8
};

#define ACK			0x01		/* of SETTINGS and PING */
#define END_STREAM	0x01
#define END_HEADERS	0x04

/* Bytes of a message */
typedef struct Message
{
	unsigned char data[1000];
	size_t		size;
} Message;

/* A call that is under way */
typedef struct Call
{
	uint32_t	stream;
	const char *path;
	Message		answer;
	bool		ended;
} Call;

static int	sock;
static uint32_t next_stream = 1;
static Call campaigning;
static Call other;				/* than the campaign; one at a time */
static char election[60];
static char candidate[60];
static uint64_t lease;
static Message leader_key;		/* what Campaign returned, for Resign */

static void
command(char *args[MAX_ARGS], const char *folder, int port)
{
	const char *client = text("http://127.0.0.1:%d", port);
	const char *peer = text("http://127.0.0.1:%d", port + 1);
	const char *all[] = {
		"/usr/bin/etcd", "--name", "bench", "--data-dir", folder,
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", text("bench=%s", peer), "--log-level", "error"
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		args[i] = strdup(all[i]);
}

static void
put(Message *message, const void *data, size_t size)
{
	if (message->size + size > sizeof(message->data))
		die("etcd: a long message");
	memcpy(message->data + message->size, data, size);
	message->size += size;
}

static void
put_byte(Message *message, int value)
{
	unsigned char byte = value;

	put(message, &byte, 1);
}

static void
put_varint(Message *message, uint64_t value)
{
	for (; value >= 0x80; value >>= 7)
		put_byte(message, (value & 0x7f) | 0x80);
	put_byte(message, (int) value);
}

/* A field of Protocol Buffers */
static void
put_number(Message *message, int field, uint64_t value)
{
	put_varint(message, field << 3);
	put_varint(message, value);
}

static void
put_bytes(Message *message, int field, const void *data, size_t size)
{
	put_varint(message, field << 3 | 2);
	put_varint(message, size);
	put(message, data, size);
}

static uint64_t
get_varint(const Message *message, size_t *at)
{
	uint64_t	value = 0;

	for (int shift = 0;; shift += 7)
	{
		unsigned char byte;

		if (*at >= message->size || shift > 63)
			die("etcd: a short answer");
		byte = message->data[(*at)++];
		value |= (uint64_t) (byte & 0x7f) << shift;
		if (byte < 0x80)
			return value;
	}
}

/*
 * A field of an answer: its value, or, if that is bytes, these as well; 0 if it
 * is not there.  An answer begins with five bytes of gRPC's.
 */
static uint64_t
get_field(const Message *message, int wanted, Message *bytes)
{
	size_t		at = 5;

	while (at < message->size)
	{
		uint64_t	tag = get_varint(message, &at);
		uint64_t	value = get_varint(message, &at);
		size_t		skip = (tag & 7) == 2 ? (size_t) value : 0;

		if ((tag & 7) > 2 || skip > message->size - at)
			die("etcd: not an answer");
		if ((int) (tag >> 3) == wanted)
		{
			if (bytes != NULL)
			{
				bytes->size = 0;
				put(bytes, message->data + at, skip);
			}
			return value;
		}
		at += skip;
	}
	return 0;
}

static void
send_frame(int type, int flags, uint32_t stream, const Message *payload)
{
	Message		frame = {.size = 0};
	uint32_t	net = htonl(stream);

	put_byte(&frame, 0);
	put_byte(&frame, (int) (payload->size >> 8));
	put_byte(&frame, (int) (payload->size & 0xff));
	put_byte(&frame, type);
	put_byte(&frame, flags);
	put(&frame, &net, sizeof(net));
	put(&frame, payload->data, payload->size);
	send_all(sock, frame.data, frame.size);
}

/* A name that is shorter than 127 bytes, as HPACK has it */
static void
put_name(Message *message, const char *value)
{
	put_byte(message, (int) strlen(value));
	put(message, value, strlen(value));
}

static void
start_call(Call *call, const char *path, const Message *request)
{
	Message		headers = {.size = 0};
	Message		data = {.size = 0};
	uint32_t	net = htonl((uint32_t) request->size);

	put_byte(&headers, 0x83);	/* :method POST */
	put_byte(&headers, 0x86);	/* :scheme http */
	put_byte(&headers, 0x04);	/* :path */
	put_name(&headers, path);
	put_byte(&headers, 0x01);	/* :authority */
	put_name(&headers, "127.0.0.1");
	put_byte(&headers, 0x0f);	/* content-type: 31 */
	put_byte(&headers, 0x10);
	put_name(&headers, "application/grpc");
	put_byte(&headers, 0x00);
	put_name(&headers, "te");
	put_name(&headers, "trailers");
	put_byte(&data, 0);			/* not compressed */
	put(&data, &net, sizeof(net));
	put(&data, request->data, request->size);

	call->stream = next_stream;
	call->path = path;
	call->answer.size = 0;
	call->ended = false;
	next_stream += 2;
	send_frame(HEADERS, END_HEADERS, call->stream, &headers);
	send_frame(DATA, END_STREAM, call->stream, &data);
}

static Call *
call_of(uint32_t stream)
{
	if (stream != 0 && stream == campaigning.stream)
		return &campaigning;
	return stream != 0 && stream == other.stream ? &other : NULL;
}

static void
read_frame(void)
{
	unsigned char header[9];
	Message		payload;
	uint32_t	stream;
	Call	   *call;

	read_all(sock, header, sizeof(header));
	payload.size = (size_t) header[0] << 16 | (size_t) header[1] << 8 | header[2];
	if (payload.size > sizeof(payload.data))
		die("etcd: a long frame");
	read_all(sock, payload.data, payload.size);
	memcpy(&stream, header + 5, sizeof(stream));
	call = call_of(ntohl(stream) & 0x7fffffff);
	switch (header[3])
	{
		case DATA:
			if (call != NULL)
				put(&call->answer, payload.data, payload.size);
			break;
		case SETTINGS:
			if ((header[4] & ACK) == 0)
				send_frame(SETTINGS, ACK, 0, &(Message) {
					.size = 0
				});
			break;
		case PING:
			if ((header[4] & ACK) == 0)
				send_frame(PING, ACK, 0, &payload);
			break;
		case RST_STREAM:
		case GOAWAY:
			die("etcd: refused");
		default:
			break;
	}
	if (call != NULL && header[3] <= HEADERS && (header[4] & END_STREAM) != 0)
	{
		if (call->answer.size < 5)
			die("etcd: %s failed", call->path);
		call->ended = true;
	}
}

static const Message *
call_and_wait(const char *path, const Message *request)
{
	start_call(&other, path, request);
	while (!other.ended)
		read_frame();
	return &other.answer;
}

static void
keep(void)
{
	Message		request = {.size = 0};

	put_number(&request, 1, lease);
	if (get_field(call_and_wait("/etcdserverpb.Lease/LeaseKeepAlive", &request),
				  3, NULL) == 0)
		die("etcd: the lease was lost");
}

static void
open_client(int port, const char *seat, const char *name)
{
	static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
	Message		payload = {.size = 0};
	uint32_t	window = htonl(0x7fffffff - 65535);
	const Message *answer;

	snprintf(election, sizeof(election), "%s", seat);
	snprintf(candidate, sizeof(candidate), "%s", name);
	sock = connect_to(port);
	send_all(sock, preface, sizeof(preface) - 1);
	send_frame(SETTINGS, 0, 0, &payload);
	put(&payload, &window, sizeof(window));
	send_frame(WINDOW_UPDATE, 0, 0, &payload);

	payload.size = 0;
	put_number(&payload, 1, LEASE_S);
	answer = call_and_wait("/etcdserverpb.Lease/LeaseGrant", &payload);
	lease = get_field(answer, 2, NULL);
	if (lease == 0 || get_field(answer, 3, NULL) != LEASE_S)
		die("etcd: not the lease that was asked for");
}

static void
acquire(void)
{
	Message		request = {.size = 0};
	double		kept_at = now_us();

	put_bytes(&request, 1, election, strlen(election));
	put_number(&request, 2, lease);
	put_bytes(&request, 3, candidate, strlen(candidate));
	start_call(&campaigning, "/v3electionpb.Election/Campaign", &request);
	while (!campaigning.ended)
	{
		if (now_us() - kept_at > KEEP_MS * 1e3)
		{
			keep();
			kept_at = now_us();
		}
		else if (can_read(sock, KEEP_MS))
			read_frame();
	}
	if (get_field(&campaigning.answer, 2, &leader_key) == 0)
		die("etcd: no leader's key");
	campaigning.stream = 0;
}

static void
release(void)
{
	Message		request = {.size = 0};

	put_bytes(&request, 1, leader_key.data, leader_key.size);
	(void) call_and_wait("/v3electionpb.Election/Resign", &request);
}

const Peer	etcd = {
	.name = "etcd",
	.needs = "/usr/bin/etcd",
	.lease = "lease of 2 s, its shortest",
	.command = command,
	.open = open_client,
	.acquire = acquire,
	.release = release,
	.keep = keep,
	.keep_ms = KEEP_MS
};
