# Candidates and observers in background workers, as schedulers inside of the
# server run them: they have no client.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

my $BACKGROUND = "pg_stat_activity WHERE backend_type = 'background'";

# What looks for a dead client is on for everybody.
my $node = new_server(config => compile_library('background') . q(
client_connection_check_interval = '100ms'
));
my $control = session($node, name => 'control');

$control->query("CREATE FUNCTION run_in_background(text) RETURNS boolean"
	  . " LANGUAGE c AS 'background'");

sub run_in_background
{
	my ($sql) = @_;

	is($control->query("SELECT run_in_background(\$\$$sql\$\$)"), 't', $sql);
	wait_for($node, "SELECT count(*) = 1 FROM $BACKGROUND");
	return;
}

# It waits for longer than the client would be looked for.
my $one = session($node, name => 'one');
$one->query("SELECT leader_election.join('background', 'one')");
run_in_background(
	"CALL leader_election.wait_for_change('background', 1, 'one', '1.2 s')");
wait_for($node, "SELECT count(*) = 0 FROM $BACKGROUND");
is($one->query("SELECT leader_election.is_leader('background')"),
	't', 'an observer in a worker')
  or die 'the server has crashed';

run_in_background("CALL leader_election.campaign('background', 'worker')");
my $then = $control->query('SELECT leader_election._monotonic_clock()');
wait_for($node,
	"SELECT leader_election._monotonic_clock() - $then > 1200000");
$one->finish;
wait_for($node,
	"SELECT leader = 'worker' FROM leader_election.history WHERE term = 2");
wait_for($node, "SELECT count(*) = 0 FROM $BACKGROUND");
wait_for($node, "SELECT leader_election.leader('background') IS NULL");
is( $control->query(
		'SELECT reason FROM leader_election.history WHERE term = 2'),
	'session ended',
	'a candidate in a worker leads until that ends');

$control->finish;
$node->stop;
done_testing();
