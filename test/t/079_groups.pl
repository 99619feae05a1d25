# Groups of elections: N leaders, none of whom has more seats than it may.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Rules;
use Test::More;

serve();

sub group
{
	my ($group, $seats, $settings) = @_;

	$settings = defined $settings ? ", $settings" : '';
	$admin->query(
		"SELECT leader_election.create_group('$group', $seats$settings)");
	die $admin->errors if $admin->errors;
	return;
}

sub alter
{
	my ($group, $settings) = @_;

	$admin->query("SELECT leader_election.alter_group('$group', $settings)");
	die $admin->errors if $admin->errors;
	return;
}

# The seats that it leads: "1,2"
sub join_group
{
	my ($session, $group, $candidate, $profile) = @_;

	$profile = defined $profile ? ", $profile" : '';
	return $session->query(
		"SELECT string_agg(split_part(election, '/', 2), ',' ORDER BY election)
			FROM leader_election.join_group('$group', '$candidate'$profile)");
}

# A new session that stands for all seats of a group.
sub member
{
	my ($group, $candidate, $profile) = @_;
	my $session = session($node, name => "$group: $candidate");

	join_group($session, $group, $candidate, $profile);
	die $session->errors if $session->errors;
	return $session;
}

# The seats that a detached candidate was granted: "1 1, 2 1" (seat and term)
sub acquire_any
{
	my ($group, $candidate, $profile) = @_;

	$profile = defined $profile ? ", $profile" : '';
	return $admin->query(
		"SELECT string_agg(concat_ws(' ', split_part(election, '/', 2), term), ', ' ORDER BY election)
			FROM leader_election.acquire_any('$group', '$candidate'$profile)");
}

# Who leads which seat: "a b -" (-: nobody)
my $LEADERS = <<~'END';
	(SELECT string_agg(coalesce(leader_election.leader(election), '-'), ' '
			ORDER BY length(election), election)
		FROM leader_election.election WHERE group_name = '%s')
	END

sub leaders { return $admin->query('SELECT ' . sprintf($LEADERS, $_[0])); }

sub leaders_soon
{
	my ($group, $leaders, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return comes_true(sprintf($LEADERS, $group) . " = '$leaders'", $name);
}

# --- Sessions: one seat each

{
	group('g', 3);
	my %m = map { $_ => member('g', $_) } 'a' .. 'e';
	leaders_soon('g', 'a b c', 'each seat has a leader of its own');
	is(join_group($m{b}, 'g', 'b'), '2', 'join_group() tells the seat');
	is(join_group($m{d}, 'g', 'd'), '', 'nobody has more than one');
	is(waiting_for('g/1'), '', 'g/1 waits for nothing');
	is(lease('g/1', 'term'), 1, 'each seat counts its own terms');

	$m{b}->kill;
	leaders_soon('g', 'a d c', 'the seat of one that dies goes to the next');
	is($m{e}->query("SELECT leader_election.join('g/1', 'e')"), '', 'joins');
	$m{a}->query("SELECT leader_election.resign('g/1')");
	leaders_soon('g', 'e d c', 'the seat of one that resigns goes to the next');
}

# --- Detached candidates

{
	group('d', 3, "max_per_candidate => 2");
	is(acquire_any('d', 'x'), '1 1, 2 1', 'acquire_any() grants no more than two');
	is(acquire_any('d', 'x'), '', 'and tells only what it grants');
	is(acquire_any('d', 'y'), '3 1', 'the next one gets the rest');
}
done_testing();
