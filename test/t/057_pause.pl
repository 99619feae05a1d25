# Paused elections. While one is paused the rules elect nobody and ask nobody to
# yield; its leader leads on; what is ordered for a named candidate still happens.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

# A slow machine takes longer for what is done within a lease, and in a pause of
# some seconds.
my $LEASE = 2000 * slowness() . 'ms';
my $PAUSE = 2 * slowness();

my $node = new_server(
	config => "leader_election.lease_duration = '$LEASE'\n"
	  . "client_min_messages = warning\n"
	  # Only what has to be durable outlasts a crash.
	  . "synchronous_commit = off\nwal_writer_delay = '10s'\n");
my $admin = session($node, name => 'admin');

sub pause
{
	my ($election, $more) = @_;

	return $admin->query("SELECT leader_election.pause_election('$election'"
		  . ($more ? ", $more" : '') . ')');
}

sub resume
{
	return $admin->query("SELECT leader_election.resume_election('$_[0]')");
}

sub status
{
	my ($election, @columns) = @_;

	return $admin->query('SELECT ' . join(', ', @columns)
		  . " FROM leader_election.status WHERE election = '$election'");
}

my $looks = 0;

# Waits until the worker has looked at what was there before.
sub worker_looked
{
	my $watch = "looked " . ++$looks;

	$admin->query("SELECT leader_election.create_election('$watch')");
	my $s = session($node, name => $watch);
	$s->query("CALL leader_election.campaign('$watch', 'x')");
	$s->kill;
	$s = session($node, name => $watch);
	$s->query("CALL leader_election.campaign('$watch', 'y')");
	$s->finish;
	return;
}

# Two sessions that stand: the first leads.
sub two
{
	my ($election) = @_;
	my @both = map { session($node, name => "$election $_") } 'a', 'b';

	$both[0]->query("SELECT leader_election.join('$election', 'a')");
	$both[1]->query("SELECT leader_election.join('$election', 'b')");
	return @both;
}

sub reasons
{
	return $admin->query(
		"SELECT string_agg(leader || ' ' || coalesce(reason, 'leads')
				|| coalesce(' ' || detail, ''), ', ' ORDER BY term)
			FROM leader_election.history WHERE election = '$_[0]'");
}

# --- Who paused it, and why, and what it waits for

my ($a, $b) = two('dies');
pause('dies', "reason => 'upgrade of the disks'");
is(status('dies', 'state', 'leader', 'paused_by', 'pause_reason', 'resumes_at IS NULL'),
	'led|a|' . $admin->query('SELECT current_user') . '|upgrade of the disks|t',
	'its leader leads on, and the view says who paused it, and why');
is($a->query("SELECT leader_election.is_leader('dies')"), 't', 'and it knows that it leads');

# --- The leader dies

$a->kill;
wait_until(sub { status('dies', 'waiting_for') eq 'paused' }, 'the seat to be vacant');
worker_looked();
is($b->query("SELECT leader_election.join('dies', 'b')"), '', 'its own call elects nobody');
is($admin->query("SELECT count(*) FROM leader_election.acquire('dies', 'c')"),
	'0', 'nor does that of a detached candidate');
is(reasons('dies'), 'a session ended', 'nobody was elected');
is(resume('dies'), 't', 'resumed');
wait_until(sub { status('dies', 'leader') eq 'b' }, 'the next one to lead');
is(resume('dies'), 'f', 'it is not paused any more');
is(status('dies', 'paused_at IS NULL', 'paused_by IS NULL'), 't|t', 'nor does the view say so');

# --- A campaign waits as long as it takes, and is elected at the moment of resume

my ($c, $d) = two('campaign');
pause('campaign');
$c->query("SELECT leader_election.leave('campaign')");
$d->query("SELECT leader_election.leave('campaign')");
$d->query_async("CALL leader_election.campaign('campaign', 'd')");
worker_looked();
ok(!$d->finished, 'a campaign waits while it is paused');
resume('campaign');
is($d->result, 2, 'and leads when it is resumed');

# --- Manual mode: transfer, and a seat that is filled by hand

my ($e, $f) = two('manual');
pause('manual');
is($e->query("SELECT leader_election.transfer('manual', 'b')"), 't', 'a transfer works');
is(status('manual', 'leader'), 'b', 'to whom it names');
is($admin->query("SELECT leader_election.request_yield('manual', 'a') > '0'"),
	't', 'so does a request to yield to a named candidate');
$f->query("SELECT leader_election.resign('manual')");
is(status('manual', 'leader'), 'a', 'which is finished');
$e->query("SELECT leader_election.resign('manual')");
is(status('manual', 'state', 'waiting_for'), 'vacant|paused', 'nobody follows');
is($admin->query("SELECT leader_election.request_yield('manual') IS NULL"),
	't', 'a request that names nobody fills no seat');
is($admin->query("SELECT leader_election.request_yield('manual', 'b')"),
	'00:00:00', 'one that names a candidate does');
wait_until(sub { status('manual', 'leader') eq 'b' }, 'it to lead');
$f->query("SELECT leader_election.resign('manual', hold => '1h')");
is($admin->query("SELECT leader_election.request_yield('manual', 'a') > '59 min'"),
	't', 'a hold binds there, too');
is(status('manual', 'waiting_for'), 'hold', 'and is what the seat waits for then');
$admin->query("SELECT leader_election.request_yield('manual', 'nobody')");
is($admin->sqlstate, 'LE005', 'a candidate that does not stand is refused');

# --- A hand-over that is under way is finished: a yield that the strategy asked for,
# and a seat that is reserved

$admin->query("SELECT leader_election.create_election('bully', 'bully')");
my $low = session($node, name => 'low');
my $high = session($node, name => 'high');
$low->query("SELECT leader_election.join('bully', 'low', rank => 1)");
$high->query("SELECT leader_election.join('bully', 'high', rank => 2)");
wait_until(sub { status('bully', 'state') eq 'yielding' }, 'the strategy to ask');
pause('bully');
$low->query("SELECT leader_election.resign('bully')");
is(status('bully', 'leader'), 'high', 'what the strategy had asked for is finished');

my $higher = session($node, name => 'higher');
$higher->query("SELECT leader_election.join('bully', 'higher', rank => 3)");
worker_looked();
is(status('bully', 'state'), 'led', 'but it asks for nothing more');
resume('bully');
wait_until(sub { status('bully', 'state') eq 'yielding' }, 'it to ask after the pause');

$admin->query("SELECT leader_election.create_election('kept')");
my $giver = session($node, name => 'giver');
$giver->query("SELECT leader_election.join('kept', 'giver')");
$admin->query("SELECT leader_election.acquire('kept', 'detached')");
$giver->query("SELECT leader_election.transfer('kept', 'detached')");
pause('kept');
is(status('kept', 'waiting_for'), 'reserved for detached', 'a seat stays reserved');
is($admin->query("SELECT count(*) FROM leader_election.acquire('kept', 'detached')"),
	1, 'and its candidate leads when it calls');

# --- vacate: every leader is asked, and keeps its place in line

my ($g, $h) = two('vacate');
pause('vacate', "vacate => true");
is(status('vacate', 'state', 'leader'), 'yielding|a', 'vacate: the leader is asked to yield');
$g->query("SELECT leader_election.resign('vacate')");
is(status('vacate', 'state', 'waiting_for'), 'vacant|paused', 'vacate: it does');
is(reasons('vacate'), 'a yielded paused', 'vacate: as the history says');
$admin->query("SELECT leader_election.request_yield('vacate', 'b')");
wait_until(sub { status('vacate', 'state', 'leader') eq 'yielding|b' },
	'vacate: one that is named leads, and is asked at once');
$h->query("SELECT leader_election.resign('vacate')");
resume('vacate');
wait_until(sub { status('vacate', 'leader') eq 'a' },
	'vacate: the first in line leads again, for nobody has lost its place');
is(status('vacate', 'state'), 'led', 'vacate: and is not asked any more');

my ($i, $j) = two('over');
pause('over', 'vacate => true');
resume('over');
is(status('over', 'state'), 'yielding', 'what was ordered is not taken back by resume');
$i->query("SELECT leader_election.resign('over')");
is(reasons('over'), 'a yielded paused, a leads',
	'who goes because of the pause only after it keeps its place, too');
pause('over', 'vacate => true');
is($i->query("SELECT leader_election.transfer('over', 'b')"), 't',
	'vacate: the leader may still say who follows');
is(reasons('over'), 'a yielded paused, a transferred to b, b leads',
	'vacate: and history says so');
is(status('over', 'state'), 'yielding', 'vacate: that one is asked, too');
$j->kill;
wait_until(sub { reasons('over') !~ /leads/ }, 'it to be gone');
like(reasons('over'), qr/, b session ended$/, 'vacate: who dies has not yielded');

# What an operator has asked for before is no pause's, and stays as it is.
my ($q, $r) = two('operator');
$admin->query("SELECT leader_election.request_yield('operator')");
pause('operator', 'vacate => true');
$q->query("SELECT leader_election.resign('operator')");
is(reasons('operator'), 'a yielded', 'an order of before the pause is not its own');
resume('operator');
wait_until(sub { status('operator', 'leader') eq 'b' },
	'the other one to lead, for that leader sits out');
$admin->query("SELECT leader_election.request_yield('operator', 'a')");
pause('operator', 'vacate => true');
is($admin->query(
		"SELECT yield_ordered, successor FROM leader_election.lease WHERE election = 'operator'"),
	't|a', 'vacate overwrites no order that names a candidate');
$r->query("SELECT leader_election.resign('operator')");
is(status('operator', 'state', 'leader'), 'yielding|a', 'which is finished, and its leader asked');

# Nor does it what the strategy has asked for before, which names a candidate.
$admin->query("SELECT leader_election.create_election('strategy', 'bully')");
{
	my ($low, $high) = map { session($node, name => "strategy: $_") } qw(low high);

	$low->query("SELECT leader_election.join('strategy', 'low', 1)");
	$high->query("SELECT leader_election.join('strategy', 'high', 2)");
	wait_until(sub { status('strategy', 'state', 'leader') eq 'yielding|low' },
		'strategy: the leader is asked to yield');
	pause('strategy', 'vacate => true');
	$low->query("SELECT leader_election.join('strategy', 'low', 3)");

	# The worker has looked once it has removed a dead candidate.
	my $look = session($node, name => 'look');
	$look->query("SELECT leader_election.join('look', 'c')");
	$look->finish;
	wait_for($node, "SELECT count(*) FROM leader_election.candidate WHERE election = 'look'", 0);
	is($admin->query("SELECT yielding, yield_ordered, successor FROM leader_election.lease WHERE election = 'strategy'"),
		't|f|high', 'vacate overwrites no request of the strategy, and nothing takes that back');
	$low->query("SELECT leader_election.resign('strategy')");
	is(status('strategy', 'state', 'leader'), 'yielding|high', 'which is finished, and its leader asked');
	$_->finish foreach $low, $high;
}

# A detached candidate that is elected and asked at once is told its term.
pause('detached', 'vacate => true');
is($admin->sqlstate, 'LE003', 'there is nothing to pause');
$admin->query("SELECT leader_election.create_election('detached')");
pause('detached', 'vacate => true');
$admin->query("SELECT leader_election.acquire('detached', 'd')");
$admin->query("SELECT leader_election.request_yield('detached', 'd')");
is($admin->query("SELECT term, yielding FROM leader_election.acquire('detached', 'd')"),
	'1|t', 'vacate: a detached candidate is told that it leads, and is to go');
is($admin->query("SELECT term FROM leader_election.acquire('detached', 'd')"),
	'', 'and another one of its name is not');
is($admin->query("SELECT leader_election.release('detached', 1)"), 't', 'it goes');

# --- A seat is filled by hand although nobody has noticed that its leader is gone.

my ($s, $t) = two('gone');
pause('gone');
my $worker = stop_worker($admin);
$s->kill;
wait_gone($node, $s);
is(status('gone', 'state', 'waiting_for'), 'vacant|paused', 'a leader is gone');
is($admin->query("SELECT leader_election.request_yield('gone', 'b')"),
	'00:00:00', 'its seat is filled by hand');
is($t->query("SELECT leader_election.join('gone', 'b')"), 2,
	'and its candidate leads, without the worker');
resume_process($worker);
is(reasons('gone'), 'a session ended, b leads', 'in this order');

# Where there is no pause, a request to a vacant seat writes nothing.
$admin->query("SELECT leader_election.create_election('nobody')");
is($admin->query("SELECT leader_election.request_yield('nobody', 'x') IS NULL,
		pg_current_xact_id_if_assigned() IS NULL"),
	't|t', 'a request to yield in a vacant election writes nothing');

# A delay binds: so does a quorum.
$admin->query("SELECT leader_election.create_election('delayed',
	takeover_delay => '1h', quorum => 2)");
my ($u, $v) = two('delayed');
pause('delayed');
$u->kill;
wait_until(sub { status('delayed', 'state') eq 'vacant' }, 'the delay to begin');
is($admin->query("SELECT leader_election.request_yield('delayed', 'b') > '59 min'"),
	't', 'a takeover delay binds');
is(status('delayed', 'waiting_for'), 'takeover delay', 'and the view says so');
$admin->query("SELECT leader_election.create_election('quorum', quorum => 2)");
pause('quorum');
$v->query("SELECT leader_election.join('quorum', 'b')");
is($admin->query("SELECT leader_election.request_yield('quorum', 'b')"),
	'00:00:00', 'one that lacks a quorum');
is(status('quorum', 'waiting_for'), 'reserved for b', 'keeps its seat');
is($v->query("SELECT leader_election.join('quorum', 'b')"), '', 'but its candidate does not lead');
wait_until(sub { status('quorum', 'waiting_for') eq 'paused' }, 'the seat to be kept no more');

# --- A duration ends by itself

my ($k, $l) = two('short');
pause('short', "duration => '$PAUSE s'");
is(status('short', 'resumes_at - paused_at'), sprintf('00:00:%02d', $PAUSE), 'it says until when');
$k->kill;
wait_until(sub { status('short', 'waiting_for') eq 'paused' }, 'the seat to be vacant');
wait_until(sub { status('short', 'leader') eq 'b' }, 'the pause to end by itself');
cmp_ok($admin->query(
		"SELECT extract(epoch FROM acquired_at - (SELECT paused_at
				FROM leader_election.election WHERE election = 'short'))
			FROM leader_election.history WHERE election = 'short' AND leader = 'b'"),
	'>=', $PAUSE, 'not before');
is(resume('short'), 'f', 'there is nothing left to resume');

# At its end the strategy asks, too.
$admin->query("SELECT leader_election.create_election('asks', 'bully', '1 h')");
$admin->query("SELECT leader_election.acquire('asks', 'low')");
pause('asks', "duration => '$PAUSE s'");
$admin->query("SELECT leader_election.acquire('asks', 'high', 1)");
worker_looked();
is(status('asks', 'state'), 'led', 'while it is paused no strategy asks');
wait_until(sub { status('asks', 'state') eq 'yielding' },
	'the strategy to ask when the pause has ended by itself');

# A second pause replaces the first.
pause('short', "'first', '1h', true");
pause('short', "'second'");
is(status('short', 'pause_reason', 'resumes_at IS NULL'), 'second|t', 'the last pause counts');
resume('short');

# --- All elections

my ($m, $n) = two('one');
my ($o, $p) = two('two');
pause('two');
$admin->query("SELECT leader_election.pause_all('moving house')");
is(status('one', 'pause_reason'), 'moving house', 'all: one is paused');
is(status('two', 'pause_reason'), '', 'all: one that is paused itself stays so');
pause('two', "'for an hour', '1h'");
is(status('two', 'pause_reason', 'resumes_at IS NULL'),
	'for an hour|t', 'all: and that one does not end by itself now');
$m->kill;
$o->kill;
wait_until(
	sub { status($_, 'waiting_for') eq 'paused' or return 0 foreach qw(one two); 1 },
	'all: both seats to be vacant');
is($admin->query("SELECT count(*) FROM leader_election.acquire('new', 'x')"),
	'0', 'all: nor is anybody elected in a new election');
is($admin->query('SELECT leader_election.resume_all()'), 't', 'all: resumed');
wait_until(sub { status('one', 'leader') eq 'b' }, 'all: the next one to lead');
worker_looked();
is(status('two', 'waiting_for'), 'paused', 'all: but not where it is paused itself');
is($admin->query('SELECT leader_election.resume_all()'), 'f', 'all: not paused any more');

# --- Somebody has locked the table pause_all: leases are renewed, and what would elect
# is busy, but waits for no longer than ever.

my $holder = session($node, name => 'holder');
my $locker = session($node, name => 'locker');
$holder->query("SELECT leader_election.join('locked', 'holder')");
my $seen = $admin->query("SELECT renewed_at FROM leader_election.status WHERE election = 'locked'");
$admin->query("SELECT leader_election.acquire('busy', 'x')");
$admin->query("SELECT leader_election.release('busy', 1)");
$locker->query('BEGIN; LOCK TABLE leader_election.pause_all');
wait_until(
	sub {
		$admin->query("SELECT renewed_at > '$seen'::timestamptz + interval '$LEASE'
			FROM leader_election.lease WHERE election = 'locked'") eq 't';
	},
	'renewals');
is($holder->query("SELECT leader_election.is_leader('locked')"), 't', 'locked: who leads leads on');
my $start = machine_time();
is($admin->sqlstate_of("SELECT leader_election.acquire('busy', 'x')"),
	'55P03', 'locked: nobody is elected');
is($admin->sqlstate_of('SELECT leader_election.pause_all()'), '55P03', 'locked: nor are all paused');
cmp_ok(machine_time() - $start, '<', 10, 'locked: which is told soon');
$locker->query('ROLLBACK');
is($admin->query("SELECT count(*) FROM leader_election.acquire('busy', 'x')"),
	'1', 'locked: when it is free somebody is elected');
$_->finish foreach $holder, $locker;

# --- In SERIALIZABLE transactions, too

$admin->query("SET default_transaction_isolation = 'serializable'");
pause('busy', "vacate => true");
is($admin->query("SELECT leader_election.release('busy', 2)"), 't', 'serializable: a leader goes');
is($admin->query("SELECT leader_election.request_yield('busy', 'x')"), '00:00:00',
	'serializable: a seat is filled by hand');
is($admin->query("SELECT term FROM leader_election.acquire('busy', 'x')"), '3', 'serializable: it leads');
is(resume('busy'), 't', 'serializable: resumed');
$admin->query("SELECT leader_election.pause_all('serializable')");
is($admin->query('SELECT leader_election.resume_all()'), 't', 'serializable: all, too');
$admin->query('RESET default_transaction_isolation');

# --- A crash, and a dump

sub crash
{
	$node->stop('immediate');
	$node->start;
	$admin = session($node, name => 'admin');
	return;
}

pause('one', "'before the crash', '1h'");
crash();
is(status('one', 'pause_reason', 'resumes_at - paused_at'),
	'before the crash|01:00:00', 'it outlasts a crash');
is(status('two', 'waiting_for'), 'paused', 'so does that of another one');
$admin->query("SELECT leader_election.pause_all('all of them')");
crash();
is(status('new', 'pause_reason'), 'all of them', 'so does that of all');
$admin->query('SELECT leader_election.resume_all()');
crash();
is(status('new', 'paused_at IS NULL'), 't', 'and its end');
resume('two');
crash();
is(status('two', 'paused_at IS NULL'), 't', 'and that of one');
pause('two');
$admin->query("SELECT leader_election.join('two', 'hand')");
$admin->query("SELECT leader_election.create_election('byhand', lease_duration => '1h')");
pause('byhand');
$admin->query("SELECT leader_election.acquire('byhand', 'd')");
$admin->query("SELECT leader_election.request_yield('byhand', 'd')");
crash();
is($admin->query("SELECT successor FROM leader_election.lease WHERE election = 'byhand'"),
	'd', 'a seat that was to be filled by hand is so after a crash, too');
$node->safe_psql('postgres', 'CREATE DATABASE copy');
my ($dump) = run_command(
	[ 'pg_dump', '-h', $node->host, '-p', $node->port, 'postgres' ]);
$node->psql('copy', $dump);
is($node->safe_psql('copy',
		"SELECT waiting_for, pause_reason FROM leader_election.status
			WHERE election = 'one'"),
	'paused|before the crash', 'and a dump');

# --- Who may, and what is refused

$admin->query("CREATE ROLE app");
$admin->query("GRANT USAGE ON SCHEMA leader_election TO app");
$admin->query("GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app");
my %refused = (
	"pause_election('one')" => '42501',
	"resume_election('one')" => '42501',
	"pause_all()" => '42501',
	"resume_all()" => '42501');
$admin->query('SET ROLE app');
foreach my $call (sort keys %refused)
{
	$admin->query("SELECT leader_election.$call");
	is($admin->sqlstate, $refused{$call}, "not the owner's: $call");
}
$admin->query('RESET ROLE');
%refused = (
	"pause_election(NULL)" => '22023',
	"pause_election('unknown')" => 'LE003',
	"resume_election('unknown')" => 'LE003',
	"pause_election('one', repeat('x', 1001))" => '22023',
	"pause_election('one', NULL, '0')" => '22023',
	"pause_election('one', NULL, '-1s')" => '22023',
	"pause_election('one', NULL, '367 days')" => '22023',
	"pause_all(repeat('x', 1001))" => '22023');
foreach my $call (sort keys %refused)
{
	$admin->query("SELECT leader_election.$call");
	is($admin->sqlstate, $refused{$call}, "refused: $call");
}
$admin->query('BEGIN');
$admin->query("SELECT leader_election.pause_election('one')");
is($admin->sqlstate, '25001', 'refused: in a transaction block');
$admin->query('ROLLBACK');

# --- An election that is dropped ends its pause.

$admin->query("SELECT leader_election.drop_election('one')");
$admin->query("SELECT leader_election.create_election('one')");
is(status('one', 'paused_at IS NULL'), 't', 'a drop ends its pause');

done_testing();
