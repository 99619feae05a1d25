# An old primary that is cut off, and a synchronous standby that takes over.
#
# A lease counts from a moment after which the standby is known to have followed;
# so nothing is granted or renewed once it does not, and what is led then is over
# before anybody is elected on a server that was promoted later. That holds even
# for commits whose wait for the standby is cut short: the old side has them, and
# no standby does.
#
# The clock is the servers' monotonic one, which is the same for both, in
# microseconds. synchronous_commit is off, which must not matter.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use SyncStandby;
use Test::More;

# In microseconds; a slow machine takes longer for what is done within a lease.
my $LEASE = 3_000_000 * slowness();
my $LONG = 10 * $LEASE;
my $SHORT = 300_000;
my $CANCELED = qr/WARNING:  canceling wait for synchronous replication/;

my $pair = SyncStandby->new(
	config => qq(
leader_election.lease_duration = '${LEASE}us'
client_min_messages = warning
synchronous_commit = off
));
my ($old, $new, $observer) = @{$pair}{qw(primary standby observer)};

# Watches a leadership, every millisecond, until the observer of that server
# releases this advisory lock. $leads is a call that tells it.
my $WATCHING = 4711;

sub watch
{
	my ($session, $leads) = @_;

	$session->query_async(
		qq{DO \$\$ DECLARE
			before bigint;
			first_true bigint;
			last_true bigint;
			calls bigint := 0;
			led boolean;
			was boolean;
			changes int := -1;
		BEGIN
			LOOP
				before := leader_election._monotonic_clock();
				led := $leads;
				IF led THEN
					last_true := before;
					first_true := coalesce(first_true, leader_election._monotonic_clock());
				END IF;
				IF led IS DISTINCT FROM was THEN
					changes := changes + 1;
				END IF;
				was := led;
				calls := calls + 1;
				EXIT WHEN pg_try_advisory_xact_lock_shared($WATCHING);
				PERFORM pg_sleep(0.001);
			END LOOP;
			RAISE WARNING 'first %, last %, changes %, calls %', first_true,
				last_true, changes, calls;
		END \$\$});
	return;
}

# first and last time at which it was true, and how often the answer changed
sub watched
{
	my ($session) = @_;

	$session->result;
	die "$session->{name}: " . $session->errors
	  unless $session->errors =~
	  /first (\S+), last (\S+), changes (\d+), calls (\d+)/;
	note("$session->{name}: first $1, last $2, changes $3, calls $4");
	return ($1, $2, $3);
}

# What the old side must not do: a call, its result and SQLSTATE, in time.
sub refused
{
	my ($session, $sql, $result, $sqlstate, $name) = @_;
	my $start = machine_time();

	is($session->query($sql), $result, "$name: nothing is granted");
	is($session->sqlstate, $sqlstate, "$name: SQLSTATE");
	return machine_time() - $start;
}

# All that was ever granted, and ended, on the old side.
my $history = 'SELECT string_agg(format(\'%s %s %s %s\', election, term, leader, reason),
	\', \' ORDER BY election, term) FROM leader_election.history';

# Leases that last longer than they may if the standby stopped at that time.
sub too_long
{
	my ($frozen) = @_;

	return scalar $observer->query(
		"SELECT election, deadline_mono - $frozen
		FROM leader_election.lease JOIN leader_election.election USING (election)
		WHERE leader IS NOT NULL
			AND deadline_mono - $frozen > extract(epoch FROM lease_duration) * 1000000");
}

my $leader = session($old, name => 'leader');
my $heir = session($old, name => 'heir');
my $manual = session($old, name => 'manual');
my $detached = session($old, name => 'detached');
my $other = session($old, name => 'other');
my $watcher = session($old, name => 'watcher');

# A term that no server here has granted
my $unheard_of = 1000000;

$observer->query("SELECT pg_advisory_lock($WATCHING)");

# Made beforehand: the standby has to know an election before it can be led.
$detached->query("SELECT leader_election.create_election(e)
	FROM (VALUES ('held'), ('vacant'), ('manual'), ('lent'), ('lent 2'), ('watched'),
		('canceled'), ('terminated'), ('kept'), ('vacant 2')) v (e)");
$detached->query("SELECT leader_election.create_election(e, lease_duration => '${LONG}us')
	FROM (VALUES ('slow'), ('crashed')) v (e)");

#
# The standby is frozen, and comes back.
#

is($leader->query("SELECT leader_election.join('held', 'leader')"),
	1, 'held: leads');
is($heir->query("SELECT leader_election.join('held', 'heir')"),
	'', 'held: follows');
is($detached->query("SELECT term FROM leader_election.acquire('vacant', 'x')"),
	1, 'vacant: leads');
is($detached->query("SELECT leader_election.release('vacant', 1)"),
	't', 'vacant: gives up');
is($manual->query("SELECT leader_election.join('manual', 'manual', auto_renew => false)"),
	1, 'manual: leads');
is($detached->query("SELECT term FROM leader_election.acquire('lent', 'detached')"),
	1, 'lent: leads');
is( $detached->query(
		"SELECT count(*), leader_election.release('lent', $unheard_of)
		FROM leader_election.renew('lent', $unheard_of)"),
	'0|f',
	'lent: a term of which nobody has heard is over');

{
	my $receiver = session($new, name => 'standby');
	my $pid = $receiver->query(
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'");
	my $before = $observer->query($history);
	my $elapsed;

	watch($leader, "leader_election.is_leader('held')");
	watch($watcher, "leader_election.is_leader('lent', 1)");
	is($manual->query("SELECT term FROM leader_election.renew('manual')"),
		1, 'manual: renewed');
	is($detached->query("SELECT term FROM leader_election.renew('lent', 1)"),
		1, 'lent: renewed');
	stop_process($pid);

	my $frozen = $pair->clock;

	# While they lead still. The ones that wait do that at the same time.
	my $start = machine_time();
	$heir->query_async("CALL leader_election.campaign('slow', 'heir', '300ms')");
	refused($detached, "SELECT * FROM leader_election.renew('lent', 1)",
		'', '55P03', 'renew() with a term');
	like($detached->errors,
		qr/election "lent" is busy.*standbys.*HINT:.*pg_stat_replication/s,
		'renew() with a term: says why');
	refused($manual, "SELECT * FROM leader_election.renew('manual')",
		'', '55P03', 'renew()');
	$heir->result;
	$elapsed = machine_time() - $start;
	is($heir->sqlstate, '00000', 'campaign(): times out');
	cmp_ok($elapsed, '<', 4,
		'campaign(): in time, whatever the lease (G9)');
	note("campaign with a timeout of 0.3 s took $elapsed s");
	is(too_long($frozen), '', 'nothing was prolonged (G6)');

	my %deadline = map { $_ => ($observer->lease($_, 'deadline_mono'))[0] } qw(held lent);

	# Until all of that is over
	wait_until(sub { $pair->clock > $frozen + $LEASE }, 'the end of all leases');
	foreach my $election (qw(held manual lent vacant))
	{
		refused($other,
			"SELECT * FROM leader_election.acquire('$election', 'other')",
			'', '55P03', "$election: acquire()");
	}
	foreach my $election (qw(held manual lent vacant))
	{
		$elapsed = refused($heir,
			"SELECT leader_election.join('$election', 'heir')",
			'', '00000', "$election: join()");
		cmp_ok($elapsed, '<', 3, "$election: join() does not wait for long (G9)");
	}
	refused($heir, "CALL leader_election.campaign('vacant', 'heir', '300ms')",
		'', '00000', 'vacant: campaign()');
	refused($detached, "SELECT * FROM leader_election.renew('lent', 1)",
		'', '00000', 'lent: renew() after the deadline');
	refused($manual, "SELECT * FROM leader_election.renew('manual')",
		'', '00000', 'manual: renew() after the deadline');
	is($observer->query($history), $before, 'no term began or ended (G6)');
	is( $observer->query("SELECT waiting_for FROM leader_election.status WHERE election = 'vacant'"),
		'synchronous standbys', 'which everybody can see');

	$observer->query("SELECT pg_advisory_unlock($WATCHING)");
	foreach (
		[ 'held', $leader, $deadline{held} ],
		[ 'lent', $watcher, $deadline{lent} ])
	{
		my ($election, $session, $deadline) = @$_;
		my (undef, $last, $changes) = watched($session);

		cmp_ok($last, '<', $deadline,
			"$election: is_leader() is true until the deadline at most (G3)");
		cmp_ok($last, '>', $deadline - 1_000_000 - held_up(), "$election: but so long");
		is($changes, 1, "$election: and not again");
	}
	$observer->query("SELECT pg_advisory_lock($WATCHING)");

	# All goes on.
	resume_process($pid);
	$elapsed = wait_for($old,
		"SELECT leader_election.leader('held') IS NOT NULL
			AND leader_election.leader('vacant') IS NOT NULL");
	cmp_ok($elapsed, '<', $LEASE / 1e6 + 2, 'elected again soon');
	wait_until(
		sub {
			$detached->query(
				"SELECT term FROM leader_election.acquire('lent 2', 'detached')")
			  eq '1';
		},
		'a detached leader');

	# The same if it is the primary's end that is frozen.
	$pid = stop_where($observer, 'SELECT pid FROM pg_stat_replication',
		"wait_event = 'WalSenderMain'");
	refused($detached, "SELECT * FROM leader_election.renew('lent 2', 1)",
		'', '55P03', 'walsender: renew()');
	resume_process($pid);
	$_->query('SELECT leader_election.leave_all()') foreach $leader, $heir, $manual;
	$receiver->finish;
}

#
# Commits that grant wait for the standby, and are cut short. Where they notify,
# all wait for the first of them: one at a time.
#

my $n = 0;

foreach my $call (
	[ 'acquire()', "SELECT term FROM leader_election.acquire('%s', 'other')" ],
	[ 'join()', "SELECT leader_election.join('%s', 'other')" ],
	[ 'campaign()', "CALL leader_election.campaign('%s', 'other')" ])
{
	my ($name, $sql) = @$call;
	my $election;
	my $frozen;

	# Made and vacant before
	my @elections = map { "granted $n $_" } 1 .. 9;

	$n++;
	$detached->query("SELECT leader_election.create_election('$_')")
	  foreach @elections;
	$frozen = $pair->catch_at_commit(
		sub {
			$election = $elections[ $_[0] ] // die 'no election is left';
			return [ $other, sprintf($sql, $election) ];
		});
	is(($observer->lease($election, 'term'))[0], 0, "$name: not visible yet");
	is($pair->cancel($other), 1, "$name: canceled at its commit, is granted");
	like($other->errors, $CANCELED, "$name: with a warning");
	is(too_long($frozen), '', "$name: for no longer than the lease (G6)");
	is( ($observer->lease($election, "deadline_mono - duration < $frozen"))[0],
		't', "$name: from before the standby was lost (G6)");
	refused(
		$detached, "SELECT * FROM leader_election.renew('$election', 1)",
		'', '55P03', "$name: renew()")
	  if $name eq 'acquire()';
	$pair->resume_line;
	$other->query('SELECT leader_election.leave_all()');
}

#
# The line is cut while many commits wait, and the standby is promoted.
#

my @election = qw(watched canceled terminated crashed kept);
my %holder;
my $canceled = session($old, name => 'canceled');
my $terminated = session($old, name => 'terminated');
my $crashed = session($old, name => 'crashed');
my $on_new = session($new, name => 'on the standby');
my $new_watcher = session($new, name => 'new watcher');
my $new_observer = session($new, name => 'new observer');

$pair->delay_line(0);
is($leader->query("SELECT leader_election.join('watched', 'leader')"),
	1, 'watched: leads');
$heir->query("SELECT leader_election.join('watched', 'heir')");
is( $canceled->query(
		"SELECT leader_election.join('canceled', 'canceled', auto_renew => false)"),
	1,
	'canceled: leads');
foreach my $election (qw(terminated crashed kept))
{
	is( $detached->query(
			"SELECT term FROM leader_election.acquire('$election', 'detached')"),
		1,
		"$election: leads");
}
$detached->query("SELECT leader_election.acquire('vacant 2', 'x')");
$detached->query("SELECT leader_election.release('vacant 2', 1)");
watch($leader, "leader_election.is_leader('watched')");
watch($watcher, "leader_election.is_leader('terminated', 1)");

# The worker renews what is watched; it is one of those that are caught. The
# fresh one is created, and maybe granted, by the same call: the standby cannot
# know for how long.
my $worker = $pair->worker_pid;
my $fresh;
$other->query('SET synchronous_commit = on');
my $frozen = $pair->catch_at_commit(
	sub {
		$fresh = "fresh $_[0]";

		# All at the same time as the worker
		wait_for($old,
			"SELECT state = 'active' AND query = 'renewing leases'
				AND wait_event IS DISTINCT FROM 'SyncRep'
			FROM pg_stat_activity WHERE pid = $worker");
		return (
			[ $canceled, "SELECT term FROM leader_election.renew('canceled')" ],
			[ $terminated, "SELECT term FROM leader_election.renew('terminated', 1)" ],
			[ $crashed, "SELECT term FROM leader_election.renew('crashed', 1)" ],
			[ $detached, "SELECT term FROM leader_election.renew('kept', 1)" ],
			[ $other, "SELECT term FROM leader_election.acquire('$fresh', 'other')" ]);
	},
	$worker);
my %before = map { $_ => ($observer->lease($_, 'deadline_mono'))[0] }
  qw(watched canceled terminated crashed kept);

# Cut short in every way
is($pair->cancel($canceled), 1, 'canceled: renew() succeeds');
like($canceled->errors, $CANCELED, 'canceled: with a warning');
is($pair->cancel($detached), 1, 'kept: renew() succeeds');
like($detached->errors, $CANCELED, 'kept: with a warning');
$pair->cancel($other);
like($other->errors, $CANCELED, 'fresh: acquire() succeeds');
$observer->query("SELECT pg_terminate_backend($worker, 60000)");
$observer->query('SELECT pg_terminate_backend('
	  . $terminated->backend_pid
	  . ', 60000)');
$terminated->result;
is($terminated->sqlstate, '08006', 'terminated: is told nothing');
foreach my $election (qw(watched canceled terminated kept))
{
	cmp_ok(($observer->lease($election, 'deadline_mono'))[0],
		'>', $before{$election}, "$election: is there without the standby");
}
is(too_long($frozen), '', 'but only until a lease after the line was cut (G6)');
my $terms = $observer->query($history);

# The new side. Everybody stands there at once.
$new->promote;
foreach my $election (@election, 'vacant 2')
{
	is($on_new->query("SELECT leader_election.join('$election', 'new')"),
		'', "$election: nobody is elected at once");
}
$new_watcher->query("SELECT pg_advisory_unlock_all();
	SELECT leader_election.create_election('new there');
	SELECT leader_election.create_election('$fresh', lease_duration => '${SHORT}us')");
is($new_watcher->sqlstate, '00000', 'the standby has never heard of the fresh one');
$on_new->query("SELECT leader_election.join('new there', 'new')");
$on_new->query("SELECT leader_election.join('$fresh', 'new')");
$new_observer->query("SELECT pg_advisory_lock($WATCHING)");
watch($on_new, "leader_election.is_leader('watched')");

# The old side, in the meantime. Both at once: each waits for a second of its lease.
$canceled->query_async("SELECT * FROM leader_election.renew('canceled')");
$detached->query_async("SELECT * FROM leader_election.renew('kept', 1)");
foreach my $renew ([ $canceled, 'canceled' ], [ $detached, 'kept' ])
{
	my ($session, $election) = @$renew;

	is($session->result, '', "$election: renew() on the old side: nothing is granted");
	is($session->sqlstate, '55P03', "$election: renew() on the old side: SQLSTATE");
}
refused($detached, $_, '', '55P03', "$_: may be a term of the new side")
  foreach "SELECT * FROM leader_election.renew('kept', $unheard_of)",
  "SELECT leader_election.release('kept', $unheard_of)";
is(too_long($frozen), '', 'nothing was prolonged since (G6)');
my %deadline = map { $_ => ($observer->lease($_, 'deadline_mono'))[0] // 0 } @election, $fresh;
is( $observer->query(
		"SELECT leader_election.is_leader('crashed', 1)"),
	't',
	'crashed: leads still');

# The server crashes, and so the last of these commits is there as well.
wait_until(sub { $pair->clock > $frozen + $LEASE }, 'the end of all leases');
$observer->query("SELECT pg_advisory_unlock($WATCHING)");
my (undef, $last_true, $changes) = watched($leader);
cmp_ok($last_true, '<', $deadline{watched}, 'watched: the old leader ends in time (G3)');
is($changes, 1, 'watched: for good');
my (undef, $last_kept, $kept_changes) = watched($watcher);
cmp_ok($last_kept, '<', $deadline{terminated}, 'terminated: the old leader ends in time');
is($kept_changes, 1, 'terminated: for good');
refused($other, "SELECT * FROM leader_election.acquire('$_', 'other')",
	'', '55P03', "$_: acquire() on the old side")
  foreach 'watched', 'kept';
is($observer->query($history),
	$terms, 'no other term began or ended on the old side (G6)');
$observer->finish;
$old->stop('immediate');
$_->kill foreach $leader, $heir, $canceled, $crashed, $detached, $other, $watcher;
$old->start;

my $after = session($old, name => 'observer');
$pair->{observer} = $observer = $after;
is(too_long($frozen), '', 'crashed: nothing lasts longer (G6)');
cmp_ok(($observer->lease('crashed', 'deadline_mono'))[0],
	'>', $before{crashed}, 'crashed: is there without the standby');
is($observer->query("SELECT leader_election.is_leader('crashed', 1)"),
	't', 'crashed: by its lease, leads still');
refused($observer, "SELECT * FROM leader_election.renew('crashed', 1)",
	'', '55P03', 'crashed: renew()');
refused($observer, "SELECT leader_election.join('watched', 'again')",
	'', '00000', 'crashed: join()');
refused($observer, "SELECT * FROM leader_election.acquire('kept', 'again')",
	'', '55P03', 'crashed: acquire()');
is($observer->query($history),
	$terms, 'crashed: no other term began or ended');

# Who is elected where, and when
foreach my $election (
	'watched', 'canceled', 'terminated', 'kept', 'vacant 2', 'new there',
	$fresh)
{
	wait_for($new, "SELECT leader_election.leader('$election')", 'new');
	my ($acquired, $first_seen) = split /\|/, $new_watcher->query(
		"SELECT acquired_mono, (SELECT max(first_seen_mono) FROM leader_election.epoch)
		FROM leader_election.lease WHERE election = '$election'");

	cmp_ok($first_seen, '>', $frozen, "$election: promoted later")
	  if $election eq 'watched';
	note("$election: $frozen cut, $first_seen promoted, "
		  . ($deadline{$election} // 'no') . " deadline, $acquired elected");
	cmp_ok($acquired, '>=', $first_seen + $LEASE,
		"$election: nobody is elected in the grace (G6)")
	  unless $election eq $fresh;
	cmp_ok($acquired, '>=', $deadline{$election},
		"$election: nobody is elected while the old side may have a leader (G6)")
	  if defined $deadline{$election};
}
is( $new_watcher->query(
		"SELECT leader, waiting_for FROM leader_election.status WHERE election = 'crashed'"),
	'|grace after failover',
	'crashed: waits for as long as the old side may have a leader');
$new_observer->query("SELECT pg_advisory_unlock($WATCHING)");
my ($first_true) = watched($on_new);
cmp_ok($last_true, '<', $first_true, 'watched: never two (G1, G6)');

done_testing();
