# What roles that wish elections no good may try: one that observes (USAGE of the
# schema, and what PUBLIC has), and one that may stand, too (EXECUTE). Both are
# refused most of it; what they are not refused must do no harm.

package Hostile;

use strict;
use warnings;

use Cluster;
use Exporter qw(import);
use List::Util qw(shuffle);

our @EXPORT = qw(hostile_statements find_functions changed_hands);

my $ELECTIONS = q{(SELECT election FROM leader_election.election ORDER BY random() LIMIT 5) e};
my $TERMS = q{(SELECT election, term, leader, backend_pid FROM leader_election.status WHERE leader IS NOT NULL ORDER BY random() LIMIT 3) e};
my @TABLES = qw(election lease candidate history epoch pause_all drain announced election_group dropped protocol);
my @MODES = ('ACCESS SHARE', 'ROW SHARE', 'ROW EXCLUSIVE', 'SHARE UPDATE EXCLUSIVE', 'SHARE',
	'SHARE ROW EXCLUSIVE', 'EXCLUSIVE', 'ACCESS EXCLUSIVE');

# What functions are called with, by the name of the argument and by its type. No calm
# election is among these; nobody stands for a seat of the group "intruders", nor in
# "intrusion", which are made and dropped (the checker knows of no seats but those of
# crew, and of nobody else who drops what somebody has led). Those who ask for a hold may
# do so where others do.
my @ELECTIONS = qw(race lone runs bully zab spread1 spread2 crew/1 crew/4 wide-1 intruded missing);
my @NAMES = qw(s1 s2 m1 d1 d2 p1 g1 g3 l1 l2 intruder hostile s*);
my %values = (
	election => \@ELECTIONS,
	candidate => \@NAMES,
	to_candidate => \@NAMES,
	group_name => [qw(crew missing)],
	'name of a group' => [qw(crew intruders)],	# that is made, altered, dropped
	'election that is made' => [qw(crew/1 crew/1000 intrusion)],
	candidate_role => [qw(hostile intruder app postgres missing)],
	channel => [qw(leadership_changed flood intruded)],
	strategy => [qw(race bully spread zab chess)],
	run => [qw(0 000 !)],	# below those of "runs": a higher one would be the last
	'election with a hold' => [qw(race lone missing)],
	hold => [ '-1 s', '0', '500 ms', '2 s' ],
	timeout => [ '0', '10 ms', '200 ms' ],
	metadata => [ '{}', '{"liar": [1, null]}', '"' . ('x' x 1000) . '"' ],
	seats => [ -1, 0, 1, 2, 4, 1001 ],
	text => [ '', 'race', 'intruder', 'x' x 300 ],
	name_ => [ '', 'intruder', 'postgres' ],
	integer => [ -2147483648, -1, 0, 1, 2, 1000, 2147483647 ],
	bigint => [ -1, 0, 1, 2, 5, 20, 4194305, 9223372036854775807 ],
	boolean => [qw(true false)],
	interval => [ '-1 s', '0', '100 ms', '300 ms', '1 s', '1 day', '366 days 1 us' ],
	jsonb => [ 'null', '{}', '[]' ],
);
my @functions;	# [name, is it a procedure, the first argument with a default, [argument, type]...]

sub pick { return $_[ int(rand(@_)) ]; }

# All functions of the extension: a new one is called like the others.
sub find_functions
{
	my $rows = sql(1, q{SELECT proname, prokind, pronargs - pronargdefaults,
			(SELECT string_agg(a.name || '=' || format_type(a.type, NULL), ',' ORDER BY a.n)
				FROM unnest(proargnames, coalesce(proallargtypes, proargtypes::oid[]), proargmodes)
					WITH ORDINALITY a (name, type, mode, n)
				WHERE coalesce(a.mode, 'i') IN ('i', 'b', 'v'))
		FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
			JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'leader_election'
		WHERE prorettype <> 'trigger'::regtype ORDER BY proname, pronargs}) // die;

	foreach (split /\n/, $rows)
	{
		my ($name, $kind, $needed, $arguments) = split /\|/, $_, -1;

		push @functions, [ $name, $kind eq 'p', $needed, map { [ split /=/ ] } split /,/, $arguments ];
	}
	die 'no functions' unless @functions;
	return;
}

# Of an argument of that function, in SQL
sub value
{
	my ($function, $name, $type) = @_;
	my $made = $function =~ /^(?:create|alter|drop)_(election|group)$/ ? $1 : '';
	my $kind = $made eq 'group' && $name eq 'group_name' ? 'name of a group'
	  : $made && $name eq 'election' ? 'election that is made'
	  : $function =~ /^(?:resign|release)$/ && $name eq 'election' ? 'election with a hold' : $name;
	my $values = $values{$kind} // $values{ $type eq 'name' ? 'name_' : $type };
	my $value = $values && (rand() < 0.9 || $kind eq 'timeout') ? pick(@$values) : undef;

	return defined $value ? "'$value'::$type" : "NULL::$type";
}

# Each of them, with any arguments. What is made, altered, paused, drained or set so is not
# committed: the checker would take it for a mistake.
sub calling
{
	my @statements;

	foreach (@functions)
	{
		my ($name, $is_procedure, $needed, @arguments) = @$_;
		my @given = @arguments[ grep { $_ < $needed || $arguments[$_][0] eq 'timeout' || rand() < 0.4 } 0 .. $#arguments ];
		my $call = "leader_election.$name(" . join(', ', map { "$_->[0] => " . value($name, @$_) } @given) . ')';

		push @statements, $is_procedure ? "CALL $call"
		  : $name =~ /^(?:create|alter|drop|pause|drain|set)_/ ? "BEGIN; SELECT * FROM $call; ROLLBACK" : "SELECT * FROM $call";
	}
	return @statements;
}

# What is in our schema, by whom it is owned, and what it is allowed to do
sub ours
{
	return sql(primary(), q{SELECT string_agg(o, '; ' ORDER BY o) FROM (
		SELECT concat_ws(' ', 'relation', relname, relowner::regrole, relacl, relrowsecurity) FROM pg_class
			WHERE relnamespace = 'leader_election'::regnamespace AND relkind <> 'i' AND relname !~ '^pg_temp_'
		UNION ALL SELECT concat_ws(' ', 'function', oid::regprocedure, proowner::regrole, proacl, prosecdef) FROM pg_proc
			WHERE pronamespace = 'leader_election'::regnamespace
		UNION ALL SELECT concat_ws(' ', 'type', typname, typowner::regrole, typacl) FROM pg_type
			WHERE typnamespace = 'leader_election'::regnamespace
		UNION ALL SELECT concat_ws(' ', 'schema', nspowner::regrole, nspacl) FROM pg_namespace WHERE nspname = 'leader_election'
		UNION ALL SELECT concat_ws(' ', 'trigger', tgrelid::regclass, tgname, tgenabled) FROM pg_trigger
			WHERE NOT tgisinternal OR tgenabled <> 'O') a(o)}, 10);
}

# What has changed of that since this was asked for first: '' if nothing has
my %before;

sub changed_hands
{
	my $ours = ours() // return;
	my %now = map { $_ => 1 } split /; /, $ours;

	%before = %now unless %before;
	return join '; ', (map { "new: $_" } grep { !$before{$_} } sort keys %now), map { "gone: $_" } grep { !$now{$_} } sort keys %before;
}

# What anybody may call, in loops and with nonsense
sub observing
{
	my $term = int(rand(1000));

	return (
		(map { "SELECT count(*) FROM $ELECTIONS, generate_series(1, 50), leader_election.$_(election)" }
			  qw(is_leader term remaining_ms leader _observe _standing)),
		"SELECT count(leader_election.is_leader(election, $term + i)) FROM $ELECTIONS, generate_series(1, 100) i",
		"SELECT count(leader_election.is_leader(election, term)) FROM $TERMS",
		"SELECT leader_election.assert_leader('race')",
		"SELECT leader_election.assert_leader(election, term) FROM $TERMS",
		"SELECT count(*) FROM $ELECTIONS, leader_election.diagnose(election)",
		(map { "SELECT count(*) FROM leader_election.$_" } qw(status candidates history metrics server_metrics)),
		'SELECT count(leader_election._incarnation()), count(leader_election._monotonic_clock()) FROM generate_series(1, 100)',
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
	my $event = pick(qw(elected vacated yield_requested metadata_changed dropped created));

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
	  (map { "SELECT leader_election.$_('race')" } qw(leader is_leader _standing)),
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
			'leave_all()'),

		# Of an election and a group of its own
		(map { "SELECT leader_election.$_" } "create_election('intrusion', candidate_role => 'hostile')",
			"alter_election('intrusion', channel => 'flood')", "alter_election('intrusion', candidate_role => 'app')",
			"create_group('intruders', 3)", "alter_group('intruders', channel => 'flood')", "drop_group('intruders')",
			"drop_election('intrusion')",
			"undrain_candidate('s*')", "undrain_candidate('d1', '$election')",
			"acquire('intruded', '$name', run => 'intruded')", "resign('race', hold => '1 s')"),
		"BEGIN; SELECT leader_election.pause_election('intrusion', vacate => true), leader_election.alter_election('intrusion', quorum => 5); ROLLBACK",
		"BEGIN; SELECT leader_election.alter_group('intruders', seats => 1, candidate_role => 'hostile'); ROLLBACK",
		"SELECT leader_election.release(election, term, hold => '1 s', done => true) FROM $TERMS WHERE election IN ('race', 'lone')",
		"CALL leader_election.campaign('$election', '$name', timeout => '300 ms')",
	);
}

# All that a role tries, in any order and more than once
sub hostile_statements
{
	my ($role) = @_;
	my @all = (observing(), locking(), lying(), meddling(), calling(), $role eq 'intruder' ? (intruding()) x 2 : ());

	# A transaction that failed is over.
	return map { /^BEGIN/ ? ($_, 'ROLLBACK') : $_ } map { shuffle(@all) } 1 .. 2;
}

1;
