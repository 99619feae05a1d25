# The portable edition, while others hold locks (G9): a candidate that calls behind an
# open fence is live all the time, however short the lease, and is elected when the
# fence ends; and no call waits for long for a table that is locked. What changes of
# holder leave behind is little.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;

my $LEASE = int(2000 * slowness());    # in ms

my $node = new_server(start => 0, config => "client_min_messages = warning\n");
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE portable TEMPLATE template0');
system_or_bail('psql', '-Xq', '-v', 'anyway=1', '-v', 'ON_ERROR_STOP=1',
	'-f', "$FindBin::RealBin/../../sql/portable.sql", '-d', $node->connstr('portable'));

my ($holder, $caller, $observer) =
  map { session($node, name => $_, dbname => 'portable') } qw(holder caller observer);

#
# Behind a fence
#

$holder->query("SELECT leader_election.create_election('e', lease_duration => '1 hour', takeover_delay => '0')");
my $term = $holder->acquire('e', 'one');
$holder->query("BEGIN; SELECT leader_election.assert_leader('e', $term)");
$holder->query('SET LOCAL idle_in_transaction_session_timeout = 0');    # one that sits idle is ended after a lease
$observer->query("UPDATE leader_election.lease SET expires_at = clock_timestamp() WHERE election = 'e'");
is($caller->acquire('e', 'two'), '', 'a candidate comes, and is not elected');
is($caller->sqlstate, '00000', 'nor refused');
is($observer->query("SELECT alive FROM leader_election.candidates WHERE election = 'e' AND candidate = 'two'"), 't', 'it stands');

# It calls again and again. The observer looks all the time, and counts when it is
# not live.
$observer->query("SELECT leader_election.alter_election('e', lease_duration => '$LEASE ms')");
is($observer->sqlstate, '00000', 'the lease is short now');
$caller->acquire('e', 'two');
my $until = 4 * $LEASE;
my $mark = held_up();
$observer->query_async("CREATE TEMP TABLE dead AS SELECT 0 AS looks, 0 AS dead;
	DO \$\$
	DECLARE
		until CONSTANT timestamptz := clock_timestamp() + '$until ms';
	BEGIN
		WHILE clock_timestamp() < until LOOP
			UPDATE dead SET looks = looks + 1, dead = dead.dead + (SELECT count(*) FROM leader_election.candidates c
				WHERE c.election = 'e' AND c.candidate = 'two' AND NOT c.alive);
			PERFORM pg_sleep(0.02);
		END LOOP;
	END \$\$");
my ($calls, $busy) = (0, 0);
until ($observer->finished)
{
	$caller->acquire('e', 'two');
	$calls++;
	$busy++ if $caller->sqlstate eq '55P03';
	select(undef, undef, undef, $LEASE / 10 / 1000);
}
$observer->result;
cmp_ok($calls, '>', 5, 'it calls');
cmp_ok($busy, '>', 0, 'is told that the election is busy');
my ($looks, $dead) = split /\|/, $observer->query('SELECT looks, dead FROM dead');
cmp_ok($looks, '>', 10, 'somebody looks');
cmp_ok($dead * 20_000, '<=', held_up($mark), 'it is live all the time');
is($holder->sqlstate_of('COMMIT'), '00000', 'the fence ends');

# Its lease is longer than all the waits below: no term ends in the middle of them.
$holder->query(q(SELECT leader_election.alter_election('e', lease_duration => '1 hour')));
is(query_unless_busy($caller, "SELECT term FROM leader_election.acquire('e', 'two')"), $term + 1, 'and it is elected');

# For an eighth of a lease it waits there: somewhat more with what it does beside, and
# less than a sixth, or candidates that call each third of a lease would be dead at times.
my $FOUR = 4;
$holder->query("SELECT leader_election.create_election('eighth', lease_duration => '$FOUR s', takeover_delay => '0')");
$holder->acquire('eighth', 'one');
$caller->acquire('eighth', 'two');
$holder->query("UPDATE leader_election.lease SET expires_at = clock_timestamp() WHERE election = 'eighth'; BEGIN");
$holder->query("SELECT FROM leader_election.lease WHERE election = 'eighth' FOR KEY SHARE");
my $start = machine_time();
is($caller->acquire('eighth', 'two'), '', 'a call behind a fence');
cmp_ok(machine_time() - $start, '<', $FOUR / 6, 'ends after an eighth of the lease');
$holder->query('COMMIT');

#
# For a candidate's row, which a call of the same candidate has locked
#

# It waits for a second. On a slow machine that may be over: then once more.
my $left;
for (1 .. 20)
{
	$caller->acquire('e', 'five');
	$holder->query('BEGIN');
	$holder->query(q(SELECT FROM leader_election.candidate WHERE candidate = 'five' FOR NO KEY UPDATE));
	$caller->query_async(q(SELECT leader_election.leave('e', 'five')));
	wait_until(sub { $caller->finished || $observer->query('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $caller->backend_pid) eq 'PgSleep' },
		'a candidate that leaves to wait for it, or not');
	$holder->query('COMMIT');
	$left = $caller->result;
	last if $caller->sqlstate ne '55P03';
}
is($left, 't', 'who leaves while a call of its own goes on waits for that');
$caller->acquire('e', 'five');
$holder->query('BEGIN');
$holder->query(q(SELECT FROM leader_election.candidate WHERE candidate = 'five' FOR NO KEY UPDATE));
is($caller->sqlstate_of(q(SELECT leader_election.leave('e', 'five'))), '55P03', 'but not for long');
$holder->query('COMMIT');
is($caller->query(q(SELECT leader_election.leave('e', 'five'))), 't', 'and leaves then');

#
# For a table
#

# In a new session, too, which has called nothing yet
foreach my $session ($caller, session($node, name => 'new', dbname => 'portable'))
{
	$session->query("SET statement_timeout = '60 s'");
	$holder->query('BEGIN; LOCK TABLE leader_election.lease');
	$session->acquire('e', 'three');
	is($session->sqlstate, '55P03', 'a table that is locked is not waited for, but for a second');
	$session->query("SELECT leader_election.join('e', 'four', auto_renew => false)");
	is($session->sqlstate, '55P03', 'nor by a session');
	is($session->query('SHOW lock_timeout'), '0', 'which has its settings still');
	$holder->query('COMMIT');
}
$caller->query("SELECT term FROM leader_election.renew('e', $term + 1)");
$holder->query('BEGIN; LOCK TABLE leader_election.lease');
is($caller->sqlstate_of("SELECT term FROM leader_election.renew('e', $term + 1)"), '55P03', 'nor by who renews');
$holder->query('COMMIT');

# Nor by any call of a session that has called nothing yet, which looks at the tables for
# the types of their rows, too; and fences have the session's timeout again afterwards.
$holder->query(q(CREATE TABLE jobs (id integer);
	CREATE TRIGGER fenced BEFORE INSERT ON jobs FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('e')));
$term++;
my @CALLS = (
	(map { "SELECT leader_election.$_" } "assert_leader('e', $term)", "assert_leader('e')", "acquire('e', 'six')", "renew('e', $term)", "renew('e')",
		"release('e', $term)", "resign('e')", "transfer('e', $term, 'three')", "transfer('e', 'three')", "leave('e', 'three')", "leave('e')", 'leave_all()',
		"create_election('new')", "alter_election('e', quorum => 1)", "set_run_done('e', '1')", "request_yield('e')", "drop_election('e')",
		'tick()', 'prune()', 'configure(announce => true)',
		"is_leader('e')", "is_leader('e', $term)", "term('e')", "remaining_ms('e')", "leader('e')", '_incarnation()',
		"_observe('e')", "_standing('e')", "diagnose('e')"),
	"CALL leader_election.campaign('e', 'six', auto_renew => false)", 'INSERT INTO jobs VALUES (1)');
my @new = map { session($node, name => "new $_", dbname => 'portable') } 0 .. $#CALLS;
$_->query("SET statement_timeout = '100 s'") foreach @new;
$holder->query('BEGIN; LOCK TABLE leader_election.election, leader_election.lease, leader_election.candidate, leader_election.history, leader_election.server');
$new[$_]->query_async($CALLS[$_]) foreach 0 .. $#CALLS;
foreach my $i (0 .. $#CALLS)
{
	# A session that leads nothing, and stands nowhere, needs no table to say so.
	my $expected = $CALLS[$i] =~ /leave_all|leave\('e'\)|_incarnation/ ? qr/^(00000|55P03)$/ : qr/^55P03$/;

	$new[$i]->result;
	like($new[$i]->sqlstate, $expected, "a new session does not wait for long: $CALLS[$i]");
}
$holder->query('COMMIT');
$caller->query("SELECT leader_election.join('e', 'session', auto_renew => false)");
is($caller->query("SHOW lock_timeout"), '0', 'no call has changed it');
$caller->query("SELECT term FROM leader_election.renew('e', $term)");
$caller->query("BEGIN; SELECT leader_election.assert_leader('e', $term)");
is($caller->query('SHOW lock_timeout'), '0', 'nor does a fence, for what follows it');
$caller->query('ROLLBACK');

#
# What changes of holder leave behind
#

$caller->query("SELECT leader_election.create_election('often', takeover_delay => '0')");
$caller->query(q(SELECT leader_election.release('often', term) FROM leader_election.acquire('often', 'one'))) foreach 1 .. 200;
is($caller->query(q(SELECT count(*) FROM leader_election.history WHERE election = 'often' AND reason = 'resigned')), 200, 'the holder has changed often');
cmp_ok($caller->query(q(SELECT pg_relation_size('leader_election.lease') / 8192)), '<', 20, 'the table has not grown by a page for a few changes');

done_testing();
