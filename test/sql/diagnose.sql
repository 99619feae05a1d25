--
-- diagnose(): what is so, why, and what to do, in the states that one session
-- can make.  093_diagnose.pl has those that need more.
--

SET client_min_messages = warning;
SET datestyle = iso;
SET timezone = utc;
CREATE ROLE regress_le_owner;
CREATE ROLE regress_le_other;
GRANT USAGE ON SCHEMA leader_election TO regress_le_owner, regress_le_other;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO regress_le_owner;

-- Without what differs each time: times, durations, processes
CREATE FUNCTION pg_temp.mask(finding text) RETURNS text LANGUAGE sql AS $$
	SELECT regexp_replace(regexp_replace(regexp_replace(finding,
		'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00', 'TIME', 'g'),
		'([ (])\d+(\.\d)? (s|min|h|days)\M', '\1DURATION', 'g'),
		'process \d+', 'process PID', 'g')
$$;
CREATE FUNCTION pg_temp.diagnose(election text,
	OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record LANGUAGE sql AS $$
	SELECT severity, pg_temp.mask(finding), remedy
	  FROM leader_election.diagnose(election)
$$;
\pset format unaligned
\pset fieldsep '\n    '
\pset tuples_only on

-- What it cannot be asked
SELECT * FROM leader_election.diagnose(NULL);
SELECT * FROM leader_election.diagnose('');
SELECT * FROM leader_election.diagnose(repeat('x', 201));
SELECT * FROM leader_election.diagnose('nothing like it');

-- Nobody has ever led.
SET ROLE regress_le_owner;
SELECT leader_election.create_election('diagnosis');
SELECT * FROM pg_temp.diagnose('diagnosis');
SELECT * FROM leader_election.diagnose('diagnosys');

-- All is well: one row
SELECT leader_election.join('diagnosis', 'one');
SELECT * FROM pg_temp.diagnose('diagnosis');
SELECT leader_election.create_election('working diagnosis');
SELECT leader_election.join('working diagnosis', 'one', auto_renew => false) IS NOT NULL;
SELECT * FROM pg_temp.diagnose('working diagnosis');
SELECT leader_election.leave('working diagnosis');

-- It works for who may read status, and in any transaction.
SET ROLE regress_le_other;
BEGIN TRANSACTION READ ONLY ISOLATION LEVEL SERIALIZABLE;
SELECT severity FROM pg_temp.diagnose('diagnosis');
COMMIT;
SET ROLE regress_le_owner;

-- The quorum is for who follows.
SELECT leader_election.alter_election('diagnosis', quorum => 3);
SELECT * FROM pg_temp.diagnose('diagnosis');

-- Paused while it is led, and then vacant
SELECT leader_election.pause_election('diagnosis', 'new "disks"');
SELECT * FROM pg_temp.diagnose('diagnosis');
SELECT leader_election.resign('diagnosis', '1 h');
SELECT * FROM pg_temp.diagnose('diagnosis');
SELECT leader_election.resume_election('diagnosis');
SELECT leader_election.pause_election('diagnosis', duration => '1 h');
SELECT * FROM pg_temp.diagnose('diagnosis');
SELECT leader_election.resume_election('diagnosis');
RESET ROLE;
SELECT leader_election.pause_all('upgrade');
SELECT * FROM pg_temp.diagnose('diagnosis');
SELECT leader_election.resume_all();
SET ROLE regress_le_owner;

-- The hold
SELECT * FROM pg_temp.diagnose('diagnosis');
SELECT leader_election.leave('diagnosis');
SELECT leader_election.drop_election('diagnosis');

-- A quorum, and who sits out
SELECT leader_election.create_election('diagnosis', quorum => 2);
SELECT leader_election.join('diagnosis', 'one') IS NULL;
SELECT * FROM pg_temp.diagnose('diagnosis');
SELECT leader_election.alter_election('diagnosis', quorum => 1);
CALL leader_election.campaign('diagnosis', 'one');
SELECT leader_election.resign('diagnosis');
SELECT * FROM pg_temp.diagnose('diagnosis');

-- Drained
SELECT leader_election.drain_candidate('on*', 'diagnosis', 'old host');
SELECT * FROM pg_temp.diagnose('diagnosis');
RESET ROLE;
SELECT leader_election.drain_candidate('one');
SELECT leader_election.undrain_candidate('on*', 'diagnosis');
SELECT * FROM pg_temp.diagnose('diagnosis');
SELECT leader_election.undrain_candidate('one');
SET ROLE regress_le_owner;

-- Leadership that changes often
CALL leader_election.campaign('diagnosis', 'one');
SELECT leader_election.resign('diagnosis');
CALL leader_election.campaign('diagnosis', 'one');
SELECT leader_election.leave('diagnosis');
CALL leader_election.campaign('diagnosis', 'one');
SELECT * FROM pg_temp.diagnose('diagnosis');

-- Asked to yield
SELECT leader_election.request_yield('diagnosis') IS NOT NULL;
SELECT severity, finding FROM pg_temp.diagnose('diagnosis') WHERE finding ~ 'yield';
SELECT leader_election.leave('diagnosis');

-- Detached candidates: a seat that is reserved, one that must call, a run
SELECT leader_election.create_election('detached diagnosis');
SELECT term FROM leader_election.acquire('detached diagnosis', 'one') \gset
SELECT * FROM pg_temp.diagnose('detached diagnosis');
SELECT count(*) FROM leader_election.acquire('detached diagnosis', 'two');
SELECT leader_election.request_yield('detached diagnosis', 'two') IS NOT NULL;
SELECT * FROM pg_temp.diagnose('detached diagnosis');
SELECT leader_election.release('detached diagnosis', :term);
SELECT * FROM pg_temp.diagnose('detached diagnosis');
SELECT leader_election.leave('detached diagnosis', 'two');
SELECT term FROM leader_election.acquire('detached diagnosis', 'three') \gset
SELECT count(*) FROM leader_election.acquire('detached diagnosis', 'four');
SELECT leader_election.release('detached diagnosis', :term);
SELECT leader_election.leave('detached diagnosis', 'one');
SELECT * FROM pg_temp.diagnose('detached diagnosis');
SELECT term FROM leader_election.acquire('detached diagnosis', 'four', run => 'r1') \gset
SELECT leader_election.release('detached diagnosis', :term, done => true);
SELECT leader_election.leave('detached diagnosis', candidate)
  FROM leader_election.candidates WHERE election = 'detached diagnosis';
SELECT * FROM pg_temp.diagnose('detached diagnosis') LIMIT 1;

-- Delays
SELECT leader_election.create_election('delayed diagnosis', initial_delay => '1 h');
SELECT leader_election.join('delayed diagnosis', 'one') IS NULL;
SELECT * FROM pg_temp.diagnose('delayed diagnosis');
SELECT leader_election.leave('delayed diagnosis');

-- A candidate whose role may not stand any more
SELECT leader_election.create_election('private diagnosis', initial_delay => '1 h');
SELECT leader_election.join('private diagnosis', 'one') IS NULL;
SELECT leader_election.alter_election('private diagnosis', initial_delay => '0',
	candidate_role => 'pg_monitor');
SELECT * FROM pg_temp.diagnose('private diagnosis');
SELECT leader_election.leave('private diagnosis');

-- Groups: seats that were added, the cap, a seat that is withdrawn
SELECT leader_election.create_group('diagnosed', 1);
SELECT * FROM leader_election.join_group('diagnosed', 'one');
SELECT * FROM pg_temp.diagnose('diagnosed');
SELECT leader_election.alter_group('diagnosed', seats => 3);
SELECT * FROM pg_temp.diagnose('diagnosed');
SELECT * FROM pg_temp.diagnose('diagnosed/1');
SELECT * FROM pg_temp.diagnose('diagnosed/2');
SELECT * FROM leader_election.diagnose('diagnose');
SELECT * FROM leader_election.join_group('diagnosed', 'one');
SELECT * FROM pg_temp.diagnose('diagnosed');
SELECT * FROM pg_temp.diagnose('diagnosed/3');
SELECT leader_election.leave_all();
SELECT leader_election.drop_group('diagnosed');

-- Many names
SELECT leader_election.create_group('many', 11);
SELECT finding FROM pg_temp.diagnose('many') WHERE finding ~ 'stands';
SELECT leader_election.alter_group('many', seats => 13);
SELECT finding FROM pg_temp.diagnose('many') WHERE finding ~ 'stands';

-- A name that is hard to read
SELECT leader_election.create_election(E'it''s\n"odd"\\');
SELECT * FROM pg_temp.diagnose(E'it''s\n"odd"\\');

RESET ROLE;
SELECT leader_election.leave_all() >= 0;
DROP OWNED BY regress_le_owner, regress_le_other;
DROP ROLE regress_le_owner, regress_le_other;

-- The next test counts its terms from 1 again.
SET client_min_messages = error;
DROP EXTENSION leader_election;
CREATE EXTENSION leader_election;
