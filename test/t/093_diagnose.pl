# What diagnose() finds, each finding by its real cause: sessions, processes and
# servers that do what they should not.  test/sql/diagnose.sql has what one
# session can make.  It never waits: in all of its sessions lock_timeout is 1 ms.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SyncStandby;
use Test::More;
use Worker;

my $NO_WAIT = '-c lock_timeout=1ms -c client_min_messages=warning';
my $QUIET = '-c client_min_messages=error';

my $reader;

sub diagnose
{
	my ($election, $session) = @_;

	$session //= $reader;
	my $rows = $session->query(
		"SELECT severity, finding, remedy FROM leader_election.diagnose('$election')");
	return $session->sqlstate eq '00000' ? $rows : 'SQLSTATE ' . $session->sqlstate;
}

# It finds that, now or soon.
sub finds
{
	my ($election, $row, $title, $session) = @_;
	my $rows;

	eval {
		wait_until(sub { $rows = diagnose($election, $session); $rows =~ /^$row/m || $rows =~ /SQLSTATE/ },
			$title);
	};
	like($rows, qr/^$row/m, $title);
	return;
}

# A slow machine renews later.
my $LEASE = 4 * slowness();
my $node = new_server(
	config => compile_library('stop_at_commit') . qq(
leader_election.lease_duration = '${LEASE}s'
max_prepared_transactions = 2
));
$node->safe_psql('postgres',
	q{CREATE ROLE reader LOGIN; CREATE ROLE app LOGIN;
	GRANT USAGE ON SCHEMA leader_election TO reader, app;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app;
	GRANT SELECT, UPDATE ON ALL TABLES IN SCHEMA leader_election TO app});
$reader = session($node, name => 'reader', user => 'reader', options => $NO_WAIT);
my $super = session($node, name => 'super', options => $QUIET);
my $checker = session($node, name => 'checker', options => $NO_WAIT);
my ($one, $two, $three) =
  map { session($node, name => $_, user => 'app', options => $QUIET) } qw(one two three);
my %pid = (one => $one->backend_pid, two => $two->backend_pid, three => $three->backend_pid);

# -- All is well.

$one->query("SELECT leader_election.create_election('e')");
$one->query("SELECT leader_election.join('e', 'one')");
finds('e', qr/ok\|"one" leads election "e" since .* Its session \(process $pid{one}\) lives, and the server renews the lease: .*\|All is well/,
	'all is well');
is(scalar(my @rows = diagnose('e') =~ /^/mg), 1, 'in one row');
$two->query("SELECT leader_election.join('e', 'two')");

# -- Locks

foreach my $table (qw(election lease candidate history epoch pause_all drain announced election_group))
{
	$two->query($_) for 'BEGIN', "LOCK TABLE leader_election.$table";
	my $rows = diagnose('e');

	like($rows, qr/^error\|Tables of schema "leader_election" are locked and could not be read.*: "$table"\./m,
		"$table: it cannot be read");
	like($rows, qr/^error\|Process $pid{two} of role "app" holds a lock that keeps elections and renewals waiting, .* on "$table"\.\|.*pg_terminate_backend\($pid{two}\);/m,
		"$table: who has locked it");
	$two->query('ROLLBACK');
}
$two->query($_) for 'BEGIN', 'LOCK TABLE leader_election.lease IN SHARE MODE';
finds('e', qr/error\|Process $pid{two} of role "app" holds a lock that keeps .* on "lease"\./,
	'a lock that keeps only writers waiting');
unlike(diagnose('e'), qr/application_name/, 'others see no address');
finds('e',
	qr/error\|Process $pid{two} of role "app" \(client address \[local\], application_name "two"\) holds/,
	'a superuser does', $checker);
$two->query('ROLLBACK');

$two->query($_) for 'BEGIN', 'LOCK TABLE leader_election.lease, leader_election.history IN SHARE MODE';
finds('e', qr/error\|Process $pid{two} .* on "(?:lease", "history|history", "lease)"\./, 'locks on two tables');
is(scalar(@rows = diagnose('e') =~ /keeps elections and renewals waiting/g), 1, 'in one row');
$two->query('ROLLBACK');

$super->query($_)
  for 'BEGIN', 'LOCK TABLE leader_election.history IN SHARE MODE', "PREPARE TRANSACTION 'p'";
finds('e', qr/error\|A prepared transaction holds a lock that keeps .* on "history"\.\|.*pg_prepared_xacts/,
	'a prepared transaction');
$super->query("ROLLBACK PREPARED 'p'");
$super->query($_)
  for 'BEGIN', "SELECT FROM leader_election.lease WHERE election = 'e' FOR UPDATE", "PREPARE TRANSACTION 'p'";
finds('e', qr/warning\|A prepared transaction holds locks on rows, perhaps of this election, .* on "lease"\./,
	'which has locked a row');
$super->query("ROLLBACK PREPARED 'p'");

$two->query($_)
  for 'BEGIN', "SELECT FROM leader_election.lease WHERE election = 'e' FOR UPDATE";
finds('e', qr/warning\|Process $pid{two} of role "app" holds locks on rows, perhaps of this election, in a long transaction, .* on "lease"\./,
	'a row is locked for long');
$two->query('ROLLBACK');
$two->query("SELECT leader_election.leave('e')");

$one->query("SELECT leader_election.create_group('g', 2, lease_duration => '1 h')");
$one->query("SELECT leader_election.join_group('g', 'one')");
$two->query("SELECT leader_election.join_group('g', 'two')");
$three->query_async("SELECT leader_election.alter_election('e', quorum => 1), pg_sleep(60)");
finds('e', qr/warning\|Process $pid{three} of role "app" holds locks on rows, .* on .*"election"/,
	'an election that is being altered');
$super->query("SELECT pg_cancel_backend($pid{three})");
$three->result;
$one->query_async("SELECT leader_election.pause_election('e'), pg_sleep(60)");
finds('e', qr/warning\|Process $pid{one} of role "app" holds the lock of election "e": the leader cannot change\./,
	'the lock of the election');
$super->query("SELECT pg_cancel_backend($pid{one})");
$one->result;
$one->query_async("SELECT leader_election.alter_group('g', max_per_candidate => 2), pg_sleep(60)");
finds('g/1', qr/warning\|Process $pid{one} of role "app" holds the lock of group "g": the leader cannot change\./,
	'the lock of the group');
$super->query("SELECT pg_cancel_backend($pid{one})");
$one->result;

# The same, while nobody leads; and locks on what is not ours
$one->query("SELECT leader_election.create_election('empty')");
$three->query_async("SELECT leader_election.pause_election('empty'), pg_sleep(60)");
finds('empty', qr/error\|Process $pid{three} of role "app" holds the lock of election "empty": the leader cannot change\./,
	'the lock of an election that nobody leads');
$super->query("SELECT pg_cancel_backend($pid{three})");
$three->result;
$super->query($_) for 'BEGIN', 'CREATE TABLE others ()', 'LOCK TABLE others IN SHARE MODE';
unlike(diagnose('empty'), qr/ holds | commits |SQLSTATE/, 'a lock on a table that is not the extension\'s');
$super->query('ROLLBACK');
$super->query('SELECT pg_advisory_lock(93)');
$two->query_async('SELECT pg_advisory_lock(93), pg_advisory_unlock(93)');
wait_for($node, 'SELECT count(*) FROM pg_locks WHERE NOT granted', 1);

# A fenced commit hangs. Calls that need the lock give up after a second, and until
# then it is told.
my $fenced = session($node, name => 'fenced', options => $QUIET);
my $alters = "SELECT leader_election.alter_election('e', quorum => 1)";
my $told = '';
$super->query("CREATE FUNCTION stop_at_commit() RETURNS void LANGUAGE c AS 'stop_at_commit'");
$fenced->query($_) for "LOAD 'stop_at_commit'", "LOAD 'leader_election'", 'BEGIN',    # in this order
  "SELECT leader_election.assert_leader('e', term) FROM leader_election.status WHERE election = 'e'",
  'SELECT stop_at_commit()';
my $fenced_pid = $fenced->backend_pid;
$fenced->query_async('COMMIT');
wait_stopped($fenced_pid);
$one->query_async($alters);
eval {
	wait_until(
		sub {
			if ($one->finished)
			{
				$one->result;
				$one->query_async($alters);
			}
			$told = $reader->query("SELECT severity, finding FROM leader_election.diagnose('e')
				WHERE finding ~ 'the lock of election' AND (SELECT max(clock_timestamp() - waitstart)
					FROM pg_locks WHERE NOT granted AND pid = $pid{one}) < interval '1 s'");
			return $told ne '';
		},
		'the commit to be told of', 20);
};
like($told, qr/^warning\|Process $fenced_pid .* holds the lock of election "e": the leader cannot change\.$/,
	'a fenced commit that hangs');
resume_process($fenced_pid);
$super->query('SELECT pg_advisory_unlock(93)');
$_->result foreach $fenced, $one, $two;

foreach my $table (qw(candidate election_group))
{
	$three->query($_) for 'BEGIN', "LOCK TABLE leader_election.$table";
	finds('g/1', qr/error\|Process $pid{three} .* on "$table"\./, "a seat, without $table");
	finds('empty', qr/error\|Nobody leads election "empty": .* The reason: why cannot be told while tables are locked\./,
		"a vacancy, without $table");
	$three->query('ROLLBACK');
}

# -- Foreign servers, and no library preloaded

$super->query('CREATE FOREIGN DATA WRAPPER fdw; CREATE SERVER there FOREIGN DATA WRAPPER fdw');
finds('e', qr/notice\|This database has foreign servers, and the library is not preloaded.*\|.*: ALTER DATABASE postgres SET session_preload_libraries = 'leader_election';.* If that setting names other libraries now, name them after it/,
	'a foreign server');
my $preloaded;
foreach my $libraries ("'leader_election', 'plpgsql'", q('plpgsql', '$libdir/leader_election'))
{
	$super->query("ALTER DATABASE postgres SET session_preload_libraries = $libraries");
	is($super->sqlstate, '00000', "session_preload_libraries = $libraries");
	$preloaded->finish if defined $preloaded;
	$preloaded = session($node, name => 'preloaded', user => 'reader', options => $NO_WAIT);
	unlike(diagnose('e', $preloaded), qr/foreign servers/, 'not where the library is loaded first');
}
$checker->query($_) for 'BEGIN', 'LOCK TABLE pg_foreign_server';
like(diagnose('e'), qr/"one" leads(?!.*foreign servers)/s, 'nor can it be told while the catalog is locked');
$checker->query('ROLLBACK');
$preloaded->finish;
$super->query('ALTER DATABASE postgres RESET session_preload_libraries; DROP FOREIGN DATA WRAPPER fdw CASCADE');

# -- Yields

$one->query("SELECT leader_election.request_yield('e')");
finds('e', qr/notice\|"one" is asked by request_yield\(\) to yield, and may finish/, 'asked to yield');
finds('e', qr/warning\|"one" is asked by request_yield\(\) to yield, and has not obeyed.*\|.*terminate => true\);/,
	'and has not obeyed');
$one->query("SELECT leader_election.resign('e')");
$one->query("SELECT leader_election.create_election('bully', 'bully', lease_duration => '1 h')");
$one->query("SELECT leader_election.join('bully', 'one', 1)");
$two->query("SELECT leader_election.join('bully', 'two', 2)");
finds('bully', qr/notice\|"one" is asked by the strategy to yield to "two"/, 'by the strategy');
$two->query("SELECT leader_election.leave('bully')");
$one->query("SELECT leader_election.drain_candidate('one', 'bully', 'old host')");
finds('bully', qr/notice\|"one" is asked by a drain to yield/, 'by a drain');
like(diagnose('bully'), qr/^notice\|Candidate "one" is drained by role "app" since .* \("old host"\)\./m,
	'which is told as well');
$one->query("SELECT leader_election.undrain_candidate('one', 'bully')");
$one->query("SELECT leader_election.create_election('vacated', lease_duration => '1 h')");
$one->query("SELECT leader_election.join('vacated', 'one')");
$one->query("SELECT leader_election.pause_election('vacated', vacate => true)");
finds('vacated', qr/notice\|"one" is asked by a pause that vacates the election to yield/, 'by a pause');
like(diagnose('vacated'), qr/^notice\|Of election "vacated": it is paused .* Each leader is asked to yield/m,
	'which is told as well');
$one->query("SELECT leader_election.alter_group('g', seats => 1)");
finds('g/2', qr/notice\|"two" is asked by its group, which has fewer seats by now to yield/, 'by a group');

# -- The worker hangs.

$one->query("SELECT leader_election.create_election('$_', lease_duration => '1 h')")
  for qw(late self own dead expired);
$one->query("SELECT leader_election.join('$_', 'one')") for qw(late expired);
$one->query("SELECT leader_election.join('self', 'one', auto_renew => false)");
$one->query("SELECT leader_election.acquire('own', 'd')");
$one->query("SELECT leader_election.acquire('own', 'silent')");
my $doomed = session($node, name => 'doomed', user => 'app', options => $QUIET);
$doomed->query("SELECT leader_election.join('dead', 'doomed')");
my $follower = session($node, name => 'follower', user => 'app', options => $QUIET);
$follower->query("SELECT leader_election.join('late', 'follower')");
$one->query("SELECT leader_election.create_election('told', channel => 'news', lease_duration => '1 h')");

# A group whose seats will wait for different things
$one->query("SELECT leader_election.create_group('seats', 3, lease_duration => '1 h')");
$doomed->query("SELECT leader_election.join('seats/1', 'doomed')");
$three->query("SELECT leader_election.join('seats/1', 'three')");
$one->query("SELECT leader_election.acquire('seats/2', 'silent')");
$one->query("SELECT leader_election.acquire('seats/3', 'own')");
my $worker = stop_worker($super);

# Time passes: most of the lease of some, and more than that of others.
foreach my $passed ([ 50, "'late', 'self'" ], [ 90, "'expired', 'own', 'seats/2'" ])
{
	my ($minutes, $elections) = @$passed;

	$super->query("UPDATE leader_election.lease SET renewed_at = renewed_at - interval '$minutes min',
			expires_at = expires_at - interval '$minutes min',
			deadline_mono = deadline_mono - $minutes * 60000000::bigint
		WHERE election IN ($elections);
		UPDATE leader_election.candidate SET seen_mono = seen_mono - $minutes * 60000000::bigint
		WHERE election IN ($elections) AND kind = 'detached'");
	is($super->sqlstate, '00000', "$minutes minutes pass in $elections");
}
$one->query("SELECT leader_election.acquire('told', 'd')");
finds('told', qr/warning\|Listeners have not been told of the last change, at .*, on channel "news": they know of the terms to 0/,
	'listeners were not told');
my $doomed_pid = $doomed->backend_pid;
$_->kill for $doomed, $follower;
wait_gone($node, $doomed, $follower);
finds('dead', qr/\w+\|Nobody leads election "dead": the session of "doomed" \(process $doomed_pid\), which led in term \d+, has ended\./,
	'a leader whose session has ended');
finds('late', qr/notice\|Candidates whose sessions have ended, and that the worker removes: "follower"/,
	'a candidate whose session has ended');
finds('late', qr/warning\|The lease of "one" was last renewed .* ago: .* of 60 min are left\. The server renews it after a third, and is late/,
	'a lease that is renewed late');
finds('self', qr/warning\|The lease of "one" was last renewed .* The leader renews it itself, and is late/,
	'by the leader');
finds('seats', qr/warning\|Nobody leads "seats\/1": waiting for "the worker"/, 'a seat for which the worker is to elect');
like(diagnose('seats'), qr/^warning\|Nobody leads "seats\/2": waiting for "no candidates"/m, 'another one waits for candidates');
like(diagnose('seats'), qr/^warning\|Nobody stands for these seats of group "seats": "seats\/2"\./m,
	'since the last one does not call any more');
finds('expired', qr/\w+\|Nobody leads election "expired": the lease of "one", in term \d+, ran out at /,
	'a lease that has run out');
finds('own', qr/notice\|Detached candidates that have not called for longer than a lease.*: (?:"\w+", "silent"|"silent", "\w+")\./,
	'detached candidates that do not call');
$one->query("SELECT leader_election.create_election('stuck')");
$one->query("SELECT leader_election.leave_all()");
resume_process($worker);
wait_for($node, "SELECT leader_election.leader('dead') IS NULL");

# The worker hangs again: nobody removes a seat, or elects.
$two->query("SELECT leader_election.join('stuck', 'two')");
$three->query("SELECT leader_election.join('stuck', 'three')");
$worker = stop_worker($super);
$two->query("SELECT leader_election.leave('g/2')");
finds('g/2', qr/notice\|Nobody leads election "g\/2": .* The reason: the seat is withdrawn: group "g" has 1 seats by now/,
	'a seat that is withdrawn');
$super->query("SELECT leader_election.pause_all('upgrade')");
finds('g/2', qr/notice\|Nobody leads election "g\/2": .* The reason: the seat is withdrawn/, 'which matters more than a pause');
like(diagnose('g/2'), qr/^notice\|Of election "g\/2": all elections are paused by role "\w+" .*"upgrade"/m,
	'which is told as well');
$super->query('SELECT leader_election.resume_all()');
$two->kill;
wait_gone($node, $two);
finds('stuck', qr/notice\|Nobody leads election "stuck": the session of "two".* The reason: the worker is about to elect/,
	'a worker that should elect');
finds('stuck', qr/error\|Nobody leads election "stuck": .* The reason: the worker is about to elect/,
	'and does not');
resume_process($worker);
wait_for($node, "SELECT leader_election.leader('stuck')", 'three');

# -- The worker is gone.

$one->query("SELECT leader_election.create_election('$_', initial_delay => '1 h')") for qw(waits deleted);
$one->query("SELECT leader_election.create_election('idle'), leader_election.create_group('idle group', 1)");
$three->query("SELECT leader_election.join('waits', 'three')");
$super->query("DELETE FROM leader_election.lease WHERE election = 'deleted'");
$worker = $super->query($WORKER_PID);
$super->query("SELECT pg_terminate_backend($worker)");
finds('stuck', qr/warning\|No worker runs in this database: .* Background workers use \d+ of 16 max_worker_processes\.\|Have a candidate call join\(\) or acquire\(\): that starts one/,
	'no worker');
my $NONE = qr/warning\|No worker runs in this database/;
finds('waits', $NONE, 'where somebody waits for a delay');
finds('deleted', $NONE, 'where the lease row is gone');
finds('seats', $NONE, 'in a group');
unlike(diagnose($_), $NONE, "$_: nobody needs one") for 'idle', 'idle group';
foreach my $table (qw(election candidate))
{
	$checker->query($_) for 'BEGIN', "LOCK TABLE leader_election.$table";
	finds('waits', $NONE, "where $table cannot be read");
	$checker->query('ROLLBACK');
}
$three->query("SELECT leader_election.leave_all()");

# -- Delays, and why the leadership changes

$one->query("SELECT leader_election.create_election('delayed', takeover_delay => '1 h')");
$two = session($node, name => 'two', user => 'app', options => $QUIET);
$two->query("SELECT leader_election.join('delayed', 'two')");
$one->query("SELECT leader_election.join('delayed', 'one')");
$two->kill;
finds('delayed', qr/notice\|Nobody leads election "delayed": "two" led last, .*: session ended\. The reason: the takeover delay ends at .*takeover_delay => '0'\);/,
	'the takeover delay');
$one->query("SELECT leader_election.create_election('hours', initial_delay => '5 h')");
$one->query("SELECT leader_election.join('hours', 'one')");
finds('hours', qr/notice\|Nobody leads election "hours": .* \(in 4 h\)/, 'a delay of hours');

$one->query("SELECT leader_election.create_election('many', lease_duration => '1 h')");
$one->query("SELECT leader_election.acquire('many', 'c' || i) FROM generate_series(1, 13) i");
$one->query("SELECT leader_election.drain_candidate('c*', 'many')");
finds('many', qr/notice\|These candidates are drained: .*\|See what drains them: SELECT \* FROM leader_election\.drain WHERE election IN \('', 'many'\);/,
	'many that are drained');
is(() = diagnose('many') =~ /^notice\|Candidate "c\d+" is drained/mg, 10, 'ten of them in a row for each');

$one->query("SELECT leader_election.create_election('$_', lease_duration => '1 h')") for qw(ended reset);
$one->query("SELECT leader_election.create_election('short', lease_duration => '1 s')");
foreach my $n (1 .. 3)
{
	my $session = session($node, name => "n$n", user => 'app', options => $QUIET);

	$session->query("CALL leader_election.campaign('ended', 'n')");
	$session->kill;
	wait_for($node, "SELECT count(*) FROM leader_election.history WHERE election = 'ended' AND reason IS NOT NULL", $n);

	$session = session($node, name => "r$n", user => 'app', options => $QUIET);
	$session->query("CALL leader_election.campaign('reset', 'r')");
	$session->query('DISCARD ALL');
	wait_for($node, "SELECT count(*) FROM leader_election.history WHERE election = 'reset' AND reason IS NOT NULL", $n);
	$session->finish;

	$one->query("SELECT leader_election.acquire('short', 'd$n')");
	wait_for($node, "SELECT count(*) FROM leader_election.history WHERE election = 'short' AND reason IS NOT NULL", $n);
}
finds('ended', qr/warning\|Within the last hour, 3 of 3 terms ended by "session ended"/, 'sessions that end');
finds('reset', qr/warning\|Within the last hour, 3 of 3 terms ended by "session reset"/, 'pools');
finds('short', qr/warning\|Within the last hour, 3 of 3 terms ended by "expired": .*lease_duration => '\d+ ms'\);/,
	'leases that run out');
$one->query("SELECT leader_election.create_election('handed', 'bully')");
$one->query("SELECT leader_election.join('handed', 'one', 5)");
foreach my $rank (6 .. 8)
{
	my $next = $rank % 2 ? $one : $three;
	my $last = $rank % 2 ? $three : $one;

	$next->query("SELECT leader_election.leave('handed')");
	$next->query("SELECT leader_election.join('handed', '$rank', $rank)");
	wait_for($node, "SELECT state = 'yielding' FROM leader_election.status WHERE election = 'handed'");
	$last->query("SELECT leader_election.resign('handed')");
}
finds('handed', qr/notice\|Within the last hour, 3 of 3 terms ended by "yielded": .*preempt_delay/, 'a strategy that asks');
foreach my $n (1 .. 3)
{
	my ($from, $to, $name) = $n % 2 ? ($three, $one, 7) : ($one, $three, 8);

	$from->query("SELECT leader_election.transfer('handed', '$name')");
}
finds('handed', qr/notice\|Within the last hour, \d+ of \d+ terms ended by "transferred"/, 'leaders that hand over');
$super->query("UPDATE leader_election.history SET reason = CASE WHEN term % 2 = 0 THEN 'bored' END WHERE election = 'handed' AND reason = 'transferred'");
finds('handed', qr/notice\|Within the last hour, 3 of 6 terms ended by "another reason": the table history names it\.\|Run: SELECT \* FROM leader_election\.history WHERE election = 'handed'/,
	'reasons that somebody has written by hand');

# More terms than are read; and none of them
$one->query("SELECT leader_election.create_election('frequent')");
$super->query("UPDATE leader_election.lease SET term = 1001 WHERE election = 'frequent';
	INSERT INTO leader_election.history (election, term, leader, acquired_at, ended_at, reason, kind, role)
	SELECT 'frequent', n, 'd', now(), now(), 'resigned', 'detached', 'app' FROM generate_series(1, 1001) n");
is($super->sqlstate, '00000', '1001 terms');
finds('frequent', qr/\w+\|Within the last hour, 1000 of the last 1000 terms ended by "resigned"/, 'of which 1000 are counted');
$super->query("DELETE FROM leader_election.history WHERE election = 'frequent'");
finds('frequent', qr/\w+\|Nobody leads election "frequent": its history does not tell who led last\./,
	'and no history');

$one->query('BEGIN; LOCK TABLE leader_election.election_group');
is($super->query("SELECT count(*) > 0 FROM leader_election.diagnose('no such')"), 't', 'groups that are locked: it may be one');
$one->query('ROLLBACK');

$super->query("DELETE FROM leader_election.lease WHERE election = 'delayed'");
finds('delayed', qr/error\|Election "delayed" has no lease row/, 'a row that is gone');

# -- After a crash

$one->query("SELECT leader_election.create_election('long', lease_duration => '1 h')");
$one->query("SELECT leader_election.acquire('long', 'd')");
wait_for($node, "SELECT term > 0 FROM leader_election.announced WHERE election = 'long'");
$node->stop('immediate');
$node->start;
$reader = session($node, name => 'reader', user => 'reader', options => $NO_WAIT);
cmp_ok($reader->query("SELECT unannounced_seconds FROM leader_election.metrics WHERE election = 'long'"), '>', 0,
	'after a crash monitors see that listeners were not told');
finds('long', qr/warning\|Listeners have not been told of the last change, .*, on channel "leadership_changed": a crash or a failover has taken the mark/,
	'a crash has taken the mark');
like(diagnose('long'), qr/^warning\|No worker runs in this database/m, 'and the worker');
$node->stop;

# -- No worker can be had; and with a launcher that hangs

$node->append_conf('postgresql.conf', "max_worker_processes = 1\n");
$node->start;
$reader = session($node, name => 'reader', user => 'reader', options => $NO_WAIT);
$one = session($node, name => 'one', user => 'app', options => $QUIET);
$one->query("SELECT leader_election.join('ended', 'one')");
finds('ended', qr/warning\|No worker runs in this database, and none can be started: background workers use all 1 of max_worker_processes\.\|.*raise max_worker_processes/,
	'no worker can be had');
$one->query("SELECT leader_election.create_election('elects', lease_duration => '1 h')");
$one->query("SELECT leader_election.join('elects', 'one')");
$two = session($node, name => 'two', user => 'app', options => $QUIET);
$two->query("SELECT leader_election.join('elects', 'two')");
$one->kill;
finds('elects', qr/warning\|Nobody leads election "elects": .* The reason: there is no worker that elects the next one/,
	'nobody elects');
$two->finish;
$node->stop;

$node->append_conf('postgresql.conf',
	"max_worker_processes = 16\nshared_preload_libraries = 'leader_election'\n");
$node->start;
$reader = session($node, name => 'reader', user => 'reader', options => $NO_WAIT);
$super = session($node, name => 'super', options => $QUIET);
$one = session($node, name => 'one', user => 'app', options => $QUIET);
$one->query("SELECT leader_election.join('ended', 'one')");
wait_for($node, $ONE_WORKER);
my $launcher = stop_where($super,
	"SELECT pid FROM pg_stat_activity WHERE backend_type = 'leader_election launcher'",
	"wait_event_type = 'Extension'");
$super->query("SELECT pg_terminate_backend(pid) FROM $WORKERS");
finds('ended', qr/warning\|No worker runs .*\|Wait a second: the launcher starts one/, 'a launcher');
resume_process($launcher);
$node->stop;

# -- The lock table is full, with a worker and without one.

foreach my $workers (8, 0)
{
	my $small = new_server(
		name => "small$workers",
		config => qq(
max_connections = 20
max_locks_per_transaction = 10
max_prepared_transactions = 0
max_worker_processes = $workers
autovacuum = off
));
	$one = session($small, name => 'one', options => $QUIET);
	$reader = session($small, name => 'reader', options => $NO_WAIT);
	$one->query("SELECT leader_election.join('e', 'one')");
	finds('e', $workers ? qr/ok\|/ : qr/\w+\|"one" leads/, "all is well, with $workers slots for workers");

	my $rows = diagnose_full($small);
	like($rows, qr/^error\|The server's lock table is full/m, 'a full lock table');
	is($rows =~ /^warning\|No worker runs in this database, and none can be started/m, !$workers,
		'and whether there is a worker');
	is($reader->query('SELECT worker FROM leader_election.server_metrics'), $workers ? 1 : 0, 'for monitors, too');
	$small->stop('immediate');
}

# What is found while one session takes all locks that it is given
sub diagnose_full
{
	my ($small) = @_;
	my $hog = session($small, name => 'hog');
	my $next = 1;
	my $rows;

	wait_until(
		sub {
			$hog->query("SELECT count(pg_advisory_lock(i)) FROM generate_series($next, $next + 99999) i");
			$next += 100000;
			$rows = diagnose('e');
			return $rows =~ /lock table is full/;
		},
		'a full lock table');
	return $rows;
}

# -- Synchronous standbys that are late, that hang, and that are not there

my $pair = SyncStandby->new(
	config => "leader_election.lease_duration = '3s'\nclient_min_messages = error\nmax_worker_processes = 4\n");
$reader = session($pair->{primary}, name => 'reader', options => $NO_WAIT);
$one = session($pair->{primary}, name => 'one');
$one->query("CALL leader_election.campaign('sync', 'one')");
finds('sync', qr/ok\|"one" leads/, 'standbys confirm');
$pair->delay_line(0.9);
finds('sync', qr/warning\|At the last renewal .* had passed before it could be written/, 'late ones');
$pair->delay_line(0);
finds('sync', qr/ok\|"one" leads/, 'and they are in time again');

my $there = session($pair->{standby}, name => 'there', options => $NO_WAIT);
$one->query("SELECT leader_election.create_election('$_', initial_delay => '1 h', takeover_delay => '1 h')")
  for qw(hold paused brief initial vacant delay);
$one->query("SELECT leader_election.pause_election('brief', 'old disks', '1 ms')");
$one->query("SELECT leader_election.pause_election('paused', 'new disks')");
$one->query("SELECT leader_election.join('initial', 'one')");
$one->query("SELECT leader_election.alter_election('$_', initial_delay => '0')") for qw(hold delay);
$one->query("CALL leader_election.campaign('hold', 'one')");
$one->query("SELECT leader_election.resign('hold', '1 h')");
my $killed = session($pair->{primary}, name => 'killed');
$killed->query("CALL leader_election.campaign('delay', 'killed')");
$killed->kill;
wait_for($pair->{primary}, "SELECT waiting_for FROM leader_election.status WHERE election = 'delay'",
	'takeover delay');
wait_for($pair->{primary}, "SELECT first_stood_at IS NOT NULL FROM leader_election.lease WHERE election = 'initial'");
$pair->{primary}->wait_for_catchup($pair->{standby});
finds('sync', qr/notice\|"one" leads election "sync" .* By the clock of this standby, its lease ends in/, 'a standby', $there);
like(diagnose('sync', $there), qr/^notice\|This server is a standby: it does not know who stands.*\|Run on the primary: SELECT \* FROM leader_election\.diagnose\('sync'\);/m,
	'says what it does not know');
foreach my $told ([ 'hold', 'a hold' ], [ 'delay', 'the takeover delay' ], [ 'paused', 'it is paused by role .*"new disks"' ],
	[ 'initial', 'for others to stand, too' ], [ 'vacant', 'why cannot be seen on a standby' ],
	[ 'brief', 'why cannot be seen on a standby' ])
{
	finds($told->[0], qr/\w+\|Nobody leads election "$told->[0]": .* The reason: $told->[1]/,
		"and why nobody leads: $told->[0]", $there);
}

my $locks = session($pair->{primary}, name => 'locks');
$locks->query($_) for 'BEGIN', 'LOCK TABLE leader_election.election_group';
finds('sync', qr/error\|Process \d+ holds a lock that keeps .* on "election_group"\.\|What the process that replays WAL holds, a transaction on the primary holds/,
	'and a lock that is held on the primary', $there);
$locks->query('ROLLBACK');

sub set_names
{
	my ($names) = @_;

	$pair->{primary}->append_conf('postgresql.conf', "synchronous_standby_names = '$names'");
	$pair->{primary}->reload;
	wait_for($pair->{primary}, 'SHOW synchronous_standby_names', $names);
	return;
}

# Two are needed, and one of them answers.
my $receiver = IPC::Run::start(
	[ 'pg_receivewal', qw(--synchronous --no-loop -s 1), '-D', PostgreSQL::Test::Utils::tempdir(),
		'-d', $pair->{primary}->connstr('postgres') . ' application_name=receiver' ]);
my $names = $reader->query('SHOW synchronous_standby_names');
wait_for($pair->{primary}, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", 2);
set_names('ANY 2 (*)');
finds('sync', qr/ok\|"one" leads/, 'two standbys confirm');
$receiver->signal('STOP');
wait_for($pair->{primary}, 'SELECT standbys_silent_seconds > 3 FROM leader_election.server_metrics');
$receiver->signal('CONT');
wait_for($pair->{primary}, 'SELECT standbys_silent_seconds < 2 FROM leader_election.server_metrics');
$pair->stop_line;
wait_for($pair->{primary}, 'SELECT standbys_silent_seconds > 3 FROM leader_election.server_metrics');
pass('one of two that hangs counts, not the one that answers each second');
set_names($names);
$receiver->kill_kill;
finds('sync', qr/error\|Synchronous standbys have not confirmed the last \d+ bytes, and last answered .* ago/,
	'one that hangs');
finds('sync', qr/\w+\|Nobody leads election "sync": .* The reason: the worker elects the next one when synchronous standbys/,
	'and what comes of it');
$pair->cut_line;
finds('sync', qr/error\|0 of the 1 synchronous standbys that are needed are connected/, 'one that is gone');
finds('sync', qr/\w+\|Nobody leads election "sync": the lease of "one", in term \d+, ended at .*, by the clock of this standby\. The reason/,
	'which sees that the lease is over', $there);
is($one->sqlstate_of("SELECT leader_election.release('hold', 1000000)"), '55P03',
	'and whether a server that was promoted has granted a later term cannot be told');
like($one->errors, qr/DETAIL:  Synchronous standbys have not confirmed in time/, 'for that reason');

# -- After a failover

$pair->{primary}->stop('immediate');
$pair->{standby}->append_conf('postgresql.conf',
	"synchronous_standby_names = ''\nmax_worker_processes = 4");
$pair->{standby}->promote;
$reader = session($pair->{standby}, name => 'reader', options => $NO_WAIT);
finds('sync', qr/warning\|Nobody leads election "sync": "one" led in term \d+ before this server was promoted.* The reason: this server was promoted.* and its new epoch has not begun/,
	'no epoch');
$one = session($pair->{standby}, name => 'one', options => $QUIET);
$one->query("SELECT leader_election.create_election('new', lease_duration => '1 h')");
$one->query("SELECT leader_election.join('new', 'one')");
finds('new', qr/notice\|Nobody leads election "new": .* The reason: this is the grace after a failover/,
	'the grace');
$pair->{standby}->stop('immediate');

done_testing();
