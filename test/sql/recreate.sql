--
-- The extension is dropped under a session that holds candidacies, and
-- created again.
--

SET client_min_messages = warning;
\set VERBOSITY sqlstate
SELECT leader_election.join('d', 'one'), leader_election.join('d2', 'one');
SELECT leader_election.is_leader('d');
\a \t
SELECT term FROM leader_election.acquire('d4', 'detached');
SELECT term FROM leader_election.renew('d4', 1);
\a \t

DROP EXTENSION leader_election;
SELECT leader_election.is_leader('d');

-- The session is usable; at most its own session lock stands.
SELECT count(*) FROM pg_locks
 WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND objsubid <> 20;
CREATE SCHEMA outside;
CREATE FUNCTION outside.is_leader(text) RETURNS boolean
	AS '$libdir/leader_election', 'le_is_leader' LANGUAGE C;
CREATE FUNCTION outside.term(text) RETURNS bigint
	AS '$libdir/leader_election', 'le_term' LANGUAGE C;
CREATE FUNCTION outside.leader(text) RETURNS text
	AS '$libdir/leader_election', 'le_leader' LANGUAGE C STRICT;
CREATE FUNCTION outside.leave(text) RETURNS boolean
	AS '$libdir/leader_election', 'le_leave' LANGUAGE C;
CREATE FUNCTION outside.leave_all() RETURNS integer
	AS '$libdir/leader_election', 'le_leave_all' LANGUAGE C;
CREATE PROCEDURE outside.campaign(text, text, interval, integer, bigint, jsonb,
	boolean, INOUT bigint) AS '$libdir/leader_election', 'le_campaign' LANGUAGE C;
-- What is called all the same finds no elections.
SELECT outside.is_leader('d'), outside.term('d'), outside.leader('d');
SELECT outside.leave('d');
SELECT outside.leave_all();
CALL outside.campaign('d', 'one', '1 s', NULL, NULL, NULL, NULL, NULL);

-- Created again, it knows nothing of what was before.
CREATE EXTENSION leader_election;
SELECT leader_election.is_leader('d'), leader_election.term('d'),
	   leader_election.leader('d');
SELECT count(*) FROM leader_election.status;
SELECT leader_election.join('d', 'another name');
SELECT leader_election.is_leader('d'), leader_election.is_leader('d2');
SELECT leader_election.leave('d2');
SELECT leader_election.leave_all();
SELECT leader_election.is_leader('d');
SELECT count(*) FROM pg_locks
 WHERE locktype = 'advisory' AND pid = pg_backend_pid();

-- Nor that it has found the row of the holder of that very term.
\a \t
SELECT term FROM leader_election.acquire('d4', 'detached');
DELETE FROM leader_election.candidate WHERE election = 'd4';
SELECT term FROM leader_election.renew('d4', 1);
SELECT candidate FROM leader_election.candidate WHERE election = 'd4';
\a \t

-- All in one transaction
SELECT leader_election.join('d3', 'one');
BEGIN;
DROP EXTENSION leader_election;
SELECT outside.is_leader('d3');
CREATE EXTENSION leader_election;
SELECT leader_election.is_leader('d3');
ROLLBACK;
SELECT leader_election.term('d3');
BEGIN;
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election;
COMMIT;
SELECT leader_election.is_leader('d3');
SELECT leader_election.join('d', 'two');
SELECT leader_election.is_leader('d'), leader_election.leader('d');
SELECT leader_election.leave_all();
SELECT count(*) FROM pg_locks
 WHERE locktype = 'advisory' AND pid = pg_backend_pid();

DROP SCHEMA outside CASCADE;
