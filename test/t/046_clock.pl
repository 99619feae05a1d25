# The wall clock is set an hour ahead, and back again, while everything that has
# a duration is under way: leases of sessions and of detached candidates, renewed
# or not, a hold, a takeover delay, a reserved seat, the timeouts of those who
# wait.  None of it ends early, or late.  Nothing is due by the wall clock: it
# writes the times in history.
#
# FakeClock says how.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use FakeClock;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

my $HOUR = 3600;

# All durations here, in microseconds; and how late what is due may be
my $LEASE = 4_000_000 * slowness();
my $LATE = 20_000_000;

my $node = new_server(
	start => 0,
	config => qq(
leader_election.lease_duration = '${LEASE}us'
leader_election.history_retention = '90 min'
client_min_messages = warning
autovacuum = off
));

set_clock($HOUR);
start_with_fake_clock($node);
$node->safe_psql('postgres', 'CREATE EXTENSION leader_election');

my $control = session($node, name => 'control');

# How far the server's clocks are from true time, in whole minutes
sub offsets
{
	my ($wall, $mono) = split /\|/, $control->query(
		'SELECT extract(epoch FROM clock_timestamp()),
			leader_election._monotonic_clock() / 1e6');

	return map { sprintf '%d', sprintf('%.0f', $_ / 60) } $wall - time,
	  $mono - uptime();
}

sub uptime
{
	return (slurp_file('/proc/uptime') =~ /^([\d.]+)/)[0];
}

sub campaign
{
	my ($session, $election, $args) = @_;

	return $session->query(
		"CALL leader_election.campaign('$election', '$session->{name}', $args)");
}

# Judges whether is_leader() says what the monotonic clock says; true when the
# deadline has passed.
sub judge
{
	my ($session, $call, $deadline, $seen) = @_;
	my ($before, $leads, $after) = split /\|/, $session->query(
		"SELECT leader_election._monotonic_clock(),
			leader_election.is_leader($call),
			leader_election._monotonic_clock()");

	$seen->{early}++ if $leads eq 'f' && $after < $deadline;
	$seen->{late}++ if $leads eq 't' && $before >= $deadline;
	$seen->{leads} = 1 if $leads eq 't';
	return $before >= $deadline;
}

# Has a worker of a database started anew, by a call that needs one.
sub start_worker
{
	my ($session, $dbname, $call) = @_;
	my $worker = "pg_stat_activity WHERE datname = '$dbname'
		AND backend_type = 'leader_election worker'";

	wait_for($node, "SELECT count(pg_terminate_backend(pid)) FROM $worker", 0);

	# A call that finds the one before not quite gone starts none.
	wait_until(
		sub {
			$session->query($call);
			return $session->query("SELECT count(*) FROM $worker") == 1;
		},
		'a worker');
	return;
}

my %heir;
my $step = 0;

# One step of the clock, in the middle of everything.
sub test_step
{
	my ($name, $from, $to) = @_;
	my (%due, %session, $mark, $started, $stepped, $past);

	# In each of these something is due after the step.  ($step tells the
	# elections of one step from those of the other.)
	my @elections = map { "$_ " . ($step + 1) }
	  qw(lapsing manual held delayed reserved);
	my ($lapsing, $manual, $held, $delayed, $reserved) = @elections;

	$step++;
	$session{$_} = session($node, name => $_)
	  foreach qw(leader manual dies campaigns watches);
	foreach my $election (@elections)
	{
		$heir{$election} = session($node, name => 'heir');
		$control->query("SELECT leader_election.create_election('$election',
			takeover_delay => '"
			  . ($election eq $delayed ? "${LEASE}us" : '0') . "')");
	}
	is(campaign($session{leader}, "session $step", "'10 s'"),
		1, "$name: a session leads");
	is($control->acquire("renewed $step", 'd'), 1, "$name: a detached candidate leads");
	is(campaign($session{dies}, $delayed, "'10 s'"),
		1, "$name: one that will die");
	$control->acquire($held, 'd');
	$control->acquire($reserved, 'd');
	$control->acquire($reserved, 'absent');
	is( campaign($session{manual}, $manual, "'10 s', auto_renew => false"),
		1, "$name: a session that renews by itself");
	is($control->acquire($lapsing, 'd'), 1, "$name: one that will not renew");

	$control->query("SELECT leader_election.release('$held', 1, '${LEASE}us')");
	$control->query("SELECT leader_election.transfer('$reserved', 1, 'absent')");
	$session{dies}->kill;
	wait_for($node,
		"SELECT leader IS NULL AND not_before_mono IS NOT NULL
		FROM leader_election.lease WHERE election = '$delayed'");
	($due{$lapsing}) = $control->lease($lapsing, 'deadline_mono');
	($due{$manual}) = $control->lease($manual, 'deadline_mono');
	($due{$held}) = $control->lease($held, 'not_before_mono');
	($due{$delayed}) = $control->lease($delayed, 'not_before_mono');
	($due{$reserved}) = $control->lease($reserved, 'reserved_mono');
	foreach my $election (@elections)
	{
		$heir{$election}->query_async(
			"CALL leader_election.campaign('$election', 'heir')");
	}

	# Who gives up waiting
	$mark = held_up();
	$started = clock_gettime(CLOCK_MONOTONIC);
	$session{campaigns}->query_async("CALL leader_election.campaign(
		'session $step', 'campaigns', '${LEASE}us')");
	$session{watches}->query_async("CALL leader_election.wait_for_change(
		'session $step', 1, 'leader', '${LEASE}us')");

	# Not before all that is under way
	wait_for($node,
		"SELECT count(*) FROM leader_election.candidates
		WHERE candidate IN ('heir', 'campaigns') AND alive",
		6);
	$past = $control->query(
		"SELECT min(due) <= leader_election._monotonic_clock()
		FROM (VALUES " . join(', ', map { "($_)" } values %due) . ') d (due)');
	is($past, 'f', "$name: nothing was due yet, on this machine");
	is_deeply([ offsets() ], [ $from / 60, 0 ], "$name: the clock before");
	set_clock($to);
	($stepped) = $control->query('SELECT leader_election._monotonic_clock()');
	is_deeply([ offsets() ], [ $to / 60, 0 ],
		"$name: the wall clock is set, the monotonic one is not");

	# At once
	is( $control->query(
			"SELECT state, leader, term, remaining BETWEEN '0' AND '${LEASE}us'
			FROM leader_election.status WHERE election = 'session $step'"),
		'led|leader|1|t',
		"$name: status");
	is($session{leader}->query("SELECT leader_election.term('session $step')"),
		1, "$name: a session leads on (G4)");
	is( $control->query(
			"SELECT term, remaining_ms BETWEEN 1 AND $LEASE / 1000,
				abs(extract(epoch FROM expires_at - clock_timestamp()) * 1000
					- remaining_ms) < 2000
			FROM leader_election.renew('renewed $step', 1)"),
		'1|t|t',
		"$name: a detached leader renews, and is told the time by the new clock (G4)");
	is( $control->query(
			"SELECT leader_election.request_yield('renewed $step')
				<= '${LEASE}us'"),
		't',
		"$name: a yield takes no longer than a lease");
	is( $control->query(
			"SELECT alive FROM leader_election.candidates
			WHERE election = '$reserved' AND candidate = 'absent'"),
		't',
		"$name: who stands without a session is alive");

	# Until it is due
	{
		my %seen = (manual => {}, lapsing => {});

		wait_until(
			sub {
				my $over = judge($session{manual}, "'$manual'", $due{$manual},
					$seen{manual});

				return judge($control, "'$lapsing', 1", $due{$lapsing},
					$seen{lapsing}) && $over;
			},
			'the end of the leases that nobody renews');
		is_deeply(\%seen, { manual => { leads => 1 }, lapsing => { leads => 1 } },
			"$name: is_leader() is true until the deadline, then false (G4)");
	}
	foreach my $election (@elections)
	{
		my $heir = $heir{$election};
		my ($acquired, $at, $now);

		cmp_ok($heir->result, '>=', 2, "$name: $election: is led again");
		($acquired) = $control->lease($election, 'acquired_mono');
		cmp_ok($acquired, '>=', $due{$election},
			"$name: $election: not early (ShedLock#231, jobrunr#629, G4)");
		cmp_ok($acquired, '<', $due{$election} + $LATE + held_up(),
			"$name: $election: nor late (db-scheduler#433, G4)");
		$heir->finish;
	}
	foreach my $who (qw(campaigns watches))
	{
		my $elapsed;
		my $got = $session{$who}->result;

		$elapsed = 1e6 * (clock_gettime(CLOCK_MONOTONIC) - $started);
		is($got, $who eq 'watches' ? '1|leader' : '', "$name: $who: in vain");
		cmp_ok($elapsed, '>=', $LEASE, "$name: $who: as long as it was to wait");
		cmp_ok($elapsed, '<', $LEASE + $LATE + held_up($mark), "$name: $who: and no longer");
	}

	# Renewals go on: the deadline by which it led then is long past.
	wait_for($node,
		"SELECT deadline_mono - $stepped > 2 * $LEASE
		FROM leader_election.lease WHERE election = 'session $step'");
	is($session{leader}->query("SELECT leader_election.term('session $step')"),
		1, "$name: a session is renewed, in the same term (G4)");
	is( $control->query(
			"SELECT string_agg(term || ' ' || coalesce(reason, 'leads'), ', '
					ORDER BY election, term)
			FROM leader_election.history
			WHERE election IN ('session $step', '"
			  . join("', '", @elections) . "') AND term = 1"),
		'1 session ended, 1 resigned, 1 expired, 1 expired, 1 transferred, '
		  . '1 leads',
		"$name: history");
	is( $control->query(
			"SELECT bool_and(abs(extract(epoch FROM
				clock_timestamp() - ended_at)) < 300)
			FROM leader_election.history
			WHERE election IN ('$lapsing', '$manual') AND term = 1"),
		't',
		"$name: history: by the new clock");
	$_->finish foreach grep { $_->alive } values %session;
	return;
}

# Leads from before all of this to its end
my $always = session($node, name => 'always');
is(campaign($always, 'always', "'10 s'"), 1, 'always: leads');
start_worker($always, 'postgres',
	"SELECT leader_election.join('always', 'always')");
set_clock(0);

test_step('ahead', 0, $HOUR);

# What is old by the clock is pruned by it; nobody who leads is.
$control->query(
	"INSERT INTO leader_election.history (election, term, leader, kind, role,
			acquired_at, ended_at, reason)
	SELECT 'pruned', age, 'c', 'session', current_user, '-infinity',
		clock_timestamp() - age * interval '1 min', 'resigned'
	FROM unnest(ARRAY[85, 95]) age;
	UPDATE leader_election.history
	SET acquired_at = clock_timestamp() - interval '1 day'
	WHERE election = 'always'");
start_worker($always, 'postgres',
	"SELECT leader_election.join('always', 'always')");
wait_for(
	$node,
	"SELECT string_agg(term::text, ', ') FROM leader_election.history
	WHERE election = 'pruned'",
	'85');
pass('ahead: history is pruned by its own clock');
is($always->query("SELECT leader_election.term('always'), (SELECT count(*)
		FROM leader_election.history WHERE election = 'always')"),
	'1|1', 'ahead: but not of who leads');

# A copy's epoch that was dated too late is followed by a later one.
$control->query('CREATE DATABASE one');
$node->safe_psql('one', 'CREATE EXTENSION leader_election');

sub epoch_of_copy
{
	my ($template, $copy) = @_;
	my ($session, $epoch);

	$control->query("CREATE DATABASE $copy TEMPLATE $template");
	$session = session($node, name => $copy, dbname => $copy);
	start_worker(
		$session, $copy,
		"DELETE FROM leader_election.epoch
			WHERE incarnation = leader_election._incarnation();
		SELECT leader_election.acquire('e', 'c')");
	wait_for(
		$node,
		'SELECT count(*) FROM leader_election.epoch
		WHERE incarnation = leader_election._incarnation()',
		1, undef, $copy);
	$epoch = $session->query('SELECT epoch FROM leader_election.epoch
		WHERE incarnation = leader_election._incarnation()');
	$session->finish;

	# The next one is to copy it.
	wait_for(
		$node,
		"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = '$copy'",
		0);
	return $epoch;
}

my $epoch = epoch_of_copy('one', 'two');

cmp_ok($epoch, '>', time - 1577836800 + $HOUR / 2, 'ahead: an epoch of tomorrow');

test_step('back', $HOUR, 0);
cmp_ok(epoch_of_copy('two', 'three'), '>', $epoch,
	'back: the next epoch is later all the same (G5)');

# A clock that is wrong by decades dates no epoch.
$epoch = $node->safe_psql('three', 'SELECT max(epoch) FROM leader_election.epoch');
set_clock(40 * 365 * 24 * $HOUR);
is(epoch_of_copy('three', 'four'), $epoch + 1, 'in 2066: the next epoch is the one after the last (G5)');

is($always->query("SELECT leader_election.term('always')"),
	1, 'always: led through all of it, in one term (G4)');
is( $control->query('SELECT count(*), max(epoch) FROM leader_election.epoch'),
	'1|0', 'one incarnation all the time');

$node->stop;
done_testing();
