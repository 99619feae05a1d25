# Detached candidates on real servers, in elections in which sessions stand as
# well: who takes over from whom and when, seats that are kept for somebody,
# what a lost lease is worth, what the worker has to do with it (little), what
# costs nothing, locked tables, and the end of the server.
#
# Times are compared on the server's monotonic clock, in the rows: nobody may
# be early by a microsecond, and nobody late by more than a busy machine is.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $LEASE = 2_000_000;
my $SOON = 1_000_000;

# What the worker processes of the present database are
my $WORKERS = "pg_stat_activity WHERE backend_type = 'leader_election worker'"
  . ' AND datname = current_database()';
my $WORKER_PID = "SELECT pid FROM $WORKERS ORDER BY backend_start LIMIT 1";
my $NO_WORKER = "SELECT count(*) = 0 FROM $WORKERS";

# Watches elections from aside, the way a client checks a term before it acts:
# notes of each term when it was first (the clock after the call) and last
# (before) the present one.
my $WATCHERS = <<'END';
CREATE TABLE stint (election text, watcher text, term bigint,
	first_after bigint, last_before bigint);
CREATE TABLE stop (what text);
CREATE PROCEDURE watch(me text)
LANGUAGE plpgsql AS $$
DECLARE
	l record;
	known jsonb := '{}';
	key text;
	clock_before bigint;
	clock_after bigint;
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop WHERE what = 'watch') LOOP
		FOR l IN SELECT election, t FROM leader_election.lease,
				generate_series(greatest(term - 1, 1), term + 1) t LOOP
			clock_before := leader_election.monotonic_clock();
			CONTINUE WHEN NOT leader_election.is_leader(l.election, l.t);
			clock_after := leader_election.monotonic_clock();
			key := l.election || '/' || l.t;
			known := known || jsonb_build_object(key, jsonb_build_array(
				coalesce((known->key->>0)::bigint, clock_after), clock_before));
		END LOOP;
		COMMIT;
		PERFORM pg_sleep(0.005);
	END LOOP;
	INSERT INTO stint
		SELECT split_part(k, '/', 1), me, split_part(k, '/', 2)::bigint,
			(v->>0)::bigint, (v->>1)::bigint
		FROM jsonb_each(known) j (k, v);
END $$;
END

# Two leaders at once would show as a term that was led after a later one was.
my $TWO_LEADERS = <<'END';
SELECT a.election, a.watcher, a.term, b.watcher, b.term
FROM stint a JOIN stint b USING (election)
WHERE a.term < b.term AND a.last_before > b.first_after
END

# What is to be announced of the terms in history, and what is not: a change
# without a vacancy is one event.
my $UNANNOUNCED = <<'END';
WITH due AS (
	SELECT h.election, 'elected' AS event, h.term, h.leader,
		p.leader AS previous, p.reason, h.acquired_at AS at
	FROM leader_election.history h LEFT JOIN leader_election.history p
		ON p.election = h.election AND p.term = h.term - 1
			AND p.ended_at = h.acquired_at
	UNION ALL
	SELECT h.election, 'vacated', h.term, NULL, h.leader, h.reason, h.ended_at
	FROM leader_election.history h
	WHERE h.ended_at IS NOT NULL AND NOT EXISTS (
		SELECT FROM leader_election.history n
		WHERE n.election = h.election AND n.term = h.term + 1
			AND n.acquired_at = h.ended_at)
), announced AS (
	SELECT p->>'election', p->>'event', (p->>'term')::bigint, p->>'leader',
		p->>'previous', p->>'reason', (p->>'at')::timestamptz
	FROM payload WHERE p->>'event' <> 'yield_requested'
)
(SELECT 'not announced', * FROM (TABLE due EXCEPT ALL TABLE announced) x)
UNION ALL
(SELECT 'for nothing', * FROM (TABLE announced EXCEPT ALL TABLE due) x)
END

my ($node, $control, $observer, @pool, @payloads);

# A detached candidate has no connection of its own: each call takes the next.
sub any
{
	my ($sql) = @_;

	push @pool, shift @pool;
	return scalar $pool[0]->query($sql);
}

# The term, '' if it was not granted
sub acquire
{
	my ($election, $name) = @_;

	return any("SELECT term FROM leader_election.acquire('$election', '$name')");
}

sub renew
{
	my ($election, $term) = @_;

	return any("SELECT term FROM leader_election.renew('$election', $term)");
}

sub joins
{
	my ($session, $election) = @_;

	return scalar $session->query(
		"SELECT leader_election.join('$election', '$session->{name}')");
}

sub leads
{
	my ($session, $election) = @_;

	return $session->query("SELECT leader_election.is_leader('$election')") eq
	  't';
}

# Is this term the present one, as anybody sees it?
sub holds
{
	my ($election, $term) = @_;

	return any("SELECT leader_election.is_leader('$election', $term)") eq 't';
}

sub state_of
{
	my ($election) = @_;

	return any("SELECT state, waiting_for FROM leader_election.status"
		  . " WHERE election = '$election'");
}

# The row of an election, a candidate, a term: some columns as a hash
sub row
{
	my ($table, $where, @columns) = @_;
	my $list = join ', ', @columns;
	my %row;

	@row{@columns} = split /\|/,
	  $control->query("SELECT $list FROM leader_election.$table WHERE $where"),
	  -1;
	return \%row;
}

sub lease
{
	my ($election) = @_;

	return row('lease', "election = '$election'",
		qw(term leader kind acquired_mono deadline_mono reserved_mono
		  not_before_mono expires_at yielding successor));
}

sub history
{
	my ($election) = @_;

	return scalar $control->query(
		"SELECT string_agg(concat(leader, ' ', reason), ', ' ORDER BY term)"
		  . " FROM leader_election.history WHERE election = '$election'");
}

# Waits until somebody leads in that term, and checks on the server's clock
# that this began when it should and not before.
sub elected_at_ok
{
	my ($election, $term, $due, $name) = @_;
	my $lease;

	wait_until(
		sub {
			$lease = lease($election);
			return $lease->{term} >= $term && $lease->{leader} ne '';
		},
		"term $term of $election");
	is($lease->{term}, $term, "$name: the next term");
	cmp_ok($lease->{acquired_mono}, '>=', $due, "$name: not early");
	cmp_ok($lease->{acquired_mono}, '<', $due + $SOON, "$name: nor late");
	note(sprintf '%s: %.1f ms', $name,
		($lease->{acquired_mono} - $due) / 1000);
	return $lease;
}

# Calls acquire() for these candidates, in turn, until one of them gets it.
sub acquire_in_turn
{
	my ($election, @names) = @_;
	my ($winner, $term);

	wait_until(
		sub {
			foreach my $name (@names)
			{
				($winner, $term) = ($name, acquire($election, $name));
				return 1 if $term ne '';
			}
			return 0;
		},
		"$election to be granted");
	return ($winner, $term);
}

# Waits until the server's monotonic clock has come to this.
sub wait_for_clock
{
	my ($clock) = @_;

	wait_until(
		sub {
			$control->query('SELECT leader_election.monotonic_clock()') >= $clock;
		},
		"the clock to be at $clock");
	return;
}

# Makes an election with a lease of its own, in microseconds.
sub create_election
{
	my ($election, $lease) = @_;

	$control->query("BEGIN; INSERT INTO leader_election.election"
		  . " (election, lease_duration, owner) VALUES"
		  . " ('$election', $lease * interval '1 us', current_user);"
		  . " INSERT INTO leader_election.lease (election)"
		  . " VALUES ('$election'); COMMIT");
	return;
}

sub connect_all
{
	$control = session($node, name => 'control');
	@pool = map { session($node, name => "pooled $_") } 1 .. 3;
	return;
}

sub listen_to_changes
{
	$observer = session($node, name => 'observer');
	$observer->query('LISTEN leadership_changed');
	return;
}

# Waits until something is announced.
sub announced
{
	my ($election, $event, $term) = @_;

	wait_until(
		sub {
			push @payloads, $observer->notifications;
			return
			  grep { /^\{"election":"$election","event":"$event","term":$term,/ }
			  @payloads;
		},
		"$event in term $term of $election to be announced");
	return;
}

# Everything in history was announced, once, and nothing else.
sub announcements_ok
{
	my ($name) = @_;

	# What comes last
	acquire('last', 'x');
	announced('last', 'elected', 1);
	$control->query('CREATE TABLE payload (p jsonb)');
	while (my @some = splice @payloads, 0, 100)
	{
		$control->query('INSERT INTO payload VALUES '
			  . join(', ', map { "(\$payload\$$_\$payload\$)" } @some));
	}
	is($control->query($UNANNOUNCED), '', "$name: each change announced once");
	return;
}

# Stops the worker, but not while it holds a lock: then the server itself
# would have to wait for it.
sub stop_worker
{
	my $pid;

	wait_until(
		sub {
			# Another one may be there for a second: it was started at the
			# same time, and has found the first.
			return 0 unless $control->query("SELECT count(*) FROM $WORKERS") == 1;
			$pid = $control->query($WORKER_PID);
			kill 'STOP', $pid;
			return 1
			  if $control->query("SELECT wait_event_type = 'Extension'"
				  . " FROM pg_stat_activity WHERE pid = $pid") eq 't';
			kill 'CONT', $pid;
			return 0;
		},
		'the worker to sleep');
	return $pid;
}

$node = new_server(
	config => qq(
leader_election.lease_duration = '${LEASE}us'
leader_election.worker_idle_timeout = '300ms'
restart_after_crash = on
autovacuum = off
synchronous_commit = off
wal_writer_delay = '10s'
client_min_messages = warning
));
connect_all();
listen_to_changes();
$control->query($WATCHERS);

my @watchers = map { session($node, name => "watcher $_") } 1 .. 2;
$_->query_async("CALL watch('$_->{name}')") foreach @watchers;

my ($one, $two, $three, $four) =
  map { session($node, name => $_) } qw(one two three four);

# -- Hand over hand: sessions and detached candidates follow each other.

{
	my $e = 'chain';
	my $before;

	is(joins($one, $e), 1, 'a session leads');
	is(acquire($e, 'd1'), '', 'a detached candidate follows');
	ok(holds($e, 1), 'anybody can check the session\'s term');

	is($one->query("SELECT leader_election.resign('$e')"),
		't', 'the session resigns');
	is(state_of($e), 'vacant|acquire()', 'nobody is elected without a call');
	is(joins($one, $e), '', 'not even the one that resigned by its own');
	is(acquire($e, 'd1'), 2, 'a detached candidate by its own');
	is(acquire($e, 'd1'), '', 'but its namesake is not told the term');

	is( any("SELECT leader_election.release('$e', 1)"),
		'f', 'a term that is over cannot be given back');
	is( any("SELECT leader_election.release('$e', 2)"),
		't', 'the detached leader releases');
	is($one->query("SELECT leader_election.term('$e')"),
		3, 'the waiting session leads at once');
	is(acquire($e, 'd1'), '', 'and the other does not');

	is($one->query("SELECT leader_election.transfer('$e', 'd1')"),
		't', 'transfer from session to detached');
	is(state_of($e), 'vacant|reserved for d1', 'keeps the seat');
	is(acquire($e, 'd2'), '', 'no other detached candidate gets it');
	is(joins($two, $e), '', 'nor a session that joins');
	is(joins($one, $e), '', 'nor the one that had it');
	is(acquire($e, 'd1'), 4, 'it is for the one it was transferred to');

	is( any("SELECT leader_election.transfer('$e', 4, 'two')"),
		't', 'transfer from detached to session');
	is($two->query("SELECT leader_election.term('$e')"),
		5, 'needs no call of that session');
	ok(!holds($e, 4), 'the term before is over');
	is(renew($e, 4), '', 'for ever');

	like(
		any("SELECT leader_election.request_yield('$e', 'd2')"),
		qr/^00:00:0[012]/,
		'a session is asked to yield');
	announced($e, 'yield_requested', 5);
	is(joins($one, $e), '', 'while it leads nobody else does');
	is($two->query("SELECT leader_election.resign('$e')"), 't', 'it does');
	is(state_of($e), 'vacant|reserved for d2', 'in favour of the one named');
	is(acquire($e, 'd1'), '', 'and not of others');
	is(acquire($e, 'd2'), 6, 'who gets it');

	any("SELECT leader_election.request_yield('$e', 'd1')");
	announced($e, 'yield_requested', 6);
	is(renew($e, 6), 6, 'a leader that is to yield leads');
	is( any("SELECT leader_election.release('$e', 6)"),
		't', 'a detached leader yields to another');
	is(acquire($e, 'd2'), '', 'not to itself');
	is(acquire($e, 'd1'), 7, 'but to the one named');

	any("SELECT leader_election.request_yield('$e', 'two')");
	announced($e, 'yield_requested', 7);
	is( any("SELECT leader_election.release('$e', 7)"),
		't', 'a detached leader yields to a session');
	is($two->query("SELECT leader_election.term('$e')"),
		8, 'to the one named, although it is not the first in line');

	is($two->query("SELECT leader_election.leave('$e')"), 't', 'leave');
	is($one->query("SELECT leader_election.term('$e')"), 9, 'next');
	is( any("SELECT leader_election.leave('$e', 'd1')"),
		't', 'a detached candidate leaves');
	is(any("SELECT leader_election.leave('$e', 'd1')"), 'f', 'once');

	# With nobody but detached candidates left
	is(acquire($e, 'd2'), '', 'a live session leads');
	$before = lease($e);
	$one->kill;
	is((acquire_in_turn($e, 'd2'))[1], 10, 'a dead one is succeeded');
	cmp_ok(lease($e)->{acquired_mono},
		'<', $before->{deadline_mono},
		'long before the end of its lease');
	is( history($e),
		'one resigned, d1 resigned, one transferred, d1 transferred,'
		  . ' two yielded, d2 yielded, d1 yielded, two left,'
		  . ' one session ended, d2 ',
		'history');
	is( $control->query(
			"SELECT string_agg(left(kind, 1), '' ORDER BY term), "
			  . " bool_and(backend_pid IS NULL = (kind = 'detached'))"
			  . " FROM leader_election.history WHERE election = '$e'"),
		'sdsdsddssd|t',
		'of both kinds');
	any("SELECT leader_election.release('$e', 10)");
	$one = session($node, name => 'one');
}

# -- Who gave up sits out until another was elected.

{
	my $e = 'sits out';

	is(acquire($e, 'd1'), 1, 'leads');
	is(acquire($e, 'd2'), '', 'another stands');
	any("SELECT leader_election.release('$e', 1)");
	is(acquire($e, 'd1'), '', 'who released sits out');
	is(acquire($e, 'd2'), 2, 'for the other');
	any("SELECT leader_election.request_yield('$e')");
	announced($e, 'yield_requested', 2);
	any("SELECT leader_election.release('$e', 2)");
	is(acquire($e, 'd2'), '', 'who yielded sits out');
	is(acquire($e, 'd1'), 3, 'for the one that did before');
	any("SELECT leader_election.leave('$e', 'd2')");
	any("SELECT leader_election.release('$e', 3)");
	is(acquire($e, 'd1'), 4, 'but not if nobody else stands');
	any("SELECT leader_election.release('$e', 4)");
}

# -- Nobody transfers to itself.

is(acquire('itself', 'd1'), 1, 'itself: leads');
any("SELECT leader_election.transfer('itself', 1, 'd1')");
is($pool[0]->sqlstate, '22023', 'itself: refused');
is(renew('itself', 1), 1, 'itself: leads on');

# -- A session leader is terminated: nobody has to wait.

{
	my ($clock, $winner, $term);

	foreach ([ 'ended', 'd', '' ], [ 'ended for', 'd', "to_candidate => 'd'," ])
	{
		my ($e, $name, $to) = @$_;
		my $victim = session($node, name => 'victim');

		is(joins($victim, $e), 1, "$e: a session leads");
		is(acquire($e, $name), '', "$e: a detached candidate waits");
		is(joins($four, $e), '', "$e: and a session") unless $to eq '';
		$clock = $control->query('SELECT leader_election.monotonic_clock()');
		any("SELECT leader_election.request_yield('$e', $to"
			  . ' terminate => true)');
		($winner, $term) = acquire_in_turn($e, $name);
		is($term, 2, "$e: which leads");
		cmp_ok(lease($e)->{acquired_mono} - $clock,
			'<', $SOON, "$e: without waiting for the lease to end");
		$victim->query('SELECT 1');
		like(
			$victim->errors,
			qr/terminating connection due to administrator command/,
			"$e: it was ended");
		is(history($e), 'victim session ended, d ', "$e: history");
	}
	{
		my $e = 'ended for session';
		my $victim = session($node, name => 'victim');

		is(joins($victim, $e), 1, "$e: a session leads");
		is(joins($_, $e), '', "$e: another waits") foreach $two, $four;
		$clock = $control->query('SELECT leader_election.monotonic_clock()');
		any("SELECT leader_election.request_yield('$e', 'four', true)");
		elected_at_ok($e, 2, $clock, $e);
		is($four->query("SELECT leader_election.term('$e')"),
			2, "$e: the one named leads");
		$victim->kill;
	}
}

# -- Whatever takes its time, all at once.

{
	my (%before, %after, $clock, $new, $row);
	my ($winner, $term);

	$new = session($node, name => 'new');

	# A detached leader does not call any more, a session waits.
	is(acquire('expires', 'd'), 1, 'expiry: leads');
	is(renew('expires', 1), 1, 'expiry: renews, and no more after that');
	$before{expires} = lease('expires');
	is(joins($one, 'expires'), '', 'expiry: a session waits');
	is(acquire('expires alone', 'd'), 1, 'expiry alone: leads');

	# A detached leader is asked to yield, and is terminated as far as it goes.
	foreach my $e ('yields', 'is terminated')
	{
		my $terminate = $e eq 'yields' ? 'false' : 'true';

		is(acquire($e, 'd'), 1, "$e: leads");
		is(joins($one, $e), '', "$e: a session waits");
		$before{$e} = lease($e);
		cmp_ok(
			any("SELECT extract(epoch FROM leader_election.request_yield('$e',"
				  . " terminate => $terminate)) * 1000000"),
			'<=',
			$LEASE,
			"$e: how long it may take");
		$row = any("SELECT r.term, r.expires_at, r.yielding,"
			  . " r.remaining_ms BETWEEN 1 AND $LEASE / 1000"
			  . " FROM leader_election.renew('$e', 1) r");
		is($row, "1|$before{$e}{expires_at}|t|t",
			"$e: it is not renewed any more, and told so");
		is(lease($e)->{deadline_mono},
			$before{$e}{deadline_mono}, "$e: its deadline stays");
	}

	# A session leader is asked to yield to a detached candidate, and leads as
	# long as it can.
	is(joins($three, 'clings'), 1, 'clings: leads');
	is(joins($two, 'clings'), '', 'clings: a session waits');
	is(acquire('clings', $_), '', "clings: $_ waits") foreach 'd1', 'd2';
	$three->query_async(
		q{DO $$ DECLARE now bigint; last_true bigint; BEGIN
			LOOP
				now := leader_election.monotonic_clock();
				EXIT WHEN NOT leader_election.is_leader('clings');
				last_true := now;
			END LOOP;
			RAISE WARNING 'last true: %', last_true;
		END $$});
	$before{clings} = lease('clings');
	any("SELECT leader_election.request_yield('clings', 'd2')");
	$after{clings} = lease('clings');
	cmp_ok(
		$after{clings}{deadline_mono},
		'>=',
		$before{clings}{deadline_mono},
		'clings: its lease is not made shorter');

	# A seat is reserved for one that lives (a sign of life counts for 4/3 of
	# a lease, the reservation for one; the only call that gives another sign
	# would be granted the seat) ...
	is(joins($one, 'reserved'), 1, 'reserved: leads');
	is(joins($two, 'reserved'), '', 'reserved: a session waits');
	is(acquire('reserved', 'd'), '', 'reserved: so does another');
	$before{alive} =
	  row('candidate', "election = 'reserved' AND kind = 'detached'",
		'seen_mono + seen_for AS until');
	is($one->query("SELECT leader_election.transfer('reserved', 'd')"),
		't', 'reserved: transfer');
	$one->query("SELECT leader_election.leave('reserved')");
	$before{reserved} = lease('reserved');
	is(joins($new, 'reserved'), '', 'reserved: not for a new session');
	is(joins($two, 'reserved'), '', 'reserved: nor for one that waits');
	is(acquire('reserved', 'other'),
		'', 'reserved: nor for another detached candidate');
	is(state_of('reserved'), 'vacant|reserved for d', 'reserved: but for one');
	is( $new->query("SELECT leader_election.leave('reserved')"),
		't', 'reserved: who may leave again');

	# ... or dies, because that was long ago.
	is(joins($one, 'deserted'), 1, 'deserted: leads');
	is(joins($two, 'deserted'), '', 'deserted: a session waits');
	is(acquire('deserted', 'd'), '', 'deserted: so does another');
	$before{deserted} =
	  row('candidate', "election = 'deserted' AND kind = 'detached'",
		qw(seen_mono seen_for));
	is($before{deserted}{seen_for},
		int($LEASE / 3) * 4, 'deserted: which lives for 4/3 of a lease');

	# Released at once, but not to be had before its time
	is(joins($four, 'hold'), 1, 'hold: leads');
	is(joins($two, 'hold'), '', 'hold: a session waits');
	$before{hold} = lease('hold');
	is( $four->query("SELECT leader_election.resign('hold', '1500 ms')"),
		't', 'hold: resign');
	is(acquire('hold d', 'd1'), 1, 'hold, detached: leads');
	is(acquire('hold d', 'd2'), '', 'hold, detached: another waits');
	$before{'hold d'} = lease('hold d');
	is( any("SELECT leader_election.release('hold d', 1, '2500 ms')"),
		't', 'hold, detached: release');
	foreach my $e ('hold', 'hold d')
	{
		is(state_of($e), 'vacant|hold', "$e: it is free at once");
		ok(!holds($e, 1), "$e: nobody leads");
		is( any("SELECT leader_election.leader('$e')"),
			'', "$e: anybody can tell");
		is(acquire($e, 'd3'), '', "$e: nobody gets it");
	}
	ok(!leads($four, 'hold'), 'hold: says the one that had it');
	is($four->query("SELECT leader_election.leave('hold')"), 't', 'leave');

	wait_for_clock($before{deserted}{seen_mono} + $LEASE * 2 / 3);
	is($one->query("SELECT leader_election.transfer('deserted', 'd')"),
		't', 'deserted: transfer');
	$one->query("SELECT leader_election.leave('deserted')");
	$after{deserted} = lease('deserted');
	is($after{deserted}{leader}, '', 'deserted: vacant');
	is($after{deserted}{successor}, 'd', 'deserted: reserved');
	is(acquire('deserted', 'other'), '', 'deserted: for nobody else');

	# The deadlines, as they come: nobody was early.
	($winner, $term) = acquire_in_turn('clings', 'd1', 'd2');
	is($winner, 'd2', 'clings: the one it was asked to yield to leads');
	elected_at_ok('clings', 2, $after{clings}{deadline_mono}, 'clings');
	$three->result;
	$three->errors =~ /last true: (\d+)/;
	cmp_ok($1, '<', $after{clings}{deadline_mono},
		'clings: its leader knew when it was over');
	cmp_ok($1, '>', $after{clings}{deadline_mono} - $SOON,
		'clings: and not long before');
	ok(!leads($two, 'clings'), 'clings: the waiting session does not lead');
	is(history('clings'), 'three yielded, d2 ', 'clings: history');

	elected_at_ok('hold', 2, $before{hold}{acquired_mono} + 1_500_000, 'hold');
	ok(leads($two, 'hold'), 'hold: the waiting session leads');
	is(history('hold'), 'four resigned, two ', 'hold: history');

	foreach my $e ('yields', 'is terminated')
	{
		elected_at_ok($e, 2, $before{$e}{deadline_mono}, $e);
		ok(leads($one, $e), "$e: the waiting session leads");
		is(renew($e, 1), '', "$e: the lease cannot be renewed");
		is(history($e), 'd yielded, one ', "$e: history");
		is(acquire($e, 'd'), '', "$e: stands again");
	}

	elected_at_ok('expires', 2, $before{expires}{deadline_mono}, 'expiry');
	ok(leads($one, 'expires'), 'expiry: the waiting session leads');
	is(history('expires'), 'd expired, one ', 'expiry: history');
	is( $control->query(
			"SELECT ended_at >= acquired_at + $LEASE * interval '1 us'"
			  . " FROM leader_election.history WHERE election = 'expires'"
			  . ' AND term = 1'),
		't',
		'expiry: the same by the clock on the wall');
	is(renew('expires', 1), '', 'expiry: the lease cannot be renewed');

	wait_until(sub { !holds('expires alone', 1) }, 'the end of a lease');
	is(renew('expires alone', 1), '', 'expiry alone: nor with nobody else');
	is(acquire('expires alone', 'd'), 2, 'expiry alone: it is granted anew');
	is(renew('expires alone', 2), 2, 'expiry alone: and renewed');
	is(renew('expires alone', 1), '', 'expiry alone: by its new term');
	is(history('expires alone'), 'd expired, d ', 'expiry alone: history');

	is((acquire_in_turn('hold d', 'd2', 'd1'))[1],
		2, 'hold, detached: another leads');
	elected_at_ok('hold d', 2,
		$before{'hold d'}{acquired_mono} + 2_500_000,
		'hold, detached');

	# The seats that were reserved in vain
	$row = elected_at_ok('reserved', 2, $before{reserved}{reserved_mono},
		'reserved');
	ok(leads($two, 'reserved'), 'reserved: then the waiting session leads');
	cmp_ok((values %{ $before{alive} })[0],
		'>', $row->{acquired_mono}, 'reserved: although the other is alive');
	is(acquire('reserved', 'd'), '', 'reserved: it comes too late');
	is(history('reserved'), 'one transferred, two ', 'reserved: history');

	$row = elected_at_ok('deserted', 2,
		$before{deserted}{seen_mono} + $before{deserted}{seen_for},
		'deserted');
	ok(leads($two, 'deserted'), 'deserted: then the waiting session leads');
	cmp_ok($row->{acquired_mono}, '<', $after{deserted}{reserved_mono},
		'deserted: for the reservation is not over, but the candidate');
	is(history('deserted'), 'one transferred, two ', 'deserted: history');

	# It leaves: the seat is free at once.
	$clock = $control->query('SELECT leader_election.monotonic_clock()');
	is(acquire('reserved', 'd'), '', 'reserved again');
	joins($four, 'reserved');
	is($two->query("SELECT leader_election.transfer('reserved', 'd')"),
		't', 'reserved again: transfer');
	is( any("SELECT leader_election.leave('reserved', 'd')"),
		't', 'reserved again: it leaves');
	elected_at_ok('reserved', 3, $clock, 'reserved again');
}

# -- The worker is of no account: it is stopped, and terminated.

{
	my (%before, $pid, $renewed);

	foreach my $e ('stopped', 'stopped alone', 'stopped renews')
	{
		is(acquire($e, 'd'), 1, "$e: leads");
		$before{$e} = lease($e);
	}
	is(acquire('stopped calls', 'd1'), 1, 'stopped calls: leads');
	is(joins($two, 'stopped calls'), '', 'stopped calls: a session waits');
	$three->query_async("CALL leader_election.campaign('stopped', 'three')");
	wait_for($node, 'SELECT candidates FROM leader_election.status'
		  . " WHERE election = 'stopped'", 2);
	$pid = stop_worker();
	wait_until(
		sub {
			$renewed = renew('stopped renews', 1);
			return $three->finished || $renewed eq '';
		},
		'the poll');
	is($three->result, 2, 'worker stopped: a poll elects');
	elected_at_ok('stopped', 2, $before{stopped}{deadline_mono},
		'worker stopped');
	wait_until(sub { !holds('stopped alone', 1) }, 'the end of a lease');
	is($control->query($WORKER_PID), $pid, 'worker stopped: there is no other');
	is(lease('stopped alone')->{leader},
		'd', 'worker stopped: nobody has touched a lease that is over');
	is(renew('stopped alone', 1),
		'', 'worker stopped: but it is over all the same');
	is( any("SELECT leader_election.release('stopped alone', 1)"),
		'f', 'worker stopped: and cannot be given back');
	is(acquire('stopped alone', 'd'), 2, 'worker stopped: but granted anew');
	is(renew('stopped alone', 1), '', 'worker stopped: in another term');
	is(renew('stopped renews', 1),
		1, 'worker stopped: who renews needs no worker');
	wait_until(sub { !holds('stopped calls', 1) }, 'the end of a lease');
	is(acquire('stopped calls', 'd2'),
		'', 'worker stopped: a detached candidate calls');
	is($two->query("SELECT leader_election.term('stopped calls')"),
		2, 'worker stopped: which elects the session that stands');
	is(history('stopped alone'), 'd expired, d ', 'worker stopped: history');
	kill 'CONT', $pid;

	foreach my $e ('gone', 'gone alone', 'gone campaign')
	{
		is(acquire($e, 'd'), 1, "$e: leads");
		$before{$e} = lease($e);
	}
	is(joins($four, 'gone'), '', 'worker gone: a session waits');

	# Whoever calls brings the worker back: only observers do not.
	$pid = $control->query($WORKER_PID);
	$control->query("SELECT pg_terminate_backend($pid)");
	wait_for($node, $NO_WORKER);
	wait_until(sub { !holds('gone', 1) }, 'the end of a lease');
	ok(!leads($four, 'gone'), 'worker gone: nobody is elected');
	is(lease('gone')->{leader}, 'd', 'worker gone: nor is the lease touched');
	is($control->query($NO_WORKER), 't', 'worker gone: it is gone');
	is(joins($four, 'gone'), 2,
		'worker gone: the first poll elects (client-go#448)');
	cmp_ok(lease('gone')->{acquired_mono},
		'>=', $before{gone}{deadline_mono}, 'worker gone: not early');
	is(history('gone'), 'd expired, four ', 'worker gone: history');
	wait_until(sub { !holds('gone alone', 1) }, 'the end of a lease');
	is(renew('gone alone', 1), '', 'worker gone: a lease is over all the same');
	is(acquire('gone alone', 'd'), 2,
		'worker gone: but granted anew (client-go#448)');

	is(acquire('gone poll', 'd'), 1, 'worker gone once more: leads');
	$before{'gone poll'} = lease('gone poll');
	$three->query_async("CALL leader_election.campaign('gone poll', 'three')");
	wait_for($node, 'SELECT candidates FROM leader_election.status'
		  . " WHERE election = 'gone poll'", 2);
	$pid = $control->query($WORKER_PID);
	$control->query("SELECT pg_terminate_backend($pid)");
	elected_at_ok('gone poll', 2, $before{'gone poll'}{deadline_mono},
		'worker gone once more');
	is($three->result, 2, 'worker gone once more: a waiting campaign leads');
}

# -- A contest of both kinds, with an operator who interferes.

my $CONTENDERS = <<'END';
CREATE PROCEDURE note(e text, me text, t bigint, first_after bigint,
	last_before bigint)
LANGUAGE sql AS $$
	INSERT INTO stint SELECT e, me, t, first_after, last_before
	WHERE first_after IS NOT NULL
$$;
CREATE PROCEDURE contend_as_session(e text, me text)
LANGUAGE plpgsql AS $$
DECLARE
	mine bigint;
	seen bigint;
	clock_before bigint;
	first_after bigint;
	last_before bigint;
	give_up_at timestamptz;
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop WHERE what = e) LOOP
		CALL leader_election.campaign(e, me, '200 ms', term => mine);
		CONTINUE WHEN mine IS NULL;
		first_after := NULL;
		give_up_at := clock_timestamp() + random() * interval '50 ms';
		LOOP
			clock_before := leader_election.monotonic_clock();
			seen := leader_election.term(e);
			EXIT WHEN seen IS DISTINCT FROM mine;
			first_after := coalesce(first_after,
				leader_election.monotonic_clock());
			last_before := clock_before;
			EXIT WHEN clock_timestamp() > give_up_at;
			PERFORM pg_sleep(0.002);
		END LOOP;
		CALL note(e, me, mine, first_after, last_before);
		-- Detached candidates are elected where no session stands.
		IF random() < 0.5 THEN
			PERFORM leader_election.resign(e);
		ELSE
			PERFORM leader_election.leave(e);
			COMMIT;
			PERFORM pg_sleep(random() * 0.2);
		END IF;
		COMMIT;
	END LOOP;
	PERFORM leader_election.leave(e);
END $$;
CREATE PROCEDURE contend_detached(e text, me text)
LANGUAGE plpgsql AS $$
DECLARE
	mine bigint;
	clock_before bigint;
	first_after bigint;
	last_before bigint;
	give_up_at timestamptz;
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop WHERE what = e) LOOP
		mine := NULL;
		SELECT term INTO mine FROM leader_election.acquire(e, me);
		COMMIT;
		IF mine IS NULL THEN
			PERFORM pg_sleep(0.002);
			CONTINUE;
		END IF;
		first_after := NULL;
		give_up_at := clock_timestamp() + random() * interval '50 ms';
		LOOP
			clock_before := leader_election.monotonic_clock();
			EXIT WHEN NOT leader_election.is_leader(e, mine);
			first_after := coalesce(first_after,
				leader_election.monotonic_clock());
			last_before := clock_before;
			EXIT WHEN clock_timestamp() > give_up_at;
			PERFORM leader_election.renew(e, mine);
			COMMIT;
			PERFORM pg_sleep(0.002);
		END LOOP;
		CALL note(e, me, mine, first_after, last_before);
		-- Now and then it is forgotten, and runs out.
		IF random() < 0.8 THEN
			PERFORM leader_election.release(e, mine);
		END IF;
		COMMIT;
	END LOOP;
END $$;
END

{
	my $e = 'contest';
	my @contenders;
	my $refused = 0;
	my $reasons = '';
	my $start = time;
	my %expected = map { $_ => 1 } qw(00000 22023 LE005);

	create_election($e, 300_000);
	$control->query($CONTENDERS);
	foreach my $name (qw(s1 s2 d1 d2))
	{
		my $kind = $name =~ /^s/ ? 'as_session' : 'detached';
		my $s = session($node, name => $name);

		$s->query_async("CALL contend_$kind('$e', '$name')");
		push @contenders, $s;
	}
	until (time - $start > 3
		  && $reasons eq 'expired, resigned, transferred, yielded')
	{
		last if time - $start > 30;
		my $now = lease($e);
		my $name = (qw(s1 s2 d1 d2))[ rand 4 ];
		my $sql =
		  rand() < 0.5 && $now->{kind} eq 'detached'
		  ? "transfer('$e', $now->{term}, '$name')"
		  : "request_yield('$e'" . (rand() < 0.5 ? ", '$name')" : ')');

		any("SELECT leader_election.$sql");
		$refused++ unless $expected{ $pool[0]->sqlstate };

		# Now and then they are left alone: what is forgotten runs out.
		sleep(rand() < 0.05 ? 0.7 : 0.02);
		$reasons = $control->query(
			"SELECT string_agg(DISTINCT reason, ', ' ORDER BY reason)"
			  . " FROM leader_election.history WHERE election = '$e'"
			  . " AND reason <> 'left'");
	}
	$control->query("INSERT INTO stop VALUES ('$e')");
	foreach my $s (@contenders)
	{
		$s->result(20);
		is($s->sqlstate, '00000', "contest: $s->{name} saw no error");
		$s->finish;
	}
	is($refused, 0, 'contest: nor did the operator');
	is( $control->query(
			"SELECT string_agg(DISTINCT watcher, ',' ORDER BY watcher),"
			  . " count(*) > 20 FROM stint WHERE election = '$e'"),
		'd1,d2,s1,s2|t',
		'contest: all of them led');
	is($reasons, 'expired, resigned, transferred, yielded',
		'contest: and lost it in all ways');
	is( $control->query(
			"SELECT min(term), max(term) - count(*),"
			  . ' count(*) FILTER (WHERE next < ended_at OR'
			  . ' (next IS NOT NULL AND ended_at IS NULL))'
			  . ' FROM (SELECT *, lead(acquired_at) OVER (ORDER BY term) AS next'
			  . " FROM leader_election.history WHERE election = '$e') h"),
		'1|0|0',
		'contest: each term ended before the next began');
}

$control->query("INSERT INTO stop VALUES ('watch')");
foreach my $s (@watchers)
{
	$s->result;
	is($s->sqlstate, '00000', "$s->{name} saw no error");
	$s->finish;
}
cmp_ok($control->query('SELECT count(*) FROM stint'),
	'>', 60, 'the watchers have seen something');
is($control->query($TWO_LEADERS), '', 'there were never two leaders');
announcements_ok('takeovers');
is( $control->query(
		"SELECT p->>'election', p->>'term', p->>'leader', p->>'successor',"
		  . " p ? 'successor', p->>'previous', p->>'reason'"
		  . " FROM payload WHERE p->>'event' = 'yield_requested'"
		  . " AND p->>'election' <> 'contest' AND p->>'election' !~ '^ended'"
		  . " ORDER BY 1, (p->>'term')::bigint"),
	join("\n",
		'chain|5|two|d2|t||', 'chain|6|d2|d1|t||',
		'chain|7|d1|two|t||', 'clings|1|three|d2|t||',
		'is terminated|1|d||f||',
		'sits out|2|d2||f||', 'yields|1|d||f||'),
	'and each request to yield, but for those that ended the term at once');
$_->finish foreach $one, $two, $three, $four;

# -- Tables that somebody has locked do not cost a detached leader its lease.

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
		$start = time;
		$callers[$_]->query_async("SELECT $calls[$_]") foreach 0 .. $#calls;

		# For longer than its lease would last
		while ($control->query('SELECT leader_election.monotonic_clock()') <=
			$deadline)
		{
			my $sent = time;

			$lost++ if renew($e, 1) ne '1';
			$slowest = time - $sent if time - $sent > $slowest;
			foreach my $i (0 .. $#calls)
			{
				$took[$i] //= time - $start if $callers[$i]->finished;
			}
			sleep(0.05);
		}
		is($lost, 0, "$e: each renewal is granted");
		cmp_ok($slowest, '<', 0.8, "$e: without a wait");
		ok(holds($e, 1), "$e: it leads");
		foreach my $i (0 .. $#calls)
		{
			$callers[$i]->result;
			is($callers[$i]->sqlstate, '55P03', "$e: $calls[$i]");
			cmp_ok($took[$i] // 99, '<', 1.9, "$e: after a second");
		}
		$locker->query('ROLLBACK');
		is(renew($e, 1), 1, "$e: it leads on");
		is(acquire($e, 'd2'), '', "$e: and the other follows");
	}

	# The one table that it cannot do without
	is(acquire('lease locked', 'd1'), 1, 'lease locked: leads');
	$locker->query('BEGIN; LOCK TABLE leader_election.lease');
	$start = time;
	renew('lease locked', 1);
	is($pool[0]->sqlstate, '55P03', 'lease locked: busy, and not over');
	cmp_ok(time - $start, '<', 1.8, 'lease locked: after a second');
	ok(!holds('lease locked', 1), 'lease locked: nobody can tell who leads');
	is($pool[0]->sqlstate, '00000', 'lease locked: which is no error');
	$locker->query('ROLLBACK');
	is(renew('lease locked', 1), 1, 'lease locked: it leads on');
	$_->finish foreach $locker, @callers;
}

# -- Candidates are in nobody's way but in the line: whoever stands and calls
# while others elect is told yes or no, soon.

{
	my @callers = map { session($node, name => "d$_") } 1 .. 4;
	my $pid;

	# They let the lease run out again and again, and write their rows each time.
	create_election('crowd', 100_000);
	$control->query('CREATE TABLE took (us bigint)');
	acquire('crowd', 'd0');
	$pid = stop_worker();
	foreach my $s (@callers)
	{
		$s->query_async(
			qq{DO \$\$
			DECLARE
				until bigint := leader_election.monotonic_clock() + 3000000;
				sent bigint := 0;
				longest bigint := 0;
			BEGIN
				WHILE sent < until LOOP
					sent := leader_election.monotonic_clock();
					PERFORM * FROM leader_election.acquire('crowd',
						'$s->{name}', progress => sent);
					COMMIT;
					longest := greatest(longest,
						leader_election.monotonic_clock() - sent);
				END LOOP;
				INSERT INTO took VALUES (longest);
			END \$\$});
	}
	foreach my $s (@callers)
	{
		$s->result;
		is($s->sqlstate, '00000', "crowd: $s->{name} saw no error");
		$s->finish;
	}
	cmp_ok($control->query('SELECT coalesce(max(us), 0) FROM took'),
		'<', 700_000, 'crowd: nor had anybody to wait long');
	cmp_ok(lease('crowd')->{term}, '>', 10, 'crowd: while terms went by');
	kill 'CONT', $pid;
}

# -- What the worker has to do with detached candidates: little, and it ends
# when they are dead. In a database of its own.

# How often a process has waited, and the processor seconds that it has used.
# (In a second, that is: a worker that looks every 10 ms is busy.)
sub efforts
{
	my ($pid) = @_;
	my ($waits) =
	  slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m;
	my @stat = split / /, slurp_file("/proc/$pid/stat") =~ s/^.*\) //sr;

	return ($waits, ($stat[11] + $stat[12]) / 100);
}

{
	my ($s, $locker);

	# Does the worker sleep while things are like this?
	my $is_calm = sub {
		my ($name) = @_;
		my $pid = $s->query($WORKER_PID);

	  SKIP:
		{
			skip 'needs /proc', 3 unless -e "/proc/$pid/status";
			my @before = efforts($pid);
			$s->query('SELECT pg_sleep(1)');
			is($s->query($WORKER_PID), $pid, "$name: the worker is there");
			my @after = efforts($pid);
			cmp_ok($after[0] - $before[0], '<', 15, "$name: it sleeps");
			cmp_ok($after[1] - $before[1], '<', 0.2, "$name: and does little");
		}
	};

	$control->query('CREATE DATABASE other');
	$s = session($node, name => 'in other', dbname => 'other');
	$s->query('CREATE EXTENSION leader_election');
	$s->query("SELECT * FROM leader_election.acquire('vacant', 'd1')");
	$s->query("SELECT * FROM leader_election.acquire('vacant', 'd2')");
	$s->query("SELECT leader_election.release('vacant', 1)");
	is( $s->query('SELECT state, waiting_for, candidates'
			  . ' FROM leader_election.status'),
		'vacant|acquire()|2',
		'idle: vacant, with detached candidates only');
	$is_calm->('vacant');
	$s->query("SELECT leader_election.leave('vacant', '$_')")
	  foreach 'd1', 'd2';
	wait_for($node, $NO_WORKER, 't', 5, 'other');
	pass('nobody stands: the worker ends');

	# One that has died, whose row somebody sits on
	$locker = session($node, name => 'locker', dbname => 'other');
	is( $s->query("SELECT term FROM leader_election.acquire('dies', 'd')"),
		1, 'dead: leads');
	$locker->query(
		'BEGIN; SELECT FROM leader_election.candidate FOR UPDATE');
	wait_for($node, 'SELECT NOT alive FROM leader_election.candidates',
		't', undef, 'other');
	$is_calm->('dead, and its row locked');
	$locker->query('ROLLBACK');
	wait_for($node, $NO_WORKER, 't', 5, 'other');
	is( $s->query('SELECT count(*) FROM leader_election.candidate'),
		0, 'dead: its row is removed, and the worker ends');
	is( $s->query(
			"SELECT reason FROM leader_election.history WHERE election = 'dies'"),
		'expired',
		'dead: and its term is over');
	$_->finish foreach $s, $locker;
}

# -- The end of the server: a detached leader leads on.

{
	my $e = 'crash';
	my $lease = 30_000_000;
	my ($app, $stranger, $offset, $deadline, $witness);

	# Longer than a page, so that it is stored out of line
	my $metadata = "(SELECT jsonb_agg(md5(i::text)) FROM generate_series(1, 227) i)";
	my $profile = "SELECT rank, progress, metadata = $metadata, kind, role"
	  . " FROM leader_election.candidate WHERE election = '$e'"
	  . " AND candidate = 'd'";

	my $connect = sub {
		wait_for($node, 'SELECT true');
		connect_all();
		$app = session($node, name => 'app', user => 'app');
		$stranger = session($node, name => 'stranger', user => 'stranger');
	};
	my $processes = sub {
		return (
			(slurp_file($node->data_dir . '/postmaster.pid') =~ /\A(\d+)/),
			$control->query('SELECT pid FROM pg_catalog.pg_stat_activity'));
	};
	my $lose = sub {
		$_->kill foreach $control, @pool, $app, $stranger;
	};
	my %crashes = (
		'1 a backend killed' => sub {
			kill 'KILL', $stranger->backend_pid;
			wait_until(sub { $control->sqlstate_of('SELECT 1') eq '08006' },
				'the crash');
			$lose->();
		},
		'2 the worker killed' => sub {
			kill 'KILL', $control->query($WORKER_PID);
			wait_until(sub { $control->sqlstate_of('SELECT 1') eq '08006' },
				'the crash');
			$lose->();
		},
		'3 the postmaster killed' => sub {
			my @pids = $processes->();

			$node->kill9;
			$lose->();
			wait_until(sub { !kill(0, @pids) }, 'the end of all processes');
			$node->start;
		},
		'4 an immediate stop' => sub {
			$node->stop('immediate');
			$lose->();
			$node->start;
		});

	create_election($e, $lease);
	$control->query(
		'CREATE ROLE app LOGIN; CREATE ROLE stranger LOGIN;'
		  . ' GRANT USAGE ON SCHEMA leader_election TO app, stranger;'
		  . ' GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election'
		  . ' TO app, stranger');
	$_->finish foreach $control, @pool, $observer;
	$connect->();
	is( $app->query("SELECT term FROM leader_election.acquire('$e', 'd',"
			  . " rank => 7, progress => 3, metadata => $metadata)"),
		1,
		'crash: leads');
	foreach my $crash (sort keys %crashes)
	{
		my ($progress, $name) = $crash =~ /(\d) (.*)/;

		# What was told is on disk, whatever the session says.
		$app->query('SET synchronous_commit = off');
		is( $app->query("SELECT term FROM leader_election.renew('$e', 1,"
				  . " 10 + $progress)"),
			1,
			"$name: renewed");
		$deadline = lease($e)->{deadline_mono};
		is( $control->query($profile),
			'7|1' . $progress . '|t|detached|app',
			"$name: what it said of itself");
		$crashes{$crash}->();
		$connect->();
		is( $control->query('SELECT count(*) FROM leader_election.candidate'),
			0, "$name: no candidate is left");
		is( $control->query("SELECT leader_election.leader('$e')"),
			'd', "$name: it leads all the same");
		ok(holds($e, 1), "$name: in its term");
		is(lease($e)->{deadline_mono}, $deadline, "$name: as long as it was");
		is($control->query($NO_WORKER), 't', "$name: without a worker");

		# Its name is its own, though its row is gone.
		is( $stranger->sqlstate_of(
				"SELECT leader_election.acquire('$e', 'd')"),
			'LE004',
			"$name: another role cannot have its name");
		is($_->sqlstate_of("SELECT leader_election.join('$e', 'd')"),
			'LE004', "$name: nor a session")
		  foreach $stranger, $app;
		is( $stranger->sqlstate_of(
				"SELECT leader_election.renew('$e', 1)"),
			'42501',
			"$name: nor its lease");
		is( $stranger->query("SELECT leader_election.acquire('$e', 's')"),
			'', "$name: nobody else is granted it");
		is( $app->query("SELECT term FROM leader_election.renew('$e', 1)"),
			1, "$name: it renews");
		is( $control->query($profile),
			'7|1' . $progress . '|t|detached|app',
			"$name: and stands again as it did");
		is( $control->query(
				'SELECT count(*) FILTER (WHERE leads) FROM'
				  . " leader_election.candidates WHERE election = '$e'"),
			1,
			"$name: seen by all");
		wait_for($node, "SELECT count(*) = 1 FROM $WORKERS");
	}
	is(history($e), 'd ', 'crash: one term through it all');
	is( $control->query('SELECT count(*), max(epoch) FROM leader_election.epoch'),
		'1|0',
		'crash: and one incarnation');
	$lose->();
	$node->stop;
}

# -- A server whose WAL nobody else writes

$node = new_server(
	name => 'quiet',
	config => q(
leader_election.lease_duration = '1h'
wal_level = minimal
max_wal_senders = 0
autovacuum = off
checkpoint_timeout = 1h
client_min_messages = warning
));
connect_all();

# -- Whoever loses, and whoever looks, writes nothing.

# The versions of the rows of lease and of what may refer to them, none of
# which is replaced or locked, what the server counts of these tables (aborted
# or not), the next transaction and the end of the WAL. (Reading prunes pages,
# so that it comes first.)
sub written
{
	$_->query('SELECT pg_stat_force_next_flush()') foreach $control, @pool;
	return $control->query(
		q{SELECT ctid, xmin, xmax, term, deadline_mono FROM leader_election.lease ORDER BY election;
		  SELECT ctid, xmin, xmax, seen_mono FROM leader_election.candidate ORDER BY election, candidate;
		  SELECT relname, n_tup_ins, n_tup_upd, n_tup_del, n_dead_tup, pg_relation_size(relid)
			FROM pg_stat_user_tables ORDER BY relname;
		  SELECT pg_snapshot_xmax(pg_current_snapshot());
		  SELECT pg_current_wal_insert_lsn()});
}

{
	my $leader = session($node, name => 'leader');
	my $before;
	my %calls = (
		'losing acquire()' =>
		  "* FROM leader_election.acquire('detached', 'd2')",
		'losing acquire(), saying what is known' =>
		  "* FROM leader_election.acquire('detached', 'd2', 0, 0)",
		'acquire() of a namesake' =>
		  "* FROM leader_election.acquire('detached', 'd1')",
		'losing acquire() against a session' =>
		  "* FROM leader_election.acquire('session', 'd2')",
		'is_leader(), detached' =>
		  "leader_election.is_leader('detached', 1)",
		'is_leader(), session' => "leader_election.is_leader('session', 1)",
		'is_leader(), another term' =>
		  "leader_election.is_leader('detached', 2)",
		'is_leader(), no election' => "leader_election.is_leader('none', 1)",
		'acquire() during a hold' =>
		  "* FROM leader_election.acquire('hold', 'd2')",
		'acquire() of a seat that is reserved' =>
		  "* FROM leader_election.acquire('reserved', 'd2')",
		'renew() of another term' =>
		  "* FROM leader_election.renew('detached', 2)",
		'release() of another term' =>
		  "leader_election.release('detached', 2)");

	is(acquire('detached', 'd1'), 1, 'quiet: leads');
	$leader->query(
		"CALL leader_election.campaign('session', 'leader', auto_renew => false)"
	);
	ok(leads($leader, 'session'), 'quiet: so does a session, unrenewed');
	acquire('hold', 'd1');
	is( any("SELECT leader_election.release('hold', 1, '1 h')"),
		't', 'quiet: a hold');
	acquire('reserved', $_) foreach 'd1', 'd3';
	is( any("SELECT leader_election.transfer('reserved', 1, 'd3')"),
		't', 'quiet: a reservation');
	foreach my $round (1, 2)
	{
		foreach my $call (sort keys %calls)
		{
			my $times = $round == 1 ? 1 : 1000;

			# The first round reads what planning reads, and makes candidates.
			if ($round == 1)
			{
				written();
			}
			else
			{
				$before = written();
			}
			foreach my $s (@pool)
			{
				$s->query("DO \$\$ BEGIN FOR i IN 1 .. $times LOOP"
					  . " PERFORM $calls{$call}; COMMIT; END LOOP; END \$\$");
				is($s->sqlstate, '00000', "$call") if $round == 1;
			}
			is(written(), $before, "$call writes nothing (oban#651)")
				  if $round == 2;
		}
	}
	is( any("SELECT count(*), count(a.term),"
			  . ' bool_and(pg_current_xact_id_if_assigned() IS NULL)'
			  . ' FROM generate_series(1, 1000) LEFT JOIN LATERAL'
			  . " leader_election.acquire('detached', 'd2') a ON true"),
		'1000|0|t',
		'nor do a thousand in one statement');
	$leader->finish;
}

# -- A sign of life is written at most once in a third of a lease.

{
	my $third = 300_000;
	my $loop = q{
		CREATE TABLE IF NOT EXISTS seen (who text, mono bigint);
		DO $$
		DECLARE
			until bigint := leader_election.monotonic_clock() + 1300000;
		BEGIN
			WHILE leader_election.monotonic_clock() < until LOOP
				PERFORM * FROM %s;
				COMMIT;
				INSERT INTO seen SELECT '%2$s', seen_mono
					FROM leader_election.candidate
					WHERE election = 'life' AND candidate = '%2$s'
				EXCEPT TABLE seen;
				COMMIT;
			END LOOP;
		END $$};

	# A lease that is granted for an hour, and whose next one would be short
	is(acquire('life', 'd1'), 1, 'life: leads');
	is(acquire('life', 'd2'), '', 'life: another follows');
	$control->query('UPDATE leader_election.election SET lease_duration ='
		  . " '900 ms' WHERE election = 'life'");
	$control->query('CREATE TABLE seen (who text, mono bigint)');
	$pool[0]->query_async(
		sprintf $loop, "leader_election.acquire('life', 'd2')", 'd2');
	$pool[1]->query_async(
		sprintf $loop, "leader_election.renew('life', 1)", 'd1');
	foreach my $s (@pool[ 0, 1 ])
	{
		$s->result;
		is($s->sqlstate, '00000', 'life: no error');
	}
	is( $control->query(
			"SELECT who, count(*) BETWEEN 3 AND 6, min(pause) >= $third,"
			  . " percentile_disc(0.5) WITHIN GROUP (ORDER BY pause)"
			  . " < $third + 200000"
			  . ' FROM (SELECT who, mono - lag(mono)'
			  . ' OVER (PARTITION BY who ORDER BY mono) AS pause FROM seen) s'
			  . ' GROUP BY who ORDER BY who'),
		"d1|t|t|t\nd2|t|t|t",
		'life: a sign of it after a third of a lease, not before (oban#651)');
}

# -- What the session's transactions look like is of no account.

foreach my $isolation ('repeatable read', 'serializable')
{
	my $e = "iso $isolation";
	my $slow = session($node, name => 'slow');
	my $right =
	  "abs(extract(epoch FROM g.expires_at - clock_timestamp()) * 1000"
	  . ' - g.remaining_ms) < 300';
	my $asleep = "SELECT count(*) = 1 FROM pg_stat_activity"
	  . " WHERE application_name = 'slow' AND wait_event = 'PgSleep'";
	my $sleep = '(SELECT pg_sleep(0.5)::text OFFSET 0) s (s),';

	create_election($e, 3_000_000);
	$_->query("SET default_transaction_isolation = '$isolation'")
	  foreach $slow, @pool;
	is( any("SELECT g.term, g.remaining_ms BETWEEN 2500 AND 3000, $right,"
			  . " g.yielding FROM leader_election.acquire('$e', 'd') g"),
		'1|t|t|f',
		"$isolation: acquire");

	# The snapshot of each statement is older than what it finds. First, than
	# its own renewal, which counts from now and not from then.
	is( $slow->query("SELECT g.term, g.remaining_ms BETWEEN 2700 AND 3000,"
			  . " $right, g.yielding FROM $sleep"
			  . " LATERAL leader_election.renew('$e', 1 + length(s)) g"),
		'1|t|t|f',
		"$isolation: renew, late in a statement");

	# Then, than somebody else's renewal and request.
	$slow->query_async("SELECT g.term, g.expires_at, g.yielding,"
		  . " g.remaining_ms < 3000, $right FROM $sleep"
		  . " LATERAL leader_election.renew('$e', 1 + length(s)) g");
	wait_for($node, $asleep);
	is(renew($e, 1), 1, "$isolation: renewed elsewhere");
	any("SELECT leader_election.request_yield('$e')");
	is( $slow->result, '1|' . lease($e)->{expires_at} . '|t|t|t',
		"$isolation: renew knows what has happened since");

	# And than the next term.
	$slow->query_async("SELECT g.term FROM $sleep"
		  . " LATERAL leader_election.renew('$e', 1 + length(s)) g");
	wait_for($node, $asleep);
	is(any("SELECT leader_election.release('$e', 1)"), 't', 'released');
	is(acquire($e, 'd'), 2, "$isolation: another term");
	is($slow->result, '', "$isolation: the old one is over");
	is($slow->sqlstate, '00000', "$isolation: which is no error");

	$slow->query_async("SELECT s || leader_election.is_leader('$e', 3)"
		  . " || coalesce((SELECT g.term FROM leader_election.acquire('$e', 'x')"
		  . " g)::text, ' none') FROM $sleep (SELECT 1) one");
	wait_for($node, $asleep);
	is(any("SELECT leader_election.release('$e', 2)"), 't', 'released again');
	is(acquire($e, 'd'), 3, "$isolation: a third term");
	# Serializable transactions may conflict, as documented: then it is told so.
	my $told = $slow->result;
	is( $slow->sqlstate eq '40001' && $isolation eq 'serializable'
		? 'true none'
		: $told,
		'true none',
		"$isolation: a loser knows it");

	# In a transaction with a snapshot of long ago
	$slow->query('BEGIN');
	is($slow->query("SELECT leader_election.is_leader('$e', 3)"),
		't', "$isolation: is_leader in a transaction");
	is(any("SELECT leader_election.release('$e', 3)"), 't', 'released');
	is($slow->query("SELECT leader_election.is_leader('$e', 3)"),
		'f', "$isolation: knows the end of a term");
	is(acquire($e, 'x'), 4, "$isolation: a fourth term");
	is($slow->query("SELECT leader_election.is_leader('$e', 4)"),
		't', "$isolation: and the beginning of another");
	$slow->query('COMMIT');

	$slow->finish;
	$_->query('RESET default_transaction_isolation') foreach @pool;
	next if $isolation eq 'serializable';

	# Neither do they fail because others do the same.
	my @many = map { session($node, name => "many $_") } 1 .. 4;

	create_election("$e many", 3_000_000);
	create_election("$e $_->{name}", 3_000_000) foreach @many;
	foreach my $s (@many)
	{
		$s->query("SET default_transaction_isolation = '$isolation'");
		$s->query_async(
			qq{DO \$\$
			DECLARE
				until timestamptz := clock_timestamp() + '1 s';
				own bigint;
				mine bigint;
			BEGIN
				own := (SELECT term FROM
					leader_election.acquire('$e $s->{name}', 'own'));
				COMMIT;
				WHILE clock_timestamp() < until LOOP
					IF NOT EXISTS (SELECT FROM
						leader_election.renew('$e $s->{name}', own)) THEN
						RAISE 'lost';
					END IF;
					COMMIT;
					mine := (SELECT term FROM
						leader_election.acquire('$e many', '$s->{name}'));
					COMMIT;
					CONTINUE WHEN mine IS NULL;
					PERFORM * FROM leader_election.renew('$e many', mine);
					COMMIT;
					PERFORM leader_election.release('$e many', mine);
					COMMIT;
				END LOOP;
			END \$\$});
	}
	foreach my $s (@many)
	{
		$s->result;
		is($s->sqlstate, '00000', "$isolation: $s->{name} saw no error");
		$s->finish;
	}
	cmp_ok(lease("$e many")->{term}, '>', 20, "$isolation: many terms");
}

# -- After a failover, nothing is refused as over that may be led on: here of
# leases that this server seems never to have granted.

{
	foreach my $e ('foreign 1', 'foreign 2')
	{
		is(acquire($e, 'd1'), 1, "$e: leads");
		is(acquire($e, 'd2'), '', "$e: another follows");
	}
	$control->query("UPDATE leader_election.lease SET incarnation ="
		  . " 'other' WHERE election LIKE 'foreign _'");
	$control->query('UPDATE leader_election.epoch SET epoch = 1,'
		  . ' first_seen_mono = leader_election.monotonic_clock()');
	ok(!holds('foreign 1', 1), 'foreign: nobody leads');
	any("SELECT leader_election.transfer('foreign 1', 1, 'd2')");
	is($pool[0]->sqlstate, '55P03', 'foreign: no transfer for now');
	cmp_ok(renew('foreign 1', 1), '>', 1 << 22, 'foreign: its leader leads on');
	isnt( any("SELECT leader_election.release('foreign 2', 1)"),
		'f', 'foreign: releasing it is not refused as over');
}

$node->stop;
done_testing();
