# From the portable edition to the extension, and back (sql/portable_to_extension.sql,
# sql/extension_to_portable.sql), while candidates of both kinds are at work: the
# leader that is detached leads on, in a greater term; nobody else is elected before
# its lease is over; terms, runs, history, privileges and triggers are kept.
#
# It happens whole or not at all: by the wrong role, twice, where others' objects are
# in the way, beside a fence that stays open, and when the backend or the server is
# killed in the middle. And under load: no term twice, no two leaders, no fenced write
# out of order, and no error that clients would take for final (G1, G5, G8).

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $SQL = "$FindBin::RealBin/../../sql";
my $LEASE = int(500 * slowness());    # of elections whose lease is to run out, in ms
my %THERE = (extension => 'portable_to_extension', portable => 'extension_to_portable');

my $node = new_server(streaming => 1, config => "max_prepared_transactions = 5\nrestart_after_crash = on\n");
my $super = session($node, name => 'super');

# What runs a file in a database as a role: its exit code, and all that it said
sub file
{
	my ($dbname, $user, $name, @args) = @_;
	my ($run, $out);

	# What a session has by default is not to matter.
	local $ENV{PGOPTIONS} = '-c default_transaction_isolation=serializable -c search_path=public'
	  unless $name eq 'portable';

	$user //= $super->query('SELECT current_user');
	$run = IPC::Run::start(
		[ 'psql', '-XqAt', @args, '-f', "$SQL/$name.sql", '-d', $node->connstr($dbname) . " user=$user" ],
		'<' => \'', '>&' => \$out);
	return sub {
		my ($wait) = @_;

		if (!$wait) { $run->pump_nb; return $run->pumpable; }
		$run->finish;
		return ($run->full_result >> 8, $out);
	};
}

sub run_file { return file(@_)->(1); }

sub to
{
	my ($edition, $dbname, $user) = @_;

	return ($dbname, $user, $THERE{$edition}, $edition eq 'portable' ? ('-v', 'owner=installer') : ());
}

sub database
{
	my ($name) = @_;

	$super->query("CREATE DATABASE $name TEMPLATE template0");
	$super->query("GRANT CREATE ON DATABASE $name TO installer");
	my ($code, $said) = run_file($name, 'installer', 'portable', '-v', 'anyway=1');
	die $said if $code;
	$node->safe_psql($name, q(
		SET ROLE installer;
		GRANT USAGE ON SCHEMA leader_election TO app, observer, library;
		GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app, library WITH GRANT OPTION;
		GRANT EXECUTE ON FUNCTION leader_election.assert_leader(text, bigint) TO observer;
		REVOKE SELECT ON leader_election.history FROM PUBLIC;
		GRANT SELECT ON leader_election.history TO observer));
	$node->safe_psql($name, q(
		CREATE TABLE public.jobs (id int);
		CREATE TABLE public.resource (terms bigint[] NOT NULL);
		INSERT INTO public.resource VALUES ('{}');
		GRANT ALL ON public.jobs, public.resource TO app;
		GRANT USAGE ON SCHEMA public TO app;
		CREATE TRIGGER "leader_election.only" BEFORE INSERT ON public.jobs FOR EACH STATEMENT
			EXECUTE FUNCTION leader_election.only_leader('fenced');
		ALTER TABLE public.jobs ENABLE ALWAYS TRIGGER "leader_election.only";
		COMMENT ON TRIGGER "leader_election.only" ON public.jobs IS 'mine'));
	return;
}

# What may not change unless all does: privileges, triggers, rows but of leases that run
# out by themselves, and which edition
my $PRIVILEGES = q(SELECT string_agg(x, E'\n' ORDER BY x) FROM (
	SELECT p.oid::regprocedure || ' ' || r.rolname || ' ' || has_function_privilege(r.oid, p.oid, 'EXECUTE')
		|| has_function_privilege(r.oid, p.oid, 'EXECUTE WITH GRANT OPTION')
	FROM pg_proc p, pg_roles r WHERE p.pronamespace = 'leader_election'::regnamespace
		AND r.rolname IN ('app', 'observer', 'stranger') AND p.proname NOT IN ('tick', 'prune', 'configure', '_stands')
	UNION ALL SELECT c.relname || ' ' || r.rolname || ' ' || has_table_privilege(r.oid, c.oid, 'SELECT')
		|| has_table_privilege(r.oid, c.oid, 'UPDATE')
	FROM pg_class c, pg_roles r WHERE c.relnamespace = 'leader_election'::regnamespace AND c.relkind IN ('r', 'v')
		AND c.relname NOT IN ('server', 'pause_all', 'announced', 'epoch')
		AND r.rolname IN ('app', 'observer', 'stranger')
	UNION ALL SELECT r.rolname || has_schema_privilege(r.oid, 'leader_election', 'USAGE')
	FROM pg_roles r WHERE r.rolname IN ('app', 'observer', 'stranger', 'installer')
	UNION ALL SELECT pg_get_triggerdef(t.oid) || t.tgenabled::text || obj_description(t.oid, 'pg_trigger')
	FROM pg_trigger t WHERE t.tgname = 'leader_election.only') x (x));
my $lasts = q(election !~ '^(short|wrapped) ');
my $ALL = qq(SELECT edition, (SELECT md5(string_agg(l::text, '' ORDER BY l::text)) FROM leader_election.lease l WHERE $lasts),
	(SELECT md5(string_agg(h::text, '' ORDER BY h::text)) FROM leader_election.history h WHERE $lasts),
	(SELECT md5(string_agg(p.oid::regprocedure::text || p.proacl::text, '' ORDER BY p.oid)) FROM pg_proc p
		WHERE p.pronamespace = 'leader_election'::regnamespace),
	(SELECT string_agg(nspname, ' ' ORDER BY 1) FROM pg_namespace WHERE nspname LIKE 'leader_election%'),
	(SELECT md5(string_agg(t.oid || pg_get_triggerdef(t.oid) || t.tgenabled::text, '')) FROM pg_trigger t WHERE NOT t.tgisinternal)
	FROM leader_election.protocol);

$super->query("CREATE ROLE $_ LOGIN") foreach qw(installer app observer stranger library);
$super->query('CREATE ROLE former LOGIN');

#
# Who leads, and what is kept, both ways
#

database('moves');
my $there = session($node, name => 'there', dbname => 'moves');
my $wrapper = q(CREATE OR REPLACE FUNCTION public.keep(e text, t bigint) RETURNS bigint LANGUAGE sql SECURITY DEFINER
	AS 'SELECT term FROM leader_election.renew(e, t)';
	CREATE OR REPLACE FUNCTION public.lead(e text, c text) RETURNS bigint LANGUAGE sql SECURITY DEFINER
	AS 'SELECT term FROM leader_election.acquire(e, c)';
	ALTER FUNCTION public.keep OWNER TO library; ALTER FUNCTION public.lead OWNER TO library);
$there->query($wrapper);
$node->safe_psql('moves', "SET ROLE installer; SELECT leader_election.configure(lease_duration => '10 min',
	history_retention => '60 days', auto_create => true)");

sub app
{
	my ($name) = @_;

	return session($node, name => $name, dbname => 'moves', user => 'app');
}

my %app = map { $_ => app($_) } qw(detached session other);
my $listener = app('listener');
$listener->query('LISTEN leadership_changed');

sub begun_above
{
	my ($term, $last, $what) = @_;

	cmp_ok($term || 0, '>=', ($last >> 22) + 1 << 22, $what);
	return $term;
}

foreach my $edition (qw(extension portable))
{
	my $from = $edition eq 'extension' ? 'portable' : 'extension';
	my ($one, $ses, $two) = @app{qw(detached session other)};
	my %term;

	$one->query("SELECT leader_election.create_election('$_', lease_duration => '1 hour')")
	  foreach map { "$_ $edition" } qw(detached session held run kept);
	$one->query("SELECT leader_election.create_election('short $edition', lease_duration => '$LEASE ms')");
	$one->query("SELECT leader_election.create_election('wrapped $edition', lease_duration => '$LEASE ms')");
	if ($edition eq 'extension')
	{
		$one->query("SELECT leader_election.create_election('fenced', lease_duration => '1 hour')");
		$term{fenced} = $one->acquire('fenced', 'f');
	}
	else
	{
		$term{fenced} = $there->term_of('fenced');

		# A long time passes: the grace is over, and the worker ends what has not been continued.
		$there->query("UPDATE leader_election.epoch SET first_seen_mono = first_seen_mono - 7200000000");
		wait_for($node, q(SELECT NOT EXISTS (SELECT FROM leader_election.lease
			WHERE election IN ('session extension', 'kept extension') AND leader IS NOT NULL)), 't', undef, 'moves');
	}
	$term{detached} = $one->acquire("detached $edition", 'd');
	$ses->query("SELECT leader_election.join('short $edition', 's', auto_renew => false)");
	$term{session} = $ses->query("SELECT leader_election.join('session $edition', 's', auto_renew => false)");
	$term{wrapped} = $one->query("SELECT public.lead('wrapped $edition', 'w')");
	$term{kept} = $one->query("SELECT public.lead('kept $edition', 'k')");
	my $held = $one->acquire("held $edition", 'h');
	$one->query("SELECT leader_election.release('held $edition', $held, '1 hour')");
	my $run = $one->query("SELECT term FROM leader_election.acquire('run $edition', 'r', run => '2026-11-26')");
	$one->query("SELECT leader_election.release('run $edition', $run, done => true)");
	$one->query("SELECT leader_election.create_election('gone'); SELECT leader_election.drop_election('gone')");
	is($one->query("SELECT public.keep('kept $edition', $term{kept})"), $term{kept},
		"$from: a wrapper renews what was granted through it");
	die "not led: $_" foreach grep { !$term{$_} } keys %term;

	# Refused, and nothing changed
	my $before = $there->query($ALL);
	foreach my $user (qw(stranger app installer))
	{
		my ($code, $said) = run_file(to($edition, 'moves', $user));
		is($code, 3, "$user may not go from $from to $edition");
		like($said, qr/only a superuser/, 'and is told so');
	}
	my ($code, $said) = run_file(to($from, 'moves'));
	is($code, 3, "$from: it is what it is already");
	like($said, qr/this database has the .* already/, 'and that is said');
	$there->query('CREATE VIEW public.mine AS SELECT election, leader FROM leader_election.status');
	($code, $said) = run_file(to($edition, 'moves'));
	like($said, qr/view public\.mine depends on|view mine depends on/, 'what others have built on it is named');
	isnt($code, 0, 'and refused');
	$there->query('DROP VIEW public.mine');
	$there->query(q(CREATE FUNCTION public.mine() RETURNS leader_election.lease_grant LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'));
	($code, $said) = run_file(to($edition, 'moves'));
	like($said, qr/function (?:public\.)?mine\(\) depends on/, 'so is a function of theirs that has a type of it');
	isnt($code, 0, 'and refused');
	$there->query('DROP FUNCTION public.mine()');

	# Triggers of others, which a superuser makes anew
	my $domain = q(SET ROLE library;
		CREATE FUNCTION evil.valid(integer) RETURNS boolean LANGUAGE plpgsql AS
			$$ BEGIN RAISE WARNING 'the code of another role, as %', current_user; RETURN true; END $$;
		CREATE DOMAIN evil.checked AS integer CHECK (evil.valid(value));
		CREATE TRIGGER strange BEFORE INSERT ON evil.mine FOR EACH STATEMENT
			WHEN ('{1}'::evil.checked[] IS NOT NULL) EXECUTE FUNCTION leader_election.only_leader('e'));
	$node->safe_psql('moves', 'CREATE SCHEMA evil AUTHORIZATION library; SET ROLE library; CREATE TABLE evil.mine (a integer);
		CREATE VIEW evil.seen AS SELECT a FROM evil.mine') if $edition eq 'extension';
	$node->safe_psql('moves', $domain);
	($code, $said) = run_file(to($edition, 'moves'));
	isnt($code, 0, 'a trigger that needs what others have made is refused');
	like($said, qr/depend on objects of others.*trigger strange on evil\.mine: type evil\.checked\[\]/s, 'and named');
	unlike($said, qr/the code of another role/, 'none of their code is run');
	is($there->query($ALL =~ s/trigger t WHERE NOT/trigger t WHERE tgname <> 'strange' AND NOT/r), $before, 'nothing has changed');
	$node->safe_psql('moves', q(SET ROLE library; DROP TRIGGER strange ON evil.mine; DROP DOMAIN evil.checked; DROP FUNCTION evil.valid(integer)));

	# A constraint trigger only fails, and a view has no rows: neither is in the way, nor
	# is who writes the table below the view.
	$node->safe_psql('moves', q(SET ROLE library;
		CREATE CONSTRAINT TRIGGER evil AFTER INSERT ON evil.mine FOR EACH ROW EXECUTE FUNCTION leader_election.only_leader('e');
		CREATE TRIGGER evil BEFORE INSERT ON evil.seen FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('e');
		CREATE TABLE evil.below (a integer); CREATE VIEW evil.above AS SELECT a FROM evil.below;
		CREATE TRIGGER evil BEFORE INSERT ON evil.above FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('e')))
	  if $edition eq 'extension';
	$there->query('GRANT USAGE ON SCHEMA evil TO app; GRANT ALL ON evil.below TO app');
	$before = $there->query($ALL);
	if ($edition eq 'portable')
	{
		$there->query("SELECT leader_election.create_election('theirs', candidate_role => 'former')");
		$super->query('ALTER ROLE former RENAME TO later');
		$there->query("SELECT leader_election.create_election('bully', 'bully');
			SELECT leader_election.create_group('group', 1); SELECT leader_election.pause_election('session portable');
			SELECT leader_election.drain_candidate('x')");
		($code, $said) = run_file(to($edition, 'moves'));
		like($said, qr/has not all that.*drain of candidate "x".*group "group".*pause of election "session portable".*strategy "bully"/s,
			'so is what the portable edition has not');
		$there->query("SELECT leader_election.drop_election('bully'); SELECT leader_election.drop_group('group');
			SELECT leader_election.resume_election('session portable'); SELECT leader_election.undrain_candidate('x')");
		is($there->errors, '', 'until it is ended');
	}
	else
	{
		$node->safe_psql('moves', q(SET ROLE installer;
			CREATE FUNCTION leader_election_internal.evil() RETURNS integer LANGUAGE plpgsql AS
				'BEGIN RAISE WARNING $x$the code of another role$x$; RETURN 1; END';
			ALTER TABLE leader_election_internal.edition RENAME TO mine;
			CREATE VIEW leader_election_internal.edition AS SELECT leader_election_internal.evil() AS number));
		($code, $said) = run_file(to($edition, 'moves'));
		like($said, qr/not the tables that portable\.sql makes: leader_election_internal\.edition/, 'what the owner has put in place of a table is refused');
		unlike($said, qr/the code of another role/, 'and not run');
		$node->safe_psql('moves', q(SET ROLE installer; DROP VIEW leader_election_internal.edition;
			ALTER TABLE leader_election_internal.mine RENAME TO edition; DROP FUNCTION leader_election_internal.evil()));
		$node->safe_psql('moves', q(SET ROLE installer;
			CREATE FUNCTION leader_election_internal.evil(integer) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
				'BEGIN RAISE WARNING $x$the code of another role$x$; RETURN true; END';
			CREATE INDEX evil ON leader_election_internal.edition (number) WHERE leader_election_internal.evil(1)));
		($code, $said) = run_file(to($edition, 'moves'));
		like($said, qr/not the tables that portable\.sql makes: leader_election_internal\.edition/, 'nor an index with code of theirs');
		unlike($said, qr/the code of another role/, 'which planning a query would run');
		$node->safe_psql('moves', q(SET ROLE installer; DROP INDEX leader_election_internal.evil;
			DROP FUNCTION leader_election_internal.evil(integer)));
		is($there->query($ALL), $before, 'nothing has changed by all this');
	}
	my $privileges = $there->query($PRIVILEGES);
	my $history = $there->query('SELECT count(*) FROM leader_election.history');

	# A reader of a fenced table is not in the way.
	$two->query('BEGIN; SELECT count(*) FROM public.jobs; INSERT INTO evil.below VALUES (1)');
	($code, $said) = run_file(to($edition, 'moves'));
	is("$code", 0, "from $from to $edition") or diag($said);
	is($two->sqlstate_of('COMMIT'), '00000', 'nor who writes the table below a view with such a trigger');
	is($there->query("SELECT count(*) FROM pg_trigger WHERE tgname = 'evil' AND tgfoid = 'leader_election.only_leader()'::regprocedure"), 3,
		'triggers of others are there');
	like($said, qr/lease_duration = '600000ms'.*history_retention = '5184000s'/s, 'which tells of settings')
	  if $edition eq 'extension';
	($code, $said) = run_file(to($edition, 'moves'));
	is($code, 3, 'a second time is refused');

	is($there->query($PRIVILEGES), $privileges, 'who may do what, and the trigger, are as they were');
	cmp_ok($there->query('SELECT count(*) FROM leader_election.history'), '>=', $history, 'history is kept');
	is($there->query("SELECT edition FROM leader_election.protocol"), $edition, "it is the $edition");
	is($there->query('SELECT nspname FROM pg_namespace WHERE nspname = $$leader_election_moved$$'), '', 'nothing is left over');

	# The grace: nobody new, and whoever led goes on
	is($two->query("SELECT leader_election.is_leader('detached $edition', $term{detached})"), 'f', 'the old term leads no more');
	is($two->sqlstate_of("SELECT leader_election.assert_leader('detached $edition', $term{detached})"), 'LE001', 'nor do fences');
	foreach my $election (map { "$_ $edition" } qw(detached session held kept))
	{
		is(query_unless_busy($two, "SELECT term FROM leader_election.acquire('$election', 'x')"), '', "$election: nobody new is elected");
		is($two->sqlstate, '00000', '... and that is no error');
	}
	is($two->query("SELECT waiting_for FROM leader_election.status WHERE election = 'session $edition'"), 'grace after failover', 'but for a lease');
	my $new = begun_above(query_unless_busy($one, "SELECT term FROM leader_election.renew('detached $edition', $term{detached})"),
		$term{detached}, 'the detached leader goes on, in a term of another epoch');
	is($one->query("SELECT term FROM leader_election.renew('detached $edition', $term{detached})"), $new, 'and is told again, if the answer was lost');
	wait_until(sub { join("\n", @{ $listener->{notifications} }, $listener->notifications) =~ /"detached $edition","event":"elected","term":$new/ },
		'listeners to be told');
	is($ses->query("SELECT leader_election.is_leader('session $edition')"), 'f', 'the session leads no more');
	is($ses->query("SELECT * FROM leader_election.renew('session $edition')"), '', 'and is told so');
	is($ses->query("SELECT leader_election.join('session $edition', 's', auto_renew => false)"), '', 'it stands in the grace');
	is($ses->sqlstate, '00000', '... which is no error');
	my $short;
	wait_until(sub { $short = $ses->query("SELECT leader_election.join('short $edition', 's', auto_renew => false)") }, 'its election');
	cmp_ok($short, '>', $term{session}, 'and is elected after the grace');
	is($one->sqlstate_of("SELECT public.keep('kept $edition', $term{kept})"), '42501', 'what a wrapper led is another role\'s');
	wait_until(sub { $one->query("SELECT public.lead('wrapped $edition', 'w')") }, 'its election');

	# Fences
	$term{now} = query_unless_busy($one, "SELECT term FROM leader_election.renew('fenced', $term{fenced})");
	is($one->sqlstate_of('INSERT INTO public.jobs VALUES (1)'), 'LE001', 'the trigger guards its table');
	is($one->sqlstate_of("BEGIN; SELECT leader_election.assert_leader('fenced', $term{now}); INSERT INTO public.jobs VALUES (1); COMMIT"),
		'00000', 'and knows the new term');

	# What is not over
	is($one->query("SELECT term FROM leader_election.acquire('run $edition', 'r', run => '2026-11-26')"), '', 'a run that is done is done');
	is($one->sqlstate, '00000', '... which is no error');
	is($there->query("SELECT not_before_at > now() + interval '50 min', held FROM leader_election.lease WHERE election = 'held $edition'"),
		't|t', 'a hold holds');
	is($there->query("SELECT candidate_role FROM leader_election.election WHERE election = 'theirs'"), 'later', 'roles are those of today')
	  if $edition eq 'portable';
	is($there->query("SELECT takeover_delay FROM leader_election.election WHERE election = 'short $edition'"), '00:00:01',
		'a leap of the clock by less than a second is harmless') if $edition eq 'portable';
	$ses->query('SELECT leader_election.leave_all()');
}
is($there->query("SELECT lease_duration, auto_create FROM leader_election.server"), '00:00:15|t', 'settings come from the extension');
$_->finish foreach values %app, $listener, $there;

#
# In the way, and in the middle
#

database('middle');
my $one = session($node, name => 'one', dbname => 'middle', user => 'app');
my $admin = session($node, name => 'admin', dbname => 'middle');
$one->query("SELECT leader_election.create_election('e', lease_duration => '1 hour')");
my $term = $one->acquire('e', 'a');

# A fence stays open: calls go on meanwhile.
my $fence = session($node, name => 'fence', dbname => 'middle', user => 'app');
$fence->query("BEGIN; SELECT leader_election.assert_leader('e', $term); INSERT INTO public.resource VALUES ('{1}');
	PREPARE TRANSACTION 'fence'");
is($fence->sqlstate, '00000', 'a fenced transaction is prepared');
my $busy = file(to('extension', 'middle'));
my $renewals = 0;
wait_until(sub { $renewals++ if $one->query("SELECT term FROM leader_election.renew('e', $term)") eq $term; !$busy->() }, 'an end');
my ($code, $said) = $busy->(1);
is($code, 3, 'a fenced transaction that is open is waited for, but not for ever');
like($said, qr/the tables of the portable edition are busy.*prepared/s, 'and that is said');
cmp_ok($renewals, '>', 5, 'the leader renews its lease meanwhile');
$one->query("ROLLBACK PREPARED 'fence'");
is($one->sqlstate, '00000', 'it is rolled back');
$fence->finish;

# Holds up the transaction that gives this command.
sub stop_at
{
	my ($tag, $event) = @_;

	$event //= 'ddl_command_end';
	$admin->query("CREATE OR REPLACE FUNCTION public.stop() RETURNS event_trigger LANGUAGE plpgsql SET lock_timeout = 0
		AS 'BEGIN PERFORM pg_advisory_xact_lock(145); END';
		DROP EVENT TRIGGER IF EXISTS stop;
		CREATE EVENT TRIGGER stop ON $event WHEN TAG IN ('$tag') EXECUTE FUNCTION public.stop();
		SELECT pg_advisory_lock(145)");
	die $admin->errors if $admin->sqlstate ne '00000';
	return;
}

foreach my $edition (qw(extension portable))
{
	my $from = $edition eq 'extension' ? 'portable' : 'extension';
	my $tags = $edition eq 'extension' ? [ 'CREATE EXTENSION', 'GRANT' ] : [ 'CREATE FUNCTION', 'CREATE TRIGGER' ];

	# A trigger of a view, which nobody locks, changes when triggers have been looked
	# at, and before their definitions are read.
	my $was = $admin->query($ALL);
	my $library = session($node, name => 'library', dbname => 'middle', user => 'library');
	$admin->query('CREATE SCHEMA race AUTHORIZATION library');
	$library->query(q(CREATE FUNCTION race.valid(integer) RETURNS boolean LANGUAGE plpgsql AS
			$$ BEGIN RAISE WARNING 'the code of another role, as %', current_user; RETURN true; END $$;
		CREATE DOMAIN race.checked AS integer CHECK (race.valid(value));
		CREATE VIEW race.seen AS SELECT 1 AS a;
		CREATE TRIGGER evil BEFORE INSERT ON race.seen FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('e')));
	stop_at('CREATE TABLE AS', 'ddl_command_start');
	my $raced = file(to($edition, 'middle'));
	wait_for($node, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = 'middle'", 1);
	is($library->sqlstate_of(q(CREATE OR REPLACE TRIGGER evil BEFORE INSERT ON race.seen FOR EACH STATEMENT
		WHEN ('{1}'::race.checked[] IS NOT NULL) EXECUTE FUNCTION leader_election.only_leader('e'))), '00000',
		"$from: a trigger changes when it has been looked at");
	$admin->query('SELECT pg_advisory_unlock(145)');
	my ($refused, $told) = $raced->(1);
	is($refused, 3, 'that is refused');
	like($told, qr/have a condition, on what cannot be locked.*TRIGGER evil BEFORE INSERT ON race\.seen/s, 'it is named');
	unlike($told, qr/the code of another role/, 'and none of their code is run');
	$library->finish;
	$admin->query('DROP EVENT TRIGGER stop; SET client_min_messages = warning; DROP SCHEMA race CASCADE; RESET client_min_messages');
	is($admin->query($ALL), $was, 'nothing has changed by that');

	foreach my $kill (0, 1)
	{
		$term = query_unless_busy($one, "SELECT term FROM leader_election.renew('e', $term)");
		stop_at($tags->[$kill]);
		my $before = $admin->query($ALL);
		my $script = file(to($edition, 'middle'));
		wait_for($node, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = 'middle'", 1);
		if ($kill == 0)
		{
			my $pid = $super->query("SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = 'middle'");
			kill('KILL', $pid);
		}
		else
		{
			# All at once, as with the power: a backend that sees the postmaster
			# gone, and rolls back what has made an UNLOGGED table, may leave files
			# behind with which PostgreSQL does not start.
			my @processes = $super->query('SELECT pid FROM pg_stat_activity');
			kill('STOP', @processes);
			$node->kill9;
			kill('KILL', @processes);
			wait_until(sub { !kill(0, @processes) }, 'the end of all processes');
			$node->start;
		}
		isnt(($script->(1))[0], 0, "killed at $tags->[$kill]");
		$_->kill foreach $one, $admin, $super;
		wait_for($node, 'SELECT true');
		$super = session($node, name => 'super');
		$admin = session($node, name => 'admin', dbname => 'middle');
		$one = session($node, name => 'one', dbname => 'middle', user => 'app');
		is($admin->query($ALL), $before, "it is the $from as it was");
		$admin->query('DROP EVENT TRIGGER stop');
		is(query_unless_busy($one, "SELECT term FROM leader_election.renew('e', $term)"), $term, 'its leader goes on, in its term');
	}
	($code, $said) = run_file(to($edition, 'middle'));
	is($code, 0, "then it is done: $edition") or diag($said);
	begun_above(query_unless_busy($one, "SELECT term FROM leader_election.renew('e', $term)"), $term, 'and the leader leads on');
}
$_->finish foreach $one, $admin;

#
# Under load
#

database('load');
my $owner = session($node, name => 'owner', dbname => 'load');
$owner->query("SELECT leader_election.create_election('load', lease_duration => '" . 4 * $LEASE . " ms')");

# Candidates at work. What each believes: [ candidate, term, from, to ]; a lead is
# believed from the answer on, until so long after the last call was sent.
my (@leads, %grants, %errors, %did);
my @workers = map {
	my $name = $_;
	{ name => $name, session => session($node, name => $name, dbname => 'load', user => 'app'), step => 'acquire' };
} qw(w1 w2 w3 w4);

sub next_call
{
	my ($w) = @_;
	my $term = $w->{lead} ? $w->{lead}[1] : 0;
	my %sql = (
		acquire => "SELECT term, remaining_ms FROM leader_election.acquire('load', '$w->{name}')",
		renew => "SELECT term, remaining_ms FROM leader_election.renew('load', $term)",
		release => "SELECT leader_election.release('load', $term)",
		fence => "DO \$\$ BEGIN PERFORM leader_election.assert_leader('load', $term); "
		  . "UPDATE public.resource SET terms = terms || ${term}::bigint; END \$\$");

	if ($w->{step} eq 'release')    # what it says is the end
	{
		$w->{lead}[3] = time if $w->{lead}[3] > time;
	}
	$w->{sent} = time;
	$w->{session}->query_async($sql{ $w->{step} });
	return;
}

sub take_answer
{
	my ($w) = @_;
	my $out = $w->{session}->result;
	my $state = $w->{session}->sqlstate;
	my ($term, $remaining) = split /\|/, $out;

	$errors{$state}++ if $state ne '00000';
	if ($w->{step} =~ /acquire|renew/ && $state eq '00000')
	{
		my $until = $out eq '' ? 0 : $w->{sent} + $remaining / 1000;

		if ($out eq '') { delete $w->{lead}; }
		elsif ($w->{step} eq 'renew' && $term == $w->{lead}[1]) { $w->{lead}[3] = $until; }
		else
		{
			$did{continued}++ if $w->{step} eq 'renew';
			push @leads, $w->{lead} = [ $w->{name}, $term, time, $until ];
			$grants{$term}{ scalar @leads } = 1;
		}
	}
	$did{ $w->{step} }++ if $state eq '00000' && ($w->{step} ne 'acquire' || $out ne '');

	# A lead ends by its holder's clock, too; what is busy is tried again.
	delete $w->{lead} if $w->{lead} && $w->{step} eq 'release' && $state eq '00000';
	delete $w->{lead} if $w->{lead} && time > $w->{lead}[3];
	$w->{calls}++;
	$w->{step} = !$w->{lead} ? 'acquire' : (qw(renew fence renew fence fence), $w->{calls} % 7 ? 'renew' : 'release')[ $w->{calls} % 6 ];
	return;
}

sub work_until
{
	my ($condition, $what) = @_;

	wait_until(
		sub {
			foreach my $w (@workers)
			{
				next_call($w) unless $w->{session}{busy};
				take_answer($w) if $w->{session}->finished;
			}
			return $condition->();
		},
		$what);
	return;
}

sub some_work
{
	my ($times) = @_;
	my %before = %did;

	work_until(sub { !grep { ($did{$_} // 0) < ($before{$_} // 0) + $times } qw(acquire renew fence release) }, 'work');
	return;
}

foreach my $edition (qw(extension portable extension))
{
	some_work(3);
	my ($code, $said) = (1, '');
	for (1 .. 10)
	{
		my $script = file(to($edition, 'load'));
		work_until(sub { !$script->() }, "the way to the $edition");
		($code, $said) = $script->(1);
		last if $code == 0 || $said !~ /busy/;
	}
	is($code, 0, "under load: $edition") or diag($said);
}
some_work(3);
foreach my $w (@workers)
{
	$w->{session}->result if $w->{session}{busy};
	$w->{session}->finish;
}
is(join(' ', grep { keys %{ $grants{$_} } > 1 } keys %grants), '', 'no term was granted twice');
my @overlap;
foreach my $i (0 .. $#leads)
{
	foreach my $j ($i + 1 .. $#leads)
	{
		my ($a, $b) = @leads[ $i, $j ];
		push @overlap, "@$a and @$b" if $a->[0] ne $b->[0] && $a->[2] < $b->[3] && $b->[2] < $a->[3];
	}
}
is(join("\n", @overlap), '', 'no two believed to lead at a time');
is($owner->query('SELECT terms = (SELECT array_agg(t ORDER BY t) FROM unnest(terms) t) FROM public.resource'), 't',
	'fenced writes are in the order of terms');
is(join(' ', grep { !/^(55P03|LE00[123]|42P01|42883|3F000|42501|08006|40001)$/ } sort keys %errors), '', 'no error that a client would take for final');
note(join ' ', map { "$_: $errors{$_}" } sort keys %errors);
note(join ' ', map { "$_: $did{$_}" } sort keys %did);
$owner->finish;

done_testing();
