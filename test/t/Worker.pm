# Helpers for the tests in which the worker process matters.
#
#	use Worker;
#
#	wait_for($node, $ONE_WORKER);
#	my $pid = stop_worker($session);
#	resume_process($pid);
#
# The workers meant are those of the database in which the query runs.

package Worker;

use strict;
use warnings;

use Exporter qw(import);
use LeaderElection;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time);

our @EXPORT = qw($NO_WORKER $ONE_WORKER $WORKER_PID $WORKERS
  cpu_seconds stop_worker transactions_in wait_for_renewal);

our $WORKERS =
    "pg_stat_activity WHERE backend_type = 'leader_election worker'"
  . ' AND datname = current_database()';
our $WORKER_PID = "SELECT pid FROM $WORKERS ORDER BY backend_start LIMIT 1";
our $NO_WORKER = "SELECT count(*) = 0 FROM $WORKERS";
our $ONE_WORKER = "SELECT count(*) = 1 FROM $WORKERS";

# Stops the worker while it sleeps. Returns its process id. Two may have been started at
# the same time: the second one finds the first, and ends after a second.
sub stop_worker
{
	my ($session) = @_;

	return stop_where($session,
		"SELECT pid FROM $WORKERS AND ($ONE_WORKER)",
		"state = 'idle' AND wait_event_type = 'Extension'");
}

# Processor seconds that a process has used so far.
sub cpu_seconds
{
	my ($pid) = @_;
	my @stat = split / /, slurp_file("/proc/$pid/stat") =~ s/^.*\) //sr;

	return ($stat[11] + $stat[12]) / 100;
}

# How many transactions the session's database has in so many seconds. A worker that makes
# one after the other has a thousand in a second. One that makes pauses has as many of these
# on a busy machine, so that it is the clock that counts.
sub transactions_in
{
	my ($session, $seconds) = @_;
	my $query = 'SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()';
	my $before = $session->query($query);
	my $start = time;

	wait_until(sub { time > $start + $seconds }, "$seconds s");
	return ($session->query($query) - $before) * $seconds / (time - $start);
}

# Waits until the lease of an election is one that was renewed or granted after
# this call.
sub wait_for_renewal
{
	my ($node, $election) = @_;
	my $session = session($node);
	my $now = $session->query('SELECT clock_timestamp()');

	$session->finish;
	return wait_for($node,
		"SELECT renewed_at > '$now' FROM leader_election.lease"
		  . " WHERE election = '$election'");
}

1;
