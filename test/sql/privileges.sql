--
-- Who may do what.
--

SET client_min_messages = warning;
\set VERBOSITY sqlstate
CREATE ROLE regress_le_nobody;
CREATE ROLE regress_le_observer;
CREATE ROLE regress_le_candidate;
CREATE ROLE regress_le_group;
CREATE ROLE regress_le_member NOINHERIT IN ROLE regress_le_group;
GRANT USAGE ON SCHEMA leader_election
   TO regress_le_observer, regress_le_candidate, regress_le_group,
	  regress_le_member;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election
   TO regress_le_candidate, regress_le_group, regress_le_member;

SELECT leader_election.join('p', 'super');
SELECT leader_election.leave('p');

--
-- Without USAGE, nothing
--

SET ROLE regress_le_nobody;
SELECT leader_election.join('p', 'nobody');
SELECT leader_election.is_leader('p');
SELECT leader_election.leader('p');
SELECT count(*) FROM leader_election.status;
SELECT count(*) FROM leader_election.history;
SELECT leader_election.is_leader('p', 1);
SELECT leader_election.acquire('p', 'nobody');
SELECT leader_election.renew('p', 1);
SELECT leader_election.release('p', 1);
SELECT leader_election.transfer('p', 1, 'super');
SELECT leader_election.leave('p', 'nobody');
SELECT leader_election.request_yield('p');
CALL leader_election.wait_for_change('p', NULL, NULL, '1 ms');
RESET ROLE;

--
-- With USAGE, everything can be seen and nothing done.
--

SET ROLE regress_le_observer;
SELECT leader_election.is_leader('p'), leader_election.term('p'),
	   leader_election.leader('p');
SELECT election, state FROM leader_election.status WHERE election = 'p';
SELECT count(*) FROM leader_election.candidates WHERE election = 'p';
SELECT led FROM leader_election.metrics WHERE election = 'p';
SELECT in_recovery FROM leader_election.server_metrics;
SELECT term, leader FROM leader_election.history WHERE election = 'p';
SELECT strategy FROM leader_election.election WHERE election = 'p';
CALL leader_election.wait_for_change('p', NULL, NULL, '1 ms');
SELECT leader_election.join('p', 'observer');
CALL leader_election.campaign('p', 'observer', '1 s');
SELECT leader_election.renew('p');
SELECT leader_election.resign('p');
SELECT leader_election.leave('p');
SELECT leader_election.leave_all();
SELECT leader_election.transfer('p', 'super');
SELECT leader_election.is_leader('p', 1);
SELECT leader_election.acquire('p', 'observer');
SELECT leader_election.renew('p', 1);
SELECT leader_election.release('p', 1);
SELECT leader_election.transfer('p', 1, 'super');
SELECT leader_election.leave('p', 'observer');
SELECT leader_election.request_yield('p');
-- A fenced commit of theirs would hold up the next leader.
SELECT leader_election.assert_leader('p', 1);
RESET ROLE;

--
-- A role that may stand can still not touch the tables, nor add anything to the
-- schema.
--

CREATE FUNCTION pg_temp.not_refused(command text) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE command;
	RETURN command;
EXCEPTION WHEN insufficient_privilege THEN
	RETURN NULL;
END
$$;
SET ROLE regress_le_candidate;
SELECT count(*) AS tried, count(pg_temp.not_refused(command)) AS not_refused
  FROM (SELECT format(command, relname, attname) AS command
		  FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid,
			   unnest(ARRAY['INSERT INTO leader_election.%1$I (%2$I) VALUES (NULL)',
							'UPDATE leader_election.%1$I SET %2$I = NULL',
							'DELETE FROM leader_election.%1$I WHERE %2$I IS NULL',
							'TRUNCATE leader_election.%1$I',
							'SELECT FROM leader_election.%1$I FOR UPDATE',
							'LOCK TABLE leader_election.%1$I',
							'LOCK TABLE leader_election.%1$I IN ROW EXCLUSIVE MODE',
							'ALTER TABLE leader_election.%1$I DROP COLUMN %2$I',
							'CREATE TRIGGER t AFTER INSERT ON leader_election.%1$I EXECUTE FUNCTION suppress_redundant_updates_trigger()']) command
		 WHERE relnamespace = 'leader_election'::regnamespace AND
			   relkind = 'r' AND attnum = 1) commands;
-- The lock of the view protocol, too, would stop all elections.
SELECT count(*) AS tried, count(pg_temp.not_refused(command)) AS not_refused
  FROM (SELECT format(command, relname) AS command
		  FROM pg_class, unnest(ARRAY['LOCK TABLE leader_election.%I',
									  'LOCK TABLE leader_election.%I IN ROW EXCLUSIVE MODE']) command
		 WHERE relnamespace = 'leader_election'::regnamespace AND relkind = 'v') commands;
SELECT pg_temp.not_refused('SELECT session_id FROM leader_election.lease');
SELECT pg_temp.not_refused('SELECT session_id FROM leader_election.candidate');
SELECT pg_temp.not_refused('SELECT * FROM leader_election.epoch');
SELECT pg_temp.not_refused('CREATE TABLE leader_election.mine ()');
SELECT pg_temp.not_refused('CREATE FUNCTION leader_election.mine() RETURNS int LANGUAGE sql RETURN 1');
SELECT pg_temp.not_refused('DROP FUNCTION leader_election.is_leader(text)');
SELECT pg_temp.not_refused('ALTER EXTENSION leader_election UPDATE');
SET leader_election.auto_create = off;

-- It stands under its own name, in elections that belong to the extension's
-- owner.
CALL leader_election.campaign('p', 'candidate');
SELECT leader_election.join('p2', 'candidate');
SELECT (leader_election.renew('p')).term;
RESET ROLE;
SELECT role FROM leader_election.history WHERE election = 'p' AND term = 2;
SELECT owner = current_user AS owned FROM leader_election.election
 WHERE election = 'p2';

--
-- A candidacy is touched only by the role that made it.
--

SELECT leader_election.join('p', 'candidate');
CALL leader_election.campaign('p', 'candidate', '1 s');
SELECT leader_election.renew('p');
SELECT leader_election.resign('p');
SELECT leader_election.leave('p');
SELECT leader_election.leave_all();
SELECT leader_election.transfer('p', 'candidate 2');
SET ROLE regress_le_member;
SELECT leader_election.join('p', 'candidate');
SELECT leader_election.resign('p');
SELECT leader_election.is_leader('p'), leader_election.term('p');
SET ROLE regress_le_candidate;
SELECT leader_election.term('p');
SELECT leader_election.leave('p'), leader_election.leave('p2');
RESET ROLE;

-- A function that runs with its owner's rights stands as its owner.
CREATE FUNCTION pg_temp.stand() RETURNS bigint LANGUAGE sql SECURITY DEFINER
AS $$SELECT leader_election.join('p3', 'owner')$$;
ALTER FUNCTION pg_temp.stand OWNER TO regress_le_candidate;
SELECT pg_temp.stand();
SELECT leader_election.leave('p3');
SET ROLE regress_le_candidate;
SELECT leader_election.leave('p3');
RESET ROLE;

--
-- Elections for some roles only
--

UPDATE leader_election.election SET candidate_role = 'regress_le_group'
 WHERE election = 'p';
SET ROLE regress_le_candidate;
SELECT leader_election.join('p', 'candidate');
CALL leader_election.campaign('p', 'candidate', '1 s');
SELECT leader_election.leave_all();
SET ROLE regress_le_member;
CALL leader_election.campaign('p', 'member');
SELECT leader_election.leave('p');
SET ROLE regress_le_group;
CALL leader_election.campaign('p', 'group');
SELECT leader_election.leave('p');
RESET ROLE;

--
-- Detached candidates: a lease and a name belong to the role, whoever knows
-- the term.
--

SELECT term FROM leader_election.acquire('pd', 'super');
SELECT leader_election.release('pd', 1), leader_election.leave('pd', 'super');
SET ROLE regress_le_candidate;
SELECT term FROM leader_election.acquire('pd', 'one');
SELECT count(*) FROM leader_election.acquire('pd', 'two');
RESET ROLE;
SELECT role FROM leader_election.history WHERE election = 'pd' AND leader = 'one';
SELECT leader_election.is_leader('pd', 2);
SELECT leader_election.acquire('pd', 'one');
SELECT leader_election.acquire('pd', 'two');
SELECT leader_election.renew('pd', 2);
SELECT leader_election.release('pd', 2);
SELECT leader_election.transfer('pd', 2, 'two');
SELECT leader_election.leave('pd', 'one');
SELECT leader_election.leave('pd', 'two');
SELECT leader_election.join('pd', 'one');
SELECT leader_election.join('pd', 'two');
SET ROLE regress_le_member;
SELECT leader_election.acquire('pd', 'two');
SELECT leader_election.renew('pd', 2);
SELECT leader_election.release('pd', 2);
SELECT leader_election.leave('pd', 'two');
-- What is over is nobody's.
SELECT count(*) FROM leader_election.renew('pd', 1);
SELECT leader_election.release('pd', 1), leader_election.transfer('pd', 3, 'two');
SELECT leader_election.leave('pd', 'three');
SET ROLE regress_le_observer;
SELECT leader_election.is_leader('pd', 2), leader_election.is_leader('pd', 1);
RESET ROLE;
SELECT leader_election.is_leader('pd', 2);
SELECT candidate, leads FROM leader_election.candidates WHERE election = 'pd';

-- A function that runs with its owner's rights acts as its owner.
CREATE FUNCTION pg_temp.renew() RETURNS bigint LANGUAGE sql SECURITY DEFINER
AS $$SELECT term FROM leader_election.renew('pd', 2)$$;
ALTER FUNCTION pg_temp.renew OWNER TO regress_le_candidate;
SELECT pg_temp.renew();
DROP FUNCTION pg_temp.renew;

--
-- request_yield() is for the election's owner and for superusers.
--

SET ROLE regress_le_candidate;
SELECT leader_election.request_yield('pd');
SELECT leader_election.request_yield('pd', 'two', true);
RESET ROLE;
SELECT leader_election.request_yield('pd', 'two') > '0' AS superuser;
UPDATE leader_election.election SET owner = 'regress_le_group'
 WHERE election = 'pd';
SET ROLE regress_le_candidate;
SELECT leader_election.request_yield('pd');
SET ROLE regress_le_group;
SELECT leader_election.request_yield('pd') > '0' AS owner;
-- As with all owners, a member needs its privileges (this one inherits none).
SET ROLE regress_le_member;
SELECT leader_election.request_yield('pd');
RESET ROLE;
-- Nor is it enough to be the owner.
REVOKE EXECUTE ON FUNCTION leader_election.request_yield FROM regress_le_group;
SET ROLE regress_le_group;
SELECT leader_election.request_yield('pd');
SELECT leader_election.release('pd', 2);
RESET ROLE;
GRANT EXECUTE ON FUNCTION leader_election.request_yield TO regress_le_group;
-- An owner that is not there any more
UPDATE leader_election.election SET owner = 'regress_le_gone'
 WHERE election = 'pd';
SET ROLE regress_le_candidate;
SELECT leader_election.request_yield('pd');
-- An election is unknown to all alike.
SELECT leader_election.request_yield('no such election');
RESET ROLE;
SELECT leader_election.request_yield('pd') > '0' AS superuser;

-- Elections for some roles only; who leads already leads on.
UPDATE leader_election.election SET candidate_role = 'regress_le_group'
 WHERE election = 'pd';
SET ROLE regress_le_candidate;
SELECT leader_election.acquire('pd', 'one');
SELECT leader_election.acquire('pd', 'three');
SELECT term, yielding FROM leader_election.renew('pd', 2);
SELECT leader_election.release('pd', 2);
SELECT leader_election.leave('pd', 'one'), leader_election.leave('pd', 'two');
SET ROLE regress_le_member;
SELECT term FROM leader_election.acquire('pd', 'member');
SELECT leader_election.release('pd', 3), leader_election.leave('pd', 'member');
RESET ROLE;

-- A request to yield to a candidate of one role is none to that of another role
-- that has its name by now.
SET ROLE regress_le_candidate;
SELECT term FROM leader_election.acquire('py', 'one');
SELECT count(*) FROM leader_election.acquire('py', 'two');
RESET ROLE;
SELECT leader_election.request_yield('py', 'two') > '0' AS asked;
SET ROLE regress_le_candidate;
SELECT leader_election.leave('py', 'two');
SET ROLE regress_le_member;
SELECT count(*) FROM leader_election.acquire('py', 'two');
RESET ROLE;
SELECT leader_election.request_yield('py', 'two') > '0' AS asked;
SELECT successor, successor_role FROM leader_election.lease WHERE election = 'py';
SET ROLE regress_le_candidate;
SELECT leader_election.release('py', 1), leader_election.leave('py', 'one');
SET ROLE regress_le_member;
SELECT term FROM leader_election.acquire('py', 'two');
SELECT leader_election.release('py', 2), leader_election.leave('py', 'two');
RESET ROLE;

-- Seats are elections: who may not create these makes no seats.
SELECT leader_election.create_group('pg', 1);
SELECT leader_election.alter_group('pg', owner => 'regress_le_candidate');
REVOKE EXECUTE ON FUNCTION leader_election.create_election FROM regress_le_candidate;
SET ROLE regress_le_candidate;
SELECT leader_election.create_election('pc');
SELECT leader_election.join('pc', 'candidate');
SELECT leader_election.create_group('pc', 2);
SELECT leader_election.alter_group('pg', quorum => 2);
SELECT leader_election.alter_group('pg', seats => 2);
RESET ROLE;
SELECT election, quorum FROM leader_election.election
 WHERE election LIKE 'pg%' OR election LIKE 'pc%';
GRANT EXECUTE ON FUNCTION leader_election.create_election TO regress_le_candidate;
SET ROLE regress_le_candidate;
SELECT leader_election.create_group('pc', 2);
SELECT leader_election.drop_group('pc'), leader_election.drop_group('pg');
RESET ROLE;

SELECT count(*) FROM leader_election.candidates;
SELECT count(*) AS locks_left FROM pg_locks
 WHERE locktype = 'advisory' AND pid = pg_backend_pid();

DROP FUNCTION pg_temp.stand;

--
-- Default privileges give nobody more than this.
--

ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO regress_le_nobody, PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO regress_le_nobody WITH GRANT OPTION;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON ROUTINES TO regress_le_nobody, PUBLIC;
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election;
SELECT role, has_schema_privilege(role, 'leader_election', 'USAGE') AS usage,
	   has_schema_privilege(role, 'leader_election', 'CREATE') AS "create"
  FROM unnest('{public,regress_le_nobody}'::name[]) role;
SELECT role, relname, privilege
  FROM unnest('{public,regress_le_nobody}'::name[]) role, pg_class,
	   unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) privilege
 WHERE relnamespace = 'leader_election'::regnamespace AND
	   relkind IN ('r', 'v') AND
	   has_table_privilege(role, pg_class.oid, privilege) ORDER BY 1, 2, 3;
SELECT role, proname
  FROM unnest('{public,regress_le_nobody}'::name[]) role, pg_proc
 WHERE pronamespace = 'leader_election'::regnamespace AND
	   has_function_privilege(role, pg_proc.oid, 'EXECUTE')
 ORDER BY 1, proname COLLATE "C";
ALTER DEFAULT PRIVILEGES REVOKE ALL ON SCHEMAS FROM regress_le_nobody, PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM regress_le_nobody, PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON ROUTINES FROM regress_le_nobody;

DROP OWNED BY regress_le_observer, regress_le_candidate, regress_le_group,
	regress_le_member;
DROP ROLE regress_le_nobody, regress_le_observer, regress_le_candidate,
	regress_le_group, regress_le_member;
