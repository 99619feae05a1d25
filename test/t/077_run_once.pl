# What is to be done once per period: acquire() for a run, and release() that says it
# is done.  No run is granted after that, nor after a later one, nor too often.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Detached;
use LeaderElection;
use SyncStandby;
use Test::More;

serve();

# The term that is granted for a run; '' if it is not.
sub run
{
	my ($election, $name, $run, $more) = @_;

	return any("SELECT term FROM leader_election.acquire('$election', '$name', run => '$run'"
		  . ($more // '') . ')');
}

sub release
{
	my ($election, $term, $more) = @_;

	return any("SELECT leader_election.release('$election', $term" . ($more // '') . ')');
}

sub done { return release(@_, ', done => true'); }

# What the view says of runs, and how many stand
sub status
{
	my ($election) = @_;

	return scalar $control->query(
		"SELECT run, run_done, done_at <= now(), candidates FROM leader_election.status
		WHERE election = '$election'");
}

# What the lease row says
sub runs
{
	my ($election) = @_;

	return join '|', $control->lease($election,
		'run, run_role = current_user, run_granted, run_attempts, run_done, done_at IS NOT NULL');
}

# How many transaction IDs and bytes of WAL these statements take
sub writes
{
	my ($sql) = @_;
	my $now = 'SELECT pg_snapshot_xmax(pg_current_snapshot()), pg_current_wal_insert_lsn()';
	my $before = $control->query($now);

	any($sql);
	return $control->query($now) eq $before ? 'nothing' : 'something';
}

# --- A run is done once.

is(run('job', 'd1', '02'), 1, 'a run is granted');
is(status('job'), '02|||1', 'and shown');
is(run('job', 'd2', '02'), '', 'to one candidate only');
is(run('job', 'd2', '03'), '', 'and no other run meanwhile (G1)');
is(done('job', 1), 't', 'it is done');
is(status('job'), '|02|t|2', 'which is shown, and when');
is( history('job'), 'd1 resigned', 'its term has ended');
is($control->query("SELECT detail FROM leader_election.history WHERE election = 'job'"),
	'done', 'and the history knows');
is(done('job', 1), 't', 'its holder may say so again');

is(run('job', $_, '02'), '', "it is not granted to $_ any more") foreach qw(d1 d2 d3);
is(status('job'), '|02|t|0', 'nor do those stand that ask for it');
is(run('job', 'd1', '01'), '', 'nor is one before it granted');
is(writes("SELECT leader_election.acquire('job', 'd3', run => '02')"),
	'nothing', 'such a call writes nothing (G9)');
is(run('job', 'd2', '03'), 2, 'the next one is');
is(release('job', 2), 't', 'it failed');
is(status('job'), '|02|t|1', 'and is not done');
is(run('job', 'd1', '02'), '', 'one before it is not granted');
is(run('job', 'd1', '03'), 3, 'but that one to another candidate');
is(release('job', 3, ", hold => '1 h', done => NULL"), 't', 'NULL: not done');
is(runs('job'), '03|t|03|2|02|t', 'all of that is in the row');

# --- Only so often

is(run('often', 'd1', 'a', ', attempts => 2'), 1, 'attempts: the first');
release('often', 1);
is(run('often', 'd1', 'a', ', attempts => 2'), 2, 'the second');
release('often', 2);
is(run('often', 'd1', 'a', ', attempts => 2'), '', 'there is no third');
is(status('often'), '|||0', 'nor does the candidate stand for it');
is(run('often', 'd1', 'a', ', attempts => 3'), 3, 'unless the call allows more');
release('often', 3);
is(run('often', 'd1', 'b', ', attempts => 1'), 4, 'the next run has its own');
release('often', 4);
is(run('often', 'd1', 'b'), 5, 'without attempts there is no bound');
release('often', 5);

# --- Byte by byte, not as any language sorts

run('bytes', 'd1', 'a');
done('bytes', 1);
is(run('bytes', 'd1', $_), '', "$_ is before a") foreach qw(A B Zz 9);
foreach my $pair ([ 2, 'aa' ], [ 3, 'ä' ], [ 4, 'é' ])
{
	is(run('bytes', 'd1', $pair->[1]), $pair->[0], "$pair->[1] is after it");
	done('bytes', $pair->[0]);
}

# --- A term that is granted for no run

is(acquire('mixed', 'd1'), 1, 'no run: a term for none');
is(any("SELECT leader_election.release('mixed', 1, done => true)"), '', 'is not done');
is($pool[0]->sqlstate, '22023', 'which is an error');
is(release('mixed', 1), 't', 'but ends');
is(done('mixed', 1), 'f', 'and nothing was recorded');
run('mixed', 'd1', 'x');
done('mixed', 2);
is(joins($control, 'mixed'), 3, 'a session leads');
is(runs('mixed'), '||x|1|x|t', 'what was done is still known');
$control->query("SELECT leader_election.leave('mixed')");
is(run('mixed', 'd1', 'x'), '', 'and holds');
is(acquire('mixed', 'd1'), 4, 'but not for who names no run');

# --- One statement

is( any("SELECT (leader_election.acquire('columns', 'd1', run => 'a', attempts => 1)).term,
		(leader_election.acquire('columns', 'd1', run => 'a', attempts => 1)).yielding"),
	'1|f', 'one statement: the same call repeats its grant');
is( any("SELECT a.term, b.term, c.term
		FROM leader_election.acquire('statement', 'd1', run => 'a') a
		LEFT JOIN leader_election.acquire('statement', 'd1', run => 'b') b ON true
		LEFT JOIN leader_election.acquire('statement', 'd1') c ON true"),
	'1||', 'another run is another call');
is( any("SELECT a.term, b.term
		FROM leader_election.acquire('same', 'd1', run => 'a', attempts => 1) a
		LEFT JOIN leader_election.acquire('same', 'd1', run => 'a', attempts => 1) b ON true"),
	'1|1', 'the same run is granted once, and told twice');
is(status('same'), 'a|||1', 'to a candidate that goes on standing');
is( any("SELECT a.term, b.term
		FROM leader_election.acquire('none, then one', 'd1') a
		LEFT JOIN leader_election.acquire('none, then one', 'd1', run => 'a') b ON true"),
	'1|', 'a run is not granted with a term for none');

# --- A request, which is repeated with another run

my $request = ", request => '5c6b0f0e-3f6a-4a52-9d0c-000000000077'";
is(run('asked', 'd1', 'a', $request), 1, 'a request: granted');
is(run('asked', 'd1', 'a', $request), 1, 'and once more, if its answer was lost');
is(run('asked', 'd1', 'b', $request), '', 'but not for another run');
is(any("SELECT term FROM leader_election.acquire('asked', 'd1'$request)"), '', 'nor for none');

# --- The lease is over, and no later term has begun.

create_election('late', 200_000);
is(run('late', 'd1', 'a'), 1, 'late: granted');
wait_until(sub { state_of('late') =~ /^vacant/ }, 'the end of the lease');
is(release('late', 1), 'f', 'its lease is over');
is(done('late', 1), 't', 'its run is done all the same');
is(run('late', 'd2', 'a'), '', 'and not granted any more');
is(run('late', 'd1', 'b'), 2, 'late: the next one');
wait_until(sub { lease('late')->{leader} eq '' }, 'its seat to be vacated');
$control->query("CREATE ROLE other LOGIN; GRANT USAGE ON SCHEMA leader_election TO other;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO other");
my $other = session($node, name => 'other', user => 'other');
is($other->sqlstate_of("SELECT leader_election.release('late', 2, done => true)"),
	'42501', 'another role cannot say that it is done');
is(run('late', 'd2', 'b'), 3, 'late: another candidate has begun it anew');
is(done('late', 2), 'f', 'then the first one cannot say so any more');
is(runs('late'), 'b|t|b|2|a|t', 'nothing is recorded');
is(done('late', 99), 'f', 'nor of a term that never was');

# --- Who stood, and is refused, is in nobody's way.

$control->query("SELECT leader_election.create_election('standing', 'bully', '1 h')");
is(run('standing', 'low', '1', ', rank => 1'), 1, 'standing: one leads');
is(run('standing', 'high', '1', ', rank => 9'), '', 'and another is to be next');
done('standing', 1);
is(run('standing', 'high', '1', ', rank => 9'), '', 'until the run is done');
is($control->query("SELECT string_agg(candidate, ' ') FROM leader_election.candidates
		WHERE election = 'standing'"), 'low', 'then it stands no more');
is(run('standing', 'low', '2', ', rank => 1'), 2, 'and no seat is kept for it');
is(joins($control, 'standing'), '', 'a session stands');
is(run('standing', 'control', '1'), '', 'a call by its name is refused for its run');
is($control->query("SELECT kind FROM leader_election.candidates
	WHERE election = 'standing' AND candidate = 'control'"), 'session', 'which does not withdraw the session');
$control->query("SELECT leader_election.leave('standing')");
$control->query("SELECT leader_election.create_election('quorum', quorum => 2)");
$control->query("SELECT leader_election.set_run_done('quorum', '5')");
is(run('quorum', 'd1', '6'), '', 'quorum: one of two');
is(run('quorum', 'd2', '5'), '', 'who is refused does not count');
is(run('quorum', 'd1', '6'), '', 'so that there is none');
is(run('quorum', 'd2', '6'), '1', 'until there is');

# --- Two calls queue for the lock of the election: the first one says that the run is
# done.  The second has found that it is not, before it had the lock.  Its candidate
# stands, and goes on standing, for its row is busy.

{
	my ($holder, $locker, $first, $second) =
	  map { session($node, name => $_) } qw(holder locker first second);
	my $waiting = sub {
		my ($n) = @_;

		wait_until(
			sub {
				return $control->query("SELECT count(*) FROM pg_locks
					WHERE NOT granted AND locktype = 'advisory'") eq $n
				  || grep { $_->{busy} && $_->finished } $first, $second;
			},
			"$n calls to wait");
	};

	# They wait for a second at most: where a slow machine comes too late, anew,
	# with another run.
	my $try = 0;
	my $run;

	wait_until(
		sub {
			$run = sprintf('a%03d', ++$try);
			my $term = run('queue', 'd1', $run);
			cmp_ok($term, '>', 0, "queue: $run is granted");
			is(run('queue', 'd2', $run), '', 'another one stands');
			is(release('queue', $term), 't', 'the first one gives it back');
			$locker->query("BEGIN; SELECT FROM leader_election.candidate
				WHERE election = 'queue' AND candidate = 'd2' FOR UPDATE");
			$control->query('SELECT pg_advisory_lock(77)');
			$holder->query_async("DO \$\$ BEGIN PERFORM leader_election.alter_election('queue', quorum => 1);
				PERFORM pg_advisory_xact_lock(77); END \$\$");
			$waiting->(1);
			$first->query_async("SELECT leader_election.release('queue', $term, done => true)");
			$waiting->(2);
			$second->query_async("SELECT term FROM leader_election.acquire('queue', 'd2', run => '$run')");
			$waiting->(3);
			$control->query('SELECT pg_advisory_unlock(77)');
			my ($done, $granted) = map { scalar $_->result } $first, $second;
			$holder->result;
			$locker->query('COMMIT');
			release('queue', $granted) if $granted ne '';
			return $done eq 't' && $second->sqlstate eq '00000'
			  && is($granted, '', 'the second one in the queue is not granted what the first one has done');
		},
		'both to have their turn');
	is(run('queue', 'd2', $run), '', 'nor any more');
	is($control->query("SELECT string_agg(candidate, ' ') FROM leader_election.candidates
			WHERE election = 'queue'"), 'd1', 'and it stands no more');
	$_->finish foreach $holder, $locker, $first, $second;
}

# --- An owner sets back what somebody has poisoned.

is(run('poisoned', 'd1', 'zzzz'), 1, 'poisoned: a run after all others');
is($other->sqlstate_of("SELECT leader_election.set_run_done('poisoned', NULL)"),
	'42501', 'another role cannot set it back');
is(done('poisoned', 1), 't', 'is said to be done');
is(run('poisoned', 'd1', 'b'), '', 'no other is granted');
$control->query("SELECT leader_election.set_run_done('poisoned', 'a')");
is(runs('poisoned'), '||||a|t', 'set back');
is(done('poisoned', 1), 'f', 'who poisoned it cannot say so again');
is(run('poisoned', 'd1', 'a'), '', 'the last one that is done is that');
is(run('poisoned', 'd1', 'b'), 2, 'the next one is granted');
$control->query("SELECT leader_election.set_run_done('poisoned', NULL)");
is(runs('poisoned'), 'b|t||||f', 'cleared, while one is under way');
is(done('poisoned', 2), 't', 'which is done then');
$control->query("SELECT leader_election.alter_election('poisoned', quorum => 1)");
is(runs('poisoned'), 'b|t|||b|t', 'settings leave it alone');
is(run('poisoned', 'd1', 'a'), '', 'and holds');
$control->query("SELECT leader_election.create_group('poisoned seats', 1)");
is(run('poisoned seats/1', 'd1', 'zzzz'), 1, 'a seat of a group');
is(done('poisoned seats/1', 1), 't', 'has a run done that is after all others');
$control->query("SELECT leader_election.set_run_done('poisoned seats/1', NULL)");
is(run('poisoned seats/1', 'd1', 'b'), 2, 'set back, which is no setting of the group');

# --- What cannot be

is($control->sqlstate_of("SELECT leader_election.acquire('job', 'd1', $_)"), '22023', "refused: $_")
  foreach "run => ''", "run => repeat('x', 201)", "run => 'a', attempts => 0",
  'attempts => 1';
is($control->sqlstate_of("SELECT leader_election.set_run_done('job', $_)"), '22023', "refused as done: $_")
  foreach "''", "repeat('x', 201)";
is(run('long', 'd1', 'x' x 200), 1, 'a run may be as long as a name');

# --- It is durable: here nothing else is flushed when it is told.

is(run('crash', 'd1', 'a'), 1, 'crash: granted');
is(done('crash', 1), 't', 'and done');
is(run('late crash', 'd1', 'a'), 1, 'late crash: granted');
release('late crash', 1);
is(done('late crash', 1), 't', 'given back, and done');
$_->finish foreach $other;
$_->kill foreach $control, @pool;
$node->stop('immediate');
$node->start;
connect_all();
is(status('crash'), '|a|t|0', 'it is done after a crash (G6)');
is(run('crash', 'd1', 'a'), '', 'and not granted');
is(status('late crash'), '|a|t|0', 'late crash: it is done (G6)');

# --- A failover, as a lease looks like after one: of another incarnation.

foreach my $e ('leads on', 'in the grace', 'not heard')
{
	create_election($e, $e eq 'not heard' ? 2_000_000 : 20_000_000);
	is(run($e, 'd1', 'a', ', attempts => 1'), 1, "$e: granted");
}
$control->query("UPDATE leader_election.lease SET incarnation = 'other'
	WHERE election IN ('leads on', 'in the grace', 'not heard');
	UPDATE leader_election.epoch SET epoch = 1,
	first_seen_mono = leader_election._monotonic_clock()");
my $term = renew('leads on', 1);
cmp_ok($term, '>', 1 << 22, 'after a failover its leader leads on');
is(runs('leads on'), 'a|t|a|1||f', 'which is no attempt');
is(done('leads on', 1), 't', 'and its run is done, by the term that it knows');
is(any("SELECT leader_election.release('in the grace', 1)"), '', 'in the grace it cannot give up');
is($pool[0]->sqlstate, '55P03', 'yet');
is(done('in the grace', 1), 't', 'but say that its run is done');
is(lease('in the grace')->{leader}, 'd1', 'which changes nothing else');
is(done('in the grace', 1), 't', 'and say so again');

# A continued lease runs out before its holder has heard of its new term.
cmp_ok(renew('not heard', 1), '>', 1 << 22, 'it leads on');
wait_until(sub { lease('not heard')->{leader} eq '' }, 'its seat to be vacated');
is(done('not heard', 1), 't', 'and its run is done, by its first term');

$node->stop;

# --- A synchronous standby knows what was recorded, or nothing was.

{
	my $pair = SyncStandby->new(config => "leader_election.lease_duration = '3s'
client_min_messages = warning");
	my $app = session($pair->{primary}, name => 'app');
	my $say = "SELECT leader_election.release('sync', 1, done => true)";
	my $done = "SELECT run_done FROM leader_election.status WHERE election = 'sync'";

	$app->query("SELECT leader_election.create_election('sync')");
	is($app->query("SELECT term FROM leader_election.acquire('sync', 'd1', run => 'a')"), 1,
		'a synchronous standby: granted');
	is($app->query("SELECT leader_election.release('sync', 1)"), 't', 'and given back');
	$pair->stop_line;
	is($app->sqlstate_of($say), '55P03', 'what no standby confirms is not recorded (G6)');
	is($pair->{observer}->query($done), '', 'nor shown');
	$pair->resume_line;
	is($app->query($say), 't', 'when one does, it is');
	$pair->cut_line;
	$pair->{standby}->promote;
	my $there = session($pair->{standby}, name => 'there');
	is($there->query($done), 'a', 'the standby knows when it is promoted (G6)');
	is(query_unless_busy($there, "SELECT term FROM leader_election.acquire('sync', 'd2', run => 'a')"),
		'', 'nobody is granted it there');
	wait_until(sub { $there->query("SELECT term > 4194304 FROM leader_election.acquire('sync', 'd2', run => 'b')") eq 't' },
		'the end of the grace');
	is($there->query($say), 'f', 'and a later term has begun');
	is($app->sqlstate_of("SELECT term FROM leader_election.acquire('sync', 'd1', run => 'a')"),
		'00000', 'the old primary tells so, too');
	is($app->sqlstate_of("SELECT term FROM leader_election.acquire('sync', 'd1', run => 'b')"),
		'55P03', 'and grants no other');
	$_->stop('immediate') foreach $pair->{primary}, $pair->{standby};
}

done_testing();
