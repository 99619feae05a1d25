# Synchronous standbys: what changes around the proof that they follow.
#
# A proof says that the standby knows what was there before it. The election's
# settings, its holder's end, and the standby's own role may change between it
# and the grant that it is for. A caller that waits for the election lock in
# between must not be granted more than the standby knows of. Here another session
# holds the election lock meanwhile, and then commits or rolls back.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use SyncStandby;
use Test::More;
use Time::HiRes qw(time);
use Worker;

my $LEASE = 3_000_000;      # microseconds
my $LONGER = 6_000_000;
my $VERY_LONG = 60_000_000;
my $CANCELED = qr/WARNING:  canceling wait for synchronous replication/;

my $pair = SyncStandby->new(
	config => qq(
leader_election.lease_duration = '${LEASE}us'
client_min_messages = warning
));
my ($old, $new, $observer) = @{$pair}{qw(primary standby observer)};
my $holder = session($old, name => 'holder');
my $caller = session($old, name => 'caller');
my $other = session($old, name => 'other');

# The standby has to know an election before it can be led.
$caller->query("SELECT leader_election.create_election(e)
	FROM (VALUES ('altered'), ('wrapped'), ('configured'), ('proven'), ('joined')) v (e)");

# In the lease of these, two calls wait for a second each.
$caller->query("SELECT leader_election.create_election(e, lease_duration => '${LONGER}us')
	FROM (VALUES ('renewed'), ('renewed itself')) v (e)");

# What only stands writes nothing that a standby has to have.
sub is_refused
{
	my ($session, $sqlstate, $name) = @_;

	wait_until(
		sub {
			$session->finished
			  || $pair->wait_event($session->backend_pid) eq 'SyncRep';
		},
		"$name to end");
	unless ($session->finished)
	{
		fail("$name: waits for the standby");
		$pair->{observer}
		  ->query('SELECT pg_cancel_backend(' . $session->backend_pid . ')');
	}
	is($session->result, '', "$name: nothing is granted");
	is($session->sqlstate, $sqlstate, "$name: SQLSTATE");
	return;
}

sub refused
{
	my ($session, $sql, $sqlstate, $name) = @_;

	$session->query_async($sql);
	is_refused($session, $sqlstate, $name);
	return;
}

# The caller has made its proof and waits for the election lock, which $holder
# has, when the line is stopped; then $holder commits, which the standby does not
# hear of, or rolls back. Returns when the line was stopped. The caller
# waits for a second at most: where the machine was slower than that, once more.
my $GATE = 4711;

sub proven_before
{
	my ($meanwhile, $sql, $commit, $stop) = @_;
	my $start;
	my $frozen;

	$observer->query("SELECT pg_advisory_lock($GATE)");
	$holder->query_async(
		"DO \$\$ BEGIN
			PERFORM leader_election.$meanwhile;
			PERFORM pg_advisory_xact_lock_shared($GATE);
			@{[ $commit ? '' : 'RAISE EXCEPTION $m$it rolls back$m$;' ]}
		END \$\$");
	wait_for($old,
		"SELECT wait_event = 'advisory' FROM pg_stat_activity
			WHERE pid = " . $holder->backend_pid);
	$start = time;
	$caller->query_async($sql);
	wait_until(
		sub {
			return $caller->finished || $observer->query(
				"SELECT count(*) FROM pg_locks
				WHERE NOT granted AND locktype NOT IN ('relation', 'tuple', 'transactionid')
					AND pid = " . $caller->backend_pid) eq '1';
		},
		'the caller to wait for the election lock');
	$stop->();
	$frozen = $pair->clock;
	$observer->query("SELECT pg_advisory_unlock($GATE)");
	if ($commit)
	{
		wait_until(
			sub { $pair->wait_event($holder->backend_pid) eq 'SyncRep' },
			'the commit to wait');
		$pair->cancel($holder);
		like($holder->errors, $CANCELED, "$meanwhile: is there, on one side");
	}
	else
	{
		$holder->result;
	}
	note(sprintf 'the caller has waited for %.3f s', time - $start);
	return $frozen;
}

#
# What is granted after the line was stopped counts from before.
#

my ($frozen, $proven);
foreach my $attempt (1 .. 10)
{
	$frozen = proven_before(
		"alter_election('proven')",
		"SELECT term FROM leader_election.acquire('proven', 'caller')",
		0, sub { $pair->stop_line });
	wait_until(
		sub {
			$caller->finished
			  || $pair->wait_event($caller->backend_pid) eq 'SyncRep';
		},
		'the grant to wait for the standby');
	$proven = $pair->cancel($caller);
	last if $caller->sqlstate ne '55P03';
	$pair->resume_line;
}
is($proven, 1, 'proven: granted');
is( ($observer->lease('proven', "deadline_mono - $frozen <= $LEASE"))[0],
	't', 'proven: from before the standby was lost (G6)');
$pair->resume_line;

#
# A lease is not granted by settings that the standby does not have.
#

$frozen = proven_before(
	"alter_election('altered', lease_duration => '${VERY_LONG}us')",
	"SELECT term FROM leader_election.acquire('altered', 'caller')",
	1, sub { $pair->stop_line });
is_refused($caller, '55P03', 'altered: by a proof from before');
is( $observer->query(
		"SELECT lease_duration, term, leader IS NULL
		FROM leader_election.election JOIN leader_election.lease USING (election)
		WHERE election = 'altered'"),
	'00:01:00|0|t',
	'altered: there are other settings by now');
refused($other, "SELECT leader_election.join('altered', 'other')",
	'00000', 'altered: join()');
$pair->resume_line;
$other->query('SELECT leader_election.leave_all()');
wait_until(
	sub {
		$caller->query("SELECT remaining_ms > 50000
			FROM leader_election.acquire('altered', 'caller')") eq 't';
	},
	'altered: granted once the standby knows');

#
# A candidate that stands does not wait for the standby, even if its reads make the
# server log something: here a page whose hints are set for the first time.
#

foreach my $call (
	[ 'join', "SELECT leader_election.join('altered', 'reader')" ],
	[ 'campaign', "CALL leader_election.campaign('altered', 'reader', '100ms')" ],
	[ 'acquire', "SELECT leader_election.acquire('altered', 'reader')" ])
{
	my ($name, $sql) = @$call;
	my $reader = session($old, name => 'reader');

	$observer->query("CREATE ROLE $name;
		GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO $name;
		CHECKPOINT");
	$pair->stop_line;
	refused($reader, $sql, '00000', "reading: $name()");
	$pair->resume_line;
	$reader->finish;
}

#
# A campaign that does not wait is elected where nobody leads.
#

{
	my $one = session($old, name => 'one');

	$one->query("SELECT leader_election.create_election('at once')");
	like($one->query("CALL leader_election.campaign('at once', 'one', '0')"),
		qr/^\d+$/, 'at once: campaign() without a wait');
	$one->finish;
}

#
# Nor is one renewed by them.
#

is($caller->query("SELECT term FROM leader_election.acquire('renewed', 'caller')"),
	1, 'renewed: leads');
is($other->query("SELECT leader_election.join('renewed itself', 'other')"),
	1, 'renewed itself: leads');
$frozen = $pair->catch_at_commit(
	sub {
		$caller->query("SELECT leader_election.renew('renewed', 1)");
		return [ $holder,
			"SELECT leader_election.alter_election(e, lease_duration => '${VERY_LONG}us')
			FROM (VALUES ('renewed'), ('renewed itself')) v (e)" ];
	});
refused($caller, "SELECT * FROM leader_election.renew('renewed', 1)",
	'55P03', 'renewed: while they change');
$pair->cancel($holder);
like($holder->errors, $CANCELED, 'renewed: the settings have changed');
refused($caller, "SELECT * FROM leader_election.renew('renewed', 1)",
	'55P03', 'renewed: they have changed');
is( $observer->query(
		"SELECT max(deadline_mono) - $frozen <= $LONGER, max(duration)
		FROM leader_election.lease WHERE election LIKE 'renewed%'"),
	"t|$LONGER",
	'renewed: not for longer than the standby knows (G6)');
wait_until(sub { $pair->clock > $frozen + $LONGER }, 'the end of the leases');
is( $other->query(
		"SELECT leader_election.is_leader('renewed itself'),
			leader_election.is_leader('renewed', 1)"),
	'f|f',
	'renewed: is_leader()');
$pair->resume_line;
$pair->delay_line(0);
wait_for($old, "SELECT leader_election.leader('renewed itself')", 'other');
is( ($observer->lease('renewed itself', "duration"))[0],
	$VERY_LONG, 'renewed: by the new settings, once the standby knows');
$other->query('SELECT leader_election.leave_all()');

#
# Nor does a leader's own join() renew its lease, which it would where no worker
# does.
#

{
	my $worker = stop_worker($observer);

	is($other->query("SELECT leader_election.join('joined', 'other')"),
		1, 'joined: leads');
	$pair->stop_line;
	$frozen = $pair->clock;
	wait_for($old, "SELECT deadline_mono - leader_election._monotonic_clock() < $LEASE / 2
		FROM leader_election.lease WHERE election = 'joined'");
	$other->query_async("SELECT leader_election.join('joined', 'other')");
	wait_until(
		sub {
			$other->finished
			  || $pair->wait_event($other->backend_pid) eq 'SyncRep';
		},
		'the end of join()');
	ok($other->finished, 'joined: has nothing to wait for');
	$pair->cancel($other) unless $other->finished;
	$other->result if $other->{busy};
	is( ($observer->lease('joined', "deadline_mono - $frozen <= $LEASE"))[0],
		't', 'joined: not renewed without a proof (G6)');
	$pair->resume_line;
	resume_process($worker);
	$other->query('SELECT leader_election.leave_all()');
}

#
# All in one transaction: the standby cannot know any of it.
#

is($caller->query("SELECT term FROM leader_election.acquire('wrapped', 'caller')"),
	1, 'wrapped: leads');
$frozen = $pair->catch_at_commit(
	sub {
		return [ $caller, "DO \$\$ BEGIN
			PERFORM leader_election.alter_election('wrapped', lease_duration => '${VERY_LONG}us');
			PERFORM leader_election.renew('wrapped', 1);
		END \$\$" ];
	});
$pair->cancel($caller);
is( ($observer->lease('wrapped', "deadline_mono - $frozen <= $LEASE"))[0],
	't', 'wrapped: not for longer than the standby knows (G6)');
$pair->resume_line;
$pair->delay_line(0);

#
# A seat that was given up in the same transaction is known to no standby, either.
#

is($caller->query("SELECT term FROM leader_election.acquire('given up', 'caller')"), '', 'given up: is made');
wait_until(
	sub { $caller->query("SELECT term FROM leader_election.acquire('given up', 'caller')") eq 1 },
	'given up: leads');
is( $caller->query("SELECT leader_election.release('given up', 1),
		(SELECT count(*) FROM leader_election.acquire('given up', 'caller'))"),
	't|0', 'given up: not granted again in the same statement (G6)');
is($caller->query("SELECT term FROM leader_election.acquire('given up', 'caller')"),
	2, 'given up: but in the next');

#
# A candidate that leads nothing leaves without a wait for the standby, although somebody
# could be elected.
#

{
	my $stays = session($old, name => 'stays');

	$observer->query("SELECT leader_election.create_election('left')");
	$pair->stop_line;
	refused($other, "SELECT leader_election.join('left', 'other')", '00000', 'left: one stands');
	refused($stays, "SELECT leader_election.join('left', 'stays')", '00000', 'left: another one');
	$other->query_async("SELECT leader_election.leave('left')");
	wait_until(
		sub { $other->finished || $pair->wait_event($other->backend_pid) eq 'SyncRep' },
		'the end of leave()');
	ok($other->finished, 'left: has nothing to wait for');
	is($other->finished ? $other->result : $pair->cancel($other), 't', 'left: one leaves');
	is(($observer->lease('left', 'term'))[0], 0, 'left: nobody is elected without a proof (G6)');
	$pair->resume_line;
	wait_for($old, "SELECT leader_election.leader('left')", 'stays');
	$stays->finish;
}

#
# A proof gets too old while the row is locked: the lease counts from another one. The
# caller waits for a second at most: where the machine was slower than that, once more.
#

{
	my $brief = 1_500_000;
	my $locker = session($old, name => 'locker');

	$observer->query("SELECT leader_election.create_election('old', lease_duration => '${brief}us')");
	foreach my $attempt (1 .. 10)
	{
		$locker->query("BEGIN; SELECT FROM leader_election.lease WHERE election = 'old' FOR UPDATE");
		my $from = $pair->clock;
		$caller->query_async("SELECT term FROM leader_election.acquire('old', 'caller')");
		wait_until(sub { $pair->clock > $from + $brief / 2 }, 'the proof to be old');
		my $freed = $pair->clock;
		$locker->query('ROLLBACK');
		my $term = $caller->result;
		my ($acquired) = $term eq '' ? () : $observer->lease('old', "acquired_mono, 1 / (term = $term AND leader IS NOT NULL)::int");
		if (defined $acquired)
		{
			cmp_ok($acquired, '>=', $freed - $brief * 2 / 5, 'old: the lease counts from a proof that is not old');
			last;
		}
		isnt($attempt, 10, 'old: granted');
	}

	# The worker tries again to renew a lease whose row is locked, but not all the time.
	$observer->query("SELECT leader_election.create_election('kept', lease_duration => '12 s')");
	is($holder->query("SELECT leader_election.join('kept', 'holder')") ne '', 1, 'kept: a leader');
	$locker->query("BEGIN; SELECT FROM leader_election.lease WHERE election = 'kept' FOR UPDATE");
	wait_for($old, "SELECT leader_election._monotonic_clock() > deadline_mono - 8000000 FROM leader_election.lease WHERE election = 'kept'");
	cmp_ok(transactions_in($observer, 3), '<', 1000, 'kept: the worker makes no transaction after another');
	$locker->query('ROLLBACK');
	$holder->query("SELECT leader_election.leave('kept')");

	# Nor is the next leader's lease granted on it, where the present one gives up.
	$observer->query("SELECT leader_election.create_election('given', lease_duration => '${brief}us')");
	foreach my $attempt (1 .. 10)
	{
		wait_until(
			sub {
				$other->query("SELECT leader_election.leave('given')");
				return $holder->query("SELECT leader_election.join('given', 'holder')") ne '';
			},
			'a leader');
		$other->query("SELECT leader_election.join('given', 'other')");
		$locker->query("BEGIN; SELECT FROM leader_election.history WHERE election = 'given' FOR UPDATE");
		my $from = $pair->clock;
		$holder->query_async("SELECT leader_election.resign('given')");
		wait_until(sub { $pair->clock > $from + $brief / 2 }, 'the proof to be old');
		my $freed = $pair->clock;
		$locker->query('ROLLBACK');
		if ($holder->result eq 't')
		{
			wait_for($old, "SELECT leader_election.leader('given')", 'other');
			cmp_ok(($observer->lease('given', 'acquired_mono'))[0], '>=', $freed - $brief * 2 / 5,
				'given up: the next lease counts from a proof that is not old');
			last;
		}
		isnt($attempt, 10, 'given up: it was');
	}
	$_->query("SELECT leader_election.leave('given')") foreach $holder, $other;
	$locker->finish;
}

#
# In a copy of a database, a detached leader goes on once the standby knows of the new
# epoch, and by no settings that it does not know.
#

{
	$observer->query('CREATE DATABASE origin');
	$old->safe_psql('origin', 'CREATE EXTENSION leader_election');
	my $origin = session($old, name => 'origin', dbname => 'origin');
	foreach my $election (qw(held paused))
	{
		$origin->query("SELECT leader_election.create_election('$election', lease_duration => '1 h')");
		is($origin->acquire($election, 'x'), 1, "$election: led");
	}
	$origin->finish;
	wait_for($old, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = 'origin'", 0);
	$observer->query('CREATE DATABASE copied TEMPLATE origin');
	my $copied = session($old, name => 'copied', dbname => 'copied');
	cmp_ok(query_unless_busy($copied, "SELECT term FROM leader_election.renew('held', 1)"), '>', 1,
		'held: led on in the copy');
	is( $copied->sqlstate_of(q{DO $$ BEGIN
			PERFORM leader_election.pause_election('paused');
			PERFORM leader_election.renew('paused', 1);
		END $$}),
		'55P03', 'paused: not in the transaction that pauses it (G6)');
	is($copied->query("SELECT term FROM leader_election.lease WHERE election = 'paused'"), 1, 'paused: nothing has changed');
	cmp_ok(query_unless_busy($copied, "SELECT term FROM leader_election.renew('paused', 1)"), '>', 1,
		'paused: but in one of its own');
	$copied->finish;
}

#
# Standbys that are configured between the proof and the grant have not been
# asked. The commit would wait for them, but that can be cut short. The caller may
# have waited for the lock for too long when they are: then once more.
#

my $writer = session($old, name => 'writer');
foreach my $attempt (1 .. 5)
{
	my $waited;

	$pair->be_synchronous('');
	proven_before(
		"alter_election('configured')",
		"SELECT term FROM leader_election.acquire('configured', 'caller')",
		0,
		sub {
			$pair->stop_line;
			$old->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
			$old->reload;

			# Commits wait once the checkpointer has read it.
			wait_until(
				sub {
					$writer->query_async("SELECT pg_logical_emit_message(true, '', '')");
					wait_until(
						sub {
							$writer->finished
							  || $pair->wait_event($writer->backend_pid) eq 'SyncRep';
						},
						'a write');
					return 1 if !$writer->finished;
					$writer->result;
					return 0;
				},
				'the setting');
			$waited = !$caller->finished;
		});
	is_refused($caller, '55P03', "configured: not yet proven, $attempt");
	$pair->cancel($writer);
	$pair->resume_line;
	last if $waited;
	isnt($attempt, 5, 'configured: the caller has waited');
}
is(($observer->lease('configured', 'term = 0 AND leader IS NULL'))[0],
	't', 'configured: nothing is granted without a proof (G6)');
wait_for($old, "SELECT sync_state FROM pg_stat_replication", 'sync');
wait_until(
	sub {
		$caller->query("SELECT remaining_ms > 50000
			FROM leader_election.acquire('configured', 'caller')") ne '';
	},
	'configured: granted once it is proven');

#
# A detached leader's lease has run out, and the standby does not know that its
# term was ended. It could renew on the other side: nobody follows on this one.
# The worker is stopped meanwhile, so that the end is the caller's to write.
#
# Just before, a lease is shortened.
#

my $leader = session($old, name => 'leader');
my $on_new = session($new, name => 'on the standby');
my $heir_on_new = session($new, name => 'heir on the standby');

$observer->query(
	"SELECT leader_election.create_election(e, lease_duration => '${LONGER}us')
	FROM (VALUES ('shortened'), ('shortened, vacant')) v (e)");
is($leader->query("SELECT leader_election.join('shortened', 'leader', auto_renew => false)"),
	1, 'shortened: leads');
$observer->query(
	"SELECT leader_election.alter_election(e, lease_duration => '200ms')
	FROM (VALUES ('shortened'), ('shortened, vacant')) v (e)");
my @ended = map { "ended $_" } 1 .. 5;    # the last for another purpose
$observer->query("SELECT leader_election.create_election('$_')") foreach @ended;
foreach my $election (@ended)
{
	is($other->query("SELECT term FROM leader_election.acquire('$election', 'other')"),
		1, "$election: leads");
}
my $worker = stop_worker($observer);
wait_for($old, "SELECT bool_and(deadline_mono < leader_election._monotonic_clock())
	FROM leader_election.lease WHERE election LIKE 'ended%'");
is( $observer->query("SELECT leader_election.renew('ended 1', 1)"),
	'', 'ended: the lease has run out');

# By somebody who proved that before the term was ended ...
proven_before(
	"acquire('ended 5', 'holder')",
	"SELECT term FROM leader_election.acquire('ended 5', 'caller')",
	1, sub { $pair->stop_line });
is_refused($caller, '55P03', 'ended: by a proof from before');
is(($observer->lease('ended 5', 'term, leader IS NULL'))[1], 't', 'ended: the seat is vacant');
$pair->resume_line;

# ... or who ends it.

my $election;
$frozen = $pair->catch_at_commit(
	sub {
		$election = $_[0] < 5 ? $ended[ $_[0] - 1 ] : die 'no election is left';
		return [ $caller, "SELECT * FROM leader_election.acquire('$election', 'caller')" ];
	});
is($pair->cancel($caller), '', 'ended: is not granted at once (G6)');
is(($observer->lease($election, 'term, leader IS NULL'))[1], 't', 'ended: the term is over');
my ($shortened) = $observer->lease('shortened', 'deadline_mono');
my $before = $observer->query('SELECT max(term), count(*) FROM leader_election.history');

resume_process($worker);
foreach my $name (qw(caller passer-by))
{
	refused($caller,
		"SELECT * FROM leader_election.acquire('$election', '$name')",
		'55P03', "ended: acquire() of $name");
}
refused($holder, "SELECT leader_election.join('$election', 'holder')",
	'00000', 'ended: join()');
refused($holder, "CALL leader_election.campaign('$election', 'holder', '100ms')",
	'00000', 'ended: campaign()');

# Where the receiver was frozen, and goes on without a primary
{
	my $pid = $on_new->query(
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'");

	stop_process($pid);
	$pair->cut_line;
	resume_process($pid);
}
$new->promote;
wait_until(
	sub {
		$on_new->query("SELECT leader_election.join('shortened', 'new'),
			leader_election.join('shortened, vacant', 'new')");
		return $on_new->query('SELECT count(*) FROM leader_election.epoch') eq '2';
	},
	'the epoch');
my $term;
wait_until(
	sub {
		$term = $heir_on_new->query(
			"SELECT term FROM leader_election.renew('$election', 1)");
		return $heir_on_new->sqlstate eq '00000';
	},
	'an answer');
cmp_ok($term, '>', 1, 'ended: leads on, on the other side');
is($heir_on_new->query("SELECT leader_election.is_leader('$election', $term)"),
	't', 'ended: is_leader()');
refused($caller,
	"SELECT * FROM leader_election.acquire('$election', 'caller')",
	'55P03', 'ended: nobody follows on this side');
is( $observer->query('SELECT max(term), count(*) FROM leader_election.history'),
	$before, 'ended: nobody was elected on this side (G6)');

wait_for($new, "SELECT leader_election.leader('shortened')", 'new');
my ($acquired, $first_seen) = split /\|/, $on_new->query(
	"SELECT acquired_mono, (SELECT max(first_seen_mono) FROM leader_election.epoch)
	FROM leader_election.lease WHERE election = 'shortened'");
cmp_ok($acquired, '>=', $first_seen + $LONGER,
	'shortened: nobody is elected in the longer grace (G6)');
cmp_ok($acquired, '>=', $shortened,
	'shortened: nor while the old side may have a leader (G6)');

#
# The old primary is stopped, with commits, a campaign and calls that wait.
#

$pair->{observer} = $observer;
$holder->query_async("CALL leader_election.campaign('altered', 'holder')");
$leader->query_async("SELECT leader_election.join('new election', 'leader')");
$caller->query_async("SELECT leader_election.create_election('another')");
foreach my $session ($leader, $caller)
{
	wait_until(
		sub { $pair->wait_event($session->backend_pid) eq 'SyncRep' },
		'a commit to wait for the standby');
}
wait_until(sub { $pair->worker_pid ne '' }, 'a worker');
my $start = machine_time();
$old->stop('fast');
cmp_ok(machine_time() - $start, '<', 30, 'a fast stop is not held up (G9)');
$_->result foreach $holder, $leader, $caller;
is($_->sqlstate, '08006', "$_->{name}: its session has ended")
  foreach $holder, $leader, $caller;

done_testing();
