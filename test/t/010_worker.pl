# The background worker: when it is there and when it is not, and what happens to
# elections while it is cancelled, terminated or stopped, or has a lot to do.
# Leaders go on or step down, and there are never two.
#
# What ends it, and what if there can be none, is in 019_worker_gone.pl.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use Worker;

# An application's instance as a procedure: campaigns, notes the terms that
# term() tells it, and gives up after lead_for. Of each term it notes when it
# was first seen to be ours (the clock after the call) and last (before).
my $CONTENDERS = <<'END';
CREATE TABLE stint (election text, session text, term bigint,
	first_after bigint, last_before bigint);
CREATE TABLE stop ();
CREATE PROCEDURE contend(e text, me text, lead_for interval, renewed boolean)
LANGUAGE plpgsql AS $$
DECLARE
	mine bigint;
	seen bigint;
	clock_before bigint;
	clock_after bigint;
	first_after bigint;
	last_before bigint;
	give_up_at timestamptz;
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop) LOOP
		CALL leader_election.campaign(e, me, '300ms', auto_renew => renewed,
			term => mine);
		CONTINUE WHEN mine IS NULL;
		first_after := NULL;
		give_up_at := clock_timestamp() + lead_for;
		LOOP
			clock_before := leader_election._monotonic_clock();
			seen := leader_election.term(e);
			clock_after := leader_election._monotonic_clock();
			IF seen = mine THEN
				first_after := coalesce(first_after, clock_after);
				last_before := clock_before;
			END IF;
			EXIT WHEN seen IS DISTINCT FROM mine
				OR clock_timestamp() > give_up_at
				OR EXISTS (SELECT FROM stop);
			PERFORM pg_sleep(0.005);
		END LOOP;
		IF first_after IS NOT NULL THEN
			INSERT INTO stint VALUES (e, me, mine, first_after, last_before);
		END IF;
		IF clock_timestamp() > give_up_at THEN
			PERFORM leader_election.resign(e);
		END IF;
		COMMIT;
	END LOOP;
END $$;
END

# Two leaders at once would show as a term that was led, by what its leader was
# told, after a later one was led already; or as a term with two leaders.
my $TWO_LEADERS = <<'END';
SELECT a.election, a.session, a.term, b.session, b.term
FROM stint a JOIN stint b USING (election)
WHERE (a.term < b.term AND a.last_before > b.first_after)
	OR (a.term = b.term AND a.session < b.session)
END

sub set_idle_timeout
{
	my ($control, $value) = @_;

	$control->query(
		"ALTER SYSTEM SET leader_election.worker_idle_timeout = '$value'");
	$control->query('SELECT pg_reload_conf()');
	return;
}

# In milliseconds; a slow machine renews later.
my $LEASE = 2000 * slowness();

my $node = new_server(
	config => qq(
leader_election.lease_duration = '${LEASE}ms'
leader_election.worker_idle_timeout = '300ms'
restart_after_crash = on
max_worker_processes = 8
));
my $control = session($node, name => 'control');

# For where a worker has to be back in time: a campaign that waits looks for one each second.
sub create_election
{
	my ($election) = @_;
	my $lease = 3 * $LEASE;

	$control->query("SELECT leader_election.create_election('$election', lease_duration => '$lease ms')");
	return;
}

# -- There is a worker while somebody stands, and only then.

{
	my $one = session($node, name => 'one');

	$one->query("SELECT leader_election.is_leader('come'),"
		  . " leader_election.leader('come'), leader_election.term('come')");
	$one->query('TABLE leader_election.status');
	is($control->query($NO_WORKER), 't', 'observers start no worker');

	$one->query("SELECT leader_election.join('come', 'one')");
	wait_for($node, $ONE_WORKER);
	pass('a candidacy starts the worker');
	wait_for_renewal($node, 'come');
	wait_for_renewal($node, 'come');
	is($control->term_of('come'), 1, 'the worker renews the lease');

	$one->query("SELECT leader_election.leave('come')");
	wait_for($node, $NO_WORKER);
	pass('the worker ends when nobody stands any more');

	# A client that goes without a word leaves nothing behind either.
	$one->query("SELECT leader_election.join('come', 'one')");
	wait_for($node, $ONE_WORKER);
	$one->kill;
	wait_for($node, $NO_WORKER);
	is( $control->query(
			'SELECT count(*) FROM leader_election.candidate'),
		0,
		'the worker has removed the dead candidate before it ended');
}

# -- A candidacy that is not committed yet keeps the worker.

SKIP:
{
	my $one = session($node, name => 'one');

	create_election('long');
	$control->query('SELECT pg_advisory_lock(1)');
	$one->query_async(
		"SELECT leader_election.join('long', 'one'), pg_advisory_lock(1)");
	wait_for($node, $ONE_WORKER);
	my $pid = $control->query($WORKER_PID);
	my $used = -e "/proc/$pid/stat" ? cpu_seconds($pid) : undef;

	# Three times the idle timeout
	wait_for($node,
		'SELECT clock_timestamp() > query_start + interval \'1s\''
		  . ' FROM pg_stat_activity WHERE pid = '
		  . $one->backend_pid);
	is($control->query($WORKER_PID),
		$pid, 'the worker stays while a candidacy waits to be committed');
	$used = cpu_seconds($pid) - $used if defined $used;

	$control->query('SELECT pg_advisory_unlock(1)');
	$one->result;
	wait_for_renewal($node, 'long');
	is($one->query("SELECT leader_election.term('long')"),
		1, 'and renews the lease once it is');
	$one->finish;
	wait_for($node, $NO_WORKER);

	skip 'needs /proc', 1 unless defined $used;
	cmp_ok($used, '<', 0.2, 'the worker has not been spinning meanwhile');
}

# -- Settings are taken over while the worker sleeps.

{
	my $one = session($node, name => 'one');

	set_idle_timeout($control, '1h');
	$one->query("SELECT leader_election.join('hup', 'one')");
	wait_for($node, $ONE_WORKER);
	$one->finish;
	wait_for($node, "SELECT leader_election.leader('hup') IS NULL AND"
		  . ' NOT EXISTS (SELECT FROM leader_election.candidate)');
	$control->query('SELECT pg_sleep(1)');
	is($control->query($NO_WORKER), 'f', 'a worker waits as long as it is told to');

	set_idle_timeout($control, '300ms');
	wait_for($node, $NO_WORKER);
	pass('and notices that it is told otherwise');
}

# -- A session stands just when the worker that it has started is about to end
# and will not see the new candidacy: that session starts another worker.

{
	my $one = session($node, name => 'one');

	set_idle_timeout($control, '0');
	foreach (1 .. 20)
	{
		$one->query("SELECT leader_election.join('ends', 'one')");
		$one->query("SELECT leader_election.leave('ends')");
		$one->query("SELECT leader_election.join('ends', 'one')");
		wait_for($node, $ONE_WORKER);
		$one->query("SELECT leader_election.leave('ends')");
		wait_for($node, $NO_WORKER);
	}
	pass('20 workers that were about to end');
	$one->finish;
	set_idle_timeout($control, '300ms');
}

# -- The worker is cancelled while it has nothing to do but to wake up: at a
# rate that finds the moments between its transactions.

{
	my $one = session($node, name => 'one');

	$one->query("SELECT leader_election.join('cancel', 'one')");
	wait_for($node, $ONE_WORKER);
	my $pid = $control->query($WORKER_PID);
	foreach my $burst (1 .. 100)
	{
		last if $control->query($WORKER_PID) ne $pid;
		$control->query("SELECT count(pg_cancel_backend($pid)), pg_sleep(0.001)"
			  . ' FROM generate_series(1, 4000)');
	}
	is($control->query($WORKER_PID),
		$pid, 'a worker that is cancelled while it sleeps goes on');
	$one->query("SELECT leader_election.leave('cancel')");
}

# -- The worker is terminated.

{
	my $one = session($node, name => 'one');
	my $two = session($node, name => 'two');

	create_election('end');
	$one->query("SELECT leader_election.join('end', 'one')");
	$two->query_async("CALL leader_election.campaign('end', 'two')");
	wait_for($node, $ONE_WORKER);
	foreach my $i (1 .. 3)
	{
		my $pid = $control->query($WORKER_PID);

		$control->query("SELECT pg_terminate_backend($pid)");
		wait_for($node, "SELECT pid <> $pid FROM $WORKERS");
		wait_for_renewal($node, 'end');
		is($one->query("SELECT leader_election.term('end')"),
			1, "a waiting campaign brings the worker back ($i)");
	}
	$control->query("SELECT leader_election.alter_election('end', lease_duration => '$LEASE ms')");
	$one->kill;
	is($two->result, '2', 'and is elected in the end');

	# Now nobody waits. The lease runs out without anybody's help, and
	# is_leader() looks for no worker.
	my $three = session($node, name => 'three');
	$three->query("SELECT leader_election.join('end', 'three')");
	my $pid = $control->query($WORKER_PID);
	$control->query("SELECT pg_terminate_backend($pid)");
	wait_for($node, $NO_WORKER);
	is($two->query("SELECT leader_election.is_leader('end')"),
		't', 'the leader goes on without a worker');
	wait_until(
		sub { $two->query("SELECT leader_election.is_leader('end')") eq 'f' },
		'the end of the lease');
	is($control->query($NO_WORKER), 't', 'until its lease is over');
	is($control->query("SELECT leader_election.leader('end')"),
		'', 'when nobody leads');
	is($control->query("SELECT waiting_for FROM leader_election.status WHERE election = 'end'"),
		'a worker or a call', 'and everybody can see why');
	$three->query("SELECT leader_election.join('end', 'three')");
	wait_for($node, $ONE_WORKER);
	pass('a call brings the worker back');
	is($control->term_of('end'), 3, 'and elects (G7)');
	$_->finish foreach $two, $three;
}

# -- The worker is cancelled, terminated and stopped while there is a lot to
# do. Leaders of the election churn resign all the time, those of lapse let the
# lease run out, those of steady stay as long as they can.

{
	my @contenders;
	my $crowd = session($node, name => 'crowd');

	$control->query($CONTENDERS);
	$crowd->query("SELECT count(leader_election.join('crowd' || i, 'crowd'))"
		  . ' FROM generate_series(1, 300) i');
	foreach my $i (1 .. 3)
	{
		foreach (
			[ 'steady', '1h', 'true' ],
			[ 'lapse', '1h', 'false' ],
			[ 'churn', '20ms', 'true' ])
		{
			my ($election, $lead_for, $renewed) = @$_;
			my $s = session($node, name => "$election$i");

			# A call that waits while the machine stands still is told that it is busy.
			$s->query('\set VERBOSITY sqlstate');
			$s->query_async(
				"CALL contend('$election', '$election$i', '$lead_for', $renewed);\n" x 3);
			push @contenders, $s;
		}
	}
	wait_for($node, "SELECT leader_election.leader('steady') IS NOT NULL");
	wait_for($node, "SELECT term >= 20 FROM leader_election.lease"
		  . " WHERE election = 'churn'");

	my $steady = $control->term_of('steady');
	my $churn = $control->term_of('churn');
	my $pid = $control->query($WORKER_PID);
	my $offset = -s $node->logfile;
	$control->query("SELECT pg_cancel_backend($pid), pg_sleep(0.002)"
		  . ' FROM generate_series(1, 300)');
	like(
		slurp_file($node->logfile, $offset),
		qr/ERROR:  canceling statement due to user request/,
		'the worker is cancelled at its work');
	wait_for_renewal($node, 'steady');
	is($control->query($WORKER_PID), $pid,
		'a worker that is cancelled goes on');
	is($control->term_of('steady'), $steady, 'and nobody loses a lease');
	cmp_ok($control->term_of('churn'),
		'>', $churn, 'nor do elections stand still');

	foreach my $i (1 .. 3)
	{
		$pid = $control->query($WORKER_PID);
		$control->query("SELECT pg_terminate_backend($pid)");
		wait_for($node, "SELECT pid <> $pid FROM $WORKERS");
	}
	wait_for_renewal($node, 'steady');
	is($control->term_of('steady'),
		$steady, 'a worker that is terminated loses nobody a lease');

	$pid = stop_worker($control);
	wait_for($node, "SELECT term > $steady AND leader IS NOT NULL"
		  . " FROM leader_election.lease WHERE election = 'steady'");
	pass('while the worker is stopped, a lease ends and the next begins (G7)');
	$churn = $control->term_of('churn');
	wait_for($node, "SELECT term > $churn + 10 FROM leader_election.lease"
		  . " WHERE election = 'churn'");
	is($control->query($WORKER_PID), $pid, 'no second worker was started');
	resume_process($pid);
	wait_for_renewal($node, 'steady');
	$steady = $control->term_of('steady');
	wait_for_renewal($node, 'steady');
	is($control->term_of('steady'), $steady, 'it goes on when it wakes up');

	wait_for($node, "SELECT term >= 4 FROM leader_election.lease"
		  . " WHERE election = 'lapse'");
	$control->query('INSERT INTO stop DEFAULT VALUES');
	$crowd->finish;
	foreach my $s (@contenders)
	{
		$s->result;
		is($s->errors_but_busy, '', "$s->{name} saw no error");
		$s->finish;
	}
	is($control->query($TWO_LEADERS), '', 'there were never two leaders (G1, G7)');
	is( $control->query(
			'SELECT election, count(*) > 2, count(DISTINCT session) > 1'
			  . " FROM stint WHERE election <> 'steady'"
			  . ' GROUP BY election ORDER BY election'),
		"churn|t|t\nlapse|t|t",
		'(among those who led, and were told so)');
	is( $control->query(
			'SELECT election, min(term), max(term) - count(*)'
			  . ' FROM leader_election.history'
			  . " WHERE election IN ('steady', 'lapse', 'churn')"
			  . ' GROUP BY election ORDER BY election'),
		"churn|1|0\nlapse|1|0\nsteady|1|0",
		'no term was left out (G5)');
	is( $control->query(
			'SELECT count(*) FROM (SELECT ended_at, lead(acquired_at)'
			  . ' OVER (PARTITION BY election ORDER BY term) AS next'
			  . ' FROM leader_election.history) h WHERE next < ended_at'
			  . ' OR (next IS NOT NULL AND ended_at IS NULL)'),
		0,
		'each ended before the next began (G1)');
}

# -- Many join at once where there is no worker: they do not fill up the
# server's slots with workers that are of no use.

{
	my @many = map { session($node, name => "many$_") } 1 .. 24;
	my $warnings = '';

	foreach my $round (1 .. 3)
	{
		wait_for($node, $NO_WORKER);
		$control->query('SELECT pg_advisory_lock(2)');
		$_->query_async("SELECT pg_advisory_lock_shared(2);\n"
			  . "SELECT leader_election.join('$_->{name}', 'many');\n"
			  . 'SELECT pg_advisory_unlock_shared(2)')
		  foreach @many;
		wait_for($node,
			"SELECT count(*) = 24 FROM pg_locks WHERE locktype = 'advisory'"
			  . ' AND objid = 2 AND NOT granted');
		$control->query('SELECT pg_advisory_unlock(2)');
		foreach my $s (@many)
		{
			$s->result;
			$warnings .= $s->errors if $s->errors =~ /WARNING/;
		}
		wait_for($node, $ONE_WORKER);
		$_->query('SELECT leader_election.leave_all()') foreach @many;
	}
	is($warnings, '', 'many that join at once do not use up the worker slots');
	is( $control->query(
			'SELECT count(*) FROM leader_election.history'
			  . " WHERE leader = 'many' AND reason = 'left'"),
		72,
		'and all of them led');
	$_->finish foreach @many;
}

# -- A dead candidate whose row was locked when it was to be removed does not
# keep the worker for ever.

{
	my $one = session($node, name => 'one');
	my $two = session($node, name => 'two');

	$one->query("SELECT leader_election.join('row', 'one')");
	wait_for($node, $ONE_WORKER);
	$two->query('BEGIN');
	$two->query('SELECT FROM leader_election.candidate FOR UPDATE');
	$one->kill;
	wait_for($node, "SELECT ended_at IS NOT NULL"
		  . " FROM leader_election.history WHERE election = 'row'");
	$two->query('COMMIT');
	wait_for($node, $NO_WORKER);
	pass('a row that was locked is removed later, and the worker ends');
	$two->finish;
}

# -- There was much to settle, for longer than tidying up is put off. The worker
# looks again after the last of it, too: the leader that was elected last has a
# lease to be renewed.

{
	my $gate = session($node, name => 'gate');
	my $hung = session($node, name => 'hung');
	my $next = session($node, name => 'next');

	$control->query(q{
		CREATE FUNCTION wait_at_gate(election text) RETURNS boolean LANGUAGE plpgsql AS $$
		BEGIN
			WHILE NOT pg_try_advisory_xact_lock_shared(hashtext(election)) LOOP
				PERFORM pg_sleep(0.005);
			END LOOP;
			RETURN true;
		END $$;
		ALTER TABLE leader_election.history ADD CONSTRAINT gate
			CHECK (ended_at IS NULL OR public.wait_at_gate(election)) NOT VALID});
	$gate->query("SELECT pg_advisory_lock(hashtext(e)) FROM unnest('{much,last}'::text[]) e");

	# Each is settled in a round of its own, the last one a second later.
	foreach my $election ('much', 'last')
	{
		$control->query(
			"SELECT leader_election.create_election('$election', lease_duration => '1 day')");
		$hung->query("SELECT leader_election.join('$election', 'hung', auto_renew => false)");
		$next->query("SELECT leader_election.join('$election', 'next')");
		# The day has passed.  Had it been a short one, it might have been over for 'next',
		# which would have waited at the gate itself.
		$control->query("UPDATE leader_election.lease SET renewed_at = renewed_at - interval '1 day',
				expires_at = expires_at - interval '1 day',
				deadline_mono = deadline_mono - 86400000000
			WHERE election = '$election'");
		$control->query("SELECT leader_election.alter_election('$election',"
			  . ' lease_duration => '
			  . ($election eq 'last' ? "'6 s')" : "'1 day')"));
		wait_for($node, "SELECT leader_election.leader('$election') IS NULL");
		$gate->query("SELECT pg_advisory_unlock(hashtext('much'))") if $election eq 'last';
		wait_for($node, "SELECT wait_event = 'PgSleep' AND query LIKE '%\"$election\"' FROM $WORKERS");
	}
	my $then = $gate->query('SELECT leader_election._monotonic_clock()');
	wait_for($node, "SELECT leader_election._monotonic_clock() - $then > 1100000");
	$gate->query("SELECT pg_advisory_unlock(hashtext('last'))");

	wait_for($node, "SELECT leader_election.leader('last')", 'next');
	wait_for($node, "SELECT renewed_at > acquired_at OR leader_election.leader('last') IS NULL"
		  . q{ FROM leader_election.lease WHERE election = 'last'});
	is($next->query("SELECT leader_election.term('last')"),
		'2', 'the leader that was elected last is renewed');

	$control->query('DROP FUNCTION wait_at_gate(text) CASCADE');
	$_->finish foreach $gate, $hung, $next;
}

# -- Candidates of a role are made members of it again.

{
	$control->query(q{
		CREATE ROLE team;
		CREATE ROLE member LOGIN IN ROLE team;
		GRANT USAGE ON SCHEMA leader_election TO member;
		GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO member;
		SELECT leader_election.create_election('team', candidate_role => 'team')});
	my $one = session($node, name => 'one', user => 'member');
	my $two = session($node, name => 'two', user => 'member');

	$one->query("SELECT leader_election.join('team', 'one')");
	$two->query("SELECT leader_election.join('team', 'two')");
	$control->query('REVOKE team FROM member');
	$one->kill;
	wait_for($node, 'SELECT count(*) = 1 FROM leader_election.candidates'
		  . " WHERE election = 'team'");
	is($control->query("SELECT leader_election.leader('team')"),
		'', 'nobody is elected who is no member');
	$control->query('GRANT team TO member');
	wait_for($node, "SELECT leader_election.leader('team')", 'two');
	pass('but soon after it has become one');
	$two->finish;
	$control->query('DROP OWNED BY member; DROP ROLE team, member');
}

$control->finish;
$node->stop;
done_testing();
