--
-- Detached candidates: every call, as one connection sees it.
--

-- An election is created on first use.
SELECT term, yielding FROM leader_election.acquire('d', 'one');

SET client_min_messages = warning;
-- This is no test of time.
UPDATE leader_election.election SET lease_duration = '1 hour'
 WHERE election = 'd';
SELECT term FROM leader_election.renew('d', 1);

SELECT strategy, quorum, owner = current_user AS owned
  FROM leader_election.election WHERE election = 'd';
SELECT state, waiting_for, leader, metadata, term, kind, backend_pid,
	   expires_at - renewed_at AS lease, candidates
  FROM leader_election.status WHERE election = 'd';
SELECT candidate, kind, rank, progress, metadata, alive, leads, "position"
  FROM leader_election.candidates WHERE election = 'd';
SELECT term, leader, kind, role = current_user AS own_role, backend_pid,
	   ended_at, reason, detail
  FROM leader_election.history WHERE election = 'd';
SELECT session_id, backend_pid, auto_renew FROM leader_election.lease
 WHERE election = 'd';

-- It is the term that leads, and no session.
SELECT leader_election.is_leader('d', 1), leader_election.is_leader('d'),
	   leader_election.term('d'), leader_election.leader('d');
SELECT count(*) AS session_locks FROM pg_locks
 WHERE locktype = 'advisory' AND pid = pg_backend_pid();

-- A refusal tells nothing: to another candidate, to itself, or to whoever uses
-- its name (oban-py#32, oban#1488).
SELECT * FROM leader_election.acquire('d', 'two');
SELECT * FROM leader_election.acquire('d', 'one');
SELECT leader_election.acquire('d', 'two');
SELECT (leader_election.acquire('d', 'two')).*;
-- and writes nothing.
CREATE TEMPORARY VIEW refused AS
	SELECT (SELECT count(*) FROM leader_election.acquire('d', 'one')) AS one,
		   (SELECT count(*) FROM leader_election.acquire('d', 'two')) AS two,
		   pg_current_xact_id_if_assigned() IS NULL AS wrote_nothing;
TABLE refused;

--
-- What a candidate says of itself
--

CREATE TEMPORARY VIEW profile AS
	SELECT rank, progress, metadata FROM leader_election.candidates
	 WHERE election = 'd' AND candidate = 'two';
-- What is not NULL is updated, one by one and together.
SELECT term FROM leader_election.acquire('d', 'two', rank => 5);
SELECT term FROM leader_election.acquire('d', 'two', progress => 9007199254740993);
SELECT term FROM leader_election.acquire('d', 'two', metadata => '{"url": "http://two/"}');
TABLE profile;
SELECT term FROM leader_election.acquire('d', 'two', NULL, NULL, NULL);
TABLE profile;
SELECT term FROM leader_election.acquire('d', 'two', -2147483648, -9223372036854775808, 'null');
TABLE profile;
-- Nothing is written where nothing is new.
SELECT (SELECT count(*) FROM leader_election.acquire('d', 'two', -2147483648, -9223372036854775808, 'null')),
	   pg_current_xact_id_if_assigned() IS NULL AS wrote_nothing;

-- They are copied to the lease when it is granted, even where they are too
-- long for the page.
SELECT leader_election.release('d', 1);
SELECT jsonb_agg(md5(i::text)) AS long FROM generate_series(1, 227) i \gset
SELECT term FROM leader_election.acquire('d', 'two', 7, 8, :'long');
SELECT rank, progress, metadata = :'long' AS metadata
  FROM leader_election.lease WHERE election = 'd';
-- A renewal says how far the leader has got, and nothing else.
SELECT term FROM leader_election.renew('d', 2, 9);
SELECT term FROM leader_election.renew('d', 2);
SELECT rank, progress, metadata = :'long' AS metadata
  FROM leader_election.lease WHERE election = 'd';
SELECT rank, progress, metadata = :'long' AS metadata FROM profile;
-- A change takes effect with the next election.
SELECT term FROM leader_election.acquire('d', 'two', 1, 2, '[]');
SELECT rank, progress, metadata = :'long' AS metadata
  FROM leader_election.lease WHERE election = 'd';
SELECT leader_election.release('d', 2);
SELECT rank, progress, metadata FROM leader_election.lease
 WHERE election = 'd';
SELECT term FROM leader_election.acquire('d', 'one');
SELECT leader_election.release('d', 3);
SELECT term FROM leader_election.acquire('d', 'two', metadata => :'long');
SELECT leader_election.release('d', 4);
SELECT term FROM leader_election.acquire('d', 'one');
SELECT leader_election.transfer('d', 5, 'two');
SELECT term FROM leader_election.acquire('d', 'two');
SELECT rank, progress, metadata = :'long' AS metadata
  FROM leader_election.lease WHERE election = 'd';

--
-- Grant rows
--

SELECT term, remaining_ms BETWEEN 3500000 AND 3600000 AS remaining_ms,
	   expires_at BETWEEN clock_timestamp() + '3500 s' AND
						  clock_timestamp() + '3600 s' AS expires_at,
	   expires_at = (SELECT expires_at FROM leader_election.status
					  WHERE election = 'd') AS shown, yielding
  FROM leader_election.renew('d', 6);
SELECT deadline_mono AS deadline FROM leader_election.lease
 WHERE election = 'd' \gset
SELECT count(*) FROM leader_election.renew('d', 6);
SELECT deadline_mono > :deadline AS later FROM leader_election.lease
 WHERE election = 'd';

-- A deadline never moves back (G3).
SELECT deadline_mono AS deadline FROM leader_election.lease
 WHERE election = 'd' \gset
UPDATE leader_election.election SET lease_duration = '1 minute'
 WHERE election = 'd';
SELECT remaining_ms > 3000000 AS remaining FROM leader_election.renew('d', 6);
SELECT deadline_mono = :deadline AS same, deadline_mono - duration < :deadline - 3000000000 AS shorter
  FROM leader_election.lease WHERE election = 'd';
UPDATE leader_election.election SET lease_duration = '1 hour'
 WHERE election = 'd';

--
-- Other terms than the present one
--

SELECT term FROM unnest('{-9223372036854775808,-1,0,1,5,7,9223372036854775807}'::bigint[]) t,
	   leader_election.renew('d', t);
SELECT t, leader_election.release('d', t), leader_election.is_leader('d', t)
  FROM unnest('{-9223372036854775808,-1,0,1,5,7,9223372036854775807}'::bigint[]) t;
SELECT leader_election.transfer('d', 5, 'one'), leader_election.transfer('d', 7, 'one'),
	   leader_election.transfer('d', 5, 'nobody'), leader_election.transfer('d', 5, 'two');
SELECT leader_election.is_leader('d', 6);

-- A term that is over stays so (G5).
SELECT leader_election.release('d', 6);
SELECT leader_election.release('d', 6), leader_election.transfer('d', 6, 'one'),
	   leader_election.is_leader('d', 6);
SELECT * FROM leader_election.renew('d', 6);
SELECT * FROM leader_election.renew('d', 6, 10);
SELECT leader_election.leader('d'), leader_election.is_leader('d', 0),
	   leader_election.is_leader('d', NULL), leader_election.is_leader(NULL, 6),
	   leader_election.is_leader(NULL, NULL),
	   leader_election.is_leader('no such election', 0),
	   leader_election.is_leader('no such election', 1);

-- A vacant election that never was led has no term to be known.
SELECT leader_election.join('d never led', 'session'), leader_election.leave('d never led');
DELETE FROM leader_election.history WHERE election = 'd never led';
UPDATE leader_election.lease SET term = 0 WHERE election = 'd never led';
SELECT leader_election.is_leader('d never led', 0), leader_election.release('d never led', 0),
	   leader_election.transfer('d never led', 0, 'one');
SELECT * FROM leader_election.renew('d never led', 0);

SELECT term, leader, reason, detail FROM leader_election.history
 WHERE election = 'd' ORDER BY term;

--
-- Several calls in one statement: one grant, one term
--

CREATE TEMPORARY TABLE grants AS SELECT (leader_election.acquire('d several', 'one')).*;
SELECT term, remaining_ms > 0 AS remaining_ms,
	   expires_at = (SELECT expires_at FROM leader_election.status
					  WHERE election = 'd several') AS expires_at, yielding FROM grants;
SELECT term, leader, reason FROM leader_election.history WHERE election = 'd several';
UPDATE leader_election.election SET lease_duration = '1 hour'
 WHERE election = 'd several';
TRUNCATE grants;
INSERT INTO grants SELECT (leader_election.renew('d several', 1, 3)).*;
SELECT term, remaining_ms > 3500000 AS remaining_ms,
	   expires_at = (SELECT expires_at FROM leader_election.status
					  WHERE election = 'd several') AS expires_at, yielding FROM grants;
SELECT count(*), min(a.expires_at) = max(b.expires_at) AS once
  FROM leader_election.renew('d several', 1) a, leader_election.renew('d several', 1) b;

SELECT leader_election.release('d several', 1), leader_election.release('d several', 1);
SELECT a.term, b.term, a.expires_at = b.expires_at AS once
  FROM leader_election.acquire('d several', 'one') a, leader_election.acquire('d several', 'one') b;
-- A grant is repeated to the candidate that got it, and to no other.
SELECT leader_election.release('d several', 2);
SELECT count(a), count(b), count(c), count(d)
  FROM leader_election.acquire('d several', 'two') a
	   LEFT JOIN leader_election.acquire('d several', 'one') b ON true
	   LEFT JOIN leader_election.acquire('d several', 'two') c ON true
	   LEFT JOIN leader_election.acquire('d several', 'three') d ON true;
-- A renewal is no grant.
SELECT a.term, count(b) FROM leader_election.renew('d several', 3) a
	   LEFT JOIN leader_election.acquire('d several', 'two') b ON true GROUP BY 1;
-- What was granted and given back in one statement is another term afterwards.
SELECT r.released, r.again, a.term
  FROM (SELECT leader_election.release('d several', 3) AS released,
			   leader_election.release('d several', 3) AS again OFFSET 0) r,
	   LATERAL (SELECT term FROM leader_election.acquire('d several', CASE WHEN r.released THEN 'one' END)) a;
SELECT term, leader, reason FROM leader_election.history
 WHERE election = 'd several' ORDER BY term;
-- Nor is a request: who does not know the term is not told it for asking.
SELECT term FROM leader_election.acquire('d asked', 'one');
SELECT a.term
  FROM (SELECT leader_election.request_yield('d asked') AS "left" OFFSET 0) r,
	   LATERAL leader_election.acquire('d asked', CASE WHEN r.left > '0' THEN 'one' END) a;
-- It counts from the commit.
SELECT term, leader_election.is_leader('d uncommitted', term)
  FROM leader_election.acquire('d uncommitted', 'one');
SELECT leader_election.is_leader('d uncommitted', 1);
DO $$
BEGIN
	PERFORM leader_election.release('d uncommitted', 1);
	PERFORM term FROM leader_election.acquire('d uncommitted', 'one');
	ASSERT NOT leader_election.is_leader('d uncommitted', 2), 'not committed yet';
	ROLLBACK;
	ASSERT leader_election.is_leader('d uncommitted', 1), 'not given up after all';
	ASSERT NOT leader_election.is_leader('d uncommitted', 2), 'nor granted';
	PERFORM leader_election.release('d uncommitted', 1);
	COMMIT;
	ASSERT NOT leader_election.is_leader('d uncommitted', 1), 'given up';
	ASSERT (SELECT count(*) = 1 FROM leader_election.acquire('d uncommitted', 'one')), 'granted';
	COMMIT;
	ASSERT leader_election.is_leader('d uncommitted', 2), 'committed';
	ASSERT (SELECT count(*) = 0 FROM leader_election.acquire('d uncommitted', 'one')),
		'that was another transaction''s grant';
END
$$;
-- An error in the statement takes everything back.
\set VERBOSITY sqlstate
SELECT leader_election.release('d uncommitted', 2), 1 / (pg_backend_pid() - pg_backend_pid());
SELECT term, 1 / (term - term) FROM leader_election.acquire('d taken back', 'one');
\set VERBOSITY default
SELECT leader_election.is_leader('d uncommitted', 2);
SELECT count(*) FROM leader_election.election WHERE election = 'd taken back';

-- Many elections
SELECT count(*), sum(term) FROM generate_series(1, 200) i,
	   leader_election.acquire('d bulk ' || i, 'one');
SELECT count(*) FROM generate_series(1, 200) i
 WHERE leader_election.is_leader('d bulk ' || i, 1);
SELECT count(*), sum(term) FROM generate_series(1, 200) i,
	   leader_election.renew('d bulk ' || i, 1);
SELECT sum(leader_election.release('d bulk ' || i, 1)::int)
  FROM generate_series(1, 200) i;

--
-- Sitting out
--

-- Alone, it is elected by its own next call only.
SELECT term FROM leader_election.acquire('d out', 'one');
UPDATE leader_election.election SET lease_duration = '1 hour'
 WHERE election = 'd out';
SELECT leader_election.release('d out', 1);
SELECT state, waiting_for, candidates FROM leader_election.status
 WHERE election = 'd out';
SELECT term FROM leader_election.acquire('d out', 'one');
-- While another stands, that one is next, though it has to call.
SELECT term FROM leader_election.acquire('d out', 'two');
SELECT leader_election.release('d out', 2);
SELECT state, waiting_for, candidates FROM leader_election.status
 WHERE election = 'd out';
SELECT candidate, "position" FROM leader_election.candidates
 WHERE election = 'd out';
SELECT term FROM leader_election.acquire('d out', 'one');
SELECT term FROM leader_election.acquire('d out', 'two');
SELECT leader_election.release('d out', 3);
SELECT term FROM leader_election.acquire('d out', 'two');
SELECT term FROM leader_election.acquire('d out', 'one');
-- Nobody is in the way of one that was never there before.
SELECT leader_election.release('d out', 4);
SELECT term FROM leader_election.acquire('d out', 'three');
-- They are out until any candidate was elected.
SELECT leader_election.release('d out', 5);
SELECT leader_election.leave('d out', 'two');
SELECT term FROM leader_election.acquire('d out', 'three');
SELECT term FROM leader_election.acquire('d out', 'one');
-- Where the others have left, it need not wait.
SELECT leader_election.release('d out', 6);
SELECT term FROM leader_election.acquire('d out', 'one');
SELECT leader_election.leave('d out', 'three');
SELECT term FROM leader_election.acquire('d out', 'one');
-- A transfer is no reason to sit out.
SELECT term FROM leader_election.acquire('d out', 'two');
SELECT leader_election.transfer('d out', 7, 'two');
SELECT leader_election.leave('d out', 'two');
SELECT waiting_for FROM leader_election.status WHERE election = 'd out';
SELECT term FROM leader_election.acquire('d out', 'four');

--
-- Hold
--

SELECT term FROM leader_election.acquire('d hold', 'one');
UPDATE leader_election.election SET lease_duration = '1 hour'
 WHERE election = 'd hold';
SELECT leader_election.release('d hold', 1, '1 hour');
SELECT state, waiting_for, candidates FROM leader_election.status
 WHERE election = 'd hold';
SELECT not_before_at - acquired_at BETWEEN '59:59.99' AND '1:00:00.01' AS held
  FROM leader_election.lease WHERE election = 'd hold';
SELECT count(*) FROM leader_election.acquire('d hold', 'one');
SELECT count(*) FROM leader_election.acquire('d hold', 'two');
SELECT leader_election.join('d hold', 'session');
CALL leader_election.campaign('d hold', 'session', '0');
SELECT leader_election.leave('d hold');
SELECT state, waiting_for, candidates FROM leader_election.status
 WHERE election = 'd hold';
-- A hold that is over is none.
SELECT term FROM leader_election.acquire('d tick', 'one');
SELECT leader_election.release('d tick', 1, '0');
SELECT term FROM leader_election.acquire('d tick', 'one');
SELECT leader_election.release('d tick', 2, '1 microsecond');
SELECT term FROM leader_election.acquire('d tick', 'one');
SELECT leader_election.release('d tick', 3, NULL);
SELECT term FROM leader_election.acquire('d tick', 'one');
-- The longest one is accepted.
SELECT leader_election.release('d tick', 4, '366 days');
SELECT state, waiting_for FROM leader_election.status WHERE election = 'd tick';
-- A session's hold binds detached candidates as well.
SELECT leader_election.join('d tock', 'session');
SELECT leader_election.resign('d tock', '1 hour');
SELECT count(*) FROM leader_election.acquire('d tock', 'one');
SELECT state, waiting_for FROM leader_election.status WHERE election = 'd tock';
SELECT leader_election.leave('d tock');
SELECT election, term, leader, kind, reason, detail FROM leader_election.history
 WHERE election IN ('d hold', 'd tick', 'd tock') ORDER BY election, term;

--
-- leave()
--

SELECT term FROM leader_election.acquire('d leave', 'one');
SELECT count(*) FROM leader_election.acquire('d leave', 'two');
SELECT leader_election.leave('d leave', 'two');
SELECT leader_election.leave('d leave', 'two');
SELECT leader_election.leave('d leave', 'nobody');
SELECT candidate FROM leader_election.candidates WHERE election = 'd leave';
SELECT leader_election.release('d leave', 1);
SELECT leader_election.leave('d leave', 'one');
SELECT state, waiting_for, candidates FROM leader_election.status
 WHERE election = 'd leave';
-- It does not withdraw a session of that name, nor a session a detached one.
SELECT leader_election.join('d leave', 'session');
SELECT count(*) FROM leader_election.acquire('d leave', 'two');
SELECT leader_election.leave('d leave');
SELECT leader_election.leave('d leave');
SELECT candidate, kind FROM leader_election.candidates WHERE election = 'd leave';
SELECT leader_election.leave_all();
SELECT leader_election.leave('d leave', 'two'), leader_election.leave('d leave', 'two');

--
-- transfer(): the election is reserved for whom it was meant for.
--

SELECT term FROM leader_election.acquire('d transfer', 'one');
UPDATE leader_election.election SET lease_duration = '1 hour'
 WHERE election = 'd transfer';
SELECT count(*) FROM leader_election.acquire('d transfer', 'two');
SELECT count(*) FROM leader_election.acquire('d transfer', 'three');
SELECT leader_election.transfer('d transfer', 1, 'three');
SELECT leader_election.is_leader('d transfer', 1), leader_election.leader('d transfer');
CREATE TEMPORARY VIEW seat AS
	SELECT state, waiting_for, leader, kind, term, candidates
	  FROM leader_election.status WHERE election = 'd transfer';
TABLE seat;
SELECT candidate, kind, alive, leads, "position"
  FROM leader_election.candidates WHERE election = 'd transfer';
SELECT count(*) FROM leader_election.acquire('d transfer', 'one');
SELECT count(*) FROM leader_election.acquire('d transfer', 'two');
SELECT leader_election.join('d transfer', 'session');
CALL leader_election.campaign('d transfer', 'session', '0');
SELECT * FROM leader_election.renew('d transfer', 1);
SELECT leader_election.transfer('d transfer', 1, 'two'), leader_election.release('d transfer', 1);
SELECT leader_election.request_yield('d transfer');
TABLE seat;
SELECT term FROM leader_election.acquire('d transfer', 'three');

-- To a session: one change, no vacancy; and back, by the session.
SELECT leader_election.transfer('d transfer', 2, 'session');
TABLE seat;
SELECT leader_election.is_leader('d transfer'), leader_election.term('d transfer'),
	   leader_election.is_leader('d transfer', 3), leader_election.is_leader('d transfer', 2);
SELECT leader_election.transfer('d transfer', 'two');
TABLE seat;
SELECT leader_election.is_leader('d transfer'), leader_election.join('d transfer', 'session');
SELECT count(*) FROM leader_election.acquire('d transfer', 'three');
-- A candidate that has left is not waited for: the session leads, and is told.
SELECT leader_election.leave('d transfer', 'two');
CALL leader_election.wait_for_change('d transfer', NULL, NULL);
CALL leader_election.campaign('d transfer', 'session');
SELECT leader_election.is_leader('d transfer'), leader_election.term('d transfer');
-- Transferred, and taken in the same statement
SELECT term FROM (SELECT leader_election.transfer('d transfer', 'one') AS done OFFSET 0) t,
	   LATERAL leader_election.acquire('d transfer', CASE WHEN done THEN 'one' END);
SELECT term, leader, kind, reason, detail FROM leader_election.history
 WHERE election = 'd transfer' ORDER BY term;
SELECT leader_election.release('d transfer', 5);
SELECT leader_election.is_leader('d transfer'), leader_election.term('d transfer');
SELECT leader_election.leave('d transfer');

--
-- Session and detached candidates in one election
--

SELECT leader_election.join('d mixed', 'session');
UPDATE leader_election.election SET lease_duration = '1 hour'
 WHERE election = 'd mixed';
SELECT count(*) FROM leader_election.acquire('d mixed', 'one');
-- The session resigns and sits out; the detached candidate has to call.
SELECT leader_election.resign('d mixed');
SELECT state, waiting_for, candidates FROM leader_election.status
 WHERE election = 'd mixed';
SELECT leader_election.join('d mixed', 'session');
SELECT term FROM leader_election.acquire('d mixed', 'one');
SELECT leader_election.join('d mixed', 'session');
SELECT candidate, kind, alive, leads, "position"
  FROM leader_election.candidates WHERE election = 'd mixed';
-- It gives back, and the session is elected without a call.
SELECT leader_election.release('d mixed', 2);
SELECT leader_election.is_leader('d mixed'), leader_election.term('d mixed');
SELECT * FROM leader_election.acquire('d mixed', 'one');
-- Where a session stands, a detached caller elects that one.
SELECT leader_election.leave('d mixed');
SELECT term FROM leader_election.acquire('d mixed', 'one');
SELECT leader_election.transfer('d mixed', 4, 'nobody');
SELECT leader_election.join('d mixed', 'session');
SELECT leader_election.release('d mixed', 4, '1 microsecond');
CALL leader_election.wait_for_change('d mixed', NULL, NULL);
SELECT leader_election.is_leader('d mixed'), leader_election.term('d mixed');
-- The session ends, as far as others can see.
SELECT count(*) FROM (SELECT pg_advisory_unlock_all()) unlocked;
SELECT leader_election.is_leader('d mixed'), leader_election.is_leader('d mixed', 5);
SELECT term FROM leader_election.acquire('d mixed', 'one');
SELECT term, leader, kind, backend_pid = pg_backend_pid() AS here, reason, detail
  FROM leader_election.history WHERE election = 'd mixed' ORDER BY term;

--
-- request_yield()
--

SELECT term FROM leader_election.acquire('d yield', 'one');
UPDATE leader_election.election SET lease_duration = '1 hour'
 WHERE election = 'd yield';
SELECT term FROM leader_election.renew('d yield', 1);
CREATE TEMPORARY VIEW yield AS
	SELECT s.state, s.leader, s.term, l.yielding, l.successor
	  FROM leader_election.status s JOIN leader_election.lease l USING (election)
	 WHERE election = 'd yield';
SELECT count(*) FROM leader_election.acquire('d yield', 'two');
SELECT count(*) FROM leader_election.acquire('d yield', 'three');
SELECT deadline_mono AS deadline FROM leader_election.lease
 WHERE election = 'd yield' \gset
SELECT leader_election.request_yield('d yield') BETWEEN '3500 s' AND '1 hour' AS left;
TABLE yield;
-- It leads on, and its lease is renewed no more.
SELECT leader_election.is_leader('d yield', 1);
SELECT term, remaining_ms BETWEEN 3500000 AND 3600000 AS remaining_ms,
	   expires_at = (SELECT expires_at FROM leader_election.status
					  WHERE election = 'd yield') AS expires_at, yielding
  FROM leader_election.renew('d yield', 1, 77);
-- But its calls are signs of life.
SELECT progress FROM leader_election.candidate
 WHERE election = 'd yield' AND candidate = 'one';
SELECT deadline_mono = :deadline AS same FROM leader_election.lease
 WHERE election = 'd yield';
SELECT count(*) FROM leader_election.acquire('d yield', 'two');
-- The same again says nothing new; another successor does.
SELECT xmin AS version FROM leader_election.lease WHERE election = 'd yield' \gset
SELECT leader_election.request_yield('d yield') > '0' AS left;
SELECT leader_election.request_yield('d yield', NULL, NULL) > '0' AS left;
SELECT leader_election.request_yield('d yield', terminate => true) > '0' AS left;
SELECT xmin = :version AS same FROM leader_election.lease WHERE election = 'd yield';
SELECT leader_election.request_yield('d yield', 'two') > '0' AS left;
TABLE yield;
SELECT xmin AS version FROM leader_election.lease WHERE election = 'd yield' \gset
SELECT leader_election.request_yield('d yield', 'two', false) > '0' AS left;
SELECT xmin = :version AS same FROM leader_election.lease WHERE election = 'd yield';
SELECT leader_election.request_yield('d yield', 'three') > '0' AS left;
TABLE yield;
SELECT leader_election.is_leader('d yield', 1);
-- The leader gives back, and the successor follows, and nobody else.
SELECT leader_election.release('d yield', 1);
SELECT state, waiting_for FROM leader_election.status WHERE election = 'd yield';
SELECT count(*) FROM leader_election.acquire('d yield', 'two');
SELECT count(*) FROM leader_election.acquire('d yield', 'one');
SELECT term, yielding FROM leader_election.acquire('d yield', 'three');
-- Asked for nobody in particular after all; the leader that yielded sits out.
SELECT leader_election.request_yield('d yield', 'one') > '0' AS left;
SELECT leader_election.request_yield('d yield') > '0' AS left;
TABLE yield;
SELECT leader_election.release('d yield', 2, '1 microsecond');
SELECT waiting_for FROM leader_election.status WHERE election = 'd yield';
SELECT count(*) FROM leader_election.acquire('d yield', 'three');
SELECT term, yielding FROM leader_election.acquire('d yield', 'two');
-- A candidate that has left is not waited for.
SELECT leader_election.request_yield('d yield', 'three') > '0' AS left;
SELECT leader_election.leave('d yield', 'three');
SELECT leader_election.release('d yield', 3);
SELECT term, yielding FROM leader_election.acquire('d yield', 'one');
-- A transfer is recorded as one, even by a leader that was asked to yield.
SELECT leader_election.request_yield('d yield') > '0' AS left;
SELECT leader_election.transfer('d yield', 4, 'two');
SELECT term, yielding FROM leader_election.acquire('d yield', 'two');
-- The request ends with the term; nobody leads, nobody is asked.
SELECT leader_election.release('d yield', 5);
SELECT leader_election.request_yield('d yield') IS NULL AS vacant,
	   leader_election.request_yield('d yield', 'one') IS NULL AS to_one,
	   leader_election.request_yield('d yield', 'nobody') IS NULL AS to_nobody,
	   leader_election.request_yield('d yield', NULL, true) IS NULL AS terminate;
-- From a session to a detached candidate, and back
SELECT term FROM leader_election.acquire('d yield', 'one');
SELECT leader_election.join('d yield', 'session');
SELECT leader_election.request_yield('d yield', 'session') > '0' AS left;
SELECT leader_election.release('d yield', 6);
SELECT leader_election.is_leader('d yield'), leader_election.term('d yield');
SELECT leader_election.request_yield('d yield', 'two') > '0' AS left;
SELECT leader_election.is_leader('d yield');
SELECT term, yielding FROM leader_election.renew('d yield');
TABLE yield;
SELECT leader_election.resign('d yield');
SELECT state, waiting_for FROM leader_election.status WHERE election = 'd yield';
SELECT leader_election.join('d yield', 'session');
SELECT term, yielding FROM leader_election.acquire('d yield', 'two');
SELECT leader_election.leave('d yield');
SELECT term, leader, kind, reason, detail FROM leader_election.history
 WHERE election = 'd yield' ORDER BY term;

--
-- A lease whose deadline passed is over (G3).
--

SELECT term FROM leader_election.acquire('d over', 'one');
UPDATE leader_election.election SET lease_duration = '1 s'
 WHERE election = 'd over';
SELECT leader_election.release('d over', 1);
SELECT term FROM leader_election.acquire('d over', 'one');
CALL leader_election.wait_for_change('d over', 2, 'one');
SELECT leader_election.is_leader('d over', 2), leader_election.leader('d over'),
	   leader_election.release('d over', 2), leader_election.transfer('d over', 2, 'two'),
	   leader_election.request_yield('d over');
SELECT * FROM leader_election.renew('d over', 2);
UPDATE leader_election.election SET lease_duration = '1 hour'
 WHERE election = 'd over';
SELECT term FROM leader_election.acquire('d over', 'one');
SELECT * FROM leader_election.renew('d over', 2);
SELECT leader_election.is_leader('d over', 2), leader_election.is_leader('d over', 3);
-- A requested yield that runs out is one; the successor has to call.
UPDATE leader_election.election SET lease_duration = '2 s'
 WHERE election = 'd over';
SELECT leader_election.release('d over', 3);
SELECT term FROM leader_election.acquire('d over', 'one');
UPDATE leader_election.election SET lease_duration = '1 hour'
 WHERE election = 'd over';
SELECT count(*) FROM leader_election.acquire('d over', 'three');
SELECT count(*) FROM leader_election.acquire('d over', 'two');
SELECT leader_election.request_yield('d over', 'two') IS NOT NULL AS asked;
CALL leader_election.wait_for_change('d over', 4, 'one');
SELECT * FROM leader_election.renew('d over', 4);
SELECT count(*) FROM leader_election.acquire('d over', 'three');
SELECT count(*) FROM leader_election.acquire('d over', 'one');
SELECT term FROM leader_election.acquire('d over', 'two');
SELECT term, leader, reason FROM leader_election.history
 WHERE election = 'd over' ORDER BY term;

--
-- is_leader(election, term) in all states that a transaction can be in, for
-- either kind of leader.  It never writes (G9).
--

SELECT term FROM leader_election.acquire('d state', 'one');
SELECT leader_election.join('d state 2', 'session');
CREATE TEMPORARY VIEW look AS
	SELECT leader_election.is_leader('d state', 1) AS detached,
		   leader_election.is_leader('d state 2', 1) AS session,
		   leader_election.is_leader('d state', 2) AS another_term,
		   leader_election.is_leader('nothing', 1) AS nothing,
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
SELECT count(*) AS traces FROM pg_locks
 WHERE mode = 'SIReadLock' AND pid = pg_backend_pid() AND
	   relation IN (SELECT oid FROM pg_class
					 WHERE relnamespace = 'leader_election'::regnamespace);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE;
TABLE look;
COMMIT;
SET default_transaction_read_only = on;
TABLE look;
SET default_transaction_read_only = off;

-- In functions of all kinds
CREATE FUNCTION pg_temp.in_sql() RETURNS boolean LANGUAGE sql STABLE
	AS $$SELECT leader_election.is_leader('d state', 1)$$;
CREATE FUNCTION pg_temp.in_block() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	RETURN leader_election.is_leader('d state', 1);
EXCEPTION WHEN others THEN
	RETURN false;
END
$$;
SELECT pg_temp.in_sql(), pg_temp.in_block(), count(*)
  FROM generate_series(1, 1000) WHERE leader_election.is_leader('d state', 1);

-- Other default levels of isolation
SET default_transaction_isolation = 'repeatable read';
SELECT term, remaining_ms BETWEEN 10000 AND 15000 AS remaining_ms,
	   expires_at BETWEEN clock_timestamp() + '10 s' AND
						  clock_timestamp() + '15 s' AS expires_at
  FROM leader_election.acquire('d rr', 'one');
SELECT term, remaining_ms BETWEEN 10000 AND 15000 AS remaining_ms,
	   expires_at BETWEEN clock_timestamp() + '10 s' AND
						  clock_timestamp() + '15 s' AS expires_at
  FROM leader_election.renew('d rr', 1);
SELECT leader_election.is_leader('d rr', 1), leader_election.release('d rr', 1);
SELECT term FROM leader_election.acquire('d rr', 'one');
SELECT leader_election.request_yield('d rr') > '0' AS left;
SET default_transaction_isolation = 'serializable';
SELECT term, remaining_ms BETWEEN 10000 AND 15000 AS remaining_ms, yielding
  FROM leader_election.renew('d rr', 2);
SELECT leader_election.is_leader('d rr', 2), leader_election.release('d rr', 2);
SELECT leader_election.leave('d rr', 'one');
SELECT term FROM leader_election.acquire('d ser', 'one');
SELECT count(*) FROM leader_election.acquire('d ser', 'two');
SELECT leader_election.transfer('d ser', 1, 'two');
SELECT term FROM leader_election.acquire('d ser', 'two');
SELECT leader_election.is_leader('d ser', 2);
RESET default_transaction_isolation;

-- Nothing stays locked but this session's own lock.  (It was reset above, which
-- it shows for a while by another one, made from its process ID.)
SELECT mode, count(*) FROM pg_locks
 WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND
	   objid <> pg_backend_pid()::oid GROUP BY mode;
SELECT leader_election.leave_all();
SELECT count(*) FROM pg_locks
 WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND
	   objid <> pg_backend_pid()::oid;

-- Nobody is left who would be in the way of others.
SELECT count(*) FROM leader_election.status
 WHERE kind = 'detached' AND NOT leader_election.release(election, term);
SELECT count(*) FROM leader_election.candidates
 WHERE NOT leader_election.leave(election, candidate);
