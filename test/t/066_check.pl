# pg_leader run --check: who is sick does not stand, leads no longer than the
# check may fail, and starts nothing. Nothing waits for a check, whatever it
# does: it fails, hangs, forks, fills its output; it, its checker and the
# guardian are stopped and killed.
#
# Each candidate has a check of its own (check()): it passes while there is a
# file, and does what the file says.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaderElection;
use MachineTime;
use PgLeader;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);
use Worker;

# A slow machine takes longer for a check that passes.
my $MS = 200 * slowness();
my $EVERY = $MS / 1000;

# A leader goes as well if nothing is heard of its check for as long as so many checks
# take: that is to be longer than a machine is held up.
my $FAILURES = 6;
my $TIMEOUT = $EVERY;
my $GRACE = 0.5;
my @OFTEN = ('--check-every', "${MS}ms", '--check-timeout', "${MS}ms", '--check-failures', $FAILURES, '--grace', '500ms');

# What a sick leader has; and time for the machine, which others use as well
my $BOUND = $EVERY * $FAILURES + $TIMEOUT + $GRACE;
my $SLACK = 1;

my $node = new_server(config => "leader_election.lease_duration = '20s'");
my $dir = PostgreSQL::Test::Utils::tempdir();
my $sql = session($node, name => 'observer', options => '-c client_min_messages=warning');

# The options of a check that evaluates the text of a file, and logs that. It
# fails if there is no file, and passes to begin with.
sub check
{
	my ($name, @options) = @_;

	well($name);
	return ("--check=echo x >> $dir/$name.checks; . $dir/$name.check", @options ? @options : @OFTEN);
}

sub set_check
{
	my ($name, $text) = @_;

	append_to_file("$dir/$name.new", "$text\n");
	rename("$dir/$name.new", "$dir/$name.check") or die "rename: $!";
	return;
}

sub well { return set_check($_[0], 'true'); }

sub sick { return set_check($_[0], 'false'); }

sub checks { return -e "$dir/$_[0].checks" ? -s "$dir/$_[0].checks" : 0; }

# Waits until so many more checks have begun.
sub wait_for_checks
{
	my ($name, $n) = @_;
	my $before = checks($name);

	return wait_until(sub { checks($name) >= $before + 2 * $n }, "checks of $name");
}

sub log_of { return -e "$dir/$_[0].log" ? slurp_file("$dir/$_[0].log") : ''; }

sub leader_of
{
	my ($election) = @_;

	return $sql->query("SELECT leader_election.leader('$election')") // '';
}

sub wait_for_leader
{
	my ($election, $leader) = @_;

	return wait_until(sub { leader_of($election) eq $leader }, "$leader to lead $election");
}

sub standing
{
	my ($election) = @_;

	return join(' ', $sql->query("SELECT candidate FROM leader_election.candidates
		WHERE election = '$election' AND alive ORDER BY 1"));
}

sub reasons
{
	my ($election) = @_;

	return join(' ', $sql->query("SELECT leader || ':' || coalesce(reason, 'leads')
		FROM leader_election.history WHERE election = '$election' ORDER BY term"));
}

# The processes of one: the checker, and the guardian
sub children_named
{
	my ($one, $name) = @_;

	return grep { (eval { slurp_file("/proc/$_/comm") } // '') eq "$name\n" } descendants($one->pid);
}

sub checker { return (children_named($_[0], 'leader_checker'))[0]; }

sub guardian { return (children_named($_[0], 'leader_guardian'))[0]; }

# The process that a check or a command has written to a file, and its end
sub process_in
{
	my ($file) = @_;

	wait_until(sub { -e "$dir/$file" && slurp_file("$dir/$file") =~ /\n/ }, $file);
	return slurp_file("$dir/$file") =~ s/\n.*//sr;
}

sub wait_for_end
{
	my (@pids) = @_;

	return wait_until(sub { !grep { is_running($_) } @pids }, "the end of @pids");
}

# --- the command line

foreach my $case (
	[ qr/--check-timeout may not be longer than --check-every/, '--check=true', '--check-timeout=6s' ],
	[ qr/--check-timeout may not be longer/, '--check=true', '--check-every=1s', '--check-timeout=2s' ],
	[ qr/no check \(--check\)/, '--check-every=1s' ],
	[ qr/no check \(--check\)/, '--check-failures=2' ],
	[ qr/--check-every is too short/, '--check=true', '--check-every=0s' ],
	[ qr/--check-timeout is too short/, '--check=true', '--check-timeout=1ms' ],
	[ qr/from 1 to 1000/, '--check=true', '--check-failures=0' ],
	[ qr/from 1 to 1000/, '--check=true', '--check-failures=2x' ])
{
	my ($message, @options) = @$case;
	my ($code, $output) = run_pg_leader($node, '-e', 'usage', @options, '--', 'true');

	is($code, 125, "wrong: @options");
	like($output, $message, 'and why');
}
is(scalar run_pg_leader($node, '-e', 'usage', '--check=true', '--check-every=1s', '--', 'true'), 0,
	'a timeout that is not given is no longer than --check-every');

# --- sick, and well again, in both modes

foreach my $mode (qw(detached session))
{
	my $e = "life_$mode";
	my @one = check("${e}_a");
	my @two = check("${e}_b");

	sick("${e}_a");
	my $a = pg_leader($node, '-e', $e, '-n', 'a', '--mode', $mode, '--forever', @one, worker("$dir/$e", 'stubborn', 'family'));
	wait_for_checks("${e}_a", 3);
	is(leader_of($e) . standing($e), '', "$mode: a sick candidate does not stand");
	my $b = pg_leader($node, '-e', $e, '-n', 'b', '--mode', $mode, '--forever', @two, worker("$dir/$e", 'stubborn', 'family'));
	wait_for_leader($e, 'b');
	wait_until(sub { log_of($e) =~ /b 1 family/ }, 'its command');
	well("${e}_a");
	wait_until(sub { standing($e) eq 'a b' }, 'a to stand');
	pass("$mode: it stands when it is well");
	sick("${e}_a");
	wait_until(sub { standing($e) eq 'b' }, 'a to leave');
	pass("$mode: it leaves when it is sick");

	# Nobody else is there: the leader goes all the same.
	my @processes = (guardian($b), descendants(guardian($b)));
	my ($began, $start) = (time, machine_time());
	sick("${e}_b");
	wait_for_end(@processes);
	cmp_ok(machine_time() - $start, '<', $BOUND + $SLACK, "$mode: a sick leader is gone in time");
	cmp_ok(time - $began, '>', $EVERY * ($FAILURES - 1), "$mode: and not after its first failure");
	wait_until(sub { leader_of($e) eq '' && standing($e) eq '' }, 'the seat to be vacant');
	is(reasons($e), 'b:resigned', "$mode: it has given the lease back, and stands no more");
	is($b->ended, 0, "$mode: with --forever it waits");

	# The next one, and back
	well("${e}_a");
	wait_for_leader($e, 'a');
	well("${e}_b");
	wait_until(sub { standing($e) eq 'a b' }, 'b to stand again');
	sick("${e}_a");
	wait_for_leader($e, 'b');
	wait_until(sub { log_of($e) =~ /b 3 started/ }, 'its command');
	sick("${e}_b");
	wait_for_leader($e, '');
	$_->signal('TERM') foreach $a, $b;
	$_->exit_code foreach $a, $b;
	unlike(log_of($e), qr/OVERLAP/, "$mode: nothing of a sick leader's command is left (G1)");
	is(scalar(() = log_of($e) =~ / started/g), 3, "$mode: three commands for three terms");
}

# --- the command, and the exit status

{
	my $one = pg_leader($node, '-e', 'polite', '-n', 'a', check('polite'), '--hold', '1h', worker("$dir/polite", 'polite'));
	my $two = pg_leader($node, '-e', 'polite', '-n', 'b', check('polite_b'), '--hold', '1h', worker("$dir/polite", 'polite'));

	wait_until(sub { standing('polite') eq 'a b' && log_of('polite') =~ /started/ }, 'both');
	my ($first, $second, $name) = leader_of('polite') eq 'a' ? ($one, $two, 'polite') : ($two, $one, 'polite_b');
	sick($name);
	is($first->exit_code, 121, 'a sick leader exits with 121');
	like(log_of('polite'), qr/terminated/, 'its command was asked to end');
	like($first->output, qr/the check has failed: child process exited with exit code 1/, 'it says what failed');
	like($first->output, qr/is given up: the check does not pass/, 'and what follows');
	wait_until(sub { log_of('polite') =~ / 2 started/ }, 'the next leader');
	pass('there is no hold: the next leader follows at once');
	$second->signal('TERM');
	is($second->exit_code, 0, 'it ends as its command does');
}
{
	my $one = pg_leader($node, '-e', 'hold', '-n', 'a', check('hold'), '--hold', '1h', '--', 'true');

	is($one->exit_code, 0, 'a command that ends by itself while the check passes');
	is($sql->query("SELECT waiting_for FROM leader_election.status WHERE election = 'hold'"), 'hold', 'has its hold');
}
{
	check('skip');
	sick('skip');
	my @run = ($node, '-e', 'skip', '--check=false', @OFTEN);

	is(scalar run_pg_leader(@run, '--skip', worker("$dir/skip")), 122, '--skip: sick, and nobody leads');
	is(scalar run_pg_leader(@run, '--wait', '2s', worker("$dir/skip")), 122, '--wait: sick for too long');
	is(scalar run_pg_leader($node, '-e', 'skip', '--check=true', @OFTEN, '--skip', '--', 'true'), 0, '--skip: well');
	my $leader = pg_leader($node, '-e', 'skip', '--check=true', @OFTEN, '--', 'sleep', '600');
	wait_until(sub { leader_of('skip') ne '' }, 'a leader');
	is(scalar run_pg_leader(@run, '--skip', worker("$dir/skip")), 0, '--skip: sick, and another leads');
	$leader->signal('TERM');
	is($leader->exit_code, 143, 'SIGTERM is passed on as ever');
	is(log_of('skip'), '', 'the sick one has started nothing');
	my $one = pg_leader(@run, worker("$dir/skip"));
	wait_until(sub { $one->output =~ /has failed/ }, 'a failure');
	$one->signal('TERM');
	is($one->exit_code, 143, 'SIGTERM while it is sick');
}

# --- a quorum does not count who is sick

$sql->query("SELECT leader_election.create_election('quorum', quorum => 2)");
{
	my $a = pg_leader($node, '-e', 'quorum', '-n', 'a', check('quorum_a'), '--', 'sleep', '600');
	my @b = check('quorum_b');

	sick('quorum_b');
	my $b = pg_leader($node, '-e', 'quorum', '-n', 'b', @b, '--', 'sleep', '600');
	wait_for_checks('quorum_b', 3);
	wait_until(sub { standing('quorum') eq 'a' }, 'a to stand');
	is(leader_of('quorum'), '', 'there is no quorum with one who is sick');
	well('quorum_b');
	wait_until(sub { leader_of('quorum') ne '' }, 'the quorum');
	pass('there is when both are well');
	$_->signal('TERM') foreach $a, $b;
	$_->exit_code foreach $a, $b;
}

# --- a leader that is told to end, or to go, and is sick meanwhile

foreach my $why (qw(signal yield))
{
	my $one = pg_leader($node, '-e', $why, '-n', 'a', check($why), '--forever', worker("$dir/$why", 'stubborn'));

	wait_until(sub { log_of($why) =~ /started/ }, 'the command');
	if ($why eq 'signal') { $one->signal('TERM'); }
	else
	{
		$sql->query("SELECT leader_election.request_yield('$why')");
		wait_until(sub { $sql->query("SELECT state FROM leader_election.status WHERE election = '$why'") eq 'yielding' }, 'the request');
	}
	my $start = machine_time();
	sick($why);
	wait_until(sub { leader_of($why) eq '' }, 'its end');
	cmp_ok(machine_time() - $start, '<', $BOUND + $SLACK, "$why, then sick: gone in time");
	if ($why eq 'signal')
	{
		is($one->exit_code, 121, 'and ended, with --forever too');
		next;
	}
	wait_for_checks($why, 2);    # as a candidate again
	$one->signal('TERM');
	is($one->exit_code, 143, 'and ended');
}

# --- the connection is lost, and found again: checks go on

{
	my $one = pg_leader($node, '-e', 'lost', '-n', 'a', check('lost'), worker("$dir/lost"));

	wait_until(sub { log_of('lost') =~ /started/ }, 'the command');
	my $pid = checker($one);
	kill('TERM', $pid);    # as systemd does, to all at once
	$sql->query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pg_leader'");
	wait_for_checks('lost', 2);
	is(leader_of('lost'), 'a', 'it leads on without a connection');
	is(checker($one), $pid, 'with the same checker, which SIGTERM does not end');
	sick('lost');
	is($one->exit_code, 121, 'and goes when it is sick');
	is(leader_of('lost'), '', 'giving the lease back');
}

# --- what a check is given

{
	my @check = check('given');

	set_check('given', "env | grep PG_LEADER_ > $dir/env; ls -l /proc/self/fd > $dir/fds; cat > $dir/in; grep -E 'Sig(Blk|Ign)' /proc/self/status > $dir/signals; mv $dir/env $dir/environment");
	my $one = pg_leader($node, '-e', 'it\'s $(false)', '-n', 'a', '--mode', 'session', @check, worker("$dir/given"));
	wait_until(sub { log_of('given') =~ /started/ }, 'the command');
	# The first checker was there before the connection; this one is not.
	kill('KILL', checker($one));
	unlink("$dir/environment");
	wait_until(sub { -e "$dir/environment" }, 'a check of the next checker');
	is(join(' ', sort split(/\n/, slurp_file("$dir/environment"))),
		'PG_LEADER_CANDIDATE=a PG_LEADER_ELECTION=it\'s $(false)', 'a check is told the election and the candidate');
	unlike(slurp_file("$dir/fds"), qr/socket:/, 'it has no socket');
	is(scalar(() = slurp_file("$dir/fds") =~ m{-> (?!/dev/null|/proc/|\Q$dir\E)\S+}g), 0, 'nor anything else of pg_leader');
	is(slurp_file("$dir/in"), '', 'it has no input');
	like(slurp_file("$dir/signals"), qr/SigBlk:\s+0+$/m, 'no signal is blocked');
	is(join('', grep { m{socket:} } split(/^/, qx(ls -l /proc/${\ checker($one)}/fd))) =~ tr/\n//, 1,
		'the checker has one socket, which leads to pg_leader');
	$one->signal('TERM');
	$one->exit_code;
}

# --- checks that hang, fork, and fill their output

{
	my $e = 'hangs';
	my $one = pg_leader($node, '-e', $e, '-n', 'a', check($e), '--forever', worker("$dir/$e"));

	wait_until(sub { log_of($e) =~ /started/ }, 'the command');
	set_check($e, 'i=0; while [ $i -lt 20000 ]; do echo "a line of output that nobody reads"; i=$((i + 1)); done; echo >&2; true');
	wait_for_checks($e, 2);
	is(leader_of($e), 'a', 'a check that fills its output passes');

	my $start = machine_time();
	set_check($e, "trap '' TERM INT HUP; sleep 1000 & setsid sh -c 'echo \$\$ > $dir/far; exec sleep 1000' & while :; do sleep 0.05; done");
	wait_until(sub { leader_of($e) eq '' }, 'its end');
	cmp_ok(machine_time() - $start, '<', $BOUND + $SLACK, 'a check that hangs has failed');
	wait_for_checks($e, 3);
	my $far = process_in('far');
	well($e);
	wait_for_leader($e, 'a');
	wait_for_end($far);
	is(scalar(grep { (eval { slurp_file("/proc/$_/cmdline") } // '') =~ /^sleep\0001000/ } descendants($one->pid)),
		0, 'nothing of it is left');
	like($one->output, qr/it took longer than \d/, 'and is said to hang');

	set_check($e, "(trap '' TERM; exec setsid sh -c 'echo \$\$ > $dir/left; exec sleep 1000') & until [ -s $dir/left ]; do :; done");
	wait_for_end(process_in('left'));
	wait_for_checks($e, 2);
	is(leader_of($e), 'a', 'what a check that passes leaves is killed, and is no failure');
	set_check($e, 'kill -SEGV $$');
	wait_until(sub { leader_of($e) eq '' }, 'its end');
	like($one->output, qr/terminated by signal 11/, 'a check that dies has failed');

	# The end of pg_leader is that of its checks, also if it is killed.
	unlink("$dir/far");
	set_check($e, "trap '' TERM; setsid sh -c 'echo \$\$ > $dir/far; exec sleep 1000' & while :; do sleep 0.05; done");
	$far = process_in('far');
	my @left = (checker($one), descendants(checker($one)));
	$one->signal('KILL');
	$one->exit_code;
	wait_for_end(@left);
	pass('a pg_leader that is killed leaves nothing of its check');
}
{
	my $one = pg_leader($node, '-e', 'ends', '-n', 'a', check('ends'), worker("$dir/ends"));

	wait_until(sub { log_of('ends') =~ /started/ }, 'the command');
	set_check('ends', "echo \$\$ > $dir/ends.pid; exec sleep 1000");
	my @left = (process_in('ends.pid'), checker($one));
	stop_process($left[1]);
	$one->signal('TERM');
	is($one->exit_code, 143, 'pg_leader does not wait for ever for a checker that is stopped');
	wait_for_end(@left);
	pass('and leaves none');
}

{
	my @check = check('told', '--check-every', '60s', '--check-timeout', '60s');

	set_check('told', "trap '' TERM; setsid sh -c 'echo \$\$ > $dir/told.pid; exec sleep 1000' & while :; do sleep 0.05; done");
	my $one = pg_leader($node, '-e', 'told', '-n', 'a', @check, '--', 'true');
	my $far = process_in('told.pid');
	my @left = (checker($one), descendants(checker($one)));
	$one->signal('TERM');
	is($one->exit_code, 143, 'told to end while a check runs');
	eval { wait_until(sub { !grep { is_running($_) } @left }, 'their end', 20) };
	is(join(' ', grep { is_running($_) } @left), '', 'pg_leader leaves nothing of it, be it in another session');
	kill('KILL', $far) if is_running($far);
}

# A checker whose pg_leader has ended before it could ask to be told so
{
	local @ENV{qw(LD_PRELOAD SLOW_PROCESS SLOW_FILE)} = (preload('slow_start'), 'leader_checker', "$dir/slow");
	my @often = ('--check-every', '5s', '--check-timeout', '5s');
	my $one = pg_leader($node, '-e', 'slow', '-n', 'a', check('slow', @often), '--', 'true');

	set_check('slow', 'exec sleep 1000');
	wait_until(sub { -e "$dir/slow" }, 'its checker');
	my $pid = checker($one);
	$one->signal('KILL');
	$one->exit_code;
	unlink("$dir/slow");
	wait_for_end($pid);
	is(checks('slow'), 0, 'a checker that has no pg_leader any more begins no check');
}

# --- the checker is killed, or stopped

# ... of a candidate that stands
{
	my $leader = pg_leader($node, '-e', 'idle', '-n', 'a', '--', 'sleep', '600');
	wait_for_leader('idle', 'a');
	my $one = pg_leader($node, '-e', 'idle', '-n', 'b', check('idle'), '--', 'sleep', '600');

	wait_until(sub { standing('idle') eq 'a b' }, 'both to stand');
	foreach (1 .. 3)
	{
		my $pid = checker($one);

		kill('KILL', $pid);
		wait_until(sub { (checker($one) // $pid) != $pid }, 'another checker');
	}
	$leader->signal('TERM');
	wait_for_leader('idle', 'b');
	pass('a candidate whose checker is killed has another one, and is elected');
	$one->signal('TERM');
	$_->exit_code foreach $leader, $one;
}

{
	my $e = 'checker';
	my $one = pg_leader($node, '-e', $e, '-n', 'a', check($e), '--forever', worker("$dir/$e", 'stubborn', 'family'));

	wait_until(sub { log_of($e) =~ /family/ }, 'the command');
	set_check($e, "sh -c 'echo \$\$ > $dir/orphan; exec sleep 0.1'; true");
	my $orphan = process_in('orphan');
	set_check($e, "[ -e $dir/hung ] || { sh -c 'echo \$\$ > $dir/orphan2; exec sleep 1000' & touch $dir/hung; wait; }");
	$orphan = process_in('orphan2');
	my $pid = checker($one);
	kill('KILL', $pid);
	wait_for_end($orphan);
	pass('a checker that is killed leaves nothing of its check');
	wait_until(sub { (checker($one) // $pid) != $pid }, 'another checker');
	wait_for_checks($e, $FAILURES + 2);
	is(leader_of($e), 'a', 'another one goes on, and the leader stays');
	is(scalar(() = log_of($e) =~ / started/g), 1, 'with the same command');

	my @processes = (guardian($one), descendants(guardian($one)));
	my $start = machine_time();
	stop_process(checker($one));
	wait_for_end(@processes);
	cmp_ok(machine_time() - $start, '<', $BOUND + $SLACK, 'a checker that is stopped says nothing: the leader is gone in time');
	wait_until(sub { leader_of($e) eq '' && standing($e) eq '' }, 'it to leave');
	resume_process(checker($one));
	wait_for_leader($e, 'a');
	pass('when the checker goes on, so does the candidate');

	# The guardian does not do its work: pg_leader does it.
	wait_until(sub { log_of($e) =~ /a 2 family/ }, 'the command');
	@processes = descendants(guardian($one));
	stop_process(guardian($one));
	$start = machine_time();
	sick($e);
	wait_for_end(@processes);
	cmp_ok(machine_time() - $start, '<', $BOUND + $SLACK + 0.5, 'the guardian is stopped: a sick leader is gone in time');
	wait_until(sub { leader_of($e) eq '' }, 'its end');
	well($e);
	wait_for_leader($e, 'a');
	pass('and its checker, which was killed with everything, is replaced');
	sick($e);
	wait_for_leader($e, '');
	$one->signal('TERM');
	$one->exit_code;
	unlike(log_of($e), qr/OVERLAP/, 'nothing was left');
}

# --- the guardian's deadline does not depend on the check

foreach my $stopped (qw(check checker pg_leader))
{
	my $e = "deadline_$stopped";

	$sql->query("SELECT leader_election.create_election('$e', lease_duration => '${\(12 * $MS)} ms')");
	my @check = check($e, '--check-every', '1s', '--check-timeout', '1s', '--check-failures', '1000', '--grace', '100ms');
	my $one = pg_leader($node, '-e', $e, '-n', 'a', @check, '--', 'sh', '-c',
		"echo \$\$ > $dir/$e.pid; trap '' TERM; while :; do sleep 0.1; done");
	my $pid = process_in("$e.pid");
	set_check($e, "echo x > $dir/$e.hangs; exec sleep 1000");
	process_in("$e.hangs");
	my @stopped = $stopped eq 'pg_leader' ? (checker($one), $one->pid) : stop_server();
	push @stopped, checker($one) if $stopped eq 'checker';
	stop_process($_) foreach @stopped;
	my $start = machine_time();
	wait_for_end($pid);
	cmp_ok(machine_time() - $start, '<', 12 * $EVERY + 0.5, "$stopped hangs: the command is dead at the deadline (G3)");
	resume_process($_) foreach @stopped;
	is($one->exit_code, 121, 'and pg_leader says so');
}

# --- a grant that arrives while the candidate is sick

{
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my ($proxy) = holding_proxy($node, $port, qr/acquire/, 'answer');
	my $one = pg_leader("host=127.0.0.1 port=$port dbname=postgres", '-e', 'late', '-n', 'a', check('late'), worker("$dir/late"));

	wait_for_leader('late', 'a');
	sick('late');
	wait_for_checks('late', 3);
	is(leader_of('late'), 'a', 'a grant is on its way to one who is sick');
	kill('USR1', $proxy);
	wait_until(sub { leader_of('late') eq '' && standing('late') eq '' }, 'it to be given back');
	is(reasons('late'), 'a:resigned', 'it is given back');
	is(log_of('late'), '', 'and the command is not started');
	well('late');
	wait_until(sub { log_of('late') =~ /started/ }, 'the command');
	is(reasons('late'), 'a:resigned a:leads', 'the same pg_leader leads when it is well');
	$one->signal('TERM');
	is($one->exit_code, 143, 'and ends as ever');
}

# While the command of a leader that is sick takes its time to end, pg_leader sleeps.
{
	my $one = pg_leader($node, '-e', 'sleeps', '-n', 'sleeps',
		check('sleeps', '--check-every', "${MS}ms", '--check-timeout', "${MS}ms", '--check-failures', $FAILURES, '--grace', '8s'),
		'--', $^X, '-e', '$SIG{TERM} = "IGNORE"; sleep 600');

	wait_for_leader('sleeps', 'sleeps');
	sick('sleeps');
	wait_until(sub { $one->output =~ /the check does not pass/ }, 'the end to begin');
	my $used = cpu_seconds($one->pid);
	my $start = time;
	wait_until(sub { time > $start + 4 }, 'four seconds, with news of the checker');
	cmp_ok(cpu_seconds($one->pid) - $used, '<', 0.3, 'nothing spins');
	$one->signal('KILL');
	$one->exit_code;
}

done_testing();

# The postmaster, and the server process of the only pg_leader that there is
sub stop_server
{
	my @pids;

	wait_until(
		sub {
			@pids = $sql->query("SELECT pid FROM pg_stat_activity WHERE application_name = 'pg_leader'");
			return @pids == 1;
		},
		'one server process');
	return (slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/, @pids);
}
