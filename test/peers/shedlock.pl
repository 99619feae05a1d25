# ShedLock's integration tests of its lock providers (shedlock-test-support).

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../t";
use Peers;

peer('ShedLock');

scenario('locked and unlocked', sub {
	my ($e) = @_;

	same(acquire($e, 'one'), 1, 'locked');
	same(acquire($e, 'two'), '', 'no second lock');
	same(acquire("$e: another", 'two'), 1, 'but one of another name');
	same(release($e, 1), 't', 'unlocked');
	same(acquire($e, 'two'), 2, 'locked by the second');
});

scenario('lockAtMostFor', sub {
	my ($e) = @_;

	create_election($e, $SHORT);
	acquire($e, 'one');
	wait_over($e);
	same(any("SELECT leader_election.leader('$e') IS NULL"), 't', 'unlocked by itself');
	same(acquire($e, 'two'), 2, 'and can be locked');
});

scenario('locked right after it was unlocked', sub {
	my ($e) = @_;

	foreach my $n (1 .. 10)
	{
		same(acquire($e, 'one'), $n, "locked, round $n");
		same(acquire($e, 'one'), '', "not twice, round $n");
		release($e, $n);
	}
});

scenario('lockAtLeastFor', sub {
	my ($e) = @_;

	acquire($e, 'one');
	same(release($e, 1, "hold => '1 h'"), 't', 'unlocked');
	same(holds($e, 1), '', 'who had it does not any more');
	same(acquire($e, 'two'), '', 'and nobody else does');
	same(status($e, 'waiting_for'), 'hold', 'as can be seen');
});

# There lockAtLeastFor must not be more than lockAtMostFor. The lease that one has goes on
# when those of the election become shorter.
scenario('lockAtLeastFor that is longer than lockAtMostFor', sub {
	my ($e) = @_;

	acquire($e, 'one');
	any("SELECT leader_election.alter_election('$e', lease_duration => '${SHORT}us')");
	my $due = lease($e)->{acquired_mono} + 3 * $SHORT;

	same(release($e, 1, "hold => '" . 3 * $SHORT . "us'"), 't', 'is taken');
	acquire_in_turn($e, 'one', 'two');
	since($due, lease($e)->{acquired_mono}, 0, 'and nobody has it before that time has passed');
});

# There the lock that was extended is another one. Here it is the same term.
scenario('extended', sub {
	my ($e) = @_;
	my $before;

	create_election($e, 2 * $LEASE);
	acquire($e, 'one');
	$before = lease($e);
	same(renew($e, 1) . renew($e, 1) . renew($e, 1), 111, 'three times');
	wait_for_clock($before->{deadline_mono} - $LEASE);
	same(renew($e, 1), 1, 'once more, before the first lease is over');
	wait_for_clock($before->{deadline_mono});
	same(holds($e, 1), 1, 'is locked beyond it');
	same(release($e, 1), 't', 'unlocked by what it was locked with');
});

scenario('extended after it was unlocked', sub {
	my ($e) = @_;

	acquire($e, 'one');
	release($e, 1);
	same(renew($e, 1), '', 'is not possible');
	same(any("SELECT leader_election.leader('$e') IS NULL"), 't', 'and it is unlocked');
});

scenario('extended after it expired', sub {
	my ($e) = @_;

	create_election($e, $SHORT);
	acquire($e, 'one');
	wait_over($e);
	same(renew($e, 1), '', 'is not possible');
	same(any("SELECT leader_election.leader('$e') IS NULL"), 't', 'and it is unlocked');
});

scenario('six that count with two locks', sub {
	my ($e) = @_;
	my @all = people(map { "p$_" } 1 .. 6);
	my $turn = 0;

	# Nobody's lease is to end while it counts.
	create_election("$e $_", 10 * $LEASE) foreach 1, 2;
	any("CREATE TABLE shedlock_counter AS SELECT '$e ' || i AS lock, 0 AS n FROM generate_series(1, 2) i");
	foreach my $session (@all)
	{
		my $lock = "$e " . (1 + $turn++ % 2);

		$session->query_async(join "\n", (<<"END") x 20);
\\set got 0
\\set t 0
SELECT count(*) AS got, coalesce(max(term), 0) AS t
	FROM leader_election.acquire('$lock', '$session->{name}') \\gset
\\if :got
SELECT n FROM shedlock_counter WHERE lock = '$lock' \\gset
SELECT 1 AS slept FROM pg_sleep(0.001) \\gset
UPDATE shedlock_counter SET n = :n + 1 WHERE lock = '$lock';
SELECT leader_election.release('$lock', :t) AS gone \\gset
\\endif
END
	}
	$_->result foreach @all;
	foreach my $lock (1, 2)
	{
		my $terms = any("SELECT count(*) FROM leader_election.history WHERE election = '$e $lock'");

		since(0, $terms, 1, "lock $lock was had");
		same(any("SELECT n FROM shedlock_counter WHERE lock = '$e $lock'"), $terms,
			"lock $lock: nobody has overwritten what another has counted");
	}
});

scenario('what the connection knows is cleared in the middle', sub {
	my ($e) = @_;
	my $one = people('one');

	same($one->acquire($e, 'one'), 1, 'locked');
	$one->query('DISCARD ALL');
	same($one->acquire($e, 'two'), '', 'is locked');
	same($one->query("SELECT leader_election.release('$e', 1)"), 't', 'unlocked');
	$one->query('DISCARD ALL');
	same($one->acquire($e, 'two'), 2, 'and can be locked');
});

scenario('LockAssert', sub {
	my ($e) = @_;

	acquire($e, 'one');
	same(refused("SELECT leader_election.assert_leader('$e', 1)"), '00000', 'locked');
	release($e, 1);
	same(refused("SELECT leader_election.assert_leader('$e', 1)"), 'LE001', 'not locked');
});

# Redis counts in whole milliseconds. Here a duration is an interval.
scenario('a duration of 250.5 ms', sub {
	my ($e) = @_;

	any("SELECT leader_election.create_election('$e', lease_duration => '250.5 ms')");
	my $lease;

	# Until the row is read before the worker ends so short a term
	wait_until(sub { acquire($e, 'one'); $lease = lease($e); $lease->{leader} ne '' }, 'the lease');
	same($lease->{deadline_mono} - $lease->{acquired_mono}, 250_500, 'is what it says');
	acquire("$e: hold", 'one');
	same(release("$e: hold", 1, "hold => '250.5 ms'"), 't', 'also of a hold');
});

scenario('a name that is too long', sub {
	my ($e) = @_;

	same(refused("SELECT leader_election.acquire('" . 'x' x 201 . "', 'one')"), '22023',
		'is refused, and not cut');
	same(acquire('x' x 200, 'one'), 1, 'one of 200 bytes is not');
});

done_testing();
