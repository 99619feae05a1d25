# Transactions that notify themselves, and hold what elections need while they
# commit: fenced ones, and calls that stand, renew or give up. Where they
# have to wait for the lock of commits that NOTIFY, they fail after a second; they
# hold up no other election, and their own for that second at most.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use LeaderElection;
use MachineTime;
use Test::More;
use Time::HiRes qw(time);
use Worker;

# Seconds: what a call may wait for, and how much more it may take until it ends
my $LIMIT = 1;
my $SLACK = 3;

# What must not wait
my $PROMPT = 0.7;

my $node = new_server(config => NotifyLock::config() . q(
leader_election.lease_duration = '10min'
client_min_messages = warning
));
my $control = session($node, name => 'control');
my $notify = NotifyLock->new($node);
my $listener = Announced->new($node, channel => 'mine');
my $told = Announced->new($node);
my $one = session($node, name => 'one');
my $two = session($node, name => 'two');
my $manual = session($node, name => 'manual');

$control->query('CREATE TABLE work (i int);
	CREATE TABLE guarded (i int);
	CREATE TRIGGER t BEFORE INSERT ON guarded FOR EACH STATEMENT
		EXECUTE FUNCTION leader_election.only_leader(\'fenced\')');
is($one->query("SELECT leader_election.join('fenced', 'one')"), 1, 'leads');
$two->query("SELECT leader_election.join('fenced', 'two')");
is($manual->query("SELECT leader_election.join('manual', 'manual', auto_renew => false)"), 1, 'leads');
is($control->query("SELECT term FROM leader_election.acquire('detached', 'x')"), 1, 'leads');
is($one->query("SELECT leader_election.join('resigned', 'one')"), 1, 'leads');
$control->query("SELECT leader_election.create_election('fresh')");
is($control->query("SELECT term FROM leader_election.acquire('yielding', 'x')"), 1, 'leads');
$control->query("SELECT leader_election.request_yield('yielding')");
my $other = session($node, name => 'other');
$told->fence;

my @statements = (
	[
		'a fenced transaction', $one,
		"BEGIN; INSERT INTO work VALUES (1);
		SELECT leader_election.assert_leader('fenced'); NOTIFY mine, '1'; COMMIT"
	],
	[
		'a fenced transaction, by its term', $other,
		"BEGIN; NOTIFY mine, '2'; INSERT INTO work VALUES (2);
		SELECT leader_election.assert_leader('fenced', 1); COMMIT"
	],
	[
		'a transaction fenced by a trigger', $one,
		"BEGIN; INSERT INTO guarded VALUES (3); NOTIFY mine, '3'; COMMIT"
	],
	[ 'join()', $two, "SELECT leader_election.join('fresh', 'two'), pg_notify('mine', '4')" ],
	[
		'acquire()', $other,
		"SELECT leader_election.acquire('fresh', 'x'), pg_notify('mine', '5')"
	],
	[ 'renew()', $manual, "SELECT leader_election.renew('manual'), pg_notify('mine', '6')" ],
	[
		'renew() of a term', $other,
		"SELECT leader_election.renew('detached', 1), pg_notify('mine', '7')"
	],
	[
		'request_yield()', $other,
		"SELECT leader_election.request_yield('manual'), pg_notify('mine', '8')"
	],
	[ 'resign()', $one, "SELECT leader_election.resign('resigned'), pg_notify('mine', '9')" ],
	[
		'renew() of who is asked to yield', $other,
		"SELECT count(*), pg_notify('mine', '10') FROM leader_election.renew('yielding', 1, progress => 7)"
	],
	[ 'resume_all() of nothing', $other, "SELECT leader_election.resume_all(), pg_notify('mine', '11')" ]);

# The leases, but those that others change
sub row
{
	return $control->query("SELECT format('%s %s %s %s', election, term, leader, yielding)
		FROM leader_election.lease WHERE election !~ '^(fence |beside)' ORDER BY 1");
}

my $before = row();

$notify->hold;
foreach my $statement (@statements)
{
	my ($what, $session, $sql) = @$statement;
	my ($began, $start) = (time, machine_time());
	my $longest = 0;
	my $rounds = 0;

	$session->query_async($sql);
	do
	{
		die "$what does not end\n" if time - $began > $PostgreSQL::Test::Utils::timeout_default;

		# Another's election: leads and gives up
		my $start = machine_time();
		my $term = $control->query("SELECT term FROM leader_election.acquire('beside', 'x')");
		$control->query("SELECT leader_election.release('beside', $term)");
		$rounds++ if $control->sqlstate eq '00000';
		$longest = machine_time() - $start if machine_time() - $start > $longest;
	} until ($session->finished);
	$session->result;
	my $took = time - $began;

	is($session->sqlstate, '55P03', "$what: 55P03");
	cmp_ok($took, '>', 0.8 * $LIMIT, "$what: after a second");
	cmp_ok(machine_time() - $start, '<', $LIMIT + $SLACK, "$what: and not much more (G9)");
	cmp_ok($rounds, '>=', 1, "$what: others lead and give up");
	cmp_ok($longest, '<', $PROMPT, "$what: and wait for nobody (G9)");
	is($session->query('SHOW lock_timeout'), '0', "$what: its own setting is as it was");
	note(sprintf '%s: %.2f s; others: %d times, %.3f s at most', $what, $took, $rounds, $longest);
}
is(row(), $before, 'nothing of it happened');
is($control->query('SELECT (SELECT count(*) FROM work), (SELECT count(*) FROM guarded)'),
	'0|0', 'nor was anything written');

# Nobody waits for longer than it wants itself.
$one->query("SET lock_timeout = '200ms'");
my $start = machine_time();
is( $one->sqlstate_of("BEGIN; SELECT leader_election.assert_leader('fenced'); NOTIFY mine, '12'; COMMIT"),
	'55P03', 'a shorter lock_timeout');
cmp_ok(machine_time() - $start, '<', 0.9, 'a shorter lock_timeout holds');
$one->query("SET lock_timeout = '1h'");
$start = machine_time();
is( $one->sqlstate_of("BEGIN; SELECT leader_election.assert_leader('fenced'); NOTIFY mine, '12'; COMMIT"),
	'55P03', 'a longer lock_timeout');
cmp_ok(machine_time() - $start, '<', $LIMIT + $SLACK, 'a longer lock_timeout does not');
is($one->query('SHOW lock_timeout'), '1h', 'but is as it was');
$one->query('RESET lock_timeout');

# A leader can hand over as soon as the fence is over.
$other->query_async($statements[1][2]);
wait_for($node, "SELECT wait_event_type FROM pg_stat_activity
	WHERE pid = @{[ $other->backend_pid ]}", 'Lock');
$start = machine_time();
# It waits as long as the commit does: on a busy machine it may give up first.
is(query_unless_busy($one, "SELECT leader_election.transfer('fenced', 'two')"), 't',
	'a fenced commit holds up its own election');
cmp_ok(machine_time() - $start, '<', $LIMIT + $SLACK, 'for no longer than it may take (G9)');
$other->result;
is($other->sqlstate, '55P03', 'and fails');
is($two->query("SELECT leader_election.term('fenced')"), 2, 'then the successor leads');

# What neither stands nor leads nor is fenced waits for as long as it likes.
$other->query_async("NOTIFY mine, 'free'");
$one->query("SELECT pg_sleep(1.5)");
ok(!$other->finished, 'who has nothing to do with elections waits');
$notify->free;
$other->result;
is($other->sqlstate, '00000', 'and gets on');

# With nobody in the way all of them succeed.
is($two->query("SELECT leader_election.transfer('fenced', 'one')"), 't', 'back');
$statements[1][2] =~ s/'fenced', 1/'fenced', 3/;
foreach my $statement (@statements)
{
	my ($what, $session, $sql) = @$statement;

	$session->query($sql);
	is($session->sqlstate, '00000', "$what: nobody is in the way");
}
wait_until(sub { $listener->told >= 12 }, 'all notifications');
is(join(' ', $listener->told), 'free 1 2 3 4 5 6 7 8 9 10 11', 'and are heard');
$told->all_told_ok('^(fenced|manual|detached|fresh|resigned|beside|yielding)$', 'and told of');

# A lease is over, and nobody has noticed yet.
$control->query("SELECT leader_election.create_election('over', lease_duration => '1 s')");
my $worker = stop_worker($control);
is($control->query("SELECT term FROM leader_election.acquire('over', 'x')"), 1, 'leads');
wait_for($node, "SELECT leader_election.leader('over') IS NULL");
$notify->hold;
$other->query_async("SELECT count(*), pg_notify('mine', '12') FROM leader_election.renew('over', 1)");
$start = machine_time();
wait_until(sub { $other->finished }, 'an answer');
$other->result;
is($other->sqlstate, '55P03', 'renew() of a lease that is over: 55P03');
cmp_ok(machine_time() - $start, '<', $LIMIT + $SLACK, 'renew() of a lease that is over: for a second');
is($two->query("SELECT term FROM leader_election.acquire('over', 'y')"), '2', 'and then another one leads');
$notify->free;
resume_process($worker);

$_->finish foreach $control, $one, $two, $manual, $other;
$node->stop;
done_testing();
