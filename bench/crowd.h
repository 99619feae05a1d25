/*-------------------------------------------------------------------------
 *
 * crowd.h
 *		Many elections: "crowd 1", "crowd 2" ...
 *
 *-------------------------------------------------------------------------
 */
#ifndef BENCH_CROWD_H
#define BENCH_CROWD_H

#include "client.h"

extern void make_crowd(PGconn *conn, int from, int to, const char *strategy,
					   const char *lease);
extern double join_crowd(PGconn *conn, const char *candidate, int from, int to,
						 int limit_ms);
extern double await_crowd(PGconn *conn, const char *leader, int n,
						  int limit_ms);
extern void drop_crowd(PGconn *conn, int n);
extern void die_suddenly(PGconn *conn);
extern void forget_everything(PGconn *conn);

#endif							/* BENCH_CROWD_H */
