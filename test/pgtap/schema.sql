-- The parts of the schema that applications rely on, and a small election.
--
-- It runs with pg_prove in a database that has the extensions pgtap and
-- leader_election, and shows how an application can test its own elections:
-- calls that stand for election are refused inside a transaction block, so
-- there is none around this file; and lives_ok, throws_ok and the like run
-- their query in a subtransaction, so what stands is called directly, and its
-- result compared.

\unset ECHO
\set QUIET 1
\pset format unaligned
\pset tuples_only true
\pset pager off
\set ON_ERROR_STOP 1
SET client_min_messages = warning;

SELECT plan(205);

--
-- What there is
--

SELECT has_schema('leader_election');
SELECT has_view('leader_election', 'status', 'status is a view');
SELECT has_view('leader_election', 'candidates', 'candidates is a view');
SELECT has_view('leader_election', 'protocol', 'protocol is a view');
SELECT has_table('leader_election', 'history', 'history is a table');
SELECT is_empty(
	$$SELECT c.oid::regclass FROM pg_class m
		JOIN pg_class c ON c.oid IN (m.oid, m.reltoastrelid)
		WHERE m.relnamespace = 'leader_election'::regnamespace AND m.relkind = 'r'
			AND 'vacuum_truncate=off' <> ALL (coalesce(c.reloptions, '{}'))$$,
	'no vacuum locks a table, or what keeps its long values, to truncate it');

SELECT is_empty(
	$$SELECT adrelid::regclass, adnum FROM pg_attrdef d JOIN pg_class c ON c.oid = d.adrelid
		WHERE c.relnamespace = 'leader_election'::regnamespace$$,
	'no column has a default: the library says what a setting is that is not given');

SELECT has_function('leader_election', 'join',
	'{text,text,integer,bigint,jsonb,boolean}'::name[]);
SELECT has_function('leader_election', 'is_leader', '{text}'::name[]);
SELECT has_function('leader_election', 'term', '{text}'::name[]);
SELECT has_function('leader_election', 'remaining_ms', '{text}'::name[]);
SELECT has_function('leader_election', 'resign', '{text,interval}'::name[]);
SELECT has_function('leader_election', 'leave', '{text}'::name[]);
SELECT has_function('leader_election', 'leave_all', '{}'::name[]);
SELECT has_function('leader_election', 'transfer', '{text,text}'::name[]);
SELECT has_function('leader_election', 'acquire',
	'{text,text,integer,bigint,jsonb,text,integer,uuid}'::name[]);
SELECT has_function('leader_election', 'renew', '{text,bigint,bigint,jsonb}'::name[]);
SELECT has_function('leader_election', 'release',
	'{text,bigint,interval,boolean}'::name[]);
SELECT has_function('leader_election', 'transfer', '{text,bigint,text}'::name[]);
SELECT has_function('leader_election', 'leave', '{text,text}'::name[]);
SELECT has_function('leader_election', 'is_leader', '{text,bigint}'::name[]);
SELECT has_function('leader_election', 'request_yield',
	'{text,text,boolean}'::name[]);
SELECT has_function('leader_election', 'leader', '{text}'::name[]);
SELECT has_function('leader_election', 'diagnose', '{text}'::name[]);
SELECT has_function('leader_election', '_measure', '{}'::name[]);
SELECT has_function('leader_election', '_measure_server', '{}'::name[]);
SELECT has_function('leader_election', 'pause_election',
	'{text,text,interval,boolean}'::name[]);
SELECT has_function('leader_election', 'resume_election', '{text}'::name[]);
SELECT has_function('leader_election', 'pause_all', '{text}'::name[]);
SELECT has_function('leader_election', 'resume_all', '{}'::name[]);
SELECT has_function('leader_election', 'drain_candidate', '{text,text,text}'::name[]);
SELECT has_function('leader_election', 'undrain_candidate', '{text,text}'::name[]);

SELECT function_returns('leader_election', 'join', '{text,text,integer,bigint,jsonb,boolean}'::name[],
	'bigint');
SELECT function_returns('leader_election', 'is_leader', '{text}'::name[],
	'boolean');
SELECT function_returns('leader_election', 'term', '{text}'::name[],
	'bigint');
SELECT function_returns('leader_election', 'remaining_ms', '{text}'::name[],
	'bigint');
SELECT function_returns('leader_election', 'resign', '{text,interval}'::name[],
	'boolean');
SELECT function_returns('leader_election', 'leave', '{text}'::name[],
	'boolean');
SELECT function_returns('leader_election', 'leave_all', '{}'::name[],
	'integer');
SELECT function_returns('leader_election', 'transfer', '{text,text}'::name[],
	'boolean');
SELECT function_returns('leader_election', 'acquire', '{text,text,integer,bigint,jsonb,text,integer,uuid}'::name[],
	'setof leader_election.lease_grant');
SELECT function_returns('leader_election', 'renew', '{text,bigint,bigint,jsonb}'::name[],
	'setof leader_election.lease_grant');
SELECT function_returns('leader_election', 'release', '{text,bigint,interval,boolean}'::name[],
	'boolean');
SELECT function_returns('leader_election', 'transfer', '{text,bigint,text}'::name[],
	'boolean');
SELECT function_returns('leader_election', 'leave', '{text,text}'::name[],
	'boolean');
SELECT function_returns('leader_election', 'is_leader', '{text,bigint}'::name[],
	'boolean');
SELECT function_returns('leader_election', 'request_yield', '{text,text,boolean}'::name[],
	'interval');
SELECT function_returns('leader_election', 'leader', '{text}'::name[],
	'text');
SELECT function_returns('leader_election', 'diagnose', '{text}'::name[],
	'setof record');
SELECT function_returns('leader_election', 'resume_election', '{text}'::name[],
	'boolean');
SELECT function_returns('leader_election', 'resume_all', '{}'::name[],
	'boolean');
SELECT function_returns('leader_election', 'drain_candidate', '{text,text,text}'::name[],
	'void');
SELECT function_returns('leader_election', 'undrain_candidate', '{text,text}'::name[],
	'boolean');
SELECT is_procedure('leader_election', 'campaign',
	'campaign() is a procedure');
SELECT is_procedure('leader_election', 'wait_for_change',
	'wait_for_change() is a procedure');
SELECT volatility_is('leader_election', 'is_leader', '{text}'::name[], 'volatile');
SELECT volatility_is('leader_election', 'is_leader', '{text,bigint}'::name[], 'volatile');
SELECT volatility_is('leader_election', 'remaining_ms', '{text}'::name[], 'volatile');
-- Whoever calls by name, or with one argument less, relies on these.
SELECT is(pg_get_function_arguments(p.oid), arguments, format('parameters of %s()', name))
  FROM (VALUES
	('acquire', 8, 'election text, candidate text, rank integer DEFAULT NULL::integer, progress bigint DEFAULT NULL::bigint, metadata jsonb DEFAULT NULL::jsonb, run text DEFAULT NULL::text, attempts integer DEFAULT NULL::integer, request uuid DEFAULT NULL::uuid'),
	('renew', 4, 'election text, term bigint DEFAULT NULL::bigint, progress bigint DEFAULT NULL::bigint, metadata jsonb DEFAULT NULL::jsonb'),
	('release', 4, 'election text, term bigint, hold interval DEFAULT NULL::interval, done boolean DEFAULT false'),
	('transfer', 3, 'election text, term bigint, to_candidate text'),
	('leave', 2, 'election text, candidate text'),
	('remaining_ms', 1, 'election text'),
	('is_leader', 2, 'election text, term bigint'),
	('request_yield', 3, 'election text, to_candidate text DEFAULT NULL::text, terminate boolean DEFAULT false'),
	('create_election', 9, 'election text, strategy text DEFAULT ''race''::text, lease_duration interval DEFAULT NULL::interval, quorum integer DEFAULT 1, takeover_delay interval DEFAULT ''00:00:00''::interval, candidate_role name DEFAULT NULL::name, channel text DEFAULT NULL::text, preempt_delay interval DEFAULT ''00:00:00''::interval, initial_delay interval DEFAULT ''00:00:00''::interval'),
	('alter_election', 10, 'election text, strategy text DEFAULT NULL::text, lease_duration interval DEFAULT NULL::interval, quorum integer DEFAULT NULL::integer, takeover_delay interval DEFAULT NULL::interval, candidate_role name DEFAULT NULL::name, channel text DEFAULT NULL::text, preempt_delay interval DEFAULT NULL::interval, initial_delay interval DEFAULT NULL::interval, owner name DEFAULT NULL::name'),
	('set_run_done', 2, 'election text, run text'),
	('create_group', 11, 'group_name text, seats integer, strategy text DEFAULT ''race''::text, max_per_candidate integer DEFAULT 1, lease_duration interval DEFAULT NULL::interval, quorum integer DEFAULT 1, takeover_delay interval DEFAULT ''00:00:00''::interval, candidate_role name DEFAULT NULL::name, channel text DEFAULT NULL::text, preempt_delay interval DEFAULT ''00:00:00''::interval, initial_delay interval DEFAULT ''00:00:00''::interval'),
	('alter_group', 12, 'group_name text, seats integer DEFAULT NULL::integer, strategy text DEFAULT NULL::text, max_per_candidate integer DEFAULT NULL::integer, lease_duration interval DEFAULT NULL::interval, quorum integer DEFAULT NULL::integer, takeover_delay interval DEFAULT NULL::interval, candidate_role name DEFAULT NULL::name, channel text DEFAULT NULL::text, preempt_delay interval DEFAULT NULL::interval, initial_delay interval DEFAULT NULL::interval, owner name DEFAULT NULL::name'),
	('join_group', 6, 'group_name text, candidate text, rank integer DEFAULT NULL::integer, progress bigint DEFAULT NULL::bigint, metadata jsonb DEFAULT NULL::jsonb, auto_renew boolean DEFAULT NULL::boolean, OUT election text, OUT term bigint'),
	('acquire_any', 6, 'group_name text, candidate text, rank integer DEFAULT NULL::integer, progress bigint DEFAULT NULL::bigint, metadata jsonb DEFAULT NULL::jsonb, request uuid DEFAULT NULL::uuid, OUT election text, OUT term bigint, OUT remaining_ms bigint, OUT expires_at timestamp with time zone, OUT yielding boolean'),
	('diagnose', 1, 'election text, OUT severity text, OUT finding text, OUT remedy text'),
	('pause_election', 4, 'election text, reason text DEFAULT NULL::text, duration interval DEFAULT NULL::interval, vacate boolean DEFAULT false'),
	('pause_all', 1, 'reason text DEFAULT NULL::text'),
	('drain_candidate', 3, 'candidate text, election text DEFAULT NULL::text, reason text DEFAULT NULL::text'),
	('undrain_candidate', 2, 'candidate text, election text DEFAULT NULL::text')
	) AS f (name, args, arguments)
	LEFT JOIN pg_proc p ON proname = name AND pronargs = args AND
		pronamespace = 'leader_election'::regnamespace;

SELECT columns_are('leader_election', 'status',
	'{election,state,leader,term,since,remaining,waiting_for,candidates,quorum,strategy,kind,backend_pid,renewed_at,expires_at,paused_at,paused_by,pause_reason,resumes_at,run,run_done,done_at,owner,metadata,metadata_at}'::name[]);
SELECT columns_are('leader_election', 'candidates',
	'{election,candidate,position,leads,alive,drained,kind,rank,progress,joined_at,stood,metadata}'::name[]);
SELECT columns_are('leader_election', 'metrics',
	'{election,group_name,led,waiting_for,vacant_seconds,overdue_seconds,term,candidates,quorum,paused,changes_last_hour,lost_last_hour,lease_left_ratio,renewal_left_ratio,unannounced_seconds}'::name[]);
SELECT columns_are('leader_election', 'server_metrics',
	'{in_recovery,worker,locked_tables,standbys_needed,standbys_connected,standbys_unconfirmed_bytes,standbys_silent_seconds,notification_queue_ratio,worker_failing_seconds,worker_failures,worker_retry_seconds,worker_sqlstate,worker_failure}'::name[]);
SELECT columns_are('leader_election', 'history',
	'{election,term,leader,acquired_at,ended_at,reason,detail,kind,role,client_addr,backend_pid}'::name[]);
SELECT columns_are('leader_election', 'protocol',
	'{number,edition,version}'::name[]);
SELECT results_eq(
	$$SELECT edition, version FROM leader_election.protocol$$,
	$$SELECT 'extension'::text, extversion FROM pg_extension WHERE extname = 'leader_election'$$,
	'which edition this is, and of which version');
SELECT columns_are('leader_election', 'lease_grant',
	'{term,remaining_ms,expires_at,yielding}'::name[], 'a grant row');
SELECT col_type_is('leader_election', 'lease_grant', 'term', 'bigint', 'lease_grant.term');
SELECT col_type_is('leader_election', 'lease_grant', 'remaining_ms', 'bigint', 'lease_grant.remaining_ms');
SELECT col_type_is('leader_election', 'lease_grant', 'expires_at', 'timestamp with time zone', 'lease_grant.expires_at');
SELECT col_type_is('leader_election', 'lease_grant', 'yielding', 'boolean', 'lease_grant.yielding');
SELECT col_type_is('leader_election', 'status', 'term', 'bigint', 'status.term');
SELECT col_type_is('leader_election', 'status', 'metadata', 'jsonb', 'status.metadata');
SELECT col_type_is('leader_election', 'status', 'expires_at', 'timestamp with time zone', 'status.expires_at');
SELECT col_type_is('leader_election', 'status', 'remaining', 'interval', 'status.remaining');
SELECT col_type_is('leader_election', 'candidates', 'rank', 'integer', 'candidates.rank');
SELECT col_type_is('leader_election', 'candidates', 'progress', 'bigint', 'candidates.progress');
SELECT col_type_is('leader_election', 'candidates', 'drained', 'boolean', 'candidates.drained');
SELECT col_type_is('leader_election', 'candidates', 'stood', 'interval', 'candidates.stood');
SELECT col_is_pk('leader_election', 'history', '{election,term}'::name[], 'a term is never given twice');

--
-- Privileges: a role that gets nothing, one that observes, one that stands
--

CREATE ROLE le_pgtap_nobody;
CREATE ROLE le_pgtap_observer;
CREATE ROLE le_pgtap_candidate;
GRANT USAGE ON SCHEMA leader_election TO le_pgtap_observer, le_pgtap_candidate;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO le_pgtap_candidate;

SELECT schema_privs_are('leader_election', 'le_pgtap_nobody', '{}'::name[]);
SELECT schema_privs_are('leader_election', 'le_pgtap_observer', '{USAGE}'::name[]);

SELECT function_privs_are('leader_election', 'is_leader', '{text}',
	'le_pgtap_observer', '{EXECUTE}', 'an observer may call is_leader()');
SELECT function_privs_are('leader_election', 'is_leader', '{text,bigint}',
	'le_pgtap_observer', '{EXECUTE}', 'an observer may call is_leader() with a term');
SELECT function_privs_are('leader_election', 'remaining_ms', '{text}',
	'le_pgtap_observer', '{EXECUTE}', 'an observer may call remaining_ms()');
SELECT function_privs_are('leader_election', 'leader', '{text}',
	'le_pgtap_observer', '{EXECUTE}', 'an observer may call leader()');
SELECT function_privs_are('leader_election', 'assert_leader', '{text}',
	'le_pgtap_observer', '{EXECUTE}', 'an observer may call assert_leader()');
SELECT function_privs_are('leader_election', 'diagnose', '{text}',
	'le_pgtap_observer', '{EXECUTE}', 'an observer may call diagnose()');
SELECT function_privs_are('leader_election', name, '{}',
	'le_pgtap_observer', '{EXECUTE}', format('an observer may call %s()', name))
  FROM (VALUES ('_measure'::name), ('_measure_server')) AS f (name);
SELECT function_privs_are('leader_election', name, args,
	'le_pgtap_observer', '{}', format('an observer may not call %s()', name))
  FROM (VALUES ('join', '{text,text,integer,bigint,jsonb,boolean}'::name[]),
			   ('resign', '{text,interval}'),
			   ('leave', '{text}'), ('leave_all', '{}'),
			   ('transfer', '{text,text}'),
			   ('acquire', '{text,text,integer,bigint,jsonb,text,integer,uuid}'),
			   ('renew', '{text,bigint,bigint,jsonb}'),
			   ('release', '{text,bigint,interval,boolean}'),
			   ('transfer', '{text,bigint,text}'), ('leave', '{text,text}'),
			   ('request_yield', '{text,text,boolean}'),
			   ('pause_election', '{text,text,interval,boolean}'),
			   ('pause_all', '{text}'),
			   ('drain_candidate', '{text,text,text}'),
			   ('undrain_candidate', '{text,text}'),
			   ('assert_leader', '{text,bigint}')) AS f (name, args);
SELECT function_privs_are('leader_election', name, args,
	'le_pgtap_candidate', '{EXECUTE}', format('a candidate may call %s()', name))
  FROM (VALUES ('join', '{text,text,integer,bigint,jsonb,boolean}'::name[]),
			   ('resign', '{text,interval}'),
			   ('leave', '{text}'), ('leave_all', '{}'),
			   ('transfer', '{text,text}'),
			   ('acquire', '{text,text,integer,bigint,jsonb,text,integer,uuid}'),
			   ('renew', '{text,bigint,bigint,jsonb}'),
			   ('release', '{text,bigint,interval,boolean}'),
			   ('transfer', '{text,bigint,text}'), ('leave', '{text,text}'),
			   ('request_yield', '{text,text,boolean}'),
			   ('pause_election', '{text,text,interval,boolean}'),
			   ('pause_all', '{text}'),
			   ('drain_candidate', '{text,text,text}'),
			   ('undrain_candidate', '{text,text}'),
			   ('assert_leader', '{text,bigint}')) AS f (name, args);
SELECT table_privs_are('leader_election', name, 'le_pgtap_candidate', privs,
	format('a candidate may not write %s', name))
  FROM (VALUES ('election', '{SELECT}'::name[]), ('history', '{SELECT}'),
			   ('status', '{SELECT}'), ('candidates', '{SELECT}'),
			   ('metrics', '{SELECT}'), ('protocol', '{SELECT}'),
			   ('server_metrics', '{SELECT}'),
			   ('lease', '{}'), ('candidate', '{}'), ('epoch', '{}'), ('dropped', '{}'),
			   ('pause_all', '{}'), ('drain', '{SELECT}')) AS t (name, privs);

SET ROLE le_pgtap_nobody;
SELECT throws_ok($$SELECT leader_election.is_leader('pgtap')$$, '42501', NULL,
	'nothing without USAGE of the schema');
SET ROLE le_pgtap_observer;
SELECT throws_ok($$SELECT leader_election.leave('pgtap')$$, '42501', NULL,
	'no candidacy without EXECUTE');
SELECT is(leader_election.leader('pgtap'), NULL, 'but it may look');
RESET ROLE;

--
-- A small election
--

SELECT is(leader_election.leader('pgtap'), NULL, 'nobody leads at first');
SELECT is(leader_election.is_leader('pgtap'), false, 'nor does this session');

SELECT is(leader_election.join('pgtap', 'me', 7, 42, '{"zone": "a"}'), 1::bigint,
	'the first who stands leads, in term 1');
SELECT ok(leader_election.is_leader('pgtap'), 'and knows it');
SELECT is(leader_election.term('pgtap'), 1::bigint, 'and its term');
SELECT cmp_ok(leader_election.remaining_ms('pgtap'), '>', 0::bigint, 'and for how long');
SELECT is(leader_election.leader('pgtap'), 'me', 'and so does everybody');
SELECT results_eq(
	$$SELECT leader, state, term, kind, backend_pid, metadata, candidates, quorum
		FROM leader_election.status WHERE election = 'pgtap'$$,
	$$VALUES ('me', 'led', 1::bigint, 'session', pg_backend_pid(), '{"zone": "a"}'::jsonb, 1, 1)$$,
	'the status');
SELECT results_eq(
	$$SELECT candidate, kind, rank, progress, metadata, alive, leads, "position"
		FROM leader_election.candidates WHERE election = 'pgtap'$$,
	$$VALUES ('me', 'session', 7, 42::bigint, '{"zone": "a"}'::jsonb, true, true, 1)$$,
	'the candidates');
SELECT results_eq(
	$$SELECT term, yielding, remaining_ms > 0 FROM leader_election.status,
		LATERAL (SELECT state = 'yielding' AS yielding,
			extract(epoch FROM remaining) * 1000 AS remaining_ms) r
		WHERE election = 'pgtap'$$,
	$$VALUES (1::bigint, false, true)$$, 'the lease');
SELECT cmp_ok(remaining_ms, '>', 0::bigint, 'it can be renewed')
  FROM leader_election.renew('pgtap');

-- Inside a transaction block, as everything in throws_ok() is, nobody can
-- stand: that is an error, and changes nothing.
SELECT throws_ok($$SELECT leader_election.join('pgtap', 'me')$$, '25001', NULL,
	'join() is refused in a transaction block');
SELECT throws_ok($$SELECT leader_election.resign('pgtap')$$, '25001', NULL,
	'so is resign()');
SELECT throws_ok($$CALL leader_election.campaign('pgtap', 'me')$$, '25001', NULL,
	'and campaign()');
SELECT lives_ok($$SELECT leader_election.is_leader('pgtap')$$,
	'is_leader() is not');
SELECT ok(leader_election.is_leader('pgtap'), 'and it leads still');

-- Other errors can only be had outside of one. (psql shows them as well.)
\set ON_ERROR_STOP 0
\set VERBOSITY sqlstate
SELECT leader_election.transfer('pgtap', 'nobody');
SELECT is(:'SQLSTATE'::text, 'LE005', 'a transfer to nobody');
SELECT leader_election.join('pgtap', 'me too');
SELECT is(:'SQLSTATE'::text, 'LE004', 'a second name for the same session');
SELECT leader_election.leave('no such election');
SELECT is(:'SQLSTATE'::text, 'LE003', 'an election that does not exist');
\set ON_ERROR_STOP 1

SELECT is(leader_election.resign('pgtap'), true, 'the leader resigns');
SELECT is(leader_election.is_leader('pgtap'), false, 'and leads no more');
SELECT is(leader_election.leader('pgtap'), NULL, 'and neither does anybody else');
SELECT is(leader_election.resign('pgtap'), false, 'who does not lead cannot resign');
SELECT is_empty($$SELECT * FROM leader_election.history WHERE election = 'pgtap' AND ended_at IS NULL$$,
	'no term goes on');
CALL leader_election.campaign('pgtap', 'me', '1 min') \gset
SELECT is(:term, 2, 'it may come back, in a new term');
SELECT results_eq(
	$$SELECT term, leader, reason FROM leader_election.history
		WHERE election = 'pgtap' ORDER BY term$$,
	$$VALUES (1::bigint, 'me' COLLATE "C", 'resigned' COLLATE "C"), (2, 'me', NULL)$$,
	'the history');
SELECT is(leader_election.leave_all(), 1, 'it leaves its one election');
SELECT is(leader_election.leave('pgtap'), false, 'and is gone');

--
-- The same without a session: a lease, and the term that goes with it
--

SELECT is(term, 3::bigint, 'acquire() gives the next term')
  FROM leader_election.acquire('pgtap', 'pooled', 3, 4, '{"zone": "b"}');
SELECT ok(leader_election.is_leader('pgtap', 3), 'which leads');
SELECT ok(NOT leader_election.is_leader('pgtap'), 'and this session does not');
SELECT results_eq(
	$$SELECT leader, state, term, kind, backend_pid, metadata, candidates
		FROM leader_election.status WHERE election = 'pgtap'$$,
	$$VALUES ('pooled', 'led', 3::bigint, 'detached', NULL::integer, '{"zone": "b"}'::jsonb, 1)$$,
	'the status');
SELECT is(count(*), 0::bigint, 'nobody else is granted it')
  FROM leader_election.acquire('pgtap', 'another');
SELECT cmp_ok(remaining_ms, '>', 0::bigint, 'whoever knows the term renews')
  FROM leader_election.renew('pgtap', 3);
SELECT is(count(*), 0::bigint, 'and who knows an old one does not')
  FROM leader_election.renew('pgtap', 2);
SELECT cmp_ok(leader_election.request_yield('pgtap', 'another'), '>', '0'::interval,
	'it is asked to yield');
SELECT is(yielding, true, 'and is told so') FROM leader_election.renew('pgtap', 3);
SELECT is(leader_election.release('pgtap', 3), true, 'it gives back');
SELECT is(leader_election.release('pgtap', 3), false, 'once');
SELECT is(waiting_for, 'reserved for another', 'the election is kept')
  FROM leader_election.status WHERE election = 'pgtap';
SELECT is(term, 4::bigint, 'for whom it was meant for')
  FROM leader_election.acquire('pgtap', 'another');
SELECT is(leader_election.transfer('pgtap', 4, 'pooled'), true, 'who hands it back');
SELECT throws_ok($$SELECT leader_election.acquire('pgtap', 'pooled')$$, '25001', NULL,
	'acquire() is refused in a transaction block');
SELECT lives_ok($$SELECT leader_election.is_leader('pgtap', 4)$$,
	'is_leader() with a term is not');
SELECT ok(NOT leader_election.is_leader('pgtap', NULL), 'no term, no leader');
SELECT is(leader_election.leave('pgtap', 'pooled'), true, 'one leaves');
SELECT is(leader_election.leave('pgtap', 'another'), true, 'and so does the other');
SELECT results_eq(
	$$SELECT term, leader, kind, reason, detail FROM leader_election.history
		WHERE election = 'pgtap' AND term > 2 ORDER BY term$$,
	$$VALUES (3::bigint, 'pooled' COLLATE "C", 'detached' COLLATE "C", 'yielded' COLLATE "C", NULL),
		(4, 'another', 'detached', 'transferred', 'to pooled')$$,
	'the history');

DROP OWNED BY le_pgtap_observer, le_pgtap_candidate;
DROP ROLE le_pgtap_nobody, le_pgtap_observer, le_pgtap_candidate;
SELECT * FROM finish();
