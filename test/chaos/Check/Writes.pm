# What leaders wrote: fenced rows (G8, G6), and what an outside resource took.

package Check::Writes;

use strict;
use warnings;

use Check::Known;
use Check::Record;
use Exporter qw(import);

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

	# None is lost. The drivers of other languages do not look for the warning about the
	# standby, which comes before a failover only.
	my @committed = grep { $_->{outcome} eq 'committed' } @written;

	foreach my $w (@committed)
	{
		violation('lost row', "$w->{election}: $w->{candidate} $w->{id} of term $w->{term}, committed at $w->{received}")
		  unless $present{ $w->{election} }{"$w->{candidate} $w->{id}"} || may_be_unconfirmed($w);
	}

	# By the clients' clock: when COMMIT was sent of a row that is there, or was said to be,
	# nobody had led in a later term.
	my %known;

	foreach ((map { { %$_, time => $_->{from} } } @claims),
		map { { %$_, time => $_->{received} // $_->{to} } } @moments, @committed)
	{
		my $first = \$known{ $_->{election} }{ $_->{term} };

		$$first = $_ if !$$first || $_->{time} < $$first->{time};
	}
	foreach my $w (@written)
	{
		my $is_present = $present{ $w->{election} }{"$w->{candidate} $w->{id}"};

		next unless $is_present || ($w->{outcome} eq 'committed' && !may_be_unconfirmed($w));

		my $terms = $known{ $w->{election} };

		foreach my $later (map { $terms->{$_} } grep { $_ > $w->{term} } keys %$terms)
		{
			violation('fenced row', "$w->{election}: $w->{candidate} $w->{id} of term $w->{term}: COMMIT was sent at $w->{sent}, and $later->{candidate} was known at $later->{time} to lead in term $later->{term}")
			  if $w->{sent} > $later->{time};
		}
	}
	return;
}

# May it be a row of the old side of a failover, of which nobody there was told that the
# standby had not confirmed it?
sub may_be_unconfirmed
{
	my ($w) = @_;

	return $languages{ $w->{candidate} =~ s/\d+$//r } && in_failover($w->{received}, $w->{received});
}

sub check_resource
{
	my %claims;

	push @{ $claims{"$_->{election} $_->{term}"} }, $_ foreach @claims;
	foreach (lines("$out/resource"))
	{
		my ($answer, $election, $term, $candidate, $sent, $received) = split / /;

		$count{'outside resource: ' . ($answer eq 'a' ? 'accepted' : 'denied')}++;
		if ($answer eq 'a')
		{
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
