# Memory that does not grow: a session that calls each function time and again,
# with good arguments and bad ones, and the worker while elections come and go.
# Everything is done once before it is measured, and then far more often than a
# leak of 16 bytes a call could hide.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaderElection;
use List::Util qw(min);
use PostgreSQL::Test::Utils;
use Test::More;

# Bytes that a process may grow by, for each time: less than the smallest
# allocation.
my $BYTES = 8;

my $node = new_server(
	config => q(
leader_election.lease_duration = '1h'
leader_election.worker_idle_timeout = '1h'
client_min_messages = error
log_min_error_statement = panic
log_min_messages = log
));
my $one = session($node, name => 'one');
my $two = session($node, name => 'two');

# Bytes in use, those of this very query included
sub used
{
	my ($session) = @_;

	return $session->query('SELECT sum(used_bytes) FROM pg_backend_memory_contexts');
}

# Does something as many times, after a tenth of that has warmed the caches.
sub is_flat
{
	my ($session, $times, $run, $name) = @_;
	my ($before, $growth);

	$run->(int($times / 10));
	$before = used($session);
	$run->($times);
	$growth = used($session) - $before;
	cmp_ok($growth, '<', $BYTES * $times, "flat over $times times: $name")
	  or diag($session->query(
		'SELECT name, ident, used_bytes FROM pg_backend_memory_contexts
		  ORDER BY used_bytes DESC LIMIT 10'));
	return;
}

# Statements with i for the number of the turn, each turn in a transaction of
# its own
sub is_flat_in_loop
{
	my ($times, $body, $name) = @_;

	is_flat(
		$one, $times,
		sub {
			$one->query("DO \$\$
				DECLARE
					i bigint;
				BEGIN
					FOR i IN 1..$_[0] LOOP
						$body
						COMMIT;
					END LOOP;
				END \$\$");
			is($one->sqlstate, '00000', "$_[0] times: " . ($name // $body));
		},
		$name // $body);
	return;
}

$one->query("SELECT leader_election.join('mine', 'one')");
$one->query("SELECT leader_election.acquire('detached', 'd')");
$two->query("SELECT leader_election.join('theirs', 'two')");

#
# What is cheap
#

is_flat_in_loop(30000, $_)
  foreach (
	q{PERFORM leader_election.is_leader('mine');},
	q{PERFORM leader_election.is_leader('theirs');},
	q{PERFORM leader_election.is_leader('none ' || i);},
	q{PERFORM leader_election.term('mine');},
	q{PERFORM leader_election.is_leader('detached', i);},
	q{PERFORM leader_election.leader('theirs');});
is_flat_in_loop(10000, $_)
  foreach (
	q{PERFORM leader_election.leader('none ' || i);},
	q{PERFORM leader_election._observe('theirs');},
	q{PERFORM leader_election._observe('none ' || i);},
	q{PERFORM leader_election._standing('theirs');},
	q{PERFORM FROM leader_election.status;},
	q{PERFORM leader_election._incarnation(), leader_election._monotonic_clock();},
	q{PERFORM leader_election.renew('mine');},
	q{PERFORM leader_election.renew('detached', 1);},
	q{PERFORM leader_election.renew('detached', i + 1);},
	q{PERFORM leader_election.assert_leader('mine');},
	q{PERFORM leader_election.assert_leader('detached', 1);});

#
# What changes something, with a name that is new each time
#

is_flat_in_loop(3000, $_)
  foreach (
	q{PERFORM leader_election.join('new ' || i, 'one'); COMMIT;
	PERFORM leader_election.leave('new ' || i); COMMIT;
	PERFORM leader_election.drop_election('new ' || i);},
	q{PERFORM leader_election.join('new', 'one' || i, i::int, i, '{"a": 1}'); COMMIT;
	PERFORM leader_election.leave_all(); COMMIT;
	PERFORM leader_election.join('mine', 'one');},
	q{PERFORM leader_election.create_election('made ' || i, channel => 'c'); COMMIT;
	PERFORM leader_election.alter_election('made ' || i, 'bully', '1 h', 2, '1 s', '', ''); COMMIT;
	PERFORM leader_election.drop_election('made ' || i);},
	q{PERFORM leader_election.release('taken ' || i, term)
		FROM leader_election.acquire('taken ' || i, 'd', metadata => '{"a": 1}'); COMMIT;
	PERFORM leader_election.leave('taken ' || i, 'd'); COMMIT;
	PERFORM leader_election.drop_election('taken ' || i);});

#
# What fails, caught and not
#

my @FAILURES = (
	q{SELECT leader_election.join('mine', 'other name')},
	q{SELECT leader_election.join('theirs', 'two')},
	q{SELECT leader_election.join('', 'one')},
	q{SELECT leader_election.acquire('theirs', 'two', metadata => '{"a": 1}')},
	q{SELECT leader_election.acquire('m', repeat('m', 201))},
	q{SELECT leader_election.renew('none')},
	q{SELECT leader_election.renew('theirs', 1)},
	q{SELECT leader_election.release('detached', 1, '-1 s')},
	q{SELECT leader_election.transfer('detached', 1, 'nobody')},
	q{SELECT leader_election.transfer('mine', 'nobody')},
	q{SELECT leader_election.resign('mine', '400 days')},
	q{SELECT leader_election.leave('detached', 'd')},
	q{SELECT leader_election.request_yield('mine', 'nobody')},
	q{SELECT leader_election.create_election('mine')},
	q{SELECT leader_election.create_election('x', 'no such strategy')},
	q{SELECT leader_election.alter_election('none')},
	q{SELECT leader_election.drop_election('mine')},
	q{SELECT leader_election.assert_leader('theirs')},
	q{SELECT leader_election.assert_leader('theirs', 5)},
	q{CALL leader_election.campaign('mine', 'one', '-1 s')},
	q{CALL leader_election.wait_for_change('none', 1, 'x', '0')});

# In a block with EXCEPTION all others are refused alike, as the first is.
foreach my $failure ($FAILURES[0],
	grep { /create_election|drop_election|assert_leader/ } @FAILURES)
{
	is_flat_in_loop(
		5000,
		"BEGIN
			EXECUTE \$sql\$$failure\$sql\$;
		EXCEPTION WHEN others THEN
			NULL;
		END;",
		"caught: $failure");
}

# The same at top level, with procedures that wait for nothing, by a session of
# its own: psql alone runs so many statements.
sub repeat_all
{
	my ($times) = @_;
	my $sql = join ', ', map { "(\$sql\$$_\$sql\$)" } @FAILURES,
	  q{CALL leader_election.campaign('theirs', 'one', '0')},
	  q{CALL leader_election.campaign('theirs', 'two', '0')},
	  q{CALL leader_election.wait_for_change('theirs', 0, NULL, '0')};

	return "SELECT sql FROM generate_series(1, $times), (VALUES $sql) v (sql) \\gexec\n"
	  . "SELECT sum(used_bytes) AS used FROM pg_backend_memory_contexts \\gset\n";
}

# Caches grow by steps, now and then; what is lost is lost each time.
my ($growth, $errors);
$one->query('SELECT leader_election.leave_all()');
$node->psql(
	'postgres',
	"\\set VERBOSITY sqlstate\n\\o /dev/null\n"
	  . "CALL leader_election.campaign('mine', 'one');\n"
	  . repeat_all(100)
	  . ("\\set before :used\n" . repeat_all(500) . "\\o\nSELECT :used - :before;\n\\o /dev/null\n") x 3,
	on_error_stop => 0,
	stdout => \$growth,
	stderr => \$errors);
is(scalar(() = $errors =~ /ERROR/g), 1600 * @FAILURES, 'they all fail');
my @growths = $growth =~ /^(-?\d+)$/mg;
is(scalar @growths, 3, 'three times');
cmp_ok(min(@growths), '<', $BYTES * 500, "flat over 500 times all of them, of @growths");

#
# The worker, while elections come and go and leaders change
#

# What it says itself, in the log
sub used_by_worker
{
	my $offset = -s $node->logfile;
	my ($used) = (undef);

	$two->query(
		q{SELECT pg_log_backend_memory_contexts(pid) FROM pg_stat_activity
		   WHERE backend_type = 'leader_election worker'});
	wait_until(
		sub {
			return ($used) =
			  slurp_file($node->logfile, $offset) =~ /Grand total: .*; (\d+) used/;
		},
		'the memory of the worker');
	return $used;
}

sub come_and_go
{
	my ($times) = @_;

	$one->query("DO \$\$
		DECLARE
			t bigint;
		BEGIN
			FOR i IN 1..$times LOOP
				SELECT term INTO t FROM leader_election.acquire('gone ' || i, 'd');
				COMMIT;
				PERFORM leader_election.join('gone ' || i, 'one');
				COMMIT;
				PERFORM leader_election.request_yield('gone ' || i, 'one');
				COMMIT;
				PERFORM leader_election.release('gone ' || i, t);
				COMMIT;
				PERFORM leader_election.leave('gone ' || i);
				COMMIT;
				PERFORM leader_election.drop_election('gone ' || i);
				COMMIT;
			END LOOP;
		END \$\$");
	is($one->sqlstate, '00000', "elections that come and go, $times of them");
	return;
}

# Elections that could not be settled, until they were dropped, leave nothing
# behind: what is remembered of some is forgotten before there are many.
sub fail_and_go
{
	my ($turn) = @_;
	my $offset = -s $node->logfile;

	$one->query("SELECT leader_election.create_election('fails $turn ' || n, 'lowest', '100 ms')
		FROM generate_series(1, 200) n");
	$two->query("SELECT leader_election.join('fails $turn ' || n, 'two')
		FROM generate_series(1, 200) n");
	$two->query(q{CREATE FUNCTION refuse(election text) RETURNS boolean LANGUAGE plpgsql AS
			$$BEGIN
				RAISE LOG 'refused %', election;
				RAISE 'refused';
			END$$;
		ALTER TABLE leader_election.lease ADD CONSTRAINT refuse
			CHECK (election NOT LIKE 'fails%' OR public.refuse(election)) NOT VALID});
	wait_until(
		sub {
			my %seen = map { $_ => 1 }
			  slurp_file($node->logfile, $offset) =~ /LOG:.*refused fails $turn (\d+)/g;
			return keys %seen == 200;
		},
		"failures in all elections of turn $turn");
	$two->query('DROP FUNCTION refuse(text) CASCADE');
	$two->query('SELECT leader_election.leave_all()');
	wait_until(
		sub {
			$one->query("SELECT leader_election.drop_election(election)
				FROM leader_election.election WHERE election LIKE 'fails%'");
			return $one->sqlstate eq '00000';
		},
		'all of them dropped');
	return;
}

fail_and_go(1);
fail_and_go(2);
my $known = used_by_worker();
foreach my $turn (3 .. 5)
{
	my $then = $one->query('SELECT leader_election._monotonic_clock()');

	# So long it is remembered that something has failed.
	wait_for($node,
		"SELECT leader_election._monotonic_clock() - $then > 11000000");
	fail_and_go($turn);
}

# What two looks have found is remembered until two more have been made.
wait_until(sub { used_by_worker() - $known < 50000 },
	'what was used for elections that are gone to be free');
pass('the worker: flat over elections that failed and were dropped');

come_and_go(200);
my $before = used_by_worker();
come_and_go(2000);
wait_until(sub { used_by_worker() - $before < $BYTES * 2000 },
	'what was used for elections that came and went to be free');
pass('the worker: flat over 2000 elections');

done_testing();
