--
-- Observers: leader(), the views, history, wait_for_change(): who leads, since
-- when, and why the last one lost it (jobrunr#406, wolverine#475, G10).
--

SET client_min_messages = warning;

-- An election that nobody has heard of
SELECT leader_election.leader('o'), leader_election.is_leader('o'),
	   leader_election.term('o');
SELECT count(*) FROM leader_election.status WHERE election = 'o';

-- One that nobody has led
SELECT leader_election.create_election('o');
SELECT state, leader, since, waiting_for
  FROM leader_election.status WHERE election = 'o';

SELECT leader_election.join('o', 'one', 4, 8, '{"region": "eu"}');

SELECT leader_election.leader('o');

SELECT election, state, leader, term, since <= clock_timestamp() AS since,
	   remaining BETWEEN '10 s' AND '15 s' AS remaining, waiting_for,
	   candidates, quorum, strategy, kind,
	   backend_pid = pg_backend_pid() AS backend_pid,
	   renewed_at >= since AS renewed_at,
	   expires_at - renewed_at AS lease, metadata
  FROM leader_election.status WHERE election = 'o' \gx

SELECT election, candidate, "position", leads, alive, drained, kind, rank,
	   progress, joined_at <= clock_timestamp() AS joined_at,
	   stood BETWEEN '0' AND clock_timestamp() - joined_at + '1 min' AS stood, metadata
  FROM leader_election.candidates WHERE election = 'o' \gx

SELECT election, term, leader,
	   acquired_at = (SELECT since FROM leader_election.status
					   WHERE election = 'o') AS acquired_at,
	   ended_at, reason, detail, kind, role = current_user AS role,
	   client_addr, backend_pid = pg_backend_pid() AS backend_pid
  FROM leader_election.history WHERE election = 'o' \gx

SELECT leader_election.leave('o');
SELECT state, leader, term,
	   since = (SELECT ended_at FROM leader_election.history
				 WHERE election = 'o') AS since,
	   remaining, waiting_for, candidates, quorum, kind, backend_pid,
	   renewed_at, expires_at, metadata
  FROM leader_election.status WHERE election = 'o' \gx
SELECT count(*) FROM leader_election.candidates WHERE election = 'o';
SELECT term, leader, ended_at >= acquired_at AS ended, reason, detail
  FROM leader_election.history WHERE election = 'o';

-- Too few for a quorum
UPDATE leader_election.election SET quorum = 2 WHERE election = 'o';
SELECT leader_election.join('o', 'one');
SELECT state, waiting_for, candidates, quorum
  FROM leader_election.status WHERE election = 'o';
UPDATE leader_election.election SET quorum = 1 WHERE election = 'o';
CALL leader_election.campaign('o', 'one');

-- NULL is no election, and neither is what cannot be a name.
SELECT leader_election.leader(NULL), leader_election.is_leader(NULL),
	   leader_election.term(NULL);
SELECT leader_election.leader(''), leader_election.is_leader(''),
	   leader_election.term('');
SELECT leader_election.leader(name), leader_election.is_leader(name),
	   leader_election.term(name)
  FROM repeat('o', 201) AS name;

--
-- wait_for_change()
--

-- It returns at once when the caller knows less or something else,
CALL leader_election.wait_for_change('o', NULL, NULL);
CALL leader_election.wait_for_change('o', 1, 'one');
CALL leader_election.wait_for_change('o', 2, 'another');
-- and else at the timeout.
CALL leader_election.wait_for_change('o', 2, 'one', '10 ms');
CALL leader_election.wait_for_change('o', 2, 'one', '0');
SELECT leader_election.resign('o');
CALL leader_election.wait_for_change('o', 2, 'one');
CALL leader_election.wait_for_change('o', NULL, NULL, '10 ms');
CALL leader_election.wait_for_change('o', 0, NULL, '10 ms');
DO $$
DECLARE
	term bigint := 2;
	leader text := 'one';
BEGIN
	CALL leader_election.wait_for_change('o', term, leader, '1 min');
	RAISE WARNING 'term %, leader %', term, leader;
END
$$;

-- A leader whose lease is over is none, before anybody has ended its term.
CALL leader_election.campaign('o', 'one');
BEGIN;
UPDATE leader_election.lease SET deadline_mono = leader_election._monotonic_clock()
 WHERE election = 'o';
SELECT leader_election.leader('o');
SELECT state FROM leader_election.status WHERE election = 'o';
SELECT leads FROM leader_election.candidates WHERE election = 'o';
ROLLBACK;
SELECT leader_election.leader('o');

SELECT leader_election.leave_all();
