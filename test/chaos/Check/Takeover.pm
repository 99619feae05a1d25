# How long nobody led, between faults (G7).
#
# A vacancy begins with the end of a term, by history. If the leader did not give up, it
# is measured a second time, from when that leader cannot have led any more
# (LastSigns.pm): its term may end late, or never. It ends with the next term, by history.
# Of it counts what was quiet: no fault was under way that reaches the election, some
# certainly stood who could be elected, and no detached candidate was asleep, for whom the
# seat may have been kept. (For the last leader itself it is not kept, unless that gave up.
# A race keeps a seat only for whom it is handed over to; there, who has just called still
# counts as one that stands, and who sits out waits for it.)

package Check::Takeover;

use strict;
use warnings;

use Check::Known;
use Check::LastSigns;
use Check::Quiet;
use Check::Record;
use Check::Standing;
use Exporter qw(import);
use List::Util qw(max min);

our @EXPORT = qw(check_takeovers);

my $PROMPT_S = 2;
my $DELAY_S = 0.3;			# the longest takeover_delay, after who did not give up
my $REJOIN_US = 10_000_000;	# for a new seat, those who stood for the group have to stand anew
my $ASKED_US = 15_000_000;	# so much later an operator's request may be answered
my $RACE = qr/^(?:race|lone|runs|jobs|apps|calm.*)$/;
my $GAVE_UP = qr/^(?:resigned|left|transferred|yielded)$/;

# How many have to stand so that one who is not the last leader can be elected: in a
# group, each other seat may have another one.
sub enough { return 1 + ($_[0] =~ m{/} ? 4 : $_[0] =~ /^(?:zab|quorum)$/ ? 2 : 1); }

# The beginnings of the vacancy after a term: [what that is, when, how long it may be, in
# seconds]
sub vacancies
{
	my ($election, $term, $row, $ended) = @_;
	my $bound = $PROMPT_S + $DELAY_S;
	my @vacancies;

	return [ 'given up', $row->{over} || $ended, $PROMPT_S ] if ($row->{reason} // '') =~ $GAVE_UP;
	push @vacancies, [ 'after a term', $row->{over}, $bound ] if $row->{over};

	my ($kind, $from) = last_led($election, $term, $row, $row->{over} || $ended) or return @vacancies;

	$bound = $lease_us * 1.25 / 1e6 + $PROMPT_S if $kind eq 'after a last sign';
	return (@vacancies, [ $kind, $from, $bound ]);
}

sub check_vacancy
{
	my ($vacancy, $next, $disturbances, $text) = @_;
	my ($kind, $from, $bound) = @$vacancy;
	my $vacant = quiet($from, $next, @$disturbances);

	$count{"quiet vacancies: $kind"}++ unless grep { overlaps($_, $from, min($next + 1, $from + $bound * 1e6)) } @$disturbances;
	$info{"longest quiet vacancy, $kind, s"} = max($info{"longest quiet vacancy, $kind, s"} // 0, $vacant);
	violation('quiet vacancy', sprintf '%s, %s: nobody from %s to %s, of which %.2f s were quiet',
		$text, $kind, $from, $next, $vacant)
	  if $vacant > $bound;
	return;
}

# May the seat have been kept for a candidate after this term?
sub may_be_kept
{
	my ($election, $row, $next) = @_;

	return $election !~ $RACE || ($row->{reason} // '') =~ /^(?:transferred|yielded)$/
	  || 0 < grep { $_->[1] eq $election && $_->[0] > $row->{began} - $ASKED_US && $_->[0] < $next } @named;
}

sub check_election
{
	my ($election, $rows, $ended) = @_;
	my @terms = sort { $a <=> $b } grep { $rows->{$_}{began} } keys %$rows;
	my @disturbances = merge_times(disturbed($election), unmanned($election, enough($election)));
	my %disturbances;	# {who is out of it, is the seat kept} = those, and who else is asleep

	foreach my $i (0 .. $#terms)
	{
		my $row = $rows->{ $terms[$i] };
		my $next = $i < $#terms ? $rows->{ $terms[ $i + 1 ] }{began} : $ended;
		my $out_of_it = ($row->{reason} // '') =~ $GAVE_UP ? '' : $row->{leader};
		my $is_kept = may_be_kept($election, $row, $next);
		my $disturbances = \$disturbances{"$out_of_it $is_kept"};

		$$disturbances //= [ merge_times(@disturbances, asleep($election, $out_of_it, $is_kept)) ];
		foreach my $vacancy (vacancies($election, $terms[$i], $row, $ended))
		{
			next if was_dropped($election, $vacancy->[1] - $REJOIN_US, $next);
			check_vacancy($vacancy, $next, $$disturbances,
				"$election: $row->{leader}, in term $terms[$i], " . ($row->{reason} || 'silent'));
		}
	}
	return;
}

sub check_takeovers
{
	my ($history) = @_;
	my %led = map { $_ => 1 } read_last_signs();
	my ($ended) = map { /^(\d+) ending/ ? $1 : () } lines("$out/events");

	return unless $wall_clock && $ended;
	foreach my $election (grep { $led{$_} && $_ ne 'runs' } sort keys %$history)
	{
		check_election($election, $history->{$election}, $ended);
	}
	return;
}

1;
