# Every state of the worker in which it does not elect has its words, in
# status.waiting_for and in diagnose(): the table in docs/operations.md. Each is made
# here. What the worker's own failure was is told to those who may know it, also where
# nothing can be written; and when its cause is gone, the worker goes on soon.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

my $QUIET = '-c client_min_messages=error -c synchronous_commit=local';
my $node = new_server(streaming => 1, config => "leader_election.lease_duration = '1h'");

$node->safe_psql('postgres', q{
	CREATE ROLE reader LOGIN;
	GRANT USAGE ON SCHEMA leader_election TO reader;
	CREATE FUNCTION is_fine(election text) RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		IF election LIKE 'broken%' THEN
			RAISE EXCEPTION E'no room\tfor\x7f"%"', election USING ERRCODE = 'disk_full';
		ELSIF election = 'memory' THEN
			RAISE EXCEPTION 'no memory for %', election USING ERRCODE = 'out_of_memory';
		END IF;
		RETURN true;
	END $$});
my ($super, $holder) = map { session($node, name => $_, options => $QUIET) } qw(super holder);
my $reader = session($node, name => 'reader', user => 'reader', options => $QUIET);

# Two sessions stand in an election, and the first one leads it. Returns both.
sub stand
{
	my ($election, $where) = @_;
	my @candidates = map { session($where // $node, name => "candidate $_", options => $QUIET) } 1, 2;

	foreach my $i (0, 1)
	{
		$candidates[$i]->query("SELECT leader_election.join('$election', 'candidate $i')");
	}
	return @candidates;
}

sub waiting_for
{
	my ($election, $session) = @_;

	return ($session // $reader)->query("SELECT waiting_for FROM leader_election.status WHERE election = '$election'");
}

sub diagnose
{
	my ($election, $session) = @_;

	return ($session // $reader)->query("SELECT severity, finding, remedy FROM leader_election.diagnose('$election')");
}

# Waits for these words in status, in metrics, and in diagnose().
sub says
{
	my ($election, $words, $finding, $session) = @_;
	my ($seen, $found) = ('', '');

	eval {
		wait_until(
			sub {
				$seen = waiting_for($election, $session);
				$found = diagnose($election, $session);
				return $seen eq $words && $found =~ $finding;
			},
			'the words');
	};
	is($seen, $words, "$election: waiting_for");
	like($found, $finding, "$election: diagnose()");
	return;
}

sub server
{
	my ($columns, $session) = @_;

	return ($session // $reader)->query("SELECT $columns FROM leader_election.server_metrics");
}

# -- It fails, with one election.

my (undef, $two) = my @broken = stand('broken');
my @well = stand('well');

is(server('worker, worker_failing_seconds, worker_failures, worker_retry_seconds, worker_sqlstate'), '1|0|0||',
	'all is well: no failure');
$super->query('ALTER TABLE leader_election.lease ADD CONSTRAINT c CHECK (public.is_fine(election)) NOT VALID');
$broken[0]->kill;
says('broken', 'worker fails',
	qr/^error\|Nobody leads election "broken": .* The reason: the worker fails\.\|.*\n(?:.*\n)*error\|The worker \(process \d+\) fails, since 20.*, \d+ times, with SQLSTATE 53100\. It tries again at 20.*\|Make room on the server's disks.* within 5 s/);
is($reader->query("SELECT waiting_for FROM leader_election.metrics WHERE election = 'broken'"), 'worker fails', 'metrics');
like(server(q{worker_failing_seconds > 0, worker_failures > 0, worker_retry_seconds <= 5, worker_sqlstate, coalesce(worker_failure, '-')}),
	qr/^t\|t\|t\|53100\|-$/, 'server_metrics');
like(diagnose('broken', $super), qr/with SQLSTATE 53100 \(electing in "broken": no room for "broken"\)/,
	'a superuser is told what the error says, without its control characters');
is(server('worker_failure', $super), 'electing in "broken": no room for "broken"', 'also in server_metrics');
like(diagnose('well'), qr/^notice\|"candidate 0" leads.*\n(?:.*\n)*warning\|The worker .* fails/, 'in another election it is a warning');

# Of an election that the failure does not concern, the worker that hangs says nothing.
my @other = stand('other');
my $worker = stop_worker($super);
$other[0]->kill;
wait_until(sub { $reader->query("SELECT led FROM leader_election.metrics WHERE election = 'other'") eq '0' }, 'the end of a session');
is($reader->query("SELECT string_agg(waiting_for, ', ' ORDER BY election) FROM leader_election.metrics WHERE election IN ('broken', 'other')"),
	'worker fails, the worker', 'the failure is told of the election that it concerns');
resume_process($worker);
wait_until(sub { $other[1]->query("SELECT leader_election.is_leader('other')") eq 't' }, 'the next leader there');
$other[1]->finish;

# An election that is well is elected meanwhile.
$well[0]->kill;
wait_until(sub { $well[1]->query("SELECT leader_election.is_leader('well')") eq 't' }, 'the other election');
is(waiting_for('well'), '', 'another election is elected meanwhile');

# Its pauses have grown. When the cause is gone, it takes 5 s at most.
wait_until(sub { server('worker_failures >= 8 AND worker_retry_seconds > 3') eq 't' }, 'pauses to grow');
cmp_ok(server('worker_retry_seconds'), '<=', 5, 'pauses do not grow above 5 s');
my $start = machine_time();
$super->query('ALTER TABLE leader_election.lease DROP CONSTRAINT c');
wait_until(sub { $super->query("SELECT leader FROM leader_election.lease WHERE election = 'broken'") eq 'candidate 1' },
	'an election by itself');
cmp_ok(machine_time() - $start, '<', 8, 'without a call the worker elects: ' . (machine_time() - $start) . ' s (G7)');
wait_until(sub { server('worker_failing_seconds = 0 AND worker_sqlstate IS NULL') eq 't' }, 'no failure');
unlike(diagnose('broken'), qr/fails/, 'nothing is told of it any more');

# The next call by anybody ends the pause: here, one that looks.
my @again = stand('broken again');
$super->query('ALTER TABLE leader_election.lease ADD CONSTRAINT c CHECK (public.is_fine(election)) NOT VALID');
$again[0]->kill;
wait_until(sub { server('worker_failures >= 8 AND worker_retry_seconds > 3') eq 't' }, 'pauses to grow');
my $left = server('worker_retry_seconds');
$super->query('ALTER TABLE leader_election.lease DROP CONSTRAINT c');
$start = machine_time();
diagnose('broken again');
wait_until(
	sub { $super->query("SELECT leader FROM leader_election.lease WHERE election = 'broken again'") eq 'candidate 1' },
	'an election after a call');
cmp_ok(machine_time() - $start, '<', $left, "a call ends a pause of $left s");

# Of eight elections it says that they wait. When there are more, all are taken to do so.
my @eight = map { session($node, name => $_, options => $QUIET) } qw(leads follows);
foreach my $i (1 .. 8)
{
	$_->query("SELECT leader_election.join('broken $i', 'c' || pg_backend_pid())") foreach @eight;
}
my @ninth = stand('broken 9');
$super->query('ALTER TABLE leader_election.lease ADD CONSTRAINT c CHECK (public.is_fine(election)) NOT VALID');
$eight[0]->kill;
wait_until(
	sub { $reader->query("SELECT count(*) FROM leader_election.status WHERE election LIKE 'broken _' AND waiting_for = 'worker fails'") eq '8' },
	'eight elections to wait');
like(diagnose('well'), qr/^warning\|The worker .* fails/m, 'eight elections wait: in another one that is a warning');
$ninth[0]->kill;
wait_until(sub { diagnose('well') =~ /^error\|The worker .* fails/m }, 'all to wait');
pass('nine elections wait: in each that is an error');
$super->query('ALTER TABLE leader_election.lease DROP CONSTRAINT c');
wait_until(
	sub { $super->query("SELECT count(leader_election.leader(election)) FROM leader_election.election WHERE election LIKE 'broken _'") eq '9' },
	'leaders of all');
$_->finish foreach $eight[1], $ninth[1];

# A candidate that elects by its own call ends it, too.
my @own = stand('broken own');
$super->query('ALTER TABLE leader_election.lease ADD CONSTRAINT c CHECK (public.is_fine(election)) NOT VALID');
$own[0]->kill;
wait_until(sub { waiting_for('broken own') eq 'worker fails' }, 'the worker to fail');
is($own[1]->sqlstate_of("SELECT leader_election.join('broken own', 'candidate 1')"), '53100', 'a call fails as well');
$super->query('ALTER TABLE leader_election.lease DROP CONSTRAINT c');
$own[1]->query("SELECT leader_election.join('broken own', 'candidate 1')");
wait_until(sub { server('worker_failing_seconds') eq '0' }, 'no failure');
pass('a call that elects ends the trouble');
is(scalar(() = slurp_file($node->logfile) =~ /\] ERROR:  no room\tfor\x7f"broken"$/mg) < 5 ? 1 : 0, 1,
	'the log does not repeat it again and again');

# Want of memory, too, is logged once, although it is tried again soon.
my @memory = stand('memory');
my $offset = -s $node->logfile;
$super->query('ALTER TABLE leader_election.lease ADD CONSTRAINT c CHECK (public.is_fine(election)) NOT VALID');
$memory[0]->kill;
wait_until(sub { server('worker_failures >= 20') eq 't' }, 'the worker to fail');
is(server('worker_sqlstate'), '53200', 'it has no memory');
is(scalar(() = slurp_file($node->logfile, $offset) =~ /\] ERROR:  no memory for memory$/mg), 1, 'the log says so once');
$super->query('ALTER TABLE leader_election.lease DROP CONSTRAINT c');
wait_until(sub { server('worker_failing_seconds') eq '0' }, 'no failure');
$memory[1]->finish;

# -- With what all elections need: an index that somebody has added

$super->query('CREATE TABLE broken AS SELECT true AS yes;
	CREATE FUNCTION raises(text) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
		BEGIN RETURN 1 / (1 - (SELECT count(*) FROM public.broken)::int); END $$');
$super->query('DELETE FROM broken; CREATE INDEX i ON leader_election.history (public.raises(leader));
	INSERT INTO broken VALUES (true)');
my @index = stand('index');
$super->query('DELETE FROM broken');
$index[1]->query("SELECT leader_election.join('index', 'candidate 1')");
$index[0]->query("SELECT leader_election.join('index', 'candidate 0')");
wait_until(sub { waiting_for('index') eq '' }, 'a leader');
$super->query('INSERT INTO broken VALUES (true)');
$_->query("SELECT leader_election.is_leader('index')") eq 't' and $_->kill foreach @index;
says('index', 'worker fails', qr/^error\|The worker \(process \d+\) fails, .* SQLSTATE 22012\b.*\|.*If an index, a constraint or a column was added/m);
$super->query('DROP INDEX leader_election.i');
wait_until(sub { waiting_for('index') eq '' }, 'an election without the index');
pass('without the index somebody is elected');

# -- It waits for a lock, and is cancelled.

my @locked = stand('locked');
$holder->query_async("SELECT leader_election.pause_election('locked'), pg_sleep(600)");
wait_until(sub { $super->query(q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'}) eq '1' },
	'the lock to be held');
$locked[0]->kill;
says('locked', 'worker waits for a lock',
	qr/^warning\|The worker \(process \d+\) waits for a lock, since .*, \d+ times, with SQLSTATE 55P03.*\|See the rows on who holds locks\./m);
is(server('worker_failing_seconds, worker_failures, worker_retry_seconds, worker_sqlstate'), '0|0||', 'to wait is no failure');
like(diagnose('locked'), qr/^error\|Process \d+ of role .* holds the lock of election "locked": the leader cannot change/m,
	'and who holds it');
my $cancels = session($node, name => 'cancels', options => $QUIET);
$cancels->query_async("DO \$\$ BEGIN LOOP
	PERFORM pg_cancel_backend(pid) FROM pg_stat_get_activity(NULL) WHERE backend_type = 'leader_election worker';
	PERFORM pg_sleep(0.003);
	END LOOP; END \$\$");
says('locked', 'worker was cancelled',
	qr/^warning\|The worker \(process \d+\) was cancelled, since .* SQLSTATE 57014.*\|Find out who calls pg_cancel_backend/m);
$super->query('SELECT pg_terminate_backend(' . $_->backend_pid . ', 10000)') foreach $cancels, $holder;
wait_until(sub { $locked[1]->query("SELECT leader_election.is_leader('locked')") eq 't' }, 'the next leader');
wait_until(sub { diagnose('locked') =~ /^ok[^\n]*$/ }, 'all to be well');
pass('all is well again');

# -- It waits for standbys.

my @standbys = stand('standbys');
$super->query("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
$node->reload;
wait_until(sub { $reader->query('SHOW synchronous_standby_names') eq 'nobody' }, 'the setting');
wait_until(sub { server('standbys_needed') eq '1' }, 'it to be in force');
$standbys[0]->kill;
says('standbys', 'synchronous standbys', qr/^error\|0 of the 1 synchronous standbys that are needed are connected/m);
$super->query('ALTER SYSTEM RESET synchronous_standby_names');
$node->reload;
wait_until(sub { $standbys[1]->query("SELECT leader_election.is_leader('standbys')") eq 't' }, 'the next leader');

# -- It was terminated.

my @terminated = stand('terminated');
$super->query("SELECT pg_terminate_backend(pid, 10000) FROM $WORKERS");
$terminated[0]->kill;
says('terminated', 'a worker or a call', qr/^warning\|No worker runs in this database: nobody renews/m);
is(server('worker, worker_failing_seconds'), '0|0', 'no worker, no failure of it');
$node->stop('immediate');

# -- A damaged index: one that the worker needs to remove old history

my $damaged = new_server(name => 'damaged', preload => 1, config => "leader_election.lease_duration = '1h'");
$super = session($damaged, name => 'super', options => $QUIET);
my $path = $damaged->data_dir . '/'
  . $super->query("SELECT pg_relation_filepath(indexrelid) FROM pg_index
	WHERE indrelid = 'leader_election.history'::regclass AND NOT indisprimary");
$super->query("SELECT leader_election.create_election('damaged', 'lowest')");
$super->query("SELECT leader_election.join('damaged', 'leader')");
$super->query("SELECT leader_election.acquire('damaged', 'follower')");
wait_told($damaged);
$damaged->stop;
open(my $file, '+<', $path) or die $!;
seek($file, 8192, 0);
print $file "\0" x 8192 or die $!;
close($file) or die $!;
$damaged->start;
$super = session($damaged, name => 'super', options => $QUIET);
says('damaged', 'reserved for follower',
	qr/^warning\|The worker \(process \d+\) fails, .* SQLSTATE XX002 \(removing old history: index .*\|If an index is damaged \(XX002\): REINDEX/m, $super);
$super->query('REINDEX TABLE leader_election.history');
wait_until(sub { server('worker_failing_seconds', $super) eq '0' }, 'the end of the failures');
pass('after REINDEX the worker goes on');
$damaged->stop('immediate');

# -- No free slot: not even for the first worker

my $full = new_server(name => 'full', config => q(
leader_election.lease_duration = '1h'
max_worker_processes = 1
max_logical_replication_workers = 0
max_parallel_workers = 0
));
$full->safe_psql('postgres', 'CREATE DATABASE other');
$full->safe_psql('other', 'CREATE EXTENSION leader_election');
my $other = session($full, name => 'other', dbname => 'other', options => $QUIET);
$other->query("SELECT leader_election.join('other', 'o')");
my @slotless = stand('slotless', $full);
my $there = session($full, name => 'there', options => $QUIET);
$slotless[0]->kill;
says('slotless', 'a worker or a call',
	qr/^warning\|No worker runs in this database, and none can be started: background workers use all 1 of max_worker_processes\./m, $there);

# -- Where there is no room to name an election, the failure counts for all.

my $narrow = new_server(name => 'narrow', config => "track_activity_query_size = 100");
my $boss = session($narrow, name => 'boss', options => $QUIET);
my @narrow = stand('e', $narrow);
$boss->query("ALTER TABLE leader_election.lease ADD CONSTRAINT c CHECK (pg_catalog.upper(election) <> 'E') NOT VALID");
$narrow[0]->kill;
says('e', 'worker fails', qr/with SQLSTATE 23514/, $boss);
$narrow->stop;

done_testing();
