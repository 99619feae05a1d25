# What an election may answer: the sequential specification, one call at a time.
#
# A state has a time, and for each seat (an election is a group of one) who leads in
# which term, and what its register holds. A call takes effect at one moment between
# its call and its return; step() gives the earliest moment at which this answer can
# have been right, and the state after it.
#
# Nobody but the server knows when a lease ends. From the answer to a grant follows
# that it is not over before lo, and is over after hi: the time that remained, counted
# from when the call was sent, and from when the answer was there. In between both are
# possible. That a lease runs out is a step of its own, which time allows from lo on and
# which is never taken back: then its term is over.

package Model;

use strict;
use warnings;

use Exporter qw(import);
use List::Util qw(max min);

our @EXPORT = qw(first_state step may_end holds latest changes key);

my @FIELDS = qw(term over who lo hi ends foreign former_lo former_hi value run run_done run_top tries former former_term former_ends);
my $NEVER = 9e15;
my ($RUN_OUT, $GIVEN_UP) = (1, 2);	# how a term is over

# Of $rules, longest is the longest lease that there may be, cap is how many seats one
# client may have at a time (0: any number), and fences_wait says that a fence keeps the
# next leader out until its transaction is over, also when the lease has run out meanwhile.
sub first_state
{
	my ($rules, @seats) = @_;
	my %seat = (term => 0, over => $GIVEN_UP, who => '', lo => 0, hi => 0, ends => 0, foreign => 0, former_lo => 0, former_hi => 0,
		value => '', run => '', run_done => '', run_top => '', tries => 0, former => 0, former_term => 0, former_ends => 0);

	return { now => 0, rules => $rules, seats => { map { $_ => {%seat} } @seats } };
}

# Equal for states that differ in their time at most
sub key
{
	my ($state) = @_;

	return join '|', map { join ',', @{ $state->{seats}{$_} }{@FIELDS} } sort keys %{ $state->{seats} };
}

# The state with another time, and a seat with other fields
sub with
{
	my ($state, $now, $seat, %fields) = @_;
	my %new = (%$state, now => $now);

	$new{seats} = { %{ $state->{seats} }, $seat => { %{ $state->{seats}{$seat} }, %fields } } if $seat;
	return \%new;
}

# The lease is over not before: it runs out, or a release without an answer has come.
sub earliest_end
{
	my ($seat) = @_;

	return min(grep { $_ } @{$seat}{qw(lo ends former_ends)});
}

# The term of this seat ends, if it has not, at a time when it may have run out, and
# not after $until.
sub ended
{
	my ($state, $name, $until) = @_;
	my $seat = $state->{seats}{$name};
	my $now = $state->{now};

	return $state if $seat->{over};
	$now = max($now, earliest_end($seat));
	return if $now > $until;
	return with($state, $now, $name, over => $RUN_OUT);
}

# Is this the last term, or its old number? After a failover that is accepted until a
# renewal has named the new number.
sub is_last
{
	my ($seat, $term) = @_;

	return $seat->{term} == $term || $seat->{former} == $term;
}

# Is this the term that the former server knows, which goes on beside the new one?
sub is_former
{
	my ($seat, $term) = @_;

	return $seat->{former_hi} && $term == $seat->{ $seat->{foreign} ? 'term' : 'former_term' };
}

# Is this the term that leads? Whatever the time is.
sub leads
{
	my ($seat, $term) = @_;

	return !$seat->{over} && is_last($seat, $term);
}

# Does a fence of this term let its transaction commit?
sub fenced
{
	my ($state, $seat, $op) = @_;

	return if $seat->{term} != $op->{term} || $seat->{foreign} || $seat->{value} ne $op->{old};
	return $seat->{over} != $GIVEN_UP if $state->{rules}{fences_wait};
	return !$seat->{over} && $state->{now} <= $seat->{hi};
}

# Does the answer "yes" to a question fit, whatever the time is? (It changes nothing.)
sub holds
{
	my ($state, $op) = @_;
	my $seat = $state->{seats}{ $op->{seat} };

	return fenced({ %$state, now => 0 }, $seat, $op) if $op->{op} eq 'read';
	return 1 if $op->{beside} && is_former($seat, $op->{term});
	return !$seat->{over} && !$seat->{foreign} && $seat->{term} == $op->{term};
}

# ... and until when can it be given?
sub latest
{
	my ($state, $op) = @_;

	my $seat = $state->{seats}{ $op->{seat} };

	return $NEVER if $op->{op} eq 'read' && $state->{rules}{fences_wait};
	return $op->{beside} && is_former($seat, $op->{term}) ? $seat->{former_hi} : $seat->{hi};
}

# Does this answer change the state, so that it may have to come before others?
sub changes
{
	my ($op) = @_;

	return 1 if $op->{unknown};
	return scalar @{ $op->{rows} } if $op->{rows};
	return $op->{value} && $op->{op} =~ /^(write|release)/ || $op->{op} eq 'failover';
}

# The states in which this answer may leave the seats: none, if it contradicts them
sub step
{
	my ($state, $op, $until) = @_;
	my $now = max($state->{now}, $op->{call});

	return if $now > $until;
	return failover(with($state, $now)) if $op->{op} eq 'failover';
	return granted(with($state, $now), $op, $until) if $op->{op} eq 'acquire';

	my $seat = $state->{seats}{ $op->{seat} };

	return if $op->{term} > $seat->{term};		# nobody has been granted that yet
	return $state if no_longer($op) && was_over($seat, $op);
	$state = with($state, $now);
	return is_over($state, $op, $until) if no_longer($op);
	return map { done($_, $op) } $state, $seat->{over} ? () : ended($state, $op->{seat}, $until) // ()
	  if $op->{op} eq 'release done';
	if ($op->{op} =~ /^(read|write)$/)
	{
		return unless fenced($state, $seat, $op);
		return $op->{op} eq 'read' ? $state : with($state, $now, $op->{seat}, value => $op->{new});
	}
	return holds($state, $op) && $now <= latest($state, $op) ? $state : () if $op->{op} =~ /^(is_leader|assert)$/;
	return $state if told_beside($state, $op);
	return if !leads($seat, $op->{term}) || $now > $seat->{hi};
	return renewed_unheard($state, $op, $until) if $op->{unknown};
	return with($state, $now, $op->{seat}, over => $GIVEN_UP) if $op->{op} eq 'release';
	return renewed($state, $op);
}

# Is the answer that the term is over?
sub no_longer
{
	my ($op) = @_;

	return $op->{rows} ? !@{ $op->{rows} } : !$op->{value};
}

# It was before, and stays so: then the answer is right at any moment from then on, and
# no reason to take the time for later than it was.
sub was_over
{
	my ($seat, $op) = @_;

	return if $op->{op} eq 'release done' && is_last($seat, $op->{term}) && $seat->{run} ne '';
	return $op->{term} == $seat->{term} ? $seat->{over}
	  : $op->{op} !~ /^re(new|lease)/ || !leads($seat, $op->{term});
}

# It is by now. (After a failover a term does not lead until it is renewed, but is not
# over. That a later one has begun, as release() of a run that is done has to answer,
# may be known to nobody here.)
sub is_over
{
	my ($state, $op, $until) = @_;
	my $seat = $state->{seats}{ $op->{seat} };

	return $state if $seat->{foreign} && $op->{op} !~ /^re(new|lease)/;
	return if $op->{op} eq 'release done' && !$op->{unheard} && $seat->{run} ne '';
	return ended($state, $op->{seat}, $until);
}

# A run is recorded as done: as long as no later term has begun, also when its own is over.
# (A term for no run has none.) That gives up the term, if it leads: not after a failover, when
# its leader may renew it, and not if it has run out before, so that a failover may bring it back.
sub done
{
	my ($state, $op) = @_;
	my $seat = $state->{seats}{ $op->{seat} };

	return if $seat->{run} eq '' || !is_last($seat, $op->{term});
	return with($state, $state->{now}, $op->{seat}, over => $seat->{over} || ($seat->{foreign} ? 0 : $GIVEN_UP),
		$seat->{run} gt $seat->{run_done} ? (run_done => $seat->{run}) : ());
}

# A former server that goes on beside the new one says what is left of its lease, and
# prolongs nothing. The leader may have renewed its lease at the new server, and released it
# there: the former server does not know that.
sub told_beside
{
	my ($state, $op) = @_;
	my $seat = $state->{seats}{ $op->{seat} };

	return if $op->{op} ne 'renew' || !$op->{beside} || !is_former($seat, $op->{term});
	my (undef, $term, $ms) = @{ $op->{rows}[0] };

	return $term == $op->{term} && $state->{now} <= $seat->{former_hi}
	  && $op->{sent} + 1000 * $ms <= $seat->{former_hi};
}

sub renewed
{
	my ($state, $op) = @_;
	my $seat = $state->{seats}{ $op->{seat} };
	my (undef, $term, $ms) = @{ $op->{rows}[0] };
	my %lease = lease($op, $ms);
	my $prolongs = $lease{lo} > $seat->{hi};

	return if $seat->{foreign} ? $term <= $seat->{term} : $term != $seat->{term};
	return if $lease{hi} < $seat->{lo};			# no deadline goes back
	$lease{lo} = max($lease{lo}, $seat->{lo});
	if ($seat->{foreign})
	{
		@lease{qw(former former_term)} = ($op->{term}, $seat->{term});
		@lease{qw(ends former_ends)} = (0, $seat->{ends}) if $op->{term} == $seat->{term};
	}
	$state = with($state, $state->{now}, $op->{seat}, %lease, term => $term, foreign => 0);
	return $state if $seat->{foreign} || $op->{term} != $term;

	# The extension still accepts the old number if the leader is asked to yield, and nothing
	# is prolonged.
	return (without_old_number($state, $op), $prolongs || !$seat->{former} ? () : $state);
}

sub without_old_number
{
	my ($state, $op) = @_;

	return with($state, $state->{now}, $op->{seat}, former => 0, former_ends => 0);
}

# A renewal of which nobody knows: it may have come at the last moment, and have given the
# longest lease. (That makes no difference up to $until, if the lease may last for longer.)
sub renewed_unheard
{
	my ($state, $op, $until) = @_;
	my $seat = $state->{seats}{ $op->{seat} };
	my $hi = $seat->{hi};
	my $names = !$seat->{foreign} && $op->{term} == $seat->{term} && $seat->{former};

	return if $hi >= $until && !$names;
	$state = without_old_number($state, $op) if $names;
	return with($state, $state->{now}, $op->{seat}, hi => max($hi, min($hi, $until) + $state->{rules}{longest}));
}

# The earliest and the latest end of a lease of which so much remained
sub lease
{
	my ($op, $ms) = @_;

	return (lo => $op->{sent} + 1000 * $ms, hi => $op->{return} + 1000 * ($ms + 1));
}

# Each row is a seat that was vacant, in a term above all before.
sub granted
{
	my ($state, $op, $until) = @_;

	foreach my $row (@{ $op->{rows} })
	{
		my ($name, $term, $ms) = @$row;
		my $seat = $state->{seats}{$name};
		my %run = (run => '');

		return if $term <= $seat->{term};
		if (defined $op->{run})
		{
			%run = run_granted($seat, $op) or return;
		}
		$state = ended($state, $name, $until) // return;
		return if $seat->{former_lo} > $until;
		$state = with($state, max($state->{now}, $seat->{former_lo}), $name, lease($op, $ms), %run, term => $term,
			over => 0, who => $op->{client}, ends => 0, foreign => 0, former_lo => 0, former_hi => 0, former => 0, former_term => 0, former_ends => 0);
	}
	return $state->{rules}{cap} ? within_cap($state, $op, $until) : $state;
}

sub run_granted
{
	my ($seat, $op) = @_;
	my $run = $op->{run};
	my $tries = $run eq $seat->{run_top} ? $seat->{tries} : 0;

	return if $run le $seat->{run_done} || $run lt $seat->{run_top} || $tries >= $op->{attempts};
	return (run => $run, run_top => $run, tries => $tries + 1);
}

# Of the seats that this client had before, as many as are too many have run out.
sub within_cap
{
	my ($state, $op, $until) = @_;
	my %new = map { $_->[0] => 1 } @{ $op->{rows} };
	my $seats = $state->{seats};
	my @had = sort { $seats->{$a}{lo} <=> $seats->{$b}{lo} }
	  grep { !$new{$_} && !$seats->{$_}{over} && $seats->{$_}{who} eq $op->{client} } keys %$seats;

	while (keys(%new) + @had > $state->{rules}{cap})
	{
		return unless @had;
		$state = ended($state, shift @had, $until) // return;
	}
	return $state;
}

# A release has begun, and nobody knows whether it came, and when: the term may be over
# from then on.
sub may_end
{
	my ($state, $op) = @_;
	my $seat = $state->{seats}{ $op->{seat} };

	return $state unless leads($seat, $op->{term});
	my $ends = $op->{term} == $seat->{term} ? 'ends' : 'former_ends';

	return with($state, $state->{now}, $op->{seat}, $ends => $seat->{$ends} || $op->{call});
}

# Another server goes on. The last leader leads there as soon as it renews, in a new term,
# unless it had given up or somebody else is elected: for how long it led at the former
# server makes no difference. Nobody else is elected before its lease at the former server
# is over, even if it gives up at the new one.
sub failover
{
	my ($state) = @_;

	foreach my $name (keys %{ $state->{seats} })
	{
		my $seat = $state->{seats}{$name};
		my $over = $seat->{foreign} || $seat->{over};
		my %former = (former_lo => $over ? $seat->{former_lo} : max($seat->{former_lo}, earliest_end($seat)),
			former_hi => $over ? 0 : $seat->{hi});

		$state = with($state, $state->{now}, $name, %former,
			$seat->{over} == $GIVEN_UP ? () : (foreign => 1, over => 0, hi => $NEVER));
	}
	return $state;
}

1;
