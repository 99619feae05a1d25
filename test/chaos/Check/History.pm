# The history that the servers keep: no term is left out, or overlaps another one
# (G1, G5, G10).

package Check::History;

use strict;
use warnings;

use Check::Known;
use Check::Record;
use Exporter qw(import);

our @EXPORT = qw(read_history kept_terms may_be_lost continues check_claims_in_history);

# These rows were there before the run, and nobody has led in it: see Pressure.pm.
my $SEEDED = qr/^past-/;

my $SLACK_US = 1_000_000;
my $CLOCKS_US = 50_000;	# so much may lie between the readings of two clocks

my %begun;	# {election} = [term, when it began] of each term that the last server knows of

# Was the election dropped between two terms, or may it have been, by a statement whose
# answer nobody awaited any more?
sub may_be_new
{
	my ($election, $over, $began) = @_;

	return $recreated{$election} || may_be_withdrawn($election, 0, undef) if !$wall_clock || !$over || !$began;
	return was_dropped($election, $over - $DROPPED_US, $began + $SLACK_US);
}

# No term began before the one before it had ended (G1), and none was left out (G5).
sub read_history
{
	my (%history, %order);

	foreach my $path ("$out/history", glob "$out/history.old.*")
	{
		foreach (lines($path))
		{
			my ($election, $term, $leader, $kind, $acquired, $ended, $reason, $began, $over) = split /\|/;

			next unless defined $leader;
			$leader{$election}{$term}{$leader} //= 'history' unless $election =~ $SEEDED;
			$history{$election}{$term} //= { leader => $leader, kind => $kind, reason => $reason,
				acquired => $acquired, ended => $ended,
				began => $began && $began * 1e6 - $epoch_us, over => $over && $over * 1e6 - $epoch_us };
		}
		last if $path ne "$out/history" && !%history;
	}
	violation('history', 'there is none') unless %history;

	# The server's own, in order of terms
	foreach (lines("$out/history"))
	{
		my ($election, $term, $leader, $kind, $acquired, $ended, $reason) = split /\|/;
		my $row = $history{$election}{ $term // '' };
		my $last = $order{$election};

		next unless defined $leader;
		$count{'terms in history'}++ unless $election =~ $SEEDED;
		violation('not reset', "$election: term $term of $leader, who is detached, ended as $reason")
		  if $kind eq 'detached' && $reason eq 'session reset';
		violation('history', "$election: term $term began at $acquired, term $last->[0] ended at $last->[1]")
		  if $wall_clock && $last && ($last->[1] eq '' || $last->[1] gt $acquired);

		# Within an epoch (its number is above the lowest 22 bits) none is left out;
		# but a new election begins above whatever was dropped in between.
		violation('history', "$election: after term $last->[0] comes term $term")
		  if $last && $term != $last->[0] + 1 && $term >> 22 == $last->[0] >> 22
		  && !may_be_new($election, $last->[2], $row->{began});
		$order{$election} = [ $term, $ended, $row->{over} ];
		push @{ $begun{$election} }, [ $term, $row->{began} ] if $row->{began};
	}
	return \%history;
}

# The terms that the last server knows of
sub kept_terms
{
	return map { join(' ', (split /\|/)[ 0, 1 ]) => 1 } lines("$out/history");
}

# May a failover have lost the term of this claim?  What a server grants later is lost with
# it; so what is kept of a later time is of a later epoch, in which the next server grants.
sub may_be_lost
{
	my ($c) = @_;

	return in_failover($c->{from}, $c->{from}) && !($wall_clock
		&& grep { $_->[1] > $c->{from} + $CLOCKS_US && $_->[0] >> 22 <= $c->{term} >> 22 } @{ $begun{ $c->{election} } // [] });
}

# Does a leader lead on after a failover?
sub continues
{
	my ($before, $row) = @_;

	return $before && ($before->{reason} // '') eq 'failover' && $before->{leader} eq $row->{leader};
}

# Every term that was led is in history (G10).
sub check_claims_in_history
{
	my ($history) = @_;

	foreach my $c (@claims)
	{
		my $row = $history->{ $c->{election} }{ $c->{term} };

		next if $row && $row->{leader} eq $c->{candidate};
		violation('history', 'nothing of ' . describe($c))
		  unless !$row && may_be_lost($c);
	}
	return;
}

1;
