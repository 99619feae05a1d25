# pg_leader watch --exec: one hook at a time, never that of an older event after
# that of a newer one, the newest one again and again until it succeeds; whatever
# happens to hooks, to watch and to its connection.
#
# The hook logs what it was told when it begins and when it ends. Meanwhile it
# has a lock (OVERLAP: two live hooks at a time), which nothing that it starts keeps:
# that may outlive a hook that is killed. It waits while there is a file
# "slow", and fails while there is a file "fail".

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use IPC::Run;
use LeaderElection;
use MachineTime;
use PgLeader;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

# A shell that starts the tests in the background has SIGINT ignored, and what is
# ignored stays so in watch.
$SIG{INT} = 'DEFAULT';

my $node = new_server(config => 'client_min_messages = warning');
my $one = session($node, name => 'one');
my $two = session($node, name => 'two');
my $top = PostgreSQL::Test::Utils::tempdir();
my $HOOK = <<'END';
cd %s
exec 9> lock
flock -n 9 || ! kill -0 "$(cat pid)" || echo OVERLAP >> log
echo $$ > pid.new
mv pid.new pid 9>&-
env > env 9>&-
[ ! -e family ] || { sleep 1000 9>&- >/dev/null 2>&1 & echo $! > child; }
echo "begin $PG_LEADER_ELECTION $PG_LEADER_EVENT ${PG_LEADER_TERM:--} ${PG_LEADER_LEADER:--}" >> log
while [ -e slow ]; do sleep 0.05 9>&-; done
code=0
[ ! -e fail ] || code=7
echo "end $PG_LEADER_ELECTION $PG_LEADER_EVENT ${PG_LEADER_TERM:--} $code" >> log
exit $code
END

# Watches of elections: their folder, and their process
my $n = 0;

sub watch
{
	my ($folder, @args) = @_;

	mkdir($folder);
	return start_client($node, 'watch', @args, '--exec', sprintf($HOOK, $folder));
}

sub new_folder { return "$top/" . ++$n; }

sub pid_of { return $_[0][0]{KIDS}[0]{PID}; }

sub log_of { return -e "$_[0]/log" ? slurp_file("$_[0]/log") : ''; }

# What has begun in a folder
sub begun { return [ log_of($_[0]) =~ /^begin (.*)$/mg ]; }

sub wait_for_log
{
	my ($folder, $regexp) = @_;

	return wait_until(sub { log_of($folder) =~ $regexp }, sub { "$regexp in: " . log_of($folder) });
}

sub touch { return append_to_file("$_[0]/$_[1]", ''); }

# Waits for the end of a watch.
sub finish
{
	my ($watch) = @_;

	wait_until(sub { !is_running(pid_of($watch)) }, 'the end of watch');
	eval { $watch->[0]->finish };
	return;
}

# Ends a watch with a signal: its exit code.
sub end
{
	my ($watch, $signal) = @_;

	kill($signal // 'TERM', pid_of($watch));
	finish($watch);
	my ($status) = $watch->[0]->full_results;
	return $status & 127 ? 128 + ($status & 127) : $status >> 8;
}

sub no_overlap
{
	my ($folder, $what) = @_;

	unlike(log_of($folder), qr/OVERLAP/, "$what: one at a time");
	return;
}

# --- the present state, and changes

my $name = "e 'x' \$(touch /tmp/no) \x01\x1b[31m\n\"";
my $quoted = $name =~ s/'/''/gr;
my $folder = new_folder();
$one->query("SELECT leader_election.join('$quoted', 'one', metadata => '{\"url\": \"http://one/\\u00e9\"}')");
my @OUTER = map { "PG_LEADER_$_" } qw(CANDIDATE ELECTION EVENT LEADER METADATA RUN SEAT TERM TERM_FILE);
my $watch = do
{
	# It may be what another pg_leader has started.
	local @ENV{@OUTER} = ('outer') x @OUTER;
	watch($folder, '-e', $name);
};
wait_for_log($folder, qr/^end .* state 1 0$/ms);
my %env = map { /^(PG_LEADER_\w+)=(.*)$/s ? ($1, $2) : () }
  map { s/\n\z//r } split(/^(?=\w+=)/m, slurp_file("$folder/env"));
is($env{PG_LEADER_ELECTION}, $name, 'the election, as it is');
is($env{PG_LEADER_EVENT}, 'state', 'the event');
is($env{PG_LEADER_LEADER}, 'one', 'the leader');
is($env{PG_LEADER_TERM}, 1, 'the term');
is($env{PG_LEADER_METADATA}, "{\"url\": \"http://one/\xc3\xa9\"}", 'the metadata of the leader');
ok(!-e '/tmp/no', 'nothing of that is evaluated');
is(join(' ', sort keys %env), join(' ', map { "PG_LEADER_$_" } qw(ELECTION EVENT LEADER METADATA TERM)),
	'and nothing of what an outer pg_leader has told');
wait_for_output($watch, qr/"one" leads in term 1/);
pass('events are printed as well');
$one->query("SELECT leader_election.resign('$quoted')");
wait_for_log($folder, qr/^end .* vacated 1 0$/ms);
%env = map { /^(PG_LEADER_\w+)=(.*)$/s ? ($1, $2) : () } map { s/\n\z//r } split(/^(?=\w+=)/m, slurp_file("$folder/env"));
is("$env{PG_LEADER_LEADER}|$env{PG_LEADER_METADATA}", '|', 'nobody leads: empty');
is(end($watch), 143, 'SIGTERM');

$folder = new_folder();
$one->query("SELECT leader_election.join('e', 'one')");
$watch = watch($folder, '-e', 'e');
wait_for_log($folder, qr/^end e state 1 0$/m);
$two->query("SELECT leader_election.join('e', 'two')");
$one->query("SELECT leader_election.resign('e')");
wait_for_log($folder, qr/^end e elected 2 0$/m);
$one->query("SELECT leader_election.leave('e')");
$node->safe_psql('postgres', "SELECT leader_election.request_yield('e')");
wait_for_log($folder, qr/^end e yield_requested 2 0$/m);
$two->query("SELECT leader_election.resign('e')");
$two->query("SELECT leader_election.leave('e')");
wait_for_log($folder, qr/^end e vacated 2 0$/m);
is_deeply(begun($folder), [ 'e state 1 one', 'e elected 2 two', 'e yield_requested 2 two', 'e vacated 2 -' ],
	'each event once');

# Another session of watch is told nothing twice.
my $lines = @{ begun($folder) };
$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pg_leader'");
$one->query("SELECT leader_election.join('e', 'one')");
wait_for_log($folder, qr/^end e elected 3 0$/m);
is(scalar @{ begun($folder) }, $lines + 1, 'a lost connection: only what has changed is run');
$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pg_leader'");
wait_for($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'pg_leader' AND state = 'idle' AND query LIKE '%metadata_changed%'");
is(scalar @{ begun($folder) }, $lines + 1, 'and nothing if nothing has');

# --- what the leader changes: the hook is run again, each time, with what is so now

{
	my $f = new_folder();
	my $metadata = sub { return slurp_file("$f/env") =~ /^PG_LEADER_METADATA=(.*)$/m ? $1 : undef };
	my $w;

	$two->query("SELECT leader_election.join('m', 'two', metadata => '1')");
	$w = watch($f, '-e', 'm');
	wait_for_log($f, qr/^end m state 1 0$/m);
	is($metadata->(), '1', 'the metadata at first');
	foreach my $n (2, 3)
	{
		$two->query("SELECT term FROM leader_election.renew('m', metadata => '$n')");
		wait_until(sub { $metadata->() eq $n && @{ begun($f) } == $n }, "metadata $n");
	}
	$node->safe_psql('postgres', "SELECT leader_election.request_yield('m')");
	wait_for_log($f, qr/^end m yield_requested 1 0$/m);
	touch($f, 'fail');
	$two->query("SELECT term FROM leader_election.renew('m', metadata => '4')");
	wait_for_log($f, qr/^end m metadata_changed 1 7$/m);
	unlink("$f/fail");
	wait_until(sub { log_of($f) =~ /\nend m metadata_changed 1 0\n\z/ }, 'another try');
	is($metadata->(), '4', 'the metadata at last, also of a leader that is asked to yield');
	is_deeply([ (@{ begun($f) })[ 0 .. 3 ] ],
		[ 'm state 1 two', ('m metadata_changed 1 two') x 2, 'm yield_requested 1 two' ], 'each change once');
	$two->query("SELECT leader_election.leave('m')");
	wait_for_log($f, qr/^end m vacated 1 0$/m);
	is(end($w), 143, 'SIGTERM');
}

# Nothing is left of what earlier hooks were told.
{
	my ($w, $n, $before) = (undef, 0, 0);
	my $rss = sub { return (slurp_file('/proc/' . pid_of($w) . '/status') =~ /^VmRSS:\s+(\d+)/m)[0]; };

	$two->query("SELECT leader_election.join('large', 'two')");
	$w = start_client($node, 'watch', '-e', 'large', '--exec', "echo \${#PG_LEADER_METADATA} >>$top/large");
	foreach my $times (20, 120)
	{
		$before = $rss->() if $n > 0;
		while ($n < $times)
		{
			my $length = 7000 + ++$n;

			$two->query("SELECT term FROM leader_election.renew('large', metadata => to_jsonb(rpad('', $length, '$n ')))");
			wait_until(sub { $w->[0]->pump_nb; -e "$top/large" && slurp_file("$top/large") =~ /^${\($length + 2)}$/m }, "hook $n");
		}
	}
	SKIP:
	{
		skip 'a sanitizer keeps what is freed', 1 if ($ENV{ASAN_OPTIONS} // '') =~ /log_path/;
		cmp_ok($rss->() - $before, '<', 350, 'a hundred hooks with large metadata: kB that it has grown by');
	}
	$two->query("SELECT leader_election.leave('large')");
	is(end($w), 143, 'SIGTERM');
}

# --- slow hooks coalesce

touch($folder, 'slow');
$one->query("SELECT leader_election.resign('e'); SELECT leader_election.leave('e')");
wait_for_log($folder, qr/^begin e vacated 3/m);
foreach (1 .. 3)
{
	$one->query("SELECT leader_election.join('e', 'one')");
	$one->query("SELECT leader_election.leave('e')");
}
$two->query("SELECT leader_election.join('e', 'two')");
wait_for_output($watch, qr/"two" leads in term 7/);
unlink("$folder/slow");
wait_for_log($folder, qr/^end e elected 7 0$/m);
is_deeply([ (@{ begun($folder) })[ -2, -1 ] ], [ 'e vacated 3 -', 'e elected 7 two' ], 'a slow hook: the newest event is next, and those between are left out');

# --- a hook that fails

touch($folder, 'fail');
my $start = time;
$two->query("SELECT leader_election.leave('e')");
wait_for_log($folder, qr/(^end e vacated 7 7\n.*){3}/ms);
cmp_ok(time - $start, '>', 2.9, 'one that fails is tried again, after 1 s, then 2 s');
$two->query("SELECT leader_election.join('e', 'two')");
$start = machine_time();
wait_for_log($folder, qr/^end e elected 8 7$/m);
cmp_ok(machine_time() - $start, '<', 3.9, 'a newer event does not wait for the back-off');
unlink("$folder/fail");
wait_for_log($folder, qr/^end e elected 8 0$/m);
like(log_of($folder), qr/elected 8 7\n(?!.* 7 7\n).*elected 8 0\n\z/s, 'what it replaces is not run any more');
wait_for_output($watch, qr/has failed, and is tried again in 1 s: child process exited with exit code 7/);
pass('and watch says so');

# A newer event comes while one runs that will fail.
touch($folder, $_) foreach qw(slow fail);
$two->query("SELECT leader_election.leave('e')");
wait_for_log($folder, qr/^begin e vacated 8/m);
my $logged = -s $node->logfile;
$two->query("SELECT leader_election.join('e', 'two')");
wait_for_output($watch, qr/"two" leads in term 9/);
wait_until(sub { slurp_file($node->logfile, $logged) =~ /pg_leader LOG: .*metadata/ }, 'watch to ask for the metadata');
wait_for($node, "SELECT state = 'idle' FROM pg_stat_activity WHERE application_name = 'pg_leader'");
$start = machine_time();
unlink("$folder/slow");
wait_for_log($folder, qr/^end e elected 9/m);
cmp_ok(machine_time() - $start, '<', 0.9, 'a newer event does not wait because an older one has failed meanwhile');
unlink("$folder/fail");
wait_for_log($folder, qr/^end e elected 9 0$/m);

# Killed, and stopped
touch($folder, 'slow');
touch($folder, 'family');
$two->query("SELECT leader_election.leave('e')");
wait_for_log($folder, qr/^begin e vacated 9/m);
unlink("$folder/family");
my $pid = slurp_file("$folder/pid") + 0;
my $child = slurp_file("$folder/child") + 0;
ok(is_running($child), 'one has a child');
kill('KILL', $pid);
wait_for_log($folder, qr/(^begin e vacated 9.*){2}/ms);
pass('one that is killed has failed');
wait_until(sub { !is_running($child) }, 'the end of its child');
pass('and leaves nothing');
$pid = slurp_file("$folder/pid") + 0;
stop_process($pid);
unlink("$folder/slow");
$two->query("SELECT leader_election.join('e', 'two')");
$two->query("SELECT leader_election.leave('e')");
wait_for_output($watch, qr/vacant, "two" led before: left(?:.*\n)*.*"two" leads in term 10\n.*vacant, "two" led/);
like(log_of($folder), qr/begin e vacated 9 -\n\z/, 'one that is stopped holds up the next');
resume_process($pid);
wait_for_log($folder, qr/^end e vacated 10 0$/m);
like(log_of($folder), qr/^end e vacated 9 0\nbegin e vacated 10 -\nend e vacated 10 0\n\z/m, 'which follows when it has ended');

# watch is stopped, while everything changes
stop_process(pid_of($watch));
foreach (11 .. 15)
{
	$two->query("SELECT leader_election.join('e', 'two')");
	$two->query("SELECT leader_election.leave('e')");
}
$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pg_leader'");
$one->query("SELECT leader_election.join('e', 'one')");
resume_process(pid_of($watch));
wait_for_log($folder, qr/^end e elected 16 0$/m);
like(log_of($folder), qr/vacated 10 0\nbegin e elected 16 one\nend e elected 16 0\n\z/, 'watch was stopped: the newest event only');

# The server is down, with a hook that fails
touch($folder, 'fail');
$one->query("SELECT leader_election.leave('e')");
my $warned = start_client($node, 'watch', '-e', 'e');
wait_for_output($warned, qr/vacant/);
wait_for_log($folder, qr/^end e vacated 16 7$/m);
$node->stop('immediate');
unlink("$folder/fail");
wait_for_log($folder, qr/^end e vacated 16 0$/m);
my $hooks = () = log_of($folder) =~ /begin e vacated 16/g;
cmp_ok($hooks, '>', 1, 'without a server, hooks are tried again');
$node->start;
$one = session($node, name => 'one');
$two = session($node, name => 'two');
wait_for($node, "SELECT leader_election.leader('e') IS NULL");
$one->query("SELECT leader_election.join('e', 'one')");
wait_for_log($folder, qr/^end e elected 17 0$/m);
is(scalar(() = log_of($folder) =~ /begin e vacated 16/g), $hooks, 'and afterwards only for what is new');
wait_for_output($warned, qr/the server answers again/);
like(${ $warned->[2] }, qr/^pg_leader: warning: (?:connection to server|server closed) .*\n(?:(?!.*answers again).*\n)*.*warning: the server answers again\n\z/,
	'watch says that there was no connection, and that there is one again');
is(end($warned), 143, 'SIGTERM');

# --- the end of watch

touch($folder, 'slow');
$one->query("SELECT leader_election.leave('e')");
wait_for_log($folder, qr/^begin e vacated 17/m);
$one->query("SELECT leader_election.join('e', 'one')");
wait_for_output($watch, qr/"one" leads in term 18/);
signal_watch($watch, 'TERM');
ok(is_running(pid_of($watch)), 'SIGTERM: watch waits for its hook');
$one->query("SELECT leader_election.leave('e')");
unlink("$folder/slow");
finish($watch);
is(($watch->[0]->full_results)[0] >> 8, 143, 'and ends');
like(log_of($folder), qr/^begin e vacated 17 -\nend e vacated 17 0\n\z/m, 'after the hook that ran, and runs no other');

touch($folder, 'slow');
$watch = watch($folder, '-e', 'e');
wait_for_log($folder, qr/^begin e state - -\n\z/m);
wait_until(sub { slurp_file("$folder/pid") != $pid }, 'its process');
$pid = slurp_file("$folder/pid") + 0;
signal_watch($watch, 'INT');
ok(is_running($pid), 'SIGINT: its hook runs on');
signal_watch($watch, 'TERM');
finish($watch);
is(($watch->[0]->full_results)[0] >> 8, 130, 'SIGINT, then SIGTERM: watch ends');
ok(!is_running($pid), 'after its hook, which was sent the second signal');

# Both come while watch does not run: it reads them at once.
$watch = watch($folder, '-e', 'e');
wait_until(sub { slurp_file("$folder/pid") != $pid }, 'its process');
$pid = slurp_file("$folder/pid") + 0;
stop_process(pid_of($watch));
kill($_, pid_of($watch)) foreach qw(INT TERM);
resume_process(pid_of($watch));
finish($watch);
is(($watch->[0]->full_results)[0] >> 8, 130, 'SIGINT and SIGTERM at once: watch ends');
ok(!is_running($pid), 'and its hook was sent the second one');

# Nobody reads what it prints any more.
my $earlier = @{ begun($folder) };
unlink("$folder/pid");
my $shell = IPC::Run::start([ 'sh', '-c', 'pg_leader watch -d "$1" -e e --exec "$2" | { head -n 1; exec <&-; : > "$3"; }',
		'sh', $node->connstr('postgres'), sprintf($HOOK, $folder), "$folder/closed" ],
	'<' => \undef, '>' => \my $printed, '2>' => \my $errors);
# A hook writes its process into the file before it writes into the log.
wait_until(sub { @{ begun($folder) } > $earlier }, 'the hook');
$pid = slurp_file("$folder/pid") + 0;
wait_until(sub { $shell->pump_nb; -e "$folder/closed" }, 'the end of what reads');
$one->query("SELECT leader_election.join('e', 'one')");
ok(is_running($pid), 'nobody reads: the hook runs on');
my $before = scalar(() = log_of($folder) =~ /^end /mg);
my $begun = @{ begun($folder) };
unlink("$folder/slow");
$shell->finish;
my $ends = () = log_of($folder) =~ /^end /mg;
cmp_ok($ends, '>', $before, 'it has ended');
is($ends - $before, @{ begun($folder) } - $begun + 1, 'and so has each that began after it, before watch');
$one->query("SELECT leader_election.leave('e')");

unlink("$folder/slow", "$folder/pid");
touch($folder, 'slow');
$watch = watch($folder, '-e', 'e');
wait_until(sub { -e "$folder/pid" }, 'the hook');
$pid = slurp_file("$folder/pid") + 0;
is(end($watch, 'KILL'), 137, 'watch is killed');
wait_until(sub { !is_running($pid) }, 'the end of the hook');
pass('its hook ends with it');
unlink("$folder/slow");
no_overlap($folder, 'all of that');

# What a hook leaves that fails when watch was told to end
{
	my $own = new_folder();

	mkdir($own);
	touch($own, $_) foreach qw(slow family fail);
	my $last = watch($own, '-e', 'e');
	wait_for_log($own, qr/^begin e /m);
	my $left = slurp_file("$own/child") + 0;
	signal_watch($last, 'TERM');
	unlink("$own/slow");
	finish($last);
	like(log_of($own), qr/^end e .* 7\n\z/m, 'the last hook fails');
	eval { wait_until(sub { !is_running($left) }, 'the end of its child', 20) };
	ok(!is_running($left), 'and leaves nothing');
	kill('KILL', $left);
}

# --- events that are read in another order than they happened

my $port = PostgreSQL::Test::Cluster::get_free_port();
my ($proxy, $held) = holding_proxy($node, $port, qr/'yield_requested'.*json_to_recordset/s, 'question');
$folder = new_folder();
$one->query("SELECT leader_election.join('o', 'one')");
$two->query("SELECT leader_election.join('o', 'two')");
mkdir($folder);
$watch = start_client("host=127.0.0.1 port=$port dbname=postgres", 'watch', '-e', 'o', '--exec', sprintf($HOOK, $folder));
wait_for_log($folder, qr/^end o state 1 0$/m);
$node->safe_psql('postgres', "SELECT leader_election.request_yield('o')");
# It asks who is to yield; before the server answers, the next leader is.
wait_until(sub { -e $held }, 'its question');
$one->query("SELECT leader_election.resign('o')");
$node->safe_psql('postgres', "SELECT leader_election.request_yield('o')");
kill('USR1', $proxy);
wait_for_output($watch, qr/"two" is asked to yield(?:.*\n)*.*"two" leads in term 2/);
wait_for_log($folder, qr/^end o yield_requested 2 0$/m);
$two->query("SELECT leader_election.leave('o')");
$one->query("SELECT leader_election.leave('o')");
wait_for_log($folder, qr/^end o vacated \d+ 0$/m);
is_deeply([ grep { / 2 / } @{ begun($folder) } ], [ 'o yield_requested 2 two', (grep { /vacated 2/ } @{ begun($folder) }) ],
	'an older event that is read later is not run');
is(end($watch), 143, 'and ends');

# --- a server that does not read what it is sent, which is more than the kernel keeps

$node->safe_psql('postgres', 'CREATE DATABASE many');
$node->safe_psql('many', q{CREATE EXTENSION leader_election;
	INSERT INTO leader_election.election (election, strategy, lease_duration, quorum, takeover_delay, owner)
		SELECT i || repeat(E'\\x01', 190), 'race', '1 h', 1, '0', current_user FROM generate_series(1, 5000) i;
	INSERT INTO leader_election.lease (election, term, yielding, yield_ordered, yields)
		SELECT election, 0, false, false, 0 FROM leader_election.election});
$port = PostgreSQL::Test::Cluster::get_free_port();
($proxy, $held) = holding_proxy($node, $port, qr/known_end/, 'all');
$watch = start_client("host=127.0.0.1 port=$port dbname=many", 'watch', '--exec', 'true');
wait_until(sub { $watch->[0]->pump_nb; -e $held }, 'the elections to be sent');
kill('TERM', pid_of($watch));
eval { wait_until(sub { $watch->[0]->pump_nb; !is_running(pid_of($watch)) }, 'the end of watch', 5) };
is(end($watch, 'KILL'), 143, 'told to end while it sends');
kill('KILL', $proxy);

# --- all elections, everything at random

$folder = new_folder();
$watch = watch($folder);
my @elections = map { "r$_" } 1 .. 4;
my %last;
foreach my $round (1 .. 120)
{
	my $e = $elections[ rand @elections ];
	my $who = rand() < 0.5 ? $one : $two;
	my $action = rand();

	if ($action < 0.4) { $who->query("SELECT leader_election.join('$e', '" . ($who == $one ? 'one' : 'two') . "')"); }
	elsif ($action < 0.7) { $who->query("SELECT leader_election.leave('$e')"); }
	elsif ($action < 0.75) { $node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pg_leader'"); }
	elsif ($action < 0.85) { -e "$folder/slow" ? unlink("$folder/slow") : touch($folder, 'slow'); }
	elsif ($action < 0.9) { -e "$folder/fail" ? unlink("$folder/fail") : touch($folder, 'fail'); }
	elsif (-e "$folder/pid") { kill('KILL', slurp_file("$folder/pid") + 0); }
}
unlink("$folder/slow", "$folder/fail");
foreach my $e (@elections)
{
	my ($term, $leader) = split(/\|/, $one->query("SELECT coalesce(max(term), 0), leader_election.leader('$e') FROM leader_election.history WHERE election = '$e'"));

	next unless $term;
	$leader = '-' if !defined $leader || $leader eq '';
	wait_until(sub {
			my ($begun) = grep { /^$e / } reverse @{ begun($folder) };
			return ($begun // '') =~ /^$e (state|elected|vacated|yield_requested) (\d+|-) \Q$leader\E$/
			  && ($2 eq $term || $leader eq '-') && log_of($folder) =~ /^end $e \w+ \Q$2\E 0\n(?!.*^begin $e )/ms;
		}, sub { "term $term of $e, led by $leader, in: " . log_of($folder) });
	my @terms = map { /^$e (\w+) (\d+)/ ? $2 * 3 + { state => 0, elected => 0, yield_requested => 1, vacated => 2 }->{$1} : () } @{ begun($folder) };
	is_deeply(\@terms, [ sort { $a <=> $b } @terms ], "$e: never an older event after a newer one, and the newest one last");
}
no_overlap($folder, 'at random');
is(end($watch), 143, 'and ends');

done_testing();

# Sends a signal to a watch that has a hook, and waits until it has read that.
sub signal_watch
{
	my ($client, $signal) = @_;
	my $status = '/proc/' . pid_of($client) . '/status';

	kill($signal, pid_of($client));
	wait_until(sub { (eval { slurp_file($status) } // '') !~ /^State:\s+[^Z].*^ShdPnd:\s+0*[1-9a-f]/ms }, "SIG$signal to be read");
	return;
}
