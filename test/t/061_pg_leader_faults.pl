# pg_leader run when pg_leader, the server or the network fails, in 30 rounds
# each, half of them in each mode: nothing of one leader's command is left when the
# next leader's starts. Rounds run side by side, in an election each.
#
# The commands of an election share a lock that proves it (see PgLeader.pm).
# Each has a child and a grandchild in another session, and all ignore SIGTERM.
#
# The network is cut between two network namespaces, as in 002_lost_host.pl.
# Where none can be made, a proxy that is stopped has to do.

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
		my $tried = qx(@own_network sh -c 'ip link set lo up' 2>&1);

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

use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use IPC::Run;
use LeaderElection;
use MachineTime;
use PgLeader;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $ROUNDS = 30;
my $SIDE_BY_SIDE = 10;
my $S = 1000 * slowness();    # a second, in ms; longer where the machine is slow

my $dir = PostgreSQL::Test::Utils::tempdir();
my $node = new_server(
	streaming => 1,
	config => qq(
leader_election.lease_duration = '@{[ 1.5 * $S ]}ms'
client_min_messages = warning
listen_addresses = '*'
));
$node->append_conf('pg_hba.conf', "host all all 192.0.2.2/32 trust\n");
$node->reload;
my $observer = session($node, name => 'observer');
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $proxy;

# A proxy to the server, which can be stopped: packets are lost without a word.
# After SIGUSR1 it delays the answer to the next renewal by $S, and is
# stopped as soon as that has passed.
sub start_proxy
{
	my $listener = IO::Socket::INET->new(
		LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 100, ReuseAddr => 1) or die "no proxy: $@";
	my $pid = fork // die;

	return $pid if $pid;
	my ($select, %peer, %is_server, $last, $lose) = (IO::Select->new($listener));
	$last = 0;
	local $SIG{USR2} = sub { $lose = 1; };
	local $SIG{USR1} = sub { $last = 1; };
	while (getppid > 1)
	{
		foreach my $from ($select->can_read(1))
		{
			if ($from == $listener)
			{
				my $client = $listener->accept or next;
				my $server = IO::Socket::UNIX->new($node->host . '/.s.PGSQL.' . $node->port) or next;
				@peer{ $client, $server } = ($server, $client);
				$is_server{$server} = 1;
				$select->add($client, $server);
				next;
			}
			my $to = $peer{$from} or next;
			my $data;
			if (sysread($from, $data, 65536))
			{
				my $stop = $last == 2 && $is_server{$from};
				my $lost = $lose && $data =~ /acquire/;

				$last = 2 if $last == 1 && $data =~ /renew/;
				sleep($S / 1000) if $stop;
				my $passed = defined syswrite($to, $data);
				kill('STOP', $$) if $stop;
				next if $passed && !$lost;
				sysread($to, $data, 1) if $lost;
				$lose = 0;
			}
			$select->remove($from, $to);
			delete @peer{ $from, $to };
			close($_) for $from, $to;
		}
	}
	POSIX::_exit(0);
}

# Another host, behind a line that can be cut: no packet gets through then, and
# neither side is told. Returns what starts something there, and what sets the
# line up or down.
my $host;

sub other_host
{
	my $mac = '02:00:00:00:00:02';
	my ($in, $out) = ('', '');

	$host = IPC::Run::start([ 'unshare', '--net', 'sh', '-c', 'echo up; exec cat' ],
		'<' => \$in, '>' => \$out, IPC::Run::timeout(10 * $PostgreSQL::Test::Utils::timeout_default));
	$host->pump until $out =~ /up/;
	my $pid = $host->{KIDS}[0]{PID};
	my @on_host = ('nsenter', "--net=/proc/$pid/ns/net");
	my $set = sub { system_or_bail(@on_host, qw(ip link set client), $_[0]); };

	system_or_bail(qw(ip link add name server type veth peer name client address), $mac, 'netns', $pid);
	system_or_bail(qw(ip address add 192.0.2.1/24 dev server));
	system_or_bail(@on_host, qw(ip address add 192.0.2.2/24 dev client));
	system_or_bail(qw(ip link set server up));
	$set->('up');
	# The kernel must not know better than if the host were farther away.
	system_or_bail('ip', 'neighbour', 'replace', '192.0.2.2', 'lladdr', $mac, qw(dev server nud permanent));
	return (\@on_host, $set);
}

END
{
	my $status = $?;

	kill('KILL', $proxy) if $proxy;
	$host->kill_kill if $host;
	$? = $status;
}

sub log_of
{
	my ($round) = @_;

	return -e "$round->{file}.log" ? slurp_file("$round->{file}.log") : '';
}

# Starts rounds: in each, a leader whose command runs, and another that waits. Where
# there are several leases, rounds take turns with them. Options are those of the first
# leader; connect is how it connects. On a machine so busy that a leader cannot renew in
# time, its round is started anew; and the other one may lose its leadership before its
# command has begun: it stands again.
sub start_rounds
{
	my ($name, $n, %opts) = @_;
	my @started;

	for (my $try = 1; @started < $n; $try++)
	{
		die "$name: rounds do not start" if $try > 5;
		my @rounds = try_to_start($try > 1 ? "$name again $try" : $name, $n - @started, %opts);

		foreach my $r (@rounds)
		{
			if (!$r->{one}->ended)
			{
				push @started, $r;
				next;
			}
			note("$r->{election} is started anew: " . $r->{one}->output . log_of($r));
			$r->{two}->signal('KILL');
			$r->{two}->exit_code;
		}
	}
	return @started;
}

sub try_to_start
{
	my ($name, $n, %opts) = @_;
	my @rounds = map { { election => "$name $_", file => "$dir/$name-$_" } } 1 .. $n;
	my @args = @{ $opts{args} // [] };
	my $i = 0;

	foreach my $r (@rounds)
	{
		my $lease = ref $opts{lease} ? $opts{lease}[$i++ % @{ $opts{lease} }] : $opts{lease};

		$node->safe_psql('postgres', "SELECT leader_election.create_election('$r->{election}', lease_duration => '$lease')")
		  if $lease;
		local @PgLeader::ON_HOST = @{ $opts{on_host} // [] };
		$r->{one} = pg_leader($opts{connect} // $node, '-e', $r->{election}, '-n', 'one', @args,
			worker($r->{file}, 'stubborn', 'family'));
	}
	foreach my $r (@rounds)
	{
		wait_until(sub { log_of($r) =~ /family/ || $r->{one}->ended }, "the first leader of $r->{election}");
		$r->{family} = [ descendants($r->{one}->pid) ];
		$r->{two} = pg_leader($node, '-e', $r->{election}, '-n', 'two', '--forever', @args, worker($r->{file}));
	}
	foreach my $r (@rounds)
	{
		wait_until(
			sub {
				$r->{one}->ended || $observer->query(
					"SELECT count(*) FROM leader_election.candidates WHERE election = '$r->{election}' AND alive") eq '2';
			},
			"two candidates of $r->{election}");
	}
	return @rounds;
}

# Waits for the takeovers, and ends the second leaders. How many were right:
# nothing was left of the first one's command.
sub end_rounds
{
	my (@rounds) = @_;
	my $right = 0;

	foreach my $r (@rounds)
	{
		wait_until(
			sub { log_of($r) =~ / two \d+ (started|OVERLAP)$/m },
			sub { "takeover of $r->{election}\n" . join('', log_of($r), map { $r->{$_}->describe } qw(one two)) });
		$right++ if log_of($r) =~ / two \d+ started$/m && !grep { is_running($_) } @{ $r->{family} }[ 1 .. 3 ];
		diag(log_of($r)) if log_of($r) =~ /OVERLAP/;
	}
	foreach my $r (@rounds)
	{
		$r->{two}->signal('TERM');
		$r->{two}->exit_code;
	}
	return $right;
}

# The rounds of a kind, in one of the two modes, side by side.
sub rounds
{
	my ($name, $fault, %opts) = @_;
	my @rounds = start_rounds($name, $ROUNDS / 2, %opts);

	$fault->(@rounds);
	is(end_rounds(@rounds), $ROUNDS / 2,
		"$name: the command was dead before the next one's started (consul#1843, consul#9788, G3)");
	$opts{after}->(@rounds) if $opts{after};
	return;
}

sub exit_codes
{
	return join(' ', sort { $a <=> $b } do { my %c = map { $_->{one}->exit_code => 1 } @_; keys %c });
}

# --- pg_leader is killed

foreach my $mode (qw(detached session))
{
	rounds(
		"killed $mode",
		sub { $_->{one}->signal('KILL') for @_; },
		args => [ '--mode', $mode ]);
}

# --- pg_leader is stopped for longer than the lease

foreach my $mode (qw(detached session))
{
	rounds(
		"stopped $mode",
		sub { $_->{one}->signal('STOP') for @_; },
		args => [ '--mode', $mode ],
		after => sub {
			$_->{one}->signal('CONT') for @_;
			is(exit_codes(@_), '121', "stopped, $mode: when it goes on, it has lost its leadership");
		});
}

# A session may end while pg_leader is stopped: then others lead long before its
# deadline.
{
	my ($r) = start_rounds('stopped and terminated', 1, lease => '1 min', args => [ '--mode', 'session' ]);
	my $start = machine_time();

	$r->{one}->signal('STOP');
	$node->safe_psql('postgres', "SELECT pg_terminate_backend(backend_pid) FROM leader_election.status WHERE election = '$r->{election}'");
	wait_until(sub { !grep { is_running($_) } @{ $r->{family} }[ 1 .. 3 ] }, 'the end of the command');
	cmp_ok(machine_time() - $start, '<', 30, 'stopped, and its session has ended: the command is killed before its deadline');
	$r->{one}->signal('CONT');
	is($r->{one}->exit_code, 121, 'when it goes on, it has lost its leadership');
	like($r->{one}->output, qr/is lost/, 'and says so');
	wait_for($node, "SELECT leader_election.leader('$r->{election}') = 'two'");
	$r->{two}->signal('TERM');
	$r->{two}->exit_code;
}

# If the command is stopped as well, and so is what would kill it, it cannot be
# killed in time. Its late writes are refused: that is what terms are for.
{
	my ($r) = start_rounds('all stopped', 1);
	my $term = $node->safe_psql('postgres', "SELECT term FROM leader_election.status WHERE election = '$r->{election}'");

	kill('STOP', $r->{one}->pid, @{ $r->{family} });
	wait_for($node, "SELECT leader_election.leader('$r->{election}') = 'two'");
	my ($code, $out, $err) = $node->psql('postgres', "SELECT leader_election.assert_leader('$r->{election}', $term)");
	like($err, qr/ERROR: .*term $term\b/, 'the old term is refused (ShedLock#132, ldk-node#932, G8)');
	isnt($code, 0, 'with an error');
	kill('CONT', $_) for @{ $r->{family} }, $r->{one}->pid;
	is($r->{one}->exit_code, 121, 'killed when it goes on');
	$r->{two}->signal('TERM');
	$r->{two}->exit_code;
}

# --- the network is cut

my ($on_host, $set_line);
($on_host, $set_line) = other_host() unless $no_network;

# The server ends the session of a host that has gone by keepalives, which it counts
# in multiples of 3 s: these leases are none.
my @LEASES = map { $_ * $S . 'ms' } 3.2, 4, 4.5, 5, 5.8;
$proxy = start_proxy();
foreach my $mode (qw(detached session))
{
	note($no_network) if $no_network;
	rounds(
		"cut $mode",
		sub { $no_network ? kill('STOP', $proxy) : $set_line->('down'); },
		connect => $no_network ? "host=127.0.0.1 port=$port dbname=postgres" :
		  'host=192.0.2.1 port=' . $node->port . ' dbname=postgres',
		on_host => $on_host,
		lease => \@LEASES,
		args => [ '--mode', $mode ],
		after => sub {
			is(exit_codes(@_), '121', "cut, $mode: leadership is lost");
			return $set_line->('up') unless $no_network;
			kill('KILL', $proxy);
			waitpid($proxy, 0);
			$proxy = start_proxy();
		});
}

# Settings of the server that end such a session before the lease is over
foreach my $settings (
	'-c tcp_keepalives_idle=1 -c tcp_keepalives_interval=1 -c tcp_keepalives_count=' . (1 + int(1.5 * $S / 1000)),
	'-c tcp_user_timeout=' . 3 * $S)
{
	last if $no_network;
	rounds(
		"cut $settings",
		sub { $set_line->('down'); },
		connect => 'host=192.0.2.1 port=' . $node->port . " dbname=postgres options='$settings'",
		on_host => $on_host,
		lease => 12 * $S . 'ms',
		args => [ '--mode', 'session' ],
		after => sub { $set_line->('up'); });
}

# The deadline counts from when a request was sent, however late the answer is:
# counted from the answer, it would be later than the server's by more than the
# margin.
{
	my ($r) = start_rounds('slow', 1, lease => 4 * $S . 'ms', connect => "host=127.0.0.1 port=$port dbname=postgres",
		args => [ '--mode', 'session', '--grace', '100ms' ]);

	kill('USR1', $proxy);
	is(end_rounds($r), 1, 'a late answer: the command was dead before the next one started');
	is($r->{one}->exit_code, 121, 'a late answer: leadership is lost');
	is($node->safe_psql('postgres', "SELECT ended_at - acquired_at > '@{[ 5 * $S ]} ms' FROM leader_election.history WHERE election = '$r->{election}' AND term = 1"),
		't', 'a late answer: there was one');
	kill('KILL', $proxy);
	waitpid($proxy, 0);
	$proxy = start_proxy();
}

# An answer that was lost may have been a grant: the next try is told it, so that
# this is no reason to skip, and there is no second term.
$node->safe_psql('postgres', "SELECT leader_election.create_election('unheard', lease_duration => '@{[ 2 * $S ]} ms')");
kill('USR2', $proxy);
{
	my ($code, $output) = run_pg_leader("host=127.0.0.1 port=$port dbname=postgres", '-e', 'unheard', '-n', 'me', '--skip', '--', 'echo', 'runs');

	is($code, 0, '--skip after a grant of which it has not heard');
	like($output, qr/^runs$/m, 'it runs');
}
is($node->safe_psql('postgres', "SELECT count(*) FROM leader_election.history WHERE election = 'unheard'"),
	1, 'it is that one');

# A host that does not answer any more is given up for the next of the list.
{
	my $hosts = sprintf('host=127.0.0.1,%s port=%s,%s dbname=postgres', $node->host, $port, $node->port);
	my ($r) = start_rounds('hosts', 1, lease => 6 * $S . 'ms', connect => $hosts, args => [ '--grace', '100ms' ]);

	kill('STOP', $proxy);
	my $stopped = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
	wait_until(
		sub { $r->{one}->ended || $node->safe_psql('postgres', "SELECT renewed_at > '$stopped' FROM leader_election.status WHERE election = '$r->{election}'") eq 't' },
		'a renewal');
	ok(!$r->{one}->ended && is_running($r->{family}[1]), 'the next host is tried in time');
	$r->{$_}->signal('KILL') for qw(one two);
	$r->{$_}->exit_code for qw(one two);
	kill('KILL', $proxy);
	waitpid($proxy, 0);
	undef $proxy;
}

# --- the server is away for less than the lease

{
	my $goes_on = 0;

	foreach my $i (1 .. 3)
	{
		my @rounds = start_rounds("restart$i", $SIDE_BY_SIDE, lease => 6 * $S . 'ms', args => [ '--grace', '200ms' ]);

		$node->stop('immediate');
		$node->start;
		wait_for($node, "SELECT count(*) = $SIDE_BY_SIDE FROM leader_election.status WHERE election LIKE 'restart$i %' AND leader = 'one' AND renewed_at > pg_postmaster_start_time()");
		$observer = session($node, name => 'observer');
		$goes_on += grep { is_running($_->{family}[1]) && log_of($_) !~ /two/ } @rounds;
		foreach my $r (@rounds)
		{
			$r->{one}->signal('KILL');
			$r->{two}->signal('KILL');
		}
		$_->{one}->exit_code for @rounds;
	}
	is($goes_on, $ROUNDS, 'restart within the lease: the commands go on');
}

# --- the server is away for longer

{
	my @rounds = start_rounds('away', $ROUNDS, args => []);

	$node->stop('immediate');
	is(exit_codes(@rounds), '121', 'stopped server: leadership is lost');
	is(scalar(grep { is_running($_) } map { @{ $_->{family} } } @rounds), 0, 'nothing is left');
	$node->start;
	is(end_rounds(@rounds), $ROUNDS, 'beyond the lease: the commands were dead before others started');
}

# --- a failover

{
	my $log = "$dir/failover";
	$node->safe_psql('postgres', "SELECT leader_election.create_election('failover', lease_duration => '@{[ 10 * $S ]} ms')");
	$node->backup('backup');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'backup', has_streaming => 1);
	$standby->start;
	my $hosts = sprintf('host=%s,%s port=%s,%s dbname=postgres', $node->host, $standby->host, $node->port, $standby->port);
	my $one = pg_leader($hosts, '-e', 'failover', '--grace', '100ms', '--', 'sh', '-c',
		'echo $PG_LEADER_TERM_FILE; while :; do sleep 0.1; done');
	wait_until(sub { $one->output =~ /\n/ }, 'its start');
	(my $file = $one->output) =~ s/\n.*//s;
	my $command = (descendants($one->pid))[1];
	is(slurp_file($file), "1\n", 'the first term');
	$node->wait_for_catchup($standby, 'replay', $node->lsn('write'));
	$node->stop('immediate');
	$standby->promote;
	# The file goes when leadership is lost.
	wait_until(sub { $one->ended || (eval { slurp_file($file) } // 0) > 2**22 },
		sub { 'the term of the promoted server: ' . $one->output });
	note($one->output);
	ok(is_running($command), 'the command goes on through a failover');
	is($standby->safe_psql('postgres', "SELECT leader_election.leader('failover') IS NOT NULL AND term = " . slurp_file($file) . " FROM leader_election.status WHERE election = 'failover'"),
		't', 'in the term that the file says');
	$one->signal('TERM');
	is($one->exit_code, 143, 'and ends');
	is($standby->safe_psql('postgres', "SELECT string_agg(reason, ' ' ORDER BY term) FROM leader_election.history WHERE election = 'failover'"),
		'failover resigned', 'its lease was given back');
}

done_testing();
