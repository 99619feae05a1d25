# One leader at a time (G1), whose lease does not end early (G2), and terms that
# only grow (G5).

package Check::Leaders;

use strict;
use warnings;

use Check::History;
use Check::Known;
use Check::Record;
use Exporter qw(import);
use List::Util qw(min sum0 uniq);

our @EXPORT = qw(check_overlaps check_terms check_early);

# Is it said of one process? A server does not know which process of a candidate leads.
sub is_one
{
	my ($x, $y) = @_;

	return $x->{candidate} eq $y->{candidate} && ($x->{who} eq $y->{who} || "$x->{who} $y->{who}" =~ /by server/);
}

sub check_overlaps
{
	foreach my $election (uniq map { $_->{election} } @claims, @spans)
	{
		my @sorted = sort { $a->{from} <=> $b->{from} }
		  grep { $_->{election} eq $election && $_->{from} < $_->{to} } @claims, @spans;
		my @open;

		foreach my $c (@sorted)
		{
			@open = grep { $_->{to} > $c->{from} } @open;
			foreach my $other (grep { !is_one($_, $c) } @open)
			{
				$count{'pairs compared'}++;
				next if cannot_know($other, $c->{from}, min($other->{to}, $c->{to}));
				violation('two leaders', describe($other) . ', and ' . describe($c));
			}
			push @open, $c;
		}
		my @own = grep { $_->{who} !~ /^by server/ } @sorted;

		$count{'intervals of leadership'} += @own;
		$info{"led, $election, s"} = sum0(map { $_->{to} - $_->{from} } @own) / 1e6;

		# Moments within somebody else's interval
		foreach my $m (sort { $a->{from} <=> $b->{from} }
			grep { $_->{election} eq $election } @moments)
		{
			while (@sorted && $sorted[0]{to} < $m->{from} - 60_000_000) { shift @sorted; }
			foreach my $c (@sorted)
			{
				last if $c->{from} > $m->{from};
				violation('two leaders', describe($c) . ', and at a moment ' . describe($m))
				  if $c->{to} > $m->{to} && !is_one($c, $m)
				  && !cannot_know($c, $m->{from}) && !cannot_know($m, $m->{from});
			}
		}
	}
	return;
}

sub check_terms
{
	foreach my $election (sort keys %leader)
	{
		foreach my $term (sort { $a <=> $b } keys %{ $leader{$election} })
		{
			my @names = sort keys %{ $leader{$election}{$term} };

			$count{'terms that somebody led in'}++;
			violation('term twice', "$election: term $term: @names") if @names > 1;
		}
	}

	# The same term by two processes of the same name
	my %who;
	$who{"$_->{election} $_->{term}"}{ $_->{who} } = 1 foreach @claims;
	foreach my $key (sort keys %who)
	{
		violation('term twice', "$key: " . join(', ', sort keys %{ $who{$key} }))
		  if keys %{ $who{$key} } > 1;
	}
	return;
}

# A lease ends when it runs out, and not before (G2). A grant that no standby knew
# of, since the wait for it was cut short, may be lost in a failover: then it is
# over indeed (and nobody else leads in that time), for as long as it can have lasted. The
# portable edition has no proof, and its old side says so of the terms of the new one, too.
sub check_early
{
	my %kept = kept_terms();

	foreach (@early)
	{
		my ($time, $c) = @$_;

		next if !$kept{"$c->{election} $c->{term}"} && may_be_lost($c) && in_failover($time - 2 * $lease_us, $time);
		next if $edition eq 'portable' && in_failover($time, $time);
		violation('ended early', "told at $time that this is over: " . describe($c));
	}
	return;
}

1;
