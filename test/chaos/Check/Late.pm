# wait_for_change() returns in time: when there has been a change, and when its time is
# over. Of the delay counts what was quiet.

package Check::Late;

use strict;
use warnings;

use Check::Answers;
use Check::Known;
use Check::Quiet;
use Check::Record;
use Check::Watched;
use Exporter qw(import);
use List::Util qw(max min);

our @EXPORT = qw(check_late);

my $PROMPT_S = 2;	# it looks each second, if no process wakes it

# From when it was certainly no longer so that this term is the present one, nobody's
# if there is none, and up to when: somebody led in a later term (or in any).
sub find_change
{
	my ($w, $known, $claims) = @_;
	my ($from, $to);

	if ($w->{old_term} ne '-')
	{
		$from = min(map { $_->{to} } grep { $_->{term} > $w->{old_term} } @{ $known->{ $w->{election} } // [] });
		return defined $from ? ($from, $w->{received}) : ();
	}
	foreach my $c (grep { $_->{to} > $w->{sent} && $_->{from} < $w->{received} } @{ $claims->{ $w->{election} } // [] })
	{
		next if may_be_over($c, $w->{sent}) || was_silent($c, $w) || defined $from && $from <= $c->{from};
		($from, $to) = ($c->{from}, $c->{to});
	}
	return defined $from ? ($from, min($to, $w->{received})) : ();
}

sub check_answer
{
	my ($w, $known, $claims) = @_;
	my @disturbances = (disturbed($w->{election}), disturbed_candidate($w->{who} =~ /^(\w+)/));
	my ($from, $to) = find_change($w, $known, $claims);
	my $text = "$w->{election}: from $w->{old_term} $w->{old_leader} to $w->{term} $w->{leader} in $w->{ms} ms, " . between($w);
	my $over = quiet($w->{sent} + $w->{ms} * 1000, $w->{received}, @disturbances);

	# The portable edition sleeps by the wall clock.
	my $is_steady = $wall_clock || $edition eq 'extension';

	violation('late answer', sprintf '%s: %.2f s after its time was over', $text, $over) if $is_steady && $over > $PROMPT_S;
	return unless $is_steady && defined $from;
	$from = max($from, $w->{sent});
	return if $to <= $from || in_failover($from - 2 * $lease_us, $w->{received});

	my $late = quiet($from, $to, @disturbances);

	$count{'wait_for_change(): changes that were certain'}++;
	$info{'wait_for_change(): longest after a change, s'} =
	  max($info{'wait_for_change(): longest after a change, s'} // 0, $late);
	violation('late answer', sprintf '%s: %.2f s after a change', $text, $late) if $late > $PROMPT_S;
	return;
}

# A call that was never answered, until its observer was stopped or killed, or the run
# ended
sub check_unanswered
{
	my ($w) = @_;
	my @hits = disturbed_candidate($w->{who} =~ /^(\w+)/);
	my ($ended) = map { /^(\d+) ending/ ? $1 : () } lines("$out/events");
	my $end = min($ended // $w->{sent}, map { max($_->[0], $w->{sent}) } grep { $_->[1] > $w->{sent} } @hits);
	my $late = quiet($w->{sent} + $w->{ms} * 1000, $end, disturbed($w->{election}), @hits);

	violation('late answer', sprintf '%s: asked at %s, %s, never answered in %s ms and %.2f s', @{$w}{qw(election sent who ms)}, $late)
	  if $late > $PROMPT_S && ($wall_clock || $edition eq 'extension');
	return;
}

sub check_late
{
	my (%claims, %known);

	push @{ $claims{ $_->{election} } }, $_ foreach @claims;
	push @{ $known{ $_->{election} } }, $_ foreach @moments, map { { %$_, to => $_->{from} } } @claims;
	check_answer($_, \%known, \%claims) foreach grep { defined $_->{received} } @waits;
	check_unanswered($_) foreach grep { !defined $_->{received} } @waits;
	return;
}

1;
