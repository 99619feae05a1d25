# Clients that sit on the extension's rows and tables, and maintenance that
# locks them: they may hold up what needs those very rows, but no other
# election, no session that exits, and no call for long.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

my @TABLES = qw(election lease candidate history epoch);

my $node = new_server(
	streaming => 1,		# for REPACK (CONCURRENTLY)
	config => q(
leader_election.lease_duration = '2s'
max_connections = 60
));
my $control = session($node, name => 'control');
my $locker = session($node, name => 'locker');

sub lock_rows
{
	my ($table) = @_;
	my $where = $table eq 'epoch' ? '' : "WHERE election = 'locked'";

	$locker->query("BEGIN; SELECT count(*) FROM (SELECT FROM"
		  . " leader_election.$table $where FOR UPDATE) x");
	return;
}

sub lock_tables
{
	$locker->query('BEGIN; LOCK TABLE '
		  . join(', ', map { "leader_election.$_" } @_)
		  . ' IN ACCESS EXCLUSIVE MODE');
	return;
}

# Runs a call that finds locked what it needs. It must not wait long. Where it
# waits for ever, statement_timeout ends it with another SQLSTATE.
sub run_locked
{
	my ($session, $sql, $lock_timeout) = @_;
	my $limit = $lock_timeout ? 0.8 : 2.0;
	my $start;
	my @seen;

	$session->query("SET lock_timeout = $lock_timeout;"
		  . " SET statement_timeout = '10s'");
	$start = machine_time();
	$session->query($sql);
	@seen = ($session->sqlstate);
	push @seen, 'late' if machine_time() - $start > $limit;
	if ($session->sqlstate ne '00000')
	{
		push @seen, 'without the election' if $session->errors !~ /"locked"/;
		push @seen, 'without a hint' if $session->errors !~ /HINT:/;
	}
	$session->query('RESET lock_timeout; RESET statement_timeout');
	return join(' ', @seen);
}

# A call that cannot do what it was asked for
sub fails_soon
{
	my ($session, $sql, $what) = @_;

	is(run_locked($session, $sql, $_),
		'55P03', "$what: $sql is refused (lock_timeout $_) (G9)")
	  foreach 0, 100;
	return;
}

# A call that may be able to answer all the same
sub answers_soon
{
	my ($session, $sql, $what) = @_;

	like(run_locked($session, $sql, $_),
		qr/^(00000|55P03)$/, "$what: $sql is answered (lock_timeout $_) (G9)")
	  foreach 0, 100;
	return;
}

# A waiting campaign, started and seen to stand
sub campaigner
{
	my ($election, $name) = @_;
	my $session = session($node, name => $name);

	$session->query_async("CALL leader_election.campaign('$election', '$name')");
	wait_for($node, 'SELECT count(*) = 1 FROM leader_election.candidates'
		  . " WHERE election = '$election' AND candidate = '$name' AND alive");
	return $session;
}

# -- A client is idle in a transaction with a lock on rows.

# For as long as that takes, the lease is not renewed.
$control->query(
	"SELECT leader_election.create_election('locked', lease_duration => '1 min')");
foreach my $table (@TABLES)
{
	my $what = "a row of $table locked";
	my $leader = session($node, name => 'leader');
	my $dead = session($node, name => 'dead');
	my $other = session($node, name => 'other');
	my $heir = session($node, name => 'heir');

	$leader->query("SELECT leader_election.join('locked', 'leader')");
	my $waiter = campaigner('locked', 'waiter');
	$dead->query("SELECT leader_election.join('locked', 'dead')");
	$other->query("SELECT leader_election.join('free', 'other')");
	$heir->query("SELECT leader_election.join('free', 'heir')");
	wait_until(
		sub {
			$leader->query("SELECT leader_election.is_leader('locked')") eq 't'
			  && $other->query("SELECT leader_election.is_leader('free')") eq
			  't';
		},
		'the leaders');

	lock_rows($table);

	# Sessions end, those of the locked election and others.
	$dead->kill;
	$other->kill;
	my $elapsed = wait_for($node, "SELECT leader_election.leader('free')", 'heir');
	cmp_ok($elapsed, '<', 1, "$what: another election goes on (G9)");
	wait_gone($node, $dead, $other);
	is($leader->query("SELECT leader_election.is_leader('locked')"),
		't', "$what: is_leader() says what it knows");
	cmp_ok($leader->query("SELECT leader_election.remaining_ms('locked')"),
		'>', 0, "$what: so does remaining_ms()");
	answers_soon($control, "SELECT leader_election.leader('locked')", $what);
	answers_soon($control, 'SELECT count(*) FROM leader_election.status', $what);
	answers_soon($control, 'SELECT count(*) FROM leader_election.candidates',
		$what);
	fails_soon($leader, "SELECT leader_election.renew('locked')", $what)
	  if $table eq 'lease';
	fails_soon($leader, "SELECT leader_election.resign('locked')", $what)
	  if $table =~ /lease|candidate|history/;
	fails_soon($leader, "SELECT leader_election.leave('locked')", $what)
	  if $table =~ /lease|candidate|history/;
	fails_soon($leader, 'SELECT leader_election.leave_all()', $what)
	  if $table eq 'history';
	fails_soon($leader, "SELECT leader_election.transfer('locked', 'waiter')",
		$what)
	  if $table =~ /lease|history/;

	$control->query(
		"SELECT pg_terminate_backend(" . $leader->backend_pid . ')');
	wait_gone($node, $leader);
	if ($table =~ /lease|history/)
	{
		ok(!$waiter->finished, "$what: the next leader has to wait");
	}
	$locker->query('COMMIT') if $table =~ /lease|history|candidate/;
	$elapsed = wait_until(sub { $waiter->finished }, 'the election');
	$waiter->result;
	is($waiter->query("SELECT leader_election.is_leader('locked')"),
		't', "$what: it is elected");
	cmp_ok($elapsed, '<', 1.5, '... promptly');
	$locker->query('ROLLBACK');
	$leader->kill;
	$_->finish foreach $waiter, $heir;
}

$control->query(
	"SELECT leader_election.alter_election('locked', lease_duration => '2s')");

# -- A lock that lasts keeps neither the worker busy nor, once it is gone, a
# candidate waiting that joined and waits for the worker.

SKIP:
{
	my $leader = session($node, name => 'leader');
	my $heir = session($node, name => 'heir');

	$leader->query("SELECT leader_election.join('locked', 'leader')");
	$heir->query("SELECT leader_election.join('locked', 'heir')");
	wait_until(
		sub {
			$leader->query("SELECT leader_election.is_leader('locked')") eq 't';
		},
		'the leader');
	my $pid = $control->query($WORKER_PID);
	my $used = -e "/proc/$pid/stat" ? cpu_seconds($pid) : undef;

	# The lease cannot be renewed, and runs out; then nobody can be elected.
	lock_rows('lease');
	wait_for($node, "SELECT clock_timestamp() > expires_at + interval '2.3s'"
		  . " FROM leader_election.lease WHERE election = 'locked'");
	is($leader->query("SELECT leader_election.is_leader('locked')"),
		'f', 'a lease that nobody could renew is over');
	$used = cpu_seconds($pid) - $used if defined $used;
	$leader->kill;
	$locker->query('COMMIT');
	my $elapsed = wait_until(
		sub { $heir->query("SELECT leader_election.is_leader('locked')") eq 't' },
		'the worker');
	cmp_ok($elapsed, '<', 1,
		'the worker elects soon after a lock that lasted is gone');
	$heir->finish;

	skip 'needs /proc', 1 unless defined $used;
	cmp_ok($used, '<', 1, 'and did not spin in the meantime');
}

# -- A client has locked a whole table.

foreach my $table (@TABLES)
{
	my $what = "$table locked";
	my $leader = session($node, name => 'leader');
	my @dead = map { session($node, name => "dead$_") } 1 .. 2;
	my $waiter;
	my $late = session($node, name => 'late');
	my $elapsed;

	$leader->query("SELECT leader_election.join('locked', 'leader')");
	$waiter = campaigner('locked', 'waiter');
	$_->query("SELECT leader_election.join('locked', '$_->{name}')")
	  foreach @dead;
	wait_until(
		sub {
			$leader->query("SELECT leader_election.is_leader('locked')") eq 't';
		},
		'the leader');
	my $term = $control->term_of('locked');

	lock_tables($table);

	foreach my $s ($leader, $dead[0])
	{
		$s->query("SET statement_timeout = '500ms'");
		$s->query("SELECT leader_election.is_leader('locked')");
		is($s->sqlstate, '00000',
			"$what: is_leader() of $s->{name} does not wait");
		$s->query("SELECT leader_election.remaining_ms('locked')");
		is($s->sqlstate, '00000',
			"$what: remaining_ms() of $s->{name} does not wait");
		$s->query('RESET statement_timeout');
	}
	is($dead[0]->query("SELECT leader_election.is_leader('locked')"),
		'f', "$what: is_leader() does not guess");
	my $start;

	# No session that exits waits, whichever way it goes.
	$dead[0]->kill;
	$control->query(
		'SELECT pg_terminate_backend(' . $dead[1]->backend_pid . ')');
	wait_gone($node, @dead);
	$dead[1]->kill;

	fails_soon($leader, "SELECT leader_election.join('locked', 'leader')",
		$what);
	fails_soon($leader, "SELECT leader_election.renew('locked')", $what)
	  if $table eq 'lease';
	fails_soon($leader, "SELECT leader_election.resign('locked')", $what)
	  if $table eq 'candidate';
	fails_soon($leader, "SELECT leader_election.leave('locked')", $what)
	  if $table eq 'history';
	fails_soon($leader, "SELECT leader_election.transfer('locked', 'waiter')",
		$what)
	  if $table eq 'epoch';
	answers_soon($control, $_, $what)
	  foreach "SELECT leader_election.leader('locked')",
	  "SELECT * FROM leader_election._observe('locked')",
	  "SELECT * FROM leader_election._standing('locked')";

	# Those that wait for an election go on waiting, without a snapshot.
	$late->query("SET statement_timeout = '5s'");
	$start = machine_time();
	is( $late->query(
			"CALL leader_election.campaign('locked', 'late', '300ms')"),
		'', "$what: campaign() comes back without a term");
	cmp_ok(machine_time() - $start, '<', 2, '... after its timeout');
	$start = machine_time();
	is( $late->query(
			"CALL leader_election.wait_for_change('locked', $term, 'leader',"
			  . " '300ms')"),
		"$term|leader", "$what: wait_for_change() comes back");
	cmp_ok(machine_time() - $start, '<', 2, '... after its timeout');
	is( $control->query(
			'SELECT backend_xmin IS NULL AND backend_xid IS NULL'
			  . ' FROM pg_stat_activity WHERE pid = '
			  . $waiter->backend_pid),
		't',
		"$what: a waiting campaign() has no snapshot");

	$control->query(
		'SELECT pg_terminate_backend(' . $leader->backend_pid . ')');
	wait_gone($node, $leader);
	ok(!$waiter->finished, "$what: nobody is elected");
	$locker->query('COMMIT');
	$elapsed = wait_until(sub { $waiter->finished }, 'the election');
	$waiter->result;
	is($waiter->query("SELECT leader_election.is_leader('locked')"),
		't', "$what: until it is unlocked");
	cmp_ok($elapsed, '<', 1.5, '... then at once');
	$leader->kill;
	$_->finish foreach $waiter, $late;
}

# -- Leases are renewed as long as their own table can be written.

{
	my $leader = session($node, name => 'leader');
	my $waiter;

	$leader->query("SELECT leader_election.join('locked', 'leader')");
	$waiter = campaigner('locked', 'waiter');
	wait_until(
		sub {
			$leader->query("SELECT leader_election.is_leader('locked')") eq 't';
		},
		'the leader');
	my $term = $control->term_of('locked');
	my $late = session($node, name => 'late');

	lock_tables(grep { $_ ne 'lease' } @TABLES);

	# One that begins to campaign now is not a candidate yet; its client may
	# go away all the same.
	$late->query_async("CALL leader_election.campaign('locked', 'late')");
	wait_for($node,
		"SELECT wait_event_type = 'Extension' FROM pg_stat_activity"
		  . ' WHERE pid = ' . $late->backend_pid);
	$late->kill;

	wait_for($node,
		"SELECT renewed_at > acquired_at + interval '2s'"
		  . " FROM leader_election.lease WHERE election = 'locked'");
	is($leader->query("SELECT leader_election.term('locked')"),
		$term, 'locks on the other tables lose nobody a lease');
	ok( defined eval {
			wait_for($node,
				'SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = '
				  . $late->backend_pid);
		},
		'a campaign that cannot begin ends with its client');
	$locker->query('COMMIT');
	is($leader->query("SELECT leader_election.term('locked')"),
		$term, '(nor does the end of the locks)');
	ok(!$waiter->finished, '(and nobody else was elected)');
	$leader->finish;
	cmp_ok($waiter->result, '>', $term, 'until the leader goes');
	$waiter->finish;
}

# -- One renewal that is held up loses nobody a lease.

{
	my $leader = session($node, name => 'leader');
	my $waiter;
	my $deadline;

	$control->query("SELECT leader_election.create_election('slow',"
		  . " lease_duration => '4s')");
	$leader->query("SELECT leader_election.join('slow', 'leader')");
	$waiter = campaigner('slow', 'waiter');
	$deadline = $control->query('SELECT deadline_mono FROM'
		  . " leader_election.lease WHERE election = 'slow'");

	# It was due after a third of the lease, and is to be done in the second half.
	$locker->query('BEGIN; SELECT FROM leader_election.lease'
		  . " WHERE election = 'slow' FOR UPDATE");
	wait_for($node,
		"SELECT leader_election._monotonic_clock() > $deadline - 2000000");
	is( $control->query('SELECT deadline_mono FROM leader_election.lease'
			  . " WHERE election = 'slow'"),
		$deadline, 'a renewal is held up');
	$locker->query('COMMIT');
	wait_for($node, "SELECT leader_election._monotonic_clock() > $deadline");
	is($leader->query("SELECT leader_election.term('slow')"),
		'1', 'its leader leads on (opensearch-operator#1545)');
	ok(!$waiter->finished, '... and nobody else');
	$_->kill foreach $leader, $waiter;
}

# -- A pg_dump has locked the tables for longer than a lease.

{
	my $leader = session($node, name => 'leader');
	my $heir = session($node, name => 'heir');
	my $dump;

	$control->query('CREATE TABLE big AS SELECT repeat(md5(i::text), 100)'
		  . ' FROM generate_series(1, 5000) i');
	$leader->query("SELECT leader_election.join('dumped', 'leader')");
	$heir->query("SELECT leader_election.join('dumped', 'heir')");
	wait_until(
		sub {
			$leader->query("SELECT leader_election.is_leader('dumped')") eq 't';
		},
		'the leader');

	# Nobody reads what it writes.
	$dump = IPC::Run::start(
		[ 'pg_dump', $node->connstr('postgres') . ' application_name=pg_dump' ],
		'>pipe', \*DUMP);
	wait_for($node,
		"SELECT wait_event = 'ClientWrite' AND EXISTS (SELECT FROM pg_locks l"
		  . ' WHERE l.pid = a.pid'
		  . " AND relation = 'leader_election.lease'::regclass)"
		  . " FROM pg_stat_activity a WHERE application_name = 'pg_dump'");
	wait_for($node,
		"SELECT renewed_at > clock_timestamp() - interval '2s' AND renewed_at >"
		  . " (SELECT xact_start + interval '2s' FROM pg_stat_activity"
		  . " WHERE application_name = 'pg_dump')"
		  . " FROM leader_election.lease WHERE election = 'dumped'");
	is($leader->query("SELECT leader_election.term('dumped')"),
		'1', 'pg_dump: leases are renewed (chainlink#5829)');
	$leader->kill;
	wait_until(
		sub { $heir->query("SELECT leader_election.term('dumped')") eq '2' },
		'the heir', 2);
	pass('pg_dump: another leader is elected (chainlink#5829)');
	is( $control->query(
			'SELECT count(*) FROM pg_stat_activity'
			  . " WHERE application_name = 'pg_dump' AND wait_event = 'ClientWrite'"
		),
		'1',
		'... while it goes on');
	1 while sysread(DUMP, my $text, 65536);
	ok($dump->finish, '... to its end');
	$heir->finish;
	$control->query('DROP TABLE big');
}

# -- An index that is being built anew, by a transaction that does not end,
# is a lock like any other.

{
	my $leader = session($node, name => 'leader');
	my $late = session($node, name => 'late');
	my $waiter;
	my $start;

	$leader->query("SELECT leader_election.join('locked', 'leader')");
	$waiter = campaigner('locked', 'waiter');
	wait_until(
		sub {
			$leader->query("SELECT leader_election.is_leader('locked')") eq 't';
		},
		'the leader');
	$locker->query('BEGIN; REINDEX TABLE leader_election.lease');
	$leader->query("SET statement_timeout = '500ms'");
	$leader->query("SELECT leader_election.is_leader('locked')");
	is($leader->sqlstate, '00000', 'REINDEX: is_leader() does not wait (G9)');
	fails_soon($leader, "SELECT leader_election.renew('locked')", 'REINDEX');
	answers_soon($control, "SELECT leader_election.leader('locked')",
		'REINDEX');
	$late->query("SET statement_timeout = '5s'");
	$start = machine_time();
	is( $late->query(
			"CALL leader_election.campaign('locked', 'late', '300ms')"),
		'', 'REINDEX: campaign() comes back without a term');
	cmp_ok(machine_time() - $start, '<', 2, '... after its timeout');

	# The waiting one polls once a second at least: let it.
	wait_for($node, "SELECT clock_timestamp() > query_start + interval '2s'"
		  . ' FROM pg_stat_activity WHERE pid = ' . $late->backend_pid);
	is( $control->query(
			'SELECT backend_xmin IS NULL AND backend_xid IS NULL'
			  . ' FROM pg_stat_activity WHERE pid = '
			  . $waiter->backend_pid),
		't',
		'REINDEX: a waiting campaign() has no snapshot (G9)');
	$locker->query('COMMIT');
	$leader->kill;
	wait_until(sub { $waiter->finished }, 'the election');
	$waiter->result;
	is($waiter->query("SELECT leader_election.is_leader('locked')"),
		't', 'REINDEX: the next leader is elected');
	$_->finish foreach $waiter, $late;
}

# -- Maintenance beside elections that go on loses nobody a lease.

{
	my $leader = session($node, name => 'leader');
	my $caller = session($node, name => 'caller');
	# New in 19, and CONCURRENTLY for logged tables only.
	my $has_repack = $control->query('SHOW server_version_num') >= 190000;
	my $waiter;

	$leader->query("SELECT count(leader_election.join('upkeep' || i, 'leader'))"
		  . ' FROM generate_series(1, 50) i');
	$waiter = campaigner('upkeep1', 'waiter');
	$control->query('CREATE TABLE stop ();'
		  . ' CREATE TABLE asked (times int, yes int)');

	# Asks all the time.
	$leader->query_async(<<'END');
DO $$
DECLARE
	times int := 0;
	yes int := 0;
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop) LOOP
		times := times + 1;
		yes := yes + leader_election.is_leader('upkeep' || 1 + times % 50)::int;
		COMMIT;
		PERFORM pg_sleep(0.002);
	END LOOP;
	INSERT INTO asked VALUES (times, yes);
END $$
END

	# Observes all the time.
	$caller->query_async(<<'END');
DO $$
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop) LOOP
		PERFORM leader_election.leader('upkeep' || i),
			leader_election.is_leader('upkeep' || i)
		FROM generate_series(1, 50) i;
		PERFORM count(*) FROM leader_election.status;
		PERFORM count(*) FROM leader_election.candidates;
		COMMIT;
	END LOOP;
END $$
END

	my $since = $control->query('SELECT clock_timestamp()');
	my $rounds = 0;
	do
	{
		foreach my $table (@TABLES)
		{
			foreach my $sql (
				"REINDEX TABLE leader_election.$table",
				"REINDEX TABLE CONCURRENTLY leader_election.$table",
				"VACUUM FULL leader_election.$table",
				"CLUSTER leader_election.$table USING ${table}_pkey",
				$has_repack ? "REPACK leader_election.$table" : (),
				$has_repack && $table ne 'candidate' ? "REPACK (CONCURRENTLY) leader_election.$table" : (),
				"VACUUM (FREEZE, ANALYZE) leader_election.$table")
			{
				is($control->sqlstate_of($sql), '00000', $sql) if !$rounds;
				$control->query($sql) if $rounds;
			}
		}
		command_ok(
			[
				'pg_dump', '--file' => '/dev/null',
				$node->connstr('postgres')
			],
			'pg_dump')
		  if !$rounds;
		$rounds++;
	  } until $control->query("SELECT min(renewed_at) > '$since'::timestamptz"
		  . " + interval '2s' FROM leader_election.lease"
		  . " WHERE election ~ 'upkeep'") eq 't';
	cmp_ok($rounds, '>=', 1, "for a lease ($rounds rounds)");

	is( $control->query(
			'SELECT count(*), max(term) FROM leader_election.lease'
			  . " WHERE election ~ 'upkeep' AND leader = 'leader'"),
		'50|1',
		'maintenance loses nobody a lease');
	ok(!$waiter->finished, 'the waiting campaign goes on waiting');
	$control->query('INSERT INTO stop DEFAULT VALUES');
	$caller->result;
	is($caller->sqlstate, '00000', 'an observer meets no error');
	$leader->result;
	is($leader->sqlstate, '00000', 'nor does the leader');
	note $control->query('SELECT times, yes FROM asked');
	is($control->query('SELECT yes > 0 FROM asked'),
		't', 'which was told that it leads');
	is($leader->query("SELECT leader_election.is_leader('upkeep50')"),
		't', 'and is told so now');
	$leader->finish;
	is($waiter->result, '2', 'the waiting campaign is elected in the end');
	$_->finish foreach $waiter, $caller;
}

# A call queues for an election lock, unless its transaction holds another one:
# one that a rolled back savepoint has released does not count.
{
	my ($holder, $caller) = map { session($node, name => $_) } qw(holder caller);
	my $asks = sub {
		return $control->query(
			"SELECT count(*) FROM pg_locks WHERE pid = $_[0] AND objsubid = 21 AND granted = $_[1]");
	};

	is($holder->query("SELECT leader_election.join('accounted', 'holder')"), '1', 'leads');
	$holder->query_async("DO \$\$ BEGIN
		PERFORM leader_election.leave('accounted'); PERFORM pg_sleep(300); END \$\$");
	wait_until(sub { $asks->($holder->backend_pid, 'true') eq '1' }, 'its election lock');
	$caller->query("SELECT leader_election.create_election('undone'); BEGIN; SAVEPOINT s;
		SELECT leader_election.drop_election('undone'); ROLLBACK TO s");
	$caller->query_async("SELECT leader_election.drop_election('accounted')");
	my $queues = 0;
	wait_until(
		sub {
			$queues = $asks->($caller->backend_pid, 'false') eq '1';
			return $queues || $caller->finished;
		},
		'an answer');
	ok($queues, 'a call after a rolled back savepoint queues');
	$caller->result;
	is($caller->sqlstate, '55P03', 'until it may wait no longer');
	$_->kill foreach $holder, $caller;
}

# What nobody reads need not be free: who stands in a spread election, in which
# order, and who is elected does not depend on the history.
{
	my $one = session($node, name => 'one');
	my $two = session($node, name => 'two');

	$control->query("SELECT leader_election.create_election('even', 'spread')");
	$one->query("SELECT leader_election.join('even', 'one')");
	$two->query("SELECT leader_election.join('even', 'two')");
	lock_tables('history');
	$control->query("SET statement_timeout = '5s'");
	is( $control->query(
			"SELECT string_agg(candidate, ', ' ORDER BY position)
			FROM leader_election.candidates WHERE election = 'even'"),
		'one, two',
		'candidates of a spread election, while the history is locked');
	is($control->sqlstate, '00000', 'without a wait');
	$control->query('RESET statement_timeout');
	$locker->query('ROLLBACK');
	$_->finish foreach $one, $two;
}

# A candidate that sits out is elected by its own call only: that waits for a row.
{
	my $alone = session($node, name => 'alone');

	is($alone->query("SELECT leader_election.join('alone', 'alone')"), 1, 'alone: leads');
	is($alone->query("SELECT leader_election.resign('alone')"), 't', 'alone: gives up');

	# The call waits for a second at most: where the machine was slower, once more.
	my $term = '';
	foreach (1 .. 10)
	{
		$locker->query("BEGIN; SELECT FROM leader_election.lease WHERE election = 'alone' FOR UPDATE");
		$alone->query_async("SELECT leader_election.join('alone', 'alone')");
		wait_until(
			sub {
				return $alone->finished || $control->query("SELECT wait_event_type = 'Extension' FROM pg_stat_activity
					WHERE state = 'active' AND pid = " . $alone->backend_pid) eq 't';
			},
			'the call to wait');
		$locker->query('ROLLBACK');
		$term = $alone->result;
		last if $term ne '';
	}
	is($term, 2, 'alone: leads again, once the row is free');
	$alone->finish;
}

# The row of the leader whose lease has run out, since no worker has renewed it: where it
# need not be written, nobody waits for it.
foreach my $delay ('0', '1 h')
{
	my $e = "set back, $delay";
	my ($first, $next) = map { session($node, name => $_) } qw(first next);
	my $join = "SELECT leader_election.join('$e', 'next', 1)";

	$control->query("SELECT leader_election.create_election('$e', 'lowest', lease_duration => '@{[ 2 * slowness() ]} s', preempt_delay => '$delay')");
	cmp_ok($first->query("SELECT leader_election.join('$e', 'first', 2)"), '>', 0, "$e: one leads");
	my $worker = stop_worker($control);
	is($next->query($join), '', "$e: another one stands");
	wait_for($node, "SELECT deadline_mono < leader_election._monotonic_clock()
		FROM leader_election.lease WHERE election = '$e'");
	$locker->query("BEGIN; SELECT FROM leader_election.candidate WHERE election = '$e' AND candidate = 'first' FOR UPDATE");
	my $term = $next->query($join);
	$locker->query('ROLLBACK');
	if ($delay eq '0')
	{
		cmp_ok($term, '>', 0, "$e: and leads");
	}
	else
	{
		is($term, '', "$e: and waits, for the time that the first one has stood is to begin anew");
		cmp_ok($next->query($join), '>', 0, "$e: but leads once that can be written");
	}
	is( $control->query(
			"SELECT stood_mono > place_mono FROM leader_election.candidate WHERE election = '$e' AND candidate = 'first'"),
		$delay eq '0' ? 'f' : 't', "$e: whether it was");
	resume_process($worker);
	$_->finish foreach $first, $next;
}

# While the lease cannot be read, nobody can tell who leads.
is($control->acquire('unread', 'c'), 1, 'unread: led');
lock_tables('lease');
foreach my $call ("'unread'", "'unread', 1")
{
	is($control->sqlstate_of("SELECT leader_election.assert_leader($call)"), '55P03',
		"unread: assert_leader($call) is busy");
}
$locker->query('ROLLBACK');
is($control->sqlstate_of("SELECT leader_election.assert_leader('unread', 1)"), '00000', 'unread: it is led');

# A client that has left may be gone a moment before its backend.
wait_for(
	$node,
	"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
	  . " AND mode = 'ExclusiveLock' AND objsubid = 20",
	'0');
$_->finish foreach $control, $locker;
$node->stop;
done_testing();
