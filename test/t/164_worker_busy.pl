# What the worker cannot have, or do, just now: a table or an index that somebody
# has locked, a row that cannot be written, a change that nobody has committed yet.
# It says so where it has to wait for long, does all else meanwhile, and does the
# rest as soon as it can.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

my $node = new_server(
	preload => 1,
	config => q(
leader_election.lease_duration = '1h'
leader_election.history_retention = '0'
leader_election.worker_idle_timeout = '1h'
client_min_messages = error
));
my ($super, $locker, $listener);

sub connect_all
{
	($super, $locker) = map { session($node, name => $_) } qw(super locker);
	$listener = Announced->new($node);
	return;
}

sub call
{
	my ($sql, $session) = @_;
	my $result = ($session // $super)->query($sql);

	die "$sql: " . ($session // $super)->errors
	  if ($session // $super)->sqlstate ne '00000';
	return $result;
}

# One more term of an election, which is over.
sub lead
{
	my ($election) = @_;
	my $term = call("SELECT term FROM leader_election.acquire('$election', 'x')");

	is(call("SELECT leader_election.release('$election', '$term')"), 't', "$election is led");
	return $term;
}

# Runs SQL in a transaction that goes on.
sub hold
{
	my ($lock) = @_;

	call("BEGIN; $lock", $locker);
	return;
}

# Waits until diagnose() tells a superuser that the worker waits, with what.
sub waits
{
	my ($text, $name) = @_;
	my $found = '';

	ok( eval {
			wait_until(
				sub {
					$found = $super->query("SELECT finding FROM leader_election.diagnose('well')");
					return $found =~ /worker .* waits for a lock, .* SQLSTATE 55P03 \($text\)/;
				},
				sub { "$text, not\n$found" });
		},
		$name) or diag($@);
	return;
}

# Waits until the worker has done what there is to do: it removes a dead candidate
# last. The election is one that it knows.
sub worker_is_done
{
	my $follower = session($node, name => 'follower');

	call("SELECT leader_election.join('well', 'follower')", $follower);
	$follower->finish;
	wait_for($node, "SELECT count(*) FROM leader_election.candidate WHERE candidate = 'follower'", 0);
	return;
}

# Terminates the worker; the launcher starts another one.
sub replace_worker
{
	my $pid = call($WORKER_PID);

	call("SELECT pg_terminate_backend(pid, 60000) FROM $WORKERS");
	wait_for($node, "SELECT count(*) > 0 FROM $WORKERS AND pid <> '$pid'");
	return;
}

connect_all();
my $leader = session($node, name => 'leader');
is($leader->query("SELECT leader_election.join('well', 'leader')"), 1, 'one election is well');
wait_told($node);

# --- Dropped elections: their terms are not forgotten, whatever the worker waits for.

foreach my $lock (
	'LOCK TABLE leader_election.dropped IN SHARE MODE',
	'LOCK TABLE leader_election.epoch IN SHARE MODE',
	'LOCK TABLE leader_election.announced IN ACCESS EXCLUSIVE MODE')
{
	my $last = 0;
	my $pid;

	$last = lead('gone') foreach 1 .. 3;
	wait_told($node);
	$pid = stop_worker($super);
	call("SELECT leader_election.drop_election('gone')");
	hold($lock);
	resume_process($pid);
	waits('removing dropped elections: a table that dropped elections are in is locked', $lock);
	is(call('SELECT election FROM leader_election.dropped'), 'gone', 'the last term is still there');
	$locker->query('ROLLBACK');
	wait_for($node, 'SELECT count(*) FROM leader_election.dropped', 0);
	cmp_ok(lead('gone'), '>', $last, 'afterwards it goes on from there (G5)');
}

# --- Old history

foreach my $lock (
	'LOCK TABLE leader_election.history IN SHARE MODE',
	'LOCK TABLE leader_election.announced IN ACCESS EXCLUSIVE MODE',
	'ALTER INDEX leader_election.history_acquired_at SET TABLESPACE pg_default')
{
	my $OLD = "SELECT count(*) FROM leader_election.history WHERE election = 'old'";

	lead('old');
	wait_told($node);
	hold($lock);
	replace_worker();
	waits('removing old history: a table that old history is removed from is locked', $lock);
	is(call($OLD, $locker), 1, 'old history is still there');
	is($leader->query("SELECT leader_election.is_leader('well')"), 't', 'a leader leads on');
	$locker->query('ROLLBACK');
	wait_for($node, $OLD, 0);
	pass('afterwards it is removed');
}

# --- What listeners are told, while an index is locked, which may be an administrator's

call('CREATE INDEX added ON leader_election.announced (term)');
foreach my $index (qw(announced_pkey added))
{
	my $term = lead('told');
	my @before;

	$listener->wait_for_event('told', "vacated $term");
	wait_told($node);
	@before = $listener->events('told');
	hold("ALTER INDEX leader_election.$index SET TABLESPACE pg_default");
	$term = lead('told');
	worker_is_done();
	is(scalar $listener->events('told'), scalar @before, "$index: nothing is told while it is locked");
	$locker->query('ROLLBACK');
	$listener->events_ok('told', [ @before, "elected $term x", "vacated $term, x resigned" ],
		'but afterwards (G10)');
}
call('DROP INDEX leader_election.added');

# --- One of several elections cannot be told: the others are told one by one, but for
# a renewal that is due, or a table that is locked, just then.

{
	my $LEASE = int(3000 * slowness());
	my $short = session($node, name => 'short');
	my @elections = ('a broken', 'a broken, too', 'b slow', 'c rest');
	my %term;
	my $change = sub {
		my (@elections) = @_;

		hold('LOCK TABLE leader_election.announced IN SHARE MODE');
		$term{$_} = lead($_) foreach @elections;
		call('INSERT INTO gate VALUES (1)');
		$locker->query('COMMIT');
		wait_for($node, "SELECT wait_event = 'PgSleep' FROM $WORKERS");
	};
	my $tells = sub {
		my ($what, @elections) = @_;

		$listener->wait_for_event($_, "vacated $term{$_}") foreach @elections;
		pass("$what: the others are told (G10)");
	};

	lead($_) foreach @elections;
	wait_told($node);
	call("SELECT leader_election.create_election('short', lease_duration => '$LEASE ms')");
	call(q{CREATE TABLE gate (closed int);
		CREATE FUNCTION can_be_told(election text) RETURNS boolean LANGUAGE plpgsql AS $$
		BEGIN
			WHILE election = 'b slow' AND EXISTS (SELECT FROM public.gate) LOOP
				PERFORM pg_sleep(0.005);
			END LOOP;
			RETURN election NOT LIKE 'a broken%';
		END $$;
		ALTER TABLE leader_election.announced ADD CONSTRAINT told CHECK (public.can_be_told(election)) NOT VALID});

	$term{short} = call("SELECT leader_election.join('short', 'short')", $short);
	$change->('a broken', 'b slow', 'c rest');
	wait_for($node, "SELECT leader_election._monotonic_clock() > deadline_mono - duration * 2 / 3
		FROM leader_election.lease WHERE election = 'short'");
	call('DELETE FROM gate');
	$tells->('a renewal is due', 'b slow', 'c rest');
	is($short->query("SELECT leader_election.term('short')"), $term{short}, 'and the lease is renewed');
	call("SELECT leader_election.leave_all()", $short);
	$short->finish;

	# One that has failed before pauses.
	$change->('a broken, too', 'b slow', 'c rest');
	$locker->query_async('BEGIN; LOCK TABLE leader_election.announced IN ACCESS EXCLUSIVE MODE');
	wait_for($node, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = " . $locker->backend_pid);
	call('DELETE FROM gate');
	$locker->result;
	$tells->('a table is locked', 'b slow');
	worker_is_done();
	is((grep { /^vacated $term{'c rest'}\b/ } $listener->events('c rest')), 0, 'what is behind it is not told yet');
	$locker->query('COMMIT');
	$tells->('a table was locked', 'c rest');
	foreach my $election (@elections[0, 1])
	{
		is(scalar(grep { /\b$term{$election}\b/ } $listener->events($election)), 0, "$election: cannot be told");
	}
	call('ALTER TABLE leader_election.announced DROP CONSTRAINT told');
	$tells->('afterwards', @elections[0, 1]);
}

# --- So many elections that each has few events of a transaction: what finds no room
# in the first one is told in the next, in order.

{
	my $SEATS = 40;
	my %expected;
	my ($pid, $first);
	my $seats = sub { return map { "many/$_" } $_[0] .. $_[1]; };

	call("SELECT leader_election.create_group('many', $SEATS, max_per_candidate => $SEATS)");
	is(call("SELECT count(*) FROM leader_election.acquire_any('many', 'x')"), $SEATS, 'many: all are led');
	wait_told($node);
	$first = call("SELECT DISTINCT term FROM leader_election.lease WHERE election LIKE 'many/%'");
	$expected{$_} = [ $listener->events($_) ] foreach $seats->(1, $SEATS);
	$pid = stop_worker($super);
	foreach my $seat ($seats->(1, $SEATS))
	{
		call("SELECT leader_election.release('$seat', $first)");
		push @{ $expected{$seat} }, "vacated $first, x resigned";
	}
	foreach my $seat ($seats->(31, $SEATS))
	{
		my $term = lead($seat);

		push @{ $expected{$seat} }, "elected $term x", "vacated $term, x resigned";
	}
	call("SELECT leader_election.drop_group('many');
		SELECT leader_election.create_group('many', $SEATS, max_per_candidate => $SEATS)");
	push @{ $expected{$_} }, 'created 0' foreach $seats->(1, $SEATS);
	foreach my $i (1 .. 30)
	{
		my $seat = "many/$i";
		my $term = call("SELECT term FROM leader_election.acquire('$seat', 'z')");

		push @{ $expected{$seat} }, "elected $term z";
		if ($i <= 10)
		{
			call("SELECT leader_election.release('$seat', $term)");
			push @{ $expected{$seat} }, "vacated $term, z resigned";
		}
		elsif ($i <= 20)
		{
			call("SELECT leader_election.request_yield('$seat')");
			push @{ $expected{$seat} }, "yield_requested $term z";
		}
		else
		{
			call("SELECT term FROM leader_election.renew('$seat', $term, metadata => '{}')");
			push @{ $expected{$seat} }, "metadata_changed $term z";
		}
	}
	resume_process($pid);
	foreach my $seat ($seats->(1, $SEATS))
	{
		$listener->wait_for_count($seat, scalar @{ $expected{$seat} });
	}
	$listener->fence;
	is_deeply({ map { $_ => [ $listener->events($_) ] } keys %expected }, \%expected, 'many: all is told, in order (G10)');
}

# --- A crowd, which no scan reads: one of it gets the seat when the vacancy may end.

{
	my $first;

	call("SELECT leader_election.create_election('crowd', 'lowest')");
	foreach my $part (0 .. 4)
	{
		call("SELECT count(*) FROM generate_series(1, 210) i, leader_election.acquire('crowd', 'c' || ($part * 210 + i))");
	}
	$first = call("SELECT term FROM leader_election.lease WHERE election = 'crowd'");
	is( call("SELECT count(*) FROM leader_election.candidate WHERE election = 'crowd'"), 1050, 'crowd: they stand');
	is( call("SELECT leader_election.release('crowd', $first,
			hold => (SELECT clock_timestamp() - acquired_at FROM leader_election.lease WHERE election = 'crowd') + interval '1 s')"),
		't', 'crowd: a seat that is held for a second');
	wait_for($node, "SELECT successor IS NOT NULL FROM leader_election.lease WHERE election = 'crowd'");
	is( call("SELECT a.term FROM leader_election.lease l, leader_election.acquire('crowd', l.successor) a WHERE l.election = 'crowd'"),
		$first + 1, 'crowd: then it is kept for one of them, which leads');
}

# --- Another epoch, whose row cannot be written

{
	my $KNOWN = 'SELECT count(*) FROM leader_election.epoch WHERE incarnation = leader_election._incarnation()';
	my $follower = session($node, name => 'follower');
	my $pid;

	call("SELECT leader_election.join('well', 'follower')", $follower);
	$pid = stop_worker($super);
	call(q{UPDATE leader_election.epoch SET incarnation = 'was ' || incarnation});
	hold('LOCK TABLE leader_election.epoch IN SHARE MODE');
	resume_process($pid);
	$follower->finish;    # wakes the worker
	waits('starting an epoch: a table or row that an epoch needs is locked', 'the epoch waits');
	is(call($KNOWN), 0, 'it has not begun');
	$locker->query('ROLLBACK');
	wait_for($node, $KNOWN, 1);
	pass('but afterwards');
}
$_->finish foreach $leader, $super, $locker, $listener->session_of;
$node->stop;

# --- A worker that the launcher has started ends at once where there is nothing to do.
# It stays for a candidacy that is not committed, and for what listeners are not told yet.

$node = new_server(
	name => 'idle',
	preload => 1,
	config => q(
leader_election.lease_duration = '1h'
leader_election.worker_idle_timeout = '100ms'
client_min_messages = error
));
connect_all();

{
	my $pid;

	wait_for($node, $NO_WORKER);
	is(call("SELECT leader_election.create_election('idle')"), '', 'an election without candidates');
	call('SELECT pg_advisory_lock(4711)');
	$locker->query_async("DO \$\$ BEGIN
		PERFORM leader_election.join('idle', 'late');
		PERFORM pg_advisory_xact_lock_shared(4711);
		END \$\$");
	wait_for($node, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . $locker->backend_pid);
	wait_for($node, $ONE_WORKER);
	replace_worker();
	wait_for($node, "SELECT state_change > backend_start + interval '1 s' FROM $WORKERS");
	$pid = call($WORKER_PID);
	is(call("SELECT count(*) FROM $WORKERS"), 1, 'a worker stays for a candidacy that is not committed');
	call('SELECT pg_advisory_unlock(4711)');
	$locker->result;
	wait_for($node, "SELECT leader_election.leader('idle')", 'late');
	is(call($WORKER_PID), $pid, 'and is there when it is');
	call('SELECT leader_election.leave_all()', $locker);
	$listener->wait_for_event('idle', 'vacated 1');
	wait_for($node, $NO_WORKER);
}

{
	call("SELECT leader_election.join('idle', 'brief')");
	wait_told($node);
	hold('LOCK TABLE leader_election.announced IN SHARE MODE');
	$node->append_conf('postgresql.conf', "leader_election.worker_idle_timeout = '1h'");
	$node->reload;
	call('SELECT leader_election.leave_all()');
	replace_worker();
	wait_for($node, "SELECT state_change > backend_start + interval '200 ms' FROM $WORKERS");
	is(call("SELECT count(*) FROM $WORKERS"), 1, 'a worker stays for what listeners are to be told');
	is(scalar(grep { /^vacated 2/ } $listener->events('idle')), 0, 'which is not told while the table is locked');
	$locker->query('ROLLBACK');
	$listener->wait_for_event('idle', 'vacated 2');
	wait_for($node, $NO_WORKER);
	pass('it tells them, and ends (G10)');
}

# --- After a crash: what was told last is not known, nor who stands.

{
	my $detached = call("SELECT term FROM leader_election.acquire('detached', 'd')");

	call("DELETE FROM leader_election.history WHERE election = 'idle'");
	wait_told($node);
	$node->stop('immediate');
	$_->kill foreach $super, $locker, $listener->session_of;
	$node->start;
	connect_all();
	wait_told($node);
	$listener->fence;
	is_deeply([ $listener->events('idle') ], [], 'crash: nothing is told of terms that history does not know any more');
	is(lead('idle'), 3, 'crash: the next term');
	$listener->events_ok('idle', [ 'elected 3 x', 'vacated 3, x resigned' ], 'crash: is told (G10)');

	call("SELECT leader_election.drain_candidate('d', 'detached')");
	wait_for($node, "SELECT yielding AND yield_ordered FROM leader_election.lease WHERE election = 'detached'");
	is(call("SELECT count(*) FROM leader_election.candidate WHERE election = 'detached'"), 0,
		'crash: a drained leader is asked to yield though nobody stands');
	is(call("SELECT term FROM leader_election.renew('detached', $detached)"), $detached, 'crash: and may go on meanwhile');
}

$node->stop('immediate');
done_testing();
