# Waiting in campaign() and wait_for_change(): what it holds (nothing), how it
# ends, where it may be called, and how promptly it is over; on a primary and
# on a standby.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

# How long a waiter may sleep on: far less than its poll of a second
my $PROMPT = 0.5;

# No lease ends here by itself, save where that is waited for.
my $node = new_server(
	streaming => 1,
	config => q(
leader_election.lease_duration = '30s'
));
my $control = session($node, name => 'control');
my $version =
  $control->query("SELECT current_setting('server_version_num')::int / 10000");

my $leader = session($node, name => 'leader');
$leader->query("SELECT leader_election.join('e', 'leader')");

# A session whose query is waiting as it should,
sub waiter
{
	my ($server, $name, $sql, %opts) = @_;
	my $session = session($server, name => $name, %opts);

	$session->query_async($sql);
	wait_waiting($server, $session,
		$sql =~ /campaign/ ? 'Campaign' : 'WaitForChange');
	return $session;
}

sub wait_waiting
{
	my ($server, $session, $what) = @_;
	my $event = $version >= 17 ? "LeaderElection$what" : 'Extension';

	wait_for($server,
		"SELECT wait_event_type = 'Extension' AND wait_event = '$event'"
		  . ' FROM pg_stat_activity WHERE pid = '
		  . $session->backend_pid);
	return;
}

# What a backend that waits must not have. It may be caught while it looks
# whether there is something new, but not all the time.
sub holds_nothing
{
	my ($server, $session, $what) = @_;
	my $pid = $session->backend_pid;

	ok( defined eval {
			wait_for(
				$server, qq(
SELECT backend_xmin IS NULL AND backend_xid IS NULL AND NOT EXISTS (
	SELECT FROM pg_locks l WHERE l.pid = a.pid AND mode <> 'SIReadLock'
		AND locktype <> 'virtualxid'
		AND NOT (locktype = 'advisory' AND objsubid = 20))
FROM pg_stat_activity a WHERE pid = $pid));
		},
		"$what holds neither a snapshot nor a lock (G9)");
	return;
}

sub stands
{
	my ($election, $name) = @_;

	return $control->query(
		'SELECT count(*) > 0 FROM leader_election.candidates'
		  . " WHERE election = '$election' AND candidate = '$name' AND alive");
}

sub session_locks
{
	my ($session) = @_;

	return $control->query('SELECT count(*) FROM pg_locks WHERE pid = '
		  . $session->backend_pid
		  . " AND locktype = 'advisory' AND objsubid >= 20");
}

# -- What a waiting session holds

{
	my @waiters;

	foreach my $isolation ('read committed', 'repeatable read', 'serializable')
	{
		my $name = $isolation =~ s/ /_/r;
		my $setting = "default_transaction_isolation = '$isolation'";

		push @waiters,
		  waiter($node, "campaign_$name",
			"CALL leader_election.campaign('e', '$name')",
			$setting);
		push @waiters,
		  waiter($node, "wait_$name",
			"CALL leader_election.wait_for_change('e', 1, 'leader')",
			$setting);
	}
	push @waiters,
	  waiter($node, 'name_in_use',
		"CALL leader_election.campaign('e', 'leader')"),
	  waiter($node, 'do_campaign',
		'DO $$ DECLARE t bigint; BEGIN'
		  . " CALL leader_election.campaign('e', 'do', term => t); END \$\$"),
	  waiter($node, 'do_wait',
		"DO \$\$ DECLARE t bigint = 1; l text = 'leader'; BEGIN"
		  . " CALL leader_election.wait_for_change('e', t, l); END \$\$");
	holds_nothing($node, $_, $_->{name}) foreach @waiters;

	# What would have to wait for them, if they did
	$control->query('CREATE TABLE elsewhere (i int)');
	$control->query("SET statement_timeout = '10s'");
	is( $control->sqlstate_of(
			'CREATE INDEX CONCURRENTLY ON elsewhere (i)'),
		'00000',
		'CREATE INDEX CONCURRENTLY is not held up by those who wait (MAS#5298, G9)');
	$control->query('RESET statement_timeout');
	$control->query('INSERT INTO elsewhere VALUES (1); DELETE FROM elsewhere');
	ok( defined eval {
			wait_until(
				sub {
					$control->query('VACUUM elsewhere;'
						  . " SELECT pg_relation_size('elsewhere')") eq '0';
				},
				'VACUUM');
		},
		'nor is VACUUM (MAS#5298, G9)');

	# All of them can be cancelled.
	my $start = machine_time();
	$control->query(
		'SELECT pg_cancel_backend(' . $_->backend_pid . ')')
	  foreach @waiters;
	foreach my $s (@waiters)
	{
		$s->result;
		is($s->sqlstate, '57014', "$s->{name} is cancelled");
		is(session_locks($s), 0, '... and leaves no lock behind');
		is($s->query('SELECT 1'), '1', '... and the session goes on');
	}
	cmp_ok(machine_time() - $start, '<', 2, 'all that is prompt');
	wait_for($node, 'SELECT count(*) = 1 FROM leader_election.candidates'
		  . " WHERE election = 'e'");
	pass('cancelled campaigns leave no candidacy behind (G9)');
	$_->finish foreach @waiters;
}

# -- How a campaign ends without a term

{
	my $one = session($node, name => 'one');
	my ($began, $start) = (time, machine_time());

	is($one->query("CALL leader_election.campaign('e', 'one', '200ms')"),
		'', 'campaign() returns after its timeout');
	cmp_ok(time - $began, '>=', 0.2, '... not before');
	cmp_ok(machine_time() - $start, '<', 0.2 + $PROMPT, '... and not long after');
	is($one->query("CALL leader_election.campaign('e', 'one', '0')"),
		'', 'a timeout of 0 only tries');
	is(stands('e', 'one'), 'f', 'without a candidacy left behind');
	is(session_locks($one), 0, 'nor a lock');

	$one->query("SET statement_timeout = '200ms'");
	$start = machine_time();
	is( $one->sqlstate_of("CALL leader_election.campaign('e', 'one')"),
		'57014', 'statement_timeout ends campaign()');
	cmp_ok(machine_time() - $start, '<', 0.2 + $PROMPT, '... promptly');
	is(stands('e', 'one'), 'f', '... and leaves no candidacy behind');
	is(session_locks($one), 0, '... nor a lock');
	$start = machine_time();
	is( $one->sqlstate_of(
			"CALL leader_election.wait_for_change('e', 1, 'leader')"),
		'57014', 'statement_timeout ends wait_for_change()');
	cmp_ok(machine_time() - $start, '<', 0.2 + $PROMPT, '... promptly');
	$one->query('RESET statement_timeout');

	# A candidacy of its own is not the campaign's to take away.
	$one->query("SELECT leader_election.join('e', 'one')");
	is($one->query("CALL leader_election.campaign('e', 'one', '100ms')"),
		'', 'campaign() of a session that stands already');
	is(stands('e', 'one'), 't', '... stands after a timeout');
	$one->query("SET statement_timeout = '100ms'");
	is( $one->sqlstate_of("CALL leader_election.campaign('e', 'one')"),
		'57014', '... and is interrupted');
	$one->query('RESET statement_timeout');
	is(stands('e', 'one'), 't', '... and stands all the same');
	cmp_ok(session_locks($one), '>', 0, '... with its lock');
	$one->query("SELECT leader_election.leave('e')");

	# Terminated, and killed by way of its client
	foreach my $way ('pg_terminate_backend', 'SIGKILL of the client')
	{
		foreach my $name ('two', 'leader')
		{
			my $two = waiter($node, 'two',
				"CALL leader_election.campaign('e', '$name')");
			my $what = "$way ends a campaign that waits for "
			  . ($name eq 'two' ? 'leadership' : 'its name');

			if ($way eq 'pg_terminate_backend')
			{
				$control->query('SELECT pg_terminate_backend('
					  . $two->backend_pid
					  . ')');
			}
			else
			{
				$two->kill;
			}
			ok( defined eval {
					wait_for($node,
						'SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = '
						  . $two->backend_pid);
				},
				$what);
			is(stands('e', 'two'), 'f', '... and its candidacy');
			$two->kill;
			$control->query(
				'SELECT pg_terminate_backend(' . $two->backend_pid . ')');
		}
	}
	is($leader->query("SELECT leader_election.term('e')"),
		1, 'none of that concerned the leader');
	$one->finish;
}

# -- Where the procedures may be called, and how

{
	my $one = session($node, name => 'one');
	my $campaign = "CALL leader_election.campaign('call', 'one', '5s')";
	my $wait = "CALL leader_election.wait_for_change('call', 0, NULL, '5s')";
	my $script = $node->basedir . '/calls.sql';

	append_to_file($script,
		"CALL leader_election.campaign('bench', 'c' || :client_id, '20s');\n"
		  . "CALL leader_election.wait_for_change('bench', 0, NULL, '20s');\n"
		  . "SELECT leader_election.leave('bench');\n");
	$control->query("SET client_min_messages = error;"
		  . " SELECT leader_election.join('bench', 'control')");
	$control->query("SELECT leader_election.leave('bench')");
	foreach my $mode (qw(simple extended prepared))
	{
		command_ok(
			[
				'pgbench', '--no-vacuum',
				"--protocol=$mode", '--client=3',
				'--transactions=5', "--file=$script",
				$node->connstr('postgres')
			],
			"both can be called in protocol mode $mode");
	}
	is( $control->query(
			'SELECT count(*), count(DISTINCT leader)'
			  . " FROM leader_election.history WHERE election = 'bench'"
			  . " AND leader <> 'control' AND reason = 'left'"),
		'45|3',
		'and were all elected');

  SKIP:
	{
		skip 'psql has no \bind before 16', 2 if $version < 16;
		is( $one->query(
				"CALL leader_election.campaign(\$1, 'one', '5s')"
				  . " \\bind call \\g"),
			'1', 'campaign() with a parameter');
		is( $one->query(
				'CALL leader_election.wait_for_change($1, 0, NULL)'
				  . " \\bind call \\g"),
			'1|one', 'wait_for_change() with a parameter');
		$one->query("SELECT leader_election.leave('call')");
	}

	like($one->query($campaign), qr/^\d+$/, 'campaign() at top level');
	$one->query("SELECT leader_election.leave('call')");
	is( $one->sqlstate_of(
			'DO $$ DECLARE t bigint; l text; BEGIN'
			  . " CALL leader_election.campaign('call', 'one', term => t);"
			  . " CALL leader_election.wait_for_change('call', t, l);"
			  . " ASSERT l = 'one' AND leader_election.term('call') = t;"
			  . ' END $$'),
		'00000', 'both in a DO block');
	$one->query("SELECT leader_election.leave('call')");
	$one->query('CREATE PROCEDURE call_both(INOUT t bigint, INOUT l text)'
		  . ' LANGUAGE plpgsql AS $$ BEGIN'
		  . " CALL leader_election.campaign('call', 'one', term => t);"
		  . " CALL leader_election.wait_for_change('call', t, l); END \$\$");
	like($one->query('CALL call_both(NULL, NULL)'),
		qr/^\d+\|one$/, 'both in a procedure');
	$one->query("SELECT leader_election.leave('call')");

	$one->query('CREATE FUNCTION call_campaign() RETURNS bigint'
		  . ' LANGUAGE plpgsql AS $$ DECLARE t bigint; BEGIN'
		  . " CALL leader_election.campaign('call', 'one', term => t);"
		  . ' RETURN t; END $$');
	$one->query('CREATE FUNCTION call_wait() RETURNS bigint'
		  . ' LANGUAGE plpgsql AS $$ DECLARE t bigint; l text; BEGIN'
		  . " CALL leader_election.wait_for_change('call', t, l);"
		  . ' RETURN t; END $$');
	foreach my $kind ([ definer => 'SECURITY DEFINER' ], [ set => 'SET lock_timeout = 0' ])
	{
		my ($name, $clause) = @$kind;

		$one->query("CREATE PROCEDURE campaign_$name() LANGUAGE plpgsql $clause AS"
			  . ' $$ DECLARE t bigint; BEGIN'
			  . " CALL leader_election.campaign('call', 'one', term => t);"
			  . ' END $$');
		$one->query("CREATE PROCEDURE wait_$name() LANGUAGE plpgsql $clause AS"
			  . ' $$ DECLARE t bigint; l text; BEGIN'
			  . " CALL leader_election.wait_for_change('call', t, l);"
			  . ' END $$');
	}
	foreach (
		[ 'in a procedure with SECURITY DEFINER', 'CALL campaign_definer()', qr/neither .* SECURITY DEFINER nor with SET/ ],
		[ 'in a procedure with SECURITY DEFINER', 'CALL wait_definer()', qr/neither .* SECURITY DEFINER nor with SET/ ],
		[ 'in a procedure with SET', 'CALL campaign_set()', qr/neither .* SECURITY DEFINER nor with SET/ ],
		[ 'in a procedure with SET', 'CALL wait_set()', qr/neither .* SECURITY DEFINER nor with SET/ ],
		['in a transaction block', "BEGIN;\n$campaign"],
		['in a transaction block', "BEGIN;\n$wait"],
		['with another statement', "SELECT 1\\; $campaign"],
		['with another statement', "SELECT 1\\; $wait"],
		[ 'in a function', 'SELECT call_campaign()', qr/not in a function/ ],
		[ 'in a function', 'SELECT call_wait()', qr/not in a function/ ],
		[
			'in a block with EXCEPTION',
			'DO $$ DECLARE t bigint; BEGIN'
			  . " CALL leader_election.campaign('call', 'one', term => t);"
			  . ' EXCEPTION WHEN division_by_zero THEN END $$',
			qr/in a block with EXCEPTION/
		],
		[
			'in a block with EXCEPTION',
			'DO $$ DECLARE t bigint; l text; BEGIN'
			  . " CALL leader_election.wait_for_change('call', t, l);"
			  . ' EXCEPTION WHEN division_by_zero THEN END $$',
			qr/in a block with EXCEPTION/
		])
	{
		my ($where, $sql, $hint) = @$_;
		my $what = $sql =~ /wait/ ? 'wait_for_change()' : 'campaign()';

		is($one->sqlstate_of($sql), '25001', "$what $where is refused");
		like($one->errors, $hint // qr/HINT:.*autocommit/s, '... with a hint');
		unlike($one->errors, qr/autocommit/, '... of what helps') if $hint && $where !~ /EXCEPTION/;
		$one->query('ROLLBACK');
	}
	is(stands('call', 'one'), 'f', 'without a candidacy');

	# What the hint names instead of SECURITY DEFINER works there.
	$one->query('CREATE PROCEDURE join_definer(INOUT term bigint) LANGUAGE plpgsql SECURITY DEFINER AS'
		  . " \$\$ BEGIN term := leader_election.join('call', 'one'); END \$\$");
	wait_until(sub { $one->query('CALL join_definer(NULL)') =~ /^\d+$/ }, 'join() in a procedure with SECURITY DEFINER');
	$one->query("SELECT leader_election.leave('call')");
	$one->finish;
}

# -- How promptly a wait is over

{
	my $one = session($node, name => 'one');
	my $two = session($node, name => 'two');
	my $observer = session($node, name => 'observer');
	my $known = 'NULL, NULL';

	$one->query("SELECT leader_election.join('w', 'one')");
	$one->query("SELECT leader_election.leave('w')");

	# Runs a change, and checks what the observer, who knows what it was told
	# last, is told then.
	my $changes = sub {
		my ($what, $change, $expected, $limit) = @_;
		my $elapsed;

		$observer->query_async(
			"CALL leader_election.wait_for_change('w', $known)");
		wait_waiting($node, $observer, 'WaitForChange');
		$change->();
		$elapsed = wait_until(sub { $observer->finished }, 'the observer');
		is($observer->result, $expected, "wait_for_change() tells of $what (etcd#18163)");
		cmp_ok($elapsed, '<', $limit // $PROMPT, '... promptly');
		$known = $expected =~ /(\d+)\|(\w+)/ ? "$1, '$2'" : 'NULL, NULL';
	};

	$changes->(
		'an election',
		sub { $one->query("SELECT leader_election.join('w', 'one')") },
		'2|one');
	$changes->(
		'a vacancy',
		sub { $one->query("SELECT leader_election.leave('w')") }, '|');
	$one->query("SELECT leader_election.join('w', 'one')");
	$known = "3, 'one'";
	$two->query("SELECT leader_election.join('w', 'two')");
	$changes->(
		'a resignation',
		sub { $one->query("SELECT leader_election.resign('w')") },
		'4|two');
	$changes->(
		'a transfer',
		sub { $two->query("SELECT leader_election.transfer('w', 'one')") },
		'5|one');
	$changes->(
		'the last of several changes',
		sub {
			stop_where($one, 'SELECT ' . $observer->backend_pid, "wait_event_type = 'Extension'");
			$one->query("SELECT leader_election.transfer('w', 'two')");
			$two->query("SELECT leader_election.transfer('w', 'one')");
			resume_process($observer->backend_pid);
		},
		'7|one');
	$changes->('a death', sub { $one->kill }, '8|two');
	$changes->('a death without heirs', sub { $two->kill }, '|');

	is( $observer->query(
			"CALL leader_election.wait_for_change('w', 8, 'two', '1h')"),
		'|',
		'what is known wrongly is put right at once');
	my ($began, $start) = (time, machine_time());
	is( $observer->query(
			"CALL leader_election.wait_for_change('w', NULL, NULL, '200ms')"),
		'|', 'a timeout returns what is known');
	cmp_ok(time - $began, '>=', 0.2, '... when it is over');
	cmp_ok(machine_time() - $start, '<', 0.2 + $PROMPT, '... and not long after');

	# A lease that runs out, with nobody to follow
	$one = session($node, name => 'one');
	$control->query("SELECT leader_election.alter_election('w', lease_duration => '2 s')");
	$one->query("SELECT leader_election.join('w', 'one', auto_renew => false)");
	$known = "9, 'one'";
	my $left = $control->query(
		'SELECT extract(epoch FROM remaining) FROM leader_election.status'
		  . " WHERE election = 'w'");
	$changes->('an expiry', sub { }, '|', $left + $PROMPT);

	# A campaign is told as promptly as the observer.
	my $waiter =
	  waiter($node, 'waiter', "CALL leader_election.campaign('e', 'w')");
	$leader->kill;
	my $elapsed = wait_until(sub { $waiter->finished }, 'the election');
	is($waiter->result, '2', 'campaign() is elected');
	cmp_ok($elapsed, '<', $PROMPT, '... promptly');
	$_->finish foreach $one, $observer;
	$leader = $waiter;
}

# -- transaction_timeout

SKIP:
{
	skip 'no transaction_timeout before 17', 6 if $version < 17;

	my $one = session($node, name => 'one',
		options => '-c transaction_timeout=200');
	my $two = session($node, name => 'two',
		options => '-c transaction_timeout=200');

	$two->query_async("CALL leader_election.campaign('e', 'two')");
	is($one->query("CALL leader_election.campaign('e', 'one', '700ms')"),
		'', 'transaction_timeout does not end campaign()');
	is($one->sqlstate, '00000', '... with an error');
	is( $one->query(
			"CALL leader_election.wait_for_change('e', 2, 'w', '700ms')"),
		'2|w', 'transaction_timeout does not end wait_for_change()');
	is($one->sqlstate, '00000', '... with an error');
	ok(!$two->finished, 'a campaign without a timeout goes on waiting');
	$leader->kill;
	is($two->result, '3', 'until elected');
	$one->finish;
	$leader = $two;
}

# -- On a standby

{
	$node->backup('base');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;

	my $one = session($node, name => 'one');
	$one->query("SELECT leader_election.join('s', 'one')");
	$node->wait_for_catchup($standby);

	my $reader = session($standby, name => 'reader');
	my $observer = session($standby, name => 'observer');
	$observer->query("SET default_transaction_isolation = 'repeatable read'");
	is($reader->query("SELECT leader_election.leader('s')"),
		'one', 'leader() on a standby');
	is( $reader->query(
			'SELECT state, leader, term, kind, remaining > interval \'0\','
			  . ' candidates, waiting_for'
			  . " FROM leader_election.status WHERE election = 's'"),
		'led|one|1|session|t||', 'status on a standby');
	is($reader->sqlstate_of('TABLE leader_election.candidates'),
		'00000', 'candidates on a standby');
	is($reader->query('SELECT count(*) FROM leader_election.candidates'),
		'0', '... are not known');
	is( $reader->query('SELECT count(*) > 0 FROM leader_election.history'),
		't', 'history on a standby');
	is($reader->query("SELECT leader_election.is_leader('s')"),
		'f', 'is_leader() on a standby');
	is($reader->query("SELECT leader_election.term('s')"),
		'', 'term() on a standby');
	foreach my $sql (
		"SELECT leader_election.join('s', 'reader')",
		"CALL leader_election.campaign('s', 'reader')",
		"SELECT leader_election.renew('s')",
		"SELECT leader_election.resign('s')",
		"SELECT leader_election.leave('s')",
		'SELECT leader_election.leave_all()',
		"SELECT leader_election.transfer('s', 'one')")
	{
		is($reader->sqlstate_of($sql), '25006', "on a standby: $sql");
	}

	foreach (
		['an election', "SELECT leader_election.join('s', 'one')", '2|one'],
		['a vacancy', "SELECT leader_election.leave('s')", '|'])
	{
		my ($what, $change, $expected) = @$_;
		my $known = $what eq 'an election' ? 'NULL, NULL' : "2, 'one'";

		if ($what eq 'an election')
		{
			$one->query("SELECT leader_election.leave('s')");
			$node->wait_for_catchup($standby);
		}
		$observer->query_async(
			"CALL leader_election.wait_for_change('s', $known)");
		wait_waiting($standby, $observer, 'WaitForChange');
		holds_nothing($standby, $observer, 'wait_for_change() on a standby');
		$one->query($change);
		my $elapsed = wait_until(sub { $observer->finished }, 'the observer');
		is($observer->result, $expected,
			"wait_for_change() on a standby tells of $what");
		cmp_ok($elapsed, '<', 1, '... soon');
	}
	my $start = machine_time();
	is( $observer->query(
			"CALL leader_election.wait_for_change('s', NULL, NULL, '200ms')"),
		'|', 'wait_for_change() on a standby has a timeout');
	cmp_ok(machine_time() - $start, '<', 0.2 + $PROMPT, '... that is respected');
	$observer->query("SET statement_timeout = '200ms'");
	is( $observer->sqlstate_of(
			"CALL leader_election.wait_for_change('s', NULL, NULL)"),
		'57014', '... and can be interrupted');

	# What the primary says no more is over when the lease is.
	$control->query("SELECT leader_election.alter_election('s', lease_duration => '3 s')");
	$one->query("SELECT leader_election.join('s', 'one')");
	$node->wait_for_catchup($standby);
	my $waiter = waiter($standby, 'waiter',
		"CALL leader_election.wait_for_change('s', 3, 'one')");
	$node->stop('immediate');
	is($waiter->result, '|', 'wait_for_change() on a standby tells of an expiry');
	is($reader->query("SELECT leader_election.leader('s')"),
		'', 'so does leader()');
	is( $reader->query(
			"SELECT state FROM leader_election.status WHERE election = 's'"),
		'vacant', 'so does status');
	$_->finish foreach $reader, $observer, $waiter;
	$_->kill foreach $one, $control, $leader;
	$standby->stop;
}

done_testing();
