--
-- What monitors read: the views metrics and server_metrics, as far as one session
-- can tell. test/monitoring has the alerts, and 104_metrics standbys and locks.
--

SET client_min_messages = warning;

CREATE VIEW seen AS
	SELECT election, group_name, led, waiting_for, round(vacant_seconds) AS vacant,
		   overdue_seconds > 0 AS overdue, term, candidates, quorum, paused,
		   changes_last_hour AS changes, lost_last_hour AS lost
	  FROM leader_election.metrics WHERE election = 'measured';
CREATE VIEW m AS SELECT * FROM leader_election.metrics WHERE election = 'measured';

-- Nobody has stood yet: how long it has been vacant is not known.
SELECT leader_election.create_election('measured');
SELECT * FROM seen \gx

-- Led. It was not renewed yet; then it is, at once, with nearly all of it left.
SELECT leader_election.join('measured', 'one');
SELECT * FROM seen \gx
SELECT lease_left_ratio > 0.5 AND lease_left_ratio <= 1 AS left, renewal_left_ratio
  FROM m;
SELECT term FROM leader_election.renew('measured');
SELECT lease_left_ratio > 0.5 AND lease_left_ratio <= 1 AS left,
	   renewal_left_ratio > 0.5 AND renewal_left_ratio < 1 AS renewal_left
  FROM m;

-- A leader that is asked to yield is not renewed, and that is no fault.
SELECT leader_election.request_yield('measured') IS NOT NULL AS asked;
SELECT led, lease_left_ratio, renewal_left_ratio FROM m;

-- It goes, which it had not meant to, and sits out: somebody stands, and nobody leads.
SELECT leader_election.resign('measured');
SELECT * FROM seen \gx
SELECT lease_left_ratio, renewal_left_ratio FROM m;

-- The next term begins without a renewal.
SELECT leader_election.join('measured', 'one');
SELECT led, renewal_left_ratio FROM m;

-- A session that was reset has lost the leadership, and not of its own will. The
-- worker may have removed the candidate by now.
SELECT pg_advisory_unlock_all();
SELECT leader_election.alter_election('measured', quorum => 2);
SELECT leader_election.acquire('measured', 'two');
SELECT led, waiting_for, overdue_seconds > 0 AS overdue, candidates, quorum,
	   changes_last_hour AS changes
  FROM m;

-- What was ordered is not overdue.
SELECT leader_election.alter_election('measured', quorum => 1);
SELECT leader_election.pause_election('measured');
SELECT led, waiting_for, overdue_seconds, paused FROM m;
SELECT leader_election.resume_election('measured');
SELECT term, leader_election.release('measured', term, hold => '1 h') AS released
  FROM leader_election.acquire('measured', 'two');
SELECT led, waiting_for, overdue_seconds, paused,
	   changes_last_hour AS changes, lost_last_hour AS lost
  FROM m;

-- Terms that began, or ended, more than an hour ago do not count.
UPDATE leader_election.history
   SET acquired_at = acquired_at - interval '1 h', ended_at = ended_at - interval '1 h'
 WHERE election = 'measured';
SELECT changes_last_hour AS changes, lost_last_hour AS lost,
	   vacant_seconds BETWEEN 3600 AND 4000 AS vacant
  FROM m;

-- What was handed over, or given up, is not lost.
SELECT leader_election.join('measured_given', 'one');
SELECT count(*) FROM leader_election.acquire('measured_given', 'two');
SELECT leader_election.transfer('measured_given', 'two');
SELECT term FROM leader_election.acquire('measured_given', 'two');
SELECT leader_election.release('measured_given', 2), leader_election.leave('measured_given');
SELECT lost_last_hour AS lost FROM leader_election.metrics WHERE election = 'measured_given';

-- Nobody is overdue for as long as a hold lasted.
SELECT leader_election.create_election('measured_hold');
SELECT leader_election.release('measured_hold', term, hold => '500 ms') AS released
  FROM leader_election.acquire('measured_hold', 'one');
SELECT leader_election.alter_election('measured_hold', quorum => 3);
SELECT count(*) FROM leader_election.acquire('measured_hold', 'two');
UPDATE leader_election.history SET ended_at = ended_at - interval '1000 s'
 WHERE election = 'measured_hold';
UPDATE leader_election.candidate SET stood_mono = stood_mono - 1000000000
 WHERE election = 'measured_hold';
DO $$
BEGIN
	FOR i IN 1 .. 3000 LOOP
		EXIT WHEN (SELECT waiting_for <> 'hold' FROM leader_election.metrics
				WHERE election = 'measured_hold');
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;
SELECT vacant_seconds > 1000 AS vacant, waiting_for, overdue_seconds < 500 AS since_the_hold
  FROM leader_election.metrics WHERE election = 'measured_hold';

-- Nor before an initial delay is over, whatever else is missing.
\a \t
SELECT leader_election.create_election('measured_delay', quorum => 2, initial_delay => '1 h');
SELECT count(*) FROM leader_election.acquire('measured_delay', 'one');
UPDATE leader_election.candidate SET stood_mono = stood_mono - 1000000000
 WHERE election = 'measured_delay';
SELECT waiting_for, overdue_seconds FROM leader_election.metrics
 WHERE election = 'measured_delay';
SELECT leader_election.drop_election('measured_delay');
\a \t

-- Of very many terms within the hour, a thousand are read.
\a \t
SELECT leader_election.create_election('measured_often');
INSERT INTO leader_election.history (election, term, leader, acquired_at, ended_at, reason, kind, role)
SELECT 'measured_often', n, 'one', now(), now(), 'expired', 'detached', current_user
  FROM generate_series(1, 1001) n;
SELECT changes_last_hour AS changes, lost_last_hour AS lost
  FROM leader_election.metrics WHERE election = 'measured_often';
SELECT leader_election.drop_election('measured_often');
\a \t

-- Seats of a group
SELECT leader_election.create_group('measured_group', 2);
SELECT election, term > 0 AS led FROM leader_election.acquire_any('measured_group', 'one');
SELECT election, group_name, led, waiting_for, candidates
  FROM leader_election.metrics WHERE group_name = 'measured_group' ORDER BY election;

-- The server: a worker comes, and there are no standbys.
SELECT leader_election.join('measured_too', 'one') > 0 AS led;
DO $$
BEGIN
	FOR i IN 1 .. 3000 LOOP
		EXIT WHEN (SELECT worker = 1 FROM leader_election.server_metrics) AND
			(SELECT max(unannounced_seconds) = 0 FROM leader_election.metrics);
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;
SELECT in_recovery, worker, locked_tables, standbys_needed, standbys_connected,
	   standbys_unconfirmed_bytes, standbys_silent_seconds,
	   notification_queue_ratio < 1 AS queue, worker_failing_seconds, worker_failures,
	   worker_retry_seconds, worker_sqlstate, worker_failure
  FROM leader_election.server_metrics \gx
SELECT max(unannounced_seconds) FROM leader_election.metrics;

-- Locks that keep changes waiting, also one's own
BEGIN;
LOCK TABLE leader_election.lease, leader_election.announced IN SHARE MODE;
LOCK TABLE leader_election.history IN SHARE UPDATE EXCLUSIVE MODE;
LOCK TABLE leader_election.protocol IN ACCESS EXCLUSIVE MODE;
SELECT locked_tables FROM leader_election.server_metrics;
ROLLBACK;

SELECT leader_election.leave_all();
SELECT leader_election.release('measured_group/1', term) FROM leader_election.status WHERE election = 'measured_group/1';
DROP VIEW seen, m;
