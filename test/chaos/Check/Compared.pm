# Was there anything to compare? A check that had nothing to compare has shown nothing.

package Check::Compared;

use strict;
use warnings;

use Check::Events;
use Check::Record;
use Exporter qw(import);
use List::Util qw(max sum0);

our @EXPORT = qw(check_compared);

my $SHORT_US = 25_000_000;	# a run in which there has to be something of the most common
my $LONG_US = 60_000_000;	# ... of all
my $LOUD_US = 120_000_000;	# ... and of that, in the profile all
my $CALM_SHARE = 0.01;		# so much of it is calm for calm elections, at least
my $CALM_TIME = 'in which calm elections were to be calm, s';
my $STALL_US = 3_500_000;	# a moment when the machine stands still takes so much of it
my $RESETS_US = 10_000_000;	# a session is reset about once in 5 s

# For how long candidates pressed on themselves, and so reset their sessions
sub pressed_for
{
	my ($since, $time) = (undef, 0);

	foreach (lines("$out/events"))
	{
		$since = $1 if /^(\d+) pressed/;
		$time += $1 - $since, $since = undef if /^(\d+) healing/ && defined $since;
	}
	return $time;
}

# Did the primary have workers in any calm, whose memory could be measured?
sub had_workers { return grep { my (undef, $most) = slots_between(@$_); $most } grep { defined $_->[1] } @calms; }

# Was there nobody who announces, for much of the run? A worker does.
sub was_unannounced
{
	my ($lasted) = @_;

	return 0 if $edition eq 'portable';		# who changes something tells it
	return ($info{'without slots for workers, s'} // 0) * 1e6 > $lasted / 4;
}

# Was calm elections' time too short a part of a run, in which the machine stood still for
# less than a tenth of it?
sub was_uncalm
{
	my ($lasted) = @_;

	return $lasted >= $LOUD_US && $info{$CALM_TIME} * 1e6 <= $lasted * $CALM_SHARE
	  && ($count{'stalls of the machine'} // 0) * $STALL_US < $lasted / 10;
}

# May a run have had no quiet vacancy? In fence there is one each second or two. In all
# there are fewer, or none for long while candidates press on themselves; other profiles
# leave no quiet, or have clocks that jump.
sub is_loud
{
	my ($lasted) = @_;
	my ($profile) = map { /^\d+ start seed \d+ profile (\w+) / ? $1 : () } lines("$out/events");

	return $profile eq 'all' ? $lasted < $LOUD_US || pressed_for() > $lasted / 2 : $profile ne 'fence';
}

sub check_compared
{
	my %when = map { /^(\d+) (round|ending)/ ? ($2 => $1) : () } reverse(lines("$out/events"));
	my $lasted = max(0, ($when{ending} // 0) - ($when{round} // 9e15));
	my %least = (
		'renewals of sessions' => [qr/^leases renewed by sessions$/],
		'ends of terms' => [ qr/^claims compared with the end of their term$/, !$wall_clock ],
		'fenced rows' => [qr/^fenced transactions: committed$/],
		'runs that were done' => [qr/^runs done: recorded$/],
		'rows of status' => [qr/^rows of status compared$/],
		'reasons of vacant seats' => [qr/^seats that waited for:/],
		'answers of diagnose()' => [qr/^answers of diagnose\(\) compared$/],
		'resets' => [ qr/^resets that were told of/, pressed_for() < $RESETS_US ],
		'calms measured' => [ qr/^calms measured$/, !had_workers() ],
		'quiet vacancies' => [ qr/^quiet vacancies:/, is_loud($lasted) ],
		'announced terms' => [ qr/^announced: elected$/, was_unannounced($lasted) ],
		'events that two sessions heard' => [ qr/^events that two sessions heard$/, was_unannounced($lasted) ],
		'changes that were to be announced' =>
		  [ qr/^changes that were to be announced$/, !$wall_clock || @windows || was_unannounced($lasted) ],
	);

	return if $lasted < $SHORT_US;
	delete $least{'answers of diagnose()'} if $edition eq 'portable';
	delete @least{ grep { !/^(?:rows of status|answers of diagnose\(\)|announced terms|renewals of sessions|ends of terms|fenced rows)$/ } keys %least } if $lasted < $LONG_US;
	violation('nothing compared', 'calm elections were to be calm for ' . $info{$CALM_TIME} . ' s in ' . int($lasted / 1e6) . ' s')
	  if was_uncalm($lasted);
	foreach my $what (sort keys %least)
	{
		my ($counts, $exempt) = @{ $least{$what} };

		violation('nothing compared', "no $what in " . int($lasted / 1e6) . ' s')
		  unless $exempt || sum0(map { $_ =~ $counts ? $count{$_} : () } keys %count);
	}
	return;
}

1;
