# The rules of election: who is elected, who makes way, who sits out; and what
# an election's owner may change while somebody leads.
#
# Where nothing is to happen, the test waits until the worker has looked at all
# elections once more, and not for a while.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

my $SOON = 20;    # seconds, for what takes a few leases at most

my $node = new_server(
	config => qq(
leader_election.lease_duration = '2s'
client_min_messages = warning
));
my $admin = session($node, name => 'admin');
my $listener = session($node, name => 'listener');
$listener->query('LISTEN leadership_changed');

# Nothing stays stopped, however this test ends.
my $stopped;

END
{
	kill('CONT', $stopped) if $stopped;
}

# create_election with these settings
sub create
{
	my ($election, $strategy, $settings) = @_;

	$settings = defined $settings ? ", $settings" : '';
	$admin->query(
		"SELECT leader_election.create_election('$election', '$strategy'$settings)"
	);
	die $admin->errors if $admin->errors;
	return;
}

sub stand_as
{
	my ($session, $election, $candidate, $profile) = @_;

	$profile = defined $profile ? ", $profile" : '';
	return $session->query(
		"SELECT leader_election.join('$election', '$candidate'$profile)");
}

# A new session that stands under that name.
sub candidate
{
	my ($election, $candidate, $profile) = @_;
	my $session = session($node, name => "$election: $candidate");

	stand_as($session, $election, $candidate, $profile);
	die $session->errors if $session->errors;
	return $session;
}

# Calls by a detached candidate, over the administrator's connection
sub acquire
{
	my ($election, $candidate, $profile) = @_;

	$profile = defined $profile ? ", $profile" : '';
	return $admin->query(
		"SELECT term FROM leader_election.acquire('$election', '$candidate'$profile)"
	);
}

sub lease
{
	my ($election, $columns) = @_;

	return $admin->query(
		"SELECT $columns FROM leader_election.lease WHERE election = '$election'"
	);
}

sub leader { return $admin->query("SELECT leader_election.leader('$_[0]')"); }

sub waiting_for
{
	return $admin->query(
		"SELECT waiting_for FROM leader_election.status WHERE election = '$_[0]'"
	);
}

# Who led, and why that ended: "one resigned, two"
sub history
{
	my ($election) = @_;

	return $admin->query(
		"SELECT string_agg(concat_ws(' ', leader, reason), ', ' ORDER BY term)
			FROM leader_election.history WHERE election = '$election'");
}

# A condition that has to come true in time
sub comes_true
{
	my ($sql, $name, $timeout) = @_;
	my $result;

	return ok(1, $name)
	  if eval {
		wait_until(
			sub {
				$result = $admin->query("SELECT $sql");
				return $result eq 't';
			},
			$sql,
			$timeout // $SOON);
	  };
	fail($name);
	return diag("not true: $sql");
}

sub leads_soon
{
	my ($election, $candidate, $name, $timeout) = @_;

	return comes_true(
		"leader_election.leader('$election') IS NOT DISTINCT FROM '$candidate'",
		$name, $timeout);
}

# Waits until the worker has looked at all there was when this was called, and
# has done what was due: it removes a dead candidate's row last of all.
my $looks = 0;

sub worker_looks
{
	my $election = 'look ' . ++$looks;

	candidate($election, 'follower')->finish;
	wait_for($node,
		"SELECT NOT EXISTS (SELECT FROM leader_election.candidate WHERE election = '$election')"
	);
	return;
}

# Is the lease renewed from now on, by the worker, and still in the same term?
sub is_renewed
{
	my ($election, $name) = @_;
	my ($term, $deadline) = split /\|/, lease($election, 'term, deadline_mono');

	return comes_true(
		"deadline_mono > $deadline AND term = $term AND NOT yielding
			FROM leader_election.lease WHERE election = '$election'", $name);
}

# The leader has been asked to yield; to whom
sub is_asked
{
	my ($election, $successor, $name) = @_;

	return comes_true(
		"yielding AND successor = '$successor'
			FROM leader_election.lease WHERE election = '$election'", $name);
}

# The announcements about an election since the last call, once there are so many
my @announced;

sub announced
{
	my ($election, $count) = @_;
	my @mine;

	wait_until(
		sub {
			push @announced, $listener->notifications;
			return $count <= grep { /"election":"\Q$election\E"/ } @announced;
		},
		"$count announcements about $election");
	@mine = grep { /"election":"\Q$election\E"/ } @announced;
	@announced = grep { !/"election":"\Q$election\E"/ } @announced;
	return join ', ', map {
		my %f = /"(\w+)":"?([^",}]*)/g;
		join ' ', grep { defined && $_ ne 'null' }
		  @f{qw(event leader reason successor)};
	} @mine;
}

sub stop_worker
{
	$stopped = $admin->query(
		"SELECT pid FROM pg_stat_activity
			WHERE backend_type = 'leader_election worker' AND datname = 'postgres'"
	);
	kill('STOP', $stopped) or die "cannot stop the worker: $!";
	wait_until(sub { slurp_file("/proc/$stopped/stat") =~ /\) T / },
		'the worker to stop')
	  if -e "/proc/$stopped/stat";
	return;
}

sub resume_worker
{
	kill('CONT', $stopped);
	$stopped = undef;
	return;
}

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
# come again; nor does whoever resigned, until its rank changes.
$process{6}->query("SELECT leader_election.resign('bully')");
is(leader('bully'), 5, 'bully: 6 resigns, 5 leads');
worker_looks();
is(lease('bully', 'leader, yielding'), '5|f',
	'bully: whoever resigned does not preempt');
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
	'zab: whoever is ahead does not take over');
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
	'f', 'polite: and the other one does not');
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
	't', 'polite: and the other one leads as soon as that is done');
is(history('polite'), 'low yielded, high', 'polite: history');
is( announced('polite', 3),
	'elected low, yield_requested low high, elected high yielded',
	'polite: announced, with the successor, and without a vacancy');
$_->finish foreach $low, $high;

# Not obeyed: the lease is not renewed any more, and ends at its deadline.
create('stubborn', 'bully');
$low = candidate('stubborn', 'low', 1);
is_renewed('stubborn', 'stubborn: renewed as long as nobody wants it');
$high = candidate('stubborn', 'high', 2);
is_asked('stubborn', 'high', 'stubborn: asked to yield');
my $deadline = lease('stubborn', 'deadline_mono');
leads_soon('stubborn', 'high', 'stubborn: the other one leads in the end');
cmp_ok(lease('stubborn', 'acquired_mono'),
	'>=', $deadline, 'stubborn: not before the deadline');
is(history('stubborn'), 'low yielded, high', 'stubborn: history');
is($low->query("SELECT leader_election.is_leader('stubborn')"),
	'f', 'stubborn: whose lease is over does not lead');
$high->query("SELECT leader_election.leave('stubborn')");
is($low->query("SELECT leader_election.is_leader('stubborn')"),
	't', 'stubborn: who yielded is elected when the other one leaves');
$_->finish foreach $low, $high;

# The challenger leaves or dies: renewals go on, also where others stand that
# would not be entitled to preempt themselves.
create('withdrawn', 'bully');
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
leads_soon('withdrawn', 'second', 'withdrawn: the next one entitled leads');
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
is( announced('handed', 2),
	'elected one, elected three transferred',
	'transfer: one event, and no vacancy');
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
	'f', 'transfer: only by the leader');
is(leader('handed'), 'two', 'transfer: nothing happened');

# To nobody
my $version = lease('untouched', 'xmin, ctid, leader');
is( $one->sqlstate_of("SELECT leader_election.transfer('untouched', 'nobody')"),
	'LE005',
	'transfer: to an unknown one');
my $dead = candidate('untouched', 'dead', 0);
stop_worker();
$dead->kill;
wait_for($node, 'SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = '
	  . $dead->backend_pid . ')');
is($admin->query("SELECT count(*) FROM leader_election.candidate WHERE candidate = 'dead'"),
	1, 'transfer: one that is dead, but was not removed yet');
is($one->sqlstate_of("SELECT leader_election.transfer('untouched', 'dead')"),
	'LE005', 'transfer: to a dead one');
is( $admin->sqlstate_of(
		"SELECT leader_election.request_yield('untouched', 'dead')"),
	'LE005',
	'transfer: nor can the leader be asked to yield to it');
resume_worker();
is(lease('untouched', 'xmin, ctid, leader'),
	$version, 'transfer: the lease was not touched');
is($one->query("SELECT leader_election.is_leader('untouched')"),
	't', 'transfer: its holder leads on');

# To a detached one, which has to come in time: else the next one leads.
$admin->query("SELECT leader_election.alter_election('reserved', lease_duration => '2 s')");
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
is(announced('reserved', 5) =~ s/^elected one, //r,
	'vacated transferred, elected one, vacated transferred, elected detached',
	'transfer: announced');
$_->finish foreach $one, $two, $three;

#
# Sitting out: whoever gave up is passed over until another was elected.
#

my @strategies = qw(race lowest bully ring zab spread);
$one = session($node, name => 'one');
$two = session($node, name => 'two');
create("out $_", $_, "lease_duration => '1 min'") foreach @strategies;
stand_as($one, "out $_", 'one', '5, 5') foreach @strategies;
$one->query("SELECT leader_election.resign('out $_')") foreach @strategies;
worker_looks();
is(waiting_for("out $_"), 'candidates that do not sit out',
	"$_: alone, whoever resigned is not elected again")
  foreach @strategies;
stand_as($one, "out $_", 'one') foreach @strategies;
is($one->query("SELECT leader_election.is_leader('out $_')"),
	't', "$_: but by its own call")
  foreach @strategies;
stand_as($two, "out $_", 'two', '9, 9') foreach @strategies;
$one->query("SELECT leader_election.resign('out $_')") foreach @strategies;
is(leader("out $_"), 'two', "$_: the other one is next") foreach @strategies;
worker_looks();
$two->query("SELECT leader_election.leave('out $_')") foreach @strategies;
is(leader("out $_"), 'one', "$_: and then the first again")
  foreach @strategies;
$_->finish foreach $one, $two;

# The same for whoever was asked by an operator, and let the lease run out.
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
		"$strategy: whoever was asked does not lead again");
	is(waiting_for("asked alone $strategy"), 'candidates that do not sit out',
		"$strategy: not even alone");
	like(stand_as($one, "asked alone $strategy", 'one'),
		qr/^\d+$/, "$strategy: but by its own call");
}
$_->finish foreach $one, $two;

# A leader that its strategy had yield to somebody who then vanishes leads again: it did
# not want to give up, and does not know that it should call.
create('vanished', 'bully');
$low = candidate('vanished', 'low', 1);
acquire('vanished', 'high', 2);
is_asked('vanished', 'high', 'vanished: asked to yield to a detached one');
comes_true("leader_election.leader('vanished') IS NULL",
	'vanished: the lease runs out');
leads_soon('vanished', 'low',
	'vanished: the leader is elected again when nobody comes');
$low->finish;

create('vanished too', 'bully');
$low = candidate('vanished too', 'low', 1);
$high = candidate('vanished too', 'high', 2);
is_asked('vanished too', 'high', 'vanished: asked to yield to a session');
stop_worker();
$high->kill;
comes_true("leader_election.leader('vanished too') IS NULL",
	'vanished: which dies unnoticed before the deadline');
resume_worker();
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
	$one->query("SELECT leader_election.resign('$election', '4 s')");
	is(waiting_for($election), 'hold', "$election: nobody is elected yet");
	my $better = candidate($election, 'better', 2);
	stop_worker() if $election =~ /unnoticed/;
	$worse->kill;
	wait_for($node, 'SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = '
		  . $worse->backend_pid . ')');
	worker_looks() unless $stopped;
	$worse = candidate($election, 'worse', 9);
	is(waiting_for($election), 'hold', "$election: still nobody");
	resume_worker() if $stopped;
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
$deadline = lease('ran-out', 'deadline_mono');
my $alive = $admin->query('SELECT leader_election.monotonic_clock()');
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

#
# Settings that change while somebody leads
#

create('shorter', 'race', "lease_duration => '4 s'");
create('longer', 'race');
create('to bully', 'race', "lease_duration => '1 min'");
create('quorum', 'race');
$one = session($node, name => 'one');
$two = session($node, name => 'two');
my @altered = ('shorter', 'longer', 'to bully', 'quorum');
stand_as($one, $_, 'one', 1) foreach @altered;
stand_as($two, $_, 'two', 2) foreach @altered;
$deadline = lease('shorter', 'deadline_mono');
$admin->query(
	"SELECT leader_election.alter_election('shorter', lease_duration => '2 s');
	SELECT leader_election.alter_election('longer', lease_duration => '30 s');
	SELECT leader_election.alter_election('to bully', 'bully');
	SELECT leader_election.alter_election('quorum', quorum => 9)");
comes_true(
	"deadline_mono > $deadline AND duration < 2100000 FROM leader_election.lease WHERE election = 'shorter'",
	'altered: a shorter lease, after the granted one');
comes_true(
	"expires_at - renewed_at > '29 s' FROM leader_election.lease WHERE election = 'longer'",
	'altered: a longer lease');
is_renewed('quorum', 'altered: too few for a quorum, but the leader leads on');
is_asked('to bully', 'two', 'altered: a strategy that preempts');
$admin->query("SELECT leader_election.alter_election('to bully', 'ring')");
comes_true(
	"NOT yielding FROM leader_election.lease WHERE election = 'to bully'",
	'altered: a strategy that does not');
is($one->query("SELECT leader_election.term('$_')"),
	1, "altered: $_: the term goes on")
  foreach @altered;
$one->query("SELECT leader_election.resign('quorum')");
worker_looks();
is(waiting_for('quorum'), 'quorum 2 of 9', 'altered: nobody new is elected');
$admin->query("SELECT leader_election.alter_election('quorum', quorum => 2)");
leads_soon('quorum', 'two', 'altered: until the quorum is reached');

# A channel of its own
$listener->query('LISTEN "own channel"');
$admin->query("SELECT leader_election.alter_election('quorum', channel => 'own channel')");
$two->query("SELECT leader_election.leave('quorum')");
like(announced('quorum', 4), qr/vacated left$/, 'altered: announced where it is to be');
$listener->query('UNLISTEN leadership_changed');
$admin->query("SELECT leader_election.alter_election('quorum', quorum => 1)");
leads_soon('quorum', 'one', 'altered: the next one leads');
is(announced('quorum', 1), 'elected one', 'altered: and only there');
$listener->query('LISTEN leadership_changed');
$_->finish foreach $one, $two;

#
# Dropped elections
#

create('dropped', 'race', 'quorum => 9');
create('replaced', 'race', 'quorum => 9');
my %waiter = map { $_ => session($node, name => "waits in $_") } qw(dropped replaced);
foreach my $election (qw(dropped replaced))
{
	$waiter{$election}
	  ->query_async("CALL leader_election.campaign('$election', 'waiter')");
	wait_for($node,
		"SELECT candidates = 1 FROM leader_election.status WHERE election = '$election'"
	);
}
$admin->query("SELECT leader_election.drop_election('dropped')");
$admin->query(
	"BEGIN;
	SELECT leader_election.drop_election('replaced');
	SELECT leader_election.create_election('replaced', quorum => 1);
	COMMIT");
foreach my $election (qw(dropped replaced))
{
	$waiter{$election}->result;
	is($waiter{$election}->sqlstate, 'LE003',
		"$election: a waiting campaign ends");
	is($waiter{$election}->query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"),
		0, "$election: and leaves no lock behind");
}
worker_looks();
is(waiting_for('replaced'), 'no candidates',
	'replaced: nobody stands in the new one');
like(stand_as($waiter{replaced}, 'replaced', 'waiter'),
	qr/^\d+$/, 'replaced: the same session may');
$_->finish foreach values %waiter;

# join() beside a drop that is not committed yet
sub homeless
{
	return $admin->query(
		"SELECT count(*) FROM leader_election.candidate c WHERE NOT EXISTS
			(SELECT FROM leader_election.election e WHERE e.election = c.election)"
	);
}

$admin->query('SET leader_election.auto_create = off');
foreach my $call (
	"SELECT leader_election.join('%s', 'late')",
	"SELECT leader_election.acquire('%s', 'late')",
	"CALL leader_election.campaign('%s', 'late', '10 ms')")
{
	my ($name) = $call =~ /leader_election.(\w+)/;
	my $dropper = session($node, name => 'dropper');
	my $late = session($node, name => 'late', options => '-c leader_election.auto_create=off');

	foreach my $when ('before', 'during')
	{
		my $election = "$name $when";

		create($election, 'race');
		$dropper->query(
			"BEGIN; SELECT leader_election.drop_election('$election')");
		$late->query_async(sprintf($call, $election));
		$late->result if $when eq 'before';
		$dropper->query('COMMIT');
		$late->result if $when eq 'during';
		comes_true(
			"NOT EXISTS (SELECT FROM leader_election.candidate WHERE election = '$election')",
			"$name() that ended $when a drop leaves no candidate in what is gone");
		isnt($late->sqlstate, '08006', "$name(), $when: no crash");
		$late->query("SELECT leader_election.join('$election', 'late')");
		is($late->sqlstate, 'LE003', "$name(), $when: it is gone");
	}
	$_->finish foreach $dropper, $late;
}

#
# Grace: a copy of a database is another incarnation.
#

$node->safe_psql('postgres', 'CREATE DATABASE original');
$node->safe_psql('original',
	"CREATE EXTENSION leader_election; SELECT leader_election.create_election('e', lease_duration => '3 s')"
);
$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE original');
$one = session($node, name => 'one', dbname => 'copy');
$one->query("SELECT leader_election.join('e', 'one')");
wait_for($node,
	"SELECT waiting_for = 'grace after failover' FROM leader_election.status WHERE election = 'e'",
	't', undef, 'copy');
pass('grace: nobody is elected in a copy at first');
is($one->query("SELECT leader_election.is_leader('e')"), 'f', 'grace: nor leads');
wait_for($node, "SELECT leader_election.leader('e')", 'one', undef, 'copy');
pass('grace: somebody is later');
$one->finish;

#
# A strategy that the code does not know: only that election suffers.
#

$one = session($node, name => 'one');
$two = session($node, name => 'two');
$high = session($node, name => 'high');
create($_, 'bully') foreach 'sound', 'sound asked';
create('broken led', 'bully', "lease_duration => '1 min'");
create('broken vacant', 'bully', "quorum => 3");
create('broken detached', 'bully', "quorum => 2");
foreach my $election ('broken led', 'broken vacant', 'sound', 'sound asked')
{
	stand_as($one, $election, 'one', 1);
	stand_as($two, $election, 'two', 0);
}
acquire('broken detached', 'detached');
$admin->query(
	"UPDATE leader_election.election SET strategy = 'of a later version', quorum = 1
		WHERE election LIKE 'broken%'");
stand_as($high, 'broken led', 'high', 2);
is_renewed('sound', 'broken: others are renewed');
is_renewed('sound', 'broken: again and again');
stand_as($high, 'sound asked', 'high', 2);
is_asked('sound asked', 'high', 'broken: others are asked to yield');
leads_soon('sound asked', 'high', 'broken: and replaced');
foreach my $view (qw(status candidates))
{
	$admin->query("SELECT * FROM leader_election.$view");
	is($admin->sqlstate, '00000', "broken: the view $view shows them all");
}
is(lease('broken led', 'leader, term, yielding'),
	'one|1|f', 'broken: its leader leads on');
$one->kill;
leads_soon('sound', 'two', 'broken: leaders of others are succeeded');
is( $admin->sqlstate_of(
		"SELECT leader_election.alter_election('$_', 'lowest')"),
	'00000',
	"$_: can be mended")
  foreach 'broken led', 'broken vacant', 'broken detached';
leads_soon($_, 'two', "$_: goes on when mended")
  foreach 'broken led', 'broken vacant';
acquire('broken detached', 'detached');
is(leader('broken detached'), 'detached',
	'broken detached: goes on when mended');
$_->finish foreach $two, $high;

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
			$name,
			30);
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

# Whatever happened, no election ever had two leaders.
is( $admin->query(
		'SELECT count(*) FROM leader_election.history a JOIN leader_election.history b
			ON a.election = b.election AND a.term < b.term
		WHERE a.ended_at IS NULL OR a.ended_at > b.acquired_at'),
	0,
	'never two leaders');
is(homeless(), 0, 'nobody stands in an election that is gone');

done_testing();
