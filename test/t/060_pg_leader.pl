# pg_leader run: exit codes, signals, what the command is given, and that
# nothing of it is left.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaderElection;
use MachineTime;
use PgLeader;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

# In seconds; a slow machine takes longer for what is done within a lease.
my $LEASE = 3 * slowness();
my $node = new_server(config => "leader_election.lease_duration = '${LEASE}s'");
my $dir = PostgreSQL::Test::Utils::tempdir();
my $sql = session($node, name => 'observer', options => '-c client_min_messages=warning');

# Waits until a file, or the output of a pg_leader, says something.
sub wait_for_text
{
	my ($from, $regexp) = @_;
	my $text;

	wait_until(
		sub {
			$text = ref $from ? $from->output : -e $from ? slurp_file($from) : '';
			return $text =~ $regexp;
		},
		sub { "$regexp in: $text" });
	return $text;
}

sub leader_of
{
	my ($election) = @_;

	return $sql->query("SELECT leader_election.leader('$election')");
}

# The names of the candidates of its last terms, oldest first, and why they ended.
sub reasons
{
	my ($election) = @_;

	return join(
		' ',
		$sql->query(
			"SELECT leader || ':' || coalesce(reason, 'leads') FROM leader_election.history
			  WHERE election = '$election' ORDER BY term"));
}

# --- the program

foreach my $subcommand ('', 'run', 'stand', 'status', 'diagnose', 'watch', 'history', 'yield')
{
	my ($out, $err);
	my @command = ('pg_leader', $subcommand ? $subcommand : (), '--help');

	ok(run_log(\@command, '>', \$out, '2>', \$err), "@command");
	like($out, qr/^Usage:$/m, "@command: usage");
	is($err, '', "@command: no error");
	is(join("\n", grep { length > 80 } split(/\n/, $out)), '', "@command: no long line");
}
program_version_ok('pg_leader');

# --- exit codes

my $ok = run_pg_leader($node, '-e', 'codes', '--', 'true');
is($ok, 0, 'the command succeeds');
is(run_pg_leader($node, '-e', 'codes', '--', 'sh', '-c', 'exit 7'), 7, "the command's own (consul#947)");
is(run_pg_leader($node, '-e', 'codes', '--', 'sh', '-c', 'kill -KILL $$'),
	137, 'the command is killed');

# It has to connect within that.
my $wait = slowness() . 's';
my @errors = (
	[ 122, qr/timed out/, '-n', 'two', '-e', 'busy', '--wait', $wait, '--', 'true' ],
	[ 122, qr/timed out/, '-n', 'two', '-e', 'busy', '--wait', $wait, '--mode', 'session', '--', 'true' ],
	[ 122, qr/quorum 1 of 2/, '-e', 'quorum', '--skip', '--', 'true' ],
	[ 123, qr/no-such-place/, '-d', 'host=/no-such-place', '-e', 'codes', '--', 'true' ],
	[ 123, qr/no-such-place/, '-d', 'host=/no-such-place', '-e', 'codes', '--wait', '300ms', '--', 'true' ],
	[ 124, qr/hint: .*CREATE EXTENSION leader_election/, '-d', $node->connstr('template1'), '-e', 'codes', '--', 'true' ],
	[ 125, qr/hint: Try/, '-e', 'codes' ],
	[ 125, qr/no election/, '--', 'true' ],
	[ 125, qr/--wait/, '-e', 'codes', '--wait', 'soon', '--', 'true' ],
	[ 125, qr/--hold/, '-e', 'codes', '--hold', '367d', '--', 'true' ],
	[ 125, qr/--rank/, '-e', 'codes', '--rank', '1x', '--', 'true' ],
	[ 125, qr/exclude/, '-e', 'codes', '--wait', '1s', '--skip', '--', 'true' ],
	[ 125, qr/exclude/, '-e', 'codes', '--once', '--forever', '--', 'true' ],
	[ 125, qr/does not have the option/, '-e', 'codes', '--json', '--', 'true' ],
	[ 125, qr/does not fit into the lease .* $LEASE s/, '-e', 'codes', '--grace', 500 * $LEASE + 1 . 'ms', '--', 'true' ],
	[ 120, qr/permission denied/, '-U', 'nobody_special', '-e', 'codes', '--', 'true' ],
	[ 126, qr/could not execute/, '-e', 'codes', '--', '/' ],
	[ 127, qr/could not execute/, '-e', 'codes', '--', "$dir/no-such-command" ]);

$sql->query("SELECT leader_election.create_election('quorum', quorum => 2)");
$sql->query("SELECT leader_election.create_election('busy', lease_duration => '1 h')");
$sql->query('CREATE ROLE nobody_special LOGIN');
my $busy = pg_leader($node, '-n', 'one', '-e', 'busy', '--', 'sleep', '600');
wait_until(sub { leader_of('busy') eq 'one' }, 'a leader');
foreach my $case (@errors)
{
	my ($code, $message, @args) = @$case;
	my ($is, $output) = run_pg_leader($node, @args);

	is($is, $code, "exit code $code: @args");
	like($output, $message, "and says why: @args");
}

# --skip
is_deeply([ run_pg_leader($node, '-e', 'busy', '--skip', '--', 'echo', 'runs') ],
	[ 0, '' ], '--skip while another leads');
is_deeply([ run_pg_leader($node, '-e', 'busy', '--skip', '--mode', 'session', '--', 'echo', 'runs') ],
	[ 0, '' ], 'and in a session');
$busy->signal('TERM');
is($busy->exit_code, 143, 'SIGTERM is passed on');
is($sql->query("SELECT count(*) FROM leader_election.candidates WHERE election = 'busy' AND alive"),
	'0', 'nobody is left standing');

# --- what the command is given

$sql->query(q(SELECT leader_election.create_election('given "x"', lease_duration => '1 h')));
foreach my $mode (qw(detached session))
{
	my $one = pg_leader($node, '-e', 'given "x"', '--mode', $mode, '-n', "it's \\ one", '--', 'sh', '-c',
		'env | grep PG_LEADER_; cat "$PG_LEADER_TERM_FILE"; stat -c "mode %a" "$PG_LEADER_TERM_FILE"; ls -l /proc/self/fd; cut -d " " -f 1,5 /proc/$$/stat; echo "pid $$"; grep -E "Sig(Blk|Ign|Cgt)" /proc/self/status; exec sleep 600');
	my $text = wait_for_text($one, qr/SigIgn.*\n(?:.*\n)*SigCgt/);

	like($text, qr/^PG_LEADER_ELECTION=given "x"$/m, 'the election');
	like($text, qr/^PG_LEADER_CANDIDATE=it's \\ one$/m, 'the candidate');
	like($text, qr/^PG_LEADER_TERM=(\d)$(?=(?:.*\n)*^\1$)/m, 'the term, also in the file (consul lock)');
	like($text, qr/^mode 600$/m, 'which is private');
	like($text, qr/^\s*(\d+)\s+\1\npid \1$/m, 'a process group of its own');
	like($text, qr/^SigBlk:\s+0+$/m, 'no signal is blocked');
	my ($ignored) = $text =~ /^SigIgn:\s+\w*(\w{8})$/m;
	is(hex($ignored) & 0x201000, 0, 'SIGPIPE and SIGTTOU are not ignored');
	unlike($text, qr/socket:/, 'no socket');
	my ($file) = $text =~ /^PG_LEADER_TERM_FILE=(.*)$/m;
	$one->signal('INT');
	is($one->exit_code, 130, 'SIGINT is passed on');
	ok(!-e $file, 'the file is gone');
	(my $folder = $file) =~ s/\/term$//;
	ok(!-e $folder, 'and its folder');
}
{
	# One within the command of another one, which has a term, a run and a seat
	local @ENV{ map { "PG_LEADER_$_" } qw(ELECTION CANDIDATE TERM TERM_FILE RUN SEAT) } = ('outer') x 6;
	my ($code, $text) = run_pg_leader($node, '-e', 'inner', '-n', 'one', '--check', "env | grep ^PG_LEADER_ >'$dir/check'",
		'--', 'sh', '-c', 'env | grep ^PG_LEADER_');

	is($code, 0, 'one within another');
	is(join(' ', sort $text =~ /^PG_LEADER_(\w+)=/mg), 'CANDIDATE ELECTION TERM TERM_FILE', 'its command has its own environment');
	unlike($text, qr/outer/, '... only');
	is(join(' ', sort split /\n/, slurp_file("$dir/check")), 'PG_LEADER_CANDIDATE=one PG_LEADER_ELECTION=inner', 'its check, too');
}
{
	my ($in, $out, $err) = ("hello\n", '', '');

	IPC::Run::run([ 'pg_leader', 'run', '-d', $node->connstr('postgres'), '-e', 'stdin', '--', 'cat' ],
		\$in, \$out, \$err);
	is($out, "hello\n", 'stdin is passed through');
}

# --- signals

foreach my $mode (qw(detached session))
{
	my $log = "$dir/signals-$mode";
	my @args = ('-e', "signals $mode", '--mode', $mode, '--grace', '100ms');

	# The command takes its time, for longer than the lease, and is renewed. (With a
	# short grace, a renewal may be late by half the lease.)
	my $one = pg_leader($node, @args, '-n', 'one', '--', 'sh', '-c',
		'trap "sleep ' . ($LEASE + 1) . '; echo ended; exit 5" TERM; trap "echo HUP" HUP; echo started; while :; do sleep 0.05; done');
	wait_for_text($one, qr/started/);
	$one->signal('HUP');
	wait_for_text($one, qr/HUP/);
	my $two = pg_leader($node, @args, '-n', 'two', worker($log));
	wait_until(sub { $sql->query("SELECT count(*) FROM leader_election.candidates WHERE election = 'signals $mode' AND alive") eq '2' }, 'two candidates');
	$one->signal('TERM');
	is($one->exit_code, 5, "$mode: the command takes its time");
	like($one->output, qr/ended/, "$mode: to the end");
	wait_for_text("$log.log", qr/started/);

	my $three = pg_leader($node, @args, '-n', 'three', '--', 'true');
	wait_until(sub { $sql->query("SELECT count(*) FROM leader_election.candidates WHERE election = 'signals $mode' AND alive") eq '2' }, 'two candidates');
	$three->signal('QUIT');
	is($three->exit_code, 131, "$mode: a signal while waiting");
	wait_until(sub { $sql->query("SELECT count(*) FROM leader_election.candidates WHERE election = 'signals $mode' AND alive") eq '1' }, 'one candidate');
	$two->signal('TERM');
	is($two->exit_code, 143, "$mode: ended by a signal");
	is(reasons("signals $mode"), 'one:resigned two:resigned', "$mode: the lease was given back");
}

# --- hand-over

# The first leader is told to end while a second one waits, whose command runs at
# once. Without the news of it, the second one would ask again up to a second later. A
# slow machine takes longer for everything, also for the start of a program.
foreach my $mode (qw(detached session))
{
	my (@took, @starts);

	foreach my $i (1 .. 10)
	{
		my $log = "$dir/over-$mode-$i";
		my @args = ('-e', "over $mode $i", '--mode', $mode);
		$sql->query("SELECT leader_election.create_election('over $mode $i', lease_duration => '1 h')");
		my $one = pg_leader($node, @args, '-n', 'one', worker($log));
		wait_for_text("$log.log", qr/one 1 started/);
		my $two = pg_leader($node, @args, '-n', 'two', worker($log));
		wait_until(sub { $sql->query("SELECT count(*) FROM leader_election.candidates WHERE election = 'over $mode $i' AND alive") eq '2' }, 'two candidates');
		my $start = time;
		$one->signal('TERM');
		my $text = wait_for_text("$log.log", qr/two 2 (started|OVERLAP)/);
		my ($at) = $text =~ /^(\S+) \d+ two 2 started/m;
		push @took, ($at // $start + 99) - $start;
		$start = time;
		system_or_bail($^X, '-e', '1');
		push @starts, time - $start;
		$two->signal('KILL');
	}
	@took = sort { $a <=> $b } @took;
	@starts = sort { $a <=> $b } @starts;
	note("hand-over, $mode, in seconds: @took; starts of a program: @starts");
	cmp_ok($took[5], '<', 0.1 + 10 * $starts[5], "$mode: hand-over at once");
}

# --- nothing is left

# The family ignores SIGTERM: the guardian has to find and kill every member.
foreach my $mode (qw(detached session))
{
	foreach my $killed (qw(pg_leader guardian))
	{
		my $name = "$killed, $mode";
		my $log = "$dir/family-$killed-$mode";
		$sql->query("SELECT leader_election.create_election('$name', lease_duration => '1 h')");
		my $one = pg_leader($node, '-e', $name, '--mode', $mode, '--grace', '500ms', worker($log, 'stubborn', 'family'));
		wait_for_text("$log.log", qr/family/);
		my @family = descendants($one->pid);
		is(scalar @family, 4, "$name is killed: guardian, command, child, grandchild");
		kill('KILL', $killed eq 'guardian' ? $one->guardian : $one->pid);
		my $took = wait_until(sub { !grep { is_running($_) } @family }, 'their end');
		cmp_ok($took, '<', 10, "$name is killed: nothing is left (consul#2489)");
		is($one->exit_code, $killed eq 'guardian' ? 121 : 137, "$name is killed: exit code");
	}
}

# What the command leaves when it ends by itself goes before the lease does.
{
	my $log = "$dir/left";
	my $one = pg_leader($node, '-e', 'left', worker($log, 'stubborn', 'family', 'short'));
	wait_for_text("$log.log", qr/family/);
	my $two = pg_leader($node, '-e', 'left', worker($log));
	is($one->exit_code, 0, "the command's own exit code");
	my $text = wait_for_text("$log.log", qr/ 2 (started|OVERLAP)/);
	like($text, qr/ 2 started/, 'what the command left is gone before another runs');
	$two->signal('TERM');
	$two->exit_code;
}

# As process 1 of a container it collects what others leave to it.
SKIP:
{
	my @unshare = qw(unshare --user --map-current-user --pid --fork --mount-proc --kill-child);
	skip 'no process namespace can be made', 4 if system("@unshare true 2>/dev/null") != 0;

	my $out = '';
	local @ENV{qw(KUBERNETES_SERVICE_HOST POD_NAME)} = ('10.0.0.1', 'mailer-0');
	my $run = IPC::Run::start([ @unshare, 'pg_leader', 'run', '-d', $node->connstr('postgres'), '-e', 'first', '--', 'sh', '-c',
			'(sh -c "sleep 0.1; : >' . $dir . '/gone" & exec sleep 0) & trap "exit 9" TERM; cat /proc/1/comm; until [ -e ' . $dir . '/gone ]; do sleep 0.05; done; while cat /proc/[0-9]*/stat | grep -q ") Z "; do sleep 0.05; done; echo looked; while :; do sleep 0.05; done' ],
		'<', \undef, '>', \$out);
	wait_until(sub { $run->pump_nb; $out =~ /looked/ }, 'a process that was left to it to be gone, and no zombie');
	is($out, "pg_leader\nlooked\n", 'process 1, and no zombies');
	is($sql->query("SELECT leader_election.leader('first')"), 'mailer-0', "it has the pod's name, which has one candidate");
	my ($first) = descendants($run->{KIDS}[0]{PID});
	is(kill('TERM', $first), 1, 'is told to end');
	$run->finish;
	is($run->full_result >> 8, 9, 'passes that on, and the exit code back');
}

# --- the end of a leadership

# The leader is asked to yield.
foreach my $mode (qw(detached session))
{
	my $log = "$dir/yield-$mode";
	$sql->query("SELECT leader_election.create_election('yield $mode', lease_duration => '30 s')");
	my $one = pg_leader($node, '-e', "yield $mode", '--mode', $mode, worker($log, 'polite'));
	wait_for_text("$log.log", qr/started/);
	my $start = machine_time();
	$sql->query("SELECT leader_election.request_yield('yield $mode')");
	is($one->exit_code, 121, "$mode: yields");
	cmp_ok(machine_time() - $start, '<', 5, "$mode: at once");
	like(slurp_file("$log.log"), qr/terminated/, "$mode: the command got SIGTERM");
	is($sql->query("SELECT reason FROM leader_election.history WHERE election = 'yield $mode'"),
		'yielded', "$mode: the lease was given back");
}

# The session's backend is ended.
{
	my $log = "$dir/terminated";
	$sql->query("SELECT leader_election.create_election('terminated', lease_duration => '30 s')");
	my $one = pg_leader($node, '-e', 'terminated', '--mode', 'session', worker($log, 'stubborn', 'family'));
	wait_for_text("$log.log", qr/family/);
	my @family = descendants($one->pid);
	$sql->query("SELECT pg_terminate_backend(backend_pid) FROM leader_election.status WHERE election = 'terminated'");
	my $took = wait_until(sub { !grep { is_running($_) } @family }, 'their end');
	cmp_ok($took, '<', 1.0, 'a session that is ended kills at once (wolverine#2602)');
	is($one->exit_code, 121, 'leadership is lost');
}

# In mode detached the same is ridden out.
{
	my $log = "$dir/rides";
	$sql->query("SELECT leader_election.create_election('rides', lease_duration => '3 s')");
	my $one = pg_leader($node, '-e', 'rides', '--grace', '100ms', worker($log, 'polite'));
	wait_for_text("$log.log", qr/started/);
	foreach my $i (1 .. 3)
	{
		my $renewed = $sql->query("SELECT renewed_at FROM leader_election.status WHERE election = 'rides'");
		cmp_ok($sql->query("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'pg_leader'"),
			'>=', 1, 'its session is ended');
		wait_until(sub { $sql->query("SELECT renewed_at > '$renewed' FROM leader_election.status WHERE election = 'rides'") eq 't' }, 'a renewal');
	}
	$one->signal('TERM');
	is($one->exit_code, 0, 'lost connections are ridden out (opensearch-operator#1545)');
	is($sql->query("SELECT count(*) FROM leader_election.history WHERE election = 'rides'"), '1', 'in one term');
}

# --- --forever, --hold

{
	my $log = "$dir/forever";
	my $start = time;
	my $one = pg_leader($node, '-e', 'forever', '--forever', worker($log, 'short'));
	my $gaps = sub {
		my @at = wait_for_text("$log.log", qr/ 1 started/) =~ /^(\S+) .* started$/mg;

		return map { $at[$_] - $at[ $_ - 1 ] } 1 .. $#at;
	};
	# A command that this machine keeps for a second has not ended at once: then
	# the pauses begin anew.
	wait_until(sub { grep { $_ >= 2 } $gaps->() }, sub { "a pause of 2 s: they were @{[ $gaps->() ]}" });
	cmp_ok(scalar(my @gaps = $gaps->()), '<=', time - $start,
		'a command that ends at once does not spin, but is started less and less');
	wait_for($node, "SELECT count(*) = 0 FROM leader_election.candidates WHERE election = 'forever'");
	$one->signal('TERM');
	is($one->exit_code, 143, 'a signal ends it');

	$one = pg_leader($node, '-e', 'forever again', '--forever', worker("$log-2"));
	wait_for_text("$log-2.log", qr/ 1 started/);
	my ($command) = slurp_file("$log-2.log") =~ /^\S+ (\d+)/;
	wait_until(sub { $sql->query("SELECT renewed_at > since FROM leader_election.status WHERE election = 'forever again'") eq 't' }, 'a renewal');
	kill('KILL', $command);
	wait_for_text("$log-2.log", qr/ 2 started/);
	$one->signal('INT');
	is($one->exit_code, 130, 'it stands again after a crash, and not after SIGINT');
}

# A cron line on three hosts whose clocks differ, 30 nights: ten in each of three
# elections. A hold keeps away the hosts that come while it lasts: a night in which
# this machine was so slow that the last host came later does not count.
{
	my @elections = map { "nightly $_" } 0 .. 2;
	my %nights = map { $_ => 0 } @elections;
	my %runs;
	my $bad = 0;
	my $PATIENCE = 1_000_000;    # in microseconds, for the server with --skip
	my $hold = 1.5 * slowness() . ' s';

	foreach my $try (1 .. 60)
	{
		my @tonight = grep { $nights{$_} < 10 } @elections or last;
		my ($start, $mark) = (time, held_up());
		my @hosts;

		foreach my $skew (0, 0.1, 0.25)
		{
			sleep($start + $skew - time) if $start + $skew > time;
			push @hosts, map {
				[ pg_leader($node, '-e', $_, '--skip', '--hold', $hold, '--', 'echo', 'runs'), $_ ]
			} @tonight;
		}
		my %ran;
		foreach my $host (@hosts)
		{
			my $code = $host->[0]->exit_code;
			$bad++ unless $code == 0 || ($code == 122 || $code == 123) && held_up($mark) >= $PATIENCE;
			$ran{ $host->[1] }++ if $host->[0]->output =~ /runs/;
		}
		foreach my $election (@tonight)
		{
			my $holds = $sql->query("SELECT max(acquired_at) + '$hold' > clock_timestamp() FROM leader_election.history WHERE election = '$election'") eq 't';

			next if $ran{$election} && !$holds;
			$nights{$election}++;
			$runs{ $ran{$election} // 0 }++;
		}
		wait_for($node, "SELECT max(acquired_at) + '$hold' < clock_timestamp() FROM leader_election.history WHERE election LIKE 'nightly %'");
	}
	is_deeply(\%runs, { 1 => 30 }, 'once a night, for 30 nights (ShedLock#231)');
	is($bad, 0, 'and nobody complains');
}

$sql->finish;
done_testing();
