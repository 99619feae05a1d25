--
-- is_leader() in all states that a transaction can be in.  It never writes (G9).
--

SET client_min_messages = warning;
SELECT leader_election.join('i', 'one');

CREATE TEMPORARY VIEW look AS
	SELECT leader_election.is_leader('i') AS leads,
		   leader_election.term('i') AS term,
		   leader_election.remaining_ms('i') BETWEEN 1 AND 15000 AS remains,
		   leader_election.is_leader('nothing') AS leads_nothing,
		   pg_current_xact_id_if_assigned() IS NULL AS wrote_nothing;
TABLE look;

BEGIN;
TABLE look;
SAVEPOINT s;
TABLE look;
COMMIT;

BEGIN READ ONLY;
TABLE look;
COMMIT;

BEGIN ISOLATION LEVEL REPEATABLE READ;
TABLE look;
COMMIT;

BEGIN ISOLATION LEVEL SERIALIZABLE;
TABLE look;
COMMIT;

BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE;
TABLE look;
COMMIT;

SET default_transaction_isolation = 'repeatable read';
TABLE look;
SELECT leader_election.join('rr', 'one');
SELECT leader_election.is_leader('rr');
SELECT term FROM leader_election.renew('rr');
SELECT leader_election.resign('rr');
CALL leader_election.campaign('rr', 'one', '1 min');
SET default_transaction_isolation = 'serializable';
TABLE look;
SELECT leader_election.is_leader('rr');
SELECT leader_election.leave('rr');
SELECT leader_election.join('ser', 'one');
SELECT leader_election.is_leader('ser');
SELECT term FROM leader_election.renew('ser');
SELECT leader_election.resign('ser');
CALL leader_election.campaign('ser', 'one', '1 min');
SELECT leader_election.leave('ser');
RESET default_transaction_isolation;

SET default_transaction_read_only = on;
TABLE look;
SET default_transaction_read_only = off;

-- In functions of all kinds
CREATE FUNCTION pg_temp.in_sql() RETURNS boolean LANGUAGE sql STABLE
	AS $$SELECT leader_election.is_leader('i')$$;
CREATE FUNCTION pg_temp.in_plpgsql() RETURNS boolean LANGUAGE plpgsql IMMUTABLE
	AS $$BEGIN RETURN leader_election.is_leader('i'); END$$;
CREATE FUNCTION pg_temp.in_block() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN leader_election.is_leader('i');
EXCEPTION WHEN others THEN
	RETURN false;
END
$$;
SELECT pg_temp.in_sql(), pg_temp.in_plpgsql(), pg_temp.in_block();
CREATE TEMPORARY TABLE guarded
	(n int CHECK (leader_election.is_leader('i')) DEFAULT leader_election.term('i'));
INSERT INTO guarded DEFAULT VALUES RETURNING n;
SELECT count(*) FROM generate_series(1, 1000) WHERE leader_election.is_leader('i');

-- It shows what is committed, and no more (G3).
SELECT leader_election.resign('i'), leader_election.is_leader('i');
CALL leader_election.campaign('i', 'one');
SELECT leader_election.join('i2', 'one'), leader_election.is_leader('i2');
SELECT leader_election.is_leader('i2');
-- A DO block is no transaction block, and it may commit.
DO $$
BEGIN
	PERFORM leader_election.join('do', 'one');
	ASSERT NOT leader_election.is_leader('do'), 'not before the commit';
	COMMIT;
	ASSERT leader_election.is_leader('do'), 'after the commit';
	PERFORM leader_election.leave('do');
	ASSERT NOT leader_election.is_leader('do'), 'given up, before the commit';
	ROLLBACK;
	ASSERT leader_election.is_leader('do'), 'not given up after all';
	PERFORM leader_election.leave('do');
END
$$;
SELECT leader_election.is_leader('do'), leader_election.leader('do');
-- A step down that did not happen
\set VERBOSITY sqlstate
SELECT leader_election.resign('i'), leader_election.is_leader('i'), 1 / (pg_backend_pid() - pg_backend_pid());
TABLE look;

--
-- A long statement notices that its lease is over (G3).
--

SELECT leader_election.join('short', 'one', auto_renew => false);
SELECT leader_election.leave('short');
UPDATE leader_election.election SET lease_duration = '2 s'
 WHERE election = 'short';
CALL leader_election.campaign('short', 'one', auto_renew => false);
DO $$
DECLARE
	deadline bigint := (SELECT deadline_mono FROM leader_election.lease
						 WHERE election = 'short');
	clock bigint;
	remaining bigint;
	leads boolean;
	led_at bigint;
BEGIN
	LOOP
		clock := leader_election._monotonic_clock();
		remaining := leader_election.remaining_ms('short');
		ASSERT remaining IS NULL OR remaining * 1000 <= deadline - clock,
			'remaining_ms() promises no more than there is';
		ASSERT remaining IS NOT NULL OR leader_election._monotonic_clock() >= deadline,
			'it promises something until the deadline';
		clock := leader_election._monotonic_clock();
		leads := leader_election.is_leader('short');
		EXIT WHEN NOT leads;
		led_at := clock;
		IF clock > deadline + 30000000 THEN
			RAISE 'is_leader() is true half a minute after the deadline';
		END IF;
	END LOOP;
	clock := leader_election._monotonic_clock();
	ASSERT led_at < deadline, 'true before the deadline, and not after it';
	ASSERT clock >= deadline, 'false after the deadline, and not before it';
	ASSERT leader_election.term('short') IS NULL, 'nor is there a term';
	ASSERT leader_election.remaining_ms('short') IS NULL, 'nor does anything remain';
	ASSERT pg_current_xact_id_if_assigned() IS NULL, 'nothing was written';
END
$$;
-- It was to renew the lease itself and did not, so it sits out now, and is
-- elected again by its own call.
CALL leader_election.wait_for_change('short', 2, 'one');
CALL leader_election.campaign('short', 'one', '1 min');

-- A renewal that is not committed does not count (G3).
DO $$
DECLARE
	deadline bigint := (SELECT deadline_mono FROM leader_election.lease
						 WHERE election = 'short');
	clock bigint;
	led_at bigint;
BEGIN
	ASSERT leader_election.is_leader('short'), 'leads at first';
	ASSERT (SELECT count(*) = 1 FROM leader_election.renew('short')), 'renews';
	ASSERT deadline < (SELECT deadline_mono FROM leader_election.lease
						WHERE election = 'short'), 'has renewed';
	LOOP
		clock := leader_election._monotonic_clock();
		EXIT WHEN NOT leader_election.is_leader('short');
		led_at := clock;
		IF clock > deadline + 30000000 THEN
			RAISE 'is_leader() is true half a minute after the deadline';
		END IF;
	END LOOP;
	ASSERT led_at < deadline, 'true before the committed deadline only';
END
$$;

SELECT leader_election.leave_all();
