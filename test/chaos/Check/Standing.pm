# Who certainly stood for an election, and when.
#
#	session    from when join() was answered to when a statement was sent on that
#	           connection that was answered, too (the answer may be read long after)
#	detached   from the answer to a call, for one (shortest) lease from when it was sent;
#	           where leases may have been made short, for a quarter of that

package Check::Standing;

use strict;
use warnings;

use Check::Quiet;
use Check::Record;
use Exporter qw(import);
use List::Util qw(max min uniq);

our @EXPORT = qw(read_standing stood_throughout unmanned asleep is_logged);

my %stood;		# {election}{candidate} = [from, to]; an election may be GROUP/*
my %merged;		# the same, of the election and its group
my %calls;		# {election}{candidate} = [sent, received]: of detached ones
my %polls;		# the same, of the portable edition's sessions
my %logged;		# {candidate}: its log is there

sub add
{
	my ($election, $candidate, $from, $to) = @_;

	push @{ $stood{$election}{$candidate} }, [ $from, $to ] if $to > $from;
	return;
}

# Ends what a session stood for, or all of it, at the last moment at which it certainly
# lived.
sub end_session
{
	my ($candidate, $session, $election) = @_;

	foreach (defined $election && $election ne 'all' ? $election : keys %{ $session->{since} })
	{
		my $since = delete $session->{since}{$_} // next;

		add($_, $candidate, $since, $session->{lived});
	}
	return;
}

# The session has answered: so it lived when that statement was sent.
sub hear
{
	my ($candidate, $session, $serial, $sent) = @_;

	if (($session->{serial} // '') ne $serial)
	{
		end_session($candidate, $session);
		%$session = (serial => $serial, since => {}, lived => 0);
	}
	$session->{lived} = max($session->{lived}, $sent);
	return;
}

# May the leases have been short at the time of a call?
sub were_short
{
	my ($sent, $received) = @_;

	return grep { $_->[0] < $received && $sent < ($_->[1] // $sent + 1) } @short_leases;
}

sub read_standing
{
	my ($path) = @_;
	my ($candidate) = $path =~ m{/candidate\.(\w+)\.};
	my $session = { since => {}, lived => 0 };
	my $shortest = 0.75 * $lease_us;

	foreach (lines($path))
	{
		my ($kind, @f) = split / /;

		$logged{$candidate} = 1;
		if ($kind eq 'q')
		{
			hear($candidate, $session, @f[ 0, 2 ]);
		}
		elsif ($kind eq 'j')
		{
			my ($serial, $election, $sent, $received, $state) = @f;

			next unless $state eq '00000';
			hear($candidate, $session, $serial, $sent);
			$session->{since}{$election} //= $received;
			push @{ $polls{$election}{$candidate} }, [ $sent, $received ] if $edition eq 'portable';
		}
		elsif ($kind =~ /^[xzy]$/)
		{
			end_session($candidate, $session);
		}
		elsif ($kind =~ /^[ag]$/)
		{
			my ($election, $sent, $received) = @f;

			# There it does not stand who asks for a run that is done.
			next if $election eq 'runs';
			push @{ $calls{$election}{$candidate} }, [ $sent, $received ];
			add($election, $candidate, $received, $sent + $shortest / (were_short($sent, $received) ? 4 : 1));
		}
		elsif ($kind =~ /^[vur]$/)
		{
			my ($election, $time) = @f;

			# Whoever leaves a seat stands for the group no more, as far as is known here.
			foreach my $name (names_of($election))
			{
				end_session($candidate, $session, $name);
				$_->[1] = min($_->[1], $time) foreach @{ ($stood{$name} // {})->{$candidate} // [] };
			}
		}
	}
	end_session($candidate, $session);
	return;
}

sub is_logged { return $logged{ $_[0] }; }

# As a single election, and as a seat of its group
sub names_of { my ($election) = @_; return ($election, $election =~ m{^(.*)/\d+$} ? "$1/*" : ()); }

sub candidates_of
{
	my ($election) = @_;

	return sort(uniq(map { keys %{ $stood{$_} // {} } } names_of($election)));
}

sub standings
{
	my ($candidate, $election) = @_;

	$merged{$election}{$candidate} //= [ merge_times(map { @{ ($stood{$_} // {})->{$candidate} // [] } } names_of($election)) ];
	return @{ $merged{$election}{$candidate} };
}

# Those who certainly stood all the time
sub stood_throughout
{
	my ($election, $from, $to) = @_;

	return grep { grep { $_->[0] <= $from && $_->[1] >= $to } standings($_, $election) } candidates_of($election);
}

# The times in which fewer than so many stood who were certainly not drained
sub unmanned
{
	my ($election, $least) = @_;
	my (@changes, @few);
	my ($n, $since) = (0, 0);

	foreach my $candidate (candidates_of($election))
	{
		my @drains = merge_times(may_be_drained($candidate, $election));

		foreach (standings($candidate, $election))
		{
			my ($from, $to) = @$_;

			foreach my $drain (grep { $_->[0] < $to && $_->[1] > $from } @drains)
			{
				push @changes, [ $from, 1 ], [ $drain->[0], -1 ] if $drain->[0] > $from;
				$from = min($to, max($from, $drain->[1]));
			}
			push @changes, [ $from, 1 ], [ $to, -1 ] if $to > $from;
		}
	}
	foreach (sort { $a->[0] <=> $b->[0] } @changes)
	{
		my $was = $n;

		$n += $_->[1];
		push @few, [ $since, $_->[0] ] if $was < $least && $n >= $least;
		$since = $_->[0] if $was >= $least && $n < $least;
	}
	push @few, [ $since, 9e15 ] if $n < $least;
	return @few;
}

# The times in which a detached candidate did not call: while it counts as one that stands;
# or, where the seat may be reserved for it, while it counts as alive, and one lease.  Not of
# the one that is excepted.  In the portable edition a seat is reserved for a session, too,
# that is alive and does not call.
sub asleep
{
	my ($election, $except, $is_kept) = @_;
	my $longest = $lease_us * ($is_kept ? 1.25 * (4 / 3 + 1) : 0.75);
	my %all;
	my @times;

	foreach my $name (names_of($election))
	{
		foreach my $called (\%calls, $is_kept ? \%polls : ())
		{
			push @{ $all{$_} }, @{ $called->{$name}{$_} } foreach keys %{ $called->{$name} // {} };
		}
	}
	foreach my $candidate (grep { $_ ne $except } sort keys %all)
	{
		my @sorted = sort { $a->[0] <=> $b->[0] } @{ $all{$candidate} };

		foreach my $i (0 .. $#sorted)
		{
			my $next = $i < $#sorted ? $sorted[ $i + 1 ][1] : 9e15;

			push @times, [ $sorted[$i][1], min($next, $sorted[$i][1] + $longest) ] if $next - $sorted[$i][0] > 1_000_000;
		}
	}
	push @times, map { [ $_->[0], $_->[1] + $longest ] } disturbed_candidate('l1') if $election eq 'lone' && $except ne 'l1';
	return @times;
}

1;
