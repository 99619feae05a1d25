# Dumps, backups and copies of a database in which elections are led.
#
# A copy does not know what has happened since to the original. So nobody leads
# there until the leaders that it knows of have either renewed there or have lost
# their leases, and the terms that it grants are granted nowhere else.  All copies
# here are made of one database, while the original goes on counting.
#
# What a copy is made by: pg_dump, plain and custom, into another cluster; parts
# of a dump, into a database of the same cluster in which elections are led
# already; a base backup, recovered twice to the same moment of the past; CREATE
# DATABASE ... TEMPLATE; the files of a stopped server, started in another boot
# of the machine, and on a clock that shows another time.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Copies;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

#
# The original.
#

$origin = new_server(
	name => 'origin',
	streaming => 1,
	start => 0,
	config => $CONFIG);
my $fresh = new_server(name => 'fresh', start => 0, config => $CONFIG);

$origin->enable_archiving;
$origin->start;
$fresh->start;

my $control = new_session($origin, 'postgres');

set_up_roles($control);
$control->query('CREATE DATABASE app');

$app = new_session($origin, 'app');

$app->query('CREATE EXTENSION leader_election;
	GRANT USAGE ON SCHEMA leader_election TO owner, member, outsider, dumper;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election
		TO owner, member, outsider;
	GRANT SELECT ON ALL TABLES IN SCHEMA leader_election TO dumper');
$origin->backup('backup');
once(
	$origin, 'app', 'owner',
	"SELECT leader_election.create_election('team', candidate_role => 'team',
		channel => 'team_news')");
$app->query(
	"SELECT leader_election.create_election('$LONG', lease_duration => '1 h')");

# Some history, and terms that differ
foreach my $round (1 .. 3)
{
	foreach my $election (@elections[ $round - 1 .. $#elections ])
	{
		my $term = $app->acquire($election, 'first');

		$app->query("SELECT leader_election.release('$election', $term);
			SELECT leader_election.leave('$election', 'first')");
	}
}

$holder = new_session($origin, 'app', name => 'holder');
set_scene('dumps');

#
# Dumps
#

my $dir = PostgreSQL::Test::Utils::tempdir;
my %file = map { $_ => "$dir/$_.dump" } qw(plain custom schema data noacl);

$origin->command_ok([ 'pg_dump', '-U', 'dumper', '-f', $file{plain}, 'app' ],
	'pg_dump, plain, by a role that may read');
$origin->command_ok([ 'pg_dump', '-Fc', '-f', $file{custom}, 'app' ],
	'pg_dump, custom');
$origin->command_ok(
	[ 'pg_dump', '--schema-only', '-f', $file{schema}, 'app' ],
	'pg_dump, schema only');
$origin->command_ok([ 'pg_dump', '--data-only', '-f', $file{data}, 'app' ],
	'pg_dump, data only');
$origin->command_ok(
	[ 'pg_dump', '--no-owner', '--no-acl', '-f', $file{noacl}, 'app' ],
	'pg_dump, without privileges');

sub restore
{
	my ($node, $dbname, $what) = @_;

	$node->command_ok(
		$what eq 'custom'
		? [ 'pg_restore', '-e', '-d', $dbname, $file{$what} ]
		: [
			'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $dbname, '-f',
			$file{$what}
		],
		"$dbname: $what restored");
	return;
}

# Without the roles that it names, what can be told is told, and a superuser can
# help.
my $there = new_session($fresh, 'postgres');

$there->query("CREATE DATABASE $_") foreach qw(noroles plain custom);
restore($fresh, 'noroles', 'noacl');
{
	my $session = new_session($fresh, 'noroles');

	is( $session->query(
			"SELECT state, waiting_for FROM leader_election.status
			WHERE election = 'team'"),
		'vacant|a worker or a call',
		'noroles: status, before anybody has called');
	is($session->sqlstate_of("SELECT leader_election.join('team', 'newcomer')"),
		'42704', 'noroles: nobody can be a member of a role that is not there');
	$session->query(
		"SELECT leader_election.alter_election('team', candidate_role => '')");
	is($session->sqlstate_of("SELECT leader_election.join('team', 'newcomer')"),
		'00000', 'noroles: a superuser can do without');
	$session->finish;
}

set_up_roles($there);
foreach my $what (qw(plain custom))
{
	restore($fresh, $what, $what);
	arrive($what, $fresh, $what);
	is( once_sqlstate(
			$fresh, $what, 'member',
			"SELECT leader_election.join('team', 'member')"),
		'00000',
		"$what: a member may stand");
	foreach my $call ("join('team', 'outsider')",
		"alter_election('team', quorum => 2)")
	{
		is( once_sqlstate(
				$fresh, $what, 'outsider', "SELECT leader_election.$call"),
			'42501',
			"$what: an outsider may not: $call");
	}
	is( once_sqlstate(
			$fresh, $what, 'owner',
			"SELECT leader_election.alter_election('team', quorum => 1)"),
		'00000',
		"$what: the owner may alter");
	is( once($fresh, $what, 'owner',
			"SELECT owner, candidate_role, channel FROM leader_election.election
			WHERE election = 'team'"),
		'owner|team|team_news',
		"$what: settings");
}

# The tables in another order, and somebody calls in between: that there was
# another incarnation is known before its name is.
$there->query('CREATE DATABASE disordered');
{
	my ($list) = run_command([ 'pg_restore', '-l', $file{custom} ]);
	my @contents = split /^/, "$list\n";
	my @epoch = grep { /TABLE DATA leader_election epoch / } @contents;
	my $session;

	is(@epoch, 1, 'disordered: the dump has the epochs');
	append_to_file("$dir/first", join '', grep { !/TABLE DATA leader_election epoch / } @contents);
	append_to_file("$dir/last", $epoch[0]);
	$fresh->command_ok([ 'pg_restore', '-e', '-d', 'disordered', '-L', "$dir/first", $file{custom} ],
		'disordered: all but the epochs');
	$session = new_session($fresh, 'disordered');
	foreach my $election (@elections)
	{
		is($session->query("SELECT leader_election.join('$election', 'early')"),
			'', "disordered: $election: nobody is elected");
	}
	$session->query('SELECT leader_election.leave_all()');
	$session->finish;
	$fresh->command_ok([ 'pg_restore', '-e', '-d', 'disordered', '-L', "$dir/last", $file{custom} ],
		'disordered: the epochs');
	arrive('disordered', $fresh, 'disordered', was_there => 1);
}

# A database that has elections of its own, led at the time
$control->query('CREATE DATABASE parts');
restore($origin, 'parts', 'schema');
my $own = new_session($origin, 'parts', name => 'own');

is( $own->query('SELECT count(*) FROM leader_election.lease'),
	0, 'parts: schema only: no elections');
is($own->query("SELECT leader_election.join('own', 'own')"),
	1, 'parts: schema only: counts from 1');
is($own->query('SELECT max(epoch) FROM leader_election.epoch'),
	0, 'parts: schema only: in epoch 0');

# It would begin the new epoch, and lift the reservation, before that is looked at.
end_worker($origin, 'parts');
restore($origin, 'parts', 'data');
{
	my $parts = arrive('parts', $origin, 'parts');

	is($own->query("SELECT leader_election.term('own')"),
		1, 'parts: who led there goes on leading');
	$own->query("SELECT leader_election.resign('own')");
	is( $parts->{session}->query(
			"SELECT leader_election.join('own', 'newcomer')"),
		'',
		'parts: but nobody new is elected in the grace');
}

#
# The past, and a history that will be abandoned.
#

set_scene('the past');
$app->query("SELECT pg_create_restore_point('the past')");
my $past = { %term };

#
# A copy within the cluster.  Nobody may be connected to the original, not even
# its worker, which has not seen the end of the session that leads.
#

$_->finish foreach $holder, $app;
$control->query('CREATE DATABASE copy TEMPLATE app');
is($control->sqlstate, '00000', 'CREATE DATABASE ... TEMPLATE');
arrive('copy', $origin, 'copy');

# The original does not notice.
$app = new_session($origin, 'app');
$term{held}++;
is( campaign($app, 'held', 'successor'),
	$term{held},
	'origin: the dead leader is replaced at once, in the next term');
foreach my $round (1 .. 3)
{
	$app->query("SELECT leader_election.leave('held')");
	is(campaign($app, 'held', 'successor'),
		++$term{held}, "origin: goes on counting: $term{held}");
	is($app->acquire('vacant', 'first'),
		++$term{vacant}, "origin: vacant: goes on counting: $term{vacant}");
	$app->query("SELECT leader_election.release('vacant', $term{vacant})");
}
is( $app->query('SELECT count(*), max(epoch) FROM leader_election.epoch'),
	'1|0', 'origin: the same incarnation all the time');

# Backups, recovered to the past.  The second one does not know of the first.
my $segment = $app->query('SELECT pg_walfile_name(pg_switch_wal())');

wait_for($origin,
	"SELECT last_archived_wal >= '$segment' FROM pg_stat_archiver");
{
	my %now = %term;

	%term = %$past;
	foreach my $name (qw(recovered again))
	{
		my $node = PostgreSQL::Test::Cluster->new($name);

		$node->init_from_backup($origin, 'backup',
			has_restoring => 1, standby => 0);
		$node->append_conf(
			'postgresql.conf', q(
recovery_target_name = 'the past'
recovery_target_action = 'promote'
));
		$node->start;
		wait_for($node, 'SELECT NOT pg_is_in_recovery()');
		arrive($name, $node, 'app');
		settle($sides[-1]) if $name eq 'recovered';
		($sides[-1]{timeline}) =
		  $sides[-1]{session}->query('SELECT leader_election._incarnation()')
		  =~ m{^\d+/(\d+)/};
	}
	%term = %now;
}
is_deeply([ map { $_->{timeline} } @sides[ -2, -1 ] ],
	[ 2, 3 ], 'each recovery has a timeline of its own');

# The graces of all these have overlapped.
foreach my $side (@sides)
{
	settle($side) unless $side->{epoch};
}
is($own->query("SELECT leader_election.leader('own')"),
	'newcomer', 'parts: elected after the grace there');
cmp_ok(
	$own->query("SELECT term FROM leader_election.lease WHERE election = 'own'")
	  >> $EPOCH_BITS,
	'>',
	0,
	'parts: and in the new epoch');

$_->{session}->finish foreach @sides;
$own->finish;
foreach my $side (@sides)
{
	$side->{node}->stop('immediate')
	  if $side->{node} != $origin && $side->{node} != $fresh;
}
$fresh->stop('immediate');

#
# The same files in another boot of the machine.
#

set_scene('files');
$origin->stop('fast');
$origin->backup_fs_cold('files');

# The original is restarted, which is no new incarnation: its dead sessions are
# replaced at once.
$origin->start;
$app = new_session($origin, 'app');
is( campaign($app, 'held', 'successor'),
	++$term{held},
	'restart: the dead leader is replaced at once, in the next term');
is( $app->query('SELECT count(*), max(epoch) FROM leader_election.epoch'),
	'1|0', 'restart: in the same incarnation');
$term{held}--;

my $other_id = "$dir/boot_id";
my $behind = int((slurp_file('/proc/uptime') =~ /^(\d+)/)[0] / 2);

append_to_file($other_id, "01234567-89ab-cdef-0123-456789abcdef\n");
foreach my $boot (
	[
		'reboot', '--mount',
		"mount --bind $other_id $boot_id || exit",
		qr{/01234567-89ab-cdef-0123-456789abcdef/}
	],
	[
		'clock ahead', '--fork --time --boottime=100000',
		'', qr{\+100000/\d+/\d+$}
	],
	[
		'clock behind', "--fork --time --boottime=-$behind",
		'', qr{-$behind/\d+/\d+$}
	])
{
	my ($name, $unshare, $command, $like) = @$boot;

  SKIP:
	{
		my $node;
		my $refusal = tried_in($unshare, $command);

		skip "$name: no such namespace can be made: $refusal", 1 if $refusal;
		$node = PostgreSQL::Test::Cluster->new($name =~ s/ /_/r);
		$node->init_from_backup($origin, 'files');
		start_in($node, $unshare, $command);
		like(
			once($node, 'app', 'owner', 'SELECT leader_election._incarnation()'),
			$like, "$name: is another boot");
		arrive($name, $node, 'app');
	}
}
settle($_) foreach grep { !$_->{epoch} } @sides;

all_granted_ok();
{
	my %epoch = map { $_->{name} => $_->{epoch} } @sides;

	cmp_ok($epoch{again}, '>', $epoch{recovered},
		'again: a later epoch than that of the recovery that it abandons (G5)');
}
is( $app->query('SELECT max(term) < 100 FROM leader_election.history'),
	't', 'origin: counts from 1');

done_testing();
