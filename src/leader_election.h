/*-------------------------------------------------------------------------
 *
 * leader_election.h
 *		What every part of leader_election may use: limits, SQLSTATEs,
 *		settings.
 *
 * The parts stand on floors, each a folder with one header.  Nothing includes
 * the header of a higher floor, and api and worker do not include each
 * other's:
 *
 *	base		PostgreSQL's mechanics: time, locks, tables, rows, commits
 *	state		the rows of our tables, and what they mean
 *	decide		who is next, and the only place where the holder changes
 *	session		what a backend knows of its own leaderships
 *	api			the SQL functions
 *	worker		the background processes and their rounds
 *
 * All durations are microseconds unless the name says otherwise.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LEADER_ELECTION_H
#define LEADER_ELECTION_H

#include "compat.h"
#include "fmgr.h"

#define LE_EXTENSION		"leader_election"
#define LE_SCHEMA			"leader_election"
#define LE_CHANNEL			"leadership_changed"

/*
 * Changes together with the number in the view protocol, in a version that
 * changes rows, locks or their tags, or the parameters of a function.
 */
#define LE_PROTOCOL			1

#define LE_NAME_MAX			200 /* bytes in a name */
#define LE_MOST_SEATS		1000	/* of a group */
#define LE_GROUP_NAME_MAX	(LE_NAME_MAX - 5)	/* with "/1000" after it */
#define LE_METADATA_MAX		8192	/* bytes of jsonb, not compressed */
#define LE_SHORTEST_LEASE_MS	100
#define LE_LONGEST_LEASE_MS		86400000
#define LE_WAIT_LIMIT_MS	1000	/* for all waits of a function together */
#define LE_LONGEST_PAUSE	(366 * USECS_PER_DAY)	/* with a duration */
#define LE_LOCKS_OF_CHANGE	11	/* entries in the lock table, at most */

#define ERRCODE_LE_NOT_LEADER		MAKE_SQLSTATE('L', 'E', '0', '0', '1')
#define ERRCODE_LE_LOST				MAKE_SQLSTATE('L', 'E', '0', '0', '2')
#define ERRCODE_LE_NO_ELECTION		MAKE_SQLSTATE('L', 'E', '0', '0', '3')
#define ERRCODE_LE_NAME_IN_USE		MAKE_SQLSTATE('L', 'E', '0', '0', '4')
#define ERRCODE_LE_NOT_A_CANDIDATE	MAKE_SQLSTATE('L', 'E', '0', '0', '5')
#define ERRCODE_LE_SESSION_RESET	MAKE_SQLSTATE('L', 'E', '0', '0', '6')

/* Settings (leader_election.c) */
extern int	le_lease_duration_ms;
extern int	le_history_retention_s;
extern int	le_worker_idle_timeout_ms;
extern bool le_auto_create;
extern bool le_dead_peer_detection;

extern bool le_is_preloaded;	/* by shared_preload_libraries */

#endif							/* LEADER_ELECTION_H */
