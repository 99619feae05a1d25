--
-- Session candidates: every call, as one session sees it.
--

-- An election is created on first use.
SELECT leader_election.join('s', 'one');

SELECT strategy, lease_duration, quorum, takeover_delay, candidate_role,
	   channel, owner = current_user AS owned
  FROM leader_election.election WHERE election = 's';

SET client_min_messages = warning;
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

SELECT leader_election.is_leader('s'), leader_election.term('s'),
	   leader_election.leader('s');

-- Again: no new term, and nothing is changed.
SELECT leader_election.join('s', 'one');
CREATE TEMPORARY VIEW profile AS
	SELECT rank, progress, metadata, auto_renew
	  FROM leader_election.candidate
	 WHERE election = 's' AND candidate = 'one';
TABLE profile;

-- What is not NULL is updated, one by one and together.
SELECT leader_election.join('s', 'one', rank => 5);
SELECT leader_election.join('s', 'one', progress => 9007199254740993);
SELECT leader_election.join('s', 'one', metadata => '{"url": "http://one/"}');
SELECT leader_election.join('s', 'one', auto_renew => false);
TABLE profile;
SELECT leader_election.join('s', 'one');
TABLE profile;
SELECT leader_election.join('s', 'one', -2147483648, -9223372036854775808,
							'null', true);
TABLE profile;

-- They are copied to the lease when it is granted.
SELECT rank, progress, metadata, auto_renew
  FROM leader_election.lease WHERE election = 's';
SELECT leader_election.resign('s');
CALL pg_temp.lead('s', 'one');
SELECT rank, progress, metadata, auto_renew
  FROM leader_election.lease WHERE election = 's';

-- 8 kB of metadata, as pg_column_size() counts what is not compressed, and no
-- more.  What is refused is not even read.
CREATE TEMPORARY TABLE sizes AS
	SELECT length, to_jsonb(repeat('x', length)) AS metadata
	  FROM unnest('{8180, 8181, 10000000, 96000000}'::int[]) AS length;
SELECT length, pg_column_size(to_jsonb(repeat('x', length))) AS bytes
  FROM sizes WHERE length < 9000;
SELECT leader_election.join('s', 'one', metadata => metadata)
  FROM sizes WHERE length = 8180;
SELECT metadata = to_jsonb(repeat('x', 8180)) AS said FROM profile;
SELECT leader_election.join('s', 'one', metadata => metadata)
  FROM sizes WHERE length = 8181;
SELECT leader_election.join('s', 'one', metadata => metadata)
  FROM sizes WHERE length = 10000000;
SELECT leader_election.join('s', 'one', metadata => metadata)
  FROM sizes WHERE length = 96000000;
SELECT leader_election.join('large', 'one', metadata => to_jsonb(repeat('x', 10000000)));
CALL leader_election.campaign('large', 'one', '0', metadata => to_jsonb(repeat('x', 8181)));
SELECT leader_election.acquire('large', 'one', metadata => metadata)
  FROM sizes WHERE length = 8181;
SELECT leader_election.acquire('large', 'one', metadata => metadata)
  FROM sizes WHERE length = 96000000;
SELECT count(*) FROM leader_election.election WHERE election = 'large';
SELECT term FROM leader_election.acquire('large', 'one', metadata => to_jsonb(repeat('x', 8180)));
SELECT metadata = to_jsonb(repeat('x', 8180)) AS copied
  FROM leader_election.status WHERE election = 'large';
SELECT leader_election.release('large', 1), leader_election.leave('large', 'one');
CALL leader_election.campaign('large', 'one', metadata => to_jsonb(repeat('y', 8180)));
SELECT metadata = to_jsonb(repeat('y', 8180)) AS copied
  FROM leader_election.status WHERE election = 'large';
SELECT leader_election.leave('large');
SELECT leader_election.join('s', 'one', metadata => 'null');

--
-- A grant does not count before it is committed (G3).
--

SELECT leader_election.join('uncommitted', 'one'),
	   leader_election.is_leader('uncommitted'),
	   leader_election.term('uncommitted');
SELECT leader_election.is_leader('uncommitted'),
	   leader_election.term('uncommitted');
SELECT leader_election.is_leader('uncommitted'),
	   leader_election.resign('uncommitted'),
	   leader_election.is_leader('uncommitted');

--
-- Several calls in one statement.
--

SELECT leader_election.join('several', 'one'),
	   leader_election.join('several', 'one'),
	   leader_election.resign('several'),
	   leader_election.resign('several'),
	   leader_election.join('several', 'one'),
	   leader_election.leave('several'),
	   leader_election.leave('several');
SELECT leader_election.is_leader('several');
CALL pg_temp.lead('several', 'one');
SELECT leader_election.leave('several'),
	   leader_election.join('several', 'one');
SELECT leader_election.is_leader('several');
-- The name is free, and so is the session.
SELECT leader_election.leave('several'),
	   leader_election.join('several', 'another name');
SELECT leader_election.leader('several');
SELECT term, leader, reason FROM leader_election.history
 WHERE election = 'several' ORDER BY term;

SELECT count(leader_election.join('bulk ' || i, 'one'))
  FROM generate_series(1, 200) i;
SELECT count(*) FROM generate_series(1, 200) i
 WHERE leader_election.is_leader('bulk ' || i);
SELECT sum(leader_election.leave('bulk ' || i)::int)
  FROM generate_series(1, 200) i;

--
-- campaign() that wins at once
--

CALL leader_election.campaign('c', 'one');
SELECT leader_election.is_leader('c');
CALL leader_election.campaign('c', 'one', rank => 3, metadata => '[1]');
SELECT rank, progress, metadata FROM leader_election.candidates
 WHERE election = 'c';
DO $$
DECLARE
	term bigint;
BEGIN
	CALL leader_election.campaign('in do', 'one', '1 min', term => term);
	RAISE WARNING 'term %, is_leader() %', term,
		leader_election.is_leader('in do');
END
$$;

--
-- renew()
--

SELECT deadline_mono AS deadline FROM leader_election.lease
 WHERE election = 'c' \gset
SELECT term, remaining_ms BETWEEN 10000 AND 15000 AS remaining_ms,
	   expires_at BETWEEN clock_timestamp() + '10 s' AND
						  clock_timestamp() + '15 s' AS expires_at, yielding
  FROM leader_election.renew('c');
SELECT deadline_mono > :deadline AS later FROM leader_election.lease
 WHERE election = 'c';
SELECT (g).term, (g).remaining_ms BETWEEN 10000 AND 15000 AS remaining_ms,
	   (g).yielding
  FROM (SELECT leader_election.renew('c') AS g) renewed;
CREATE TEMPORARY TABLE renewed AS SELECT (leader_election.renew('c')).*;
SELECT term, remaining_ms BETWEEN 10000 AND 15000 AS remaining_ms,
	   expires_at = (SELECT expires_at FROM leader_election.lease
					  WHERE election = 'c') AS expires_at, yielding
  FROM renewed;
SELECT count(*), min(a.expires_at) = max(b.expires_at) AS once
  FROM leader_election.renew('c') a, leader_election.renew('c') b;
SELECT count(*) FROM leader_election.renew('c'), leader_election.resign('c'),
	   LATERAL leader_election.renew('c') again;
SELECT count(*) FROM leader_election.renew('c');

--
-- remaining_ms()
--

SELECT leader_election.join('remains', 'one'),
	   leader_election.remaining_ms('remains');
-- It is current, though what this session knows may be older, and rounded down.
CREATE FUNCTION pg_temp.remains(election text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	deadline bigint := (SELECT deadline_mono FROM leader_election.lease l
						 WHERE l.election = remains.election);
	before bigint := leader_election._monotonic_clock();
	remaining bigint := leader_election.remaining_ms(election);
	after bigint := leader_election._monotonic_clock();
BEGIN
	RETURN CASE WHEN remaining IS NULL THEN 'does not lead'
		WHEN remaining BETWEEN (deadline - after) / 1000 AND (deadline - before) / 1000 THEN 'is right'
		ELSE format('%s, not %s to %s', remaining, (deadline - after) / 1000, (deadline - before) / 1000) END;
END
$$;
SELECT pg_temp.remains('remains');
SELECT count(*) FROM pg_sleep(0.02), leader_election.renew('remains');
SELECT pg_temp.remains('remains');
-- A renewal that is not committed does not count (G3).
DO $$
DECLARE
	deadline bigint := (SELECT deadline_mono FROM leader_election.lease
						 WHERE election = 'remains');
	before bigint;
BEGIN
	PERFORM pg_sleep(0.02);
	PERFORM leader_election.renew('remains');
	ASSERT deadline < (SELECT deadline_mono FROM leader_election.lease
						WHERE election = 'remains'), 'has renewed';
	before := leader_election._monotonic_clock();
	ASSERT leader_election.remaining_ms('remains') <= (deadline - before) / 1000,
		'remains until the committed deadline';
END
$$;
SELECT pg_temp.remains('remains');
-- It stays so while this session is asked to yield, and ends with leadership.
SELECT leader_election.request_yield('remains') > '10 s' AS asked;
SELECT pg_temp.remains('remains');
SELECT leader_election.resign('remains'), leader_election.remaining_ms('remains');
SELECT leader_election.remaining_ms('remains'),
	   leader_election.remaining_ms('no such election') AS of_none,
	   leader_election.remaining_ms(NULL) AS of_null,
	   leader_election.remaining_ms(repeat('x', 10000000)) AS of_a_long_name;
SELECT leader_election.leave('remains');

--
-- resign()
--

SELECT leader_election.join('r', 'one');
SELECT leader_election.resign('r');
SELECT leader_election.resign('r');
SELECT leader_election.is_leader('r'), leader_election.term('r'),
	   leader_election.leader('r');
-- Alone, it is elected by its own next call only.
SELECT state, waiting_for, candidates FROM leader_election.status
 WHERE election = 'r';
CALL pg_temp.lead('r', 'one');
SELECT leader_election.resign('r', '0');
CALL leader_election.campaign('r', 'one', '1 min');

-- hold counts from acquired_at, not from the call.
SELECT leader_election.resign('r', '1 hour');
SELECT state, waiting_for FROM leader_election.status WHERE election = 'r';
SELECT not_before_at - acquired_at BETWEEN '59:59.99' AND '1:00:00.01' AS held
  FROM leader_election.lease WHERE election = 'r';
SELECT leader_election.join('r', 'one');
-- A campaign that ends without a term leaves what it has found.
CALL leader_election.campaign('r', 'one', '0');
SELECT candidate, alive, leads FROM leader_election.candidates
 WHERE election = 'r';
SELECT leader_election.leave('r');
CALL leader_election.campaign('r', 'one', '1 ms');
SELECT leader_election.leave('r');
SELECT term, reason, detail FROM leader_election.history
 WHERE election = 'r' ORDER BY term;

-- A hold that is over is none.
SELECT leader_election.join('tick', 'one');
SELECT leader_election.resign('tick', '1 microsecond');
CALL pg_temp.lead('tick', 'one');
-- The longest one is accepted.
SELECT leader_election.resign('tick', '366 days');
SELECT state, waiting_for FROM leader_election.status WHERE election = 'tick';

--
-- leave() and leave_all()
--

SELECT leader_election.join('l', 'one');
SELECT leader_election.leave('l');
SELECT leader_election.leave('l');
SELECT leader_election.is_leader('l'), leader_election.leader('l');
SELECT state, waiting_for, candidates FROM leader_election.status
 WHERE election = 'l';
SELECT leader_election.leave_all();
SELECT leader_election.leave_all();
-- (A row that is busy is left to the worker.)
SELECT count(*) FROM leader_election.candidates WHERE alive;
SELECT leader_election.join('l2', 'one'), leader_election.join('l3', 'one'),
	   leader_election.leave_all(), leader_election.leave_all();
-- However often one has stood for election, leaving once frees the session
-- lock (good_job#1735).
SELECT count(leader_election.join('again', 'one')) FROM generate_series(1, 3);
SELECT leader_election.join('again', 'one');
CALL leader_election.campaign('again', 'one');
SELECT leader_election.leave('again');
CALL leader_election.campaign('again', 'one');
CALL leader_election.campaign('again', 'one');
SELECT leader_election.leave('again');
SELECT count(*) FROM pg_locks
 WHERE locktype = 'advisory' AND objsubid >= 20 AND pid = pg_backend_pid();

--
-- transfer(): what it refuses
--

SELECT leader_election.join('t', 'one');
SELECT leader_election.resign('t');
SELECT leader_election.transfer('t', 'two');
CALL pg_temp.lead('t', 'one');
\set VERBOSITY sqlstate
SELECT leader_election.transfer('t', 'two');
SELECT leader_election.transfer('t', 'one');
SELECT leader_election.is_leader('t'), leader_election.term('t');

-- Nothing stays locked but this session's own lock.
SELECT mode, count(*) FROM pg_locks
 WHERE locktype = 'advisory' AND objsubid >= 20 AND pid = pg_backend_pid()
 GROUP BY mode;
SELECT leader_election.leave_all();
SELECT count(*) FROM pg_locks
 WHERE locktype = 'advisory' AND objsubid >= 20 AND pid = pg_backend_pid();
