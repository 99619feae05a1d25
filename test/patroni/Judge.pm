# What was believed, and when, compared by two checkers that trust nobody: that of the
# clients (../clients/Checker.pm), for those with its protocol; and parts of that of
# the chaos run (../chaos/check.pl), for those with its logs and for everybody's times.
#
#	judge($out, \@processes, $history, $journal)    [ RULE, TEXT ] of each violation
#	figures()                                       what was counted, by name
#
# To both are added what the nodes have said all the time of who leads there (seen.N):
# so an old primary is asked, too, for as long as it takes itself for one.

package Judge;

use strict;
use warnings;

use Check::Clients;
use Check::Events;
use Check::History;
use Check::Leaders;
use Check::Over;
use Check::Record;
use Check::Writes;
use Checker;
use Exporter qw(import);
use Time::HiRes qw(clock_gettime time CLOCK_BOOTTIME CLOCK_MONOTONIC);

our @EXPORT = qw(figures judge);

# Intervals in which a process has certainly worked, in the time of the logs
sub add_claims
{
	my (@processes) = @_;
	my $offset = (clock_gettime(CLOCK_BOOTTIME) - clock_gettime(CLOCK_MONOTONIC)) * 1e6;

	foreach my $interval (map { Checker::intervals($_) } @processes)
	{
		my ($process, $term, $first, $last) = @$interval;
		my ($election, $candidate) = @{$process}{qw(election candidate)};

		push @claims, { election => $election, term => $term, candidate => $candidate, who => $candidate,
			from => $first / 1e3 + $offset, to => $last / 1e3 + $offset, believes => 1 };
		$leader{$election}{$term}{$candidate} //= $candidate;
	}
	return;
}

# Nodes write the wall clock's time.
sub read_seen
{
	foreach my $path (glob "$out/seen.*.log")
	{
		foreach (lines($path))
		{
			my ($word, $n, $from, $to, $election, $term, $candidate) = split /\|/;

			next unless $word eq 'seen' && defined $candidate;
			$count{"seen at node$n"}++;
			add_seen($n, $from * 1e6 - $epoch_us, $to * 1e6 - $epoch_us, $election, $term, $candidate);
		}
	}
	return;
}

sub judge
{
	my ($processes, $history, $journal);

	($out, $processes, $history, $journal) = @_;
	my @found = map { [ $_->[0], "$_->[1]: $_->[2]" ] } check($processes, $history, $journal);

	read_events();
	read_candidate($_) foreach glob "$out/candidate.*.[0-9]*";
	add_claims(@$processes);
	read_seen();
	my $rows = read_history();
	check_overlaps();
	check_terms();
	check_early();
	check_claims_in_history($rows);
	check_over($rows);
	check_writes();
	check_resource();
	foreach my $kind (sort keys %violations)
	{
		push @found, map { [ $kind, $_ ] } @{ $violations{$kind} };
	}
	return @found;
}

sub figures { return { %count, %info }; }

1;
