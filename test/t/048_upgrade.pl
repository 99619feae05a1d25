# pg_upgrade of a server in which elections are led.
#
# The new server has all rows of the old one, but has not granted any of these
# leases: a detached leader leads on, in a greater term; nobody else leads before a
# lease is over; terms go on above all old ones.  pg_upgrade, which starts both
# servers several times, changes nothing of an election by itself, even where the
# library is preloaded.
#
# Back on the old server, terms go on above those of the new one, if it is started
# as a standby and promoted.
#
# The old server is of the same version, unless oldinstall names another
# installation (as for PostgreSQL's own test), which has the extension, too.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

my $EPOCH_BITS = 22;
my $WORKERS = "pg_stat_activity WHERE backend_type = 'leader_election worker'";

# Everything that is to arrive, as text
my $ROWS = join ' UNION ALL ',
  map { "SELECT '$_ ' || r::text FROM leader_election.$_ AS r" }
  qw(election election_group drain pause_all lease history dropped epoch);

my %common = (
	start => 0,
	initdb => ['--data-checksums'],
	config => q(
leader_election.lease_duration = '4 s'
wal_level = replica
));

# The terms of before: not why they ended, which may be told later
my $TERMS = "SELECT election, term, leader, acquired_at
	FROM leader_election.history WHERE term < 1 << $EPOCH_BITS ORDER BY 1, 2";

# The same in the grace, as soon as there is an epoch.
sub renew
{
	my ($session, $election, $term) = @_;
	my $renewed;

	wait_until(
		sub {
			$renewed = $session->query(
				"SELECT term FROM leader_election.renew('$election', $term)");
			return $session->sqlstate eq '00000';
		},
		"an answer to renew('$election', $term)");
	return $renewed;
}

#
# The old server
#

my $old = new_server(
	%common,
	name => 'old',
	install => $ENV{oldinstall});
my $new = new_server(%common, name => 'new');
my ($old_bin, $new_bin) =
  map { $_->config_data('--bindir') } $old, $new;

plan skip_all => "there is no pg_upgrade in $new_bin"
  unless -x "$new_bin/pg_upgrade";
$old->start;

my $app = session($old, name => 'app');
my $holder = session($old, name => 'holder');
my %term = (renewed => 2, lapsing => 3, vacant => 4);

$app->query('CREATE EXTENSION leader_election');
$app->query("SELECT leader_election.create_election('held', 'bully',
	takeover_delay => '1 ms', channel => 'news')");
foreach my $election (sort keys %term)
{
	foreach my $round (1 .. $term{$election})
	{
		is($app->acquire($election, 'detached'), $round, "old: $election: term $round");
		$app->query("SELECT leader_election.release('$election', $round)")
		  if $round < $term{$election} || $election eq 'vacant';
	}
}
$app->acquire('dropped', 'detached');
$app->query("SELECT leader_election.release('dropped', 1);
	SELECT leader_election.drop_election('dropped')");
$app->query("SELECT leader_election.create_group('team', 3, max_per_candidate => 2);
	SELECT leader_election.drain_candidate('host-*', reason => 'it is old');
	SELECT term FROM leader_election.acquire('runs', 'detached', run => '2026-11-21');
	SELECT leader_election.release('runs', term, done => true)
		FROM leader_election.lease WHERE election = 'runs'");
$term{held} = $holder->query("CALL leader_election.campaign('held', 'holder')");

# Nobody is there who would end what the stop ends.
wait_for($old, "SELECT count(pg_terminate_backend(pid)) FROM $WORKERS", 0);
my $rows = $app->query($ROWS);
my $terms = $app->query($TERMS);

$old->stop('fast');

#
# The upgrade
#

$_->append_conf('postgresql.conf',
	"shared_preload_libraries = 'leader_election'")
  foreach $old, $new;
chdir PostgreSQL::Test::Utils::tempdir;
$new->command_ok(
	[
		'pg_upgrade', '--no-sync',
		'-b', $old_bin, '-B', $new_bin,
		'-d', $old->data_dir, '-D', $new->data_dir,
		'-p', $old->port, '-P', $new->port,
		'-s', $new->host
	],
	'pg_upgrade');
$_->append_conf('postgresql.conf', "shared_preload_libraries = ''")
  foreach $old, $new;
$new->start;
$app = session($new, name => 'app');

is($app->query($ROWS), $rows, 'new: elections, leases, history, epochs');
is( $app->query(
		"SELECT extconfig::regclass[]::text[] FROM pg_extension
		WHERE extname = 'leader_election'"),
	'{leader_election.election,leader_election.election_group,leader_election.pause_all,leader_election.drain,'
	  . 'leader_election.lease,'
	  . 'leader_election.history,leader_election.epoch,leader_election.dropped}',
	'new: and all of them will be dumped');

#
# The grace
#

is( $app->query("SELECT string_agg(format('%s %s', election, state), ', ')
		FROM leader_election.status WHERE state <> 'vacant' OR leader IS NOT NULL
			OR leader_election.is_leader(election, $term{renewed})"),
	'', 'new: nobody leads (G6)');
is( $app->sqlstate_of(
		"SELECT leader_election.assert_leader('renewed', $term{renewed})"),
	'LE001',
	'new: a token of the old server is refused (G8)');
$app->query("SELECT leader_election.join('held', 'successor')");
$term{renewed} = renew($app, 'renewed', $term{renewed});
cmp_ok($term{renewed}, '>=', 1 << $EPOCH_BITS,
	'new: who led by term leads on, in a new epoch');
is($app->acquire('lapsing', 'detached'),
	'', 'new: the seat of one that does not renew is not given away');
is($app->acquire('vacant', 'detached'), '', 'new: nor one that was vacant');
is($app->acquire('created', 'detached'), '', 'new: nor one that is created now');
is( $app->query(
		"SELECT election, waiting_for FROM leader_election.status
		WHERE waiting_for IS DISTINCT FROM 'grace after failover'"),
	'renewed|',
	'new: because of the grace');

# And after it
foreach my $election (qw(lapsing vacant created))
{
	wait_until(sub { $term{$election} = $app->acquire($election, 'detached') },
		"a leader of $election");
}
wait_for($new, "SELECT leader_election.leader('held')", 'successor');
$term{held} = $app->query("SELECT leader_election.term('held')");
is( $app->query(
		"SELECT bool_and(acquired_mono - first_seen_mono >= 4000000)
		FROM leader_election.lease,
			(SELECT max(first_seen_mono) AS first_seen_mono
			FROM leader_election.epoch) AS grace
		WHERE election NOT IN ('renewed', 'runs')"),
	't',
	'new: the grace lasts for a lease (G6)');
is( scalar(grep { $_ < 1 << $EPOCH_BITS } values %term),
	0, 'new: all terms are of the new epoch (G5)');
is($app->query($TERMS), $terms, 'new: the history is kept');

#
# Back to the old server
#

$_->finish foreach $app, $holder;
$new->stop('fast');
$old->set_standby_mode;
$old->start;
$old->promote;
$app = session($old, name => 'app');
foreach my $election (sort grep { $_ ne 'created' } keys %term)
{
	my $back;

	if ($election eq 'held')
	{
		$back = $app->query("CALL leader_election.campaign('held', 'back')");
	}
	else
	{
		wait_until(sub { $back = $app->acquire($election, 'detached') },
			"a leader of $election");
	}
	cmp_ok($back, '>', $term{$election},
		"back: $election: above the terms of the new server (G5)");
}

done_testing();
