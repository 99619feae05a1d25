# Nobody's code but ours runs when our tables are written: what others attach to
# them fires not at all, or with the rights of the tables' owner, in the worker (which
# is the bootstrap superuser), in a superuser's own call and in those of others.
# Tables that their owner has altered are not read as what they are not.
#
# The roles: app has all privileges on the tables, TRIGGER among them; heir owns
# them, since the superuser who had made the extension was removed.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

my @TABLES =
  qw(announced candidate drain election election_group epoch history lease pause_all);
my $node = new_server(config => "client_min_messages = warning\n");
my $super = session($node, name => 'super');

$super->query(q{
	CREATE ROLE app LOGIN;
	CREATE ROLE dba LOGIN SUPERUSER;
	CREATE ROLE heir LOGIN;
	CREATE SCHEMA AUTHORIZATION app;
	CREATE SCHEMA AUTHORIZATION heir;
	DROP EXTENSION leader_election});
session($node, user => 'dba')->query('CREATE EXTENSION leader_election');
$super->query(q{
	GRANT USAGE ON SCHEMA leader_election TO app, heir;
	GRANT ALL ON ALL TABLES IN SCHEMA leader_election TO app;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app, heir});
is($super->sqlstate, '00000', 'set up');

# What a role makes to become superuser: attack(text) notes who runs it, tries, and
# changes settings; it returns its argument. So do others, of other shapes.
sub arm
{
	my ($role) = @_;
	my $session = session($node, name => $role, user => $role);

	$session->query(qq{
		CREATE TABLE $role.ran (who name, path text, what text, by text);
		CREATE FUNCTION $role.run(what text) RETURNS text LANGUAGE plpgsql AS \$\$
		DECLARE
			statement text;
		BEGIN
			INSERT INTO $role.ran VALUES (current_user, current_setting('search_path'), what,
				current_setting('application_name') || ': ' || current_query());
			PERFORM set_config('statement_timeout', '1234s', false);
			PERFORM set_config('synchronous_commit', 'off', false);
			FOREACH statement IN ARRAY ARRAY[
				'ALTER ROLE $role SUPERUSER', 'RESET SESSION AUTHORIZATION', 'RESET ROLE',
				'SET ROLE dba', 'CREATE TEMP TABLE stays ()']
			LOOP
				BEGIN
					EXECUTE statement;
					EXECUTE 'ALTER ROLE $role SUPERUSER';
				EXCEPTION WHEN OTHERS THEN
				END;
			END LOOP;
			RETURN what;
		END \$\$;
		CREATE FUNCTION $role.attack(what text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS \$\$
		BEGIN
			RETURN $role.run(what);
		END \$\$;
		CREATE FUNCTION $role.fire() RETURNS trigger LANGUAGE plpgsql AS \$\$
		BEGIN
			PERFORM $role.attack(TG_TABLE_NAME);
			RETURN coalesce(NEW, OLD);
		END \$\$});
	is($session->sqlstate, '00000', "$role is armed");
	return $session;
}

# Waits as the tables' owner. A superuser who reads the tables of another role's runs what that role
# has attached: PostgreSQL folds constants in indexes when it plans.
my $owner = 'dba';
my $poll;

sub poll_for
{
	my ($sql, $expected) = @_;

	$poll //= session($node, name => 'poll', user => $owner);
	wait_until(sub { $poll->query($sql) eq $expected }, "'$expected' from: $sql");
	return;
}

# All that is ever written, by a session of the superuser, by one of app, by the
# worker, and at the exit of a session; and a superuser's settings afterwards.
sub live
{
	my ($what, $election) = @_;
	my %s = (
		super => session($node, name => 'one'),
		app => session($node, name => 'two', user => 'app'));

	foreach my $name (keys %s)
	{
		my ($s, $e) = ($s{$name}, "$election $name");

		foreach my $sql (
			"SELECT leader_election.create_election('$e', lease_duration => '300ms')",
			"SELECT leader_election.create_group('$e G', 2)",
			"SELECT leader_election.join('$e', '$name')",
			"SELECT leader_election.drain_candidate('x', '$e')",
			"SELECT leader_election.pause_election('$e', 'reason')",
			"SELECT leader_election.resume_election('$e')",
			"SELECT leader_election.resign('$e')",
			"SELECT leader_election.join('$e', '$name')",
			"SELECT leader_election.create_election('$e d')",
			"SELECT leader_election.release('$e d', term) FROM leader_election.acquire('$e d', '$name')",
			"SELECT leader_election.alter_election('$e d', quorum => 1)",
			"SELECT leader_election.drop_election('$e d')",
			"SELECT leader_election.drop_group('$e G')")
		{
			$s->query($sql);
			is($s->sqlstate, '00000', "$what: $name: $sql");
		}
		poll_for("SELECT renewed_at > acquired_at FROM leader_election.lease
			WHERE election = '$e'", 't');
		is( $s->query("SELECT current_setting('search_path'), current_setting('statement_timeout'),
				current_setting('synchronous_commit'), to_regclass('pg_temp.stays'), current_user = session_user"),
			'"$user", public|0|on||t', "$what: $name: settings are as they were");
	}
	$super->query('SELECT leader_election.pause_all(); SELECT leader_election.resume_all()');
	is($super->sqlstate, '00000', "$what: pause of all");

	# The worker elects after the exit of a session.
	$super->query("SELECT leader_election.join('$election $_', 'next')") foreach keys %s;
	$_->kill foreach values %s;
	poll_for("SELECT leader_election.leader('$election $_')", 'next') foreach keys %s;
	poll_for('SELECT count(*) FROM leader_election.lease l JOIN leader_election.announced a USING (election)
		WHERE l.term > a.term', 0);
	$super->query('SELECT leader_election.leave_all()');
	poll_for("SELECT count(*) FROM leader_election.history WHERE ended_at IS NULL", 0);
	return;
}

sub no_superuser
{
	my ($role, $what) = @_;

	is($super->query("SELECT rolsuper FROM pg_roles WHERE rolname = '$role'"),
		'f', "$what: $role is no superuser");
	return;
}

# --- Triggers, of a role with the privilege for them

{
	my $app = arm('app');
	my @events = (
		'BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW',
		'AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW',
		'BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH STATEMENT',
		'AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH STATEMENT');

	foreach my $table (@TABLES)
	{
		foreach my $i (0 .. $#events)
		{
			$app->query(sprintf "CREATE TRIGGER t$i $events[$i] EXECUTE FUNCTION app.fire()",
				"leader_election.$table");
			is($app->sqlstate, '00000', "a trigger on $table");
		}
		$app->query("CREATE CONSTRAINT TRIGGER t AFTER INSERT OR UPDATE ON leader_election.$table
			DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.fire()");
	}
	live('triggers', 'triggered');
	no_superuser('app', 'triggers');
	is($super->query('SELECT count(*) FROM app.ran'), '0', 'triggers: none has fired');
	$super->query('DROP FUNCTION app.fire() CASCADE');
}

# --- The textbook removal of a DBA who has created the extension

my $heir = arm('heir');
$super->query(q{REASSIGN OWNED BY dba TO heir; DROP OWNED BY dba; DROP ROLE dba;
	ALTER ROLE app RENAME TO app_old; ALTER ROLE app_old RENAME TO app});
is($super->sqlstate, '00000', 'the tables have another owner');
$poll->finish;
$poll = undef;
$owner = 'heir';
is( $super->query(q{SELECT count(*) FROM pg_class
		WHERE relnamespace = 'leader_election'::regnamespace AND relkind = 'r'
		AND relowner <> 'heir'::regrole}), '0', 'heir');

# --- What PostgreSQL has to evaluate

my %key = (
	announced => 'election', candidate => 'candidate', drain => 'candidate',
	election => 'election', election_group => 'group_name', epoch => 'incarnation',
	history => 'leader', lease => 'coalesce(leader, election)', pause_all => 'scope');

foreach my $attached (
	[ 'an index on an expression', 'CREATE INDEX attached ON %1$s (heir.attack(%2$s))' ],
	[ 'a partial index', 'CREATE INDEX attached ON %1$s ((1)) WHERE heir.attack(%2$s) IS NOT NULL' ],
	[ 'an index on a constant', q{CREATE INDEX attached ON %1$s (heir.attack('folded'))} ],
	[ 'a constraint', 'ALTER TABLE %1$s ADD CONSTRAINT attached CHECK (heir.attack(%2$s) IS NOT NULL)' ],
	[ 'a constraint on a constant', q{ALTER TABLE %1$s ADD CONSTRAINT attached CHECK (heir.attack('folded') = 'folded')} ],
	[ 'a generated column', 'ALTER TABLE %1$s ADD COLUMN attached text NOT NULL GENERATED ALWAYS AS (heir.attack(%2$s)) STORED' ],
	[ 'statistics', 'CREATE STATISTICS heir.attached ON (heir.attack(%2$s)), (1) FROM %1$s' ])
{
	my ($what, $attach) = @$attached;

	foreach my $table (@TABLES)
	{
		$heir->query(sprintf $attach, "leader_election.$table", $key{$table});
		is($heir->sqlstate, '00000', "$what on $table");
		$heir->query("ALTER INDEX leader_election.attached RENAME TO attached_$table") if $attach =~ /INDEX/;
		$heir->query("ALTER STATISTICS heir.attached RENAME TO attached_$table") if $attach =~ /STATISTICS/;
	}
	$super->query('DELETE FROM heir.ran');
	live($what, $what);
	no_superuser('heir', $what);
	$super->query('ANALYZE leader_election.lease') if $what eq 'statistics';
	is( $super->query(q{SELECT who, by FROM heir.ran WHERE who <> 'heir'}),
		'', "$what: ran as its owner only");
	is($super->query(q{SELECT count(*) FROM heir.ran WHERE by NOT LIKE 'poll: %' AND path <> 'pg_catalog, pg_temp'}),
		'0', "$what: with a search_path of its own")
	  unless $what eq 'statistics';
	isnt($super->query("SELECT count(*) FROM heir.ran WHERE by NOT LIKE 'poll: %'"), '0', "$what: it is not left out")
	  unless $what eq 'statistics';
	foreach my $table (@TABLES)
	{
		$super->query(
			$attach =~ /INDEX/ ? "DROP INDEX leader_election.attached_$table"
			: $attach =~ /STATISTICS/ ? "DROP STATISTICS heir.attached_$table"
			: $attach =~ /COLUMN/ ? "ALTER TABLE leader_election.$table DROP COLUMN attached"
			: "ALTER TABLE leader_election.$table DROP CONSTRAINT attached");
		is($super->sqlstate, '00000', "$what off $table");
	}
}

# --- What changes nothing of what is written: rules, row security, defaults, columns

{
	my $columns = join(', ', map { "ADD COLUMN added_$_ text" . ($_ % 2 ? " DEFAULT 'filled in'" : '') } 1 .. 200);

	foreach my $table (@TABLES)
	{
		foreach my $sql (
			"ALTER TABLE %s $columns",
			'ALTER TABLE %s ENABLE ROW LEVEL SECURITY',
			'ALTER TABLE %s FORCE ROW LEVEL SECURITY',
			'CREATE POLICY nothing ON %s USING (false) WITH CHECK (false)',
			'CREATE RULE i AS ON INSERT TO %s DO INSTEAD NOTHING',
			'CREATE RULE u AS ON UPDATE TO %s DO INSTEAD NOTHING',
			'CREATE RULE d AS ON DELETE TO %s DO INSTEAD NOTHING')
		{
			$heir->query(sprintf $sql, "leader_election.$table");
			is($heir->sqlstate, '00000', "$table: " . substr($sql, 0, 40));
		}
	}
	$heir->query("ALTER TABLE leader_election.lease ALTER COLUMN leader SET DEFAULT 'nobody',
		ALTER COLUMN term SET DEFAULT 7");
	$poll = $super;    # row security hides all rows from others
	live('additions', 'added');
	is( $super->query(q{SELECT count(*) FROM leader_election.lease
			WHERE election LIKE 'added %' AND added_1 IS NULL AND added_200 IS NULL}),
		'2', 'a default fills in nothing that we write');
	is($super->query(q{SELECT count(*) FROM leader_election.history WHERE election LIKE 'added %' AND term = 7}),
		'0', 'nor a term');

	# What is in such a column stays there, and is nobody's business.
	$super->query(q{DROP RULE u ON leader_election.lease;
		UPDATE leader_election.lease SET added_2 = 'kept', added_200 = 'kept' WHERE election = 'added app'});
	my ($deadline) = $super->lease('added app', 'deadline_mono');
	is($super->query("SELECT leader_election.join('added app', 'one') > 0"), 't', 'it is elected');
	wait_for($node, "SELECT renewed_at > acquired_at FROM leader_election.lease WHERE election = 'added app'");
	is(join('|', $super->lease('added app', 'added_2, added_200, leader')), 'kept|kept|one',
		'a renewal keeps what others have written');
	$super->query('SELECT leader_election.leave_all()');

	foreach my $table (@TABLES)
	{
		$super->query("DROP POLICY nothing ON leader_election.$table;
			ALTER TABLE leader_election.$table DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;
			DROP RULE i ON leader_election.$table;
			DROP RULE IF EXISTS u ON leader_election.$table; DROP RULE d ON leader_election.$table");
		is($super->sqlstate, '00000', "$table: without");
	}
}

# --- What has to be: one clear error

foreach my $table (qw(candidate election history lease))
{
	my $e = "must $table";
	my $one = session($node, name => 'one');

	$super->query("ALTER TABLE leader_election.$table ADD COLUMN \"My column\" text NOT NULL DEFAULT 'x'");
	$one->query("SELECT leader_election.join('$e', 'one')");
	is($one->sqlstate, '23502', "NOT NULL on $table: join()");
	like($one->errors, qr/column "My column" of table "leader_election\.$table" admits no null value/,
		"NOT NULL on $table: which");
	like($one->errors, qr/ALTER TABLE leader_election\.$table ALTER COLUMN "My column" DROP NOT NULL/,
		"NOT NULL on $table: what to do");
	$super->query("ALTER TABLE leader_election.$table ALTER COLUMN \"My column\" DROP NOT NULL");
	like($one->query("SELECT leader_election.join('$e', 'one')"), qr/^\d+$/, "NOT NULL on $table: nothing is left");
	$one->finish;
	$super->query("ALTER TABLE leader_election.$table DROP COLUMN \"My column\"");
}

# --- Constraints that PostgreSQL enforces by triggers: not for our writes

{
	my $one = session($node, name => 'one');

	$super->query(q{
		SELECT leader_election.create_election('referenced', lease_duration => '300ms');
		CREATE TABLE referring (election text REFERENCES leader_election.lease);
		INSERT INTO referring VALUES ('referenced');
		CREATE TABLE referenced (leader text PRIMARY KEY);
		ALTER TABLE leader_election.lease ADD FOREIGN KEY (leader) REFERENCES referenced NOT VALID,
			ADD CONSTRAINT once UNIQUE (kind) DEFERRABLE INITIALLY DEFERRED});
	is($super->sqlstate, '00000', 'constraints by triggers');
	$one->query("SELECT leader_election.join('referenced', 'one'), leader_election.join('twice', 'one')");
	is($one->sqlstate, '00000', 'neither a foreign key nor a deferred one stops an election');
	wait_for($node, q{SELECT renewed_at > acquired_at FROM leader_election.lease WHERE election = 'referenced'});
	$one->query('SELECT leader_election.leave_all()');
	$one->query("SELECT leader_election.drop_election('referenced')");
	is($one->sqlstate, '00000', 'nor its end');
	$super->query('DROP TABLE referring, referenced CASCADE; ALTER TABLE leader_election.lease DROP CONSTRAINT once');
	$one->finish;
}

# --- Tables that are not what they were

# Of the view protocol
my $rest = q('extension'::text AS edition, '1.0'::text COLLATE "C" AS version);

{
	my $one = session($node, name => 'one');
	my $observer = session($node, name => 'observer');
	my @changes = (
		[ 'a column of another type', 'ALTER TABLE leader_election.lease ALTER COLUMN yield_cause TYPE bigint USING NULL',
			'ALTER TABLE leader_election.lease ALTER COLUMN yield_cause TYPE text COLLATE "C"' ],
		[ 'a column that admits nulls', 'ALTER TABLE leader_election.candidate ALTER COLUMN kind DROP NOT NULL',
			'ALTER TABLE leader_election.candidate ALTER COLUMN kind SET NOT NULL' ],
		[ 'a view in place of a table',
			'ALTER TABLE leader_election.drain RENAME TO was; CREATE VIEW leader_election.drain AS TABLE leader_election.was',
			'DROP VIEW leader_election.drain; ALTER TABLE leader_election.was RENAME TO drain' ],
		[ 'a table of partitions in place of a table',
			'ALTER TABLE leader_election.pause_all RENAME TO was; CREATE TABLE leader_election.pause_all
				(LIKE leader_election.was) PARTITION BY LIST (scope)',
			'DROP TABLE leader_election.pause_all; ALTER TABLE leader_election.was RENAME TO pause_all' ],
		[ 'another index in place of the key',
			'ALTER INDEX leader_election.lease_pkey RENAME TO was; CREATE INDEX lease_pkey ON leader_election.lease (heir.attack(election))',
			'DROP INDEX leader_election.lease_pkey; ALTER INDEX leader_election.was RENAME TO lease_pkey' ],
		[ 'another index of history',
			'DROP INDEX leader_election.history_acquired_at; CREATE INDEX history_acquired_at ON leader_election.history USING hash (leader)',
			'DROP INDEX leader_election.history_acquired_at; CREATE INDEX history_acquired_at ON leader_election.history (acquired_at)' ],
		[ 'a function in place of the number of the protocol',
			"CREATE OR REPLACE VIEW leader_election.protocol AS SELECT length(heir.attack(current_user)) AS number, $rest",
			"CREATE OR REPLACE VIEW leader_election.protocol AS SELECT 1 AS number, $rest" ]);

	foreach my $change (@changes)
	{
		my ($what, $do, $undo) = @$change;
		my $e = $what =~ s/\W/ /gr;

		like($one->query("SELECT leader_election.join('$e', 'one')"), qr/^\d+$/, "$what: leads before");
		$observer->query("SELECT leader_election.acquire('$e d', 'observer')");
		wait_told($node);
		$super->query('DELETE FROM heir.ran');
		$heir->query($do);
		is($heir->sqlstate, '00000', "$what");
		is($one->sqlstate_of("SELECT leader_election.join('$e', 'one')"), '55000', "$what: join()");
		is($observer->sqlstate_of("SELECT * FROM leader_election.acquire('$e other', 'observer')"),
			'55000', "$what: acquire()");
		ok( defined eval {
				wait_until(sub { $one->query("SELECT leader_election.is_leader('$e')") eq 'f' }, 'the view to end');
			},
			"$what: is_leader()");
		is($observer->query('SELECT count(*) FROM heir.ran WHERE who <> \'heir\''), '0', "$what: nothing ran");
		$heir->query($undo);
		is($heir->sqlstate, '00000', "$what: undone");
		wait_until(sub { $one->query("SELECT leader_election.join('$e', 'one')") =~ /^\d+$/ }, "$what: to lead again");
		$one->query('SELECT leader_election.leave_all()');
	}
	no_superuser('heir', 'altered tables');
	$_->finish foreach $one, $observer;
}
unlike(slurp_file($node->logfile), qr/terminated by signal|PANIC|TRAP/, 'no crash');

$node->stop;
done_testing();
