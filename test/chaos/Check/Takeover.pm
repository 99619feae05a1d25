# How long nobody led, between faults (G7).
#
# A vacancy begins with the end of a term that its leader gave up, by history; else
# when there is the last sign of that leader. It ends with the next term, by history.
# Of it counts what was quiet: no fault was under way that reaches the election, some
# certainly stood who could be elected, and no detached candidate was asleep, for whom
# the seat may have been kept.

package Check::Takeover;

use strict;
use warnings;

use Check::Known;
use Check::Quiet;
use Check::Record;
use Check::Standing;
use Exporter qw(import);
use List::Util qw(max min);

our @EXPORT = qw(check_takeovers);

my $PROMPT_S = 2;
my $REJOIN_US = 3_000_000;	# for a new seat, those who stood for the group have to stand anew
my $GAVE_UP = qr/^(?:resigned|left|transferred|yielded)$/;

# {election}{term} = when the leader last said anything that proves that it led
sub last_signs
{
	my %last;

	foreach (@claims, @moments)
	{
		my $sign = \$last{ $_->{election} }{ $_->{term} };

		$$sign = max($$sign // 0, $_->{to});
	}
	return \%last;
}

# The last sign of whoever led in that term, if it could give one: a process that is
# stopped leads on. Who keeps no log is believed to have led to the end.
sub last_sign
{
	my ($row, $end, $signs, $term) = @_;
	my $last = max($row->{began}, $signs->{$term} // 0);

	return $end if $last >= $end || !is_logged($row->{leader});
	return $end if grep { $_->[0] < $end && $_->[1] > $last } disturbed_candidate($row->{leader});
	return $last;
}

# How many have to stand so that one who is not the last leader can be elected: in a
# group, each other seat may have another one.
sub enough { return 1 + ($_[0] =~ m{/} ? 4 : $_[0] eq 'zab' ? 2 : 1); }

sub check_election
{
	my ($election, $rows, $signs, $ended) = @_;
	my @terms = sort { $a <=> $b } grep { $rows->{$_}{began} } keys %$rows;
	my @disturbances = merge_times(disturbed($election), unmanned($election, enough($election)), asleep($election));
	my $lease = $lease_us * 1.25 / 1e6;

	foreach my $i (0 .. $#terms)
	{
		my $row = $rows->{ $terms[$i] };
		my $end = $row->{over} || $ended;
		my $next = $i < $#terms ? $rows->{ $terms[ $i + 1 ] }{began} : $ended;
		my $gave_up = ($row->{reason} // '') =~ $GAVE_UP;
		my $kind = $gave_up ? 'given up' : 'after a last sign';
		my $from = $gave_up ? $end : last_sign($row, $end, $signs, $terms[$i]);
		my $bound = $gave_up ? $PROMPT_S : $lease + $PROMPT_S;

		next if was_dropped($election, $from - $REJOIN_US, $next);

		my $vacant = quiet($from, $next, @disturbances);

		$count{"quiet vacancies: $kind"}++ unless grep { overlaps($_, $from, min($next + 1, $from + $bound * 1e6)) } @disturbances;
		$info{"longest quiet vacancy, $kind, s"} = max($info{"longest quiet vacancy, $kind, s"} // 0, $vacant);
		violation('quiet vacancy', sprintf '%s: %s, in term %s, %s, nobody from %s to %s, of which %.2f s were quiet',
			$election, $row->{leader}, $terms[$i], $row->{reason} // 'silent', $from, $next, $vacant)
		  if $vacant > $bound;
	}
	return;
}

sub check_takeovers
{
	my ($history) = @_;
	my $signs = last_signs();
	my ($ended) = map { /^(\d+) ending/ ? $1 : () } lines("$out/events");

	return unless $wall_clock && $ended;
	foreach my $election (grep { $signs->{$_} && $_ ne 'runs' } sort keys %$history)
	{
		check_election($election, $history->{$election}, $signs->{$election}, $ended);
	}
	return;
}

1;
