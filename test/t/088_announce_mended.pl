# How the worker announces in moments that are rare: right after its start while
# the marks are locked, while it queues for the NOTIFY lock, while an election's
# name is locked, or after an election was made anew. What there is to announce,
# and how many elections there are, costs no live leader its lease.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use LeaderElection;
use List::Util qw(min);
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

my $node = new_server(config => NotifyLock::config() . q(
leader_election.lease_duration = '10min'
client_min_messages = warning
log_statement = none
autovacuum = off
));
my $control = session($node, name => 'control');
my $notify = NotifyLock->new($node);
my $observer = session($node, name => 'observer', dbname => 'other');
my $listener = Announced->new($node);

# A call must not fail.
sub call
{
	my ($session, $sql) = @_;
	my $result = $session->query($sql);

	die "$session->{name}: $sql: " . $session->errors if $session->sqlstate ne '00000';
	return $result;
}

sub wait_for_worker
{
	my ($column, $value) = @_;

	return wait_until(sub { call($control, "SELECT $column FROM $WORKERS") eq $value },
		"$column of the worker to be $value");
}

sub short_expired
{
	return call($control, "SELECT count(*) FROM leader_election.history
		WHERE election = 'short' AND reason = 'expired'");
}

# A leader of 'short' leads for three leases' time, or until its lease has expired.
sub short_round
{
	my ($leader) = @_;

	wait_for_worker('wait_event_type', 'Lock');
	die 'no leader' if call($leader, "SELECT leader_election.join('short', 'leader')") eq '';
	wait_until(
		sub {
			return $control->query("SELECT deadline_mono > acquired_mono + 3 * duration
				AND leader IS NOT NULL FROM leader_election.lease
				WHERE election = 'short'") eq 't'
			  || $leader->query("SELECT leader_election.is_leader('short')") eq 'f';
		},
		'renewals');
	call($leader, "SELECT leader_election.leave('short')");
	return;
}

#
# A worker whose first look finds the marks locked elects, and announces that
# once they are not. Here elections wait until then, within one round.
#

call($control, q{
	CREATE FUNCTION await_marks() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
		WHILE EXISTS (SELECT FROM pg_locks
			WHERE mode = 'AccessExclusiveLock' AND granted AND relation IN
				('leader_election.announced'::regclass,
				 'leader_election.announced_pkey'::regclass))
		LOOP
			PERFORM pg_sleep(0.01);
		END LOOP;
		RETURN true;
	END $$;
	ALTER TABLE leader_election.history ADD CONSTRAINT await
		CHECK (ended_at IS NULL OR public.await_marks()) NOT VALID});

foreach (
	[ 'table', 'LOCK TABLE leader_election.announced' ],
	[ 'index', 'REINDEX INDEX leader_election.announced_pkey' ])
{
	my ($what, $lock) = @$_;
	my ($one, $two, $locker) = map { session($node, name => $_) } qw(one two locker);

	call($two, "SELECT leader_election.join('beside $what', 'two')");
	call($_, "SELECT leader_election.join('$what ' || i, '$_->{name}')
		FROM generate_series(1, 20) i") foreach $one, $two;
	$listener->all_told_ok("^$what ", "$what: at first");
	call($locker, $_) foreach 'BEGIN', $lock;
	call($control, "SELECT pg_terminate_backend(pid, 60000) FROM $WORKERS");
	$one->kill;
	wait_until(sub { !-e "/proc/@{[ $one->backend_pid ]}" }, 'the end of a leader');
	call($two, "SELECT leader_election.renew('beside $what')");    # starts a worker
	wait_for_worker('wait_event', 'PgSleep');    # at the gate
	$locker->query('ROLLBACK');
	wait_until(
		sub {
			return call($control, "SELECT count(*) FROM leader_election.lease
				WHERE election ~ '^$what ' AND term = 2 AND leader = 'two'") eq '20';
		},
		'all takeovers');
	$listener->all_told_ok("^$what ", "$what: after takeovers");
}
unlike(slurp_file($node->logfile), qr/terminated by signal/, 'no crash');
call($control, 'ALTER TABLE leader_election.history DROP CONSTRAINT await');

#
# A lease of 100 ms that is granted while the worker queues for the NOTIFY lock,
# for as long as it ever does, is renewed in time. On a busy machine a few are not,
# in any one of several attempts; a worker that queues for longer loses most, in
# each.
#

{
	my $ATTEMPTS = 5;
	my $ROUNDS = 30;
	my $leader = session($node, name => 'leader');
	my $fewest = $ROUNDS;

	call($control, "SELECT leader_election.create_election('short', lease_duration => '100ms')");
	$notify->hold;
	call($control, "SELECT leader_election.acquire('pending', 'x')");
	foreach my $attempt (1 .. $ATTEMPTS)
	{
		my $before = short_expired();

		short_round($leader) foreach 1 .. $ROUNDS;
		$fewest = min($fewest, short_expired() - $before);
		last if $fewest <= $ROUNDS / 6;
	}
	$notify->free;
	cmp_ok($fewest, '<=', $ROUNDS / 6, "short leases: $fewest of $ROUNDS have expired");
	$listener->all_told_ok('^(pending|short)$', 'short leases');
}

#
# The worker does not look while elections are led, dropped and made anew: their
# terms are told although their leases have none, and nobody is elected. One of
# them is not committed before its former mark is gone: that one is tried ever less
# often, until the log says so.
#

{
	my $TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database
		WHERE datname = 'postgres'";
	my @elections = qw(known unknown busy);
	my $maker = session($node, name => 'maker');
	my $before = $observer->query($TRANSACTIONS);
	my $pid;
	my $lead = sub {
		call($control, "SELECT leader_election.release('$_[0]', term)
			FROM leader_election.acquire('$_[0]', 'x')");
	};

	$lead->('known');
	$listener->fence;
	$pid = stop_worker($control);
	foreach my $election (@elections)
	{
		$lead->($election);
		call($control, "SELECT leader_election.drop_election('$election')");
		call($maker, 'BEGIN') if $election eq 'busy';
		call($maker, "SELECT leader_election.create_election('$election')");
	}
	resume_process($pid);
	$listener->fence;
	foreach my $election (@elections)
	{
		my @terms = $control->query("SELECT term FROM leader_election.history
			WHERE election = '$election' ORDER BY term");

		is_deeply([ $listener->events($election) ],
			[ map { ("elected $_ x", "vacated $_, x resigned") } @terms ],
			"$election: terms @terms are told before the next");
	}
	my $said = sub { slurp_file($node->logfile) =~ /announcing has had to wait/ };
	ok(eval { wait_until($said, 'the log') }, 'busy: the log says so');
	my $spent = $observer->query($TRANSACTIONS) - $before;
	cmp_ok($spent, '<', 1500, "busy: $spent transactions until then");
	$maker->finish;
	wait_for($node, "SELECT count(*) FROM leader_election.announced
		WHERE election = 'busy'", 0);
}

#
# Many elections change all the time, and others notify so much that the worker
# gets the NOTIFY lock now and then, for one transaction. An election that is behind
# them in the order of names has its turn all the same.
#

{
	my $CROWD = 1500;
	my $behind = session($node, name => 'behind');
	my @parts = map { "generate_series($_, $CROWD, 3) i" } 1 .. 3;
	my $change = sub {
		call($control, "SELECT count(leader_election.release('crowd ' || i, term))
			FROM $_, leader_election.acquire('crowd ' || i, 'x')") foreach @parts;
	};
	my $last = 'last';

	call($control, "SELECT count(leader_election.create_election('crowd ' || i)) FROM $_") foreach @parts;
	$change->() foreach 1 .. 3;
	$listener->fence;
	$notify->hold;
	call($behind, "SELECT leader_election.join('$last', 'behind')");
	ok(eval {
			wait_until(
				sub {
					$change->();
					wait_for_worker('wait_event_type', 'Lock');
					$notify->free;
					$notify->hold;
					return $listener->events($last) > 0;
				},
				'the news behind a crowd');
		},
		'behind a crowd: it is told') or die "what follows would wait for ever\n";
	$notify->free;
	$behind->finish;
}

#
# A short lease beside many elections is renewed in time, and without a look at each of
# them. Where the machine has held processes up for as long as a renewal has time, one
# may be late: then again, with a lease of twice the time.
#

{
	my $ATTEMPTS = 4;
	my $lease = int(300 * slowness());    # in ms
	my $leader = session($node, name => 'leader');
	my $COUNTERS = "SELECT (SELECT idx_scan FROM pg_stat_user_indexes
			WHERE indexrelname = 'election_group_pkey'), n_tup_upd
		FROM pg_stat_user_tables WHERE relid = 'leader_election.lease'::regclass";
	my ($scans, $renewals);
	my $terms = 0;

	call($control, "INSERT INTO leader_election.$_ FROM generate_series(1, 30000) i") foreach
	  q{election (election, strategy, lease_duration, quorum, takeover_delay, owner)
		SELECT 'v' || i, 'race', '15 s', 1, '0', current_user},
	  q{lease (election, term, yielding, yield_ordered, yields, incarnation)
		SELECT 'v' || i, 6, false, false, 0, leader_election._incarnation()},
	  q{announced SELECT 'v' || i, 6, true, 0, NULL};
	call($control, "SELECT leader_election.create_election('crowded', lease_duration => '$lease ms')");
	$listener->fence;
	foreach (1 .. $ATTEMPTS)
	{
		my ($term, @before);
		my $mark = held_up();

		wait_until(sub { ($term = call($leader, "SELECT leader_election.join('crowded', 'leader')")) ne '' }, 'crowded to be led');
		$listener->fence;
		@before = split /\|/, $control->query($COUNTERS);
		wait_until(
			sub {
				my @now = split /\|/, $control->query($COUNTERS);
				($scans, $renewals) = map { $now[$_] - $before[$_] } 0, 1;
				return $renewals >= 20;
			},
			'renewals');
		$terms = $control->query("SELECT count(*) FROM leader_election.history
			WHERE election = 'crowded' AND term >= $term");
		last if $terms == 1 || held_up($mark) < 1000 * $lease / 3;
		call($leader, "SELECT leader_election.leave('crowded')");
		$lease *= 2;
		call($control, "SELECT leader_election.alter_election('crowded', lease_duration => '$lease ms')");
	}
	cmp_ok($scans, '<', $renewals / 3, "crowded: $scans looks for $renewals renewals");
	is($terms, 1, 'crowded: in one term');
}

$_->finish foreach $control, $observer;
$node->stop;

#
# A campaign whose own commit has started the worker does not miss it, although
# there is no room for another one.
#

$node = new_server(
	name => 'single',
	config => q(
leader_election.worker_idle_timeout = 0
max_worker_processes = 1
max_logical_replication_workers = 0
));
foreach my $round (1 .. 3)
{
	my $one = session($node, name => 'one');

	wait_for($node, "SELECT count(*) FROM $WORKERS", 0);
	is(call($one, "CALL leader_election.campaign('fresh $round', 'one')"), 1, 'campaign: leads');
	unlike($one->errors, qr/WARNING/, 'campaign: has a worker');
	$one->finish;
}

$node->stop;
done_testing();
