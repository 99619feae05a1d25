# The steps of 051_model.pl that are about groups: who asks for all seats, and how
# many there are.

package ModelGroups;

use strict;
use warnings;

use Exporter qw(import);
use ModelRules;
use ModelRun;
use ModelSteps;

our @EXPORT = qw(acquire_any alter_cap alter_seats is_due_twice join_group
  resign_withdrawn);

# Some candidate, which does not stand for any of these seats as the other kind;
# seldom one that does, which has to fail.
sub pick_of_kind
{
	my ($run, $kind, @seats) = @_;
	my $s = $run->{states}[0];

	return pick($run, @{ $run->{candidates} }) if chance($run, 5);
	return pick(
		$run,
		grep {
			my $name = $_;
			!grep { stands_otherwise($s, $_, $name, $kind) } @seats
		} @{ $run->{candidates} });
}

sub stands_otherwise
{
	my ($s, $seat, $name, $kind) = @_;
	my $c = $s->{elections}{$seat}{candidates}{$name};

	return $c && $c->{kind} ne $kind && !is_withdrawn($s, $seat);
}

# Stands for the seats, and returns those that the candidate leads, as far as
# $is_told says so of the seat and its last term.  $skipped, by name: seats that
# are left to the worker, because it has the group's lock.
sub stand_for_all
{
	my ($s, $group, $name, $kind, $says, $skipped, $is_told) = @_;
	my @told;

	return 'LE004'
	  if grep { stands_otherwise($s, $_, $name, $kind) } seats($s, $group);
	foreach my $seat (seats($s, $group))
	{
		my $l = $s->{elections}{$seat};
		my $last = $l->{term};

		local $ModelRules::busy = $skipped->{$seat} ? 1 : 0;
		stand($s, $seat, $name, $kind, %$says) unless is_withdrawn($s, $seat);
		push @told, "$seat|$l->{term}"
		  if leads($l, $name)
		  && $l->{candidates}{$name}{kind} eq $kind
		  && $is_told->($l, $last);
	}
	return join "\n", @told;
}

# All sets of these
sub subsets
{
	my (@list) = @_;
	my @sets = ({});

	foreach my $item (@list)
	{
		push @sets, map { { %$_, $item => 1 } } @sets;
	}
	return @sets;
}

sub join_group
{
	my ($run, $election, $l) = @_;
	my $group = $l->{group} // return 0;
	my $s = $run->{states}[0];
	my @seats = seats($s, $group);
	my $name = pick_of_kind($run, 'session', @seats) // return 0;
	my %says = says($run, 30);

	$says{auto_renew} = 0 if chance($run, 10);
	my $args = "'$group', '$name'" . profile(\%says);
	return step(
		$run,
		"join_group($args)",
		sub {
			ask(session_of($run, $name),
				"SELECT election, term FROM leader_election.join_group($args)");
		},
		map {
			my $skipped = $_;
			sub {
				stand_for_all($_[0], $group, $name, 'session', \%says, $skipped,
					sub { 1 });
			}
		} subsets(grep { !defined $s->{elections}{$_}{leader} } @seats));
}

# Each seat that is vacant is waited for: nothing is left to the worker.
sub acquire_any
{
	my ($run, $election, $l) = @_;
	my $group = $l->{group} // return 0;
	my @seats = seats($run->{states}[0], $group);
	my $name = pick_of_kind($run, 'detached', @seats) // return 0;
	my %says = says($run, 30);
	my $args = "'$group', '$name'" . profile(\%says);

	return step(
		$run,
		"acquire_any($args)",
		sub {
			any($run,
				"SELECT election, term FROM leader_election.acquire_any($args)");
		},
		sub {
			stand_for_all($_[0], $group, $name, 'detached', \%says, {},
				sub { $_[0]{term} > $_[1] });
		});
}

# More seats, or fewer
sub alter_seats
{
	my ($run, $election, $l) = @_;
	my $group = $l->{group} // return 0;
	my $seats = pick($run, 1, 2, map { ($_, $_) } 3 .. $MOST_SEATS);

	return step(
		$run,
		"alter_group('$group', seats => $seats)",
		sub {
			wait_moved($run);
			ask($run->{control},
				"SELECT leader_election.alter_group('$group', seats => $seats)");
		},
		sub {
			$_[0]{groups}{$group}{seats} = $seats;
			make_seats($_[0], $group);
			return '';
		});
}

# Are several seats of the group due to one candidate?
sub is_due_twice
{
	my ($s, $group) = @_;
	my %due;

	foreach my $l (map { $s->{elections}{$_} } seats($s, $group))
	{
		my $heir = $l->{reserved} // $l->{to};

		return 1 if defined $heir && $due{$heir}++;
	}
	return 0;
}

# How many seats a candidate may have
sub alter_cap
{
	my ($run, $election, $l) = @_;
	my $group = $l->{group} // return 0;
	my $max =
	  is_due_twice($run->{states}[0], $group) ? 1 : pick($run, 1, 1, 2, 2, 3);

	return step(
		$run,
		"alter_group('$group', max_per_candidate => $max)",
		sub {
			ask($run->{control},
				"SELECT leader_election.alter_group('$group', max_per_candidate => $max)");
		},
		sub {
			$_[0]{groups}{$group}{max_per_candidate} = $max;
			return '';
		});
}

# The leader of a seat that the group has no more gives it up, but nobody follows.
# It is there while a hold lasts.
sub resign_withdrawn
{
	my ($run, $election, $l) = @_;
	my $waits_for;

	return 0
	  unless defined $l->{leader} && is_withdrawn($run->{states}[0], $election);
	give_up(
		$run,
		$election,
		$l, 'resign', hold($election),
		sub {
			end_term($_[0], $election, 'yielded', sits_out => 1, later => 1);
			return 't';
		});
	$waits_for = $run->{control}->query(
		"SELECT waiting_for FROM leader_election.status WHERE election = '$election'");
	$seen{$waits_for}++ if $waits_for ne '';
	return complain($run, "a seat that is withdrawn waits for $waits_for")
	  unless $waits_for =~ /^(withdrawn)?$/;
	return 1;
}

1;
