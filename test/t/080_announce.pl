# What listeners are told, and when: after the change, from another transaction,
# each change once, in order, however many there were since listeners were told
# last. Here a transaction holds the lock that every commit with NOTIFY takes for
# as long as the test wants, so that changes are known to be told together.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

# Seconds: far more than a change takes
my $PROMPT = 5;

my $node = new_server(config => NotifyLock::config() . q(
leader_election.lease_duration = '10min'
client_min_messages = warning
max_prepared_transactions = 1
));
my $admin = session($node, name => 'admin');
my $notify = NotifyLock->new($node);
my $listener = Announced->new($node);

sub candidates
{
	return map { session($node, name => $_) } @_;
}

sub release
{
	my ($election, $term) = @_;

	return $admin->query("SELECT leader_election.release('$election', $term)");
}

#
# One after the other: every kind of change
#

{
	my ($one, $two) = candidates(qw(one two));

	# The call that creates an election may grant it, too.
	is($one->query("SELECT leader_election.join('kinds', 'one')"), 1, 'leads');
	$two->query("SELECT leader_election.join('kinds', 'two')");
	is($one->query("SELECT leader_election.transfer('kinds', 'two')"),
		't', 'handed on');
	is($two->query("SELECT leader_election.resign('kinds')"), 't', 'resigns');
	wait_for($node, "SELECT leader_election.leader('kinds')", 'one');
	$one->kill;
	wait_for($node, "SELECT leader_election.leader('kinds')", 'two');
	$two->query("SELECT leader_election.leave('kinds')");
	my ($three) = candidates('three');
	is($three->query("SELECT leader_election.join('kinds', 'three')"), 5, 'leads');
	$listener->wait_for_count('kinds', 6);
	my ($resigned) = grep { /two resigned$/ } $listener->events('kinds');
	$listener->events_ok(
		'kinds',
		[
			'elected 1 one',
			'elected 2 two, one transferred',
			$resigned =~ /^vacated/ ? ($resigned, 'elected 3 one') :
			  ('elected 3 one, two resigned'),
			'elected 4 two, one session ended',
			'vacated 4, two left',
			'elected 5 three' ],
		'without a vacancy in between a change is one event (G10)');
	$listener->all_told_ok('^kinds$', 'kinds of changes');
	$three->finish;
}

#
# What is rolled back is not told, and what a caller notifies itself is.
#

$admin->query(q{DO $$ BEGIN
	PERFORM leader_election.acquire('rolled back', 'x');
	PERFORM pg_notify('leadership_changed', '{"election":"rolled back"}');
	RAISE 'no';
END $$});
is($admin->sqlstate, 'P0001', 'rolled back');
$admin->query(q{SELECT leader_election.acquire('by hand', 'x'),
	pg_notify('leadership_changed', '{"election":"by hand","event":"mine","term":0}')});
$listener->events_ok('by hand', [ 'mine 0', 'elected 1 x' ],
	'a caller that notifies as well');
$listener->events_ok('rolled back', [], 'rolled back: nothing happened');
$admin->query("BEGIN; SELECT leader_election.drop_election('fence 1')");
is($admin->sqlstate_of("PREPARE TRANSACTION 'p'"), '0A000', 'nor prepared');
$admin->query('ROLLBACK');

#
# Behind the lock of those that notify: nobody waits, and nothing is lost.
#

{
	my ($one, $two) = candidates(qw(one two));
	my $start;

	$one->query("SELECT leader_election.join('held', 'one')");
	$two->query("SELECT leader_election.join('held', 'two')");
	$listener->fence;
	$notify->hold;

	$start = machine_time();
	is($one->query("SELECT leader_election.transfer('held', 'two')"),
		't', 'held: transfer()');
	is($two->query("SELECT leader_election.transfer('held', 'one')"),
		't', 'held: and back');
	is($one->query("SELECT leader_election.resign('held', '0')"),
		't', 'held: resign()');
	wait_for($node, "SELECT leader_election.leader('held')", 'two', $PROMPT);
	is($one->query("SELECT leader_election.leave('held')"), 't', 'held: leave()');
	is($admin->acquire('held', 'x'), '', 'held: $admin->acquire() in vain');
	$two->kill;
	wait_for($node, "SELECT leader_election.leader('held') IS NULL", 't', $PROMPT);
	is($admin->acquire('held', 'x'), 5, 'held: $admin->acquire()');
	is($admin->query("SELECT term FROM leader_election.renew('held', 5)"),
		5, 'held: renew()');
	is($admin->query("SELECT leader_election.request_yield('held') > '0'"),
		't', 'held: request_yield()');
	is(release('held', 5), 't', 'held: release()');
	foreach my $term (6 .. 205)
	{
		$admin->acquire('held', "x$term") eq $term && release('held', $term) eq 't'
		  or fail("held: term $term");
	}
	cmp_ok(machine_time() - $start, '<', 30, 'held: nobody waited (G9)');
	is(scalar grep({ !/^elected [12] |, one transferred/ } $listener->events('held')),
		0, 'held: nothing was told yet');

	$notify->free;
	$listener->all_told_ok('^held$', 'held');
	is(scalar grep({ /^yield/ } $listener->events('held')),
		0, 'held: a request to yield in a term that is over is not told');
	$one->finish;
}

#
# A worker that queues for that lock hears of what happens meanwhile. When it was
# in vain it queues again after ten times as long, but elects at once.
#

{
	my $QUEUES = "SELECT count(*) FROM $WORKERS AND wait_event_type = 'Lock'";
	my @took;

	# In the odd rounds it gets the lock, in the even ones it does not.
	$notify->hold;
	foreach my $round (1 .. 12)
	{
		my ($one, $two) = candidates(qw(one two));
		my $start;

		$one->query("SELECT leader_election.join('heard $round', 'one')");
		$two->query("SELECT leader_election.join('heard $round', 'two')");
		wait_until(sub { $admin->query($QUEUES) eq '1' }, 'the worker to queue');
		$start = machine_time();
		$one->kill;
		wait_until(sub { ! -e "/proc/@{[ $one->backend_pid ]}" }, 'its end');
		$notify->free if $round % 2;
		wait_until(sub { $two->query("SELECT leader_election.is_leader('heard $round')") eq 't' },
			'a takeover');
		push @took, machine_time() - $start;
		$two->finish;
		$notify->hold if $round % 2;
	}
	$notify->free;
	cmp_ok((sort { $a <=> $b } @took)[-2], '<', 0.6, 'a takeover while the worker queues (G9)');
	note(join(', ', map { sprintf('%.0f', 1000 * $_) } @took), ' ms');
	$listener->all_told_ok('^heard', 'heard');
}

#
# Requests to yield
#

{
	my ($one, $two, $three) = candidates(qw(one two three));
	my $yields = sub {
		return [ grep { /^yield/ } $listener->events($_[0]) ];
	};

	$one->query("SELECT leader_election.join('asked', 'one')");
	$two->query("SELECT leader_election.join('asked', 'two')");
	$three->query("SELECT leader_election.join('asked', 'three')");
	$admin->query("SELECT leader_election.request_yield('asked')");
	$listener->wait_for_count('asked', 2);
	$admin->query("SELECT leader_election.request_yield('asked')");
	$admin->query("SELECT leader_election.request_yield('asked', 'three')");
	$listener->wait_for_count('asked', 3);
	$one->query("SELECT leader_election.resign('asked')");
	wait_for($node, "SELECT leader_election.leader('asked')", 'three');
	$admin->query("SELECT leader_election.request_yield('asked', 'two')");
	$listener->wait_for_count('asked', 5);
	$listener->fence;
	is_deeply(
		$yields->('asked'),
		[
			'yield_requested 1 one',
			'yield_requested 1 one, to three',
			'yield_requested 2 three, to two' ],
		'yield: each request that says something new is told');
	like(($listener->told('^asked$'))[1]{at}, qr/^\d{4}-\d\d-\d\dT[\d:.]+\+00:00/,
		'yield: with the time');
	$listener->all_told_ok('^asked$', 'yield');

	# A strategy asks, withdraws and asks again.
	$admin->query("SELECT leader_election.create_election('bully', 'bully')");
	$one->query("SELECT leader_election.join('bully', 'one', rank => 1)");
	my $ask = sub {
		$two->query("SELECT leader_election.join('bully', 'two', rank => 2)");
		wait_for($node, "SELECT state FROM leader_election.status
			WHERE election = 'bully'", 'yielding', $PROMPT);
	};
	my $withdraw = sub {
		$two->query("SELECT leader_election.leave('bully')");
		wait_for($node, "SELECT state FROM leader_election.status
			WHERE election = 'bully'", 'led', $PROMPT);
	};

	$ask->();
	$listener->wait_for_count('bully', 2);
	$withdraw->();
	$ask->();
	$listener->wait_for_count('bully', 3);
	is_deeply($yields->('bully'), [ ('yield_requested 1 one, to two') x 2 ],
		'yield: asked, withdrawn and asked again');
	$notify->hold;
	$withdraw->();
	$ask->();
	$withdraw->();
	$notify->free;
	$listener->fence;
	is(scalar @{ $yields->('bully') }, 2, 'yield: what is withdrawn is not told');
	$notify->hold;
	$ask->();
	$withdraw->();
	$ask->();
	$notify->free;
	$listener->fence;
	is(scalar @{ $yields->('bully') }, 3, 'yield: what is asked for is, once');
	$_->finish foreach $one, $two, $three;
	$listener->all_told_ok('^(asked|bully)$', 'yield');
}

#
# Dropped, and made again
#

sub drop_election
{
	my ($election) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$admin->query("SELECT leader_election.drop_election('$election')");
	return is($admin->sqlstate, '00000', "$election: dropped");
}

sub marks_ok
{
	my ($election, $count) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_for($node, "SELECT count(*) FROM leader_election.announced
		WHERE election = '$election'", $count);
	return pass("$election: $count marks");
}

is($admin->acquire('dropped', 'x'), 1, 'dropped: leads');
release('dropped', 1);
drop_election('dropped');
$listener->events_ok('dropped', [ 'elected 1 x', 'vacated 1, x resigned' ],
	'dropped: a vacant election, which is no event');
marks_ok('dropped', 0);

# Both lives behind one wait. Terms go on above those of what was dropped.
my $first = $admin->acquire('lives', 'x');
$listener->wait_for_count('lives', 1);
$notify->hold;
release('lives', $first);
drop_election('lives');
my $second = $admin->acquire('lives', 'y');
cmp_ok($second, '>', $first, 'lives: leads in the next');
release('lives', $second);
drop_election('lives');
my $third = $admin->acquire('lives', 'z');
$notify->free;
$listener->events_ok(
	'lives',
	[
		"elected $first x",
		"vacated $first, x resigned",
		"elected $second y",
		"vacated $second, y resigned",
		"elected $third z" ],
	'lives: each is told of (G10)');
marks_ok('lives', 1);

# Made and dropped before anything was told of it
$notify->hold;
is($admin->query("SELECT leader_election.create_election('short life');
	SELECT term > 0 FROM leader_election.acquire('short life', 'x')"),
	"\nt", 'short life: leads');
my $term = $admin->query("SELECT term FROM leader_election.lease WHERE election = 'short life'");
release('short life', $term);
drop_election('short life');
$notify->free;
$listener->events_ok('short life',
	[ "elected $term x", "vacated $term, x resigned" ], 'short life: told of');
marks_ok('short life', 0);

# The same in a moment in which the worker did not look at all
{
	my $pid = stop_worker($admin);

	$admin->query("SELECT leader_election.create_election('unseen')");
	$term = $admin->acquire('unseen', 'x');
	release('unseen', $term);
	drop_election('unseen');
	resume_process($pid);
	$listener->events_ok('unseen',
		[ "elected $term x", "vacated $term, x resigned" ], 'unseen: told of');
	marks_ok('unseen', 0);
}

# Nothing is told of what never was led.
$admin->query("SELECT leader_election.create_election('never led')");
$admin->query("SELECT leader_election.drop_election('never led')");
$listener->events_ok('never led', [], 'never led: nothing to tell');

#
# Channels
#

{
	my $own = Announced->new($node, channel => 'own channel');
	my $new = Announced->new($node, channel => 'new channel');
	my $on = sub {
		my ($channel) = @_;
		return join(', ', map { "$_->{event} $_->{term}" } $channel->told('^tuned$'));
	};

	$admin->query("SELECT leader_election.create_election('tuned', channel => 'own channel')");
	my $t1 = $admin->acquire('tuned', 'x');
	wait_until(sub { $on->($own) eq "elected $t1" }, 'its own channel');
	$admin->query("SELECT leader_election.alter_election('tuned', channel => 'new channel')");
	release('tuned', $t1);
	wait_until(sub { $on->($new) eq "vacated $t1" }, 'its new channel');

	# What is left to be told of a dropped election goes where it went before.
	$notify->hold;
	my $t2 = $admin->acquire('tuned', 'x');
	release('tuned', $t2);
	drop_election('tuned');
	$notify->free;
	wait_until(sub { $on->($new) =~ / $t2, vacated $t2$/ }, 'what is left');
	$listener->fence;
	is($on->($own), "elected $t1", 'channel: the old one');
	is($on->($new), "vacated $t1, elected $t2, vacated $t2", 'channel: the new one');
	is($on->($listener), '', 'channel: not the default one');
	$_->session_of->finish foreach $own, $new;
}

$admin->finish;
$node->stop;
done_testing();
