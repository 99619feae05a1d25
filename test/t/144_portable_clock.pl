# The portable edition trusts the server's wall clock, and its page says so. When that
# leaps forward
#
# - by more than an election's takeover_delay, two believe that they lead, until the
#   deadline that the first one was told: it is shown here, so that the page is true;
# - by no more than that, nobody else is elected before that deadline;
# - fenced writes are in order of their terms in both, whatever the clock does, also
#   those that are under way when it leaps, and in an old snapshot.
#
# A step back gives nobody more than a lease, and elects nobody.

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
my $LEASE = int(10_000 * slowness());	# in ms, where it has to run out
my $LONG = 600_000;						# in ms, where it must not: a leap of an hour is more
my $LATE = 20;							# seconds

my $node = new_server(start => 0, config => "client_min_messages = warning\nautovacuum = off\n");
my $offset = 0;		# of the server's clock

set_clock($offset);
start_with_fake_clock($node);
$node->safe_psql('postgres', 'CREATE DATABASE portable TEMPLATE template0');
system_or_bail('psql', '-Xq', '-v', 'anyway=1', '-v', 'ON_ERROR_STOP=1',
	'-f', "$FindBin::RealBin/../../sql/portable.sql", '-d', $node->connstr('portable'));

my ($first, $second, $open, $old, $control) =
  map { session($node, name => $_, dbname => 'portable') } qw(first second open old control);
$control->query('CREATE TABLE written (id serial, term bigint, how text)');

sub leap
{
	my ($by) = @_;

	set_clock($offset += $by);
	my $seen = $control->query('SELECT extract(epoch FROM clock_timestamp())') - time;
	cmp_ok(abs($seen - $offset), '<', $HOUR / 60, "the server's clock is $offset s ahead");
	return;
}

# A new election, led by first: its name, and until when first has been told to lead, by
# the clock of its own host
sub led
{
	my ($election, $lease, $delay) = @_;

	$control->query("SELECT leader_election.create_election('$election', lease_duration => '$lease ms'"
		. (defined $delay ? ", takeover_delay => '$delay s'" : '') . ')');
	my $sent = clock_gettime(CLOCK_MONOTONIC);
	my ($term, $ms) = split /\|/, $first->query(
		"SELECT term, remaining_ms FROM leader_election.acquire('$election', 'first')");
	is($term, 1, "$election: one leads");
	return ($sent + $ms / 1000);
}

# What becomes of a fenced write in that term
sub write_as
{
	my ($session, $election, $term, $how) = @_;

	$session->query('BEGIN');
	my $state = $session->sqlstate_of("SELECT leader_election.assert_leader('$election', $term)");
	$session->query("INSERT INTO written (term, how) VALUES ($term, '$how')") if $state eq '00000';
	$session->query('COMMIT');
	return $state eq '00000' && $session->sqlstate eq '00000' ? 'written' : $state;
}

# Rows in the order in which they were committed
sub rows_are
{
	my ($election, @rows) = @_;

	is($control->query("SELECT string_agg(term || ' ' || how, ', ' ORDER BY id) FROM written"),
		join(', ', @rows), "$election: fenced writes are in order of their terms");
	is($control->query("SELECT count(*) FROM written x JOIN written y ON x.id < y.id AND x.term > y.term"),
		0, "$election: and none is of a term before the last one's");
	$control->query('TRUNCATE written');
	return;
}

#
# A leap of an hour, with the delay that is the default
#

my $deadline = led('split', $LONG);
is(write_as($first, 'split', 1, 'before'), 'written', 'split: the leader writes');
$open->query("BEGIN; SELECT leader_election.assert_leader('split', 1); INSERT INTO written (term, how) VALUES (1, 'open')");
$old->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM written');
leap($HOUR);
is($second->acquire('split', 'second'), '', 'split: a takeover waits for a fenced transaction that is open');
is($second->sqlstate, '00000', 'split: in which the candidate stands');
is($second->acquire('split', 'second'), '', 'split: and waits');
is($second->sqlstate, '55P03', 'split: and is told so');
is($open->sqlstate_of('COMMIT'), '00000', 'split: which commits');
is($second->acquire('split', 'second'), 2, 'split: then another one is elected');
cmp_ok(clock_gettime(CLOCK_MONOTONIC), '<', $deadline, 'split: while the first one believes to lead: there are two');
is($first->query("SELECT leader_election.is_leader('split', 1), leader_election.is_leader('split', 2)"), 'f|t',
	'split: who asks the server is told');
is($first->query("SELECT term FROM leader_election.renew('split', 1)"), '', 'split: so is who renews');
is(write_as($second, 'split', 2, 'after'), 'written', 'split: the new leader writes');
is(write_as($first, 'split', 1, 'late'), 'LE001', 'split: the first one is refused');
is($old->sqlstate_of("SELECT leader_election.assert_leader('split', 1)"), '40001', 'split: also with an old snapshot');
$old->query('ROLLBACK');
rows_are('split', '1 before', '1 open', '2 after');

#
# A leap that takeover_delay covers
#

foreach my $case ([ 'long delay', $HOUR, $HOUR ], [ 'default delay', undef, 1 ])
{
	my ($election, $delay, $leap) = @$case;
	my $tries = 0;
	my $mark = held_up();

	$deadline = led($election, $LEASE, $delay);
	is(write_as($first, $election, 1, 'before'), 'written', "$election: the leader writes");
	leap($leap);

	# Until then nobody, whatever the clock says
	my ($elected, $at);
	wait_until(
		sub {
			$at = clock_gettime(CLOCK_MONOTONIC);
			$elected = $second->acquire($election, 'second');
			$tries++;
			return $elected ne '';
		},
		'an election');
	is($elected, 2, "$election: another one is elected");
	cmp_ok(clock_gettime(CLOCK_MONOTONIC), '>=', $deadline, "$election: not before the first one has ceased to believe that it leads");
	cmp_ok($at, '<', $deadline + 1 + $LATE + held_up($mark) / 1e6, "$election: nor much later");
	cmp_ok($tries, '>', 1, "$election: it has asked before");
	is(write_as($second, $election, 2, 'after'), 'written', "$election: the new leader writes");
	is(write_as($first, $election, 1, 'late'), 'LE001', "$election: the first one is refused");
	rows_are($election, '1 before', '2 after');
}

#
# A step back
#

led('back', $LONG);
leap(-$HOUR);
is($second->acquire('back', 'second'), '', 'back: nobody else is elected');
is($second->sqlstate, '00000', 'back: for there is a leader');
cmp_ok($control->query("SELECT expires_at - clock_timestamp() <= interval '$LONG ms' FROM leader_election.lease WHERE election = 'back'"),
	'eq', 't', 'back: whose lease is shortened to its length');
is(write_as($first, 'back', 1, 'on'), 'written', 'back: it writes');
my ($term, $ms) = split /\|/, $first->query("SELECT term, remaining_ms FROM leader_election.renew('back', 1)");
is($term, 1, 'back: it leads on');
cmp_ok($ms, '<=', $LONG, 'back: for a lease at most');
rows_are('back', '1 on');

# A takeover delay that had begun is no longer than it was.
my $gone = session($node, name => 'gone', dbname => 'portable');
$control->query("SELECT leader_election.create_election('delayed', lease_duration => '$LONG ms', takeover_delay => '$LATE s')");
is($gone->query("SELECT leader_election.join('delayed', 'gone', auto_renew => false)"), 1, 'delayed: a session leads');
$gone->kill;
wait_gone($node, $gone);
is($second->acquire('delayed', 'second'), '', 'delayed: when it has died, nobody is elected for takeover_delay');
is($control->query("SELECT waiting_for FROM leader_election.status WHERE election = 'delayed'"), 'takeover delay', 'delayed: which has begun');
leap(-$HOUR);
wait_until(sub { $second->acquire('delayed', 'second') eq 2 }, 'an election', 2 * $LATE);
is($control->query("SELECT leader FROM leader_election.status WHERE election = 'delayed'"), 'second', 'delayed: and is no longer after a step back');

# Without a takeover delay, nothing says that there is one.
$gone = session($node, name => 'gone', dbname => 'portable');
$control->query("SELECT leader_election.create_election('undelayed', lease_duration => '$LONG ms', takeover_delay => '0')");
is($gone->query("SELECT leader_election.join('undelayed', 'gone', auto_renew => false)"), 1, 'undelayed: a session leads');
$gone->kill;
wait_gone($node, $gone);
$control->query('SELECT leader_election.tick()');
leap(-$HOUR);
is($control->query("SELECT waiting_for FROM leader_election.status WHERE election = 'undelayed'"), 'no candidates', 'undelayed: nothing else is waited for');

# A hold is as long as the row says: how long it was meant to be, nobody knows any more.
$control->query("SELECT leader_election.create_election('held', lease_duration => '$LONG ms')");
$first->query("SELECT leader_election.release('held', term, '10 min') FROM leader_election.acquire('held', 'first')");
leap(-$HOUR);
is($second->acquire('held', 'second'), '', 'held: nobody is elected');
is($control->query("SELECT waiting_for FROM leader_election.status WHERE election = 'held'"), 'hold', 'held: for there is a hold');
is($control->query("SELECT not_before_at > clock_timestamp() + interval '1 hour' FROM leader_election.lease WHERE election = 'held'"), 't', 'held: for that much longer');

# A call that repeats a request, and remaining_ms(), tell no deadline that the row does
# not have: else it could be over before, once the clock is right again.
my $asked = "SELECT term, remaining_ms FROM leader_election.acquire('asked', 'first', request => 'deadbeef-0000-4000-8000-000000000144')";
$control->query("SELECT leader_election.create_election('$_', lease_duration => '$LONG ms')") foreach qw(asked session);
($term) = split /\|/, $first->query($asked);
is($term, 1, 'asked: one leads');
is($second->query("SELECT leader_election.join('session', 'second', auto_renew => false)"), 1, 'session: so does a session');
leap(-$HOUR);
is($second->query("SELECT leader_election.remaining_ms('session')"), 0, 'session: it is told of no time before it has renewed');
cmp_ok($second->query("SELECT remaining_ms FROM leader_election.renew('session')"), '>', 0, 'session: which it can');
cmp_ok($second->query("SELECT leader_election.remaining_ms('session')"), '>', 0, 'session: then of that');
($term, $ms) = split /\|/, $first->query($asked);
is($term, 1, 'asked: the same request has the same answer');
cmp_ok($ms, '<=', $LONG, 'asked: for a lease at most');
is($control->query("SELECT expires_at - clock_timestamp() <= interval '$LONG ms' FROM leader_election.lease WHERE election = 'asked'"),
	't', 'asked: and so says the row');

$node->stop;
done_testing();
