# pg_leader status, watch, history and yield: what they show, also on a standby
# and across a lost connection.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use IO::Socket::INET;
use IPC::Run;
use JSON::PP;
use LeaderElection;
use MachineTime;
use PgLeader;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

$ENV{PGTZ} = 'UTC';
my $node = new_server(streaming => 1, config => "client_min_messages = warning");
my $one = session($node, name => 'one');
my $two = session($node, name => 'two');

# Waits until a watch has told of so many events: those, without the times.
sub events
{
	my ($watch, $n) = @_;
	my ($run, $out) = @$watch;

	wait_until(sub { $run->pump_nb; ($$out =~ tr/\n//) >= $n }, sub { "$n events in: $$out" });
	return [ map { my $e = decode_json($_); join(' ', map { $_ // '-' } @$e{qw(election event term leader previous reason)}) }
		  split(/\n/, $$out) ];
}

# --- status

$one->query("SELECT leader_election.join('e', 'one')");
$two->query("SELECT leader_election.join('e', 'two', rank => 3)");
$node->safe_psql('postgres', "SELECT leader_election.create_election('vacant', quorum => 2)");

my ($code, $out) = ask($node, 'status');
is($code, 0, 'status');
my $time = qr/\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00/;
like($out, qr/^Election +State +Leader +Term +Since +Remaining +Candidates$/m, 'a head');
like($out, qr/^e +led +one +1 +$time +1[0-9.]+ s +2$/m, 'one that is led');
like($out, qr/^and 1 that nobody has led or stands for: see --all$/m, 'one that is unused is counted');
unlike($out, qr/^vacant/m, '... and not shown');
$out = ask($node, 'status', '--all');
like($out, qr/^Election .* +Candidates +Waiting for$/m, 'a head, with --all');
like($out, qr/^vacant +vacant +0 +no candidates$/m, 'there it is shown');
($code, $out) = ask($node, 'status', '-e', 'e');
is($code, 0, 'status of one');
like($out, qr/^ +1 +one +session +0 +0 +leads$/m, 'with its leader');
like($out, qr/^ +2 +two +session +3 +0 *$/m, 'and its candidates');
is((ask($node, 'status', '-e', 'vacant'))[0], 1, 'nobody leads: exit code');
is((ask($node, 'status', '-e', 'vacant', '-n', 'one'))[0], 1, 'nor does a candidate that is named');
is((ask($node, 'status', '-e', 'e', '-n', 'one'))[0], 0, 'the leader, named');
is((ask($node, 'status', '-e', 'e', '--json', '--candidate=one'))[0], 0, 'the leader, named, in JSON');
is((ask($node, 'status', '-e', 'e', '-n', 'two'))[0], 1, 'another candidate');
is((ask($node, 'status', '-n', 'one'))[0], 125, 'a candidate of which election?');
($code, undef, my $err) = ask($node, 'status', '-e', 'none');
is($code, 125, 'no such election');
like($err, qr/election "none" does not exist/, 'says so');
my $status = decode_json(scalar ask($node, 'status', '-e', 'e', '--json'));
is($status->{leader}, 'one', 'JSON: the leader');
is($status->{candidates}[1]{candidate}, 'two', 'JSON: the candidates');
my @lines = split(/\n/, scalar ask($node, 'status', '--json'));
is(join(' ', map { decode_json($_)->{election} } @lines), 'e vacant', 'JSON: a line each');
$node->safe_psql('postgres', "SELECT leader_election.drain_candidate('two', 'e')");
like(scalar ask($node, 'status', '-e', 'e'), qr/^ +two +session +3 +0 +drained$/m, 'who is drained');
is(decode_json(scalar ask($node, 'status', '-e', 'e', '--json'))->{candidates}[1]{drained},
	JSON::PP::true, 'JSON: the same');
$node->safe_psql('postgres', "SELECT leader_election.undrain_candidate('two', 'e')");

# --- a pause: by whom, why, until when

my $me = $node->safe_psql('postgres', 'SELECT current_user');
$node->safe_psql('postgres', "SELECT leader_election.pause_election('vacant', 'new disks', '1 h')");
$out = ask($node, 'status');
like($out, qr/^Election +State +Leader +Term +Since +Remaining +Candidates +Waiting for +Note$/m,
	'a head, while one is paused');
like($out, qr/^vacant +vacant +0 +paused +paused by \Q$me\E until $time: new disks$/m, 'one that is paused');
$status = decode_json(scalar ask($node, 'status', '-e', 'vacant', '--json'));
is("$status->{paused_by} $status->{pause_reason}", "$me new disks", 'JSON: who paused it, and why');
like("$status->{paused_at} $status->{resumes_at}", qr/^\d{4}-\S+T\S+ \d{4}-\S+T\S+$/, 'JSON: since when, and until when');
$node->safe_psql('postgres', "SELECT leader_election.resume_election('vacant')");
is(decode_json(scalar ask($node, 'status', '-e', 'vacant', '--json'))->{paused_at}, undef, 'JSON: not paused any more');

# --- a standby

$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
like(scalar ask($standby, 'status', '-e', 'e'), qr/^e +led +one +1 +$time +[0-9.]+ s$/m, 'status on a standby');
like(scalar ask($standby, 'status'), qr/^vacant +vacant$/m, 'which leaves out none: it cannot know whether one is unused');
is(decode_json(scalar ask($standby, 'status', '-e', 'e', '--json'))->{candidates}, undef, 'which knows no candidates');

# --- watch

my $watch = start_client($node, 'watch', '--json', '-e', 'e');
my $all = start_client($node, 'watch', '--json');
my $there = start_client($standby, 'watch', '--json', '-e', 'e');
my @told = ('e state 1 one - -');
is_deeply(events($watch, 1), \@told, 'watch: the state');
is_deeply(events($there, 1), \@told, 'and on a standby');
is_deeply(events($all, 2), [ @told, 'vacant state - - - -' ], 'and of all');

$one->query("SELECT leader_election.resign('e')");
push @told, 'e elected 2 two one resigned';
is_deeply(events($watch, 2), \@told, 'a change without a vacancy is one event');
$one->query("SELECT leader_election.leave('e')");
$two->query("SELECT leader_election.leave('e')");
push @told, 'e vacated 2 - two left';
is_deeply(events($watch, 3), \@told, 'a vacancy (etcd#18163)');
$two->query("SELECT leader_election.join('e', 'two')");
push @told, 'e elected 3 two - -';
is_deeply(events($watch, 4), \@told, 'its end');
is_deeply(events($there, 4), \@told, 'the same on a standby');

# What happens while it has no connection
kill('STOP', $watch->[0]{KIDS}[0]{PID});
cmp_ok($node->safe_psql('postgres', "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'pg_leader'"),
	'>=', 1, 'it has lost its connection');
$one->query("SELECT leader_election.join('e', 'one')");
$two->query("SELECT leader_election.resign('e')");
$one->query("SELECT leader_election.leave('e')");
kill('CONT', $watch->[0]{KIDS}[0]{PID});
push @told, 'e elected 4 one two resigned', 'e elected 5 two one left';
is_deeply(events($watch, 6), \@told, 'nothing is missed without a connection (etcd#18163)');

# A channel of its own, a new election, and a request to yield
$node->safe_psql('postgres', "SELECT leader_election.create_election('own', channel => 'own channel')");
my $own = start_client($node, 'watch', '--json', '-e', 'own');
is_deeply(events($own, 1), ['own state - - - -'], 'an election with a channel of its own');
$one->query("SELECT leader_election.join('own', 'one')");
is_deeply(events($own, 2)->[1], 'own elected 1 one - -', 'elected');
$node->safe_psql('postgres', "SELECT leader_election.request_yield('own')");
is_deeply(events($own, 3)->[2], 'own yield_requested 1 one - -', 'asked to yield');

# Changed metadata: here, behind an own channel, and on a standby, which hears nothing
$one->query("SELECT term FROM leader_election.renew('own', metadata => '1')");
is_deeply(events($own, 4)->[3], 'own metadata_changed 1 one - -', 'changed metadata');
my $own_status = decode_json(scalar ask($node, 'status', '-e', 'own', '--json'));
is($own_status->{metadata}, 1, 'status as JSON has it');
isnt($own_status->{metadata_at}, undef, 'and since when');
my ($forged) = '{"election":"e","event":"metadata_changed","term":5,"leader":"two"}';
$node->safe_psql('postgres', "SELECT pg_notify('leadership_changed', '$forged')");
$two->query("SELECT term FROM leader_election.renew('e', metadata => '$_')") foreach 1, 2;
wait_until(sub { events($watch, 7)->[-1] =~ /metadata/ }, 'changed metadata');
my $late = start_client($node, 'watch', '--json', '-e', 'e');
is_deeply(events($late, 1), ['e state 5 two - -'], 'what was changed before is the state');
is_deeply([ grep { !/metadata_changed 5 two - -/ } @{ events($_, 7) } ], \@told, 'and nothing else') foreach $watch, $there;
$two->query("SELECT term FROM leader_election.renew('e', metadata => '3')");
is_deeply(events($late, 2), [ 'e state 5 two - -', 'e metadata_changed 5 two - -' ], 'a change after that is told');
push @told, 'e metadata_changed 5 two - -';

my $text = start_client($node, 'watch', '-e', 'e');
wait_for_output($text, qr/\n/);
like(${ $text->[1] }, qr/^\d{4}-\d\d-\d\d [0-9:.]+\+00  e: "two" leads in term 5$/m, 'as text');

# --- history

$out = ask($node, 'history', '-e', 'e');
is(scalar(@lines = split(/\n/, $out)), 5, 'history: a line each');
like($lines[0], qr/^1\tone\tsession\t[^\t]+\t[^\t]+\tresigned\t$/, 'with its fields (jobrunr#406, wolverine#475)');
is(decode_json((split(/\n/, scalar ask($node, 'history', '-e', 'e', '--json')))[1])->{reason}, 'left', 'as JSON');
is(scalar(@lines = split(/\n/, scalar ask($node, 'history', '-e', 'e', '--since', '2100-01-01'))), 1, 'since: the present one only');
is(scalar(@lines = split(/\n/, scalar ask($node, 'history', '-e', 'e', '--since', '1h'))), 5, 'since an hour ago');
is((ask($node, 'history', '-e', 'e', '--since', 'nonsense'))[0], 125, 'since nonsense');

# What cannot be written is an error.
foreach my $args ([qw(status)], [qw(status -e e --json)], [qw(history -e e)], [qw(watch)])
{
	$err = '';
	IPC::Run::run([ 'sh', '-c', 'exec pg_leader "$@" >/dev/full', 'sh', @$args, '-d', $node->connstr('postgres') ],
		'<', \undef, '2>', \$err, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	is($? >> 8, 125, "standard output that is full: @$args");
	like($err, qr/could not write to standard output: No space left/, 'says so');
}

# On a terminal, in and out of a locale that has blocks
foreach my $locale ('C', 'C.UTF-8')
{
	my $drawn = '';
	local $ENV{LC_ALL} = $locale;

	IPC::Run::run([ 'pg_leader', 'history', '-d', $node->connstr('postgres'), '-e', 'e' ], '<', \undef, '>pty>', \$drawn);
	my $bar = $locale eq 'C' ? '=' : "\xE2\x96\x88";
	like($drawn, qr/^one +.*r/m, "$locale: a lane for one");
	like($drawn, qr/^two +.*(?:$bar)+\r?$/m, "$locale: one for two, who leads");
	like($drawn, qr/^r resigned, l left\r?$/m, "$locale: a legend");
}

# --- yield

my $start = time;
$node->safe_psql('postgres', "SELECT leader_election.create_election('y', lease_duration => '30 s')");
my $led = pg_leader($node, '-e', 'y', '-n', 'led', '--', 'sleep', '600');
wait_for($node, "SELECT leader_election.leader('y') = 'led'");
my $next = pg_leader($node, '-e', 'y', '-n', 'next', '--', 'sleep', '600');
wait_for($node, "SELECT count(*) = 2 FROM leader_election.candidates WHERE election = 'y' AND alive");
($code, $out) = ask($node, 'yield', '-e', 'y');
is($code, 0, 'yield');
like($out, qr/^"led" is asked to yield: that takes [0-9.]+ m?s at most\n"next" leads in term 2\n\z/, 'says what happens');
is($led->exit_code, 121, 'the leader has gone');
($code, $out, $err) = ask($node, 'yield', '-e', 'y', '--to', 'nobody');
is($code, 125, 'yield to nobody');
like($err, qr/nobody/, 'says why not');
$next->signal('TERM');
is($next->exit_code, 143, 'ends');
is_deeply([ ask($node, 'yield', '-e', 'y') ], [ 0, "nobody leads\n", '' ], 'nobody leads');
$node->safe_psql('postgres', "SELECT leader_election.create_election('session', lease_duration => '${\(2 * slowness())} s')");
$one->query("SELECT leader_election.join('session', 'one')");
($code, $out) = ask($node, 'yield', '-e', 'session', '--terminate');
like($out, qr/^"one" is asked to yield/, 'a session');
ok(!defined eval { $one->query('SELECT 1'); $one->alive ? 1 : undef }, 'is terminated');

# Another one is elected after it has looked who leads: that one is asked, and no other.
{
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my ($proxy, $held) = holding_proxy($node, $port, qr/request_yield/, 'question');
	my $last = session($node, name => 'last');

	$two->query("SELECT leader_election.create_election('race', lease_duration => '1 min')");
	$two->query("SELECT leader_election.join('race', 'two')");
	$last->query("SELECT leader_election.join('race', 'last')");
	my $yield = start_client("host=127.0.0.1 port=$port dbname=postgres", 'yield', '-e', 'race');
	wait_until(sub { -e $held }, 'its request');
	$two->query("SELECT leader_election.resign('race')");
	kill('USR1', $proxy);
	wait_for_output($yield, qr/is asked to yield.*\n/);
	like(${ $yield->[1] }, qr/^"last" is asked to yield: .*\n\z/, 'who is asked to yield is who leads then');
	is($two->query("SELECT state FROM leader_election.status WHERE election = 'race' AND leader = 'last'"), 'yielding', 'and is asked');
	$last->query("SELECT leader_election.leave('race')");
	wait_for_output($yield, qr/"two" leads in term 3\n\z/);
	$yield->[0]->finish;
	is($yield->[0]->full_result >> 8, 0, 'and has gone');
	kill('KILL', $proxy);

	# Nobody leads when it looks.
	$port = PostgreSQL::Test::Cluster::get_free_port();
	($proxy, $held) = holding_proxy($node, $port, qr/request_yield/, 'question');
	$two->query("SELECT leader_election.leave('race')");
	$yield = start_client("host=127.0.0.1 port=$port dbname=postgres", 'yield', '-e', 'race');
	wait_until(sub { -e $held }, 'its request');
	$last->query("SELECT leader_election.join('race', 'last')");
	kill('USR1', $proxy);
	wait_for_output($yield, qr/\n/);
	like(${ $yield->[1] }, qr/^"last" is asked to yield: .*\n\z/, 'nobody led before the request');
	$last->query("SELECT leader_election.leave('race')");
	$two->query("SELECT leader_election.join('race', 'two')");
	wait_for_output($yield, qr/"two" leads in term 5\n\z/);
	$yield->[0]->finish;
	kill('KILL', $proxy);
	$last->finish;
}

# --- a server that answers with errors for some time

{
	local $ENV{PGOPTIONS} = '-c lock_timeout=50ms';
	my $waits = start_client($node, 'watch', '-e', 'e');

	wait_for_output($waits, qr/"two" leads in term 5/);
	$two->query('BEGIN; LOCK TABLE leader_election.history IN ACCESS EXCLUSIVE MODE');
	wait_for_output($waits, qr/warning: .*lock timeout/);
	$two->query('ROLLBACK');
	wait_for_output($waits, qr/warning: the server answers again\n/);
	is(scalar(() = ${ $waits->[2] } =~ /warning: /g), 2, 'watch: it says so once, and when it is over');
	$waits->[0]->kill_kill;
}

$two->finish;

# --- process 1 of a container: the kernel keeps signals from that which it does not
# expect, and leaves others' children to it

SKIP:
{
	my @unshare = qw(unshare --user --map-current-user --pid --fork --mount-proc --kill-child);
	my $deaf = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 5) or die;
	my $db = $node->connstr('postgres');
	my $nowhere = 'host=127.0.0.1 dbname=postgres port=' . $deaf->sockport;
	my @cases = (
		[ 'watch', '>', $db, 'TERM', 143 ],
		[ 'watch', '>', $db, 'INT', 130 ],
		[ 'watch', '>pty>', $db, 'TERM', 143 ],
		[ 'watch --exec true', '>', $db, 'TERM', 143 ],
		[ 'watch --exec true', '>', $nowhere, 'TERM', 143 ],
		[ 'status', '>', $nowhere, 'TERM', 143 ],
		[ 'yield -e y1', '>', $db, 'INT', 130 ]);

	skip 'no process namespace can be made', 3 * @cases if system("@unshare true 2>/dev/null") != 0;
	local $SIG{INT} = 'DEFAULT';
	local $ENV{TERM} = 'xterm';
	my $busy = session($node, name => 'busy');
	$busy->query("SELECT leader_election.create_election('y1', lease_duration => '10 min')");
	$busy->query("SELECT leader_election.join('y1', 'busy')");
	foreach my $case (@cases)
	{
		my ($what, $to, $where, $signal, $expected) = @$case;
		my ($subcommand, @args) = split ' ', $what;
		my ($out, $first) = ('');
		my $run = IPC::Run::start(
			[ @unshare, 'sh', '-c', '(sh -c "sleep 0.2" &); trap "" QUIT; exec pg_leader "$@"', 'sh', $subcommand, '-d', $where, @args ],
			'<' => \undef, $to => \$out);

		@$case[1] = $to eq '>' ? 'into a pipe' : 'on a terminal';
		wait_until(
			sub {
				$run->pump_nb;
				($first) = descendants($run->{KIDS}[0]{PID});
				return $first && slurp_file("/proc/$first/comm") eq "pg_leader\n" && ($where eq $nowhere || $out ne '');
			},
			"$what to begin");
		eval { wait_until(sub { $run->pump_nb; !descendants($first) }, 'no process that others have left', 20) };
		is(join(' ', descendants($first)), '', "process 1, @$case[0, 1]: it leaves no zombie");
		kill('QUIT', $first);    # which was ignored when it began
		is(kill($signal, $first), 1, "SIG$signal");
		eval { wait_until(sub { $run->pump_nb; !is_running($first) }, 'its end', 20) };
		kill('KILL', $first);
		$run->finish;
		is($run->full_result >> 8, $expected, '... ends it');
	}
	$busy->finish;
}

# --- watch begins while somebody is elected: what the state has told is no event

# Among so many elections, the last one is read long after the query has begun.
$node->safe_psql('postgres', 'CREATE DATABASE many');
$node->safe_psql('many', q{CREATE EXTENSION leader_election;
	INSERT INTO leader_election.election (election, strategy, lease_duration, quorum, takeover_delay, owner)
		SELECT 'many ' || i, 'race', '1 h', 1, '0', current_user FROM generate_series(1, 10000) i;
	INSERT INTO leader_election.lease (election, term, yielding, yield_ordered, yields)
		SELECT election, 0, false, false, 0 FROM leader_election.election;
	SELECT leader_election.create_election('zz')});
my $elected = session($node, name => 'elected', dbname => 'many');
my $sees = session($node, name => 'sees', dbname => 'many');
my $caught = 0;
wait_until(
	sub {
		my $begins = start_client($node->connstr('many'), 'watch', '--json');
		my $told = sub { $begins->[0]->pump_nb; ${ $begins->[1] } };

		wait_until(sub { $sees->query(q{SELECT count(*) FROM pg_stat_activity
			WHERE datname = 'many' AND state = 'active' AND query ~ 'FULL JOIN' AND pid <> pg_backend_pid()}) || $told->() }, 'its query');
		my $term = $elected->query("SELECT leader_election.join('zz', 'elected')");
		wait_until(sub { $told->() =~ /"zz".*\n/ }, 'the state');
		$caught++ if $told->() =~ /"zz".*"elected"/;
		$elected->query("SELECT leader_election.leave('zz')");
		wait_until(sub { $told->() =~ /"vacated".*\n/ }, 'the end');
		my @told = map { decode_json($_) } grep { /"zz"/ } split(/\n/, $told->());
		is(join(' ', grep { ($_ // '') eq 'elected' } map { $_->{leader} } @told), 'elected',
			"it tells once who leads in term $term");
		$begins->[0]->kill_kill;
		return $caught >= 3;
	},
	'the state of a seat that was vacant when it was asked for');
done_testing();
