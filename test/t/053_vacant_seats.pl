# Vacant seats: which candidates the rules pass over, for which one they keep the
# seat and how that ends, and for how long they elect nobody.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use Rules;
use Test::More;
use Worker;

serve();

#
# Sitting out: a candidate that gave up is passed over until another was elected.
#

my @strategies = qw(race lowest bully ring zab spread);
my $one = session($node, name => 'one');
my $two = session($node, name => 'two');
create("out $_", $_, "lease_duration => '1 min'") foreach @strategies;
stand_as($one, "out $_", 'one', '5, 5') foreach @strategies;
$one->query("SELECT leader_election.resign('out $_')") foreach @strategies;
worker_looks();
is(waiting_for("out $_"), 'candidates that do not sit out',
	"$_: alone, a leader that resigned is not elected again")
  foreach @strategies;
stand_as($one, "out $_", 'one') foreach @strategies;
is($one->query("SELECT leader_election.is_leader('out $_')"),
	't', "$_: but by its own call")
  foreach @strategies;
stand_as($two, "out $_", 'two', '9, 9') foreach @strategies;
$one->query("SELECT leader_election.resign('out $_')") foreach @strategies;
is(leader("out $_"), 'two', "$_: the other candidate is next") foreach @strategies;
worker_looks();
$two->query("SELECT leader_election.leave('out $_')") foreach @strategies;
is(leader("out $_"), 'one', "$_: and then the first again")
  foreach @strategies;
$_->finish foreach $one, $two;

# The same for a leader that an operator asked to yield, and that let its lease
# run out.
$one = session($node, name => 'one');
$two = session($node, name => 'two');
foreach my $strategy (@strategies)
{
	create($_, $strategy) foreach "asked $strategy", "asked alone $strategy";
	stand_as($one, $_, 'one', 5)
	  foreach "asked $strategy", "asked alone $strategy";
	stand_as($two, "asked $strategy", 'two', 5);
}
$admin->query(
	"SELECT count(leader_election.request_yield(election)) FROM leader_election.election WHERE election LIKE 'asked %'"
);
foreach my $strategy (@strategies)
{
	leads_soon("asked $strategy", 'two', "$strategy: asked, another one is next");
	comes_true("leader_election.leader('asked alone $strategy') IS NULL",
		"$strategy: asked, and alone");
}
worker_looks();
foreach my $strategy (@strategies)
{
	is(history("asked $strategy"), 'one yielded, two',
		"$strategy: the leader that was asked does not lead again");
	is(waiting_for("asked alone $strategy"), 'candidates that do not sit out',
		"$strategy: not even alone");
	like(stand_as($one, "asked alone $strategy", 'one'),
		qr/^\d+$/, "$strategy: but by its own call");
}
$_->finish foreach $one, $two;

# A leader that its strategy had yield to somebody who then vanishes leads again: it did
# not want to give up, and does not know that it should call.
create('vanished', 'bully');
my $low = candidate('vanished', 'low', 1);
acquire('vanished', 'high', 2);
is_asked('vanished', 'high', 'vanished: asked to yield to a detached one');
comes_true("leader_election.leader('vanished') IS NULL",
	'vanished: the lease runs out');
leads_soon('vanished', 'low',
	'vanished: the leader is elected again when nobody comes');
$low->finish;

create('vanished too', 'bully');
$low = candidate('vanished too', 'low', 1);
my $high = candidate('vanished too', 'high', 2);
is_asked('vanished too', 'high', 'vanished: asked to yield to a session');
my $worker = stop_worker($admin);
$high->kill;
comes_true("leader_election.leader('vanished too') IS NULL",
	'vanished: which dies unnoticed before the deadline');
resume_process($worker);
leads_soon('vanished too', 'low', 'vanished: the leader is elected again');
$low->finish;

# A seat that is kept for one that dies is not kept for it when it comes back,
# be that before the worker has noticed: better ones are next.
foreach my $election ('named', 'named, unnoticed')
{
	create($election, 'lowest');
	$one = candidate($election, 'one', 1);
	my $worse = candidate($election, 'worse', 9);
	$admin->query(
		"SELECT leader_election.request_yield('$election', 'worse')");
	$one->query("SELECT leader_election.resign('$election', '" . 4 * slowness() . " s')");
	is(waiting_for($election), 'hold', "$election: nobody is elected yet");
	my $better = candidate($election, 'better', 2);
	my $stopped = $election =~ /unnoticed/ ? stop_worker($admin) : 0;
	$worse->kill;
	wait_gone($node, $worse);
	worker_looks() unless $stopped;
	$worse = candidate($election, 'worse', 9);
	is(waiting_for($election), 'hold', "$election: still nobody");
	resume_process($stopped) if $stopped;
	comes_true("leader_election.leader('$election') IS NOT NULL",
		"$election: the hold is over");
	is(leader($election), 'better', "$election: a better one is elected");
	$_->finish foreach $one, $worse, $better;
}

# A successor who was named by an operator or a leader, and may not stand any
# more when its turn comes, is none: the rules decide, when the leader gives up,
# at its deadline, and while a seat is kept.
$admin->query('CREATE ROLE le_group; CREATE ROLE le_member LOGIN;
	GRANT USAGE ON SCHEMA leader_election TO le_member;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO le_member');
foreach my $end ('resigns', 'expires', 'transfers', 'lets wait')
{
	my $election = "revoked, $end";

	create($election, 'lowest', "candidate_role => 'le_group'");
	$admin->query('GRANT le_group TO le_member');
	$one = candidate($election, 'one', 1);
	my $better = candidate($election, 'better', 2);
	my $worse = session($node, name => 'worse', user => 'le_member');
	if ($end =~ /transfers|lets wait/)
	{
		$worse->query(
			"SELECT leader_election.acquire('$election', 'worse', 9)");
		$admin->query("SELECT leader_election.alter_election('$election', lease_duration => '1 h')");
		$worse->query(
			"SELECT leader_election.acquire('$election', 'worse', 9)");
	}
	else
	{
		stand_as($worse, $election, 'worse', 9);
	}
	die $worse->errors if $worse->errors;
	if ($end eq 'transfers')
	{
		$one->query("SELECT leader_election.transfer('$election', 'worse')");
		is(waiting_for($election), 'reserved for worse',
			"$election: the seat is kept for it");
		$admin->query('REVOKE le_group FROM le_member');
		isnt(waiting_for($election), 'reserved for worse',
			"$election: and then no more");
		is( $worse->sqlstate_of(
				"SELECT leader_election.acquire('$election', 'worse')"),
			'42501',
			"$election: it may not stand any more");
		$better->query("SELECT leader_election.join('$election', 'better')");
	}
	else
	{
		$admin->query(
			"SELECT leader_election.request_yield('$election', 'worse')");
		$admin->query('REVOKE le_group FROM le_member');
		$one->query("SELECT leader_election.resign('$election')")
		  if $end ne 'expires';
	}
	# One that has transferred its lease does not sit out.
	leads_soon(
		$election,
		$end eq 'transfers' ? 'one' : 'better',
		"$election: the next in order leads");
	unlike(history($election), qr/worse/, "$election: and nobody else did");
	$_->finish foreach $one, $better, $worse;
}

# What keeps a seat vacant for a while is named first: also where nobody stands.
create('held', 'race');
$one = candidate('held', 'one');
$one->query("SELECT leader_election.resign('held', '1 h')");
is(waiting_for('held'), 'hold', 'held: while somebody stands');
$one->query("SELECT leader_election.leave('held')");
is(waiting_for('held'), 'hold', 'held: and while nobody does');
$one->finish;
create('held by term', 'race');
my $held = acquire('held by term', 'one');
$admin->query("SELECT leader_election.release('held by term', $held, '1 h')");
$admin->query("SELECT leader_election.leave('held by term', 'one')");
is(waiting_for('held by term'), 'hold', 'held: after release() and leave()');
create('held, no quorum', 'race');
acquire('held, no quorum', 'one');
$admin->query("SELECT leader_election.release('held, no quorum', 1, '1 h')");
$admin->query(
	"SELECT leader_election.alter_election('held, no quorum', quorum => 5)");
is(waiting_for('held, no quorum'), 'hold', 'held: and without a quorum');
create('delayed', 'race', "takeover_delay => '1 h'");
$one = candidate('delayed', 'one');
$one->kill;
comes_true(
	"waiting_for = 'takeover delay' FROM leader_election.status WHERE election = 'delayed' AND candidates = 0",
	'delayed: while nobody stands');
$admin->query("DELETE FROM leader_election.history WHERE election = 'delayed'");
is(waiting_for('delayed'), 'takeover delay', 'delayed: and once history is gone');

#
# takeover_delay
#

create($_, 'lowest', "takeover_delay => '2 s'") foreach qw(died ran-out resigned);
$one = session($node, name => 'one');
$two = session($node, name => 'two');
stand_as($one, $_, 'one') foreach qw(died resigned);
acquire('ran-out', 'one');
stand_as($two, $_, 'two') foreach qw(died ran-out resigned);
$one->query("SELECT leader_election.resign('resigned')");
is($two->query("SELECT leader_election.is_leader('resigned')"),
	't', 'delay: none after a resignation');
my $deadline = lease('ran-out', 'deadline_mono');
my $alive = $admin->query('SELECT leader_election._monotonic_clock()');
$one->kill;
foreach my $election (qw(died ran-out))
{
	comes_true(
		"waiting_for = 'takeover delay' FROM leader_election.status WHERE election = '$election'",
		"delay: $election: nobody is elected");
	stand_as($two, $election, 'two');
	leads_soon($election, 'two', "delay: $election: until it is over");
}
cmp_ok(lease('died', 'acquired_mono'),
	'>=', $alive + 2_000_000, 'delay: after a death');
cmp_ok(lease('ran-out', 'acquired_mono'),
	'>=', $deadline + 2_000_000, 'delay: after a deadline');
is(history('died'), 'one session ended, two', 'delay: died');
is(history('ran-out'), 'one expired, two', 'delay: ran out');
$two->finish;

never_two_leaders();
$node->stop;
done_testing();
