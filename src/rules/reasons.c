/*-------------------------------------------------------------------------
 *
 * reasons.c
 *		Why a term ends.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "rules/reasons.h"

/* A request to yield is a loss: a strategy that often asks disturbs the work. */
const ReasonText le_reasons[] = {
	[REASON_EXPIRED] = {
		"expired", true, SEVERITY_WARNING,
		"the lease ran out before it was renewed: the leader, the server or the standbys were slower than the lease",
		"Find out what stalled the leader or the server then (logs, load, paused machines), or make the lease longer: SELECT leader_election.alter_election({election}, lease_duration => '30 s');"
	},
	[REASON_SESSION_ENDED] = {
		"session ended", true, SEVERITY_WARNING,
		"the leader's program or its connection ended",
		"Look into the logs of the programs and of the server for what ended the connections: crashes, restarts, timeouts, proxies."
	},
	[REASON_SESSION_RESET] = {
		"session reset", true, SEVERITY_WARNING,
		"a connection pool, or DISCARD ALL, released the locks of a session that lived on",
		"Have candidates use a connection that no pool manages, or acquire()."
	},
	[REASON_FAILOVER] = {
		"failover", true, SEVERITY_WARNING,
		"the server was promoted, restored, moved or its machine started anew",
		"Find out why there was a failover: the logs of the servers, and of what manages them."
	},
	[REASON_YIELDED] = {
		"yielded", true, SEVERITY_NOTICE,
		"the leader was asked to yield, by the strategy, a drain, a pause or request_yield()",
		"If it was the strategy, have candidates stand for a while before the leader is asked: SELECT leader_election.alter_election({election}, preempt_delay => '1 min');"
	},
	[REASON_TRANSFERRED] = {
		"transferred", false, SEVERITY_NOTICE,
		"the leader handed its lease to another candidate, by transfer()",
		"If nobody meant that, look into the programs: they call transfer()."
	},
	[REASON_RESIGNED] = {
		"resigned", false, SEVERITY_NOTICE,
		"the leader gave up by itself, by resign() or release()",
		"If nobody meant that, look into the programs: they call resign() or release(). A hold makes changes rarer."
	},
	[REASON_LEFT] = {
		"left", false, SEVERITY_NOTICE,
		"the leader withdrew, by leave() or leave_all()",
		"If nobody meant that, look into the programs: they end, or call leave()."
	},
	[REASON_DROPPED] = {
		"dropped", false, SEVERITY_NOTICE,
		"the election was dropped",
		"If nobody meant that, find out who calls drop_election() or drop_group()."
	},
	[REASON_OTHER] = {
		"another reason", true, SEVERITY_NOTICE,
		"the table history names it",
		"Run: SELECT * FROM leader_election.history WHERE election = {election} ORDER BY term DESC LIMIT 20;"
	},
};

/*
 * The reason that a row of history names; NULL: it names none.
 */
Reason
le_reason_find(const char *word)
{
	Reason		reason = 0;

	while (reason < REASON_OTHER &&
		   (word == NULL || strcmp(word, le_reasons[reason].word) != 0))
		reason++;
	return reason;
}
