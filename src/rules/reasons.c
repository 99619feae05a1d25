/*-------------------------------------------------------------------------
 *
 * reasons.c
 *		Why a term ends, and why nobody leads.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "rules/reasons.h"

/* A request to yield is a loss: a strategy that often asks disturbs the work. */
const ReasonText le_reasons[] = {
	[REASON_EXPIRED] = {"expired", true, SEVERITY_WARNING,
		"the lease ran out before it was renewed: the leader, the server or the standbys were slower than the lease",
	"Find out what stalled the leader or the server then (logs, load, paused machines), or, for a longer lease, {alter lease_duration => '{twice the lease}'}"},
	[REASON_SESSION_ENDED] = {"session ended", true, SEVERITY_WARNING,
		"the leader's program or its connection ended",
	"Look into the logs of the programs and of the server for what ended the connections: crashes, restarts, timeouts, proxies."},
	[REASON_SESSION_RESET] = {"session reset", true, SEVERITY_WARNING,
		"a connection pool, or DISCARD ALL, released the locks of a session that lived on",
	"Have candidates use a connection that no pool manages, or acquire()."},
	[REASON_FAILOVER] = {"failover", true, SEVERITY_WARNING,
		"the server was promoted, restored, moved or its machine started anew",
	"Find out why there was a failover: the logs of the servers, and of what manages them."},
	[REASON_YIELDED] = {"yielded", true, SEVERITY_NOTICE,
		"the leader was asked to yield, by the strategy, a drain, a pause or request_yield()",
	"If it was the strategy, and candidates are to stand for a while before the leader is asked, {alter preempt_delay => '1 min'}"},
	[REASON_TRANSFERRED] = {"transferred", false, SEVERITY_NOTICE,
		"the leader handed its lease to another candidate, by transfer()",
	"If nobody meant that, look into the programs: they call transfer()."},
	[REASON_RESIGNED] = {"resigned", false, SEVERITY_NOTICE,
		"the leader gave up by itself, by resign() or release()",
	"If nobody meant that, look into the programs: they call resign() or release(). A hold makes changes rarer."},
	[REASON_LEFT] = {"left", false, SEVERITY_NOTICE,
		"the leader withdrew, by leave() or leave_all()",
	"If nobody meant that, look into the programs: they end, or call leave()."},
	[REASON_DROPPED] = {"dropped", false, SEVERITY_NOTICE,
		"the election was dropped",
	"If nobody meant that, find out who calls drop_election() or drop_group()."},
	[REASON_OTHER] = {"another reason", true, SEVERITY_NOTICE,
		"the table history names it",
	"Run: SELECT * FROM leader_election.history WHERE election = {election} ORDER BY term DESC LIMIT 20;"},
};

const ObstacleText le_obstacles[] = {
	[OBSTACLE_NONE] = {"the worker", true, SEVERITY_NOTICE,
		"the worker is about to elect the next one",
	"Ask again in a second. If this stays so, look at the rows on locks, on standbys and on the worker."},
	[OBSTACLE_WITHDRAWN] = {"withdrawn", false, SEVERITY_NOTICE,
		"the seat is withdrawn: group {group} has {seats} seats by now",
	"Nothing is to be done: the worker drops it. alter_group() with more seats would keep it."},
	[OBSTACLE_PAUSED] = {"paused", false, SEVERITY_NOTICE,
		"{pause}",
	"When what it is for is done, {resume}"},
	[OBSTACLE_EPOCH] = {"grace after failover", true, SEVERITY_NOTICE,
		"this server was promoted, restored, moved or its machine started anew, and its new epoch has not begun",
	"Wait: the worker begins it, and after one lease somebody is elected."},
	[OBSTACLE_GRACE] = {"grace after failover", false, SEVERITY_NOTICE,
		"this is the grace after a failover: a leader of the former server may lead on there, and nobody new is elected before {until}",
	"Wait until then. A detached leader of the former server may call renew(), and leads on."},
	[OBSTACLE_HOLD] = {"hold", false, SEVERITY_NOTICE,
		"a hold, which the last leader asked for, ends at {until}",
	"Wait until then: the job is done for this time."},
	[OBSTACLE_TAKEOVER_DELAY] = {"takeover delay", false, SEVERITY_NOTICE,
		"the takeover delay ends at {until}",
	"Wait until then. For the next time, {alter takeover_delay => '0'}"},
	[OBSTACLE_RESERVED] = {"reserved", false, SEVERITY_NOTICE,
		"the election is reserved for {successor} until {until}",
	"Wait: it leads when it calls acquire(). After that time, the next candidate does."},
	[OBSTACLE_NO_CANDIDATES] = {"no candidates", false, SEVERITY_ERROR,
		"nobody stands",
	"Start the programs that stand, or look into their logs: why do they not connect?{of a seat  Those that were there before this seat have to call join_group() or acquire_any() again.}"},
	[OBSTACLE_QUORUM] = {"quorum", true, SEVERITY_ERROR,
		"{live} of the {quorum} candidates that are needed (quorum) are alive",
	"Start more candidates, or {alter quorum => {live, or 1}}"},
	[OBSTACLE_INITIAL_DELAY] = {"initial delay", false, SEVERITY_NOTICE,
		"for others to stand, too (initial_delay), the election waits until {until}",
	"Wait until then. For the next time, {alter initial_delay => '0'}"},
	[OBSTACLE_DRAINED] = {"drained", true, SEVERITY_ERROR,
		"who could be elected is drained",
	"End a drain, as the row on drained candidates says, or start another candidate."},
	[OBSTACLE_CAP] = {"cap", true, SEVERITY_ERROR,
		"each candidate has as many other seats of group {group} as it may ({cap})",
	"Start another candidate, or {alter max_per_candidate => {cap + 1}}"},
	[OBSTACLE_SITTING_OUT] = {"candidates that do not sit out", true, SEVERITY_ERROR,
		"each candidate sits out, or may not be elected",
	"Start another candidate, or have one that sits out call join(), campaign() or acquire()."},
	[OBSTACLE_CALL] = {"acquire()", false, SEVERITY_NOTICE,
		"only detached candidates stand, and the next one that calls acquire() is elected",
	"Wait for a call. If none comes, look into the candidates' logs: they have to call acquire() several times per lease."},
	[OBSTACLE_NO_WORKER] = {"a worker or a call", true, SEVERITY_WARNING,
		"there is no worker that elects the next one",
	"Have a candidate call join() or acquire(): that elects. See the row on the worker."},
	[OBSTACLE_NO_EPOCH] = {"a worker or a call", true, SEVERITY_WARNING,
		"this server was promoted, restored, moved or its machine started anew, and its new epoch has not begun",
	"Have a candidate call join(), campaign() or acquire(): that begins it."},
	[OBSTACLE_WORKER_FAILS] = {"worker fails", true, SEVERITY_ERROR,
		"the worker fails",
	"See the row on the worker."},
	[OBSTACLE_WORKER_WAITS] = {"worker waits for a lock", true, SEVERITY_NOTICE,
		"the worker waits for a lock",
	"See the row on the worker."},
	[OBSTACLE_WORKER_CANCELLED] = {"worker was cancelled", true, SEVERITY_NOTICE,
		"the worker was cancelled",
	"See the row on the worker."},
	[OBSTACLE_STANDBYS] = {"synchronous standbys", true, SEVERITY_NOTICE,
		"the worker elects the next one when synchronous standbys have confirmed that they follow",
	"Ask again in a second. If this stays so, look at the rows on locks, on standbys and on the worker."},
	[OBSTACLE_LATE_COMMIT] = {NULL, true, SEVERITY_ERROR,
		"a commit that is fenced by its last term holds its lock",
	"See the row on the process that commits."},
	[OBSTACLE_RUN_DONE] = {NULL, false, SEVERITY_NOTICE,
		"nobody stands, and run {run} was recorded as done at {done_at}",
	"Nothing is to be done, if the next run is not due: who knows that its run is done does not stand."},
	[OBSTACLE_UNSEEN] = {NULL, false, SEVERITY_NOTICE,
		"why cannot be seen on a standby",
	"Run on the primary: SELECT * FROM leader_election.diagnose({election});"},
	[OBSTACLE_UNREAD] = {NULL, true, SEVERITY_ERROR,
		"why cannot be told while tables are locked",
	"See the rows on locks."},
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
