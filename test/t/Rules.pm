# Helpers for the tests of the rules of election.
#
#	use Rules;
#
#	serve();
#	create('e', 'bully');
#	my $low = candidate('e', 'low', 1);
#	my $high = candidate('e', 'high', 2);
#	is_asked('e', 'high', 'the leader is asked to yield');
#
# serve() starts the server $node, with the sessions $admin, and $listener for
# what is announced.
#
# Where nothing is to happen, a test calls worker_looks(): it waits until the
# worker has looked at all elections once more, and not for a while.

package Rules;

use strict;
use warnings;

use Announced;
use Exporter qw(import);
use LeaderElection;
use MachineTime;
use Test::More;

our @EXPORT = qw($admin $listener $node acquire candidate comes_true create
  history is_asked is_renewed leader leads_soon lease never_two_leaders serve
  stand_as waiting_for worker_looks);

# In milliseconds; a slow machine renews later.
my $LEASE = 2000 * slowness();

our ($node, $admin, $listener);

sub serve
{
	$node = new_server(
		config => qq(
leader_election.lease_duration = '${LEASE}ms'
client_min_messages = warning
));
	$admin = session($node, name => 'admin');
	$listener = Announced->new($node);
	return;
}

# create_election with these settings
sub create
{
	my ($election, $strategy, $settings) = @_;

	$settings = defined $settings ? ", $settings" : '';
	$admin->query(
		"SELECT leader_election.create_election('$election', '$strategy'$settings)"
	);
	die $admin->errors if $admin->errors;
	return;
}

sub stand_as
{
	my ($session, $election, $candidate, $profile) = @_;

	$profile = defined $profile ? ", $profile" : '';
	return $session->query(
		"SELECT leader_election.join('$election', '$candidate'$profile)");
}

# A new session that stands under that name.
sub candidate
{
	my ($election, $candidate, $profile) = @_;
	my $session = session($node, name => "$election: $candidate");

	stand_as($session, $election, $candidate, $profile);
	die $session->errors if $session->errors;
	return $session;
}

# Calls by a detached candidate, over the administrator's connection
sub acquire
{
	my ($election, $candidate, $profile) = @_;

	$profile = defined $profile ? ", $profile" : '';
	return $admin->query(
		"SELECT term FROM leader_election.acquire('$election', '$candidate'$profile)"
	);
}

sub lease
{
	my ($election, $columns) = @_;

	return $admin->query(
		"SELECT $columns FROM leader_election.lease WHERE election = '$election'"
	);
}

sub leader { return $admin->query("SELECT leader_election.leader('$_[0]')"); }

sub waiting_for
{
	return $admin->query(
		"SELECT waiting_for FROM leader_election.status WHERE election = '$_[0]'"
	);
}

# Who led, and why that ended: "one resigned, two"
sub history
{
	my ($election) = @_;

	return $admin->query(
		"SELECT string_agg(concat_ws(' ', leader, reason), ', ' ORDER BY term)
			FROM leader_election.history WHERE election = '$election'");
}

# A condition that has to come true
sub comes_true
{
	my ($sql, $name) = @_;
	my $result;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(1, $name)
	  if eval {
		wait_until(
			sub {
				$result = $admin->query("SELECT $sql");
				return $result eq 't';
			},
			sub { "$sql, which is " . ($result // 'none') });
	  };
	fail($name);
	return diag($@);
}

sub leads_soon
{
	my ($election, $candidate, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return comes_true(
		"leader_election.leader('$election') IS NOT DISTINCT FROM '$candidate'",
		$name);
}

# Waits until the worker has looked at all there was when this was called, and
# has done what was due: it removes a dead candidate's row last of all.
my $looks = 0;

sub worker_looks
{
	my $election = 'look ' . ++$looks;

	candidate($election, 'follower')->finish;
	wait_for($node,
		"SELECT NOT EXISTS (SELECT FROM leader_election.candidate WHERE election = '$election')"
	);
	return;
}

# Is the lease renewed from now on, by the worker, and still in the same term?
sub is_renewed
{
	my ($election, $name) = @_;
	my ($term, $deadline) = split /\|/, lease($election, 'term, deadline_mono');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return comes_true(
		"deadline_mono > $deadline AND term = $term AND NOT yielding
			FROM leader_election.lease WHERE election = '$election'", $name);
}

# The leader has been asked to yield; to whom
sub is_asked
{
	my ($election, $successor, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return comes_true(
		"yielding AND successor = '$successor'
			FROM leader_election.lease WHERE election = '$election'", $name);
}

# By its history, no election has ever had two leaders.
sub never_two_leaders
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(
		$admin->query(
			'SELECT count(*) FROM leader_election.history a JOIN leader_election.history b
				ON a.election = b.election AND a.term < b.term
			WHERE a.ended_at IS NULL OR a.ended_at > b.acquired_at'),
		0,
		'never two leaders (G1)');
}

1;
