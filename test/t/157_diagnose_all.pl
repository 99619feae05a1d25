# pg_leader diagnose of all elections: one that is dropped while it asks, and a
# standby, which does not know who stands.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PgLeader;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server(streaming => 1, config => "client_min_messages = warning\n");
my $super = session($node, name => 'super');

$super->query("SELECT leader_election.create_election('$_', lease_duration => '1 h')") foreach qw(led unused);
$super->query("SELECT leader_election.acquire('led', 'one')");

# --- an election that is dropped after its name was read

# With these rows, the view waits for a lock after it has looked at an election
# whose name begins with "doomed".
my $LOCK = 1;
my $view = $super->query("SELECT pg_catalog.pg_get_viewdef('leader_election.status'::regclass)");

$view =~ s/;\s*\z//;
$super->query("CREATE OR REPLACE VIEW leader_election.status AS $view
	WHERE e.election !~ '^doomed' OR o.state IS NULL
		OR pg_catalog.pg_advisory_xact_lock_shared($LOCK) IS NOT NULL");
is($super->sqlstate, '00000', 'a view that waits');

# Two sessions hold the lock in turn: the next one queues behind pg_leader.
my @holders = map { session($node, name => "holder $_") } 1, 2;

# Starts diagnose, and drops the first election while it asks for so many times:
# exit code, output and errors.
sub diagnose_while_dropped
{
	my ($drops) = @_;
	my ($holder, $next) = @holders;

	$super->query("SELECT leader_election.create_election('doomed 1')");
	$holder->query("SELECT pg_catalog.pg_advisory_lock($LOCK)");
	my $client = start_client($node, 'diagnose', '--all');
	foreach my $n (1 .. $drops)
	{
		wait_for($node, "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE NOT granted AND locktype = 'advisory' AND application_name = 'pg_leader'", 1);
		$super->query("SELECT leader_election.drop_election('doomed $n')");
		if ($n < $drops)
		{
			$super->query("SELECT leader_election.create_election('doomed @{[ $n + 1 ]}')");
			$next->query_async("SELECT pg_catalog.pg_advisory_lock($LOCK)");
			wait_for($node, "SELECT count(*) FROM pg_locks
				WHERE NOT granted AND locktype = 'advisory' AND pid = @{[ $next->backend_pid ]}", 1);
		}
		$holder->query("SELECT pg_catalog.pg_advisory_unlock($LOCK)");
		next if $n == $drops;
		$next->result;
		($holder, $next) = ($next, $holder);
	}
	my ($run, $out, $err) = @$client;
	$run->finish;
	return ($run->full_result >> 8, $$out, $$err);
}

my ($code, $out, $err) = diagnose_while_dropped(2);
is($code, 2, 'two are dropped, each after its name was read: it asks again');
like($out, qr/^unused\n  error .*^led\n  ok /ms, 'and answers for all others');
unlike($out, qr/doomed/, 'and only for those');
is($err, '', 'and no error');

($code, $out, $err) = diagnose_while_dropped(3);
is($code, 125, 'one is dropped each time: it gives up');
like($err, qr/error: election "doomed 3" does not exist/, 'and says why');
is($out, '', 'without half an answer');

# --- a name that ends in a blank, as its heading

$super->query("SELECT leader_election.create_election('$_')") foreach 'blank', 'blank ';
like(scalar ask($node, 'diagnose', '--all'), qr/^blank\n.*^"blank "\n/ms, 'a blank at the end can be seen');
like(scalar ask($node, 'status', '--all'), qr/^"blank "  vacant/m, 'status: the same');
like(scalar ask($node, 'status', '--all'), qr/^blank     vacant/m, 'without one there are no quotes');
$super->query("SELECT leader_election.drop_election('$_')") foreach 'blank', 'blank ';

# --- a standby

$super->query("CREATE OR REPLACE VIEW leader_election.status AS $view");
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);

($code, $out) = ask($node, 'diagnose');
is($code, 0, 'the primary');
unlike($out, qr/^unused$/m, 'leaves out what nobody has led or stands for');
($code, $out) = ask($standby, 'diagnose');
is($code, 0, 'a standby');
like($out, qr/^led\n/m, 'shows what is led');
like($out, qr/^unused\n.*This server is a standby: it does not know who stands/ms,
	'and what nobody has led: somebody may stand for it');
my $json = ask($standby, 'diagnose', '--json');
like($json, qr/"election" : "unused"/, 'as JSON, too');

done_testing();
