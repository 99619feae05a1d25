# What is certain, or may have been, at a moment of the run.

package Check::Known;

use strict;
use warnings;

use Check::Record;
use Exporter qw(import);
use List::Util qw(max);

our @EXPORT = qw($DROPPED_US in_failover cannot_know may_be_over was_dropped in_force may_be_withdrawn);

our $DROPPED_US = 30_000_000;	# so long after it was asked for, an election may be dropped

# Was that in a failover, in which the old side may do what is lost?
sub in_failover
{
	my ($from, $to) = @_;

	return grep { $from <= ($_->[1] // $to) && $to >= $_->[0] } @windows;
}

# Does this command run on in a session of which it cannot know, until its
# deadline, that the server has ended it? Its network was cut off then. In the portable
# edition the next join() elects as soon as the session is gone, and pg_leader, which
# hears of that, may be late on a busy machine: by 100 ms, until $to.
sub cannot_know
{
	my ($c, $time, $to) = @_;

	return $c->{command} && $bound{ $c->{candidate} }
	  && (grep({ $_->[0] <= $time && $time < ($_->[1] // $time) + 100_000 } @cuts)
		|| $edition eq 'portable' && grep { $_->[1] eq $c->{candidate} && $_->[0] <= $time + 10_000 && ($to // $time) < $_->[0] + 100_000 } @ended);
}

# Can it have been over for the server while the claim went on? A client that stands in a
# session leads until a deadline of its own, unless it hears that the session has ended. (Its
# election has a delay for that: nobody else leads meanwhile.)
sub may_be_over
{
	my ($c, $time) = @_;

	return $believes{ $c->{candidate} } || cannot_know($c, $time, $c->{to});
}

# Was the election dropped meanwhile, or may it have been, as a seat of a group? With
# it goes what was said of it.
sub was_dropped
{
	my ($election, $from, $to) = @_;

	return may_be_withdrawn($election, $from, $to)
	  || grep { $_->[2] eq $election && $_->[0] < $to && ($_->[1] // $to) > $from } @dropping;
}

# Whatever a group may have had at that time, of seats or as the limit of a
# candidate: what it was last given, if that is certain, and whatever else may have
# come into force before or after it, or come back with a failover.
sub in_force
{
	my ($group, $what, $time) = @_;
	my $slack = 50_000;
	my @before = grep { $_->{group} eq $group && $_->{sent} < $time + $slack } @groups;

	# The last change that certainly came into force before, and stayed
	my $last = max(0, map { $_->{sent} } grep { defined $_->{received} && $_->{received} < $time - $slack
			  && !in_failover($_->{sent}, $_->{received}) } @before);

	return map { $_->{$what} } grep { ($_->{received} // $_->{sent} + 15_000_000) >= $last } @before;
}

# May a seat have had a number that is too high, at some time in between?
sub may_be_withdrawn
{
	my ($election, $from, $to) = @_;
	my ($group, $number) = $election =~ m{^(.*)/(\d+)$} or return 0;

	return grep { $_ < $number } in_force($group, 'seats', $from),
	  map { $_->{seats} } grep { $_->{group} eq $group && $_->{sent} > $from && $_->{sent} < ($to // $_->{sent} + 1) } @groups;
}

1;
