# Updates of the extension while elections go on.
#
# A later version, which the test makes, is installed and then ALTER EXTENSION
# UPDATE is run, while a session and a detached candidate lead, others campaign,
# and fenced transactions are under way; all of them, and the worker, have the
# library of before, and stay connected.  If the protocol is the same, nothing
# stops.  If it is another one, nobody acts by the old one from the moment on at
# which the update is committed: not even a fenced transaction that was about to commit.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use LeaderElection;
use MachineTime;
use NextVersion;
use PgLeader;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use Worker;

my $LEASE = 4 * slowness();
my $MISMATCH = '55000';
my $UPDATE = 'ALTER EXTENSION leader_election UPDATE';

my $install = make_installation('main');
my $node = new_server(
	install => $install->{path},
	config => compile_library('stop_at_commit') . qq(
leader_election.lease_duration = '$LEASE s'
client_min_messages = warning
));
my $control = session($node, name => 'control');

# Its leader renews in the test, which also compiles.
$control->query("SELECT leader_election.create_election('lent', lease_duration => '1 h')");
$control->query(q{CREATE TABLE jobs (what text);
	CREATE TABLE guarded ();
	CREATE TRIGGER only_leader BEFORE INSERT ON guarded FOR EACH STATEMENT
		EXECUTE FUNCTION leader_election.only_leader('held');
	CREATE FUNCTION stop_at_commit() RETURNS void LANGUAGE c AS 'stop_at_commit'});

# An error of two protocols, with its hint
sub refused_ok
{
	my ($session, $sql, $hint, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$session->query($sql) if defined $sql;
	is($session->sqlstate, $MISMATCH, $name);
	like($session->errors, $hint, "$name: hint");
	return;
}

sub written
{
	my ($what) = @_;

	return $control->query("SELECT count(*) FROM jobs WHERE what = '$what'");
}

# Sessions that lead, campaign and write, all with the library that is
# installed now.
sub begin_scene
{
	my ($name) = @_;
	my %s = map { $_ => session($node, name => "$name $_") }
	  qw(holder detached campaign fenced_session fenced_term watcher);

	$s{held} = $s{holder}->query("CALL leader_election.campaign('held', '$name holder')");
	$s{lent} = $s{detached}->acquire('lent', "$name detached");
	$s{campaign}->query_async("CALL leader_election.campaign('held', '$name campaign')");
	$s{own} = $s{fenced_session}->query("SELECT leader_election.join('own', '$name own')");
	$s{fenced_session}->query("BEGIN; SELECT leader_election.assert_leader('own');
		INSERT INTO jobs VALUES ('$name session')");
	$s{fenced_term}->query("BEGIN; SELECT leader_election.assert_leader('lent', $s{lent});
		INSERT INTO jobs VALUES ('$name term')");
	is($s{fenced_term}->sqlstate, '00000', "$name: a fenced transaction is under way");
	$s{watcher}->query_async("CALL leader_election.wait_for_change('own', $s{own}, '$name own')");
	wait_for($node, "SELECT string_agg(candidate, ',' ORDER BY position)
		FROM leader_election.candidates WHERE election = 'held' AND alive",
		"$name holder,$name campaign");
	wait_for($node, $ONE_WORKER);
	$s{worker} = $control->query($WORKER_PID);
	return \%s;
}

sub end_scene
{
	my ($s) = @_;

	$control->query("SELECT leader_election.release('lent', $s->{lent})")
	  if $control->sqlstate_of("SELECT leader_election.leader('lent')") eq '00000';
	$_->kill foreach grep { ref } values %$s;
	return;
}

# All is as it was.
sub goes_on_ok
{
	my ($s, $name) = @_;

	is($s->{holder}->query("SELECT leader_election.is_leader('held')"), 't', "$name: the session leads");
	is($s->{holder}->query("SELECT leader_election.term('held')"), $s->{held}, "$name: in its term");
	is($s->{detached}->query("SELECT term FROM leader_election.renew('lent', $s->{lent})"),
		$s->{lent}, "$name: a detached leader renews");
	is($s->{campaign}->finished, '', "$name: a campaign goes on");
	is($s->{watcher}->finished, '', "$name: and a wait_for_change()");
	is($control->query($WORKER_PID), $s->{worker}, "$name: the same worker works");
	return;
}

#
# A version that changes no protocol: nothing stops.
#

my $s = begin_scene('bug fix');
my $newcomer;

install_version($install, '1.0.1', from => '1.0', protocol => 1,
	update => scalar((update_script(1))[0]) . "CREATE FUNCTION leader_election.new()
		RETURNS integer LANGUAGE sql AS 'SELECT 1';");
foreach my $step ('installed', 'updated')
{
	$control->query($UPDATE) if $step eq 'updated';
	is($control->sqlstate, '00000', "bug fix, $step");
	$newcomer = session($node, name => "$step newcomer");
	is($newcomer->query("SELECT leader_election.join('new $step', 'newcomer')"),
		1, "bug fix, $step: a new session leads");
	is($newcomer->query("SELECT term FROM leader_election.renew('lent', $s->{lent})"),
		$s->{lent}, "bug fix, $step: and renews another one's lease");
	goes_on_ok($s, "bug fix, $step");
	wait_for_renewal($node, 'held');
	$newcomer->finish;
}
is($control->query('SELECT leader_election.new()'), 1, 'bug fix: it is updated');
is($s->{"fenced_$_"}->sqlstate_of('COMMIT'), '00000', "bug fix: a fence by a $_ holds")
  foreach qw(session term);
is(written('bug fix session') + written('bug fix term'), 2, 'bug fix: and writes');
$s->{holder}->query("SELECT leader_election.resign('held')");
cmp_ok($s->{campaign}->result, '>', $s->{held}, 'bug fix: the campaign is elected');
end_scene($s);

#
# Another protocol.  This update ends no session, as those that CONTRIBUTING.md
# describes do: all stay connected.
#

my $marks = -s $node->logfile;
my $stopped = session($node, name => 'stopped');
my $updater = session($node, name => 'updater');
my $late = session($node, name => 'late');
my ($new, $successor, $log);

$s = begin_scene('other');
$late->query("LOAD 'leader_election'");
$stopped->query("LOAD 'stop_at_commit'; LOAD 'leader_election'");    # in this order
install_version($install, '1.1', from => '1.0.1', protocol => 2,
	update => scalar((update_script(2))[0]) . q{
	ALTER TABLE leader_election.lease ADD COLUMN extra integer;
	DROP FUNCTION leader_election.resign(text, interval);
	CREATE FUNCTION leader_election.resign(election text, hold interval DEFAULT NULL, extra integer DEFAULT 7)
		RETURNS boolean AS 'MODULE_PATHNAME', 'le_resign' LANGUAGE C;});

# The new library, which only new sessions have, does nothing with the old objects.
goes_on_ok($s, 'other, installed');
$new = session($node, name => 'new');
refused_ok($new, "SELECT leader_election.$_",
	qr/protocol 1, the library .* protocol 2.*ALTER EXTENSION leader_election UPDATE/s,
	"other, installed: new session: $_")
  foreach "join('held', 'new')", "acquire('lent', 'new')", "renew('lent', $s->{lent})",
  "release('lent', $s->{lent})", "_observe('held')", "leader('held')", "diagnose('held')",
  '_measure()', '_measure_server()', "create_election('created')", "assert_leader('lent', $s->{lent})", 'pause_all()';
refused_ok($new, "CALL leader_election.campaign('held', 'new')", qr/ALTER EXTENSION/,
	'other, installed: new session: campaign()');
is($new->query("SELECT leader_election.is_leader('lent', $s->{lent})"),
	'f', 'other, installed: new session: is_leader()');
is($control->query($WORKER_PID), $s->{worker}, 'other, installed: no other worker came');

# A fenced transaction that has passed its second look, and is not committed: the
# update waits for it.  Otherwise another one could be elected by the new
# protocol before the commit.
$stopped->query("BEGIN; SELECT leader_election.assert_leader('lent', $s->{lent});
	INSERT INTO jobs VALUES ('stopped'); SELECT stop_at_commit()");
$stopped->query_async('COMMIT');
wait_stopped($stopped->backend_pid);
is($updater->sqlstate_of($UPDATE), '55P03', 'other: the update waits for a fenced commit, for 1 s');
is($s->{holder}->query("SELECT leader_election.is_leader('held')"),
	't', 'other: a leader leads on when the update has failed');
resume_process($stopped->backend_pid);
$stopped->result;
is($stopped->sqlstate, '00000', 'other: the fenced commit goes on');
goes_on_ok($s, 'other, given up');

# The same for a transaction that has changed something.
$late->query("BEGIN; SELECT leader_election.create_election('open')");
is($updater->sqlstate_of($UPDATE), '55P03', 'other: it waits for a change');
$late->query('COMMIT');
is($late->sqlstate, '00000', 'other: which is committed');

# What comes while the update runs waits for it, and then meets the new number.
# is_leader() does not wait.
$late->query("BEGIN; SELECT leader_election.assert_leader('lent', $s->{lent});
	INSERT INTO jobs VALUES ('late')");
$updater->query("BEGIN; $UPDATE");
is($updater->sqlstate, '00000', 'other: the update runs');
$late->query_async('COMMIT');
wait_until(
	sub {
		$control->query('SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = '
			  . $late->backend_pid) == 1;
	},
	'a commit to wait');
is($s->{holder}->query("SELECT leader_election.is_leader('held')"),
	't', 'other, under way: the session leads');
$updater->query('COMMIT');
is($s->{holder}->query("SELECT leader_election.is_leader('held')"),
	'f', 'other, updated: it does not (G1)');
$late->result;
refused_ok($late, undef, qr/Reconnect/, 'other, updated: a commit that has waited');

# Now all of before is refused.
foreach my $fence (qw(session term))
{
	refused_ok($s->{"fenced_$fence"}, 'COMMIT', qr/protocol 2, the library .* protocol 1.*Reconnect/s,
		"other, updated: a fence by a $fence (G8)");
}
is( written('other session') + written('other term') + written('late'), 0,
	'other, updated: they have written nothing');
is(written('stopped'), 1, 'other, updated: what was committed before is');
foreach my $waiting (qw(campaign watcher))
{
	$s->{$waiting}->result;
	refused_ok($s->{$waiting}, undef, qr/Reconnect/, "other, updated: a $waiting that waits");
}
refused_ok($s->{detached}, "SELECT leader_election.$_", qr/Reconnect/, "other, updated: $_")
  foreach "renew('lent', $s->{lent})", "acquire('lent', 'x')", "join('held', 'x')",
  "_observe('held')", "leader('held')", "assert_leader('held')",
  "assert_leader('lent', $s->{lent})", "resign('held')", "diagnose('held')", '_measure()',
  '_measure_server()';
refused_ok($s->{detached}, 'INSERT INTO guarded DEFAULT VALUES', qr/Reconnect/,
	'other, updated: a trigger');

# The worker has ended, and started another one.
wait_until(
	sub {
		$successor = $control->query($WORKER_PID);
		return $successor =~ /^\d+$/ && $successor != $s->{worker};
	},
	'another worker');
$log = substr(slurp_file($node->logfile), $marks);
is(() = $log =~ /leader_election worker ends: .* different versions/g,
	1, 'other, updated: the old worker says once that it ends');

# The new library goes on where the old one was.
$new = session($node, name => 'new');
is($new->query("SELECT term FROM leader_election.renew('lent', $s->{lent})"),
	$s->{lent}, 'other, updated: a detached leader leads on, from a new session');
cmp_ok($new->query("CALL leader_election.campaign('held', 'new')"),
	'>', $s->{held}, 'other, updated: the session that can lead no more has made room');
is( $control->query("SELECT reason FROM leader_election.history
		WHERE election = 'held' AND term = $s->{held}"),
	'session ended', 'other, updated: at once');
is($new->query("SELECT leader_election.resign('held')"), 't', 'other, updated: resign()');
end_scene($s);
$new->finish;

#
# As CONTRIBUTING.md says: sessions that stand are ended, also those that notice nothing.
# How long do elections stop?
#

my $tempdir = PostgreSQL::Test::Utils::tempdir();
my %log = map { $_ => "$tempdir/$_" } qw(session detached);
my @leaders;
my $idle = session($node, name => 'idle');
my ($before, $began, $start, %stop);

is($idle->query("SELECT leader_election.join('idle', 'idle')"), 1, 'contest: a session leads, and sleeps');
foreach my $mode (sort keys %log)
{
	push @leaders,
	  map { pg_leader($node, '-e', "pl $mode", '--mode', $mode, '-n', $_, '--forever', worker($log{$mode})) }
	  qw(one two three);
	wait_until(sub { -e "$log{$mode}.log" }, "a leader by $mode");
}
install_version($install, '1.2', from => '1.1', protocol => 3, update => scalar update_script(3));
($began, $start) = (time, machine_time());
$updater->finish;
$updater = session($node, name => 'updater');
is($updater->sqlstate_of($UPDATE), '00000', 'contest: the update');
$idle->query('SELECT 1');
ok(!$idle->alive, 'contest: the session that sleeps is ended');
$new = session($node, name => 'new');
cmp_ok($new->query("CALL leader_election.campaign('idle', 'new')"),
	'>', 1, 'contest: so that another one leads');
$stop{idle} = machine_time() - $start;
wait_until(sub { slurp_file("$log{session}.log") =~ /started.*started/s }, 'the next leader by a session');
$stop{session} = machine_time() - $start;
wait_until(
	sub {
		$new->query("SELECT renewed_at > to_timestamp($began) + interval '$LEASE s'
			FROM leader_election.lease WHERE election = 'pl detached'") eq 't';
	},
	'a renewal of the detached leader');
is(() = slurp_file("$log{detached}.log") =~ /started/g, 1, 'contest: a detached leader leads on');
unlike(slurp_file("$_.log"), qr/OVERLAP/, 'contest: nobody was started twice (G1)') foreach values %log;
cmp_ok($stop{$_}, '<', $LEASE, "contest: elections of $_ stop for less than a lease") foreach sort keys %stop;
note(join(', ', map { sprintf('%s: %.2f s', $_, $stop{$_}) } sort keys %stop));
is( $control->query("SELECT string_agg(election, ', ') FROM (
		SELECT election, acquired_at < lag(ended_at) OVER (PARTITION BY election ORDER BY term) AS early
		FROM leader_election.history) h WHERE early"),
	'', 'contest: each term begins after the end of the one before (G5)');
foreach my $one (@leaders)
{
	my $warned = () = $one->output =~ /different versions/g;

	cmp_ok($warned, '<=', 1, 'contest: pg_leader says it once at most');
	$one->signal('TERM');
}
$_->exit_code foreach @leaders;

done_testing();
