# Event triggers that change new objects, as hosting providers and applications have
# them: they enable row security on each new table, change owners, add triggers, columns,
# settings.  CREATE EXTENSION and ALTER EXTENSION UPDATE undo that, or fail and name the
# event trigger; what comes after the script, diagnose() names.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use NextVersion;
use PostgreSQL::Test::Utils;
use Test::More;

my $install = make_installation('main');
my $node = new_server(install => $install->{path});
my $tempdir = PostgreSQL::Test::Utils::tempdir();

$node->safe_psql('postgres', q{CREATE ROLE app;
	CREATE ROLE observer LOGIN;
	CREATE ROLE dumper LOGIN IN ROLE pg_read_all_data});

# For each new object, by the tag of its command: what the event trigger executes, %1$s
# being its name, %2$s its kind, as SQL.
my $TABLES = 'CREATE TABLE';
my $ALL = 'CREATE TABLE,CREATE VIEW,CREATE FUNCTION,CREATE PROCEDURE,CREATE SCHEMA,CREATE TYPE';

sub event_trigger
{
	my ($tags, $action, %opts) = @_;
	my $execute = "EXECUTE format(\$a\$$action\$a\$, o.object_identity, o.object_type)";
	my $when = 'WHEN TAG IN (' . join(', ', map { "'$_'" } split /,/, $tags) . ')';

	# Many of those that exist catch errors, in a subtransaction.
	$execute = "BEGIN $execute; EXCEPTION WHEN undefined_table THEN END" if $opts{catches};
	return qq{CREATE FUNCTION public.change() RETURNS event_trigger LANGUAGE plpgsql AS \$f\$
		DECLARE o record;
		BEGIN
			FOR o IN SELECT * FROM pg_event_trigger_ddl_commands() WHERE object_identity ~ '^leader_election' AND object_type <> 'index'
			LOOP $execute; END LOOP;
		END \$f\$;
		CREATE EVENT TRIGGER "the changer" ON ddl_command_end $when EXECUTE FUNCTION public.change()};
}

my $RLS = 'ALTER TABLE %1$s ENABLE ROW LEVEL SECURITY';
my $AUDIT = q{CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql
	AS 'BEGIN RAISE EXCEPTION $$audited as %$$, current_user; END';};

# name => event trigger, what an update's new table has to look like
my @undone = (
	[ 'row security' => event_trigger($TABLES, $RLS) ],
	[ 'row security, in a subtransaction' => event_trigger($TABLES, $RLS, catches => 1) ],
	[ 'row security, forced' =>
		  event_trigger($TABLES, "$RLS, FORCE ROW LEVEL SECURITY") ],
	[ 'row security and a policy' =>
		  event_trigger($TABLES, "$RLS; CREATE POLICY \"a policy\" ON %1\$s USING (false)") ],
	[ 'owner' => event_trigger($ALL, 'ALTER %2$s %1$s OWNER TO app') ],
	[ 'owner of composite types' => event_trigger('CREATE TYPE', 'ALTER TYPE %1$s OWNER TO app') ],
	[ 'audit trigger' => $AUDIT . event_trigger($TABLES,
			  'CREATE TRIGGER "an audit" BEFORE INSERT OR UPDATE ON %1$s FOR EACH ROW EXECUTE FUNCTION public.audit()') ],
	[ 'rule' => event_trigger($TABLES,
			  'CREATE RULE "a rule" AS ON INSERT TO %1$s DO INSTEAD NOTHING') ],
	[ 'privileges' => event_trigger('CREATE TABLE,CREATE FUNCTION,CREATE PROCEDURE,CREATE SCHEMA', 'GRANT ALL ON %2$s %1$s TO app') ],
	[ 'settings of routines' => event_trigger('CREATE FUNCTION,CREATE PROCEDURE',
			  q(ALTER ROUTINE %1$s SECURITY DEFINER SET search_path = '')) ],
);

# name => event trigger, what the error names
my @refused = (
	[ 'column' => event_trigger($TABLES, 'ALTER TABLE %1$s ADD COLUMN "an audit" text'),
		qr/column "an audit" of leader_election\.\w+/ ],
	[ 'check' => event_trigger($TABLES, 'ALTER TABLE %1$s ADD CONSTRAINT "a check" CHECK (true)'),
		qr/table constraint "a check" on leader_election\.\w+/ ],
	[ 'index' => event_trigger($TABLES, 'CREATE INDEX ON %1$s ((1))'),
		qr/index leader_election\.\w+/ ],
	[ 'row security, again and again' => event_trigger("$TABLES,ALTER TABLE", "$RLS"),
		qr/row security of leader_election\.\w+/ ],
	[ 'table beside' => event_trigger('CREATE VIEW', 'CREATE TABLE IF NOT EXISTS public.beside ()'),
		qr/table public\.beside, as a part of the extension/ ],
	[ 'settings of routines, again and again' =>
		event_trigger('CREATE FUNCTION,ALTER ROUTINE', 'ALTER FUNCTION %1$s SECURITY DEFINER'),
		qr/owner or settings of leader_election\.[\w"]+\(/ ],
	[ 'owner of routines, again and again' =>
		event_trigger('CREATE FUNCTION,ALTER ROUTINE', 'ALTER FUNCTION %1$s OWNER TO app'),
		qr/DETAIL:  Not the extension's: owner or settings of leader_election\.[\w"]+\(/ ],
	[ 'tables and routines' =>
		event_trigger("$TABLES,CREATE FUNCTION,ALTER ROUTINE", q(DO $d$ BEGIN
			IF '%2$s' = 'table' THEN ALTER TABLE %1$s ADD CONSTRAINT "a check" CHECK (true), ADD CONSTRAINT another CHECK (true);
			ELSE ALTER FUNCTION %1$s SECURITY DEFINER; END IF; END $d$)) .
		'; CREATE EVENT TRIGGER "disabled already" ON ddl_command_end EXECUTE FUNCTION public.change();
		ALTER EVENT TRIGGER "disabled already" DISABLE',
		qr/^DETAIL:  Not the extension's: (?:table constraint \S+ on [^;]*; |table constraint "a check" on [^;]*; ){10}owner or settings of leader_election\.[^;]*\.$/m ],
);
# An ALTER TABLE that fires the event trigger for ALTER TABLE would go on for ever.
$refused[3][1] =~ s/(BEGIN\s+FOR)/BEGIN IF pg_trigger_depth() > 0 OR current_setting('my.depth', true) = '1' THEN RETURN; END IF; PERFORM set_config('my.depth', '1', true); FOR/;
$refused[3][1] =~ s/(END LOOP;)/$1 PERFORM set_config('my.depth', '0', true);/;

sub dump_ok
{
	my ($db, $name) = @_;

	$node->command_ok(
		[ 'pg_dump', '-U', 'dumper', '-d', $db, '-f', "$tempdir/dump" ],
		"$name: pg_dump by a role that may read all data");
	like(slurp_file("$tempdir/dump"), qr/^COPY leader_election\.lease .*^seen\t/ms, "$name: with its elections");
	return;
}

sub as_made_ok
{
	my ($db, $name) = @_;
	my $super = session($node, dbname => $db, name => 'super');
	my $observer;

	is( $super->query(q{SELECT DISTINCT pg_get_userbyid(o) = current_user FROM (
			SELECT relowner FROM pg_class WHERE relnamespace = 'leader_election'::regnamespace
			UNION ALL SELECT proowner FROM pg_proc WHERE pronamespace = 'leader_election'::regnamespace
			UNION ALL SELECT typowner FROM pg_type WHERE typnamespace = 'leader_election'::regnamespace
			UNION ALL SELECT nspowner FROM pg_namespace WHERE nspname = 'leader_election'
			UNION ALL SELECT extowner FROM pg_extension WHERE extname = 'leader_election') all_owners (o)}),
		't', "$name: the superuser owns all");
	is( $super->query(q{SELECT count(*) FROM pg_class WHERE relnamespace = 'leader_election'::regnamespace
			AND (has_table_privilege('app', oid, 'INSERT') OR has_table_privilege('app', oid, 'TRIGGER'))
			OR has_schema_privilege('app', 'leader_election', 'CREATE')}),
		0, "$name: nothing is given away");
	$super->query('GRANT USAGE ON SCHEMA leader_election TO observer');
	$super->query("SELECT leader_election.join('seen', 'one')");
	is($super->sqlstate, '00000', "$name: join()");
	$super->query("CALL leader_election.campaign('seen too', 'one', '1 min')");
	is($super->sqlstate, '00000', "$name: campaign()");
	$observer = session($node, dbname => $db, name => 'observer', user => 'observer');
	is($observer->query("SELECT count(*) FROM leader_election.$_"), 2, "$name: an observer sees $_")
	  foreach qw(history election status metrics);
	unlike($observer->query("SELECT * FROM leader_election.diagnose('seen')"),
		qr/Not the extension's|no superuser|was given/, "$name: diagnose() names nothing");
	dump_ok($db, $name);
	$observer->finish;
	$super->finish;
	return;
}

sub refused_ok
{
	my ($session, $sql, $detail, $name) = @_;

	is($session->sqlstate_of($sql), '55000', "$name: refused");
	like($session->errors, $detail, "$name: says what");
	like($session->errors, qr/HINT: .* again: ALTER EVENT TRIGGER "the changer" DISABLE;$/m, "$name: names the event trigger");
	$session->query('ALTER EVENT TRIGGER "the changer" DISABLE');
	is($session->sqlstate_of($sql), '00000', "$name: without it");
	return;
}

#
# CREATE EXTENSION
#

my $n = 0;

sub new_database
{
	my ($sql) = @_;
	my $db = 'db' . ++$n;

	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql($db, $sql);
	return $db;
}

foreach my $case (@undone)
{
	my ($name, $trigger) = @$case;
	my $db = new_database($trigger);

	$node->safe_psql($db, 'CREATE EXTENSION leader_election');
	as_made_ok($db, $name);
	$node->safe_psql('postgres', "DROP DATABASE $db WITH (FORCE)");
}
foreach my $case (@refused)
{
	my ($name, $trigger, $detail) = @$case;
	my $db = new_database($trigger);
	my $super = session($node, dbname => $db, name => 'super');

	refused_ok($super, 'CREATE EXTENSION leader_election', $detail, $name);
	$super->finish;
	as_made_ok($db, $name);
	$node->safe_psql('postgres', "DROP DATABASE $db WITH (FORCE)");
}

# A column that has taken the place of one of ours
my $moved = new_database(event_trigger($TABLES,
	'ALTER TABLE %1$s RENAME COLUMN reason TO former; ALTER TABLE %1$s ADD COLUMN reason text') =~
	s/\^leader_election/^leader_election.pause_all/r);
my $mover = session($node, dbname => $moved, name => 'mover');
is($mover->sqlstate_of('CREATE EXTENSION leader_election'), '55000', 'a column moves: refused');
like($mover->errors, qr/ERROR:  column "reason" of table "leader_election\.pause_all" is not at its place/,
	'a column moves: says which');
$mover->finish;

# The script is the caller's, a superuser's: event triggers are made by superusers only.
my $db = new_database(q{CREATE TABLE ran (as_role name, in_script bool);
	CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN
		INSERT INTO public.ran SELECT current_user, bool_or(in_extension) FROM pg_event_trigger_ddl_commands();
	END';
	CREATE EVENT TRIGGER note ON ddl_command_end EXECUTE FUNCTION note();
	CREATE EXTENSION leader_election});
is($node->safe_psql($db, 'SELECT count(*) > 100, bool_and(as_role = current_user) FROM ran WHERE in_script'),
	't|t', 'event triggers run after each command of the script, as the superuser who calls');
is($node->psql($db, 'SET ROLE app; CREATE EVENT TRIGGER mine ON ddl_command_end EXECUTE FUNCTION note()'),
	3, 'others cannot make one');

# What comes after the script is told of.
$db = new_database(q{CREATE FUNCTION late() RETURNS event_trigger LANGUAGE plpgsql AS $f$
	DECLARE t regclass;
	BEGIN
		FOR t IN SELECT oid FROM pg_class WHERE relkind = 'r' AND relnamespace = 'leader_election'::regnamespace
		LOOP EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', t); END LOOP;
	END $f$;
	CREATE EVENT TRIGGER late ON ddl_command_end WHEN TAG IN ('CREATE EXTENSION') EXECUTE FUNCTION late();
	CREATE EXTENSION leader_election;
	GRANT USAGE ON SCHEMA leader_election TO observer;
	SELECT leader_election.join('seen', 'one')});
my $observer = session($node, dbname => $db, name => 'observer', user => 'observer');
is($observer->query('SELECT count(*) FROM leader_election.history'), 0, 'late: an observer sees no history');
like($observer->query("SELECT * FROM leader_election.diagnose('seen')"),
	qr/^warning\|Not the extension's: row security of leader_election\.$_\. .*\|ALTER TABLE leader_election\.$_ DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;$/m,
	"late: diagnose() says so of $_")
  foreach qw(history election lease candidate announced epoch pause_all drain election_group);

#
# ALTER EXTENSION UPDATE, to a version that makes a table, a view and a function.  What
# was there before, and what an administrator has added to it, stays.
#

my $script = slurp_file("$FindBin::RealBin/../../sql/leader_election--1.0.sql");
my ($end) = $script =~ /^(-- What every script ends with.*?^-- That is the end of every script\.\n)/ms;

install_version($install, '1.1', from => '1.0', protocol => 1,
	update => scalar((update_script(1))[0]) . q{
CREATE TABLE leader_election.newer (seen integer PRIMARY KEY);
CREATE VIEW leader_election.newest AS SELECT * FROM leader_election.newer;
CREATE FUNCTION leader_election.latest() RETURNS bigint
	AS 'MODULE_PATHNAME', 'le_monotonic_clock' LANGUAGE C;
} . $end . q{
INSERT INTO leader_election.newer VALUES (1), (2);
GRANT SELECT ON leader_election.newer, leader_election.newest TO PUBLIC;
GRANT EXECUTE ON FUNCTION leader_election.latest() TO PUBLIC;
});

sub database_to_update
{
	my ($trigger) = @_;

	return new_database("CREATE EXTENSION leader_election VERSION '1.0';
		GRANT USAGE ON SCHEMA leader_election TO observer;
		GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app;
		GRANT DELETE ON leader_election.drain TO app;
		ALTER TABLE leader_election.drain ENABLE ROW LEVEL SECURITY;
		CREATE POLICY mine ON leader_election.drain;
		$trigger");
}

sub updated_ok
{
	my ($db, $name) = @_;
	my $observer = session($node, dbname => $db, name => 'observer', user => 'observer');

	is($observer->query("SELECT count(*) FROM leader_election.$_"), 2, "$name: an observer sees $_")
	  foreach qw(newer newest);
	is($observer->query('SELECT leader_election.latest() > 0'), 't', "$name: and may call the function");
	is( $observer->query(q{SELECT bool_and(pg_get_userbyid(o) <> 'app') FROM (
			SELECT relowner FROM pg_class WHERE relnamespace = 'leader_election'::regnamespace
			UNION ALL SELECT proowner FROM pg_proc WHERE pronamespace = 'leader_election'::regnamespace) all_owners (o)}),
		't', "$name: the superuser owns all");
	is( $observer->query(q{SELECT has_table_privilege('app', 'leader_election.newer', 'INSERT'),
			(SELECT prosecdef OR proconfig IS NOT NULL FROM pg_proc WHERE proname = 'latest'),
			(SELECT relrowsecurity FROM pg_class WHERE relname = 'newer'),
			(SELECT count(*) FROM pg_policy WHERE polname <> 'mine'),
			(SELECT count(*) FROM pg_trigger WHERE tgrelid = 'leader_election.newer'::regclass)}),
		'f|f|f|0|0', "$name: what is new is as it was made");
	is( $observer->query(q{SELECT has_table_privilege('app', 'leader_election.drain', 'DELETE'),
			has_function_privilege('app', 'leader_election.pause_all(text)', 'EXECUTE'),
			(SELECT relrowsecurity FROM pg_class WHERE oid = 'leader_election.drain'::regclass),
			(SELECT count(*) FROM pg_policy)}),
		't|t|t|1', "$name: and what was old is as the administrator has left it");
	$observer->finish;
	return;
}

foreach my $case (@undone)
{
	my ($name, $trigger) = @$case;
	my $db = database_to_update($trigger);

	$name = "update: $name";
	$node->safe_psql($db, 'ALTER EXTENSION leader_election UPDATE');
	updated_ok($db, $name);
	$node->safe_psql('postgres', "DROP DATABASE $db WITH (FORCE)");
}

# What a superuser has given to the extension, or taken from it, before an update stays so.
my $given = database_to_update('CREATE TABLE public.given (); ALTER EXTENSION leader_election ADD TABLE public.given;
	ALTER EXTENSION leader_election DROP TABLE leader_election.drain');
$node->safe_psql($given, 'ALTER EXTENSION leader_election UPDATE');
updated_ok($given, 'update: of other members');
like($node->safe_psql($given, "SELECT leader_election.create_election('e'); SELECT finding FROM leader_election.diagnose('e')"),
	qr/^Not the extension's: table public\.given, as a part of the extension\./m, 'update: of other members: diagnose() names them');

# Of a table that the library does not know, nothing but this is refused.
my ($beside) = grep { $_->[0] eq 'table beside' } @refused;
my $to_update = database_to_update($beside->[1]);
my $super = session($node, dbname => $to_update, name => 'super');
refused_ok($super, 'ALTER EXTENSION leader_election UPDATE', $beside->[2], 'update: table beside');
updated_ok($to_update, 'update: table beside');

done_testing();
