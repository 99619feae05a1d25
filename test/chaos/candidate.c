/*-------------------------------------------------------------------------
 *
 * candidate.c
 *		A candidate of the chaos run: it stands for elections, works as leader,
 *		and writes down what it believed, and when.
 *
 *		candidate KIND NAME INSTANCE SEED LOG RESOURCE CONNECTION LEASE_MS
 *			ELECTION...
 *
 *	CONNECTION	a connection string; or several, with | between them, of which
 *				each connection takes one at random
 *	ELECTION	an election; or GROUP*N, a group, of which it stands for all
 *				seats, and knows those with the numbers 1 to N
 *	KIND		session   join(), join_group(), and the worker renews
 *				manual    join(auto_renew => false), and renew()
 *				detached  acquire(), acquire_any() and renew(election, term)
 *				command   what pg_leader runs: it leads as long as it lives
 *				listener  does not stand, but listens to what is announced
 *				restless listener	the same, and connects anew now and then
 *
 * A line of the log is one write(), so that a killed process leaves whole
 * lines.  Times are microseconds of CLOCK_BOOTTIME, taken before a statement
 * was sent (sent) and after its answer was received (received):
 *
 *	q SERIAL ELECTION sent received TERM	is_leader() was true, on connection
 *											SERIAL, in this term; or campaign() or
 *											join_group() ended with it
 *	m SERIAL ELECTION received TERM MS		renewed, for MS (-1: not known)
 *	g ELECTION sent received TERM MS ASKED	granted, for MS, when asked with term
 *											ASKED (0: acquire)
 *	n ELECTION sent received TERM			renew(election, TERM): no row
 *	b ELECTION sent received TERM RUN		... for this run
 *	d ELECTION sent received TERM RUN OUTCOME	said that its run is done
 *	r ELECTION time TERM WHY				about to give up this term
 *	c ELECTION time TERM					the command runs
 *	w ELECTION sent received TERM ID OUTCOME	COMMIT of a fenced row
 *	e time SQLSTATE sent WHAT				an error
 *	x time WHAT								the connection was given up
 *	z SERIAL sent received					the session was reset
 *	y SERIAL sent received					... or not: an error came after or before
 *	j SERIAL ELECTION sent received SQLSTATE	join() was answered; GROUP followed
 *											by a slash and a star: join_group()
 *	a ELECTION sent received				acquire() was answered, with no row;
 *											or acquire_any(), with any number
 *	k SERIAL ELECTION received SQLSTATE HOW	campaign() was answered (HOW: elected,
 *											waited), or renew() (HOW: renewed)
 *	v ELECTION time							about to leave ("all": all of them)
 *	u ELECTION time							about to campaign
 *	s SERIAL received SERVER				listens, on this connection, to SERVER,
 *											which is another one after a crash
 *	l SERIAL received PAYLOAD				a notification
 *	i SERIAL received						an answer to who listens, once a second
 *
 * This file reads the arguments and calls the others, again and again until the
 * process is killed: connection.c (statements and the log), leader.c (what every
 * leader does), session.c, detached.c, command.c and listener.c (one kind each),
 * pressure.c (what a candidate does to its own session).
 *
 *-------------------------------------------------------------------------
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "candidate.h"

#define MAX_ELECTIONS	16
#define TICK_MS			40		/* CHAOS_TICK_MS, where it is set, for many of them */

Seat		seats[MAX_ELECTIONS];
int			nseats;
char		all_elections[500];
const char *name;
bool		calm;
int64_t		lease_us;
int			rank;
int64_t		progress;

Seat *
find_seat(const char *election)
{
	for (int i = 0; i < nseats; i++)
	{
		if (strcmp(seats[i].election, election) == 0)
			return &seats[i];
	}
	return NULL;
}

static void
add_seat(const char *election, const char *group, int n)
{
	if (nseats == MAX_ELECTIONS)
		exit(2);
	seats[nseats].election = election;
	seats[nseats].group = group;
	seats[nseats++].number = n;
	snprintf(all_elections + strlen(all_elections),
			 sizeof(all_elections) - strlen(all_elections), "%s%s",
			 nseats > 1 ? "," : "", election);
}

/*
 * An election, or a group and the number of its seats, as in "crew*4"
 */
static void
stand_for(char *argument)
{
	char	   *star = strchr(argument, '*');

	if (star == NULL)
	{
		add_seat(argument, NULL, 0);
		return;
	}
	*star = '\0';
	for (int i = 1; i <= atoi(star + 1); i++)
	{
		char	   *election = malloc(strlen(argument) + 20);

		if (election == NULL)
			exit(2);
		sprintf(election, "%s/%d", argument, i);
		add_seat(election, argument, i);
	}
}

int
main(int argc, char **argv)
{
	const char *kind;
	int64_t		end;
	int64_t		first_id;
	bool		opened;
	const char *tick = getenv("CHAOS_TICK_MS");
	int			tick_ms = tick != NULL ? atoi(tick) : TICK_MS;

	if (argc < 10)
	{
		fprintf(stderr, "usage: see candidate.c\n");
		return 2;
	}
	kind = argv[1];
	name = argv[2];
	calm = strncmp(name, "calm", 4) == 0;
	if (calm)
		unsetenv("CHAOS_PRESSURE");
	srandom(atoi(argv[4]) * 1000 + atoi(argv[3]));
	first_id = atoll(argv[3]) * 1000000;
	note_connections(argv[7]);
	lease_us = atoll(argv[8]) * 1000;
	if (strcmp(kind, "command") == 0)
	{
		/* One instance for each time that pg_leader runs it */
		char		path[1000];

		snprintf(path, sizeof(path), "%s.%d", argv[5], (int) getpid());
		opened = open_log(path);
		first_id += getpid() * INT64_C(1000000000);
		srandom(getpid());
		if (random() % 3 == 0)
			signal(SIGTERM, SIG_IGN);
	}
	else
		opened = open_log(argv[5]);
	if (!open_resource(argv[6], first_id) || !opened)
		return 1;
	for (int i = 9; i < argc; i++)
		stand_for(argv[i]);
	rank = random() % 5;
	progress = random() % 100;

	end = now_us() + 500000 + random() % 6000000;
	for (;;)
	{
		if (conn == NULL && connect_again() && strstr(kind, "listener") != NULL)
			start_listening();
		if (conn != NULL && strcmp(kind, "command") != 0)
			press_session();
		if (strcmp(kind, "command") == 0)
			tick_command(end);
		else if (conn != NULL && strstr(kind, "listener") != NULL)
			tick_listener(kind[0] == 'r');
		else if (conn != NULL && strcmp(kind, "detached") == 0)
			tick_detached();
		else if (conn != NULL)
			tick_session(strcmp(kind, "manual") == 0);
		for (int i = 0; i < nseats; i++)
		{
			Seat		late = seats[i];

			/* A candidate without a connection may still lead. */
			if (conn == NULL && strcmp(kind, "detached") == 0 &&
				late.term != 0 && now_us() < late.deadline)
				use_resource(&late);

			/* And what a leader of yesterday does may come late. */
			if (late.term != 0)
				seats[i].last_term = late.term;
			else if (late.last_term != 0 && chance(4))
			{
				late.term = late.last_term;
				use_resource(&late);
			}
		}
		pause_ms(tick_ms);
	}
}
