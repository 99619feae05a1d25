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
	"CALL leader_election.wait_for_change('background', 1, 'one', '3 s')");
wait_for($node, "SELECT count(*) = 0 FROM $BACKGROUND");
is($one->query("SELECT leader_election.is_leader('background')"),
	't', 'an observer in a worker')
  or die 'the server has crashed';

run_in_background("CALL leader_election.campaign('background', 'worker')");
my $background = $control->query("SELECT pid FROM $BACKGROUND");
wait_for($node, "SELECT count(*) = 2 FROM leader_election.candidate");
is($control->sqlstate_of("SELECT leader_election.join('background', 'worker')"), 'LE004', 'its name is in use');
like($control->errors, qr/^DETAIL:  A session of role ".*" stands under this name: process ID $background\.$/m,
	'by a session without an address');
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

# No client of it is silent: no setting for clients limits what it is granted.
$control->query('CREATE TABLE granted (remaining_ms bigint)');
$control->query(q{CREATE PROCEDURE renewed() LANGUAGE plpgsql AS $$
	BEGIN
		SET idle_session_timeout = '1s';
		PERFORM leader_election.join('renewed', 'worker');
		COMMIT;
		INSERT INTO granted
			SELECT remaining_ms FROM leader_election.renew('renewed');
		COMMIT;
	END $$});
$control->query("SELECT run_in_background('CALL renewed()')");
wait_for($node, 'SELECT remaining_ms > 1000 FROM granted');

# It has no address that could be the one of who has that name.
$control->query("SELECT leader_election.join('named', 'control')");
$control->query(q{SELECT run_in_background($$SELECT leader_election.join('named', 'control')$$)});
my $said;
wait_until(sub { ($said) = slurp_file($node->logfile) =~ /ERROR:  candidate name "control" is in use.*\n(.*\n.*\n)/ }, 'a name that is in use');
like($said, qr/DETAIL:  A session of .* client address \[local\], application_name "control"\.\n.*HINT:  Give each instance a name of its own\.$/,
	'a worker is told by whom, and of no connection pool of its own');

# If the server terminates a worker that is exiting, pgstat.c fails an assertion.
wait_for($node, "SELECT count(*) = 0 FROM $BACKGROUND");
$control->finish;
$node->stop;
done_testing();
