# How often a call reads its lease row. The first read says whether anybody
# leads; under the name lock, the election lock and the row's own lock it is read
# again, since it may have changed; and nothing else reads it. The server counts
# the scans of the row's index by the session that calls.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaderElection;
use Test::More;

my $node = new_server(
	config => q(
client_min_messages = error
leader_election.lease_duration = '10 min'
autovacuum = off
));
my %session = map { $_ => session($node, name => $_) } qw(admin one two three);

# Expressions of a statement are evaluated from left to right.
sub reads_ok
{
	my ($who, $call, $expected, $at_most, $title) = @_;
	my $scans = q{pg_stat_get_xact_numscans('leader_election.lease_pkey'::regclass)};
	my ($before, $result, $after) = split /\|/,
	  scalar $session{$who}->query("SELECT $scans, $call, $scans");

	is($result, $expected, "$title: the result");
	cmp_ok($after - $before, '<=', $at_most, "$title: reads of the lease row");
	return;
}

sub acquire_by
{
	my ($name, $more) = @_;

	return "(SELECT sum(term) FROM leader_election.acquire('detached', '$name'" . ($more // '') . '))';
}

# The worker that the first call starts, and the caches of each session, come first.
$session{$_}->query("SELECT leader_election.join('other', '$_')") foreach sort keys %session;
$session{admin}->query(
	"SELECT leader_election.create_election(e) FROM unnest('{session,detached,next}'::text[]) e");

reads_ok(one => "leader_election.join('session', 'one')", '1', 4, 'join() of a vacant seat');
reads_ok(one => "leader_election.join('session', 'one')", '1', 1, 'join() of the leader');
reads_ok(two => "leader_election.join('session', 'two')", '', 2, 'the first join() of a led seat');
reads_ok(two => "leader_election.join('session', 'two')", '', 1, 'join() of a led seat');
reads_ok(two => "leader_election.join('session', 'two', 1)", '', 1, 'join() with another rank');
reads_ok(one => "leader_election.resign('session')", 't', 3, 'resign()');

reads_ok(one => acquire_by('d1'), '1', 4, 'the first acquire() of a vacant seat');
reads_ok(two => acquire_by('d2'), '', 2, 'the first acquire() in vain');
reads_ok(two => acquire_by('d2'), '', 1, 'acquire() in vain');
reads_ok(two => acquire_by('d2'), '', 0, 'acquire() in vain, again');
reads_ok(two => acquire_by('d2', ', request => gen_random_uuid()'), '', 0, 'acquire() in vain, with a request');
reads_ok(three => "leader_election.release('detached', 1)", 't', 3, 'release()');
reads_ok(two => acquire_by('d2'), '2', 3, 'acquire() of a vacant seat');

# -- A call in vain remembers what it has found, in its own session: whatever
# another session changes counts at once.

sub candidate
{
	my ($column) = @_;

	return $session{admin}->query(
		"SELECT $column FROM leader_election.candidate WHERE election = 'kept' AND candidate = 'd2'");
}

# The first call may find something to write, the second one sees that it is
# committed, and the third one reads nothing.
sub in_vain_ok
{
	my ($title) = @_;
	my $call = "(SELECT count(*) FROM leader_election.acquire('kept', 'd2'))";

	reads_ok(two => $call, '0', $_, "$title, $_") foreach 2, 1, 0;
	return;
}

$session{admin}->query(
	"CREATE ROLE app LOGIN; CREATE ROLE other_app; CREATE ROLE may_stand ROLE app;
	GRANT USAGE ON SCHEMA leader_election TO app;
	GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA leader_election TO app;
	SELECT leader_election.create_election('kept', candidate_role => 'may_stand')");
$session{one}->query("SET SESSION AUTHORIZATION app");
is($session{one}->acquire('kept', 'd1'), '1', 'kept: leads');
$session{two}->query("SET SESSION AUTHORIZATION app");
in_vain_ok('kept: in vain');
is(candidate('count(*)'), '1', 'kept: stands');

is($session{one}->query("SELECT leader_election.leave('kept', 'd2')"),
	't', 'kept: leaves, by another connection');
is(candidate('count(*)'), '0', 'kept: stands no more');
in_vain_ok('kept: in vain, after that');
is(candidate('count(*)'), '1', 'kept: stands again');

$session{admin}->query(
	"SELECT leader_election.alter_election('kept', lease_duration => '1 h')");
in_vain_ok('kept: in vain, by a longer lease');
is(candidate('seen_for'), 4800 * 1_000_000, 'kept: a sign of life for so long');

$session{admin}->query('REVOKE may_stand FROM app');
is($session{two}->sqlstate_of("SELECT leader_election.acquire('kept', 'd2')"),
	'42501', 'kept: the role may not stand any more');
$session{admin}->query('GRANT may_stand TO app');
in_vain_ok('kept: the role may stand again');
$session{admin}->query(
	"SELECT leader_election.alter_election('kept', candidate_role => 'other_app')");
is($session{two}->sqlstate_of("SELECT leader_election.acquire('kept', 'd2')"),
	'42501', 'kept: another role may stand');
$session{admin}->query(
	"SELECT leader_election.alter_election('kept', candidate_role => 'may_stand')");
in_vain_ok('kept: that role again');
is($session{one}->query("SELECT leader_election.release('kept', 1)"), 't', 'kept: released');
is($session{two}->acquire('kept', 'd2'), '2', 'kept: the next leader');

# What a transaction has changed itself counts in the same statement. What it has
# written is remembered by no call: it may be undone.

sub count_of
{
	my ($candidate) = @_;

	return $session{admin}->query(
		"SELECT count(*) FROM leader_election.candidate WHERE candidate = '$candidate'");
}

is($session{admin}->acquire('same', 'd6'), '1', 'same: leads');
is($session{one}->query("RESET SESSION AUTHORIZATION; SELECT count(*) FROM leader_election.acquire('same', 'd7')"),
	'0', "same: in vain, $_") foreach 1 .. 3;
is($session{one}->query("CREATE TABLE written (what text);
	WITH w AS (INSERT INTO written VALUES ('beside') RETURNING what)
		SELECT count(a.term) FROM w LEFT JOIN leader_election.acquire('same', 'd7') a ON true"),
	'0', 'same: in vain, beside a write');
is($session{one}->sqlstate_of("SET ROLE app; SELECT leader_election.acquire('same', 'd7')"),
	'LE004', 'same: another role by the same name is told that it is in use');
$session{one}->query('RESET ROLE');
is($session{one}->query("SELECT leader_election.release('same', 1),
		(SELECT count(*) FROM leader_election.acquire('same', 'd7'))"),
	't|1', 'same: elected in the statement that has released it');

is($session{admin}->acquire('undone', 'd6'), '1', 'undone: leads');
$session{one}->query("DO \$\$ BEGIN PERFORM leader_election.acquire('undone', 'd8');
	PERFORM leader_election.acquire('undone', 'd8'); PERFORM 1 / 0; END \$\$");
is(count_of('d8'), '0', 'undone: the call');
is($session{one}->acquire('undone', 'd8'), '', 'undone: in vain');
is(count_of('d8'), '1', 'undone: stands all the same');

is($session{one}->acquire('leads', 'd9'), '1', 'leads: elected');
$session{admin}->query("DELETE FROM leader_election.candidate WHERE candidate = 'd9'");
$session{one}->query("DO \$\$ BEGIN PERFORM leader_election.renew('leads', 1);
	PERFORM leader_election.renew('leads', 1); PERFORM 1 / 0; END \$\$");
is(count_of('d9'), '0', 'leads: its renewal is undone');
is($session{one}->query("SELECT term FROM leader_election.renew('leads', 1)"), '1', 'leads: renews');
is(count_of('d9'), '1', 'leads: has its row again');

# So does the end of the leader: of its session, and of its lease.

is($session{three}->query("SELECT leader_election.join('next', 'three')"), '1', 'next: a session leads');
is($session{admin}->acquire('next', 'd3'), '', "next: in vain, $_") foreach 1 .. 3;
$session{three}->kill;
wait_until(sub { $session{admin}->acquire('next', 'd3') eq '2' }, 'next: elected, when the session has ended');

$session{admin}->query("SELECT leader_election.create_election('short', lease_duration => '200 ms')");
is($session{one}->acquire('short', 'd4'), '1', 'short: leads');
wait_until(sub { $session{admin}->acquire('short', 'd5') eq '2' }, 'short: elected, when the lease is over');

done_testing();
