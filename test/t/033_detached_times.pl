# What takes its time with detached candidates: leases that run out, yields that
# are not obeyed, seats that are reserved for a candidate that does not come, and
# holds. All of it goes on at once. The next candidate leads when it is due, not
# before, and soon after.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Detached;
use LeaderElection;
use MachineTime;
use Test::More;

# They outlast what is asked meanwhile, in microseconds; the second one also the leases,
# whose end is waited for before it is asked for.
my $HOLD = 1_500_000 * slowness();
my $HOLD_D = $HOLD + $LEASE / 2;

serve();
watch_terms();

my ($one, $two, $three, $four) =
  map { session($node, name => $_) } qw(one two three four);

{
	my (%before, %after, $clock, $new, $row);
	my ($winner, $term);

	$new = session($node, name => 'new');

	# A detached leader does not call any more, a session waits.
	is(acquire('expires', 'd'), 1, 'expiry: leads');
	is(renew('expires', 1), 1, 'expiry: renews, and no more after that');
	$before{expires} = lease('expires');
	is(joins($one, 'expires'), '', 'expiry: a session waits');
	is(acquire('expires alone', 'd'), 1, 'expiry alone: leads');

	# A detached leader is asked to yield, and is terminated as far as it goes.
	foreach my $e ('yields', 'is terminated')
	{
		my $terminate = $e eq 'yields' ? 'false' : 'true';

		is(acquire($e, 'd'), 1, "$e: leads");
		is(joins($one, $e), '', "$e: a session waits");
		$before{$e} = lease($e);
		cmp_ok(
			any("SELECT extract(epoch FROM leader_election.request_yield('$e',"
				  . " terminate => $terminate)) * 1000000"),
			'<=',
			$LEASE,
			"$e: how long it may take");
		$row = any("SELECT r.term, r.expires_at, r.yielding,"
			  . " r.remaining_ms BETWEEN 1 AND $LEASE / 1000"
			  . " FROM leader_election.renew('$e', 1) r");
		is($row, "1|$before{$e}{expires_at}|t|t",
			"$e: it is not renewed any more, and told so");
		is(lease($e)->{deadline_mono},
			$before{$e}{deadline_mono}, "$e: its deadline stays");
		any("SELECT leader_election.renew('$e', 1, progress => 7)");
		is(row('candidate', "election = '$e' AND kind = 'detached'", 'progress')->{progress},
			7, "$e: its calls are signs of life, and say how far it has got");
	}

	# A session leader is asked to yield to a detached candidate, and leads as
	# long as it can.
	is(joins($three, 'clings'), 1, 'clings: leads');
	is(joins($two, 'clings'), '', 'clings: a session waits');
	is(acquire('clings', $_), '', "clings: $_ waits") foreach 'd1', 'd2';
	$three->query_async(
		q{DO $$ DECLARE now bigint; last_true bigint; BEGIN
			LOOP
				now := leader_election._monotonic_clock();
				EXIT WHEN NOT leader_election.is_leader('clings');
				last_true := now;
			END LOOP;
			RAISE WARNING 'last true: %', last_true;
		END $$});
	$before{clings} = lease('clings');
	any("SELECT leader_election.request_yield('clings', 'd2')");
	$after{clings} = lease('clings');
	cmp_ok(
		$after{clings}{deadline_mono},
		'>=',
		$before{clings}{deadline_mono},
		'clings: its lease is not made shorter (G2)');

	# A seat is reserved for one that lives (a sign of life counts for 4/3 of
	# a lease, the reservation for one; the only call that gives another sign
	# would be granted the seat) ...
	is(joins($one, 'reserved'), 1, 'reserved: leads');
	is(joins($two, 'reserved'), '', 'reserved: a session waits');
	is(acquire('reserved', 'd'), '', 'reserved: so does another');
	$before{alive} =
	  row('candidate', "election = 'reserved' AND kind = 'detached'",
		'seen_mono + seen_for AS until');
	is($one->query("SELECT leader_election.transfer('reserved', 'd')"),
		't', 'reserved: transfer');
	$one->query("SELECT leader_election.leave('reserved')");
	$before{reserved} = lease('reserved');
	is(joins($new, 'reserved'), '', 'reserved: not for a new session');
	is(joins($two, 'reserved'), '', 'reserved: nor for one that waits');
	is(acquire('reserved', 'other'),
		'', 'reserved: nor for another detached candidate');
	is(state_of('reserved'), 'vacant|reserved for d', 'reserved: but for one');
	is( $new->query("SELECT leader_election.leave('reserved')"),
		't', 'reserved: who may leave again');

	# ... or dies, because that was long ago.
	is(joins($one, 'deserted'), 1, 'deserted: leads');
	is(joins($two, 'deserted'), '', 'deserted: a session waits');
	is(acquire('deserted', 'd'), '', 'deserted: so does another');
	$before{deserted} =
	  row('candidate', "election = 'deserted' AND kind = 'detached'",
		qw(seen_mono seen_for));
	is($before{deserted}{seen_for},
		int($LEASE / 3) * 4, 'deserted: which lives for 4/3 of a lease');

	# Released at once, but not to be had before its time
	is(joins($four, 'hold'), 1, 'hold: leads');
	is(joins($two, 'hold'), '', 'hold: a session waits');
	$before{hold} = lease('hold');
	is( $four->query("SELECT leader_election.resign('hold', '$HOLD us')"),
		't', 'hold: resign');
	is(acquire('hold d', 'd1'), 1, 'hold, detached: leads');
	is(acquire('hold d', 'd2'), '', 'hold, detached: another waits');
	$before{'hold d'} = lease('hold d');
	is( any("SELECT leader_election.release('hold d', 1, '$HOLD_D us')"),
		't', 'hold, detached: release');
	foreach my $e ('hold', 'hold d')
	{
		is(state_of($e), 'vacant|hold', "$e: it is free at once");
		ok(!holds($e, 1), "$e: nobody leads");
		is( any("SELECT leader_election.leader('$e')"),
			'', "$e: anybody can tell");
		is(acquire($e, 'd3'), '', "$e: nobody gets it");
	}
	ok(!leads($four, 'hold'), 'hold: says the session that had it');
	is($four->query("SELECT leader_election.leave('hold')"), 't', 'leave');

	wait_for_clock($before{deserted}{seen_mono} + $LEASE * 2 / 3);
	is($one->query("SELECT leader_election.transfer('deserted', 'd')"),
		't', 'deserted: transfer');
	$one->query("SELECT leader_election.leave('deserted')");
	$after{deserted} = lease('deserted');
	is($after{deserted}{leader}, '', 'deserted: vacant');
	is($after{deserted}{successor}, 'd', 'deserted: reserved');
	is(acquire('deserted', 'other'), '', 'deserted: for nobody else');

	# The deadlines, as they come: nobody was early.
	($winner, $term) = acquire_in_turn('clings', 'd1', 'd2');
	is($winner, 'd2', 'clings: the candidate that it was asked to yield to leads');
	elected_at_ok('clings', 2, $after{clings}{deadline_mono}, 'clings');
	$three->result;
	$three->errors =~ /last true: (\d+)/;
	cmp_ok($1, '<', $after{clings}{deadline_mono},
		'clings: its leader knew when it was over (G3)');
	cmp_ok($1, '>', $after{clings}{deadline_mono} - $SOON - held_up(),
		'clings: and not long before');
	ok(!leads($two, 'clings'), 'clings: the waiting session does not lead');
	is(history('clings'), 'three yielded, d2 ', 'clings: history');

	elected_at_ok('hold', 2, $before{hold}{acquired_mono} + $HOLD, 'hold');
	ok(leads($two, 'hold'), 'hold: the waiting session leads');
	is(history('hold'), 'four resigned, two ', 'hold: history');

	foreach my $e ('yields', 'is terminated')
	{
		elected_at_ok($e, 2, $before{$e}{deadline_mono}, $e);
		ok(leads($one, $e), "$e: the waiting session leads");
		is(renew($e, 1), '', "$e: the lease cannot be renewed");
		is(history($e), 'd yielded, one ', "$e: history");
		is(acquire($e, 'd'), '', "$e: stands again");
	}

	elected_at_ok('expires', 2, $before{expires}{deadline_mono}, 'expiry');
	ok(leads($one, 'expires'), 'expiry: the waiting session leads');
	is(history('expires'), 'd expired, one ', 'expiry: history');
	is( $control->query(
			"SELECT ended_at >= acquired_at + $LEASE * interval '1 us'"
			  . " FROM leader_election.history WHERE election = 'expires'"
			  . ' AND term = 1'),
		't',
		'expiry: the same by the clock on the wall');
	is(renew('expires', 1), '', 'expiry: the lease cannot be renewed');

	wait_until(sub { !holds('expires alone', 1) }, 'the end of a lease');
	is(renew('expires alone', 1), '', 'expiry alone: nor with nobody else');
	is(acquire('expires alone', 'd'), 2, 'expiry alone: it is granted anew');
	is(renew('expires alone', 2), 2, 'expiry alone: and renewed');
	is(renew('expires alone', 1), '', 'expiry alone: by its new term');
	is(history('expires alone'), 'd expired, d ', 'expiry alone: history');

	is((acquire_in_turn('hold d', 'd2', 'd1'))[1],
		2, 'hold, detached: another leads');
	elected_at_ok('hold d', 2,
		$before{'hold d'}{acquired_mono} + $HOLD_D,
		'hold, detached');

	# The seats that were reserved in vain
	elected_at_ok('reserved', 2, $before{reserved}{reserved_mono}, 'reserved');
	ok(leads($two, 'reserved'), 'reserved: then the waiting session leads');
	cmp_ok((values %{ $before{alive} })[0],
		'>', $before{reserved}{reserved_mono}, 'reserved: although the candidate that it was kept for is alive');
	is(acquire('reserved', 'd'), '', 'reserved: it comes too late');
	is(history('reserved'), 'one transferred, two ', 'reserved: history');

	my $deserted = $before{deserted}{seen_mono} + $before{deserted}{seen_for};
	$row = elected_at_ok('deserted', 2, $deserted, 'deserted');
	ok(leads($two, 'deserted'), 'deserted: then the waiting session leads');
	cmp_ok($row->{acquired_mono}, '<', $after{deserted}{reserved_mono} + held_up(),
		'deserted: for the reservation is not over, but the candidate');
	is(history('deserted'), 'one transferred, two ', 'deserted: history');

	# It leaves: the seat is free at once.
	$clock = $control->query('SELECT leader_election._monotonic_clock()');
	is(acquire('reserved', 'd'), '', 'reserved again');
	joins($four, 'reserved');
	is($two->query("SELECT leader_election.transfer('reserved', 'd')"),
		't', 'reserved again: transfer');
	is( any("SELECT leader_election.leave('reserved', 'd')"),
		't', 'reserved again: it leaves');
	elected_at_ok('reserved', 3, $clock, 'reserved again');
}

watched_ok();
is_deeply(
	[ $listener->requests('.') ],
	[ 'clings 1 three, to d2', 'is terminated 1 d', 'yields 1 d' ],
	'and each request to yield');
$_->finish foreach $one, $two, $three, $four;
$node->stop;
done_testing();
