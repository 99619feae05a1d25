# Twenty thousand changes in four elections, while the worker, who tells
# listeners of them, is terminated every 0.7 s, at any moment of its work.
# Every term is told of once, in order, as the history has it.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use LeaderElection;
use MachineTime;
use Test::More;
use Time::HiRes qw(time);
use Worker;

my $ELECTIONS = 4;
my $CHANGES = $ELECTIONS * 2 * int(2500 / slowness());
my $KILLS = 8;
my $PAUSE = 0.7;

my $node = new_server(
	config => q(
leader_election.lease_duration = '10min'
client_min_messages = warning
log_statement = none
));
my $control = session($node, name => 'control');
my $listener = Announced->new($node);
my $start = time;

my @clients = Announced::start_changes($node, 'e', $ELECTIONS,
	$CHANGES / $ELECTIONS / 2);

# The listener reads now and then, so that the queue does not get long.
my ($killed, $next, $last) = (0, time + $PAUSE, 0);

wait_until(
	sub {
		if (time >= $next)
		{
			$next = time + $PAUSE;
			$killed++
			  if $control->query("SELECT pg_terminate_backend(pid) FROM $WORKERS") eq 't';
			$control->query("SELECT leader_election.acquire('starts a worker', 'x')");
			$listener->told;
		}
		return $killed >= $KILLS && !grep { !$_->finished } @clients;
	},
	'all changes');
Announced::end_changes(@clients);
note(sprintf '%d workers were terminated, in %.1f s', $killed, time - $start);

# The last one was terminated, and there is nothing left to be done but to tell.
# The next change is told, and those that were left as well.
$control->query("SELECT pg_terminate_backend(pid, 60000) FROM $WORKERS");
is( $control->query(
		"SELECT count(*) FROM leader_election.history WHERE election ~ '^e '"),
	$CHANGES / 2,
	'all terms are in the history');
$listener->all_told_ok('^e ', 'workers that come and go');

$control->finish;
$node->stop;
done_testing();
