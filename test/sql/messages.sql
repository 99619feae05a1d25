--
-- What users are told: each message names the election, and has a hint where
-- there is a remedy.
--

SET client_min_messages = warning;
SELECT leader_election.join('msg', 'one');

BEGIN;
SELECT leader_election.join('msg', 'one');
ROLLBACK;
BEGIN;
CALL leader_election.campaign('msg', 'one');
ROLLBACK;
BEGIN;
CALL leader_election.wait_for_change('msg', NULL, NULL);
ROLLBACK;
BEGIN;
SELECT leader_election.leave_all();
ROLLBACK;

SELECT leader_election.join('msg', 'two');
SELECT leader_election.join('', 'one');
SELECT leader_election.join('msg', '');
SELECT leader_election.join('msg', repeat('é', 101));
SELECT leader_election.join(NULL, 'one');
SELECT leader_election.join('msg', NULL);
SELECT leader_election.resign('msg', '-1 s');
CALL leader_election.campaign('msg', 'one', '-1 s');
SELECT leader_election.transfer('msg', 'one');
SELECT leader_election.transfer('msg', 'two');
SELECT leader_election.leave('no such election');
CALL leader_election.wait_for_change('no such election', NULL, NULL);

SET leader_election.auto_create = off;
SELECT leader_election.join('no such election', 'one');
RESET leader_election.auto_create;

SELECT leader_election.leave('msg');
CREATE ROLE regress_le_reader;
CREATE ROLE regress_le_writer;
GRANT USAGE ON SCHEMA leader_election TO regress_le_reader, regress_le_writer;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election
   TO regress_le_reader, regress_le_writer;
SET ROLE regress_le_writer;
CALL leader_election.campaign('msg', 'one');
SET ROLE regress_le_reader;
SELECT leader_election.resign('msg');
SET ROLE regress_le_writer;
SELECT leader_election.leave('msg');
RESET ROLE;
UPDATE leader_election.election SET candidate_role = 'pg_monitor'
 WHERE election = 'msg';
SET ROLE regress_le_reader;
SELECT leader_election.join('msg', 'two');
RESET ROLE;

SET default_transaction_read_only = on;
SELECT leader_election.join('msg', 'one');
SET default_transaction_read_only = off;

SELECT leader_election.leave_all();
DROP OWNED BY regress_le_reader, regress_le_writer;
DROP ROLE regress_le_reader, regress_le_writer;
