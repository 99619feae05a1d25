# Detached candidates and the worker. Without it, stopped or gone, their leases
# end when they are due and their own calls elect. It has little to do for them,
# and ends when they are dead.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Detached;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

serve();
watch_terms();

my ($two, $three, $four) =
  map { session($node, name => $_) } qw(two three four);

# -- The worker is stopped, and then terminated.

{
	my (%before, $pid, $renewed);

	foreach my $e ('stopped', 'stopped alone', 'stopped renews')
	{
		is(acquire($e, 'd'), 1, "$e: leads");
		$before{$e} = lease($e);
	}
	is(acquire('stopped calls', 'd1'), 1, 'stopped calls: leads');
	is(joins($two, 'stopped calls'), '', 'stopped calls: a session waits');
	$three->query_async("CALL leader_election.campaign('stopped', 'three')");
	wait_for($node, 'SELECT candidates FROM leader_election.status'
		  . " WHERE election = 'stopped'", 2);
	$pid = stop_worker($control);
	wait_until(
		sub {
			$renewed = renew('stopped renews', 1);
			return $three->finished || $renewed eq '';
		},
		'the poll');
	is($three->result, 2, 'worker stopped: a poll elects (G7)');
	elected_at_ok('stopped', 2, $before{stopped}{deadline_mono},
		'worker stopped');
	wait_until(sub { !holds('stopped alone', 1) }, 'the end of a lease');
	is($control->query($WORKER_PID), $pid, 'worker stopped: there is no other');
	is(lease('stopped alone')->{leader},
		'd', 'worker stopped: nobody has touched a lease that is over');
	is(renew('stopped alone', 1),
		'', 'worker stopped: but it is over all the same');
	is( any("SELECT leader_election.release('stopped alone', 1)"),
		'f', 'worker stopped: and cannot be given back');
	is(acquire('stopped alone', 'd'), 2, 'worker stopped: but granted anew (G7)');
	is(renew('stopped alone', 1), '', 'worker stopped: in another term');
	is(renew('stopped renews', 1),
		1, 'worker stopped: who renews needs no worker');
	wait_until(sub { !holds('stopped calls', 1) }, 'the end of a lease');
	is(acquire('stopped calls', 'd2'),
		'', 'worker stopped: a detached candidate calls');
	is($two->query("SELECT leader_election.term('stopped calls')"),
		2, 'worker stopped: which elects the session that stands (G7)');
	is(history('stopped alone'), 'd expired, d ', 'worker stopped: history');
	resume_process($pid);

	foreach my $e ('gone', 'gone alone', 'gone campaign')
	{
		is(acquire($e, 'd'), 1, "$e: leads");
		$before{$e} = lease($e);
	}
	is(joins($four, 'gone'), '', 'worker gone: a session waits');

	# Each call brings the worker back, but those of observers.
	$pid = $control->query($WORKER_PID);
	$control->query("SELECT pg_terminate_backend($pid)");
	wait_for($node, $NO_WORKER);
	wait_until(sub { !holds('gone', 1) }, 'the end of a lease');
	ok(!leads($four, 'gone'), 'worker gone: nobody is elected');
	is(lease('gone')->{leader}, 'd', 'worker gone: nor is the lease touched');
	is($control->query($NO_WORKER), 't', 'worker gone: it is gone');
	is(joins($four, 'gone'), 2,
		'worker gone: the first poll elects (client-go#448, G7)');
	cmp_ok(lease('gone')->{acquired_mono},
		'>=', $before{gone}{deadline_mono}, 'worker gone: not early (G2)');
	is(history('gone'), 'd expired, four ', 'worker gone: history');
	wait_until(sub { !holds('gone alone', 1) }, 'the end of a lease');
	is(renew('gone alone', 1), '', 'worker gone: a lease is over all the same');
	is(acquire('gone alone', 'd'), 2,
		'worker gone: but granted anew (client-go#448, G7)');

	is(acquire('gone poll', 'd'), 1, 'worker gone once more: leads');
	$before{'gone poll'} = lease('gone poll');
	$three->query_async("CALL leader_election.campaign('gone poll', 'three')");
	wait_for($node, 'SELECT candidates FROM leader_election.status'
		  . " WHERE election = 'gone poll'", 2);
	$pid = $control->query($WORKER_PID);
	$control->query("SELECT pg_terminate_backend($pid)");
	elected_at_ok('gone poll', 2, $before{'gone poll'}{deadline_mono},
		'worker gone once more');
	is($three->result, 2, 'worker gone once more: a waiting campaign leads');
}

watched_ok();
$_->finish foreach $two, $three, $four;

# -- What the worker has to do with detached candidates: little, and it ends
# when they are dead. In a database of its own.

# How often a process has waited, and the processor seconds that it has used.
# (In a second, that is: a worker that looks every 10 ms is busy.)
sub efforts
{
	my ($pid) = @_;
	my ($waits) =
	  slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m;

	return ($waits, cpu_seconds($pid));
}

{
	my ($s, $locker);

	# Does the worker sleep while things are like this?
	my $is_calm = sub {
		my ($name) = @_;
		my $pid = $s->query($WORKER_PID);

	  SKIP:
		{
			skip 'needs /proc', 3 unless -e "/proc/$pid/status";
			my @before = efforts($pid);
			$s->query('SELECT pg_sleep(1)');
			is($s->query($WORKER_PID), $pid, "$name: the worker is there");
			my @after = efforts($pid);
			cmp_ok($after[0] - $before[0], '<', 15, "$name: it sleeps");
			cmp_ok($after[1] - $before[1], '<', 0.2, "$name: and does little");
		}
	};

	$control->query('CREATE DATABASE other');
	$s = session($node, name => 'in other', dbname => 'other');
	$s->query('CREATE EXTENSION leader_election');
	$s->query("SELECT * FROM leader_election.acquire('vacant', 'd1')");
	$s->query("SELECT * FROM leader_election.acquire('vacant', 'd2')");
	$s->query("SELECT leader_election.release('vacant', 1)");
	is( $s->query('SELECT state, waiting_for, candidates'
			  . ' FROM leader_election.status'),
		'vacant|acquire()|2',
		'idle: vacant, with detached candidates only');
	$is_calm->('vacant');
	$s->query("SELECT leader_election.leave('vacant', '$_')")
	  foreach 'd1', 'd2';
	wait_for($node, $NO_WORKER, 't', undef, 'other');
	pass('nobody stands: the worker ends');

	# One that has died, whose row somebody sits on
	$locker = session($node, name => 'locker', dbname => 'other');
	is( $s->query("SELECT term FROM leader_election.acquire('dies', 'd')"),
		1, 'dead: leads');
	$locker->query(
		'BEGIN; SELECT FROM leader_election.candidate FOR UPDATE');
	wait_for($node, 'SELECT NOT alive FROM leader_election.candidates',
		't', undef, 'other');
	$is_calm->('dead, and its row locked');
	$locker->query('ROLLBACK');
	wait_for($node, $NO_WORKER, 't', undef, 'other');
	is( $s->query('SELECT count(*) FROM leader_election.candidate'),
		0, 'dead: its row is removed, and the worker ends');
	is( $s->query(
			"SELECT reason FROM leader_election.history WHERE election = 'dies'"),
		'expired',
		'dead: and its term is over');
	$_->finish foreach $s, $locker;
}

# -- A transaction that holds the locks of leases that are over elects, while the
# worker has seen them, and waits. What it finds then counts, not what it saw.

{
	my @elections = map { "seen $_" } 1 .. 5;
	my $electing = session($node, name => 'electing');
	my $names = join ', ', map { "'$_'" } @elections;
	my $began = "SELECT count(*) FROM leader_election.history
		WHERE election IN ($names) AND leader LIKE 'new %'";

	foreach my $round (1 .. 4)
	{
		# Where the worker of a slow machine was first, it would not wait any more.
		my $elects = "DO \$\$ DECLARE e text; BEGIN
			FOREACH e IN ARRAY ARRAY[$names] LOOP
				PERFORM leader_election.alter_election(e, takeover_delay => '0');
			END LOOP;
			IF EXISTS (SELECT FROM leader_election.lease WHERE election IN ($names) AND leader IS NULL) THEN
				RAISE lock_not_available;
			END IF;
			WHILE (SELECT max(deadline_mono) FROM leader_election.lease WHERE election IN ($names))
				>= leader_election._monotonic_clock()
			LOOP
				PERFORM pg_sleep(0.01);
			END LOOP;
			WHILE NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)
			LOOP
				PERFORM pg_sleep(0.001);
			END LOOP;
			FOREACH e IN ARRAY ARRAY[$names] LOOP
				PERFORM leader_election.acquire(e, 'new $round');
			END LOOP;
		END \$\$";
		wait_until(
			sub {
				acquire($_, "old $round") foreach @elections;
				$electing->query($elects);
				return $electing->sqlstate ne '55P03';
			},
			'the leases to run out under its locks');
		is($electing->sqlstate, '00000', "seen, $round: elected meanwhile");
		wait_for($node, "$began AND ended_at IS NULL", 0);
	}
	is($control->query($began), 4 * @elections, 'seen: each of them led');
	is( $control->query("$began AND ended_at < acquired_at + interval '${LEASE}us'"),
		0, 'seen: to the end of its lease (G2)');
	$electing->finish;
}

$node->stop;
done_testing();
