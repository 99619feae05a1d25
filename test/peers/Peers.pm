# The frame of the tests in this folder: what other leader elections and locks test
# theirs with, asked of ours. A file has one peer, and of it a list of scenarios:
#
#	use FindBin;
#	use lib $FindBin::RealBin, "$FindBin::RealBin/../t";
#	use Peers;
#
#	peer('River');
#	scenario('a second elector is denied', sub {
#		my ($e) = @_;
#
#		same(acquire($e, 'first'), 1, 'the first leads');
#		same(acquire($e, 'second'), '', 'the second does not');
#	});
#	done_testing();
#
# A scenario has an election of its own, named as it is, and sessions of its own, which
# end with it. Each check names the peer and the scenario. One that dies fails, and the
# next one goes on. The server and the calls are those of Detached.pm.

package Peers;

use strict;
use warnings;

use Detached;
use Exporter qw(import);
use JSON::PP;
use LeaderElection;
use Test::More;

our @EXPORT = (
	qw($SHORT at_most campaigns elected everybody_has_left follow_leader lock_row people peer
	  refused release same scenario since status term_in told unchanged wait_for_leader wait_over),
	@Detached::EXPORT, @LeaderElection::EXPORT, qw(done_testing));

# A lease, in microseconds, that a scenario waits to the end of
our $SHORT = $LEASE / 4;

my ($peer, $scenario) = ('', '');
my @people;

# Starts the server. No lease ends by itself, on the slowest machine, but in the elections
# for which a scenario has asked for it.
sub peer
{
	($peer) = @_;

	serve(lease => '1 h');
	return;
}

sub scenario
{
	($scenario, my $code) = @_;

	eval { $code->($scenario); 1 } or fail("$peer, $scenario: ends") or diag($@);
	foreach my $session (splice @people)
	{
		$session->kill if $session->alive;
	}
	return;
}

# --- checks: the prototypes have them take what a session returns as one text

sub same($$$)
{
	my ($got, $expected, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($got, $expected, "$peer, $scenario: $what");
}

sub at_most($$$)
{
	my ($got, $most, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return cmp_ok($got, '<=', $most, "$peer, $scenario: $what");
}

# That so much time lies between two moments, in microseconds
sub since($$$$)
{
	my ($then, $now, $least, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return cmp_ok($now - $then, '>=', $least, "$peer, $scenario: $what");
}

# Nobody has touched the lease since lease() has returned this.
sub unchanged
{
	my ($e, $before, $what) = @_;
	my $now = lease($e);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return same(join('|', map { "$_ $now->{$_}" } sort keys %$now),
		join('|', map { "$_ $before->{$_}" } sort keys %$before), $what);
}

# The SQLSTATE of a statement on the next connection of the pool
sub refused
{
	my ($sql) = @_;

	any($sql);
	return $pool[0]->sqlstate;
}

# --- sessions

# Sessions by these names; the last argument may be options of session().
sub people
{
	my @names = @_;
	my $opts = ref $names[-1] ? pop @names : {};
	my @new = map { session($node, name => $_, options => '-c client_min_messages=warning', %$opts) } @names;

	push @people, @new;
	return wantarray ? @new : $new[0];
}

# The term in which a session is elected, by its own calls. One that comes while the
# worker looks at the election answers that it does not lead.
sub elected
{
	my ($session, $e) = @_;
	my $term = '';

	wait_until(sub { ($term = joins($session, $e)) ne '' }, "$session->{name} to be elected");
	return $term;
}

# Begins to campaign, and returns when the server knows that. The result of the
# session is the term.
sub campaigns
{
	my ($session, $e, $options) = @_;

	$session->query_async("CALL leader_election.campaign('$e', '$session->{name}'"
		  . ($options ? ", $options" : '') . ')');
	wait_for($node, "SELECT count(*) FROM leader_election.candidates
		WHERE election = '$e' AND candidate = '$session->{name}'", 1);
	return;
}

# What an observer is told next of who leads, passing over that nobody does
sub follow_leader
{
	my ($session, $e, $term, $leader) = @_;

	foreach (1 .. 100)
	{
		my $known = join ', ', $term // 'NULL', $leader ? "'$leader'" : 'NULL';
		($term, $leader) = split /\|/,
		  $session->query("CALL leader_election.wait_for_change('$e', $known, timeout => '100 s')");
		die $session->errors if $session->sqlstate ne '00000';
		$term = undef if ($term // '') eq '';
		return "$term|$leader" if $leader;
	}
	die "nobody leads $e\n";
}

# The transaction of a session has an election's lease row until it ends.
sub lock_row
{
	my ($session, $e) = @_;

	$session->query('BEGIN');
	$session->query("SELECT FROM leader_election.lease WHERE election = '$e' FOR UPDATE");
	die $session->errors if $session->sqlstate ne '00000';
	return;
}

# --- elections

sub release
{
	my ($e, $term, $options) = @_;

	return any("SELECT leader_election.release('$e', $term"
		  . ($options ? ", $options" : '') . ')');
}

# The term in which a session leads, '' if it does not
sub term_in
{
	my ($session, $e) = @_;

	return scalar $session->query("SELECT leader_election.term('$e')");
}

sub status
{
	my ($e, $columns) = @_;

	return any("SELECT $columns FROM leader_election.status WHERE election = '$e'");
}

sub wait_for_leader
{
	my ($e, $name) = @_;

	return wait_for($node, "SELECT leader_election.leader('$e')", $name);
}

# The lease is over, by the server's clock.
sub wait_over
{
	my ($e) = @_;

	return wait_for_clock(lease($e)->{deadline_mono});
}

sub everybody_has_left
{
	my ($e) = @_;

	return wait_for($node, "SELECT count(*) FROM leader_election.candidates WHERE election = '$e'", 0);
}

# What a session that listens was told of an election, as "elected 1" and so on
sub told
{
	my ($session, $e) = @_;
	my @told = map { decode_json($_) } $session->notifications;

	return map { "$_->{event} $_->{term}" } grep { $_->{election} eq $e } @told;
}

1;
