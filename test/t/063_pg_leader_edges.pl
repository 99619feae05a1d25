# pg_leader at the edges: signals at any moment, races with the guardian, leases
# and names that nobody expects, settings and users with little.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use Encode qw(decode);
use IO::Socket::INET;
use IPC::Run;
use JSON::PP;
use LeaderElection;
use MachineTime;
use PgLeader;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

# Where the end of a lease is waited for, its election has a lease of its own. So it has
# where yield waits for that long, for somebody else to lead.
my $node = new_server(
	config => q(
leader_election.lease_duration = '15s'
client_min_messages = warning
));
my $dir = PostgreSQL::Test::Utils::tempdir();
my $sql = session($node, name => 'observer');

sub leads
{
	my ($election) = @_;

	return wait_until(sub { $sql->query("SELECT leader_election.leader('$election') IS NOT NULL") eq 't' }, "a leader of $election");
}

# --- the guardian

# It ends without having read all that it was told: its own word still counts.
{
	my %codes;

	foreach my $i (1 .. 10)
	{
		my $one = pg_leader($node, '-e', 'flood', '--', 'sh', '-c', 'trap "" HUP; echo started; sleep 0.1; exit 7');
		wait_until(sub { $one->output =~ /started/ }, 'its start');
		until ($one->ended)
		{
			kill('HUP', $one->pid) for 1 .. 100;
		}
		$codes{ $one->exit_code }++;
	}
	is(join(' ', sort keys %codes), '7', "the command's exit code, whatever comes in between");
}

# A command that is held up before its execution until the lease is over is not
# executed.
SKIP:
{
	my $source = "$dir/late.c";
	my $library = "$dir/late.so";

	append_to_file($source, q(
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
pid_t fork(void)
{
	static int n;
	pid_t pid = ((pid_t (*)(void)) dlsym(RTLD_NEXT, "fork"))();
	if (pid == 0 && ++n == 2)
		usleep(3200000);
	return pid;
}
));
	skip 'no compiler', 2 if system("cc -shared -fPIC -o $library $source -ldl 2>/dev/null") != 0;
	$sql->query("SELECT leader_election.create_election('late', lease_duration => '3 s')");
	local $ENV{LD_PRELOAD} = join(' ', $library, $ENV{LD_PRELOAD} // ());
	# The guardian must not be what prevents it.
	my $one = pg_leader($node, '-e', 'late', '--', 'sh', '-c', "echo ran >$dir/late");
	wait_until(sub { $one->guardian && descendants($one->guardian) }, 'the command to be');
	kill('STOP', $one->pid, $one->guardian);
	my ($command) = descendants($one->guardian);
	wait_until(sub { !is_running($command) }, 'its end');
	ok(!-e "$dir/late", 'what comes too late is not executed');
	kill('CONT', $one->guardian, $one->pid);
	is($one->exit_code, 121, 'leadership is lost');
}

# A guardian that cannot start the command says so, and nothing of it is left.
SKIP:
{
	my $library = "$dir/no_fork.so";
	my $own = "$dir/tmp-fork";

	append_to_file("$dir/no_fork.c", q(
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>
pid_t fork(void)
{
	static int n;
	if (++n == 2)
	{
		errno = EAGAIN;
		return -1;
	}
	return ((pid_t (*)(void)) dlsym(RTLD_NEXT, "fork"))();
}
));
	skip 'no compiler', 6 if system("cc -shared -fPIC -o $library $dir/no_fork.c -ldl 2>/dev/null") != 0;
	mkdir $own or die;
	local @ENV{qw(LD_PRELOAD TMPDIR)} = (join(' ', $library, $ENV{LD_PRELOAD} // ()), $own);
	my ($code, $output) = run_pg_leader($node, '-e', 'no fork', '--', 'sh', '-c', "echo ran >$own/ran");
	is($code, 126, 'a guardian that cannot fork');
	is($output, "pg_leader: error: could not execute \"sh\": Resource temporarily unavailable\n", 'says so, and nothing else');
	is(join(' ', glob("$own/*")), '', 'nothing is left');
	is($sql->query("SELECT leader_election.leader('no fork') IS NULL AND count(*) = 1 FROM leader_election.history WHERE election = 'no fork' AND reason = 'resigned'"),
		't', 'the lease was given back');

	# Twice: once the guardian cannot fork, and once pg_leader cannot.
	my $one = pg_leader($node, '-e', 'no fork', '--forever', '--', 'sh', '-c', 'echo ran; exec sleep 600');
	eval { wait_until(sub { $one->ended || $one->output =~ /ran/ }, 'another try', 60) };
	is($one->output, "pg_leader: error: could not execute \"sh\": Resource temporarily unavailable\n" x 2 . "ran\n", '--forever: it stands again');
	$one->signal('TERM') unless $one->ended;
	is($one->exit_code, 143, 'until it is told to end');
}

# The same with too few descriptors for the guardian, whatever it needs them for.
foreach my $mode (qw(detached session))
{
	my (%codes, @wrong);

	foreach my $n (5 .. 14)
	{
		local @PgLeader::ON_HOST = ('sh', '-c', "ulimit -n $n; exec \"\$@\"", 'sh');
		my ($code, $output) = run_pg_leader($node, '--mode', $mode, '-e', "few $mode $n", '--', 'sh', '-c', 'exit 9');

		$codes{$code}++;
		push @wrong, "$n: $code $output" if $code == 126 ? $output !~ /^pg_leader: error: could not execute "sh": Too many open files\n\z/ : $code == 121;
	}
	is(join("\n", @wrong), '', "few descriptors, $mode: what it says");
	is(join(' ', map { $codes{$_} ? 'some' : 'none' } 9, 126), 'some some', "few descriptors, $mode: with some the command runs, with some it cannot");
}

# --- signals at any moment

# From the first moment to the last: in the end nobody stands, and nothing is
# left, neither a process nor a file.
foreach my $signal (qw(TERM KILL))
{
	my $own = "$dir/tmp-$signal";
	my %codes;
	my @left;

	mkdir $own or die;
	local $ENV{TMPDIR} = $own;
	foreach my $round (0 .. 9)
	{
		my @all = map { pg_leader($node, '-e', "moments $signal $round $_", '-n', 'one', '--', 'sh', '-c', 'exec sleep 0.0' . $_) } 0 .. 4;

		sleep(0.008 * $round);
		foreach my $one (@all)
		{
			push @left, descendants($one->pid);
			$one->signal($signal) unless $one->ended;
		}
		$codes{ $_->exit_code }++ foreach @all;
	}
	note("$signal: " . join(', ', map { "$codes{$_} times $_" } sort keys %codes));
	is(join(' ', grep { !/^(0|143|137)$/ } sort keys %codes), '', "$signal: exit codes");
	wait_until(sub { !grep { is_running($_) } @left }, 'the end of all');
	wait_until(sub { !glob("$own/pg_leader.*") }, 'the end of all files');
	pass("$signal: nothing is left");
	wait_for($node, "SELECT count(*) = 0 FROM leader_election.candidates WHERE election LIKE 'moments $signal%' AND alive")
	  if $signal eq 'TERM';
}

# What was ignored when it was started stays so.
{
	my $busy = pg_leader($node, '-e', 'nohup', '--', 'sleep', '600');
	leads('nohup');
	my $out = '';
	my $run = IPC::Run::start([ 'nohup', 'pg_leader', 'run', '-d', $node->connstr('postgres'), '-e', 'nohup', '-n', 'two', '--', 'sh', '-c', 'kill -HUP $$; echo lives' ],
		'<', \undef, '>', \$out, '2>', '/dev/null');
	wait_until(sub { $sql->query("SELECT count(*) FROM leader_election.candidates WHERE election = 'nohup' AND alive") eq '2' }, 'a second candidate');
	kill('HUP', $run->{KIDS}[0]{PID});
	$busy->signal('TERM');
	is($busy->exit_code, 143, 'the first one ends');
	$run->finish;
	is($run->result(0), 0, 'nohup: SIGHUP does not end the wait');
	is($out, "lives\n", 'nor the command');
}

# Signals are for the command's group, and not for what has left that.
{
	my $one = pg_leader($node, '-e', 'group', '--', 'sh', '-c',
		"trap 'echo got HUP' HUP; trap 'exit 3' TERM; setsid sh -c 'trap \"echo daemon got HUP\" HUP; echo up; while :; do sleep 0.05; done' & while :; do sleep 0.05; done");
	wait_until(sub { $one->output =~ /up/ }, 'its start');
	foreach my $n (1 .. 5)
	{
		$one->signal('HUP');
		wait_until(sub { (() = $one->output =~ /^got HUP/mg) >= $n }, 'it to be passed on');
	}
	unlike($one->output, qr/daemon got/, 'SIGHUP is passed on to the group only');
	$one->signal('TERM');
	is($one->exit_code, 3, 'and SIGTERM');
}

# --- what it is started with

is(system('sh', '-c', 'exec pg_leader run -d "$0" -e closed -- sh -c "exit 9" <&- >&- 2>&-', $node->connstr('postgres')) >> 8,
	9, 'with closed standard files');

# It may be what another pg_leader has started: its command is told nothing of that.
{
	my @outer = map { "PG_LEADER_$_" } qw(CANDIDATE ELECTION EVENT LEADER METADATA RUN SEAT TERM TERM_FILE);

	local @ENV{@outer} = ('outer') x @outer;
	my ($code, $output) = run_pg_leader($node, '-e', 'inner', '-n', 'me', '--', 'sh', '-c', 'env | grep "^PG_LEADER_[^P]" | sort');
	is($code, 0, 'within another one');
	like($output, qr{^PG_LEADER_CANDIDATE=me\nPG_LEADER_ELECTION=inner\nPG_LEADER_TERM=1\nPG_LEADER_TERM_FILE=/.*/term\n\z}, '... what its command is told');
}

# Two of the same name are not one leader: the second one waits for the term to end.
{
	my $one = pg_leader($node, '-e', 'same', '-n', 'same', '--', 'sleep', '600');
	leads('same');
	is(run_pg_leader($node, '-e', 'same', '-n', 'same', '--skip', '--', 'true'), 0, 'the same name: skipped');
	is(run_pg_leader($node, '-e', 'same', '-n', 'same', '--wait', '2s', '--', 'true'), 122, 'the same name: waits (oban-py#32, oban#1488)');
	ok(!$one->ended, 'the first one leads on');
	is($sql->query("SELECT term FROM leader_election.status WHERE election = 'same' AND state = 'led'"), '1', 'in its term');
	$one->signal('TERM');
	$one->exit_code;
}

# Leases that are short
foreach my $case ([ '600ms', '300ms', qr/does not fit .*600 ms\n.*260 ms at most/ ],
	[ '150ms', undef, qr/which is 150 ms, is too short/ ], [ '20s', '10001ms', qr/10 s at most/ ])
{
	my ($lease, $grace, $message) = @$case;

	$sql->query("SELECT leader_election.create_election('lease $lease', lease_duration => '$lease')");
	my ($code, $output) = run_pg_leader($node, '-e', "lease $lease", $grace ? ('--grace', $grace) : (), '--', 'true');
	is($code, 125, "lease $lease: refused");
	like($output, $message, "lease $lease: says why");
}
is(run_pg_leader($node, '-e', 'lease 20s', '--grace', '10s', '--', 'true'), 0, 'lease 20s: as long as can be');

# A server that cannot answer now
{
	local $ENV{PGOPTIONS} = '-c lock_timeout=50ms';

	$sql->query('BEGIN; LOCK TABLE leader_election.election IN ACCESS EXCLUSIVE MODE');
	foreach my $how ([], ['--skip'], [ '--wait', '300ms' ])
	{
		my ($code, $output) = run_pg_leader($node, @$how, '-e', 'locked', '--', 'true');
		is($code, 123, "locked tables: @$how");
		like($output, qr/lock timeout/, 'says why');
	}
	$sql->query('ROLLBACK');
}

# A server that does not answer at all
{
	my $deaf = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 1) or die;
	my $start = machine_time();
	my ($code, $output) = run_pg_leader('host=127.0.0.1 connect_timeout=1 port=' . $deaf->sockport, '-e', 'deaf', '--', 'true');

	is($code, 123, 'a deaf server');
	like($output, qr/timeout/, 'says why');
	cmp_ok(machine_time() - $start, '<', 8, 'after connect_timeout');
}

# A folder that cannot be written to
{
	local $ENV{TMPDIR} = "$dir/none";
	my ($code, $output) = run_pg_leader($node, '-e', 'tmpdir', '--', 'true');
	is($code, 125, 'no folder for the term');
	like($output, qr/could not write/, 'says why');
}

# A role with the privileges that the README gives
$sql->query($_) foreach 'CREATE ROLE app LOGIN', 'GRANT USAGE ON SCHEMA leader_election TO app',
  'GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app';
foreach my $mode (qw(detached session))
{
	is(run_pg_leader($node, '-U', 'app', '-e', "app $mode", '--mode', $mode, '--hold', '100ms', '--', 'sh', '-c', 'exit 4'),
		4, "$mode: without privileges but EXECUTE");
}
is((ask($node, 'status', '-U', 'app', '-e', 'app session'))[0], 1, 'status');
is((ask($node, 'status', '-U', 'app', '-e', 'app session', '--json'))[0], 1, 'status as JSON');
like((ask($node, 'history', '-U', 'app', '-e', 'app session'))[1], qr/resigned/, 'history');
like((ask($node, 'yield', '-U', 'app', '-e', 'app session'))[2], qr/permission denied|must be owner/, 'yield is for owners');

# --- names

# Everything that a terminal, a line or a field might take for something else
my $evil = "a\e]0;owned\a\n\t\"\\\x7F\xC2\x9B31m\xE2\x80\xA6";
my $control = qr/[\x00-\x08\x0B-\x1F\x7F]|\xC2[\x80-\x9F]/;
{
	local $ENV{LC_ALL} = 'C.UTF-8';

	$sql->query("SELECT leader_election.create_election('evil', channel => 'evil', lease_duration => '6 s')");
	my $watch = start_client($node, 'watch', '-e', 'evil');
	wait_for_output($watch, qr/\n/);
	my $one = pg_leader($node, '-e', 'evil', '-n', $evil, '-v', '--grace', '100ms', '--', 'sleep', '600');
	leads('evil');
	wait_for_output($watch, qr/\n.*\n/);
	my $out = ${ $watch->[1] };
	my $shown = qr/a\\x1B\]0;owned\\x07\\n\\t"\\\\x7F\\xC2\\x9B31m\xE2\x80\xA6/;
	like($out, $shown, 'watch');
	unlike($out, $control, 'watch: no control character');
	foreach my $subcommand ([ 'status', '-e', 'evil' ], [ 'history', '-e', 'evil' ], ['status'])
	{
		my $text = ask($node, @$subcommand);
		like($text, $shown, "@$subcommand");
		unlike($text, $control, "@$subcommand: no control character");
	}
	is(scalar(my @fields = split(/\t/, scalar ask($node, 'history', '-e', 'evil'), -1)), 7, 'history: 7 fields');
	foreach my $subcommand (qw(status history))
	{
		my $json = ask($node, $subcommand, '-e', 'evil', '--json');
		unlike($json, $control, "$subcommand: no control character in JSON");
		is(decode_json($json)->{leader}, decode('UTF-8', $evil), "$subcommand: the name from JSON");
	}
	my $skipped = (run_pg_leader($node, '-e', 'evil', '-v', '--skip', '--', 'true'))[1];
	like($skipped, $shown, 'run');
	unlike($skipped, $control, 'run: no control character');

	my $drawn = '';
	local $ENV{COLUMNS} = 40;
	IPC::Run::run([ 'pg_leader', 'history', '-d', $node->connstr('postgres'), '-e', 'evil' ], '<', \undef, '>pty>', \$drawn);
	$drawn =~ s/\r\n/\n/g;
	like($drawn, qr/^a\\x1B\]0;owned \xE2\x96\x88/m, 'drawn');
	unlike($drawn, $control, 'drawn: no control character');
	is(join("\n", grep { length(decode('UTF-8', $_)) > 40 } split(/\n/, $drawn)), '', 'drawn: not wider than COLUMNS');

	my ($code, $text) = ask($node, 'yield', '-e', 'evil');
	unlike($text, $control, 'yield: no control character');
	$one->exit_code;
}

# Names as long as can be, and one byte longer
{
	my $long = "\xE2\x82\xAC" x 66 . 'xy';

	is(length $long, 200, 'a long name');
	is(run_pg_leader($node, '-e', $long, '-n', $long, '--', 'true'), 0, 'runs');
	like((ask($node, 'history', '-e', $long))[1], qr/\t$long\t/, 'is shown');
	is(run_pg_leader($node, '-e', "${long}z", '--', 'true'), 125, 'a longer one is refused');
}

# JSON is UTF-8 in a locale that has no encoding, whatever the database has.
{
	local $ENV{LC_ALL} = 'C';
	local $ENV{PGDATABASE} = 'latin1';
	my $out;

	$sql->query("CREATE DATABASE latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
	$node->safe_psql('latin1', 'CREATE EXTENSION leader_election');
	is(run_pg_leader($node->connstr('latin1'), '-e', "\xC3\xA9", '--', 'true'), 0, 'a name in the locale C');
	IPC::Run::run([ 'pg_leader', 'status', '-d', $node->connstr('latin1'), '--json' ], '>', \$out);
	is(decode_json($out)->{election}, "\x{E9}", 'and back');
}

# --- watch

{
	# A history without an election is not news.
	$sql->query("SELECT leader_election.create_election('dropped')");
	is(run_pg_leader($node, '-e', 'dropped', '-n', 'one', '--', 'true'), 0, 'led once');
	wait_for($node, "SELECT leader_election.leader('dropped') IS NULL");
	$sql->query("SELECT leader_election.drop_election('dropped')");
	my $watch = start_client($node, 'watch', '--json');
	wait_for_output($watch, qr/"tmpdir"/);

	# Nor is what anybody has notified.
	$sql->query("NOTIFY leadership_changed, '\"yield_requested\"'");
	$sql->query("NOTIFY leadership_changed, '{\"event\":\"yield_requested\",\"election\":\"tmpdir\",\"term\":99,\"leader\":\"x\"}'");
	$sql->query("NOTIFY leadership_changed, '{\"event\":\"yield_requested\",\"term\":\"x\"}'");
	is(run_pg_leader($node, '-e', 'news', '-n', 'one', '--', 'true'), 0, 'what is');
	wait_for_output($watch, qr/"news".*vacated/);
	my @lines = split(/\n/, ${ $watch->[1] });
	is(join(' ', grep { !/ state$/ } map { my $e = decode_json($_); "$e->{election} $e->{event}" } @lines),
		'news elected news vacated', 'only news are told');

	# A clock that is set back: in the order of terms, and once
	$sql->query("SELECT leader_election.create_election('clock')");
	$watch = start_client($node, 'watch', '--json', '-e', 'clock');
	wait_for_output($watch, qr/state/);
	$sql->query(q(INSERT INTO leader_election.history (election, term, leader, kind, role, acquired_at, ended_at, reason)
		SELECT 'clock', t, 'c' || t, 'detached', 'app', now() - t * interval '1 h', now() - t * interval '1 h' + interval '1 min', 'resigned' FROM generate_series(1, 3) t));
	$sql->query('NOTIFY leadership_changed') for 1 .. 2;
	is(run_pg_leader($node, '-e', 'clock again', '--', 'true'), 0, 'another election');
	$sql->query("INSERT INTO leader_election.history (election, term, leader, kind, role, acquired_at) VALUES ('clock', 4, 'c4', 'detached', 'app', now())");
	$sql->query('NOTIFY leadership_changed');
	wait_for_output($watch, qr/"term" : 4/);
	is(join(' ', map { my $e = decode_json($_); "$e->{event} $e->{term}" } grep { !/state/ } split(/\n/, ${ $watch->[1] })),
		'elected 1 vacated 1 elected 2 vacated 2 elected 3 vacated 3 elected 4', 'each event once, in order');
}

# --- since

is((ask($node, 'history', '-e', 'news', '--since', '20200101'))[1] =~ tr/\n//, 1, 'since a date without hyphens');
is((ask($node, 'history', '-e', 'news', '--since', '20990101'))[1], '', 'since one to come');
is((ask($node, 'history', '-e', 'news', '--since', '3600'))[0], 125, 'a mere number is no length of time');

# --- it is told to end while its connection is lost

# The server has been started again meanwhile, and still knows the candidate.
{
	$sql->query("SELECT leader_election.create_election('gone', lease_duration => '300 s')");
	$sql->query("SELECT leader_election.acquire('gone', 'two')");
	my $one = pg_leader($node, '-e', 'gone', '-n', 'one', '--', 'true');
	my $standing = "SELECT count(*) FROM leader_election.candidates WHERE election = 'gone' AND candidate = 'one'";

	wait_until(sub { $sql->query($standing) == 1 }, 'a candidate');
	stop_process($one->pid);
	$sql->finish;
	$node->restart;
	$sql = session($node, name => 'observer');
	is($sql->query($standing), 1, 'the server still knows the candidate');
	$one->signal('TERM');
	resume_process($one->pid);
	is($one->exit_code, 143, 'told to end');
	is($sql->query($standing), 0, 'it leaves, over another connection');
}

# A command that is not started, since pg_leader has ended
{
	local @ENV{qw(LD_PRELOAD SLOW_PROCESS SLOW_FILE TMPDIR)} = (preload('slow_start'), 'leader_guardian', "$dir/slow", "$dir/slow.tmp");
	mkdir $ENV{TMPDIR} or die;
	my $one = pg_leader($node, '-e', 'slow', '-n', 'one', '--', 'touch', "$dir/started");

	wait_until(sub { -e "$dir/slow" }, 'its guardian');
	my $guardian = $one->guardian;
	$one->signal('KILL');
	$one->exit_code;
	unlink("$dir/slow");
	wait_until(sub { !is_running($guardian) }, 'the end of the guardian');
	ok(!-e "$dir/started", 'a guardian that has no pg_leader any more starts no command');
	is(join(' ', glob("$ENV{TMPDIR}/*")), '', 'and leaves no file');
}

# --- a lease that cannot be given back

# Its term is not led once more: what the command has sent to the server may still be
# under way, and would be taken for what the next one sends. (After less than a second
# pg_leader would end the session in any case.)
{
	my $end = "$dir/kept.end";
	my $connstr = $node->connstr('postgres') . ' user=keeper';

	$sql->query($_)
	  for 'CREATE ROLE keeper LOGIN', 'GRANT USAGE ON SCHEMA leader_election TO keeper',
	  'GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO keeper',
	  "SELECT leader_election.create_election('kept', lease_duration => '300 s')";
	my $one = pg_leader($connstr, '-e', 'kept', '--mode=session', '--forever', '--', 'sh', '-c',
		"echo term \$PG_LEADER_TERM; sleep 1; until rm $end; do sleep 0.1; done 2>/dev/null");
	wait_until(sub { $one->output =~ /^term/m }, 'its start');
	$sql->query('REVOKE EXECUTE ON FUNCTION leader_election.resign FROM keeper, PUBLIC');
	append_to_file($end, '');
	wait_until(sub { $one->output =~ /^term.*permission denied.*^term/ms }, 'a lease that is kept, and another start');
	my ($first, $second) = $one->output =~ /^term (\d+)/mg;
	cmp_ok($second, '>', $first, 'a session that cannot give its lease back: the next command has another term');
	$one->signal('TERM');
	is($one->exit_code, 143, '... and it ends');
}

# --- the end of a lease

# The command is asked to end first. Where the guardian does not work, pg_leader
# does, before others can be elected. (The server is gone, and no lease ends
# later than where it was last renewed.)
{
	my $lease = 3 * slowness();
	my @args = ('--grace', '500ms');

	$sql->query("SELECT leader_election.create_election('end $_', lease_duration => '$lease s')") foreach qw(polite stopped);
	my $polite = pg_leader($node, '-e', 'end polite', @args, worker("$dir/polite", 'polite'));
	my $stopped = pg_leader($node, '-e', 'end stopped', @args, worker("$dir/stopped", 'stubborn', 'family'));
	my $log = sub { return -e "$dir/$_[0].log" ? slurp_file("$dir/$_[0].log") : ''; };
	wait_until(sub { $log->('polite') =~ /started/ && $log->('stopped') =~ /family/ }, 'both');
	my ($guardian, @family) = descendants($stopped->pid);

	$sql->finish;
	kill('STOP', $guardian);
	$node->stop('immediate');
	my $took = wait_until(sub { !grep { is_running($_) } @family }, 'their end');
	cmp_ok($took, '<', $lease, 'without a guardian everything is killed before the lease is over');
	is($stopped->exit_code, 121, 'leadership is lost');
	ok(!is_running($guardian), 'the guardian is gone');
	is($polite->exit_code, 121, 'leadership is lost');
	like($log->('polite'), qr/terminated/, 'a command that ends when it is asked to');
}

done_testing();
