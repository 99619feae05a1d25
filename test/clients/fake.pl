# A subject that is broken on purpose: it leads because it says so, always in
# term 1. The checker has to find it, in each run of the suite.
#
#	perl fake.pl

use strict;
use warnings;

use Time::HiRes qw(clock_gettime sleep CLOCK_MONOTONIC);

sub say_so
{
	printf "%s %d\n", join(' ', @_), clock_gettime(CLOCK_MONOTONIC) * 1e9;
	return;
}

$| = 1;
say_so('ready');
say_so('elected', 1);
while (1)
{
	say_so('working', 1, int(clock_gettime(CLOCK_MONOTONIC) * 1e9));
	sleep 0.02;
}
