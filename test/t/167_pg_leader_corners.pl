# What pg_leader says in corners of its subcommands: where there is nothing to show,
# where it is refused and the time to wait is over, with connection strings of each
# kind, and with answers that a server gives which is not what it seems (HostileServer.pm).

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use HostileAnswers ();
use HostileServer;
use IO::Socket::INET;
use LeaderElection;
use MachineTime;
use PgLeader;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Sidecar;
use Test::More;
use Worker;

$ENV{LC_ALL} = 'C.UTF-8';
$ENV{TERM} = 'xterm';
delete @ENV{qw(NO_COLOR COLUMNS)};

sub on_terminal
{
	my ($connstr, $subcommand, @args) = @_;
	my $out = '';

	IPC::Run::run([ 'pg_leader', $subcommand, '-d', $connstr, @args ],
		'<' => \undef, '>pty>' => \$out, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return $out =~ s/\r\n/\n/gr;
}

# --- answers that are not what a server says

my $ROW = [ 'e', 'warning', 'it is late', 'wait', '{}' ];
my $LONG = 'SEVERITY' x 5;

$HostileAnswers::KINDS{'a long severity'} = sub {
	return HostileAnswers::message('E', "S$LONG\0V$LONG\0C42501\0Mno:  not you\0\0") . HostileAnswers::ready();
};
$HostileAnswers::KINDS{'no words'} = sub {
	return HostileAnswers::message('E', "SERROR\0VERROR\0C42501\0M\0\0") . HostileAnswers::ready();
};
foreach my $refusal ([ 'not you', 42501 ], [ 'read only', 25006 ], [ 'reset', 'LE006' ])
{
	$HostileAnswers::KINDS{ $refusal->[0] } = sub { return HostileAnswers::error($refusal->[1], $refusal->[0]); };
}

# What is asked, its answer; a subcommand, its exit code, and what it says
my @ANSWERS = (
	[ qr/diagnose\(/, [ 'rows', [ 'e', 'fatal', @$ROW[ 2 .. 4 ] ] ], ['diagnose'], 1, qr/^e\n  fatal +it is late\n +-> wait$/m ],
	[ qr/diagnose\(/, [ 'rows', [ @$ROW[ 0 .. 2 ], undef, '{}' ] ], ['diagnose'], 1, qr/^  warning +it is late\n\z/m ],
	[ qr/diagnose\(/, [ 'rows', [ @$ROW[ 0 .. 3 ], qq({"a":\n"\xff"}) ] ], [qw(diagnose --json)], 1, qr/^\{"a": "\\ufffd"\}\n\z/ ],
	[ qr/diagnose\(/, ['not you'], ['diagnose'], 125, qr/^pg_leader: error: not you$/m ],
	[ qr/AS "Waiting for"/, ['a long severity'], ['status'], 125, qr/error: $LONG:  (?:42501: )?no:  not you$/m ],
	[ qr/AS "Waiting for"/, ['no words'], ['status'], 125, qr/error: (?:42501: )?(?:the server sent an error without a message)?$/m ],
	[ qr/^SELECT term, leader, waiting_for/, [ 'rows', [ 7, undef, undef, '0.2', undef, undef ] ], [qw(yield -e e)], 0, qr/^nobody leads\n\z/ ],
	[ qr/pg_backend_pid/, [ 'rows', [ 1, 't' ] ], [qw(run -e e -- true)], 123, qr/error: the server at "127\.0\.0\.1" is a standby$/m ],
	[ qr/'leader_election\.lease_duration'/, [ 'rows', [ undef, 'soon', undef, 'f' ] ], [qw(run -e e --grace=10s -- true)], 125,
		qr/a grace of 10 s does not fit into the lease of election "e", which is 15 s$/m ],
	[ qr/SELECT run_done FROM/, ['not you'], [qw(run -e e --every=1h -- true)], 120, qr/error: not you$/m ]);

foreach my $case (@ANSWERS)
{
	my ($asked, $answer, $args, $expected, $says) = @$case;
	my $server = HostileServer->new(answers => [ [ $asked, @$answer ] ]);
	my ($code, $out, $err) = ask($server->connstr, @$args);
	my $name = "@$args, $asked: " . (ref $answer->[1] ? join('|', map { $_ // 'NULL' } @{ $answer->[1] }) : $answer->[0]) =~ s/[^ -~]/?/gr;

	is($code, $expected, $name);
	like("$out$err", $says, '... what it says');
	$server->finish;
}

# A pooler that resets the session each time: that is told as other errors are.
{
	my $server = HostileServer->new(answers => [ [ qr/FROM leader_election\.acquire\(/, 'reset' ] ]);
	my $one = pg_leader($server->connstr, '-e', 'e', '--forever', '--', 'true');

	wait_until(sub { (grep { /acquire/ } $server->log_lines) >= 4 }, 'four tries');
	is((grep { /pg_backend_pid/ } $server->log_lines) + 0, 1, 'over one connection');
	$one->signal('TERM');
	is($one->exit_code, 143, 'told to end');
	is(scalar(() = $one->output =~ /warning: .*reset/g), 1, 'it warns once');
	$server->finish;
}

# A leader that is to go at once, and does not.
{
	my $server = HostileServer->new(answers => [ [ qr/request_yield\(/, 'rows', ['0'] ] ]);
	my $yield = start_client($server->connstr, 'yield', '-e', 'e');

	wait_for_output($yield, qr/\n/);
	is(${ $yield->[1] }, qq("x" is asked to yield: that takes 0.0 ms at most\n), 'a length of nothing');
	$yield->[0]->kill_kill;
	$server->finish;
}

# Several have led between its two looks: it names none.
{
	my $server = HostileServer->new(answers => [
			[ qr/^SELECT term, leader, waiting_for/, 'rows', [ 9, 'z', undef, '0.2', 'f', 9 ] ],
			[ qr/^SELECT term, leader FROM leader_election\.history/, 'rows', [ 7, 'x' ], [ 8, 'y' ] ] ]);
	my ($code, $out) = ask($server->connstr, 'yield', '-e', 'e');

	is($code, 0, 'several may have been asked');
	is($out, qq(the leader is asked to yield: that takes 1 s at most\n"z" leads in term 9\n), '... who leads now was not');
	$server->finish;
}

# A server that cannot be written to any more: it connects again, to find another one.
{
	my $server = HostileServer->new(answers => [ [ qr/FROM leader_election\.acquire\(/, 'read only' ] ]);
	my $one = pg_leader($server->connstr, '-e', 'e', '--forever', '--', 'true');

	wait_until(sub { (grep { /pg_backend_pid/ } $server->log_lines) >= 3 }, 'three connections');
	$one->signal('TERM');
	is($one->exit_code, 143, 'told to end');
	like($one->output, qr/warning: (?:ERROR:  )?.*read only/, 'it says why');
	$server->finish;
}

# The term changes while the command runs, as after a failover.  Something has tidied up
# the folder of the file with the term: pg_leader leads all the same.
{
	my $server = HostileServer->new(answers => [ [ qr/FROM leader_election\.renew\(/, 'rows', [ 8, 3000, 'f' ] ] ]);
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $one = pg_leader($server->connstr, '-e', 'e', '-v', '--grace=100ms', '--', 'sh', '-c', qq(echo "\$PG_LEADER_TERM_FILE" >$dir/name; rm -r "\${PG_LEADER_TERM_FILE%/*}"; exec sleep 600));

	wait_until(sub { $one->output =~ /leading in term 8/ }, 'the next term');
	like($one->output, qr/warning: could not write the term file: No such file or directory$/m, 'the folder of the file is gone');
	ok($one->guardian, 'its command runs on');
	my ($file) = slurp_file("$dir/name") =~ /(.*)/;
	mkdir($file =~ s/\/[^\/]*$//r) or die "mkdir: $!";
	wait_until(sub { -e $file }, 'the next renewal');
	is(slurp_file($file) =~ s/\n//r, 8, 'which writes the file');
	$one->signal('TERM');
	is($one->exit_code, 143, 'told to end');
	$server->finish;
}

# SIGHUP after SIGTERM, as of a service or a session that ends, takes nothing back: with
# --forever it does not stand again.
{
	my $server = HostileServer->new;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $one = pg_leader($server->connstr, '-e', 'e', '--forever', '--', $^X, '-e',
		qq(\$SIG{HUP} = sub { open my \$f, '>', '$dir/hup' }; \$SIG{TERM} = sub { open my \$f, '>', '$dir/term' };
		open my \$f, '>', '$dir/runs'; until (-e '$dir/end') { select(undef, undef, undef, 0.01) }));

	wait_until(sub { -e "$dir/runs" }, 'the command');
	$one->signal('TERM');
	wait_until(sub { -e "$dir/term" }, 'SIGTERM to be passed on');
	$one->signal('HUP');
	wait_until(sub { -e "$dir/hup" }, 'SIGHUP to be passed on');
	unlink("$dir/runs");
	append_to_file("$dir/end", '');
	is($one->exit_code, 0, 'it ends with its command');
	ok(!-e "$dir/runs", 'which does not run again');
	$server->finish;
}

# --- the command line

foreach my $question ([ '-?', qr/^Usage:/m ], [ '--help', qr/^Usage:/m ], [ '-V', qr/^pg_leader \(leader_election\) \d/ ], [ '--version', qr/^pg_leader \(leader_election\) \d/ ])
{
	my ($word, $answer) = @$question;

	foreach my $call ("pg_leader $word", "pg_leader run $word")
	{
		like(`$call`, $answer, $call);
		is($?, 0, '... exit code');
	}
}
foreach my $wrong ([ qr/--skip and --forever exclude each other/, '--skip', '--forever' ], [ qr/--pooler needs --mode=session/, '--pooler=session' ])
{
	my ($message, @options) = @$wrong;
	my ($code, undef, $err) = ask('host=/nowhere', 'run', '-e', 'e', @options, '--', 'true');

	is($code, 125, "wrong: @options");
	like($err, $message, '... and why');
}

# --- nothing to show

my $node = new_server(config => "client_min_messages = warning\n");
my $sql = session($node, name => 'sql');
my $DB = $node->connstr('postgres');

is_deeply([ ask($node, 'diagnose') ], [ 0, "no elections that anybody has led or stands for\n", '' ], 'diagnose: no elections');
is((ask($node, 'diagnose', '--json'))[1], '', '... of which JSON has no lines');
is(on_terminal($DB, 'history', '-e', 'none'), "no terms\n", 'history on a terminal: no terms');
is(on_terminal($DB, 'history', '-e', 'none', '--json'), '', '... of which JSON has no lines');
my ($code, undef, $err) = ask($node, 'yield', '-e', 'none');
is($code, 125, 'yield: no such election');
like($err, qr/election "none" does not exist/, 'says so');

# --- a candidate that is dead, and that no worker removes meanwhile

$sql->query("SELECT leader_election.create_election('dead', lease_duration => '1 s')");
$sql->query("SELECT leader_election.acquire('lives', 'one')");
my $worker = stop_worker($sql);
$sql->query("SELECT leader_election.acquire('dead', '$_')") foreach qw(one two);
wait_for($node, "SELECT bool_or(alive) FROM leader_election.candidates WHERE election = 'dead'", 'f');
like(on_terminal($DB, 'status', '-e', 'dead'), qr/^two .*\e\[1;31mdead\e\[0m$/m, 'status: a dead candidate');

{
	delete local $ENV{TERM};
	like(on_terminal($DB, 'status', '-e', 'dead'), qr/^two .*  dead$/m, '... without colours, on a terminal of which nothing is known');
}
resume_process($worker);

# --- refused, for as long as it is to wait

$code = run_pg_leader($node->connstr('nowhere'), '-e', 'e', '--wait=2s', '--refusal-timeout=1h', '--', 'true');
is($code, 120, 'refused, and the time to wait is over');

# A group that is made while it waits
my $waits = pg_leader($node, '--group', 'later', '--wait=1h', '--', 'sh', '-c', 'echo "leads $PG_LEADER_SEAT"');
wait_until(sub { $waits->output =~ /group "later" does not exist/ }, 'what it waits for');
$sql->query("SELECT leader_election.create_group('later', 1)");
is($waits->exit_code, 0, 'a group that is made later');
like($waits->output, qr/^leads 1$/m, '... it leads a seat of');

# --- a grant that was long on its way is renewed before the command is started

{
	my $proxy_port = PostgreSQL::Test::Cluster::get_free_port();
	my ($proxy) = holding_proxy($node, $proxy_port, qr/acquire/, 'answer');
	my $remains = "SELECT extract(epoch FROM remaining) FROM leader_election.status WHERE election = 'late'";

	$sql->query("SELECT leader_election.create_election('late', lease_duration => '9 s')");
	my $one = pg_leader("host=127.0.0.1 port=$proxy_port dbname=postgres", '-e', 'late', '-n', 'late', '--', 'sleep', '600');
	wait_for($node, "SELECT coalesce(leader_election.leader('late'), '')", 'late');
	wait_until(sub { ($sql->query($remains) // 9) < 5 }, 'nearly half of the lease to be over');
	ok(!$one->guardian, 'the grant is on its way');
	kill('USR1', $proxy);
	wait_until(sub { $one->guardian }, 'its command');
	cmp_ok($sql->query($remains), '>', 5, 'the lease is renewed before it is started');
	$one->signal('TERM');
	is($one->exit_code, 143, 'told to end');
	kill('KILL', $proxy);
}

# The renewal is not answered: the command is not started.
{
	my $proxy_port = PostgreSQL::Test::Cluster::get_free_port();
	my ($proxy) = holding_proxy($node, $proxy_port, qr/acquire/, 'answer');
	my $ran = PostgreSQL::Test::Utils::tempdir() . '/ran';

	$sql->query("SELECT leader_election.create_election('unanswered', lease_duration => '9 s')");
	my $one = pg_leader("host=127.0.0.1 port=$proxy_port dbname=postgres", '-e', 'unanswered', '-n', 'late', '--', 'touch', $ran);
	wait_for($node, "SELECT coalesce(leader_election.leader('unanswered'), '')", 'late');
	my @server = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	push @server, $sql->query("SELECT pid FROM pg_stat_activity WHERE application_name = 'pg_leader' AND query LIKE '%acquire(%' AND pid <> pg_backend_pid()");
	wait_until(sub { ($sql->query("SELECT extract(epoch FROM remaining) FROM leader_election.status WHERE election = 'unanswered'") || 9) < 5.5 }, 'a third of the lease to be over');
	stop_process($_) foreach @server;
	kill('USR1', $proxy);
	is($one->exit_code, 121, 'a grant that was long on its way, and cannot be renewed');
	ok(!-e $ran, '... starts no command');
	resume_process($_) foreach @server;
	kill('KILL', $proxy);
}

# Meanwhile it is asked to yield: the command is not started.
{
	my $proxy_port = PostgreSQL::Test::Cluster::get_free_port();
	my ($proxy) = holding_proxy($node, $proxy_port, qr/acquire/, 'answer');
	my $ran = PostgreSQL::Test::Utils::tempdir() . '/ran';

	$sql->query("SELECT leader_election.create_election('yields', lease_duration => '9 s')");
	my $one = pg_leader("host=127.0.0.1 port=$proxy_port dbname=postgres", '-e', 'yields', '-n', 'late', '--', 'touch', $ran);
	wait_for($node, "SELECT coalesce(leader_election.leader('yields'), '')", 'late');
	$sql->query("SELECT leader_election.request_yield('yields')");
	wait_until(sub { ($sql->query("SELECT extract(epoch FROM remaining) FROM leader_election.status WHERE election = 'yields'") || 9) < 5.5 }, 'a third of the lease to be over');
	kill('USR1', $proxy);
	is($one->exit_code, 121, 'a leader that is asked to yield before its command is started');
	ok(!-e $ran, '... does not start it');
	is($sql->query("SELECT reason FROM leader_election.history WHERE election = 'yields'"), 'yielded', '... and gives the lease back');
	kill('KILL', $proxy);
}

# --- no address but the last one answers, and the time for a round ends before that

{
	my ($first, $last) = map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. 2;
	my ($proxy) = holding_proxy($node, $first, qr/no such words/, 'answer');
	my ($other) = holding_proxy($node, $last, qr/no such words/, 'answer');
	my @silent = map { IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 0, Listen => 5) or die "no port: $@" } 1 .. 2;
	my $ports = join(',', $first, (map { $_->sockport } @silent), $last);

	$sql->query("SELECT leader_election.create_election('rounds', lease_duration => '60 s')");
	my $one = pg_leader("host=127.0.0.1,127.0.0.1,127.0.0.1,127.0.0.1 port=$ports dbname=postgres", '-e', 'rounds', '-n', 'rounds', '--', 'sleep', '600');
	my $backend = "SELECT max(pid) FROM pg_stat_activity WHERE application_name = 'pg_leader' AND query LIKE '%renew%'";
	wait_until(sub { $one->guardian }, 'its command');
	kill('KILL', $proxy);
	wait_until(sub { $sql->query($backend) }, 'a renewal over the last address');
	is($sql->query("SELECT term FROM leader_election.status WHERE election = 'rounds' AND leader = 'rounds'"), 1, 'two hosts are silent: the next one is found, and it leads on');
	$one->signal('TERM');
	is($one->exit_code, 143, 'told to end');
	kill('KILL', $other);
}

# --- what a signal, a command that cannot be executed, and a request to yield mean for what
# would begin again

foreach my $signal ([ 'INT', 130 ], [ 'QUIT', 131 ], [ 'HUP', 129 ])
{
	my $one = pg_leader($node, '-e', 'ends', '--forever', '--', 'sh', '-c', 'ulimit -c 0; echo runs; exec sleep 600');

	wait_until(sub { $one->output =~ /runs/ }, 'its command');
	$one->signal($signal->[0]);
	is($one->exit_code, $signal->[1], "--forever: SIG$signal->[0]");
}
is((run_pg_leader($node, '-e', 'ends', $_, '--', '/no/such'))[0], 127, "$_: a command that is not there") foreach '--forever', '--every=366d';
{
	my $one = pg_leader($node, '-e', 'yields run', '-n', 'app', '--every=366d', '--', 'sleep', '600');

	wait_until(sub { $one->guardian }, 'its command');
	$sql->query("SELECT leader_election.request_yield('yields run')");
	wait_for($node, "SELECT reason FROM leader_election.history WHERE election = 'yields run' AND term = 1", 'yielded');
	is($sql->query("SELECT run_done FROM leader_election.status WHERE election = 'yields run'"), '', 'a leader that yields has not done its run');
	$one->signal('TERM');
	$one->exit_code;
}

# --- a command that is stopped

{
	my $one = pg_leader($node, '-e', 'stopped', '--', 'sleep', '600');
	my $command;

	wait_until(sub { $one->guardian && (($command) = descendants($one->guardian)) && slurp_file("/proc/$command/comm") eq "sleep\n" }, 'its command');
	stop_process($command);
	$one->signal('TERM');
	is($one->exit_code, 143, 'a command that is stopped is told to end');
	ok(!is_running($command), '... and ends');
}

# --- the term of a sidecar is ended

SKIP:
{
	skip no_http(), 2 if no_http();
	my $one = sidecar($node, '-e', 'sidecar', '-n', 'one', '-v', '--http=' . http_port());

	wait_until(sub { $one->output =~ /leading in term 1/ }, 'its lease');
	$sql->query("SELECT leader_election.release('sidecar', 1)");
	wait_until(sub { $one->output =~ /leading in term 2/ }, 'its next one');
	like($one->output, qr/warning: .*leadership of election "sidecar" is lost: the term is over$/m, 'a sidecar: it says that the term is over');
	$one->signal('TERM');
	is($one->exit_code, 143, 'told to end');
}

# --- a leader whose session may not write any more

{
	my $one = pg_leader($node, '-e', 'read only', '--mode=session', '--', 'sleep', '600');

	wait_until(sub { $one->guardian }, 'its command');
	$sql->query($_) foreach 'ALTER SYSTEM SET default_transaction_read_only = on', 'SELECT pg_reload_conf()';
	is($one->exit_code, 121, 'a session that may not write any more');
	like($one->output, qr/leadership of election "read only" is lost: the connection is closed$/m, 'it says so');
	$node->append_conf('postgresql.auto.conf', 'default_transaction_read_only = off');
	$node->reload;
	wait_until(sub { $sql->query('SHOW default_transaction_read_only') eq 'off' }, 'it to be over');
}

# --- a candidate is told of metadata, which are no reason to try

{
	$sql->query("SELECT leader_election.acquire('told', 'leads')");
	my $one = pg_leader($node, '-e', 'told', '-n', 'waits', '--', 'true');

	wait_for($node, "SELECT count(*) FROM leader_election.candidates WHERE election = 'told' AND candidate = 'waits' AND alive", 1);
	$sql->query("SELECT term FROM leader_election.renew('told', 1, metadata => '$_')") foreach 1 .. 3;
	$sql->query("SELECT leader_election.release('told', 1), leader_election.leave('told', 'leads')");
	is($one->exit_code, 0, 'it leads when the leader is gone');
}

# --- watch is told more than it can keep

{
	my $watch = start_client($node, 'watch', '-e', 'told');

	wait_for_output($watch, qr/told: vacant/);
	$watch->[0]->pump_nb;
	my $pid = $watch->[0]{KIDS}[0]{PID};
	stop_process($pid);
	$sql->query(q(SELECT count(pg_notify('leadership_changed', '{"election":"x ' || i || '","event":"yield_requested","term":1,"leader":"x"}')) FROM generate_series(1, 300) i));
	$sql->query("SELECT leader_election.acquire('told', 'again')");
	resume_process($pid);
	wait_for_output($watch, qr/told: "again" leads in term 3/);
	pass('so many hints hide no event');
	$watch->[0]->signal('TERM');
	$watch->[0]->finish;
}

# --- the command has ended, and what it has left has not: a signal, the end of pg_leader

foreach my $signal (qw(HUP KILL))
{
	my $one = pg_leader($node, '-e', "left $signal", '--grace=7s', '--', 'sh', '-c', 'trap "" TERM HUP; sleep 600 & exit 7');
	my $guardian;
	my $left = sub { return $guardian ? join(' ', map { eval { slurp_file("/proc/$_/cmdline") =~ s/\0.*//sr } // () } descendants($guardian)) : ''; };

	wait_until(sub { $guardian = $one->guardian; $left->() eq 'sleep' }, 'the end of the command');
	$one->signal($signal);
	is($one->exit_code, $signal eq 'HUP' ? 7 : 137, "$signal, when the command has ended");
	wait_until(sub { !is_running($guardian) }, 'the end of the guardian');
	is($left->(), '', '... nothing is left');
}

# --- a run that is done, and may not be recorded: for how long that is tried

$sql->query($_) foreach 'CREATE ROLE app LOGIN', 'GRANT USAGE ON SCHEMA leader_election TO app';
foreach my $case ([ 'refused', '300ms' ], [ 'told to end', '1h' ], [ 'told twice', '1h' ])
{
	my ($name, $timeout) = @$case;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/go';

	$sql->query('GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app');
	my $one = pg_leader("$DB user=app", '-e', "done, $name", '-n', 'app', '-v', '--every=366d', "--refusal-timeout=$timeout", '--',
		'sh', '-c', "until [ -e $file ]; do sleep 0.05; done");
	wait_for($node, "SELECT coalesce(leader_election.leader('done, $name'), '')", 'app');
	wait_until(sub { $one->guardian }, 'its command');
	$sql->query('REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA leader_election FROM app, PUBLIC');
	append_to_file($file, '');
	if ($name ne 'refused')
	{
		wait_until(sub { !$one->guardian && $one->output =~ /permission denied/ }, 'a try to record it');
		$one->signal('TERM');
	}
	# A second signal ends the tries at once, the first one after ten seconds.
	my $began = machine_time();
	wait_until(
		sub {
			$one->signal('TERM') if $name eq 'told twice' && !$one->ended;
			return $one->output =~ /run \S+ is done, but could not be recorded: it may be done again/;
		},
		sub { 'what it says: ' . $one->output });
	cmp_ok(machine_time() - $began, '<', 8, 'a second signal') if $name eq 'told twice';
	$one->signal('TERM') if $name eq 'refused';
	is($one->exit_code, $name eq 'refused' ? 143 : 0, "a run that is done, $name");
}
$sql->query('GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO PUBLIC');

# --- connection strings

my ($host, $port) = ($node->host, $node->port);
my $uri = 'postgres://' . $host =~ s{/}{%2F}gr . ":$port/postgres";

is((ask($uri, 'status'))[0], 0, 'postgres://');
is((ask($uri =~ s/postgres:/postgresql:/r, 'status'))[0], 0, 'postgresql://');
is((ask("$DB keepalives_idle=10 keepalives_count=2", 'status'))[0], 0, 'keepalives of the user');
($code, undef, $err) = ask("$DB target_session_attrs=standby", qw(run -e e -- true));
is($code, 123, 'target_session_attrs of the user');
like($err, qr/server is not in hot standby mode/, '... is not changed');
foreach my $case (
	[ 'host=a,b hostaddr=127.0.0.1', qr/could not match 2 host names to 1 hostaddr values/ ],
	[ 'host=a,b hostaddr=,127.0.0.1', qr/could not (?:connect|translate)|connection to server|failed/ ],
	[ 'host=a.test hostaddr=127.0.0.1,127.0.0.1 port=1', qr/could not match 1 host names to 2 hostaddr values/ ],
	[ 'host=a.test,b.test hostaddr=127.0.0.1, port=1', qr/could not translate host name "b\.test"/ ],
	[ 'host=a.test,b.test,c.test hostaddr=127.0.0.1,,127.0.0.1 port=1', qr/could not translate host name "b\.test"/ ],
	[ 'host=@nowhere port=1', qr/connection to server on socket "\@nowhere\/\.s\.PGSQL\.1" failed/ ],
	[ 'host=127.0.0.1,127.0.0.1 port=1,2,3', qr/could not match 3 port numbers to 2 hosts/ ],
	[ 'host=a,b hostaddr=127.0.0.1,127.0.0.1 port=1', qr/connection to server at "127\.0\.0\.1", port 1 failed/ ])
{
	($code, undef, $err) = ask("$case->[0] dbname=postgres", 'status');
	is($code, 123, "lists: $case->[0]");
	like($err, $case->[1], '... what is wrong');
}

{
	delete local $ENV{PGHOST};
	($code, undef, $err) = ask('hostaddr=127.0.0.1 port=1 dbname=postgres', 'status');
	like($err, qr/connection to server at "127\.0\.0\.1", port 1 failed/, 'an address without a name');
}

# libpq has it from 16 on: the first host is any of them.
SKIP:
{
	my ($major) = `pg_config --version` =~ /(\d+)/;
	my %first;

	skip 'no load_balance_hosts before 16', 1 if $major < 16;
	wait_until(
		sub {
			my (undef, undef, $says) = ask('host=/nowhere/a,/nowhere/b dbname=postgres load_balance_hosts=random', 'status');

			$first{$1} = 1 if $says =~ m{/nowhere/([ab])};
			return keys %first == 2;
		},
		'either host to be the first');
	pass('load_balance_hosts=random');
}

# --- the folder of the file with the term

{
	delete local $ENV{TMPDIR};
	my (undef, $output) = run_pg_leader($node, '-e', 'folder', '--', 'sh', '-c', 'echo "$PG_LEADER_TERM_FILE"');

	like($output, qr{^/tmp/pg_leader\.\w+/term$}m, 'without TMPDIR it is in /tmp');
}

# --- a text that the locale has no letters for

{
	$sql->query(q(SELECT leader_election.acquire('latin', U&'caf\00E9')));
	local $ENV{PGCLIENTENCODING} = 'LATIN1';
	like((ask($node, qw(history -e latin --html -)))[1], qr/>caf\\xE9<\/bdi>/, 'a page with a letter that is not known: its byte');
	$sql->query(q(SELECT leader_election.acquire('controls', E'a\x1Bb\x7Fc')));
	like((ask($node, qw(history -e controls)))[1], qr/\ta\\x1Bb\\x7Fc\t/, '... and controls are not written');
	local $ENV{PGCLIENTENCODING} = 'SQL_ASCII';
	like((ask($node, qw(history -e latin)))[1], qr/\tcaf\xC3\xA9\t/, 'SQL_ASCII is taken for UTF-8');

	# Only such a database has names that end within a letter.
	$sql->query("CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0");
	my $ascii = session($node, name => 'ascii', dbname => 'ascii');
	$ascii->query($_) foreach 'CREATE EXTENSION leader_election',
	  "SELECT FROM leader_election.acquire(E'cut \\xE2\\x80', E'\\xF0\\x9F|\\xF0')";
	my $status = (ask($node->connstr('ascii'), 'status'))[1];
	like($status, qr/^cut \\xE2\\x80 +led +\\xF0\\x9F\|\\xF0 /m, 'a letter that is cut off is shown by its bytes') or diag($status);
	$ascii->query(q(SELECT FROM leader_election.acquire('quoted', E'\\xE2"x')));
	my $watch = start_client($node->connstr('ascii'), qw(watch --json -e quoted));
	wait_for_output($watch, qr/"event" : "state".*\n/);
	like(${ $watch->[1] }, qr/"leader" : "\\ufffd\\"x",/, '... and takes no quote for its second byte');
	$watch->[0]->signal('TERM');
	$watch->[0]->finish;
	$ascii->finish;
}

done_testing();
