--
-- Misuse: the SQLSTATE each time, and afterwards a session that is usable and
-- holds no lock.
--

SET client_min_messages = warning;
\set VERBOSITY sqlstate
-- join() returns NULL where the worker is just looking at the same election,
-- which it may do after every change: ask again.
CREATE PROCEDURE pg_temp.lead(election text, candidate text,
	INOUT term bigint DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		term := leader_election.join(election, candidate);
		COMMIT;
		EXIT WHEN term IS NOT NULL;
	END LOOP;
END
$$;
-- Nothing is locked any more: neither a lock of ours nor one of our tables.
\set left 'SELECT count(*) AS locks_left FROM pg_locks WHERE pid = pg_backend_pid() AND (locktype = \'advisory\' OR relation IN (SELECT oid FROM pg_class WHERE relnamespace = \'leader_election\'::regnamespace));'

--
-- Inside a transaction block
--

BEGIN;
SELECT leader_election.join('m', 'one');
ROLLBACK;
BEGIN;
CALL leader_election.campaign('m', 'one', '1 s');
ROLLBACK;
BEGIN;
CALL leader_election.wait_for_change('m', NULL, NULL, '1 s');
ROLLBACK;
BEGIN;
SELECT leader_election.renew('m');
ROLLBACK;
BEGIN;
SELECT leader_election.resign('m');
ROLLBACK;
BEGIN;
SELECT leader_election.leave('m');
ROLLBACK;
BEGIN;
SELECT leader_election.leave_all();
ROLLBACK;
BEGIN;
SELECT leader_election.transfer('m', 'two');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT leader_election.join('m', 'one');
ROLLBACK TO s;
SELECT leader_election.is_leader('m');
COMMIT;

-- of more than one statement in one message, the first included
SELECT leader_election.join('m', 'one')\; SELECT 'not reached';
SELECT 'first'\; SELECT leader_election.join('m', 'one');
SELECT 'first'\; CALL leader_election.campaign('m', 'one', '1 s');
SELECT 'first'\; CALL leader_election.wait_for_change('m', NULL, NULL, '1 s');

-- in autocommit mode that is none
\set AUTOCOMMIT off
SELECT leader_election.join('m', 'one');
ROLLBACK;
\set AUTOCOMMIT on

-- and in the block of an exception handler.
CREATE FUNCTION pg_temp.caught(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE command;
	RETURN 'no error';
EXCEPTION WHEN others THEN
	RETURN sqlstate;
END
$$;
SELECT pg_temp.caught($$SELECT leader_election.join('m', 'one')$$);
SELECT pg_temp.caught($$SELECT leader_election.renew('m')$$);
SELECT pg_temp.caught($$SELECT leader_election.resign('m')$$);
SELECT pg_temp.caught($$SELECT leader_election.leave('m')$$);
SELECT pg_temp.caught($$SELECT leader_election.leave_all()$$);
SELECT pg_temp.caught($$SELECT leader_election.transfer('m', 'two')$$);
SELECT pg_temp.caught($$CALL leader_election.campaign('m', 'one', '1 s')$$);
SELECT pg_temp.caught($$CALL leader_election.wait_for_change('m', NULL, NULL, '1 s')$$);
DO $$
DECLARE
	term bigint;
BEGIN
	CALL leader_election.campaign('m', 'one', '1 s', term => term);
EXCEPTION WHEN others THEN
	RAISE WARNING USING errcode = sqlstate;
END
$$;

-- Nothing of it happened.
SELECT count(*) FROM leader_election.election WHERE election = 'm';
:left

--
-- Elections that do not exist
--

SELECT leader_election.renew('m');
SELECT leader_election.resign('m');
SELECT leader_election.leave('m');
SELECT leader_election.transfer('m', 'two');
CALL leader_election.wait_for_change('m', NULL, NULL, '1 s');
SET leader_election.auto_create = off;
SELECT leader_election.join('m', 'one');
CALL leader_election.campaign('m', 'one', '1 s');
RESET leader_election.auto_create;
:left

--
-- Names
--

SELECT leader_election.join('', 'one');
SELECT leader_election.join('m', '');
SELECT leader_election.join(repeat('m', 201), 'one');
SELECT leader_election.join('m', repeat('m', 201));
SELECT leader_election.join(repeat('m', 10000000), 'one');
SELECT leader_election.join('m', repeat('m', 10000000));
-- Bytes count, not characters.
SELECT leader_election.join('m', repeat('é', 101));
SELECT leader_election.join(repeat('𝄞', 51), 'one');
CALL leader_election.campaign('', 'one');
CALL leader_election.campaign(repeat('m', 201), 'one');
CALL leader_election.campaign('m', repeat('m', 10000000));
CALL leader_election.wait_for_change('', NULL, NULL);
CALL leader_election.wait_for_change(repeat('m', 10000000), NULL, NULL);
CALL leader_election.wait_for_change('m', NULL, repeat('m', 10000000));
SELECT leader_election.renew(repeat('m', 10000000));
SELECT leader_election.resign(repeat('m', 10000000));
SELECT leader_election.leave(repeat('m', 10000000));
SELECT leader_election.transfer(repeat('m', 10000000), 'two');
SELECT leader_election.transfer('m', repeat('m', 10000000));
SELECT leader_election.is_leader(repeat('m', 10000000)),
	   leader_election.term(repeat('m', 10000000)),
	   leader_election.leader(repeat('m', 10000000));
SELECT (leader_election._observe(repeat('m', 10000000))).state;
SELECT count(*) FROM leader_election._standing(repeat('m', 10000000));
:left

-- Arguments that must not be NULL
SELECT leader_election.join(NULL, 'one');
SELECT leader_election.join('m', NULL);
CALL leader_election.campaign(NULL, 'one');
CALL leader_election.campaign('m', NULL);
CALL leader_election.wait_for_change(NULL, 1, 'one');
SELECT leader_election.renew(NULL);
SELECT leader_election.resign(NULL);
SELECT leader_election.leave(NULL);
SELECT leader_election.transfer(NULL, 'two');
SELECT leader_election.transfer('m', NULL);
SELECT count(*) FROM leader_election.election WHERE election = 'm';
:left

-- Names that are good: 200 bytes, and every byte but 0.
CREATE TEMPORARY TABLE names (n int, name text);
INSERT INTO names VALUES
	(1, repeat('m', 200)),
	(2, repeat('é', 100)),
	(3, repeat('𝄞', 50)),
	(4, E'\x01'),
	(5, repeat(E'\x1f', 200)),
	(6, E'a\nb\r\nc\t"\\''''"; DROP TABLE candidate; --{"a":1}%s%n'),
	(7, ' '),
	(8, 'NULL'),
	(9, '-1e500'),
	(10, E'\u202e\ufeff');
SELECT n, leader_election.join(name, name) FROM names ORDER BY n;
SELECT n, leader_election.is_leader(name), leader_election.term(name),
	   leader_election.leader(name) IS NOT DISTINCT FROM name AS leader,
	   state, candidates, candidate IS NOT DISTINCT FROM name AS candidate,
	   h.leader IS NOT DISTINCT FROM name AS history
  FROM names
	   LEFT JOIN leader_election.status s ON s.election = name
	   LEFT JOIN leader_election.candidates c ON c.election = name
	   LEFT JOIN leader_election.history h ON h.election = name
 ORDER BY n;
SELECT n, leader_election.resign(name) FROM names ORDER BY n;
SELECT n, leader_election.leave(name) FROM names ORDER BY n;
:left

--
-- Intervals
--

SELECT leader_election.join('m', 'one');
SELECT CASE WHEN current_setting('server_version_num')::int >= 170000
	   THEN 'infinity' ELSE '178000000 years' END AS endless,
	   CASE WHEN current_setting('server_version_num')::int >= 170000
	   THEN '-infinity' ELSE '-178000000 years' END AS minus_endless \gset
SELECT leader_election.resign('m', '-1 microsecond');
SELECT leader_election.resign('m', '366 days 1 microsecond');
SELECT leader_election.resign('m', '-1 month 1 day');
SELECT leader_election.resign('m', :'endless');
SELECT leader_election.resign('m', :'minus_endless');
CALL leader_election.campaign('m', 'one', '-1 s');
CALL leader_election.campaign('m', 'one', :'endless');
CALL leader_election.campaign('m', 'one', :'minus_endless');
CALL leader_election.wait_for_change('m', NULL, NULL, '-1 s');
CALL leader_election.wait_for_change('m', NULL, NULL, :'endless');
CALL leader_election.wait_for_change('m', NULL, NULL, :'minus_endless');
-- It leads still.
SELECT leader_election.term('m');
SELECT leader_election.leave('m');
CALL leader_election.campaign('m', 'one', :'endless');
:left

--
-- A second name for the same session
--

CALL pg_temp.lead('m', 'one');
SELECT leader_election.join('m', 'two');
CALL leader_election.campaign('m', 'two', '1 s');
-- Nobody is left who would be in the way of others.
SELECT candidate, leads FROM leader_election.candidates WHERE election = 'm';
SELECT leader_election.term('m');

--
-- Read-only transactions
--

SET default_transaction_read_only = on;
SELECT leader_election.join('m', 'one');
CALL leader_election.campaign('m', 'one', '1 s');
SELECT leader_election.renew('m');
SELECT leader_election.resign('m');
SELECT leader_election.leave('m');
SELECT leader_election.leave_all();
SELECT leader_election.transfer('m', 'two');
SELECT leader_election.is_leader('m'), leader_election.leader('m');
CALL leader_election.wait_for_change('m', NULL, NULL, '1 s');
SET default_transaction_read_only = off;

-- An error in the statement takes everything back.
SELECT leader_election.resign('m'), leader_election.join('m2', 'one'), 1 / (pg_backend_pid() - pg_backend_pid());
SELECT leader_election.term('m'), leader_election.is_leader('m2');
SELECT count(*) FROM leader_election.candidates WHERE election = 'm2';
SELECT leader_election.leave('m'), 1 / (pg_backend_pid() - pg_backend_pid());
SELECT leader_election.term('m');

-- Only the session lock stands, and that goes with the last candidacy.
SELECT mode, objsubid, count(*) FROM pg_locks
 WHERE locktype = 'advisory' AND pid = pg_backend_pid() GROUP BY 1, 2;
SELECT leader_election.leave_all();
:left
-- The session is usable.
CALL pg_temp.lead('m', 'two');
SELECT leader_election.is_leader('m');
SELECT leader_election.leave_all();
:left
