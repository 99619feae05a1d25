-- For monitors that run SQL and have no rules of their own (Nagios, Zabbix, a
-- cron job): a row for each thing that is wrong, by the thresholds of rules.yml,
-- and no row if all is well. An error is an alarm as well: where tables are
-- locked, nothing can be read. It needs USAGE on the schema leader_election, and
-- has to run on the primary.
WITH m AS (SELECT * FROM leader_election.metrics),
     s AS (SELECT * FROM leader_election.server_metrics)
SELECT 'LeaderElectionVacant' AS alert, m.election,
       format('nobody has led for %s s, although candidates stand: waiting for %s',
              round(m.overdue_seconds), m.waiting_for) AS finding
  FROM m
 WHERE m.overdue_seconds > 30
UNION ALL
SELECT 'LeaderElectionFlapping', m.election,
       format('%s terms were lost within an hour', m.lost_last_hour)
  FROM m
 WHERE m.lost_last_hour > 5
UNION ALL
SELECT 'LeaderElectionRenewedLate', m.election,
       format('%s %% of the lease were left',
              round(100 * least(m.lease_left_ratio, m.renewal_left_ratio)))
  FROM m
 WHERE least(m.lease_left_ratio, m.renewal_left_ratio) < 0.25
UNION ALL
SELECT 'LeaderElectionNotificationsLate', m.election,
       format('listeners have not been told of a change %s s ago',
              round(m.unannounced_seconds))
  FROM m, s
 WHERE m.unannounced_seconds > 60 AND s.worker = 1
UNION ALL
SELECT 'LeaderElectionNoWorker', NULL, 'there is work, and no worker'
  FROM s
 WHERE s.worker = 0 AND EXISTS (SELECT FROM m WHERE m.led + m.candidates > 0)
UNION ALL
SELECT 'LeaderElectionWorkerFails', NULL,
       format('the worker has failed for %s s, %s times, with SQLSTATE %s: %s',
              round(s.worker_failing_seconds), s.worker_failures, s.worker_sqlstate,
              coalesce(s.worker_failure, 'superusers see the message'))
  FROM s
 WHERE s.worker_failing_seconds > 10
UNION ALL
SELECT 'LeaderElectionStandbysSilent', NULL,
       format('%s of %s synchronous standbys are connected; they last answered %s s ago',
              s.standbys_connected, s.standbys_needed, round(s.standbys_silent_seconds))
  FROM s
 WHERE s.standbys_connected < s.standbys_needed
    OR (s.standbys_silent_seconds > 10 AND s.standbys_unconfirmed_bytes > 0)
UNION ALL
SELECT 'LeaderElectionTablesLocked', NULL, format('%s tables are locked', s.locked_tables)
  FROM s
 WHERE s.locked_tables > 0;
