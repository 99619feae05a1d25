# Eight clients that commit fenced all the time, so that the election lock is
# hardly ever free, keep nobody from leading next: calls that end a term, or ask
# for its end, still get the lock. So it is where each commit waits for a standby,
# and holds the lock for as long.
#
# No lease runs out here that could end a term instead.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $CLIENTS = 8;
my $ROUNDS = 3;

# Seconds: far more than it takes, and far less than for ever
my $PROMPT = 5;

my $ATTEMPTS = 3;

# What a slow commit waits for
my $DELAY = '120ms';

my $node = new_server(
	streaming => 1,
	config => q(
leader_election.lease_duration = '1h'
client_min_messages = warning
));
my $control = session($node, name => 'control');
my $standby = PostgreSQL::Test::Cluster->new('standby');

$control->query(
	q{CREATE TABLE stop ();
	CREATE TABLE work (election text, client int, term bigint);
	CREATE PROCEDURE work(e text, who int, pause float8) LANGUAGE plpgsql AS $$
	DECLARE
		t bigint;
	BEGIN
		WHILE NOT EXISTS (SELECT FROM stop) LOOP
			PERFORM pg_sleep(random() * pause) WHERE pause > 0;
			COMMIT;
			t := (SELECT term FROM leader_election.lease WHERE election = e);
			IF leader_election.is_leader(e, t) THEN
				PERFORM leader_election.assert_leader(e, t);
				UPDATE work SET term = t WHERE election = e AND client = who;
			ELSE
				PERFORM pg_sleep(0.001);
			END IF;
			COMMIT;
		END LOOP;
	END $$});

# Until all clients have committed in the present term.
sub wait_for_work
{
	my ($election) = @_;

	wait_for($node, "SELECT count(*) FROM work w JOIN leader_election.lease l
		USING (election, term) WHERE election = '$election'
			AND l.leader IS NOT NULL", $CLIENTS);
	return;
}

# Whether something happens in time; if not, the test goes on.
sub happens
{
	my ($sql, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(defined eval { wait_for($node, $sql, 't', $PROMPT) }, $name)
	  || diag($@);
}

# A call that does what it is to do at the first attempt; or at a later one, if the machine
# stood still while it waited. A call that others keep from the lock fails in most attempts.
sub succeeds
{
	my ($session, $call, $name) = @_;
	my $result;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $attempt (1 .. $ATTEMPTS)
	{
		my $mark = held_up();

		$result = $session->query("SELECT leader_election.$call");
		last if $session->sqlstate ne '55P03' || held_up($mark) < 300_000;
	}
	is($result, 't', $name);
	is($session->sqlstate, '00000', "$name: at once (G9)");
	return;
}

sub acquire
{
	my ($election, $candidate) = @_;
	my $term;

	wait_until(
		sub {
			$term = $control->query("SELECT term
				FROM leader_election.acquire('$election', '$candidate')");
			return $term ne '';
		},
		"$election to be granted to $candidate");
	return $term;
}

sub start_clients
{
	my ($election, $options, $pause) = @_;

	return map {
		my $client = session($node, name => "works for $election",
			options => $options);

		$control->query("INSERT INTO work VALUES ('$election', $_)");
		$client->query('\set VERBOSITY sqlstate');
		# A call ends with the term in which it wanted to commit.
		$client->query_async("CALL work('$election', $_, $pause);\n" x 500);
		$client;
	} 1 .. $CLIENTS;
}

# The clients end; they have seen no other error than that a term was over.
sub end_clients
{
	my ($what, @clients) = @_;

	$control->query('INSERT INTO stop DEFAULT VALUES');
	$_->result foreach @clients;
	is_deeply(
		[ grep { !/^LE00[12]$/ } map { split ' ', $_->errors_but_busy } @clients ],
		[], "$what: no other error than a term that was over");
	$_->finish foreach @clients;
	$control->query('TRUNCATE stop');
	return;
}

sub press
{
	my ($what, $options, $pause) = @_;
	my $e = "$what race";
	my $b = "$what bully";
	my (@clients, $term, %session, $rank);

	# Given back, and handed on
	@clients = start_clients($e, $options, $pause);
	$term = acquire($e, 'detached');
	wait_for_work($e);
	succeeds($control, "release('$e', $term)", "$what: release()");
	$term = acquire($e, 'detached');
	$session{$_} = session($node, name => $_) foreach qw(one two);
	$session{one}->query("SELECT leader_election.join('$e', 'one')");
	wait_for_work($e);
	succeeds($control, "transfer('$e', $term, 'one')",
		"$what: transfer(), detached");
	wait_for_work($e);
	is($session{one}->query("SELECT leader_election.is_leader('$e')"),
		't', "$what: has led on");
	$session{two}->query("SELECT leader_election.join('$e', 'two')");
	succeeds($session{one}, "transfer('$e', 'two')", "$what: transfer()");
	wait_for_work($e);
	succeeds($control, "request_yield('$e') > '0'", "$what: request_yield()");
	wait_for_work($e);
	succeeds($session{two}, "resign('$e')", "$what: resign()");
	wait_for_work($e);
	succeeds($session{one}, "leave('$e')", "$what: leave()");

	# A leader's session that is killed. A worker that has to wait must not be
	# left behind for ever by those that come and go.
	$session{one}->query("SELECT leader_election.join('$e', 'one')");
	foreach my $round (1 .. $ROUNDS)
	{
		my $leader;

		happens("SELECT leader IS NOT NULL FROM leader_election.lease
			WHERE election = '$e'", "$what: led, before takeover $round");
		wait_for_work($e);
		$leader = $control->query("SELECT leader_election.leader('$e')");
		$term = $control->term_of($e);
		$session{$leader}->kill;
		happens("SELECT leader <> '$leader' AND term > $term
			FROM leader_election.lease WHERE election = '$e'",
			"$what: takeover $round, after kill -9 (G9)");
		$session{$leader} = session($node, name => $leader);
		$session{$leader}->query(
			"SELECT leader_election.join('$e', '$leader')");
	}
	end_clients("$what, race", @clients);
	$_->finish foreach values %session;

	# A higher rank joins, and the leader is asked to yield.
	$control->query("SELECT leader_election.create_election('$b', 'bully')");
	@clients = start_clients($b, $options, $pause);
	$session{$_} = session($node, name => $_) foreach qw(one two);
	$session{one}->query("CALL leader_election.campaign('$b', 'one', rank => 1)");
	foreach my $round (1 .. $ROUNDS)
	{
		my ($leader, $next) = $round % 2 ? qw(one two) : qw(two one);

		$rank = $round + 1;
		wait_for_work($b);
		$session{$next}->query(
			"SELECT leader_election.join('$b', '$next', rank => $rank)");
		happens("SELECT yielding AND successor = '$next'
			FROM leader_election.lease WHERE election = '$b'",
			"$what: preemption $round");
		succeeds($session{$leader}, "leave('$b')", "$what: it yields");
		is($control->query("SELECT leader_election.leader('$b')"),
			$next, "$what: to the higher rank");
	}
	end_clients("$what, bully", @clients);
	$_->finish foreach values %session;
	return;
}

press('fast', '-c synchronous_commit=on', 0);

# Commits that wait until a standby shows what they have done, and one standby
# that does so late. What grants and ends terms waits only until it has it.
$node->backup('backup');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf',
	"recovery_min_apply_delay = '$DELAY'");
$standby->start;
wait_for($node, "SELECT count(*) = 1 FROM pg_stat_replication
	WHERE state = 'streaming'");
$node->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
$node->reload;
wait_for($node, "SELECT sync_state = 'sync' FROM pg_stat_replication");
press('slow', '-c synchronous_commit=remote_apply', 0.05);

$standby->stop;
$node->stop;
done_testing();
