# What must cost nothing, and what must not be used up: is_leader(), losing
# attempts and vain waits write nothing; a full lock table, missing worker
# slots and locked tables are errors or warnings, and nothing stays behind.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use Announced;
use LeaderElection;
use Test::More;

# Nothing but the sessions and the worker writes to this server's WAL.
my $node = new_server(
	config => q(
max_connections = 20
max_locks_per_transaction = 10
max_pred_locks_per_transaction = 10
wal_level = minimal
max_wal_senders = 0
autovacuum = off
checkpoint_timeout = 1h
));
my $quiet = '-c client_min_messages=warning';
my $observer = session($node, name => 'observer', options => $quiet);
my $one = session($node, name => 'one', options => $quiet);
my $two = session($node, name => 'two', options => $quiet);

# The versions of our rows, none of which is replaced or locked, and the end of
# the WAL. (The candidates' table is unlogged. Reading prunes pages, so that it
# comes first.)
sub written
{
	return $observer->query(
		q{SELECT ctid, xmin, xmax, election FROM leader_election.lease ORDER BY election;
		  SELECT ctid, xmin, xmax, election FROM leader_election.candidate ORDER BY election;
		  SELECT pg_current_wal_insert_lsn()});
}

# Leases that nobody renews, so that the worker writes nothing either. They
# are made long and short here.
sub set_lease
{
	my ($election, $duration) = @_;

	$observer->query(
		"UPDATE leader_election.election SET lease_duration = '$duration' WHERE election = '$election'");
	return;
}

foreach my $election (qw(long short))
{
	$one->query("SELECT leader_election.join('$election', 'one')");
	$one->query("SELECT leader_election.leave('$election')");
}
set_lease('long', '1 hour');
set_lease('short', '5 s');

#
# is_leader() and term()
#

is($one->query("CALL leader_election.campaign('long', 'one', auto_renew => false)"),
	'2', 'leads');
is($two->query("SELECT leader_election.join('long', 'two')"), '', 'follows');

# Planning reads the system's tables, and reading a page may prune it.  The script
# of the extension has left something to prune among the functions.
$observer->query('VACUUM pg_proc');
$_->query(
	q{SELECT leader_election.is_leader('long'), count(*),
			 pg_current_xact_id_if_assigned() IS NULL
		FROM generate_series(1, 1) WHERE leader_election.is_leader('long') = true})
  for $one, $two;
wait_told($node);
written();
my $before = written();

foreach my $leads ([ $one, 't' ], [ $two, 'f' ])
{
	my ($session, $expected) = @$leads;

	foreach my $begin (
		'BEGIN',
		'BEGIN READ ONLY',
		'BEGIN ISOLATION LEVEL REPEATABLE READ',
		'BEGIN ISOLATION LEVEL SERIALIZABLE')
	{
		$session->query($begin);
		is( $session->query(
				q{SELECT leader_election.is_leader('long'), count(*),
						 pg_current_xact_id_if_assigned() IS NULL
					FROM generate_series(1, 10000)
				   WHERE leader_election.is_leader('long') = }
				  . ($expected eq 't' ? 'true' : 'false')),
			"$expected|10000|t",
			"$session->{name}, $begin: 10,000 calls and no xid");
		$session->query('COMMIT');
	}
}
is(written(), $before, 'is_leader() has written nothing (G9)');

# The row is read anew all the time in the last third of the lease.
is( $one->query(
		"CALL leader_election.campaign('short', 'one', auto_renew => false)"),
	'2',
	'leads');

wait_told($node);
$one->query(q{
	CREATE FUNCTION pg_temp.lead() RETURNS text LANGUAGE plpgsql AS $$
	DECLARE
		calls bigint := 0;
		before pg_lsn := pg_current_wal_insert_lsn();
		now pg_lsn;
		last pg_lsn;
	BEGIN
		LOOP
			-- What comes after the lease does not count: others write then.
			now := pg_current_wal_insert_lsn();
			EXIT WHEN NOT leader_election.is_leader('short');
			calls := calls + 1;
			last := now;
		END LOOP;
		RETURN (calls > 0) || ' ' || (last = before) || ' ' ||
			(pg_current_xact_id_if_assigned() IS NULL);
	END
	$$});
is($one->query('SELECT pg_temp.lead()'),
	'true true true', 'nor does it to the very end of a lease');
wait_for($node,
	"SELECT ended_at IS NOT NULL FROM leader_election.history WHERE election = 'short' AND term = 2");
is($one->query("SELECT leader_election.leave('short')"), 't', 'left');

#
# Losing
#

wait_told($node);
$before = written();
is( $two->query(
		q{SELECT leader_election.join('long', 'two'), pg_current_xact_id_if_assigned() IS NULL}),
	'|t',
	'a losing join() takes no xid');
is( $two->query(
		q{SELECT count(*), count(leader_election.join('long', 'two')),
				 bool_and(pg_current_xact_id_if_assigned() IS NULL)
			FROM generate_series(1, 1000)}),
	'1000|0|t',
	'a thousand of them neither');
is( $two->query(
		q{SELECT leader_election.join('long', 'two', 0, 0, NULL, true),
				 pg_current_xact_id_if_assigned() IS NULL}),
	'|t',
	'nor one that says what is known already');
is($two->query("CALL leader_election.campaign('long', 'two', '200 ms')"),
	'', 'a losing campaign');
is(written(), $before, 'losing has written nothing (oban#651, G9)');

# Where nobody can be elected for now, nobody keeps on trying: neither during
# a hold nor without a quorum, nor if the only candidate sits out.
sub xids_in_a_second
{
	my $xmax = 'pg_snapshot_xmax(pg_current_snapshot())::text::bigint';

	return $observer->query("SELECT $xmax AS before, pg_sleep(1) \\gset\nSELECT $xmax - :before");
}

$two->query("SELECT leader_election.leave('long')");
is($one->query("SELECT leader_election.resign('long', '1 hour')"), 't', 'hold');
cmp_ok(xids_in_a_second(), '<', 5, 'no attempts during a hold');
$one->query("SELECT leader_election.leave('long')");
$one->query("SELECT leader_election.join('alone', 'one')");
is($one->query("SELECT leader_election.resign('alone')"), 't', 'sits out alone');
cmp_ok(xids_in_a_second(), '<', 5, 'no attempts while all sit out');
$observer->query(
	"UPDATE leader_election.election SET quorum = 2 WHERE election = 'alone'");
$one->query("SELECT leader_election.leave('alone')");
is($one->query("SELECT leader_election.join('alone', 'one')"), '', 'no quorum');
cmp_ok(xids_in_a_second(), '<', 5, 'no attempts without a quorum');
is($two->query("SELECT leader_election.join('alone', 'two')"),
	'', 'a quorum: the candidate that stood longer is elected');
wait_for($node, "SELECT leader_election.leader('alone') = 'one'");
$_->query('SELECT leader_election.leave_all()') for $one, $two;

#
# Heartbeats: what a session leads is renewed together, and not more often than
# after a quarter of the lease.
#

my $beats = q{SELECT pg_snapshot_xmax(pg_current_snapshot()), leader_election._monotonic_clock()};

$observer->query(
	q{SELECT count(leader_election.create_election('beat ' || i, lease_duration => '2 s'))
		FROM generate_series(1, 100) i});
is( $one->query(q{SELECT count(leader_election.join('beat ' || i, 'one')) FROM generate_series(1, 100) i}),
	'100',
	'leads a hundred');
is( $two->query(q{SELECT count(leader_election.join('beat ' || i, 'two')) FROM generate_series(1, 100) i}),
	'0',
	'another follows in all of them');
my ($xids, $since) = split /\|/, $observer->query($beats);
wait_for($node,
	"SELECT min(deadline_mono) - $since > 4000000 FROM leader_election.lease WHERE election LIKE 'beat %'");
my ($more_xids, $until) = split /\|/, $observer->query($beats);
cmp_ok(
	$more_xids - $xids,
	'<',
	100 / 10 * ($until - $since) / 500_000,
	'a hundred renewals are a few transactions (oban#651)');
is( $one->query(
		q{SELECT count(*) FROM generate_series(1, 100) i WHERE leader_election.term('beat ' || i) = 1}),
	'100',
	'and lose none');
$_->query('SELECT leader_election.leave_all()') for $one, $two;

#
# All connections are taken, and the leader is busy: that is no reason not to
# renew its lease.
#

{
	my @taken;

	set_lease('short', '2 s');
	$one->query("CALL leader_election.campaign('short', 'one')");
	my ($term, $deadline) = split /\|/, $observer->query(
		"SELECT term, deadline_mono FROM leader_election.lease WHERE election = 'short'");
	is($two->query("SELECT leader_election.join('short', 'two')"), '', 'another waits');
	1 while eval { push @taken, session($node, name => 'taken') };
	like($@, qr/too many clients|remaining connection slots/, 'there is no connection left');
	is( $one->query(
			qq{DO \$\$ BEGIN
				WHILE leader_election._monotonic_clock() - $deadline < 1000000 LOOP END LOOP;
			END \$\$;
			SELECT leader_election.term('short')}),
		$term,
		'the leader of a long statement leads on (quartz#782)');
	is($two->query("SELECT leader_election.is_leader('short')"), 'f', 'alone');
	$_->finish for @taken;
	$_->query('SELECT leader_election.leave_all()') for $one, $two;
}

#
# Observers do not wait for a locked table for ever.
#

$one->query("SELECT leader_election.join('watched', 'one')");
$two->query($_) for 'BEGIN', 'LOCK TABLE leader_election.lease';
foreach my $call (
	"SELECT leader_election.leader('watched')",
	"SELECT count(*) FROM leader_election.status",
	"SELECT count(*) FROM leader_election.candidates",
	"CALL leader_election.wait_for_change('watched', NULL, NULL, '10 ms')")
{
	$observer->query("SET statement_timeout = '4 s'");
	isnt($observer->sqlstate_of($call), '57014', "it ends by itself: $call (G9)");
	$observer->query('RESET statement_timeout');
}
$two->query('ROLLBACK');
wait_for($node, "SELECT leader_election.leader('watched') = 'one'");
$one->query('SELECT leader_election.leave_all()');

#
# The lock table is full.
#

# What a session holds locked, apart from its own session lock
my $LOCKS = q{SELECT count(*) FROM pg_locks
	WHERE pid = %d AND locktype <> 'virtualxid' AND objsubid IS DISTINCT FROM 20};
my $SESSION_LOCKS = q{SELECT count(*) FROM pg_locks
	WHERE pid = %d AND locktype = 'advisory' AND objsubid = 20};
my $TOO_MANY = q{SELECT count(leader_election.join('flood ' || i, 'one'))
	FROM generate_series(1, 20000) i};

sub locks_of
{
	my ($session, $sql) = @_;

	return $observer->query(sprintf($sql, $session->backend_pid));
}

is($two->query("SELECT leader_election.join('safe', 'two')"), '1', 'another leads elsewhere');
is( $one->sqlstate_of($TOO_MANY),
	'53200', 'thousands of elections in one statement');
like($one->errors, qr/HINT/, 'with a hint');
is(locks_of($one, $LOCKS), '0', 'nothing stays locked');
is(locks_of($one, $SESSION_LOCKS), '0', 'not even the session');
is( $observer->query(
		q{SELECT count(*) FROM leader_election.election WHERE election LIKE 'flood%'}),
	'0',
	'nothing of it happened');
is($two->query("SELECT leader_election.term('safe')"), '1', 'the other leads on');
is($one->query("SELECT leader_election.join('usable', 'one')"), '1', 'the session is usable');
is( $one->sqlstate_of($TOO_MANY),
	'53200', 'the same with a candidacy');
is($one->query("SELECT leader_election.term('usable')"), '1', 'which stands');
is(locks_of($one, $LOCKS), '0', 'nothing stays locked');
is(locks_of($one, $SESSION_LOCKS), '1', 'but the session');
is( $one->query(
		q{SELECT count(leader_election.join('flood ' || i, 'one')) FROM generate_series(1, 100) i}),
	'100',
	'fewer of them are no problem');
is( $one->query('SELECT leader_election.leave_all()'), '101', 'nor is leaving them');

# Somebody else fills it, while this session has neither a fresh view of its
# lease nor locks to spare: is_leader() is false then, and never an error.
is($one->query("CALL leader_election.campaign('usable', 'one')"), '2', 'leads');
$one->query('BEGIN');
$one->query("SELECT count(*) FROM pg_catalog.$_")
  for qw(pg_aggregate pg_am pg_amop pg_amproc pg_attrdef pg_cast pg_collation
  pg_constraint pg_conversion pg_database pg_depend pg_description pg_enum
  pg_event_trigger pg_extension pg_index pg_inherits pg_language pg_opclass);
is($two->query("SELECT leader_election.join('elsewhere', 'two')"),
	'1', 'somebody else is elected elsewhere');
wait_for($node, 'SELECT count(*) FROM pg_lock_status() WHERE objsubid = 27', '22');
$observer->query('BEGIN');
my $FILL = q{
	DO $$
	DECLARE
		n bigint := 0;
	BEGIN
		LOOP
			BEGIN
				PERFORM pg_advisory_xact_lock(n);
				n := n + 1;
			EXCEPTION WHEN out_of_memory THEN
				EXIT;
			END;
		END LOOP;
	END
	$$};
$observer->query($FILL);
is($observer->sqlstate, '00000', 'the lock table is full');
is($two->query("SELECT leader_election.join('some room', 'two')"),
	'1', 'but for what the worker has kept');
$observer->query($FILL);
is($observer->sqlstate, '00000', 'which is taken, too');
is($two->sqlstate_of("SELECT leader_election.join('no room', 'two')"),
	'53200', 'join() is an error');
# Others may have given back what they had locked a moment ago.
$observer->query($FILL);
is($two->sqlstate_of("SELECT leader_election.create_group('no room', 1)"),
	'53200', 'so is a call that queues for no lock');
like($two->errors, qr/^ERROR:  no room in the lock table for election "no room"/m, 'which says so');
$observer->query($FILL);
is($two->query("CALL leader_election.campaign('no room', 'two', '100 ms')"), '', 'campaign() waits');
is(locks_of($two, $LOCKS), '0', 'nothing stays locked');
is($one->query("SELECT leader_election.is_leader('usable')"), 'f', 'is_leader() is false');
is($one->sqlstate, '00000', 'and not an error');
$one->query('ROLLBACK');
$observer->query('ROLLBACK');
is($one->query("SELECT leader_election.term('usable')"), '2', 'it leads still');
is($two->query("SELECT leader_election.term('safe')"), '1', 'so does the other');
is($one->query("SELECT leader_election.join('no room', 'one')"), '1', 'there is room again');
$_->query('SELECT leader_election.leave_all()') for $one, $two;
$_->finish for $one, $two, $observer;

#
# No worker can be started.
#

$node->append_conf('postgresql.conf', "max_worker_processes = 1\n");
$node->restart;
wait_for($node,
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'logical replication launcher'});
$one = session($node, name => 'one');
$two = session($node, name => 'two');
is($one->query("SELECT leader_election.join('no worker', 'one')"), '1', 'elected all the same');
is($one->sqlstate, '00000', 'which is no error');
like(
	$one->errors,
	qr/WARNING:.*worker.*max_worker_processes/s,
	'but a warning that says what to do');
is($one->query("SELECT leader_election.is_leader('no worker')"), 't', 'leads');
$one->kill;
wait_for($node, "SELECT leader_election.leader('no worker') IS NULL");
is($two->query("SELECT leader_election.join('no worker', 'two')"), '2', 'the next candidate that calls is elected (G7)');
is($two->query('SELECT leader_election.leave_all()'), '1', 'and may leave');
is( $two->query(
		q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}),
	'0',
	'nothing stays locked');
$node->stop;

#
# The queue of notifications is full: a client of another database listens and
# does not come round to reading. Elections go on, and listeners are told of all
# of it once it does.
#

SKIP:
{
	skip 'before 17 the queue takes 8 GB', 12 if $node->pg_version < 17;

	$node = new_server(name => 'full', config => "max_notify_queue_pages = 64\nmax_prepared_transactions = 1");
	$observer = session($node, name => 'observer', options => $quiet);
	$observer->query('CREATE DATABASE other');
	$one = session($node, name => 'one', options => $quiet);
	$two = session($node, name => 'two', options => $quiet);
	my $listener = Announced->new($node);
	$one->query("SELECT leader_election.join('unheard', 'one')");
	$two->query("SELECT leader_election.join('unheard', 'two')");
	$listener->fence;

	my $idle = session($node, name => 'idle', dbname => 'other');
	my $talker = session($node, name => 'talker', dbname => 'other');
	my $talk = "SELECT pg_notify('talk', repeat('x', 7900)), pg_notify('talk', repeat('y', 7900))";
	my $is_full = sub { return $talker->sqlstate_of($talk) eq '54000'; };
	$idle->query('LISTEN talk; BEGIN; SELECT');
	wait_until($is_full, 'a full queue');

	is($one->query("SELECT leader_election.resign('unheard')"),
		't', 'full queue: a leader can resign');
	is($one->errors, '', 'without a warning');
	is($two->query("SELECT leader_election.term('unheard')"), '2', 'the next one leads');
	$two->kill;
	wait_for($node, "SELECT leader_election.leader('unheard')", 'one');
	pass('the worker elects, too');
	ok($is_full->(), 'it is full still');

	# It is not looked for all the time.
	cmp_ok(xids_in_a_second(), '<', 50, 'the worker waits for room');

	my $term = $one->query("SELECT term FROM leader_election.acquire('gone', 'x')");
	$one->query("SELECT leader_election.release('gone', $term);
		BEGIN; SELECT leader_election.drop_election('gone')");
	is($one->sqlstate_of("PREPARE TRANSACTION 'p'"), '0A000', 'no change is prepared');
	is($one->query("SELECT count(*) FROM leader_election.status WHERE election = 'gone'"),
		'1', 'and none is made');
	is($one->query("SELECT leader_election.leave('unheard')"), 't', 'and leave');
	is(scalar $listener->told('^unheard$'), 1, 'nobody was told of anything');

	$idle->query('ROLLBACK');
	$listener->all_told_ok('^(unheard|gone)$', 'no longer full');
	is(($listener->events('unheard'))[-1], 'vacated 3, one left', 'to the last');
}

done_testing();
