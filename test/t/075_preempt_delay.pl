# preempt_delay: a challenger stands for so long before the leader is asked to
# yield to it.  It delays no vacant seat.
#
# Where the worker has to wake up by itself, the lease is so long that no renewal
# wakes it.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use Rules;
use Test::More;

my $LONG = "lease_duration => '1 h'";

serve();

sub alter
{
	my ($election, $settings) = @_;

	$admin->query("SELECT leader_election.alter_election('$election', $settings)");
	die $admin->errors if $admin->errors;
	return;
}

sub stood
{
	my ($election, $candidate) = @_;

	return $admin->query(
		"SELECT stood_mono FROM leader_election.candidate
			WHERE election = '$election' AND candidate = '$candidate'");
}

# --- No request before, one exactly then

{
	create('waits', 'bully', "preempt_delay => '1 h', $LONG");
	my @c = (candidate('waits', 'low', 1), candidate('waits', 'high', 2));
	worker_looks();
	is(lease('waits', 'leader, yielding'), 'low|f', 'waits: the leader is not asked to yield');
	is( $admin->query(
			"SELECT candidate, stood BETWEEN '0' AND '10 min'
				FROM leader_election.candidates WHERE election = 'waits' ORDER BY 1"),
		"high|t\nlow|t", 'waits: the view shows for how long they have stood');
	alter('waits', "preempt_delay => '0'");
	is_asked('waits', 'high', 'waits: it is when the delay is lifted');
	alter('waits', "preempt_delay => '1 h'");
	comes_true("NOT yielding AND leader = 'low' FROM leader_election.lease
		WHERE election = 'waits'", 'waits: a longer delay takes that back');
	$c[0]->kill;
	leads_soon('waits', 'high', 'waits: a vacant seat is filled at once');
	$c[1]->finish;

	foreach my $crowd (0, 1000)
	{
		my $e = "wakes $crowd";
		my @asked;

		create($e, 'bully', "preempt_delay => '1500 ms', $LONG");
		my $low = candidate($e, 'low', 1);
		$admin->query("SELECT count(*) FROM generate_series(1, $crowd) n,
			LATERAL leader_election.acquire('$e', 'c' || n, 0)");
		my $high = candidate($e, 'high', 2);
		wait_until(
			sub {
				@asked = split /\|/, $admin->query(
					"SELECT l.yielding, c.stood >= '1500 ms', c.stood
						FROM leader_election.lease l
						JOIN leader_election.candidates c USING (election)
						WHERE l.election = '$e' AND c.candidate = 'high'");
				return $asked[0] eq 't';
			},
			"$e: a request");
		is($asked[1], 't', "$e: it is asked, and not before: after $asked[2]");
		is(lease($e, 'successor'), 'high', "$e: to yield to that one");
		$_->finish foreach $low, $high;
	}
}

# --- A preferred candidate that crashes again and again; the leader goes when it
# is asked to.  Returns the number of terms.

sub crash_often
{
	my ($e, $delay) = @_;

	create($e, 'bully', "preempt_delay => '$delay'");
	my $steady = candidate($e, 'steady', 1);
	foreach (1 .. 12)
	{
		my $preferred = candidate($e, 'preferred', 2);

		worker_looks();
		$steady->query("SELECT leader_election.resign('$e')
			FROM leader_election.lease WHERE election = '$e' AND yielding");
		$preferred->kill;
		wait_gone($node, $preferred);
		leads_soon($e, 'steady', "$e: the steady one leads");
	}
	$steady->finish;
	return $admin->query("SELECT count(*) FROM leader_election.history
		WHERE election = '$e'");
}

is(crash_often('calm', '1 h'), 1,
	'a preferred candidate that crashes: one term (keepalived#80, druid#4699, kafka#2758)');
cmp_ok(crash_often('flaps', '0'), '>', 12, 'it changes hands each time without the delay');

# --- spread

{
	create($_, 'spread', "preempt_delay => '1 h', $LONG") foreach qw(s1 s2);
	my $a = candidate('s1', 'a');
	stand_as($a, 's2', 'a');
	my $b = candidate('s1', 'b');
	stand_as($b, 's2', 'b');
	my $asked = "count(*) FROM leader_election.lease
		WHERE election IN ('s1', 's2') AND yielding AND successor = 'b'";
	worker_looks();
	is($admin->query("SELECT $asked"), 0, 'spread: it waits, too');
	alter($_, "preempt_delay => '1 s'") foreach qw(s1 s2);
	comes_true("(SELECT $asked) = 1", 'spread: one is asked for then');
	$_->finish foreach $a, $b;
}

# --- What moves the time that a candidate has stood for, and what does not

{
	create('given up', 'bully', "preempt_delay => '1 h', $LONG");
	my @c = (candidate('given up', 'a', 1), candidate('given up', 'b', 1));
	my ($a, $b) = map { stood('given up', $_) } qw(a b);
	$c[0]->query("SELECT leader_election.resign('given up')");
	is(leader('given up'), 'b', 'given up: by resign()');
	is(stood('given up', 'a'), $a, 'given up: its time goes on');
	$c[1]->query("SELECT leader_election.transfer('given up', 'a')");
	is(leader('given up'), 'a', 'given up: by transfer()');
	is(stood('given up', 'b'), $b, 'given up: nor does that move it');
	stand_as($c[1], 'given up', 'b', 5);
	is(stood('given up', 'b'), $b, 'given up: nor does a rank');
	$c[1]->query("SELECT leader_election.leave('given up')");
	stand_as($c[1], 'given up', 'b', 5);
	cmp_ok(stood('given up', 'b'), '>', $b, 'given up: a new candidacy begins anew');
	$_->finish foreach @c;

	# The lease of a runs out; that of b is renewed, so that no third term begins
	# before we have looked.
	create('over', 'race', "preempt_delay => '1 h', lease_duration => '2 s'");
	@c = (candidate('over', 'a', 'auto_renew => false'), candidate('over', 'b'));
	($a, $b) = map { stood('over', $_) } qw(a b);
	leads_soon('over', 'b', 'over: a lease runs out');
	is( $admin->query("SELECT stood_mono - $a >= 2000000 AND stood_mono <=
			(SELECT acquired_mono FROM leader_election.lease WHERE election = 'over')
			FROM leader_election.candidate WHERE election = 'over' AND candidate = 'a'"),
		't', 'over: its time begins anew');
	is(stood('over', 'b'), $b, "over: another's does not");
	$_->finish foreach @c;
	like(history('over'), qr/^a expired, b/, 'over: in fact');

	create('run out', 'race', "preempt_delay => '1 h', lease_duration => '3 s'");
	@c = (candidate('run out', 'a'), candidate('run out', 'b'));
	$a = stood('run out', 'a');
	$admin->query("SELECT leader_election.request_yield('run out')");
	leads_soon('run out', 'b', 'run out: a request to yield is let run out');
	like(history('run out'), qr/^a yielded, b/, 'run out: which is giving up');
	is(stood('run out', 'a'), $a, 'run out: its time goes on');
	$_->finish foreach @c;

	# While there is no delay, too: it may be set later.
	foreach my $delay ('1 h', '0')
	{
		create("detached $delay", 'bully',
			"preempt_delay => '$delay', lease_duration => '4 s'");
		acquire("detached $delay", 'a');
		$a = stood("detached $delay", 'a');
		my $b = candidate("detached $delay", 'b');
		leads_soon("detached $delay", 'b', "detached, $delay: a lease runs out");
		cmp_ok(stood("detached $delay", 'a'), '>=', $a + 4_000_000,
			"detached, $delay: its time begins anew");
		$b->finish;
	}
}

# --- A crash takes the row of a detached leader; its next renewal makes it anew

{
	create('crash', 'bully', "preempt_delay => '1 h', $LONG");
	my $term = acquire('crash', 'a');
	$node->stop('immediate');
	$node->start;
	$admin = session($node, name => 'admin');
	is(stood('crash', 'a'), '', 'crash: the row is gone');
	$admin->query("SELECT leader_election.renew('crash', $term)");
	is(stood('crash', 'a'), lease('crash', 'acquired_mono'),
		'crash: it has stood since its term began');
}

never_two_leaders();
$node->stop;
done_testing();
