-- From the extension to the portable edition, in one transaction:
--
--	psql -v owner=ROLE -f extension_to_portable.sql
--
-- As a superuser, in the database, with portable.sql in the same folder: before a
-- database moves to a server on which no extension can be installed.  The role
-- owner, which needs CREATE on the database, owns the portable edition then, and
-- its functions run as it; without -v owner= that is the superuser.
--
-- What the portable edition has not is refused, by name, before anything is
-- changed.  Elections, terms, runs and history are kept, and so is who may do
-- what.  It changes all or nothing, however it ends.
--
-- Who leads, as in portable_to_extension.sql: the tables are locked, the leases
-- come over as another server's, and the first call begins an epoch above all
-- terms, and a grace of one lease.  In it the leader that is detached goes on by
-- its next renew(); a session stands again by its next join().
--
-- takeover_delay is 1 s at least then, as is this edition's default: the wall
-- clock, which counts from now on, may leap.

\set ON_ERROR_STOP on
\if :{?owner}
\else
SELECT current_user AS owner \gset
\endif

-- Whatever is the default: what is read after a lock must be of after the lock.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;

SET LOCAL standard_conforming_strings = on;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = warning;

DO $$
BEGIN
	IF NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) THEN
		RAISE EXCEPTION 'only a superuser can go from the extension to the portable edition'
			USING ERRCODE = 'insufficient_privilege';
	END IF;
	IF to_regclass('leader_election_internal.edition') IS NOT NULL THEN
		RAISE EXCEPTION 'this database has the portable edition already'
			USING ERRCODE = 'duplicate_schema', HINT = 'There is nothing to do.';
	END IF;
	IF NOT EXISTS (SELECT 1 FROM pg_extension e WHERE e.extname = 'leader_election') THEN
		RAISE EXCEPTION 'this database does not have the extension "leader_election"'
			USING ERRCODE = 'undefined_object', HINT = 'If it is to have the portable edition: psql -f portable.sql.';
	END IF;
	IF (SELECT p.number FROM leader_election.protocol p) <> 1 THEN
		RAISE EXCEPTION 'the extension of this database is newer than this file'
			USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Take this file from the newer version.';
	END IF;
END
$$;

-- As update scripts do, this waits for calls under way, and those that come
-- later are busy (55P03), and find other functions then.
DO $$
DECLARE
	until CONSTANT timestamptz := clock_timestamp() + interval '10 s';
	fenced text;
BEGIN
	LOOP
		BEGIN
			SET LOCAL lock_timeout = '50ms';
			FOR fenced IN SELECT format('%s IN %s MODE', c.oid::regclass,
						CASE WHEN bool_or(t.tgconstraint <> 0) THEN 'ACCESS EXCLUSIVE' ELSE 'SHARE ROW EXCLUSIVE' END)
					FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
					WHERE t.tgfoid = 'leader_election.only_leader()'::regprocedure AND c.relkind IN ('r', 'p')
					GROUP BY c.oid ORDER BY 1 LOOP
				EXECUTE 'LOCK TABLE ' || fenced;
			END LOOP;
			LOCK TABLE leader_election.protocol, leader_election.election, leader_election.election_group,
				leader_election.pause_all, leader_election.drain, leader_election.lease, leader_election.candidate,
				leader_election.history, leader_election.announced, leader_election.epoch, leader_election.dropped
				IN ACCESS EXCLUSIVE MODE;
			SET LOCAL lock_timeout = '1s';
			EXIT;
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			IF clock_timestamp() > until THEN
				RAISE EXCEPTION 'the tables of the extension are busy'
					USING ERRCODE = 'lock_not_available',
						HINT = 'Run this again. If that goes on, look in pg_locks for a transaction that is open.';
			END IF;
			PERFORM pg_sleep(0.05 * random());
		END;
	END LOOP;
END
$$;

DO $$
DECLARE
	missing text;
BEGIN
	SELECT string_agg(x.what, E'\n' ORDER BY x.what) INTO missing FROM (
		SELECT format('strategy "%s" of election "%s": leader_election.alter_election()', e.strategy, e.election)
		FROM leader_election.election e WHERE e.strategy <> 'race'
		UNION ALL
		SELECT format('preempt_delay or initial_delay of election "%s": leader_election.alter_election()', e.election)
		FROM leader_election.election e WHERE e.preempt_delay > '0' OR e.initial_delay > '0'
		UNION ALL
		SELECT format('pause of election "%s": leader_election.resume_election()', e.election)
		FROM leader_election.election e WHERE e.paused_at IS NOT NULL
		UNION ALL
		SELECT format('group "%s": leader_election.drop_group()', g.group_name) FROM leader_election.election_group g
		UNION ALL
		SELECT 'pause of all elections: leader_election.resume_all()' FROM leader_election.pause_all
		UNION ALL
		SELECT format('drain of candidate "%s": leader_election.undrain_candidate()', d.candidate)
		FROM leader_election.drain d) x (what);
	IF missing IS NOT NULL THEN
		RAISE EXCEPTION 'the portable edition has not all that this database uses'
			USING ERRCODE = 'feature_not_supported', DETAIL = missing,
				HINT = 'End these by the functions that are named, and run this again.';
	END IF;
END
$$;

-- Triggers are made anew, by a superuser, and what they name may be other roles'.  A
-- literal of an array of a domain in WHEN, say, runs that domain's CHECK then.
DO $$
DECLARE
	strange text;
BEGIN
	SELECT string_agg(DISTINCT format('trigger %I on %s: %s', t.tgname, t.tgrelid::regclass,
		pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid)), E'\n') INTO strange
	FROM pg_trigger t JOIN pg_depend d ON (d.classid, d.objid) = ('pg_trigger'::regclass, t.oid)
	WHERE t.tgfoid = 'leader_election.only_leader()'::regprocedure
		AND t.tgparentid = 0
		AND (d.refclassid, d.refobjid) NOT IN (('pg_class'::regclass, t.tgrelid), ('pg_proc'::regclass, t.tgfoid));
	IF strange IS NOT NULL THEN
		RAISE EXCEPTION 'triggers that call leader_election.only_leader() depend on objects of others'
			USING ERRCODE = 'object_not_in_prerequisite_state', DETAIL = strange,
				HINT = 'Drop these triggers, run this again, and make them anew.';
	END IF;
END
$$;

-- What is to be as it was, as in portable_to_extension.sql.  The extension's owner,
-- a superuser, needs no grants.
CREATE TEMP TABLE leader_election_afterwards ON COMMIT DROP AS
	WITH objects AS (
		SELECT 'SCHEMA' AS kind, 'leader_election' AS name, n.nspowner AS owner,
			coalesce(n.nspacl, acldefault('n', n.nspowner)) AS acl
		FROM pg_namespace n WHERE n.nspname = 'leader_election'
		UNION ALL
		SELECT 'TABLE', c.oid::regclass::text, c.relowner, coalesce(c.relacl, acldefault('r', c.relowner))
		FROM pg_class c WHERE c.relnamespace = 'leader_election'::regnamespace
			AND c.relname IN ('status', 'candidates', 'history', 'election', 'election_group',
				'metrics', 'server_metrics', 'drain', 'protocol')
		UNION ALL
		SELECT 'ROUTINE', p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
		FROM pg_proc p WHERE p.pronamespace = 'leader_election'::regnamespace
	)
	SELECT 1 AS step, format('REVOKE ALL ON %s %s FROM PUBLIC', o.kind, o.name) AS command,
		NULL::oid AS fenced FROM objects o
	UNION ALL
	SELECT 2, format('GRANT %s ON %s %s TO %s%s', a.privilege_type, o.kind, o.name,
		CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
		CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END), NULL
	FROM objects o, aclexplode(o.acl) a
	WHERE a.privilege_type IN ('USAGE', 'SELECT', 'EXECUTE') AND a.grantee <> o.owner
	UNION ALL
	SELECT 3, format('DROP TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass), t.tgrelid
	FROM pg_trigger t
	WHERE t.tgfoid = 'leader_election.only_leader()'::regprocedure AND t.tgparentid = 0 AND t.tgconstraint <> 0
	UNION ALL
	SELECT 4, CASE WHEN t.tgconstraint <> 0 THEN pg_get_triggerdef(t.oid)
		ELSE replace(left(pg_get_triggerdef(t.oid), 14), 'CREATE', 'CREATE OR REPLACE') || substr(pg_get_triggerdef(t.oid), 15) END,
		t.tgrelid
	FROM pg_trigger t
	WHERE t.tgfoid = 'leader_election.only_leader()'::regprocedure AND t.tgparentid = 0
	UNION ALL
	SELECT 5, format('ALTER TABLE %s %s TRIGGER %I', t.tgrelid::regclass,
		CASE t.tgenabled WHEN 'A' THEN 'ENABLE ALWAYS' WHEN 'R' THEN 'ENABLE REPLICA' ELSE 'DISABLE' END, t.tgname), t.tgrelid
	FROM pg_trigger t
	WHERE t.tgfoid = 'leader_election.only_leader()'::regprocedure AND t.tgenabled <> 'O';

-- Until here, a trigger that has come or changed since its table was to be locked has
-- not been looked at: on a view, say, which is not locked, or on a new table.  The text
-- that will be run can change no more, and only WHEN has an expression.
DO $$
DECLARE
	strange text;
BEGIN
	SELECT string_agg(a.command, E'\n') INTO strange FROM leader_election_afterwards a
		WHERE a.step = 4 AND a.command LIKE '% WHEN (%'
		AND NOT EXISTS (SELECT 1 FROM pg_locks k
			WHERE k.locktype = 'relation' AND k.relation = a.fenced AND k.pid = pg_backend_pid() AND k.granted
			AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
			AND k.mode IN ('ShareRowExclusiveLock', 'AccessExclusiveLock'));
	IF strange IS NOT NULL THEN
		RAISE EXCEPTION 'triggers that call leader_election.only_leader() have a condition, on what cannot be locked'
			USING ERRCODE = 'object_not_in_prerequisite_state', DETAIL = strange,
				HINT = 'Drop these triggers, run this again, and make them anew.';
	END IF;
END
$$;

-- The tables and the trigger function go aside, out of the extension, which is
-- dropped without CASCADE: a view or a function of somebody's that needs it is
-- named then, and nothing has happened.  (A session that has loaded the library
-- knows its settings.)
LOAD 'leader_election';
CREATE SCHEMA leader_election_moved;
DO $$
DECLARE
	command text;
BEGIN
	FOR command IN
		SELECT format(c.command, o.name)
		FROM unnest(ARRAY['TABLE leader_election.election', 'TABLE leader_election.lease',
			'TABLE leader_election.history', 'TABLE leader_election.dropped', 'TABLE leader_election.epoch',
			'FUNCTION leader_election.only_leader()']) o (name),
			unnest(ARRAY['ALTER EXTENSION leader_election DROP %s', 'ALTER %s SET SCHEMA leader_election_moved'])
				WITH ORDINALITY c (command, step) ORDER BY c.step
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;
DROP EXTENSION leader_election;

SET LOCAL ROLE :"owner";
\set anyway 1
\set in_transaction 1
\ir portable.sql
RESET ROLE;

-- A row keeps the role that it means by its OID, where that was written; the
-- portable edition knows roles by their names.
CREATE FUNCTION pg_temp.role_of(name, text) RETURNS name LANGUAGE sql AS $$
	SELECT coalesce((SELECT r.rolname FROM pg_roles r WHERE $2 = concat_ws('/', r.oid,
		(SELECT system_identifier FROM pg_control_system()), 'leader_election_moved.lease'::regclass::oid, $1)), $1)
$$;

INSERT INTO leader_election.election (election, strategy, lease_duration, quorum, takeover_delay,
		preempt_delay, initial_delay, candidate_role, channel, owner)
	SELECT e.election, e.strategy, leader_election_internal.seconds(e.lease_duration), e.quorum,
		leader_election_internal.seconds(greatest(e.takeover_delay, '1 s')),
		e.preempt_delay, e.initial_delay, pg_temp.role_of(e.candidate_role, e.candidate_role_id), e.channel,
		pg_temp.role_of(e.owner, e.owner_id)
	FROM leader_election_moved.election e;
INSERT INTO leader_election.lease (election, term, after_term, previous_term, leader, kind, session_id,
		session_started, backend_pid, role, rank, progress, metadata, metadata_at, acquired_at, renewed_at,
		expires_at, duration, identity, not_before_at, held,
		run, run_role, run_granted, run_attempts, run_done, done_at)
	SELECT l.election, l.term, coalesce(l.after_term, 0), l.previous_term, l.leader, l.kind, l.session_id,
		CASE WHEN l.kind = 'session' THEN timestamptz '-infinity' END, l.backend_pid, pg_temp.role_of(l.role, l.role_id),
		l.rank, l.progress, l.metadata, l.metadata_at, l.acquired_at, l.renewed_at,
		l.expires_at, l.duration * interval '1 us', CASE WHEN l.leader IS NOT NULL THEN 'extension' END,
		least(l.not_before_at, clock_timestamp() + l.not_before_for * interval '1 us'), l.held,
		l.run, pg_temp.role_of(l.run_role, l.run_role_id), l.run_granted, l.run_attempts, l.run_done, l.done_at
	FROM leader_election_moved.lease l;
INSERT INTO leader_election.history (election, term, leader, acquired_at, ended_at, reason, detail,
		kind, role, client_addr, backend_pid)
	SELECT h.election, h.term, h.leader, h.acquired_at, h.ended_at, h.reason, h.detail,
		h.kind, h.role, h.client_addr, h.backend_pid
	FROM leader_election_moved.history h;
INSERT INTO leader_election.dropped (election, term)
	SELECT d.election, d.term FROM leader_election_moved.dropped d;

-- No server is this one: the first call begins an epoch.
INSERT INTO leader_election.server (started_at, database, lease_table, identity, first_seen_at, epoch,
		dropped_term, lease_duration, history_retention, auto_create)
	SELECT '-infinity', 0, 0, 'extension', clock_timestamp(), max(p.epoch),
		greatest(max(p.dropped_term), (SELECT max(l.term) FROM leader_election.lease l)),
		leader_election_internal.seconds(current_setting('leader_election.lease_duration')::interval),
		current_setting('leader_election.history_retention')::interval,
		current_setting('leader_election.auto_create')::boolean
	FROM leader_election_moved.epoch p;

DO $$
DECLARE
	command text;
BEGIN
	FOR command IN SELECT a.command FROM leader_election_afterwards a ORDER BY a.step LOOP
		EXECUTE command;
	END LOOP;
END
$$;

DROP FUNCTION leader_election_moved.only_leader();
DROP TABLE leader_election_moved.election, leader_election_moved.lease, leader_election_moved.history,
	leader_election_moved.dropped, leader_election_moved.epoch;
DROP SCHEMA leader_election_moved;

COMMIT;
