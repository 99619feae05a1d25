# A detached leader leads on through a crash of the server, and may lead on after
# a failover.

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

# -- The end of the server: a detached leader leads on.

{
	my $e = 'crash';
	my $lease = 30_000_000;
	my ($app, $stranger, $deadline);

	# Longer than a page, so that it is stored out of line
	my $metadata = "(SELECT jsonb_agg(md5(i::text)) FROM generate_series(1, 227) i)";
	my $profile = "SELECT rank, progress, metadata = $metadata, kind, role"
	  . " FROM leader_election.candidate WHERE election = '$e'"
	  . " AND candidate = 'd'";

	my $connect = sub {
		wait_for($node, 'SELECT true');
		connect_all();
		$app = session($node, name => 'app', user => 'app');
		$stranger = session($node, name => 'stranger', user => 'stranger');
	};
	my $processes = sub {
		return (
			(slurp_file($node->data_dir . '/postmaster.pid') =~ /\A(\d+)/),
			$control->query('SELECT pid FROM pg_catalog.pg_stat_activity'));
	};
	my $lose = sub {
		$_->kill foreach $control, @pool, $app, $stranger;
	};
	my %crashes = (
		'1 a backend killed' => sub {
			kill 'KILL', $stranger->backend_pid;
			wait_until(sub { $control->sqlstate_of('SELECT 1') eq '08006' },
				'the crash');
			$lose->();
		},
		'2 the worker killed' => sub {
			kill 'KILL', $control->query($WORKER_PID);
			wait_until(sub { $control->sqlstate_of('SELECT 1') eq '08006' },
				'the crash');
			$lose->();
		},
		'3 the postmaster killed' => sub {
			my @pids = $processes->();

			$node->kill9;
			$lose->();
			wait_until(sub { !kill(0, @pids) }, 'the end of all processes');
			$node->start;
		},
		'4 an immediate stop' => sub {
			$node->stop('immediate');
			$lose->();
			$node->start;
		});

	create_election($e, $lease);
	$control->query(
		'CREATE ROLE app LOGIN; CREATE ROLE stranger LOGIN;'
		  . ' GRANT USAGE ON SCHEMA leader_election TO app, stranger;'
		  . ' GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election'
		  . ' TO app, stranger');
	$_->finish foreach $control, @pool;
	$connect->();
	is( $app->query("SELECT term FROM leader_election.acquire('$e', 'd',"
			  . " rank => 7, progress => 3, metadata => $metadata)"),
		1,
		'crash: leads');
	foreach my $crash (sort keys %crashes)
	{
		my ($progress, $name) = $crash =~ /(\d) (.*)/;

		# A renewal is on disk when it is told, even with synchronous_commit = off.
		$app->query('SET synchronous_commit = off');
		is( $app->query("SELECT term FROM leader_election.renew('$e', 1,"
				  . " 10 + $progress)"),
			1,
			"$name: renewed");
		$deadline = lease($e)->{deadline_mono};
		is( $control->query($profile),
			'7|1' . $progress . '|t|detached|app',
			"$name: what it said of itself");
		$crashes{$crash}->();
		$connect->();
		is( $control->query('SELECT count(*) FROM leader_election.candidate'),
			0, "$name: no candidate is left");
		is( $control->query("SELECT leader_election.leader('$e')"),
			'd', "$name: it leads all the same");
		ok(holds($e, 1), "$name: in its term");
		is(lease($e)->{deadline_mono}, $deadline, "$name: as long as it was (G6)");
		is($control->query($NO_WORKER), 't', "$name: without a worker");

		# Its name is its own, though its row is gone.
		is( $stranger->sqlstate_of(
				"SELECT leader_election.acquire('$e', 'd')"),
			'LE004',
			"$name: another role cannot have its name");
		is($_->sqlstate_of("SELECT leader_election.join('$e', 'd')"),
			'LE004', "$name: nor a session")
		  foreach $stranger, $app;
		is( $stranger->sqlstate_of(
				"SELECT leader_election.renew('$e', 1)"),
			'42501',
			"$name: nor its lease");
		is( $stranger->query("SELECT leader_election.acquire('$e', 's')"),
			'', "$name: nobody else is granted it");
		is( $app->query("SELECT term FROM leader_election.renew('$e', 1)"),
			1, "$name: it renews");
		is( $control->query($profile),
			'7|1' . $progress . '|t|detached|app',
			"$name: and stands again as it did");
		is( $control->query(
				'SELECT count(*) FILTER (WHERE leads) FROM'
				  . " leader_election.candidates WHERE election = '$e'"),
			1,
			"$name: seen by all");
		wait_for($node, $ONE_WORKER);
	}
	is(history($e), 'd ', 'crash: one term through it all (G2)');
	is( $control->query('SELECT count(*), max(epoch) FROM leader_election.epoch'),
		'1|0',
		'crash: and one incarnation');
	$_->finish foreach $app, $stranger;
}

# -- After a failover, nothing is refused as over that may be led on: here of
# leases that this server seems never to have granted.

{
	foreach my $e ('foreign 1', 'foreign 2')
	{
		create_election($e, 3_600_000_000);
		is(acquire($e, 'd1'), 1, "$e: leads");
		is(acquire($e, 'd2'), '', "$e: another follows");
	}
	$control->query("UPDATE leader_election.lease SET incarnation ="
		  . " 'other' WHERE election LIKE 'foreign _'");
	$control->query('UPDATE leader_election.epoch SET epoch = 1,'
		  . ' first_seen_mono = leader_election._monotonic_clock()');
	ok(!holds('foreign 1', 1), 'foreign: nobody leads (G6)');
	any("SELECT leader_election.transfer('foreign 1', 1, 'd2')");
	is($pool[0]->sqlstate, '55P03', 'foreign: no transfer for now');
	cmp_ok(renew('foreign 1', 1), '>', 1 << 22, 'foreign: its leader leads on (G5)');
	isnt( any("SELECT leader_election.release('foreign 2', 1)"),
		'f', 'foreign: releasing it is not refused as over');
}

$node->stop;
done_testing();
