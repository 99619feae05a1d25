--
-- Nothing that a user makes can take the place of what the extension uses:
-- not tables, types, functions or operators of the same names, wherever the
-- caller's search_path has them.
--

SET client_min_messages = warning;
CREATE SCHEMA evil;

-- A statement that calls one of these fails.
CREATE FUNCTION evil.trap() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RAISE 'captured by %', current_user USING errcode = 'P0666';
END
$$;
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql
	AS 'SELECT evil.trap(); SELECT NULL::timestamptz';
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql
	AS 'SELECT evil.trap(); SELECT NULL::timestamptz';
CREATE FUNCTION evil.inet_client_addr() RETURNS inet LANGUAGE sql
	AS 'SELECT evil.trap(); SELECT NULL::inet';
CREATE FUNCTION evil.unnest(anyarray) RETURNS SETOF anyelement LANGUAGE sql
	AS 'SELECT evil.trap(); SELECT NULL';
CREATE FUNCTION evil.unnest(text[]) RETURNS SETOF text LANGUAGE sql
	AS 'SELECT evil.trap(); SELECT NULL::text';
CREATE FUNCTION evil.unnest(bigint[]) RETURNS SETOF bigint LANGUAGE sql
	AS 'SELECT evil.trap(); SELECT NULL::bigint';
CREATE FUNCTION evil."coalesce"(int, int) RETURNS int LANGUAGE sql
	AS 'SELECT evil.trap(); SELECT 1';
CREATE FUNCTION evil."greatest"(bigint, bigint) RETURNS bigint LANGUAGE sql
	AS 'SELECT evil.trap(); SELECT 1::bigint';
CREATE FUNCTION evil._monotonic_clock() RETURNS bigint LANGUAGE sql
	AS 'SELECT evil.trap(); SELECT 1::bigint';
CREATE FUNCTION evil._observe(text) RETURNS text LANGUAGE sql
	AS 'SELECT evil.trap(); SELECT NULL::text';
CREATE FUNCTION evil._standing(text) RETURNS text LANGUAGE sql
	AS 'SELECT evil.trap(); SELECT NULL::text';

DO $$
DECLARE
	operand text;
	operator text;
BEGIN
	FOREACH operand IN ARRAY '{text,bigint,integer,timestamptz,interval,name,boolean}'::text[] LOOP
		EXECUTE format('CREATE FUNCTION evil.compare(%1$s, %1$s) RETURNS boolean LANGUAGE sql AS ''SELECT evil.trap()''', operand);
		EXECUTE format('CREATE FUNCTION evil.compute(%1$s, %1$s) RETURNS %1$s LANGUAGE sql AS ''SELECT evil.trap(); SELECT $1''', operand);
		FOREACH operator IN ARRAY '{=,<>,<,>,<=,>=}'::text[] LOOP
			EXECUTE format('CREATE OPERATOR evil.%1$s (LEFTARG = %2$s, RIGHTARG = %2$s, FUNCTION = evil.compare)', operator, operand);
		END LOOP;
		FOREACH operator IN ARRAY '{+,-,*}'::text[] LOOP
			EXECUTE format('CREATE OPERATOR evil.%1$s (LEFTARG = %2$s, RIGHTARG = %2$s, FUNCTION = evil.compute)', operator, operand);
		END LOOP;
	END LOOP;
END
$$;
CREATE FUNCTION evil.multiply(bigint, interval) RETURNS interval LANGUAGE sql
	AS 'SELECT evil.trap(); SELECT $2';
CREATE OPERATOR evil.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = evil.multiply);
CREATE FUNCTION evil.add(timestamptz, interval) RETURNS timestamptz LANGUAGE sql
	AS 'SELECT evil.trap(); SELECT $1';
CREATE OPERATOR evil.+ (LEFTARG = timestamptz, RIGHTARG = interval, FUNCTION = evil.add);
CREATE OPERATOR evil.- (LEFTARG = timestamptz, RIGHTARG = interval, FUNCTION = evil.add);

CREATE DOMAIN evil.interval AS pg_catalog.text CHECK (evil.trap());
CREATE DOMAIN evil.lease_grant AS pg_catalog.text CHECK (evil.trap());

-- Tables of the same names: the real ones would not be written.
CREATE TABLE evil.election (election text, owner name);
CREATE TABLE evil.lease (election text, leader text, term bigint);
CREATE TABLE evil.candidate (election text, candidate text);
CREATE TABLE evil.history (election text, term bigint);
CREATE TABLE evil.epoch (incarnation text);
CREATE TEMPORARY TABLE election (LIKE evil.election);
CREATE TEMPORARY TABLE lease (LIKE evil.lease);
CREATE TEMPORARY TABLE candidate (LIKE evil.candidate);
CREATE TEMPORARY TABLE history (LIKE evil.history);
CREATE TEMPORARY TABLE epoch (LIKE evil.epoch);
CREATE TEMPORARY TABLE pg_class (oid int, relname text, relowner int);
CREATE TEMPORARY TABLE pg_extension (extname text);

SET search_path = pg_temp, evil, pg_catalog, public;

-- The trap works.
\set VERBOSITY sqlstate
SELECT 'a'::text = 'b'::text;
SELECT clock_timestamp();

-- Every statement of the extension, in a session that has prepared none yet
SELECT leader_election.join('x', 'one', 1, 2, '{}', false);
SELECT leader_election.join('x', 'one', 2, 3, '[]', true);
SELECT leader_election.is_leader('x'), leader_election.term('x'),
	   leader_election.leader('x');
SELECT term, yielding FROM leader_election.renew('x');
SELECT leader_election.resign('x', '1 microsecond');
CALL leader_election.campaign('x', 'one');
CALL leader_election.wait_for_change('x', NULL, NULL);
SELECT leader_election.transfer('x', 'two');
SELECT term, yielding FROM leader_election.acquire('z', 'one', 1, 2, '{}');
SELECT term, yielding FROM leader_election.acquire('z', 'two', 2, 3, '[]');
SELECT term, yielding FROM leader_election.renew('z', 1, 4);
SELECT leader_election.is_leader('z', 1);
SELECT leader_election.request_yield('z', 'two') IS NOT NULL;
SELECT leader_election.transfer('z', 1, 'two');
SELECT term, yielding FROM leader_election.acquire('z', 'two');
SELECT leader_election.leave('z', 'one');
SELECT leader_election.release('z', 2, '1 microsecond');
SELECT leader_election.leave('z', 'two');
SELECT leader, state FROM leader_election.status WHERE election LIKE 'x';
SELECT candidate, rank, "position" FROM leader_election.candidates;
SELECT term, leader, reason FROM leader_election.history
 WHERE election LIKE 'x';
SELECT leader_election.leave('x');
SELECT leader_election.create_election('w', 'zab', '1 s', 2, '1 s', current_user, 'c');
SELECT leader_election.alter_election('w', 'spread', '2 s', 1, '2 s', '', '');
SELECT leader_election.join('w', 'one');
SELECT leader_election.assert_leader('w');
SELECT leader_election.leave('w');
SELECT leader_election.drop_election('w');
SELECT leader_election.join('y', 'one') > 0 AS leads;
SELECT leader_election.leave_all();

SELECT (SELECT count(*) FROM evil.election), (SELECT count(*) FROM evil.lease),
	   (SELECT count(*) FROM evil.candidate),
	   (SELECT count(*) FROM evil.history), (SELECT count(*) FROM evil.epoch);
SELECT (SELECT count(*) FROM pg_temp.election),
	   (SELECT count(*) FROM pg_temp.lease),
	   (SELECT count(*) FROM pg_temp.candidate),
	   (SELECT count(*) FROM pg_temp.history),
	   (SELECT count(*) FROM pg_temp.epoch);

-- The same for what the script runs.
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election;
SELECT leader_election.join('x', 'one');
SELECT leader_election.leave_all();

RESET search_path;

-- A schema of the extension's name that somebody else has made is not
-- adopted, and what is in it is not believed.
DROP EXTENSION leader_election;
CREATE SCHEMA leader_election;
CREATE EXTENSION leader_election;
CREATE TABLE leader_election.lease (election text PRIMARY KEY, leader text);
CREATE TABLE leader_election.election (election text PRIMARY KEY);
CREATE TABLE leader_election.candidate (election text PRIMARY KEY);
CREATE TABLE leader_election.history ();
CREATE TABLE leader_election.epoch ();
CREATE TYPE leader_election.change AS ();
CREATE FUNCTION evil.leader(text) RETURNS text
	AS '$libdir/leader_election', 'le_leader' LANGUAGE C;
CREATE FUNCTION evil."join"(text, text, int, bigint, jsonb, boolean)
	RETURNS bigint AS '$libdir/leader_election', 'le_join' LANGUAGE C;
SELECT evil.leader('x');
SELECT evil."join"('x', 'one', NULL, NULL, NULL, NULL);
DROP SCHEMA leader_election CASCADE;
SELECT evil."join"('x', 'one', NULL, NULL, NULL, NULL);
CREATE EXTENSION leader_election;
SELECT evil."join"('x', 'one', NULL, NULL, NULL, NULL);
SELECT leader_election.leave_all();

DROP SCHEMA evil CASCADE;
