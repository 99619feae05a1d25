# What listeners heard: every change, once and in order (G10).

package Check::Announced;

use strict;
use warnings;

use Check::Answers;
use Check::History;
use Check::Known;
use Check::Quiet;
use Check::Record;
use Exporter qw(import);
use List::Util qw(first max min);

our @EXPORT = qw(check_announced check_unannounced check_calms_announced);

my $LATE_US = 4_000_000;	# how long a listener may be stopped, or cut off
my $LONG_US = 3_000_000;	# how much later one election may be announced than another
my $CROWD_US = 15_000_000;	# ... beside hundreds that change at a time, and come in turn
my $CROWD = 50;				# changes of such elections
my $TURN_US = 1_000_000;	# from what a worker tells first to the rest of it
my $CALM_S = 5;				# in a calm all has been told that was before it
my $STEP_US = 500_000;
my $IN_ITS_WAY_US = 6_000_000;	# what is left of a lock on the tables
my $WITHIN = qr/^(?:yield_requested|metadata_changed)$/;	# between the beginning of a term and its end, perhaps several times
my $MANY = qr/^(?:wide|huge|vast)-/;	# these elections

# A beginning or an end is in history as it was told. What was told may have been
# lost in a failover: then there is another end, or nothing.
sub check_event
{
	my ($e, $row) = @_;
	my $n = $e->{payload};
	my $began = $n->{event} eq 'elected';
	my $at = $n->{at} =~ tr/T/ /r =~ s/:00$//r;
	my ($who, $stored, $stored_at) =
	  $began ? ($n->{leader}, @{ $row // {} }{qw(leader acquired)})
	  : ($n->{reason}, @{ $row // {} }{qw(reason ended)});

	return if $row && $stored && $stored eq $who && $stored_at eq $at;
	return if (!$row || !$began) && !$e->{counts};
	violation('history', "$e->{what}: $who, $at; and in it is "
		  . ($row ? ($stored // 'nothing') . ", $stored_at" : 'no such term'));
	return;
}

# Who is asked to yield, and who changes its metadata, is the leader of that term.
sub check_within
{
	my ($e, $row) = @_;
	my $leader = $e->{payload}{leader};

	violation('history', "$e->{what}: $leader, and in it is $row->{leader}")
	  if $row && $row->{leader} && $row->{leader} ne $leader;
	return;
}

# Does this event come next after the last one, in the ears of a session that has
# heard both? If one transaction ends a term and begins another, only the
# beginning is told, which then names the previous leader.
sub check_next
{
	my ($event, $last, $terms) = @_;
	my $n = $event->{payload};
	my @between = grep { $_ > $last->{term} && $_ < $n->{term} } @{ $terms->{ $n->{election} } // [] };
	my $follows = $event->{event} eq 'elected' ? ($last->{event} eq 'vacated') != defined $n->{previous}
	  : $event->{event} eq 'vacated' && $n->{term} == $last->{term};

	$count{'announced in turn'}++;
	violation('not announced', "before $event->{what}, after $last->{event} $last->{term}"
		  . (@between ? ': ' . join(', ', sort { $a <=> $b } @between) : ''))
	  if @between || !$follows;
	return;
}

# What is told of an election, in the order in which it was received. Each change
# has a place in that order: 2t - 1 is the beginning of term t, 2t its end.
#
# While a server lives, no listener hears an event twice, be it on two connections, or
# after a later one, and no session misses one between two that it hears. After a
# crash or a promotion the last one may be repeated; events that a failover has lost do
# not count then (G10).
sub check_announced
{
	my ($history) = @_;
	my %kept = kept_terms();
	my (%heard, %last_kept, %terms);

	/(.*) (\d+)/ && push @{ $terms{$1} }, $2 foreach keys %kept;

	foreach my $e (sort { $a->{time} <=> $b->{time} || $a->{number} <=> $b->{number} } @announced)
	{
		my ($time, $n, $session) = @{$e}{qw(time payload session)};
		my ($election, $term, $event) = @{$n}{qw(election term event)};
		my $row = $history->{$election}{$term};
		my ($listener) = $session =~ /^(\w+)/;
		my $last = $heard{$listener}{$election};

		$count{"announced: $event"}++;
		next if $event eq 'created';	# a seat of a group; in no term
		push @{ $listening{$session}{many} }, $time if $election =~ $MANY;
		$e->{$_} = $n->{$_} foreach qw(term event);
		$e->{place} = $event eq 'vacated' ? 2 * $term : 2 * $term - 1;
		$e->{server} = $listening{$session}{server};
		($e->{timeline}) = $e->{server} =~ /\.([0-9A-F]{8})\./;
		$e->{what} = "$election: $event $term at $time to $session";
		$e->{counts} = !in_failover($time - $LATE_US, $time);
		$event =~ $WITHIN ? check_within($e, $row) : check_event($e, $row);
		if ($last && $last->{server} eq $e->{server})
		{
			violation('announced twice', "$e->{what}, and before at $last->{time}")
			  if $e->{place} == $last->{place} && $event !~ $WITHIN;
			violation('term order', "$e->{what}, after $last->{event} $last->{term}")
			  if $e->{place} < $last->{place};
			check_next($e, $last, \%terms)
			  if $last->{session} eq $session && $e->{place} > $last->{place};
		}
		else
		{
			my $kept = $last_kept{$listener}{$election};

			# The old side of a failover tells of its own terms.
			next if $kept && $kept->{timeline} gt $e->{timeline};
			violation('term order', "$e->{what}, after $kept->{what}")
			  if $kept && $e->{place} < $kept->{place};
			$count{'announced again after a crash'}++
			  if $last && $e->{place} == $last->{place} && $event eq $last->{event};
		}
		if ($event eq 'elected' && $wall_clock && $e->{counts} && $row && $row->{began})
		{
			push @delays, $time - $row->{began};
			$listening{$session}{until} = max($listening{$session}{until} // 0, $row->{began});
		}
		$heard{$listener}{$election} = $listening{$session}{heard}{$election} = $e;
		$listening{$session}{to} = $time;
		# Of a term that is kept a failover may lose the end.
		my $is_kept = $kept{"$election $term"}
		  && ($event ne 'vacated' || !$row || ($row->{reason} // '') eq ($n->{reason} // ''));

		$last_kept{$listener}{$election} = $e if $is_kept || $e->{counts};
	}
	return;
}

# When elections changed of which there are hundreds
sub changes_of_many
{
	my ($history) = @_;

	return sort { $a <=> $b }
	  map { my $rows = $history->{$_}; map { grep { $_ } @{$_}{qw(began over)} } values %$rows }
	  grep { /$MANY/ } keys %$history;
}

# Did hundreds change, or were told of, at that time?
sub many_changed
{
	my ($from, $to, $changes) = @_;

	return $CROWD < grep { $_ > $from && $_ <= $to } @$changes;
}

# What a huge statement does is committed when it ends; undef: it never does.
sub committed_at
{
	my ($election, $time) = @_;

	return $time if !defined $time || $election !~ $MANY;
	my ($huge) = grep { $_->[0] <= $time && (!$_->[1] || $time <= $_->[1]) } @huge;

	return $huge ? $huge->[1] : $time;
}

# A session that hears of a change has heard of the changes of other elections that
# happened long before it, if it has heard anything of those elections (G10).
sub check_unannounced
{
	my ($history) = @_;
	my @changes = changes_of_many($history);

	foreach my $session (sort keys %listening)
	{
		my ($from, $to, $until, $lived, $heard) = @{ $listening{$session} }{qw(from to until lived heard)};

		next if !$until || in_failover($from, $to);

		# The worker tells what has changed in turn, after a crash also what was long ago; after
		# it was stopped, first that leases have expired.  A listener may be cut off in between.
		my $late = many_changed($until - $CROWD_US, $until, \@changes)
		  || many_changed($until - $CROWD_US, $until + $CROWD_US, $listening{$session}{many} // [])
		  || $lived - $to < $TURN_US && faults_between(qr/^stop worker/, $until - $LATE_US - $LONG_US, $until)
		  ? $CROWD_US : $LONG_US;

		foreach my $election (sort keys %$heard)
		{
			my $last = $heard->{$election};
			my $rows = $history->{$election};

			foreach my $term (sort { $a <=> $b } keys %$rows)
			{
				my %when = (elected => $rows->{$term}{began}, vacated => $rows->{$term}{over});

				$_ = committed_at($election, $_) foreach values %when;
				foreach my $event (grep { $when{$_} && $when{$_} > $from && $when{$_} < $until - ($election =~ $MANY ? $CROWD_US : $late) } sort keys %when)
				{
					$count{'changes that were to be announced'}++;
					violation('not announced', "$election: $event $term at $when{$event} to $session, which heard of a change at $until")
					  if $event eq 'elected' ? $term > $last->{term} : $term == $last->{term} && $last->{event} ne 'vacated';
				}
			}
		}
	}
	return;
}

# The last change of each election before a calm: [election, when, term, event, place]
sub last_changes
{
	my ($history, $from, $to) = @_;
	my @last;

	foreach my $election (sort keys %$history)
	{
		my $rows = $history->{$election};
		my @changes = map { my $term = $_; ([ $election, $rows->{$_}{began}, $term, 'elected', 2 * $term - 1 ],
			[ $election, $rows->{$_}{over}, $term, 'vacated', 2 * $term ]) } keys %$rows;
		my ($last) = sort { $b->[4] <=> $a->[4] } grep { $_->[1] && $_->[1] > $from && $_->[1] < $to } @changes;

		push @last, $last if $last;
	}
	return @last;
}

# From when in a calm there certainly was a worker and nothing in its way, if ever
sub may_tell_from
{
	my ($from, $to) = @_;

	return first
	{
		($edition eq 'portable' || !may_lack_worker({ sent => $_, received => $to }))
		  && !faults_between(qr/^(?:lock table|maintenance)/, $_ - $IN_ITS_WAY_US, $to)
	}
	map { $from + $_ * $STEP_US } 0 .. ($to - $from) / $STEP_US;
}

# A session that has listened in a calm for long enough has heard of the last change of
# each election before it, or of a later one (G10).
sub check_calms_announced
{
	my ($history) = @_;
	my @changes = changes_of_many($history);

	return unless $wall_clock;
	foreach my $calm (grep { defined $_->[1] } @calms)
	{
		my ($from, $to) = @$calm;
		my $start = may_tell_from($from, $to) // next;

		next if many_changed($to - 2 * $CROWD_US, $to, \@changes);
		foreach my $session (sort grep { $listening{$_}{from} < $from } keys %listening)
		{
			my $lived = min($to, $listening{$session}{lived});
			my %heard;	# {election} = the last place

			next if in_failover($listening{$session}{from}, $to) || quiet($start, $lived) < $CALM_S;
			foreach (grep { $_->{session} eq $session && $_->{place} && $_->{time} < $to + 1_000_000 } @announced)
			{
				my $last = \$heard{ $_->{payload}{election} };

				$$last = max($$last // 0, $_->{place});
			}
			foreach (last_changes($history, $listening{$session}{from}, $from))
			{
				my ($election, $when, $term, $event, $place) = @$_;

				next if was_dropped($election, $when, $to);
				$count{'changes that were to be announced in a calm'}++;
				violation('not announced', "$election: $event $term at $when to $session, by $lived in a calm")
				  if ($heard{$election} // 0) < $place;
			}
		}
	}
	return;
}

1;
