# Renewals in batches: what happens to a lease between the look that found it due
# and its turn in the batch.  A constraint on the table of leases notes each update,
# and keeps the worker in the update of one lease, the first of its batch, for as
# long as the test wants: meanwhile the others are yielded, locked, altered, left to
# expire, or their session dies.
#
# Also: leases of different beginnings come to be renewed together, but a short
# one does not drag along long ones; and a row whose old versions are all kept for
# a snapshot is found without looking at each.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use SyncStandby;
use Test::More;
use Worker;

my $node = new_server(
	config => qq(
log_lock_waits = on
deadlock_timeout = 10ms
client_min_messages = warning
));
my $observer = session($node, name => 'observer');

$observer->query(<<'END');
CREATE TABLE gate (election text);
CREATE TABLE note (id bigserial, xid xid8, pid int, election text, term bigint,
	old_term bigint, deadline bigint, old_deadline bigint, duration bigint,
	clock bigint, yielding boolean, old_yielding boolean);
CREATE FUNCTION note(name text, term bigint, deadline bigint, yielding boolean)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	old record;
BEGIN
	SELECT * INTO old FROM leader_election.lease l WHERE l.election = name;
	IF NOT FOUND THEN
		RETURN true;
	END IF;
	INSERT INTO public.note VALUES (DEFAULT, pg_current_xact_id(), pg_backend_pid(),
		name, term, old.term, deadline, old.deadline_mono,
		old.duration, leader_election._monotonic_clock(), yielding, old.yielding);
	WHILE EXISTS (SELECT FROM public.gate g WHERE g.election = name) LOOP
		PERFORM pg_sleep(0.005);
	END LOOP;
	RETURN true;
END $$;
ALTER TABLE leader_election.lease ADD CONSTRAINT note
	CHECK (public.note(election, term, deadline_mono, yielding)) NOT VALID;
END

sub create
{
	my ($lease, @elections) = @_;

	$observer->query("SELECT leader_election.create_election('$_',"
		  . " lease_duration => '$lease')")
	  foreach @elections;
	return;
}

# Has the worker wait in the next renewal of this election, which begins now.  A look
# goes through leases in the reverse order of their elections, and so does a batch: the
# first one has the last name.
sub close_gate
{
	my ($election) = @_;

	$observer->query("INSERT INTO gate VALUES ('$election')");
	wait_for($node, "SELECT wait_event = 'PgSleep' FROM $WORKERS");
	return;
}

sub open_gate
{
	$observer->query('DELETE FROM gate');
	return;
}

# How often the batch with the last update of the first of these elections has
# renewed the second one.
sub renewed_with
{
	my ($first, $election) = @_;

	return $observer->query("SELECT count(*) FROM note
		WHERE election = '$election' AND term = old_term AND xid =
			(SELECT xid FROM note WHERE election = '$first' ORDER BY id DESC LIMIT 1)");
}

# -- One batch.
{
	my $LEASE = '9s';
	my $leader = session($node, name => 'leader');
	my $mortal = session($node, name => 'mortal');
	my $heir = session($node, name => 'heir');
	my $locker = session($node, name => 'locker');

	create($LEASE, 'the first');
	create($LEASE, qw(asked locked dead altered last));
	is( $leader->query("SELECT string_agg(leader_election.join(e, 'leader')::text, ' ')
			FROM unnest('{the first,asked,locked,altered,last}'::text[]) e"),
		'1 1 1 1 1', 'one session leads five elections');
	is($mortal->query("SELECT leader_election.join('dead', 'mortal')"), '1', 'another one leads one');
	$heir->query("SELECT leader_election.join('dead', 'heir')");

	# All are due in the same batch from the second time on.
	wait_for($node, "SELECT count(DISTINCT xmin::text) = 1 FROM leader_election.lease
		WHERE renewed_at > acquired_at");
	close_gate('the first');
	my $worker = $observer->query($WORKER_PID);

	$observer->query("SELECT leader_election.request_yield('asked')");
	is($observer->sqlstate, '00000', 'a yield is asked for amid a batch');
	my $deadline = $observer->query("SELECT deadline_mono FROM leader_election.lease
		WHERE election = 'asked'");
	$locker->query("BEGIN; SELECT FROM leader_election.lease WHERE election = 'locked' FOR UPDATE");
	$mortal->kill;
	wait_gone($node, $mortal);
	$observer->query("SELECT leader_election.alter_election('altered', lease_duration => '2s')");
	is($observer->sqlstate, '00000', 'settings are altered amid a batch');
	my $since = $observer->query("SELECT max(id) FROM note");
	open_gate();
	wait_for($node, "SELECT xmin = (SELECT xmin FROM leader_election.lease
			WHERE election = 'the first') FROM leader_election.lease WHERE election = 'last'");

	is(renewed_with('the first', 'last'), '1', 'the last of a batch is renewed');
	is(renewed_with('the first', 'asked'), '0', 'a lease that is to be yielded is not');
	is( $observer->query("SELECT yielding, deadline_mono = $deadline
			FROM leader_election.lease WHERE election = 'asked'"),
		't|t', '... and the yield is not lost');
	is(renewed_with('the first', 'dead'), '0', 'nor is that of a session that has ended');
	wait_for($node, "SELECT leader = 'heir' FROM leader_election.lease WHERE election = 'dead'");
	is(renewed_with('the first', 'locked'), '0', 'nor is one that is locked');
	$locker->query('COMMIT');
	wait_for($node, "SELECT count(*) > 0 FROM note WHERE election = 'locked'
		AND id > $since AND term = old_term");
	is($leader->query("SELECT leader_election.term('locked')"), '1', '... until it is unlocked');
	wait_for($node, "SELECT duration = 2000000 FROM leader_election.lease
		WHERE election = 'altered'");
	is($leader->query("SELECT leader_election.term('altered')"), '1', 'the new settings count later');
	is( $observer->query("SELECT count(*) FROM note
			WHERE term = old_term AND deadline < old_deadline"),
		'0', 'no renewal has moved a deadline back');
	unlike(slurp_file($node->logfile), qr/process $worker still waiting/,
		'the worker has waited for nobody');
	$_->finish foreach $leader, $heir, $locker;
}

# -- A lease whose deadline passes before its turn is over.
{
	my $leader = session($node, name => 'leader');

	create('2s', 'gated');
	create('2s', 'expired');
	is( $leader->query("SELECT string_agg(leader_election.join(e, 'leader')::text, ' ')
			FROM unnest('{gated,expired}'::text[]) e"),
		'1 1', 'two elections of one session');
	wait_for($node, "SELECT count(DISTINCT xmin::text) = 1 FROM leader_election.lease
		WHERE election IN ('gated', 'expired') AND renewed_at > acquired_at");
	close_gate('gated');
	wait_for($node, "SELECT deadline_mono < leader_election._monotonic_clock()
		FROM leader_election.lease WHERE election = 'expired'");
	open_gate();
	wait_for($node, "SELECT count(*) = 1 FROM leader_election.history
		WHERE election = 'expired' AND term = 1 AND reason = 'expired'");
	is( $observer->query("SELECT count(*) FROM note WHERE election = 'expired'
			AND term = old_term AND clock >= old_deadline"),
		'0', 'a lease whose deadline has passed is not renewed');
	$leader->finish;
}

# -- What is renewed together, and what is not.
{
	my $leader = session($node, name => 'leader');

	create('6s', qw(one two long));
	create('300ms', 'short');
	$leader->query("SELECT leader_election.join('one', 'leader')");
	wait_for($node, "SELECT clock_timestamp() > acquired_at + interval '0.7s'
		FROM leader_election.lease WHERE election = 'one'");
	$leader->query("SELECT leader_election.join('two', 'leader')");
	isnt( $observer->query("SELECT count(DISTINCT xmin::text) FROM leader_election.lease
			WHERE election IN ('one', 'two')"),
		'1', 'two leases of different beginnings');
	wait_for($node, "SELECT count(DISTINCT xmin::text) = 1 FROM leader_election.lease
		WHERE election IN ('one', 'two')");
	pass('... are renewed together, later');
	$leader->query("SELECT leader_election.leave_all()");

	$leader->query("SELECT leader_election.join('long', 'leader'), leader_election.join('short', 'leader')");
	wait_for($node, "SELECT count(*) >= 2 FROM note WHERE election = 'long' AND term = old_term
		AND NOT yielding");
	cmp_ok(
		$observer->query("SELECT count(*) FROM note WHERE election = 'short' AND term = old_term"),
		'>', 4, 'a short lease is renewed often');
	is( $observer->query("SELECT count(*) FROM note WHERE election = 'long' AND term = old_term
			AND old_deadline - clock > duration * 2 / 3"),
		'0', '... and has none that lasts longer renewed along with it');
	$leader->finish;
}

# -- The worker has begun to renew a lease in time, and commits after the deadline:
# meanwhile the leader that calls renew() is not told that it does not lead.
{
	my $leader = session($node, name => 'leader');

	create('9s', 'in time');
	$leader->query("SELECT leader_election.join('in time', 'leader')");
	close_gate('in time');
	wait_for($node, "SELECT leader_election._monotonic_clock() > deadline_mono
		FROM leader_election.lease WHERE election = 'in time'");
	is($leader->query("SELECT count(*) FROM leader_election.renew('in time')"), '', 'a renewal that has not committed');
	is($leader->sqlstate, '55P03', 'is no reason to say that the lease is over');
	open_gate();
	wait_until(sub { $leader->query("SELECT leader_election.term('in time')") eq '1' }, 'the renewal');
	is($leader->query("SELECT term FROM leader_election.renew('in time')"), '1', 'it leads on');
	$leader->finish;
}

# -- While a snapshot is kept, so are all versions of a lease.
{
	my $leader = session($node, name => 'leader');
	my $reader = session($node, name => 'reader');
	my $HIT = "SELECT heap_blks_hit + heap_blks_read FROM pg_statio_user_tables
		WHERE relname = 'lease'";

	$observer->query('ALTER TABLE leader_election.lease DROP CONSTRAINT note');
	create('30s', 'kept');
	$leader->query("SELECT leader_election.join('kept', 'leader', auto_renew => false)");
	$reader->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class LIMIT 1');
	$leader->query("SELECT leader_election.renew('kept')") foreach 1 .. 600;
	cmp_ok(
		$observer->query("SELECT pg_relation_size('leader_election.lease')
			/ current_setting('block_size')::int"),
		'>', 15, '600 versions of a lease fill many pages');

	my $before = $observer->query("SELECT pg_stat_force_next_flush(); $HIT");
	$observer->query("SELECT leader_election.leader('kept')") foreach 1 .. 20;
	my $after = $observer->query("SELECT pg_stat_force_next_flush(); $HIT");
	s/^\n*// foreach $before, $after;
	cmp_ok(($after - $before) / 20, '<', 10, 'leader() does not look at all of them');
	$_->finish foreach $leader, $reader;
}

# -- More leases than one transaction renews, and wake-ups all the time. All are kept, also
# by a worker that is late, and a leader that dies meanwhile is replaced.
{
	my $MANY = 1300;
	my $LEASE = int(4000 * slowness());
	my ($leader, $mortal, $heir) = map { session($node, name => $_) } qw(leader mortal heir);
	my $wake = sub {
		my $wakes = session($node, name => 'wakes', options => '-c log_min_messages=error');

		$wakes->query_async(q{DO $$ BEGIN
			FOR i IN 1 .. 1000000 LOOP
				PERFORM leader_election.acquire('wakes', 'w');
				PERFORM leader_election.release('wakes', term) FROM leader_election.lease WHERE election = 'wakes';
				COMMIT;
				PERFORM pg_sleep(0.002);
			END LOOP; END $$});
		return $wakes;
	};
	my $LEAST = "SELECT min(renewed_at - acquired_at) > interval '%d ms' FROM leader_election.lease
		WHERE election LIKE 'many %%'";

	$observer->query("SELECT leader_election.create_election('mortal', lease_duration => '1h')");
	$mortal->query("SELECT leader_election.join('mortal', 'mortal')");
	$heir->query("SELECT leader_election.join('mortal', 'heir')");
	foreach my $part (0 .. 12)
	{
		my $i = "generate_series($part * 100 + 1, $part * 100 + 100) i";

		$observer->query("SELECT count(leader_election.create_election('many ' || i, lease_duration => '$LEASE ms')) FROM $i");
		is($leader->query("SELECT count(leader_election.join('many ' || i, 'leader')) FROM $i"), 100, 'leads more');
	}
	wait_for($node, sprintf($LEAST, $LEASE / 3));
	my $wakes = $wake->();
	wait_for($node, sprintf($LEAST, $LEASE));
	$mortal->kill;
	wait_for($node, "SELECT leader = 'heir' FROM leader_election.lease WHERE election = 'mortal'");
	$observer->query('SELECT pg_terminate_backend(' . $wakes->backend_pid . ', 60000)');
	my $worker = stop_worker($observer);
	wait_for($node, "SELECT leader_election._monotonic_clock() > max(deadline_mono) - $LEASE * 500
		FROM leader_election.lease WHERE election LIKE 'many %'");
	$wakes = $wake->();
	resume_process($worker);
	wait_for($node, sprintf($LEAST, 2.5 * $LEASE));
	is($leader->query("SELECT count(*) FROM generate_series(1, $MANY) i WHERE leader_election.term('many ' || i) = 1"),
		$MANY, "$MANY leases are renewed in time");
	$observer->query('SELECT pg_terminate_backend(' . $wakes->backend_pid . ', 60000)');
	$_->finish foreach $leader, $heir;
}

$observer->finish;
$node->stop;

# -- A lease that cannot be renewed has each renewed alone. Once synchronous standbys fall
# silent, the first of these waits for them, and no other does.
{
	my $pair = SyncStandby->new(config => "client_min_messages = warning\n");
	my $primary = $pair->{primary};
	my $gate = session($primary, name => 'gate');
	my @leaders = map { session($primary, name => "leads $_") } 1 .. 6;
	my $worker = "FROM $WORKERS AND state = 'active'";
	my %alone;

	$gate->query(<<'END');
CREATE FUNCTION fails(election text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	is_closed text := $q$SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711)$q$;
	closed boolean;
BEGIN
	EXECUTE is_closed INTO closed;
	IF NOT closed THEN
		RETURN true;
	END IF;
	WHILE closed LOOP
		PERFORM pg_sleep(0.01);
		EXECUTE is_closed INTO closed;
	END LOOP;
	RAISE EXCEPTION 'as the test wants it';
END $$;
ALTER TABLE leader_election.lease ADD CONSTRAINT fails CHECK (election <> 'broken' OR public.fails(election));
END
	is($gate->sqlstate, '00000', 'silent: a constraint');
	foreach my $i (0 .. $#leaders)
	{
		my $election = $i ? "whole $i" : 'broken';

		$gate->query("SELECT leader_election.create_election('$election', lease_duration => '3 s')");
		is($leaders[$i]->query("SELECT leader_election.join('$election', 'leader')"), 1, "silent: $election is led");
	}
	$gate->query('SELECT pg_advisory_lock(4711)');
	wait_for($primary, "SELECT count(*) $worker AND wait_event = 'PgSleep'", 1);
	$pair->stop_line;
	$gate->query('SELECT pg_advisory_unlock(4711)');

	# Until the worker is beyond that: which of its transactions took long?
	wait_until(
		sub {
			my ($what, $since, $long) = split /\|/, $pair->{observer}->query("SELECT query, xact_start,
				clock_timestamp() - xact_start > '500 ms' $worker AND wait_event IS DISTINCT FROM 'PgSleep'");

			return 0 if !defined $since;
			$alone{$since} = 1 if $long eq 't' && $what =~ /as the test wants it/;
			return %alone && $what !~ /as the test wants it/;
		},
		'the worker to go on');
	cmp_ok(scalar keys %alone, '<', scalar @leaders, 'silent: the standbys are not asked for each lease');
	$pair->resume_line;
	wait_for($primary, 'SELECT count(*) FROM leader_election.status WHERE state = \'led\'', scalar @leaders);
	pass('silent: all are led when they confirm again');
	$_->finish foreach @leaders, $gate;
	$pair->{standby}->stop;
	$primary->stop;
}

done_testing();
