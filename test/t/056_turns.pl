# Calls that take their turn at an election while others are in the way: one that
# drops it, one that has its row, one that alters it. What the call can find out in
# its time it says, and 55P03 is only for what it cannot.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use SyncStandby;
use Test::More;
use Time::HiRes qw(time);

# How long a commit is under way to the standby, in seconds: a proof takes as long.
# A call may wait for 1 s in all.
my $CONFIRMED = 0.6;

# A call that has waited for too long because its machine stood still is made once more. A
# call that never has enough time fails in each attempt.
my $ATTEMPTS = 10;

my $pair = SyncStandby->new(
	config => "leader_election.lease_duration = '30s'\n"
	  . "client_min_messages = warning\n");
my $node = $pair->{primary};
my $caller = session($node, name => 'caller');
my $other = session($node, name => 'other');
my $control = session($node, name => 'control');

# Until so many calls wait, or the caller waits no more
sub wait_for_queue
{
	my ($many, $what) = @_;

	wait_until(
		sub {
			return $caller->{busy} && $caller->finished || $control->query(
				"SELECT count(*) FROM pg_locks
					WHERE locktype = 'advisory' AND NOT granted") == $many;
		},
		$what);
	return;
}

# An acquire() that queues while the election is dropped, and what it answers
sub acquire_behind_drop
{
	my ($election) = @_;
	my $answer;

	foreach my $attempt (1 .. $ATTEMPTS)
	{
		$control->query("SELECT leader_election.create_election('$election')");
		$other->query('BEGIN');
		$other->query("SELECT leader_election.drop_election('$election')");
		$caller->query_async(
			"SELECT term > 0 FROM leader_election.acquire('$election', 'a')");
		wait_for_queue(1, "$election: acquire() queues behind the drop");
		$other->query('COMMIT');
		$answer = $caller->result;
		last if $caller->sqlstate ne '55P03';
	}
	return $answer;
}

# --- The election is dropped meanwhile. Without standbys: what is to be shown does
# not need them.

$pair->be_synchronous('');
is(acquire_behind_drop('dropped'), 't', 'dropped: acquire() makes it anew, and leads');
is($caller->sqlstate, '00000', 'dropped: without an error');
$caller->query('SET leader_election.auto_create = off');
acquire_behind_drop('gone');
is($caller->sqlstate, 'LE003', 'gone: nobody may make it, and the call says so');
$caller->query('RESET leader_election.auto_create');

# --- Its row is locked for longer than a proof takes, but not for as long as a
# call may wait.

$control->query("SELECT leader_election.create_election('$_')") foreach qw(row altered);
foreach my $election (qw(row altered))
{
	is($caller->query("SELECT leader_election.join('$election', 'c')"),
		1, "$election: leads");
}
$pair->be_synchronous('*');
$pair->delay_line($CONFIRMED);

my $answer;
foreach my $attempt (1 .. $ATTEMPTS)
{
	$other->query('BEGIN');
	$other->query("SELECT 1 FROM leader_election.lease
		WHERE election = 'row' FOR NO KEY UPDATE");
	my $began = time;
	$caller->query_async("SELECT leader_election.resign('row')");
	wait_until(sub { time > $began + $CONFIRMED + 0.1 }, 'row: the proof is there');
	$other->query_async('ROLLBACK');
	$answer = $caller->result;
	$other->result;
	last if $caller->sqlstate ne '55P03';
}
is($answer, 't', 'row: the turn goes on with the same proof');

# --- Its settings change between the proof and the lock: the next proof is for the
# settings of now.

$pair->delay_line(0);
my $next = session($node, name => 'next');
$next->query("SELECT leader_election.join('altered', 'next')");
my $lease;
foreach my $attempt (1 .. $ATTEMPTS)
{
	# Other settings each time, in seconds
	$lease = 40 + $attempt;
	$control->query('SELECT pg_advisory_lock(1)');
	$other->query_async(
		"DO \$\$ BEGIN
			PERFORM leader_election.alter_election('altered', lease_duration => '$lease s');
			PERFORM pg_advisory_xact_lock(1);
		END \$\$");
	wait_for_queue(1, 'altered: but not committed');
	$caller->query_async("SELECT leader_election.resign('altered')");
	wait_for_queue(2, 'altered: resign() has its proof, and queues');
	$control->query('SELECT pg_advisory_unlock(1)');
	$answer = $caller->result;
	$other->result;
	last if $caller->sqlstate ne '55P03';
}
is($answer, 't', 'altered: the turn begins anew with the settings of now');
is($next->query("SELECT duration FROM leader_election.lease
		WHERE election = 'altered' AND leader = 'next'"),
	$lease * 1_000_000, 'altered: the next one leads by them');

done_testing();
