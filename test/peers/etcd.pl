# etcd's tests of concurrency.Election, Session and Mutex
# (tests/integration/v3_election_test.go, clientv3/concurrency).

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../t";
use Peers;

peer('etcd');

scenario('followers see each of three leaders', sub {
	my ($e) = @_;
	my @leaders = people(qw(l1 l2 l3));
	my @followers = people(qw(f1 f2 f3));
	my @known = (undef, undef);

	campaigns($_, $e) foreach @leaders;
	foreach my $n (1 .. 3)
	{
		my $leader = shift @leaders;

		same($leader->result, $n, "$leader->{name} is elected");
		same(follow_leader($_, $e, @known), "$n|l$n", "$_->{name} sees it") foreach @followers;
		@known = ($n, "l$n");
		$leader->query("SELECT leader_election.leave('$e')");
	}
	same(status($e, 'state, waiting_for'), 'vacant|no candidates', 'then nobody is left');
});

scenario('the leader closes its session', sub {
	my ($e) = @_;
	my ($foo, $bar, $watcher) = people(qw(foo bar watcher));

	campaigns($foo, $e);
	same($foo->result, 1, 'foo leads');
	campaigns($bar, $e);
	$foo->finish;
	same(follow_leader($watcher, $e, 1, 'foo'), '2|bar', 'an observer sees bar');
	same($bar->result, 2, 'bar is told');
});

# Here a second campaign changes nothing of a leader, and renew() does.
scenario('a leader campaigns again', sub {
	my ($e) = @_;
	my $one = people('one');

	campaigns($one, $e, q(metadata => '"abc"'));
	same($one->result, 1, 'leads');
	campaigns($one, $e, q(metadata => '"def"'));
	same($one->result, 1, 'does not wait for itself');
	same(status($e, 'metadata'), '"abc"', 'what it says of itself is as it was');
	$one->query(qq(SELECT leader_election.renew('$e', metadata => '"def"')));
	same(status($e, 'metadata'), '"def"', 'until it renews with something else');
	same($one->sqlstate_of("CALL leader_election.campaign('$e', 'another')"), 'LE004',
		'under another name it may not');
});

scenario('a name that begins another one', sub {
	my ($e) = @_;
	my ($one, $two) = people(qw(one two));

	same(joins($one, "$e/x"), 1, 'the longer one is led');
	campaigns($two, $e, "timeout => '100 s'");
	same($two->result, 1, 'the shorter one is free');
});

scenario('a restart goes on with the same lease', sub {
	my ($e) = @_;
	my ($before, $after) = people(qw(before after));

	same($before->acquire($e, 'abc'), 1, 'leads');
	same(acquire($e, '123'), '', 'another waits');
	$before->kill;
	same($after->query("SELECT term FROM leader_election.renew('$e', 1)"), 1,
		'whoever knows the term goes on');
	same(status($e, 'leader, term'), 'abc|1', 'nothing has changed');
});

# Here a session's leadership ends with the connection, and cannot be taken up.
scenario('a restart of a session', sub {
	my ($e) = @_;
	my ($abc, $waits, $after) = people(qw(abc waits abc));

	same(joins($abc, $e), 1, 'leads');
	campaigns($waits, $e);
	$abc->kill;
	same($waits->result, 2, 'the next in line leads');
	same(joins($after, $e), '', 'the same name on another connection does not');
});

scenario('an observer and other elections', sub {
	my ($e) = @_;
	my $watcher = people('watcher');

	same(acquire($e, 'one'), 1, 'one leads');
	$watcher->query_async("CALL leader_election.wait_for_change('$e', 1, 'one', timeout => '100 s')");
	foreach my $term (1 .. 3)
	{
		acquire("$e, no: of another", 'foo');
		release("$e, no: of another", $term);
	}
	wait_told($node);
	same($watcher->finished, '', 'is not woken by these');
	release($e, 1);
	same($watcher->result, '|', 'but by a vacancy');
});

scenario('an observer that comes late', sub {
	my ($e) = @_;
	my $watcher = people('watcher');

	acquire($e, 'one');
	release($e, 1);
	acquire($e, 'two');
	any('VACUUM (FULL) leader_election.lease, leader_election.history');
	same(follow_leader($watcher, $e), '2|two', 'is told at once of who leads now');
});

scenario("a waiter's session ends", sub {
	my $e = 'a waiter ends';
	my ($one, $two) = people(qw(one two));

	same(joins($one, $e), 1, 'one leads');
	campaigns($two, $e);
	any('SELECT pg_terminate_backend(' . $two->backend_pid . ')');
	$two->result;
	same($two->sqlstate =~ /^(57P01|08006)$/, 1, 'two is told');
	wait_gone($node, $two);
	$one->query("SELECT leader_election.leave('$e')");
	everybody_has_left($e);
	same(any("SELECT string_agg(leader, ' ') FROM leader_election.history WHERE election = '$e'"),
		'one', 'and is not elected');
});

scenario("a waiter's campaign is cancelled", sub {
	my $e = 'a waiter is cancelled';
	my ($one, $two) = people(qw(one two));

	same(joins($one, $e), 1, 'one leads');
	campaigns($two, $e);
	any('SELECT pg_cancel_backend(' . $two->backend_pid . ')');
	$two->result;
	same($two->sqlstate, '57014', 'two is told');
	$one->query("SELECT leader_election.leave('$e')");
	everybody_has_left($e);
	same(any("SELECT string_agg(leader, ' ') FROM leader_election.history WHERE election = '$e'"),
		'one', 'and is not elected');
	same(term_in($two, $e), '', 'as it knows');
});

scenario('elected after a wait of more than a lease', sub {
	my ($e) = @_;

	create_election($e, $LEASE);
	my ($one, $two) = people(qw(one two));

	$one->query("SELECT leader_election.join('$e', 'one', auto_renew => false)");
	my $since = lease($e)->{acquired_mono};

	campaigns($two, $e, 'auto_renew => false');
	wait_until(sub {
			$one->query("SELECT leader_election.renew('$e')");
			return $control->query('SELECT leader_election._monotonic_clock()') > $since + 1.2 * $LEASE;
		}, 'more than a lease');
	$one->query("SELECT leader_election.resign('$e')");
	same($two->result, 2, 'is elected');
	same(term_in($two, $e), 2, 'and leads');
	my $lease = lease($e);

	same($lease->{deadline_mono} - $lease->{acquired_mono}, $LEASE, 'for a whole lease from then on');
});

scenario("a session's own time to live", sub {
	my $e = 'its own time';

	create_election($e, 90_000_000);
	my $ms = any("SELECT remaining_ms FROM leader_election.acquire('$e', 'one')");

	at_most($ms, 90_000, 'is not longer');
	since(0, $ms, 70_000, 'nor the default');
});

done_testing();
