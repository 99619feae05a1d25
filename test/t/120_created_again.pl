# What is created again under the name of something whose traces are still there: it
# begins anew, and listeners are told of the old one's end, of the new one, and of its
# terms, each once and in this order, whatever the worker does meanwhile.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use Announced;
use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker;

my $node = new_server(config => NotifyLock::config() . q(
leader_election.lease_duration = '10min'
leader_election.worker_idle_timeout = '100ms'
client_min_messages = warning
max_prepared_transactions = 2
));
my $admin = session($node, name => 'admin');
my $notify = NotifyLock->new($node);
my $listener = Announced->new($node);
my $other_channel = Announced->new($node, channel => 'others');

# A call must not fail.
sub call
{
	my ($sql, $session) = @_;
	my $result = ($session // $admin)->query($sql);

	die "$sql: " . ($session // $admin)->errors
	  if ($session // $admin)->sqlstate ne '00000';
	return $result;
}

sub create_group { return "SELECT leader_election.create_group('$_[0]', $_[1])"; }
sub drop_group { return "SELECT leader_election.drop_group('$_[0]')"; }

# What was told of an election: "created, elected 1 c, vacated 1, c resigned"
sub told
{
	my ($election, $from) = @_;

	return join ', ', map {
		my $event = $_;
		$event->{event} eq 'created' ? 'created'
		  : "$event->{event} $event->{term}"
		  . (defined $event->{leader} ? " $event->{leader}" : '')
		  . (defined $event->{previous} ? " $event->{reason}" : '')
	} grep { $_->{election} eq $election } ($from // $listener)->told;
}

sub told_is
{
	my ($election, $expected, $what, $from) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	eval { wait_until(sub { told($election, $from) =~ $expected }, $what) };
	return fail("$what: " . told($election, $from)) if told($election, $from) !~ $expected;
	$listener->fence;
	return like(told($election, $from), $expected, $what);
}

sub acquire { return $admin->acquire($_[0], 'c') }

sub lead_once
{
	my ($election) = @_;
	my $term = acquire($election);

	call("SELECT leader_election.release('$election', $term)");
	return $term;
}

# The same, in every way in which it can happen
my %how = (
	'at once' => {},
	'while announcing waits' => {
		before => sub { $notify->hold },
		after => sub { $notify->free }
	},
	'while the worker sleeps' => {
		before => sub {
			call("SELECT leader_election.join('keeper', 'keeper')");
			$_[0]{pid} = stop_worker($admin);
		},
		after => sub {
			resume_process($_[0]{pid});
			call("SELECT leader_election.leave('keeper')");
		}
	},
	'without a worker' => {
		before => sub {
			call('SELECT leader_election.leave(election, candidate)
				FROM leader_election.candidates');
			wait_for($node, $NO_WORKER);
		}
	});

foreach my $how (sort keys %how)
{
	my ($before, $after) = map { $how{$how}{$_} // sub { } } qw(before after);
	my $g = $how =~ s/\W/_/gr;
	my ($one, $two, $three);
	my $once = 'created, elected \d+ c, vacated \d+ resigned';

	# One transaction drops and creates.
	call(create_group($g, 2));
	told_is("$g/$_", qr/^created$/, "$how: seat $_ is told") foreach 1, 2;
	$one = lead_once("$g/1");
	told_is("$g/1", qr/^$once$/, "$how: it was led");
	$before->($how{$how});
	call('BEGIN; ' . drop_group($g) . '; ' . create_group($g, 3) . '; COMMIT');
	$after->($how{$how});
	told_is("$g/1", qr/^$once, created$/,
		"$how: dropped and created in one transaction, a seat that was led");
	told_is("$g/2", qr/^created, created$/, "$how: one that was not");
	told_is("$g/3", qr/^created$/, "$how: one that is new");

	# What was led before and after, and was not told yet
	$before->($how{$how});
	$two = lead_once("$g/2");
	call(drop_group($g));
	call(create_group($g, 2));
	$three = acquire("$g/2");
	cmp_ok($three, '>', $two, "$how: led again, once it was created again (G5)");
	$after->($how{$how});
	told_is("$g/2",
		qr/^created, created, elected $two c, vacated $two resigned, created, elected $three c$/,
		"$how: all is told, each once, in order (G10)");
	call("SELECT leader_election.release('$g/2', $three)");

	# Twice in one transaction, and what was rolled back has not happened.
	$before->($how{$how});
	call('BEGIN; '
		  . drop_group($g) . '; '
		  . create_group($g, 1) . '; '
		  . drop_group($g) . '; SAVEPOINT s; '
		  . create_group($g, 1) . '; '
		  . drop_group($g) . '; '
		  . create_group($g, 2)
		  . '; ROLLBACK TO s; '
		  . create_group($g, 1) . '; COMMIT');
	call('BEGIN; SAVEPOINT s; '
		  . drop_group($g) . '; '
		  . create_group($g, 4)
		  . '; ROLLBACK TO s; COMMIT');
	$after->($how{$how});
	told_is("$g/1", qr/^$once, created, created, created$/,
		"$how: subtransactions: what there is in the end is told once");
	told_is("$g/4", qr/^$/, "$how: subtransactions: what there is not is not");
	cmp_ok(lead_once("$g/1"), '>', $one, "$how: subtransactions: its terms go on (G5)");
	call(drop_group($g));
}

# Seats that are withdrawn, and dropped by the worker, and are to be again. The worker
# drops them while it cannot announce.
call(create_group('w', 40));
told_is('w/40', qr/^created$/, 'withdrawn: 40 seats');
$notify->hold;
call("SELECT leader_election.alter_group('w', seats => 1)");
wait_for($node, "SELECT count(*) FROM leader_election.election WHERE group_name = 'w'", 1);
call("SELECT leader_election.alter_group('w', seats => 40)");
$notify->free;
eval {
	wait_until(sub { 39 <= grep { told("w/$_") eq 'created, created' } 2 .. 40 },
		'all to be told');
};
is(scalar(grep { told("w/$_") eq 'created, created' } 2 .. 40),
	39, 'withdrawn: each seat that is there again is told');
is(told('w/1'), 'created', 'withdrawn: the one that stayed is not');
call("SELECT leader_election.alter_group('w', seats => 2)");
foreach my $n (1 .. 10)
{
	call("SELECT leader_election.alter_group('w', seats => 1)");
	wait_for($node, "SELECT count(*) FROM leader_election.election WHERE group_name = 'w'", 1);
	call("SELECT leader_election.alter_group('w', seats => 2)");
	last unless told_is('w/2', qr/^created(, created){${\($n + 1)}}$/, "withdrawn: time $n");
}

# Whoever commits has to wake the worker.
is($admin->sqlstate_of('BEGIN; ' . create_group('prepared', 1) . "; PREPARE TRANSACTION 'p'"),
	'0A000', 'prepared: no seats are created so');
call('ROLLBACK');

# One that is created and dropped again, before anything is told of it, leaves no mark.
call(create_group('brief', 1) . '; ' . drop_group('brief'));
wait_for($node, "SELECT count(*) FROM leader_election.announced WHERE election = 'brief/1'", 0);
pass('brief: no mark is left of what is dropped at once');

# An election that is no seat: its creation is no event; its end is told where its
# listeners listen.
call("SELECT leader_election.create_election('moves', lease_duration => '100 ms')");
my $old = acquire('moves');
told_is('moves', qr/^elected $old c\b/, 'channel: on the default channel');
$notify->hold;
wait_for($node, "SELECT leader_election.leader('moves') IS NULL");
call("BEGIN; SELECT leader_election.drop_election('moves');
	SELECT leader_election.create_election('moves', channel => 'others'); COMMIT");
my $new = acquire('moves');
$notify->free;
wait_until(sub { told('moves', $other_channel) eq "elected $new c" }, 'the new channel');
pass('channel: what comes then is told on the new one');
like(told('moves'), qr/^elected $old c, vacated $old (expired|dropped)$/,
	'channel: the end of the old one on the old one, and its creation nowhere');

# What belonged to the old one
my $member = session($node, name => 'member');
call("SELECT leader_election.create_election('old')");
call("SELECT leader_election.join('old', 'member')", $member);
call("SELECT leader_election.resign('old')", $member);
call("SELECT leader_election.drain_candidate('$_', 'old')") foreach 'c', 'member';
is(acquire('old'), '', 'old: drained');
call("SELECT leader_election.undrain_candidate('c', 'old')");
my $run = "SELECT term FROM leader_election.acquire('old', 'c', run => 'r')";
my $run_term = call($run);
call("SELECT leader_election.release('old', $run_term, done => true)");
is(call($run), '', 'old: the run is done');
call("SELECT leader_election.drain_candidate('c', 'old')");
call("SELECT leader_election.pause_election('old', 'why')");
call("BEGIN; SELECT leader_election.drop_election('old');
	SELECT leader_election.create_election('old'); COMMIT");
is(call("SELECT count(*) FROM leader_election.$_ WHERE election = 'old'"), 0, "old: no $_")
  foreach 'drain', 'candidate';
is(call("SELECT num_nulls(paused_at, paused_by, pause_reason, resumes_at) FROM leader_election.election WHERE election = 'old'"),
	4, 'old: no pause');
is(call("SELECT num_nulls(run, run_done, run_granted, done_at, leader, successor, not_before_at)
	FROM leader_election.lease WHERE election = 'old'"), 7, 'old: no run, no reservation, no hold');
cmp_ok(call($run), '>', $run_term, 'old: the run is to be done, by who was drained, at once, in the next term (G5)');
is(call("SELECT leader_election.is_leader('old')", $member), 'f', 'old: who stood there leads nothing');
call("SELECT leader_election.join('old', 'member')", $member);
is(call("SELECT count(*) FROM leader_election.candidates WHERE election = 'old' AND candidate = 'member'"),
	1, 'old: once');

# A campaign that waits stands on, or ends with an error: it does not wait for ever.
my $waiter = session($node, name => 'waiter');
call("SELECT leader_election.create_election('campaign')");
my $held = acquire('campaign');
$waiter->query_async("CALL leader_election.campaign('campaign', 'waiter')");
wait_for($node, "SELECT count(*) FROM leader_election.candidates WHERE candidate = 'waiter'", 1);
call("SELECT leader_election.release('campaign', $held)");
cmp_ok($waiter->result, '>', $held, 'campaign: elected');
call("SELECT leader_election.leave('campaign')", $waiter);
call("SELECT leader_election.pause_election('campaign')");
$waiter->query_async("CALL leader_election.campaign('campaign', 'waiter')");
wait_for($node, "SELECT count(*) FROM leader_election.candidates WHERE candidate = 'waiter'", 1);
call("BEGIN; SELECT leader_election.drop_election('campaign');
	SELECT leader_election.create_election('campaign'); COMMIT");
my $term = $waiter->result;
ok( $waiter->sqlstate eq 'LE003' || $term ne '',
	'campaign: one that waited while its election was created again ends (' . $waiter->sqlstate . ", $term)");

$listener->fence;
wait_for($node, "SELECT count(*) FROM leader_election.announced a
	WHERE NOT EXISTS (SELECT FROM leader_election.lease l WHERE l.election = a.election)", 0);
pass('no mark is left without an election');

# An election is dropped, and created again as a seat of a group, while a call waits for
# its lock: the call is refused, like any that alters or drops a seat by itself.
foreach my $sql ("alter_election('seat/1', quorum => 2)", "drop_election('seat/1')")
{
	my $maker = session($node, name => 'maker');
	my $waits = session($node, name => 'waits');

	wait_until(
		sub {
			call("SELECT leader_election.create_election('seat/1')", $maker);
			call("BEGIN; SELECT leader_election.drop_election('seat/1')", $maker);
			call(create_group('seat', 1), $maker);
			$waits->query_async("SELECT leader_election.$sql");
			wait_until(sub { $waits->finished
				|| $maker->query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
					AND NOT granted AND pid = " . $waits->backend_pid) > 0 },
				'a call that waits');
			call('COMMIT', $maker);
			$waits->result;
			return 1 if $waits->sqlstate ne '55P03';
			call(drop_group('seat'), $maker);
			return 0;
		},
		'a call that waits for as long as it may at most');
	is($waits->sqlstate, '42809', "seat: $sql is refused that began before it was one");
	is(call("SELECT string_agg(quorum::text, ' ') FROM leader_election.election WHERE group_name = 'seat'"),
		1, 'seat: nothing has changed');
	call(drop_group('seat'));
	$_->finish foreach $maker, $waits;
}

# What observers see of an election is its own past, and not that of its namesake.
$admin->query("SELECT leader_election.create_election('namesake')");
lead_once('namesake') foreach 1 .. 3;
like(call("SELECT string_agg(finding, ' ') FROM leader_election.diagnose('namesake')"),
	qr/3 terms ended by "resigned"/, 'namesake: it has a past');
call("SELECT leader_election.drop_election('namesake');
	SELECT leader_election.create_election('namesake')");
is(call("SELECT count(*) FROM leader_election.history WHERE election = 'namesake'"), 3,
	'namesake: its rows are there');
is(call("SELECT since IS NULL FROM leader_election.status WHERE election = 'namesake'"), 't',
	'namesake: nobody has led the new one');
is(call("SELECT num_nulls(vacant_seconds), changes_last_hour FROM leader_election.metrics WHERE election = 'namesake'"),
	'1|0', 'namesake: metrics');
is(call("SELECT finding ~ 'nobody has led it yet' FROM leader_election.diagnose('namesake') LIMIT 1"), 't',
	'namesake: diagnose()');
unlike(call("SELECT string_agg(finding, ' ') FROM leader_election.diagnose('namesake')"),
	qr/terms ended/, 'namesake: it has no past');
lead_once('namesake');
is(call("SELECT since IS NULL, changes_last_hour FROM leader_election.status JOIN leader_election.metrics USING (election)
	WHERE election = 'namesake'"), 'f|1', 'namesake: its own term counts');

# The extension is created again while a call waits: the call has begun with tables that
# are gone.  (One that waits for longer than it may is busy.)
my $dropper = session($node, name => 'dropper');
my $late = session($node, name => 'late');
wait_until(
	sub {
		call('BEGIN; DROP EXTENSION leader_election; CREATE EXTENSION leader_election', $dropper);
		$late->query_async("SELECT leader_election.leader('e')");
		wait_until(sub { $late->finished
			|| $dropper->query('SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = ' . $late->backend_pid) > 0 },
			'a call that waits');
		call('COMMIT', $dropper);
		$late->result;
		return $late->sqlstate ne '55P03';
	},
	'a call that waits for as long as it may at most');
like($late->errors, qr/^ERROR:  the elections of this database have been dropped/m, 'the extension is created again: a call that waited fails');
is($late->sqlstate_of("SELECT leader_election.join('e', 'late')"), '00000', 'and the next one works');

done_testing();
