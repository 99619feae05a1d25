-- leader_election 1.0, the portable edition
--
--	psql -f portable.sql
--
-- For servers on which no extension of one's own can be installed: SQL and
-- PL/pgSQL only, PostgreSQL 15 to 19, for a role that has CREATE on the
-- database.  It has the names, the signatures and the words of the extension;
-- what it has not raises 0A000.  Run it again to update it: tables are kept,
-- functions are replaced.
--
-- It trusts the server's wall clock.  If that leaps forward by more than an
-- election's takeover_delay, two may believe that they lead until the first
-- one's deadline.  A fenced write is refused all the same, whatever the clocks
-- do.
--
-- Who does what, and which interleaving breaks otherwise:
--
-- * The lease row is the mutex.
--
--		renewal				FOR NO KEY UPDATE	passes by fences
--		fence				FOR KEY SHARE		held to its transaction's end
--		change of holder	FOR UPDATE			waits for both, both wait for it
--
--	 Who changes the holder locks the row FOR UPDATE, deletes it and inserts it anew
--	 (replace_row()), and *then* updates it.  So a fence whose snapshot is older gets
--	 the new row (READ COMMITTED) or 40001 (REPEATABLE READ).  An UPDATE alone
--	 changes no key: the fence would lock the old version, find the old leader
--	 there, and let a late write through.  (The lock FOR UPDATE has the UPDATE marked
--	 as one of a key, but not if it was taken in another subtransaction, nor beside a
--	 weaker lock of another one.  A caller makes these as it likes.)
--
-- * clock_timestamp() is read after the row is locked, and every condition is
--	 looked at again then.  A deadline that was computed before the wait for the
--	 lock may have passed when the lock is there.  now() is the time at which
--	 the transaction began, and no clock at all.
--
-- * No call waits for long.  Rows are tried with SKIP LOCKED, for a second at
--	 most, and then the call fails with the extension's 55P03.  A lock_timeout
--	 bounds only what is inserted or deleted before a lease is locked.
--
-- * Order: candidate, lease, history.  A leader that gives up writes no
--	 candidate's row: that it sits out is noted in the lease (gave_up).  leave()
--	 deletes the row of its own session at the end, for which nobody waits.
--
-- * If the process dies anywhere, its transaction did not happen, and its locks
--	 are gone with it.

-- What stands between these two comments is for psql; make portable leaves it out.
-- psql: begin
\set ON_ERROR_STOP on
\if :{?anyway}
\else
\set anyway 0
\endif

-- extension_to_portable.sql runs this file in a transaction of its own.
\if :{?in_transaction}
\else
BEGIN;
\endif
-- psql: end

-- What the session has set must not change how this text is read.
SET LOCAL standard_conforming_strings = on;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = warning;
SET LOCAL plpgsql.extra_errors = 'none';
SET LOCAL plpgsql.extra_warnings = 'none';
SET LOCAL default_tablespace = '';
SET LOCAL default_table_access_method = heap;
SET LOCAL lock_timeout = '1s';

-- psql: begin
SELECT set_config('leader_election_portable.anyway', :'anyway', true) AS anyway \gset

--
-- Refusals
--

DO $$
DECLARE
	version CONSTANT integer := 1;		-- of the tables; an older file refuses them
	theirs integer;
	owner name;
BEGIN
	IF EXISTS (SELECT 1 FROM pg_catalog.pg_extension e WHERE e.extname = 'leader_election') THEN
		RAISE EXCEPTION 'this database has the extension "leader_election"'
			USING ERRCODE = 'duplicate_object',
				HINT = 'The extension can do all that the portable edition can, and more.';
	END IF;
	IF EXISTS (SELECT 1 FROM pg_catalog.pg_available_extensions e WHERE e.name = 'leader_election')
			AND pg_catalog.current_setting('leader_election_portable.anyway') NOT IN ('1', 'on', 'true', 'yes') THEN
		RAISE EXCEPTION 'the extension "leader_election" is available on this server'
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Run CREATE EXTENSION leader_election. To have the portable edition all the same: psql -v anyway=1.';
	END IF;
	-- Their owner, and no superuser or member of it: what is in these schemas, views
	-- perhaps, would run with the rights of the role that runs this file.
	SELECT pg_catalog.pg_get_userbyid(n.nspowner) INTO owner
		FROM pg_catalog.pg_namespace n
		WHERE n.nspname IN ('leader_election', 'leader_election_internal')
		AND pg_catalog.pg_get_userbyid(n.nspowner) <> current_user LIMIT 1;
	IF FOUND THEN
		RAISE EXCEPTION 'schema "leader_election" belongs to role "%"', owner
			USING ERRCODE = 'insufficient_privilege',
				HINT = 'Run this file as that role (SET ROLE), or have it drop its schemas leader_election and leader_election_internal.';
	END IF;

	-- A schema of that name that this file has not made is somebody else's.
	IF pg_catalog.to_regnamespace('leader_election') IS NOT NULL
			AND pg_catalog.to_regclass('leader_election_internal.edition') IS NULL THEN
		RAISE EXCEPTION 'schema "leader_election" exists, and is not that of the portable edition'
			USING ERRCODE = 'duplicate_schema',
				HINT = 'Drop it, if nobody needs what is in it.';
	END IF;
	IF pg_catalog.to_regclass('leader_election_internal.edition') IS NOT NULL THEN
		EXECUTE 'SELECT max(number) FROM leader_election_internal.edition' INTO theirs;
		IF theirs > version THEN
			RAISE EXCEPTION 'the tables of this database are those of a newer portable edition'
				USING ERRCODE = 'object_not_in_prerequisite_state',
					DETAIL = pg_catalog.format('They are of version %s, this file is of version %s.', theirs, version),
					HINT = 'Run the newer file.';
		END IF;
	END IF;
END
$$;

-- psql: end
-- Is this the first run?  A later one is an update, also by pg_tle: it gives and
-- takes no privileges of what is there.
--
-- It drops no routine: a call that is inside of one which is dropped, or comes to it
-- after its wait for the LOCK at the end, would fail (XX000, 42883).  So a newer file
-- gives an internal routine another name, if its arguments, its result or its meaning
-- differ, and leaves the old one where it is, for one version at least.
DO $$
BEGIN
	PERFORM pg_catalog.set_config('leader_election_portable.fresh',
			(pg_catalog.to_regnamespace('leader_election') IS NULL)::text, true),
		pg_catalog.set_config('leader_election_portable.known', (
			SELECT coalesce(pg_catalog.array_agg(o.tableoid || '/' || o.oid), '{}')::text FROM (
				SELECT n.tableoid, n.oid, n.oid AS schema FROM pg_catalog.pg_namespace n
				UNION ALL SELECT c.tableoid, c.oid, c.relnamespace FROM pg_catalog.pg_class c
				UNION ALL SELECT p.tableoid, p.oid, p.pronamespace FROM pg_catalog.pg_proc p) o
			WHERE o.schema IN (pg_catalog.to_regnamespace('leader_election')::oid,
				pg_catalog.to_regnamespace('leader_election_internal')::oid)), true);
END
$$;

CREATE SCHEMA IF NOT EXISTS leader_election;

-- What no application may call.  GRANT EXECUTE ON ALL ROUTINES IN SCHEMA
-- leader_election lets roles stand, and must not reach this.
CREATE SCHEMA IF NOT EXISTS leader_election_internal;

--
-- Tables.  Only the functions below write them.  IF NOT EXISTS: a second run
-- keeps what is there.
--

-- Which files have been run here, and when
CREATE TABLE IF NOT EXISTS leader_election_internal.edition (
	number			integer NOT NULL,
	version			text COLLATE "C" NOT NULL,
	installed_at	timestamptz NOT NULL DEFAULT clock_timestamp(),
	changes			text NOT NULL
);

CREATE TABLE IF NOT EXISTS leader_election.election (
	election		text COLLATE "C" PRIMARY KEY,
	strategy		text COLLATE "C" NOT NULL,
	lease_duration	interval NOT NULL,
	quorum			integer NOT NULL,
	takeover_delay	interval NOT NULL,
	preempt_delay	interval,
	initial_delay	interval,
	candidate_role	name,
	channel			text COLLATE "C",
	owner			name NOT NULL,
	group_name		text COLLATE "C"
);

-- Renewals touch no indexed column: they are HOT, and find the room that earlier ones
-- have left in the page.  A second index would end that.  A fillfactor would bound the
-- INSERT of each change of holder: 1,000 acquire() and release() made 3.2 MB of a table
-- at 30, and 57 kB without.
CREATE TABLE IF NOT EXISTS leader_election.lease (
	election		text COLLATE "C" PRIMARY KEY,
	term			bigint NOT NULL DEFAULT 0,
	after_term		bigint NOT NULL DEFAULT 0,
	previous_term	bigint,
	leader			text COLLATE "C",
	kind			text COLLATE "C",
	session_id		bigint,
	session_started	timestamptz,
	backend_pid		integer,
	role			name,
	rank			integer,
	progress		bigint,
	metadata		jsonb,
	metadata_at		timestamptz,
	acquired_at		timestamptz,
	renewed_at		timestamptz,
	expires_at		timestamptz,
	duration		interval,
	identity		text COLLATE "C",
	yielding		boolean NOT NULL DEFAULT false,
	successor		text COLLATE "C",
	successor_role	name,
	reserved_until	timestamptz,
	not_before_at	timestamptz,
	held			boolean,
	gave_up			text COLLATE "C",
	gave_up_role	name,
	run				text COLLATE "C",
	run_role		name,
	run_granted		text COLLATE "C",
	run_attempts	integer,
	run_done		text COLLATE "C",
	done_at			timestamptz,
	request			uuid
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Ephemeral by nature; emptied by a crash and by a promotion.
CREATE UNLOGGED TABLE IF NOT EXISTS leader_election.candidate (
	election		text COLLATE "C" NOT NULL,
	candidate		text COLLATE "C" NOT NULL,
	kind			text COLLATE "C" NOT NULL,
	role			name NOT NULL,
	rank			integer NOT NULL,
	progress		bigint NOT NULL,
	metadata		jsonb,
	session_id		bigint,
	session_started	timestamptz,
	backend_pid		integer,
	joined_at		timestamptz NOT NULL,
	seen_at			timestamptz NOT NULL,
	PRIMARY KEY (election, candidate)
) WITH (fillfactor = 50);

CREATE TABLE IF NOT EXISTS leader_election.history (
	election		text COLLATE "C" NOT NULL,
	term			bigint NOT NULL,
	leader			text COLLATE "C" NOT NULL,
	acquired_at		timestamptz NOT NULL,
	ended_at		timestamptz,
	reason			text COLLATE "C",
	detail			text,
	kind			text COLLATE "C" NOT NULL,
	role			name NOT NULL,
	client_addr		inet,
	backend_pid		integer,
	PRIMARY KEY (election, term)
);

-- One that is created by the name of one that was dropped begins above its term.
CREATE TABLE IF NOT EXISTS leader_election.dropped (
	election		text COLLATE "C" PRIMARY KEY,
	term			bigint NOT NULL
);

-- One row: the server as it was seen last, and the settings.  It is made on
-- first use, never by this file: the row of a dump would collide with it.
CREATE TABLE IF NOT EXISTS leader_election.server (
	one				boolean PRIMARY KEY DEFAULT true CHECK (one),
	started_at		timestamptz NOT NULL,
	timeline		text COLLATE "C",
	database		oid NOT NULL,
	lease_table		oid NOT NULL,
	identity		text COLLATE "C" NOT NULL,
	first_seen_at	timestamptz NOT NULL,
	epoch			bigint NOT NULL DEFAULT 0,
	dropped_term	bigint NOT NULL DEFAULT 0,
	lease_duration	interval NOT NULL DEFAULT '15 s',
	history_retention interval NOT NULL DEFAULT '30 days',
	auto_create		boolean NOT NULL DEFAULT true,
	announce		boolean NOT NULL DEFAULT true
);
COMMENT ON COLUMN leader_election.server.started_at IS 'pg_postmaster_start_time()';
COMMENT ON COLUMN leader_election.server.timeline IS 'NULL: this service does not tell';
COMMENT ON COLUMN leader_election.server.identity IS 'system identifier, timeline, database, table lease; where the timeline is not told, when the server was started';
COMMENT ON COLUMN leader_election.server.first_seen_at IS 'a grace of one lease begins then';

-- The number of this session's key (session_key()).  Its state in a session is
-- not undone by a rollback, as an advisory lock is not either, and is cleared
-- by DISCARD ALL, which also releases the lock.
CREATE SEQUENCE IF NOT EXISTS leader_election_internal.session_number;

DO $$
BEGIN
	-- IF NOT EXISTS would lock the table for one that exists.
	IF pg_catalog.to_regclass('leader_election.history_acquired_at') IS NULL THEN
		CREATE INDEX history_acquired_at ON leader_election.history (acquired_at);
	END IF;
	IF pg_catalog.to_regtype('leader_election.lease_grant') IS NULL THEN
		CREATE TYPE leader_election.lease_grant AS (
			term			bigint,
			remaining_ms	bigint,
			expires_at		timestamptz,
			yielding		boolean
		);
	END IF;
END
$$;

CREATE OR REPLACE VIEW leader_election.protocol AS
	SELECT 1 AS number, 'portable'::text AS edition, '1.0'::text AS version;

-- Nothing is drained here, and there are no groups.  Who asks is told so.
CREATE OR REPLACE VIEW leader_election.drain AS
	SELECT NULL::text COLLATE "C" AS election, NULL::text COLLATE "C" AS candidate,
		NULL::timestamptz AS drained_at, NULL::name AS drained_by, NULL::text AS reason
	WHERE false;
CREATE OR REPLACE VIEW leader_election.election_group AS
	SELECT NULL::text COLLATE "C" AS group_name, NULL::integer AS seats,
		NULL::integer AS max_per_candidate, NULL::name AS owner, NULL::text COLLATE "C" AS owner_id
	WHERE false;

--
-- Internal functions.  They run as the function that calls them, which is one
-- of schema leader_election: as the owner, with a search_path of pg_catalog.
--
-- What a call costs is, apart from its reads and writes, how many statements and
-- expressions it has, for each is set up anew in each transaction.  So what is one
-- expression is in LANGUAGE sql, which is inlined, unless it is called IMMUTABLE
-- where its parts are not, or an argument that it reads twice is more than a
-- variable or a column: then it would be planned at each call.
--

-- The role in whose name the session calls, within functions that run as their owner.
CREATE OR REPLACE FUNCTION leader_election_internal.session_role() RETURNS name
LANGUAGE sql AS $$
	SELECT CASE WHEN current_setting('role') = 'none' THEN session_user ELSE current_setting('role')::name END
$$;

-- The role that calls: that one, unless somebody else makes the session call.
--
-- ANALYZE, REINDEX, REFRESH MATERIALIZED VIEW and the like, also autovacuum's, run
-- functions of the table's owner as that owner, in a security-restricted operation;
-- but the session is that of the role that gave the command, or of the first
-- superuser.  In its name these functions must not call: so there is no caller
-- then (42501).  No function tells of such an operation, but the server refuses
-- UNLISTEN in it, and in nothing else.  Nobody listens to that channel.
CREATE OR REPLACE FUNCTION leader_election_internal.caller() RETURNS name
LANGUAGE plpgsql AS $$
BEGIN
	UNLISTEN "leader_election_internal.caller()";
	RETURN leader_election_internal.session_role();
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.no_election(el text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'election "%" does not exist', el USING ERRCODE = 'LE003',
		HINT = 'Check its name. The first join(), campaign() or acquire() creates an election, unless leader_election.auto_create is off.';
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.busy(el text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'election "%" is busy', el USING ERRCODE = 'lock_not_available',
		HINT = 'Try again. If this goes on, look in pg_locks for who holds locks on the tables of schema "leader_election".';
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.in_block(what text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'leader_election.%() cannot run inside a transaction block', what
		USING ERRCODE = 'active_sql_transaction',
			HINT = 'Call it in autocommit mode, and neither among several statements in one string, in a block with EXCEPTION nor in a pipeline: autocommit = True in Python (psycopg), isolation_level "AUTOCOMMIT" in SQLAlchemy, outside of atomic() and without ATOMIC_REQUESTS in Django, setAutoCommit(true) in Java (JDBC), outside of @Transactional in Spring.';
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.not_here(what text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION '% is not in the portable edition', what
		USING ERRCODE = 'feature_not_supported',
			HINT = 'The extension leader_election has it.';
END
$$;

-- Arguments, in the words of the extension
CREATE OR REPLACE FUNCTION leader_election_internal.check_text(what text, value text, fewest integer, most integer)
RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
	size integer := octet_length(value);
BEGIN
	IF size BETWEEN fewest AND most OR value IS NULL AND fewest = 0 THEN
		RETURN;
	END IF;
	IF value IS NULL THEN
		RAISE EXCEPTION '% must not be null', what USING ERRCODE = 'invalid_parameter_value';
	END IF;
	RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
		MESSAGE = what || CASE WHEN size < fewest THEN ' must not be empty' ELSE ' is too long' END,
		DETAIL = CASE WHEN fewest = 0 THEN format('It must have %s bytes at most, and has %s.', most, size)
			ELSE format('It must have %s to %s bytes, and has %s.', fewest, most, size) END;
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.check_interval(what text, value interval,
	shortest interval, longest interval) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	IF value < shortest OR value > longest THEN
		RAISE EXCEPTION '% is out of range: %', what, value USING ERRCODE = 'invalid_parameter_value',
			DETAIL = format('It must be from %s to %s.', shortest, longest);
	END IF;
END
$$;

-- What is stored has no days, for how long one lasts depends on the session's time zone.
CREATE OR REPLACE FUNCTION leader_election_internal.seconds(length interval) RETURNS interval
LANGUAGE sql IMMUTABLE AS $$
	SELECT make_interval(secs => extract(epoch FROM length)::float8)
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.check_metadata(value jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	-- through text: it may come from a table, compressed
	size CONSTANT integer := pg_column_size(value::text::jsonb);
BEGIN
	IF size > 8192 THEN
		RAISE EXCEPTION 'metadata is too long' USING ERRCODE = 'invalid_parameter_value',
			DETAIL = format('It must have %s bytes at most as jsonb, and has %s.', 8192, size),
			HINT = 'Keep what is long elsewhere, and say in the metadata where. pg_column_size() tells the size.';
	END IF;
END
$$;

-- Tables that others have locked are not waited for longer than rows.  Who is called
-- with a row's type as that of a variable looks at the table before its first
-- statement: so that is done by an inner function, behind this.  NULL: it is so.
CREATE OR REPLACE FUNCTION leader_election_internal.bound() RETURNS text
LANGUAGE sql AS $$
	SELECT CASE WHEN current_setting('lock_timeout')::interval NOT BETWEEN '1 us' AND '1 s'
		THEN set_config('lock_timeout', '1s', true) END
$$;

-- A call that changes something begins.
--
-- A transaction block cannot be told for certain.  These are signs of one that
-- deceive nobody who is in none: a transaction that has written before its first
-- call, and a second call with another statement's time.  What they miss is the
-- first call in a block that has not written yet: it locks its election for one
-- lease at most (write()).  (now() tells nothing: in the extended protocol it
-- differs from statement_timestamp() in any statement.)
CREATE OR REPLACE FUNCTION leader_election_internal.enter(what text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
	present CONSTANT text := statement_timestamp()::text;
	mark text := nullif(current_setting('leader_election_portable.statement', true), '');
BEGIN
	IF mark IS DISTINCT FROM present THEN
		IF (mark IS NOT NULL OR pg_current_xact_id_if_assigned() IS NOT NULL) AND NOT pg_is_in_recovery() THEN
			PERFORM leader_election_internal.in_block(what);
		END IF;
		mark := set_config('leader_election_portable.statement', present, true);
	END IF;
	IF current_setting('transaction_read_only') = 'on' THEN		-- also in recovery
		PERFORM leader_election_internal.check_writable(what);
	END IF;

	mark := leader_election_internal.bound();

	-- Who is told of a grant may rely on that a crash does not take it back.
	mark := CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
		THEN set_config('synchronous_commit', 'on', true) END;
	RETURN true;
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.check_writable(what text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	IF pg_is_in_recovery() THEN
		RAISE EXCEPTION 'leader_election.%() cannot be executed during recovery', what
			USING ERRCODE = 'read_only_sql_transaction', HINT = 'Connect to the primary server.';
	END IF;
	IF current_setting('transaction_read_only')::boolean THEN
		RAISE EXCEPTION 'cannot execute leader_election.%() in a read-only transaction', what
			USING ERRCODE = 'read_only_sql_transaction';
	END IF;
END
$$;

-- A lease row will be locked.  If this is a block all the same, it may not sit
-- idle for longer than this, or nobody could be elected.
CREATE OR REPLACE FUNCTION leader_election_internal.write(lease interval) RETURNS text
LANGUAGE sql AS $$
	SELECT CASE WHEN current_setting('idle_in_transaction_session_timeout')::interval NOT BETWEEN '1 us' AND lease
		THEN set_config('idle_in_transaction_session_timeout',
			ceil(extract(epoch FROM lease) * 1000)::bigint::text, true) END
$$;

-- For so many tries, 2 ms apart, a call waits for what is busy: a second, or
-- less by lock_timeout or by most.  Tries are counted, for the clock may be set
-- meanwhile.
CREATE OR REPLACE FUNCTION leader_election_internal.tries(most interval DEFAULT '1 s') RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
	setting CONSTANT interval := nullif(current_setting('lock_timeout')::interval, '0');
BEGIN
	RETURN ceil(extract(epoch FROM least(setting, most, '1 s')) * 500);
END
$$;

-- Lock the lease, to renew it, or (to_change) to change its holder.  The caller
-- reads the clock after that.
--
-- A row that is locked is waited for, for so long at most.  Then the call fails or,
-- if it may not, NULL is returned.
CREATE OR REPLACE FUNCTION leader_election_internal.lock_lease(el text, to_change boolean,
	wait interval DEFAULT '1 s', may_fail boolean DEFAULT true) RETURNS leader_election.lease
LANGUAGE plpgsql AS $$
DECLARE
	seen record;		-- one column that is a row costs half as much as all its columns
	tries integer;
BEGIN
	LOOP
		IF to_change THEN
			SELECT x AS lease INTO seen FROM leader_election.lease x WHERE x.election = el FOR UPDATE SKIP LOCKED;
		ELSE
			SELECT x AS lease INTO seen FROM leader_election.lease x WHERE x.election = el FOR NO KEY UPDATE SKIP LOCKED;
		END IF;
		EXIT WHEN FOUND;
		tries := coalesce(tries, leader_election_internal.tries(wait)) - 1;
		IF tries < 0 AND NOT may_fail THEN
			RETURN NULL;
		END IF;
		IF NOT EXISTS (SELECT 1 FROM leader_election.lease x WHERE x.election = el) THEN
			PERFORM leader_election_internal.no_election(el);
		END IF;
		IF tries < 0 THEN
			PERFORM leader_election_internal.busy(el);
		END IF;
		PERFORM pg_sleep(0.002);
	END LOOP;
	RETURN seen.lease;
END
$$;

-- The holder will change.  The caller has locked the row FOR UPDATE.
CREATE OR REPLACE FUNCTION leader_election_internal.replace_row(el text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	WITH old AS (DELETE FROM leader_election.lease x WHERE x.election = el RETURNING x.*)
		INSERT INTO leader_election.lease SELECT old.* FROM old;
END
$$;

--
-- The server
--

-- The OID of this database, which the path of a table has: cheaper than to read
-- pg_database in each call
CREATE OR REPLACE FUNCTION leader_election_internal.database() RETURNS oid
LANGUAGE sql STABLE AS $$
	SELECT pg_catalog.split_part(pg_catalog.pg_relation_filepath('leader_election.lease'::pg_catalog.regclass), '/', -2)::pg_catalog.oid
$$;

-- The row as it would be written now.  Where the timeline is not told, any
-- restart may be a failover: then each one is another identity.
CREATE OR REPLACE FUNCTION leader_election_internal.server_now() RETURNS leader_election.server
LANGUAGE plpgsql AS $$
DECLARE
	s leader_election.server;
	system text := '?';
BEGIN
	s.started_at := pg_postmaster_start_time();
	s.lease_table := 'leader_election.lease'::regclass;
	s.database := leader_election_internal.database();
	BEGIN
		s.timeline := left(pg_walfile_name(pg_current_wal_lsn()), 8);
	EXCEPTION WHEN object_not_in_prerequisite_state OR feature_not_supported OR insufficient_privilege THEN
		s.timeline := NULL;
	END;
	BEGIN
		SELECT c.system_identifier::text INTO system FROM pg_control_system() c;
	EXCEPTION WHEN OTHERS THEN
		system := '?';
	END;
	s.identity := concat_ws('/', system,
		coalesce(s.timeline, 'started ' || extract(epoch FROM s.started_at)), s.database, s.lease_table);
	RETURN s;
END
$$;

-- Is this the server that the row describes, though it may have been started anew?
-- A row that was written since the server was started is its own, if it is of this
-- database and this table: no server gets another timeline before it is started
-- again, or promoted, and then that row is another one's.  Only an older row has to
-- be looked at: it may be another server's, from which it was replicated or copied.
CREATE OR REPLACE FUNCTION leader_election_internal.is_here(s leader_election.server) RETURNS boolean
LANGUAGE sql AS $$
	SELECT CASE WHEN s.started_at = pg_postmaster_start_time()
		THEN s.lease_table = 'leader_election.lease'::regclass AND s.database = leader_election_internal.database()
		ELSE s.identity = (leader_election_internal.server_now()).identity END
$$;

-- The highest term that anybody has been told here
CREATE OR REPLACE FUNCTION leader_election_internal.highest_term() RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
	RETURN greatest(0, (SELECT max(greatest(l.term, l.after_term)) FROM leader_election.lease l),
		(SELECT max(d.term) FROM leader_election.dropped d));
END
$$;

-- The server as it was seen last.  If it is another one by now (another
-- timeline, cluster, database or table: a promotion, a restore, a copy), an
-- epoch begins above all terms.  If it was only started anew, terms go on.  In
-- both cases nobody new is elected for one lease: the clock may have been set
-- while nobody looked.
--
-- The row is locked only by who changes it.  A restart is noted by the first
-- call that finds the row free; the others take it for noted now.  Otherwise
-- the first call, in a transaction block, would hold up all elections.  (Nobody new
-- is elected before that block has ended: so it may not sit idle for long.)
CREATE OR REPLACE FUNCTION leader_election_internal.server(el text) RETURNS leader_election.server
LANGUAGE plpgsql AS $$
DECLARE
	s leader_election.server;
	present leader_election.server;
	tries integer;
	highest bigint;
BEGIN
	SELECT * INTO s FROM leader_election.server;
	IF FOUND THEN
		IF s.started_at = pg_postmaster_start_time() AND s.first_seen_at <= clock_timestamp()
				AND leader_election_internal.is_here(s) THEN
			RETURN s;
		END IF;
	ELSE
		s := leader_election_internal.first_server(el);
	END IF;
	present := leader_election_internal.server_now();
	PERFORM leader_election_internal.write(s.lease_duration);
	LOOP
		SELECT * INTO s FROM leader_election.server FOR NO KEY UPDATE SKIP LOCKED;
		EXIT WHEN FOUND;
		SELECT * INTO s FROM leader_election.server;
		IF s.identity = present.identity THEN
			s.started_at := present.started_at;
			s.first_seen_at := clock_timestamp();
			RETURN s;
		END IF;
		tries := coalesce(tries, leader_election_internal.tries()) - 1;
		IF tries < 0 THEN
			PERFORM leader_election_internal.busy(el);
		END IF;
		PERFORM pg_sleep(0.002);
	END LOOP;
	IF s.started_at = present.started_at AND s.identity = present.identity
			AND s.first_seen_at <= clock_timestamp() THEN
		RETURN s;			-- another call has noted it meanwhile
	END IF;
	IF s.identity <> present.identity THEN
		highest := greatest(leader_election_internal.highest_term(), s.dropped_term);
		s.epoch := greatest(s.epoch + 1, (highest >> 22) + 1,
			least(extract(epoch FROM clock_timestamp() - timestamptz '2020-01-01 00:00+00')::bigint, 2147483000));
	END IF;
	UPDATE leader_election.server x SET started_at = present.started_at, timeline = present.timeline,
		database = present.database, lease_table = present.lease_table, identity = present.identity,
		first_seen_at = clock_timestamp(), epoch = s.epoch
		RETURNING * INTO s;
	RETURN s;
END
$$;

-- First use.  If leases are there already, a dump has brought them, in any order.
CREATE OR REPLACE FUNCTION leader_election_internal.first_server(el text) RETURNS leader_election.server
LANGUAGE plpgsql AS $$
DECLARE
	s leader_election.server := leader_election_internal.server_now();
	wait CONSTANT text := current_setting('lock_timeout');
	highest CONSTANT bigint := leader_election_internal.highest_term();
BEGIN
	BEGIN
		PERFORM set_config('lock_timeout', 2 * leader_election_internal.tries() || 'ms', true);
		INSERT INTO leader_election.server (started_at, timeline, database, lease_table, identity,
				first_seen_at, epoch)
			VALUES (s.started_at, s.timeline, s.database, s.lease_table, s.identity,
				CASE WHEN highest = 0 THEN '-infinity' ELSE clock_timestamp() END,
				CASE WHEN highest = 0 THEN 0 ELSE greatest((highest >> 22) + 1,
					extract(epoch FROM clock_timestamp() - timestamptz '2020-01-01 00:00+00')::bigint) END)
			ON CONFLICT DO NOTHING;
		PERFORM set_config('lock_timeout', wait, true);
	EXCEPTION WHEN lock_not_available THEN
		PERFORM leader_election_internal.busy(el);
	END;
	SELECT * INTO STRICT s FROM leader_election.server;
	PERFORM leader_election_internal.write(s.lease_duration);
	RETURN s;
END
$$;

-- The settings, for what may be called in a block: that a server is another one, or was
-- started anew, is noted by others.
CREATE OR REPLACE FUNCTION leader_election_internal.settings(el text) RETURNS leader_election.server
LANGUAGE plpgsql AS $$
DECLARE
	s leader_election.server;
BEGIN
	SELECT * INTO s FROM leader_election.server;
	IF NOT FOUND THEN
		s := leader_election_internal.first_server(el);
	END IF;
	RETURN s;
END
$$;

-- Counters begin at random in the lower half: two servers that are promoted from
-- the same data in the same second do not issue the same terms.
CREATE OR REPLACE FUNCTION leader_election_internal.next_term(l leader_election.lease,
	s leader_election.server) RETURNS bigint
LANGUAGE sql AS $$
	SELECT 1 + CASE WHEN greatest(l.term, l.after_term) >= s.epoch << 22 THEN greatest(l.term, l.after_term)
		ELSE (s.epoch << 22) + floor(random() * 2097152)::bigint END
$$;

--
-- Sessions.  A session is alive while it holds an advisory lock on a key of its
-- own, which the server releases when the session ends.  It holds the lock
-- twice: so it can release it once, to see whether it had it, and take it again,
-- and nobody else can have it in between.
--
-- A rollback undoes neither the lock nor the number of the key.  So a call that
-- fails leaves nothing behind but the key, which the next one uses.
--

-- NULL: this session has none yet, or was reset by DISCARD ALL
CREATE OR REPLACE FUNCTION leader_election_internal.session_key() RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
	number bigint;
BEGIN
	BEGIN
		number := currval('leader_election_internal.session_number');
	EXCEPTION WHEN object_not_in_prerequisite_state THEN
		RETURN NULL;
	END;
	RETURN hashint8extended(number, 20200101) & 9223372036854775807;
END
$$;

-- One expression: nothing interrupts it.  (Who does not hold the lock would get a
-- WARNING, too.)
CREATE OR REPLACE FUNCTION leader_election_internal.holds(key bigint) RETURNS boolean
LANGUAGE plpgsql SET client_min_messages = error AS $$
BEGIN
	RETURN CASE WHEN pg_advisory_unlock(key) THEN pg_try_advisory_lock(key) ELSE false END;
END
$$;

-- The key, if this session holds it
CREATE OR REPLACE FUNCTION leader_election_internal.live_key() RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
	key CONSTANT bigint := leader_election_internal.session_key();
BEGIN
	RETURN CASE WHEN key IS NULL THEN NULL WHEN leader_election_internal.holds(key) THEN key END;
END
$$;

-- LE006, once, if this session was reset while it stood: who shares a pool would
-- stand in vain, or believe in turn to lead.  Then it has a new number, whose
-- key it does not hold, and no row is of that.  (After DISCARD ALL, the process ID
-- has to tell.  When that of a dead session is given out again, a new client is
-- told LE006 for nothing, and repeats the call.)
CREATE OR REPLACE FUNCTION leader_election_internal.check_reset(el text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	key CONSTANT bigint := leader_election_internal.session_key();
	who text;
BEGIN
	SELECT c.candidate INTO who FROM leader_election.candidate c
		WHERE c.election = el AND c.kind = 'session' AND c.session_started = pg_postmaster_start_time()
		AND CASE WHEN key IS NOT NULL THEN c.session_id = key
			ELSE c.backend_pid = pg_backend_pid() AND c.role = leader_election_internal.caller() END;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	PERFORM nextval('leader_election_internal.session_number');
	RAISE EXCEPTION 'this session was reset while it stood in election "%", as candidate "%"', el, who
		USING ERRCODE = 'LE006',
			DETAIL = 'Its locks were released, as by DISCARD ALL or pg_advisory_unlock_all(), and its candidacy and leadership ended then.',
			HINT = 'Connection pools do that when a connection is given back: use one that no pool manages. Behind a transaction pooler use detached candidates: acquire(). If this is a new client, repeat the call.';
END
$$;

-- A key that is in use is passed by: any role can foresee keys, and lock them in
-- advance.  Each key that it keeps from one session takes it a place among the
-- server's locks.
CREATE OR REPLACE FUNCTION leader_election_internal.take_key() RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
	key bigint := leader_election_internal.session_key();
BEGIN
	FOR try IN 1 .. 100 LOOP
		IF key IS NOT NULL AND NOT EXISTS (SELECT 1 FROM leader_election.candidate c WHERE c.session_id = key) THEN
			IF (CASE WHEN pg_try_advisory_lock(key) THEN pg_try_advisory_lock(key) ELSE false END) THEN
				RETURN key;
			END IF;
		END IF;
		PERFORM nextval('leader_election_internal.session_number');
		key := leader_election_internal.session_key();
	END LOOP;
	RAISE EXCEPTION 'the keys of sessions are in use' USING ERRCODE = 'lock_not_available',
		HINT = 'Try again. If this goes on, look in pg_locks for who holds very many advisory locks.';
END
$$;

-- Has that session ended?  The caller's own lock is not in its own way: so whether
-- that is held is asked otherwise.  A session of another start of the server has
-- ended, too, if this is the server; but that of a leader is waited for, in case it
-- is not.
CREATE OR REPLACE FUNCTION leader_election_internal.is_dead(kind text, session_id bigint,
	started timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
	IF kind IS DISTINCT FROM 'session' OR started <> pg_postmaster_start_time() THEN
		RETURN false;
	ELSIF session_id = leader_election_internal.session_key() THEN
		RETURN NOT leader_election_internal.holds(session_id);
	END IF;
	RETURN pg_try_advisory_xact_lock_shared(session_id);
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.is_alive(c leader_election.candidate,
	lease interval, t timestamptz) RETURNS boolean
LANGUAGE sql AS $$
	SELECT CASE WHEN c.kind = 'detached' THEN c.seen_at > t - lease AND c.seen_at < t + lease
		WHEN c.session_started = pg_postmaster_start_time()
		THEN NOT leader_election_internal.is_dead(c.kind, c.session_id, c.session_started)
		ELSE false END
$$;

-- May its row be removed?  Not while the process of a session that was reset goes on,
-- which is to be told so (check_reset()).
CREATE OR REPLACE FUNCTION leader_election_internal.has_ended(c leader_election.candidate,
	lease interval) RETURNS boolean
LANGUAGE sql AS $$
	SELECT CASE WHEN leader_election_internal.is_alive(c, 10 * lease, clock_timestamp()) THEN false
		WHEN c.kind = 'session' AND c.session_started = pg_postmaster_start_time()
		THEN NOT EXISTS (SELECT 1 FROM pg_stat_get_activity(c.backend_pid))
		ELSE true END
$$;

--
-- The rules
--

-- vacant; led; expired; orphaned: its session has ended; stale: another server
-- has granted it
CREATE OR REPLACE FUNCTION leader_election_internal.state(l leader_election.lease,
	s leader_election.server, t timestamptz) RETURNS text
LANGUAGE sql AS $$
	SELECT CASE WHEN l.leader IS NULL THEN 'vacant'
		WHEN l.identity IS DISTINCT FROM s.identity THEN 'stale'
		WHEN t >= l.expires_at THEN 'expired'
		WHEN l.kind = 'detached' THEN 'led'
		WHEN leader_election_internal.is_dead(l.kind, l.session_id, l.session_started) THEN 'orphaned'
		ELSE 'led' END
$$;

-- Does anybody lead, as far as this server can tell?  Only a row that has been
-- read after its lock, or is trusted by nobody, is asked.  A session of before a
-- restart is gone, but state() waits for its deadline.
CREATE OR REPLACE FUNCTION leader_election_internal.is_led(l leader_election.lease,
	s leader_election.server, t timestamptz) RETURNS boolean
LANGUAGE sql AS $$
	SELECT CASE WHEN l.kind = 'session' AND l.session_started IS DISTINCT FROM pg_postmaster_start_time() THEN false
		WHEN leader_election_internal.state(l, s, t) = 'led' THEN leader_election_internal.is_here(s)
		ELSE false END
$$;

-- The grace: until when a leader may lead on by the lease of a former server,
-- or by the clock of before a restart
CREATE OR REPLACE FUNCTION leader_election_internal.grace(l leader_election.lease,
	e leader_election.election, s leader_election.server) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
	SELECT s.first_seen_at + greatest(l.duration, e.lease_duration)
$$;

-- A takeover delay that is further ahead than its length is one of before the clock
-- was set back.  (How long a hold is, nobody knows any more.)
CREATE OR REPLACE FUNCTION leader_election_internal.is_delayed_too_long(l leader_election.lease,
	e leader_election.election, t timestamptz) RETURNS boolean
LANGUAGE sql STABLE AS $$
	SELECT l.leader IS NULL AND l.held IS NOT TRUE AND coalesce(l.not_before_at > t + e.takeover_delay, false)
$$;

-- Before that moment nobody is elected, but for the grace.
CREATE OR REPLACE FUNCTION leader_election_internal.not_before(l leader_election.lease,
	e leader_election.election, s leader_election.server, state text, t timestamptz) RETURNS timestamptz
LANGUAGE sql AS $$
	SELECT CASE state
		WHEN 'vacant' THEN CASE WHEN leader_election_internal.is_delayed_too_long(l, e, t) THEN t + e.takeover_delay
			ELSE coalesce(l.not_before_at, '-infinity') END
		WHEN 'expired' THEN greatest(l.not_before_at,
			CASE WHEN l.yielding THEN '-infinity' ELSE l.expires_at + e.takeover_delay END)
		WHEN 'stale' THEN leader_election_internal.grace(l, e, s) + e.takeover_delay
		ELSE t + e.takeover_delay END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.reason(l leader_election.lease, state text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
	SELECT CASE state WHEN 'stale' THEN 'failover' WHEN 'orphaned' THEN 'session ended'
		ELSE CASE WHEN l.yielding THEN 'yielded' ELSE 'expired' END END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.may_run(l leader_election.lease, run text,
	attempts integer) RETURNS boolean
LANGUAGE sql AS $$
	SELECT run IS NULL OR NOT coalesce(
		run COLLATE "C" <= l.run_done OR run COLLATE "C" < l.run_granted
		OR run COLLATE "C" = l.run_granted AND l.run_attempts >= attempts, false)
$$;

-- Milliseconds, rounded down.  A lease that is further ahead than its length is
-- not: the clock was set back.
CREATE OR REPLACE FUNCTION leader_election_internal.grant_of(l leader_election.lease)
RETURNS leader_election.lease_grant
LANGUAGE sql AS $$
	SELECT ROW(l.term, greatest(0, floor(extract(epoch FROM
		least(l.expires_at - clock_timestamp(), l.duration)) * 1000))::bigint,
		l.expires_at, l.yielding)::leader_election.lease_grant
$$;

-- The clock was set back, so that a lease is further ahead than its length: what its
-- holder is told has to be in the row.  Else it could be over before, once the clock
-- is right again.  NULL: the term is over.
CREATE OR REPLACE FUNCTION leader_election_internal.shorten(l leader_election.lease)
RETURNS leader_election.lease
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	of_term CONSTANT bigint := l.term;
BEGIN
	PERFORM leader_election_internal.write(l.duration);
	l := leader_election_internal.lock_lease(l.election, false);
	IF l.leader IS NULL OR l.term <> of_term THEN
		RETURN NULL;
	END IF;
	UPDATE leader_election.lease x SET expires_at = least(x.expires_at, clock_timestamp() + x.duration)
		WHERE x.election = l.election RETURNING x.* INTO l;
	RETURN l;
END
$$;

-- One NOTIFY for a change, in the transaction that changes: it takes a lock at
-- commit that all databases of the server share.  server.announce turns it off.
CREATE OR REPLACE FUNCTION leader_election_internal.notify(s leader_election.server,
	e leader_election.election, event text, term bigint, leader text, previous text, reason text,
	successor text, at timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	IF NOT s.announce THEN
		RETURN;
	END IF;
	PERFORM pg_notify(coalesce(e.channel, 'leadership_changed'),
		'{"election":' || to_json(e.election) || ',"event":' || to_json(event)
		|| ',"term":' || term || ',"leader":' || coalesce(to_json(leader)::text, 'null')
		|| ',"previous":' || coalesce(to_json(previous)::text, 'null')
		|| ',"reason":' || coalesce(to_json(reason)::text, 'null')
		|| coalesce(',"successor":' || to_json(successor), '')
		|| ',"at":' || to_json(at) || '}');
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.end_term(l leader_election.lease, reason text,
	detail text, t timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
	UPDATE leader_election.history h SET ended_at = $4, reason = $2, detail = $3
		WHERE h.election = l.election AND h.term = l.term AND h.ended_at IS NULL;
END
$$;

-- The leadership ends, and nobody follows yet.  The caller has locked the row FOR
-- UPDATE.
CREATE OR REPLACE FUNCTION leader_election_internal.vacate(l leader_election.lease,
	e leader_election.election, s leader_election.server, reason text, detail text,
	not_before timestamptz, is_hold boolean, sits_out boolean,
	to_candidate text, to_role name, t timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
	PERFORM leader_election_internal.replace_row(l.election);
	UPDATE leader_election.lease x SET leader = NULL, kind = NULL, session_id = NULL, session_started = NULL,
		backend_pid = NULL, role = NULL, metadata = NULL, metadata_at = NULL, request = NULL,
		previous_term = NULL, yielding = false,
		gave_up = CASE WHEN sits_out THEN l.leader END, gave_up_role = CASE WHEN sits_out THEN l.role END,
		successor = to_candidate, successor_role = to_role,
		reserved_until = CASE WHEN to_candidate IS NOT NULL OR sits_out
			THEN greatest(t, not_before, l.not_before_at) + e.lease_duration END,
		not_before_at = greatest(not_before, l.not_before_at),
		held = CASE WHEN l.not_before_at IS NOT NULL THEN true ELSE is_hold END
		WHERE x.election = l.election;
	PERFORM leader_election_internal.end_term(l, reason, detail, t),
		leader_election_internal.notify(s, e, 'vacated', l.term, NULL, l.leader, reason, NULL, t);
END
$$;

-- Ten old rows go with each new one.
CREATE OR REPLACE FUNCTION leader_election_internal.prune(keep interval, most integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
	oldest timestamptz;
	removed integer := 0;
BEGIN
	SELECT h.acquired_at INTO oldest FROM leader_election.history h ORDER BY h.acquired_at LIMIT 1;
	IF oldest < clock_timestamp() - keep THEN
		DELETE FROM leader_election.history h USING (
			SELECT o.election, o.term FROM leader_election.history o
			WHERE o.acquired_at < clock_timestamp() - keep AND o.ended_at < clock_timestamp() - keep
			ORDER BY o.acquired_at LIMIT most FOR UPDATE SKIP LOCKED) old
			WHERE h.election = old.election AND h.term = old.term;
		GET DIAGNOSTICS removed = ROW_COUNT;
	END IF;
	RETURN removed;
END
$$;

--
-- Standing, and being elected
--

-- The election, which is made on first use
CREATE OR REPLACE FUNCTION leader_election_internal.get_or_create(el text, me name,
	s leader_election.server) RETURNS leader_election.election
LANGUAGE plpgsql AS $$
DECLARE
	e leader_election.election;
BEGIN
	SELECT * INTO e FROM leader_election.election x WHERE x.election = el;
	IF FOUND THEN
		RETURN e;
	END IF;
	IF NOT s.auto_create THEN
		RAISE EXCEPTION 'election "%" does not exist', el USING ERRCODE = 'LE003',
			HINT = 'Elections are not created on first use: leader_election.auto_create is off.';
	END IF;
	IF NOT has_function_privilege(me,
			'leader_election.create_election(text,text,interval,integer,interval,name,text,interval,interval)', 'EXECUTE') THEN
		RAISE EXCEPTION 'election "%" does not exist', el USING ERRCODE = 'LE003',
			DETAIL = format('Role "%s" may not create it: it lacks EXECUTE on leader_election.create_election().', me),
			HINT = 'Check its name, or have a role with that privilege create it.';
	END IF;
	e.election := el;
	e.strategy := 'race';
	e.lease_duration := s.lease_duration;
	e.quorum := 1;
	e.takeover_delay := '1 s';
	e.owner := current_user;
	IF leader_election_internal.create_row(e, s) THEN
		RAISE NOTICE 'election "%" does not exist, creating it with default settings', el;
	END IF;
	SELECT * INTO e FROM leader_election.election x WHERE x.election = el;
	IF NOT FOUND THEN
		PERFORM leader_election_internal.busy(el);
	END IF;
	RETURN e;
END
$$;

-- False: it is there.  Who creates the same one in a transaction that goes on is
-- waited for, a second at most.
CREATE OR REPLACE FUNCTION leader_election_internal.create_row(e leader_election.election,
	s leader_election.server) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
	wait CONSTANT text := current_setting('lock_timeout');
	made boolean;
	last bigint;
BEGIN
	BEGIN
		PERFORM set_config('lock_timeout', 2 * leader_election_internal.tries() || 'ms', true),
			leader_election_internal.write(e.lease_duration);
		INSERT INTO leader_election.election VALUES (e.*) ON CONFLICT DO NOTHING;
		made := FOUND;
		IF made THEN
			DELETE FROM leader_election.candidate c WHERE c.election = e.election;

			-- Written, not only read: a snapshot that is older than the drop would not
			-- see that row, and the terms would come again. Now that is 40001.
			INSERT INTO leader_election.dropped AS d (election, term) VALUES (e.election, s.dropped_term)
				ON CONFLICT ON CONSTRAINT dropped_pkey DO UPDATE SET term = greatest(d.term, EXCLUDED.term)
				RETURNING d.term INTO last;
			DELETE FROM leader_election.dropped d WHERE d.election = e.election;
			INSERT INTO leader_election.lease (election, after_term) VALUES (e.election, last);
		END IF;
		PERFORM set_config('lock_timeout', wait, true);
	EXCEPTION WHEN lock_not_available THEN
		PERFORM leader_election_internal.busy(e.election);
	END;
	RETURN made;
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.name_in_use(el text, who text, detail text,
	own boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'candidate name "%" is in use in election "%"', who, el
		USING ERRCODE = 'LE004', DETAIL = detail,
			HINT = 'Give each instance a name of its own.' || CASE WHEN own THEN ' If that session is this program''s, a connection pool lends it one connection now and another one then. Behind a transaction pooler use detached candidates: acquire().' ELSE '' END;
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.name_of(el text, who text, kind text, role name, pid integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM leader_election_internal.name_in_use(el, who,
		CASE kind WHEN 'detached' THEN format('A detached candidate of role "%s" stands under this name.', role)
			ELSE format('A session of role "%s" stands under this name: process ID %s.', role, pid) END,
		coalesce(pid = pg_backend_pid() AND role = leader_election_internal.caller(), false));
END
$$;

-- Stand: make the row of the candidate, or bring it up to date.  A heartbeat is
-- written when a third of a lease has passed.  A row that another call of the same
-- candidate has locked is being written by that call.
CREATE OR REPLACE FUNCTION leader_election_internal.stand(e leader_election.election,
	l leader_election.lease, s leader_election.server, who text, is_kind text, me name, key bigint,
	is_rank integer, is_progress bigint, is_metadata jsonb, t timestamptz)
RETURNS leader_election.candidate
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	c leader_election.candidate;
	wait CONSTANT text := current_setting('lock_timeout');
	same boolean;
	alive boolean;
BEGIN
	SELECT * INTO c FROM leader_election.candidate x WHERE x.election = e.election AND x.candidate = who;
	IF FOUND THEN
		same := c.kind = is_kind AND c.role = me AND c.session_id IS NOT DISTINCT FROM key;
		alive := leader_election_internal.is_alive(c, e.lease_duration, t);
		IF alive AND NOT same THEN
			PERFORM leader_election_internal.name_of(e.election, who, c.kind, c.role, c.backend_pid);
		END IF;
		IF same AND alive AND (key IS NOT NULL OR c.seen_at BETWEEN t - e.lease_duration / 3 AND t)
				AND coalesce(is_rank = c.rank, true) AND coalesce(is_progress = c.progress, true)
				AND coalesce(is_metadata = c.metadata, is_metadata IS NULL) THEN
			RETURN c;
		END IF;
	END IF;

	-- A crash or a promotion empties the table; the name is its leader's still.
	IF l.leader = who AND NOT (l.kind = is_kind AND l.role = me AND l.session_id IS NOT DISTINCT FROM key)
			AND leader_election_internal.state(l, s, t) = 'led' THEN
		PERFORM leader_election_internal.name_of(e.election, who, l.kind, l.role, l.backend_pid);
	END IF;

	IF c.candidate IS NULL THEN
		BEGIN
			PERFORM set_config('lock_timeout', 2 * leader_election_internal.tries() || 'ms', true);
			INSERT INTO leader_election.candidate AS n (election, candidate, kind, role, rank, progress,
					metadata, session_id, session_started, backend_pid, joined_at, seen_at)
				VALUES (e.election, who, is_kind, me, coalesce(is_rank, 0), coalesce(is_progress, 0),
					is_metadata, key, CASE WHEN key IS NOT NULL THEN pg_postmaster_start_time() END,
					CASE WHEN key IS NOT NULL THEN pg_backend_pid() END, t, t)
				ON CONFLICT (election, candidate) DO NOTHING;
			PERFORM set_config('lock_timeout', wait, true);
		EXCEPTION WHEN lock_not_available THEN
			PERFORM leader_election_internal.busy(e.election);
		END;
		SELECT * INTO c FROM leader_election.candidate x WHERE x.election = e.election AND x.candidate = who;
	ELSE
		PERFORM 1 FROM leader_election.candidate x
			WHERE x.election = e.election AND x.candidate = who FOR NO KEY UPDATE SKIP LOCKED;
		IF FOUND THEN
			UPDATE leader_election.candidate x SET kind = is_kind, role = me, session_id = key,
				session_started = CASE WHEN key IS NOT NULL THEN pg_postmaster_start_time() END,
				backend_pid = CASE WHEN key IS NOT NULL THEN pg_backend_pid() END, seen_at = t,
				joined_at = CASE WHEN same AND alive THEN joined_at ELSE t END,
				rank = coalesce(is_rank, CASE WHEN same AND alive THEN rank ELSE 0 END),
				progress = coalesce(is_progress, CASE WHEN same AND alive THEN progress ELSE 0 END),
				metadata = coalesce(is_metadata, CASE WHEN same AND alive THEN metadata END)
				WHERE x.election = e.election AND x.candidate = who
				AND (x.kind, x.role, x.session_id) IS NOT DISTINCT FROM (c.kind, c.role, c.session_id)
				RETURNING * INTO c;
			IF NOT FOUND THEN
				PERFORM leader_election_internal.busy(e.election);
			END IF;
		ELSIF NOT same THEN		-- it has ended, and its row is removed or taken just now
			PERFORM leader_election_internal.busy(e.election);
		END IF;
	END IF;
	IF c.candidate IS NULL OR NOT (c.kind = is_kind AND c.role = me AND c.session_id IS NOT DISTINCT FROM key) THEN
		PERFORM leader_election_internal.name_in_use(e.election, who,
			'Another candidate stood under this name just now.', false);
	END IF;
	RETURN c;
END
$$;

-- May this candidate be elected at t?  state is that of the row.  It is asked
-- twice: before the row is locked, so that who could not be elected locks and
-- writes nothing, and again when it is.
CREATE OR REPLACE FUNCTION leader_election_internal.may_lead(l leader_election.lease,
	e leader_election.election, s leader_election.server, state text, who text, me name,
	t timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
	live integer;
	left_alone boolean;
BEGIN
	IF state = 'led' OR leader_election_internal.grace(l, e, s) > t
			OR leader_election_internal.not_before(l, e, s, state, t) > t THEN
		RETURN false;
	END IF;

	-- A transfer, or an operator, has named who is next: for one lease at most,
	-- and while that candidate stands.
	IF (l.successor, l.successor_role) <> (who, me)
			AND t < (CASE state WHEN 'vacant' THEN l.reserved_until
				WHEN 'expired' THEN CASE WHEN l.yielding THEN l.expires_at + e.lease_duration END
				WHEN 'orphaned' THEN 'infinity' END) THEN
		PERFORM 1 FROM leader_election.candidate c
			WHERE c.election = l.election AND c.candidate = l.successor AND c.role = l.successor_role
			AND leader_election_internal.is_alive(c, e.lease_duration, t);
		IF FOUND THEN
			RETURN false;
		END IF;
	END IF;
	SELECT count(*), bool_and(c.candidate = who) INTO live, left_alone FROM leader_election.candidate c
		WHERE c.election = l.election AND leader_election_internal.is_alive(c, e.lease_duration, t);
	IF live < e.quorum THEN
		RETURN false;
	END IF;

	-- It has given up, let its lease run out, or lost its session: others first.
	-- But one that stands and does not call may not keep it out for ever.
	RETURN left_alone OR (l.successor, l.successor_role) IS NOT DISTINCT FROM (who, me)
		OR NOT coalesce(CASE state WHEN 'vacant' THEN (l.gave_up, l.gave_up_role) = (who, me) AND t < l.reserved_until
			WHEN 'expired' THEN (l.leader, l.role) = (who, me) AND t < l.expires_at + e.lease_duration
			WHEN 'orphaned' THEN (l.leader, l.role) = (who, me) END, false);
END
$$;

-- A candidate stands, and asks for the lease.  Returns it if the candidate leads:
-- if this very statement granted it, or an earlier call with this request, or
-- (a session) it led before.
CREATE OR REPLACE FUNCTION leader_election_internal.elect(el text, who text, is_kind text,
	key bigint, is_rank integer, is_progress bigint, is_metadata jsonb, is_run text, attempts integer,
	is_request uuid) RETURNS leader_election.lease_grant
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	me CONSTANT name := leader_election_internal.caller();
	nobody leader_election.lease_grant;		-- NULL
	granted jsonb := coalesce(nullif(current_setting('leader_election_portable.granted', true), ''), '{}');
	s leader_election.server;
	e leader_election.election;
	l leader_election.lease;
	c leader_election.candidate;
	t timestamptz;
	state text;
	previous text;
	reason text;
	new_term bigint;
BEGIN
	s := leader_election_internal.server(el);
	e := leader_election_internal.get_or_create(el, me, s);
	IF e.candidate_role IS NOT NULL THEN
		IF to_regrole(quote_ident(e.candidate_role)) IS NULL THEN
			RAISE EXCEPTION 'candidate_role "%" of election "%" does not exist', e.candidate_role, el
				USING ERRCODE = 'undefined_object',
					HINT = 'Create that role, or have the election''s owner name another one with leader_election.alter_election().';
		ELSIF NOT pg_has_role(me, e.candidate_role, 'MEMBER') THEN
			RAISE EXCEPTION 'permission denied to stand in election "%"', el
				USING ERRCODE = 'insufficient_privilege',
					DETAIL = format('Candidates must be members of role "%s".', e.candidate_role),
					HINT = 'Ask for membership in it.';
		END IF;
	END IF;

	-- The first look, without a lock: who finds a leader writes a heartbeat at
	-- most.
	SELECT * INTO l FROM leader_election.lease x WHERE x.election = el;
	IF NOT FOUND THEN
		PERFORM leader_election_internal.no_election(el);
	END IF;
	t := clock_timestamp();
	state := leader_election_internal.state(l, s, t);
	IF state = 'led' AND l.leader = who AND l.role = me AND l.kind = is_kind
			AND l.session_id IS NOT DISTINCT FROM key AND l.run IS NOT DISTINCT FROM is_run
			AND (key IS NOT NULL OR l.request = is_request OR granted -> el = to_jsonb(l.term)) THEN
		c := leader_election_internal.stand(e, l, s, who, is_kind, me, key, is_rank, is_progress, is_metadata, t);
		IF l.expires_at > t + l.duration THEN
			l := leader_election_internal.shorten(l);
		END IF;
		RETURN CASE WHEN l.term IS NOT NULL THEN leader_election_internal.grant_of(l) END;
	END IF;
	IF is_run IS NOT NULL AND NOT leader_election_internal.may_run(l, is_run, attempts) THEN
		-- It does not stand: no quorum counts it.
		DELETE FROM leader_election.candidate x USING (
			SELECT y.candidate FROM leader_election.candidate y WHERE y.election = el AND y.candidate = who
			AND y.role = me AND y.kind = is_kind FOR UPDATE SKIP LOCKED) own
			WHERE x.election = el AND x.candidate = own.candidate
			AND (l.leader, l.role) IS DISTINCT FROM (who, me);
		RETURN nobody;
	END IF;
	c := leader_election_internal.stand(e, l, s, who, is_kind, me, key, is_rank, is_progress, is_metadata, t);
	IF state = 'led' AND l.expires_at <= t + l.duration
			OR state IN ('vacant', 'expired', 'stale')
			AND NOT leader_election_internal.may_lead(l, e, s, state, who, me, t)
			AND NOT leader_election_internal.is_delayed_too_long(l, e, t) THEN
		RETURN nobody;
	END IF;

	-- Something may be due.  The clock and the settings are read anew when the row is
	-- locked.
	--
	-- The row may be locked for long, by a fence.  join() and campaign(), which ask
	-- again, only try.  acquire() waits, for an eighth of a lease: so a candidate that
	-- calls again a third of a lease after each answer is live all the time.  (A call
	-- that comes just before a heartbeat is due ends 1/3 + 1/8 after the last one; the
	-- next one, which writes it, commits 1/3 + 1/8 after that.)  An error would undo
	-- a heartbeat that this call has written, and who calls again and again would be
	-- taken for dead: so nothing is granted, and that is all.  But who asks for a run
	-- goes by the answer, and is told.
	--
	-- One that left meanwhile, by leave(), is not elected: its row is gone, or leave()
	-- has it locked.
	PERFORM 1 FROM leader_election.candidate x WHERE x.election = el AND x.candidate = who AND x.role = me
		AND x.kind = is_kind AND x.session_id IS NOT DISTINCT FROM key FOR KEY SHARE SKIP LOCKED;
	IF NOT FOUND THEN
		RETURN nobody;
	END IF;
	PERFORM leader_election_internal.write(e.lease_duration);
	l := leader_election_internal.lock_lease(el, true,
		CASE WHEN is_kind = 'detached' THEN e.lease_duration / 8 ELSE '0' END,
		is_kind = 'detached' AND (is_run IS NOT NULL OR c.seen_at <> t));
	IF l.election IS NULL THEN
		RETURN nobody;
	END IF;
	t := clock_timestamp();
	SELECT * INTO e FROM leader_election.election x WHERE x.election = el;
	state := leader_election_internal.state(l, s, t);
	IF state = 'led' THEN
		IF l.expires_at > t + l.duration THEN
			-- The clock was set back.  A lease lasts for its length at most.
			UPDATE leader_election.lease SET expires_at = t + l.duration WHERE election = el;
		END IF;
		RETURN nobody;
	END IF;
	IF leader_election_internal.is_delayed_too_long(l, e, t) THEN
		UPDATE leader_election.lease SET not_before_at = t + e.takeover_delay WHERE election = el;
		RETURN nobody;
	END IF;
	IF is_run IS NOT NULL AND NOT leader_election_internal.may_run(l, is_run, attempts) THEN
		RETURN nobody;
	END IF;
	IF NOT leader_election_internal.may_lead(l, e, s, state, who, me, t) THEN
		IF state = 'orphaned' THEN
			-- The takeover delay counts from here, and for how long it sits out if
			-- it is back already, or another one was named: that must be noted.
			PERFORM leader_election_internal.vacate(l, e, s, 'session ended', NULL,
				t + e.takeover_delay, false, true, l.successor, l.successor_role, t);
		END IF;
		RETURN nobody;
	END IF;
	IF state <> 'vacant' THEN
		previous := l.leader;
		reason := leader_election_internal.reason(l, state);
		PERFORM leader_election_internal.end_term(l, reason, NULL, t);
	END IF;
	new_term := leader_election_internal.next_term(l, s);
	PERFORM leader_election_internal.replace_row(el);
	UPDATE leader_election.lease SET term = new_term, previous_term = NULL, leader = who, kind = is_kind,
		session_id = key, session_started = c.session_started, backend_pid = c.backend_pid, role = me,
		rank = c.rank, progress = c.progress, metadata = c.metadata, metadata_at = NULL,
		acquired_at = t, renewed_at = t, expires_at = t + e.lease_duration, duration = e.lease_duration,
		identity = s.identity, yielding = false, successor = NULL, successor_role = NULL,
		reserved_until = NULL, not_before_at = NULL, held = NULL, gave_up = NULL, gave_up_role = NULL,
		run = is_run, run_role = CASE WHEN is_run IS NOT NULL THEN me END,
		run_attempts = CASE WHEN is_run IS NULL THEN run_attempts
			WHEN is_run = run_granted THEN run_attempts + 1 ELSE 1 END,
		run_granted = coalesce(is_run, run_granted), request = is_request
		WHERE election = el RETURNING term, expires_at, duration, yielding
			INTO l.term, l.expires_at, l.duration, l.yielding;
	INSERT INTO leader_election.history (election, term, leader, acquired_at, kind, role, client_addr, backend_pid)
		VALUES (el, new_term, who, t, is_kind, me, inet_client_addr(), c.backend_pid);

	-- Each one that has ended costs a lock whenever candidates are counted.
	DELETE FROM leader_election.candidate x USING (
		SELECT y.candidate FROM leader_election.candidate y WHERE y.election = el
		AND leader_election_internal.has_ended(y, e.lease_duration) LIMIT 10 FOR UPDATE SKIP LOCKED) ended
		WHERE x.election = el AND x.candidate = ended.candidate;
	PERFORM leader_election_internal.prune(s.history_retention, 10),
		leader_election_internal.notify(s, e, 'elected', new_term, who, previous, reason, NULL, t),
		set_config('leader_election_portable.granted', (granted || jsonb_build_object(el, new_term))::text, true);
	RETURN leader_election_internal.grant_of(l);
END
$$;

CREATE OR REPLACE FUNCTION leader_election.acquire(election text, candidate text,
	rank integer DEFAULT NULL, progress bigint DEFAULT NULL,
	metadata jsonb DEFAULT NULL, run text DEFAULT NULL,
	attempts integer DEFAULT NULL, request uuid DEFAULT NULL)
RETURNS SETOF leader_election.lease_grant
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 1 SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	entered CONSTANT boolean := leader_election_internal.enter('acquire');
	g leader_election.lease_grant;		-- no table's type: that would look at the table first
BEGIN
	-- Most calls find another leader, and have told a while ago that they are alive.
	-- One look is enough to see that such a call has nothing to do: it tells nobody
	-- anything, so it needs no lock, and nothing is done in the name of who calls.
	-- Whatever is not as plain as that goes the long way.
	IF EXISTS (SELECT 1 FROM leader_election.election e, leader_election.lease l, leader_election.candidate c,
				leader_election.server s
			WHERE $6 IS NULL AND $7 IS NULL
			AND e.election = $1 COLLATE "C" AND e.candidate_role IS NULL
			AND l.election = $1 COLLATE "C" AND l.leader <> $2 COLLATE "C" AND l.expires_at <= clock_timestamp() + l.duration
			AND leader_election_internal.is_led(l, s, clock_timestamp())
			AND s.started_at = pg_postmaster_start_time() AND s.first_seen_at <= clock_timestamp()
			AND c.election = $1 COLLATE "C" AND c.candidate = $2 COLLATE "C" AND c.kind = 'detached'
			AND c.role = leader_election_internal.session_role()
			AND c.seen_at BETWEEN clock_timestamp() - e.lease_duration / 3 AND clock_timestamp()
			AND coalesce($3 = c.rank, true) AND coalesce($4 = c.progress, true)
			AND coalesce($5 = c.metadata, $5 IS NULL)) THEN
		RETURN;
	END IF;
	IF (octet_length($1) BETWEEN 1 AND 200 AND octet_length($2) BETWEEN 1 AND 200 AND $5 IS NULL) IS NOT TRUE THEN
		PERFORM leader_election_internal.check_text('election name', $1, 1, 200),
			leader_election_internal.check_text('candidate name', $2, 1, 200),
			leader_election_internal.check_metadata($5);
	END IF;
	IF $6 IS NOT NULL THEN
		PERFORM leader_election_internal.check_text('run', $6, 1, 200);
	END IF;
	IF $7 IS NOT NULL AND ($6 IS NULL OR $7 < 1) THEN
		RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
			MESSAGE = CASE WHEN $6 IS NULL THEN 'attempts are given, but no run'
				ELSE 'attempts is out of range: ' || $7 END,
			DETAIL = 'It is how often a run may be granted, 1 or more.';
	END IF;
	g := leader_election_internal.elect($1 COLLATE "C", $2, 'detached', NULL, $3, $4, $5, $6, $7, $8);
	IF g.term IS NOT NULL THEN
		RETURN NEXT g;
	END IF;
END
$$;

CREATE OR REPLACE FUNCTION leader_election.join(election text, candidate text,
	rank integer DEFAULT NULL, progress bigint DEFAULT NULL,
	metadata jsonb DEFAULT NULL, auto_renew boolean DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	key bigint;
	c record;
BEGIN
	PERFORM leader_election_internal.enter('join');
	IF (octet_length($1) BETWEEN 1 AND 200 AND octet_length($2) BETWEEN 1 AND 200 AND $5 IS NULL) IS NOT TRUE THEN
		PERFORM leader_election_internal.check_text('election name', $1, 1, 200),
			leader_election_internal.check_text('candidate name', $2, 1, 200),
			leader_election_internal.check_metadata($5);
	END IF;
	key := leader_election_internal.live_key();
	IF key IS NULL THEN
		PERFORM leader_election_internal.check_reset($1 COLLATE "C");
	END IF;
	SELECT x.candidate, x.role INTO c FROM leader_election.candidate x
		WHERE x.election = $1 COLLATE "C" AND x.session_id = key;

	-- NULL: as it stands already
	IF $6 OR $6 IS NULL AND c.candidate IS NULL THEN
		RAISE EXCEPTION 'auto_renew is not in the portable edition' USING ERRCODE = 'feature_not_supported',
			HINT = 'Pass auto_renew => false, and call renew().';
	END IF;
	IF key IS NULL THEN
		key := leader_election_internal.take_key();
	ELSE
		IF c.role <> leader_election_internal.caller() THEN
			PERFORM leader_election_internal.not_owner($1, c.candidate, c.role);
		ELSIF c.candidate <> $2 COLLATE "C" THEN
			RAISE EXCEPTION 'this session stands in election "%" already, as candidate "%"', $1, c.candidate
				USING ERRCODE = 'LE004',
					HINT = 'Two clients may share this session. Behind a transaction pooler use detached candidates: acquire().';
		END IF;
	END IF;
	RETURN (leader_election_internal.elect($1 COLLATE "C", $2, 'session', key, $3, $4, $5, NULL, NULL, NULL)).term;
END
$$;

-- Neither SECURITY DEFINER nor SET, either of which forbids COMMIT: so everything
-- is qualified.  It polls: nothing tells it of a session's end.
CREATE OR REPLACE PROCEDURE leader_election.campaign(election text, candidate text,
	timeout interval DEFAULT NULL, rank integer DEFAULT NULL,
	progress bigint DEFAULT NULL, metadata jsonb DEFAULT NULL,
	auto_renew boolean DEFAULT NULL, INOUT term bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	stood pg_catalog.bool;
	until pg_catalog.timestamptz := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) $3;
BEGIN
	IF $3 OPERATOR(pg_catalog.<) '0'::pg_catalog.interval
			OR $3 OPERATOR(pg_catalog.>) '100000 days'::pg_catalog.interval THEN
		RAISE EXCEPTION 'timeout is out of range: %', $3 USING ERRCODE = 'invalid_parameter_value',
			DETAIL = 'It must be from 00:00:00 to 100000 days.';
	END IF;
	stood := leader_election._stands($1);
	LOOP
		term := leader_election.join($1, $2, $4, $5, $6, $7);
		COMMIT;
		EXIT WHEN term IS NOT NULL OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>=) until;
		PERFORM pg_catalog.pg_sleep(0.05);
	END LOOP;
	IF term IS NULL AND NOT stood THEN
		PERFORM leader_election.leave($1);
		COMMIT;
	END IF;
END
$$;

-- Does this session stand there?  campaign() begins with it.
CREATE OR REPLACE FUNCTION leader_election._stands(election text) RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	key bigint;
BEGIN
	PERFORM leader_election_internal.enter('campaign');
	key := leader_election_internal.live_key();
	RETURN EXISTS (SELECT 1 FROM leader_election.candidate c WHERE c.election = $1 COLLATE "C" AND c.session_id = key);
END
$$;

--
-- What this session leads.  NULL: nothing.
--

CREATE OR REPLACE FUNCTION leader_election_internal.own(el text, OUT l leader_election.lease, OUT t timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
	key bigint;
	s leader_election.server;
	seen leader_election.lease;
BEGIN
	IF pg_is_in_recovery() THEN
		RETURN;
	END IF;
	key := leader_election_internal.live_key();
	SELECT * INTO seen FROM leader_election.lease x
		WHERE x.election = el AND x.session_id = key AND x.session_started = pg_postmaster_start_time();
	IF NOT FOUND THEN
		RETURN;
	END IF;
	SELECT * INTO s FROM leader_election.server;
	t := clock_timestamp();
	IF leader_election_internal.is_led(seen, s, t) THEN
		l := seen;
	END IF;
END
$$;

-- The same, by a row that may not be undone
CREATE OR REPLACE FUNCTION leader_election_internal.own_committed(el text) RETURNS leader_election.lease
LANGUAGE plpgsql AS $$
DECLARE
	l CONSTANT leader_election.lease := (SELECT o.l FROM leader_election_internal.own(el) o);
BEGIN
	IF pg_current_xact_id_if_assigned() IS NOT NULL AND NOT leader_election_internal.is_committed(
			(SELECT x.xmin FROM leader_election.lease x WHERE x.election = el)) THEN
		RETURN NULL;
	END IF;
	RETURN l;
END
$$;

CREATE OR REPLACE FUNCTION leader_election.is_leader(election text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
	RETURN (leader_election_internal.own_committed($1 COLLATE "C")).term IS NOT NULL;
END
$$;

CREATE OR REPLACE FUNCTION leader_election.term(election text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
	RETURN (leader_election_internal.own_committed($1 COLLATE "C")).term;
END
$$;

CREATE OR REPLACE FUNCTION leader_election.remaining_ms(election text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
	l CONSTANT leader_election.lease := leader_election_internal.own_committed($1 COLLATE "C");
BEGIN
	-- The clock was set back: for how long is known with the next renewal.
	RETURN CASE WHEN l.expires_at > clock_timestamp() + l.duration THEN 0
		WHEN l.term IS NOT NULL THEN (leader_election_internal.grant_of(l)).remaining_ms END;
END
$$;

--
-- The holder's calls
--

CREATE OR REPLACE FUNCTION leader_election_internal.check_role(el text, role name) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	IF role <> leader_election_internal.caller() THEN
		RAISE EXCEPTION 'permission denied for the lease of election "%"', el
			USING ERRCODE = 'insufficient_privilege',
				DETAIL = format('It was granted to role "%s".', role),
				HINT = 'Only that role may touch it: use SET ROLE.';
	END IF;
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.not_owner(el text, who text, role name) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'permission denied for candidate "%" of election "%"', who, el
		USING ERRCODE = 'insufficient_privilege', DETAIL = format('It was made by role "%s".', role),
			HINT = 'Only that role may touch it: use SET ROLE.';
END
$$;

-- May a caller that knows the term act for its holder?  instead: what a session
-- calls.
CREATE OR REPLACE FUNCTION leader_election_internal.check_holder(l leader_election.lease, term bigint,
	instead text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	IF l.leader IS NULL OR term IS DISTINCT FROM l.term AND term IS DISTINCT FROM l.previous_term THEN
		RETURN;
	END IF;
	IF l.kind = 'session' AND NOT leader_election_internal.is_dead(l.kind, l.session_id, l.session_started) THEN
		RAISE EXCEPTION 'election "%" is led by a session in term %', l.election, l.term
			USING ERRCODE = 'invalid_parameter_value', HINT = format('Call %s in that session.', instead);
	END IF;
	PERFORM leader_election_internal.check_role(l.election, l.role);
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.check_term(term bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	IF term IS NULL THEN
		RAISE EXCEPTION 'term must not be null' USING ERRCODE = 'invalid_parameter_value';
	END IF;
END
$$;

-- The leader says something of itself: its candidacy remembers it.  The lease is
-- locked already, so a row that is busy is left as it is, and one that a crash or a
-- promotion took away is not made again: an INSERT might wait.  (Observers count a
-- leader without a row.)  A leader that is detached sends a heartbeat with it.
CREATE OR REPLACE FUNCTION leader_election_internal.refresh(l leader_election.lease,
	e leader_election.election, is_progress bigint, is_metadata jsonb, t timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	c leader_election.candidate;
BEGIN
	SELECT * INTO c FROM leader_election.candidate x WHERE x.election = l.election AND x.candidate = l.leader;
	IF NOT FOUND OR c.role <> l.role OR c.kind <> l.kind OR is_progress IS NULL AND is_metadata IS NULL
			AND (l.kind = 'session' OR c.seen_at BETWEEN t - e.lease_duration / 3 AND t) THEN
		RETURN;
	END IF;
	PERFORM 1 FROM leader_election.candidate x WHERE x.election = l.election AND x.candidate = l.leader
		FOR NO KEY UPDATE SKIP LOCKED;
	IF FOUND THEN
		UPDATE leader_election.candidate x SET seen_at = t, progress = coalesce(is_progress, progress),
			metadata = coalesce(is_metadata, metadata)
			WHERE x.election = l.election AND x.candidate = l.leader;
	END IF;
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.renew(text, bigint, bigint, jsonb) RETURNS leader_election.lease_grant
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	by_term CONSTANT boolean := $2 IS NOT NULL;
	key bigint;
	s leader_election.server;
	e leader_election.election;
	l leader_election.lease;
	t timestamptz;
	until timestamptz;
	new_term bigint;
	changes boolean;
BEGIN
	s := leader_election_internal.server($1);
	SELECT * INTO e FROM leader_election.election x WHERE x.election = $1;
	IF NOT FOUND THEN
		PERFORM leader_election_internal.no_election($1);
	END IF;
	IF NOT by_term THEN
		key := leader_election_internal.live_key();
		IF key IS NULL THEN
			PERFORM leader_election_internal.check_reset($1);
			RETURN NULL;
		END IF;
	END IF;
	SELECT * INTO l FROM leader_election.lease x WHERE x.election = $1;
	IF l.leader IS NULL THEN
		RETURN NULL;
	ELSIF by_term THEN
		PERFORM leader_election_internal.check_holder(l, $2, 'renew(election)');
		IF l.kind = 'session' OR $2 <> l.term AND $2 IS DISTINCT FROM l.previous_term THEN
			RETURN NULL;		-- neither a session that has ended nor an old term comes back: no lock is needed to say so
		END IF;
	ELSE
		IF l.session_id IS DISTINCT FROM key OR l.session_started <> pg_postmaster_start_time() THEN
			RETURN NULL;
		END IF;
		PERFORM leader_election_internal.check_role($1, l.role);
	END IF;
	PERFORM leader_election_internal.write(e.lease_duration);
	IF l.identity IS DISTINCT FROM s.identity THEN
		l := leader_election_internal.lock_lease($1, true);
	END IF;
	IF l.identity IS DISTINCT FROM s.identity THEN
		-- A leader of the former server goes on here, in a new term.  That is a
		-- change of holder to all fences.  (If it has gone on while we waited for the
		-- lock, in a call whose answer it may have missed, this one renews.)
		t := clock_timestamp();
		SELECT * INTO e FROM leader_election.election x WHERE x.election = $1;
		IF NOT by_term OR l.leader IS NULL
				OR $2 <> l.term AND $2 IS DISTINCT FROM l.previous_term
				OR t >= leader_election_internal.grace(l, e, s) THEN
			RETURN NULL;
		END IF;
		PERFORM leader_election_internal.end_term(l, 'failover', NULL, t);
		new_term := leader_election_internal.next_term(l, s);
		PERFORM leader_election_internal.replace_row($1);

		-- On the former server the lease may last longer than leases are granted for
		-- now. The hold keeps others from following before the grace is over, even if
		-- the holder gives up here.
		UPDATE leader_election.lease SET previous_term = $2, term = new_term, identity = s.identity,
			acquired_at = t, renewed_at = t, expires_at = t + greatest(duration, e.lease_duration),
			duration = greatest(duration, e.lease_duration),
			not_before_at = leader_election_internal.grace(l, e, s) + e.takeover_delay, held = true,
			progress = coalesce($3, progress), metadata = coalesce($4, metadata),
			metadata_at = CASE WHEN $4 IS NOT NULL AND $4 IS DISTINCT FROM metadata THEN t ELSE metadata_at END,
			yielding = false, successor = NULL, successor_role = NULL, request = NULL
			WHERE election = $1 RETURNING * INTO l;
		INSERT INTO leader_election.history (election, term, leader, acquired_at, kind, role, client_addr)
			VALUES ($1, new_term, l.leader, t, l.kind, l.role, inet_client_addr());
		PERFORM leader_election_internal.refresh(l, e, $3, $4, t),
			leader_election_internal.notify(s, e, 'elected', new_term, l.leader, l.leader, 'failover', NULL, t);
		RETURN leader_election_internal.grant_of(l);
	END IF;

	-- The settings again, too: alter_election() may have made the lease shorter while
	-- we waited, and nobody is to get the longer one once it has committed.
	l := leader_election_internal.lock_lease($1, false);
	t := clock_timestamp();
	SELECT * INTO e FROM leader_election.election x WHERE x.election = $1;
	IF l.leader IS NULL OR l.identity IS DISTINCT FROM s.identity OR t >= l.expires_at
			OR by_term AND $2 <> l.term AND $2 IS DISTINCT FROM l.previous_term
			OR NOT by_term AND l.session_id IS DISTINCT FROM key THEN
		RETURN NULL;
	END IF;
	changes := $4 IS NOT NULL AND $4 IS DISTINCT FROM l.metadata;
	until := CASE WHEN l.yielding THEN least(l.expires_at, t + l.duration)
		ELSE greatest(t + e.lease_duration, least(l.expires_at, t + l.duration)) END;
	UPDATE leader_election.lease SET expires_at = until,
		renewed_at = CASE WHEN yielding THEN renewed_at ELSE t END,
		duration = CASE WHEN yielding THEN duration ELSE leader_election_internal.seconds(until - t) END,
		previous_term = CASE WHEN term = $2 THEN NULL ELSE previous_term END, request = NULL,
		progress = coalesce($3, progress), metadata = coalesce($4, metadata),
		metadata_at = CASE WHEN changes THEN t ELSE metadata_at END
		WHERE election = $1 RETURNING term, expires_at, duration, yielding
			INTO l.term, l.expires_at, l.duration, l.yielding;
	PERFORM leader_election_internal.refresh(l, e, $3, CASE WHEN changes THEN $4 END, t);
	IF changes THEN
		PERFORM leader_election_internal.notify(s, e, 'metadata_changed', l.term, l.leader, NULL, NULL, NULL, t);
	END IF;
	RETURN leader_election_internal.grant_of(l);
END
$$;

-- For how many milliseconds the server keeps this session while its client is silent;
-- NULL: no such limit is known.  Its client must not count on a lease for longer: if
-- its network is cut, another candidate leads when the session has ended.
CREATE OR REPLACE FUNCTION leader_election_internal.session_lasts() RETURNS bigint
LANGUAGE sql AS $$
	SELECT min(ms)::bigint
	FROM (VALUES (1000 * (current_setting('tcp_keepalives_idle')::bigint
			+ current_setting('tcp_keepalives_interval')::bigint * current_setting('tcp_keepalives_count')::bigint)),
		(current_setting('tcp_user_timeout')::bigint),
		(1000 * extract(epoch FROM current_setting('idle_session_timeout')::interval))) AS v(ms)
	WHERE ms > 0
$$;

CREATE OR REPLACE FUNCTION leader_election.renew(election text,
	term bigint DEFAULT NULL, progress bigint DEFAULT NULL,
	metadata jsonb DEFAULT NULL)
RETURNS SETOF leader_election.lease_grant
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 1 SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	entered CONSTANT boolean := leader_election_internal.enter('renew');
	g leader_election.lease_grant;
BEGIN
	IF (octet_length($1) BETWEEN 1 AND 200 AND $4 IS NULL) IS NOT TRUE THEN
		PERFORM leader_election_internal.check_text('election name', $1, 1, 200),
			leader_election_internal.check_metadata($4);
	END IF;
	g := leader_election_internal.renew($1 COLLATE "C", $2, $3, $4);
	IF $2 IS NULL THEN
		g.remaining_ms := LEAST(g.remaining_ms, leader_election_internal.session_lasts());
	END IF;
	IF g.term IS NOT NULL THEN
		RETURN NEXT g;
	END IF;
END
$$;

-- The holder of a term (or, term NULL, this session) gives up.  True if it led,
-- or its run was recorded as done.
CREATE OR REPLACE FUNCTION leader_election_internal.give_up(el text, term bigint, key bigint,
	instead text, reason text, hold interval, done boolean, to_candidate text) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	of_term CONSTANT bigint := $2;
	s leader_election.server;
	e leader_election.election;
	l leader_election.lease;
	c leader_election.candidate;
	t timestamptz;
	state text;
	holds boolean;
	finishes boolean := false;
BEGIN
	s := leader_election_internal.server(el);
	SELECT * INTO e FROM leader_election.election x WHERE x.election = el;
	IF NOT FOUND THEN
		PERFORM leader_election_internal.no_election(el);
	END IF;
	SELECT * INTO l FROM leader_election.lease x WHERE x.election = el;
	IF of_term IS NOT NULL THEN
		PERFORM leader_election_internal.check_holder(l, of_term, instead);
		IF done AND (of_term = l.term OR of_term = l.previous_term) THEN
			IF l.run IS NOT NULL THEN
				PERFORM leader_election_internal.check_role(el, l.run_role);
				finishes := true;
			ELSIF l.leader IS NOT NULL THEN
				RAISE EXCEPTION 'term % of election "%" was granted for no run', of_term, el
					USING ERRCODE = 'invalid_parameter_value',
						HINT = 'Name the run in the call that asks for the lease: acquire(election, candidate, run => ...).';
			END IF;
		END IF;
		IF NOT finishes AND (l.leader IS NULL OR of_term <> l.term AND of_term IS DISTINCT FROM l.previous_term) THEN
			RETURN false;
		END IF;
	ELSIF l.session_id IS DISTINCT FROM key OR l.session_started IS DISTINCT FROM pg_postmaster_start_time() THEN
		RETURN false;
	ELSE
		PERFORM leader_election_internal.check_role(el, l.role);
	END IF;

	PERFORM leader_election_internal.write(e.lease_duration);
	l := leader_election_internal.lock_lease(el, true);
	t := clock_timestamp();
	SELECT * INTO e FROM leader_election.election x WHERE x.election = el;
	state := leader_election_internal.state(l, s, t);
	holds := CASE WHEN of_term IS NOT NULL THEN of_term = l.term OR of_term IS NOT DISTINCT FROM l.previous_term
		ELSE l.session_id IS NOT DISTINCT FROM key END;
	IF NOT holds THEN
		RETURN false;
	END IF;
	IF finishes AND l.run IS NOT NULL AND (l.run_done IS NULL OR l.run > l.run_done) THEN
		UPDATE leader_election.lease SET run_done = run, done_at = t WHERE election = el;
	END IF;
	IF state = 'stale' AND NOT finishes THEN
		IF leader_election_internal.grace(l, e, s) > t THEN
			PERFORM leader_election_internal.busy(el);		-- renew() continues it first
		END IF;
		RETURN false;
	ELSIF state <> 'led' THEN
		RETURN finishes;
	END IF;
	IF to_candidate IS NOT NULL THEN
		c := leader_election_internal.named(el, to_candidate, e, t);
		IF l.leader = to_candidate THEN
			RAISE EXCEPTION 'candidate "%" cannot transfer election "%" to itself', to_candidate, el
				USING ERRCODE = 'invalid_parameter_value';
		END IF;
	ELSIF l.yielding AND l.successor IS NOT NULL THEN
		SELECT * INTO c FROM leader_election.candidate x WHERE x.election = el
			AND (x.candidate, x.role) = (l.successor, l.successor_role);
	END IF;
	PERFORM leader_election_internal.vacate(l, e, s,
		CASE WHEN l.yielding AND reason = 'resigned' THEN 'yielded' ELSE reason END,
		CASE WHEN to_candidate IS NOT NULL THEN 'to ' || to_candidate
			ELSE nullif(concat_ws(', ', CASE WHEN done THEN 'done' END, 'hold ' || hold), '') END,
		CASE WHEN hold > '0' THEN l.acquired_at + leader_election_internal.seconds(hold) END, CASE WHEN hold > '0' THEN true END,
		reason <> 'left', c.candidate, c.role, t);
	RETURN true;
END
$$;

-- A live candidate that was named
CREATE OR REPLACE FUNCTION leader_election_internal.named(el text, who text, e leader_election.election,
	t timestamptz) RETURNS leader_election.candidate
LANGUAGE plpgsql AS $$
DECLARE
	c leader_election.candidate;
BEGIN
	SELECT * INTO c FROM leader_election.candidate x WHERE x.election = el AND x.candidate = who
		AND leader_election_internal.is_alive(x, e.lease_duration, t);
	IF NOT FOUND THEN
		RAISE EXCEPTION '"%" is not a live candidate of election "%"', who, el USING ERRCODE = 'LE005',
			HINT = 'The view leader_election.candidates shows who stands.';
	END IF;
	RETURN c;
END
$$;

CREATE OR REPLACE FUNCTION leader_election.release(election text, term bigint,
	hold interval DEFAULT NULL, done boolean DEFAULT false)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	entered CONSTANT boolean := leader_election_internal.enter('release');
BEGIN
	IF (octet_length($1) BETWEEN 1 AND 200 AND $2 IS NOT NULL AND $3 IS NULL) IS NOT TRUE THEN
		PERFORM leader_election_internal.check_text('election name', $1, 1, 200),
			leader_election_internal.check_term($2),
			leader_election_internal.check_interval('hold', $3, '0', '366 days');
	END IF;
	RETURN leader_election_internal.give_up($1 COLLATE "C", $2, NULL, 'resign(election)', 'resigned',
		$3, coalesce($4, false), NULL);
END
$$;

CREATE OR REPLACE FUNCTION leader_election.transfer(election text, term bigint,
	to_candidate text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM leader_election_internal.enter('transfer'),
		leader_election_internal.check_text('election name', $1, 1, 200),
		leader_election_internal.check_term($2),
		leader_election_internal.check_text('candidate name', $3, 1, 200);
	RETURN leader_election_internal.give_up($1 COLLATE "C", $2, NULL, 'transfer(election, to_candidate)',
		'transferred', NULL, false, $3);
END
$$;

CREATE OR REPLACE FUNCTION leader_election.transfer(election text, to_candidate text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	key bigint;
BEGIN
	PERFORM leader_election_internal.enter('transfer'),
		leader_election_internal.check_text('election name', $1, 1, 200),
		leader_election_internal.check_text('candidate name', $2, 1, 200);
	key := leader_election_internal.live_key();
	IF EXISTS (SELECT 1 FROM leader_election.candidate c WHERE c.election = $1 COLLATE "C" AND c.candidate = $2 COLLATE "C"
			AND c.session_id = key) THEN
		RAISE EXCEPTION 'candidate "%" cannot transfer election "%" to itself', $2, $1
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	RETURN leader_election_internal.give_up($1 COLLATE "C", NULL, key, NULL, 'transferred', NULL, false, $2);
END
$$;

CREATE OR REPLACE FUNCTION leader_election.resign(election text, hold interval DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM leader_election_internal.enter('resign'),
		leader_election_internal.check_text('election name', $1, 1, 200),
		leader_election_internal.check_interval('hold', $2, '0', '366 days');
	RETURN leader_election_internal.give_up($1 COLLATE "C", NULL, leader_election_internal.live_key(), NULL,
		'resigned', $2, false, NULL);
END
$$;

-- The candidate's row goes last: until this commits, who looks for others to
-- elect may still count it, and no more than that.
CREATE OR REPLACE FUNCTION leader_election_internal.leave_session(el text, key bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
	c leader_election.candidate;
BEGIN
	SELECT * INTO c FROM leader_election.candidate x WHERE x.election = el AND x.session_id = key
		AND x.session_started = pg_postmaster_start_time();
	IF c.role <> leader_election_internal.caller() THEN
		PERFORM leader_election_internal.not_owner(el, c.candidate, c.role);
	END IF;
	PERFORM leader_election_internal.give_up(el, NULL, key, NULL, 'left', NULL, false, NULL);
	DELETE FROM leader_election.candidate x WHERE x.election = el AND x.candidate = c.candidate
		AND x.session_id = key;
	RETURN FOUND;
END
$$;

CREATE OR REPLACE FUNCTION leader_election.leave(election text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM leader_election_internal.enter('leave'),
		leader_election_internal.check_text('election name', $1, 1, 200);
	RETURN leader_election_internal.leave_session($1 COLLATE "C", leader_election_internal.live_key());
END
$$;

CREATE OR REPLACE FUNCTION leader_election.leave_all()
RETURNS integer
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	key bigint;
	el text;
	n integer := 0;
BEGIN
	PERFORM leader_election_internal.enter('leave_all');
	key := leader_election_internal.live_key();
	FOR el IN SELECT c.election FROM leader_election.candidate c
			WHERE c.session_id = key AND c.session_started = pg_postmaster_start_time() ORDER BY 1 LOOP
		IF leader_election_internal.leave_session(el, key) THEN
			n := n + 1;
		END IF;
	END LOOP;
	RETURN n;
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.leave(text, text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
	me CONSTANT name := leader_election_internal.caller();
	s leader_election.server;
	e leader_election.election;
	l leader_election.lease;
	c leader_election.candidate;
	t timestamptz;
	tries integer;
BEGIN
	s := leader_election_internal.server($1);
	SELECT * INTO e FROM leader_election.election x WHERE x.election = $1;
	IF NOT FOUND THEN
		PERFORM leader_election_internal.no_election($1);
	END IF;

	-- Its row is locked first: nobody elects it from then on, for its own calls
	-- are the only ones that do, and these lock that row before the lease.  The lease
	-- is locked, too: if it was granted after this snapshot was made, that is 40001.
	LOOP
		SELECT * INTO c FROM leader_election.candidate x WHERE x.election = $1 AND x.candidate = $2;
		t := clock_timestamp();
		IF NOT FOUND OR NOT leader_election_internal.is_alive(c, e.lease_duration, t) THEN
			RETURN false;
		ELSIF c.kind = 'session' THEN
			RAISE EXCEPTION 'candidate "%" of election "%" is a session', $2, $1
				USING ERRCODE = 'invalid_parameter_value', HINT = 'Call leave(election) in that session.';
		ELSIF c.role <> me THEN
			PERFORM leader_election_internal.not_owner($1, $2, c.role);
		END IF;
		PERFORM 1 FROM leader_election.candidate x WHERE x.election = $1 AND x.candidate = $2
			AND x.kind = c.kind AND x.role = c.role FOR UPDATE SKIP LOCKED;
		EXIT WHEN FOUND;
		tries := coalesce(tries, leader_election_internal.tries()) - 1;
		IF tries < 0 THEN
			PERFORM leader_election_internal.busy($1);
		END IF;
		PERFORM pg_sleep(0.002);
	END LOOP;
	PERFORM leader_election_internal.write(e.lease_duration);
	l := leader_election_internal.lock_lease($1, false);
	IF (l.leader, l.role) IS NOT DISTINCT FROM ($2, me)
			AND leader_election_internal.state(l, s, clock_timestamp()) IN ('led', 'stale') THEN
		RAISE EXCEPTION 'candidate "%" leads election "%"', $2, $1
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the lease back with release(election, term) first.';
	END IF;
	DELETE FROM leader_election.candidate x WHERE x.election = $1 AND x.candidate = $2;
	RETURN true;
END
$$;

CREATE OR REPLACE FUNCTION leader_election.leave(election text, candidate text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM leader_election_internal.enter('leave'),
		leader_election_internal.check_text('election name', $1, 1, 200),
		leader_election_internal.check_text('candidate name', $2, 1, 200);
	RETURN leader_election_internal.leave($1 COLLATE "C", $2);
END
$$;

-- What the running transaction has written, also in a block with EXCEPTION, may be
-- undone yet.  The xid of such a block is above the transaction's.  (So are those of
-- others that have committed since.  The row is that of a lease in force: so its xid
-- is not so old that it would seem to be ahead.)
CREATE OR REPLACE FUNCTION leader_election_internal.is_committed(made_by xid) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
	own CONSTANT bigint := pg_current_xact_id_if_assigned()::text::bigint;
	ahead CONSTANT bigint := (made_by::text::bigint - own) & 4294967295;
BEGIN
	RETURN own IS NULL OR ahead >= 2147483648 OR pg_xact_status((own + ahead)::text::xid8) = 'committed';
END
$$;

CREATE OR REPLACE FUNCTION leader_election.is_leader(election text, term bigint)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
	s leader_election.server;
	seen record;
BEGIN
	IF pg_is_in_recovery() THEN
		RETURN false;
	END IF;

	SELECT x AS lease, x.xmin AS made_by INTO seen FROM leader_election.lease x
		WHERE x.election = $1 COLLATE "C" AND x.term = $2 AND x.leader IS NOT NULL;
	IF NOT FOUND THEN
		RETURN false;
	END IF;
	SELECT * INTO s FROM leader_election.server;
	IF NOT leader_election_internal.is_led(seen.lease, s, clock_timestamp()) THEN
		RETURN false;
	END IF;
	RETURN leader_election_internal.is_committed(seen.made_by);
END
$$;

--
-- Fencing
--

-- Why is the transaction not fenced?  Its snapshot is that of fence(), or later.
CREATE OR REPLACE FUNCTION leader_election_internal.refuse(el text, of_term bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	l leader_election.lease;
BEGIN
	SELECT * INTO l FROM leader_election.lease x WHERE x.election = el;
	IF NOT FOUND THEN
		PERFORM leader_election_internal.no_election(el);
	END IF;
	IF l.term = of_term AND l.leader IS NOT NULL AND l.expires_at <= clock_timestamp()
			AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
		RAISE EXCEPTION 'this transaction is too old to see whether the lease of election "%" was renewed', el
			USING ERRCODE = 'serialization_failure',
				HINT = 'Assert leadership first in the transaction, and try again.';
	END IF;
	RAISE EXCEPTION USING ERRCODE = 'LE001',
		MESSAGE = CASE WHEN of_term IS NULL THEN format('there is no term to lead election "%s" in', el)
			ELSE format('nobody leads election "%s" in term %s', el, of_term) END,
		HINT = 'Do the leader''s work only in the term in which it leads.';
END
$$;

-- The lock is held to the end of the transaction, and nobody else is elected
-- before that: so there is nothing to look at again at COMMIT.  The look comes
-- after the lock, with a snapshot of its own (READ COMMITTED).
CREATE OR REPLACE FUNCTION leader_election_internal.fence(el text, term bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
	of_term CONSTANT bigint := $2;
	read_only CONSTANT boolean := current_setting('transaction_read_only');
	fenced text := nullif(current_setting('leader_election_portable.fenced', true), '');
	tries integer;
	lease interval;
BEGIN
	-- A read-only transaction cannot lock a row, and has nothing to fence, unless it has
	-- become one only now.
	IF read_only AND pg_current_xact_id_if_assigned() IS NOT NULL THEN
		RAISE EXCEPTION 'cannot execute leader_election.assert_leader() in a read-only transaction that has written'
			USING ERRCODE = 'read_only_sql_transaction', HINT = 'Assert leadership before SET TRANSACTION READ ONLY.';
	END IF;
	WHILE NOT read_only LOOP
		PERFORM 1 FROM leader_election.lease x WHERE x.election = el FOR KEY SHARE SKIP LOCKED;
		EXIT WHEN FOUND;
		IF NOT EXISTS (SELECT 1 FROM leader_election.lease x WHERE x.election = el) THEN
			PERFORM leader_election_internal.no_election(el);
		END IF;
		tries := coalesce(tries, leader_election_internal.tries()) - 1;
		IF tries < 0 THEN
			PERFORM leader_election_internal.busy(el);
		END IF;
		PERFORM pg_sleep(0.002);
	END LOOP;
	SELECT l.duration INTO lease FROM leader_election.lease l, leader_election.server s
		WHERE l.election = el AND l.term = of_term AND leader_election_internal.is_led(l, s, clock_timestamp());
	IF NOT FOUND THEN
		PERFORM leader_election_internal.refuse(el, of_term);
	END IF;
	IF read_only THEN
		RETURN true;			-- what is noted would count for the writes behind a read-only part
	END IF;
	IF (fenced::jsonb -> el) IS DISTINCT FROM to_jsonb(of_term) THEN
		fenced := set_config('leader_election_portable.fenced',
			(coalesce(fenced::jsonb, '{}') || jsonb_build_object(el, of_term))::text, true);
	END IF;
	fenced := leader_election_internal.write(lease);		-- a takeover waits for this one
	RETURN true;
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.check_primary(el text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	IF pg_is_in_recovery() THEN
		RAISE EXCEPTION 'a standby cannot tell who leads election "%"', el
			USING ERRCODE = 'LE001', HINT = 'Connect to the primary server.';
	END IF;
END
$$;

CREATE OR REPLACE FUNCTION leader_election.assert_leader(election text, term bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	wait CONSTANT text := current_setting('lock_timeout');
	bounded text := leader_election_internal.bound();
	fenced boolean;
BEGIN
	IF pg_is_in_recovery() OR (octet_length($1) BETWEEN 1 AND 200) IS NOT TRUE THEN
		PERFORM leader_election_internal.check_text('election name', $1, 1, 200),
			leader_election_internal.check_primary($1);
	END IF;
	fenced := leader_election_internal.fence($1 COLLATE "C", $2);		-- PERFORM would be a query
	IF bounded IS NOT NULL THEN
		bounded := set_config('lock_timeout', wait, true);
	END IF;
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.fence_session(el text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	l leader_election.lease;
BEGIN
	PERFORM leader_election_internal.caller(), leader_election_internal.check_primary(el);
	SELECT (o.l).* INTO l FROM leader_election_internal.own(el) o;
	IF l.term IS NULL THEN
		IF NOT EXISTS (SELECT 1 FROM leader_election.lease x WHERE x.election = el) THEN
			PERFORM leader_election_internal.no_election(el);
		END IF;
		RAISE EXCEPTION 'this session does not lead election "%"', el USING ERRCODE = 'LE001',
			HINT = 'Do the leader''s work only while leader_election.is_leader() is true.';
	END IF;
	PERFORM leader_election_internal.fence(el, l.term);
END
$$;

CREATE OR REPLACE FUNCTION leader_election.assert_leader(election text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	wait CONSTANT text := current_setting('lock_timeout');
BEGIN
	PERFORM leader_election_internal.bound(), leader_election_internal.check_text('election name', $1, 1, 200),
		leader_election_internal.fence_session($1 COLLATE "C"), set_config('lock_timeout', wait, true);
END
$$;

-- Was the transaction fenced before?  The setting says in which term; that the
-- row is locked in that term counts.  (ROLLBACK TO gives back the lock of a fence
-- that was made after the savepoint, and the setting with it.)
CREATE OR REPLACE FUNCTION leader_election.only_leader()
RETURNS trigger
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	fenced CONSTANT jsonb := coalesce(nullif(current_setting('leader_election_portable.fenced', true), ''), '{}');
	wait CONSTANT text := current_setting('lock_timeout');
	bounded text := leader_election_internal.bound();
	asserted boolean := false;
BEGIN
	IF TG_WHEN <> 'BEFORE' OR TG_LEVEL <> 'STATEMENT' OR TG_NARGS <> 1 OR octet_length(TG_ARGV[0]) > 200 THEN
		RAISE EXCEPTION 'trigger "%" does not call leader_election.only_leader() as it must', TG_NAME
			USING ERRCODE = 'trigger_protocol_violated',
				HINT = 'Declare it BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE, FOR EACH STATEMENT, with the name of the election as its one argument.';
	END IF;
	-- The setting is the user's, who may have made it: to lock the lease, the user
	-- has to be one that assert_leader() would serve.
	IF fenced ? TG_ARGV[0] AND has_function_privilege(leader_election_internal.caller(),
			'leader_election.assert_leader(text, bigint)', 'EXECUTE') THEN
		PERFORM 1 FROM leader_election.lease x WHERE x.election = TG_ARGV[0]
			AND x.term = (fenced ->> TG_ARGV[0])::bigint AND x.leader IS NOT NULL FOR KEY SHARE SKIP LOCKED;
		asserted := FOUND;
	END IF;
	IF NOT asserted THEN
		PERFORM leader_election_internal.fence_session(TG_ARGV[0]);
	END IF;
	IF bounded IS NOT NULL THEN
		bounded := set_config('lock_timeout', wait, true);
	END IF;
	RETURN NULL;
END
$$;

--
-- Elections
--

CREATE OR REPLACE FUNCTION leader_election_internal.check_settings(strategy text, lease_duration interval,
	quorum integer, takeover_delay interval, candidate_role name, channel text, preempt_delay interval,
	initial_delay interval, owner name) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	missing name;
BEGIN
	IF strategy IS NOT NULL THEN
		PERFORM leader_election_internal.check_text('strategy', strategy, 1, 200);
		IF strategy NOT IN ('race', 'lowest', 'bully', 'ring', 'zab', 'spread') THEN
			RAISE EXCEPTION 'unrecognized election strategy: "%"', strategy
				USING ERRCODE = 'invalid_parameter_value',
					HINT = 'Valid strategies are "race", "lowest", "bully", "ring", "zab" and "spread".';
		ELSIF strategy <> 'race' THEN
			PERFORM leader_election_internal.not_here(format('strategy "%s"', strategy));
		END IF;
	END IF;
	PERFORM leader_election_internal.check_interval('lease_duration', lease_duration, '100 ms', '1 day');
	IF quorum < 1 THEN
		RAISE EXCEPTION 'quorum is out of range: %', quorum USING ERRCODE = 'invalid_parameter_value',
			DETAIL = 'It must be 1 or more.';
	END IF;
	PERFORM leader_election_internal.check_interval('takeover_delay', takeover_delay, '0', '1 day'),
		leader_election_internal.check_interval('preempt_delay', preempt_delay, '0', '1 day'),
		leader_election_internal.check_interval('initial_delay', initial_delay, '0', '1 day');
	IF preempt_delay > '0' THEN
		PERFORM leader_election_internal.not_here('preempt_delay');
	ELSIF initial_delay > '0' THEN
		PERFORM leader_election_internal.not_here('initial_delay');
	END IF;
	missing := CASE WHEN candidate_role <> '' AND to_regrole(quote_ident(candidate_role)) IS NULL THEN candidate_role
		WHEN to_regrole(quote_ident(owner)) IS NULL THEN owner END;
	IF missing IS NOT NULL THEN
		RAISE EXCEPTION 'role "%" does not exist', missing USING ERRCODE = 'undefined_object';
	END IF;
	PERFORM leader_election_internal.check_text('channel', channel, 0, 63);
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.create_election(text, text, interval, integer, interval, name, text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	s leader_election.server;
	e leader_election.election;
BEGIN
	s := leader_election_internal.settings($1);
	e.election := $1;
	e.strategy := coalesce($2, 'race');
	e.lease_duration := leader_election_internal.seconds(coalesce($3, s.lease_duration));
	e.quorum := coalesce($4, 1);
	e.takeover_delay := leader_election_internal.seconds(coalesce($5, '1 s'));
	e.candidate_role := nullif($6, '');
	e.channel := nullif($7, '');
	e.owner := leader_election_internal.caller();
	IF NOT leader_election_internal.create_row(e, s) THEN
		RAISE EXCEPTION 'election "%" already exists', $1 USING ERRCODE = 'duplicate_object';
	END IF;
END
$$;

CREATE OR REPLACE FUNCTION leader_election.create_election(election text,
	strategy text DEFAULT 'race', lease_duration interval DEFAULT NULL,
	quorum integer DEFAULT 1, takeover_delay interval DEFAULT '1 s',
	candidate_role name DEFAULT NULL, channel text DEFAULT NULL,
	preempt_delay interval DEFAULT '0', initial_delay interval DEFAULT '0')
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	wait CONSTANT text := current_setting('lock_timeout');
BEGIN
	PERFORM leader_election_internal.bound(), leader_election_internal.check_writable('create_election'),
		leader_election_internal.check_text('election name', $1, 1, 200),
		leader_election_internal.check_settings($2 COLLATE "C", $3, $4, $5, $6, $7, $8, $9, NULL),
		leader_election_internal.create_election($1 COLLATE "C", $2, $3, $4, $5, $6, $7),
		set_config('lock_timeout', wait, true);
END
$$;

-- The election, if the caller owns it.  The owner of this schema is to this
-- edition what superusers are to the extension.
CREATE OR REPLACE FUNCTION leader_election_internal.owned(el text) RETURNS leader_election.election
LANGUAGE plpgsql AS $$
DECLARE
	me CONSTANT name := leader_election_internal.caller();
	e leader_election.election;
BEGIN
	SELECT * INTO e FROM leader_election.election x WHERE x.election = el;
	IF NOT FOUND THEN
		PERFORM leader_election_internal.no_election(el);
	END IF;
	IF me <> current_user AND NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = me)
			AND NOT coalesce((SELECT pg_has_role(me, r.oid, 'USAGE') FROM pg_roles r WHERE r.rolname = e.owner), false) THEN
		RAISE EXCEPTION 'must be owner of election "%"', el USING ERRCODE = 'insufficient_privilege',
			DETAIL = format('It is owned by role "%s".', e.owner);
	END IF;
	RETURN e;
END
$$;

-- The lease is written, not only locked: none is granted or renewed by the old settings
-- after this has committed, not by a call with an older snapshot either (40001).
CREATE OR REPLACE FUNCTION leader_election_internal.alter_election(text, text, interval, integer, interval, name, text, name) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	me CONSTANT name := leader_election_internal.caller();
	newer CONSTANT boolean := current_setting('server_version_num')::integer >= 160000;
	s leader_election.server;
	e leader_election.election;
	l leader_election.lease;
BEGIN
	e := leader_election_internal.owned($1);
	IF $8 IS NOT NULL AND NOT pg_has_role(me, $8, CASE WHEN newer THEN 'SET' ELSE 'MEMBER' END) THEN
		RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
			MESSAGE = format(CASE WHEN newer THEN 'must be able to SET ROLE "%s"' ELSE 'must be member of role "%s"' END, $8);
	END IF;
	s := leader_election_internal.server($1);
	PERFORM leader_election_internal.write(e.lease_duration);
	l := leader_election_internal.lock_lease($1, false);
	e := leader_election_internal.owned($1);
	IF $3 < e.lease_duration AND leader_election_internal.grace(l, e, s) > clock_timestamp() THEN
		PERFORM leader_election_internal.busy($1);		-- do not shorten the grace
	END IF;
	UPDATE leader_election.election SET strategy = coalesce($2, strategy),
		lease_duration = coalesce(leader_election_internal.seconds($3), lease_duration), quorum = coalesce($4, quorum),
		takeover_delay = coalesce(leader_election_internal.seconds($5), takeover_delay),
		candidate_role = CASE WHEN $6 IS NULL THEN candidate_role ELSE nullif($6, '') END,
		channel = CASE WHEN $7 IS NULL THEN channel ELSE nullif($7, '') END,
		owner = coalesce($8, owner)
		WHERE election = $1;
	UPDATE leader_election.lease SET term = term WHERE election = $1;
END
$$;

CREATE OR REPLACE FUNCTION leader_election.alter_election(election text,
	strategy text DEFAULT NULL, lease_duration interval DEFAULT NULL,
	quorum integer DEFAULT NULL, takeover_delay interval DEFAULT NULL,
	candidate_role name DEFAULT NULL, channel text DEFAULT NULL,
	preempt_delay interval DEFAULT NULL, initial_delay interval DEFAULT NULL,
	owner name DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM leader_election_internal.enter('alter_election'),
		leader_election_internal.check_text('election name', $1, 1, 200),
		leader_election_internal.check_settings($2 COLLATE "C", $3, $4, $5, $6, $7, $8, $9, $10),
		leader_election_internal.alter_election($1 COLLATE "C", $2, $3, $4, $5, $6, $7, $10);
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.set_run_done(text, text) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	e leader_election.election;
BEGIN
	e := leader_election_internal.owned($1);
	PERFORM leader_election_internal.write(e.lease_duration),
		leader_election_internal.lock_lease($1, false),
		leader_election_internal.owned($1);
	UPDATE leader_election.lease SET run_done = $2, done_at = CASE WHEN $2 IS NOT NULL THEN clock_timestamp() END,
		run_granted = NULL, run_attempts = NULL,
		run = CASE WHEN leader IS NOT NULL THEN run END, run_role = CASE WHEN leader IS NOT NULL THEN run_role END
		WHERE election = $1;
END
$$;

CREATE OR REPLACE FUNCTION leader_election.set_run_done(election text, run text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM leader_election_internal.enter('set_run_done'),
		leader_election_internal.check_text('election name', $1, 1, 200);
	IF $2 IS NOT NULL THEN
		PERFORM leader_election_internal.check_text('run', $2, 1, 200);
	END IF;
	PERFORM leader_election_internal.set_run_done($1 COLLATE "C", $2);
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.drop_election(text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	wait CONSTANT text := current_setting('lock_timeout');
	s leader_election.server;
	e leader_election.election;
	l leader_election.lease;
	t timestamptz;
	state text;
BEGIN
	e := leader_election_internal.owned($1);
	s := leader_election_internal.server($1);
	PERFORM leader_election_internal.write(e.lease_duration);

	-- Candidates come before the lease.  Their rows may be locked by calls in a
	-- block that goes on.
	BEGIN
		PERFORM set_config('lock_timeout', 2 * leader_election_internal.tries() || 'ms', true);
		DELETE FROM leader_election.candidate c WHERE c.election = $1;
		PERFORM set_config('lock_timeout', wait, true);
	EXCEPTION WHEN lock_not_available THEN
		PERFORM leader_election_internal.busy($1);
	END;
	l := leader_election_internal.lock_lease($1, true);
	e := leader_election_internal.owned($1);
	t := clock_timestamp();
	state := leader_election_internal.state(l, s, t);
	IF state = 'led' OR state = 'stale' AND leader_election_internal.grace(l, e, s) > t THEN
		RAISE EXCEPTION 'election "%" is led by "%"', $1, l.leader USING ERRCODE = 'object_in_use',
			HINT = 'Have it resign: leader_election.request_yield().';
	END IF;
	-- A lease that was continued after a failover may be in force elsewhere.
	IF s.epoch > 0 AND l.held AND l.not_before_at > t AND l.not_before_at <= s.first_seen_at + interval '2 days' THEN
		PERFORM leader_election_internal.busy($1);
	END IF;
	IF state <> 'vacant' THEN
		PERFORM leader_election_internal.end_term(l, 'dropped', NULL, t),
			leader_election_internal.notify(s, e, 'vacated', l.term, NULL, l.leader, 'dropped', NULL, t);
	END IF;
	INSERT INTO leader_election.dropped AS d (election, term) VALUES ($1, greatest(l.term, l.after_term))
		ON CONFLICT ON CONSTRAINT dropped_pkey DO UPDATE SET term = greatest(d.term, EXCLUDED.term);
	DELETE FROM leader_election.lease x WHERE x.election = $1;
	DELETE FROM leader_election.election x WHERE x.election = $1;
END
$$;

CREATE OR REPLACE FUNCTION leader_election.drop_election(election text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	wait CONSTANT text := current_setting('lock_timeout');
BEGIN
	PERFORM leader_election_internal.bound(), leader_election_internal.check_writable('drop_election'),
		leader_election_internal.check_text('election name', $1, 1, 200),
		leader_election_internal.drop_election($1 COLLATE "C"),
		set_config('lock_timeout', wait, true);
END
$$;

CREATE OR REPLACE FUNCTION leader_election_internal.request_yield(text, text) RETURNS interval
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	s leader_election.server;
	e leader_election.election;
	l leader_election.lease;
	c leader_election.candidate;
	t timestamptz;
BEGIN
	e := leader_election_internal.owned($1);
	s := leader_election_internal.server($1);
	PERFORM leader_election_internal.write(e.lease_duration);
	l := leader_election_internal.lock_lease($1, false);
	t := clock_timestamp();
	IF leader_election_internal.state(l, s, t) <> 'led' THEN
		RETURN NULL;
	END IF;
	e := leader_election_internal.owned($1);
	IF $2 IS NOT NULL THEN
		c := leader_election_internal.named($1, $2, e, t);
		IF l.leader = $2 THEN
			RAISE EXCEPTION 'candidate "%" leads election "%" already', $2, $1
				USING ERRCODE = 'invalid_parameter_value';
		END IF;
	END IF;
	IF NOT l.yielding OR (l.successor, l.successor_role) IS DISTINCT FROM (c.candidate, c.role) THEN
		UPDATE leader_election.lease SET yielding = true, successor = c.candidate, successor_role = c.role
			WHERE election = $1;
		PERFORM leader_election_internal.notify(s, e, 'yield_requested', l.term, l.leader, NULL, NULL, $2, t);
	END IF;
	RETURN greatest(least(l.expires_at - t, l.duration), interval '0');
END
$$;

CREATE OR REPLACE FUNCTION leader_election.request_yield(election text,
	to_candidate text DEFAULT NULL, terminate boolean DEFAULT false)
RETURNS interval
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM leader_election_internal.enter('request_yield'),
		leader_election_internal.check_text('election name', $1, 1, 200);
	IF $2 IS NOT NULL THEN
		PERFORM leader_election_internal.check_text('candidate name', $2, 1, 200);
	END IF;
	IF $3 THEN
		PERFORM leader_election_internal.not_here('terminate => true');
	END IF;
	RETURN leader_election_internal.request_yield($1 COLLATE "C", $2);
END
$$;

--
-- Observers.  They write nothing and lock no row, and wait for a table that is locked
-- for a second at most: by SET, which is there before the types of the rows are looked
-- for.
--

CREATE OR REPLACE FUNCTION leader_election._observe(election text,
	OUT state text, OUT leader text, OUT term bigint, OUT since timestamptz,
	OUT remaining interval, OUT waiting_for text, OUT candidates integer,
	OUT kind text, OUT backend_pid integer, OUT renewed_at timestamptz,
	OUT expires_at timestamptz, OUT paused_at timestamptz, OUT paused_by name,
	OUT pause_reason text, OUT resumes_at timestamptz, OUT run text,
	OUT run_done text, OUT done_at timestamptz, OUT owner name,
	OUT metadata jsonb, OUT metadata_at timestamptz)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
	s leader_election.server;
	e leader_election.election;
	l leader_election.lease;
	t timestamptz;
	led boolean;
	word text;
	ready integer;
	sessions integer;
	standby CONSTANT boolean := pg_is_in_recovery();
BEGIN
	SELECT * INTO e FROM leader_election.election x WHERE x.election = $1 COLLATE "C";
	IF NOT FOUND THEN
		RETURN;
	END IF;
	SELECT * INTO l FROM leader_election.lease x WHERE x.election = $1 COLLATE "C";
	SELECT * INTO s FROM leader_election.server;
	t := clock_timestamp();
	IF standby THEN
		led := l.leader IS NOT NULL AND t < l.expires_at;		-- by its own clock
	ELSE
		led := leader_election_internal.is_led(l, s, t);
		SELECT count(*),
			count(*) FILTER (WHERE (c.candidate, c.role) IS DISTINCT FROM (l.gave_up, l.gave_up_role)),
			count(*) FILTER (WHERE c.kind = 'session')
			INTO candidates, ready, sessions
			FROM leader_election.candidate c
			WHERE c.election = $1 COLLATE "C" AND (leader_election_internal.is_alive(c, e.lease_duration, t)
				OR led AND c.candidate = l.leader);
		-- A leader stands, too, whose row was lost with a crash.
		IF led AND NOT EXISTS (SELECT 1 FROM leader_election.candidate c
				WHERE c.election = $1 COLLATE "C" AND c.candidate = l.leader) THEN
			candidates := candidates + 1;
		END IF;
	END IF;
	run_done := l.run_done;
	done_at := l.done_at;
	SELECT r.rolname INTO owner FROM pg_roles r WHERE r.rolname = e.owner;
	IF led THEN
		state := CASE WHEN l.yielding THEN 'yielding' ELSE 'led' END;
		leader := l.leader;
		term := l.term;
		since := l.acquired_at;
		remaining := greatest(least(l.expires_at - t, l.duration), interval '0');
		kind := l.kind;
		backend_pid := l.backend_pid;
		renewed_at := l.renewed_at;
		expires_at := l.expires_at;
		run := l.run;
		metadata := l.metadata;
		metadata_at := l.metadata_at;
		RETURN;
	END IF;
	state := 'vacant';
	since := CASE WHEN l.leader IS NOT NULL THEN least(l.expires_at, t)
		ELSE (SELECT h.ended_at FROM leader_election.history h WHERE h.election = $1 COLLATE "C"
			AND h.term > l.after_term AND h.ended_at IS NOT NULL ORDER BY h.term DESC LIMIT 1) END;
	IF standby THEN
		waiting_for := CASE WHEN l.leader IS NULL AND l.successor IS NULL AND l.not_before_at > t THEN
			CASE WHEN l.held THEN 'hold' ELSE 'takeover delay' END END;
		RETURN;
	END IF;
	word := leader_election_internal.state(l, s, t);
	waiting_for := CASE
		WHEN s.first_seen_at IS NULL AND candidates > 0 THEN 'acquire()'
		WHEN NOT coalesce(leader_election_internal.is_here(s), true)
			OR s.started_at <> pg_postmaster_start_time()
			OR leader_election_internal.grace(l, e, s) > t THEN 'grace after failover'
		WHEN leader_election_internal.not_before(l, e, s, word, t) > t THEN
			CASE WHEN word = 'vacant' AND l.held THEN 'hold' ELSE 'takeover delay' END
		WHEN word = 'vacant' AND l.reserved_until > t AND EXISTS (SELECT 1 FROM leader_election.candidate c
			WHERE c.election = $1 COLLATE "C" AND c.candidate = l.successor AND c.role = l.successor_role
			AND leader_election_internal.is_alive(c, e.lease_duration, t)) THEN 'reserved for ' || l.successor
		WHEN candidates = 0 THEN 'no candidates'
		WHEN candidates < e.quorum THEN format('quorum %s of %s', candidates, e.quorum)
		WHEN ready = 0 THEN 'candidates that do not sit out'
		WHEN sessions > 0 THEN 'a worker or a call'
		ELSE 'acquire()' END;
END
$$;

CREATE OR REPLACE FUNCTION leader_election.leader(election text)
RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
	s leader_election.server;
	l leader_election.lease;
BEGIN
	SELECT * INTO l FROM leader_election.lease x WHERE x.election = $1 COLLATE "C";
	SELECT * INTO s FROM leader_election.server;
	IF l.leader IS NOT NULL AND (CASE WHEN pg_is_in_recovery() THEN clock_timestamp() < l.expires_at
			ELSE leader_election_internal.is_led(l, s, clock_timestamp()) END) THEN
		RETURN l.leader;
	END IF;
	RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION leader_election._standing(election text,
	OUT candidate text, OUT "position" integer, OUT leads boolean,
	OUT alive boolean, OUT drained boolean, OUT kind text, OUT rank integer,
	OUT progress bigint, OUT joined_at timestamptz, OUT stood interval,
	OUT metadata jsonb)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
	s leader_election.server;
	e leader_election.election;
	l leader_election.lease;
	t timestamptz;
	led text COLLATE "C";
BEGIN
	IF pg_is_in_recovery() THEN		-- the table is unlogged
		RETURN;
	END IF;
	SELECT * INTO e FROM leader_election.election x WHERE x.election = $1 COLLATE "C";
	SELECT * INTO l FROM leader_election.lease x WHERE x.election = $1 COLLATE "C";
	SELECT * INTO s FROM leader_election.server;
	t := clock_timestamp();
	IF leader_election_internal.is_led(l, s, t) THEN
		led := l.leader;
	END IF;
	RETURN QUERY
		SELECT y.candidate, CASE WHEN y.counts THEN (row_number() OVER (ORDER BY NOT y.counts, y.sits_out,
				y.kind = 'detached', y.joined_at, y.candidate))::integer END,
			y.leads, y.alive, false, y.kind, y.rank, y.progress, y.joined_at, t - y.joined_at, y.metadata
		FROM (SELECT x.*, x.alive AND (e.candidate_role IS NULL OR (SELECT pg_has_role(r.oid, e.candidate_role, 'MEMBER')
					FROM pg_roles r WHERE r.rolname = x.role)) AS counts,
				(x.candidate, x.role) IS NOT DISTINCT FROM (l.gave_up, l.gave_up_role) AS sits_out
			FROM (SELECT c.candidate, c.role, c.kind, c.rank, c.progress, c.metadata, c.joined_at,
					leader_election_internal.is_alive(c, e.lease_duration, t) OR c.candidate IS NOT DISTINCT FROM led AS alive,
					c.candidate IS NOT DISTINCT FROM led AS leads
				FROM leader_election.candidate c WHERE c.election = $1 COLLATE "C"
				UNION ALL
				SELECT l.leader, l.role, l.kind, l.rank, l.progress, l.metadata, l.acquired_at, true, true
				WHERE led IS NOT NULL AND NOT EXISTS (SELECT 1 FROM leader_election.candidate c
					WHERE c.election = $1 COLLATE "C" AND c.candidate = led)) x) y
		ORDER BY 2 NULLS LAST, 1;
END
$$;

CREATE OR REPLACE VIEW leader_election.status AS
	SELECT e.election, o.state, o.leader, o.term, o.since, o.remaining,
		o.waiting_for, o.candidates, e.quorum, e.strategy, o.kind,
		o.backend_pid, o.renewed_at, o.expires_at, o.paused_at, o.paused_by,
		o.pause_reason, o.resumes_at, o.run, o.run_done, o.done_at, o.owner,
		o.metadata, o.metadata_at
	FROM leader_election.election e,
		LATERAL leader_election._observe(e.election) o;

CREATE OR REPLACE VIEW leader_election.candidates AS
	SELECT e.election, s.candidate, s."position", s.leads, s.alive,
		s.drained, s.kind, s.rank, s.progress, s.joined_at, s.stood,
		s.metadata
	FROM leader_election.election e,
		LATERAL leader_election._standing(e.election) s;

-- As campaign(): no SECURITY DEFINER and no SET, so that it may COMMIT.
CREATE OR REPLACE PROCEDURE leader_election.wait_for_change(election text,
	INOUT term bigint, INOUT leader text, timeout interval DEFAULT NULL)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	known_term CONSTANT pg_catalog.int8 := $2;
	known_leader CONSTANT pg_catalog.text := $3;
	until pg_catalog.timestamptz := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) $4;
	o pg_catalog.record;
BEGIN
	IF $4 OPERATOR(pg_catalog.<) '0'::pg_catalog.interval
			OR $4 OPERATOR(pg_catalog.>) '100000 days'::pg_catalog.interval THEN
		RAISE EXCEPTION 'timeout is out of range: %', $4 USING ERRCODE = 'invalid_parameter_value',
			DETAIL = 'It must be from 00:00:00 to 100000 days.';
	END IF;
	LOOP
		SELECT x.leader, x.term INTO o FROM leader_election._observe($1) x;
		IF o.term IS NULL AND NOT EXISTS (SELECT FROM leader_election.election e
				WHERE e.election OPERATOR(pg_catalog.=) $1 COLLATE pg_catalog."C") THEN
			RAISE EXCEPTION 'election "%" does not exist', $1 USING ERRCODE = 'LE003',
				HINT = 'Check its name. The first join(), campaign() or acquire() creates an election, unless leader_election.auto_create is off.';
		END IF;
		COMMIT;
		-- IS DISTINCT FROM would take the caller's operator.
		EXIT WHEN NOT coalesce(o.leader OPERATOR(pg_catalog.=) known_leader COLLATE pg_catalog."C", o.leader IS NULL AND known_leader IS NULL)
			OR NOT coalesce(o.term OPERATOR(pg_catalog.=) known_term, o.term IS NULL AND known_term IS NULL)
			OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>=) until;
		PERFORM pg_catalog.pg_sleep(0.1);
	END LOOP;
	term := o.term;
	leader := o.leader;
END
$$;

-- Whose transactions have locked a lease row?  The row names one, or a multixact;
-- which of the two cannot be seen, so that the first is tried first.  (A prepared
-- transaction has no process.)
CREATE OR REPLACE FUNCTION leader_election_internal.lease_holders(el text) RETURNS TABLE (pid integer)
LANGUAGE plpgsql AS $$
DECLARE
	locker CONSTANT xid := (SELECT x.xmax FROM leader_election.lease x WHERE x.election = el);
BEGIN
	IF locker IS NULL OR locker = '0' THEN
		RETURN;
	END IF;
	RETURN QUERY SELECT k.pid FROM pg_locks k
		WHERE k.locktype = 'transactionid' AND k.transactionid = locker AND k.granted AND k.mode = 'ExclusiveLock';
	IF NOT FOUND THEN
		RETURN QUERY SELECT k.pid FROM pg_get_multixact_members(locker) m
			JOIN pg_locks k ON k.locktype = 'transactionid' AND k.transactionid = m.xid
			WHERE k.granted AND k.mode = 'ExclusiveLock';
	END IF;
EXCEPTION WHEN OTHERS THEN
	RETURN;			-- there is no such multixact any more
END
$$;

-- What this edition can see, in a row or two
CREATE OR REPLACE FUNCTION leader_election.diagnose(election text,
	OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
	o record;
	holder integer;
BEGIN
	SELECT * INTO o FROM leader_election._observe($1);
	IF o.state IS NULL THEN
		PERFORM leader_election_internal.no_election($1);
	END IF;
	severity := CASE WHEN o.state = 'led' THEN 'ok'
		WHEN o.waiting_for = 'no candidates' OR o.waiting_for LIKE 'quorum %'
			OR o.waiting_for = 'candidates that do not sit out' THEN 'error' ELSE 'notice' END;
	finding := CASE WHEN o.leader IS NOT NULL THEN format('"%s" leads in term %s, for %s yet', o.leader, o.term, o.remaining)
			|| CASE WHEN o.state = 'yielding' THEN ', and is asked to yield' ELSE '' END
		ELSE format('nobody leads; the election waits for: %s', coalesce(o.waiting_for, 'what a standby cannot see')) END
		|| ' (the portable edition, which has no worker)';
	remedy := CASE severity WHEN 'error' THEN 'Start candidates, or look into their logs: why do they not call?'
		WHEN 'notice' THEN 'Wait: it will be over by itself, or with the next call of a candidate.' END;
	RETURN NEXT;
	IF pg_is_in_recovery() THEN
		RETURN;
	END IF;
	FOR holder IN SELECT k.pid FROM leader_election_internal.lease_holders($1 COLLATE "C") k LOOP
		severity := CASE WHEN o.leader IS NULL THEN 'error' ELSE 'notice' END;
		finding := format('%s has locked the lease, as a fenced transaction does: a change of leader waits for its end',
			coalesce('process ' || holder, 'a prepared transaction'));
		remedy := coalesce('If that takes too long, look at it in pg_stat_activity, and run: SELECT pg_terminate_backend(' || holder || ');',
			'If that takes too long, look at it in pg_prepared_xacts, and run COMMIT PREPARED or ROLLBACK PREPARED.');
		RETURN NEXT;
	END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION leader_election._incarnation()
RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
	IF pg_is_in_recovery() THEN
		RETURN NULL;
	END IF;
	RETURN (leader_election_internal.server_now()).identity;
END
$$;

--
-- What there is beyond the extension
--

-- Nobody has to call it.  With pg_cron, SELECT cron.schedule('10 seconds', 'SELECT
-- leader_election.tick()'): then a lease that is over is told and recorded then,
-- and not by the next leader.
CREATE OR REPLACE FUNCTION leader_election_internal.tick() RETURNS integer
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	s leader_election.server;
	e leader_election.election;
	l leader_election.lease;
	t timestamptz;
	state text;
	n integer := 0;
BEGIN
	s := leader_election_internal.server('');
	FOR e IN SELECT x.* FROM leader_election.election x ORDER BY x.election LOOP
		SELECT * INTO l FROM leader_election.lease x WHERE x.election = e.election;
		CONTINUE WHEN leader_election_internal.state(l, s, clock_timestamp()) NOT IN ('expired', 'orphaned');
		PERFORM leader_election_internal.write(e.lease_duration);
		l := leader_election_internal.lock_lease(e.election, true, '0', false);
		CONTINUE WHEN l.leader IS NULL;
		t := clock_timestamp();
		SELECT x.* INTO e FROM leader_election.election x WHERE x.election = l.election;
		state := leader_election_internal.state(l, s, t);
		CONTINUE WHEN state NOT IN ('expired', 'orphaned');
		PERFORM leader_election_internal.vacate(l, e, s, leader_election_internal.reason(l, state), NULL,
			nullif(leader_election_internal.not_before(l, e, s, state, t), '-infinity'),
			CASE WHEN e.takeover_delay > '0' THEN false END, true,
			CASE WHEN l.yielding THEN l.successor END, CASE WHEN l.yielding THEN l.successor_role END, t);
		n := n + 1;
	END LOOP;
	PERFORM leader_election_internal.prune(s.history_retention, 1000);
	DELETE FROM leader_election.candidate c USING (
		SELECT x.election, x.candidate FROM leader_election.candidate x JOIN leader_election.election y USING (election)
		WHERE leader_election_internal.has_ended(x, y.lease_duration)
		FOR UPDATE OF x SKIP LOCKED) old
		WHERE c.election = old.election AND c.candidate = old.candidate;
	RETURN n;
END
$$;

CREATE OR REPLACE FUNCTION leader_election.tick()
RETURNS integer
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM leader_election_internal.enter('tick');
	RETURN leader_election_internal.tick();
END
$$;
COMMENT ON FUNCTION leader_election.tick() IS
'end terms that are over, tell listeners, and remove what is old; how many terms it ended';

CREATE OR REPLACE FUNCTION leader_election.prune()
RETURNS integer
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	wait CONSTANT text := current_setting('lock_timeout');
	removed integer;
BEGIN
	PERFORM leader_election_internal.bound(), leader_election_internal.check_writable('prune');
	removed := leader_election_internal.prune((leader_election_internal.settings('')).history_retention, 100000);
	PERFORM set_config('lock_timeout', wait, true);
	RETURN removed;
END
$$;
COMMENT ON FUNCTION leader_election.prune() IS
'remove terms from the history that ended longer ago than history_retention; how many, of 100000 at most';

CREATE OR REPLACE FUNCTION leader_election.configure(lease_duration interval DEFAULT NULL,
	history_retention interval DEFAULT NULL, auto_create boolean DEFAULT NULL, announce boolean DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
	wait CONSTANT text := current_setting('lock_timeout');
BEGIN
	PERFORM leader_election_internal.bound(), leader_election_internal.check_writable('configure');
	IF NOT pg_has_role(leader_election_internal.caller(), current_user, 'USAGE') THEN
		RAISE EXCEPTION 'must be owner of schema "leader_election"' USING ERRCODE = 'insufficient_privilege';
	END IF;
	PERFORM leader_election_internal.check_interval('lease_duration', $1, '100 ms', '1 day'),
		leader_election_internal.check_interval('history_retention', $2, '1 h', '10000 days'),
		leader_election_internal.write((leader_election_internal.settings('')).lease_duration);
	-- A call that finds another server has the row locked to its end.  So do we, in a
	-- block, as long as it is not idle for a lease.
	UPDATE leader_election.server SET lease_duration = coalesce(leader_election_internal.seconds($1), lease_duration),
		history_retention = coalesce($2, history_retention),
		auto_create = coalesce($3, auto_create), announce = coalesce($4, announce);
	PERFORM set_config('lock_timeout', wait, true);
END
$$;
COMMENT ON FUNCTION leader_election.configure(interval, interval, boolean, boolean) IS
'what the extension has settings for: change what is not NULL; only for the owner of the schema';

--
-- What there is not.  The names exist: who calls them is told so, and not that
-- there is no extension.
--

CREATE OR REPLACE FUNCTION leader_election.join_group(group_name text, candidate text,
	rank integer DEFAULT NULL, progress bigint DEFAULT NULL,
	metadata jsonb DEFAULT NULL, auto_renew boolean DEFAULT NULL,
	OUT election text, OUT term bigint)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
	RAISE EXCEPTION 'leader_election.join_group() is not in the portable edition'
		USING ERRCODE = 'feature_not_supported', HINT = 'The extension leader_election has it.';
END
$$;

CREATE OR REPLACE FUNCTION leader_election.acquire_any(group_name text, candidate text,
	rank integer DEFAULT NULL, progress bigint DEFAULT NULL,
	metadata jsonb DEFAULT NULL, request uuid DEFAULT NULL,
	OUT election text, OUT term bigint, OUT remaining_ms bigint, OUT expires_at timestamptz,
	OUT yielding boolean)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
	RAISE EXCEPTION 'leader_election.acquire_any() is not in the portable edition'
		USING ERRCODE = 'feature_not_supported', HINT = 'The extension leader_election has it.';
END
$$;

CREATE OR REPLACE FUNCTION leader_election.create_group(group_name text, seats integer,
	strategy text DEFAULT 'race', max_per_candidate integer DEFAULT 1,
	lease_duration interval DEFAULT NULL, quorum integer DEFAULT 1,
	takeover_delay interval DEFAULT '0', candidate_role name DEFAULT NULL,
	channel text DEFAULT NULL, preempt_delay interval DEFAULT '0',
	initial_delay interval DEFAULT '0')
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
	RAISE EXCEPTION 'leader_election.create_group() is not in the portable edition'
		USING ERRCODE = 'feature_not_supported', HINT = 'The extension leader_election has it.';
END
$$;

CREATE OR REPLACE FUNCTION leader_election.alter_group(group_name text,
	seats integer DEFAULT NULL, strategy text DEFAULT NULL,
	max_per_candidate integer DEFAULT NULL,
	lease_duration interval DEFAULT NULL, quorum integer DEFAULT NULL,
	takeover_delay interval DEFAULT NULL, candidate_role name DEFAULT NULL,
	channel text DEFAULT NULL, preempt_delay interval DEFAULT NULL,
	initial_delay interval DEFAULT NULL, owner name DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
	RAISE EXCEPTION 'leader_election.alter_group() is not in the portable edition'
		USING ERRCODE = 'feature_not_supported', HINT = 'The extension leader_election has it.';
END
$$;

CREATE OR REPLACE FUNCTION leader_election.drop_group(group_name text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
	RAISE EXCEPTION 'leader_election.drop_group() is not in the portable edition'
		USING ERRCODE = 'feature_not_supported', HINT = 'The extension leader_election has it.';
END
$$;

CREATE OR REPLACE FUNCTION leader_election.pause_election(election text,
	reason text DEFAULT NULL, duration interval DEFAULT NULL,
	vacate boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
	RAISE EXCEPTION 'leader_election.pause_election() is not in the portable edition'
		USING ERRCODE = 'feature_not_supported', HINT = 'The extension leader_election has it.';
END
$$;

CREATE OR REPLACE FUNCTION leader_election.resume_election(election text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
	RAISE EXCEPTION 'leader_election.resume_election() is not in the portable edition'
		USING ERRCODE = 'feature_not_supported', HINT = 'The extension leader_election has it.';
END
$$;

CREATE OR REPLACE FUNCTION leader_election.pause_all(reason text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
	RAISE EXCEPTION 'leader_election.pause_all() is not in the portable edition'
		USING ERRCODE = 'feature_not_supported', HINT = 'The extension leader_election has it.';
END
$$;

CREATE OR REPLACE FUNCTION leader_election.resume_all()
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
	RAISE EXCEPTION 'leader_election.resume_all() is not in the portable edition'
		USING ERRCODE = 'feature_not_supported', HINT = 'The extension leader_election has it.';
END
$$;

CREATE OR REPLACE FUNCTION leader_election.drain_candidate(candidate text,
	election text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
	RAISE EXCEPTION 'leader_election.drain_candidate() is not in the portable edition'
		USING ERRCODE = 'feature_not_supported', HINT = 'The extension leader_election has it.';
END
$$;

CREATE OR REPLACE FUNCTION leader_election.undrain_candidate(candidate text,
	election text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
	RAISE EXCEPTION 'leader_election.undrain_candidate() is not in the portable edition'
		USING ERRCODE = 'feature_not_supported', HINT = 'The extension leader_election has it.';
END
$$;

CREATE OR REPLACE FUNCTION leader_election._measure(
	OUT election text, OUT group_name text, OUT led integer,
	OUT waiting_for text, OUT vacant_seconds double precision,
	OUT overdue_seconds double precision, OUT term bigint,
	OUT candidates integer, OUT quorum integer, OUT paused integer,
	OUT changes_last_hour integer, OUT lost_last_hour integer,
	OUT lease_left_ratio double precision,
	OUT renewal_left_ratio double precision,
	OUT unannounced_seconds double precision)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
	RAISE EXCEPTION 'leader_election._measure() is not in the portable edition'
		USING ERRCODE = 'feature_not_supported', HINT = 'The extension leader_election has it.';
END
$$;

CREATE OR REPLACE FUNCTION leader_election._measure_server(
	OUT in_recovery integer, OUT worker integer, OUT locked_tables integer,
	OUT standbys_needed integer, OUT standbys_connected integer,
	OUT standbys_unconfirmed_bytes bigint,
	OUT standbys_silent_seconds double precision,
	OUT worker_failing_seconds double precision,
	OUT worker_failures integer, OUT worker_retry_seconds double precision,
	OUT worker_sqlstate text, OUT worker_failure text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
	RAISE EXCEPTION 'leader_election._measure_server() is not in the portable edition'
		USING ERRCODE = 'feature_not_supported', HINT = 'The extension leader_election has it.';
END
$$;

CREATE OR REPLACE FUNCTION leader_election._monotonic_clock()
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
	RAISE EXCEPTION 'leader_election._monotonic_clock() is not in the portable edition'
		USING ERRCODE = 'feature_not_supported', HINT = 'The extension leader_election has it.';
END
$$;

CREATE OR REPLACE VIEW leader_election.metrics AS
	SELECT m.election, m.group_name, m.led, m.waiting_for, m.vacant_seconds,
		m.overdue_seconds, m.term, m.candidates, m.quorum, m.paused,
		m.changes_last_hour, m.lost_last_hour, m.lease_left_ratio,
		m.renewal_left_ratio, m.unannounced_seconds
	FROM leader_election._measure() m;

CREATE OR REPLACE VIEW leader_election.server_metrics AS
	SELECT s.in_recovery, s.worker, s.locked_tables, s.standbys_needed,
		s.standbys_connected, s.standbys_unconfirmed_bytes,
		s.standbys_silent_seconds,
		pg_catalog.pg_notification_queue_usage() AS notification_queue_ratio,
		s.worker_failing_seconds, s.worker_failures, s.worker_retry_seconds,
		s.worker_sqlstate, s.worker_failure
	FROM leader_election._measure_server() s;

--
-- Comments: the extension's.  A test compares them.
--

COMMENT ON SCHEMA leader_election IS
'leader election; USAGE lets a role observe, EXECUTE on the routines lets it stand';
COMMENT ON VIEW leader_election.protocol IS
'which protocol these objects speak; a library that speaks another one does nothing in this database';
COMMENT ON TYPE leader_election.lease_grant IS
'a lease as granted: the term (the fencing token), milliseconds that remain, when that is, and whether the leader is asked to yield';
COMMENT ON FUNCTION leader_election.join(text, text, integer, bigint, jsonb, boolean) IS
'stand for election with this session; the term if it leads, NULL if not (yet)';
COMMENT ON PROCEDURE leader_election.campaign(text, text, interval, integer, bigint, jsonb, boolean, bigint) IS
'stand for election and wait until elected: the term, or NULL after the timeout';
COMMENT ON FUNCTION leader_election.is_leader(text) IS
'does this session lead the election now?';
COMMENT ON FUNCTION leader_election.term(text) IS
'the term (fencing token) in which this session leads the election now, else NULL';
COMMENT ON FUNCTION leader_election.remaining_ms(text) IS
'milliseconds for which this session goes on leading even if nothing is renewed any more; NULL if it does not lead';
COMMENT ON FUNCTION leader_election.renew(text, bigint, bigint, jsonb) IS
'renew the lease that this session holds or, with a term, that of a detached candidate; no row if the session does not lead, or the term is over; progress and metadata that are not NULL are changed';
COMMENT ON FUNCTION leader_election.resign(text, interval) IS
'give up leadership but stay a candidate; with hold, nobody is elected until that long after this leadership began';
COMMENT ON FUNCTION leader_election.leave(text) IS
'withdraw this session''s candidacy, resigning first; false if there was none';
COMMENT ON FUNCTION leader_election.leave_all() IS
'withdraw all candidacies of this session; how many there were';
COMMENT ON FUNCTION leader_election.transfer(text, text) IS
'hand the lease that this session holds to a live candidate; false if this session does not lead';
COMMENT ON FUNCTION leader_election.join_group(text, text, integer, bigint, jsonb, boolean) IS
'stand for all seats of a group with this session; the seats that it leads';
COMMENT ON FUNCTION leader_election.acquire(text, text, integer, bigint, jsonb, text, integer, uuid) IS
'stand for election and ask for the lease, over any connection; no row if it is not granted, or the run is done, overtaken by a later one, or was granted so many attempts; a call that repeats a request has the same answer';
COMMENT ON FUNCTION leader_election.acquire_any(text, text, integer, bigint, jsonb, uuid) IS
'stand for all seats of a group, and ask for them, over any connection; the seats that this call was granted, or an earlier one with the same request';
COMMENT ON FUNCTION leader_election.release(text, bigint, interval, boolean) IS
'give back the lease of this term; with hold, nobody is elected until that long after this leadership began; false if the term is over; with done, record its run as done, also if the lease is over: false if a later term has begun';
COMMENT ON FUNCTION leader_election.transfer(text, bigint, text) IS
'hand the lease of this term to a live candidate; false if the term is over';
COMMENT ON FUNCTION leader_election.leave(text, text) IS
'withdraw the candidacy of a detached candidate; false if there was none';
COMMENT ON FUNCTION leader_election.is_leader(text, bigint) IS
'does a candidate, of either kind, lead the election in this term now?';
COMMENT ON FUNCTION leader_election.assert_leader(text) IS
'fail unless this session leads the election, now and when the transaction commits';
COMMENT ON FUNCTION leader_election.assert_leader(text, bigint) IS
'fail unless a candidate leads the election in this term, now and when the transaction commits';
COMMENT ON FUNCTION leader_election.only_leader() IS
'trigger BEFORE a statement: only the leader of the election that is its argument may write the table';
COMMENT ON FUNCTION leader_election.create_election(text, text, interval, integer, interval, name, text, interval, interval) IS
'create an election, owned by the caller; bully and spread ask a leader to yield only to a candidate that has stood for preempt_delay, and a vacant election that nobody stood for waits for initial_delay from the first candidate on';
COMMENT ON FUNCTION leader_election.alter_election(text, text, interval, integer, interval, name, text, interval, interval, name) IS
'change what is not NULL, from the next renewal or election on; an empty candidate_role or channel clears it; owner: a role that the caller is a member of';
COMMENT ON FUNCTION leader_election.set_run_done(text, text) IS
'let this be the last run that is done, and forget that later ones were granted or done; NULL: none is done';
COMMENT ON FUNCTION leader_election.drop_election(text) IS
'drop an election that nobody leads, and end all candidacies in it';
COMMENT ON FUNCTION leader_election.create_group(text, integer, text, integer, interval, integer, interval, name, text, interval, interval) IS
'create a group of 1 to 1000 elections, its seats, owned by the caller; a candidate leads max_per_candidate of them at most';
COMMENT ON FUNCTION leader_election.alter_group(text, integer, text, integer, interval, integer, interval, name, text, interval, interval, name) IS
'change what is not NULL; seats that are too many are dropped when their leaders have yielded';
COMMENT ON FUNCTION leader_election.drop_group(text) IS
'drop a group none of whose seats is led, with its seats and all candidacies in them';
COMMENT ON FUNCTION leader_election.pause_election(text, text, interval, boolean) IS
'elect nobody by the rules until it is resumed, or for a duration; who leads goes on, or (vacate) is asked to yield';
COMMENT ON FUNCTION leader_election.resume_election(text) IS
'end the pause of an election; false if it was not paused';
COMMENT ON FUNCTION leader_election.pause_all(text) IS
'elect nobody by the rules in any election of this database; only for superusers';
COMMENT ON FUNCTION leader_election.resume_all() IS
'end what pause_all() began; elections that are paused themselves stay so; false if it was not paused';
COMMENT ON FUNCTION leader_election.drain_candidate(text, text, text) IS
'elect a candidate (name, or beginning of names and *) no more, in one election or in all, and ask it to yield where it leads';
COMMENT ON FUNCTION leader_election.undrain_candidate(text, text) IS
'end what drain_candidate() began with the same name and election; false if there was nothing to end';
COMMENT ON FUNCTION leader_election.request_yield(text, text, boolean) IS
'ask the leader to yield, to a candidate or to the next one in order, and renew its lease no more; how long that may take, NULL if nobody leads';
COMMENT ON FUNCTION leader_election.leader(text) IS
'who leads the election now; NULL when nobody does';
COMMENT ON PROCEDURE leader_election.wait_for_change(text, bigint, text, interval) IS
'wait until the term or the leader differs from the one given, or the timeout is over';
COMMENT ON FUNCTION leader_election._observe(text) IS
'what the view status shows of one election';
COMMENT ON FUNCTION leader_election._standing(text) IS
'what the view candidates shows of one election; nothing on a standby';
COMMENT ON FUNCTION leader_election.diagnose(text) IS
'what is so in an election or a group, why nobody leads or why that changes so often, and what to do: severity is ok, notice, warning or error';
COMMENT ON VIEW leader_election.status IS
'each election now: who leads, in which term, since when and how long yet, or why nobody does';
COMMENT ON VIEW leader_election.candidates IS
'who stands, in the order in which they would be elected';
COMMENT ON FUNCTION leader_election._measure() IS
'what the view metrics shows';
COMMENT ON FUNCTION leader_election._measure_server() IS
'what the view server_metrics shows';
COMMENT ON VIEW leader_election.metrics IS
'each election now, in numbers for monitors';
COMMENT ON VIEW leader_election.server_metrics IS
'what elections need of this server and its standbys, in numbers for monitors: one row';
COMMENT ON FUNCTION leader_election._incarnation() IS
'the server''s present incarnation: system identifier, timeline, boot, database, lease table; NULL in recovery';
COMMENT ON FUNCTION leader_election._monotonic_clock() IS
'the clock that leases are measured with, in microseconds';
COMMENT ON TABLE leader_election.election IS 'configuration, one row per election';
COMMENT ON TABLE leader_election.lease IS 'the lease row of each election: who leads, in which term, until when';
COMMENT ON TABLE leader_election.candidate IS 'who stands, one row per candidacy; emptied by a crash and by a promotion';
COMMENT ON TABLE leader_election.history IS 'every term, and why it ended';
COMMENT ON SCHEMA leader_election_internal IS 'the portable edition''s own: nobody else has any rights in it';

--
-- Privileges.  Whoever has USAGE on the schema (nobody, by default) may
-- observe; standing needs EXECUTE as well.  What was granted or revoked before a
-- second run stays.
--

-- ALTER DEFAULT PRIVILEGES may have given away what was made just now: a role
-- that could write the tables could have terms repeat.
DO $$
DECLARE
	command text;
BEGIN
	FOR command IN
		SELECT pg_catalog.format('REVOKE ALL ON %s %s FROM %s CASCADE', o.kind, o.name,
			CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END)
		FROM (
			SELECT 'SCHEMA' AS kind, pg_catalog.quote_ident(n.nspname) AS name, n.nspacl AS acl, n.nspowner AS owner,
				n.tableoid || '/' || n.oid AS id
			FROM pg_catalog.pg_namespace n
			WHERE n.nspname IN ('leader_election', 'leader_election_internal')
			UNION ALL
			SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::pg_catalog.regclass::text, c.relacl, c.relowner,
				c.tableoid || '/' || c.oid
			FROM pg_catalog.pg_class c
			WHERE c.relnamespace IN ('leader_election'::pg_catalog.regnamespace, 'leader_election_internal'::pg_catalog.regnamespace)
				AND c.relkind IN ('r', 'v', 'S')
			UNION ALL
			SELECT 'ROUTINE', p.oid::pg_catalog.regprocedure::text,
				coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner)), p.proowner,
				p.tableoid || '/' || p.oid
			FROM pg_catalog.pg_proc p
			WHERE p.pronamespace IN ('leader_election'::pg_catalog.regnamespace, 'leader_election_internal'::pg_catalog.regnamespace)
		) o, LATERAL pg_catalog.aclexplode(o.acl) a
		WHERE a.grantee <> o.owner
			AND o.id <> ALL (pg_catalog.current_setting('leader_election_portable.known')::text[])
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;

-- Event triggers, which many services have, may have attached something to the
-- tables, or enabled row security, so that observers would see nothing.  What
-- they do to all tables is undone here; what cannot be undone is refused.
DO $$
DECLARE
	command text;
	other text;
BEGIN
	FOR command IN
		WITH tables AS (
			SELECT c.oid, c.relrowsecurity OR c.relforcerowsecurity AS secured
			FROM pg_catalog.pg_class c
			WHERE c.relnamespace IN ('leader_election'::pg_catalog.regnamespace, 'leader_election_internal'::pg_catalog.regnamespace)
				AND c.relkind = 'r' AND pg_catalog.current_setting('leader_election_portable.fresh')::boolean
		)
		SELECT pg_catalog.format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY',
			t.oid::pg_catalog.regclass)
		FROM tables t WHERE t.secured
		UNION ALL
		SELECT pg_catalog.format('DROP POLICY %I ON %s', p.polname, p.polrelid::pg_catalog.regclass)
		FROM tables t JOIN pg_catalog.pg_policy p ON p.polrelid = t.oid
		UNION ALL
		SELECT pg_catalog.format('DROP TRIGGER %I ON %s', g.tgname, g.tgrelid::pg_catalog.regclass)
		FROM tables t JOIN pg_catalog.pg_trigger g ON g.tgrelid = t.oid
		WHERE NOT g.tgisinternal
		UNION ALL
		SELECT pg_catalog.format('DROP RULE %I ON %s', w.rulename, w.ev_class::pg_catalog.regclass)
		FROM tables t JOIN pg_catalog.pg_rewrite w ON w.ev_class = t.oid
	LOOP
		EXECUTE command;
	END LOOP;

	SELECT pg_catalog.min(o.name) INTO other
	FROM (
		SELECT 'schema ' || n.nspname AS name, n.nspowner AS owner, false AS changed
		FROM pg_catalog.pg_namespace n
		WHERE n.nspname IN ('leader_election', 'leader_election_internal')
		UNION ALL
		SELECT 'relation ' || c.oid::pg_catalog.regclass::text, c.relowner, c.relrowsecurity
		FROM pg_catalog.pg_class c
		WHERE c.relnamespace IN ('leader_election'::pg_catalog.regnamespace, 'leader_election_internal'::pg_catalog.regnamespace)
		UNION ALL
		SELECT 'routine ' || p.oid::pg_catalog.regprocedure::text, p.proowner, false
		FROM pg_catalog.pg_proc p
		WHERE p.pronamespace IN ('leader_election'::pg_catalog.regnamespace, 'leader_election_internal'::pg_catalog.regnamespace)
	) o
	WHERE o.changed OR o.owner <> (SELECT n.nspowner FROM pg_catalog.pg_namespace n WHERE n.nspname = 'leader_election');
	IF other IS NOT NULL THEN
		RAISE EXCEPTION 'the %, which this file has made, has another owner or row security by now', other
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'An event trigger has done that, or another member of the owner''s role has run this file. Undo it, and run this file as the owner.';
	END IF;
END
$$;

DO $$
BEGIN
	IF NOT pg_catalog.current_setting('leader_election_portable.fresh')::boolean THEN
		RETURN;
	END IF;
	-- A foreign key with CASCADE would delete its rows with each change of holder
	-- (replace_row()).  Keys refer to table election.
	REVOKE REFERENCES ON leader_election.lease FROM CURRENT_USER;

	GRANT SELECT ON leader_election.status, leader_election.candidates,
		leader_election.history, leader_election.election,
		leader_election.election_group, leader_election.metrics,
		leader_election.server_metrics, leader_election.drain,
		leader_election.protocol TO PUBLIC;
	GRANT EXECUTE ON FUNCTION leader_election.is_leader(text),
		leader_election.is_leader(text, bigint), leader_election.term(text),
		leader_election.remaining_ms(text), leader_election.leader(text),
		leader_election.assert_leader(text), leader_election.only_leader(),
		leader_election._observe(text), leader_election._standing(text),
		leader_election.diagnose(text), leader_election._measure(),
		leader_election._measure_server(), leader_election._incarnation(),
		leader_election._monotonic_clock() TO PUBLIC;
	GRANT EXECUTE ON PROCEDURE leader_election.wait_for_change(text, bigint, text, interval) TO PUBLIC;
END
$$;

INSERT INTO leader_election_internal.edition (number, version, changes)
	SELECT 1, '1.0', 'the first one'
	WHERE NOT EXISTS (SELECT 1 FROM leader_election_internal.edition WHERE number = 1);

-- Calls that have looked at an election end before this commits: they go on with no
-- half that is new.  Others wait here, or look at no election, as fences do.  This is
-- the last lock: views, which observers have locked before, come first.
LOCK TABLE leader_election.election;

-- psql: begin
\if :{?in_transaction}
\else
COMMIT;
\endif
-- psql: end
