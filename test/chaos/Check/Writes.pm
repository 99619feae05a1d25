# What leaders wrote: fenced rows (G8, G6), and what an outside resource took.

package Check::Writes;

use strict;
use warnings;

use Check::Known;
use Check::Record;
use Exporter qw(import);
use List::Util qw(max);

our @EXPORT = qw(check_writes check_resource);

sub check_writes
{
	my (%rows, %present);

	foreach (lines("$out/writes"))
	{
		my ($election, $term, $candidate, $id, $committed) = split /\|/;

		next unless defined $committed;
		$count{'fenced rows'}++;
		$present{$election}{"$candidate $id"} = 1;
		$leader{$election}{$term}{$candidate} //= 'fenced row';
		push @{ $rows{$election} }, [ $term, $committed, "$candidate $id" ];
	}
	foreach my $election (sort keys %rows)
	{
		my $highest = [ 0, 0, '' ];

		foreach my $row (sort { $a->[1] <=> $b->[1] } grep { $_->[1] ne '' } @{ $rows{$election} })
		{
			last unless $wall_clock;
			violation('fenced row', "$election: $row->[2] of term $row->[0] was committed at $row->[1], after $highest->[2] of term $highest->[0] at $highest->[1]")
			  if $row->[0] < $highest->[0];
			$highest = $row if $row->[0] > $highest->[0];
		}
	}

	# By the clients' clock, and none is lost
	my %first;
	foreach my $w (sort { $a->{received} <=> $b->{received} } grep { $_->{outcome} eq 'committed' } @written)
	{
		$first{ $w->{election} }{ $w->{term} } //= $w;

		# The drivers of other languages do not look for the warning about the standby.
		violation('lost row', "$w->{election}: $w->{candidate} $w->{id} of term $w->{term}, committed at $w->{received}")
		  unless $present{ $w->{election} }{"$w->{candidate} $w->{id}"} || $languages{ $w->{candidate} =~ s/\d+$//r };
	}
	foreach my $w (grep { $_->{outcome} eq 'committed' } @written)
	{
		foreach my $term (grep { $_ > $w->{term} } keys %{ $first{ $w->{election} } })
		{
			my $other = $first{ $w->{election} }{$term};

			violation('fenced row', "$w->{election}: $w->{candidate} $w->{id} of term $w->{term}: COMMIT was sent at $w->{sent}, that of $other->{candidate} $other->{id} of term $term answered at $other->{received}")
			  if $w->{sent} > $other->{received};
		}
	}
	return;
}

sub check_resource
{
	my (%highest, %claims);

	push @{ $claims{"$_->{election} $_->{term}"} }, $_ foreach @claims;
	foreach (lines("$out/resource"))
	{
		my ($answer, $election, $term, $candidate, $sent, $received) = split / /;
		my $before = $highest{$election} // 0;

		$count{'outside resource: ' . ($answer eq 'a' ? 'accepted' : 'denied')}++;
		if ($answer eq 'a')
		{
			violation('outside resource', "$election: $candidate in term $term after $before") if $term < $before;
			$highest{$election} = max($before, $term);
			$leader{$election}{$term}{$candidate} //= 'outside resource';
			next;
		}
		violation('outside resource', "$election: $candidate was denied in term $term at $sent, although it led: " . describe($_))
		  foreach grep { $_->{candidate} eq $candidate && $_->{from} <= $sent && $_->{to} > $received
			  && !may_be_over($_, $sent) } @{ $claims{"$election $term"} // [] };
	}
	return;
}

1;
