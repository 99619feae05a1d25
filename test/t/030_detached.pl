# Detached candidates and sessions in the same elections: who follows whom when a
# leader resigns, transfers, yields, leaves, dies or is terminated, and who sits
# out. What takes its time is in 033_detached_times.pl.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Detached;
use LeaderElection;
use MachineTime;
use Test::More;

serve();
watch_terms();

my ($one, $two, $four) = map { session($node, name => $_) } qw(one two four);

# -- Hand over hand: sessions and detached candidates follow each other.

{
	my $e = 'chain';
	my $before;

	is(joins($one, $e), 1, 'a session leads');
	is(acquire($e, 'd1'), '', 'a detached candidate follows');
	ok(holds($e, 1), 'anybody can check the session\'s term');

	is($one->query("SELECT leader_election.resign('$e')"),
		't', 'the session resigns');
	is(state_of($e), 'vacant|acquire()', 'nobody is elected without a call');
	is(joins($one, $e), '', 'not even the session that resigned, by its own call');
	is(acquire($e, 'd1'), 2, 'a detached candidate is, by its own call');
	is(acquire($e, 'd1'), '', 'but its namesake is not told the term');

	is( any("SELECT leader_election.release('$e', 1)"),
		'f', 'a term that is over cannot be given back');
	is( any("SELECT leader_election.release('$e', 2)"),
		't', 'the detached leader releases');
	is($one->query("SELECT leader_election.term('$e')"),
		3, 'the waiting session leads at once');
	is(acquire($e, 'd1'), '', 'and the detached candidate does not');

	is($one->query("SELECT leader_election.transfer('$e', 'd1')"),
		't', 'transfer from session to detached');
	is(state_of($e), 'vacant|reserved for d1', 'keeps the seat');
	is(acquire($e, 'd2'), '', 'no other detached candidate gets it');
	is(joins($two, $e), '', 'nor a session that joins');
	is(joins($one, $e), '', 'nor the session that had it');
	is(acquire($e, 'd1'), 4, 'the candidate that it was transferred to gets it');

	is( any("SELECT leader_election.transfer('$e', 4, 'two')"),
		't', 'transfer from detached to session');
	is($two->query("SELECT leader_election.term('$e')"),
		5, 'needs no call of that session');
	ok(!holds($e, 4), 'the term before is over');
	is(renew($e, 4), '', 'for ever');

	is( any("SELECT leader_election.request_yield('$e', 'd2') BETWEEN '0' AND '${LEASE}us'"),
		't',
		'a session is asked to yield');
	$listener->wait_for_event($e, 'yield_requested 5');
	is(joins($one, $e), '', 'while it leads nobody else does (G2)');
	is($two->query("SELECT leader_election.resign('$e')"), 't', 'it does');
	is(state_of($e), 'vacant|reserved for d2', 'in favour of the candidate named');
	is(acquire($e, 'd1'), '', 'and not of others');
	is(acquire($e, 'd2'), 6, 'who gets it');

	any("SELECT leader_election.request_yield('$e', 'd1')");
	$listener->wait_for_event($e, 'yield_requested 6');
	is(renew($e, 6), 6, 'a leader that is to yield leads');
	is( any("SELECT leader_election.release('$e', 6)"),
		't', 'a detached leader yields to another');
	is(acquire($e, 'd2'), '', 'not to itself');
	is(acquire($e, 'd1'), 7, 'but to the candidate named');

	any("SELECT leader_election.request_yield('$e', 'two')");
	$listener->wait_for_event($e, 'yield_requested 7');
	is( any("SELECT leader_election.release('$e', 7)"),
		't', 'a detached leader yields to a session');
	is($two->query("SELECT leader_election.term('$e')"),
		8, 'to the session named, although it is not the first in line');

	is($two->query("SELECT leader_election.leave('$e')"), 't', 'leave');
	is($one->query("SELECT leader_election.term('$e')"), 9, 'next');
	is( any("SELECT leader_election.leave('$e', 'd1')"),
		't', 'a detached candidate leaves');
	is(any("SELECT leader_election.leave('$e', 'd1')"), 'f', 'once');

	# With nobody but detached candidates left
	is(acquire($e, 'd2'), '', 'a live session leads');
	$before = lease($e);
	$one->kill;
	is((acquire_in_turn($e, 'd2'))[1], 10, 'a dead one is succeeded');
	cmp_ok(lease($e)->{acquired_mono},
		'<', $before->{deadline_mono},
		'long before the end of its lease');
	is( history($e),
		'one resigned, d1 resigned, one transferred, d1 transferred,'
		  . ' two yielded, d2 yielded, d1 yielded, two left,'
		  . ' one session ended, d2 ',
		'history');
	is( $control->query(
			"SELECT string_agg(left(kind, 1), '' ORDER BY term), "
			  . " bool_and(backend_pid IS NULL = (kind = 'detached'))"
			  . " FROM leader_election.history WHERE election = '$e'"),
		'sdsdsddssd|t',
		'of both kinds');
	any("SELECT leader_election.release('$e', 10)");
	$one = session($node, name => 'one');
}

# -- A candidate that gave up sits out until another was elected.

{
	my $e = 'sits out';

	is(acquire($e, 'd1'), 1, 'leads');
	is(acquire($e, 'd2'), '', 'another stands');
	any("SELECT leader_election.release('$e', 1)");
	is(acquire($e, 'd1'), '', 'who released sits out');
	is(acquire($e, 'd2'), 2, 'for the other candidate');
	any("SELECT leader_election.request_yield('$e')");
	$listener->wait_for_event($e, 'yield_requested 2');
	any("SELECT leader_election.release('$e', 2)");
	is(acquire($e, 'd2'), '', 'who yielded sits out');
	is(acquire($e, 'd1'), 3, 'for the candidate that did before');
	any("SELECT leader_election.leave('$e', 'd2')");
	any("SELECT leader_election.release('$e', 3)");
	is(acquire($e, 'd1'), 4, 'but not if nobody else stands');
	any("SELECT leader_election.release('$e', 4)");
}

# -- Nobody transfers to itself.

is(acquire('itself', 'd1'), 1, 'itself: leads');
any("SELECT leader_election.transfer('itself', 1, 'd1')");
is($pool[0]->sqlstate, '22023', 'itself: refused');
is(renew('itself', 1), 1, 'itself: leads on');

# -- A session leader is terminated: nobody has to wait.

{
	my ($clock, $winner, $term);

	foreach ([ 'ended', 'd', '' ], [ 'ended for', 'd', "to_candidate => 'd'," ])
	{
		my ($e, $name, $to) = @$_;
		my $victim = session($node, name => 'victim');
		my $mark = held_up();

		is(joins($victim, $e), 1, "$e: a session leads");
		is(acquire($e, $name), '', "$e: a detached candidate waits");
		is(joins($four, $e), '', "$e: and a session") unless $to eq '';
		$clock = $control->query('SELECT leader_election._monotonic_clock()');
		any("SELECT leader_election.request_yield('$e', $to"
			  . ' terminate => true)');
		($winner, $term) = acquire_in_turn($e, $name);
		is($term, 2, "$e: which leads");
		cmp_ok(lease($e)->{acquired_mono} - $clock,
			'<', $SOON + held_up($mark), "$e: without waiting for the lease to end");
		$victim->query('SELECT 1');
		like(
			$victim->errors,
			qr/terminating connection due to administrator command/,
			"$e: it was ended");
		is(history($e), 'victim session ended, d ', "$e: history");
	}
	{
		my $e = 'ended for session';
		my $victim = session($node, name => 'victim');

		is(joins($victim, $e), 1, "$e: a session leads");
		is(joins($_, $e), '', "$e: another waits") foreach $two, $four;
		$clock = $control->query('SELECT leader_election._monotonic_clock()');
		any("SELECT leader_election.request_yield('$e', 'four', true)");
		elected_at_ok($e, 2, $clock, $e);
		is($four->query("SELECT leader_election.term('$e')"),
			2, "$e: the session named leads");
		$victim->kill;
	}
}

watched_ok();
is_deeply(
	[ $listener->requests('^(?!ended)') ],
	[
		'chain 5 two, to d2',
		'chain 6 d2, to d1',
		'chain 7 d1, to two',
		'sits out 2 d2'
	],
	'and each request to yield, but for those that ended the term at once');
$_->finish foreach $one, $two, $four;
$node->stop;
done_testing();
