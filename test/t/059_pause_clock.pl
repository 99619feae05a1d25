# The wall clock is set while elections are paused for a while: no pause ends early,
# or late.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FakeClock;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;

# In microseconds
my $PAUSE = 3_000_000;
my $LATE = 20_000_000;

my $node = new_server(
	start => 0,
	config => "leader_election.lease_duration = '2s'\nclient_min_messages = warning\n");
set_clock(0);
start_with_fake_clock($node);
$node->safe_psql('postgres', 'CREATE EXTENSION leader_election');

my $control = session($node, name => 'control');

foreach my $step ([ 'ahead', 3600 ], [ 'back', -3600 ])
{
	my ($name, $offset) = @$step;
	my $heir = session($node, name => 'heir');
	my $mark = held_up();
	my ($due, $acquired, $before, $after);

	set_clock(0);
	$control->query("SELECT leader_election.create_election('$name')");
	$control->query("SELECT leader_election.pause_election('$name', 'why', '${PAUSE}us')");
	$due = $control->query(
		"SELECT resumes_mono FROM leader_election.election WHERE election = '$name'");
	$heir->query_async("CALL leader_election.campaign('$name', 'heir')");
	wait_for($node,
		"SELECT candidates = 1 FROM leader_election.status WHERE election = '$name'");
	set_clock($offset);
	($before, my $paused, $after) = split /\|/, $control->query(
		"SELECT leader_election._monotonic_clock(),
			(SELECT waiting_for || ' ' || pause_reason FROM leader_election.status
				WHERE election = '$name'),
			abs(extract(epoch FROM clock_timestamp() - paused_at)) > 3000
		FROM leader_election.election WHERE election = '$name'");
	is($after, 't', "$name: the clock is set");
	is($paused, $before < $due ? 'paused why' : '', "$name: it is paused still (G4)");
	is($heir->result, 1, "$name: the pause ends");
	($acquired) = $control->lease($name, 'acquired_mono');
	cmp_ok($acquired, '>=', $due, "$name: not early (G4)");
	cmp_ok($acquired, '<', $due + $LATE + held_up($mark), "$name: nor late (G4)");
	$heir->finish;
}

$node->stop;
done_testing();
