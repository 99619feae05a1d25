# initial_delay: a seat for which nobody stood when it fell vacant, or was created, is
# filled no sooner than so long after the first candidate has stood for it.
#
# Where the worker has to wake up by itself, the lease is so long that no renewal
# wakes it.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Cluster;
use Rules;
use Test::More;

my $LONG = "lease_duration => '1 h'";
my $LATE = 5_000_000;    # microseconds

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

# The present leader was elected so many microseconds after that moment.
sub elected_after
{
	my ($election, $since, $delay, $name) = @_;
	my $after = lease($election, 'acquired_mono') - $since;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok($after, '>=', $delay, "$name: not before");
	cmp_ok($after, '<', $delay + $LATE + held_up(), "$name: nor late");
	return;
}

# --- The first candidate stands while a call has the election: that it does is noted
# later, and observers are told meanwhile.

{
	my ($gate, $holder) = map { session($node, name => $_) } qw(gate holder);

	create('noted later', 'race', "initial_delay => '1 h', $LONG");
	$gate->query('SELECT pg_advisory_lock(1)');
	$holder->query_async("DO \$\$ BEGIN
		PERFORM leader_election.alter_election('noted later', takeover_delay => '0');
		PERFORM pg_advisory_xact_lock_shared(1);
		END \$\$");
	wait_for($node, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND pid = " . $holder->backend_pid, 1);
	my $first = candidate('noted later', 'first');
	is(lease('noted later', 'first_stood_mono'), '', 'noted later: not yet');
	is(waiting_for('noted later'), 'initial delay', 'noted later: what the election waits for');
	like( $admin->query(
			"SELECT string_agg(finding, ' ') FROM leader_election.diagnose('noted later')"),
		qr/for others to stand, too \(initial_delay\), the election waits until /, 'noted later: diagnose() says until when');
	$gate->query('SELECT pg_advisory_unlock(1)');
	$holder->result;
	comes_true("first_stood_mono = " . stood('noted later', 'first')
		  . " FROM leader_election.lease WHERE election = 'noted later'", 'noted later: since when it has stood');
	$_->finish foreach $gate, $holder, $first;
}

# --- A new election: the best of those who come in time is elected, once.

{
	create('new', 'bully', "initial_delay => '2 s', $LONG");
	my $low = candidate('new', 'low', 1);
	is(waiting_for('new'), 'initial delay', 'new: the first candidate waits for others');
	my $since = stood('new', 'low');
	comes_true("first_stood_mono = $since FROM leader_election.lease
		WHERE election = 'new'", 'new: since it stands');
	my $xmin = lease('new', 'xmin');
	is(stand_as($low, 'new', 'low'), '', 'new: its own call does not elect it')
	  foreach 1 .. 3;
	is(lease('new', 'xmin'), $xmin, 'new: and writes nothing');
	my $high = candidate('new', 'high', 2);
	leads_soon('new', 'high', 'new: the best one leads');
	elected_after('new', $since, 2_000_000, 'new');
	is(lease('new', 'term, deserted, first_stood_mono'), '1||', 'new: in the first term');

	# One that has a follower
	alter('new', "initial_delay => '1 h'");
	$high->kill;
	leads_soon('new', 'low', 'followed: is replaced at once');

	# One that has none
	$low->kill;
	comes_true("leader IS NULL FROM leader_election.lease WHERE election = 'new'",
		'alone: its seat falls vacant');
	is(lease('new', 'deserted, first_stood_mono'), 't|', 'alone: nobody stands for it');
	is(waiting_for('new'), 'no candidates', 'alone: which the view tells');
	my @c = (candidate('new', 'a', 1));
	my $first = stood('new', 'a');
	worker_looks();
	is(waiting_for('new'), 'initial delay', 'alone: the next candidate waits');
	is(lease('new', 'first_stood_mono'), $first, 'alone: since it stands');

	# That moment is kept.
	$c[0]->query("SELECT leader_election.leave('new')");
	worker_looks();
	push @c, candidate('new', 'b', 1);
	worker_looks();
	is(lease('new', 'first_stood_mono'), $first, 'once: it is kept when that one leaves');
	cmp_ok(stood('new', 'b'), '>', $first, 'once: the next one stands for a shorter time');
	is(waiting_for('new'), 'initial delay', 'once: and waits');
	alter('new', "initial_delay => '1 s'");
	leads_soon('new', 'b', 'once: until the seat has waited for long enough');
	elected_after('new', $first, 1_000_000, 'once');
	$_->finish foreach @c;
}

# --- The leader goes, and stands on

{
	create('resigned', 'race');
	my @c = candidate('resigned', 'a');
	alter('resigned', "initial_delay => '1 h'");
	$c[0]->query("SELECT leader_election.resign('resigned')");
	is(stand_as($c[0], 'resigned', 'a'), '', 'resigned: its own call does not elect it');
	is(waiting_for('resigned'), 'initial delay', 'resigned: the seat waits');
	is(lease('resigned', "deserted, first_stood_mono > acquired_mono"), 't|t',
		'resigned: since it is vacant');
	push @c, candidate('resigned', 'b');
	worker_looks();
	is(leader('resigned'), '', 'resigned: also for one that comes later');
	alter('resigned', "initial_delay => '0'");
	leads_soon('resigned', 'b', 'resigned: until there is nothing to wait for');
	$c[0]->query("SELECT leader_election.leave('resigned')");
	$c[0]->query("SELECT leader_election.join('resigned', 'a')");
	alter('resigned', "initial_delay => '1 h'");
	$c[1]->query("SELECT leader_election.resign('resigned')");
	is(leader('resigned'), 'a', 'resigned: not if there is a follower');
	$_->finish foreach @c;

	# A lease runs out: nobody stood when it did, though one does by now.
	create('expired', 'race', "initial_delay => '1 h', lease_duration => '500 ms'");
	alter('expired', "initial_delay => '0'");
	acquire('expired', 'a');
	alter('expired', "initial_delay => '1 h'");
	my $deadline = lease('expired', 'deadline_mono');
	comes_true("leader IS NULL FROM leader_election.lease WHERE election = 'expired'",
		'expired: a lease runs out');
	is(lease('expired', 'deserted, first_stood_mono'), "t|$deadline",
		'expired: nobody else stood then');
}

# --- Named candidates do not wait.

{
	create('named', 'race', "initial_delay => '0', $LONG");
	my @c = map { candidate('named', $_) } qw(a b);
	alter('named', "initial_delay => '1 h'");
	$c[0]->query("SELECT leader_election.transfer('named', 'b')");
	is(leader('named'), 'b', 'named: by the leader');
	$c[0]->query("SELECT leader_election.leave('named')");
	$c[1]->query("SELECT leader_election.resign('named')");
	is(waiting_for('named'), 'initial delay', 'named: the seat is vacant');
	$admin->query("SELECT leader_election.pause_election('named')");
	stand_as($c[0], 'named', 'a');
	is(waiting_for('named'), 'paused', 'named: a pause is told first');
	$admin->query("SELECT leader_election.request_yield('named', 'a')");
	leads_soon('named', 'a', 'named: by an operator');
	$_->finish foreach @c;

	# One that does not come: what the seat has waited for is not forgotten.
	create('lapses', 'race', "initial_delay => '1 h', $LONG");
	my $s = candidate('lapses', 's');
	my $since = stood('lapses', 's');
	$admin->query("SELECT leader_election.pause_election('lapses')");
	acquire('lapses', 'd');
	$admin->query("SELECT leader_election.request_yield('lapses', 'd')");
	is(waiting_for('lapses'), 'reserved for d', 'lapses: the seat is kept for one');
	$admin->query("SELECT leader_election.leave('lapses', 'd')");
	$admin->query("SELECT leader_election.resume_election('lapses')");
	worker_looks();
	is(waiting_for('lapses'), 'initial delay', 'lapses: it is not any more');
	is(lease('lapses', 'deserted, first_stood_mono'), "t|$since", 'lapses: who stood first');
	$s->finish;
}

# --- The order of what is told

{
	create('order', 'race', "initial_delay => '1 h', quorum => 2, $LONG");
	my $a = candidate('order', 'a');
	is(waiting_for('order'), 'quorum 1 of 2', 'order: the quorum comes first');
	comes_true("first_stood_mono = " . stood('order', 'a')
		  . " FROM leader_election.lease WHERE election = 'order'",
		'order: who stood first is noted already');
	my $b = candidate('order', 'b');
	$admin->query("SELECT leader_election.drain_candidate('$_', 'order')") foreach qw(a b);
	is(waiting_for('order'), 'initial delay', 'order: drains come after it');
	alter('order', "initial_delay => '0'");
	is(waiting_for('order'), 'drained', 'order: and are told then');
	$_->finish foreach $a, $b;
}

# --- Detached candidates

{
	create('detached', 'lowest', "initial_delay => '1 s'");
	is(acquire('detached', 'd2', 2), '', 'detached: the first call is granted nothing');
	my $since = stood('detached', 'd2');
	is(lease('detached', 'first_stood_mono'), $since, 'detached: its moment is noted');
	acquire('detached', 'd1', 1);
	wait_until(sub { acquire('detached', 'd2') . acquire('detached', 'd1') eq '1' },
		'detached: a grant');
	is(leader('detached'), 'd1', 'detached: the best one leads');
	elected_after('detached', $since, 1_000_000, 'detached');
}

# --- The first candidate finds the election lock taken, and goes: its row tells.

{
	create('locked', 'race', "initial_delay => '1 h'");
	my $holder = session($node, name => 'holder');
	$admin->query('SELECT pg_advisory_lock(1)');
	$holder->query_async(
		"SELECT leader_election.alter_election('locked', quorum => 1), pg_advisory_lock(1)");
	wait_for($node, "SELECT count(*) = 1 FROM pg_locks
		WHERE locktype = 'advisory' AND objsubid = 1 AND NOT granted");
	my $first = candidate('locked', 'first');
	is(lease('locked', 'first_stood_mono'), '', 'locked: it cannot note itself');
	my $since = stood('locked', 'first');
	$admin->query('SELECT pg_advisory_unlock(1)');
	$holder->result;
	comes_true("first_stood_mono = $since FROM leader_election.lease
		WHERE election = 'locked'", 'locked: when it stood is noted all the same');
	$_->finish foreach $holder, $first;
}

# --- 16 shards, and four workers that are started within the time

{
	my $shards = "generate_series(1, 16) n";

	$admin->query("SELECT leader_election.create_election('shard ' || n, 'spread',
		initial_delay => '4 s') FROM $shards");
	my @w = map { session($node, name => "w$_") } 1 .. 4;
	$w[ $_ - 1 ]->query("SELECT leader_election.join('shard ' || n, 'w$_') FROM $shards")
	  foreach 1 .. 4;
	is($admin->query("SELECT count(leader_election.leader('shard ' || n)) FROM $shards"),
		0, 'shards: nobody leads yet');
	comes_true("count(leader_election.leader('shard ' || n)) = 16 FROM $shards",
		'shards: each is led');
	worker_looks();
	is( $admin->query("SELECT string_agg(led::text, ' ') FROM
			(SELECT count(*) AS led FROM leader_election.lease
				WHERE election LIKE 'shard %' GROUP BY leader) l"),
		'4 4 4 4', 'shards: each worker leads four');
	is( $admin->query("SELECT count(*), max(term) FROM leader_election.history
			WHERE election LIKE 'shard %'"),
		'16|1', 'shards: no seat has changed hands');
	is($admin->query("SELECT count(*) FROM leader_election.lease
			WHERE election LIKE 'shard %' AND yields > 0"),
		0, 'shards: nor is any to');
	$_->finish foreach @w;
}

# --- A crash is no change of incarnation: the moment counts.

{
	create('crash', 'race', "initial_delay => '1 h'");
	acquire('crash', 'gone');
	my $since = lease('crash', 'first_stood_mono');
	$node->stop('immediate');
	$node->start;
	$admin = session($node, name => 'admin');
	my $c = candidate('crash', 'next');
	worker_looks();
	is(lease('crash', 'first_stood_mono'), $since, 'crash: the moment is kept');
	cmp_ok(stood('crash', 'next'), '>', $since, 'crash: and is not that of the next one');
	alter('crash', "initial_delay => '1 s'");
	leads_soon('crash', 'next', 'crash: which leads when the seat has waited');
	$c->finish;
	never_two_leaders();
	$node->stop;
}

# --- On a standby, and where it is promoted

{
	my $old = new_server(
		name => 'old',
		streaming => 1,
		config => qq(
leader_election.lease_duration = '2s'
client_min_messages = warning
));
	$admin = session($old, name => 'primary');
	$old->backup('backup');
	my $new = PostgreSQL::Test::Cluster->new('new');
	$new->init_from_backup($old, 'backup', has_streaming => 1);
	$new->start;
	create('e', 'race', "initial_delay => '1 h'");
	create('held', 'race');
	acquire('e', 'there');
	acquire('held', 'd');
	alter('held', "initial_delay => '1 h'");
	$admin->query("SELECT leader_election.release('held', 1, '1 h')");
	is(waiting_for('held'), 'hold', 'standby: a hold comes first');
	my $for = lease('held', 'not_before_for');
	$old->wait_for_catchup('new', 'replay');
	my $there = session($new, name => 'there');
	is( $there->query("SELECT string_agg(waiting_for, ', ' ORDER BY election)
			FROM leader_election.status"),
		'initial delay, hold', 'standby: it shows what the seat waits for');
	$old->stop('immediate');
	$new->promote;

	$node = $new;
	$admin = session($new, name => 'promoted');
	my $first = candidate('e', 'first');
	my $held = candidate('held', 'first');
	is(waiting_for('e'), 'grace after failover', 'promoted: the grace comes first');
	comes_true("first_stood_mono = " . stood('e', 'first')
		  . " FROM leader_election.lease WHERE election = 'e'",
		'promoted: the moment of another server is void');
	is(waiting_for('e'), 'initial delay', 'promoted: so the first one here waits');
	alter('e', "initial_delay => '1 s'");
	leads_soon('e', 'first', 'promoted: and leads then');
	is( $admin->query(
			"SELECT acquired_mono >= (SELECT max(first_seen_mono) FROM leader_election.epoch) + 2000000
				FROM leader_election.lease WHERE election = 'e'"),
		't', 'promoted: not before the grace is over');
	comes_true("first_stood_mono = " . stood('held', 'first')
		  . " FROM leader_election.lease WHERE election = 'held'",
		'promoted: so it is noted during a hold');
	is(waiting_for('held'), 'hold', 'promoted: which goes on');
	is( $admin->query("SELECT not_before_mono - leader_election._monotonic_clock()
			BETWEEN 3000000000 AND not_before_for AND not_before_for < $for
			FROM leader_election.lease WHERE election = 'held'"),
		't', 'promoted: by the clock of this server');
	$new->stop;
}

# --- No worker: candidates' own calls

{
	$node = new_server(
		name => 'alone',
		config => qq(
leader_election.lease_duration = '2s'
max_worker_processes = 0
max_parallel_workers = 0
client_min_messages = error
));
	$admin = session($node, name => 'boss');
	create('e', 'bully', "initial_delay => '1 s'");
	my @c = (candidate('e', 'low', 1), candidate('e', 'high', 2));
	my $since = stood('e', 'low');
	is(lease('e', 'first_stood_mono'), $since, 'no worker: the first call notes its moment');
	wait_until(sub { stand_as($c[0], 'e', 'low'); return leader('e') ne '' },
		'no worker: a leader');
	is(leader('e'), 'high', 'no worker: any call elects the best one');
	elected_after('e', $since, 1_000_000, 'no worker');

	# Its lease has run out, and nobody has noticed: the next candidate has come
	# too late to have stood then.
	create('late', 'race', "lease_duration => '500 ms'");
	acquire('late', 'a');
	alter('late', "initial_delay => '1 h'");
	wait_until(sub { leader('late') eq '' }, 'the end of a lease');
	push @c, candidate('late', 'b');
	is(leader('late'), '', 'no worker: a call that ends a term elects nobody');
	is(lease('late', 'leader, deserted'), '|t', 'no worker: but has the seat wait');
	$node->stop('immediate');
}

done_testing();
