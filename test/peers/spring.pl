# Spring Integration's tests of LockRegistryLeaderInitiator and JdbcLockRegistry.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../t";
use Peers;

peer('Spring Integration');

scenario('start and stop', sub {
	my ($e) = @_;
	my $one = people('one');

	same(term_in($one, $e), '', 'does not lead before');
	same(joins($one, $e), 1, 'leads');
	$one->query("SELECT leader_election.leave('$e')");
	same(term_in($one, $e), '', 'does not lead after');
	same(status($e, 'state, candidates'), 'vacant|0', 'nor stand');
});

scenario('yield', sub {
	my ($e) = @_;

	same(acquire($e, 'one'), 1, 'leads');
	same(acquire($e, 'two'), '', 'another waits');
	release($e, 1);
	same(acquire($e, 'one'), '', 'the one that yielded is passed over, although it asks first');
	same(acquire($e, 'two'), 2, 'for the other one');
	release($e, 2);
	same(acquire($e, 'one'), 3, 'and then has its turn');
});

scenario('who does not get the lock is told', sub {
	my ($e) = @_;
	my ($one, $two) = people(qw(one two));

	same(joins($one, $e), 1, 'one leads');
	same($two->query("CALL leader_election.campaign('$e', 'two', timeout => '50 ms')"), '',
		'two is told after a while');
	same($two->sqlstate, '00000', 'without an error');
	campaigns($two, $e);
	$one->finish;
	same($two->result, 2, 'and leads when one has stopped');
});

scenario('the first attempt fails', sub {
	my ($e) = @_;
	my $other = people('other');

	create_election($e, $LEASE);
	lock_row($other, $e);
	same(refused("SELECT leader_election.acquire('$e', 'one')"), '55P03', 'it is not known');
	$other->query('COMMIT');
	same(acquire($e, 'one'), 1, 'the next one succeeds');
});

scenario('the wrong one unlocks', sub {
	my ($e) = @_;
	my ($one, $two) = people(qw(one two));

	same(joins($one, $e), 1, 'one leads');
	same($two->query("SELECT leader_election.resign('$e')"), 'f', 'another cannot resign for it');
	same($two->query("SELECT leader_election.leave('$e')"), 'f', 'nor leave');
	same($two->sqlstate_of("SELECT leader_election.release('$e', 1)"), '22023',
		'nor release, not even by the term');
	same($two->sqlstate_of("SELECT leader_election.transfer('$e', 1, 'two')"), '22023',
		'nor transfer');
	same(term_in($one, $e), 1, 'one leads on');
});

# There each lock() wants its unlock(). Here a candidacy is no counter.
scenario('locked again by who has it', sub {
	my ($e) = @_;
	my $one = people('one');

	same(join(' ', map { joins($one, $e) } 1 .. 3), '1 1 1', 'the same term each time');
	$one->query("SELECT leader_election.leave('$e')");
	same(term_in($one, $e), '', 'and gone with one call');
});

scenario('locked again by who had it, after its time', sub {
	my ($e) = @_;
	my $one = people('one');

	create_election($e, $SHORT);
	$one->query("SELECT leader_election.join('$e', 'one', auto_renew => false)");
	wait_over($e);
	same(term_in($one, $e), '', 'is over');
	same($one->query("SELECT term FROM leader_election.renew('$e')"), '', 'cannot be renewed');
	same(elected($one, $e), 2, 'a new term');
});

scenario('renewed by who does not have it', sub {
	my ($e) = @_;
	my ($one, $two) = people(qw(one two));

	joins($one, $e);
	joins($two, $e);
	my $before = lease($e);

	same($two->query("SELECT term FROM leader_election.renew('$e')"), '', 'renews nothing');
	same(lease($e)->{deadline_mono} >= $before->{deadline_mono}, 1, 'and harms nobody');
	same(term_in($one, $e), 1, 'one leads');
});

scenario('two locks', sub {
	my ($e) = @_;
	my $one = people('one');

	same(joins($one, $e) . joins($one, "$e: another"), '11', 'one session has both');
	$one->query("SELECT leader_election.leave('$e: another')");
	same(term_in($one, $e), 1, 'gives one back, and keeps the other');
});

scenario('ten at once, again and again', sub {
	my ($e) = @_;
	my @all = people(map { "p$_" } 1 .. 10);

	foreach my $round (1 .. 10)
	{
		$_->query_async("SELECT term FROM leader_election.acquire('$e $round', '$_->{name}')")
		  foreach @all;
		same(join(' ', grep { $_ ne '' } map { scalar $_->result } @all), 1,
			"one of them, round $round");
	}
});

scenario('exclusive access', sub {
	my ($e) = @_;
	my ($one, $two) = people(qw(one two));
	my $write = sub {
		my ($who, $term, $what) = @_;

		return $who->query("BEGIN;\nSELECT leader_election.assert_leader('$e', $term);\n"
			  . "INSERT INTO spring_work (what) VALUES ($what);\nCOMMIT");
	};

	any('CREATE TABLE spring_work (id serial, what int)');
	joins($one, $e);
	campaigns($two, $e);
	$write->($one, 1, $_) foreach 1 .. 3;
	$one->query("SELECT leader_election.resign('$e')");
	same($two->result, 2, 'two leads when one has ended its work');
	$write->($two, 2, 4);
	$write->($one, 1, 99);
	$write->($two, 2, $_) foreach 5, 6;
	same(any("SELECT string_agg(what::text, ' ' ORDER BY id) FROM spring_work"), '1 2 3 4 5 6',
		'neither wrote in the turn of the other');
});

scenario('out of date, and taken', sub {
	my ($e) = @_;

	create_election($e, $SHORT);
	acquire($e, 'one');
	wait_over($e);
	same(acquire($e, 'two'), 2, 'by another');
	same(release($e, 1), 'f', 'the first is told when it unlocks');
	same(any("SELECT string_agg(leader || coalesce(' ' || reason, ''), ', ' ORDER BY term)
		FROM leader_election.history WHERE election = '$e' AND term = 1"), 'one expired',
		'so is who reads the history');
});

scenario('renewed for longer than a lease', sub {
	my ($e) = @_;
	my $two = people('two');

	create_election($e, $LEASE);
	acquire($e, 'one');
	my $before = lease($e);

	campaigns($two, $e);
	wait_until(sub {
			renew($e, 1);
			return $control->query('SELECT leader_election._monotonic_clock()') > $before->{deadline_mono};
		}, 'the end of the first lease');
	same($two->finished, '', 'the other waits');
	release($e, 1);
	same($two->result, 2, 'until it is given back');
});

scenario('in a transaction', sub {
	my ($e) = @_;
	my $one = people('one');

	same($one->sqlstate_of("BEGIN;\nSELECT leader_election.acquire('$e', 'one')"), '25001',
		'a lock that could be rolled back is refused');
	$one->query('ROLLBACK');
	same(any("SELECT leader_election.leader('$e') IS NULL"), 't', 'nobody leads');
});

done_testing();
