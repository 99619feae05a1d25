# What observers were told: by wait_for_change(), by status and by diagnose(). It is
# compared with what is certain for all of the time between question and answer.

package Check::Watched;

use strict;
use warnings;

use Check::Answers;
use Check::Known;
use Check::Record;
use Exporter qw(import);
use List::Util qw(first);

our @EXPORT = qw(read_watcher check_watched @waits @rows @findings);

our @waits;		# wait_for_change() has answered; without received: it has not
our @rows;		# of status
our @findings;	# of diagnose(): the first row, and the others as more
my @unreadable;	# [from, to]: the table of leases may have been locked

sub read_watcher
{
	my ($path) = @_;
	my ($who) = $path =~ m{/candidate\.([^/]+)$};
	my $asked;	# what there is no answer to yet

	foreach (lines($path))
	{
		my ($kind, $election, $sent, $received, @f) = split / /;
		my %answer = (who => $who, election => $election, sent => $sent, received => $received);

		$asked = $kind eq 'p' ? { who => $who, election => $election, sent => $sent, ms => $received } : undef;

		if ($kind eq 'h')
		{
			@answer{qw(ms old_term old_leader term leader)} = @f;
			push @waits, \%answer;
		}
		elsif ($kind eq 'o')
		{
			@answer{qw(state term leader waiting_for)} = @f;
			push @rows, \%answer;
		}
		elsif ($kind eq 'f')
		{
			@answer{qw(severity finding)} = @f;
			push @findings, \%answer;
		}
		elsif ($kind eq 'F')
		{
			@answer{qw(severity finding)} = @f;
			push @{ $findings[-1]{more} }, \%answer;
		}
	}
	push @waits, $asked if $asked;
	return;
}

# A call of wait_for_change() that finds the table locked answers what it was asked
# with, when its time is over.
sub read_locks
{
	foreach (lines("$out/events"))
	{
		push @unreadable, [ $1 - 1_000_000, $1 + 20_000_000 ]
		  if /^(\d+) fault maintenance of all tables:/;
		push @unreadable, [ $1 - 1_000_000, $1 + 5_000_000 ]
		  if /^(\d+) fault (?:lock table|maintenance): .*\blease\b/;
	}
	return;
}

# It returns when there is a change, or when its time is over, and what it says then
# was no longer so before it was called.
sub check_wait
{
	my ($w, $known) = @_;
	my $same = $w->{term} eq $w->{old_term} && $w->{leader} eq $w->{old_leader};
	my $text = "$w->{election}: from $w->{old_term} $w->{old_leader} to $w->{term} $w->{leader} in $w->{ms} ms, " . between($w);

	$count{ 'wait_for_change(): ' . ($same ? 'time over' : 'a change') }++;
	violation('returned without a change', $text)
	  if $same && $w->{received} - $w->{sent} < $w->{ms} * 1000;
	return if $w->{term} eq '-';
	$leader{ $w->{election} }{ $w->{term} }{ $w->{leader} } //= $w->{who};
	return if is_unclear($w) || grep { $_->[0] < $w->{received} && $_->[1] > $w->{sent} } @unreadable;

	my $later = first { $_->{to} < $w->{sent} && $_->{term} > $w->{term} && !in_failover($_->{from} - 2 * $lease_us, $w->{received}) }
	@{ $known->{ $w->{election} } };

	violation('missed a change', "$text; before: " . describe($later)) if $later;
	return;
}

# A row that is false for the candidate that has certainly led
sub check_row
{
	my ($row, $claims) = @_;
	my $leads = contradicted($claims, $row, $row->{state} eq 'vacant' ? undef : $row->{leader}, $row->{term});

	$count{ 'rows of status: ' . $row->{state} }++;
	$leader{ $row->{election} }{ $row->{term} }{ $row->{leader} } //= $row->{who}
	  if $row->{state} =~ /^(?:led|yielding)$/;
	$count{'rows of status compared'}++ if certain_leader($claims, $row) && !is_unclear($row);
	violation('status', "$row->{election}: $row->{state} $row->{term} $row->{leader}, "
		  . between($row) . '; ' . describe($leads)) if $leads;
	return;
}

sub check_watched
{
	my (%claims, %known);

	read_locks();
	push @{ $claims{ $_->{election} } }, $_ foreach @claims;
	push @{ $known{ $_->{election} } }, $_ foreach @moments, map { { %$_, to => $_->{from} } } @claims;
	check_wait($_, \%known) foreach grep { defined $_->{received} } @waits;
	check_row($_, \%claims) foreach @rows;
	violation('the run itself', 'the observers were told nothing') unless @waits && @rows && @findings;
	return;
}

1;
