--
-- Elections: their settings, and the strategies as far as one session and
-- detached candidates can show them (050_strategies.pl has the rest).
--

SET client_min_messages = warning;
CREATE TEMPORARY VIEW settings AS
	SELECT election, strategy, lease_duration, quorum, takeover_delay,
		   candidate_role, channel, owner = current_user AS owned
	  FROM leader_election.election WHERE election LIKE 'e %';
SET regress.election = 'e good';
CREATE TEMPORARY VIEW seat AS
	SELECT state, waiting_for, leader, candidates, term AS present_term
	  FROM leader_election.status
	 WHERE election = current_setting('regress.election');
CREATE TEMPORARY VIEW shown AS
	SELECT state, waiting_for, leader, candidates FROM seat;
CREATE FUNCTION pg_temp.await(condition text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	met boolean;
	give_up_at timestamptz := clock_timestamp() + '5 min';
BEGIN
	LOOP
		EXECUTE condition INTO met;
		EXIT WHEN met;
		IF clock_timestamp() > give_up_at THEN
			RAISE 'this did not come true: %', condition;
		END IF;
		PERFORM pg_sleep(0.005);
	END LOOP;
END
$$;
CREATE FUNCTION pg_temp.release(election text) RETURNS boolean LANGUAGE sql AS
$$SELECT leader_election.release(election, term) FROM leader_election.lease l WHERE l.election = $1$$;
CREATE ROLE regress_le_owner;
CREATE ROLE regress_le_app;
CREATE ROLE regress_le_viewer;
GRANT USAGE ON SCHEMA leader_election
   TO regress_le_owner, regress_le_app, regress_le_viewer;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election
   TO regress_le_owner, regress_le_app;

--
-- Settings that cannot be
--

-- What 17 and later have, and what comes nearest to it before
SELECT CASE WHEN current_setting('server_version_num')::int >= 170000
			THEN 'infinity' ELSE '178000000 years' END AS infinity \gset

\set VERBOSITY sqlstate
SELECT leader_election.create_election(NULL);
SELECT leader_election.create_election('');
SELECT leader_election.create_election(repeat('é', 101));
SELECT leader_election.create_election('e bad', 'bigot');
SELECT leader_election.create_election('e bad', 'Bully');
SELECT leader_election.create_election('e bad', '');
SELECT leader_election.create_election('e bad', repeat('race', 1000));
SELECT leader_election.create_election('e bad', lease_duration => '0');
SELECT leader_election.create_election('e bad', lease_duration => '99.999 ms');
SELECT leader_election.create_election('e bad', lease_duration => '-1 s');
SELECT leader_election.create_election('e bad', lease_duration => '1 day 1 microsecond');
SELECT leader_election.create_election('e bad', lease_duration => '-1 month 1 s');
SELECT leader_election.create_election('e bad', lease_duration => '1 month');
SELECT leader_election.create_election('e bad', lease_duration => '178000000 years');
SELECT leader_election.create_election('e bad', lease_duration => '-178000000 years');
SELECT leader_election.create_election('e bad', lease_duration => :'infinity');
SELECT leader_election.create_election('e bad', lease_duration => - :'infinity'::interval);
SELECT leader_election.create_election('e bad', quorum => 0);
SELECT leader_election.create_election('e bad', quorum => -2147483648);
SELECT leader_election.create_election('e bad', takeover_delay => '-1 microsecond');
SELECT leader_election.create_election('e bad', takeover_delay => '1 day 1 microsecond');
SELECT leader_election.create_election('e bad', takeover_delay => :'infinity');
SELECT leader_election.create_election('e bad', candidate_role => 'regress_le_unknown');
SELECT leader_election.create_election('e bad', channel => repeat('c', 64));
SELECT leader_election.create_election('e bad', channel => repeat('é', 32));
SELECT count(*) FROM settings;

-- The same for one that exists
SELECT leader_election.create_election('e good');
TABLE settings \g (format=unaligned)
SELECT leader_election.alter_election(NULL, 'bully');
SELECT leader_election.alter_election('', 'bully');
SELECT leader_election.alter_election(repeat('é', 101), 'bully');
SELECT leader_election.alter_election('e good', 'bigot');
SELECT leader_election.alter_election('e good', '');
SELECT leader_election.alter_election('e good', lease_duration => '0');
SELECT leader_election.alter_election('e good', lease_duration => '99.999 ms');
SELECT leader_election.alter_election('e good', lease_duration => '-1 s');
SELECT leader_election.alter_election('e good', lease_duration => '1 day 1 microsecond');
SELECT leader_election.alter_election('e good', lease_duration => :'infinity');
SELECT leader_election.alter_election('e good', lease_duration => - :'infinity'::interval);
SELECT leader_election.alter_election('e good', quorum => 0);
SELECT leader_election.alter_election('e good', takeover_delay => '-1 microsecond');
SELECT leader_election.alter_election('e good', takeover_delay => :'infinity');
SELECT leader_election.alter_election('e good', candidate_role => 'regress_le_unknown');
SELECT leader_election.alter_election('e good', channel => repeat('c', 64));
-- All or nothing
SELECT leader_election.alter_election('e good', 'bully', '1 s', 2, '1 s', 'regress_le_app', repeat('c', 64));
SELECT leader_election.drop_election(NULL);
SELECT leader_election.drop_election('');
SELECT leader_election.drop_election(repeat('é', 101));
-- Two of a name, and none
SELECT leader_election.create_election('e good', 'bully');
SELECT leader_election.alter_election('e unknown', 'bully');
SELECT leader_election.drop_election('e unknown');
TABLE settings \g (format=unaligned)

-- What is told
\set VERBOSITY default
SELECT leader_election.create_election('e bad', 'bigot');
DO $$
DECLARE
	bad interval;
	told text;
BEGIN
	FOREACH bad IN ARRAY '{0,99 ms,-1 s,2 days}'::interval[] LOOP
		BEGIN
			PERFORM leader_election.create_election('e bad', lease_duration => bad);
		EXCEPTION WHEN invalid_parameter_value THEN
			GET STACKED DIAGNOSTICS told = PG_EXCEPTION_DETAIL;
			RAISE WARNING 'lease_duration %: %', bad, told;
		END;
	END LOOP;
END
$$;
SELECT leader_election.create_election('e bad', takeover_delay => '2 days');
SELECT leader_election.create_election('e bad', quorum => 0);
SELECT leader_election.create_election('e bad', channel => repeat('c', 64));
SELECT leader_election.create_election('e bad', candidate_role => 'regress_le_unknown');
SELECT leader_election.create_election('e good');
SELECT leader_election.alter_election('e unknown');
SELECT leader_election.drop_election('e unknown');

--
-- Settings that can be: the limits, and what NULL and '' mean
--

SELECT leader_election.create_election('e low', 'spread', '100 ms', 1, '0', '', ''),
	   leader_election.create_election('e high', 'zab', '1 day', 2147483647, '24:00:00',
		   'regress_le_app', repeat('c', 63)),
	   leader_election.create_election('e null', NULL, NULL, NULL, NULL, NULL, NULL),
	   leader_election.create_election(rpad('e long', 200, '.'), channel => repeat('é', 31));
TABLE settings ORDER BY election \g (format=unaligned)
-- NULL is as it was, '' clears.
SELECT leader_election.alter_election('e high'),
	   leader_election.alter_election('e high', NULL, NULL, NULL, NULL, NULL, NULL);
TABLE settings ORDER BY election LIMIT 2 \g (format=unaligned)
SELECT leader_election.alter_election('e high', candidate_role => '');
SELECT leader_election.alter_election('e high', channel => '');
SELECT leader_election.alter_election('e high', 'lowest', '1 s', 2, '1 ms');
TABLE settings ORDER BY election LIMIT 2 \g (format=unaligned)
SELECT leader_election.drop_election(election) FROM settings;
TABLE settings;

-- create and drop are part of a transaction, alter is not.
BEGIN;
SELECT leader_election.create_election('e block', 'bully');
SELECT state, waiting_for, term, candidates, quorum
  FROM leader_election.status WHERE election = 'e block';
SELECT leader_election.drop_election('e block');
SELECT leader_election.create_election('e block', 'ring');
ROLLBACK;
TABLE settings;
BEGIN;
SELECT leader_election.create_election('e block', 'bully');
SELECT leader_election.drop_election('e block');
SELECT leader_election.create_election('e block', 'ring');
COMMIT;
SELECT election, strategy FROM settings;
BEGIN;
SELECT leader_election.drop_election('e block');
ROLLBACK;
SELECT election, strategy FROM settings;
BEGIN;
SELECT leader_election.alter_election('e block', 'bully');
ROLLBACK;
SET default_transaction_read_only = on;
\set VERBOSITY sqlstate
SELECT leader_election.create_election('e read only');
SELECT leader_election.alter_election('e block', 'bully');
SELECT leader_election.drop_election('e block');
SET default_transaction_read_only = off;
SELECT leader_election.drop_election('e block');

--
-- Who may change what: anybody with EXECUTE may create, and is the owner.
--

SET ROLE regress_le_owner;
SELECT leader_election.create_election('e owned', candidate_role => 'regress_le_app');
SELECT owner FROM leader_election.election WHERE election = 'e owned';
SET ROLE regress_le_app;
SELECT leader_election.alter_election('e owned', 'bully');
SELECT leader_election.alter_election('e owned', candidate_role => '');
SELECT leader_election.alter_election('e owned');
SELECT leader_election.drop_election('e owned');
SELECT leader_election.request_yield('e owned');
SELECT leader_election.join('e owned', 'session') > 0 AS leads;
SELECT term FROM leader_election.acquire('e owned', 'detached');
SELECT leader_election.leave('e owned');
SET ROLE regress_le_viewer;
SELECT leader_election.create_election('e viewer');
SELECT leader_election.alter_election('e owned', 'bully');
SELECT leader_election.drop_election('e owned');
-- The owner may change it all, but stand only where the role is right.
SET ROLE regress_le_owner;
SELECT leader_election.join('e owned', 'owner');
SELECT term FROM leader_election.acquire('e owned', 'owner');
CALL leader_election.campaign('e owned', 'owner', '1 s');
SELECT leader_election.alter_election('e owned', 'bully', candidate_role => 'regress_le_owner');
-- A candidate that stands already is not turned out, but cannot stand anew.
SET ROLE regress_le_app;
SELECT term FROM leader_election.acquire('e owned', 'detached');
SELECT term FROM leader_election.acquire('e owned', 'another');
SELECT candidate FROM leader_election.candidates WHERE election = 'e owned';
SELECT leader_election.leave('e owned', 'detached');
SET ROLE regress_le_owner;
SELECT leader_election.drop_election('e owned');
RESET ROLE;

-- A function that runs with its owner's rights creates, stands and changes as
-- its owner, whoever calls it.
CREATE FUNCTION pg_temp.as_owner(command text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	result text;
BEGIN
	EXECUTE command INTO result;
	RETURN result;
END
$$;
ALTER FUNCTION pg_temp.as_owner OWNER TO regress_le_owner;
SET ROLE regress_le_viewer;
SELECT pg_temp.as_owner($$SELECT leader_election.create_election('e definer', 'ring', candidate_role => 'regress_le_owner')$$);
SELECT pg_temp.as_owner($$SELECT leader_election.join('e definer', 'session') > 0$$);
SELECT pg_temp.as_owner($$SELECT leader_election.alter_election('e definer', 'bully')$$);
SELECT pg_temp.as_owner($$SELECT leader_election.request_yield('e definer') > '0'$$);
SET ROLE regress_le_app;
SELECT leader_election.alter_election('e definer', 'race');
SELECT leader_election.resign('e definer');
SELECT leader_election.renew('e definer');
SELECT leader_election.transfer('e definer', 'nobody');
SELECT leader_election.leave('e definer');
SELECT leader_election.is_leader('e definer'), leader_election.term('e definer') > 0 AS term;
SELECT pg_temp.as_owner($$SELECT leader_election.leave('e definer')$$);
RESET ROLE;
SELECT strategy, owner FROM leader_election.election WHERE election = 'e definer';
SELECT leader, role, reason FROM leader_election.history WHERE election = 'e definer';
SELECT leader_election.drop_election('e definer');
\set VERBOSITY default

--
-- A drop: never under a leader (G2); what comes later starts above (G5).
--

SET regress.election = 'e drop';
SELECT leader_election.create_election('e drop', 'ring', '1 hour');
SELECT leader_election.join('e drop', 'session') > 0 AS leads;
SELECT leader_election.drop_election('e drop');
SELECT leader_election.is_leader('e drop');
SELECT leader_election.leave('e drop');
SELECT term AS last_term FROM leader_election.acquire('e drop', 'one') \gset
SELECT count(*) FROM leader_election.acquire('e drop', 'two');
\set VERBOSITY sqlstate
SELECT leader_election.drop_election('e drop');
SELECT leader_election.is_leader('e drop', :last_term), leader_election.release('e drop', :last_term);
SELECT leader_election.join('e drop', 'session');
TABLE shown;
SELECT leader_election.drop_election('e drop');
-- It is gone, with all who stood, but not its history.
SELECT (SELECT count(*) FROM leader_election.lease WHERE election = 'e drop') AS leases,
	   (SELECT count(*) FROM leader_election.candidate WHERE election = 'e drop') AS candidates,
	   (SELECT count(*) FROM leader_election.status WHERE election = 'e drop') AS statuses;
SELECT leader_election.is_leader('e drop'), leader_election.term('e drop'),
	   leader_election.leader('e drop'), leader_election.is_leader('e drop', :last_term);
SELECT term FROM leader_election.renew('e drop', :last_term);
SELECT leader_election.release('e drop', :last_term);
SELECT leader_election.leave('e drop', 'one');
SELECT leader_election.resign('e drop');
SELECT leader_election.request_yield('e drop');
SELECT leader, reason FROM leader_election.history WHERE election = 'e drop' ORDER BY term;
SELECT leader_election.create_election('e drop', 'bully', '1 hour');
TABLE shown;
SELECT term > :last_term AS above, term AS last_term FROM leader_election.acquire('e drop', 'one') \gset above_
\echo above: :above_above
SELECT leader_election.release('e drop', :above_last_term);
SELECT leader_election.drop_election('e drop');
-- So it does where another one is created in the same transaction.  (Where that
-- one starts depends on whether the worker has moved the last term.)
BEGIN;
SELECT leader_election.create_election('e drop'),
	   leader_election.create_election('e drop 2');
COMMIT;
SELECT leader_election.join('e drop', 'session') > :above_last_term AS above,
	   leader_election.join('e drop 2', 'session') > 0 AS leads;
SELECT leader_election.term('e drop') AS last_term \gset
SELECT leader_election.leave_all();
BEGIN;
SELECT leader_election.drop_election('e drop');
SELECT leader_election.create_election('e drop');
COMMIT;
SELECT term > :last_term AS above, leader_election.release('e drop', term) AS released
  FROM leader_election.acquire('e drop', 'one');
-- What is there already counts on.
SELECT term AS there_term, leader_election.release('e drop 2', term) AS released
  FROM leader_election.acquire('e drop 2', 'one') \gset
SELECT term > :there_term AS later, leader_election.release('e drop', term) AS released
  FROM leader_election.acquire('e drop', 'one');
SELECT leader_election.drop_election('e drop');
SELECT term - :there_term AS one_more, leader_election.release('e drop 2', term) AS released
  FROM leader_election.acquire('e drop 2', 'one');
SELECT leader_election.drop_election('e drop 2');

-- Who stands already is not elected any more when candidate_role excludes it,
-- nor handed the lease; who leads goes on.
SELECT leader_election.create_election('e role', 'lowest', '1 hour');
SELECT term > 0 AS leads FROM leader_election.acquire('e role', 'super', 5);
SET ROLE regress_le_app;
SELECT count(*) FROM leader_election.acquire('e role', 'app', 1);
RESET ROLE;
SELECT leader_election.alter_election('e role', candidate_role => 'regress_le_owner');
SELECT term AS role_term FROM leader_election.status WHERE election = 'e role' \gset
SELECT leader_election.transfer('e role', :role_term, 'app');
SELECT count(*) AS renewed FROM leader_election.renew('e role', :role_term);
SELECT leader_election.release('e role', :role_term);
SELECT state, waiting_for, candidates FROM leader_election.status WHERE election = 'e role';
SELECT leader_election.alter_election('e role', candidate_role => 'regress_le_app');
SELECT pg_temp.await($$SELECT waiting_for = 'reserved for app' FROM leader_election.status WHERE election = 'e role'$$);
SELECT state, waiting_for FROM leader_election.status WHERE election = 'e role';
SET ROLE regress_le_app;
SELECT count(*) AS leads, max(leader_election.release('e role', term)::int) AS released FROM leader_election.acquire('e role', 'app', 1);
RESET ROLE;
SELECT leader_election.drop_election('e role');
\set VERBOSITY default

--
-- Each strategy's order, with the same candidates: all of them follow one that
-- holds the lease.
--

CREATE TEMPORARY TABLE strategy (n serial, strategy text);
INSERT INTO strategy (strategy) VALUES ('race'), ('lowest'), ('bully'), ('ring'), ('zab'), ('spread');
SELECT leader_election.create_election('e order ' || strategy, 'race', '1 hour') FROM strategy ORDER BY n;
SELECT leader_election.create_election('e load ' || n, 'spread', '1 hour') FROM generate_series(1, 3) n;
SELECT count(*) FROM strategy, leader_election.acquire('e order ' || strategy, 'holder', 100, -100);
SELECT count(*) FROM strategy, leader_election.acquire('e order ' || strategy, 'd', 3, 5);
SELECT count(*) FROM strategy, leader_election.acquire('e order ' || strategy, 'c', 1, 9);
SELECT count(*) FROM strategy, leader_election.acquire('e order ' || strategy, 'b', 3, 9);
SELECT count(*) FROM strategy WHERE leader_election.join('e order ' || strategy, 'session', 1, 5) IS NULL;
SELECT count(*) FROM strategy, leader_election.acquire('e order ' || strategy, 'a', 1, 9);
-- In the elections of that strategy, c and b lead one more each.
SELECT (SELECT count(*) FROM leader_election.acquire('e load 1', 'c')) AS one,
	   (SELECT count(*) FROM leader_election.acquire('e load 2', 'b')) AS two;
SELECT count(leader_election.alter_election('e order ' || strategy, strategy)) FROM strategy;
-- Spread counts every election but this one; who never led comes first.
SELECT strategy, string_agg(candidate, ' ' ORDER BY "position") AS "order"
  FROM strategy JOIN leader_election.candidates ON election = 'e order ' || strategy
 WHERE candidate <> 'holder' GROUP BY n, strategy ORDER BY n;
-- The first in line is elected, by the call of any candidate; race waits for no
-- call.
SELECT count(*) FROM strategy WHERE pg_temp.release('e order ' || strategy);
SELECT s.strategy, waiting_for, leader, kind
  FROM strategy s JOIN leader_election.status ON election = 'e order ' || s.strategy ORDER BY n;
SELECT count(leader_election.leave('e order ' || strategy)) FROM strategy;
SELECT strategy, string_agg(candidate, ' ' ORDER BY n) AS granted
  FROM strategy JOIN (VALUES ('a'), ('d'), ('c'), ('b')) call (candidate) ON true,
	   LATERAL leader_election.acquire('e order ' || strategy, candidate) GROUP BY n, strategy ORDER BY n;
SELECT count(*) FROM leader_election.status
 WHERE election ~ '^e (order|load)' AND leader IS NOT NULL AND NOT leader_election.release(election, term);
SELECT count(leader_election.drop_election(election)) FROM settings;

-- zab, with a majority of three: the most advanced wins, and rank decides among
-- equals, but two elect nobody.
SET regress.election = 'e zab';
SELECT leader_election.create_election('e zab', 'zab', '1 hour', 3);
SELECT count(*) FROM leader_election.acquire('e zab', 'high rank', 9, 41);
TABLE shown;
SELECT count(*) FROM leader_election.acquire('e zab', 'advanced', 1, 42);
SELECT count(*) FROM leader_election.acquire('e zab', 'high rank');
TABLE shown;
SELECT count(*) FROM leader_election.acquire('e zab', 'equal', 2, 42);
SELECT term > 0 AS granted FROM leader_election.acquire('e zab', 'equal');
-- The quorum is needed to elect, not to lead.
SELECT leader_election.leave('e zab', 'advanced'), leader_election.leave('e zab', 'high rank');
SELECT count(r) FROM seat, leader_election.renew('e zab', present_term) r;
TABLE shown;
SELECT leader_election.release('e zab', present_term) FROM seat;
TABLE shown;
-- A reserved seat waits for a quorum, too.
SELECT count(*) FROM leader_election.acquire('e zab', 'advanced', 1, 43);
SELECT leader_election.alter_election('e zab', quorum => 2);
SELECT pg_temp.await($$SELECT waiting_for = 'reserved for advanced' FROM seat$$);
SELECT leader_election.alter_election('e zab', quorum => 3);
SELECT count(*) FROM leader_election.acquire('e zab', 'advanced');
TABLE shown;
SELECT leader_election.leave('e zab', 'equal'), leader_election.leave('e zab', 'advanced');
SELECT leader_election.drop_election('e zab');

--
-- Why nobody leads
--

SET regress.election = 'e why';
SELECT leader_election.create_election('e why', 'lowest', '1 hour', takeover_delay => '1 hour');
TABLE shown;
SELECT leader_election.alter_election('e why', quorum => 3);
SELECT count(*) FROM leader_election.acquire('e why', 'one');
TABLE shown;
SELECT leader_election.join('e why', 'session', 1);
TABLE shown;
SELECT leader_election.alter_election('e why', quorum => 2);
SELECT pg_temp.await($$SELECT waiting_for = 'reserved for one' FROM seat$$);
SELECT leader_election.alter_election('e why', lease_duration => '500 ms');
SELECT leader_election.leave('e why', 'one'), leader_election.alter_election('e why', quorum => 1);
SELECT pg_temp.await($$SELECT leader = 'session' FROM seat$$);
SELECT leader_election.resign('e why');
TABLE shown;
SELECT count(*) FROM leader_election.acquire('e why', 'one');
-- One that lets its lease run out has not given up: the delay counts, but not
-- after a resignation, nor after a yield that was asked for.
SELECT pg_temp.await($$SELECT waiting_for = 'takeover delay' FROM seat$$);
SELECT count(*) FROM leader_election.acquire('e why', 'one');
SELECT leader_election.join('e why', 'session');
SELECT round(extract(epoch FROM not_before_at - clock_timestamp())) BETWEEN 3500 AND 3600 AS delayed
  FROM leader_election.lease WHERE election = 'e why';
SELECT leader_election.leave('e why');
SELECT pg_temp.await($$SELECT waiting_for = 'takeover delay' AND candidates = 0 FROM seat$$);
SELECT leader_election.drop_election('e why');
SELECT leader_election.create_election('e why', 'race', '500 ms', takeover_delay => '1 hour');
SELECT count(*) FROM leader_election.acquire('e why', 'one');
SELECT leader_election.request_yield('e why') <= '500 ms' AS asked;
SELECT pg_temp.await($$SELECT state = 'vacant' FROM seat$$);
SELECT leader_election.alter_election('e why', lease_duration => '1 hour');
SELECT count(*) FROM leader_election.acquire('e why', 'one');
SELECT leader_election.release('e why', present_term, '2 hours') FROM seat;
TABLE shown;
SELECT leader_election.leave('e why', 'one');
TABLE shown;
SELECT leader_election.drop_election('e why');
SELECT leader_election.create_election('e why', lease_duration => '1 hour');
SELECT count(*) FROM leader_election.acquire('e why', 'one');
SELECT count(*) FROM leader_election.acquire('e why', 'two');
SELECT leader_election.release('e why', present_term) FROM seat;
TABLE shown;
SELECT leader_election.leave('e why', 'two');
TABLE shown;
SELECT leader_election.leave('e why', 'one'), leader_election.drop_election('e why');

--
-- Against flapping (075_preempt_delay.pl and 076_initial_delay.pl have the rest)
--

SET regress.election = 'e calm';
CREATE TEMPORARY VIEW delays AS
	SELECT preempt_delay, initial_delay FROM leader_election.election WHERE election = 'e calm';
SELECT leader_election.create_election('e bad', preempt_delay => '-1 microsecond');
SELECT leader_election.create_election('e bad', preempt_delay => '1 day 1 microsecond');
SELECT leader_election.create_election('e bad', initial_delay => '-1 microsecond');
\set VERBOSITY sqlstate
SELECT leader_election.create_election('e bad', initial_delay => :'infinity');
\set VERBOSITY default
SELECT leader_election.create_election('e calm');
TABLE delays;
SELECT leader_election.alter_election('e calm', 'bully', '1 hour', preempt_delay => '1 day', initial_delay => '1 day');
TABLE delays;
SELECT leader_election.alter_election('e calm', quorum => 1);
TABLE delays;
SELECT leader_election.alter_election('e calm', preempt_delay => '25 hours');
SELECT leader_election.alter_election('e calm', initial_delay => '-1 s');
TABLE delays;
SELECT leader_election.join('e calm', 'session', 1);
TABLE shown;
SELECT count(*) FROM leader_election.acquire('e calm', 'detached', 2);
SELECT count(*) FROM leader_election.acquire('e calm', 'detached', 2);
SELECT deserted, first_stood_mono = (SELECT min(stood_mono)
		  FROM leader_election.candidate c WHERE c.election = l.election) AS since_the_first,
	   abs(extract(epoch FROM now() - first_stood_at)) < 60 AS lately
  FROM leader_election.lease l WHERE election = 'e calm';
SELECT leader_election.alter_election('e calm', initial_delay => '0');
SELECT pg_temp.await($$SELECT waiting_for = 'reserved for detached' FROM seat$$);
SELECT term > 0 AS granted, yielding FROM leader_election.acquire('e calm', 'detached');
SELECT deserted, first_stood_mono, first_stood_at FROM leader_election.lease WHERE election = 'e calm';
SELECT leader_election.release('e calm', present_term) FROM seat;
SELECT count(*) FROM leader_election.acquire('e calm', 'detached', 3);
SELECT candidate, leads, stood BETWEEN '0' AND '10 min' AS stood
  FROM leader_election.candidates WHERE election = 'e calm';
SELECT leader_election.leave('e calm', 'detached'), leader_election.leave('e calm');
SELECT leader_election.drop_election('e calm');
DROP VIEW delays;

--
-- Each setting goes from the argument of its name into the column of its name,
-- of an election, of a group and of each of its seats, and changes no other one.
-- One that is not given, or NULL, has its default at first, and stays later.
--

CREATE FUNCTION pg_temp.settings(name text) RETURNS jsonb LANGUAGE sql RETURN (
	SELECT jsonb_object_agg(key, value) FROM (
		SELECT key, value FROM leader_election.election e, jsonb_each(to_jsonb(e))
		 WHERE election = name OR group_name = name AND election LIKE '%/2'
		UNION ALL
		SELECT 'group ' || key, value FROM leader_election.election_group g, jsonb_each(to_jsonb(g))
		 WHERE g.group_name = name) s
	 WHERE key <> 'election' AND key !~ '_id$' AND value <> 'null');
CREATE FUNCTION pg_temp.alter_each(function text, name text) RETURNS TABLE (argument text, changes jsonb)
LANGUAGE plpgsql AS $$
DECLARE
	present jsonb := pg_temp.settings(name);
	type oid;
BEGIN
	FOR argument, type IN
		SELECT u.argument, u.type FROM pg_proc p,
			unnest(proargnames, proargtypes::oid[]) WITH ORDINALITY AS u (argument, type, n)
		 WHERE pronamespace = 'leader_election'::regnamespace AND proname = function AND n > 1 ORDER BY n
	LOOP
		EXECUTE format('SELECT leader_election.%I(%L, %I => %L)', function, name, argument,
			CASE WHEN argument = 'strategy' THEN 'lowest' WHEN type = 'interval'::regtype THEN '5 s'
				WHEN type = 'integer'::regtype THEN '7' ELSE 'regress_le_owner' END);
		EXECUTE format('SELECT leader_election.%I(%L)', function, name);
		SELECT jsonb_object_agg(s.key, s.value) INTO changes
		  FROM jsonb_each(pg_temp.settings(name)) s WHERE s.value IS DISTINCT FROM present -> s.key;
		present := pg_temp.settings(name);
		RETURN NEXT;
	END LOOP;
END $$;
SELECT leader_election.create_election('e each', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
SELECT leader_election.create_election('e default');
SELECT pg_temp.settings('e each') - 'owner' AS defaults,
	   pg_temp.settings('e each') = pg_temp.settings('e default') AS same;
SELECT * FROM pg_temp.alter_each('alter_election', 'e each');
SELECT leader_election.create_group('e group', 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
SELECT pg_temp.settings('e group') - '{owner,group owner}'::text[] AS defaults;
SELECT * FROM pg_temp.alter_each('alter_group', 'e group');
SELECT election, pg_temp.settings(election) = pg_temp.settings('e group/1') AS same
  FROM leader_election.election WHERE group_name = 'e group' ORDER BY length(election), election;
SELECT leader_election.create_group('e none', NULL);
SELECT leader_election.create_group('e none', 0);
SELECT leader_election.create_group('e none', 1, max_per_candidate => 1001);
SELECT leader_election.alter_group('e group', 1001);
SELECT leader_election.alter_group('e group', quorum => 0);
SELECT leader_election.drop_group('e group');
SELECT leader_election.drop_election(election)
  FROM leader_election.election WHERE election IN ('e each', 'e default');
DROP FUNCTION pg_temp.alter_each, pg_temp.settings;

--
-- Settings that change under a leader count from its next renewal or the next
-- election on, and end no lease before its time (G2).
--

SET regress.election = 'e alter';
SELECT leader_election.create_election('e alter', 'race', '1 hour');
SELECT count(*) FROM leader_election.acquire('e alter', 'one', 1);
SELECT count(*) FROM leader_election.acquire('e alter', 'two', 2);
SELECT term, deadline_mono AS deadline FROM leader_election.lease WHERE election = 'e alter' \gset
SELECT leader_election.alter_election('e alter', 'lowest', '100 ms', 3, '1 hour', 'regress_le_owner', 'e channel');
SELECT leader_election.is_leader('e alter', :term), deadline_mono = :deadline AS same
  FROM leader_election.lease WHERE election = 'e alter';
SELECT remaining_ms > 3500000 AS remaining_ms, yielding FROM leader_election.renew('e alter', :term);
SELECT deadline_mono = :deadline AS same FROM leader_election.lease WHERE election = 'e alter';
SELECT leader_election.alter_election('e alter', lease_duration => '2 hours');
SELECT deadline_mono = :deadline AS same FROM leader_election.lease WHERE election = 'e alter';
SELECT remaining_ms > 7100000 AS remaining_ms FROM leader_election.renew('e alter', :term);
SELECT leader_election.release('e alter', :term);
TABLE shown;
SELECT leader_election.alter_election('e alter', quorum => 2, candidate_role => '');
SELECT count(*) FROM leader_election.acquire('e alter', 'one');
SELECT count(*) FROM leader_election.acquire('e alter', 'two');
SELECT leader_election.leave('e alter', 'one');
SELECT leader_election.release('e alter', present_term) FROM seat;
SELECT leader_election.leave('e alter', 'two');
SELECT leader_election.drop_election('e alter');

--
-- Sitting out, under every strategy
--

-- Alone, a leader that gave up is elected by its own next call, and by no other.
SELECT leader_election.create_election('e out ' || strategy, strategy, '1 hour') FROM strategy ORDER BY n;
CREATE TEMPORARY VIEW out AS
	SELECT s.strategy, o.state, o.waiting_for, o.leader
	  FROM strategy s JOIN leader_election.status o ON election = 'e out ' || s.strategy ORDER BY n;
SELECT count(*) FROM strategy, leader_election.acquire('e out ' || strategy, 'one', 1);
SELECT count(*) FROM strategy WHERE pg_temp.release('e out ' || strategy);
TABLE out;
SELECT count(*) FROM strategy, leader_election.acquire('e out ' || strategy, 'one');
-- Another one goes first, even though it has to call.
SELECT count(*) FROM strategy, leader_election.acquire('e out ' || strategy, 'two', 1);
SELECT count(*) FROM strategy WHERE pg_temp.release('e out ' || strategy);
SELECT strategy, (SELECT count(*) FROM leader_election.acquire('e out ' || strategy, 'one')) AS one,
	   (SELECT count(*) FROM leader_election.acquire('e out ' || strategy, 'two')) AS two,
	   (SELECT count(*) FROM leader_election.acquire('e out ' || strategy, 'one')) AS again
  FROM strategy;
-- and when that one gives up, the first is no longer passed over.
SELECT count(*) FROM strategy WHERE pg_temp.release('e out ' || strategy);
SELECT strategy, (SELECT count(*) FROM leader_election.acquire('e out ' || strategy, 'two')) AS two,
	   (SELECT count(*) FROM leader_election.acquire('e out ' || strategy, 'one')) AS one
  FROM strategy;
-- Where the other candidate leaves, nobody has to be waited for.
SELECT count(*) FROM strategy WHERE pg_temp.release('e out ' || strategy);
SELECT count(*) FROM strategy WHERE leader_election.leave('e out ' || strategy, 'two');
SELECT count(*) FROM strategy, leader_election.acquire('e out ' || strategy, 'one');
SELECT count(*) FROM strategy WHERE pg_temp.release('e out ' || strategy);
-- A candidate that leaves leaves nothing behind.
SELECT count(*) FROM strategy, leader_election.acquire('e out ' || strategy, 'two');
SELECT count(*) FROM strategy WHERE pg_temp.release('e out ' || strategy);
SELECT count(*) FROM strategy WHERE leader_election.leave('e out ' || strategy, 'one');
SELECT count(*) FROM strategy WHERE leader_election.leave('e out ' || strategy, 'two');
-- The same for sessions: a leader that resigned calls for itself.
SELECT count(*) FROM strategy WHERE leader_election.join('e out ' || strategy, 'session') IS DISTINCT FROM 0;
SELECT pg_temp.await($$SELECT count(*) = 6 FROM out WHERE leader = 'session'$$);
SELECT count(*) FROM strategy WHERE leader_election.resign('e out ' || strategy);
TABLE out;
SELECT count(leader_election.join('e out ' || strategy, 'session')) FROM strategy;
SELECT leader_election.leave_all();
SELECT leader_election.drop_election(election) FROM settings;

--
-- A seat that is kept for one that leaves passes on, and is not kept for it
-- when it comes back while better ones stand.
--

SET regress.election = 'e kept';
SELECT leader_election.create_election('e kept', 'lowest', '1 hour', 2);
SELECT count(*) FROM leader_election.acquire('e kept', 'worse', 5);
SELECT count(*) FROM leader_election.acquire('e kept', 'better', 1);
SELECT leader_election.alter_election('e kept', quorum => 1);
SELECT count(*) FROM leader_election.acquire('e kept', 'better');
SELECT leader_election.alter_election('e kept', quorum => 2);
SELECT leader_election.transfer('e kept', (SELECT present_term FROM seat), 'worse');
TABLE shown;
SELECT leader_election.leave('e kept', 'worse');
TABLE shown;
SELECT pg_temp.await($$SELECT successor IS NULL FROM leader_election.lease WHERE election = 'e kept'$$);
SELECT count(*) FROM leader_election.acquire('e kept', 'worse', 5);
TABLE shown;
SELECT count(*) FROM leader_election.acquire('e kept', 'better');
SELECT pg_temp.release('e kept');
SELECT leader_election.leave('e kept', 'better'), leader_election.leave('e kept', 'worse');
SELECT leader_election.drop_election('e kept');

--
-- One of several elections is dropped under a session that stands in them: the
-- others are led on, and left.
--

SELECT leader_election.create_election(e) FROM unnest('{e all 1,e all 2,e all 3}'::text[]) e;
SELECT leader_election.join('e all 1', 'session') > 0 AS one, leader_election.join('e all 2', 'session') > 0 AS two,
	   leader_election.join('e all 3', 'session') > 0 AS three;
SELECT leader_election.resign('e all 2');
SELECT leader_election.drop_election('e all 2');
SELECT leader_election.is_leader('e all 1'), leader_election.is_leader('e all 2'), leader_election.is_leader('e all 3');
\set VERBOSITY sqlstate
SELECT leader_election.leave('e all 2');
\set VERBOSITY default
SELECT leader_election.leave_all();
SELECT election, state, candidates FROM leader_election.status WHERE election LIKE 'e all %' ORDER BY 1;
SELECT leader_election.leave_all();
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
-- The same where there is a new one of its name by then, in which it does not
-- stand
SELECT leader_election.join('e all 1', 'session') > 0 AS one, leader_election.join('e all 3', 'session') > 0 AS three;
SELECT leader_election.resign('e all 1');
SELECT leader_election.drop_election('e all 1'), leader_election.create_election('e all 1');
SELECT leader_election.leave_all();
SELECT election, state, candidates FROM leader_election.status WHERE election LIKE 'e all %' ORDER BY 1;
SELECT leader_election.drop_election(election) FROM settings;

-- Where the number of the protocol cannot be told, nothing is done.  What is
-- rolled back changes nothing.
SELECT leader_election.create_election('led on');
SELECT leader_election.join('led on', 'session') > 0 AS led;
BEGIN;
CREATE OR REPLACE VIEW leader_election.protocol AS
	SELECT 0 + 1 AS number, ''::text AS edition, ''::text COLLATE "C" AS version;
\set VERBOSITY sqlstate
SELECT leader_election.create_election('unknown protocol');
\set VERBOSITY default
ROLLBACK;
SELECT leader_election.is_leader('led on');
SELECT leader_election.leave('led on');
SELECT leader_election.drop_election('led on');

DROP VIEW out, shown, seat, settings;
DROP OWNED BY regress_le_owner, regress_le_app, regress_le_viewer;
DROP ROLE regress_le_owner, regress_le_app, regress_le_viewer;

-- The next test counts its terms from 1 again.
SET client_min_messages = error;
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election;
