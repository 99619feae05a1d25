# The server's lock table is full: a role without any right takes advisory locks
# until there is no room, and keeps them.  No transaction gets a number then, so
# that no lease could be renewed, if the worker did not free the few spare locks
# that it holds.  No leader loses its lease to a role that sits on its locks; a
# role that goes on grabbing makes leases lapse, and elects nobody too early.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;

my $LEASE = 2_000_000 * slowness();    # microseconds, longer than a turn of all loops
my $LONG = 2.5 * $LEASE;
my $ERRORS = '-c client_min_messages=error';
my @auto = map { "auto $_" } 1 .. 5;

my $node = new_server(
	config => qq(
leader_election.lease_duration = '${LEASE}us'
max_connections = 30
max_locks_per_transaction = 10
max_prepared_transactions = 0
autovacuum = off
));
$node->safe_psql('postgres', 'CREATE ROLE hog LOGIN');

my $observer = session($node, name => 'observer', options => $ERRORS);
my @leaders = map { session($node, name => $_, options => $ERRORS) } @auto;
my ($manual, $looping, $detached, $rival) =
  map { session($node, name => $_, options => $ERRORS) }
  qw(manual looping detached rival);

my $SPARES = q{SELECT count(*) FROM pg_lock_status() WHERE objsubid = 27};

# A client that takes locks until it is refused, and keeps them.
my $next_lock = 1;

sub hog
{
	my ($hog) = @_;

	while (1)
	{
		$hog->query("SELECT count(pg_advisory_lock(i)) FROM generate_series($next_lock, $next_lock + 99999) i");
		$next_lock += 100000;
		last if $hog->sqlstate eq '53200';
	}
	return;
}

sub clock
{
	return $observer->query('SELECT leader_election._monotonic_clock()');
}

sub terms
{
	return $observer->query(
		"SELECT string_agg(election || ' ' || term || ' ' || coalesce(leader, '-'), ', ' ORDER BY election) FROM leader_election.lease");
}

# -- Leaders of all kinds, and a rival for each of them

$leaders[$_]->query("SELECT leader_election.join('$auto[$_]', 'leader')") for 0 .. $#auto;
$manual->query("SELECT leader_election.join('manual', 'leader', auto_renew => false)");
$looping->query("SELECT leader_election.join('looping', 'leader')");
$detached->query("SELECT leader_election.acquire('detached', 'leader')");

my @elections = (@auto, qw(manual looping detached));
my $stand = join ', ', map { "leader_election.join('$_', 'rival')" } @elections;

is($rival->query("SELECT num_nonnulls($stand)"), '0', 'the rival follows everywhere');
wait_for($node, $SPARES, '22');
pass('the worker has spare locks');

# What the clients do in their loops; returns what they have lost.
sub loops
{
	my @lost;

	push @lost, 'manual'
	  if $manual->query("SELECT term FROM leader_election.renew('manual')") ne '1';
	push @lost, 'looping ' . $looping->sqlstate
	  if $looping->query("SELECT leader_election.join('looping', 'leader')") ne '1';
	push @lost, 'detached ' . $detached->sqlstate
	  if $detached->query("SELECT term FROM leader_election.renew('detached', 1)") ne '1';
	foreach my $i (0 .. $#auto)
	{
		push @lost, $auto[$i]
		  if $leaders[$i]->query("SELECT leader_election.is_leader('$auto[$i]')") ne 't';
	}
	push @lost, 'rival leads'
	  if $rival->query("SELECT num_nonnulls($stand)") ne '0';
	return @lost;
}

# -- Somebody fills the table and sits there.

my $before = terms();
my $hog = session($node, name => 'hog', user => 'hog');
my $start = clock();
my @lost;

hog($hog);
wait_until(
	sub {
		push @lost, loops();
		return @lost || clock() > $start + $LONG;
	},
	'more than two leases');
is("@lost", '', 'no leader lapses, and nobody is told so, while the table is full');
is(terms(), $before, 'all lead in their terms');
is($observer->query($SPARES), '0', 'by means of the spare locks');
is( $observer->query(
		"SELECT count(*) FROM leader_election.lease WHERE deadline_mono - $start < $LONG"),
	'0',
	'all leases were renewed');

# A leader that dies meanwhile is replaced.
my $waiting = session($node, name => 'waiting', options => $ERRORS);
$waiting->query_async("CALL leader_election.campaign('$auto[4]', 'waiting')");
wait_for($node,
	"SELECT count(*) FROM leader_election.candidates WHERE candidate = 'waiting'", '1');
is($rival->query("SELECT leader_election.leave('$auto[4]')"), 't', 'the rival makes way');
$leaders[4]->kill;
is(scalar $waiting->result, '2', 'a leader that dies is replaced while the table is full');

# -- The client goes on grabbing: nothing is left.

sub grab_all
{
	my ($grabbing) = @_;

	wait_until(
		sub {
			hog($grabbing);
			return $observer->query($SPARES) eq '0'
			  && $grabbing->sqlstate_of("SELECT pg_advisory_lock($next_lock)") eq '53200';
		},
		'a full lock table');
	return;
}

# What can be told without room: sessions live or do not.
my ($victim, $watcher) = @leaders[0, 1];

$observer->query("SELECT leader_election.is_leader('$auto[0]', 1)");
grab_all($hog);
is($observer->query("SELECT leader_election.is_leader('$auto[0]', 1)"),
	't', 'no room: a live session leads');
is($observer->sqlstate, '00000', 'and that is no error');
$victim->kill;
wait_until(
	sub {
		hog($hog);    # what the victim has left
		return $observer->query("SELECT leader_election.is_leader('$auto[0]', 1)") eq 'f';
	},
	'the end of the session');
is($observer->sqlstate, '00000', 'no room: a dead session does not lead');
is( $observer->query(
		"SELECT deadline_mono > leader_election._monotonic_clock() FROM leader_election.lease WHERE election = '$auto[0]'"),
	't',
	'before its lease is over');

# Nobody lapses before the deadline that was written last, and nobody follows.
my %deadline = map { split /\|/ } $observer->query(
	'SELECT election, deadline_mono FROM leader_election.lease');
my $early = 0;
wait_until(
	sub {
		my $leads = $watcher->query("SELECT leader_election.is_leader('$auto[1]')");
		my $now = clock();

		hog($hog);
		%deadline = (%deadline, map { split /\|/ } $observer->query(
			'SELECT election, deadline_mono FROM leader_election.lease'));
		$early++ if $leads eq 'f' && $now < $deadline{ $auto[1] };
		return $leads eq 'f';
	},
	'a lease that lapses');
is($early, 0, 'a leader leads to its deadline (G2)');
is($watcher->sqlstate, '00000', 'without an error');

# -- There is room again.

$hog->kill;
wait_for($node, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'hog'", '0');
my $mark = held_up();
$start = clock();
wait_for($node,
	"SELECT count(*) FROM leader_election.status WHERE state = 'vacant' AND election <> 'detached'", '0');
cmp_ok(clock() - $start, '<', 2 * $LEASE + held_up($mark), 'all seats are taken again within a lease');
is( $observer->query(
		q{SELECT count(*) FROM leader_election.history a JOIN leader_election.history b
			USING (election) WHERE a.term < b.term
			  AND b.acquired_at < coalesce(a.ended_at, 'infinity')}),
	'0',
	'no term began before the last one ended (G1)');
wait_for($node, $SPARES, '22');
pass('the worker has its spare locks again');

$_->finish for grep { $_->alive } $manual, $looping, $detached, $rival, $waiting,
  @leaders[1 .. 3], $observer;
$node->stop;
unlike(
	slurp_file($node->logfile),
	qr/PANIC|TRAP|WARNING:.*(?:leak|lock)/,
	'nothing is amiss in the log');
done_testing();
