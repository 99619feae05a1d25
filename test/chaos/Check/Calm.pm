# Calm elections: what the nemesis does to others does not reach them.

package Check::Calm;

use strict;
use warnings;

use Check::Answers;
use Check::Clients;
use Check::Events;
use Check::Known;
use Check::Record;
use Check::Watched;
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
		if ($kind eq 'standstill')
		{
			my ($since, $why) = split / /, $what, 2;

			push @whole, [ $since - 500_000, $time + $STOPPED_US / 2 ];
			$count{"times that nothing was committed: $why"}++;
		}
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

# May it be that a whole server, or the network, was hit at that time, or in between?
sub may_be_hit
{
	my ($from, $to) = @_;

	return grep { $_->[0] <= ($to // $from) && $from <= $_->[1] } @whole;
}

# Without a worker, which has locks in reserve, a leader cannot renew its lease where the
# lock table is full. A detached one is told so; join() leaves the renewal out, so that any
# statement of a session shows that it was full then. (A lease is renewed in its second half.)
sub had_no_locks
{
	my ($election, $row) = @_;
	my $since = $row->{over} - $lease_us / 2;
	my (undef, $slots) = slots_between($since, $row->{over});
	my $what = $row->{kind} eq 'session' ? qr// : qr/leader_election\.(?:acquire|renew)\(/;
	my $lacked = 0;

	return if $row->{reason} ne 'expired' || $slots || !is_expected($LOCK_TABLE_FULL, $row->{over});
	foreach (map { lines($_) } glob "$out/candidate.$row->{leader}.*")
	{
		$lacked = 1 if /^e (\d+) $LOCK_TABLE_FULL \d+ (.*)/ && $1 > $since && $1 < $row->{over} && $2 =~ $what;
		$lacked = 0 if /^g \Q$election\E \d+ (\d+) / && $1 > $since && $1 < $row->{over};
	}
	return $lacked;
}

# Their leaders lead all the time: no lease runs out, and comes back with a renewal that took
# its time.
sub check_lapses
{
	my %claims;

	push @{ $claims{ $_->{election} } }, $_ foreach grep { $_->{election} =~ /^calm/ } @claims;
	foreach my $c (map { @$_ } values %claims)
	{
		foreach (grep { !may_be_hit(@$_) } @{ $c->{lapses} // [] })
		{
			violation('calm election', "$c->{election}: $c->{candidate} in term $c->{term}: not between $_->[0] and $_->[1]");
		}
	}
	foreach my $row (grep { $_->{state} eq 'vacant' && $claims{ $_->{election} } } @rows)
	{
		my $leads = leads_around(\%claims, $row);

		violation('calm election', "$row->{election}: vacant, " . between($row) . '; ' . describe($leads))
		  if $leads && !may_be_hit(@{$row}{qw(sent received)});
	}
	return;
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
			  unless may_be_hit($row->{over}) || had_no_locks($election, $row);
		}
	}
	check_lapses();
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
