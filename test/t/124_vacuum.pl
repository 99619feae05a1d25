# Vacuum, and tables that have grown. No vacuum makes is_leader() answer false, as
# one did that gave the empty end of a table back. And a table that has grown
# while a transaction kept a snapshot, in which a row is the last of hundreds of
# pages, is not read page by page: neither by the worker nor by a call, neither
# while there is that snapshot nor later. The pages that are read are counted by
# the server.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaderElection;
use Test::More;
use Worker;

my $DROPPED = 1500;
my $VERSIONS = 8000;
my $MANY = 150;		# pages that the table has at least then
my $FEW = 60;		# pages that a look at it may need

my $node = new_server(
	config => qq(
max_locks_per_transaction = 256
leader_election.lease_duration = '10 min'
leader_election.worker_idle_timeout = '1 min'
autovacuum = off
));
my $control = session($node, name => 'control');
my $leader = session($node, name => 'leader');

#
# Vacuum beside those who ask
#

my $SIZES = q(SELECT string_agg(relname || ' ' || size, ', ' ORDER BY relname)
	FROM (SELECT c.relname, pg_relation_size(c.oid) size FROM pg_class c
		WHERE c.relnamespace = 'leader_election'::regnamespace AND c.relkind = 'r') t);
my $term = $leader->query("SELECT leader_election.join('kept', 'leader')");
my $poller = session($node, name => 'poller');
my $metadata = q(('{"a": "' || (SELECT string_agg(md5(n::text || i), '')
	FROM generate_series(1, 200) i) || '"}')::jsonb);

$control->query(
	"SELECT count(leader_election.create_election('dropped ' || n)) FROM generate_series(1, $DROPPED) n");
$control->query(
	"SELECT count(a.term) FROM generate_series(1, 100) n, leader_election.acquire('dropped ' || n, 'c', metadata => $metadata) a");
$control->query(
	"SELECT count(leader_election.release('dropped ' || n, 1)) FROM generate_series(1, 100) n");
$control->query(
	"SELECT count(leader_election.drop_election('dropped ' || n)) FROM generate_series(1, $DROPPED) n");
is($control->sqlstate, '00000', 'elections came and went');

my $sizes = $control->query($SIZES);
my $toast = $control->query(
	"SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = 'leader_election.lease'::regclass");
cmp_ok($toast, '>', 50 * 8192, 'and their metadata was kept elsewhere');
foreach my $turn ('while one asks', 'again')
{
	$poller->query_async(
		"SELECT count(*) FROM generate_series(1, 100000) WHERE NOT leader_election.is_leader('kept', $term)");
	do
	{
		$control->query("VACUUM leader_election.$_")
		  foreach qw(lease candidate announced election history epoch);
	} while (!$poller->finished);
	is($poller->result, '0', "is_leader() is never false during vacuums, $turn");
}
is($control->query($SIZES), $sizes, 'no table gives its end back');
is( $control->query(
		"SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = 'leader_election.lease'::regclass"
	),
	$toast,
	'nor does what keeps its long values');
$poller->finish;

#
# A row is the last of many pages
#

# Pages of a table that a session itself reads for an expression: what others
# have read, the worker say, they tell the server much later.
sub pages
{
	my ($who, $table, $expression) = @_;
	my $read = "pg_stat_get_xact_blocks_fetched('leader_election.$table'::regclass)";
	my ($before, undef, $after) = split /\|/, $who->query("SELECT $read, ($expression), $read");

	is($who->sqlstate, '00000', $expression);
	note($after - $before . ' pages');
	return $after - $before;
}

# The session tells the server now what it has read.
sub tell_reads
{
	my ($who) = @_;

	$who->query('SELECT pg_stat_force_next_flush()');
	$who->query('SELECT 1');
	return;
}

sub read_so_far
{
	my ($table) = @_;

	return $control->query(
		"SELECT heap_blks_read + heap_blks_hit FROM pg_statio_all_tables WHERE relid = 'leader_election.$table'::regclass"
	);
}

# Pages of a table that a worker reads from its start, at a call, to its end
sub pages_of_worker
{
	my ($table) = @_;
	my $before;
	my $pid;

	end_worker();
	tell_reads($_) foreach $leader, $control;
	$before = read_so_far($table);
	$leader->query("SELECT leader_election.join('grown', 'leader')");
	wait_for($node, $ONE_WORKER);
	$pid = stop_worker($control);
	resume_process($pid);
	end_worker();
	return read_so_far($table) - $before;
}

sub end_worker
{
	wait_until(
		sub {
			$control->query("SELECT pg_terminate_backend(pid) FROM $WORKERS");
			return $control->query($NO_WORKER) eq 't';
		},
		'the worker to end');
	return;
}

# As if a row of the table was written so often under a snapshot
sub grow
{
	my ($table, $column) = @_;

	$control->query(
		"DO \$\$ BEGIN FOR i IN 1 .. $VERSIONS LOOP
			UPDATE leader_election.$table SET $column = $column WHERE election = 'grown';
			END LOOP; END \$\$");
	tell_reads($control);
	cmp_ok(
		$control->query("SELECT pg_relation_size('leader_election.$table') / 8192"),
		'>', $MANY, "$table has grown");
	return;
}

sub few_pages
{
	my ($when) = @_;

	foreach my $table (qw(lease candidate))
	{
		cmp_ok(
			pages($leader, $table,
				"SELECT count(*) FROM leader_election.candidates WHERE election = 'grown'"),
			'<', $FEW, "an observer reads few pages of $table, $when");
		cmp_ok(
			pages($leader, $table, "leader_election.join('grown', 'leader')"),
			'<', $FEW, "and so does a call, $when");
		cmp_ok(pages_of_worker($table), '<', $FEW, "and so does the worker, $when");
	}
	return;
}

my $second = session($node, name => 'second');
my $snapshot = session($node, name => 'snapshot');

$control->query("SELECT leader_election.create_election('grown', 'spread')");
$leader->query("SELECT leader_election.join('grown', 'leader')");
$second->query("SELECT leader_election.join('grown', 'second')");
wait_for($node, "SELECT count(*) = 2 FROM leader_election.candidates WHERE election = 'grown'");
$snapshot->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
$snapshot->query('SELECT count(*) FROM leader_election.lease');
grow('lease', 'term');
grow('candidate', 'place_mono');
few_pages('while there is the snapshot');
$snapshot->query('COMMIT');
few_pages('later');
$control->query('VACUUM leader_election.lease, leader_election.candidate');
few_pages('after a vacuum');
is($leader->query("SELECT leader_election.is_leader('grown')"), 't', 'and the leader leads on');

done_testing();
