# Updates of the extension to another protocol, where there is a standby, and
# where the library is preloaded.
#
# A standby has the objects of the primary and a library of its own.  Whichever
# of the two is updated first, nobody is elected by two protocols; what cannot be
# done meanwhile, and by which remedy, is told.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use NextVersion;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

my $MISMATCH = '55000';
my $UPDATE = 'ALTER EXTENSION leader_election UPDATE';
my %here = map { $_ => make_installation($_) } qw(primary standby);
my $primary = new_server(
	name => 'primary',
	install => $here{primary}{path},
	streaming => 1,
	config => q(
leader_election.lease_duration = '2 s'
client_min_messages = warning
));
my $app = session($primary, name => 'app');
my ($standby, $session, $term, $marks);

sub start_standby
{
	my ($name) = @_;

	$primary->backup($name);
	my $node = PostgreSQL::Test::Cluster->new($name, install_path => $here{standby}{path});
	$node->init_from_backup($primary, $name, has_streaming => 1);
	$node->start;
	return $node;
}

# What a new session is told
sub told_ok
{
	my ($node, $sql, $sqlstate, $hint, $name) = @_;
	my $new = session($node, name => 'new');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($new->sqlstate_of($sql), $sqlstate, $name);
	like($new->errors, $hint, "$name: hint") if $hint;
	$new->finish;
	return;
}

sub install
{
	my ($where, $version, $from, $protocol) = @_;

	install_version($here{$where}, $version, from => $from, protocol => $protocol,
		update => scalar update_script($protocol));
	return;
}

# How many workers have said that they end, since the log was that long
sub ended_workers
{
	my $ended = () = substr(slurp_file($standby->logfile), $marks) =~ /worker ends: .* different versions/g;

	return $ended;
}

my $LOOK = "SELECT state FROM leader_election.status WHERE election = 'long'";
my $RENEW = "SELECT term FROM leader_election.renew('long', 1)";
my $STAND = "SELECT leader_election.join('e', 'new')";

$app->query("SELECT leader_election.create_election('long', lease_duration => '1 h')");
is($term = $app->acquire('long', 'leader'), 1, 'a leader');
is($app->acquire('e', 'leader'), 1, 'and one with a short lease');
$standby = start_standby('first');

#
# The standby is updated first, as it should be.
#

is(session($standby)->query($LOOK), 'led', 'a standby shows it');
install('standby', '1.1', '1.0', 2);
told_ok($standby, $LOOK, $MISMATCH, qr/ALTER EXTENSION .* on the primary/,
	'standby first: it shows nothing for now');
is($app->query($RENEW), $term, 'standby first: the primary goes on');
install('primary', '1.1', '1.0', 2);
told_ok($primary, $UPDATE, '00000', undef, 'standby first: then the primary is updated');
$primary->wait_for_catchup($standby);
is(session($standby)->query($LOOK), 'led', 'standby first: the standby shows it again');
is(session($primary)->query($RENEW), $term, 'standby first: the leader leads on');

#
# The primary is updated first, and fails before the standby is updated.
#

install('primary', '1.2', '1.1', 3);
told_ok($primary, $UPDATE, '00000', undef, 'primary first: it is updated');
$primary->wait_for_catchup($standby);
told_ok($standby, $LOOK, $MISMATCH, qr/install the new version on this server/,
	'primary first: the standby shows nothing');
$primary->stop('immediate');
$standby->promote;
told_ok($standby, $STAND, $MISMATCH, qr/install the new version on this server/,
	'primary first: promoted, it elects nobody (G1)');
is( session($standby)->query("SELECT count(*) FROM $WORKERS"),
	0, 'primary first: and has no worker');
install('standby', '1.2', '1.1', 3);
$session = session($standby);
wait_until(sub { $session->query("SELECT leader_election.join('e', 'next')") ne '' },
	'the next leader');
cmp_ok($session->query("SELECT leader_election.term('e')"),
	'>', $term, 'primary first: when its library is installed, it elects (G5)');

#
# A library that is preloaded stays until a restart, also in new sessions.
#

$session->finish;
$standby->append_conf('postgresql.conf', "shared_preload_libraries = 'leader_election'\n");
$standby->restart;
$session = session($standby);
wait_until(sub { $session->query("SELECT leader_election.join('e', 'before')") ne '' },
	'a leader before the update');
wait_for($standby, $ONE_WORKER);
install('standby', '1.3', '1.2', 4);
$marks = -s $standby->logfile;
told_ok($standby, $UPDATE, '00000', undef, 'preloaded: updated');

# The worker, and the one that it has started, which has the same library
wait_until(sub { ended_workers() >= 2 }, 'the end of two workers');
foreach my $try (1 .. 3)
{
	told_ok($standby, $STAND, $MISMATCH, qr/Restart the server/,
		'preloaded: the server has to be restarted');
}
wait_for($standby, $NO_WORKER);
is(ended_workers(), 2, 'preloaded: no worker comes again and again');
$standby->restart;
$session = session($standby);
wait_until(sub { $session->query("SELECT leader_election.join('e', 'last')") ne '' },
	'a leader after the restart');
wait_for($standby, $ONE_WORKER);
is(ended_workers(), 2, 'preloaded: then it elects');

done_testing();
