# What the nemesis has done, and when: the file events.

package Check::Events;

use strict;
use warnings;

use Check::Record;
use Exporter qw(import);
use List::Util qw(max min);

our @EXPORT = qw(read_events add_seen slots_between);

my $AGAIN_US = 1_000_000;
my %seen;	# the last span that a server tells of an election, term and candidate
my @slots;	# [time, slots for workers that the primary has from then on]

# The run: its settings, its rounds and calms
sub read_run
{
	my ($time, $kind, @rest) = @_;

	if ($kind eq 'start')
	{
		$lease_us = $rest[-1] * 1000;
		$wall_clock = $rest[3] !~ /^(clock|back)$/;
	}
	$edition = $rest[0] if $kind eq 'edition';
	$epoch_us = $rest[0] if $kind eq 'epoch';
	$count{rounds}++ if $kind eq 'round';
	if ($kind eq 'calm')
	{
		$_->[1] //= $time foreach @pressing;
		if (@rest) { $calms[-1][1] = $time; }
		else { push @calms, [$time]; }
	}
	$bound{ $rest[0] } = 1 if "$kind @rest" =~ /^candidate \w+ pg_leader session$/;
	$languages{$1} = 1 if "$kind @rest" =~ /^member ([a-z]+)\d/;
	$believes{ $rest[0] } = 1 if "$kind @rest" =~ /^member \w+ session$/;
	$count{'starts of pg_leader with timeouts'}++ if $kind eq 'options';
	if ($kind eq 'huge')
	{
		$count{'huge statements that were done'}++;
		$info{'elections in a huge statement, most'} = max($info{'elections in a huge statement, most'} // 0, $rest[0]);
	}
	$count{'huge statements that were given up'}++ if "$kind @rest" =~ /^futile huge /;
	violation('the run itself', "$time @rest") if $kind eq 'failure';
	return;
}

sub read_fault
{
	my ($time, $kind, @rest) = @_;
	my $what = "$kind @rest";

	if ($kind eq 'fault')
	{
		my $fault = join(' ', @rest) =~ s/:.*//r;

		$faults{$fault}++;
		push @pressing, [ $time - 1_000_000, undef, $fault ];
		push @huge, [$time] if "@rest" =~ /^huge statement: \d+, (?!campaign)/;	# which commits each
	}
	$_->[1] //= $time foreach $what =~ /^(?:futile )?huge / ? @huge : ();
	if ($what =~ /^fault recreate election: (\w+)/)
	{
		$recreated{$1} = 1;
		push @dropping, [ $time - 1_000_000, undef, $1 ];
	}
	$_->[1] //= $time foreach grep { $what =~ /^done recreate \Q$_->[2]\E/ } @dropping;
	push @ended, [ $time, $1 ] if $what =~ /^(?:fault (?:terminate|kill) (?:backend|leader): client backend|terminated) (\w+)/;
	push @cuts, [ $time, undef, $rest[0] ] if $kind eq 'cut' && $rest[0] =~ /^c/;
	$_->[1] //= $time foreach grep { $kind eq 'healed' && $_->[2] eq $rest[0] } @cuts;
	return;
}

# What operators have ordered: pauses, drains, other groups, yields
sub read_order
{
	my ($time, $kind, @rest) = @_;

	push @paused, [ $time, $rest[1], $rest[0] ] if $kind eq 'paused';
	$_->[1] = min($_->[1] // $time, $time) foreach grep { $kind eq 'resuming' && $_->[2] eq $rest[0] } @paused;
	$_->[1] = min($_->[1] // $time, $time) foreach grep { $kind eq 'healing' } @paused;
	push @drained, { from => $time, election => $rest[0], names => $rest[1] } if $kind eq 'drained';
	$_->{to} //= $time foreach grep { $kind eq 'undraining' && "$_->{election} $_->{names}" eq "@rest" } @drained;
	push @groups, { group => $rest[0], number => $rest[1], sent => $time, seats => $rest[2], limit => $rest[3] }
	  if $kind eq 'altering';
	$_->{received} = $time foreach grep { $kind eq 'altered' && $_->{number} == $rest[1] } @groups;
	push @named, [ $time, $rest[0] ] if $kind eq 'named';
	return;
}

# A server has said who leads there. What it says again, less than a second later, is an
# interval.
sub add_seen
{
	my ($n, $sent, $received, $election, $term, $candidate) = @_;
	my %said = (election => $election, term => $term, candidate => $candidate, who => "by server$n");
	my $span = $seen{"$n $election $term $candidate"};

	push @moments, { %said, from => $sent, to => $received };
	$leader{$election}{$term}{$candidate} //= "server$n";
	if ($span && $sent < $span->{to} + $AGAIN_US)
	{
		$span->{to} = max($span->{to}, $sent);
		return;
	}
	push @spans, { %said, from => $received, to => $received };
	$seen{"$n $election $term $candidate"} = $spans[-1];
	return;
}

# The servers: failovers, standbys, slots for workers
sub read_servers
{
	my ($time, $kind, @rest) = @_;

	push @slots, [ $time, $rest[0] ] if $kind eq 'workers';
	push @windows, [ $time - 3_000_000, undef ] if $kind eq 'split';
	$windows[-1][1] = $time if $kind eq 'joined';
	push @short_leases, [ $time, undef ] if "$kind @rest" eq 'leases short';
	$_->[1] //= $time foreach grep { "$kind @rest" eq 'leases restored' } @short_leases;
	$count{"standbys $kind"}++ if $kind =~ /^(rewound|copied)$/;
	$count{'promotions'}++ if $kind eq 'promoted';
	$count{"standbys $kind @rest" =~ s/:.*//r}++ if $kind eq 'chosen';
	$count{'standbys left with the old primary'}++ if $kind eq 'stays';
	$count{'changes of synchronous_standby_names'}++ if $kind eq 'names';
	if ($kind eq 'seen')
	{
		$count{'leaders seen in a failover'}++;
		add_seen(@rest);
	}
	return;
}

# What was so in calms, and in the end
sub read_calm
{
	my ($time, $kind, @rest) = @_;
	my $lease = $lease_us * 1.25 / 1e6;

	if ($kind eq 'led')
	{
		# A detached candidate had another lease to come for it.
		my $bound = $lease + 2 + (($rest[2] // '') eq 'kept' ? $lease : 0);

		$count{'bounded vacancies'}++;
		$info{'longest vacancy in a calm, s'} =
		  max($info{'longest vacancy in a calm, s'} // 0, $rest[1]);
		violation('vacancy', "$rest[0]: $rest[1] s") if $rest[1] > $bound;	# G7
	}
	violation('withdrawn seat', "they were there for $rest[-1] s in a calm")
	  if $kind eq 'withdrawn' && $rest[-1] > $lease + 2;
	violation('left over', "locks|workers|candidates: @rest")
	  if $kind eq 'left' && $rest[0] ne '0|0|0';
	return;
}

# For how long the primary had no slot for any worker
sub count_time_without_workers
{
	my ($ended) = @_;

	foreach my $i (0 .. $#slots)
	{
		my $next = $i < $#slots ? $slots[ $i + 1 ][0] : $ended;

		$info{'without slots for workers, s'} += $slots[$i][1] ? 0 : ($next - $slots[$i][0]) / 1e6;
	}
	return;
}

sub read_events
{
	my $ended;

	foreach (lines("$out/events"))
	{
		my ($time, $kind, @rest) = split / /;

		$ended = $time if $kind eq 'end';
		$_->($time, $kind, @rest) foreach \&read_run, \&read_fault, \&read_order, \&read_servers, \&read_calm;
	}
	violation('the run itself', 'it was not finished') unless $ended;
	count_time_without_workers($ended) if $ended;
	$count{'times that a session of the pooler was reset'}++ foreach grep { $_ eq 'DISCARD ALL' } lines("$out/resets.out");
	return;
}

# How many slots for workers the primary had in that time: the fewest, and the most
sub slots_between
{
	my ($from, $to) = @_;
	my @then;

	foreach (@slots)
	{
		@then = () if $_->[0] <= $from;
		push @then, $_->[1] if $_->[0] <= $to;
	}
	return (min(@then), max(@then));
}

1;
