# Groups: no more seats than there are, and no more of them for a candidate
# than it may have.

package Check::Groups;

use strict;
use warnings;

use Check::History;
use Check::Known;
use Check::Record;
use Exporter qw(import);
use List::Util qw(max);

our @EXPORT = qw(check_cap check_seats);

# Seats that a candidate certainly leads at the same time: the limit was not lower when
# it was granted the last of these.  A leader that leads on after a failover is not
# refused, and a limit that is lowered takes nothing.  Where the wall clock says
# nothing, any limit that there was will do.
sub check_cap
{
	my ($history) = @_;
	my %led;	# {group and candidate} = claims

	foreach my $c (grep { $_->{election} =~ m{/} && $_->{from} < $_->{to} } @claims)
	{
		push @{ $led{ ($c->{election} =~ s{/\d+$}{}r) . " $c->{candidate}" } }, $c;
	}
	foreach my $key (sort keys %led)
	{
		my ($group) = split / /, $key;

		foreach my $c (@{ $led{$key} })
		{
			my %seats = map { $_->{election} => $_ }
			  grep { $_->{from} <= $c->{from} && $_->{to} > $c->{from} } @{ $led{$key} };
			my @seats = sort { $a->{granted} <=> $b->{granted} } map { granted_at($history, $_) } values %seats;
			my $last = $seats[-1];

			next if @seats < 2;
			$count{'times that a candidate led ' . @seats . ' seats of a group'}++;
			next if $last->{continues} || grep { $_->{granted} == 0 || (!$wall_clock && $_->{continues}) } @seats;
			next if @seats <= max($wall_clock ? in_force($group, 'limit', $last->{granted}) : map { $_->{limit} } @groups);
			violation('cap', join('; ', map { describe($_->{claim}) } @seats) . "; the last one was granted at $last->{granted}");
		}
	}
	return;
}

# When was the term granted? 0: unknown
sub granted_at
{
	my ($history, $c) = @_;
	my $rows = $history->{ $c->{election} };
	my $row = $rows->{ $c->{term} };
	my $before = max(grep { $_ < $c->{term} } keys %$rows);

	return { claim => $c, granted => $row && $row->{began} || 0,
		continues => $row && $before && continues($rows->{$before}, $row) };
}

# Nobody new leads a seat whose number is higher than there are seats.
sub check_seats
{
	my ($history) = @_;

	return unless $wall_clock;
	foreach my $election (grep { m{/} } sort keys %$history)
	{
		my ($group, $number) = $election =~ m{^(.*)/(\d+)$};
		my $rows = $history->{$election};
		my $before;

		foreach my $term (sort { $a <=> $b } keys %$rows)
		{
			my $row = $rows->{$term};

			$count{'terms in seats of groups'}++;
			violation('withdrawn seat', "$election: $row->{leader} was elected in term $term at $row->{began}")
			  if $row->{began} && !continues($before, $row) && $number > max(in_force($group, 'seats', $row->{began}));
			$before = $row;
		}
	}
	return;
}

1;
