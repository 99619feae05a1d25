# Old history is removed, but not before listeners have been told of it.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use LeaderElection;
use Test::More;
use Worker;

my $node = new_server(config => NotifyLock::config() . q(
leader_election.lease_duration = '10min'
leader_election.history_retention = '0'
client_min_messages = warning
));
my $admin = session($node, name => 'admin');
my $notify = NotifyLock->new($node);
my $listener = Announced->new($node);
my @expected;

sub terms
{
	my ($election, $count) = @_;

	foreach (1 .. $count)
	{
		my $term = $admin->query("SELECT term FROM leader_election.acquire('$election', 'x')");

		die "$election: " . $admin->errors
		  if $admin->query("SELECT leader_election.release('$election', $term)") ne 't';
		push @expected, "elected $term x", "vacated $term, x resigned"
		  if $election eq 'untold';
	}
	return;
}

# A worker removes old history when it starts.
sub start_worker
{
	$admin->query("SELECT pg_terminate_backend(pid, 60000) FROM $WORKERS");
	$admin->query("SELECT leader_election.acquire('starts a worker', 'x')");
	wait_for($node, "SELECT count(*) FROM $WORKERS", 1);
	return;
}

terms('told', 5);
$listener->fence;
$notify->hold;
terms('untold', 150);
start_worker();
wait_for($node, "SELECT count(*) = 0 FROM leader_election.history WHERE election = 'told'");
is($admin->query("SELECT count(*) FROM leader_election.history WHERE election = 'untold'"),
	150, 'what was not told yet is kept (G10)');
$notify->free;
$listener->events_ok('untold', \@expected, 'and told later');
start_worker();
wait_for($node, "SELECT count(*) = 0 FROM leader_election.history WHERE election = 'untold'");
pass('then it is removed');
terms('untold', 1);
$listener->events_ok('untold', \@expected, 'what comes next is told');

$admin->finish;
$node->stop;
done_testing();
