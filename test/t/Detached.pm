# Helpers for the tests of detached candidates.
#
#	use Detached;
#
#	serve();
#	is(acquire('e', 'd1'), 1, 'leads');
#	is(renew('e', 1), 1, 'leads on');
#
# serve() starts the server $node, and sessions on it: $control, and @pool, which
# are the connections of detached candidates. Each call takes the next of them.
#
# Times are compared on the server's monotonic clock, in the rows: no election
# may be early by a microsecond, and none late by more than a busy machine is.

package Detached;

use strict;
use warnings;

use Announced;
use Exporter qw(import);
use LeaderElection;
use MachineTime;
use Test::More;
use Worker;

our @EXPORT = qw($LEASE $SOON $control $listener $node @pool acquire
  acquire_in_turn any connect_all create_election elected_at_ok history holds
  joins lease leads renew row serve state_of wait_for_clock watch_terms
  watched_ok);

# In microseconds; a slow machine takes longer for what is done within a lease
our $LEASE = 2_000_000 * slowness();
our $SOON = 1_000_000;

our ($node, $control, $listener, @pool);

my @watchers;

# Watches elections from aside, the way a client checks a term before it acts.
# Of each term it notes the clock twice: after the first call that said yes (at
# once), and before the last call that said yes (at the end).
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
			clock_before := leader_election._monotonic_clock();
			CONTINUE WHEN NOT leader_election.is_leader(l.election, l.t);
			clock_after := leader_election._monotonic_clock();
			key := l.election || '/' || l.t;
			IF NOT known ? key THEN
				INSERT INTO stint
					VALUES (l.election, me, l.t, clock_after, clock_before);
			END IF;
			known := known || jsonb_build_object(key, clock_before);
		END LOOP;
		COMMIT;
		PERFORM pg_sleep(0.005);
	END LOOP;
	UPDATE stint SET last_before = (known->>(election || '/' || term))::bigint
		WHERE watcher = me;
END $$;
END

# Two leaders at once would show as a term that was led after a later one was.
my $TWO_LEADERS = <<'END';
SELECT a.election, a.watcher, a.term, b.watcher, b.term
FROM stint a JOIN stint b USING (election)
WHERE a.term < b.term AND a.last_before > b.first_after
END

# A server. Options: those of new_server, by default a worker that ends soon, and
# nothing that could delay a call; lease: how long a lease is (an interval; $LEASE)
sub serve
{
	my (%opts) = @_;
	my $lease = delete $opts{lease} // "${LEASE}us";

	$opts{config} //= qq(
leader_election.lease_duration = '$lease'
leader_election.worker_idle_timeout = '300ms'
restart_after_crash = on
autovacuum = off
synchronous_commit = off
wal_writer_delay = '10s'
client_min_messages = warning
);
	$node = new_server(%opts);
	connect_all();
	return;
}

sub connect_all
{
	$control = session($node, name => 'control');
	@pool = map { session($node, name => "pooled $_") } 1 .. 3;
	return;
}

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

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(
		sub {
			$lease = lease($election);
			return $lease->{term} >= $term && $lease->{leader} ne '';
		},
		"term $term of $election");
	is($lease->{term}, $term, "$name: the next term");
	cmp_ok($lease->{acquired_mono}, '>=', $due, "$name: not early (G2)");
	cmp_ok($lease->{acquired_mono}, '<', $due + $SOON + held_up(), "$name: nor late");
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
			$control->query('SELECT leader_election._monotonic_clock()') >= $clock;
		},
		"the clock to be at $clock");
	return;
}

# Makes an election with a lease of its own, in microseconds. Not by rows: of an
# election that came so, listeners are told from the term on in which the worker sees
# it first.
sub create_election
{
	my ($election, $lease) = @_;

	$control->query("SELECT leader_election.create_election('$election',"
		  . " lease_duration => $lease * interval '1 us')");
	die $control->errors if $control->sqlstate ne '00000';
	return;
}

# From now on two sessions watch all elections, and $listener hears what is
# announced of them.
sub watch_terms
{
	$listener = Announced->new($node);
	$control->query($WATCHERS);
	@watchers = map { session($node, name => "watcher $_") } 1 .. 2;
	$_->query_async("CALL watch('$_->{name}')") foreach @watchers;
	create_election('watched', 60_000_000);
	watchers_look_ok('first');
	return;
}

# Both watchers see each of some terms that follow each other: a term ends when
# they have seen it, and its lease is longer than any machine takes for that.
sub watchers_look_ok
{
	my ($when) = @_;
	my $seen = "SELECT count(*) FROM stint WHERE election = 'watched'"
	  . ' AND term = ';
	my @names = ('x', 'y');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach (1 .. 5)
	{
		my $term = acquire('watched', $names[0]);

		wait_until(sub { $control->query($seen . $term) == @watchers },
			"the watchers to see term $term");
		any("SELECT leader_election.release('watched', $term)");
		any("SELECT leader_election.leave('watched', '$names[0]')");
		@names = reverse @names;
	}
	pass("the watchers look, $when");
	return;
}

# The watchers, who have looked from the first term to the last, never saw two
# leaders, and each change was announced.
sub watched_ok
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	watchers_look_ok('last');
	$control->query("INSERT INTO stop VALUES ('watch')");
	foreach my $s (@watchers)
	{
		$s->result;
		is($s->sqlstate, '00000', "$s->{name} saw no error");
		$s->finish;
	}
	is($control->query($TWO_LEADERS), '', 'there were never two leaders (G1)');
	$listener->all_told_ok('^(?!fence )', 'announced');
	return;
}

1;
