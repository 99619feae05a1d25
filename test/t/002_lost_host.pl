# Dead peer detection: the settings of a session that stands for election, and
# takeover from leaders whose host vanishes without a word: within max(lease,
# 3 s) if nothing was on its way to it, else within max(two leases, 30 s), so
# that a client may read nothing for a while.
#
# Hosts are network namespaces, which need no privilege where the system allows
# user namespaces: the whole test runs in one, with a network of its own, and so
# does its server; the clients that vanish are in a second one behind a veth
# pair.  Closing their end of it loses every packet, and nobody says goodbye.

use strict;
use warnings;

my $no_network;

BEGIN
{
	my @own_network =
	  qw(unshare --user --map-current-user --net --keep-caps);
	my $own = 'LEADER_ELECTION_OWN_NETWORK';

	unless ($ENV{$own})
	{
		my $tried = qx(@own_network sh -c 'ip link set lo up && ss -H' 2>&1);

		chomp $tried;
		$no_network = "no network namespace can be made: $tried" if $? != 0;
		unless ($no_network)
		{
			$ENV{$own} = 1;
			exec @own_network, $^X, (map { "-I$_" } @INC), $0, @ARGV;
			die "cannot start unshare: $!";
		}
	}
	system('ip link set lo up') unless $no_network;
}

use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use LeaderElection;
use MachineTime;
use POSIX qw(fmod);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $SERVER = '192.0.2.1';
my $CLIENT = '192.0.2.2';
my $MAC = '02:00:00:00:00:02';
my $LEASE = 9;        # seconds: a probe every 3 s
my $TAKEOVER = 10;    # a dead session ends after a lease
my $UNSENT = 36;      # with data on its way to it, after 30
my $LATER_LEASE = 15;

my $node = new_server(
	config => qq(
leader_election.lease_duration = '2s'
client_min_messages = warning
listen_addresses = '0.0.0.0'
));
$node->append_conf('pg_hba.conf', "host all all $CLIENT/32 trust\n");
$node->reload;

# --- The settings

my @settings = qw(tcp_keepalives_idle tcp_keepalives_interval
  tcp_keepalives_count tcp_user_timeout client_connection_check_interval);

# Their values: seconds, seconds, number, milliseconds, milliseconds.
sub settings
{
	my ($session) = @_;

	return split /\|/,
	  $session->query(
		'SELECT '
		  . join(', ',
			map { "(SELECT setting FROM pg_settings WHERE name = '$_')" }
			  @settings));
}

sub settings_are_tight
{
	my ($session, $name) = @_;
	my ($idle, $interval, $count, $user_timeout, $check) = settings($session);

	note("$name: $idle $interval $count $user_timeout $check");
	cmp_ok($idle + $interval * $count,
		'<=', 3, "$name: probes end a dead session within 3 s");
	cmp_ok($count, '>=', 2, "$name: a lost probe ends nothing");
	is($user_timeout, 30000,
		"$name: unacknowledged data does that after 30 s");
	ok($check > 0 && $check <= 1000, "$name: a busy server looks");
	return;
}

sub local_session
{
	my (%opts) = @_;

	return session($node, name => 'local', host => '127.0.0.1', %opts);
}

{
	my $session = local_session();
	my @before = settings($session);

	$session->query("SELECT leader_election.join('one', 'c')");
	settings_are_tight($session, 'candidate');
	$session->query('RESET ALL');
	settings_are_tight($session, 'after RESET ALL');
	$session->query("SELECT leader_election.join('two', 'c')");
	$session->query("SELECT leader_election.leave('one')");
	settings_are_tight($session, 'one candidacy left');
	$session->query("SELECT leader_election.leave('two')");
	is_deeply([ settings($session) ], \@before, 'put back after the last');

	$session->query("SELECT leader_election.join('one', 'c')");
	settings_are_tight($session, 'candidate again');
	$session->query('DISCARD ALL');
	is_deeply([ settings($session) ], \@before, 'put back by DISCARD ALL');

	is($session->sqlstate_of("SELECT leader_election.join('one', 'c')"),
		'LE006', 'is told of that');
	$session->query("SELECT leader_election.join('one', 'c')");
	$session->query('SET tcp_keepalives_idle = 7');
	$session->query('SET client_connection_check_interval = 700');
	$session->query("SELECT leader_election.leave('one')");
	is_deeply(
		[ (settings($session))[ 0, 4 ] ],
		[ 7, 700 ],
		'what the client has set since then stays');
	$session->finish;
}

# What the client has switched off stays so, before its first candidacy or since.
foreach my $first (0, 1)
{
	my $session = local_session();
	my @mine = (1, 4);    # tcp_keepalives_interval, client_connection_check_interval

	$session->query("SELECT leader_election.join('one', 'c')") if $first;
	$session->query("SET $settings[$_] = 0") foreach @mine;
	my @off = (settings($session))[@mine];
	$session->query("SELECT leader_election.join('$_', 'c')") foreach qw(one two);
	is_deeply([ (settings($session))[@mine] ], \@off, 'what is switched off stays so' . ($first ? ', since then' : ''));
	is((settings($session))[3], 30000, 'other settings are tight');
	$session->query('SELECT leader_election.leave_all()');
	is_deeply([ (settings($session))[@mine] ], \@off, 'and after the last candidacy');
	$session->finish;
}

# No probe ends a session before the shortest of its leases is over: its client,
# which is cut off, may count on that lease.
sub lasts_for
{
	my ($session, $lease, $name, $more) = @_;
	my ($idle, $interval, $count) = settings($session);
	my $lasts = $idle + $interval * $count;

	ok($lease <= $lasts && $lasts < $lease + ($more // 3),
		"$name: probes end the session after $lease s or a little more, got $lasts s");
	return;
}

foreach my $lease (4, 15, 20, 29, 40, 60.001, 600)
{
	$node->safe_psql('postgres',
		"SELECT leader_election.create_election('of $lease s', lease_duration => '$lease s')");
}

foreach my $order ([ 15, 20, 29 ], [ 29, 15, 20 ])
{
	my $session = local_session();
	my $name = "first @$order";    # the session before may not have ended yet

	foreach my $lease (@$order)
	{
		$session->query("SELECT leader_election.join('of $lease s', '$name')");
	}
	lasts_for($session, 15, "the shortest of @$order");
	$session->query("SELECT leader_election.leave('of $_ s')") foreach 20, 15;
	lasts_for($session, 29, "the one that is left of @$order");
	$session->finish;
}

# A campaign does not know the election's lease at first.
{
	my $session = local_session();

	$session->query("CALL leader_election.campaign('of 60.001 s', 'c')");
	lasts_for($session, 60.001, 'campaign');
	$session->finish;
}

# The lease may become longer, or shorter. That of a leader becomes longer when it is
# renewed, by renew() or by the worker; what it was granted is not cut short.
my $other = session($node, name => 'other');

foreach my $how (qw(join renew remaining_ms))
{
	my $session = local_session();
	my $election = "changed, $how";
	my $auto_renew = $how eq 'renew' ? 'false' : 'true';
	my $join = "SELECT leader_election.join('$election', 'c', auto_renew => $auto_renew)";

	$node->safe_psql('postgres', "SELECT leader_election.create_election('$election', lease_duration => '6 s')");
	$other->query("SELECT leader_election.join('$election', 'leader')")
	  if $how eq 'join';
	$session->query($join);
	lasts_for($session, 6, $how);
	foreach my $lease ($how eq 'join' ? (33, 9) : 33)
	{
		$node->safe_psql('postgres',
			"SELECT leader_election.alter_election('$election', lease_duration => '$lease s')");
		if ($how eq 'remaining_ms')
		{
			wait_for($node, "SELECT expires_at - renewed_at >= '$lease s' FROM leader_election.status WHERE election = '$election'");
			$session->query('BEGIN');    # it counts before the transaction ends, too
			$session->query("SELECT leader_election.remaining_ms('$election')");
		}
		else
		{
			$session->query($how eq 'join' ? $join : "SELECT leader_election.renew('$election')");
		}
		lasts_for($session, $lease, "$how: the lease became $lease s");
		$session->query('COMMIT') if $how eq 'remaining_ms';
	}
	$session->finish;
}
$other->finish;

# Where these are tighter in part, the session would end before the lease.
foreach my $tight (
	'tcp_keepalives_idle=1', 'tcp_keepalives_interval=1', 'tcp_keepalives_count=1',
	'tcp_keepalives_idle=1 -c tcp_keepalives_interval=1 -c tcp_keepalives_count=40')
{
	my $session = local_session(options => "-c $tight");
	my @before = settings($session);

	$session->query("SELECT leader_election.join('of 40 s', 'c')");
	lasts_for($session, 40, $tight);
	$session->query("SELECT leader_election.join('of 4 s', 'c')");
	lasts_for($session, 4, "$tight, shorter");
	$session->query('SELECT leader_election.leave_all()');
	is_deeply([ settings($session) ], \@before, "$tight: put back");
	$session->finish;
}

# The same where the session has SET them, before or since: more probes make up for it,
# or later ones.
foreach my $set (
	'tcp_keepalives_idle = 1', 'tcp_keepalives_interval = 1',
	'tcp_keepalives_count = 1', 'tcp_keepalives_interval = 1; SET tcp_keepalives_count = 1')
{
	foreach my $first (0, 1)
	{
		my $session = local_session();
		my $join = "SELECT leader_election.join('of 40 s', 'c')";

		$session->query($join) if $first;
		$session->query("SET $set");
		$session->query($join);
		lasts_for($session, 40, "SET $set" . ($first ? ', since then' : ''),
			$set =~ /idle/ ? 14 : undef);    # one more probe
		$session->finish;
		wait_gone($node, $session);    # the next one has its name
	}
}

# Where settings end the session sooner, renew() grants no more than until then: its
# client must not count on the lease for longer.
foreach my $tight (
	'tcp_keepalives_idle=1 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3',
	'tcp_user_timeout=7000', 'idle_session_timeout=7s', 'client_connection_check_interval=7s')
{
	my $session = local_session(options => "-c $tight");
	my ($most, $name) = $tight =~ /^client/ ? (40_000, 'nothing else') : (7_000, $tight);

	$session->query("SELECT leader_election.join('of 40 s', 'c')");
	my ($ms, $expires) = split /\|/, $session->query(
		"SELECT remaining_ms, expires_at > clock_timestamp() + '30 s' FROM leader_election.renew('of 40 s')");
	cmp_ok($ms, '<=', $most, "$name shortens what renew() grants, got $ms ms");
	cmp_ok($ms, '>', $most - 5_000, '... no more than that');
	is($expires, 't', '... not the lease');
	$session->finish;
	wait_gone($node, $session);
}

# What is tighter stays as it is until the session stands no more, also when the
# configuration is changed.
{
	my @tight = qw(1 2 3 20000);
	my $other = local_session();
	my $set = sub {
		my @values = @_;

		$node->safe_psql('postgres', "ALTER SYSTEM SET $settings[$_] = $values[$_]") foreach 0 .. 3;
		$node->reload;
		wait_until(sub { (settings($other))[3] eq $values[3] }, 'the configuration');
	};

	$set->(@tight);
	my $session = local_session();
	$session->query("SELECT leader_election.join('of 40 s', 'c')");
	is_deeply([ (settings($session))[0 .. 3] ], \@tight, 'tighter settings of the configuration');
	$set->(1, 1, 1, 3000);
	is_deeply([ (settings($session))[0 .. 3] ], \@tight, 'they stay when the configuration is changed');
	$set->(0, 0, 0, 0);
	$session->finish;
	$other->finish;
}

# What the session has SET is RESET later.
{
	my $session = local_session();

	$session->query('SET tcp_keepalives_idle = 600');
	$session->query("SELECT leader_election.join('of 20 s', 'c')");
	$session->query('RESET tcp_keepalives_idle');
	$session->query('SELECT');
	lasts_for($session, 20, 'SET and RESET');
	$session->finish;
}

# A campaign that cannot read its election's lease yet takes no other one's time.
{
	my $session = local_session();
	my $locks = session($node, name => 'locks');

	$session->query("SELECT leader_election.join('of 40 s', 'c')");
	my $port = $session->query('SELECT inet_client_port()');
	$locks->query('BEGIN');
	$locks->query('LOCK TABLE leader_election.candidate IN SHARE MODE');
	$session->query_async("CALL leader_election.campaign('of 60.001 s', 'c')");
	wait_for($node, "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = " . $session->backend_pid);
	my ($first_probe) = qx(ss -Htno state established dst = 127.0.0.1:$port) =~ /timer:\(keepalive,(\d+)/;
	cmp_ok($first_probe // 0, '>', 3, 'a campaign that waits for a lock: the first probe is far away');
	$locks->query('ROLLBACK');
	$session->result;
	lasts_for($session, 40, 'a campaign that has waited');
	$session->finish;
	$locks->finish;
}

# Switched off, and on again
{
	my $session = local_session();
	my @before = settings($session);

	$session->query("SELECT leader_election.join('of 15 s', 'c')");
	$session->query('SET leader_election.dead_peer_detection = off');
	$session->query("SELECT leader_election.join('of 15 s', 'c')");
	is_deeply([ settings($session) ], \@before, 'switched off: put back');
	$session->query('SET leader_election.dead_peer_detection = on');
	$session->query("SELECT leader_election.join('of 15 s', 'c')");
	lasts_for($session, 15, 'switched on again');
	$session->finish;
}

{
	my $session = local_session(
		options => '-c tcp_keepalives_interval=1 -c tcp_user_timeout=2500'
		  . ' -c client_connection_check_interval=30');
	my @before = settings($session);

	$session->query("SELECT leader_election.join('one', 'c')");
	is_deeply(
		[ (settings($session))[ 1, 3, 4 ] ],
		[ 1, 2500, 30 ],
		'tighter settings stay');
	$session->query("SELECT leader_election.leave('one')");
	is_deeply([ settings($session) ], \@before, 'and the others are put back');
	$session->finish;
}

# One that is looser than keepalives are to be, but tighter than data on its way
# needs, is as good as kept.
{
	my $session = local_session(options => '-c tcp_user_timeout=20000');
	my @before = settings($session);

	$session->query("SELECT leader_election.join('one', 'c')");
	is((settings($session))[3], 19999, 'a user timeout in between');
	$session->query("SELECT leader_election.join('two', 'c')");
	is((settings($session))[3], 19999, 'a user timeout in between, again');
	$session->query('SELECT leader_election.leave_all()');
	is_deeply([ settings($session) ], \@before, 'is put back');
	$session->query('SET tcp_user_timeout = 25000');
	$session->query("SELECT leader_election.join('one', 'c')");
	is((settings($session))[3], 25000, 'but not touched after SET');
	$session->finish;
}

# Looser ones that came with the connection are tightened; what the session has
# SET is its own business, and RESET gives what it did before.
foreach my $how ('connection', 'SET')
{
	my %loose = (
		tcp_keepalives_idle => 100,
		tcp_keepalives_interval => 100,
		tcp_keepalives_count => 9,
		tcp_user_timeout => 100000,
		client_connection_check_interval => 100000);
	my $session = local_session(
		options => $how eq 'SET'
		? ''
		: join ' ', map { "-c $_=$loose{$_}" } @settings);
	my @default = settings($session);

	if ($how eq 'SET')
	{
		$session->query("SET $_ = $loose{$_}") foreach @settings;
	}
	is_deeply([ settings($session) ], [ @loose{@settings} ], "$how: loose");
	$session->query("SELECT leader_election.join('one', 'c')");
	settings_are_tight($session, $how) if $how eq 'connection';
	is_deeply([ settings($session) ], [ @loose{@settings} ], "$how: stay")
	  if $how eq 'SET';
	$session->query("SELECT leader_election.leave('one')");
	is_deeply([ settings($session) ], [ @loose{@settings} ],
		"$how: put back");
	$session->query("RESET $_") foreach @settings;
	is_deeply([ settings($session) ], \@default, "$how: reset");
	$session->finish;
}

{
	my $session =
	  local_session(options => '-c leader_election.dead_peer_detection=off');
	my @before = settings($session);

	$session->query("SELECT leader_election.join('one', 'c')");
	is_deeply([ settings($session) ], \@before, 'left alone where it is off');
	$session->finish;
}

# --- A host that vanishes

SKIP:
{
	skip $no_network, 1 if $no_network;

	# The clients' host; it ends with this test, even if that dies.
	my ($in, $out) = ('', '');
	my $host = IPC::Run::start(
		[ 'unshare', '--net', 'sh', '-c', 'echo up; exec cat' ],
		'<' => \$in,
		'>' => \$out,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	$host->pump until $out =~ /up/;
	my $pid = $host->{KIDS}[0]{PID};
	my @on_host = ('nsenter', "--net=/proc/$pid/ns/net");

	system_or_bail(
		qw(ip link add name server type veth peer name client address),
		$MAC, 'netns', $pid);
	system_or_bail('ip', 'address', 'add', "$SERVER/24", 'dev', 'server');
	system_or_bail(@on_host, 'ip', 'address', 'add', "$CLIENT/24", 'dev',
		'client');
	system_or_bail(qw(ip link set server up));
	my $plug = sub {
		system_or_bail(@on_host, qw(ip link set client), $_[0]);
		return;
	};
	$plug->('up');

	# The kernel must not know better than it would if the host were farther
	# away: it forgets its neighbours when the line to them goes down.
	system_or_bail('ip', 'neighbour', 'replace', $CLIENT, 'lladdr', $MAC,
		qw(dev server nud permanent));

	# How many probes of a session's connection are without an answer; -1 if data is on
	# its way, undef if the connection is gone.
	my $lost_probes = sub {
		my ($session) = @_;
		my $port = $session->{client_port} //=
		  $session->query('SELECT inet_client_port()');
		my $socket = qx(ss -Htno state established dst = $CLIENT:$port);

		return $1 if $socket =~ /timer:\(keepalive,[^,]*,(\d+)\)/;
		return $socket ? -1 : undef;
	};

	# Leaders there, each with an heir here
	my %there;
	my %here;
	foreach my $election (
		qw(idle busy transaction failed told late slow writing))
	{
		$node->safe_psql('postgres',
			"SELECT leader_election.create_election('$election', lease_duration => '$LEASE s')");
		$there{$election} = session(
			$node,
			name => "$election there",
			host => $SERVER,
			command => \@on_host);
		$here{$election} = session($node, name => "$election here");

		# This session stood for a long lease first, so that the server looked at its
		# socket only every 200 s.
		$there{idle}->query("SELECT leader_election.join('of 600 s', 'there')")
		  if $election eq 'idle';
		is( $there{$election}->query(
				"SELECT leader_election.join('$election', 'there')"),
			1,
			"$election: leads");
		is( $here{$election}->query(
				"SELECT leader_election.join('$election', 'here')"),
			'',
			"$election: follows");
	}
	is( $there{idle}->query('SELECT inet_client_addr()'),
		$CLIENT, 'leaders are on the other host');
	$there{$_}->query("LISTEN \"$_\"") foreach qw(told late);
	$there{transaction}->query('BEGIN');
	$lost_probes->($_) foreach values %there;

	my $all_is_well = sub {
		wait_until(
			sub { !grep { ($lost_probes->($_) // 0) != 0 } values %there },
			'probes that are answered');
		return;
	};

	# A short interruption, in which each session loses a probe. The server hears of all
	# of them right before, so that all lose it at the same time, a third of the lease
	# later. The next probe, after another third, has to be answered.
	setpriority(0, 0, -19);
	my $interrupt = sub {
		my ($meanwhile) = @_;

		$there{$_}->query('SELECT 1') foreach keys %there;
		$there{busy}->query_async('SELECT pg_sleep(600)');
		$all_is_well->();
		$plug->('down');
		$meanwhile->();
		wait_until(
			sub { !grep { ($lost_probes->($_) // 1) == 0 } values %there },
			'lost probes');
		$plug->('up');
		$all_is_well->();
		return;
	};
	$interrupt->(sub { });
	foreach my $election (qw(idle transaction failed told late slow writing))
	{
		is( $there{$election}->query(
				"SELECT leader_election.is_leader('$election'),
					leader_election.term('$election')"),
			't|1',
			"$election: one lost probe ends nothing");
	}
	is( $here{idle}->query("SELECT state FROM pg_catalog.pg_stat_activity
			WHERE pid = " . $there{busy}->backend_pid),
		'active',
		'busy: one lost probe ends nothing');

	# The same with data under way.
	$here{idle}->query('SELECT pg_cancel_backend(' . $there{busy}->backend_pid . ')');
	$there{busy}->result;
	$interrupt->(sub { $here{idle}->query("NOTIFY late, 'news'") });
	wait_until(sub { ($there{late}->notifications)[0] }, 'the news');
	is($there{late}->query("SELECT leader_election.term('late')"),
		1, 'late: data that is late ends nothing');

	# A client that reads nothing while there is much to read: its window is
	# closed.
	my $stop_reading = sub {
		my ($session) = @_;

		$session->query('\o /dev/null');
		$here{idle}->query('SELECT pg_advisory_lock(1)');
		$session->query_async(
			"SELECT repeat('x', 1000) FROM generate_series(1, 30000),
				(SELECT pg_advisory_lock_shared(1)) lock");
		wait_for($node, q{SELECT count(*) = 1 FROM pg_locks
			WHERE NOT granted AND locktype = 'advisory'});
		$session->kill('STOP');
		$here{idle}->query('SELECT pg_advisory_unlock(1)');
		wait_for($node, "SELECT wait_event = 'ClientWrite' FROM pg_stat_activity
			WHERE pid = " . $session->backend_pid);
		return time;
	};

	# It may do so for longer than a lease.
	my $since = $stop_reading->($there{slow});
	wait_until(sub { time - $since > 1.5 * $LEASE }, 'one and a half leases');
	$there{slow}->kill('CONT');
	$there{slow}->result;
	is($there{slow}->sqlstate, '00000', 'slow: a slow reader reads on');
	$there{slow}->query('\o');
	is($there{slow}->query("SELECT leader_election.term('slow')"),
		1, 'slow: and leads on');
	$there{slow}->finish;
	delete $there{slow};
	(delete $here{slow})->finish;

	# What fails ends all timers of a session.
	foreach my $sql ('BEGIN', 'SELECT 1/0', 'SELECT 1', 'ROLLBACK')
	{
		$there{failed}->query($sql);
	}
	foreach my $sql ('SAVEPOINT s', 'SELECT 1/0', 'ROLLBACK TO s')
	{
		$there{transaction}->query($sql);
	}
	$stop_reading->($there{writing});

	# What these have been answered has to be acknowledged.
	wait_until(
		sub { !grep { $lost_probes->($there{$_}) != 0 } qw(failed transaction) },
		'nothing on its way');

	# The host vanishes.  What is sent from then on, and never acknowledged,
	# starts the clock anew.  It has to be sent, though: the kernel must not
	# refuse because the line was open a moment ago.
	my %elapsed;
	my $start = machine_time();
	$plug->('down');
	wait_until(
		sub { qx(ip -o link show server) =~ /state (LOWERLAYER)?DOWN/ },
		'the line to be dead');
	my $told = machine_time() - $start;
	$here{idle}->query("NOTIFY told, 'news'");
	wait_until(
		sub {
			foreach my $election (keys %here)
			{
				$elapsed{$election} //= machine_time() - $start
				  if $here{$election}
				  ->query("SELECT leader_election.is_leader('$election')") eq 't';
			}
			return keys %elapsed == keys %here;
		},
		sub { 'new leaders, got ' . join(', ', keys %elapsed) });
	$elapsed{told} -= $told;
	foreach my $election (sort keys %elapsed)
	{
		cmp_ok(
			$elapsed{$election}, '<',
			$election =~ /told|writing/ ? $UNSENT : $TAKEOVER,
			"$election: takeover (liquibase#872)");
		note(sprintf '%s: %.3f s', $election, $elapsed{$election});
		is( $here{$election}->query(
				"SELECT leader_election.term('$election'),
					string_agg(leader || ' ' || coalesce(reason, 'leads'), ', ' ORDER BY term),
					min(host(client_addr)), min(ended_at) = max(acquired_at)
				FROM leader_election.history WHERE election = '$election'"),
			"2|there session ended, here leads|$CLIENT|t",
			"$election: history");
	}

	# It comes back.
	$plug->('up');
	foreach my $election (qw(idle transaction failed told late))
	{
		is( $there{$election}->sqlstate_of(
				"SELECT leader_election.is_leader('$election')"),
			'08006',
			"$election: its session is over");
	}
	is( $here{$_}->query("SELECT leader_election.term('$_')"),
		2, "$_: goes on leading")
	  foreach sort keys %here;

	# Data that is sent while keepalives go unanswered is not given up sooner, after the
	# system's number of retries. (Not every system allows to lower it.)
	my $retries = '/proc/sys/net/ipv4/tcp_retries2';
	if (open my $file, '>', $retries)
	{
		print $file "2\n";    # some three seconds
		close $file or note("$retries: $!");
	}
	note("$retries: " . slurp_file($retries));
	$node->safe_psql('postgres',
		"SELECT leader_election.create_election('later', lease_duration => '$LATER_LEASE s')");
	my $later = session($node, name => 'later there', host => $SERVER, command => \@on_host);
	$later->query('LISTEN later');
	$later->query("SELECT leader_election.join('later', 'there')");
	my $fitted = time;
	wait_until(sub { $lost_probes->($later) == 0 }, 'nothing on its way to it');
	$plug->('down');

	# A third of the lease after it was heard of last, a probe is without an answer.
	# Each third of the lease, the server looks at the socket: this comes right after it
	# has seen that.
	my ($silent_since, $in_time);
	wait_until(
		sub {
			my $now = time;
			$silent_since //= $now if $lost_probes->($later) > 0;
			my $silent = $now - ($silent_since // $now);
			$in_time = $silent > 1 && fmod($now - $fitted, $LATER_LEASE / 3) < 1;
			return $in_time || $silent > $LATER_LEASE / 2;
		},
		'the server to see that probes are lost');
	if ($in_time)
	{
		my $sent = time;
		my $over_after;
		$here{idle}->query("NOTIFY later, 'news'");
		wait_until(
			sub {
				my $lives = $here{idle}->query("SELECT count(*) FROM pg_stat_activity WHERE pid = " . $later->backend_pid);
				my $waited = time - $sent;

				$over_after = $waited if !$lives && $waited < $LATER_LEASE / 3;
				return !$lives || $waited >= $LATER_LEASE / 3;
			},
			'a third of the lease');
		is($over_after, undef, 'later: data has as much time as keepalives');
	}
	$later->kill;

	$there{$_}->kill foreach qw(busy writing);
	$host->kill_kill;
}

$node->stop;
done_testing();
