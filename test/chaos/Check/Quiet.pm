# When nothing was under way that may keep an election from having a leader: what is
# bounded counts only then, and only by the timer of the run.
#
# A disturbance is [from, to].  Where it is not known when a fault was over, it has
# lasted for as long as it ever does.

package Check::Quiet;

use strict;
use warnings;

use Check::Record;
use Exporter qw(import);
use List::Util qw(first max min);
use Wide;

our @EXPORT = qw(
  read_faults quiet merge_times overlaps disturbed disturbed_candidate
  stopped_candidate deaths_of may_have_crashed may_be_paused may_be_drained
  may_drain_anybody faults_between
);

my $EVER = 9e15;
my $SECOND = 1_000_000;
my $EARLY_US = 500_000;		# a fault is told of when it is there
my $LONG_US = 2_000_000;	# what was under way may have to begin anew after it
my $LEAST_US = 500_000;		# what is quiet for less does not count: nobody gets far in it

# What reaches all elections: the fault, how long it lasts at most, in seconds (a restart
# and a failover say themselves when they are done), and how long what it leaves.
my @faults = (
	[ qr/^maintenance of all tables$/, 25, 6 ],
	[ qr/^(maintenance|lock table)$/, 12, 6 ],	# it may have waited for a transaction
	[ qr/^(cut|reset) clients$/, 2, 2 ],	# who certainly stands has got through
	[ $WIDE, 6, 6 ],
	[ qr/^stop (?!client|pooler)|^NOTIFY stopped/, 4, 1 ],	# which may have any lock
	[ qr/^huge statement$/, 29, 6 ],	# the worker is busy
	[ qr/^many spread elections$/, 8, 6 ],
	[ qr/^hostile candidate role$/, 5, 6 ],	# which may lead, or have a seat reserved
);
my @pooled = qw(p1 p2 g5 g6);
my $CRASH = qr/^(?:kill (?:backend|worker|postmaster)|.*restart|failover.*|full disk)/;	# also what is done

my @ticks;			# when the timer of 10 ms came
my (%under_way, %hit);	# {election, or "all"}, {candidate} = disturbances
my %stopped;		# {candidate} = those of them in which it was stopped or cut off
my %deaths;			# {candidate} = when its process or its session was ended
my @crashed;		# [from, to]
my (@pausing, @draining);	# [from, to, election or "all", names]: it may have been so
my @seen;			# [when, fault]

sub disturb
{
	my ($what, $from, $to) = @_;

	push @{ $under_way{$what} }, [ $from, $to ];
	return;
}

# A fault, which is over at that time, if that is known
sub read_fault
{
	my ($time, $fault, $what, $over) = @_;
	my $kind = first { $fault =~ $_->[0] } @faults;
	my ($lasts) = $what =~ /for ([\d.]+) s$/;

	push @seen, [ $time, $fault ];
	push @crashed, [ $time - $EARLY_US, $time + 6 * $SECOND ] if $fault =~ $CRASH;
	disturb('all', $time - $EARLY_US, ($over // $time + ($lasts // $kind->[1]) * $SECOND) + $kind->[2] * $SECOND)
	  if $kind && !($fault =~ /^stop/ && $what =~ /, idle$/);
	disturb($1, $time - $EARLY_US, $time + 5 * $SECOND) if $fault eq 'lock row' && $what =~ /^lease of (\S+)/;
	read_hit($time, $fault, $what, $over);
	return;
}

# A fault that hits single candidates.  The processes of pg_leader and of its command have
# sessions of the same name: which of these was ended is not known.
sub read_hit
{
	my ($time, $fault, $what, $over) = @_;
	my $hit = [ $time - $EARLY_US, ($over // $time + 3 * $SECOND) + $SECOND ];
	my @whom = $fault =~ /pooler$/ ? @pooled
	  : $fault =~ /^(?:kill|stop) client$/ ? $what =~ /^(\w+)/ : $what =~ /^client backend (\w+)/;

	foreach my $candidate (@whom)
	{
		push @{ $hit{$candidate} }, $hit;
		push @{ $stopped{$candidate} }, $hit if $fault =~ /^stop|pooler$/;
		push @{ $deaths{$candidate} }, $time
		  if $fault eq 'kill client' ? $what !~ /, its command$/
		  : $fault =~ /^(?:terminate|kill) (?:backend|leader)$/ && !$bound{$candidate};
	}
	return;
}

# A pause or a drain, from when it was asked for to when the end of it was answered; or
# to the next calm, if it is not known to have ended, or may have come back.
sub read_order
{
	my ($events, $i, $done, $undone) = @_;
	my ($from, undef, @what) = @{ $events->[$i] };
	my ($told, $failed_over);

	foreach my $e (@{$events}[ $i + 1 .. $#$events ])
	{
		my ($time, $kind, @rest) = @$e;
		my $same = join(' ', @rest[ 0 .. min($#what, $#rest) ]) eq "@what";

		return [ $from, $time, @what ] if $kind eq 'calm';
		$failed_over = 1 if $kind eq 'promoted';
		$told = 1 if $kind eq $done && $same;
		return [ $from, $time, @what ] if $kind eq $undone && $same && $told && !$failed_over;
	}
	return [ $from, $EVER, @what ];
}

sub read_faults
{
	my @events = map { [ split / / ] } lines("$out/events");
	my @injected = grep { $_->[1] eq 'fault' } @events;
	my (%over, %since, $begun);

	@ticks = lines("$out/ticks.out");
	$over{ $_->[2] } = $_->[0] foreach grep { $_->[1] eq 'over' } @events;
	foreach my $i (0 .. $#injected)
	{
		my ($time, undef, @rest) = @{ $injected[$i] };
		my ($fault, $what) = "@rest" =~ /^([^:]*): ?(.*)/ or next;

		read_fault($time, $fault, $what, $over{ $i + 1 });
	}
	foreach my $i (0 .. $#events)
	{
		my ($time, $kind, @rest) = @{ $events[$i] };

		push @pausing, read_order(\@events, $i, 'paused', 'resumed') if $kind eq 'pausing';
		push @draining, read_order(\@events, $i, 'drained', 'undrained') if $kind eq 'draining';
		read_hit($time, 'terminate leader', "client backend $rest[0]") if $kind eq 'terminated';
		if ($kind eq 'round' && !$begun++)
		{
			disturb('all', 0, $time);
			push @crashed, [ 0, $time + 6 * $SECOND ];	# the servers have just started
		}
		$since{$kind} = $time if $kind =~ /^(healing|pressed)$/;
		$since{"@rest"} = $time if $kind eq 'doing';
		if ($kind eq 'done' && defined(my $from = delete $since{"@rest"}))
		{
			push @crashed, [ $from - $EARLY_US, $time + 6 * $SECOND ] if "@rest" =~ $CRASH;
			disturb("@rest" =~ /^recreate (\S+)/ ? ($1, $from - $EARLY_US, $time + 3 * $SECOND)
				: ('all', $from - $EARLY_US, $time + 6 * $SECOND));
		}
		disturb('all', $_, $time) foreach $kind eq 'calm' ? grep { defined } delete @since{qw(healing pressed)} : ();
		disturb('all', $time - $EARLY_US, $EVER) if $kind eq 'ending';
	}
	disturb('all', $_, $EVER) foreach values %since;
	disturb('all', 0, $EVER) unless $begun;
	disturb($_->[2], @{$_}[ 0, 1 ]) foreach @pausing;
	end_in_calms(map { "@{$_}[ 1 .. $#$_ ]" eq 'calm' ? $_->[0] : () } @events);
	return;
}

# What began before a calm is over when that begins. (What a disturbance comes of may have
# been just after a calm, for it begins early.)
sub end_in_calms
{
	my (@calms) = @_;

	foreach my $disturbance (map { @$_ } values %under_way)
	{
		my $calm = first { $_ > $disturbance->[0] + $EARLY_US } @calms;

		$disturbance->[1] = min($disturbance->[1], $calm) if defined $calm;
	}
	return;
}

# --- what is known of it

# In order, and none beside another
sub merge_times
{
	my @merged;

	foreach (sort { $a->[0] <=> $b->[0] } @_)
	{
		if (@merged && $_->[0] <= $merged[-1][1])
		{
			$merged[-1][1] = max($merged[-1][1], $_->[1]);
			next;
		}
		push @merged, [@$_];
	}
	return @merged;
}

# Of this election, and of all
sub disturbed
{
	my ($election) = @_;

	return map { @{ $under_way{$_} // [] } } 'all', $election;
}

# A candidate, or an observer, may have been killed or stopped, or cut off.
sub disturbed_candidate { return @{ $hit{ $_[0] } // [] }; }

# The times in which it may have been stopped, or cut off, and so may have led on in silence
sub stopped_candidate { return @{ $stopped{ $_[0] } // [] }; }

# When its process was killed, or its session was ended
sub deaths_of { return @{ $deaths{ $_[0] } // [] }; }

sub overlaps { my ($what, $from, $to) = @_; return $what->[0] < $to && $what->[1] > $from; }

# A server may have crashed then, or just before, and who is detached has to call again.
sub may_have_crashed { my ($from, $to) = @_; return grep { overlaps($_, $from, $to) } @crashed; }

sub may_be_paused
{
	my ($election, $from, $to) = @_;

	return grep { overlaps($_, $from, $to) && $_->[2] =~ /^(?:all|\Q$election\E)$/ } @pausing;
}

sub may_be_drained
{
	my ($candidate, $election) = @_;

	return grep
	{
		$_->[2] =~ /^(?:all|\Q$election\E)$/
		  && ($_->[3] =~ /^(.*)\*$/ ? index($candidate, $1) == 0 : $_->[3] eq $candidate)
	} @draining;
}

# May there have been a drain of anybody in this election?
sub may_drain_anybody
{
	my ($election, $from, $to) = @_;

	return grep { overlaps($_, $from, $to) && $_->[2] =~ /^(?:all|\Q$election\E)$/ } @draining;
}

sub faults_between
{
	my ($fault, $from, $to) = @_;

	return grep { $_->[1] =~ $fault && $_->[0] >= $from && $_->[0] <= $to } @seen;
}

# --- how long that was

# The number of ticks before that time
sub ticks_before
{
	my ($time) = @_;
	my ($low, $high) = (0, scalar @ticks);

	while ($low < $high)
	{
		my $middle = int(($low + $high) / 2);

		if ($ticks[$middle] < $time) { $low = $middle + 1; }
		else { $high = $middle; }
	}
	return $low;
}

# Seconds of the run: what came late of a timer of 10 ms does not count.
sub elapsed
{
	my ($from, $to) = @_;

	return $to > $from ? (ticks_before($to) - ticks_before($from)) / 100 : 0;
}

# The same, of what was quiet: disturbances do not count, nor what is short between two.
# After a long one it all begins anew: the longest such time.
sub quiet
{
	my ($from, $to, @disturbances) = @_;
	my ($seconds, $longest) = (0, 0);
	my $at = $from;

	foreach (merge_times(grep { overlaps($_, $from, $to) } @disturbances), [ $to, $to ])
	{
		my $end = min($_->[0], $to);

		$seconds += elapsed($at, $end) if $end - $at >= $LEAST_US || ($at == $from && $end == $to);
		$longest = max($longest, $seconds);
		$seconds = 0 if $_->[1] - $_->[0] > $LONG_US;
		$at = max($at, $_->[1]);
	}
	return $longest;
}

1;
