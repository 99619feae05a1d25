# What roles that wish elections no good may try: one that observes (USAGE of the
# schema, and what PUBLIC has), and one that may stand, too (EXECUTE). Both are
# refused most of it; what they are not refused must do no harm.

package Hostile;

use strict;
use warnings;

use Exporter qw(import);
use List::Util qw(shuffle);

our @EXPORT = qw(hostile_statements);

my $ELECTIONS = q{(SELECT election FROM leader_election.election ORDER BY random() LIMIT 5) e};
my $TERMS = q{(SELECT election, term, leader, backend_pid FROM leader_election.status WHERE leader IS NOT NULL ORDER BY random() LIMIT 3) e};
my @TABLES = qw(election lease candidate history epoch pause_all drain announced election_group protocol);
my @MODES = ('ACCESS SHARE', 'ROW SHARE', 'ROW EXCLUSIVE', 'SHARE UPDATE EXCLUSIVE', 'SHARE',
	'SHARE ROW EXCLUSIVE', 'EXCLUSIVE', 'ACCESS EXCLUSIVE');

sub pick { return $_[ int(rand(@_)) ]; }

# What anybody may call, in loops and with nonsense
sub observing
{
	my $term = int(rand(1000));

	return (
		(map { "SELECT count(*) FROM $ELECTIONS, generate_series(1, 50), leader_election.$_(election)" }
			  qw(is_leader term remaining_ms leader observe standing)),
		"SELECT count(leader_election.is_leader(election, $term + i)) FROM $ELECTIONS, generate_series(1, 100) i",
		"SELECT count(leader_election.is_leader(election, term)) FROM $TERMS",
		"SELECT leader_election.assert_leader('race')",
		"SELECT leader_election.assert_leader(election, term) FROM $TERMS",
		"SELECT count(*) FROM $ELECTIONS, leader_election.diagnose(election)",
		(map { "SELECT count(*) FROM leader_election.$_" } qw(status candidates history metrics server_metrics)),
		'SELECT count(leader_election.incarnation()), count(leader_election.monotonic_clock()) FROM generate_series(1, 100)',
		"CALL leader_election.wait_for_change('race', NULL, NULL, timeout => '200 ms')",
		"CALL leader_election.wait_for_change('" . ('x' x int(rand(300))) . "', 1, 'x', timeout => '10 ms')",
	);
}

# Locks that it may take, or not
sub locking
{
	my $table = pick(@TABLES, 'status', 'candidates', 'metrics');

	return (
		(map { "BEGIN; LOCK TABLE leader_election.$table IN $_ MODE; SELECT pg_sleep(0.2); COMMIT" } 'ACCESS SHARE', pick(@MODES)),
		"SELECT 1 FROM leader_election." . pick(@TABLES) . ' FOR ' . pick('UPDATE', 'SHARE', 'KEY SHARE'),
		"SELECT count(pg_advisory_lock_shared(i)), count(pg_advisory_lock(i, i)) FROM generate_series(1, 300) i",
		"SELECT count(pg_try_advisory_xact_lock((random() * 1e18)::bigint)), count(pg_try_advisory_lock((random() * 1e9)::int, (random() * 1e9)::int)) FROM generate_series(1, 100)",
		(map { "SELECT count(pg_try_advisory_lock$_) FROM pg_locks WHERE locktype = 'advisory'" }
			  '((classid::bigint << 32) | objid::bigint)', '_shared((classid::bigint << 32) | objid::bigint)',
			'(classid::bigint::bit(32)::int, objid::bigint::bit(32)::int)'),
		'SELECT pg_advisory_unlock_all()',
	);
}

# Lies. Who listens knows them by the liar, who says so; clients ask the server.
sub lying
{
	my $event = pick(qw(elected vacated yield_requested dropped created));

	return (
		'LISTEN leadership_changed',
		(map { "SELECT pg_notify('leadership_changed', json_build_object('election', election, 'event', '$event', 'term', term + $_, 'leader', 'liar', 'previous', leader, 'reason', 'liar', 'at', now())::text) FROM $TERMS" } 0, 1),
		q(SELECT pg_notify('leadership_changed', '{"liar')),
		q{SELECT pg_notify('leadership_changed', 'liar' || repeat('[', 7000))},
	);
}

# Objects of its own with the names of ours. They do not outlive the transaction: a
# session that has temporary objects when its postmaster is killed waits for the
# standby while it exits, which PostgreSQL 15 with assertions does not survive.
sub shadowing
{
	return join '; ', 'BEGIN', 'CREATE TEMP TABLE lease (election text, term bigint)', 'CREATE TEMP TABLE election (election text)',
	  "CREATE FUNCTION pg_temp.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz'",
	  'SET LOCAL search_path = pg_temp, leader_election, pg_catalog',
	  (map { "SELECT leader_election.$_('race')" } qw(leader is_leader standing)),
	  'SELECT count(*) FROM leader_election.status', 'ROLLBACK';
}

# What is not its own
sub meddling
{
	return (
		"SELECT count(pg_terminate_backend(backend_pid)) FROM $TERMS WHERE backend_pid IS NOT NULL",
		(map { "SELECT pg_${_}_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'leader%' OR usename = 'app'" } qw(cancel terminate)),
		"SET ROLE " . pick(qw(app postgres)),
		"DELETE FROM leader_election." . pick(@TABLES),
		'CREATE TABLE leader_election.mine ()',
		"ALTER TABLE leader_election." . pick(@TABLES) . ' DISABLE TRIGGER ALL',
		shadowing(),
		"SET leader_election.lease_duration = '1 day'", "SET leader_election.auto_create = off",
		"SET leader_election.history_retention = '0'", 'SET leader_election.dead_peer_detection = off',
	);
}

# What who may stand can do to others' candidacies, leases and elections
sub intruding
{
	my $name = pick(qw(s1 m1 d1 p1 g3 l1 s2 intruder));
	my $election = pick(qw(race lone runs bully zab spread1 crew/1), 'intruded');

	return (
		"SELECT leader_election.join('$election', '$name', rank => 1000)",
		"SELECT leader_election.acquire('$election', '$name', 1000, 1000000)",
		"SELECT leader_election.join_group('crew', '$name')", "SELECT leader_election.acquire_any('crew', '$name')",
		(map { "SELECT leader_election.$_ FROM $TERMS" }
			  'renew(election, term)', 'release(election, term)', "transfer(election, term, 'intruder')",
			"transfer(election, 'intruder')", 'leave(election, leader)', 'resign(election)', 'leave(election)',
			'request_yield(election, terminate => true)', "request_yield(election, 'intruder')",
			'drop_election(election)', "alter_election(election, lease_duration => '100 ms')",
			"pause_election(election, 'intruder')", 'resume_election(election)', 'drain_candidate(leader, election)'),
		(map { "SELECT leader_election.$_" } "drain_candidate('s*')", 'pause_all()', 'resume_all()',
			"alter_group('crew', seats => 1)", "drop_group('crew')",
			"create_election('crew/1000')", "create_election('intruded')",
			"drop_election('intruded')", 'leave_all()'),
		"CALL leader_election.campaign('$election', '$name', timeout => '300 ms')",
	);
}

# All that a role tries, in any order and more than once
sub hostile_statements
{
	my ($role) = @_;
	my @all = (observing(), locking(), lying(), meddling(), $role eq 'intruder' ? (intruding()) x 2 : ());

	# A transaction that failed is over.
	return map { /^BEGIN/ ? ($_, 'ROLLBACK') : $_ } map { shuffle(@all) } 1 .. 2;
}

1;
