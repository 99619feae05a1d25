# No background worker can be had: parallel queries of other roles hold all
# slots, or the server has none at all.  Candidates' own calls do then what the
# worker would do: they renew, elect and, on a server that was promoted, begin
# the epoch in which somebody can be elected.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

# In microseconds; a slow machine calls less often.
my $LEASE = 1_000_000 * slowness();
my $QUIET = '-c client_min_messages=error';

# -- Parallel queries of a role with CONNECT alone hold all slots.

{
	my $node = new_server(
		name => 'parallel',
		config => qq(
leader_election.lease_duration = '${LEASE}us'
leader_election.worker_idle_timeout = 0
max_worker_processes = 5
max_parallel_workers = 5
));
	$node->safe_psql('postgres', 'CREATE ROLE hog LOGIN');
	my @hogs = map { session($node, name => 'hog', user => 'hog') } 1 .. 3;
	my ($one, $two, $observer) =
	  map { session($node, name => $_, options => $QUIET) } qw(one two observer);

	foreach my $hog (@hogs)
	{
		$hog->query("SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
			SET min_parallel_table_scan_size = 0; SET max_parallel_workers_per_gather = 4;
			SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off");
		$hog->query_async('SELECT pg_sleep(300) FROM pg_class');
	}
	wait_for($node,
		q{SELECT count(*) FROM pg_stat_activity
		   WHERE backend_type IN ('parallel worker', 'logical replication launcher')}, 5);

	# Another session, whose first call warns
	my $warned = session($node, name => 'warned');
	is($warned->query("SELECT leader_election.join('warning', 'w')"), '1', 'elected');
	like(
		$warned->errors,
		qr/WARNING:.*no\ free\ background\ worker\ slot.*
			DETAIL:.*candidates\ renew\ leases\ and\ elect\ by\ their\ own\ calls\ only.*
			HINT:.*parallel\ queries/sx,
		'the warning says what is so');

	# Calls renew a lease in its second half. This one is so long that a pause between two
	# calls does not end it.
	my $looped = 3 * $LEASE;
	$one->query("SELECT leader_election.create_election('looped', lease_duration => '${looped}us')");
	is($one->query("SELECT leader_election.join('looped', 'one')"), '1', 'leads');
	my $start = $observer->query(
		"SELECT deadline_mono FROM leader_election.lease WHERE election = 'looped'");
	my ($calls, $lost, $others) = (0, 0, 0);
	wait_until(
		sub {
			my $term = $one->query("SELECT leader_election.join('looped', 'one')");

			$calls++;
			$lost++
			  if $term ne '1'
			  || $one->query("SELECT leader_election.is_leader('looped')") ne 't';
			$others++
			  if $two->query("SELECT leader_election.join('looped', 'two')") ne '';
			return $lost || $others || $observer->query(
				"SELECT deadline_mono - $start > 2 * $looped FROM leader_election.lease WHERE election = 'looped'"
			) eq 't';
		},
		'two leases');
	is("$lost $others", '0 0', "a loop over join() keeps the lease ($calls calls) (G7)");
	is($observer->query($NO_WORKER), 't', 'without any worker');
	is($observer->query("SELECT count(*) FROM leader_election.history WHERE election = 'looped'"),
		'1', 'in one term');

	# Nobody renews against what the leader has said, or was asked for.
	my $manual = session($node, name => 'manual', options => $QUIET);
	is( $manual->query("SELECT leader_election.join('manual', 'm', auto_renew => false)"),
		'1', 'a leader that renews itself');
	is($manual->query("SELECT leader_election.join('yields', 'm')"), '1', 'another');
	my $before = $observer->query(
		q{SELECT string_agg(deadline_mono::text, ' ' ORDER BY election)
			FROM leader_election.lease WHERE election IN ('manual', 'yields')});
	$observer->query("SELECT leader_election.request_yield('yields')");
	wait_until(
		sub {
			$manual->query(
				"SELECT leader_election.join('manual', 'm'), leader_election.join('yields', 'm')");
			return $manual->query(
				"SELECT leader_election.is_leader('manual') OR leader_election.is_leader('yields')") eq 'f'
			  || $observer->query(
				"SELECT count(*) FROM leader_election.history WHERE election IN ('manual', 'yields') AND ended_at IS NOT NULL"
			  ) eq '2';
		},
		'the end of both leases');
	is( $observer->query(
			"SELECT min(_monotonic_clock) >= (SELECT max(d::bigint) FROM unnest(string_to_array('$before', ' ')) d) FROM leader_election._monotonic_clock()"
		),
		't',
		'no call has renewed these');

	# Once the deadline has passed, another may lead elsewhere: the term is over.
	my $late = session($node, name => 'late', options => $QUIET);
	is($late->query("SELECT leader_election.join('late', 'l')"), '1', 'leads, and calls no more');
	wait_until(
		sub { $late->query("SELECT leader_election.is_leader('late')") eq 'f' },
		'the end of its lease');
	is($late->query("SELECT leader_election.join('late', 'l')"),
		'2', 'after the deadline, join() renews nothing (G3)');
	is( $observer->query(
			"SELECT reason FROM leader_election.history WHERE election = 'late' AND term = 1"),
		'expired',
		'the term has ended');

	$_->kill for @hogs;
	$node->stop('immediate');
}

# -- A server without any slot is promoted.

# The lease of 'detached' lasts until it is promoted; a grace of the other's is waited for.
my $GRACE = 10 * slowness();
my %no_slots = (
	streaming => 1,
	config => qq(
leader_election.lease_duration = '$GRACE s'
max_worker_processes = 0
max_parallel_workers = 0
max_prepared_transactions = 1
client_min_messages = error
));

my $primary = new_server(name => 'primary', %no_slots);
$primary->safe_psql('postgres',
	"SELECT leader_election.create_election('detached', lease_duration => '1 h')");
my $term = $primary->safe_psql('postgres',
	"SELECT term FROM leader_election.acquire('detached', 'd')");
is($term, '1', 'a detached leader');

$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
$term = $primary->safe_psql('postgres',
	"SELECT term FROM leader_election.renew('detached', $term)");
$primary->wait_for_catchup($standby);
$primary->stop('immediate');
$standby->promote;

# While others have locked what an epoch writes, or are beginning it, none begins, and
# nobody is elected.
{
	my %s = map { $_ => session($standby, name => $_) } qw(caller locker gate);
	my $call = q{SELECT term FROM leader_election.acquire('detached', 'd')};
	my $epochs = 'SELECT count(*) FROM leader_election.epoch';

	foreach my $lock ('LOCK TABLE leader_election.dropped', 'SELECT FROM leader_election.candidate FOR UPDATE')
	{
		$s{locker}->query("BEGIN; $lock");
		is($s{caller}->query($call), '', "nobody leads: $lock");
		is($s{caller}->sqlstate, '00000', 'which is no error');
		is($s{caller}->query($epochs), 1, 'no epoch begins');
		$s{locker}->query('ROLLBACK');
		is($s{caller}->query("SELECT count(*) FROM leader_election.candidate WHERE election = 'detached'"),
			1, 'the candidate stands');
	}
	$s{gate}->query('SELECT pg_advisory_lock(1)');
	$s{locker}->query_async(q{DO $$ BEGIN
		PERFORM leader_election.acquire('detached', 'another');
		PERFORM pg_advisory_xact_lock_shared(1);
		RAISE EXCEPTION 'undone';
	END $$});
	wait_for($standby, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND NOT granted}, 1);
	is($s{caller}->query(q{SELECT leader_election.join('detached', 'another')}), '', 'nobody leads: it is begun elsewhere');
	is($s{caller}->sqlstate, '00000', 'which is no error');
	$s{gate}->query('SELECT pg_advisory_unlock(1)');
	$s{locker}->result;
	is($s{caller}->query($epochs), 1, 'that is undone: no epoch has begun');
	$_->finish foreach values %s;
}

# Its loop, alone: renew() and, if that says so, acquire() by the same name
{
	my $loop = session($standby, name => 'loop');
	my $observer = session($standby, name => 'observer');
	my @answers;
	my $hint = '';

	is( $observer->query(
			"SELECT state, waiting_for FROM leader_election.status WHERE election = 'detached'"),
		'vacant|a worker or a call',
		'what a vacancy waits for');
	wait_until(
		sub {
			my $new = $loop->query("SELECT term FROM leader_election.renew('detached', $term)");

			push @answers, $loop->sqlstate;
			if ($loop->sqlstate eq '00000') { $term = $new; return 1; }
			return 0 if $loop->sqlstate ne '55P03';
			$hint = $loop->errors;
			$new = $loop->query("SELECT term FROM leader_election.acquire('detached', 'd')");
			push @answers, "$new" . $loop->sqlstate;
			return 0;
		},
		'a renewal');
	is("@answers", '55P03 00000 00000', 'busy, then acquire() begins the epoch, then renewed (G7)');
	like($hint, qr/HINT:.*acquire\(\) by the same candidate name/, 'as the hint says');
	cmp_ok($term, '>', 1 << 22, 'in a term of the new epoch');
	is( $observer->query(
			"SELECT string_agg(leader || ' ' || coalesce(reason, '-'), ', ' ORDER BY term) FROM leader_election.history WHERE election = 'detached'"),
		'd failover, d -',
		'the lease was continued');
	is( $observer->query(
			"SELECT waiting_for FROM leader_election.status WHERE election = 'detached'"),
		'',
		'nothing is waited for');

	# Others are elected when the grace is over, by their own calls.
	my $other = session($standby, name => 'other');
	is($other->query("SELECT leader_election.join('other', 'o')"), '', 'grace');
	is( $observer->query(
			"SELECT waiting_for FROM leader_election.status WHERE election = 'other'"),
		'grace after failover',
		'and the status says so');
	wait_until(
		sub { $other->query("SELECT leader_election.join('other', 'o')") ne '' },
		'the end of the grace');
	pass('join() elects after the grace (G7)');
	$_->finish for $loop, $observer, $other;
}

# -- Each call that begins an epoch does nothing else in that transaction.

# The row of the present incarnation becomes that of another.
sub forget_epoch
{
	$standby->safe_psql('postgres', q{
		SET synchronous_commit = local;
		UPDATE leader_election.epoch SET incarnation = 'was ' || incarnation || ' ' || epoch
		 WHERE incarnation = leader_election._incarnation()});
	return;
}

# The transactions that wrote the row of the epoch and rows of ours after it
my $KNOWN = q{SELECT count(*) FROM leader_election.epoch
	WHERE incarnation = leader_election._incarnation()};
my $TOGETHER = q{SELECT count(*)
	FROM leader_election.epoch e,
		(SELECT xmin FROM leader_election.lease
		 UNION ALL SELECT xmin FROM leader_election.candidate
		 UNION ALL SELECT xmin FROM leader_election.election
		 UNION ALL SELECT xmin FROM leader_election.history) r
	WHERE e.incarnation = leader_election._incarnation() AND r.xmin = e.xmin};

my $begun = 0;

foreach my $sql (
	q{SELECT leader_election.join('begun NUMBER', 'b')},
	q{SELECT leader_election.join('begun NUMBER', 'b'), leader_election.join('also NUMBER', 'b')},
	q{SELECT term FROM leader_election.acquire('begun NUMBER', 'b')},
	q{SELECT leader_election.join('begun NUMBER', 'b'), count(a.*) FROM leader_election.acquire('also NUMBER', 'b') a},
	q{DO $$ BEGIN
		PERFORM leader_election.acquire('begun NUMBER', 'b');
		PERFORM leader_election.join('also NUMBER', 'c');
	END $$})
{
	my $session = session($standby, name => 'begins');
	my $observer = session($standby, name => 'observer');
	my $call = $sql;

	$begun++;
	$call =~ s/NUMBER/$begun/g;
	forget_epoch();
	like($session->query($call), qr/^(\||0)*$/, "nobody is elected: $call");
	is($session->sqlstate, '00000', 'no error');
	is($observer->query($KNOWN), '1', 'an epoch has begun');
	is($observer->query($TOGETHER), '0', 'and nothing else');
	is( $observer->query(
			"SELECT count(*) FROM leader_election.election WHERE election IN ('begun $begun', 'also $begun')"),
		'0',
		'not even the election is made');
	is( $observer->query(
			q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 20 AND pid = }
			  . $session->backend_pid),
		'0',
		'no session lock is held');
	$_->finish for $session, $observer;
}

# What has been done before is not undone by it, and what comes later in that
# transaction is refused.
{
	my $session = session($standby, name => 'begins');
	my $detached = $session->query("SELECT term FROM leader_election.acquire('held', 'h')");

	$detached = wait_until_term($session, 'held', 'h') if $detached eq '';
	forget_epoch();
	is( $session->sqlstate_of(
			"DO \$\$ BEGIN
				PERFORM leader_election.acquire('begun last', 'b');
				PERFORM leader_election.renew('held', $detached);
			END \$\$"),
		'55P03',
		'no lease is renewed in a transaction that has begun an epoch');
	like($session->errors, qr/HINT:.*in a statement of its own/, 'and the hint says so');
	is($session->query($KNOWN), '0', 'which has not begun then');
	is($session->sqlstate_of("SELECT leader_election.drop_election('other')"),
		'55P03', 'nor is an election dropped before an epoch has begun');
	like($session->errors, qr/HINT:.*join\(\), campaign\(\) and acquire\(\) begin it/,
		'and the hint says how it begins');
	is( $session->sqlstate_of(
			"DO \$\$ BEGIN
				PERFORM leader_election.renew('held', $detached);
				PERFORM leader_election.acquire('begun last', 'b');
			END \$\$"),
		'00000',
		'one that has renewed a lease');
	is($session->query($KNOWN), '0', 'begins no epoch');
	is( $session->query("SELECT term FROM leader_election.renew('held', $detached)"),
		$detached, 'the lease is renewed');

	# A campaign's polls begin it, too.
	$session->query("CALL leader_election.campaign('campaigned', 'c')");
	is($session->query("SELECT leader_election.is_leader('campaigned')"),
		't', 'a campaign begins an epoch, waits for the grace and leads (G7)');
	is($session->query($KNOWN), '1', 'in an epoch');
	is($session->query($TOGETHER), '0', 'of a transaction of its own');
	$session->finish;
}

# Calls acquire() until it grants, and returns the term.
sub wait_until_term
{
	my ($session, $election, $name) = @_;
	my $got = '';

	wait_until(
		sub {
			$got = $session->query("SELECT term FROM leader_election.acquire('$election', '$name')");
			return $got ne '';
		},
		"$name leads $election");
	return $got;
}

# -- Synchronous standbys that are not there: no call hangs at its commit.

{
	my $session = session($standby, name => 'sync');

	$session->query("SELECT leader_election.create_election('brief', lease_duration => '1 s')");
	wait_until(
		sub { $session->query("SELECT leader_election.join('brief', 'b')") ne '' },
		'a leader');
	$standby->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'\n");
	$standby->reload;
	wait_until(sub { $session->query('SHOW synchronous_standby_names') eq 'nobody' },
		'the setting');

	# A proof that takes longer than the lease lasts
	wait_until(
		sub { $session->query("SELECT leader_election.remaining_ms('brief') > 250") ne 't' },
		'the end of a lease');
	is($session->query("SELECT leader_election.join('brief', 'b')"),
		'', 'join() answers no term that is over by now');
	is($session->sqlstate, '00000', 'without an error');

	forget_epoch();
	is($session->query("SELECT leader_election.join('other', 'a')"), '', 'not elected');
	is($session->sqlstate, '00000', 'and not stuck');
	is($session->query($KNOWN), '0', 'no epoch without the standbys');
	$session->finish;
}

$standby->stop('immediate');
done_testing();
