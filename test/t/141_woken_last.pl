# Who is woken by a commit is woken when that is over: the invalidations were sent and
# the locks are free. A client that was told before could ask by another connection,
# which would answer from what it remembers, or find the lock of the election held.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Test::More;
use Worker;

my $node = new_server(
	config => compile_library('latch_at_commit') . q(
leader_election.lease_duration = '1h'
));
my $control = session($node, name => 'control');
my $leader = session($node, name => 'leader');

$control->query($_)
  for q(CREATE FUNCTION latch_at_commit(int) RETURNS bool LANGUAGE c AS 'latch_at_commit'),
  q(CREATE FUNCTION latch_found() RETURNS text LANGUAGE c AS 'latch_at_commit');
$leader->query($_) for "LOAD 'latch_at_commit'", "LOAD 'leader_election'";    # in this order

# Until that process sleeps, with no wake-up in hand.
sub stop_asleep
{
	my ($pid) = @_;

	return stop_where($control, "SELECT $pid",
		"wait_event_type IN ('Extension', 'Activity') AND latch_at_commit($pid)");
}

# A call of the leader's session wakes that process, but not before its locks are free.
sub is_woken_last
{
	my ($pid, $call, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	stop_asleep($pid);
	is($leader->query("SELECT latch_at_commit($pid), ($call) IS NOT NULL"), 't|t', "$what: sleeps at first");
	is($leader->query('SELECT latch_found()'),
		'visible: asleep locks free: woken ', "$what: is woken when the locks are free");
	resume_process($pid);
	return;
}

is($leader->query(q(SELECT leader_election.join('e', 'leader'))), 1, 'a leader');

my $observer = session($node, name => 'observer');
$observer->query_async(q(CALL leader_election.wait_for_change('e', 1, 'leader')));
is_woken_last($observer->backend_pid, q(SELECT leader_election.resign('e')), 'an observer');
is($observer->result, '|', 'an observer: finds that nobody leads');

is($leader->query(q(SELECT leader_election.join('e', 'leader'))), 2, 'a leader again');
my $next = session($node, name => 'next');
$next->query_async(q(CALL leader_election.campaign('e', 'next')));
wait_for($node, q(SELECT count(*) = 1 FROM leader_election.candidates WHERE candidate = 'next'));
is_woken_last($next->backend_pid, q(SELECT leader_election.resign('e')), 'the next leader');
is($next->result, 3, 'the next leader: leads');

my $worker = $node->safe_psql('postgres',
	q(SELECT pid FROM pg_stat_activity WHERE backend_type = 'leader_election worker'));
is_woken_last($worker, q(SELECT leader_election.join('f', 'leader')), 'the worker');
is_woken_last($worker, q(SELECT leader_election.leave('f')), 'the worker, of a candidacy that ends');

# A rollback wakes nobody.
is($leader->query(q(SELECT leader_election.join('g', 'leader'))), 1, 'a leader of another one');
$observer->query_async(q(CALL leader_election.wait_for_change('g', 1, 'leader')));
stop_asleep($observer->backend_pid);
my $pid = $observer->backend_pid;
is( $leader->sqlstate_of("SELECT latch_at_commit($pid), 1 / (leader_election.resign('g')::int - 1)"),
	'22012', 'a change of leader that is undone');
is($leader->query('SELECT latch_found()'), 'visible: asleep ', '... wakes nobody');
resume_process($observer->backend_pid);
$observer->kill;

done_testing();
