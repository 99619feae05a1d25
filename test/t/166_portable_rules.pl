# The portable edition: what it has not, rules of its own, and what its page
# (docs/portable.md) says of transactions, roles, clocks and standbys, one by one.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server(streaming => 1, config => "client_min_messages = warning\n");
$node->safe_psql('postgres', $_) foreach (map { "CREATE ROLE $_ LOGIN" } qw(installer app operator third stranger)),
  'GRANT operator TO app', 'CREATE DATABASE portable TEMPLATE template0', 'GRANT CREATE ON DATABASE portable TO installer';
system_or_bail('psql', '-Xq', '-v', 'anyway=1', '-v', 'ON_ERROR_STOP=1',
	'-f', "$FindBin::RealBin/../../sql/portable.sql", '-d', $node->connstr('portable') . ' user=installer');

sub connected
{
	my ($name, $user, $on) = @_;

	return session($on // $node, name => $name, dbname => 'portable', user => $user);
}

my $super = connected('super');
my $owner = connected('owner', 'installer');

#
# What the file leaves behind
#

my $share = $node->config_data('--sharedir');
is(join(' ', grep { -e } map { "$share/extension/$_.sql" } qw(portable portable_to_extension extension_to_portable)), '', 'the file is not installed with the extension');
ok(-e "$share/extension/leader_election.control", 'which is installed there');
is($super->query('SELECT count(*) FROM leader_election.server'), 0, 'the file makes no row of the server: that of a dump would collide with it');
is($super->query(q(SELECT count(*) FROM pg_namespace n WHERE n.nspname LIKE 'leader_election%' AND has_schema_privilege('app', n.oid, 'USAGE'))),
	0, 'nobody may use its schemas');
$owner->query('GRANT USAGE ON SCHEMA leader_election TO app, operator, third; GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app, operator, third');
is($super->query(q(SELECT has_schema_privilege('app', 'leader_election_internal', 'USAGE'), count(*) FROM pg_proc p
	WHERE p.pronamespace = 'leader_election_internal'::regnamespace AND has_function_privilege('app', p.oid, 'EXECUTE'))),
	'f|0', 'and what is internal not even when all routines are granted');
is($super->query(q(SELECT count(*) FROM pg_index WHERE indrelid = 'leader_election.lease'::regclass)), 1, 'a lease has one index: its renewals stay HOT');
is($super->query(q{SELECT string_agg(p.proname, ' ') FROM pg_proc p WHERE p.pronamespace::regnamespace::text LIKE 'leader_election%'
	AND regexp_replace(p.prosrc, '--[^\n]*', '', 'g') ~* '\m(now|transaction_timestamp)\(|\mcurrent_timestamp\M|\mlocaltimestamp\M'}), '',
	'no routine takes the time at which its transaction began');

my ($app, $other, $operator) = (connected('app', 'app'), connected('other', 'app'), connected('operator', 'operator'));

my $number = 0;
sub led
{
	my ($lease) = @_;
	my $election = 'rule ' . ++$number;

	$app->query("SELECT leader_election.create_election('$election', takeover_delay => '0', lease_duration => '" . ($lease // '1 hour') . "')");
	return ($election, $app->acquire($election, 'a'));
}

sub end_lease
{
	my ($election) = @_;

	$super->query("UPDATE leader_election.lease SET expires_at = clock_timestamp() WHERE election = '$election'");
	return;
}

# Renewals are HOT: they write no index, and find the room that earlier ones have left.
{
	my ($election, $term) = led();

	$app->query("SELECT FROM leader_election.renew('$election', $term)") foreach 1 .. 300;
	$app->query('SELECT pg_stat_force_next_flush()');
	my ($updates, $hot) = split /\|/, $super->query(q(SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'leader_election.lease'::regclass));
	cmp_ok($updates, '>', 300, 'renewals are counted');
	cmp_ok($hot, '>', 0.9 * $updates, 'and are HOT');
	cmp_ok($super->query(q(SELECT pg_relation_size('leader_election.lease'))), '<', 100_000, 'in few pages');
	$super->query("DELETE FROM leader_election.election WHERE election = '$election'");
}

#
# What it has not
#

# Every function that the extension has besides is there, and says so.
my %ours = map { $_ => 1 } $super->query(q(SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'leader_election'::regnamespace
	AND p.prosrc !~ 'is not in the portable edition')), 'request_yield', 'join';
my @missing = grep { !$ours{ /^(\w+)/ ? $1 : '' } } $node->safe_psql('postgres', q(SELECT p.proname || ' ' || p.pronargs FROM pg_proc p
	WHERE p.pronamespace = 'leader_election'::regnamespace AND p.prokind = 'f' ORDER BY 1)) =~ /^(.+)$/mg;
is(join(' ', map { s/ .*//r } @missing), '_measure _measure_server _monotonic_clock acquire_any alter_group create_group drain_candidate '
	  . 'drop_group join_group pause_all pause_election resume_all resume_election undrain_candidate', 'what it has not');
my @NOT_HERE = (
	(map { my ($name, $count) = split / /; [ "leader_election.$name(" . join(', ', ('NULL') x $count) . ')', "leader_election.$name()" ] } @missing),
	(map { [ "leader_election.create_election('no', '$_')", qq(strategy "$_") ] } qw(lowest bully ring zab spread)),
	(map { [ "leader_election.create_election('no', $_ => '1 s')", $_ ] } qw(preempt_delay initial_delay)),
	[ q(leader_election.join('no', 'a', auto_renew => true)), 'auto_renew' ],
	[ q(leader_election.join('no', 'a')), 'auto_renew' ]);
foreach my $call (@NOT_HERE)
{
	is($app->sqlstate_of("SELECT FROM $call->[0]"), '0A000', "$call->[0]: it is told so");
	like($app->errors, qr/\Q$call->[1] is not in the portable edition\E\n.*HINT:  \S/s, '... by name, with a hint');
}
is($app->sqlstate_of("SELECT FROM leader_election.$_"), '0A000', "view $_") foreach qw(metrics server_metrics);
is($app->query(q(SELECT count(*) FROM leader_election.election)), 0, 'and nothing is made by that');

#
# Settings
#

$app->acquire('of itself', 'a');
is($super->query(q(SELECT takeover_delay FROM leader_election.election WHERE election = 'of itself')), '00:00:01', 'an election of its own making has a takeover delay of 1 s');
$owner->query(q(SELECT leader_election.configure(lease_duration => '20 s', auto_create => true)));
$owner->query(q(SELECT leader_election.configure(history_retention => '7 days')));
is($super->query('SELECT lease_duration, history_retention, auto_create, announce FROM leader_election.server'), '00:00:20|7 days|t|t', 'configure() leaves as it is what is NULL');
$owner->query(q(SELECT leader_election.configure(auto_create => false)));
is($app->sqlstate_of(q(SELECT FROM leader_election.acquire('not there', 'a'))), 'LE003', 'without auto_create no election is made');
$owner->query(q(SELECT leader_election.configure(auto_create => true)));

# What belongs to superusers with the extension belongs to the owner of the schema.
$operator->query(q(SELECT leader_election.create_election('of the operator')));
is(connected('third', 'third')->sqlstate_of(q(SELECT leader_election.alter_election('of the operator', quorum => 2))), '42501', 'the election of another role');
is($owner->sqlstate_of(q(SELECT leader_election.alter_election('of the operator', quorum => 2))), '00000', 'is the owner\'s of the schema, too');

#
# The words of the extension, where the script of 142_portable does not come
#

$node->safe_psql('postgres', 'GRANT USAGE ON SCHEMA leader_election TO app, third; GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app, third');
sub same_words
{
	my ($what, $sqlstate, $user, $call) = @_;
	my %said;

	foreach my $dbname (qw(postgres portable))
	{
		my ($caller, $admin) = (session($node, name => 'caller', dbname => $dbname, user => $user), session($node, name => 'admin', dbname => $dbname));

		$caller->query('\set SHOW_CONTEXT never');
		$call->($caller, $admin, $dbname, sub { $said{$dbname} = $caller->sqlstate_of($_[0]) . ' ' . $caller->errors });
		$_->finish foreach $caller, $admin;
	}
	is($said{portable}, $said{postgres}, "$what: in the words of the extension");
	like($said{portable}, qr/^$sqlstate /, '... and with this SQLSTATE');
	return;
}

same_words('busy', '55P03', 'app', sub {
	my ($caller, $admin, undef, $say) = @_;

	$admin->query(q(SELECT leader_election.create_election('busy', lease_duration => '1 hour')));
	$caller->acquire('busy', 'a');
	$admin->query(q(BEGIN; SELECT FROM leader_election.lease WHERE election = 'busy' FOR UPDATE));
	$say->(q(SET lock_timeout = '100 ms'; SELECT FROM leader_election.renew('busy', 1)));
});
same_words('who may not create elections', 'LE003', 'third', sub {
	my (undef, $admin, undef, $say) = @_;

	$admin->query('REVOKE EXECUTE ON FUNCTION leader_election.create_election FROM third');
	$say->(q(SELECT FROM leader_election.acquire('not there', 'a')));
});
same_words('a session that was reset', 'LE006', 'app', sub {
	my ($caller, undef, undef, $say) = @_;

	$caller->query(q(SELECT leader_election.join('reset', 'a', auto_renew => false)));
	$caller->query('DISCARD ALL');
	$say->(q(SELECT leader_election.join('reset', 'a', auto_renew => false)));
});
same_words('no election on first use', 'LE003', 'app', sub {
	my ($caller, $admin, $dbname, $say) = @_;
	my $set = sub {
		my ($value) = @_;

		return $admin->query("SELECT leader_election.configure(auto_create => $value)") if $dbname eq 'portable';
		$admin->query(q(SELECT leader_election.leader('e')));    # which loads the library
		$admin->query("ALTER SYSTEM SET leader_election.auto_create = $value");
		$node->reload;
		wait_until(sub { $caller->query('SHOW leader_election.auto_create') eq ($value eq 'true' ? 'on' : 'off') }, 'the setting');
	};
	$caller->query(q(SELECT leader_election.leader('e')));
	$set->('false');
	$say->(q(SELECT FROM leader_election.acquire('not there', 'a')));
	$set->('true');
});

#
# The caller
#

$app->query('SET ROLE operator');
my ($election) = led();
is($super->query("SELECT role FROM leader_election.lease WHERE election = '$election'"), 'operator', 'a lease belongs to the role that was SET');
$app->query('RESET ROLE');
is($app->sqlstate_of("SELECT leader_election.release('$election', 1)"), '42501', 'and not to who has set it');
$super->query(q(CREATE FUNCTION public.lead(e text) RETURNS bigint LANGUAGE sql SECURITY DEFINER
	AS 'SELECT term FROM leader_election.acquire(e, $$a$$)'; ALTER FUNCTION public.lead OWNER TO operator));
is($app->query(q(SELECT public.lead('through a function'))), 1, 'what is led through a function');
is($super->query(q(SELECT role FROM leader_election.lease WHERE election = 'through a function')), 'app', 'belongs to the role that called that, unlike with the extension');

#
# Deadlines
#

($election, my $term) = led();
$app->query("SELECT leader_election.alter_election('$election', lease_duration => '1 min')");
cmp_ok($app->query("SELECT remaining_ms FROM leader_election.renew('$election', $term)"), '>', 120_000, 'a renewal moves no deadline back');
($election, $term) = led();
my $deadline = "SELECT expires_at FROM leader_election.lease WHERE election = '$election'";
my $was = $super->query($deadline);
$app->query("SELECT leader_election.request_yield('$election')");
is($app->query("SELECT yielding FROM leader_election.renew('$election', $term)"), 't', 'whoever is asked to yield is told so');
is($super->query($deadline), $was, 'and its lease is not extended');

#
# Transactions
#

# No advisory lock is taken for a detached candidate: any role could hold it.
($election, $term) = led();
$app->query("BEGIN; SELECT leader_election.release('$election', $term)");
is($super->query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = 'portable')"), 0, 'no advisory lock is held for detached candidates');
is($app->query('SHOW lock_timeout'), '1s', 'what goes on after a call waits for a lock for a second at most');
is($app->sqlstate_of("SELECT FROM leader_election.acquire('$election', 'b')"), '25001', 'a second call in a block is refused');
$app->query('ROLLBACK');
is($app->query('SHOW lock_timeout'), '0', 'which ends with its transaction');

# The first call in a block locks its election, and no other one, for a lease at most.
($election, $term) = led('300 ms');
my ($beside, $beside_term) = led();
$super->query("UPDATE leader_election.lease SET expires_at = clock_timestamp() + interval '1 hour' WHERE election = '$election'");
my $idle = connected('idle', 'app');
$idle->query("BEGIN; SELECT leader_election.release('$election', $term)");
is($idle->sqlstate, '00000', 'a first call in a block');
is($app->query("SELECT term FROM leader_election.renew('$beside', $beside_term)"), $beside_term, 'holds up no other election (G9)');
wait_until(sub { $app->query("SELECT 'renewed' FROM leader_election.renew('$election', $term)") }, 'the end of the block');
is($idle->sqlstate_of('COMMIT'), '08006', 'and is ended when it sits idle for a lease (G9)');

# A snapshot of its own
($election, $term) = led();
$other->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM leader_election.election');
$app->query("SELECT leader_election.release('$election', $term)");
is($other->query("SELECT leader_election.is_leader('$election', $term)"), 't', 'is_leader() says what an old snapshot has');
is($other->sqlstate_of("SELECT leader_election.assert_leader('$election', $term)"), '40001', 'but no fence passes');
$other->query('ROLLBACK');

# What a role sets by itself, of which the page warns
$super->query('CREATE TABLE public.jobs (id integer); GRANT ALL ON public.jobs TO app');
($election, $term) = led();
$super->query("CREATE TRIGGER fenced BEFORE INSERT ON public.jobs FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('$election')");
end_lease($election);
my $forged = "BEGIN; SET LOCAL leader_election_portable.fenced = '{\"$election\": $term}'; INSERT INTO public.jobs VALUES (1)";
is($app->sqlstate_of('INSERT INTO public.jobs VALUES (1)'), 'LE001', 'a term that is over writes nothing');
is($app->sqlstate_of($forged), '00000', 'but for a role that forges the notes of its transaction');
$app->query('ROLLBACK');
is($other->acquire($election, 'b'), $term + 1, 'until another one is elected');
is($app->sqlstate_of($forged), 'LE001', 'then it is refused');
$app->query('ROLLBACK');

#
# Who is elected, and who is told
#

# race: who calls first, of either kind. Who has stood longest is first in the view.
($election, $term) = led();
$other->acquire($election, 'b');
$operator->query("SELECT leader_election.join('$election', 's', auto_renew => false)");
is($super->query("SELECT string_agg(candidate, ' ' ORDER BY position) FROM leader_election.candidates WHERE election = '$election'"), 's a b',
	'sessions are first in the view, then who has stood longest');
end_lease($election);
is($other->acquire($election, 'b'), $term + 1, 'but who calls first is elected');

# An expiry is told with the next election.
$super->query('LISTEN leadership_changed');
($election, $term) = led();
$super->notifications;
end_lease($election);
$other->acquire($election, 'b');
like(join("\n", $super->notifications), qr/^\{"election":"$election","event":"elected","term":2,"leader":"b","previous":"a","reason":"expired",[^\n]*$/,
	'an expiry is told by the next election, at once (G10)');
$super->query('UNLISTEN *');

# A session that dies is followed within a poll of campaign().
$app->query(q(SELECT leader_election.create_election('poll', takeover_delay => '0', lease_duration => '1 hour')));
my $dies = connected('dies', 'app');
is($dies->query(q(SELECT leader_election.join('poll', 'dies', auto_renew => false))), 1, 'a session leads');
$other->query_async(q(CALL leader_election.campaign('poll', 'waits', auto_renew => false)));
wait_for($node, "SELECT count(*) = 2 FROM leader_election.candidates WHERE election = 'poll'", 't', undef, 'portable');
my $start = machine_time();
$dies->kill;
$other->result;
cmp_ok(machine_time() - $start, '<', 1, 'when it dies, campaign() ends soon (G7)');
is($other->query(q(SELECT leader_election.term('poll'))), 2, 'and leads');

# One that is killed during a query is noticed when its lease is over, unless the server looks.
foreach my $looks (0, 1)
{
	my $election = "killed $looks";

	$app->query("SELECT leader_election.create_election('$election', takeover_delay => '0', lease_duration => '1 hour')");
	my $killed = connected('killed', 'app');
	$killed->query("SET client_connection_check_interval = '100 ms'") if $looks;
	$killed->query("SELECT leader_election.join('$election', 'killed', auto_renew => false)");
	$killed->query_async('SELECT pg_sleep(10000)');
	wait_for($node, "SELECT wait_event FROM pg_stat_activity WHERE pid = " . $killed->backend_pid, 'PgSleep');
	$killed->kill;
	if ($looks)
	{
		wait_until(sub { $app->acquire($election, 'next') }, 'its successor');
		pass('a leader that is killed in a query is followed, if the server looks');
	}
	else
	{
		is($app->acquire($election, 'next'), '', 'a leader that is killed in a query leads on');
		end_lease($election);
		is($app->acquire($election, 'next'), 2, 'until its lease is over (G7)');
		$super->query('SELECT pg_terminate_backend(' . $killed->backend_pid . ')');
	}
}

# Failed calls leave no locks of sessions behind.
my $keys = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = " . $app->backend_pid;
$app->query("DO \$\$ BEGIN FOR i IN 1 .. 10000 LOOP
	BEGIN PERFORM leader_election.join('poll', 'waits', auto_renew => false); EXCEPTION WHEN SQLSTATE 'LE004' THEN NULL; END;
	END LOOP; END \$\$");
is($app->sqlstate, '00000', '10,000 joins fail');
cmp_ok($app->query($keys), '<=', 1, 'and leave no more than one key behind');

# Who may connect can lock the key of a session that has ended: the page says what comes of it.
my ($theirs, $locker) = (connected('theirs', 'app'), connected('locker', 'stranger'));
$app->query(q(SELECT leader_election.create_election('locked', takeover_delay => '0', lease_duration => '1 hour')));
is($theirs->query(q(SELECT leader_election.join('locked', 'theirs', auto_renew => false))), 1, 'a session leads');
my $key = $super->query("SELECT classid::bigint << 32 | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND pid = " . $theirs->backend_pid);
$locker->query_async("SELECT pg_advisory_lock($key)");
wait_for($node, 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $locker->backend_pid, 'Lock');
$super->query('SELECT pg_terminate_backend(' . $theirs->backend_pid . ')');
$locker->result;
is($locker->sqlstate, '00000', 'a stranger has the lock of a session that has ended');
is($other->acquire('locked', 'next'), '', 'then it seems to live');
is($app->sqlstate_of(q(SELECT leader_election.join('locked', 'theirs', auto_renew => false))), 'LE004', 'under its name, too');
end_lease('locked');
is($other->acquire('locked', 'next'), 2, 'until its lease is over');

#
# Sessions that have ended
#

sub ended
{
	my ($session) = @_;
	my $pid = $session->backend_pid;

	$super->query("SELECT pg_terminate_backend($pid)");
	wait_for($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0');
	return;
}

# Who knows the term of one does not prolong it.
$app->query(q(SELECT leader_election.create_election('ended', takeover_delay => '0', lease_duration => '1 hour')));
my $ends = connected('ends', 'app');
is($ends->query(q(SELECT leader_election.join('ended', 'ends', auto_renew => false))), 1, 'a session leads');
is($app->sqlstate_of(q(SELECT leader_election.renew('ended', 1))), '22023', 'its term is not renewed by others');
ended($ends);
my $expires = $super->query(q(SELECT expires_at FROM leader_election.lease WHERE election = 'ended'));
is($app->query(q(SELECT count(*) FROM leader_election.renew('ended', 1))), 0, 'nor when it has ended');
is($super->query(q(SELECT expires_at FROM leader_election.lease WHERE election = 'ended')), $expires, 'and no deadline moves');

# Their rows go with the next grant, as do those of detached candidates that have not called
# for ten leases; but not that of a session that was reset, which is to be told (LE006).
my $reset = connected('reset', 'app');
$reset->query(q(SELECT leader_election.join('ended', 'reset', auto_renew => false); DISCARD ALL));
$app->acquire('ended', 'z');
$app->query("SELECT leader_election.release('ended', 2)");
$app->acquire('ended', $_) foreach qw(silent late);
my $silent = connected('silent', 'app');
$silent->query(q(SELECT leader_election.join('ended', 'gone', auto_renew => false)));
ended($silent);

# Its process ID may have been given out again since the server was started.
my $older = connected('older', 'app');
$older->query(q(SELECT leader_election.join('ended', 'older', auto_renew => false)));
$super->query(q(UPDATE leader_election.candidate SET session_started = session_started - interval '1 day' WHERE candidate = 'older'));
$super->query(qq(UPDATE leader_election.candidate SET seen_at = seen_at - interval '$$_[1]' WHERE candidate = '$$_[0]'))
	foreach [ 'silent', '11 hours' ], [ 'late', '9 hours' ];
end_lease('ended');
isnt($other->acquire('ended', 'next'), '', 'another one is elected');
is($super->query(q(SELECT string_agg(candidate, ' ' ORDER BY candidate) FROM leader_election.candidate WHERE election = 'ended')),
	'late next reset z', 'and the rows of those who have ended are gone');
is($reset->sqlstate_of(q(SELECT leader_election.renew('ended'))), 'LE006', 'a session that was reset is told so');

# A leader that was asked to yield to a candidate, and dies: that one follows, also after a delay.
foreach my $delay ('0', '1 ms')
{
	my $election = "asked $delay";

	$operator->query("SELECT leader_election.create_election('$election', takeover_delay => '$delay', lease_duration => '1 hour')");
	my $asked = connected('asked', 'app');
	is($asked->query("SELECT leader_election.join('$election', 'asked', auto_renew => false)"), 1, 'a session leads');
	$app->acquire($election, $_) foreach qw(b c);
	$operator->query("SELECT leader_election.request_yield('$election', 'c')");
	is($operator->sqlstate, '00000', 'is asked to yield to a candidate');
	ended($asked);
	is($app->acquire($election, 'b'), '', "it dies, and another one calls, with a delay of $delay");
	is($super->query("SELECT reserved_until = coalesce(greatest(not_before_at, h.ended_at), h.ended_at) + interval '1 hour'
		FROM leader_election.lease l JOIN leader_election.history h USING (election) WHERE l.election = '$election'"), 't', 'the lease is kept for the one that was named, for a lease behind the delay');
	wait_for($node, "SELECT coalesce(not_before_at < clock_timestamp(), true) FROM leader_election.lease WHERE election = '$election'", 't', undef, 'portable');
	is($app->acquire($election, 'b'), '', 'again, in vain');
	is($app->acquire($election, 'c'), 2, 'that one leads next');
	is($super->query("SELECT reason FROM leader_election.history WHERE election = '$election' AND term = 1"), 'session ended', 'the history says how the first one ended');
}

# What the running transaction has written does not count yet.
$app->query(q(SELECT leader_election.create_election('undone', takeover_delay => '0', lease_duration => '1 hour')));
$other->query(q(BEGIN; SELECT leader_election.join('undone', 'a', auto_renew => false)));
is($other->query(q(SELECT leader_election.is_leader('undone'), leader_election.term('undone'), leader_election.remaining_ms('undone'))), 'f||',
	'a session does not lead by a grant that may be undone');
is($other->sqlstate_of(q(SELECT leader_election.assert_leader('undone'))), '00000', 'but what is undone with it may be written');
$other->query('COMMIT');
is($other->query(q(SELECT leader_election.is_leader('undone'), leader_election.term('undone'), leader_election.remaining_ms('undone') > 0)), 't|1|t',
	'until that has committed');

#
# After a restart
#

# The first call in a block notes it, and is ended when it sits idle for a lease: else nobody
# could be elected. What may be called in blocks leaves it to others.
my $restarted = q(UPDATE leader_election.server SET started_at = started_at - interval '1 day');
my $noted = q(SELECT s.started_at = pg_postmaster_start_time() FROM leader_election.server s);
$super->query($restarted);
$idle = connected('idle', 'app');
$idle->query(q(BEGIN; SELECT leader_election.create_election('in a block')));
is($idle->sqlstate, '00000', 'an election is created in a block');
is($app->acquire('restarted', 'a'), '', 'another call after a restart');
is($super->query($noted), 't', 'notes it, and waits for no block');
$idle->query('COMMIT');
foreach ([ q(acquire('in a block', 'a')), $idle, 'who notes it' ], [ 'configure()', $super, 'who changes the settings' ])
{
	my ($call, $session, $who) = @$_;

	$super->query($restarted);
	$session->query("BEGIN; SELECT FROM leader_election.$call");
	is($session->query('SHOW idle_in_transaction_session_timeout'), '20s', "$who in a block may not sit idle for longer than a lease");
	$session->query('ROLLBACK');
}
$super->query(q(UPDATE leader_election.server SET started_at = pg_postmaster_start_time(), first_seen_at = '-infinity'));

#
# A transaction that is read-only for a while
#

($election, $term) = led();
$super->query("DROP TRIGGER fenced ON public.jobs;
	CREATE TRIGGER fenced BEFORE INSERT ON public.jobs FOR EACH STATEMENT EXECUTE FUNCTION leader_election.only_leader('$election')");
$app->query("BEGIN; SAVEPOINT s; SET TRANSACTION READ ONLY; SELECT leader_election.assert_leader('$election', $term); RELEASE s");
is($app->sqlstate, '00000', 'a read-only part of a transaction locks nothing');
end_lease($election);
is($app->sqlstate_of('INSERT INTO public.jobs VALUES (1)'), 'LE001', 'so it fences no write that follows');
$app->query('ROLLBACK');
($election, $term) = led();
$app->query("BEGIN; CREATE TEMP TABLE wrote (); SET TRANSACTION READ ONLY");
is($app->sqlstate_of("SELECT leader_election.assert_leader('$election', $term)"), '25006', 'nor one that came before: that is refused');
$app->query('ROLLBACK');

#
# Days
#

# A day of 23 or 25 hours begins within the next one, by this session's time zone. (Days of a
# year are counted from 0 in such a name.)
my ($day) = $super->query(q(SET timezone = 'UTC'; SELECT extract(doy FROM now())::integer % 365));
$other->query("SET timezone = 'AAA0BBB,$day," . (($day + 20) % 365) . q('));
is($other->query(q(SELECT extract(epoch FROM now() + interval '5 days' - now()) <> 5 * 86400)), 't', 'a time zone whose offset changes soon');
$other->query(q(SELECT leader_election.create_election('days', lease_duration => '1 day', takeover_delay => '1 day')));
is($other->acquire('days', 'a'), 1, 'a lease of a day');
is($super->query(q(SELECT extract(epoch FROM expires_at - acquired_at) = 86400 FROM leader_election.lease WHERE election = 'days')), 't', 'has 24 hours');
$other->query(q(SELECT leader_election.alter_election('days', lease_duration => '1 hour')));
is($other->query(q(SELECT count(*) FROM leader_election.renew('days', 1))), 1, 'is renewed when leases are shorter');
is($super->query(q(SELECT max(extract(day FROM i)) FROM leader_election.lease, leader_election.election e,
	unnest(ARRAY[duration, e.lease_duration, e.takeover_delay]) i WHERE e.election = 'days' AND lease.election = e.election)), 0, 'what is stored has no days');
is($other->query(q(SELECT leader_election.release('days', 1, hold => '5 days'))), 't', 'it is given back');
is($super->query(q(SELECT extract(epoch FROM l.not_before_at - h.acquired_at) = 5 * 86400 FROM leader_election.lease l
	JOIN leader_election.history h USING (election) WHERE l.election = 'days')), 't', 'and a hold of 5 days has 120 hours');
$other->query('RESET timezone');

#
# Names with a collation of their own are compared byte by byte
#

$super->query(q(CREATE TABLE public.names (e text COLLATE "POSIX", c text COLLATE "POSIX"); GRANT SELECT ON public.names TO app;
	INSERT INTO public.names VALUES ('collated', 'a')));
$app->query(q(SELECT leader_election.create_election('collated', takeover_delay => '0', lease_duration => '1 hour')));
my $next = 0;
foreach my $call (
	"create_election(e || 'z')", 'acquire(e, c)', 'acquire(e, c)', 'acquire(e, c, run => c)', 'renew(e, 1)', 'is_leader(e, 1)', 'assert_leader(e, 1)', 'leader(e)',
	'_observe(e)', '_standing(e)', 'diagnose(e)', "acquire(e, 'b')", "request_yield(e, 'b' COLLATE \"POSIX\")", "transfer(e, 1, 'b' COLLATE \"POSIX\")", 'leave(e, c)',
	"acquire(e, 'b')", 'release(e, 2)', 'join(e, c, auto_renew => false)', 'renew(e)', 'is_leader(e)', 'term(e)', 'remaining_ms(e)',
	'assert_leader(e)', 'transfer(e, c)', 'resign(e)', 'leave(e)', '_stands(e)', 'alter_election(e, quorum => 1)', 'set_run_done(e, c)', 'drop_election(e)')
{
	my $state = $app->sqlstate_of("SELECT leader_election.$call FROM public.names");

	is($state, $call eq 'transfer(e, c)' ? '22023' : '00000', "names of another collation: $call");
}
$super->query(q(CREATE COLLATION public.alike (provider = icu, locale = 'und-u-ks-level2', deterministic = false))) if $super->query('SELECT true FROM pg_collation WHERE collprovider = $$i$$ LIMIT 1');
SKIP:
{
	skip 'no ICU', 3 unless $super->sqlstate_of(q(SELECT 'a' COLLATE public.alike)) eq '00000';
	$super->query('GRANT USAGE ON SCHEMA public TO app');
	$app->query(q(SELECT leader_election.create_election('alike', takeover_delay => '0', lease_duration => '1 hour')));
	is($app->acquire('alike', 'a'), 1, 'a candidate leads');
	is($app->sqlstate_of(q(SELECT leader_election.leader('ALIKE' COLLATE public.alike))), '00000', 'what is alike to others');
	is($app->query(q(CALL leader_election.wait_for_change('alike', 1, 'A' COLLATE public.alike, '1 min'))), '1|a', 'is another name here');
}

#
# Standbys
#

# A user can cancel the wait for them, and then leads by what no standby may have.
$node->safe_psql('postgres', "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
$node->reload;
wait_for($node, 'SHOW synchronous_standby_names', 'nobody');
$app->query(q(SET synchronous_commit = local; SELECT leader_election.create_election('cancelled', lease_duration => '1 hour'); RESET synchronous_commit));
$other->query_async(q(SELECT term FROM leader_election.acquire('cancelled', 'a')));
wait_for($node, 'SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $other->backend_pid, 'SyncRep');
is($app->query(q(SELECT leader_election.leader('cancelled'))), '', 'a grant waits for the standbys at its commit');
$super->query('SELECT pg_cancel_backend(' . $other->backend_pid . ')');
is($other->result, 1, 'who cancels that wait is told to lead');
is($app->query(q(SELECT leader_election.leader('cancelled'))), 'a', 'and leads (G6)');
$node->safe_psql('postgres', 'SET synchronous_commit = local; ALTER SYSTEM RESET synchronous_standby_names');
$node->reload;
wait_for($node, 'SHOW synchronous_standby_names', '');

# On a standby each call ends as with the extension.
my @ON_STANDBY = (
	(map { "SELECT FROM leader_election.$_" } "acquire('e', 'a')", "renew('e', 1)", "renew('e')", "release('e', 1)", "transfer('e', 1, 'b')",
		"transfer('e', 'b')", "leave('e', 'a')", "leave('e')", 'leave_all()', "resign('e')", "join('e', 'a', auto_renew => false)",
		"create_election('n')", "alter_election('e', quorum => 2)", "drop_election('e')", "set_run_done('e', '1')", "request_yield('e')",
		"assert_leader('e', 1)", "assert_leader('e')"),
	(map { "SELECT leader_election.$_" } "is_leader('e', 1)", "is_leader('e')", "term('e')", "remaining_ms('e')", "leader('e')"),
	"CALL leader_election.campaign('e', 'a', '1 s', auto_renew => false)",
	"CALL leader_election.wait_for_change('e', 1, 'a', '10 ms')",
	'SELECT state, leader, term, candidates FROM leader_election.status WHERE election = $$e$$',
	'SELECT count(*) FROM leader_election.candidates', 'SELECT term, leader FROM leader_election.history WHERE election = $$e$$');
foreach my $database (qw(postgres portable))
{
	$node->safe_psql($database, q(SELECT leader_election.create_election('e', lease_duration => '1 hour'); SELECT FROM leader_election.acquire('e', 'a')));
}
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby, 'replay');
my %there = map { $_ => session($standby, name => $_, dbname => $_) } qw(postgres portable);
$_->query('\set SHOW_CONTEXT never') foreach values %there;
foreach my $call (@ON_STANDBY)
{
	my %said = map {
		my $out = $there{$_}->query($call);
		($_ => $there{$_}->sqlstate . " $out " . $there{$_}->errors)
	} keys %there;

	is($said{portable}, $said{postgres}, "on a standby: $call");
}
foreach my $call ('tick()', 'prune()', 'configure()')
{
	is($there{portable}->sqlstate_of("SELECT leader_election.$call"), '25006', "on a standby: $call");
}
$_->finish foreach values %there;
$standby->stop;

done_testing();
