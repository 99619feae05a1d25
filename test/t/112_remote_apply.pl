# A standby that has what it is sent, but does not apply it.
#
# Its replay stands still, for a query there or because somebody has paused it. What
# was granted, renewed or ended is safe on it all the same. With
# synchronous_commit = remote_apply, the commit of a grant or of a renewal would
# wait for the replay, with the rows and the election lock, and leases would run
# out meanwhile. Only a transaction block waits for as much as its user wants.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use SyncStandby;
use Test::More;

my $LEASE = 3_000_000;      # microseconds
my $PATIENCE = 10;          # seconds; what waits for the replay waits for ever

my $pair = SyncStandby->new(
	config => qq(
leader_election.lease_duration = '${LEASE}us'
synchronous_commit = remote_apply
));
my ($primary, $standby, $observer) = @{$pair}{qw(primary standby observer)};
my %session = map { $_ => session($primary, name => $_) } qw(leader next detached writer owner);

sub clock { return $pair->clock; }

sub deadline
{
	my ($election) = @_;

	return ($observer->lease($election, 'deadline_mono'))[0];
}

# A call that must not wait until the standby has applied its commit
sub returns
{
	my ($name, $sql, $expected) = @_;
	my $session = $session{$name};

	$session->query_async($sql);
	eval { wait_until(sub { $session->finished }, "$sql to end", $PATIENCE) };
	ok($session->finished, "$sql does not wait for the replay (G9)");
	like($session->finished ? $session->result : $pair->cancel($session), $expected, $sql);
	return;
}

$observer->query('CREATE TABLE written (what text)');
$observer->query("SELECT leader_election.create_election('asked', lease_duration => '1min')");
$observer->query("SELECT leader_election.create_election(e) FROM (VALUES ('held'), ('vacant')) v (e)");
is($session{leader}->query("SELECT leader_election.join('held', 'leader')"), 1, 'a session leads');
is($session{next}->query("SELECT leader_election.join('held', 'next')"), '', 'another one stands');
$observer->query("SELECT leader_election.create_election('spread', 'spread')");
is($session{$_}->query("SELECT leader_election.join('spread', '$_')"), $_ eq 'leader' ? 1 : '', "$_ stands where leads are counted")
  foreach qw(leader next owner);
is($session{detached}->query("SELECT term FROM leader_election.acquire('asked', 'detached')"),
	1, 'a detached candidate leads');
$observer->query("SELECT leader_election.create_election('reserved', 'lowest', '2 s')");
$observer->query("SELECT leader_election.create_election('lonely', 'zab', quorum => 2)");
is($session{writer}->query("SELECT count(term) FROM leader_election.acquire('lonely', 'x')"), 0, 'nobody leads without a quorum');
is($session{detached}->query("SELECT term FROM leader_election.acquire('reserved', 'b')"), 1, 'and in another');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
wait_for($standby, 'SELECT pg_get_wal_replay_pause_state()', 'paused');

# The worker keeps a seat for a detached candidate, which does not come for it.
$session{detached}->query("SELECT leader_election.acquire('reserved', 'a')");
wait_until(sub { $observer->query("SELECT leader_election.leader('reserved')") eq '' }, 'a vacancy');
pass('a seat is reserved, and free again');

# The worker renews.
my $paused = clock();
wait_until(
	sub { deadline('held') > $paused + 2 * $LEASE || clock() > $paused + 3 * $LEASE },
	'two leases');
cmp_ok(deadline('held'), '>', $paused + 2 * $LEASE, 'the lease of a session is renewed')
  or die "the worker waits for the replay\n";
is($session{leader}->query("SELECT leader_election.is_leader('held')"), 't', 'it leads on');
is($observer->query("SELECT term FROM leader_election.lease WHERE election = 'held'"),
	1, 'in the same term');

# Calls return.
returns('detached', "SELECT remaining_ms > 0 FROM leader_election.renew('asked', 1)", qr/^t$/);
returns('detached', "SELECT leader_election.release('asked', 1)", qr/^t$/);
returns('detached', "SELECT term FROM leader_election.acquire('vacant', 'detached')", qr/^1$/);
returns('writer', "CALL leader_election.campaign('asked', 'writer')", qr/^2$/);
returns('writer', "SELECT leader_election.resign('asked')", qr/^t$/);
returns('owner', "SELECT leader_election.create_election('new')", qr/^$/);
returns('owner', "SELECT leader_election.alter_election('held', takeover_delay => '0')", qr/^$/);

# Nobody is elected, and the call writes nothing of ours that lasts. But the statement
# has written a row elsewhere, and has the election lock until it commits.
returns('writer', "WITH w AS (INSERT INTO written VALUES ('beside') RETURNING what)
	SELECT count(term) FROM w, leader_election.acquire('lonely', 'x')", qr/^0$/);

# A takeover does not wait, either.
$session{leader}->kill;
wait_until(
	sub { $session{next}->query("SELECT leader_election.is_leader('held')") eq 't' },
	'the next leader');
pass('the next candidate leads');
wait_until(
	sub { $observer->query("SELECT leader_election.leader('spread') IN ('next', 'owner')") eq 't' },
	'the next leader where leads are counted');
pass('also where leads are counted');

# A user's own transaction block waits as its user wants.
$session{next}->query('BEGIN');
$session{next}->query("SELECT leader_election.assert_leader('held')");
$session{next}->query("INSERT INTO written VALUES ('fenced')");
$session{next}->query_async('COMMIT');
$session{writer}->query('BEGIN');
$session{writer}->query("INSERT INTO written VALUES ('dropped')");
$session{writer}->query("SELECT leader_election.drop_election('asked')");
$session{writer}->query_async('COMMIT');
foreach my $name (qw(next writer))
{
	wait_until(
		sub {
			$session{$name}->finished
			  || $pair->wait_event($session{$name}->backend_pid) eq 'SyncRep';
		},
		"the commit of $name");
}

# A later commit that waits for the flush returns after earlier ones that do.
$observer->query('SET synchronous_commit = on');
$observer->query('CREATE TABLE later ()');
foreach my $name (qw(next writer))
{
	ok(!$session{$name}->finished, "a block of $name waits for the replay");
}
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
$session{$_}->result foreach qw(next writer);
is($session{$_}->sqlstate, '00000', "the block of $_ has committed") foreach qw(next writer);
is($standby->safe_psql('postgres', 'SELECT count(*) FROM written WHERE what <> $$beside$$'), 2, 'and the standby shows it');

done_testing();
