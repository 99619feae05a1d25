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

-- Only its owner, or a superuser, pauses an election; all of them, a superuser.
SET ROLE regress_le_reader;
SELECT leader_election.pause_election('msg');
SELECT leader_election.resume_election('msg');
SELECT leader_election.pause_all();
SELECT leader_election.resume_all();
RESET ROLE;
SELECT leader_election.pause_election('no such election');
SELECT leader_election.pause_election('msg', repeat('é', 501));
SELECT leader_election.pause_election('msg', duration => '-1 s');
SELECT leader_election.pause_all(repeat('é', 501));
BEGIN;
SELECT leader_election.pause_election('msg');
ROLLBACK;
BEGIN;
SELECT leader_election.resume_all();
ROLLBACK;

-- The same holds for drains.
SET ROLE regress_le_reader;
SELECT leader_election.drain_candidate('one', 'msg');
SELECT leader_election.undrain_candidate('one', 'msg');
SELECT leader_election.drain_candidate('one');
SELECT leader_election.undrain_candidate('one');
RESET ROLE;
SELECT leader_election.drain_candidate('*');
SELECT leader_election.drain_candidate('one', 'no such election');
SELECT leader_election.drain_candidate('one', 'msg', repeat('é', 501));
SELECT leader_election.drain_candidate('zwei*', 'msg');
SELECT leader_election.undrain_candidate('zwei', 'msg');
SELECT leader_election.undrain_candidate('zwei*', 'msg');
BEGIN;
SELECT leader_election.drain_candidate('one');
ROLLBACK;

SET default_transaction_read_only = on;
SELECT leader_election.join('msg', 'one');
SET default_transaction_read_only = off;

SELECT leader_election.leave_all();

-- Detached candidates and operators
SELECT term FROM leader_election.acquire('msgd', 'one');
SELECT leader_election.join('msgd', 'session');
BEGIN;
SELECT leader_election.acquire('msgd', 'one');
ROLLBACK;
BEGIN;
SELECT leader_election.renew('msgd', 1);
ROLLBACK;
BEGIN;
SELECT leader_election.request_yield('msgd');
ROLLBACK;
SELECT leader_election.acquire('msgd', '');
SELECT leader_election.acquire('msgd', repeat('é', 101));
SELECT leader_election.release('msgd', NULL);
SELECT leader_election.release('msgd', 1, '-1 s');
SELECT leader_election.release('msgd', 1, '367 days');
\set VERBOSITY terse
SELECT leader_election.acquire('msgd', 'session');
\set VERBOSITY default
SELECT leader_election.acquire('msgd', 'three', metadata => to_jsonb(repeat('x', 8181)));
-- (Whose session has a name is told with its process ID: see 032_pools.)
SELECT leader_election.join('msg', 'session');
SELECT leader_election.renew('msg', 3);
SELECT leader_election.release('msg', 3);
SELECT leader_election.transfer('msg', 3, 'one');
SELECT leader_election.leave('msg', 'session');
SELECT leader_election.leave('msgd', 'one');
SELECT leader_election.transfer('msgd', 1, 'nobody');
SELECT leader_election.request_yield('msgd', 'nobody');
SELECT leader_election.request_yield('msgd', 'one');
SELECT leader_election.release('no such election', 1);
SELECT leader_election.request_yield('no such election');
SET leader_election.auto_create = off;
SELECT leader_election.acquire('no such election', 'one');
RESET leader_election.auto_create;
SET ROLE regress_le_reader;
SELECT leader_election.acquire('msg', 'three');
SELECT leader_election.acquire('msgd', 'one');
SELECT leader_election.renew('msgd', 1);
SELECT leader_election.release('msgd', 1);
SELECT leader_election.transfer('msgd', 1, 'session');
SELECT leader_election.leave('msgd', 'one');
SELECT leader_election.request_yield('msgd');
RESET ROLE;
SET default_transaction_read_only = on;
SELECT leader_election.acquire('msgd', 'one');
SELECT leader_election.request_yield('msgd');
SET default_transaction_read_only = off;
SELECT leader_election.leave_all();
SELECT leader_election.release('msgd', 1), leader_election.leave('msgd', 'one');
DROP OWNED BY regress_le_reader, regress_le_writer;
DROP ROLE regress_le_reader, regress_le_writer;
