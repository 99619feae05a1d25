# Leaders that hang, and leases that nobody renews.
#
# A session that stands with auto_renew => false keeps its lease by renew()
# alone.  Its view ends first: is_leader() turns false at the deadline by the
# server's clock, before anybody else is elected, whether the client, the
# backend or the worker is stopped or dead.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use Worker;

# In microseconds; a slow machine takes a while to set the scene.
my $LEASE = 5_000_000 * slowness();
my $MOMENT = int($LEASE / 2);
my $SOON = 1_000_000;

my $node = new_server(
	config => qq(
leader_election.lease_duration = '${LEASE}us'
client_min_messages = warning
));
my $observer = session($node, name => 'observer');

# Call is_leader() in one statement, until it turns false ...
sub lead_to_the_end
{
	my ($session, $election) = @_;

	$session->query_async(
		qq{DO \$\$ DECLARE now bigint; last_true bigint; BEGIN
			LOOP
				now := leader_election._monotonic_clock();
				EXIT WHEN NOT leader_election.is_leader('$election');
				last_true := now;
				PERFORM pg_sleep(0.001);
			END LOOP;
			RAISE WARNING 'last true: %, first false: %', last_true,
				leader_election._monotonic_clock();
		END \$\$});
	return;
}

# ... and until it turns true.
sub follow_to_the_end
{
	my ($session, $election) = @_;

	$session->query_async(
		qq{DO \$\$ BEGIN
			WHILE NOT leader_election.is_leader('$election') LOOP
				PERFORM pg_sleep(0.001);
			END LOOP;
			RAISE WARNING 'first true: %', leader_election._monotonic_clock();
		END \$\$});
	return;
}

# When that was.
sub moment
{
	my ($session, $what) = @_;

	$session->result if $session->{busy};
	die "$session->{name}: $what? " . $session->errors
	  unless $session->errors =~ /$what: (\d+)/;
	return $1;
}

my (%leader, %heir);

# In each election a leader and its heir. They are all connected before the first lease
# begins: that takes long on a slow machine.
sub set_scene
{
	my (%auto_renew) = @_;

	foreach my $election (sort keys %auto_renew)
	{
		$leader{$election} = session($node, name => "$election leader");
		$heir{$election} = session($node, name => "$election heir");
	}
	foreach my $election (sort keys %auto_renew)
	{
		is( $leader{$election}->query(
				"SELECT leader_election.join('$election', 'leader',
					auto_renew => $auto_renew{$election})"),
			1,
			"$election: leads");
		is( $heir{$election}->query(
				"SELECT leader_election.join('$election', 'heir')"),
			'',
			"$election: follows");
	}
	return;
}

# The lease was over at $deadline, and the next term begins later.  A leader
# that was to renew its lease itself is followed by its heir.  A leader that the
# worker renews is elected again: it has stood longest.
sub expired_is
{
	my ($election, $deadline) = @_;
	my ($leader, $acquired);

	wait_for($node,
		"SELECT term > 1 FROM leader_election.lease WHERE election = '$election'"
	);
	($leader, $acquired) = $observer->lease($election, 'leader, acquired_mono');
	is($leader, $election =~ /^automatic/ ? 'leader' : 'heir',
		"$election: who is next (kubernetes#82960)");
	cmp_ok($acquired, '>=', $deadline, "$election: not before the deadline (G2)");
	cmp_ok($acquired, '<', $deadline + $SOON + held_up(), "$election: but soon after");
	is( $observer->query(
			"SELECT string_agg(term || ' ' || coalesce(reason, 'leads'), ', ' ORDER BY term),
				min(ended_at) = max(acquired_at)
			FROM leader_election.history WHERE election = '$election'"),
		'1 expired, 2 leads|t',
		"$election: history");
	return;
}

# What is asked of a session that is stopped is what it does first when it goes
# on.
sub ask_who_leads
{
	my ($session, $election) = @_;

	$session->query_async(
		"SELECT leader_election.is_leader('$election'),
			leader_election.term('$election')");
	return;
}

# --- Clients and backends

my @manual = qw(silent client backend loop late);
my %deadline;

set_scene((map { $_ => 'false' } @manual, 'alone', 'renewing'), automatic => 'true');
$heir{alone}->query("SELECT leader_election.leave('alone')");

$deadline{$_} = ($observer->lease($_, 'deadline_mono'))[0] foreach @manual;
foreach my $election (qw(silent loop))
{
	lead_to_the_end($leader{$election}, $election);
	follow_to_the_end($heir{$election}, $election);
}
follow_to_the_end($heir{client}, 'client');
follow_to_the_end($heir{backend}, 'backend');

# Renews three times per lease, for three leases.
$leader{renewing}->query_async(
	"SELECT term, remaining_ms > 1000, yielding
		FROM leader_election.renew('renewing');
	SELECT pg_sleep($LEASE / 3e6) \\g /dev/null
	" x 9);

# A renewal that commits only after the deadline.  It does not count until
# then, but nobody else gets between.
$leader{late}->query_async(
	qq{DO \$\$ DECLARE term bigint; led_before boolean; BEGIN
		WHILE leader_election._monotonic_clock() < $deadline{late} - $MOMENT LOOP
			PERFORM pg_sleep(0.001);
		END LOOP;
		led_before := leader_election.is_leader('late');
		SELECT r.term INTO term FROM leader_election.renew('late') r;
		WHILE leader_election._monotonic_clock() - $deadline{late} < 100000 LOOP
			PERFORM pg_sleep(0.001);
		END LOOP;
		RAISE WARNING 'before %, renewed %, uncommitted %', led_before, term,
			leader_election.is_leader('late');
		COMMIT;
		RAISE WARNING 'committed %', leader_election.term('late');
	END \$\$});

stop_process($leader{client}->pid);
stop_process($leader{backend}->backend_pid);
stop_where($observer, 'SELECT ' . $leader{loop}->backend_pid, "wait_event = 'PgSleep'");
stop_process($leader{automatic}->pid);
ask_who_leads($leader{$_}, $_) foreach qw(client backend automatic);

# This one is looked at first: its renewed lease ends half a lease after the old deadline.
$leader{late}->result;
like(
	$leader{late}->errors,
	qr/before t, renewed 1, uncommitted f.*committed 1/s,
	'a renewal counts when it is committed (G3)');
is( $observer->query(
		"SELECT count(*), min(reason) FROM leader_election.history
		WHERE election = 'late'"),
	'1|',
	'and nobody was elected in the meantime (G2)');
is($heir{late}->query("SELECT leader_election.is_leader('late')"),
	'f', 'nor says so');

foreach my $election (qw(silent client backend loop))
{
	my $first_true = moment($heir{$election}, 'first true');

	cmp_ok($first_true, '>', $deadline{$election},
		"$election: the heir leads after the deadline (G2)");
	expired_is($election, $deadline{$election});
}

resume_process($leader{loop}->backend_pid);
foreach my $election (qw(silent loop))
{
	my $last_true = moment($leader{$election}, 'last true');

	cmp_ok($last_true, '<', $deadline{$election},
		"$election: is_leader() is true until the deadline at most (G3)");
	cmp_ok(
		$last_true, '<',
		moment($heir{$election}, 'first true'),
		"$election: never two (G1)");
}
cmp_ok(moment($leader{silent}, 'last true'),
	'>', $deadline{silent} - $SOON - held_up(), 'silent: is_leader() is true so long');
cmp_ok(
	moment($leader{silent}, 'first false'),
	'<',
	($observer->lease('silent', 'acquired_mono'))[0] + $SOON + held_up(),
	'silent: is_leader() turns false within the statement (G3)');

resume_process($leader{client}->pid);
resume_process($leader{backend}->backend_pid);
foreach my $election (qw(client backend))
{
	is($leader{$election}->result,
		'f|', "$election: is_leader() is false on the first call");
	is( $leader{$election}->query(
			"SELECT count(*) FROM leader_election.renew('$election')"),
		0,
		"$election: nothing to renew");
	is( $leader{$election}->query(
			"SELECT leader_election.join('$election', 'leader')"),
		'',
		"$election: follows now");
	is( $heir{$election}->query(
			"SELECT leader_election.term('$election')"),
		2,
		"$election: nobody minds");
}

is_deeply([ $leader{renewing}->result ],
	[ ('1|t|f') x 9 ], 'renewing: every renewal is granted');
is($leader{renewing}->query("SELECT leader_election.term('renewing')"),
	1, 'renewing: goes on leading');
is($heir{renewing}->query("SELECT leader_election.is_leader('renewing')"),
	'f', 'renewing: alone');
is( $observer->query(
		"SELECT deadline_mono - acquired_mono > 3 * $LEASE
		FROM leader_election.lease WHERE election = 'renewing'"),
	't',
	'renewing: for three leases');

# Stopped all the time
wait_for($node,
	"SELECT term = 1 AND deadline_mono - acquired_mono > 3 * $LEASE
	FROM leader_election.lease WHERE election = 'automatic'");
is($heir{automatic}->query("SELECT leader_election.is_leader('automatic')"),
	'f', 'automatic: nobody else leads (G2)');
resume_process($leader{automatic}->pid);
is($leader{automatic}->result,
	't|1', 'automatic: a stopped client goes on leading (quartz#782)');

# It is not elected again by others, even if nobody else stands.
is( $observer->query(
		"SELECT s.state, s.waiting_for, leader_election.leader('alone') IS NULL,
			h.reason, s.candidates
		FROM leader_election.status s JOIN leader_election.history h
			USING (election) WHERE election = 'alone'"),
	'vacant|candidates that do not sit out|t|expired|1',
	'alone: vacant');
is( $leader{alone}->query(
		"SELECT leader_election.is_leader('alone'),
			(SELECT count(*) FROM leader_election.renew('alone'))"),
	'f|0',
	'alone: does not lead');
is($leader{alone}->query("SELECT leader_election.join('alone', 'leader')"),
	2, 'alone: elected by its own call');
is($leader{alone}->query("SELECT leader_election.term('alone')"),
	2, 'alone: leads again');

# A leader that stops renewing loses its lease.
follow_to_the_end($heir{renewing}, 'renewing');
($deadline{renewing}) = $observer->lease('renewing', 'deadline_mono');
cmp_ok(moment($heir{renewing}, 'first true'),
	'>', $deadline{renewing}, 'renewing: until it stops');
expired_is('renewing', $deadline{renewing});
is($leader{renewing}->query("SELECT leader_election.is_leader('renewing')"),
	'f', 'renewing: its leadership is over');

sub finish_all
{
	$_->finish foreach values %leader, values %heir;
	%leader = %heir = ();
	return;
}

# --- Without a worker

finish_all();
my $mark = held_up();
set_scene('manual, no worker' => 'false', 'automatic, no worker' => 'true');
wait_for($node, "SELECT count(*) FROM ($WORKER_PID) w", 1);
is($observer->query("SELECT pg_terminate_backend(($WORKER_PID), 60000)"),
	't', 'the worker is terminated');

# None of these calls looks for a worker.
lead_to_the_end($leader{$_}, $_) foreach keys %leader;
foreach my $election (sort keys %leader)
{
	my $last_true = moment($leader{$election}, 'last true');

	($deadline{$election}) = $observer->lease($election, 'deadline_mono');
	cmp_ok($last_true, '<', $deadline{$election},
		"$election: is_leader() is true until the deadline at most (G3)");
	cmp_ok($last_true, '>', $deadline{$election} - $SOON - held_up($mark),
		"$election: but so long");
}
is( $observer->query(
		"SELECT election, term, leader, leader_election.leader(election) IS NULL
		FROM leader_election.lease WHERE election LIKE '%, no worker'
		ORDER BY election"),
	"automatic, no worker|1|leader|t\nmanual, no worker|1|leader|t",
	'nobody else was elected yet');
is($observer->query($WORKER_PID), '', 'there is no worker');
foreach my $election (sort keys %heir)
{
	# The first that calls brings the worker back, and one of them elects.
	$heir{$election}
	  ->query("SELECT leader_election.join('$election', 'heir')");
	expired_is($election, $deadline{$election});
	is( join(
			',',
			map {
				scalar $_->query("SELECT leader_election.term('$election')")
			} $leader{$election},
			$heir{$election}),
		$election =~ /^automatic/ ? '2,' : ',2',
		"$election: and who says so");
}
wait_for($node, "SELECT count(*) FROM ($WORKER_PID) w", 1);

# --- With a worker that does nothing

finish_all();
set_scene('manual, stopped worker' => 'false', 'automatic, stopped worker' => 'true');
wait_for($node,
	"SELECT renewed_at > acquired_at FROM leader_election.lease
	WHERE election = 'automatic, stopped worker'");
my $worker = stop_worker($observer);

foreach my $election (keys %leader)
{
	($deadline{$election}) = $observer->lease($election, 'deadline_mono');
	lead_to_the_end($leader{$election}, $election);
	$heir{$election}
	  ->query_async("CALL leader_election.campaign('$election', 'heir')");
}
foreach my $election (sort keys %leader)
{
	my $last_true = moment($leader{$election}, 'last true');

	cmp_ok($last_true, '<', $deadline{$election},
		"$election: is_leader() is true until the deadline at most (G3)");
	expired_is($election, $deadline{$election});
}
is($heir{'manual, stopped worker'}->result,
	2, 'manual, stopped worker: elected by its own poll (G7)');
resume_process($worker);
wait_for($node,
	"SELECT min(deadline_mono - acquired_mono) > 2 * $LEASE
	FROM leader_election.lease WHERE election LIKE '%, stopped worker'");
is( $leader{'manual, stopped worker'}->query(
		"SELECT leader_election.is_leader('manual, stopped worker')"),
	'f',
	'manual, stopped worker: one leader after the worker is back');

# --- A campaign that hears late that it was elected: the lease was over while
# it waited.

finish_all();
foreach my $election ('late news', 'late news, stopped worker')
{
	my ($one, $two) = map { session($node, name => "$election $_") } qw(one two);
	my @stopped;

	is($one->query("CALL leader_election.campaign('$election', 'one')"),
		1, "$election: leads");
	$two->query_async("CALL leader_election.campaign('$election', 'two',
		auto_renew => false)");
	wait_for($node, "SELECT candidates FROM leader_election.status
		WHERE election = '$election'", 2);
	push @stopped, stop_where($observer, 'SELECT ' . $two->backend_pid,
		"wait_event_type = 'Extension'");
	push @stopped, stop_worker($observer) if $election =~ /stopped/;
	is($one->query("SELECT leader_election.leave('$election')"),
		't', "$election: leaves");
	is_deeply([ $observer->lease($election, 'leader, term') ],
		[ 'two', 2 ], "$election: the waiting campaign is elected, and does not know");
	wait_for($node, "SELECT deadline_mono < leader_election._monotonic_clock()
		FROM leader_election.lease WHERE election = '$election'");
	wait_for($node, "SELECT reason FROM leader_election.history
		WHERE election = '$election' AND term = 2", 'expired')
	  unless $election =~ /stopped/;
	resume_process($stopped[0]);
	is($two->result, 3,
		"$election: campaign() does not return a term that is over (etcd Campaign, G3)");
	is( $two->query("SELECT leader_election.is_leader('$election'),
			leader_election.term('$election')"),
		't|3', "$election: but one in which it leads (etcd Campaign)");
	resume_process($_) foreach @stopped[ 1 .. $#stopped ];
	$_->finish foreach $one, $two;
}

# --- Leaders are stopped at random moments of their calls

$node->append_conf('postgresql.conf',
	"leader_election.lease_duration = '300ms'");
$node->reload;
wait_for($node, 'SHOW leader_election.lease_duration', '300ms');

# A claim is a term in which is_leader() was true, with the clock after the
# first such call and before the last one.
$observer->query(
	'CREATE TABLE claim (term bigint, name text, first_after bigint,
		last_before bigint, PRIMARY KEY (term, name))');
$observer->query('CREATE TABLE over (over boolean)');
my $campaigner = q{
	DO $$ DECLARE
		name text := '%s';
		t bigint;
		led boolean;
		claimed bigint;
		first_after bigint;
		last_before bigint;
		before bigint;
		after bigint;
	BEGIN
		LOOP
			before := leader_election._monotonic_clock();
			t := leader_election.term('relay');
			led := leader_election.is_leader('relay');
			after := leader_election._monotonic_clock();
			IF NOT led OR t IS DISTINCT FROM leader_election.term('relay') THEN
				t := NULL;
			END IF;
			IF t IS DISTINCT FROM claimed AND claimed IS NOT NULL THEN
				INSERT INTO claim VALUES (claimed, name, first_after, last_before);
				COMMIT;
				claimed := NULL;
			END IF;
			EXIT WHEN (SELECT count(*) FROM over) > 0;
			IF t IS NULL THEN
				PERFORM leader_election.join('relay', name, auto_renew => false);
			ELSE
				first_after := CASE WHEN claimed IS NULL THEN after ELSE first_after END;
				last_before := before;
				claimed := t;
				PERFORM leader_election.renew('relay');
			END IF;
			COMMIT;
			PERFORM pg_sleep(0.001);
		END LOOP;
	END $$};
my @runners = map { session($node, name => "runner $_") } 1 .. 4;
$_->query_async(sprintf $campaigner, $_->{name}) foreach @runners;

my $ROUNDS = 15;
my $rounds = 0;
my $seen = 0;
until ($rounds >= $ROUNDS)
{
	my ($pid, $term, $give_up);

	wait_until(
		sub {
			($pid, $term) = $observer->lease('relay', 'backend_pid, term');
			return $pid && $term > $seen;
		},
		'a leader');
	$seen = $term;

	# For longer than its lease.  Where it was stopped with a lock on a page
	# that everybody needs, it goes on before anybody else does.
	stop_process($pid);
	$observer->query_async("SELECT pg_sleep(0.4), term
		FROM leader_election.lease WHERE election = 'relay'");
	$give_up = time + 0.9;
	wait_until(sub { $observer->finished || time > $give_up }, 'a lease');
	resume_process($pid);
	$observer->result;
	$rounds++;
}
$observer->query('INSERT INTO over VALUES (true)');
$_->result foreach @runners;
is( join('', grep { $_ && !/^ERROR:  election "relay" is busy\n/ }
		  map { $_->errors } @runners),
	'', 'relay: no errors');

is( $observer->query(
		'SELECT a.term, a.name, b.term, b.name, a.last_before - b.first_after
		FROM claim a JOIN claim b ON a.term < b.term
		WHERE a.last_before >= b.first_after'),
	'',
	'relay: never two (G1)');
is( $observer->query(
		"SELECT c.term, c.name, h.leader FROM claim c
		LEFT JOIN leader_election.history h
			ON h.election = 'relay' AND h.term = c.term
		WHERE h.leader IS DISTINCT FROM c.name"),
	'',
	'relay: nobody claims what another was granted (G1)');
cmp_ok($observer->query('SELECT count(DISTINCT term) FROM claim'),
	'>', $ROUNDS / 2, 'relay: there was something to see');
is( $observer->query(
		"SELECT min(term), max(term) = count(*),
			string_agg(DISTINCT reason, ','),
			count(*) FILTER (WHERE ended_at IS NULL) <= 1,
			bool_and(ended_at <= next)
		FROM (SELECT term, reason, ended_at,
				lead(acquired_at) OVER (ORDER BY term) AS next
			FROM leader_election.history WHERE election = 'relay') h"),
	'1|t|expired|t|t',
	'relay: history is complete');

$node->stop;
done_testing();
