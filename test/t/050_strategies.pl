# The strategies: who is elected, who makes way and when, to whom a leader may
# transfer its lease, and how spread shares elections out.
#
# Vacant seats are in 053_vacant_seats.pl.

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
# The classical examples.  Six processes stand in one election of each strategy,
# the highest first; their ids are their ranks.
#

my @classical = qw(bully ring lowest race);
my %process;

create($_, $_, "lease_duration => '1 min'") foreach @classical;

sub start_process
{
	my ($id) = @_;

	$process{$id} = session($node, name => "process $id");
	stand_as($process{$id}, $_, $id, $id) foreach @classical;
	return;
}

start_process($_) foreach reverse 1 .. 6;
is(leader($_), 6, "$_: 6 leads") foreach @classical;

$process{6}->kill;
leads_soon('bully', 5, 'bully: 6 dies, 5 leads');
leads_soon('ring', 5, 'ring: 6 dies, 5 leads');
leads_soon('lowest', 1, 'lowest: the leader dies, 1 leads');
leads_soon('race', 5, 'race: the first dies, the second leads');
start_process(6);
start_process(0);
is_asked('bully', 6, 'bully: 6 returns, 5 is asked to yield to it');
$process{5}->query("SELECT leader_election.resign('bully')");
is($process{6}->query("SELECT leader_election.is_leader('bully')"),
	't', 'bully: 6 takes over (client-go#587, oban#1341)');
worker_looks();
is(lease('ring', 'leader, yielding'),
	'5|f', 'ring: 6 returns and does not take over');
is(lease('lowest', 'leader, yielding'),
	'1|f', 'lowest: a lower one does not take over');
is(lease('race', 'leader, yielding'), '5|f', 'race: nobody takes over');

# One that gave up for a higher one does not bully it when that has gone and
# come again; nor does a candidate that resigned, until its rank changes.
$process{6}->query("SELECT leader_election.resign('bully')");
is(leader('bully'), 5, 'bully: 6 resigns, 5 leads');
worker_looks();
is(lease('bully', 'leader, yielding'), '5|f',
	'bully: a candidate that resigned does not preempt');
stand_as($process{6}, 'bully', 6, 6);
worker_looks();
is(lease('bully', 'leader, yielding'),
	'5|f', 'bully: nor for joining again without leaving');
stand_as($process{6}, 'bully', 6, 7);
is_asked('bully', 6, 'bully: until its rank changes');
stand_as($process{6}, 'bully', 6, 5);
comes_true("NOT yielding FROM leader_election.lease WHERE election = 'bully'",
	'bully: and is higher still');

# race: who resigned waits for its turn.
is($process{5}->query("SELECT leader_election.resign('race')"),
	't', 'race: 5 resigns');
my @turns = (leader('race'));
while ($turns[-1] ne '5' && @turns < 10)
{
	$process{ $turns[-1] }->query("SELECT leader_election.resign('race')");
	push @turns, leader('race');
}
is("@turns", '4 3 2 1 6 0 5', 'race: in the order of joining, and then of resigning');

$process{5}->kill;
leads_soon('ring', 6, 'ring: 5 dies, 6 leads');
is( $process{1}->query("SELECT leader_election.resign('lowest')"),
	't', 'lowest: 1 resigns');
is(leader('lowest'), 0, 'lowest: 0 leads');
is(leader('race'), 4, 'race: the next one leads')
  if leads_soon('race', 4, 'race: 5 dies');
$_->finish foreach values %process;

# zab: the most advanced wins over a higher rank, rank decides among equals, and
# two of five elect nobody.
create('zab', 'zab', "quorum => 3");
my %zab = (
	behind => candidate('zab', 'behind', '9, 41'),
	advanced => candidate('zab', 'advanced', '1, 42'));
worker_looks();
is(waiting_for('zab'), 'quorum 2 of 3', 'zab: two elect nobody');
is(leader('zab'), '', 'zab: nobody leads');
$zab{equal} = candidate('zab', 'equal', '2, 42');
leads_soon('zab', 'equal', 'zab: with the third, rank decides among equals');
is(history('zab'), 'equal', 'zab: and nobody led before');
$zab{equal}->kill;
comes_true("leader_election.leader('zab') IS NULL", 'zab: the leader dies');
worker_looks();
is(waiting_for('zab'), 'quorum 2 of 3', 'zab: two elect nobody again');
$zab{late} = candidate('zab', 'late', '8, 42');
leads_soon('zab', 'late', 'zab: the most advanced of the highest rank');
$zab{equal} = candidate('zab', 'ahead', '9, 99');
worker_looks();
is(lease('zab', 'leader, yielding'), 'late|f',
	'zab: a candidate that is ahead does not take over');
$_->finish foreach values %zab;

#
# Preemption
#

# Asked politely, and obeyed at once
create('polite', 'bully', "lease_duration => '1 min'");
my $low = candidate('polite', 'low', 1);
my $high = candidate('polite', 'high', 2);
is_asked('polite', 'high', 'polite: the leader is asked to yield');
is($low->query("SELECT leader_election.is_leader('polite')"),
	't', 'polite: it leads on');
is($high->query("SELECT leader_election.is_leader('polite')"),
	'f', 'polite: and the higher one does not (G1)');
is($low->query("SELECT yielding FROM leader_election.renew('polite')"),
	't', 'polite: it is told when it renews');
is( $admin->query(
		"SELECT state, leader FROM leader_election.status WHERE election = 'polite'"
	),
	'yielding|low',
	'polite: the status says so');
is($low->query("SELECT leader_election.resign('polite')"),
	't', 'polite: it resigns');
is($high->query("SELECT leader_election.is_leader('polite')"),
	't', 'polite: and the higher one leads as soon as that is done');
is(history('polite'), 'low yielded, high', 'polite: history');
$listener->events_ok(
	'polite',
	[
		'elected 1 low',
		'yield_requested 1 low, to high',
		'elected 2 high, low yielded'
	],
	'polite: announced, with the successor, and without a vacancy (G10)');
$_->finish foreach $low, $high;

# Not obeyed: the lease is not renewed any more, and ends at its deadline.
create('stubborn', 'bully');
$low = candidate('stubborn', 'low', 1);
is_renewed('stubborn', 'stubborn: renewed as long as nobody wants it');
$high = candidate('stubborn', 'high', 2);
is_asked('stubborn', 'high', 'stubborn: asked to yield');
my $deadline = lease('stubborn', 'deadline_mono');
leads_soon('stubborn', 'high', 'stubborn: the higher one leads in the end');
cmp_ok(lease('stubborn', 'acquired_mono'),
	'>=', $deadline, 'stubborn: not before the deadline (G2)');
is(history('stubborn'), 'low yielded, high', 'stubborn: history');
is($low->query("SELECT leader_election.is_leader('stubborn')"),
	'f', 'stubborn: whose lease is over does not lead');
$high->query("SELECT leader_election.leave('stubborn')");
is($low->query("SELECT leader_election.is_leader('stubborn')"),
	't', 'stubborn: the former leader is elected when the higher one leaves');
$_->finish foreach $low, $high;

# The challenger leaves or dies: renewals go on, also where others stand that
# would not be entitled to preempt themselves.
# (All that is done before the lease is over that is not renewed meanwhile.)
create('withdrawn', 'bully', sprintf("lease_duration => '%d s'", 6 * slowness()));
$low = candidate('withdrawn', 'low', 1);
my @equals =
  (candidate('withdrawn', 'lower', 0), candidate('withdrawn', 'equal', 1));
foreach my $how (qw(finish kill))
{
	$high = candidate('withdrawn', 'high', 2);
	is_asked('withdrawn', 'high', "withdrawn, $how: asked to yield");
	$high->$how;
	comes_true(
		"NOT yielding AND successor IS NULL AND term = 1
			FROM leader_election.lease WHERE election = 'withdrawn'",
		"withdrawn, $how: the yield is taken back");
	is_renewed('withdrawn', "withdrawn, $how: renewals go on");
}

# Where another one is entitled, the yield stands, for that one.
$high = candidate('withdrawn', 'high', 3);
is_asked('withdrawn', 'high', 'withdrawn: asked to yield');
my $second = candidate('withdrawn', 'second', 2);
$high->query("SELECT leader_election.leave('withdrawn')");
is_asked('withdrawn', 'second', 'withdrawn: the next one entitled is named');
$low->query("SELECT leader_election.resign('withdrawn')");
leads_soon('withdrawn', 'second', 'withdrawn: and leads');
is(history('withdrawn'), 'low yielded, second', 'withdrawn: history');
$_->finish foreach $low, $high, $second, @equals;

# The same for a detached leader, which is told when it renews.
create('detached', 'bully', "lease_duration => '1 min'");
acquire('detached', 'low', 1);
$high = candidate('detached', 'high', 2);
is_asked('detached', 'high', 'detached: asked to yield');
is($admin->query("SELECT term, yielding FROM leader_election.renew('detached', 1)"),
	'1|t', 'detached: the leader is told');
$high->query("SELECT leader_election.leave('detached')");
comes_true(
	"NOT yielding FROM leader_election.lease WHERE election = 'detached'",
	'detached: the yield is taken back');
is( $admin->query(
		"SELECT term, yielding, remaining_ms > 59000 FROM leader_election.renew('detached', 1)"
	),
	'1|f|t',
	'detached: it renews');
$admin->query("SELECT leader_election.release('detached', 1)");
$high->finish;

# In spread, a yield that was asked for one that has left is taken back although
# somebody else leads fewer, but not as few as it would take to ask.
create($_, 'spread', "lease_duration => '1 min'") foreach map { "few $_" } 1 .. 5;
my $many = session($node, name => 'leads three');
my $some = session($node, name => 'leads two');
my $none = session($node, name => 'leads none');
stand_as($many, "few $_", 'many') foreach 1 .. 3;
stand_as($some, "few $_", 'some') foreach 4, 5;
stand_as($some, 'few 1', 'some');
worker_looks();
is(lease('few 1', 'leader, yielding'),
	'many|f', 'spread: two elections are not much less than three');
stand_as($none, 'few 1', 'none');
is_asked('few 1', 'none', 'spread: none are');
$none->query("SELECT leader_election.leave('few 1')");
comes_true(
	"NOT yielding AND successor IS NULL FROM leader_election.lease WHERE election = 'few 1'",
	'spread: taken back when that one leaves, though another one leads fewer');
$_->finish foreach $many, $some, $none;

#
# Transfer
#

create($_, 'lowest', "lease_duration => '1 min'")
  foreach qw(handed reserved untouched);
my $one = session($node, name => 'one');
my $two = session($node, name => 'two');
my $three = session($node, name => 'three');
foreach my $election (qw(handed reserved untouched))
{
	stand_as($one, $election, 'one', 1);
	stand_as($two, $election, 'two', 2);
	stand_as($three, $election, 'three', 3);
}
is($one->query("SELECT leader_election.transfer('handed', 'three')"),
	't', 'transfer: to a session');
is($three->query("SELECT leader_election.is_leader('handed')"),
	't', 'transfer: it leads at once, whatever its rank (oban#1341)');
$listener->events_ok(
	'handed',
	[ 'elected 1 one', 'elected 2 three, one transferred' ],
	'transfer: one event, and no vacancy (G10)');
is( $admin->query(
		"SELECT count(DISTINCT xmin::text), count(*), min(ended_at) = max(acquired_at)
			FROM leader_election.history WHERE election = 'handed'"),
	'1|2|t',
	'transfer: in one transaction');

# While another one was asked for
$admin->query("SELECT leader_election.request_yield('handed', 'one')");
is($three->query("SELECT leader_election.transfer('handed', 'two')"),
	't', 'transfer: while a yield is pending');
is(history('handed'), 'one transferred, three transferred, two',
	'transfer: to whom the leader chose');
is(lease('handed', 'yielding, successor'),
	'f|', 'transfer: the request ended with the term');
is($three->query("SELECT leader_election.transfer('handed', 'one')"),
	'f', 'transfer: only by the leader (G2)');
is(leader('handed'), 'two', 'transfer: nothing happened');

# To nobody
my $version = lease('untouched', 'xmin, ctid, leader');
is( $one->sqlstate_of("SELECT leader_election.transfer('untouched', 'nobody')"),
	'LE005',
	'transfer: to an unknown one');
my $dead = candidate('untouched', 'dead', 0);
my $worker = stop_worker($admin);
$dead->kill;
wait_gone($node, $dead);
is($admin->query("SELECT count(*) FROM leader_election.candidate WHERE candidate = 'dead'"),
	1, 'transfer: one that is dead, but was not removed yet');
is($one->sqlstate_of("SELECT leader_election.transfer('untouched', 'dead')"),
	'LE005', 'transfer: to a dead one');
is( $admin->sqlstate_of(
		"SELECT leader_election.request_yield('untouched', 'dead')"),
	'LE005',
	'transfer: nor can the leader be asked to yield to it');
resume_process($worker);
is(lease('untouched', 'xmin, ctid, leader'),
	$version, 'transfer: the lease was not touched');
is($one->query("SELECT leader_election.is_leader('untouched')"),
	't', 'transfer: its holder leads on (G2)');

# To a detached one, which has to come in time: else the next one leads.
$admin->query("SELECT leader_election.alter_election('reserved', lease_duration => '" . 2 * slowness() . " s')");
acquire('reserved', 'detached', 9);
is($one->query("SELECT leader_election.transfer('reserved', 'detached')"),
	't', 'transfer: to a detached one');
is(waiting_for('reserved'), 'reserved for detached',
	'transfer: the seat is kept for it');
is($one->query("SELECT leader_election.is_leader('reserved')"),
	'f', 'transfer: the leader leads no more');
is($two->query("SELECT leader_election.join('reserved', 'two')"),
	'', 'transfer: nobody else is elected, though of a better rank');
leads_soon('reserved', 'one', 'transfer: it does not come, and the next one leads');
is( $admin->query(
		"SELECT max(acquired_at) - min(ended_at) > '0'
			FROM leader_election.history WHERE election = 'reserved'"),
	't',
	'transfer: not without a vacancy');
acquire('reserved', 'detached', 9);
is($one->query("SELECT leader_election.transfer('reserved', 'detached')"),
	't', 'transfer: to a detached one again');
like(acquire('reserved', 'detached'), qr/^\d+$/, 'transfer: which comes');
$listener->events_ok(
	'reserved',
	[
		'elected 1 one',
		'vacated 1, one transferred',
		'elected 2 one',
		'vacated 2, one transferred',
		'elected 3 detached'
	],
	'transfer: announced');
$_->finish foreach $one, $two, $three;

#
# spread: an even share for each, by polite yields alone
#

my $SHARDS = 200;
my $ALL = "generate_series(1, $SHARDS) n";
$admin->query(
	"SELECT count(leader_election.create_election('shard ' || n, 'spread', '3 s')) FROM $ALL"
);
my %worker = map { $_ => session($node, name => $_) } qw(w1 w2 w3 w4);

sub joins_all
{
	my ($name) = @_;

	return $worker{$name}->query(
		"SELECT count(leader_election.join('shard ' || n, '$name')) FROM $ALL");
}

sub shares
{
	return scalar $admin->query(
		"SELECT string_agg(n::text, ' ' ORDER BY n)
			FROM (SELECT count(*) n FROM leader_election.lease
				WHERE election LIKE 'shard %' AND leader IS NOT NULL AND NOT yielding GROUP BY leader) l"
	);
}

# Two of them obey at once, the others let the lease run out. A request may have
# been withdrawn, as others have joined, when the leader obeys it: then it resigns.
sub share_evenly
{
	my ($expected, $name) = @_;
	my $even = eval {
		wait_until(
			sub {
				foreach my $polite (grep { $worker{$_} } qw(w1 w2))
				{
					$worker{$polite}->query(
						"SELECT count(leader_election.resign(election)) FROM leader_election.lease
							WHERE leader = '$polite' AND yielding AND election LIKE 'shard %'");
				}
				return shares() eq $expected;
			},
			$name);
	};
	ok($even, $name) or diag('shares: ' . shares());
	return;
}

is(joins_all('w1'), $SHARDS, 'spread: one leads all');
joins_all($_) foreach qw(w2 w3 w4);
share_evenly('50 50 50 50', 'spread: with three more, each leads a quarter (Curator#1139)');
is( $admin->query(
		"SELECT string_agg(DISTINCT reason, ' ') FROM leader_election.history
			WHERE election LIKE 'shard %' AND reason <> 'resigned'"),
	'yielded',
	'spread: by polite yields alone');
my $terms = $admin->query(
	"SELECT sum(term), max(deadline_mono) + 1000000 FROM leader_election.lease WHERE election LIKE 'shard %'");
(my $sum, $deadline) = split /\|/, $terms;
comes_true(
	"min(deadline_mono) > $deadline FROM leader_election.lease WHERE election LIKE 'shard %'",
	'spread: leases are renewed');
worker_looks();
is($admin->query("SELECT sum(term) FROM leader_election.lease WHERE election LIKE 'shard %'"),
	$sum, 'spread: and nothing changes any more');
$worker{w4}->kill;
delete $worker{w4};
share_evenly('66 67 67', 'spread: one dies, the others lead a third each');
worker_looks();
is(shares(), '66 67 67', 'spread: nobody is asked for a difference of one');
is( $admin->query(
		"SELECT string_agg(DISTINCT reason, ' ') || ' ' || count(*) FROM leader_election.history
			WHERE election LIKE 'shard %' AND reason NOT IN ('yielded', 'resigned')"),
	'session ended 50',
	'spread: its share was spread');
is($admin->query("SELECT sum(term) - $sum FROM leader_election.lease WHERE election LIKE 'shard %'"),
	50, 'spread: and nothing else was moved');

# --- A leader goes on without a quorum, and is not asked to yield then.

{
	create('quorum', 'bully', 'quorum => 3');
	my ($low, $high, $third) = map { candidate('quorum', $_, 1) } qw(low high third);
	leads_soon('quorum', 'low', 'quorum: one leads');
	$third->finish;
	stand_as($high, 'quorum', 'high', 2);
	worker_looks();
	is(lease('quorum', 'leader, yielding'), 'low|f', 'quorum: no higher rank replaces it while one is missing');
	$third = candidate('quorum', 'third', 1);
	is_asked('quorum', 'high', 'quorum: it does when there is a quorum again');
	$_->finish foreach $low, $high, $third;
}

never_two_leaders();
$node->stop;
done_testing();
