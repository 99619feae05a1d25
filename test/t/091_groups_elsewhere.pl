# Groups after a failover, in a dump and restore, and without a worker.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $LEASE = 3 * slowness();
my $config = qq(
leader_election.lease_duration = '${LEASE}s'
client_min_messages = warning
);
my $old = new_server(name => 'old', streaming => 1, config => $config);
my $primary = session($old, name => 'primary');

# The seats that a call was granted: "1,2"
sub acquire_any
{
	my ($session, $group, $candidate) = @_;

	return query_unless_busy($session,
		"SELECT string_agg(split_part(election, '/', 2), ',' ORDER BY election)
			FROM leader_election.acquire_any('$group', '$candidate')");
}

sub leaders
{
	my ($session, $group) = @_;

	return scalar $session->query(
		"SELECT string_agg(coalesce(leader_election.leader(election), '-'), ' ' ORDER BY election)
			FROM leader_election.election WHERE group_name = '$group'");
}

# The standby comes first: a backup may take longer than a lease.
my $new = PostgreSQL::Test::Cluster->new('new');
$old->backup('backup');
$new->init_from_backup($old, 'backup', has_streaming => 1);
$new->start;

$primary->query("SELECT leader_election.create_group('g', 3, max_per_candidate => 2)");
is(acquire_any($primary, 'g', 'x'), '1,2', 'x leads as many as it may');
is(acquire_any($primary, 'g', 'y'), '3', 'y leads the other one');
$primary->query("SELECT leader_election.alter_group('g', max_per_candidate => 1)");
$old->wait_for_catchup('new', 'replay', $old->lsn('insert'));

my $there = session($new, name => 'there');
is(leaders($there, 'g'), 'x x y', 'a standby shows who leads');
is($there->query("SELECT count(*) FROM leader_election.status WHERE waiting_for IS NOT NULL"),
	0, 'and waits for nothing');
$old->stop('immediate');
$new->promote;

# --- The grace

my $here = session($new, name => 'here');
my $follower = session($new, name => 'follower');
is($follower->query("SELECT count(*) FROM leader_election.join_group('g', 'f')"),
	0, 'in the grace nobody new is elected');
is(query_unless_busy($here, "SELECT count(*) FROM leader_election.renew('g/$_', 1)"),
	1, "x leads on in seat $_, above a limit that was lowered")
  foreach 1, 2;
wait_until(
	sub {
		$here->query("SELECT leader_election.renew(election, term)
			FROM leader_election.lease WHERE leader = 'x'");
		return leaders($here, 'g') =~ /f/;
	},
	'f to lead');
is(leaders($here, 'g'), 'x x f', 'after it the third seat goes to another candidate');
my $term = $here->query("SELECT term FROM leader_election.lease WHERE election = 'g/1'");
$here->query("SELECT leader_election.release('g/1', $term)");
is(acquire_any($here, 'g', 'x'), '', 'x, which has one more, gets it no more');
is(acquire_any($here, 'g', 'z'), '1', 'but another candidate');

# --- Without a worker, the leader's own call asks it to yield.

$new->append_conf('postgresql.conf', 'max_worker_processes = 0');
$new->restart;
$here = session($new, name => 'here');
$follower = session($new, name => 'follower');
$here->query("SELECT leader_election.create_group('alone', 2)");
is(acquire_any($here, 'alone', 'x'), '1', 'without a worker a call elects');
is($follower->query("SELECT election FROM leader_election.join_group('alone', 'f')"),
	'alone/2', 'of either kind');
my $locker = session($new, name => 'locker');
$locker->query('BEGIN; LOCK TABLE leader_election.election_group');
is($follower->query("SELECT yielding FROM leader_election.renew('alone/2')"), 'f',
	'a seat is renewed while the table of groups is locked, by its session');
is($here->query("SELECT yielding FROM leader_election.renew('alone/1', "
	. $here->term_of('alone/1') . ')'), 'f', 'and by a detached candidate');
$locker->query('COMMIT');
$locker->finish;
$here->query("SELECT leader_election.alter_group('alone', seats => 1)");
is($follower->query("SELECT yielding FROM leader_election.renew('alone/2')"),
	't', 'the leader of a seat too many hears of it');
is($follower->query("SELECT leader_election.resign('alone/2')"), 't', 'and goes');
is($here->query("SELECT waiting_for FROM leader_election.status WHERE election = 'alone/2'"),
	'withdrawn', 'nobody follows');

# --- Dump and restore

my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump.sql';
$new->command_ok([ 'pg_dump', '-f', $dump, $new->connstr('postgres') ], 'dumped');
$new->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE template0');
$new->command_ok([ 'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-f', $dump, $new->connstr('copy') ],
	'restored');
my $copy = session($new, name => 'copy', dbname => 'copy');
is($copy->query("SELECT group_name, seats, max_per_candidate, owner FROM leader_election.election_group WHERE group_name = 'g'"),
	join('|', 'g', 3, 1, $copy->query('SELECT current_user')), 'the group is there');
is($copy->sqlstate_of("SELECT leader_election.create_election('g/4')"),
	'42710', 'and keeps the names of its seats');
is(acquire_any($copy, 'g', 'x'), '', 'nobody new is elected in the grace');
wait_until(
	sub { acquire_any($copy, 'g', 'x'); return leaders($copy, 'g') =~ /x/; },
	'x to lead');
acquire_any($copy, 'g', 'x');
is(scalar(() = leaders($copy, 'g') =~ /x/g), 1, 'it leads as many as it may');
$copy->query("SELECT leader_election.alter_group('g', seats => 4)");
is($copy->query("SELECT count(*) FROM leader_election.election WHERE group_name = 'g'"),
	4, 'and gets more seats');

done_testing();
