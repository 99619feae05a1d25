# One incarnation of a server after the other: a database is copied, and the copy
# is copied again. Each begins an epoch, with a grace in which only a detached
# leader that knows its term may lead on.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server(
	config => q(
leader_election.lease_duration = '1 s'
client_min_messages = warning
));
my $control = session($node, name => 'control');

# Copies a database that nobody else is in, and begins with what changes nothing.
sub copy
{
	my ($template, $copy) = @_;

	wait_for(
		$node,
		"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = '$template'",
		0);
	$control->query("CREATE DATABASE $copy TEMPLATE $template");
	is($control->sqlstate, '00000', "$copy: a copy of $template");
	return session($node, name => $copy, dbname => $copy);
}

$control->query('CREATE DATABASE first');
$node->safe_psql('first', 'CREATE EXTENSION leader_election');
my $first = session($node, name => 'first', dbname => 'first');
$first->query("SELECT leader_election.create_election('twice', lease_duration => '1 h')");
is( $first->query("SELECT term FROM leader_election.acquire('twice', 'x')"),
	1, 'twice: led in term 1');
$first->query("SELECT leader_election.create_election('given up', lease_duration => '1 h')");
$first->query("SELECT leader_election.acquire('given up', 'x')");
$first->query("SELECT leader_election.create_election('longer', lease_duration => '1 day')");
$first->query("SELECT leader_election.acquire('longer', 'x')");
$first->query("SELECT leader_election.release('longer', 1)");
$first->query("SELECT leader_election.alter_election('longer', lease_duration => '1 s')");
$first->query("SELECT leader_election.create_election('$_')") foreach qw(dropped later);
$first->query("SELECT leader_election.create_election('altered', lease_duration => '2 s')");
$first->finish;

# Nobody calls that would have the epoch begun, but those who are refused for it.
my $second = copy('first', 'second');
query_unless_busy($second, "SELECT leader_election.alter_election('altered', lease_duration => '1 s')");
is($second->sqlstate, '00000', 'an election can be altered after the grace');
query_unless_busy($second, "SELECT leader_election.drop_election('dropped')");
is($second->sqlstate, '00000', 'and dropped');

# It has ended here, and is waited for no more.
$second->query("SELECT leader_election.join('longer', 'y')");
wait_for($node, "SELECT leader_election.leader('longer')", 'y', undef, 'second');
pass('a vacant election does not wait for the lease that it had');

# What was granted here is no reason for another grace.
$second->query("SELECT leader_election.join('later', 'y')");
wait_for($node, "SELECT leader_election.leader('later')", 'y', undef, 'second');
{
	my $other = session($node, name => 'other', dbname => 'second');

	$second->query("SELECT leader_election.alter_election('later', lease_duration => '1 day')");
	$other->query("SELECT leader_election.join('later', 'z')");
	$second->query("SELECT leader_election.leave('later')");
	is($other->query("SELECT leader_election.is_leader('later')"),
		't', 'the grace does not begin again with a longer lease');
	$other->query("SELECT leader_election.alter_election('later', lease_duration => '1 s')");
	is($other->sqlstate, '00000', 'which can be made shorter again');
	$other->finish;
}

# A seat that was given up in the grace is not led sooner under a new name.
{
	my $locker = session($node, name => 'locker', dbname => 'second');

	foreach my $table (qw(lease history))
	{
		$locker->query("BEGIN; SELECT FROM leader_election.$table WHERE election = 'given up' FOR UPDATE");
		is($second->sqlstate_of("SELECT term FROM leader_election.renew('given up', 1)"),
			'55P03', "given up: busy, and not over, while its row of $table is locked");
		$locker->query('ROLLBACK');
	}
	$locker->finish;
	my $now = query_unless_busy($second, "SELECT term FROM leader_election.renew('given up', 1)");

	cmp_ok($now, '>', 1, 'given up: continued');
	is($second->query("SELECT leader_election.release('given up', 1)"), 't', 'and given up');
	is($second->query("SELECT waiting_for FROM leader_election.status WHERE election = 'given up'"),
		'grace after failover', 'which is still to be waited for (G6)');
	is($second->sqlstate_of("SELECT leader_election.drop_election('given up')"),
		'55P03', 'nor can it be dropped');
}

# A hold cannot be told from that, unless it is longer than any grace.
foreach my $hold ('1 h', '2 days')
{
	my $election = "on hold for $hold";

	$second->query("SELECT leader_election.create_election('$election')");
	my $term = query_unless_busy($second, "SELECT term FROM leader_election.acquire('$election', 'x')");
	is($second->query("SELECT leader_election.release('$election', $term, '$hold')"), 't', "$election: given up");
	is($second->sqlstate_of("SELECT leader_election.drop_election('$election')"),
		$hold eq '1 h' ? '55P03' : '00000', "$election: whether it can be dropped in a later epoch");
}

# An answer that was lost in one incarnation is told again in the next.
my $now = query_unless_busy($second, "SELECT term FROM leader_election.renew('twice', 1)");
cmp_ok($now, '>', 1, 'twice: continued');
$second->finish;
my $third = copy('second', 'third');

# The worker begins no epoch while a table that it writes is locked.
{
	my $locker = session($node, name => 'locker', dbname => 'third');

	$locker->query('BEGIN; LOCK TABLE leader_election.candidate IN SHARE MODE');
	is($third->sqlstate_of("SELECT term FROM leader_election.renew('twice', 1)"),
		'55P03', 'busy while a table is locked');
	wait_until(sub { slurp_file($node->logfile) =~ /starting an epoch has had to wait for/ },
		'the worker to say why no epoch begins');
	is( $third->query('SELECT count(*) FROM leader_election.epoch WHERE incarnation = leader_election._incarnation()'),
		0, 'no epoch has begun');
	$locker->query('ROLLBACK');
	$locker->finish;
}

my $again = query_unless_busy($third, "SELECT (leader_election.renew('twice', 1)).*");
my ($term) = split /\|/, $again;
cmp_ok($term, '>', $now, 'twice: continued again, by the first term (G5)');
is($third->query("SELECT term FROM leader_election.renew('twice', 1)"),
	$term, 'twice: the answer is told again');
is($third->query("SELECT leader_election.release('twice', 1)"),
	't', 'twice: and given back by it');
$third->finish;

# While the table of epochs is locked, no epoch begins. The worker does not end meanwhile,
# although nobody stands: the grace is over for the first one that does.
$node->append_conf('postgresql.conf', "leader_election.worker_idle_timeout = '100ms'");
$node->reload;
$control->query('CREATE DATABASE bare');
$node->safe_psql('bare', 'CREATE EXTENSION leader_election');
my $idle = copy('bare', 'idle');
my $keeper = session($node, name => 'keeper', dbname => 'idle');
$keeper->query('BEGIN; LOCK TABLE leader_election.epoch IN SHARE MODE');
$idle->query("SELECT leader_election.drain_candidate('nobody')");
wait_for($node, "SELECT query ~ 'SQLSTATE 55P03.*starting an epoch' FROM pg_stat_activity
	WHERE datname = 'idle' AND backend_type = 'leader_election worker'");
$keeper->query('COMMIT');
wait_for($node, 'SELECT count(*) FROM leader_election.epoch', 2, undef, 'idle');
pass('idle: an epoch begins as soon as it can, without a candidate');
wait_for($node, "SELECT count(*) FROM pg_stat_activity
	WHERE datname = 'idle' AND backend_type = 'leader_election worker'", 0);
pass('idle: and then the worker ends');

done_testing();
