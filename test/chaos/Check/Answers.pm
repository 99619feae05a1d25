# What is certain, or may have been, between the question of an observer and the
# answer: {election, sent, received, who}.

package Check::Answers;

use strict;
use warnings;

use Check::Events;
use Check::Known;
use Check::Quiet;
use Check::Record;
use Exporter qw(import);
use List::Util qw(first max);

our @EXPORT = qw(
  between is_unclear was_silent leads_around certain_leader contradicted certain_pause is_drained
  may_lack_worker failed_over_since_calm
);

my $WITHOUT_US = 6_000_000;	# for so long there may be no worker, after what ends one
my $TOLD_US = 1_000_000;	# a fault is told of when it is there
my $ENDS_WORKERS = qr/^(?:terminate worker|all worker slots taken|full lock table|huge statement|many spread elections)$/;

sub between { return "asked at $_[0]{sent}, answered at $_[0]{received}, $_[0]{who}"; }

# After a failover, who leads on the old side may not be known to the new one; nor is
# it for as long as a lease lasts that the old one has granted.
sub is_unclear
{
	my ($a) = @_;

	return in_failover($a->{sent} - 2 * $lease_us, $a->{received})
	  || was_dropped($a->{election}, $a->{sent}, $a->{received});
}

# Did this session not ask for a while, or renew? Then its lease may have run out
# meanwhile, and have come back, in the same term: a renewal that was made in time counts
# for nobody until it is committed, and a standby has confirmed it.
sub was_silent
{
	my ($c, $a) = @_;

	return grep { $_->[0] < $a->{received} && $_->[1] > $a->{sent} } @{ $c->{silent} // [] };
}

# The claim of the candidate that leads before the question and after the answer
sub leads_around
{
	my ($claims, $a) = @_;

	return first { $_->{from} <= $a->{sent} && $_->{to} >= $a->{received} && !may_be_over($_, $a->{sent}) && !may_be_over($_, $a->{received}) }
	@{ $claims->{ $a->{election} } };
}

# The claim of the candidate that has certainly led all the time
sub certain_leader
{
	my ($claims, $a) = @_;
	my $leads = leads_around($claims, $a);

	return $leads && !was_silent($leads, $a) ? $leads : undef;
}

# Had the run ended the session of this command before the answer came? The command ended
# less than 0.1 s after its session.
sub was_just_ended
{
	my ($c, $a) = @_;

	return grep { $_->[1] eq $c->{candidate} && $_->[0] <= $a->{received} + 10_000 && $c->{to} < $_->[0] + 100_000 } @ended;
}

# The claim that the answer contradicts: that this candidate leads in this term, or that
# nobody does (undef). Whatever excuses a vacancy, or another term of the same candidate,
# does not excuse another leader; in a failover there may be one in an earlier term, on a
# server that does not know better yet. No two servers grant the same term.
sub contradicted
{
	my ($claims, $a, $leader, $term) = @_;
	my $leads = leads_around($claims, $a) // return;

	if (defined $leader && $leader ne $leads->{candidate})
	{
		return $leads if $term == $leads->{term};
		return $leads if $term > $leads->{term} ? !was_dropped(@{$a}{qw(election sent received)}) : !is_unclear($a);
		return;
	}
	return if is_unclear($a) || was_silent($leads, $a);

	# Its session has just ended, and its command lived for a moment longer. The run ended the
	# session; or the server crashed, and its other processes answered until they noticed that.
	return if !defined $leader && $leads->{command} && $bound{ $leads->{candidate} }
	  && $leads->{to} < $a->{received} + 100_000
	  && (may_have_crashed(@{$a}{qw(sent received)}) || was_just_ended($leads, $a));
	return defined $leader && $term == $leads->{term} ? undef : $leads;
}

# The pause that was certainly in force all the time
sub certain_pause
{
	my ($a) = @_;

	return first
	{
		($_->[2] eq $a->{election} || $_->[2] eq 'all') && $_->[0] <= $a->{sent}
		  && defined $_->[1] && $_->[1] >= $a->{received}
		  && !in_failover($_->[0], $a->{received}) && !was_dropped($a->{election}, $_->[0], $a->{received})
	}
	@paused;
}

# Is the candidate certainly drained all the time?
sub is_drained
{
	my ($name, $a) = @_;

	return grep
	{
		$_->{election} =~ /^(?:all|\Q$a->{election}\E)$/
		  && ($_->{names} =~ /(.*)\*$/ ? index($name, $1) == 0 : $_->{names} eq $name)
		  && $_->{from} <= $a->{sent} && defined $_->{to} && $_->{to} >= $a->{received}
		  && !in_failover($_->{from}, $a->{received}) && !was_dropped($a->{election}, $_->{from}, $a->{received})
	}
	@drained;
}

# May there be no worker? Not unless something has ended it, or there are no slots.
sub may_lack_worker
{
	my ($a) = @_;
	my ($fewest) = slots_between($a->{sent} - $WITHOUT_US, $a->{received} + $TOLD_US);

	return !$fewest || may_have_crashed(@{$a}{qw(sent received)})
	  || faults_between($ENDS_WORKERS, $a->{sent} - $WITHOUT_US, $a->{received} + $TOLD_US);
}

# Was there a failover, since the last calm before that? It may have brought back what
# was over: a pause, a drain. And the grace after it may last.
sub failed_over_since_calm
{
	my ($a) = @_;
	my $calm = max(0, map { $_->[0] } grep { defined $_->[1] && $_->[1] < $a->{sent} } @calms);

	return in_failover($calm, $a->{received});
}

1;
