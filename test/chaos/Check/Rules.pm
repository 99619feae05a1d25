# Who may be elected: nobody in a pause, nobody who is drained, and for no run
# that is done.

package Check::Rules;

use strict;
use warnings;

use Check::History;
use Check::Known;
use Check::Record;
use Exporter qw(import);

our @EXPORT = qw(check_paused check_runs check_drained);

my $RACE = qr/^(?:race|lone|runs)$/;

# In a paused election nobody new leads but by a hand-over to a named candidate: a
# transfer, or a yield that an operator asked for.  Where the strategy may have asked
# for one before, or (all) a leader may have been chosen before, that has time until
# it must be over; a race has none that waits, but a process that has chosen may be
# stopped.  A pause is gone with an election that is dropped, and may be lost with a
# failover, if its wait for the standby was cut short.
sub check_paused
{
	my ($history) = @_;
	my $slack = 50_000;
	my $under_way = 2 * 1.25 * $lease_us + 800_000;
	my $stopped = 3_000_000;

	return unless $wall_clock;
	foreach my $election (sort keys %$history)
	{
		my $rows = $history->{$election};
		my $last;

		foreach my $term (sort { $a <=> $b } keys %$rows)
		{
			my $row = $rows->{$term};
			my $before = $last;

			$last = $row;
			next unless $row->{began};
			foreach my $pause (grep { $_->[2] eq $election || $_->[2] eq 'all' } @paused)
			{
				my ($from, $to, $what) = @$pause;
				my $began = $row->{began};

				next unless defined $to && $began > $from + $slack && $began < $to - $slack;
				next if in_failover($from, $to) || was_dropped($election, $from, $to);
				$count{'terms that began in a pause'}++;
				next if $began < $from + ($election !~ $RACE ? $under_way : $what eq 'all' ? $stopped : 0);
				next if $before && ($before->{reason} // '') eq 'transferred' || continues($before, $row);
				next if grep { $_->[1] eq $election && $_->[0] <= $began && $began < $_->[0] + $under_way } @named;
				violation('elected while paused', "$election: $row->{leader} in term $term at $began, paused ($what) from $from to $to");
			}
		}
	}
	$count{pauses} = @paused if @paused;
	return;
}

# No run is granted after it, or a later one, was recorded as done, but in an election
# that was dropped in between.
sub check_runs
{
	foreach my $done (@finished)
	{
		my ($when, $election, $run, $who) = @$done;

		foreach my $again (grep { $_->[1] eq $election && $_->[0] > $when && $_->[2] le $run } @begun)
		{
			next if grep { $_->[2] eq $election && $_->[0] < $again->[4] && ($_->[1] // $when) >= $when } @dropping;
			violation('run again', "$election: run $again->[2] was granted to $again->[3], who asked at $again->[0]; $run was done by $who at $when");
		}
	}
	return;
}

# Nobody new is elected who is drained, not even if nobody else stands. A drain of
# all elections takes no locks: what was decided before has some time to be told. A
# drain is gone with its election, and may be lost with a failover.
sub check_drained
{
	my ($history) = @_;
	my $slack = 50_000;
	my $under_way = 3_000_000;	# a process may be stopped for so long

	return unless $wall_clock;
	foreach my $election (sort keys %$history)
	{
		my $rows = $history->{$election};
		my $last;

		foreach my $term (sort { $a <=> $b } keys %$rows)
		{
			my $row = $rows->{$term};
			my $before = $last;

			$last = $row;
			next unless $row->{began};
			foreach my $drain (grep { $_->{election} eq $election || $_->{election} eq 'all' } @drained)
			{
				my ($from, $to, $names) = @{$drain}{qw(from to names)};
				my $margin = $drain->{election} eq 'all' ? $under_way : 0;

				next unless defined $to && $row->{began} > $from + $margin + $slack && $row->{began} < $to - $slack;
				next if in_failover($from, $to) || was_dropped($election, $from, $to);
				$count{'terms that began in a drain'}++;
				next unless $names =~ /(.*)\*$/ ? index($row->{leader}, $1) == 0 : $names eq $row->{leader};
				next if continues($before, $row);
				violation('drained elected', "$election: $row->{leader} in term $term at $row->{began}, drained ($names in $drain->{election}) from $from to $to");
			}
		}
	}
	$count{drains} = @drained if @drained;
	return;
}

1;
