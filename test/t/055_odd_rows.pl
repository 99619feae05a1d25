# Leases and terms that no server can have written as they are: a deadline too far
# ahead, a counter that has run out, an epoch later than any clock. And what is
# known of elections that are dropped.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Copies;
use LeaderElection;
use Test::More;

my $DAY = 86_400_000_000;

$origin = new_server(name => 'origin', config => $CONFIG);

my $control = new_session($origin, 'postgres');

$control->query('CREATE DATABASE odd');
my $odd = new_session($origin, 'odd');

$odd->query('CREATE EXTENSION leader_election');
foreach my $odd_row (
	[ 'deadline', 'detached', '0' ],
	[ 'all of it', 'detached', '1 day' ],
	[ 'of a session', 'session', '1 day' ])
{
	my ($election, $kind, $expires_later) = @$odd_row;
	my $session = new_session($origin, 'odd', name => 'holder');
	my $newcomer = new_session($origin, 'odd', name => 'newcomer');
	my $deadline;
	my $elected;

	$odd->query("SELECT leader_election.create_election('$election',
		lease_duration => '1 s')");
	is( $kind eq 'detached' ? $session->acquire($election, 'holder')
		: $session->query("SELECT leader_election.join('$election', 'holder',
			auto_renew => false)"),
		1,
		"$election: led");
	$deadline = $odd->query("UPDATE leader_election.lease
		SET deadline_mono = deadline_mono + $DAY,
			expires_at = expires_at + interval '$expires_later'
		WHERE election = '$election'
		RETURNING deadline_mono - $DAY");
	is( $odd->query(
			"SELECT state, leader_election.leader('$election') IS NULL,
				leader_election.is_leader('$election', 1)
			FROM leader_election.status WHERE election = '$election'"),
		'vacant|t|f',
		"$election: a deadline too far ahead is none (G4)");
	$elected = campaign($newcomer, $election, 'newcomer');
	$elected ||= campaign($newcomer, $election, 'newcomer')
	  foreach 1 .. $LATE / 1_000_000;
	cmp_ok($elected || 0, '>=', 2,
		"$election: and blocks nobody for longer than it lasts");
	is( $odd->query(
			"SELECT acquired_mono >= $deadline FROM leader_election.lease
			WHERE election = '$election' AND term > 1"),
		't',
		"$election: but for as long (G2)")
	  if $elected;
	is($session->query("SELECT leader_election.is_leader('$election')"),
		'f', "$election: nor is it believed by who led");
	$_->finish foreach $session, $newcomer;
}

{
	my $next = 1 << $EPOCH_BITS;
	my $far;

	$odd->acquire('counter', 'c');
	$odd->query("SELECT leader_election.release('counter', 1)");
	$odd->query("UPDATE leader_election.lease SET term = $next - 1
		WHERE election = 'counter'");
	is($odd->acquire('counter', 'c'),
		$next, 'counter: one that runs out opens the next epoch (G5)');
	$odd->query("SELECT leader_election.release('counter', $next)");
	is($odd->acquire('counter', 'c'),
		++$next, 'counter: and goes on in it');
	is($odd->query('SELECT max(epoch) FROM leader_election.epoch'),
		0, 'counter: which is no new incarnation');

	# Further than any clock: the clock of a server of before was ahead.
	$far = int(time) + 1_000_000;
	$odd->query("SELECT leader_election.release('counter', $next)");
	$next = $far << $EPOCH_BITS;
	$odd->query("UPDATE leader_election.lease SET term = $next - 1
		WHERE election = 'counter'");
	is($odd->acquire('counter', 'c'),
		$next, 'counter: in an epoch that lies ahead');

	# What is dropped is remembered.
	$odd->acquire('dropped', 'c');
	$odd->query("SELECT leader_election.release('dropped', 1)");
	is($odd->acquire('dropped', 'c'), 2, 'dropped: counts');
	$odd->query("SELECT leader_election.release('dropped', 2);
		SELECT leader_election.drop_election('dropped')");
	wait_for($origin, 'SELECT count(*) FROM leader_election.dropped', 0, undef, 'odd');
	is($odd->query('SELECT dropped_term FROM leader_election.epoch'),
		2, 'dropped: the last term is kept');
	is($odd->acquire('dropped', 'c'), 3, 'dropped: created again, it counts on (G5)');
	is($odd->acquire('created later', 'c'),
		3, 'dropped: and so do others that are created later (G5)');

	# Seats whose group somebody has deleted are led, and no longer counted.
	$odd->query("SELECT leader_election.create_group('group', 2);
		DELETE FROM leader_election.election_group");
	is(join('|', map { $odd->acquire("group/$_", 'c') ne '' } 1, 2), '1|1', 'seats: led without their group');

	$odd->finish;
	end_worker($origin, 'odd');
	$control->query('CREATE DATABASE oddcopy TEMPLATE odd');
	$odd = new_session($origin, 'oddcopy');
	$odd->query("SELECT leader_election.create_election('new',
		lease_duration => '100 ms')");
	is($odd->acquire('new', 'c'),
		'', 'counter: not elected in the grace of the copy');
	wait_until(sub { $odd->acquire('new', 'c') }, 'the end of it');
	is( $odd->query("SELECT term >> $EPOCH_BITS FROM leader_election.lease
			WHERE election = 'new'"),
		$far + 1,
		'counter: the copy\'s epoch is later than that (G5)');
	$odd->finish;

	$odd = new_session($origin, 'odd');
	$odd->query('DROP EXTENSION leader_election;
		CREATE EXTENSION leader_election');
	is($odd->acquire('dropped', 'c'),
		1, 'DROP EXTENSION: forgets, as it is documented to');
	$odd->finish;
}

$origin->stop;
done_testing();
