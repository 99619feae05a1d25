# Tables as large, and as badly arranged, as they can be: a leader of something
# else must keep its lease while the worker looks at them and tidies up.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

my $node = new_server(
	config => qq(
leader_election.history_retention = '30d'
leader_election.auto_create = off
autovacuum = off
synchronous_commit = off
max_wal_size = 4GB
));
my $control = session($node, name => 'control');
my $leader = session($node, name => 'leader');
my $CLOCK = 'leader_election._monotonic_clock()';

sub create
{
	my ($election, $strategy, $lease, %opts) = @_;

	$control->query(
		"SELECT leader_election.create_election('$election', '$strategy', '$lease',
			quorum => " . ($opts{quorum} // 1) . ")");
	return;
}

# The server's worker is terminated, and another one is there.
sub new_worker
{
	my $pid;

	# Of two that were started at the same time, one ends by itself.
	wait_for($node, $ONE_WORKER);
	$pid = $control->query(
		"SELECT pg_terminate_backend(pid)::text || ' ' || pid FROM $WORKERS");

	$pid =~ s/.* //;
	wait_for($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
	$leader->query("SELECT leader_election.join('innocent', 'leader')");
	wait_for($node, "SELECT count(*) = 1 FROM $WORKERS AND pid <> $pid");
	return;
}

# Terms that ended that long ago, all at the same moment
sub add_history
{
	my ($election, $terms, $ago) = @_;

	$control->query(
		"INSERT INTO leader_election.history
			(election, term, leader, kind, role, acquired_at, ended_at, reason)
		SELECT '$election', n, 'x', 'session', 'x', m, m, 'expired'
			FROM generate_series(1, $terms) n, (SELECT now() - interval '$ago' AS m) t");
	return;
}

# Detached candidates, which were seen just now and live for so long
sub add_candidates
{
	my ($election, $n, $alive_us) = @_;

	$control->query(
		"INSERT INTO leader_election.candidate
			(election, candidate, kind, role, rank, progress, auto_renew, joined_at,
			 place_mono, defers, seen_mono, seen_for)
		SELECT '$election', 'd' || n, 'detached', 'postgres', 10, 0, false, now(),
			$CLOCK, false, $CLOCK - 1, $alive_us
			FROM generate_series(1, $n) n");
	return;
}

sub count_of
{
	my ($what) = @_;

	return scalar $control->query("SELECT count(*) FROM leader_election.$what");
}

# How often the leader that has nothing to do with it lost its lease
sub lapses
{
	return $control->query(
		"SELECT term - 1 FROM leader_election.lease WHERE election = 'innocent'");
}

#
# Old history behind history that is kept, all of one moment: a step must not
# begin at the beginning, nor pass over what is kept. This session reads few
# rows, so that only the worker reads many.
#
my $KEPT = 300_000;
my $OLD = 60_000;
my $OLDEST = "SELECT min(term) FROM leader_election.history WHERE election = 'old'";
my $READS = "SELECT idx_tup_fetch FROM pg_stat_user_tables
	WHERE relid = 'leader_election.history'::regclass";

$control->query('SET enable_seqscan = off');
create('innocent', 'race', '3 s');
add_history('kept', $KEPT, '1 day');
add_history('old', $OLD, '1 year');
add_history('marked', 5, '1 year');
add_history('unmarked', 5, '1 year');
$control->query(
	"INSERT INTO leader_election.history (election, term, leader, kind, role, acquired_at)
		VALUES ('old', 1000000, 'x', 'session', 'x', now() - interval '1 year')");

# Of one, listeners have been told the terms up to 3, but not its end. Of the
# other it is not known. They cannot be told now.
create($_, 'race', '1 min') foreach 'marked', 'unmarked';
$control->query("UPDATE leader_election.lease SET term = 5 WHERE election IN ('marked', 'unmarked')");
$control->query("UPDATE leader_election.announced SET term = 3, vacated = false WHERE election = 'marked'");
$control->query("DELETE FROM leader_election.announced WHERE election = 'unmarked'");
my $blocker = session($node, name => 'blocker');
$blocker->query('BEGIN');
$blocker->query('LOCK TABLE leader_election.announced IN SHARE MODE');

# What this session itself has read until now is told first, and not later.
$control->query('SELECT pg_stat_force_next_flush()');
my $reads = $control->query($READS);
is($leader->query("SELECT leader_election.join('innocent', 'leader')"),
	1, 'history: a leader of something else');
foreach my $turn (1 .. 3)
{
	my $before = $control->query($OLDEST);

	# On a slow machine workers may be done before this looks.
	wait_until(sub { $control->query($OLDEST) > ($before < $OLD ? $before : $OLD) },
		"turn $turn: old history is removed");
	new_worker();
}
is($leader->query("SELECT leader_election.is_leader('innocent')"),
	't', 'history: it leads on while new workers go on with that');
wait_until(sub { $control->query($OLDEST) > $OLD },
	'the end of old history');
$reads = $control->query($READS) - $reads;
is(count_of("history WHERE election = 'old'"), 1,
	'history: what has ended long ago is removed, what goes on is not');
is(count_of("history WHERE election = 'kept'"), $KEPT,
	'history: what has ended within the retention is kept');
is( $control->query(
		"SELECT string_agg(term::text, ' ' ORDER BY term) FROM leader_election.history WHERE election = 'marked'"),
	'3 4 5',
	'history: what listeners have not been told is kept');
is(count_of("history WHERE election = 'unmarked'"), 5,
	'history: and all of it, where it is not known what they have been told');
is(lapses(), 0, 'history: the lease of another election never lapsed');
# A slow machine removes few of the rows that a step has found, and the next step finds
# the others again.
cmp_ok($reads, '<', $KEPT * slowness(), "history: the table was never read as a whole ($reads rows)");
$blocker->query('ROLLBACK');
$blocker->finish;

#
# Dead candidates
#
my $DEAD = 300_000;

my $NOBODY = "SELECT 1 WHERE NOT EXISTS (SELECT FROM leader_election.candidate
	WHERE election = 'crowded')";
create('crowded', 'race', '1 min');
add_candidates('crowded', $DEAD, 1);
wait_until(sub { $control->query($NOBODY) },
	'the end of dead candidates');
is(lapses(), 0, 'dead candidates: the lease of another election never lapsed');

#
# Candidates without end, none of whom comes when the seat is kept for it, in an
# election with a history: a choice among them, once in each lease
#
my $CANDIDATES = 20_000;
my $SUCCESSOR = "successor FROM leader_election.lease WHERE election = 'popular'";

create($_, 'spread', '1 s') foreach 'popular', map { "other $_" } 1 .. 50;
add_history('popular', 6000, '1 day');
$control->query("UPDATE leader_election.lease SET term = 6000 WHERE election = 'popular'");
add_candidates('popular', $CANDIDATES, 3_600_000_000);
my $mortal = session($node, name => 'mortal');
$mortal->query("SELECT leader_election.join('popular', 'mortal')");
$mortal->query("SELECT count(leader_election.join('other ' || n, 'mortal')) FROM generate_series(1, 50) n");
$mortal->kill;
my %kept_for;
wait_until(
	sub {
		$kept_for{ $control->query("SELECT $SUCCESSOR") || '' } = 1;
		return keys %kept_for >= 4;
	},
	'the seat to be kept for one candidate after the other');
is(lapses(), 0, 'choices: the lease of another election never lapsed');
is($leader->query("SELECT leader_election.is_leader('innocent')"),
	't', 'choices: its leader leads on');

#
# A lease counts from after the choice, however long that took.
#
$control->query("DELETE FROM leader_election.candidate WHERE election = 'popular'");
create('slow', 'lowest', '10 s');
add_candidates('slow', 200_000, 3_600_000_000);
my $at = $control->query("SELECT $CLOCK");
my $remaining = $control->query(
	"SELECT remaining_ms FROM leader_election.acquire('slow', 'first', rank => 1)");
my $took = $control->query("SELECT acquired_mono - $at FROM leader_election.lease WHERE election = 'slow'");
cmp_ok($remaining, '>', 0, 'slow choice: a lease is granted');
cmp_ok($took, '>', 60_000, "slow choice: it counts from after the choice ($took us)");
is(lapses(), 0, 'slow choice: the lease of another election never lapsed');

done_testing();
