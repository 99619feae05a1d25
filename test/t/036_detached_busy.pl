# Locked tables do not cost a detached leader its lease, and the calls of other
# detached candidates do not wait for long: neither for a lock nor for each other.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Detached;
use LeaderElection;
use MachineTime;
use Test::More;
use Time::HiRes qw(sleep);
use Worker;

serve();

# -- Tables that a client has locked do not cost a detached leader its lease.

{
	my $locker = session($node, name => 'locker');
	my @callers = map { session($node, name => "caller $_") } 1 .. 4;
	my $start;

	foreach my $table (qw(candidate history election))
	{
		my $e = "$table locked";
		my @calls = (
			"* FROM leader_election.acquire('$e', 'd2')",
			"leader_election.release('$e', 1)",
			"leader_election.transfer('$e', 1, 'd2')",
			"leader_election.request_yield('$e')");
		my ($slowest, $lost) = (0, 0);
		my (@took, $deadline);

		is(acquire($e, 'd1'), 1, "$e: leads");
		is(acquire($e, 'd2'), '', "$e: another follows");
		$deadline = lease($e)->{deadline_mono};
		$locker->query(
			"BEGIN; LOCK TABLE leader_election.$table IN ACCESS EXCLUSIVE MODE");
		$start = machine_time();
		$callers[$_]->query_async("SELECT $calls[$_]") foreach 0 .. $#calls;

		# For longer than its lease would last
		while ($control->query('SELECT leader_election._monotonic_clock()') <=
			$deadline)
		{
			my $sent = machine_time();

			$lost++ if renew($e, 1) ne '1';
			$slowest = machine_time() - $sent if machine_time() - $sent > $slowest;
			foreach my $i (0 .. $#calls)
			{
				$took[$i] //= machine_time() - $start if $callers[$i]->finished;
			}
			sleep(0.05);
		}
		is($lost, 0, "$e: each renewal is granted");
		cmp_ok($slowest, '<', 0.8, "$e: without a wait");
		ok(holds($e, 1), "$e: it leads");
		foreach my $i (0 .. $#calls)
		{
			$callers[$i]->result;

			# It may have ended after the loop above, on a machine that was held up.
			$took[$i] //= machine_time() - $start;
			my $finds_leader = $table eq 'history' && $calls[$i] =~ /acquire/;

			# To find that another one leads takes no history.
			is($callers[$i]->sqlstate, $finds_leader ? '00000' : '55P03', "$e: $calls[$i]");
			cmp_ok($took[$i], '<', 1.9, "$e: after a second (G9)");
		}
		$locker->query('ROLLBACK');
		is(renew($e, 1), 1, "$e: it leads on");
		is(acquire($e, 'd2'), '', "$e: and the other candidate follows");
	}

	# It cannot do without its lease, which outlasts that call, of a second, on any machine.
	create_election('lease locked', 60_000_000);
	is(acquire('lease locked', 'd1'), 1, 'lease locked: leads');
	$locker->query('BEGIN; LOCK TABLE leader_election.lease');
	$start = machine_time();
	renew('lease locked', 1);
	is($pool[0]->sqlstate, '55P03', 'lease locked: busy, and not over');
	cmp_ok(machine_time() - $start, '<', 1.8, 'lease locked: after a second (G9)');
	ok(!holds('lease locked', 1), 'lease locked: nobody can tell who leads');
	is($pool[0]->sqlstate, '00000', 'lease locked: which is no error');
	$locker->query('ROLLBACK');
	is(renew('lease locked', 1), 1, 'lease locked: it leads on');
	$_->finish foreach $locker, @callers;
}

# -- A leader that is asked to yield says something of itself. While its row is locked,
# that is busy.

{
	my $locker = session($node, name => 'locker');
	my $says = q{SELECT yielding FROM leader_election.renew('says', 1, metadata => '{"a": 1}')};

	create_election('says', 60_000_000);
	is(acquire('says', 'd1'), 1, 'says: leads');
	any("SELECT leader_election.request_yield('says')");
	$locker->query("BEGIN; SELECT FROM leader_election.lease WHERE election = 'says' FOR UPDATE");
	is($control->sqlstate_of($says), '55P03', 'says: busy, and not over');
	$locker->query('ROLLBACK');
	is($control->query($says), 't', 'says: it still yields');
	is($control->query("SELECT metadata FROM leader_election.lease WHERE election = 'says'"), '{"a": 1}', 'says: what it has said');
	$locker->finish;
}

# -- A lease that was renewed in time is led on, although its deadline passes before
# that transaction commits. Until then nobody is told that it is over, nor can its
# election be dropped.

{
	my %s = map { $_ => session($node, name => $_) } qw(renewer gate slow);
	my %calls = (
		renews => q{SELECT term FROM leader_election.renew('renewed', 1)},
		asks => q{SELECT leader_election.request_yield('renewed')},
		names => q{SELECT leader_election.request_yield('renewed', 'd2')},
		leaves => q{SELECT leader_election.leave('renewed', 'd1')},
		drops => q{SELECT leader_election.drop_election('renewed')});

	$s{$_} = session($node, name => $_) foreach keys %calls;
	$control->query(q{
		CREATE FUNCTION wait_for_gate() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
			PERFORM pg_advisory_xact_lock_shared(4712);
			RETURN true;
		END $$;
		ALTER TABLE leader_election.history ADD CONSTRAINT slow
			CHECK (election <> 'renewed' OR ended_at IS NULL OR public.wait_for_gate()) NOT VALID});
	create_election('renewed', 6_000_000);
	is(acquire('renewed', 'd1'), 1, 'renewed: leads');
	is(acquire('renewed', 'd2'), '', 'renewed: another one stands');
	my $deadline = lease('renewed')->{deadline_mono};
	wait_for_clock($deadline - 2_000_000);

	# A sign of life: the renewal has no need to write the candidate's row, which
	# drop_election() would have to wait for.
	acquire('renewed', $_) foreach qw(d1 d2);
	$s{gate}->query('SELECT pg_advisory_lock(4711)');
	$s{renewer}->query_async(q{DO $$ BEGIN
		PERFORM leader_election.renew('renewed', 1);
		PERFORM pg_advisory_xact_lock_shared(4711);
		END $$});
	wait_for_clock($deadline);
	my @calls = qw(renews asks names leaves);

	$s{$_}->query_async($calls{$_}) foreach @calls;
	foreach my $call (@calls)
	{
		is($s{$call}->result, '', "renewed: who $call is not answered");
		is($s{$call}->sqlstate, '55P03', "renewed: who $call is told that it is busy");
	}

	# Who drops it has a second, too, also for the gate at the end of its term.
	$s{slow}->query('SELECT pg_advisory_lock(4712)');
	$s{drops}->query_async($calls{drops});
	wait_until(
		sub {
			return $s{drops}->finished || $control->query(q{SELECT count(*) FROM pg_locks
				WHERE locktype = 'advisory' AND objid = 4712 AND NOT granted}) > 0;
		},
		'drop_election()');
	$s{gate}->query('SELECT pg_advisory_unlock(4711)');
	$s{renewer}->result;
	is($s{renewer}->sqlstate, '00000', 'renewed: the renewal commits');
	$s{slow}->query('SELECT pg_advisory_unlock(4712)');
	$s{drops}->result;
	like($s{drops}->sqlstate, qr/^(?:55P03|55006)$/, 'renewed: it is not dropped');
	is(renew('renewed', 1), 1, 'renewed: it leads on');
	is($s{leaves}->sqlstate_of($calls{leaves}), '22023', 'renewed: and cannot just leave');
	is(any("SELECT leader_election.request_yield('renewed') > '0'"), 't', 'renewed: and can be asked to yield');
	$control->query('ALTER TABLE leader_election.history DROP CONSTRAINT slow');
	$_->finish foreach values %s;
}

# -- A call that waits for two things in turn waits for a second in all: first for its
# row, which a client has locked, and then for the election, which is busy.

{
	my ($joins, $locker, $calls) = map { session($node, name => $_) } qw(joins locker calls);

	is(acquire('twice', 'one'), 1, 'twice: leads');
	is($calls->acquire('twice', 'three'), '', 'twice: another one stands');
	is(any("SELECT leader_election.release('twice', 1)"), 't', 'twice: the seat is vacant');
	$control->query('SELECT pg_advisory_lock(4715)');
	$joins->query_async("SELECT leader_election.join('twice', 'session'), pg_advisory_xact_lock(4715)");
	wait_for($node, "SELECT count(*) FROM pg_locks
		WHERE locktype = 'advisory' AND objid = 4715 AND NOT granted", 1);
	$locker->query("BEGIN; SELECT FROM leader_election.candidate
		WHERE election = 'twice' AND candidate = 'three' FOR UPDATE");
	my $start = machine_time();
	$calls->query_async("SELECT term FROM leader_election.acquire('twice', 'three', rank => 1)");
	sleep(0.95);
	$locker->query('COMMIT');
	$calls->result;
	cmp_ok(machine_time() - $start, '<', 1.8, 'twice: after a second in all (G9)');
	$control->query('SELECT pg_advisory_unlock(4715)');
	$joins->result;
	$_->finish foreach $joins, $locker, $calls;
}

# -- leave() waits for the row of a candidate, since another call has it. Meanwhile the
# deadline of the candidate's lease passes, which was renewed in time, by a transaction
# that has not committed yet: it is not withdrawn.

{
	my %s = map { $_ => session($node, name => $_) } qw(stands gate renewer leaves);
	my $hold = sub {
		my ($name, $call, $lock) = @_;

		$s{$name}->query_async("DO \$\$ BEGIN PERFORM $call;
			PERFORM pg_advisory_xact_lock_shared($lock); END \$\$");
		wait_for($node, "SELECT count(*) FROM pg_locks
			WHERE locktype = 'advisory' AND objid = $lock AND NOT granted", 1);
	};

	# The lease that is renewed before the deadline has to outlast that wait, of a second,
	# by as much as a machine may be held up.
	my $lease = 3 * $LEASE;

	create_election('left', $lease);
	is(acquire('left', 'd1'), 1, 'left: leads');
	my $deadline = lease('left')->{deadline_mono};

	$s{gate}->query("SELECT pg_advisory_lock($_)") foreach 4713, 4714;
	wait_for_clock($deadline - $lease * 7 / 20);
	$hold->('stands', "leader_election.acquire('left', 'd1')", 4713);
	$hold->('renewer', "leader_election.renew('left', 1)", 4714);
	wait_for_clock($deadline - 300_000);
	$s{leaves}->query_async(q{SELECT leader_election.leave('left', 'd1')});
	wait_for_clock($deadline + 100_000);
	$s{gate}->query('SELECT pg_advisory_unlock(4713)');
	is($s{leaves}->result, '', 'left: who asks it to leave is not answered');
	is($s{leaves}->sqlstate, '55P03', 'left: but told that it is busy');
	$s{gate}->query('SELECT pg_advisory_unlock(4714)');
	$s{renewer}->result;
	is(renew('left', 1), 1, 'left: it leads on');
	is(any("SELECT count(*) FROM leader_election.candidate WHERE election = 'left'"), 1,
		'left: and stands');
	$_->finish foreach values %s;
}

# -- A detached candidate that calls while the calls of others elect is told yes
# or no, soon.

{
	my @callers = map { session($node, name => "d$_") } 1 .. 4;
	my ($pid, $until);
	my $calls = sub {
		my ($name) = @_;

		return qq{DO \$\$
			DECLARE
				sent bigint := 0;
				late int := 0;
			BEGIN
				WHILE sent < $until LOOP
					sent := leader_election._monotonic_clock();
					PERFORM * FROM leader_election.acquire('crowd',
						'$name', progress => sent);
					COMMIT;
					late := late
						+ (leader_election._monotonic_clock() - sent > 700000)::int;
				END LOOP;
				INSERT INTO was_late VALUES ('$name', late);
			END \$\$};
	};

	# They let the lease run out again and again, and write their rows each time.
	create_election('crowd', 100_000);
	$control->query('CREATE TABLE was_late (who text, late int)');
	acquire('crowd', 'd0');
	$pid = stop_worker($control);
	$until = $control->query('SELECT leader_election._monotonic_clock() + 3000000');
	$_->query_async($calls->($_->{name})) foreach @callers;
	foreach my $s (@callers)
	{
		# A call that waits while the machine stands still is busy after a second. Its
		# caller goes on; that call was late.
		wait_until(
			sub {
				$s->result;
				return 1 if $s->sqlstate ne '55P03';
				$control->query("INSERT INTO was_late VALUES ('$s->{name}', 1)");
				$s->query_async($calls->($s->{name}));
				return 0;
			},
			"an answer to $s->{name}");
		is($s->sqlstate, '00000', "crowd: $s->{name} saw no error");
		$s->finish;
	}

	# The machine may stand still twice. A caller that starves is late each time.
	cmp_ok($control->query('SELECT max(n) FROM (SELECT sum(late) AS n FROM was_late GROUP BY who) s'),
		'<=', 2, 'crowd: nor had anybody to wait long (G9)');
	cmp_ok(lease('crowd')->{term}, '>', 10, 'crowd: while terms went by');
	resume_process($pid);
}

# -- An election of which others have locked a row is not dropped, and nothing of it is
# gone.

{
	my $locker = session($node, name => 'locker');
	my $drop = "SELECT leader_election.drop_election('rows')";

	# Both stand until it is dropped, four calls of a second later.
	create_election('rows', 60_000_000);
	is(acquire('rows', 'd1'), 1, 'rows: led');
	is(acquire('rows', 'd2'), '', 'rows: another one stands');
	is(any("SELECT leader_election.release('rows', 1)"), 't', 'rows: vacant');
	any("SELECT leader_election.drain_candidate('d3', 'rows')");
	foreach my $table (qw(candidate drain election lease))
	{
		$locker->query("BEGIN; SELECT FROM leader_election.$table WHERE election = 'rows' FOR UPDATE");
		is($control->sqlstate_of($drop), '55P03', "rows: busy while one of $table is locked");
		$locker->query('ROLLBACK');
		is( $control->query("SELECT (SELECT count(*) FROM leader_election.election WHERE election = 'rows'),
				(SELECT count(*) FROM leader_election.lease WHERE election = 'rows'),
				(SELECT count(*) FROM leader_election.candidate WHERE election = 'rows'),
				(SELECT count(*) FROM leader_election.drain WHERE election = 'rows'),
				(SELECT count(*) FROM leader_election.dropped WHERE election = 'rows')"),
			'1|1|2|1|0', 'rows: all is there');
	}
	is($control->sqlstate_of($drop), '00000', 'rows: dropped when none is locked');

	# One that is led no more, but nobody has ended its term yet
	create_election('rows', $LEASE);
	cmp_ok(acquire('rows', 'd1'), '>', 1, 'rows: led again');
	my $worker = stop_worker($control);
	wait_for_clock(lease('rows')->{deadline_mono});
	$locker->query("BEGIN; SELECT FROM leader_election.history WHERE election = 'rows' FOR UPDATE");
	is($control->sqlstate_of($drop), '55P03', 'rows: busy while one of history is locked');
	$locker->query('ROLLBACK');
	is($control->sqlstate_of($drop), '00000', 'rows: dropped after that');
	is($control->query("SELECT reason FROM leader_election.history WHERE election = 'rows' AND term > 1"),
		'dropped', 'rows: as its history says');
	resume_process($worker);
	$locker->finish;
}

$node->stop;
done_testing();
