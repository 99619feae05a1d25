# pg_leader and the portable edition, which is a schema that no extension owns.
#
# - It believes such a schema only if it is told to: anybody who may create schemas
#   can make one that looks like it. With --portable, one that is something else is
#   not believed, either. As an extension of pg_tle it needs neither.
# - Each subcommand then does what it does with the extension.
# - What is not in the portable edition is said so.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PgLeader;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $FILE = "$FindBin::RealBin/../../sql/portable.sql";
my $dir = PostgreSQL::Test::Utils::tempdir();

delete $ENV{PG_LEADER_PORTABLE};
my $node = new_server(config => "client_min_messages = warning\n");
my $super = session($node, name => 'super');

$super->query("CREATE ROLE $_ LOGIN") foreach qw(installer app mallory);
foreach my $name (qw(portable forged nothing))
{
	$super->query("CREATE DATABASE $name TEMPLATE template0");
	$super->query("GRANT CREATE ON DATABASE $name TO installer, mallory");
}

sub connect_as
{
	my ($dbname, $user) = @_;

	return $node->connstr($dbname) . " user=$user";
}

system_or_bail('psql', '-Xq', '-v', 'anyway=1', '-o', '/dev/null', '-f', $FILE, '-d', connect_as('portable', 'installer'));
my $owner = session($node, name => 'owner', dbname => 'portable', user => 'installer');
$owner->query('GRANT USAGE ON SCHEMA leader_election TO app');
$owner->query('GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app');
my $app = session($node, name => 'app', dbname => 'portable', user => 'app');
my $APP = connect_as('portable', 'app');

sub create
{
	my ($election, $more) = @_;

	$app->query("SELECT leader_election.create_election('$election', takeover_delay => '0'" . ($more // '') . ')');
	is($app->sqlstate, '00000', "election $election");
	return;
}

#
# Whom it believes
#

create('asked');
my @SUBCOMMANDS = (
	['status'], [ 'status', '-e', 'asked' ], [ 'status', '--json' ], [ 'history', '-e', 'asked' ],
	[ 'history', "--html=$dir/no.html" ], [ 'watch' ], [ 'yield', '-e', 'asked' ],
	[ 'run', '-e', 'asked', '--', 'true' ], [ 'run', '-e', 'asked', '--mode=session', '--', 'true' ],
	[ 'stand', '-e', 'asked', '--refusal-timeout=0s', '--http=' . PostgreSQL::Test::Cluster::get_free_port() ]);
foreach my $call (@SUBCOMMANDS)
{
	my ($code, $out, $err) = ask($APP, @$call);

	is("$code $out", '124 ', "without --portable: @$call");
	like($err, qr/does not have the extension.*as its portable edition, to role "installer": nothing in it is used.*If you trust that role: --portable, or PG_LEADER_PORTABLE=on/s,
		'says what there is');
}
is($owner->query('SELECT count(*) FROM leader_election.history'), 0, 'nothing in it is used');
{
	my %means = (map({ $_ => 0 } qw(1 on true yes ON True)), map({ $_ => 124 } '', qw(0 off false no OFF)),
		map({ $_ => 125 } ' ', qw(2 y enabled)));

	foreach my $value (sort keys %means)
	{
		local $ENV{PG_LEADER_PORTABLE} = $value;
		my ($status, undef, $said) = ask($APP, 'status');

		is($status, $means{$value}, "PG_LEADER_PORTABLE=$value");
		like($said, qr/invalid value "\Q$value\E" for variable PG_LEADER_PORTABLE\n.*It is "on" or "off"\.$/m, 'says what it may be')
		  if $status == 125;
	}
}
is((ask($APP, 'status', '--portable'))[0], 0, 'and with --portable');

# Schemas of that name that are something else, or where the two are not of one role.
my @FORGED = (
	[ 'a schema of that name', 'CREATE SCHEMA leader_election' ],
	[ 'with another of the other name', 'CREATE SCHEMA leader_election_internal' ],
	[ 'whose table is of another role', 'SET ROLE app; CREATE TABLE leader_election_internal.edition (number int); RESET ROLE' ]);
my $mallory = session($node, name => 'mallory', dbname => 'forged', user => 'mallory');
$super->query('GRANT app TO mallory');
foreach my $forged (@FORGED)
{
	$mallory->query($_) foreach split /; /, $forged->[1] =~ s/SET ROLE app/GRANT CREATE, USAGE ON SCHEMA leader_election_internal TO app; SET ROLE app/r;
	is($mallory->sqlstate, '00000', $forged->[0]);
	my ($code, undef, $err) = ask(connect_as('forged', 'app'), 'status', '--portable');

	is($code, 124, 'is not believed');
	like($err, qr/nor its portable edition.*does not belong to the extension: nothing in it is used/s, 'which it says');
}
my ($code, undef, $err) = ask(connect_as('nothing', 'app'), 'status');
is($code, 124, 'where there is nothing');
like($err, qr/CREATE EXTENSION leader_election\.  Where none can be installed: psql -f portable\.sql, and --portable\.$/m, 'it says what can be installed');
($code, undef, $err) = ask(connect_as('nothing', 'app'), 'status', '--portable');
like($err, qr/nor its portable edition\n.*psql -f portable\.sql\.$/m, 'and which edition it was told');

is((ask($node, 'status', '--portable'))[0], 0, 'with --portable the extension is believed, too');

#
# What it does with it
#

$ENV{PG_LEADER_PORTABLE} = 1;
foreach my $mode (qw(detached session))
{
	create("run $mode", ", lease_duration => '1 h'");
	my @run = ($APP, '-e', "run $mode", "--mode=$mode", '--grace=200ms', '--forever');
	my $one = pg_leader(@run, '-n', 'one', worker("$dir/$mode", 'polite'));
	wait_until(sub { -e "$dir/$mode.log" && slurp_file("$dir/$mode.log") =~ /one 1 started/ }, 'a leader');
	my $two = pg_leader(@run, '-n', 'two', worker("$dir/$mode", 'polite'));
	wait_for($node, "SELECT count(*) = 2 FROM leader_election.candidates WHERE election = 'run $mode' AND alive", 't', undef, 'portable');
	like(scalar(ask($APP, 'status', '-e', "run $mode")), qr/\bone\b.*leads.*\n.*two/s, "$mode: status");
	($code, my $out) = ask($APP, 'yield', '-e', "run $mode");
	is($code, 0, "$mode: yield");
	like($out, qr/"one" is asked to yield.*\n"two" leads in term 2/, 'another one leads then');
	wait_until(sub { slurp_file("$dir/$mode.log") =~ /two 2 started/ }, 'its command');
	$one->signal('TERM');
	$one->exit_code;
	$two->signal('TERM');
	is($two->exit_code, 0, "$mode: the command ends");
	unlike(slurp_file("$dir/$mode.log"), qr/OVERLAP/, "$mode: never two commands");
	is($owner->query("SELECT string_agg(leader || ' ' || reason, ', ' ORDER BY term) FROM leader_election.history WHERE election = 'run $mode'"),
		'one yielded, two resigned', "$mode: history");
}

# A session that has died is followed within a poll, for there is no worker.
create('dies', ", lease_duration => '1 h'");
my @dies = ($APP, '-e', 'dies', '--mode=session', '--forever');
my $dies = pg_leader(@dies, '-n', 'one', worker("$dir/dies"));
wait_until(sub { -e "$dir/dies.log" && slurp_file("$dir/dies.log") =~ /one 1 started/ }, 'a leader');
my $next = pg_leader(@dies, '-n', 'two', worker("$dir/dies"));
wait_for($node, "SELECT count(*) = 2 FROM leader_election.candidates WHERE election = 'dies' AND alive", 't', undef, 'portable');
$dies->signal('KILL');
wait_until(sub { slurp_file("$dir/dies.log") =~ /two 2 started/ }, 'its successor');
is($owner->query("SELECT reason FROM leader_election.history WHERE election = 'dies' AND term = 1"), 'session ended', 'a session that died is followed');
unlike(slurp_file("$dir/dies.log"), qr/OVERLAP/, 'never two commands');
$next->signal('KILL');

# Once per period, hold, skip
create('periods', ", lease_duration => '1 h'");
my $every = pg_leader($APP, '-e', 'periods', '--every=366d', '-v', '--', 'true');
wait_until(sub { $every->output =~ /run \S+ is done/ }, 'a run');
$every->signal('TERM');
$every->exit_code;
isnt($owner->query("SELECT run_done FROM leader_election.status WHERE election = 'periods'"), '', 'a run is recorded');
create('held', ", lease_duration => '1 h'");
is(run_pg_leader($APP, '-e', 'held', '--hold=1h', '--', 'true'), 0, 'with a hold');
is(run_pg_leader($APP, '-e', 'held', '--skip', '--', 'false'), 0, 'which is skipped');

# Observers
my ($html) = ask($APP, 'history', '-e', 'run session', "--html=$dir/page.html");
is($html, 0, 'history --html');
like(slurp_file("$dir/page.html"), qr/yielded/, 'has the terms');
like(scalar(ask($APP, 'history', '-e', 'dies', '--json')), qr/"session ended"/, 'history --json');
like(scalar(ask($APP, 'status', '--json')), qr/"election":\s*"held".*"waiting_for":\s*"hold"/, 'status --json');
create('watched');
my $watch = start_client($APP, 'watch', '-e', 'watched', '--exec', "echo \$PG_LEADER_EVENT \$PG_LEADER_LEADER >>$dir/hooks");
wait_for_output($watch, qr/vacant|nobody/);
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $sidecar = start_client($APP, 'stand', '-e', 'watched', '-n', 'sidecar', "--http=$port");
wait_for_output($watch, qr/"sidecar" leads|elected.*sidecar/);
wait_until(sub { -e "$dir/hooks" && slurp_file("$dir/hooks") =~ /^elected sidecar$/m }, 'a hook');
pass('watch, its hooks, and stand');
$_->[0]->signal('TERM') foreach $sidecar, $watch;
$_->[0]->finish foreach $sidecar, $watch;

# The completion asks with the same option.
sub completed
{
	my ($line) = @_;
	my $out = '';

	local $ENV{PG_LEADER_PORTABLE};
	delete $ENV{PG_LEADER_PORTABLE};
	IPC::Run::run([ 'bash', '--norc', '-c', '. "$1"; COMP_LINE=$2 COMP_POINT=${#2}; _pg_leader pg_leader; echo "${COMPREPLY[*]}"',
			'bash', "$FindBin::RealBin/../../src/bin/pg_leader.bash", $line ], '<', \undef, '>', \$out);
	chomp $out;
	return $out;
}
my $at = sprintf '-h %s -p %d -d portable -U app', $node->host, $node->port;
is(completed("pg_leader status $at -e wat"), '', 'completion: without --portable no names');
is(completed("pg_leader status --portable $at -e wat"), 'watched', 'with it');

#
# What is not in it
#

my @MISSING = (
	[ 'groups', [ 'run', '--group=crew', '--', 'true' ], qr/groups are not in the portable edition/ ],
	[ 'groups, for as long as it waits', [ 'run', '--group=crew', '--wait=1h', '--refusal-timeout=0s', '--', 'true' ], qr/groups are not in the portable edition/ ],
	[ 'yield --terminate', [ 'yield', '-e', 'dies', '--terminate' ], qr/terminate => true is not in the portable edition/ ]);
foreach my $missing (@MISSING)
{
	my ($what, $call, $says) = @$missing;
	($code, undef, $err) = ask($APP, @$call);

	is($code, 125, "$what: refused");
	like($err, qr/$says\n.*The extension leader_election has (it|them)\.$/m, 'and says so, with the hint');
}

# An older file that lacks a function
$owner->query('ALTER FUNCTION leader_election.request_yield RENAME TO was');
($code, undef, $err) = ask($APP, 'yield', '-e', 'held');
is($code, 124, 'a function that is missing');
like($err, qr/request_yield.* does not exist/, 'is named');
unlike($err, qr/does not have the extension/, 'the edition is there');
$owner->query('ALTER FUNCTION leader_election.was RENAME TO request_yield');
delete $ENV{PG_LEADER_PORTABLE};

#
# An extension of pg_tle owns its schema. (Before 18, the server does not find an
# extension's script elsewhere than in its own folder.)
#

if ($super->query('SHOW server_version_num') >= 180000)
{
	my $made = "$dir/tle";

	system_or_bail('make', '-s', '-C', "$FindBin::RealBin/../..", 'portable', "PORTABLE=$made");
	mkdir "$made/extension";
	append_to_file("$made/extension/leader_election.control", "default_version = '1.0'\nsuperuser = false\nrelocatable = false\n");
	append_to_file("$made/extension/leader_election--1.0.sql",
		slurp_file("$made/leader_election--1.0.tle.sql") =~ s/\A.*?\$_portable_\$\n//sr =~ s/\$_portable_\$\);\n\z//r);
	$super->query('CREATE DATABASE tle TEMPLATE template0');
	$node->safe_psql('tle', "GRANT USAGE, CREATE ON SCHEMA public TO installer; GRANT CREATE ON DATABASE tle TO installer;
		SET extension_control_path = '$made'; SET ROLE installer; CREATE EXTENSION leader_election");
	is(run_pg_leader(connect_as('tle', 'installer'), '-e', 'e', '--', 'true'), 0, 'as an extension of pg_tle it is believed as such');
	is((ask(connect_as('tle', 'installer'), 'run', '--group=g', '--', 'true'))[0], 125, 'and says what is not in it');
}

#
# Another role's edition in its place
#

create('taken over');
my $trusts = sidecar($APP, '-e', 'taken over', '--portable', '--refusal-timeout=0s', '--http=' . PostgreSQL::Test::Cluster::get_free_port());
wait_for($node, "SELECT count(*) = 1 FROM leader_election.status WHERE election = 'taken over' AND state = 'led'", 't', undef, 'portable');
my $taker = session($node, name => 'taker', dbname => 'portable');
$taker->query("BEGIN; ALTER SCHEMA leader_election OWNER TO mallory; ALTER SCHEMA leader_election_internal OWNER TO mallory;
	ALTER TABLE leader_election_internal.edition OWNER TO mallory; COMMIT");
is($taker->sqlstate, '00000', 'the schemas become those of another role');
is($trusts->exit_code, 124, 'which it was not told to trust');
$_->finish foreach $taker;

done_testing();
