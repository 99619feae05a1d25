# Consul's tests of Lock and Semaphore, of what happens to locks when sessions are
# invalidated, and of "consul lock" (api/lock_test.go, api/semaphore_test.go,
# agent/consul/state, command/lock).

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../t";
use MachineTime;
use Peers;
use PgLeader;

peer('Consul');

# The seats that a call is granted, as "group/1 1"
sub seats
{
	my ($group, $candidate) = @_;

	return join ', ', split /\n/,
	  any("SELECT election || ' ' || term FROM leader_election.acquire_any('$group', '$candidate')");
}

scenario('lock and unlock', sub {
	my ($e) = @_;
	my $one = people('one');

	create_election($e, $LEASE);
	same($one->query("SELECT leader_election.resign('$e')"), 'f', 'nothing to unlock');
	same(joins($one, $e), 1, 'locks');
	same($one->query("SELECT leader_election.leave('$e')"), 't', 'unlocks');
	same($one->query("SELECT leader_election.leave('$e')"), 'f', 'once');
	same(term_in($one, $e), '', 'and knows it');
});

scenario('the session is destroyed by an operator', sub {
	my ($e) = @_;
	my ($one, $two) = people(qw(one two));

	joins($one, $e);
	campaigns($two, $e);
	any("SELECT leader_election.request_yield('$e', terminate => true)");
	same($two->result, 2, 'the next one leads');
	$one->query("SELECT leader_election.is_leader('$e')");
	same($one->sqlstate =~ /^(57P01|08006)$/, 1, 'the former one is told');
});

scenario('three contend', sub {
	my ($e) = @_;
	my @all = people(qw(one two three));

	campaigns($_, $e) foreach @all;
	foreach my $n (1 .. 3)
	{
		same($all[ $n - 1 ]->result, $n, "$all[$n - 1]{name} has its turn");
		$all[ $n - 1 ]->query("SELECT leader_election.leave('$e')");
	}
});

scenario('the key of a semaphore is none for a lock', sub {
	my ($e) = @_;

	any("SELECT leader_election.create_group('$e', 2)");
	same(refused("SELECT leader_election.create_election('$e/1')"), '42710', 'what is there');
	same(refused("SELECT leader_election.acquire('$e/3', 'one')"), 'LE003',
		'what the group does not have is not made');
	same(refused("SELECT leader_election.drop_election('$e/1')"), '42809',
		'a seat goes with its group only');
	create_election("$e: a lock/1", $LEASE);
	same(refused("SELECT leader_election.create_group('$e: a lock', 2)"), '42710',
		'nor the other way around');
});

scenario('a lock is reclaimed by the same session', sub {
	my ($e) = @_;
	my $one = people('one');

	same(joins($one, $e), 1, 'locked');
	campaigns($one, $e, "timeout => '100 s'");
	same($one->result, 1, 'reclaimed at once');
});

scenario('a semaphore, acquired and released', sub {
	my ($e) = @_;

	any("SELECT leader_election.create_group('$e', 2)");
	same(refused("SELECT leader_election.release('$e/1', 1)") . release("$e/1", 1), '00000f',
		'nothing to release');
	same(seats($e, 'one'), "$e/1 1", 'a seat');
	same(seats($e, 'one'), '', 'one of them');
	same(release("$e/1", 1) . release("$e/1", 1), 'tf', 'released, once');
});

scenario('four contend for two seats', sub {
	my ($e) = @_;
	my @had;
	my $led = "SELECT count(*) FROM leader_election.status WHERE election LIKE '$e/%' AND state = 'led'";

	any("SELECT leader_election.create_group('$e', 2)");
	same(join('|', map { seats($e, $_) } qw(one two three four)), "$e/1 1|$e/2 1||",
		'two have one');
	release("$e/1", 1);
	same(join('|', map { seats($e, $_) } qw(three four)), "$e/1 2|", 'the third has one that is free');
	same(any($led), 2, 'never more than two');
	release("$e/2", 1);
	same(seats($e, 'four'), "$e/2 2", 'and the fourth');
	same(any($led), 2, 'two again');
});

scenario('a bad limit', sub {
	my ($e) = @_;

	same(refused("SELECT leader_election.create_group('$e', 0)"), '22023', 'has to be positive');
	any("SELECT leader_election.create_group('$e', 1)");
	same(refused("SELECT leader_election.create_group('$e', 2)"), '42710', 'and one for all');
});

scenario('a third that waits only for a while', sub {
	my ($e) = @_;
	my $third = people('third');

	any("SELECT leader_election.create_group('$e', 2)");
	seats($e, $_) foreach qw(one two);
	my $began = any('SELECT leader_election._monotonic_clock()');

	same($third->query("CALL leader_election.campaign('$e/2', 'third', timeout => '250 ms')"), '',
		'has none');
	since($began, any('SELECT leader_election._monotonic_clock()'), 250_000, 'after that while');
	release("$e/2", 1);
	same($third->query("CALL leader_election.campaign('$e/2', 'third', timeout => '100 s')"), 2,
		'has one that was given up');
});

scenario('errors while a lock is watched', sub {
	my ($e) = @_;
	my ($other, $one) = people(qw(other one));

	create_election($e, 60_000_000);
	acquire($e, 'one');
	lock_row($other, $e);
	$one->query("SET lock_timeout = '20 ms'");
	same(join(' ', map { $one->sqlstate_of("SELECT leader_election.renew('$e', 1)") } 1 .. 3),
		'55P03 55P03 55P03', 'say that it is not known');
	same(holds($e, 1), 1, 'it is held');
	$other->query('COMMIT');
	same($one->query("SELECT term FROM leader_election.renew('$e', 1)"), 1, 'and goes on');
});

scenario('a lock delay after an invalidation, and none after a release', sub {
	my ($e) = @_;
	my ($one, $two, $three) = people(qw(one two three));
	my $vacant = "SELECT 1e6 * extract(epoch FROM n.acquired_at - h.ended_at)
		FROM leader_election.history h, leader_election.history n
		WHERE h.election = '$e' AND n.election = '$e' AND n.term = h.term + 1 AND h.term =";

	any("SELECT leader_election.create_election('$e', takeover_delay => '1 s')");
	joins($one, $e);
	campaigns($two, $e);
	$one->kill;
	same($two->result, 2, 'the next one leads');
	since(0, any("$vacant 1"), 1_000_000, 'not before the delay was over');
	campaigns($three, $e);
	my $mark = held_up();

	$two->query("SELECT leader_election.resign('$e')");
	same($three->result, 3, 'the next one leads');
	at_most(any("$vacant 2"), 500_000 + held_up($mark), 'at once');
});

scenario('an invalidated session and its other locks', sub {
	my ($e) = @_;
	my $one = people('one');

	joins($one, "$e $_") foreach 1 .. 3;
	$one->kill;
	wait_for($node, "SELECT count(*) FROM leader_election.status
		WHERE election LIKE '$e %' AND state <> 'vacant'", 0);
	same(any("SELECT string_agg(reason, ', ') FROM leader_election.history
		WHERE election LIKE '$e %'"), join(', ', ('session ended') x 3), 'all are free');
});

scenario('the command of a lock', sub {
	my ($e) = @_;

	same(run_pg_leader($node, '-e', $e, '--', 'sh', '-c', 'exit 0'), 0, 'is run');
	same(run_pg_leader($node, '-e', $e, '--', 'sh', '-c', 'exit 7'), 7, 'its exit code is told');
	same(run_pg_leader($node, '-e', $e, '--', 'test', '-d', '/'), 0, 'it needs no shell');
	same(any("SELECT string_agg(reason, ' ') FROM leader_election.history WHERE election = '$e'"),
		'resigned resigned resigned', 'and the lock is given back each time');
});

scenario('the command of a lock that another has', sub {
	my ($e) = @_;
	my $one = people('one');

	joins($one, $e);
	same(run_pg_leader($node, '-e', $e, '--wait=3s', '--', 'sh', '-c', 'exit 0'), 122,
		'is not run');
	any("SELECT leader_election.create_group('$e: seats', 2)");
	seats("$e: seats", $_) foreach qw(one two);
	same(run_pg_leader($node, "--group=$e: seats", '--wait=3s', '--', 'sh', '-c', 'exit 0'), 122,
		'nor that of a semaphore');
	release("$e: seats/2", 1);
	same(run_pg_leader($node, "--group=$e: seats", '--wait=100s', '--', 'sh', '-c',
			'test "$PG_LEADER_SEAT" = 2'), 0, 'but when a seat is free');
});

scenario('bad options of the command', sub {
	my ($e) = @_;

	same(run_pg_leader($node, '-e', $e, $_, '--', 'true'), 125, "$_ is refused")
	  foreach '--wait=blah', '--wait=-10s', '--check-failures=-5', '--grace=blah';
});

# What is created after a drop begins above the terms of what was dropped: these two
# come last.
scenario('a semaphore is destroyed', sub {
	my ($e) = @_;

	any("SELECT leader_election.create_group('$e', 2)");
	seats($e, $_) foreach qw(one two);
	same(refused("SELECT leader_election.drop_group('$e')"), '55006', 'not while it is held');
	release("$e/1", 1);
	same(refused("SELECT leader_election.drop_group('$e')"), '55006', 'by the last one');
	release("$e/2", 1);
	same(refused("SELECT leader_election.drop_group('$e')"), '00000', 'but then');
});

# There the lock goes with its key. Here nothing takes a lease by force.
scenario('the key is deleted by an operator', sub {
	my ($e) = @_;

	my $term = acquire($e, 'one');

	same(refused("SELECT leader_election.drop_election('$e')"), '55006', 'not while it is led');
	same(holds($e, $term), 1, 'the leader leads');
	release($e, $term);
	same(refused("SELECT leader_election.drop_election('$e')"), '00000', 'then it can be');
	same(refused("SELECT leader_election.drop_election('$e')"), 'LE003', 'once');
	since($term, acquire($e, 'one'), 1, 'one that is made again goes on with the terms');
});

done_testing();
