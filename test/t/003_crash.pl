# The end of the server itself: a crash restart, the death of the postmaster, an
# immediate and a fast stop.  The first candidate that comes back leads at once,
# in a greater term, however long the old lease would have lasted: the session
# that held it is dead for sure.
#
# All of it with synchronous_commit = off, which must not cost a single grant.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;

my $AT_ONCE = 2;

my $node = new_server(
	config => qq(
leader_election.lease_duration = '10min'
restart_after_crash = on
synchronous_commit = off
wal_writer_delay = '10s'
client_min_messages = warning
));
my $term = 0;
my ($leader, $follower, $waiter, $observer);
my @processes;

sub leads
{
	my ($session) = @_;

	return $session->query("SELECT leader_election.is_leader('e')") eq 't';
}

sub stand
{
	my ($name) = @_;
	my $session = session($node, name => $name);
	my $got = $session->query("SELECT leader_election.join('e', '$name')");

	return ($session, $got);
}

sub signal
{
	my ($signal, $pid) = @_;

	is(kill($signal, $pid), 1, "SIG$signal to $pid");
	return;
}

# A leader, one that stands and one that waits.
sub set_scene
{
	my ($name) = @_;

	($leader, $term) = stand('leader') unless $leader && $leader->alive;
	($follower) = stand('follower');
	$waiter = session($node, name => 'waiter');
	$waiter->query_async("CALL leader_election.campaign('e', 'waiter')");
	$observer = session($node, name => 'observer');
	wait_for($node,
		"SELECT candidates FROM leader_election.status WHERE election = 'e'",
		3);
	ok(leads($leader), "$name: leads before");
	ok(!leads($follower), "$name: alone");
	return;
}

sub all_sessions_are_over
{
	foreach my $session ($leader, $follower, $waiter, $observer)
	{
		if ($session->{busy})
		{
			$session->result;
		}
		else
		{
			wait_until(sub { $session->sqlstate_of('SELECT 1') eq '08006' },
				'the end of a session');
		}
	}
	return;
}

# Starts the server once all of its processes are gone, with the dead one's
# shared memory.  To be told which, before it dies.
sub processes
{
	return (
		(slurp_file($node->data_dir . '/postmaster.pid') =~ /\A(\d+)/),
		$observer->query('SELECT pid FROM pg_catalog.pg_stat_activity'));
}

sub start_again
{
	my (@processes) = @_;

	wait_until(sub { !kill(0, @processes) }, 'the end of all processes');
	$node->start;
	return;
}

# After the server is back: nobody leads until somebody comes, who then leads
# at once.  The last term is $term, or a later one in which nobody was told
# that it leads.
sub test_return
{
	my ($name, $later) = @_;
	my $start;
	my $got;

	wait_for($node, 'SELECT true');
	$observer = session($node, name => 'observer');
	is( $observer->query(
			"SELECT leader_election.leader('e') IS NULL,
				(SELECT state FROM leader_election.status WHERE election = 'e'),
				(SELECT count(*) FROM leader_election.candidates WHERE alive)"),
		't|vacant|0',
		"$name: nobody leads");
	my ($last, $lasts, $over) =
	  split /\|/, $observer->query(
		"SELECT (SELECT max(term) FROM leader_election.history WHERE election = 'e'),
			term, leader IS NULL OR expires_at < clock_timestamp() + '9 min'
		FROM leader_election.lease WHERE election = 'e'");
	is($last, $lasts, "$name: lease and history agree");
	cmp_ok($last, $later ? '>=' : '==', $term, "$name: the last term");
	is($over, 'f', "$name: whose lease has long to go") unless $later;

	# Under a name that was in use.
	$start = machine_time();
	($leader, $got) = stand('follower');
	cmp_ok(machine_time() - $start, '<', $AT_ONCE, "$name: at once (client-go#448)");
	is($got, $last + 1, "$name: a greater term (G5)");
	$term = $got;
	ok(leads($leader), "$name: says so");
	($follower, $got) = stand('leader');
	is($got, '', "$name: the next to come follows (G1)");
	ok(!leads($follower), "$name: and knows");
	is( $observer->query(
			"SELECT reason, ended_at IS NOT NULL, count(*) OVER ()
			FROM leader_election.history
			WHERE election = 'e' AND term >= $term - 1 ORDER BY term LIMIT 1"),
		'session ended|t|2',
		"$name: history");
	is( $observer->query(
			"SELECT count(*), min(term), max(term),
				count(*) FILTER (WHERE ended_at IS NULL)
			FROM leader_election.history WHERE election = 'e'"),
		"$term|1|$term|1",
		"$name: no term is missing (G5)");
	is( $observer->query(
			'SELECT count(*), max(epoch) FROM leader_election.epoch'),
		'1|0',
		"$name: the same incarnation");

	# The worker elects the follower as soon as the leader is dead.
	$leader->kill;
	wait_until(sub { leads($follower) }, 'takeover', $AT_ONCE);
	$term++;
	is($follower->query("SELECT leader_election.term('e')"),
		$term, "$name: and takes over");
	$leader = $follower;
	return;
}

set_scene('leader\'s backend killed');
signal('KILL', $leader->backend_pid);
all_sessions_are_over();
test_return('leader\'s backend killed');

set_scene('another backend killed');
$leader->query_async('SELECT pg_sleep(600)');
signal('KILL', $observer->backend_pid);
all_sessions_are_over();
test_return('another backend killed');

set_scene('postmaster killed');
@processes = processes();
$node->kill9;
all_sessions_are_over();
start_again(@processes);
test_return('postmaster killed');

# A grant must be on disk when it is told, even with synchronous_commit = off.
foreach my $try (1 .. 2)
{
	my $got;

	$observer->query(
		"CREATE TABLE IF NOT EXISTS witness (i integer)");
	$leader->query("SELECT leader_election.leave('e')");
	$leader->query("SELECT leader_election.join('e', 'leader')");
	($follower) = stand('follower');
	$term = $leader->query("SELECT leader_election.term('e')");
	if ($try > 1)
	{
		$leader->kill;
		wait_until(sub { leads($follower) }, 'takeover');
		$term++;
		$leader = $follower;
	}
	@processes = processes();
	$observer->query("INSERT INTO witness VALUES ($try)");
	$node->kill9;
	start_again(@processes);
	$observer = session($node, name => 'observer');
	note('an asynchronous commit was '
		  . (
			$observer->query("SELECT FROM witness WHERE i = $try")
			? 'kept'
			: 'lost'));
	is( $observer->query(
			"SELECT term, leader FROM leader_election.history
			WHERE election = 'e' ORDER BY term DESC LIMIT 1"),
		"$term|" . ($try > 1 ? 'follower' : 'leader'),
		"killed after a grant $try: the grant is there (G6)");
	($leader, $got) = stand('leader');
	is($got, $term + 1, "killed after a grant $try: a greater term (G5)");
	$term = $got;
}

set_scene('immediate stop');
$node->stop('immediate');
all_sessions_are_over();
$node->start;
test_return('immediate stop');

set_scene('fast stop');
$node->stop('fast');
all_sessions_are_over();
$node->start;
test_return('fast stop', 1);

set_scene('fast stop, leader is busy');
$leader->query_async('DO $$ BEGIN LOOP END LOOP; END $$');
{
	my $start = machine_time();

	$node->stop('fast');
	cmp_ok(machine_time() - $start, '<', 10, 'fast stop, leader is busy: it stops');
}
all_sessions_are_over();
$node->start;
test_return('fast stop, leader is busy', 1);

# A backend that outlives the postmaster because it computes goes by the clock:
# nobody renews its lease any more.
{
	my ($orphan, $last_true, $deadline, $back);
	my $mark = held_up();
	my $lease = 4000 * slowness();

	$node->append_conf('postgresql.conf',
		"leader_election.lease_duration = '${lease}ms'");
	$node->reload;
	wait_for($node, "SELECT current_setting('leader_election.lease_duration')::interval = '${lease}ms'");
	$orphan = session($node, name => 'orphan');
	is($orphan->query("SELECT leader_election.join('short', 'orphan')"),
		1, 'orphan: leads');
	$orphan->query_async(
		q{DO $$ DECLARE now bigint; last_true bigint; BEGIN
			LOOP
				now := leader_election._monotonic_clock();
				EXIT WHEN NOT leader_election.is_leader('short');
				last_true := now;
			END LOOP;
			RAISE WARNING 'last true: %', last_true;
		END $$});
	wait_for($node,
		"SELECT deadline_mono - acquired_mono > 1000 * $lease
		FROM leader_election.lease WHERE election = 'short'");
	@processes = processes();
	$node->kill9;
	ok(!$orphan->finished, 'orphan: goes on');
	$orphan->result;
	($last_true) = $orphan->errors =~ /last true: (\d+)/;

	start_again(@processes);
	$back = session($node, name => 'back');
	$deadline = $back->query("SELECT deadline_mono FROM leader_election.lease
		WHERE election = 'short'");
	cmp_ok($last_true, '<', $deadline, 'orphan: leads no longer than its lease (G3)');
	cmp_ok($last_true, '>', $deadline - 1_000_000 - held_up($mark), 'orphan: but as long');
	is($back->query("SELECT leader_election.join('short', 'back')"),
		2, 'orphan: the first to come back leads');
	is( $back->query(
			"SELECT acquired_mono > $last_true, leader_election.is_leader('short')
			FROM leader_election.lease WHERE election = 'short'"),
		't|t',
		'orphan: after it (G1, G2)');
	is( $back->query("SELECT reason FROM leader_election.history
			WHERE election = 'short' AND term = 1"),
		'expired',
		'orphan: history');
}

# With the library preloaded, nobody has to come for the old term to end.
$node->append_conf('postgresql.conf',
	"shared_preload_libraries = 'leader_election'");
($leader, my $got) = stand('leader');
$term = $got;
$node->restart;
wait_for(
	$node,
	"SELECT reason, leader_election.leader('e') IS NULL
	FROM leader_election.history WHERE election = 'e' AND term = $term",
	'session ended|t');
($leader, $got) = stand('leader');
is($got, $term + 1, 'preloaded: the first to come back leads');
ok(leads($leader), 'preloaded: and says so');

$node->stop;
done_testing();
