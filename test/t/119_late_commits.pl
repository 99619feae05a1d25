# A fenced commit that takes long, because of what another library does between our
# lock and the commit record: the next leader waits for a second, and no longer. The
# session of the commit is ended, but only if the lease is over and another candidate
# could be elected.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

my $LEASE = 2_500_000;    # microseconds
my $LATE = 1_000_000;
my $LONG = 5_000_000;     # what is not ended by then is left alone

my $gate = PostgreSQL::Test::Utils::tempdir() . '/gate';
my $config = compile_library('wait_at_commit') . qq(
leader_election.lease_duration = '${LEASE}us'
max_prepared_transactions = 2
);
my $make = q(CREATE TABLE written (what text);
	CREATE FUNCTION wait_at_commit(text, text) RETURNS void LANGUAGE c AS 'wait_at_commit');
my $node = new_server(config => $config);
my $control = session($node, name => 'control');

$control->query($make);

sub clock { return $control->query('SELECT leader_election._monotonic_clock()'); }

sub close_gate { append_to_file($gate, ''); return; }
sub open_gate { unlink $gate; return; }

sub wait_long
{
	my $until = clock() + $LONG;

	wait_until(sub { clock() > $until }, 'a while');
	return;
}

# A session in which another library was loaded first, so that its callbacks are
# called last (or, with last => 1, the other way round).
sub writer
{
	my ($name, %opts) = @_;
	my $session = session($opts{node} // $node, name => $name, options => $opts{options});
	my @libraries = qw(wait_at_commit leader_election);

	$session->query("LOAD '$_'") foreach $opts{last} ? reverse @libraries : @libraries;
	return $session;
}

# Begins a fenced transaction that ends in that way.
sub begin_fenced
{
	my ($session, $election, $how, $term) = @_;

	$session->query($_)
	  for 'BEGIN', "INSERT INTO written VALUES ('$election')",
	  'SELECT leader_election.assert_leader(' . "'$election', " . ($term // 1) . ')',
	  "SELECT wait_at_commit('$how', '$gate')";
	return $session;
}

sub holds_lock
{
	my ($session) = @_;

	return $control->query("SELECT count(*) FROM pg_locks WHERE objsubid = 21
		AND mode = 'ShareLock' AND granted AND pid = " . $session->backend_pid);
}

# Commits, and waits until that holds the election lock.
sub commit
{
	my ($session) = @_;

	close_gate();
	$session->query_async('COMMIT');
	wait_for_library($session);
	ok(holds_lock($session), 'the commit holds the lock');
	return $session;
}

# Until another library waits at the end of the session's transaction.
sub wait_for_library
{
	my ($session) = @_;

	wait_for($node, "SELECT wait_event_type = 'Extension' FROM pg_stat_activity
		WHERE pid = " . $session->backend_pid);
	return;
}

sub leads { return ($control->lease($_[0], 'leader'))[0] // ''; }

# Somebody else leads, now or soon.
sub is_followed
{
	my ($election, $name, $title) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	eval { wait_until(sub { leads($election) eq $name }, $title) };
	return is(leads($election), $name, $title);
}

# The session was ended, and what it wrote has gone.
sub is_ended
{
	my ($session, $election, $title) = @_;
	my $pid = $session->backend_pid;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	open_gate();
	$session->result;
	is($session->sqlstate, '08006', "$title: its session was ended");
	is($control->query("SELECT count(*) FROM written WHERE what = '$election'"), 0,
		"$title: nothing was written");
	like(slurp_file($node->logfile), qr/election "$election": terminating process $pid, whose commit/,
		"$title: the log says why");
	return;
}

# It was left alone.
sub commits
{
	my ($session, $election, $title) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	open_gate();
	$session->result;
	is($session->sqlstate, '00000', "$title: it has committed")
	  or diag($session->errors);
	is($control->query("SELECT count(*) FROM written WHERE what = '$election'"), 1,
		"$title: and what it wrote is there");
	return;
}

# A leader and, unless alone, another candidate, both sessions
sub contest
{
	my ($election, %opts) = @_;
	my ($leader, $next) = map { session($node, name => "$_ of $election") } qw(leader next);

	$control->query($opts{make} // "SELECT leader_election.create_election('$election', lease_duration => '"
		  . ($opts{lease} // "$LEASE us") . q{')});
	is($leader->query("CALL leader_election.campaign('$election', 'leader')"), 1, "$election: leads");
	$next->query("SELECT leader_election.join('$election', 'next')") unless $opts{alone};
	return ($leader, $next);
}

# -- The leader dies.
{
	my ($leader, $next) = contest('dies');
	my $session = commit(begin_fenced(writer('writer'), 'dies', 'wait'));
	my $at = clock();

	$leader->kill;
	is_followed('dies', 'next', 'dies: the next candidate leads (G9)');
	cmp_ok(($control->lease('dies', 'acquired_mono'))[0], '>=', $at + $LATE,
		'dies: not before the commit was late');
	is_ended($session, 'dies', 'dies');
}

# -- The lease of a detached leader runs out, and only detached candidates stand: the
# worker elects none of them.
{
	$control->query("SELECT leader_election.create_election('detached')");
	is($control->acquire('detached', 'leader'), 1, 'detached: leads');
	is($control->acquire('detached', 'next'), '', 'detached: another one stands');
	my $session = commit(begin_fenced(writer('writer'), 'detached', 'wait'));
	wait_until(sub { $control->acquire('detached', 'next'); leads('detached') eq 'next' },
		'the next leader');
	pass('detached: the next candidate leads (G9)');
	is_ended($session, 'detached', 'detached');
}

# -- A leader that is to renew its lease itself, and commits on its own session, fenced
# by a trigger
{
	my ($leader, $next) = contest('own');
	$leader->query("SELECT leader_election.leave('own')");
	is_followed('own', 'next', 'own: another one leads');
	$control->query("CREATE TABLE guarded (what text);
		CREATE TRIGGER only_the_leader BEFORE INSERT ON guarded FOR EACH STATEMENT
			EXECUTE FUNCTION leader_election.only_leader('own')");
	my $own = writer('own');

	# Nobody ends the commit before this test has seen it wait, and the lease outlasts the
	# calls until then.
	my $worker = stop_worker($control);
	my $lease = 2 * slowness();
	$control->query("SELECT leader_election.alter_election('own', lease_duration => '$lease s')");
	$next->query("SELECT leader_election.leave('own')");
	is($own->query("SELECT leader_election.join('own', 'own', auto_renew => false)"), 3, 'own: leads');
	$leader->query("SELECT leader_election.join('own', 'leader')");
	close_gate();
	$own->query_async("SELECT leader_election.renew('own'); BEGIN;
		INSERT INTO guarded VALUES ('own'); SELECT wait_at_commit('wait', '$gate'); COMMIT");
	wait_for_library($own);
	ok(holds_lock($own), 'own: is fenced by the trigger: the commit holds the lock');
	resume_process($worker);
	is_followed('own', 'leader', 'own: the next candidate leads when the lease has run out');
	is_ended($own, 'own', 'own');
	is($control->query('SELECT count(*) FROM guarded'), 0, 'own: nothing was written there');
}

# -- The lease is renewed for as long as the commit takes.
{
	my ($leader, $next) = contest('renewed');
	my $session = commit(begin_fenced(writer('writer'), 'renewed', 'wait'));

	wait_long();
	commits($session, 'renewed', 'renewed');
	is(leads('renewed'), 'leader', 'renewed: it leads on');
}

# -- Nobody could be elected, whether the commit holds the lock or not.
{
	my $call = 'SELECT leader_election.';
	my %reasons = (
		alone => '',
		paused => "${call}pause_election('paused')",
		quorum => "${call}alter_election('quorum', quorum => 3)",
		drained => "${call}drain_candidate('next', 'drained')",
		delayed => "${call}alter_election('delayed', takeover_delay => '1 h')");
	my (%leader, %next, %session);

	foreach my $e (sort keys %reasons)
	{
		($leader{$e}, $next{$e}) = contest($e, alone => $e eq 'alone');
		$control->query($reasons{$e}) if $reasons{$e};
		$session{$e} = commit(begin_fenced(writer("writer of $e"), $e, 'wait'));
	}

	# The delay counts from the end of a lease that has run out.
	my $worker = stop_worker($control);
	wait_until(sub { $control->query("SELECT leader_election.leader('delayed') IS NULL") eq 't' },
		'the end of the leases');
	$leader{$_}->kill foreach grep { $_ ne 'delayed' } keys %leader;
	resume_process($worker);
	wait_long();
	open_gate();
	commits($session{$_}, $_, $_) foreach sort keys %session;
	$_->kill foreach values %next;
}

# -- The leader was asked to yield to a certain candidate.
{
	my ($leader, $next) = contest('named');
	my $named = session($node, name => 'named');

	$named->query("SELECT leader_election.join('named', 'named')");
	my $session = commit(begin_fenced(writer('writer'), 'named', 'wait'));

	$control->query("SELECT leader_election.request_yield('named', 'named')");
	$leader->kill;
	is_followed('named', 'named', 'named: that one leads');
	is_ended($session, 'named', 'named');
	$_->kill foreach $next, $named;
}

# -- A candidate comes later.
{
	my ($leader, $next) = contest('later', alone => 1);
	my $session = commit(begin_fenced(writer('writer'), 'later', 'wait'));

	$leader->kill;
	wait_long();
	ok(!$session->finished, 'later: nobody waits, and the commit is left alone');
	$next->query("SELECT leader_election.join('later', 'next')");
	is_followed('later', 'next', 'later: then somebody does');
	is_ended($session, 'later', 'later');
}

# -- After a session that has ended, a takeover delay begins when its term is ended. (Once
# its lease has run out, the delay counts from there, and the commit holds up nobody.)
{
	my ($leader, $next) = contest('delay', lease => '1 h');
	$control->query("SELECT leader_election.alter_election('delay', takeover_delay => '1 h')");
	my $session = commit(begin_fenced(writer('writer'), 'delay', 'wait'));

	$leader->kill;
	is_followed('delay', '', 'delay: the term is ended');
	is_ended($session, 'delay', 'delay');
}

# -- The session is in its next transaction when the worker looks.
{
	my ($leader, $next) = contest('over');
	my $session = commit(begin_fenced(writer('writer'), 'over', 'wait'));
	my $worker = stop_worker($control);

	$leader->kill;
	wait_gone($node, $leader);
	commits($session, 'over', 'over');
	$session->query($_) for 'BEGIN', "INSERT INTO written VALUES ('next')";
	resume_process($worker);
	is_followed('over', 'next', 'over: the next candidate leads');
	wait_long();
	$session->query('COMMIT');
	is($session->sqlstate, '00000', 'over: the session goes on');
}

# -- What cannot be interrupted is told once to end, and diagnose() names it.
{
	my ($leader, $next) = contest('deaf');
	my $session = commit(begin_fenced(writer('writer'), 'deaf', 'deaf'));
	my $pid = $session->backend_pid;
	my $rows;

	$leader->kill;
	wait_long();
	is(leads('deaf'), 'leader', 'deaf: nobody follows');
	$rows = $control->query("SELECT severity, finding, remedy FROM leader_election.diagnose('deaf')");
	like($rows, qr/^error\|Nobody leads election "deaf": .* The reason: a commit that is fenced by its last term/m,
		'deaf: diagnose() says why');
	like($rows, qr/^error\|Process $pid of role .* commits a transaction that is fenced by election "deaf", and holds its lock for as long as that takes \(it began .* ago\).*\|The server ends its session .*pg_stat_activity WHERE pid = $pid/m,
		'deaf: and who it is');
	is(scalar(() = slurp_file($node->logfile) =~ /terminating process $pid/g), 1, 'deaf: the log has one line');
	open_gate();
	is_followed('deaf', 'next', 'deaf: the next candidate leads after it');
	$session->result;
	wait_gone($node, $session);
	pass('deaf: its session was ended');
	is($control->query("SELECT count(*) FROM written WHERE what = 'deaf'"), 1,
		'deaf: but it was committed while its term was the last one (G8)');
}

# -- What another library calls from its own part of a commit: before ours it is fenced like
# anything else,
{
	my ($leader, $next) = contest('called');
	my $call = "SELECT leader_election.assert_leader(''called'', 1)";
	my $run = sub {
		my ($session, $statement, $end) = @_;

		$control->query('TRUNCATE written');
		$session->query($_)
		  for 'BEGIN', "INSERT INTO written VALUES ('called')",
		  "SELECT wait_at_commit('run', '$statement')";
		$session->query($end // 'COMMIT');
		return $session->sqlstate;
	};
	my $is_written = sub { return $control->query('SELECT count(*) FROM written'); };

	$control->query("CREATE TABLE guarded_too (what text);
		CREATE TRIGGER only_the_leader BEFORE INSERT ON guarded_too FOR EACH STATEMENT
			EXECUTE FUNCTION leader_election.only_leader('called')");
	my $first = writer('comes first', last => 1);
	is($run->($first, $call), '00000', 'called: before our look: committed');
	is($is_written->(), 1, 'called: before our look: and written');

	# after it, it would not be looked at again, so it is refused,
	my $last = writer('comes last');
	is($run->($last, $call), '25000', 'called: after our look: refused (G8)');
	is($is_written->(), 0, 'called: after our look: nothing was written');
	is($run->($last, $call, "PREPARE TRANSACTION 'late'"), '25000', 'called: and in PREPARE TRANSACTION');
	is($control->query('SELECT count(*) FROM pg_prepared_xacts'), 0, 'called: nothing was prepared');

	# unless the transaction was fenced by that term before. What writes is refused, too:
	# it may have to be durable.
	$last->query($_) for 'BEGIN', "SELECT leader_election.assert_leader('called', 1)",
	  "SELECT wait_at_commit('run', '$call')", 'COMMIT';
	is($last->sqlstate, '00000', 'called: a fence that is there already');
	$last->query("SELECT wait_at_commit('run', \$\$SELECT leader_election.acquire('granted late', 'x')\$\$)");
	is($last->sqlstate, '25000', 'called: a grant after our part of the commit is refused (G6)');
	is($control->query("SELECT count(*) FROM leader_election.election WHERE election = 'granted late'"), 0,
		'called: nothing of it is left');
	is($last->acquire('granted late', 'x'), 1, 'called: the session goes on');

	# The trigger
	$last = writer('leads');
	$leader->query("SELECT leader_election.leave('called')");
	$next->query("SELECT leader_election.leave('called')");
	is($last->query("CALL leader_election.campaign('called', 'leads')") =~ /^\d+$/, 1, 'called: leads');
	is($run->($last, "INSERT INTO guarded_too VALUES (1)"), '25000', 'called: the trigger, after our look');
	is($control->query('SELECT count(*) FROM guarded_too'), 0, 'called: the trigger: nothing was written');
	$last->query('INSERT INTO guarded_too VALUES (1)');
	is($last->sqlstate, '00000', 'called: the session leads on, and writes');
	$_->finish foreach $first, $last;
}

# -- A transaction that fails gives the lock back before other libraries clean up,
{
	my ($leader, $next) = contest('fails');
	my $session = begin_fenced(writer('writer'), 'fails', 'fail');

	close_gate();
	$session->query_async('COMMIT');
	wait_for_library($session);
	ok(!holds_lock($session), 'fails: the lock is free');
	$leader->kill;
	is_followed('fails', 'next', 'fails: the next candidate leads');
	ok(!$session->finished, 'fails: while another library cleans up');
	open_gate();
	$session->result;
	like($session->errors, qr/as the test wants it/, 'fails: it has failed');
	unlike($session->errors, qr/WARNING/, 'fails: and had the lock');
}

# in a procedure, too,
{
	my ($leader, $next) = contest('procedure');
	my $session = writer('writer');

	close_gate();
	$session->query_async("DO \$\$ BEGIN
		INSERT INTO written VALUES ('procedure');
		PERFORM leader_election.assert_leader('procedure', 1);
		PERFORM wait_at_commit('fail', '$gate');
		COMMIT;
	END \$\$");
	wait_for_library($session);
	ok(!holds_lock($session), 'procedure: the lock is free');
	open_gate();
	$session->result;
	like($session->errors, qr/as the test wants it/, 'procedure: it has failed');
	unlike($session->errors, qr/WARNING/, 'procedure: and had the lock');
}

# and where they come before us, since the fence itself is what fails.
{
	my ($leader, $next) = contest('lost');
	my $session = begin_fenced(writer('writer', last => 1), 'lost', 'abort');

	$leader->kill;
	is_followed('lost', 'next', 'lost: the next candidate leads');
	close_gate();
	$session->query_async('COMMIT');
	wait_for_library($session);
	ok(!holds_lock($session), 'lost: the lock is free');
	open_gate();
	$session->result;
	is($session->sqlstate, 'LE002', 'lost: LE002');
}

# -- Where no worker can be had, candidates' own calls do it.
{
	$node->append_conf('postgresql.conf', 'max_worker_processes = 0');
	$node->restart;
	$control = session($node, name => 'control');
	my ($leader, $next) = contest('alone at last');
	my $session = commit(begin_fenced(writer('writer'), 'alone at last', 'wait'));
	my $next_term = '';

	$leader->kill;
	wait_until(
		sub {
			$next_term = $next->query("SELECT leader_election.join('alone at last', 'next')") // '';
			return $next_term eq '2';
		},
		'join() to elect');
	is($next_term, '2', 'without a worker: join() elects');
	is_ended($session, 'alone at last', 'without a worker');

	is($control->acquire('polled', 'leader'), 1, 'without a worker: acquire()');
	$session = commit(begin_fenced(writer('writer'), 'polled', 'wait'));
	wait_until(sub { $control->acquire('polled', 'next'); leads('polled') eq 'next' },
		'acquire() to elect');
	is(leads('polled'), 'next', 'without a worker: acquire() elects');
	is_ended($session, 'polled', 'without a worker, acquire()');

	# The last leader, if nobody else stands
	is($control->acquire('again', 'leader'), 1, 'again: leads');
	$session = commit(begin_fenced(writer('writer'), 'again', 'wait'));
	wait_until(sub { $next_term = $control->acquire('again', 'leader'); $next_term ne '' }, 'acquire() to elect');
	is($next_term, 2, 'again: and leads again, when it calls');
	is_ended($session, 'again', 'again');

	# In a seat that its group has no more nobody is elected.
	($leader, $next) = contest('group/2',
		make => "SELECT leader_election.create_group('group', 2, lease_duration => '$LEASE us')");
	$session = commit(begin_fenced(writer('writer'), 'group/2', 'wait'));
	$control->query("SELECT leader_election.alter_group('group', seats => 1)");
	$leader->kill;
	wait_gone($node, $leader);
	my $until = clock() + $LONG;
	wait_until(
		sub { $next->query("SELECT leader_election.join('group/2', 'next')"); clock() > $until },
		'a while');
	commits($session, 'group/2', 'withdrawn');
}

$node->stop;
done_testing();
