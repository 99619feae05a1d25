# Administrators whose transaction blocks stay open. create_election(), drop_election(),
# create_group(), drop_group() and fences are allowed in one. What a block holds to its
# end is in the way of nobody but those who want that very name. And no term comes twice,
# however the blocks end, and wherever the last terms of dropped elections are by then.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

my $node = new_server(
	streaming => 1,
	config => q(
leader_election.lease_duration = '10min'
client_min_messages = warning
autovacuum = off
));
my $admin = session($node, name => 'admin');

# A call must not fail.
sub call
{
	my ($sql, $session) = @_;
	my $result = ($session // $admin)->query($sql);

	die "$sql: " . ($session // $admin)->errors
	  if ($session // $admin)->sqlstate ne '00000';
	return $result;
}

# An election that was led, up to this term
sub led
{
	my ($election, $terms) = @_;
	my $term;

	foreach (1 .. $terms)
	{
		$term = $admin->acquire($election, 'c');
		call("SELECT leader_election.release('$election', $term)");
	}
	return $term;
}

sub moved { return wait_for($node, 'SELECT count(*) FROM leader_election.dropped', 0); }

# What each routine that changes anything does in elections that have nothing to do with
# those of the idle blocks. None may be busy. [ name, SQL, expected ]
my $e = "'free'";
my $G = "'crew'";
my @CALLS = (
	[ create_election => "create_election($e, lease_duration => '1 min')", '' ],
	[ join => "join($e, 'a') > 0", 't' ],
	[ renew => "renew($e)" ],
	[ transfer => "transfer($e, 'nobody')", undef, 'LE005' ],
	[ request_yield => "request_yield($e) IS NOT NULL", 't' ],
	[ resign => "resign($e)", 't' ],
	[ leave => "leave($e)", 't' ],
	[ leave_all => 'leave_all()', 0 ],
	[ campaign => "campaign($e, 'a', '1 ms')", undef ],
	[ leave => "leave($e)", 't' ],
	[ alter_election => "alter_election($e, quorum => 1)", '' ],
	[ pause_election => "pause_election($e)" ],
	[ resume_election => "resume_election($e)" ],
	[ pause_all => 'pause_all()' ],
	[ resume_all => 'resume_all()' ],
	[ drain_candidate => "drain_candidate('x', $e)" ],
	[ undrain_candidate => "undrain_candidate('x', $e)", 't' ],
	[ drain_candidate => "drain_candidate('x')" ],
	[ undrain_candidate => "undrain_candidate('x')", 't' ],
	[ acquire => "acquire($e, 'a') IS NOT NULL", 't' ],
	[ release => "release($e, (SELECT term FROM leader_election.lease WHERE election = $e))", 't' ],
	[ set_run_done => "set_run_done($e, '2026-11-20')", '' ],
	[ drop_election => "drop_election($e)", '' ],
	[ create_group => "create_group($G, 3)", '' ],
	[ join_group => "count(*) FROM leader_election.join_group($G, 'a')", 1 ],
	[ leave_all => 'leave_all()' ],
	[ acquire_any => "count(*) FROM leader_election.acquire_any($G, 'a')", 1 ],
	[ alter_group => "alter_group($G, seats => 2)", '' ],
	[ release => "release(election, term) FROM leader_election.lease WHERE leader = 'a'", 't' ],
	[ leave => "leave($G || '/' || n, 'a') FROM generate_series(1, 2) n" ],
	[ drop_group => "drop_group($G)", '' ]);

# Those that hold no lock to the end of a block, since they only read
my %READS = map { $_ => 1 } qw(is_leader term remaining_ms leader _observe _standing diagnose
  _measure _measure_server _incarnation _monotonic_clock wait_for_change);

# [ what it does, to prepare, in the block ]
my @BLOCKS = (
	[ 'creates an election', '', "SELECT leader_election.create_election('mine')" ],
	[ 'creates one whose name could be a seat', '', "SELECT leader_election.create_election('my/1')" ],
	[ 'drops an election', sub { led('mine too', 9) }, "SELECT leader_election.drop_election('mine too')" ],
	[ 'drops and creates one', sub { led('mine again', 9) },
		"SELECT leader_election.drop_election('mine again'); SELECT leader_election.create_election('mine again')" ],
	[ 'creates a group', '', "SELECT leader_election.create_group('my group', 2)" ],
	[ 'drops a group', sub {
			call("SELECT leader_election.create_group('my seats', 2)");
			led('my seats/1', 9);
		}, "SELECT leader_election.drop_group('my seats')" ],
	[ 'is fenced', '', q(SELECT leader_election.assert_leader('ours')) ],
	[ 'uses only_leader()', '', q(INSERT INTO guarded VALUES (1)) ]);

call("CREATE TABLE guarded (x int);
	CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH STATEMENT
		EXECUTE FUNCTION leader_election.only_leader('ours')");
foreach my $block (@BLOCKS)
{
	my ($what, $prepare, $sql) = @$block;
	my $idle = session($node, name => $what);

	$prepare->() if $prepare;
	moved();
	call("SELECT leader_election.join('ours', '$what')", $idle) if $sql =~ /assert|guarded/;
	call("BEGIN; $sql", $idle);

	# The terms are above those of the block's elections, and below: each would be
	# remembered.
	led('free', 20);
	call("SELECT leader_election.drop_election('free')");
	my @failed;
	foreach my $call (@CALLS)
	{
		my ($name, $try, $expected, $sqlstate) = @$call;
		my $statement = $name eq 'campaign' ? "CALL leader_election.$try"
		  : $try =~ /^count/ ? "SELECT $try"
		  : "SELECT leader_election.$try";
		my $result = $admin->query($statement);

		push @failed, "$statement: $result " . $admin->sqlstate . ' ' . $admin->errors
		  if $admin->sqlstate ne ($sqlstate // '00000')
		  || (defined $expected && $result ne $expected);
	}
	is_deeply(\@failed, [], "$what: all others' calls are served (G9)");

	# The worker's work: it drops seats that are withdrawn, elects, and tells.
	call("SELECT leader_election.create_group('withdrawn', 2)");
	led('withdrawn/2', 12);
	call("SELECT leader_election.alter_group('withdrawn', seats => 1)");
	eval { wait_for($node, q(SELECT count(*) FROM leader_election.election
		WHERE election = 'withdrawn/2'), 0) };
	is($@, '', "$what: the worker drops a withdrawn seat");
	call("SELECT leader_election.drop_group('withdrawn')");
	Announced->new($node)->fence;
	pass("$what: listeners are told");
	moved();
	pass("$what: the last terms of others are moved");

	call('ROLLBACK', $idle);
	$idle->finish;
}
is( call("SELECT string_agg(DISTINCT proname, ' ' ORDER BY proname) FROM pg_proc
		WHERE pronamespace = 'leader_election'::regnamespace
		  AND proname <> ALL ('{" . join(',', keys %READS, map { $_->[0] } @CALLS) . "}')"),
	'assert_leader only_leader',
	'these are all that change anything');

#
# The name itself: who wants it waits for the block, for a second at most.
#

my $idle = session($node, name => 'idle');
my $last = led('name', 3);

call("BEGIN; SELECT leader_election.drop_election('name')", $idle);
is($admin->sqlstate_of("SELECT leader_election.$_"), '55P03', "name: $_ is busy meanwhile")
  foreach "drop_election('name')", "acquire('name', 'c')";
is($admin->sqlstate_of("SELECT leader_election.create_election('name')"), '42710', 'name: it exists yet');
call('ROLLBACK', $idle);
is(led('name', 1), $last + 1, 'name: rolled back, it goes on');
call("BEGIN; SELECT leader_election.drop_election('name')", $idle);
call('COMMIT', $idle);
my $next = led('name', 1);
cmp_ok($next, '>', $last + 1, 'name: its terms go on (G5)');
call("BEGIN; SAVEPOINT s; SELECT leader_election.drop_election('name'); ROLLBACK TO s;
	SELECT leader_election.drop_election('name'); SELECT leader_election.create_election('name');
	SELECT leader_election.drop_election('name'); SELECT leader_election.create_election('name'); COMMIT",
	$idle);
cmp_ok(led('name', 1), '>', $next, 'name: dropped and created again and again (G5)');

#
# Wherever the last terms are. Who has locked the row of epoch keeps the worker from
# moving them.
#

my $keeper = session($node, name => 'keeper');

sub keep
{
	return call('BEGIN; SELECT count(*) FROM (SELECT FROM leader_election.epoch FOR UPDATE) e', $keeper);
}

sub dropped_term { return call('SELECT max(dropped_term) FROM leader_election.epoch'); }

# Of an election that is dropped: its last term
sub drop
{
	my ($election, $terms) = @_;
	my $term = led($election, $terms);

	call("SELECT leader_election.drop_election('$election')");
	return $term;
}

led('high', 50);
keep();
my %last = map { $_ => drop($_, 60) } qw(kept again never);
call("SELECT leader_election.create_election('never'); SELECT leader_election.drop_election('never')");
cmp_ok(dropped_term(), '<', $last{kept}, 'rows: they are not moved');
is(call("SELECT string_agg(election || ' ' || term, ',' ORDER BY election) FROM leader_election.dropped
		WHERE election IN ('kept', 'again', 'never')"),
	"again $last{again},kept $last{kept},never $last{never}", 'rows: one for each that was dropped');
cmp_ok(led('again', 1), '>', $last{again}, 'rows: created again, above it (G5)');
$last = $last{again};
$last{again} = drop('again', 1);
cmp_ok($last{again}, '>', $last + 1, 'rows: and once more (G5)');

# A crash, then a standby that is promoted, and a dump
call("BEGIN; SELECT leader_election.drop_election('name')", $idle);
$node->stop('immediate');
$node->start;
$admin = session($node, name => 'admin');
is(call("SELECT count(*) FROM leader_election.election WHERE election = 'name'"), 1,
	'crash: what was not committed was not dropped');
$keeper = session($node, name => 'keeper');
keep();
cmp_ok(led('again', 1), '>', $last{again}, 'crash: the terms of what was go on (G5)');
$last{again} = drop('again', 3);

$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$last{later} = drop('later', 70);
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));

my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';
$node->command_ok([ 'pg_dump', '-f', $dump, $node->connstr('postgres') ], 'dumped');
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $node->connstr('restored') ],
	'restored');
$standby->promote;
foreach my $copy ([ $standby, 'postgres' ], [ $node, 'restored' ])
{
	my $app = session($copy->[0], name => 'app', dbname => $copy->[1]);

	call("SET leader_election.auto_create = on", $app);
	foreach my $election (sort keys %last)
	{
		query_unless_busy($app, "SELECT leader_election.create_election('$election', lease_duration => '100 ms')");
		my $term = '';
		wait_until(sub { $term = $app->acquire($election, 'c') }, "$election to be led");
		cmp_ok($term, '>', $last{$election}, "$copy->[1] of " . $copy->[0]->name . ": $election goes on (G5)");
	}
	$app->finish;
}

# They are moved.
call('ROLLBACK', $keeper);
led('wakes', 1);
moved();
cmp_ok(dropped_term(), '>=', $last{later}, 'moved: into the row of the incarnation');
foreach my $election (sort keys %last)
{
	cmp_ok(led($election, 1), '>', $last{$election}, "moved: $election goes on (G5)");
}

#
# Elections are created, led and dropped while the worker moves their rows: each name's
# terms only grow.
#

call(q{CREATE PROCEDURE again(name text, rounds int) LANGUAGE plpgsql AS $$
	DECLARE
		last bigint := 0;
		t bigint;
	BEGIN
		FOR i IN 1 .. rounds LOOP
			PERFORM leader_election.create_election(name);
			COMMIT;
			t := (SELECT term FROM leader_election.acquire(name, 'c'));
			COMMIT;
			IF t <= last THEN
				RAISE 'term % came after term % of %', t, last, name;
			END IF;
			last := t;
			PERFORM leader_election.release(name, t);
			COMMIT;
			PERFORM leader_election.drop_election(name);
			COMMIT;
		END LOOP;
	END $$});
my @clients = map { session($node, name => "client $_") } 1 .. 4;
$clients[$_]->query_async("CALL again('again $_', 300)") foreach 0 .. $#clients;
foreach my $client (@clients)
{
	$client->result;
	is($client->sqlstate . $client->errors, '00000', "$client->{name}: its terms only grow (G5)");
	$client->finish;
}
moved();

#
# However many were dropped, a creation reads one row, and the worker, which moves them,
# is late for no renewal.
#

my $rows = 20_000;
my $read = q(SELECT seq_scan + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'dropped');
keep();
led('bound', 2);
call("INSERT INTO leader_election.dropped SELECT 'many ' || n, 1000000 + n FROM generate_series(1, $rows) n");
cmp_ok(call("BEGIN; SELECT leader_election.create_election('one of many')") . call($read), '<=', 1,
	'many: a creation reads one row at most');
cmp_ok(call("SELECT leader_election.create_election('many 1')") . call($read), '<=', 2,
	'many: one that was dropped, too');
call('COMMIT');

# On a busy machine one renewal may be late: then rows are made and moved again, in five
# attempts at most.
my $leader = session($node, name => 'leader');
my ($term, $leads);
call("SELECT leader_election.create_election('short', lease_duration => '300 ms')");
foreach my $attempt (1 .. 5)
{
	if ($attempt > 1)
	{
		keep();
		call("INSERT INTO leader_election.dropped SELECT 'more ' || n, n FROM generate_series(1, $rows) n");
	}
	wait_until(sub { ($term = call("SELECT leader_election.join('short', 'leader')", $leader)) ne '' }, 'short to be led');
	call('ROLLBACK', $keeper);
	led('wakes', 1);
	moved();
	$leads = call("SELECT leader_election.is_leader('short', $term)", $leader);
	last if $leads eq 't';
}
is(dropped_term(), 1_000_000 + $rows, 'many: they are moved');
is($leads, 't', 'many: the leader leads on');
cmp_ok(led('many 1', 1), '>', 1_000_001, 'many: terms go on (G5)');

done_testing();
