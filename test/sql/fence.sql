--
-- Fenced transactions: assert_leader() and only_leader().  What happens to them
-- when another candidate takes over is in the isolation test and the TAP test.
--

SET client_min_messages = warning;
-- The worker may be looking at the same election: ask until it is granted.  A
-- candidacy that was lost is followed by one under another name: else the loss
-- would be told first (LE006).
CREATE SEQUENCE pg_temp.names;
CREATE PROCEDURE pg_temp.lead(election text, auto_renew boolean DEFAULT true)
LANGUAGE plpgsql AS $$
DECLARE
	me text := coalesce(
		(SELECT c.candidate FROM leader_election.candidates c
		  WHERE c.election = lead.election AND c.kind = 'session' AND c.alive),
		'one ' || nextval('pg_temp.names'));
BEGIN
	WHILE leader_election.join(election, me, auto_renew => auto_renew) IS NULL LOOP
		COMMIT;
	END LOOP;
	COMMIT;
END
$$;
CREATE PROCEDURE pg_temp.lead_detached(election text, candidate text,
	INOUT term bigint DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
	WHILE term IS NULL LOOP
		SELECT a.term INTO term
		  FROM leader_election.acquire(election, candidate) a;
		COMMIT;
	END LOOP;
END
$$;
-- The session lock is gone, and with it leadership: inside a transaction block,
-- the simplest way to lose it.
CREATE FUNCTION pg_temp.drop_session_lock() RETURNS void LANGUAGE sql
	AS $$SELECT pg_advisory_unlock_all()$$;
CREATE TABLE fence_log (what text);
\set show 'SELECT string_agg(what, \', \' ORDER BY what) AS written FROM fence_log;'

--
-- At the call
--

SELECT leader_election.assert_leader('f');
SELECT leader_election.assert_leader('f', 1);
CALL pg_temp.lead('f');
SELECT leader_election.assert_leader('f');
SELECT leader_election.assert_leader('f', 1);
SELECT leader_election.assert_leader('f', 2);
SELECT leader_election.assert_leader('f', 0);
SELECT leader_election.assert_leader('f', -1);
SELECT leader_election.assert_leader('f', NULL);
SELECT leader_election.assert_leader(NULL);
SELECT leader_election.assert_leader(NULL, 1);
SELECT leader_election.assert_leader('');
SELECT leader_election.assert_leader(repeat('x', 201));

-- It exists, and another candidate leads it, or nobody.
CALL pg_temp.lead_detached('f detached', 'other');
SELECT leader_election.assert_leader('f detached');
SELECT leader_election.assert_leader('f detached', 1);
SELECT leader_election.release('f detached', 1);
SELECT leader_election.assert_leader('f detached', 1);

-- An unknown election is LE003 in every isolation level.
\set VERBOSITY sqlstate
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT leader_election.assert_leader('f unknown');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT leader_election.assert_leader('f unknown');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT leader_election.assert_leader('f unknown', 1);
ROLLBACK;

-- What is not committed is no leadership.
SELECT leader_election.join('f new', 'one'), leader_election.assert_leader('f new');
SELECT leader_election.join('f new', 'one'), leader_election.assert_leader('f new', 1);
SELECT leader_election.leader('f new');

--
-- At commit
--

-- Lost meanwhile: nothing is written (G8).
\set VERBOSITY default
BEGIN;
SELECT leader_election.assert_leader('f');
INSERT INTO fence_log VALUES ('lost');
SELECT pg_temp.drop_session_lock();
COMMIT;
SELECT leader_election.is_leader('f');
\set VERBOSITY sqlstate
:show
-- The session is usable, and nothing is left of the fence.
BEGIN;
INSERT INTO fence_log VALUES ('unfenced');
COMMIT;
:show
CALL pg_temp.lead('f');
SELECT leader_election.term('f') > 1 AS later_term;
SELECT leader_election.term('f') AS term \gset

-- By term
BEGIN;
SELECT leader_election.assert_leader('f', :term);
INSERT INTO fence_log VALUES ('by term');
COMMIT;
BEGIN;
SELECT leader_election.assert_leader('f', :term);
INSERT INTO fence_log VALUES ('by term, lost');
SELECT pg_temp.drop_session_lock();
COMMIT;
:show
TRUNCATE fence_log;
CALL pg_temp.lead('f');

-- One statement is a transaction, too; so are several in one message.
WITH fence AS MATERIALIZED (SELECT leader_election.assert_leader('f')::text)
INSERT INTO fence_log SELECT 'statement' || assert_leader FROM fence;
INSERT INTO fence_log VALUES ('message')\; SELECT leader_election.assert_leader('f')\; INSERT INTO fence_log VALUES ('message, later');
INSERT INTO fence_log VALUES ('lost')\; SELECT leader_election.assert_leader('f')\; SELECT pg_temp.drop_session_lock();
:show
TRUNCATE fence_log;
CALL pg_temp.lead('f');

-- Read only, and with nothing written at all
BEGIN READ ONLY;
SELECT leader_election.assert_leader('f');
COMMIT;
BEGIN READ ONLY;
SELECT leader_election.assert_leader('f');
SELECT pg_temp.drop_session_lock();
COMMIT;
CALL pg_temp.lead('f');
BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE;
SELECT leader_election.assert_leader('f');
COMMIT;

-- Every isolation level
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT leader_election.assert_leader('f');
INSERT INTO fence_log VALUES ('repeatable read');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT leader_election.assert_leader('f');
INSERT INTO fence_log VALUES ('serializable');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT leader_election.assert_leader('f', leader_election.term('f'));
INSERT INTO fence_log VALUES ('serializable, by term');
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT leader_election.assert_leader('f');
INSERT INTO fence_log VALUES ('repeatable read, lost');
SELECT pg_temp.drop_session_lock();
COMMIT;
CALL pg_temp.lead('f');
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT leader_election.assert_leader('f');
INSERT INTO fence_log VALUES ('serializable, lost');
SELECT pg_temp.drop_session_lock();
COMMIT;
:show
TRUNCATE fence_log;
CALL pg_temp.lead('f');

--
-- Savepoints: once fenced, always fenced
--

BEGIN;
SAVEPOINT s;
SELECT leader_election.assert_leader('f');
ROLLBACK TO s;
INSERT INTO fence_log VALUES ('before the savepoint');
SELECT pg_temp.drop_session_lock();
COMMIT;
CALL pg_temp.lead('f');
BEGIN;
SAVEPOINT s;
SELECT leader_election.assert_leader('f');
RELEASE s;
SELECT pg_temp.drop_session_lock();
COMMIT;
CALL pg_temp.lead('f');
BEGIN;
SAVEPOINT s;
SELECT leader_election.assert_leader('f');
INSERT INTO fence_log VALUES ('undone');
ROLLBACK TO s;
INSERT INTO fence_log VALUES ('savepoint');
COMMIT;
-- An assertion that failed does not fence.
BEGIN;
SAVEPOINT s;
SELECT leader_election.assert_leader('f', 0);
ROLLBACK TO s;
INSERT INTO fence_log VALUES ('failed before');
COMMIT;
-- The next one of the session is not fenced by this one, however it ended.
BEGIN;
SELECT leader_election.assert_leader('f');
ROLLBACK;
BEGIN;
SELECT leader_election.assert_leader('f');
COMMIT AND CHAIN;
SELECT pg_temp.drop_session_lock();
INSERT INTO fence_log VALUES ('chained');
COMMIT;
:show
TRUNCATE fence_log;
CALL pg_temp.lead('f');

--
-- Functions, blocks and procedures
--

CREATE FUNCTION fence_inner(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM leader_election.assert_leader(name);
END
$$;
CREATE FUNCTION fence_outer(name text, what text) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		PERFORM fence_inner(name);
		RAISE EXCEPTION 'undo';
	EXCEPTION
		WHEN raise_exception THEN NULL;
		WHEN SQLSTATE 'LE001' THEN RETURN 'not the leader';
	END;
	INSERT INTO fence_log VALUES (what);
	RETURN 'written';
END
$$;
SELECT fence_outer('f', 'nested');
SELECT fence_outer('f detached', 'nested, not the leader');
-- The block was undone, the fence was not.
BEGIN;
SELECT fence_outer('f', 'nested, lost');
SELECT pg_temp.drop_session_lock();
COMMIT;
CALL pg_temp.lead('f');
-- A leader that resigns in the fenced transaction itself: all of it is undone,
-- the resignation, too.
DO $$
BEGIN
	PERFORM leader_election.assert_leader('f');
	INSERT INTO fence_log VALUES ('resigned');
	PERFORM leader_election.resign('f');
END
$$;
SELECT leader_election.assert_leader('f'), leader_election.leave('f');
SELECT leader_election.resign('f'), leader_election.assert_leader('f', leader_election.term('f'));
SELECT leader_election.is_leader('f');
SELECT leader_election.assert_leader('f');
-- and one that is elected again at once, in a later term
DO $$
BEGIN
	PERFORM leader_election.assert_leader('f');
	PERFORM leader_election.resign('f');
	PERFORM leader_election.join('f', candidate)
	   FROM leader_election.candidates WHERE election = 'f' AND alive;
END
$$;
SELECT leader_election.is_leader('f');
-- A renewal in it does no harm.
SELECT leader_election.assert_leader('f'), count(*) FROM leader_election.renew('f');
-- Each transaction of a procedure is fenced by itself.
CREATE PROCEDURE fence_steps() LANGUAGE plpgsql AS $$
BEGIN
	PERFORM leader_election.assert_leader('f');
	INSERT INTO fence_log VALUES ('step 1');
	COMMIT;
	INSERT INTO fence_log VALUES ('step 2');
	PERFORM leader_election.assert_leader('f');
	PERFORM pg_advisory_unlock_all();
	COMMIT;
	INSERT INTO fence_log VALUES ('step 3');
END
$$;
CALL fence_steps();
:show
TRUNCATE fence_log;
CALL pg_temp.lead('f');

--
-- Several elections
--

CALL pg_temp.lead('f2');
CALL pg_temp.lead('f3');
BEGIN;
SELECT leader_election.assert_leader('f3'), leader_election.assert_leader('f'),
	   leader_election.assert_leader('f2'), leader_election.assert_leader('f');
INSERT INTO fence_log VALUES ('three');
COMMIT;
-- It takes all of them.
CREATE PROCEDURE pg_temp.give_up_one_of_three(name text)
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM leader_election.assert_leader('f'),
		leader_election.assert_leader('f2'),
		leader_election.assert_leader('f3');
	INSERT INTO fence_log VALUES ('two of three');
	PERFORM leader_election.resign(name);
END
$$;
CALL pg_temp.give_up_one_of_three('f');
CALL pg_temp.give_up_one_of_three('f2');
CALL pg_temp.give_up_one_of_three('f3');
-- Many of them
DO $$
BEGIN
	FOR i IN 1..50 LOOP
		CALL pg_temp.lead('f many ' || i);
	END LOOP;
END
$$;
BEGIN;
SELECT count(leader_election.assert_leader('f many ' || i)::text)
  FROM generate_series(1, 50) i;
INSERT INTO fence_log VALUES ('fifty');
COMMIT;
DO $$
BEGIN
	PERFORM leader_election.assert_leader('f many ' || i)
		FROM generate_series(1, 50) i;
	INSERT INTO fence_log VALUES ('forty-nine');
	PERFORM leader_election.resign('f many 25');
END
$$;
:show
TRUNCATE fence_log;
-- Two terms of one election exclude each other (G8).
SELECT leader_election.term('f') AS former \gset
SELECT leader_election.resign('f');
CALL pg_temp.lead('f');
BEGIN;
SELECT leader_election.assert_leader('f');
SAVEPOINT s;
SELECT leader_election.assert_leader('f', :former);
ROLLBACK TO s;
COMMIT;

--
-- A lease that is over, with nobody else elected: of a session that renews it
-- itself, and of a detached candidate (G8).
--

SELECT leader_election.create_election('f short', lease_duration => '1 s');
SELECT leader_election.create_election('f short detached', lease_duration => '1 s');
CREATE PROCEDURE pg_temp.outlast(in_session boolean, reassert boolean)
LANGUAGE plpgsql AS $$
DECLARE
	term bigint;
BEGIN
	IF in_session THEN
		CALL pg_temp.lead('f short', false);
		PERFORM leader_election.assert_leader('f short');
		WHILE leader_election.is_leader('f short') LOOP
			PERFORM pg_sleep(0.005);
		END LOOP;
	ELSE
		CALL pg_temp.lead_detached('f short detached', 'one', term);
		PERFORM leader_election.assert_leader('f short detached', term);
		WHILE leader_election.is_leader('f short detached', term) LOOP
			PERFORM pg_sleep(0.005);
		END LOOP;
	END IF;
	IF reassert THEN
		PERFORM leader_election.assert_leader('f short');
	END IF;
	INSERT INTO fence_log VALUES ('too late');
END
$$;
CALL pg_temp.outlast(true, false);
CALL pg_temp.outlast(false, false);
CALL pg_temp.outlast(true, true);
:show

--
-- A leader that was asked to yield leads until its deadline.
--

SELECT leader_election.request_yield('f') > '0' AS leads_on;
BEGIN;
SELECT leader_election.assert_leader('f');
INSERT INTO fence_log VALUES ('yielding');
COMMIT;
:show
TRUNCATE fence_log;
SELECT leader_election.resign('f');
CALL pg_temp.lead('f');

--
-- PREPARE TRANSACTION
--

\set VERBOSITY default
BEGIN;
SELECT leader_election.assert_leader('f');
PREPARE TRANSACTION 'fenced';
\set VERBOSITY sqlstate
BEGIN;
SAVEPOINT s;
SELECT leader_election.assert_leader('f', leader_election.term('f'));
ROLLBACK TO s;
PREPARE TRANSACTION 'fenced';
SELECT count(*) FROM pg_prepared_xacts WHERE gid = 'fenced';
SELECT leader_election.is_leader('f');

--
-- The trigger
--

CREATE TABLE fence_jobs (id int PRIMARY KEY, state text);
CREATE TRIGGER only_the_leader
	BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON fence_jobs
	FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('f');
INSERT INTO fence_jobs VALUES (1, 'new');
UPDATE fence_jobs SET state = 'done';
DELETE FROM fence_jobs;
TRUNCATE fence_jobs;
COPY fence_jobs FROM stdin;
1	copied
2	copied
\.
MERGE INTO fence_jobs j USING (VALUES (2, 'merged'), (3, 'merged')) v (id, state)
	ON j.id = v.id
	WHEN MATCHED THEN UPDATE SET state = v.state
	WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.state);
INSERT INTO fence_jobs VALUES (3, 'upserted')
	ON CONFLICT (id) DO UPDATE SET state = excluded.state;
WITH w AS (UPDATE fence_jobs SET state = 'cte' WHERE id = 1 RETURNING id)
SELECT * FROM w;
CREATE VIEW fence_view AS SELECT * FROM fence_jobs;
INSERT INTO fence_view VALUES (4, 'view');
SELECT * FROM fence_jobs ORDER BY id;

-- It has fenced: not to be prepared
BEGIN;
UPDATE fence_jobs SET state = 'prepared';
PREPARE TRANSACTION 'fenced';
SELECT count(*) FROM pg_prepared_xacts WHERE gid = 'fenced';

-- nor committed, when leadership was lost
BEGIN;
UPDATE fence_jobs SET state = 'lost';
SELECT pg_temp.drop_session_lock();
COMMIT;

-- Not the leader
\set VERBOSITY default
INSERT INTO fence_jobs VALUES (9, 'not the leader');
\set VERBOSITY sqlstate
UPDATE fence_jobs SET state = 'not the leader';
UPDATE fence_jobs SET state = 'not the leader' WHERE false;
DELETE FROM fence_jobs;
TRUNCATE fence_jobs;
COPY fence_jobs FROM stdin;
9	not the leader
\.
MERGE INTO fence_jobs j USING (VALUES (9)) v (id) ON j.id = v.id
	WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'not the leader');
INSERT INTO fence_jobs VALUES (1, 'not the leader') ON CONFLICT DO NOTHING;
WITH w AS (DELETE FROM fence_jobs RETURNING id) SELECT * FROM w;
INSERT INTO fence_view VALUES (9, 'not the leader');
SELECT * FROM fence_jobs ORDER BY id;

-- In a transaction that asserted another's leadership, it passes; in one that
-- asserted another election's, it does not.
CALL pg_temp.lead_detached('f detached', 'other');
SELECT term AS detached FROM leader_election.status WHERE election = 'f detached' \gset
CREATE TABLE fence_detached (what text);
CREATE TRIGGER only_the_leader
	BEFORE INSERT ON fence_detached
	FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('f detached');
BEGIN;
SELECT leader_election.assert_leader('f detached', :detached);
INSERT INTO fence_detached VALUES ('by term');
COMMIT;
CALL pg_temp.lead('f2');
BEGIN;
SELECT leader_election.assert_leader('f2');
INSERT INTO fence_detached VALUES ('another election');
ROLLBACK;
-- The fence of one transaction does not serve the next.
INSERT INTO fence_detached VALUES ('the next one');
TABLE fence_detached;

-- Two triggers on one table: it takes both.
CALL pg_temp.lead('f');
CREATE TRIGGER only_another
	BEFORE INSERT OR UPDATE ON fence_jobs
	FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('f2');
INSERT INTO fence_jobs VALUES (5, 'both');
BEGIN;
INSERT INTO fence_jobs VALUES (6, 'both, lost');
SELECT pg_temp.drop_session_lock();
COMMIT;
CALL pg_temp.lead('f');
INSERT INTO fence_jobs VALUES (6, 'one of them');
DROP TRIGGER only_another ON fence_jobs;

-- Deferred constraint triggers run before the check: what they write is fenced,
-- and what they lose is lost.
CREATE TABLE fence_source (what text);
CREATE FUNCTION fence_deferred() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.what = 'lose it' THEN
		PERFORM pg_advisory_unlock_all();
	ELSIF NEW.what = 'assert' THEN
		PERFORM leader_election.assert_leader('f');
	ELSE
		UPDATE fence_jobs SET state = NEW.what WHERE id = 1;
	END IF;
	RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER deferred AFTER INSERT ON fence_source
	DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION fence_deferred();
INSERT INTO fence_source VALUES ('deferred');
INSERT INTO fence_source VALUES ('assert');
BEGIN;
SELECT leader_election.assert_leader('f');
INSERT INTO fence_source VALUES ('lose it');
COMMIT;
INSERT INTO fence_source VALUES ('deferred, not the leader');
INSERT INTO fence_source VALUES ('assert');
CALL pg_temp.lead('f');
INSERT INTO fence_source VALUES ('assert'), ('lose it');
CALL pg_temp.lead('f');
TABLE fence_source;
SELECT state FROM fence_jobs WHERE id = 1;

-- So do the queries of cursors that outlive the transaction.
BEGIN;
DECLARE c CURSOR WITH HOLD FOR SELECT leader_election.assert_leader('f')::text;
INSERT INTO fence_log VALUES ('holdable');
COMMIT;
CLOSE c;
BEGIN;
DECLARE c CURSOR WITH HOLD FOR SELECT leader_election.assert_leader('f', 0)::text;
INSERT INTO fence_log VALUES ('holdable, not the leader');
COMMIT;
:show
TRUNCATE fence_log;

-- Referential actions are writes of the tables that they change.
CREATE TABLE fence_parent (id int PRIMARY KEY);
CREATE TABLE fence_child (id int REFERENCES fence_parent ON DELETE CASCADE);
INSERT INTO fence_parent VALUES (1), (2);
INSERT INTO fence_child VALUES (1), (2);
CREATE TRIGGER only_the_leader
	BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON fence_child
	FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('f');
DELETE FROM fence_parent WHERE id = 1;
SELECT pg_temp.drop_session_lock();
DELETE FROM fence_parent;
TRUNCATE fence_parent CASCADE;
SELECT (SELECT count(*) FROM fence_parent) AS parents,
	   (SELECT count(*) FROM fence_child) AS children;

-- Partitions: the trigger guards the table that it is on, and whatever is
-- written through that; a partition that is named directly needs its own.
CREATE TABLE fence_parts (id int) PARTITION BY RANGE (id);
CREATE TABLE fence_part1 PARTITION OF fence_parts FOR VALUES FROM (0) TO (10);
CREATE TABLE fence_part2 PARTITION OF fence_parts FOR VALUES FROM (10) TO (20);
CREATE TRIGGER only_the_leader
	BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON fence_parts
	FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('f');
CREATE TRIGGER only_the_leader
	BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON fence_part2
	FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('f');
INSERT INTO fence_parts VALUES (1);
INSERT INTO fence_part1 VALUES (2);
INSERT INTO fence_part2 VALUES (12);
COPY fence_parts FROM stdin;
3
\.
TRUNCATE fence_parts;
CALL pg_temp.lead('f');
INSERT INTO fence_parts VALUES (4), (14);
INSERT INTO fence_part2 VALUES (15);
SELECT tableoid::regclass AS part, id FROM fence_parts ORDER BY id;

-- Replication writes do not fire it, unless it is an ALWAYS trigger.
SELECT pg_temp.drop_session_lock();
SET session_replication_role = replica;
INSERT INTO fence_jobs VALUES (10, 'replica');
ALTER TABLE fence_jobs ENABLE ALWAYS TRIGGER only_the_leader;
INSERT INTO fence_jobs VALUES (11, 'replica');
RESET session_replication_role;

-- A role that writes the table needs no privilege on anything of ours.
CREATE ROLE regress_le_fenced;
GRANT ALL ON fence_jobs TO regress_le_fenced;
CALL pg_temp.lead('f');
SET ROLE regress_le_fenced;
INSERT INTO fence_jobs VALUES (12, 'no privilege');
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO fence_jobs VALUES (13, 'no privilege');
COMMIT;
SELECT leader_election.assert_leader('f');
BEGIN;
INSERT INTO fence_jobs VALUES (14, 'no privilege, lost');
SELECT pg_advisory_unlock_all();
COMMIT;
INSERT INTO fence_jobs VALUES (14, 'no privilege, not the leader');
RESET ROLE;
-- Observers may assert what their session leads, but no term of others.
GRANT USAGE ON SCHEMA leader_election TO regress_le_fenced;
CALL pg_temp.lead('f');
SET ROLE regress_le_fenced;
SELECT leader_election.assert_leader('f');
SELECT leader_election.assert_leader('f', leader_election.term('f'));
CREATE TEMPORARY TABLE fence_own (what text);
CREATE TRIGGER only_the_leader BEFORE INSERT ON fence_own
	FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('f');
INSERT INTO fence_own VALUES ('a table of its own');
RESET ROLE;
SELECT * FROM fence_jobs WHERE id >= 10 ORDER BY id;

--
-- Wrong declarations
--

CREATE TABLE fence_wrong (id int);
CREATE VIEW fence_wrong_view AS SELECT * FROM fence_wrong;
\set VERBOSITY default
CREATE TRIGGER wrong BEFORE INSERT ON fence_wrong
	FOR EACH ROW EXECUTE FUNCTION leader_election.only_leader('f');
INSERT INTO fence_wrong VALUES (1);
DROP TRIGGER wrong ON fence_wrong;
\set VERBOSITY sqlstate
CREATE TRIGGER wrong AFTER INSERT ON fence_wrong
	FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('f');
INSERT INTO fence_wrong VALUES (1);
DROP TRIGGER wrong ON fence_wrong;
CREATE CONSTRAINT TRIGGER wrong AFTER INSERT ON fence_wrong
	DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION leader_election.only_leader('f');
INSERT INTO fence_wrong VALUES (1);
DROP TRIGGER wrong ON fence_wrong;
CREATE TRIGGER wrong BEFORE INSERT ON fence_wrong
	FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader();
INSERT INTO fence_wrong VALUES (1);
DROP TRIGGER wrong ON fence_wrong;
CREATE TRIGGER wrong BEFORE INSERT ON fence_wrong
	FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('f', 'f2');
INSERT INTO fence_wrong VALUES (1);
DROP TRIGGER wrong ON fence_wrong;
CREATE TRIGGER wrong INSTEAD OF INSERT ON fence_wrong_view
	FOR EACH ROW EXECUTE FUNCTION leader_election.only_leader('f');
INSERT INTO fence_wrong_view VALUES (1);
DROP VIEW fence_wrong_view;
-- of an election that there is not
CREATE TRIGGER wrong BEFORE INSERT ON fence_wrong
	FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('f unknown');
INSERT INTO fence_wrong VALUES (1);
DROP TRIGGER wrong ON fence_wrong;
CREATE TRIGGER wrong BEFORE INSERT ON fence_wrong
	FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('');
INSERT INTO fence_wrong VALUES (1);
TABLE fence_wrong;
\set VERBOSITY default
SELECT leader_election.only_leader();
\set VERBOSITY sqlstate
CREATE PROCEDURE fence_wrong() AS '$libdir/leader_election', 'le_only_leader' LANGUAGE C;
CALL fence_wrong();
CREATE EVENT TRIGGER fence_wrong ON ddl_command_start
	EXECUTE FUNCTION leader_election.only_leader();

--
-- The extension is dropped.
--

CALL pg_temp.lead('f new');
SELECT leader_election.term('f new');
BEGIN;
SELECT leader_election.assert_leader('f');
INSERT INTO fence_log VALUES ('dropped');
DROP EXTENSION leader_election CASCADE;
COMMIT;
BEGIN;
INSERT INTO fence_jobs VALUES (20, 'dropped');
DROP TRIGGER only_the_leader ON fence_jobs;
DROP EXTENSION leader_election CASCADE;
CREATE EXTENSION leader_election;
COMMIT;
-- The same election and term of a new extension are not the same.
DO $$
BEGIN
	PERFORM leader_election.assert_leader('f new', 1);
	INSERT INTO fence_log VALUES ('another extension');
	DROP EXTENSION leader_election CASCADE;
	CREATE EXTENSION leader_election;
	ASSERT 1 = (SELECT term FROM leader_election.acquire('f new', 'one'));
END
$$;
:show
SELECT count(*) FROM fence_jobs WHERE id >= 20;
SELECT leader_election.is_leader('f');

SELECT count(*) FROM pg_trigger WHERE tgname = 'only_the_leader';
DROP EXTENSION leader_election CASCADE;
SELECT count(*) FROM pg_trigger WHERE tgname = 'only_the_leader';
INSERT INTO fence_jobs VALUES (21, 'no trigger');
CREATE EXTENSION leader_election;
SELECT leader_election.assert_leader('f');
SELECT leader_election.assert_leader('f', 1);

DROP VIEW fence_view;
DROP TABLE fence_log, fence_jobs, fence_detached, fence_source, fence_parent,
	fence_child, fence_parts, fence_wrong, pg_temp.fence_own;
DROP FUNCTION fence_inner, fence_outer, fence_deferred;
DROP PROCEDURE fence_steps;
DROP OWNED BY regress_le_fenced;
DROP ROLE regress_le_fenced;
SELECT leader_election.leave_all();
