# Time as a busy machine cannot use it up, for checks that something is prompt;
# and how slow the machine is, for what has to last while something is done.
#
#	use MachineTime;
#
#	my $start = machine_time();
#	...
#	cmp_ok(machine_time() - $start, '<', 1, 'soon');
#	my $mark = held_up();
#	...
#	cmp_ok($elected_mono, '<', $deadline_mono + $SOON + held_up($mark), 'soon');
#
#	my $LEASE = 2_000_000 * slowness();
#
# A busy machine has processes wait for a processor or for a disk, maybe for
# much longer than anybody would call soon.  This clock stands still then: on an
# idle machine it is the monotonic clock, and the busier the machine, the less
# passes on it.  So it is for upper limits only.  That nothing happens early is
# told by the other clocks.
#
# Linux counts how long there was any process that waited (pressure stall
# information).  Where it does not, no time passes on this clock, and nothing is
# found to be late.

package MachineTime;

use strict;
use warnings;

use Exporter qw(import);
use List::Util qw(max min);
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

our @EXPORT = qw(held_up machine_time slowness);

# What a process may wait for.  The second file of a processor is that of this
# container, which may have a limit of its own; elsewhere it says the same.
my @PRESSURES = grep { @$_ } map { [ grep { -r } @$_ ] }
  [qw(/proc/pressure/cpu /sys/fs/cgroup/cpu.pressure)],
  [qw(/proc/pressure/io)], [qw(/proc/pressure/memory)];

# Linux counts the mean of all processors: if we may use only some of them,
# those may be so much busier.
my $SHARE = _processors('/sys/devices/system/cpu/online', qr/^([\d,-]+)$/m) /
  _processors('/proc/self/status', qr/^Cpus_allowed_list:\s+([\d,-]+)$/m);

# Seconds to start a program on an idle machine, with room for an old one
my $START = 0.005;
my $STARTS = 10;

my $began = _stalled() // 0;

sub machine_time
{
	my $stalled = _stalled() // return 0;

	return clock_gettime(CLOCK_MONOTONIC) - $stalled;
}

# For how many microseconds the machine has held processes up since it returned
# this mark, or since the test began; very many if it does not tell.  The later the
# mark, the sharper the check; all that is checked has to come after it.
sub held_up
{
	my ($mark) = @_;
	my $stalled = _stalled() // return 10**15;

	return int(1e6 * ($stalled - $began)) - ($mark // 0);
}

# How slow the machine is now, by what it takes to start a program: 1 if it is
# idle, 5 at most. Or what LE_TEST_SLOWNESS says: the server may be slow, and nothing
# else; and tests that pass on a slow machine have to pass with 1, too.
sub slowness
{
	return $ENV{LE_TEST_SLOWNESS} if $ENV{LE_TEST_SLOWNESS};

	my $start = clock_gettime(CLOCK_MONOTONIC);

	system($^X, '-e', '1') foreach 1 .. $STARTS;
	my $took = (clock_gettime(CLOCK_MONOTONIC) - $start) / $STARTS;
	return max(1, min(5, int($took / $START + 0.5)));
}

# In seconds
sub _stalled
{
	my $stalled = 0;

	return unless @PRESSURES;
	$stalled += $SHARE / 1e6 * max(map { _read($_) =~ /^some .*total=(\d+)/m ? $1 : 0 } @$_)
	  foreach @PRESSURES;

	# What the host of a virtual machine takes away, in ticks
	$stalled += $1 / 100 if _read('/proc/stat') =~ /^cpu +(?:\d+ +){7}(\d+)/;
	return $stalled;
}

# How many are in a list like "0-3,7"; 1 if it cannot be read
sub _processors
{
	my ($file, $regexp) = @_;
	my $count = 0;

	$count += /(\d+)-(\d+)/ ? $2 - $1 + 1 : 1
	  foreach split /,/, _read($file) =~ $regexp ? $1 : '';
	return $count || 1;
}

sub _read
{
	my ($file) = @_;

	open(my $handle, '<', $file) or return '';
	local $/;
	my $text = <$handle> // '';
	close $handle;
	return $text;
}

1;
