-- From the portable edition to the extension, in one transaction:
--
--	psql -f portable_to_extension.sql
--
-- As a superuser (CREATE EXTENSION asks for one, and triggers of all owners are
-- made anew), in the database, on a server that has the extension's files.
-- Elections, terms, runs and history are kept, and so is who may do what.  It
-- changes all or nothing, however it ends; run again, it says that it is done.
--
-- Who leads:
--
-- * All tables of the portable edition are locked in ACCESS EXCLUSIVE mode first.
--	 So every call that was granted something has committed, and whoever calls
--	 meanwhile waits, finds no table then (42P01), and has to call again, as
--	 clients do.  A fenced transaction that is open is waited for.
--
-- * The leases come over as those of another incarnation, "portable".  So the
--	 extension begins an epoch, above all terms, and elects nobody before every
--	 lease is over that was granted before the lock.  In this grace the leader
--	 that is detached goes on by its next renew(), in a new term.
--
-- * A session's leadership ends here.  The extension cannot tell whether that
--	 session lives, for it holds none of its locks.  It stands again by its next
--	 join(), and is elected after the grace.

\set ON_ERROR_STOP on

-- Whatever is the default: what is read after a lock must be of after the lock.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;

SET LOCAL standard_conforming_strings = on;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = warning;

DO $$
BEGIN
	IF NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) THEN
		RAISE EXCEPTION 'only a superuser can go from the portable edition to the extension'
			USING ERRCODE = 'insufficient_privilege';
	END IF;
	IF EXISTS (SELECT 1 FROM pg_extension e WHERE e.extname = 'leader_election') THEN
		RAISE EXCEPTION 'this database has the extension "leader_election" already'
			USING ERRCODE = 'duplicate_object',
				HINT = 'There is nothing to do, unless pg_tle has made it of the portable edition: then turn that into plain objects first, as docs/portable.md says.';
	END IF;
	IF to_regclass('leader_election_internal.edition') IS NULL THEN
		RAISE EXCEPTION 'this database does not have the portable edition'
			USING ERRCODE = 'undefined_object', HINT = 'Run CREATE EXTENSION leader_election.';
	END IF;
	IF NOT EXISTS (SELECT 1 FROM pg_available_extensions e WHERE e.name = 'leader_election') THEN
		RAISE EXCEPTION 'the extension "leader_election" is not available on this server'
			USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Install it: make install.';
	END IF;
END
$$;

-- Calls lock the tables in more than one order: those that change something
-- begin with server, fences and observers do not.  So whatever is busy for a
-- moment is given free, and all are tried again: no deadlock, and nobody who
-- calls waits for long.  (What is locked in the inner block stays locked.)
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
			LOCK TABLE leader_election.server, leader_election.lease, leader_election.election,
				leader_election.candidate, leader_election.history, leader_election.dropped,
				leader_election_internal.edition IN ACCESS EXCLUSIVE MODE;
			SET LOCAL lock_timeout = '1s';
			EXIT;
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			IF clock_timestamp() > until THEN
				RAISE EXCEPTION 'the tables of the portable edition are busy'
					USING ERRCODE = 'lock_not_available',
						HINT = 'Run this again. If that goes on, look in pg_locks for a transaction that is open: one that has asserted leadership, say, or is prepared.';
			END IF;
			PERFORM pg_sleep(0.05 * random());
		END;
	END LOOP;
END
$$;

-- A superuser reads them from here on, and their owner is none: so they have to be
-- what portable.sql makes, tables of PostgreSQL's own types.  A view, a child that is
-- a foreign table or a type with a cast of its own would run the owner's code; so
-- would, when a query is planned, an expression of an index or of statistics.
DO $$
DECLARE
	strange text;
BEGIN
	SET LOCAL constraint_exclusion = off;
	SELECT string_agg(c.oid::regclass::text, ', ') INTO strange FROM pg_class c
		WHERE c.oid = ANY (ARRAY['leader_election.server', 'leader_election.lease', 'leader_election.election',
			'leader_election.history', 'leader_election.dropped', 'leader_election_internal.edition']::regclass[])
		AND (c.relkind <> 'r' OR c.relhassubclass OR EXISTS (SELECT 1 FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
			WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
			AND t.typnamespace <> 'pg_catalog'::regnamespace)
			OR EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL))
			OR EXISTS (SELECT 1 FROM pg_statistic_ext x WHERE x.stxrelid = c.oid AND x.stxexprs IS NOT NULL));
	IF strange IS NOT NULL THEN
		RAISE EXCEPTION 'these are not the tables that portable.sql makes: %', strange
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	IF (SELECT max(x.number) FROM leader_election_internal.edition x) > 1 THEN
		RAISE EXCEPTION 'the tables of this database are those of a newer portable edition'
			USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Take this file from the newer version.';
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

-- What is to be as it was: privileges (but those to write tables, which nobody
-- should have), and triggers.  The owner could do all; it may go on standing.  (A
-- constraint trigger, which only fails, cannot be replaced: it is dropped first.)
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
			AND p.proname NOT IN ('tick', 'prune', 'configure', '_stands')
	)
	SELECT 1 AS step, format('REVOKE ALL ON %s %s FROM PUBLIC', o.kind, o.name) AS command,
		NULL::oid AS fenced FROM objects o
	UNION ALL
	SELECT 2, format('GRANT %s ON %s %s TO %s%s', a.privilege_type, o.kind, o.name,
		CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
		CASE WHEN a.is_grantable AND a.grantee <> o.owner THEN ' WITH GRANT OPTION' ELSE '' END), NULL
	FROM objects o, aclexplode(o.acl) a
	WHERE a.privilege_type IN ('USAGE', 'SELECT', 'EXECUTE')
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

-- The tables go aside, and the trigger function, until triggers call the
-- extension's: to replace it lets readers pass by, to drop them would not.  All
-- else is dropped without CASCADE: a view or a function of somebody's that needs
-- it is named then, and nothing has happened.
CREATE SCHEMA leader_election_moved;
ALTER FUNCTION leader_election.only_leader() SET SCHEMA leader_election_moved;
DO $$
DECLARE
	command text;
BEGIN
	FOR command IN
		SELECT 'DROP VIEW ' || string_agg(c.oid::regclass::text, ', ') FROM pg_class c
		WHERE c.relnamespace = 'leader_election'::regnamespace AND c.relkind = 'v'
		UNION ALL
		SELECT 'DROP ROUTINE ' || string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc p
		WHERE p.pronamespace IN ('leader_election'::regnamespace, 'leader_election_internal'::regnamespace)
		UNION ALL
		SELECT format('ALTER TABLE leader_election.%I SET SCHEMA leader_election_moved', name)
		FROM unnest(ARRAY['election', 'lease', 'history', 'dropped', 'server']) name
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;
DROP TYPE leader_election.lease_grant;
DROP TABLE leader_election.candidate, leader_election_internal.edition;
DROP SEQUENCE leader_election_internal.session_number;
DROP SCHEMA leader_election, leader_election_internal;

CREATE EXTENSION leader_election;

-- What only this edition has ends: a request to yield and a reservation (the
-- grace lasts longer), and who sits out.  Where the extension wants a value of its
-- monotonic clock, any will do: another incarnation's is void.
INSERT INTO leader_election.election (election, strategy, lease_duration, quorum, takeover_delay,
		preempt_delay, initial_delay, candidate_role, channel, owner)
	SELECT e.election, e.strategy, e.lease_duration, e.quorum, e.takeover_delay,
		e.preempt_delay, e.initial_delay, e.candidate_role, e.channel, e.owner
	FROM leader_election_moved.election e;
INSERT INTO leader_election.lease (election, term, after_term, previous_term, leader, kind, session_id,
		backend_pid, role, auto_renew, rank, progress, metadata, metadata_at, acquired_at, renewed_at,
		expires_at, acquired_mono, deadline_mono, duration, incarnation, yielding, yield_ordered, yields,
		not_before_at, not_before_mono, not_before_for, held,
		run, run_role, run_granted, run_attempts, run_done, done_at)
	SELECT l.election, l.term, l.after_term, l.previous_term, l.leader, l.kind, l.session_id,
		l.backend_pid, l.role, l.kind = 'detached', l.rank, l.progress, l.metadata, l.metadata_at, l.acquired_at, l.renewed_at,
		l.expires_at, v.void, v.void, extract(epoch FROM l.duration) * 1000000, 'portable', false, false, 0,
		h.until, h.void, ceil(extract(epoch FROM h.until - h.now) * 1000000), h.held,
		l.run, l.run_role, l.run_granted, l.run_attempts, l.run_done, l.done_at
	FROM leader_election_moved.lease l
		LEFT JOIN LATERAL (SELECT 1 AS void WHERE l.leader IS NOT NULL) v ON true
		LEFT JOIN LATERAL (SELECT 1 AS void, l.not_before_at AS until, t.now, coalesce(l.held, false) AS held
			FROM clock_timestamp() t (now) WHERE l.not_before_at > t.now) h ON true;
INSERT INTO leader_election.history (election, term, leader, acquired_at, ended_at, reason, detail,
		kind, role, client_addr, backend_pid)
	SELECT h.election, h.term, h.leader, h.acquired_at, h.ended_at, h.reason, h.detail,
		h.kind, h.role, h.client_addr, h.backend_pid
	FROM leader_election_moved.history h;
INSERT INTO leader_election.dropped (election, term)
	SELECT d.election, d.term FROM leader_election_moved.dropped d;

-- The epoch that the extension has begun with is not above this one, and so does
-- not count: the first call, or the worker, begins another.
INSERT INTO leader_election.epoch (incarnation, first_seen_at, first_seen_mono, epoch, dropped_term)
	SELECT 'portable', clock_timestamp(), 0, coalesce(max(s.epoch), 0), coalesce(max(s.dropped_term), 0)
	FROM leader_election_moved.server s;

DO $$
DECLARE
	command text;
BEGIN
	FOR command IN SELECT a.command FROM leader_election_afterwards a ORDER BY a.step LOOP
		EXECUTE command;
	END LOOP;
END
$$;

-- The extension has settings of the server for these.
SELECT count(*) > 0 AS told,
	coalesce(string_agg(format('ALTER SYSTEM SET leader_election.%s = %L;', x.name, x.value), E'\n'), '') AS settings
FROM leader_election_moved.server s, LATERAL (VALUES
	('lease_duration', round(extract(epoch FROM s.lease_duration) * 1000) || 'ms', s.lease_duration <> '15 s'),
	('history_retention', round(extract(epoch FROM s.history_retention)) || 's', s.history_retention <> '30 days'),
	('auto_create', 'off', NOT s.auto_create)) x (name, value, differs)
WHERE x.differs \gset

DROP FUNCTION leader_election_moved.only_leader();
DROP TABLE leader_election_moved.election, leader_election_moved.lease, leader_election_moved.history,
	leader_election_moved.dropped, leader_election_moved.server;
DROP SCHEMA leader_election_moved;

COMMIT;

\if :told
\echo 'These settings of the portable edition are settings of the server now:'
\echo :settings
\endif
