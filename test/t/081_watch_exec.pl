# pg_leader watch --exec: one hook at a time, never that of an older event after
# that of a newer one, the newest one again and again until it succeeds; whatever
# happens to hooks, to watch and to its connection.
#
# The hook logs what it was told when it begins and when it ends. Meanwhile it
# has a lock (OVERLAP: two hooks at a time). It waits while there is a file
# "slow", and fails while there is a file "fail".

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaderElection;
use PgLeader;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = new_server(config => 'client_min_messages = warning');
my $one = session($node, name => 'one');
my $two = session($node, name => 'two');
my $top = PostgreSQL::Test::Utils::tempdir();
my $HOOK = <<'END';
cd %s
exec 9> lock
flock -n 9 || echo OVERLAP >> log
echo $$ > pid.new
mv pid.new pid
env > env
[ ! -e family ] || { sleep 1000 9>&- & echo $! > child; }
echo "begin $PG_LEADER_ELECTION $PG_LEADER_EVENT ${PG_LEADER_TERM:--} ${PG_LEADER_LEADER:--}" >> log
while [ -e slow ]; do sleep 0.01 9>&-; done
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

# Ends a watch with a signal: its exit code.
sub end
{
	my ($watch, $signal) = @_;

	kill($signal // 'TERM', pid_of($watch));
	eval { $watch->[0]->finish };
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
my $watch = watch($folder, '-e', $name);
wait_for_log($folder, qr/^end .* state 1 0$/ms);
my %env = map { /^(PG_LEADER_\w+)=(.*)$/s ? ($1, $2) : () }
  map { s/\n\z//r } split(/^(?=\w+=)/m, slurp_file("$folder/env"));
is($env{PG_LEADER_ELECTION}, $name, 'the election, as it is');
is($env{PG_LEADER_EVENT}, 'state', 'the event');
is($env{PG_LEADER_LEADER}, 'one', 'the leader');
is($env{PG_LEADER_TERM}, 1, 'the term');
is($env{PG_LEADER_METADATA}, "{\"url\": \"http://one/\xc3\xa9\"}", 'the metadata of the leader');
ok(!-e '/tmp/no', 'nothing of that is evaluated');
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
wait_for($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'pg_leader' AND state = 'idle' AND query LIKE 'WITH h%'");
is(scalar @{ begun($folder) }, $lines + 1, 'and nothing if nothing has');

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
$start = time;
wait_for_log($folder, qr/^end e elected 8 7$/m);
cmp_ok(time - $start, '<', 3.9, 'a newer event does not wait for the back-off');
unlink("$folder/fail");
wait_for_log($folder, qr/^end e elected 8 0$/m);
like(log_of($folder), qr/elected 8 7\n(?!.* 7 7\n).*elected 8 0\n\z/s, 'what it replaces is not run any more');
wait_for_output($watch, qr/has failed, and is tried again in 1 s: child process exited with exit code 7/);
pass('and watch says so');

# Killed, and stopped
touch($folder, 'slow');
touch($folder, 'family');
$two->query("SELECT leader_election.leave('e')");
wait_for_log($folder, qr/^begin e vacated 8/m);
unlink("$folder/family");
my $pid = slurp_file("$folder/pid") + 0;
my $child = slurp_file("$folder/child") + 0;
ok(is_running($child), 'one has a child');
kill('KILL', $pid);
wait_for_log($folder, qr/(^begin e vacated 8.*){2}/ms);
pass('one that is killed has failed');
wait_until(sub { !is_running($child) }, 'the end of its child');
pass('and leaves nothing');
$pid = slurp_file("$folder/pid") + 0;
stop_process($pid);
unlink("$folder/slow");
$two->query("SELECT leader_election.join('e', 'two')");
$two->query("SELECT leader_election.leave('e')");
wait_for_output($watch, qr/vacant, "two" led before: left(?:.*\n)*.*"two" leads in term 9\n.*vacant, "two" led/);
like(log_of($folder), qr/begin e vacated 8 -\n\z/, 'one that is stopped holds up the next');
resume_process($pid);
wait_for_log($folder, qr/^end e vacated 9 0$/m);
like(log_of($folder), qr/^end e vacated 8 0\nbegin e vacated 9 -\nend e vacated 9 0\n\z/m, 'which follows when it has ended');

# watch is stopped, while everything changes
stop_process(pid_of($watch));
foreach (10 .. 14)
{
	$two->query("SELECT leader_election.join('e', 'two')");
	$two->query("SELECT leader_election.leave('e')");
}
$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pg_leader'");
$one->query("SELECT leader_election.join('e', 'one')");
resume_process(pid_of($watch));
wait_for_log($folder, qr/^end e elected 15 0$/m);
like(log_of($folder), qr/vacated 9 0\nbegin e elected 15 one\nend e elected 15 0\n\z/, 'watch was stopped: the newest event only');

# The server is down, with a hook that fails
touch($folder, 'fail');
$one->query("SELECT leader_election.leave('e')");
wait_for_log($folder, qr/^end e vacated 15 7$/m);
$node->stop('immediate');
unlink("$folder/fail");
wait_for_log($folder, qr/^end e vacated 15 0$/m);
pass('without a server, hooks are tried again');
$node->start;
$one = session($node, name => 'one');
$two = session($node, name => 'two');
wait_for($node, "SELECT leader_election.leader('e') IS NULL");
$one->query("SELECT leader_election.join('e', 'one')");
wait_for_log($folder, qr/^end e elected 16 0$/m);
is(scalar(() = log_of($folder) =~ /begin e vacated 15/g), 2, 'and afterwards only for what is new');

# --- the end of watch

touch($folder, 'slow');
$one->query("SELECT leader_election.leave('e')");
wait_for_log($folder, qr/^begin e vacated 16/m);
$one->query("SELECT leader_election.join('e', 'one')");
wait_for_output($watch, qr/"one" leads in term 17/);
signal_watch($watch, 'TERM');
ok(is_running(pid_of($watch)), 'SIGTERM: watch waits for its hook');
$one->query("SELECT leader_election.leave('e')");
unlink("$folder/slow");
eval { $watch->[0]->finish };
is(($watch->[0]->full_results)[0] >> 8, 143, 'and ends');
like(log_of($folder), qr/^begin e vacated 16 -\nend e vacated 16 0\n\z/m, 'after the hook that ran, and runs no other');

touch($folder, 'slow');
$watch = watch($folder, '-e', 'e');
wait_for_log($folder, qr/^begin e state - -\n\z/m);
wait_until(sub { slurp_file("$folder/pid") != $pid }, 'its process');
$pid = slurp_file("$folder/pid") + 0;
signal_watch($watch, 'INT');
ok(is_running($pid), 'SIGINT: its hook runs on');
signal_watch($watch, 'TERM');
eval { $watch->[0]->finish };
is(($watch->[0]->full_results)[0] >> 8, 130, 'SIGINT, then SIGTERM: watch ends');
ok(!is_running($pid), 'after its hook, which was sent the second signal');

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
