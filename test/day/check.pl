# The checker of a day: what clients believed, wrote and were told, against each other
# and against the history, by the modules of the chaos run's checker.
#
#	perl check.pl FOLDER

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../chaos";

use Check::Clients;
use Check::Events;
use Check::History;
use Check::Leaders;
use Check::Over;
use Check::Record;
use Check::Servers;
use Check::Writes;
use List::Util qw(min sum0);

# The rows of history, which were collected again and again: the last word on each term
sub prepare_history
{
	my %last;

	foreach (lines("$out/history.all"))
	{
		my ($election, $term, undef, undef, undef, $ended) = split /\|/;

		next unless defined $ended;
		$last{$election}{$term} = $_ if $ended ne '' || !defined $last{$election}{$term};
	}
	open my $file, '>', "$out/history" or die "$out/history: $!\n";
	foreach my $election (sort keys %last)
	{
		print $file "$last{$election}{$_}\n" foreach sort { $a <=> $b } keys %{ $last{$election} };
	}
	close $file;
	return;
}

# Of each moment at which somebody has led, only those are kept that no interval of the
# same leader has in it: the others would fill the memory.
sub read_clients
{
	foreach my $path (glob "$out/candidate.*")
	{
		my $claims = @claims;

		next if $path =~ /\.out$/;
		@moments = grep { $_->{kept} } @moments;
		read_candidate($path);
		my %short = map { ("$_->{election} $_->{term}" => 1) } grep { $_->{from} >= $_->{to} } @claims[ $claims .. $#claims ];

		$_->{kept} //= $short{"$_->{election} $_->{term}"} // 0 foreach @moments;
		@moments = grep { $_->{kept} } @moments;
		@announced = ();
		%listening = ();
	}
	return;
}

# In a run of minutes, pg_leader may never have its turn.
sub count_leaders
{
	my %led;
	my ($start) = map { /^(\d+) start / ? $1 : () } lines("$out/events");
	my ($end) = map { /^(\d+) end$/ ? $1 : () } lines("$out/events");
	my $long = $start && $end && $end - $start > 1200e6;

	foreach (@claims)
	{
		my $kind = $_->{candidate} =~ s/\d+$//r;

		$led{$kind}++ if $_->{from} < $_->{to};
	}
	foreach my $kind (qw(cs cm cd ps pd python asyncpg node java go))
	{
		$count{"terms of $kind"} = $led{$kind} // 0;
		violation('the run itself', "$kind led in no term") if $long && !$led{$kind};
	}
	return;
}

# Apply workers that come back before the server has noticed that they were gone
sub forgive
{
	my $lines = $violations{'error in a log'} or return;

	@$lines = grep { !/replication slot "\w+" is active for PID/ } @$lines;
	delete $violations{'error in a log'} unless @$lines;
	return;
}

($out) = @ARGV;
prepare_history();
read_events();
read_clients();
my $history = read_history();
check_overlaps();
check_early();
check_claims_in_history($history);
check_over($history);
check_writes();
check_resource();
check_terms();
check_logs();
forgive();
check_ends();
count_leaders();
delete @info{ grep { /^led, / } keys %info };

print "Faults:\n";
printf "  %-44s %8d\n", $_, $faults{$_} foreach sort keys %faults;
printf "  %-44s %8d\n", 'in all', sum0(values %faults);
print "Counts:\n";
printf "  %-44s %8d\n", $_, $count{$_} foreach sort keys %count;
printf "  %-44s %8.4g\n", $_, $info{$_} foreach sort keys %info;
foreach my $kind (sort keys %violations)
{
	my @all = @{ $violations{$kind} };

	print "VIOLATION, $kind (" . @all . "):\n";
	print "  $_\n" foreach @all[ 0 .. min($#all, 9) ];
}
printf "Violations: %d%s\n", sum0(map { scalar @$_ } values %violations),
  %violations ? ' (' . join(', ', sort keys %violations) . ')' : '';
exit(%violations ? 1 : 0);
