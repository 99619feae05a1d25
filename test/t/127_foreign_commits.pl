# A fenced commit that waits for other servers: for the COMMIT on a foreign one, by
# postgres_fdw, and for a synchronous standby.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use PostgreSQL::Test::Utils;
use SyncStandby;
use Test::More;
use Time::HiRes qw(time);

my $LEASE = 2_500_000;    # microseconds
my $LONG = 5_000_000;     # what is not ended by then is left alone
my $GATE = 42;            # an advisory lock

my ($node, $control);

sub clock { return $control->query('SELECT leader_election._monotonic_clock()'); }

sub wait_long
{
	my $until = clock() + $LONG;

	wait_until(sub { clock() > $until }, 'a while');
	return;
}

sub leads { return ($control->lease($_[0], 'leader'))[0] // ''; }

sub is_followed
{
	my ($election, $title) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	eval { wait_until(sub { leads($election) eq 'next' }, $title) };
	return is(leads($election), 'next', $title);
}

sub contest
{
	my ($election) = @_;
	my ($leader, $next) = map { session($node, name => "$_ of $election") } qw(leader next);

	$control->query("SELECT leader_election.create_election('$election')");
	is($leader->query("CALL leader_election.campaign('$election', 'leader')"), 1, "$election: leads");
	$next->query("SELECT leader_election.join('$election', 'next')");
	return ($leader, $next);
}

sub holds_lock
{
	my ($session) = @_;

	return $control->query("SELECT count(*) FROM pg_locks WHERE objsubid = 21
		AND mode = 'ShareLock' AND granted AND pid = " . $session->backend_pid);
}

sub wait_event_of
{
	my ($session) = @_;

	return $control->query('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $session->backend_pid)
	  // '';
}

sub is_in_log { return slurp_file($node->logfile) =~ /terminating process $_[0],/; }

sub written { return $control->query("SELECT count(*) FROM written WHERE what = '$_[0]'"); }

# -- A foreign server

SKIP:
{
	chomp(my $share = `@{[ $ENV{PG_CONFIG} // 'pg_config' ]} --sharedir`);

	skip 'postgres_fdw is not installed', 1 unless -e "$share/extension/postgres_fdw.control";
	$node = new_server(config => "leader_election.lease_duration = '${LEASE}us'");
	my $port = $node->port;
	my $host = $node->host;
	$node->safe_psql('postgres', 'CREATE DATABASE other');

	# The COMMIT over there takes as long as the gate is closed.
	$node->safe_psql('other', "CREATE TABLE there (what text);
		CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS \$\$
		BEGIN PERFORM pg_advisory_xact_lock($GATE); RETURN NULL; END \$\$;
		CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON there DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION wait()");
	$node->safe_psql('postgres', "CREATE EXTENSION postgres_fdw;
		CREATE SERVER other FOREIGN DATA WRAPPER postgres_fdw
			OPTIONS (host '$host', port '$port', dbname 'other');
		CREATE USER MAPPING FOR PUBLIC SERVER other;
		CREATE FOREIGN TABLE there (what text) SERVER other;
		CREATE TABLE written (what text)");
	$control = session($node, name => 'control');
	my $gate = session($node, name => 'gate', dbname => 'other');

	my $commits_there = sub {
		my ($session, $election) = @_;

		$gate->query("SELECT pg_advisory_lock($GATE)");
		$session->query($_)
		  for 'BEGIN', "INSERT INTO there VALUES ('$election')",
		  "SELECT leader_election.assert_leader('$election', 1)",
		  "INSERT INTO written VALUES ('$election')";
		is($session->sqlstate, '00000', "$election: a transaction that writes there, too");
		$session->query_async('COMMIT');
		wait_for($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $GATE
			AND NOT granted", 1);
		return;
	};

	# The session has used the foreign server before it was fenced.
	{
		my ($leader, $next) = contest('after');
		my $session = session($node, name => 'writer');
		my $pid = $session->backend_pid;

		$commits_there->($session, 'after');
		ok(holds_lock($session), 'after: it holds the lock while it commits there');
		$leader->kill;
		is_followed('after', 'after: the next candidate leads (G9)');
		$session->result;
		is($session->sqlstate, '08006', 'after: the session was ended');
		ok(is_in_log($pid), 'after: the log says why');
		is(written('after'), 0, 'after: nothing was written');
		$gate->query('SELECT pg_advisory_unlock_all()');
	}

	# The same, and the lease is renewed meanwhile.
	{
		my ($leader, $next) = contest('renewed');
		my $session = session($node, name => 'writer');

		$commits_there->($session, 'renewed');
		wait_long();
		$gate->query('SELECT pg_advisory_unlock_all()');
		$session->result;
		is($session->sqlstate, '00000', 'renewed: it has committed');
		is(written('renewed'), 1, 'renewed: what it wrote is there');
		is(leads('renewed'), 'leader', 'renewed: it leads on');
	}

	# With the library preloaded for the database, the fence comes last.
	my $notice = qr/^notice\|This database has foreign servers, and the library is not preloaded/m;
	my $diagnose = "SELECT severity, finding FROM leader_election.diagnose('renewed')";
	like($control->query($diagnose), $notice, 'diagnose() says that the library is not preloaded');
	$node->safe_psql('postgres', "ALTER DATABASE postgres SET session_preload_libraries = 'leader_election'");
	$control = session($node, name => 'control');
	unlike($control->query($diagnose), $notice, 'and no more when it is');
	{
		my ($leader, $next) = contest('preloaded');
		my $session = session($node, name => 'writer');

		$commits_there->($session, 'preloaded');
		ok(!holds_lock($session), 'preloaded: it holds no lock while it commits there');
		$leader->kill;
		is_followed('preloaded', 'preloaded: the next candidate leads');
		$gate->query('SELECT pg_advisory_unlock_all()');
		$session->result;
		is($session->sqlstate, 'LE002', 'preloaded: LE002');
		ok(!is_in_log($session->backend_pid), 'preloaded: the session was left alone');
		is(written('preloaded'), 0, 'preloaded: nothing was written here');
		is($gate->query("SELECT count(*) FROM there WHERE what = 'preloaded'"), 1,
			'preloaded: what was written there is not fenced');
	}
	$node->stop;
}

# -- A synchronous standby that hangs

my $gate = PostgreSQL::Test::Utils::tempdir() . '/gate';
my $pair = SyncStandby->new(config => compile_library('wait_at_commit') . "leader_election.lease_duration = '${LEASE}us'");
$node = $pair->{primary};
$control = $pair->{observer};
$control->query(q(CREATE TABLE written (what text);
	CREATE FUNCTION wait_at_commit(text, text) RETURNS void LANGUAGE c AS 'wait_at_commit'));

# A commit with another library behind ours that keeps it there.
sub commit_gated
{
	my ($election) = @_;
	my $session = session($node, name => "writer of $election");

	append_to_file($gate, '');
	$session->query("LOAD '$_'") for qw(wait_at_commit leader_election);
	$session->query($_)
	  for 'BEGIN', "INSERT INTO written VALUES ('$election')",
	  "SELECT leader_election.assert_leader('$election', 1)",
	  "SELECT wait_at_commit('wait', '$gate')";
	$session->query_async('COMMIT');
	wait_until(sub { holds_lock($session) }, 'the commit to hold the lock');
	return $session;
}

# Nobody's election is proven, so nobody's session is ended, at whatever step its
# commit is.
{
	my ($leader, $next) = contest('unproven');
	my $session = commit_gated('unproven');

	$pair->stop_line;
	$leader->kill;
	wait_long();
	ok(!$session->finished, 'unproven: a commit before its record is left alone (G6)');
	unlink $gate;
	wait_until(sub { wait_event_of($session) eq 'SyncRep' }, 'the wait for the standby');
	wait_long();
	ok(!$session->finished, 'unproven: so is one that waits for the standby (G6)');
	is(leads('unproven'), 'leader', 'unproven: nobody follows');
	$pair->resume_line;
	is_followed('unproven', 'unproven: the next candidate leads when the standby confirms');
	$session->result;
	is($session->sqlstate, '00000', 'unproven: the commit was confirmed, too')
	  or diag($session->errors);
	is(written('unproven'), 1, 'unproven: what it wrote is there');
	ok(!is_in_log($session->backend_pid), 'unproven: it was not ended');
}

# The standbys confirm, and then a session is ended.
{
	my ($leader, $next) = contest('proven');
	my $session = commit_gated('proven');

	$leader->kill;
	is_followed('proven', 'proven: the next candidate leads (G9)');
	$session->result;
	is($session->sqlstate, '08006', 'proven: the session was ended');
	unlink $gate;
}

# A commit that the worker has seen in its way gets its second after standbys that did
# not confirm: it may have waited for them, too. (A slow machine may be too late.)
foreach my $try (map { "frozen $_" } 1 .. 5)
{
	my ($leader, $next) = contest($try);
	my $session = commit_gated($try);
	my $at;

	$leader->kill;
	wait_until(
		sub {
			$session->finished || $control->query("SELECT EXISTS (SELECT FROM pg_locks
				WHERE objsubid = 21 AND mode = 'ExclusiveLock' AND NOT granted)") eq 't';
		},
		'the worker to want the lock');
	$pair->stop_line;
	wait_long();
	if ($session->finished)
	{
		$pair->resume_line;
		unlink $gate;
		next;
	}
	is(leads($try), 'leader', "$try: nobody follows");
	$at = clock();
	$pair->resume_line;
	is_followed($try, "$try: the next candidate leads");
	cmp_ok(($control->lease($try, 'acquired_mono'))[0], '>', $at + 1_000_000,
		"$try: a second after the standby confirms again");
	unlink $gate;
	last;
}

# What a signal does to a commit that waits for the standby: a cancel would have the
# client told that it is committed, which no standby knows; a termination does not.
# Either way it is committed here, and nobody is elected before the standby confirms.
foreach my $signal (qw(cancel terminate))
{
	my ($leader, $next) = contest($signal);
	my $session = commit_gated($signal);

	$pair->stop_line;
	unlink $gate;
	wait_until(sub { wait_event_of($session) eq 'SyncRep' }, 'the wait for the standby');
	$leader->kill;
	$control->query("SELECT pg_${signal}_backend(" . $session->backend_pid . ')');
	$session->result;
	is($session->sqlstate, $signal eq 'cancel' ? '00000' : '08006',
		"$signal: " . ($signal eq 'cancel' ? 'the client is told of a commit' : 'the client is told nothing'));
	is(written($signal), 1, "$signal: it is visible here");
	wait_long();
	is(leads($signal), 'leader', "$signal: nobody is elected (G6)");
	$pair->resume_line;
	is_followed($signal, "$signal: until the standby confirms");
	wait_for($pair->{standby}, "SELECT count(*) FROM written WHERE what = '$signal'", 1);
	pass("$signal: then it has the commit");
}

$pair->{standby}->stop;
$node->stop;
done_testing();
