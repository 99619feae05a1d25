# The optional launcher: with the library in shared_preload_libraries, a worker
# is there without anybody's call, where there is something for it to do.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;

my $LAUNCHER =
  "pg_stat_activity WHERE backend_type = 'leader_election launcher'";
my $WORKERS = "pg_stat_activity WHERE backend_type = 'leader_election worker'";

# Leases outlast what is done to their workers.
my $node = new_server(
	preload => 1,
	streaming => 1,
	config => q(
leader_election.lease_duration = '10s'
max_worker_processes = 24
));
my $control = session($node, name => 'control');

# No call of the extension's: those would start a worker themselves.
sub wait_for_worker
{
	my ($dbname, $but_not, $where) = @_;

	return wait_for($where // $node,
		"SELECT count(*) > 0 FROM $WORKERS AND datname = '$dbname'"
		  . ' AND pid <> ' . ($but_not // 0));
}

# Stands, and calls again as long as a worker in another database has the slot, where the
# launcher looks for candidates.
sub stand_with_worker
{
	my ($session, $dbname) = @_;

	wait_until(
		sub {
			$session->query("SELECT leader_election.join('e', 'leader')");
			return $session->query("SELECT count(*) FROM $WORKERS AND datname = '$dbname'");
		},
		"a worker in $dbname");
	return;
}

sub worker_pid
{
	my ($dbname) = @_;

	# One that is not needed goes after a second.
	return $control->query("SELECT pid FROM $WORKERS AND datname = '$dbname'"
		  . ' ORDER BY backend_start LIMIT 1');
}

sub connect_to_control
{
	wait_for($node, 'SELECT 1', '1');
	$control = session($node, name => 'control');
	return;
}

is($control->query("SELECT count(*) FROM $LAUNCHER"),
	'1', 'there is a launcher');
wait_for($node, "SELECT count(*) = 0 FROM $WORKERS");
pass('and no worker, where there is no candidate');

# -- After a start

{
	my $leader = session($node, name => 'leader');

	$leader->query("SELECT leader_election.create_election('e', lease_duration => '1 min')");
	$leader->query("SELECT leader_election.join('e', 'leader')");
	$node->stop('immediate');
	$leader->kill;
	$control->kill;
	$node->start;
	wait_for($node, 'SELECT reason FROM leader_election.history'
		  . " WHERE election = 'e' AND term = 1", 'session ended');
	pass('a worker is there after the start, and ends what is over');
	connect_to_control();
	wait_for($node, "SELECT count(*) = 0 FROM $WORKERS");
	pass('and ends itself, since nobody stands');
	is($control->query("SELECT count(*) FROM $LAUNCHER"),
		'1', 'there is a launcher after a crash');
}

# -- After a worker was terminated

{
	my @databases = qw(postgres one two three);
	my %leader;
	my %pid;

	$control->query('CREATE DATABASE plain');
	foreach my $dbname (@databases)
	{
		$control->query("CREATE DATABASE $dbname") if $dbname ne 'postgres';
		my $s = session($node, name => "leader_$dbname", dbname => $dbname);
		$s->query('CREATE EXTENSION leader_election') if $dbname ne 'postgres';
		$s->query("SELECT leader_election.join('e', 'leader')");
		$leader{$dbname} = $s;
		wait_for_worker($dbname);
		$pid{$dbname} = worker_pid($dbname);
	}
	my $term = $control->query('SELECT term FROM leader_election.lease');

	# The database that is found last, in the order of their creation, must not
	# wait for the workers of the others.
	foreach my $dbname (qw(postgres three))
	{
		$control->query("SELECT pg_terminate_backend($pid{$dbname})");
		my $elapsed = wait_for_worker($dbname, $pid{$dbname});
		cmp_ok($elapsed, '<', 1, "a worker in $dbname is back at once");
		$pid{$dbname} = worker_pid($dbname);
	}
	wait_for($node,
		"SELECT renewed_at > acquired_at + interval '2.5s'"
		  . ' FROM leader_election.lease', 't', undef, $_)
	  foreach @databases;
	is( join(' ', map { $_->query("SELECT leader_election.term('e')") }
			  @leader{@databases}),
		"$term 1 1 1",
		'that nobody called, and nobody lost a lease');
	is( join(' ', map { worker_pid($_) } @databases),
		join(' ', @pid{@databases}),
		'the other workers were not disturbed');
	is( $control->query(
			"SELECT count(*) FROM $WORKERS AND datname IN"
			  . " ('plain', 'template1')"),
		'0',
		'a database without the extension has no worker');
	like($node->safe_psql('plain', 'SELECT 1'), qr/1/, '(it is there, though)');

	# A leader that dies while there is no worker is replaced by the next one.
	my $heir = session($node, name => 'heir');
	$heir->query("SELECT leader_election.join('e', 'heir')");
	$control->query(
		"SELECT pg_terminate_backend($pid{postgres}),"
		  . ' pg_terminate_backend(' . $leader{postgres}->backend_pid . ')');
	my $elapsed = wait_for($node,
		"SELECT leader = 'heir' FROM leader_election.lease");
	cmp_ok($elapsed, '<', 1, 'a leader that dies meanwhile is replaced soon');

	# DROP DATABASE is not held up by workers that come back.
	$control->query("SET statement_timeout = '20s'");
	is($control->sqlstate_of('DROP DATABASE three WITH (FORCE)'),
		'00000', 'DROP DATABASE WITH (FORCE)');
	$leader{two}->finish;
	is($control->sqlstate_of('DROP DATABASE two'), '00000', 'DROP DATABASE');
	is($control->sqlstate_of('CREATE DATABASE copy TEMPLATE plain'),
		'00000', 'CREATE DATABASE');
	$control->query('RESET statement_timeout');
	$_->kill foreach values %leader;
	$heir->finish;
	wait_for($node, "SELECT count(*) = 0 FROM $WORKERS");
}

# -- A database in which no worker can start neither keeps the launcher from
# the others nor busy.

{
	my $oid = $control->query(
		"SELECT oid FROM pg_database WHERE datname = 'one'");
	my $file = $node->data_dir . "/base/$oid/PG_VERSION";
	my $leader = session($node, name => 'leader');
	my $offset = -s $node->logfile;
	my $failures;

	$leader->query("SELECT leader_election.create_election('broken', lease_duration => '5 s')");
	$leader->query("SELECT leader_election.join('broken', 'leader')");
	wait_for_worker('postgres');
	my $pid = worker_pid('postgres');
	rename($file, "$file.away") or die "could not rename $file: $!";
	$control->query("UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'plain'");
	$control->query("SELECT pg_terminate_backend($pid)");
	wait_for_worker('postgres', $pid);
	pass('a database that is broken does not concern the others');

	# Until the lease has been renewed some times
	wait_for($node,
		"SELECT renewed_at > acquired_at + interval '4s'"
		  . " FROM leader_election.lease WHERE election = 'broken'");
	$failures = () =
	  slurp_file($node->logfile, $offset) =~ /FATAL:.*base\/$oid/g;
	cmp_ok($failures, '>=', 1, 'its worker has failed');
	cmp_ok($failures, '<=', 2, 'but does not go on failing');
	unlike(slurp_file($node->logfile, $offset), qr/FATAL:.*"plain"/,
		'no worker tries a database whose DROP DATABASE did not finish');
	is($leader->query("SELECT leader_election.term('broken')"),
		'1', 'and nobody has lost a lease');
	rename("$file.away", $file) or die "could not rename $file: $!";
	$leader->finish;
}

# -- Workers that are terminated again and again come back later each time, also where
# there are so many databases that it takes a while to go through all of them.

{
	my @leaders = (session($node, name => 'leader'));
	my ($kills, $elapsed) = (0, 0);

	foreach my $dbname (map { "many_$_" } 1 .. 12)
	{
		$control->query("CREATE DATABASE $dbname TEMPLATE one");
		push @leaders, session($node, name => $dbname, dbname => $dbname);
	}
	$_->query("SELECT leader_election.join('e', 'leader')") foreach @leaders;
	wait_for_worker("many_$_") foreach 1 .. 12;
	while ($elapsed < 3 && $kills++ < 20)
	{
		my $pid = worker_pid('postgres');
		my $start = time;

		# By the clock, as the launcher makes its pauses
		$control->query("SELECT pg_terminate_backend($pid)");
		wait_for_worker('postgres', $pid);
		$elapsed = time - $start;
	}
	cmp_ok($elapsed, '>=', 3, "the pauses grow: worker $kills comes back after $elapsed s");
	$_->finish foreach @leaders;
}

# -- The launcher itself is terminated. And at a promotion, there is one.

{
	my $leader = session($node, name => 'leader');

	# On the standby, its end is waited for.
	$leader->query("SELECT leader_election.create_election('promotion', lease_duration => '5 s')");
	$leader->query("SELECT leader_election.join('promotion', 'leader')");
	$node->backup('base');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	$node->wait_for_catchup($standby);

	my $pid = $control->query("SELECT pid FROM $LAUNCHER");
	$control->query("SELECT pg_terminate_backend($pid)");

	$standby->promote;
	wait_for($standby, 'SELECT reason FROM leader_election.history'
		  . " WHERE election = 'promotion' AND term = 1", 'failover');
	pass('a worker is there after a promotion');
	$standby->stop;

	wait_for($node, "SELECT count(*) = 1 FROM $LAUNCHER AND pid <> $pid");
	pass('a launcher that was terminated comes back');
	is($leader->query("SELECT leader_election.term('promotion')"),
		'1', 'and nobody has lost a lease');
	$leader->kill;
	$control->kill;
}

# -- There are slots for the workers that are needed, and no other. A database that has its
# worker does not take the slot of another one, whose worker was terminated.

{
	my $spare = new_server(
		name => 'spare',
		preload => 1,
		config => q(
leader_election.lease_duration = '1h'
max_worker_processes = 3
max_logical_replication_workers = 0
max_parallel_workers = 0
));
	my %leader;

	$spare->safe_psql('postgres', 'CREATE DATABASE last');
	$spare->safe_psql('last', 'CREATE EXTENSION leader_election');
	foreach my $dbname (qw(postgres last))
	{
		$leader{$dbname} = session($spare, name => $dbname, dbname => $dbname);
		stand_with_worker($leader{$dbname}, $dbname);
	}
	my $pid = $leader{last}->query("SELECT pid FROM $WORKERS AND datname = 'last'");
	$leader{last}->query("SELECT pg_terminate_backend($pid)");
	wait_for_worker('last', $pid, $spare);
	pass('the only slot is for the database whose worker was terminated');
	$_->finish foreach values %leader;
	$spare->stop;
}

# -- There is one slot. The database for which there was none is the next to have it, and
# not the one that has just lost it.

{
	my $single = new_server(
		name => 'single',
		preload => 1,
		config => q(
client_min_messages = error
leader_election.lease_duration = '1h'
max_worker_processes = 2
max_logical_replication_workers = 0
max_parallel_workers = 0
));
	my (%leader, $terminated, $written);

	$single->safe_psql('postgres', 'CREATE DATABASE last');
	$single->safe_psql('last', 'CREATE EXTENSION leader_election');
	$leader{$_} = session($single, name => $_, dbname => $_) foreach qw(postgres last);
	stand_with_worker($leader{postgres}, 'postgres');
	$leader{last}->query("SELECT leader_election.join('e', 'leader')");

	# The launcher looks at all databases, and has a slot for one of them: mostly for the
	# first, or for the last one if it has looked there between the two calls.
	$terminated = $leader{postgres}->query("SELECT pid FROM $WORKERS");
	$written = -s $single->logfile;
	$leader{postgres}->query("SELECT pg_terminate_backend($terminated)");
	wait_for($single, "SELECT count(datname) = 1 FROM $WORKERS AND pid <> $terminated");
	wait_until(sub { slurp_file($single->logfile, $written) =~ /leader_election: no free background worker slot/ },
		'the launcher to find no slot');

	my ($pid, $has) = split /\|/, $leader{postgres}->query("SELECT pid, datname FROM $WORKERS");
	my ($waits) = grep { $_ ne $has } keys %leader;
	$leader{postgres}->query("SELECT pg_terminate_backend($pid)");
	wait_for_worker($waits, 0, $single);
	pass('the slot is for the database that waits for it');
	$_->finish foreach values %leader;
	$single->stop;
}

# -- There is no slot for a worker. The launcher says so, and goes by the settings
# that it is told of.

{
	my $full = new_server(
		name => 'full',
		preload => 1,
		config => q(
max_worker_processes = 1
max_logical_replication_workers = 0
max_parallel_workers = 0
));
	my $SAYS = 'LOG:\s+leader_election: no free background worker slot\n.*HINT:\s+Consider increasing "max_worker_processes"';
	my $says = sub {
		my ($prefix) = @_;

		return sub { slurp_file($full->logfile) =~ /^$prefix.*$SAYS/m };
	};

	wait_until($says->(''), 'the launcher to say that there is no slot');
	$full->append_conf('postgresql.conf', "log_line_prefix = 'reloaded '");
	$full->reload;
	wait_until($says->('reloaded '), 'the launcher to say so again');
	pass('without a slot, the launcher says so, and follows a reload');
	$full->stop;
}

my $start = machine_time();
$node->stop;
cmp_ok(machine_time() - $start, '<', 5, 'the server stops with all that running');
done_testing();
