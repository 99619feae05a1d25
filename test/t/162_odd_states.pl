# States that take a superuser's hand, or a setting of the server, to come about: rows
# that were deleted or changed by hand, more drained names than are read at once, calls
# in parallel and in prepared transactions, and a server that writes little WAL. Nobody
# leads who must not, no call fails for a wrong reason, and what can be mended is.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use LeaderElection;
use Test::More;
use Worker;

my $DAY = 86_400_000_000;
my $node = new_server(config => q(
leader_election.lease_duration = '10min'
leader_election.history_retention = '0'
client_min_messages = warning
max_prepared_transactions = 2
wal_level = minimal
max_wal_senders = 0
));
my $admin = session($node, name => 'admin');
my $other = session($node, name => 'other');

# A call must not fail.
sub call
{
	my ($sql, $session) = @_;
	my $result = ($session // $admin)->query($sql);

	die "$sql: " . ($session // $admin)->errors if ($session // $admin)->sqlstate ne '00000';
	return $result;
}

sub create
{
	my ($election, $settings) = @_;

	return call("SELECT leader_election.create_election('$election'" . ($settings ? ", $settings" : '') . ')');
}

# --- Tables that a transaction has made itself, of which it writes no WAL

call(q{DO $$BEGIN
	DROP EXTENSION leader_election;
	CREATE EXTENSION leader_election;
	PERFORM leader_election.acquire('new', 'n');
	END$$}, $other);
is(call("SELECT leader_election.is_leader('new', 1)"), 't', 'tables that are made with the first leader, who leads');
call(q{DO $$BEGIN
	TRUNCATE leader_election.history;
	PERFORM leader_election.acquire('emptied', 'e');
	END$$});
is(call("SELECT leader_election.is_leader('emptied', 1)"), 't', 'one who is elected as a table is emptied leads, too');
my $listener = Announced->new($node);

# --- Prepared transactions

call('BEGIN');
create('prepared');
call("PREPARE TRANSACTION 'p'");
is(call("SELECT count(*) FROM leader_election.election WHERE election = 'prepared'"), 0, 'an election can be prepared');
is($other->sqlstate_of("SET lock_timeout = '50ms'; SELECT leader_election.join('prepared', 'other')"), '55P03',
	'whose name is kept meanwhile');
call("COMMIT PREPARED 'p'");
is(call("RESET lock_timeout; SELECT leader_election.join('prepared', 'other')", $other), 1, 'and which is there then');

# --- Parallel mode: a function has said that it is safe there.

my $parallel = call("SELECT current_setting('server_version_num')::int >= 160000") eq 't'
  ? 'debug_parallel_query' : 'force_parallel_mode';

call(qq{
	CREATE FUNCTION leads(e text) RETURNS boolean LANGUAGE plpgsql PARALLEL SAFE
		AS 'BEGIN RETURN leader_election.is_leader(e, 1); END';
	CREATE FUNCTION led_by(e text) RETURNS text LANGUAGE plpgsql PARALLEL SAFE
		AS 'BEGIN RETURN leader_election.leader(e); END'});
call("SELECT leader_election.acquire('parallel', 'p')");
is(call("SELECT leads('parallel')"), 't', 'a detached leader');
call("SET $parallel = on");
is(call("SELECT leads('parallel')"), 'f', 'in parallel mode, is_leader() cannot know');
is($admin->sqlstate_of("SELECT led_by('parallel')"), '25000', 'leader() fails');
like($admin->errors, qr/^ERROR:  elections cannot be read during a parallel operation\n.*PARALLEL UNSAFE/ms, 'and says why');
call("RESET $parallel");
is(call("SELECT led_by('parallel')"), 'p', 'elsewhere it does not');

# --- What a transaction has done itself to its lease, but not committed

foreach my $level ('READ COMMITTED', 'SERIALIZABLE')
{
	call("SELECT leader_election.acquire('own', 'o')");
	call("BEGIN ISOLATION LEVEL $level");
	is(call("SELECT leader_election.is_leader('own', 1)"), 't', "$level: leads");
	call("DELETE FROM leader_election.lease WHERE election = 'own'");
	is(call("SELECT leader_election.is_leader('own', 1)"), 'f', "$level: not without its lease");
	call('ROLLBACK');
	call("BEGIN ISOLATION LEVEL $level; UPDATE leader_election.lease SET metadata = '1' WHERE election = 'own'");
	is(call("SELECT leader_election.is_leader('own', 1)"), $level eq 'SERIALIZABLE' ? 'f' : 't', "$level: a lease that it has written");
	call('ROLLBACK');
	is(call("SELECT leader_election.is_leader('own', 1)"), 't', "$level: leads on");
}

# --- Settings that were deleted by hand

call(q{DO $$BEGIN
	PERFORM leader_election.acquire('no settings', 'n');
	DELETE FROM leader_election.election WHERE election = 'no settings';
	END$$});
$listener->events_ok('no settings', ['elected 1 n'], 'settings that are gone: the leader is announced all the same');
is(call("SELECT count(*) FROM leader_election.renew('no settings', 1)"), 1, 'who can renew');
is(call("SELECT term FROM leader_election.acquire('no settings', 'n2')"), '', 'and made anew: nobody else is elected');
is(call("SELECT l.leader, l.term, e.quorum FROM leader_election.election e JOIN leader_election.lease l USING (election)
	WHERE election = 'no settings'"), 'n|1|1', 'its leader leads on');
is(call("SELECT leader_election.is_leader('no settings', 1)"), 't', 'as it knows');

# --- A name that is longer than any that a call takes

create('long', "lease_duration => '100ms'");
call(q{DO $$BEGIN
	PERFORM leader_election.acquire('long', 'l');
	UPDATE leader_election.election SET election = repeat('n', 300) WHERE election = 'long';
	UPDATE leader_election.lease SET election = repeat('n', 300) WHERE election = 'long';
	UPDATE leader_election.history SET election = repeat('n', 300) WHERE election = 'long';
	END$$});
wait_for($node, "SELECT reason = 'expired' FROM leader_election.history WHERE election = repeat('n', 300)");
pass('a name that is too long: its election is settled all the same');

# --- A session that has missed so much that the server has it forget what it knows

call("SELECT leader_election.join('missed', 'other')", $other);
is(call("SELECT leader_election.term('missed')", $other), 1, 'a session that leads');
call("UPDATE leader_election.lease SET term = 7 WHERE election = 'missed'");
is(call("SELECT leader_election.term('missed')", $other), 1, 'which relies on what it has read, while nobody tells it of a change');
stop_process($other->backend_pid);
call(q{DO $$BEGIN
	FOR i IN 1 .. 1500 LOOP
		EXECUTE format('CREATE TABLE many_%s (i integer)', i);
	END LOOP;
	END$$});
call(q{DO $$BEGIN
	FOR i IN 1 .. 1500 LOOP
		EXECUTE format('DROP TABLE many_%s', i);
	END LOOP;
	END$$});
resume_process($other->backend_pid);
is(call("SELECT leader_election.term('missed')", $other), 7, 'and reads it again when it may have missed something');

# --- Groups whose names are those of others' seats: each has its own.

call("SELECT leader_election.create_group('nested', 1), leader_election.create_group('nested/1', 1)");
call("SELECT leader_election.alter_group('nested', quorum => 2)");
is(call("SELECT string_agg(election || ' ' || quorum, ', ' ORDER BY election) FROM leader_election.election
	WHERE election LIKE 'nested%'"), 'nested/1 2, nested/1/1 1', 'a group has its own seats, and no others');

# --- Drained candidates: more than are read at once, more than may be, and names that are none

create('all', "lease_duration => '1h'");
create('one', "lease_duration => '1h'");
call("INSERT INTO leader_election.drain SELECT 'many ' || i, 'x', now(), current_user FROM generate_series(1, 5100) i");
call("SELECT leader_election.drain_candidate('gone*'), leader_election.drain_candidate('left', 'one')");
foreach my $e ([ all => 'gone 1', 'left' ], [ one => 'left', 'x' ])
{
	my ($election, $drained, $next) = @$e;
	my @s = map { session($node, name => $_) } $drained, $next;

	call("SELECT leader_election.join('$election', '$drained')", $s[0]);
	call("SELECT leader_election.join('$election', '$next')", $s[1]);
	wait_for($node, "SELECT leader_election.leader('$election')", $next);
	pass("$election: where many are drained, the worker knows who is");
	call("SELECT leader_election.drain_candidate('$next', '$election')");
	wait_for($node, "SELECT yielding FROM leader_election.lease WHERE election = '$election'");
	pass("$election: and asks a leader to yield");
	$_->finish foreach @s;
}
call("DELETE FROM leader_election.drain");
foreach my $e ([ 'election "all"', 'all', 100 ], [ 'all elections', '', 1000 ])
{
	my ($where, $key, $limit) = @$e;
	my $argument = $key ? ", '$key'" : '';

	call("INSERT INTO leader_election.drain SELECT '$key', 'c' || i, now(), current_user FROM generate_series(1, $limit) i");
	is($admin->sqlstate_of("SELECT leader_election.drain_candidate('more'$argument)"), '54000', "$where: one too many");
	like($admin->errors, qr/^ERROR:  too many drained candidates in $where\n.*There are $limit entries already.*'host1\*'/ms,
		"$where: and says so");
	is($admin->sqlstate_of("SELECT leader_election.drain_candidate('c1'$argument, reason => 'disks')"), '00000',
		"$where: one that is there");
}
call("DELETE FROM leader_election.drain;
	INSERT INTO leader_election.drain SELECT e, c, now(), current_user FROM unnest('{\"\", one}'::text[]) e, unnest('{\"\", *}'::text[]) c");
is(call("SELECT leader_election.undrain_candidate('y', 'one')"), 'f', 'drained names that are none: they drain nobody');
call("SELECT leader_election.leave_all()", $_) foreach $admin, $other;
is(call("SELECT term > 0 FROM leader_election.acquire('one', 'y')"), 't', 'who is elected');
call('DELETE FROM leader_election.drain');

# --- A moment that is further ahead than it can be does not bar anybody for longer.

create('barred', "lease_duration => '100ms'");
call("UPDATE leader_election.lease SET incarnation = leader_election._incarnation(), held = true, not_before_at = now(),
	not_before_for = 1000, not_before_mono = leader_election._monotonic_clock() + $DAY WHERE election = 'barred'");
wait_until(sub { call("SELECT term FROM leader_election.acquire('barred', 'b')") eq '1' }, 'the end of a hold');
pass('a hold that is too far ahead ends');
wait_for($node, "SELECT leader IS NULL FROM leader_election.lease WHERE election = 'barred'");

# --- Old history of which a row or an index is locked is removed later.

# A worker removes old history when it starts.
sub start_worker
{
	call("SELECT pg_terminate_backend(pid, 60000) FROM $WORKERS");
	call("SELECT leader_election.acquire('new', 'starts a worker')");
	return wait_for($node, $ONE_WORKER);
}

my $old = "FROM leader_election.history WHERE election = 'old'";

call('CREATE INDEX added ON leader_election.history (leader)');
foreach my $lock ('ALTER INDEX leader_election.history_acquired_at SET TABLESPACE pg_default',
	"SELECT $old AND term % 2 = 1 FOR UPDATE")
{
	foreach (1 .. 3)
	{
		call("SELECT leader_election.acquire('old', 'o')");
		call("SELECT leader_election.release('old', (SELECT term FROM leader_election.lease WHERE election = 'old'))");
	}
	wait_told($node);
	call("BEGIN; $lock", $other);
	start_worker();
	if ($lock =~ /INDEX/)
	{
		wait_for($node, "SELECT query LIKE '%a table that old history is removed from is locked%' FROM $WORKERS");
		pass('an index of history is locked: the worker says so');
	}
	else
	{
		wait_for($node, "SELECT bool_and(term % 2 = 1) $old");
		pass('rows of history are locked: others are removed');
	}
	isnt(call("SELECT count(*) $old", $other), 0, 'while those stay');
	call('COMMIT', $other);
	wait_for($node, "SELECT count(*) = 0 $old");
	pass('until they are unlocked');
}

# --- Names that are like a seat's, and are none

foreach my $name ('/1', 'a/0', 'a/1x', 'a/1001', 'a/b')
{
	create($name);
	is(call("SELECT count(*) FROM leader_election.acquire('$name', 'one')"), 1, "$name: an election");
	is(call("SELECT count(*) FROM leader_election.election WHERE election = '$name' AND group_name IS NULL"), 1, "$name: of no group");
}

# In a group of that name who leads them has no seat yet.
call("SELECT leader_election.create_group('a', 2)");
is(call("SELECT election FROM leader_election.acquire_any('a', 'one')"), 'a/1', 'they are no seats of that group either');
is(call("SELECT count(*) FROM leader_election.acquire_any('a', 'one')"), 0, 'which has a limit of one');

# --- Who writes the lease row of a leader of the same name is not told its term

create('same name');
call("SELECT leader_election.acquire('same name', 'one')", $other);
is(call("SELECT leader_election.set_run_done('same name', NULL), (SELECT count(*) FROM leader_election.acquire('same name', 'one'))"),
	'|0', 'set_run_done() and acquire() in one statement: no grant (G1)');

# --- Nothing is written where a leader that is asked to yield says what it has said

create('says');
my $says = call("SELECT term FROM leader_election.acquire('says', 's')");
call("SELECT leader_election.request_yield('says')");
call(qq(SELECT leader_election.renew('says', $says, metadata => '{"a": 1}')));
my $row = "SELECT xmin, metadata FROM leader_election.lease WHERE election = 'says'";
my $said = call($row);
call(qq(SELECT leader_election.renew('says', $says, metadata => '{"a": 1}')));
is(call($row), $said, 'metadata as they are are not written again');

# --- An epoch that begins in the future was begun by another clock: there is a new one.

create('clock', "lease_duration => '100ms'");
my $former = call('SELECT max(epoch) FROM leader_election.epoch');
my $worker = stop_worker($admin);
call("UPDATE leader_election.epoch SET first_seen_mono = first_seen_mono + $DAY");
call('BEGIN; SELECT FROM leader_election.epoch FOR UPDATE', $other);
call("SELECT leader_election.acquire('clock', 'c')");
is(call("SELECT leader_election.leader('clock')"), '', 'an epoch that is yet to come: nobody is elected');
resume_process($worker);
wait_for($node, "SELECT query LIKE '%a table or row that an epoch needs is locked%' FROM $WORKERS");
pass('the worker says what keeps it from beginning one');
call('ROLLBACK', $other);
wait_for($node, 'SELECT first_seen_mono <= leader_election._monotonic_clock() FROM leader_election.epoch');
cmp_ok(call('SELECT max(epoch) FROM leader_election.epoch'), '>', $former, 'then it begins the next one');
wait_until(sub { call("SELECT term FROM leader_election.acquire('clock', 'c')") ne '' }, 'the end of the grace');
pass('in which somebody is elected');

# --- A schema of the same name that is another extension's

call('DROP EXTENSION leader_election');
call(q{CREATE SCHEMA leader_election; ALTER EXTENSION plpgsql ADD SCHEMA leader_election;
	CREATE FUNCTION public.incarnation() RETURNS text LANGUAGE c AS 'leader_election', 'le_incarnation'});
is($admin->sqlstate_of("SELECT public.incarnation()"), 'LE003', 'a schema of another extension has no elections');

$node->stop;
done_testing();
