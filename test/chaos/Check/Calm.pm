# Calm elections: what the nemesis does to others does not reach them.

package Check::Calm;

use strict;
use warnings;

use Check::Clients;
use Check::Events;
use Check::Known;
use Check::Record;
use Exporter qw(import);
use Wide;

our @EXPORT = qw(check_calm);

my $LOCK_TABLE_FULL = '53200';	# which nobody can help who takes a lock
my $LASTS_US = 6_000_000;	# a wide fault, and what it leaves
my $STOPPED_US = 4_000_000;	# one that others wait for, unless it certainly held nothing, and what that leaves
my @whole;					# [from, to] of these

sub read_faults
{
	my %doing;	# since when: what takes its time

	# A call of the portable edition keeps the NOTIFY lock until its commit is over.
	my $waited_for = $edition eq 'portable' ? qr/^stop (?:backend|leader)$/ : qr/^stop worker$/;

	foreach (lines("$out/events"))
	{
		my ($time, $kind, $what) = /^(\d+) (\w+) ?([^:]*)/ or next;

		$doing{$what} = $time if $kind eq 'doing' && $what !~ /^recreate/;
		push @whole, [ $time - 500_000, $time + $LASTS_US ] if $kind eq 'fault' && $what =~ $WIDE;
		push @whole, [ $time - 500_000, $time + $STOPPED_US ] if $kind eq 'fault' && $what =~ $waited_for && !/, idle$/;
		push @whole, [ $doing{$what} - 500_000, $time + $LASTS_US ] if $kind eq 'done' && $doing{$what};
		push @whole, [ $time - $LASTS_US, $time + $LASTS_US / 2 ] if $kind =~ /^(start|calm)$/;
		push @whole, [ $time, $time + 60_000_000 ] if $kind eq 'ending';
	}
	foreach (lines("$out/stalls.out"))
	{
		my ($time, $lasted) = split / /;

		push @whole, [ $time - $lasted - 500_000, $time + 3_000_000 ];
		$count{'stalls of the machine'}++;
	}
	return;
}

# May it be that a whole server, or the network, was hit at that time?
sub may_be_hit
{
	my ($time) = @_;

	return grep { $_->[0] <= $time && $time <= $_->[1] } @whole;
}

# Without a worker, which has locks in reserve, a leader cannot renew its lease where the
# lock table is full.
sub had_no_locks
{
	my ($row) = @_;
	my $since = $row->{over} - $lease_us;
	my (undef, $slots) = slots_between($since, $row->{over});

	return $row->{reason} eq 'expired' && !$slots && is_expected($LOCK_TABLE_FULL, $row->{over})
	  && grep { /^e (\d+) $LOCK_TABLE_FULL / && $1 > $since && $1 < $row->{over} }
	  map { lines($_) } glob "$out/candidate.$row->{leader}.*";
}

# No term of theirs ends, and their candidates get no error, but where a whole server
# or the network was hit.
sub check_calm
{
	my ($history) = @_;

	read_faults();
	foreach my $election (grep { /^calm/ } sort keys %$history)
	{
		my $rows = $history->{$election};

		foreach my $term (sort { $a <=> $b } keys %$rows)
		{
			my $row = $rows->{$term};

			$count{'terms in calm elections'}++;
			next unless $row->{over} && $wall_clock;
			violation('calm election', "$election: $row->{leader} in term $term: $row->{reason} at $row->{over}")
			  unless may_be_hit($row->{over}) || had_no_locks($row);
		}
	}
	foreach my $path (glob "$out/candidate.calm*")
	{
		foreach (lines($path))
		{
			my ($kind, $time, $state) = split / /;

			next unless $kind =~ /^[ex]$/;
			$count{'errors in calm elections'}++;

			next if $kind eq 'e' && $state eq $LOCK_TABLE_FULL && is_expected($state, $time);
			violation('calm election', ($path =~ s{.*/}{}r) . ": $_") unless may_be_hit($time);
		}
	}
	$info{'in which calm elections were to be calm, s'} = calm_time();
	return;
}

# For how long there was nothing that might have hit them
sub calm_time
{
	my @rounds = map { /^(\d+) (?:round|ending)/ ? $1 : () } lines("$out/events");
	my $time = 0;

	return 0 unless @rounds;
	for (my $t = $rounds[0]; $t < $rounds[-1]; $t += 100_000)
	{
		$time += 0.1 unless may_be_hit($t);
	}
	return $time;
}

1;
