# What monitors read where one session cannot make it so: on a standby, with
# tables locked, with a worker that is late, and with synchronous standbys that
# are silent or gone.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SyncStandby;
use Test::More;
use Worker;

my $QUIET = '-c client_min_messages=error';
my $pair = SyncStandby->new(config => "leader_election.lease_duration = '12s'");
my $node = $pair->{primary};
my $super = session($node, name => 'super', options => $QUIET);

$super->query('CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA leader_election TO reader');
my $reader = session($node, name => 'reader', user => 'reader', options => "$QUIET -c lock_timeout=100ms");
my ($one, $two) = map { session($node, name => $_, options => $QUIET) } qw(one two);

sub metric
{
	my ($columns, $session) = @_;

	return ($session // $reader)->query("SELECT $columns FROM leader_election.metrics WHERE election = 'e'");
}

sub server
{
	my ($columns, $session) = @_;

	return ($session // $reader)->query("SELECT $columns FROM leader_election.server_metrics");
}

$one->query("SELECT leader_election.join('e', 'one')");
$two->query("SELECT leader_election.join('e', 'two')");
wait_until(sub { metric('renewal_left_ratio BETWEEN 0.5 AND 0.9') eq 't' }, 'a renewal');
pass('a renewal in time');
is(server('in_recovery, worker, standbys_needed, standbys_connected'), '0|1|1|1', 'a synchronous standby');
wait_until(sub { metric('unannounced_seconds') eq '0' }, 'listeners to be told');

# A standby: the time of day has to do, and it does not know who stands.
my $there = session($pair->{standby}, name => 'there', user => 'reader', options => $QUIET);
wait_until(sub { $there->query("SELECT count(*) FROM leader_election.metrics") eq '1' }, 'the standby to follow');
is(metric('led, term, candidates, lost_last_hour, unannounced_seconds', $there), '1|1||0|', 'on a standby');
is(server('in_recovery, worker, locked_tables, standbys_needed', $there), '1||0|', 'the server');

# The worker is stopped until a lease is nearly over.
my $worker = stop_worker($super);
wait_until(sub { metric('lease_left_ratio < 0.25') eq 't' }, 'the lease to run down');
resume_process($worker);
wait_until(sub { metric('renewal_left_ratio < 0.25') eq 't' }, 'a late renewal');
pass('a late renewal is told');
is(metric('term, changes_last_hour'), '1|1', 'and was in time');
like($reader->query("SELECT severity, finding FROM leader_election.diagnose('e')"),
	qr/^warning\|The last renewal, [\d.]+ s ago, came late: [0-3]\.\d s of the lease were left, which now lasts 12 s\.$/m,
	'diagnose() says so');

# It is stopped, and the leader goes.
$worker = stop_worker($super);
$one->finish;
wait_until(sub { metric('led') eq '0' }, 'the end of the session');
like(metric('waiting_for, candidates, overdue_seconds > 0'), qr/^synchronous standbys\|1\|[tf]$/, 'vacant');
wait_until(sub { metric('overdue_seconds > 0.5') eq 't' }, 'that to last');
resume_process($worker);
wait_until(sub { metric('led, overdue_seconds, lost_last_hour') eq '1|0|1' }, 'the next one to lead');
pass('one leadership was lost');

# What listeners have not been told of
my $blocker = session($node, name => 'blocker', options => $QUIET);
wait_until(sub { metric('unannounced_seconds') eq '0' }, 'listeners to be told');
$blocker->query('BEGIN; LOCK TABLE leader_election.announced IN SHARE MODE');
is(server('locked_tables'), 1, 'a table is locked');
$two->query("SELECT leader_election.renew('e', metadata => '{\"at\": \"here\"}')");
wait_until(sub { metric('unannounced_seconds > 0.5') eq 't' }, 'what the leader says of itself and is not told');
$two->query("SELECT leader_election.leave('e')");
$blocker->query('ROLLBACK');
wait_until(sub { metric('led, unannounced_seconds') eq '0|0' }, 'listeners to be told');
$blocker->query('BEGIN; LOCK TABLE leader_election.announced IN SHARE MODE');
$two->query("SELECT leader_election.join('e', 'two')");
$two->query("SELECT leader_election.leave('e')");
wait_until(sub { metric('led, unannounced_seconds > 0.5') eq '0|t' }, 'a change that is not told');
$blocker->query('ROLLBACK');
wait_until(sub { metric('unannounced_seconds') eq '0' }, 'listeners to be told');
is(server('locked_tables'), 0, 'and no more');

# Nothing can be read: that is an error, and not "all is well".
foreach my $table (qw(election lease candidate history epoch pause_all drain announced election_group))
{
	$blocker->query("BEGIN; LOCK TABLE leader_election.$table");
	metric('1');
	is($reader->sqlstate . ' ' . server('locked_tables'), '55P03 1', "$table is locked");
	$blocker->query('ROLLBACK');
}

# In a copy of a database the tables have the same numbers.
$super->query('CREATE DATABASE copied');
$node->safe_psql('copied', 'CREATE EXTENSION leader_election');
$super->query('CREATE DATABASE copy TEMPLATE copied');
my ($copied, $copy) = map { session($node, name => $_, dbname => $_, options => $QUIET) } qw(copied copy);
$copied->query("SELECT leader_election.create_election('e')");
$copy->query('BEGIN; LOCK TABLE leader_election.lease');
is(server('locked_tables', $copied), 0, 'locks in a copy of the database do not count');
is($copied->query("SELECT count(*) FROM leader_election.diagnose('e') WHERE finding ~ 'holds a lock'"),
	0, 'nor does diagnose() tell of them');
$copy->query('ROLLBACK');

# Synchronous standbys
$pair->stop_line;
$super->query_async('CREATE TABLE t ()');
wait_until(sub { server('standbys_unconfirmed_bytes > 0 AND standbys_silent_seconds > 0.5') eq 't' },
	'the standby to be missed');
$pair->resume_line;
$super->result;
wait_until(sub { server('standbys_unconfirmed_bytes') eq '0' }, 'the standby to confirm');
$pair->{standby}->stop;
wait_until(sub { server('standbys_needed, standbys_connected') eq '1|0' }, 'the standby to be gone');
pass('standbys');
$_->finish foreach $reader, $two, $blocker, $super, $copied, $copy;
done_testing();
