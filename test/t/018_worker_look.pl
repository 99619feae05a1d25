# What the worker looks at, and when: elections and candidates that have nothing
# to do with a leader's end delay neither its replacement nor anybody's renewals,
# and what the worker remembers of its last look is never believed.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use Worker;

my $MANY = 10000;
my $CROWD = 200000;
my $SOON = 2;
my $ATTEMPTS = 5;

# Nothing here expires, save where a lease says so.
my $node = new_server(
	config => qq(
leader_election.lease_duration = '10min'
client_min_messages = warning
autovacuum = off
));
my $control = session($node, name => 'control');

# A table that never had a row is not searched: looks are counted by that of groups.
$control->query($_) foreach "SELECT leader_election.create_group('counted', 1)", "SELECT leader_election.drop_group('counted')";

# Have the worker look, and return what it did meanwhile.  It is waked until the
# statistics, which it reports once a second at most, tell of ten looks: each
# reads the groups once, and here nothing else does.
sub ten_looks
{
	my $counts = "SELECT (SELECT idx_scan FROM pg_stat_user_indexes
			WHERE schemaname = 'leader_election' AND indexrelname = 'election_group_pkey'),
		(SELECT idx_scan FROM pg_stat_user_indexes
			WHERE schemaname = 'leader_election' AND indexrelname = 'election_pkey')";
	my $waker = session($node, name => 'waker');
	my ($looks, $reads) = split /\|/, $control->query($counts);
	my ($looks_now, $reads_now);

	wait_until(
		sub {
			$waker->query("SELECT leader_election.join('waker', 'waker')");
			$waker->query("SELECT leader_election.leave('waker')");
			($looks_now, $reads_now) = split /\|/, $control->query($counts);
			return $looks_now >= $looks + 10;
		},
		'ten looks');
	$waker->finish;
	return ($looks_now - $looks, $reads_now - $reads);
}

# Seconds from the death of a leader's client to the answer of the campaign that
# waits, the best of some, in the machine's time.
sub best_takeover
{
	my ($election) = @_;
	my $best = 1e9;

	foreach my $try (1 .. 7)
	{
		my $one = session($node, name => 'one');
		my $two = session($node, name => 'two');
		my $start;

		$one->query("SELECT leader_election.join('$election', 'one')");
		wait_for($node, "SELECT leader_election.leader('$election')", 'one');
		$two->query_async("CALL leader_election.campaign('$election', 'two')");
		wait_for($node, "SELECT count(*) FROM leader_election.candidates
			WHERE election = '$election' AND alive", 2);

		# The worker has looked at that, and sleeps.
		wait_for($node, "SELECT state FROM $WORKERS", 'idle');
		Time::HiRes::sleep(0.1);
		$start = machine_time();
		$one->kill;
		$two->result;
		$best = machine_time() - $start if machine_time() - $start < $best;
		$two->finish;
	}
	note(sprintf 'takeover in %s: %.1f ms', $election, 1000 * $best);
	return $best;
}

# -- A session ends without a wake-up, and a renewal is due just when that is seen

{
	my $listener = Announced->new($node);
	my ($one, $two, $short) = map { session($node, name => $_) } qw(one two short);

	$control->query("SELECT leader_election.create_election('short', lease_duration => '300ms')");
	$short->query("SELECT leader_election.join('short', 'short')");
	$one->query("SELECT leader_election.join('unseen', 'one')");
	$two->query("SELECT leader_election.join('unseen', 'two')");
	$listener->wait_for_event('unseen', 'elected 1 one');

	# The wake-up comes when the transaction ends.
	$one->query('BEGIN');
	$one->query('SELECT pg_advisory_unlock_all()');
	wait_for($node, "SELECT leader_election.leader('unseen')", 'two');
	wait_until(sub { grep { /^elected 2 two/ } $listener->events('unseen') },
		'the election to be announced, with no look but the one that follows');
	pass('what is settled before a look is announced, although a renewal is due');
	$_->finish foreach $one, $two, $short;
}

# -- Many elections in which nobody stands

{
	my $alone = best_takeover('alone');
	my $beside;
	my ($looks, $reads);

	$control->query("INSERT INTO leader_election.election
			(election, strategy, lease_duration, quorum, takeover_delay, owner)
		SELECT 'vacant ' || i, 'race', '10 min', 1, '0', current_user
		FROM generate_series(1, $MANY) i");
	$control->query("INSERT INTO leader_election.lease
			(election, term, yielding, yield_ordered, yields)
		SELECT 'vacant ' || i, 0, false, false, 0 FROM generate_series(1, $MANY) i");
	$control->query("INSERT INTO leader_election.announced
		SELECT election, 0, true, 0 FROM leader_election.lease
		WHERE election LIKE 'vacant %'");
	($looks, $reads) = ten_looks();
	note("$reads reads of settings");
	cmp_ok($reads, '<', $MANY / 4,
		"$looks looks at $MANY elections in which nobody stands read no settings of them");
	$beside = best_takeover('beside');
	cmp_ok($beside, '<', 2 * ($alone > 0 ? $alone : 0) + 0.02,
		'they do not delay a takeover elsewhere (G7)');
	$control->query("DELETE FROM leader_election.lease WHERE election LIKE 'vacant %'");
	$control->query("DELETE FROM leader_election.election WHERE election LIKE 'vacant %'");
}

# -- What the worker remembers is a hint.  It is stopped, so that it learns of
# nothing that happens, and goes on with what it knew.

{
	my ($one, $two) = map { session($node, name => $_) } qw(one two);
	my $pid;

	foreach my $election ('taken', 'dropped', 'created', 'resigned', 'known')
	{
		$one->query("SELECT leader_election.join('$election', 'one')");
	}
	$two->query("SELECT leader_election.join('known', 'two')");
	ten_looks();

	$pid = stop_worker($control);
	$one->query("SELECT leader_election.resign('resigned')");
	is($one->query("SELECT leader_election.join('resigned', 'one')"),
		'2', 'a session resigns, and leads again');
	is($one->query("SELECT leader_election.join('unknown', 'one')"),
		'1', 'and elsewhere, which the worker has not seen');
	$two->query("SELECT leader_election.join('resigned', 'two')");
	$two->query("SELECT leader_election.join('unknown', 'two')");
	$one->kill;
	wait_gone($node, $one);
	is($two->query("SELECT leader_election.join('taken', 'two')"),
		'2', 'its election is taken over');
	$control->query("SELECT leader_election.drop_election('$_')")
	  foreach 'dropped', 'created';
	$control->query("SELECT leader_election.create_election('created')");
	resume_process($pid);

	foreach my $known ([ 'known', 2 ], [ 'resigned', 3 ], [ 'unknown', 2 ])
	{
		my ($election, $term) = @$known;

		wait_for($node, "SELECT leader, term FROM leader_election.status
			WHERE election = '$election'", "two|$term", $SOON);
		pass("$election: the successor leads");
	}
	ten_looks();
	is($control->query($WORKER_PID), $pid, 'it is the same worker');
	is( $control->query("SELECT leader, term FROM leader_election.status
			WHERE election = 'taken'"),
		'two|2', 'what was taken over meanwhile stays with its leader');
	is( $control->query("SELECT count(*) FROM leader_election.history
			WHERE election = 'taken'"),
		'2', 'and has had no other term');
	is( $control->query("SELECT state, leader FROM leader_election.status
			WHERE election IN ('dropped', 'created')"),
		'vacant|', 'what was dropped meanwhile is gone, or vacant');
	unlike(slurp_file($node->logfile), qr/ERROR/, 'nothing has failed');
	$two->finish;
}

# -- A crowd of candidates, which one role has made, costs others nothing.

{
	my ($one, $two, $held) = map { session($node, name => $_) } qw(one two held);
	my ($term, $until, $kept);

	$control->query("SELECT leader_election.create_election('crowd')");
	$control->query("INSERT INTO leader_election.candidate
			(election, candidate, kind, role, rank, progress, auto_renew,
			joined_at, place_mono, defers, seen_mono, seen_for)
		SELECT 'crowd', 'candidate ' || i, 'detached', current_user, 0, 0, true,
			now(), 1, false, leader_election._monotonic_clock(), 3600000000
		FROM generate_series(1, $CROWD) i");
	$control->query("SELECT leader_election.alter_election('short', lease_duration => '500 ms')");
	like($one->query("SELECT leader_election.join('short', 'one')"),
		qr/^\d+$/, 'beside a crowd, one leads for a short time');
	$two->query("SELECT leader_election.join('held', 'two')");
	$held->query("SELECT leader_election.join('held', 'held')");
	$two->query("SELECT leader_election.resign('held', '3 s')");

	# A worker that looks at the crowd instead is late each time; one that stood still
	# with its machine, now and then.
	foreach my $attempt (1 .. $ATTEMPTS)
	{
		$term = $one->query("SELECT leader_election.term('short')");
		$until = time + 5;
		wait_until(
			sub {
				$control->query("SELECT leader_election.create_election('e')");
				$control->query("SELECT leader_election.drop_election('e')");
				return time > $until;
			},
			'five seconds');
		$kept = $term ne '' && $one->query("SELECT leader_election.term('short')") eq $term;
		last if $kept;
	}
	ok($kept, 'it is renewed all the time');
	wait_for($node, "SELECT leader_election.leader('held')", 'held');
	pass('and after all of them were looked at, a vacancy is seen to');

	$one->query("SELECT leader_election.join('killed', 'one')");
	$two->query("SELECT leader_election.join('killed', 'two')");
	ok(ten_looks(), 'the worker knows them');
	$one->kill;
	wait_for($node, "SELECT leader FROM leader_election.status
		WHERE election = 'killed'", 'two', $SOON);
	pass('a dead leader is replaced soon');
	is( $control->query("SELECT count(*) FROM leader_election.candidate
			WHERE election = 'crowd'"),
		$CROWD, 'the crowd is still there');
}

done_testing();
