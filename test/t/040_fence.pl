# Fenced transactions against what happens to processes: leaders that are
# paused and lose their lease, a commit that is stopped half-way, many clients
# that commit fenced all the time, fences of several elections, and waits at
# commit that are cut short.
#
# What a fence does by itself is in sql/fence.sql and specs/fenced.spec, and
# crashes are in 042_fence_crash.pl.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

# Microseconds
my $LEASE = 4_000_000;
my $LONG = 3_600_000_000;

# Seconds in which what must not starve happens: far more than it takes, and
# less than any lease there is then.
my $PROMPT = 10;

# A server with deadlock_timeout this short sees every deadlock there is, and
# logs those that it can undo by itself, too.
my $node = new_server(
	streaming => 1,
	config => compile_library('stop_at_commit') . q(
leader_election.lease_duration = '1h'
client_min_messages = warning
track_commit_timestamp = on
deadlock_timeout = '10ms'
log_lock_waits = on
));
my $control = session($node, name => 'control');
$control->query("CREATE FUNCTION stop_at_commit() RETURNS void LANGUAGE c AS 'stop_at_commit'");

sub create_election
{
	my ($election, $lease) = @_;

	$control->query("SELECT leader_election.create_election('$election',
		lease_duration => '${lease}us')");
	return;
}

# Ask until it is granted: the worker may be looking at the same election.
sub acquire
{
	my ($session, $election, $candidate) = @_;
	my $term;

	wait_until(
		sub {
			$term = $session->query("SELECT term
				FROM leader_election.acquire('$election', '$candidate')");
			return $term ne '';
		},
		"$election to be granted to $candidate");
	return $term;
}

# Whether something happens in time; if not, the test goes on.
sub happens
{
	my ($sql, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(eval { wait_for($node, $sql, 't', $PROMPT) }, $name)
	  || diag($@);
}

# Whether a session's backend waits for a lock of this kind, and until it does
sub waits_for_lock
{
	my ($session, $condition) = @_;

	return $control->query(
		'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = '
		  . $session->backend_pid
		  . " AND $condition") eq 't';
}

sub wait_for_lock
{
	my ($session, $condition) = @_;

	wait_until(sub { waits_for_lock($session, $condition) }, "a wait for $condition");
	return;
}

my $ELECTION_LOCK = "locktype = 'advisory' AND objsubid = 21";

# Whether a session holds locks of ours, but those by which sessions are alive.
sub leaves_no_lock
{
	my ($session, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(
		$control->query(
			"SELECT string_agg(l::text, '; ') FROM pg_locks l
			WHERE pid = " . $session->backend_pid . " AND mode <> 'SIReadLock'
				AND (locktype = 'advisory' AND objsubid > 20 OR relation IN
					(SELECT oid FROM pg_class WHERE relnamespace =
						'leader_election'::regnamespace))"),
		'',
		$name);
}

$control->query(
	q{CREATE TABLE jobs (election text, what text);
	CREATE TABLE written (at_terms jsonb)});

#
# A leader that is paused within a transaction is not the leader any more, or
# not in that term, when it goes on.
#
# What is stopped is its client, or its backend. The fence is the session's,
# that of a term, of the trigger, of a single statement that has passed the
# trigger, or of a detached leader's term on another connection. In the
# meantime another one is elected; or the same one, once more, after that.
#

my %fence = (
	session => q{BEGIN; SELECT leader_election.assert_leader('%1$s');
		INSERT INTO jobs VALUES ('%1$s', 'paused')},
	term => q{BEGIN; SELECT leader_election.assert_leader('%1$s', 1);
		INSERT INTO jobs VALUES ('%1$s', 'paused')},
	detached => q{BEGIN; SELECT leader_election.assert_leader('%1$s', 1);
		INSERT INTO jobs VALUES ('%1$s', 'paused')},
	trigger => q{BEGIN; INSERT INTO "guarded %1$s" VALUES ('%1$s', 'paused')},
	statement => q{INSERT INTO "guarded %1$s"
		SELECT '%1$s', 'paused' || pg_advisory_xact_lock_shared(1)::text});
my @cases;
my $pool = session($node, name => 'pool');
my $heir = session($node, name => 'heir');

$control->query('SELECT pg_advisory_lock(1)');
foreach my $fence (sort keys %fence)
{
	foreach my $who (qw(client backend))
	{
		# The server goes on with a statement whose client is stopped.
		next if $fence eq 'statement' && $who eq 'client';
		push @cases,
		  map { { fence => $fence, who => $who, next => $_,
				e => "$fence, $who, $_" } } qw(another same);
	}
}
foreach my $case (@cases)
{
	my ($e, $fence) = @$case{qw(e fence)};
	my $leader = $case->{leader} = session($node, name => $e);

	create_election($e, $LEASE);
	$control->query(
		qq{CREATE TABLE "guarded $e" () INHERITS (jobs);
		CREATE TRIGGER only_leader BEFORE INSERT ON "guarded $e"
			FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('$e')})
	  if $fence =~ /trigger|statement/;
	is( $fence eq 'detached' ? acquire($pool, $e, 'leader') :
		  $leader->query("CALL leader_election.campaign('$e', 'leader', auto_renew => false)"),
		1,
		"$e: leads");
	$leader->query_async(sprintf $fence{$fence}, $e);
	if ($fence eq 'statement')
	{
		wait_for_lock($leader, "locktype = 'advisory' AND objsubid = 1");
	}
	else
	{
		$leader->result;
		is($leader->sqlstate, '00000', "$e: leads, and writes");
	}
	stop_process($case->{who} eq 'client' ? $leader->pid : $leader->backend_pid);

	# What it is to do next: the transaction's end
	$leader->query_async(
		"SELECT leader_election.is_leader('$e', 1), leader_election.term('$e');
		COMMIT") if $fence ne 'statement';
	$heir->query("SELECT leader_election.join('$e', 'heir')");
}
wait_for($node,
	"SELECT count(*) FROM leader_election.lease
	WHERE leader = 'heir' AND term = 2", scalar @cases);
foreach my $case (grep { $_->{next} eq 'same' } @cases)
{
	my $e = $case->{e};

	$control->query("SELECT leader_election.alter_election('$e',
		lease_duration => '1h')");
	is($heir->query("SELECT leader_election.leave('$e')"),
		't', "$e: the next one leaves");
	acquire($pool, $e, 'leader') if $case->{fence} eq 'detached';
	wait_for($node, "SELECT leader = 'leader' AND term = 3
		FROM leader_election.lease WHERE election = '$e'");
}
$control->query('SELECT pg_advisory_unlock(1)');
foreach my $case (@cases)
{
	my ($e, $leader, $fence) = @$case{qw(e leader fence)};
	my $again = $case->{next} eq 'same' ? 3 : '';
	my $told;

	resume_process($case->{who} eq 'client' ? $leader->pid : $leader->backend_pid);
	$told = $leader->result;
	is($leader->sqlstate, 'LE002',
		"$e: its commit is refused (ShedLock#132, ldk-node#932, G8)");
	like($leader->errors, qr/^DETAIL:\s+Term 1 is over\.$/m,
		"$e: as its term is over");
	is($told, 'f|' . ($fence eq 'detached' ? '' : $again),
		"$e: the session is told in which term it leads, if any") if $fence ne 'statement';
	leaves_no_lock($leader, "$e: no lock is left");
	is($control->query("SELECT count(*) FROM jobs WHERE election = '$e'"),
		0, "$e: nothing was written (G8)");

	# And the session goes on as what it is.
	$leader->query(
		$fence eq 'detached' ?
		"SELECT leader_election.assert_leader('$e', 3)\\; INSERT INTO jobs VALUES ('$e', 'again')" :
		"SELECT leader_election.assert_leader('$e')\\; INSERT INTO jobs VALUES ('$e', 'again')");
	is($leader->sqlstate, $again ? '00000' : 'LE001', "$e: afterwards");
	is($control->query("SELECT string_agg(what, ', ') FROM jobs WHERE election = '$e'"),
		$again ? 'again' : '', "$e: in its present term, if any");
	$leader->finish;
}
$control->query("SELECT leader_election.alter_election(election,
	lease_duration => '1h') FROM leader_election.election");

#
# A backend that is stopped between the check of its fence and the end of its
# commit: the next leader of that election waits for it, however long, and
# nothing else does.
#
{
	my (%worker, %leader);

	create_election($_, $LEASE) foreach qw(kept expired);
	$leader{$_} = session($node, name => "$_ leader") foreach qw(killed other kept);
	is( $leader{$_}->query("CALL leader_election.campaign('$_', 'leader')"),
		1, "$_: leads") foreach sort keys %leader;
	foreach my $e (qw(killed expired))
	{
		$worker{$e} = session($node, name => "$e worker");
		$worker{$e}->query("LOAD 'stop_at_commit'");	# before leader_election
	}
	is(acquire($pool, 'expired', 'leader'), 1, 'expired: leads');
	foreach my $e (sort keys %worker)
	{
		$worker{$e}->query("BEGIN; SELECT leader_election.assert_leader('$e', 1);
			INSERT INTO jobs VALUES ('$e', 'stopped'); SELECT stop_at_commit()");
		is($worker{$e}->sqlstate, '00000', "$e: leads");
		$worker{$e}->query_async('COMMIT');
		wait_stopped($worker{$e}->backend_pid);
	}
	$heir->query("SELECT leader_election.join('$_', 'heir')")
	  foreach qw(killed other expired);

	# The leaders of two are gone, and the lease of a third runs out.
	$leader{$_}->kill foreach qw(killed other);
	happens("SELECT leader = 'heir' AND term = 2 FROM leader_election.lease
		WHERE election = 'other'", 'stopped: another election goes on (G9)');
	wait_for($node, "SELECT NOT leader_election.is_leader('expired', 1)");
	wait_for($node, "SELECT deadline_mono - acquired_mono > 2 * $LEASE
		FROM leader_election.lease WHERE election = 'kept'");
	is($leader{kept}->query("SELECT leader_election.term('kept')"),
		1, 'stopped: other leases are renewed (G9)');
	foreach my $e (qw(killed expired))
	{
		is($control->query("SELECT term, leader FROM leader_election.lease
				WHERE election = '$e'"), '1|leader',
			"stopped, $e: nobody is elected meanwhile (G8)");
		is($control->query("SELECT leader_election.is_leader('$e', 1),
				leader_election.leader('$e') IS NULL"), 'f|t',
			"stopped, $e: and nobody leads");
		is($pool->sqlstate_of("SELECT leader_election.acquire('$e', 'another')"),
			'55P03', "stopped, $e: acquire() does not wait long (G9)");
		is($pool->query("SELECT leader_election.join('$e', 'in the pool')"),
			'', "stopped, $e: join() elects nobody");
		is($pool->sqlstate, '00000', "stopped, $e: and does not fail");
	}

	# Each waits for its own.
	foreach my $e (qw(killed expired))
	{
		resume_process($worker{$e}->backend_pid);
		$worker{$e}->result;
		is($worker{$e}->sqlstate, '00000', "stopped, $e: is committed in the end");
		happens("SELECT leader = 'heir' AND term = 2 FROM leader_election.lease
			WHERE election = '$e'", "stopped, $e: then the next one is elected");
		is($control->query("SELECT term FROM leader_election.lease
				WHERE election = 'expired'"), 1,
			'stopped: the other election goes on waiting') if $e eq 'killed';
		is($control->query("SELECT count(*),
				bool_and(pg_xact_commit_timestamp(j.xmin) BETWEEN o.acquired_at AND o.ended_at),
				bool_and(pg_xact_commit_timestamp(j.xmin) <= n.acquired_at)
			FROM jobs j JOIN leader_election.history o USING (election)
				JOIN leader_election.history n USING (election)
			WHERE election = '$e' AND o.term = 1 AND n.term = 2"),
			'1|t|t', "stopped, $e: after that commit (G8)");
	}
	$_->finish foreach values %worker, $leader{kept};
}

#
# Several fences in one transaction, in any order, while the leaders of all of
# them change: no deadlock, not even one that the server could undo, and what
# was written was written in all of those terms.
#

{
	my @elections = map { "several $_" } 1 .. 4;
	my $list = join ', ', map { "'$_'" } @elections;
	my (@changers, @workers);

	$control->query(
		qq{CREATE TABLE stop ();
		CREATE PROCEDURE change_leaders(e text) LANGUAGE plpgsql AS \$\$
		DECLARE
			t bigint;
		BEGIN
			-- What an earlier call could not release
			PERFORM leader_election.release(e, term) FROM leader_election.lease
				WHERE election = e AND leader = 'changer';
			COMMIT;
			WHILE NOT EXISTS (SELECT FROM stop) LOOP
				SELECT term INTO t FROM leader_election.acquire(e, 'changer');
				COMMIT;
				CONTINUE WHEN t IS NULL;
				PERFORM pg_sleep(random() * 0.03);
				PERFORM leader_election.release(e, t);
				COMMIT;
			END LOOP;
		END \$\$;
		CREATE PROCEDURE work_fenced() LANGUAGE plpgsql AS \$\$
		DECLARE
			l record;
			terms jsonb;
		BEGIN
			WHILE NOT EXISTS (SELECT FROM stop) LOOP
				terms := '{}';
				FOR l IN SELECT election, term FROM leader_election.lease
					WHERE election IN ($list) ORDER BY random()
				LOOP
					EXIT WHEN NOT leader_election.is_leader(l.election, l.term);
					PERFORM leader_election.assert_leader(l.election, l.term);
					terms := terms || jsonb_build_object(l.election, l.term);
				END LOOP;
				IF (SELECT count(*) FROM jsonb_object_keys(terms)) = 4 THEN
					INSERT INTO written VALUES (terms);
				END IF;
				COMMIT;
			END LOOP;
		END \$\$});
	create_election($_, $LONG) foreach @elections;
	foreach my $e (@elections)
	{
		push @changers, session($node, name => "changes $e");
		$changers[-1]->query('\set VERBOSITY sqlstate');
		# Each call may wait for too long where the machine stands still.
		$changers[-1]->query_async("CALL change_leaders('$e');\n" x 3);
		push @workers, session($node, name => 'works');
		$workers[-1]->query('\set VERBOSITY sqlstate');
		$workers[-1]->query_async("CALL work_fenced();\n" x 2000);
	}
	wait_for($node, "SELECT (SELECT count(*) FROM written) >= 300
		AND min(term) >= 50 FROM leader_election.lease WHERE election IN ($list)");
	$control->query('INSERT INTO stop DEFAULT VALUES');
	$_->result foreach @changers, @workers;
	is(join('', map { $_->errors_but_busy } @changers), '', 'several: leaders change');
	is_deeply(
		[ grep { !/^(LE001|LE002)$/ } map { split ' ', $_->errors_but_busy } @workers ],
		[],
		'several: no other error than a term that was over');
	ok((grep { $_->errors =~ /LE002/ } @workers),
		'several: some were refused at commit');
	is( $control->query(
			"SELECT count(*) FROM written w, jsonb_each_text(at_terms) t
				LEFT JOIN leader_election.history h
				ON h.election = t.key AND h.term = t.value::bigint
			WHERE (pg_xact_commit_timestamp(w.xmin) BETWEEN h.acquired_at
				AND coalesce(h.ended_at, 'infinity')) IS NOT TRUE"),
		0, 'several: each writer led all of them at that moment (G8)');
	unlike(slurp_file($node->logfile), qr/deadlock/i, 'several: no deadlock');
	$_->finish foreach @changers, @workers;
}

#
# Waits at commit: bounded, however many fences are busy, cut short as any wait
# is, and with nothing left behind.
#

{
	my @busy = map { "busy $_" } 1 .. 5;
	my $worker = session($node, name => 'worker');
	my (%holder, %pid, $start);

	# The whole of a fenced transaction, but its end
	my $begin = sub {
		my (@elections) = @_;

		$worker->query(join ';', 'BEGIN',
			(map { "SELECT leader_election.assert_leader('$_', 1)" } @elections),
			"INSERT INTO jobs VALUES ('busy', 'written')");
		is($worker->sqlstate, '00000', 'busy: leads');
	};

	# Starts what waits for an election lock, and does something while it waits:
	# that is for a second at most.  Where a slow machine comes too late, anew.
	my $while_waiting = sub {
		my ($start, $do) = @_;
		my $session;

		wait_until(
			sub {
				$session = $start->();
				wait_until(sub { $session->finished || waits_for_lock($session, $ELECTION_LOCK) },
					'it to wait');
				$do->($session);
				$session->result;
				return $session->sqlstate ne '55P03';
			},
			'it to be caught while it waits');
		return $session;
	};
	my $commit = sub {
		$begin->('busy 1');
		$worker->query_async('COMMIT');
		return $worker;
	};

	# A follower that resigns holds the election lock, in the end for nothing,
	# until its statement ends.
	my $hold = sub {
		my ($n) = @_;

		$control->query("SELECT pg_advisory_lock(100 + $n)");
		$holder{$n}->query_async("SELECT leader_election.resign('busy $n'),
			pg_advisory_xact_lock_shared(100 + $n)");
		wait_for_lock($holder{$n}, "locktype = 'advisory' AND objsubid = 1");
	};
	my $let_go = sub {
		my ($n) = @_;

		$control->query("SELECT pg_advisory_unlock(100 + $n)");
		is($holder{$n}->result, 'f|', "busy $n: free again");
	};
	my $nothing_left = sub {
		my ($name, $sqlstate) = @_;

		is($worker->sqlstate, $sqlstate, "$name: SQLSTATE");
		leaves_no_lock($worker, "$name: no lock is left");
		is($control->query("SELECT count(*) FROM jobs WHERE election = 'busy'"),
			0, "$name: nothing was written");
		is($worker->query("SELECT current_setting('lock_timeout'),
				(SELECT setting FROM pg_settings WHERE name = 'lock_timeout')
					= (SELECT reset_val FROM pg_settings WHERE name = 'lock_timeout')"),
			'0|t', "$name: lock_timeout is what it was");
	};

	foreach my $n (1 .. @busy)
	{
		$holder{$n} = session($node, name => "holder $n");
		$pid{ $holder{$n}->backend_pid } = $n;
		is(acquire($pool, "busy $n", 'leader'), 1, "busy $n: led");
		$holder{$n}->query("SELECT leader_election.join('busy $n', 'follower')");
	}

	# By the caller's lock_timeout
	$hold->(1);
	$begin->('busy 1');
	$worker->query("SET LOCAL lock_timeout = '10ms'");
	$start = machine_time();
	$worker->query('COMMIT');
	cmp_ok(machine_time() - $start, '<', 0.8,
		'lock_timeout: a caller that waits less waits less at commit (G9)');
	like($worker->errors, qr/election "busy 1" is busy.*^HINT:/ms,
		'lock_timeout: says what is busy');
	$nothing_left->('lock_timeout', '55P03');

	# By the extension's own limit
	$begin->('busy 1');
	$worker->query('COMMIT');
	like($worker->errors, qr/election "busy 1" is busy.*^HINT:/ms,
		'one fence: says what is busy');
	$nothing_left->('one fence', '55P03');

	# A longer lock_timeout makes it no longer.
	$begin->('busy 1');
	$worker->query("SET LOCAL lock_timeout = '1h'");
	$worker->query('COMMIT');
	$nothing_left->('a longer lock_timeout', '55P03');

	# By a cancel; in a procedure, which is a statement, by its timeout, too
	$while_waiting->($commit, sub {
		$control->query('SELECT pg_cancel_backend(' . $worker->backend_pid . ')');
	});
	$nothing_left->('cancelled', '57014');
	$worker->query("SET statement_timeout = '50ms'");
	$worker->query(
		q{DO $$ BEGIN
			PERFORM leader_election.assert_leader('busy 1', 1);
			INSERT INTO jobs VALUES ('busy', 'written');
			COMMIT;
		END $$});
	my $state = $worker->sqlstate;
	$worker->query('RESET statement_timeout');
	is($state, '57014', 'statement_timeout: ends a commit in a procedure');
	$nothing_left->('statement_timeout', '00000');

	# By the end of its session
	my $doomed = $while_waiting->(
		sub {
			my $session = session($node, name => 'doomed');

			$session->query("BEGIN; SELECT leader_election.assert_leader('busy 1', 1);
				INSERT INTO jobs VALUES ('busy', 'written')");
			$session->query_async('COMMIT');
			return $session;
		},
		sub {
			$control->query('SELECT pg_terminate_backend(' . $_[0]->backend_pid . ')');
		});
	wait_gone($node, $doomed);
	is($control->query("SELECT count(*) FROM jobs WHERE election = 'busy'"),
		0, 'terminated: nothing was written');

	# It does get through when its turn comes.
	$while_waiting->(
		sub {
			$hold->(1) unless $holder{1}{busy};
			return $commit->();
		},
		sub { $let_go->(1) });
	is($worker->sqlstate, '00000', 'in time: is committed');
	is($control->query("WITH d AS (DELETE FROM jobs WHERE election = 'busy'
			RETURNING 1) SELECT count(*) FROM d"), 1, 'in time: and written');

	# All fences together wait no longer than one: each is held for more than
	# half of the time that there is, and the next one is free only then.
	$hold->($_) foreach 1 .. @busy;
	$begin->(@busy);
	$worker->query_async('COMMIT');
	my %held = map { $_ => 1 } 1 .. @busy;
	until ($worker->finished || !%held)
	{
		my $n = $pid{
			$control->query(
				'SELECT unnest(pg_blocking_pids(' . $worker->backend_pid . '))')
		};

		if (defined $n)
		{
			sleep(0.6);
			$let_go->($n);
			delete $held{$n};
		}
	}
	$worker->result;
	$nothing_left->('five fences', '55P03');
	$let_go->($_) foreach sort keys %held;

	# A transaction that holds an election lock already: its own is no obstacle,
	# be it that of the fence or another's.
	foreach my $fenced (1, 2)
	{
		$holder{1}->query("DO \$\$ BEGIN
			PERFORM leader_election.resign('busy 1');
			PERFORM leader_election.assert_leader('busy $fenced', 1);
			INSERT INTO jobs VALUES ('own', 'fenced by $fenced');
		END \$\$");
		is($holder{1}->sqlstate, '00000', "own lock: fenced by busy $fenced");
	}

	# Nor is its own if somebody queues for that.
	$while_waiting->(
		sub {
			$control->query('SELECT pg_advisory_lock(100)');
			$holder{3}->query_async("DO \$\$ BEGIN
				PERFORM leader_election.assert_leader('busy 3', 1);
				PERFORM leader_election.resign('busy 3');
				INSERT INTO jobs VALUES ('own', 'fenced by 3');
				PERFORM pg_advisory_xact_lock_shared(100);
			END \$\$");
			wait_for_lock($holder{3}, "locktype = 'advisory' AND objsubid = 1");
			$pool->query_async("SELECT leader_election.release('busy 3', 1)");
			return $pool;
		},
		sub {
			$control->query('SELECT pg_advisory_unlock(100)');
			$holder{3}->result;
			is($holder{3}->sqlstate, '00000', 'own lock: fenced by busy 3');
		});
	is($control->query("SELECT reason FROM leader_election.history
			WHERE election = 'busy 3' AND term = 1"),
		'resigned', 'own lock: who queues behind it has its turn then');

	# Two such transactions that each need the election lock of the other make no
	# deadlock: one of them, or both, is told that the election is busy.
	my $log = -s $node->logfile;

	$control->query('SELECT pg_advisory_lock(100)');
	foreach my $n (1, 2)
	{
		my $other = 3 - $n;

		$holder{$n}->query_async("DO \$\$ BEGIN
			PERFORM leader_election.assert_leader('busy $other', 1);
			PERFORM leader_election.resign('busy $n');
			INSERT INTO jobs VALUES ('own', 'crosswise');
			PERFORM pg_advisory_xact_lock_shared(100);
		END \$\$");
		wait_for_lock($holder{$n}, "locktype = 'advisory' AND objsubid = 1");
	}
	$control->query('SELECT pg_advisory_unlock(100)');
	my @states = map { $holder{$_}->result; $holder{$_}->sqlstate } 1, 2;
	like("@states", qr/^(00000 55P03|55P03 00000|55P03 55P03)$/,
		'crosswise: one finds the election of the other busy');
	is( $control->query(
			"SELECT count(*) FROM jobs WHERE what = 'crosswise'"),
		scalar(grep { $_ eq '00000' } @states),
		'crosswise: what was not told to fail is written');
	unlike(substr(slurp_file($node->logfile), $log),
		qr/deadlock/i, 'crosswise: no deadlock');

	$_->finish foreach $worker, values %holder;
}

#
# A fenced transaction that sits idle does not even keep its election from being
# dropped, and a new election of that name is not the election that fenced it.
# (This is the last part: from here on, terms begin above those dropped.)
#

foreach my $after ('dropped', 'created anew')
{
	my $e = "idle, $after";
	my $idle = session($node, name => $e);
	my $term;

	create_election($e, $LONG);
	$term = acquire($pool, $e, 'leader');
	$idle->query("BEGIN; SELECT leader_election.assert_leader('$e', $term);
		INSERT INTO jobs VALUES ('$e', 'idle')");
	is($idle->sqlstate, '00000', "$e: leads, and writes");
	leaves_no_lock($idle, "$e: holds no lock");
	$pool->query("SELECT leader_election.release('$e', $term)");
	is($pool->sqlstate_of("SELECT leader_election.drop_election('$e')"),
		'00000', "$e: does not hold up who drops it (G9)");
	cmp_ok(acquire($pool, $e, 'leader'), '>', $term, "$e: led again")
	  if $after eq 'created anew';
	is($idle->sqlstate_of('COMMIT'), 'LE002', "$e: its commit is refused (G8)");
	is($control->query("SELECT count(*) FROM jobs WHERE election = '$e'"),
		0, "$e: nothing was written (G8)");
	$idle->finish;
}

# At the end, nobody holds more than what makes sessions alive, and the worker its
# lock and its spare ones.
wait_for($node, "SELECT count(*) = 0 FROM pg_locks
	WHERE locktype = 'advisory' AND objsubid > 20 AND objsubid NOT IN (23, 27)");
pass('no lock is left anywhere');

$node->stop;
done_testing();
