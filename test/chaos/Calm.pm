# The calm elections: nobody attacks them, their candidates, or the connections and
# server processes of these. What the nemesis does to others must not reach them.

package Calm;

use strict;
use warnings;

use Cluster;
use Exporter qw(import);

our @EXPORT = qw(%calm_elections $calm_twin $twin is_calm hold_twin watch_for_stalls);

our %calm_elections;	# name => arguments of create_election()

# Two names of the same Jenkins hash (PostgreSQL's hash_bytes_extended() with seed 0)
our $calm_twin = 'calm_qwxva60kaaai00kkbax';
our $twin = 'twin_fo49hdc_vx9_cn0_0__';

# Is this a candidate of theirs?
sub is_calm { return $_[0] =~ /^calm/; }

# A transaction holds the lock of an election, which would be that of a calm one if
# locks were told apart by a hash for which such names can be found.
sub hold_twin
{
	my $seconds = 1 + int(rand(3));

	sql_async(primary(), "BEGIN; SELECT leader_election.drop_election('$twin'); SELECT pg_sleep($seconds); ROLLBACK");
	return "$seconds s";
}

# Writes down when the machine has stood still: when, and for how many microseconds.
# Whoever has a lease of 1.5 s may lose it then.
sub watch_for_stalls
{
	start_process('stalls', $^X, '-MTime::HiRes=sleep,clock_gettime,CLOCK_BOOTTIME', '-e', q{
		$| = 1;
		for (my $last = clock_gettime(CLOCK_BOOTTIME);; $last = $now)
		{
			sleep 0.02;
			$now = clock_gettime(CLOCK_BOOTTIME);
			printf "%d %d\n", $now * 1e6, ($now - $last) * 1e6 if $now - $last > 0.2;
		}});
	return;
}

1;
