/*-------------------------------------------------------------------------
 *
 * peer.h
 *		Another way to elect a leader, as 90_peers.c measures it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include <stdbool.h>
#include <stddef.h>

#define MAX_ARGS 24

/*
 * A client is a process of its own with one connection and one seat.  What is
 * not as expected ends it.  While it waits in acquire() it keeps its own lease,
 * too.
 */
typedef struct Peer
{
	const char *name;
	const char *needs;			/* a file that its package brings; NULL: nothing */
	const char *lease;			/* what ends a dead leader's lead */
	/* The command that runs its server in a folder; NULL: there is one */
	void		(*command) (char *args[MAX_ARGS], const char *folder, int port);
	void		(*open) (int port, const char *seat, const char *name);
	void		(*acquire) (void);
	void		(*release) (void);
	void		(*keep) (void); /* to be called so often while it leads */
	int			keep_ms;
} Peer;

extern const Peer etcd;
extern const Peer zookeeper;
extern const Peer redis;

/* A socket to a server on this machine, and bytes to and from it */
extern int	connect_to(int port);
extern void send_all(int sock, const void *data, size_t size);
extern void read_all(int sock, void *data, size_t size);
extern bool can_read(int sock, int timeout_ms);

/* A short file in that folder, for a server's settings */
extern void write_file(const char *folder, const char *name, const char *lines);

#endif							/* BENCH_PEER_H */
