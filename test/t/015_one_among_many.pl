# What is wrong with some elections, or with one client, does not concern the
# others.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

# Longer than anything here may take
my $LONG = 60;

my $node = new_server(
	config => q(
leader_election.lease_duration = '1 s'
client_min_messages = warning
));
my $control = session($node, name => 'control');

# -- Elections that a client keeps locked, and whose leases are short, do not
# keep the worker from the others.

{
	my ($busy, $healthy, $one, $two) =
	  map { session($node, name => $_) } qw(busy healthy one two);
	my @busy = map { "busy $_" } 1 .. 8;

	foreach my $election (@busy, 'healthy')
	{
		$control->query("SELECT leader_election.create_election('$election', lease_duration => '300ms')");
	}
	$control->query("SELECT leader_election.create_election('last', lease_duration => '1 h')");
	$busy->query("SELECT leader_election.join('$_', 'busy')") foreach @busy;
	$healthy->query("SELECT leader_election.join('healthy', 'healthy')");
	$one->query("SELECT leader_election.join('last', 'one')");
	$two->query("SELECT leader_election.join('last', 'two')");
	$busy->query_async("DO \$\$ BEGIN
		PERFORM leader_election.leave_all(); PERFORM pg_sleep($LONG); END \$\$");
	wait_for($node,
		"SELECT count(*) FROM leader_election.status WHERE election LIKE 'busy%' AND state = 'vacant'",
		scalar @busy);
	$one->kill;
	wait_for($node, "SELECT leader_election.leader('last')", 'two');
	ok(!$busy->finished, 'a leader is replaced while others are locked (G9)');
	$busy->kill;
	$_->finish foreach $healthy, $two;
}

# -- A lease that cannot be renewed ends alone.

{
	my ($broken, $one, $locker) = map { session($node, name => $_) } qw(broken one locker);

	# 'locked' is renewed after a third of its lease: any other lease is over by then,
	# unless it was renewed.
	my $s = slowness();
	$control->query("SELECT leader_election.create_election('$_', lease_duration => '" . 4 * $s . " s')")
	  foreach 'broken', map { "fine $_" } 1 .. 3;
	$broken->query("SELECT leader_election.join('broken', 'broken')");
	$one->query("SELECT leader_election.join('fine $_', 'one')") foreach 1 .. 3;
	$control->query("SELECT leader_election.create_election('locked', lease_duration => '" . 18 * $s . " s')");
	$one->query("SELECT leader_election.join('locked', 'one')");
	$control->query("ALTER TABLE leader_election.lease
		ADD CONSTRAINT fail CHECK (election <> 'broken') NOT VALID");
	$locker->query("BEGIN; SELECT FROM leader_election.lease WHERE election = 'locked' FOR UPDATE");
	wait_for($node, "SELECT leader_election.leader('broken') IS NULL");
	$locker->query('ROLLBACK');
	wait_for($node, "SELECT renewed_at > acquired_at AND term = 1 FROM leader_election.lease WHERE election = 'locked'");
	pass('so is one whose row was locked, when it is free again');
	is( $control->query("SELECT string_agg(term::text, ' ') FROM leader_election.history
			WHERE election LIKE 'fine%' AND ended_at IS NULL"),
		'1 1 1',
		'leases are renewed though another one cannot be');
	$control->query('ALTER TABLE leader_election.lease DROP CONSTRAINT fail');
	$_->finish foreach $broken, $one, $locker;
}

# -- Several that cannot be renewed are tried again after pauses: between these, the
# worker does nothing.

{
	my $broken = session($node, name => 'broken');

	foreach my $election ('broken 1', 'broken 2')
	{
		$control->query("SELECT leader_election.create_election('$election', lease_duration => '30 s')");
		$broken->query("SELECT leader_election.join('$election', 'broken')");
	}
	$control->query("ALTER TABLE leader_election.lease
		ADD CONSTRAINT fail CHECK (election NOT LIKE 'broken%') NOT VALID");
	wait_for($node, "SELECT bool_and(expires_at - interval '18 s' < clock_timestamp()) FROM leader_election.lease WHERE election LIKE 'broken _'");
	cmp_ok(transactions_in($control, 3), '<', 400, 'the worker makes no transaction after another');
	$control->query('ALTER TABLE leader_election.lease DROP CONSTRAINT fail');
	$broken->finish;
}

# -- A client that dies is noticed while its command goes on, also if that had to
# wait to be elected.

{
	my ($first, $heir) = map { session($node, name => $_) } qw(first heir);
	my $client = session($node, name => 'client');

	$control->query("CREATE PROCEDURE work() LANGUAGE plpgsql AS
		\$\$ DECLARE term bigint;
		BEGIN CALL leader_election.campaign('worked', 'client', term => term);
		PERFORM pg_sleep($LONG); END \$\$");
	$first->query("SELECT leader_election.join('worked', 'first')");
	$client->query_async('CALL work()');
	wait_for($node, "SELECT count(*) FROM leader_election.candidates WHERE election = 'worked'", 2);
	$first->query("SELECT leader_election.leave('worked')");
	wait_for($node, "SELECT leader_election.leader('worked')", 'client');
	$heir->query("SELECT leader_election.join('worked', 'heir')");
	wait_for($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'client' AND wait_event = 'PgSleep'", 1);
	my $start = machine_time();
	$client->kill;
	wait_for($node, "SELECT leader_election.leader('worked')", 'heir');
	cmp_ok(machine_time() - $start, '<', $LONG / 2, 'a dead client is noticed though its command goes on');
	$_->finish foreach $first, $heir;
}

done_testing();
