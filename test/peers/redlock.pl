# The tests of two implementations of Redlock: redsync (mutex_test.go) and pottery
# (test_redlock.py).

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../t";
use Peers;

peer('Redlock');

scenario('acquired, and it times out', sub {
	my ($e) = @_;

	create_election($e, $SHORT);
	same(acquire($e, 'one'), 1, 'leads');
	wait_over($e);
	same(holds($e, 1), '', 'and does not any more, by itself');
});

# redsync can be told to lock again instead: here that is acquire(), in a new term.
scenario('extended when it has expired, and nobody has taken it', sub {
	my ($e) = @_;

	create_election($e, $SHORT);
	acquire($e, 'one');
	wait_over($e);
	same(renew($e, 1), '', 'is over all the same');
	same(acquire($e, 'one'), 2, 'and can be acquired anew');
});

scenario('extended when another has taken it', sub {
	my ($e) = @_;

	create_election($e, $SHORT);
	acquire($e, 'one');
	wait_over($e);
	any("SELECT leader_election.alter_election('$e', lease_duration => '1 min')");
	same(acquire($e, 'two'), 2, 'two leads');
	my $before = lease($e);

	same(renew($e, 1), '', 'one cannot extend');
	same(release($e, 1), 'f', 'nor unlock');
	unchanged($e, $before, 'the lock of two is as it was');
});

scenario('extended many times', sub {
	my ($e) = @_;

	acquire($e, 'one');
	same(join(' ', map { renew($e, 1) } 1 .. 30), join(' ', (1) x 30), 'has no bound');
});

# There by the lock's value, here by its term.
scenario('locked by one object, unlocked by another', sub {
	my ($e) = @_;
	my ($locks, $unlocks) = people(qw(locks unlocks));

	same($locks->acquire($e, 'one'), 1, 'locked');
	same($unlocks->query("SELECT leader_election.release('$e', 1)"), 't', 'unlocked');
	same($locks->query("SELECT leader_election.is_leader('$e', 1)"), 'f', 'as both can see');
});

scenario('the same lock twice', sub {
	my ($e) = @_;

	create_election($e, $SHORT);
	my $before;

	# Until the row is read before the worker ends so short a term
	wait_until(sub { acquire($e, 'one'); $before = lease($e); $before->{leader} ne '' }, 'the lease');
	since($before->{term}, (acquire_in_turn($e, 'one'))[1], 1, 'the same name has it a second time');
	since($before->{deadline_mono}, lease($e)->{acquired_mono}, 0, 'but not before the lease is over');
});

scenario('an hour', sub {
	my ($e) = @_;

	create_election($e, 3_600_000_000);
	acquire($e, 'one');
	same(holds($e, 1), 1, 'is valid');
	my $ms = any("SELECT remaining_ms FROM leader_election.renew('$e', 1)");

	at_most($ms, 3_600_000, 'for an hour at most');
	since(0, $ms, 3_500_000, 'and not much less');
});

scenario('eight that lock, one after the other', sub {
	my ($e) = @_;
	my %waiting = map { $_->{name} => $_ } people(map { "p$_" } 1 .. 8);
	my @terms;

	campaigns($_, $e) foreach values %waiting;
	while (%waiting)
	{
		my @elected;

		wait_until(sub { @elected = grep { $_->finished } values %waiting }, 'the next one');
		same(scalar @elected, 1, 'one at a time');
		push @terms, $elected[0]->result;
		$elected[0]->query("SELECT leader_election.leave('$e')");
		delete $waiting{ $elected[0]{name} };
	}
	same("@terms", '1 2 3 4 5 6 7 8', 'each has its turn');
});

# There of servers, here of candidates: who counts are those that stand.
scenario('a quorum of three', sub {
	my ($e) = @_;

	any("SELECT leader_election.create_election('$e', quorum => 3)");
	same(acquire($e, 'one') . acquire($e, 'two'), '', 'two of three are not enough');
	same(acquire($e, 'three') . acquire($e, 'one'), 1, 'three are');
	any("SELECT leader_election.leave('$e', '$_')") foreach qw(two three);
	same(any("SELECT leader FROM leader_election.renew('$e', 1), leader_election.leader('$e') leader"),
		any("SELECT leader_election.leader('$e')"), 'who leads needs nobody');
});

done_testing();
