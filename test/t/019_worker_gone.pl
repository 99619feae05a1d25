# What ends the background worker: the extension is dropped, the database closed
# to new sessions or dropped, the worker killed. And a server in which there can
# be none, because another database has the only slot.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

my $node = new_server(
	config => q(
leader_election.lease_duration = '2s'
leader_election.worker_idle_timeout = '300ms'
restart_after_crash = on
max_worker_processes = 8
));
my $control = session($node, name => 'control');

# -- DROP EXTENSION while all this is running.

{
	my $offset = -s $node->logfile;
	my $one = session($node, name => 'one');
	my $two = session($node, name => 'two');
	my $three = session($node, name => 'three');

	$one->query("SELECT leader_election.join('drop', 'one')");
	$two->query_async("CALL leader_election.campaign('drop', 'two')");
	$three->query_async(
		"CALL leader_election.wait_for_change('drop', 1, 'one')");
	wait_for($node,
		'SELECT count(*) = 2 FROM leader_election.candidates'
		  . " WHERE election = 'drop' AND alive");
	wait_for($node, $ONE_WORKER);

	is($control->sqlstate_of('DROP EXTENSION leader_election'),
		'00000', 'DROP EXTENSION beside a leader, waiters and the worker');
	wait_for($node, $NO_WORKER);
	pass('ends the worker');
	$two->result;
	is($two->sqlstate, 'LE003', 'campaign() ends');
	like($two->errors, qr/HINT|DETAIL/, 'and says why');
	$three->result;
	is($three->sqlstate, 'LE003', 'wait_for_change() ends');
	is( $control->query(
			"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
			  . ' AND objsubid >= 20 AND pid <> '
			  . $one->backend_pid),
		0,
		'neither leaves a lock behind');

	is($control->sqlstate_of('CREATE EXTENSION leader_election'),
		'00000', 'it can be created again');
	is($one->query("SELECT leader_election.is_leader('drop')"),
		'f', 'the leader of before does not lead');
	is($two->query("SELECT leader_election.join('drop', 'two')"),
		'1', 'the sessions of before can stand');
	is($one->query("SELECT leader_election.join('drop', 'one')"),
		'', 'all of them');
	$two->query("SELECT leader_election.leave('drop')");
	is($one->query("SELECT leader_election.term('drop')"),
		'2', 'and are elected');
	wait_for($node, $ONE_WORKER);
	wait_for_renewal($node, 'drop');

	# One that waits while the extension is replaced must not wait for an
	# election that is no more. It is stopped, so as not to see the gap.
	$two->query_async("CALL leader_election.campaign('drop', 'two')");
	wait_for($node,
		'SELECT count(*) = 2 FROM leader_election.candidates'
		  . " WHERE election = 'drop' AND alive");
	stop_where($control, 'SELECT ' . $two->backend_pid, "wait_event_type = 'Extension'");
	$control->query('DROP EXTENSION leader_election');
	$control->query('CREATE EXTENSION leader_election');
	is($three->query("SELECT leader_election.join('drop', 'three')"),
		'1', 'an election of the same name, in a new extension');
	resume_process($two->backend_pid);
	wait_until(
		sub {
			$two->finished
			  || $control->query("SELECT count(*) FROM leader_election.candidates"
				  . " WHERE candidate = 'two' AND alive");
		},
		'LE003, or a candidate');
	pass('a campaign in the old extension stands in the new one, or is told');
	if ($two->finished)
	{
		$two->result;
		is($two->sqlstate, 'LE003', 'that it is gone');
	}

	$_->kill foreach $one, $two, $three;
	wait_for($node, $NO_WORKER);
	my $log = slurp_file($node->logfile, $offset);
	unlike(
		$log,
		qr/background worker "leader_election.*exited with exit code/,
		'no worker failed on the way');
}

# -- No new sessions, but those that stay still get a worker.

{
	$control->query('CREATE DATABASE closed');
	my $one = session($node, name => 'one', dbname => 'closed');
	my $two = session($node, name => 'two', dbname => 'closed');

	$one->query('CREATE EXTENSION leader_election');
	$control->query('ALTER DATABASE closed ALLOW_CONNECTIONS false');
	is($one->query("SELECT leader_election.join('closed', 'one')"),
		'1', 'a session of a database that is closed to new ones is elected');
	is($two->query("SELECT leader_election.join('closed', 'two')"),
		'', 'another one stands');
	my $now = $one->query('SELECT clock_timestamp()');
	wait_until(
		sub {
			$one->query("SELECT renewed_at > '$now' FROM leader_election.lease") eq 't';
		},
		'a renewal');
	is($one->query("SELECT leader_election.is_leader('closed')"),
		't', 'its lease is renewed by a worker');
	$one->kill;
	wait_until(
		sub { $two->query("SELECT leader_election.is_leader('closed')") eq 't' },
		'a takeover');
	pass('and taken over');
	$two->finish;
	wait_for($node, "SELECT count(*) = 0 FROM pg_stat_activity"
		  . " WHERE backend_type = 'leader_election worker'");
	is($control->sqlstate_of('DROP DATABASE closed'),
		'00000', 'DROP DATABASE');
}

# -- DROP DATABASE.

{
	my $offset = -s $node->logfile;

	foreach my $force (0, 1)
	{
		$control->query('CREATE DATABASE other');
		my $one = session($node, name => 'one', dbname => 'other');
		$one->query('CREATE EXTENSION leader_election');
		$one->query("SELECT leader_election.join('db', 'one')");
		wait_for($node, $ONE_WORKER, 't', undef, 'other');
		if ($force)
		{
			is( $control->sqlstate_of('DROP DATABASE other WITH (FORCE)'),
				'00000', 'DROP DATABASE WITH (FORCE) beside a leader');
			$one->kill;
		}
		else
		{
			$one->finish;
			is($control->sqlstate_of('DROP DATABASE other'),
				'00000', 'DROP DATABASE just after the last candidate left');
		}
	}
	wait_for($node, "SELECT count(*) = 0 FROM pg_stat_activity"
		  . " WHERE backend_type = 'leader_election worker'");

	# A worker that was on its way may fail once, but nothing goes on failing.
	my @failures =
	  slurp_file($node->logfile, $offset) =~
	  /background worker "leader_election.*exited with exit code/g;
	cmp_ok(scalar @failures, '<=', 2, 'no crash loop after that');
}

# -- The worker is killed, and with it, as is the server's way, every session.

{
	my $one = session($node, name => 'one');
	my $two = session($node, name => 'two');

	# It must not be over before the server is back.
	$one->query("SELECT leader_election.create_election('crash', lease_duration => '10 s')");
	$one->query("SELECT leader_election.join('crash', 'one')");
	$two->query_async("CALL leader_election.campaign('crash', 'two')");
	wait_for($node, $ONE_WORKER);
	wait_for($node,
		'SELECT count(*) = 2 FROM leader_election.candidates'
		  . " WHERE election = 'crash' AND alive");
	kill 'KILL', $control->query($WORKER_PID);
	$two->result;
	is($two->sqlstate, '08006', 'the crash ended the sessions');
	wait_for($node, 'SELECT 1', '1');
	$control = session($node, name => 'control');
	is($control->query($NO_WORKER), 't', 'no worker after the crash');
	is($control->query("SELECT leader_election.leader('crash')"),
		'', 'the dead leader does not lead');
	$two = session($node, name => 'two');
	is($two->query("SELECT leader_election.join('crash', 'two')"),
		'2', 'the first who comes back leads at once');
	is( $control->query(
			'SELECT reason FROM leader_election.history'
			  . " WHERE election = 'crash' AND term = 1"),
		'session ended',
		'because the session of the former leader has ended');
	wait_for($node, $ONE_WORKER);
	wait_for_renewal($node, 'crash');
	is($two->query("SELECT leader_election.is_leader('crash')"),
		't', 'with a worker');
	$two->finish;
}

$control->finish;
$node->stop;

# -- No free worker slot. There is one, and another database has it. When that is free, the
# lease must not be over before a worker has come.

my $LEASE = 4 * slowness();

$node = new_server(
	name => 'full',
	config => qq(
leader_election.lease_duration = '${LEASE}s'
leader_election.worker_idle_timeout = '100ms'
max_worker_processes = 1
max_logical_replication_workers = 0
));
$control = session($node, name => 'control');
$control->query('CREATE DATABASE other');

{
	my $occupant = session($node, name => 'occupant', dbname => 'other');
	my $one = session($node, name => 'one');
	my $two = session($node, name => 'two');

	$occupant->query('CREATE EXTENSION leader_election');
	$occupant->query("SELECT leader_election.join('full', 'occupant')");
	wait_for($node, $ONE_WORKER, 't', undef, 'other');

	is($one->query("SELECT leader_election.join('full', 'one')"),
		'1', 'join succeeds without a worker slot (G7)');
	is($one->sqlstate, '00000', 'without an error');
	like(
		$one->errors,
		qr/WARNING:.*worker.*HINT:.*max_worker_processes/s,
		'but with a warning and a hint');
	$one->query('\set VERBOSITY sqlstate');
	$one->query("SELECT leader_election.leave('full')");
	wait_until(
		sub {
			$one->query("SELECT leader_election.join('full', 'one')");
			return $one->errors =~ /WARNING:\s+53400/;
		},
		'another warning, with SQLSTATE 53400');
	is($one->query("SELECT leader_election.is_leader('full')"),
		't', 'it leads');
	wait_until(
		sub { $one->query("SELECT leader_election.is_leader('full')") eq 'f' },
		'the end of the lease');
	pass('and, with nobody to renew the lease, steps down');

	# A waiting campaign needs no worker to be elected, and gets one as soon
	# as there is a slot.
	$one->query("SELECT leader_election.leave('full')");
	is($two->query("CALL leader_election.campaign('full', 'two', '5s')") > 1,
		1, 'campaign elects without a worker (G7)');
	$one->query_async("CALL leader_election.campaign('full', 'one')");
	$occupant->finish;
	wait_for($node, $ONE_WORKER);
	pass('a waiting campaign starts the worker when a slot is free');
	$two->kill if $two->query("SELECT leader_election.is_leader('full')") eq 't';
	cmp_ok($one->result, '>', 2, 'and goes on waiting until elected');
	$_->finish foreach grep { $_->alive } $one, $two;
}

$control->finish;
$node->stop;
done_testing();
