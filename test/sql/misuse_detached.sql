--
-- Misuse of the calls for detached candidates and operators: the SQLSTATE each
-- time, and afterwards a session that is usable and holds no lock.
--

SET client_min_messages = warning;
\set VERBOSITY sqlstate
-- Nothing is locked any more: neither a lock of ours nor one of our tables.
\set left 'SELECT count(*) AS locks_left FROM pg_locks WHERE pid = pg_backend_pid() AND (locktype = \'advisory\' OR relation IN (SELECT oid FROM pg_class WHERE relnamespace = \'leader_election\'::regnamespace));'

--
-- Inside a transaction block
--

BEGIN;
SELECT leader_election.acquire('md', 'one');
ROLLBACK;
BEGIN;
SELECT leader_election.renew('md', 1);
ROLLBACK;
BEGIN;
SELECT leader_election.release('md', 1);
ROLLBACK;
BEGIN;
SELECT leader_election.transfer('md', 1, 'two');
ROLLBACK;
BEGIN;
SELECT leader_election.leave('md', 'one');
ROLLBACK;
BEGIN;
SELECT leader_election.request_yield('md');
ROLLBACK;
BEGIN;
SELECT leader_election.alter_election('md', quorum => 2);
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT leader_election.acquire('md', 'one');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT leader_election.acquire('md', 'one');
ROLLBACK TO s;
SELECT leader_election.is_leader('md', 1);
COMMIT;
-- in one that has failed already
BEGIN;
SELECT 1 / 0;
SELECT leader_election.acquire('md', 'one');
SELECT leader_election.renew('md', 1);
SELECT leader_election.is_leader('md', 1);
ROLLBACK;

-- of more than one statement in one message, the first included
SELECT leader_election.acquire('md', 'one')\; SELECT 'not reached';
SELECT 'first'\; SELECT leader_election.acquire('md', 'one');
SELECT 'first'\; SELECT leader_election.renew('md', 1);

-- in autocommit mode that is none
\set AUTOCOMMIT off
SELECT leader_election.acquire('md', 'one');
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
SELECT pg_temp.caught($$SELECT leader_election.acquire('md', 'one')$$);
SELECT pg_temp.caught($$SELECT leader_election.renew('md', 1)$$);
SELECT pg_temp.caught($$SELECT leader_election.release('md', 1)$$);
SELECT pg_temp.caught($$SELECT leader_election.transfer('md', 1, 'two')$$);
SELECT pg_temp.caught($$SELECT leader_election.leave('md', 'one')$$);
SELECT pg_temp.caught($$SELECT leader_election.request_yield('md')$$);
SELECT pg_temp.caught($$SELECT leader_election.is_leader('md', 1)$$);

-- Nothing of it happened.
SELECT count(*) FROM leader_election.election WHERE election = 'md';
:left

--
-- Elections that do not exist
--

SELECT leader_election.renew('md', 1);
SELECT leader_election.release('md', 1);
SELECT leader_election.transfer('md', 1, 'two');
SELECT leader_election.leave('md', 'one');
SELECT leader_election.request_yield('md');
SELECT leader_election.is_leader('md', 1);
SET leader_election.auto_create = off;
SELECT leader_election.acquire('md', 'one');
RESET leader_election.auto_create;
SELECT count(*) FROM leader_election.election WHERE election = 'md';
:left

--
-- Names
--

SELECT leader_election.acquire('', 'one');
SELECT leader_election.acquire('md', '');
SELECT leader_election.acquire(repeat('m', 201), 'one');
SELECT leader_election.acquire('md', repeat('m', 201));
SELECT leader_election.acquire(repeat('m', 10000000), 'one');
SELECT leader_election.acquire('md', repeat('m', 10000000));
-- Bytes count, not characters.
SELECT leader_election.acquire('md', repeat('é', 101));
SELECT leader_election.acquire(repeat('𝄞', 51), 'one');
SELECT leader_election.renew('', 1);
SELECT leader_election.renew(repeat('m', 201), 1);
SELECT leader_election.renew(repeat('m', 10000000), 1);
SELECT leader_election.release('', 1);
SELECT leader_election.release(repeat('m', 10000000), 1);
SELECT leader_election.transfer('', 1, 'two');
SELECT leader_election.transfer('md', 1, '');
SELECT leader_election.transfer('md', 1, repeat('m', 201));
SELECT leader_election.transfer(repeat('m', 10000000), 1, 'two');
SELECT leader_election.transfer('md', 1, repeat('m', 10000000));
SELECT leader_election.leave('', 'one');
SELECT leader_election.leave('md', '');
SELECT leader_election.leave(repeat('m', 10000000), 'one');
SELECT leader_election.leave('md', repeat('m', 10000000));
SELECT leader_election.request_yield('');
SELECT leader_election.request_yield('md', '');
SELECT leader_election.request_yield(repeat('m', 10000000));
SELECT leader_election.request_yield('md', repeat('m', 10000000));
SELECT leader_election.is_leader('', 1),
	   leader_election.is_leader(repeat('m', 201), 1),
	   leader_election.is_leader(repeat('m', 10000000), 1);
:left

-- Arguments that must not be NULL
SELECT leader_election.acquire(NULL, 'one');
SELECT leader_election.acquire('md', NULL);
SELECT leader_election.renew(NULL, 1);
SELECT leader_election.release(NULL, 1);
SELECT leader_election.release('md', NULL);
SELECT leader_election.transfer(NULL, 1, 'two');
SELECT leader_election.transfer('md', NULL, 'two');
SELECT leader_election.transfer('md', 1, NULL);
SELECT leader_election.leave(NULL, 'one');
SELECT leader_election.leave('md', NULL::text);
SELECT leader_election.request_yield(NULL);
SELECT leader_election.request_yield(NULL, 'two', true);
SELECT leader_election.is_leader(NULL, 1), leader_election.is_leader('md', NULL),
	   leader_election.is_leader(NULL, NULL);
SELECT count(*) FROM leader_election.election WHERE election = 'md';
:left

-- Names that are good: 200 bytes, and every byte but 0.
CREATE TEMPORARY TABLE names (n int, name text);
INSERT INTO names VALUES
	(1, repeat('d', 200)),
	(2, repeat('ê', 100)),
	(3, repeat('𝄢', 50)),
	(4, E'\x02'),
	(5, repeat(E'\x1e', 200)),
	(6, E'd\nb\r\nc\t"\\''''"; DROP TABLE candidate; --{"a":1}%s%n'),
	(7, '  '),
	(8, 'null'),
	(9, '-1e501'),
	(10, E'\ufeff\u202e');
SELECT n, term FROM names, leader_election.acquire(name, name) ORDER BY n;
SELECT n, term FROM names, leader_election.renew(name, 1, n) ORDER BY n;
SELECT n, leader_election.is_leader(name, 1),
	   leader_election.leader(name) IS NOT DISTINCT FROM name AS leader,
	   state, candidates, candidate IS NOT DISTINCT FROM name AS candidate,
	   h.leader IS NOT DISTINCT FROM name AS history
  FROM names
	   LEFT JOIN leader_election.status s ON s.election = name
	   LEFT JOIN leader_election.candidates c ON c.election = name
	   LEFT JOIN leader_election.history h ON h.election = name
 ORDER BY n;
SELECT n, leader_election.request_yield(name) > '0' FROM names ORDER BY n;
SELECT n, leader_election.release(name, 1) FROM names ORDER BY n;
SELECT n, leader_election.leave(name, name) FROM names ORDER BY n;
:left

--
-- Holds
--

SELECT term FROM leader_election.acquire('md', 'one');
SELECT CASE WHEN current_setting('server_version_num')::int >= 170000
	   THEN 'infinity' ELSE '178000000 years' END AS endless,
	   CASE WHEN current_setting('server_version_num')::int >= 170000
	   THEN '-infinity' ELSE '-178000000 years' END AS minus_endless \gset
SELECT leader_election.release('md', 1, '-1 microsecond');
SELECT leader_election.release('md', 1, '366 days 1 microsecond');
SELECT leader_election.release('md', 1, '-1 month 1 day');
SELECT leader_election.release('md', 1, :'endless');
SELECT leader_election.release('md', 1, :'minus_endless');
-- also of a term that is not the present one.
SELECT leader_election.release('md', 2, '-1 s');
-- It leads still.
SELECT leader_election.is_leader('md', 1);
:left

--
-- Names in use, and successors that are none
--

SELECT leader_election.join('md', 'one');
CALL leader_election.campaign('md', 'one', '0');
SELECT leader_election.join('md', 'session');
SELECT leader_election.acquire('md', 'session');
SELECT leader_election.leave('md', 'session');
SELECT leader_election.leave('md', 'one');
SELECT leader_election.transfer('md', 1, 'nobody');
SELECT leader_election.request_yield('md', 'nobody');
SELECT leader_election.request_yield('md', 'one');
SELECT leader_election.leave('md');
SELECT leader_election.transfer('md', 1, 'session');
SELECT leader_election.request_yield('md', 'session');
SELECT leader_election.is_leader('md', 1);
SELECT state, candidates FROM leader_election.status WHERE election = 'md';
:left

-- A session's term is no detached candidate's.
SELECT leader_election.join('ms', 'session');
SELECT leader_election.acquire('ms', 'session');
SELECT count(*) FROM leader_election.acquire('ms', 'one');
SELECT leader_election.renew('ms', 1);
SELECT leader_election.release('ms', 1);
SELECT leader_election.transfer('ms', 1, 'one');
SELECT count(*) FROM leader_election.renew('ms', 2);
SELECT leader_election.release('ms', 2), leader_election.transfer('ms', 2, 'one');
SELECT leader_election.request_yield('ms', 'session');
SELECT leader_election.is_leader('ms', 1), leader_election.is_leader('ms');
SELECT leader_election.leave_all();
:left

--
-- Read-only transactions
--

SET default_transaction_read_only = on;
SELECT leader_election.acquire('md', 'two');
SELECT leader_election.renew('md', 1);
SELECT leader_election.release('md', 1);
SELECT leader_election.transfer('md', 1, 'two');
SELECT leader_election.leave('md', 'one');
SELECT leader_election.request_yield('md');
SELECT leader_election.is_leader('md', 1);
SET default_transaction_read_only = off;
BEGIN READ ONLY;
SELECT leader_election.is_leader('md', 1);
SELECT leader_election.acquire('md', 'two');
ROLLBACK;
:left

-- Another default level of isolation, in which nothing else is different
SET default_transaction_isolation = 'serializable';
SELECT leader_election.transfer('md', 1, 'nobody');
SELECT term FROM leader_election.renew('md', 1);
RESET default_transaction_isolation;

-- An error in the statement takes everything back.
SELECT count(*) FROM leader_election.acquire('md', 'two');
SELECT leader_election.release('md', 1), 1 / (pg_backend_pid() - pg_backend_pid());
SELECT leader_election.request_yield('md'), 1 / (pg_backend_pid() - pg_backend_pid());
SELECT leader_election.leave('md', 'two'), 1 / (pg_backend_pid() - pg_backend_pid());
SELECT count(*), 1 / (count(*) - count(*)) FROM leader_election.acquire('md', 'three');
SELECT term, yielding, leader_election.is_leader('md', 1) FROM leader_election.renew('md', 1);
SELECT candidate, leads FROM leader_election.candidates WHERE election = 'md';
:left

-- The session is usable.
SELECT leader_election.release('md', 1);
SELECT term FROM leader_election.acquire('md', 'two');
SELECT leader_election.is_leader('md', 2);
-- A leader is no successor of its own.
SELECT leader_election.transfer('md', 2, 'two');
SELECT leader_election.is_leader('md', 2);
:left

-- Runs: one needs a name, within bounds, and attempts need a run.
SELECT leader_election.acquire('md', 'one', run => '');
SELECT leader_election.acquire('md', 'one', run => repeat('x', 201));
SELECT leader_election.acquire('md', 'one', attempts => 3);
SELECT leader_election.acquire('md', 'one', run => 'r', attempts => 0);
SELECT leader_election.set_run_done('md', repeat('x', 201));
-- This term was granted for none.
SELECT leader_election.release('md', 2, done => true);
SELECT leader_election.release('md', 2);
SELECT leader_election.release('md', 2, done => true);
SELECT term FROM leader_election.acquire('md', 'one', run => 'r', attempts => 3);
SELECT run, run_done, done_at FROM leader_election.status WHERE election = 'md';
SELECT leader_election.release('md', 3, hold => '0 s', done => true);
SELECT term, reason, detail FROM leader_election.history
 WHERE election = 'md' ORDER BY term DESC LIMIT 1;
SELECT run, run_done, done_at <= clock_timestamp() AS done
  FROM leader_election.status WHERE election = 'md';
SELECT leader_election.acquire('md', 'one', run => 'r');
SELECT leader_election.set_run_done('md', NULL);
SELECT term FROM leader_election.acquire('md', 'one', run => 'r');
:left

-- Nobody is left who would be in the way of others.
SELECT count(*) FROM leader_election.status
 WHERE kind = 'detached' AND NOT leader_election.release(election, term);
SELECT count(*) FROM leader_election.candidates
 WHERE NOT leader_election.leave(election, candidate);
:left
