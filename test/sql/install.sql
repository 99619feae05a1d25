--
-- What CREATE EXTENSION leaves behind: its objects, what PUBLIC may do with
-- them, what a dump keeps, and the settings.
--

SELECT extversion = default_version AS current, extrelocatable
  FROM pg_extension JOIN pg_available_extensions ON name = extname
 WHERE extname = 'leader_election';

SELECT superuser, trusted
  FROM pg_available_extension_versions
 WHERE name = 'leader_election' AND installed;

CREATE TEMPORARY VIEW objects AS
	SELECT classid, objid, pg_describe_object(classid, objid, 0) AS object
	  FROM pg_depend
	 WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND
		   refobjid = (SELECT oid FROM pg_extension
						WHERE extname = 'leader_election') AND
		   -- From 17 on, the types that come with tables are members as well.
		   NOT (classid = 'pg_type'::regclass AND
				EXISTS (SELECT FROM pg_depend part
						 WHERE part.classid = 'pg_type'::regclass AND
							   part.objid = pg_depend.objid AND
							   part.deptype = 'i'));

SELECT object FROM objects ORDER BY object COLLATE "C";

-- Each of them has a comment.
SELECT object FROM objects
 WHERE NOT EXISTS (SELECT FROM pg_description
					WHERE classoid = classid AND objoid = objid AND
						  objsubid = 0 AND description <> '');

-- The schema is the extension's, and nothing in it belongs to anything else.
SELECT pg_describe_object('pg_class'::regclass, oid, 0)
  FROM pg_class
 WHERE relnamespace = 'leader_election'::regnamespace AND
	   relkind IN ('r', 'v', 'm', 'S', 'f', 'p') AND
	   oid NOT IN (SELECT objid FROM objects);

-- Each table has a primary key, and all but the candidates survive a crash
-- and are part of a dump.
SELECT relname, relpersistence,
	   EXISTS (SELECT FROM pg_index
				WHERE indrelid = c.oid AND indisprimary) AS has_key,
	   c.oid = ANY (extconfig) AS dumped,
	   extcondition[array_position(extconfig, c.oid)] AS dump_condition
  FROM pg_class c, pg_extension
 WHERE relnamespace = 'leader_election'::regnamespace AND relkind = 'r' AND
	   extname = 'leader_election'
 ORDER BY relname;

-- Nothing runs with other rights or settings than the caller's, and no result
-- may be kept for another call.
SELECT proname, prokind, proisstrict, provolatile, proparallel, prosecdef,
	   proconfig
  FROM pg_proc
 WHERE pronamespace = 'leader_election'::regnamespace
 ORDER BY proname COLLATE "C", pronargs;

--
-- Privileges.  PUBLIC cannot even look, and a role that may look can still not
-- change anything.
--

SELECT has_schema_privilege('public', 'leader_election', 'USAGE') AS usage,
	   has_schema_privilege('public', 'leader_election', 'CREATE') AS "create";

SELECT proname, has_function_privilege('public', oid, 'EXECUTE') AS execute
  FROM pg_proc
 WHERE pronamespace = 'leader_election'::regnamespace
 ORDER BY proname COLLATE "C", pronargs;

SELECT relname, string_agg(privilege, ' ' ORDER BY privilege) AS privileges
  FROM pg_class
	   LEFT JOIN unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) privilege
			  ON has_table_privilege('public', pg_class.oid, privilege)
 WHERE relnamespace = 'leader_election'::regnamespace AND relkind IN ('r', 'v')
 GROUP BY relname ORDER BY relname;

SELECT count(*) AS column_privileges
  FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid
 WHERE relnamespace = 'leader_election'::regnamespace AND attacl IS NOT NULL;

--
-- Settings.  They are there as soon as the library is.
--

SELECT leader_election.is_leader('nothing');

SELECT name, vartype, unit, boot_val, min_val, max_val, context
  FROM pg_settings WHERE name LIKE 'leader\_election.%'
 ORDER BY name COLLATE "C";

SELECT name FROM pg_settings
 WHERE name LIKE 'leader\_election.%' AND short_desc = '';

\set VERBOSITY sqlstate
SET leader_election.lease_duration = '1s';
SET leader_election.history_retention = '1d';
SET leader_election.worker_idle_timeout = '1s';
SET leader_election.leaseduration = '1s';
SET leader_election.auto_create = off;
SET leader_election.dead_peer_detection = off;
