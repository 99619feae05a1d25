# A term that is over, by history, is so for everybody: nothing is written in it any
# more (G8), and its leader does not lead (G3). And it was not ended as long as its
# session lived, or its lease lasted (G2).

package Check::Over;

use strict;
use warnings;

use Check::Known;
use Check::Record;
use Exporter qw(import);

our @EXPORT = qw(check_over);

my $SLACK_US = 50_000;	# so much may lie between the readings of two clocks
my $OWN_US = 10_000;	# ... of one clock, by one server

# How a term ends that nobody but its leader, or time, can end: is_leader() is false before.
my $BY_LEADER = qr/^(?:resigned|expired|session ended)$/;

# A fence keeps the end of its term waiting until its transaction is over.
sub check_fences
{
	my ($history) = @_;

	foreach (lines("$out/writes"))
	{
		my ($election, $term, $candidate, $id, $committed) = split /\|/;

		next unless defined $committed && $committed ne '';
		my $over = $history->{$election}{$term}{over} or next;

		$count{'fenced rows of terms that are over'}++;
		violation('fenced row', "$election: $candidate $id of term $term was committed at $committed, " . ($committed * 1e6 - $epoch_us - $over) / 1e6 . ' s after its end')
		  if $committed * 1e6 - $epoch_us > $over + $OWN_US;
	}
	return;
}

# When it was over for the leader of this claim: at the end of its term, if nobody else
# can have ended that; else when another candidate led in the next one.
sub over_for
{
	my ($c, $row, $next) = @_;

	return $row->{over} if $row && $row->{over} && $row->{leader} eq $c->{candidate}
	  && $row->{kind} eq 'session' && $row->{reason} =~ $BY_LEADER;
	return $next->{began} if $next && $next->{leader} ne $c->{candidate};
	return;
}

# {election}{term} = the row of the next term
sub next_terms
{
	my ($history) = @_;
	my %next;

	foreach my $election (keys %$history)
	{
		my $rows = $history->{$election};
		my @terms = sort { $a <=> $b } grep { $rows->{$_}{began} } keys %$rows;

		$next{$election}{ $terms[$_] } = $rows->{ $terms[ $_ + 1 ] } foreach 0 .. $#terms - 1;
	}
	return \%next;
}

# Was this session reset in this term, or may it have been?
sub was_reset
{
	my ($c, $over) = @_;

	return grep { $_->[1] > $c->{from} && $_->[0] <= $over } @{ $resets{ $c->{who} } // [] };
}

# A session is dead, or was reset, or a lease has run out, before it is taken. Exempt: what
# was granted in a failover, or ended within two leases after it: the old side goes on
# answering.
sub check_taken
{
	my ($c, $row) = @_;
	my $over = $row->{over} or return;

	return if $row->{leader} ne $c->{candidate} || in_failover($c->{from}, $over) || in_failover($over - 2 * $lease_us, $over);
	if ($row->{reason} =~ /^session (?:ended|reset)$/)
	{
		# Clients in other languages connect anew under the same number.
		return if $languages{ $c->{candidate} =~ s/\d+$//r };
		my $answered = $answered{ $c->{who} } or return;

		$count{'terms that ended with their sessions'}++;
		violation('taken', describe($c) . ": $row->{reason} at $over, without a reset, and was answered what it asked at $answered")
		  if $answered > $over + $SLACK_US && !was_reset($c, $over);
	}
	elsif ($row->{reason} eq 'expired' && $c->{granted})
	{
		$count{'leases of detached candidates that ran out'}++;
		violation('taken', describe($c) . ": its lease had run out at $over") if $over < $c->{to} - $SLACK_US;
	}
	return;
}

sub check_over
{
	my ($history) = @_;
	my $next = next_terms($history);

	return unless $wall_clock;
	check_fences($history);
	foreach my $c (@claims)
	{
		my $row = $history->{ $c->{election} }{ $c->{term} };
		my $over = over_for($c, $row, $next->{ $c->{election} }{ $c->{term} });

		check_taken($c, $row) if $row;
		next unless defined $over;
		$count{'claims compared with the end of their term'}++;
		violation('led when it was over', describe($c) . ": that was over at $over")
		  if $c->{to} > $over + $SLACK_US && $c->{from} < $c->{to} && !may_be_over($c, $over);
	}
	return;
}

1;
