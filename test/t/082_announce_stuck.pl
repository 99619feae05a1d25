# A commit of another database that notifies and waits for a standby holds the
# lock that all commits with NOTIFY take, for as long as that standby does not
# apply it. Elections go on meanwhile, the standby confirms what they wrote, and
# afterwards listeners are told of every change.
#
# The worker, which tells them, waits for no standby and for no flush, even if its
# reading has written WAL: hint bits, on a server with checksums, right after
# a checkpoint.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use LeaderElection;
use PostgreSQL::Test::Utils;
use SyncStandby;
use Test::More;
use Time::HiRes qw(time);
use Worker;

# Seconds: far more than a change takes, and far less than for ever
my $PROMPT = 5;

sub is_stuck
{
	my ($observer, $session) = @_;

	return $observer->query(
		"SELECT wait_event = 'SyncRep' FROM pg_stat_activity
		WHERE pid = @{[ $session->backend_pid ]}") eq 't';
}

#
# Stuck behind a standby that does not apply
#

{
	my $pair = SyncStandby->new(config => q(
leader_election.lease_duration = '10min'
client_min_messages = warning
));
	my ($primary, $standby, $observer) = @{$pair}{qw(primary standby observer)};

	$primary->safe_psql('postgres', 'CREATE DATABASE other');
	$primary->safe_psql('other', 'CREATE TABLE stuck ()');
	my $listener = Announced->new($primary);
	my ($one, $two, $heir) =
	  map { session($primary, name => $_) } qw(one two heir);

	$observer->query("SELECT leader_election.create_election('renewed', lease_duration => '5 s')");
	is($heir->query("CALL leader_election.campaign('renewed', 'heir')"),
		1, 'stuck: leads');
	is($one->query("CALL leader_election.campaign('chain', 'one')"), 1, 'stuck: leads');
	$two->query("SELECT leader_election.join('chain', 'two')");
	$heir->query("SELECT leader_election.join('chain', 'heir')");
	$listener->fence;

	my $stuck = session($primary, name => 'stuck', dbname => 'other');
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
	wait_for($standby, 'SELECT pg_get_wal_replay_pause_state()', 'paused');
	$stuck->query('SET synchronous_commit = remote_apply');
	$stuck->query_async('BEGIN; INSERT INTO stuck DEFAULT VALUES; NOTIFY stuck; COMMIT');
	wait_until(sub { is_stuck($observer, $stuck) }, 'a stuck commit');
	is( $observer->query(
			"SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND granted
				AND classid = 'pg_database'::regclass AND objid = 0
				AND pid = @{[ $stuck->backend_pid ]}"),
		1,
		'stuck: that holds the lock of those who notify');

	my $start = time;
	is($one->query("SELECT leader_election.transfer('chain', 'two')"),
		't', 'stuck: transfer()');
	is($two->query("SELECT leader_election.term('chain')"), 2, 'stuck: leads at once');
	is($two->query("SELECT leader_election.resign('chain')"), 't', 'stuck: resign()');
	wait_for($primary, "SELECT leader_election.leader('chain')", 'one', $PROMPT);
	$one->kill;
	wait_for($primary, "SELECT leader_election.leader('chain')", 'heir', $PROMPT);
	$heir->query("SELECT leader_election.resign('chain')");
	wait_for($primary, "SELECT leader_election.leader('chain')", 'two', $PROMPT);
	my $campaign = session($primary, name => 'campaign');
	$campaign->query_async("CALL leader_election.campaign('chain', 'campaign')");
	wait_for($primary, "SELECT count(*) FROM leader_election.candidates
		WHERE election = 'chain' AND alive", 3);
	is($two->query("SELECT leader_election.leave('chain')"), 't', 'stuck: leave()');
	wait_for($primary, "SELECT leader_election.leader('chain')", 'heir', $PROMPT);
	$heir->query("SELECT leader_election.leave('chain')");
	is($campaign->result, 7, 'stuck: campaign()');

	# For as long as it takes
	$observer->query("SELECT leader_election.create_election('detached')");
	foreach my $term (1 .. 20)
	{
		is( $observer->query("SELECT term
				FROM leader_election.acquire('detached', 'x')"),
			$term, "stuck: acquire(): term $term");
		is($observer->query("SELECT leader_election.release('detached', $term)"),
			't', "stuck: release()");
	}
	my ($deadline) = $observer->query(
		"SELECT deadline_mono FROM leader_election.lease WHERE election = 'renewed'");
	wait_for($primary, "SELECT deadline_mono - $deadline > 6000000
		FROM leader_election.lease WHERE election = 'renewed'");
	is($heir->query("SELECT leader_election.term('renewed')"),
		1, 'stuck: renewed, for more than a lease');
	note(sprintf 'all of it took %.1f s', time - $start);
	ok(is_stuck($observer, $stuck), 'stuck: all the time');
	is(scalar $listener->told('^(chain|detached)$'), 1, 'stuck: nothing was told yet');

	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
	$stuck->result;
	is($stuck->errors, '', 'stuck: no longer');
	$listener->all_told_ok('^(chain|detached|renewed)$', 'stuck: afterwards');

	$_->finish foreach $two, $heir, $campaign, $stuck;
	$observer->finish;
	$standby->stop;
	$primary->stop;
}

#
# Nobody is there whom commits could wait for, and to read is to write WAL.
#

my $node = new_server(
	name => 'alone',
	streaming => 1,
	initdb => [ '--data-checksums' ],
	config => NotifyLock::config() . q(
leader_election.lease_duration = '10min'
client_min_messages = warning
autovacuum = off
checkpoint_timeout = 1h
wal_writer_delay = 10s
));
my $observer = session($node, name => 'observer');
my $notify = NotifyLock->new($node);
my $listener = Announced->new($node);
my $ELECTIONS = 20;

$observer->query('CREATE TABLE nobody ()');
foreach my $round (1 .. 3)
{
	$notify->hold;
	is( $observer->query(
			"SELECT count(leader_election.release('e ' || i, term))
			FROM generate_series(1, $ELECTIONS) i,
				leader_election.acquire('e ' || i, 'x')"),
		$ELECTIONS,
		"nobody there, $round: changes");
	$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
	$node->reload;
	wait_for($node, 'SHOW synchronous_standby_names', 'nobody');

	# Commits wait from now on, by what all processes share.
	my $waits = session($node, name => 'waits');
	wait_until(
		sub {
			$waits->query_async('INSERT INTO nobody DEFAULT VALUES');
			wait_until(sub { $waits->finished || is_stuck($observer, $waits) },
				'the end of a commit, or a wait');
			$observer->query("SELECT pg_cancel_backend(@{[ $waits->backend_pid ]})")
			  unless $waits->finished;
			$waits->result;
			return $waits->errors =~ /canceling wait for synchronous replication/;
		},
		'commits to wait for a standby');
	$observer->query('CHECKPOINT');
	my $before = $observer->query('SELECT pg_current_wal_insert_lsn()');

	$notify->free;
	my $elapsed = wait_until(
		sub { $listener->told('^e \d+$') == 2 * $round * $ELECTIONS },
		sub { 'all to be told; there are ' . $listener->told('^e \d+$') });
	cmp_ok($elapsed, '<', $PROMPT, "nobody there, $round: told at once");
	is( $observer->query(
			"SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"),
		0,
		"nobody there, $round: and nobody waits");
	my $after = $observer->query('SELECT pg_current_wal_insert_lsn()');
	note("WAL from $before to $after");

	$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
	$node->reload;
	wait_for($node, "SELECT leader_election.release('f', term)
		FROM leader_election.acquire('f', 'x')");
	$listener->fence;
	$waits->finish;
}
$listener->all_told_ok('^e \d+$', 'nobody there');

$observer->finish;
$node->stop;

#
# The worker does not end before it has told what the last candidate has done.
#

$node = new_server(name => 'last', config => NotifyLock::config() . "leader_election.worker_idle_timeout = '0'\n");
$notify = NotifyLock->new($node);
$listener = Announced->new($node);
my $last = session($node, name => 'last');
$last->query("SELECT leader_election.join('last', 'last')");
wait_until(sub { $listener->told('^last$') == 1 }, 'its term to be told');
$notify->hold;
$last->query("SELECT leader_election.leave('last')");
my $start = time;
wait_until(sub { time > $start + 2 || $last->query($NO_WORKER) eq 't' }, 'a worker that has nothing else to do');
$notify->free;
wait_until(sub { $listener->told('^last$') == 2 }, 'the last change to be told');
$listener->all_told_ok('^last$', 'the last candidate');
wait_for($node, $NO_WORKER);

# Nor if it is the table of what they know that is locked.
is($last->query("SELECT leader_election.join('last', 'last')"), 2, 'it leads again');
wait_until(sub { $listener->told('^last$') == 3 }, 'its term to be told');
$observer = session($node, name => 'locks the table');
$observer->query('BEGIN; LOCK TABLE leader_election.announced');
$last->query("SELECT leader_election.leave('last')");
# By the clock: after a minute the worker ends all the same.
$start = time;
wait_until(sub { time > $start + 2 || $last->query($NO_WORKER) eq 't' }, 'a worker that may read no marks');
$observer->query('COMMIT');
wait_until(sub { $listener->told('^last$') == 4 }, 'what came last to be told');
$listener->all_told_ok('^last$', 'a table was locked');
wait_for($node, $NO_WORKER);
$observer->finish;
$last->finish;
$node->stop;
done_testing();
