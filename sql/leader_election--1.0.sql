/* leader_election 1.0 */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION leader_election" to load this file. \quit

-- Made here, never adopted: a schema of this name that somebody else owns
-- makes the script fail.
CREATE SCHEMA leader_election;
COMMENT ON SCHEMA leader_election IS
'leader election; USAGE lets a role observe, EXECUTE on the routines lets it stand';

--
-- Tables.  Only the extension's own code writes them.  Columns in _mono are
-- microseconds of the server's monotonic clock; they mean something only on
-- the incarnation that wrote them.
--
-- No vacuum gives empty pages at the end of a table back: for that it locks the
-- table in ACCESS EXCLUSIVE mode, and is_leader() would answer false meanwhile.
--

CREATE TABLE leader_election.election (
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
	group_name		text COLLATE "C",
	paused_at		timestamptz,
	paused_by		name,
	pause_reason	text,
	pause_vacates	boolean,
	resumes_at		timestamptz,
	resumes_mono	bigint,
	resumes_for		bigint,
	pause_incarnation text COLLATE "C",
	owner_id		text COLLATE "C",
	candidate_role_id text COLLATE "C",
	CONSTRAINT kept_pause CHECK (paused_at IS NULL OR
		(paused_by, pause_vacates, pause_incarnation) IS NOT NULL),
	CONSTRAINT kept_resumes CHECK ((resumes_at, resumes_mono, resumes_for) IS NULL OR
		(paused_at, resumes_at, resumes_mono, resumes_for) IS NOT NULL)
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
COMMENT ON TABLE leader_election.election IS 'configuration, one row per election';
COMMENT ON COLUMN leader_election.election.preempt_delay IS 'for so long a challenger has to stand before the leader is asked to yield to it; NULL: 0';
COMMENT ON COLUMN leader_election.election.initial_delay IS 'for so long a vacant election that nobody stood for waits from the first candidate on; NULL: 0';
COMMENT ON COLUMN leader_election.election.group_name IS 'the group that it is a seat of; NULL: of none';
COMMENT ON COLUMN leader_election.election.paused_at IS 'NULL: not paused';
COMMENT ON COLUMN leader_election.election.pause_vacates IS 'while it is paused, every leader is asked to yield';
COMMENT ON COLUMN leader_election.election.resumes_at IS 'when the pause ends by itself; NULL: when it is resumed';
COMMENT ON COLUMN leader_election.election.resumes_for IS 'microseconds from paused_at to resumes_at';
COMMENT ON COLUMN leader_election.election.pause_incarnation IS 'the incarnation of the server on which it was paused';
COMMENT ON COLUMN leader_election.election.owner_id IS 'which role owner means: OID/system identifier/OID of table lease/name; elsewhere, or if NULL, owner is the name of a role';
COMMENT ON COLUMN leader_election.election.candidate_role_id IS 'which role candidate_role means, as owner_id';

-- A group of elections, its seats.
CREATE TABLE leader_election.election_group (
	group_name		text COLLATE "C" PRIMARY KEY,
	seats			integer NOT NULL,
	max_per_candidate integer NOT NULL,
	owner			name NOT NULL,
	owner_id		text COLLATE "C"
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
COMMENT ON TABLE leader_election.election_group IS 'groups of elections, one row per group; its seats are elections of their own';
COMMENT ON COLUMN leader_election.election_group.seats IS 'the seats are named group_name/1, group_name/2 and so on';
COMMENT ON COLUMN leader_election.election_group.max_per_candidate IS 'how many seats a candidate may have at a time';
COMMENT ON COLUMN leader_election.election_group.owner_id IS 'which role owner means, as in table election';

-- Its row, if there is one, pauses all elections.
CREATE TABLE leader_election.pause_all (
	scope			text COLLATE "C" PRIMARY KEY,
	paused_at		timestamptz NOT NULL,
	paused_by		name NOT NULL,
	reason			text,
	CONSTRAINT kept_scope CHECK (scope = 'all')
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
COMMENT ON TABLE leader_election.pause_all IS 'has a row while all elections are paused';

-- No election is named ''.
CREATE TABLE leader_election.drain (
	election		text COLLATE "C" NOT NULL,
	candidate		text COLLATE "C" NOT NULL,
	drained_at		timestamptz NOT NULL,
	drained_by		name NOT NULL,
	reason			text,
	PRIMARY KEY (election, candidate)
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
COMMENT ON TABLE leader_election.drain IS 'candidates that are not elected, in one election or in all';
COMMENT ON COLUMN leader_election.drain.election IS 'an empty string: all elections';
COMMENT ON COLUMN leader_election.drain.candidate IS 'a name or, with * at the end, the beginning of names';

-- The lease row: the durable half of the mutex.  Its holder changes only
-- under the election lock.  Renewals touch no indexed column and find room in
-- the page, so that they stay HOT.
--
-- What the code writes keeps the constraints named kept_..., and is not checked
-- each time (row.c): they are for rows that come from elsewhere.
CREATE TABLE leader_election.lease (
	election		text COLLATE "C" PRIMARY KEY,
	term			bigint NOT NULL,
	previous_term	bigint,
	leader			text COLLATE "C",
	kind			text COLLATE "C",
	session_id		bigint,
	backend_pid		integer,
	role			name,
	auto_renew		boolean,
	rank			integer,
	progress		bigint,
	metadata		jsonb,
	acquired_at		timestamptz,
	renewed_at		timestamptz,
	expires_at		timestamptz,
	acquired_mono	bigint,
	deadline_mono	bigint,
	duration		bigint,
	incarnation		text COLLATE "C",
	yielding		boolean NOT NULL,
	yield_ordered	boolean NOT NULL,
	yields			bigint NOT NULL,
	successor		text COLLATE "C",
	successor_role	name,
	not_before_at	timestamptz,
	not_before_mono	bigint,
	not_before_for	bigint,
	held			boolean,
	reserved_mono	bigint,
	reserved_for	bigint,
	yield_cause		text COLLATE "C",
	deserted		boolean,
	first_stood_at	timestamptz,
	first_stood_mono bigint,
	run				text COLLATE "C",
	run_role		name,
	run_granted		text COLLATE "C",
	run_attempts	integer,
	run_done		text COLLATE "C",
	done_at			timestamptz,
	left_at_renewal	bigint,
	role_id			text COLLATE "C",
	successor_role_id text COLLATE "C",
	run_role_id		text COLLATE "C",
	created_at		timestamptz,
	after_term		bigint,
	metadata_at		timestamptz,
	request			uuid,
	CONSTRAINT kept_led CHECK (leader IS NULL OR
		(kind, role, auto_renew, rank, progress, acquired_at, renewed_at, expires_at,
		 acquired_mono, deadline_mono, duration, incarnation) IS NOT NULL),
	CONSTRAINT kept_kind CHECK (leader IS NULL OR
		CASE kind WHEN 'session' THEN (session_id, backend_pid) IS NOT NULL
			WHEN 'detached' THEN (session_id, backend_pid) IS NULL
			ELSE false END),
	CONSTRAINT kept_successor CHECK ((successor IS NULL) = (successor_role IS NULL)),
	CONSTRAINT kept_not_before CHECK (
		(not_before_at, not_before_mono, not_before_for, held) IS NULL OR
		(not_before_at, not_before_mono, not_before_for, held) IS NOT NULL),
	CONSTRAINT kept_reserved CHECK ((reserved_mono, reserved_for) IS NULL OR
		leader IS NULL AND
		(reserved_mono, reserved_for, successor, incarnation) IS NOT NULL),
	CONSTRAINT kept_deserted CHECK (leader IS NULL OR deserted IS NULL),
	CONSTRAINT kept_first_stood CHECK ((first_stood_at, first_stood_mono) IS NULL OR
		(deserted, first_stood_at, first_stood_mono, incarnation) IS NOT NULL),
	CONSTRAINT kept_runs CHECK ((run IS NULL) = (run_role IS NULL) AND
		(run_granted IS NULL) = (run_attempts IS NULL) AND
		(run_done IS NULL) = (done_at IS NULL))
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
	vacuum_truncate = off, toast.vacuum_truncate = off,
	toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE leader_election.lease IS 'the lease row of each election: who leads, in which term, until when';
COMMENT ON COLUMN leader_election.lease.term IS 'the present term or, when vacant, the last one';
COMMENT ON COLUMN leader_election.lease.previous_term IS 'the term that this one continues after a failover';
COMMENT ON COLUMN leader_election.lease.leader IS 'NULL: vacant';
COMMENT ON COLUMN leader_election.lease.duration IS 'microseconds that were granted, from the last renewal to the deadline';
COMMENT ON COLUMN leader_election.lease.incarnation IS 'the incarnation of the server that granted this term';
COMMENT ON COLUMN leader_election.lease.yield_ordered IS 'yielding: because an operator asked, not the strategy';
COMMENT ON COLUMN leader_election.lease.yields IS 'requests to yield, in this term';
COMMENT ON COLUMN leader_election.lease.successor IS 'whom the leader yields to, or the vacant election is reserved for';
COMMENT ON COLUMN leader_election.lease.not_before_at IS 'nobody is elected before';
COMMENT ON COLUMN leader_election.lease.not_before_for IS 'microseconds from the moment that not_before_at was set to not_before_at';
COMMENT ON COLUMN leader_election.lease.held IS 'not_before_at is the end of a hold; false: of a takeover delay';
COMMENT ON COLUMN leader_election.lease.reserved_mono IS 'until when the vacant election is reserved for the successor (monotonic)';
COMMENT ON COLUMN leader_election.lease.reserved_for IS 'microseconds for which it is';
COMMENT ON COLUMN leader_election.lease.run IS 'what the present term, or the last one, was granted for; NULL: for no run';
COMMENT ON COLUMN leader_election.lease.run_role IS 'the role that the run was granted to, also when the term is over';
COMMENT ON COLUMN leader_election.lease.run_granted IS 'the highest run that a term was granted for';
COMMENT ON COLUMN leader_election.lease.run_attempts IS 'how many terms were granted for it';
COMMENT ON COLUMN leader_election.lease.run_done IS 'the highest run that is done';
COMMENT ON COLUMN leader_election.lease.done_at IS 'when that was recorded';
COMMENT ON COLUMN leader_election.lease.left_at_renewal IS 'microseconds that were left of the lease when it was renewed last, in this term; NULL: it was not renewed yet';
COMMENT ON COLUMN leader_election.lease.role_id IS 'which role role means, as owner_id in table election';
COMMENT ON COLUMN leader_election.lease.successor_role_id IS 'which role successor_role means';
COMMENT ON COLUMN leader_election.lease.run_role_id IS 'which role run_role means';
COMMENT ON COLUMN leader_election.lease.created_at IS 'when the election was created; tells it from those that had its name before';
COMMENT ON COLUMN leader_election.lease.after_term IS 'its terms are greater: those of elections that had its name before are not';
COMMENT ON COLUMN leader_election.lease.metadata_at IS 'when the leader last changed its metadata; NULL: not since it was elected';
COMMENT ON COLUMN leader_election.lease.request IS 'which acquire() it was granted to, until it is renewed; NULL: no request was named, or it was renewed';
COMMENT ON COLUMN leader_election.lease.yield_cause IS 'yield_ordered: paused or drained, if a pause that vacates the election or a drain asked; NULL: a call of request_yield()';
COMMENT ON COLUMN leader_election.lease.deserted IS 'nobody but the last leader stood when the election fell vacant: it waits for the election''s initial_delay; NULL: not so, or it is led';
COMMENT ON COLUMN leader_election.lease.first_stood_at IS 'deserted: when the first candidate stood for it since; NULL: none was seen yet';
COMMENT ON COLUMN leader_election.lease.first_stood_mono IS 'first_stood_at by the monotonic clock; void on another incarnation than the row''s, and if it is still to come';

-- Ephemeral by nature: a session candidate ends with its session, and a
-- detached one when it has not called for a while.
CREATE UNLOGGED TABLE leader_election.candidate (
	election		text COLLATE "C" NOT NULL,
	candidate		text COLLATE "C" NOT NULL,
	kind			text COLLATE "C" NOT NULL,
	role			name NOT NULL,
	rank			integer NOT NULL,
	progress		bigint NOT NULL,
	metadata		jsonb,
	auto_renew		boolean NOT NULL,
	session_id		bigint,
	backend_pid		integer,
	client_addr		inet,
	joined_at		timestamptz NOT NULL,
	place_mono		bigint NOT NULL,
	sits_out		bigint,
	defers			boolean NOT NULL,
	seen_mono		bigint,
	seen_for		bigint,
	stood_mono		bigint,
	role_id			text COLLATE "C",
	PRIMARY KEY (election, candidate)
) WITH (fillfactor = 50, vacuum_truncate = off, toast.vacuum_truncate = off);
COMMENT ON TABLE leader_election.candidate IS 'who stands, one row per candidacy; emptied by a crash and by a promotion';
COMMENT ON COLUMN leader_election.candidate.session_id IS 'NULL: detached';
COMMENT ON COLUMN leader_election.candidate.role_id IS 'which role role means, as owner_id in table election';
COMMENT ON COLUMN leader_election.candidate.defers IS 'it has given up, and preempts nobody until it stands anew or its rank changes';
COMMENT ON COLUMN leader_election.candidate.seen_mono IS 'the last heartbeat of a detached candidate, which is alive for seen_for since';
COMMENT ON COLUMN leader_election.candidate.place_mono IS 'queue position: when it joined or last gave up leadership';
COMMENT ON COLUMN leader_election.candidate.stood_mono IS 'since when it stands, or since it last lost a leadership that it did not give up; NULL: since place_mono';
COMMENT ON COLUMN leader_election.candidate.sits_out IS 'the term that it gave up; it is passed over while that is the last one';

CREATE TABLE leader_election.history (
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
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
COMMENT ON TABLE leader_election.history IS 'every term, and why it ended';

-- Old rows are removed along it.  An index on ended_at would be in the way of
-- every end of a term: that would have to enter its row into all indexes anew.
CREATE INDEX history_acquired_at ON leader_election.history (acquired_at);

-- Ephemeral, too: a crash or a promotion ends all listeners' sessions.
CREATE UNLOGGED TABLE leader_election.announced (
	election		text COLLATE "C" PRIMARY KEY,
	term			bigint NOT NULL,
	vacated			boolean NOT NULL,
	yields			bigint NOT NULL,
	channel			text COLLATE "C",
	created_at		timestamptz,
	metadata_at		timestamptz
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
	vacuum_truncate = off, toast.vacuum_truncate = off,
	toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE leader_election.announced IS 'what listeners have been told last; emptied by a crash and by a promotion';
COMMENT ON COLUMN leader_election.announced.term IS 'they know of the terms up to this one';
COMMENT ON COLUMN leader_election.announced.vacated IS 'they know that it has ended';
COMMENT ON COLUMN leader_election.announced.yields IS 'they know of so many requests to yield in it';
COMMENT ON COLUMN leader_election.announced.channel IS 'that they were told on last; NULL: leadership_changed';
COMMENT ON COLUMN leader_election.announced.created_at IS 'that of the lease that they know of; NULL: of none yet';
COMMENT ON COLUMN leader_election.announced.metadata_at IS 'of the last change of metadata that they know of, in this term';

CREATE TABLE leader_election.epoch (
	incarnation		text COLLATE "C" PRIMARY KEY,
	first_seen_at	timestamptz NOT NULL,
	first_seen_mono	bigint NOT NULL,
	epoch			bigint NOT NULL,
	dropped_term	bigint NOT NULL
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
COMMENT ON TABLE leader_election.epoch IS 'the incarnations of the server that this database has lived in';
COMMENT ON COLUMN leader_election.epoch.dropped_term IS 'the highest term of the elections that were dropped and have no row in dropped';

-- A row for each: who drops an election locks nothing that others need.  The
-- worker moves it into epoch.dropped_term.
CREATE TABLE leader_election.dropped (
	election		text COLLATE "C" PRIMARY KEY,
	term			bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
	vacuum_truncate = off, toast.vacuum_truncate = off);
COMMENT ON TABLE leader_election.dropped IS 'elections that were dropped just now; one that is created by that name begins above its term';
COMMENT ON COLUMN leader_election.dropped.term IS 'its last term; if it was never led: that of the one before it, or 0';

SELECT pg_extension_config_dump('leader_election.election', '');
SELECT pg_extension_config_dump('leader_election.election_group', '');
SELECT pg_extension_config_dump('leader_election.pause_all', '');
SELECT pg_extension_config_dump('leader_election.drain', '');
SELECT pg_extension_config_dump('leader_election.lease', '');
SELECT pg_extension_config_dump('leader_election.history', '');
SELECT pg_extension_config_dump('leader_election.epoch', '');
SELECT pg_extension_config_dump('leader_election.dropped', '');

-- A name in the catalogs and nothing else: every change of leadership
-- invalidates it, which tells each session to read its lease rows again.
CREATE TYPE leader_election.change AS ();
COMMENT ON TYPE leader_election.change IS 'invalidated by every change of leadership';

-- What the library has to speak (LE_PROTOCOL).  Each use of the tables locks
-- this view in ACCESS SHARE mode, and reads the number: so an update script,
-- which begins by replacing the view, waits for them, and later ones see the
-- number that it has left.  (The library reads the first column, from the view's
-- definition.  The others are for clients: there is a portable edition, too.)
CREATE VIEW leader_election.protocol AS
	SELECT 1 AS number, 'extension'::text AS edition,
		(SELECT e.extversion FROM pg_catalog.pg_extension e
			WHERE e.extname = 'leader_election') AS version;
COMMENT ON VIEW leader_election.protocol IS
'which protocol these objects speak; a library that speaks another one does nothing in this database';

CREATE TYPE leader_election.lease_grant AS (
	term			bigint,
	remaining_ms	bigint,
	expires_at		timestamptz,
	yielding		boolean
);
COMMENT ON TYPE leader_election.lease_grant IS
'a lease as granted: the term (the fencing token), milliseconds that remain, when that is, and whether the leader is asked to yield';

--
-- Session candidates
--

CREATE FUNCTION leader_election.join(election text, candidate text,
	rank integer DEFAULT NULL, progress bigint DEFAULT NULL,
	metadata jsonb DEFAULT NULL, auto_renew boolean DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'le_join'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.join(text, text, integer, bigint, jsonb, boolean) IS
'stand for election with this session; the term if it leads, NULL if not (yet)';

CREATE PROCEDURE leader_election.campaign(election text, candidate text,
	timeout interval DEFAULT NULL, rank integer DEFAULT NULL,
	progress bigint DEFAULT NULL, metadata jsonb DEFAULT NULL,
	auto_renew boolean DEFAULT NULL, INOUT term bigint DEFAULT NULL)
AS 'MODULE_PATHNAME', 'le_campaign'
LANGUAGE C;
COMMENT ON PROCEDURE leader_election.campaign(text, text, interval, integer, bigint, jsonb, boolean, bigint) IS
'stand for election and wait until elected: the term, or NULL after the timeout';

CREATE FUNCTION leader_election.is_leader(election text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_is_leader'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.is_leader(text) IS
'does this session lead the election now?';

CREATE FUNCTION leader_election.term(election text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'le_term'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.term(text) IS
'the term (fencing token) in which this session leads the election now, else NULL';

CREATE FUNCTION leader_election.remaining_ms(election text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'le_remaining_ms'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.remaining_ms(text) IS
'milliseconds for which this session goes on leading even if nothing is renewed any more; NULL if it does not lead';

CREATE FUNCTION leader_election.renew(election text,
	term bigint DEFAULT NULL, progress bigint DEFAULT NULL,
	metadata jsonb DEFAULT NULL)
RETURNS SETOF leader_election.lease_grant
AS 'MODULE_PATHNAME', 'le_renew'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION leader_election.renew(text, bigint, bigint, jsonb) IS
'renew the lease that this session holds or, with a term, that of a detached candidate; no row if the session does not lead, or the term is over; progress and metadata that are not NULL are changed';

CREATE FUNCTION leader_election.resign(election text, hold interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_resign'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.resign(text, interval) IS
'give up leadership but stay a candidate; with hold, nobody is elected until that long after this leadership began';

CREATE FUNCTION leader_election.leave(election text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_leave'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.leave(text) IS
'withdraw this session''s candidacy, resigning first; false if there was none';

CREATE FUNCTION leader_election.leave_all()
RETURNS integer
AS 'MODULE_PATHNAME', 'le_leave_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.leave_all() IS
'withdraw all candidacies of this session; how many there were';

CREATE FUNCTION leader_election.transfer(election text, to_candidate text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_transfer'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.transfer(text, text) IS
'hand the lease that this session holds to a live candidate; false if this session does not lead';

CREATE FUNCTION leader_election.join_group(group_name text, candidate text,
	rank integer DEFAULT NULL, progress bigint DEFAULT NULL,
	metadata jsonb DEFAULT NULL, auto_renew boolean DEFAULT NULL,
	OUT election text, OUT term bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'le_join_group'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.join_group(text, text, integer, bigint, jsonb, boolean) IS
'stand for all seats of a group with this session; the seats that it leads';

--
-- Detached candidates
--

CREATE FUNCTION leader_election.acquire(election text, candidate text,
	rank integer DEFAULT NULL, progress bigint DEFAULT NULL,
	metadata jsonb DEFAULT NULL, run text DEFAULT NULL,
	attempts integer DEFAULT NULL, request uuid DEFAULT NULL)
RETURNS SETOF leader_election.lease_grant
AS 'MODULE_PATHNAME', 'le_acquire'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION leader_election.acquire(text, text, integer, bigint, jsonb, text, integer, uuid) IS
'stand for election and ask for the lease, over any connection; no row if it is not granted, or the run is done, overtaken by a later one, or was granted so many attempts; a call that repeats a request has the same answer';

CREATE FUNCTION leader_election.acquire_any(group_name text, candidate text,
	rank integer DEFAULT NULL, progress bigint DEFAULT NULL,
	metadata jsonb DEFAULT NULL, request uuid DEFAULT NULL,
	OUT election text, OUT term bigint, OUT remaining_ms bigint, OUT expires_at timestamptz,
	OUT yielding boolean)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'le_acquire_any'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.acquire_any(text, text, integer, bigint, jsonb, uuid) IS
'stand for all seats of a group, and ask for them, over any connection; the seats that this call was granted, or an earlier one with the same request';

CREATE FUNCTION leader_election.release(election text, term bigint,
	hold interval DEFAULT NULL, done boolean DEFAULT false)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.release(text, bigint, interval, boolean) IS
'give back the lease of this term; with hold, nobody is elected until that long after this leadership began; false if the term is over; with done, record its run as done, also if the lease is over: false if a later term has begun';

CREATE FUNCTION leader_election.transfer(election text, term bigint,
	to_candidate text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_transfer_term'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.transfer(text, bigint, text) IS
'hand the lease of this term to a live candidate; false if the term is over';

CREATE FUNCTION leader_election.leave(election text, candidate text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_leave_name'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.leave(text, text) IS
'withdraw the candidacy of a detached candidate; false if there was none';

CREATE FUNCTION leader_election.is_leader(election text, term bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_is_leader_term'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.is_leader(text, bigint) IS
'does a candidate, of either kind, lead the election in this term now?';

--
-- Fencing
--

CREATE FUNCTION leader_election.assert_leader(election text)
RETURNS void
AS 'MODULE_PATHNAME', 'le_assert_leader'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.assert_leader(text) IS
'fail unless this session leads the election, now and when the transaction commits';

CREATE FUNCTION leader_election.assert_leader(election text, term bigint)
RETURNS void
AS 'MODULE_PATHNAME', 'le_assert_leader_term'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.assert_leader(text, bigint) IS
'fail unless a candidate leads the election in this term, now and when the transaction commits';

CREATE FUNCTION leader_election.only_leader()
RETURNS trigger
AS 'MODULE_PATHNAME', 'le_only_leader'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.only_leader() IS
'trigger BEFORE a statement: only the leader of the election that is its argument may write the table';

--
-- Operators
--

CREATE FUNCTION leader_election.create_election(election text,
	strategy text DEFAULT 'race', lease_duration interval DEFAULT NULL,
	quorum integer DEFAULT 1, takeover_delay interval DEFAULT '0',
	candidate_role name DEFAULT NULL, channel text DEFAULT NULL,
	preempt_delay interval DEFAULT '0', initial_delay interval DEFAULT '0')
RETURNS void
AS 'MODULE_PATHNAME', 'le_create_election'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.create_election(text, text, interval, integer, interval, name, text, interval, interval) IS
'create an election, owned by the caller; bully and spread ask a leader to yield only to a candidate that has stood for preempt_delay, and a vacant election that nobody stood for waits for initial_delay from the first candidate on';

CREATE FUNCTION leader_election.alter_election(election text,
	strategy text DEFAULT NULL, lease_duration interval DEFAULT NULL,
	quorum integer DEFAULT NULL, takeover_delay interval DEFAULT NULL,
	candidate_role name DEFAULT NULL, channel text DEFAULT NULL,
	preempt_delay interval DEFAULT NULL, initial_delay interval DEFAULT NULL,
	owner name DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'le_alter_election'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.alter_election(text, text, interval, integer, interval, name, text, interval, interval, name) IS
'change what is not NULL, from the next renewal or election on; an empty candidate_role or channel clears it; owner: a role that the caller is a member of';

CREATE FUNCTION leader_election.set_run_done(election text, run text)
RETURNS void
AS 'MODULE_PATHNAME', 'le_set_run_done'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.set_run_done(text, text) IS
'let this be the last run that is done, and forget that later ones were granted or done; NULL: none is done';

CREATE FUNCTION leader_election.drop_election(election text)
RETURNS void
AS 'MODULE_PATHNAME', 'le_drop_election'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.drop_election(text) IS
'drop an election that nobody leads, and end all candidacies in it';

CREATE FUNCTION leader_election.create_group(group_name text, seats integer,
	strategy text DEFAULT 'race', max_per_candidate integer DEFAULT 1,
	lease_duration interval DEFAULT NULL, quorum integer DEFAULT 1,
	takeover_delay interval DEFAULT '0', candidate_role name DEFAULT NULL,
	channel text DEFAULT NULL, preempt_delay interval DEFAULT '0',
	initial_delay interval DEFAULT '0')
RETURNS void
AS 'MODULE_PATHNAME', 'le_create_group'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.create_group(text, integer, text, integer, interval, integer, interval, name, text, interval, interval) IS
'create a group of 1 to 1000 elections, its seats, owned by the caller; a candidate leads max_per_candidate of them at most';

CREATE FUNCTION leader_election.alter_group(group_name text,
	seats integer DEFAULT NULL, strategy text DEFAULT NULL,
	max_per_candidate integer DEFAULT NULL,
	lease_duration interval DEFAULT NULL, quorum integer DEFAULT NULL,
	takeover_delay interval DEFAULT NULL, candidate_role name DEFAULT NULL,
	channel text DEFAULT NULL, preempt_delay interval DEFAULT NULL,
	initial_delay interval DEFAULT NULL, owner name DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'le_alter_group'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.alter_group(text, integer, text, integer, interval, integer, interval, name, text, interval, interval, name) IS
'change what is not NULL; seats that are too many are dropped when their leaders have yielded';

CREATE FUNCTION leader_election.drop_group(group_name text)
RETURNS void
AS 'MODULE_PATHNAME', 'le_drop_group'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.drop_group(text) IS
'drop a group none of whose seats is led, with its seats and all candidacies in them';

CREATE FUNCTION leader_election.pause_election(election text,
	reason text DEFAULT NULL, duration interval DEFAULT NULL,
	vacate boolean DEFAULT false)
RETURNS void
AS 'MODULE_PATHNAME', 'le_pause_election'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.pause_election(text, text, interval, boolean) IS
'elect nobody by the rules until it is resumed, or for a duration; who leads goes on, or (vacate) is asked to yield';

CREATE FUNCTION leader_election.resume_election(election text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_resume_election'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.resume_election(text) IS
'end the pause of an election; false if it was not paused';

CREATE FUNCTION leader_election.pause_all(reason text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'le_pause_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.pause_all(text) IS
'elect nobody by the rules in any election of this database; only for superusers';

CREATE FUNCTION leader_election.resume_all()
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_resume_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.resume_all() IS
'end what pause_all() began; elections that are paused themselves stay so; false if it was not paused';

CREATE FUNCTION leader_election.drain_candidate(candidate text,
	election text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'le_drain_candidate'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.drain_candidate(text, text, text) IS
'elect a candidate (name, or beginning of names and *) no more, in one election or in all, and ask it to yield where it leads';

CREATE FUNCTION leader_election.undrain_candidate(candidate text,
	election text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'le_undrain_candidate'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.undrain_candidate(text, text) IS
'end what drain_candidate() began with the same name and election; false if there was nothing to end';

CREATE FUNCTION leader_election.request_yield(election text,
	to_candidate text DEFAULT NULL, terminate boolean DEFAULT false)
RETURNS interval
AS 'MODULE_PATHNAME', 'le_request_yield'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.request_yield(text, text, boolean) IS
'ask the leader to yield, to a candidate or to the next one in order, and renew its lease no more; how long that may take, NULL if nobody leads';

--
-- Observers
--

CREATE FUNCTION leader_election.leader(election text)
RETURNS text
AS 'MODULE_PATHNAME', 'le_leader'
LANGUAGE C VOLATILE PARALLEL UNSAFE STRICT;
COMMENT ON FUNCTION leader_election.leader(text) IS
'who leads the election now; NULL when nobody does';

CREATE PROCEDURE leader_election.wait_for_change(election text,
	INOUT term bigint, INOUT leader text, timeout interval DEFAULT NULL)
AS 'MODULE_PATHNAME', 'le_wait_for_change'
LANGUAGE C;
COMMENT ON PROCEDURE leader_election.wait_for_change(text, bigint, text, interval) IS
'wait until the term or the leader differs from the one given, or the timeout is over';

CREATE FUNCTION leader_election._observe(election text,
	OUT state text, OUT leader text, OUT term bigint, OUT since timestamptz,
	OUT remaining interval, OUT waiting_for text, OUT candidates integer,
	OUT kind text, OUT backend_pid integer, OUT renewed_at timestamptz,
	OUT expires_at timestamptz, OUT paused_at timestamptz, OUT paused_by name,
	OUT pause_reason text, OUT resumes_at timestamptz, OUT run text,
	OUT run_done text, OUT done_at timestamptz, OUT owner name,
	OUT metadata jsonb, OUT metadata_at timestamptz)
AS 'MODULE_PATHNAME', 'le_observe'
LANGUAGE C VOLATILE PARALLEL UNSAFE STRICT;
COMMENT ON FUNCTION leader_election._observe(text) IS
'what the view status shows of one election';

CREATE FUNCTION leader_election._standing(election text,
	OUT candidate text, OUT "position" integer, OUT leads boolean,
	OUT alive boolean, OUT drained boolean, OUT kind text, OUT rank integer,
	OUT progress bigint, OUT joined_at timestamptz, OUT stood interval,
	OUT metadata jsonb)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'le_standing'
LANGUAGE C VOLATILE PARALLEL UNSAFE STRICT;
COMMENT ON FUNCTION leader_election._standing(text) IS
'what the view candidates shows of one election; nothing on a standby';

CREATE FUNCTION leader_election.diagnose(election text,
	OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'le_diagnose'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election.diagnose(text) IS
'what is so in an election or a group, why nobody leads or why that changes so often, and what to do: severity is ok, notice, warning or error';

CREATE VIEW leader_election.status AS
	SELECT e.election, o.state, o.leader, o.term, o.since, o.remaining,
		o.waiting_for, o.candidates, e.quorum, e.strategy, o.kind,
		o.backend_pid, o.renewed_at, o.expires_at, o.paused_at, o.paused_by,
		o.pause_reason, o.resumes_at, o.run, o.run_done, o.done_at, o.owner,
		o.metadata, o.metadata_at
	FROM leader_election.election e,
		LATERAL leader_election._observe(e.election) o;
COMMENT ON VIEW leader_election.status IS
'each election now: who leads, in which term, since when and how long yet, or why nobody does';

CREATE VIEW leader_election.candidates AS
	SELECT e.election, s.candidate, s."position", s.leads, s.alive,
		s.drained, s.kind, s.rank, s.progress, s.joined_at, s.stood,
		s.metadata
	FROM leader_election.election e,
		LATERAL leader_election._standing(e.election) s;
COMMENT ON VIEW leader_election.candidates IS
'who stands, in the order in which they would be elected';

CREATE FUNCTION leader_election._measure(
	OUT election text, OUT group_name text, OUT led integer,
	OUT waiting_for text, OUT vacant_seconds double precision,
	OUT overdue_seconds double precision, OUT term bigint,
	OUT candidates integer, OUT quorum integer, OUT paused integer,
	OUT changes_last_hour integer, OUT lost_last_hour integer,
	OUT lease_left_ratio double precision,
	OUT renewal_left_ratio double precision,
	OUT unannounced_seconds double precision)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'le_measure'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election._measure() IS
'what the view metrics shows';

CREATE FUNCTION leader_election._measure_server(
	OUT in_recovery integer, OUT worker integer, OUT locked_tables integer,
	OUT standbys_needed integer, OUT standbys_connected integer,
	OUT standbys_unconfirmed_bytes bigint,
	OUT standbys_silent_seconds double precision,
	OUT worker_failing_seconds double precision,
	OUT worker_failures integer, OUT worker_retry_seconds double precision,
	OUT worker_sqlstate text, OUT worker_failure text)
AS 'MODULE_PATHNAME', 'le_measure_server'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election._measure_server() IS
'what the view server_metrics shows';

CREATE VIEW leader_election.metrics AS
	SELECT m.election, m.group_name, m.led, m.waiting_for, m.vacant_seconds,
		m.overdue_seconds, m.term, m.candidates, m.quorum, m.paused,
		m.changes_last_hour, m.lost_last_hour, m.lease_left_ratio,
		m.renewal_left_ratio, m.unannounced_seconds
	FROM leader_election._measure() m;
COMMENT ON VIEW leader_election.metrics IS
'each election now, in numbers for monitors';

CREATE VIEW leader_election.server_metrics AS
	SELECT s.in_recovery, s.worker, s.locked_tables, s.standbys_needed,
		s.standbys_connected, s.standbys_unconfirmed_bytes,
		s.standbys_silent_seconds,
		pg_catalog.pg_notification_queue_usage() AS notification_queue_ratio,
		s.worker_failing_seconds, s.worker_failures, s.worker_retry_seconds,
		s.worker_sqlstate, s.worker_failure
	FROM leader_election._measure_server() s;
COMMENT ON VIEW leader_election.server_metrics IS
'what elections need of this server and its standbys, in numbers for monitors: one row';

CREATE FUNCTION leader_election._incarnation()
RETURNS text
AS 'MODULE_PATHNAME', 'le_incarnation'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election._incarnation() IS
'the server''s present incarnation: system identifier, timeline, boot, database, lease table; NULL in recovery';

CREATE FUNCTION leader_election._monotonic_clock()
RETURNS bigint
AS 'MODULE_PATHNAME', 'le_monotonic_clock'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION leader_election._monotonic_clock() IS
'the clock that leases are measured with, in microseconds';

-- What every script ends with that makes objects (CONTRIBUTING.md): they become
-- as the script has made them, before anything is written or granted.  ALTER
-- DEFAULT PRIVILEGES may have given them away: a role that could write these
-- tables could make terms repeat.  Event triggers, which run after each command,
-- may have enabled row security, so that observers would see nothing, or changed
-- owners: one that is no superuser could replace what superusers call.
DO $$
DECLARE
	youngest integer := pg_catalog.age(pg_catalog.pg_current_xact_id()::pg_catalog.xid);
	made oid[];		-- by this transaction, so that memberships are as young
	command text;
BEGIN
	SELECT pg_catalog.array_agg(d.objid) INTO made
	FROM pg_catalog.pg_depend d
	WHERE d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass
		AND d.refobjid = (SELECT e.oid FROM pg_catalog.pg_extension e
			WHERE e.extname = 'leader_election')
		AND d.deptype = 'e' AND pg_catalog.age(d.xmin) <= youngest;

	-- Owners, also of what was replaced
	FOR command IN
		SELECT pg_catalog.format('ALTER %s %s OWNER TO CURRENT_USER', o.kind, o.name)
		FROM (
			SELECT 'SCHEMA' AS kind, 'leader_election' AS name, n.nspowner AS owner, n.xmin AS writer
			FROM pg_catalog.pg_namespace n
			WHERE n.nspname = 'leader_election'
			UNION ALL
			SELECT 'TABLE', c.oid::pg_catalog.regclass::text, c.relowner, c.xmin
			FROM pg_catalog.pg_class c
			WHERE c.relnamespace = 'leader_election'::pg_catalog.regnamespace
				AND c.relkind IN ('r', 'v')
			UNION ALL
			SELECT 'ROUTINE', p.oid::pg_catalog.regprocedure::text, p.proowner, p.xmin
			FROM pg_catalog.pg_proc p
			WHERE p.pronamespace = 'leader_election'::pg_catalog.regnamespace
			UNION ALL
			SELECT 'TYPE', t.oid::pg_catalog.regtype::text, t.typowner, t.xmin
			FROM pg_catalog.pg_type t JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
			WHERE t.typnamespace = 'leader_election'::pg_catalog.regnamespace
				AND c.relkind = 'c'
		) o JOIN pg_catalog.pg_roles r ON r.oid = o.owner
		WHERE NOT r.rolsuper AND pg_catalog.age(o.writer) <= youngest
	LOOP
		EXECUTE command;
	END LOOP;

	-- What was attached
	FOR command IN
		WITH tables AS (
			SELECT c.oid, c.relrowsecurity OR c.relforcerowsecurity AS secured
			FROM pg_catalog.pg_class c
			WHERE c.relnamespace = 'leader_election'::pg_catalog.regnamespace
				AND c.relkind = 'r' AND c.oid = ANY (made)
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
		SELECT pg_catalog.format('DROP RULE %I ON %s', r.rulename, r.ev_class::pg_catalog.regclass)
		FROM tables t JOIN pg_catalog.pg_rewrite r ON r.ev_class = t.oid
		UNION ALL
		SELECT pg_catalog.format('ALTER ROUTINE %s SECURITY INVOKER RESET ALL',
			p.oid::pg_catalog.regprocedure)
		FROM pg_catalog.pg_proc p
		WHERE p.pronamespace = 'leader_election'::pg_catalog.regnamespace
			AND p.oid = ANY (made) AND (p.prosecdef OR p.proconfig IS NOT NULL)
	LOOP
		EXECUTE command;
	END LOOP;

	-- Privileges
	FOR command IN
		SELECT DISTINCT pg_catalog.format('REVOKE ALL ON %s %s FROM %s', o.kind, o.name,
			CASE a.grantee WHEN 0 THEN 'PUBLIC'
				ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END)
		FROM (
			SELECT 'SCHEMA' AS kind, 'leader_election' AS name,
				n.nspacl AS acl, n.nspowner AS owner, n.oid
			FROM pg_catalog.pg_namespace n
			WHERE n.nspname = 'leader_election'
			UNION ALL
			SELECT 'TABLE', c.oid::pg_catalog.regclass::text, c.relacl, c.relowner, c.oid
			FROM pg_catalog.pg_class c
			WHERE c.relnamespace = 'leader_election'::pg_catalog.regnamespace
				AND c.relkind IN ('r', 'v')
			UNION ALL
			SELECT 'ROUTINE', p.oid::pg_catalog.regprocedure::text,
				coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner)), p.proowner, p.oid
			FROM pg_catalog.pg_proc p
			WHERE p.pronamespace = 'leader_election'::pg_catalog.regnamespace
		) o, LATERAL pg_catalog.aclexplode(o.acl) a
		WHERE a.grantee <> o.owner AND o.oid = ANY (made)
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;

-- What cannot be undone, columns say, is refused; so is what an event trigger
-- has done once more.
CREATE FUNCTION leader_election.check_script()
RETURNS void
AS 'MODULE_PATHNAME', 'le_check_script'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
SELECT leader_election.check_script();
DROP FUNCTION leader_election.check_script();
-- That is the end of every script.

INSERT INTO leader_election.epoch (incarnation, first_seen_at, first_seen_mono, epoch, dropped_term)
VALUES (leader_election._incarnation(), pg_catalog.clock_timestamp(),
	leader_election._monotonic_clock(), 0, 0);

--
-- Privileges.  Whoever has USAGE on the schema (nobody, by default) may
-- observe; standing needs EXECUTE as well.
--

GRANT SELECT ON leader_election.status, leader_election.candidates,
	leader_election.history, leader_election.election,
	leader_election.election_group, leader_election.metrics,
	leader_election.server_metrics, leader_election.drain,
	leader_election.protocol TO PUBLIC;
GRANT EXECUTE ON FUNCTION leader_election.is_leader(text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION leader_election.is_leader(text, bigint) TO PUBLIC;
GRANT EXECUTE ON FUNCTION leader_election.term(text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION leader_election.remaining_ms(text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION leader_election.leader(text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION leader_election.assert_leader(text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION leader_election.only_leader() TO PUBLIC;
GRANT EXECUTE ON FUNCTION leader_election._observe(text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION leader_election._standing(text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION leader_election.diagnose(text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION leader_election._measure() TO PUBLIC;
GRANT EXECUTE ON FUNCTION leader_election._measure_server() TO PUBLIC;
GRANT EXECUTE ON FUNCTION leader_election._incarnation() TO PUBLIC;
GRANT EXECUTE ON FUNCTION leader_election._monotonic_clock() TO PUBLIC;
GRANT EXECUTE ON PROCEDURE leader_election.wait_for_change(text, bigint, text, interval) TO PUBLIC;
