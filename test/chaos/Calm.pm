# The calm elections: nobody attacks them, their candidates, or the connections and
# server processes of these. What the nemesis does to others must not reach them.

package Calm;

use strict;
use warnings;

use Cluster;
use Exporter qw(import);

our @EXPORT = qw(%calm_elections $calm_twin $twin is_calm hold_twin measure watch_for_stalls);

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

# What the tables and the locks take up, and the worker, if there is one, when all is well
sub measure
{
	my $row = sql(primary(), q{SELECT coalesce((SELECT pid FROM pg_stat_activity
			WHERE backend_type = 'leader_election worker' AND datname = 'postgres' LIMIT 1), 0),
		(SELECT sum(pg_total_relation_size(oid)) / 1024 FROM pg_class WHERE relkind = 'r'
			AND relnamespace = 'leader_election'::regnamespace AND relname <> 'history')::bigint,
		(SELECT count(*) FROM leader_election.election),
		(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid >= 20),
		(SELECT relname || ':' || pg_total_relation_size(oid) / 1024 FROM pg_class WHERE relkind = 'r'
			AND relnamespace = 'leader_election'::regnamespace AND relname <> 'history'
			ORDER BY pg_total_relation_size(oid) DESC LIMIT 1)}, 20)
	  // return note_failure('nothing can be measured');
	my ($pid, @taken) = split /\|/, $row;
	my ($memory) = $pid ? slurp("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m : ();

	event('measured', defined $memory ? ($pid, $memory) : (0, 0), @taken);
	return;
}

1;
